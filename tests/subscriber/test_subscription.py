"""What a subscription makes of what its delegates send: nothing twice, nothing out of order, every loss told."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, Platform, TypeName
from jbi_pubsub.protocol.requests import Start, SubscriptionRequest
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.placed import PlacedSubscription
from jbi_pubsub.subscriber.subscription import LocalSubscription


class Delegate:
    """Where objects come from; counts the credits it gets back."""

    def __init__(self) -> None:
        self.credits = 0

    def consumed(self, count: int) -> None:
        self.credits += count


def _object(sequence: int, registration: str = "registration-1", via: tuple[str, ...] = ()) -> InfoObject:
    platform = Platform(1.0, registration, sequence, 4, 0, hops=len(via), via=via)
    return InfoObject(f"{sequence}", TypeName("t"), b"<m/>", b"", platform)


def _subscription(listener: Any = None, **request: Any) -> LocalSubscription:
    return LocalSubscription(SubscriptionRequest("s", **request), listener, ListenerPool("test"))


@pytest.fixture
def subscription() -> Iterator[LocalSubscription]:
    subscription = _subscription()
    yield subscription
    subscription.queue.close()


def _taken(subscription: LocalSubscription) -> list[int]:
    return [obj.platform.sequence for obj in subscription.queue.drain()]


def test_what_a_delegate_sends_again_is_dropped_and_its_credit_returned(subscription: LocalSubscription) -> None:
    delegate = Delegate()
    subscription.add([_object(1), _object(3), _object(3), _object(2)], delegate.consumed)
    assert _taken(subscription) == [1, 3]
    assert (subscription.duplicates, subscription.losses.by_cause) == (2, {})
    assert delegate.credits == 4


def test_ctrl_c_in_an_application_that_waits_tells_of_nothing_else(subscription: LocalSubscription) -> None:
    # When it is interrupted while nothing waits
    with (
        pytest.raises(KeyboardInterrupt) as told,
        patch.object(subscription.queue.changed, "wait", side_effect=KeyboardInterrupt),
    ):
        subscription.queue.take(5.0)
    # Expect no other error behind it, which its user would have to read first
    assert told.value.__context__ is None


def test_losses_object_by_object_are_logged_at_each_power_of_two(
    subscription: LocalSubscription, caplog: pytest.LogCaptureFixture
) -> None:
    # When a full queue loses ten objects, one by one, then thirty at once, and something else is lost
    for count in (*[1] * 10, 30):
        subscription.lose(Cause.QUEUE_OVERFLOW, count)
    subscription.lose(Cause.MISSED, 0)
    subscription.lose(Cause.MISSED, 0)
    subscription.lose(Cause.SEQUENCE_GAP, 3, "delegate alpha")
    # Expect the first of each cause in the log, then sums; all are counted
    assert [message.removeprefix("subscription s lost ") for message in caplog.messages] == [
        "1 object: queue_overflow",
        *(f"{total} objects so far: queue_overflow" for total in (2, 4, 8, 40)),
        *["an unknown number of objects: missed, how many is not known, at least one"] * 2,
        "3 objects: sequence_gap, delegate alpha",
    ]
    assert subscription.losses.by_cause == {"queue_overflow": 40, "missed": 2, "sequence_gap": 3}


def test_objects_that_come_together_wake_as_many_as_wait_for_one(
    subscription: LocalSubscription, eventually: Callable[..., Any]
) -> None:
    # Given three threads of an application that wait for an object each, for a minute
    taken: list[InfoObject | None] = []
    threads = [threading.Thread(target=lambda: taken.append(subscription.queue.take(60.0))) for _ in range(3)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(subscription.queue.changed._waiters) == 3)  # type: ignore[attr-defined]  # the condition's own
    # When two come at once, expect two of the threads to have one, and the third to wait on
    subscription.add([_object(1), _object(2)], Delegate().consumed)
    eventually(lambda: len(taken) == 2)
    subscription.queue.close()
    for thread in threads:
        thread.join(60.0)
    assert sorted(obj.platform.sequence for obj in taken if obj is not None) == [1, 2]


def test_what_two_delegates_send_comes_once(subscription: LocalSubscription) -> None:
    # Given a publisher that fails over: 4 and 5 had reached the first delegate, whose acknowledgement was lost
    first, second = Delegate(), Delegate()
    subscription.add([_object(n) for n in (1, 2, 3)], first.consumed)
    subscription.add([_object(n) for n in (4, 5, 6)], second.consumed)
    # When the first one is heard again
    subscription.add([_object(n) for n in (4, 5)], first.consumed)
    # Expect no loss and nothing twice
    assert _taken(subscription) == [1, 2, 3, 4, 5, 6]
    assert (subscription.duplicates, subscription.losses.by_cause) == (2, {})


@pytest.mark.row("J-78")
@pytest.mark.parametrize("predicate", ["", "/m"], ids=["all", "some"])
def test_what_a_delegate_sends_after_another_has_gone_on_is_a_loss(predicate: str) -> None:
    # Given a delegate that had taken 1 to 5 and delivered 1 and 2 when it was cut off, and another that took over
    subscription = _subscription(predicate=predicate)
    first, second = Delegate(), Delegate()
    subscription.add([_object(n) for n in (1, 2)], first.consumed)
    subscription.add([_object(n) for n in (6, 7, 8)], second.consumed)
    # When the first is heard again, and says some of it twice
    subscription.add([_object(n) for n in (2, 3, 4, 5, 5, 6)], first.consumed)
    # Expect order to hold, three objects to be lost, and the rest to be known
    assert _taken(subscription) == [1, 2, 6, 7, 8]
    if predicate:  # not known before the objects came: perhaps none would have matched
        assert subscription.losses.by_cause == {"delegate_dead": 1, "late": 3}
        assert subscription.duplicates == 3
    else:
        assert subscription.losses.by_cause == {"delegate_dead": 3}
        assert subscription.duplicates == 6


def test_what_is_from_before_a_subscription_is_not_lost_when_its_delegate_is_started_again(
    subscription: LocalSubscription,
) -> None:
    # Given a subscription whose first object is the hundredth of its registration, and a delegate that was killed
    first, second = Delegate(), Delegate()
    subscription.stand_at("delegate", first.consumed)
    subscription.add([_object(n) for n in (100, 101)], first.consumed)
    # When it is started again, and has older ones as well
    subscription.stand_at("delegate", second.consumed)
    subscription.add([_object(n) for n in (1, 2, 99, 100, 101, 102)], second.consumed)
    # Expect what is new, and no loss
    assert _taken(subscription) == [100, 101, 102]
    assert (subscription.duplicates, subscription.losses.by_cause) == (5, {})


class _Told:
    """A listener that notes what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def arrived(self, _uid: str, obj: InfoObject) -> None:
        self.told.append(obj.platform.sequence)

    def lost(self, _uid: str, notice: LossNotice) -> None:
        self.told.append(
            (notice.cause.value, notice.count, notice.detail.rpartition("; ")[2].partition(" have not")[0])
        )


