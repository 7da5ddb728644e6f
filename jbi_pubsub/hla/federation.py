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

from collections.abc import Sequence
from typing import Any, Final

from immutables import Map

from . import clock, objects, ownership
from .exceptions import (
    FederateHasNotBegunSave,
    FederateNameAlreadyInUse,
    FederateOwnsAttributes,
    FederateUnableToUseTime,
    InvalidArgument,
    InvalidLogicalTime,
    InvalidResignAction,
    OwnershipAcquisitionPending,
    RestoreNotInProgress,
    RestoreNotRequested,
    SaveNotInitiated,
    SaveNotInProgress,
    SynchronizationPointLabelNotAnnounced,
)
from .execution import Execution, Member, Members, Model, Point, Saving, Step, Told, begin_save, tell

RESIGN_ACTIONS: Final = (
    "unconditionally_divest_attributes",
    "delete_objects",
    "cancel_pending_ownership_acquisitions",
    "delete_objects_then_divest",
    "cancel_then_delete_then_divest",
    "no_action",
)
"""What becomes of what a federate owns when it leaves (clause 4.10)."""

SAVES_MOST: Final = 100
"""Labels that a federation execution keeps; the oldest go."""
POINTS_MOST: Final = 10_000
"""Synchronization points that are pending at once."""


# -- who is joined --------------------------------------------------------------------------------------------------


def join_federation_execution(
    model: Model, execution: Execution, federate: int, name: str = "", action: str = "delete_objects_then_divest"
) -> Step:
    """A federate joins; the answer is its handle. `name` is its own within the federation ("": one is made), `action`
    what is done when it dies. Raises FederateNameAlreadyInUse, InvalidResignAction."""
    if action not in RESIGN_ACTIONS:
        raise InvalidResignAction(f"no resign action {action[:100]!r}", hint=f"There are {', '.join(RESIGN_ACTIONS)}")
    handle = execution.handles + 1
    name = name or f"federate-{handle}"
    if name in execution.members.names:
        raise FederateNameAlreadyInUse(f"a federate {name!r} is joined to {execution.name}", hint="Take another name")
    members = Members(
        execution.members.joined.set(handle, Member(name, action)), execution.members.names.set(name, handle)
    )
    told: list[Told] = []
    pending = execution.points.pending
    for label in sorted(pending):
        point = pending[label]
        if point.for_all:
            pending = pending.set(label, point._replace(achieved=point.achieved.set(handle, False)))
            told.append(tell(handle, "announce_synchronization_point", label, point.tag))
    execution = execution._replace(members=members, handles=handle, points=execution.points._replace(pending=pending))
    return Step(execution, handle, tuple(told))


def resign_federation_execution(model: Model, execution: Execution, federate: int, action: str) -> Step:
    """A federate leaves. Raises InvalidResignAction, FederateOwnsAttributes, OwnershipAcquisitionPending."""
    if action not in RESIGN_ACTIONS:
        raise InvalidResignAction(f"no resign action {action[:100]!r}", hint=f"There are {', '.join(RESIGN_ACTIONS)}")
    told: list[Told] = []
    if action == "cancel_then_delete_then_divest" or action == "cancel_pending_ownership_acquisitions":
        execution = ownership.without_claims(execution, federate)
    if action.startswith(("delete_objects", "cancel_then")):
        execution, more = objects.deleted_by(model, execution, federate)
        told.extend(more)
    if action in ("unconditionally_divest_attributes", "delete_objects_then_divest", "cancel_then_delete_then_divest"):
        execution, more = ownership.divested(model, execution, federate)
        told.extend(more)
    if ownership.owns_any(execution, federate):
        raise FederateOwnsAttributes(
            f"the federate owns attributes, and {action} says nothing of them",
            hint="Divest them, or resign with an action that does",
        )
    if (
        action == "delete_objects_then_divest"
    ):  # what the standard leaves a federate to do before; its death does not ask
        execution = ownership.without_claims(execution, federate)
    if ownership.claims_any(execution, federate):
        raise OwnershipAcquisitionPending(
            "the federate waits for ownership", hint="Cancel the acquisition, or resign with an action that does"
        )
    return _gone(execution, federate, tuple(told))


