"""Time management as slowly and plainly as the standard says it (IEEE 1516.1-2010, clause 8): what
jbi_pubsub.hla.clock and timing are compared with. Nothing is kept that can be worked out anew.

A moment is a pair: (5.0, 0) is 5.0, (5.0, 1) is just behind 5.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

Moment = tuple[float, int]


def first(moment: Moment) -> float:
    """The first time that is not before a moment."""
    return math.nextafter(moment[0], math.inf) if moment[1] else moment[0]


class Refused(Exception):  # noqa: N818  # as the standard's
    """With the name of the standard's exception."""


@dataclass
class Clocked:
    """A federate."""

    time: float = 0.0
    told_all: bool = False
    """It was granted its time by TAR or NMR: nothing at that time comes any more, and it sends nothing there."""
    lookahead: float | None = None
    given: list[Moment] = field(default_factory=list)
    """All that it has promised for good since it regulates: nothing before these."""
    larger: list[float] = field(default_factory=list)
    """Times that it has promised with larger lookaheads since it regulates."""
    constrained: bool = False
    asked: tuple[str, float] | None = None
    asynchronous: bool = False
    ordered: list[tuple[float, int, bytes, int]] = field(default_factory=list)
    """Waiting: time, number, text, retraction."""
    unordered: list[bytes] = field(default_factory=list)
    watched: tuple[float, ...] | None = None
    sealed: float = -1.0
    """Constrained, it was granted this by TAR or NMR: no message at or before it may follow."""


