"""Sealing between nodes that have certificates: each has a key of its own, and gives it to others one by one. Pure.

Who hears a session that he does not know asks for its key, with a new X25519 key (RFC 7748) each time, which his
certificate answers for (trust/signature.py). Its sender looks at that, and gives the key sealed for him alone, and
signed as well. There is nothing that nodes have to agree on: no keeper, no number, no clock.

- Who sees that certificates or lists of revoked ones are others takes another key for what it says, forgets the keys of
  all others, and asks for them again. So whoever is revoked hears nobody, and is heard by nobody, who has seen it; what
  an island did meanwhile counts there alone. The same is done each hour, for certificates that have ended.
- A key counts if it was asked for in the last ANSWER_SECONDS: a grant that is played again is none. With it comes the
  number of its sender's last datagram: what was said before is not heard, whoever plays it.
- Who asks is remembered until he is answered, and no longer; nothing is of whose certificate does not hold.
- CHECKS signatures a second are looked at, whoever sends more. Who can send on a link can keep others from coming to
  know each other there by that, but nobody from hearing whom he knows.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from jbi_pubsub.core.errors import ProtocolError, SignatureError
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.sealing import HEADER_BYTES, SESSION_BYTES, TAG_BYTES, SealFault
from jbi_pubsub.core.signing import CERTIFICATE_MOST, CHAIN_MOST, SigningKey, signed_uid
from jbi_pubsub.core.values import decoded
from jbi_pubsub.trust import seal
from jbi_pubsub.trust.seal import KEY_BYTES, DatagramSeal
from jbi_pubsub.trust.signature import CertificateSigner, CertificateVerifier

log = logging.getLogger("jbi_pubsub.trust")

MESSAGE_MOST: Final = CHAIN_MOST * CERTIFICATE_MOST + 4_096
TURN_SECONDS: Final = 3_600.0
ANSWER_SECONDS: Final = 60.0
ASK_SECONDS: Final = 0.1
ASKED_BYTES: Final = 4_000
"""At least so long, and until so many bytes may have gone so that keys take half of a slow network at most, from one
time we ask to the next, and to the second time for one session; then twice that, up to AGAIN_MOST times."""
AGAIN_MOST: Final = 50
ENDED_SECONDS: Final = 60.0
"""Until we try again when our own certificate has ended."""
CHECKS: Final = 200
WANTED_MOST: Final = 256
AT_ONCE: Final = 16
"""Sessions that are asked for, and nodes that are answered, in a message."""
_LABEL: Final = b"jbi-pubsub keys 1\0"
_NONCE: Final = bytes(12)
_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Session = Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
_Public = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Wrapped = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES + TAG_BYTES, max_length=KEY_BYTES + TAG_BYTES)]


class _KeyMessage(msgspec.Struct, frozen=True, array_like=True):
    node: _Id
    session: _Session
    """The one in which the node speaks."""
    public: _Public
    """The node's, for this message alone."""
    signing: SigningKey
    signature: Annotated[bytes, msgspec.Meta(max_length=64)]

    def said(self) -> bytes:
        """Bytes that are signed."""
        return _LABEL + msgspec.msgpack.encode(msgspec.structs.replace(self, signature=b""))


class _KeyAsk(_KeyMessage, frozen=True, array_like=True, tag=1):
    """A node asks for keys."""

    wanted: Annotated[tuple[_Session, ...], msgspec.Meta(max_length=AT_ONCE)]
    """Sessions whose keys are wanted; none: all."""


class _KeyGrant(_KeyMessage, frozen=True, array_like=True, tag=2):
    """A node gives its key."""

    number: Annotated[int, msgspec.Meta(ge=0)]
    """The last datagram of the node."""
    wrapped: Annotated[tuple[tuple[_Public, _Wrapped], ...], msgspec.Meta(max_length=AT_ONCE)]
    """Public keys of those who asked, and the key for each."""


_MESSAGES: Final = msgspec.msgpack.Decoder(_KeyAsk | _KeyGrant)


