"""A bridge between two federations as functions on its value: what it does first, what it does when a surrogate hears
something, what may go over its links, and what that is on the far side.

    declared(plan, bridge)                           -> bridge, calls
    heard(plan, bridge, side, callback)              -> bridge, calls
    due(plan, bridge)                                -> what may go now
    forwarded(plan, bridge, due)                     -> bridge, calls
    answered(plan, bridge, call, answer)             -> bridge, calls
    refused(plan, bridge, call, error)               -> bridge, calls

Whoever runs it makes the calls at once and in their order, and gives each answer back before the next one. It knows no
thread, socket or clock. A call that is refused since its federation is saved or restored is made when that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.hla import exceptions
from jbi_pubsub.hla.execution import Callback

from . import consensus, pace, passage, transfer
from .state import EVERYTHING, Bridge, Call, Entry, Key, Plan, Turn, changed

Done = tuple[Bridge, tuple[Call, ...]]

RACES: Final = (
    exceptions.AttributeNotOwned, exceptions.FederateHasNotBegunSave, exceptions.ObjectInstanceNotKnown,
    exceptions.RestoreNotInProgress, exceptions.RestoreNotRequested, exceptions.SaveNotInitiated,
    exceptions.SaveNotInProgress,
)  # fmt: skip
"""Refusals of any federate that calls before it has heard that it is too late: of an instance, an attribute, a save or
a restore that is no more."""
FORWARDED: Final[dict[str, Callable[[Turn, int, Entry], None]]] = {
    "request": consensus.requested, "completed": consensus.completed, "failed": consensus.completed,
    "aborted": consensus.completed, "reopened": consensus.reopened,
    **passage.ACTS, **dict.fromkeys(transfer.ACTS, transfer.forwarded),
}  # fmt: skip
"""Acts of the far side, by the kind of the entry that has come."""


class Due(NamedTuple):
    """Something that may go, or be asked, now."""

    what: str
    """control, data: of the link from `side`; poll: of the RTI on `side`."""
    side: int
    place: int = 0
    """In its queue."""
    key: Key | None = None


def declared(plan: Plan, bridge: Bridge, kept: Sequence[tuple[str, Bridge]] = ()) -> Done:
    """Both surrogates have joined, or the object models have got additions, of which the plan has a translation: what
    they declare, and then ask for (its answer says that what there was has been told). `kept`: what was under way at
    saves, by label, the oldest first."""
    turn = Turn(plan, bridge._replace(settled=(False, False)))
    for label, state in kept:
        if label not in bridge.kept:
            turn.set(kept=turn.bridge.kept.set(label, state), order=(*turn.bridge.order, label))
    for side in (0, 1):
        if {"add", "allow-add"} & set(plan.policy):
            turn.call(side, "disclose_surrogate")
        for cls, attributes in plan.translation.published(side):
            turn.call(side, "publish_object_class_attributes", cls, attributes)
        for cls in plan.translation.sent(side):
            turn.call(side, "publish_interaction_class", cls)
        for cls in plan.translation.heard(side):
            turn.call(side, "subscribe_interaction_class", cls)
        for cls, attributes in plan.translation.subscribed(side):
            turn.call(side, "subscribe_object_class_attributes", cls, attributes)
        if plan.couples:
            turn.call(side, "watch_lower_bound", True)  # an argument on the wire
        turn.call(side, "query_federation_save_status")
    return turn.done()


# -- what a surrogate hears -----------------------------------------------------------------------------------------


def heard(plan: Plan, bridge: Bridge, side: int, callback: Callback) -> Done:
    """The surrogate on a side was told something."""
    act = HEARD.get(callback.name)
    if act is None:
        return bridge, ()
    turn = Turn(plan, bridge)
    act(turn, side, *callback.arguments)
    return turn.done()


def _reflected(
    turn: Turn, side: int, instance: int, values: Any, tag: bytes, time: float | None, retraction: int
) -> None:
    passage.remember(turn, side, instance, values)
    passage.reflected(turn, side, instance, values, tag, time, retraction)


def _save_status(turn: Turn, side: int, own: str, others: tuple[str, ...]) -> None:
    if not turn.bridge.settled[side]:
        turn.set(settled=changed(turn.bridge.settled, side, True))
    consensus.told_status(turn, side, "save", own, others)


def _over(kind: str, *, ok: bool) -> Callable[..., None]:
    def act(turn: Turn, side: int, label: str, reason: str = "") -> None:
        consensus.over(turn, side, kind, label, reason, ok=ok)
        if kind != "sync":
            pace.again(turn, side)

    return act


HEARD: Final[dict[str, Callable[..., None]]] = {
    "announce_synchronization_point": consensus.announced,
    "announce_synchronization_point_to_set": consensus.announced,
    "synchronization_point_registration_succeeded": consensus.registration_succeeded,
    "synchronization_point_registration_failed": consensus.registration_failed,
    "synchronization_point_withdrawn": consensus.withdrawn,
    "synchronization_point_failed": lambda turn, side, label: consensus.last_one(turn, side, "sync", label, ok=False),
    "federation_synchronized": _over("sync", ok=True),
    "initiate_federate_save": lambda turn, side, label, _time: consensus.announced(turn, side, label, kind="save"),
    "federation_saved": _over("save", ok=True),
    "federation_not_saved": _over("save", ok=False),
    "federation_save_status_response": _save_status,
    "request_federation_restore_failed": lambda turn, side, label, _: consensus.restore_refused(turn, side, label),
    "initiate_federate_restore": lambda turn, side, label, *_: consensus.announced(turn, side, label, kind="restore"),
    "federation_restored": _over("restore", ok=True),
    "federation_not_restored": _over("restore", ok=False),
    "federation_restore_status_response": lambda turn, side, *said: consensus.told_status(turn, side, "restore", *said),
    "only_one_not_yet": lambda turn, side, kind, label, ok: consensus.last_one(turn, side, kind, label, ok=ok),
    "no_longer_only_one": consensus.more_to_come,
    "discover_object_instance": passage.discovered,
    "reflect_attribute_values": _reflected,
    "receive_interaction": passage.received,
    "remove_object_instance": lambda turn, side, *removal: passage.removed(turn, side, *removal[:4]),
    "request_retraction": passage.retracted,
    "provide_attribute_value_update": passage.asked_for_values,
    "inform_attribute_ownership": passage.informed,
    "request_attribute_ownership_assumption": transfer.offered,
    "request_attribute_ownership_release": transfer.wanted,
    "request_divestiture_confirmation": lambda turn, side, *wanted: transfer.wanted(turn, side, *wanted, why="confirm"),
    "attribute_ownership_acquisition_notification": transfer.acquired,
    "attribute_ownership_unavailable": transfer.unavailable,
    "attribute_ownership_acquisition_withdrawn": transfer.wanted_no_more,
    "time_regulation_enabled": pace.enabled,
    "time_advance_grant": pace.granted,
    "lower_bound": pace.heard_bound,
}


# -- what goes over the links ---------------------------------------------------------------------------------------


def due(plan: Plan, bridge: Bridge) -> tuple[Due, ...]:
    """Everything that may go now: of each link its control entries, in their order (the first alone, unless links do
    not keep it), and one of each stream of its data; and what RTIs can be asked about."""
    found: list[Due] = []
    for side in (0, 1):
        found.extend(_due_control(plan, bridge, side))
        found.extend(_due_data(plan, bridge, side))
    if plan.policy.consensus == "smart":  # else RTIs tell who is the last one, or nobody does
        found.extend(Due("poll", side, 0, key) for side, key in consensus.polls(bridge))
    return tuple(found)


def _due_control(plan: Plan, bridge: Bridge, side: int) -> list[Due]:
    found: list[Due] = []
    for place, entry in enumerate(bridge.links[side].control):
        if _may_go(plan, bridge, side, entry):
            found.append(Due("control", side, place))
            if not plan.reordered:
                break
    return found


def _due_data(plan: Plan, bridge: Bridge, side: int) -> list[Due]:
    if bridge.busy[1 - side] or not bridge.links[side].data:
        return []
    found: list[Due] = []
    seen: set[tuple[Any, ...]] = set()
    for place, entry in enumerate(bridge.links[side].data):
        is_next = not place if entry.stream == EVERYTHING else entry.stream not in seen
        if is_next and not _waits(plan, bridge, side, entry):
            found.append(Due("data", side, place))
        seen.add(entry.stream)
    return found


def first_control(plan: Plan, bridge: Bridge, side: int) -> Due | None:
    """The first control entry that may go from a side."""
    return next(iter(_due_control(plan, bridge, side)), None)


def first(plan: Plan, bridge: Bridge, side: int) -> Due | None:
    """The first data entry that may go from a side: for who keeps the order."""
    if bridge.busy[1 - side] or not bridge.links[side].data or _waits(plan, bridge, side, bridge.links[side].data[0]):
        return None
    return Due("data", side, 0)


def _may_go(plan: Plan, bridge: Bridge, side: int, entry: Entry) -> bool:
    busy = bridge.busy[1 - side]
    if busy:
        if entry.key is None or entry.key[0] == "sync":
            return False
        if entry.kind == "request" and entry.key in bridge.rounds:
            state = bridge.rounds[entry.key].parts[1 - side].state
            if state == "blocked" or (state == "" and busy == "?"):  # else it finds out what goes on there
                return False
    return not _waits(plan, bridge, side, entry)


def _waits(plan: Plan, bridge: Bridge, side: int, entry: Entry) -> bool:
    return bool(entry.after) and plan.policy.barrier == "smart" and _is_early(bridge, side, entry)


def _is_early(bridge: Bridge, side: int, entry: Entry) -> bool:
    """Whether something that has to be over first on the far side is not."""
    return any(key in bridge.rounds and bridge.rounds[key].parts[1 - side].state != "over" for key in entry.after)


def forwarded(plan: Plan, bridge: Bridge, item: Due) -> Done:
    """Let something that is due go, or be asked."""
    turn = Turn(plan, bridge)
    if item.what == "poll":
        if item.key is not None:
            consensus.asked(turn, item.side, item.key)
        return turn.done()
    link = bridge.links[item.side]
    queue = link.control if item.what == "control" else link.data
    entry = queue[item.place]
    rest = queue[: item.place] + queue[item.place + 1 :]
    turn.set_link(item.side, link._replace(control=rest) if item.what == "control" else link._replace(data=rest))
    if entry.after and _is_early(bridge, item.side, entry):
        turn.count("barrier_violation")
    if entry.kind == "call":
        turn.calls.append(Call(*entry.arguments))
    else:
        FORWARDED[entry.kind](turn, item.side, entry)
    if entry.time is not None:
        pace.promise(turn, 1 - item.side)
    return turn.done()


def not_kept(plan: Plan, bridge: Bridge, label: str, calls: tuple[Call, ...]) -> Done:
    """Let a save fail whose state under way can't be kept, which is found out before these calls are made."""
    turn = Turn(plan, bridge)
    turn.calls = [
        call._replace(service="federate_save_not_complete") if call.service == "federate_save_complete" else call
        for call in calls
    ]
    consensus.save_failed(turn, label)
    return turn.done()


