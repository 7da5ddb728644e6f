"""Keys of a network that are handed out one by one, to nodes whose certificate holds, and changed when one is revoked.

A keeper makes the keys: one for each generation. A member asks for it with a key of its own that lives as long as its
process (X25519, RFC 7748), which its certificate answers for (trust/signature.py); the keeper gives the key of that
generation sealed for it alone, and signed. Revoking is the next generation without that member. Pure: how requests and
grants travel is not known here, neither is time.

Rules:
- A grant counts if it is signed with the certificate that has the keeper's name, is for this network, this member and
  this key of it, and its generation is later than that which is there: what is played again changes nothing.
- A request counts if its start is later than the last one of that member, or the same again. So nobody can bring a
  member's former key back.
- What a generation's key has sealed can be read by all who got it, later ones too: a member that comes does not make a
  new one, a member that goes does.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from jbi_pubsub.core.errors import ProtocolError, SignatureError
from jbi_pubsub.core.signing import Signer, SigningKey, Verifier, digest, signed_uid
from jbi_pubsub.core.values import decoded
from jbi_pubsub.trust.seal import KEY_BYTES

MEMBERS_MOST: Final = 10_000
OF_ONE_MOST: Final = 8
"""Members of one certificate's name."""
FORMER_SECONDS: Final = 0.5
"""For so long what is sealed with the key of before is opened, since not all hear of a generation at once; with a look
at the revoked each second that is in force in less than two."""
_NUMBER: Final = Struct("!Q")
_NONCE: Final = bytes(12)
_Id = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
_Public = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Name = Annotated[str, msgspec.Meta(max_length=64)]
_Signature = Annotated[bytes, msgspec.Meta(max_length=64)]


class GroupKey(NamedTuple):
    """A key, and which one it is."""

    generation: int
    key: bytes


class _KeyRequest(msgspec.Struct, frozen=True, array_like=True):
    """A member's request, as bytes."""

    network: _Name
    member: _Id
    start: _Number
    public: _Public
    signing: SigningKey
    signature: _Signature

    def said(self) -> bytes:
        """Bytes that are signed."""
        proof = _digest(self.signing)
        return _said(b"jbi-pubsub key request 1\0", self.network, self.member, self.start, self.public, proof)


class _KeyGrant(msgspec.Struct, frozen=True, array_like=True):
    """The keeper's answer, as bytes."""

    network: _Name
    keeper: _Id
    member: _Id
    generation: _Number
    public: _Public
    """The keeper's, for this grant alone."""
    sealed: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES + 16, max_length=KEY_BYTES + 16)]
    signing: SigningKey
    signature: _Signature

    def said(self, wanted: bytes) -> bytes:
        """Bytes that are signed; `wanted`: the member's public key."""
        ids, proof = self.keeper + self.member, _digest(self.signing)
        parts = (wanted, self.public, self.sealed, proof)
        return _said(b"jbi-pubsub key grant 1\0", self.network, ids, self.generation, *parts)


_REQUESTS: Final = msgspec.msgpack.Decoder(_KeyRequest)
_GRANTS: Final = msgspec.msgpack.Decoder(_KeyGrant)


@dataclass(frozen=True, slots=True)
class _KeyHolder:
    """A member that has been given keys."""

    request: _KeyRequest
    identity: str
    generation: int


class GroupKeys:
    """The keeper's: keys by generation, and who has got which. One thread at a time."""

    def __init__(self, network: str, me: bytes, start: int, signer: Signer, verifier: Verifier) -> None:
        """`me`: our id; `start`: the number of this start of ours: generations go on from it."""
        self._network, self._me = network, me
        self._signer, self._verifier = signer, verifier
        self._holders: dict[bytes, _KeyHolder] = {}
        self.current = GroupKey(start << 32, secrets.token_bytes(KEY_BYTES))

    def holders(self) -> dict[bytes, int]:
        """The generation that each member has got, by its id."""
        return {member: each.generation for member, each in self._holders.items()}

    def granted(self, data: bytes) -> bytes:
        """The grant for a member's request, of the current key. Raises ProtocolError for what is no request of this
        network, or no later one; SignatureError when its certificate does not hold."""
        request = decoded(_REQUESTS, data, "request for a key")
        if request.network != self._network:
            raise ProtocolError("a request for the key of another network")
        identity = self._verified(request)
        known = self._holders.get(request.member)
        if known is not None and known.identity != identity:
            raise SignatureError(f"{identity} asks as a member that is {known.identity}")
        if known is not None and not _is_later(request, known.request):
            raise ProtocolError("a request for a key that was over before")
        if known is None:
            others = sum(each.identity == identity for each in self._holders.values())
            if others >= OF_ONE_MOST or len(self._holders) >= MEMBERS_MOST:
                raise ProtocolError(f"a request for a key of one member more, by {identity}")
        grant = self._grant(request)
        self._holders[request.member] = _KeyHolder(request, identity, self.current.generation)
        return grant

    def look(self) -> dict[bytes, bytes]:
        """Look whether all members' certificates hold yet; if not, there is a new key, and what is returned are its
        grants, by member."""
        gone = [member for member, each in self._holders.items() if not self._holds(each.request)]
        return self.without(*gone) if gone else {}

    def without(self, *members: bytes) -> dict[bytes, bytes]:
        """A new key that these members do not get; its grants, by member."""
        for member in members:
            self._holders.pop(member, None)
        self.current = GroupKey(self.current.generation + 1, secrets.token_bytes(KEY_BYTES))
        found = {member: self._grant(each.request) for member, each in self._holders.items()}
        for member, each in self._holders.items():
            self._holders[member] = _KeyHolder(each.request, each.identity, self.current.generation)
        return found

    def _holds(self, request: _KeyRequest) -> bool:
        try:
            self._verified(request)
        except SignatureError:
            return False
        return True

    def _verified(self, request: _KeyRequest) -> str:
        return _checked(self._verifier, request.member, request.signing, request.said(), request.signature)

    def _grant(self, request: _KeyRequest) -> bytes:
        own = X25519PrivateKey.generate()
        public = own.public_key().public_bytes_raw()
        key = _shared(own, request.public, self._network, request.member, self.current.generation, public)
        sealed = ChaCha20Poly1305(key).encrypt(_NONCE, self.current.key, None)  # the key is of this grant alone
        bound = self._signer.bound(signed_uid(self._me, self._signer.public), self._me)
        generation = self.current.generation
        grant = _KeyGrant(self._network, self._me, request.member, generation, public, sealed, bound, b"")
        signature = self._signer.sign(grant.said(request.public))
        return msgspec.msgpack.encode(msgspec.structs.replace(grant, signature=signature))


