"""The community: who finds whom, now and later, and what goes on when others leave (paper sections 2.2 and 2.4)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from lxml import etree

from jbi_pubsub import RegistrationUid
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate

IMAGERY = "mil.af.rl.jbi.Intel_Imagery"
REGISTRATIONS = ServiceTemplate(types=("jbi.PublisherRegistration",))


def _client(
    register: Callable[[], RegistrationUid], publisher: Any, subscriber: Any, figures: Any, kabul: str
) -> list[Any]:
    """A client script: the same for every kind of dissemination node. What it sees."""
    seen: list[Any] = []
    registration = register()
    uid = subscriber.register_subscriber(
        figures.figure_3, schema=figures.schema, predicate=kabul, payload_filter="//name"
    )
    assert subscriber.wait_matched(uid) == 1
    for lat, payload in (("33.3", b"<a><name>1</name><b/></a>"), ("40", b"north"), ("34.9", b"\xff\xd8JPEG")):
        publisher.publish(registration, figures.metadata(lat=lat), payload)
    publisher.flush()
    for _ in range(2):
        obj = subscriber.receive(uid)
        text = [e.text for e in etree.fromstring(obj.payload)] if obj.payload.startswith(b"<") else obj.payload
        seen.append((obj.type.name, obj.platform.sequence, etree.fromstring(obj.metadata).findtext(".//lat"), text))
    seen.append(subscriber.losses(uid))
    subscriber.cancel_subscription(uid)
    publisher.unregister_publisher(registration)
    return seen


@pytest.mark.row("J-14")
def test_the_same_client_runs_over_every_kind_of_dissemination_node(
    federation: Any,
    figures: Any,
    kabul: str,
    start: Callable[..., Any],
    process_settings: Callable[..., None],
) -> None:
    # Given a delegate in this process, one in a process of its own, and a peer publisher
    federation.pad("alpha", "rome")
    process_settings()
    assert start("pad", "bravo", "paris", "--port", "0", "--json").fact()["ready"] == "pad"
    light, peer, subscriber = federation.light(), federation.peer(), federation.subscriber()
    here, there = light.connect_to_delegate("alpha"), light.connect_to_delegate("bravo")
    # When the same client runs over each of them
    seen = [
        _client(
            lambda: light.register_publisher(here, figures.schema, figures.figure_1), light, subscriber, figures, kabul
        ),
        _client(
            lambda: light.register_publisher(there, figures.schema, figures.figure_1), light, subscriber, figures, kabul
        ),
        _client(lambda: peer.register_publisher(figures.schema, figures.figure_1), peer, subscriber, figures, kabul),
    ]
    # Expect that it sees the same
    assert seen[0] == [(IMAGERY, 1, "33.3", ["1"]), (IMAGERY, 3, "34.9", b"\xff\xd8JPEG"), {}]
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]
    light.close()  # before its delegates


@pytest.mark.row("J-27")
@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_after_the_match_the_lookup_service_is_not_needed(
    fixtures: Any, federation: Any, figures: Any, start: Callable[..., Any], kind: str
) -> None:
    # Given a publisher and a subscriber that have met through a lookup service in a process of its own
    server = start("lookup", "--port", "0", "--ephemeral", "--json")
    lookup = msgspec.structs.replace(federation.config.lookup, locators=(server.fact()["address"],))
    federation.config = msgspec.structs.replace(federation.config, lookup=lookup)
    publishing = fixtures.Publishing(federation, kind)
    registration = publishing.register(figures.figure_1, figures.schema)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid) == 1
    # When the lookup service is killed
    server.signal(signal.SIGKILL)
    server.wait()
    # Expect that publishing and receiving go on
    for number in range(10):
        publishing.publish(registration, figures.figure_1, b"%d" % number)
    assert [subscriber.receive(uid).payload for _ in range(10)] == [b"%d" % number for number in range(10)]


@pytest.mark.row("J-30")
def test_a_subscriber_may_come_before_its_publisher(walk: Any) -> None:
    # Given a subscription, and no publisher yet
    subscriber = walk.subscriber
    uid = subscriber.register_subscriber(walk.figures.figure_3, schema=walk.figures.schema)
    assert subscriber.wait_matched(uid, timeout=0.0) == 0
    # When a publisher registers
    walk.register()
    assert subscriber.wait_matched(uid) == 1
    # Expect delivery without the subscriber's doing
    walk.publish(payload=b"image")
    assert subscriber.receive(uid).payload == b"image"


@pytest.mark.row("J-31")
def test_members_are_told_when_a_registration_comes_and_when_it_is_cancelled(
    own_walk: Any, heard: Any, eventually: Callable[..., Any]
) -> None:
    # Given a member of the community that watches for publishers
    community = JoinManager(own_walk.federation.config, name="watcher")
    try:
        community.watch(REGISTRATIONS, heard)
        # When a publisher registers and cancels the registration
        uid = own_walk.register()
        eventually(lambda: heard.told == [("added", uid)], what="told that it has come")
        own_walk.publishing.adapter.unregister_publisher(uid)
        # Expect an event for each
        eventually(lambda: heard.told == [("added", uid), ("removed", uid)], what="told that it has gone")
    finally:
        community.close()


@pytest.mark.row("J-32")
def test_clients_of_one_group_never_see_services_of_another(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given lookup services for the groups A and B, a delegate and a publisher in each
    for group in ("A", "B"):
        federation.lookup(groups=(group,))

    def config(group: str) -> Any:
        section = msgspec.structs.replace(federation.config.lookup, groups=(group,))
        return msgspec.structs.replace(federation.config, lookup=section)

    registrations = {}
    pads = {group: federation.pad(group, "anywhere", config(group)) for group in "AB"}
    lights = {group: federation.light(config(group)) for group in "AB"}
    for group, light in lights.items():
        at = light.connect_to_delegate(group, "anywhere")
        registrations[group] = light.register_publisher(at, figures.schema, figures.figure_1)
    # When a client of group A subscribes, and both publish
    subscriber = federation.subscriber(config("A"))
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid) == 1
    assert subscriber.wait_matched(uid, 2, timeout=0.5) == 1
    for group in "BA":
        lights[group].publish(registrations[group], figures.figure_1, group.encode())
        lights[group].flush()
    # Expect that it gets its own group's only, and that the other group's delegate does not know it
    assert subscriber.receive(uid).payload == b"A"
    assert subscriber.drain(uid) == []
    assert pads["B"].status()["sessions"] == []
    # and that nobody registers with the lookup service of a third group
    assert federation.lookups[0].status()["items"] == 0


@pytest.mark.row("J-81")
def test_a_subscription_is_registered_with_every_matching_node_now_and_later(federation: Any, figures: Any) -> None:
    # Given three delegates and a publisher at each
    light = federation.light()

    def publisher(name: str) -> RegistrationUid:
        federation.pad(name)
        return light.register_publisher(light.connect_to_delegate(name), figures.schema, figures.figure_1)  # type: ignore[no-any-return]

    registrations = [publisher(name) for name in ("a", "b", "c")]
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid, 3) == 3
    # When one more starts later
    registrations.append(publisher("d"))
    # Expect four registrations, and objects from all
    assert subscriber.wait_matched(uid, 4) == 4
    for number, registration in enumerate(registrations):
        light.publish(registration, figures.figure_1, b"%d" % number)
    assert {subscriber.receive(uid).payload for _ in range(4)} == {b"0", b"1", b"2", b"3"}
    light.close()  # before its delegates


@pytest.mark.row("J-91")
def test_delegates_and_peer_publishers_serve_one_subscription(federation: Any, figures: Any) -> None:
    # Given a publisher through a delegate and a peer publisher of the same metadata
    federation.pad()
    light, peer = federation.light(), federation.peer()
    one = light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    two = peer.register_publisher(figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid, 2) == 2
    # When both publish
    sent = [light.publish(one, figures.figure_1, b"%d" % number) for number in range(50)]
    sent += [peer.publish(two, figures.figure_1, b"%d" % number) for number in range(50)]
    # Expect every object, none twice
    found = [subscriber.receive(uid).object_id for _ in sent]
    assert sorted(found) == sorted(sent)
    assert subscriber.drain(uid) == []


@pytest.mark.row("J-33", "J-93")
def test_a_registration_seen_through_two_lookup_services_delivers_once(
    fixtures: Any, federation: Any, figures: Any
) -> None:
    # Given two lookup services, and a publisher and a subscriber that use both
    federation.lookup()
    federation.pad()
    light = federation.light()
    registration = light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid) == 1
    assert subscriber.wait_matched(uid, 2, timeout=0.5) == 1
    # When objects are published; Expect each once
    for number in range(20):
        light.publish(registration, figures.figure_1, b"%d" % number)
    assert [subscriber.receive(uid).platform.sequence for _ in range(20)] == list(range(1, 21))
    light.publish(registration, figures.figure_1, b"marker")
    assert subscriber.receive(uid).payload == b"marker"


@pytest.mark.row("J-92")
def test_ten_thousand_objects_arrive_in_the_order_of_publication(walk: Any) -> None:
    # Given a subscription with room for all
    uid = walk.subscribe(bound=20_000)
    # When ten thousand objects are published
    for number in range(10_000):
        walk.publishing.adapter.publish(walk.registration, walk.figures.figure_1, b"%d" % number)
    # Expect all of them, in order
    found = [walk.subscriber.receive(uid) for _ in range(10_000)]
    assert [obj.platform.sequence for obj in found] == list(range(1, 10_001))
    assert [obj.payload for obj in found] == [b"%d" % number for number in range(10_000)]


def test_objects_of_several_threads_are_numbered_in_the_order_they_arrive(walk: Any) -> None:
    # Given four threads that publish with one registration
    uid = walk.subscribe()

    def publish(name: str) -> None:
        for number in range(100):
            walk.publishing.adapter.publish(walk.registration, walk.figures.figure_1, f"{name}{number}")

    threads = [threading.Thread(target=publish, args=(name,)) for name in "abcd"]
    # When they run at once
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Expect one sequence without gaps, in which each thread's objects keep their order
    found = [walk.subscriber.receive(uid) for _ in range(400)]
    assert [obj.platform.sequence for obj in found] == list(range(1, 401))
    for name in "abcd":
        mine = [obj.payload.decode() for obj in found if obj.payload.decode().startswith(name)]
        assert mine == [f"{name}{number}" for number in range(100)]
