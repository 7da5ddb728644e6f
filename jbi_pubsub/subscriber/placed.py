"""A subscription that begins in the past, or is durable: each object once, from whichever archives have it."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import groupby
from types import FunctionType
from typing import Any, Final

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.intervals import LEAST, Intervals
from jbi_pubsub.protocol.replies import Grant
from jbi_pubsub.protocol.requests import NEW, Start, SubscriptionRequest

from .flows import DeliveryFlow
from .listeners import FunctionListener, ListenerPool, SubscriptionListener, SubscriptionUid
from .queue import Consumer
from .subscription import REGISTRATIONS_REMEMBERED, LocalSubscription

log = logging.getLogger("jbi_pubsub.subscriber")

INTERVALS_MOST: Final = 65_536
"""Intervals of numbers that a subscription remembers which begins in the past, of all its registrations, about."""

PLACES_REMEMBERED: Final = 1_000
"""Delegates whose positions it remembers."""

DISORDER: Final = 10_000
"""Positions: objects of several publishers need not come in their order, so where a session was lost, one that is so
far behind the last may not have come."""


ARCHIVES_MOST: Final = 16
"""Archives of which it is remembered, for a registration, how far they have given it; the last ones."""


class HeldNumbers(Intervals):
    """Numbers of a registration that have come, and how far each archive has given it."""

    __slots__ = ("_reached",)

    def __init__(self) -> None:
        super().__init__()
        self._reached: dict[str, tuple[int, int]] = {}
        """The highest number and the highest position, by archive."""

    def has_passed(self, archive: str, number: int, position: int) -> bool:
        """Whether that archive has given later ones; from now on it has given this one. An archive gives a registration
        in order: an earlier one came, or was told as lost. What is imported has lower numbers, and higher positions."""
        last, place = self._reached.get(archive, (0, 0))
        if number > last and position > place:
            self._reached[archive] = number, position
        elif number <= last and position <= place:
            return True
        else:
            self._reached[archive] = max(number, last), max(position, place)
        if len(self._reached) > ARCHIVES_MOST:
            del self._reached[next(iter(self._reached))]
        return False


class PlacedSubscription(LocalSubscription):
    """One that begins in the past, or is durable. Objects of a registration come from several delegates, each of which
    has the part that it took: in any order, each once. Order holds for a delegate and registration."""

    def __init__(
        self, request: SubscriptionRequest, listener: SubscriptionListener | None, listeners: ListenerPool
    ) -> None:
        super().__init__(request, listener, listeners)
        self._held: OrderedDict[str, HeldNumbers] = OrderedDict()
        """Numbers that have come, by registration."""
        self._places: Cache[str, tuple[int, int]] = Cache(PLACES_REMEMBERED)
        """The first and the last position that came from each delegate."""
        self._archives: Cache[str, str] = Cache(PLACES_REMEMBERED)
        """The incarnation of the archive that it came from last, by address."""
        self._lineages: Cache[str, str] = Cache(PLACES_REMEMBERED)
        """The first incarnation that an archive had here, by its last one."""
        self._unplaced: set[Consumer] = set()
        """Delegates from which objects came that no archive has."""
        self._is_explicit = request.ack == "explicit" and bool(request.durable)
        self._unacknowledged: dict[str, tuple[PlacedFlow, int]] = {}
        """Objects that the application has, or will have, and has not acknowledged: where they stand."""

    def request_at(self, server: str) -> SubscriptionRequest:
        """Request to go on behind what came from there, but for what may have been overtaken, and is dropped if it was
        not; the position of a durable one is known there."""
        with self.queue.changed:
            place = self._places.get(server)
        if place is None or self.request.durable:
            return self.request
        first, last = place
        after = last if self.request.start.kind == "last" else max(first - 1, last - DISORDER)
        return msgspec.structs.replace(self.request, start=Start("after", after=after))

    def placed_at(self, address: str, granted: Grant) -> None:
        """Note that it is filled by the archive there, from now on. If that is not the one that it was to go on with,
        that is told: what it lacks of the other one nobody knows."""
        with self.queue.changed:
            before = self._archives.get(address, "")
            moved = [at for at, was in self._archives.items() if at != address and was in granted.incarnations]
            for former in moved:  # it has another address now
                del self._archives[former]
            newest = self._archives[address] = next(iter(granted.incarnations), "")
            known = next((each for each in granted.incarnations if each in self._lineages), newest)
            self._lineages[newest] = self._lineages.pop(known, newest)
        if granted.is_new and not before:
            log.info("durable subscription %r is new at %s: it begins at its `start`", self.request.durable, address)
        if before and before not in granted.incarnations:
            self.lose(Cause.OTHER_ARCHIVE, 0, f"another one than before, or a copy of it, is at {address} now")
        elif granted.is_elsewhere and not before:
            at = self.request.start
            self.lose(Cause.OTHER_ARCHIVE, 0, f"position {at.after} is not of the one at {address}, all of which comes")

    def kept_at(self) -> list[str]:
        """Those that it has stood at, if it is durable."""
        with self.queue.changed:
            return list(self._archives) if self.request.durable else []

    def may_lack(self, source: Consumer, matched: Collection[str], *, is_placed: bool) -> bool:  # noqa: ARG002
        """Not what an archive has, which gives it when it is there again."""
        with self.queue.changed:
            return not is_placed or source in self._unplaced

    def add(self, objects: Sequence[InfoObject], consumed: Consumer) -> None:
        """Objects have come from where there is no archive."""
        with self.queue.changed:
            fresh, late = self._fresh(objects)
            kept = [(obj, consumed) for obj, is_new in zip(objects, fresh, strict=True) if is_new]
            self.queue.put(kept)
        if len(kept) < len(objects):
            consumed(len(objects) - len(kept))
        if late:
            self.lose(Cause.LATE, late)

    def add_placed(self, objects: Sequence[InfoObject], source: PlacedFlow) -> None:
        """Objects have come with their positions. One thread for each source."""
        with self.queue.changed:
            fresh, late = self._fresh(objects)
            settled = self._await_acknowledgement(objects, fresh, source) if self._is_explicit else ()
            places = [obj.platform.position for obj in objects if obj.platform.position]
            if len(places) < len(objects):
                self._unplaced.add(source.consume)
            self._place(source.server, places)
        for is_new, run in groupby(fresh):  # before the application can take any of them
            count = len(list(run))
            source.taken_over(count if is_new else 0, 0 if is_new else count)
        for position in settled:
            source.acknowledge(position)
        with self.queue.changed:
            if not self.queue.is_closed:
                kept = ((obj, source.consume) for obj, is_new in zip(objects, fresh, strict=True) if is_new)
                self.queue.put(kept)
        if late:
            self.lose(Cause.LATE, late)

    def _place(self, server: str, positions: Sequence[int]) -> None:
        """Under the lock: objects came from there."""
        known = self._places.get(server)
        if positions or known is not None:
            all_of = [*positions, *(known or ())]
            self._places[server] = min(all_of), max(all_of)

    def acknowledge(self, obj: InfoObject) -> bool:
        """Whether the object stood to be acknowledged; now it is."""
        with self.queue.changed:
            known = self._unacknowledged.pop(obj.object_id, None)
        if known is None:
            return False
        source, position = known
        source.acknowledge(position)
        return True

    def _fresh(self, objects: Sequence[InfoObject]) -> tuple[list[bool], int]:
        """Under the lock: which of them are new; of how many it can't be said any more that they came before."""
        if self.queue.is_closed:
            return [False] * len(objects), 0
        fresh, late = [], 0
        registration, held, most = "", None, 0
        for obj in objects:
            platform = obj.platform
            if held is None or platform.registration != registration:
                registration = platform.registration
                held = self._held_of(registration)
                most = max(LEAST, INTERVALS_MOST // len(self._held))
            number, position = platform.sequence, platform.position
            archive = self._lineages.get(platform.archive, "") if position else ""
            is_known = archive != "" and held.has_passed(archive, number, position)
            is_new = held.add_within(number, most) and not is_known
            is_guessed = not (is_new or is_known) and number <= held.guessed
            late += is_guessed and obj.object_id not in self._unacknowledged
            fresh.append(is_new)
        new = sum(fresh)
        self.arrived += new
        self.duplicates += len(fresh) - new - late
        return fresh, late

    def _held_of(self, registration: str) -> HeldNumbers:
        held = self._held.get(registration)
        if held is None:
            held = self._held[registration] = HeldNumbers()
            if len(self._held) > REGISTRATIONS_REMEMBERED:
                self._held.popitem(last=False)
        self._held.move_to_end(registration)
        return held

    def _await_acknowledgement(
        self, objects: Sequence[InfoObject], fresh: Sequence[bool], source: PlacedFlow
    ) -> list[int]:
        """Under the lock: the positions of those that come again although the application has acknowledged them: that
        was not heard. Of those that it has not, the place that they have now counts."""
        settled = []
        for obj, is_new in zip(objects, fresh, strict=True):
            if is_new or obj.object_id in self._unacknowledged:
                self._unacknowledged[obj.object_id] = (source, obj.platform.position)
            elif not self.queue.is_closed:
                settled.append(obj.platform.position)
        return settled


class PlacedFlow(DeliveryFlow):
    """One that begins in the past, or is durable: what the delegate is told of it is what it goes on from.

    Objects that have come before, from another delegate, are dropped at once. But what was consumed is told as a
    number, in the order in which the objects came: so a dropped one counts when all before it were taken.
    """

    goes_on = True

    def __init__(self, server: str, *given: Any) -> None:
        super().__init__(*given)
        self.server = server
        self.is_placed = True
        self._runs: deque[list[int]] = deque()
        """Runs of objects that came: how many the application is to take, how many were dropped behind these."""
        self._news_of: deque[int] = deque()
        """Positions that were acknowledged and not told yet."""
        self._told: deque[int] = deque(maxlen=self.subscription.request.bound)
        """Those that were, the last ones: so many at most may be unacknowledged there."""

    def hand_on(self, objects: Sequence[InfoObject]) -> None:
        """Objects have come for it."""
        assert isinstance(self.subscription, PlacedSubscription)
        self.subscription.add_placed(objects, self)

    def drop(self, objects: Sequence[InfoObject]) -> None:
        """These have come, and it does not get them: nor would it the next time."""
        self.taken_over(0, len(objects))
        if self.subscription.request.ack == "explicit":
            for obj in objects:
                self.acknowledge(obj.platform.position)

    def taken_over(self, kept: int, dropped: int) -> None:
        """So many objects came for the application, then so many that it has."""
        with self._lock:
            if not kept and self._runs:
                self._runs[-1][1] += dropped
                return
            if kept:
                self._runs.append([kept, dropped])
                return
        super().consume(dropped)

    def consume(self, count: int) -> None:
        """The application has taken so many objects more."""
        total = count
        with self._lock:
            while count and self._runs:
                taken = min(count, self._runs[0][0])
                self._runs[0][0] -= taken
                count -= taken
                if not self._runs[0][0]:
                    total += self._runs.popleft()[1]
        super().consume(total)

    def acknowledge(self, position: int) -> None:
        """The application has acknowledged that object."""
        self._news_of.append(position)
        super().consume(0)
        self._table.due()

    def acknowledged(self) -> tuple[int, ...]:
        """Positions that the application has acknowledged since they were told last."""
        positions = []
        with suppress(IndexError):
            while True:
                positions.append(self._news_of.popleft())
        self._told.extend(positions)
        return tuple(positions)

    def report(self) -> bool:
        """Whether something was consumed or acknowledged since the last report."""
        return super().report() or bool(self._news_of)

    def report_again(self) -> None:
        """The last report may not have come."""
        again = list(self._told)
        self._told.clear()
        self._news_of.extendleft(reversed(again))
        super().report_again()


def subscription_of(
    request: SubscriptionRequest,
    listener: SubscriptionListener | Callable[[SubscriptionUid, InfoObject], object] | None,
    listeners: ListenerPool,
) -> LocalSubscription:
    """The subscription of a request; `listeners` call its listener."""
    called: SubscriptionListener | None = None
    if isinstance(listener, FunctionType) or not isinstance(listener, SubscriptionListener | None):  # the second: 7 us
        called = FunctionListener(listener)
    else:
        called = listener
    kind = PlacedSubscription if request.durable or request.start != NEW else LocalSubscription
    return kind(request, called, listeners)
