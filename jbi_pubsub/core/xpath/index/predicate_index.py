"""PredicateIndex: many predicates, decided together for one document.

What it answers is what lxml answers for each predicate alone, bit for bit; the structure only saves work:
- Predicates that say the same, by the plan of their shape and their constants, are one: what is told from the document
  is told once, and whom it is for is a set of keys.
- A predicate's plan (conditions.py) becomes rows (placement.py) in families (family.py), each found by an access key.
- A document is read once, at the paths that predicates name (document.py). Each family is probed once; the rows it
  yields hold, but for their checks (residual.py), where lxml has the last word if it must.
- What no row can stand for is evaluated by lxml, once per distinct expression and document.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from jbi_pubsub.core.errors import MetadataError, UnknownUidError
from jbi_pubsub.core.xml import Element, path_of
from jbi_pubsub.core.xpath.language import cost
from jbi_pubsub.core.xpath.language.budget import Shares
from jbi_pubsub.core.xpath.language.conditions import Condition, ConditionPlan
from jbi_pubsub.core.xpath.language.cost import Extent, exact_extent, rough_extent, size_of
from jbi_pubsub.core.xpath.language.grammar import XML_NAMESPACE
from jbi_pubsub.core.xpath.language.terms import OF_ALL, Evaluation, Operand, Term, Where
from jbi_pubsub.core.xpath.predicate import FOREIGN_ERRORS, MAX_THREADS, Predicate

from .document import EMPTY, Known, Layout, Many, Paths, Values, evaluate
from .family import Family, Probe
from .operands import CostLimits
from .placement import Cookbook, Recipe, Row, choose
from .relative import NO_STEP, UnreadableError
from .residual import Checks

K = TypeVar("K", bound=Hashable)


class _Crowd(dict[K, None]):
    """The owners of a row, if there are several; or none any more."""


class _ShapePredicates(msgspec.Struct, eq=False):
    """The predicates of one shape: how they become rows (None: lxml evaluates them), the terms that are read for them,
    and the rows of each distinct one by what it says: their numbers, or the number if there is one alone."""

    recipes: tuple[Recipe, ...] | None
    shares: Shares
    members: dict[Hashable, int | tuple[int, ...]]


class _State(msgspec.Struct, frozen=True, eq=False):
    """State that readers need and writers replace as a whole."""

    layout: Layout
    simple: tuple[tuple[Family, Probe], ...]
    several: tuple[tuple[Family, Probe], ...]
    arrivals: int


class _Visit:
    """One document being matched: what lxml found out about it, and what that cost."""

    __slots__ = (
        "_asked",
        "_decided",
        "_document",
        "_extent",
        "_is_exact",
        "_read",
        "_size",
        "_spent",
        "errors",
        "evaluations",
        "failed",
    )

    def __init__(self, document: Element | Known, size: int) -> None:
        self._document = document
        self._size = size
        self._extent: Extent | None = None
        self._is_exact = False
        self.failed: set[Where | Term] = set()
        """Operands that were not read: lxml decides on those who ask for them, if it does not cost too much."""
        self._asked: list[Predicate] = []
        self._read: CostLimits | None = None
        self._spent = 0.0
        self.evaluations = 0
        self.errors = 0
        self._decided: dict[int, bool] = {}

    @property
    def root(self) -> Element:
        """The document element."""
        document = self._document
        return document if isinstance(document, Element) else document.root

    def read(self, layout: Layout) -> tuple[Values, Many]:
        """Values of the document by the layout; if that costs too much, without relative paths."""
        document = self._document
        try:
            return layout.read(document) if isinstance(document, Element) else document.read(layout)
        except UnreadableError:
            self.failed.update(where for where in layout.asked if isinstance(where, tuple))
            return msgspec.structs.replace(layout, relative=NO_STEP).read(self.root)

    def evaluate(self, layout: Layout, values: Values, many: Many) -> None:
        """Fill in what lxml evaluates, as far as the document is not too large for it."""
        root = self.root
        beyond, self._spent = self.within(layout.limits)
        self._read = layout.limits
        contexts: dict[Where, Sequence[Element]] = {("",): (root,)}
        for place, reader in enumerate(layout.operands):
            context = reader.operand.context
            try:
                if place in beyond:
                    raise UnreadableError
                if context not in contexts:
                    contexts[context] = reader.contexts(root)
                evaluate(reader, contexts[context], values, many)
            except (*FOREIGN_ERRORS, UnreadableError):
                self.failed.add(reader.operand)
        self.evaluations += len(layout.operands) - len(beyond)

    def within(self, limits: CostLimits) -> tuple[frozenset[int], float]:
        """The places of those expressions that the document is too large for, and what the others may take."""
        found = limits.of(self.extent)
        return limits.of(self.measured()) if found[0] else found

    @property
    def extent(self) -> Extent:
        """The document's extent; a rough one, by its bytes alone, until somebody needs to know it better."""
        if self._extent is None:
            document = self._document
            if not self._size:
                self._size = size_of(document) if isinstance(document, Element) else document.size
            self._extent = rough_extent(self._size)
        return self._extent

    def measured(self) -> Extent:
        """The document's extent as it is."""
        if not self._is_exact:
            self._extent = exact_extent(self.root, self.extent.size)
            self._is_exact = True
        return self.extent

    def verifies(self, predicate: Predicate) -> bool:
        """Whether lxml finds `predicate` true; asked once per predicate."""
        known = self._decided.get(id(predicate))
        if known is None:
            known = self._decided[id(predicate)] = self._evaluated(predicate)
        return known

    def _evaluated(self, predicate: Predicate) -> bool:
        self._asked.append(predicate)
        seconds = predicate.seconds(self.extent)
        self._spent += seconds
        if not self._is_exact and (seconds > cost.MAX_SECONDS or self._spent > cost.MAX_SECONDS_OF_OBJECT):
            extent = self.measured()
            seconds = predicate.seconds(extent)
            self._spent = sum(each.seconds(extent) for each in self._asked)
            self._spent += self._read.of(extent)[1] if self._read is not None else 0.0
        if seconds > cost.MAX_SECONDS or self._spent > cost.MAX_SECONDS_OF_OBJECT:
            return self.refused(predicate)
        self.evaluations += 1
        answer = predicate.evaluate(self.root)
        self.errors += answer is None
        return predicate.is_lenient if answer is None else answer

    def refused(self, predicate: Predicate) -> bool:
        """Answer of a predicate that may take too long, by itself or with those before it; it is counted."""
        predicate.failed(predicate.too_costly())
        self.errors += 1
        return predicate.is_lenient


