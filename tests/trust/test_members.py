"""Nodes that give each other the keys they seal with, as their certificates hold."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import msgspec
import pytest
from certificates import Authority

from jbi_pubsub.core.config import TlsSection
from jbi_pubsub.core.sealing import SealFault
from jbi_pubsub.trust import members, seal
from jbi_pubsub.trust.members import CHECKS, TURN_SECONDS, MemberSeal
from jbi_pubsub.trust.signature import CertificateSigner, CertificateVerifier

from .test_seal import said

NAMES = ("alpha", "bravo", "charlie")


def node_id(name: str) -> bytes:
    return name.encode().ljust(16, b".")


class Air:
    """An authority, nodes whom it has issued certificates, and all that they have said."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ours")
        self.now = 1_000.0
        self.lists = {name: self.copy(self.authority.revoke(), name) for name in NAMES}
        self.files = {name: self.authority.issue(name) for name in NAMES}
        self.heard: list[tuple[str, bytes]] = []
        self.faults: list[SealFault] = []
        self.numbers = dict.fromkeys(NAMES, 0)
        self.nodes: dict[str, MemberSeal] = {}
        for name in NAMES:
            self.start(name)

    def copy(self, made: Path, name: str) -> Path:
        """A node's own list of the revoked."""
        path = made.with_name(f"{name}-list.pem")
        path.write_bytes(made.read_bytes())
        return path

    def start(self, name: str, files: TlsSection | None = None, rate: float = 0.0) -> MemberSeal:
        """A node starts, or starts anew; `rate`: that of its network."""
        files = files or self.files[name]
        wall = time.time()
        verifier = CertificateVerifier(
            Path(files.ca), self.lists.get(name), clock=lambda: wall + self.now - 1_000.0
        )  # fmt: skip
        signer = CertificateSigner(Path(files.certificate), Path(files.key))
        self.nodes[name] = MemberSeal(node_id(name), signer, verifier, lambda: self.now, rate)
        self.numbers[name] = 0
        return self.nodes[name]

    def say(self, name: str) -> bytes:
        """What a node says next, sealed."""
        self.numbers[name] += 1
        return self.nodes[name].seal(said(self.numbers[name], node_id(name)))

    def hears(self, name: str, speaker: str) -> bool:
        """Whether a node hears the next of another."""
        return isinstance(self.nodes[name].open(self.say(speaker)), bytes)

    def who_hears(self) -> set[str]:
        """Pairs who hear each other's next, by their first letters."""
        return {a[0] + b[0] for a in self.nodes for b in self.nodes if a != b and self.hears(b, a)}

    def pass_on(self, *among: str, seconds: float = 0.2) -> None:
        """Let these, or all, exchange messages of keys for a while."""
        names = among or tuple(self.nodes)
        for _ in range(max(1, round(seconds / 0.05))):
            while said_now := [(name, each) for name in names if (each := self.nodes[name].outgoing()) is not None]:
                for speaker, each in said_now:
                    self.heard.append((speaker, each))
                    found = [self.nodes[name].heard(each) for name in names if name != speaker]
                    self.faults += [fault for fault in found if fault is not None]
            self.now += 0.05

    def settle(self, *among: str) -> None:
        """Let these, or all, say something and exchange messages of keys, until what they lack is there."""
        names = among or tuple(self.nodes)
        for _ in range(3):
            self.pass_on(*names)
            for speaker in names:
                each = self.say(speaker)
                for name in names:
                    self.nodes[name].open(each)
        self.pass_on(*names)

    def revoke(self, name: str, *seen_by: str) -> None:
        """The certificate of that name holds no more; these, or all, have the list, and look within 1.1 seconds."""
        made = self.authority.revoke(self.files[name].certificate)
        for each in seen_by or NAMES:
            self.copy(made, each)
        self.now += 1.1


ALL = {a[0] + b[0] for a in NAMES for b in NAMES if a != b}


@pytest.fixture
def air(tmp_path: Path) -> Air:
    return Air(tmp_path)


def test_nodes_with_certificates_of_one_authority_hear_each_other(air: Air) -> None:
    # Given three nodes that have exchanged keys
    assert air.who_hears() == set()
    air.pass_on(seconds=0.5)
    # Expect that all hear all, that there were no faults, and that no key was said
    assert air.who_hears() == ALL
    assert air.faults == []
    assert not any(node._own.key in each for node in air.nodes.values() for _, each in air.heard)
    # And that it took at most an ask and a grant each for its start and for those who came
    assert len(air.heard) <= 4 * len(NAMES)
    # And that then there is silence
    air.heard.clear()
    air.settle()
    assert air.heard == []


