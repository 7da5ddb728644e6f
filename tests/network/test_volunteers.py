"""Volunteers that keep what is published elsewhere: their elections, alone and over networks in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
import pytest

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.node.bodies import VERSION, AssistanceBody, OfferBody
from jbi_pubsub.node.volunteers import (
    AGAIN,
    VOLUNTEER,
    PersistenceCoordinator,
    PersistenceVolunteer,
    VolunteerState,
)

from .simulated import Node, Segment, World

UID = "urn:jbi:registration"
SECONDS = 2.0
"""Longest delay of an offer."""
SETTINGS = ExchangeSettings(announce_seconds=2.0, node_timeout=10.0)
DAY = 86_400_000


class ElectingNode(Node):
    """A node that takes part in elections, as coordinator of what it has itself and as volunteer for all else."""

    def __init__(self, world: World, number: int, segments: list[Segment], volunteers: int = 5) -> None:
        super().__init__(world, number, segments, SETTINGS)
        self.world = world
        self.coordinator = PersistenceCoordinator(volunteers, SETTINGS.node_timeout)
        self.volunteer = PersistenceVolunteer(self.id, SECONDS, random.Random(world.chance.random()).uniform)
        self.offers = 0
        self.fetched = 0
        """Times that it began to keep the registration."""
        world.at(0.0, self._watch)

    def ask(self) -> None:
        """Want the registration kept."""
        self._speak(self.coordinator.ask(UID))

    @property
    def keeps(self) -> bool:
        """Whether it keeps it."""
        return UID in self.volunteer.kept()

    def hear(self, at: int, data: bytes) -> None:
        """A datagram has come."""
        known = len(self.heard)
        super().hear(at, data)
        for message in self.heard[known:]:
            if message.kind == DatagramKind.OFFER:
                offer = msgspec.msgpack.decode(message.body, type=OfferBody)
                if word := self.coordinator.offered(message.origin, offer.uid, self.world.now):
                    self._speak(word)
            else:
                word = msgspec.msgpack.decode(message.body, type=AssistanceBody)
                self.fetched += self.volunteer.told(message.origin, 1, word, self.world.now)
        self.world.at(max(self.world.now, min(self.volunteer.due(), 1e9)), self._offer)

    def _speak(self, word: AssistanceBody) -> None:
        kind = DatagramKind.ASSISTANCE if word.is_request else DatagramKind.ACCEPTED
        self.say(
            msgspec.msgpack.encode(word), DatagramMode.DURABLE, kind=kind, durability=bytes(16),
            update=word.number, expiration=DAY,
        )  # fmt: skip

    def _offer(self) -> None:
        if not self.is_up:
            return
        for to, offer in self.volunteer.offers(self.world.now):
            self.offers += 1
            self.say(msgspec.msgpack.encode(offer), kind=DatagramKind.OFFER, to=to, expiration=10_000)
            self.world.at(self.volunteer.due(), self._offer)

    def _watch(self) -> None:
        """As a node does from time to time: see who is there."""
        if self.is_up:
            for word in self.coordinator.look(frozenset(self.exchange.peers), self.world.now):
                self._speak(word)
        self.world.at(self.world.now + 1.0, self._watch)


def _election(
    seed: int, count: int, *, volunteers: int = 5, loss: float = 0.0, delay: float = 0.0025
) -> tuple[World, Segment, ElectingNode, list[ElectingNode]]:
    """A coordinator and others on one segment, which know each other."""
    world = World(seed)
    segment = Segment(world, loss=loss, delay=delay)
    nodes = [ElectingNode(world, number + 1, [segment], volunteers) for number in range(count + 1)]
    world.run(5.0)
    return world, segment, nodes[0], nodes[1:]


def _keeping(nodes: list[ElectingNode]) -> list[ElectingNode]:
    return [each for each in nodes if each.keeps and each.is_up]


def _agree(coordinator: ElectingNode, nodes: list[ElectingNode], count: int) -> Callable[[], bool]:
    """Whether so many keep it, which are those that the coordinator knows."""

    def is_so() -> bool:
        keeping = {each.id for each in _keeping(nodes)}
        return len(keeping) == count and keeping == set(coordinator.coordinator.volunteers(UID))

    return is_so


@pytest.mark.row("G-68", "G-97")
@pytest.mark.parametrize("loss", [0.0, 0.2])
@pytest.mark.parametrize("seeds", [3, pytest.param(7, marks=pytest.mark.slow)])
def test_of_30_volunteers_10_offer_at_most_and_5_keep_it(seeds: int, loss: float) -> None:
    offers = []
    for seed in range(seeds):
        world, _, coordinator, others = _election(seed, 30, loss=loss)

        coordinator.ask()
        world.run(12.0)

        assert _agree(coordinator, others, 5)()
        offers.append(sum(each.offers for each in others))
    assert 5 <= median(offers) <= 10


@pytest.mark.row("G-68")
def test_as_many_keep_it_as_there_are() -> None:
    world, _, coordinator, others = _election(1, 3)

    coordinator.ask()
    world.run(10.0)

    assert _agree(coordinator, others, 3)()


def test_whoever_comes_later_offers_if_more_are_needed() -> None:
    world, segment, coordinator, others = _election(2, 3)
    coordinator.ask()
    world.run(20.0)

    others += [ElectingNode(world, 100 + number, [segment]) for number in range(5)]
    world.run(40.0)

    assert _agree(coordinator, others, 5)()


@pytest.mark.row("G-99")
def test_who_is_killed_is_replaced() -> None:
    world, _, coordinator, others = _election(3, 8)
    coordinator.ask()
    assert world.run(20.0, _agree(coordinator, others, 5))

    for each in _keeping(others)[:2]:
        each.is_up = False
    killed = world.now

    is_back = world.run(killed + SETTINGS.node_timeout + 2 * SECONDS + 5.0, lambda: len(_keeping(others)) == 5)
    assert is_back
    assert _agree(coordinator, others, 5)()
    assert sum(each.fetched for each in others) == 7, "who comes in fetches, and nobody else"


def test_those_who_were_cut_off_are_released_when_they_are_back() -> None:
    world, segment, coordinator, others = _election(4, 8)
    coordinator.ask()
    assert world.run(20.0, _agree(coordinator, others, 5))
    away = _keeping(others)[:2]
    members, segment.members = segment.members, [each for each in segment.members if each[0] not in away]
    assert world.run(60.0, lambda: len(_keeping(others)) == 7), "two do not know that they are not needed"

    segment.members = members

    assert world.run(80.0, _agree(coordinator, others, 5))
    assert not _keeping(away)


@pytest.mark.parametrize("begins", [0.001, 0.2, 0.5, 1.0, 1.5, 3.0])
@pytest.mark.parametrize("seconds", [0.5, 5.0, 30.0])
def test_a_network_that_is_cut_at_any_step_comes_to_five_when_it_is_whole(begins: float, seconds: float) -> None:
    world, segment, coordinator, others = _election(5, 8, loss=0.05)
    coordinator.ask()
    start = world.now

    def cut() -> None:
        segment.is_cut = not segment.is_cut

    world.at(start + begins, cut)
    world.at(start + begins + seconds, cut)
    world.run(start + begins + seconds + 40.0)

    assert _agree(coordinator, others, 5)()


@pytest.mark.parametrize("begins", [0.001, 0.3, 1.0, 3.0])
def test_a_coordinator_that_dies_leaves_those_whom_it_accepted(begins: float) -> None:
    world, _, coordinator, others = _election(6, 12)
    coordinator.ask()
    world.run(world.now + begins)
    coordinator.is_up = False
    accepted = set(coordinator.coordinator.volunteers(UID))

    world.run(world.now + 30.0)

    assert {each.id for each in _keeping(others)} == accepted
    assert sum(each.offers for each in others) <= 12 * 30 / (5 * SECONDS) + 12, "offers go on, seldom"


def test_a_coordinator_that_is_back_has_those_again_who_kept_it_before() -> None:
    """Volunteers of before offer first, so that nobody needs to fetch what others have."""
    chance = random.Random(7)
    volunteers = {bytes((n,)) * 16: PersistenceVolunteer(bytes((n,)) * 16, SECONDS, chance.uniform) for n in range(12)}
    coordinator_id = b"c" * 16

    def elected(epoch: int, now: float) -> set[bytes]:
        coordinator = PersistenceCoordinator(5, 10.0)
        word: AssistanceBody | None = coordinator.ask(UID)
        while word is not None and word.needed:
            for each in volunteers.values():
                each.told(coordinator_id, epoch, word, now)
            now = min(each.due() for each in volunteers.values())
            word = next(
                word
                for origin, each in volunteers.items() for _, offer in each.offers(now)
                if (word := coordinator.offered(origin, offer.uid, now)) is not None
            )  # fmt: skip
        assert word is not None
        for each in volunteers.values():
            each.told(coordinator_id, epoch, word, now)
        return {origin for origin, each in volunteers.items() if UID in each.kept()}

    before = elected(1, 0.0)

    assert elected(2, 100.0) == before
    assert len(before) == 5


def test_words_that_come_late_or_of_others_change_nothing() -> None:
    volunteer = PersistenceVolunteer(b"v" * 16, SECONDS, lambda _, most: most)
    coordinator = PersistenceCoordinator(1, 10.0)
    request = coordinator.ask(UID)
    accepted = coordinator.offered(b"v" * 16, UID, 0.0)
    assert accepted is not None

    assert volunteer.told(b"c" * 16, 1, accepted, 0.0)
    assert not volunteer.told(b"c" * 16, 1, request, 0.0)
    assert not volunteer.told(b"x" * 16, 9, msgspec.structs.replace(request, number=9), 0.0)

    assert volunteer.kept() == [UID]
    assert volunteer.due() == float("inf")


@pytest.mark.row("G-69")
def test_an_offer_is_made_within_its_delay_and_again_seldom_while_nobody_answers() -> None:
    volunteer = PersistenceVolunteer(b"v" * 16, SECONDS, random.Random(1).uniform)
    volunteer.told(b"c" * 16, 1, PersistenceCoordinator(1, 10.0).ask(UID), 0.0)

    made: list[tuple[bytes, OfferBody]] = []
    times = [0.0]
    for _ in range(3):
        times.append(volunteer.due())
        made += volunteer.offers(times[-1])

    assert [(to, each.uid) for to, each in made] == [(b"c" * 16, UID)] * 3
    assert len({each.nonce for _, each in made}) == 3
    first, *others = (after - before for before, after in pairwise(times))
    assert 0.0 <= first <= SECONDS
    assert all(AGAIN * SECONDS <= each <= (AGAIN + 1) * SECONDS for each in others)


def test_of_what_has_ended_nobody_is_needed() -> None:
    coordinator = PersistenceCoordinator(5, 10.0)
    coordinator.ask(UID)
    volunteer = PersistenceVolunteer(b"v" * 16, SECONDS, lambda _, most: most)

    word = coordinator.end(UID)

    assert word is not None
    volunteer.told(b"c" * 16, 1, word, 0.0)
    assert volunteer.state(UID)[1] is VolunteerState.SILENT
    assert coordinator.offered(b"v" * 16, UID, 0.0) is None
    assert coordinator.end(UID) is None


def test_one_that_was_accepted_and_is_never_seen_is_replaced() -> None:
    coordinator = PersistenceCoordinator(1, patience=10.0)
    coordinator.ask(UID)
    coordinator.offered(b"v" * 16, UID, 0.0)

    assert not list(coordinator.look((), 9.0))
    (word,) = coordinator.look((), 10.0)

    assert (word.needed, word.accepted, word.is_request) == (1, (), True)


def test_lives_walk_every_row_of_the_table(walked_rows: Any) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        volunteer = PersistenceVolunteer(b"v" * 16, SECONDS, chance.uniform)
        now, number = 0.0, 0
        for _ in range(60):
            now += chance.uniform(0, 4.0)
            match chance.randrange(5):
                case 0:
                    list(volunteer.offers(now))
                case 1 if chance.random() < 0.3:
                    volunteer.over(UID)
                case _:
                    number += 1
                    accepted = (b"v" * 16,) if chance.random() < 0.3 else ()
                    word = AssistanceBody(VERSION, UID, number, chance.randrange(2), accepted, False)
                    volunteer.told(b"c" * 16, 1, word, now)
            is_open = volunteer.state(UID)[1] in (VolunteerState.WAITING, VolunteerState.OFFERED)
            assert is_open == (volunteer.due() < float("inf"))
    assert walked_rows.left(VOLUNTEER) == set()


@pytest.mark.row("G-172")
@pytest.mark.parametrize("begins", [0.0, 0.01, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("seconds", [0.5, 20.0])
def test_deletions_come_to_all_whenever_the_network_falls_apart(begins: float, seconds: float) -> None:
    # Given six nodes on two segments that lose, and one that was away all the time
    world = World(8)
    near, far = Segment(world, loss=0.1), Segment(world, loss=0.1)
    first = Node(world, 1, [near], SETTINGS)
    others = [Node(world, 2, [near, far], SETTINGS)]
    others += [Node(world, number, [near if number % 2 else far], SETTINGS) for number in range(3, 7)]
    world.run(5.0)

    def cut(*segments: Segment) -> None:
        for each in segments:
            each.is_cut = not each.is_cut

    # When deletions are said, and the network falls apart meanwhile
    for number in range(10):
        body = b"%d" % number + bytes(20_000)
        first.say(
            body, DatagramMode.DURABLE, kind=DatagramKind.DELETION, durability=b"%d" % number * 16, expiration=DAY
        )
    world.at(world.now + begins, lambda: cut(near, far))
    world.at(world.now + begins + seconds, lambda: cut(near, far))
    world.run(world.now + begins + seconds + 20.0)
    others.append(Node(world, 9, [far], SETTINGS))
    world.run(world.now + 10.0)
    # Expect each to have heard each, once
    assert [len(each.heard) for each in others] == [10] * 6
    assert {len({message.body for message in each.heard}) for each in others} == {10}
