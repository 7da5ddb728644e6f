"""Keys of a network that a keeper hands out one by one, and changes when a certificate is revoked."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import msgspec
import pytest
from certificates import Authority

from jbi_pubsub.core.config import TlsSection
from jbi_pubsub.core.errors import JbiError, ProtocolError, SignatureError
from jbi_pubsub.trust import group
from jbi_pubsub.trust.group import FORMER_SECONDS, GroupKey, GroupKeys, GroupMember
from jbi_pubsub.trust.seal import DatagramSeal
from jbi_pubsub.trust.signature import CertificateSigner, CertificateVerifier

from .test_seal import said

NAMES = ("alpha", "bravo", "charlie")


def node_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


class Deployment:
    """An authority, a keeper, and members whom it has issued certificates."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ours")
        self.now = time.time()
        self.revoked = self.authority.revoke()
        self.files = {name: self.authority.issue(name) for name in ("keeper", *NAMES)}
        self.keeper = self.keeper_at(1)
        self.members = {name: self.member(name) for name in NAMES}

    def keeper_at(self, start: int) -> GroupKeys:
        """The keeper's, at one of its starts."""
        return GroupKeys("lan", node_id("keeper"), start, self.signer(self.files["keeper"]), self.verifier())

    def member(self, name: str, start: int = 1, files: TlsSection | None = None) -> GroupMember:
        """One more, at one of its starts."""
        signer = self.signer(files or self.files[name])
        return GroupMember("lan", node_id(name), start, signer, self.verifier(), keeper="keeper")

    def signer(self, files: TlsSection) -> CertificateSigner:
        """Signs with these files."""
        return CertificateSigner(Path(files.certificate), Path(files.key))

    def verifier(self) -> CertificateVerifier:
        """Believes our authority; its clock is ours."""
        return CertificateVerifier(self.authority.ca, self.revoked, clock=lambda: self.now)

    def join(self, *names: str) -> None:
        """Have members ask, and take what they get."""
        for name in names:
            taken = self.members[name].taken(self.keeper.granted(self.members[name].request()))
            assert taken == self.keeper.current

    def revoke(self, name: str) -> None:
        """The certificate of that name holds no more."""
        self.authority.revoke(self.files[name].certificate)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def test_whoever_has_a_certificate_of_the_authority_gets_the_key(deployment: Deployment) -> None:
    # Given three members who ask
    deployment.join(*NAMES)
    # Expect that they have one key, and the keeper knows who has it
    current = deployment.keeper.current
    assert deployment.keeper.holders() == {node_id(name): current.generation for name in NAMES}
    # And that a grant is of use to nobody but its member, as often as it comes
    grant = deployment.keeper.granted(deployment.members["alpha"].request())
    assert current.key not in grant
    assert [each.taken(grant) for each in deployment.members.values()] == [None] * 3
    stolen = msgspec.msgpack.decode(grant)
    stolen[2] = node_id("bravo")
    fresh = deployment.member("bravo")
    with pytest.raises(SignatureError):
        fresh.taken(msgspec.msgpack.encode(stolen))


def test_a_certificate_of_another_authority_gets_nothing(deployment: Deployment, tmp_path: Path) -> None:
    stranger = deployment.member("mallory", files=Authority(tmp_path / "theirs").issue("mallory"))
    with pytest.raises(SignatureError, match="no authority"):
        deployment.keeper.granted(stranger.request())
    assert deployment.keeper.holders() == {}


def test_a_member_takes_keys_of_its_keeper_alone(deployment: Deployment) -> None:
    # Given another node with a good certificate, who grants keys as the keeper does
    own = GroupKeys("lan", node_id("keeper"), 9, deployment.signer(deployment.files["bravo"]), deployment.verifier())
    alpha = deployment.members["alpha"]
    # Expect that they are not taken, nor those of another network
    with pytest.raises(SignatureError, match="not the keeper"):
        alpha.taken(own.granted(alpha.request()))
    other = GroupMember(
        "wan", node_id("alpha"), 1, deployment.signer(deployment.files["alpha"]), deployment.verifier(), keeper="keeper"
    )
    with pytest.raises(ProtocolError, match="another network"):
        deployment.keeper.granted(other.request())
    assert other.taken(deployment.keeper.granted(alpha.request())) is None
    assert alpha.current is None