def test_over_a_slow_network_nodes_come_to_know_each_other_and_keys_leave_room_for_other_messages(air: Air) -> None:
    # Given two nodes on a network of 1,200 bytes a second, over which everything takes a second more
    rate, delay, began = 1_200.0, 1.0, air.now
    ends = {name: air.start(name, rate=rate) for name in NAMES[:2]}
    free, on_its_way, size = dict.fromkeys(ends, 0.0), list[tuple[float, str, bytes]](), 0
    # When each says something now and then, and messages of keys as fast as they go
    while air.now < began + 60.0:
        air.now += 0.05
        for name, other in zip(ends, reversed(ends), strict=True):
            if air.now >= free[name] and (each := ends[name].outgoing()) is not None:
                size += len(each)
                free[name] = air.now + len(each) / rate
                on_its_way.append((free[name] + delay, other, each))
            ends[other].open(air.say(name))
        for arrival in [arrival for arrival in on_its_way if arrival[0] <= air.now]:
            on_its_way.remove(arrival)
            ends[arrival[1]].heard(arrival[2])
        if air.hears(NAMES[0], NAMES[1]) and air.hears(NAMES[1], NAMES[0]):
            break
    # Expect that they know each other after a few messages
    assert air.now < began + 15.0
    assert size < 8_000


def test_a_certificate_of_another_authority_gets_nothing_and_is_not_heard(air: Air, tmp_path: Path) -> None:
    # Given a stranger that hears and answers whatever is said
    air.start("mallory", Authority(tmp_path / "theirs").issue("mallory"))
    for _ in range(5):
        air.settle()
    # Expect that it hears nobody, and nobody hears it
    assert air.who_hears() == ALL
    assert set(air.faults) == {SealFault.REFUSED}


@pytest.mark.row("G-180")
def test_who_is_revoked_hears_nobody_and_is_heard_by_nobody_in_less_than_two_seconds(air: Air) -> None:
    # Given three nodes that hear each other
    air.settle()
    before = air.say("alpha")
    # When one is revoked, and the others look a second later
    started = air.now
    air.revoke("charlie", "alpha", "bravo")
    air.pass_on(seconds=0.2)
    # Expect that the others alone hear each other, however long it goes on asking
    assert air.now - started < 2
    assert air.who_hears() == {"ab", "ba"}
    for _ in range(5):
        air.settle()
    assert air.who_hears() == {"ab", "ba"}
    # And not by what it has had of others, nor by what was said before, under whatever name
    assert air.nodes["bravo"].open(before) is SealFault.UNKNOWN
    # And that it comes back with another certificate
    air.files["charlie"] = air.authority.issue("charlie")
    air.start("charlie")
    air.settle()
    assert air.who_hears() == ALL


@pytest.mark.row("G-180")
def test_an_island_that_was_away_when_one_was_revoked_comes_back_without_him(air: Air) -> None:
    # Given bravo and charlie, who hear nothing of alpha while that revokes charlie, and have other keys since
    air.settle()
    air.revoke("charlie", "alpha")
    air.pass_on("alpha")
    air.now += TURN_SECONDS
    air.settle("bravo", "charlie")
    # When they hear alpha again
    for _ in range(3):
        air.settle()
    # Expect that alpha and bravo hear each other, and charlie only bravo, who doesn't know of it yet
    assert air.who_hears() == {"ab", "ba", "bc", "cb"}
    # And nobody when bravo does
    air.revoke("charlie")
    air.settle()
    assert air.who_hears() == {"ab", "ba"}


def test_who_starts_anew_hears_others_and_nothing_that_was_said_before(air: Air) -> None:
    # Given a node that others hear, and who has started anew
    air.settle()
    before = [air.say("alpha") for _ in range(5)]
    former = air.nodes["bravo"]
    air.start("bravo")
    air.settle()
    # Expect that all hear each other again, and that what was said before and is played to it is not heard
    assert air.who_hears() == ALL
    assert {air.nodes["bravo"].open(each) for each in before} == {SealFault.REPLAYED}
    # And that its former start is over for others
    assert air.nodes["alpha"].open(former.seal(said(1_000, node_id("bravo")))) is SealFault.UNKNOWN


def test_a_node_hears_another_that_has_its_id(air: Air) -> None:
    # Given a node of which another has a copy
    one = air.nodes["alpha"]
    two = air.start("alpha")
    # Expect that they exchange keys as others do, so that both see that the other is there
    for _ in range(3):
        air.now += 0.2
        for by, to in ((one, two), (two, one)):
            while (each := by.outgoing()) is not None:
                assert to.heard(each) is None
                assert by.heard(each) is None
    assert isinstance(two.open(one.seal(said(1, node_id("alpha")))), bytes)
    assert isinstance(one.open(two.seal(said(1, node_id("alpha")))), bytes)


