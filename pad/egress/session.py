"""Delivery to subscribers: one session a subscriber process, one queue a subscription (see queue.py).

Rules:
- Order is kept per subscription; ready subscriptions of a session take turns.
- Credits end to end: a subscription has at most `bound` objects with its subscriber that the application has not
  consumed; beyond that they wait here, again at most `bound`; beyond that the policy decides.
- Each loss is counted under one cause and told in band, before the next object.
- A session without a connection keeps its queues while its lease lives.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from jbi_pubsub.core.errors import ProtocolError, StorageError
from jbi_pubsub.core.info_object import Cause, LossNotice, Parcel, Part
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire.deflate import Compression, described
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, chunks
from jbi_pubsub.pad.egress.queue import (
    Backlog,
    Budget,
    Delay,
    Feed,
    Flight,
    Replay,
    SubscriptionQueue,
    Tracked,
    Waiting,
)
from jbi_pubsub.pad.model.subscription import Subscription, shown
from jbi_pubsub.protocol.deliveries import (
    ASK_AGAIN,
    CHUNK,
    COUNT_MOST,
    END,
    FINISHED,
    ITEM,
    LAST_CHUNK,
    LOSS,
    NOTHING_HEARD,
    OBJECT,
    PLACED,
    POSITION,
    QUALITY,
    SHARED,
    SHARED_MOST,
    Heard,
)

log = logging.getLogger("jbi_pubsub.pad")


Parts = tuple[Part, ...]

Delivery = tuple[Subscription, Parcel]
"""An object for a subscription."""


class Ready(Protocol):
    """Queues that can send something, in the order of their turns."""

    def append(self, queue: SubscriptionQueue, /) -> None:
        """Its turn comes behind the others."""
        ...

    def popleft(self) -> SubscriptionQueue:
        """Whose turn it is."""
        ...

    def clear(self) -> None:
        """Nobody's."""
        ...

    def __len__(self) -> int: ...


