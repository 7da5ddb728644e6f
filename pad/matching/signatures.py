"""Signed objects at a delegate or peer publisher: whether they hold, and statements about payloads that are cut.

Who signs and verifies is a Protocol here (core/signing.py); pad/ingress/stages.py knows who it is.
"""

from __future__ import annotations

import logging
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import SignatureError
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.signing import (
    Signer,
    SigningKey,
    Verifier,
    cut_bytes,
    digest,
    filter_digest,
    head_bytes,
    shaped_bytes,
)
from jbi_pubsub.core.xpath import PayloadFilter
from jbi_pubsub.pad.matching.registration import Registration

log = logging.getLogger("jbi_pubsub.pad")

FILTERS_REMEMBERED: Final = 1_000
"""Digests of filters; they are a microsecond's work."""


class SignatureCheck:
    """A stage of the pipeline: [tls] verify is `warn`, or `require`."""

    def __init__(self, verifier: Verifier, *, require: bool) -> None:
        self._verifier = verifier
        self._require = require

    def welcome(self, uid: str, key: SigningKey | None) -> None:
        """Somebody registers. With `require` raises SignatureError unless the key is the registration's own and its
        certificate is good."""
        try:
            if key is None:
                raise SignatureError(f"registration {uid} does not sign")
            self._verifier.check_key(uid, key)
        except SignatureError as exc:
            if self._require:
                hint = "This delegate takes signed objects alone: publish with [tls] sign"
                raise SignatureError(exc.message, hint=hint, registration=uid) from exc
            log.warning("%s", exc)

    def check(self, registration: Registration, parcel: Parcel) -> None:
        """Counts what holds and what does not. With `require` raises SignatureError for that."""
        head, key = parcel.head, registration.terms.signing
        try:
            if not head.signature:
                raise SignatureError("it is not signed")
            message = head_bytes(head, digest(parcel.payload))
            self._verifier.check(registration.uid, message, head.signature, lambda _: (key,) if key else ())
        except SignatureError as exc:
            registration.totals.bad_signature += 1
            if self._require:
                raise SignatureError(f"object {head.object_id}: {exc.message}", object=head.object_id) from exc
            count = registration.totals.bad_signature
            if count & (count - 1) == 0:  # the first, then each power of two
                log.warning(
                    "registration %s: %d objects without a valid signature: %s", registration.uid, count, exc.message
                )
        else:
            registration.totals.signed += 1


class Seals:
    """Statements on the payloads that we cut, for those who get them. One thread at a time or several."""

    def __init__(self, signer: Signer, holder: str) -> None:
        """`holder`: the id of this delegate or peer publisher."""
        self._holder = holder
        self._signer = signer
        self._bound: tuple[int, SigningKey] = (signer.generation, signer.bound(holder))
        self._original: tuple[Head | None, bytes] = (None, b"")
        self._filters: Cache[PayloadFilter, bytes] = Cache(FILTERS_REMEMBERED, _digest_of)
        self._is_told = False

    @property
    def key(self) -> SigningKey:
        """The key that we sign with, for those who ask."""
        generation, key = self._bound
        if generation != self._signer.generation:
            generation, key = self._bound = self._signer.generation, self._signer.bound(self._holder)
        return key

    def seal(self, parcel: Parcel, wanted: PayloadFilter | None, cut: bytes, *, is_shaped: bool = False) -> bytes:
        """The statement that `wanted` has left `cut` of a signed object's payload, or that it was shaped to that behind
        the filter, if there is one; b"" of one that is not signed."""
        head = parcel.head
        if not head.signature:
            return b""
        of, original = self._original
        if of is not head:
            original = digest(parcel.payload)
            self._original = head, original
        try:
            by = self._filters[wanted] if wanted is not None else b""
            said = (shaped_bytes if is_shaped else cut_bytes)(head.object_id, by, original, digest(cut))
            return original + self._signer.sign(said)
        except SignatureError as exc:
            if not self._is_told:
                self._is_told = True
                log.error("filtered payloads are not signed any more: %s", exc)
            return b""


def _digest_of(wanted: PayloadFilter) -> bytes:
    return filter_digest(wanted.expression, wanted.namespaces)
