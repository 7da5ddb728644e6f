"""Delivery to subscribers: one session a subscriber process, one outlet a subscription (see outlet.py).

Rules:
- Order is kept per subscription; ready subscriptions of a session take turns.
- Credits end to end: a subscription has at most `bound` objects with its subscriber that the application has not
  consumed; beyond that they wait here, again at most `bound`; beyond that the policy decides.
- Each loss is counted under one cause and told in band, before the next object.
- A session without a connection keeps its queues while its lease lives.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Final, Protocol

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.info_object import Cause, LossNotice, Parcel, Part
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire.deflate import Compression, described
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.stream import CHUNK_BYTES, chunks
from jbi_pubsub.pad.outlet import Arrears, Budget, Delay, Flight, Outlet, Waiting
from jbi_pubsub.pad.subscription import Subscription, shown

ITEM: Final = struct.Struct("!BI")
OBJECT, LOSS, CHUNK, LAST_CHUNK, SHARED, END = 1, 2, 3, 4, 5, 6
QUALITY: Final = 9
"""Kinds of items on a delivery connection, each with a subscription number. A large object comes as CHUNK ...
LAST_CHUNK; between them come items of other subscriptions, none of its own. SHARED has, instead of a number, how many
subscriptions the object is for, then their numbers (32 bits each), then the object: it goes over the link once. END
with number 0 is the last one: who delivers stops in order, and has told what was lost; with another number that
subscription has ended here, against the will of its subscriber, who has been told its losses; with ASK_AGAIN what was
refused may be allowed now. QUALITY: what a subscription that wishes has got instead of what it had."""

ASK_AGAIN: Final = 0xFFFF_FFFF
"""No subscription's number."""

COUNT_MOST: Final = 2**53
"""The largest loss that is told as a number: a hostile publisher may skip any number of objects, again and again."""

SHARED_MOST: Final = 10_000
"""Subscriptions of one SHARED item: its numbers take 40 kB then."""

Micros = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
"""Millionths of a second, twelve days at most."""


