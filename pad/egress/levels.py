"""Sessions under quality of service: what waits goes by importance, in the strategy's shares, paced by its link.

As in pad/egress/session.py, with these rules beside:

- A queue waits for its turn at each level that it has something for; a large object goes on with the turn of any of
  them, and counts as the level that it began at.
- A batch has the levels that it is allowed, and no more bytes; an object of more than two batches goes in chunks.
- What expires, and settings that change, are looked at by a sweep: no object that waits needs a timer.
- A subscriber may have as many objects as its application took lately in a round trip, twice: beyond that they wait
  here, where what is more important may still pass them.
- Losses are told with the next turn of their queue; one that has none soon is told at the highest level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.quality import LEVELS, Contract
from jbi_pubsub.core.scheduling import ALL_LEVELS, PriorityRing
from jbi_pubsub.core.wire.hub import HubSender
from jbi_pubsub.pad.egress.batches import Batches, Parts, item_head, placed_head
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.catch_up import HELD
from jbi_pubsub.pad.egress.flights import Flights
from jbi_pubsub.pad.egress.queue import SubscriptionQueue, Waiting
from jbi_pubsub.pad.egress.queues import Delivery, SessionQueues
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.quality import CatchingUp, PriorityQueue, Quality
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.deliveries import SHARED_MOST

TOP: Final = 1 << (LEVELS - 1)
URGED_MOST: Final = 16
"""Queues of a session that are told their losses out of turn in a sweep: losses must not take the link."""
PREFETCH_SECONDS: Final = 0.1
"""For so long, and a round trip, an application has enough."""


class LevelledQueue(SubscriptionQueue):
    """Objects of one subscription that wait and are under way, by level."""

    __slots__ = (
        "_from",
        "_queues",
        "_since",
        "contract",
        "cut_level",
        "link",
        "prefetch",
        "urged",
    )

    def __init__(self, subscription: Subscription, queues: LevelledQueues, *, held: bool) -> None:
        super().__init__(subscription, held=held)
        self._queues = queues
        self.contract = subscription.contract or Contract()
        if subscription.is_replayed and subscription.contract is not None:
            self.contract = CatchingUp(self.contract, self.is_past)
        self.link = ""
        """That its session was told of."""
        self.live: PriorityQueue[Waiting] = queues.quality.queue_of(
            self.contract, lambda waiting, cause: queues.dropped(self, waiting, cause)
        )
        self.cut_level = 0
        """At which the large object goes that is being cut."""
        self.urged = False
        """Its losses are told at the highest level."""
        self.prefetch = min(self.bound, subscription.prefetch)
        self._since, self._from = 0.0, 0

    @property
    def credit(self) -> int:
        """Number of objects more that its subscriber may have."""
        return self.prefetch - self.sent + self.consumed

    @property
    def levels(self) -> int:
        """Bit mask of what it could send now."""
        if self.cutting is None and self.source is None and not self.untold and self.state is not HELD:  # mostly
            return self.live.levels if self.prefetch > self.sent - self.consumed else 0
        if self.state is HELD:
            return 0
        if self.cutting is not None:
            return 1 << self.cut_level | self.live.levels
        levels = 0
        if self.waiting and self.credit > 0:
            levels = self.live.levels
            if self.source is not None:  # what came before goes out first
                levels = 1 << max(self.contract.level, levels.bit_length() - 1)
        if self.untold:
            levels |= TOP if self.urged else levels or 1 << self.contract.level
        return levels

    def may_send(self) -> bool:
        """Whether something can go out now."""
        return self.levels > 0

    def put(self, waiting: Waiting, size: int) -> None:
        """One more waits, of `size` bytes; whatever is lost for it is told."""
        now = self._queues.now
        if not waiting.arrived:
            waiting.arrived = waiting.parcel.since or now
        waiting.put_into(self)
        self.waiting += 1
        self.waiting_bytes += size
        self.live.put(waiting, now)

    def has_next(self, waiting: Waiting, now: float) -> bool:
        """Whether it could send that object next."""
        if not self.waiting or self.credit <= 0 or self.state is HELD or self.cutting is not None or self.untold:
            return False
        return self.source.head() is waiting if self.source is not None else self.live.is_front(waiting, now)

    @property
    def policy(self) -> str:
        """The rule for when it is full."""
        said = self.contract.settings.queue or self.subscription.request.policy
        return "drop_oldest" if said == "drop_least" else said

    def has_place_for(self, parcel: Parcel) -> bool:
        """Whether that object takes another one's place; what has expired makes room."""
        self.live.expire(self._queues.now)
        return self.live.has_room_for(parcel, self._queues.now)

    def give_way(self, parcel: Parcel) -> Waiting | None:
        """Drop the oldest of the least important, before them what came before the subscription; by age alone if
        policies say so."""
        if self.policy != "drop_oldest":
            return None
        if self.contract.settings.queue == "drop_oldest":
            return self.drop_oldest()
        if self.live.is_least(parcel):
            return None
        if self.source is not None:
            return self.drop_oldest()
        waiting = self.live.drop_least()
        self.forget(waiting)
        return waiting

    def adapt(self, now: float, trip: float) -> None:
        """Set what its application may have by what it took lately."""
        if now - self._since < PREFETCH_SECONDS:
            return
        taken = (self.consumed - self._from) / (now - self._since)
        self._since, self._from = now, self.consumed
        self.prefetch = min(self.bound, max(self.subscription.prefetch, int(2 * taken * (PREFETCH_SECONDS + trip))))


