"""The registrar behind its lock and its log: it decides under the lock; what it returns is made durable behind it, then
told, in the order in which it was decided."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.lookup.client.proxy import EVERYTHING
from jbi_pubsub.lookup.item import ServiceItem, ServiceMatches, ServiceRegistration, ServiceTemplate
from jbi_pubsub.lookup.registrar import Outcome, Registrar
from jbi_pubsub.lookup.status import StoreStatus
from jbi_pubsub.lookup.store import Store

log = logging.getLogger("jbi_pubsub.lookup")

BREATH: Final = 0.0002
"""Seconds that whoever holds the lock again and again leaves it to others: they have to be woken, some 0.05 ms each."""

REAP_AT_ONCE: Final = 100
"""Leases that are ended before others are let in: 2 ms under the lock, no more than a commit takes."""

R = TypeVar("R")


class QueuedOutcome:
    """Outcome of a decision, to be told if it `holds`; None: that is not known yet."""

    __slots__ = ("holds", "outcome")

    def __init__(self, outcome: Outcome[Any]) -> None:
        self.outcome = outcome
        self.holds: bool | None = None


class OutcomeQueue:
    """Outcomes in their order, until it is known whether they hold; `tell` gets them, one at a time."""

    def __init__(self, tell: Callable[[Outcome[Any]], None]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._waiting: deque[QueuedOutcome] = deque()

    def add(self, outcome: Outcome[Any]) -> QueuedOutcome:
        """Called under the lock of who decides. It must be settled, or nothing behind it is ever told."""
        queued = QueuedOutcome(outcome)
        if outcome.events or outcome.diagnostics:
            with self._lock:
                self._waiting.append(queued)
        return queued

    def settle(self, queued: QueuedOutcome, *, holds: bool) -> None:
        """Tell it now, and what has waited for it; or never, if it was taken back: its numbers are missing then, and
        who is told the next one looks up again."""
        if not (queued.outcome.events or queued.outcome.diagnostics):
            return
        with self._lock:
            queued.holds = holds
            while self._waiting and self._waiting[0].holds is not None:
                with guarded("lookup events"):
                    first = self._waiting.popleft()
                    if first.holds:
                        self._tell(first.outcome)


class DurableRegistrar:
    """The registrar, for any thread. `_lock` covers it."""

    def __init__(
        self,
        registrar: Registrar,
        store: Store | None,
        tell: Callable[[Outcome[Any]], None],
        *,
        wall: Callable[[], float],
    ) -> None:
        """`tell` sends the events of a decision; `store` is the registrar's log."""
        self._registrar = registrar
        self._store = store
        self._wall = wall
        self._lock = threading.Lock()
        self._outcomes = OutcomeQueue(tell)
        self._disk_fault = False

    def decide(self, call: Callable[[Registrar, float], Outcome[R]]) -> R:
        """Let the registrar decide under the lock; when that is durable, send what it wants sent.

        Raises StorageError; it holds then, is written with the next, and what was to be sent is: waiting for a disk
        that may be full for hours is worse.
        """
        result, fault = self._decide(call, lambda _: False)
        if fault is not None:
            raise fault
        return result

    def grant(self, call: Callable[[Registrar, float], Outcome[ServiceRegistration]]) -> ServiceRegistration:
        """`decide` for what must be durable before anybody knows of it: if the disk fails, the lease is taken back.

        Raises StorageError.
        """
        granted, fault = self._decide(call, self._is_taken_back)
        if fault is not None:
            raise fault
        return granted

    def change(self, call: Callable[[Registrar, float], Outcome[R]]) -> R:
        """`decide` for what holds in memory whatever the disk does, and loses nothing of somebody's if it is forgotten
        (event registrations, which their clients make again; ends and renewals of leases), or has more to it (what an
        administrator sets): the store tries again, and says so."""
        result, fault = self._decide(call, lambda _: False)
        if fault is not None and not self._disk_fault:
            log.error("new state is refused until the disk works again: %s", fault)
        elif fault is None and self._disk_fault:
            log.warning("the disk works again")
        self._disk_fault = fault is not None
        return result

    def _decide(
        self, call: Callable[[Registrar, float], Outcome[R]], take_back: Callable[[R], bool]
    ) -> tuple[R, StorageError | None]:
        with self._lock:
            outcome = call(self._registrar, time.monotonic())
            queued = self._outcomes.add(outcome)
        holds, fault = True, None
        try:
            if self._store is not None:
                self._store.sync()  # off the lock: whoever comes first commits for all that wait
        except StorageError as exc:
            fault = exc
            holds = not take_back(outcome.result)
        finally:
            self._outcomes.settle(queued, holds=holds)
        return outcome.result, fault

    def _is_taken_back(self, granted: ServiceRegistration) -> bool:
        with self._lock:
            outcome = self._registrar.cancel(granted.lease_id, time.monotonic())
        self._outcomes.settle(self._outcomes.add(outcome), holds=False)
        return True

    def read(self, call: Callable[[Registrar, float], R]) -> R:
        """Ask the registrar under the lock."""
        with self._lock:
            return call(self._registrar, time.monotonic())

    def search(self, template: ServiceTemplate, limit: int, *, total: bool, after: str) -> ServiceMatches:
        """A page of a lookup; others go in between where there is nothing in its first part."""
        matched = -1
        while True:
            page = self.read(lambda r, now: r.page(template, now, limit, total=total, after=after))  # noqa: B023  # called here
            matched = max(matched, page.total)
            if page.items or not page.after:
                return msgspec.structs.replace(page, total=matched)
            after, total = page.after, False
            time.sleep(BREATH)

    def matching(self, template: ServiceTemplate) -> Iterator[ServiceItem]:
        """All matching items, page by page, others in between."""
        after = ""
        while True:
            page = self.search(template, EVERYTHING, total=False, after=after)
            yield from page.items
            if not page.after:
                return
            after = page.after
            time.sleep(BREATH)

    def admit(self) -> None:
        """Raise StorageError if what was decided last is not durable."""
        if self._store is not None:
            self._store.admit()

    def align(self) -> None:
        """Note how the clocks stand to each other, for a restart."""
        if self._store is not None:
            self._store.align(time.monotonic(), self._wall())

    def close(self) -> None:
        """Close the log."""
        if self._store is not None:
            self._store.close()

    def status(self) -> StoreStatus | None:
        """Status of the log; None without one."""
        return self._store.status() if self._store else None
