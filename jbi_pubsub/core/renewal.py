"""Keeps leases alive for those who hold them (Jini's LeaseRenewalManager). A few threads for many leases."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from .errors import JbiError, UnknownLeaseError, WireError

log = logging.getLogger("jbi_pubsub.renewal")

RENEW_AT: Final = 2 / 5
"""Part of the term after which a lease is renewed. Jini's LeaseRenewalManager waits until 1/8 is left; then an outage
of half a term ends the lease if it begins late. This early, one is survived whenever it begins, with a tenth of the
term to come back."""

RENEWALS_AT_ONCE: Final = 8
"""Renewals under way together: grantors that hang for a whole call hold up nobody else's lease, short of so many."""

RETRY_PART: Final = 1 / 16
"""Part of the term between two tries while the grantor can't be reached: two fit in before the end."""


THREAD_SECONDS: Final = 0.1
"""Seconds until the next try when the system has no thread for a renewal: listeners and servers end some meanwhile."""

SWEPT: Final = 64
"""Entries of removed leases that are not worth a sweep, as in a Landlord."""


@dataclass(slots=True)
class _Held:
    duration: float
    expires: float
    grantor: Hashable
    renew: Callable[[], float]
    lost: Callable[[JbiError], None]
    scheduled: float = math.inf  # the time of its one valid entry in the heap


class LeaseRenewalManager:
    """Renews each managed lease at 2/5 of its term. Callbacks run on the manager's threads, one at a time per grantor:
    one that hangs has one of the threads, however many leases it has granted.

    A grantor that can't be reached is tried again until the lease has run out. `lost` is called once when a lease
    is gone: refused, unknown, or run out.
    """

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()  # covers all state
        self._held: dict[Hashable, _Held] = {}
        self._due: list[tuple[float, int, Hashable, _Held]] = []
        self._waiting: dict[Hashable, list[tuple[float, int, Hashable, _Held]]] = {}
        """For each grantor that is asked now its other leases that are due: a heap, the first to expire first."""
        self._ready: deque[tuple[Hashable, _Held]] = deque()
        """What the workers are to renew next."""
        self._tie = itertools.count()
        self._stopping = False
        self._pool = ThreadPoolExecutor(RENEWALS_AT_ONCE, thread_name_prefix=f"{name}-renew")
        self._thread = threading.Thread(target=self._run, name=f"{name}-renewal", daemon=True)
        self._thread.start()

    def manage(
        self,
        key: Hashable,
        duration: float,
        renew: Callable[[], float],
        lost: Callable[[JbiError], None],
        *,
        grantor: Hashable = None,
    ) -> None:
        """Renew the lease just granted for `duration` seconds. `renew` asks for a new term and returns its seconds.

        Leases of the same `grantor` are renewed one after the other; None: it has granted no other.
        """
        now = time.monotonic()
        held = _Held(duration, now + duration, key if grantor is None else grantor, renew, lost)
        with self._changed:
            self._held[key] = held
            self._schedule(now + duration * RENEW_AT, key, held)

    def remove(self, key: Hashable) -> None:
        """Stop renewing; the lease itself is not cancelled. Unknown keys are ignored."""
        with self._changed:
            self._held.pop(key, None)
            self._sweep()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread. The leases then run out unless they are cancelled."""
        with self._changed:
            self._stopping = True
            self._held.clear()
            self._changed.notify_all()
        self._thread.join(timeout)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._held)

    def _schedule(self, when: float, key: Hashable, held: _Held) -> None:
        held.scheduled = when
        heapq.heappush(self._due, (when, next(self._tie), key, held))
        self._sweep()
        self._changed.notify_all()

    def _sweep(self) -> None:
        """Take out the entries of leases that are not managed any more, when they outnumber the others."""
        if len(self._due) > 2 * len(self._held) + SWEPT:
            self._due = [entry for entry in self._due if self._is_due(*entry)]
            heapq.heapify(self._due)

    def _is_due(self, when: float, _tie: int, key: Hashable, held: _Held) -> bool:
        return self._held.get(key) is held and held.scheduled == when

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(min(60.0, self._due[0][0] - time.monotonic()) if self._due else 60.0)
                if self._stopping:
                    return
                entry = heapq.heappop(self._due)
                if not self._is_due(*entry):
                    continue
                _, tie, key, held = entry
                held.scheduled = math.inf
                waiting = self._waiting.get(held.grantor)
                if waiting is not None:
                    heapq.heappush(waiting, (held.expires, tie, key, held))
                    continue
                self._waiting[held.grantor] = []
                self._ready.append((key, held))
            self._call_worker()

    def _call_worker(self) -> None:
        """Have somebody look at `_ready`; waits until there is somebody."""
        while True:
            try:
                self._pool.submit(self._ask)
            except RuntimeError as exc:
                log.warning("no thread for renewals, trying again: %s", exc)
            else:
                return
            with self._changed:
                self._changed.wait(THREAD_SECONDS)
                if self._stopping or not self._ready:
                    return

    def _ask(self) -> None:
        """Renew one lease; then it is the turn of another grantor, and of the next lease of this one behind that."""
        with self._changed:
            if not self._ready:
                return
            key, held = self._ready.popleft()
            is_managed = self._held.get(key) is held
        try:
            if is_managed:
                self._renew(key, held)
        finally:
            with self._changed:
                waiting = self._waiting[held.grantor]
                if waiting:
                    self._ready.append(heapq.heappop(waiting)[2:])
                else:
                    del self._waiting[held.grantor]
                more = bool(self._ready)
            if more:
                with contextlib.suppress(RuntimeError):  # no further thread, or the end: this one looks there next
                    self._pool.submit(self._ask)

    def _renew(self, key: Hashable, held: _Held) -> None:
        try:
            duration = held.renew()
        except UnknownLeaseError as exc:
            self._lose(key, held, exc)
            return
        except WireError as exc:
            if time.monotonic() < held.expires:
                log.debug("renewal of %s failed, trying again: %s", key, exc)
                with self._changed:
                    self._schedule(time.monotonic() + max(0.05, held.duration * RETRY_PART), key, held)
            else:
                self._lose(key, held, exc)
            return
        except JbiError as exc:
            self._lose(key, held, exc)
            return
        now = time.monotonic()
        with self._changed:
            held.duration, held.expires = duration, now + duration
            if self._held.get(key) is held:
                self._schedule(now + duration * RENEW_AT, key, held)

    def _lose(self, key: Hashable, held: _Held, why: JbiError) -> None:
        with self._changed:
            known = self._held.get(key) is held
            if known:
                del self._held[key]
        if known:
            held.lost(why)
