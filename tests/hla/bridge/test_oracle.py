"""What federates of bridged federations are told is what one RTI would have told them: the same story is told to one
federation and to several with bridges between them, and all that each federate is told or refused is compared."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest
from immutables import Map

from jbi_pubsub.hla import rti
from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.exceptions import RtiError
from jbi_pubsub.hla.execution import RtiOptions
from jbi_pubsub.hla.exploration import script
from jbi_pubsub.hla.exploration.system import Scene, SceneMove, System, after, built, fom, moves, planned

THING = fom().object_class("Thing")
X = fom().attribute(THING, "x")
CALL = fom().interaction_class("Call")
TEXT = fom().parameter(CALL, "text")
NAMES, LABELS = ("a", "a", "a", "b"), ("L", "M")

_OF_INSTANCES = {
    "discover_object_instance", "reflect_attribute_values", "remove_object_instance", "provide_attribute_value_update",
    "request_attribute_ownership_assumption", "request_attribute_ownership_release", "request_divestiture_confirmation",
    "attribute_ownership_acquisition_notification", "attribute_ownership_unavailable", "inform_attribute_ownership",
    "confirm_attribute_ownership_acquisition_cancellation",
}  # fmt: skip
_WITHOUT_LAST = {
    "reflect_attribute_values", "remove_object_instance", "receive_interaction",  # a retraction handle
    "request_retraction",  # the same
    "attribute_ownership_acquisition_notification",  # a tag: not all that RTIs know of it is told to bridges
}  # fmt: skip

TIMELESS = {"reflect_attribute_values", "receive_interaction"}
"""Messages that lose their time on a bridge, where that would hold them back and has not."""
_WITH_TIMES = {"update_attribute_values", "send_interaction", "delete_object_instance"}

DECLARED: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("publish_object_class_attributes", (THING, (X,))), ("subscribe_object_class_attributes", (THING, (X,))),
    ("publish_interaction_class", (CALL,)), ("subscribe_interaction_class", (CALL,)),
)  # fmt: skip
JOIN, RESIGN = "join_federation_execution", "resign_federation_execution"

Step = tuple[int, str, tuple[Any, ...]]
"""Which federate calls what; "@a" stands for the instance of that name, "#" for what it has sent
last with a time."""


class Told(NamedTuple):
    """What came of a step: the refusal of the call, and what each federate was told."""

    refused: str
    heard: tuple[Counter[tuple[Any, ...]], ...]


@functools.cache  # values, which nobody changes: each story begins with the same ones
def _begun(
    sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...], policy: Solutions, couples: bool
) -> tuple[Scene, System]:
    every = [f"{'fghijk'[federation]}{number}" for federation, size in enumerate(sizes) for number in range(size)]
    acts = "; ".join(f"{act}({', '.join(map(str, of))})" for act, of in DECLARED)
    declared = "".join(f"{each}: {acts}\n" for each in every)
    plan = planned(policy, couples=couples)
    return built(sizes, edges, plan, script.read(f"{declared}---\n"), options=RtiOptions(adds=True))


class World:
    """Federates in one federation or in several, and everything they were told."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        edges: tuple[tuple[int, int], ...],
        policy: Solutions,
        random: Random,
        *,
        couples: bool = False,
    ) -> None:
        self.setup: Scene
        self.system: System
        self.setup, self.system = _begun(sizes, edges, policy, couples)
        self.random = random
        self._names: list[dict[int, str]] = [{} for _ in self.setup.federates]
        self._sent = [9999 for _ in self.setup.federates]
        """Retraction handles of what each has sent last."""
        self.found: list[Any] = []

    def step(self, step: Step) -> Told:
        """Somebody calls something; then all that can happen does, in some order."""
        who, service, arguments = step
        federation, name, handle = self.setup.federates[who]
        if service == JOIN:
            return self._join(who, federation, name)
        doing = SceneMove(self.setup, self.system)
        known = {name: instance for instance, name in self._names[who].items()}
        refused = ""
        try:
            there = tuple(
                self._sent[who] if each == "#" else known.get(each[1:], 9999) if str(each)[:1] == "@" else each
                for each in arguments
            )
            answer = doing.call(federation, handle, service, there)
            if service in _WITH_TIMES and answer:
                self._sent[who] = answer
            if service == "synchronization_point_achieved":
                doing._note(who, service, there)
            if service == "register_object_instance":
                self._names[who][answer] = arguments[1]
        except RtiError as exc:
            refused = type(exc).__name__
        else:
            self.system = doing.system()
            if service == RESIGN:
                self._is_at(who, 0)
        return Told(refused, self._rest())

    def _join(self, who: int, federation: int, name: str) -> Told:
        """A federate joins, and declares what all do."""
        if self.setup.federates[who][2]:
            return Told("joined", self._rest())
        doing = SceneMove(self.setup, self.system)
        try:
            step = rti.call(self.setup.models[federation], doing.executions[federation], 0, JOIN, name)
        except RtiError as exc:
            return Told(type(exc).__name__, self._rest())
        doing.executions[federation] = step.execution
        self._is_at(who, step.answer)
        doing.setup = self.setup
        doing.inboxes[who] = tuple(each.callback for each in step.told if each.federate == step.answer)
        for each in step.told:
            if each.federate != step.answer:
                doing._queue(federation, each)  # as a call does
        for service, arguments in DECLARED:
            doing.call(federation, step.answer, service, arguments)
        self.system = doing.system()
        return Told("", self._rest())

    def _is_at(self, who: int, handle: int) -> None:
        """A federate has joined, and is told what is for that handle; 0: it has resigned."""
        federation, name, before = self.setup.federates[who]
        routes, federates = list(self.setup.routes), list(self.setup.federates)
        routes[federation] = routes[federation].set(handle, (-1, who)) if handle else routes[federation].delete(before)
        federates[who] = federation, name, handle
        self.setup = self.setup._replace(federates=tuple(federates), routes=tuple(routes))
        self._names[who] = {}
        memories = list(self.system.memories)
        memories[who] = Map()
        self.system = self.system._replace(memories=tuple(memories))

    def _rest(self) -> tuple[Counter[tuple[Any, ...]], ...]:
        heard: list[Counter[tuple[Any, ...]]] = [Counter() for _ in self.setup.federates]
        for _ in range(20_000):
            can = moves(self.setup, self.system)
            self.random.shuffle(can)
            for move in can:
                if move[0] == "hear":
                    heard[move[1]][self._said(move[1])] += 1
                made = after(self.setup, self.system, move)
                if made is not None:
                    self.system, found = made
                    self.found += found
                    break
            else:
                return tuple(heard)
        pytest.fail("it does not come to rest")

    def _said(self, place: int) -> tuple[Any, ...]:
        name, arguments, *_ = self.system.inboxes[place][0]
        if name == "discover_object_instance":
            self._names[place][arguments[0]] = arguments[2]
        if name in _OF_INSTANCES:
            arguments = (self._names[place].get(arguments[0], "?"), *arguments[1:])
        if name == "initiate_federate_restore":  # its name and handle
            arguments = arguments[:1]
        if name in _WITHOUT_LAST:
            arguments = arguments[:-1]
        return (name, *(tuple(sorted(each)) if isinstance(each, tuple) else each for each in arguments))


