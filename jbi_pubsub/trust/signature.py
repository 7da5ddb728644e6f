"""Signatures of objects, and whose they are: Ed25519 (RFC 8032) with keys that certificates answer for (RFC 5280).

Theory of operation: a process makes a key pair that it never writes down. For each registration it says with the
private key of its certificate, and with the new key itself, that the two belong together (core/signing.py). Whoever
verifies checks that once for each registration and remembers what is good; an object then costs one Ed25519 signature.

What of a certificate is looked at: the way to one of [tls] ca, signature by signature; dates; revocation; that the
authorities are such and may sign certificates; that the holder's may sign; that nothing critical is unknown; no MD5, no
SHA-1, no RSA key below 2,048 bits. Names are not: a name is what the result is.

It knows core alone, and cryptography. No network, no thread; files are [tls]'s.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import ConfigurationError, SignatureError
from jbi_pubsub.core.files import Watched
from jbi_pubsub.core.signing import CERTIFICATE_MOST, CHAIN_MOST, Keys, SigningKey, binding_bytes, signed_uid
from jbi_pubsub.core.wire import x509 as names

log = logging.getLogger("jbi_pubsub.trust")

KEYS_MOST: Final = 10_000
"""Keys that are remembered; the oldest go."""
RSA_LEAST: Final = 2048
_UNREADABLE: Final = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion,
    x509.UnsupportedGeneralNameType, Warning,
)  # fmt: skip
"""Exceptions of the library for certificates that are none."""
_WEAK: Final = ("md5", "sha1")
_PSS: Final = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_UNDERSTOOD: Final = (
    x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName,
)  # fmt: skip
_PURPOSES: Final = {
    ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,
}  # fmt: skip
"""A certificate that is good for TLS is good for this: it has no other."""

Extension = TypeVar("Extension", bound=x509.ExtensionType)
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey


class CertificateSigner:
    """Signs objects with a key of this process, bound to its certificate (a Signer). Any thread."""

    def __init__(self, certificate: Path, key: Path, *, clock: Callable[[], float] = time.time) -> None:
        """PEM files of [tls]: the certificate, those of intermediate authorities behind it, and its key; read again
        when they change. Raises ConfigurationError."""
        self._certificate = certificate
        self._own = ed25519.Ed25519PrivateKey.generate()
        self.public = self._own.public_key().public_bytes_raw()
        self._clock = clock
        self._holder = Watched((certificate, key), lambda: _Holder.read(certificate, key), clock=clock)
        if why := self._holder.value.why_not(clock()):
            raise ConfigurationError(f"[tls] certificate {certificate} {why}", hint="Have another one issued")

    @property
    def generation(self) -> int:
        """Grows when the certificate is another one: what was `bound` before ends with the old one."""
        self._look_again()
        return self._holder.version

    def bound(self, holder: str, anchor: bytes = b"") -> SigningKey:
        """The key as that of a registration or delegate."""
        by = self._holder.value
        chain = tuple(_der(each) for each in by.chain)
        said = binding_bytes(holder, self.public, chain[0])
        return SigningKey(self.public, anchor, chain, _signed(by.key, said), self._own.sign(said))

    def sign(self, message: bytes) -> bytes:
        """The signature of some bytes. Raises SignatureError when the certificate has ended: nobody would take it."""
        now = self._clock()
        if self._holder.value.why_not(now):
            self._look_again()
            if why := self._holder.value.why_not(now):
                raise SignatureError(
                    f"[tls] certificate {self._certificate} {why}: nobody would take what is signed with it",
                    hint="Have another one issued",
                )
        return self._own.sign(message)

    def _look_again(self) -> None:
        """Go by what the files say now. A certificate without its key may be on the way: then those before stay."""
        try:
            if self._holder.look():
                log.info("[tls] certificate %s is another one, and signs from now on", self._certificate)
        except ConfigurationError as exc:
            log.error("the previous certificate stays in use for signing: %s", exc)


@dataclass(frozen=True, slots=True)
class _Holder:
    """The certificate that answers for a key, those of intermediate authorities behind it, and its private key."""

    chain: list[x509.Certificate]
    key: PrivateKey
    begins: float
    ends: float

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Self:
        """Raises ConfigurationError."""
        chain = _chain_in(certificate)
        if why := _unfit(chain[0]):
            raise ConfigurationError(
                f"[tls] certificate {certificate} can't sign: {why}", hint="Have another one issued"
            )
        return cls(chain, _private_key(key, certificate, chain[0]), *_dates(chain[:1]))

    def why_not(self, now: float) -> str:
        """Why it does not count now, or ""."""
        return "has ended" if now > self.ends else "is not valid yet" if now < self.begins else ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A key that was looked at, and is good between two moments (wall clock)."""

    public: ed25519.Ed25519PublicKey
    identity: str
    begins: float
    ends: float


