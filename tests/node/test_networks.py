"""Nodes that share networks: what is published at one comes at the others, and what is asked is answered by all."""

from __future__ import annotations

import shutil
import threading
import urllib.request
from collections.abc import Callable
from os import urandom
from pathlib import Path
from typing import Any

import msgspec
import pytest
from certificates import Authority

from jbi_pubsub import InfoObject, PublisherAdapterLight, SubscriberAdapter, Wish
from jbi_pubsub.core import ticker
from jbi_pubsub.core.config import Config, MetricsSection, QosSection
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.node_sections import NetworkSection
from jbi_pubsub.core.sealing import SealFault
from jbi_pubsub.network import message
from jbi_pubsub.network.links.link import DatagramLink
from jbi_pubsub.network.links.opening import opened
from jbi_pubsub.node import own
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.protocol.sending import Sending
from jbi_pubsub.protocol.status.networks import PEERS_TOLD, NetworksStatus, PeerStatus

from .conftest import NodesOnNetworks, of

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class Publisher:
    """A publisher of imagery at a node."""

    def __init__(self, node: NodeService, figures: Any, **given: Any) -> None:
        self._figures = figures
        self.adapter = PublisherAdapterLight(of(node))
        try:
            at = self.adapter.connect_to_delegate("node", node.name)
            self.registration = self.adapter.register_publisher(at, figures.schema, figures.figure_1, **given)
        except BaseException:
            self.adapter.close()
            raise

    def publish(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.adapter.publish(self.registration, self._figures.figure_1, b"%d" % number)


def test_nodes_share_what_is_published_however_they_are_called(nodes: NodesOnNetworks, figures: Any) -> None:
    # Given two nodes of one name, which has characters that no platform's name has
    one, other = (nodes.start(each, called="Rome, main") for each in ("one", "other"))
    publisher = Publisher(one, figures)
    with SubscriberAdapter(of(other)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        # When objects are published at the one; Expect them at the other
        publisher.publish(1, 10)
        assert _numbers(subscriber, subscription, 10) == list(range(1, 11))
    publisher.adapter.close()


def _numbers(subscriber: SubscriberAdapter, subscription: Any, count: int) -> list[int]:
    return [int(bytes(subscriber.receive(subscription, timeout=30.0).payload)) for _ in range(count)]


@pytest.mark.row("G-173")
@pytest.mark.parametrize("loss", [0.0, 0.2])
def test_objects_of_a_node_come_at_all_others_once_and_in_order(
    nodes: NodesOnNetworks, figures: Any, loss: float
) -> None:
    # Given three nodes on a network that loses, and subscribers with a predicate at two of them
    nodes.loss = loss
    alpha, *others = [nodes.start(name) for name in ("alpha", "bravo", "charlie")]
    publisher = Publisher(alpha, figures)
    subscribers = [SubscriberAdapter(of(each)) for each in others]
    subscriptions = [each.register_subscriber(type_name=TYPE, predicate="//lat>33.2") for each in subscribers]
    for subscriber, subscription in zip(subscribers, subscriptions, strict=True):
        subscriber.wait_matched(subscription, timeout=30.0)
    # When objects are published at the third
    publisher.publish(1, 100)
    # Expect each once, in order, with its id and the way that it came
    for subscriber, subscription in zip(subscribers, subscriptions, strict=True):
        assert _numbers(subscriber, subscription, 100) == list(range(1, 101))
    publisher.publish(101, 101)
    last = subscribers[0].receive(subscriptions[0], timeout=30.0)
    assert last.platform.via == (f"node-{alpha.identity.id[:8]}", "infosphere")
    assert last.object_id.startswith(publisher.registration.removeprefix("registration-"))
    for each in (*subscribers, publisher.adapter):
        each.close()


@pytest.mark.row("G-35")
def test_a_relay_between_two_networks_passes_on_what_it_hears(nodes: NodesOnNetworks, figures: Any) -> None:
    # Given two nodes that share no network, and one that is on both, at 10 % loss
    nodes.loss = 0.1
    alpha, _, charlie = (
        nodes.start("alpha", ["near"]), nodes.start("bravo", ["near", "far"]), nodes.start("charlie", ["far"])
    )  # fmt: skip
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(charlie)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 50)
        assert _numbers(subscriber, subscription, 50) == list(range(1, 51))
    publisher.adapter.close()


@pytest.mark.row("G-75")
def test_a_query_is_answered_by_the_archives_of_all_nodes(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two nodes with archives, in which something is, and one without
    keepers = [nodes.start(name, archive=True) for name in ("alpha", "bravo")]
    charlie = nodes.start("charlie")
    publishers = [Publisher(each, figures, persist=True) for each in keepers]
    for publisher in publishers:
        publisher.publish(1, 20)
    # When the one without is asked
    with SubscriberAdapter(of(charlie)) as subscriber:

        def found() -> list[InfoObject]:
            return list(subscriber.query(TYPE, predicate="//lat>33.2", timeout=20.0))

        eventually(lambda: len(found()) == 40, timeout=20.0)
        answers = found()
    # Expect the objects of both, each once
    assert len({each.object_id for each in answers}) == len(answers) == 40
    for publisher in publishers:
        publisher.adapter.close()


@pytest.mark.row("G-07")
def test_what_is_said_while_a_node_is_cut_off_comes_when_it_is_back(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two nodes, and a subscriber that has had an object
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 1)
        assert _numbers(subscriber, subscription, 1) == [1]
        # When the network falls apart, and each node believes that the other has left
        nodes.cut |= {"alpha", "bravo"}
        publisher.publish(2, 10)
        eventually(lambda: not bravo.networks().peers, timeout=10.0)
        # Expect all that lives still, in order, once it is one again
        nodes.cut.clear()
        assert _numbers(subscriber, subscription, 9) == list(range(2, 11))
    publisher.adapter.close()


@pytest.mark.row("G-56")
def test_a_node_that_is_gone_takes_its_registrations_along_and_brings_new_ones(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two nodes
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    eventually(lambda: bravo.networks().published == 1, timeout=20.0)
    # When one is stopped, and started again
    publisher.adapter.close()
    alpha.stop(0.0)
    alpha = nodes.start("alpha")
    again = Publisher(alpha, figures)
    # Expect its new registration alone, and objects of it
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        again.publish(1, 3)
        assert _numbers(subscriber, subscription, 3) == [1, 2, 3]
        eventually(lambda: bravo.networks().published == 1, timeout=40.0)
    again.adapter.close()


def test_objects_that_are_for_those_who_are_here_stay_here(nodes: NodesOnNetworks, figures: Any) -> None:
    # Given two nodes, and a publisher of local objects beside one of objects for all
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    local, other = Publisher(alpha, figures, local=True), Publisher(alpha, figures)
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        local.publish(1, 5)
        other.publish(6, 6)
        # Expect what is for all, and nothing else known there
        assert _numbers(subscriber, subscription, 1) == [6]
        assert bravo.networks().published == 1
    for each in (local, other):
        each.adapter.close()


def test_a_network_says_who_is_there_and_what_went_over_it(
    nodes: NodesOnNetworks, eventually: Callable[..., Any]
) -> None:
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    # Expect each to hear the other, and datagrams counted both ways
    peers = eventually(lambda: alpha.networks().peers, timeout=10.0)
    assert [(each.name, each.id, each.network) for each in peers] == [("bravo", bravo.identity.id, "lab")]
    eventually(lambda: alpha.networks().links[0].sent and alpha.networks().links[0].received, timeout=10.0)


def test_who_looks_at_a_node_sees_its_networks_in_its_status_and_its_metrics(
    nodes: NodesOnNetworks, fixtures: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two nodes, one with a metrics port and a publisher
    nodes.config = msgspec.structs.replace(nodes.config, metrics=MetricsSection(port=0))
    alpha = nodes.start("alpha")
    nodes.config = fixtures.test_config()
    bravo = nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    eventually(lambda: alpha.networks().peers and alpha.networks().cached_bytes, timeout=20.0)
    # Expect the same in the status of its delegate, which the console and `jbi top` read
    overview = alpha.delegate.overview()
    assert [(each.name, each.neighbours) for each in overview.networks.links] == [("lab", 1)]
    assert [(each.name, each.id) for each in overview.networks.peers] == [("bravo", bravo.identity.id)]
    assert (overview.networks.nodes, overview.networks.twin) == (1, False)
    assert overview.networks.cached_bytes > 0
    # and in what Prometheus is told
    samples = {(each.name, dict(each.labels).get("network")): each for each in alpha.delegate.samples()}
    assert samples["network_sent", "lab"].value >= 1
    assert samples["network_sent", "lab"].kind == "counter"
    assert samples["network_neighbours", "lab"].value == 1
    assert dict(samples["peer_loss", "lab"].labels)["peer"] == "bravo"
    assert samples["networks_nodes", None].value == 1
    with urllib.request.urlopen(f"http://127.0.0.1:{alpha.delegate.metrics.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert 'jbi_network_received_total{network="lab"}' in text
    assert f'jbi_peer_heard_seconds{{id="{bravo.identity.id}",network="lab",peer="bravo"}}' in text
    publisher.adapter.close()


def test_loss_and_what_is_sent_again_are_told_as_series(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two nodes on a network that loses, of which one tells its statistics, and somebody who wants those
    nodes.loss = 0.2
    alpha = nodes.start("alpha", statistics_seconds=0.2)
    bravo = nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(alpha)) as own, SubscriberAdapter(of(bravo)) as subscriber:
        series = {
            name: own.register_subscriber(type_name="jbi.Measurement", predicate=f"//series='{name}' and //value > 0")
            for name in ("network.lab.repairs", f"peer.{bravo.identity.id[:8]}.loss", "network.lab.loss")
        }
        for wanted in series.values():
            own.wait_matched(wanted, timeout=30.0)
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 100)
        assert _numbers(subscriber, subscription, 100) == list(range(1, 101))
        # Expect what was sent again, and how much of what the other one sends is lost, also for who looks
        for name, wanted in series.items():
            assert own.receive(wanted, timeout=30.0) is not None, name
    assert alpha.networks().links[0].repaired > 0
    eventually(lambda: 0 < alpha.networks().peers[0].loss < 90, timeout=20.0)
    publisher.adapter.close()


def test_a_status_tells_of_the_worst_nodes_when_there_are_many() -> None:
    peers = [PeerStatus(id=f"{n:032x}", name=f"n{n}", loss=float(n % 50)) for n in range(1_000)]
    brief = NetworksStatus(peers=peers, nodes=1_000).brief()
    assert (len(brief.peers), brief.nodes) == (PEERS_TOLD, 1_000)
    assert min(each.loss for each in brief.peers) == 45.0


def test_a_network_of_a_kind_that_nobody_knows_names_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="udp") as caught:
        opened("lab", NetworkSection(plugin="upd"))
    assert "udp" in caught.value.hint


def test_a_node_that_cannot_have_its_networks_leaves_nothing_of_them(
    nodes: NodesOnNetworks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a node that can't keep what was deleted, which it finds when its links are open
    (tmp_path / "alpha" / "deletions.db").mkdir(parents=True)
    links: list[DatagramLink] = []

    def kept(name: str, section: NetworkSection) -> DatagramLink:
        links.append(opened(name, section))
        return links[-1]

    monkeypatch.setattr("jbi_pubsub.node.networks.opened", kept)
    threads, jobs = set(threading.enumerate()), ticker.jobs()
    # When it is started
    with pytest.raises(StorageError):
        nodes.start("alpha", ["near", "far"], archive=True)
    # Expect the sockets of both to be closed, and no thread or job of its parts to go on
    assert [sock.fileno() for link in links for sock in link.sockets()] == [-1, -1]
    eventually(lambda: ticker.jobs() <= jobs, what=lambda: [each.name for each in ticker.jobs() - jobs])
    left = [each.name for each in set(threading.enumerate()) - threads if not each.name.startswith("ticker")]
    assert left == []


@pytest.mark.row("G-179")
def test_a_network_with_a_key_is_for_those_who_have_it(
    nodes: NodesOnNetworks, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given two nodes with the same key, which the first of them has made, and one with another
    ours, theirs = str(tmp_path / "ours.key"), str(tmp_path / "theirs.key")
    alpha, bravo = (nodes.start(name, key=ours) for name in ("alpha", "bravo"))
    charlie = nodes.start("charlie", key=theirs)
    # Expect the two to hear each other, and the third nobody, though it is on the same link
    eventually(lambda: alpha.networks().peers and bravo.networks().peers, timeout=10.0)
    eventually(lambda: sum(charlie.networks().faults.values()) > 5, timeout=10.0)
    assert not charlie.networks().peers
    assert [each.name for each in alpha.networks().peers] == ["bravo"]
    assert Path(ours).stat().st_mode & 0o777 == 0o600


@pytest.mark.row("G-179")
def test_a_network_with_certificates_is_for_those_who_have_one(
    nodes: NodesOnNetworks, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given two nodes with certificates of one authority, and one of another
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")

    def start(name: str, authority: Authority) -> NodeService:
        config = msgspec.structs.replace(nodes.config, tls=authority.issue(name))
        return nodes.start(name, key="certificates", config=config)

    alpha, bravo, charlie = start("alpha", ours), start("bravo", ours), start("charlie", theirs)
    # Expect the two to hear each other, and the third nobody, though it is on the same link
    eventually(lambda: alpha.networks().peers and bravo.networks().peers, timeout=10.0)
    eventually(lambda: charlie.networks().faults.get(SealFault.UNKNOWN, 0) > 5, timeout=10.0)
    assert not charlie.networks().peers
    assert [each.name for each in alpha.networks().peers] == ["bravo"]
    # And that a node without a certificate does not start
    with pytest.raises(ConfigurationError, match=r"\[network.lab\] key needs"):
        nodes.start("delta", key="certificates")


def test_a_network_beyond_loopback_is_refused_without_a_key(settings: Config) -> None:
    network = {"lab": NetworkSection()}
    with pytest.raises(ConfigurationError, match="without a key") as caught:
        NodeService(msgspec.structs.replace(settings, network=network))
    assert "[network.lab] key" in caught.value.hint


def test_a_misspelt_plug_in_is_told_before_the_lack_of_a_key(settings: Config) -> None:
    network = {"lab": NetworkSection(plugin="upd")}
    with pytest.raises(ConfigurationError, match=r"there is no 'upd'.*Did you mean udp\?"):
        NodeService(msgspec.structs.replace(settings, network=network))


def test_a_time_in_which_nobody_announces_itself_is_refused(nodes: NodesOnNetworks) -> None:
    with pytest.raises(ConfigurationError, match=r"node_timeout = 2 is not more than announce_seconds = 2.*such as 10"):
        nodes.start("alpha", announce_seconds=2.0, node_timeout=2.0)


def test_of_two_nodes_with_one_id_each_goes_on_as_another(
    nodes: NodesOnNetworks, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a node's folder and a copy of it
    alpha = nodes.start("alpha")
    before = alpha.identity.id
    alpha.stop(0.0)
    shutil.copytree(tmp_path / "alpha", tmp_path / "copy")
    # When nodes are started on both
    alpha, copy = nodes.start("alpha"), nodes.start("copy")

    # Expect them to hear each other under ids of which one at least is new, and objects to pass
    def heard() -> bool:
        ids = [{each.id for each in node.networks().peers} for node in (alpha, copy)]
        return ids == [{copy.identity.id}, {alpha.identity.id}]

    eventually(heard, timeout=30.0)
    assert {alpha.identity.id, copy.identity.id} != {before}
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(copy)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 3)
        assert _numbers(subscriber, subscription, 3) == [1, 2, 3]
    publisher.adapter.close()


@pytest.mark.row("G-204")
def test_a_node_without_silent_receivers_sends_what_somebody_wants_alone(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own, "HELD_SECONDS", 0.0)
    # Given a node that sends what is wanted, and another one where nobody wants anything any more
    alpha, bravo = nodes.start("alpha", silent_receivers=False), nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    infosphere = alpha._networks.infosphere  # type: ignore[union-attr]
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(1, 2)
        assert _numbers(subscriber, subscription, 2) == [1, 2]
    eventually(lambda: not infosphere._remote.is_wanted(TypeName(TYPE)), timeout=20.0)
    publisher.publish(3, 10)
    (sequence,) = infosphere._own.values()
    eventually(lambda: sequence._left_to == 10, timeout=20.0)
    # When somebody subscribes there, and objects are published before the first node has heard of that
    with SubscriberAdapter(of(bravo)) as subscriber:
        monkeypatch.setattr(own, "WANTED_SECONDS", 30.0)  # on a machine that is slow
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        publisher.publish(11, 12)
        # Expect objects from then on, and none of those before, which are no losses
        assert _numbers(subscriber, subscription, 2) == [11, 12]
        assert subscriber.losses(subscription) == {}
    publisher.adapter.close()


def test_what_is_published_before_another_node_is_heard_of_comes_to_who_waits_there(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber at a node that is cut off, and a node that sends what is wanted, and hears of nobody
    nodes.cut.add("alpha")
    alpha, bravo = nodes.start("alpha", silent_receivers=False), nodes.start("bravo")
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        publisher = Publisher(alpha, figures)
        publisher.publish(1, 5)
        eventually(lambda: alpha.delegate.status()["delivered"] >= 5, timeout=20.0)
        # When the two hear each other, expect all of it
        nodes.cut.clear()
        assert _numbers(subscriber, subscription, 5) == [1, 2, 3, 4, 5]
        publisher.adapter.close()


@pytest.mark.parametrize("mode", ["unreliable", "durable", "sender", "connected"])
def test_objects_go_in_the_mode_that_their_publisher_says(nodes: NodesOnNetworks, figures: Any, mode: str) -> None:
    # Given two nodes, and a publisher that says how its objects are to go
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    key = "//publisher" if mode == "durable" else ""
    publisher = Publisher(alpha, figures, sending=Sending(mode=mode, key=key))  # type: ignore[arg-type]
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        # When they come one after the other on a network that loses nothing, expect all
        for number in range(1, 6):
            publisher.publish(number, number)
            assert _numbers(subscriber, subscription, 1) == [number]
    publisher.adapter.close()


@pytest.mark.parametrize("area", ["", "A"])
def test_a_node_that_was_killed_relays_again_as_soon_as_it_is_back(
    nodes: NodesOnNetworks, figures: Any, tmp_path: Path, eventually: Callable[..., Any], area: str
) -> None:
    # Given a node that relays what another one publishes, and is killed: its lookup service has that listed still
    nodes.areas = {"lab": area}
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    assert bravo.lookup is not None
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
    state = tmp_path / "bravo" / "registrations.db"
    kept = {each: each.read_bytes() for each in state.parent.glob("registrations.db*")}
    bravo.stop(0.0)
    for each, data in kept.items():
        each.write_bytes(data)
    # When it is started again, expect objects to come long before the lease of that ends
    bravo = nodes.start("bravo")
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        eventually(lambda: bravo.networks().published == 1, timeout=20.0)
        publisher.publish(1, 3)
        found = [subscriber.receive(subscription, timeout=20.0) for _ in range(3)]
        assert [each and bytes(each.payload) for each in found] == [b"1", b"2", b"3"]
    publisher.adapter.close()


def test_an_object_that_is_too_large_for_a_network_is_told_as_lost_there(
    nodes: NodesOnNetworks, figures: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two nodes, and room for a hundred kilobytes of each
    monkeypatch.setattr(message, "PARTS_BYTES", 100_000 * message.PARTS_SHARE)
    alpha, bravo = nodes.start("alpha"), nodes.start("bravo")
    publisher = Publisher(alpha, figures)
    with publisher.adapter, SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        # When a larger object is published between two others
        publisher.publish(1, 1)
        publisher.adapter.publish(publisher.registration, figures.figure_1, bytes(100_000))
        publisher.publish(3, 3)
        # Expect the others to come, and that one to be told
        assert _numbers(subscriber, subscription, 2) == [1, 3]
        eventually(lambda: subscriber.losses(subscription) == {"sequence_gap": 1})


@pytest.mark.parametrize("seconds", [30.0, 0.5])
def test_node_that_stops_lets_go_out_what_waits_for_a_slow_network(
    nodes: NodesOnNetworks, figures: Any, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    # Given two nodes on a network of 100,000 bytes a second, of which a tenth may wait in it
    monkeypatch.setattr("jbi_pubsub.network.side.QUEUE_SECONDS", 0.1)
    nodes.rate = 100_000.0
    alpha, bravo = (nodes.start(name) for name in ("alpha", "bravo"))
    publisher = Publisher(alpha, figures)
    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE)
        subscriber.wait_matched(subscription, timeout=30.0)
        # When more is published than goes in a second, and the node stops that has it
        for number in range(1, 151):
            publisher.adapter.publish(publisher.registration, figures.figure_1, b"%d %s" % (number, urandom(1_000)))
        publisher.adapter.flush()
        left = nodes.stop(alpha, seconds)
        came = [int(bytes(each.payload).split()[0]) for each in subscriber.drain(subscription)]
        while len(came) < 150 - left and (obj := subscriber.receive(subscription, timeout=10.0)):
            came.append(int(bytes(obj.payload).split()[0]))
        # Expect all to come, or as much as went in that time, and the rest to be told
        assert came == list(range(1, len(came) + 1))
        assert (left == 0) == (seconds > 1.0)
        assert len(came) + left >= 150
    publisher.adapter.close()


def test_what_is_important_passes_what_waits_for_a_slow_network(
    nodes: NodesOnNetworks, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given two nodes with quality of service on a network of 100,000 bytes a second, of which a tenth may wait in it
    monkeypatch.setattr("jbi_pubsub.network.side.QUEUE_SECONDS", 0.1)
    nodes.rate = 100_000.0
    config = msgspec.structs.replace(nodes.config, qos=QosSection(mode="on"))
    alpha, bravo = (nodes.start(name, config=config) for name in ("alpha", "bravo"))
    bulk, alarm = Publisher(alpha, figures, qos=Wish(importance=1)), Publisher(alpha, figures)
    came: list[str] = []

    class Listener:
        def arrived(self, subscription: Any, obj: InfoObject) -> None:  # noqa: ARG002  # the protocol's
            came.append(obj.platform.registration)

        def lost(self, subscription: Any, notice: Any) -> None:
            pytest.fail(f"{subscription}: {notice}")

    with SubscriberAdapter(of(bravo)) as subscriber:
        subscription = subscriber.register_subscriber(type_name=TYPE, listener=Listener())
        subscriber.wait_matched(subscription, timeout=30.0)
        # When an object of usual importance is published behind many of the least
        for _ in range(150):
            bulk.adapter.publish(bulk.registration, figures.figure_1, urandom(1_000))
        bulk.adapter.flush()
        alarm.publish(1, 1)
        # Expect it to come before most of them
        eventually(lambda: alarm.registration in came)
        assert came.index(alarm.registration) < 45
        eventually(lambda: len(came) == 151)
    for publisher in (bulk, alarm):
        publisher.adapter.close()
