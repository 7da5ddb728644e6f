"""The queues of one session: what is let in, what makes way for it, what is lost, and what feeds bring.

The session's lock covers all of it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.catch_up import DROPPING, HELD, CatchUpEvent, CatchUpState, Replay, WakeFeed
from jbi_pubsub.pad.egress.queue import Backlog, SubscriptionQueue, Waiting
from jbi_pubsub.pad.model.durable import Durable
from jbi_pubsub.pad.model.subscription import Subscription

Delivery = tuple[Subscription, Parcel]
"""An object for a subscription."""


class SessionQueues:
    """See the module. Under the lock `changed`, but for what FeedControl does; `wake` has what is ready go out."""

    def __init__(self, budget: Budget, clock: Callable[[], float], wake: Callable[[], None]) -> None:
        self.budget = budget
        self.clock = clock
        self.wake = wake
        self.changed = threading.Condition()
        self.by_number: dict[int, SubscriptionQueue] = {}
        self.ready: Any = deque[SubscriptionQueue]()
        """Those that can send something, in the order of their turns."""
        self.ending: dict[SubscriptionQueue, bytes] = {}
        """Those of queries that have ended, with what is told of that behind their last result."""
        self.size = 0
        """Bytes that wait in all queues; an object counts once."""
        self.is_closed = False
        self.is_expiring = False
        """Some of what waits here may expire, or did."""

    def __len__(self) -> int:
        return len(self.by_number)

    def add(self, subscription: Subscription, *, held: bool) -> SubscriptionQueue:
        """Open the subscription's queue; `held`: nothing goes out before `catch_up`."""
        queue = self.by_number[subscription.number] = SubscriptionQueue(subscription, held=held)
        return queue

    def stands(self, queue: SubscriptionQueue) -> bool:
        """Whether it is open still."""
        return self.by_number.get(queue.subscription.number) is queue

    # -- in -----------------------------------------------------------------------------------------------------

    def offer(
        self, deliveries: Sequence[Delivery], blocked: list[Delivery] | None, waited: float
    ) -> list[Subscription]:
        """Let objects in, see `SubscriberSession.offer`."""
        gone: list[Subscription] = []
        taken = 0
        subscription: Subscription | None = None
        queue: SubscriptionQueue | None = None
        waiting: Waiting | None = None
        is_placed = False
        share, most = self.budget.share, self.budget.session_share
        for whose, parcel in deliveries:
            if whose is not subscription:  # of a run, consecutive objects for one, the queue is looked up once
                subscription, queue = whose, self.by_number.get(whose.number)
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
            if queue.waiting >= queue.bound or queue.waiting_bytes >= share or self.size >= most:
                subscription = None  # others may be cancelled meanwhile as well
                if not self._lets_in(queue, parcel, gone, blocked, waited):
                    continue
            whose.matched += 1
            if waiting is None or waiting.parcel is not parcel:
                waiting = Waiting(parcel)
            size = parcel.size
            if waiting.places == 0:
                taken += size
                self.size += size
            if is_placed:
                queue.enters(parcel)
                queue.put(waiting, size)
                waiting = None
            else:
                queue.put(waiting, size)
            if not queue.ready:
                self.make_ready(queue)
        self.budget.add(taken)
        return gone

    def _lets_in(
        self,
        queue: SubscriptionQueue,
        parcel: Parcel,
        gone: list[Subscription],
        blocked: list[Delivery] | None,
        waited: float,
    ) -> bool:
        """The queue, or the session's share, is full: act by the policy, for that object; whether there is room."""
        subscription = queue.subscription
        seconds = subscription.request.block_seconds
        # nobody waits for who is still catching up
        is_blocking = queue.policy == "block" and queue.state is not HELD and parcel.head.is_reliable
        if blocked is not None and is_blocking and waited < seconds and self.is_full(queue):
            blocked.append((subscription, parcel))
            return False
        if queue.has_place_for(parcel) or not self.is_full(queue):
            return True
        has_room = False
        if is_blocking:
            self.wake()  # what was offered before goes out meanwhile
            has_room = self._wait_for_room(queue, seconds if blocked is None else 0.0)
            if not self.stands(queue):  # cancelled while we waited: its queue is empty, but nobody takes from it
                gone.append(subscription)
                return False
        if not has_room:
            has_room = self._displace(queue, parcel, Cause.BLOCK_TIMEOUT if is_blocking else Cause.QUEUE_OVERFLOW)
        if not has_room:
            subscription.meter_lost(parcel.head.type_name)
        return has_room

    def is_full(self, queue: SubscriptionQueue) -> bool:
        """Whether its bound, its share of memory or that of the session is reached."""
        return queue.is_full(self.budget.share) or self.size >= self.budget.session_share

    def _displace(self, queue: SubscriptionQueue, parcel: Parcel, cause: Cause) -> bool:
        """Lose what its policy gives up for that object, or the object itself; whether there is room."""
        before, others_hold = queue.waiting_bytes, self.size >= self.budget.session_share
        wanted = parcel.size if others_hold else 0  # its own make way for as much, not all for what others hold
        dropped = 0

        def is_wanting() -> bool:
            return queue.is_full(self.budget.share) or before - queue.waiting_bytes < wanted

        is_first = parcel.head.is_reliable  # or it is the one that goes
        while is_first and queue.waiting and is_wanting() and (waiting := queue.give_way(parcel)) is not None:
            queue.leaves(waiting.parcel)
            self.free(waiting)  # many small ones may have to go for a large one
            dropped += 1
        has_room = not is_wanting()
        if not has_room:
            queue.subscription.matched += 1
        if count := dropped + (not has_room):
            self.lose(queue, cause, count)
        return has_room

    def _wait_for_room(self, queue: SubscriptionQueue, seconds: float) -> bool:
        self.changed.wait_for(lambda: not self.is_full(queue) or self.is_closed or not self.stands(queue), seconds)
        return not self.is_full(queue)

    def put(self, queue: SubscriptionQueue, parcels: Sequence[Parcel]) -> None:
        """Objects that there is room for, each by itself."""
        queue.subscription.matched += len(parcels)
        self.charge(sum(parcel.size for parcel in parcels))
        for parcel in parcels:
            queue.enters(parcel)
            queue.put(Waiting(parcel), parcel.size)
        self.make_ready(queue)

    def catch_up(self, subscription: Subscription, backlog: Backlog, missed: int) -> bool:
        """See `SubscriberSession.catch_up`; whether there is something to send now."""
        queue = self.by_number.get(subscription.number)
        if queue is None:  # cancelled meanwhile: it is owed nothing any more
            return False
        subscription.matched += len(backlog) + backlog.dropped
        size = sum(waiting.parcel.size for waiting in backlog if waiting.places == 0)
        if self.size + size > self.budget.session_share or self.budget.used + size > self.budget.limit:
            backlog.drop_all()
            size = 0
        subscription.replayed += len(backlog)
        dropped = backlog.dropped
        queue.catch_up(backlog)
        self.charge(size)
        while queue.waiting > queue.bound and queue.policy == "drop_oldest":
            self.free(queue.drop_oldest())
            dropped += 1
        for cause, count in ((Cause.MISSED, missed), (Cause.QUEUE_OVERFLOW, dropped)):
            if count:
                self.lose(queue, cause, count)
        self.make_ready(queue)
        queue.wake_feed()
        return queue.may_send()

    def _comes_behind(self, queue: SubscriptionQueue, parcel: Parcel) -> bool:
        """Deal with what is kept, for a queue that catches up: whether that is done."""
        replay = queue.replay
        assert replay is not None
        if not parcel.position:
            return parcel.was_kept  # before it came: the feed brings it, or did, or it is not wanted
        if queue.state is CatchUpState.LIVE and parcel.position > replay.target:
            if replay.durable is None or not self.is_full(queue):
                return False
            self.fall_back(queue, parcel.position)
            return True
        if parcel.position <= replay.target or queue.state in DROPPING:
            return True  # the feed brings it
        budget = self.budget
        is_too_much = len(replay.behind) > queue.bound // 2 or queue.waiting_bytes + replay.size >= budget.share
        if is_too_much or self.size >= budget.session_share or budget.used >= budget.limit:
            self.charge(-replay.give_up())
            queue.follow(CatchUpEvent.OVERRAN)
            return True
        replay.behind.append(parcel)
        replay.size += parcel.size
        self.charge(parcel.size)
        return True

    def fall_back(self, queue: SubscriptionQueue, position: int) -> None:
        """Let what waits of a durable one, as too much, come by its feed, with that object and all behind it."""
        replay = queue.replay
        assert replay is not None
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
        self.charge(-freed - replay.give_up())
        if lost:
            self.lose(queue, Cause.QUEUE_OVERFLOW, lost)
        after = replay.durable.back(position, dropped)
        replay.dropped.update(dropped)
        replay.again_from = after if replay.again_from < 0 else min(replay.again_from, after)
        replay.past = math.inf
        queue.follow(CatchUpEvent.FELL_BACK)
        queue.wake_feed()

    # -- out ----------------------------------------------------------------------------------------------------

    def make_ready(self, queue: SubscriptionQueue) -> None:
        """Give it a turn, if it can send something."""
        if not queue.ready and queue.may_send():
            queue.ready = True
            self.ready.append(queue)

    def charge(self, size: int) -> None:
        """So many bytes more wait (fewer, if negative)."""
        self.size += size
        self.budget.add(size)

    def free(self, waiting: Waiting) -> None:
        """Note that it has been taken out of one of its queues."""
        if waiting.places == 0:
            self.charge(-waiting.parcel.size)

    def lose(self, queue: SubscriptionQueue, cause: Cause, count: int = 1) -> None:
        """So many objects are lost, which is told."""
        queue.subscription.lost[cause] += count
        queue.untold[cause] += count
        self.make_ready(queue)

    def empty(self, queue: SubscriptionQueue) -> None:
        """Nothing waits there any more."""
        freed = 0
        while queue.waiting:
            waiting = queue.drop_oldest()
            freed += waiting.parcel.size if waiting.places == 0 else 0
        if queue.replay is not None:
            freed += queue.replay.give_up()
        self.charge(-freed)

    def taken(self, number: int, total: int) -> None:
        """Its application has taken so many objects in all."""
        queue = self.by_number.get(number)
        if queue is not None and queue.consumed < total <= queue.sent:
            queue.taken(total)
            self.make_ready(queue)
            queue.wake_feed()

    def acknowledged(self, number: int, positions: Sequence[int]) -> None:
        """Its application has acknowledged these."""
        queue = self.by_number.get(number)
        if queue is not None and queue.acknowledged(positions):
            self.make_ready(queue)
            queue.wake_feed()

    def reached(self, delays: Mapping[int, tuple[int, int]]) -> None:
        """Hear how long objects have waited for their applications: not used here."""

    def close(self, cause: Cause) -> None:
        """Whatever waits is lost."""
        self.is_closed = True
        for queue in self.by_number.values():
            queue.settle()
            queue.subscription.lost[cause] += queue.held_up
            self.empty(queue)
            queue.wake_feed()
        self.by_number.clear()
        self.ending.clear()
        self.ready.clear()


