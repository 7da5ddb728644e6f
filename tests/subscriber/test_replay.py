"""Subscriptions that begin in the past, and durable ones: each object once, in whatever order delegates have them."""

from __future__ import annotations

import random
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extent import examples
from histories import Past, an_object
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub import InfoObject, SubscriberAdapter
from jbi_pubsub.core.config import ClientSection
from jbi_pubsub.core.errors import ArgumentError, ConfigurationError, StorageError, UnknownUidError, WireError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.protocol.replies import Grant
from jbi_pubsub.protocol.requests import Start, SubscriptionRequest
from jbi_pubsub.subscriber import placed as placed_module
from jbi_pubsub.subscriber.flows import FlowTable
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.owner import secret_of
from jbi_pubsub.subscriber.placed import PlacedFlow, PlacedSubscription


class At:
    """Where objects come from: what it hears."""

    def __init__(self, server: str = "s") -> None:
        self.server = server
        self.consumed = 0
        self.runs: list[tuple[int, int]] = []
        self.acknowledged: list[int] = []

    def consume(self, count: int) -> None:
        self.consumed += count

    def taken_over(self, kept: int, dropped: int) -> None:
        self.runs.append((kept, dropped))

    def acknowledge(self, position: int) -> None:
        self.acknowledged.append(position)


def _placed(number: int, position: int = 0, archive: str = "") -> InfoObject:
    obj = an_object(number)
    place = {"position": position or number, "archive": archive}
    return msgspec.structs.replace(obj, platform=msgspec.structs.replace(obj.platform, **place))


def _subscription(**request: Any) -> PlacedSubscription:
    return PlacedSubscription(SubscriptionRequest("s", **request), None, ListenerPool("test"))


def _numbers(objects: Sequence[InfoObject]) -> list[int]:
    return [obj.platform.sequence for obj in objects]


# -- what has come ----------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(1, 40), max_size=8)), max_size=20))
def test_parts_of_several_delegates_come_in_any_order_and_never_twice(arrivals: list[tuple[int, list[int]]]) -> None:
    # Given three delegates that hold parts of a registration, some of it in common
    subscription, sources = _subscription(start=Start("all")), [At(str(n)) for n in range(3)]
    came: list[int] = []
    for at, numbers in arrivals:
        # When objects come in any order
        subscription.add_placed([_placed(n) for n in numbers], sources[at])
        came += numbers
    # Expect each once, in the order in which they came; nothing is told as lost
    assert _numbers(subscription.queue.drain()) == list(dict.fromkeys(came))
    assert not subscription.losses.by_cause
    # Expect each delegate to hear of all that it has sent: taken, or dropped
    taken = sum(source.consumed for source in sources)
    assert taken == sum(kept for source in sources for kept, _ in source.runs)
    assert sum(kept + dropped for source in sources for kept, dropped in source.runs) == len(came)


def _is_at(subscription: PlacedSubscription, *incarnations: str) -> None:
    """It is filled by that archive, the last incarnation first."""
    subscription.placed_at("here:1", Grant(1, placed=True, incarnations=incarnations))


def test_what_is_told_as_lost_does_not_come_behind_what_followed_it() -> None:
    # Given a subscription that has caught up, and for whose queue 3 and 4 were too much: that was told before 5
    subscription, before, after = _subscription(start=Start("all")), At(), At()
    _is_at(subscription, "first")
    subscription.add_placed([_placed(n, archive="first") for n in (1, 2)], before)
    subscription.lose(Cause.QUEUE_OVERFLOW, 2, source=before.consume)
    subscription.add_placed([_placed(n, archive="first") for n in (5, 6)], before)
    # When its delegate is started again, twice, and gives all that its archive has
    for incarnations in (("second", "first"), ("third", "second", "first")):
        _is_at(subscription, *incarnations)
        subscription.add_placed([_placed(n, archive=incarnations[0]) for n in range(1, 8)], after)
    # Expect what is new, and each object to be had or told once
    assert _numbers(subscription.queue.drain()) == [1, 2, 5, 6, 7]
    assert subscription.losses.by_cause == {"queue_overflow": 2}
    assert after.runs == [(0, 6), (1, 0), (0, 7)]


