"""Listeners are called by few threads, one call at a time for each subscription, and a slow one delays only itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jbi_pubsub.core.guard import TOLD_WHOLE
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, Platform, TypeName
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.subscriber import listeners
from jbi_pubsub.subscriber.listeners import MAX_WORKERS, TRIES, FunctionListener, ListenerCalls, ListenerPool
from jbi_pubsub.subscriber.subscription import LocalSubscription

SOON = 10.0


def _object(sequence: int, registration: str = "registration-1") -> InfoObject:
    return InfoObject(f"{sequence}", TypeName("t"), b"<m/>", b"", Platform(1.0, registration, sequence, 4, 0))


class Listener:
    """Notes what it is told, by which thread; waits at `gate` first, if that is given."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.told: list[object] = []
        self.threads: set[str] = set()
        self.overlaps = 0
        self._gate = gate
        self._inside = threading.Lock()
        self.entered = threading.Event()

    def arrived(self, _uid: str, obj: InfoObject) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlaps += 1
            return
        try:
            self.entered.set()
            if self._gate is not None:
                assert self._gate.wait(SOON)
            self.told.append(obj.platform.sequence)
            self.threads.add(threading.current_thread().name)
        finally:
            self._inside.release()

    def lost(self, _uid: str, notice: LossNotice) -> None:
        self.told.append(notice.cause)


@pytest.fixture
def pool() -> Iterator[ListenerPool]:
    """A pool that leaves no thread behind."""
    pool = ListenerPool("pool-under-test")
    yield pool
    pool.stop()
    assert [thread for thread in threading.enumerate() if thread.name.startswith("pool-under-test")] == []


@pytest.fixture
def subscribe(pool: ListenerPool) -> Iterator[Callable[..., LocalSubscription]]:
    """subscribe(listener)"""
    opened: list[LocalSubscription] = []

    def begin(listener: Any) -> LocalSubscription:
        opened.append(LocalSubscription(SubscriptionRequest(f"s{len(opened)}"), listener, pool))
        return opened[-1]

    yield begin
    for subscription in opened:
        subscription.queue.close()


