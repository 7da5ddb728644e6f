"""Objects that a direction of a bridge hears at its source: of all of its types, or what the other side wants alone.

Theory of operation: the target says which types its subscriptions want of what is relayed, and by which predicates, its
*members*. For each type with members there is one subscription at the source, whose predicate is true where one of
theirs is. It is amended in its place, as two subscriptions to one type would bring its objects in no order. Where
nobody wants anything there is none; registrations are relayed all the same, so that whoever comes is a member.

Rules:
- What comes is matched by the target with each member, so the predicate may be true for more, and is never for less: it
  holds for all where there are too many members, where one can't be asked elsewhere or costs too much, and for types
  that are called otherwise over there.
- Who comes is a member at once; who has left stays one for LINGER_SECONDS: a delegate that restarts has its
  subscriptions again soon. So do coming and going a thousand times a second come to a few changes.
- Who has waited for a registration gets its first objects: they are asked for since a little before it was seen.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from jbi_pubsub.core.errors import JbiError, OversizeError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate
from jbi_pubsub.core.xpath.narrowing import joined
from jbi_pubsub.protocol.wanted import InterestMembers, Wanted, WantedPredicate, WantedType

from .listed import BridgedRegistration
from .listening import Profile
from .platform import BridgePlatform, SelectivePlatform
from .relayed import Relayed
from .terms import DirectionTerms
from .transformation import Transformer

LINGER_SECONDS: Final = 10.0
"""Time that what nobody wants any more is still brought."""
FIRST_SECONDS: Final = 10.0
"""Time after which a registration has no first objects any more that could be brought."""
SAMPLED: Final = 10
"""Objects of which one is looked at for whom it is: as much work as for all else that is done to one."""
FOUND_SECONDS: Final = 1.0
"""Most that pass until a registration is seen here."""
STOP_SECONDS: Final = 5.0
ALL: Final = WantedPredicate("")
"""The member that stands for all who want all of a type's objects."""


class Hearing(Protocol):
    """A direction, as what it hears is told."""

    def arrived(self, obj: InfoObject) -> None:
        """An object of the source."""
        ...

    def lost_before(self, cause: str, count: int, uid: str = "", up_to: int = 0, name: str = "") -> None:
        """Objects did not come from the source."""
        ...

    def waiting(self, uid: str) -> int:
        """Number of a registration's last objects that the target has not taken."""
        ...

    def trouble(self, what: str, exc: JbiError | None) -> None:
        """Something can't be done now; None: it is done."""
        ...


class SideReceiver:
    """Receiver of a subscription: to types of a name, or of any."""

    def __init__(self, hearing: Hearing, name: str = "", count: Callable[[InfoObject], None] = lambda _: None) -> None:
        """`count` is told of each object."""
        self._hearing, self._name, self._count = hearing, name, count

    def arrived(self, obj: InfoObject) -> None:
        """An object."""
        self._count(obj)
        self._hearing.arrived(obj)

    def waiting(self, uid: str) -> int:
        """Number of objects that the other side has not taken."""
        return self._hearing.waiting(uid)

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0) -> None:
        """Objects were lost."""
        self._hearing.lost_before(cause, count, uid, up_to, self._name)


class WholeIntake:
    """All objects of some types of a source, or of all."""

    def __init__(self, source: BridgePlatform, hearing: Hearing, types: tuple[str, ...]) -> None:
        self._whole, self._hearing, self._names = source, hearing, types
        self._is_on = False

    def look(self, published: Mapping[str, BridgedRegistration], relays: Mapping[str, Relayed]) -> None:  # noqa: ARG002  # whatever is there
        """Hear them, if that was not possible before. `published`: registrations of the source that are for the target,
        by their ids; `relays`: how they are there."""
        if self._is_on:
            return
        try:
            self._whole.subscribe(self._names, SideReceiver(self._hearing))
        except JbiError as exc:
            self._hearing.trouble("subscription", exc)
        else:
            self._is_on = True
            self._hearing.trouble("subscription", None)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {"listening": self._is_on}

    def stop(self) -> None:
        """Change nothing any more."""