@pytest.mark.parametrize(
    ("incarnations", "position"),
    [(("other",), 3), (("copy", "first"), 3), (("third", "second", "first"), 300)],
    ids=["another archive", "a copy of it, made before", "brought there later"],
)
def test_what_an_archive_never_gave_comes_though_later_objects_came(
    incarnations: tuple[str, ...], position: int
) -> None:
    # Given objects of a registration from an archive that lacks 3, and that has been opened twice
    subscription = _subscription(start=Start("all"))
    _is_at(subscription, "first")
    subscription.add_placed([_placed(n, archive="first") for n in (1, 2)], At())
    _is_at(subscription, "second", "first")
    subscription.add_placed([_placed(n, archive="second") for n in (2, 4)], At())
    # When there is one that has it
    _is_at(subscription, *incarnations)
    subscription.add_placed([_placed(3, position, incarnations[0])], At("elsewhere"))
    # Expect it to come
    assert _numbers(subscription.queue.drain()) == [1, 2, 4, 3]


@settings(max_examples=examples(300))
@given(st.lists(st.one_of(st.sampled_from("abAB"), st.just("again"), st.just("open"), st.integers(1, 4)), max_size=60))
def test_whatever_an_archive_gives_again_comes_in_order_once_or_was_told_as_lost(happens: list[str | int]) -> None:
    # Given publishers of two registrations, and a delegate with an archive that loses some for a subscription
    subscription, incarnations, source = _subscription(start=Start("all")), ["0"], At()
    _is_at(subscription, *incarnations)
    archived: list[tuple[str, int, int]] = []
    waiting: list[tuple[str, int, int]] = []
    lost: set[tuple[str, int]] = set()
    numbers = {"a": 0, "b": 0}
    for event in [*happens, "a", "b", 99]:
        if isinstance(event, int):
            # When it delivers some of what waits
            objects = [
                msgspec.structs.replace(obj, platform=msgspec.structs.replace(obj.platform, registration=registration))
                for registration, number, position in waiting[:event]
                for obj in (_placed(number, position, incarnations[0]),)
            ]
            del waiting[:event]
            subscription.add_placed(objects, source)
        elif event in ("again", "open"):
            # or its session ends, or it is started again: then it gives all that its archive has
            if event == "open":
                incarnations.insert(0, str(len(incarnations)))
            _is_at(subscription, *incarnations)
            waiting = list(archived)
        else:
            # or something is published, for which there may be no room
            registration = event.lower()
            numbers[registration] += 1
            archived.append((registration, numbers[registration], len(archived) + 1))
            waiting.append(archived[-1])
            if event.isupper():
                lost.add(waiting.pop(0)[:2])
    # Expect each registration in order, each object once, and nothing to be missing that is not told
    taken = [(obj.platform.registration, obj.platform.sequence) for obj in subscription.queue.drain()]
    for registration in numbers:
        came = [number for of, number in taken if of == registration]
        assert came == sorted(set(came))
    assert {each[:2] for each in archived} - set(taken) <= lost


def test_what_comes_again_from_an_archive_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given so few intervals of numbers to remember that all small gaps are closed
    monkeypatch.setattr(placed_module, "INTERVALS_MOST", 16)
    subscription, numbers = _subscription(start=Start("all")), range(1, 200, 2)
    _is_at(subscription, "first")
    subscription.add_placed([_placed(n, archive="first") for n in numbers], At())
    # When all comes again
    subscription.add_placed([_placed(n, archive="first") for n in numbers], At())
    # Expect none to be told as lost
    assert _numbers(subscription.queue.drain()) == list(numbers)
    assert subscription.losses.by_cause == {}