Choice = Callable[[Random], tuple[Any, ...]]


def _one(random: Random) -> tuple[Any, ...]:
    return f"@{random.choice(NAMES)}", (X,)


def _achieved(random: Random, label: str) -> tuple[Any, ...]:
    """Sometimes in vain."""
    return label, *[False] * (random.random() < 0.2)


ACTIONS = ("delete_objects_then_divest", "unconditionally_divest_attributes", "cancel_then_delete_then_divest")
CALLS: dict[str, Choice] = {
    "register_object_instance": lambda random: (THING, random.choice(NAMES)),
    "update_attribute_values": lambda random: (_one(random)[0], ((X, b"1"),), b"t"),
    "delete_object_instance": lambda random: (_one(random)[0], b"t"),
    "send_interaction": lambda _: (CALL, ((TEXT, b"2"),), b"t"),
    "request_attribute_value_update": lambda random: (*_one(random), b"t"),
    "register_federation_synchronization_point": lambda random: (random.choice(LABELS), random.randbytes(4)),
    "synchronization_point_achieved": lambda random: _achieved(random, random.choice(LABELS)),
    "unconditional_attribute_ownership_divestiture": _one,
    "negotiated_attribute_ownership_divestiture": lambda random: (*_one(random), b"t"),
    "cancel_negotiated_attribute_ownership_divestiture": _one,
    "confirm_divestiture": lambda random: (*_one(random), b"t"),
    "attribute_ownership_acquisition": lambda random: (*_one(random), b"t"),
    "attribute_ownership_acquisition_if_available": _one,
    "attribute_ownership_divestiture_if_wanted": _one,
    "attribute_ownership_release_denied": _one,
    "request_federation_save": lambda random: (random.choice(LABELS),),
    "federate_save_begun": lambda _: (),
    "federate_save_complete": lambda _: (),
    "federate_save_not_complete": lambda _: (),
    "abort_federation_save": lambda _: (),
    "cancel_attribute_ownership_acquisition": _one,
    "unpublish_object_class_attributes": lambda _: (THING, (X,)),
    "publish_object_class_attributes": lambda _: (THING, (X,)),
    RESIGN: lambda random: (random.choice(ACTIONS),),
    JOIN: lambda _: (),
}
SAVES = [name for name in CALLS if "save" in name]
OFFER, PUBLISH = "request_attribute_ownership_assumption", "publish_object_class_attributes"
REPEATED = {"request_attribute_ownership_release", OFFER}
"""What an RTI asks again for each further federate that wants or offers the same: over a bridge it may ask once, or
once for each side that wants it."""
STORIES_MOST = int(os.environ.get("STORIES", "1000"))
"""Fewer for who looks for planted defects."""
TIMED_MOST = int(os.environ.get("TIMED_STORIES", "100"))


