"""What is signed, byte by byte, and whose signature counts (docs/signatures.md)."""

from __future__ import annotations

import hashlib
import ssl
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from certificates import DAY, Authority, pem
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

from jbi_pubsub import Config
from jbi_pubsub.core.config import TlsSection
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, EntryError, ProtocolError, SignatureError
from jbi_pubsub.core.info_object import Head, ObjectAttributes, Parcel, SchemaBundle, decode, decode_cut, encode, pack
from jbi_pubsub.core.signing import (
    SigningKey,
    anchor_of,
    binding_bytes,
    cut_bytes,
    digest,
    filter_digest,
    head_bytes,
    object_bytes,
    signed_uid,
)
from jbi_pubsub.core.wire.tls import TlsIdentity, _names
from jbi_pubsub.pad.matching.signatures import Seals
from jbi_pubsub.protocol.entries import SigningKeyEntry
from jbi_pubsub.protocol.ownership import check_publisher
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.trust import signature
from jbi_pubsub.trust.settings import signer_of, verifier_of
from jbi_pubsub.trust.signature import CertificateSigner, CertificateVerifier

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "signatures.md"
SECRET = "0123456789abcdef0123456789abcdef"
PAYLOAD = b"<track><lat>33.34</lat></track>"
HEAD = Head("00112233445566778899aabbccddeeff000000000007", "registration-00112233445566778899aabbccddeeff", 7,
            1_790_000_000.25, "mil.af.rl.jbi.Intel_Imagery", "1.0", b"<metadata/>", len(PAYLOAD))  # fmt: skip


OLD = """
-----BEGIN CERTIFICATE-----
MIIBcTCCARigAwIBAgIUCG58zriEOxDYzZ4PNUQL/P3JJnkwCQYHKoZIzj0EATAO
MQwwCgYDVQQDDANvbGQwIBcNMjYxMTIyMTUzODUxWhgPMjEyNjEwMjkxNTM4NTFa
MA4xDDAKBgNVBAMMA29sZDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABDhkQhnh
hdAi97UpnidM2m+yBnd67Rvd+4QOLg57KqdnpRRl/7FzoDI8yDYQARojMWjurffi
br7FuRtIca3JZwCjUzBRMB0GA1UdDgQWBBRNjlpNGtodqat+rABodm89zJYT+DAf
BgNVHSMEGDAWgBRNjlpNGtodqat+rABodm89zJYT+DAPBgNVHRMBAf8EBTADAQH/
MAkGByqGSM49BAEDSAAwRQIgdMhjhaqjq9CPCL63WTFm1qsBEQIltl8+SRdORHJu
erkCIQCLX16faR5iudaAqtDFO7Oa1w6zlG6JFRzJ1HVMMjf9ZA==
-----END CERTIFICATE-----
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that everybody here believes."""
    return Authority(tmp_path / "ours")


def signer(tls: TlsSection) -> CertificateSigner:
    return CertificateSigner(Path(tls.certificate), Path(tls.key))


def registered(by: CertificateSigner, secret: str = SECRET) -> tuple[str, SigningKey]:
    """The id of a registration that signs, and its key."""
    anchor = anchor_of(secret)
    uid = signed_uid(anchor, by.public)
    return uid, by.bound(uid, anchor)


