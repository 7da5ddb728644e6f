"""Delivery to subscribers: one session a subscriber process, one queue a subscription (see queue.py).

Rules:
- Order is kept per subscription; ready subscriptions of a session take turns.
- Credits end to end: a subscription has at most `bound` objects with its subscriber that the application has not
  consumed; beyond that they wait here, again at most `bound`; beyond that the policy decides.
- Each loss is counted under one cause and told in band, before the next object.
- A session without a connection keeps its queues while its lease lives.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.wire.deflate import Compression, described
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.stream import CHUNK_BYTES
from jbi_pubsub.pad.egress.batches import Batches, Parts, SessionNotices
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.flights import Flights
from jbi_pubsub.pad.egress.queue import Backlog, SubscriptionQueue
from jbi_pubsub.pad.egress.queues import Delivery, FeedControl, SessionQueues
from jbi_pubsub.pad.model.subscription import Subscription, shown
from jbi_pubsub.protocol.deliveries import NOTHING_HEARD, Heard
from jbi_pubsub.protocol.status.delegate import SessionStatus


class SubscriberSession:
    """Everything that goes to one subscriber process. Any thread may offer; the lock of its queues covers all state."""

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
        self.session_id = session_id
        self.name = name
        self.caller: Caller | None = None
        """The caller that has opened it."""
        self.opened = 0.0
        """When, by the delegate's clock."""
        self.lease_id = ""
        self._clock = clock
        self._sender = HubSender(hub, take=self._take, acked=self._acked, batch_bytes=chunk)
        self._flights = Flights(clock)
        self._notices = SessionNotices()
        self._queues = self.make_queues(budget, clock)
        self._changed = self._queues.changed
        self._batches = self.make_batches(chunk)
        self.feeds = FeedControl(self._queues, self.add)

    def make_queues(self, budget: Budget, clock: Callable[[], float]) -> SessionQueues:
        """Queues as this kind of session has them."""
        return SessionQueues(budget, clock, self._sender.ready)

    def make_batches(self, chunk: int) -> Batches:
        """Batches as this kind of session sends them."""
        return Batches(self._queues, self._flights, self._notices, chunk)

    # -- subscriptions ------------------------------------------------------------------------------------------

    def add(self, subscription: Subscription, *, held: bool = False) -> SubscriptionQueue:
        """Open the subscription's queue; `held`: nothing goes out before `catch_up`."""
        with self._changed:
            return self._queues.add(subscription, held=held)

    def catch_up(self, joiners: Iterable[tuple[Subscription, Backlog, int]]) -> None:
        """Let late joiners go: each gets its backlog, and is told first how many objects it has missed; then what has
        come meanwhile. All in one step, so that what several of them get goes over the link once. A backlog that there
        is no room for is lost, and told: publishers do not wait for it."""
        with self._changed:
            may_send = [self._queues.catch_up(*joiner) for joiner in joiners]
            self._changed.notify_all()
        if any(may_send):
            self._sender.ready()

    def remove(self, subscription: Subscription) -> int:
        """Close the queue; how many objects waited in it or were on their way."""
        with self._changed:
            queue = self._queues.by_number.pop(subscription.number, None)
            if queue is None:
                return 0
            queue.settle()
            waiting = queue.held_up + self._flights.forget(subscription)
            self._queues.empty(queue)
            queue.cutting = None
            queue.untold.clear()
            self._queues.ending.pop(queue, None)
            queue.wake_feed()
            self._changed.notify_all()
            return waiting

    def expel(self, subscription: Subscription) -> int:
        """As `remove`, and tell the subscriber that it has ended here: it is refused now."""
        lost = self.remove(subscription)
        with self._changed:
            self._notices.expelled.append(subscription)
            self._notices.was_refused = True
        self._sender.ready()
        return lost

    @property
    def was_refused(self) -> bool:
        """Whether it was refused access to something that it wants."""
        return self._notices.was_refused

    def note_refused(self) -> None:
        """Note that it is to be told when what it wants may be allowed."""
        self._notices.was_refused = True

    def ask_again(self) -> None:
        """Tell the subscriber that what was refused may be allowed now, if anything was."""
        notices = self._notices
        with self._changed:
            notices.is_to_ask, notices.was_refused = notices.was_refused, False
        self._sender.ready()

    def tell_quality(self, subscription: Subscription, given: Callable[[], GrantedQos]) -> None:
        """Tell its subscriber what it has got, instead of what it had; `given` is asked when that goes out."""
        with self._changed:
            if subscription.number in self._queues.by_number:
                self._notices.granted[subscription.number] = given
        self._sender.ready()

    # -- objects ------------------------------------------------------------------------------------------------

    def expect_expiry(self) -> None:
        """Some of what comes may expire."""
        self._queues.is_expiring = True

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
        with self._changed:
            gone = self._queues.offer(deliveries, blocked, waited)
        if at_once:
            self._sender.send()
        else:
            self._sender.ready()
        return gone

    def lose(self, subscription: Subscription, cause: Cause, count: int = 1, *, matched: int = 0) -> bool:
        """Count a loss that happened elsewhere (e-mail, a gap) and tell the subscriber; `matched`: how many of them it
        has not been counted for. False: the subscription is gone, and does not account for it any more."""
        with self._changed:
            queue = self._queues.by_number.get(subscription.number)
            if queue is not None:
                subscription.matched += matched
                self._queues.lose(queue, cause, count)
        self._sender.ready()
        return queue is not None

    def refuse(self, subscription: Subscription, cause: Cause) -> bool:
        """An object that it matches is lost before it is queued. False: the subscription is gone."""
        return self.lose(subscription, cause, matched=1)

    def _take(self, *most: int) -> list[Parts]:
        """Take what goes out next: so many items, so many bytes, of which levels. On the hub's thread."""
        with self._changed:
            return self._batches.take(*most)

    def _acked(self, count: int, note: bytes) -> None:
        try:
            heard = decoder_of(Heard).decode(note) if note else NOTHING_HEARD
        except msgspec.DecodeError as exc:
            raise ProtocolError(f"bad acknowledgement: {exc}") from exc
        with self._changed:
            self._flights.land(count)
            for number, total in heard.consumed.items():
                self._queues.taken(number, total)
            for number, positions in heard.acknowledged.items():
                self._queues.acknowledged(number, positions)
            if heard.delays:
                self._queues.reached(heard.delays)
            self._changed.notify_all()  # whoever drains
            ready = bool(self._queues.ready)
        if ready:
            self._sender.ready()

    # -- the connection, and the end ----------------------------------------------------------------------------

    def attach(
        self, sock: socket.socket, position: int, close: Callable[[], None], compression: Compression | None = None
    ) -> None:
        """Deliver over that connection from now on, which `close` closes; the subscriber is at `position`."""
        self._sender.attach(sock, position, ended=close, compression=compression)

    def part(self) -> None:
        """Tell the subscriber that nothing comes any more, and that what waits is lost (shutdown)."""
        with self._changed:
            for queue in self._queues.by_number.values():
                queue.release()
                queue.settle()
                held = queue.held_up
                self._queues.empty(queue)
                queue.cutting = None
                if held:
                    self._queues.lose(queue, Cause.SHUTDOWN, held)
            self._notices.is_parting = True
        self._sender.ready()

    def wait_parted(self, timeout: float) -> None:
        """Wait until the subscriber has acknowledged all that, or is not connected any more; `timeout` seconds."""
        deadline = self._clock() + timeout
        with self._changed:
            while (
                (self._notices.is_parting or self._flights)
                and self.connected
                and (left := deadline - self._clock()) > 0
            ):
                self._changed.wait(min(0.05, left))  # nobody notifies of a connection that ends

    def end(self, subscription: Subscription, cause: Cause, timeout: float) -> None:
        """Tell the subscriber that it gets no more of it, and wait until that is on its way, at most `timeout` seconds,
        or it is not connected."""
        if not self.lose(subscription, cause, 0):
            return
        deadline, queues = self._clock() + timeout, self._queues.by_number
        with self._changed:
            while (queue := queues.get(subscription.number)) is not None and queue.untold and self.connected:
                if (left := deadline - self._clock()) <= 0:
                    break
                self._changed.wait(min(0.02, left))  # nobody notifies of what has been told

    def sweep(self) -> None:
        """Look at what waits and may have expired: not here."""

    def close(self, cause: Cause) -> None:
        """The session is over: whatever waits is lost under `cause`."""
        with self._changed:
            self._queues.close(cause)
            self._flights.lose_all(cause)
            self._changed.notify_all()
        self._sender.stop()

    def drain(self, timeout: float) -> int:
        """Wait until everything is delivered; how many objects are left after `timeout` seconds."""
        deadline = self._clock() + timeout
        with self._changed:
            while (left := self._left()) and self._clock() < deadline:
                self._changed.wait(min(0.1, max(0.0, deadline - self._clock())))
        return left

    def _left(self) -> int:
        return sum(queue.held_up for queue in self._queues.by_number.values() if queue.counted) + self._flights.objects

    # -- status -------------------------------------------------------------------------------------------------

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
            return sum(queue.waiting for queue in self._queues.by_number.values() if queue.counted)

    @property
    def in_flight(self) -> int:
        """Objects on their way and not acknowledged, those also of which some chunks have gone; one for several
        subscriptions counts for each."""
        with self._changed:
            cut = sum(o.cutting is not None for o in self._queues.by_number.values() if o.counted)
            return self._flights.objects + cut

    @property
    def delay_ms(self) -> float:
        """Milliseconds from an object's leaving its queue to its acknowledgement, lately."""
        with self._changed:
            return round(1000 * self._flights.seconds, 1)

    def status(self) -> SessionStatus:
        """Connection, queue lengths."""
        with self._changed:
            return SessionStatus(
                session=shown(self.session_id),
                name=self.name,
                connected=self.connected,
                **described(self._sender.compression),  # type: ignore[arg-type]  # plain data
                in_flight=self.in_flight,
                delay_ms=self.delay_ms,
                queued=self.waiting(),
            )

    def waiting(self) -> dict[str, int]:
        """Objects that wait, by subscription."""
        with self._changed:
            return {o.subscription.uid: o.waiting for o in self._queues.by_number.values() if o.counted}


class Deliveries:
    """Deliveries of a batch of publications, gathered by subscriber session. One thread at a time."""

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
                session.expect_expiry()
        alone = len(gathered) == 1  # several sessions cost one wake-up of the hub, and it fills their batches meanwhile
        return [gone for session, deliveries in gathered.items() for gone in session.offer(deliveries, at_once=alone)]

    def offer_without_waiting(self, waited: float) -> tuple[list[Subscription], Deliveries | None]:
        """The same, and what would have to wait for a subscriber, as it did for `waited` seconds; None: nothing."""
        gathered, self._by_session, self.size = self._by_session, {}, 0
        if self.is_expiring:
            for session in gathered:
                session.expect_expiry()
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
