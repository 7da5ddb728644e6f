"""The emulated link: a TCP relay between one party and the rest, as slow, late and unreliable as it is told to be.

Everything a party behind a link is told to be at 127.0.0.1 it finds at the link's own address, another one of loopback,
with the same port: the relay there rewrites addresses in what a lookup service says. Both planes go through it, and
neither side has to know. It relays bytes of TCP connections that the kernel has put together: it has a rate, a way and
outages, but no packets, so nothing is lost on it but whole connections, nor sent again; for that, see docs/links.md.

Rules: one thread a link runs everything; other threads ask it. What is under way in a direction of a connection is
bounded (FLYING pieces), so a sender feels a slow link as it would a real one; so are connections (CONNECTIONS_MOST).
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
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AdapterStateError, ConfigurationError, PortInUseError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.wire.address import split_endpoint

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

ASKED: Final = b"\xa7deflate"
"""Request for compression in the hello of a data connection (msgpack)."""
DECLINED: Final = b"\xa7refused"
"""Text that a lookup service reads instead, and declines: what it tells must be readable, to be rewritten."""

CONNECTIONS_MOST: Final = 512
"""Relayed at once; a party opens a dozen, of which it keeps five. Others are refused as an outage refuses them."""
FLYING: Final = 64
"""Pieces (of 512 bytes with a rate, else 64 KiB) under way in each direction of a connection; then it is not read."""
LARGEST: Final = 3_600.0
"""Seconds of delay or jitter at most."""
WAIT: Final = 10.0
"""Seconds for the link's own thread to do what another one asks."""


