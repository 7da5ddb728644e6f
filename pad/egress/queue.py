"""What waits for one subscription: what comes live, and before that what a late joiner catches up with.

Rules:
- A queue is *held* while its subscription's catching up is prepared: what comes live waits, under its bound, and
  nothing goes out. Then it has a *source*, of what came before: that goes out first, then what came live.
- Source and live ones together are the subscription's `bound`; a late joiner's under `drop_newest` or `block` may be
  that many each.
- Nothing comes from the source that comes live as well: who fills them sees to it (see recent.py).
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.quality import Metering
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest


class Waiting(msgspec.Struct, eq=False, gc=False):
    """An object that waits for one or several subscriptions of a session, each with a queue of its own.

    A delegate keeps hundreds of thousands, which the garbage collector need not look at: whoever gives up a queue
    empties it.
    """

    parcel: Parcel
    places: int = 0
    """In how many queues it waits: its bytes count once, however many there are."""
    queues: Sequence[SubscriptionQueue] = ()
    """Who might take it together with the first that does."""
    arrived: float = 0.0
    """When it was published, by our own clock, where a deadline counts; else 0."""

    def put_into(self, queue: SubscriptionQueue) -> None:
        """It waits there as well."""
        self.places += 1
        if not self.queues:
            self.queues = queue.alone  # the commonest, and the same for all that wait there
        elif isinstance(self.queues, list):
            self.queues.append(queue)
        else:
            self.queues = [*self.queues, queue]


DELAY_SECONDS: Final = 10.0
"""A delay that was seen so long ago says nothing of now."""


class Delay:
    """How long what is sent takes until it is acknowledged: of one item at a time, so that it costs nothing to know."""

    __slots__ = ("_landed", "_last", "_probe", "_sent")

    def __init__(self) -> None:
        self._sent = 0
        self._landed = 0
        self._probe: tuple[int, float] | None = None
        """The number of the item that is looked at, and when it was sent."""
        self._last = 0.0, -math.inf

    def sent(self, count: int, clock: Callable[[], float]) -> None:
        """So many items more go out, in one batch."""
        self._sent += count
        if count and self._probe is None:
            self._probe = self._sent, clock()

    def landed(self, count: int, clock: Callable[[], float]) -> None:
        """So many more are acknowledged."""
        self._landed += count
        if self._probe is not None and self._landed >= self._probe[0]:
            now = clock()
            self._last, self._probe = (now - self._probe[1], now), None

    def seconds(self, now: float) -> float:
        """The last one seen, or how long one lasts by now that is not over; 0 when nothing was sent lately."""
        delay, at = self._last
        seen = delay if now - at <= DELAY_SECONDS else 0.0
        return max(seen, now - self._probe[1]) if self._probe is not None else seen


class Flight:
    """Items on their way, one after the other, each of which completes a delivery to the same subscriptions, or to none
    (chunks, notices)."""

    __slots__ = ("count", "subscriptions")

    def __init__(self, subscriptions: tuple[Subscription, ...], count: int) -> None:
        self.subscriptions = subscriptions
        self.count = count


class DeliveryQueue(Protocol):
    """What holds objects back for one subscription. QoS brings others than first-in first-out."""

    def put(self, waiting: Waiting) -> None:
        """Add; its cost is `waiting.parcel.size`, in bytes."""
        ...

    def head(self) -> Waiting:
        """What `take` would remove."""
        ...

    def take(self) -> Waiting:
        """Remove the next one."""
        ...

    def drop_oldest(self) -> Waiting:
        """Remove what has waited longest."""
        ...

    def __len__(self) -> int: ...


class FifoQueue(deque[Waiting]):
    """First in, first out."""

    put = deque[Waiting].append
    take = drop_oldest = deque[Waiting].popleft

    def head(self) -> Waiting:
        """What `take` would remove."""
        return self[0]


SHARE: Final = 8
"""One queue may hold an eighth of a delegate's memory; then its policy decides as if its bound were reached."""


