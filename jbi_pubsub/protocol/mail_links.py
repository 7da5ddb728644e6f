"""Links by which whoever reads a mail unsubscribes or renews, without an account: what stands in them, and what proves
them. Pure.

A link names its subscription, which every mail does, and proves it by an HMAC (RFC 2104) of what it does, for which
subscription and recipient, with the subscription's own secret. All delegates that have the subscription know that, also
after a restart with --state; so one click counts at each of them, and none has a secret of its own to lose. Nothing
else is in it: no address for a log to keep, nothing that can be counted up.
"""

from __future__ import annotations

import base64
import hmac
import re
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.protocol.ownership import MIN_SECRET
from jbi_pubsub.protocol.requests import SubscriptionRequest

LinkAction = Literal["unsubscribe", "renew"]

LINK_ACTIONS: Final[tuple[LinkAction, ...]] = get_args(LinkAction)

MAX_BASE: Final = 200
"""Characters of the part of a link that is the same for all: with the rest it stays on one line (RFC 5322 2.1.1)."""

_LABEL: Final = "jbi-pubsub mail link 1"
_KIND: Final = "subscription-"
_HALF: Final = 16
"""Bytes of the id, and of the proof: 2^128 tries."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")

_UID: Final = re.compile(_KIND + r"[0-9a-f]{32}")

_PLAIN: Final = re.compile(r"[!#-;=?-Z\\_a-z~^`\[\]]+")
"""Characters that may stand in a URL between angle brackets, in a header and in HTML: no space, quotation mark, <, >,
nothing beyond ASCII."""


def check_base(base: str) -> str:
    """The URL that links begin with, without a slash at its end; "" for none. Raises ConfigurationError."""
    if not base:
        return ""
    hint = "For example https://jbi.example.org:8160, where `jbi web` is reached"
    try:
        parts = urlsplit(base)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good or parts.query or parts.fragment or "@" in parts.netloc or not _PLAIN.fullmatch(base):
        raise ConfigurationError(
            f"[mail] unsubscribe = {base[:200]!r} is not a URL that links can begin with", hint=hint
        )
    if len(base) > MAX_BASE:
        raise ConfigurationError(f"[mail] unsubscribe has {len(base)} characters, the limit is {MAX_BASE}", hint=hint)
    return base.rstrip("/")


def link(base: str, action: LinkAction, request: SubscriptionRequest, recipient: str) -> str:
    """The URL for that recipient; "" when there is no base, or nothing to prove it with (a subscription from a time
    when ids were not made from secrets)."""
    if not base or len(request.secret) < MIN_SECRET or not _UID.fullmatch(request.uid):
        return ""
    named = bytes.fromhex(request.uid.removeprefix(_KIND))
    token = base64.urlsafe_b64encode(named + _proof(action, request, recipient)).rstrip(b"=").decode("ascii")
    return f"{base}/{action}?token={token}"


def uid_of(token: str) -> str:
    """The subscription that a link's token names. Raises UnknownUidError for what is no token."""
    if not _TOKEN.fullmatch(token):
        raise UnknownUidError("this is not a link of a mail")
    return _KIND + _bytes(token)[:_HALF].hex()


def recipient_of(token: str, action: LinkAction, request: SubscriptionRequest) -> str:
    """Recipient whose link it is; "" if it proves nothing. As long for a near guess as for any other."""
    proof, found = _bytes(token)[_HALF:], ""
    if len(request.secret) < MIN_SECRET:
        return ""
    for recipient in request.recipients:
        if hmac.compare_digest(proof, _proof(action, request, recipient)):
            found = recipient
    return found


def _proof(action: LinkAction, request: SubscriptionRequest, recipient: str) -> bytes:
    said = f"{_LABEL}\n{action}\n{request.uid}\n{recipient}"
    return hmac.digest(request.secret.encode(), said.encode(), "sha256")[:_HALF]


def _bytes(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=")
