"""What is read of certificates and revocation lists is what `cryptography` reads, and rubbish is a ValueError."""

from __future__ import annotations

import ssl
import time
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from ipaddress import IPv6Address
from typing import Final

import pytest
from cryptography import x509 as reference
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.wire import x509

NAME: Final = reference.Name(
    [
        reference.NameAttribute(NameOID.ORGANIZATION_NAME, "Größe & Co"),
        reference.NameAttribute(NameOID.COMMON_NAME, "Müller 東京"),
    ]
)
KEY: Final = ec.generate_private_key(ec.SECP256R1())
PEM: Final = serialization.Encoding.PEM
DER: Final = serialization.Encoding.DER


def made(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey = KEY, until: int = 2040
) -> reference.Certificate:
    """A certificate with all that is read."""
    names: list[reference.GeneralName] = [
        reference.RFC822Name("anna@example.org"),
        reference.DNSName("host.example.org"),
        reference.UniformResourceIdentifier("spiffe://example.org/anna"),
        reference.IPAddress(IPv6Address("2001:db8::1")),
    ]
    builder = (
        reference.CertificateBuilder()
        .subject_name(NAME)
        .issuer_name(NAME)
        .public_key(key.public_key())
        .serial_number(reference.random_serial_number())
        .not_valid_before(datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .not_valid_after(datetime(until, 2, 3, 4, 5, 6, tzinfo=UTC))
        .add_extension(reference.SubjectAlternativeName(names), critical=True)
        .add_extension(
            reference.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False
        )
    )
    return builder.sign(KEY, hashes.SHA256())


def revocations(serials: list[int]) -> reference.CertificateRevocationList:
    """A list of these."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    builder = reference.CertificateRevocationListBuilder(NAME, now, now + timedelta(days=30))
    for serial in serials:
        builder = builder.add_revoked_certificate(
            reference.RevokedCertificateBuilder()
            .serial_number(serial)
            .revocation_date(now)
            .add_extension(reference.CRLReason(reference.ReasonFlags.key_compromise), critical=False)
            .build()
        )
    return builder.sign(KEY, hashes.SHA256())


@pytest.mark.parametrize("until", [2049, 2050, 9999])
@pytest.mark.parametrize(
    "key",
    [KEY, ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65_537, 2048)],
    ids=["P-256", "Ed25519", "RSA"],
)
def test_a_certificate_says_what_the_reference_says(
    key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey, until: int
) -> None:
    theirs = made(key, until)
    [ours] = x509.certificates(theirs.public_bytes(PEM).decode())
    assert (ours.subject, ours.issuer) == ("Müller 東京", "Müller 東京")
    assert ours.names == ("anna@example.org", "host.example.org", "spiffe://example.org/anna", "2001:db8::1")
    assert ours.identity == "anna@example.org"
    assert ours.serial == theirs.serial_number
    assert ours.not_before == theirs.not_valid_before_utc.timestamp()
    assert ours.not_after == theirs.not_valid_after_utc.timestamp()
    assert ours.usages == ("server", "client")
    public = key.public_key().public_bytes(DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert ours.key == sha256(public).hexdigest()
    assert ours.issuer_name == ours.subject_name == NAME.public_bytes()


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_a_list_names_those_that_the_reference_has(count: int) -> None:
    theirs, others = [made() for _ in range(2)], list(range(1, count + 1))
    text = revocations([*others, theirs[0].serial_number]).public_bytes(PEM).decode()
    [ours] = x509.revocations(text)
    assert ours.serials == {*others, theirs[0].serial_number}
    assert (ours.issuer, ours.until - ours.since) == ("Müller 東京", 30 * 86_400)
    revoked, good = (x509.certificate(each.public_bytes(DER)) for each in theirs)
    assert ours.names(revoked.holder)
    assert not ours.names(good.holder)
    assert not ours.names("")


def test_several_in_one_text_are_read_in_their_order_and_nothing_else_of_it() -> None:
    first, second = made(), made()
    text = f"# comment\n{first.public_bytes(PEM).decode()}\nx\n{second.public_bytes(PEM).decode()}"
    text += KEY.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()
    assert [each.serial for each in x509.certificates(text)] == [first.serial_number, second.serial_number]
    assert x509.revocations(text) == []


def test_a_certificate_without_extensions_is_known_by_its_subject() -> None:
    builder = reference.CertificateBuilder().subject_name(NAME).issuer_name(NAME).public_key(KEY.public_key())
    builder = builder.serial_number(7).not_valid_before(datetime(2026, 1, 1, tzinfo=UTC))
    theirs = builder.not_valid_after(datetime(2027, 1, 1, tzinfo=UTC)).sign(KEY, hashes.SHA256())
    ours = x509.certificate(theirs.public_bytes(DER))
    assert (ours.names, ours.usages, ours.identity) == ((), (), "Müller 東京")


GOOD: Final = made().public_bytes(DER)
LIST: Final = revocations([1, 2, 3]).public_bytes(DER)


@given(at=st.integers(0, len(GOOD) - 1), value=st.integers(0, 255), cut=st.booleans())
def test_a_certificate_that_was_tampered_with_is_read_or_a_value_error(at: int, value: int, cut: bool) -> None:
    spoilt = GOOD[:at] if cut else GOOD[:at] + bytes([value]) + GOOD[at + 1 :]
    try:
        read = x509.certificate(spoilt)
    except ValueError:
        return
    assert not cut
    assert len(read.key) == 64


@given(at=st.integers(0, len(LIST) - 1), value=st.integers(0, 255), cut=st.booleans())
def test_a_list_that_was_tampered_with_is_read_or_a_value_error(at: int, value: int, cut: bool) -> None:
    spoilt = LIST[:at] if cut else LIST[:at] + bytes([value]) + LIST[at + 1 :]
    text = ssl.DER_cert_to_PEM_cert(spoilt).replace("CERTIFICATE", "X509 CRL")
    try:
        [read] = x509.revocations(text)
    except ValueError:
        return
    assert not cut
    assert len(read.serials) <= 3


@given(st.binary(max_size=200))
def test_rubbish_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # whatever it says
        x509.certificate(data)


def named(content: bytes, tag: int = 0x82) -> x509.Certificate:
    """Of a certificate for "bob" that has one alternative name, of these bytes."""
    name = bytes([tag, len(content)]) + content
    names = reference.UnrecognizedExtension(reference.ObjectIdentifier("2.5.29.17"), bytes([0x30, len(name)]) + name)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    builder = (
        reference.CertificateBuilder()
        .subject_name(reference.Name([reference.NameAttribute(NameOID.COMMON_NAME, "bob")]))
        .issuer_name(NAME)
        .public_key(KEY.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
    )
    return x509.certificate(builder.sign(KEY, hashes.SHA256()).public_bytes(DER))


def test_no_two_names_are_read_as_one_and_no_name_is_nobodys() -> None:
    assert named(b"\xff\xfealice").identity != named(b"\xfe\xffalice").identity
    assert named("\xe4lice".encode()).identity == "\xe4lice"
    assert named(b"").identity == "bob"
    assert named(b"\0\1\2", 0x87).identity == "bob"  # no IP address


def test_a_file_of_blanks_takes_no_time() -> None:
    begun = time.process_time()
    assert x509.certificates("-----BEGIN CERTIFICATE-----" + " " * 1_000_000) == []
    assert time.process_time() - begun < 20.0