class Heard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Note of the subscriber's acknowledgements, by subscription numbers. `consumed`: how many objects its application
    has taken in all. `delays`, under quality of service and once a second: how long one object has waited there for the
    application, and by how much that varies (RFC 3550's jitter)."""

    consumed: dict[int, int] = {}
    delays: dict[int, tuple[Micros, Micros]] = {}


NOTHING_HEARD: Final = Heard()

Parts = tuple[Part, ...]

Delivery = tuple[Subscription, Parcel]
"""An object for a subscription."""


class Ready(Protocol):
    """Outlets that can send something, in the order of their turns."""

    def append(self, outlet: Outlet, /) -> None:
        """Its turn comes behind the others."""
        ...

    def popleft(self) -> Outlet:
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
        self._outlets: dict[int, Outlet] = {}
        self._ready: Ready = deque[Outlet]()
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
        self._expelled: deque[Subscription] = deque()
        """Whose end is to be told."""
        self._parting = False
        """END is to go out behind all else."""
        self._freed = 0
        """Bytes that the current `take` has taken out of queues."""
        self._bytes = 0
        """That wait in all outlets; an object counts once."""
        self._sender = HubSender(hub, take=self._take, acked=self._acked, batch_bytes=chunk)

    def add(self, subscription: Subscription, *, held: bool = False) -> None:
        """Open the subscription's outlet; `held`: nothing goes out before `catch_up`."""
        with self._changed:
            self._outlets[subscription.number] = self._new_outlet(subscription, held=held)

    def _new_outlet(self, subscription: Subscription, *, held: bool) -> Outlet:
        return Outlet(subscription, held=held)

    def catch_up(self, newcomers: Iterable[tuple[Subscription, Arrears, int]]) -> None:
        """Let newcomers go: each gets its arrears, and is told first how many objects it has missed; then what has come
        meanwhile. All in one step, so that what several of them get goes over the link once. Arrears that there is no
        room for are lost, and told: publishers do not wait for them."""
        with self._changed:
            for subscription, arrears, missed in newcomers:
                outlet = self._outlets.get(subscription.number)
                if outlet is None:  # cancelled meanwhile: it is owed nothing any more
                    continue
                subscription.matched += len(arrears) + arrears.dropped
                size = sum(waiting.parcel.size for waiting in arrears if waiting.places == 0)
                if self._bytes + size > self._budget.session_share or self._budget.used + size > self._budget.limit:
                    arrears.drop_all()
                    size = 0
                subscription.replayed += len(arrears)
                dropped = arrears.dropped
                outlet.catch_up(arrears)
                self._charge(size)
                while outlet.waiting > outlet.bound and self._policy(outlet) == "drop_oldest":
                    self._drop_oldest(outlet)
                    dropped += 1
                for cause, count in ((Cause.MISSED, missed), (Cause.QUEUE_OVERFLOW, dropped)):
                    if count:
                        self._lose(outlet, cause, count)
                self._make_ready(outlet)
            self._changed.notify_all()
        self._sender.ready()

    def remove(self, subscription: Subscription) -> int:
        """Close the outlet; how many objects waited in it or were on their way."""
        with self._changed:
            outlet = self._outlets.pop(subscription.number, None)
            if outlet is None:
                return 0
            waiting = outlet.held_up
            for flight in self._flying:
                if subscription in flight.subscriptions:
                    waiting += flight.count
                    flight.subscriptions = tuple(s for s in flight.subscriptions if s is not subscription)
            self._empty(outlet)
            outlet.cutting = None
            outlet.untold.clear()
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
            if subscription.number in self._outlets:
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
        outlet: Outlet | None = None
        waiting: Waiting | None = None
        share, most = self._budget.share, self._budget.session_share
        with self._changed:
            for whose, parcel in deliveries:
                if whose is not subscription:  # of a run, consecutive objects for one, the outlet is looked up once
                    subscription, outlet = whose, self._outlets.get(whose.number)
                    if blocked and any(before is whose for before, _ in blocked):
                        subscription = None
                        blocked.append((whose, parcel))  # behind the one before
                        continue
                if outlet is None:
                    gone.append(whose)  # cancelled since the match: after the cancel returned nothing may come
                    continue
                size = parcel.size
                if outlet.waiting >= outlet.bound or outlet.waiting_bytes >= share or self._bytes >= most:
                    if blocked is not None and self._would_wait(outlet, waited):
                        subscription = None
                        blocked.append((whose, parcel))
                        continue
                    has_room, stands = self._make_room(outlet, parcel, waits=blocked is None)
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
                outlet.put(waiting, size)
                if not outlet.ready:
                    self._make_ready(outlet)
            self._budget.add(taken)
        if at_once:
            self._sender.send()
        else:
            self._sender.ready()
        return gone

    def _would_wait(self, outlet: Outlet, waited: float) -> bool:
        request = outlet.subscription.request
        return (
            self._policy(outlet) == "block"
            and not outlet.held
            and waited < request.block_seconds
            and self._is_full(outlet)
        )

    def _policy(self, outlet: Outlet) -> str:
        """What happens when its queue is full."""
        return outlet.subscription.request.policy

    def _make_room(self, outlet: Outlet, parcel: Parcel, *, waits: bool = True) -> tuple[bool, bool]:
        """The queue, or the session's share, is full: act by the policy, for that object. (whether there is room,
        whether the subscription still stands)"""
        request, size, policy = outlet.subscription.request, parcel.size, self._policy(outlet)
        cause = Cause.QUEUE_OVERFLOW
        if policy == "block" and not outlet.held:  # nobody waits for who is still catching up
            self._sender.ready()  # what was offered before goes out meanwhile
            has_room = self._wait_for_room(outlet, request.block_seconds if waits else 0.0)
            if self._outlets.get(outlet.subscription.number) is not outlet:
                return False, False  # cancelled while we waited: its queue is empty, but nobody takes from it
            if has_room:
                return True, True
            cause = Cause.BLOCK_TIMEOUT
        dropped, has_room = 0, False
        if policy == "drop_oldest":
            before, others_hold = outlet.waiting_bytes, self._bytes >= self._budget.session_share
            wanted = size if others_hold else 0  # its own oldest make way for as much, not all for what others hold
            while outlet.waiting and (outlet.is_full(self._budget.share) or before - outlet.waiting_bytes < wanted):
                self._drop_oldest(outlet)  # many small ones may have to go for a large one
                dropped += 1
            has_room = before - outlet.waiting_bytes >= wanted
        if not has_room:
            outlet.subscription.matched += 1
        self._lose(outlet, cause, dropped + (not has_room))
        return has_room, True

    def _is_full(self, outlet: Outlet) -> bool:
        return outlet.is_full(self._budget.share) or self._bytes >= self._budget.session_share

    def _charge(self, size: int) -> None:
        self._bytes += size
        self._budget.add(size)

    def _drop_oldest(self, outlet: Outlet) -> None:
        waiting = outlet.drop_oldest()
        if waiting.places == 0:
            self._charge(-waiting.parcel.size)

    def lose(self, subscription: Subscription, cause: Cause, count: int = 1) -> bool:
        """Count a loss that happened elsewhere (e-mail, a gap) and tell the subscriber. False: the subscription is
        gone, and does not account for it any more."""
        with self._changed:
            outlet = self._outlets.get(subscription.number)
            if outlet is not None:
                self._lose(outlet, cause, count)
        self._sender.ready()
        return outlet is not None

    def refuse(self, subscription: Subscription, cause: Cause) -> bool:
        """An object that it matches is lost before it is queued. False: the subscription is gone."""
        with self._changed:
            outlet = self._outlets.get(subscription.number)
            if outlet is not None:
                subscription.matched += 1
                self._lose(outlet, cause)
        self._sender.ready()
        return outlet is not None

    def _take(self, max_items: int, max_bytes: int) -> list[Parts]:
        """What goes out next: ready subscriptions take turns. On the hub's thread."""
        items: list[Parts] = []
        size = 0
        with self._changed:
            self._freed = 0
            while self._ready and len(items) < max_items and size < max_bytes:
                outlet = self._ready.popleft()
                outlet.ready = False
                size += self._next(outlet, items, max_items, max_bytes - size)
                self._make_ready(outlet)
            self._take_rest(items, max_items)
        return items

    def _take_rest(self, items: list[Parts], max_items: int) -> None:
        """What is told of the session goes behind them; then the accounts."""
        while self._granted and len(items) < max_items:
            number, given = self._granted.popitem()
            self._fly((), 1)
            items.append((ITEM.pack(QUALITY, number), msgspec.msgpack.encode(given())))
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

    def attach(
        self, sock: socket.socket, position: int, close: Callable[[], None], compression: Compression | None = None
    ) -> None:
        """Deliver over that connection from now on, which `close` closes; the subscriber is at `position`."""
        self._sender.attach(sock, position, ended=close, compression=compression)

    def part(self) -> None:
        """Tell the subscriber that nothing comes any more, and that what waits is lost (shutdown)."""
        with self._changed:
            for outlet in self._outlets.values():
                outlet.held = False
                held = outlet.held_up
                self._empty(outlet)
                outlet.cutting = None
                if held:
                    self._lose(outlet, Cause.SHUTDOWN, held)
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
            while (outlet := self._outlets.get(subscription.number)) is not None and outlet.untold and self.connected:
                if (left := deadline - self._clock()) <= 0:
                    break
                self._changed.wait(min(0.02, left))  # nobody notifies of what has been told

    def sweep(self) -> None:
        """What waits may have expired: not here."""

    def close(self, cause: Cause) -> None:
        """The session is over: whatever waits is lost under `cause`."""
        with self._changed:
            self._closed = True
            for outlet in self._outlets.values():
                outlet.subscription.lost[cause] += outlet.held_up
                self._empty(outlet)
            for flight in self._flying:
                for subscription in flight.subscriptions:
                    subscription.lost[cause] += flight.count
            self._outlets.clear()
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
        """Objects that wait in all queues."""
        with self._changed:
            return sum(outlet.waiting for outlet in self._outlets.values())

    @property
    def in_flight(self) -> int:
        """Objects on their way and not acknowledged, those also of which some chunks have gone; one for several
        subscriptions counts for each."""
        with self._changed:
            return self._under_way() + sum(o.cutting is not None for o in self._outlets.values())

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
            return {o.subscription.uid: o.waiting for o in self._outlets.values()}

    def _empty(self, outlet: Outlet) -> None:
        freed = 0
        while outlet.waiting:
            waiting = outlet.drop_oldest()
            freed += waiting.parcel.size if waiting.places == 0 else 0
        self._charge(-freed)

    def _left(self) -> int:
        return sum(outlet.held_up for outlet in self._outlets.values()) + self._under_way()

    def _under_way(self) -> int:
        return sum(flight.count * len(flight.subscriptions) for flight in self._flying)

    def _fly(self, subscriptions: tuple[Subscription, ...], count: int) -> None:
        if self._flying and self._flying[-1].subscriptions == subscriptions:
            self._flying[-1].count += count
        else:
            self._flying.append(Flight(subscriptions, count))

    def _next(self, outlet: Outlet, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """Put what goes out next of that outlet behind `items`; its bytes."""
        if outlet.cutting is not None:
            item = self._next_chunk(outlet)
        elif outlet.untold:
            item = self._next_notice(outlet)
        elif not outlet.may_send():
            return 0
        elif outlet.front.head().parcel.size > self._chunk:
            waiting = outlet.front.take()
            waiting.places -= 1
            outlet.took(1, waiting.parcel.size)
            self._freed += waiting.parcel.size if waiting.places == 0 else 0
            outlet.cutting = chunks(waiting.parcel.parts, self._chunk)
            outlet.next_chunk = next(outlet.cutting)
            item = self._next_chunk(outlet)
        else:
            return self._next_run(outlet, items, max_items, max_bytes)
        items.append(item)
        return sum(map(len, item))

    def _next_notice(self, outlet: Outlet) -> Parts:
        cause, count = outlet.untold.popitem()
        self._fly((), 1)
        notice = LossNotice(outlet.subscription.uid, Cause(cause), min(count, COUNT_MOST))
        return ITEM.pack(LOSS, outlet.subscription.number), msgspec.msgpack.encode(notice)

    def _end_of(self, subscription: Subscription) -> tuple[Parts, Parts]:
        notice = LossNotice(subscription.uid, Cause.REFUSED, 0, "access was withdrawn")
        self._fly((), 2)
        number = subscription.number
        return (ITEM.pack(LOSS, number), msgspec.msgpack.encode(notice)), (ITEM.pack(END, number),)

    def _next_run(self, first: Outlet, items: list[Parts], max_items: int, max_bytes: int) -> int:
        """A run of objects, each once for all subscriptions that are ready for it now; the others get it by itself. It
        is one object if anybody else is ready, whose turn it is then."""
        front = first.front
        waiting = front.head()
        outlets = waiting.outlets
        others = outlets[SHARED_MOST:] or ()
        together = [first]
        if len(outlets) > 1:
            together += [one for one in outlets if one is not first and one.is_next(waiting)][: SHARED_MOST - 1]
        fronts = [outlet.front for outlet in together[1:]]
        most = 1
        if len(self._ready) == sum(outlet.ready for outlet in together):
            lengths = [len(one) for one in (front, *fronts)]
            most = min(max_items - len(items), *lengths, *[outlet.credit for outlet in together])
        head = item_head(together)
        count = size = sent = 0
        while True:
            parcel = waiting.parcel
            front.take()
            for other in fronts:
                other.take()
            waiting.places -= len(together)
            waiting.outlets = others
            if waiting.places == 0:
                self._freed += parcel.size
            items.append((head, *parcel.parts))
            count += 1
            size += parcel.size
            sent += len(head) + parcel.size
            if count >= most or sent >= max_bytes:
                break
            waiting = front.head()
            if waiting.outlets != outlets or waiting.parcel.size > self._chunk:
                break
            if fronts and any(other.head() is not waiting for other in fronts):
                break
        for outlet in together:
            outlet.took(count, size)
        self._fly(tuple([outlet.subscription for outlet in together]), count)
        return sent

    def _next_chunk(self, outlet: Outlet) -> Parts:
        assert outlet.cutting is not None
        assert outlet.next_chunk is not None
        chunk, outlet.next_chunk = outlet.next_chunk, next(outlet.cutting, None)
        last = outlet.next_chunk is None
        if last:
            outlet.cutting = None
        self._fly((outlet.subscription,) if last else (), 1)
        return ITEM.pack(LAST_CHUNK if last else CHUNK, outlet.subscription.number), chunk

    def _make_ready(self, outlet: Outlet) -> None:
        if not outlet.ready and outlet.may_send():
            outlet.ready = True
            self._ready.append(outlet)

    def _reached(self, delays: Mapping[int, tuple[int, int]]) -> None:
        """How long objects have waited for their applications: nobody asks here."""

    def _lose(self, outlet: Outlet, cause: Cause, count: int = 1) -> None:
        outlet.subscription.lost[cause] += count
        outlet.untold[cause] += count
        self._make_ready(outlet)

    def _wait_for_room(self, outlet: Outlet, seconds: float) -> bool:
        deadline = self._clock() + seconds
        while self._is_full(outlet):
            left = deadline - self._clock()
            if left <= 0 or self._closed or self._outlets.get(outlet.subscription.number) is not outlet:
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
                outlet = self._outlets.get(number)
                if outlet is not None and outlet.consumed < total <= outlet.sent:
                    outlet.consumed = total
                    self._make_ready(outlet)
            if heard.delays:
                self._reached(heard.delays)
            self._changed.notify_all()  # whoever drains
            ready = bool(self._ready)
        if ready:
            self._sender.ready()


def item_head(together: Sequence[Outlet]) -> bytes:
    """What an object's item begins with, for those subscriptions."""
    numbers = [outlet.subscription.number for outlet in together]
    if len(numbers) == 1:
        return ITEM.pack(OBJECT, numbers[0])
    return ITEM.pack(SHARED, len(numbers)) + struct.pack(f"!{len(numbers)}I", *numbers)


class Deliveries:
    """What a batch of publications comes to, gathered by subscriber session. One thread at a time."""

    def __init__(self) -> None:
        self._by_session: dict[SubscriberSession, list[Delivery]] = {}
        self.size = 0
        """Bytes gathered; an object that goes to several counts for each."""

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
        alone = len(gathered) == 1  # several sessions cost one wake-up of the hub, and it fills their batches meanwhile
        return [gone for session, deliveries in gathered.items() for gone in session.offer(deliveries, at_once=alone)]

    def offer_without_waiting(self, waited: float) -> tuple[list[Subscription], Deliveries | None]:
        """The same, and what would have to wait for a subscriber, as it did for `waited` seconds; None: nothing."""
        gathered, self._by_session, self.size = self._by_session, {}, 0
        gone: list[Subscription] = []
        left: Deliveries | None = None
        for session, deliveries in gathered.items():
            blocked: list[Delivery] = []
            gone += session.offer(deliveries, at_once=len(gathered) == 1, blocked=blocked, waited=waited)
            for subscription, parcel in blocked:
                left = left or Deliveries()
                left.add(session, subscription, parcel)
        return gone, left
