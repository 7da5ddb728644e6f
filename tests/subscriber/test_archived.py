"""An application and delegates with archives in memory: what queries give is what subscriptions got."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from keeping import MemoryKeeping

from jbi_pubsub import InfoObject, SubscriberAdapter, SubscriptionUid
from jbi_pubsub.core.access import ALLOWED, Decision
from jbi_pubsub.core.errors import AccessDeniedError, BackPressureError, ConfigurationError, UnknownUidError
from tests.conftest import Federation, Figures

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def _publish(archived: Federation, figures: Figures, delegate: str, latitudes: list[float], **options: Any) -> None:
    publisher = archived.light()
    at = publisher.connect_to_delegate(delegate, None)
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    for lat in latitudes:
        publisher.publish(registration, figures.metadata(lat=str(lat)), options.get("payload", b"<p/>"))
    publisher.flush()


def _taken(subscriber: SubscriberAdapter, uid: SubscriptionUid, count: int) -> list[InfoObject]:
    found = [obj for _ in range(count) if (obj := subscriber.receive(uid, 60.0)) is not None]
    assert len(found) == count
    return found


def _latitudes(objects: Any) -> list[str]:
    return [obj.metadata.split(b"<lat>")[1].split(b"</lat>")[0].decode() for obj in objects]


def test_an_archive_that_starts_meanwhile_is_asked(archived: Federation) -> None:
    # Given no archive; When somebody asks, and one is listed a moment later; Expect its answer
    app = archived.subscriber()
    starting = threading.Timer(0.2, archived.pad)
    starting.start()
    assert app.count() == 0
    starting.join()


def test_what_was_just_kept_is_found_though_lookup_services_are_told_late(
    archived: Federation, figures: Figures
) -> None:
    # Given a delegate whose own item comes late to the lookup services, each time
    pad = archived.pad("alpha", "rome")
    push = pad.community._push

    def late(items: dict[str, Any]) -> None:
        if pad.server_id in items:
            threading.Timer(0.5, push, [items]).start()
        else:
            push(items)

    pad.community._push = late  # type: ignore[method-assign]
    # When the first objects of a type are kept, and their publisher has left
    publisher = archived.light()
    at = publisher.connect_to_delegate("alpha", None)
    uid = publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)
    publisher.publish(uid, figures.figure_1)
    publisher.close()
    # Expect them to be found at once
    found = archived.subscriber().query(type_name="Intel_Imagery")
    assert len(list(found)) == 1


def test_an_archive_that_tells_lookup_services_no_types_is_asked_for_them(archived: Federation) -> None:
    # Given an archive whose types can't be told in one line, since one has a space in its name
    archived.pad("alpha", "rome")
    publisher, app = archived.light(), archived.subscriber()
    at = publisher.connect_to_delegate("alpha", None)

    def keep(name: str) -> None:
        publisher.publish(publisher.register_publisher(at, type_name=name, validate=False, persist=True), b"<m/>")
        publisher.flush()

    for name in ("mil.Track", "Air Track", "Image", "org.Image"):
        keep(name)
    # Expect a type to be found by its name and by the last part of it, a whole name first
    for name, meant in (("Track", "mil.Track"), ("Air Track", "Air Track"), ("Image", "Image")):
        assert [obj.type.name for obj in app.query(name)] == [meant]
        assert app.count(name) == 1
    # Expect it to be said that there is none of a name, or that there are several
    with pytest.raises(UnknownUidError, match="no archive has objects of type Picture"):
        app.count("Picture")
    keep("org.Track")
    with pytest.raises(ConfigurationError, match=r"mil\.Track, org\.Track"):
        app.count("Track")


@pytest.mark.row("Q-02")
def test_a_query_has_what_a_subscription_got(archived: Federation, figures: Figures) -> None:
    # Given two delegates with archives, a subscription, and objects at both
    for name in ("alpha", "beta"):
        archived.pad(name, "rome")
    subscriber = archived.subscriber()
    live = subscriber.register_subscriber(type_name=TYPE, predicate="//lat > 40 or //lat = 12")
    _publish(archived, figures, "alpha", [10, 41, 12])
    _publish(archived, figures, "beta", [42, 13, 43.5])
    got = {obj.object_id: obj for obj in _taken(subscriber, live, 4)}
    # When the archives are asked the same
    found = list(subscriber.query("Intel_Imagery", predicate="//lat > 40 or //lat = 12"))
    # Expect the same objects, byte for byte
    assert {obj.object_id: (obj.metadata, obj.payload) for obj in found} == {
        uid: (obj.metadata, obj.payload) for uid, obj in got.items()
    }
    assert _latitudes(found) == ["41", "12", "42", "43.5"]
    assert subscriber.count(TYPE, predicate="//lat > 40 or //lat = 12") == 4
    assert sum(one.objects for one in subscriber.explain_query(TYPE).values()) == 6
    assert subscriber.get(found[2].object_id).metadata == found[2].metadata
    # Expect the template of a subscription to say what is asked, too
    assert len(list(subscriber.query(template=figures.figure_3, schema=figures.schema))) == 6
    named = subscriber.query("Intel_Imagery", template=figures.figure_3, schema=figures.schema)
    assert len(list(named)) == 6
    other = figures.figure_3.replace(b"418th", b"999th")
    assert other != figures.figure_3
    assert list(subscriber.query(template=other, schema=figures.schema)) == []


def test_large_payloads_and_pages(archived: Federation, figures: Figures) -> None:
    # Given more objects than a page, and one that goes in pieces
    archived.pad()
    _publish(archived, figures, "alpha", [float(n % 80) for n in range(1, 251)])
    _publish(archived, figures, "alpha", [7.25], payload=bytes(range(256)) * 4_000)
    subscriber = archived.subscriber()
    with subscriber.open_query(TYPE) as query:
        found = query.get_next(1_000)
    assert len(found) == 251
    assert [obj.platform.position for obj in found] == sorted(obj.platform.position for obj in found)
    assert found[-1].payload == bytes(range(256)) * 4_000
    assert query.progress.matched == 251


def test_a_replay_becomes_the_present(archived: Federation, figures: Figures) -> None:
    # Given two delegates with a past, and publishers that go on all the time
    publishers = []
    for name in ("alpha", "beta"):
        archived.pad(name, "rome")
        publisher = archived.light()
        at = publisher.connect_to_delegate(name, None)
        publishers.append((publisher, publisher.register_publisher(at, figures.schema, figures.figure_1, persist=True)))
    published: list[str] = []

    def publish(count: int) -> None:
        for number in range(count):
            for publisher, registration in publishers:
                published.append(publisher.publish(registration, figures.metadata(lat=str(number % 80))))

    publish(100)
    done = threading.Event()

    def go_on() -> None:
        while not done.wait(0.005):
            publish(5)

    thread = threading.Thread(target=go_on)
    thread.start()
    # When a subscription begins with all, with little room
    subscriber = archived.subscriber()
    try:
        uid = subscriber.register_subscriber(type_name="Intel_Imagery", start="all", bound=50, policy="block")
        found = _taken(subscriber, uid, 400)
    finally:
        done.set()
        thread.join(60.0)
    for publisher, _ in publishers:
        publisher.flush()
    found += _taken(subscriber, uid, len(published) - len(found))
    assert subscriber.receive(uid, 0.2) is None
    # Expect each object once, those of each delegate in order, without a loss
    assert sorted(obj.object_id for obj in found) == sorted(published)
    for _, registration in publishers:
        numbers = [obj.platform.sequence for obj in found if obj.platform.registration == registration]
        assert numbers == list(range(1, len(numbers) + 1))
    assert subscriber.losses(uid) == {}


def test_a_replay_whose_session_was_lost_goes_on(archived: Federation, figures: Figures) -> None:
    # Given a replay that has caught up
    pad = archived.pad()
    _publish(archived, figures, "alpha", [1, 2, 3])
    subscriber = archived.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, start="all")
    assert _latitudes(_taken(subscriber, uid, 3)) == ["1", "2", "3"]
    # When the delegate forgets its session, and something is published meanwhile
    (session,) = subscriber._subscriptions.sessions.all()
    assert session.link.opened is not None
    pad.delegate.sessions.close(session.link.opened.uid)
    _publish(archived, figures, "alpha", [4, 5])
    # Expect what came meanwhile, and nothing twice
    assert _latitudes(_taken(subscriber, uid, 2)) == ["4", "5"]
    assert subscriber.receive(uid, 0.2) is None


def test_what_rules_forbid_is_not_there(
    archived: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive whose rules let nobody ask
    pad = archived.pad()
    _publish(archived, figures, "alpha", [1, 2])
    subscriber = archived.subscriber()
    assert len(list(subscriber.query(TYPE))) == 2

    def allow(_caller: Any, action: str, _subject: Any) -> Decision:
        return Decision(False, "policy.toml:1") if action == "query" else ALLOWED

    monkeypatch.setattr(pad._stages.access, "allow", allow)
    # Expect an error that says so, rather than nothing
    with pytest.raises(AccessDeniedError):
        subscriber.open_query(TYPE)
    with pytest.raises((AccessDeniedError, UnknownUidError)):
        subscriber.get("0" * 44)


def test_a_session_has_twenty_queries_and_room_again(
    archived: Federation, figures: Figures, eventually: Callable[..., Any]
) -> None:
    # Given a session whose queries are left open
    archived.pad()
    _publish(archived, figures, "alpha", [float(n % 80) for n in range(300)])
    subscriber = archived.subscriber()
    standing = [subscriber.open_query(TYPE) for _ in range(20)]
    # Expect one more to be refused, and to be taken when one of them has gone
    with pytest.raises(BackPressureError):
        subscriber.open_query(TYPE)
    standing.pop().cancel()

    def opens() -> bool:
        try:
            subscriber.open_query(TYPE).cancel()
        except BackPressureError:
            return False
        return True

    eventually(opens)
    # Expect those that stand to go on
    assert all(len(query.get_next(300)) == 300 for query in standing)


def test_a_durable_subscription_goes_on_where_it_was(
    archived: Federation, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate with an archive that outlives it, and a durable subscription that has taken two of five objects
    keeping = MemoryKeeping()
    engine = type("engine", (), {"Archive": staticmethod(lambda _config: keeping)})
    monkeypatch.setitem(sys.modules, "jbi_pubsub.archive.engine", engine)
    pad = archived.pad()
    _publish(archived, figures, "alpha", [1, 2, 3, 4, 5])
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="fusion-1", start="all")
        assert _latitudes(_taken(subscriber, uid, 2)) == ["1", "2"]
    # When it is away, and something is published
    _publish(archived, figures, "alpha", [6])
    # Expect the next process to go on there
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="fusion-1", start="all")
        assert _latitudes(_taken(subscriber, uid, 4)) == ["3", "4", "5", "6"]
    # and after a restart of the delegate as well
    pad.stop(0.5)
    archived.pad()
    _publish(archived, figures, "alpha", [7])
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="fusion-1", start="all")
        assert _latitudes(_taken(subscriber, uid, 1)) == ["7"]
        # When it is set back, expect the past again for the next one
    with SubscriberAdapter(archived.config) as subscriber:
        assert subscriber.reset_durable("fusion-1", "all") == 1
        uid = subscriber.register_subscriber(type_name=TYPE, durable="fusion-1")
        assert _latitudes(_taken(subscriber, uid, 7)) == ["1", "2", "3", "4", "5", "6", "7"]


def test_what_a_listener_failed_on_is_not_acknowledged(
    archived: Federation, figures: Figures, eventually: Callable[..., Any]
) -> None:
    # Given a durable subscription whose listener fails on the third of five objects, for want of something
    archived.pad()
    _publish(archived, figures, "alpha", [1, 2, 3, 4, 5])
    told: list[str] = []

    def arrived(_uid: SubscriptionUid, obj: InfoObject) -> None:
        told.extend(_latitudes([obj]))
        if told[-1] == "3":
            raise KeyError("mistake")

    # When it ends while that is to come again
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="d", start="all", listener=arrived)
        eventually(lambda: told[2:])
        assert subscriber.losses(uid) == {}
    # Expect the object, and what follows, the next time
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="d", start="all")
        assert _latitudes(_taken(subscriber, uid, 3)) == ["3", "4", "5"]
    assert set(told) == {"1", "2", "3"}


def test_what_is_not_acknowledged_comes_again(archived: Federation, figures: Figures) -> None:
    # Given a durable subscription with explicit acknowledgement that has taken five objects, and acknowledged two
    archived.pad()
    _publish(archived, figures, "alpha", [1, 2, 3, 4, 5])
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="d", ack="explicit", start="all")
        taken = _taken(subscriber, uid, 5)
        for obj in (taken[0], taken[2]):
            subscriber.acknowledge(obj)
    # When it is opened again, expect the others, and these alone
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="d", ack="explicit", start="all")
        again = _taken(subscriber, uid, 3)
        assert _latitudes(again) == ["2", "4", "5"]
        for obj in again:
            subscriber.acknowledge(obj)
    # When all is acknowledged, expect nothing to come again
    _publish(archived, figures, "alpha", [6])
    with SubscriberAdapter(archived.config) as subscriber:
        uid = subscriber.register_subscriber(type_name=TYPE, durable="d", ack="explicit", start="all")
        assert _latitudes(_taken(subscriber, uid, 1)) == ["6"]
