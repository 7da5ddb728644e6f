"""Sessions of a subscriber, with delegates and with lookup services: one failure costs nothing beside it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import jbi_pubsub.lookup.channels as lookup_channels
import jbi_pubsub.subscriber.registry as registry_module
import jbi_pubsub.subscriber.session as session_module
from jbi_pubsub import Config, SubscriberAdapter
from jbi_pubsub.bridge.platform import SideSubscriber
from jbi_pubsub.core.errors import (
    AdapterStateError,
    ConfigurationError,
    JbiError,
    MetadataError,
    PredicateError,
    ProtocolError,
    TypeConflictError,
    UnknownLeaseError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, Platform, TypeName
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.deliveries import ITEM, LOSS, OBJECT
from jbi_pubsub.protocol.entries import PAD_TYPE
from jbi_pubsub.protocol.replies import Grant, OpenReply, QueryOpened, SubscribeReply
from jbi_pubsub.protocol.requests import QueryRequest, SubscriptionRequest
from jbi_pubsub.protocol.services import SubscriptionsProxy
from jbi_pubsub.subscriber.coverage import ArchivePlace
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.session import DelegateSession
from jbi_pubsub.subscriber.session_queries import QueryPart
from jbi_pubsub.subscriber.subscription import LocalSubscription
from jbi_pubsub.subscriber.watches import TemplateWatches

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def _full(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> tuple[Callable[[], str], SubscriberAdapter, str, str]:
    """How to publish at a delegate with room for one subscription, a subscriber, its subscription that stands, and
    the one that was refused."""
    section = msgspec.structs.replace(federation.config.pad, max_subscriptions=1)
    federation.pad(config=msgspec.structs.replace(federation.config, pad=section))
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    standing = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(standing) == 1
    refused = subscriber.register_subscriber(type_name=TYPE)
    eventually(lambda: refused in subscriber.status()["sessions"][0]["refused"])
    return lambda: publisher.publish(registration, figures.figure_1), subscriber, standing, refused


def test_a_refused_subscription_holds_up_no_other_delivery(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate with room for one subscription, and a subscriber whose second one it refuses
    publish, subscriber, uid, _ = _full(federation, figures, eventually)
    # When objects still come for a subscription that was cancelled
    (session,) = subscriber._subscriptions.sessions.all()
    began = time.monotonic()
    session.reader.take_batch([memoryview(ITEM.pack(OBJECT, 1000)) for _ in range(3)])
    # Expect them to be passed over at once, not when the refused one is asked for again, a minute later
    assert time.monotonic() - began < 30.0
    # Expect the standing one to get its objects
    publish()
    assert subscriber.receive(uid, 60.0).platform.sequence == 1


def test_a_cancelled_subscription_is_no_longer_shown_as_refused(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that a delegate has no room for
    _, subscriber, standing, refused = _full(federation, figures, eventually)
    # When it is cancelled, expect the session to forget it
    subscriber.cancel_subscription(refused)
    assert subscriber.status()["sessions"][0]["refused"] == {}
    assert subscriber.wait_matched(standing) == 1


def test_a_refused_subscription_is_asked_for_again_when_there_may_be_room(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that a delegate has no room for
    monkeypatch.setattr(registry_module, "REFUSED_AGAIN", 0.01)
    publish, subscriber, standing, refused = _full(federation, figures, eventually)
    # When there is room, and nothing else happens
    subscriber.cancel_subscription(standing)
    # Expect it to stand, and to get its objects
    assert subscriber.wait_matched(refused) == 1
    publish()
    assert subscriber.receive(refused, 60.0).platform.sequence == 1
    assert subscriber.status()["sessions"][0]["refused"] == {}


def test_a_malformed_loss_notice_is_an_error_of_the_protocol(
    federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that stands at a delegate
    federation.pad()
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid) == 1
    (session,) = subscriber._subscriptions.sessions.all()
    (number,) = session.flows.by_number
    # When the delegate tells of a loss in bytes that are no notice, or no text
    for body in (b"", b"\xc1", msgspec.msgpack.encode({"count": 1}), b"\x81\xa5cause\xa2\xff\xff"):
        with pytest.raises(ProtocolError):
            session.reader.take_batch([memoryview(ITEM.pack(LOSS, number) + body)])
    # Expect no loss to be counted; expect a good one to be
    assert subscriber.losses(uid) == {}
    notice = LossNotice(uid, Cause.QUEUE_OVERFLOW, 3)
    session.reader.take_batch([memoryview(ITEM.pack(LOSS, number) + msgspec.msgpack.encode(notice))])
    assert subscriber.losses(uid) == {"queue_overflow": 3}


def test_a_lookup_service_that_refuses_for_a_while_is_asked_again(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service with no room for another client's events, and a delegate that is registered there
    pad = federation.pad()
    pad.community.wait_joined(pad.server_id, 60.0)
    monkeypatch.setattr(lookup_channels, "CHANNELS_MOST", 0)
    with closing(JoinManager(federation.config, name="client")) as client:
        # When a client comes and is refused
        eventually(lambda: [s for s in client.sessions() if s.away_since is not None])
        assert [s.connected for s in client.sessions()] == [False]
        # When there is room
        monkeypatch.setattr(lookup_channels, "CHANNELS_MOST", 10_000)
        # Expect its session to come to life, and to find the delegate
        eventually(lambda: [s.connected for s in client.sessions()] == [True])
        found = client.lookup(ServiceTemplate(types=(PAD_TYPE,)), 10)
        assert [item.service_id for item in found] == [pad.server_id]


def test_a_subscriber_adapter_that_could_not_open_does_not_stand_in_the_way_of_the_next(federation: Any) -> None:
    # Given a configuration with a locator that is none
    wrong = msgspec.structs.replace(federation.config.lookup, locators=("host:port",))
    # When an adapter is opened with it, expect an error
    with pytest.raises(JbiError) as failed:
        SubscriberAdapter(msgspec.structs.replace(federation.config, lookup=wrong))
    assert isinstance(failed.value, ConfigurationError)
    # Expect a better one to open
    SubscriberAdapter(federation.config).close()


def test_a_side_of_a_bridge_that_could_not_open_gives_up_no_name_of_another(federation: Any) -> None:
    # Given an adapter, and a side of a bridge with the same name, which may be
    wrong = msgspec.structs.replace(federation.config.lookup, locators=("host:port",))
    with closing(SubscriberAdapter(federation.config, name="app")):
        with pytest.raises(ConfigurationError):
            SideSubscriber(msgspec.structs.replace(federation.config, lookup=wrong), name="app")
        # Expect the adapter's name to be its own still
        with pytest.raises(AdapterStateError, match="is open in this process already"):
            SubscriberAdapter(federation.config, name="app")


def test_a_durable_subscription_is_open_once_in_an_adapter(federation: Any) -> None:
    # Given a durable subscription, in the adapter that has it open
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, durable="d")
    # When it is opened there again, expect that refused: objects would come to one of both
    with pytest.raises(AdapterStateError, match="'d' is open here already"):
        subscriber.register_subscriber(type_name=TYPE, durable="d")
    assert subscriber.matching(uid).registrations == 0
    # Expect it to begin anew when it is cancelled
    subscriber.cancel_subscription(uid)
    assert subscriber.register_subscriber(type_name=TYPE, durable="d") == uid


def test_a_cancellation_that_nobody_answers_is_tried_again(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given two subscriptions that stand at a delegate
    pad = federation.pad()
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    kept, cancelled = (subscriber.register_subscriber(type_name=TYPE) for _ in range(2))
    assert subscriber.wait_matched(kept) == subscriber.wait_matched(cancelled) == 1
    (session,) = subscriber._subscriptions.sessions.all()
    unsubscribe = session.link.proxy.unsubscribe
    failures = iter([WireTimeoutError("no answer"), WireError("cut")])

    def fails_twice(right: str, uid: str) -> None:
        for failure in failures:
            raise failure
        unsubscribe(right, uid)

    monkeypatch.setattr(session.link.proxy, "unsubscribe", fails_twice)
    # When one is cancelled while the delegate does not answer
    subscriber.cancel_subscription(cancelled)
    # Expect the delegate to come to know of it, and the other one to stand
    eventually(lambda: [s["uid"] for s in pad.status()["subscriptions"]] == [kept])
    eventually(lambda: not session.registry.remotes.to_cancel)
    assert subscriber.wait_matched(kept) == 1


class _Hurrying:
    """A clock on which ten seconds pass between two looks."""

    def __init__(self) -> None:
        self._looks = itertools.count(step=10)

    def monotonic(self) -> float:
        return float(next(self._looks))


def test_an_object_that_overtakes_the_answer_to_its_subscription_is_not_lost(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription that stands, and a second one that the delegate has, but whose answer is long under way
    federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    first = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(first) == 1
    (session,) = subscriber._subscriptions.sessions.all()
    stands, asked, answer = threading.Event(), threading.Event(), threading.Event()
    subscribe, await_standing = session.link.proxy.subscribe, session.flows.await_flow

    def slowly(*arguments: Any) -> Any:
        granted = subscribe(*arguments)
        stands.set()
        assert answer.wait(60.0)
        return granted

    def noticed(number: int) -> Any:
        asked.set()
        return await_standing(number)

    monkeypatch.setattr(session.link.proxy, "subscribe", slowly)
    monkeypatch.setattr(session.flows, "await_flow", noticed)
    monkeypatch.setattr(session_module, "time", _Hurrying())
    second = subscriber.register_subscriber(type_name=TYPE)
    assert stands.wait(60.0)
    # When an object comes for both, and then the answer
    publisher.publish(registration, figures.figure_1)
    assert asked.wait(60.0)
    answer.set()
    # Expect both to have it
    assert subscriber.receive(first, 60.0).platform.sequence == 1
    assert subscriber.receive(second, 60.0).platform.sequence == 1


@pytest.mark.parametrize("left", ["nothing", "mail"])
def test_a_session_that_nobody_needs_is_not_missed_when_it_is_lost(
    left: str, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber whose only direct subscription at a delegate was cancelled, with one by mail, or without
    federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    if left == "mail":
        mailed = subscriber.register_subscriber(type_name=TYPE, recipients=["someone@example.org"])
        assert subscriber.wait_matched(mailed) == 1
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid) == 1
    subscriber.cancel_subscription(uid)
    (session,) = subscriber._subscriptions.sessions.all()
    rounds: list[int] = []
    reconcile = session._reconcile
    monkeypatch.setattr(session, "_reconcile", lambda: (rounds.append(1), reconcile()))
    # When the delegate forgets its session
    session._lose_session(WireError("forgotten"))
    # Expect it to end, or to rest until there is something to do, and not to ask itself again and again
    if left == "nothing":
        eventually(lambda: subscriber.status()["sessions"] == [])
    else:
        eventually(lambda: not session.link.is_lost)
    assert len(rounds) <= 2
    # Expect the next subscription to have a session of its own
    again = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(again) == 1
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(again, 60.0).platform.sequence == 1


@pytest.mark.parametrize("recipients", [[], ["someone@example.org"]], ids=["direct", "mail"])
def test_a_subscription_whose_answer_is_lost_and_that_is_cancelled_then_does_not_stand_for_ever(
    recipients: list[str],
    federation: Any,
    figures: Any,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    # Given a session, and a delegate whose answer to the next subscription is lost
    pad = federation.pad()
    publisher = federation.light()
    figures.register(publisher)
    subscriber = federation.subscriber()
    kept = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(kept) == 1
    (session,) = subscriber._subscriptions.sessions.all()
    subscribe = session.link.proxy.subscribe
    asked, cancelled = threading.Event(), threading.Event()

    def fails_once(*arguments: Any) -> Any:
        answer = subscribe(*arguments)
        if not asked.is_set():
            asked.set()
            assert cancelled.wait(60.0)
            raise WireTimeoutError("no answer")
        return answer

    monkeypatch.setattr(session.link.proxy, "subscribe", fails_once)
    lost = subscriber.register_subscriber(type_name=TYPE, recipients=recipients)
    assert asked.wait(60.0)
    assert len(pad.status()["subscriptions"]) == 2
    # When it is cancelled before that is noticed
    subscriber.cancel_subscription(lost)
    cancelled.set()
    # Expect the delegate to come to know of it: nothing else would end it, as the session goes on
    eventually(lambda: [s["uid"] for s in pad.status()["subscriptions"]] == [kept])
    eventually(lambda: len(list(session.registry.remotes)) == 1)


def test_a_subscription_that_comes_while_the_last_one_of_its_template_goes_is_watched_for(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription, and a second one of the same template that another thread is about to register
    federation.pad()
    subscriber = federation.subscriber()
    going = subscriber.register_subscriber(type_name=TYPE)
    watch = subscriber._subscriptions.watches.of(going)
    begin = watch.begin

    def meanwhile(*arguments: Any) -> None:
        # When the first one is cancelled just then
        subscriber.cancel_subscription(going)
        begin(*arguments)

    monkeypatch.setattr(watch, "begin", meanwhile)
    coming = subscriber.register_subscriber(type_name=TYPE, timeout=2.0)
    # Expect the second one to be matched with a publisher that comes
    figures.register(federation.light())
    assert subscriber.wait_matched(coming) == 1


def test_a_session_that_has_ended_renews_nothing_any_more(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription and a direct one that stand at a delegate
    federation.pad()
    figures.register(federation.light())
    subscriber = federation.subscriber()
    mailed = subscriber.register_subscriber(type_name=TYPE, recipients=["someone@example.org"])
    direct = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(mailed) == subscriber.wait_matched(direct) == 1
    assert len(subscriber._subscriptions.sessions.renewals) == 2
    # When the delegate is given up
    (session,) = subscriber._subscriptions.sessions.all()

    def away() -> None:
        raise WireError("away")

    monkeypatch.setattr(session, "_reconcile", away)
    monkeypatch.setattr(session, "_is_over", lambda _seconds: True)
    with session.link.changed:  # whereupon its thread looks
        session.link.is_dirty = True
        session.link.changed.notify_all()
    # Expect no lease there to be renewed
    eventually(lambda: len(subscriber._subscriptions.sessions.renewals) == 0)
    eventually(lambda: not subscriber._subscriptions.sessions.all())


@pytest.mark.parametrize(
    "locations",
    ["urn:m m.xsd", "urn:c c.xsd  urn:m m.xsd", "urn:m m.xsd urn:c c.xsd", "urn:m\nm.xsd ", "urn:m %6D.xsd"],
)
def test_a_template_names_the_schema_of_its_namespace(federation: Any, tmp_path: Path, locations: str) -> None:
    # Given a template with the places of schemas, of which one is for the namespace of its document element
    head = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace='
    (tmp_path / "c.xsd").write_text(f'{head}"urn:c"><xs:element name="id" type="xs:token"/></xs:schema>')
    (tmp_path / "m.xsd").write_text(
        f'{head}"urn:m"><!-- invariant --><xs:element name="r" type="xs:token"/></xs:schema>'
    )
    xsi = f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="{locations}"'
    (tmp_path / "t.xml").write_text(f'<m:r xmlns:m="urn:m" {xsi}>a</m:r>')
    # When it is subscribed with, expect that schema to be found
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(tmp_path / "t.xml")
    assert [entry.cls.name for entry in subscriber._subscriptions.find(uid).request.entries][1:] == ["{urn:m}r#REntry"]


def test_nothing_is_kept_of_a_type_that_no_subscription_is_for_any_more(federation: Any, figures: Any) -> None:
    # Given two subscriptions with a template of a type, one of which is cancelled
    subscriber = federation.subscriber()
    template = {"template": figures.figure_3, "schema": figures.schema}
    first, second = (subscriber.register_subscriber(**template) for _ in range(2))
    subscriber.cancel_subscription(first)
    # Expect another schema of the type to be refused
    more = b"<xs:simpleType name='Next'><xs:restriction base='xs:string'/></xs:simpleType></xs:schema>"
    changed = figures.schema.read_bytes().replace(b"</xs:schema>", more)
    with pytest.raises(TypeConflictError):
        subscriber.register_subscriber(template=figures.figure_3, schema=changed)
    # When the other one is cancelled as well, and a third one comes to nothing
    subscriber.cancel_subscription(second)
    with pytest.raises(PredicateError):
        subscriber.register_subscriber(**template, predicate="/metadata[")
    with pytest.raises(MetadataError):
        subscriber.register_subscriber(template=figures.figure_1, schema=figures.schema)
    # Expect it to be taken
    assert subscriber.register_subscriber(template=figures.figure_3, schema=changed)


def test_sessions_are_closed_together(federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a subscriber with sessions at two delegates
    for name in ("alpha", "beta"):
        federation.pad(name)
        publisher = federation.light()
        publisher.register_publisher(publisher.connect_to_delegate(name, "rome"), figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid, 2) == 2
    # When it is closed, and each delegate answers when the other one has been asked as well
    both = threading.Barrier(2)
    close_session = SubscriptionsProxy.close_session

    def closes(proxy: SubscriptionsProxy, session_id: str) -> None:
        both.wait(60.0)
        close_session(proxy, session_id)

    monkeypatch.setattr(SubscriptionsProxy, "close_session", closes)
    subscriber.close()
    # Expect neither to have been waited for alone
    assert not both.broken


# -- a session that is lost on another thread -----------------------------------------------------------------------


class _Leases:
    """Stands for the renewal manager: which leases are renewed."""

    def __init__(self) -> None:
        self.held: list[Any] = []

    def manage(self, key: Any, *_given: Any, **_named: Any) -> None:
        self.held.append(key[1])

    def hasten(self, key: Any) -> None:
        pass

    def remove(self, key: Any) -> None:
        if key[1] in self.held:
            self.held.remove(key[1])


class _Delegate:
    """Stands for a delegate's calls. `meanwhile` happens before it has answered to one."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed: list[str] = []
        self.subscribed: list[str] = []
        self.meanwhile: dict[str, Callable[[], None]] = {}
        self.opened_at = 0.0

    def open(self, *_given: Any) -> OpenReply:
        self.opened += 1
        self._happens("open")
        return OpenReply(f"session-{self.opened}", Lease(f"lease-{self.opened}", 30.0), server="delegate-1")

    def subscribe(self, session_id: str, requests: Any, *_given: Any) -> Any:
        self.subscribed.append(session_id)
        self._happens("subscribe")
        return tuple(SubscribeReply(granted=Grant(len(self.subscribed))) for _ in requests)

    def open_query(self, session_id: str, *_given: Any) -> QueryOpened:
        self.subscribed.append(session_id)
        self._happens("open_query")
        return QueryOpened(len(self.subscribed), 0)

    def close_session(self, session_id: str) -> None:
        self.closed.append(session_id)

    def close(self) -> None: ...

    def _happens(self, call: str) -> None:
        self.meanwhile.pop(call, lambda: None)()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session whose thread does not run: what it does the test does. With its delegate, the leases, and a
    subscription that is wanted there."""
    monkeypatch.setattr(threading.Thread, "start", lambda _thread: pytest.fail("no threads here"))
    leases, delegate = _Leases(), _Delegate()
    session = DelegateSession(
        ServiceRef("delegate-1", "subscriptions", ("127.0.0.1:1",)), Config(), leases,  # type: ignore[arg-type]
        name="test", watches=TemplateWatches(None, None, None),  # type: ignore[arg-type]
        ended=lambda _session: None,
    )  # fmt: skip
    session.link.proxy = session.link.history = delegate  # type: ignore[assignment]
    subscription = LocalSubscription(SubscriptionRequest("s"), None, ListenerPool("test"))
    session.want(subscription)
    return SimpleNamespace(session=session, leases=leases, delegate=delegate, subscription=subscription)


def _turn(alone: Any) -> None:
    """What the session's thread does in a turn."""
    alone.session._open_if_needed()
    alone.session._reconcile()


