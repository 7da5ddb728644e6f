"""Sealing of datagrams between nodes: ChaCha20-Poly1305 (RFC 8439), with a key for each session. Pure.

core/sealing.py has the layout. Rules:

- No nonce is used twice under one key. The nonce is sender and number; numbers of a session rise, and whoever seals
  refuses one that does not. They begin at 1 again with each start of a node and on each of its networks, so each of
  these is a session of its own, which has its own key: made of the network's key, 64 random bits and the sender
  (HKDF-Expand, RFC 5869). Neither a restart, nor a folder that was copied or brought back, nor a second network with
  the same file, nor two nodes whose ids begin alike come to the same key: what is random counts, no counter on disk.
- Whoever passes a datagram on has opened it, and seals it as his own. So the whole header is covered, hops too.
- What has come before, or is WINDOW numbers behind the newest of its session, is dropped before it is decrypted; what
  does not open changes nothing here. Nobody without the key can make us remember anything.
- SESSIONS_MOST sessions are remembered, those heard last. Who starts anew remembers none: what was said before and is
  played to him then he takes for new; not where nodes give each other their keys (trust/members.py). Clocks are not
  asked.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.sealing import (
    FLAGS_AT,
    HEADER_BYTES,
    NUMBER_AT,
    SEAL_BYTES,
    SEALED_FLAG,
    SENDER_AT,
    SESSION_BYTES,
    SealFault,
)

KEY_BYTES: Final = 32
WINDOW: Final = 1_024
SESSIONS_MOST: Final = 10_000
_MASK: Final = (1 << WINDOW) - 1
_BODY_AT: Final = HEADER_BYTES + SESSION_BYTES
_LABEL: Final = b"jbi-pubsub seal 1\0"
_SALT: Final = b"jbi-pubsub shared key 1"
_COST: Final = 1 << 14


def shared_key(secret: str) -> bytes:
    """The key that a secret in a file stands for; who guesses secrets pays for each (scrypt, RFC 7914)."""
    return hashlib.scrypt(secret.encode(), salt=_SALT, n=_COST, r=8, p=1, dklen=KEY_BYTES)


def session_cipher(key: bytes, sender: bytes, session: bytes) -> ChaCha20Poly1305:
    """The cipher of a session: of the network's key one block of HKDF-Expand, which takes keys that are random."""
    return ChaCha20Poly1305(hmac.digest(key, _LABEL + sender + session + b"\x01", "sha256"))


@dataclass(eq=False, slots=True)
class _HeardSession:
    """A session of another node, and which of its last numbers have come."""

    cipher: ChaCha20Poly1305
    top: int = 0
    bits: int = 1
    """Bit n: the number n before `top`."""

    def is_new(self, number: int) -> bool:
        """Whether it has not come yet, as far as that is known."""
        behind = self.top - number
        return behind < 0 or (behind < WINDOW and not self.bits >> behind & 1)

    def note(self, number: int) -> None:
        """Note that it has come."""
        ahead = number - self.top
        if ahead <= 0:
            self.bits |= 1 << -ahead
        else:
            self.bits = (self.bits << ahead | 1) & _MASK if ahead < WINDOW else 1
            self.top = number