class MemberSeal:
    """Seals what we send on a network, and opens what those have sealed whose certificates hold. One thread at a
    time."""

    def __init__(
        self, me: bytes, signer: CertificateSigner, verifier: CertificateVerifier,
        clock: Callable[[], float] = time.monotonic, rate: float = 0.0,
    ) -> None:  # fmt: skip
        """`me`: our id; `rate`: bytes a second of the network, 0 where it is not known."""
        self._pause = max(ASK_SECONDS, ASKED_BYTES / rate if rate else 0.0)
        self._me, self._signer, self._verifier, self._clock = me, signer, verifier, clock
        self._checks = TokenBucket(CHECKS, CHECKS, clock())
        self._ask_at = 0.0
        self._turn(clock())

    def seal(self, data: bytes) -> bytes:
        """See DatagramSealing."""
        return self._own.seal(data)

    def open(self, data: bytes) -> bytes | SealFault | None:
        """See DatagramSealing."""
        opened = self._own.open(data)
        if opened is SealFault.UNKNOWN:
            self._want(data[HEADER_BYTES : HEADER_BYTES + SESSION_BYTES])
        return opened

    def heard(self, data: bytes) -> SealFault | None:
        """A message of keys has come; why it does not count. Never raises, whatever comes."""
        try:
            if len(data) > MESSAGE_MOST:
                raise ProtocolError("a message of keys that is too large")
            message = decoded(_MESSAGES, data, "message of keys")
            if message.session == self._own.session:  # our own, which has come back; not of another with our id
                return None
            if isinstance(message, _KeyAsk):
                self._asked(message)
            else:
                self._granted(message)
        except (ProtocolError, SignatureError):
            return SealFault.REFUSED
        return None

    def outgoing(self) -> bytes | None:
        """The next message of keys that is to be sent to all; None: there is none now. Asked for each second at
        least, as certificates are looked at here."""
        now = self._clock()
        if now >= self._ends_at or self._generation != (self._verifier.generation, self._signer.generation):
            self._turn(now)
        try:
            if self._askers:
                return self._grant()
            if now >= self._ask_at and self._asking != {}:
                return self._ask(now)
        except SignatureError as exc:
            log.error("no keys are exchanged: %s", exc.message)
            self._askers.clear()
            self._ask_at = now + ENDED_SECONDS
        return None

    def _turn(self, now: float) -> None:
        """Speak with another key, and hear those whose certificates hold now."""
        self._own = DatagramSeal(secrets.token_bytes(KEY_BYTES), self._me, is_shared=False)
        self._generation = self._verifier.generation, self._signer.generation
        self._ends_at = now + TURN_SECONDS
        self._holders: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        """The session of each name and node, the one that we have come to know last at the end."""
        self._wanted: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Number of times a session was asked for, and when it may be again."""
        self._asking: dict[bytes, None] | None = None
        """Sessions that are to be asked for; None: all."""
        self._asks: dict[bytes, tuple[X25519PrivateKey, float]] = {}
        """Our keys by their public halves, and until when they are answered."""
        self._askers: dict[bytes, None] = {}
        """Public keys of those who are to be answered."""

    def _want(self, session: bytes) -> None:
        now = self._clock()
        times, again = self._wanted.get(session, (0, now))
        if now >= again and self._asking is not None and len(self._asking) < AT_ONCE:
            self._asking[session] = None
            self._wanted[session] = times + 1, now + self._pause * min(2 ** min(times, 9), AGAIN_MOST)
            if len(self._wanted) > WANTED_MOST:
                self._wanted.popitem(last=False)

    def _asked(self, ask: _KeyAsk) -> None:
        if (ask.wanted and self._own.session not in ask.wanted) or ask.public in self._askers:
            return
        self._checked(ask)
        self._askers[ask.public] = None
        if not self._own.knows(ask.node, ask.session):
            self._want(ask.session)

    def _granted(self, grant: _KeyGrant) -> None:
        now = self._clock()
        found = next(((self._asks[to], to, each) for to, each in grant.wrapped if to in self._asks), None)
        if found is None or found[0][1] < now or self._own.knows(grant.node, grant.session):
            return
        holder = self._checked(grant), grant.node
        (private, _), public, wrapped = found
        cipher = _wrapping(private, grant.public, public + grant.public + grant.node + grant.session)
        try:
            key = cipher.decrypt(_NONCE, wrapped, None)
        except InvalidTag as exc:
            raise ProtocolError("a key that is wrapped for another") from exc
        if holder in self._holders:
            self._own.forget(grant.node, self._holders.pop(holder))
        elif len(self._holders) >= seal.SESSIONS_MOST:
            (_, node), session = self._holders.popitem(last=False)
            self._own.forget(node, session)
        self._holders[holder] = grant.session
        self._own.know(grant.node, grant.session, key, grant.number)
        self._wanted.pop(grant.session, None)

    def _checked(self, message: _KeyAsk | _KeyGrant) -> str:
        """The name in the certificate of the node that says it. Raises ProtocolError, SignatureError."""
        now, signing = self._clock(), message.signing
        if self._checks.fill(now) < 1:
            raise ProtocolError("more messages of keys than are looked at")
        self._checks.take(1, now)
        uid = signed_uid(message.node, signing.key)  # made of the node's id
        return self._verifier.check(uid, message.said(), message.signature, lambda _: (signing,))

    def _ask(self, now: float) -> bytes:
        self._ask_at = now + self._pause
        self._asks = {public: each for public, each in self._asks.items() if each[1] >= now}
        private = X25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        wanted = tuple(self._asking or ())
        asked = self._signed(_KeyAsk(self._me, self._own.session, public, self._proof(), b"", wanted))
        self._asks[public] = private, now + ANSWER_SECONDS
        self._asking = {}
        return asked

    def _grant(self) -> bytes:
        """The key for some who have asked."""
        own, private = self._own, X25519PrivateKey.generate()
        public = private.public_key().public_bytes_raw()
        found: list[tuple[bytes, bytes]] = []
        for asker in list(self._askers)[:AT_ONCE]:
            del self._askers[asker]
            with suppress(ProtocolError):
                cipher = _wrapping(private, asker, asker + public + self._me + own.session)
                found.append((asker, cipher.encrypt(_NONCE, own.key, None)))  # the cipher's key is used once
        proof = self._proof()
        return self._signed(_KeyGrant(self._me, own.session, public, proof, b"", own.number, tuple(found)))

    def _proof(self) -> SigningKey:
        return self._signer.bound(signed_uid(self._me, self._signer.public), self._me)

    def _signed(self, message: _KeyMessage) -> bytes:
        signature = self._signer.sign(message.said())
        return msgspec.msgpack.encode(msgspec.structs.replace(message, signature=signature))


def _wrapping(own: X25519PrivateKey, other: bytes, about: bytes) -> ChaCha20Poly1305:
    """The cipher that a key is sealed with for one node (HKDF, RFC 5869, one block). Raises ProtocolError for a bad
    public key."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as exc:
        raise ProtocolError("a public key that is none") from exc
    return ChaCha20Poly1305(hmac.digest(hmac.digest(bytes(32), secret, "sha256"), _LABEL + about + b"\x01", "sha256"))
