"""The logical time of a federation: bounds, messages in the order of time stamps, grants (IEEE 1516.1-2010, clause 8).

The bound of a regulating federate is the least time stamp that it may still send: its time, or the one that it asked
for, and its lookahead. GALT of a federate is the least bound of the others that regulate; LITS is the less of GALT and
of the least time stamp that waits for it. A constrained federate is granted t when nothing at or before t can still
come: t < GALT (TAR, NMR), t <= GALT (TARA, NMRA); before that all that waits up to t is told, in the order of time
stamps. Federates that are not constrained are granted what they ask for, and get messages at once.

A bound is a pair (time, 1 when that time itself is excluded): with lookahead 0, who was granted t by TAR or NMR sends
only later than t (clause 8.1.4). The bound of who asked for a message at most t depends on the others: it is the least
time at which such a message can come, found as shortest ways are (Dijkstra; as all hear all, who is next stays so).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from . import backlog
from .exceptions import InvalidLogicalTime, RtiInternalError
from .execution import (
    AT_ZERO,
    Asked,
    Callback,
    Clock,
    DeletedInstance,
    Message,
    Notice,
    Pace,
    Sent,
    ServiceCall,
    put_entry,
)

Bound = tuple[float, int]
Receivers = tuple[tuple[int, Callback], ...]

NEVER: Final[Bound] = (math.inf, 1)
"""A federate at infinity sends nothing any more: others may be there, too."""
HELD_MOST: Final = 10_000
"""Receive-ordered messages that wait for a constrained federate which asks for no time; at more it gets them."""
WAITING_MOST: Final = 1_000_000
"""Messages in time-stamp order that wait for a federate; at more they are refused to who sends them."""
SENT_MOST: Final = 200_000
"""Messages of a federate that may still be retracted; at more the earliest may not any more."""


# -- bounds ---------------------------------------------------------------------------------------------------------


def _bound(pace: Pace, time: float, *, is_exclusive: bool) -> Bound:
    """At a time that it has, or will have."""
    lookahead = pace.lookahead or 0.0
    at = time + lookahead
    if at == math.inf:
        return NEVER
    if at < pace.floor:
        return pace.floor, 0
    return at, int(lookahead == 0.0 and (is_exclusive or (pace.is_exclusive and time == pace.time)))


def promised(pace: Pace) -> Bound:
    """The least time stamp that a federate may send now. Who asks for a time sends nothing below that and its
    lookahead, also when it asks for the next message up to that time (clauses 8.8 to 8.11)."""
    if pace.asked is None or pace.asked[0] == "FQR":
        return _bound(pace, pace.time, is_exclusive=False)
    return _bound(pace, pace.asked[1], is_exclusive=pace.asked[0] in ("TAR", "NMR"))


def _is_for_next(pace: Pace) -> bool:
    """Whether it waits for the next message."""
    return pace.asked is not None and pace.asked[0] in ("NMR", "NMRA")


def bounds_of(clock: Clock) -> list[tuple[Bound, int]]:
    """The bounds of all who regulate, the least first."""
    found: list[tuple[Bound, int]] = []
    asking = []
    for federate, pace in clock.paces.items():
        if pace.lookahead is None:
            continue
        if _is_for_next(pace):
            asking.append(federate)
        else:
            found.append((promised(pace), federate))
    if asking:
        found.extend(_next_messages(clock, asking, found))
    found.sort()
    return found


def _next_messages(clock: Clock, asking: list[int], others: list[tuple[Bound, int]]) -> list[tuple[Bound, int]]:
    """Bounds of who asked for the next message: none of them is granted less than the least time at which it can have
    one, from what waits for it, from those who are at a time of their own, or from another who asked."""
    least = min((each for each, _ in others), default=NEVER)[0]
    alone = []
    for federate in asking:
        pace = clock.paces[federate]
        at = min(pace.asked[1] if pace.asked else math.inf, clock.least(federate), least)
        alone.append((max(at, pace.time), federate))
    found: list[tuple[Bound, int]] = []
    soonest = math.inf
    for at, federate in sorted(alone):
        pace = clock.paces[federate]
        is_exclusive = pace.asked is not None and pace.asked[0] == "NMR"
        bound = _bound(pace, max(min(at, soonest), pace.time), is_exclusive=is_exclusive)
        soonest = min(soonest, bound[0])
        found.append((bound, federate))
    return found


def galt_of(bounds: list[tuple[Bound, int]], federate: int) -> Bound:
    """The least bound of the others."""
    for bound, other in bounds:
        if other != federate:
            return bound
    return NEVER


def is_held_by_another(clock: Clock, federate: int, kind: Asked, time: float) -> bool:
    """Whether a constrained federate that asks for a time is granted nothing, and nobody else anything by that: another
    federate's bound is neither beyond what the asker wants nor beyond the asker's own bound until now. Of many
    federates in lockstep all but the last one find another soon."""
    pace = clock.paces.get(federate, AT_ZERO)
    if not pace.is_constrained or kind == "FQR" or pace.watched is not None:  # who watches is told of its own time
        return False
    wanted = min(time, clock.least(federate)) if kind in ("NMR", "NMRA") else time
    if kind in ("TARA", "NMRA"):  # granted at the bound itself
        wanted = math.nextafter(wanted, -math.inf)
    least = wanted if pace.lookahead is None else min(wanted, max(pace.time + pace.lookahead, pace.floor))
    for other, each in clock.paces.items():
        if each.lookahead and other != federate and each.watched is None:
            asked = each.asked
            if asked is None:
                at = each.time
            elif asked[0] in ("TAR", "TARA"):
                at = asked[1]
            else:
                continue
            if at + each.lookahead <= least and each.floor <= least and at < math.inf:
                return True
    return False


# -- messages -------------------------------------------------------------------------------------------------------


def is_ordered(call: ServiceCall, time: float | None) -> bool:
    """Whether a message of the federate goes in time-stamp order, as far as its time is concerned: it has one, and the
    federate regulates. Raises InvalidLogicalTime for a time before the federate's bound."""
    if time is None or (pace := call.pace).lookahead is None:
        return False
    least, excluded = promised(pace)
    if time < least or (excluded and time == least):
        raise InvalidLogicalTime(
            f"time stamp {time} is before {least}, the federate's time and lookahead"
            + (", or at it after an advance with lookahead 0" if excluded else ""),
            hint="Send later, or with a smaller lookahead",
            time=time,
            least=least,
        )
    return True