def _gone(execution: Execution, federate: int, told: tuple[Told, ...]) -> Step:
    """The rest of a resignation, which can't be refused."""
    members = execution.members
    execution = execution._replace(
        members=Members(members.joined.delete(federate), members.names.delete(members.joined[federate].name)),
        declared=execution.declared.without(federate),
        instances=execution.instances.forgotten_by(federate),
    )
    everything = list(told)
    for act in (_left_points, _left_saving, clock.resigned):
        execution, more = act(execution, federate)
        everything.extend(more)
    return Step(execution, None, tuple(each for each in everything if each.federate != federate))


# -- synchronization points -----------------------------------------------------------------------------------------


def register_federation_synchronization_point(
    model: Model, execution: Execution, federate: int, label: str, tag: bytes = b"",
    federates: tuple[int, ...] | None = None,
) -> Step:  # fmt: skip
    """A point for all, or for some federates; whether it is accepted is told by a callback (clause 4.11)."""
    members = tuple(federates or execution.members.joined)
    return registered(model, execution, federate, label, tag, members, for_all=not federates)


def registered(
    model: Model, execution: Execution, federate: int, label: str, tag: bytes, members: Sequence[int], *, for_all: bool
) -> Step:
    """A point for members, or why it is none."""
    pending, joined = execution.points.pending, execution.members.joined
    reason = (
        "LABEL_NOT_UNIQUE" if label in pending
        else "BUSY" if (model.options.one_at_a_time and pending) or len(pending) >= POINTS_MOST
        else "MEMBER_NOT_JOINED" if any(each not in joined for each in members)
        else ""
    )  # fmt: skip
    if reason:
        return Step(execution, None, (tell(federate, "synchronization_point_registration_failed", label, reason),))
    point = Point(tag, for_all, Map(dict.fromkeys(members, False)), federate)
    told = [tell(federate, "synchronization_point_registration_succeeded", label)]
    told.extend(tell(each, "announce_synchronization_point", label, tag) for each in sorted(point.achieved))
    step = _looked_at(execution, label, point)  # a set may be empty
    return step._replace(told=(*told, *step.told))


def synchronization_point_achieved(model: Model, execution: Execution, federate: int, label: str) -> Step:
    """A federate is where the point asks it to be. Raises SynchronizationPointLabelNotAnnounced."""
    point = execution.points.pending.get(label)
    if point is None or point.achieved.get(federate) is not False:
        achieved = point is not None and federate in point.achieved
        raise SynchronizationPointLabelNotAnnounced(
            f"no synchronization point {label[:200]!r} is "
            + ("to be achieved: the federate has" if achieved else "announced to the federate"),
            hint="Wait for announce_synchronization_point",
        )
    return _looked_at(execution, label, point._replace(achieved=point.achieved.set(federate, True)))


def _looked_at(execution: Execution, label: str, point: Point) -> Step:
    pending = execution.points.pending
    if all(point.achieved.values()):
        told = tuple(tell(each, "federation_synchronized", label) for each in sorted(point.achieved))
        return Step(execution._replace(points=execution.points._replace(pending=pending.delete(label))), None, told)
    return Step(execution._replace(points=execution.points._replace(pending=pending.set(label, point))))


def _left_points(execution: Execution, federate: int) -> tuple[Execution, tuple[Told, ...]]:
    told: tuple[Told, ...] = ()
    sets = {name: each.delete(federate) if federate in each else each for name, each in execution.points.sets.items()}
    left = Map({name: each for name, each in sets.items() if each})
    execution = execution._replace(points=execution.points._replace(sets=left))
    for label in sorted(execution.points.pending):
        point = execution.points.pending[label]
        if federate in point.achieved:
            step = _looked_at(execution, label, point._replace(achieved=point.achieved.delete(federate)))
            execution, told = step.execution, told + step.told
    return execution, told


# -- save -----------------------------------------------------------------------------------------------------------


def request_federation_save(
    model: Model, execution: Execution, federate: int, label: str, time: float | None = None
) -> Step:
    """All federates are to save, now or at a logical time (clause 4.16). A save that waits for its time is replaced by
    a later request. Raises FederateUnableToUseTime, InvalidLogicalTime, InvalidArgument."""
    if not label:
        raise InvalidArgument("a save has a label", hint="Give a text of one character or more")
    if time is not None:
        if not clock.is_regulating(execution, federate):
            raise FederateUnableToUseTime(
                "only a time-regulating federate can ask for a save at a time", hint="Leave the time out"
            )
        if time < clock.bound(execution, federate):
            raise InvalidLogicalTime(
                f"{time} is before the federate's time and lookahead", hint="Give a later time", time=time
            )
        execution = execution._replace(saving=execution.saving._replace(scheduled=(label, time)))
        execution, told = clock.settled(execution)
        return Step(execution, None, told)
    execution, told = begin_save(execution, label, None)
    return Step(execution, None, told)


