"""Modes and attributes between nodes: what each message goes by, and what travels of a registration."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
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


def _modes(nodes: NodesOnNetworks, name: str) -> dict[DatagramKind, set[DatagramMode]]:
    """Modes of what comes to a node from now on, by kind."""
    found: dict[DatagramKind, set[DatagramMode]] = defaultdict(set)
    for link in nodes.links[name]:
        receive = link.receive

        def noted(sock: Any, receive: Callable[..., list[bytes]] = receive) -> list[bytes]:
            came = receive(sock)
            for each in map(read, came):
                if isinstance(each, Datagram):
                    found[each.kind].add(each.mode)
            return came

        link.receive = noted  # type: ignore[assignment,method-assign]
    return found


@pytest.mark.row("G-91")
def test_each_kind_of_message_goes_in_its_mode(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a node that keeps nothing, two with archives, and one that hears all, on a network that loses so much that
    # somebody has to ask again: 80 objects at once are few datagrams
    nodes.loss = 0.15
    nodes.start("listener")
    found = _modes(nodes, "listener")
    alpha = nodes.start("alpha", persist_elsewhere=True)
    keepers = [nodes.start(name, archive=True, offer_seconds=0.1) for name in ("bravo", "charlie")]
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
        found = _modes(nodes, "bravo")
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
