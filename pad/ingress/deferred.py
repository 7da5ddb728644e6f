"""The rest of the work for objects of a registration, behind its more urgent part: matching for subscriptions that are
less important, where predicates are partitioned (see partition.py), and shaping that takes long.

Rules:
- Each kind of rest at each level of importance is a task of its own, no more important than the registration. Pieces go
  one after the other. The metadata are read again for each level: that is little beside a table that is partitioned.
- Whoever waits for a payload that is being shaped gets all later objects of the registration behind it: his order is
  kept, and nobody else waits.
- An object is done when all of it is, and when all before it are. Of a registration's credit a quarter may be objects
  that wait for their rest; beyond that it does the oldest one's before it goes on, as important as it is itself: what
  is not important never takes all its credit.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.guard import note
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.distribution import Distribution
from jbi_pubsub.pad.ingress.persistence import Persistence, Refused
from jbi_pubsub.pad.matching.dissemination import Selected
from jbi_pubsub.pad.matching.partition import Partition
from jbi_pubsub.pad.matching.recent import RecentObject
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import WorkTurns
from jbi_pubsub.pad.model.subscription import Subscription

AGAIN_FIRST: Final = 0.005
AGAIN_MOST: Final = 0.1
"""Seconds until what had to wait is tried again: it doubles."""
LEFT_SHARE: Final = 4
"""Part of a registration's credit that may wait for its rest."""

Entry = Parcel | int
"""An object that was admitted, or the number of one that was refused or known already."""


class DeliveringWork:
    """Work that hands out what objects come to. What subscribers under policy `block` have no room for is tried again;
    nothing else is done meanwhile."""

    def __init__(self, distribution: Distribution) -> None:
        self._distribution = distribution
        self._blocked: Deliveries | None = None
        """Deliveries that there is no room for."""
        self._since = math.inf
        """When it began to wait."""
        self._backoff = Backoff(2 * AGAIN_FIRST, AGAIN_MOST)
        self._left: list[DeferredPiece] = []
        """Goes on when all else that the step came to is handed out: what is behind that is for some of those."""

    def _is_handed_out(self, deliveries: Deliveries) -> bool:
        self._blocked = self._distribution.deliver_without_waiting(deliveries)
        if self._blocked is None:
            return True
        self._since = time.monotonic()
        return False

    def _is_unblocked(self) -> bool:
        """Whether subscribers have room by now, or have lost it."""
        assert self._blocked is not None
        self._blocked = self._distribution.deliver_without_waiting(self._blocked, time.monotonic() - self._since)
        if self._blocked is None:
            self._has_room()
        return self._blocked is None

    def _has_room(self) -> None:
        self._since = math.inf
        self._backoff.reset()


class LaneBatch(NamedTuple):
    """Consecutive ones of a lane, what judging them costs in proportion to (bytes of metadata, at least 1 each), and
    their bytes."""

    entries: list[Entry]
    size: int
    whole: int


class JudgedRun:
    """Objects that were judged in one step, until they are done."""

    __slots__ = ("batch", "left", "mail")

    def __init__(self) -> None:
        self.batch = LaneBatch([], 0, 0)
        self.mail = 0
        """Number of their last mail; 0: none."""
        self.left = 1
        """Pieces of them that are not done; the step itself is one."""


@dataclass(eq=False, slots=True)
class StagedObject:
    """An object that goes through the levels of a partitioned table: the next one (-1: it is through), whether it
    matched anybody before, and for how many levels it waits, or is not handed out."""

    kept: RecentObject
    parts: Partition
    level: int
    is_matched: bool = False
    waits: int = 0

    def leave(self) -> None:
        """If it is through all levels, and handed out."""
        if self.level < 0 and not self.waits:
            self.parts.between.pop(self.kept.position, None)


class ObjectJudge(Protocol):
    """See Pipeline."""

    @property
    def distribution(self) -> Distribution: ...
    @property
    def persistence(self) -> Persistence: ...
    def judge_at(
        self, registration: Registration, staged: StagedObject, deliveries: Deliveries, later: DeferredWork
    ) -> None: ...


@dataclass(eq=False, slots=True)
class DeferredPiece:
    """A part of the deferred work, for one object: it is matched for the subscriptions of one level, or its payload is
    shaped for some subscriptions, or was for one before it."""

    task: DeferredTask
    run: JudgedRun
    parcel: Parcel
    size: int
    """Bytes that its cost is in proportion to, at least 1."""
    staged: StagedObject | None = None
    """The object at its level, where it is to be matched."""
    selected: Sequence[Selected] = ()
    """Subscriptions that it is shaped for."""


