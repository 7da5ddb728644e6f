"""Keeps leases alive for those who hold them (Jini's LeaseRenewalManager). A few threads for many leases."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
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


@dataclass(slots=True)
class _Held:
    duration: float
    expires: float
    renew: Callable[[], float]
    lost: Callable[[JbiError], None]


class LeaseRenewalManager:
    """Renews each managed lease at 2/5 of its term. Callbacks run on the manager's threads, one at a time per lease.

    A grantor that can't be reached is tried again until the lease has run out. `lost` is called once when a lease
    is gone: refused, unknown, or run out.
    """

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()  # covers _held, _due and _stopping
        self._held: dict[Hashable, _Held] = {}
        self._due: list[tuple[float, int, Hashable, _Held]] = []
        self._tie = itertools.count()
        self._stopping = False
        self._pool = ThreadPoolExecutor(RENEWALS_AT_ONCE, thread_name_prefix=f"{name}-renew")
        self._thread = threading.Thread(target=self._run, name=f"{name}-renewal", daemon=True)
        self._thread.start()

    def manage(
        self, key: Hashable, duration: float, renew: Callable[[], float], lost: Callable[[JbiError], None]
    ) -> None:
        """Renew the lease just granted for `duration` seconds. `renew` asks for a new term and returns its seconds."""
        now = time.monotonic()
        held = _Held(duration, now + duration, renew, lost)
        with self._changed:
            self._held[key] = held
            self._schedule(now + duration * RENEW_AT, key, held)

    def remove(self, key: Hashable) -> None:
        """Stop renewing; the lease itself is not cancelled. Unknown keys are ignored."""
        with self._changed:
            self._held.pop(key, None)

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
        heapq.heappush(self._due, (when, next(self._tie), key, held))
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(min(60.0, self._due[0][0] - time.monotonic()) if self._due else 60.0)
                if self._stopping:
                    return
                _, _, key, held = heapq.heappop(self._due)
                current = self._held.get(key) is held
            if current:
                self._pool.submit(self._renew, key, held)

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
