"""The mails that objects become: what is the same for all subscriptions is built once. Pure.

Rules:
- An object's mail is one block of bytes that all subscriptions with the same payload share; only Message-ID, List-Id
  and a recipient's List-Unsubscribe are a subscription's own and go before it (order of header fields is free, RFC 5322
  3.6).
- The same object for the same subscription is the same mail, byte for byte, whenever it is sent: whoever gets it twice
  sees the same Message-ID. But for its importance, which policies may change meanwhile.
- Everything is 7-bit with short lines, so it passes every server (RFC 5321 4.5.3.1.6), also inside a digest. Text is
  quoted-printable and data base64, where "=_" can't occur: a boundary beginning with it is unique (RFC 2045 6.7).
"""

from __future__ import annotations

import binascii
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.header import Header
from email.utils import format_datetime
from typing import Final

import msgspec

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.errors import AddressError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import looks_like_xml, read_metadata, to_bytes
from jbi_pubsub.pad.model.subscription import Subscription, shown_entry
from jbi_pubsub.protocol.mail_links import check_base, link
from jbi_pubsub.protocol.requests import SubscriptionRequest, check_recipients

_CONTROLS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""Characters that no text has: metadata need not be XML."""
READABLE_METADATA: Final = 16 << 10
"""Bytes of the metadata that stand in the body, in UTF-8; the attachment always has all of them."""

LINE: Final = 76
"""Characters of a base64 line (RFC 2045 6.8)."""

ROOM: Final = 4096
"""Bytes of headers and body text that `estimate` allows for, beside the attachments and the readable metadata."""


SHOWN: Final = 1_000
"""Characters of each term of a subscription that a reminder shows."""


class Content(msgspec.Struct, frozen=True, eq=False):
    """An object's mail without the lines that are a subscription's own. `number` is unique in a delegate's queue."""

    number: int
    object_id: str
    type_name: str
    subject: str
    data: bytes


def estimate(obj: InfoObject, payload: bytes) -> int:
    """About how many bytes `compose` makes of it, not fewer than its attachments take."""
    return (len(obj.metadata) + len(payload)) * 4 // 3 + ROOM


def compose(obj: InfoObject, payload: bytes, *, number: int, sender: str) -> Content:
    """The mail for an object: type in the subject, metadata readable, metadata and payload attached.

    `payload` is what the filter left, `sender` a plain address. Headers by RFC 5322 and 3834 (Auto-Submitted); the
    date is that of publication.
    """
    boundary = f"=_object-{hashlib.sha256(obj.object_id.encode()).hexdigest()[:24]}"
    subject = _header(f"{obj.type.name} {obj.platform.registration} #{obj.platform.sequence}")
    head = (
        *_common(sender, subject, obj.platform.published),
        f"X-JBI-Object-Id: {_header(obj.object_id)}",
        f"X-JBI-Type: {_encoded(_header(str(obj.type)))}",
        f'Content-Type: multipart/mixed; boundary="{boundary}"',
        "",
        "",
    )
    readable = f"{obj.type}\n\n{_readable(obj.metadata)}\n"
    parts = [_text(readable), _attachment(obj.metadata, "application/xml", "metadata.xml")]
    if payload:
        xml = looks_like_xml(payload)
        kind, name = ("application/xml", "payload.xml") if xml else ("application/octet-stream", "payload.bin")
        parts.append(_attachment(payload, kind, name))
    data = "\r\n".join(head).encode("ascii") + _multipart(boundary, parts)
    return Content(number, obj.object_id, obj.type.name, subject, data)


def single(
    content: Content, subscription: str, domain: str, unsubscribe: str = "", importance: int | None = None
) -> bytes:
    """The mail of one object for a subscription; Message-ID from both, List-Id by RFC 2919, `unsubscribe` is the URL
    for its recipient (RFC 2369 and 8058), `importance` 1 to 5 of its contract (RFC 2156, registered for mail by RFC
    4021; X-Priority, 1 the highest, is in no RFC, and what most mail programs look at)."""
    mark = hashlib.sha256(content.object_id.encode() + subscription.encode()).hexdigest()[:16]
    own = _own(f"{_header(content.object_id)}.{mark}", subscription, domain, unsubscribe)
    return own + _importance(importance) + content.data


