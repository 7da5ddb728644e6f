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
from typing import Final, NamedTuple, Protocol

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.quality import Contract
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.pipeline import Pipeline, Refused, Staged, fault_of
from jbi_pubsub.pad.matching.dissemination import Selected
from jbi_pubsub.pad.matching.partition import Partition
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.quality import Turns
from jbi_pubsub.pad.model.subscription import Subscription

AGAIN_FIRST: Final = 0.005
AGAIN_MOST: Final = 0.1
"""Seconds until what had to wait is tried again: it doubles."""
LEFT_SHARE: Final = 4
"""Part of a registration's credit that may wait for its rest."""

Entry = Parcel | int
"""An object that was admitted, or the number of one that was refused or known already."""


class Handing:
    """Work that hands out what objects come to. What subscribers under policy `block` have no room for is tried again;
    nothing else is done meanwhile."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._blocked: Deliveries | None = None
        """Deliveries that there is no room for."""
        self._since = math.inf
        """When it began to wait."""
        self._backoff = Backoff(2 * AGAIN_FIRST, AGAIN_MOST)
        self._left: list[Piece] = []
        """Goes on when all else that the step came to is handed out: what is behind that is for some of those."""

    def _is_handed_out(self, deliveries: Deliveries) -> bool:
        self._blocked = self._pipeline.deliver_without_waiting(deliveries)
        if self._blocked is None:
            return True
        self._since = time.monotonic()
        return False

    def _is_unblocked(self) -> bool:
        """Whether subscribers have room by now, or have lost it."""
        assert self._blocked is not None
        self._blocked = self._pipeline.deliver_without_waiting(self._blocked, time.monotonic() - self._since)
        if self._blocked is None:
            self._has_room()
        return self._blocked is None

    def _has_room(self) -> None:
        self._since = math.inf
        self._backoff.reset()


class Batch(NamedTuple):
    """Consecutive ones of a lane, what judging them costs in proportion to (bytes of metadata, at least 1 each), and
    their bytes."""

    entries: list[Entry]
    size: int
    whole: int


class Run:
    """Objects that were judged in one step, until they are done."""

    __slots__ = ("batch", "left", "mail")

    def __init__(self) -> None:
        self.batch = Batch([], 0, 0)
        self.mail = 0
        """Number of their last mail; 0: none."""
        self.left = 1
        """Pieces of them that are not done; the step itself is one."""


class Piece(Protocol):
    """The rest of the work for one object."""

    rest: Rest
    run: Run
    parcel: Parcel
    size: int
    """Bytes that its cost is in proportion to, at least 1."""

    def do(self, rests: Rests, deliveries: Deliveries) -> None:
        """With the baton."""
        ...

    def done(self, rests: Rests) -> None:
        """Note that it is handed out."""
        ...


class Matching:
    """An object is matched for the subscriptions of one level."""

    __slots__ = ("parcel", "rest", "run", "size", "staged")

    def __init__(self, rest: Rest, run: Run, staged: Staged) -> None:
        self.rest = rest
        self.run = run
        self.staged = staged
        self.parcel = staged.kept.parcel
        self.size = len(self.parcel.head.metadata) or 1
        staged.waits += 1

    def do(self, rests: Rests, deliveries: Deliveries) -> None:
        """With the baton."""
        rests.pipeline.judge_at(rests.registration, self.staged, deliveries, rests)

    def done(self, rests: Rests) -> None:  # noqa: ARG002  # as those of others
        """Note that it is handed out."""
        self.staged.waits -= 1
        self.staged.leave()


class Shaping:
    """An object's payload is shaped for these subscriptions, or was for one before it."""

    __slots__ = ("parcel", "rest", "run", "selected", "size")

    def __init__(self, rest: Rest, run: Run, parcel: Parcel, selected: Sequence[Selected]) -> None:
        self.rest = rest
        self.run = run
        self.parcel = parcel
        self.selected = selected
        self.size = max(1, len(selected[0].parcel.payload))

    def do(self, rests: Rests, deliveries: Deliveries) -> None:
        """With the baton."""
        rests.pipeline.shape(self.parcel, self.selected, deliveries)

    def done(self, rests: Rests) -> None:
        """Note that it is handed out."""
        for each in self.selected:
            rests.has_caught_up(each.subscription)