class CertificateVerifier:
    """Knows whose keys are whose, as the authorities of [tls] ca say (a Verifier). Any thread."""

    def __init__(self, ca: Path, revoked: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """PEM files: the authorities, and their lists of revoked certificates, both read again when they change. Raises
        ConfigurationError."""
        paths = (ca, revoked) if revoked is not None else (ca,)
        self._files = Watched(paths, lambda: Authorities.read(ca, revoked), clock=clock)
        self._clock = clock

    @property
    def generation(self) -> int:
        """Grows when authorities, or what they have revoked, are others."""
        self._look_again()
        return self._files.version

    def check_key(self, holder: str, key: SigningKey) -> str:
        """The name in the certificate of whoever holds the key. Raises SignatureError."""
        self._look_again()
        return self._learn(holder, (key,), "").identity

    def check(self, holder: str, message: bytes, signature: bytes, keys: Keys, pin: str = "") -> str:
        """The name in the certificate of who signed `message`; see Verifier."""
        self._look_again()
        now = self._clock()
        known = self._files.value.known.get((holder, pin))
        if known is None or now > known.ends:  # there may be another certificate for it
            known = self._learn(holder, keys(holder), pin)
        if not known.begins <= now <= known.ends:
            raise SignatureError(f"the certificate of {known.identity} has ended, or is not valid yet")
        try:
            known.public.verify(signature, message)
        except InvalidSignature:
            raise SignatureError(f"the signature is not that of {known.identity} for these bytes") from None
        return known.identity

    def _learn(self, holder: str, keys: Iterable[SigningKey], pin: str) -> _Known:
        """The first key that holds. Raises SignatureError with the reason why the last one does not."""
        failure = SignatureError(f"no signing key of {holder[:64]!r} is known")
        for key in keys:
            authorities = self._files.value
            try:
                known = authorities.known[holder, pin] = authorities.examine(holder, key, pin, self._clock())
            except SignatureError as exc:
                failure = SignatureError(f"the signing key of {holder[:64]!r} does not hold: {exc.message}")
            else:
                return known
        raise failure

    def _look_again(self) -> None:
        """Go by what the files say now, also for keys that were good; if they are no good, those of before stay in
        force."""
        try:
            if self._files.look():
                now = self._files.value
                counts = len(now.anchors), len(now.revoked)
                log.info("authorities and revoked certificates read again: %d, %d", *counts)
        except ConfigurationError as exc:
            log.error("the previous files stay in force: %s", exc)


@dataclass(frozen=True, slots=True)
class Authorities:
    """The certificates of a file, which are believed, and what they have revoked."""

    anchors: list[x509.Certificate]
    revoked: frozenset[tuple[bytes, int]]
    known: Cache[tuple[str, str], _Known] = field(default_factory=lambda: Cache(KEYS_MOST))
    """Keys examined by these, by holder and pin. Good ones alone: what one party says wrongly keeps nobody from hearing
    another."""

    @classmethod
    def read(cls, ca: Path, revoked: Path | None) -> Authorities:
        """Raises ConfigurationError."""
        anchors = _certificates(ca, "ca")
        return cls(anchors, frozenset(_serials(revoked, anchors) if revoked is not None else ()))

    def examine(self, holder: str, key: SigningKey, pin: str, now: float) -> _Known:
        """Owner of the key: with `pin` who has the certificate with that SHA-256, or with the key with it (RFC 7469,
        section 2.4), else the registration `holder`. Raises SignatureError."""
        if pin and pin not in _pins(key.chain[0]):
            raise SignatureError("it is of another certificate than the service reference promises")
        if not pin and signed_uid(key.anchor, key.key) != holder:
            raise SignatureError("the registration's id is not made from it")
        try:
            leaf, *between = [x509.load_der_x509_certificate(each) for each in key.chain]
            path = self._path(leaf, between)
            identity = identity_of(leaf)
            public = ed25519.Ed25519PublicKey.from_public_bytes(key.key)
        except SignatureError:
            raise
        except _UNREADABLE as exc:
            raise SignatureError(f"its certificate can't be read: {_line(exc)}") from exc
        begins, ends = _dates(path)
        if not begins <= now <= ends:
            raise SignatureError(f"the certificate of {identity} has ended, or is not valid yet")
        said = binding_bytes(holder, key.key, key.chain[0])
        if not _holds(leaf, said, key.statement) or not _holds(public, said, key.consent):
            raise SignatureError(f"its certificate, {identity}, and the key do not answer for each other")
        return _Known(public, identity, begins, ends)

    def _path(self, leaf: x509.Certificate, between: Sequence[x509.Certificate]) -> list[x509.Certificate]:
        """From the holder's certificate to the highest that is believed, both included. Raises SignatureError."""
        path = [leaf]
        if why := _unfit(leaf):
            raise SignatureError(f"its certificate may not sign: {why}")
        while True:  # also from one that is believed to those above it, which may have revoked it
            below = path[-1]
            if (below.issuer.public_bytes(), below.serial_number) in self.revoked:
                raise SignatureError(f"the certificate of {identity_of(below)} is revoked")
            is_believed = below in self.anchors
            candidates = (each for each in (*self.anchors, *(() if is_believed else between)) if each not in path)
            issuer = next((each for each in candidates if _has_issued(each, below, len(path) - 1)), None)
            if issuer is not None:
                path.append(issuer)
            elif is_believed:
                return path
            else:
                raise SignatureError(f"its certificate, {identity_of(leaf)}, is of no authority in [tls] ca")


def _serials(path: Path, anchors: Sequence[x509.Certificate]) -> Iterator[tuple[bytes, int]]:
    """(issuer, serial number) of all that is revoked. Raises ConfigurationError."""
    try:
        lists = [x509.load_pem_x509_crl(block) for block in _blocks(path.read_bytes(), b"X509 CRL")]
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"[tls] revoked {path}: {_line(exc)}", hint="Give a PEM file of a CRL") from exc
    for each in lists:
        if not any(a.subject == each.issuer and _is_list_of(each, a) for a in anchors):
            raise ConfigurationError(
                f"[tls] revoked {path}: a list of {each.issuer.rfc4514_string()}, which is none of [tls] ca",
                hint="Give the list that your authority has made",
            )
        issuer = each.issuer.public_bytes()
        yield from ((issuer, entry.serial_number) for entry in each)