def federate_save_begun(model: Model, execution: Execution, federate: int) -> Step:
    """The federate saves. Raises SaveNotInitiated."""
    saving = execution.saving
    if not saving.label or saving.is_restore or saving.states.get(federate) != "instructed":
        raise SaveNotInitiated("nobody has told the federate to save, or it has begun", hint="Wait for the callback")
    return Step(execution._replace(saving=saving._replace(states=saving.states.set(federate, "saving"))))


def federate_save_complete(model: Model, execution: Execution, federate: int) -> Step:
    """The federate has saved. Raises FederateHasNotBegunSave."""
    return _reported_save(execution, federate, "waiting")


def federate_save_not_complete(model: Model, execution: Execution, federate: int) -> Step:
    """The federate could not save. Raises FederateHasNotBegunSave."""
    return _reported_save(execution, federate, "failed")


def _reported_save(execution: Execution, federate: int, state: str) -> Step:
    saving = execution.saving
    if not saving.label or saving.is_restore or saving.states.get(federate) != "saving":
        raise FederateHasNotBegunSave("the federate has not begun to save", hint="Call federate_save_begun first")
    return _saved(execution._replace(saving=saving._replace(states=saving.states.set(federate, state))))


def _saved(execution: Execution) -> Step:
    """Where all have reported, the save ends."""
    saving = execution.saving
    if not all(state in ("waiting", "failed") for state in saving.states.values()):
        return Step(execution)
    failed = "RESIGNED" if saving.resigned else "REPORTED_FAILURE" if "failed" in saving.states.values() else ""
    if failed or not saving.states:
        return _save_ends(execution, "federation_not_saved", saving.label, failed or "RESIGNED")
    whole = execution._replace(saving=Saving())
    order = (*(each for each in saving.order if each != saving.label), saving.label)
    kept = saving.kept.set(saving.label, whole)
    for old in order[:-SAVES_MOST]:
        kept = kept.delete(old)
    execution = execution._replace(saving=saving._replace(kept=kept, order=order[-SAVES_MOST:]))
    return _save_ends(execution, "federation_saved", saving.label)


def _save_ends(execution: Execution, name: str, *arguments: Any) -> Step:
    told = tuple(tell(each, name, *arguments) for each in sorted(execution.saving.states))
    saving = execution.saving
    idle = Saving(scheduled=saving.scheduled, kept=saving.kept, order=saving.order)
    execution, more = clock.settled(execution._replace(saving=idle))
    return Step(execution, None, told + more)


def abort_federation_save(model: Model, execution: Execution, federate: int) -> Step:
    """The save that goes on, or waits for its time, is given up (clause 4.22). Raises SaveNotInProgress."""
    saving = execution.saving
    if saving.label and not saving.is_restore:
        return _save_ends(execution, "federation_not_saved", saving.label, "ABORTED")
    if saving.scheduled is None:
        raise SaveNotInProgress("no save goes on, and none is asked for", hint="There is nothing to give up")
    label, execution = saving.scheduled[0], execution._replace(saving=saving._replace(scheduled=None))
    told = tuple(tell(each, "federation_not_saved", label, "ABORTED") for each in sorted(execution.members.joined))
    execution, more = clock.settled(execution)
    return Step(execution, None, told + more)


def query_federation_save_status(model: Model, execution: Execution, federate: int) -> Step:
    """Where the save is, by federation_save_status_response (clause 4.23)."""
    return _status(execution, federate, "federation_save_status_response", is_restore=False)


def _status(execution: Execution, federate: int, name: str, *, is_restore: bool) -> Step:
    saving = execution.saving
    states = saving.states if saving.label and saving.is_restore is is_restore else Map()
    others = {state for each, state in states.items() if each != federate}
    if states and saving.resigned:
        others.add("failed")  # who has left while he was asked
    return Step(execution, None, (tell(federate, name, states.get(federate, "none"), tuple(sorted(others))),))