class LevelledQueues(SessionQueues):
    """The queues of one session, by level."""

    def __init__(self, quality: Quality, flights: Flights, *session: Any) -> None:
        """`session`: as that of SessionQueues."""
        super().__init__(*session)
        self.quality = quality
        self._strategy = quality.strategy()
        self.ready: PriorityRing[LevelledQueue] = PriorityRing(self._strategy, self._strategy.link)
        self.busy: dict[LevelledQueue, None] = {}
        """Those that may have something waiting."""
        self.now = 0.0
        self._flights = flights

    def add(self, subscription: Subscription, *, held: bool) -> LevelledQueue:
        """Open the subscription's queue; `held`: nothing goes out before `catch_up`."""
        queue = self.by_number[subscription.number] = LevelledQueue(subscription, self, held=held)
        return queue

    def offer(
        self, deliveries: Sequence[Delivery], blocked: list[Delivery] | None, waited: float
    ) -> list[Subscription]:
        """Let objects in; how long it waited already counts for deadlines."""
        self.now = self.clock()
        return super().offer(deliveries, blocked, waited)

    def put(self, queue: SubscriptionQueue, parcels: Sequence[Parcel]) -> None:
        """Objects that there is room for, each by itself."""
        self.now = self.clock()
        super().put(queue, parcels)

    def dropped(self, queue: LevelledQueue, waiting: Waiting, cause: Cause) -> None:
        """Note that it is not in the queue any more."""
        queue.forget(waiting)
        queue.leaves(waiting.parcel)
        self.free(waiting)
        self.lose(queue, cause)

    def make_ready(self, queue: Any) -> None:
        """Give it a turn at each level that it can send something at."""
        if queue.cutting is None and not queue.untold:
            if not queue.waiting:
                return
            standing = self.ready.standing.get(queue)
            if standing and queue.source is None and not queue.live.levels & ~standing:
                return  # it waits for its turn at all levels that it has something for
        if queue.prefetch <= queue.sent - queue.consumed and queue.waiting:
            queue.adapt(self.clock(), self._flights.seconds)
        self.busy[queue] = None
        self.ready.put(queue, queue.levels)

    def next(self, levels: int) -> tuple[LevelledQueue, int] | None:
        """The queue whose turn it is, of these levels, and at which."""
        ready = self.ready
        while (level := ready.next(levels)) >= 0:
            queue = ready.pop(level)
            if queue.levels >> level & 1:
                return queue, level
            ready.put(queue, queue.levels)  # what it had there has gone, with another one's turn
        return None

    def reached(self, delays: Mapping[int, tuple[int, int]]) -> None:
        """Meters are told how long the way to the application was behind the queue: on the link, and there."""
        under_way = self._flights.seconds
        for number, (waited, jitter) in delays.items():
            queue = self.by_number.get(number)
            meter = queue.subscription.contract.meter if queue and queue.subscription.contract else None
            if meter is not None:
                meter.reached(under_way + waited / 1e6, jitter / 1e6)

    def look(self) -> list[LevelledQueue]:
        """Lose what has expired, follow settings that have changed, let losses that had no turn have one; those that
        had something waiting."""
        self.now = now = self.clock()
        if (strategy := self.quality.strategy()) is not self._strategy:
            self._strategy = strategy
            self.ready.set(strategy, strategy.link)
        urged, trip = 0, self._flights.seconds
        busy = list(self.busy)
        for queue in busy:
            queue.live.refresh(now)
            queue.live.expire(now)
            queue.adapt(now, trip)
            if queue.untold and queue.cutting is None and not queue.urged and urged < URGED_MOST:
                queue.urged = True
                urged += 1
            self.ready.put(queue, queue.levels)
            if not queue.waiting and not queue.untold and queue.cutting is None and queue not in self.ready.standing:
                del self.busy[queue]
        return busy


