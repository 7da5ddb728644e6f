"""The services of time management (IEEE 1516.1-2010, clause 8); clock.py has what they mean.

A federate, when it regulates:  enable (lookahead) -> regulating -> disable
            when constrained:   enable -> waiting until its time is safe -> constrained -> disable
            advancing:          granted -> asked (TAR, TARA, NMR, NMRA, FQR) -> granted
"""

from __future__ import annotations

from functools import partial
from typing import Final

from . import backlog, objects
from .clock import ahead, bounds_of, galt_of, is_held_by_another, promised, release, settle, tell_in_order, without_past
from .exceptions import (
    AsynchronousDeliveryAlreadyDisabled,
    AsynchronousDeliveryAlreadyEnabled,
    InTimeAdvancingState,
    InvalidMessageRetractionHandle,
    LogicalTimeAlreadyPassed,
    MessageCanNoLongerBeRetracted,
    RequestForTimeConstrainedPending,
    TimeConstrainedAlreadyEnabled,
    TimeConstrainedIsNotEnabled,
    TimeRegulationAlreadyEnabled,
    TimeRegulationIsNotEnabled,
)
from .execution import Asked, Pace, ServiceCall, put_entry

# -- regulating and constrained -------------------------------------------------------------------------------------


def enable_time_regulation(call: ServiceCall, lookahead: float) -> None:
    """The federate sends in time-stamp order, nothing below its time and lookahead. Its time becomes one at which that
    is nobody's past, which time_regulation_enabled tells (clause 8.2)."""
    pace, clock, federate = call.pace, call.execution.clock, call.federate
    if pace.lookahead is not None:
        raise TimeRegulationAlreadyEnabled("the federate is time-regulating", hint="Call modify_lookahead")
    _check_at_rest(pace)
    others = ahead(clock, federate)
    time = max([pace.time, *(each.time for each in others)])
    is_exclusive = any(each.is_exclusive for each in (pace, *others) if each.time == time)
    arrived, queue = backlog.split(clock.waiting.get(federate, ()), time)
    call.change("clock", waiting=put_entry(clock.waiting, federate, queue))
    tell_in_order(call, federate, arrived)
    call.tell(federate, "time_regulation_enabled", time)
    _go_on(call, pace._replace(time=time, lookahead=lookahead, floor=0.0, is_exclusive=is_exclusive))


def disable_time_regulation(call: ServiceCall) -> None:
    """The federate sends in receive order alone, and retracts no more what it has sent (clause 8.4). A surrogate has no
    time of its own: it begins anew at that of others."""
    pace = _regulating(call)
    call.change("clock", sent=put_entry(call.execution.clock.sent, call.federate, ()))
    time = pace.time if pace.watched is None or pace.is_constrained else 0.0
    _go_on(call, pace._replace(time=time, lookahead=None, floor=0.0))


def enable_time_constrained(call: ServiceCall) -> None:
    """The federate gets messages in time-stamp order; time_constrained_enabled tells from when on: when nothing can
    come that is before its time (clause 8.5)."""
    pace = call.pace
    if pace.is_constrained:
        raise TimeConstrainedAlreadyEnabled("the federate is time-constrained", hint="There is nothing to enable")
    _check_at_rest(pace)
    _go_on(call, pace._replace(asked=("constrained", pace.time)))


def disable_time_constrained(call: ServiceCall) -> None:
    """The federate gets messages as they come, and now what waited for it (clause 8.7)."""
    pace = call.pace
    if not pace.is_constrained:
        raise TimeConstrainedIsNotEnabled("the federate is not time-constrained", hint="There is nothing to disable")
    release(call, call.federate)
    waiting = call.execution.clock.waiting
    call.change("clock", waiting=put_entry(waiting, call.federate, ()))
    tell_in_order(call, call.federate, backlog.items(waiting.get(call.federate, ())))
    _go_on(call, pace._replace(is_constrained=False))


def enable_asynchronous_delivery(call: ServiceCall) -> None:
    pace = call.pace
    if pace.is_asynchronous:
        raise AsynchronousDeliveryAlreadyEnabled("asynchronous delivery is on", hint="There is nothing to enable")
    release(call, call.federate)
    _go_on(call, pace._replace(is_asynchronous=True))


def disable_asynchronous_delivery(call: ServiceCall) -> None:
    pace = call.pace
    if not pace.is_asynchronous:
        raise AsynchronousDeliveryAlreadyDisabled("asynchronous delivery is off", hint="There is nothing to disable")
    _go_on(call, pace._replace(is_asynchronous=False))


# -- advancing ------------------------------------------------------------------------------------------------------