@dataclass(slots=True)
class _TypeProfile:
    """Interest in the types of one name."""

    members: dict[WantedPredicate, float] = field(default_factory=dict)
    """Until when each is one (clock): as long as it is told, for ever."""
    behind: Mapping[WantedPredicate, int] = field(default_factory=dict)
    """Subscriptions behind those that are told."""
    importance: int = 0
    has_waited: bool = False
    profile: Profile | None = None
    """The one that it is subscribed with; None: it is not."""
    crossed: int = 0
    """Objects that have come."""
    saved: int = 0
    """Copies of these that did not, as each subscription would have had its own; of several members about."""
    index: PredicateIndex[WantedPredicate] | None = None
    """Their predicates, as long as they are these."""

    def count(self, obj: InfoObject) -> None:
        """An object has come. On the thread of the subscription."""
        self.crossed += 1
        behind, index = self.behind, self.index
        if len(behind) == 1:
            self.saved += max(0, next(iter(behind.values())) - 1)
        elif index is not None and not self.crossed % SAMPLED:
            with suppress(JbiError):
                matched = index.match(parse_metadata(obj.metadata), len(obj.metadata))
                self.saved += SAMPLED * max(0, sum(behind.get(each, 0) for each in matched) - 1)

    def goal(self) -> Profile | None:
        """The profile that it should be subscribed with."""
        if not self.members:
            return None
        importance = self.importance or None
        if ALL in self.members or any(each.language != ALL.language for each in self.members):
            return Profile(importance=importance)
        where = joined(sorted((each.text, each.namespaces) for each in self.members), "or")
        try:
            compile_predicate(where[0], namespaces=dict(where[1]))
        except JbiError:  # all together are too much
            return Profile(importance=importance)
        return Profile(where, importance)