SESSION_SHARE: Final = 4
"""All of one session together a quarter: who takes nothing fills his own share, and holds up no publisher."""


class Budget:
    """Bytes that wait for all sessions of a delegate. An object counts once for each session, although its bytes are
    shared between them as well: an upper bound. `_changed` covers all state."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit // SHARE
        self.session_share = limit // SESSION_SHARE
        self.used = 0
        self._changed = threading.Condition()

    def add(self, size: int) -> None:
        """So many bytes more wait (fewer, if negative)."""
        with self._changed:
            self.used += size
            if size < 0:
                self._changed.notify_all()

    def wait_for_room(self, timeout: float) -> bool:
        """Whether there is room, at last after `timeout` seconds."""
        if self.used < self.limit:
            return True
        with self._changed:
            return self._changed.wait_for(lambda: self.used < self.limit, timeout)


class Backlog(FifoQueue):
    """A source that lies ready: what a late joiner catches up with, oldest first, at most `bound` objects and as many
    bytes as one queue may hold; beyond that the policy says whether the oldest or the newest is `dropped`."""

    def __init__(self, request: SubscriptionRequest, share: int) -> None:
        super().__init__()
        self._bound = request.bound
        self._share = share
        self._is_oldest_dropped = request.policy == "drop_oldest"
        self.size = 0
        """In bytes."""
        self.dropped = 0

    def owe(self, waiting: Waiting) -> None:
        """One more, newer than those before."""
        if self._is_full():
            if not self._is_oldest_dropped:
                self.drop(waiting.parcel)
                return
            gone = self.popleft().parcel
            self.size -= gone.size
            self.drop(gone)
        self.append(waiting)
        self.size += waiting.parcel.size

    def drop_all(self) -> None:
        """There is no room for them."""
        for waiting in self:
            self.drop(waiting.parcel)
        self.clear()
        self.size = 0

    def drop(self, _parcel: Parcel) -> None:
        """It is lost before it could go out."""
        self.dropped += 1

    def _is_full(self) -> bool:
        return len(self) >= self._bound or (len(self) > 0 and self.size >= self._share)


class MeteredBacklog(Backlog):
    """The same for a contract whose meter is told what goes and what is lost."""

    def __init__(self, request: SubscriptionRequest, share: int, meter: Metering) -> None:
        super().__init__(request, share)
        self._meter = meter

    def take(self) -> Waiting:
        """Remove the next one, to be sent."""
        waiting = self.popleft()
        parcel = waiting.parcel
        self._meter.took(parcel.head.type_name, parcel.size, time.monotonic() - waiting.arrived)
        return waiting

    def drop_oldest(self) -> Waiting:
        """Remove it, to be lost."""
        waiting = self.popleft()
        self._meter.lost(waiting.parcel.head.type_name)
        return waiting

    def drop(self, parcel: Parcel) -> None:
        """It is lost before it could go out."""
        super().drop(parcel)
        self._meter.lost(parcel.head.type_name)


def backlog_of(subscription: Subscription, share: int) -> Backlog:
    """For a late joiner; `share`: bytes that one queue may hold."""
    meter = subscription.contract.meter if subscription.contract is not None else None
    if meter is None:
        return Backlog(subscription.request, share)
    return MeteredBacklog(subscription.request, share, meter)


class Feed(Protocol):
    """Who fills a queue from an archive, as it has room."""

    def wake(self) -> None:
        """There may be room, or it is over. Never waits: the session's lock may be held."""
        ...