@pytest.mark.parametrize(
    ("predicate", "via", "first", "told"),
    [
        ("", (), 3, []),
        ("", (), 5, [("delegate_dead", 2, "numbers 3 to 4 of registration r")]),
        ("/m", (), 3, []),
        ("/m", (), 5, [("delegate_dead", 0, "2 at most, perhaps none")]),
        ("", ("other",), 3, []),
        ("", ("other",), 5, [("delegate_dead", 0, "2 at most, perhaps none")]),
    ],
    ids=[
        "all, none lost", "all, two lost", "some, none lost", "some, perhaps two lost",
        "relayed, none lost", "relayed, perhaps two left out or lost",
    ],
)  # fmt: skip
def test_what_a_stopped_delegate_had_is_told_before_the_first_object_of_its_successor(
    predicate: str, via: tuple[str, ...], first: int, told: list[Any], eventually: Callable[..., Any]
) -> None:
    # Given a subscription that has two objects from a delegate, which has stopped, and nobody knows it yet
    listener, stopped, successor = _Told(), Delegate(), Delegate()
    subscription = _subscription(listener, predicate=predicate)
    subscription.add([_object(n, "r", via) for n in (1, 2)], stopped.consumed)
    eventually(lambda: listener.told == [1, 2])
    # When objects come from another one
    subscription.add([_object(n, "r", via) for n in (first, 9)], successor.consumed)
    # Expect what is missing to be told before them, with its number where it is known; nothing if nothing is
    eventually(lambda: listener.told == [1, 2, *told, first, 9], what=lambda: listener.told)
    # Expect nothing more to be told of that delegate when its end is known, unless another registration was there
    assert not subscription.may_lack(stopped.consumed, ["r"], is_placed=False)
    assert subscription.may_lack(stopped.consumed, ["r", "silent"], is_placed=False)
    assert subscription.may_lack(successor.consumed, ["r"], is_placed=False)
    subscription.queue.close()


def test_of_objects_that_are_numbered_by_time_no_number_is_told(eventually: Callable[..., Any]) -> None:
    # Given a subscription that has messages of a broker, numbered by the microsecond, from a delegate that was killed
    listener, killed, successor, now = _Told(), Delegate(), Delegate(), 1_796_027_269_855_058
    subscription = _subscription(listener)
    subscription.add([_object(now, "r", ("broker",))], killed.consumed)
    eventually(lambda: listener.told == [now])
    # When the next ones come from its successor, seconds later
    subscription.add([_object(now + 7_467_610, "r", ("broker",))], successor.consumed)
    # Expect it to be told that some may be lost, without a number that is none
    told = ("delegate_dead", 0, "how many is not known, perhaps none")
    eventually(lambda: listener.told == [now, told, now + 7_467_610], what=lambda: listener.told)
    subscription.queue.close()


