"""Nodes of which one keeps nothing: others keep for it what it publishes, and forget what is deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.cli.app import run
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.services import HistoryProxy

from .conftest import NodesOnNetworks, of
from .test_networks import TYPE, Publisher

pytestmark = pytest.mark.processes
SOON: dict[str, Any] = {"offer_seconds": 0.1, "archive": True}


def _ids(node: NodeService, **asked: Any) -> list[str]:
    """Ids of all that a query at a node finds."""
    with SubscriberAdapter(of(node)) as subscriber:
        return [each.object_id for each in subscriber.query(TYPE, timeout=20.0, **asked)]


def _server(node: NodeService) -> DisseminationServer:
    assert isinstance(node.delegate, DisseminationServer)
    return node.delegate


def _own(node: NodeService) -> list[str]:
    """Ids of all that is in a node's own archive."""
    archive = _server(node).delegate.registrations.archive
    assert archive is not None
    scopes = tuple({Scope(source.type) for source in archive.keeping.sources() if source.type.name == TYPE})
    found = archive.answers(HistoryQuery(scopes=scopes)) if scopes else ()
    return [Parcel.received(each.data).head.object_id for each in found]


def _delete(node: NodeService, ids: list[str]) -> None:
    """Delete objects, as an administrator does."""
    proxy = HistoryProxy(_server(node).endpoints.ref("", ()), Security(), timeout=20.0)
    assert proxy.delete(QueryRequest(object_ids=tuple(ids)), 20.0).count == len(ids)
    proxy.close()


def _kept(node: NodeService) -> int:
    """Number of objects in a node's own archive."""
    return len(_own(node))


@pytest.mark.row("G-67", "G-98", "X-07")
@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_what_a_node_publishes_that_keeps_nothing_is_found_when_it_is_gone(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], loss: float
) -> None:
    # Given a node without an archive, one that volunteers, and a third
    nodes.loss = loss
    alpha = nodes.start("alpha", persist_elsewhere=True)
    bravo = nodes.start("bravo", **SOON)
    charlie = nodes.start("charlie")
    eventually(lambda: len(alpha.networks().peers) == 2, timeout=20.0)
    # When objects are published at the first, from the first moment on, and others of the type that nobody wants kept
    publisher, other = Publisher(alpha, figures, persist=True), Publisher(alpha, figures)
    other.publish(1, 10)
    publisher.publish(1, 20)
    eventually(lambda: _kept(bravo) == 20, timeout=20.0)
    publisher.publish(21, 40)
    eventually(lambda: _kept(bravo) == 40, timeout=20.0)
    # Expect both to say so
    assert (alpha.networks().lacking, bravo.networks().kept) == (1, 1), "of five that are wanted there is one"
    assert [each.roles for each in alpha.networks().peers if each.name == "bravo"] == [["answers", "stores"]]
    # And a query at any node to find these alone: at their own, and elsewhere
    assert len(set(_ids(alpha))) == len(_ids(charlie)) == 40
    # And when their own is gone
    for each in (publisher, other):
        each.adapter.close()
    alpha.stop(0.0)
    found = _ids(charlie, predicate="//lat>33.2")
    assert len(set(found)) == len(found) == 40