class Tracked(Protocol):
    """Who remembers what a durable subscription has had. Never waits."""

    def entered(self, position: int) -> None:
        """An object waits, or goes out, from now on."""
        ...

    def fed(self, above: int, up_to: float) -> None:
        """The feed has brought all between; it does not count when it is to go back below that."""
        ...

    def back(self, position: int, dropped: Iterable[int]) -> int:
        """The feed is to bring again what was dropped, and all from that position on, or from what is still under way:
        behind which position."""
        ...

    def acknowledge(self, positions: Iterable[int]) -> int:
        """Objects need not come again; how many of them were not acknowledged before."""
        ...

    def passed(self, position: int) -> None:
        """Nothing that matches is between what was sent and that position."""
        ...


class Replay:
    """Of a queue that catches up with an archive: what is kept comes from its feed up to `target`, what is kept later
    comes live and waits *behind*. When that is too much, it is given up: *overrun*, the feed brings that as well, up to
    another target. What is not kept has nothing to do with it."""

    __slots__ = (
        "again_from",
        "behind",
        "durable",
        "is_live",
        "is_overrun",
        "not_kept",
        "past",
        "size",
        "target",
        "went",
    )

    def __init__(self, durable: Tracked | None = None) -> None:
        """`durable`: told what goes out, and what was acknowledged; None: nobody is."""
        self.durable = durable
        self.went: deque[int] = deque()
        """Positions of what a durable one's application has not taken yet, as they went; 0: it is not kept."""
        self.not_kept = 0
        """How many went that are not kept, and that were not acknowledged one by one."""
        self.again_from = -1
        """Where the feed is to go on for one that fell back."""
        self.target = 0
        self.past = math.inf
        """Positions up to there came before it had caught up."""
        self.behind: list[Parcel] = []
        self.size = 0
        """Of those, in bytes."""
        self.is_overrun = True
        self.is_live = False
        """The feed has brought all: what comes later goes to the queue."""

    def give_up(self) -> int:
        """What is behind goes; its bytes."""
        size, self.size = self.size, 0
        self.behind.clear()
        self.is_overrun = True
        return size


