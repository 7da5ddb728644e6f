"""Sealed datagrams between nodes: their layout, and who seals them. Pure: no key, no library.

     0  48  the header of network/datagram.py with the flag that says sealed: readable by all, changed by nobody
    48   8  the session: a start of a sender on a network
    56   n  all behind the header, encrypted
     .  16  tag

Who seals and opens is trust/seal.py, when there is a key; trust/members.py, when each node has its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, Protocol

HEADER_BYTES: Final = 48
FLAGS_AT: Final = 4
SEALED_FLAG: Final = 16
SENDER_AT: Final = 36
"""First of the twelve bytes that no two datagrams of a session have in common: sender and number."""
NUMBER_AT: Final = 40
SESSION_BYTES: Final = 8
TAG_BYTES: Final = 16
SEAL_BYTES: Final = SESSION_BYTES + TAG_BYTES
"""Bytes that a datagram is longer by when it is sealed."""


class SealFault(StrEnum):
    """Causes why a datagram is dropped before it is read."""

    OPEN = "a datagram that is not sealed"
    SEALED = "a sealed datagram, and no key here"
    SHORT = "a sealed datagram that is too short"
    REPLAYED = "a sealed datagram that has come before, or far too late"
    FORGED = "a datagram that is sealed with another key, or was changed"
    UNKNOWN = "a datagram sealed with a key that its sender has not given us"
    REFUSED = "a message of keys that does not hold"


class DatagramSealing(Protocol):
    """Sealing on one network of a node. One thread at a time."""

    def seal(self, data: bytes) -> bytes:
        """A datagram as it goes over the link."""
        ...

    def open(self, data: bytes) -> bytes | SealFault | None:
        """A datagram as it was before; or why it is dropped; None: it is our own. Never raises, whatever comes."""
        ...

    def outgoing(self) -> bytes | None:
        """A datagram of its own that is to go over the link as it is; None: there is none now."""
        ...


class Unsealed:
    """The network of those who have no key."""

    def outgoing(self) -> bytes | None:
        """See DatagramSealing."""
        return None

    def seal(self, data: bytes) -> bytes:
        """See DatagramSealing."""
        return data

    def open(self, data: bytes) -> bytes | SealFault | None:
        """See DatagramSealing."""
        return SealFault.SEALED if len(data) > FLAGS_AT and data[FLAGS_AT] & SEALED_FLAG else data