def send_as_received(call: ServiceCall, receivers: Receivers) -> None:
    """Messages in receive order: told at once, but for constrained federates that ask for no time and have not enabled
    asynchronous delivery (clause 8.1.5)."""
    receivers = _conveyed(call, receivers)
    paces = call.execution.clock.paces
    if not paces:
        call.told.extend(Notice(*each) for each in receivers)
        return
    waiting = before = call.execution.clock.held
    for federate, callback in receivers:
        pace = paces.get(federate, AT_ZERO)
        if not pace.is_constrained or pace.is_asynchronous or pace.asked is not None:
            call.told.append(Notice(federate, callback))
            continue
        held = (*waiting.get(federate, ()), callback)
        if len(held) > HELD_MOST:
            call.told.extend(Notice(federate, each) for each in held)
            held = ()
        waiting = put_entry(waiting, federate, held)
    if waiting is not before:
        call.change("clock", held=waiting)


def release(call: ServiceCall, federate: int) -> None:
    """Messages in receive order that waited for a federate are told."""
    held = call.execution.clock.held
    if federate in held:
        call.told.extend(Notice(federate, each) for each in held[federate])
        call.change("clock", held=held.delete(federate))


def _conveyed(call: ServiceCall, receivers: Receivers) -> Receivers:
    """With the sender, for those who are told of it."""
    told = call.execution.declared.conveyed
    if not told:
        return receivers
    return tuple(
        (each, callback._replace(arguments=(*callback.arguments, call.federate)) if each in told else callback)
        for each, callback in receivers
    )


