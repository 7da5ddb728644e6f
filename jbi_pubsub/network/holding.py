"""Blocks that a node can give: those that it has said, and those that it has got.

Durable messages have a place of their own: nothing else pushes them out. What has no room in memory goes to the disk,
if there is to be one. Whoever gives a block up says so to its log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jbi_pubsub.network.cache import BlockCache, HeldBlock
from jbi_pubsub.network.datagram import Datagram, DatagramMode, Extension
from jbi_pubsub.network.disk import DiskBlocks
from jbi_pubsub.network.durables import DurableBlocks
from jbi_pubsub.network.log import LogId


class HeldBlocks:
    """See the module. One thread at a time."""

    def __init__(
        self, most: tuple[int, int], durables: int, gave_up: Callable[[LogId, int], None], disk: DiskBlocks | None
    ) -> None:
        """`most`: bytes in memory, of all but durable messages, and of these; `durables`: those messages; `gave_up` is
        called for each block that is not held any more; `disk`: where others go that have no room in memory."""
        self._gave_up = gave_up
        self._caches = (BlockCache(most[0]), BlockCache(most[1]))
        self._disk = disk
        self.durables = DurableBlocks(durables)

    def __len__(self) -> int:
        return sum(map(len, self._caches))

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(each.size for each in self._caches)

    @property
    def disk_size(self) -> int:
        """Bytes on disk."""
        return self._disk.size if self._disk is not None else 0

    @property
    def failed(self) -> int:
        """Blocks that could not be written to the disk or read."""
        return self._disk.failed if self._disk is not None else 0

    def get(self, log_id: LogId, serial: int) -> HeldBlock | None:
        """A block, or None."""
        held = self._caches[0].get(log_id, serial) or self._caches[1].get(log_id, serial)
        return self._disk.get(log_id, serial) if held is None and self._disk is not None else held

    def keep(self, log_id: LogId, datagram: Datagram, data: bytes, expires: float) -> bool:
        """Keep a block, unless there is a newer update of its message; whether it is kept."""
        serial = datagram.footer.serial
        is_newest, replaced = self.durables.replace(log_id, datagram)
        self.give_up(replaced)
        if not is_newest:
            self._gave_up(log_id, serial)
        else:
            level = datagram.extension(Extension.LEVEL)
            block = HeldBlock(data, expires, level[0] if level else 0)
            is_durable = datagram.mode == DatagramMode.DURABLE
            for gone, number, oldest in self._caches[is_durable].put(log_id, serial, block):
                if is_durable or self._disk is None:
                    self._gave_up(gone, number)
                else:
                    for each in self._disk.put(gone, number, oldest):
                        self._gave_up(*each)
        return is_newest

    def close(self) -> None:
        """Remove the disk's file."""
        if self._disk is not None:
            self._disk.close()

    def expire(self, now: float) -> None:
        """Give up those that are over by now."""
        for cache in self._caches:
            for each in cache.expire(now):
                self._gave_up(*each)
        for each in self._disk.expire(now) if self._disk is not None else ():
            self._gave_up(*each)

    def give_up(self, blocks: Iterable[tuple[LogId, int]]) -> None:
        """Hold some no more."""
        for log_id, serial in list(blocks):
            self.remove(log_id, serial)
            self._gave_up(log_id, serial)

    def remove(self, log_id: LogId, serial: int) -> None:
        """Hold one no more, without a word of it."""
        is_there = [each.remove(log_id, serial) for each in self._caches]
        if self._disk is not None and not any(is_there):
            self._disk.remove(log_id, serial)
