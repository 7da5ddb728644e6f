"""TLS for both planes: mutual when a CA is given, servers pinned by certificate fingerprint.

rpyc's own `ssl_connect` verifies nothing; these contexts are built here and nowhere else.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jbi_pubsub.core.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """Who we are and whom we believe: PEM files of our certificate, its key, and the CA of our peers."""

    certificate: Path
    key: Path
    ca: Path

    def server_context(self) -> ssl.SSLContext:
        """For listening: clients must show a certificate of the CA. Raises ConfigurationError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.num_tickets = 0  # TLS 1.3 tickets make a fresh socket readable although no request came
        return self._load(context)

    def client_context(self) -> ssl.SSLContext:
        """For connecting: the server must show a certificate of the CA; its name is replaced by the pin."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # services move between hosts; the ServiceRef pins the certificate itself
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


def peer_fingerprint(sock: ssl.SSLSocket) -> str:
    """SHA-256 (hex) of the certificate the peer showed, "" without one."""
    der = sock.getpeercert(binary_form=True)
    return hashlib.sha256(der).hexdigest() if der else ""


def peer_name(sock: ssl.SSLSocket) -> str:
    """The identity in the peer's certificate: its first DNS, e-mail or URI name, else its common name."""
    certificate: dict[str, Any] = dict(sock.getpeercert() or {})
    for _, name in certificate.get("subjectAltName", ()):
        return str(name)
    for group in certificate.get("subject", ()):
        for key, value in group:
            if key == "commonName":
                return str(value)
    return ""


def _first_certificate(pem: str) -> str:
    end = "-----END CERTIFICATE-----"
    head, mark, _ = pem.partition(end)
    return head[head.find("-----BEGIN") :] + mark + "\n"