def send_in_order(
    call: ServiceCall, time: float, retraction: int, receivers: Receivers, deleted: DeletedInstance | None = None
) -> None:
    """A message in time-stamp order: it waits for who is constrained, others get it at once. Raises RtiInternalError
    when too much waits."""
    receivers = _conveyed(call, receivers)
    clock = call.execution.clock
    waiting, moves = clock.waiting, False
    for federate, callback in receivers:
        pace = clock.pace(federate)
        if not pace.is_constrained:
            call.told.append(Notice(federate, callback))
            continue
        queue = backlog.put(waiting.get(federate, ()), Message(time, retraction, callback))
        if len(queue) > WAITING_MOST // backlog.CHUNK:
            raise RtiInternalError(
                "a federate that is to get the message has too many waiting for it",
                hint="Send later, when time has advanced",
            )
        waiting = waiting.set(federate, queue)
        moves = moves or _is_for_next(pace)
    sent = clock.sent
    if retraction:
        made = Sent(time, retraction, tuple(federate for federate, _ in receivers), deleted)
        mine = backlog.put(sent.get(call.federate, ()), made)
        sent = sent.set(call.federate, mine[len(mine) > SENT_MOST // backlog.CHUNK :])
    call.set_clock(clock._replace(waiting=waiting, sent=sent))
    if moves:  # else nobody's bound depends on what waits for others
        settle(call)


def tell_in_order(call: ServiceCall, federate: int, messages: Iterable[Message]) -> None:
    """Messages that have waited for a federate are told; of an instance none behind its removal."""
    removed: set[int] = set()
    for _, _, callback in messages:
        if not removed or not callback.is_about(removed):
            call.told.append(Notice(federate, callback))
        if callback.name == "remove_object_instance":
            removed.add(callback.arguments[0])
    forget(call, federate, removed)


def forget(call: ServiceCall, federate: int, instances: Collection[int]) -> None:
    """Instances are gone for a federate: nothing of them waits for it in time-stamp order, and nothing is asked back.
    Who calls it settles."""
    for each in instances:
        call.execution = call.execution.gone_for(federate, each)
    clock = call.execution.clock
    queue = clock.waiting.get(federate, ()) if instances else ()
    gone = {each.retraction for each in backlog.items(queue) if each.callback.is_about(instances)}
    if not gone:
        return
    sent = clock.sent
    for sender, own in clock.sent.items():
        made = (tuple(_not_for(federate, each) if each.retraction in gone else each for each in part) for part in own)
        sent = sent.set(sender, tuple(made))
    left = backlog.without(queue, lambda message: message.callback.is_about(instances))
    call.set_clock(clock._replace(waiting=put_entry(clock.waiting, federate, left), sent=sent))


def _not_for(federate: int, sent: Sent) -> Sent:
    """A message that one of its receivers will not get."""
    deleted = sent.deleted
    if deleted is not None and federate in deleted.instance.known:
        known = deleted.instance.known.delete(federate)
        deleted = deleted._replace(instance=deleted.instance._replace(known=known))
    return sent._replace(receivers=tuple(each for each in sent.receivers if each != federate), deleted=deleted)


# -- grants ---------------------------------------------------------------------------------------------------------


def settle(call: ServiceCall) -> None:
    """Everything that time allows now: grants, a save that waited for its time, what watchers are told."""
    if not call.execution.clock.paces and call.execution.saving.scheduled is None:
        return
    is_moving = not call.execution.saving.label
    for federate in call.execution.clock.held if is_moving else ():
        if call.execution.clock.pace(federate).asked is not None:
            release(call, federate)
    while is_moving:
        bounds = bounds_of(call.execution.clock)
        is_moving = _grant_all(call, bounds)
        scheduled = call.execution.saving.scheduled
        if not is_moving and scheduled is not None and _is_due(call.execution.clock, scheduled[1], bounds):
            call.begin_save(*scheduled)
    _tell_watchers(call)


def _grant_all(call: ServiceCall, bounds: list[tuple[Bound, int]]) -> bool:
    """All grants that these bounds allow; whether one of them may have changed bounds."""
    changes = False
    scheduled = call.execution.saving.scheduled
    for federate, pace in call.execution.clock.paces.items():
        asked = pace.asked
        if asked is None:
            continue
        time = _grantable(call.execution.clock, federate, pace, galt_of(bounds, federate))
        if time is None or (scheduled is not None and asked[0] != "constrained" and time > scheduled[1]):
            continue
        _grant(call, federate, pace, time)
        changes = changes or asked[0] not in ("TAR", "TARA")
    return changes


def _grantable(clock: Clock, federate: int, pace: Pace, galt: Bound) -> float | None:
    """Time that a federate can be granted now; None: nothing."""
    assert pace.asked is not None
    kind, wanted = pace.asked
    if not pace.is_constrained and kind != "constrained":
        return wanted
    if kind == "FQR":
        return max(pace.time, min(wanted, galt[0], clock.least(federate)))
    time = min(wanted, clock.least(federate)) if kind in ("NMR", "NMRA") else wanted
    if kind in ("TAR", "NMR"):
        return time if (time, 0) < galt else None
    return time if time <= galt[0] else None


def _grant(call: ServiceCall, federate: int, pace: Pace, time: float) -> None:
    """All that waits up to that time is told, or all with FQR; then the time."""
    assert pace.asked is not None
    kind = pace.asked[0]
    clock = call.execution.clock
    if kind == "constrained":
        made = pace._replace(asked=None, is_constrained=True)
        call.set_clock(clock._replace(paces=clock.paces.set(federate, made)))
        call.tell(federate, "time_constrained_enabled", pace.time)
        return
    arrived, queue = backlog.split(clock.waiting.get(federate, ()), math.inf if kind == "FQR" else time)
    if arrived:
        call.set_clock(clock._replace(waiting=put_entry(clock.waiting, federate, queue)))
        tell_in_order(call, federate, arrived)
    call.tell(federate, "time_advance_grant", time)
    made = pace._replace(
        time=time, asked=None, is_exclusive=kind in ("TAR", "NMR") or (pace.is_exclusive and time == pace.time)
    )
    clock = without_past(call.execution.clock, federate, made)
    call.set_clock(clock._replace(paces=clock.paces.set(federate, made)))


def without_past(clock: Clock, federate: int, pace: Pace) -> Clock:
    """Without what a federate has sent and can't retract any more, as that is before what it promises."""
    mine = clock.sent.get(federate)
    if not mine:
        return clock
    _, mine = backlog.split(mine, math.nextafter(promised(pace)[0], -math.inf))
    return clock._replace(sent=put_entry(clock.sent, federate, mine))


def _is_due(clock: Clock, time: float, bounds: list[tuple[Bound, int]]) -> bool:
    """Whether no message up to the time of a save can be sent any more, and no constrained federate be granted a time
    up to it (clause 4.16): those that are before it ask for more, and have no message that ends their way sooner. This
    asks nobody to be grantable: the save holds them back from each other."""
    if bounds and bounds[0][0] <= (time, 0):
        return False
    for federate, pace in clock.paces.items():
        if not pace.is_constrained or pace.time >= time:
            continue
        if pace.asked is None or pace.asked[1] <= time:
            return False
        if pace.asked[0] in ("NMR", "NMRA") and clock.least(federate) <= time:
            return False
    return True


def _tell_watchers(call: ServiceCall) -> None:
    """Watchers whose bounds are others are told, behind the messages below them; of what they may send themselves, too:
    what they sent before that has come."""
    clock = call.execution.clock
    watchers = sorted(federate for federate, pace in clock.paces.items() if pace.watched is not None)
    bounds = bounds_of(clock) if watchers else []
    paces = clock.paces
    for federate in watchers:
        pace, galt = paces[federate], _first(galt_of(bounds, federate))
        alone, delay = _unprompted(clock, federate, galt)
        may_send = math.inf if pace.lookahead is None else promised(pace)[0]
        reached = max((each.time for each in ahead(clock, federate)), default=0.0)
        watched = (galt, alone, delay, may_send, reached)
        if watched != pace.watched:
            paces = paces.set(federate, pace._replace(watched=watched))
            call.tell(federate, "lower_bound", *watched)
    if paces is not clock.paces:
        call.change("clock", paces=paces)


def ahead(clock: Clock, federate: int) -> list[Pace]:
    """Others in whose past the federate may not begin to send: who is constrained, and surrogates that regulate, which
    are where those beyond are."""
    return [
        each for other, each in clock.paces.items()
        if other != federate and (each.is_constrained or (each.watched is not None and each.lookahead is not None))
    ]  # fmt: skip


def _unprompted(clock: Clock, federate: int, galt: float) -> tuple[float, float]:
    """GALT of a federate if it sent nothing any more; and, where that is another, the least time from a
    message of it until one that somebody may send who waits for the next message."""
    others = clock.paces.delete(federate)
    delays = [each.lookahead for each in others.values() if each.lookahead is not None and _is_for_next(each)]
    alone = _first(galt_of(bounds_of(clock._replace(paces=others)), federate)) if delays else galt
    return alone, min(delays) if alone > galt else math.inf


def _first(bound: Bound) -> float:
    """The first time that a bound does not exclude."""
    return math.nextafter(bound[0], math.inf) if bound[1] else bound[0]


def resign(call: ServiceCall) -> None:
    """Nobody waits for the time of who has left."""
    call.set_clock(call.execution.clock.without(call.federate))
    settle(call)
