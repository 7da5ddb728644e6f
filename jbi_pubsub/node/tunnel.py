"""Tunnels: connections to another node's own servers, through the networks that both are on.

At the near node a door is a port of loopback that stands for one service of one far node; each connection to it is a
stream (see streams) to that node, which connects it with its own server. So TLS, passwords and rights are between the
two ends, and nothing on the way takes part in them.

Rules:
- The far node decides what it serves, by name: nobody reaches an address of his choice.
- To its servers whoever comes is at the address `node-ID`, the first eight digits of the near node's id, never one of
  loopback.
- A door is shut when its node has left or was started anew, when nobody has used it for DOOR_SECONDS, and before one
  more would be too many.
- Messages come on the network's own thread, which never waits here; one thread does all the rest.
"""

from __future__ import annotations

import itertools
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from secrets import randbits
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from jbi_pubsub.core.errors import BackPressureError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage

from .streams import CHUNK, OPEN_SECONDS, NodeStream, Streams

if TYPE_CHECKING:
    from jbi_pubsub.network.network import Network  # whoever calls a node needs a TunnelDoor alone

log = logging.getLogger("jbi_pubsub.node")

DOORS_MOST: Final = 64
DOOR_SECONDS: Final = 600.0
LIFE: Final = 60_000
"""Milliseconds for a message to come."""
TICK_SECONDS: Final = 0.5
BUSY_SECONDS: Final = 0.01
"""Until a full network is tried again."""
TURNS: Final = 4
"""Messages that one connection may send before others have their turn."""
STOP_SECONDS: Final = 5.0
_NO_LINGER: Final = struct.pack("ii", 1, 0)


class TunnelService(NamedTuple):
    """A server of ours that other nodes reach: where it says that it is, and how it is reached; `connect` is given what
    the one who comes is called. Raises OSError."""

    endpoints: tuple[str, ...]
    connect: Callable[[str], socket.socket]


