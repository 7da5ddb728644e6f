"""The services of time management (IEEE 1516.1-2010, clause 8); clock.py has what they mean.

A federate, when it regulates:  enable (lookahead) -> regulating -> disable
            when constrained:   enable -> waiting until its time is safe -> constrained -> disable
            advancing:          granted -> asked (TAR, TARA, NMR, NMRA, FQR) -> granted
"""

from __future__ import annotations

import math

from . import backlog
from .clock import bounds_of, galt_of, is_held_by_another, promised, settled
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
from .execution import Asked, Clock, Execution, Model, Pace, Step, Told, put_entry, tell

# -- regulating and constrained -------------------------------------------------------------------------------------


def enable_time_regulation(model: Model, execution: Execution, federate: int, lookahead: float) -> Step:
    """The federate sends in time-stamp order, nothing below its time and lookahead. Its time becomes one at which that
    is nobody's past, which time_regulation_enabled tells (clause 8.2). Raises TimeRegulationAlreadyEnabled,
    InTimeAdvancingState, RequestForTimeConstrainedPending."""
    pace = execution.clock.pace(federate)
    if pace.lookahead is not None:
        raise TimeRegulationAlreadyEnabled("the federate is time-regulating", hint="Call modify_lookahead")
    _at_rest(pace)
    paces = execution.clock.paces
    others = [each for other, each in paces.items() if each.is_constrained and other != federate]
    time = max([pace.time, *(each.time for each in others)])
    is_exclusive = any(each.is_exclusive for each in (pace, *others) if each.time == time)
    clock = execution.clock
    arrived, queue = backlog.split(clock.waiting.get(federate, ()), time)
    told = [Told(federate, each.callback) for each in arrived]
    pace = pace._replace(time=time, lookahead=lookahead, floor=0.0, is_exclusive=is_exclusive)
    clock = clock._replace(waiting=put_entry(clock.waiting, federate, queue), paces=clock.paces.set(federate, pace))
    told.append(tell(federate, "time_regulation_enabled", time))
    return _after(model, execution._replace(clock=clock), told)


def disable_time_regulation(model: Model, execution: Execution, federate: int) -> Step:
    """The federate sends in receive order alone, and retracts no more what it has sent (clause 8.4). Raises
    TimeRegulationIsNotEnabled."""
    pace = _regulating(execution, federate)
    clock = execution.clock
    execution = execution._replace(clock=clock._replace(sent=put_entry(clock.sent, federate, ())))
    return _with(model, execution, federate, pace._replace(lookahead=None, floor=0.0))


def enable_time_constrained(model: Model, execution: Execution, federate: int) -> Step:
    """The federate gets messages in time-stamp order; time_constrained_enabled tells from when on: when nothing can
    come that is before its time (clause 8.5). Raises TimeConstrainedAlreadyEnabled, InTimeAdvancingState,
    RequestForTimeConstrainedPending."""
    pace = execution.clock.pace(federate)
    if pace.is_constrained:
        raise TimeConstrainedAlreadyEnabled("the federate is time-constrained", hint="There is nothing to enable")
    _at_rest(pace)
    return _with(model, execution, federate, pace._replace(asked=("constrained", pace.time)))


def disable_time_constrained(model: Model, execution: Execution, federate: int) -> Step:
    """The federate gets messages as they come, and now what waited for it (clause 8.7). Raises
    TimeConstrainedIsNotEnabled."""
    pace = execution.clock.pace(federate)
    if not pace.is_constrained:
        raise TimeConstrainedIsNotEnabled("the federate is not time-constrained", hint="There is nothing to disable")
    clock = execution.clock
    told = [Told(federate, each) for each in clock.held.get(federate, ())]
    told.extend(Told(federate, each.callback) for each in backlog.items(clock.waiting.get(federate, ())))
    clock = Clock(
        clock.paces.set(federate, pace._replace(is_constrained=False)),
        put_entry(clock.waiting, federate, ()),
        put_entry(clock.held, federate, ()),
        clock.sent,
    )
    return _after(model, execution._replace(clock=clock), told)


