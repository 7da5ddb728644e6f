"""TLS for both planes: mutual, servers known by their certificate's key or by the names in it.

rpyc's own `ssl_connect` verifies nothing; these contexts are built here and nowhere else.

Whose certificate a server may show (RFC 9525): a service that a lookup service lists, one of the key whose SHA-256 it
lists; one that was found by its address (a locator, mDNS), one issued for that address, or for one of `server_names`.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import ConfigurationError, JbiError, ProtocolError
from jbi_pubsub.core.status import AuthorityStatus, RevocationsStatus, TlsStatus

from . import x509
from .credentials import Facts, FileCredentials, ends_soon

log = logging.getLogger("jbi_pubsub.wire")

NO_TLS: Final = "the other side does not speak TLS"
_TROUBLES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and we ask for one",
    "ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the other side says that our certificate has expired, or is not valid yet",
    "ALERT_CERTIFICATE_REVOKED": "the other side says that our certificate is revoked",
    "ALERT_UNKNOWN_CA": "the other side does not know the authority of our certificate",
    "_CERTIFICATE": "the other side refuses our certificate",
    "PROTOCOL_VERSION": "there is no version of TLS in common",
    "UNSUPPORTED_PROTOCOL": "there is no version of TLS in common",
    "WRONG_VERSION_NUMBER": NO_TLS,
    "HTTP_REQUEST": NO_TLS,
    "ALERT_UNEXPECTED_MESSAGE": NO_TLS,
    "UNEXPECTED_EOF": "the other side has ended the connection: it speaks no TLS, or its log says why it refuses us",
}
"""Parts of OpenSSL's reasons, the first that fits counts, and what they mean."""
_ADVICE: Final = {
    3: ": [tls] revoked has no list of its authority",
    9: ": compare the clocks",
    11: ": [tls] revoked, compare the clocks",
    12: ": [tls] revoked is too old",
}
"""By OpenSSL's code for what it finds (x509_vfy.h): what to do about it."""


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Our identity and whom we believe: PEM files of our certificate, its key, the CA of our peers, and which of them
    are `revoked`; `server_names` are those of servers whose certificates do not name their address (see `is_named`)."""

    certificate: Path
    key: Path
    ca: Path
    server_names: tuple[str, ...] = ()
    revoked: Path | None = None

    def server_context(self) -> ssl.SSLContext:
        """For listening, as the files are now: clients must show a certificate of the CA. Raises ConfigurationError."""
        return self._credentials().latest().server

    def client_context(self) -> ssl.SSLContext:
        """For connecting, as the files are now: the server must show a certificate of the CA; whose it may be,
        `check_server` says. Raises ConfigurationError."""
        return self._credentials().latest().client

    def site_context(self) -> ssl.SSLContext:
        """For a server of browsers, as the files are now: it shows our certificate and asks for none. New connections
        of it have the files as they are then. Raises ConfigurationError."""
        context = self._credentials().latest().site
        context.sni_callback = self._show_latest
        return context

    def _show_latest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called for each connection that begins, also for one that names no server."""
        connection.context = self._credentials().latest().site

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the key of our certificate, as a ServiceRef carries it. From now on the key stays."""
        return self._credentials().serve()

    def look(self) -> None:
        """End connections of those who were revoked meanwhile."""
        self._credentials().look()

    def watch(self, sock: ssl.SSLSocket) -> x509.Certificate:
        """The peer's certificate; the connection ends when that is revoked. Raises WireError if it is already."""
        return self._credentials().watch(sock)

    def facts(self) -> Facts:
        """Facts of the certificates in force: ours, the authorities', and which are revoked."""
        return self._credentials().facts

    def status(self, now: float) -> TlsStatus:
        """The same for status pages: times in seconds since 1970, `days` left at `now`."""
        own, authorities, revocations = self.facts()
        return TlsStatus(
            identity=own.identity,
            names=list(own.names),
            issuer=own.issuer,
            serial=f"{own.serial:x}",
            **_left(own.not_after, now),
            ends_soon=ends_soon(own.not_before, own.not_after, now),
            authorities=[AuthorityStatus(name=each.subject, **_left(each.not_after, now)) for each in authorities],
            revocations=[
                RevocationsStatus(issuer=each.issuer, certificates=len(each.serials), **_left(each.until, now))
                for each in revocations
            ],
            revoked=self.facts().is_revoked(own.holder),
            problem=self._credentials().problem,
        )

    def check_dates(self) -> None:
        """Refuse to serve with a certificate that no client takes: expired, not valid yet, revoked, or not made for
        servers. Raises ConfigurationError."""
        try:
            _present(self)
        except ssl.SSLError as exc:
            why = getattr(exc, "verify_message", "") or exc
            hint = "Have another one issued, and set it in [tls]"
            if "purpose" in str(why):
                hint = "It is for clients; one with addresses is for servers: jbi certs issue NAME --address HOST"
            raise ConfigurationError(f"TLS certificate {self.certificate}: {why}", hint=hint) from exc
        if self.facts().is_revoked(self.facts().certificate.holder):
            raise ConfigurationError(
                f"TLS certificate {self.certificate}: it is revoked, says {self.revoked}",
                hint="Have another one issued, and set it in [tls]",
            )

    def _credentials(self) -> FileCredentials:
        """One for all of this process that use the same files."""
        with _lock:
            return _known[self]


