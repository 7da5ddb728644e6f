"""What federates of bridged federations are told is what one RTI would have told them: the same story is told to one
federation and to several with bridges between them, and all that each federate is told or refused is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import pytest

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
    "attribute_ownership_acquisition_notification",  # a tag: not all that RTIs know of it is told to bridges
}  # fmt: skip

Step = tuple[int, str, tuple[Any, ...]]
"""Which federate calls what; "@a" stands for the instance of that name."""


class Told(NamedTuple):
    """What came of a step: the refusal of the call, and what each federate was told."""

    refused: str
    heard: tuple[Counter[tuple[Any, ...]], ...]


class World:
    """Federates in one federation or in several, and everything they were told."""

    def __init__(
        self, sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...], policy: Solutions, random: Random
    ) -> None:
        every = [f"{'fghijk'[federation]}{number}" for federation, size in enumerate(sizes) for number in range(size)]
        declared = "".join(
            f"{each}: publish_object_class_attributes({THING}, ({X},));"
            f" subscribe_object_class_attributes({THING}, ({X},));"
            f" publish_interaction_class({CALL}); subscribe_interaction_class({CALL})\n"
            for each in every
        )
        self.setup: Scene
        self.system: System
        self.setup, self.system = built(
            sizes, edges, planned(policy), script.read(f"{declared}---\n"), options=RtiOptions(adds=True)
        )
        self.random = random
        self._names: list[dict[int, str]] = [{} for _ in every]
        self.found: list[Any] = []

    def step(self, step: Step) -> Told:
        """Somebody calls something; then all that can happen does, in some order."""
        who, service, arguments = step
        federation, _, handle = self.setup.federates[who]
        doing = SceneMove(self.setup, self.system)
        known = {name: instance for instance, name in self._names[who].items()}
        refused = ""
        try:
            there = tuple(known.get(each[1:], 9999) if str(each)[:1] == "@" else each for each in arguments)
            answer = doing.call(federation, handle, service, there)
            if service == "register_object_instance":
                self._names[who][answer] = arguments[1]
        except RtiError as exc:
            refused = type(exc).__name__
        else:
            self.system = doing.system()
        return Told(refused, self._rest())

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
        if name in _WITHOUT_LAST:
            arguments = arguments[:-1]
        return (name, *(tuple(sorted(each)) if isinstance(each, tuple) else each for each in arguments))


Choice = Callable[[Random], tuple[Any, ...]]


def _one(random: Random) -> tuple[Any, ...]:
    return f"@{random.choice(NAMES)}", (X,)


CALLS: dict[str, Choice] = {
    "register_object_instance": lambda random: (THING, random.choice(NAMES)),
    "update_attribute_values": lambda random: (_one(random)[0], ((X, b"1"),), b"t"),
    "delete_object_instance": lambda random: (_one(random)[0], b"t"),
    "send_interaction": lambda _: (CALL, ((TEXT, b"2"),), b"t"),
    "request_attribute_value_update": lambda random: (*_one(random), b"t"),
    "register_federation_synchronization_point": lambda random: (random.choice(LABELS), b"t"),
    "synchronization_point_achieved": lambda random: (random.choice(LABELS),),
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
}
SAVES = [name for name in CALLS if "save" in name]
REPEATED = {"request_attribute_ownership_release", "request_attribute_ownership_assumption"}
"""What an RTI asks again for each further federate that wants or offers the same: over a bridge it may ask once."""
STORIES = 500


def story(random: Random) -> Iterator[Step]:
    """Some calls of three federates, in half of the stories without a save, which keeps all from everything else."""
    names = [name for name in CALLS if name not in SAVES or random.random() < 0.5]
    yield 0, "register_object_instance", (THING, "a")
    for _ in range(random.randint(2, 25)):
        name, who = random.choice(names), random.randint(0, 2)
        yield who, name, CALLS[name](random)
        if name == "negotiated_attribute_ownership_divestiture" and random.random() < 0.5:  # else rarely with success
            yield random.randint(0, 2), "attribute_ownership_acquisition", CALLS[name](random)
            yield who, "confirm_divestiture", CALLS[name](random)
        if name == "request_federation_save" and random.random() < 0.5:
            for each in random.sample(range(3), 3):
                yield each, "federate_save_begun", ()
                yield each, "federate_save_complete" if random.random() < 0.9 else "federate_save_not_complete", ()


def but_repeated(told: Told) -> Told:
    """Without what may be told once less."""
    heard = ({each: number for each, number in one.items() if each[0] not in REPEATED} for one in told.heard)
    return told._replace(heard=tuple(map(Counter, heard)))


@pytest.mark.row("H-27", "H-28")
@pytest.mark.parametrize("consensus", ["smart", "add"])
@pytest.mark.parametrize(("sizes", "edges"), [((1, 2), ((0, 1),)), ((1, 1, 1), ((0, 1), (1, 2)))])
def test_bridged_is_told_as_one_rti_tells_it(
    sizes: tuple[int, ...], edges: tuple[tuple[int, int], ...], consensus: str
) -> None:
    policy = Solutions(consensus=consensus, unowned="ignore")  # with others values are told that one RTI has forgotten
    done: Counter[str] = Counter()
    for seed in range(STORIES):
        # Given the same story, told to one federation and to several, each step when the last one has gone everywhere
        random = Random(seed)
        one, several = World((3,), (), Solutions(), random), World(sizes, edges, policy, Random(seed))
        for step in story(Random(seed)):
            alone, bridged = one.step(step), several.step(step)
            # Expect each federate to be refused and told the same after each step
            assert but_repeated(bridged) == but_repeated(alone), f"story {seed}: {step}"
            for mine, other in zip(bridged.heard, alone.heard, strict=True):
                assert all(mine[each] <= other[each] for each in mine if each[0] in REPEATED), f"story {seed}: {step}"
            assert several.found == [], f"story {seed}: {step}"
            done[step[1]] += not alone.refused
    # and all services to have been used with success
    assert set(done) == set(CALLS)
    assert [name for name, number in done.items() if not number] == []
    assert sum(done.values()) > 500


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
