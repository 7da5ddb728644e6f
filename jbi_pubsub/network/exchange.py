"""A node's part in its networks: what it says, hears, repairs and passes on. Pure: times and random numbers are given.

Rules:
- A block gets its serial when it first leaves, and is numbered anew by each sender on each network.
- What is complete for the first time is delivered here, and goes on to the networks where none of its blocks was heard.
- Messages that are directed to a node have logs of their own, which concern it alone, and nodes of several networks.
- On a network repairs go first, then requests and announcements, then what is new.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.network.announcing import NodeAnnouncer
from jbi_pubsub.network.bodies import (
    NodeAnnouncement,
    decoded_announcement,
    decoded_request,
    encoded_announcement,
    encoded_request,
)
from jbi_pubsub.network.cache import BlockCache, HeldBlock
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, packed, read
from jbi_pubsub.network.log import SERIAL_MOST, LogId, LogRecovery, OriginLog, Request
from jbi_pubsub.network.message import Assembler, MessageForm, NodeMessage, blocks
from jbi_pubsub.network.peers import NodePeer, Peers
from jbi_pubsub.network.relay import Relay

ANNOUNCE_SECONDS: Final = 2.0
NODE_TIMEOUT: Final = 10.0
QUEUE_BYTES: Final = 16 << 20
CACHE_BYTES: Final = 256 << 20
ACK_RANGES: Final = 500
NUMBER_BITS: Final = 40
"""Of a datagram's number those of one start of its sender; above them is the epoch."""
EPOCHS_MOST: Final = 1 << 24
FURTHER_MOST: Final = 10_000
"""Blocks that are asked for further at a time."""
ROOM_SECONDS: Final = 0.01
LIFE: Final = 60_000
"""Milliseconds that a reliable message lives, where it does not say."""


class ExchangeSettings(msgspec.Struct, frozen=True):
    """Settings of a node for its networks (Table 3 of the report)."""

    name: str = ""
    addresses: tuple[str, ...] = ()
    """HOST:PORT where the node's own port is."""
    roles: tuple[str, ...] = ()
    queue_bytes: int = QUEUE_BYTES
    """Bytes that wait to go to a network: beyond them there is no room."""
    announce_seconds: float = ANNOUNCE_SECONDS
    node_timeout: float = NODE_TIMEOUT
    cache_bytes: int = CACHE_BYTES
    ack_ranges: int = ACK_RANGES
    form: MessageForm = MessageForm()
    reorder_seconds: float = 0.0
    round_trip: float = 0.005

    def announcement(self, epoch: int) -> NodeAnnouncement:
        """An announcement of a node that holds nothing."""
        return NodeAnnouncement(1, self.name, self.addresses, self.roles, epoch, 0, ())


@dataclass(eq=False, slots=True)
class _Outgoing:
    """A block that has not left everywhere yet."""

    datagram: Datagram
    expires: float
    log_id: LogId | None = None
    """None: of an unreliable message."""
    serial: int = 0


@dataclass(eq=False, slots=True)
class _NetworkSide:
    """A network, and what waits to go there."""

    recovery: LogRecovery
    sender: bytes
    number: int = 0
    repairs: deque[tuple[LogId, int]] = field(default_factory=deque)
    control: deque[Datagram] = field(default_factory=deque)
    new: deque[_Outgoing] = field(default_factory=deque)
    waiting: int = 0
    """Bytes of `new`."""
    announce_at: float = 0.0


