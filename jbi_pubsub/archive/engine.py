"""The archive of a delegate: what is published is kept, and found again.

Rules:
- Whoever publishes appends to the log, and waits for the disk (`sync`); nothing else is done on those threads. All that
  reads (answers, sealing, retention) is the worker's (`worker.py`), which may die without anybody who publishes
  noticing.
- What the catalogue says of registrations follows behind: what was synced since is read again at the next start.
"""

from __future__ import annotations

import errno
import importlib.util
import itertools
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.archive.catalogue import Catalogue, Kept
from jbi_pubsub.archive.desk import Ask, Deleted, Explain, Explained, Indexed, More, Rebuild, Setup, Synced
from jbi_pubsub.archive.desk import Results as FoundSome
from jbi_pubsub.archive.folder import CATALOGUE, Folder
from jbi_pubsub.archive.log import VOLUME_BYTES, VOLUME_RECORDS, Log
from jbi_pubsub.archive.opened import PAGE, PAGE_BYTES, OpenQuery
from jbi_pubsub.archive.query import asked_of
from jbi_pubsub.archive.store import LOG, Store
from jbi_pubsub.archive.upkeep import AGAIN_SECONDS, Applied, Free, Going, Retain, Retained, Stored
from jbi_pubsub.archive.volume import RECORD, LogVolume, Record
from jbi_pubsub.archive.worker import Asked, ProcessWorker, ThreadWorker, Told, Worker
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError, ProtocolError, StorageError, rebuild, report
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import MAX_POSITION, Consumer, Explanation, Found, KeepRule, Query, Source
from jbi_pubsub.core.info_object import Parcel, TypeName
from jbi_pubsub.core.ticker import Job

log = logging.getLogger("jbi_pubsub.archive")

TICK: Final = 0.25
"""Seconds between two looks at the disk."""
CHECKPOINT_SECONDS: Final = 5.0
MOST_SECONDS: Final = 3_600.0
"""Between two times that all is forced to the disk."""
REGISTRATIONS_MOST: Final = 100_000
"""Known, before those are forgotten of which nothing is kept any more."""
TAIL_PARTS: Final = 16
"""Parts of a volume: the bytes of objects are counted together by these, until all of them are in packs."""
EXPLAIN_SECONDS: Final = 20.0
RETAIN_SECONDS: Final = 3_600.0
RETAIN_FIRST: Final = 60.0
"""Between two times that rules are looked at, and from the start to the first."""
FREE_ABOVE: Final = 0.9
"""Share of a quota: above that the oldest go, where they are to give way."""
EXPIRED_UP_TO: Final = "expired_up_to"
"""Counted: the last position of what was given up."""
NOT_ARCHIVED: Final = "not_archived"
"""Counted: objects that were passed on without being kept, since there was no room."""


@dataclass(slots=True)
class _Note:
    """Addition of a run to a registration. `first` and `last` are positions."""

    uid: str
    type: str
    version: str
    sequence: int
    first: int
    last: int
    objects: int
    metadata: int
    payload: int


