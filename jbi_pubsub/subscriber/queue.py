"""The queue between a subscription and its application: objects wait there, to be taken, or told a listener."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from jbi_pubsub.core.info_object import Cause, InfoObject, LossNotice
from jbi_pubsub.core.quality import GrantedQos

from .listeners import (
    SERVED_AT_ONCE,
    ListenerCalls,
    ListenerPool,
    QualityListener,
    SubscriptionListener,
    SubscriptionUid,
)

Consumer = Callable[[int], None]
"""Source of objects, called with the number of those that the application has taken: it gets credits for them."""

CLOSE_SECONDS: Final = 5.0
"""Time that closing a subscription waits for its listener to return."""


class ObjectQueue:
    """See the module. Any thread may add or take; `changed` covers all state, and that of the subscription."""

    def __init__(
        self,
        uid: SubscriptionUid,
        listener: SubscriptionListener | None,
        listeners: ListenerPool,
        lose: Callable[[Cause, int, str], None],
    ) -> None:
        """`listeners` calls the `listener`, if there is one; `lose`: told of objects that it has failed on."""
        self.changed = threading.Condition()
        self.waiting: deque[tuple[InfoObject, Consumer]] = deque()
        self.is_closed = False
        self.wakers: set[Callable[[], None]] = set()
        """Called, under the lock, when there may be something to take, or never will be: of those who do not wait in
        `take`. They must not wait."""
        self.calls = ListenerCalls(f"subscription {uid}")
        self._uid = uid
        self._notices: deque[LossNotice | GrantedQos] = deque()
        self._listener = listener
        self._listeners = listeners
        self._lose = lose
        self._is_submitted = False
        self.is_paused = False
        """Nothing is to be taken now."""
        self._served_by: threading.Thread | None = None

    @property
    def is_served(self) -> bool:
        """Whether the listener is being called: it may have one that does not wait any more."""
        return self._served_by is not None

    def put(self, objects: Iterable[tuple[InfoObject, Consumer]]) -> None:
        """Under the lock: add objects, each with the source that gets a credit when it is taken."""
        self.waiting.extend(objects)
        self.announce()

    def tell(self, notice: LossNotice | GrantedQos) -> None:
        """Under the lock: have the listener told, if it can be, before the next object."""
        if self._listener is None or (
            isinstance(notice, GrantedQos) and not isinstance(self._listener, QualityListener)
        ):
            return
        self._notices.append(notice)
        self.announce()

    def take(self, timeout: float) -> InfoObject | None:
        """The next object, or None after `timeout` seconds or when closed."""
        taken: tuple[InfoObject, Consumer] | None
        try:
            taken = self.waiting.popleft()  # what waits needs no lock and no clock
        except IndexError:
            taken = None
        if taken is None:  # not in the handler: Ctrl-C would be told "during handling of" a queue that is empty
            taken = self._await(timeout)
        if taken is None:
            return None
        obj, consumed = taken
        consumed(1)
        return obj

    def _await(self, timeout: float) -> tuple[InfoObject, Consumer] | None:
        deadline = time.monotonic() + timeout
        with self.changed:
            while not self.is_closed and not self.is_paused:
                with suppress(IndexError):  # who has not waited may have been quicker
                    return self.waiting.popleft()
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self.changed.wait(left)
        return None

    def drain(self) -> list[InfoObject]:
        """All objects that wait, without waiting."""
        taken = []
        with self.changed, suppress(IndexError):  # nothing more comes under the lock; others may take without it
            while True:
                taken.append(self.waiting.popleft())
        for consumed, count in Counter(consumed for _, consumed in taken).items():
            consumed(count)
        return [obj for obj, _ in taken]

    def pause(self) -> None:
        """Have what comes wait, within the bound, and whoever waits get None, until `resume`. The listener is not being
        called any more when this returns, unless it takes longer than some seconds, or calls this itself."""
        with self.changed:
            self.is_paused = True
            self.changed.notify_all()
            if self._served_by is not threading.current_thread():
                self.changed.wait_for(lambda: self._served_by is None, CLOSE_SECONDS)

    def resume(self) -> None:
        """Undo `pause`."""
        with self.changed:
            self.is_paused = False
            self.announce()

    def close(self) -> None:
        """No more objects; whoever waits gets None."""
        with self.changed:
            self.is_closed = True
            self.waiting.clear()
            self._notices.clear()
            self.changed.notify_all()
            self._wake()
            if self._served_by is not threading.current_thread():
                self.changed.wait_for(lambda: self._served_by is None, CLOSE_SECONDS)

    def serve(self) -> bool:
        """Tell the listener some of what waits; whether there is more. One thread at a time (a PoolClient)."""
        with self.changed:
            self._served_by = threading.current_thread()
        for _ in range(SERVED_AT_ONCE):
            if self.is_paused:
                break
            try:
                notice = self._notices.popleft() if self._notices else None
                obj, consumed = (None, None) if notice is not None else self.waiting.popleft()
            except IndexError:  # all of it is told, or it was closed
                break
            why = self._call(obj, notice)
            if obj is not None and consumed is not None and (why is None or self._is_given_up(obj, consumed, why)):
                consumed(1)
        with self.changed:
            return self._rest()

    def _rest(self) -> bool:
        self._served_by = None
        self._is_submitted = bool(self.waiting or self._notices) and not self.is_paused
        self.changed.notify_all()
        return self._is_submitted

    def announce(self) -> None:
        """Something waits: for the listener, or for those who take."""
        if self._listener is None:
            self.changed.notify(len(self.waiting))
            self._wake()
        elif not self._is_submitted and not self.is_paused and (self.waiting or self._notices):
            self._is_submitted = True
            self._listeners.submit(self)

    def _wake(self) -> None:
        for wake in tuple(self.wakers):  # others come and go
            wake()

    def _is_given_up(self, obj: InfoObject, consumed: Consumer, why: BaseException) -> bool:
        """The listener has failed on an object: told as lost if that was the last time, else it comes again when this
        returns, before all others."""
        pause = self.calls.pause_after(obj.object_id)
        if pause is None:
            self._lose(Cause.LISTENER_FAILED, 1, f"object {obj.object_id}: {type(why).__name__}: {str(why)[:200]}")
            return True
        with self.changed:
            if not self.is_closed:
                self.waiting.appendleft((obj, consumed))
                self.changed.wait_for(lambda: self.is_closed or self.is_paused, pause)
        return False

    def _call(self, obj: InfoObject | None, notice: LossNotice | GrantedQos | None) -> BaseException | None:
        """Call the listener; the exception that it has raised."""
        listener = self._listener
        assert listener is not None
        if obj is not None:
            why = self.calls.call(listener.arrived, self._uid, obj)
            if why is None:
                self.calls.reset()
            return why
        if isinstance(notice, LossNotice):
            return self.calls.call(listener.lost, self._uid, notice)
        assert isinstance(listener, QualityListener)
        return self.calls.call(listener.qos_changed, self._uid, notice)