class DatagramSeal:
    """Seals what we send on a network, and opens what others have sealed (a DatagramSealing). One thread at a time."""

    def __init__(self, key: bytes, me: bytes, *, is_shared: bool = True) -> None:
        """`key`: 32 bytes that all nodes of the network have; or, if it is not shared, those that we seal with: then
        sessions of others are opened that we `know`. `me`: our id."""
        self.key, self._is_shared = key, is_shared
        self._me = me[: NUMBER_AT - SENDER_AT]
        self.session = secrets.token_bytes(SESSION_BYTES)
        self._cipher = session_cipher(key, self._me, self.session)
        self.number = 0
        """The number that was sealed last."""
        self._heard: OrderedDict[bytes, _HeardSession] = OrderedDict()
        """Sessions by sender and session, the one that was heard last at the end."""

    def __len__(self) -> int:
        """Sessions of others that are remembered."""
        return len(self._heard)

    def outgoing(self) -> bytes | None:
        """See DatagramSealing."""
        return None

    def knows(self, node: bytes, session: bytes) -> bool:
        """Whether a session of a node is opened."""
        return self._name(node, session) in self._heard

    def know(self, node: bytes, session: bytes, key: bytes, number: int) -> None:
        """Open a session of a node from now on, but nothing up to that number."""
        name = self._name(node, session)
        self._remember(name, _HeardSession(session_cipher(key, name[:-SESSION_BYTES], session), number, _MASK))

    def forget(self, node: bytes, session: bytes) -> None:
        """Open a session of a node no more."""
        self._heard.pop(self._name(node, session), None)

    def seal(self, data: bytes) -> bytes:
        """See DatagramSealing. Raises ProtocolError for a datagram of another sender, or whose number has not risen:
        that would give the key away."""
        number = int.from_bytes(data[NUMBER_AT:HEADER_BYTES])
        if number <= self.number or data[SENDER_AT:NUMBER_AT] != self._me:
            raise ProtocolError(f"datagram {number} can't be sealed behind {self.number}", hint="give it a new number")
        self.number = number
        head = bytearray(data[:HEADER_BYTES])
        head[FLAGS_AT] |= SEALED_FLAG
        nonce = data[SENDER_AT:HEADER_BYTES]
        return b"".join((head, self.session, self._cipher.encrypt(nonce, data[HEADER_BYTES:], bytes(head))))

    def open(self, data: bytes) -> bytes | SealFault | None:
        """See DatagramSealing."""
        if len(data) <= FLAGS_AT or not data[FLAGS_AT] & SEALED_FLAG:
            return SealFault.OPEN
        if len(data) < HEADER_BYTES + SEAL_BYTES:
            return SealFault.SHORT
        sender, session = data[SENDER_AT:NUMBER_AT], data[HEADER_BYTES:_BODY_AT]
        if session == self.session and sender == self._me:
            return None
        name, number = sender + session, int.from_bytes(data[NUMBER_AT:HEADER_BYTES])
        heard = self._heard.get(name)
        if heard is not None:
            body = _decrypted(heard.cipher, data) if heard.is_new(number) else SealFault.REPLAYED
        else:
            heard, body = self._first(data, sender, session)
        if isinstance(body, SealFault):
            return body
        heard.note(number)
        self._remember(name, heard)
        return _open_header(data) + body

    def _first(self, data: bytes, sender: bytes, session: bytes) -> tuple[_HeardSession, bytes | SealFault]:
        """A datagram of a session that is not known: our key opens it, or none."""
        heard = _HeardSession(session_cipher(self.key, sender, session))
        return heard, _decrypted(heard.cipher, data) if self._is_shared else SealFault.UNKNOWN

    def _remember(self, name: bytes, heard: _HeardSession) -> None:
        self._heard[name] = heard
        self._heard.move_to_end(name)
        if len(self._heard) > SESSIONS_MOST:
            self._heard.popitem(last=False)

    @staticmethod
    def _name(node: bytes, session: bytes) -> bytes:
        return node[: NUMBER_AT - SENDER_AT] + session


def opened(data: bytes, key: bytes) -> bytes | SealFault:
    """A sealed datagram of a capture as it was before, though it may have come before. Never raises."""
    if len(data) < HEADER_BYTES + SEAL_BYTES:
        return SealFault.SHORT
    sender, session = data[SENDER_AT:NUMBER_AT], data[HEADER_BYTES:_BODY_AT]
    body = _decrypted(session_cipher(key, sender, session), data)
    return body if isinstance(body, SealFault) else _open_header(data) + body


def _open_header(data: bytes) -> bytes:
    """The header as it was before."""
    head = bytearray(data[:HEADER_BYTES])
    head[FLAGS_AT] &= ~SEALED_FLAG
    return bytes(head)


def _decrypted(cipher: ChaCha20Poly1305, data: bytes) -> bytes | SealFault:
    try:
        return cipher.decrypt(data[SENDER_AT:HEADER_BYTES], data[_BODY_AT:], data[:HEADER_BYTES])
    except InvalidTag:
        return SealFault.FORGED
