"""Time over a bridge that couples it, in every order: who waits for the next message, and what comes of one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.exceptions import RtiError
from jbi_pubsub.hla.execution import Pace, RtiOptions
from jbi_pubsub.hla.exploration import script, search
from jbi_pubsub.hla.exploration.scenarios import line
from jbi_pubsub.hla.exploration.search import Exploration
from jbi_pubsub.hla.exploration.system import Anomaly, SceneMove, after, built, fom, moves, planned

CALL = fom().interaction_class("Call")
DECLARED = f"publish_interaction_class({CALL}); subscribe_interaction_class({CALL})"


def explored(text: str, sizes: tuple[int, ...], regulates: str = "fgh", lookahead: float = 1.0) -> Exploration:
    """All are constrained, those of some federations regulate; then what a script says, before `---` in this order."""
    every = [f"{'fgh'[federation]}{number}" for federation, size in enumerate(sizes) for number in range(size)]
    first = [f"{each}: {DECLARED}\n" for each in every]
    first += [f"{each}: enable_time_regulation({lookahead})\n" for each in every if each[0] in regulates]
    first += [f"{each}: enable_time_constrained()\n" for each in every]
    read = script.read("".join(first) + text)
    plan = planned(Solutions(), couples=True)
    return search.explore(*built(sizes, line(len(sizes)), plan, read, options=RtiOptions(adds=True)), most=100_000)


def said(result: Exploration) -> tuple[str, set[str]]:
    """The verdict, and how it can end."""
    return result.verdict, {each.outcome for each in result.terminals}


FINE = ("ok", {"nothing is pending"})


@pytest.mark.parametrize("lookahead", [0.0, 1.0])
@pytest.mark.parametrize("end", ["1000.0", "1e999"])
@pytest.mark.parametrize("asks", ["next_message_request", "time_advance_request"])
def test_two_sides_that_ask_for_the_same_time_are_granted_it(asks: str, end: str, lookahead: float) -> None:
    text = "---\n" + "".join(f"{each}: {asks}({end})\n{each} <- time_advance_grant({end})\n" for each in ("f0", "g0"))
    assert said(explored(text, (1, 1), lookahead=lookahead)) == FINE


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])
@pytest.mark.parametrize("asks", ["next_message_request", "time_advance_request"])
def test_what_comes_of_a_message_comes_in_time(sizes: tuple[int, ...], asks: str) -> None:
    # Given one that waits for a message, and sends when it has one; When one beyond sends, and goes on
    text = f"""---
f0: next_message_request(20.0)
f0 <- time_advance_grant(3.0)
f0: send_interaction({CALL}, (), b"2", 4.0); next_message_request(20.0)
g0: send_interaction({CALL}, (), b"1", 3.0)
g0: {asks}(10.0)
g0 <- receive_interaction({CALL}, (), b"2", 4.0)
"""
    # Expect it to be told the answer in time-stamp order, whatever happens first
    assert said(explored(text + ("g1: time_advance_request(20.0)\n" if sizes == (1, 2) else ""), sizes)) == FINE


def test_what_is_sent_in_the_past_of_the_other_side_comes_without_its_time() -> None:
    # Given one who is at 10; When somebody begins to regulate beyond, at 0, and sends; Expect it to come, if too late
    text = f"""f0: time_advance_request(10.0); enable_asynchronous_delivery()
---
g0: enable_time_regulation(1.0)
g0: send_interaction({CALL}, (), b"1", 3.0)
f0 <- receive_interaction({CALL}, (), b"1", None)
"""
    verdict, end = said(explored(text, (1, 1), regulates=""))
    assert (verdict, end) == ("IN_THE_PAST", FINE[1])


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1, 1), (1, 2)])
def test_who_begins_to_regulate_is_where_those_beyond_are(sizes: tuple[int, ...]) -> None:
    # Given one who is at 10; When another one beyond begins; Expect him to be there, and nothing of him to be late
    late = f"{'fgh'[len(sizes) - 1]}0"
    text = f"""f0: time_advance_request(10.0)
---
{late}: enable_time_regulation(1.0)
{late} <- time_regulation_enabled(10.0)
{late}: send_interaction({CALL}, (), b"1", 11.0)
"""
    assert said(explored(text, sizes, regulates="f")) == FINE


def test_a_second_exercise_begins_at_0_on_both_sides() -> None:
    # Given an exercise that went to 10, of which nobody is left
    text = f"{{0}}: {DECLARED}; enable_time_regulation(1.0); enable_time_constrained()\n"
    first = text.format("f0") + text.format("g0")
    first += "".join(f"{each}: time_advance_request({time})\n" for time in (5.0, 10.0) for each in ("f0", "g0"))
    first += "".join(f'{each}: resign_federation_execution("no_action")\n' for each in ("f0", "g0"))
    # When others begin over the same bridge; Expect them to be at 0, and the one granted 5 when the other asks for it
    text = first + text.format("f1") + text.format("g1")
    text += f"""---
