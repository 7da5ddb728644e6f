"""Networks of different areas: what is wanted goes from one to the other, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.network.datagram import Datagram, DatagramKind, read

from .conftest import NodesOnNetworks, of
from .test_networks import TYPE, Publisher


def heard(nodes: NodesOnNetworks, name: str) -> list[Datagram]:
    """Datagrams that come to a node, from now on."""
    found: list[Datagram] = []
    for link in nodes.links[name]:
        receive = link.receive

        def receiving(sock: Any, receive: Callable[..., Any] = receive) -> Any:
            came = receive(sock)
            found.extend(each for data in came if not isinstance(each := read(bytes(data)), str))
            return came

        link.receive = receiving  # type: ignore[method-assign]  # a test looks on
    return found


@pytest.mark.row("G-167")
def test_between_areas_goes_what_is_wanted_and_no_word_of_a_node(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two areas with two nodes each, of which one is in both
    nodes.areas = {"near": "A", "far": "B"}
    alpha = nodes.start("alpha", ["near"], silent_receivers=False)
    border = nodes.start("border", ["near", "far"])
    delta = nodes.start("delta", ["far"], silent_receivers=False)
    came = {name: heard(nodes, name) for name in ("alpha", "delta")}
    publisher = Publisher(alpha, figures)
    eventually(lambda: delta.networks().published == 1, timeout=20.0)
    numbers = iter(range(1, 10_000))

    def first_of(subscriber: SubscriberAdapter, subscription: Any) -> int:
        def comes() -> Any:
            publisher.publish(number := next(numbers), number)
            return subscriber.receive(subscription, timeout=0.2)

        return int(bytes(eventually(comes, timeout=30.0).payload))

    # When objects come to a subscriber at the node between, and nobody beyond wants them; expect that none goes there
    with SubscriberAdapter(of(border)) as subscriber:
        first_of(subscriber, subscriber.register_subscriber(type_name=TYPE))
        assert not [each for each in came["delta"] if each.kind == DatagramKind.PUBLICATION]
    # When somebody there wants them, expect all from some on, once, in order
    with SubscriberAdapter(of(delta)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        first = first_of(subscriber, subscription)
        last = next(numbers)
        publisher.publish(last, last)
        more = [int(bytes(subscriber.receive(subscription, timeout=30.0).payload)) for _ in range(first, last)]
        assert more == list(range(first + 1, last + 1))
    # and in all that was heard no word of the other area's nodes: the one in both has said it
    for node, other in ((alpha, delta), (delta, alpha)):
        assert {each.origin.hex() for each in came[node.name]} <= {node.identity.id, border.identity.id}
        assert other.identity.id not in {each.id for each in node.networks().peers}
    assert {each.network: each.name for each in border.networks().peers} == {"near": "alpha", "far": "delta"}
    publisher.adapter.close()