def test_a_replay_goes_on_where_it_was_at_each_delegate() -> None:
    # Given a replay of all, of which two delegates have sent a part
    subscription = _subscription(start=Start("all"))
    subscription.add_placed([_placed(1, 100), _placed(2, 110)], At("a"))
    subscription.add_placed([_placed(3, 7)], At("b"))
    subscription.add_placed([_placed(5, 50_000), _placed(4, 50)], At("d"))
    # When it is asked for again there, expect of the history that has come no more than may have been overtaken;
    # elsewhere all of it
    assert [subscription.request_at(at).start for at in ("a", "b", "c", "d")] == [
        Start("after", after=99), Start("after", after=6), Start("all"), Start("after", after=40_000),
    ]  # fmt: skip
    newest = _subscription(start=Start("last"))
    newest.add_placed([_placed(1, 100), _placed(2, 110)], At("a"))
    assert newest.request_at("a").start == Start("after", after=110), "of the past it wanted nothing else"
    # Expect the delegate to know that of a durable one by itself
    durable = _subscription(start=Start("all"), durable="d")
    durable.add_placed([_placed(1, 100)], At("a"))
    assert durable.request_at("a").start == Start("all")


def test_what_was_acknowledged_and_comes_again_is_acknowledged_again() -> None:
    # Given a durable subscription, with two objects taken, one acknowledged
    subscription = _subscription(durable="d", ack="explicit")
    before, after = At(), At()
    first, second = _placed(1, 10), _placed(2, 20)
    subscription.add_placed([first, second], before)
    assert subscription.acknowledge(first)
    assert before.acknowledged == [10]
    assert not subscription.acknowledge(first)
    # When both come again, as the acknowledgement was not heard
    subscription.add_placed([_placed(1, 11), _placed(2, 21)], after)
    # Expect no object to be delivered again, the first to be acknowledged where it is now, the second when it is
    assert _numbers(subscription.queue.drain()) == [1, 2]
    assert after.acknowledged == [11]
    assert subscription.acknowledge(second)
    assert (before.acknowledged, after.acknowledged) == ([10], [11, 21])


def _table() -> FlowTable:
    return FlowTable(threading.Condition(), lambda: False, lambda: None)


@given(st.lists(st.one_of(st.tuples(st.integers(0, 5), st.integers(0, 3)), st.integers(1, 4)), max_size=40))
def test_what_is_told_as_taken_is_what_came_first(happens: list[tuple[int, int] | int]) -> None:
    # Given what stands at a delegate, which takes a number of consumed objects for the first ones that it has sent
    standing = PlacedFlow("s", _subscription(durable="d"), 1, _table())
    came: list[bool] = []
    waiting = 0
    for event in happens:
        if isinstance(event, tuple):
            # When objects come, of which the last ones are dropped
            kept, dropped = event
            for run in ((kept, 0), (0, dropped)):
                if any(run):
                    standing.taken_over(*run)
            came += [True] * kept + [False] * dropped
            waiting += kept
        else:
            # or when the application takes some
            taken = min(event, waiting)
            waiting -= taken
            standing.consume(taken)
        # Expect all that is told to be taken or dropped, and everything behind to wait for one that is not taken
        done = sum(came) - waiting
        assert sum(came[: standing.consumed]) == done
        assert standing.consumed == len(came) or came[standing.consumed]


def test_an_object_that_is_not_signed_well_does_not_come_again() -> None:
    # Given explicit acknowledgement, and an object behind another one that the application never gets to see
    standing = PlacedFlow("s", _subscription(durable="d", ack="explicit"), 1, _table())
    standing.hand_on([_placed(1, 10)])
    standing.drop([_placed(2, 20)])
    # Expect it to be acknowledged, and nothing to be told as taken that waits
    assert standing.acknowledged() == (20,)
    assert standing.consumed == 0
    standing.consume(1)
    assert standing.consumed == 2


# -- over connections -------------------------------------------------------------------------------------------


@pytest.fixture
def archive(federation: Any) -> Iterator[Callable[..., Past]]:
    """One more archive, with these objects."""
    with ExitStack() as stack:

        def made(objects: Sequence[InfoObject] = (), **options: Any) -> Past:
            past = Past(federation.config, objects, **options)
            stack.callback(past.stop)
            return past

        yield made