# -- restore --------------------------------------------------------------------------------------------------------


def request_federation_restore(model: Model, execution: Execution, federate: int, label: str) -> Step:
    """All federates are to go back to what was saved under a label; whether it can be is told by a callback
    (clause 4.24)."""
    kept = execution.saving.kept.get(label)
    reason = (
        "UNKNOWN_LABEL" if kept is None
        else "FEDERATES_DIFFER" if set(kept.members.names) != set(execution.members.names)
        else ""
    )  # fmt: skip
    if kept is None or reason:
        return Step(execution, None, (tell(federate, "request_federation_restore_failed", label, reason),))
    joined = execution.members.joined
    saving = execution.saving._replace(
        label=label, is_restore=True, resigned=False, scheduled=None,
        states=Map(dict.fromkeys(joined, "instructed")),
    )  # fmt: skip
    told = [tell(federate, "request_federation_restore_succeeded", label)]
    told.extend(tell(each, "federation_restore_begun") for each in sorted(joined))
    told.extend(
        tell(each, "initiate_federate_restore", label, joined[each].name, kept.members.names[joined[each].name])
        for each in sorted(joined)
    )
    return Step(execution._replace(saving=saving), None, tuple(told))


def federate_restore_complete(model: Model, execution: Execution, federate: int) -> Step:
    """The federate is as it was. Raises RestoreNotRequested."""
    return _reported_restore(execution, federate, "waiting")


def federate_restore_not_complete(model: Model, execution: Execution, federate: int) -> Step:
    """The federate could not go back. Raises RestoreNotRequested."""
    return _reported_restore(execution, federate, "failed")


def _reported_restore(execution: Execution, federate: int, state: str) -> Step:
    saving = execution.saving
    if not saving.label or not saving.is_restore or saving.states.get(federate) != "instructed":
        raise RestoreNotRequested(
            "nobody has told the federate to restore, or it has reported", hint="Wait for initiate_federate_restore"
        )
    return _restored(execution._replace(saving=saving._replace(states=saving.states.set(federate, state))))


def _restored(execution: Execution) -> Step:
    """Where all have reported, the restore ends. `federation_restored` goes to the handles that were saved."""
    saving = execution.saving
    if not all(state in ("waiting", "failed") for state in saving.states.values()):
        return Step(execution)
    failed = "RESIGNED" if saving.resigned else "REPORTED_FAILURE" if "failed" in saving.states.values() else ""
    if failed:
        return _restore_ends(execution, failed)
    whole = saving.kept[saving.label]
    told = tuple(tell(each, "federation_restored", saving.label) for each in sorted(whole.members.joined))
    idle = Saving(kept=saving.kept, order=saving.order)
    whole = whole._replace(saving=idle, handles=max(whole.handles, execution.handles))
    whole, more = clock.settled(whole)  # a save at a time held back who asked for more
    return Step(whole, None, told + more)


def _restore_ends(execution: Execution, reason: str) -> Step:
    saving = execution.saving
    told = tuple(tell(each, "federation_not_restored", saving.label, reason) for each in sorted(saving.states))
    idle = Saving(kept=saving.kept, order=saving.order)
    execution, more = clock.settled(execution._replace(saving=idle))  # who resigned meanwhile may have held others back
    return Step(execution, None, told + more)


def abort_federation_restore(model: Model, execution: Execution, federate: int) -> Step:
    """The restore that goes on is given up (clause 4.30). Raises RestoreNotInProgress."""
    if not execution.saving.label or not execution.saving.is_restore:
        raise RestoreNotInProgress("no restore goes on", hint="There is nothing to give up")
    return _restore_ends(execution, "ABORTED")


def query_federation_restore_status(model: Model, execution: Execution, federate: int) -> Step:
    """Where the restore is, by federation_restore_status_response (clause 4.31)."""
    return _status(execution, federate, "federation_restore_status_response", is_restore=True)


def _left_saving(execution: Execution, federate: int) -> tuple[Execution, tuple[Told, ...]]:
    """A save or restore does not wait for who has left; it fails when the others have reported."""
    saving = execution.saving
    if not saving.label or federate not in saving.states:
        return execution, ()
    saving = saving._replace(states=saving.states.delete(federate), resigned=True)
    execution = execution._replace(saving=saving)
    step = _restored(execution) if saving.is_restore else _saved(execution)
    return step.execution, step.told
