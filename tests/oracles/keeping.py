"""An archive in memory: the plainest Keeping there is, which can be told to fail and to be slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lxml import etree

from jbi_pubsub.core.combined import Provenance, combined
from jbi_pubsub.core.errors import BackPressureError, PredicateError, StorageError
from jbi_pubsub.core.history import (
    Consumer,
    Explanation,
    GivenUp,
    HistoryQuery,
    KeepRule,
    Progress,
    QueryResult,
    Scope,
    Source,
)
from jbi_pubsub.core.info_object import Parcel, TypeName
from jbi_pubsub.core.xpath import compile_predicate


class MemoryKeeping:
    """See the module. `lock` covers all state."""

    def __init__(self, *, at_once: int = 1_000, max_queries: int = 1_000) -> None:
        """`at_once`: results that are there without waiting; of those behind them it is told when they are taken."""
        self.lock = threading.RLock()
        self.id = ""
        self.incarnations: dict[str, int] = {}
        self.records: list[tuple[int, float, bytes]] = []
        """(position, received, bytes) as appended."""
        self.known: dict[str, Source] = {}
        self.rules: tuple[KeepRule, ...] = ()
        self.durables: dict[tuple[str, str], Consumer] = {}
        self.expired_positions: list[int] = []
        self.end = 0
        self.synced = 0
        self.syncs = 0
        self.registers: list[int] = []
        """Registrations of each call."""
        self.appends: list[int] = []
        """Objects of each append."""
        self.lost: list[tuple[int, int]] = []
        self.fails: dict[str, bool] = {}
        """What raises StorageError: room, append, sync, register, note."""
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.at_once = at_once
        self.max_queries = max_queries
        self.open_now: list[MemoryResults] = []
        self.opened: list[HistoryQuery] = []
        self.closed = 0
        self.deleted: set[str] = set()
        self.rebuilt = 0

    def _fail(self, what: str) -> None:
        if self.fails.get(what):
            raise StorageError(f"the disk fails ({what})")

    def room(self, size: int, *, may_pass: bool = True) -> float:  # noqa: ARG002  # the protocol's
        self._fail("room")
        return 0.0

    def append(self, run: Sequence[tuple[int, Parcel]], received: float) -> None:
        with self.lock:
            self._fail("append")
            assert [position for position, _ in run] == sorted({position for position, _ in run})
            assert run[0][0] > self.end, "positions go up"
            self.appends.append(len(run))
            for position, parcel in run:
                self.records.append((position, received, b"".join(bytes(part) for part in parcel.parts)))
                self.end = position

    def sync(self, position: int) -> None:
        if not self.may_sync.wait(30.0):
            raise StorageError("nobody let the disk go on")
        with self.lock:
            if any(above < position <= up_to for above, up_to in self.lost):
                raise StorageError("lost before")
            if position <= self.synced:
                return
            self.syncs += 1
            if self.fails.get("sync"):
                self.lost.append((self.synced, self.end))
                self.records = [record for record in self.records if record[0] <= self.synced]
                self._fail("sync")
            self.synced = self.end

    def register(self, *sources: Source) -> None:
        self._fail("register")
        self.registers.append(len(sources))
        self.known |= {source.uid: source for source in sources}

    def sources(self) -> Sequence[Source]:
        with self.lock:
            kept = {Parcel.received(data).head.registration for _, _, data in self.records}
            return [source for uid, source in self.known.items() if uid in kept]

    def follow(self, rules: Sequence[KeepRule]) -> None:
        self.rules = tuple(rules)

    def consumers(self) -> Sequence[Consumer]:
        return list(self.durables.values())

    def note(self, consumers: Sequence[Consumer]) -> None:
        self._fail("note")
        with self.lock:
            self.durables |= {(each.name, each.owner): each for each in consumers}

    def cancel(self, name: str, owner: str) -> bool:
        with self.lock:
            return self.durables.pop((name, owner), None) is not None

    def expire(self, up_to: int) -> None:
        """The rules take all up to that position."""
        with self.lock:
            self.expired_positions += [record[0] for record in self.records if record[0] <= up_to]
            self.records = [record for record in self.records if record[0] > up_to]
            for results in self.open_now:
                results._left = [each for each in results._left if each.position > up_to]

    def expired(self, query: HistoryQuery) -> int:
        with self.lock:
            return sum(query.after < each <= query.up_to for each in self.expired_positions)

    def last_sequence(self, registration: str) -> int:
        with self.lock:
            heads = [Parcel.received(data).head for _, _, data in self.records]
            return max((head.sequence for head in heads if head.registration == registration), default=0)

    def open(self, query: HistoryQuery, wake: Callable[[], None], *, count_only: bool = False) -> MemoryResults:
        with self.lock:
            self.open_now = [each for each in self.open_now if each.progress().state == "running"]
            if len(self.open_now) >= self.max_queries:
                raise BackPressureError("too many queries are open")
            if query.after > query.up_to:  # as the engine does
                raise PredicateError(f"after: {query.after} is beyond {query.up_to}", argument="after")
            self.opened.append(query)
            results = MemoryResults(self, self.answer(query), wake)
            if count_only and self.may_answer.is_set():
                results._left, results._state = [], "finished"
            self.open_now.append(results)
            return results

    def answer(self, query: HistoryQuery) -> list[QueryResult]:
        """All results, one by one by lxml."""
        with self.lock:
            standing = [record for record in self.records if record[0] <= self.synced]
        found: list[QueryResult] = []
        keys: set[object] = set()
        predicates = [
            compile_predicate(scope.predicate, namespaces=dict(scope.namespaces)) if scope.predicate else None
            for scope in query.scopes
        ]
        views = [
            compile_predicate(scope.combined, namespaces=dict(scope.prefixes)) if scope.combined else None
            for scope in query.scopes
        ]
        for position, received, data in reversed(standing):
            parcel = Parcel.received(data)
            head = parcel.head
            when = received if query.by_receipt else head.published
            if not (query.after < position <= query.up_to and query.since <= when <= query.until):
                continue
            if not query.least_payload <= head.payload_length <= query.most_payload:
                continue
            if query.object_ids is not None and head.object_id not in query.object_ids:
                continue
            root = etree.fromstring(bytes(head.metadata)) if len(head.metadata) else etree.Element("none")
            for scope, predicate, view in zip(query.scopes, predicates, views, strict=True):
                if (
                    _is_in(scope, parcel)
                    and (predicate is None or predicate.matches(root))
                    and (view is None or view.matches(combined(head, _origin(scope, head.registration))))
                ):
                    break
            else:
                continue
            if query.latest_by:
                key = str(etree.XPath(f"string({query.latest_by})")(root))
                if key in keys:
                    continue
                keys.add(key)
            found.append(QueryResult(position, received, data))
        if query.order == "oldest":
            found.reverse()
        return found[: query.limit or None]

    def explain(self, query: HistoryQuery) -> Explanation:
        found = len(self.answer(query))
        return Explanation(steps=(), objects=found, not_indexed=found, is_exact=False, seconds=0.0)

    def delete(self, query: HistoryQuery, *, timeout: float) -> int:  # noqa: ARG002  # the protocol's
        with self.lock:
            self._fail("delete")
            found = self.answer(query)
            gone = {each.position for each in found}
            self.expired_positions += sorted(gone)
            self.deleted |= {Parcel.received(each.data).head.object_id for each in found}
            self.records = [record for record in self.records if record[0] not in gone]
            return len(found)

    def refuse(self, object_ids: Sequence[str]) -> None:
        self.deleted |= set(object_ids)

    def are_deleted(self, object_ids: Sequence[str]) -> set[str]:
        return self.deleted.intersection(object_ids)

    def retain(self, *, is_dry: bool, timeout: float) -> Sequence[GivenUp]:  # noqa: ARG002  # the protocol's
        """By age alone, all as one volume, by the clock of the test's machine."""
        with self.lock:
            self._fail("retain")
            ages = [rule.age for rule in self.rules if rule.age is not None]
            gone = [record for record in self.records if ages and record[1] < time.time() - ages[0]]
            if not gone:
                return []
            whole = len(gone) == len(self.records)
            told = GivenUp(gone[0][0], gone[-1][0], len(self.records), {"age": len(gone)}, whole, True)
            if not is_dry:
                self.records = [record for record in self.records if record not in gone]
            return [told]

    def rebuild(self) -> None:
        self._fail("rebuild")
        self.rebuilt += 1

    def status(self) -> dict[str, Any]:
        return {"position": self.end, "synced": self.synced, "indexed": self.synced}

    def close(self) -> None:
        self.may_sync.set()
        self.closed += 1

    def numbers(self) -> list[tuple[str, int]]:
        """Registration and number of all that is kept, as it was appended."""
        with self.lock:
            heads = [Parcel.received(data).head for _, _, data in self.records]
        return [(head.registration, head.sequence) for head in heads]


