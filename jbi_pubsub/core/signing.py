"""Bytes that are signed, and what others are told of a key. Pure: no key, no certificate, no library.

Who makes and checks signatures is trust/signature.py; docs/signatures.md has the same in words, with an example.
Each byte string begins with a label of its own, so that a signature of one is never one of another; texts have their
length before them, so that no two objects have the same bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Protocol

import msgspec

from .info_object import SIGNATURE_BYTES, Head, InfoObject, LargeObject, ObjectAttributes, Part
from .spool import COPIED_BYTES, SpooledPayload

KEY_BYTES: Final = 32
"""Bytes of an Ed25519 public key (RFC 8032, section 5.1.5)."""
CHAIN_MOST: Final = 4
CERTIFICATE_MOST: Final = 8 << 10
"""Certificates of a chain, and bytes of one: each is in an entry that every lookup service holds."""

_LENGTH: Final = struct.Struct("!I")
_NUMBERS: Final = struct.Struct("!Qd")
_SIZE: Final = struct.Struct("!Q")
_ATTRIBUTES: Final = struct.Struct("!Bd?")


class SigningKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A public key with what proves whose it is, as it goes to delegates, lookup services and subscribers.

    `key` is an Ed25519 key; `anchor` the digest of a registration's secret, whose id is made from it and the key, b""
    for a delegate's; `chain` certificates in DER, the holder's own first; `statement` is made with the private key of
    that certificate, `consent` with the private half of `key`, both of the same bytes (`binding_bytes`): neither can be
    put together with another one's.
    """

    key: Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    anchor: Annotated[bytes, msgspec.Meta(max_length=32)]
    chain: Annotated[
        tuple[Annotated[bytes, msgspec.Meta(min_length=1, max_length=CERTIFICATE_MOST)], ...],
        msgspec.Meta(min_length=1, max_length=CHAIN_MOST),
    ]
    statement: Annotated[bytes, msgspec.Meta(max_length=1024)]
    consent: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)]


Keys = Callable[[str], Iterable[SigningKey]]
"""Gives keys that are said to be that of a registration or delegate. What is said is checked, so it may be anybody."""


class Signer(Protocol):
    """Signs with a key of this process."""

    @property
    def public(self) -> bytes:
        """The public key."""
        ...

    @property
    def generation(self) -> int:
        """Grows when another certificate answers for the key: what was `bound` before ends with the old one."""
        ...

    def bound(self, holder: str, anchor: bytes = b"") -> SigningKey:
        """The key as that of a registration or delegate."""
        ...

    def sign(self, message: bytes) -> bytes:
        """The signature of some bytes. Raises SignatureError when our certificate has ended."""
        ...


class Verifier(Protocol):
    """Knows the keys of registrations and delegates, and whether what is signed holds."""

    def check_key(self, holder: str, key: SigningKey) -> str:
        """The name in the certificate of whoever holds the key. Raises SignatureError."""
        ...

    def check(self, holder: str, message: bytes, signature: bytes, keys: Keys, pin: str = "") -> str:
        """The name in the certificate of who signed `message`, with a key of `holder` among those that `keys` gives
        if it is asked. `holder` is a registration; or, with `pin`, a delegate, and the certificate, or its key, has to
        be the one with that SHA-256 (hex). Raises SignatureError."""
        ...


def digest(data: Part | SpooledPayload) -> bytes:
    """SHA-256. Raises StorageError for what lies in a file that can't be read."""
    if isinstance(data, SpooledPayload):
        if data.hashed is not None:
            return data.hashed.digest()
        found = hashlib.sha256()
        for chunk in data.chunks(COPIED_BYTES):
            found.update(chunk)
        return found.digest()
    return hashlib.sha256(data).digest()


def payload_digest_of(obj: InfoObject) -> bytes:
    """SHA-256 of the payload, which is never in memory if it lies in a file."""
    return digest(obj.spooled if isinstance(obj, LargeObject) and obj.spooled is not None else obj.payload)


def head_bytes(head: Head, payload_digest: bytes) -> bytes:
    """Bytes that the signature of an object covers, from its head."""
    return _object_bytes(
        (head.object_id, head.registration, head.type_name, head.type_version),
        head.sequence, head.published, head.metadata, head.payload_length, payload_digest, head.attributes,
    )  # fmt: skip


def object_bytes(obj: InfoObject, payload_digest: bytes) -> bytes:
    """The same from an object as applications see it; of a payload that was cut the digest as published."""
    platform = obj.platform
    return _object_bytes(
        (obj.object_id, platform.registration, obj.type.name, obj.type.version),
        platform.sequence, platform.published, obj.metadata, platform.payload_length, payload_digest,
        platform.attributes,
    )  # fmt: skip


def _object_bytes(
    texts: Iterable[str],
    sequence: int,
    published: float,
    metadata: Part,
    payload_length: int,
    payload_digest: bytes,
    said: ObjectAttributes | None,
) -> bytes:
    return b"".join(
        (
            b"jbi-pubsub object 1\0",
            *map(_framed, texts),
            _NUMBERS.pack(sequence, published),
            digest(metadata),
            _SIZE.pack(payload_length),
            payload_digest,
            b"" if said is None else _ATTRIBUTES.pack(said.priority, said.timeout, said.reliable),
        )
    )


def cut_bytes(object_id: str, wanted: bytes, original: bytes, cut: bytes) -> bytes:
    """Bytes that a delegate signs of a payload that it has cut: the object, digests of the filter (`filter_digest`), of
    the payload as published, and of what the filter has left."""
    return b"jbi-pubsub cut 1\0" + _framed(object_id) + wanted + original + cut


def shaped_bytes(object_id: str, wanted: bytes, original: bytes, shaped: bytes) -> bytes:
    """The same of a payload that it has shaped, as its policies say, behind the filter; `wanted` is 32 zero bytes where
    there is none."""
    return b"jbi-pubsub shape 1\0" + _framed(object_id) + (wanted or bytes(32)) + original + shaped


def filter_digest(expression: str, namespaces: Iterable[tuple[str, str]]) -> bytes:
    """Digest of a payload filter: its text, then prefix and namespace of each prefix, sorted."""
    pairs = sorted(dict(namespaces).items())
    return digest(b"".join(map(_framed, (expression, *(text for pair in pairs for text in pair)))))


def binding_bytes(holder: str, key: bytes, certificate: bytes) -> bytes:
    """Bytes that say that a key is that of a registration or delegate, and of the certificate (DER)."""
    return b"jbi-pubsub key 1\0" + _framed(holder) + key + digest(certificate)


def anchor_of(secret: str) -> bytes:
    """Digest that is told of a registration's secret to those who have to see that its id belongs to its key."""
    return digest(b"jbi-pubsub anchor 1\0" + secret.encode())


def signed_uid(anchor: bytes, key: bytes) -> str:
    """The id of a signed registration. Nobody can have another key for it, not even who knows the secret: that would be
    a second preimage of 128 bits (see `owned_uid` of pad/model/subscription.py)."""
    return f"registration-{digest(b'jbi-pubsub signed registration 1' + bytes(1) + anchor + key).hex()[:32]}"


def _framed(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data
