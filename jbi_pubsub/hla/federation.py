"""Federation management: who is joined, synchronization points, save and restore (IEEE 1516.1-2010, clause 4).

A federate:          join -> joined -> resign (or the RTI resigns it)
A point, for each of
its members:         announced -> moving -> achieved; all achieved -> synchronized, and the label is free again
A save, for each
federate:            none -> instructed -> saving -> waiting; all have reported -> saved, or not saved
A restore:           none -> instructed -> waiting; all have reported -> restored, or not restored

Own, where the standard leaves room: nobody learns who is joined or how many (Bridging the HLA, section 3): a status
tells one's own state, and which states others are in. A restore asks for federates of the same names as were saved, and
gives each the handle that it had.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from immutables import Map

from . import clock, objects, ownership
from .exceptions import (
    FederateHasNotBegunSave,
    FederateNameAlreadyInUse,
    FederateOwnsAttributes,
    FederateUnableToUseTime,
    InvalidArgument,
    InvalidResignAction,
    LogicalTimeAlreadyPassed,
    OwnershipAcquisitionPending,
    RestoreNotInProgress,
    RestoreNotRequested,
    SaveNotInitiated,
    SaveNotInProgress,
    SynchronizationPointLabelNotAnnounced,
)
from .execution import Member, Members, Point, Saving, ServiceCall

RESIGN_ACTIONS: Final = (
    "unconditionally_divest_attributes",
    "delete_objects",
    "cancel_pending_ownership_acquisitions",
    "delete_objects_then_divest",
    "cancel_then_delete_then_divest",
    "no_action",
)
"""Actions on what a federate owns when it leaves (clause 4.10)."""

SAVES_MOST: Final = 100
"""Labels that a federation execution keeps; the oldest go."""
POINTS_MOST: Final = 10_000
"""Synchronization points that are pending at once."""


# -- who is joined --------------------------------------------------------------------------------------------------


def join_federation_execution(
    call: ServiceCall, name: str = "", action: str = "delete_objects_then_divest", kind: str = ""
) -> int:
    """A federate joins; the answer is its handle. `name` is its own within the federation ("": one is made), `action`
    what is done when it dies, `kind` its type. Raises FederateNameAlreadyInUse, InvalidResignAction."""
    _check_action(action)
    members, pending = call.execution.members, call.execution.points.pending
    handle, made = call.next_name("federate", members.names)
    name = name or made
    if name in members.names:
        raise FederateNameAlreadyInUse(
            f"a federate {name!r} is joined to {call.execution.name}", hint="Take another name"
        )
    call.change(
        "members",
        joined=members.joined.set(handle, Member(name, action, kind=kind)), names=members.names.set(name, handle),
    )  # fmt: skip
    for label in sorted(pending):
        point = pending[label]
        if point.for_all:
            pending = pending.set(label, point._replace(achieved=point.achieved.set(handle, False)))
            call.tell(handle, "announce_synchronization_point", label, point.tag)
    call.change("points", pending=pending)
    return handle


def resign_federation_execution(call: ServiceCall, action: str) -> None:
    """A federate leaves. Raises InvalidResignAction, FederateOwnsAttributes, OwnershipAcquisitionPending."""
    _check_action(action)
    if action in ("cancel_then_delete_then_divest", "cancel_pending_ownership_acquisitions"):
        ownership.drop_claims(call)
    if action.startswith(("delete_objects", "cancel_then")):
        objects.delete_all(call)
    if action in ("unconditionally_divest_attributes", "delete_objects_then_divest", "cancel_then_delete_then_divest"):
        ownership.divest_all(call)
    if ownership.owns_any(call.execution, call.federate):
        raise FederateOwnsAttributes(
            f"the federate owns attributes, and {action} says nothing of them",
            hint="Divest them, or resign with an action that does",
        )
    if action == "delete_objects_then_divest":  # the standard leaves it to a federate before; its death does not ask
        ownership.drop_claims(call)
    if ownership.claims_any(call.execution, call.federate):
        raise OwnershipAcquisitionPending(
            "the federate waits for ownership", hint="Cancel the acquisition, or resign with an action that does"
        )
    _leave(call)


def get_automatic_resign_directive(call: ServiceCall) -> str:
    return call.execution.members.joined[call.federate].action


def set_automatic_resign_directive(call: ServiceCall, action: str) -> None:
    _check_action(action)
    joined = call.execution.members.joined
    call.change("members", joined=joined.set(call.federate, joined[call.federate]._replace(action=action)))


def _check_action(action: str) -> None:
    if action not in RESIGN_ACTIONS:
        raise InvalidResignAction(f"no resign action {action[:100]!r}", hint=f"There are {', '.join(RESIGN_ACTIONS)}")


def _leave(call: ServiceCall) -> None:
    """The rest of a resignation, which can't be refused."""
    execution, federate = call.execution, call.federate
    joined, names = execution.members
    call.execution = execution._replace(
        members=Members(joined.delete(federate), names.delete(joined[federate].name)),
        declared=execution.declared.without(federate),
        instances=execution.instances.forgotten_by(federate),
        regions=execution.regions.without(federate),
    )
    for each in execution.instances.leaving:
        call.execution = call.execution.gone_for(federate, each)
    _leave_points(call)
    _leave_saving(call)
    clock.resign(call)
    call.told = [each for each in call.told if each.federate != federate]


