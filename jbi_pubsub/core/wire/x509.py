"""Contents of certificates and lists of revoked ones (RFC 5280), without verifying anything: that is OpenSSL's.

The standard library shows a certificate only behind a handshake, and of a revocation list nothing at all. This reads as
much of DER (ITU-T X.690, section 10) as these two have: definite lengths, no floats, no choice that is not named here.
"""

from __future__ import annotations

import binascii
import hashlib
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

INTEGER, OCTETS, OID, SEQUENCE = 0x02, 0x04, 0x06, 0x30
UTC_TIME, GENERALIZED_TIME = 0x17, 0x18
VERSION, EXTENSIONS = 0xA0, 0xA3

COMMON_NAME: Final = bytes.fromhex("550403")  # 2.5.4.3
ORGANIZATION: Final = bytes.fromhex("55040a")  # 2.5.4.10
ALTERNATIVE_NAME: Final = bytes.fromhex("551d11")  # 2.5.29.17
KEY_USAGES: Final = bytes.fromhex("551d25")  # 2.5.29.37
USAGES: Final = {bytes.fromhex("2b06010505070301"): "server", bytes.fromhex("2b06010505070302"): "client"}
"""Purposes that a certificate may be shown for (RFC 5280, section 4.2.1.12)."""
TEXTS: Final = {0x0C: "utf-8", 0x13: "ascii", 0x16: "ascii", 0x14: "latin-1", 0x1E: "utf-16-be", 0x1C: "utf-32-be"}
"""Tags of strings, and their encodings."""
EMAIL, DNS, URI, ADDRESS = 0x81, 0x82, 0x86, 0x87
"""Kinds of alternative names (RFC 5280, section 4.2.1.6)."""

_PEM: Final = re.compile(r"-----BEGIN (CERTIFICATE|X509 CRL)-----([A-Za-z0-9+/=\s]*)-----END \1-----")


@dataclass(frozen=True, slots=True)
class Certificate:
    """Statements of a certificate about its holder."""

    subject: str
    """Its common name, else its organization; "" without either."""
    issuer: str
    """The same of its authority."""
    names: tuple[str, ...]
    """Alternative names as text, in their order: DNS, e-mail, URI, IP address."""
    serial: int
    not_before: float
    """Seconds since 1970, as `time.time()`."""
    not_after: float
    usages: tuple[str, ...]
    """Some of "server" and "client"; () for whatever it likes."""
    key: str
    """SHA-256 (hex) of its public key with the algorithm (SubjectPublicKeyInfo), as in RFC 7469, section 2.4: it stays
    when the certificate is renewed for the same key."""
    subject_name: bytes
    """In DER: what is compared."""
    issuer_name: bytes

    @property
    def holder(self) -> str:
        """Key of revocation lists, as text: its number and its authority."""
        return f"{self.serial:x}:{self.issuer_name.hex()}"

    @property
    def identity(self) -> str:
        """Name of its holder: the first of its names, else the subject."""
        return self.names[0] if self.names else self.subject


@dataclass(frozen=True, slots=True)
class RevocationList:
    """The certificates of one authority that hold no more (a CRL)."""

    issuer: str
    issuer_name: bytes
    since: float
    """Seconds since 1970."""
    until: float
    """When it has to be made again; `inf` if it does not say: TLS takes nobody of that authority afterwards."""
    serials: frozenset[int]

    def names(self, holder: str) -> bool:
        """Whether it says that the certificate with that `holder` is revoked; False for ""."""
        serial, _, issuer = holder.partition(":")
        return issuer == self.issuer_name.hex() and int(serial, 16) in self.serials


def certificates(pem: str) -> list[Certificate]:
    """All that are in a PEM text, in their order. Raises ValueError."""
    return [certificate(der) for der in _blocks(pem, "CERTIFICATE")]


def revocations(pem: str) -> list[RevocationList]:
    """All revocation lists in a PEM text. Raises ValueError."""
    return [_revocation(der) for der in _blocks(pem, "X509 CRL")]


def certificate(der: bytes) -> Certificate:
    """Facts of a certificate. Raises ValueError."""
    fields = _Fields(_inside(_inside(der), first=True))
    fields.skip(VERSION)
    serial = int.from_bytes(fields.take(INTEGER).content, "big", signed=True)
    fields.take(SEQUENCE)  # the algorithm of the signature
    issuer = fields.take(SEQUENCE)
    validity = _Fields(fields.take(SEQUENCE).content)
    subject = fields.take(SEQUENCE)
    key = fields.take(SEQUENCE)
    extensions = dict(_extensions(fields.rest()))
    return Certificate(
        subject=_called(subject.content),
        issuer=_called(issuer.content),
        names=tuple(_names(extensions.get(ALTERNATIVE_NAME, b""))),
        serial=serial,
        not_before=_time(validity.take(UTC_TIME, GENERALIZED_TIME)),
        not_after=_time(validity.take(UTC_TIME, GENERALIZED_TIME)),
        usages=tuple(_usages(extensions.get(KEY_USAGES, b""))),
        key=hashlib.sha256(key.whole).hexdigest(),
        subject_name=subject.whole,
        issuer_name=issuer.whole,
    )