class Exchange:
    """See the module. One thread at a time."""

    def __init__(
        self,
        me: bytes,
        epoch: int,
        networks: int,
        uniform: Callable[[float, float], float],
        settings: ExchangeSettings | None = None,
    ) -> None:
        """`me`: our id, 16 bytes; `epoch`: how often we were started; `networks`: their number."""
        self.me = me
        self.epoch = epoch
        self._settings = settings or ExchangeSettings()
        self._uniform = uniform
        self.logs: dict[LogId, OriginLog] = {}
        self._cache = BlockCache(self._settings.cache_bytes)
        self._assembler = Assembler()
        self._serials: dict[LogId, int] = {}
        self._durable: dict[tuple[bytes, bytes], int] = {}
        self.peers = Peers(me, self._settings.node_timeout)
        self._connections = [
            _NetworkSide(
                LogRecovery(
                    me[:4], self.logs, uniform, reorder=self._settings.reorder_seconds,
                    round_trip=self._settings.round_trip,
                ),
                me[:4],
                (epoch & EPOCHS_MOST - 1) << NUMBER_BITS,
            )
            for _ in range(networks)
        ]  # fmt: skip
        self._relay = Relay(networks)
        self._announcer = NodeAnnouncer(me, self._settings.announcement(epoch), self._settings.ack_ranges, networks)
        self._came_at: dict[LogId, int] = {}
        """Network that a log came by first."""
        self._further: dict[tuple[LogId, int], set[int]] = {}
        """Blocks that are asked for further, and the networks where they are lacked."""

    # -- saying ---------------------------------------------------------------------------------------------------

    def say(self, message: NodeMessage, now: float) -> None:
        """Say a message on all networks."""
        life = message.expiration or LIFE
        message = message._replace(origin=self.me, expiration=life)
        stream = _stream_to(message.to) if message.to else 0
        log_id = LogId(self.me, self.epoch, stream) if message.mode != DatagramMode.UNRELIABLE else None
        out = [_Outgoing(each, now + life / 1000, log_id) for each in blocks(message, self._settings.form)]
        size = sum(len(each.datagram.data) for each in out)
        for connection in self._connections:
            connection.new.extend(out)
            connection.waiting += size

    def room(self) -> float:
        """Seconds until there may be room for another message; 0: there is."""
        return ROOM_SECONDS if any(each.waiting > self._settings.queue_bytes for each in self._connections) else 0.0

    def settled(self, origin: bytes, epoch: int) -> int:
        """The serial up to which nothing more comes of a log: all has come, or is over."""
        log = self.logs.get(LogId(origin, epoch))
        return SERIAL_MOST if log is None else log.settled

    def facts(self, now: float) -> dict[bytes, NodePeer]:
        """Other nodes, by their ids."""
        return self.peers.facts(now, (each.recovery.losses() for each in self._connections))

    # -- what comes -----------------------------------------------------------------------------------------------

    def received(self, at: int, data: bytes | memoryview, now: float) -> Iterator[NodeMessage]:
        """Bytes from a network; messages that are complete by them, and are for us. Raises ProtocolError."""
        datagram = read(data)
        if isinstance(datagram, str):
            raise ProtocolError(f"a datagram {datagram}")
        if datagram.origin == self.me and self._is_own(datagram):
            return
        connection = self._connections[at]
        connection.recovery.note_number(datagram.sender, datagram.number, now)
        if datagram.origin != self.me:
            self._relay.hear(at, datagram)
            if datagram.hops and not datagram.is_repair and len(self._connections) > 1:
                delay = connection.recovery.delay
                self._relay.yield_to_other(at, now + 2 * delay + self._uniform(0, delay))
        footer = datagram.footer
        if footer is not None and footer.serial:
            log_id = LogId(datagram.origin, footer.epoch, footer.stream)
            if not self._concerns_us(log_id):
                return
            is_new = connection.recovery.note_block(log_id, footer.serial, now, is_repair=datagram.is_repair)
            lacked_at = self._further.pop((log_id, footer.serial), ())
            if is_new or lacked_at:
                self._keep(log_id, footer.serial, HeldBlock(bytes(data), now + footer.expiration / 1000))
                self._came_at.setdefault(log_id, at)
            for other in lacked_at:
                self._connections[other].repairs.append((log_id, footer.serial))
            if not is_new:
                return
        if datagram.origin == self.me:
            return
        message = self._assembler.add(datagram, now)
        if message is None:
            return
        if message.kind == DatagramKind.REQUEST:
            self._answer(at, decoded_request(message.body), now)
            return
        if message.kind == DatagramKind.ANNOUNCEMENT:
            self._hear(at, message, now)
            self._pass_on(at, message, now)
            return
        self._pass_on(at, message, now)
        if message.mode == DatagramMode.DURABLE and not self._is_newer(message):
            return
        if not message.to or message.to == self.me:
            yield message

    def _is_own(self, datagram: Datagram) -> bool:
        """Whether a datagram under our id tells us nothing: we have sent it ourselves, or a twin has. Told is one of a
        later start than ours, or that we have never sent; of an earlier start may be what we said ourselves then."""
        number, footer = datagram.number, datagram.footer
        is_direct = datagram.sender == self.me[:4]
        epoch = footer.epoch if footer is not None and footer.serial else 0
        of_twin = epoch > self.epoch
        if is_direct:
            of_twin |= number > max(each.number for each in self._connections)
        if footer is not None and epoch == self.epoch:
            of_twin |= footer.serial > self._serials.get(LogId(self.me, epoch, footer.stream), 0)
        if of_twin:
            self.peers.hear_twin(epoch)
        return of_twin or is_direct

    def _concerns_us(self, log_id: LogId) -> bool:
        """Whether we hear a log, or pass it on: not what is directed to another one on our only network."""
        is_ours = not log_id.stream or log_id.origin == self.me or log_id.stream == _stream_to(self.me)
        return is_ours or len(self._connections) > 1

    def _answer(self, at: int, request: Request, now: float) -> None:
        """Answer what is asked for on a network; what we do not hold any more is asked for where it came from."""
        connection = self._connections[at]
        wanted = {log_id: ranges for log_id, ranges in request.wanted.items() if self._concerns_us(log_id)}
        answers, lacking = connection.recovery.note_request(request._replace(wanted=wanted), now)
        connection.repairs.extend(answers)
        for log_id, serial in lacking[:FURTHER_MOST]:
            came_at = self._came_at.get(log_id, at)
            if came_at != at and len(self._further) < FURTHER_MOST:
                self._further.setdefault((log_id, serial), set()).add(at)
                self._connections[came_at].recovery.want(log_id, serial, now)

    def _hear(self, at: int, message: NodeMessage, now: float) -> None:
        announcement = decoded_announcement(message.body)
        if not self.peers.hear(message.origin, announcement, at, now):
            return
        recovery = self._connections[at].recovery
        for each in announcement.held:
            if not self._concerns_us(each.log_id):
                continue
            is_own = each.origin == message.origin
            if is_own:
                log = self.logs.setdefault(each.log_id, OriginLog())
                log.is_gone = False
            recovery.note_announcement(each.log_id, each.ranges, now, floor=each.floor if is_own else 0)

    def _pass_on(self, at: int, message: NodeMessage, now: float) -> None:
        """A message is complete for the first time: it goes on, unless it is heard there meanwhile."""
        for other, connection in enumerate(self._connections):
            if other != at:
                delay = self._relay.delay_on(other, now, connection.recovery.delay, self._uniform)
                self._relay.plan(other, message, now + delay)
        if message.to == self.me:
            self._relay.forget(message)

    def _is_newer(self, message: NodeMessage) -> bool:
        key = (message.origin, message.durability)
        if message.update <= self._durable.get(key, -1):
            return False
        self._durable[key] = message.update
        return True

    # -- what goes ------------------------------------------------------------------------------------------------

    def outgoing(self, at: int, now: float) -> bytes | None:
        """The next datagram for a network; None: nothing waits."""
        connection = self._connections[at]
        while connection.repairs:
            log_id, serial = connection.repairs.popleft()
            held = self._cache.get(log_id, serial)
            if held is not None and held.expires > now:
                datagram = read(held.data)
                assert isinstance(datagram, Datagram)
                return self._numbered(connection, datagram, held.expires, log_id, serial, now, is_repair=True)
        if connection.control:
            return self._numbered(connection, connection.control.popleft(), inf, None, 0, now, is_repair=False)
        if (passed := self._relay.next(at)) is not None:
            footer = passed.footer
            of = LogId(passed.origin, footer.epoch, footer.stream) if footer and footer.serial else None
            expires = now + footer.expiration / 1000 if footer else inf
            return self._numbered(connection, passed, expires, of, footer.serial if footer else 0, now, is_repair=False)
        while connection.new:
            out = connection.new.popleft()
            connection.waiting -= len(out.datagram.data)
            if out.expires <= now:
                continue
            if out.log_id is not None and not out.serial:
                self._number_serial(out)
            return self._numbered(connection, out.datagram, out.expires, out.log_id, out.serial, now, is_repair=False)
        return None

    def has_outgoing(self, at: int) -> bool:
        """Whether something waits for a network."""
        connection = self._connections[at]
        return bool(connection.repairs or connection.control or connection.new or self._relay.has_next(at))

    def _number_serial(self, out: _Outgoing) -> None:
        assert out.log_id is not None
        assert out.datagram.footer is not None
        out.serial = self._serials[out.log_id] = self._serials.get(out.log_id, 0) + 1
        footer = out.datagram.footer._replace(epoch=self.epoch, stream=out.log_id.stream, serial=out.serial)
        out.datagram = out.datagram._replace(footer=footer)
        log = self.logs.setdefault(out.log_id, OriginLog())
        log.seen.add(out.serial)
        log.held.add(out.serial)
        self._keep(out.log_id, out.serial, HeldBlock(packed(out.datagram._replace(number=1)), out.expires))

    def _numbered(
        self,
        connection: _NetworkSide,
        datagram: Datagram,
        expires: float,
        log_id: LogId | None,
        serial: int,
        now: float,
        *,
        is_repair: bool,
    ) -> bytes:
        connection.number += 1
        if log_id is not None:
            if not is_repair:
                connection.recovery.note_own(log_id, serial)
            connection.recovery.note_sent(log_id, serial, connection.number, now, is_repair=is_repair)
        footer = datagram.footer
        if footer is not None and expires != inf:
            footer = footer._replace(expiration=max(1, int((expires - now) * 1000)))
        return packed(
            datagram._replace(
                footer=footer, sender=connection.sender, number=connection.number, is_repair=is_repair,
                hops=datagram.hops + (datagram.origin != self.me and not is_repair),
            )
        )  # fmt: skip

    # -- time -----------------------------------------------------------------------------------------------------

    def due(self) -> float:
        """When `tick` has something to do."""
        return min(self._relay.due(), *(min(each.recovery.due(), each.announce_at) for each in self._connections))

    def tick(self, now: float) -> None:
        """Do what is due: requests, answers in the place of others, announcements, what has expired or left."""
        for log_id, serial in self._cache.expire(now):
            self._give_up(log_id, serial)
        for origin in self.peers.age(now):
            for log_id, log in self.logs.items():
                log.is_gone |= log_id.origin == origin
        self._relay.tick(now)
        for at, connection in enumerate(self._connections):
            connection.repairs.extend(connection.recovery.answers(now))
            request = connection.recovery.request(now)
            if request is not None:
                self._control(connection, DatagramKind.REQUEST, DatagramMode.UNRELIABLE, encoded_request(request))
            is_due = connection.announce_at <= now
            if is_due:
                connection.recovery.count_losses()
                connection.announce_at = now + self._settings.announce_seconds * self._uniform(0.9, 1.1)
            if connection.recovery.announces(now) or is_due:
                losses = connection.recovery.losses()
                body = encoded_announcement(self._announcer.next(at, self.logs, losses))
                self._control(connection, DatagramKind.ANNOUNCEMENT, DatagramMode.RELIABLE, body)

    def _control(self, connection: _NetworkSide, kind: DatagramKind, mode: DatagramMode, body: bytes) -> None:
        form = msgspec.structs.replace(self._settings).form._replace(block=60_000)
        life = int(self._settings.announce_seconds * 1000)
        connection.control.extend(blocks(NodeMessage(kind, mode, body, self.me, expiration=life), form))

    def _keep(self, log_id: LogId, serial: int, block: HeldBlock) -> None:
        for gone, number in self._cache.put(log_id, serial, block):
            self._give_up(gone, number)

    def _give_up(self, log_id: LogId, serial: int) -> None:
        log = self.logs.get(log_id)
        if log is not None:
            log.held.remove_range(serial, serial)
            if log_id.origin == self.me:
                first = next(iter(log.held), (log.seen.top + 1, 0))[0]
                log.raise_floor(first)


def _stream_to(node: bytes) -> int:
    """Stream of what is directed to a node."""
    return int.from_bytes(node[:8])
