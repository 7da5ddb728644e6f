"""Whoever is killed is cleaned up within its lease, by nobody's doing (paper section 2.4(1), (7))."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PUBLISHER_TYPE

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"


@pytest.mark.row("J-67")
def test_a_killed_publisher_leaves_nothing_at_its_delegate(
    field: Any, federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate as it was before anybody came, then a publisher that has published
    pad = field.pad()
    assert eventually(lambda: federation.lookups[0].status()["items"] == 1)
    field.status(pad)  # opens the connection we ask on
    before = field.held(pad)
    publisher = field.publisher()
    publisher.ask(3)
    assert field.status(pad)["published"] == 3
    assert len(field.status(pad)["registrations"]) == 1
    eventually(lambda: federation.lookups[0].status()["items"] == 2)

    # When the publisher is killed
    publisher.signal(signal.SIGKILL)

    # Expect threads, queues, leases, registrations as before, at the delegate and in the lookup service
    eventually(lambda: field.holds_no_more(pad, before), field.within, what=lambda: (field.held(pad), before))
    eventually(lambda: federation.lookups[0].status()["items"] == 1, field.within)


@pytest.mark.row("J-83")
def test_a_killed_subscriber_leaves_nothing_behind_and_its_objects_are_counted_as_lost(
    field: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with a publisher, then a subscriber that hangs with five objects on the way to it
    pad = field.pad()
    adapter = field.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, figures.schema, figures.figure_1)
    adapter.publish(registration, figures.figure_1)
    adapter.flush()  # the data connection of the publisher stands
    field.status(pad)

    def watching() -> int:
        return federation.lookups[0].status()["event_registrations"]  # type: ignore[no-any-return]

    eventually(lambda: watching() == 2, what=watching)  # the delegate looks for others of its name no more
    before = field.held(pad)
    field.leases(subscriber=5.0)  # once stopped it renews none: the objects are published before that runs out
    subscriber = field.subscriber()
    assert subscriber.ready["servers"] == 1
    subscriber.signal(signal.SIGSTOP)
    for _ in range(5):
        adapter.publish(registration, figures.figure_1, b"payload")
    adapter.flush()

    # When it is killed
    subscriber.signal(signal.SIGKILL)

    # Expect that sessions, subscriptions, threads and leases are as before, and every object is accounted for
    keys = ("connections", "threads", "sessions", "subscriptions", "leases")
    eventually(
        lambda: {k: field.held(pad)[k] for k in keys} == {k: before[k] for k in keys},
        field.within,
        what=lambda: (field.held(pad), before),
    )
    eventually(lambda: field.status(pad)["lost"] == {"subscriber_dead": 5}, what=lambda: field.status(pad)["lost"])
    eventually(lambda: watching() == 2, field.within, what=watching)


@pytest.mark.row("J-31")
def test_a_killed_delegate_leaves_the_lookup_service_and_its_clients_are_told(
    field: Any, federation: Any, figures: Any, heard: Any, eventually: Callable[..., Any]
) -> None:
    # Given a client that watches all services, a delegate with a registration, and a subscriber
    community = field.community()
    cache: LookupCache = community.watch(ServiceTemplate(), heard)
    community.wait_watching(cache, 60.0)
    [own] = heard.added  # the lookup service itself
    pad = field.pad()
    field.publisher()
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    eventually(lambda: len(cache.items()) == 3)  # each added once, or more often where a busy machine cost it its lease
    assert pad.ready["id"] in heard.added

    # When the delegate is killed (its publisher finds no other)
    pad.signal(signal.SIGKILL)

    # Expect that both items are gone within the lease, that the client was told, and the subscription as well
    eventually(lambda: federation.lookups[0].status()["items"] == 0, field.within)
    eventually(lambda: sorted([own, *heard.removed]) == sorted(heard.added), field.within)
    assert [item.service_id for item in cache.items()] == [own]
    eventually(lambda: subscriber.losses(subscription) == {"delegate_dead": 1}, field.within)


def test_a_cancelled_registration_is_told_at_once(
    field: Any, figures: Any, heard: Any, eventually: Callable[..., Any]
) -> None:
    # Given leases of a minute, so that only cancelling can be what is noticed
    field.leases(publisher=60.0, subscriber=60.0, lookup=60.0)
    community = field.community()
    community.wait_watching(community.watch(ServiceTemplate(types=(PUBLISHER_TYPE,)), heard), 60.0)
    adapter = field.peer()
    registration = adapter.register_publisher(figures.schema, figures.figure_1)
    eventually(lambda: len(heard.added) == 1)

    # When the publisher takes its registration back
    adapter.unregister_publisher(registration)

    # Expect the event
    eventually(lambda: heard.removed == heard.added)


def test_a_killed_peer_publisher_leaves_the_lookup_service_and_its_subscription_is_told(
    field: Any, federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a peer publisher in a process of its own, and a subscriber that has received from it
    peer = field.script(
        "with PublisherAdapter(config) as adapter:\n"
        "    registration = adapter.register_publisher(SCHEMA, FIGURE_1)\n"
        "    tell(registration=registration)\n"
        "    while told():\n"
        "        adapter.publish(registration, FIGURE_1)\n"
        "        tell(published=1)\n"
    )
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    peer.ask("publish")
    assert subscriber.receive(subscription) is not None

    # When the publishing process is killed
    peer.signal(signal.SIGKILL)

    # Expect nothing of it in the lookup service, and the loss told
    eventually(lambda: federation.lookups[0].status()["items"] == 0, field.within)
    eventually(lambda: subscriber.losses(subscription) == {"delegate_dead": 1}, field.within)


def test_publishing_goes_on_when_the_lookup_service_is_killed(
    field: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a match made by a lookup service that is the only one
    lookup = field.lookup()
    field.lookups(lookup.address)
    pad = field.pad()
    adapter = field.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, figures.schema, figures.figure_1)
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    first = adapter.publish(registration, figures.figure_1)
    received = subscriber.receive(subscription)
    assert received is not None
    assert received.object_id == first

    # When it is killed, and longer than every lease has gone by (a newcomer's lease at the delegate ran out)
    lookup.signal(signal.SIGKILL)
    newcomer = field.script(
        "import time\nfrom jbi_pubsub.core.wire import ServiceRef\n"
        "from jbi_pubsub.core.wire.control import ControlClient\n"
        f"ref = ServiceRef('', 'delegate', ({pad.address!r},))\n"
        "ControlClient(ref, config.security()).call('connect', object, 'newcomer', 1.0, {})\n"
        "tell(connected=True)\n"
    )
    assert newcomer.ready["connected"]
    eventually(lambda: [p["name"] for p in field.status(pad)["publishers"]].count("newcomer") == 0, field.within)

    # Expect that publisher and subscriber still stand at the delegate, and nothing is lost or doubled
    sent = [adapter.publish(registration, figures.figure_1) for _ in range(10)]
    assert [obj.object_id for obj in _receive(subscriber, subscription, 10)] == sent
    assert subscriber.losses(subscription) == {}


def _receive(subscriber: Any, subscription: Any, count: int) -> list[Any]:
    """The next objects, or what has come after five seconds without one."""
    received: list[Any] = []
    while len(received) < count and (obj := subscriber.receive(subscription, 5.0)) is not None:
        received.append(obj)
    return received


@pytest.mark.row("J-29", "J-33")
def test_a_lookup_service_started_again_is_joined_by_everybody(
    field: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two lookup services, a delegate, a registration and a subscription
    second = field.lookup()
    field.lookups(federation.lookups[0].address, second.address)
    field.pad()
    adapter = field.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, figures.schema, figures.figure_1)
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    eventually(lambda: field.status(second)["items"] == 3)  # with the other lookup service

    # When one is killed
    second.signal(signal.SIGKILL)

    # Expect that a new subscription still matches
    later = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(later) == 1

    # When an empty one is started in its place
    third = field.lookup(second.port)

    # Expect that the delegate is registered there with its registration, and the subscriber watches there
    eventually(lambda: field.status(third)["items"] == 3, what=lambda: field.status(third))
    eventually(lambda: field.status(third)["event_registrations"] >= 1, what=lambda: field.status(third))

    # Expect that what is seen through both is delivered once
    sent = [adapter.publish(registration, figures.figure_1) for _ in range(5)]
    for each in (subscription, later):
        assert [obj.object_id for obj in _receive(subscriber, each, 5)] == sent
    adapter.flush()
    marker = adapter.publish(registration, figures.figure_1)
    for each in (subscription, later):
        assert [obj.object_id for obj in _receive(subscriber, each, 1)] == [marker]


def test_registrations_made_later_match_through_the_lookup_service_started_again(field: Any, figures: Any) -> None:
    # Given a subscription that was made at a lookup service which was then killed and started again, empty
    lookup = field.lookup()
    field.lookups(lookup.address)
    field.pad()
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    lookup.signal(signal.SIGKILL)
    field.lookup(lookup.port)

    # When a publisher comes only now
    adapter = field.light()
    registration = figures.register(adapter)

    # Expect that the subscriber learns of it, without the application's doing
    assert subscriber.wait_matched(subscription) == 1
    marker = adapter.publish(registration, figures.figure_1)
    assert [obj.object_id for obj in _receive(subscriber, subscription, 1)] == [marker]


@pytest.mark.parametrize("same_port", [True, False], ids=["same-port", "other-port"])
def test_a_delegate_started_again_is_used_again(
    same_port: bool, field: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given objects published through a delegate and received
    pad = field.pad()
    adapter = field.light()
    registration = figures.register(adapter)
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    before = [adapter.publish(registration, figures.figure_1) for _ in range(3)]
    assert [obj.object_id for obj in _receive(subscriber, subscription, 3)] == before
    adapter.flush()

    # When the delegate is killed and one of the same characteristics is started
    pad.signal(signal.SIGKILL)
    again = field.pad(port=pad.port if same_port else "0")

    # Expect that both adapters stand there, under the same ids
    def standing() -> bool:
        status = field.status(again)
        return [r["uid"] for r in status["registrations"]] == [registration] and [
            s["uid"] for s in status["subscriptions"]
        ] == [subscription]

    eventually(standing, what=lambda: (field.status(again)["sessions"], field.status(again)["subscriptions"]))

    # Expect that publishing goes on: the new objects and nothing else
    after = [adapter.publish(registration, figures.figure_1) for _ in range(3)]
    assert [obj.object_id for obj in _receive(subscriber, subscription, 3)] == after
    # and that nothing is told as lost: the numbers show that nothing is
    eventually(lambda: len(subscriber.status()["sessions"]) == 1, field.within)
    assert subscriber.losses(subscription) == {}


def test_a_publisher_closes_within_its_timeout_when_the_lookup_service_is_gone(
    field: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher with nothing under way at a delegate, and a lookup service, to be found within a minute, that
    # was killed
    lookup = field.lookup()
    field.lookups(lookup.address)
    patient = msgspec.structs.replace(field.config.lookup, timeout=60.0)
    field.config = msgspec.structs.replace(field.config, lookup=patient)
    pad = field.pad()
    before = set(threading.enumerate())
    adapter = field.light()
    adapter.connect_to_delegate("alpha", "rome")
    eventually(lambda: all(d["connected"] for d in adapter.status()["delegates"].values()))
    lookup.signal(signal.SIGKILL)

    # When it closes
    began = time.monotonic()
    adapter.close(timeout=1.0)

    # Expect that this takes nothing like that minute, that the delegate has let it go, and that its threads ended
    assert time.monotonic() - began < 30.0
    assert field.status(pad)["publishers"] == []
    # (the other lookup service, which lives in this process, is about its own business)
    eventually(
        lambda: all(t in before or t.name.startswith(("lookup-", "events-", "ticker")) for t in threading.enumerate()),
        what=lambda: [t.name for t in threading.enumerate() if t not in before],
    )


def test_another_delegate_takes_a_registration_over_before_the_lease_of_the_dead_one_has_run_out(
    field: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given two delegates of one name, registered under leases of a minute, and a publisher at one of them
    field.leases(lookup=60.0, publisher=10.0)
    pads = {pad.ready["id"]: pad for pad in (field.pad(), field.pad())}
    adapter = field.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, figures.schema, figures.figure_1)

    def holder() -> str:
        template = ServiceTemplate(service_id=registration)
        [item] = (
            federation.lookups[0].registrar.read(lambda registrar, now: registrar.lookup_all(template, now, 1)).items
        )
        return str(item.proxy.service_id)

    first = holder()
    # When that one is killed
    pads.pop(first).signal(signal.SIGKILL)
    # Expect the registration to stand at the other one: it may replace the item, as the publisher is the owner
    eventually(lambda: holder() in pads)