def _pins(der: bytes) -> tuple[str, str]:
    """SHA-256 (hex) of a certificate, and of its public key with the algorithm. Raises SignatureError."""
    try:
        public = x509.load_der_x509_certificate(der).public_key()
        spki = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    except _UNREADABLE as exc:
        raise SignatureError(f"its certificate can't be read: {_line(exc)}") from exc
    return hashlib.sha256(der).hexdigest(), hashlib.sha256(spki).hexdigest()


def identity_of(certificate: x509.Certificate) -> str:
    """The name in a certificate that connections go by (core/wire/x509.py)."""
    return _plain(names.certificate(_der(certificate)).identity or certificate.subject.rfc4514_string())


def _unfit(leaf: x509.Certificate) -> str:
    """Why a certificate may not sign objects, or ""."""
    if why := _suspect(leaf):
        return why
    usage, purposes = _extension(leaf, x509.KeyUsage), _extension(leaf, x509.ExtendedKeyUsage)
    if usage is not None and not usage.digital_signature:
        return "its key usage has no digitalSignature"
    if purposes is not None and not _PURPOSES & set(purposes):
        return "it is for something else than connections"
    return ""


def _has_issued(issuer: x509.Certificate, below: x509.Certificate, between: int) -> bool:
    """Whether `issuer` may issue certificates, with so many authorities under it already, and has issued that one."""
    basic, usage = _extension(issuer, x509.BasicConstraints), _extension(issuer, x509.KeyUsage)
    if issuer.subject != below.issuer or basic is None or not basic.ca:
        return False
    if basic.path_length is not None and basic.path_length < between:
        return False
    if (usage is not None and not usage.key_cert_sign) or _suspect(issuer):
        return False
    try:
        below.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _suspect(certificate: x509.Certificate) -> str:
    """Text on what is weak or not understood in a certificate, or ""."""
    for extension in certificate.extensions:
        if extension.critical and not isinstance(extension.value, _UNDERSTOOD):
            return f"extension {extension.oid.dotted_string} is critical, and not understood here"
        if isinstance(extension.value, x509.NameConstraints):  # TLS keeps to them, critical or not; we can't
            return "its name constraints are not understood here"
    algorithm = certificate.signature_hash_algorithm
    if algorithm is not None and algorithm.name in _WEAK:
        return f"it is signed with {algorithm.name}"
    key = certificate.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < RSA_LEAST:
        return f"its RSA key has {key.key_size} bits"
    return ""