def test_messages_that_are_played_again_do_nothing(air: Air) -> None:
    # Given three nodes that have started anew and turned, and all that they have ever said
    air.settle()
    former = [air.say(name) for name in NAMES]
    for name in NAMES:
        air.start(name)
    air.settle()
    air.now += TURN_SECONDS
    air.settle()
    own = {name: node._own for name, node in air.nodes.items()}
    air.now += members.ANSWER_SECONDS + 0.1
    # When all of it is played to all of them, with what was said under the keys of then
    for each in former:
        for node in air.nodes.values():
            node.open(each)
    asked = [node.outgoing() for node in air.nodes.values()]
    assert all(asked)
    for _, each in air.heard:
        for node in air.nodes.values():
            node.heard(each)
    # Expect that no key of before counts, that all hear each other as before, and that no answer is of use
    for each in former:
        assert all(not isinstance(node.open(each), bytes) for node in air.nodes.values())
    assert {name: node._own for name, node in air.nodes.items()} == own
    assert all(len(node._own) == 2 for node in air.nodes.values())
    assert air.who_hears() == ALL


def test_a_grant_is_for_who_has_asked_and_of_who_has_signed(air: Air) -> None:
    # Given an ask of alpha, and the grant of bravo
    alpha, bravo, charlie = (air.nodes[name] for name in NAMES)
    ask = alpha.outgoing()
    assert bravo.heard(ask) is None
    grant = bravo.outgoing()
    # When charlie takes it, or says it as its own, or a piece of it is another
    assert charlie.heard(grant) is None
    parts = msgspec.msgpack.decode(grant)
    for at, other in ((1, node_id("charlie")), (2, bytes(8)), (3, bytes(32)), (6, 7)):
        bad = msgspec.msgpack.encode([*parts[:at], other, *parts[at + 1 :]])
        assert alpha.heard(bad) is SealFault.REFUSED
    # Expect that nobody knows a session of it, until it comes itself
    assert [len(node._own) for node in (alpha, bravo, charlie)] == [0, 0, 0]
    # And that it does not count when it comes too late, which may be when it is over
    air.now += members.ANSWER_SECONDS + 0.1
    assert alpha.heard(grant) is None
    assert len(alpha._own) == 0
    air.now -= members.ANSWER_SECONDS + 0.1
    assert alpha.heard(grant) is None
    assert air.hears("alpha", "bravo")


def test_a_certificate_that_has_ended_is_over_at_the_next_turn(air: Air) -> None:
    # Given nodes that hear each other, and a day later, when their certificates have ended
    air.settle()
    air.now += 86_500
    air.settle()
    # Expect that nobody is heard any more
    assert air.who_hears() == set()


def test_sessions_of_nodes_are_bounded(air: Air, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given room for one, and for one that is asked for
    monkeypatch.setattr(seal, "SESSIONS_MOST", 1)
    monkeypatch.setattr(members, "WANTED_MOST", 1)
    air.settle()
    # Expect that one is heard at a time
    assert all(len(node._own) <= 1 for node in air.nodes.values())
    assert all(len(node._holders) <= 1 and len(node._wanted) <= 1 for node in air.nodes.values())


@pytest.mark.row("G-181")
def test_bad_messages_cost_nothing_and_change_nothing(air: Air) -> None:
    # Given nodes that hear each other, and an ask and a grant
    air.settle()
    alpha, random = air.nodes["alpha"], Random(7)
    good = [each for _, each in air.heard[:8]]
    fresh = air.start("delta", air.files["bravo"])
    # When 10,000 come that are random, or mutations of these
    began = time.process_time()
    for _ in range(10_000):
        is_random = random.random() < 0.3
        bad = bytearray(random.randbytes(random.randint(1, 2_000)) if is_random else random.choice(good))
        for _ in range(random.randint(1, 3)):
            bad[random.randrange(len(bad))] = random.randrange(256)
        if bytes(bad) not in good:
            fresh.heard(bytes(bad))
            alpha.heard(bytes(bad))
    # Expect that no more than so many signatures of them were looked at, and nothing is remembered of them
    assert alpha._checks.tokens >= 0
    assert time.process_time() - began < 2 + CHECKS * 0.01
    assert fresh._askers == {}
    assert len(fresh._own) == 0
    # And that those who know each other go on
    assert air.hears("alpha", "bravo")
    # And that others come to know each other a second later
    air.now += 1
    air.settle()
    assert air.hears("delta", "alpha")