class DeferredTask(DeliveringWork):
    """Pieces of one kind and level: work of a task (see WorkTurns)."""

    def __init__(self, work: DeferredWork, kind: str, level: int) -> None:
        super().__init__(work.judge.distribution)
        self.kind = kind
        self.level = level
        self._work = work
        self._waiting: deque[DeferredPiece] = deque()
        self._in_hand: list[DeferredPiece] = []
        """Which are blocked."""
        self.task = work.turns.task(kind, self, work.registration)

    def put(self, piece: DeferredPiece) -> None:
        """Behind the others."""
        self._waiting.append(piece)
        self._work.turns.submit(self.task)

    def has_of(self, run: JudgedRun) -> bool:
        """Whether it has pieces of that run."""
        return any(piece.run is run for piece in (*self._in_hand, *self._waiting))

    @property
    def first(self) -> DeferredPiece | None:
        """The oldest that is not done."""
        pieces = self._in_hand or self._waiting
        return pieces[0] if pieces else None

    # -- work of a task ------------------------------------------------------------------------------------------

    def importance(self) -> int:
        """The importance of the next piece."""
        first = self.first
        return min(self.level + 1, self._work.importance_of(first.parcel)) if first is not None else self.level + 1

    def size(self) -> int:
        """The size of the next piece."""
        first = self.first
        return first.size if first is not None else 0

    def step(self, most: int) -> tuple[int, int, float]:
        """Do some pieces, with the baton; another task that has it may ask for it, too."""
        if self._blocked is not None:
            if not self._is_unblocked():
                return 0, 0, self._backoff.pause()
            self._finish()
        size = 0
        deliveries = Deliveries()
        persistence = self._work.judge.persistence
        mails = persistence.mails
        while self._waiting and (not size or size + self._waiting[0].size <= most):
            before = self._work.before(self._waiting[0])
            if before is not None and not size:
                return 0, 0, before.step(1)[2]  # one piece, which says nothing of what ours cost
            if before is not None:
                break
            piece = self._waiting.popleft()
            size += piece.size
            self._in_hand.append(piece)
            self._work.do(piece, deliveries)
        self._left = self._work.taken()
        count = len(self._in_hand)
        if persistence.mails != mails:
            for piece in self._in_hand:
                piece.run.mail = persistence.mails
        if not self._is_handed_out(deliveries):
            return count, size, self._backoff.pause()
        self._finish()
        return count, size, 0.0

    def _finish(self) -> None:
        self._work.put_all(self._left)
        done, self._in_hand = self._in_hand, []
        for piece in done:
            self._work.done(piece)


