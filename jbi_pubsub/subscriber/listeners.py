"""The threads that call listeners, shared by all subscriptions of a process.

Theory of operation: a subscription with something to tell stands in a queue, once; a worker takes it and calls its
listener, so calls are serial per subscription. While listeners are quick one worker serves all of them, without a
thread switch a subscription. Meanwhile another one watches: if nobody has come back to the queue for PATIENCE, because
listeners take their time, it takes over, and a further one watches. A slow listener thus delays nobody but itself, as
long as there are fewer than MAX_WORKERS of them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NewType, Protocol, runtime_checkable

from jbi_pubsub.core.arguments import called, may_have
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.guard import TOLD_WHOLE, guarded
from jbi_pubsub.core.info_object import InfoObject, LossNotice
from jbi_pubsub.core.quality import GrantedQos

log = logging.getLogger("jbi_pubsub.subscriber")

PATIENCE: Final = 0.005
"""Seconds listeners may take before others are called beside them: a quick one needs a thousandth of that, and nobody
notices so short a delay."""
MAX_WORKERS: Final = 128
"""Threads at most: so many listeners may be slow at once before they delay others."""
SPARE_SECONDS: Final = 10.0
"""Time that a worker stays that is not needed."""


TRIES: Final = 5
"""Times that a listener gets an object that it fails on."""
PAUSE_FIRST: Final = 0.1
PAUSE_MOST: Final = 5.0
"""Seconds until it gets it again; they double with each failure, of whichever object, until it takes one."""


SERVED_AT_ONCE: Final = 32
"""Calls of one listener before others have their turn."""


class ListenerCalls:
    """Calls of one listener: what it raises is counted and logged, and an object that it fails on comes again, after a
    pause, some times. For one thread at a time."""

    def __init__(self, name: str) -> None:
        """`name`: of what it listens to, for the log."""
        self.errors = self.given_up = 0
        self._name = name
        self._object_id = ""
        self._tries = 0
        self._backoff = Backoff(PAUSE_FIRST, PAUSE_MOST)

    def call(self, method: Callable[..., object], *given: object) -> BaseException | None:
        """Call it; the exception that it has raised."""
        try:
            called(method, *given)
        except BaseException as exc:  # an application's mistake must not stop its deliveries
            self.errors = count = self.errors + 1
            if count <= TOLD_WHOLE:
                log.error("listener of %s failed", self._name, exc_info=exc)
            elif count & (count - 1) == 0:
                what = type(exc).__name__
                log.error("listener of %s failed, %d times: %s: %s", self._name, count, what, exc)
            return exc
        return None

    def pause_after(self, object_id: str) -> float | None:
        """Seconds until it gets the object again that it has failed on; None: it has had it often enough."""
        if object_id != self._object_id:
            self._object_id, self._tries = object_id, 0
        self._tries += 1
        pause = self._backoff.pause()
        if self._tries >= TRIES:
            self._object_id = ""
            self.given_up += 1
            return None
        return pause

    def reset(self) -> None:
        """Note that it has taken one."""
        self._backoff.reset()


class PoolClient(Protocol):
    """A subscription or query with something to tell."""

    def serve(self) -> bool:
        """Tell some of it; whether there is more."""
        ...


class ListenerPool:
    """See the module. `_changed` covers all state; clients are served outside it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._ready: deque[PoolClient] = deque()
        self._threads: set[threading.Thread] = set()
        self._busy = 0
        self._watching = False
        self._turns = 0
        """Number of times that a client was taken: as long as that goes up somebody comes back to the queue."""
        self._started = 0
        self._stopping = False

    @property
    def workers(self) -> int:
        """Number of threads that there are now."""
        return len(self._threads)

    def submit(self, client: PoolClient) -> None:
        """Have `client` served soon. Not to be submitted again before its `serve` has returned False."""
        with self._changed:
            if not self._stopping:
                self._ready.append(client)
                if not self._busy or not self._watching:
                    self._call_one()

    def stop(self, timeout: float = 5.0) -> None:
        """Begin no more calls; wait up to `timeout` seconds for those under way."""
        with self._changed:
            self._stopping = True
            self._ready.clear()
            threads = list(self._threads)
            self._changed.notify_all()
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _call_one(self) -> None:
        """Have somebody look at the queue: an idle worker, or a new one."""
        if self._busy < len(self._threads):
            self._changed.notify()
        elif len(self._threads) < MAX_WORKERS:
            self._started += 1
            thread = threading.Thread(target=self._work, name=f"{self._name}-listener-{self._started}", daemon=True)
            try:
                thread.start()
            except RuntimeError as exc:  # the system has no more threads for us: those there are do it, or the next try
                log.warning("no further thread for listeners can be started: %s", exc)
            else:
                self._threads.add(thread)

    def _work(self) -> None:
        client = self._first()
        while client is not None:
            more = True  # if it fails half way, what waits for it still does
            with guarded("listener"):
                more = client.serve()
            client = self._next(client, more=more)

    def _first(self) -> PoolClient | None:
        with self._changed:
            return self._await()

    def _next(self, served: PoolClient, *, more: bool) -> PoolClient | None:
        with self._changed:
            self._busy -= 1
            if more and not self._stopping:
                self._ready.append(served)
            return self._take() if self._ready else self._await()

    def _take(self) -> PoolClient:
        self._busy += 1
        self._turns += 1
        client = self._ready.popleft()
        if self._ready and not self._watching:
            self._call_one()  # somebody has to watch while this one is served
        return client

    def _await(self) -> PoolClient | None:
        """Wait until this worker is needed; None when it is not any more."""
        while not self._stopping:
            if not self._ready:
                if not self._changed.wait(SPARE_SECONDS) and not self._ready and self._is_spare():
                    break
            elif not self._busy:
                return self._take()
            elif self._watching:
                self._changed.wait(SPARE_SECONDS)  # one watches already
            elif self._watch():
                return self._take()
        self._threads.discard(threading.current_thread())
        return None

    def _watch(self) -> bool:
        """Whether nobody came back to the queue for PATIENCE, and something waits there still."""
        self._watching = True
        turns, until = self._turns, time.monotonic() + PATIENCE
        while self._ready and self._busy and not self._stopping and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)
        self._watching = False
        return bool(self._ready) and not self._stopping and (not self._busy or self._turns == turns)

    def _is_spare(self) -> bool:
        """Whether another one is idle as well."""
        return len(self._threads) - self._busy > 1