def test_of_a_delegate_that_has_told_what_was_lost_nothing_is_missing(subscription: LocalSubscription) -> None:
    # Given a delegate that has stopped in order, behind an object of which it has told that it is lost
    stopped = Delegate()
    subscription.add([_object(1)], stopped.consumed)
    subscription.settle(stopped.consumed)
    # When the next comes from another one, expect nothing to be told twice
    subscription.add([_object(3)], Delegate().consumed)
    assert subscription.losses.by_cause == {}


@pytest.mark.parametrize(
    ("predicate", "told", "losses"),
    [
        ("", 3, {"sequence_gap": 3}),
        ("", 2, {"sequence_gap": 2, "delegate_dead": 1}),
        ("/m", 3, {"sequence_gap": 3, "delegate_dead": 1}),
    ],
    ids=["all", "one less", "some, perhaps of another registration"],
)
def test_what_the_successor_of_a_killed_delegate_tells_is_not_told_twice(
    predicate: str, told: int, losses: dict[str, int]
) -> None:
    # Given a subscription that has an object from a delegate, which was killed
    subscription, killed, successor = _subscription(predicate=predicate), Delegate(), Delegate()
    subscription.add([_object(1)], killed.consumed)
    # When its successor tells that objects behind it were lost at their publisher, and gives the next one
    subscription.lose(Cause.SEQUENCE_GAP, told, source=successor.consumed)
    subscription.add([_object(5), _object(6)], successor.consumed)
    # Expect the others alone to be lost with the delegate
    assert subscription.losses.by_cause == losses


def test_each_registration_of_a_killed_delegate_is_told_its_own_number(subscription: LocalSubscription) -> None:
    # Given two registrations at a delegate, which has told of objects that its queue had no room for, before the next
    killed, successor = Delegate(), Delegate()
    subscription.add([_object(1, "a"), _object(1, "b")], killed.consumed)
    subscription.lose(Cause.QUEUE_OVERFLOW, 2, source=killed.consumed)
    subscription.add([_object(4, "a")], killed.consumed)
    # When it is killed, and both go on elsewhere
    subscription.add([_object(8, "a"), _object(6, "b")], successor.consumed)
    # Expect the number of each to be known
    assert _taken(subscription) == [1, 1, 4, 8, 6]
    assert subscription.losses.by_cause == {"queue_overflow": 2, "delegate_dead": 3 + 4}


@pytest.mark.parametrize("teller", ["killed", "successor"])
def test_what_is_told_already_of_a_killed_delegate_is_not_counted_again(
    teller: str, eventually: Callable[..., Any]
) -> None:
    # Given a registration at a delegate that is killed
    listener, delegates = _Told(), {"killed": Delegate(), "successor": Delegate()}
    subscription = _subscription(listener)
    subscription.add([_object(1, "r")], delegates["killed"].consumed)
    eventually(lambda: listener.told == [1])
    # When it or its successor has told of losses, before any object behind them, and the registration goes on
    subscription.lose(Cause.QUEUE_OVERFLOW, 2, source=delegates[teller].consumed)
    subscription.add([_object(5, "r")], delegates["successor"].consumed)
    # Expect these not to be told once more: there are three, of which it may be that only one is new
    overflow, dead = ("queue_overflow", 2, ""), ("delegate_dead", 0, "3 at most, perhaps none")
    eventually(lambda: listener.told == [1, overflow, dead, 5], what=lambda: listener.told)
    subscription.queue.close()