# -- what becomes of calls ------------------------------------------------------------------------------------------


def answered(plan: Plan, bridge: Bridge, call: Call, answer: Any) -> Done:
    """Go on after a call that was done."""
    turn, entry, near = Turn(plan, bridge), call.entry, 1 - call.side
    kind = call.about[0] if call.about else entry.kind if entry is not None else ""
    if kind == "discover" and entry is not None:
        passage.registered(turn, near, entry, answer)
    elif kind in ("update", "interaction") and entry is not None:
        passage.sent(turn, near, entry, answer or 0)
    elif kind == "remove" and entry is not None:
        passage.deleted(turn, near, entry, answer)
    elif kind in ("divested", "confirmed"):
        _, instance, attributes = call.about
        transfer.divested(turn, call.side, instance, attributes, tuple(answer) if kind == "divested" else attributes)
    elif kind == "poll" and set(answer) <= {"achieved", "failed"}:
        consensus.others_done(turn, call.about[1], call.side, ok="failed" not in answer)
    return turn.done()


def refused(plan: Plan, bridge: Bridge, call: Call, error: exceptions.RtiError) -> Done:
    """Go on after a call that was refused: for something that passes, or for good. Raises ConfigurationError for one
    that the RTI does not offer."""
    if isinstance(error, exceptions.ServiceNotEnabled):
        raise ConfigurationError(
            f"the RTI of {plan.names[call.side]} does not offer {call.service}, which [policy] needs",
            hint="Start it with jbi hla serve --adds, or choose another solution than `add`",
        )
    turn = Turn(plan, bridge)
    entry, near = call.entry, 1 - call.side
    if isinstance(error, exceptions.SaveInProgress | exceptions.RestoreInProgress):
        _later(turn, call)
        return turn.done()
    if isinstance(error, exceptions.InvalidLogicalTime) and entry is not None:  # there it is later than it seemed
        turn.count(f"late.{near}")
        turn.calls.append(call._replace(arguments=(*call.arguments[:-1], None)))
        return turn.done()
    if entry is not None and entry.kind == "remove":
        passage.deleted(turn, near, entry, 0)
    if isinstance(error, exceptions.ObjectInstanceNameInUse) and entry is not None:
        passage.name_in_use(turn, near, entry)
    elif isinstance(error, exceptions.NoAcquisitionPending) and call.about and call.about[0] == "confirmed":
        transfer.not_confirmed(turn, call.side, *call.about[1:])
    elif entry is not None and entry.kind == "acquire":
        transfer.could_not_acquire(turn, near, entry)
    elif isinstance(error, exceptions.AttributeAlreadyBeingDivested) and entry is not None and entry.kind == "offer":
        turn.count("suppressed")  # it is offered there already
    elif isinstance(error, exceptions.SynchronizationPointLabelNotAnnounced) and (
        plan.policy.failure == "add" or call.about[:1] == ("reopened",)
    ):
        turn.count("raced")  # it was withdrawn, or is over
        if call.about[:1] == ("reopened",) and call.about[1] in bridge.rounds:
            turn.set_part(call.about[1], call.side, state="consented")
    elif isinstance(error, RACES) or (entry is not None and entry.kind == "withdraw"):
        turn.count("raced")  # who withdraws has it by now, and gives it back
    else:
        turn.count("refused")
    return turn.done()


