"""Admission apart from judging: credits, what a publisher keeps until it is done, and who may wait for whom."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub import Config, RegistrationUid
from jbi_pubsub.core.errors import BackPressureError, JbiError
from jbi_pubsub.core.info_object import Head, Parcel
from jbi_pubsub.core.quality import Rate, Settings
from jbi_pubsub.core.wire.stream import MAX_BATCH_ITEMS
from jbi_pubsub.pad.ingress.admission import REPORT_AGAIN, Admission, ReportThread
from jbi_pubsub.pad.ingress.control import AdmissionControl
from jbi_pubsub.pad.ingress.pipeline import Pipeline
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.publications import CHUNK, LAST_CHUNK, PUBLICATION
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.publisher.lanes import QUEUE_ITEMS, Lanes, LaneTurns, PublisherLane
from tests.conftest import eventually
from tests.qos.conftest import Judging

Register = Callable[..., RegistrationUid]
Configured = Callable[..., Config]

CREDIT = Registered(credit=8, importance=3, credit_bytes=10_000)


# -- lanes of a publisher ---------------------------------------------------------------------------------------------


def parcel(sequence: int, size: int = 100) -> Parcel:
    return Parcel(Head("", "", sequence, 0.0, "", "", b"", 0), (sequence.to_bytes(8, "big"), bytes(size - 8)), size, 0)


def numbers(items: list[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """(registration, number) of whole objects."""
    return [(PUBLICATION.unpack(item[0])[1], int.from_bytes(item[1], "big")) for item in items]


def take_all(lanes: Lanes) -> list[tuple[int, int]]:
    """All that may go, and is acknowledged."""
    taken: list[tuple[int, int]] = []
    while not lanes.is_empty():
        items = lanes.take(MAX_BATCH_ITEMS, 1 << 20)
        assert items, "a lane that has a turn has something to send"
        taken += numbers(items)
        lanes.acknowledged(len(items))
    return taken


@pytest.mark.row("G-163")
def test_no_more_goes_than_the_credit_and_what_is_done_makes_room() -> None:
    # Given
    lanes = Lanes()
    lanes.grant(1, CREDIT)
    lanes.put(1, [parcel(n) for n in range(1, 21)], 0.0)
    # Expect
    assert take_all(lanes) == [(1, n) for n in range(1, 9)]
    assert lanes.is_empty()
    lanes.done({1: 3})
    assert take_all(lanes) == [(1, n) for n in range(9, 12)]
    lanes.done({1: 11})
    assert take_all(lanes) == [(1, n) for n in range(12, 20)]
    assert lanes.unfinished(1) == 9
    lanes.done({1: 19})
    assert take_all(lanes) == [(1, 20)]
    lanes.done({1: 20})
    assert lanes.unfinished(1) == 0
    assert lanes.wait_taken(0.0) == 0


def test_a_credit_goes_in_several_batches() -> None:
    lanes = Lanes()
    lanes.grant(1, CREDIT)
    lanes.put(1, [parcel(n) for n in range(1, 21)], 0.0)
    assert len(lanes.take(MAX_BATCH_ITEMS, 1 << 20)) == 2


def test_a_lane_without_credit_holds_up_no_other() -> None:
    # Given: a registration that has used up its credit, with all the rest waiting
    lanes = Lanes()
    for number in (1, 2):
        lanes.grant(number, CREDIT)
    bound = QUEUE_ITEMS // 2
    assert lanes.put(1, [parcel(n) for n in range(1, QUEUE_ITEMS)], 0.0) == bound
    take_all(lanes)
    # When
    assert lanes.put(2, [parcel(n) for n in range(1, 4)], 0.0) == 3
    # Expect
    assert take_all(lanes) == [(2, 1), (2, 2), (2, 3)]


def test_the_credit_is_one_of_bytes_too_and_a_larger_object_goes_alone() -> None:
    # Given
    lanes = Lanes(chunk=20_000)
    lanes.grant(1, CREDIT)
    lanes.put(1, [parcel(1, 6_000), parcel(2, 6_000), parcel(3, 15_000), parcel(4, 100)], 0.0)
    # Expect
    assert take_all(lanes) == [(1, 1)]
    lanes.done({1: 1})
    assert take_all(lanes) == [(1, 2)]
    lanes.done({1: 2})
    assert take_all(lanes) == [(1, 3)]
    lanes.done({1: 3})
    assert take_all(lanes) == [(1, 4)]


def test_a_large_object_in_chunks_uses_its_credit_once() -> None:
    # Given
    lanes = Lanes(chunk=1_000)
    lanes.grant(1, CREDIT)
    lanes.put(1, [parcel(1, 9_000), parcel(2, 2_000)], 0.0)
    # When
    items = []
    while not lanes.is_empty():
        items += lanes.take(MAX_BATCH_ITEMS, 1_000)
    lanes.acknowledged(len(items))
    # Expect: the second one waits for the first to be done
    kinds = [PUBLICATION.unpack(item[0])[0] for item in items]
    assert set(kinds[:-1]) == {CHUNK}
    assert kinds[-1] == LAST_CHUNK
    lanes.done({1: 1})
    assert not lanes.is_empty()


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "done", "restart"]), st.integers(1, 3), st.integers(1, 12)),
        max_size=60,
    )
)
def test_whatever_happens_nothing_is_forgotten_that_is_not_done(steps: list[tuple[str, int, int]]) -> None:
    # Given: registrations 1 and 2 with credit, 3 without; a delegate that gets what is sent
    lanes = Lanes()
    for number in (1, 2):
        lanes.grant(number, CREDIT)
    put = dict.fromkeys((1, 2, 3), 0)
    done = dict.fromkeys((1, 2, 3), 0)
    has: dict[int, list[int]] = {1: [], 2: [], 3: []}
    for what, number, count in steps:
        # When
        if what == "put":
            put[number] += lanes.put(number, [parcel(put[number] + n) for n in range(1, count + 1)], 0.0)
        elif what == "take":
            items = lanes.take(count, 1 << 20)
            lanes.acknowledged(len(items))
            for lane, sequence in numbers(items):
                has[lane].append(sequence)
            done[3] = has[3][-1] if has[3] else done[3]
        elif what == "done" and number != 3 and has[number]:
            done[number] = has[number][min(count, len(has[number])) - 1]
            has[number] = [n for n in has[number] if n > done[number]]
            lanes.done({number: done[number]})
        elif what == "restart":  # the delegate is killed, and another one takes its place
            has = {1: [], 2: [], 3: []}
            lanes.restart(granted=dict.fromkeys((1, 2), CREDIT))
        # Expect
        for lane in (1, 2):
            assert len(has[lane]) <= CREDIT.credit
            assert lanes.unfinished(lane) == put[lane] - done[lane]
            assert has[lane] == list(range(done[lane] + 1, done[lane] + len(has[lane]) + 1))
    for _ in range(200):
        for lane, sequence in take_all(lanes):
            has[lane].append(sequence)
        lanes.done({lane: known[-1] for lane, known in has.items() if known})
    assert all(known[-1] == put[lane] for lane, known in has.items() if known)
    assert lanes.wait_taken(0.0) == 0


def test_what_was_acknowledged_and_not_done_goes_to_a_delegate_without_credits_as_well() -> None:
    # Given
    lanes = Lanes()
    lanes.grant(1, CREDIT)
    lanes.put(1, [parcel(n) for n in range(1, 4)], 0.0)
    take_all(lanes)
    # When
    lanes.restart(granted={1: Registered()})
    # Expect
    assert take_all(lanes) == [(1, 1), (1, 2), (1, 3)]
    assert lanes.unfinished(1) == 0


def test_important_lanes_have_more_turns_and_all_of_them_under_strict() -> None:
    # Given
    for strict in (False, True):
        lanes = Lanes()
        for number, importance in ((1, 1), (2, 5)):
            lanes.grant(number, Registered(QUEUE_ITEMS, importance, 0, 1 << 30, strict))
            lanes.put(number, [parcel(n) for n in range(1, 4_001)], 0.0)
        # When
        sent = [number for number, _ in numbers([each for _ in range(8) for each in lanes.take(500, 1 << 20)])]
        # Expect: of bytes sixteen times as much; or nothing else
        assert sent.count(2) / max(1, sent.count(1)) > 10
        assert strict == (sent.count(1) == 0)


# -- over a delegate --------------------------------------------------------------------------------------------------


@pytest.fixture
def delegate(federation: Any, by_type: Configured) -> Any:
    """With quality of service, and a credit of 16; what finds no room waits as long as a test."""
    queue = msgspec.structs.replace(federation.config.queue, block_seconds=60.0)
    return federation.pad(config=by_type(msgspec.structs.replace(federation.config, queue=queue), credit=16))


def subscribed(federation: Any, type_name: str, subscriber: Any = None, **options: Any) -> tuple[Any, str]:
    """A subscription to all of a type."""
    subscriber = subscriber or federation.subscriber()
    uid = subscriber.register_subscriber(type_name=type_name, **options)
    assert subscriber.wait_matched(uid) == 1
    return subscriber, uid


def received(subscriber: Any, uid: str, count: int) -> list[int]:
    """The numbers of the next objects."""
    objects = [subscriber.receive(uid, 60.0) for _ in range(count)]
    return [obj.platform.sequence if obj is not None else 0 for obj in objects]


def test_everything_arrives_once_in_order_and_is_done(
    delegate: Any, federation: Any, figures: Any, register: Register
) -> None:
    # Given
    publisher = federation.light()
    registration = register(publisher, "important")
    subscriber, uid = subscribed(federation, "important")
    # When
    for _ in range(500):
        publisher.publish(registration, figures.figure_1, b"x" * 100)
    publisher.flush(60.0)
    # Expect
    assert received(subscriber, uid, 500) == list(range(1, 501))
    assert subscriber.receive(uid, 0.2) is None
    assert publisher.status()["registrations"][registration]["unfinished"] == 0
    told = delegate.status()["qos"]["tasks"]
    assert told["kinds"]["judge"]["served"] == 500
    assert {row["importance"] for row in told["bins"]} == {5}
    assert subscriber.losses(uid) == {}


def test_the_more_important_is_judged_first_and_what_is_admitted_is_acknowledged(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging
) -> None:
    # Given: one publisher, two registrations; and the delegate is busy with the first object
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    normal, important = register(publisher, "normal", at), register(publisher, "important", at)
    connection = publisher._connections[at]
    other = federation.light()
    blocker = register(other, "blocking")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When
        for registration in (normal, important):
            for _ in range(10):
                publisher.publish(registration, figures.figure_1)
        eventually(lambda: connection._sender.unacknowledged == 0 and connection.queue.waiting == 0)
        assert publisher.status()["registrations"][important]["unfinished"] == 10
        with pytest.raises(BackPressureError):
            publisher.flush(0.1)
    publisher.flush(60.0)
    # Expect
    expected = [("blocking", 1), *(("important", n) for n in range(1, 11)), *(("normal", n) for n in range(1, 11))]
    assert judging.judged == expected


@pytest.mark.row("Q-36")
def test_what_waits_follows_a_policy_file_that_changes(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging, tmp_path: Path
) -> None:
    # Given: objects of two registrations wait, the important ones first
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    uids = [register(publisher, name, at) for name in ("normal", "important")]
    other = federation.light()
    blocker = register(other, "blocking")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        for uid in uids:
            for _ in range(3):
                publisher.publish(uid, figures.figure_1)
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 2)
        # When
        file = tmp_path / "policies.toml"
        file.write_text(file.read_text().replace("importance = 5", "importance = 2").replace("= 1", "= 5"))
        eventually(lambda: delegate.status()["qos"]["policy"]["version"] == 2, what=lambda: delegate.status()["qos"])
    publisher.flush(60.0)
    # Expect
    assert [name for name, _ in judging.judged] == ["blocking", *["normal"] * 3, *["important"] * 3]
    queue = publisher._connections[at].queue
    assert {number: lane.level for number, lane in queue._lanes.items()} == {1: 4, 2: 1}  # the publisher knows it, too
    assert queue._turns._is_strict
    # When it is another strategy, expect the publisher to know that with its next object
    file.write_text(file.read_text().replace('"strict"', '"weighted_fair"'))
    eventually(lambda: delegate.status()["qos"]["policy"]["version"] == 3, what=lambda: delegate.status()["qos"])
    publisher.publish(uids[0], figures.figure_1)
    publisher.flush(60.0)
    eventually(lambda: not queue._turns._is_strict)


def test_what_was_sent_under_another_strategy_is_held_against_nobody() -> None:
    # Given a publisher that has sent much that is important, and nothing else, where the most important goes first
    turns = LaneTurns()
    lanes = {0: PublisherLane(1), 4: PublisherLane(2)}
    for level, lane in lanes.items():
        lane.level = level
    turns.follow(strict=True)
    for _ in range(100):
        turns.admit(lanes[4])
        turns.pop(turns.next())
        turns.charge(4, 1_000)
    # When levels have shares from now on
    turns.follow(strict=False)
    sent = Counter[int]()
    for _ in range(170):
        for lane in lanes.values():
            turns.admit(lane)
        level = turns.next()
        assert turns.pop(level) is lanes[level]
        turns.charge(level, 1_000)
        sent[level] += 1
    # Expect those of the weights, 1 and 16
    assert 9 <= sent[0] <= 11


def test_draining_waits_for_what_is_admitted(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging
) -> None:
    # Given
    publisher, other = federation.light(), federation.light()
    registration, blocker = register(publisher, "normal"), register(other, "blocking")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        publisher.publish(registration, figures.figure_1)
        eventually(lambda: delegate.status()["qos"]["tasks"]["waiting"] == 1)
        # When
        threading.Timer(0.3, judging.bar.set).start()
        delegate.service.drain(20.0)
        # Expect
        assert judging.judged == [("blocking", 1), ("normal", 1)]


def test_a_full_unimportant_registration_never_blocks_an_important_one_of_its_publisher(
    delegate: Any, federation: Any, figures: Any, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a delegate that has no memory for what is not important
    has_room = threading.Event()
    monkeypatch.setattr(AdmissionControl, "is_clear", lambda *_: False)
    monkeypatch.setattr(AdmissionControl, "has_memory", lambda _, importance: importance > 1 or has_room.is_set())
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    normal, important = register(publisher, "normal", at), register(publisher, "important", at)
    subscriber, uid = subscribed(federation, "important")
    _, normal_uid = subscribed(federation, "normal", subscriber)
    # When: everything that may wait does
    with pytest.raises(BackPressureError) as caught:
        publisher.publish_many(normal, [(figures.figure_1, None)] * QUEUE_ITEMS, timeout=2.0)
    count = caught.value.facts["published"]
    assert count == 16 + QUEUE_ITEMS // 2
    publisher.publish(important, figures.figure_1)
    # Expect
    assert received(subscriber, uid, 1) == [1]
    # Expect it not to wait for the memory, which there is none of
    eventually(lambda: delegate.status()["qos"]["tasks"]["parked"] == 1)
    assert publisher.status()["registrations"][normal]["unfinished"] == count
    has_room.set()
    assert received(subscriber, normal_uid, 20) == list(range(1, 21))


def test_what_finds_no_memory_in_time_is_refused_and_told(
    federation: Any, figures: Any, register: Register, by_type: Configured, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    queue = msgspec.structs.replace(federation.config.queue, block_seconds=0.2)
    federation.pad(config=by_type(msgspec.structs.replace(federation.config, queue=queue)))
    monkeypatch.setattr(AdmissionControl, "is_clear", lambda *_: False)
    monkeypatch.setattr(AdmissionControl, "has_memory", lambda *_: False)
    told: list[tuple[str, JbiError]] = []
    publisher = federation.light(refused=lambda *error: told.append(error))
    registration = register(publisher, "normal")
    # When
    object_id = publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    # Expect
    assert [(known, type(error)) for known, error in told] == [(object_id, BackPressureError)]


def crowded(asked: list[tuple[str, int]], has_room: threading.Event) -> Any:
    """A stage that has no room for what is not important."""

    def room(registration: Any, parcel: Parcel) -> float:
        asked.append((parcel.head.type_name, parcel.head.sequence))
        return 0.0 if parcel.head.type_name == "important" or has_room.is_set() else 0.01

    return room


def test_a_stage_without_room_for_one_registration_holds_up_no_other_of_its_publisher(
    delegate: Any, federation: Any, figures: Any, register: Register
) -> None:
    # Given
    asked: list[tuple[str, int]] = []
    has_room = threading.Event()
    delegate.delegate.pipeline.control._stages = (lambda *_: 0.0, crowded(asked, has_room))
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    normal, important = register(publisher, "normal", at), register(publisher, "important", at)
    subscriber, uid = subscribed(federation, "important")
    _, normal_uid = subscribed(federation, "normal", subscriber)
    # When: on one connection, what there is no room for goes first
    for _ in range(10):
        publisher.publish(normal, figures.figure_1)
    for _ in range(10):
        publisher.publish(important, figures.figure_1)
    # Expect: the others pass it, and calls are answered
    began = time.monotonic()
    assert received(subscriber, uid, 10) == list(range(1, 11))
    assert publisher.wait_for_subscribers(normal) == 1
    assert time.monotonic() - began < 45.0  # a wait on the connection would take 5 s for each
    eventually(lambda: delegate.status()["qos"]["tasks"]["parked"] == 1)
    assert publisher.status()["registrations"][normal]["unfinished"] == 10
    # When
    has_room.set()
    # Expect: each object was asked about
    assert received(subscriber, normal_uid, 10) == list(range(1, 11))
    assert {("normal", n) for n in range(1, 11)} | {("important", n) for n in range(1, 11)} == set(asked)


def test_what_a_stage_has_no_room_for_is_refused_and_what_is_behind_it_goes_on(
    federation: Any, figures: Any, register: Register, by_type: Configured
) -> None:
    # Given: one that will have none for the second object, and none in time for the third
    queue = msgspec.structs.replace(federation.config.queue, block_seconds=0.2)
    pad = federation.pad(config=by_type(msgspec.structs.replace(federation.config, queue=queue)))

    def room(_: Any, parcel: Parcel) -> float:
        if parcel.head.sequence == 2:
            raise BackPressureError("the archive is full")
        return 0.05 * (parcel.head.sequence == 3)

    pad.delegate.pipeline.control._stages = (room,)
    told: list[str] = []
    publisher = federation.light(refused=lambda _, error: told.append(error.message))
    registration = register(publisher, "normal")
    subscriber, uid = subscribed(federation, "normal")
    # When
    for _ in range(4):
        publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    # Expect
    assert received(subscriber, uid, 2) == [1, 4]
    assert told[0] == "the archive is full"
    assert "no room for this object within 0.2 s" in told[1]


def test_without_quality_of_service_the_publisher_waits_for_a_stage_and_is_refused_at_last(
    federation: Any, figures: Any
) -> None:
    # Given
    queue = msgspec.structs.replace(federation.config.queue, block_seconds=0.3)
    pad = federation.pad(config=msgspec.structs.replace(federation.config, queue=queue))
    asked: list[int] = []

    def room(_: Any, parcel: Parcel) -> float:
        asked.append(parcel.head.sequence)
        return 0.0 if parcel.head.sequence == 1 and len(asked) > 5 else 0.01

    pad.delegate.pipeline.control._stages = (room,)
    told: list[type[JbiError]] = []
    publisher = federation.light(refused=lambda _, error: told.append(type(error)))
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber()
    assert subscriber.wait_matched(uid) == 1
    # When
    for _ in range(2):
        publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    # Expect
    assert received(subscriber, uid, 1) == [1]
    assert told == [BackPressureError]
    assert asked[:7] == [1, 1, 1, 1, 1, 1, 2]


def test_who_exceeds_its_credit_is_cut_off_and_nobody_else(
    delegate: Any,
    federation: Any,
    figures: Any,
    register: Register,
    judging: Judging,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Given: a publisher that keeps to no credit, and one that does
    greedy, good = federation.light(), federation.light()
    bad, fine = register(greedy, "normal"), register(good, "important")
    subscriber, uid = subscribed(federation, "important")
    (connection,) = greedy._connections.values()
    connection.queue.grant(1, Registered(credit=1_000, importance=1, credit_bytes=1 << 30))
    # When
    with judging.held():
        good.publish(fine, figures.figure_1)
        assert judging.waiting.wait(60.0)
        for _ in range(100):
            greedy.publish(bad, figures.figure_1)
        # Expect
        eventually(lambda: "its credit is 16" in caplog.text, what=lambda: caplog.text)
    good.publish(fine, figures.figure_1)
    assert received(subscriber, uid, 2) == [1, 2]
    greedy.close(0.1)


def test_a_subscriber_that_blocks_parks_that_registration_alone(
    delegate: Any, federation: Any, figures: Any, register: Register
) -> None:
    # Given: two registrations of a type, a subscription that takes nothing and blocks, beside one that takes all
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    normal, important = register(publisher, "normal", at), register(publisher, "important", at)
    subscriber, blocking = subscribed(federation, "normal", policy="block", bound=2)
    _, all_of_it = subscribed(federation, "important", subscriber)
    # When
    for n in range(12):
        publisher.publish(normal, figures.figure_1)
        if n == 11:
            publisher.publish(important, figures.figure_1)
    # Expect: others go on meanwhile, and nothing of the one that waits is lost
    assert received(subscriber, all_of_it, 1) == [1]
    eventually(lambda: delegate.status()["qos"]["tasks"]["parked"] == 1)
    assert received(subscriber, blocking, 12) == list(range(1, 13))
    publisher.flush(60.0)
    assert subscriber.losses(blocking) == {}


def test_a_subscriber_that_blocks_for_too_long_loses_and_is_told(
    federation: Any, figures: Any, register: Register, by_type: Configured
) -> None:
    # Given
    queue = msgspec.structs.replace(federation.config.queue, block_seconds=0.2)
    config = by_type(msgspec.structs.replace(federation.config, queue=queue))
    federation.pad(config=config)
    publisher = federation.light()
    registration = register(publisher, "normal")
    subscriber = federation.subscriber(config)
    uid = subscriber.register_subscriber(type_name="normal", policy="block", bound=2)
    assert subscriber.wait_matched(uid) == 1
    # When
    for _ in range(10):
        publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    # Expect
    eventually(lambda: subscriber.losses(uid).get("block_timeout", 0) >= 1, what=lambda: subscriber.losses(uid))
    took = []
    while (obj := subscriber.receive(uid, 0.5)) is not None:
        took.append(obj.platform.sequence)
    assert took == sorted(set(took))
    assert len(took) + subscriber.losses(uid)["block_timeout"] == 10


def test_mail_is_done_when_it_is_on_disk_and_holds_up_nobody(
    federation: Any,
    figures: Any,
    register: Register,
    by_type: Configured,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given: a delegate with state whose disk is slow, and an e-mail subscription to what is not important
    go, commit = threading.Event(), MailStore.commit

    def slow(store: MailStore, changes: Any, offset: float) -> None:
        assert not changes.letters or go.wait(60.0)
        commit(store, changes, offset)

    monkeypatch.setattr(MailStore, "commit", slow)
    section = msgspec.structs.replace(federation.config.pad, state=str(tmp_path / "state.db"))
    pad = federation.pad(config=by_type(msgspec.structs.replace(federation.config, pad=section)))
    secret = "0123456789abcdef" * 2
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    normal, important = register(publisher, "normal", at), register(publisher, "important", at)
    (entries,) = {
        r.topic.entries[:1] for r in pad.delegate.tables.registrations.values() if r.gate.type.name == "normal"
    }
    uid = owned_uid("subscription", secret)
    request = SubscriptionRequest(uid, entries, direct=False, recipients=("one@x.org",), secret=secret)
    pad.delegate.subscribers.subscribe("", request, 60.0)
    subscriber, direct = subscribed(federation, "important")
    # When
    publisher.publish(normal, figures.figure_1)
    publisher.publish(important, figures.figure_1)
    # Expect
    assert received(subscriber, direct, 1) == [1]
    eventually(lambda: publisher.status()["registrations"][important]["unfinished"] == 0)
    assert publisher.status()["registrations"][normal]["unfinished"] == 1
    go.set()
    publisher.flush(60.0)


def test_a_fault_in_judging_refuses_that_object_and_the_others_go_on(
    delegate: Any, federation: Any, figures: Any, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given
    judge = Pipeline.judge

    def fails_at_three(self: Pipeline, registration: Any, run: Any, *rest: Any) -> int:
        if any(each.head.sequence == 3 for each in run):
            raise ZeroDivisionError("a fault of ours")
        return judge(self, registration, run, *rest)

    monkeypatch.setattr(Pipeline, "judge", fails_at_three)
    told: list[str] = []
    publisher = federation.light(refused=lambda object_id, _: told.append(object_id))
    registration = register(publisher, "important")
    subscriber, uid = subscribed(federation, "important")
    # When
    for _ in range(5):
        publisher.publish(registration, figures.figure_1)
        publisher.flush(60.0)
    # Expect
    assert received(subscriber, uid, 4) == [1, 2, 4, 5]
    assert [each[-12:] for each in told] == ["000000000003"]


def test_what_was_said_on_a_connection_that_was_cut_is_said_again(
    delegate: Any, federation: Any, figures: Any, register: Register, judging: Judging
) -> None:
    # Given: objects that are admitted, and not done when the connection is cut
    publisher = federation.light()
    registration = register(publisher, "important")
    subscriber, uid = subscribed(federation, "important")
    (connection,) = publisher._connections.values()
    other = federation.light()
    blocker = register(other, "blocking")
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        for _ in range(5):
            publisher.publish(registration, figures.figure_1)
        eventually(lambda: connection._sender.unacknowledged == 0 and connection.queue.waiting == 0)
        for receiver, _ in delegate.service.data._publications.values():
            receiver.stop()
    # Expect
    publisher.flush(60.0)
    assert received(subscriber, uid, 5) == [1, 2, 3, 4, 5]


def test_a_publisher_that_may_publish_so_many_a_second_is_held_back_without_a_loss(
    delegate: Any, federation: Any, figures: Any, register: Register
) -> None:
    # Given
    publisher = federation.light()
    registration = register(publisher, "normal")
    (known,) = delegate.delegate.tables.registrations.values()
    known.contract.settings = Settings(importance=1, max_rate=Rate(50, "objects"))
    subscriber, uid = subscribed(federation, "normal")
    # When
    began = time.monotonic()
    for _ in range(60):
        publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    # Expect
    assert time.monotonic() - began > 1.0  # a tenth of a second's may go at once
    assert received(subscriber, uid, 60) == list(range(1, 61))


def test_a_rate_of_a_publisher_is_one_from_its_first_object_on_and_follows_policies(
    delegate: Any, federation: Any, figures: Any, register: Register, tmp_path: Path
) -> None:
    # Given a policy that lets large objects through every five seconds, and small ones as they come
    file = tmp_path / "policies.toml"
    limit = '[[policy]]\nname = "slowly"\naction = "publish"\nwhen = "size > \'10 KB\'"\nmax_rate = "0.2/s"\n'
    before = file.read_text()
    file.write_text(before + limit)
    eventually(lambda: delegate.status()["qos"]["policy"]["policies"] == 3)
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    slow, quick = (register(publisher, name, at) for name in ("normal", "important"))
    subscriber, uid = subscribed(federation, "normal")
    _, other = subscribed(federation, "important", subscriber)
    # When large ones come of one registration, and small ones of another
    for _ in range(20):
        publisher.publish(slow, figures.figure_1, bytes(20_000))
    for _ in range(20):
        publisher.publish(quick, figures.figure_1)
    # Expect one of the large ones, and all of the others
    assert received(subscriber, other, 20) == list(range(1, 21))
    assert received(subscriber, uid, 1) == [1]
    assert subscriber.receive(uid, 0.3) is None
    # When the policy is gone, expect the rest to come, none of it at the rate of before, and nothing to be lost
    file.write_text(before)
    assert [obj and obj.platform.sequence for obj in (subscriber.receive(uid, 60.0), subscriber.receive(uid, 4.0))] == [
        2,
        3,
    ]
    publisher.flush(60.0)
    assert received(subscriber, uid, 17) == list(range(4, 21))


def parked(delegate: Any) -> int:
    """Lanes that wait for something else than their turn."""
    return int(delegate.status()["qos"]["tasks"]["parked"])


def test_who_is_held_back_for_years_is_not_when_its_rate_is_another_one_or_when_it_ends(
    delegate: Any, federation: Any, figures: Any, register: Register
) -> None:
    # Given a publisher that may publish next to nothing
    publisher = federation.light()
    registration = register(publisher, "normal")
    (known,) = delegate.delegate.tables.registrations.values()
    known.contract.settings = Settings(importance=1, max_rate=Rate(0.001))
    subscriber, uid = subscribed(federation, "normal")
    publisher.publish(registration, figures.figure_1)
    assert received(subscriber, uid, 1) == [1]
    for _ in range(5):
        publisher.publish(registration, figures.figure_1)
    eventually(lambda: parked(delegate) == 1)
    # When it may publish more
    known.contract.settings = Settings(importance=1, max_rate=Rate(100, "objects"))
    # Expect all of it, soon
    assert received(subscriber, uid, 5) == [2, 3, 4, 5, 6]
    # When it may publish nothing again, and ends with objects that wait
    known.contract.settings = Settings(importance=1, max_rate=Rate(0.001))
    for _ in range(5):
        publisher.publish(registration, figures.figure_1)
    eventually(lambda: parked(delegate) == 1)
    publisher.close(0.1)
    # Expect nothing to be kept
    eventually(lambda: known.has_ended and parked(delegate) == 0)


def test_a_peer_publisher_judges_by_turns(federation: Any, figures: Any, by_type: Configured) -> None:
    # Given
    peer = federation.peer(by_type(federation.config))
    registration = peer.register_publisher(figures.schema, figures.figure_1, type_name="important")
    subscriber, uid = subscribed(federation, "important")
    # When
    for _ in range(20):
        peer.publish(registration, figures.figure_1)
    # Expect
    assert received(subscriber, uid, 20) == list(range(1, 21))
    told = peer.status()["qos"]["tasks"]
    assert told["kinds"] == {"publish": {**told["kinds"]["publish"], "served": 20}}
    assert {row["importance"] for row in told["bins"]} == {5}


class Told:
    """What has news, and may not be able to tell them."""

    def __init__(self, *, ready: bool) -> None:
        self.ready = ready
        self.tries = 0

    def report(self) -> bool:
        self.tries += 1
        return self.ready


def test_who_can_not_be_told_holds_up_nobody_and_is_told_at_last() -> None:
    # Given
    reports = ReportThread("test")
    stuck, good = Told(ready=False), Told(ready=True)
    # When
    began = time.monotonic()
    reports.wanted(cast("Admission", stuck))
    eventually(lambda: stuck.tries)
    for count in range(1, 101):
        reports.wanted(cast("Admission", good))
        while good.tries < count:
            time.sleep(0.0005)
    # Expect: it was tried again now and then, not each time
    assert stuck.tries <= 2 + (time.monotonic() - began) / REPORT_AGAIN
    stuck.ready = True
    reports.flush(60.0)
    tries = stuck.tries
    reports.stop()
    assert stuck.tries == tries
    assert not [each for each in threading.enumerate() if each.name == "report-test"]


def test_news_are_told_although_somebody_waits_for_the_end_of_them() -> None:
    # Given somebody who waits for reports to be told, as `flush` does, before the thread that tells them waits for more
    reports, first, second = ReportThread("test"), Told(ready=True), Told(ready=True)
    ended = threading.Event()

    def waits() -> None:
        with reports._changed:
            while not ended.is_set():
                reports._changed.wait(60.0)

    waiting = threading.Thread(target=waits)
    waiting.start()
    eventually(lambda: len(reports._changed._waiters) == 1)  # type: ignore[attr-defined]
    reports.wanted(cast("Admission", first))
    eventually(lambda: len(reports._changed._waiters) == 2)  # type: ignore[attr-defined]
    # When there is more to tell
    reports.wanted(cast("Admission", second))
    # Expect
    eventually(lambda: second.tries == 1)
    ended.set()
    reports.stop()
    waiting.join(60.0)


KILLED = """
import sys, time
from jbi_pubsub.pad.ingress.pipeline import Pipeline
from jbi_pubsub.cli import main
Pipeline.judge = lambda *_: time.sleep(3600)
sys.argv = ["jbi", *ARGUMENTS]
main()
"""


def test_a_delegate_killed_with_work_that_is_not_done_loses_nothing_and_doubles_nothing(
    federation: Any, figures: Any, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given: a delegate that has admitted and acknowledged objects, and done none of them
    monkeypatch.setenv("JBI_QOS_MODE", "on")
    monkeypatch.setenv("JBI_QOS_CREDIT", "32")
    locator = federation.lookups[0].address
    arguments = ["--no-multicast", "--locator", locator, "pad", "alpha", "rome", "--json"]
    killed = start(script=KILLED.replace("ARGUMENTS", json.dumps(arguments)))
    assert killed.fact()["address"]
    busy, publisher = federation.light(), federation.light()
    busy.publish(figures.register(busy), figures.figure_1)  # this one is being judged
    registration = figures.register(publisher)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber()
    assert subscriber.wait_matched(uid) == 1
    (connection,) = publisher._connections.values()
    for _ in range(100):
        publisher.publish(registration, figures.figure_1)
    eventually(lambda: connection.queue.waiting == 68 and connection._sender.unacknowledged == 0)
    assert publisher.status()["registrations"][registration]["unfinished"] == 100
    # When
    killed.end(kill=True)
    assert start(*arguments).fact()["address"]
    for each in (busy, publisher):
        each.flush(30.0)
    # Expect
    objects = [subscriber.receive(uid, 60.0).platform for _ in range(101)]
    assert [each.sequence for each in objects if each.registration == registration] == list(range(1, 101))
    assert subscriber.receive(uid, 0.3) is None


OFF = """
import sys, threading
from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LookupSection
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.pad.server.server import DisseminationServer
config = Config(lookup=LookupSection(locators=(LOCATOR,), groups=(GROUP,), multicast=False))
server = DisseminationServer(config, TypeRepository(), characteristics=("alpha", "rome"))
server.start()
publisher, subscriber = PublisherAdapterLight(config), SubscriberAdapter(config)
uid = subscriber.register_subscriber()
registration = publisher.register_publisher(publisher.connect_to_delegate("alpha", "rome"), SCHEMA, INVARIANTS)
publisher.publish(registration, INVARIANTS)
assert subscriber.receive(uid, 60.0) is not None
publisher.flush(60.0)
print('{"qos": %s, "threads": %s, "status": %s}' % (
    sum(name.startswith("jbi_pubsub.qos") for name in sys.modules),
    sum(thread.name.startswith(("judge-", "report-")) for thread in threading.enumerate()),
    sum(key == "qos" for key in server.status()),
), flush=True)
for each in (publisher, subscriber):
    each.close()
server.stop(0.5)
"""


def test_what_is_off_is_not_imported_and_has_no_thread(
    federation: Any, figures: Any, start: Callable[..., Any], world: str
) -> None:
    values = {
        "LOCATOR": federation.lookups[0].address,
        "GROUP": world,
        "SCHEMA": str(figures.schema),
        "INVARIANTS": figures.figure_1,
    }
    script = OFF
    for name, value in values.items():
        script = script.replace(name, repr(value))
    assert start(script=script).fact() == {"qos": 0, "threads": 0, "status": 0}
