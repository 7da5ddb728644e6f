"""Answering a query: candidates of an index, their records, lxml's word, results; in steps that are bounded.

What an index has not taken in yet, or never, is read in order and asked one by one: the same answers, later. Between
steps a cursor holds positions alone, so that volumes may be sealed, and the index made anew, meanwhile.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from jbi_pubsub.archive.volume import OBJECT, Record
from jbi_pubsub.core.combined import OWN_BYTES, Provenance, combined
from jbi_pubsub.core.errors import PredicateError, ProtocolError, StorageError
from jbi_pubsub.core.history import (
    Explanation,
    ExplanationStep,
    HistoryQuery,
    Order,
    Progress,
    QueryResult,
    Scope,
    State,
)
from jbi_pubsub.core.info_object import Head, head_of
from jbi_pubsub.core.xml import Element, read_metadata
from jbi_pubsub.core.xpath.language.conditions import EXISTS
from jbi_pubsub.core.xpath.language.terms import Where
from jbi_pubsub.core.xpath.predicate import FOREIGN_ERRORS, Predicate, compile_predicate, compiled_xpath

FIRST_ROWS: Final = 1 << 15
MOST_ROWS: Final = 1 << 19
"""Objects that an index is asked about at a time: few at first, so that the first result comes soon."""
MOST_WAITING: Final = 1 << 13
"""Candidates that a cursor holds, at nine bytes each: thousands of cursors may stand still."""
READ_MOST: Final = 1024
"""Records read in order in one step."""
ASK_MOST: Final = 256
ASK_SECONDS: Final = 0.02
"""Candidates that lxml is asked about in one step; fewer if the predicate may take long."""
TAKE_BYTES: Final = 1 << 20
"""Bytes of results that are read ahead."""
MAX_KEYS: Final = 1_000_000
"""Different keys of one query with `latest_by`."""
MAX_IDS: Final = 10_000
"""Object ids of one query."""
UNKNOWN: Final = Provenance()
VERIFY_SECONDS: Final = 25e-6
SCAN_SECONDS: Final = 1e-8
DELIVER_SECONDS: Final = 5e-6
"""Seconds that a candidate, a row of the index, and a result take, about."""


class CompiledScope(msgspec.Struct, frozen=True, eq=False):
    """A scope with its predicates compiled, on the metadata and on the combined view; None is true."""

    scope: Scope
    predicate: Predicate | None
    combined: Predicate | None = None
    origins: Mapping[str, Provenance] = {}
    """By registration."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is asked of documents."""
        return self.predicate is None and self.combined is None

    def is_true(self, head: Head, root: Element | None, size: int) -> bool:
        """Whether the predicates are true for an object with metadata of so many bytes; None: they are no XML."""
        if self.predicate is not None and (root is None or self.predicate.decide(root, size) is not True):
            return False
        if self.combined is None:
            return True
        view = combined(head, self.origins.get(head.registration, UNKNOWN))
        return self.combined.decide(view, size + OWN_BYTES) is True


class Candidates(msgspec.Struct, frozen=True):
    """Positions, in the order asked for, and of each whether it is known to match."""

    positions: Sequence[int]
    exact: Sequence[bool]


class CandidateCount(msgspec.Struct, frozen=True):
    """Number of candidates, and of those among them that are known to match."""

    candidates: int
    exact: int


class QueryIndex(Protocol):
    """An index, as a cursor sees it. All of it raises StorageError, and is asked again later."""

    @property
    def position(self) -> int:
        """All objects up to there are in it."""
        ...

    def window(self, after: int, up_to: int, rows: int, order: Order) -> tuple[int, int]:
        """A part of the positions above one and not above another, with about so many objects: the first part in that
        order, without what is not there."""
        ...

    def candidates(self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int) -> Candidates:
        """Which objects above one position and not above another may match the scope, and all else of the query but
        its own positions, key and limit. In its order."""
        ...

    def count(self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int) -> CandidateCount:
        """Count those."""
        ...

    def latest(
        self, asked: CompiledScope, query: HistoryQuery, key: Where, after: int, up_to: int
    ) -> Sequence[int] | None:
        """Positions of the newest of these objects for each text at a path, but for "", in any order; None: that can't
        be told from what is held."""
        ...

    def explain(
        self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int
    ) -> tuple[tuple[ExplanationStep, ...], int, bool]:
        """Steps that would be done, number of objects, and whether the index alone decides."""
        ...


