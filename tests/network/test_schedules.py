"""Networks by chance: whatever comes and goes, no message comes twice or too late, nothing is called settled that comes
yet, tables stay small, and what was connected long enough has all."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from extent import examples

from jbi_pubsub.network.datagram import DatagramKind, DatagramMode, kind_of
from jbi_pubsub.network.exchange import ExchangeSettings
from jbi_pubsub.network.message import NodeMessage

from .simulated import Node, Segment, World

SCHEDULES = 40
MANY = 2_000
QUIET = 60.0
"""Seconds after the last event: by then all is there."""
LATE = 3.0
"""Seconds by which a message may come after its life has ended: it was on its way, and in the queues of relays."""
LOGS = 60
BLOCK = 1_360


class WatchedNode(Node):
    """A node whose rules are looked at whenever something comes."""

    ends: dict[bytes, float]
    past: frozenset[bytes] = frozenset()
    """Bodies that it had said before it was started anew."""

    def hear(self, at: int, data: bytes) -> None:
        """See Node."""
        exchange = self.exchange
        if kind_of(data) in (DatagramKind.REQUEST, DatagramKind.ANNOUNCEMENT):  # by which no message is complete
            count = len(self.heard)
            super().hear(at, data)
            assert len(self.heard) == count
            self._bounded()
            return
        before = {log_id: log.settled for log_id, log in exchange.logs.items() if log_id.origin != self.id}
        given_up = {log_id: log.given_up.top for log_id, log in exchange.logs.items()}
        count = len(self.heard)
        super().hear(at, data)
        for message in self.heard[count:]:
            self._check(message, before, given_up)
        self._bounded()
        if len(self.heard) > count:
            bodies = [each.body for each in self.heard]
            assert len(bodies) == len(set(bodies)), "a message came twice"

    def _bounded(self) -> None:
        assert len(self.exchange.logs) <= LOGS
        assert sum(len(here.missing) for side in self.exchange.sides for here in side.recovery._here.values()) < 4_000

    def _check(self, message: NodeMessage, before: dict[object, int], given_up: dict[object, int]) -> None:
        assert self._world.now <= self.ends[message.body] + LATE, "a message came after its life"
        log_id = next((each for each in before if each[:2] == (message.origin, message.epoch)), None)  # type: ignore[index]
        if log_id is not None and len(message.body) < BLOCK and message.serial > given_up[log_id]:
            assert message.serial > before[log_id], "a message came that was settled"


class Schedule:
    """Segments that are connected by nodes, some of which leave, come back and are cut off while messages are said."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.world = world = World(seed)
        self.ends: dict[bytes, float] = {}
        self.segments = [
            Segment(
                world, loss=chance.choice([0.0, 0.02, 0.1, 0.25]), rate=chance.choice([2e4, 1e6, 5e6]),
                delay=chance.choice([0.0005, 0.005, 0.2]), overtaking=chance.choice([0.0, 0.0, 0.01]),
            )
            for _ in range(chance.randint(1, 4))
        ]  # fmt: skip
        self.settings = ExchangeSettings(
            cache_bytes=chance.choice([60_000, 4 << 20, 1 << 28]), reorder_seconds=0.01, announce_seconds=2.0
        )
        self.nodes: list[WatchedNode] = []
        for at in range(len(self.segments)):
            self._node(at + 1, self.segments[max(0, at - 1) : at + 1])
        for number in range(chance.randint(1, 6)):
            self._node(100 + number, [chance.choice(self.segments)])
        self.leaves = [each for each in self.nodes if each.id[3] >= 100]

    def _node(self, number: int, segments: list[Segment], epoch: int = 1) -> WatchedNode:
        node = WatchedNode(self.world, number, segments, self.settings, epoch=epoch)
        node.ends = self.ends
        self.nodes.append(node)
        return node

    def say(self) -> None:
        """Have one of them say something."""
        chance = self.chance
        node = chance.choice([each for each in self.nodes if each.is_up])
        life = chance.choice([3_000, 3_600_000, 3_600_000])
        body = b"%06d" % len(self.ends) + chance.randbytes(chance.choice([10, 1_000, 5_000]))
        self.ends[body] = self.world.now + life / 1000
        level = chance.choice([0, 0, 1, 5])
        if chance.random() < 0.2:
            key = chance.choice([b"a", b"b"]) * 16
            node.say(
                body, DatagramMode.DURABLE, expiration=3_600_000, durability=key, update=len(self.ends), level=level
            )
            self.ends[body] = float("inf")
        else:
            node.say(body, expiration=life, level=level)

    def cut(self) -> None:
        """Cut a segment off for some time."""
        segment = self.chance.choice(self.segments)

        def toggle() -> None:
            segment.is_cut = not segment.is_cut

        toggle()
        self.world.at(self.world.now + self.chance.uniform(0, 8.0), toggle)

    def leave(self) -> None:
        """Have a node leave, that does not connect others, and come back perhaps as one that knows nothing."""
        node = self.chance.choice(self.leaves)
        if not node.is_up:
            return
        node.is_up = False
        if self.chance.random() < 0.7:

            def come_back() -> None:
                number = int.from_bytes(node.id[:4])
                again = self._node(number, node.segments, node.exchange.epoch + 1)
                again.past = node.past | node.said
                self.leaves.append(again)

            self.leaves.remove(node)
            self.world.at(self.world.now + self.chance.uniform(0, 15.0), come_back)
        if all(each.is_up is False for each in self.leaves):
            self.leaves.append(self._node(200 + len(self.nodes) % 50, [self.chance.choice(self.segments)]))

    def run(self, quiet: float = QUIET) -> None:
        """Have it happen, and look at it in the end."""
        chance, world = self.chance, self.world
        at = 3.0
        for _ in range(chance.randint(5, 60)):
            at += chance.expovariate(4.0)
            draw = chance.random()
            what: Callable[[], None] = self.say if draw < 0.85 else self.cut if draw < 0.93 else self.leave
            world.at(at, what)
        world.run(at + 25.0)
        assert not any(segment.is_cut for segment in self.segments)
        world.run(at + 25.0 + quiet)
        for node in self.nodes:
            if node.is_up:
                self._look(node)

    def _look(self, node: WatchedNode) -> None:
        exchange = node.exchange
        assert all(not side.queues.repairs and not side.queues.waiting for side in exchange.sides), (
            "queues are not empty"
        )
        if self.settings.cache_bytes < 1 << 20:
            return
        heard = {each.body for each in node.heard}
        newest: dict[tuple[bytes, bytes], int] = {}
        for message in node.heard:
            if message.durability:
                key = (message.origin, message.durability)
                newest[key] = max(newest.get(key, 0), message.update)
        for origin in self.nodes:
            if not origin.is_up or origin is node:
                continue
            for body in origin.said:
                if self.ends[body] == float("inf"):
                    continue
                lives = self.ends[body] > self.world.now
                assert not lives or body in heard or body in node.past, "a message is missing"
        for origin in self.nodes:
            for key, update in _newest(origin).items() if origin.is_up and origin is not node else ():
                assert newest.get((origin.id, key), 0) == update, "an update is missing"