def adopted_by(adopt: Callable[[socket.socket, str], None]) -> Callable[[str], socket.socket]:
    """Connections of a server of this process that takes them as they are (Endpoint.adopt)."""
    numbers = itertools.count(1)

    def connect(caller: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        adopt(theirs, f"{caller}:{next(numbers)}")
        return ours

    return connect


class TunnelDoor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way to a service of a far node: `address`, a host:port here, and the endpoints that it stands for there."""

    node: str
    """Id."""
    service: str
    address: str
    endpoints: tuple[str, ...]


@dataclass(eq=False, slots=True)
class _TunnelDoor:
    """A listener, and when it was used last."""

    listener: socket.socket
    node: bytes
    service: str
    endpoints: tuple[str, ...]
    epoch: int
    used: float
    pipes: int = 0


@dataclass(eq=False, slots=True)
class _StreamPipe:
    """A connection of this host, and the stream that it is one with."""

    sock: socket.socket
    stream: NodeStream
    door: _TunnelDoor | None = None
    written: int = 0
    """Bytes of the first of the inbox."""
    events: int = 0
    """Those that the selector waits for."""
    is_shut: bool = False
    """The other end was told that nothing more comes."""

    def write(self, streams: Streams, lock: threading.Condition) -> None:
        """Write what has come, as much as it takes. Raises OSError."""
        stream = self.stream
        while stream.inbox and stream.phase != "over":
            data = memoryview(stream.inbox[0])
            try:
                self.written += self.sock.send(data[self.written :])
            except BlockingIOError:
                return
            if self.written == len(data):
                self.written = 0
                with lock:
                    streams.took(stream, time.monotonic())
        if stream.has_all and not self.is_shut:
            self.is_shut = True
            self.sock.shutdown(socket.SHUT_WR)

    def read(self, streams: Streams, lock: threading.Condition) -> None:
        """Send what there is, as much as there is room for, in a few messages. Raises OSError."""
        for _ in range(TURNS):
            if not (room := self.stream.room):
                return
            try:
                data = self.sock.recv(min(room, CHUNK))
            except BlockingIOError:
                return
            with lock:
                streams.send(self.stream, data, time.monotonic(), is_last=not data)

    def arm(self, selector: selectors.BaseSelector, *, reads: bool) -> None:
        """Wait for what can be done next; not for anything to read unless `reads`."""
        events = selectors.EVENT_READ if self.stream.room and reads else 0
        events |= selectors.EVENT_WRITE if self.stream.inbox else 0
        if events == self.events:
            return
        if not self.events:
            selector.register(self.sock, events, self)
        elif events:
            selector.modify(self.sock, events, self)
        else:
            selector.unregister(self.sock)
        self.events = events


class Tunnels:
    """All tunnels of a node, to others and from them. Any thread but `stop`, which whoever has started it calls."""

    def __init__(self, network: Callable[[], Network], services: Mapping[str, TunnelService]) -> None:
        """`network`: the one that is there, when it is; `services`: ours, by name."""
        self._network, self._services = network, services
        self._lock = threading.Condition()
        """Covers the streams, those that have changed, and the doors."""
        self._streams = Streams(lambda: randbits(63))
        self._changed: dict[NodeStream, None] = {}
        self._doors: dict[tuple[bytes, str], _TunnelDoor] = {}
        self._pipes: dict[NodeStream, _StreamPipe] = {}
        """Pipes are of our thread alone, as all below."""
        self._selector = selectors.DefaultSelector()
        self._todo: deque[Callable[[], None]] = deque()
        self._is_busy = False
        """The network has no room."""
        self._refused = 0
        """Connections for which there was no stream."""
        self._wake_in, self._wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-tunnels", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End all of them. Safe to repeat."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        with self._lock:
            self._lock.notify_all()
        self._wake()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        while self._todo:  # a door that was closed just before is shut as well
            self._todo.popleft()()
        for pipe in list(self._pipes.values()):
            self._drop(pipe, "the node stops")
        for door in list(self._doors.values()):
            self._shut(door)
        self._flush()
        self._selector.close()
        with self._lock:  # once it is closed its number may be somebody else's file
            out, self._wake_out = self._wake_out, -1
        os.close(self._wake_in)
        os.close(out)

    def came(self, message: NodeMessage) -> None:
        """A message of another node. Never waits. Raises ProtocolError."""
        with self._lock:
            stream = self._streams.received(message.origin, message.body, time.monotonic())
            if stream is not None:
                self._changed[stream] = None
                self._lock.notify_all()
        self._wake()

    def door(self, node: bytes, service: str) -> TunnelDoor:
        """A door to a service of another node. Raises WireError: the node refuses it, has left, or does not answer;
        BackPressureError."""
        with self._lock:
            door = self._doors.get((node, service))
            if door is not None and door.epoch != self._epochs().get(node, -1):
                self._close(door)
                door = None
            if door is None:
                endpoints = self._ask(node, service)
                door = self._doors.get((node, service)) or self._open(node, service, endpoints)
            door.used = time.monotonic()
            host, port = door.listener.getsockname()
        return TunnelDoor(node.hex(), service, f"{host}:{port}", door.endpoints)

    def status(self) -> dict[str, int]:
        """Plain data."""
        with self._lock:
            return {"doors": len(self._doors), "streams": len(self._streams), "refused": self._refused}

    # -- doors, under the lock ------------------------------------------------------------------------------------

    def _ask(self, node: bytes, service: str) -> tuple[str, ...]:
        """Where the other node says that its service is."""
        stream = self._streams.open(node, service, time.monotonic(), asks=True)
        self._wake()
        if not self._lock.wait_for(lambda: stream.phase == "over" or self._stopping.is_set(), 2 * OPEN_SECONDS):
            raise WireTimeoutError(f"node {node.hex()[:8]} has not said where its {service} is")
        if stream.why or not stream.endpoints or self._stopping.is_set():  # then nobody would shut its door
            raise WireError(f"no way to the {service} of node {node.hex()[:8]}: {stream.why or 'the node stops'}")
        return stream.endpoints

    def _open(self, node: bytes, service: str, endpoints: tuple[str, ...]) -> _TunnelDoor:
        if len(self._doors) >= DOORS_MOST:
            idle = [each for each in self._doors.values() if not each.pipes]
            if not idle:
                raise BackPressureError(f"{DOORS_MOST} tunnels are in use", hint="End some first")
            self._close(min(idle, key=lambda each: each.used))
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        listener.setblocking(False)
        epoch = self._epochs().get(node, -1)
        door = self._doors[node, service] = _TunnelDoor(listener, node, service, endpoints, epoch, time.monotonic())
        self._do(partial(self._watch, door))
        return door

    def _close(self, door: _TunnelDoor) -> None:
        del self._doors[door.node, door.service]
        self._do(partial(self._shut, door))

    def _epochs(self) -> dict[bytes, int]:
        return {node: each.epoch for node, each in self._network().peers().items()}

    def _do(self, what: Callable[[], None]) -> None:
        """Have our thread do something."""
        self._todo.append(what)
        self._wake()

    def _wake(self) -> None:
        with self._lock, suppress(OSError):  # it is full, which wakes as well
            if self._wake_out >= 0:
                os.write(self._wake_out, b"\0")

    # -- our thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        tick_at = 0.0
        while not self._stopping.is_set():
            with guarded("tunnels"):
                self._step()
            now = time.monotonic()
            if now >= tick_at:
                tick_at = now + TICK_SECONDS
                with guarded("tunnels"):
                    self._tick(now)

    def _step(self) -> None:
        for key, mask in self._selector.select(BUSY_SECONDS if self._is_busy else TICK_SECONDS):
            if isinstance(key.data, _StreamPipe):
                self._pump(key.data, reads=bool(mask & selectors.EVENT_READ))
            elif isinstance(key.data, _TunnelDoor):
                self._accept(key.data)
            else:
                with suppress(BlockingIOError):
                    os.read(self._wake_in, 4_096)
        while self._todo:
            self._todo.popleft()()
        with self._lock:
            changed, self._changed = self._changed, {}
        for stream in changed:
            with guarded("tunnels"):
                self._look_at(stream)
        self._flush()

    def _tick(self, now: float) -> None:
        heard = self._epochs()
        with self._lock:
            ended = self._streams.tick(heard, now)
            for door in list(self._doors.values()):
                is_idle = not door.pipes and now - door.used > DOOR_SECONDS
                if is_idle or heard.get(door.node, -1) != door.epoch:
                    self._close(door)
                else:
                    self._watch(door)
            if ended:
                self._lock.notify_all()
        for stream in ended:
            self._look_at(stream)

    def _watch(self, door: _TunnelDoor) -> None:
        if door.listener.fileno() >= 0 and door.listener not in self._selector.get_map():
            self._selector.register(door.listener, selectors.EVENT_READ, door)

    def _shut(self, door: _TunnelDoor) -> None:
        with suppress(KeyError, ValueError):  # it was not watched yet
            self._selector.unregister(door.listener)
        door.listener.close()

    def _accept(self, door: _TunnelDoor) -> None:
        try:
            sock, _ = door.listener.accept()
        except BlockingIOError:  # it is gone already
            return
        except OSError as exc:  # a full file table: others need the time to close
            log.warning("tunnel to node %s: accept failed, trying again: %s", door.node.hex()[:8], exc)
            self._selector.unregister(door.listener)  # until the next look at all of them
            return
        door.used = time.monotonic()
        try:
            with self._lock:
                stream = self._streams.open(door.node, door.service, door.used, epoch=door.epoch)
        except BackPressureError as exc:  # whoever is on this host can cause as many as he likes
            log.debug("tunnel to node %s: %s", door.node.hex()[:8], exc)
            self._refused += 1
            _reset(sock)
            return
        self._join(sock, stream, door)

    def _join(self, sock: socket.socket, stream: NodeStream, door: _TunnelDoor | None = None) -> None:
        sock.setblocking(False)
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = self._pipes[stream] = _StreamPipe(sock, stream, door)
        if door is not None:
            door.pipes += 1
        pipe.arm(self._selector, reads=not self._is_busy)

    def _look_at(self, stream: NodeStream) -> None:
        """A stream has changed."""
        pipe = self._pipes.get(stream)
        if pipe is not None:
            self._pump(pipe)
        elif stream.phase == "asked":
            self._serve(stream)

    def _serve(self, stream: NodeStream) -> None:
        """Another node asks for a service of ours."""
        stream.epoch = self._epochs().get(stream.key.node, -1)
        service = self._services.get(stream.service)
        with self._lock:
            if service is None:
                self._streams.reset(stream, f"it serves no {stream.service[:50]!r} to other nodes")
                return
            if stream.asks:
                self._streams.take(stream, service.endpoints, time.monotonic())
                return
        try:
            sock = service.connect(f"node-{stream.key.node.hex()[:8]}")
        except OSError as exc:
            with self._lock:
                self._streams.reset(stream, f"its {stream.service} can't be reached: {exc.strerror or exc}")
            return
        with self._lock:
            self._streams.take(stream, service.endpoints, time.monotonic())
        self._join(sock, stream)

    def _pump(self, pipe: _StreamPipe, *, reads: bool = False) -> None:
        """Move what can be moved now."""
        stream = pipe.stream
        try:
            pipe.write(self._streams, self._lock)
            if reads and not self._is_busy:
                pipe.read(self._streams, self._lock)
        except OSError as exc:
            self._drop(pipe, f"the connection has ended: {exc.strerror or exc}")
            return
        if stream.phase == "over":
            self._drop(pipe, stream.why)
        else:
            pipe.arm(self._selector, reads=not self._is_busy)

    def _drop(self, pipe: _StreamPipe, why: str) -> None:
        """End a connection; with a cause it is reset at both ends."""
        if self._pipes.pop(pipe.stream, None) is None:
            return
        with self._lock:
            self._streams.reset(pipe.stream, why)
        if pipe.events:
            self._selector.unregister(pipe.sock)
        if pipe.door is not None:
            pipe.door.pipes -= 1
            pipe.door.used = time.monotonic()
        if why:
            log.info("stream with node %s: %s", pipe.stream.key.node.hex()[:8], why)
            _reset(pipe.sock)
        else:
            pipe.sock.close()

    def _flush(self) -> None:
        """Say what is to be said, as long as the network has room."""
        was_busy, self._is_busy = self._is_busy, False
        while True:
            with self._lock:
                if not self._streams.out:
                    break
                to, body = self._streams.out[0]
            try:
                self._network().say(NodeMessage(
                    DatagramKind.STREAM, DatagramMode.RELIABLE, body, expiration=LIFE, to=to
                ))  # fmt: skip
            except BackPressureError:
                self._is_busy = True
                break
            with self._lock:
                self._streams.out.popleft()
        if was_busy != self._is_busy:
            for pipe in self._pipes.values():
                pipe.arm(self._selector, reads=not self._is_busy)


def _reset(sock: socket.socket) -> None:
    """Close a connection so that the other side can't take it for an end in order."""
    with suppress(OSError):
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    sock.close()