BEYOND_SMART = (RESIGN, JOIN, "cancel_attribute_ownership_acquisition")
"""Services after which one RTI tells something else than bridges that have the standard's services alone: claims that
are taken back, and points that somebody is announced who joins after his side has said that all are there."""


def story(random: Random, federates: int, without: tuple[str, ...]) -> Iterator[Step]:
    """Some calls of federates, in half of the stories without a save, which keeps all from everything else."""
    names = [name for name in CALLS if name not in without and (name not in SAVES or random.random() < 0.5)]
    away: list[int] = []
    yield 0, "register_object_instance", (THING, "a")
    for _ in range(random.randint(2, 30)):
        name, who = random.choice(names), random.randrange(federates)
        if away and random.random() < 0.3:
            yield away.pop(), JOIN, ()
        if name == RESIGN:
            away += [who] * (who not in away)
        arguments = CALLS[name](random)
        yield who, name, arguments
        if name == "register_federation_synchronization_point" and random.random() < 0.5:
            for each in random.sample(range(federates), federates):
                yield each, "synchronization_point_achieved", _achieved(random, arguments[0])
        if name == "negotiated_attribute_ownership_divestiture" and random.random() < 0.5:  # else rarely with success
            yield random.randrange(federates), "attribute_ownership_acquisition", CALLS[name](random)
            yield who, "confirm_divestiture", CALLS[name](random)
        elif name == "negotiated_attribute_ownership_divestiture":
            yield who, f"cancel_{name}", arguments[:2]
        if name == "request_federation_save" and random.random() < 0.5:
            for each in random.sample(range(federates), federates):
                yield each, "federate_save_begun", ()
                yield each, "federate_save_complete" if random.random() < 0.9 else "federate_save_not_complete", ()


def _time(random: Random) -> float:
    return float(random.randint(1, 20))


