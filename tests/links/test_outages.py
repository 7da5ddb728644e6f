"""Links that fail for a while: shorter than the lease nothing happens, longer and everybody comes back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate


def sessions(scene: Any) -> list[str]:
    """The subscriber's sessions at the node."""
    return [session["session"] for session in scene.node.status()["sessions"]]


@pytest.mark.row("J-96")
@pytest.mark.parametrize(("kind", "silent"), [("delegate", False), ("peer", True)])
def test_a_subscription_survives_an_outage_of_half_the_lease(kind: str, silent: bool, scene: Any) -> None:
    # Given a subscription under a lease that has just been renewed
    scene.set("lease", subscriber=6.0)
    scene.open(kind)
    link = scene.subscribers_link
    before = sessions(scene)
    scene.publish(b"before")
    scene.just_renewed(link, scene.node.status()["address"])

    # When its link fails for half the lease, with objects published meanwhile
    link.down(silent=silent)
    began = time.monotonic()
    scene.publish(*[b"meanwhile"] * 5)
    scene.eventually(lambda: time.monotonic() - began >= 3.0)
    link.up()
    scene.publish(b"after")

    # Expect all of them, once and in order, in the same session, with nothing lost
    assert scene.sequences(7) == [1, 2, 3, 4, 5, 6, 7]
    assert sessions(scene) == before
    assert scene.local()["lost"] == {}
    assert scene.local()["duplicates"] == 0
    assert scene.account()["delivered"] == 7


def test_a_subscription_survives_an_outage_of_half_the_lease_whenever_it_begins(scene: Any) -> None:
    # Given a subscription, two fifths of a term, when the next is due, after a renewal of its lease
    scene.set("lease", subscriber=6.0)
    scene.open()
    link = scene.subscribers_link
    renewed = scene.just_renewed(link, scene.node.status()["address"])
    scene.eventually(lambda: time.monotonic() >= renewed + 2.3)

    # When its link fails for half the lease, with objects published meanwhile
    link.down()
    scene.publish(*[b"meanwhile"] * 5)
    scene.eventually(lambda: time.monotonic() >= renewed + 5.3)
    link.up()
    scene.publish(b"after")

    # Expect all of them
    assert scene.sequences(6) == [1, 2, 3, 4, 5, 6]
    assert scene.local()["lost"] == {}
    assert scene.account()["delivered"] == 6


@pytest.mark.row("J-96")
@pytest.mark.parametrize(("kind", "silent"), [("delegate", False), ("peer", True)])
def test_a_subscription_comes_back_after_an_outage_of_three_leases(kind: str, silent: bool, scene: Any) -> None:
    # Given a subscription under a lease of two seconds that has received something
    scene.set("lease", subscriber=2.0)
    scene.open(kind)
    link = scene.subscribers_link
    before = sessions(scene)
    scene.publish(b"before")
    assert scene.sequences(1) == [1]
    scene.account()

    # When its link fails for six seconds: with objects published while the lease lives, and when it has run out
    link.down(silent=silent)
    began = time.monotonic()
    scene.publish(*[b"while the lease lives"] * 3)
    scene.eventually(lambda: sessions(scene) == [], what="the lease runs out")
    scene.publish(*[b"when it has run out"] * 2)
    scene.eventually(lambda: time.monotonic() - began >= 6.0)
    link.up()

    # Expect that it is registered again without the application's doing, and told that something may be lost
    scene.eventually(lambda: sessions(scene) not in ([], before), what="a new session")
    scene.eventually(lambda: scene.subscriber.wait_matched(scene.subscription, 1, 0.0) == 1)
    scene.eventually(lambda: scene.local()["lost"] == {"subscriber_dead": 1}, what="the loss is told as what it is")

    # Expect what is published from now on, each once and in order
    scene.publish(*[b"after"] * 3)
    came = scene.sequences(9)
    assert came[-3:] == [7, 8, 9]
    assert came == sorted(set(came))

    # Expect the account of the node: three lost with the dead subscriber, two not matched
    account = scene.account()
    assert (account["lost"], account["unmatched"], account["delivered"]) == (3, 2, 4)
    assert scene.node.status()["lost"] == {"subscriber_dead": 3}


