"""What waited before it came here counts against deadlines: it tells its age, since clocks need not agree."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub import Config, RegistrationUid, Wish
from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.info_object import Cause, Head, Parcel, pack
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.sender import Sender
from jbi_pubsub.core.wire.stream import MAX_BATCH_ITEMS
from jbi_pubsub.core.wire.stream_socket import StreamSocket
from jbi_pubsub.pad.egress.queue import Waiting
from jbi_pubsub.pad.mail.letters import Loss
from jbi_pubsub.pad.server.data import _runs
from jbi_pubsub.protocol.publications import AGE_MOST, CHUNK, PUBLICATION
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.publisher import lanes as lanes_module
from jbi_pubsub.publisher.lanes import Lanes, aged
from jbi_pubsub.qos.meter import Meters
from jbi_pubsub.qos.queue import LevelQueue
from tests.conftest import eventually
from tests.qos.conftest import Judging
from tests.qos.test_mail_quality import content, queue_of, subscription, taken

Register = Callable[..., RegistrationUid]
Configured = Callable[..., Config]


def parcel(sequence: int, since: float = 0.0, payload: bytes = b"x") -> Parcel:
    return pack(Head("", "registration-1", sequence, 1.0, "t", "1.0", b"<m/>", len(payload)), payload, since)


def ages(items: list[tuple[Any, ...]]) -> list[int]:
    """Of all that are whole, in milliseconds."""
    heads = [PUBLICATION.unpack(item[0]) for item in items]
    return [age for kind, _, age in heads if kind != CHUNK]


# -- at the publisher -------------------------------------------------------------------------------------------------


def test_what_waits_for_credit_tells_how_long_it_waited() -> None:
    # Given a registration that may have two objects at its delegate, and a clock
    now = [1_000.0]
    lanes = Lanes(clock=lambda: now[0])
    lanes.grant(1, Registered(credit=2, importance=3, credit_bytes=10_000))
    lanes.put(1, [parcel(1, 999.5), parcel(2, 1_000.0), parcel(3, 1_000.0)], 0.0)
    # Expect what goes at once to be as old as it is
    assert [age for _ in range(2) for age in ages(lanes.take(MAX_BATCH_ITEMS, 1 << 20))] == [500, 0]
    # When the third one had to wait
    now[0] += 7.5
    lanes.done({1: 2})
    assert ages(lanes.take(MAX_BATCH_ITEMS, 1 << 20)) == [7_500]
    # When the delegate forgets all of it, later
    now[0] += 10.0
    lanes.restart(granted={1: Registered(credit=8, importance=3, credit_bytes=10_000)})
    items = [item for _ in range(2) for item in lanes.take(MAX_BATCH_ITEMS, 1 << 20)]
    assert ages(items) == [17_500]


def test_a_large_object_is_as_old_as_it_is_when_its_last_part_goes_and_a_clock_that_jumps_is_harmless() -> None:
    now = [1_000.0]
    lanes = Lanes(chunk=100, clock=lambda: now[0])
    lanes.grant(1, Registered(credit=8, importance=3, credit_bytes=10_000))
    lanes.put(1, [parcel(1, 1_000.0, bytes(150)), parcel(2, 2_000.0), parcel(3)], 0.0)
    lanes.take(1, 100)
    now[0] += 3.0
    items = []
    while not lanes.is_empty():
        items += lanes.take(MAX_BATCH_ITEMS, 1 << 20)
    assert ages(items) == [3_000, 0, 0]
    assert lanes_module._age(1e12, 1.0) == AGE_MOST


class Publications:
    """A source of publications, all at once."""

    def __init__(self, items: list[tuple[bytes, ...]]) -> None:
        self.items = items

    def take(self, _items: int, _bytes: int) -> list[tuple[Any, ...]]:
        taken, self.items = self.items, []
        return taken

    def is_empty(self) -> bool:
        return not self.items

    def is_full(self) -> bool:
        return True


@pytest.mark.processes
def test_what_is_sent_again_after_a_connection_broke_is_older_by_that() -> None:
    # Given publications that went into a connection that was cut before they were acknowledged
    first = (PUBLICATION.pack(1, 1, 20), b"one", b"payload")
    most = (PUBLICATION.pack(1, 2, AGE_MOST - 1), b"two" * 30_000)
    sender = Sender(Publications([first, most]), name="test", acked=lambda _count, _note: None, aged=aged)
    sender.start()
    ours, theirs = socket.socketpair()
    runner = threading.Thread(target=_until_cut, args=(sender, ours))
    runner.start()
    eventually(lambda: sender.unacknowledged == 2)
    theirs.close()
    runner.join(60.0)
    ours.close()
    began = time.monotonic()
    eventually(lambda: time.monotonic() > began + 0.3)
    # When they go again over another one
    ours, theirs = socket.socketpair()
    runner = threading.Thread(target=_until_cut, args=(sender, ours))
    runner.start()
    got: list[bytes] = []
    receiver = Receiver(lambda items: got.extend(map(bytes, items)), lambda: b"")
    reader = threading.Thread(target=_until_over, args=(receiver, theirs))
    reader.start()
    eventually(lambda: len(got) == 2)
    # Expect them as they were, and older
    (kind, number, age), (*_, oldest) = (PUBLICATION.unpack_from(item) for item in got)
    assert (kind, number) == (1, 1)
    assert 300 <= age < AGE_MOST
    assert oldest == AGE_MOST
    assert [item[PUBLICATION.size :] for item in got] == [b"onepayload", b"two" * 30_000]
    sender.stop()
    receiver.stop()
    runner.join(60.0)
    reader.join(60.0)
    ours.close()
    theirs.close()


def _until_cut(sender: Sender, sock: socket.socket) -> None:
    with pytest.raises(WireError):
        sender.run(StreamSocket(sock), 0)


def _until_over(receiver: Receiver, sock: socket.socket) -> None:
    with pytest.raises(WireError):
        receiver.run(StreamSocket(sock))


# -- at the delegate --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("age", [0, 1_500, AGE_MOST])
def test_an_age_becomes_a_time_of_our_own_clock_and_any_is_harmless(age: int) -> None:
    # Given an object that says to be so old, and a queue whose contract is metered
    item = memoryview(PUBLICATION.pack(1, 7, age) + b"".join(parcel(1).parts))
    ((number, (got,)),) = _runs([item], {}, 1_000.0)
    assert (number, got.since) == (7, 1_000.0 - age / 1000)
    assert got.with_payload(b"").since == got.since
    meters = Meters()
    lost: list[Cause] = []
    contract = Contract(Settings(deadline=2.0), meter=meters.meter())
    queue = LevelQueue(contract, lambda _waiting, cause: lost.append(cause))
    # When it waits and its turn comes; Expect it in time, or late
    queue.put(Waiting(got, arrived=got.since), 1_000.0)
    found = queue.select(2, 1_000.1)
    assert (found is None, lost) == ((True, [Cause.DEADLINE]) if age == AGE_MOST else (False, []))
    # Expect the delay to count from publication, whatever it is
    if found is not None:
        queue.take()
        meters.fold(1_001.0, 1.0)
        (told,) = meters.types(1_001.0)
        assert told["p50"] == pytest.approx(age / 1000 + 0.1, rel=0.25)


def test_without_quality_of_service_nobody_asks_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an object that tells no age, and one that expires, and so tells it
    monkeypatch.setattr("jbi_pubsub.pad.server.data.time.monotonic", lambda: 1_000.0)
    for age, since in ((0, 0.0), (1_500, 998.5)):
        item = memoryview(PUBLICATION.pack(1, 7, age) + b"".join(parcel(1).parts))
        ((_, (got,)),) = _runs([item], {})
        assert got.since == since


def test_who_is_behind_a_slow_one_of_its_registration_expires_when_it_is_time() -> None:
    # Given an object that was slow to come, and behind it one that says to be old already
    lost: list[int] = []
    queue = LevelQueue(
        Contract(Settings(deadline=5.0)), lambda waiting, _cause: lost.append(waiting.parcel.head.sequence)
    )
    queue.put(Waiting(parcel(1), arrived=99.0), 100.0)
    queue.put(Waiting(parcel(2), arrived=96.0), 100.0)
    # Expect it not to wait for the one in front
    queue.expire(102.0)
    assert lost == [2]


def test_mail_is_as_old_as_its_object() -> None:
    one = subscription("one", deadline=5.0)
    queue = queue_of(one)
    old, young = content(), content()
    queue.offer(one, old, 100.0, since=94.0)
    queue.offer(one, young, 100.0, since=99.0)
    assert [letter.content for letter in taken(queue, 100.0).letters] == [young]
    assert queue.late() == [Loss(one, Cause.DEADLINE, 1)]


def test_the_time_at_the_publisher_and_before_the_judge_counts_against_deadlines(
    federation: Any, by_type: Configured, figures: Any, register: Register, judging: Judging
) -> None:
    # Given a delegate that takes two objects of a registration at a time, and is busy with another one's
    delegate = federation.pad(config=by_type(federation.config, credit=2))
    publisher, other, subscriber = federation.light(), federation.light(), federation.subscriber()
    registration, blocker = register(publisher, "normal"), register(other, "blocking")
    wishes = {"short": Wish(deadline=3.0), "long": Wish(deadline=60.0)}
    uids = {name: subscriber.register_subscriber(type_name="normal", qos=wish) for name, wish in wishes.items()}
    assert [subscriber.wait_matched(uid) for uid in uids.values()] == [1, 1]
    with judging.held():
        other.publish(blocker, figures.figure_1)
        assert judging.waiting.wait(60.0)
        # When six objects are published, and more than that goes by before the first is judged
        for _ in range(6):
            publisher.publish(registration, figures.figure_1)
        began = time.monotonic()
        eventually(lambda: time.monotonic() > began + 3.5)
    # Expect them all too late for who has a short deadline, also the four that come only then
    assert [subscriber.receive(uids["long"], 20.0).platform.sequence for _ in range(6)] == [1, 2, 3, 4, 5, 6]
    eventually(lambda: subscriber.losses(uids["short"]).get(Cause.DEADLINE) == 6, what=subscriber.status)
    # and who comes later gets none of it either, but what is new
    publisher.publish(registration, figures.figure_1)
    assert subscriber.receive(uids["short"], 20.0).platform.sequence == 7
    # and the delays to be told from publication on
    delegate.delegate.contracts.quality._look()
    (told,) = [each for each in delegate.overview()["qos"]["types"] if each["name"] == "normal"]
    assert told["p95"] > 3.0


def test_what_lies_on_the_buffer_has_its_age_from_its_publisher(
    federation: Any, by_type: Configured, figures: Any, register: Register
) -> None:
    # Given objects that say to be older than any deadline, which nobody wanted yet
    federation.pad(config=by_type(federation.config))
    publisher, subscriber = federation.light(), federation.subscriber()
    uid = subscriber.register_subscriber(type_name="normal", qos=Wish(deadline=3600.0))
    registration = register(publisher, "normal")
    (connection,) = publisher._connections.values()
    connection.queue._clock = lambda: 1e9
    publisher.publish(registration, figures.figure_1)
    # When its subscriber has come
    assert subscriber.wait_matched(uid) == 1
    # Expect it lost by age, wherever it waited
    eventually(lambda: subscriber.losses(uid).get(Cause.DEADLINE) == 1, what=subscriber.status)