def request(call: ServiceCall, time: float, *, kind: Asked) -> None:
    """The federate would be at a time. TAR: it is granted when all before and at it has come (clause 8.8). NMR: the
    federate would be at the time of its next message, at `time` when none comes before (clause 8.10). TARA, NMRA: the
    same, where more at that very time may come after the grant (clauses 8.9 and 8.11). FQR: it gets all that waits for
    it now, whatever may still come, and is granted the least that is safe (clause 8.12). Raises
    LogicalTimeAlreadyPassed, InTimeAdvancingState, RequestForTimeConstrainedPending."""
    pace = call.pace
    _check_at_rest(pace)
    if time < pace.time:
        raise LogicalTimeAlreadyPassed(
            f"the federate is at {pace.time}, and asks for {time}", hint="Ask for a later time", time=time
        )
    made, clock, saving = pace._replace(asked=(kind, time)), call.execution.clock, call.execution.saving
    is_at_once = call.federate in clock.held or saving.scheduled is not None
    if not is_at_once and is_held_by_another(clock, call.federate, kind, time):
        call.set_pace(made)
    else:
        _go_on(call, made)


_KINDS: Final[dict[str, Asked]] = {
    "time_advance_request": "TAR", "time_advance_request_available": "TARA",
    "next_message_request": "NMR", "next_message_request_available": "NMRA", "flush_queue_request": "FQR",
}  # fmt: skip
REQUESTS: Final = {name: partial(request, kind=kind) for name, kind in _KINDS.items()}
"""The services that ask for a time, by their names."""


def modify_lookahead(call: ServiceCall, lookahead: float) -> None:
    """Another lookahead; a smaller one as far as time advances: what has been promised holds (clause 8.19)."""
    pace = _regulating(call)
    _check_at_rest(pace)
    floor = max(pace.floor, pace.time + (pace.lookahead or 0.0)) if lookahead < (pace.lookahead or 0.0) else pace.floor
    made = pace._replace(lookahead=lookahead, floor=floor)
    call.set_clock(without_past(call.execution.clock, call.federate, made))
    _go_on(call, made)


def watch_lower_bound(call: ServiceCall, on: bool) -> None:
    """The federate is told its GALT by lower_bound, and what it would be if the federate sent nothing, now and whenever
    one is another, behind all messages below it: what a bridge needs to know of the other side (own; the standard has
    query_galt alone)."""
    _go_on(call, call.pace._replace(watched=() if on else None))


# -- asking ---------------------------------------------------------------------------------------------------------


def query_logical_time(call: ServiceCall) -> float:
    return call.pace.time


def query_lookahead(call: ServiceCall) -> float:
    pace = _regulating(call)
    return max(pace.lookahead or 0.0, pace.floor - pace.time)


def query_galt(call: ServiceCall) -> float:
    return galt_of(bounds_of(call.execution.clock), call.federate)[0]


def query_lits(call: ServiceCall) -> float:
    return min(query_galt(call), call.execution.clock.least(call.federate))


# -- retraction -----------------------------------------------------------------------------------------------------


def retract(call: ServiceCall, retraction: int) -> None:
    """A message in time-stamp order is taken back: from those who wait for it silently, from others by
    request_retraction (clause 8.21)."""
    pace, clock = _regulating(call), call.execution.clock
    mine = clock.sent.get(call.federate, ())
    found = next((each for each in backlog.items(mine) if each.retraction == retraction), None)
    if found is None and not 0 < retraction <= call.execution.handles:
        raise InvalidMessageRetractionHandle(
            f"no message has the retraction handle {retraction}", hint="Take what the send returned", handle=retraction
        )
    if found is None or (found.time, 0) < promised(pace):
        raise MessageCanNoLongerBeRetracted(
            "the federate has sent no such message, or others may have acted on it: it is before the federate's time "
            "and lookahead",
            hint="Retract earlier",
            handle=retraction,
        )
    if found.deleted is not None:
        objects.reinstate(call, found.deleted)
    waiting = clock.waiting
    for each in found.receivers:
        queue = waiting.get(each, ())
        left = backlog.without(queue, lambda message: message.retraction == retraction)
        if left is not queue:
            waiting = put_entry(waiting, each, left)
        elif each in call.execution.members.joined:
            call.tell(each, "request_retraction", retraction)
    rest = backlog.without(mine, lambda sent: sent.retraction == retraction)
    call.change("clock", waiting=waiting, sent=put_entry(clock.sent, call.federate, rest))
    settle(call)


# -- checks ---------------------------------------------------------------------------------------------------------


def _regulating(call: ServiceCall) -> Pace:
    pace = call.pace
    if pace.lookahead is None:
        raise TimeRegulationIsNotEnabled("the federate is not time-regulating", hint="Call enable_time_regulation")
    return pace


def _check_at_rest(pace: Pace) -> None:
    if pace.asked is not None and pace.asked[0] == "constrained":
        raise RequestForTimeConstrainedPending(
            "the federate has asked to be constrained and is not yet", hint="Wait for time_constrained_enabled"
        )
    if pace.asked is not None:
        raise InTimeAdvancingState(
            f"the federate has asked for {pace.asked[1]} ({pace.asked[0]}) and was not granted it",
            hint="Wait for time_advance_grant",
        )


def _go_on(call: ServiceCall, pace: Pace) -> None:
    """With another time of the federate."""
    call.set_pace(pace)
    settle(call)