class RecordSource(Protocol):
    """The records, as a cursor sees them: `store.VolumeStore`."""

    def read(self, after: int, up_to: int, *, newest_first: bool = False) -> Iterator[Record]:
        """Objects above one position and not above another."""
        ...

    def get(self, positions: Sequence[int]) -> Iterator[Record]:
        """Objects by position, in that order."""
        ...

    def metadata(self, positions: Sequence[int]) -> Iterator[Record]:
        """The same, without their payloads."""
        ...


def asked_of(query: HistoryQuery) -> tuple[CompiledScope, ...]:
    """The scopes with their predicates. Raises PredicateError for one that does not compile, or a key, for times,
    positions or sizes the wrong way round, and for too many object ids."""
    for low, high, what in (
        (query.since, query.until, "since"),
        (query.after, query.up_to, "after"),
        (query.least_payload, query.most_payload, "least_payload"),
    ):
        if low > high:
            raise PredicateError(f"{what}: {low:g} is beyond {high:g}, so nothing could be found", argument=what)
    if query.object_ids is not None and len(query.object_ids) > MAX_IDS:
        number = len(query.object_ids)
        raise PredicateError(
            f"object_ids: {number} are asked for, {MAX_IDS} at most", hint="Ask several times", argument="object_ids"
        )
    if query.latest_by:
        for scope in query.scopes:
            Key(scope, query.latest_by)
    return tuple(map(asked_of_scope, query.scopes))