def enable_asynchronous_delivery(model: Model, execution: Execution, federate: int) -> Step:
    """Messages in receive order come at any time (clause 8.14). Raises AsynchronousDeliveryAlreadyEnabled."""
    pace = execution.clock.pace(federate)
    if pace.is_asynchronous:
        raise AsynchronousDeliveryAlreadyEnabled("asynchronous delivery is on", hint="There is nothing to enable")
    execution, told = _released(execution, federate)
    step = _with(model, execution, federate, pace._replace(is_asynchronous=True))
    return step._replace(told=(*told, *step.told))


def disable_asynchronous_delivery(model: Model, execution: Execution, federate: int) -> Step:
    """Messages in receive order come to a constrained federate while it asks for a time (clause 8.15). Raises
    AsynchronousDeliveryAlreadyDisabled."""
    pace = execution.clock.pace(federate)
    if not pace.is_asynchronous:
        raise AsynchronousDeliveryAlreadyDisabled("asynchronous delivery is off", hint="There is nothing to disable")
    return _with(model, execution, federate, pace._replace(is_asynchronous=False))


# -- advancing ------------------------------------------------------------------------------------------------------


def time_advance_request(model: Model, execution: Execution, federate: int, time: float) -> Step:
    """The federate would be at a time; it is granted when all before and at it has come (clause 8.8). Raises
    LogicalTimeAlreadyPassed, InTimeAdvancingState, RequestForTimeConstrainedPending."""
    return _asked(model, execution, federate, "TAR", time)


def time_advance_request_available(model: Model, execution: Execution, federate: int, time: float) -> Step:
    """The same, where more at that very time may come after the grant (clause 8.9)."""
    return _asked(model, execution, federate, "TARA", time)


def next_message_request(model: Model, execution: Execution, federate: int, time: float) -> Step:
    """The federate would be at the time of its next message, at `time` when none comes before (clause 8.10). Raises as
    time_advance_request."""
    return _asked(model, execution, federate, "NMR", time)


def next_message_request_available(model: Model, execution: Execution, federate: int, time: float) -> Step:
    """The same, where more at that very time may come after the grant (clause 8.11)."""
    return _asked(model, execution, federate, "NMRA", time)


def flush_queue_request(model: Model, execution: Execution, federate: int, time: float) -> Step:
    """The federate gets all that waits for it now, whatever may still come, and is granted the least that is safe
    (clause 8.12). Raises as time_advance_request."""
    return _asked(model, execution, federate, "FQR", time)


def _asked(model: Model, execution: Execution, federate: int, kind: Asked, time: float) -> Step:
    pace = execution.clock.pace(federate)
    _at_rest(pace)
    if time < pace.time:
        raise LogicalTimeAlreadyPassed(
            f"the federate is at {pace.time}, and asks for {time}", hint="Ask for a later time", time=time
        )
    execution, told = _released(execution, federate)
    made = pace._replace(asked=(kind, time))
    if execution.saving.scheduled is None and is_held_by_another(execution.clock, federate, kind, time):
        clock = execution.clock._replace(paces=execution.clock.paces.set(federate, made))
        return Step(execution._replace(clock=clock), None, told)
    step = _with(model, execution, federate, made)
    return step._replace(told=(*told, *step.told))


def _released(execution: Execution, federate: int) -> tuple[Execution, tuple[Told, ...]]:
    """Messages in receive order that waited for the federate."""
    clock = execution.clock
    held = clock.held.get(federate, ())
    if not held:
        return execution, ()
    clock = clock._replace(held=clock.held.delete(federate))
    return execution._replace(clock=clock), tuple(Told(federate, each) for each in held)


def modify_lookahead(model: Model, execution: Execution, federate: int, lookahead: float) -> Step:
    """Another lookahead; a smaller one as far as time advances: what has been promised holds (clause 8.19). Raises
    TimeRegulationIsNotEnabled, InTimeAdvancingState, RequestForTimeConstrainedPending."""
    pace = _regulating(execution, federate)
    _at_rest(pace)
    floor = max(pace.floor, pace.time + (pace.lookahead or 0.0)) if lookahead < (pace.lookahead or 0.0) else pace.floor
    return _with(model, execution, federate, pace._replace(lookahead=lookahead, floor=floor))


