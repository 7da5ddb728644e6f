"""Nodes that are all alike: islands that become one, and nodes of which most are killed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.node.service import NodeService

from .conftest import NodesOnNetworks, of
from .test_networks import TYPE, Publisher


def _found(node: NodeService) -> list[bytes]:
    """Payloads of all that a query at a node finds."""
    with SubscriberAdapter(of(node)) as subscriber:
        return sorted(bytes(each.payload) for each in subscriber.query(TYPE, timeout=20.0))


@pytest.mark.row("G-05", "G-103", "G-125")
def test_two_islands_that_kept_what_they_said_share_it_when_a_node_connects_them(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two networks of three nodes each, one of which has an archive, that know nothing of each other
    islands = [
        [nodes.start(f"{name}-{number}", [name], archive=number == 0) for number in range(3)]
        for name in ("west", "east")
    ]
    for at, island in enumerate(islands):
        publisher = Publisher(island[0], figures, persist=True)
        publisher.publish(10 * at + 1, 10 * at + 3)
        publisher.adapter.close()
        eventually(lambda island=island: len(_found(island[2])) == 3, timeout=20.0)
    assert [_found(island[1]) for island in islands] == [[b"1", b"2", b"3"], [b"11", b"12", b"13"]]
    subscribers = [SubscriberAdapter(of(island[2])) for island in islands]
    subscriptions = [each.register_subscriber(type_name=TYPE) for each in subscribers]
    # When a node comes that is on both
    nodes.start("between", ["west", "east"])
    eventually(lambda: all(len(each.networks().peers) == 6 for island in islands for each in island), timeout=20.0)
    # Expect queries to find what both of them kept, and objects to come from one to the other
    everything = [b"1", b"11", b"12", b"13", b"2", b"3"]
    for island in islands:
        eventually(lambda island=island: _found(island[2]) == everything, timeout=20.0)
    publishers = [Publisher(island[1], figures) for island in islands]
    eventually(lambda: all(each[2].networks().published >= 1 for each in islands), timeout=20.0)
    for subscriber, subscription in zip(subscribers, subscriptions, strict=True):
        subscriber.wait_matched(subscription, timeout=30.0)
    for at, each in enumerate(publishers):
        each.publish(100 + at, 100 + at)
    for subscriber, subscription in zip(subscribers, subscriptions, strict=True):
        came: set[bytes] = set()
        while not came >= {b"100", b"101"}:  # besides what was said before, and lives yet
            came.add(bytes(subscriber.receive(subscription, timeout=30.0).payload))
    for adapter in (*subscribers, *(each.adapter for each in publishers)):
        adapter.close()


@pytest.mark.row("G-04")
@pytest.mark.parametrize("survivor", [0, 4])
def test_of_five_nodes_any_one_goes_on_when_four_are_gone(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], survivor: int
) -> None:
    # Given five nodes that are alike and have heard each other, and an object that one of them keeps
    made = [nodes.start(f"node-{number}", archive=number == survivor) for number in range(5)]
    eventually(lambda: all(len(each.networks().peers) == 4 for each in made), timeout=20.0)
    last = made[survivor]
    publisher = Publisher(last, figures, persist=True)
    publisher.publish(1, 1)
    # When four of them fall silent at once, and are gone
    gone = [each for each in made if each is not last]
    nodes.cut.update(each.name for each in gone)
    for each in gone:
        each.stop(0.0)
    eventually(lambda: not last.networks().peers, timeout=20.0)
    # Expect the last one to do all: publish, subscribe, keep, and answer
    with SubscriberAdapter(of(last)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(2, 2)
        assert bytes(subscriber.receive(subscription, timeout=30.0).payload) == b"2"
    assert _found(last) == [b"1", b"2"]
    publisher.adapter.close()