def _extension(certificate: x509.Certificate, kind: type[Extension]) -> Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _is_list_of(revoked: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    try:
        return revoked.is_signature_valid(key)  # type: ignore[arg-type]  # what it does not know raises TypeError
    except (TypeError, ValueError, UnsupportedAlgorithm):
        return False


def _holds(signer: x509.Certificate | ed25519.Ed25519PublicKey, message: bytes, signature: bytes) -> bool:
    key = signer.public_key() if isinstance(signer, x509.Certificate) else signer
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _PSS, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
            key.verify(signature, message)
        else:
            return False
    except (InvalidSignature, ValueError):
        return False
    return True


def _signed(key: PrivateKey, message: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, _PSS, hashes.SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(message, ec.ECDSA(hashes.SHA256()))
    return key.sign(message)


def _private_key(path: Path, certificate: Path, leaf: x509.Certificate) -> PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise ConfigurationError(
            f"[tls] key {path}: {_line(exc)}", hint="Give the PEM file of a key without a password, which we may read"
        ) from exc
    if not isinstance(key, PrivateKey):
        raise ConfigurationError(f"[tls] key {path} can't sign", hint="Use an RSA, ECDSA or Ed25519 key")
    if key.public_key() != leaf.public_key():
        raise ConfigurationError(f"[tls] key {path} is not that of {certificate}", hint="Name the two of a kind")
    return key


def _chain_in(path: Path) -> list[x509.Certificate]:
    """The holder's certificate and those of intermediate authorities; a root is the reader's own."""
    first, *more = _certificates(path, "certificate")
    chain = [first, *(each for each in more if each.issuer != each.subject)]
    if len(chain) > CHAIN_MOST or any(len(_der(each)) > CERTIFICATE_MOST for each in chain):
        raise ConfigurationError(
            f"[tls] certificate {path}: at most {CHAIN_MOST} certificates of {CERTIFICATE_MOST} bytes can be told"
            " to those who verify",
            hint="Leave out what they have, or have a smaller one issued",
        )
    return chain


def _certificates(path: Path, what: str) -> list[x509.Certificate]:
    try:
        found = [x509.load_pem_x509_certificate(block) for block in _blocks(path.read_bytes(), b"CERTIFICATE")]
        for each in found:
            each.extensions, each.public_key()  # read when they are first asked for
    except (OSError, *_UNREADABLE) as exc:
        raise ConfigurationError(f"[tls] {what} {path}: {_line(exc)}", hint="Give a file of PEM certificates") from exc
    return found


def _blocks(data: bytes, label: bytes) -> list[bytes]:
    """The PEM blocks of that kind. Raises ValueError when there is none."""
    begin, end = b"-----BEGIN " + label + b"-----", b"-----END " + label + b"-----"
    blocks = [begin + part.partition(end)[0] + end for part in data.split(begin)[1:] if end in part]
    if not blocks:
        raise ValueError(f"no {label.decode()} in it")
    return blocks


def _dates(path: Iterable[x509.Certificate]) -> tuple[float, float]:
    """From when and until when all of them are valid (seconds since the epoch)."""
    dates = [(each.not_valid_before_utc.timestamp(), each.not_valid_after_utc.timestamp()) for each in path]
    return max(begin for begin, _ in dates), min(end for _, end in dates)


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _plain(name: str) -> str:
    """A name as logs and terminals may have it: who asks for a certificate may choose it."""
    return "".join(char if char.isprintable() else "?" for char in name[:253])


def _line(exc: BaseException) -> str:
    """Message of an exception, in a line."""
    said = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
    return _plain(" ".join((said or type(exc).__name__).split())[:200])
