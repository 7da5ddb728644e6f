"""Our own logs: what we say gets its place in them, and how far others have seen it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from jbi_pubsub.core.intervals import RangeSet
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, Extension, Holders, packed
from jbi_pubsub.network.durables import OwnDurables
from jbi_pubsub.network.flow import OutgoingBlock, SeenWindow
from jbi_pubsub.network.log import LogBook, LogId, stream_to
from jbi_pubsub.network.message import MessageForm, NodeMessage, blocks, together

LIFE: Final = 60_000
"""Milliseconds that a reliable message lives, where it does not say."""
LIFE_MOST: Final = (1 << 32) - 1


class OwnLogs:
    """Logs of this start of ours. One thread at a time."""

    def __init__(self, me: bytes, epoch: int, logs: LogBook, window: SeenWindow, durables: int) -> None:
        """`durables`: durable messages that are said again before their lives end."""
        self._me, self._epoch = me, epoch
        self._logs = logs
        self._window = window
        self.durables = OwnDurables(durables)
        self._serials: dict[LogId, int] = {}
        self._forgotten = 0
        """The greatest serial of all logs to one node that are forgotten: such a log begins behind it."""
        self._seen: dict[bytes, int] = {}
        """By node up to where it has seen our log for all, as it said last."""
        self._until_seen = RangeSet()
        """Serials of that log that are held until all nodes have seen them."""
        self.waiting: list[NodeMessage] = []
        """Messages that were said last, and that others may go with."""
        self._size = 0
        """Bytes of their bodies."""

    def blocks(
        self, message: NodeMessage | None, form: MessageForm, now: float
    ) -> Iterator[tuple[list[OutgoingBlock], int]]:
        """Blocks, with their importance, of what goes by a message that is said: of those that it does not go with, and
        its own unless others may go with it. None: none may any more. Raises OversizeError."""
        size = len(message.body) if message is not None else 0
        waits = message is not None and size < form.together and message.goes_with(message)
        first = self.waiting[0] if self.waiting else None
        if first is not None and not (
            waits and message is not None and self._size + size <= form.together and message.goes_with(first)
        ):
            waiting, self.waiting, self._size = self.waiting, [], 0
            yield self._blocks(together(waiting), form, now, len(waiting)), first.level
        if message is not None and waits:
            self.waiting.append(message)
            self._size += size
        elif message is not None:
            yield self._blocks(message, form, now), message.level

    def _blocks(self, message: NodeMessage, form: MessageForm, now: float, count: int = 1) -> list[OutgoingBlock]:
        life = min(message.expiration or LIFE, LIFE_MOST)
        message = message._replace(origin=self._me, expiration=life)
        data = blocks(message, form)
        self.durables.note(message, now)
        log_id = None
        if message.mode != DatagramMode.UNRELIABLE:
            log_id = LogId(self._me, self._epoch, stream_to(message.to) if message.to else 0)
        made = [OutgoingBlock(each, now + life / 1000, log_id) for each in data]
        made[-1].objects = count * (message.kind == DatagramKind.PUBLICATION)
        return made

    def number(self, out: OutgoingBlock, log_id: LogId) -> None:
        """A block leaves for the first time: it gets its serial, and is to be held."""
        out.serial = self._serials[log_id] = self._last(log_id) + 1
        footer = out.datagram.footer._replace(epoch=self._epoch, stream=log_id.stream, serial=out.serial)
        out.datagram = out.datagram._replace(footer=footer, number=1)
        out.packed = packed(out.datagram)
        log = self._logs.open(log_id)
        if not log.seen:
            log.raise_floor(out.serial)
        log.seen.add(out.serial)
        log.held.add(out.serial)
        if not log_id.stream:
            self._window.note_said(out.serial, len(out.datagram.data))
            if out.datagram.extension(Extension.HOLDERS) == bytes((Holders.UNTIL_SEEN,)):
                self._until_seen.add(out.serial)

    def lives(self, out: OutgoingBlock, now: float) -> bool:
        """Whether a block is to go yet: it is not over, and no newer update has replaced it."""
        log = (
            self._logs.get(out.log_id) if out.log_id is not None and out.datagram.mode == DatagramMode.DURABLE else None
        )
        return out.expires > now and (log is None or out.serial in log.held)

    def note_seen(self, member: bytes, serial: int, now: float) -> None:
        """Another node has seen all of our log for all up to a serial; 0: it does not say."""
        if serial <= self._last(LogId(self._me, self._epoch)):
            self._window.note_seen(member, serial, now)
            if serial:
                self._seen[member] = serial

    def note_left(self, member: bytes) -> None:
        """Another node has left: nobody waits for it."""
        self._window.forget(member)
        self._seen.pop(member, None)

    def seen_by_all(self, peers: Iterable[bytes]) -> Iterator[tuple[LogId, int]]:
        """Blocks that are held until all nodes that are heard have seen them, and that they have."""
        if not self._until_seen:
            return
        log_id = LogId(self._me, self._epoch)
        log = self._logs.open(log_id)
        up_to = min((self._seen.get(each, 0) for each in peers), default=log.seen.top)
        for low, high in list(self._until_seen.within(log.floor, up_to)):
            yield from ((log_id, serial) for serial in range(low, high + 1))
        self._until_seen.remove_range(1, max(up_to, log.floor - 1))

    def is_twins(self, datagram: Datagram, number: int) -> bool:
        """Whether a datagram under our id is a twin's: of a later start than ours, or one that we have never sent. (Of
        an earlier start may be what we said ourselves then.) `number`: the greatest that we have given."""
        footer = datagram.footer
        epoch = footer.epoch if footer.serial else 0
        if epoch > self._epoch or (datagram.sender == self._me[:4] and datagram.number > number):
            return True
        return epoch == self._epoch and footer.serial > self._last(LogId(self._me, epoch, footer.stream))

    def forget(self, log_ids: Iterable[LogId]) -> None:
        """Forget logs of ours to nodes that have left. Should one come back, which may have heard such a log, ours
        begins behind all that are forgotten."""
        self._forgotten = max([self._forgotten, *(self._serials.pop(each, 0) for each in log_ids)])

    def _last(self, log_id: LogId) -> int:
        """The last serial of a log of ours."""
        return self._serials.get(log_id, self._forgotten if log_id.stream else 0)