def _left(until: float, now: float) -> dict[str, Any]:
    """Nothing of a list that does not say."""
    return {"until": until, "days": round((until - now) / 86_400.0, 1)} if until < math.inf else {}


MAX_KNOWN: Final = 64
"""Identities of a process: one, but in tests."""
_known: Final[Cache[TlsIdentity, FileCredentials]] = Cache(
    MAX_KNOWN, lambda of: FileCredentials(of.certificate, of.key, of.ca, of.revoked)
)
_lock: Final = threading.Lock()  # covers _known


def _present(identity: TlsIdentity) -> None:
    """Show `identity`'s certificate to a client, here in memory: whether it is good for a server now, only OpenSSL
    knows. Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(identity.certificate, identity.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(identity.certificate)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever issued it
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs, ours = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in (theirs, ours, theirs, ours):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        if end is theirs:
            break


def check_server(
    sock: ssl.SSLSocket, key: str, endpoint: str, host: str, pin: str, server_names: Sequence[str]
) -> None:
    """Raises ProtocolError unless the server at `endpoint` shows the certificate of the key with the SHA-256 `pin`,
    which is `key`, or without one a certificate for `host` or one of `server_names`."""
    if pin:
        if key != pin:
            raise ProtocolError(
                f"{endpoint} shows a certificate with another key than its service reference promises",
                endpoint=endpoint,
            )
        return
    certificate: Mapping[str, Any] = sock.getpeercert() or {}
    if not is_named(certificate, host, server_names):
        names = ", ".join(name for _, name in _names(certificate)) or "nobody"
        raise ProtocolError(
            f"{endpoint} shows a certificate for {names[:300]}, not for {host}",
            hint="Have it issued for that address, or name it in [tls] server_names",
            endpoint=endpoint,
        )


def is_named(certificate: Mapping[str, Any], host: str, server_names: Sequence[str] = ()) -> bool:
    """Whether a certificate (as getpeercert gives it) is one for `host`: by a DNS name, whose first label may be "*",
    or an IP address in it; the common name does not count (RFC 9525, section 6). Or for one of `server_names`: any name
    in it, the common name too; "*.example.org" stands for all with one label more, "*" for all."""
    if "*" in server_names:
        return True
    address = _address(host)
    for kind, name in _names(certificate):
        if any(_is_like(pattern, name) for pattern in server_names):
            return True
        if kind == "IP Address" and address is not None and _address(name) == address:
            return True
        if kind == "DNS" and address is None and _is_like(name, host):
            return True
    return False


def _is_like(pattern: str, name: str) -> bool:
    pattern, name = pattern.rstrip(".").lower(), name.rstrip(".").lower()
    return pattern == name or (pattern.startswith("*.") and name.partition(".")[2] == pattern[2:] != "")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _names(certificate: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, name) of all in it, the common name last."""
    yield from ((str(kind), str(name)) for kind, name in certificate.get("subjectAltName", ()))
    for group in certificate.get("subject", ()):
        yield from ((key, str(value)) for key, value in group if key == "commonName")


def explained(failure: Exception) -> str:
    """Message of a failure, in words that name TLS if that is what it was."""
    if not isinstance(failure, ssl.SSLError):
        return str(failure) or type(failure).__name__
    if isinstance(failure, ssl.SSLCertVerificationError):
        advice = _ADVICE.get(failure.verify_code, "")
        return f"TLS: the certificate shown is not valid: {failure.verify_message}{advice}"
    reason = "UNEXPECTED_EOF" if isinstance(failure, ssl.SSLEOFError) else failure.reason or ""
    return "TLS: " + next((words for part, words in _TROUBLES.items() if part in reason), reason or str(failure))


def is_about_tls(failure: JbiError) -> bool:
    """Whether TLS is why: somebody has to mend that, it does not pass."""
    return "TLS: " in failure.message


def is_no_tls(failure: ssl.SSLError) -> bool:
    """Whether the peer has sent something else than TLS."""
    return explained(failure) == f"TLS: {NO_TLS}"


def alert_in(head: bytes | bytearray) -> str:
    """Meaning of the first bytes of an answer if they are a TLS alert (RFC 8446, section 5.1), else ""."""
    return "the other side speaks TLS, and we do not: set [tls]" if head[:2] == b"\x15\x03" else ""
