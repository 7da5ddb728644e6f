"""Time management beside a naive model of the standard, whatever is called: the same is told, refused and answered."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import pytest
from extent import examples

from jbi_pubsub.hla import exceptions as exc
from tests.oracles.hla_time import Clocked, Refused, Times

from .conftest import Rig

ADVANCES = {
    "TAR": "time_advance_request",
    "TARA": "time_advance_request_available",
    "NMR": "next_message_request",
    "NMRA": "next_message_request_available",
    "FQR": "flush_queue_request",
}
STEPS = (0.0, 0.0, 0.5, 1.0, 3.0)
LOOKAHEADS = (0.0, 0.0, 0.5, 1.0, 2.0)
STAMPS = (None, -0.5, 0.0, 0.0, 0.25, 1.0, 4.0)
SELDOM = (
    "disable_time_regulation", "disable_time_constrained", "enable_asynchronous_delivery",
    "disable_asynchronous_delivery", "query_lookahead", "resign",
)  # fmt: skip


class Both:
    """A federation, and the model of it."""

    def __init__(self, names: str) -> None:
        self.rig = Rig(*names)
        self.model = Times()
        self.sent: list[int] = []
        self.count = 0
        for each in names:
            self.rig.call(each, "publish_interaction_class", self.rig.radio)
            self.rig.call(each, "subscribe_interaction_class", self.rig.radio)
            self.add(each)

    def add(self, name: str) -> None:
        self.model.federates[name] = Clocked()

    def act(self, name: str, what: str, *arguments: Any) -> str:
        """The exception of both, or nothing."""
        before = self.rig.execution
        self.model.told.clear()
        answer, refused = self._real(name, what, *arguments)
        assert not refused or self.rig.execution is before
        try:
            self._modelled(name, what, answer, *arguments)
            expected = ""
        except Refused as why:
            expected = str(why)
        assert refused == expected, (name, what, arguments)
        if not refused:
            self.model.settle()
        self.compare()
        return refused

    def _real(self, name: str, what: str, *arguments: Any) -> tuple[Any, str]:
        try:
            if what == "advance":
                return self.rig.call(name, ADVANCES[arguments[0]], arguments[1]), ""
            if what == "send":
                values = ((self.rig.text, arguments[0]),)
                return self.rig.call(name, "send_interaction", self.rig.radio, values, b"", arguments[1]), ""
            if what == "resign":
                return self.rig.call(name, "resign_federation_execution", "no_action"), ""
            return self.rig.call(name, what, *arguments), ""
        except exc.RtiError as why:
            return None, type(why).__name__

    def _modelled(self, name: str, what: str, answer: Any, *arguments: Any) -> None:
        if what == "send":
            self.model.send(name, *arguments, answer)
            if answer:
                self.sent.append(answer)
        else:
            expected = getattr(self.model, what)(name, *arguments)
            assert answer == expected

    def compare(self) -> None:
        expected: dict[str, list[Any]] = defaultdict(list)
        for name, told in self.model.told:
            expected[name].append(told)
        for name in self.model.federates:
            log = [
                ("message", each[2][0][1], each[4] if each[5] else None) if each[0] == "receive_interaction" else each
                for each in self.rig.heard(name)
            ]
            assert log == expected[name], name
            assert self.rig.call(name, "query_galt") == self.model.galt(name)[0]
            assert self.rig.call(name, "query_lits") == self.model.lits(name)
            assert self.rig.call(name, "query_logical_time") == self.model.federates[name].time


@pytest.mark.row("H-23")
@pytest.mark.parametrize("seed", range(5))
def test_time_is_as_the_standard_has_it(seed: int) -> None:
    for each in range(seed * 40, seed * 40 + examples(40)):
        walk(random.Random(each))


def walk(chance: random.Random) -> None:
    # Given some federates, coupled from the start or not
    names = "abcd"[: chance.randint(2, 4)]
    both = Both(names)
    lookaheads = chance.choice((LOOKAHEADS, (0.0,), (0.5, 1.0)))
    for each in names:
        if chance.random() < 0.85:
            both.act(each, "enable_time_regulation", chance.choice(lookaheads))
        if chance.random() < 0.75:
            both.act(each, "enable_time_constrained")
    for number in range(80):
        # When one of them, rather one that is free, calls something; Expect what the model says
        free = sorted(name for name, each in both.model.federates.items() if each.asked is None)
        who = chance.choice(free) if free and chance.random() < 0.9 else chance.choice(sorted(both.model.federates))
        act(both, who, number, chance, lookaheads)
        clocked = both.model.federates
        if not clocked:
            break
        # and no federate to wait for ever: where all lookaheads are positive, somebody is free
        if all(each.lookahead != 0.0 for each in clocked.values()):
            assert any(each.asked is None for each in clocked.values())
        # and nothing to be granted beyond what others may send, nothing to wait in anybody's past
        for name, one in clocked.items():
            if one.constrained:
                assert one.time <= both.model.galt(name)[0]
                assert all(stamp >= one.time and stamp > one.sealed for stamp, *_ in one.ordered)


def act(both: Both, name: str, number: int, chance: random.Random, lookaheads: tuple[float, ...]) -> None:
    one, kind = both.model.federates[name], chance.random()
    if kind < 0.45:
        both.act(name, "advance", chance.choice(tuple(ADVANCES)), one.time + chance.choice(STEPS))
    elif kind < 0.75:
        step = chance.choice(STAMPS)
        least = both.model.may_send(name)[0] if one.lookahead is not None else one.time
        both.act(name, "send", b"%d" % number, None if step is None else max(0.0, least + step))
    elif kind < 0.8 and both.sent:
        both.act(name, "retract", chance.choice(both.sent[-4:]))
    elif kind < 0.9:
        both.act(name, chance.choice(("enable_time_regulation", "modify_lookahead")), chance.choice(lookaheads))
    elif kind < 0.93:
        both.act(name, "enable_time_constrained")
    elif kind < 0.96:
        both.act(name, "watch_lower_bound", chance.random() < 0.7)
    else:
        both.act(name, chance.choice(SELDOM))


def test_nothing_waits_where_nobody_regulates() -> None:
    # Given federates of which none regulates; When one that is constrained asks for any time; Expect it at once
    both = Both("ab")
    both.act("a", "enable_time_constrained")
    both.act("a", "advance", "TAR", 1e9)
    assert both.model.galt("a")[0] == math.inf
    assert both.model.federates["a"].time == 1e9