class Cursor:
    """One query, on its way. One thread at a time.

    `progress` says how it is getting on, but for the seconds, which whoever runs it knows.
    """

    def __init__(
        self,
        query: HistoryQuery,
        store: RecordSource,
        index: QueryIndex | None,
        end: int,
        *,
        gone: Container[int] = (),
        count_only: bool = False,
    ) -> None:
        """Nothing beyond position `end` is looked at. `gone`: positions of what is deleted, whether or not it is on
        disk or in the index. `count_only`: results are counted, not read. Raises PredicateError."""
        self.query = query
        self._asked = asked_of(query)
        self._keys = LatestKeys({_type(e): Key(e.scope, query.latest_by) for e in self._asked if query.latest_by})
        self._store = store
        self._index = index
        self._gone = gone
        self._count_only = count_only
        self._is_newest = query.order == "newest" or bool(query.latest_by)
        self._low, self._high = query.after, max(query.after, min(query.up_to, end))
        self._rows = FIRST_ROWS
        self._waiting, self._sure, self._at = array("Q"), bytearray(), 0
        self._decided, self._ready = deque[int](), deque[QueryResult]()
        self._latest = array("Q")
        self._is_turned = not query.latest_by or query.order == "newest"
        self._ids = None if query.object_ids is None else frozenset(query.object_ids)
        self._by_type: dict[tuple[str, str], list[CompiledScope]] = {}
        for each in sorted(self._asked, key=lambda one: not one.is_everything):
            self._by_type.setdefault(_type(each), []).append(each)
        self._is_read = bool(query.latest_by) or any(each.predicate is not None for each in self._asked)
        costs = (p.cost for each in self._asked for p in (each.predicate, each.combined) if p is not None)
        self._at_once = max(1, min(ASK_MOST, int(ASK_SECONDS / max(1e-6, *costs, 0.0))))
        self._state: State = "running"
        self._error = ""
        self._matched = self._candidates = self._verified = 0

    @property
    def progress(self) -> Progress:
        """Progress so far."""
        return Progress(
            state=self._state,
            matched=self._matched,
            candidates=self._candidates,
            verified=self._verified,
            done=self._high if self._is_newest else self._low,
            end=self._low if self._is_newest else self._high,
            error=self._error,
        )

    def cancel(self, state: State = "cancelled", error: str = "") -> None:
        """Nothing more comes."""
        if self._state == "running":
            self._state, self._error = state, error
        self._clear()

    def drop_gone(self) -> None:
        """Drop what was read ahead, and has gone since."""
        self._ready = deque(each for each in self._ready if each.position not in self._gone)

    def step(self, count: int = ASK_MOST, size: int = TAKE_BYTES) -> list[QueryResult]:
        """Go on a little. Up to `count` results, of about `size` bytes in all; none does not mean that it is finished:
        `progress.state` says that."""
        if self._state != "running":
            return []
        try:
            if not self._ready and not self._decided:
                if self._at < len(self._waiting):
                    self._decide()
                else:
                    self._look()
            found = self._taken(count, size)
        except StorageError as exc:
            self.cancel("failed", str(exc))
            return []
        is_empty = not self._ready and not self._decided and self._at >= len(self._waiting)
        if is_empty and self._is_at_end():
            self._state = "finished"
        return found

    # -- inside -------------------------------------------------------------------------------------------------

    def _is_at_end(self) -> bool:
        if self.query.limit and self._matched >= self.query.limit:
            return True
        if self._low < self._high:
            return False
        if not self._is_turned:
            self._is_turned = True  # known newest first, wanted the other way round
            self._decided.extend(reversed(self._latest))
            return not self._decided
        return True

    def _look(self) -> None:
        """Find what may match in the next part."""
        if self._low >= self._high or not self._asked:
            self._low = self._high
            return
        if self._index is not None:
            try:
                if self._ask(self._index):
                    return
            except StorageError:
                pass  # it is made anew by whoever holds it; meanwhile the records are read
        self._read()

    def _ask(self, index: QueryIndex) -> bool:
        """Whether the index knew of the next part."""
        indexed = min(index.position, self._high)
        if indexed <= self._low or (self._is_newest and indexed < self._high):
            return False
        after, up_to = index.window(self._low, indexed, self._rows, "newest" if self._is_newest else "oldest")
        is_counted = self._count_only and not self._gone and not self.query.latest_by
        is_counted = is_counted and not any(each.combined is not None for each in self._asked)
        if is_counted and len(self._by_type) == len(self._asked):
            counts = [index.count(each, self.query, after, up_to) for each in self._asked]
            if all(each.candidates == each.exact for each in counts):
                number = sum(each.exact for each in counts)
                self._candidates += number
                self._matched += number
                if self.query.limit:
                    self._matched = min(self._matched, self.query.limit)
                self._pass(after, up_to)
                return True
        if self.query.latest_by and self._ask_for_latest(index, indexed):
            return True
        found: dict[int, bool] = {}
        for each in self._asked:
            part = index.candidates(each, self.query, after, up_to)
            if each.combined is not None and each.predicate is not None:
                part = Candidates(part.positions, [False] * len(part.exact))  # the index was asked for one of them
            for position, exact in zip(part.positions, part.exact, strict=True):
                found[position] = exact or found.get(position, False)
        positions = sorted(found, reverse=self._is_newest) if len(self._asked) > 1 else list(found)
        if len(positions) > MOST_WAITING:  # the others are found again
            del positions[MOST_WAITING:]
            after, up_to = (positions[-1] - 1, up_to) if self._is_newest else (after, positions[-1])
            self._rows = max(FIRST_ROWS // 4, self._rows // 4)
        self._wait([position for position in positions if position not in self._gone], found)
        self._pass(after, up_to)
        return True

    def _ask_for_latest(self, index: QueryIndex, indexed: int) -> bool:
        """Whether the index knows the newest of each key, of all that it has."""
        found: list[int] = []
        for each in self._asked:
            where = self._keys.where(_type(each))
            if where is None or self._gone or each.combined is not None:
                return False
            part = index.latest(each, self.query, where, self._low, indexed)
            if part is None:
                return False
            found += part
        self._wait(sorted(set(found), reverse=True), {})
        self._pass(self._low, indexed)
        return True

    def _wait(self, positions: Sequence[int], sure: Mapping[int, bool]) -> None:
        self._waiting, self._at = array("Q", positions), 0
        self._sure = bytearray(sure.get(position, False) for position in positions)
        self._candidates += len(positions)

    def _pass(self, after: int, up_to: int) -> None:
        if self._is_newest:
            self._high = after
        else:
            self._low = up_to
        self._rows = min(2 * self._rows, MOST_ROWS)

    def _clear(self) -> None:
        self._waiting, self._sure, self._at = array("Q"), bytearray(), 0
        self._latest = array("Q")
        self._decided.clear()
        self._ready.clear()

    def _read(self) -> None:
        """The next records in order, each of them asked."""
        low, high = self._low, self._high
        if self._is_newest and self._index is not None and low < self._index.position < high:
            low = self._index.position  # what lies before, the index knows
        most = READ_MOST if self._at_once == ASK_MOST else self._at_once
        number, size, position = 0, 0, None
        for record in self._store.read(low, high, newest_first=self._is_newest):
            position, number = record.position, number + 1
            if record.kind == OBJECT and position not in self._gone:
                self._candidates += 1
                if self._matches(record):
                    if not self._is_turned:
                        self._latest.append(position)
                    else:
                        self._ready.append(QueryResult(record.position, record.received, record.data))
                        size += len(record.data)
            if number >= most or size >= TAKE_BYTES:
                break
        else:
            position = None
        if self._is_newest:
            self._high = low if position is None else position - 1
        else:
            self._low = high if position is None else position

    def _decide(self) -> None:
        """Ask lxml about the next candidates, unless the index has decided already."""
        start, self._at = self._at, min(len(self._waiting), self._at + self._at_once)
        part = self._waiting[start : self._at]
        sure = {p for p, is_sure in zip(part, self._sure[start : self._at], strict=True) if is_sure}
        if self.query.latest_by:
            sure = set()  # its key is in its metadata
        asked = [position for position in part if position not in sure]
        sure.update(record.position for record in self._store.metadata(asked) if self._matches(record))
        matched = [position for position in part if position in sure]
        (self._decided if self._is_turned else self._latest).extend(matched)

    def _taken(self, count: int, size: int) -> list[QueryResult]:
        """Results that are there."""
        left = self.query.limit - self._matched if self.query.limit else count
        if self._count_only:
            number = len(self._ready) + len(self._decided)
            self._matched += min(number, left) if self.query.limit else number
            self._ready.clear()
            self._decided.clear()
            return []
        found: list[QueryResult] = []
        wanted = min(count, left)
        while self._ready and len(found) < wanted and size > 0:
            found.append(self._ready.popleft())
            size -= len(found[-1].data)
        if self._decided and len(found) < wanted and size > 0:
            found += self._fetched(wanted - len(found), size)
        self._matched += len(found)
        if self.query.limit and self._matched >= self.query.limit:
            self._clear()
        return found

    def _fetched(self, count: int, size: int) -> list[QueryResult]:
        """The records of what is decided; passing over what is deleted or damaged by now."""
        positions = [self._decided.popleft() for _ in range(min(len(self._decided), count))]
        found: list[QueryResult] = []
        for record in self._store.get([position for position in positions if position not in self._gone]):
            found.append(QueryResult(record.position, record.received, record.data))
            size -= len(record.data)
            if size <= 0:
                behind = positions.index(record.position) + 1
                self._decided.extendleft(reversed(positions[behind:]))
                break
        return found

    def _matches(self, record: Record) -> bool:
        """Whether an object is a result: the last word."""
        try:
            head, _ = head_of(record.data)
        except ProtocolError:
            return False
        if not self._is_within(head, record.received):
            return False
        metadata: bytes | None = None
        root = None
        for each in self._by_type.get((head.type_name, head.type_version), ()):
            registrations = each.scope.registrations
            if registrations is not None and head.registration not in registrations:
                continue
            if each.is_everything and not self.query.latest_by:
                return True
            if metadata is None:
                self._verified += 1
                metadata = bytes(head.metadata)
                root = read_metadata(metadata) if self._is_read else None
            if each.is_true(head, root, len(metadata)):
                return not self.query.latest_by or (root is not None and self._keys.is_new(head, root, len(metadata)))
        return False

    def _is_within(self, head: Head, received: float) -> bool:
        query = self.query
        return (
            query.since <= (received if query.by_receipt else head.published) <= query.until
            and query.least_payload <= head.payload_length <= query.most_payload
            and (self._ids is None or head.object_id in self._ids)
        )


class Key:
    """The text at an XPath: what `latest_by` tells objects apart by."""

    def __init__(self, scope: Scope, expression: str) -> None:
        bound = dict(scope.namespaces)
        self.predicate = compile_predicate(f"boolean({expression})", namespaces=bound, argument="latest_by")
        self._find = compiled_xpath(f"string({expression})", bound)
        self.where = _place(self.predicate)

    def of(self, root: Element, size: int) -> str:
        """ "" where there is none."""
        if self.predicate.decide(root, size) is None:
            return ""  # it may cost too much here
        try:
            return str(self._find(root))
        except FOREIGN_ERRORS:
            return ""


class LatestKeys:
    """Keys of each type of a query, and those that objects have had so far."""

    def __init__(self, keys: Mapping[tuple[str, str], Key]) -> None:
        self._keys = keys
        self._seen: set[bytes] = set()

    def where(self, type_: tuple[str, str]) -> Where | None:
        """The one path of a type's key; None: it is something else."""
        return self._keys[type_].where

    def is_new(self, head: Head, root: Element, size: int) -> bool:
        """Whether an object is the first with its key, newest first. Raises StorageError."""
        text = self._keys[head.type_name, head.type_version].of(root, size)
        if not text:
            return False
        name = f"{head.type_name}\0{head.type_version}\0{text}"
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            return False
        if len(self._seen) >= MAX_KEYS:
            raise StorageError(
                f"latest_by: there are more than {MAX_KEYS} different keys", hint="Ask for a part of the objects"
            )
        self._seen.add(digest)
        return True


def _place(key: Predicate) -> Where | None:
    """The one path that an expression names; None if it says more."""
    conjuncts = key.plan.conjuncts
    if len(conjuncts) != 1 or len(conjuncts[0]) != 1:
        return None
    (condition,) = conjuncts[0]
    if condition.test != EXISTS or condition.negated or not isinstance(condition.where, tuple):
        return None
    return condition.where


def asked_of_scope(scope: Scope) -> CompiledScope:
    """With its predicates compiled. Raises PredicateError."""
    predicate = _compiled(scope.predicate, scope.namespaces)
    view = _compiled(scope.combined, scope.prefixes)
    origins = {uid: origin for origin, uids in scope.origins for uid in uids}
    return CompiledScope(scope, predicate, view, origins)


def _compiled(expression: str, namespaces: Sequence[tuple[str, str]]) -> Predicate | None:
    if not expression:
        return None
    return compile_predicate(expression, namespaces=dict(namespaces)).copy()  # counts its own errors


def _type(asked: CompiledScope) -> tuple[str, str]:
    return asked.scope.type.name, asked.scope.type.version


def explained(query: HistoryQuery, index: QueryIndex | None, end: int, *, objects: int) -> Explanation:
    """Explain how a query would be answered, over the positions up to `end`. `objects`: how many are in the archive,
    about. Raises PredicateError."""
    after, up_to = query.after, max(query.after, min(query.up_to, end))
    indexed = min(index.position, up_to) if index is not None else 0
    steps: list[ExplanationStep] = []
    rows, is_exact = 0, indexed >= up_to
    if index is not None and indexed > after:
        for each in asked_of(query):
            found, number, is_sure = index.explain(each, query, after, indexed)
            steps += found
            rows += number
            is_exact = is_exact and is_sure
    else:
        asked_of(query)
    spread = up_to - max(after, indexed)
    tail = min(objects, spread) if indexed < up_to and not query.is_narrowed else 0
    return Explanation(
        steps=tuple(steps),
        objects=rows + tail,
        not_indexed=tail,
        is_exact=is_exact,
        seconds=rows * SCAN_SECONDS
        + tail * VERIFY_SECONDS
        + sum(step.rows * (VERIFY_SECONDS + DELIVER_SECONDS if step.left else DELIVER_SECONDS) for step in steps),
    )
