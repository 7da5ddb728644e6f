"""Listeners are called by few threads, one call at a time for each subscription, and a slow one delays only itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jbi_pubsub.core.guard import TOLD_WHOLE
from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice, Platform, TypeName
from jbi_pubsub.pad.subscription import SubscriptionRequest
from jbi_pubsub.subscriber.listeners import MAX_WORKERS, ListenerPool
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
        subscription.close()


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
    subscription.add([_object(1)], lambda _count: None)
    assert listener.entered.wait(SOON)
    subscription.lose(Cause.QUEUE_OVERFLOW, 3)
    subscription.add([_object(5)], lambda _count: None)
    gate.set()
    assert eventually(lambda: listener.told == [1, Cause.QUEUE_OVERFLOW, 5])


@pytest.mark.parametrize("mistake", [KeyError("mistake"), SystemExit(3)])
def test_a_listener_that_fails_is_called_again(
    mistake: BaseException, subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any]
) -> None:
    class Failing(Listener):
        def arrived(self, uid: str, obj: InfoObject) -> None:
            super().arrived(uid, obj)
            raise mistake

    listener = Failing()
    subscription = subscribe(listener)
    for sequence in range(1, 4):
        subscription.add([_object(sequence)], lambda _count: None)
    assert eventually(lambda: listener.told == [1, 2, 3])
    assert eventually(lambda: subscription.listener_errors == 3)


def test_a_listener_that_always_fails_does_not_fill_the_log(
    subscribe: Callable[..., LocalSubscription], eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Listener):
        def arrived(self, _uid: str, obj: InfoObject) -> None:
            raise KeyError(obj.platform.sequence)

    # When every one of a hundred calls fails
    subscription = subscribe(Failing())
    subscription.add([_object(sequence) for sequence in range(1, 101)], lambda _count: None)
    assert eventually(lambda: subscription.listener_errors == 100)
    # Expect the first ones with their tracebacks, then a line for each power of two
    subscription.close()
    assert [bool(record.exc_info) for record in caplog.records] == [True] * TOLD_WHOLE + [False] * 3
    assert caplog.messages[-1] == "listener of subscription s0 failed, 64 times: KeyError: 64"


def test_after_close_no_call_begins_and_none_is_under_way(subscribe: Callable[..., LocalSubscription]) -> None:
    # Given a listener in the middle of a call, with more waiting
    gate = threading.Event()
    listener = Listener(gate)
    subscription = subscribe(listener)
    subscription.add([_object(n) for n in range(1, 5)], lambda _count: None)
    assert listener.entered.wait(SOON)
    # When the subscription is closed while the call ends
    threading.Timer(0.05, gate.set).start()
    subscription.close()
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
            subscription.close()

    listener = Once()
    subscription = subscribe(listener)
    subscription.add([_object(1), _object(2)], lambda _count: None)
    assert eventually(lambda: listener.told == [1])
    assert subscription.take(0.0) is None


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