class WantedIntake(WholeIntake):
    """Hearing of what the target wants (see the module). `_lock` covers what is told; the rest is the thread's."""

    def __init__(
        self,
        source: SelectivePlatform,
        target: BridgePlatform,
        hearing: Hearing,
        transformation: Transformer,
        terms: DirectionTerms,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(target, hearing, ())
        self._source, self._target = source, target
        self._transformation, self._poll = transformation, terms.poll
        self._clock = clock
        self._lock = threading.Lock()
        self._told: Wanted | None = None
        self._came: dict[str, tuple[BridgedRegistration, float]] = {}
        """Registrations of the source, and when each was seen first (clock)."""
        self._awaited: frozenset[str] = frozenset()
        """Types of which the target takes no registration until it is known what we have: all is brought."""
        self._types: dict[str, _TypeProfile] = {}
        """By the name at the source."""
        self._stopping = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"wanted-{target.name}", daemon=True)

    def look(self, published: Mapping[str, BridgedRegistration], relays: Mapping[str, Relayed]) -> None:
        """See WholeIntake."""
        now = self._clock()
        with self._lock:
            waits = [uid for uid in published if uid in relays and relays[uid].untold.is_awaited]
            self._awaited = frozenset(published[uid].type.name for uid in waits)
            before = self._came
            self._came = {uid: (each, before.get(uid, (each, now))[1]) for uid, each in published.items()}
        if self._thread.ident is None:
            self._source.unwant("")  # what a process before this one has asked a broker for
            self._thread.start()
            self._target.wanted(self._tell, members=True)
        self._wake.set()

    def status(self) -> dict[str, Any]:
        """By type its members, how many subscriptions stand behind each, what is subscribed to, and how many copies did
        not cross."""
        with self._lock:
            kinds = dict(self._types)
            is_told = self._told is not None
        return {
            "listening": is_told,
            "wanted": {name: _said(each) for name, each in kinds.items()},
            "members": sum(sum(each.behind.values()) for each in kinds.values()),
            "saved": sum(each.saved for each in kinds.values()),
        }

    def stop(self) -> None:
        """See WholeIntake."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    def _tell(self, wanted: Wanted) -> None:
        with self._lock:
            self._told = wanted
        self._wake.set()

    def _run(self) -> None:
        due = math.inf
        while not self._stopping:
            self._wake.wait(min(self._poll, max(0.0, due - self._clock())))
            self._wake.clear()
            with guarded(self._thread.name):
                due = self.settle()

    def settle(self) -> float:
        """Have the source tell what is wanted now; when that ends to be so for somebody who has left (clock)."""
        now = self._clock()
        with self._lock:
            if self._told is None or self._stopping:
                return math.inf
            self._take_in(self._told, now)
            goals = {name: (each.goal(), self._since(name, each, now)) for name, each in self._types.items()}
        for name, (goal, since) in goals.items():
            if not self._stopping and goal != self._types[name].profile:
                self._subscribe(name, goal, since)
        with self._lock:
            self._types = {name: each for name, each in self._types.items() if each.members or each.profile}
            ends = [end for each in self._types.values() for end in each.members.values() if end > now]
        return min(ends, default=math.inf)

    def _take_in(self, wanted: Wanted, now: float) -> None:
        """Under the lock: who is a member now."""
        told: dict[str, list[WantedType]] = {}
        for each in wanted.types or ():
            told.setdefault(self._transformation.asked(each.type.name), []).append(each)
        for published, _ in self._came.values():
            name = published.type.name
            is_whole = wanted.types is None or name in self._awaited
            if is_whole or self._transformation.named(published.type) != published.type:
                told[name] = [WantedType(published.type, members=InterestMembers(has_waited=is_whole))]
        names = {each.type.name for each, _ in self._came.values()}
        for name in names & told.keys():
            self._types.setdefault(name, _TypeProfile())
        for name, known in self._types.items():
            self._count(known, told.get(name, ()) if name in names else (), now)

    def _count(self, known: _TypeProfile, told: Collection[WantedType], now: float) -> None:
        behind: Counter[WantedPredicate] = Counter()
        for each in told:
            predicates = each.predicates or (ALL,)
            counts = dict(zip(predicates, each.members.behind if each.members is not None else (), strict=False))
            behind.update({one: counts.get(one, 1) for one in predicates})
        if behind.keys() != known.behind.keys():
            known.index = _index_of(behind)
        known.behind = behind
        who = [each.members for each in told if each.members is not None]
        known.importance = max((each.importance or 0 for each in who), default=known.importance)
        known.has_waited = any(each.has_waited for each in who)
        left = {each: min(end, now + LINGER_SECONDS) for each, end in known.members.items() if each not in known.behind}
        known.members = {each: end for each, end in left.items() if end > now} | dict.fromkeys(known.behind, math.inf)

    def _since(self, name: str, known: _TypeProfile, now: float) -> float | None:
        """Under the lock: since when those stand who have just become members; None: from now on."""
        came = max((at for each, at in self._came.values() if each.type.name == name), default=-math.inf)
        return came - FOUND_SECONDS if known.has_waited and came > now - FIRST_SECONDS else None

    def _subscribe(self, name: str, goal: Profile | None, since: float | None) -> None:
        """One that is refused as too much is made one to all."""
        receiver = SideReceiver(self._hearing, name, self._types[name].count)
        try:
            if goal is None:
                self._source.unwant(name)
            else:
                try:
                    self._source.want(name, goal, receiver, since)
                except OversizeError:
                    if not goal.where[0]:
                        raise
                    goal = Profile(importance=goal.importance)
                    self._source.want(name, goal, receiver, since)
        except JbiError as exc:
            self._hearing.trouble(f"subscription {name}", exc)
            return
        self._hearing.trouble(f"subscription {name}", None)
        with self._lock:
            self._types[name].profile = goal


def _said(known: _TypeProfile) -> dict[str, Any]:
    profile = known.profile
    return {
        "members": [{"predicate": each.text, "behind": known.behind.get(each, 0)} for each in known.members],
        "subscribed": None if profile is None else profile.where[0],
        "crossed": known.crossed,
        "saved": known.saved,
    }


def _index_of(members: Collection[WantedPredicate]) -> PredicateIndex[WantedPredicate] | None:
    """None: there are not several, or of some it can't be said here what they are true for."""
    index: PredicateIndex[WantedPredicate] = PredicateIndex()
    try:
        for each in members:
            spaces, language = dict(each.namespaces), each.language
            compiled = compile_predicate(each.text, namespaces=spaces, language=language) if each.text else None
            index.add(each, compiled)
    except JbiError:
        return None
    return index if len(members) > 1 else None