def test_many_subscriptions_with_quick_listeners_are_served_by_few_threads(
    pool: ListenerPool, subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given 500 subscriptions with a listener each: no thread yet
    listeners = [Listener() for _ in range(500)]
    subscriptions = [subscribe(listener) for listener in listeners]
    assert pool.workers == 0
    # When 20 objects arrive for each of them
    returned: list[int] = []
    for sequence in range(1, 21):
        for subscription in subscriptions:
            subscription.add([_object(sequence)], returned.append)
    # Expect every listener to have been told all, in order, one call at a time, and every credit returned
    assert eventually(lambda: all(len(listener.told) == 20 for listener in listeners))
    assert all(listener.told == list(range(1, 21)) for listener in listeners)
    assert sum(listener.overlaps for listener in listeners) == 0
    assert eventually(lambda: sum(returned) == 500 * 20)
    # Expect few threads to have done it: far fewer than subscriptions
    assert pool.workers <= 50


def test_a_listener_that_does_not_return_delays_no_other(
    pool: ListenerPool, subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given ten listeners that wait, and one that does not
    gate = threading.Event()
    stuck = [Listener(gate) for _ in range(10)]
    quick = Listener()
    waiting = [subscribe(listener) for listener in stuck]
    free = subscribe(quick)
    # When objects arrive for the ten, and they hold their calls
    for subscription in waiting:
        subscription.add([_object(1), _object(2)], lambda _count: None)
    for listener in stuck:
        assert listener.entered.wait(SOON)
    # Expect the other one to be told all the same
    free.add([_object(1)], lambda _count: None)
    assert eventually(lambda: quick.told == [1])
    # When they go on, expect them to be told the rest
    gate.set()
    assert eventually(lambda: all(listener.told == [1, 2] for listener in stuck))


def test_the_number_of_threads_is_bounded(
    pool: ListenerPool, subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given more listeners that wait than there may be threads
    gate = threading.Event()
    stuck = [Listener(gate) for _ in range(MAX_WORKERS + 20)]
    for listener in stuck:
        subscribe(listener).add([_object(1)], lambda _count: None)
    assert eventually(lambda: sum(listener.entered.is_set() for listener in stuck) == MAX_WORKERS)
    assert pool.workers == MAX_WORKERS
    # When they go on, expect all to be told
    gate.set()
    assert eventually(lambda: all(listener.told == [1] for listener in stuck))


def test_a_loss_is_told_before_what_arrives_after_it(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    gate = threading.Event()
    listener = Listener(gate)
    subscription = subscribe(listener)
    returned: list[int] = []
    subscription.add([_object(1)], returned.append)
    assert listener.entered.wait(SOON)
    subscription.lose(Cause.QUEUE_OVERFLOW, 3)
    subscription.add([_object(5)], returned.append)
    gate.set()
    assert eventually(lambda: listener.told == [1, Cause.QUEUE_OVERFLOW, 5])


class Failing(Listener):
    """Fails on an object so often; -1 for ever."""

    def __init__(self, mistake: BaseException, **times: int) -> None:
        super().__init__()
        self._mistake = mistake
        self._times = {int(number[1:]): count for number, count in times.items()}

    def arrived(self, uid: str, obj: InfoObject) -> None:
        super().arrived(uid, obj)
        left = self._times.get(obj.platform.sequence, 0)
        if left:
            self._times[obj.platform.sequence] = left - 1
            raise self._mistake


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a listener failed on comes again without a pause to speak of."""
    monkeypatch.setattr(listeners, "PAUSE_MOST", 0.001)


async def _later() -> None: ...


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("mistake", [KeyError("mistake"), SystemExit(3), asyncio.CancelledError()])
def test_what_a_listener_failed_on_comes_again_before_all_others(
    mistake: BaseException, subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given a listener that fails twice on the second of three objects, for reasons that pass
    listener, returned = Failing(mistake, n2=2), list[int]()
    subscription = subscribe(listener)
    # When they arrive, expect each to be taken once, in order, and nothing to be lost
    subscription.add([_object(sequence) for sequence in range(1, 4)], returned.append)
    assert eventually(lambda: sum(returned) == 3)
    assert listener.told == [1, 2, 2, 2, 3]
    assert (subscription.queue.calls.errors, subscription.losses.by_cause) == (2, {})


@pytest.mark.usefixtures("at_once")
def test_an_object_that_a_listener_always_fails_on_is_told_as_lost_and_the_next_one_comes(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given a listener that can't take the second of three objects
    listener, returned = Failing(KeyError("mistake"), n2=-1), list[int]()
    subscription = subscribe(listener)
    subscription.add([_object(sequence) for sequence in range(1, 4)], returned.append)
    # Expect it to be tried so often, told as lost, with a number, in its place; and the next one once
    assert eventually(lambda: sum(returned) == 3)
    assert listener.told == [1, *[2] * TRIES, Cause.LISTENER_FAILED, 3]
    assert subscription.losses.by_cause == {"listener_failed": 1}


def test_an_object_is_not_taken_before_its_listener_has_taken_it(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given a listener that fails for ever
    listener, returned = Failing(KeyError("mistake"), n1=-1), list[int]()
    subscription = subscribe(listener)
    subscription.add([_object(1), _object(2)], returned.append)
    eventually(lambda: subscription.queue.calls.errors)
    # When it is closed, or paused, while the object is to come again, expect that not to wait for it
    subscription.queue.pause()
    assert (len(subscription.queue.waiting), returned, subscription.losses.by_cause) == (2, [], {})
    subscription.queue.resume()
    eventually(lambda: subscription.queue.calls.errors == 2)
    subscription.queue.close()
    assert (returned, subscription.losses.by_cause) == ([], {})


@pytest.mark.usefixtures("at_once")
def test_a_function_that_only_makes_a_coroutine_takes_nothing(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    # Given a plain function around a coroutine function, which nobody can know before it is called
    subscription = subscribe(FunctionListener(lambda _uid, _obj: _later()))
    subscription.add([_object(1)], lambda _count: None)
    # Expect the object not to count as taken
    assert eventually(lambda: subscription.losses.by_cause) == {"listener_failed": 1}


@pytest.mark.usefixtures("steady")
def test_pauses_grow_while_a_listener_takes_nothing_and_are_bounded() -> None:
    calls = ListenerCalls("test")
    # When one object after the other fails
    pauses = [calls.pause_after(object_id) for object_id in "abc" for _ in range(TRIES)]
    # Expect pauses to double up to a bound, and each object to be given up at its last try
    assert pauses == [0.1, 0.2, 0.4, 0.8, None, 3.2, 5.0, 5.0, 5.0, None, 5.0, 5.0, 5.0, 5.0, None]
    # When one is taken, expect short ones again
    calls.reset()
    assert calls.pause_after("d") == 0.1


@pytest.mark.usefixtures("at_once")
def test_a_listener_that_always_fails_does_not_fill_the_log(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # When every one of a hundred calls fails
    subscription = subscribe(Failing(KeyError("mistake"), **{f"n{number}": -1 for number in range(1, 21)}))
    subscription.add([_object(sequence) for sequence in range(1, 21)], lambda _count: None)
    assert eventually(lambda: subscription.losses.by_cause["listener_failed"] == 20)
    # Expect the first ones with their tracebacks, then a line for each power of two
    subscription.queue.close()
    told = [
        record for record in caplog.records if "failed" in record.getMessage() and "lost" not in record.getMessage()
    ]
    assert [bool(record.exc_info) for record in told] == [True] * TOLD_WHOLE + [False] * 3
    assert told[-1].getMessage() == "listener of subscription s0 failed, 64 times: KeyError: 'mistake'"


def test_after_close_no_call_begins_and_none_is_under_way(subscribe: Callable[..., LocalSubscription]) -> None:
    # Given a listener in the middle of a call, with more waiting
    gate = threading.Event()
    listener = Listener(gate)
    subscription = subscribe(listener)
    subscription.add([_object(n) for n in range(1, 5)], lambda _count: None)
    assert listener.entered.wait(SOON)
    # When the subscription is closed while the call ends
    threading.Timer(0.05, gate.set).start()
    subscription.queue.close()
    # Expect the call to be over, and no further one
    told = list(listener.told)
    assert told == [1]
    subscription.add([_object(9)], lambda _count: None)
    assert listener.told == told


def test_a_listener_may_close_its_own_subscription(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    class Once(Listener):
        def arrived(self, uid: str, obj: InfoObject) -> None:
            super().arrived(uid, obj)
            subscription.queue.close()

    listener = Once()
    subscription = subscribe(listener)
    subscription.add([_object(1), _object(2)], lambda _count: None)
    assert eventually(lambda: listener.told == [1])
    assert subscription.queue.take(0.0) is None


def test_a_system_without_further_threads_delays_listeners_and_ends_nothing(
    pool: ListenerPool,
    subscribe: Callable[..., LocalSubscription],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a system that has no thread for the first listener
    first, second = Listener(), Listener()
    ours, others = subscribe(first), subscribe(second)

    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", none_left)
        ours.add([_object(1)], lambda _count: None)
    assert (first.told, pool.workers) == ([], 0)
    # When there is one again, at the next object, expect both to be told
    others.add([_object(1)], lambda _count: None)
    assert eventually(lambda: (first.told, second.told) == ([1], [1]))