def _received(subscriber: SubscriberAdapter, uid: Any, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count and (obj := subscriber.receive(uid, 10.0)) is not None:
        found.append(obj.platform.sequence)
    return found


def test_a_subscription_begins_where_it_is_told_to(federation: Any, archive: Callable[..., Past]) -> None:
    # Given an archive, where nobody publishes any more
    past = archive([an_object(n) for n in range(1, 11)])
    subscriber = federation.subscriber()
    # When subscriptions begin in the past
    expected = {
        "all": range(1, 11), "last": [10], "1970-01-01T00:00:08Z": [8, 9, 10], 70: [8, 9, 10],
    }  # fmt: skip
    for start, numbers in expected.items():
        uid = subscriber.register_subscriber(type_name="t", start=start)
        # Expect what is there from there on, then what is published
        assert _received(subscriber, uid, len(numbers)) == list(numbers)
        assert subscriber.queue_size(uid) == 0
    past.publish(an_object(11))
    assert _received(subscriber, uid, 1) == [11]


def test_where_nothing_is_kept_one_is_told(federation: Any, figures: Any, caplog: pytest.LogCaptureFixture) -> None:
    # Given a delegate without an archive
    federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
    # When a subscription begins in the past
    uid = subscriber.register_subscriber(type_name="Intel_Imagery", start="all")
    # Expect to be told, and what is published from now on
    assert subscriber.wait_matched(uid) == 1
    assert f"subscription {uid} begins now at 127.0.0.1:" in caplog.text
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uid, 60.0) is not None


def test_a_replay_gets_the_parts_of_all_delegates(federation: Any, archive: Callable[..., Past]) -> None:
    # Given a registration of which two delegates hold parts, the later one first, and some in common
    archive([an_object(n) for n in range(95, 201)])
    archive([an_object(n) for n in range(1, 101)])
    subscriber = federation.subscriber()
    # When it is replayed
    uid = subscriber.register_subscriber(type_name="t", start="all")
    # Expect each object once, and none to be lost
    assert sorted(_received(subscriber, uid, 200)) == list(range(1, 201))
    assert subscriber.receive(uid, 0.2) is None
    assert subscriber.losses(uid) == {}


def test_what_a_durable_subscription_has_taken_is_told_in_order(
    federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any]
) -> None:
    # Given two archives with the same objects, and a durable subscription that has them waiting
    pasts = [archive([an_object(n) for n in range(1, 21)]) for _ in range(2)]
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="t", durable="d", start="all", bound=4)
    eventually(lambda: subscriber.status()["subscriptions"][uid]["arrived"] >= 4)
    eventually(lambda: all(past.streams() for past in pasts))
    streams = {past.server_id: past.streams()[0] for past in pasts}
    # When nothing is taken, expect no archive to be told that an object is done which waits from there, or is behind it
    waiting = [(obj.platform.position, consumed) for obj, consumed in subscriber._subscriptions.find(uid).queue.waiting]
    assert len(waiting) >= 4
    for position, consumed in waiting:
        stream = streams[consumed.__self__.server]  # type: ignore[attr-defined]  # a method of what stands there
        assert position not in stream.places[: stream.consumed]
    # When all is taken, expect both to hear of all
    assert sorted(_received(subscriber, uid, 20)) == list(range(1, 21))
    eventually(lambda: all(s.consumed >= 17 for s in streams.values()))


def test_what_was_taken_last_is_told_when_the_application_leaves(
    federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any]
) -> None:
    # Given a durable subscription whose application has taken three of many objects
    past = archive([an_object(n) for n in range(1, 51)])
    with SubscriberAdapter(federation.config) as subscriber:
        uid = subscriber.register_subscriber(type_name="t", durable="d", start="all")
        assert _received(subscriber, uid, 3) == [1, 2, 3]
        assert subscriber.matching(uid).why.endswith("what archives have comes all the same")
        (stream,) = past.streams()
    # When it leaves, expect these to be told, although they are few
    eventually(lambda: stream.consumed == 3, what=lambda: stream.consumed)


def test_what_was_taken_is_told_after_a_quiet_while_though_it_is_little(
    federation: Any,
    archive: Callable[..., Past],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a durable subscription, to which nothing comes any more
    monkeypatch.setattr("jbi_pubsub.subscriber.session.QUIET_SECONDS", 0.05)
    past = archive([an_object(n) for n in range(1, 11)])
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="t", durable="d", start="all")
    eventually(lambda: subscriber.status()["subscriptions"][uid]["arrived"] == 10)
    # When the application takes some, far fewer than a quarter of its bound, and stays
    assert _received(subscriber, uid, 3) == [1, 2, 3]
    (stream,) = past.streams()
    # Expect these to be told, and no more
    eventually(lambda: stream.consumed == 3, what=lambda: stream.consumed)