class _Evaluators:
    """One thread's compiled copies of the predicates that lxml decides, as they were at one version of the index."""

    def __init__(self, version: int, evaluated: list[tuple[int, Predicate]]) -> None:
        self.version = version
        self.each = [(predicate.evaluator(), row, predicate) for row, predicate in evaluated]
        self.limits = CostLimits([predicate.seconds for _, predicate in evaluated])


PER_KEY_BYTES: Final = 150
"""Size of a key and its row: entries by key and by constants, the row's number, owners and check (measured)."""


class PredicateIndex(Generic[K]):
    """Predicates registered under keys (int or str).

    One writer at a time (the caller's lock) calls `add` and `remove`; any number of threads call `match` meanwhile,
    without a lock. A predicate that is added or removed while a document is matched may or may not be answered;
    every other answer is exact.
    """

    def __init__(self) -> None:
        self._placed: dict[K, Predicate] = {}
        self._always: dict[K, None] = {}
        self._groups: dict[K, int] = {}
        self._kinds: dict[tuple[ConditionPlan, tuple[Any, ...]], _ShapePredicates] = {}
        self._owners: list[K | _Crowd[K]] = []
        self._evaluated: dict[int, Predicate] = {}
        self._version = 0
        self._compiled: dict[int, _Evaluators] = {}
        self._checks = Checks()
        self._paths = Paths()
        self._cookbook = Cookbook(self._paths, self._checks)
        self._state = _State(EMPTY, (), (), 0)
        self._free: list[int] = []
        self._limbo: deque[tuple[int, int]] = deque()
        self._epoch = 0
        self._active: dict[int, int] = {}
        self._tallies: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])

    def __len__(self) -> int:
        return len(self._placed) + len(self._always)

    def __contains__(self, key: object) -> bool:
        return key in self._placed or key in self._always

    def add(self, key: K, predicate: Predicate | None, *, group: int = 0) -> None:
        """Register `predicate` under `key`; None is always true. A key already there gets the new predicate instead.

        `group` orders answers: keys of a lower group come first, within a group in no particular order.
        """
        if key in self:
            self.remove(key)
        if group:
            self._groups[key] = group
        if predicate is None:
            self._always[key] = None
            return
        self._placed[key] = predicate
        kind, meaning = self._kind_of(predicate), predicate.meaning
        rows = kind.members.get(meaning)
        if rows is None:
            kind.members[meaning] = self._place(key, predicate, kind)
        else:
            self._join(key, rows)

    def keys(self) -> list[K]:
        """All of them."""
        return [*self._placed, *self._always]

    def unconditional(self) -> list[K]:
        """The keys without a predicate."""
        return list(self._always)

    def remove(self, key: K) -> None:
        """Forget `key` and its predicate. Raises UnknownUidError."""
        if key not in self:
            raise UnknownUidError(f"no predicate is registered under {key!r}", hint="It may have been removed before")
        self._groups.pop(key, None)
        if key in self._always:
            del self._always[key]
            return
        predicate = self._placed.pop(key)
        kind, meaning = self._kind_of(predicate), predicate.meaning
        rows = _numbers(kind.members.get(meaning, ()))  # none: what is never true has no row to share
        stay = [self._leave(key, row) for row in rows]
        if not any(stay):
            kind.members.pop(meaning, None)
            self._displace(rows, predicate, kind)
            if not kind.members:
                del self._kinds[_kind_key(predicate)]
                if self._paths.release(kind.shares):
                    self._publish()

    def match(self, document: Element | Known, size: int = 0) -> list[K]:
        """The keys whose predicate is true for the document, given by its document element or traced, each once.

        `size` are its bytes, if the caller knows them: then they need not be counted. Raises MetadataError when it is
        an element inside a document.
        """
        if isinstance(document, Element) and document.getparent() is not None:
            raise MetadataError(f"{path_of(document)} is not the document element", hint="Match whole documents")
        thread = threading.get_ident()
        self._active[thread] = self._epoch  # rows freed from now on keep their numbers until this match is over
        try:
            visit = _Visit(document, size)
            rows, several = self._rows_for(visit)
            if self._evaluated:
                rows += self._rows_by_lxml(thread, visit)
            found = self._owners_of(rows)
            if several:  # a predicate with several rows may be found by more than one
                found += dict.fromkeys(self._owners_of(several))
            if visit.failed:
                found = self._without_unread(visit, found)
        finally:
            self._active.pop(thread, None)
        self._count(thread, visit)
        if self._always:
            found += self.unconditional()
        if self._groups:
            found.sort(key=lambda k: self._groups.get(k, 0))
        return found

    def count_again(self) -> None:
        """The caller knew the answer of a match: its document was the same as before. It counts as any other."""
        tally = self._tallies[threading.get_ident()]
        tally[0] += 1
        tally[1] += len(self._placed)

    def by_lxml(self) -> int:
        """Expressions that lxml has evaluated for all matches so far, or refused or failed to."""
        return sum(tally[2] + tally[3] for tally in list(self._tallies.values()))

    def stats(self) -> dict[str, int]:
        """Counters.

        `documents`: matches made. `evaluations`: predicate decisions made, that is for each match one per predicate
        registered (paper section 1: second-level matching is per publication and per potentially matching
        subscription), however they were reached. `xpath_evaluations`: expressions lxml evaluated for that. `errors`:
        evaluations that failed. `predicates`, `always`: keys with and without a predicate. `indexed`, `fallback`: of
        the former, answered by rows, and by evaluating `fallback_distinct` expressions. `distinct`: rows in use and
        fallback expressions. `families`, `paths`: see family.py, document.py. `bytes`: estimated memory.
        """
        tallies = list(self._tallies.values())
        documents, evaluations, xpath, errors = (sum(t[i] for t in tallies) for i in range(4))
        fallback = len(self._owners_of(list(self._evaluated)))
        rows = sum(f.rows for f in self._cookbook.families.values())
        return {
            "documents": documents,
            "evaluations": evaluations,
            "xpath_evaluations": xpath,
            "errors": errors,
            "predicates": len(self._placed),
            "always": len(self._always),
            "indexed": len(self._placed) - fallback,
            "fallback": fallback,
            "fallback_distinct": len(self._evaluated),
            "distinct": rows + len(self._evaluated),
            "rows": rows,
            "families": len(self._cookbook.families),
            "paths": len(self._paths),
            "bytes": PER_KEY_BYTES * len(self._placed) + sum(f.size() for f in self._cookbook.families.values()),
        }

    def explain(self, predicate: Predicate) -> dict[str, Any]:
        """The way that this kind of predicate is decided: see `_explained`."""
        return _explained(predicate)

    def _kind_of(self, predicate: Predicate) -> _ShapePredicates:
        """The kind of the predicate; new families and paths are published before any row is added to them."""
        key = _kind_key(predicate)
        kind = self._kinds.get(key)
        if kind is None:
            before = self._revision()
            kind = self._kinds[key] = _ShapePredicates(*self._cookbook.recipes(*key), {})
            if before != self._revision():
                self._publish()
        return kind

    def _revision(self) -> tuple[int, int, int]:
        return len(self._cookbook.families), len(self._paths), self._paths.room.arrivals

    def _publish(self) -> None:
        known = dict((*self._state.simple, *self._state.several))
        simple: list[tuple[Family, Probe]] = []
        several: list[tuple[Family, Probe]] = []
        for form, family in self._cookbook.families.items():
            (several if form[-1] else simple).append((family, known.get(family) or family.probe()))
        layout = self._paths.layout(self._state.layout)
        self._state = _State(layout, tuple(simple), tuple(several), self._paths.room.arrivals)

    def _place(self, key: K, predicate: Predicate, kind: _ShapePredicates) -> int | tuple[int, ...]:
        """Put a predicate that no other says the same as into the families of its rows, or to those that lxml decides;
        the numbers of its rows."""
        rows = _rows_of(predicate, kind)
        if rows is None:
            number = self._new_row(key, None)
            self._evaluated[number] = predicate
            self._version += 1
            return number
        numbers = []
        for row in rows:
            numbers.append(self._new_row(key, row.check and self._checks.entry(*row.check)))
            row.family.add(row.key, row.bounds, numbers[-1])
        return numbers[0] if len(numbers) == 1 else tuple(numbers)

    def _displace(self, numbers: tuple[int, ...], predicate: Predicate, kind: _ShapePredicates) -> None:
        """Take out what `_place` has put in."""
        for number, row in zip(numbers, _rows_of(predicate, kind) or (None,), strict=False):
            if row is None:
                del self._evaluated[number]
                self._version += 1
            else:
                row.family.remove(row.key, row.bounds, number)
            self._limbo.append((self._epoch, number))
            self._epoch += 1
        self._reclaim()

    def _join(self, key: K, rows: int | tuple[int, ...]) -> None:
        for row in _numbers(rows):
            owner = self._owners[row]
            if isinstance(owner, _Crowd):
                owner[key] = None
            else:
                self._owners[row] = _Crowd({owner: None, key: None})

    def _leave(self, key: K, row: int) -> bool:
        """Whether others stay."""
        owner = self._owners[row]
        if isinstance(owner, _Crowd):
            del owner[key]
            return bool(owner)
        self._owners[row] = _Crowd()
        return False

    def _reclaim(self) -> None:
        """Take back the numbers of removed rows that no reader can still hold, and forget their checks."""
        if not self._limbo:
            return
        oldest = min(list(self._active.values()), default=self._epoch)
        while self._limbo and self._limbo[0][0] < oldest:
            row = self._limbo.popleft()[1]
            self._checks.of[row] = None
            self._free.append(row)

    def _new_row(self, key: K, check: Any) -> int:
        """A number for a row: one that was taken back, or a new one."""
        self._reclaim()
        if not self._free:
            self._free.append(len(self._owners))
            self._owners.append(key)
            self._checks.append()
        row = self._free.pop()
        self._checks.of[row], self._checks.born[row], self._owners[row] = check, self._paths.room.arrivals, key
        return row

    def _owners_of(self, rows: list[int]) -> list[K]:
        owners = self._owners
        found: list[Any] = [owners[row] for row in rows]
        crowds = [owner for owner in found if owner.__class__ is _Crowd]
        if crowds:
            found = [owner for owner in found if owner.__class__ is not _Crowd]
            for crowd in crowds:
                found += list(crowd)
        return found

    def _rows_for(self, visit: _Visit) -> tuple[list[int], list[int]]:
        """The rows that hold for the document: of predicates with one row, and of those with several."""
        while True:
            state = self._state
            values, many = visit.read(state.layout)
            values[0] = visit
            if state.layout.operands:
                visit.evaluate(state.layout, values, many)
            if state.layout.terms:
                many = state.layout.compute(values, many)
            try:
                rows, several = self._searched(state.simple, values, many), self._searched(state.several, values, many)
            except IndexError:
                if self._state is state:
                    raise
                continue  # a row came in that reads a path added since: read the document again
            if self._paths.room.arrivals != state.arrivals:  # or that asks for an operand that was not read
                rows, several = (self._checks.before(state.arrivals, each) for each in (rows, several))
            return rows, several

    def _searched(self, families: tuple[tuple[Family, Probe], ...], values: Values, many: Many) -> list[int]:
        """The rows of `families` that hold."""
        checks = self._checks.of
        rows: list[int] = []
        for family, probe in families:
            is_checked = family.checked
            found: list[int] = [] if many or is_checked else rows
            if many and not family.slots.isdisjoint(many):
                family.search(values, many, found)
            else:
                probe(values, found)
            if found is rows or not found:
                continue
            if many and not family.asked.isdisjoint(many):
                rows += [row for row in found if self._checks.holds_for_many(row, values, many)]
            elif is_checked:
                rows += [row for row in found if (check := checks[row])[0](values, check[1])]
            else:
                rows += found
        return rows

    def _rows_by_lxml(self, thread: int, visit: _Visit) -> list[int]:
        """Let lxml evaluate what no row stands for."""
        evaluators = self._evaluators(thread)
        refused, _ = visit.within(evaluators.limits)
        each = evaluators.each
        rows = [each[place][1] for place in refused if visit.refused(each[place][2])]
        if refused:
            each = [one for place, one in enumerate(each) if place not in refused]
        root = visit.root
        for evaluator, row, predicate in each:
            try:
                if evaluator(root):
                    rows.append(row)
            except FOREIGN_ERRORS as exc:
                predicate.failed(exc)
                visit.errors += 1
                rows += [row] * predicate.is_lenient
        visit.evaluations += len(each)
        return rows

    def _without_unread(self, visit: _Visit, found: list[K]) -> list[K]:
        """Keys that hold for a document of which not all operands were read."""
        kinds = {key: kind for key, kind in list(self._kinds.items()) if not visit.failed.isdisjoint(kind.shares)}
        those = {key: p for key, p in list(self._placed.items()) if p.plan.costs and _kind_key(p) in kinds}
        return [key for key in found if key not in those] + [key for key, p in those.items() if visit.verifies(p)]

    def _evaluators(self, thread: int) -> _Evaluators:
        """This thread's compiled copies, kept while no predicate comes or goes."""
        known = self._compiled.get(thread)
        if known is None or known.version != self._version:
            if len(self._compiled) >= MAX_THREADS:
                self._compiled.clear()
            version = self._version  # read first: what is added meanwhile makes the copies stale
            known = self._compiled[thread] = _Evaluators(version, list(self._evaluated.items()))
        return known

    def _count(self, thread: int, visit: _Visit) -> None:
        self.count_again()
        tally = self._tallies[thread]
        tally[2] += visit.evaluations
        tally[3] += visit.errors