def _later(turn: Turn, call: Call) -> None:
    """Its federation is saved or restored: it is called when that is over."""
    entry, near = call.entry, 1 - call.side
    if call.about == ("pace",):
        pace.refused(turn, call.side)
    if call.about and call.about[0] in ("poll", "pace", "aborted"):
        return
    if entry is not None and entry.kind == "request" and entry.key is not None and entry.key[0] != "sync":
        consensus.refused(turn, entry.key, call.side)
        return
    if not turn.bridge.busy[call.side]:
        turn.set_busy(call.side, "?")
    turn.count("buffered")
    if entry is not None and entry.kind == "request" and entry.key is not None:
        turn.set_part(entry.key, call.side, state="")
    turn.put_back(near, entry or Entry("call", tuple(call)))


# -- what there is to see -------------------------------------------------------------------------------------------


class Pending(NamedTuple):
    """A round that is not over yet on a side."""

    kind: str
    label: str
    side: int
    state: str
    is_deadlocked: bool
    """Nothing that the bridge can hear ends it: each surrogate waits for the other side to be done."""


def pending(plan: Plan, bridge: Bridge) -> tuple[Pending, ...]:
    """By sides."""
    found = []
    for key in sorted(bridge.rounds):
        parts = bridge.rounds[key].parts
        for side in (0, 1):
            if parts[side].state != "over":
                stuck = plan.policy.consensus == "naive" and all(part.state == "announced" for part in parts)
                stuck = stuck or (parts[1 - side].state == "over" and not parts[1 - side].ok and
                                  plan.policy.failure == "naive")  # fmt: skip
                found.append(Pending(key[0], parts[side].label, side, parts[side].state, stuck))
    return tuple(found)