g1: send_interaction({CALL}, (), b"1", 4.0); time_advance_request(5.0)
f1: time_advance_request(5.0)
f1 <- receive_interaction({CALL}, (), b"1", 4.0)
f1 <- time_advance_grant(5.0)
"""
    plan = planned(Solutions(), couples=True)
    setup, system = built((2, 2), line(2), plan, script.read(text), options=RtiOptions(adds=True))
    times = {handle: pace.time for each in system.executions for handle, pace in each.clock.paces.items()}
    assert set(times.values()) == {0.0}
    assert said(search.explore(setup, system, most=100_000)) == FINE


END = 1000.0
LOOKAHEADS = (0.5, 1.0, 2.0)
ADVANCES = ("time_advance_request", "time_advance_request_available", "next_message_request_available",
            "flush_queue_request", *["next_message_request"] * 4)  # fmt: skip


class Walk:
    """Federates that call something now and then, while other things happen in some order."""

    def __init__(self, sizes: tuple[int, ...], random: Random, *, onlookers: tuple[str, ...] = ()) -> None:
        """`onlookers`: those who have nothing to do with time."""
        self.random = random
        every = [f"{'fgh'[federation]}{number}" for federation, size in enumerate(sizes) for number in range(size)]
        text = "".join(f"{each}: {DECLARED}\n" for each in every)
        for each in (each for each in every if each not in onlookers):
            text += f"{each}: enable_time_regulation({random.choice(LOOKAHEADS)})\n" * (random.random() < 0.85)
            text += f"{each}: enable_time_constrained()\n" * (random.random() < 0.85)
        plan, read = planned(Solutions(), couples=True), script.read(f"{text}---\n")
        # late: all regulate before the bridge promises anything
        self.setup, self.system = built(sizes, line(2), plan, read, options=RtiOptions(adds=True), late=True)
        self.found: list[Anomaly] = []

    def happen(self, most: int) -> None:
        """Some of what can happen does; or everything, if that is not too much."""
        for _ in range(most):
            can = moves(self.setup, self.system)
            if not can:
                return
            made = after(self.setup, self.system, self.random.choice(can))
            assert made is not None
            self.system, found = made
            self.found += found

    def paces(self) -> list[Pace]:
        """Of the federates."""
        return [self.system.executions[where].clock.pace(handle) for where, _, handle in self.setup.federates]

    def call(self, who: int, service: str, *arguments: Any) -> None:
        """Refused or not."""
        where, _, handle = self.setup.federates[who]
        doing = SceneMove(self.setup, self.system)
        try:
            doing.call(where, handle, service, arguments)
        except RtiError:
            return
        self.system = doing.system()


def test_what_is_kept_of_messages_is_little_where_nobody_beyond_has_to_do_with_time() -> None:
    # Given a federate that advances and sends, and one beyond who only looks on
    walk = Walk((1, 1), Random(2), onlookers=("g0",))
    assert walk.paces()[0].lookahead is not None
    for number in range(1, 101):
        # When the one is a step further, and tells of it
        walk.call(0, "time_advance_request", float(number))
        walk.happen(100)
        assert walk.paces()[0].time == number
        walk.call(0, "send_interaction", CALL, (), b"%d" % number, number + 2.0)
        walk.happen(100)
    # Expect no more to be kept of it than what is ahead of the steps
    [bridge] = walk.system.bridges
    assert max(len(each.sent) for each in bridge.paces) <= 5


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (2, 2)])
def test_nothing_comes_late_and_all_come_to_the_end(sizes: tuple[int, ...]) -> None:
    for seed in range(20):
        # Given federates that advance, send and change their lookaheads
        walk = Walk(sizes, Random(seed))
        for number in range(100):
            walk.happen(walk.random.randint(0, 4))
            who, kind = walk.random.randrange(sum(sizes)), walk.random.random()
            pace = walk.paces()[who]
            if kind < 0.5:
                time = pace.time + walk.random.choice((0.5, 1.0, 3.0, 10.0, 50.0))
                walk.call(who, walk.random.choice(ADVANCES), time)
            elif kind < 0.9:
                least = (pace.asked or ("", pace.time))[1] + (pace.lookahead or 0.0)
                time = least + walk.random.choice((0.0, 0.5, 4.0))
                walk.call(who, "send_interaction", CALL, (), b"%d" % number, time)
            else:
                walk.call(who, "modify_lookahead", walk.random.choice(LOOKAHEADS))
        # When all wait for messages until the end; Expect them to get there, and nothing to have come late
        for _ in range(1_000):
            walk.happen(5_000)
            if all(pace.time >= END for pace in walk.paces()):
                break
            for who in range(sum(sizes)):
                walk.call(who, "next_message_request", END)
        else:
            pytest.fail(f"walk {seed} stands still")
        assert walk.found == [], f"walk {seed}"