def _newest(node: Node) -> dict[bytes, int]:
    """The last update of each durable message of a node."""
    own = node.exchange._own.durables._own
    return {key: each.message.update for key, each in own.items()}


@pytest.mark.row("G-186")
@pytest.mark.parametrize("seed", range(examples(SCHEDULES)))
def test_what_was_connected_long_enough_has_all_and_once(seed: int) -> None:
    Schedule(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(SCHEDULES, SCHEDULES + MANY, 100))
def test_two_thousand_networks_by_chance(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            Schedule(seed).run(3 * QUIET)  # one of a thousand is on links that lose a quarter, at 20,000 bytes a second
        except AssertionError as exc:
            raise AssertionError(f"schedule {seed}") from exc


@pytest.mark.row("G-08", "G-17")
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_a_thousand_nodes_are_one_network() -> None:
    # Given a thousand nodes on twenty networks, with a node between each two that follow each other
    world = World(1)
    segments = [Segment(world, loss=0.01, rate=5e6, delay=0.0005) for _ in range(20)]
    settings = ExchangeSettings(announce_seconds=60.0, node_timeout=300.0, reorder_seconds=0.002)
    nodes = [Node(world, at + 1, segments[at : at + 2], settings) for at in range(19)]
    nodes += [Node(world, 100 + at, [segments[at % 20]], settings) for at in range(981)]
    world.run(5.0)
    # When ten of them say something, expect it at all others
    for node in nodes[::100]:
        node.say(node.id + bytes(500), expiration=3_600_000)
    assert world.run(60.0, lambda: all(len(each.heard) + len(each.said) == 10 for each in nodes))
