"""Queue of one subscription under policies: by level, in order per registration, newest per key, until its deadline.
Pure: `now` (monotonic seconds) is an argument; the owner's lock covers it.

Rules:
- A lane a registration, first in first out. A lane stands at the level of the most important that waits in it: an
  important object pulls its predecessors along, and the order of a registration holds. Lanes of a level take turns.
- What a newer object of its key replaces is taken out, and the newer one stands at the end of its lane: in the older
  one's place it would come before objects of lower numbers, which their subscriber takes for seen already.
- What expired is looked at when its turn comes, and when the owner sweeps.
- Whoever is taken out without being taken is told to `lost`, once, with its cause.
- Put and take take the same time however many wait. What is taken out within a lane leaves a mark there, and at most
  half of a lane is marks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Generic, TypeVar

import msgspec

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import note
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import LEVELS, Contract, Rate
from jbi_pubsub.core.scheduling import QueuedObject
from jbi_pubsub.core.xml import read_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.core.xpath.predicate import compiled_xpath

MARKS: Final = 16
"""Marks of a lane, or of the list of a level, beside which it is not made anew."""
LANES_KEPT: Final = 64
"""Empty lanes: their registrations may be gone."""
RATE_SECONDS: Final = 1.0
"""A subscription that has a rate in bytes may get so many seconds of it at once after a pause."""
AT_ONCE: Final = 1e-6
"""Objects at once under a rate in objects: one, then none for 1/rate."""
RATES_MOST: Final = 100
"""Rates and types of one subscription that are paced: of those beyond, the first one begins anew."""
TOGETHER_SECONDS: Final = 0.25
"""Seconds: what expires so little before the one in front of it is found with that one: it is never taken too late."""
EXPRESSIONS: Final = 1_000
"""Expressions of keys that are kept compiled."""

Key = tuple[str, str]


W = TypeVar("W", bound=QueuedObject)


class RateLimits:
    """Rates of one contract: its own, and those that policies have for some of its objects alone, by type."""

    def __init__(self) -> None:
        self._rate: Rate | None = None
        self._own: TokenBucket | None = None
        self._others: Cache[tuple[Rate, str], TokenBucket] = Cache(RATES_MOST)

    def set(self, rate: Rate | None, now: float) -> None:
        """The contract's own rate from now on."""
        self._rate = rate
        if rate is None:
            self._own = None
        elif self._own is None:
            self._own = TokenBucket(rate.amount, _burst(rate), now)
        else:
            self._own.set(rate.amount, _burst(rate), now, sooner=True)  # it is people who set it

    def of(self, rate: Rate, parcel: Parcel, now: float) -> TokenBucket:
        """Bucket that an object counts against that may come at that rate."""
        if self._own is not None and rate == self._rate:
            return self._own
        key = rate, parcel.head.type_name
        bucket = self._others.get(key)
        if bucket is None:
            bucket = self._others[key] = TokenBucket(rate.amount, _burst(rate), now)
        return bucket

    def passes(self, rate: Rate, parcel: Parcel, now: float) -> bool:
        """Whether an object may come now, which counts then."""
        bucket = self.of(rate, parcel, now)
        if bucket.ready_in(now):
            return False
        bucket.take(parcel.size if rate.unit == "bytes" else 1, now)
        return True


class QueueEntry(msgspec.Struct, Generic[W], eq=False, gc=False):
    waiting: W | None
    """None: a mark."""
    level: int
    expires: float
    key: Key | None = None


class QueueLane(Generic[W]):
    __slots__ = ("counts", "entries", "level", "marks", "rings")

    def __init__(self) -> None:
        self.entries: deque[QueueEntry[W]] = deque()
        """The first one is no mark."""
        self.counts = [0] * LEVELS
        self.level = -1
        """The highest that waits; -1: nothing does."""
        self.rings = 0
        """Bit mask of the rings that it stands in: those of other levels than its own drop it when they come to it."""
        self.marks = 0