class FeedControl:
    """The way into a session's queues for those who bring the past from an archive. Any thread."""

    def __init__(self, queues: SessionQueues, add: Callable[..., SubscriptionQueue]) -> None:
        """`add(subscription, held=...)` opens a queue."""
        self._queues = queues
        self._changed = queues.changed
        self._add = add

    def add_query(self, query: Subscription, feed: WakeFeed) -> None:
        """Open a queue that a feed fills, woken by `feed`, as there is room (`room`, `put`), until it is `finish`ed."""
        queue = self._add(query, held=False)
        with self._changed:
            queue.feed = feed

    def add_replay(self, subscription: Subscription, feed: WakeFeed, durable: Durable | None) -> None:
        """Open the queue of a subscription that catches up with an archive by a feed, woken by `feed`. Nothing of what
        is kept comes to it live before `arm`; nothing goes out before `catch_up`. One that is `durable` catches up
        again whenever its queue is full."""
        queue = self._add(subscription, held=True)
        with self._changed:
            queue.feed, queue.replay = feed, Replay(durable)

    def _find(self, subscription: Subscription) -> SubscriptionQueue | None:
        """Its queue, if a feed may still bring something."""
        queue = self._queues.by_number.get(subscription.number)
        return None if queue is None or queue in self._queues.ending else queue

    def _replay_of(self, subscription: Subscription) -> tuple[SubscriptionQueue, Replay] | None:
        queue = self._queues.by_number.get(subscription.number)
        return None if queue is None or queue.replay is None else (queue, queue.replay)

    def state_of(self, subscription: Subscription) -> CatchUpState | None:
        """The state of its queue; None: that is gone."""
        with self._changed:
            found = self._replay_of(subscription)
            return found[0].state if found is not None else None

    def arm(self, subscription: Subscription, target: int) -> tuple[int, set[int]]:
        """The feed brings all that is kept up to that position, where positions stand now. Where it is to go on, and
        positions of what was dropped for that, if its subscriber fell back (none: it wants all again); else -1."""
        with self._changed:
            if (found := self._replay_of(subscription)) is None:
                return -1, set()
            queue, replay = found
            queue.follow(CatchUpEvent.ARMED)
            replay.target = target
            again, replay.again_from = replay.again_from, -1
            dropped, replay.dropped = replay.dropped, set()
            return again, dropped

    def brought(self, subscription: Subscription) -> None:
        """The feed has brought all up to its target."""
        with self._changed:
            if (found := self._replay_of(subscription)) is not None:
                found[0].follow(CatchUpEvent.BROUGHT)

    def go_live(self, subscription: Subscription) -> CatchUpState | None:
        """Let what is behind into the queue of one that settles, and all that comes: not before half of its queue is
        free, as from then on its policy may lose what waits. The state then; None: its queue is gone."""
        with self._changed:
            if (found := self._replay_of(subscription)) is None:
                return None
            queue, replay = found
            if queue.state is not CatchUpState.SETTLING:
                return queue.state
            if replay.durable is not None and not queue.waiting and not replay.behind:
                replay.durable.passed(replay.target)
            if queue.waiting and queue.waiting + len(replay.behind) > queue.bound // 2:
                return queue.state
            queue.follow(CatchUpEvent.JOINED)
            replay.past = max([replay.target, *(parcel.position for parcel in replay.behind)])
            behind = list(replay.behind)
            self._queues.charge(-replay.give_up())
            self._queues.put(queue, behind)
            if replay.durable is not None:
                replay.durable.fed(replay.target, math.inf)
        self._queues.wake()
        return CatchUpState.LIVE

    def fall_back(self, subscription: Subscription, after: int) -> None:
        """A durable one is to have all behind that position again, as far as it is not acknowledged."""
        with self._changed:
            if (found := self._replay_of(subscription)) is not None:
                queue, replay = found
                self._queues.fall_back(queue, after + 1)
                replay.again_from = after
                replay.dropped.clear()

    def room(self, subscription: Subscription) -> tuple[int, int]:
        """Room for a feed now, in objects, and in bytes in all; (-1, 0): its queue is gone. Bytes may be
        short when there is room for objects: nobody tells when that changes. A query's that was `finish`ed has none."""
        with self._changed:
            queue = self._queues.by_number.get(subscription.number)
            if queue is None:
                return -1, 0
            if queue.state is HELD or queue in self._queues.ending:
                return 0, 0
            budget = self._queues.budget
            most = min(budget.share - queue.waiting_bytes, budget.session_share - self._queues.size)
            return max(0, queue.room), max(0, min(most, budget.limit - budget.used))

    def put(self, subscription: Subscription, parcels: Sequence[Parcel]) -> None:
        """Put what a feed brings, within its room."""
        with self._changed:
            queue = self._find(subscription)
            if queue is None:
                return
            self._queues.put(queue, parcels)
        self._queues.wake()

    def finish(self, query: Subscription, told: bytes, *, drop: bool = False) -> None:
        """A query has ended: that is told when its results have gone out; at once, if those that wait are dropped."""
        with self._changed:
            queue = self._find(query)
            if queue is None:
                return
            if drop:
                self._queues.empty(queue)
                queue.untold.clear()
            self._queues.ending[queue] = told
        self._queues.wake()