def _lost(alone: Any) -> None:
    """As the renewal manager's thread says it."""
    alone.session._lose_session(UnknownLeaseError("unknown"), f"session-{alone.delegate.opened}")


@pytest.mark.parametrize("between", ["the connection is stopped", "a query is told"])
def test_a_loss_is_told_though_the_next_session_opens_at_once(between: str, alone: Any) -> None:
    # Given a session with a subscription
    _turn(alone)
    part = SimpleNamespace(uid="q", opened=QueryOpened(9, 0), fail=lambda _why: None)
    # When it is lost, and its own thread opens the next one before the other thread is done with that
    if between == "a query is told":
        part.fail = lambda _why: _turn(alone)
        alone.session.queries.parts["q"] = part
    else:
        alone.session.connection.receiver = SimpleNamespace(stop=lambda: _turn(alone))
    _lost(alone)
    # Expect the loss to be told, the next lease to be renewed, and the subscription to stand
    assert alone.subscription.losses.by_cause == {"subscriber_dead": 1}
    assert alone.leases.held == ["session-2"]
    assert alone.session.stands("s")


def test_an_end_of_a_session_of_before_ends_no_later_one(alone: Any) -> None:
    _turn(alone)
    _lost(alone)
    _turn(alone)
    # When another thread hears late that the first one is not known any more
    alone.session._lose_session(UnknownLeaseError("unknown"), "session-1")
    assert alone.session.stands("s")
    assert alone.leases.held == ["session-2"]


