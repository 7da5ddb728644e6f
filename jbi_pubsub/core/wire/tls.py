"""TLS for both planes: mutual, servers known by their certificate's fingerprint or by the names in it.

rpyc's own `ssl_connect` verifies nothing; these contexts are built here and nowhere else.

Whose certificate a server may show (RFC 9525): a service that a lookup service lists, the one whose SHA-256 it lists;
one that was found by its address (a locator, mDNS), one issued for that address, or for one of `server_names`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jbi_pubsub.core.errors import ConfigurationError, ProtocolError

log = logging.getLogger("jbi_pubsub.wire")

WARN_SECONDS: Final = 30 * 86_400.0
"""A certificate that ends within so long is told at the start of a server: public authorities renew theirs then."""

NO_TLS: Final = "the other side does not speak TLS"
_TROUBLES: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and we ask for one",
    "ALERT_CERTIFICATE_REQUIRED": "the other side asks for a certificate",
    "ALERT_CERTIFICATE_EXPIRED": "the other side says that our certificate has expired, or is not valid yet",
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


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Who we are and whom we believe: PEM files of our certificate, its key, and the CA of our peers; `server_names`
    are those of servers whose certificates do not name their address (see `is_named`)."""

    certificate: Path
    key: Path
    ca: Path
    server_names: tuple[str, ...] = ()
    revoked: Path | None = None

    def server_context(self) -> ssl.SSLContext:
        """For listening: clients must show a certificate of the CA. Raises ConfigurationError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # TLS 1.3 tickets make a fresh socket readable although no request came
        return self._load(context)

    def client_context(self) -> ssl.SSLContext:
        """For connecting: the server must show a certificate of the CA; whose it may be, `check_server` says."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # OpenSSL knows neither pins nor several names
        return self._load(context)

    def fingerprint(self) -> str:
        """SHA-256 (hex) of our certificate in DER, as a ServiceRef carries it."""
        try:
            der = ssl.PEM_cert_to_DER_cert(_first_certificate(self.certificate.read_text()))
        except (OSError, ValueError) as exc:
            raise ConfigurationError(
                f"TLS certificate {self.certificate}: {exc}", hint="Give a PEM certificate"
            ) from exc
        return hashlib.sha256(der).hexdigest()

    def check_dates(self, now: float) -> None:
        """Refuse to serve with a certificate that no client takes: expired, not valid yet, or not made for servers; log
        that it soon will be. Raises ConfigurationError."""
        try:
            ends = ssl.cert_time_to_seconds(_presented(self._load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)), self))
        except ssl.SSLError as exc:
            why = getattr(exc, "verify_message", "") or exc
            raise ConfigurationError(
                f"TLS certificate {self.certificate}: {why}", hint="Have another one issued, and set it in [tls]"
            ) from exc
        if ends - now < WARN_SECONDS:
            until = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(ends))
            log.warning("TLS certificate %s is valid until %s", self.certificate, until)

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.ca)
        except ssl.SSLError as exc:
            raise ConfigurationError(
                f"TLS files {self.certificate}, {self.key}, {self.ca}: {exc}",
                hint="Check that they are PEM, and that the key belongs to the certificate",
            ) from exc
        except OSError as exc:
            raise self._unreadable(exc) from exc
        return context

    def _unreadable(self, failure: OSError) -> ConfigurationError:
        """Which file it is: OpenSSL does not say."""
        for path in (self.certificate, self.key, self.ca):
            try:
                path.read_bytes()
            except OSError as exc:
                return ConfigurationError(f"TLS file {path}: {exc.strerror}", hint="Correct it in [tls]")
        return ConfigurationError(f"TLS files {self.certificate}, {self.key}, {self.ca}: {failure.strerror}")


def _presented(server: ssl.SSLContext, identity: TlsIdentity) -> str:
    """Until when `identity`'s certificate is good, as a client would find that out: nothing in the standard library
    reads a certificate but a handshake, here in memory. Raises ssl.SSLError."""
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
    certificate: Mapping[str, Any] = theirs.getpeercert() or {}
    return str(certificate["notAfter"])


def check_server(sock: ssl.SSLSocket, endpoint: str, host: str, pin: str, server_names: Sequence[str]) -> None:
    """Raises ProtocolError unless the server at `endpoint` shows the certificate with the SHA-256 `pin`, or without one
    a certificate for `host` or one of `server_names`."""
    if pin:
        if peer_fingerprint(sock) != pin:
            raise ProtocolError(f"{endpoint} shows another certificate than its service reference promises")
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
    """What went wrong, in words that name TLS if that is what it was."""
    if not isinstance(failure, ssl.SSLError):
        return str(failure) or type(failure).__name__
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"TLS: the certificate shown is no good: {failure.verify_message}"
    reason = "UNEXPECTED_EOF" if isinstance(failure, ssl.SSLEOFError) else failure.reason or ""
    return "TLS: " + next((words for part, words in _TROUBLES.items() if part in reason), reason or str(failure))


def is_no_tls(failure: ssl.SSLError) -> bool:
    """Whether the peer has sent something else than TLS."""
    return explained(failure) == f"TLS: {NO_TLS}"


def alert_in(head: bytes | bytearray) -> str:
    """What the first bytes of an answer say if they are a TLS alert (RFC 8446, section 5.1), else ""."""
    return "the other side speaks TLS, and we do not: set [tls]" if head[:2] == b"\x15\x03" else ""


def peer_fingerprint(sock: ssl.SSLSocket) -> str:
    """SHA-256 (hex) of the certificate the peer showed, "" without one."""
    der = sock.getpeercert(binary_form=True)
    return hashlib.sha256(der).hexdigest() if der else ""


def peer_name(sock: ssl.SSLSocket) -> str:
    """The identity in the peer's certificate: its first DNS, e-mail or URI name, else its common name."""
    return next((name for _, name in _names(sock.getpeercert() or {})), "")


def _first_certificate(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    head, mark, _ = pem.partition(end)
    return head[head.find("-----BEGIN CERTIFICATE-----") :] + mark + "\n"  # a key may come before it
