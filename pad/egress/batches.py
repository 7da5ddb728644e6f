"""Batches of what goes out to one subscriber: objects, pieces of large ones, losses, and what is told of the session.

The session's lock covers all of it.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Cause, LossNotice, Parcel, Part
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.wire.stream import ParcelCut
from jbi_pubsub.pad.egress.catch_up import HELD
from jbi_pubsub.pad.egress.flights import Flights
from jbi_pubsub.pad.egress.queue import SubscriptionQueue, Waiting
from jbi_pubsub.pad.egress.queues import SessionQueues
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.deliveries import (
    ASK_AGAIN,
    CHUNK,
    COUNT_MOST,
    END,
    FINISHED,
    ITEM,
    LAST_CHUNK,
    LOSS,
    OBJECT,
    PLACED,
    POSITION,
    QUALITY,
    SHARED,
    SHARED_MOST,
)

log = logging.getLogger("jbi_pubsub.pad")

Parts = tuple[Part, ...]


class SessionNotices:
    """Notices of a session's state, which go out behind its objects."""

    def __init__(self) -> None:
        self.was_refused = False
        """Access to something that it wants."""
        self.is_to_ask = False
        """ASK_AGAIN is to go out."""
        self.is_parting = False
        """END is to go out behind all else."""
        self.granted: dict[int, Callable[[], GrantedQos]] = {}
        """Subscriptions that are to be told what they have got, by number, and what that is by then."""
        self.expelled: deque[Subscription] = deque()
        """Subscriptions whose end is to be told."""

    @property
    def is_waiting(self) -> bool:
        """Whether something is to go out, whatever else waits. Asked without the lock, too."""
        return bool(self.granted or self.expelled or self.is_to_ask)

    def take(self, most: int, *, is_last: bool) -> list[Parts]:
        """So many at most; `is_last`: nothing else waits."""
        items: list[Parts] = []
        while self.expelled and len(items) < most - 1:
            items += _end_of(self.expelled.popleft())
        if self.is_to_ask and len(items) < most:
            self.is_to_ask = False
            items.append((ITEM.pack(END, ASK_AGAIN),))
        if self.is_parting and is_last and len(items) < most:
            self.is_parting = False
            items.append((ITEM.pack(END, 0),))
        return items

    def take_granted(self, most: int) -> list[Parts]:
        """Take what has been granted, of so many subscriptions at most."""
        items: list[Parts] = []
        while self.granted and len(items) < most:
            number, given = self.granted.popitem()
            items.append((ITEM.pack(QUALITY, number), msgspec.msgpack.encode(given())))
        return items