def test_what_is_signed_is_what_the_document_says() -> None:
    # Given an object, and a program that knows docs/signatures.md alone
    text = lambda word: struct.pack("!I", len(word)) + word.encode()  # noqa: E731  # ten lines
    said = b"jbi-pubsub object 1\0"
    said += text(HEAD.object_id) + text(HEAD.registration) + text("mil.af.rl.jbi.Intel_Imagery") + text("1.0")
    said += struct.pack("!Qd", 7, 1_790_000_000.25)
    said += hashlib.sha256(b"<metadata/>").digest()
    said += struct.pack("!Q", len(PAYLOAD)) + hashlib.sha256(PAYLOAD).digest()
    private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))

    # Expect the same bytes, from a head and from the object as applications see it, and the document's own signature
    assert head_bytes(HEAD, digest(PAYLOAD)) == said
    assert object_bytes(pack(HEAD, PAYLOAD).unpacked(), digest(PAYLOAD)) == said
    assert private.sign(said).hex() in DOCUMENT.read_text().replace("\n", "").replace(" ", "")
    assert private.public_key().public_bytes_raw().hex() in DOCUMENT.read_text()

    # Expect the other three as they are described
    assert (
        filter_digest("//b:x", (("b", "urn:b"), ("a", "urn:a")))
        == hashlib.sha256(text("//b:x") + text("a") + text("urn:a") + text("b") + text("urn:b")).digest()
    )
    cut = b"jbi-pubsub cut 1\0" + text("object") + bytes(32) + digest(b"a") + digest(b"b")
    assert cut_bytes("object", bytes(32), digest(b"a"), digest(b"b")) == cut
    bound = b"jbi-pubsub key 1\0" + text("registration-1") + bytes(32) + hashlib.sha256(b"der").digest()
    assert binding_bytes("registration-1", bytes(32), b"der") == bound
    anchor = hashlib.sha256(b"jbi-pubsub anchor 1\0" + SECRET.encode()).digest()
    assert anchor_of(SECRET) == anchor
    made = hashlib.sha256(b"jbi-pubsub signed registration 1\0" + anchor + bytes(32)).hexdigest()[:32]
    assert signed_uid(anchor, bytes(32)) == f"registration-{made}"


def test_a_signature_covers_all_but_hops_and_via() -> None:
    whole = head_bytes(HEAD, digest(PAYLOAD))

    # Expect what relays and archives change to make no difference
    relayed = msgspec.structs.replace(HEAD, hops=3, via=("a", "b"), signature=bytes(64))
    assert head_bytes(relayed, digest(PAYLOAD)) == whole

    # Expect every other field to make one
    others: dict[str, Any] = {
        "own_id": "1", "registration": "registration-1", "sequence": 8, "published": 1.0, "type_name": "t",
        "type_version": "2.0", "metadata": b"<other/>", "payload_length": 1, "attributes": ObjectAttributes(),
    }  # fmt: skip
    assert {*others, "hops", "via", "signature"} == set(Head.__struct_fields__)
    for name, value in others.items():
        assert head_bytes(msgspec.structs.replace(HEAD, **{name: value}), digest(PAYLOAD)) != whole, name
    assert head_bytes(HEAD, digest(b"other")) != whole
    said = [ObjectAttributes(), ObjectAttributes(1), ObjectAttributes(timeout=1.0), ObjectAttributes(reliable=False)]
    heads = [msgspec.structs.replace(HEAD, attributes=each) for each in said]
    assert len({head_bytes(each, digest(PAYLOAD)) for each in heads}) == len(said)
    assert all(
        object_bytes(pack(each, PAYLOAD).unpacked(), digest(PAYLOAD)) == head_bytes(each, digest(PAYLOAD))
        for each in heads
    )

    # Expect that what is at the end of one text is not the same at the beginning of the next
    moved = msgspec.structs.replace(HEAD, type_name="mil.af.rl.jbi.Intel_Imagery1", type_version=".0")
    assert head_bytes(moved, digest(PAYLOAD)) != whole


