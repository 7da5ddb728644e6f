"""From a batch of deliveries to the application: runs, credits, what is taken without a lock, who holds up whom."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.config import Config, LinkSection
from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.info_object import Cause, Head, InfoObject, LossNotice, decode, pack
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.core.signing import digest
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.deliveries import CHUNK, END, ITEM, LAST_CHUNK, LOSS, OBJECT, SHARED, Heard
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.subscriber.flows import DeliveryFlow
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.session import DelegateSession
from jbi_pubsub.subscriber.subscription import LocalSubscription
from jbi_pubsub.subscriber.watches import TemplateWatches


class Process:
    """A subscriber process reduced to its session, which is connected to nothing."""

    def __init__(self) -> None:
        self.pool = ListenerPool("test")
        self.renewals = LeaseRenewalManager("test")
        self.session = DelegateSession(
            ServiceRef("0" * 32, "subscriptions", ("127.0.0.1:1",)),
            Config(),
            self.renewals,
            name="test",
            watches=TemplateWatches(None, None, None),  # type: ignore[arg-type]  # there are none
            ended=lambda _session: None,
        )
        self.dues = 0
        """How often something was to be reported at once."""
        self.session.flows.due = self._count_due
        self.subscriptions: dict[int, LocalSubscription] = {}

    def _count_due(self) -> None:
        self.dues += 1

    def subscribe(self, number: int, listener: Any = None, *, bound: int = 10_000) -> LocalSubscription:
        """One that stands under that number."""
        request = SubscriptionRequest(f"s{number}", bound=bound)
        subscription = self.subscriptions[number] = LocalSubscription(request, listener, self.pool)
        session = self.session
        session.flows.by_number[number] = DeliveryFlow(subscription, number, session.flows)
        session.flows.highest = max(session.flows.highest, number)
        return subscription

    def take(self, *items: bytes) -> None:
        """A batch comes."""
        self.session.reader.take_batch([memoryview(item) for item in items])

    def note(self) -> dict[int, int]:
        """Of the next acknowledgement."""
        note = self.session.flows.note()
        return msgspec.msgpack.decode(note, type=Heard).consumed if note else {}

    def close(self) -> None:
        """End its threads."""
        for subscription in self.subscriptions.values():
            subscription.queue.close()
        self.pool.stop()
        self.renewals.stop()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process()
    yield made
    made.close()


def packed(sequence: int, registration: str = "registration-1") -> bytes:
    """An object on the wire."""
    head = Head(f"{sequence}", registration, sequence, 1.0, "t", "1.0", b"<m/>", 3)
    return b"".join(pack(head, b"abc").parts)


def whole(number: int, sequence: int) -> bytes:
    return ITEM.pack(OBJECT, number) + packed(sequence)


def shared(numbers: list[int], sequence: int) -> bytes:
    return ITEM.pack(SHARED, len(numbers)) + struct.pack(f"!{len(numbers)}I", *numbers) + packed(sequence)


def loss(number: int, count: int) -> bytes:
    return ITEM.pack(LOSS, number) + msgspec.msgpack.encode(LossNotice("s", Cause.QUEUE_OVERFLOW, count))


# -- from a batch to the queues -----------------------------------------------------------------------------------


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=examples(150))
@given(steps=st.integers(1, 40), chance=st.randoms(use_true_random=False))
def test_a_batch_comes_to_each_subscription_in_its_order(steps: int, chance: random.Random) -> None:
    # Given three subscriptions, two more that were cancelled, and a batch of all that may come, in runs or by turns
    process = Process()
    for number in (1, 3, 5):
        process.subscribe(number)
    add, lose = LocalSubscription.add, LocalSubscription.lose
    items: list[bytes] = []
    expected: dict[int, list[int | str]] = defaultdict(list)
    sequence = 0
    for _ in range(steps):
        numbers = chance.sample([1, 2, 3, 4, 5], chance.randint(1, 3))
        for _ in range(chance.randint(1, 3)):
            sequence += 1
            match chance.randint(0, 4):
                case 0 | 1:
                    items.append(whole(numbers[0], sequence))
                    expected[numbers[0]].append(sequence)
                case 2:
                    items.append(shared(numbers, sequence))
                    for number in numbers:
                        expected[number].append(sequence)
                case 3:
                    items.append(loss(numbers[0], sequence))
                    expected[numbers[0]].append(f"lost {sequence}")
                case _:
                    data = packed(sequence)
                    cut = chance.randint(1, len(data) - 1)
                    items.append(ITEM.pack(CHUNK, numbers[0]) + data[:cut])
                    items.append(ITEM.pack(LAST_CHUNK, numbers[0]) + data[cut:])
                    expected[numbers[0]].append(sequence)
    # When it comes
    got: dict[int, list[int | str]] = defaultdict(list)
    numbers_of = {subscription: number for number, subscription in process.subscriptions.items()}

    def added(subscription: LocalSubscription, objects: Any, consumed: Any) -> None:
        got[numbers_of[subscription]] += [obj.platform.sequence for obj in objects]
        add(subscription, objects, consumed)

    def told(subscription: LocalSubscription, cause: Cause, count: int, detail: str = "", source: Any = None) -> None:
        got[numbers_of[subscription]].append(f"lost {count}")
        lose(subscription, cause, count, detail, source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalSubscription, "add", added)
        patch.setattr(LocalSubscription, "lose", told)
        process.take(*items)
    # Expect each to have got its own, with the losses where they belong
    assert got == {number: what for number, what in expected.items() if number in process.subscriptions}
    for number, subscription in process.subscriptions.items():
        assert [o.platform.sequence for o in subscription.queue.drain()] == [
            n for n in got[number] if isinstance(n, int)
        ]
    process.close()


def test_a_batch_is_handed_on_with_one_step_a_subscription(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given two subscriptions, and a batch with objects for them together and for one of them
    for number in (1, 2):
        process.subscribe(number)
    counts: list[int] = []
    add = LocalSubscription.add
    monkeypatch.setattr(
        LocalSubscription,
        "add",
        lambda self, objects, consumed: (counts.append(len(objects)), add(self, objects, consumed)),
    )
    # When it comes, expect two steps
    process.take(*(shared([1, 2], n) for n in range(1, 6)), *(whole(1, n) for n in range(6, 11)))
    assert sorted(counts) == [5, 10]


def test_the_last_item_of_all_says_that_nothing_comes_any_more(process: Process) -> None:
    subscription = process.subscribe(1)
    process.take(whole(1, 1), ITEM.pack(END, 0))
    assert process.session.link.is_parted
    assert [obj.platform.sequence for obj in subscription.queue.drain()] == [1]


@pytest.mark.parametrize(
    "item",
    [
        b"",
        ITEM.pack(99, 1),
        ITEM.pack(OBJECT, 1),
        ITEM.pack(OBJECT, 1) + b"\0\0\0\x09short",
        ITEM.pack(SHARED, 0) + packed(1),
        ITEM.pack(SHARED, 10_001) + packed(1),
        ITEM.pack(SHARED, 2) + b"\0\0\0\1",
    ],
    ids=["empty", "another kind", "no object", "half an object", "for nobody", "for too many", "numbers missing"],
)
def test_what_is_no_delivery_is_an_error_of_the_protocol(item: bytes, process: Process) -> None:
    process.subscribe(1)
    with pytest.raises(ProtocolError):
        process.take(item)


@pytest.mark.parametrize("at_once", [1, 3, 40, 10_000])
def test_a_large_object_comes_whole_however_it_was_cut(at_once: int, process: Process) -> None:
    # Given an object with metadata and a payload that go in chunks of so many bytes
    subscription = process.subscribe(1)
    head = Head("1", "registration-1", 1, 1.0, "t", "1.0", b"<m>%s</m>" % (b"m" * 90), 3000)
    data = b"".join(pack(head, bytes(range(250)) * 12).parts)
    cuts = [data[at : at + at_once] for at in range(0, len(data), at_once)]
    # When they come, one a batch
    for chunk in cuts[:-1]:
        process.take(ITEM.pack(CHUNK, 1) + chunk)
        assert len(subscription.queue.waiting) == 0
    process.take(ITEM.pack(LAST_CHUNK, 1) + cuts[-1])
    # Expect it as it was
    [obj] = subscription.queue.drain()
    assert obj == decode(data)


def test_chunks_keep_nothing_of_the_batches_they_came_in(process: Process) -> None:
    # Given batches of which a large object's chunk is a small part, and one of which it is most
    coming = Gathering(Config().link.spooling(), 0, 0.0)
    for size in (10, 0, 40_000, 90_000, 20):
        coming.add(memoryview(bytearray(100_000))[:size])
    # Expect the small ones to be copied together, and to hold no batch for as long as the rest does not come
    assert [(type(chunk), len(chunk)) for chunk in coming.chunks] == [
        (bytearray, 40_010),
        (memoryview, 90_000),
        (bytearray, 20),
    ]


def test_a_payload_has_as_much_as_its_head_says_unless_a_delegate_has_cut_it() -> None:
    # Given room for what has 200,000 bytes, and objects that say 100,000
    spool = LinkSection(spool=64 << 10, spool_bytes=2_000_000).spooling()
    (begun, _) = pack(Head("1", "r", 1, 1.0, "t", "1.0", b"", 100_000), b"").parts

    def come(size: int, *, is_cut: bool) -> Gathering:
        coming = Gathering(spool, 200_000, 0.0, is_cut=is_cut)
        for chunk in (begun, bytes(80_000), bytes(size - 80_000)):
            coming.add(memoryview(chunk))
        return coming

    # Expect of a publisher exactly that
    assert come(100_000, is_cut=False).parcel(0.0).head.payload_length == 100_000
    for size in (99_999, 100_001):
        with pytest.raises(ProtocolError, match="by its head has"):
            come(size, is_cut=False).parcel(0.0)
    # Expect of a delegate less or more, up to the limit
    for size in (99_999, 100_001, 200_000):
        coming = come(size, is_cut=True)
        assert coming.info_object(0).payload_size == size
        assert coming.failure is None
    coming = come(200_001, is_cut=True)
    assert isinstance(coming.failure, OversizeError)
    assert spool.used == 0


@pytest.mark.parametrize(("signature", "is_looked_at"), [(b"signed", True), (b"signed", False), (b"", True)])
def test_the_digest_of_a_large_payload_is_made_as_it_comes(
    monkeypatch: pytest.MonkeyPatch, signature: bytes, is_looked_at: bool
) -> None:
    # Given one that was signed or not, for who looks at signatures or does not
    payload = bytes(range(250)) * 400
    head = Head("1", "r", 1, 1.0, "t", "1.0", b"", len(payload), signature=signature)
    coming = Gathering(LinkSection(spool=64 << 10).spooling(), 1 << 20, 0.0, is_looked_at=is_looked_at)
    for chunk in (pack(head, b"").parts[0], payload[:70_000], payload[70_000:]):
        coming.add(memoryview(chunk))
    spooled = coming.parcel(0.0).spooled
    assert spooled is not None
    assert digest(spooled) == hashlib.sha256(payload).digest()
    # Expect it not to be read again where both are so
    read: list[int] = []
    monkeypatch.setattr(type(spooled), "chunks", lambda _, size: read.append(size) or iter(()))
    digest(spooled)
    assert bool(read) == (not (signature and is_looked_at))


@pytest.mark.parametrize(
    "begun",
    [
        (5 << 20).to_bytes(4, "big"),  # its head has more than any
        bytes(4),  # it has none
    ],
)
def test_a_large_object_that_never_ends_is_an_error_of_the_protocol(process: Process, begun: bytes) -> None:
    process.subscribe(1)
    process.take(ITEM.pack(CHUNK, 1) + begun)
    with pytest.raises(ProtocolError):
        process.take(*[ITEM.pack(CHUNK, 1) + bytes(1 << 20)] * 10)


def test_a_listener_that_hangs_holds_up_no_delivery(process: Process, eventually: Callable[..., Any]) -> None:
    # Given a listener that does not return, and another subscription with a queue
    entered, gate = threading.Event(), threading.Event()

    class Hanging:
        def arrived(self, _uid: str, _obj: InfoObject) -> None:
            entered.set()
            assert gate.wait(60.0)

        def lost(self, _uid: str, _notice: LossNotice) -> None:
            pass

    hanging = process.subscribe(1, Hanging())
    free = process.subscribe(2)
    process.take(shared([1, 2], 1))
    assert entered.wait(60.0)
    # When more comes for both, with losses, expect the reader to hand it on while the listener hangs
    process.take(shared([1, 2], 2), loss(1, 3), whole(1, 3), whole(2, 4))
    assert not gate.is_set()
    assert [free.queue.take(0.0).platform.sequence for _ in range(3)] == [1, 2, 4]  # type: ignore[union-attr]
    assert len(hanging.queue.waiting) == 2
    # Expect the credit of what the application took to be returned, and the other one's when it goes on
    assert process.note() == {2: 3}
    gate.set()
    eventually(lambda: not hanging.queue.waiting)
    eventually(lambda: process.session.flows.by_number[1].consumed == 3)
    assert process.note() == {1: 3}


# -- credits ------------------------------------------------------------------------------------------------------


def test_an_acknowledgement_looks_at_those_alone_of_which_something_was_consumed(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a thousand subscriptions
    for number in range(1, 1001):
        process.subscribe(number)
    looked: list[int] = []
    report = DeliveryFlow.report
    monkeypatch.setattr(DeliveryFlow, "report", lambda self: (looked.append(self.number), report(self))[1])
    # When three of them have something, and the application takes it from two
    process.take(shared([7, 8, 9], 1), whole(7, 2))
    for number in (7, 7, 9):
        process.subscriptions[number].queue.take(0.0)
    # Expect two to be looked at, and told; then nobody, until something else is taken
    assert process.note() == {7: 2, 9: 1}
    assert sorted(looked) == [7, 9]
    assert process.note() == {}
    process.subscriptions[8].queue.take(0.0)
    assert process.note() == {8: 1}
    assert len(looked) == 3


def test_all_that_was_consumed_is_reported_again_on_a_new_connection(process: Process) -> None:
    # Given three subscriptions, of two of which something was consumed and reported
    for number in (1, 2, 3):
        process.subscribe(number)
    process.take(shared([1, 2, 3], 1))
    for number in (1, 2):
        process.subscriptions[number].queue.take(0.0)
    assert process.note() == {1: 1, 2: 1}
    # When the connection is lost, and the report perhaps with it, expect it again
    for standing in process.session.flows.by_number.values():
        standing.report_again()
    assert process.note() == {1: 1, 2: 1}


def test_what_a_subscription_took_that_no_longer_stands_there_is_not_reported(process: Process) -> None:
    # Given objects that wait for a subscription whose session is lost, and another one that has got its number since
    old = process.subscribe(1)
    process.take(whole(1, 1))
    process.subscribe(1)
    # When the application takes them, expect nobody to be told under that number
    assert old.queue.take(0.0) is not None
    assert process.note() == {}
    old.queue.close()


def test_credits_are_due_when_a_quarter_of_the_bound_is_taken(process: Process) -> None:
    subscription = process.subscribe(1, bound=40)
    process.take(*(whole(1, n) for n in range(1, 21)))
    for _ in range(9):
        subscription.queue.take(0.0)
    assert process.dues == 0
    subscription.queue.take(0.0)
    assert process.dues == 1


def test_no_credit_is_lost_between_threads_that_consume_and_those_that_report(process: Process) -> None:
    # Given four subscriptions, whose objects four threads take while two report
    ours = [process.subscribe(number) for number in (1, 2, 3, 4)]
    process.take(*(shared([1, 2, 3, 4], n) for n in range(1, 2001)))
    reported: dict[int, int] = {}
    over = threading.Event()

    def take(subscription: LocalSubscription) -> None:
        while subscription.queue.take(0.0) is not None:
            pass

    def report(into: dict[int, int]) -> None:
        while not over.is_set():
            for number, total in process.note().items():
                into[number] = max(into.get(number, 0), total)

    notes: list[dict[int, int]] = [{}, {}]
    takers = [threading.Thread(target=take, args=(s,)) for s in ours]
    reporters = [threading.Thread(target=report, args=(note,)) for note in notes]
    for thread in (*takers, *reporters):
        thread.start()
    for thread in takers:
        thread.join()
    over.set()
    for thread in reporters:
        thread.join()
    # Expect all of it to have been told, at last with the next acknowledgement
    for note in (*notes, process.note()):
        for number, total in note.items():
            reported[number] = max(reported.get(number, 0), total)
    assert reported == dict.fromkeys((1, 2, 3, 4), 2000)


# -- taking -------------------------------------------------------------------------------------------------------


def test_what_waits_is_taken_while_others_hold_the_queue(process: Process) -> None:
    # Given two objects that wait, and a thread in the middle of adding others
    subscription = process.subscribe(1)
    process.take(whole(1, 1), whole(1, 2))
    held, gate = threading.Event(), threading.Event()

    def hold() -> None:
        with subscription.queue.changed:
            held.set()
            assert gate.wait(60.0)

    holding = threading.Thread(target=hold)
    holding.start()
    assert held.wait(60.0)
    # When the application takes them, expect it to get them at once
    taken: list[InfoObject | None] = []
    taking = threading.Thread(target=lambda: taken.extend(subscription.queue.take(10.0) for _ in range(2)))
    taking.start()
    taking.join(60.0)
    assert [obj.platform.sequence for obj in taken if obj is not None] == [1, 2]
    gate.set()
    holding.join()


def test_threads_that_take_and_drain_at_once_get_each_object_once(process: Process) -> None:
    # Given objects that come while three threads take and one drains
    subscription = process.subscribe(1)
    taken: list[list[int]] = [[] for _ in range(4)]
    over = threading.Event()

    def take(into: list[int]) -> None:
        while not (over.is_set() and not len(subscription.queue.waiting)):
            obj = subscription.queue.take(0.001)
            if obj is not None:
                into.append(obj.platform.sequence)

    def drain(into: list[int]) -> None:
        while not (over.is_set() and not len(subscription.queue.waiting)):
            into += [obj.platform.sequence for obj in subscription.queue.drain()]

    threads = [threading.Thread(target=take, args=(each,)) for each in taken[:3]]
    threads.append(threading.Thread(target=drain, args=(taken[3],)))
    for thread in threads:
        thread.start()
    for first in range(1, 4001, 20):
        process.take(*(whole(1, n) for n in range(first, first + 20)))
    over.set()
    for thread in threads:
        thread.join(60.0)
    # Expect each object once, in order for each thread, and all credits
    assert all(each == sorted(each) for each in taken)
    assert sorted(n for each in taken for n in each) == list(range(1, 4001))
    assert process.session.flows.by_number[1].consumed == 4000


def test_an_application_that_takes_what_waits_costs_no_look_at_the_process(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an adapter with an object waiting
    adapter = federation.subscriber()
    uid = adapter.register_subscriber(type_name="t")
    adapter._find(uid).add([decode(packed(1))], lambda _count: None)
    # When it is taken, expect no system call for the process's id: whether the adapter is a parent's is known since the
    # fork (tests/faults/test_fork.py)

    def asked() -> int:
        raise AssertionError("asked for the process's id")

    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", asked)
        assert adapter.receive(uid, 0.0).platform.sequence == 1