class Batches:
    """The next batch of what waits: ready subscriptions take turns."""

    def __init__(self, queues: SessionQueues, flights: Flights, notices: SessionNotices, chunk: int) -> None:
        """`chunk`: see [link] chunk."""
        self.queues = queues
        self.flights = flights
        self.notices = notices
        self.size_of_chunk = self.piece = chunk
        """Bytes of the largest item, and of a piece of a larger object, if there is room for no more."""
        self.freed = 0
        """Bytes that the current batch has taken out of queues."""

    def take(self, max_items: int, max_bytes: int, levels: int = 1) -> list[Parts]:  # noqa: ARG002 - there is one level
        """Take what goes out next. On the hub's thread, or on one that offers."""
        items: list[Parts] = []
        size = 0
        ready = self.queues.ready
        self.freed = 0
        while ready and len(items) < max_items and size < max_bytes:
            queue = ready.popleft()
            queue.ready = False
            size += self.take_turn(queue, items, max_items, max_bytes - size)
            self.queues.make_ready(queue)
        self.take_notices(items, max_items)
        return items

    def take_notices(self, items: list[Parts], max_items: int) -> None:
        """Put what is told of the session behind them; then count the totals."""
        queues, notices = self.queues, self.notices
        count = len(items)
        if notices.granted:
            items += notices.take_granted(max_items - count)
        if queues.ending:
            self._take_ends(items, max_items)
        if notices.is_waiting or notices.is_parting:
            items += notices.take(max_items - len(items), is_last=not queues.ready)
        if len(items) > count:
            self.flights.add((), len(items) - count)
        self.flights.delay.sent(len(items), self.flights.clock)
        queues.charge(-self.freed)
        queues.changed.notify_all()  # room for those who wait under `block`

    def _take_ends(self, items: list[Parts], max_items: int) -> None:
        """Take the ends of queries whose last result has gone."""
        queues = self.queues
        for queue in [each for each in queues.ending if each.has_gone_out]:
            if len(items) >= max_items:
                break
            told = queues.ending.pop(queue)
            del queues.by_number[queue.subscription.number]
            items.append((ITEM.pack(FINISHED, queue.subscription.number), told))
            queue.wake_feed()

    def take_turn(self, queue: SubscriptionQueue, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """Put what goes out next of that queue behind `items`; its bytes."""
        if self.queues.is_expiring and queue.cutting is None:
            self._drop_expired(queue)
        if queue.cutting is not None:
            item = self.next_chunk(queue, max(self.piece, max_bytes))
        elif queue.untold:
            item = self.next_loss(queue)
        elif not queue.may_send():
            return 0
        elif queue.front.head().parcel.size > self.size_of_chunk:
            item = self.begin_chunks(queue, max(self.piece, max_bytes))
        else:
            return self._take_run(queue, items, max_items, max_bytes)
        items.append(item)
        return sum(map(len, item))

    def _drop_expired(self, queue: SubscriptionQueue) -> None:
        """Lose what is first and has waited too long."""
        now, count = self.queues.clock(), 0
        while queue.waiting and queue.state is not HELD and 0.0 < (parcel := queue.front.head().parcel).expires <= now:
            queue.leaves(parcel)
            self.queues.free(queue.drop_oldest())
            count += 1
        if count:
            self.queues.lose(queue, Cause.EXPIRED, count)

    def next_loss(self, queue: SubscriptionQueue) -> Parts:
        """The notice of one of its losses."""
        cause, count = queue.untold.popitem()
        self.flights.add((), 1)
        why = queue.subscription.set_aside if cause == Cause.REFUSED else ""
        return _loss_of(queue.subscription, Cause(cause), min(count, COUNT_MOST), why)

    def _take_run(self, first: SubscriptionQueue, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """A run of objects, each once for all subscriptions that are ready for it now; the others get it by itself. It
        is one object if anybody else is ready, whose turn it is then."""
        front = first.front
        waiting: Waiting = front.head()
        queues = waiting.queues
        others = queues[SHARED_MOST:] or ()
        together = [first]
        if len(queues) > 1:
            together += [one for one in queues if one is not first and one.is_next(waiting)][: SHARED_MOST - 1]
        fronts = [queue.front for queue in together[1:]]
        most = 1
        if not self.queues.is_expiring and len(self.queues.ready) == sum(queue.ready for queue in together):
            lengths = [len(one) for one in (front, *fronts)]
            most = min(max_items - len(items), *lengths, *[queue.credit for queue in together])
        head, is_placed = item_head(together), first.feed is not None
        count = size = sent = 0
        while True:
            parcel = waiting.parcel
            if is_placed:
                head = placed_head(first, parcel)
            front.take()
            for other in fronts:
                other.take()
            waiting.places -= len(together)
            waiting.queues = others
            if waiting.places == 0:
                self.freed += parcel.size
            items.append((head, *parcel.parts))
            count += 1
            size += parcel.size
            sent += len(head) + parcel.size
            if count >= most or sent >= max_bytes:
                break
            waiting = front.head()
            if waiting.queues != queues or waiting.parcel.size > self.size_of_chunk:
                break
            if fronts and any(other.head() is not waiting for other in fronts):
                break
        for queue in together:
            queue.took(count, size)
        self.flights.add(tuple([queue.subscription for queue in together]) if first.counted else (), count)
        return sent

    def begin_chunks(self, queue: SubscriptionQueue, size: int) -> Parts:
        """The first piece, of about that size, of the large object that goes out next."""
        waiting: Waiting = queue.front.take()
        waiting.places -= 1
        queue.took(1, waiting.parcel.size)
        self.freed += waiting.parcel.size if waiting.places == 0 else 0
        queue.goes(waiting.parcel)
        queue.cutting = ParcelCut(waiting.parcel)
        return self.next_chunk(queue, size)

    def next_chunk(self, queue: SubscriptionQueue, size: int) -> Parts:
        """The next piece of a large object."""
        cut = queue.cutting
        assert cut is not None
        try:
            pieces, is_last = cut.take(size)
        except StorageError as exc:  # its subscriber is told so in place of the rest
            log.error("subscription %s: the rest of an object is lost: %s", queue.subscription.uid, exc)
            queue.cutting = None
            self.queues.lose(queue, Cause.STORAGE)
            return self.next_loss(queue)
        if is_last:
            queue.cutting = None
        self.flights.add(queue.counted if is_last else (), 1)
        head = ITEM.pack(LAST_CHUNK if is_last else CHUNK, queue.subscription.number)
        return head + POSITION.pack(cut.parcel.position) if queue.feed is not None else head, *pieces


def item_head(together: Sequence[SubscriptionQueue]) -> bytes:
    """Head of an object's item, for those subscriptions."""
    numbers = [queue.subscription.number for queue in together]
    if len(numbers) == 1:
        return ITEM.pack(OBJECT, numbers[0])
    return ITEM.pack(SHARED, len(numbers)) + struct.pack(f"!{len(numbers)}I", *numbers)


def placed_head(queue: SubscriptionQueue, parcel: Parcel) -> bytes:
    """Head of an object's item whose queue is placed; the object goes out now."""
    queue.goes(parcel)
    return ITEM.pack(PLACED, queue.subscription.number) + POSITION.pack(parcel.position)


def _loss_of(subscription: Subscription, cause: Cause, count: int, why: str) -> Parts:
    notice = LossNotice(subscription.uid, cause, count, why)
    return ITEM.pack(LOSS, subscription.number), msgspec.msgpack.encode(notice)


def _end_of(subscription: Subscription) -> tuple[Parts, Parts]:
    loss = _loss_of(subscription, Cause.REFUSED, 0, "access was withdrawn")
    return loss, (ITEM.pack(END, subscription.number),)
