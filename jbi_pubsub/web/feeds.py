"""Subscriptions of HTTP clients: what waits for each, numbered, until it has read it.

Theory of operation: a Feed is the listener of a subscription. It holds a few events that the client has not read; when
it is full its listener waits, and objects wait where they do for every slow subscriber: in the queue of the
subscription, and at the delegate, under their bounds, with their account of losses. Events that the client was given
stay for a while, so that a connection that is cut costs nothing: who comes back says what it had last.

A feed that nobody reads for IDLE_SECONDS ends.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Final

from jbi_pubsub.core.errors import BackPressureError, UnknownUidError
from jbi_pubsub.core.info_object import InfoObject, LossNotice
from jbi_pubsub.core.loop_signal import LoopSignal
from jbi_pubsub.core.wire.places import PeerShares
from jbi_pubsub.subscriber import SubscriptionUid

FEEDS_MOST: Final = 85
"""Subscriptions at once, of one peer 64; each may hold up a thread of the adapter, which has 128 for slow listeners."""
WAITING: Final = 256
"""Events of a feed that nobody has read."""
WAITING_BYTES: Final = 1 << 20
"""Their bytes; one event may be larger."""
KEPT: Final = 256
"""Events that were read, kept for who comes back."""
KEPT_BYTES: Final = 1 << 20
IDLE_SECONDS: Final = 30.0
"""Time that a feed waits for its client to come back."""
TURN_SECONDS: Final = 1.0
"""The longest that a condition is awaited at a time."""


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An object, or what was lost."""

    number: int
    what: InfoObject | LossNotice

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return len(self.what.metadata) + self.what.payload_size if isinstance(self.what, InfoObject) else 200


class EventQueue:
    """Events in their order, and their bytes."""

    def __init__(self) -> None:
        self.events: deque[FeedEvent] = deque()
        self.size = 0

    def add(self, events: Iterable[FeedEvent]) -> None:
        """Put them behind all others."""
        for event in events:
            self.events.append(event)
            self.size += event.size

    def put_back(self, events: Sequence[FeedEvent]) -> None:
        """Put them before all others, in their order."""
        self.events.extendleft(reversed(events))
        self.size += sum(event.size for event in events)

    def pop(self) -> FeedEvent:
        """Take the first one."""
        event = self.events.popleft()
        self.size -= event.size
        return event

    def clear(self) -> list[FeedEvent]:
        """Take all."""
        taken = list(self.events)
        self.events.clear()
        self.size = 0
        return taken


