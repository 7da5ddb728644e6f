"""Subscriber processes at a delegate: a session each, under a lease, and the thread that writes to all of them."""

from __future__ import annotations

import math
from typing import Final
from uuid import uuid4

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.pad.delegate.contracts import DelegateCore
from jbi_pubsub.pad.delegate.subscribers import SubscriptionRegistry
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.session import SubscriberSession

SWEEP_SECONDS: Final = 0.25
"""Seconds between two looks at what expires, and whose settings have changed; with quality of service alone."""

PART_SECONDS: Final = 1.0
"""For all subscribers to acknowledge that nothing comes any more: round trips, not queues."""


class SubscriberSessions:
    """They come with `open` and go with `drop`, with all their subscriptions."""

    def __init__(self, core: DelegateCore, subscribers: SubscriptionRegistry, *, budget: Budget, name: str) -> None:
        config, self._tables, contracts, self._events = core
        self._subscribers = subscribers
        self._quality = quality = contracts.quality
        self._chunk = config.link.chunk
        self._settle = config.pad.settle_seconds
        self.budget: Final = budget
        self.hub: Final = SenderHub(name=name, turns=quality.links if quality is not None else None)
        if quality is not None:
            self.hub.every(SWEEP_SECONDS, self._sweep)
            quality.watch(self.queued, self._tables.counted)

    def open(self, name: str, duration: float, caller: Caller | None = None) -> tuple[str, Lease]:
        """A subscriber process comes: its session id and lease. Raises LeaseDeniedError."""
        session_id = f"session-{uuid4().hex}"
        session = self._new_session(session_id, name)
        session.caller = caller
        with self._tables.lock:
            idle = self._tables.leases.make_room(self._tables.sessions, "subscriber sessions")
            lease = self._tables.leases.grant_unattached(
                lambda: self.drop(session_id, Cause.SUBSCRIBER_DEAD), duration, self._tables.clock()
            )
            session.lease_id = lease.lease_id
            self._tables.sessions[session_id] = session
            self._events.tell_session("created", session)
            session.opened = self._tables.clock()  # last of all: ages count from here to the answer
        self.drop(idle, Cause.SUBSCRIBER_DEAD)
        return session_id, lease

    def _new_session(self, session_id: str, name: str) -> SubscriberSession:
        budget, chunk = self.budget, self._chunk
        if self._quality is None:
            return SubscriberSession(session_id, name=name, budget=budget, hub=self.hub, chunk=chunk)
        from jbi_pubsub.pad.egress.levels import LevelledSession  # here: what is off is not imported

        return LevelledSession(session_id, quality=self._quality, name=name, budget=budget, hub=self.hub, chunk=chunk)

    def close(self, session_id: str) -> None:
        """The subscriber leaves. Raises UnknownUidError."""
        with self._tables.lock:
            self._tables.leases.landlord.drop(self._tables.session(session_id).lease_id)
        self.drop(session_id, Cause.CANCELLED)

    def drop(self, session_id: str, cause: Cause) -> None:
        """A subscriber has gone, with all its subscriptions; "": none has."""
        with self._tables.lock:
            found = self._tables.sessions.get(session_id)
            keys = [key for key in self._tables.subscriptions if key[0] == session_id]
            for key in keys:  # first: what is published from now on is not for them
                self._tables.subscriptions[key].ended = cause
                self._tables.take_out(self._tables.subscriptions[key])
            self._tables.sessions.pop(session_id, None)
            self._tables.leases.unattached.pop(found.lease_id if found else "", None)
        if found is None:
            return
        found.close(cause)
        for key in keys:
            self._subscribers.forget(key, of=found)
        self._events.tell_session("removed", found)

    def seconds_open(self, session_id: str) -> float:
        """Seconds since a session was opened; 0.0 if there is none."""
        with self._tables.lock:
            session = self._tables.sessions.get(session_id)
            return self._tables.clock() - session.opened if session is not None else 0.0

    def _sweep(self) -> None:
        """Have what waits follow its policies. On the hub's thread."""
        for session in list(self._tables.sessions.values()):
            session.sweep()

    def queued(self) -> tuple[int, int]:
        """Objects that wait in all queues, and their bytes."""
        return sum(session.queued for session in list(self._tables.sessions.values())), self.budget.used

    def drain(self, timeout: float, *, closing: bool) -> int:
        """Wait for deliveries to go out; how many objects are left after `timeout` seconds."""
        with self._tables.lock:
            sessions = list(self._tables.sessions.values())
        deadline = self._tables.clock() + timeout
        self._subscribers.late_joiners.drain(min(timeout, self._settle))
        left = 0
        coming = self._settle if closing else math.inf
        for session in sessions:  # one that has gone may never come back; one that has just come is about to connect
            most = math.inf if session.connected else 0.0 if session.has_gone else coming
            left += session.drain(min(most, max(0.0, deadline - self._tables.clock())))
        return left

    def part(self) -> None:
        """Tell the subscribers that we stop: who has got everything is not to think that something may be lost."""
        with self._tables.lock:
            connected = [s for s in self._tables.sessions.values() if s.connected]
        for session in connected:
            session.part()
        deadline = self._tables.clock() + PART_SECONDS
        for session in connected:
            session.wait_parted(max(0.0, deadline - self._tables.clock()))