class LevelQueue(Generic[W]):
    """See the module's rules."""

    def __init__(self, contract: Contract, lost: Callable[[W, Cause], None]) -> None:
        """`lost(waiting, cause)`: it is not here any more, or was not let in."""
        self._contract = contract
        self._lost = lost
        self._now = 0.0
        """When something was selected last."""
        self._known = contract.settings, contract.by_object
        """The settings that what waits has."""
        self._rates = RateLimits()
        self._lanes: dict[str, QueueLane[W]] = {}
        self._by_key: dict[Key, QueueEntry[W]] = {}
        self._selected: QueueLane[W] | None = None
        self._is_mixed = False
        """Deadlines of a lane may come in any order."""
        self.levels = 0
        """Bit mask of the levels that something waits at."""
        self.next_expiry = math.inf
        """Nothing expires before."""
        self._forget_places()
        self._rates.set(contract.settings.max_rate, -math.inf)

    def __len__(self) -> int:
        return sum(self._live)

    # -- in and out ---------------------------------------------------------------------------------------------

    def put(self, waiting: W, now: float) -> None:
        """Add it, if its rate allows; what it replaces goes."""
        contract, parcel = self._contract, waiting.parcel
        if contract.settings is not self._known[0]:
            self.refresh(now)
        settings = self._known[0]
        if contract.by_object is not None or parcel.head.attributes is not None:
            settings = contract.of(parcel)
            self._is_mixed = True
        rate = settings.max_rate
        if rate is not None and not self._rates.passes(rate, parcel, now):
            self._count_lost(waiting)
            self._lost(waiting, Cause.RATE)
            return
        if contract.meter is not None:
            waiting.arrived = waiting.arrived or now
        expires = math.inf
        if settings.deadline is not None:
            expires = (waiting.arrived or now) + settings.deadline
        if parcel.expires:  # its publisher's word
            expires = min(expires, parcel.expires)
            self._is_mixed = True
        if expires < self.next_expiry:
            self.next_expiry = expires
        entry = QueueEntry(waiting, settings.importance - 1, expires)
        registration = parcel.head.registration
        lane = self._lanes.get(registration)
        if lane is not None and lane.level >= 0 and expires < lane.entries[-1].expires - TOGETHER_SECONDS:
            self._is_mixed = True  # the ones before it took longer to come here
        if settings.replace and (key := key_of(settings.replace, parcel)) is not None:
            self._replace(entry, key)
        self._stand(entry, lane or self._new_lane(registration))

    def select(self, level: int, now: float) -> W | None:
        """Object that `take` would remove, of those at that level; None when all of them had expired."""
        self._now = now
        ring, bit = self._rings[level], 1 << level
        while self.levels & bit:
            lane = ring[0]
            if lane.level != level:
                ring.popleft()
                lane.rings &= ~bit
                continue
            entry = lane.entries[0]
            if entry.expires <= now:
                self._lose(entry, lane, _why(entry, now))
                continue
            self._selected = lane
            return entry.waiting
        return None

    def is_front(self, waiting: W, now: float) -> bool:
        """Whether nothing of its registration comes before it, and it has not expired; then `take` removes it."""
        lane = self._lanes.get(waiting.parcel.head.registration)
        if lane is None or lane.level < 0:
            return False
        entry = lane.entries[0]
        if entry.waiting is not waiting or entry.expires <= now:
            return False
        self._selected, self._now = lane, now
        return True

    def take(self) -> W:
        """Remove what was selected last. Its lane has had its turn."""
        lane = self._selected
        assert lane is not None
        entry, level = lane.entries[0], lane.level
        waiting = self._remove(entry, lane)
        ring = self._rings[level]
        if ring[0] is lane:
            ring.rotate(-1)
        meter = self._contract.meter
        if meter is not None:
            parcel = waiting.parcel
            meter.took(parcel.head.type_name, parcel.size, self._now - waiting.arrived)
        return waiting

    # -- room ---------------------------------------------------------------------------------------------------

    def has_room_for(self, parcel: Parcel, now: float) -> bool:
        """Whether it would take another one's place, by its key, or not come in, by its rate: nobody else has to go for
        it."""
        settings = self._contract.of(parcel)
        if settings.max_rate is not None and self._rates.of(settings.max_rate, parcel, now).ready_in(now):
            return True
        return bool(settings.replace and self._by_key and key_of(settings.replace, parcel) in self._by_key)

    def is_least(self, parcel: Parcel) -> bool:
        """Whether everything that waits is more important."""
        waiting = self._live
        return not any(waiting[: self._contract.of(parcel).importance])

    def drop_least(self) -> W:
        """Remove the oldest of the least important."""
        return self._drop(next(order for order in self._orders if order))

    def drop_oldest(self) -> W:
        """Remove what has waited longest."""
        return self._drop(min((order for order in self._orders if order), key=lambda order: _arrival(order[0])))

    # -- time ---------------------------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Lose all whose deadline is over."""
        if now < self.next_expiry:
            return
        self.next_expiry = math.inf
        for lane in list(self._lanes.values()):
            if self._is_mixed:
                for entry in [entry for entry in lane.entries if entry.waiting is not None and entry.expires <= now]:
                    self._lose(entry, lane, _why(entry, now))
            while lane.level >= 0 and lane.entries[0].expires <= now:
                self._lose(lane.entries[0], lane, _why(lane.entries[0], now))
            for entry in lane.entries:
                self.next_expiry = min(self.next_expiry, entry.expires if entry.waiting is not None else math.inf)
                if not self._is_mixed:
                    break  # the later ones expire later

    def refresh(self, now: float) -> bool:
        """Follow the contract: what waits already has the levels and deadlines of its settings of now. Whether they
        have changed. Its keys stay those that it came with."""
        (before, by_object), settings = self._known, self._contract.settings
        if settings is before:
            return False
        self._known = settings, self._contract.by_object
        if by_object is self._known[1] and settings == msgspec.structs.replace(before, version=settings.version):
            return False  # other policies, which say the same of this contract: ten thousand objects stay as they are
        self._rates.set(settings.max_rate, now)
        self._forget_places()
        self._is_mixed = True  # between the old ones and the new ones
        for lane in self._lanes.values():
            entries = [entry for entry in lane.entries if entry.waiting is not None]
            lane.entries, lane.counts, lane.level, lane.rings, lane.marks = deque(), [0] * LEVELS, -1, 0, 0
            for entry in entries:
                assert entry.waiting is not None
                settings = self._contract.of(entry.waiting.parcel)
                entry.level = settings.importance - 1
                wait = math.inf if settings.deadline is None else settings.deadline
                entry.expires = min((entry.waiting.arrived or now) + wait, entry.waiting.parcel.expires or math.inf)
                self.next_expiry = min(self.next_expiry, entry.expires)
                self._stand(entry, lane)
        return True

    # -- within -------------------------------------------------------------------------------------------------

    def _forget_places(self) -> None:
        self._rings: list[deque[QueueLane[W]]] = [deque() for _ in range(LEVELS)]
        """Lanes, by level."""
        self._standing = [0] * LEVELS
        """Lanes at each level."""
        self._orders: list[deque[QueueEntry[W]]] = [deque() for _ in range(LEVELS)]
        """Entries of each level as they came; the first is no mark."""
        self._live = [0] * LEVELS
        """Entries of each level that are no marks."""
        self.levels = 0
        self.next_expiry = math.inf

    def _new_lane(self, registration: str) -> QueueLane[W]:
        if len(self._lanes) > 2 * sum(self._standing) + LANES_KEPT:
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.level >= 0}
            for ring in self._rings:  # what stands there is one of them, or comes again as another one
                kept = [lane for lane in ring if lane.level >= 0]
                ring.clear()
                ring.extend(kept)
        lane: QueueLane[W] = QueueLane()
        self._lanes[registration] = lane
        return lane

    def _stand(self, entry: QueueEntry[W], lane: QueueLane[W]) -> None:
        """At the end of its lane."""
        level = entry.level
        lane.entries.append(entry)
        lane.counts[level] += 1
        self._live[level] += 1
        self._orders[level].append(entry)
        if level > lane.level:
            self._move(lane, level)

    def _move(self, lane: QueueLane[W], level: int) -> None:
        """The lane stands at that level from now on; -1 for none."""
        if lane.level >= 0:
            self._standing[lane.level] -= 1
            if not self._standing[lane.level]:
                self.levels &= ~(1 << lane.level)
        lane.level = level
        if level >= 0:
            self._standing[level] += 1
            self.levels |= 1 << level
            if not lane.rings >> level & 1:
                lane.rings |= 1 << level
                self._rings[level].append(lane)

    def _replace(self, entry: QueueEntry[W], key: Key) -> None:
        older = self._by_key.get(key)
        if older is not None and older.waiting is not None:
            self._lose(older, self._lanes[older.waiting.parcel.head.registration], Cause.REPLACED)
        entry.key = key
        self._by_key[key] = entry

    def _lose(self, entry: QueueEntry[W], lane: QueueLane[W], cause: Cause) -> None:
        waiting = self._remove(entry, lane)
        self._count_lost(waiting)
        self._lost(waiting, cause)

    def _drop(self, order: deque[QueueEntry[W]]) -> W:
        entry = order[0]
        assert entry.waiting is not None
        self._count_lost(entry.waiting)
        return self._remove(entry, self._lanes[entry.waiting.parcel.head.registration])

    def _count_lost(self, waiting: W) -> None:
        if self._contract.meter is not None:
            self._contract.meter.lost(waiting.parcel.head.type_name)

    def _remove(self, entry: QueueEntry[W], lane: QueueLane[W]) -> W:
        waiting, entry.waiting = entry.waiting, None
        assert waiting is not None
        level, entries, counts = entry.level, lane.entries, lane.counts
        self._live[level] -= 1
        key = entry.key
        if key is not None and self._by_key.get(key) is entry:
            del self._by_key[key]
        if entries[0] is entry:
            entries.popleft()
            while lane.marks and entries[0].waiting is None:
                entries.popleft()
                lane.marks -= 1
        else:
            lane.marks += 1
            if lane.marks > MARKS and 2 * lane.marks > len(entries):
                lane.entries, lane.marks = deque(each for each in entries if each.waiting is not None), 0
        order = self._orders[level]
        while order and order[0].waiting is None:
            order.popleft()
        if len(order) - MARKS > 2 * self._live[level]:
            self._orders[level] = deque(each for each in order if each.waiting is not None)
        counts[level] -= 1
        if level == lane.level and not counts[level]:
            while level >= 0 and not counts[level]:
                level -= 1
            self._move(lane, level)
        return waiting