class GroupMember:
    """A member's: asks for keys, and opens those that are granted to it. One thread at a time."""

    def __init__(self, network: str, me: bytes, start: int, signer: Signer, verifier: Verifier, *, keeper: str) -> None:
        """`me`: our id; `start`: the number of this start of ours; `keeper`: the name in the keeper's certificate."""
        self._network, self._me, self._start = network, me, start
        self._signer, self._verifier, self._keeper = signer, verifier, keeper
        self._own = X25519PrivateKey.generate()
        self._public = self._own.public_key().public_bytes_raw()
        self.current: GroupKey | None = None

    def request(self) -> bytes:
        """Ask for the key."""
        bound = self._signer.bound(signed_uid(self._me, self._signer.public), self._me)
        request = _KeyRequest(self._network, self._me, self._start, self._public, bound, b"")
        signature = self._signer.sign(request.said())
        return msgspec.msgpack.encode(msgspec.structs.replace(request, signature=signature))

    def taken(self, data: bytes) -> GroupKey | None:
        """The key of a grant; None when it is not for us, or no later one. Raises ProtocolError for what is no grant
        for us; SignatureError when it is not the keeper's."""
        grant = decoded(_GRANTS, data, "grant of a key")
        if (grant.network, grant.member) != (self._network, self._me):
            return None
        if self.current is not None and grant.generation <= self.current.generation:
            return None
        said = grant.said(self._public)
        identity = _checked(self._verifier, grant.keeper, grant.signing, said, grant.signature)
        if identity != self._keeper:
            raise SignatureError(f"{identity} grants keys, and is not the keeper {self._keeper}")
        key = _shared(self._own, grant.public, self._network, self._me, grant.generation, grant.public)
        try:
            self.current = GroupKey(grant.generation, ChaCha20Poly1305(key).decrypt(_NONCE, grant.sealed, None))
        except InvalidTag as exc:
            raise ProtocolError("a grant of a key that is for another") from exc
        return self.current


def _is_later(request: _KeyRequest, before: _KeyRequest) -> bool:
    return request.start > before.start or (request.start, request.public) == (before.start, before.public)


def _checked(verifier: Verifier, holder: bytes, signing: SigningKey, said: bytes, signature: bytes) -> str:
    """The name in the certificate of a node that has signed; the key's id is made of the node's. Raises
    SignatureError."""
    return verifier.check(signed_uid(holder, signing.key), said, signature, lambda _: (signing,))


def _shared(own: X25519PrivateKey, other: bytes, network: str, member: bytes, generation: int, public: bytes) -> bytes:
    """The key that a grant is sealed with (HKDF, RFC 5869, one block). Raises ProtocolError for a bad public key."""
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as exc:
        raise ProtocolError("a public key that is none") from exc
    info = _said(b"jbi-pubsub key wrap 1\0", network, member, generation, public)
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\x01", "sha256")


def _digest(signing: SigningKey) -> bytes:
    """Whoever signs says by this what answers for him: nobody puts another proof to his words, which would not hold
    when it is looked at again."""
    return digest(msgspec.msgpack.encode(signing))


def _said(label: bytes, network: str, ids: bytes, number: int, *parts: bytes) -> bytes:
    """Bytes that are nobody else's: the name has its length before it, all else has one length for each label."""
    name = network.encode()
    return b"".join((label, bytes((len(name),)), name, ids, _NUMBER.pack(number), *parts))
