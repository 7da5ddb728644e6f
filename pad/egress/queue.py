"""The queue of one subscription: what comes live, and before that what a late joiner catches up with.

Rules:
- A queue is *held* while its subscription's catching up is prepared: what comes live waits, under its bound, and
  nothing goes out. Then it has a *source*, of what came before: that goes out first, then what came live.
- Source and live ones together are the subscription's `bound`; a late joiner's under `drop_newest` or `block` may be
  that many each.
- Nothing comes from the source that comes live as well: who fills them sees to it (see recent.py).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgspec

from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.wire.stream import ParcelCut
from jbi_pubsub.pad.egress.catch_up import CATCH_UP, HELD, CatchUpEvent, CatchUpState, Replay, WakeFeed
from jbi_pubsub.pad.model.subscription import Subscription


class Waiting(msgspec.Struct, eq=False, gc=False):
    """An object that waits for one or several subscriptions of a session, each with a queue of its own.

    A delegate keeps hundreds of thousands, which the garbage collector need not look at: whoever gives up a queue
    empties it.
    """

    parcel: Parcel
    places: int = 0
    """In how many queues it waits: its bytes count once, however many there are."""
    queues: Sequence[SubscriptionQueue] = ()
    """Queues that might take it together with the first that does."""
    arrived: float = 0.0
    """When it was published, by our own clock, where a deadline counts; else 0."""

    def put_into(self, queue: SubscriptionQueue) -> None:
        """Let it wait there as well."""
        self.places += 1
        if not self.queues:
            self.queues = queue.alone  # the commonest, and the same for all that wait there
        elif isinstance(self.queues, list):
            self.queues.append(queue)
        else:
            self.queues = [*self.queues, queue]


class FifoQueue(deque[Waiting]):
    """Objects of one subscription, first in, first out. QoS brings queues by importance."""

    put = deque[Waiting].append
    take = drop_oldest = deque[Waiting].popleft

    def head(self) -> Waiting:
        """The object that `take` would remove."""
        return self[0]


class Backlog(FifoQueue):
    """A source that lies ready: what a late joiner catches up with, oldest first, at most `bound` objects and as many
    bytes as one queue may hold; beyond that the policy says whether the oldest or the newest is `dropped`."""

    def __init__(self, subscription: Subscription, share: int) -> None:
        """`share`: bytes that one queue may hold."""
        super().__init__()
        request, contract = subscription.request, subscription.contract
        self._meter = contract.meter if contract is not None else None
        self._bound = request.bound
        self._share = share
        self._is_oldest_dropped = request.policy == "drop_oldest"
        self.size = 0
        """In bytes."""
        self.dropped = 0

    def owe(self, waiting: Waiting) -> None:
        """One more, newer than those before."""
        if len(self) >= self._bound or (len(self) > 0 and self.size >= self._share):
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

    def drop(self, parcel: Parcel) -> None:
        """Lose it before it could go out."""
        self.dropped += 1
        if self._meter is not None:
            self._meter.lost(parcel.head.type_name)

    def take(self) -> Waiting:
        """Remove the next one, to be sent."""
        waiting = self.popleft()
        if self._meter is not None:
            parcel = waiting.parcel
            self._meter.took(parcel.head.type_name, parcel.size, time.monotonic() - waiting.arrived)
        return waiting

    def drop_oldest(self) -> Waiting:
        """Remove it, to be lost."""
        waiting = self.popleft()
        if self._meter is not None:
            self._meter.lost(waiting.parcel.head.type_name)
        return waiting


class SubscriptionQueue:
    """Objects of one subscription that wait and are under way. Its session's lock covers it."""

    __slots__ = (
        "alone", "bound", "consumed", "cutting", "feed", "live", "ready", "replay", "sent", "source",
        "state", "subscription", "untold", "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, subscription: Subscription, *, held: bool = False) -> None:
        """`held`: a late joiner whose source is being made ready: nothing goes out."""
        self.subscription = subscription
        self.alone = (self,)
        self.feed: WakeFeed | None = None
        """Wakes the feed of a placed queue: its objects go out with their positions, each by itself."""
        self.replay: Replay | None = None
        """Its feed is of a subscription, which catches up."""
        self.bound = subscription.request.bound
        self.state = HELD if held else CatchUpState.LIVE
        self.source: FifoQueue | None = None
        """Goes out before what is live; None once it is empty."""
        self.live: Any = FifoQueue()
        self.waiting = self.waiting_bytes = 0
        """In both together."""
        self.sent = self.consumed = 0
        self.untold: Counter[str] = Counter()
        self.ready = False
        self.cutting: ParcelCut | None = None

    @property
    def counted(self) -> tuple[Subscription, ...]:
        """Subscriptions whose deliveries are counted: none for a query, which is no subscription."""
        return (self.subscription,) if self.feed is None or self.replay is not None else ()

    @property
    def held_up(self) -> int:
        """Objects that wait, and the large one of which some chunks have gone."""
        behind = len(self.replay.behind) if self.replay is not None else 0
        return self.waiting + (self.cutting is not None) + behind

    @property
    def has_gone_out(self) -> bool:
        """Whether nothing of it is left here to be sent. Asked without the lock, too."""
        return not (self.held_up or self.untold)

    def goes(self, parcel: Parcel) -> None:
        """An object of a placed queue goes out now."""
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
        """Note that it is lost, by a policy, and told so: it does not come again."""
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

    def wake_feed(self) -> None:
        """There may be room, or it is over."""
        if self.feed is not None:
            self.feed()

    def settle(self) -> None:
        """Settle its end: what is behind counts as lost, too."""
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
        self.release()
        self.source = backlog or None
        self.waiting += len(backlog)
        self.waiting_bytes += backlog.size

    def release(self) -> None:
        """Hold it no more: what its delegate has in memory was looked through."""
        if self.state is HELD:
            self.follow(CatchUpEvent.RELEASED if self.replay is not None else CatchUpEvent.CAUGHT_UP)

    def follow(self, event: CatchUpEvent) -> None:
        """Go on to the state that follows."""
        self.state = CATCH_UP.after(self.state, event)

    @property
    def front(self) -> Any:
        """The part that the next one comes from."""
        return self.live if self.source is None else self.source

    @property
    def room(self) -> int:
        """Number of objects more that may wait here, or be with its subscriber: a feed brings no more."""
        return self.bound - self.waiting - self.sent + self.consumed

    @property
    def credit(self) -> int:
        """Number of objects more that its subscriber may have."""
        return self.bound - self.sent + self.consumed

    def took(self, count: int, size: int) -> None:
        """So many were taken from the front, to be sent, of `size` bytes in all."""
        self.sent += count
        self.waiting -= count
        self.waiting_bytes -= size
        self._pass_source()

    @property
    def policy(self) -> str:
        """The rule for when it is full."""
        return self.subscription.request.policy

    def has_place_for(self, parcel: Parcel) -> bool:  # noqa: ARG002 - where something is replaced
        """Whether that object takes another one's place."""
        return False

    def give_way(self, parcel: Parcel) -> Waiting | None:  # noqa: ARG002 - where importance counts
        """The object to be lost for that one by the policy; None: that one itself."""
        return self.drop_oldest() if self.policy == "drop_oldest" else None

    def drop_oldest(self) -> Waiting:
        """The one that has waited longest, to be lost."""
        waiting: Waiting = self.front.drop_oldest()
        self.forget(waiting)
        self._pass_source()
        return waiting

    def forget(self, waiting: Waiting) -> None:
        """Note that it does not wait here any more, and is not sent."""
        waiting.places -= 1
        self.waiting -= 1
        self.waiting_bytes -= waiting.parcel.size

    def _pass_source(self) -> None:
        if self.source is not None and not len(self.source):
            self.source = None

    def is_next(self, waiting: Waiting) -> bool:
        """Whether that object is what it would send next."""
        return (
            self.waiting > 0
            and self.sent - self.consumed < self.bound
            and self.state is not HELD
            and self.cutting is None
            and not self.untold
            and self.front.head() is waiting
        )

    def may_send(self) -> bool:
        """Whether something can go out now."""
        if self.state is HELD:
            return False
        if self.waiting and self.sent - self.consumed < self.bound:
            return True
        return self.cutting is not None or bool(self.untold)