@pytest.mark.parametrize("call", ["subscribe", "open_query"])
def test_what_is_granted_in_a_session_that_was_lost_meanwhile_is_asked_for_in_the_next(call: str, alone: Any) -> None:
    # Given a query beside the subscription
    part = QueryPart(
        "q", QueryRequest(), ArchivePlace(ServiceItem("", (), alone.session.ref), frozenset()), ListenerPool("test")
    )
    alone.session.ask(part)
    # When the session is lost before the answer to one of them has come
    alone.delegate.meanwhile[call] = lambda: _lost(alone)
    _turn(alone)
    # Expect neither to count as standing; in the next session both
    assert not alone.session.flows.by_number
    _turn(alone)
    assert alone.session.stands("s")
    assert alone.delegate.subscribed[-2:] == ["session-2", "session-2"]
    if call == "subscribe":  # it stood in the first one
        assert alone.subscription.losses.by_cause == {"subscriber_dead": 1}
        assert part.error is None


def test_a_session_that_opens_while_it_is_closed_does_not_stand(alone: Any) -> None:
    # When it is closed before the delegate has answered
    alone.delegate.meanwhile["open"] = alone.session.link.stopping.set
    with pytest.raises(WireError):
        _turn(alone)
    # Expect the delegate to be told, and no lease to be renewed
    assert alone.delegate.closed == ["session-1"]
    assert alone.leases.held == []