@pytest.mark.parametrize("outage", [1.0, 6.0])
def test_what_is_published_during_an_outage_of_the_publishers_link_arrives_once_and_in_order(
    outage: float, scene: Any
) -> None:
    # Given a publisher under a lease of two seconds
    scene.set("lease", publisher=2.0)
    scene.open()
    scene.publish(b"before")
    scene.just_renewed(scene.publishers_link, scene.node.status()["address"])

    # When its link fails for half of it, or for three times, and it goes on publishing
    scene.publishers_link.down()
    began = time.monotonic()
    scene.publish(*[b"meanwhile"] * 5)
    if outage > 2.0:
        scene.eventually(lambda: scene.node.status()["publishers"] == [], what="the lease runs out")
    scene.eventually(lambda: time.monotonic() - began >= outage)
    scene.publishers_link.up()
    scene.publish(b"after")

    # Expect everything, once and in order, without the application's doing
    assert scene.sequences(7) == [1, 2, 3, 4, 5, 6, 7]
    assert scene.local()["lost"] == {}
    assert len(scene.node.status()["registrations"]) == 1
    scene.eventually(lambda: scene.node.status()["delivered"] >= 7)
    scene.publisher.flush()
    [delegate] = scene.publisher.status()["delegates"].values()
    assert delegate["unacknowledged"] == 0


@pytest.mark.parametrize("outage", [2.0, 9.0])
def test_a_delegate_cut_off_from_the_lookup_service_keeps_delivering_and_is_listed_again(
    outage: float, scene: Any, federation: Any, new_link: Callable[..., Any], heard: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate whose link to the lookup service is its own, and somebody who watches the lookup service
    scene.leases(6.0)
    link = new_link("127.0.0.4")
    plain = federation.config
    federation.config = link.behind(plain)
    scene.node = federation.pad()
    federation.config = plain
    scene.publisher = federation.light(plain)
    at = scene.publisher.connect_to_delegate("alpha", "rome")
    scene.registration = scene.publisher.register_publisher(at, *_documents(scene))
    scene.open_subscriber()
    watching = JoinManager(plain, name="watching")
    federation.stack.callback(watching.close)
    cache = watching.watch(ServiceTemplate(), heard)
    listed = {item.service_id for item in cache.wait(3, 60.0)}
    assert len(listed) == 3
    lookup = federation.lookups[0].info().service_id  # lists itself
    scene.just_renewed(link, plain.lookup.locators[0])

    # When the link fails for a third of a lease, or for one and a half
    link.down()
    began = time.monotonic()
    scene.publish(*[b"meanwhile"] * 3)

    # Expect that who knows the delegate is served on
    assert scene.sequences(3) == [1, 2, 3]
    eventually(lambda: time.monotonic() - began >= outage)
    link.up()

    # Expect that a short outage is noticed by nobody, and that after a long one all is listed again
    if outage > 6.0:
        eventually(lambda: set(heard.removed) == listed - {lookup})
    eventually(lambda: {item.service_id for item in cache.items()} == listed, what="listed again")
    if outage < 6.0:
        scene.just_renewed(link, plain.lookup.locators[0])
        assert heard.removed == []
    scene.publish(b"after")
    assert scene.sequences(4) == [4]
    assert scene.account()["delivered"] == 4


def test_a_subscriber_cut_off_from_the_lookup_service_keeps_receiving_and_then_finds_who_came_meanwhile(
    scene: Any, federation: Any, figures: Any, new_link: Callable[..., Any]
) -> None:
    # Given a subscriber with one link to the lookup service and another to the publishers
    scene.leases(2.0)
    scene.open_publisher()
    link = new_link("127.0.0.2")
    plain = federation.config
    scene.subscriber = federation.subscriber(link.behind(plain))
    scene.subscribers_link.to(scene.node.address)
    scene.subscription = scene.subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert scene.subscriber.wait_matched(scene.subscription) == 1

    # When the first one fails for three leases, and a peer publisher comes meanwhile
    link.down()
    began = time.monotonic()
    peer = federation.peer(plain)
    registration = peer.register_publisher(figures.schema, figures.figure_1)
    scene.subscribers_link.to(peer.status()["address"])
    scene.eventually(lambda: time.monotonic() - began >= 6.0)
    scene.publish(b"meanwhile")

    # Expect that the subscriber is served on by whom it knows
    assert scene.sequences(1) == [1]
    assert scene.local()["matched"] == 1

    # When the link is back, expect that the peer publisher is found
    link.up()
    assert scene.subscriber.wait_matched(scene.subscription, 2) == 2
    peer.publish(registration, figures.figure_1, b"from the peer")
    assert scene.subscriber.receive(scene.subscription).payload == b"from the peer"
    assert scene.local()["lost"] == {}


def _documents(scene: Any) -> tuple[Any, Any]:
    return scene._figures.schema, scene._figures.figure_1