TIMED: dict[str, Choice] = {
    "time_advance_request": lambda random: (_time(random),),
    "time_advance_request_available": lambda random: (_time(random),),
    "next_message_request": lambda random: (_time(random),),
    "next_message_request_available": lambda random: (_time(random),),
    "flush_queue_request": lambda random: (_time(random),),
    "query_logical_time": lambda _: (),
    "update_attribute_values": lambda random: (_one(random)[0], ((X, b"1"),), b"t", _time(random)),
    "send_interaction": lambda random: (CALL, ((TEXT, b"2"),), b"t", _time(random)),
    "delete_object_instance": lambda random: (_one(random)[0], b"t", _time(random)),
    "register_object_instance": lambda random: (THING, random.choice(NAMES)),
    "change_attribute_order_type": lambda random: (_one(random)[0], (fom().privilege,), "timestamp"),
    "retract": lambda _: ("#",),
    "request_federation_save": lambda random: (random.choice(LABELS),),
    "request_federation_restore": lambda random: (random.choice(LABELS),),
}
ADVANCES = [name for name in TIMED if "request" in name and "federation" not in name]


def timed_story(random: Random, federates: int) -> Iterator[Step]:
    """Calls of federates that all regulate, with one lookahead, and are constrained; with saves and restores that all
    do."""
    lookahead = float(random.randint(1, 3))
    for each in range(federates):
        yield each, "enable_time_regulation", (lookahead,)
    for each in range(federates):
        yield each, "enable_time_constrained", ()
    yield 0, "register_object_instance", (THING, "a")
    for _ in range(random.randint(2, 30)):
        name, who = random.choice(list(TIMED)), random.randrange(federates)
        yield who, name, TIMED[name](random)
        kind = name.rpartition("_")[2]
        if kind in ("save", "restore"):
            for each in random.sample(range(federates), federates):
                yield from [(each, "federate_save_begun", ())] * (kind == "save")
                done, given_up = f"federate_{kind}_complete", f"abort_federation_{kind}"
                yield each, random.choice((*[done] * 8, f"federate_{kind}_not_complete", given_up)), ()
        if name in ADVANCES and random.random() < 0.6:  # all, that time goes on
            for each in range(federates):
                yield each, name, (_time(random),)


