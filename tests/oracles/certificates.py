"""A certificate authority for tests: whatever an operator, or somebody hostile, might hand to us as files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jbi_pubsub.core.config import TlsSection

DAY = timedelta(days=1)


@cache
def key(kind: str, number: int = 0) -> Any:
    """A private key; the same again for the same number, as RSA keys take their time."""
    if kind.startswith("rsa"):
        return rsa.generate_private_key(65537, int(kind[3:] or 2048))
    return ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())


class Authority:
    """Issues certificates, as files in `folder`; one that is `below` another is an intermediate one."""

    def __init__(
        self, folder: Path, name: str = "authority", *, below: Authority | None = None, **options: Any
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.name, self.above = folder, name, below
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = _certificate(name, self.key, below or self, **{"is_ca": True, **options})
        self.chain: list[x509.Certificate] = [] if below is None else [self.certificate, *below.chain]
        self.ca = below.ca if below is not None else folder / f"{name}.pem"
        if below is None:
            self.ca.write_bytes(pem(self.certificate))

    def issue(self, name: str, *, kind: str = "ec", number: int = 0, **options: Any) -> TlsSection:
        """Files for [tls] of somebody of that name."""
        private = key(kind, number)
        made = _certificate(name, private, self, **options)
        certificate, secret = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        certificate.write_bytes(b"".join(map(pem, (made, *self.chain))))
        secret.write_bytes(
            private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return TlsSection(certificate=str(certificate), key=str(secret), ca=str(self.ca), server_names=("*",))

    def revoke(self, *certificates: str) -> Path:
        """A list of the certificates in these files, as a file."""
        now = datetime.now(UTC)
        made = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        made = made.last_update(now).next_update(now + DAY)
        for each in certificates:
            serial = x509.load_pem_x509_certificates(Path(each).read_bytes())[0].serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
            made = made.add_revoked_certificate(entry)
        path = self.folder / f"{self.name}-revoked.pem"
        path.write_bytes(made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return path


def _certificate(
    name: str,
    private: Any,
    issuer: Authority,
    *,
    is_ca: bool = False,
    begins: timedelta = -DAY,
    ends: timedelta = DAY,
    purposes: tuple[x509.ObjectIdentifier, ...] = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH),
    may_sign: bool = True,
    path_length: int | None = None,
    critical: x509.ExtensionType | None = None,
    noted: x509.ExtensionType | None = None,
    usage: bool = True,
    below_it: bool = False,
    names: tuple[x509.GeneralName, ...] | None = None,
) -> x509.Certificate:
    now = datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    above = subject if issuer.name == name else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer.name)])
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(above).public_key(private.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now + begins).not_valid_after(now + ends)
    made = made.add_extension(x509.BasicConstraints(is_ca, path_length if is_ca else None), critical=True)
    if usage:  # of one that is no authority, and says that it may sign certificates as well
        issues = may_sign if is_ca else below_it
        made = made.add_extension(
            x509.KeyUsage(may_sign and not is_ca, False, False, False, False, issues, is_ca, False, False), True
        )
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
    made = made.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False
    )
    if not is_ca:
        names = (x509.DNSName(name),) if names is None else names
        made = made.add_extension(x509.SubjectAlternativeName(names), critical=False) if names else made
        made = made.add_extension(x509.ExtendedKeyUsage(purposes), critical=False) if purposes else made
    if critical is not None:
        made = made.add_extension(critical, critical=True)
    if noted is not None:
        made = made.add_extension(noted, critical=False)
    return made.sign(issuer.key, hashes.SHA256())


def pem(certificate: x509.Certificate) -> bytes:
    """As files have it."""
    return certificate.public_bytes(serialization.Encoding.PEM)
