"""Durable subscriptions: what each has had, over restarts of subscriber and delegate, for as long as its lease.

Rules:
- One is known by its name and its owner: the name in his certificate, else whoever knows its secret. While its
  subscriber is away nothing is queued: its position in the archive is the queue.
- One process has it at a time. Who comes takes it over from one that is not connected any more.
- Objects are not offered in the order of their positions: several publishers' threads do. So what lies between two
  acknowledged ones counts as had only if nothing of it waits, is on its way, may still be offered (`under_way`), or is
  to come by the feed.
- Position and acknowledgements are on disk a second late: after a kill what was acknowledged within that comes again.
- It makes registrations be archived that its template matches, unless their publisher forbids it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, IncompatibleEntryError, JbiError, StorageError
from jbi_pubsub.core.history import Consumer
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.entry import EntryRep, matches
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.quota import NO_SHARE, RequestQuota, Share
from jbi_pubsub.pad.past.store_protocol import Keeping
from jbi_pubsub.protocol.ownership import MIN_SECRET
from jbi_pubsub.protocol.requests import NEW, SubscriptionRequest

log = logging.getLogger("jbi_pubsub.pad")

UnderWay = Callable[[], list[tuple[int, int]]]

NAME_MOST: Final = 200
"""Characters of a name."""


class Durable:
    """One of them. Any thread; `lock` covers all state."""

    def __init__(self, consumer: Consumer, entries: tuple[EntryRep, ...], under_way: UnderWay) -> None:
        """`under_way`: see Archiving."""
        self._under_way = under_way
        self.lock = threading.Lock()
        self.name, self.owner = consumer.name, consumer.owner
        self.request = consumer.request
        self.entries = entries
        self.position = consumer.position
        """All that matches up to there is acknowledged."""
        self._above = list(consumer.acknowledged)
        """Above it: intervals, ascending, none next to another without something unacknowledged between."""
        self._open: list[int] = []
        """What waits, or was sent, and is not acknowledged, ascending."""
        self._limit: float = self.position
        """What is above comes by the feed yet; infinite when it has brought all."""
        self.share: Share = NO_SHARE
        self.ends = consumer.ends
        self.is_changed = False
        self.is_new = True
        """It never was in this process, nor before."""
        self.session: SubscriberSession | None = None
        """Who has it."""

    def amend(self, request: SubscriptionRequest) -> None:
        """It has these terms from now on."""
        self.request, self.entries, self.is_changed = _kept(request), request.entries, True

    def attach(self, session: SubscriberSession) -> None:
        """That one has it from now on; what was not acknowledged is to be sent again."""
        with self.lock:
            self.session = session
            self._open.clear()
            self._limit = self.position

    def has(self, position: int) -> bool:
        """Whether that was acknowledged, or is on its way."""
        with self.lock:
            return position <= self.position or _within(self._above, position) or _in(self._open, position)

    def entered(self, position: int) -> None:
        """An object waits, or goes out, from now on."""
        with self.lock:
            if not _in(self._open, position):
                insort(self._open, position)

    def fed(self, above: int, up_to: float) -> None:
        """The feed has brought all between; it does not count when it is to go back below that."""
        with self.lock:
            if above <= self._limit < up_to:
                self._limit = up_to

    def back(self, position: int, dropped: Iterable[int]) -> int:
        """The feed is to bring again what was dropped, and all from that position on, or from what is still under way:
        behind which position."""
        gone, under_way = set(dropped), self._under_way()
        with self.lock:
            self._open = [each for each in self._open if each not in gone]
            first = min([position, *gone, *(first for first, _ in under_way)])
            self._limit = min(self._limit, first - 1)
            return int(self._limit)

    def acknowledge(self, positions: Iterable[int]) -> int:
        """Objects that were sent need not come again; how many of them were not acknowledged before."""
        count = 0
        with self.lock:
            for position in positions:
                at = bisect_left(self._open, position)
                if at == len(self._open) or self._open[at] != position:
                    continue  # never sent, or acknowledged before
                del self._open[at]
                count += 1
                if not _within(self._above, position):
                    insort(self._above, (position, position))
            if count:
                self._fold()
                self.is_changed = True
        return count

    def passed(self, position: int) -> None:
        """Nothing that matches is between what was sent and that position."""
        with self.lock:
            if position > self.position and not self._open and position <= self._limit:
                self.position, self.is_changed = position, True
                self._above = [each for each in self._above if each[1] > position]

    def reset(self, position: int) -> None:
        """It goes on behind that position."""
        with self.lock:
            self.position, self.is_changed = position, True
            self._limit = min(self._limit, position)
            self._above.clear()
            self._open.clear()

    def consumer(self) -> Consumer:
        """As it is kept."""
        with self.lock:
            self.is_changed = False
            return Consumer(self.name, self.owner, self.request, self.position, tuple(self._above), self.ends)

    def _fold(self) -> None:
        """Intervals with nothing unacknowledged between are one; what reaches down to the position raises it."""
        under_way = self._under_way()  # before what waits is looked at: what has left it meanwhile is there

        def is_had(above: int, below: int) -> bool:
            return (
                below <= self._limit + 1
                and not _any_between(self._open, above, below)
                and not any(first < below and last > above for first, last in under_way)
            )

        folded: list[tuple[int, int]] = []
        for first, last in self._above:
            if folded and (first == folded[-1][1] + 1 or is_had(folded[-1][1], first)):
                folded[-1] = (folded[-1][0], max(folded[-1][1], last))
            else:
                folded.append((first, last))
        if folded and (folded[0][0] == self.position + 1 or is_had(self.position, folded[0][0])):
            self.position = max(self.position, folded.pop(0)[1])
        self._above = folded


def _kept(request: SubscriptionRequest) -> bytes:
    """As it is put down: whose it is stands beside it, and where it began counts once."""
    return msgspec.msgpack.encode(msgspec.structs.replace(request, secret="", start=NEW))


def _in(positions: list[int], position: int) -> bool:
    at = bisect_left(positions, position)
    return at < len(positions) and positions[at] == position


def _within(intervals: list[tuple[int, int]], position: int) -> bool:
    return any(first <= position <= last for first, last in intervals)


def _any_between(positions: list[int], above: int, below: int) -> bool:
    at = bisect_left(positions, above + 1)
    return at < len(positions) and positions[at] < below


def owner_of(request_secret: str, caller: Caller | None) -> str:
    """Whose a durable subscription is. Raises AccessDeniedError for who proves nothing."""
    if caller is not None and caller.identity:
        return f"name:{caller.identity}"
    if len(request_secret) < MIN_SECRET:
        raise AccessDeniedError(
            "a durable subscription without a certificate needs a secret, which says whose it is",
            hint=f"Send one of at least {MIN_SECRET} characters",
        )
    return f"secret:{hashlib.sha256(f'jbi-pubsub durable owner 1:{request_secret}'.encode()).hexdigest()}"


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
    ) -> None:
        """`lease`: seconds that one is kept while nobody has it; `under_way`: see Archiving; `quota`: of whoever makes
        one, as long as it is known and we run. Raises StorageError."""
        self._keeping = keeping
        self._quota = quota
        self._under_way = under_way
        self._lease = lease
        self._wall = wall
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], Durable] = {}
        for consumer in keeping.consumers():
            try:
                entries = decoder_of(SubscriptionRequest).decode(consumer.request).entries
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                log.error("durable subscription %r can't be read, and makes nothing be kept: %s", consumer.name, exc)
                entries = ()
            self._known[consumer.name, consumer.owner] = known = Durable(consumer, entries, under_way)
            known.is_new = False

    def attach(
        self, request: SubscriptionRequest, caller: Caller | None, session: SubscriberSession, begin: Callable[[], int]
    ) -> Durable:
        """The one of that name, for that session; `begin()`: where a new one begins. Raises
        AccessDeniedError, ConfigurationError (its name is none, or another process has it), StorageError."""
        name, owner = request.durable, owner_of(request.secret, caller)
        if not (name.isprintable() and len(name) <= NAME_MOST):
            raise ConfigurationError(f"durable subscriptions have names of 1 to {NAME_MOST} printable characters")
        with self._lock:
            found = self._known.get((name, owner))
            if found is not None and (has := found.session) not in (None, session) and has and not has.has_gone:
                session.was_refused = True  # it is told when that may have changed
                raise ConfigurationError(
                    f"durable subscription {name!r} is open in another process of {has.name[:100]!r}",
                    hint="Close it there first, or take another name",
                )
            kept = _kept(request)
            share = self._quota.take(caller, len(kept), found.share if found is not None else NO_SHARE)
            if found is None:
                try:
                    consumer = Consumer(name, owner, kept, begin(), (), self._wall() + self._lease)
                    self._keeping.note([consumer])
                except JbiError:
                    self._quota.give_back(share)
                    raise
                found = self._known[name, owner] = Durable(consumer, request.entries, self._under_way)
            else:
                found.amend(request)
                found.is_new = False
            found.share = share
            found.attach(session)
        return found

    def detach(self, durable: Durable) -> None:
        """Nobody has it any more."""
        durable.session, durable.is_changed, durable.is_new = None, True, False
        durable.ends = self._wall() + self._lease

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
        return any(_fits(each.entries, entries) for each in list(self._known.values()))

    def note(self) -> None:
        """Put down what has changed, and forget those whose lease has run out. Now and then, and at the end. Raises
        StorageError."""
        now = self._wall()
        for durable in list(self._known.values()):
            if durable.session is None and durable.ends < now:
                log.warning("durable subscription %r ends: nobody has come for it", durable.name)
                self.cancel(durable)
            elif durable.session is not None and durable.ends < now + 0.9 * self._lease:
                durable.ends, durable.is_changed = now + self._lease, True
        changed = [durable for durable in list(self._known.values()) if durable.is_changed]
        if not changed:
            return
        try:
            self._keeping.note([durable.consumer() for durable in changed])
        except StorageError:
            for durable in changed:
                durable.is_changed = True  # again, with the next
            raise

    def status(self) -> list[dict[str, object]]:
        """Plain data."""
        return [
            {
                "name": each.name,
                "position": each.position,
                "unacknowledged": len(each._open),
                "open": each.session is not None,
                "ends": round(each.ends - self._wall(), 1),
            }
            for each in list(self._known.values())
        ]


def _fits(template: Iterable[EntryRep], entries: list[EntryRep]) -> bool:
    try:
        return all(any(matches(wanted, entry) for entry in entries) for wanted in template)
    except IncompatibleEntryError:
        return False
