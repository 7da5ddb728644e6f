"""Objects that a direction of a bridge hears at its source: all, or what the other side wants alone.

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
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jbi_pubsub.core.errors import JbiError, OversizeError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.protocol.wanted import InterestMembers, Wanted, WantedType

from .listed import BridgedRegistration, DirectionTerms
from .listening import ObjectReceiver, Profile
from .members import TypeMembers
from .platform import BridgePlatform, SelectivePlatform
from .transformation import Transformation
from .troubles import DirectionTroubles

LINGER_SECONDS: Final = 10.0
"""Time that what nobody wants any more is still brought."""
FIRST_SECONDS: Final = 10.0
"""Time after which a registration has no first objects any more that could be brought."""
FOUND_SECONDS: Final = 1.0
"""Most that pass until a registration is seen here."""


@dataclass(frozen=True, slots=True)
class SideReceiver:
    """Receiver of a subscription to types of a name, for a direction. `count` is told of each object."""

    direction: ObjectReceiver
    name: str
    count: Callable[[InfoObject], None]

    def arrived(self, obj: InfoObject) -> None:
        """An object."""
        self.count(obj)
        self.direction.arrived(obj)

    def waiting(self, uid: str) -> int:
        """Number of objects that the other side has not taken."""
        return self.direction.waiting(uid)

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0, name: str = "") -> None:  # noqa: ARG002  # it is known here
        """Objects were lost."""
        self.direction.lost(cause, count, uid, up_to, self.name)


class WholeIntake:
    """All objects of some types of a source, or of all."""

    def __init__(
        self, source: BridgePlatform, direction: ObjectReceiver, troubles: DirectionTroubles, types: tuple[str, ...]
    ) -> None:
        self._source, self._direction, self._troubles, self._names = source, direction, troubles, types
        self._is_on = False

    def look(self, published: Mapping[str, BridgedRegistration], awaited: Container[str]) -> None:  # noqa: ARG002  # whatever is there
        """Hear them, if that was not possible before. `published`: registrations of the source that are for the target,
        by their ids; `awaited`: those that the target does not take until it is known what we have."""
        if self._is_on:
            return
        try:
            self._source.subscribe(self._names, self._direction)
        except JbiError as exc:
            self._troubles.tell("subscription", exc)
        else:
            self._is_on = True
            self._troubles.tell("subscription", None)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {"listening": self._is_on}

    def stop(self) -> None:
        """Change nothing any more."""


class WantedIntake:
    """Hearing of what the target wants (see the module). `_lock` covers what is told; the rest is the job's."""

    def __init__(
        self,
        source: SelectivePlatform,
        target: BridgePlatform,
        direction: ObjectReceiver,
        troubles: DirectionTroubles,
        transformation: Transformation,
        terms: DirectionTerms,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source, self._target, self._direction, self._troubles = source, target, direction, troubles
        self._transformation, self._poll = transformation, terms.poll
        self._clock = clock
        self._lock = threading.Lock()
        self._told: Wanted | None = None
        self._came: dict[str, tuple[BridgedRegistration, float]] = {}
        """Registrations of the source, and when each was seen first (clock)."""
        self._awaited: frozenset[str] = frozenset()
        """Types of which the target takes no registration until it is known what we have: all is brought."""
        self._types: dict[str, TypeMembers] = {}
        """By the name at the source."""
        self._is_on = False
        self._job = Job(f"wanted-{target.name}", terms.poll, self._keep_up, slow=True)

    def look(self, published: Mapping[str, BridgedRegistration], awaited: Container[str]) -> None:
        """See WholeIntake."""
        now = self._clock()
        with self._lock:
            self._awaited = frozenset(each.type.name for uid, each in published.items() if uid in awaited)
            before = self._came
            self._came = {uid: (each, before.get(uid, (each, now))[1]) for uid, each in published.items()}
        if not self._is_on:
            self._source.unwant("")  # what a process before this one has asked a broker for
            self._is_on = True
            self._job.start()
            self._target.wanted(self._tell, members=True)
        self._job.wake()

    def status(self) -> dict[str, Any]:
        """By type its members, how many subscriptions stand behind each, what is subscribed to, and how many copies did
        not cross."""
        with self._lock:
            kinds = dict(self._types)
            is_told = self._told is not None
        return {
            "listening": is_told,
            "wanted": {name: each.said() for name, each in kinds.items()},
            "members": sum(sum(each.behind.values()) for each in kinds.values()),
            "saved": sum(each.saved for each in kinds.values()),
        }

    def stop(self) -> None:
        """See WholeIntake."""
        self._job.stop()

    def _tell(self, wanted: Wanted) -> None:
        with self._lock:
            self._told = wanted
        self._job.wake()

    def _keep_up(self) -> float:
        """Settle; seconds until the next time."""
        return min(self._poll, max(0.0, self.settle() - self._clock()))

    def settle(self) -> float:
        """Have the source tell what is wanted now; when that ends to be so for somebody who has left (clock)."""
        now = self._clock()
        with self._lock:
            if self._told is None or self._job.is_over:
                return math.inf
            self._take_in(self._told, now)
            goals = {name: (each.goal(), self._since(name, each, now)) for name, each in self._types.items()}
        for name, (goal, since) in goals.items():
            if not self._job.is_over and goal != self._types[name].profile:
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
            self._types.setdefault(name, TypeMembers())
        for name, known in self._types.items():
            known.take(told.get(name, ()) if name in names else (), now, LINGER_SECONDS)

    def _since(self, name: str, known: TypeMembers, now: float) -> float | None:
        """Under the lock: since when those stand who have just become members; None: from now on."""
        came = max((at for each, at in self._came.values() if each.type.name == name), default=-math.inf)
        return came - FOUND_SECONDS if known.has_waited and came > now - FIRST_SECONDS else None

    def _subscribe(self, name: str, goal: Profile | None, since: float | None) -> None:
        """One that is refused as too much is made one to all."""
        receiver = SideReceiver(self._direction, name, self._types[name].count)
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
            self._troubles.tell(f"subscription {name}", exc)
            return
        self._troubles.tell(f"subscription {name}", None)
        with self._lock:
            self._types[name].profile = goal
