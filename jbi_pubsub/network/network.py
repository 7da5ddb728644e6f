"""The networks of a node: one thread for all links and times, and one that delivers."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from operator import add
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import BackPressureError, ProtocolError
from jbi_pubsub.core.fault_counts import FaultCounts
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.sealing import DatagramSealing, Unsealed
from jbi_pubsub.network.datagram import DatagramKind, is_repair, kind_of
from jbi_pubsub.network.deliveries import NetworkDeliveries
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.waiting import LinkWaiter
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import NodePeer, PeerChange
from jbi_pubsub.network.side import SideTerms

log = logging.getLogger("jbi_pubsub.network")

PACED_SECONDS: Final = 0.02
"""Seconds of a link's rate that go at once, and that may wait in the kernel: then a slow one holds one datagram."""
BATCH: Final = 88
"""Datagrams that a link is given at once."""
GATHER_SECONDS: Final = 0.005
"""Seconds of a link's rate that go together where more waits than may go: so they are trains."""
RATE: Final = 5e6
HEADERS: Final = 28
"""Bytes that each datagram has before it on a line: of IPv4 and UDP."""
LONGEST_WAIT: Final = 0.5
BUSY_SECONDS: Final = 0.002
"""Until a busy link is tried again."""
AWAY_SECONDS: Final = 0.05
"""Until one is that takes nothing though nothing waits there: nobody is at its other end."""
STEP_MOST: Final = 16
"""Batches that a link is given before others are heard."""
STOP_SECONDS: Final = 5.0
DRAIN_LOOK: Final = 0.02
"""Seconds between two looks whether all has gone out."""


class NetworkLink(NamedTuple):
    """A link, what is said of its network, and its seal."""

    link: DatagramLink
    terms: SideTerms = SideTerms(RATE)
    seal: DatagramSealing = Unsealed()


@dataclass(slots=True)
class _LinkCounts:
    """Datagrams that went over a link, and their bytes."""

    sent: int = 0
    sent_bytes: int = 0
    repairs: int = 0
    received: int = 0
    received_bytes: int = 0

    def status(self) -> dict[str, Any]:
        """Plain data; repairs in percent of what was sent, and how many as `repaired`."""
        share = round(100 * self.repairs / self.sent, 1) if self.sent else 0.0
        return asdict(self) | {"repairs": share, "repaired": self.repairs}


@dataclass(slots=True)
class _HeldDatagrams:
    """Datagrams that a busy link has not taken, and how many objects end with each of them."""

    datagrams: list[bytes] = field(default_factory=list)
    objects: list[int] = field(default_factory=list)


