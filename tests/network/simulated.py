"""Networks in virtual time: segments that lose, delay and overtake datagrams, and nodes on them. Seeded."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, read
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.side import SideTerms

BUFFER_SECONDS = 0.05
"""Seconds of what a node takes that may wait for it."""


class Segment:
    """A medium that all its members share: so many bytes a second, each datagram to each member, or lost on its way."""

    def __init__(
        self, world: World, *, loss: float = 0.0, rate: float = 5e6, delay: float = 0.0025, overtaking: float = 0.0
    ) -> None:
        self._world = world
        self.loss, self.rate, self.delay, self.overtaking = loss, rate, delay, overtaking
        self.is_cut = self.is_lossless = self.reduced_relay = False
        self.burst_seconds = 0.0
        self.members: list[tuple[Node, int]] = []
        self.drops: Callable[[Node, bytes], bool] = lambda node, data: False  # noqa: ARG005
        """Whether a datagram does not come to a node, besides those that are lost by chance."""
        self._watched: list[list[Datagram]] = []
        self._is_busy = False
        self._turn = 0
        self.bytes = self.datagrams = 0

    def watch(self) -> list[Datagram]:
        """Datagrams that go over it from now on."""
        self._watched.append([])
        return self._watched[-1]

    def kick(self) -> None:
        """Let the next member send, if something waits."""
        if self._is_busy:
            return
        for step in range(len(self.members)):
            if self._has_sent(*self.members[(self._turn + step) % len(self.members)]):
                return

    def kick_by(self, node: Node, at: int) -> None:
        """Let one member send: while nobody does, nothing waits with others, to whom nothing has come."""
        if not self._is_busy:
            self._has_sent(node, at)

    def _has_sent(self, node: Node, at: int) -> bool:
        if not node.is_up or not node.may_send(at) or (node, at) not in self.members:
            return False
        data = node.exchange.outgoing(at, node.now)
        if data is None:
            return False
        self._turn = (self.members.index((node, at)) + 1) % len(self.members)
        self._send(node, data)
        return True

    def _send(self, sender: Node, data: bytes) -> None:
        world, chance = self._world, self._world.chance
        self._is_busy = True
        self.bytes += len(data)
        self.datagrams += 1
        for sent in self._watched:
            datagram = read(data)
            assert isinstance(datagram, Datagram)
            sent.append(datagram)
        end = world.now + len(data) / self.rate

        def over() -> None:
            self._is_busy = False
            self.kick()
            sender.arm()

        world.at(end, over)
        for node, at in self.members:
            if node is sender or self.is_cut or chance.random() < self.loss or self.drops(node, data):
                continue
            late = chance.uniform(0, self.overtaking) if self.overtaking and chance.random() < 0.5 else 0.0
            world.at(end + self.delay + late, lambda node=node, at=at: node.hear(at, data))  # type: ignore[misc]


class Node:
    """A node on some segments."""

    def __init__(
        self,
        world: World,
        number: int,
        segments: list[Segment],
        settings: ExchangeSettings,
        *,
        epoch: int = 1,
        clock: float = 0.0,
    ) -> None:
        """`clock`: seconds by which its clock differs from the world's."""
        self._world, self._clock = world, clock
        self.id = number.to_bytes(4) + bytes(12)
        chance = random.Random(world.chance.random())
        terms = [SideTerms(each.rate, each.is_lossless, each.reduced_relay, each.burst_seconds) for each in segments]
        self.exchange = Exchange(self.id, epoch, len(segments), chance.uniform, settings, terms)
        self.segments = segments
        self.heard: list[NodeMessage] = []
        self.said: set[bytes] = set()
        self.is_up = True
        self.most = float("inf")
        """Bytes a second that it takes; of more it loses what comes."""
        self._free_at = 0.0
        self._armed = float("inf")
        for at, segment in enumerate(segments):
            segment.members.append((self, at))
        self.arm()

    @property
    def now(self) -> float:
        """The time by its own clock."""
        return self._world.now + self._clock

    def say(self, body: bytes, mode: DatagramMode = DatagramMode.RELIABLE, **given: object) -> None:
        """Say a publication now."""
        self.said.add(body)
        message = NodeMessage(DatagramKind.PUBLICATION, mode, body)._replace(**given)
        self.exchange.say(message, self.now)
        self._kick()

    def hear(self, at: int, data: bytes) -> None:
        """A datagram has come."""
        now = self._world.now
        if self._free_at > now + BUFFER_SECONDS:
            return
        self._free_at = max(self._free_at, now) + len(data) / self.most
        if self.is_up:
            self.heard.extend(self.exchange.received(at, data, self.now))
            self._kick()
            self.arm()

    def may_send(self, at: int) -> bool:
        """Whether something may go there now; else it is looked again when what is gathered may."""
        has_more = self.exchange.has_outgoing(at)
        wait = self.exchange.sides[at].burst.wait(self.now, is_waiting=has_more)
        if wait:
            self._world.at(self._world.now + max(wait, 1e-6), self.segments[at].kick)
        return has_more and not wait

    def arm(self) -> None:
        """Have the next thing done when it is due."""
        due = max(self.exchange.due() - self._clock + 1e-9 * bool(self._clock), self._world.now)  # or earlier, rounded
        if self.is_up and due < self._armed:
            self._armed = due
            self._world.at(due, lambda: self._tick(due))

    def _tick(self, due: float) -> None:
        if due != self._armed:
            return
        self._armed = float("inf")
        if self.is_up:
            self.exchange.tick(self.now)
            self._kick()
            self.arm()

    def _kick(self) -> None:
        for at, segment in enumerate(self.segments):
            segment.kick_by(self, at)


class World:
    """What happens, in order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self._count = 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Have something happen."""
        self._count += 1
        heapq.heappush(self._events, (when, self._count, what))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Go on, until it is done, or that time has come; whether it is."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            if done():
                return True
        self.now = until
        return done()