class Rest(Handing):
    """Pieces of one kind and level: work of a task (see Turns)."""

    def __init__(self, rests: Rests, kind: str, level: int) -> None:
        super().__init__(rests.pipeline)
        self.kind = kind
        self.level = level
        self._rests = rests
        self._waiting: deque[Piece] = deque()
        self._in_hand: list[Piece] = []
        """Which are blocked."""
        self.task = rests.turns.task(kind, self)

    def put(self, piece: Piece) -> None:
        """Behind the others."""
        self._waiting.append(piece)
        self._rests.turns.submit(self.task)

    def has_of(self, run: Run) -> bool:
        """Whether it has pieces of that run."""
        return any(piece.run is run for piece in (*self._in_hand, *self._waiting))

    @property
    def first(self) -> Piece | None:
        """The oldest that is not done."""
        pieces = self._in_hand or self._waiting
        return pieces[0] if pieces else None

    # -- work of a task ------------------------------------------------------------------------------------------

    def importance(self) -> int:
        """The importance of the next piece."""
        first = self.first
        return min(self.level + 1, self._rests.importance_of(first.parcel)) if first is not None else self.level + 1

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
        mails = self._pipeline.mails
        while self._waiting and (not size or size + self._waiting[0].size <= most):
            before = self._rests.before(self._waiting[0])
            if before is not None and not size:
                return 0, 0, before.step(1)[2]  # one piece, which says nothing of what ours cost
            if before is not None:
                break
            piece = self._waiting.popleft()
            size += piece.size
            self._in_hand.append(piece)
            self._rests.do(piece, deliveries)
        self._left = self._rests.taken()
        count = len(self._in_hand)
        if self._pipeline.mails != mails:
            for piece in self._in_hand:
                piece.run.mail = self._pipeline.mails
        if not self._is_handed_out(deliveries):
            return count, size, self._backoff.pause()
        self._finish()
        return count, size, 0.0

    def _finish(self) -> None:
        self._rests.put_all(self._left)
        done, self._in_hand = self._in_hand, []
        for piece in done:
            piece.done(self._rests)
            self._rests.close(piece.run)