def test_signature_and_seal_go_over_the_wire_and_back() -> None:
    # Given a signed object, and what a delegate has left of it
    signed = pack(msgspec.structs.replace(HEAD, own_id="", signature=bytes(range(64))), PAYLOAD)
    received = Parcel.received(b"".join(signed.parts))
    seal = bytes(range(96))
    for parcel in (signed, received):
        cut = parcel.with_payload(b"<cut/>", seal)
        assert (cut.head, cut.size) == (parcel.head, sum(map(len, cut.parts)))
        data = b"".join(cut.parts)

        # When somebody receives it, whole or in pieces of any size
        for obj in (decode(data), *(decode_cut([data[:at], data[at:]]) for at in range(4, len(data), 7))):
            # Expect the object with both, and its length as it was published
            assert (obj.payload, obj.metadata) == (b"<cut/>", b"<metadata/>")
            assert (obj.platform.signature, obj.platform.seal) == (bytes(range(64)), seal)
            assert obj.platform.payload_length == len(PAYLOAD)

            # Expect that it can be sent on as it is
            assert b"".join(encode(obj)) == data

        # Expect what is cut off within the seal to be told, and not to be a shorter seal
        end = data.index(seal)
        for at in (end, end + 1, end + 95):
            with pytest.raises(ProtocolError, match="seal is cut off"):
                decode(data[:at])

    # Expect the same of a head that is announced longer than what comes
    whole = b"".join(pack(HEAD, b"").parts)
    for length in (len(whole) - 3, len(whole) + 100):
        with pytest.raises(ProtocolError, match="head is cut off"):
            Parcel.received(length.to_bytes(4, "big") + whole[4:])

    # Expect what was looked at here not to go anywhere
    obj = decode(b"".join(signed.parts))
    known = msgspec.structs.replace(obj, platform=msgspec.structs.replace(obj.platform, verified="somebody"))
    assert decode(b"".join(encode(known))).platform.verified == ""


@pytest.mark.parametrize("kind", ["ec", "rsa", "ed25519"])
def test_a_key_that_a_certificate_answers_for_is_known_by_its_name(authority: Authority, kind: str) -> None:
    # Given a publisher with a certificate of that kind
    by = signer(authority.issue("publisher.example", kind=kind))
    uid, bound = registered(by)

    # When it signs, and somebody looks at that
    verifier = CertificateVerifier(authority.ca)

    # Expect its name; also when the key came as an entry of a service item
    assert verifier.check(uid, b"said", by.sign(b"said"), lambda _: [bound]) == "publisher.example"
    assert SigningKeyEntry.of(bound).signing_key() == bound
    assert verifier.check_key(uid, bound) == "publisher.example"

    # Expect another message, a part of the signature, none, and that of somebody else not to hold
    for message, given in ((b"other", by.sign(b"said")), (b"said", by.sign(b"said")[:63]), (b"said", b""),
                           (b"said", signer(authority.issue("other.example")).sign(b"said"))):  # fmt: skip
        with pytest.raises(SignatureError, match=r"not that of publisher\.example"):
            verifier.check(uid, message, given, lambda _: [bound])


@pytest.mark.parametrize(
    ("names", "identity"),
    [
        ((x509.DNSName("a.example"), x509.DNSName("b.example")), "a.example"),
        ((x509.RFC822Name("ops@a.example"), x509.DNSName("b.example")), "ops@a.example"),
        ((x509.IPAddress(IPv4Address("127.0.0.1")),), "127.0.0.1"),
        ((x509.UniformResourceIdentifier("urn:a"),), "urn:a"),
        ((), "common"),
    ],
)
def test_who_has_signed_is_called_as_on_a_connection(
    names: tuple[x509.GeneralName, ...], identity: str, authority: Authority
) -> None:
    tls = authority.issue("common", names=names)
    shown = ssl._ssl._test_decode_cert(tls.certificate)  # type: ignore[attr-defined]  # as getpeercert gives it
    assert next(name for _, name in _names(shown)) == identity
    assert CertificateVerifier(authority.ca).check_key(*registered(signer(tls))) == identity


def test_a_hostile_name_is_harmless(authority: Authority) -> None:
    tls = authority.issue("common", names=(x509.DNSName("a\x1b[2J\nfake line" + "x" * 300),))
    name = CertificateVerifier(authority.ca).check_key(*registered(signer(tls)))
    assert (name[:16], len(name)) == ("a?[2J?fake linex", 253)