def _arrival(entry: QueueEntry[W]) -> float:
    assert entry.waiting is not None
    return entry.waiting.arrived


# -- keys -----------------------------------------------------------------------------------------------------------


class _KeyAt:
    """The text at an XPath, of metadata; of the last object it is known, which is asked for each of its
    subscriptions."""

    def __init__(self, expression: str) -> None:
        compile_predicate(f"boolean({expression})", argument="replace")  # its cost is bounded as that of predicates
        self._find = compiled_xpath(f"string({expression})", {})
        self._last: tuple[Parcel | None, Key | None] = (None, None)

    def __call__(self, parcel: Parcel) -> Key | None:
        last, key = self._last
        if last is not parcel:
            root = read_metadata(bytes(parcel.head.metadata))
            text = str(self._find(root)) if root is not None else ""
            key = (parcel.head.type_name, text) if text else None
            self._last = parcel, key
        return key


def _why(entry: QueueEntry[W], now: float) -> Cause:
    """Cause of its end: the time that its publisher gives it is over, or its contract's."""
    expires = entry.waiting.parcel.expires if entry.waiting is not None else 0.0
    return Cause.EXPIRED if 0.0 < expires <= now else Cause.DEADLINE


def _burst(rate: Rate) -> float:
    """Amount that may come at once after a pause."""
    return rate.amount * RATE_SECONDS if rate.unit == "bytes" else AT_ONCE


@lru_cache(EXPRESSIONS)
def _key_at(expression: str) -> Callable[[Parcel], Key | None]:
    try:
        return _KeyAt(expression)
    except JbiError as exc:
        note(f"replacement by {expression[:100]!r}", exc)  # once: nothing is replaced by what can't be found
        return lambda _parcel: None


def key_of(replace: str, parcel: Parcel) -> Key | None:
    """Key of an object by Settings.replace; None: it replaces nothing."""
    head = parcel.head
    if replace == "registration":
        return "", head.registration
    if replace == "type":
        return head.type_name, ""
    try:
        return _key_at(replace)(parcel)
    except Exception as exc:  # noqa: BLE001  # noted; XPath errors are of several kinds
        note(f"replacement by {replace[:100]!r}", exc)
        return None
