"""Durable subscriptions: what each has had, over restarts of subscriber and delegate, for as long as its lease.

Rules:
- One is known by its name and its owner: the name in his certificate, else whoever knows its secret. While its
  subscriber is away nothing is queued: its position in the archive is the queue.
- One process has it at a time. Who comes takes it over from one that is not connected any more.
- Position and acknowledgements are on disk a second late: after a kill what was acknowledged within that comes again.
- Its lease goes by the monotonic clock while we run: nothing ends because the wall clock is set. On disk its end is a
  time of the wall clock, which is written anew then; none that is read is further away than the lease.
- It makes registrations be archived that its template matches, unless their publisher forbids it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, IncompatibleEntryError, JbiError, StorageError
from jbi_pubsub.core.history import Consumer
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wall_clock import WallClock
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.entry import EntryRep, matches
from jbi_pubsub.pad.model.durable import Durable, Holder, UnderWay, kept_terms
from jbi_pubsub.pad.model.quota import NO_SHARE, RequestQuota
from jbi_pubsub.pad.past.store_protocol import Keeping
from jbi_pubsub.protocol.ownership import MIN_SECRET
from jbi_pubsub.protocol.requests import SubscriptionRequest

log = logging.getLogger("jbi_pubsub.pad")

NAME_MOST: Final = 200
"""Characters of a name."""


def owner_of(request_secret: str, caller: Caller | None) -> str:
    """The owner of a durable subscription. Raises AccessDeniedError for who proves nothing."""
    if caller is not None and caller.identity:
        return f"name:{caller.identity}"
    if len(request_secret) < MIN_SECRET:
        raise AccessDeniedError(
            "a durable subscription without a certificate needs a secret, which says whose it is",
            hint=f"Send one of at least {MIN_SECRET} characters",
        )
    return f"secret:{hashlib.sha256(f'jbi-pubsub durable owner 1:{request_secret}'.encode()).hexdigest()}"


def _shown(owner: str) -> str:
    """An owner for people: his name, or the begin of what tells his secret from others."""
    kind, _, who = owner.partition(":")
    return who if kind == "name" else f"key {who[:8]}"


class Durables:
    """All of a delegate's. Any thread."""

    def __init__(
        self,
        keeping: Keeping,
        lease: float,
        under_way: UnderWay,
        quota: RequestQuota,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lease`: seconds that one is kept while nobody has it; `under_way`: see Archiving; `quota`: of whoever makes
        one, as long as it is known and we run. Raises StorageError."""
        self._keeping = keeping
        self._quota = quota
        self._under_way = under_way
        self._lease = lease
        self._clock, self._wall_clock = clock, WallClock(wall, clock)
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Durable] = {}
        for consumer in keeping.consumers():
            try:
                entries = decoder_of(SubscriptionRequest).decode(consumer.request).entries
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                log.error("durable subscription %r can't be read, and keeps no objects: %s", consumer.name, exc)
                entries = ()
            ends = min(consumer.ends - self._wall_clock.ahead(), clock() + lease)  # it was set back since, else
            self._known[consumer.name, consumer.owner] = known = Durable(consumer, entries, under_way, ends)
            known.is_new = False

    def attach(
        self, request: SubscriptionRequest, caller: Caller | None, session: Holder, begin: Callable[[], int]
    ) -> Durable:
        """The one of that name, for that session; `begin()`: where a new one begins. Raises
        AccessDeniedError, ConfigurationError (its name is none, or another process has it), StorageError."""
        name, owner = request.durable, owner_of(request.secret, caller)
        if not (name.isprintable() and len(name) <= NAME_MOST):
            raise ConfigurationError(f"durable subscriptions have names of 1 to {NAME_MOST} printable characters")
        with self._lock:
            found = self._known.get((name, owner))
            if found is not None and (has := found.session) not in (None, session) and has and not has.has_gone:
                session.note_refused()  # it is told when that may have changed
                raise ConfigurationError(
                    f"durable subscription {name!r} is open in another process, {has.name[:100]!r}",
                    hint="Close it there first, or take another name",
                )
            kept = kept_terms(request)
            share = self._quota.take(caller, len(kept), found.share if found is not None else NO_SHARE)
            if found is None:
                try:
                    ends = self._clock() + self._lease
                    consumer = Consumer(name, owner, kept, begin(), (), ends + self._wall_clock.ahead())
                    self._keeping.note([consumer])
                except JbiError:
                    self._quota.give_back(share)
                    raise
                found = self._known[name, owner] = Durable(consumer, request.entries, self._under_way, ends)
            else:
                found.amend(request)
                found.is_new = False
            found.share = share
            found.attach(session)
        return found

    def detach(self, durable: Durable) -> None:
        """Nobody has it any more."""
        durable.session, durable.is_changed, durable.is_new = None, True, False
        durable.ends = self._clock() + self._lease

    def cancel(self, durable: Durable) -> None:
        """Its subscriber does not want it any more. Raises StorageError."""
        with self._lock:
            if self._known.pop((durable.name, durable.owner), None) is durable:
                self._quota.give_back(durable.share)
        self._keeping.cancel(durable.name, durable.owner)

    def find(self, name: str, owner: str) -> Durable | None:
        """The one of that name and owner."""
        return self._known.get((name, owner))

    def wants(self, entries: Iterable[EntryRep]) -> bool:
        """Whether one waits for a registration of those entries."""
        entries = list(entries)
        return any(fits(each.entries, entries) for each in list(self._known.values()))

    def note(self) -> None:
        """Put down what has changed, and forget those whose lease has run out. Now and then, and at the end. Raises
        StorageError."""
        now, ahead, is_set = self._clock(), self._wall_clock.ahead(), bool(self._wall_clock.shift())
        for durable in list(self._known.values()):
            if durable.session is None and durable.ends < now:
                log.warning("durable subscription %r ends: its subscriber has not come back", durable.name)
                self.cancel(durable)
            elif durable.session is not None and durable.ends < now + 0.9 * self._lease:
                durable.ends, durable.is_changed = now + self._lease, True
            durable.is_changed |= is_set
        changed = [durable for durable in list(self._known.values()) if durable.is_changed]
        if not changed:
            return
        try:
            self._keeping.note([durable.consumer(ahead) for durable in changed])
        except StorageError:
            for durable in changed:
                durable.is_changed = True  # again, with the next
            raise

    def status(self) -> list[dict[str, object]]:
        """Plain data; `end` is the position of the last object that the archive has."""
        return [
            {
                "name": each.name,
                "owner": _shown(each.owner),
                "position": each.position,
                "end": self._keeping.end,
                "unacknowledged": len(each._open),
                "open": each.session is not None,
                "ends": round(each.ends - self._clock(), 1),
            }
            for each in list(self._known.values())
        ]


def fits(template: Iterable[EntryRep], entries: Collection[EntryRep]) -> bool:
    """Whether a registration's entries match a template, as for subscriptions; of other generations' nothing does."""
    try:
        return all(any(matches(wanted, entry) for entry in entries) for wanted in template)
    except IncompatibleEntryError:
        return False