def _kind_key(predicate: Predicate) -> tuple[ConditionPlan, tuple[Any, ...]]:
    """Key that has to be equal for predicates to read the same of a document."""
    plan, constants = predicate.plan, predicate.constants
    return plan, tuple([constants[number] for number in plan.fixed]) if plan.fixed else ()


def _numbers(rows: int | tuple[int, ...]) -> tuple[int, ...]:
    return (rows,) if isinstance(rows, int) else rows


def _rows_of(predicate: Predicate, kind: _ShapePredicates) -> list[Row] | None:
    """The rows that stand for a predicate, the same each time; None: lxml evaluates it."""
    if kind.recipes is None:
        return None
    rows = [recipe.row(predicate) for recipe in kind.recipes]
    return None if None in rows else rows  # type: ignore[return-value]  # no None in it


def _explained(predicate: Predicate) -> dict[str, Any]:
    """Explain how this kind of predicate is decided, as plain data.

    `indexed`: whether rows stand for it. For each of its `conjuncts`: the conditions that `access` it, those that
    are `checked` afterwards, the paths that must be `single` for that, and why lxml must verify it, if so.
    """
    choices = [choose(c) for c in predicate.plan.conjuncts]
    evaluated = [r for c in choices if not c.selective for r in c.reasons]
    return {
        "expression": predicate.expression,
        "indexed": not evaluated,
        "reasons": sorted({r for c in choices for r in c.reasons}),
        "conjuncts": [
            {
                "access": [_told(c, predicate) for c in (*choice.keys, *choice.part, *choice.bounds)],
                "checked": [_told(c, predicate) for c in choice.rest],
                "single": [_shown(c.where, predicate) for c in choice.scopes],
                "verified": list(choice.reasons),
            }
            for choice in choices
        ],
    }


def _told(condition: Condition, predicate: Predicate) -> str:
    constant = f" {predicate.constants[condition.parameter]!r}" if condition.parameter >= 0 else ""
    said = f"{_shown(condition.where, predicate)} {condition.test.removeprefix('n')}{constant}"
    return f"not({said})" if condition.negated else said


def _shown(where: Operand, predicate: Predicate) -> str:
    """A path or a term, as it may be written."""
    if isinstance(where, str):
        return where
    if isinstance(where, int):
        return repr(predicate.constants[where])
    if isinstance(where, Term):
        if isinstance(where, Evaluation):
            above = "" if where.context == ("",) else f"{_shown(where.context, predicate)} "
            return above + where.written(dict(enumerate(predicate.constants)))
        if where.operator in OF_ALL:
            return f"{where.operator}({_shown(where.operands[0], predicate)})"
        *left, right = [_shown(each, predicate) for each in where.operands]
        operator = "*" if where.operator == "multiply" else where.operator
        return f"({' '.join([*left, operator, right])})"
    steps = [step.replace(f"{{{XML_NAMESPACE}}}", "xml:") for step in where]
    return "".join(step if step[:2] == "//" else "/" + (step or "*") for step in steps)
