"""Streams between two nodes: bytes in order, each once, over directed messages that may come in any order. Pure: times
are given.

Rules:
- Who opens a stream names a service of the other node, and sends nothing before that has taken it.
- Messages with data are numbered. Of what the other side has not taken, WINDOW is under way at most; a message counts
  OVERHEAD more than its data, so that small ones are bounded too. Who sends more loses the stream.
- An end leaves the other direction open; a reset ends both at once, also what is on its way.
- A stream ends with its node: when that is not heard any more, or was started anew.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.values import decoded

VERSION: Final = 1
WINDOW: Final = 64 << 10
CHUNK: Final = 16 << 10
"""Bytes of data in a message."""
OVERHEAD: Final = 64
TOLD_EACH: Final = WINDOW // 4
"""Bytes taken after which the other side is told."""
STREAMS_MOST: Final = 256
STREAMS_PER_NODE: Final = 64
REFUSED_MOST: Final = 4_096
"""Messages that wait to be said; beyond that none is opened, and strangers' streams are refused without a word."""
OPEN_SECONDS: Final = 10.0
"""For the other node to take a stream, or to be heard."""
GAP_SECONDS: Final = 60.0
"""For a message that others have overtaken."""
IDLE_SECONDS: Final = 3_600.0
"""Life of a stream over which nothing goes."""
WHY_MOST: Final = 500
_Id = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Name = Annotated[str, msgspec.Meta(max_length=300)]


class StreamOpen(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """Ask for a stream to a service; with `asks` only for where that says it is."""

    version: int
    id: _Id
    service: _Name
    asks: bool = False


class StreamTaken(msgspec.Struct, frozen=True, array_like=True, tag="taken"):
    """Say that a stream is taken, and at which endpoints the service is known where it is."""

    version: int
    id: _Id
    endpoints: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=16)] = ()


class StreamData(msgspec.Struct, frozen=True, array_like=True, tag="data"):
    """Bytes, the last ones perhaps; `is_openers`: said by who has opened it. `taken`: see StreamCredit."""

    version: int
    id: _Id
    is_openers: bool
    number: Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
    taken: _Count
    data: Annotated[bytes, msgspec.Meta(max_length=WINDOW)]
    is_last: bool = False


class StreamCredit(msgspec.Struct, frozen=True, array_like=True, tag="credit"):
    """Say how much of the other direction was taken in all."""

    version: int
    id: _Id
    is_openers: bool
    taken: _Count


