"""Modes and attributes between nodes: what each message goes by, and what travels of a registration."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.bridge.platform import BridgedRegistration
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.node_sections import NodeSection
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, read
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.peers import NodePeer
from jbi_pubsub.node.bodies import SequenceBody, decoded_body
from jbi_pubsub.node.infosphere import Infosphere
from jbi_pubsub.protocol.entries import TypesEntry
from jbi_pubsub.protocol.sending import Sending

from .conftest import NodesOnNetworks, of
from .test_keeping_elsewhere import _kept
from .test_networks import TYPE, Publisher

UNRELIABLE, RELIABLE, DURABLE = DatagramMode
ALPHA = b"a" * 16


def _modes(nodes: NodesOnNetworks, *names: str) -> dict[DatagramKind, set[DatagramMode]]:
    """Modes of what nodes send from now on, by kind."""
    found: dict[DatagramKind, set[DatagramMode]] = defaultdict(set)
    for link in itertools.chain.from_iterable(nodes.links[name] for name in names):
        send = link.send

        def noted(datagrams: Sequence[bytes], send: Callable[[Sequence[bytes]], int] = send) -> int:
            for each in map(read, datagrams):
                if isinstance(each, Datagram):
                    found[each.kind].add(each.mode)
            return send(datagrams)

        link.send = noted  # type: ignore[method-assign]
    return found


@pytest.mark.row("G-91")
def test_each_kind_of_message_goes_in_its_mode(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a node that keeps nothing, and two with archives, on a network that loses so much that somebody has to ask
    # again: 80 objects at once are few datagrams
    nodes.loss = 0.15
    alpha = nodes.start("alpha", persist_elsewhere=True)
    keepers = [nodes.start(name, archive=True, offer_seconds=0.1) for name in ("bravo", "charlie")]
    found = _modes(nodes, "alpha", "bravo", "charlie")
    # When something is published, both ways, kept elsewhere, and asked for
    publishers = [
        Publisher(alpha, figures, persist=True),
        Publisher(alpha, figures, sending=Sending(mode="unreliable")),
    ]
    for each in publishers:
        each.publish(1, 40)
    eventually(lambda: all(_kept(each) == 40 for each in keepers), timeout=30.0)
    with SubscriberAdapter(of(alpha)) as subscriber:
        assert list(subscriber.query(TYPE, timeout=20.0))
    for each in publishers:
        each.adapter.close()
    # Expect the modes of table 5; what is decided on who keeps is durable, as who comes back later is to hear it
    table = {
        DatagramKind.REQUEST: {UNRELIABLE},
        DatagramKind.SEQUENCE: {DURABLE},
        DatagramKind.PUBLICATION: {UNRELIABLE, RELIABLE},
        DatagramKind.ASSISTANCE: {DURABLE},
        DatagramKind.OFFER: {RELIABLE},
        DatagramKind.ACCEPTED: {DURABLE},
        DatagramKind.QUERY: {RELIABLE},
        DatagramKind.RESULT: {RELIABLE},
        DatagramKind.ANNOUNCEMENT: {RELIABLE},
    }
    eventually(lambda: found.keys() >= table.keys(), timeout=20.0, what=lambda: dict(found))
    assert {kind: found[kind] for kind in table} == table


PAYLOAD = bytes(4_000)


@pytest.mark.row("G-152", "G-153")
@pytest.mark.parametrize(
    ("mode", "at_origin", "at_other"), [("reliable", True, True), ("sender", True, False), ("connected", False, False)]
)
def test_objects_are_held_by_those_who_are_to_send_them_again(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], mode: Any, at_origin: bool, at_other: bool
) -> None:
    # Given two nodes on a network that loses, and a subscriber at the second
    nodes.loss = 0.1
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    publisher = Publisher(alpha, figures, sending=Sending(mode))
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        # When objects are published at the first, expect all of them there
        for _ in range(50):
            publisher.adapter.publish(publisher.registration, figures.figure_1, PAYLOAD)
        for _ in range(50):
            assert len(subscriber.receive(subscription, timeout=30.0).payload) == len(PAYLOAD)

    # and that they are held where the mode says
    def held() -> list[bool]:
        return [each.networks().cached_bytes > 50 * len(PAYLOAD) for each in (alpha, bravo)]

    eventually(lambda: held() == [at_origin, at_other], timeout=20.0, what=held)
    publisher.adapter.close()


@pytest.mark.row("G-157")
def test_a_node_with_little_memory_gives_what_is_on_its_disk(
    nodes: NodesOnNetworks, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a node that holds more on its disk than in its memory, and one with a subscriber, which hear nobody
    nodes.cut.update(("alpha", "bravo"))
    alpha = nodes.start("alpha", cache_bytes=20 * len(PAYLOAD), cache_disk=1_000 * len(PAYLOAD))
    bravo = nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        for number in range(200):
            publisher.adapter.publish(publisher.registration, figures.figure_1, b"%04d" % number + PAYLOAD)
        eventually(lambda: alpha.networks().disk_bytes > 150 * len(PAYLOAD), timeout=20.0)
        # When they hear each other, expect all objects, in order
        nodes.cut.clear()
        came = [bytes(subscriber.receive(subscription, timeout=30.0).payload[:4]) for _ in range(200)]
        assert came == [b"%04d" % number for number in range(200)]
    publisher.adapter.close()
    # When it ends, expect nothing of them on the disk
    alpha.stop(0.0)
    assert not list((tmp_path / "alpha").glob("blocks*"))


@pytest.mark.row("G-149")
def test_what_a_subscriber_demands_reliably_comes_so_whatever_its_publisher_says(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a network that loses much, and a publisher whose objects are not sent again
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    publisher = Publisher(alpha, figures, sending=Sending(mode="unreliable"))
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE, demands=("reliable",))
        subscriber.wait_matched(subscription, timeout=30.0)
        # When somebody at another node demands that they are
        eventually(lambda: alpha._networks.infosphere._remote.demand(TypeName(TYPE), "reliable"), timeout=20.0)  # type: ignore[union-attr]
        found = _modes(nodes, "alpha")
        nodes.loss = 0.3
        publisher.publish(1, 60)
        # Expect all of them there, in order
        came = [int(bytes(subscriber.receive(subscription, timeout=30.0).payload)) for _ in range(60)]
        assert came == list(range(1, 61))
        assert found[DatagramKind.PUBLICATION] == {RELIABLE}
    publisher.adapter.close()


@pytest.mark.row("G-196")
def test_an_object_comes_once_from_nodes_that_name_their_messages_by_different_hashes(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given objects that two nodes keep, with a hash of their own each, and another one asks
    alpha = nodes.start("alpha", persist_elsewhere=True)
    keepers = [
        nodes.start(name, archive=True, offer_seconds=0.1, hash=hash_)
        for name, hash_ in (("bravo", "sha256"), ("charlie", "blake2b"))
    ]
    publisher = Publisher(alpha, figures, persist=True)
    publisher.publish(1, 10)
    eventually(lambda: all(_kept(each) == 10 for each in keepers), timeout=30.0)
    # Expect each of them once
    with SubscriberAdapter(of(alpha)) as subscriber:
        found = [each.object_id for each in subscriber.query(TYPE, timeout=20.0)]
    assert len(found) == len(set(found)) == 10
    publisher.adapter.close()


class _Wire:
    """A network on which a node speaks, and another one is heard."""

    def __init__(self) -> None:
        self.said: list[NodeMessage] = []

    def say(self, message: NodeMessage, timeout: float = 0.0) -> None:  # noqa: ARG002  # the protocol's
        self.said.append(message)

    def peers(self) -> dict[bytes, NodePeer]:
        return {ALPHA: NodePeer("alpha", (), (), 1, 0, 0.0, 0.0)}

    def settled(self, origin: bytes, epoch: int) -> int:  # noqa: ARG002  # the protocol's
        return 0


STAY = {"bridge", "is_local", "passes", "has_left", "at", "first", "is_sparse"}
"""Said by whoever shows a registration, of his side of it; what is local never leaves."""


@pytest.mark.row("G-156")
def test_all_attributes_of_a_registration_travel() -> None:
    # Given a registration with every attribute that there is
    key = SigningKey(b"k" * 32, bytes(32), (b"c",), b"s", b"c")
    said = BridgedRegistration(
        "r", TypeName("x", "2.1"), (TypesEntry().rep(),), key, ("far",),
        expiration=7.5, is_persistent=True, importance=4, sending=Sending(mode="durable", key="//unit"),
    )  # fmt: skip
    usual = BridgedRegistration("", TypeName(""))
    names = {each.name for each in dataclasses.fields(said)}
    assert {name for name in names if getattr(said, name) == getattr(usual, name)} == STAY
    # When a node says it to another one
    one, other = _Wire(), _Wire()
    near, far = (
        Infosphere(lambda wire=wire: wire, NodeSection(persist_elsewhere=True), "bridge")  # type: ignore[misc]
        for wire in (one, other)
    )
    near.register(said, said.type, SchemaBundle("x", (("x", b"<x/>"),)), said.via, validate=True)
    for message in one.said:
        far.deliver(message._replace(origin=ALPHA, epoch=1))
    # Expect all of it there; that it is to be kept is told to those who keep it
    (shown,) = far.published()
    for name in names - STAY - {"is_persistent"}:
        assert getattr(shown, name) == getattr(said, name), name
    (body,) = [found for each in one.said if isinstance(found := decoded_body(each.body), SequenceBody)]
    assert body.is_persistent
    assert far.remote("r") == body


def test_the_last_objects_of_a_registration_that_never_come_are_told_as_lost(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given nodes whose objects live half a second, and two of a publisher that have come at the other one
    monkeypatch.setattr("jbi_pubsub.node.remote.ENDED_SECONDS", 0.5)
    times = {"object_seconds": 0.5, "node_timeout": 30.0, "sequence_timeout": 30.0}
    alpha, bravo = (nodes.start(name, **times) for name in ("alpha", "bravo"))
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 2)
        assert [int(bytes(subscriber.receive(subscription, timeout=30.0).payload)) for _ in range(2)] == [1, 2]
        # When three more do not reach that one as long as they live, and the publisher ends
        nodes.cut = {"bravo"}
        for _ in range(3):
            publisher.adapter.publish(publisher.registration, figures.figure_1, PAYLOAD)
        publisher.adapter.close()
        eventually(lambda: not alpha.networks().own)  # all of it is said by then
        eventually(lambda: alpha.networks().cached_bytes < len(PAYLOAD))
        nodes.cut = set()
        # Expect the subscriber told that they are lost: no rule has left them out
        eventually(lambda: subscriber.losses(subscription), timeout=20.0)
        assert subscriber.losses(subscription) == {"sequence_gap": 3}