def _by_attribute(heard: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Wants and offers of each attribute, whatever their tags, and saves that fail: whether somebody has resigned or
    could not save is not told beyond a bridge."""
    made: Counter[tuple[Any, ...]] = Counter()
    for each, number in heard.items():
        if each[0] in REPEATED:
            made.update({(*each[:2], attribute): number for attribute in each[2]})
        else:
            made[each[:2] if each[0] == "federation_not_saved" and each[2] != "ABORTED" else each] += number
    return made


class Comparison:
    """Whether federates of several federations are told what those of one are. What comes of a resignation while a save
    goes on is told beyond a bridge when the save is over. Who publishes may be offered what somebody has taken
    meanwhile beyond a bridge."""

    def __init__(self) -> None:
        self._owed: Counter[tuple[int, tuple[Any, ...]]] = Counter()
        self._was_saving = False

    def differences(self, step: Step, alone: Told, bridged: Told, *, is_saving: bool) -> list[str]:
        """Differences of one step; `is_saving`: one RTI is saving after it."""
        who, service, _ = step
        found = [] if alone.refused == bridged.refused else [f"refused: {alone.refused} and {bridged.refused}"]
        for place, (one, other) in enumerate(zip(alone.heard, bridged.heard, strict=True)):
            one, other = _by_attribute(one), _by_attribute(other)
            for each in one | other:
                less = one[each] - other[each]
                is_stale = each[0] == OFFER and (service in (JOIN, PUBLISH) or self._was_saving)
                if each[0] in REPEATED and (less > 0 or is_stale or one[each]):
                    continue
                if (service == RESIGN and is_saving and less > 0) or self._owed[place, each] >= -less > 0:
                    self._owed[place, each] += less
                elif less:
                    found.append(f"federate {place}: {each} {one[each]} and {other[each]} times")
        if service == RESIGN and not alone.refused:
            self._owed = Counter({key: number for key, number in self._owed.items() if key[0] != who})
        if not is_saving and self._owed.total():
            found.append(f"never told: {self._owed}")
        self._was_saving = is_saving
        return found


@pytest.mark.row("H-27", "H-28")
@pytest.mark.parametrize(
    ("sizes", "edges", "consensus", "stories", "without"),
    [
        (*each, stories, without) if part > 1 else pytest.param(*each, stories, without, marks=pytest.mark.slow)
        for part in (4, 1)
        for each, stories, without in (
            (((1, 2), ((0, 1),), "smart"), 500 // part, BEYOND_SMART),
            (((1, 1, 1), ((0, 1), (1, 2)), "smart"), 500 // part, BEYOND_SMART),
            (((2, 2), ((0, 1),), "add"), 1000 // part, ()),
            (((1, 1, 1), ((0, 1), (1, 2)), "add"), 1000 // part, ()),
        )
    ],
)
def test_bridged_is_told_as_one_rti_tells_it(
    sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...], consensus: str, stories: int, without: tuple[str, ...]
) -> None:
    # unowned: with others values are told that one RTI has forgotten
    policy = Solutions(consensus=consensus, ownership=f"allow-{consensus}", unowned="ignore")
    done: Counter[str] = Counter()
    for seed in range(min(stories, STORIES_MOST)):
        # Given the same story, told to one federation and to several, each step when the last one has gone everywhere
        number = sum(sizes)
        one, several = World((number,), (), Solutions(), Random(seed)), World(sizes, edges, policy, Random(seed))
        compared = Comparison()
        for step in story(Random(seed), number, without):
            alone, bridged = one.step(step), several.step(step)
            # Expect each federate to be refused and told the same after each step
            is_saving = bool(one.system.executions[0].saving.label)
            assert compared.differences(step, alone, bridged, is_saving=is_saving) == [], f"story {seed}: {step}"
            assert several.found == [], f"story {seed}: {step}"
            done[step[1]] += not alone.refused
    if stories > STORIES_MOST:
        return
    # and all services to have been used with success
    assert set(done) == set(CALLS) - set(without)
    assert [name for name, number in done.items() if not number] == []
    assert sum(done.values()) > 500


@pytest.mark.parametrize(("sizes", "edges"), [((1, 2), ((0, 1),)), ((1, 1, 1), ((0, 1), (1, 2)))])
def test_time_retractions_and_restores_are_told_as_one_rti_tells_them(
    sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...]
) -> None:
    done: Counter[str] = Counter()
    for seed in range(min(TIMED_MOST, STORIES_MOST)):
        # Given the same story with times, told to one federation and to several whose bridges couple time
        one = World((sum(sizes),), (), Solutions(), Random(seed))
        several = World(sizes, edges, Solutions(), Random(seed), couples=True)
        compared = Comparison()
        for step in timed_story(Random(seed), sum(sizes)):
            alone, bridged = one.step(step), several.step(step)
            is_saving = bool(one.system.executions[0].saving.label)
            # Expect each federate to be refused and told the same, and granted the same times
            assert compared.differences(step, alone, bridged, is_saving=is_saving) == [], f"story {seed}: {step}"
            assert several.found == [], f"story {seed}: {step}"
            done[step[1]] += not alone.refused
    if TIMED_MOST <= STORIES_MOST:
        assert [name for name in (*TIMED, "federate_restore_complete") if not done[name]] == []


@pytest.mark.parametrize("fails", ["federate_restore_not_complete", "abort_federation_restore"])
def test_after_a_restore_that_fails_all_is_as_it_was_before(fails: str) -> None:
    told = []
    for sizes, edges in (((2,), ()), ((1, 1), ((0, 1),))):
        world = World(sizes, edges, Solutions(), Random(1))
        # Given a save, and an instance that was registered behind it
        for each in (
            (0, "request_federation_save", ("S",)), *((who, "federate_save_begun", ()) for who in (0, 1)),
            *((who, "federate_save_complete", ()) for who in (0, 1)), (0, "register_object_instance", (THING, "a")),
        ):  # fmt: skip
            world.step(each)
        # When a restore fails; Expect its values to come as before, on both sides
        told.append([
            world.step(each)
            for each in (
                (0, "request_federation_restore", ("S",)), (0, "federate_restore_complete", ()), (1, fails, ()),
                (0, "update_attribute_values", ("@a", ((X, b"1"),), b"t")),
            )
        ])  # fmt: skip
        assert told[-1][-1].heard[1]["reflect_attribute_values", "a", ((X, b"1"),), b"t", None] == 1
    assert told[0] == told[1]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_deletion_that_is_retracted_is_retracted_on_both_sides(is_late: bool) -> None:
    # Given two federates that regulate, of which one is constrained, and an instance of the other one, deleted at 5
    told = []
    for sizes, edges in (((2,), ()), ((1, 1), ((0, 1),))):
        world = World(sizes, edges, Solutions(), Random(1), couples=True)
        steps: list[Step] = [
            (0, "enable_time_regulation", (1.0,)),
            (1, "enable_time_constrained", ()),
            (0, "register_object_instance", (THING, "a")),
            (0, "change_attribute_order_type", ("@a", (fom().privilege,), "timestamp")),
            (0, "delete_object_instance", ("@a", b"t", 5.0)),
            (1, "time_advance_request", (9.0,)),
        ]
        # When it is taken back, or time goes on; Expect the other one to be told what one RTI tells, and no deletion
        steps += [(0, "time_advance_request", (4.5,))] if is_late else []
        steps += [
            (0, "retract", ("#",)),
            (0, "time_advance_request", (10.0,)),
            (0, "update_attribute_values", ("@a", ((X, b"1"),), b"t")),
            (0, "delete_object_instance", ("@a", b"t", 12.0)),
            (0, "time_advance_request", (20.0,)),
            (1, "time_advance_request", (15.0,)),
            (0, "retract", ("#",)),
        ]
        told.append([world.step(each) for each in steps])
        # and what can't be taken back any more to be forgotten
        assert all(not bridge.deleted and not bridge.objects for bridge in world.system.bridges)
    assert told[0] == told[1]
    is_refused = [each.refused for each in told[0]]
    late = "MessageCanNoLongerBeRetracted"
    assert [each for each in is_refused if each] == ([late, "ObjectInstanceNotKnown", "ObjectInstanceNotKnown", late]
                                                     if is_late else [late])  # fmt: skip


def test_what_goes_in_receive_order_waits_for_no_time_beyond() -> None:
    # Given one who regulates, one who does not, and beyond somebody who is constrained and an instance that he knows
    told = []
    for sizes, edges in (((3,), ()), ((2, 1), ((0, 1),))):
        world = World(sizes, edges, Solutions(), Random(1), couples=True)
        for each in (
            (0, "enable_time_regulation", (1.0,)), (2, "enable_time_constrained", ()),
            (2, "enable_asynchronous_delivery", ()), (1, "register_object_instance", (THING, "a")),
            (0, "change_interaction_order_type", (CALL, "receive")),
        ):  # fmt: skip
            world.step(each)
        # When they send with times, in receive order; Expect it to be told at once, as one RTI tells it
        sent = [
            world.step(each).heard[2]
            for each in (
                (0, "send_interaction", (CALL, ((TEXT, b"2"),), b"t", 50.0)),
                (1, "send_interaction", (CALL, ((TEXT, b"3"),), b"t", 60.0)),
                (1, "update_attribute_values", ("@a", ((X, b"1"),), b"t", 60.0)),
                (1, "delete_object_instance", ("@a", b"t", 60.0)),
                (2, "time_advance_request", (5.0,)),
            )
        ]
        # and where they would wait for their time beyond, without it
        told.append([[one[:-1] if one[0] in TIMELESS else one for one in each] for each in sent])
    assert all(told[0][:-1])
    assert told[0] == told[1]


@pytest.mark.row("H-27", "H-33", "H-34", "H-39")
@pytest.mark.parametrize(
    ("sizes", "edges"),
    [((1,) * 4, ((0, 1), (1, 2), (2, 3))), ((1,) * 6, ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))),
     ((1,) * 4, ((0, 1), (0, 2), (0, 3)))],
)  # fmt: skip
def test_in_rows_and_stars_all_is_told_once_everywhere(
    sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...]
) -> None:
    everybody = range(len(sizes))
    for seed in range(20):
        world = World(sizes, edges, Solutions(), Random(seed))
        speaker = seed % len(sizes)
        # When somebody registers, updates, sends, and deletes; Expect all others to be told each once
        for step, name in (
            ((speaker, "register_object_instance", (THING, "a")), "discover_object_instance"),
            ((speaker, "update_attribute_values", ("@a", ((X, b"1"),), b"t")), "reflect_attribute_values"),
            ((speaker, "send_interaction", (CALL, ((TEXT, b"2"),), b"t")), "receive_interaction"),
            ((speaker, "delete_object_instance", ("@a", b"t")), "remove_object_instance"),
        ):  # fmt: skip
            told = world.step(step)
            assert told.refused == ""
            assert [{each[0]: number for each, number in heard.items()} for heard in told.heard] == [
                {} if place == speaker else {name: 1} for place in everybody
            ]
        # and a point and a save to take all
        world.step((speaker, "register_federation_synchronization_point", ("L", b"")))
        heard = [world.step((place, "synchronization_point_achieved", ("L",))).heard for place in everybody]
        assert all(told[("federation_synchronized", "L")] == 1 for told in heard[-1])
        assert not any(told for each in heard[:-1] for told in each)
        world.step((speaker, "request_federation_save", ("S",)))
        for place in everybody:
            world.step((place, "federate_save_begun", ()))
        heard = [world.step((place, "federate_save_complete", ())).heard for place in everybody]
        assert all(told[("federation_saved", "S")] == 1 for told in heard[-1])
        assert world.found == []


def test_who_joins_a_side_that_is_done_has_to_achieve_the_point_as_well() -> None:
    world = World((2, 1), ((0, 1),), Solutions(consensus="add"), Random(0))
    point, achieves = "register_federation_synchronization_point", "synchronization_point_achieved"
    # Given a side that has said that all have achieved a point, and a federate that joins it
    for step in ((1, RESIGN, ACTIONS[:1]), (0, point, ("L", b"")), (0, achieves, ("L",)), (1, JOIN, ())):
        assert world.step(step).refused == ""
    # When the other side is done; Expect nobody to be told that it is over before that federate is
    assert not any(told["federation_synchronized", "L"] for told in world.step((2, achieves, ("L",))).heard)
    assert all(told["federation_synchronized", "L"] for told in world.step((1, achieves, ("L",))).heard)


@pytest.mark.parametrize("consensus", ["smart", "add"])
@pytest.mark.parametrize("sizes", [(1, 2), (1, 1, 1)])
def test_whoever_could_not_do_what_a_point_asks_for_all_are_told_so(consensus: str, sizes: tuple[int, ...]) -> None:
    for fails in range(3):
        world = World(sizes, tuple((each, each + 1) for each in range(len(sizes) - 1)),
                      Solutions(consensus=consensus), Random(fails))  # fmt: skip
        world.step((2, "register_federation_synchronization_point", ("L", b"1")))
        # When one says so, at last or before others; Expect all to be told, on whichever side they are
        for order in (0, 1, 2):
            told = world.step((order, "synchronization_point_achieved", ("L", order != fails)))
        assert all(heard["synchronization_point_failed", "L"] == 1 for heard in told.heard)
        assert world.found == []


def test_what_is_divested_is_offered_again_when_who_waited_for_it_waits_no_more() -> None:
    acquire = "attribute_ownership_acquisition"
    told = []
    for sizes, edges in (((3,), ()), ((1, 1, 1), ((0, 1), (1, 2)))):
        world = World(sizes, edges, Solutions(consensus="add", ownership="allow-add"), Random(0))
        # Given an owner that divests what somebody has asked for; When that one cancels
        for step in (
            (0, "register_object_instance", (THING, "a")), (2, acquire, ("@a", (X,), b"t")),
            (0, "negotiated_attribute_ownership_divestiture", ("@a", (X,), b"t")),
            (2, f"cancel_{acquire}", ("@a", (X,))),
        ):  # fmt: skip
            last = world.step(step)
        # Expect others to be offered it, on all sides, and who takes it then to wait for the confirmation
        assert all(heard[OFFER, "a", (X,), b"t"] == 1 for heard in last.heard[1:])
        told.append(world.step((1, f"{acquire}_if_available", ("@a", (X,)))))
        assert told[-1].heard[0]["request_divestiture_confirmation", "a", (X,)] == 1
    assert told[0] == told[1]