class Archive:
    """See the module; `pad/past/store_protocol.py` says what each call does. Any thread."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        volume_bytes: int = VOLUME_BYTES,
        volume_records: int = VOLUME_RECORDS,
        is_indexed: bool = True,
    ) -> None:
        """Opens the archive in `[archive] folder`, made if it is not there, and recovers it. `is_indexed`: without an
        index queries read all objects. Raises StorageError, ConfigurationError."""
        if is_indexed:
            _check_libraries()
        section = config.archive
        self._section = section
        self._seconds = _seconds_of(section.sync)
        self._clock = clock
        self._volume_bytes = volume_bytes
        self._lock = threading.Lock()
        """Covers what is known of registrations, and that the log has objects in their order."""
        self._registrations: dict[str, Kept] = {}
        self._changed: set[str] = set()
        self._unsettled: deque[_Note] = deque()
        """Appended, and not known to be on disk."""
        self._counters: Counter[str] = Counter()
        self._asking = threading.Lock()
        """Covers what is asked."""
        self._queries: dict[int, OpenQuery] = {}
        self._questions: dict[int, _Question] = {}
        self._number = itertools.count(1)
        self._gone: set[int] = set()
        """Positions of what is deleted, and on disk still."""
        self._indexed = Indexed(0, 0)
        self._rules: tuple[KeepRule, ...] = ()
        self._stored = Stored(0, 0, 0, 0, 0)
        self._begun_when_stored = 0
        self._tail: deque[_Note] = deque()
        """Notes of what is in no pack yet, and its bytes of metadata and of payloads."""
        self._tail_bytes = [0, 0]
        self._is_freeing = False
        self._is_refusing = False
        """The last run could not be written, which the log was told."""
        self._free_at = 0.0
        """When room may be made again, after that has failed (monotonic seconds)."""
        self._trouble = ""
        """Why the catalogue could not be written."""
        self._worker_starts = 0
        self._told = 0
        """Position up to which the worker knows the log to be on disk."""
        self._spare = 0
        """Bytes of the disk beyond the reserve."""
        self._lost_folder = ""
        """Why the folder can't be used any more."""
        self._consumers = 0
        self._end_before = 0
        """The last position that was known to be given when this was opened, or that a consumer has had."""
        self._is_closed = threading.Event()
        self.folder = Folder(Path(section.folder))
        try:
            self._catalogue = Catalogue(self.folder.path / CATALOGUE, self.folder.archive)
            try:
                self._log = self._recovered(volume_bytes, volume_records)
                try:
                    self.incarnations: Final = self._catalogue.begin(uuid4().hex, self.end)
                    """See Keeping."""
                except BaseException:
                    self._log.close()
                    raise
            except BaseException:
                self._catalogue.close()
                raise
        except BaseException:
            self.folder.close()
            raise
        self._look_at_disk()
        self._columns, self._memory = (section.columns, section.memory) if is_indexed else (0, 0)
        self._worker: Worker
        if section.workers > 1:
            log.warning("[archive] workers = %d: one process does it all, the others are not started", section.workers)
        if section.workers:
            self._worker = ProcessWorker(self._setup, self._hear, self._again, lock=self.folder.lock)
        else:
            self._worker = ThreadWorker(self._setup(), self._hear)
        pause = min(self._seconds or TICK, TICK)
        self._maintenance = Job("archive maintenance", pause, partial(next, self._maintain()), slow=True)
        self._maintenance.start(after=pause)

    # -- keeping ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """See Keeping: that of its folder."""
        return self.folder.archive.hex()

    def room(self, size: int) -> float:
        """See Keeping. With `full = "drop_oldest"` in a moment, if something can give way."""
        if self._section.full == "drop_oldest":
            return TICK if self._can_give_way() and self._full(size, ahead=True) else 0.0
        if self._section.full == "refuse" and (why := self._full(size)):
            raise StorageError(
                f"the archive in {self.folder.path} has no room: {why}",
                hint="Make room, or shorten what is kept ([[keep]]); see [archive] full",
                path=str(self.folder.path),
            )
        return 0.0

    def append(self, run: Sequence[tuple[int, Parcel]], received: float) -> None:
        """See Keeping. An object whose id was deleted is not kept again; nor, with `full = "pass"`, one for which there
        is no room."""
        if not run:
            return
        may_pass = self._section.full == "pass"
        if may_pass and self._full(sum([parcel.size + RECORD.size for _, parcel in run])):
            with self._lock:
                self._counters[NOT_ARCHIVED] += len(run)
            return
        run = self._without_deleted(run)
        with self._lock:
            before = self._log.room
            try:
                self._check_folder()
                self._log.append([(position, parcel.parts) for position, parcel in run], received)
            except StorageError as exc:
                self._look_at_disk()
                if not may_pass or not _says_full(exc):
                    if not self._is_refusing:
                        log.error("nothing is kept until it can be again: %s", exc)
                    self._is_refusing = True
                    raise
                self._counters[NOT_ARCHIVED] += len(run)
                return
            self._is_refusing = False
            if self._log.room > before:
                self._look_at_disk()  # another file was begun: who asks for room is told of it
            notes = _notes(run)
            self._unsettled.extend(notes)
            for note in notes:
                self._add_to_tail(note)

    def sync(self, position: int) -> None:
        """See Keeping."""
        self._log.sync(position)

    @property
    def synced(self) -> int:
        """See Keeping."""
        return self._log.synced

    @property
    def end(self) -> int:
        """See Keeping."""
        return max(self._log.end, self._end_before)

    def last_sequence(self, registration: str) -> int:
        """See Keeping."""
        with self._lock:
            self._settle(self._log.synced)
            known = self._registrations.get(registration)
            last = known.sequence if known is not None else 0
            for note in self._unsettled:
                if note.uid == registration and not self._log.is_lost(note.last):
                    last = max(last, note.sequence)
        return last

    # -- asking -------------------------------------------------------------------------------------------------

    def open(self, query: Query, wake: Callable[[], None], *, count_only: bool = False) -> OpenQuery:
        """See Keeping. `count_only`: nothing is to be taken, `progress` says how many there are."""
        asked_of(query)
        with self._asking:
            self._clear()
            if len(self._queries) >= self._section.max_queries:
                raise BackPressureError(
                    f"{self._section.max_queries} queries of the archive are open",
                    hint="Wait for some to end, or close them; see [archive] max_queries",
                )
            self._check_open()
            number = next(self._number)
            opened = OpenQuery(Ask(number, query, self._log.synced, count_only), wake, self._worker.tell)
            self._queries[number] = opened
            self._worker.tell(opened.ask)
            self._worker.tell(More(number, PAGE, PAGE_BYTES))
        return opened

    def explain(self, query: Query) -> Explanation:
        """See Keeping."""
        asked_of(query)
        question = _Question()
        with self._lock:
            self._settle(self._log.synced)
            types = {(scope.type.name, scope.type.version) for scope in query.scopes}
            objects = sum(
                known.objects for known in self._registrations.values() if (known.type, known.version) in types
            )
        with self._asking:
            self._check_open()
            number = next(self._number)
            self._questions[number] = question
            self._worker.tell(Explain(number, query, self._log.synced, objects))
        try:
            answer = question.wait(EXPLAIN_SECONDS)
        finally:
            with self._asking:
                self._questions.pop(number, None)
        if answer.error is not None:
            raise rebuild(answer.error)
        assert isinstance(answer, Explained)
        assert answer.explanation is not None
        return answer.explanation

    def delete(self, query: Query, *, timeout: float = 3_600.0) -> int:
        """Delete what a query finds: gone from every answer when this returns, from the disk soon, and it does not
        come back. How many objects. Raises PredicateError, BackPressureError, StorageError."""
        until, count = time.monotonic() + timeout, 0
        came = threading.Event()
        results = self.open(query, came.set)
        try:
            while not results.is_over:
                came.clear()
                found = results.take(PAGE, PAGE_BYTES)
                if found:
                    self._delete(found)
                    count += len(found)
                elif time.monotonic() >= until:
                    raise StorageError(f"deleting took more than {timeout:g} s, {count} objects are deleted")
                elif not results.is_over:
                    came.wait(1.0)
        finally:
            results.cancel()
        if results.progress().state == "failed":
            raise StorageError(f"{count} objects are deleted, then: {results.progress().error}")
        return count

    def are_deleted(self, object_ids: Iterable[str]) -> set[str]:
        """See Keeping."""
        return self._catalogue.are_deleted(object_ids)

    def rebuild(self) -> None:
        """See Keeping."""
        with self._asking:
            self._check_open()
            self._indexed = Indexed(0, 0, "it is made anew")
            self._worker.tell(Rebuild())

    def retain(self, *, is_dry: bool = False, timeout: float = 3_600.0) -> tuple[Going, ...]:
        """Give up what the rules say, or with `is_dry` only say what that would be: of each volume of which
        something goes. Raises StorageError."""
        question = _Question()
        with self._asking:
            self._check_open()
            number = next(self._number)
            self._questions[number] = question
            self._worker.tell(Retain(number, self._rules, self._clock(), self._had(), is_dry))
        try:
            answer = question.wait(timeout)
        finally:
            with self._asking:
                self._questions.pop(number, None)
        if answer.error is not None:
            raise rebuild(answer.error)
        assert isinstance(answer, Retained)
        if not is_dry:
            self._count(answer)
        return answer.volumes

    def follow(self, rules: Sequence[KeepRule]) -> None:
        """See Keeping."""
        with self._lock:
            self._rules = tuple(rules)

    def expired(self, query: Query) -> int:
        """See Keeping. Of what went with a volume that lies there in part, a part."""
        count = 0.0
        for scope in query.scopes:
            for lost in self._catalogue.expired(scope.type.name, scope.type.version, query.after, query.up_to):
                if scope.registrations is None or lost.registration in scope.registrations:
                    first, last = max(lost.first, query.after + 1), min(lost.last, query.up_to)
                    count += math.ceil(lost.objects * (last - first + 1) / (lost.last - lost.first + 1))
        return int(count)

    @property
    def expired_up_to(self) -> int:
        """The last position of what was given up, by rules or for room: a durable subscription that was not there yet
        has lost something, perhaps."""
        with self._lock:
            return self._counters[EXPIRED_UP_TO]

    def _had(self) -> int:
        """Up to which position all durable subscriptions have had what they want."""
        now = self._clock()
        return min((each.position for each in self._catalogue.consumers() if each.ends > now), default=MAX_POSITION)

    def _note_retained(self, message: Retained) -> None:
        with self._asking:
            question = self._questions.get(message.number)
        if question is not None:
            question.answer(message)
            return
        self._is_freeing = False
        if message.error is not None:
            self._free_at = time.monotonic() + AGAIN_SECONDS
            return
        try:
            self._count(message)
        except StorageError as exc:
            log.error("what was given up could not be counted: %s", exc)

    def _count(self, message: Retained) -> None:
        self._catalogue.expire([lost for going in message.volumes if going.is_done for lost in going.lost])
        with self._lock:
            for going in message.volumes:
                for reason, number in going.reasons.items():
                    self._counters[f"expired_{reason}"] += number if going.is_done else 0
            self._counters[EXPIRED_UP_TO] = max(self._counters[EXPIRED_UP_TO], message.up_to)

    def _note_stored(self, message: Stored) -> None:
        with self._lock:
            self._stored, self._begun_when_stored = message, self._log.begun
            while self._tail and self._tail[0].last <= message.up_to:
                note = self._tail.popleft()
                self._tail_bytes[0] -= note.metadata
                self._tail_bytes[1] -= note.payload

    def _delete(self, found: Sequence[Found]) -> None:
        positions = [each.position for each in found]
        self._catalogue.delete([Parcel.received(each.data).head.object_id for each in found])
        self._log.delete(positions, self._clock())
        with self._asking:
            self._gone.update(positions)
            for query in self._queries.values():
                query.deleted(positions)
            self._worker.tell(Deleted(tuple(positions)))

    def _setup(self) -> Setup:
        path = str(self.folder.path.absolute())
        return Setup(path, self.folder.archive, self._log.synced, self._columns, self._memory)

    def _again(self, forget: Callable[[], None]) -> list[Asked]:
        """Messages for a new worker, ahead of what waits; `forget` drops that, where it was for one that died."""
        messages: list[Asked] = []
        with self._asking:
            self._clear()
            if self._gone:
                messages.append(Deleted(tuple(self._gone)))
            self._worker_starts += 1
            if self._worker_starts == 1:
                return messages
            forget()
            for query in self._queries.values():
                messages += query.again()
            self._is_freeing = False
            questions, queries = list(self._questions.values()), list(self._queries.values())
        for question in questions:
            question.answer(Explained(0, None, report(StorageError("the archive's worker has died"))))
        for query in queries:
            query.told()
        return messages

    def _hear(self, message: Told) -> None:
        """Take a message of the worker; on its thread."""
        with guarded("archive worker's message"):
            self._do(message)

    def _do(self, message: Told) -> None:
        match message:
            case FoundSome(number):
                with self._asking:
                    query = self._queries.get(number)
                if query is not None:
                    query.came(message)
            case Explained(number):
                with self._asking:
                    question = self._questions.get(number)
                if question is not None:
                    question.answer(message)
            case Indexed():
                self._indexed = message
            case Stored():
                self._note_stored(message)
            case Applied(positions):
                with self._asking:
                    self._gone.difference_update(positions)
            case Retained():
                self._note_retained(message)

    def _clear(self) -> None:
        """Queries that are over count no more. `_asking` is held."""
        for number in [number for number, query in self._queries.items() if query.is_over]:
            del self._queries[number]

    def _check_open(self) -> None:
        if self._is_closed.is_set():
            raise StorageError(f"the archive in {self.folder.path} is closed")

    # -- registrations ------------------------------------------------------------------------------------------

    def register(self, *sources: Source) -> None:
        """See Keeping. On disk when it returns."""
        with self._lock:
            known = {source.uid: self._registrations.get(source.uid) for source in sources}
        new = [
            Kept(source.uid, source.type.name, source.type.version, source.publisher, source.entries)
            for source in sources
            if (at := known[source.uid]) is None or (at.publisher, at.entries) != (source.publisher, source.entries)
        ]
        if not new:
            return
        self._check_folder()
        self._catalogue.register(new)
        with self._lock:
            for kept in new:
                at = self._registrations.get(kept.uid) or kept
                self._registrations[kept.uid] = msgspec.structs.replace(
                    at, publisher=kept.publisher, entries=kept.entries
                )

    def sources(self) -> list[Source]:
        """See Keeping."""
        return [
            Source(known.uid, TypeName(known.type, known.version), known.publisher, known.entries)
            for known in self.registrations()
            if known.last
        ]

    def registrations(self) -> list[Kept]:
        """All that are known, with what is kept of them."""
        with self._lock:
            self._settle(self._log.synced)
            return list(self._registrations.values())

    # -- durable subscriptions ----------------------------------------------------------------------------------

    def consumers(self) -> list[Consumer]:
        """Durable subscriptions. Raises StorageError."""
        return self._catalogue.consumers()

    def note(self, consumers: Iterable[Consumer]) -> None:
        """Durable subscriptions as they are now, on disk when it returns. Raises StorageError."""
        consumers = list(consumers)
        if not consumers:
            return
        self._check_folder()
        count = self._catalogue.note(consumers)
        with self._lock:
            self._consumers = count
            self._end_before = max(self._end_before, *(consumer.position for consumer in consumers), 0)

    def cancel(self, name: str, owner: str) -> bool:
        """A durable subscription is over; whether there was one. Raises StorageError."""
        was_there = self._catalogue.cancel(name, owner)
        with self._lock:
            self._consumers -= was_there
        return was_there

    # -- watching, ending ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """See Keeping."""
        with self._lock:
            self._settle(self._log.synced)
            counters, registrations = dict(self._counters), len(self._registrations)
        with self._asking:
            self._clear()
            queries = len(self._queries)
        return {
            "folder": str(self.folder.path),
            "position": self.end,
            "synced": self.synced,
            "registrations": registrations,
            "full": self._full(0),
            "spare_bytes": self._spare,
            "counters": counters,
            "indexed": self._indexed.position,
            "index_bytes": self._indexed.size,
            "index_trouble": self._indexed.trouble,
            "queries": queries,
            "worker": self._worker.status(),
            "volumes": self._stored.volumes,
            "packs": self._stored.packs,
            "metadata_bytes": self._stored.metadata + self._tail_bytes[0],
            "payload_bytes": self._stored.payload + self._tail_bytes[1],
            "consumers": self._consumers,
            "troubles": [*self._catalogue.troubles, *self._indexed.troubles, *filter(None, [self._trouble])],
        }

    def close(self) -> None:
        """See Keeping. Raises StorageError when the last of it could not be written."""
        if self._is_closed.is_set():
            return
        with self._asking:
            self._is_closed.set()
            queries = list(self._queries.values())
        self._maintenance.stop(30.0)
        self._worker.close()
        for query in queries:
            query.fail("the archive was closed")
        self._try_checkpoint()
        try:
            self._log.close()
        finally:
            self._catalogue.close()
            self.folder.close()

    # -- recovery -----------------------------------------------------------------------------------------------

    def _recovered(self, volume_bytes: int, volume_records: int) -> Log:
        """The log, and what the catalogue does not know of it yet."""
        catalogue, path = self._catalogue, self.folder.path
        self._registrations = {kept.uid: kept for kept in catalogue.registrations()}
        self._counters = Counter(catalogue.counters())
        self._end_before = catalogue.end
        self._consumers = len(catalogue.consumers())
        store = Store(path, self.folder.archive)
        store.refresh(0)
        sealed = max((volume.last for volume in store.volumes), default=0)
        found = Log(
            path / LOG,
            self.folder.archive,
            is_forced=self._seconds == 0,
            volume_bytes=volume_bytes,
            volume_records=volume_records,
            end=max(sealed, catalogue.checkpoint),
            known=catalogue.checkpoint,
            clock=self._clock,
        )
        try:
            store.refresh(found.end)
            for trouble in store.troubles:
                log.error("%s", trouble)
            for record in store.read(catalogue.checkpoint, found.end):
                self._learn(record)
            for volume in store.volumes:
                if isinstance(volume, LogVolume):
                    self._gone.update(volume.deleted)
                    self._measure(volume)
            self._forget(store)
        except BaseException:
            found.close()
            raise
        finally:
            store.close()
        return found

    def _forget(self, store: Store) -> None:
        """Where very many registrations are known, those of which nothing is on disk any more are not."""
        if len(self._registrations) <= REGISTRATIONS_MOST or not store.volumes:
            return
        first = store.volumes[0].first
        gone = [uid for uid, known in self._registrations.items() if known.last < first]
        self._catalogue.forget(gone)
        for uid in gone:
            del self._registrations[uid]
        self._changed.difference_update(gone)

    def _measure(self, volume: LogVolume) -> None:
        """Count what is in no pack yet."""
        for record in volume.read(0, MAX_POSITION):
            with suppress(ProtocolError):  # told where it is learned
                self._add_to_tail(*_notes([(record.position, Parcel.received(record.data))]))

    def _learn(self, record: Record) -> None:
        try:
            parcel = Parcel.received(record.data)
        except ProtocolError as exc:  # its CRC holds: it was appended so
            log.error("position %d of the archive is no object: %s", record.position, exc)
            return
        for note in _notes([(record.position, parcel)]):
            self._fold(note)

    # -- inside -------------------------------------------------------------------------------------------------

    def _without_deleted(self, run: Sequence[tuple[int, Parcel]]) -> Sequence[tuple[int, Parcel]]:
        """Ids that are made from registration and number don't come twice: a registration's numbers go up."""
        own = [parcel.head.own_id for _, parcel in run if parcel.head.own_id]
        gone = self._catalogue.are_deleted(own) if own else None
        return [each for each in run if each[1].head.own_id not in gone] if gone else run

    def _settle(self, synced: int) -> None:
        """Take over what is on disk. `_lock` is held."""
        while self._unsettled and self._unsettled[0].last <= synced:
            note = self._unsettled.popleft()
            if not self._log.is_lost(note.last):
                self._fold(note)

    def _fold(self, note: _Note) -> None:
        known = self._registrations.get(note.uid) or Kept(note.uid, note.type, note.version)
        self._registrations[note.uid] = msgspec.structs.replace(
            known,
            sequence=max(known.sequence, note.sequence),
            first=known.first or note.first,
            last=note.last,
            objects=known.objects + note.objects,
            bytes=known.bytes + note.metadata + note.payload,
        )
        self._changed.add(note.uid)

    def _checkpoint(self) -> None:
        """Write what is known of registrations. Raises StorageError."""
        synced = self._log.end
        with suppress(StorageError):  # whoever waits for it is told, and the log has said so
            self._log.force()
        with self._lock:
            self._settle(synced)
            changed, self._changed = self._changed, set()
            rows = [self._registrations[uid] for uid in changed if uid in self._registrations]
            counters = dict(self._counters)
        try:
            self._catalogue.keep(rows, min(synced, self._log.kept), counters)
        except BaseException:
            with self._lock:
                self._changed |= changed
            raise

    def _add_to_tail(self, note: _Note) -> None:
        last = self._tail[-1] if self._tail else None
        if last is not None and last.metadata + last.payload < self._volume_bytes // TAIL_PARTS:
            self._tail[-1] = replace(
                last,
                last=note.last,
                objects=last.objects + note.objects,
                metadata=last.metadata + note.metadata,
                payload=last.payload + note.payload,
            )
        else:
            self._tail.append(note)
        self._tail_bytes[0] += note.metadata
        self._tail_bytes[1] += note.payload

    def _try_checkpoint(self) -> None:
        """The same; where that fails nothing is lost: at the next start the log is read from the last one on."""
        try:
            self._checkpoint()
        except StorageError as exc:
            if str(exc) != self._trouble:
                log.error("%s", exc)
            self._trouble = str(exc)
        else:
            self._trouble = ""

    def _full(self, size: int, *, ahead: bool = False) -> str:
        """Why there is no room for so many bytes; "" if there is. `ahead`: nor for the next file of the log."""
        section, stored, tail = self._section, self._stored, self._tail_bytes
        if self._lost_folder:
            return self._lost_folder
        if section.max_metadata_bytes and stored.metadata + tail[0] >= section.max_metadata_bytes:
            return f"metadata take {section.max_metadata_bytes} bytes, as many as they may"
        if section.max_payload_bytes and stored.payload + tail[1] + size > section.max_payload_bytes:
            return f"payloads take {section.max_payload_bytes} bytes, as many as they may"
        if (ahead or size + RECORD.size > self._log.room) and self._spare < max(self._volume_bytes, size):
            return f"{max(0, self._spare) >> 20} MiB of the disk are left beside the reserve"
        return ""

    def _check_folder(self) -> None:
        """SQLite goes on in files that nobody finds any more."""
        if self._lost_folder:
            raise StorageError(f"the archive in {self.folder.path} can't be written: {self._lost_folder}")

    def _look_at_disk(self) -> None:
        try:
            found = self.folder.look()
        except OSError as exc:  # it is gone, or its disk
            self._spare, self._lost_folder = 0, f"it can't be looked at: {exc.strerror}"
            return
        self._lost_folder = ""
        self._spare = int(found.f_frsize * (found.f_bavail - self._section.reserve * found.f_blocks))

    def _can_give_way(self) -> bool:
        """Whether there is a volume beside the one that is written: told, or begun since."""
        return self._stored.volumes + self._log.begun - self._begun_when_stored > 1

    def _free(self) -> None:
        """Have the oldest volumes given up, in time for the next ones."""
        section, stored, tail = self._section, self._stored, self._tail_bytes
        over = [0, 0]
        for place, (most, bytes_sealed) in enumerate(
            ((section.max_metadata_bytes, stored.metadata), (section.max_payload_bytes, stored.payload))
        ):
            if most:
                over[place] = max(0, bytes_sealed + tail[place] - int(FREE_ABOVE * most))
        both = max(0, 2 * self._volume_bytes - self._spare)
        is_time = not self._is_freeing and time.monotonic() >= self._free_at
        if (both or any(over)) and is_time and self._can_give_way():
            self._is_freeing = True
            self._worker.tell(Free(over[0], over[1], both))

    def _tell_synced(self) -> None:
        synced = self._log.synced
        if synced > self._told:
            self._told = synced
            self._worker.tell(Synced(synced))

    def _maintain(self) -> Iterator[None]:
        """All that is looked at each time."""
        forced = noted = time.monotonic()
        retained = time.monotonic() + RETAIN_FIRST - RETAIN_SECONDS
        while True:
            now = time.monotonic()
            with guarded("archive maintenance"):
                self._look_at_disk()
                self._log.check()
                self._tell_synced()
                if self._section.full == "drop_oldest":
                    self._free()
                if self._rules and now - retained >= RETAIN_SECONDS:
                    retained = now
                    self._worker.tell(Retain(0, self._rules, self._clock(), self._had()))
                if 0 < self._seconds < MOST_SECONDS and now - forced >= self._seconds:
                    forced = now
                    with suppress(StorageError):  # the log has said so
                        self._log.force()
                if now - noted >= CHECKPOINT_SECONDS:
                    noted = now
                    self._try_checkpoint()
            yield