class SubscriberSession:
    """Everything that goes to one subscriber process. Any thread may offer; `_changed` covers all state."""

    def __init__(
        self,
        session_id: str,
        *,
        name: str,
        budget: Budget,
        hub: SenderHub,
        chunk: int = CHUNK_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`chunk`: see [link] chunk."""
        self._budget = budget
        self._chunk = chunk
        self.session_id = session_id
        self.name = name
        self._clock = clock
        self.caller: Caller | None = None
        """Who has opened it."""
        self.opened = 0.0
        """When, by the delegate's clock."""
        self.lease_id = ""
        self._changed = threading.Condition()
        self._queues: dict[int, SubscriptionQueue] = {}
        self._ready: Ready = deque[SubscriptionQueue]()
        self._delay = Delay()
        self._flying: deque[Flight] = deque()
        """Whose delivery the items under way complete."""
        self._closed = False
        self.was_refused = False
        """Access to something that it wants."""
        self._is_to_ask = False
        """ASK_AGAIN is to go out."""
        self._granted: dict[int, Callable[[], GrantedQos]] = {}
        """Subscriptions that are to be told what they have got, by number, and what that is by then."""
        self._finished: dict[SubscriptionQueue, bytes] = {}
        """Queries that have ended, with what is told of that behind their last result."""
        self._expelled: deque[Subscription] = deque()
        """Whose end is to be told."""
        self._parting = False
        """END is to go out behind all else."""
        self._freed = 0
        """Bytes that the current `take` has taken out of queues."""
        self._bytes = 0
        """That wait in all queues; an object counts once."""
        self._sender = HubSender(hub, take=self._take, acked=self._acked, batch_bytes=chunk)
        self.is_expiring = False
        """Some of what waits here may expire, or did."""

    def add(self, subscription: Subscription, *, held: bool = False) -> None:
        """Open the subscription's queue; `held`: nothing goes out before `catch_up`."""
        with self._changed:
            self._queues[subscription.number] = self._new_queue(subscription, held=held)

    def _new_queue(self, subscription: Subscription, *, held: bool) -> SubscriptionQueue:
        return SubscriptionQueue(subscription, held=held)

    def add_query(self, query: Subscription, feed: Feed) -> None:
        """Open a queue that `feed` fills as there is room (`room`, `put`), until it is `finished`."""
        self.add(query)
        with self._changed:
            queue = self._queues[query.number]
            queue.feed, queue.counted = feed, ()

    def add_replay(self, subscription: Subscription, feed: Feed, durable: Tracked | None = None) -> None:
        """Open the queue of a subscription that catches up with an archive by `feed`. Nothing of what is kept comes to
        it live before `rearm`; nothing goes out before `catch_up`. One that is `durable` catches up again whenever its
        queue is full."""
        self.add(subscription, held=True)
        with self._changed:
            queue = self._queues[subscription.number]
            queue.feed, queue.replay = feed, Replay(durable)

    def rearm(self, subscription: Subscription, target: int) -> None:
        """The feed brings all that is kept up to that position, where positions stand now."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is not None and queue.replay is not None:
                self._charge(-queue.replay.give_up())
                queue.replay.target, queue.replay.is_overrun = target, False

    def go_live(self, subscription: Subscription) -> Literal["live", "overrun", "full"]:
        """The feed has brought all up to its target: what is behind goes to the queue, and all that comes. "overrun":
        that was too much, it is to be armed again; "full": not before half of its queue is free, as from then on its
        policy may lose what waits."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is None or queue.replay is None:
                return "live"
            replay = queue.replay
            if replay.is_overrun:
                return "overrun"
            if replay.durable is not None and not queue.waiting and not replay.behind and not replay.is_live:
                replay.durable.passed(replay.target)
            if replay.is_live:
                return "live"
            if queue.waiting and queue.waiting + len(replay.behind) > queue.bound // 2:
                return "full"
            replay.is_live = True
            replay.past = max([replay.target, *(parcel.position for parcel in replay.behind)])
            behind, replay.behind = replay.behind, []
            self._charge(-replay.size)
            replay.size = 0
            self._put(queue, behind)
            if replay.durable is not None:
                replay.durable.fed(replay.target, math.inf)
        self._sender.ready()
        return "live"

    def fall_back(self, subscription: Subscription, after: int) -> None:
        """A durable one is to have all behind that position again, as far as it is not acknowledged."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is not None and queue.replay is not None:
                self._fall_back(queue, after + 1)
                queue.replay.again_from = after

    def again_from(self, subscription: Subscription) -> int:
        """Where the feed is to go on, told once; -1: where it is."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is None or queue.replay is None:
                return -1
            found, queue.replay.again_from = queue.replay.again_from, -1
            return found

    def _fall_back(self, queue: SubscriptionQueue, position: int) -> None:
        """What waits of a durable one is too much: it comes by its feed, with that object and all behind it."""
        replay = queue.replay
        assert replay is not None
        assert queue.feed is not None
        assert replay.durable is not None
        freed = lost = 0
        dropped: list[int] = []
        while queue.waiting:
            waiting = queue.drop_oldest()
            freed += waiting.parcel.size if waiting.places == 0 else 0
            if waiting.parcel.position:
                queue.subscription.matched -= 1
                dropped.append(waiting.parcel.position)
            else:
                lost += 1
        self._charge(-freed - replay.give_up())
        if lost:
            self._lose(queue, Cause.QUEUE_OVERFLOW, lost)
        after = replay.durable.back(position, dropped)
        replay.again_from = after if replay.again_from < 0 else min(replay.again_from, after)
        replay.is_live, replay.past = False, math.inf
        queue.feed.wake()

    def _comes_behind(self, queue: SubscriptionQueue, parcel: Parcel) -> bool:
        """What is kept, for a queue that catches up: whether it is dealt with."""
        replay = queue.replay
        assert replay is not None
        if not parcel.position:
            return parcel.was_kept  # before it came: the feed brings it, or did, or it is not wanted
        if replay.is_live and parcel.position > replay.target:
            if replay.durable is None or not self._is_full(queue):
                return False
            self._fall_back(queue, parcel.position)
            return True
        if parcel.position <= replay.target or replay.is_overrun:
            return True  # the feed brings it
        is_too_much = len(replay.behind) > queue.bound // 2 or queue.waiting_bytes + replay.size >= self._budget.share
        if is_too_much or self._bytes >= self._budget.session_share or self._budget.used >= self._budget.limit:
            self._charge(-replay.give_up())
            return True
        replay.behind.append(parcel)
        replay.size += parcel.size
        self._charge(parcel.size)
        return True

    @property
    def queries(self) -> int:
        """How many have not told that they have ended."""
        with self._changed:
            return sum(not queue.counted for queue in self._queues.values())

    def has(self, subscription: Subscription) -> bool:
        """Whether its queue is open."""
        with self._changed:
            return subscription.number in self._queues

    def room(self, subscription: Subscription) -> tuple[int, int]:
        """How many objects a feed may put now, and of how many bytes in all; (-1, 0): its queue is gone. Bytes may be
        short when there is room for objects: nobody tells when that changes. A query's that was `finish`ed has none."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is None or queue in self._finished:
                return -1, 0
            if queue.held:
                return 0, 0
            budget = self._budget
            most = min(budget.share - queue.waiting_bytes, budget.session_share - self._bytes)
            return max(0, queue.room), max(0, min(most, budget.limit - budget.used))

    def put(self, subscription: Subscription, parcels: Sequence[Parcel]) -> None:
        """What a feed brings, within its room."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is None or queue in self._finished:
                return
            self._put(queue, parcels)
        self._sender.ready()

    def _put(self, queue: SubscriptionQueue, parcels: Sequence[Parcel]) -> None:
        queue.subscription.matched += len(parcels)
        self._charge(sum(parcel.size for parcel in parcels))
        for parcel in parcels:
            queue.enters(parcel)
            queue.put(Waiting(parcel), parcel.size)
        self._make_ready(queue)

    def finish(self, query: Subscription, told: bytes, *, drop: bool = False) -> None:
        """A query has ended: that is told when its results have gone out; at once, if those that wait are dropped."""
        with self._changed:
            queue = self._queues.get(query.number)
            if queue is None or queue in self._finished:
                return
            if drop:
                self._empty(queue)
                queue.untold.clear()
            self._finished[queue] = told
        self._sender.ready()

    @property
    def _is_finished(self) -> bool:
        """Whether the end of a query can be told now. Asked without our lock, too."""
        return any(not (queue.held_up or queue.untold) for queue in tuple(self._finished))

    def catch_up(self, joiners: Iterable[tuple[Subscription, Backlog, int]]) -> None:
        """Let late joiners go: each gets its backlog, and is told first how many objects it has missed; then what has
        come meanwhile. All in one step, so that what several of them get goes over the link once. A backlog that there
        is no room for is lost, and told: publishers do not wait for it."""
        with self._changed:
            for subscription, backlog, missed in joiners:
                queue = self._queues.get(subscription.number)
                if queue is None:  # cancelled meanwhile: it is owed nothing any more
                    continue
                subscription.matched += len(backlog) + backlog.dropped
                size = sum(waiting.parcel.size for waiting in backlog if waiting.places == 0)
                if self._bytes + size > self._budget.session_share or self._budget.used + size > self._budget.limit:
                    backlog.drop_all()
                    size = 0
                subscription.replayed += len(backlog)
                dropped = backlog.dropped
                queue.catch_up(backlog)
                self._charge(size)
                while queue.waiting > queue.bound and self._policy(queue) == "drop_oldest":
                    self._drop_oldest(queue)
                    dropped += 1
                for cause, count in ((Cause.MISSED, missed), (Cause.QUEUE_OVERFLOW, dropped)):
                    if count:
                        self._lose(queue, cause, count)
                self._make_ready(queue)
                if queue.feed is not None:
                    queue.feed.wake()
            self._changed.notify_all()
        self._sender.ready()

    def remove(self, subscription: Subscription) -> int:
        """Close the queue; how many objects waited in it or were on their way."""
        with self._changed:
            queue = self._queues.pop(subscription.number, None)
            if queue is None:
                return 0
            queue.settle()
            waiting = queue.held_up
            for flight in self._flying:
                if subscription in flight.subscriptions:
                    waiting += flight.count
                    flight.subscriptions = tuple(s for s in flight.subscriptions if s is not subscription)
            self._empty(queue)
            queue.cutting = None
            queue.untold.clear()
            self._finished.pop(queue, None)
            if queue.feed is not None:
                queue.feed.wake()
            self._changed.notify_all()
            return waiting

    def expel(self, subscription: Subscription) -> int:
        """As `remove`, and tell the subscriber that it has ended here: it is refused now."""
        lost = self.remove(subscription)
        with self._changed:
            self._expelled.append(subscription)
            self.was_refused = True
        self._sender.ready()
        return lost

    def ask_again(self) -> None:
        """Tell the subscriber that what was refused may be allowed now, if anything was."""
        with self._changed:
            self._is_to_ask, self.was_refused = self.was_refused, False
        self._sender.ready()

    def tell_quality(self, subscription: Subscription, given: Callable[[], GrantedQos]) -> None:
        """Tell its subscriber what it has got, instead of what it had; `given` is asked when that goes out."""
        with self._changed:
            if subscription.number in self._queues:
                self._granted[subscription.number] = given
        self._sender.ready()

    def offer(
        self,
        deliveries: Sequence[Delivery],
        *,
        at_once: bool = False,
        blocked: list[Delivery] | None = None,
        waited: float = 0.0,
    ) -> list[Subscription]:
        """Queue objects, each by its subscription's policy, and have them go out; may wait up to `block_seconds` for
        those under `block`. For each that came to nothing its subscription, which is gone, and does not account for it
        any more. With `blocked` it does not wait: those that would have to are put there, in order, to be offered
        again; `waited`: how long they did.

        A batch of publications becomes a batch of deliveries here, not a wake-up and a lock each. `at_once`: this
        thread sends them, if it can (see `HubSender.send`).
        """
        gone: list[Subscription] = []
        taken = 0
        subscription: Subscription | None = None
        queue: SubscriptionQueue | None = None
        waiting: Waiting | None = None
        is_placed = False
        share, most = self._budget.share, self._budget.session_share
        with self._changed:
            for whose, parcel in deliveries:
                if whose is not subscription:  # of a run, consecutive objects for one, the queue is looked up once
                    subscription, queue = whose, self._queues.get(whose.number)
                    is_placed = queue is not None and queue.feed is not None
                    if blocked and any(before is whose for before, _ in blocked):
                        subscription = None
                        blocked.append((whose, parcel))  # behind the one before
                        continue
                if queue is None:
                    gone.append(whose)  # cancelled since the match: after the cancel returned nothing may come
                    continue
                if is_placed:
                    waiting = None  # its object goes out by itself
                    if queue.replay is not None and self._comes_behind(queue, parcel):
                        continue
                size = parcel.size
                if queue.waiting >= queue.bound or queue.waiting_bytes >= share or self._bytes >= most:
                    if blocked is not None and self._would_wait(queue, waited):
                        subscription = None
                        blocked.append((whose, parcel))
                        continue
                    has_room, stands = self._make_room(queue, parcel, waits=blocked is None)
                    subscription = None  # others may be cancelled meanwhile as well
                    if not stands:
                        gone.append(whose)
                        continue
                    if not has_room:
                        whose.meter_lost(parcel.head.type_name)
                        continue
                whose.matched += 1
                if waiting is None or waiting.parcel is not parcel:
                    waiting = Waiting(parcel)
                if waiting.places == 0:
                    taken += size
                    self._bytes += size
                if is_placed:
                    queue.enters(parcel)
                    queue.put(waiting, size)
                    waiting = None
                else:
                    queue.put(waiting, size)
                if not queue.ready:
                    self._make_ready(queue)
            self._budget.add(taken)
        if at_once:
            self._sender.send()
        else:
            self._sender.ready()
        return gone

    def _would_wait(self, queue: SubscriptionQueue, waited: float) -> bool:
        request = queue.subscription.request
        return (
            self._policy(queue) == "block"
            and not queue.held
            and waited < request.block_seconds
            and self._is_full(queue)
        )

    def _policy(self, queue: SubscriptionQueue) -> str:
        """What happens when its queue is full."""
        return queue.subscription.request.policy

    def _make_room(self, queue: SubscriptionQueue, parcel: Parcel, *, waits: bool = True) -> tuple[bool, bool]:
        """The queue, or the session's share, is full: act by the policy, for that object. (whether there is room,
        whether the subscription still stands)"""
        request, size, policy = queue.subscription.request, parcel.size, self._policy(queue)
        cause = Cause.QUEUE_OVERFLOW
        if policy == "block" and not queue.held:  # nobody waits for who is still catching up
            self._sender.ready()  # what was offered before goes out meanwhile
            has_room = self._wait_for_room(queue, request.block_seconds if waits else 0.0)
            if self._queues.get(queue.subscription.number) is not queue:
                return False, False  # cancelled while we waited: its queue is empty, but nobody takes from it
            if has_room:
                return True, True
            cause = Cause.BLOCK_TIMEOUT
        dropped, has_room = 0, False
        if policy == "drop_oldest":
            before, others_hold = queue.waiting_bytes, self._bytes >= self._budget.session_share
            wanted = size if others_hold else 0  # its own oldest make way for as much, not all for what others hold
            while queue.waiting and (queue.is_full(self._budget.share) or before - queue.waiting_bytes < wanted):
                self._drop_oldest(queue)  # many small ones may have to go for a large one
                dropped += 1
            has_room = before - queue.waiting_bytes >= wanted
        if not has_room:
            queue.subscription.matched += 1
        self._lose(queue, cause, dropped + (not has_room))
        return has_room, True

    def _is_full(self, queue: SubscriptionQueue) -> bool:
        return queue.is_full(self._budget.share) or self._bytes >= self._budget.session_share

    def _charge(self, size: int) -> None:
        self._bytes += size
        self._budget.add(size)

    def _drop_oldest(self, queue: SubscriptionQueue) -> None:
        waiting = queue.drop_oldest()
        if waiting.places == 0:
            self._charge(-waiting.parcel.size)

    def lose(self, subscription: Subscription, cause: Cause, count: int = 1) -> bool:
        """Count a loss that happened elsewhere (e-mail, a gap) and tell the subscriber. False: the subscription is
        gone, and does not account for it any more."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is not None:
                self._lose(queue, cause, count)
        self._sender.ready()
        return queue is not None

    def refuse(self, subscription: Subscription, cause: Cause) -> bool:
        """An object that it matches is lost before it is queued. False: the subscription is gone."""
        with self._changed:
            queue = self._queues.get(subscription.number)
            if queue is not None:
                subscription.matched += 1
                self._lose(queue, cause)
        self._sender.ready()
        return queue is not None

    def _take(self, max_items: int, max_bytes: int) -> list[Parts]:
        """What goes out next: ready subscriptions take turns. On the hub's thread."""
        items: list[Parts] = []
        size = 0
        with self._changed:
            self._freed = 0
            while self._ready and len(items) < max_items and size < max_bytes:
                queue = self._ready.popleft()
                queue.ready = False
                size += self._next(queue, items, max_items, max_bytes - size)
                self._make_ready(queue)
            self._take_rest(items, max_items)
        return items

    def _take_rest(self, items: list[Parts], max_items: int) -> None:
        """What is told of the session goes behind them; then the accounts."""
        while self._granted and len(items) < max_items:
            number, given = self._granted.popitem()
            self._fly((), 1)
            items.append((ITEM.pack(QUALITY, number), msgspec.msgpack.encode(given())))
        if self._finished:
            self._take_ends(items, max_items)
        while self._expelled and len(items) < max_items - 1:
            items += self._end_of(self._expelled.popleft())
        if self._is_to_ask and len(items) < max_items:
            self._is_to_ask = False
            self._fly((), 1)
            items.append((ITEM.pack(END, ASK_AGAIN),))
        if self._parting and not self._ready and len(items) < max_items:
            self._parting = False
            self._fly((), 1)
            items.append((ITEM.pack(END, 0),))
        self._delay.sent(len(items), self._clock)
        self._charge(-self._freed)
        self._changed.notify_all()  # room for those who wait under `block`

    def _take_ends(self, items: list[Parts], max_items: int) -> None:
        """Of queries whose last result has gone."""
        for queue in [each for each in self._finished if not (each.held_up or each.untold)]:
            if len(items) >= max_items:
                break
            told = self._finished.pop(queue)
            del self._queues[queue.subscription.number]
            self._fly((), 1)
            items.append((ITEM.pack(FINISHED, queue.subscription.number), told))
            if queue.feed is not None:
                queue.feed.wake()

    def attach(
        self, sock: socket.socket, position: int, close: Callable[[], None], compression: Compression | None = None
    ) -> None:
        """Deliver over that connection from now on, which `close` closes; the subscriber is at `position`."""
        self._sender.attach(sock, position, ended=close, compression=compression)

    def part(self) -> None:
        """Tell the subscriber that nothing comes any more, and that what waits is lost (shutdown)."""
        with self._changed:
            for queue in self._queues.values():
                queue.held = False
                queue.settle()
                held = queue.held_up
                self._empty(queue)
                queue.cutting = None
                if held:
                    self._lose(queue, Cause.SHUTDOWN, held)
            self._parting = True
        self._sender.ready()

    def wait_parted(self, timeout: float) -> None:
        """Wait until the subscriber has acknowledged all that, or is not connected any more; `timeout` seconds."""
        deadline = self._clock() + timeout
        with self._changed:
            while (self._parting or self._flying) and self.connected and (left := deadline - self._clock()) > 0:
                self._changed.wait(min(0.05, left))  # nobody notifies of a connection that ends

    def end(self, subscription: Subscription, cause: Cause, timeout: float) -> None:
        """Tell the subscriber that it gets no more of it, and wait until that is on its way, at most `timeout` seconds,
        or it is not connected."""
        if not self.lose(subscription, cause, 0):
            return
        deadline = self._clock() + timeout
        with self._changed:
            while (queue := self._queues.get(subscription.number)) is not None and queue.untold and self.connected:
                if (left := deadline - self._clock()) <= 0:
                    break
                self._changed.wait(min(0.02, left))  # nobody notifies of what has been told

    def sweep(self) -> None:
        """What waits may have expired: not here."""

    def close(self, cause: Cause) -> None:
        """The session is over: whatever waits is lost under `cause`."""
        with self._changed:
            self._closed = True
            for queue in self._queues.values():
                queue.settle()
                queue.subscription.lost[cause] += queue.held_up
                self._empty(queue)
                if queue.feed is not None:
                    queue.feed.wake()
            for flight in self._flying:
                for subscription in flight.subscriptions:
                    subscription.lost[cause] += flight.count
            self._queues.clear()
            self._finished.clear()
            self._ready.clear()
            self._flying.clear()
            self._changed.notify_all()
        self._sender.stop()

    def drain(self, timeout: float) -> int:
        """Wait until everything is delivered; how many objects are left after `timeout` seconds."""
        deadline = self._clock() + timeout
        with self._changed:
            while (left := self._left()) and self._clock() < deadline:
                self._changed.wait(min(0.1, max(0.0, deadline - self._clock())))
        return left

    @property
    def connected(self) -> bool:
        """Whether the subscriber is connected now."""
        return self._sender.connected

    @property
    def has_gone(self) -> bool:
        """Whether the subscriber was connected, and is not now. One whose first connection is about to be taken has
        not gone."""
        return self._sender.has_ended

    @property
    def queued(self) -> int:
        """Objects that wait in all queues of subscriptions."""
        with self._changed:
            return sum(queue.waiting for queue in self._queues.values() if queue.counted)

    @property
    def in_flight(self) -> int:
        """Objects on their way and not acknowledged, those also of which some chunks have gone; one for several
        subscriptions counts for each."""
        with self._changed:
            cut = sum(o.cutting is not None for o in self._queues.values() if o.counted)
            return self._under_way() + cut

    @property
    def delay_ms(self) -> float:
        """Milliseconds from an object's leaving its queue to its acknowledgement, lately."""
        with self._changed:
            return round(1000 * self._delay.seconds(self._clock()), 1)

    def status(self) -> dict[str, object]:
        """Plain data: connection, queue lengths."""
        with self._changed:
            return {
                "session": shown(self.session_id),
                "name": self.name,
                "connected": self.connected,
                **described(self._sender.compression),
                "in_flight": self.in_flight,
                "delay_ms": self.delay_ms,
                "queued": self.waiting(),
            }

    def waiting(self) -> dict[str, int]:
        """Objects that wait, by subscription."""
        with self._changed:
            return {o.subscription.uid: o.waiting for o in self._queues.values() if o.counted}

    def _empty(self, queue: SubscriptionQueue) -> None:
        freed = 0
        while queue.waiting:
            waiting = queue.drop_oldest()
            freed += waiting.parcel.size if waiting.places == 0 else 0
        if queue.replay is not None:
            freed += queue.replay.give_up()
        self._charge(-freed)

    def _left(self) -> int:
        return sum(queue.held_up for queue in self._queues.values() if queue.counted) + self._under_way()

    def _under_way(self) -> int:
        return sum(flight.count * len(flight.subscriptions) for flight in self._flying)

    def _fly(self, subscriptions: tuple[Subscription, ...], count: int) -> None:
        if self._flying and self._flying[-1].subscriptions == subscriptions:
            self._flying[-1].count += count
        else:
            self._flying.append(Flight(subscriptions, count))

    def _next(self, queue: SubscriptionQueue, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """Put what goes out next of that queue behind `items`; its bytes."""
        if self.is_expiring and queue.cutting is None:
            self._drop_expired(queue)
        if queue.cutting is not None:
            item = self._next_chunk(queue)
        elif queue.untold:
            item = self._next_notice(queue)
        elif not queue.may_send():
            return 0
        elif queue.front.head().parcel.size > self._chunk:
            waiting = queue.front.take()
            waiting.places -= 1
            queue.took(1, waiting.parcel.size)
            self._freed += waiting.parcel.size if waiting.places == 0 else 0
            queue.goes(waiting.parcel)
            queue.cutting = chunks(waiting.parcel.parts, self._chunk)
            queue.next_chunk = next(queue.cutting)
            item = self._next_chunk(queue)
        else:
            return self._next_run(queue, items, max_items, max_bytes)
        items.append(item)
        return sum(map(len, item))

    def _drop_expired(self, queue: SubscriptionQueue) -> None:
        """What is first and has waited too long is lost."""
        now, count = self._clock(), 0
        while queue.waiting and not queue.held and 0.0 < (parcel := queue.front.head().parcel).expires <= now:
            queue.leaves(parcel)
            self._drop_oldest(queue)
            count += 1
        if count:
            self._lose(queue, Cause.EXPIRED, count)

    def _next_notice(self, queue: SubscriptionQueue) -> Parts:
        cause, count = queue.untold.popitem()
        self._fly((), 1)
        why = queue.subscription.set_aside if cause == Cause.REFUSED else ""
        notice = LossNotice(queue.subscription.uid, Cause(cause), min(count, COUNT_MOST), why)
        return ITEM.pack(LOSS, queue.subscription.number), msgspec.msgpack.encode(notice)

    def _end_of(self, subscription: Subscription) -> tuple[Parts, Parts]:
        notice = LossNotice(subscription.uid, Cause.REFUSED, 0, "access was withdrawn")
        self._fly((), 2)
        number = subscription.number
        return (ITEM.pack(LOSS, number), msgspec.msgpack.encode(notice)), (ITEM.pack(END, number),)

    def _next_run(self, first: SubscriptionQueue, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """A run of objects, each once for all subscriptions that are ready for it now; the others get it by itself. It
        is one object if anybody else is ready, whose turn it is then."""
        front = first.front
        waiting = front.head()
        queues = waiting.queues
        others = queues[SHARED_MOST:] or ()
        together = [first]
        if len(queues) > 1:
            together += [one for one in queues if one is not first and one.is_next(waiting)][: SHARED_MOST - 1]
        fronts = [queue.front for queue in together[1:]]
        most = 1
        if not self.is_expiring and len(self._ready) == sum(queue.ready for queue in together):
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
                self._freed += parcel.size
            items.append((head, *parcel.parts))
            count += 1
            size += parcel.size
            sent += len(head) + parcel.size
            if count >= most or sent >= max_bytes:
                break
            waiting = front.head()
            if waiting.queues != queues or waiting.parcel.size > self._chunk:
                break
            if fronts and any(other.head() is not waiting for other in fronts):
                break
        for queue in together:
            queue.took(count, size)
        self._fly(tuple([queue.subscription for queue in together]) if first.counted else (), count)
        return sent

    def _next_chunk(self, queue: SubscriptionQueue) -> Parts:
        assert queue.cutting is not None
        assert queue.next_chunk is not None
        try:
            chunk, queue.next_chunk = queue.next_chunk, next(queue.cutting, None)
        except StorageError as exc:
            return self._break_off(queue, exc)
        last = queue.next_chunk is None
        if last:
            queue.cutting = None
        self._fly(queue.counted if last else (), 1)
        return chunk_head(queue, is_last=last), chunk

    def _break_off(self, queue: SubscriptionQueue, why: StorageError) -> Parts:
        """The rest of a large object can't be read: its subscriber is told so in place of that."""
        log.error("subscription %s: the rest of an object is lost: %s", queue.subscription.uid, why)
        queue.cutting = None
        self._lose(queue, Cause.STORAGE)
        return self._next_notice(queue)

    def _make_ready(self, queue: SubscriptionQueue) -> None:
        if not queue.ready and queue.may_send():
            queue.ready = True
            self._ready.append(queue)

    def _reached(self, delays: Mapping[int, tuple[int, int]]) -> None:
        """How long objects have waited for their applications: nobody asks here."""

    def _lose(self, queue: SubscriptionQueue, cause: Cause, count: int = 1) -> None:
        queue.subscription.lost[cause] += count
        queue.untold[cause] += count
        self._make_ready(queue)

    def _wait_for_room(self, queue: SubscriptionQueue, seconds: float) -> bool:
        deadline = self._clock() + seconds
        while self._is_full(queue):
            left = deadline - self._clock()
            if left <= 0 or self._closed or self._queues.get(queue.subscription.number) is not queue:
                return False
            self._changed.wait(left)
        return True

    def _acked(self, count: int, note: bytes) -> None:
        try:
            heard = decoder_of(Heard).decode(note) if note else NOTHING_HEARD
        except msgspec.DecodeError as exc:
            raise ProtocolError(f"bad acknowledgement: {exc}") from exc
        with self._changed:
            self._delay.landed(count, self._clock)
            while count and self._flying:
                flight = self._flying[0]
                arrived = min(count, flight.count)
                for subscription in flight.subscriptions:
                    subscription.delivered += arrived
                count -= arrived
                flight.count -= arrived
                if not flight.count:
                    self._flying.popleft()
            for number, total in heard.consumed.items():
                queue = self._queues.get(number)
                if queue is not None and queue.consumed < total <= queue.sent:
                    queue.taken(total)
                    self._make_ready(queue)
                    if queue.feed is not None:
                        queue.feed.wake()
            for number, positions in heard.acknowledged.items():
                queue = self._queues.get(number)
                if queue is not None and queue.acknowledged(positions):
                    self._make_ready(queue)
                    if queue.feed is not None:
                        queue.feed.wake()
            if heard.delays:
                self._reached(heard.delays)
            self._changed.notify_all()  # whoever drains
            ready = bool(self._ready)
        if ready:
            self._sender.ready()


def item_head(together: Sequence[SubscriptionQueue]) -> bytes:
    """What an object's item begins with, for those subscriptions."""
    numbers = [queue.subscription.number for queue in together]
    if len(numbers) == 1:
        return ITEM.pack(OBJECT, numbers[0])
    return ITEM.pack(SHARED, len(numbers)) + struct.pack(f"!{len(numbers)}I", *numbers)


def placed_head(queue: SubscriptionQueue, parcel: Parcel) -> bytes:
    """What an object's item begins with that goes out, and whose queue is placed."""
    queue.goes(parcel)
    return ITEM.pack(PLACED, queue.subscription.number) + POSITION.pack(parcel.position)


def chunk_head(queue: SubscriptionQueue, *, is_last: bool) -> bytes:
    """What a chunk's item begins with."""
    head = ITEM.pack(LAST_CHUNK if is_last else CHUNK, queue.subscription.number)
    return head + POSITION.pack(queue.position) if queue.feed is not None else head


class Deliveries:
    """What a batch of publications comes to, gathered by subscriber session. One thread at a time."""

    def __init__(self) -> None:
        self._by_session: dict[SubscriberSession, list[Delivery]] = {}
        self.size = 0
        """Bytes gathered; an object that goes to several counts for each."""
        self.is_expiring = False
        """Some of the objects expire."""

    def add(self, session: SubscriberSession, subscription: Subscription, parcel: Parcel) -> None:
        """One more."""
        waiting = self._by_session.get(session)
        if waiting is None:
            waiting = self._by_session[session] = []
        waiting.append((subscription, parcel))
        self.size += parcel.size

    def offer(self) -> list[Subscription]:
        """Hand all to their sessions; what came to nothing, see `SubscriberSession.offer`."""
        gathered, self._by_session, self.size = self._by_session, {}, 0
        if self.is_expiring:
            for session in gathered:
                session.is_expiring = True
        alone = len(gathered) == 1  # several sessions cost one wake-up of the hub, and it fills their batches meanwhile
        return [gone for session, deliveries in gathered.items() for gone in session.offer(deliveries, at_once=alone)]

    def offer_without_waiting(self, waited: float) -> tuple[list[Subscription], Deliveries | None]:
        """The same, and what would have to wait for a subscriber, as it did for `waited` seconds; None: nothing."""
        gathered, self._by_session, self.size = self._by_session, {}, 0
        if self.is_expiring:
            for session in gathered:
                session.is_expiring = True
        gone: list[Subscription] = []
        left: Deliveries | None = None
        for session, deliveries in gathered.items():
            blocked: list[Delivery] = []
            gone += session.offer(deliveries, at_once=len(gathered) == 1, blocked=blocked, waited=waited)
            for subscription, parcel in blocked:
                left = left or Deliveries()
                left.is_expiring = self.is_expiring
                left.add(session, subscription, parcel)
        return gone, left
