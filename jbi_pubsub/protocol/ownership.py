"""Ids of registrations and subscriptions, made from a secret of their owner, and their proof."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.signing import anchor_of, signed_uid
from jbi_pubsub.protocol.entries import HOPS_MOST, OWN_ENTRIES, PLATFORM_NAME, Origin
from jbi_pubsub.protocol.requests import MAX_TEXT, PublisherRequest

MIN_SECRET: Final = 32
"""Characters of a secret that an id is made from: 128 bits in hexadecimal, as many as the id keeps of the digest."""


def owned_uid(kind: str, secret: str) -> str:
    """The id of the registration or subscription (`kind`) that belongs to who knows `secret`.

    Half of a SHA-256 will do: who wants another's id has to find a second preimage (2^128 tries), who finds two
    secrets for one id (2^64) owns both. The label keeps it apart from whatever else is made from the secret.
    """
    return f"{kind}-{hashlib.sha256(f'jbi-pubsub {kind} 1:{secret}'.encode()).hexdigest()[:32]}"


def check_owner(kind: str, uid: str, secret: str) -> None:
    """Raises AccessDeniedError for an id that is not made from `secret`, or from one that can be guessed."""
    proper = MIN_SECRET <= len(secret) <= MAX_TEXT
    if not proper or not hmac.compare_digest(owned_uid(kind, secret).encode(), uid.encode()):
        raise AccessDeniedError(
            f"{kind} {uid[:64]!r} is not proven to be the caller's own",
            hint=f"Send the secret that it is made from, of at least {MIN_SECRET} characters; earlier versions don't",
            uid=uid[:64],
        )


def check_publisher(uid: str, request: PublisherRequest) -> None:
    """Raises AccessDeniedError for a registration's id that is not made from the request's secret, and its signing key
    if it has one, and for entries that are the delegate's to make: a registration would be found under another type."""
    for entry in request.entries:
        if own := next((name for name, _ in entry.cls.lineage if name in OWN_ENTRIES), ""):
            raise AccessDeniedError(
                f"registration {uid[:64]!r} has an entry of class {own}, which its delegate makes",
                hint="Register the entries of the document alone",
                uid=uid[:64],
            )
    if request.origin is not None:
        _check_relayed(uid, request, request.origin)
        return
    if request.signing is None:
        check_owner("registration", uid, request.secret)
        return
    anchor, key = anchor_of(request.secret), request.signing.key
    proper = MIN_SECRET <= len(request.secret) <= MAX_TEXT
    if (
        not proper
        or anchor != request.signing.anchor
        or not hmac.compare_digest(signed_uid(anchor, key).encode(), uid.encode())
    ):
        raise AccessDeniedError(
            f"registration {uid[:64]!r} is not proven to be the caller's own",
            hint="Send the secret and the signing key that it is made from",
            uid=uid[:64],
        )


def _check_relayed(uid: str, request: PublisherRequest, origin: Origin) -> None:
    """That its id is its own, its bridge vouches for, unless it signs: then the id is made from its key."""
    names = (uid, origin.bridge, *origin.via)
    if not all(map(PLATFORM_NAME.fullmatch, names)) or not 1 <= len(origin.via) <= HOPS_MOST:
        raise AccessDeniedError(
            f"registration {uid[:64]!r} can't be relayed: {len(origin.via)} platforms passed, or a name that is none",
            hint=f"1 to {HOPS_MOST} platforms; names of letters, digits, '.', '_' and '-', 64 at most",
            uid=uid[:64],
        )
    if not MIN_SECRET <= len(request.secret) <= MAX_TEXT:
        raise AccessDeniedError(f"registration {uid} is relayed without a secret of the bridge's", uid=uid)
    if request.signing is not None and signed_uid(request.signing.anchor, request.signing.key) != uid:
        raise AccessDeniedError(f"registration {uid} is not that of its signing key", uid=uid)
