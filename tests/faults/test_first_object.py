"""Who stood before an object was published gets it, with real parties: late, frozen, in another order than is usual."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from jbi_pubsub import PublisherAdapter
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire.hub import HubSender
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.protocol.requests import NOT_BEFORE

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"

STANDS = """
class Listener:
    def arrived(self, uid, obj):
        tell(sequence=obj.platform.sequence)
    def lost(self, uid, notice):
        tell(lost=notice.cause, count=notice.count)

with SubscriberAdapter(config) as adapter:
    adapter.register_subscriber(type_name=TYPE, listener=Listener())
    tell(stands=True)
    told()
"""


ANSWER_SECONDS = 0.05
"""What was published so long before a subscription stood is older than it for certain: its age errs by the way of one
answer of the delegate, on a busy machine."""


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_subscribe_and_publish_in_one_breath(rounds: int, kind: str, federation: Any, figures: Any) -> None:
    # Given a registration that stands, with objects that were taken before anybody subscribed
    if kind == "delegate":
        federation.pad()
        publisher = federation.light()
        registration = figures.register(publisher)
    else:
        publisher = federation.peer()
        registration = publisher.register_publisher(figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    for _ in range(rounds):
        publisher.publish(registration, figures.figure_1, b"before")
        publisher.flush()
        threading.Event().wait(ANSWER_SECONDS)
        # When a subscription is registered and the next line publishes
        uid = subscriber.register_subscriber(type_name=TYPE)
        publisher.publish(registration, figures.figure_1, b"after")
        # Expect that one, and only that one
        assert subscriber.receive(uid).payload == b"after"
        publisher.flush()
        assert subscriber.drain(uid) == []
        assert subscriber.losses(uid) == {}
        subscriber.cancel_subscription(uid)


@pytest.mark.parametrize("keep", [10.0, 0.5])
def test_a_subscriber_that_is_frozen_while_it_is_told_catches_up_and_nobody_waits_for_it(
    keep: float, field: Any, figures: Any
) -> None:
    # Given a delegate that keeps for so many seconds, and two subscribers without a publisher; one is frozen
    field.leases(publisher=60.0, subscriber=60.0, lookup=60.0)
    field.keep(keep)
    field.pad()
    frozen, other = field.script(STANDS), field.script(STANDS)
    frozen.signal(signal.SIGSTOP)
    # When a publisher registers and publishes
    publisher = field.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
    for _ in range(5):
        publisher.publish(registration, figures.figure_1)
    # Expect the other one to have them while the first one is frozen
    assert [other.fact() for _ in range(5)] == [{"sequence": n} for n in range(1, 6)]
    # And the first one when it lives again, or to be told how many it has missed
    threading.Event().wait(2.5 if keep < 1.0 else 0.5)  # frozen for longer than the delegate keeps
    frozen.signal(signal.SIGCONT)
    if keep < 1.0:
        assert frozen.fact() == {"lost": Cause.MISSED, "count": 5}
    else:
        assert [frozen.fact() for _ in range(5)] == [{"sequence": n} for n in range(1, 6)]


def test_a_lookup_service_that_comes_late_brings_what_was_published_before(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a peer publisher that knows one lookup service, a subscriber that knows another, and five objects
    peer = federation.peer()
    registration = peer.register_publisher(figures.schema, figures.figure_1)
    first, second = federation.lookups[0], federation.lookup(locators=())
    section = msgspec.structs.replace(federation.config.lookup, locators=(second.address,))
    subscriber = federation.subscriber(msgspec.structs.replace(federation.config, lookup=section))
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert first.address != second.address
    for _ in range(5):
        peer.publish(registration, figures.figure_1)
    assert len(subscriber.drain(uid)) == 0
    # When the publisher hears of the second one
    peer._server.community.look_in(federation.config.lookup.groups, [first.address, second.address])
    # Expect them at the subscriber, in order
    eventually(lambda: subscriber.queue_size(uid) == 5)
    assert [obj.platform.sequence for obj in subscriber.drain(uid)] == [1, 2, 3, 4, 5]
    assert subscriber.losses(uid) == {}


def test_many_registrations_at_once_lose_no_first_object(federation: Any, figures: Any) -> None:
    # Given a subscriber, and publishers that register and publish at once, one after the other and each but once
    federation.pad()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    sent = []
    for number in range(50):
        registration = publisher.register_publisher(at, figures.schema, figures.metadata(publisher=f"{number}th"))
        sent.append(publisher.publish(registration, figures.metadata(publisher=f"{number}th")))
    # Expect each first object
    got = [subscriber.receive(uid).object_id for _ in range(50)]
    assert sorted(got) == sorted(sent)


def test_waiting_for_subscribers_ends_when_they_have_come(publishing: Any, federation: Any, figures: Any) -> None:
    # Given a registration that nobody has subscribed to
    registration = publishing.register(figures.figure_1, figures.schema)
    assert publishing.adapter.wait_for_subscribers(registration, timeout=0.2) == 0
    # When two subscribe meanwhile
    subscriber = federation.subscriber()

    def subscribe() -> None:
        for _ in range(2):
            subscriber.register_subscriber(type_name=TYPE)

    thread = threading.Thread(target=subscribe)
    thread.start()
    # Expect to be told as soon as they are there
    assert publishing.adapter.wait_for_subscribers(registration, 2, timeout=60.0) == 2
    thread.join()


def test_a_peer_publisher_that_closes_at_once_leaves_its_objects_with_those_who_were_told(
    federation: Any, figures: Any
) -> None:
    # Given a subscriber that stands
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    # When a peer registers, publishes and closes in one breath
    for _ in range(3):
        with PublisherAdapter(federation.config) as peer:
            registration = peer.register_publisher(figures.schema, figures.figure_1)
            for _ in range(5):
                peer.publish(registration, figures.figure_1)
        # Expect all of it
        assert [subscriber.receive(uid).platform.sequence for _ in range(5)] == [1, 2, 3, 4, 5]
    assert subscriber.losses(uid) == {}


def test_a_subscriber_that_is_connecting_while_a_publisher_closes_is_not_taken_for_one_that_has_gone(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscriber whose data connection has come, and is about to be taken when the peer publisher drains
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    peer = federation.peer()
    begin, drain, waits = HubSender._begin, SubscriberSession.drain, list[float]()

    def drain_first(*arguments: Any) -> None:
        with monkeypatch.context() as spied:
            spied.setattr(SubscriberSession, "drain", lambda session, most: waits.append(most) or drain(session, 0.0))
            peer._server.delegate.drain(5.0, closing=True)
        begin(*arguments)

    monkeypatch.setattr(HubSender, "_begin", drain_first)
    # When it comes for an object
    peer.publish(peer.register_publisher(figures.schema, figures.figure_1), figures.figure_1)
    assert subscriber.receive(uid) is not None
    # Expect that the drain would have waited for it
    assert waits
    assert min(waits) > 0.0


def test_a_subscription_that_has_just_come_is_catching_up_for_whoever_stops(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a peer publisher with an object, and a subscriber that was told of it
    subscriber = federation.subscriber()
    subscriber.register_subscriber(type_name=TYPE)
    peer = federation.peer()
    delegate, seen = peer._server.delegate, list[int]()
    come = threading.Event()
    notify, subscribe, published = delegate.tables.changed.notify_all, delegate.subscribers.subscribe, threading.Event()
    monkeypatch.setattr(
        delegate.subscribers, "subscribe", lambda *of, **more: published.wait(60.0) and subscribe(*of, **more)
    )
    monkeypatch.setattr(delegate.subscribers.late_joiners, "step", lambda: come.wait(0.1))  # it takes its time

    def notified() -> None:
        notify()
        if delegate.tables.subscriptions:
            seen.append(delegate.subscribers.late_joiners.count)
            come.set()

    monkeypatch.setattr(delegate.tables.changed, "notify_all", notified)
    # When it subscribes, and those who wait for that are woken
    peer.publish(peer.register_publisher(figures.schema, figures.figure_1), figures.figure_1)
    published.set()
    assert come.wait(60.0)
    # Expect them to find it catching up
    assert seen[0] == 1


def test_a_publisher_that_nobody_was_told_of_waits_for_nobody(federation: Any, figures: Any) -> None:
    # Given nobody who subscribes to it, and somebody who subscribes to something else
    federation.subscriber().register_subscriber(type_name="something else")
    peer = PublisherAdapter(federation.config)
    registration = peer.register_publisher(figures.schema, figures.figure_1)
    peer.publish(registration, figures.figure_1)
    # When it closes; Expect that it asks for no time
    waited: list[float] = []
    peer._server.delegate.tables.changed.wait = waited.append  # type: ignore[assignment,method-assign]
    peer.close()
    assert waited == []


def test_who_has_come_and_gone_is_not_waited_for(federation: Any, figures: Any) -> None:
    # Given a subscriber that has come for the first object of a peer publisher, and left
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    peer = PublisherAdapter(federation.config)
    registration = peer.register_publisher(figures.schema, figures.figure_1)
    peer.publish(registration, figures.figure_1)
    assert subscriber.receive(uid) is not None
    subscriber.close()
    # When the publisher closes; Expect it to wait for nobody
    waited: list[float] = []
    peer._server.delegate.tables.changed.wait = waited.append  # type: ignore[assignment,method-assign]
    peer.close()
    assert waited == []


def test_a_delegate_that_was_away_and_is_back_gives_nothing_twice_and_tells_no_loss(
    federation: Any, figures: Any
) -> None:
    # Given a subscription that has stood at a delegate, and got an object there
    pad, publisher, subscriber = federation.pad(), federation.light(), federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    publisher.publish(figures.register(publisher), figures.figure_1)
    assert subscriber.receive(uid) is not None
    # When the session there has ended, as after a long silence, and the delegate is found again
    local = subscriber._subscriptions.find(uid)
    (session,) = subscriber._subscriptions.sessions.all()
    again = subscriber._subscriptions.sessions._made(session.ref)
    # Expect it to be asked for nothing of before, and another delegate for all since the subscription stands
    assert local.stood_at == {pad.server_id}
    assert again.registry._age(local, "") == NOT_BEFORE
    elsewhere = subscriber._subscriptions.sessions._made(msgspec.structs.replace(session.ref, service_id="f" * 32))
    assert elsewhere.registry._age(local, "") >= 0.0
    for made in (again, elsewhere):
        made.link.close()
