"""A certificate authority for one deployment, in a folder: who may speak TLS there, and who may no more.

    DIR/authority/key.pem, ca.pem    its key, and its certificate, which everybody gets
    DIR/authority/issued/SERIAL.pem  every certificate it has issued
    DIR/authority/crl.pem            which of those are revoked (a CRL, RFC 5280)
    DIR/NAME/                        what one party gets: certificate.pem, key.pem, ca.pem, crl.pem

There is no other index: what is issued is what lies in `issued`, what is revoked is what the list says. One process
works in a folder at a time. Each change has one step that makes it, an atomic write; what has to be done besides is
prepared before that, beside what is there, and finished, or thrown away, by whoever opens the folder next.

Keys are ECDSA P-256, which every TLS there is takes; Ed25519 is refused by browsers, which the console talks to. A
renewal is for the same key: a server is known by it. Certificates and lists begin an hour before they are made, since
clocks differ.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from jbi_pubsub.core.config import CA_FILE, CERTIFICATE_FILE, KEY_FILE, REVOKED_FILE
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.files import locked, sync_folder, written
from jbi_pubsub.core.wire.credentials import ends_soon, shown_time
from jbi_pubsub.core.wire.x509 import Certificate, certificates, revocations

Role = Literal["server", "client"]

AUTHORITY_DAYS: Final = 3652
"""Ten years: whoever replaces an authority touches every party."""
PARTY_DAYS: Final = 90
"""A stolen key that nobody has noticed is worth little then, and a monthly renewal may fail twice."""

BEFORE: Final = timedelta(hours=1)
"""By how much a clock may be behind that of the authority."""
LOCK_SECONDS: Final = 10.0
MAX_ADDRESSES: Final = 100
MAX_PASSPHRASE: Final = 1024

AUTHORITY: Final = "authority"
"""Its own folder; no party can have that name."""
NEW, OLD = ".new", ".old"
"""Ends of what is prepared, and of what is about to go."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}(@[A-Za-z0-9][A-Za-z0-9.-]{0,62})?")
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]{0,62})(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*")


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate of the authority."""

    certificate: Certificate
    is_revoked: bool

    @property
    def name(self) -> str:
        """Name of its holder."""
        return self.certificate.subject

    @property
    def role(self) -> Role:
        """A server connects as well; a client does not serve."""
        return "server" if "server" in self.certificate.usages else "client"

    @property
    def addresses(self) -> tuple[str, ...]:
        """At which it is reached, besides its name."""
        return self.certificate.names[1:]

    def state(self, now: float) -> str:
        """valid, expires soon, expired or revoked."""
        if self.is_revoked:
            return "revoked"
        if now > self.certificate.not_after:
            return "expired"
        return "expires soon" if self.ends_soon(now) else "valid"

    def ends_soon(self, now: float) -> bool:
        """Whether it should be renewed by now."""
        return ends_soon(self.certificate.not_before, self.certificate.not_after, now)


class Authority:
    """See the module. `with Authority.opened(DIR) as authority:` holds its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._own = folder / AUTHORITY
        self._issued = self._own / "issued"
        self._read: dict[Path, Certificate] = {}
        """Records, which never change."""

    @classmethod
    def init(cls, folder: Path, name: str, *, now: float, days: int = AUTHORITY_DAYS, passphrase: bytes = b"") -> Self:
        """A new one, called `name`, good for `days`; a `passphrase` encrypts its key. Raises ConfigurationError if
        there is one in `folder`, or others may write there."""
        if not 0 < len(name.strip()) <= 64 or not name.isprintable():
            raise ConfigurationError(f"an authority can't be called {name!r}", hint="1 to 64 printable characters")
        if not 0 < days <= AUTHORITY_DAYS:
            raise ConfigurationError(f"an authority for {days} days", hint=f"1 to {AUTHORITY_DAYS}, ten years")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(f"others may write to {folder}", hint=f"chmod go-w {folder}, or name another one")
        made = cls(folder)
        with made._locked():
            if made._own.exists():
                raise ConfigurationError(
                    f"{folder} has an authority already", hint="Issue from it, or name another folder"
                )
            made._found(name.strip(), _time(now), days, passphrase)
        return made

    @classmethod
    @contextlib.contextmanager
    def opened(cls, folder: Path) -> Iterator[Self]:
        """The one in `folder`; nobody else changes it meanwhile. Raises ConfigurationError if there is none,
        StorageError if another process keeps it for LOCK_SECONDS."""
        made = cls(folder)
        if not (made._own / CA_FILE).exists():
            raise ConfigurationError(
                f"there is no authority in {folder}",
                hint="Make one with `jbi certs init`, or name its folder with --folder",
            )
        with made._locked():
            made._recover()
            yield made

    @property
    def certificate(self) -> Certificate:
        """Its own."""
        return certificates((self._own / CA_FILE).read_text())[0]

    def issued(self) -> list[Issued]:
        """All that it has issued, by name, the oldest first. Raises ConfigurationError for a damaged file."""
        [revoked] = revocations((self._own / REVOKED_FILE).read_text())
        found = []
        for path in sorted(self._issued.glob("*.pem"), key=lambda path: path.stat().st_mtime_ns):
            try:
                if path not in self._read:
                    [self._read[path]] = certificates(path.read_text())
            except (ValueError, UnicodeDecodeError) as exc:
                raise ConfigurationError(
                    f"{path} is not a certificate: {exc}", hint="Restore the folder from a copy, or take that file away"
                ) from exc
            found.append(Issued(self._read[path], revoked.names(self._read[path].holder)))
        return sorted(found, key=lambda each: (each.name, each.certificate.not_before))

    def latest(self) -> dict[str, Issued]:
        """By name, the one that was issued last, one that is not revoked if there is."""
        return {each.name: each for each in sorted(self.issued(), key=lambda each: not each.is_revoked)}

    def issue(
        self,
        name: str,
        role: Role,
        addresses: Sequence[str] = (),
        *,
        now: float,
        days: int = PARTY_DAYS,
        passphrase: bytes = b"",
    ) -> Issued:
        """A new key and certificate for a party, in the folder of its name. Raises ConfigurationError: for a bad name
        or address, a name that has a certificate which is good, a passphrase that is wrong or missing."""
        names = [_party(name), *map(_address, addresses)]
        if len(addresses) > MAX_ADDRESSES:
            raise ConfigurationError(f"{len(addresses)} addresses for {name}", hint=f"At most {MAX_ADDRESSES}")
        standing = self.latest().get(name)
        if standing is not None and standing.state(now) in ("valid", "expires soon"):
            until = shown_time(standing.certificate.not_after)
            raise ConfigurationError(
                f"{name} has a certificate that is valid until {until}",
                hint=f"`jbi certs renew {name}`, or `jbi certs revoke {name}` and issue again if its key is lost",
            )
        signer = self._signer(passphrase)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = signer.certify(name, key.public_key(), names, role, _time(now), timedelta(days=days))
        prepared = self.folder / f"{name}{NEW}"
        prepared.mkdir(mode=0o700)
        _write(prepared / KEY_FILE, _key_pem(key), 0o600)
        _write(prepared / CERTIFICATE_FILE, _pem(certificate))
        self._spread(prepared)
        self._record(certificate)
        self._finish(prepared)
        return Issued(certificates(_pem(certificate).decode())[0], is_revoked=False)

    def renew(self, name: str, *, now: float, days: int = 0, passphrase: bytes = b"") -> Issued:
        """A new certificate for the key, names and role of the one before; for as long as that, or `days`. Raises
        ConfigurationError for a name that has none, or whose key is revoked."""
        standing = self._standing(name)
        if standing.is_revoked:
            raise ConfigurationError(f"the key of {name} is revoked", hint=f"`jbi certs issue {name}` makes a new one")
        before = x509.load_pem_x509_certificate(self._record_of(standing).read_bytes())
        key = before.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)  # of ours
        names = list(before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        term = timedelta(days=days) if days else before.not_valid_after_utc - before.not_valid_before_utc - BEFORE
        certificate = self._signer(passphrase).certify(name, key, names, standing.role, _time(now), term)
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)  # it may have been moved to the machine of its party
        prepared = folder / f"{CERTIFICATE_FILE}{NEW}"
        _write(prepared, _pem(certificate))
        self._spread(folder)
        self._record(certificate)
        self._finish(prepared)
        return Issued(certificates(_pem(certificate).decode())[0], is_revoked=False)

    def revoke(self, which: str, *, now: float, passphrase: bytes = b"") -> list[Issued]:
        """Put all certificates of a party's key on the list. `which` is its name, or the serial number (hex) of one
        certificate, for an earlier key. Raises ConfigurationError for one that is not there, or revoked already."""
        meant = self._by_serial(which) or self._standing(which)
        key = meant.certificate.key
        ended = [e for e in self.issued() if e.certificate.key == key and not e.is_revoked]
        if not ended:
            raise ConfigurationError(f"{which} is revoked already", hint="`jbi certs list --all` shows it")
        self._publish(self._signer(passphrase), [each.certificate.serial for each in ended], _time(now))
        self._spread_all()
        return ended

    def holds_key(self, name: str) -> bool:
        """Whether the party's key is in its folder here."""
        return (self.folder / name / KEY_FILE).exists()

    # -- the parts of a change ------------------------------------------------------------------------------------

    def _found(self, name: str, now: datetime, days: int, passphrase: bytes) -> None:
        prepared = self.folder / f"{AUTHORITY}{NEW}"
        shutil.rmtree(prepared, ignore_errors=True)  # of one that was killed
        (prepared / "issued").mkdir(mode=0o700, parents=True)
        prepared.chmod(0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        signer = _Signer.found(key, name, now, timedelta(days=days))
        _write(prepared / KEY_FILE, _key_pem(key, passphrase), 0o600)
        _write(prepared / CA_FILE, _pem(signer.certificate))
        _write(prepared / REVOKED_FILE, _pem(signer.revoke([], (), 1, now)))
        prepared.rename(self._own)
        sync_folder(self.folder)

    def _record(self, certificate: x509.Certificate) -> None:
        """The step that makes it an issued one."""
        _write(self._issued / f"{certificate.serial_number:x}.pem", _pem(certificate))

    def _record_of(self, issued: Issued) -> Path:
        return self._issued / f"{issued.certificate.serial:x}.pem"

    def _publish(self, signer: _Signer, serials: Sequence[int], now: datetime) -> None:
        """The step that revokes."""
        before = x509.load_pem_x509_crl((self._own / REVOKED_FILE).read_bytes())
        number = before.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        _write(self._own / REVOKED_FILE, _pem(signer.revoke(list(before), serials, number + 1, now)))

    def _recover(self) -> None:
        """Finish what was made, throw away what was not."""
        for prepared in (*self.folder.glob(f"*{NEW}"), *self.folder.glob(f"*/{CERTIFICATE_FILE}{NEW}")):
            path = prepared / CERTIFICATE_FILE if prepared.is_dir() else prepared
            try:
                made = (self._issued / f"{certificates(path.read_text())[0].serial:x}.pem").exists()
            except (OSError, ValueError, IndexError):  # it was not written to its end
                made = False
            if made:
                self._finish(prepared)
            elif prepared.is_dir():
                shutil.rmtree(prepared)
            else:
                prepared.unlink()
        for gone in self.folder.glob(f"*{OLD}"):
            _remove(gone)
        self._spread_all()

    def _finish(self, prepared: Path) -> None:
        """Put what was prepared where it belongs."""
        place = prepared.with_name(prepared.name.removesuffix(NEW))
        if prepared.is_dir() and place.exists():
            gone = place.with_name(f"{place.name}{OLD}")
            if gone.exists():
                _remove(gone)
            place.rename(gone)
            prepared.rename(place)
            _remove(gone)
        else:
            prepared.replace(place)
        sync_folder(place.parent)

    def _spread_all(self) -> None:
        for path in self.folder.glob(f"*/{CERTIFICATE_FILE}"):
            self._spread(path.parent)

    def _spread(self, folder: Path) -> None:
        """A party's folder gets the authority's certificate and its list."""
        for name in (CA_FILE, REVOKED_FILE):
            latest = (self._own / name).read_bytes()
            if not (folder / name).exists() or (folder / name).read_bytes() != latest:
                _write(folder / name, latest)

    def _standing(self, name: str) -> Issued:
        """The latest of a party. Raises ConfigurationError."""
        latest = self.latest()
        if name not in latest:
            raise ConfigurationError(f"no certificate was issued for {name!r}", hint=_there_are(latest))
        return latest[name]

    def _by_serial(self, text: str) -> Issued | None:
        return next((each for each in self.issued() if f"{each.certificate.serial:x}" == text.lower()), None)

    def _signer(self, passphrase: bytes) -> _Signer:
        path = self._own / KEY_FILE
        try:
            if path.stat().st_mode & 0o077:
                raise ConfigurationError(f"others may read the authority's key {path}", hint=f"chmod 600 {path}")
            data = path.read_bytes()
        except OSError as exc:
            raise ConfigurationError(
                f"the authority's key {path}: {exc.strerror}", hint="Without it nothing can be issued or revoked"
            ) from exc
        try:
            key = serialization.load_pem_private_key(data, passphrase or None)
        except TypeError as exc:
            raise ConfigurationError(
                f"the authority's key {path} " + ("has no passphrase" if passphrase else "has a passphrase"),
                hint="" if passphrase else "Give the file it is in with --passphrase-file",
            ) from exc
        except ValueError as exc:
            why = "the passphrase is wrong" if passphrase else f"no private key in PEM ({exc})"
            raise ConfigurationError(f"the authority's key {path}: {why}") from exc
        certificate = x509.load_pem_x509_certificate((self._own / CA_FILE).read_bytes())
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ConfigurationError(f"the authority's key {path} is not that of {self._own / CA_FILE}")
        return _Signer(key, certificate)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = locked(self.folder / ".lock", patience=LOCK_SECONDS)
        except BlockingIOError as exc:
            raise StorageError(f"another process works in {self.folder}", hint="Try again when it has ended") from exc
        try:
            yield
        finally:
            os.close(lock)


class _Signer:
    """The authority's key and certificate: makes certificates and lists (RFC 5280, sections 4 and 5)."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self.certificate = certificate

    @classmethod
    def found(cls, key: ec.EllipticCurvePrivateKey, name: str, now: datetime, term: timedelta) -> Self:
        """One that has signed itself."""
        own = x509.Name(  # lists and certificates name it by this: two of one name are two
            [
                x509.NameAttribute(NameOID.COMMON_NAME, name),
                x509.NameAttribute(NameOID.SERIAL_NUMBER, secrets.token_hex(8)),
            ]
        )
        builder = _builder(own, own, key.public_key(), now, now + term)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_others=True), critical=True)
        return cls(key, builder.sign(key, hashes.SHA256()))

    def certify(
        self,
        name: str,
        key: ec.EllipticCurvePublicKey,
        names: Sequence[x509.GeneralName],
        role: Role,
        now: datetime,
        term: timedelta,
    ) -> x509.Certificate:
        """For a party, no longer than the authority's own. Raises ConfigurationError if that has ended."""
        last = self.certificate.not_valid_after_utc
        if now >= last:
            raise ConfigurationError(
                f"the authority's own certificate was valid until {shown_time(last.timestamp())}",
                hint="Make another one with `jbi certs init`",
            )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(subject, self.certificate.subject, key, now, min(now + term, last))
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_others=False), critical=True)
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if role == "server":  # it connects as well: to lookup services, to other servers
            usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(self._issuer(), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def revoke(
        self, before: Sequence[x509.RevokedCertificate], serials: Sequence[int], number: int, now: datetime
    ) -> x509.CertificateRevocationList:
        """The list with these as well. It never has to be made again: OpenSSL takes nobody with one that has ended."""
        builder = x509.CertificateRevocationListBuilder(
            issuer_name=self.certificate.subject,
            last_update=now - BEFORE,
            next_update=self.certificate.not_valid_after_utc,
            revoked_certificates=list(before),
        )
        for serial in serials:
            entry = x509.RevokedCertificateBuilder(serial, now).build()
            builder = builder.add_revoked_certificate(entry)
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
        return builder.add_extension(self._issuer(), critical=False).sign(self._key, hashes.SHA256())

    def _issuer(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_others,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _party(name: str) -> x509.GeneralName:
    """A party's name as the others will see it. Raises ConfigurationError."""
    if not _NAME.fullmatch(name) or len(name) > 64 or name == AUTHORITY or name.endswith((NEW, OLD)):
        raise ConfigurationError(
            f"a party can't be called {name!r}",
            hint="Letters, digits, dots, hyphens and underscores, perhaps @ and a domain: alpha, anna@example.org",
        )
    return x509.RFC822Name(name) if "@" in name else x509.DNSName(name)


def _address(host: str) -> x509.GeneralName:
    """A host name or IP address. Raises ConfigurationError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host) or len(host) > 253 or host.replace(".", "").isdigit():
            raise ConfigurationError(
                f"{host!r} is not a host name or IP address",
                hint="Without a port; for example 10.0.0.7 or host.example.org",
            ) from None
    return x509.DNSName(host)


def _there_are(latest: dict[str, Issued]) -> str:
    names = sorted(latest)
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"There are {', '.join(names[:5])}{more}" if names else "`jbi certs issue` makes one"


def read_passphrase(path: Path) -> bytes:
    """The first line of a file that nobody else may read. Raises ConfigurationError."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"others may read the passphrase in {path}", hint=f"chmod 600 {path}")
        with path.open("rb") as file:
            line = file.readline(MAX_PASSPHRASE + 1).rstrip(b"\r\n")
    except OSError as exc:
        raise ConfigurationError(f"passphrase file {path}: {exc.strerror}") from exc
    if not 0 < len(line) <= MAX_PASSPHRASE:
        raise ConfigurationError(f"passphrase file {path}: its first line has {len(line)} bytes", hint="1 to 1,024")
    return line


def _time(now: float) -> datetime:
    return datetime.fromtimestamp(int(now), UTC)


def _key_pem(key: ec.EllipticCurvePrivateKey, passphrase: bytes = b"") -> bytes:
    form: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        form = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)


def _pem(made: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    return made.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """All of it, or nothing, whatever happens meanwhile."""
    with written(path, mode=mode) as stream:
        stream.write(data)


def _remove(folder: Path) -> None:
    """With what is in it; of a link to one elsewhere the link."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder)
