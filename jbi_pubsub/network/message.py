"""Messages between nodes and the blocks that they travel in. Pure.

Rules:
- The hash of a message is that of its body before compression. A body is compressed once: a repair is the same bytes.
- Blocks of different messages, origins, starts of them, totals or sizes never mix.
- What is on its way is bounded: bytes and messages of each origin and of all together; the oldest of whoever has too
  much is given up, and told.
- Small messages that are alike and wait anyway go together, as one; they are delivered one by one.
- A message that is complete for the first time is delivered; its hash is remembered, so that it never comes again.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple

from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.network.datagram import (
    NO_FOOTER,
    Datagram,
    DatagramKind,
    DatagramMode,
    Extension,
    Footer,
    Holders,
    hash_of,
)

MESSAGE_MOST: Final = 1 << 30
"""Bytes of a message's body."""
PARTS_BYTES: Final = 256 << 20
"""Bytes of messages that are not complete, of all origins."""
PARTS_SHARE: Final = 4
"""Part of them that is of one origin, at most."""
PARTS_MOST: Final = 10_000
"""Messages that are not complete."""
TOGETHER_MOST: Final = 4_096
"""Messages that go together."""
OVERHEAD: Final = 200
"""Bytes that a block takes beside its data."""
_STEP: Final = 1 << 16

_COMPRESS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "zlib": zlib.compress, "bz2": bz2.compress, "lzma": lzma.compress
}  # fmt: skip
_EXPANDER: Final[dict[str, Callable[[], Any]]] = {
    "zlib": zlib.decompressobj, "bz2": bz2.BZ2Decompressor, "lzma": lzma.LZMADecompressor
}  # fmt: skip


class NodeMessage(NamedTuple):
    """A message, as a node says it or has got it."""

    kind: DatagramKind
    mode: DatagramMode
    body: bytes
    origin: bytes = bytes(16)
    hash: bytes = b""
    expiration: int = 0
    """Milliseconds that were left when its last block came; of an unreliable one nothing."""
    durability: bytes = b""
    update: int = 0
    to: bytes = b""
    """Id of the node that it is for; b"": all."""
    level: int = 0
    """Importance, 1 to 5; 0: it does not say."""
    hops: int = 0
    epoch: int = 0
    """Start of its origin that said it, as it came; 0 of an unreliable one."""
    serial: int = 0
    """Serial of its first block in its origin's log, as it came; 0 of an unreliable one."""
    is_several: bool = False
    """Whether its body is those of several."""
    holders: Holders = Holders.ALL
    """The nodes that are to hold it, of one of ours."""

    def goes_with(self, other: NodeMessage) -> bool:
        """Whether it differs from another one in its body alone, and both are publications for all, sent reliably."""
        is_usual = self.kind == DatagramKind.PUBLICATION and self.mode == DatagramMode.RELIABLE and not self.to
        return is_usual and self._replace(body=other.body) == other


class MessageForm(NamedTuple):
    """Form of a node's messages: how they are cut and described."""

    block: int = 1_360
    """Bytes of data in a block."""
    algorithm: int = 0
    compression: str = "none"
    max_hops: int = 20
    inactivity: int = 10
    """Units of 10 ms."""
    together: int = 0
    """Bytes of messages that go together, about; 0: each goes by itself."""


def together(messages: Sequence[NodeMessage]) -> NodeMessage:
    """Messages that go with each other, as one."""
    if len(messages) == 1:
        return messages[0]
    parts = (part for each in messages for part in (len(each.body).to_bytes(4), each.body))
    return messages[0]._replace(body=b"".join(parts), is_several=True)


def one_by_one(message: NodeMessage) -> Sequence[NodeMessage]:
    """Messages that came as one. Raises ProtocolError."""
    if not message.is_several:
        return (message,)
    found: list[NodeMessage] = []
    body, at = message.body, 0
    while at < len(body):
        end = at + 4 + int.from_bytes(body[at : at + 4])
        if end > len(body) or len(found) == TOGETHER_MOST:
            raise ProtocolError("messages that go together, and have no end, or are too many")
        found.append(message._replace(body=body[at + 4 : end], is_several=False))
        at = end
    return found