@pytest.mark.parametrize("is_older", [True, False])
def test_of_a_delegate_that_was_dead_before_it_a_subscription_is_told_nothing(is_older: bool, alone: Any) -> None:
    # Given a delegate that never answers; it was listed when the subscription was made, or came later
    alone.subscription.has_begun = is_older
    alone.session.registry.unwant(alone.subscription)
    alone.session.want(alone.subscription)
    # When it is given up, expect a loss alone where it may have had objects for the subscription
    alone.session._end(WireError("away"))
    assert alone.subscription.losses.by_cause == ({"delegate_dead": 1} if is_older else {})


def test_a_lost_session_whose_objects_have_gone_on_elsewhere_lost_nothing(
    alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription that has had an object from a delegate that is dead
    monkeypatch.setattr(registry_module, "LOOK_SECONDS", 0.001)
    _turn(alone)
    registration = Platform(1.0, "r", 1, 4, 0)
    obj = InfoObject("1", TypeName("t"), b"<m/>", b"", registration)
    (standing,) = alone.session.flows.by_number.values()
    standing.hand_on([obj])
    # When the next one comes from its successor while that is looked for
    coming = msgspec.structs.replace(obj, platform=msgspec.structs.replace(registration, sequence=2))
    looks = itertools.count()
    pauses = []

    def look(seconds: float) -> bool:
        pauses.append(seconds)
        if next(looks) == 3:
            alone.subscription.add([coming], lambda _count: None)
        return False

    alone.session.link.left = SimpleNamespace(wait=look)
    alone.session._end(WireError("away"))
    # Expect nothing to be told, and looks to be further and further apart: of ten thousand each takes its time
    assert alone.subscription.losses.by_cause == {}
    assert next(looks) == 4
    assert pauses == [0.001, 0.002, 0.004, 0.008]