# -- synchronization points -----------------------------------------------------------------------------------------


def register_federation_synchronization_point(
    call: ServiceCall, label: str, tag: bytes = b"", federates: tuple[int, ...] | None = None
) -> None:
    register(call, label, tag, federates or call.execution.members.joined, for_all=not federates)


def register(call: ServiceCall, label: str, tag: bytes, members: Iterable[int], *, for_all: bool) -> None:
    """A point for members, or why it is none."""
    pending, joined = call.execution.points.pending, call.execution.members.joined
    achieved = Map(dict.fromkeys(members, False))
    reason = (
        "LABEL_NOT_UNIQUE" if label in pending
        else "BUSY" if (call.model.options.one_at_a_time and pending) or len(pending) >= POINTS_MOST
        else "MEMBER_NOT_JOINED" if any(each not in joined for each in achieved)
        else ""
    )  # fmt: skip
    if reason:
        call.tell(call.federate, "synchronization_point_registration_failed", label, reason)
        return
    call.tell(call.federate, "synchronization_point_registration_succeeded", label)
    for each in sorted(achieved):
        call.tell(each, "announce_synchronization_point", label, tag)
    _set_point(call, label, Point(tag, for_all, achieved, call.federate))  # a set may be empty


def synchronization_point_achieved(call: ServiceCall, label: str, success: bool = True) -> None:
    point = call.execution.points.pending.get(label)
    if point is None or point.achieved.get(call.federate) is not False:
        achieved = point is not None and call.federate in point.achieved
        raise SynchronizationPointLabelNotAnnounced(
            f"no synchronization point {label[:200]!r} is "
            + ("to be achieved: the federate has" if achieved else "announced to the federate"),
            hint="Wait for announce_synchronization_point",
        )
    reported = point.achieved.set(call.federate, True)
    _set_point(call, label, point._replace(achieved=reported, failed=point.failed or not success))


def _set_point(call: ServiceCall, label: str, point: Point) -> None:
    """Have a point pending, or over where all have achieved it."""
    pending = call.execution.points.pending
    if not all(point.achieved.values()):
        call.change("points", pending=pending.set(label, point))
        return
    call.change("points", pending=pending.delete(label) if label in pending else pending)
    for each in sorted(point.achieved):
        if point.failed:
            call.tell(each, "synchronization_point_failed", label)
        call.tell(each, "federation_synchronized", label)


def _leave_points(call: ServiceCall) -> None:
    federate, points = call.federate, call.execution.points
    sets = {name: each.delete(federate) if federate in each else each for name, each in points.sets.items()}
    call.change("points", sets=Map({name: each for name, each in sets.items() if each}))
    for label in sorted(points.pending):
        point = points.pending[label]
        if federate in point.achieved:
            _set_point(call, label, point._replace(achieved=point.achieved.delete(federate)))


# -- save and restore -----------------------------------------------------------------------------------------------


def request_federation_save(call: ServiceCall, label: str, time: float | None = None) -> None:
    """All federates are to save, now or at a logical time (clause 4.16). A save that waits for its time is replaced by
    a later request."""
    if not label:
        raise InvalidArgument("a save has a label", hint="Give a text of one character or more")
    if time is None:
        call.begin_save(label, None)
        return
    if call.pace.lookahead is None:
        raise FederateUnableToUseTime(
            "only a time-regulating federate can ask for a save at a time", hint="Leave the time out"
        )
    if time < clock.promised(call.pace)[0]:
        raise LogicalTimeAlreadyPassed(
            f"{time} is before the federate's time and lookahead", hint="Give a later time", time=time
        )
    call.change("saving", scheduled=(label, time))
    clock.settle(call)


def federate_save_begun(call: ServiceCall) -> None:
    if not _reports(call, "saving", at="instructed", is_restore=False):
        raise SaveNotInitiated("nobody has told the federate to save, or it has begun", hint="Wait for the callback")


def report_save(call: ServiceCall, *, state: str) -> None:
    """The federate has saved ("waiting"), or could not ("failed"). Raises FederateHasNotBegunSave."""
    if not _reports(call, state, at="saving", is_restore=False):
        raise FederateHasNotBegunSave("the federate has not begun to save", hint="Call federate_save_begun first")


def request_federation_restore(call: ServiceCall, label: str) -> None:
    joined, names = call.execution.members
    kept = call.execution.saving.kept.get(label)
    if kept is None or set(kept.members.names) != set(names):
        reason = "UNKNOWN_LABEL" if kept is None else "FEDERATES_DIFFER"
        call.tell(call.federate, "request_federation_restore_failed", label, reason)
        return
    states = Map(dict.fromkeys(joined, "instructed"))
    call.change("saving", label=label, is_restore=True, resigned=False, states=states)
    call.tell(call.federate, "request_federation_restore_succeeded", label)
    for each in sorted(joined):
        call.tell(each, "federation_restore_begun")
    for each in sorted(joined):
        name = joined[each].name
        call.tell(each, "initiate_federate_restore", label, name, kept.members.names[name])


