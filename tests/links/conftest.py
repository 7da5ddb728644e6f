"""Bad links: a relay that stands between one party and the rest, and what is needed to see who survives it.

Everything a party behind a link is told to be at 127.0.0.1 it finds at the link's own address, another one of
loopback, with the same port: the relay there rewrites addresses in what the lookup service says. Both planes go
through it, and nothing in the product has to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import re
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

import msgspec
import pytest

from jbi_pubsub import Config, InfoObject, SubscriberAdapter
from jbi_pubsub.core.config import LeaseSection

T = TypeVar("T")

UP, DOWN = "up", "down"
"""From the party behind the link, and to it."""

HERE: Final = b"127.0.0.1"
SEGMENT_BYTES: Final = 52
"""Headers of a TCP segment: IPv4 20, TCP 20, timestamps 12."""

EXPORTS: Final = re.compile(
    rb"(?:registrar|delegate|subscriptions|status|lookup)[^a-z]{1,8}"
    rb"(describe|register|renew|cancel|notify|lookup|open_events|open_publications|open_deliveries|open|connect"
    rb"|disconnect|unregister|subscribe|unsubscribe|close|status)(?![a-z_])"
)
"""The method in a request of the control plane."""


class _Pipe:
    """One relayed connection."""

    def __init__(self, port: int, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.port = port
        self.near = near
        self.far = far
        self.kind = ""
        """Which call is under way, or `data`."""
        self.asked = False

    def segments(self) -> int:
        """Segments that both ends have sent: data, acknowledgements, keepalives."""
        return sum(_segments_received(end.get_extra_info("socket")) for end in (self.near, self.far))

    def abort(self) -> None:
        self.near.transport.abort()
        self.far.transport.abort()


class Link:
    """A link of its own for one party. Change `bits_per_second` (each way, 0: any), `delay` and `jitter` (seconds,
    one way) at any time. `seed` decides the jitter."""

    def __init__(self, host: str, *, seed: int = 0) -> None:
        self.host = host
        self.bits_per_second = 0.0
        self.delay = 0.0
        self.jitter = 0.0
        self.connections = 0
        """Relayed so far."""
        self.cuts = 0
        """Made so far by `cut_after`."""
        self.passed: Counter[str] = Counter()
        """Bytes by direction."""
        self.traffic: Counter[tuple[int, str]] = Counter()
        """Bytes by port and call (or `data`)."""
        self.answers: Counter[tuple[int, str]] = Counter()
        """Answered calls by port and call."""
        self._random = random.Random(seed)
        self._positions: dict[str, deque[int]] = {UP: deque(), DOWN: deque()}
        self._free = {UP: 0.0, DOWN: 0.0}
        self._pipes: set[_Pipe] = set()
        self._segments = 0
        self._refusing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._clear = asyncio.Event()
        self._clear.set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"asyncio-link-{host}", daemon=True)
        self._thread.start()

    def to(self, address: str) -> str:
        """The address behind the link at which `address` (at 127.0.0.1) is reached."""
        port = int(address.rpartition(":")[2])
        served = functools.partial(self._accept, port)
        self._servers.append(self._run(asyncio.start_server(served, self.host, port, limit=4096)))
        return f"{self.host}:{port}"

    def behind(self, config: Config, *others: str) -> Config:
        """`config` for the party behind the link: reaches its lookup services, and `others`, through it only."""
        for address in others:
            self.to(address)
        locators = tuple(self.to(address) for address in config.lookup.locators)
        return msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, locators=locators))

    def cut(self) -> None:
        """End all connections; new ones are possible at once."""
        self._do(self._abort_all)

    def cut_after(self, direction: str, *positions: int) -> None:
        """End all connections each time when so many bytes more, from now, have passed in that direction."""

        def note() -> None:
            base = self.passed[direction]
            self._positions[direction] = deque(sorted(base + position for position in set(positions)))

        self._do(note)

    def down(self, *, silent: bool = False) -> None:
        """No bytes pass from now on: connections end and new ones are refused; `silent`: they only hang."""

        def go() -> None:
            if silent:
                self._clear.clear()
            else:
                self._refusing = True
                self._abort_all()

        self._do(go)

    def up(self) -> None:
        """Bytes pass again."""

        def go() -> None:
            self._refusing = False
            self._clear.set()

        self._do(go)

    def wire_bytes(self) -> int:
        """Bytes so far with the headers of all segments, acknowledgements and keepalives included."""

        async def count() -> int:
            return self._segments + sum(pipe.segments() for pipe in self._pipes)

        return sum(self.passed.values()) + SEGMENT_BYTES * self._run(count())

    def close(self) -> None:
        """End all connections and the thread."""

        async def end() -> None:
            for server in self._servers:
                server.close()
            self._abort_all()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5.0)
        self._loop.close()

    # -- on the loop's thread -----------------------------------------------------------------------------------

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10.0)

    def _do(self, what: Callable[[], None]) -> None:
        async def call() -> None:
            what()

        self._run(call())

    def _abort_all(self) -> None:
        for pipe in self._pipes:
            pipe.abort()

    def _accept(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        task = self._loop.create_task(self._serve(port, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HERE.decode(), port, limit=4096)
        except OSError:
            writer.transport.abort()
            return
        pipe = _Pipe(port, writer, far_writer)
        self.connections += 1
        self._pipes.add(pipe)
        ways = [
            self._loop.create_task(way)
            for way in (
                *self._way(pipe, reader, far_writer, UP),
                *self._way(pipe, far_reader, writer, DOWN),
            )
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._segments += pipe.segments()
            self._pipes.discard(pipe)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            pipe.abort()

    def _way(
        self, pipe: _Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """Reading and writing of one direction; whichever ends first ends the connection."""
        flying: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def read() -> None:
            while True:
                data = await reader.read(512 if self.bits_per_second else 1 << 16)
                due = self._loop.time() + self.delay + self.jitter * self._random.random()
                await flying.put((due, data))
                if not data:
                    await asyncio.Event().wait()  # the writing ends it, when it has come so far

        async def write() -> None:
            tail = b""
            while True:
                due, data = await flying.get()
                if not data:
                    return
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._clear.wait()
                if direction == DOWN:
                    tail, data = _rewritten(tail, data, self.host.encode())
                for piece in self._pieces(data):
                    await self._pay(direction, len(piece))
                    if not await self._pass(pipe, writer, direction, piece):
                        return

        return read(), write()

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """On a slow link connections take turns with small packets."""
        size = 256 if self.bits_per_second else len(data)
        return (data[at : at + size] for at in range(0, len(data), size))

    async def _pay(self, direction: str, size: int) -> None:
        if self.bits_per_second:
            now = self._loop.time()
            self._free[direction] = max(now, self._free[direction]) + size * 8 / self.bits_per_second
            await asyncio.sleep(self._free[direction] - now)
            await self._clear.wait()

    async def _pass(self, pipe: _Pipe, writer: asyncio.StreamWriter, direction: str, data: bytes) -> bool:
        """False: the connection was cut."""
        positions = self._positions[direction]
        cut = bool(positions) and positions[0] <= self.passed[direction] + len(data)
        if cut:
            data = data[: positions.popleft() - self.passed[direction]]
        self._note(pipe, direction, data)
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            return False
        if cut:
            self.cuts += 1
            # what was passed must still arrive: a FIN for the receiver, the end for everybody else
            with contextlib.suppress(OSError):
                writer.write_eof()
            for other in self._pipes - {pipe}:
                other.abort()
            return False
        return True

    def _note(self, pipe: _Pipe, direction: str, data: bytes) -> None:
        self.passed[direction] += len(data)
        if direction == UP:
            if data[:4] == b"JBI\n" and data[5:6] == b"D":
                pipe.kind = "data"
            found = EXPORTS.search(data) if pipe.kind != "data" else None
            if found:
                pipe.kind = found[1].decode()
                pipe.asked = True
        elif pipe.asked and data:
            pipe.asked = False
            self.answers[pipe.port, pipe.kind] += 1
        self.traffic[pipe.port, pipe.kind] += len(data)


def _rewritten(tail: bytes, data: bytes, host: bytes) -> tuple[bytes, bytes]:
    """`data` with the addresses rewritten that end in it; `tail` is what came just before. Lengths stay."""
    assert len(host) == len(HERE)
    assert host[:-1] == HERE[:-1]
    whole = tail + data
    return whole[-len(HERE) + 1 :], whole.replace(HERE, host)[len(tail) :]


def _segments_received(sock: Any) -> int:
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except OSError:
        return 0
    return int(struct.unpack_from("I", info, 140)[0]) if len(info) >= 144 else 0  # tcpi_segs_in


# -- what the tests use -----------------------------------------------------------------------------------------


@pytest.fixture
def new_link() -> Iterator[Callable[..., Link]]:
    """new_link("127.0.0.2", seed=7) is a link; closed at the end."""
    links: list[Link] = []

    def make(host: str, *, seed: int = 0) -> Link:
        links.append(Link(host, seed=seed))
        return links[-1]

    yield make
    for link in links:
        link.close()


class Scene:
    """A publisher and a subscriber, each behind a link of its own, and a dissemination node that is behind none.

    `kind` delegate: publisher -> delegate -> subscriber. Peer: the publisher is the node itself.
    """

    def __init__(self, federation: Any, figures: Any, fixtures: Any, new_link: Callable[..., Link]) -> None:
        self._federation = federation
        self._figures = figures
        self.eventually: Callable[..., Any] = fixtures.eventually
        self.subscribers_link = new_link("127.0.0.2")
        self.publishers_link = new_link("127.0.0.3")
        self.published = 0
        self.node: Any = None
        self.publisher: Any = None
        self.subscriber: SubscriberAdapter | None = None
        self.subscription: Any = None
        self.leases(30.0)

    @property
    def config(self) -> Config:
        config: Config = self._federation.config
        return config

    def set(self, section: str, **changes: Any) -> None:
        """Other settings for whoever is opened from now on."""
        old = getattr(self.config, section)
        self._federation.config = msgspec.structs.replace(
            self.config, **{section: msgspec.structs.replace(old, **changes)}
        )

    def leases(self, seconds: float) -> None:
        """All leases from now on; 30 s before, which nothing but an outage outlasts."""
        self._federation.config = msgspec.structs.replace(
            self.config, lease=LeaseSection(publisher=seconds, subscriber=seconds, lookup=seconds)
        )

    def open_publisher(self, kind: str = "delegate") -> None:
        """A node and its publisher, registered with figure 1."""
        if kind == "peer":
            self.node = self.publisher = self._federation.peer()
            self.registration = self.publisher.register_publisher(self._figures.schema, self._figures.figure_1)
            return
        self.node = self._federation.pad()
        self.publisher = self._federation.light(self.publishers_link.behind(self.config, self.node.address))
        at = self.publisher.connect_to_delegate("alpha", "rome")
        self.registration = self.publisher.register_publisher(at, self._figures.schema, self._figures.figure_1)

    def open_subscriber(self, **options: Any) -> None:
        """The subscriber of this process, registered at the node."""
        address = self.node.status()["address"]
        config = self.subscribers_link.behind(self.config, address)
        self.subscriber = self._federation.subscriber(config)
        assert self.subscriber is not None
        self.subscription = self.subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", **options)
        assert self.subscriber.wait_matched(self.subscription) == 1

    def open(self, kind: str = "delegate", **options: Any) -> None:
        """Everybody."""
        self.open_publisher(kind)
        self.open_subscriber(**options)

    def publish(self, *payloads: bytes, metadata: bytes = b"") -> None:
        """Publish figure 1 with each payload."""
        for payload in payloads:
            self.publisher.publish(self.registration, metadata or self._figures.figure_1, payload)
            self.published += 1

    def receive(self, until: int, timeout: float = 60.0) -> list[InfoObject]:
        """All that comes up to and with the object of that sequence number."""
        assert self.subscriber is not None
        found: list[InfoObject] = []
        for obj in self.subscriber.objects(self.subscription, timeout):
            found.append(obj)
            if obj.platform.sequence >= until:
                return found
        pytest.fail(f"object {until} did not come, but {[o.platform.sequence for o in found]}")

    def sequences(self, until: int, timeout: float = 60.0) -> list[int]:
        """The sequence numbers of `receive`."""
        return [obj.platform.sequence for obj in self.receive(until, timeout)]

    def local(self) -> dict[str, Any]:
        """The subscription as its subscriber sees it."""
        assert self.subscriber is not None
        status: dict[str, Any] = self.subscriber.status()["subscriptions"][self.subscription]
        return status

    def account(self) -> dict[str, int]:
        """Where everything has gone, by the node's status. Waits until nothing is on its way between the two ends of
        a live connection, and checks that no object is missing from the account."""
        return balanced(self.node.status, self.eventually, self.published)

    def outage(self, link: Link, seconds: float, *, silent: bool = False) -> None:
        """The link is down for so long."""
        link.down(silent=silent)
        end = time.monotonic() + seconds
        self.eventually(lambda: time.monotonic() >= end, seconds + 1.0)
        link.up()

    def just_renewed(self, link: Link, address: str) -> float:
        """Waits until the party behind the link has renewed its lease at that server; when."""
        key = int(address.rpartition(":")[2]), "renew"
        before = link.answers[key]
        self.eventually(lambda: link.answers[key] > before, what="a renewal")
        return time.monotonic()


def balanced(
    status: Callable[[], dict[str, Any]], eventually: Callable[..., Any], published: int | None = None
) -> dict[str, int]:
    """The account of a dissemination node with at most one subscription at a time:

        published = not matched + suppressed + delivered + lost + waiting

    `published` is what the application counts (default: what the node counts). Fails if it does not come true."""
    seen: dict[str, int] = {}

    def holds() -> bool:
        now = status()
        seen.clear()
        seen["published"] = now["published"] if published is None else published
        seen["unmatched"] = sum(r["unmatched"] for r in now["registrations"])
        seen["suppressed"] = sum(s["suppressed"] for s in now["subscriptions"])
        seen["delivered"] = now["delivered"]
        seen["lost"] = sum(now["lost"].values())
        seen["waiting"] = sum(sum(s["queued"].values()) for s in now["sessions"])
        flying = sum(s["in_flight"] for s in now["sessions"] if s["connected"])
        balance = seen["unmatched"] + seen["suppressed"] + seen["delivered"] + seen["lost"] + seen["waiting"]
        return not flying and seen["published"] == balance

    eventually(holds, what=seen)
    return seen


@pytest.fixture
def scene(new_link: Callable[..., Link], federation: Any, figures: Any, fixtures: Any) -> Scene:
    """Nothing is open yet. The links are closed behind those who use them."""
    return Scene(federation, figures, fixtures, new_link)


@pytest.fixture
def account(fixtures: Any) -> Callable[..., dict[str, int]]:
    """account(status, published): see `balanced`."""
    return lambda status, published=None: balanced(status, fixtures.eventually, published)