class Times:
    """A federation in which all send to all."""

    def __init__(self) -> None:
        self.federates: dict[str, Clocked] = {}
        self.told: list[tuple[str, tuple[Any, ...]]] = []
        self.number = 0
        self.sent: dict[int, tuple[str, float, tuple[str, ...]]] = {}
        """By retraction: sender, time, to whom."""

    # -- bounds

    def now(self, name: str) -> Moment:
        """What a federate may send from its time and lookahead alone."""
        one = self.federates[name]
        assert one.lookahead is not None
        return one.time + one.lookahead, int(one.told_all and one.lookahead == 0)

    def asked_for(self, name: str) -> Moment:
        one = self.federates[name]
        assert one.asked is not None
        assert one.lookahead is not None
        return one.asked[1] + one.lookahead, int(one.asked[0] in ("TAR", "NMR") and one.lookahead == 0)

    def may_send(self, name: str) -> Moment:
        one = self.federates[name]
        moments = [*one.given, self.now(name)]
        if one.asked is not None and one.asked[0] in ("TAR", "TARA", "NMR", "NMRA"):
            moments.append(self.asked_for(name))
        return max(moments)

    def bounds(self) -> dict[str, Moment]:
        """Of all who regulate. Of those who wait for their next message: the greatest that contradict nothing."""
        bounds = {}
        waiting = []
        for name, one in self.federates.items():
            if one.lookahead is None:
                continue
            bounds[name] = self.may_send(name)
            if one.asked is not None and one.asked[0] in ("NMR", "NMRA"):
                waiting.append(name)
        changed = True
        while changed:
            changed = False
            for name in waiting:
                one = self.federates[name]
                assert one.asked is not None
                assert one.lookahead is not None
                reach = [one.asked[1], *(each[0] for each in one.ordered)]
                reach += [bound[0] for other, bound in bounds.items() if other != name]
                at = max(one.time, min(reach))
                exclusive = one.asked[0] == "NMR" or (one.told_all and at == one.time)
                bound = max([*one.given, (at + one.lookahead, int(exclusive and one.lookahead == 0))])
                if bound != bounds[name]:
                    assert bound < bounds[name]
                    bounds[name], changed = bound, True
        return bounds

    def galt(self, name: str) -> Moment:
        return min((bound for other, bound in self.bounds().items() if other != name), default=(math.inf, 0))

    def lits(self, name: str) -> float:
        return min([self.galt(name)[0], *(each[0] for each in self.federates[name].ordered)])

    # -- grants

    def tell(self, name: str, *what: Any) -> None:
        self.told.append((name, what))

    def settle(self) -> None:
        while any(self.grant(name) for name in sorted(self.federates)):
            pass
        for name, one in sorted(self.federates.items()):
            if one.watched is not None:
                galt, alone, delay, may_send = self.watched(name)
                reached = max((each.time for each in self.ahead(name)), default=0.0)
                watched = galt, alone, delay, may_send, reached
                if watched != one.watched:
                    one.watched = watched
                    self.tell(name, "lower_bound", *watched)

    def ahead(self, name: str) -> list[Clocked]:
        """Those that nothing may come to below their time; who watches and regulates is where others are."""
        return [
            each for other, each in self.federates.items()
            if other != name and (each.constrained or (each.watched is not None and each.lookahead is not None))
        ]  # fmt: skip

    def watched(self, name: str) -> tuple[float, float, float, float]:
        """GALT, as the first moment that can be; the same if the federate sent nothing any more; where that is
        another, how soon somebody may send who is given a message of it; and its first moment."""
        without = Times()
        without.federates = {each: one for each, one in self.federates.items() if each != name}
        delays = [
            one.lookahead for one in without.federates.values()
            if one.lookahead is not None and one.asked is not None and one.asked[0] in ("NMR", "NMRA")
        ]  # fmt: skip
        may_send = self.may_send(name)[0] if self.federates[name].lookahead is not None else math.inf
        galt, alone = first(self.galt(name)), first(without.galt(name))
        return galt, alone, min(delays) if alone > galt else math.inf, may_send

    def grant(self, name: str) -> bool:
        one = self.federates[name]
        if one.asked is None:
            return False
        kind, wanted = one.asked
        galt = self.galt(name)
        if kind == "constrained":
            if wanted > galt[0]:
                return False
            one.asked, one.constrained = None, True
            self.tell(name, "time_constrained_enabled", wanted)
            return True
        time = wanted
        if one.constrained:
            stamps = [each[0] for each in one.ordered]
            if kind == "FQR":
                time = max(one.time, min([wanted, galt[0], *stamps]))
            if kind in ("NMR", "NMRA"):
                time = min([wanted, *stamps])
            if (kind in ("TAR", "NMR") and (time, 0) >= galt) or (kind in ("TARA", "NMRA") and time > galt[0]):
                return False
        self.deliver(name, math.inf if kind == "FQR" else time)
        self.tell(name, "time_advance_grant", time)
        one.told_all = kind in ("TAR", "NMR") or (one.told_all and time == one.time)
        if one.constrained and kind in ("TAR", "NMR"):
            one.sealed = time
        one.time, one.asked = time, None
        if one.lookahead is not None:
            one.given.append(self.now(name))
        return True

    def deliver(self, name: str, time: float) -> None:
        one = self.federates[name]
        for each in sorted(one.ordered):
            if each[0] <= time:
                self.tell(name, "message", each[2], each[0])
        one.ordered = [each for each in one.ordered if each[0] > time]

    # -- services

    def enable_time_regulation(self, name: str, lookahead: float) -> None:
        one = self.federates[name]
        if one.lookahead is not None:
            raise Refused("TimeRegulationAlreadyEnabled")
        self.at_rest(one)
        others = self.ahead(name)
        times = sorted((each.time, each.told_all) for each in [one, *others])
        one.time, one.told_all = times[-1]
        one.lookahead, one.given, one.larger = lookahead, [], []
        one.given.append(self.now(name))
        self.deliver(name, one.time)
        self.tell(name, "time_regulation_enabled", one.time)

    def disable_time_regulation(self, name: str) -> None:
        one = self.regulating(name)
        one.lookahead = None
        if one.watched is not None and not one.constrained:  # a surrogate
            one.time = 0.0
        self.sent = {number: each for number, each in self.sent.items() if each[0] != name}

    def enable_time_constrained(self, name: str) -> None:
        one = self.federates[name]
        if one.constrained:
            raise Refused("TimeConstrainedAlreadyEnabled")
        self.at_rest(one)
        one.asked = "constrained", one.time

    def disable_time_constrained(self, name: str) -> None:
        one = self.federates[name]
        if not one.constrained:
            raise Refused("TimeConstrainedIsNotEnabled")
        self.release(name)
        self.deliver(name, math.inf)
        one.constrained, one.sealed = False, -1.0

    def enable_asynchronous_delivery(self, name: str) -> None:
        if self.federates[name].asynchronous:
            raise Refused("AsynchronousDeliveryAlreadyEnabled")
        self.federates[name].asynchronous = True
        self.release(name)

    def disable_asynchronous_delivery(self, name: str) -> None:
        if not self.federates[name].asynchronous:
            raise Refused("AsynchronousDeliveryAlreadyDisabled")
        self.federates[name].asynchronous = False

    def advance(self, name: str, kind: str, time: float) -> None:
        one = self.federates[name]
        self.at_rest(one)
        if time < one.time:
            raise Refused("LogicalTimeAlreadyPassed")
        one.asked = kind, time
        if one.lookahead is not None and kind in ("TAR", "TARA"):
            one.given.append(self.asked_for(name))
        self.release(name)

    def modify_lookahead(self, name: str, lookahead: float) -> None:
        one = self.regulating(name)
        self.at_rest(one)
        assert one.lookahead is not None
        if lookahead < one.lookahead:
            one.larger.append(one.time + one.lookahead)
        one.lookahead = lookahead
        one.given.append(self.now(name))

    def watch_lower_bound(self, name: str, on: bool) -> None:
        self.federates[name].watched = () if on else None

    def query_lookahead(self, name: str) -> float:
        """The one in force: the one given last, or what is left of larger ones before."""
        one = self.regulating(name)
        assert one.lookahead is not None
        return max([one.lookahead, *(each - one.time for each in one.larger)])

    def send(self, name: str, text: bytes, time: float | None, retraction: int) -> None:
        """The number of the retraction is the other side's, 0 when that refused or sent in receive order."""
        sender = self.federates[name]
        if time is None or sender.lookahead is None:
            for other, one in self.federates.items():
                if other != name:
                    one.unordered.append(text)
                    if not one.constrained or one.asynchronous or one.asked is not None:
                        self.release(other)
            return
        if (time, 0) < self.may_send(name):
            raise Refused("InvalidLogicalTime")
        self.number += 1
        self.sent[retraction] = name, time, tuple(each for each in self.federates if each != name)
        for other, one in self.federates.items():
            if other != name:
                one.ordered.append((time, self.number, text, retraction))
                if not one.constrained:
                    self.deliver(other, math.inf)

    def retract(self, name: str, retraction: int) -> None:
        self.regulating(name)
        sender, time, receivers = self.sent.get(retraction, ("", 0.0, ()))
        if sender != name or (time, 0) < self.may_send(name):
            raise Refused("MessageCanNoLongerBeRetracted")
        del self.sent[retraction]
        for other in receivers:
            if other not in self.federates:
                continue
            one = self.federates[other]
            left = [each for each in one.ordered if each[3] != retraction]
            if len(left) == len(one.ordered):
                self.tell(other, "request_retraction", retraction)
            one.ordered = left

    def resign(self, name: str) -> None:
        del self.federates[name]

    # -- parts

    def release(self, name: str) -> None:
        one = self.federates[name]
        for text in one.unordered:
            self.tell(name, "message", text, None)
        one.unordered = []

    def at_rest(self, one: Clocked) -> None:
        if one.asked is not None:
            raise Refused(
                "RequestForTimeConstrainedPending" if one.asked[0] == "constrained" else "InTimeAdvancingState"
            )

    def regulating(self, name: str) -> Clocked:
        if self.federates[name].lookahead is None:
            raise Refused("TimeRegulationIsNotEnabled")
        return self.federates[name]
