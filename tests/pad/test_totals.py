"""A delegate's totals come out even, whatever happens between one step and the next; nobody gets another's part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config
from jbi_pubsub.core.config import PadSection, QueueSection
from jbi_pubsub.core.errors import BackPressureError, UnknownUidError
from jbi_pubsub.core.info_object import Cause, Head, InfoObject, Parcel, SchemaBundle, TypeName, object_id_of, pack
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest

pytestmark = pytest.mark.processes


def secret(name: object) -> str:
    """Of who owns what is called so."""
    return f"{name}".rjust(32)


def registration(number: int) -> str:
    """The id of a registration."""
    return owned_uid("registration", secret(number))


def request(number: int) -> PublisherRequest:
    """What its publisher sends."""
    return PublisherRequest(SchemaBundle("main.xsd", ()), (), secret=secret(number))


def mailed(name: str, *recipients: str, **options: Any) -> SubscriptionRequest:
    """A subscription by e-mail."""
    uid = owned_uid("subscription", secret(name))
    return SubscriptionRequest(uid, recipients=recipients, secret=secret(name), **options)


DIRECT = SubscriptionRequest("direct")
MAIL = mailed("mail", "chief@example.org", "deputy@example.org", direct=False)
BOTH = mailed("both", "chief@example.org", direct=True)


class Gate:
    """A type that lets everything pass."""

    type = TypeName("t")
    digest = "totals"
    bundle = SchemaBundle("t.xsd", ())

    def validate(self, _root: Any) -> None: ...

    def impossible(self, _said: str, _namespaces: Any, _registered: Any = ()) -> tuple[str, ...]:
        return ()

    def check_invariants(self, _root: Any, _registered: Any, _metadata: bytes = b"") -> None: ...


@dataclass
class World:
    """A delegate without network, and one publisher of it."""

    config: Config = field(default_factory=Config)
    announced: set[str] = field(default_factory=set)
    delegate: Delegate = field(init=False)
    connection: str = field(init=False)
    registration: Registration = field(init=False)

    def __post_init__(self) -> None:
        self.delegate = Delegate(
            "d" * 32,
            config=self.config,
            types=self,
            announcer=self,
            subscriptions_ref=ServiceRef("d", "subscriptions", ("127.0.0.1:1",)),
            clock=lambda: 0.0,
        )
        self.connection = self.delegate.publishers.connect("publisher", 60.0)[0].connection_id
        self.registration = self.register(1)

    def register(self, number: int) -> Registration:
        """One more registration of the publisher."""
        return self.delegate.registrations.register(
            self.connection, request(number), uid=registration(number), number=number
        )

    def publish(self, sequence: int, payload: bytes = b"<x><y/></x>", *, offer: bool = True) -> Deliveries:
        """An object as it comes over the wire."""
        uid = self.registration.uid
        head = Head(object_id_of(uid, sequence), uid, sequence, 1.0, "t", "1.0", b"<m/>", len(payload))
        deliveries = Deliveries()
        parcel = Parcel.received(b"".join(pack(head, payload).parts))
        for _, why in self.delegate.publishers.publish(self.registration, [parcel], deliveries):
            raise why
        if offer:
            self.delegate.pipeline.distribution.deliver(deliveries)
        return deliveries

    def subscribe(self, *requests: SubscriptionRequest) -> str:
        """Subscribe, under one session."""
        session, _ = self.delegate.sessions.open("subscriber", 60.0)
        for request in requests:
            self.delegate.subscribers.subscribe(session, request, 60.0)
        return session

    def totals(self) -> tuple[int, dict[str, int]]:
        """Matched, and lost by cause."""
        status = self.delegate.status()
        return status["matched"], {cause: count for cause, count in status["lost"].items() if count}  # type: ignore[return-value,attr-defined]  # plain data

    def open(self, _bundle: SchemaBundle) -> Gate:
        return Gate()

    def forget(self, _type: TypeName) -> None: ...

    def join(self, item: ServiceItem, secret: str = "") -> None:  # noqa: ARG002  # the protocol's parameter
        self.announced.add(item.service_id)

    def leave(self, *service_ids: str) -> None:
        self.announced.difference_update(service_ids)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.delegate.close()


# -- mail ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut_first", [True, False])
def test_a_mail_has_the_payload_of_its_own_subscription(
    cut_first: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given e-mail subscriptions with and without a filter, in either order
    cut = mailed("cut", "chief@example.org", direct=False, payload_filter="//y")
    whole = mailed("whole", "chief@example.org", direct=False)
    world.subscribe(*((cut, whole) if cut_first else (whole, cut)))
    sent: dict[str, bytes] = {}

    def offer(subscription: Subscription, _obj: InfoObject, payload: bytes) -> bool:
        sent[subscription.uid] = payload
        return True

    monkeypatch.setattr(world.delegate.mail.dispatcher, "offer", offer)
    # When an object comes, expect each to be mailed what is its own
    world.publish(1, b"<x><y>kept</y><z>left out</z></x>")
    assert b"left out" not in sent[cut.uid]
    assert b"kept" in sent[cut.uid]
    assert sent[whole.uid] == b"<x><y>kept</y><z>left out</z></x>"


def test_an_object_whose_email_subscription_is_cancelled_meanwhile_counts_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an e-mail subscription to two recipients that is cancelled between the match and the mail queue
    world.subscribe(MAIL)
    offer = world.delegate.mail.dispatcher.offer

    def cancelled_before(subscription: Subscription, obj: InfoObject, payload: bytes) -> bool:
        world.delegate.subscribers.unsubscribe("", MAIL.uid, administer=True)
        return offer(subscription, obj, payload)

    monkeypatch.setattr(world.delegate.mail.dispatcher, "offer", cancelled_before)
    # When an object matches it, expect that it has matched once, and is lost for both
    world.publish(1)
    assert world.totals() == (1, {"cancelled": 2})


def test_an_object_that_waits_in_the_mail_queue_counts_once_when_its_subscription_is_cancelled(world: World) -> None:
    world.delegate.mail.dispatcher.stop()  # nothing goes out, and what is offered is lost
    world.subscribe(MAIL)
    world.publish(1)
    assert world.totals() == (1, {"shutdown": 2})
    world.delegate.subscribers.unsubscribe("", MAIL.uid, administer=True)
    assert world.totals() == (1, {"shutdown": 2})


def test_a_loss_that_becomes_known_after_the_end_of_its_subscription_is_in_the_totals(world: World) -> None:
    # Given a subscription with a queue and an e-mail recipient
    session = world.subscribe(BOTH)
    subscription = world.delegate.tables.subscriptions[session, BOTH.uid]
    # When it is cancelled, and what the mail server had said before is told only now
    world.delegate.subscribers.unsubscribe(session, BOTH.uid)
    world.delegate.mail.lose(subscription, Cause.MAIL_REFUSED, 1, "")
    # Expect that to be counted
    assert world.totals() == (0, {"mail_refused": 1})


# -- the account --------------------------------------------------------------------------------------------------


def test_the_account_is_even_when_publishers_and_subscribers_have_gone(world: World) -> None:
    # Given an object that nobody wants, one that somebody gets and of which a filter leaves nothing for another one
    world.publish(1)
    session = world.subscribe(
        DIRECT, msgspec.structs.replace(DIRECT, uid="cut", payload_filter="//nothing", suppress_empty=True)
    )
    world.publish(2)
    # When all have gone
    world.delegate.sessions.close(session)
    world.delegate.publishers.disconnect(world.connection)
    # Expect each object to be still accounted for
    status: Any = world.delegate.status()
    assert (status["published"], status["unmatched"], status["matched"], status["suppressed"]) == (2, 1, 2, 1)
    assert status["matched"] == status["suppressed"] + sum(status["lost"].values())


def test_what_is_under_way_is_accounted_for_object_by_object(world: World) -> None:
    # Given three subscriptions of a process, which get an object together, and one that has not gone out
    session = world.subscribe(DIRECT, *(msgspec.structs.replace(DIRECT, uid=uid) for uid in ("second", "third")))
    world.publish(1)
    world.delegate.tables.session(session)._take(10, 1 << 20)
    world.publish(2)
    status: Any = world.delegate.status()
    assert (status["matched"], status["in_flight"], status["queued"]) == (6, 3, 3)
    # When a large one goes in chunks, expect it to be under way from its first chunk on
    world.publish(3, b"x" * (1 << 20))
    for _ in range(2):  # what waited before, and that chunk
        world.delegate.tables.session(session)._take(10, 1)
    status = world.delegate.status()
    assert (status["matched"], status["in_flight"], status["queued"]) == (9, 7, 2)
    [shown] = status["sessions"]
    assert status["queued"] == sum(shown["queued"].values())


def test_no_counter_goes_back_while_a_subscription_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a subscription for which something has matched
    session = world.subscribe(DIRECT)
    world.publish(1)
    # When the status is asked for in the middle of its end; Expect the totals to hold it
    seen: list[tuple[int, dict[str, int]]] = []
    cancel = world.delegate.mail.dispatcher.cancel

    def meanwhile(subscription: Subscription) -> int:
        seen.append(world.totals())
        return cancel(subscription)

    monkeypatch.setattr(world.delegate.mail.dispatcher, "cancel", meanwhile)
    world.delegate.subscribers.unsubscribe(session, "direct")
    assert seen == [(1, {"cancelled": 1})]
    assert world.totals() == (1, {"cancelled": 1})


@pytest.mark.parametrize("cause", [Cause.SUBSCRIBER_DEAD, Cause.CANCELLED])
def test_what_matched_as_the_session_ended_is_lost_for_the_same_reason(cause: Cause, world: World) -> None:
    # Given an object that was matched, and is to be delivered when the subscriber's session ends
    session = world.subscribe(DIRECT)
    deliveries = world.publish(1, offer=False)
    world.delegate.sessions.drop(session, cause)
    world.delegate.pipeline.distribution.deliver(deliveries)
    assert world.totals() == (1, {cause: 1})


# -- gaps ---------------------------------------------------------------------------------------------------------


def test_objects_refused_for_want_of_room_are_told_as_a_gap_once() -> None:
    # Given a delegate whose memory is full of what waits for a subscriber
    config = Config(pad=PadSection(max_queued_bytes=1000), queue=QueueSection(block_seconds=0.0))
    world = World(config)
    session = world.subscribe(DIRECT)
    world.publish(1, b"x" * 2000)
    # When three objects are refused
    for sequence in (2, 3, 4):
        with pytest.raises(BackPressureError):
            world.publish(sequence)
    assert world.totals() == (1, {})
    # When there is room, and a fourth comes, expect three to be told as missing
    world.delegate.tables.session(session)._take(10, 1 << 20)
    world.publish(5)
    assert world.totals() == (2, {"sequence_gap": 3})
    world.delegate.close()


# -- ends that meet -----------------------------------------------------------------------------------------------


def test_a_registration_that_is_taken_back_twice_at_once_ends_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two registrations with the same entries, one of them taken back twice at the same moment
    world.register(2)
    drop = world.delegate.registrations.drop

    def meanwhile(registrations: list[Registration]) -> None:
        monkeypatch.undo()
        with suppress(UnknownUidError):
            world.delegate.publishers.unregister(world.connection, registration(2))
        drop(registrations)

    monkeypatch.setattr(world.delegate.registrations, "drop", meanwhile)
    world.delegate.publishers.unregister(world.connection, registration(2))
    # Expect the other one to stand, and to be matched with whoever comes
    assert world.announced == {registration(1)}
    world.subscribe(DIRECT)
    world.publish(1)
    assert world.totals() == (1, {})


def test_a_registration_that_is_taken_back_as_its_publishers_lease_ends_ends_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher with a registration like another's, which it takes back as its lease ends
    other, _ = world.delegate.publishers.connect("other", 60.0)
    world.delegate.registrations.register(other.connection_id, request(2), uid=registration(2), number=1)
    drop = world.delegate.registrations.drop
    known = world.delegate.tables.connection

    def meanwhile(registrations: list[Registration], *of: object) -> None:
        monkeypatch.setattr(world.delegate.registrations, "drop", drop)
        monkeypatch.setattr(world.delegate.tables, "connection", lambda _uid: other)
        with suppress(UnknownUidError):
            world.delegate.publishers.unregister(other.connection_id, registration(2))
        monkeypatch.setattr(world.delegate.tables, "connection", known)
        drop(registrations, *of)

    monkeypatch.setattr(world.delegate.registrations, "drop", meanwhile)
    world.delegate.publishers.disconnect(other.connection_id)
    # Expect the first one to stand
    assert world.announced == {registration(1)}
    world.subscribe(DIRECT)
    world.publish(1)
    assert world.totals() == (1, {})