def digest(
    contents: Sequence[Content],
    subscription: str,
    *,
    sender: str,
    domain: str,
    published: float,
    unsubscribe: str = "",
    importance: int | None = None,
) -> bytes:
    """One mail of many objects: a list to read, and each object's whole mail (multipart/digest, RFC 2046 5.1.5).

    `published` is the date in seconds since the epoch, `importance` as of `single`. The Message-ID comes from the
    object ids: the same objects are the same mail.
    """
    ids = "\n".join(c.object_id for c in contents)
    mark = hashlib.sha256(f"{subscription}\n{ids}".encode()).hexdigest()[:32]
    types = ", ".join(sorted({c.type_name for c in contents}))
    outer, inner = f"=_digest-{mark}", f"=_objects-{mark}"
    head = (
        *_common(sender, _header(f"{len(contents)} objects: {types}"), published),
        f'Content-Type: multipart/mixed; boundary="{outer}"',
        "",
        "",
    )
    listed = "".join(f"{n:4}. {c.subject}  {c.object_id}\n" for n, c in enumerate(contents, 1))
    objects = f'Content-Type: multipart/digest; boundary="{inner}"\r\n\r\n'.encode("ascii")
    objects += _multipart(inner, [b"\r\n" + c.data for c in contents])  # no header: message/rfc822 is the default there
    own = _own(f"digest.{mark}", subscription, domain, unsubscribe) + _importance(importance)
    return own + "\r\n".join(head).encode("ascii") + _multipart(outer, [_text(listed), objects])