class Rests:
    """All that is left of one registration's objects. Whoever has the baton uses it."""

    def __init__(
        self,
        turns: Turns,
        pipeline: Pipeline,
        registration: Registration,
        credit: tuple[int, int],
        finish: Callable[[Batch, int], None],
        refuse: Callable[[Refused], None],
    ) -> None:
        """`credit` in objects and bytes; `finish(batch, mail)`: they are done, when the mail up to that number is on
        disk; `refuse` tells of faults."""
        self.turns = turns
        self.pipeline = pipeline
        self.behind: dict[Subscription, tuple[Rest, int]] = {}
        """Subscriptions that wait for a payload that is being shaped: where, and for how many objects."""
        self.runs: deque[Run] = deque()
        """That are not done."""
        self.run: Run | None = None
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
        self._rests: dict[tuple[str, int], Rest] = {}
        self._fresh: list[Piece] = []
        """Pieces that this step has left."""

    def importance_of(self, parcel: Parcel) -> int:
        """The registration's importance, for that object."""
        return self._contract.of(parcel).importance

    # -- what is left --------------------------------------------------------------------------------------------

    def below(self, parts: Partition, level: int) -> int:
        """The next level that an object has to go through, so that it passes none before it."""
        waiting = [rest for rest in self._rests.values() if rest.kind == "match" and rest.first is not None]
        waiting += [piece.rest for piece in self._fresh if isinstance(piece, Matching)]
        return max(parts.below(level), *(rest.level for rest in waiting if rest.level < level), -1)

    def may_match(self, staged: Staged) -> bool:
        """Whether no object before it is to be matched first."""
        rest = self._rests.get(("match", staged.level))
        return (rest is None or rest.first is None) and self._barring(staged) is None

    def match(self, staged: Staged) -> None:
        """An object for the subscriptions of its level, later."""
        self._fresh.append(Matching(self._rest("match", staged.level), self._open(), staged))

    def before(self, piece: Piece) -> Rest | None:
        """The rest that is to be done first."""
        return self._barring(piece.staged) if isinstance(piece, Matching) else None

    def _barring(self, staged: Staged) -> Rest | None:
        """Where an object waits that is on the other side of a barrier."""
        barriers, position = staged.parts.barriers, staged.kept.position
        for rest in self._rests.values() if barriers else ():
            if isinstance(first := rest.first, Matching):
                oldest = first.staged.kept.position
                if any(oldest <= barrier < position for barrier in barriers):
                    return rest
        return None

    @property
    def seconds(self) -> float:
        """That matching takes for one object at all of these levels. Any thread."""
        parts = self.registration.judgement.table.parts
        rests = list(self._rests.values()) if parts is not None else []
        return sum(self.turns.seconds(r.task) for r in rests if r.kind == "match" and parts and parts.has(r.level))

    def shape(self, published: Parcel, selected: Sequence[Selected]) -> None:
        """For these an object is shaped later, or comes behind one that is."""
        places: dict[Rest, list[Selected]] = {}
        for each in selected:
            known = self.behind.get(each.subscription)
            rest = known[0] if known is not None else self._rest("shape", self._level(published, selected))
            self.behind[each.subscription] = rest, 1 + (known[1] if known is not None else 0)
            places.setdefault(rest, []).append(each)
        for rest, those in places.items():
            self._fresh.append(Shaping(rest, self._open(), published, those))

    def taken(self) -> list[Piece]:
        """Take what the step has left; to be `put_all`, when all else that it came to is handed out."""
        taken, self._fresh = self._fresh, []
        return taken

    def put_all(self, pieces: list[Piece]) -> None:
        """Put these where they wait for their turn."""
        for piece in pieces:
            piece.rest.put(piece)
        pieces.clear()

    def _level(self, published: Parcel, selected: Sequence[Selected]) -> int:
        """The level of the most important of those who wait."""
        contracts = [each.subscription.contract or Contract() for each in selected]
        return max(contract.of(published).importance for contract in contracts) - 1

    def has_caught_up(self, subscription: Subscription) -> None:
        """Note that it has one object less to wait for."""
        rest, count = self.behind.pop(subscription)
        if count > 1:
            self.behind[subscription] = rest, count - 1

    def do(self, piece: Piece, deliveries: Deliveries) -> None:
        """One piece; what fails is told to its publisher."""
        self.run = piece.run
        try:
            piece.do(self, deliveries)
        except Exception as exc:  # noqa: BLE001  # noted; whatever it is, the objects behind it go on
            self._refuse([(piece.parcel, fault_of(exc))])
        self.run = None

    def _rest(self, kind: str, level: int) -> Rest:
        rest = self._rests.get((kind, level))
        if rest is None:
            rest = self._rests[kind, level] = Rest(self, kind, level)
        return rest

    # -- when all is done ----------------------------------------------------------------------------------------

    def _open(self) -> Run:
        """The run that is worked on, of which one more piece is left."""
        if self.run is None:
            self.run = Run()
        self.run.left += 1
        return self.run

    def put(self, batch: Batch, mail: int) -> Run:
        """Note what a step has judged, whatever is left of it; `close` when the step's own part is done."""
        run, self.run = self.run or Run(), None
        run.batch, run.mail = batch, max(run.mail, mail)
        self.runs.append(run)
        self._count(run, 1)
        return run

    def close(self, run: Run) -> None:
        """One piece of it is done. Runs are done in their order."""
        run.left -= 1
        while self.runs and not self.runs[0].left:
            first = self.runs.popleft()
            self._count(first, -1)
            self._finished(first.batch, first.mail)

    def _count(self, run: Run, sign: int) -> None:
        self._left += sign * len(run.batch.entries)
        self._left_bytes += sign * run.batch.whole
        self.is_too_much = self._left >= self._most[0] or self._left_bytes >= self._most[1]

    def step(self) -> float:
        """Do a piece of the oldest run that is left; seconds until there may be a next one."""
        run = self.runs[0]
        return next(rest for rest in self._rests.values() if rest.has_of(run)).step(1)[2]