SubscriptionUid = NewType("SubscriptionUid", str)
"""Id that identifies a subscription, in all calls of the adapter that made it."""


@may_have("qos_changed")
@runtime_checkable
class SubscriptionListener(Protocol):
    """Receiver of a subscription in an application (paper section 2.4(5)). Calls are serial per subscription, on a
    library thread: plain functions, no `async def`. A listener that takes its time delays only its own subscription
    (see listeners.py).

    A listener that raises has not taken the object, which a durable subscription does not acknowledge then: it gets it
    again, five times at most, after pauses that double from 0.1 s to 5 s as long as it takes none, and what follows
    waits. An object that it failed on each time is told as lost (`listener_failed`). Exceptions are counted and logged,
    the first ones with their tracebacks, then each power of two; those of `lost` are nothing else.
    """

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:
        """An object arrived. It is consumed by this call and does not go to the queue."""

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:
        """Objects were lost: how many (0: not known, `notice.detail` says whether perhaps none) and why."""


@runtime_checkable
class QualityListener(Protocol):
    """Method that a listener may have besides."""

    def qos_changed(self, subscription: SubscriptionUid, granted: GrantedQos) -> None:
        """A delegate or peer publisher grants something else of what was wished than before."""


class FunctionListener:
    """A function as a listener: called with each object. Losses are logged and counted (`losses`)."""

    def __init__(self, function: Callable[[SubscriptionUid, InfoObject], object]) -> None:
        self._function = function

    def arrived(self, subscription: SubscriptionUid, obj: InfoObject) -> None:
        """An object arrived."""
        called(self._function, subscription, obj)

    def lost(self, subscription: SubscriptionUid, notice: LossNotice) -> None:
        """Do nothing: it is in the log and in the account already."""
