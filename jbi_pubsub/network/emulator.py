"""The emulator of a topology: it passes the datagrams of each member of a segment on to all others, as impaired as its
file says.

Rules:
- One thread does everything; others ask it. What is under way is bounded (FLYING_BYTES).
- What it sends to a multicast group comes from an address that nobody else can have, so that it knows its own, and of
  two emulators of the same group the second one fails.
- Losses are drawn for each datagram and receiver, here: netem is often not there, and drops trains of datagrams.
"""

from __future__ import annotations

import heapq
import os
import selectors
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from jbi_pubsub.core.errors import ConfigurationError, PortInUseError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.network.emulation import DOWN, UP, Link
from jbi_pubsub.network.impairments import ImpairedWay, SharedMedium
from jbi_pubsub.network.links.link import DATAGRAM_MOST
from jbi_pubsub.network.topology import (
    Address,
    ChangedTerms,
    EmulatedSegment,
    NetworkTopology,
    ScriptedChange,
    SegmentMember,
    address_of,
)

FLYING_BYTES: Final = 64 << 20
"""Bytes that are under way; what comes then is lost."""
BUFFER_BYTES: Final = 8 << 20
"""Asked of the system for each socket."""
DRAIN_MOST: Final = 64
LONGEST_WAIT: Final = 0.5
STOP_SECONDS: Final = 5.0
_MULTICAST_ALL: Final = 49
"""IP_MULTICAST_ALL, which Python has no name for (linux/in.h)."""


@dataclass(eq=False, slots=True)
class _MemberPort:
    """A member with its sockets."""

    segment: _RunningSegment
    name: str
    hears: socket.socket
    speaks: socket.socket
    to: Address
    is_group: bool
    medium: SharedMedium = field(default_factory=SharedMedium)
    ways: dict[str, ImpairedWay] = field(default_factory=dict)
    """Ways to this one, by sender."""

    def is_heard(self, source: Address) -> bool:
        """Whether a datagram from there is one of its nodes'."""
        return source[:2] != self.speaks.getsockname()[:2] if self.is_group else source[:2] == self.to


@dataclass(eq=False, slots=True)
class _RunningSegment:
    """A segment, and what has passed there."""

    name: str
    terms: ChangedTerms
    medium: SharedMedium = field(default_factory=SharedMedium)
    ports: list[_MemberPort] = field(default_factory=list)
    link: Link | None = None
    """The ways of a segment of TCP."""
    counts: Counter[str] = field(default_factory=Counter)