def test_an_intermediate_authority_is_one_if_it_may_be(authority: Authority, tmp_path: Path) -> None:
    between = Authority(tmp_path / "between", "between", below=authority)
    verifier = CertificateVerifier(authority.ca)
    assert verifier.check_key(*registered(signer(between.issue("deep.example")))) == "deep.example"

    # Expect no way over one that is not allowed to have others below it, may not sign certificates, or has ended
    narrow = Authority(tmp_path / "narrow", "narrow", below=authority, path_length=0)
    under = Authority(tmp_path / "under", "under", below=narrow)
    mute = Authority(tmp_path / "mute", "mute", below=authority, may_sign=False)
    over = Authority(tmp_path / "over", "over", below=authority, begins=-2 * DAY, ends=-DAY)
    # ... or is for some names alone, which TLS keeps to
    some = x509.NameConstraints([x509.DNSName("partner.example")], None)
    partner = Authority(tmp_path / "partner", "partner", below=authority, noted=some)
    for number, no_authority in enumerate((under, mute, over, partner)):
        with pytest.raises(SignatureError, match=r"no authority in \[tls\] ca|has ended"):
            verifier.check_key(*registered(signer(no_authority.issue(f"n{number}.example"))))


@pytest.mark.parametrize("options", [{"below_it": True}, {"usage": False}])
def test_a_publisher_s_certificate_is_no_authority(
    options: dict[str, Any], authority: Authority, tmp_path: Path
) -> None:
    # Given a publisher that issues a certificate to itself, in another's name
    evil = Authority(tmp_path / "evil", "evil.example", below=authority, is_ca=False, **options)
    forged = signer(evil.issue("good.example"))
    # Expect nobody to believe that
    with pytest.raises(SignatureError, match="of no authority"):
        CertificateVerifier(authority.ca).check_key(*registered(forged))


