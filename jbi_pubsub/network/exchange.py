"""A node's part in its networks: what it says, hears, repairs and passes on. Pure: times and random numbers are given.

Rules:
- A block gets its serial when it first leaves, and is numbered anew by each sender on each network.
- What is complete for the first time is delivered here, and goes on to the networks where none of its blocks was heard.
- Messages that are directed to a node have logs of their own, which concern it alone, and nodes of several networks.
- What others cause is bounded, by origin and in all; what there is no room for is refused, and told as a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.network.announcing import NodeAnnouncer
from jbi_pubsub.network.bodies import (
    NodeAnnouncement,
    decoded_announcement,
    decoded_request,
    encoded_announcement,
    encoded_request,
)
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, Extension, packed, passed_on, read
from jbi_pubsub.network.disk import DiskBlocks
from jbi_pubsub.network.durables import DURABLE_CACHE
from jbi_pubsub.network.flow import BlockRepair, OutgoingBlock, SeenWindow, Turn
from jbi_pubsub.network.holding import HeldBlocks
from jbi_pubsub.network.log import SERIAL_MOST, LogBook, LogId, log_of
from jbi_pubsub.network.message import Assembler, MessageForm, NodeMessage, blocks, one_by_one
from jbi_pubsub.network.own import OwnLogs
from jbi_pubsub.network.peers import NodePeer, Peers
from jbi_pubsub.network.recovery import LogRecovery, Request
from jbi_pubsub.network.relay import Relay
from jbi_pubsub.network.senders import Asker
from jbi_pubsub.network.side import NetworkSide, SideTerms

ANNOUNCE_SECONDS: Final = 2.0
NODE_TIMEOUT: Final = 10.0
QUEUE_BYTES: Final = 16 << 20
CACHE_BYTES: Final = 256 << 20
DURABLE_BYTES: Final = 64 << 20
PROCESSED_HASHES: Final = 1_000_000
ACK_RANGES: Final = 500
CONTROL_BYTES: Final = 1 << 20
"""Bytes of a request or an announcement, at most."""
CONTROL_OVERHEAD: Final = 88
"""Bytes of header, hash and footer."""


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
    disk: DiskBlocks | None = None
    """Where blocks go that have no room in these bytes."""
    durable_cache: int = DURABLE_CACHE
    processed_hashes: int = PROCESSED_HASHES
    ack_ranges: int = ACK_RANGES
    form: MessageForm = MessageForm()
    reorder_seconds: float = 0.0
    round_trip: float = 0.005

    def round_trip_on(self, terms: SideTerms) -> float:
        """The first estimate on a network: where it is slow, a block and its answer take longer than elsewhere."""
        block = self.form.block / terms.rate if terms.rate else 0.0
        return max(self.round_trip, 2 * block) + 2 * terms.burst_seconds

    def announcement(self, epoch: int) -> NodeAnnouncement:
        """An announcement of a node that holds nothing."""
        return NodeAnnouncement(1, self.name, self.addresses, self.roles, epoch, 0, ())


class Exchange:
    """See the module. One thread at a time."""

    def __init__(
        self, me: bytes, epoch: int, networks: int, uniform: Callable[[float, float], float],
        settings: ExchangeSettings | None = None, terms: Sequence[SideTerms] = (),
    ) -> None:  # fmt: skip
        """`me`: our id, 16 bytes; `epoch`: greater with each start; `networks`: their number; `terms`: of each."""
        self.me = me
        self.epoch = epoch
        self._settings = settings = settings or ExchangeSettings()
        self._uniform = uniform
        self.peers = Peers(me, settings.node_timeout)
        self.logs = LogBook(me, epoch, self.peers, is_relay=networks > 1)
        self.held = HeldBlocks(
            (settings.cache_bytes, DURABLE_BYTES), settings.durable_cache, self._gave_up, settings.disk
        )
        self.assembler = Assembler(processed=settings.processed_hashes)
        self.sides = [
            NetworkSide(
                me, epoch,
                LogRecovery(
                    me[:4], self.logs, uniform, reorder=settings.reorder_seconds,
                    round_trip=settings.round_trip_on(each), is_lossless=each.is_lossless,
                ),
                each,
            )
            for each in terms or [SideTerms()] * networks
        ]  # fmt: skip
        self._relay = Relay(networks)
        self._announcer = NodeAnnouncer(me, settings.announcement(epoch), settings.ack_ranges, networks)
        self._window = SeenWindow(settings.cache_bytes // 2, 3 * settings.announce_seconds)
        self._own = OwnLogs(me, epoch, self.logs, self._window, settings.durable_cache)

    def say(self, message: NodeMessage | None, now: float) -> None:
        """Say a message on all networks; None: nothing more goes with what waits. Raises OversizeError."""
        for out, level in self._own.blocks(message, self._settings.form, now):
            for side in self.sides:
                side.queues.add(out, level)

    def room(self, now: float, level: int | None = 0) -> float:
        """Seconds until there may be room for another message; 0: there is. `level`: its importance, by which it is to
        go soon on the network where the least waits before it; where more waits it may expire, as what comes from other
        networks. None: it need not go soon."""
        wait = self._settings.announce_seconds / 4 if self._window.room(now) < 0 else 0.0
        turn = 0.0 if level is None else min(each.turn_in(level, now) for each in self.sides)
        return max([wait, turn, *(each.room_in(self._settings.queue_bytes) for each in self.sides)])

    def settled(self, origin: bytes, epoch: int) -> int:
        """The serial up to which nothing more comes of a log: all has come, or is over."""
        log = self.logs.get(LogId(origin, epoch))
        return SERIAL_MOST if log is None else log.settled

    def facts(self, now: float) -> dict[bytes, NodePeer]:
        """Other nodes, by their ids."""
        return self.peers.facts(now, (each.recovery.senders.losses() for each in self.sides))

    # -- what comes -----------------------------------------------------------------------------------------------

    def received(self, at: int, data: bytes | memoryview, now: float) -> Iterator[NodeMessage]:
        """Bytes from a network; messages that are complete by them, and are for us. Raises ProtocolError."""
        datagram = read(data)
        if isinstance(datagram, str):
            raise ProtocolError(f"a datagram {datagram}")
        if datagram.origin == self.me and self._own.is_twins(datagram, max(each.number for each in self.sides)):
            self.peers.hear_twin(datagram.footer.epoch)
            return
        if datagram.sender == self.me[:4] and datagram.number <= self.sides[at].number:
            return  # ours, which multicast brings back
        recovery, has_block = self.sides[at].recovery, datagram.footer.serial > 0
        recovery.senders.note(datagram.sender, datagram.number, now, has_block=has_block)
        self.peers.note(datagram, now)
        if datagram.origin != self.me and len(self.sides) > 1:
            self._relay.hear(at, datagram, bytes(data), now)
            if datagram.hops and not datagram.is_repair:
                self._relay.yield_to_other(at, datagram, now + 2 * recovery.delay + self._uniform(0, recovery.delay))
        if (has_block and not self._take_block(at, datagram, bytes(data), now)) or datagram.origin == self.me:
            return
        message = self._assembled(at, datagram, now)
        if message is None:
            return
        if message.kind in (DatagramKind.REQUEST, DatagramKind.ANNOUNCEMENT):
            self._take_control(at, message, datagram.sender, now)
        elif not message.to or message.to == self.me:
            yield from one_by_one(message)

    def _take_block(self, at: int, datagram: Datagram, data: bytes, now: float) -> bool:
        """A block of a log has come: it is held for others; whether more is to be done with it."""
        log_id, serial = log_of(datagram), datagram.footer.serial
        if serial > SERIAL_MOST:
            raise ProtocolError("a serial beyond all that a node can say")
        if not self.logs.concerns_us(log_id):
            return False
        is_new, lacked_at = self.sides[at].recovery.note_block(log_id, serial, now, is_repair=datagram.is_repair)
        log = self.logs.open(log_id)
        if not is_new and not lacked_at:
            return False
        log.came_at = at if log.came_at < 0 else log.came_at
        log.is_far = datagram.hops >= datagram.max_hops
        if len(self.sides) == 1 and datagram.extension(Extension.HOLDERS):
            log.held.remove_range(serial, serial)
            return is_new
        if not self.held.keep(log_id, datagram, data, now + datagram.footer.expiration / 1000):
            log.end(serial, serial)
            return False
        log.held.add(serial)
        for other, side in enumerate(self.sides):
            if lacked_at >> other & 1:
                self._repair(side, [(log_id, serial)])
        return is_new

    def _assembled(self, at: int, datagram: Datagram, now: float) -> NodeMessage | None:
        """A message that is complete by a block, and goes on to other networks. What was not what it said is asked for
        again."""
        try:
            message = self.assembler.add(datagram, now, is_known=self.logs.is_known(datagram.origin))
        except ProtocolError:
            if datagram.footer.serial:
                log_id = log_of(datagram)
                for serial in self.assembler.refused:
                    self.held.remove(log_id, serial)
                    self.sides[at].recovery.lack_again(log_id, serial, now)
            raise
        if message is None:
            return None
        if message.mode == DatagramMode.DURABLE and not self.held.durables.is_news(message):
            return None
        if message.kind != DatagramKind.REQUEST:
            self._pass_on(at, message, now)
        return message

    def _take_control(self, at: int, message: NodeMessage, sender: bytes, now: float) -> None:
        if len(message.body) > CONTROL_BYTES:
            raise ProtocolError(f"a request or an announcement of more than {CONTROL_BYTES} bytes")
        if message.kind == DatagramKind.REQUEST:
            self._answer(at, decoded_request(message.body), message.origin, sender, now)
            return
        announcement = decoded_announcement(message.body)
        if self.peers.hear(message.origin, announcement, at, now):
            self._hear(at, message, announcement, now)

    def _answer(self, at: int, request: Request, asker: bytes, sender: bytes, now: float) -> None:
        """Answer what is asked for on a network; what we do not hold any more is asked for where it came from."""
        side = self.sides[at]
        side.lacked_at = now
        wanted = {log_id: ranges for log_id, ranges in request.wanted.items() if self.logs.concerns_us(log_id)}
        told = Asker(sender, self.logs.is_known(asker), self.peers.is_overrun(asker), side.rate)
        request = request._replace(wanted=wanted)
        answers, lacking, lost = side.recovery.note_request(request, now, told)
        side.note_lost(lost)
        self._repair(side, answers)
        for log_id, serial in lacking:
            log = self.logs.get(log_id)
            if log is None or not log.goes_on(at):
                continue
            if not (side.terms.reduced_relay or self.sides[log.came_at].terms.reduced_relay):
                self.sides[log.came_at].recovery.want(log_id, serial, at, now)

    def _repair(self, side: NetworkSide, answers: Iterable[tuple[LogId, int]]) -> None:
        found = ((log_id, serial, self.held.get(log_id, serial)) for log_id, serial in answers)
        side.repair((log_id, serial, held.level) for log_id, serial, held in found if held is not None)

    def _hear(self, at: int, message: NodeMessage, announcement: NodeAnnouncement, now: float) -> None:
        """A node says what it can give. What it has of others is for its own networks: behind them others say it."""
        side, origin = self.sides[at], message.origin
        for each in announcement.held:
            is_own = (each.origin, each.epoch) == (origin, announcement.epoch) and each.floor > 0
            if self.logs.is_told(each.log_id) and (is_own or not message.hops):
                with suppress(ProtocolError):  # no room for one of its logs: others have some
                    side.recovery.note_announcement(
                        each.log_id, each.ranges, now, floor=each.floor, last=each.last, is_own=is_own
                    )
        self._own.note_seen(origin, announcement.settled.get(self.me[:4], 0), now)
        self.held.give_up(self._own.seen_by_all(self.peers))

    def _pass_on(self, at: int, message: NodeMessage, now: float) -> None:
        """A message is complete for the first time: it goes on, unless it is heard there meanwhile."""
        for other, side in enumerate(self.sides):
            is_reduced = side.terms.reduced_relay or self.sides[at].terms.reduced_relay
            if other != at and (message.kind == DatagramKind.PUBLICATION or not is_reduced):
                delay = self._relay.delay_on(other, now, side.recovery.delay, self._uniform)
                self._relay.plan(other, message, now + delay)
        if message.to == self.me:
            self._relay.forget(message)

    def outgoing(self, at: int, now: float) -> bytes | None:
        """The next datagram for a network; None: nothing waits."""
        side = self.sides[at]
        if self._own.waiting:
            self.say(None, now)
        while (turn := side.queues.next(is_relaying=self._relay.has_next(at))) is not None:
            data = self._data(at, side, turn, now)
            if data is not None:
                return data
        return None

    def has_outgoing(self, at: int) -> bool:
        """Whether something waits for a network."""
        return bool(self._own.waiting or self.sides[at].queues or self._relay.has_next(at))

    def _data(self, at: int, side: NetworkSide, turn: Turn, now: float) -> bytes | None:
        """Bytes of what goes; None: it is over."""
        if isinstance(turn, BlockRepair):
            held, log = self.held.get(turn.log_id, turn.serial), self.logs.get(turn.log_id)
            if held is None or held.expires <= now or log is None:
                return None
            block = passed_on(held.data) if log.goes_on(at) else held.data
            return block and side.sent(block, now, turn.log_id, turn.serial, expires=held.expires, is_repair=True)
        if isinstance(turn, bytes):
            return side.sent(turn, now)
        if isinstance(turn, OutgoingBlock):
            if turn.log_id is not None and not turn.serial and turn.expires > now:
                self._own.number(turn, turn.log_id)
                self.held.keep(turn.log_id, turn.datagram, turn.packed, turn.expires)
            if not self._own.lives(turn, now) or side.recovery.has_put(turn.log_id, turn.serial):
                side.expired += turn.expires <= now
                return None
            if turn.log_id is None:
                return side.sent(packed(turn.datagram), now)
            return side.sent(turn.packed, now, turn.log_id, turn.serial, expires=turn.expires)
        relayed = self._relay.next(at)
        if relayed is None or not relayed.packed or relayed.expires <= now:
            side.expired += relayed is not None and relayed.expires <= now
            return None
        if side.recovery.has_put(relayed.log_id, relayed.serial):  # in answer to somebody
            return None
        log_id, expires = relayed.log_id if relayed.log_id in self.logs else None, relayed.expires
        is_more = self._relay.has_next(at)
        return side.sent(relayed.packed, now, log_id, relayed.serial, expires=expires, is_relayed=is_more)

    def due(self) -> float:
        """When `tick` has something to do."""
        return min(self._relay.due(), *(min(each.recovery.due(), each.announce_at) for each in self.sides))

    def tick(self, now: float) -> None:
        """Do what is due: requests, answers in the place of others, announcements, what has expired or left."""
        self.held.expire(now)
        gone = self.peers.age(now)
        for origin in gone:
            self._own.note_left(origin)
        if gone:
            self.logs.mark_gone(now, self.peers.epoch)
        self._relay.tick(now)
        for at, side in enumerate(self.sides):
            self._repair(side, side.recovery.answers(now))
            request = side.recovery.request(now, now - self._settings.node_timeout)
            if request is not None:
                side.lacked_at = now
                self._control(side, DatagramKind.REQUEST, DatagramMode.UNRELIABLE, encoded_request(request))
            is_due = side.announce_at <= now
            if is_due:
                side.recovery.senders.count_losses(now)
                side.announce_at = now + self._settings.announce_seconds * self._uniform(0.9, 1.1)
                self._tidy(now)
            if side.recovery.announces(now) or is_due:
                self._announce(at, side, now, is_end=not is_due)

    def _announce(self, at: int, side: NetworkSide, now: float, *, is_end: bool) -> None:
        """Say who we are, and what we hold; or shortly the end of a burst, if somebody may have lost it."""
        losses = {} if is_end else side.recovery.senders.losses()
        waiting = chain(side.queues, self._relay.waiting(at)) if len(self.sides) > 1 else ()
        body = encoded_announcement(self._announcer.next(at, self.logs, self.peers, losses, waiting, is_end=is_end))
        side.lacked_at = side.lacked_at if side.lacked_at >= 0 else now
        if not is_end or side.may_end(len(body) + CONTROL_OVERHEAD, now):
            self._control(side, DatagramKind.ANNOUNCEMENT, DatagramMode.RELIABLE, body)

    def _tidy(self, now: float) -> None:
        """Now and then: forget what is over, and say again what is to live on."""
        self.assembler.expire(now)
        self._window.judge(now)
        self.held.give_up(self._own.seen_by_all(self.peers))
        self.logs.mark_gone(now, self.peers.epoch)
        for log_id, log in self.logs.items():
            if log.gone_at <= now - self._settings.node_timeout:  # by now all have told what they hold
                log.give_up_but(RangeSet(r for each in self.sides for r in each.recovery.announced(log_id)))
        idle = self.logs.forget_idle(now - self._settings.node_timeout, self.peers)
        self._own.forget(idle)
        for log_id in idle:
            if log_id.origin != self.me and not self.logs.has(log_id.origin):
                self.held.durables.forget(log_id.origin)
        for side in self.sides:
            side.recovery.forget(idle)
            side.recovery.tidy(now)
        for message in self._own.durables.due(now):
            self.say(message, now)

    def _control(self, side: NetworkSide, kind: DatagramKind, mode: DatagramMode, body: bytes) -> None:
        life = int(self._settings.announce_seconds * 1000)
        message = NodeMessage(kind, mode, body, self.me, expiration=life)
        side.queues.control(map(packed, blocks(message, self._settings.form._replace(block=60_000))))

    def _gave_up(self, log_id: LogId, serial: int) -> None:
        """A block is not held any more."""
        for side in self.sides:
            side.recovery.give_up(log_id, serial)
        log = self.logs.get(log_id)
        if log is not None:
            log.held.remove_range(serial, serial)
            if log_id[:2] == (self.me, self.epoch):
                log.raise_floor(next(iter(log.held), (log.seen.top + 1, 0))[0])