class _Question:
    """Somebody waits for an answer."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._answer: Explained | Retained | None = None

    def answer(self, answer: Explained | Retained) -> None:
        """Here it is."""
        self._answer = answer
        self._answered.set()

    def wait(self, seconds: float) -> Explained | Retained:
        """Raises StorageError when none comes in time."""
        if not self._answered.wait(seconds) or self._answer is None:
            raise StorageError(f"the archive's worker did not answer within {seconds:g} s", hint="Try again later")
        return self._answer


def _says_full(error: StorageError) -> bool:
    """Whether the disk, or what its user may have of it, is full."""
    why = error.__cause__
    return isinstance(why, OSError) and why.errno in (errno.ENOSPC, errno.EDQUOT)


def _check_libraries() -> None:
    """Raises ConfigurationError. Nothing is imported here: the worker does that."""
    for name in ("duckdb", "numpy"):
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError(f"the archive needs {name}", hint="pip install 'jbi-pubsub[archive]'")


def _notes(run: Iterable[tuple[int, Parcel]]) -> list[_Note]:
    """Additions of a run to its registrations, in the order of their last positions."""
    notes: dict[str, _Note] = {}
    for position, parcel in run:
        head = parcel.head
        payload = len(parcel.parts[-1]) - parcel.payload_at
        note = notes.get(head.registration)
        if note is None:
            notes[head.registration] = _Note(
                head.registration, head.type_name, head.type_version, head.sequence, position, position, 1,
                parcel.size - payload, payload,
            )  # fmt: skip
            continue
        note.sequence = max(note.sequence, head.sequence)
        note.last = position
        note.objects += 1
        note.metadata += parcel.size - payload
        note.payload += payload
    return sorted(notes.values(), key=lambda note: note.last) if len(notes) > 1 else list(notes.values())


def _seconds_of(sync: str) -> float:
    """Seconds between two times that all is forced to the disk; 0: whenever a batch is acknowledged. Raises
    ConfigurationError."""
    if sync == "batch":
        return 0.0
    if sync == "never":
        return MOST_SECONDS
    try:
        seconds = float(sync)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < MOST_SECONDS:
        raise ConfigurationError(
            f"[archive] sync is {sync!r}", hint='Use "batch", "never", or seconds between two times, such as "0.2"'
        )
    return seconds