def watch_lower_bound(model: Model, execution: Execution, federate: int, on: bool) -> Step:
    """The federate is told its GALT by lower_bound, now and whenever it is another one, behind all messages below it:
    what a bridge needs to know of the other side (own; the standard has query_galt alone)."""
    pace = execution.clock.pace(federate)
    return _with(model, execution, federate, pace._replace(watched=math.nan if on else None))


# -- asking ---------------------------------------------------------------------------------------------------------


def query_logical_time(model: Model, execution: Execution, federate: int) -> Step:
    """The answer is the federate's time (clause 8.17)."""
    return Step(execution, execution.clock.pace(federate).time)


def query_lookahead(model: Model, execution: Execution, federate: int) -> Step:
    """The answer is the lookahead in force (clause 8.20). Raises TimeRegulationIsNotEnabled."""
    pace = _regulating(execution, federate)
    return Step(execution, max(pace.lookahead or 0.0, pace.floor - pace.time))


def query_galt(model: Model, execution: Execution, federate: int) -> Step:
    """The answer is the greatest time to which the federate can be sure to advance, infinity when nobody else regulates
    (clause 8.16)."""
    return Step(execution, galt_of(bounds_of(execution.clock), federate)[0])


def query_lits(model: Model, execution: Execution, federate: int) -> Step:
    """The answer is the least time stamp that may still come to the federate (clause 8.18)."""
    clock = execution.clock
    return Step(execution, min(galt_of(bounds_of(clock), federate)[0], clock.least(federate)))


# -- retraction -----------------------------------------------------------------------------------------------------


def retract(model: Model, execution: Execution, federate: int, retraction: int) -> Step:
    """A message in time-stamp order is taken back: from those who wait for it silently, from others by
    request_retraction (clause 8.21). Raises InvalidMessageRetractionHandle, MessageCanNoLongerBeRetracted,
    TimeRegulationIsNotEnabled."""
    pace = _regulating(execution, federate)
    mine = execution.clock.sent.get(federate, ())
    found = next((each for each in backlog.items(mine) if each.retraction == retraction), None)
    if found is None and not 0 < retraction <= execution.handles:
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
    clock = execution.clock
    told = []
    for each in found.receivers:
        queue = clock.waiting.get(each, ())
        left = backlog.without(queue, lambda message: message.retraction == retraction)
        if left is not queue:
            clock = clock._replace(waiting=put_entry(clock.waiting, each, left))
        elif each in execution.members.joined:
            told.append(tell(each, "request_retraction", retraction))
    rest = backlog.without(mine, lambda sent: sent.retraction == retraction)
    clock = clock._replace(sent=put_entry(clock.sent, federate, rest))
    execution, more = settled(execution._replace(clock=clock))
    return Step(execution, None, (*told, *more))


# -- checks ---------------------------------------------------------------------------------------------------------


def _regulating(execution: Execution, federate: int) -> Pace:
    pace = execution.clock.pace(federate)
    if pace.lookahead is None:
        raise TimeRegulationIsNotEnabled("the federate is not time-regulating", hint="Call enable_time_regulation")
    return pace


def _at_rest(pace: Pace) -> None:
    if pace.asked is not None and pace.asked[0] == "constrained":
        raise RequestForTimeConstrainedPending(
            "the federate has asked to be constrained and is not yet", hint="Wait for time_constrained_enabled"
        )
    if pace.asked is not None:
        raise InTimeAdvancingState(
            f"the federate has asked for {pace.asked[1]} ({pace.asked[0]}) and was not granted it",
            hint="Wait for time_advance_grant",
        )


def _with(model: Model, execution: Execution, federate: int, pace: Pace) -> Step:
    clock = execution.clock._replace(paces=execution.clock.paces.set(federate, pace))
    return _after(model, execution._replace(clock=clock), [])


def _after(model: Model, execution: Execution, told: list[Told]) -> Step:
    execution, more = settled(execution)
    return Step(execution, None, (*told, *more))
