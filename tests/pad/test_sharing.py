"""An object for several subscriptions of one process goes over the link once; each keeps its order, bound, account."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.info_object import Cause, Head, Parcel, pack
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.pad.egress import batches
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.session import CHUNK_BYTES, SubscriberSession
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.deliveries import ITEM, LOSS, OBJECT, SHARED, Heard
from jbi_pubsub.protocol.requests import SubscriptionRequest


def _parcel(sequence: int, size: int = 10) -> Parcel:
    return pack(Head(f"{sequence}", "registration-1", sequence, 1.0, "t", "1.0", b"<m/>", size), bytes(size))


def _subscription(number: int, **options: Any) -> Subscription:
    return compile_subscription(SubscriptionRequest(f"s{number}", **options), owner="s", number=number)


class Subscriber:
    """Reads what a session sends, as the other end does."""

    def __init__(self, session: SubscriberSession) -> None:
        self._session = session
        self.items: list[tuple[int, tuple[int, ...], int]] = []
        self.got: dict[int, list[int]] = {}
        self.lost: Counter[int] = Counter()
        self.open = 0

    def read(self, most: int = 500, most_bytes: int = 1 << 30) -> int:
        """Take a batch of at most so many items and about so many bytes; how many came."""
        items = self._session._take(most, most_bytes)
        for parts in items:
            data = b"".join(parts)
            kind, number = ITEM.unpack_from(data)
            numbers = (number,)
            if kind == SHARED:
                numbers = tuple(int.from_bytes(data[at : at + 4], "big") for at in range(5, 5 + 4 * number, 4))
            sequence = 0
            if kind in (OBJECT, SHARED):
                at = 5 + (4 * number if kind == SHARED else 0)
                sequence = Parcel.received(data[at:]).head.sequence
                for one in numbers:
                    self.got.setdefault(one, []).append(sequence)
            elif kind == LOSS:
                self.lost[number] += 1
            self.items.append((kind, numbers, sequence))
        self.open += len(items)
        return len(items)

    def acknowledge(self, consumed: dict[int, int]) -> None:
        """All that was read is here, and the applications have taken so many of each."""
        self._session._acked(self.open, msgspec.msgpack.encode(Heard(consumed)))
        self.open = 0


@pytest.fixture
def hub() -> Iterator[SenderHub]:
    """Never started: what goes out is read directly."""
    hub = SenderHub(name="test")
    yield hub
    hub.stop()


@pytest.fixture
def session(hub: SenderHub) -> SubscriberSession:
    return SubscriberSession("session-1", name="test", budget=Budget(1 << 30), hub=hub)


@pytest.fixture
def subscribe(session: SubscriberSession) -> Callable[..., Subscription]:
    """subscribe(number, **options)"""

    def begin(number: int, **options: Any) -> Subscription:
        subscription = _subscription(number, **options)
        session.add(subscription)
        return subscription

    return begin


def test_an_object_goes_once_for_all_that_are_ready(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    # Given three subscriptions of one process
    ours = [subscribe(n) for n in (1, 2, 3)]
    # When two objects match all of them, and one only the second
    first, second, third = _parcel(1), _parcel(2), _parcel(3)
    session.offer([*((s, first) for s in ours), (ours[1], second), *((s, third) for s in ours)])
    reader = Subscriber(session)
    reader.read()
    # Expect each to get its own in order, and the first object to go once
    assert reader.got == {1: [1, 3], 2: [1, 2, 3], 3: [1, 3]}
    assert reader.items[0] == (SHARED, (1, 2, 3), 1)
    assert len(reader.items) < 7
    # Expect all accounted for when it is acknowledged
    reader.acknowledge({})
    assert [s.delivered for s in ours] == [2, 3, 2]
    assert [s.matched for s in ours] == [2, 3, 2]


def test_an_object_for_more_than_one_item_can_name_goes_in_several(
    session: SubscriberSession, subscribe: Callable[..., Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given items that can name two, and five subscriptions, of which the last can take an object before the others can
    monkeypatch.setattr(batches, "SHARED_MOST", 2)
    ours = [subscribe(n, bound=1) for n in (1, 2, 3, 4, 5)]
    first, second = _parcel(1), _parcel(2)
    session.offer([(s, first) for s in ours[:4]])
    reader = Subscriber(session)
    reader.read()
    session.offer([(s, second) for s in ours])
    # When the others can
    reader.acknowledge(dict.fromkeys((1, 2, 3, 4), 1))
    reader.read()
    # Expect all to get it, and no item to name more than two
    assert reader.got == {1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [1, 2], 5: [2]}
    assert max(len(numbers) for _, numbers, _ in reader.items) == 2
    reader.acknowledge({})
    assert [s.delivered for s in ours] == [2, 2, 2, 2, 1]


def test_a_subscription_whose_application_is_slow_gets_it_later_and_holds_up_no_other(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    # Given a subscription with room for one object, and one with room for many
    slow, quick = subscribe(1, bound=1, policy="drop_newest"), subscribe(2)
    reader = Subscriber(session)
    for sequence in (1, 2):
        parcel = _parcel(sequence)
        session.offer([(slow, parcel), (quick, parcel)])
        reader.read()
    # Expect the slow one to have the first, the other one both
    assert reader.got == {1: [1], 2: [1, 2]}
    # When its application takes that, expect the second to come for it alone
    reader.acknowledge({1: 1})
    reader.read()
    assert reader.got == {1: [1, 2], 2: [1, 2]}
    assert reader.items[-1] == (OBJECT, (1,), 2)


def test_what_is_cancelled_while_it_is_under_way_counts_as_cancelled_only_there(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    one, other = subscribe(1), subscribe(2)
    parcel = _parcel(1)
    session.offer([(one, parcel), (other, parcel)])
    reader = Subscriber(session)
    reader.read()
    assert session.remove(one) == 1
    reader.acknowledge({})
    assert (one.delivered, other.delivered) == (0, 1)


def test_nothing_more_of_a_large_object_goes_to_a_subscription_that_is_cancelled(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    # Given a large object of which one chunk has gone, and a loss that waits to be told
    subscription = subscribe(1)
    session.offer([(subscription, _parcel(1, 4 * CHUNK_BYTES))])
    reader = Subscriber(session)
    reader.read(1)
    session.lose(subscription, Cause.SEQUENCE_GAP)
    # When the subscription is cancelled, expect the object to count, and nothing more to go
    assert session.remove(subscription) == 1
    assert reader.read() == 0
    reader.acknowledge({})
    assert subscription.delivered == 0


def test_a_large_object_goes_to_each_in_chunks_of_its_own(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    ours = [subscribe(n) for n in (1, 2)]
    parcel = _parcel(1, 2 * CHUNK_BYTES)
    session.offer([(s, parcel) for s in ours])
    reader = Subscriber(session)
    while reader.read(most_bytes=CHUNK_BYTES):
        pass
    reader.acknowledge({})
    assert [s.delivered for s in ours] == [1, 1]
    assert Counter(numbers for _, numbers, _ in reader.items) == {(1,): 3, (2,): 3}


def test_on_a_slow_link_a_small_object_waits_for_a_chunk_and_not_for_a_large_object(hub: SenderHub) -> None:
    # Given chunks of 4 kB, a large object for one subscription, and a small one for another behind it
    session = SubscriberSession("session-1", name="test", budget=Budget(1 << 30), hub=hub, chunk=4 << 10)
    far, near = _subscription(1), _subscription(2)
    session.add(far)
    session.add(near)
    session.offer([(far, _parcel(1, 40 << 10)), (near, _parcel(2))])
    # When batches of about a chunk are taken, expect the small one behind the first chunk
    reader = Subscriber(session)
    assert [reader.read(most_bytes=4 << 10) for _ in range(2)] == [1, 2]
    assert reader.got == {2: [2]}
    # Expect the rest to come a chunk at a time
    rest = 0
    while reader.read(most_bytes=4 << 10):
        rest += 1
    assert rest == 9
    reader.acknowledge({})
    assert (far.delivered, near.delivered) == (1, 1)


def test_what_waits_for_one_alone_leaves_as_a_run_within_its_credit(
    session: SubscriberSession, subscribe: Callable[..., Subscription], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription that may have five objects with its application, and has taken two of three
    subscription = subscribe(1, bound=5)
    reader = Subscriber(session)
    session.offer([(subscription, _parcel(n)) for n in (1, 2, 3)])
    reader.read()
    reader.acknowledge({1: 2})
    looks: list[int] = []
    next_one = session._batches.take_turn
    monkeypatch.setattr(session._batches, "take_turn", lambda *given: (looks.append(1), next_one(*given))[1])
    # When five more come in a batch, expect four to go at once, with one look at who is next, and one to wait
    session.offer([(subscription, _parcel(n)) for n in range(4, 9)])
    assert reader.read() == 4
    assert len(looks) == 1
    assert (session.queued, session.in_flight) == (1, 4)
    # Expect the account to be even when a part of them is acknowledged, and the subscription cancelled then
    session._acked(3, b"")
    assert (subscription.delivered, session.in_flight) == (6, 1)
    assert session.remove(subscription) == 2
    assert (session.in_flight, session._queues.budget.used) == (0, 0)


def test_a_run_stops_at_a_batchs_end(session: SubscriberSession, subscribe: Callable[..., Subscription]) -> None:
    subscription = subscribe(1)
    session.offer([(subscription, _parcel(n, 100)) for n in range(1, 21)])
    reader = Subscriber(session)
    assert reader.read(most=7) == 7
    assert 2 <= reader.read(most_bytes=400) <= 3
    reader.read()
    assert reader.got == {1: list(range(1, 21))}


def test_those_who_are_ready_take_turns_object_by_object(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    # Given two subscriptions with objects of their own
    ours = [subscribe(n) for n in (1, 2)]
    for subscription in ours:
        session.offer([(subscription, _parcel(10 * subscription.number + n)) for n in range(3)])
    # When a batch is taken, expect neither to wait for the other's run
    reader = Subscriber(session)
    reader.read()
    assert [sequence for _, _, sequence in reader.items] == [10, 20, 11, 21, 12, 22]


def test_a_run_for_several_goes_once_and_ends_where_they_part(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    # Given three objects for two subscriptions, a fourth for one of them, and a fifth for both
    ours = [subscribe(n) for n in (1, 2)]
    one, two, three, four, five = (_parcel(n) for n in range(1, 6))
    session.offer([(s, parcel) for parcel in (one, two, three) for s in ours])
    session.offer([(ours[1], four), *((s, five) for s in ours)])
    reader = Subscriber(session)
    reader.read()
    # Expect each to have its own in order, and what is for both to have gone once while they kept step
    assert reader.got == {1: [1, 2, 3, 5], 2: [1, 2, 3, 4, 5]}
    assert reader.items[:3] == [(SHARED, (1, 2), n) for n in (1, 2, 3)]
    reader.acknowledge({})
    assert [s.delivered for s in ours] == [4, 5]
    assert session._queues.budget.used == 0


def test_a_batch_of_acknowledged_objects_is_accounted_for_in_one_step(
    session: SubscriberSession, subscribe: Callable[..., Subscription]
) -> None:
    subscription = subscribe(1)
    session.offer([(subscription, _parcel(n)) for n in range(1, 401)])
    Subscriber(session).read()
    assert len(session._flights) == 1
    session._acked(400, b"")
    assert (subscription.delivered, len(session._flights)) == (400, 0)


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(
    bounds=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    policies=st.lists(st.sampled_from(["drop_oldest", "drop_newest"]), min_size=5, max_size=5),
    steps=st.integers(5, 60),
    chance=st.randoms(use_true_random=False),
)
def test_every_subscription_gets_what_it_would_get_alone(
    bounds: list[int], policies: list[str], steps: int, chance: random.Random
) -> None:
    # Given subscriptions with small queues and either policy
    hub = SenderHub(name="test")
    budget = Budget(1 << 30)
    session = SubscriberSession("session-1", name="test", budget=budget, hub=hub)
    ours = [_subscription(n, bound=b, policy=policies[n - 1]) for n, b in enumerate(bounds, 1)]
    for subscription in ours:
        session.add(subscription)
    reader = Subscriber(session)
    consumed = dict.fromkeys(range(1, len(ours) + 1), 0)
    # When runs of objects are offered to some of them, read in batches of any size, and consumed at any pace
    sequence = 0
    for _ in range(steps):
        whose = [s for s in ours if chance.random() < 0.7]
        run = [_parcel(sequence := sequence + 1) for _ in range(chance.randint(1, 4))]
        session.offer([(s, parcel) for parcel in run for s in whose if chance.random() < 0.9])
        if chance.random() < 0.6:
            reader.read(chance.randint(1, 4))
        if chance.random() < 0.5:
            for number in consumed:
                consumed[number] = chance.randint(consumed[number], len(reader.got.get(number, [])))
            reader.acknowledge(dict(consumed))
    while True:  # the rest
        reader.read()
        before = dict(consumed)
        consumed = {number: len(reader.got.get(number, [])) for number in consumed}
        reader.acknowledge(dict(consumed))
        if consumed == before and not session._left():
            break
    # Expect order, nothing twice, each loss counted and told, and nothing left in memory
    for subscription in ours:
        got = reader.got.get(subscription.number, [])
        assert got == sorted(set(got))
        assert subscription.delivered == len(got)
        assert subscription.matched == len(got) + sum(subscription.lost.values())
        assert bool(reader.lost[subscription.number]) == bool(subscription.lost)
    assert budget.used == 0
    hub.stop()
