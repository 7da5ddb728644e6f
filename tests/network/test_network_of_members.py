"""Networks whose nodes give each other their keys, as their certificates hold."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from certificates import Authority

from jbi_pubsub.core.config import Config, TlsSection
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.core.sealing import SEALED_FLAG, SealFault
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, hash_of, packed
from jbi_pubsub.network.links.local import LocalLink
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.network import Network, NetworkLink
from jbi_pubsub.network.sealing import MemberSealing

LAN = {"lan": NetworkSection()}


def told(body: bytes) -> NodeMessage:
    return NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body)


class Members:
    """Nodes on a segment, with certificates of an authority."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.authority = Authority(folder / "ours")
        self.revoked = str(self.authority.revoke())
        self._stack, self._name = stack, uuid4().hex
        self.heard: dict[str, list[bytes]] = {}

    def node(self, name: str, authority: Authority | None = None) -> Network:
        """One more; its authority may be another."""
        files = (authority or self.authority).issue(name)
        revoked = "" if authority else self.revoked
        tls = TlsSection(certificate=files.certificate, key=files.key, ca=files.ca, revoked=revoked)
        me = os.urandom(16)
        heard = self.heard[name] = []
        link = NetworkLink(LocalLink(self._name), seal=MemberSealing(Config(tls=tls, network=LAN), "lan", me))
        network = Network(me, 1, [link], lambda message: heard.append(message.body))
        network.start()
        self._stack.callback(network.stop)
        return network

    def tap(self) -> LocalLink:
        """Somebody who hears and says what he likes."""
        link = LocalLink(self._name)
        self._stack.callback(link.close)
        return link


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    with ExitStack() as stack:
        yield Members(tmp_path, stack)


@pytest.mark.row("G-179", "G-180")
def test_who_is_revoked_hears_nothing_in_less_than_two_seconds_and_others_lose_nothing(
    members: Members, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    # Given three nodes that hear each other, a stranger with a certificate of another authority, and one who listens
    tap = members.tap()
    nodes = {name: members.node(name) for name in ("alpha", "bravo", "charlie")}
    stranger = members.node("mallory", Authority(tmp_path / "theirs"))
    for name, each in nodes.items():
        each.say(told(name.encode()))
    stranger.say(told(b"mallory"))
    expected = {name: {other.encode() for other in nodes if other != name} for name in nodes}
    eventually(lambda: {name: set(members.heard[name]) for name in nodes} == expected)
    # When one is revoked, while another says 10 messages a second and more
    members.authority.revoke(str(members.authority.folder / "charlie.pem"))
    began, said, late = time.monotonic(), [], b""
    while len(said) < 40:
        said.append(b"%d" % len(said))
        nodes["alpha"].say(told(said[-1]), 5.0)
        if not late and time.monotonic() - began >= 1.9:
            late = said[-1]
        time.sleep(0.07)
    nodes["charlie"].say(told(b"charlie again"))
    # Expect that the other has heard all of it, and once
    eventually(lambda: set(said) <= set(members.heard["bravo"]))
    assert len(members.heard["bravo"]) == len(set(members.heard["bravo"])) == 2 + len(said)
    # And that the one who is revoked has heard nothing of what was said two seconds later, and is not heard
    assert late
    assert not set(members.heard["charlie"]) & set(said[said.index(late) :])
    assert b"charlie again" not in members.heard["alpha"] + members.heard["bravo"]
    # And that the stranger never was, and has heard nothing
    assert members.heard["mallory"] == []
    assert b"mallory" not in members.heard["alpha"]
    # And that nothing but messages of keys went in clear
    captured = [each for _ in range(20) for each in tap.receive(tap.sockets()[0])]
    assert {each[3] for each in captured if not each[4] & SEALED_FLAG} == {DatagramKind.KEY}


@pytest.mark.row("G-181")
def test_messages_of_keys_that_are_forged_or_played_again_cost_nothing(
    members: Members, eventually: Callable[..., object]
) -> None:
    # Given two nodes that hear each other, and somebody who plays again what they said, and forges 10,000 more
    tap = members.tap()
    alpha, bravo = members.node("alpha"), members.node("bravo")
    alpha.say(told(b"one"))
    eventually(lambda: members.heard["bravo"] == [b"one"])
    again = [each for each in tap.receive(tap.sockets()[0]) if each[3] == DatagramKind.KEY]
    assert again
    before = time.process_time()
    for number in range(1, 10_001):
        body = os.urandom(60)
        who = os.urandom(16)
        tap.send([packed(Datagram(DatagramKind.KEY, DatagramMode.UNRELIABLE, who, hash_of(body, 0), body,
                                  sender=who[:4], number=number << 40))])  # fmt: skip
        if number % 50 == 0:
            tap.send([again[number // 50 % len(again)]])
    # Expect that they are counted, and no more
    eventually(lambda: bravo.status()["faults"].get(SealFault.REFUSED, 0) > 100)
    assert time.process_time() - before < 5
    alpha.say(told(b"two"))
    eventually(lambda: members.heard["bravo"] == [b"one", b"two"])
    assert len(bravo.peers()) == 1


def test_without_certificates_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\[network.lan\] key needs certificate, key and ca of \[tls\]"):
        MemberSealing(Config(network=LAN), "lan", bytes(16))
