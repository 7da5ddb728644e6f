"""The flows of a session: objects that come from a delegate for a subscription or query, and credits that go back.

A flow has a number, which the delegate has granted. As soon as something of it was consumed it stands among the news,
once; the next acknowledgement has all of these.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.lease import Lease
from jbi_pubsub.core.quality import GrantedQos
from jbi_pubsub.protocol.deliveries import Heard

from .subscription import LocalSubscription

log = logging.getLogger("jbi_pubsub.subscriber")

CREDIT_PART: Final = 4
"""Consumption is reported with each acknowledgement, and by itself when a quarter of the bound is unreported, or of
what it may have under quality of service, which is less. Where it moves a place in an archive, after a quiet second,
too."""

TIMED_SECONDS: Final = 1.0
"""Between two objects of which it is looked how long the application lets them wait."""

DELAYS_MOST: Final = 1_000
"""Subscriptions of which that is told in one acknowledgement."""

MICROS_MOST: Final = 2**40


class DeliveryFlow:
    """The objects that come for a subscription, or a query, from a delegate, and what was taken of them."""

    goes_on = False
    """Whether what was taken last counts the next time."""

    def __init__(
        self,
        subscription: LocalSubscription,
        number: int,
        table: FlowTable,
        lease: Lease | None = None,
        prefetch: int = 0,
    ) -> None:
        """`table`: told when something was consumed, and when that is enough for a report of its own."""
        self.subscription = subscription
        self.number = number
        self.lease = lease
        self.reported = 0
        self.revision = subscription.terms.revision
        """Number of the terms that it has there."""
        self.quality = GrantedQos()
        """Grant of its wish."""
        self._table = table
        self._is_news = False
        bound = subscription.request.bound
        self._report_after = max(1, min(bound, prefetch or bound) // CREDIT_PART)
        self._lock = threading.Lock()  # covers consumed: several threads of an application may take
        self.consumed = 0
        self.coming: Gathering | None = None
        """A large object of which there is more."""
        self.is_placed = False
        """Whether its objects come with their positions in an archive."""
        self.archive = ""
        """The incarnation of that."""

    def take_quality(self, granted: GrantedQos) -> None:
        """Take another grant. What is required and not offered is said once."""
        for each in granted.unmet:
            if each not in self.quality.unmet:
                log.warning(
                    "subscription %s requires %s %g, and registration %s offers %g: its objects come all the same",
                    self.subscription.uid, each.field, each.required, each.registration[:64], each.offered,
                )  # fmt: skip
        self.quality = granted

    def came(self, count: int) -> None:
        """So many objects more have come."""

    def delay(self) -> tuple[int, int] | None:
        """Time that the application lets objects wait: nobody asks."""
        return None

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        with self._lock:
            self.consumed += count
        if not self._is_news:
            self._is_news = True
            self._table.news.append(self)
        if self.consumed - self.reported >= self._report_after:
            self._table.due()

    def may_lack(self, matched: Collection[str]) -> bool:
        """Whether something may be lost there that is not told; `matched`: registrations."""
        return self.subscription.may_lack(self.consume, matched, is_placed=self.is_placed)

    def hand_on(self, objects: Sequence[InfoObject]) -> None:
        """Objects have come for it."""
        self.subscription.add(objects, self.consume)

    def drop(self, objects: Sequence[InfoObject]) -> None:
        """These have come, and it does not get them."""
        self.consume(len(objects))

    def acknowledged(self) -> tuple[int, ...]:
        """Positions that the application has acknowledged since they were told last."""
        return ()

    def report(self) -> bool:
        """Whether something was consumed since the last report; from now on it is reported."""
        self._is_news = False  # before the number is read: what is consumed from here on makes it news again
        total = self.consumed
        is_more, self.reported = total > self.reported, total
        return is_more

    def report_again(self) -> None:
        """The last report may not have come."""
        self.reported = 0
        self._is_news = True
        self._table.news.append(self)


class TimedFlow(DeliveryFlow):
    """Where quality of service is managed: looks at one object a second, how long it waits for the application."""

    def __init__(self, *given: Any, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(*given)
        self._clock = clock
        self._came = 0
        self._probe: tuple[int, float] | None = None
        """The number of the object that is looked at, and when it came."""
        self._again = 0.0
        """Nothing is looked at before."""
        self._waited: float | None = None
        self._jitter = 0.0
        self._is_told = True

    def came(self, count: int) -> None:
        """So many objects more have come."""
        self._came += count
        if self._probe is None and (now := self._clock()) >= self._again:
            self._probe, self._again = (self._came, now), now + TIMED_SECONDS

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        super().consume(count)
        probe = self._probe
        if probe is not None and self.consumed >= probe[0]:
            waited = max(0.0, self._clock() - probe[1])
            if self._waited is not None:
                self._jitter += (abs(waited - self._waited) - self._jitter) / 16
            self._waited, self._probe, self._is_told = waited, None, False

    def delay(self) -> tuple[int, int] | None:
        """Microseconds that the application lets objects wait, and their jitter, if they are new."""
        if self._is_told or self._waited is None:
            return None
        self._is_told = True
        return min(MICROS_MOST, int(1e6 * self._waited)), min(MICROS_MOST, int(1e6 * self._jitter))


class FlowTable:
    """The flows of a session by their numbers. `changed` is the session's condition; it covers what is here as well."""

    def __init__(
        self, changed: threading.Condition, expects_answers: Callable[[], bool], due: Callable[[], None]
    ) -> None:
        """`expects_answers`, called under the lock: whether the delegate may have granted more than we
        know; `due`: has what was consumed reported at once."""
        self.by_number: dict[int, DeliveryFlow] = {}
        """Those whose objects are taken."""
        self.news: deque[DeliveryFlow] = deque()
        """Those of which something was consumed since the last acknowledgement."""
        self.highest = 0
        """The number granted last, whether it is still wanted or not: later ones are higher."""
        self.due = due
        self._changed = changed
        self._expects_answers = expects_answers

    def await_flow(self, number: int) -> DeliveryFlow | None:
        """The flow of that number. Its first object may overtake the answer to subscribe: wait for that, however often
        it has to be asked for; to pass over the object would be a loss that nobody counts."""
        with self._changed:
            while number > self.highest and self._expects_answers():
                self._changed.wait(0.05)
            return self.by_number.get(number)

    def report_again(self) -> None:
        """Under the lock: the last connection may have swallowed what was reported there."""
        for flow in self.by_number.values():
            flow.report_again()

    def is_told_last(self) -> bool:
        """Under the lock: whether what was taken last has to be told before we leave, else it comes again."""
        return any(flow.goes_on for flow in self.by_number.values())

    def owes_places(self) -> bool:
        """Under the lock: whether something was taken that would come again to the next process, as it is not told."""
        return any(flow.goes_on and flow.consumed > flow.reported for flow in self.by_number.values())

    def note(self) -> bytes:
        """The note of an acknowledgement: what was consumed in all, of those of which something was since the last."""
        consumed: dict[int, int] = {}
        delays: dict[int, tuple[int, int]] = {}
        acknowledged: dict[int, tuple[int, ...]] = {}
        while self.news:
            try:
                flow = self.news.popleft()
            except IndexError:  # another thread reports as well
                break
            if flow.report() and self.by_number.get(flow.number) is flow:
                consumed[flow.number] = flow.reported
                if len(delays) < DELAYS_MOST and (delay := flow.delay()) is not None:
                    delays[flow.number] = delay
                if positions := flow.acknowledged():
                    acknowledged[flow.number] = positions
        return msgspec.msgpack.encode(Heard(consumed, delays, acknowledged)) if consumed else b""
