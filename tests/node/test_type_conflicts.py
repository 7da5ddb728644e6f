"""Types of which nodes have different schemas: seen at each, and settled for all by one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.cli.app import run
from jbi_pubsub.core.errors import TypeConflictError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.node.service import NodeService

from .conftest import NodesOnNetworks, of
from .test_networks import TYPE, Publisher


def _refusal(node: NodeService, figures: Any) -> str:
    """Why a publisher is refused; "": it is not."""
    with PublisherAdapterLight(of(node)) as adapter:
        at = adapter.connect_to_delegate("node", node.name)
        try:
            adapter.register_publisher(at, figures.schema, figures.figure_1)
        except TypeConflictError as exc:
            return str(exc)
    return ""


class OtherFigures:
    """The paper's figures, with a schema that differs in one declaration."""

    def __init__(self, figures: Any) -> None:
        self.figure_1 = figures.figure_1
        self.schema = figures.schema.read_bytes().replace(
            b'name="lat" type="xs:decimal"', b'name="lat" type="xs:float"'
        )
        assert self.schema != figures.schema.read_bytes()


@pytest.fixture
def apart(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> Callable[[], tuple[NodeService, NodeService, Publisher, Publisher]]:
    """apart() starts two nodes at which a type is published by different schemas before they hear each other."""

    def made() -> tuple[NodeService, NodeService, Publisher, Publisher]:
        nodes.cut |= {"alpha", "bravo"}
        alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
        publishers = Publisher(alpha, figures), Publisher(bravo, OtherFigures(figures))
        nodes.cut.clear()
        for node in (alpha, bravo):
            eventually(node.type_conflicts, timeout=20.0)
        return alpha, bravo, *publishers

    return made


@pytest.mark.row("G-177")
def test_a_type_of_one_node_is_used_by_its_name_at_others_also_late_ones(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a node at which a type is published, another one, and one that comes later
    publisher = Publisher(nodes.start("alpha"), figures)
    others = [nodes.start("bravo")]
    eventually(lambda: others[0].status().registrations, timeout=20.0)
    others.append(nodes.start("charlie"))
    eventually(lambda: others[1].status().registrations, timeout=20.0)
    # Expect publishers that name it, and have no schema, to be taken at both
    for node in others:
        with PublisherAdapterLight(of(node)) as adapter:
            at = adapter.connect_to_delegate("node", node.name)
            assert adapter.register_publisher(at, type_name=TYPE, invariants=figures.figure_1)
    publisher.adapter.close()


@pytest.mark.row("G-177")
def test_a_conflict_of_schemas_is_seen_at_each_node_and_settled_for_all_by_one(
    apart: Any, nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    # Given two nodes that have published one type by different schemas while they were apart
    alpha, bravo, first, second = apart()

    def conflicts(*arguments: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        at = ("--at", alpha.delegate.addresses[0])
        assert run(["--no-multicast", "types", "conflicts", *arguments, *at, "--json"]) == 0
        return json.loads(capfd.readouterr().out)

    # When somebody looks, expect both schemas, each with its node, and where they differ
    (told,) = conflicts()
    assert (told["name"], told["version"]) == (TYPE, "1.0")
    assert sorted(each["nodes"] for each in told["schemas"]) == [["alpha"], ["bravo"]]
    assert told["differs"].startswith("lat (")
    # When it is settled at one of them, expect the other to have the same schema in its repository
    assert conflicts("Intel_Imagery", "--use", "alpha") == {"type": f"{TYPE} 1.0", "node": "alpha"}
    eventually(lambda: any(each.is_settled for each in bravo.type_conflicts()[0].schemas), timeout=20.0)
    for node in (alpha, bravo):
        (winner,) = [each for each in node.type_conflicts()[0].schemas if each.is_settled]
        assert winner.nodes == ["alpha"]
    # and whoever registers there by the one that was not chosen to be refused, with who publishes by the other
    assert f"{winner.digest}, not" in (refusal := _refusal(bravo, OtherFigures(figures)))
    assert "published at alpha" in refusal
    # and when what stood by that has ended, the objects of the other node to come
    second.adapter.close()
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        first.publish(1, 1)
        assert subscriber.receive(subscription, timeout=30.0) is not None
    first.adapter.close()


@pytest.mark.row("G-177")
def test_a_node_that_comes_later_hears_what_was_settled(
    apart: Any, nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a conflict that was settled, and everybody who published has gone, also the node where it was
    alpha, bravo, *publishers = apart()
    alpha.settle_type(TypeName(TYPE), "alpha", "anna")
    for each in publishers:
        each.adapter.close()
    for node in (alpha, bravo):
        node.stop(0.0)
    # When that one is started anew, and another one
    nodes.start("alpha")
    charlie = nodes.start("charlie")
    # Expect it to refuse the schema that was not chosen
    eventually(lambda: "in the type repository" in _refusal(charlie, OtherFigures(figures)), timeout=20.0)


def settled(node: NodeService) -> list[list[str]]:
    """Nodes whose schema was chosen, as that one sees it."""
    return [each.nodes for each in node.type_conflicts()[0].schemas if each.is_settled]


def test_of_two_decisions_the_later_one_holds_at_all_nodes(apart: Any, eventually: Callable[..., Any]) -> None:
    # Given two nodes with a conflict, at which somebody decides, each for his own
    alpha, bravo, *publishers = apart()
    alpha.settle_type(TypeName(TYPE), "alpha", "anna")
    bravo.settle_type(TypeName(TYPE), "bravo", "ben")
    # Expect both to have what was decided last
    eventually(lambda: settled(alpha) == settled(bravo) == [["bravo"]], timeout=20.0)
    for each in publishers:
        each.adapter.close()


def test_what_was_decided_while_a_clock_was_days_ahead_gives_way_to_what_is_decided_when_it_is_right(
    apart: Any, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given two nodes with a conflict, which was decided at one whose clock is two days ahead
    alpha, bravo, *publishers = apart()
    conflicts = alpha._networks.conflicts
    conflicts._wall = lambda: time.time() + 2 * 86_400.0
    alpha.settle_type(TypeName(TYPE), "alpha", "anna")
    eventually(lambda: "was decided in the future" in caplog.text)
    assert (settled(alpha), settled(bravo)) == ([["alpha"]], [])
    # and another one at the other, which that does not get, and tells
    bravo.settle_type(TypeName(TYPE), "bravo", "ben")
    eventually(lambda: "a later decision has that of node alpha" in caplog.text)
    # When the clock is right, and it is decided once more; Expect that at both
    conflicts._wall = time.time
    alpha.settle_type(TypeName(TYPE), "bravo", "anna")
    eventually(lambda: settled(alpha) == settled(bravo) == [["bravo"]], timeout=20.0)
    for each in publishers:
        each.adapter.close()


def test_what_means_the_same_is_no_conflict(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given nodes that publish by schemas that differ in a comment
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    same = OtherFigures(figures)
    same.schema = figures.schema.read_bytes().replace(b"</xs:schema>", b"<!-- ours --></xs:schema>")
    publishers = Publisher(alpha, figures), Publisher(bravo, same)
    eventually(lambda: alpha.networks().published == bravo.networks().published == 1, timeout=20.0)
    # Expect none, and nobody to be able to settle it
    assert alpha.type_conflicts() == []
    with pytest.raises(LookupError, match="no different schemas"):
        alpha.settle_type(TypeName(TYPE), "bravo", "anna")
    for each in publishers:
        each.adapter.close()