def _forgeries(authority: Authority, folder: Path) -> dict[str, tuple[str, SigningKey, str]]:
    """What hostile delegates, publishers and registrants of items might tell: the registration's id, what is said to be
    its key, and a part of the reason why it is not."""
    good, evil = signer(authority.issue("good.example")), signer(authority.issue("evil.example"))
    stranger = signer(Authority(folder / "theirs", "authority").issue("good.example"))
    uid, bound = registered(good)
    anchor = anchor_of(SECRET)
    own = evil.bound(uid, anchor)
    changed = msgspec.structs.replace
    chain = bound.chain
    return {
        "another key, by who knows the secret": (uid, own, "not made from it"),
        "another key with the same certificate": (uid, changed(bound, key=evil.public), "not made from it"),
        "no anchor": (uid, changed(bound, anchor=b""), "not made from it"),
        "another registration's": (registered(good, SECRET + "x")[0], bound, "not made from it"),
        "another certificate that answers for it": (
            uid, changed(own, key=bound.key, consent=bound.consent), "do not answer for each other",
        ),
        "a certificate that does not": (uid, changed(bound, chain=own.chain), "do not answer for each other"),
        "a statement of another registration": (
            uid, changed(bound, statement=good.bound("registration-2").statement), "do not answer for each other",
        ),
        "no statement": (uid, changed(bound, statement=b""), "do not answer for each other"),
        "no consent": (uid, changed(bound, consent=bytes(64)), "do not answer for each other"),
        "rubbish": (uid, changed(bound, chain=(b"\x30\x82rubbish",)), "can't be read"),
        "half a certificate": (uid, changed(bound, chain=(chain[0][: len(chain[0]) // 2],)), "can't be read"),
        "an authority of the same name": (*registered(stranger), "of no authority"),
    }  # fmt: skip


FORGERIES = (
    "another key, by who knows the secret", "another key with the same certificate", "no anchor",
    "another registration's", "another certificate that answers for it", "a certificate that does not",
    "a statement of another registration", "no statement", "no consent", "rubbish", "half a certificate",
    "an authority of the same name",
)  # fmt: skip


@pytest.mark.parametrize("what", FORGERIES)
def test_nobody_puts_another_key_in_the_place_of_a_registration_s(
    what: str, authority: Authority, tmp_path: Path
) -> None:
    forgeries = _forgeries(authority, tmp_path)
    assert tuple(forgeries) == FORGERIES
    uid, forged, why = forgeries[what]
    with pytest.raises(SignatureError, match=why):
        CertificateVerifier(authority.ca).check_key(uid, forged)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"begins": -3 * DAY, "ends": -DAY}, "has ended"),
        ({"begins": DAY, "ends": 2 * DAY}, "not valid yet"),
        ({"may_sign": False}, "digitalSignature"),
        ({"purposes": (ExtendedKeyUsageOID.CODE_SIGNING,)}, "something else"),
        ({"critical": x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")}, "critical"),
        ({"kind": "rsa1024"}, "1024 bits"),
    ],
)
def test_a_certificate_that_is_no_good_is_refused_by_both_sides(
    options: dict[str, Any], why: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = authority.issue("bad.example", **options)
    # Expect the publisher to be told at once
    with pytest.raises(ConfigurationError, match=why):
        signer(tls)

    # Expect one that signs all the same to be believed by nobody
    with monkeypatch.context() as hostile:
        hostile.setattr(signature, "_unfit", lambda _leaf: "")
        hostile.setattr(signature._Holder, "why_not", lambda *_: "")
        uid, bound = registered(signer(tls))
    with pytest.raises(SignatureError, match=why):
        CertificateVerifier(authority.ca).check_key(uid, bound)


def test_nothing_that_is_signed_with_sha_1_counts(tmp_path: Path) -> None:
    # Given a certificate as they were made in the past, by `openssl req -x509 -sha1`
    old = tmp_path / "old.pem"
    old.write_text(OLD)
    with pytest.raises(ConfigurationError, match="signed with sha1"):
        CertificateSigner(old, old)


def test_a_certificate_that_ends_meanwhile_ends_its_signatures(authority: Authority) -> None:
    # Given a publisher whose certificate is good for a day
    now = time.time()
    by = CertificateSigner(*map(Path, _files(authority.issue("publisher.example"))), clock=lambda: now)
    uid, bound = registered(by)
    verifier = CertificateVerifier(authority.ca, clock=lambda: now)
    said = by.sign(b"said")
    assert verifier.check(uid, b"said", said, lambda _: [bound]) == "publisher.example"

    # When a day and an hour later it publishes under the same registration
    now += 90_000

    # Expect it to be told, and nobody to take what it says
    with pytest.raises(SignatureError, match="has ended"):
        by.sign(b"said")
    with pytest.raises(SignatureError, match="has ended"):
        verifier.check(uid, b"said", said, lambda _: [bound])


def _files(tls: TlsSection) -> tuple[str, str]:
    return tls.certificate, tls.key


def test_a_renewed_certificate_answers_for_the_same_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given a publisher, and somebody who knows its key
    now, authority = time.time(), Authority(tmp_path / "long", ends=100 * DAY)
    tls = authority.issue("publisher.example", ends=DAY)
    by = CertificateSigner(*map(Path, _files(tls)), clock=lambda: now)
    verifier = CertificateVerifier(authority.ca, clock=lambda: now)
    uid, bound = registered(by)
    assert verifier.check_key(uid, bound) == "publisher.example"
    assert by.generation == 1

    # When half of the new files is there
    Path(tls.key).write_bytes(Path(authority.issue("other.example", number=5).key).read_bytes())
    now += 2
    # Expect the old ones to go on
    assert by.generation == 1
    assert "the previous certificate stays in use for signing" in caplog.text

    # When all of them are, and the old certificate has ended
    authority.issue("publisher.example", number=6, ends=90 * DAY)
    now += 90_000

    # Expect the same registration to be believed, by who asks for its key again
    said = by.sign(b"said")
    assert by.generation == 2
    uid_now, again = registered(by)
    assert uid_now == uid
    assert verifier.check(uid, b"said", said, lambda _: [again]) == "publisher.example"
    with pytest.raises(SignatureError, match="has ended"):
        CertificateVerifier(authority.ca, clock=lambda: now).check(uid, b"said", said, lambda _: [bound])


def test_a_delegate_s_renewed_certificate_answers_for_what_it_cuts(authority: Authority) -> None:
    now = time.time()
    tls = authority.issue("delegate.example")
    seals = Seals(CertificateSigner(*map(Path, _files(tls)), clock=lambda: now), "delegate")
    before = seals.key
    assert seals.key is before
    authority.issue("delegate.example")
    now += 2
    assert seals.key.key == before.key
    assert seals.key.chain != before.chain


def test_what_is_revoked_ends_without_a_restart(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    # Given two publishers that are known, and an authority that has revoked nobody
    now = time.time()
    revoked = authority.revoke()
    verifier = CertificateVerifier(authority.ca, revoked, clock=lambda: now)
    stays, goes = authority.issue("stays.example"), authority.issue("goes.example", number=1)
    keys = {name: registered(signer(tls)) for name, tls in (("stays", stays), ("goes", goes))}
    by = dict(keys.values())
    assert [verifier.check_key(*pair) for pair in keys.values()] == ["stays.example", "goes.example"]

    # When it revokes one of them
    authority.revoke(goes.certificate)
    now += 2

    # Expect that one not to be believed, in an object as in a key
    with pytest.raises(SignatureError, match=r"goes\.example is revoked"):
        verifier.check(keys["goes"][0], b"", b"", lambda uid: [by[uid]])
    assert verifier.check_key(*keys["stays"]) == "stays.example"

    # When the file is damaged, or one of somebody else
    for broken in (
        b"rubbish",
        Authority(authority.folder / "x", "x").revoke().read_bytes(),
        Authority(authority.folder / "y", authority.name).revoke().read_bytes(),
    ):
        revoked.write_bytes(broken)
        now += 2

        # Expect what was read before to stay in force, and the log to say so
        with pytest.raises(SignatureError, match=r"goes\.example is revoked"):
            verifier.check_key(*keys["goes"])
        assert "the previous files stay in force" in caplog.text
        with pytest.raises(ConfigurationError, match=r"\[tls\] revoked"):
            CertificateVerifier(authority.ca, revoked)
        caplog.clear()


def test_a_key_that_is_examined_while_it_is_revoked_is_not_remembered(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a verifier that examines a key
    now = time.time()
    goes, revoked = authority.issue("goes.example"), authority.revoke()
    verifier, by = CertificateVerifier(authority.ca, revoked, clock=lambda: now), signer(goes)
    uid, bound = registered(by)
    verify, steps = signature._holds, iter(range(9))

    def held_up(*args: Any) -> bool:
        nonlocal now
        if next(steps) == 0:  # when its certificate is revoked, and another thread reads that
            authority.revoke(goes.certificate)
            now += 2
            with pytest.raises(SignatureError, match="is revoked"):
                verifier.check(uid, b"said", by.sign(b"said"), lambda _: [bound])
        return bool(verify(*args))

    monkeypatch.setattr(signature, "_holds", held_up)
    assert verifier.check(uid, b"said", by.sign(b"said"), lambda _: [bound]) == "goes.example"
    # Expect it to count no more from then on
    with pytest.raises(SignatureError, match="is revoked"):
        verifier.check(uid, b"said", by.sign(b"said"), lambda _: [bound])


@pytest.mark.parametrize("is_shared", [True, False])
def test_with_an_authority_all_whom_it_has_certified_are_revoked(
    is_shared: bool, authority: Authority, tmp_path: Path
) -> None:
    # Given an authority below ours, which publishers bring along, or which everybody has in [tls] ca as well
    between = Authority(tmp_path / "between", "between", below=authority)
    held = registered(signer(between.issue("deep.example")))
    (own := between.folder / "own.pem").write_bytes(pem(between.certificate))
    if is_shared:
        authority.ca.write_bytes(authority.ca.read_bytes() + own.read_bytes())
    assert CertificateVerifier(authority.ca, authority.revoke()).check_key(*held) == "deep.example"
    # When ours has revoked it, expect nobody to be believed for its sake
    with pytest.raises(SignatureError, match="certificate of between is revoked"):
        CertificateVerifier(authority.ca, authority.revoke(str(own))).check_key(*held)


def test_a_good_key_is_asked_for_once_and_a_bad_one_keeps_nobody_from_giving_it(authority: Authority) -> None:
    by = signer(authority.issue("publisher.example"))
    uid, bound = registered(by)
    verifier = CertificateVerifier(authority.ca)
    bad = msgspec.structs.replace(bound, statement=b"")
    asked: list[str] = []

    # Given somebody hostile, who says something else of the registration
    for _ in range(3):
        with pytest.raises(SignatureError, match="do not answer for each other"):
            verifier.check(uid, b"said", by.sign(b"said"), lambda _: [bad])

    # Expect somebody else to be heard, behind that, and nobody to be asked again
    for _ in range(3):
        verifier.check(uid, b"said", by.sign(b"said"), lambda holder: asked.append(holder) or [bad, bound])
    assert asked == [uid]


def test_a_delegate_s_key_is_of_the_certificate_that_it_shows(authority: Authority) -> None:
    # Given two delegates
    good, evil = authority.issue("good.example"), authority.issue("evil.example", number=1)
    pins = [TlsIdentity(Path(tls.certificate), Path(tls.key), authority.ca).fingerprint() for tls in (good, evil)]
    mine, theirs = signer(good), signer(evil)
    verifier = CertificateVerifier(authority.ca)

    # Expect each to be heard under its own certificate, whatever the other has said before under the same name
    public = x509.load_pem_x509_certificates(Path(good.certificate).read_bytes())[0].public_key()
    spki = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    key_pin = hashlib.sha256(spki).hexdigest()  # of the key, which stays when the certificate is renewed
    for by, pin, name in (
        (theirs, pins[1], "evil.example"), (mine, pins[0], "good.example"), (mine, key_pin, "good.example"),
    ):  # fmt: skip
        key = by.bound("delegate")
        assert verifier.check("delegate", b"cut", by.sign(b"cut"), lambda _, key=key: [key], pin) == name
    with pytest.raises(SignatureError, match="not that of"):
        verifier.check("delegate", b"cut", theirs.sign(b"cut"), lambda _: [], pins[0])

    # Expect such a key to be nobody's registration's
    with pytest.raises(SignatureError, match="not made from it"):
        verifier.check("delegate", b"cut", mine.sign(b"cut"), lambda _: [mine.bound("delegate")])


def test_what_is_remembered_is_bounded(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "KEYS_MOST", 3)
    verifier, by = CertificateVerifier(authority.ca), signer(authority.issue("publisher.example"))
    keys = [registered(by, f"{number:032}") for number in range(10)]
    for uid, bound in keys:
        verifier.check_key(uid, bound)
    assert [holder for holder, _ in verifier._files.value.known] == [uid for uid, _ in keys[-3:]]


@pytest.mark.parametrize("hostile", [{"key": ""}, {"key": "####"}, {"chain": ""}, {"chain": " " * 100},
                                     {"statement": "QUJD" * 1000}, {"anchor": None}])  # fmt: skip
def test_an_entry_that_is_no_key_is_an_error_of_ours(hostile: dict[str, Any], authority: Authority) -> None:
    _, bound = registered(signer(authority.issue("publisher.example")))
    with pytest.raises(EntryError, match="signing key"):
        replace(SigningKeyEntry.of(bound), **hostile).signing_key()


def test_an_id_is_proven_by_secret_and_key(authority: Authority) -> None:
    # Given a registration that signs, as its publisher asks for it
    uid, bound = registered(signer(authority.issue("good.example")))
    request = PublisherRequest(SchemaBundle("", ()), (), True, SECRET, bound)
    check_publisher(uid, request)

    # Expect nobody to have it with another secret, key or anchor, a secret that can be guessed, or without
    other = registered(signer(authority.issue("other.example")))[1]
    changed = msgspec.structs.replace
    short = registered(signer(authority.issue("good.example")), "short")
    for asked, wrong in (
        (uid, changed(request, secret=SECRET[::-1])),
        (uid, changed(request, signing=other)),
        (uid, changed(request, signing=changed(bound, anchor=bytes(32)))),
        (uid, changed(request, secret=SECRET[::-1], signing=changed(bound, anchor=anchor_of(SECRET[::-1])))),
        (short[0], changed(request, secret="short", signing=short[1])),
        (signed_uid(b"", bound.key), changed(request, signing=changed(bound, anchor=b""))),
        (uid, changed(request, signing=None)),
        (uid + "\u00e9", request),
    ):
        with pytest.raises(AccessDeniedError, match="not proven"):
            check_publisher(asked, wrong)


def test_files_that_are_no_good_are_named(authority: Authority, tmp_path: Path) -> None:
    tls = authority.issue("publisher.example")
    certificate, private = map(Path, _files(tls))
    rubbish, missing = tmp_path / "rubbish.pem", tmp_path / "missing.pem"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n")
    other = Path(authority.issue("other.example", number=2).key)
    long = tmp_path / "long.pem"
    long.write_bytes(b"".join(Path(Authority(tmp_path / str(n), f"a{n}", below=authority).issue("x").certificate)
                              .read_bytes() for n in range(3)))  # fmt: skip
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: CertificateSigner(missing, private), "missing.pem"),
        (lambda: CertificateSigner(rubbish, private), "rubbish.pem"),
        (lambda: CertificateSigner(certificate, missing), "missing.pem"),
        (lambda: CertificateSigner(certificate, certificate), "publisher.example.pem"),
        (lambda: CertificateSigner(certificate, other), "is not that of"),
        (lambda: CertificateSigner(long, private), "at most 4"),
        (lambda: CertificateVerifier(missing), "missing.pem"),
        (lambda: CertificateVerifier(private), "no CERTIFICATE"),
        (lambda: CertificateVerifier(authority.ca, missing), r"revoked .*missing.pem"),
        (lambda: CertificateVerifier(authority.ca, authority.ca), "no X509 CRL"),
    ]
    for make, why in cases:
        with pytest.raises(ConfigurationError, match=why):
            make()


@pytest.mark.parametrize(("key_", "make"), [("sign", signer_of), ("verify", verifier_of)])
def test_without_certificates_it_is_one_clear_error(key_: str, make: Callable[[Config], object]) -> None:
    wanted: dict[str, Any] = {"sign": True, "verify": "require"}

    # Expect nothing to be made, and nothing imported, of what is off
    assert make(Config()) is None

    # Expect a clear word without certificates
    with pytest.raises(ConfigurationError, match=f"{key_} needs certificate, key and ca"):
        make(Config(tls=TlsSection(**{key_: wanted[key_]})))


def test_who_does_not_sign_or_verify_has_no_library_for_it(start: Callable[..., Any]) -> None:
    # Given a process that publishes and subscribes with what is usual
    process = start(
        script="import sys, jbi_pubsub, jbi_pubsub.cli.servers, jbi_pubsub.cli.clients\n"
        "from jbi_pubsub.pad.ingress.stages import stages_of\nstages_of(jbi_pubsub.Config())\n"
        "loaded = sys.modules.keys() - {'jbi_pubsub.trust.settings'}\n"
        "print([name for name in loaded if name.startswith(('cryptography', 'jbi_pubsub.trust.'))])"
    )
    assert process.communicate()[0].strip() == "[]", process.stderr()


def test_a_hostile_certificate_is_never_more_than_an_error_of_ours(authority: Authority) -> None:
    uid, bound = registered(signer(authority.issue("publisher.example")))
    verifier, chance = CertificateVerifier(authority.ca), Random(7)
    for _ in range(300):
        damaged = bytearray(bound.chain[0])
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if bytes(damaged) != bound.chain[0]:
            with pytest.raises(SignatureError):
                verifier.check_key(uid, msgspec.structs.replace(bound, chain=(bytes(damaged),)))