class SubscriptionQueue:
    """What one subscription has waiting and under way. Its session's lock covers it."""

    __slots__ = (
        "alone",
        "bound",
        "consumed",
        "counted",
        "cutting",
        "feed",
        "held",
        "live",
        "next_chunk",
        "position",
        "ready",
        "replay",
        "sent",
        "source",
        "subscription",
        "untold",
        "waiting",
        "waiting_bytes",
    )  # fmt: skip

    def __init__(self, subscription: Subscription, *, held: bool = False) -> None:
        """`held`: a late joiner whose source is being made ready: nothing goes out."""
        self.subscription = subscription
        self.alone = (self,)
        self.counted: tuple[Subscription, ...] = (subscription,)
        """Whose deliveries are counted: () for a query, which is no subscription."""
        self.feed: Feed | None = None
        """It is placed: its objects go out with their positions, each by itself."""
        self.replay: Replay | None = None
        """Its feed is of a subscription, which catches up."""
        self.position = 0
        """Of the large object that goes in chunks."""
        self.bound = subscription.request.bound
        self.held = held
        self.source: DeliveryQueue | None = None
        """Goes out before what is live; None once it is empty."""
        self.live: DeliveryQueue = FifoQueue()
        self.waiting = self.waiting_bytes = 0
        """In both together."""
        self.sent = self.consumed = 0
        self.untold: Counter[str] = Counter()
        self.ready = False
        self.cutting: Iterator[memoryview] | None = None
        """What is left of a large object that goes in chunks."""
        self.next_chunk: memoryview | None = None

    @property
    def held_up(self) -> int:
        """Objects that wait, and the large one of which some chunks have gone."""
        behind = len(self.replay.behind) if self.replay is not None else 0
        return self.waiting + (self.cutting is not None) + behind

    def goes(self, parcel: Parcel) -> None:
        """An object of a placed queue goes out now."""
        self.position = parcel.position
        replay = self.replay
        if replay is not None and replay.durable is not None:
            if self.subscription.request.ack == "explicit":
                replay.not_kept += not parcel.position
            else:
                replay.went.append(parcel.position)

    def enters(self, parcel: Parcel) -> None:
        """An object of a queue that catches up waits from now on."""
        if parcel.position and self.replay is not None and self.replay.durable is not None:
            self.replay.durable.entered(parcel.position)

    def leaves(self, parcel: Parcel) -> None:
        """It is lost, by a policy, and told so: it does not come again."""
        if parcel.position and self.replay is not None and self.replay.durable is not None:
            self.replay.durable.acknowledge([parcel.position])

    def is_past(self, parcel: Parcel) -> bool:
        """Whether it was kept before the queue had caught up."""
        return self.replay is not None and 0 < parcel.position <= self.replay.past

    def taken(self, total: int) -> None:
        """Its application has taken so many objects in all: a durable one's are acknowledged by that, or one by one."""
        replay = self.replay
        if replay is not None and replay.durable is not None:
            if self.subscription.request.ack == "explicit":
                return
            count = min(total - self.consumed, len(replay.went))
            replay.durable.acknowledge(filter(None, [replay.went.popleft() for _ in range(count)]))
        self.consumed = total

    def acknowledged(self, positions: Sequence[int]) -> bool:
        """Its application has acknowledged these; whether any was to be."""
        replay = self.replay
        if replay is None or replay.durable is None or self.subscription.request.ack != "explicit":
            return False
        not_kept = min(positions.count(0), replay.not_kept)
        replay.not_kept -= not_kept
        count = replay.durable.acknowledge(positions) + not_kept
        self.consumed += count
        return count > 0

    def settle(self) -> None:
        """It ends: what is behind counts as lost, too."""
        if self.replay is not None:
            self.subscription.matched += len(self.replay.behind)

    def is_full(self, share: int) -> bool:
        """Whether the policy has to decide about the next object: its bound is reached, or `share` bytes wait."""
        return self.waiting >= self.bound or (self.waiting_bytes >= share and self.waiting > 0)

    def put(self, waiting: Waiting, size: int) -> None:
        """One more waits, of `size` bytes."""
        waiting.put_into(self)
        self.live.put(waiting)
        self.waiting += 1
        self.waiting_bytes += size

    def catch_up(self, backlog: Backlog) -> None:
        """From now on they go out, then what has come meanwhile."""
        for waiting in backlog:
            waiting.put_into(self)
        self.held = False
        self.source = backlog or None
        self.waiting += len(backlog)
        self.waiting_bytes += backlog.size

    @property
    def front(self) -> DeliveryQueue:
        """What the next one comes from."""
        return self.live if self.source is None else self.source

    @property
    def room(self) -> int:
        """How many objects more may wait here, or be with its subscriber: a feed brings no more."""
        return self.bound - self.waiting - self.sent + self.consumed

    @property
    def credit(self) -> int:
        """How many objects more its subscriber may have."""
        return self.bound - self.sent + self.consumed

    def took(self, count: int, size: int) -> None:
        """So many were taken from the front, to be sent, of `size` bytes in all."""
        self.sent += count
        self.waiting -= count
        self.waiting_bytes -= size
        self._pass_source()

    def drop_oldest(self) -> Waiting:
        """The one that has waited longest, to be lost."""
        waiting = self.front.drop_oldest()
        waiting.places -= 1
        self.waiting -= 1
        self.waiting_bytes -= waiting.parcel.size
        self._pass_source()
        return waiting

    def _pass_source(self) -> None:
        if self.source is not None and not len(self.source):
            self.source = None

    def is_next(self, waiting: Waiting) -> bool:
        """Whether that object is what it would send next."""
        return (
            self.waiting > 0
            and self.sent - self.consumed < self.bound
            and not self.held
            and self.cutting is None
            and not self.untold
            and self.front.head() is waiting
        )

    def may_send(self) -> bool:
        """Whether something can go out now."""
        if self.held:
            return False
        if self.waiting and self.sent - self.consumed < self.bound:
            return True
        return self.cutting is not None or bool(self.untold)