class LevelledBatches(Batches):
    """The next batch of what waits, of the levels that it is allowed."""

    queues: LevelledQueues

    def __init__(self, sender: HubSender, *session: Any) -> None:
        """`session`: as that of Batches."""
        super().__init__(*session)
        self._sender = sender
        self._level = 0
        """Level that what is taken just now counts as."""
        self._is_whole = False
        """Nothing is to come behind it in its batch."""

    def levels(self) -> int:
        """Bit mask of what could go out now; maybe of what has just gone or expired, too. Asked without our lock."""
        levels, notices, ending = self.queues.ready.levels, self.notices, self.queues.ending
        if notices.is_waiting or (notices.is_parting and not levels):
            return levels | TOP
        if ending and any(queue.has_gone_out for queue in tuple(ending)):
            return levels | TOP
        return levels

    def take(self, max_items: int, max_bytes: int, levels: int = ALL_LEVELS) -> list[Parts]:
        """Take what goes out next, of these levels: queues take turns. On the hub's thread."""
        items: list[Parts] = []
        size = highest = 0
        queues = self.queues
        self.freed = 0
        queues.now = queues.clock()
        self.piece = min(self.size_of_chunk, max_bytes)
        self._is_whole = False
        while len(items) < max_items and size < max_bytes and not self._is_whole:
            found = queues.next(levels)
            if found is None:
                break
            queue, self._level = found
            sent = self.take_turn(queue, items, max_items, max_bytes - size)
            queues.ready.charge(self._level, sent)
            highest = max(highest, self._level)
            size += sent
            queues.make_ready(queue)
        self._sender.account.level = highest if items else max(0, levels.bit_length() - 1)
        self.take_notices(items, max_items)
        return items

    def take_turn(self, queue: Any, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """Put what goes out next of that queue behind `items`; its bytes."""
        if queue.cutting is not None:
            if queue.cut_level != self._level and self._sender.paced:
                self._is_whole = True  # the batch counts as that
                if items:
                    return 0
            self._level = queue.cut_level
            item = self.next_chunk(queue, self.piece)
        elif queue.untold:
            item = self.next_loss(queue)
            queue.urged = queue.urged and bool(queue.untold)
        else:
            return self._take_run(queue, items, max_items, max_bytes)
        items.append(item)
        return sum(map(len, item))

    def _take_run(self, first: Any, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """Objects of one level, one if others wait there, too; one that others take as well goes by itself."""
        level, most = self._level, min(first.credit, max_items - len(items))
        largest = self.size_of_chunk if self.piece >= self.size_of_chunk else 2 * self.piece
        head = item_head([first])
        is_queue, take = first.source is None, first.live.take
        count = size = sent = 0
        while count < most and sent < max_bytes:
            waiting = first.live.select(level, self.queues.now) if is_queue else self._head(first, level)
            if waiting is None or (count and (len(waiting.queues) > 1 or waiting.parcel.size > largest)):
                break
            parcel = waiting.parcel
            if parcel.size > largest:
                first.cut_level = level
                items.append(self.begin_chunks(first, self.piece))
                return sum(map(len, items[-1]))
            if len(waiting.queues) > 1:
                return self._take_shared(first, waiting, items)
            if first.feed is not None:
                head = placed_head(first, parcel)
            if not is_queue:
                self._take_from([first], waiting)
                items.append((head, *parcel.parts))
                self.flights.add(first.counted, 1)
                return len(head) + parcel.size
            take()
            waiting.places -= 1
            if not waiting.places:
                self.freed += parcel.size
            items.append((head, *parcel.parts))
            count += 1
            size += parcel.size
            sent += len(head) + parcel.size
            if self.queues.ready.levels >> level & 1:  # somebody else's turn
                break
        if count:
            first.took(count, size)
            self.flights.add(first.counted, count)
        return sent

    def _head(self, queue: LevelledQueue, level: int) -> Waiting | None:
        """The object of it that goes out next."""
        while queue.source is not None:  # of what came before the subscription
            waiting = queue.source.head()
            deadline = queue.contract.of(waiting.parcel).deadline
            has_expired = 0.0 < waiting.parcel.expires <= self.queues.now
            is_in_time = deadline is None or not waiting.arrived or self.queues.now < waiting.arrived + deadline
            if is_in_time and not has_expired:
                return waiting
            self.queues.free(queue.drop_oldest())
            self.queues.lose(queue, Cause.EXPIRED if has_expired else Cause.DEADLINE)
        return queue.live.select(level, self.queues.now)

    def _take_shared(self, first: LevelledQueue, waiting: Waiting, items: list[Parts]) -> int:
        """An object for all subscriptions that could send it now; it counts as what the most important of them is."""
        together: list[LevelledQueue] = [first]
        for one in waiting.queues:
            if one is not first and len(together) < SHARED_MOST:
                assert isinstance(one, LevelledQueue)
                if one.has_next(waiting, self.queues.now):
                    together.append(one)
        parcel = waiting.parcel
        level = max(self._level, *(one.contract.of(parcel).importance - 1 for one in together))
        if level > self._level and self._sender.paced:
            self._is_whole = True  # the batch counts as that
            if items:
                return 0
            self._level = level
        self._take_from(together, waiting)
        waiting.queues = waiting.queues[SHARED_MOST:] or () if waiting.places else ()
        self.flights.add(tuple([one.subscription for one in together]), 1)
        head = item_head(together)
        items.append((head, *parcel.parts))
        return len(head) + parcel.size

    def _take_from(self, queues: Sequence[LevelledQueue], waiting: Waiting) -> None:
        for queue in queues:
            queue.front.take()
            queue.took(1, waiting.parcel.size)
            waiting.places -= 1
        if waiting.places == 0:
            self.freed += waiting.parcel.size


class LevelledSession(SubscriberSession):
    """See the module."""

    _queues: LevelledQueues
    _batches: LevelledBatches

    def __init__(self, session_id: str, *, quality: Quality, **options: Any) -> None:
        """`options`: those of SubscriberSession."""
        self._quality = quality
        super().__init__(session_id, **options)
        self._sender.levels = self._batches.levels
        self._sender.backlog = lambda: self._queues.size

    def make_queues(self, budget: Budget, clock: Callable[[], float]) -> SessionQueues:
        """Queues by level."""
        return LevelledQueues(self._quality, self._flights, budget, clock, self._sender.ready)

    def make_batches(self, chunk: int) -> Batches:
        """Batches by level."""
        return LevelledBatches(self._sender, self._queues, self._flights, self._notices, chunk)

    def add(self, subscription: Subscription, *, held: bool = False) -> SubscriptionQueue:
        """Open the subscription's queue; `held`: nothing goes out before `catch_up`."""
        queue = super().add(subscription, held=held)
        assert isinstance(queue, LevelledQueue)
        self._follow_links([queue])
        return queue

    def sweep(self) -> None:
        """Look at what waits, see LevelledQueues. On the hub's thread, a few times a second."""
        if not self._queues.busy:
            return
        with self._changed:
            busy = self._queues.look()
            self._changed.notify_all()
        self._follow_links(busy)
        self._sender.ready()

    def _follow_links(self, queues: Sequence[LevelledQueue]) -> None:
        """The session is behind the link that its contracts name; if they name several, behind the last one that was
        named."""
        for queue in queues:
            link = queue.contract.settings.link
            if link != queue.link:
                queue.link = link
                self._quality.links.assign(self._sender, link)
                if self._queues.is_closed:  # meanwhile: it has left already
                    self._quality.links.leave(self._sender)

    def close(self, cause: Cause) -> None:
        """The session is over: whatever waits is lost under `cause`."""
        super().close(cause)
        with self._changed:  # a sweep may be under way
            self._queues.busy.clear()
        self._quality.links.leave(self._sender)