@pytest.mark.row("G-180")
def test_who_is_revoked_hears_nothing_and_is_heard_by_nobody_in_less_than_two_seconds(deployment: Deployment) -> None:
    # Given three members that seal with the key
    deployment.join(*NAMES)
    seals = {name: DatagramSeal(deployment.keeper.current.key, node_id(name)) for name in NAMES}
    assert isinstance(seals["alpha"].open(seals["charlie"].seal(said(1, node_id("charlie")))), bytes)
    assert deployment.keeper.look() == {}
    # When one is revoked, and the keeper looks a second later
    deployment.revoke("charlie")
    deployment.now += 1.1
    grants = deployment.keeper.look()
    # Expect a new key for the others alone, once
    assert set(grants) == {node_id("alpha"), node_id("bravo")}
    assert set(deployment.keeper.holders()) == set(grants)
    assert deployment.keeper.look() == {}
    for name in ("alpha", "bravo"):
        taken = deployment.members[name].taken(grants[node_id(name)])
        assert taken == deployment.keeper.current
        seals[name].turn(taken.key)
    # And that they hear each other at once, and the revoked one no more when the former key has ended
    assert 1.1 + FORMER_SECONDS < 2
    assert isinstance(seals["bravo"].open(seals["alpha"].seal(said(1, node_id("alpha")))), bytes)
    for name in ("alpha", "bravo"):
        seals[name].end_former()
    assert not isinstance(seals["bravo"].open(seals["charlie"].seal(said(2, node_id("charlie")))), bytes)
    assert not isinstance(seals["charlie"].open(seals["alpha"].seal(said(2, node_id("alpha")))), bytes)
    # And that it gets no key, by its old request or a new one, nor by another member's grant
    for by in (deployment.members["charlie"], deployment.member("charlie", 2)):
        with pytest.raises(SignatureError, match="revoked"):
            deployment.keeper.granted(by.request())
    assert deployment.members["charlie"].taken(grants[node_id("alpha")]) is None


def test_what_is_played_again_changes_nothing(deployment: Deployment) -> None:
    # Given a member that has started anew since it asked, and keys that have followed each other
    old = deployment.members["alpha"].request()
    first = deployment.keeper.granted(old)
    deployment.members["alpha"] = deployment.member("alpha", 2)
    deployment.join("alpha")
    second = deployment.keeper.without()[node_id("alpha")]
    alpha = deployment.members["alpha"]
    newest = alpha.taken(second)
    assert newest == deployment.keeper.current
    # Expect that neither an old grant nor an old request counts
    assert alpha.taken(first) is None
    assert alpha.taken(second) is None
    with pytest.raises(ProtocolError, match="over before"):
        deployment.keeper.granted(old)
    # And that a member of that start with a key of its own, of a folder that was copied, doesn't either
    with pytest.raises(ProtocolError, match="over before"):
        deployment.keeper.granted(deployment.member("alpha", 2).request())
    # And that a keeper that starts anew goes on behind
    deployment.keeper = deployment.keeper_at(2)
    deployment.join("alpha")
    assert deployment.keeper.current.generation > newest.generation


def test_nobody_asks_in_the_place_of_another(deployment: Deployment) -> None:
    deployment.join("alpha")
    # Given bravo, who says that it is alpha
    posing = deployment.member("alpha", 7, deployment.files["bravo"])
    with pytest.raises(SignatureError, match="asks as a member that is alpha"):
        deployment.keeper.granted(posing.request())
    # And who puts its name to alpha's request
    parts = msgspec.msgpack.decode(deployment.members["alpha"].request())
    parts[1] = node_id("bravo")
    with pytest.raises(SignatureError):
        deployment.keeper.granted(msgspec.msgpack.encode(parts))


def test_members_are_bounded(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given room for three, and for two of one name
    monkeypatch.setattr(group, "MEMBERS_MOST", 3)
    monkeypatch.setattr(group, "OF_ONE_MOST", 2)
    files = deployment.files
    for name in ("one", "two"):
        deployment.keeper.granted(deployment.member(name, files=files["alpha"]).request())
    with pytest.raises(ProtocolError, match="one member more"):
        deployment.keeper.granted(deployment.member("three", files=files["alpha"]).request())
    deployment.join("bravo")
    with pytest.raises(ProtocolError, match="one member more"):
        deployment.join("charlie")
    # Expect that those who are there get theirs again
    deployment.keeper.without()
    deployment.join("bravo")


def test_bad_bytes_raise_our_errors_and_open_nothing(deployment: Deployment) -> None:
    # Given a request and a grant, and 600 mutations of each
    alpha = deployment.members["alpha"]
    request = alpha.request()
    grant = deployment.keeper.granted(request)
    random, opened = Random(5), 0
    fresh = deployment.keeper_at(3)
    for good, take in ((request, fresh.granted), (grant, alpha.taken)):
        for _ in range(600):
            bad = bytearray(good)
            for _ in range(random.randint(1, 3)):
                bad[random.randrange(len(bad))] = random.randrange(256)
            if random.random() < 0.2:
                del bad[random.randrange(len(bad)) :]
            if bytes(bad) == good:
                continue
            try:
                opened += take(bytes(bad)) is not None
            except JbiError:
                continue
    # Expect none that counts
    assert opened == 0
    assert fresh.holders() == {}
    # And that the good ones do, but not with a public key that gives no secret
    assert isinstance(alpha.taken(grant), GroupKey)
    parts = msgspec.msgpack.decode(request)
    parts[3] = bytes(32)
    with pytest.raises(JbiError):
        fresh.granted(msgspec.msgpack.encode(parts))