class DeferredWork:
    """All that is left of one registration's objects. Whoever has the baton uses it."""

    def __init__(
        self,
        turns: WorkTurns,
        judge: ObjectJudge,
        registration: Registration,
        credit: tuple[int, int],
        finish: Callable[[LaneBatch, int], None],
        refuse: Callable[[Refused], None],
    ) -> None:
        """`credit` in objects and bytes; `finish(batch, mail)`: they are done, when the mail up to that number is on
        disk; `refuse` tells of faults."""
        self.turns = turns
        self.judge = judge
        self.behind: dict[Subscription, tuple[DeferredTask, int]] = {}
        """Subscriptions that wait for a payload that is being shaped: where, and for how many objects."""
        self.runs: deque[JudgedRun] = deque()
        """That are not done."""
        self.run: JudgedRun | None = None
        """That which is worked on, if anything is left of it; None at the beginning of a step."""
        self.registration = registration
        self._contract = registration.contract or Contract()
        self._most = max(1, credit[0] // LEFT_SHARE), credit[1] // LEFT_SHARE
        self._left = self._left_bytes = 0
        """Objects in runs that are not done."""
        self.is_too_much = False
        """The registration is to wait until less is left."""
        self._finished = finish
        self._refuse = refuse
        self._tasks: dict[tuple[str, int], DeferredTask] = {}
        self._fresh: list[DeferredPiece] = []
        """Pieces that this step has left."""

    def importance_of(self, parcel: Parcel) -> int:
        """The registration's importance, for that object."""
        return self._contract.of(parcel).importance

    # -- what is left --------------------------------------------------------------------------------------------

    def below(self, parts: Partition, level: int) -> int:
        """The next level that an object has to go through, so that it passes none before it."""
        waiting = [task for task in self._tasks.values() if task.kind == "match" and task.first is not None]
        waiting += [piece.task for piece in self._fresh if piece.staged is not None]
        return max(parts.below(level), *(task.level for task in waiting if task.level < level), -1)

    def may_match(self, staged: StagedObject) -> bool:
        """Whether no object before it is to be matched first."""
        task = self._tasks.get(("match", staged.level))
        return (task is None or task.first is None) and self._barring(staged) is None

    def match(self, staged: StagedObject) -> None:
        """An object for the subscriptions of its level, later."""
        parcel = staged.kept.parcel
        staged.waits += 1
        task, size = self._task_of("match", staged.level), len(parcel.head.metadata) or 1
        self._fresh.append(DeferredPiece(task, self._open(), parcel, size, staged=staged))

    def before(self, piece: DeferredPiece) -> DeferredTask | None:
        """The task that is to be done first."""
        return self._barring(piece.staged) if piece.staged is not None else None

    def _barring(self, staged: StagedObject) -> DeferredTask | None:
        """Where an object waits that is on the other side of a barrier."""
        barriers, position = staged.parts.barriers, staged.kept.position
        for task in self._tasks.values() if barriers else ():
            if (first := task.first) is not None and first.staged is not None:
                oldest = first.staged.kept.position
                if any(oldest <= barrier < position for barrier in barriers):
                    return task
        return None

    @property
    def seconds(self) -> float:
        """That matching takes for one object at all of these levels. Any thread."""
        parts = self.registration.judgement.table.parts
        tasks = list(self._tasks.values()) if parts is not None else []
        return sum(self.turns.seconds(t.task) for t in tasks if t.kind == "match" and parts and parts.has(t.level))

    def shape(self, published: Parcel, selected: Sequence[Selected]) -> None:
        """For these an object is shaped later, or comes behind one that is."""
        places: dict[DeferredTask, list[Selected]] = {}
        for each in selected:
            known = self.behind.get(each.subscription)
            task = known[0] if known is not None else self._task_of("shape", self._level(published, selected))
            self.behind[each.subscription] = task, 1 + (known[1] if known is not None else 0)
            places.setdefault(task, []).append(each)
        for task, those in places.items():
            size = max(1, those[0].parcel.payload_size)
            self._fresh.append(DeferredPiece(task, self._open(), published, size, selected=those))

    def taken(self) -> list[DeferredPiece]:
        """Take what the step has left; to be `put_all`, when all else that it came to is handed out."""
        taken, self._fresh = self._fresh, []
        return taken

    def put_all(self, pieces: list[DeferredPiece]) -> None:
        """Put these where they wait for their turn."""
        for piece in pieces:
            piece.task.put(piece)
        pieces.clear()

    def _level(self, published: Parcel, selected: Sequence[Selected]) -> int:
        """The level of the most important of those who wait."""
        contracts = [each.subscription.contract or Contract() for each in selected]
        return max(contract.of(published).importance for contract in contracts) - 1

    def do(self, piece: DeferredPiece, deliveries: Deliveries) -> None:
        """One piece; what fails is told to its publisher."""
        self.run = piece.run
        try:
            if piece.staged is not None:
                self.judge.judge_at(self.registration, piece.staged, deliveries, self)
            else:
                self.judge.distribution.shape(piece.parcel, piece.selected, deliveries)
        except Exception as exc:  # noqa: BLE001  # noted; whatever it is, the objects behind it go on
            self._refuse([(piece.parcel, fault_of(exc))])
        self.run = None

    def done(self, piece: DeferredPiece) -> None:
        """Note that a piece is handed out."""
        if piece.staged is not None:
            piece.staged.waits -= 1
            piece.staged.leave()
        for each in piece.selected:  # which have one object less to wait for
            task, count = self.behind.pop(each.subscription)
            if count > 1:
                self.behind[each.subscription] = task, count - 1
        self.close(piece.run)

    def _task_of(self, kind: str, level: int) -> DeferredTask:
        task = self._tasks.get((kind, level))
        if task is None:
            task = self._tasks[kind, level] = DeferredTask(self, kind, level)
        return task

    # -- when all is done ----------------------------------------------------------------------------------------

    def _open(self) -> JudgedRun:
        """The run that is worked on, of which one more piece is left."""
        if self.run is None:
            self.run = JudgedRun()
        self.run.left += 1
        return self.run

    def put(self, batch: LaneBatch, mail: int) -> JudgedRun:
        """Note what a step has judged, whatever is left of it; `close` when the step's own part is done."""
        run, self.run = self.run or JudgedRun(), None
        run.batch, run.mail = batch, max(run.mail, mail)
        self.runs.append(run)
        self._count(run, 1)
        return run

    def close(self, run: JudgedRun) -> None:
        """One piece of it is done. Runs are done in their order."""
        run.left -= 1
        while self.runs and not self.runs[0].left:
            first = self.runs.popleft()
            self._count(first, -1)
            self._finished(first.batch, first.mail)

    def _count(self, run: JudgedRun, sign: int) -> None:
        self._left += sign * len(run.batch.entries)
        self._left_bytes += sign * run.batch.whole
        self.is_too_much = self._left >= self._most[0] or self._left_bytes >= self._most[1]

    def step(self) -> float:
        """Do a piece of the oldest run that is left; seconds until there may be a next one."""
        run = self.runs[0]
        return next(task for task in self._tasks.values() if task.has_of(run)).step(1)[2]


def fault_of(exc: Exception) -> JbiError:
    """The error that a publisher is told for a fault of ours, which is noted here."""
    note("judging an object", exc)
    return JbiError("the delegate failed on this object", hint="Its log says how")