class NetworkEmulator:
    """An emulated network, from `start` to `stop`; `with` does both. Any thread."""

    def __init__(
        self, topology: NetworkTopology, *, seed: int | None = None,
        changed: Callable[[ScriptedChange], object] = lambda _change: None,
    ) -> None:  # fmt: skip
        """`seed`: another one than the file's; `changed` is told of each change of the script when it is done, by the
        emulator's thread. Raises ConfigurationError, PortInUseError."""
        self._seed = topology.seed if seed is None else seed
        self._script = deque(topology.changes())
        self._changed = changed
        self._asked: deque[ScriptedChange] = deque()
        self._flying: list[tuple[float, int, _MemberPort, bytes]] = []
        self._flying_bytes = self._count = 0
        self._begun = 0.0
        self._stopping = threading.Event()
        self._segments: dict[str, _RunningSegment] = {}
        self._thread = threading.Thread(target=self._run, name="network-emulator", daemon=True)
        with ExitStack() as stack:
            self._selector = stack.enter_context(selectors.DefaultSelector())
            wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, wake_in)
            stack.callback(os.close, self._wake_out)
            self._selector.register(wake_in, selectors.EVENT_READ)
            for name, segment in topology.segment.items():
                self._segments[name] = self._opened(name, segment, stack)
            self._sockets = stack.pop_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Pass datagrams on from now on; the script begins."""
        self._begun = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End it. What is under way is gone."""
        self._stopping.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        self._sockets.close()

    def change(self, segment: str, member: str = "", **terms: Any) -> None:
        """Change terms soon, beside the script. Raises ConfigurationError for a segment or member that is not there."""
        of = self._segments.get(segment)
        if of is None or (member and member not in {port.name for port in of.ports}):
            raise ConfigurationError(f"no {member or segment!r} is emulated", hint="Take a name of the topology")
        self._asked.append(ScriptedChange(at=self.seconds, segment=segment, member=member, **terms))
        self._wake()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun if self._begun else 0.0

    def status(self) -> dict[str, Any]:
        """Plain data: for each segment the datagrams that came (`received`), and what became of them at all receivers:
        `delivered`, `lost` (as the terms say), `doubled`, `no_room` (for the rate), `unsent` (by the system). Of TCP
        the connections and bytes."""
        return {
            "seconds": round(self.seconds, 3),
            "seed": self._seed,
            "under_way": len(self._flying),
            "segments": {name: self._counts(each) for name, each in self._segments.items()},
        }

    @staticmethod
    def _counts(segment: _RunningSegment) -> dict[str, int]:
        if segment.link is not None:
            passed = {f"bytes_{way}": segment.link.passed[way] for way in (UP, DOWN)}
            return {"connections": segment.link.connections, **passed}
        names = ("received", "delivered", "lost", "doubled", "no_room", "unsent", "strange", "bytes")
        return {name: segment.counts[name] for name in names}

    # -- opening --------------------------------------------------------------------------------------------------

    def _opened(self, name: str, segment: EmulatedSegment, stack: ExitStack) -> _RunningSegment:
        running = _RunningSegment(name, ChangedTerms(segment))
        if segment.tcp:
            running.link = link = stack.enter_context(Link(segment.host, seed=self._seed))
            for address in segment.tcp:
                link.to(address, plain=True)
            _shape(running)
        for member, each in segment.member.items():
            port = _opened_port(running, member, each, stack)
            running.ports.append(port)
            self._selector.register(port.hears, selectors.EVENT_READ, port)
        for port in running.ports:
            others = (other.name for other in running.ports if other is not port)
            port.ways = {other: ImpairedWay((self._seed, name, other, port.name)) for other in others}
        return running

    # -- on the thread --------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_out, b"\0")

    def _run(self) -> None:
        while not self._stopping.is_set():
            with guarded("network emulator"):
                self._step()

    def _step(self) -> None:
        """Wait for what comes, or is due, and do it."""
        now = self.seconds
        due = min([now + LONGEST_WAIT, *(each[0] for each in self._flying[:1]), *(each.at for each in self._next())])
        ready = self._selector.select(max(0.0, due - now))
        self._change()
        for key, _ in ready:
            if isinstance(key.data, _MemberPort):
                self._hear(key.data)
            else:
                os.read(key.fd, 4_096)
        self._deliver()

    def _next(self) -> list[ScriptedChange]:
        """The next change of the script, if there is one."""
        return [self._script[0]] if self._script else []

    def _change(self) -> None:
        while self._asked:
            self._do(self._asked.popleft())
        while self._script and self._script[0].at <= self.seconds:
            change = self._script.popleft()
            self._do(change)
            self._changed(change)

    def _do(self, change: ScriptedChange) -> None:
        segment = self._segments[change.segment]
        segment.terms.change(change)
        if segment.link is not None:
            _shape(segment)

    def _hear(self, port: _MemberPort) -> None:
        """Datagrams of a member's nodes set out for all others."""
        for _ in range(DRAIN_MOST):
            try:
                data, source = port.hears.recvfrom(DATAGRAM_MOST)
            except OSError:  # there is no more, or what we sent before came to nobody
                return
            if port.is_heard(source):
                self._pass(port, data, self.seconds)
            elif not port.is_group:
                port.segment.counts["strange"] += 1

    def _pass(self, sender: _MemberPort, data: bytes, now: float) -> None:
        segment, size = sender.segment, len(data)
        counts = segment.counts
        counts["received"] += 1
        counts["bytes"] += size
        through = segment.medium.passed(size, segment.terms.of(), now)
        for port in segment.ports:
            if port is sender:
                continue
            terms = segment.terms.of(port.name)
            left = None if through is None else port.medium.passed(size, terms, through)
            if left is None:
                counts["no_room"] += 1
                continue
            arrivals = port.ways[sender.name].arrivals(terms, left)
            counts["lost"] += not arrivals
            counts["doubled"] += len(arrivals) == 2
            for at in arrivals:
                self._fly(at, port, data)

    def _fly(self, at: float, port: _MemberPort, data: bytes) -> None:
        if self._flying_bytes + len(data) > FLYING_BYTES:
            port.segment.counts["no_room"] += 1
            return
        self._count += 1
        self._flying_bytes += len(data)
        heapq.heappush(self._flying, (at, self._count, port, data))

    def _deliver(self) -> None:
        while self._flying and self._flying[0][0] <= self.seconds:
            _, _, port, data = heapq.heappop(self._flying)
            self._flying_bytes -= len(data)
            try:
                port.speaks.sendto(data, port.to)
                port.segment.counts["delivered"] += 1
            except OSError:
                port.segment.counts["unsent"] += 1


def _shape(segment: _RunningSegment) -> None:
    """Give a link of TCP the terms of its segment."""
    assert segment.link is not None
    terms = segment.terms.of()
    segment.link.shape(bits_per_second=8 * terms.rate, delay=terms.delay, jitter=terms.jitter)
    (segment.link.down if terms.down else segment.link.up)()


def _opened_port(segment: _RunningSegment, name: str, member: SegmentMember, stack: ExitStack) -> _MemberPort:
    of = f"segment {segment.name}, member {name}"
    if member.group:
        group, port = address_of(member.group, of, is_group=True)
        octets = socket.inet_aton(group)
        own = f"127.{octets[1] | 128}.{octets[2]}.{octets[3]}", port  # of this group alone: see the rules
        speaks = _bound(own, of, stack)
        loopback = socket.if_nametoindex("lo")
        member_at = struct.pack("4s4si", octets, bytes(4), loopback)
        speaks.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member_at)
        hears = _bound((group, port), of, stack, is_shared=True)
        hears.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
        hears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member_at)
        return _MemberPort(segment, name, hears, speaks, (group, port), is_group=True)
    sock = _bound(address_of(member.at, of), of, stack)
    return _MemberPort(segment, name, sock, sock, address_of(member.node, of), is_group=False)


def _bound(address: Address, of: str, stack: ExitStack, *, is_shared: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
    sock.setblocking(False)
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
    if is_shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as exc:
        raise PortInUseError(
            f"{of}: nobody can listen at {address[0]}:{address[1]}: {exc.strerror or exc}",
            hint="End the other emulator of these addresses; only Linux answers at all of 127.0.0.0/8 unasked",
        ) from exc
    return sock