class MemoryResults:
    """Of one query."""

    def __init__(self, keeping: MemoryKeeping, found: list[QueryResult], wake: Callable[[], None]) -> None:
        self._keeping = keeping
        self._left = found
        self._wake = wake
        self._began = time.monotonic()
        self._state = "running" if found else "finished"
        self._matched = len(found)
        self._there = keeping.at_once
        self.cancelled = False
        self.most_taken = 0

    def take(self, count: int, size: int) -> list[QueryResult]:
        if not self._keeping.may_answer.is_set():
            threading.Thread(target=self._later, daemon=True).start()
            return []
        taken: list[QueryResult] = []
        while self._left and len(taken) < min(count, self._there) and (not taken or size > 0):
            taken.append(self._left.pop(0))
            size -= len(taken[-1].data)
        self.most_taken = max(self.most_taken, len(taken))
        if not self._left and self._state == "running":
            self._state = "finished"
        self._wake()
        return taken

    def _later(self) -> None:
        self._keeping.may_answer.wait(60.0)
        self._wake()

    def fail(self, why: str) -> None:
        """As when a worker dies for good."""
        self._left, self._state, self.error = [], "failed", why
        self._wake()

    error = ""

    def progress(self) -> Progress:
        seconds = time.monotonic() - self._began
        return Progress(state=self._state, matched=self._matched, verified=self._matched, seconds=seconds,
                        end=self._keeping.end, error=self.error)  # type: ignore[arg-type]  # fmt: skip

    def cancel(self) -> None:
        self.cancelled = True
        self._left = []
        if self._state == "running":
            self._state = "cancelled"


def _origin(scope: Scope, registration: str) -> Provenance:
    return next(origin for origin, uids in scope.origins if registration in uids)


def _is_in(scope: Scope, parcel: Parcel) -> bool:
    head = parcel.head
    if TypeName(head.type_name, head.type_version) != scope.type:
        return False
    return scope.registrations is None or head.registration in scope.registrations
