"""Feeds of queues from an archive, and the thread that serves them.

Rules:
- QueryResults are taken from the archive as far as the queue has room, which its subscriber's credit gives (`bound`).
  Nothing piles up here, and turns, chunks, levels and links are those of other queues.
- One thread a delegate, started when it is first needed, moves results: some from each feed in turn, for some ms at
  most, with a pause as long behind: live objects do not wait for it.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.agenda import Agenda
from jbi_pubsub.core.errors import BackPressureError, ProtocolError, StorageError
from jbi_pubsub.core.guard import guarded, note
from jbi_pubsub.core.history import Progress, QueryResult
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.matching.dissemination import Disseminated, Seal, disseminate
from jbi_pubsub.pad.model.quality import Shaping
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.pad.past.store_protocol import QueryResults

SLICE_SECONDS: Final = 0.005
"""Length of one feed's turn: some hundred objects."""
TAKEN_MOST: Final = 100
"""Results that are taken at once."""
TAKEN_BYTES: Final = 1 << 20
AGAIN_SECONDS: Final = 0.05
"""Until a feed is looked at again for which the delegate has no memory, which nobody tells of."""


class ArchiveFeed(ABC):
    """Source of one queue. `serve`, and what it calls, is of the thread."""

    def __init__(self, thread: FeedThread, session: SubscriberSession, subscription: Subscription) -> None:
        self.thread = thread
        self.session = session
        self.subscription = subscription

    @property
    def key(self) -> tuple[str, int]:
        """Session and number."""
        return self.session.session_id, self.subscription.number

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether something is to come of it yet."""

    @property
    def patience(self) -> float:
        """Seconds until it is to be looked at, whatever happens."""
        return math.inf

    def wake(self) -> None:
        """See WakeFeed."""
        self.thread.wake(self)

    def serve(self) -> None:
        """Move some of its results."""
        clock = self.thread.clock
        until = clock() + SLICE_SECONDS
        while self.is_open:
            count, size = self.session.feeds.room(self.subscription)
            if count < 0:
                self.part()
                return
            results = self.prepare()
            if results is None or not count:
                return
            if not size:
                self.thread.wake(self, AGAIN_SECONDS)
                return
            progress = results.progress()
            found = results.take(min(count, TAKEN_MOST), min(size, TAKEN_BYTES))
            if found:
                self.bring(found)
            elif progress.state == "running" or not self.conclude(progress):
                return
            if clock() >= until:
                self.wake()
                return

    @abstractmethod
    def prepare(self) -> QueryResults | None:
        """Results that the next ones come from; None: not now."""

    @abstractmethod
    def conclude(self, progress: Progress) -> bool:
        """All of them have come, with that outcome: whether it goes on."""

    @abstractmethod
    def part(self) -> None:
        """Its queue is gone."""

    @abstractmethod
    def fail(self) -> None:
        """Go on, or end, behind a fault of ours."""

    def wants(self, position: int) -> bool:  # noqa: ARG002  # that of others
        """Whether a result of that position is to go into the queue."""
        return True

    @property
    def is_stale(self) -> bool:
        """Whether its results are of former terms."""
        return False

    def bring(self, found: list[QueryResult]) -> int:
        """Results to the queue, as its filter and shapes leave them; how many. What is behind an amendment is taken
        out of `found`: it is looked for again."""
        subscription = self.subscription
        parcels: list[Parcel] = []
        for at, each in enumerate(found):
            try:
                result = self.thread.disseminated(each, subscription)
            except (ProtocolError, StorageError, BackPressureError) as exc:
                note("reading an object of the archive", exc)
                self.session.lose(subscription, Cause.STORAGE)
                continue
            if self.is_stale:
                del found[at:]
                break
            if not self.wants(each.position):
                continue
            subscription.matched += len(result.suppressed) + len(result.oversize)
            subscription.suppressed += len(result.suppressed)
            for _ in result.oversize:
                self.session.lose(subscription, Cause.OVERSIZE)
            parcels += [selected.parcel for selected in result.selected]
        self.thread.results += len(parcels)
        self.session.feeds.put(subscription, parcels)
        return len(parcels)


class FeedThread:
    """See the module. `_changed` covers what waits."""

    def __init__(
        self,
        name: str,
        whole: Callable[[QueryResult], Parcel],
        *,
        seal: Seal | None = None,
        shaper: Shaping | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`whole` makes an object of a result, or raises ProtocolError, StorageError, BackPressureError; `seal` says
        what was cut, `shaper` shapes it."""
        self.name: Final = name
        self.clock: Final = clock
        self.results = 0
        """Objects that feeds have brought."""
        self._whole = whole
        self._seal = seal
        self._shaper = shaper
        self._changed = threading.Condition()
        self._turns = Agenda[ArchiveFeed]()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def start(self) -> None:
        """Begin, if nobody has: there is something to do."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self.name, daemon=True)
                thread.start()
                self._thread = thread

    def wake(self, feed: ArchiveFeed, seconds: float = 0.0) -> None:
        """Give a turn to a feed in so many seconds at the latest."""
        with self._changed:
            when = self.clock() + seconds
            if feed not in self._turns or when < self._turns.time(feed):
                self._turns.set_time(feed, when)
                self._changed.notify_all()

    def disseminated(self, found: QueryResult, subscription: Subscription) -> Disseminated:
        """A result as a subscription's filter and shapes leave it. Raises as `whole`."""
        parcel = self._whole(found)
        parcel.position = found.position
        return disseminate(parcel, [subscription], self._seal, self._shaper)

    @property
    def is_stopping(self) -> bool:
        """Whether nothing is begun any more."""
        return self._is_stopping

    def stop(self, timeout: float) -> None:
        """Serve nobody any more."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _run(self) -> None:
        while (feed := self._next()) is not None:
            self._serve(feed)

    def _serve(self, feed: ArchiveFeed) -> None:
        began, has_failed = self.clock(), True
        with guarded(self.name):
            feed.serve()
            has_failed = False
            time.sleep(min(SLICE_SECONDS, self.clock() - began))
        if has_failed:
            feed.fail()  # it does not come again and again
        if feed.is_open:
            self.wake(feed, feed.patience)
        else:
            with self._changed:
                self._turns.discard(feed)

    def _next(self) -> ArchiveFeed | None:
        """The feed whose turn it is, as soon as there is one; None: there will be none."""
        with self._changed:
            while not self._is_stopping:
                now = self.clock()
                if (feed := self._turns.pop(now)) is not None:
                    return feed
                self._changed.wait(min(60.0, self._turns.first() - now))
        return None
