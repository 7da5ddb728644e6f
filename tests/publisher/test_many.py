"""Many objects in one call: what comes is what as many single calls would bring."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.config import LinkSection
from jbi_pubsub.core.errors import ArgumentError, BackPressureError, MetadataError, OversizeError
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.wire.stream import MAX_BATCH_ITEMS
from jbi_pubsub.protocol.publications import PUBLICATION, WHOLE
from jbi_pubsub.publisher.lanes import RUN_ITEMS, Lanes
from jbi_pubsub.publisher.payloads import Body, Payload, Payloads
from jbi_pubsub.publisher.publication import RUN_BYTES, RUN_SECONDS, runs_of

TYPE = "mil.af.rl.jbi.Intel_Imagery"


def body_of(payload: Payload) -> Body:
    return Payloads(LinkSection().spooling()).body(payload, 1 << 20, 0.0)


def test_many_objects_arrive_as_if_published_one_by_one(publishing: Any, federation: Any, figures: Any) -> None:
    # Given a subscriber
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)
    # When objects are published in one call and by themselves, some with metadata given as text, some without payload
    many = [(figures.figure_1 if n % 2 else figures.figure_1.decode(), str(n)) for n in range(250)]
    ids = publishing.adapter.publish_many(registration, iter(many))
    ids.append(publishing.adapter.publish(registration, figures.figure_1, "single"))
    ids += publishing.adapter.publish_many(registration, [(figures.figure_1, None)])
    # Expect all of them, in order, under the ids that were returned
    got = [subscriber.receive(uid) for _ in ids]
    assert [obj.object_id for obj in got] == ids
    assert [obj.platform.sequence for obj in got] == list(range(1, 253))
    assert [obj.payload for obj in got] == [*(str(n).encode() for n in range(250)), b"single", b""]
    assert subscriber.losses(uid) == {}


def test_a_bad_one_among_many_ends_the_call_behind_those_before_it(
    publishing: Any, federation: Any, figures: Any
) -> None:
    # Given a subscriber
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)
    # When the 131st of many is no document
    many = [(figures.figure_1 if n != 130 else b"<metadata/>", None) for n in range(200)]
    with pytest.raises(MetadataError) as refused:
        publishing.adapter.publish_many(registration, many)
    # Expect to be told how many were published before it, and these, and no gap behind them
    assert refused.value.facts["published"] == 130
    publishing.adapter.publish(registration, figures.figure_1)
    assert [subscriber.receive(uid).platform.sequence for _ in range(131)] == list(range(1, 132))
    assert subscriber.losses(uid) == {}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (b"<metadata/>", "pairs"),
        ((b"<metadata/>",), "pairs"),
        ((7, b"payload"), "metadata is 7"),
        ((b"<metadata/>", 7), "payload is 7"),
    ],
)
def test_what_is_no_pair_is_named(given: Any, says: str, publishing: Any, figures: Any) -> None:
    registration = publishing.register(figures.figure_1, figures.schema)
    with pytest.raises(ArgumentError, match=says):
        publishing.adapter.publish_many(registration, [(figures.figure_1, None), given])


def test_a_payload_that_is_too_long_ends_the_call_as_a_single_one_does(federation: Any, figures: Any) -> None:
    # Given a publisher of payloads up to ten bytes
    client = msgspec.structs.replace(federation.config.client, max_payload=10)
    federation.config = msgspec.structs.replace(federation.config, client=client)
    federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    # When the third of many has eleven, expect to be told so, and how many were published before
    for payload in (bytes(11), bytearray(11), "x" * 11):
        with pytest.raises(OversizeError) as refused:
            publisher.publish_many(registration, [(figures.figure_1, bytes(10))] * 2 + [(figures.figure_1, payload)])
        assert refused.value.facts["published"] == 2


def test_without_room_it_is_told_how_many_have_gone_and_no_number_is_lost(federation: Any, figures: Any) -> None:
    # Given a publisher whose delegate is away and which queues ten objects
    pad, publisher = federation.pad(), federation.light()
    registration = figures.register(publisher)
    (connection,) = publisher._connections.values()
    publication, _ = publisher._publications[registration]
    put = connection.queue.put
    connection.queue.put = lambda number, run, timeout: put(number, run[:10], timeout)  # type: ignore[method-assign]
    # When more are published than there is room for
    with pytest.raises(BackPressureError) as refused:
        publisher.publish_many(registration, [(figures.figure_1, None)] * 25, timeout=0.0)
    # Expect to be told how many have gone, and the next one to have the next number
    assert refused.value.facts["published"] == 10
    assert publication.sequence == 10
    connection.queue.put = put  # type: ignore[method-assign]
    publisher.publish(registration, figures.figure_1)
    publisher.flush()
    (status,) = pad.delegate.status()["registrations"]
    assert status["published"] == 11


def test_threads_that_publish_at_once_all_send_and_lose_nothing(federation: Any, figures: Any) -> None:
    # Given registrations of one publisher, a thread for each, and a subscriber
    federation.pad()
    section = msgspec.structs.replace(federation.config.queue, bound=10_000)
    federation.config = msgspec.structs.replace(federation.config, queue=section)
    subscriber, publisher = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name=TYPE)
    at = publisher.connect_to_delegate("alpha", "rome")
    registrations = [publisher.register_publisher(at, figures.schema, figures.figure_1) for _ in range(4)]

    def publish(registration: Any) -> None:
        for number in range(300):
            if number % 50:
                publisher.publish(registration, figures.figure_1)
            else:
                publisher.publish_many(registration, [(figures.figure_1, None)] * 20)

    # When all publish at once
    threads = [threading.Thread(target=publish, args=(registration,)) for registration in registrations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Expect each one's objects in order
    got: dict[str, list[int]] = {}
    for _ in range(4 * (294 + 6 * 20)):
        platform = subscriber.receive(uid, 60.0).platform
        got.setdefault(platform.registration, []).append(platform.sequence)
    assert got == {registration: list(range(1, 415)) for registration in registrations}


def test_a_source_that_fails_or_takes_its_time_holds_nothing_back(
    publishing: Any, federation: Any, figures: Any
) -> None:
    # Given a subscriber, and a source that waits for each object to arrive before it has the next, and then fails
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)

    def source() -> Iterator[tuple[bytes, None]]:
        for number in range(1, 6):
            threading.Event().wait(2 * RUN_SECONDS)
            yield figures.figure_1, None
            assert subscriber.receive(uid, 60.0).platform.sequence == number
        for _ in range(30):
            yield figures.figure_1, None
        raise KeyError("the source's own")

    # When it is published
    with pytest.raises(KeyError) as failed:
        publishing.adapter.publish_many(registration, source())
    # Expect all that came before, and to be told how many
    assert [subscriber.receive(uid).platform.sequence for _ in range(30)] == list(range(6, 36))
    assert failed.value.__notes__ == ["publish_many: 35 objects were published before"]


# -- runs -----------------------------------------------------------------------------------------------------------


def test_runs_are_bounded_and_hold_everything_in_order() -> None:
    # Given small objects and some large ones; Expect runs of so many objects or bytes, and nothing left out
    objects = [(b"<m/>", b"x" * (200_000 if n % 70 == 69 else n)) for n in range(400)]
    runs = list(runs_of(objects, body=body_of))
    assert [pair for run in runs for pair in run] == objects
    assert max(map(len, runs)) == 100
    assert all(sum(len(m) + len(p) for m, p in run[:-1]) < RUN_BYTES for run in runs)


def test_what_comes_before_a_bad_one_is_given_first() -> None:
    # Given objects that come one by one, the third of which is none
    def come() -> Iterator[Any]:
        yield from [(b"<m/>", b"1"), (b"<m/>", b"2"), "no object"]

    runs = runs_of(come(), body=body_of)
    assert next(runs) == [(b"<m/>", b"1"), (b"<m/>", b"2")]
    with pytest.raises(ArgumentError):
        next(runs)


# -- lanes ----------------------------------------------------------------------------------------------------------


def _parcel(sequence: int, size: int = 10) -> Parcel:
    return Parcel(Head("", "", sequence, 0.0, "", "", b"", 0), (sequence.to_bytes(8, "big"), bytes(size)), size + 8, 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 120), st.integers(1, 3000)), max_size=30))
def test_registrations_take_turns_of_a_run_and_keep_their_order(puts: list[tuple[int, int, int]]) -> None:
    # Given runs of several registrations
    lanes, expected = Lanes(chunk=64 << 10), dict[int, list[int]]()
    for number, count, size in puts:
        first = len(expected.setdefault(number, []))
        run = [_parcel(first + n, size) for n in range(count)]
        expected[number] += range(first, first + count)
        assert lanes.put(number, run, 0.0) == count
    # When all is taken in batches
    got: dict[int, list[int]] = {}
    while not lanes.is_empty():
        batch = lanes.take(MAX_BATCH_ITEMS, 64 << 10)
        # Expect full batches, no more than a chunk beyond their bytes, and turns of a run
        assert 0 < len(batch) <= MAX_BATCH_ITEMS
        assert sum(len(part) for item in batch for part in item) < (128 << 10) + PUBLICATION.size * len(batch)
        turns = [PUBLICATION.unpack(item[0]) for item in batch]
        for kind, number, _ in turns:
            assert kind == WHOLE
            assert number in expected
        waiting = {number for number, known in expected.items() if len(got.get(number, [])) < len(known)}
        if len(waiting) > 1 and len(batch) > RUN_ITEMS:
            assert len({number for _, number, _ in turns}) > 1
        for (_, number, _), item in zip(turns, batch, strict=True):
            got.setdefault(number, []).append(int.from_bytes(item[1], "big"))
    # Expect every object once, in the order of its registration
    assert got == {number: known for number, known in expected.items() if known}
    assert lanes.waiting == 0