def report_restore(call: ServiceCall, *, state: str) -> None:
    """The federate is as it was ("waiting"), or could not go back ("failed"). Raises RestoreNotRequested."""
    if not _reports(call, state, at="instructed", is_restore=True):
        raise RestoreNotRequested(
            "nobody has told the federate to restore, or it has reported", hint="Wait for initiate_federate_restore"
        )


def _reports(call: ServiceCall, state: str, *, at: str, is_restore: bool) -> bool:
    """The federate reports a state of a save, or a restore, in which it is `at` another one; whether it is."""
    saving = call.execution.saving
    if not saving.label or saving.is_restore is not is_restore or saving.states.get(call.federate) != at:
        return False
    call.change("saving", states=call.execution.saving.states.set(call.federate, state))
    _end_if_reported(call)
    return True


def _end_if_reported(call: ServiceCall) -> None:
    """Where all have reported, the save or restore ends. `federation_restored` goes to the handles that were saved."""
    saving, label = call.execution.saving, call.execution.saving.label
    if not all(state in ("waiting", "failed") for state in saving.states.values()):
        return
    failed = "RESIGNED" if saving.resigned else "REPORTED_FAILURE" if "failed" in saving.states.values() else ""
    if saving.is_restore:
        if failed:
            _end(call, "federation_not_restored", label, failed)
            return
        whole, handles = saving.kept[label], call.execution.handles
        for each in sorted(whole.members.joined):
            call.tell(each, "federation_restored", label)
        idle = Saving(kept=saving.kept, order=saving.order)
        call.execution = whole._replace(saving=idle, handles=max(whole.handles, handles))
        clock.settle(call)  # a save at a time held back who asked for more
    elif failed or not saving.states:
        _end(call, "federation_not_saved", label, failed or "RESIGNED")
    else:
        order = (*(each for each in saving.order if each != label), label)
        kept = saving.kept.set(label, call.execution._replace(saving=Saving()))
        for old in order[:-SAVES_MOST]:
            kept = kept.delete(old)
        call.change("saving", kept=kept, order=order[-SAVES_MOST:])
        _end(call, "federation_saved", label)


def _end(call: ServiceCall, name: str, *arguments: Any) -> None:
    """Nothing goes on any more; who was asked is told so."""
    saving = call.execution.saving
    for each in sorted(saving.states):
        call.tell(each, name, *arguments)
    idle = Saving(scheduled=saving.scheduled, kept=saving.kept, order=saving.order)
    call.execution = call.execution._replace(saving=idle)
    clock.settle(call)  # who resigned meanwhile may have held others back


def abort_federation_save(call: ServiceCall) -> None:
    saving = call.execution.saving
    if saving.label and not saving.is_restore:
        _end(call, "federation_not_saved", saving.label, "ABORTED")
        return
    if saving.scheduled is None:
        raise SaveNotInProgress("no save goes on, and none is asked for", hint="There is nothing to give up")
    call.change("saving", scheduled=None)
    for each in sorted(call.execution.members.joined):
        call.tell(each, "federation_not_saved", saving.scheduled[0], "ABORTED")
    clock.settle(call)


def abort_federation_restore(call: ServiceCall) -> None:
    saving = call.execution.saving
    if not saving.label or not saving.is_restore:
        raise RestoreNotInProgress("no restore goes on", hint="There is nothing to give up")
    _end(call, "federation_not_restored", saving.label, "ABORTED")


def query_status(call: ServiceCall, *, is_restore: bool) -> None:
    """Where the save, or the restore, is, by federation_..._status_response (clauses 4.23 and 4.31)."""
    saving = call.execution.saving
    states = saving.states if saving.label and saving.is_restore is is_restore else Map()
    others = {state for each, state in states.items() if each != call.federate}
    if states and saving.resigned:
        others.add("failed")  # who has left while he was asked
    name = f"federation_{'restore' if is_restore else 'save'}_status_response"
    call.tell(call.federate, name, states.get(call.federate, "none"), tuple(sorted(others)))


REPORTS: Final = {
    "federate_save_complete": (partial(report_save, state="waiting"), "save"),
    "federate_save_not_complete": (partial(report_save, state="failed"), "save"),
    "query_federation_save_status": (partial(query_status, is_restore=False), "both"),
    "federate_restore_complete": (partial(report_restore, state="waiting"), "restore"),
    "federate_restore_not_complete": (partial(report_restore, state="failed"), "restore"),
    "query_federation_restore_status": (partial(query_status, is_restore=True), "both"),
}
"""Services of who saves or restores, by their names, and during which of these they may be called."""


def _leave_saving(call: ServiceCall) -> None:
    """A save or restore does not wait for who has left; it fails when the others have reported."""
    saving = call.execution.saving
    if saving.label and call.federate in saving.states:
        call.change("saving", states=saving.states.delete(call.federate), resigned=True)
        _end_if_reported(call)