class _Pipe:
    """One relayed connection."""

    def __init__(self, port: int, near: asyncio.StreamWriter, far: asyncio.StreamWriter, *, plain: bool) -> None:
        self.port = port
        self.plain = plain
        """Whether nothing is rewritten."""
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
    """A link of its own for one party, at `host`, an address of loopback beside 127.0.0.1 (Linux answers at all of
    127.0.0.0/8). `shape` says at any time what it is like; `seed` decides the jitter. `with` closes it.

    Raises ConfigurationError for a host that is none of 127.0.0.2 to 127.0.9.9, with digits alone: addresses are
    rewritten in place.
    """

    @checked
    def __init__(self, host: str, *, seed: int = 0) -> None:
        if not re.fullmatch(r"127\.0\.[0-9]\.[2-9]", host):
            raise ConfigurationError(f"no link can be at {host!r}", hint="Give one of 127.0.0.2 to 127.0.9.9")
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
        self._random = random.Random(seed)  # noqa: S311  # an emulation, to be the same each time
        self._positions: dict[str, deque[int]] = {UP: deque(), DOWN: deque()}
        self._free = {UP: 0.0, DOWN: 0.0}
        self._pipes: set[_Pipe] = set()
        self._segments = 0
        self._refusing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_unexpected)
        self._clear = asyncio.Event()
        self._clear.set()
        self._servers: list[asyncio.Server] = []
        self._lookups: set[int] = set()
        """Ports of lookup services."""
        self._thread = threading.Thread(target=self._live, name=f"asyncio-link-{host}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @checked
    def shape(
        self, *, bits_per_second: float | None = None, delay: float | None = None, jitter: float | None = None
    ) -> None:
        """Set what the link is like from now on, each way: its rate (0: any), and the seconds that each piece takes
        beside that, `delay` and a random part of `jitter`. None leaves it as it is. Raises ConfigurationError."""
        for name, value, most in (
            ("rate", bits_per_second, 1e12),
            ("delay", delay, LARGEST),
            ("jitter", jitter, LARGEST),
        ):
            if value is not None and not 0 <= value <= most:
                raise ConfigurationError(f"a link's {name} of {value!r}", hint=f"Give a number from 0 to {most:g}")

        def change() -> None:
            self.bits_per_second = self.bits_per_second if bits_per_second is None else bits_per_second
            self.delay = self.delay if delay is None else delay
            self.jitter = self.jitter if jitter is None else jitter

        self._do(change)

    @checked
    def to(self, address: str, *, plain: bool = False) -> str:
        """The address behind the link at which `address` (at 127.0.0.1) is reached; `plain`: nothing that it says is
        rewritten. Raises ConfigurationError for one that is elsewhere, PortInUseError."""
        host, port = split_endpoint(address)
        if host.encode() != HERE:
            raise ConfigurationError(f"{address} is not at {HERE.decode()}", hint="An emulated link is on one machine")
        served = functools.partial(self._accept, port, plain)
        try:
            self._servers.append(self._run(asyncio.start_server(served, self.host, port, limit=4096)))
        except OSError as exc:
            raise PortInUseError(
                f"an emulated link can't listen at {self.host}:{port}: {exc.strerror or exc}",
                hint="Close the other link there; only Linux answers at all of 127.0.0.0/8 unasked",
            ) from exc
        return f"{self.host}:{port}"

    def behind(self, config: Config, *others: str) -> Config:
        """`config` for the party behind the link: reaches its lookup services, and `others`, through it only. What
        lookup services tell is not compressed, whatever `link.compression` asks for."""
        for address in others:
            self.to(address)
        self._lookups |= {split_endpoint(address)[1] for address in config.lookup.locators}
        locators = tuple(self.to(address) for address in config.lookup.locators)
        return msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, locators=locators))

    def cut(self) -> None:
        """End all connections; new ones are possible at once."""
        self._do(self._abort_all)

    def cut_after(self, direction: Literal["up", "down"], *positions: int) -> None:
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
        """End all connections and the thread. Safe to call twice."""
        if self._closed:
            return
        self._closed = True

        async def end() -> None:
            self._refusing = True
            for server in self._servers:
                server.close()
            self._abort_all()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await asyncio.sleep(0)

        self._run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)
        self._loop.close()

    # -- on the loop's thread -----------------------------------------------------------------------------------

    def _live(self) -> None:
        with guarded("emulated link"):
            self._loop.run_forever()

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            what.close()
            raise AdapterStateError(f"the link at {self.host} is closed", hint="Make another one")
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(WAIT)

    def _do(self, what: Callable[[], None]) -> None:
        async def call() -> None:
            what()

        self._run(call())

    def _abort_all(self) -> None:
        for pipe in self._pipes:
            pipe.abort()

    def _accept(self, port: int, plain: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refusing or len(self._tasks) >= CONNECTIONS_MOST:
            writer.transport.abort()
            return
        task = self._loop.create_task(self._serve(port, plain, reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, port: int, plain: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HERE.decode(), port, limit=4096)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        pipe = _Pipe(port, writer, far_writer, plain=plain)
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
            try:
                for ended in await asyncio.gather(*ways, return_exceptions=True):
                    if isinstance(ended, Exception) and not isinstance(ended, OSError):  # that is how connections end
                        note("emulated link", ended)
            finally:  # also if the link is closed meanwhile
                pipe.abort()

    def _way(
        self, pipe: _Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """Reading and writing of one direction; whichever ends first ends the connection."""
        flying: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(FLYING)

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
                if direction == DOWN and not pipe.plain:
                    tail, data = _rewritten(tail, data, HERE, self.host.encode())
                elif pipe.port in self._lookups:
                    tail, data = _rewritten(tail, data, ASKED, DECLINED)
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


def _rewritten(tail: bytes, data: bytes, old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """`data` with each `old` that ends in it made `new`, which is as long; `tail` is what came just before."""
    whole = tail + data
    return whole[-len(old) + 1 :], whole.replace(old, new)[len(tail) :]


def _unexpected(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Note an error that nobody on the link's thread has caught."""
    exc = context.get("exception")
    note("emulated link", exc if isinstance(exc, Exception) else RuntimeError(context["message"]))


def _segments_received(sock: Any) -> int:
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    except OSError:
        return 0
    return int(struct.unpack_from("I", info, 140)[0]) if len(info) >= 144 else 0  # tcpi_segs_in