def _revocation(der: bytes) -> RevocationList:
    fields = _Fields(_inside(_inside(der), first=True))
    fields.skip(INTEGER)  # the version
    fields.take(SEQUENCE)  # the algorithm of the signature
    issuer = fields.take(SEQUENCE)
    since = _time(fields.take(UTC_TIME, GENERALIZED_TIME))
    until = fields.skip(UTC_TIME, GENERALIZED_TIME)
    revoked = fields.skip(SEQUENCE)
    serials = (
        int.from_bytes(_Fields(entry.content).take(INTEGER).content, "big", signed=True)
        for entry in _elements(revoked.content if revoked else b"")
    )
    return RevocationList(
        issuer=_called(issuer.content),
        issuer_name=issuer.whole,
        since=since,
        until=_time(until) if until else float("inf"),
        serials=frozenset(serials),
    )


def _blocks(pem: str, kind: str) -> Iterator[bytes]:
    for found, text in _PEM.findall(pem):
        if found == kind:
            try:
                yield binascii.a2b_base64("".join(text.split()), strict_mode=True)
            except binascii.Error as exc:
                raise ValueError(f"PEM of a {kind.lower()} that is not base64: {exc}") from exc


# -- DER ----------------------------------------------------------------------------------------------------------


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def _elements(data: bytes) -> Iterator[_Element]:
    """Elements that stand one behind the other. Raises ValueError."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("truncated")
        tag, length = data[at], data[at + 1]
        begin = at + 2
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                raise ValueError("a length that is not definite, or over 4 GiB")
            length = int.from_bytes(data[begin : begin + size], "big")
            begin += size
        end = begin + length
        if end > len(data):
            raise ValueError("truncated")
        yield _Element(tag, data[begin:end], data[at:end])
        at = end


class _Fields:
    """The elements of a sequence, one after the other, some of them optional."""

    def __init__(self, data: bytes) -> None:
        self._left = list(_elements(data))
        self._left.reverse()

    def take(self, *tags: int) -> _Element:
        """The next one, which is one of these. Raises ValueError."""
        found = self.skip(*tags)
        if found is None:
            raise ValueError("not what belongs there")
        return found

    def skip(self, *tags: int) -> _Element | None:
        """The next one if it is one of these."""
        return self._left.pop() if self._left and self._left[-1].tag in tags else None

    def rest(self) -> list[_Element]:
        return self._left[::-1]


def _inside(data: bytes, *, first: bool = False) -> bytes:
    """The content of the one sequence that is there, or of the first. Raises ValueError."""
    found = list(_elements(data))
    if not found or found[0].tag != SEQUENCE or (len(found) > 1 and not first):
        raise ValueError("not what belongs there")
    return found[0].content


def _time(element: _Element) -> float:
    """RFC 5280, section 4.1.2.5: two digits of a year are of 1950 to 2049."""
    text = element.content.decode("ascii")
    if element.tag == UTC_TIME:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _called(name: bytes) -> str:
    """The common name in a distinguished name, else the organization."""
    found: dict[bytes, str] = {}
    for group in _elements(name):
        for pair in _elements(group.content):
            kind, value = list(_elements(pair.content))
            found.setdefault(kind.content, value.content.decode(TEXTS.get(value.tag, "latin-1"), errors="replace"))
    return found.get(COMMON_NAME) or found.get(ORGANIZATION, "")


def _extensions(fields: list[_Element]) -> Iterator[tuple[bytes, bytes]]:
    """(object identifier, value) of each."""
    for field in fields:
        if field.tag == EXTENSIONS:
            for extension in _elements(_inside(field.content)):
                parts = list(_elements(extension.content))
                if len(parts) < 2 or parts[0].tag != OID or parts[-1].tag != OCTETS:
                    raise ValueError("not what belongs there")
                yield parts[0].content, parts[-1].content


def _names(value: bytes) -> Iterator[str]:
    for name in _elements(_inside(value)) if value else ():
        if name.tag in (EMAIL, DNS, URI) and name.content:
            yield name.content.decode("utf-8", errors="backslashreplace")  # ASCII, else two names stay two
        elif name.tag == ADDRESS and len(name.content) in (4, 16):
            yield str(ipaddress.ip_address(name.content))


def _usages(value: bytes) -> Iterator[str]:
    for usage in _elements(_inside(value)) if value else ():
        yield USAGES.get(usage.content, usage.content.hex())
