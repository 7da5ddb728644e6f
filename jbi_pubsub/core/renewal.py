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

from .agenda import Agenda
from .errors import JbiError, ProtocolError, WireError
from .guard import guarded, note
from .ticker import Job

log = logging.getLogger("jbi_pubsub.renewal")

RENEW_AT: Final = 2 / 5
"""Part of the term after which a lease is renewed. Jini's LeaseRenewalManager waits until 1/8 is left; then an outage
of half a term ends the lease if it begins late. This early, one is survived whenever it begins, with a tenth of the
term to come back."""

RENEWALS_AT_ONCE: Final = 8
"""Renewals under way together: grantors that hang for a whole call hold up nobody else's lease, short of so many."""

PAUSE_LEAST: Final = 0.1
"""Seconds between two renewals of a lease, whatever term its grantor says: one of nothing must not make us ask without
end."""

TERM_MOST: Final = 366 * 86_400.0
"""Seconds of the longest term that is believed. A grantor may say infinity; a clock of ours can't wait for it."""

RETRY_PART: Final = 1 / 16
"""Part of the term between two tries while the grantor can't be reached: two fit in before the end."""


THREAD_SECONDS: Final = 0.1
"""Seconds until the next try when the system has no thread for a renewal: listeners and servers end some meanwhile."""


@dataclass(slots=True)
class _RenewedLease:
    duration: float
    expires: float
    grantor: Hashable
    renew: Callable[[], float]
    lost: Callable[[JbiError], None]


class LeaseRenewalManager:
    """Renews each managed lease at 2/5 of its term. Callbacks run on the manager's threads, one at a time per grantor:
    one that hangs has one of the threads, however many leases it has granted.

    A grantor that can't be reached, or grants what is no term, is tried again until the lease has run out. `lost` is
    called once when a lease is gone: refused, unknown, or run out.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()  # covers all state
        self._held: dict[Hashable, _RenewedLease] = {}
        self._due: Agenda[Hashable] = Agenda()
        self._waiting: dict[Hashable, list[tuple[float, int, Hashable, _RenewedLease]]] = {}
        """For each grantor that is asked now its other leases that are due: a heap, the first to expire first."""
        self._ready: deque[tuple[Hashable, _RenewedLease]] = deque()
        """Queue of what the workers are to renew next."""
        self._tie = itertools.count()
        self._pool = ThreadPoolExecutor(RENEWALS_AT_ONCE, thread_name_prefix=f"{name}-renew")
        self._job = Job("lease renewal", PAUSE_LEAST, self._hand_out)
        self._job.start()

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
        duration = duration if is_term(duration) else 0.0
        held = _RenewedLease(duration, now + duration, key if grantor is None else grantor, renew, lost)
        with self._lock:
            self._held[key] = held
            self._schedule_renewal(now, key, held)

    def hasten(self, key: Hashable) -> None:
        """Renew the lease now: its grantor may have a longer term by now. Unknown keys are ignored."""
        with self._lock:
            if key in self._held:
                self._schedule(time.monotonic(), key)

    def remove(self, key: Hashable) -> None:
        """Stop renewing; the lease itself is not cancelled. Unknown keys are ignored."""
        with self._lock:
            self._held.pop(key, None)
            self._due.discard(key)

    def stop(self, timeout: float = 5.0) -> None:
        """End the threads. The leases then run out unless they are cancelled."""
        with self._lock:
            self._held, self._due = {}, Agenda()
        self._job.stop(timeout)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __len__(self) -> int:
        return len(self._held)

    def _schedule_renewal(self, now: float, key: Hashable, held: _RenewedLease) -> None:
        self._schedule(now + max(PAUSE_LEAST, min(held.duration, TERM_MOST) * RENEW_AT), key)

    def _schedule(self, when: float, key: Hashable) -> None:
        self._due.set_time(key, when)
        if when <= self._due.first():
            self._job.wake()

    def _hand_out(self) -> float:
        """Have workers look at what is due; seconds until something is."""
        with self._lock:
            while (key := self._due.pop(time.monotonic())) is not None:
                self._make_ready(key)
            pause = self._due.first() - time.monotonic()
            ready = len(self._ready)
        try:
            for _ in range(min(ready, RENEWALS_AT_ONCE)):
                self._pool.submit(self._ask)
        except RuntimeError as exc:
            if "shutdown" in str(exc):  # the program ends: nobody renews any more
                return math.inf
            log.warning("no thread for renewals, trying again: %s", exc)
            return min(pause, THREAD_SECONDS)
        return pause

    def _make_ready(self, key: Hashable) -> None:
        """Under the lock: a lease that is due is renewed next, or behind the others of its grantor."""
        held = self._held[key]
        waiting = self._waiting.get(held.grantor)
        if waiting is not None:
            heapq.heappush(waiting, (held.expires, next(self._tie), key, held))
        else:
            self._waiting[held.grantor] = []
            self._ready.append((key, held))

    def _ask(self) -> None:
        """Renew one lease; then it is the turn of another grantor, and of the next lease of this one behind that."""
        with self._lock:
            if not self._ready:
                return
            key, held = self._ready.popleft()
            is_managed = self._held.get(key) is held
        if is_managed:
            with guarded("renewal of a lease"):
                self._renew(key, held)
        with self._lock:
            waiting = self._waiting[held.grantor]
            if waiting:
                self._ready.append(heapq.heappop(waiting)[2:])
            else:
                del self._waiting[held.grantor]
            more = bool(self._ready)
        if more:
            with contextlib.suppress(RuntimeError):  # no further thread, or the end: this one looks there next
                self._pool.submit(self._ask)

    def _renew(self, key: Hashable, held: _RenewedLease) -> None:
        try:
            duration = held.renew()
            if not is_term(duration):
                raise ProtocolError(f"a lease was renewed for {duration} s, which is not a term")
        except WireError as exc:
            self._try_again(key, held, exc)
            return
        except JbiError as exc:
            self._lose(key, held, exc)
            return
        except Exception as exc:  # noqa: BLE001  # noted
            note("renewal of a lease", exc)
            self._try_again(key, held, WireError(f"the renewal has failed here: {type(exc).__name__}: {exc}"))
            return
        now = time.monotonic()
        with self._lock:
            held.duration, held.expires = duration, now + duration
            if self._held.get(key) is held:
                self._schedule_renewal(now, key, held)

    def _try_again(self, key: Hashable, held: _RenewedLease, why: JbiError) -> None:
        now = time.monotonic()
        if now >= held.expires:
            self._lose(key, held, why)
            return
        log.debug("renewal of %s failed, trying again: %s", key, why)
        pause = max(PAUSE_LEAST / 2, min(held.duration, TERM_MOST) * RETRY_PART)
        with self._lock:
            if self._held.get(key) is held:
                self._schedule(now + pause, key)

    def _lose(self, key: Hashable, held: _RenewedLease, why: JbiError) -> None:
        with self._lock:
            known = self._held.get(key) is held
            if known:
                del self._held[key]
                self._due.discard(key)
        if known:
            held.lost(why)


def is_term(duration: float) -> bool:
    """Whether a grantor may say so: seconds from 0 to infinity, no NaN."""
    return duration >= 0
