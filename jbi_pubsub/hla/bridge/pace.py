"""Time that advances on both sides of a bridge together.

The surrogates regulate, and are not constrained: each gets messages as they come, and hears of the least time stamp
that can still come from its own side (watch_lower_bound), behind all messages below it. What a surrogate promises on
its side is the least of that bound of the other side and of the time stamps that wait in the link from there; so it
never promises what a message in the bridge would break. As no bound of a side contains that of its own surrogate, two
sides that wait for the same time are both granted it, as by one RTI.

A surrogate is at the time of the foremost constrained federate of the other side, as far as it knows when it promises
more: who begins to regulate beside it begins where it is. Its lookahead reaches from there to the promise, and is at
least that of the plan.

A federate that waits for the next message sends before its bound if a message comes over the bridge: at the time stamp
of that and its lookahead, at the earliest. So an RTI tells its bound if nothing comes over the bridge, and the least
such delay. A promise is not above that delay behind the least that can still come the other way: the bound of that
side, what waits in the link from there, and what the RTI had not got yet when it told its bound. It has got all below
the time from which on the surrogate may send.

When nobody regulates on the far side the surrogate does not either.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from . import passage
from .state import Bridge, Turn


def heard_bound(
    turn: Turn, side: int, galt: float, alone: float, delay: float, may_send: float, reached: float
) -> None:
    """The least time stamp that can still come from a side, whatever goes there and if nothing does; see the module."""
    sent = turn.bridge.paces[side].sent
    sent = sent[bisect_left(sent, may_send) :]
    turn.set_pace(side, alone=alone, delay=delay, sent=sent, reached=reached)
    passage.gone_for_good(turn, side, galt)
    promise(turn, 1 - side)
    promise(turn, side)


def enabled(turn: Turn, side: int, time: float) -> None:
    """The surrogate on a side regulates."""
    turn.set_pace(side, state="granted", time=time, promised=time + turn.plan.lookahead,
                  lookahead=turn.plan.lookahead)  # fmt: skip
    promise(turn, side)


def granted(turn: Turn, side: int, time: float) -> None:
    """The surrogate on a side has advanced."""
    turn.set_pace(side, state="granted", time=time)
    promise(turn, side)


def refused(turn: Turn, side: int) -> None:
    """Note that a surrogate's request of time can't be met now: it is made again when it can (`again`)."""
    turn.set_pace(side, stale=True)


def again(turn: Turn, side: int) -> None:
    """Ask once more for what was refused: the save or restore on that side is over."""
    if turn.bridge.paces[side].stale:
        pace = turn.set_pace(side, stale=False, promised=0.0, lookahead=0.0)
        if pace.state == "enabling":
            turn.set_pace(side, state="off")
        elif pace.state == "advancing":
            turn.set_pace(side, state="granted")
        promise(turn, side)


def least(bridge: Bridge, side: int) -> float:
    """The least time stamp that can still come from the other side: the surrogate on this one can promise it."""
    return min(_under_way(bridge, 1 - side), _under_way(bridge, side) + bridge.paces[1 - side].delay)


def _under_way(bridge: Bridge, side: int) -> float:
    """The same of a side, if it gets nothing more than what it has got."""
    pace = bridge.paces[side]
    waiting = (each.time for each in bridge.links[side].data if each.time is not None)
    return min(pace.alone, next(iter(pace.sent), math.inf) + pace.delay, min(waiting, default=math.inf))


def promise(turn: Turn, side: int) -> None:
    """Advance as far as may be, or stop or begin to regulate."""
    pace = turn.bridge.paces[side]
    if not turn.plan.couples or any(each.alone < 0 for each in turn.bridge.paces):
        return
    if turn.bridge.busy[side]:
        turn.set_pace(side, stale=True)
        return
    safe = least(turn.bridge, side)
    if pace.state == "off":
        if safe < math.inf:
            turn.set_pace(side, state="enabling")
            turn.call(side, "enable_time_regulation", turn.plan.lookahead, about=("pace",))
    elif pace.state == "granted":
        if safe == math.inf:
            turn.set_pace(side, state="off")
            turn.call(side, "disable_time_regulation", about=("pace",))
        else:
            _advance(turn, side, safe)


def _advance(turn: Turn, side: int, safe: float) -> None:
    """Promise more, where the other side is: with the lookahead by which that is what is safe."""
    pace = turn.bridge.paces[side]
    if safe <= pace.promised:
        return
    time = max(pace.time, min(turn.bridge.paces[1 - side].reached, _before(safe, turn.plan.lookahead)))
    lookahead = _before(safe, time)
    turn.set_pace(side, promised=safe, lookahead=lookahead)
    if lookahead != pace.lookahead:
        turn.call(side, "modify_lookahead", lookahead, about=("pace",))
    if time > pace.time:
        turn.set_pace(side, state="advancing")
        turn.call(side, "time_advance_request", time, about=("pace",))


def _before(safe: float, other: float) -> float:
    """The greatest number that with the other one is not above what is safe."""
    found = safe - other
    while found + other > safe:
        found = math.nextafter(found, -math.inf)
    return found