class Network:
    """A node on its links. Any thread."""

    def __init__(
        self, me: bytes, epoch: int, links: Sequence[NetworkLink], deliver: Callable[[NodeMessage], None],
        settings: ExchangeSettings | None = None, *, peers_changed: Callable[[PeerChange], None] | None = None,
        streams: Callable[[NodeMessage], None] | None = None, idle: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """`deliver`, `peers_changed` and `idle` are called by a thread of their own, one after the other, and may wait;
        the second when another node is first heard, has been started anew, or has left, and when somebody else speaks
        under our id; the last from time to time. `streams` is given the messages of streams, by our own thread, and
        never waits; it may raise ProtocolError. None: they are nobody's."""
        uniform = random.Random().uniform  # noqa: S311  # delays, no secrets
        terms = [each.terms._replace(is_lossless=each.link.is_lossless) for each in links]
        self._exchange = Exchange(me, epoch, len(links), uniform, settings, terms)
        self._links = [each.link for each in links]
        self._seals = [each.seal for each in links]
        now = time.monotonic()
        self._waiter = LinkWaiter(self._links)
        rates = [each.rate for each in self._exchange.sides]
        self._buckets = [TokenBucket(rate, max(PACED_SECONDS * rate, 1_500), now) for rate in rates]
        self._deliveries = NetworkDeliveries(deliver, peers_changed, idle)
        self._streams = streams
        self._counts = [_LinkCounts() for _ in links]
        self._lock = threading.Lock()
        """Covers the exchange."""
        self._stopping = threading.Event()
        self._faults = FaultCounts()
        self.unsent = 0
        """Number of objects that had not gone out when the networks were left."""
        self._held = [_HeldDatagrams() for _ in links]
        self._gone: threading.Event | None = None
        """That all has gone out; None: nobody waits for that."""
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        """Be there from now on."""
        self._deliveries.start()
        self._thread.start()

    def say(self, message: NodeMessage, timeout: float = 0.0) -> None:
        """Say a message on all links. Raises BackPressureError when there is no room for so many seconds, or when we
        leave; OversizeError for one that nobody would put together. What is published for all waits until what goes
        before it will go soon."""
        end = time.monotonic() + timeout
        level = message.level if message.kind == DatagramKind.PUBLICATION and not message.to else None
        while not self._stopping.is_set():
            with self._lock:
                now = time.monotonic()
                wait = self._exchange.room(now, level)
                if not wait:
                    is_seen_to = all(map(self._exchange.has_outgoing, range(len(self._links))))
                    self._exchange.say(message, now)
                    break
            if now >= end:
                raise BackPressureError(
                    "the network has no room for a message",
                    hint=f"try again in {wait:.3g} seconds, or give more time", seconds=wait,
                )  # fmt: skip
            self._stopping.wait(min(wait, end - now))
        else:
            raise BackPressureError("the network is left", hint="Start the network again, then repeat the call")
        if not is_seen_to:  # else our thread looks again by itself
            self._waiter.wake()

    def peers(self) -> dict[bytes, NodePeer]:
        """Nodes that are heard, by their ids."""
        with self._lock:
            return self._exchange.facts(time.monotonic())

    def settled(self, origin: bytes, epoch: int) -> int:
        """The serial up to which nothing more is delivered of a node's log for all: it has been, or is over."""
        with self._lock:
            up_to, put = self._exchange.settled(origin, epoch), self._deliveries.expected
        return self._deliveries.settled(origin, epoch, up_to, put)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        peers = {origin.hex(): each.name for origin, each in self.peers().items()}
        with self._lock:
            sides = [each.status() for each in self._exchange.sides]
            held, has_twin = self._exchange.held, self._exchange.peers.has_twin
            cached, on_disk, failed = held.size, held.disk_size, held.failed
            faults = self._faults.counts()
            if expired := sum(each.expired for each in self._exchange.sides):
                faults["datagrams that expired before they could go"] = expired
            if given_up := self._exchange.assembler.given_up:
                faults["no room for parts of messages"] = given_up
            if failed:
                faults["blocks that the disk did not take or give"] = failed
        links = [
            {**link.status(), **counts.status(), **side, "rate": bucket.rate}
            for link, counts, bucket, side in zip(self._links, self._counts, self._buckets, sides, strict=True)
        ]
        return {
            "peers": peers, "links": links, "faults": faults, "cached_bytes": cached, "disk_bytes": on_disk,
            "twin": has_twin,
        }  # fmt: skip

    def stop(self, drain: float = 0.0) -> None:
        """Leave, when what was said has gone out, or after so many seconds. Safe to call twice."""
        if self._stopping.is_set():
            return
        if self._thread.is_alive():
            self._gone = gone = threading.Event()
            self._waiter.wake()
            gone.wait(drain)
        with self._lock:
            self._exchange.say(None, time.monotonic())
            queued = [sum(each.objects for each in side.queues) for side in self._exchange.sides]
            self.unsent = max(map(add, queued, (sum(each.objects) for each in self._held)))
        self._stopping.set()
        self._waiter.wake()
        self._deliveries.stop()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        for link in self._links:
            link.close()
        self._waiter.close()
        with self._lock:
            self._exchange.held.close()

    def _is_empty(self) -> bool:
        """Whether nothing waits to go out any more, here and in the links."""
        with self._lock:
            waits = any(each.datagrams for each in self._held) or any(
                map(self._exchange.has_outgoing, range(len(self._links)))
            )
        return not waits and not any(each.waiting() for each in self._links)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopping.is_set():
            with guarded("network"):
                pause = self._step(pause)
                if self._gone is not None:
                    pause = min(pause, DRAIN_LOOK)
                    if self._is_empty():
                        self._gone.set()

    def _step(self, pause: float) -> float:
        """Wait so many seconds at most, and do what is to be done; seconds to wait then."""
        self._receive(self._waiter.came(pause))
        now = time.monotonic()
        with self._lock:
            if self._exchange.due() <= now:
                self._exchange.tick(now)
            changes = self._exchange.peers.changes()
            self._deliveries.expect(len(changes))
            for side, bucket in zip(self._exchange.sides, self._buckets, strict=True):
                if side.rate != bucket.rate:
                    bucket.set(side.rate, max(PACED_SECONDS * side.rate, 1_500), now)
        if changes:
            self._deliveries.put(*changes)
        waits = [self._send(at) for at in range(len(self._links))]
        with self._lock:
            due = self._exchange.due()
        return max(0.0, min(LONGEST_WAIT, due - time.monotonic(), *waits))

    def _receive(self, came: Sequence[tuple[int, bytes]]) -> None:
        """Take datagrams, each with the position of its link, and put together what is to be delivered of them."""
        if not came:
            return
        found: list[NodeMessage] = []
        with self._lock:
            now = time.monotonic()
            for at, data in came:
                self._counts[at].received += 1
                self._counts[at].received_bytes += len(data)
                try:
                    if opened := self._opened(at, data):
                        found += self._exchange.received(at, opened, now)
                except ProtocolError as exc:
                    self._faults.note(exc.message)
            messages = [each for each in found if each.kind != DatagramKind.STREAM]
            self._deliveries.expect(len(messages))
        if messages:
            self._deliveries.put(*messages)
        for each in found:
            if each.kind == DatagramKind.STREAM and self._streams is not None:
                try:
                    self._streams(each)
                except ProtocolError as exc:
                    self._faults.note(exc.message)

    def _opened(self, at: int, data: bytes) -> bytes:
        """A datagram in clear; b"": it is not taken."""
        opened = self._seals[at].open(data)
        if not isinstance(opened, bytes):
            if opened is not None:
                self._faults.note(opened)
            return b""
        if self._deliveries.refuses(kind_of(opened)):
            self._faults.note("no room for what comes: it is asked for again")
            return b""
        return opened

    def _send(self, at: int) -> float:
        """Send what may go; seconds until more may."""
        link, bucket, counts, side = self._links[at], self._buckets[at], self._counts[at], self._exchange.sides[at]
        held, objects = self._held[at].datagrams, self._held[at].objects
        together = GATHER_SECONDS * bucket.rate
        for _ in range(STEP_MOST):
            now = time.monotonic()
            with self._lock:
                has_more = bool(held) or self._exchange.has_outgoing(at)
            if (gathers := side.burst.wait(now, is_waiting=has_more)) > 0:
                return gathers
            if not held and (lack := together - bucket.fill(now)) > 0:
                return lack / bucket.rate if has_more else LONGEST_WAIT
            together = 0.0
            given, waiting = sum(map(len, held)), link.waiting() if has_more else 0
            room = PACED_SECONDS * bucket.rate - waiting
            if has_more:
                room = min(room, side.link_room(waiting, waiting + given, now))
            if waiting and room <= 0:
                return min(LONGEST_WAIT / 10, max(BUSY_SECONDS, waiting / bucket.rate / 4))
            room -= given
            with self._lock:
                while (not held or (room > 0 and len(held) < BATCH)) and not bucket.ready_in(now):
                    before = side.queues.objects
                    data = self._seals[at].outgoing()
                    if data is None:
                        data = self._exchange.outgoing(at, now)
                        if data is None:
                            break
                        data = self._seals[at].seal(data)
                    bucket.take(len(data) + HEADERS, now)
                    held.append(data)
                    objects.append(side.queues.objects - before)
                    counts.sent += 1
                    counts.sent_bytes += len(data)
                    counts.repairs += is_repair(data)
                    room -= len(data)
                if not held:
                    return bucket.ready_in(now) if self._exchange.has_outgoing(at) else LONGEST_WAIT
            taken = link.send(held)
            del held[:taken], objects[:taken]
            if held:
                return BUSY_SECONDS if taken or waiting else AWAY_SECONDS
        return 0.0