def reminder(
    request: SubscriptionRequest,
    *,
    ends: float,
    date: float,
    sender: str,
    domain: str,
    unsubscribe: str = "",
    renew: str = "",
) -> bytes:
    """The mail that says when the lease of an e-mail subscription ends, and how it goes on; times are seconds since
    the epoch.

    For the same lease it is the same mail. What the subscription asks for is its owner's text: shown, never obeyed.
    """
    uid, at = _plain(request.uid), datetime.fromtimestamp(ends, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    template = "; ".join(shown_entry(entry) for entry in request.entries)
    asked = (("template", template), ("predicate", request.predicate), ("filter", request.payload_filter))
    terms = "\n".join(f"  {name}: {_plain(said)}" for name, said in asked if said) or "  any content"
    go_on = (
        f"To go on with it, open\n{renew}\nor have an operator say\n"
        if renew
        else "To go on with it, an operator says\n"
    )
    leave = f"To get no more of it, open\n{unsubscribe}\n" if unsubscribe else "To end it for all, an operator says\n"
    end = "" if unsubscribe else f"jbi subscriptions cancel {uid}\n"
    text = (
        f"The e-mail subscription {uid}\nends at {at}, unless it is renewed until then.\n\n"
        f"It sends you information objects with\n{terms}\n\n"
        f"{go_on}jbi subscriptions renew {uid}\n\n{leave}{end}\n"
        "If nobody does anything, it ends by itself. This is the only reminder.\n"
    )
    head = _common(sender, _header(f"Ends {at}: e-mail subscription {uid}"), date)
    mark = hashlib.sha256(f"{uid}\n{ends / 60:.0f}".encode()).hexdigest()[:32]
    own = _own(f"reminder.{mark}", uid, domain, unsubscribe)
    return own + "\r\n".join((*head, "")).encode("ascii") + _text(text)


class MailComposer:
    """Mails of one delegate: its sender, its links, and the contents that were made last."""

    def __init__(self, settings: MailSection, ahead: Callable[[], float], first: int) -> None:
        """`ahead`: see WallClock, of our clock; contents are numbered from `first`. Raises AddressError,
        ConfigurationError."""
        try:
            (self._sender,) = check_recipients((settings.sender,))
        except AddressError as exc:
            raise AddressError(f"[mail] sender: {exc.message}", hint=exc.hint, address=settings.sender) from exc
        self._domain = self._sender.rpartition("@")[2]
        self._base = check_base(settings.unsubscribe)
        self._ahead = ahead
        self._numbers = itertools.count(first)  # next() is atomic
        self._made: tuple[InfoObject | None, dict[int, tuple[bytes, Content]]] = (None, {})

    @property
    def has_links(self) -> bool:
        """Whether each recipient gets a mail of his own."""
        return bool(self._base)

    def content(self, obj: InfoObject, payload: bytes) -> Content:
        """Built once for an object and payload, whatever the number of subscriptions. Threads that publish at the same
        moment may take the one place from each other: then it is built again."""
        known, contents = self._made
        if known is not obj:
            contents = {}
            self._made = (obj, contents)
        made = contents.get(id(payload))  # the same bytes for all with the same filter and shape
        if made is None:  # with the payload, so that no other one gets its id meanwhile
            content = compose(obj, payload, number=next(self._numbers), sender=self._sender)
            made = contents[id(payload)] = payload, content
        return made[1]

    def mail(
        self, subscription: Subscription, contents: Sequence[Content], queued: float, recipient: str, *, is_digest: bool
    ) -> bytes:
        """The mail of one object, or a digest of several, the last of which was `queued` then by our clock; with the
        links of `recipient`."""
        leave = link(self._base, "unsubscribe", subscription.request, recipient)
        contract = subscription.contract
        importance = contract.settings.importance if contract is not None else None
        if not is_digest:
            return single(contents[0], subscription.uid, self._domain, leave, importance)
        return digest(
            contents, subscription.uid, sender=self._sender, domain=self._domain, published=queued + self._ahead(),
            unsubscribe=leave, importance=importance,
        )  # fmt: skip

    def reminder(self, request: SubscriptionRequest, ends: float, made: float, recipient: str) -> bytes:
        """See `reminder`."""
        leave, renew = (link(self._base, action, request, recipient) for action in ("unsubscribe", "renew"))
        return reminder(
            request, ends=ends, date=made, sender=self._sender, domain=self._domain, unsubscribe=leave, renew=renew
        )


def _own(left: str, subscription: str, domain: str, unsubscribe: str) -> bytes:
    list_id = _NO_ATOM.sub("_", subscription)[:200]
    lines = f"Message-ID: <{left}@{domain}>\r\nList-Id: <{list_id}.subscription.{domain}>\r\n"
    if unsubscribe:
        lines += f"List-Unsubscribe: <{unsubscribe}>\r\n"
    if unsubscribe.startswith("https:"):  # RFC 8058, section 3.1: one click is for HTTPS alone
        lines += "List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"
    return lines.encode("ascii", "replace")


def _importance(importance: int | None) -> bytes:
    if importance is None:
        return b""
    word = ("low", "low", "normal", "high", "high")[importance - 1]
    return f"Importance: {word}\r\nX-Priority: {6 - importance}\r\n".encode("ascii")


def _common(sender: str, subject: str, date: float) -> tuple[str, ...]:
    return (
        f"From: {sender}",
        "To: undisclosed-recipients:;",
        f"Subject: {_encoded(subject)}",
        f"Date: {format_datetime(datetime.fromtimestamp(date, UTC))}",
        "Auto-Submitted: auto-generated",
        "MIME-Version: 1.0",
    )


def _multipart(boundary: str, parts: Sequence[bytes]) -> bytes:
    dashes = b"--" + boundary.encode("ascii")
    pieces = [piece for part in parts for piece in (dashes, b"\r\n", part, b"\r\n")]
    return b"".join((*pieces, dashes, b"--\r\n"))


def _text(text: str) -> bytes:
    lines = "\r\n".join(text.splitlines()) + "\r\n"
    head = 'Content-Type: text/plain; charset="utf-8"\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n'
    return head.encode("ascii") + binascii.b2a_qp(lines.encode("utf-8"), istext=True)


def _readable(metadata: bytes) -> str:
    """Metadata as a person reads them, in whatever encoding they are; the first of them, which is told."""
    try:
        text = metadata.decode("utf-8-sig")
    except UnicodeDecodeError:
        root = read_metadata(metadata)
        text = (to_bytes(root) if root is not None else metadata).decode(errors="replace")
    shown = _CONTROLS.sub("\ufffd", text.encode()[:READABLE_METADATA].decode(errors="ignore"))
    left = len(text) - len(shown)
    return f"{shown}\n\n[{left:,} more characters are in metadata.xml]" if left else shown


def _attachment(data: bytes, kind: str, name: str) -> bytes:
    head = (
        f"Content-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n"
        f'Content-Disposition: attachment; filename="{name}"\r\n\r\n'
    )
    coded = binascii.b2a_base64(data, newline=False)
    return head.encode("ascii") + b"\r\n".join([coded[at : at + LINE] for at in range(0, len(coded), LINE)])


def _plain(text: str) -> str:
    """On one line, of bounded length."""
    return "".join(c if c.isprintable() else " " for c in text[:SHOWN])


def _header(text: str) -> str:
    return "".join(c if c.isprintable() and c not in "<>" else "_" for c in text)[:200]


def _encoded(text: str) -> str:
    """As a header field: what is not ASCII, or looks as if it were encoded already, is (RFC 2047, sections 2 and 7)."""
    plain = text.isascii() and "=?" not in text
    return text if plain else Header(text, "utf-8").encode(linesep="\r\n")


_NO_ATOM: Final = re.compile(r"[^A-Za-z0-9.-]")