class _LossyDelegate:
    """Delegate with a queue of three objects: the newest or the oldest makes way, which is told before what waits."""

    def __init__(self, subscription: LocalSubscription) -> None:
        self._subscription = subscription
        self._waiting: list[tuple[str, int]] = []
        self._untold = 0

    def consumed(self, count: int) -> None:
        pass

    def take(self, registration: str, number: int, *, keeps_oldest: bool) -> None:
        """A publisher has published that object."""
        self._waiting.append((registration, number))
        if len(self._waiting) > 3:
            self._waiting.pop(-1 if keeps_oldest else 0)
            self._untold += 1

    def deliver(self, count: int) -> None:
        """Tell what is lost, then deliver so many."""
        if self._untold and count:
            self._subscription.lose(Cause.QUEUE_OVERFLOW, self._untold, source=self.consumed)
            self._untold = 0
        if going := self._waiting[:count]:
            del self._waiting[:count]
            self._subscription.add([_object(number, registration) for registration, number in going], self.consumed)


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(
    st.lists(
        st.one_of(st.sampled_from("abABabAB"), st.integers(0, 3), st.just("killed")), min_size=1, max_size=60
    )
)  # fmt: skip
def test_what_is_had_and_what_is_told_make_up_what_was_published(happens: list[str | int]) -> None:
    # Given publishers of two registrations, a delegate that loses some, and one that follows whenever it is killed
    told: list[LossNotice] = []
    subscription = _subscription()
    subscription.queue.tell = told.append  # type: ignore[method-assign, assignment]
    delegate, published = _LossyDelegate(subscription), {"a": 0, "b": 0}

    def publish(registration: str, *, keeps_oldest: bool) -> None:
        published[registration] += 1
        delegate.take(registration, published[registration], keeps_oldest=keeps_oldest)

    for begun in "ab":
        publish(begun, keeps_oldest=True)
    delegate.deliver(2)
    # When all that happens in any order, and an object of each comes in the end
    for event in happens:
        if event == "killed":
            delegate = _LossyDelegate(subscription)
        elif isinstance(event, int):
            delegate.deliver(event)
        else:
            publish(event.lower(), keeps_oldest=event.islower())
    for ended in "ab":
        delegate.deliver(3)
        publish(ended, keeps_oldest=False)
    delegate.deliver(3)
    # Expect no object to be counted twice, and none to be missing that is not told
    lacking = sum(published.values()) - len(subscription.queue.drain())
    counted = sum(notice.count for notice in told)
    at_most = sum(int(notice.detail.split("; ")[1].split()[0]) for notice in told if not notice.count)
    assert counted <= lacking <= counted + at_most
    subscription.queue.close()


@pytest.mark.parametrize("cause", list(Cause))
def test_a_loss_without_a_number_says_whether_there_need_be_one(cause: Cause, eventually: Callable[..., Any]) -> None:
    listener = _Told()
    subscription = _subscription(listener)
    subscription.lose(cause, 0, "why")
    eventually(lambda: listener.told)
    subscription.queue.close()
    ((_, count, side),) = listener.told
    assert (count, side) in ((0, "how many is not known, perhaps none"), (0, "how many is not known, at least one"))


@pytest.mark.parametrize("placed", [True, False])
def test_what_an_archive_has_is_not_lost_with_its_delegate(placed: bool) -> None:
    subscription = PlacedSubscription(SubscriptionRequest("s", start=Start("all")), None, ListenerPool("test"))
    delegate = SimpleNamespace(server="d", consume=lambda _count: None, taken_over=lambda *_given: None)
    assert not subscription.may_lack(delegate.consume, ["r"], is_placed=True)
    # When one comes that no archive has, expect that to be said
    obj = _object(1)
    position = msgspec.structs.replace(obj.platform, position=7 if placed else 0)
    subscription.add_placed([msgspec.structs.replace(obj, platform=position)], delegate)
    assert subscription.may_lack(delegate.consume, ["r"], is_placed=True) is not placed
    subscription.queue.close()


@settings(derandomize=True, deadline=None, max_examples=examples(300))
@given(
    st.integers(1, 30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.sets(st.integers(1, 40)),
    st.randoms(use_true_random=False),
)
def test_after_a_failover_every_object_is_delivered_or_lost_once(
    taken: int, acknowledged: int, delivered: int, matching: set[int], chance: random.Random
) -> None:
    # Given a publisher of 40 objects, of which some match; a delegate has taken the first `taken`, acknowledged fewer,
    # delivered fewer still; its successor gets everything from the first that was not acknowledged on
    acknowledged, delivered = min(acknowledged, taken), min(delivered, taken)
    of_first = [n for n in range(1, taken + 1) if n in matching]
    of_second = [n for n in range(acknowledged + 1, 41) if n in matching]
    early, late = [n for n in of_first if n <= delivered], [n for n in of_first if n > delivered]
    subscription, first, second = _subscription(predicate="/m"), Delegate(), Delegate()
    subscription.add([_object(n) for n in early], first.consumed)
    # When the rest comes from both, as it may
    while late or of_second:
        source, waiting = (first, late) if late and (not of_second or chance.random() < 0.5) else (second, of_second)
        count = chance.randint(1, len(waiting))
        subscription.add([_object(waiting.pop(0)) for _ in range(count)], source.consumed)
    # Expect what matched to be delivered in order, or lost, and each exactly once
    got = _taken(subscription)
    assert got == sorted(set(got))
    assert len(got) + subscription.losses.by_cause.get("late", 0) == len(matching & set(range(1, 41)))
    subscription.queue.close()