def blocks(message: NodeMessage, form: MessageForm) -> list[Datagram]:
    """Blocks of a message of this node, without serials, which they get when they leave. Raises OversizeError: nobody
    would put them together."""
    body, extensions = message.body, []
    name = hash_of(body, form.algorithm)
    if form.compression != "none":
        smaller = _COMPRESS[form.compression](body)
        if len(smaller) < len(body):
            body = smaller
            extensions.append((Extension.COMPRESSION, form.compression.encode()))
    if len(body) + OVERHEAD * -(-len(body) // form.block) > PARTS_BYTES // PARTS_SHARE:
        raise OversizeError(
            f"a message of {len(body)} bytes is more than nodes put together of blocks of {form.block} bytes",
            hint="publish smaller objects, or give the network larger blocks or a compression",
        )
    is_compressed = bool(extensions)
    if message.to:
        extensions.append((Extension.TO, message.to))
    if message.is_several:
        extensions.append((Extension.TOGETHER, b""))
    if message.holders:
        extensions.append((Extension.HOLDERS, bytes((message.holders,))))
    if message.level:
        extensions.append((Extension.LEVEL, bytes((message.level,))))
    is_unreliable = message.mode == DatagramMode.UNRELIABLE
    footer = NO_FOOTER if is_unreliable else Footer(0, 0, 0, message.expiration, message.durability, message.update)
    data = [body[at : at + form.block] for at in range(0, len(body), form.block)] or [b""]
    return [
        Datagram(
            message.kind, message.mode, message.origin, name, each, number, len(data), footer, 0, form.max_hops,
            form.inactivity, form.algorithm, is_compressed, extensions=tuple(extensions),
        )
        for number, each in enumerate(data, 1)
    ]  # fmt: skip


_PartKey = tuple[bytes, int, bytes, int]


@dataclass(slots=True)
class _Assembly:
    """Blocks of a message that have come."""

    touched: float
    inactivity: float
    blocks: dict[int, bytes] = field(default_factory=dict)
    size: int = 0
    expires: float = inf
    """When it is over, of a reliable one."""
    is_reliable: bool = False
    serials: dict[int, int] = field(default_factory=dict)
    """By block."""

    def is_over(self, now: float) -> bool:
        """Whether it will not be complete any more."""
        return self.expires <= now if self.is_reliable else self.touched + self.inactivity <= now


class _ProcessedHashes:
    """Hashes of messages that were complete, with their origins and those's starts, the last `most` to twice as many.
    What is said again after a start is said anew."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: set[tuple[bytes, bytes, int]] = set()
        self._old: set[tuple[bytes, bytes, int]] = set()

    def __contains__(self, key: tuple[bytes, bytes, int]) -> bool:
        return key in self._new or key in self._old

    def add(self, key: tuple[bytes, bytes, int]) -> None:
        """Remember one more."""
        if len(self._new) >= self._most:
            self._old, self._new = self._new, set()
        self._new.add(key)


class Assembler:
    """Messages that come in blocks, in any order, some of them twice.

    Each origin has an account, and all that have not announced themselves have one together."""

    def __init__(
        self, *, processed: int = 1_000_000, most_bytes: int = PARTS_BYTES, most: int = PARTS_MOST,
        message_most: int = 0,
    ) -> None:  # fmt: skip
        """`processed`: hashes that are remembered; `most_bytes`, `most`: of messages that are not complete;
        `message_most`: bytes of a message; 0: as many as any may have."""
        self._message_most = message_most or MESSAGE_MOST
        self._processed = _ProcessedHashes(processed)
        self._most_bytes, self._most = most_bytes, most
        self._parts: dict[bytes, OrderedDict[_PartKey, _Assembly]] = {}
        """By account, then by origin, its start, hash and blocks in all."""
        self._bytes: Counter[bytes] = Counter()
        self._count = 0
        self.size = 0
        """Bytes of messages that are not complete."""
        self.given_up = 0
        """Messages that there was no room for."""
        self.refused: list[int] = []
        """Serials of the blocks of the message that was refused last."""

    def __len__(self) -> int:
        """Messages that are not complete."""
        return self._count

    def has_processed(self, origin: bytes, name: bytes, epoch: int = 0) -> bool:
        """Whether a message of that start of its origin was complete before."""
        return (origin, name, epoch) in self._processed

    def add(self, datagram: Datagram, now: float, *, is_known: bool = True) -> NodeMessage | None:
        """A block has come: the message, when it is complete for the first time. Raises ProtocolError for one whose
        blocks don't fit, or are not what its hash says: it is given up, and does not come again by these blocks.
        `is_known`: its origin has announced itself."""
        epoch, serial = datagram.footer.epoch, datagram.footer.serial
        if datagram.kind != DatagramKind.REQUEST and self.has_processed(datagram.origin, datagram.message, epoch):
            return None
        self.refused = [serial]
        if datagram.total * len(datagram.data) > self._message_most + len(datagram.data):
            raise ProtocolError(f"a message of more than {self._message_most} bytes")
        if datagram.total == 1:
            return self._complete(datagram, bytes(datagram.data), serial)
        key = (datagram.origin, epoch, datagram.message, datagram.total)
        account = datagram.origin if is_known else b""
        if key not in self._parts.get(account, ()):  # it may have begun before, or behind an absence
            account = next((each for each in (datagram.origin, b"") if key in self._parts.get(each, ())), account)
        part = self._part(account, key, datagram, now)
        if datagram.block in part.blocks:
            return None
        part.blocks[datagram.block] = bytes(datagram.data)
        part.serials[datagram.block] = serial
        self._grow(account, part, len(datagram.data) + OVERHEAD)
        if len(part.blocks) < datagram.total:
            self._make_room(account)
            return None
        self._drop(account, key)
        self.refused = list(part.serials.values())
        sizes = {len(data) for number, data in part.blocks.items() if number < datagram.total}
        if len(sizes) > 1 or len(part.blocks[datagram.total]) > min(sizes):
            raise ProtocolError("blocks of different sizes")
        data = b"".join(part.blocks[number] for number in range(1, datagram.total + 1))
        return self._complete(datagram, data, part.serials[1])

    def expire(self, now: float) -> int:
        """Give up unreliable messages of which nothing has come for their inactivity, and reliable ones that are over;
        how many."""
        stale = [
            (account, key) for account, parts in self._parts.items() for key, part in parts.items() if part.is_over(now)
        ]
        for account, key in stale:
            self._drop(account, key)
        return len(stale)

    def _part(self, account: bytes, key: _PartKey, datagram: Datagram, now: float) -> _Assembly:
        parts = self._parts.setdefault(account, OrderedDict())
        part = parts.get(key)
        life = datagram.footer.expiration
        if part is not None and part.is_over(now):
            self._drop(account, key)
            part = None
        if part is None:
            parts = self._parts.setdefault(account, parts)
            part = parts[key] = _Assembly(
                now, datagram.inactivity / 100, is_reliable=datagram.mode != DatagramMode.UNRELIABLE,
                expires=now + life / 1000 if life else inf,
            )  # fmt: skip
            self._count += 1
        part.touched = now
        parts.move_to_end(key)
        return part

    def _complete(self, datagram: Datagram, data: bytes, serial: int) -> NodeMessage:
        body = data
        if datagram.is_compressed:
            compression = datagram.extension(Extension.COMPRESSION).decode(errors="replace")
            body = expanded(data, compression, self._message_most)
        if hash_of(body, datagram.algorithm) != datagram.message:
            raise ProtocolError("a message that is not what its hash says")
        level, footer = datagram.extension(Extension.LEVEL), datagram.footer
        if datagram.kind != DatagramKind.REQUEST:
            self._processed.add((datagram.origin, datagram.message, footer.epoch))
        return NodeMessage(
            datagram.kind, datagram.mode, body, datagram.origin, datagram.message,
            footer.expiration, footer.durability, footer.update,
            datagram.extension(Extension.TO), level[0] if level else 0, datagram.hops, footer.epoch, serial,
            any(kind == Extension.TOGETHER for kind, _ in datagram.extensions),
        )  # fmt: skip

    def _grow(self, account: bytes, part: _Assembly, size: int) -> None:
        part.size += size
        self.size += size
        self._bytes[account] += size

    def _drop(self, account: bytes, key: _PartKey) -> None:
        parts = self._parts[account]
        part = parts.pop(key)
        self._count -= 1
        self._grow(account, part, -part.size)
        if not parts:
            del self._parts[account], self._bytes[account]

    def _make_room(self, account: bytes) -> None:
        """The oldest of an account that has too much go, or of the one that has most."""
        while account in self._parts and (
            self._bytes[account] > self._most_bytes // PARTS_SHARE or len(self._parts[account]) > self._most // 2
        ):
            self._give_up(account)
        while self._count > self._most or self.size > self._most_bytes:
            self._give_up(max(self._bytes, key=self._bytes.__getitem__))

    def _give_up(self, account: bytes) -> None:
        self._drop(account, next(iter(self._parts[account])))
        self.given_up += 1


def expanded(data: bytes, compression: str, most: int = 0) -> bytes:
    """The body before compression. Raises ProtocolError for what is none, or of more than `most` bytes (0: than any
    message may have)."""
    most = most or MESSAGE_MOST
    make = _EXPANDER.get(compression)
    if make is None:
        raise ProtocolError(f"a compression {compression[:20]!r} that nobody knows")
    expander = make()
    found, size = [], 0
    try:
        for at in range(0, len(data), _STEP):
            piece = data[at : at + _STEP]
            while not expander.eof:
                found.append(expander.decompress(piece, _STEP))
                size += len(found[-1])
                if size > most:
                    raise ProtocolError(f"a message of more than {most} bytes")
                piece = getattr(expander, "unconsumed_tail", b"")  # zlib's; the others keep it
                if not piece and getattr(expander, "needs_input", True):
                    break
    except ProtocolError:  # which is an OSError
        raise
    except (zlib.error, OSError, EOFError, lzma.LZMAError) as exc:
        raise ProtocolError(f"bytes that are not {compression}: {exc}") from exc
    if not expander.eof:
        raise ProtocolError(f"{compression} that does not end")
    return b"".join(found)