class EventFeed:
    """One subscription's events. The listener's side blocks; the reader's is of the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, peer: str = "", terms: Mapping[str, Any] | None = None
    ) -> None:
        self.peer = peer
        """Owner of the feed."""
        self.terms = terms or {}
        """Terms that its subscription was asked for with."""
        self.key = token_hex(16)
        """Whoever knows it may read."""
        self.uid: SubscriptionUid | None = None
        self.is_placed = False
        """Whether the last object has come with a position, by which its client can go on without it."""
        self.given = 0
        """Number of the last event that its client was given."""
        self.is_ending = False
        self._changed = threading.Condition()
        self._waiting = EventQueue()
        self._kept = EventQueue()
        self._closed = False
        self._readers = 0
        self._reader = 0
        self._read_at = time.monotonic()
        self._come = LoopSignal(loop)

    # -- the adapter's side -------------------------------------------------------------------------------------

    def arrived(self, _subscription: SubscriptionUid, obj: InfoObject) -> None:
        """An object has come; returns when there is room for the next."""
        self._put(obj)

    def lost(self, _subscription: SubscriptionUid, notice: LossNotice) -> None:
        """Objects were lost."""
        self._put(notice)

    def _put(self, what: InfoObject | LossNotice) -> None:
        with self._changed:
            waiting = self._waiting
            while not self._closed and (len(waiting.events) >= WAITING or waiting.size >= WAITING_BYTES):
                self._changed.wait(TURN_SECONDS)
            if self._closed:
                return
            is_first = not waiting.events
            waiting.add([FeedEvent(self.last_number + 1, what)])
        if is_first:
            self._come.set()

    @property
    def last_number(self) -> int:
        """Number of the last event that has come: those that were given end with `given`."""
        return self._waiting.events[-1].number if self._waiting.events else self.given

    # -- the client's side --------------------------------------------------------------------------------------

    def begin(self) -> int:
        """A reader comes, instead of the one before: its number."""
        with self._changed:
            self._readers += 1
            self._reader += 1
            reader = self._reader
        self._come.set()
        return reader

    def end(self) -> None:
        """A reader leaves."""
        with self._changed:
            self._readers -= 1
            self._read_at = time.monotonic()

    def go_back(self, after: int) -> int:
        """The client has had all up to this number: what came later comes again. How many are not there any more."""
        with self._changed:
            again = [event for event in self._kept.clear() if event.number > after]
            waiting = [*again, *self._waiting.events]
            first = waiting[0].number if waiting else self.last_number + 1
            self.given = first - 1
            self._waiting.put_back(again)
            return max(0, first - after - 1)

    async def take(self, reader: int, most: int, timeout: float) -> list[FeedEvent] | None:
        """The next events, at least one unless `timeout` seconds are over; None when the feed, or the turn of this
        reader, is over."""
        until = time.monotonic() + timeout
        while True:
            self._come.clear()
            with self._changed:
                if self._closed or reader != self._reader:
                    return None
                found: list[FeedEvent] = []
                size = 0
                while self._waiting.events and len(found) < most and size < WAITING_BYTES:
                    found.append(self._waiting.pop())
                    size += found[-1].size
                self._keep(found)
                self._changed.notify_all()
            left = until - time.monotonic()
            if found or left <= 0:
                return found
            try:
                await asyncio.wait_for(self._come.wait(), left)
            except TimeoutError:
                return []

    def _keep(self, events: list[FeedEvent]) -> None:
        """Those that were given last stay in any case."""
        if not events:
            return
        self.given = events[-1].number
        kept = self._kept
        kept.add(events)
        while len(kept.events) > len(events) and (len(kept.events) > KEPT or kept.size > KEPT_BYTES):
            kept.pop()

    def close(self) -> None:
        """No more events; who waits is told."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._kept.clear()
            self._changed.notify_all()
        self._come.set()

    def is_read_by(self, reader: int) -> bool:
        """Whether no other has come since."""
        return reader == self._reader

    @property
    def is_idle(self) -> bool:
        """Whether nobody has read for long, or it could not be ended yet."""
        with self._changed:
            return self._closed or (not self._readers and time.monotonic() - self._read_at > IDLE_SECONDS)


class EventFeeds:
    """All feeds. Calls of the adapter block, and are made by `call`, which runs them elsewhere. Of the event loop."""

    def __init__(self, call: Callable[..., Any], adapter: Callable[[], Any]) -> None:
        self._call = call
        self._adapter = adapter
        self._feeds: dict[str, EventFeed] = {}
        self._shares = PeerShares(FEEDS_MOST, "too many subscriptions are open")

    def __len__(self) -> int:
        return self._shares.taken

    async def open(self, peer: str, **asked: Any) -> EventFeed:
        """A new subscription (as `register_subscriber`) of `peer`. Raises BackPressureError when there are too many,
        and what it raises."""
        self._shares.take(peer)
        feed = EventFeed(asyncio.get_running_loop(), peer=peer, terms=asked)
        try:
            feed.uid = await self._call(lambda: self._adapter().register_subscriber(listener=feed, **asked))
        except BaseException:
            self._shares.give(peer)
            raise
        self._feeds[feed.key] = feed
        return feed

    def find(self, key: str, asked: Mapping[str, Any] | None = None) -> EventFeed:
        """The feed of that key, and, where these are given, of these terms. Raises UnknownUidError."""
        known = self._feeds.get(key)
        if known is None or known.is_ending or asked not in (None, known.terms):
            raise UnknownUidError(
                f"no subscription {key[:40]!r}", hint="It has ended, or no client has read it for long"
            )
        return known

    async def end(self, feed: EventFeed) -> None:
        """Cancel its subscription. Where there is no room for that it counts until `end_idle` comes to it."""
        if feed.is_ending or feed.key not in self._feeds:
            return
        feed.close()
        feed.is_ending = True
        try:
            await self._call(lambda: self._adapter().cancel_subscription(feed.uid))
        except BackPressureError:
            feed.is_ending = False
            raise
        except UnknownUidError:
            pass  # the adapter has ended it
        if self._feeds.pop(feed.key, None) is not None:
            self._shares.give(feed.peer)

    async def end_idle(self) -> None:
        """Those that nobody reads."""
        for feed in [each for each in self._feeds.values() if each.is_idle]:
            await self.end(feed)

    def close(self) -> None:
        """Wake all that wait; the adapter closes next."""
        for each in self._feeds.values():
            each.close()
        self._feeds.clear()
