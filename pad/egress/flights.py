"""Items on their way to a subscriber: whose deliveries they complete, and how long they take."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.pad.model.subscription import Subscription

DELAY_SECONDS: Final = 10.0
"""A delay that was seen so long ago says nothing of now."""


class Delay:
    """Time until what is sent is acknowledged: measured on one item at a time, so that it costs nothing to know."""

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
    """Items one after the other, each of which completes a delivery to the same subscriptions, or to none (chunks,
    notices)."""

    __slots__ = ("count", "subscriptions")

    def __init__(self, subscriptions: tuple[Subscription, ...], count: int) -> None:
        self.subscriptions = subscriptions
        self.count = count


class Flights:
    """All items on their way to one subscriber, as they went. Its session's lock covers them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.delay = Delay()
        self._flying: deque[Flight] = deque()

    def __len__(self) -> int:
        return len(self._flying)

    def add(self, subscriptions: tuple[Subscription, ...], count: int) -> None:
        """So many items more, which complete deliveries to these."""
        if self._flying and self._flying[-1].subscriptions == subscriptions:
            self._flying[-1].count += count
        else:
            self._flying.append(Flight(subscriptions, count))

    def land(self, count: int) -> None:
        """So many more are acknowledged: delivered."""
        self.delay.landed(count, self.clock)
        while count and self._flying:
            flight = self._flying[0]
            arrived = min(count, flight.count)
            for subscription in flight.subscriptions:
                subscription.delivered += arrived
            count -= arrived
            flight.count -= arrived
            if not flight.count:
                self._flying.popleft()

    def forget(self, subscription: Subscription) -> int:
        """Forget a subscription that has ended; how many objects for it were on their way."""
        count = 0
        for flight in self._flying:
            if subscription in flight.subscriptions:
                count += flight.count
                flight.subscriptions = tuple(s for s in flight.subscriptions if s is not subscription)
        return count

    def lose_all(self, cause: Cause) -> None:
        """The subscriber has gone: nothing arrives any more."""
        for flight in self._flying:
            for subscription in flight.subscriptions:
                subscription.lost[cause] += flight.count
        self._flying.clear()

    @property
    def objects(self) -> int:
        """Objects on their way; one for several subscriptions counts for each."""
        return sum(flight.count * len(flight.subscriptions) for flight in self._flying)

    @property
    def seconds(self) -> float:
        """The delay by now, see Delay."""
        return self.delay.seconds(self.clock())
