"""The predicates of a match table by importance, in an index for each level, so that those of the important are
evaluated first (QED, section III: partitioned predicates).

Theory of operation: an object goes through the levels one by one, the most important first; between them it is the turn
of others (see deferred.py). Each subscription has one level. When its importance changes it *moves*: objects up to a
position (see recent.py) go by its old level, later ones by its new one, so that each is judged once. It stands at both
until no object up to that position is between its levels. One that moves up would get later objects before earlier
ones: those wait at a *barrier* until the earlier ones of their registration are through.

One writer at a time (the delegate's lock). Several threads may judge, each the objects of another registration. They
take no lock but when they enter and leave: what is written is published as a whole, and in an order that loses nobody;
who finds that `moves` were changed meanwhile asks again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.quality import DEFAULT_IMPORTANCE, LEVELS
from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath import Predicate, PredicateIndex
from jbi_pubsub.pad.model.subscription import FAR, Subscription

Stamp = Callable[[Callable[[int], None]], None]
"""See RecentBuffers.stamp."""


class Move(NamedTuple):
    """From a level to another one: objects up to `at` go by `source`."""

    source: int
    target: int
    at: int

    def level(self, position: int) -> int:
        """Where an object is for it."""
        return self.source if position <= self.at else self.target


NO_MOVES: Final[Mapping[Subscription, Move]] = {}


def level_of(subscription: Subscription) -> int:
    """Its importance from 0 to 4, whatever policies say of single objects."""
    contract = subscription.contract
    return contract.level if contract is not None else DEFAULT_IMPORTANCE - 1


class Partition:
    """See the module. What it has in common with PredicateIndex answers for all levels together."""

    def __init__(self, predicates: Mapping[Subscription, Predicate | None]) -> None:
        self._level: dict[Subscription, int] = {}
        self._lifted: dict[Subscription, int] = {}
        """The levels of those that were taken out to be amended."""
        self.moves = NO_MOVES
        self.barriers: tuple[int, ...] = ()
        """Objects beyond one of these positions wait until those of their registration up to it are through."""
        self.between: dict[int, None] = {}
        """Positions of the objects that are not through all levels; of who judges."""
        self._gate = threading.Lock()
        """For those that follow, and when it ends."""
        self._entered = 0
        """Threads whose objects are to get their positions."""
        self._has_ended = False
        self._indexes = _indexes()
        for subscription, predicate in predicates.items():
            self.add(subscription, predicate)

    def __len__(self) -> int:
        return len(self._level)

    def __contains__(self, subscription: object) -> bool:
        return subscription in self._level

    def keys(self) -> list[Subscription]:
        """All of them."""
        return list(self._level)

    def add(self, subscription: Subscription, predicate: Predicate | None) -> None:
        """At the level of its importance; one that was lifted where it stood. Objects that are between levels are not
        for one that is new: it gets them from the buffer."""
        level = self._level[subscription] = self._lifted.pop(subscription, level_of(subscription))
        self._indexes[level].add(subscription, predicate)
        if subscription in self.moves:
            self._indexes[self.moves[subscription].target].add(subscription, predicate)

    def remove(self, subscription: Subscription) -> None:
        """Also for objects that are between levels."""
        self.lift(subscription)
        self.drop_lifted()

    def lift(self, subscription: Subscription) -> None:
        """Take it out to be amended: `add` puts it back where it stood."""
        self._lifted[subscription] = self._level.pop(subscription)
        for index in self._indexes:
            if subscription in index:
                index.remove(subscription)

    def drop_lifted(self) -> None:
        """Those that were not put back are gone."""
        if not self._lifted.keys().isdisjoint(self.moves):
            self._move({each: move for each, move in self.moves.items() if each not in self._lifted})
        self._lifted.clear()

    def rebuild(self, predicates: Mapping[Subscription, Predicate | None]) -> None:
        """They are matched by these from now on, each at the level that it has."""
        indexes = _indexes()
        for subscription, level in self._level.items():
            indexes[level].add(subscription, predicates[subscription])
        for subscription, move in self.moves.items():
            indexes[move.target].add(subscription, predicates[subscription])
        self._indexes = indexes

    # -- of who judges ------------------------------------------------------------------------------------------

    def enter(self) -> bool:
        """Before objects get their positions that are to go through the levels: until `leave`, nobody ends a move, nor
        the partition. False: it has ended."""
        with self._gate:
            self._entered += not self._has_ended
            return not self._has_ended

    def leave(self) -> None:
        """Their positions are `between`."""
        with self._gate:
            self._entered -= 1

    def end(self) -> bool:
        """End it, unless objects are between levels, or about to be; whether it has ended."""
        with self._gate:
            self._has_ended = not self._entered and not self.between
            return self._has_ended

    # -- of an object -------------------------------------------------------------------------------------------

    def below(self, level: int) -> int:
        """The next level below that one at which somebody is; -1: nobody. LEVELS is above all."""
        return next((each for each in range(level - 1, -1, -1) if self.has(each)), -1)

    def has(self, level: int) -> bool:
        """Whether somebody is there."""
        return len(self._indexes[level]) > 0

    def match_at(self, level: int, document: Element | Traced | None, size: int) -> list[Subscription]:
        """Those at that level, whose predicate is true; without `document` those that have none. See `moves`."""
        index = self._indexes[level]
        return index.unconditional() if document is None else index.match(document, size)

    def match(self, document: Element | Traced, size: int = 0) -> list[Subscription]:
        """Those at all levels."""
        return self._at_all(lambda index: index.match(document, size))

    def unconditional(self) -> list[Subscription]:
        """Those without a predicate."""
        return self._at_all(lambda index: index.unconditional())

    def _at_all(self, ask: Callable[[PredicateIndex[Subscription]], list[Subscription]]) -> list[Subscription]:
        while True:
            moves = self.moves
            found = [each for index in self._indexes if len(index) for each in ask(index)]
            if self.moves is moves:
                return list(dict.fromkeys(found))

    def count_again(self) -> None:
        """The last answer of `match` was given once more."""
        for index in self._indexes:
            if len(index):
                index.count_again()

    def count_again_at(self, level: int) -> None:
        """That of `match_at`."""
        self._indexes[level].count_again()

    def stats(self) -> dict[str, int]:
        """As that of PredicateIndex: documents count once."""
        each = [index.stats() for index in self._indexes]
        return {name: (max if name == "documents" else sum)(stats[name] for stats in each) for name in each[0]}

    # -- importance changes -------------------------------------------------------------------------------------

    def follow(
        self, predicate_of: Callable[[Subscription], Predicate | None], changed: Callable[[], None], stamp: Stamp
    ) -> None:
        """Move those whose importance has changed; those that moved long enough stand at one level. `changed`: answers
        that are remembered do not hold any more."""
        self._end_moves(changed)
        wanted = {
            each: Move(level, target, FAR)
            for each, level in self._level.items()
            if (target := level_of(each)) != level and each not in self.moves
        }
        if not wanted:
            return
        self._move({**self.moves, **wanted})  # first: it is not for them at the new level yet
        for each, move in wanted.items():
            self._indexes[move.target].add(each, predicate_of(each))
        changed()
        stamp(lambda position: self._begin(wanted, position))

    def _begin(self, wanted: Mapping[Subscription, Move], position: int) -> None:
        """Later objects are for them at the new level. Who judges one finds that."""
        self._move({**self.moves, **{each: move._replace(at=position) for each, move in wanted.items()}})

    def _move(self, moves: Mapping[Subscription, Move]) -> None:
        self.barriers = tuple({move.at for move in moves.values() if move.target > move.source})
        self.moves = moves

    def _end_moves(self, changed: Callable[[], None]) -> None:
        if self._entered:  # before `between` is looked at: who has left has put it there
            return
        oldest = min(list(self.between), default=FAR)
        over = {each: move for each, move in self.moves.items() if move.at < oldest}
        if not over:
            return
        for each, move in over.items():
            self._level[each] = move.target
            self._indexes[move.source].remove(each)
        changed()
        self._move({each: move for each, move in self.moves.items() if each not in over})  # last: see the module


def _indexes() -> tuple[PredicateIndex[Subscription], ...]:
    return tuple(PredicateIndex() for _ in range(LEVELS))
