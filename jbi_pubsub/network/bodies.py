"""Bodies of the messages that nodes say to keep the network: requests and announcements. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from jbi_pubsub.core.intervals import Range
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.network.log import LogId
from jbi_pubsub.network.recovery import Request

RANGES_MOST: Final = 10_000
LOGS_MOST: Final = 10_000
_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Sender = Annotated[bytes, msgspec.Meta(min_length=4, max_length=4)]
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Ranges = Annotated[tuple[tuple[_Number, _Number], ...], msgspec.Meta(max_length=RANGES_MOST)]


class LogRanges(msgspec.Struct, frozen=True, array_like=True):
    """Serials of a log. Of the origin alone (0: it is not said) `floor`: all before it is over, and `last`: all behind
    these ranges is over up to that one."""

    origin: _Id
    epoch: _Number
    stream: _Number
    ranges: _Ranges
    floor: _Number = 0
    last: _Number = 0

    @property
    def log_id(self) -> LogId:
        """The log."""
        return LogId(self.origin, self.epoch, self.stream)


class RequestBody(msgspec.Struct, frozen=True, array_like=True):
    """Retransmission request."""

    version: int
    wanted: Annotated[tuple[LogRanges, ...], msgspec.Meta(max_length=LOGS_MOST)]
    closed: Annotated[dict[_Sender, _Number], msgspec.Meta(max_length=LOGS_MOST)]


class NodeAnnouncement(msgspec.Struct, frozen=True, array_like=True):
    """Node announcement (Figure 7 of the report): who is there, and what it holds."""

    version: int
    name: Annotated[str, msgspec.Meta(max_length=200)]
    addresses: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)]
    """HOST:PORT where the node's own port is."""
    roles: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)]
    """Services to others: "stores", "answers", "silent"."""
    epoch: _Number
    """That of its start: greater with each."""
    number: _Number
    """Number of the announcement: no two are the same message."""
    held: Annotated[tuple[LogRanges, ...], msgspec.Meta(max_length=LOGS_MOST)]
    """Serials that it can give: of its own logs those that live, with their floors, and of others."""
    losses: Annotated[dict[_Sender, float], msgspec.Meta(max_length=LOGS_MOST)] = {}
    """Share of each sender's datagrams that has not come since the last announcement."""
    settled: Annotated[dict[_Sender, _Number], msgspec.Meta(max_length=LOGS_MOST)] = {}
    """For senders heard the serial up to which nothing more comes of their logs for all."""


_request: Final = decoder_of(RequestBody)
_announcement: Final = decoder_of(NodeAnnouncement)


def encoded_request(request: Request) -> bytes:
    """Bytes of a request."""
    wanted = tuple(LogRanges(*log_id, ranges) for log_id, ranges in request.wanted.items())
    return msgspec.msgpack.encode(RequestBody(1, wanted, dict(request.closed)))


def decoded_request(body: bytes) -> Request:
    """Raises ProtocolError."""
    found = decoded(_request, body, "request of a node")
    return Request({each.log_id: _checked(each.ranges) for each in found.wanted}, found.closed)


def encoded_announcement(announcement: NodeAnnouncement) -> bytes:
    """Bytes of an announcement."""
    return msgspec.msgpack.encode(announcement)


def decoded_announcement(body: bytes) -> NodeAnnouncement:
    """Raises ProtocolError."""
    return decoded(_announcement, body, "announcement of a node")


def _checked(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    return tuple((first, last) for first, last in ranges if 1 <= first <= last)