def test_acknowledging_is_heard(federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any]) -> None:
    # Given a durable subscription with explicit acknowledgement
    past = archive([an_object(n) for n in range(1, 6)])
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="t", durable="d", ack="explicit", start="all")
    objects = list(subscriber.objects(uid, 2.0))
    assert len(objects) == 5
    # When some are acknowledged, expect their positions to be told; not twice
    for obj in (objects[3], objects[0]):
        subscriber.acknowledge(obj)
    with pytest.raises(UnknownUidError, match="does not wait"):
        subscriber.acknowledge(objects[0])
    (stream,) = past.streams()
    eventually(lambda: stream.acknowledged == [40, 10], what=lambda: stream.acknowledged)
    # When the line was cut, expect what may not have been heard to be told again
    (session,) = subscriber._subscriptions.sessions.all()
    (standing,) = session.flows.by_number.values()
    standing.report_again()
    subscriber.acknowledge(objects[1], uid)
    eventually(lambda: stream.acknowledged == [40, 10, 40, 10, 20], what=lambda: stream.acknowledged)
    # Expect what never came to be refused
    with pytest.raises(UnknownUidError):
        subscriber.acknowledge(an_object(99))
    with pytest.raises(UnknownUidError):
        subscriber.acknowledge(objects[2], "subscription-none")


def test_a_durable_subscription_belongs_to_its_user(federation: Any, archive: Callable[..., Past]) -> None:
    # Given a durable subscription
    past = archive([an_object(1)])
    for name in ("fusion-1", "fusion-1", "other"):
        with SubscriberAdapter(federation.config) as subscriber:
            uid = subscriber.register_subscriber(type_name="t", durable=name, start="all")
            assert _received(subscriber, uid, 1) == [1]
    # Expect the same name with the same secret each time, another name with another one, none of them the user's own
    first, second, other = past.subscribed
    assert (first.durable, first.uid, first.secret) == (second.durable, second.uid, second.secret)
    assert other.secret != first.secret
    assert first.secret == secret_of("fusion-1", ClientSection())
    # Expect the secret not to be shown
    assert first.secret not in repr(first)


def test_an_archive_that_has_moved_keeps_a_durable_subscription_once() -> None:
    # Given a durable subscription, and an archive that is at another address after a restart
    subscription = _subscription(durable="d-1")
    subscription.placed_at("a:1", Grant(1, placed=True, incarnations=("first",)))
    subscription.placed_at("b:1", Grant(2, placed=True, incarnations=("other",)))
    subscription.placed_at("a:2", Grant(3, placed=True, incarnations=("second", "first")))
    # Expect it to stand where the archives are now
    assert sorted(subscription.kept_at()) == ["a:2", "b:1"]
    assert _subscription(start=Start("all")).kept_at() == []


@pytest.mark.parametrize("how", ["there", "killed", "gone", "not durable"])
def test_a_durable_subscription_that_an_archive_keeps_is_told(
    federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any], how: str
) -> None:
    # Given a durable subscription at two archives, one of which dies, or is gone for long
    federation.leases(2.0)
    archive([an_object(1)])
    dying = archive([an_object(2)])
    subscriber: SubscriberAdapter = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="t", start="all", durable=None if how == "not durable" else "d-1")
    assert sorted(_received(subscriber, uid, 2)) == [1, 2]
    if how == "gone":
        dying.stop()
        eventually(lambda: len(subscriber.status()["sessions"]) == 1)
    elif how != "there":
        dying.die()
    # When it is cancelled
    if how in ("there", "not durable"):
        subscriber.cancel_subscription(uid)
    else:
        # Expect to be told where it goes on, and by which command it ends
        with pytest.raises(WireError, match=f"'d-1' is not ended at {dying.address}") as told:
            subscriber.cancel_subscription(uid)
        assert "jbi subscriptions end d-1" in told.value.hint
    # Expect it to be cancelled here all the same
    with pytest.raises(UnknownUidError):
        subscriber.cancel_subscription(uid)


