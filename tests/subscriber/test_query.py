"""Queries of applications: results of all archives, each once; what fails is named; nothing stays behind."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from histories import Past, an_object

from jbi_pubsub import InfoObject, SubscriberAdapter
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    AdapterStateError,
    ArgumentError,
    BackPressureError,
    ConfigurationError,
    LookupNotFoundError,
    MetadataError,
    PredicateError,
    ProtocolError,
    StorageError,
    UnknownUidError,
    WireError,
    WireTimeoutError,
)
from jbi_pubsub.protocol.deliveries import END, FINISHED, ITEM
from jbi_pubsub.subscriber import Query, listeners


@pytest.fixture
def archive(federation: Any) -> Iterator[Callable[..., Past]]:
    """One more archive, with these objects."""
    with ExitStack() as stack:

        def made(objects: Sequence[InfoObject] = (), **options: Any) -> Past:
            past = Past(federation.config, objects, **options)
            stack.callback(past.stop)
            return past

        yield made


def _numbers(found: Sequence[InfoObject] | Iterator[InfoObject]) -> list[int]:
    return [obj.platform.sequence for obj in found]


def test_what_matches_comes_with_its_position(federation: Any, archive: Callable[..., Past]) -> None:
    # Given an archive with twenty objects, one of them large
    archive([an_object(n, payload=bytes(5_000) if n == 7 else b"p") for n in range(1, 21)])
    subscriber = federation.subscriber()
    # When some are asked for
    found = list(subscriber.query("t", predicate="/m/n > 5 and /m/n < 9"))
    # Expect these, in order, whole, with the positions that they have there
    assert _numbers(found) == [6, 7, 8]
    assert [obj.platform.position for obj in found] == [60, 70, 80]
    assert [len(obj.payload) for obj in found] == [1, 5_000, 1]
    # Expect the newest first, and as many as are wanted, where that is asked for
    assert _numbers(subscriber.query("t", order="newest", limit=3)) == [20, 19, 18]
    assert _numbers(subscriber.query("t", latest_by="/m/key")) == [18, 19, 20]
    assert _numbers(subscriber.query("t", after=30, up_to=50)) == [4, 5]
    assert subscriber.count("t", predicate="/m/n > 5") == 15
    assert list(subscriber.query("t", predicate="/m/n = 0")) == []


def test_archives_are_told_the_time_of_a_query_that_names_one(federation: Any, archive: Callable[..., Past]) -> None:
    # Given an archive, when queries name no time, and one; Expect it to be told that: else it goes by its own settings
    past = archive([an_object(1)])
    subscriber = federation.subscriber()
    assert len([*subscriber.query("t"), *subscriber.query("t", timeout=7.0)]) == 2
    subscriber.get(an_object(1).object_id, 8.0)
    assert [each.timeout for each in past.queries] == [0.0, 7.0, 8.0]


def test_more_results_than_a_page_are_pulled(federation: Any, archive: Callable[..., Past]) -> None:
    # Given more objects than the credit of a query
    past = archive([an_object(n) for n in range(1, 501)])
    subscriber = federation.subscriber()
    with subscriber.open_query("t") as query:
        # When nobody takes any, expect no more to come than the credit says
        first = query.get_next(1)
        time.sleep(0.2)
        assert past.streams()[0].sent <= 101 + 25
        # When they are taken, expect all of them, then none
        rest = query.get_next(1_000)
        assert _numbers([*first, *rest]) == list(range(1, 501))
        assert query.get_next(10) == []
        assert query.state == "finished"
        assert query.progress.matched == 500


@pytest.mark.row("G-101")
def test_archives_are_one(federation: Any, archive: Callable[..., Past]) -> None:
    # Given three archives, which hold parts of two registrations, and some objects twice
    def of(numbers: Sequence[int], registration: str = "registration-a") -> list[InfoObject]:
        return [an_object(n, registration=registration) for n in numbers]

    archive(of(range(1, 11)))
    archive(of(range(9, 21)))
    archive(of([3, 15], "registration-b"))
    subscriber = federation.subscriber()
    # When all are asked for
    found = list(subscriber.query("t"))
    # Expect each once, by time
    assert _numbers(found) == sorted([*range(1, 21), 3, 15])
    assert len({obj.object_id for obj in found}) == 22
    assert _numbers(subscriber.query("t", order="newest", limit=4)) == [20, 19, 18, 17]
    # Expect the newest of each key over all of them, not of each, also where not all keys are wanted
    assert _numbers(subscriber.query("t", latest_by="/m/key")) == [18, 19, 20]
    assert _numbers(subscriber.query("t", latest_by="/m/key", limit=2)) == [18, 19]
    assert _numbers(subscriber.query("t", latest_by="/m/key", limit=2, order="newest")) == [20, 19]


def test_an_archive_that_refuses_is_named_and_the_others_go_on(
    federation: Any, archive: Callable[..., Past], caplog: pytest.LogCaptureFixture
) -> None:
    # Given two archives, one of which has a broken disk
    archive([an_object(1), an_object(2)])
    broken = archive([an_object(3)])
    broken.refusal = StorageError("the disk is gone")
    subscriber = federation.subscriber()
    # When both are asked
    query = subscriber.open_query("t")
    # Expect what the other has, and the broken one's name with the reason
    assert _numbers(query) == [1, 2]
    assert query.state == "finished"
    assert query.partial == (f"{broken.address}: the disk is gone",)
    assert isinstance(query.error, StorageError)
    assert _numbers(subscriber.query("t")) == [1, 2]
    assert "a query is incomplete" in caplog.text


@pytest.mark.parametrize("how", ["refuses", "dead"])
def test_counting_and_explaining_go_on_without_an_archive_that_does_not_answer(
    federation: Any, archive: Callable[..., Past], how: str
) -> None:
    # Given two archives, one of which refuses, or is known to the lookup service and not there
    whole, broken = archive([an_object(1), an_object(2)]), archive([an_object(3)])
    subscriber = federation.subscriber()
    query = subscriber.open_query("t")
    if how == "refuses":
        broken.refusal = StorageError("the disk is gone")
    else:
        broken.die()
    # Expect what the other says, and the broken one's name with the reason
    for number in (subscriber.count("t"), query.count()):
        assert number == 2
        assert [each.partition(": ")[0] for each in number.partial] == [broken.address]
    explained = subscriber.explain_query("t")
    assert len(explained) == 1
    assert len(explained.partial) == 1
    query.cancel()
    # Expect no number where none answers
    whole.refusal = StorageError("gone as well")
    with pytest.raises((StorageError, WireError)):
        subscriber.count("t")


def test_what_no_archive_takes_is_an_error(federation: Any, archive: Callable[..., Past]) -> None:
    # Given two archives that refuse
    for _ in range(2):
        archive([an_object(3)]).refusal = StorageError("the disk is gone")
    # Expect the reason, rather than nothing
    with pytest.raises(StorageError, match="the disk is gone"):
        federation.subscriber().open_query("t")


def test_an_archive_that_does_not_answer_is_waited_for_no_longer_than_that(
    federation: Any, archive: Callable[..., Past]
) -> None:
    # Given two archives, one of which hangs
    archive([an_object(1)])
    hanging = archive([an_object(2)])
    hanging.hangs.set()
    subscriber = federation.subscriber()
    # When a query of five seconds is opened
    began = time.monotonic()
    query = subscriber.open_query("t", timeout=5.0)
    # Expect it to go on without that one then
    assert time.monotonic() - began < 30.0
    assert hanging.address in query.partial[0]
    query.cancel()


def test_where_nobody_listens_is_not_waited_for(
    federation: Any, archive: Callable[..., Past], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two archives, one of which has died and is known to the lookup service, and long pauses between two tries
    monkeypatch.setattr("jbi_pubsub.subscriber.session.BACKOFF_FIRST", 30.0)
    archive([an_object(1)])
    dead = archive([an_object(2)])
    dead.die()
    subscriber = federation.subscriber()
    for _ in range(2):
        # When a query is opened, expect it to go on without that one at once, the second time as well
        began = time.monotonic()
        with subscriber.open_query("t") as query:
            assert time.monotonic() - began < 25.0
            assert dead.address in query.partial[0]
            assert "refused" in query.partial[0]
            assert _numbers(query) == [1]


def test_an_archive_that_dies_ends_its_part(federation: Any, archive: Callable[..., Past]) -> None:
    # Given a query of more than a page, in the middle
    federation.leases(2.0)
    dying = archive([an_object(n) for n in range(1, 501)])
    subscriber = federation.subscriber()
    query = subscriber.open_query("t")
    assert len(query.get_next(5)) == 5
    # When the archive dies, and its lease has run out
    dying.die()
    # Expect the query to fail, with what came before, rather than to end as if it were whole
    with pytest.raises(WireError):
        deque(query, maxlen=0)
    assert query.state == "failed"
    assert dying.address in query.partial[0]


def test_a_query_can_be_left_at_any_time(
    federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any]
) -> None:
    # Given queries that were cancelled, closed, left in the middle and limited
    past = archive([an_object(n) for n in range(1, 501)])
    subscriber = federation.subscriber()
    opened = subscriber.open_query("t")
    waiting: list[list[InfoObject]] = []
    past.streams()[0].bound = 0  # the archive has a pause
    reader = threading.Thread(target=lambda: waiting.append(opened.get_next(1_000)))
    reader.start()
    opened.cancel()
    reader.join(60.0)
    assert not reader.is_alive()
    assert len(waiting[0]) < 500
    assert (opened.state, opened.get_next(1)) == ("cancelled", [])
    for _ in subscriber.query("t"):
        break
    # Expect each to be cancelled at the archive, and nothing of it in the session
    eventually(lambda: len(past.cancelled) == 2, what=lambda: past.cancelled)
    (session,) = subscriber._subscriptions.sessions.all()
    eventually(lambda: not session.flows.by_number and not session.queries.parts)
    # Expect the session to serve the next one
    assert _numbers(subscriber.query("t", limit=2)) == [1, 2]


@pytest.mark.row("G-75", "G-102")
def test_results_come_to_a_listener(
    federation: Any,
    archive: Callable[..., Past],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Told:
        def __init__(self) -> None:
            self.numbers: list[int] = []
            self.ended: list[str] = []

        def arrived(self, query: Query, obj: InfoObject) -> None:  # noqa: ARG002  # the listener's form
            self.numbers.append(obj.platform.sequence)
            if obj.platform.sequence in (5, 300) and self.numbers.count(obj.platform.sequence) < 3:
                raise ValueError("an application's mistake")
            if obj.platform.sequence == 7:
                raise ValueError("what it can't take")

        def finished(self, query: Query, state: str) -> None:  # noqa: ARG002  # as above
            self.ended.append(state)

    # Given two archives, and a listener that fails twice on two of the results, and on one each time
    monkeypatch.setattr(listeners, "PAUSE_MOST", 0.001)
    archive([an_object(n) for n in range(1, 301, 2)])
    archive([an_object(n) for n in range(2, 301, 2)])
    told = Told()
    # When a query is opened with it
    query = federation.subscriber().open_query("t", listener=told)
    # Expect all results in order, those that it failed on again, then the end, once, which says what it has not taken
    eventually(lambda: told.ended)
    again = {5: 3, 7: listeners.TRIES, 300: 3}
    assert told.numbers == [n for n in range(1, 301) for _ in range(again.get(n, 1))]
    assert told.ended == ["finished"]
    assert query.partial == ("the listener has not taken 1 of the results",)
    with pytest.raises(AdapterStateError, match="listener"):
        query.get_next(1)


def test_an_object_is_got_by_its_id(federation: Any, archive: Callable[..., Past]) -> None:
    # Given two archives
    archive([an_object(1), an_object(2)])
    archive([an_object(3)], types="u")
    subscriber = federation.subscriber()
    # Expect each object to be found wherever it is
    for number in (1, 2, 3):
        assert subscriber.get(an_object(number).object_id).platform.sequence == number
    # Expect one that is nowhere, and what is no id, to be told so
    for wrong in ("0" * 12, "", "a b", "x" * 200, "<script>"):
        with pytest.raises(UnknownUidError):
            subscriber.get(wrong)


def test_a_type_is_called_by_the_last_part_of_its_name(federation: Any, archive: Callable[..., Past]) -> None:
    # Given archives with types, one of which tells none
    archive([an_object(1, type_="mil.Image")], types="mil.Image mil.Track")
    archive([an_object(2, type_="org.Track")], types="org.Track")
    subscriber = federation.subscriber()
    assert _numbers(subscriber.query("Image")) == [1]
    # Expect to be told of one that may be several, and of one that is nowhere the nearest
    with pytest.raises(ConfigurationError, match=r"mil\.Track, org\.Track"):
        subscriber.query("Track")
    with pytest.raises(UnknownUidError, match="no archive has objects of type"):
        subscriber.query("mil.Imagery")
    # Expect an archive that does not tell its types to be asked
    archive([an_object(4, type_="x.Y")], types=None)
    assert _numbers(subscriber.query("x.Y")) == [4]


def test_without_an_archive_one_is_told_so(federation: Any) -> None:
    federation.pad()
    with pytest.raises(UnknownUidError, match="no archive") as told:
        federation.subscriber().query("t")
    assert "--archive" in told.value.hint


@pytest.mark.parametrize(
    ("conditions", "error"),
    [
        ({"predicate": "//n["}, PredicateError),
        ({"predicate": "/x:n"}, PredicateError),
        ({"payload_filter": "///"}, PredicateError),
        ({"latest_by": "n["}, PredicateError),
        ({"since": "2h", "until": "3h"}, ConfigurationError),
        ({"since": "soon"}, ConfigurationError),
        ({"limit": 0}, ConfigurationError),
        ({"limit": -1}, ConfigurationError),
        ({"limit": 2**60}, ConfigurationError),
        ({"after": -1}, ConfigurationError),
        ({"up_to": 2**63}, ConfigurationError),
        ({"after": 5, "up_to": 4}, ConfigurationError),
        ({"least_payload": 10, "most_payload": 9}, ConfigurationError),
        ({"registrations": []}, ConfigurationError),
        ({"timeout": 0}, ConfigurationError),
        ({"timeout": float("nan")}, ArgumentError),
        ({"order": "random"}, ArgumentError),
        ({"since": 17}, ArgumentError),
        ({"limit": "3"}, ArgumentError),
        ({"registrations": "registration-1"}, ArgumentError),
        ({"namespaces": "x=y"}, ArgumentError),
        ({"template": "<m/>"}, MetadataError),
        ({"sinse": "2h"}, TypeError),
    ],
)
def test_what_makes_no_sense_is_refused_before_anybody_is_asked(
    federation: Any, archive: Callable[..., Past], conditions: dict[str, Any], error: type[Exception]
) -> None:
    past = archive([an_object(1)])
    subscriber = federation.subscriber()
    for ask in (subscriber.query, subscriber.open_query, subscriber.count, subscriber.explain_query):
        with pytest.raises(error):
            ask("t", **conditions)
    assert past.queries == []


@pytest.mark.row("G-102")
def test_a_query_that_takes_too_long_says_so(federation: Any, archive: Callable[..., Past]) -> None:
    # Given an archive that is slow: it has no credit to send more
    past = archive([an_object(n) for n in range(1, 301)])
    query = federation.subscriber().open_query("t", timeout=1.0)
    for stream in past.streams():
        stream.bound = 0
    # When its time is over, expect that to be told, not an end
    with pytest.raises(WireTimeoutError, match="1 s"):
        for _ in query:
            pass
    assert query.state == "timed_out"
    # Expect it to be named, as one that does not answer
    assert query.partial[0].startswith(f"{past.address}: ")


def _end_by_its_clock(past: Past) -> None:
    for session in past.sessions.values():
        with session.lock:
            for stream in session.streams.values():
                stream.waiting.clear()
                stream.ended = "timed_out"
        session.sender.push()


@pytest.mark.parametrize("clock", ["the query's", "the archive's"])
@pytest.mark.parametrize("sent", [0, 2])
def test_an_archive_that_begins_and_hangs_is_named_and_the_others_give_theirs(
    federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any], sent: int, clock: str
) -> None:
    # Given two archives, one of which begins a query, sends no result or two, and hangs
    archive([an_object(n) for n in range(1, 10, 2)])
    hanging = archive([an_object(n) for n in range(2, 11, 2)])
    hanging.most = sent
    subscriber = federation.subscriber()
    # When the time of a query is over, by its own clock, or that of the archive before
    query = subscriber.open_query("t", timeout=2.0 if clock == "the query's" else 60.0)
    if clock == "the archive's":
        eventually(lambda: hanging.streams()[0].sent == sent)
        _end_by_its_clock(hanging)
    # Expect what the other has, and what has come of this one, in order; and this one's name, with the reason
    assert _numbers(query) == sorted([1, 3, 5, 7, 9, *[2, 4][:sent]])
    assert query.state == "finished"
    assert [each.partition(": ")[0] for each in query.partial] == [hanging.address]
    assert isinstance(query.error, WireTimeoutError)
    # Expect the same of the newest of each key, and of the newest
    if clock == "the query's":
        assert len(list(subscriber.query("t", latest_by="/m/key", timeout=2.0))) == 3
        with subscriber.open_query("t", order="newest", limit=3, timeout=2.0) as newest:
            assert _numbers(newest.get_next(9)) == ([10, 9, 8] if sent else [9, 7, 5])


def test_a_lookup_service_that_is_not_there_is_waited_for_no_longer_than_the_query_may_take(federation: Any) -> None:
    # Given no lookup service, which others wait for a minute for
    lookup = msgspec.structs.replace(federation.config.lookup, locators=("127.0.0.1:1",))
    with SubscriberAdapter(msgspec.structs.replace(federation.config, lookup=lookup)) as subscriber:
        # When a query may take a second, expect an error after that
        began = time.monotonic()
        with pytest.raises(LookupNotFoundError):
            subscriber.open_query("t", timeout=1.0)
        assert time.monotonic() - began < 30.0


def test_nothing_stays_of_many_queries(
    federation: Any, archive: Callable[..., Past], eventually: Callable[..., Any]
) -> None:
    # When many queries are made one after the other
    past = archive([an_object(1)])
    subscriber: SubscriberAdapter = federation.subscriber()
    for _ in range(100):
        assert len(list(subscriber.query("t"))) == 1
    # Expect one session, and nothing in it
    (session,) = subscriber._subscriptions.sessions.all()
    eventually(lambda: not session.flows.by_number and not session.queries.parts and not session.queries.to_cancel)
    assert past.cancelled == []


def test_a_query_that_may_not_go_on_fails(federation: Any, archive: Callable[..., Past]) -> None:
    # Given a query in the middle
    past = archive([an_object(n) for n in range(1, 301)])
    subscriber = federation.subscriber()
    query = subscriber.open_query("t")
    past.streams()[0].bound = 0
    # When its delegate ends it against its will, expect an error behind what has come
    (session,) = subscriber._subscriptions.sessions.all()
    (number,) = session.flows.by_number
    session.reader.take_batch([memoryview(ITEM.pack(END, number))])
    with pytest.raises(AccessDeniedError):
        deque(query, maxlen=0)
    # Expect another end that makes no sense to be an error of the protocol
    query = subscriber.open_query("t")
    with pytest.raises(ProtocolError):
        session.reader.take_batch([memoryview(ITEM.pack(FINISHED, max(session.flows.by_number)) + b"\xc1")])
    with pytest.raises(ConfigurationError, match="count 0"):
        query.get_next(0)


def test_too_many_open_queries_are_the_archives_to_refuse(federation: Any, archive: Callable[..., Past]) -> None:
    past = archive([an_object(1)])
    past.refusal = BackPressureError("20 queries are open")
    with pytest.raises(BackPressureError, match="20"):
        federation.subscriber().open_query("t")


@pytest.mark.parametrize("how", ["again", "both", "wiped", "a copy", "moved", "without an archive"])
def test_where_another_server_answers_the_query_says_what_is_missing(
    federation: Any, archive: Callable[..., Past], how: str
) -> None:
    # Given an archive in the lookup services whose server was killed, so that it is listed yet, and another one
    objects = [an_object(n) for n in range(1, 6)]
    old = archive(objects, incarnations=("second", "first"))
    archive([an_object(7, registration="registration-b")], incarnations=("elsewhere",))
    subscriber = federation.subscriber()
    assert len(list(subscriber.query("t"))) == 6
    old.die()
    port = old.address.rpartition(":")[2]
    # When one that is not listed, or is as well, has its address: the same archive, opened anew; another one; it as it
    # was before; or it has the same archive at another address
    is_whole = how in ("again", "both", "moved")
    has = {"wiped": ("new",), "a copy": ("third", "first")}.get(how, ("third", "second", "first"))
    if how != "without an archive":
        archive(
            objects if is_whole else [],
            incarnations=has, port="0" if how == "moved" else port, is_listed=how in ("both", "moved"),
        )  # fmt: skip
    # Expect all of it, or what is there and the address at which something is missing
    expected = 6 if is_whole else 1
    with subscriber.open_query("t") as query:
        assert len(list(query)) == expected
        partial = query.partial
    assert [each.partition(": ")[0] for each in partial] == ([] if is_whole else [old.address])
    assert query.state == "finished"
    counted = subscriber.count("t")
    assert int(counted) == expected
    assert [each.partition(": ")[0] for each in counted.partial] == ([] if is_whole else [old.address])
    # Expect an object to be got, or not to be denied where it may be
    if is_whole:
        assert subscriber.get(objects[0].object_id).object_id == objects[0].object_id
    else:
        with pytest.raises(WireError, match="is not known"):
            subscriber.get(objects[0].object_id)


def test_where_another_server_answers_each_time_the_part_is_given_up(
    federation: Any, archive: Callable[..., Past], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive at an address behind which another server answers each time
    past = archive([an_object(1)], incarnations=("first",))
    monkeypatch.setattr(
        Past, "server_id", property(lambda _: uuid.uuid4().hex, lambda _past, _given: None), raising=False
    )
    # When it is asked, expect an error that says so
    with pytest.raises(WireError, match="another server answers at"):
        list(federation.subscriber().query("t"))
    assert len(past.queries) == 0
