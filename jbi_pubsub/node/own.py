"""A registration of this node, as it is told to others, and what is said of its objects."""

from __future__ import annotations

import hashlib
from typing import Final

from jbi_pubsub.core.info_object import InfoObject, packed
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath.predicate import compiled_xpath
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode
from jbi_pubsub.network.message import NodeMessage

from .bodies import VERSION, LeftOutBody, SequenceBody, encoded

_MODES: Final = {mode.name.lower(): mode for mode in DatagramMode}


def digest(data: bytes) -> bytes:
    """Name of 16 bytes for some bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


class OwnSequence:
    """A registration of ours. One thread at a time says its objects."""

    def __init__(self, body: SequenceBody, before: OwnSequence | None = None) -> None:
        """`before`: the same one as it was."""
        self.body = body
        self.last: int = before.last if before is not None else 0
        """Number of the last object."""
        self._unsaid: int = before._unsaid if before is not None else 0
        """Objects up to it that nobody wanted."""
        key = body.sending.key
        self._key = compiled_xpath(f"string({key})", {}) if key else None

    def skip(self, number: int) -> None:
        """Nobody wants an object."""
        self._unsaid += number - self.last
        self.last = number

    def messages(self, obj: InfoObject, source: str, seconds: float, *, is_reliable: bool) -> list[NodeMessage]:
        """An object of the platform `source`, which lives for some seconds, and before it how many were not said.
        `is_reliable`: somebody demands that it is."""
        body, mode = self.body, _MODES[self.body.sending.mode]
        mode = DatagramMode.RELIABLE if is_reliable and mode == DatagramMode.UNRELIABLE else mode
        message = NodeMessage(
            DatagramKind.PUBLICATION, mode, b"".join(packed(obj).relayed(source).in_memory().parts),
            expiration=int((body.expiration or seconds) * 1000), level=body.importance or 0,
        )  # fmt: skip
        if self._key is not None:
            value = str(self._key(parse_metadata(obj.metadata)))
            key = digest(f"{body.uid} {value}".encode())
            message = message._replace(durability=key, update=obj.platform.sequence)
        skipped = [self._left_out(self._unsaid, self.last, seconds)] if self._unsaid else []
        self.last, self._unsaid = obj.platform.sequence, 0
        return [*skipped, message]

    def left_out(self, count: int, up_to: int, seconds: float) -> NodeMessage:
        """So many objects up to a number do not go."""
        message = self._left_out(count + self._unsaid, up_to, seconds)
        self.last, self._unsaid = up_to, 0
        return message

    def _left_out(self, count: int, up_to: int, seconds: float) -> NodeMessage:
        data = encoded(LeftOutBody(VERSION, self.body.uid, count, up_to))
        life = int((self.body.expiration or seconds) * 1000)
        return NodeMessage(DatagramKind.SEQUENCE, DatagramMode.RELIABLE, data, expiration=life)