class StreamReset(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    """End a stream at once."""

    version: int
    id: _Id
    is_openers: bool
    why: Annotated[str, msgspec.Meta(max_length=WHY_MOST)]


StreamBody = StreamOpen | StreamTaken | StreamData | StreamCredit | StreamReset
_body: Final = msgspec.msgpack.Decoder(StreamBody)


class StreamKey(NamedTuple):
    """A stream: the other node, its number, and whether we have opened it."""

    node: bytes
    id: int
    is_ours: bool


@dataclass(slots=True)
class _Going:
    """The direction from here. All amounts are of data and OVERHEAD."""

    number: int = 0
    sent: int = 0
    taken: int = 0
    """By the other side, as it says."""
    has_ended: bool = False


@dataclass(slots=True)
class _Coming:
    """The direction to here."""

    next: int = 1
    early: dict[int, StreamData] = field(default_factory=dict)
    gap_since: float = 0.0
    came: int = 0
    taken: int = 0
    told: int = 0
    has_ended: bool = False


@dataclass(eq=False, slots=True)
class NodeStream:
    """A stream, at one of its two nodes."""

    key: StreamKey
    service: str
    touched: float
    phase: Literal["opening", "asked", "open", "over"] = "opening"
    asks: bool = False
    endpoints: tuple[str, ...] = ()
    why: str = ""
    """Cause of its reset; "": there was none."""
    epoch: int = -1
    """Epoch of the other node; -1: it was not heard yet."""
    going: _Going = field(default_factory=_Going)
    coming: _Coming = field(default_factory=_Coming)
    inbox: deque[bytes] = field(default_factory=deque)
    """Pieces that have come in order, and are not taken."""

    @property
    def room(self) -> int:
        """Bytes that may be sent now."""
        if self.phase != "open" or self.going.has_ended:
            return 0
        return max(0, min(CHUNK, WINDOW - OVERHEAD - (self.going.sent - self.going.taken)))

    @property
    def has_all(self) -> bool:
        """Whether the other side has ended, and all of it was taken."""
        return self.coming.has_ended and not self.inbox


class Streams:
    """All streams of a node. One thread at a time."""

    def __init__(self, number: Callable[[], int]) -> None:
        """`number`: one that never comes again, below 2^63."""
        self._number = number
        self._streams: dict[StreamKey, NodeStream] = {}
        self._of = Counter[bytes]()
        self.out: deque[tuple[bytes, bytes]] = deque()
        """Messages to be said: to whom, and what."""

    def __len__(self) -> int:
        return len(self._streams)

    # -- from here ------------------------------------------------------------------------------------------------

    def open(self, node: bytes, service: str, now: float, *, epoch: int = -1, asks: bool = False) -> NodeStream:
        """Open a stream to a node's service; `epoch`: that of its start, as far as we know. Raises
        BackPressureError."""
        if len(self.out) >= REFUSED_MOST:
            raise BackPressureError("the network has no room for another stream", hint="Try again")
        if not self._has_room(node):
            raise BackPressureError(
                f"{self._of[node]} streams to that node are open, {len(self)} in all",
                hint=f"There may be {STREAMS_PER_NODE} and {STREAMS_MOST}: end some first",
            )
        stream = self._add(StreamKey(node, self._number(), True), service, now, asks=asks)
        stream.epoch = epoch
        self._say(stream, StreamOpen(VERSION, stream.key.id, service, asks))
        return stream

    def take(self, stream: NodeStream, endpoints: tuple[str, ...], now: float) -> None:
        """Take a stream that another node asks for; one that only asks is over with that."""
        if stream.phase == "asked":
            stream.phase, stream.touched = "open", now
            self._say(stream, StreamTaken(VERSION, stream.key.id, endpoints))
            if stream.asks:
                self._forget(stream)

    def send(self, stream: NodeStream, data: bytes, now: float, *, is_last: bool = False) -> None:
        """Send bytes, no more than there is room for, and perhaps the end of what we say."""
        if stream.phase != "open" or stream.going.has_ended:
            return
        going, coming = stream.going, stream.coming
        going.number += 1
        going.sent += len(data) + OVERHEAD
        going.has_ended = is_last
        stream.touched = now
        coming.told = coming.taken
        self._say(stream, StreamData(
            VERSION, stream.key.id, stream.key.is_ours, going.number, coming.taken, data, is_last
        ))  # fmt: skip
        self._close(stream)

    def took(self, stream: NodeStream, now: float) -> None:
        """The first of the inbox was taken."""
        coming = stream.coming
        coming.taken += len(stream.inbox.popleft()) + OVERHEAD
        stream.touched = now
        if coming.taken - coming.told >= TOLD_EACH and stream.phase == "open" and not coming.has_ended:
            coming.told = coming.taken
            self._say(stream, StreamCredit(VERSION, stream.key.id, stream.key.is_ours, coming.taken))
        self._close(stream)

    def reset(self, stream: NodeStream, why: str) -> None:
        """End a stream at once, and tell the other node why."""
        if stream.phase != "over":
            self._say(stream, StreamReset(VERSION, stream.key.id, stream.key.is_ours, why[:WHY_MOST]))
            self._forget(stream, why)

    # -- from there -----------------------------------------------------------------------------------------------

    def received(self, node: bytes, data: bytes, now: float) -> NodeStream | None:
        """A message of another node; the stream that has changed by it. Raises ProtocolError."""
        body = decoded(_body, data, "message of a stream")
        if isinstance(body, StreamOpen):
            return self._asked(node, body, now)
        is_ours = isinstance(body, StreamTaken) or not body.is_openers
        stream = self._streams.get(StreamKey(node, body.id, is_ours))
        if stream is None:
            if isinstance(body, StreamData | StreamTaken):
                self._refuse(node, body.id, "there is no such stream", is_openers=is_ours)
            return None
        if isinstance(body, StreamTaken):
            if stream.phase == "opening":
                stream.phase, stream.endpoints, stream.touched = "open", body.endpoints, now
                if stream.asks:
                    self._forget(stream)
        elif isinstance(body, StreamReset):
            self._forget(stream, body.why or "it was reset")
        else:
            if body.taken > stream.going.sent:
                self.reset(stream, "more was taken than was sent")
                return stream
            stream.going.taken = max(stream.going.taken, body.taken)
            if isinstance(body, StreamData):
                self._came(stream, body, now)
        return stream

    def _asked(self, node: bytes, body: StreamOpen, now: float) -> NodeStream | None:
        key = StreamKey(node, body.id, False)
        if key in self._streams or len(self.out) >= REFUSED_MOST:
            return None
        if not self._has_room(node):
            self._refuse(node, body.id, "the node has too many streams", is_openers=False)
            return None
        stream = self._add(key, body.service, now, asks=body.asks)
        stream.phase = "asked"
        return stream

    def _came(self, stream: NodeStream, body: StreamData, now: float) -> None:
        coming = stream.coming
        if body.number < coming.next or body.number in coming.early:
            return
        coming.came += len(body.data) + OVERHEAD
        if stream.phase != "open" or coming.came - coming.taken > WINDOW + OVERHEAD:
            self.reset(stream, "more was sent than there is room for")
            return
        stream.touched = now
        coming.early[body.number] = body
        while (following := coming.early.pop(coming.next, None)) is not None:
            coming.next += 1
            coming.gap_since = now
            coming.has_ended |= following.is_last
            if following.data:
                stream.inbox.append(following.data)
            else:
                coming.taken += OVERHEAD
        if len(coming.early) == 1:
            coming.gap_since = now
        self._close(stream)

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, heard: Mapping[bytes, int], now: float) -> list[NodeStream]:
        """End what has waited too long, or lost its node: `heard` are those that are there, and how often each had been
        started. Those that have ended."""
        ended: list[NodeStream] = []
        for stream in list(self._streams.values()):
            epoch = heard.get(stream.key.node)
            if stream.epoch < 0 and epoch is not None:
                stream.epoch = epoch
            if stream.epoch >= 0 and epoch != stream.epoch:
                self._forget(stream, "the node has left" if epoch is None else "the node was started again")
            elif why := self._fault(stream, now):
                self.reset(stream, why)
            else:
                continue
            ended.append(stream)
        return ended

    def _fault(self, stream: NodeStream, now: float) -> str:
        idle = now - stream.touched
        if (stream.phase in ("opening", "asked") or stream.epoch < 0) and idle > OPEN_SECONDS:
            return f"the node has not answered in {OPEN_SECONDS:g} s"
        if stream.coming.early and now - stream.coming.gap_since > GAP_SECONDS:
            return "a part of it was lost"
        return f"nothing has gone over it in {IDLE_SECONDS:g} s" if idle > IDLE_SECONDS else ""

    # -- inside ---------------------------------------------------------------------------------------------------

    def _has_room(self, node: bytes) -> bool:
        return len(self) < STREAMS_MOST and self._of[node] < STREAMS_PER_NODE

    def _refuse(self, node: bytes, number: int, why: str, *, is_openers: bool) -> None:
        if len(self.out) < REFUSED_MOST:
            self.out.append((node, _encoded(StreamReset(VERSION, number, is_openers, why))))

    def _add(self, key: StreamKey, service: str, now: float, *, asks: bool) -> NodeStream:
        stream = self._streams[key] = NodeStream(key, service, now, asks=asks)
        self._of[key.node] += 1
        return stream

    def _close(self, stream: NodeStream) -> None:
        """Forget one that has ended in both directions."""
        if stream.phase == "open" and stream.going.has_ended and stream.has_all:
            self._forget(stream)

    def _forget(self, stream: NodeStream, why: str = "") -> None:
        stream.phase, stream.why = "over", why
        if self._streams.pop(stream.key, None) is not None:
            self._of[stream.key.node] -= 1
            if not self._of[stream.key.node]:
                del self._of[stream.key.node]

    def _say(self, stream: NodeStream, body: StreamBody) -> None:
        self.out.append((stream.key.node, _encoded(body)))


def _encoded(body: StreamBody) -> bytes:
    return msgspec.msgpack.encode(body)