def test_a_durable_subscription_is_set_back_where_archives_answer(
    federation: Any, archive: Callable[..., Past]
) -> None:
    # Given a durable subscription at two archives, of which one has died, and is listed yet
    past, dying = archive([an_object(n) for n in range(1, 4)]), archive()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="t", durable="d", start="all")
    assert subscriber.wait_matched(uid, 2) == 2
    assert _received(subscriber, uid, 3) == [1, 2, 3]
    dying.die()
    # When it is set back, expect that to be done at the other one, and to be told
    with pytest.raises(WireError, match=f"'d': done at 1 of 2 archives, not at {dying.address}: "):
        subscriber.reset_durable("d", 20)
    assert list(past.durables.values()) == [{10, 20}]
    # Expect it not to be said that nobody knows it, where not all have answered
    with pytest.raises(WireError, match="'e': done at 0 of 2 archives"):
        subscriber.reset_durable("e", 20)


def test_a_durable_subscription_is_set_back_by_its_user_alone(
    federation: Any, archive: Callable[..., Past], tmp_path: Path
) -> None:
    # Given a durable subscription
    past = archive([an_object(n) for n in range(1, 4)])
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="t", durable="d", start="all")
    assert _received(subscriber, uid, 3) == [1, 2, 3]
    # When it is set back, expect the archive to have done it
    assert subscriber.reset_durable("d", 20) == 1
    assert list(past.durables.values()) == [{10, 20}]
    # Expect another name, another place and another user to be refused
    for name, to in (("e", "all"), ("d", "nowhere"), ("", "all")):
        with pytest.raises((UnknownUidError, ConfigurationError)):
            subscriber.reset_durable(name, to)
    subscriber.close()
    other = msgspec.structs.replace(federation.config.client, owner=str(tmp_path / "secret"))
    with (
        SubscriberAdapter(msgspec.structs.replace(federation.config, client=other)) as stranger,
        pytest.raises(UnknownUidError, match="of this user"),
    ):
        stranger.reset_durable("d", "all")
    assert list(past.durables.values()) == [{10, 20}]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "yesterday"}, ConfigurationError),
        ({"start": -1}, ConfigurationError),
        ({"start": 1.5}, ArgumentError),
        ({"start": True}, ArgumentError),
        ({"latest_by": "/m/key"}, ConfigurationError),
        ({"ack": "explicit"}, ConfigurationError),
        ({"ack": "never", "durable": "d"}, ArgumentError),
        ({"durable": ""}, ConfigurationError),
        ({"durable": " d"}, ConfigurationError),
        ({"durable": "a\nb"}, ConfigurationError),
        ({"durable": "x" * 65}, ConfigurationError),
        ({"durable": "d", "recipients": ["ops@example.org"]}, ConfigurationError),
        ({"start": "1h", "recipients": ["ops@example.org"]}, ConfigurationError),
        ({"start": "all", "recipients": ["ops@example.org"], "direct": True}, ConfigurationError),
    ],
)
def test_what_makes_no_sense_is_refused(federation: Any, options: dict[str, Any], error: type[Exception]) -> None:
    subscriber = federation.subscriber()
    with pytest.raises(error):
        subscriber.register_subscriber(type_name="t", **options)
    assert subscriber.status()["subscriptions"] == {}


# -- whose it is ------------------------------------------------------------------------------------------------


def _secret(file: Path) -> str:
    return secret_of("d", ClientSection(owner=str(file)))


def test_the_secret_is_made_once_however_many_processes_ask(tmp_path: Path) -> None:
    file = tmp_path / "state" / "secret"
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(_secret(file))) for _ in range(16)]
    random.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Expect one, which nobody else may read, and nothing beside it
    assert len(set(found)) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["secret"]


@pytest.mark.parametrize("content", ["", "short", "x" * 2_000, "\x00" * 64, "ä" * 40, "../" * 20])
def test_a_file_that_holds_no_secret_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    file.chmod(0o600)
    with pytest.raises(ConfigurationError, match="secret"):
        _secret(file)


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a" * 64)
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        _secret(file)


def test_a_place_where_no_secret_can_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"\[client\] owner"):
        _secret(tmp_path / "file" / "secret")