@pytest.mark.row("G-201")
def test_an_object_published_just_before_its_publisher_leaves_is_kept(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher at a node without an archive, and two volunteers, on a network that loses much
    nodes.loss = 0.3
    alpha = nodes.start("alpha", persist_elsewhere=True)
    others = [nodes.start(name, **SOON) for name in ("bravo", "charlie")]
    publisher = Publisher(alpha, figures, persist=True)
    publisher.publish(1, 5)
    eventually(lambda: all(_kept(each) == 5 for each in others), timeout=30.0)
    # When it publishes, and leaves at once
    publisher.publish(6, 10)
    publisher.adapter.close()
    # Expect all of it at both
    eventually(lambda: all(_kept(each) == 10 for each in others), timeout=30.0)


@pytest.mark.row("G-99")
def test_a_volunteer_that_comes_in_for_another_fetches_what_there_is(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two volunteers of which one is wanted, and what that keeps
    alpha = nodes.start("alpha", persist_elsewhere=True, volunteers=2)
    bravo, charlie = (nodes.start(name, **SOON) for name in ("bravo", "charlie"))
    publisher = Publisher(alpha, figures, persist=True)
    publisher.publish(1, 10)
    eventually(lambda: _kept(bravo) == _kept(charlie) == 10, timeout=20.0)
    # When one is gone, and another one is there
    bravo.stop(0.0)
    delta = nodes.start("delta", **SOON)
    # Expect it to have all
    eventually(lambda: _kept(delta) == 10, timeout=30.0)
    publisher.publish(11, 12)
    eventually(lambda: _kept(delta) == _kept(charlie) == 12, timeout=20.0)
    publisher.adapter.close()


@pytest.mark.row("G-172")
def test_what_is_deleted_at_one_node_is_deleted_at_all_also_at_one_that_was_away(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given three nodes that keep the same
    alpha = nodes.start("alpha", persist_elsewhere=True, **SOON)
    bravo, charlie = (nodes.start(name, **SOON) for name in ("bravo", "charlie"))
    publisher = Publisher(alpha, figures, persist=True)
    publisher.publish(1, 6)
    eventually(lambda: all(_kept(each) == 6 for each in (alpha, bravo, charlie)), timeout=20.0)
    # When one is cut off, and objects are deleted at another
    nodes.cut.add("charlie")
    every = sorted(_own(alpha))
    _delete(alpha, every[:2])
    # Expect them gone there, and at the one that was cut off as soon as it is back
    eventually(lambda: sorted(_own(bravo)) == every[2:], timeout=20.0)
    assert sorted(_own(charlie)) == every
    nodes.cut.clear()
    eventually(lambda: sorted(_own(charlie)) == every[2:], timeout=20.0)
    assert sorted(_ids(charlie)) == every[2:]
    publisher.adapter.close()


def test_an_id_that_is_not_at_the_archive_that_is_asked_is_deleted_where_it_is(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    # Given two nodes with archives, and objects at one of them
    alpha, bravo = nodes.start("alpha", archive=True), nodes.start("bravo", archive=True)
    eventually(lambda: len(alpha.networks().peers) == 1, timeout=20.0)
    publisher = Publisher(bravo, figures, persist=True)
    publisher.publish(1, 3)
    eventually(lambda: _kept(bravo) == 3, timeout=20.0)
    every = sorted(_own(bravo))
    capfd.readouterr()
    # When the command names one of them at the other node
    assert alpha.lookup is not None
    flags = ("--no-multicast", "--locator", str(alpha.lookup.address))
    assert run([*flags, "archive", "delete", every[0], "--yes"]) == 0
    # Expect it gone, and the command to say that others are told
    assert capfd.readouterr().out == "0 objects deleted at 1 archive; the other nodes are told\n"
    eventually(lambda: sorted(_own(bravo)) == every[1:], timeout=20.0)
    publisher.adapter.close()


@pytest.mark.row("G-206")
def test_what_a_subscriber_demands_to_be_kept_is_kept_whatever_its_publisher_says(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher that does not say, at a node without an archive where nothing is sent that nobody wants
    alpha = nodes.start("alpha", persist_elsewhere=True, silent_receivers=False)
    bravo, charlie = nodes.start("bravo", **SOON), nodes.start("charlie")
    publisher = Publisher(alpha, figures)
    eventually(lambda: bravo.networks().published == 1, timeout=20.0)
    # When a subscriber elsewhere demands it
    with SubscriberAdapter(of(charlie)) as subscriber:
        subscriber.register_subscriber(type_name=TYPE, demands=("persist",))
        eventually(lambda: bravo.networks().kept == 1, timeout=20.0)
        publisher.publish(1, 3)
        # Expect a third node to keep it
        eventually(lambda: _kept(bravo) == 3, timeout=20.0)
    publisher.adapter.close()


def test_without_an_archive_nothing_is_taken_that_nobody_is_asked_to_keep(nodes: NodesOnNetworks, figures: Any) -> None:
    alpha = nodes.start("alpha")
    with pytest.raises(ConfigurationError, match="needs an archive"):
        Publisher(alpha, figures, persist=True)


def test_a_deletion_comes_to_who_was_away_though_the_node_where_it_was_made_is_gone(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given three nodes that keep the same, of which one is cut off
    alpha = nodes.start("alpha", persist_elsewhere=True, **SOON)
    bravo, charlie = (nodes.start(name, **SOON) for name in ("bravo", "charlie"))
    publisher = Publisher(alpha, figures, persist=True)
    publisher.publish(1, 4)
    eventually(lambda: all(_kept(each) == 4 for each in (alpha, bravo, charlie)), timeout=20.0)
    nodes.cut.add("charlie")
    # When objects are deleted at another, which leaves
    every = sorted(_own(alpha))
    _delete(alpha, every[:2])
    eventually(lambda: sorted(_own(bravo)) == every[2:], timeout=20.0)
    publisher.adapter.close()
    alpha.stop(0.0)
    eventually(lambda: not {"alpha"} & {each.name for each in bravo.networks().peers}, timeout=20.0)
    # Expect the third to tell it
    nodes.cut.clear()
    eventually(lambda: sorted(_own(charlie)) == every[2:], timeout=20.0)


def test_a_volunteer_that_is_back_has_what_was_published_while_it_was_away(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two volunteers, and nobody who subscribes
    alpha = nodes.start("alpha", persist_elsewhere=True, object_seconds=2.0, silent_receivers=False)
    bravo, charlie = (nodes.start(name, **SOON) for name in ("bravo", "charlie"))
    publisher = Publisher(alpha, figures, persist=True)
    publisher.publish(1, 5)
    eventually(lambda: _kept(bravo) == _kept(charlie) == 5, timeout=20.0)
    # When one is stopped, and started again after what was published meanwhile has expired
    bravo.stop(0.0)
    publisher.publish(6, 10)
    eventually(lambda: _kept(charlie) == 10, timeout=20.0)
    time.sleep(2.5)
    bravo = nodes.start("bravo", **SOON)
    # Expect it to keep all, from the other one
    eventually(lambda: _kept(bravo) == 10, timeout=20.0)
    publisher.publish(11, 11)
    eventually(lambda: _kept(bravo) == _kept(charlie) == 11, timeout=20.0)
    publisher.adapter.close()
