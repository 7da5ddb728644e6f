"""The archive of a delegate: what is published is kept, and found again.

Rules:
- Whoever publishes appends to the log, and waits for the disk (`sync`); nothing else is done on those threads. All that
  reads (answers, sealing, retention) is the worker's (`worker.py`), which may die without anybody who publishes
  noticing.
- What the catalogue says of registrations follows behind: what was synced since is read again at the next start.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

from jbi_pubsub.archive.catalogue import Catalogue, Kept, LossSpans
from jbi_pubsub.archive.desk import Setup
from jbi_pubsub.archive.folder import CATALOGUE, Folder
from jbi_pubsub.archive.log import VOLUME_BYTES, Log
from jbi_pubsub.archive.opened import PAGE, PAGE_BYTES, OpenQuery
from jbi_pubsub.archive.query import asked_of
from jbi_pubsub.archive.registrations import ArchivedRegistrations, additions_of
from jbi_pubsub.archive.requests import WorkerRequests
from jbi_pubsub.archive.room import ArchiveRoom
from jbi_pubsub.archive.store import LOG, VolumeStore
from jbi_pubsub.archive.upkeep import Going, Retain, Retained, Stored, stored_of
from jbi_pubsub.archive.volume import RECORD, LogVolume, Record
from jbi_pubsub.core import extras
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import (
    MAX_POSITION,
    Consumer,
    Explanation,
    GivenUp,
    HistoryQuery,
    KeepRule,
    QueryResult,
    Source,
)
from jbi_pubsub.core.info_object import Parcel, TypeName
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.protocol.status.archive import KeptStatus

log = logging.getLogger("jbi_pubsub.archive")

TICK: Final = 0.25
"""Seconds between two looks at the disk."""
CHECKPOINT_SECONDS: Final = 5.0
MOST_SECONDS: Final = 3_600.0
"""Between two times that all is forced to the disk."""
REGISTRATIONS_MOST: Final = 100_000
"""Known at the opening, before those are forgotten of which nothing is kept. Later some of these have publishers."""
RETAIN_SECONDS: Final = 3_600.0
RETAIN_FIRST: Final = 60.0
"""Between two times that rules are looked at, and from the start to the first."""
NOT_ARCHIVED: Final = "not_archived"
"""Counted: objects that were passed on without being kept, since there was no room."""


class Archive:
    """See the module; `pad/past/store_protocol.py` says what each call does. Any thread."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Callable[[], float] = time.time,
        volume_bytes: int = VOLUME_BYTES,
        is_indexed: bool = True,
    ) -> None:
        """Opens the archive in `[archive] folder`, made if it is not there, and recovers it. `is_indexed`: without an
        index queries read all objects. Raises StorageError, ConfigurationError."""
        if is_indexed:
            extras.need("archive", "the archive")
        section = config.archive
        self._section = section
        self._seconds = _seconds_of(section.sync)
        self._clock = clock
        self._lock = threading.Lock()
        """Covers registrations, counters and what is counted of room, and that the log has objects in their order."""
        self._rules: tuple[KeepRule, ...] = ()
        self._is_refusing = False
        """The last run could not be written, which the log was told."""
        self._trouble = ""
        """Why the catalogue could not be written."""
        self._is_closed = False
        with ExitStack() as undo:
            self.folder = Folder(Path(section.folder))
            undo.callback(self.folder.close)
            self._catalogue = Catalogue(self.folder.path / CATALOGUE, self.folder.archive)
            undo.callback(self._catalogue.close)
            self._registrations = ArchivedRegistrations(self._catalogue.registrations())
            self._counters = Counter(self._catalogue.counters())
            self._consumers = len(self._catalogue.consumers())
            self._end_before = self._catalogue.end
            """The last position that was known to be given when this was opened, or that a consumer has had."""
            self._room = ArchiveRoom(section, self.folder, volume_bytes)
            self._log, deleted = self._recovered(self._room.volume_bytes)
            undo.callback(self._log.close)
            self.incarnations: Final = self._catalogue.begin(uuid4().hex, self.end)
            """See Keeping."""
            undo.pop_all()
        self._room.look()
        columns, memory = (section.columns, section.memory) if is_indexed else (0, 0)
        if section.workers > 1:
            log.warning("[archive] workers = %d: one process is enough, the others are not started", section.workers)
        self._requests = WorkerRequests(
            Setup(str(self.folder.path.absolute()), self.folder.archive, 0, columns, memory),
            self._log, self._hear, deleted=deleted, sealed=self._room.sealed,
            lock=self.folder.lock if section.workers else None, max_queries=section.max_queries,
        )  # fmt: skip
        pause = min(self._seconds or TICK, TICK)
        self._maintenance = Job("archive maintenance", pause, partial(next, self._maintain()), slow=True)
        self._maintenance.start(after=pause)

    # -- keeping ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """See Keeping: that of its folder."""
        return self.folder.archive.hex()

    def room(self, size: int, *, may_pass: bool = True) -> float:
        """See Keeping. With `full = "drop_oldest"` in a moment, if something can give way."""
        if self._section.full == "drop_oldest":
            return TICK if self._room.can_give_way(self._log) and self._room.lack(size, self._log, ahead=True) else 0.0
        if self._section.full == "refuse" or not may_pass:
            self._room.check(size, self._log)
        return 0.0

    def append(self, run: Sequence[tuple[int, Parcel]], received: float) -> None:
        """See Keeping. An object whose id was deleted is not kept again; nor, with `full = "pass"`, one for which there
        is no room."""
        if not run:
            return
        may_pass = self._section.full == "pass"
        if may_pass and self._room.lack(sum([parcel.size + RECORD.size for _, parcel in run]), self._log):
            with self._lock:
                self._let_pass(run)
            return
        run = self._without_deleted(run)
        with self._lock:
            before = self._log.room
            try:
                self._room.check_folder()
                self._log.append([(position, parcel.parts) for position, parcel in run], received)
            except StorageError as exc:
                self._room.look()
                if not may_pass or not _says_full(exc):
                    if not self._is_refusing:
                        log.error("no object is kept until the disk works again: %s", exc)
                    self._is_refusing = True
                    raise
                self._let_pass(run)
                return
            self._is_refusing = False
            if self._log.room > before:
                self._room.look()  # another file was begun: who asks for room is told of it
            additions = additions_of(run)
            self._registrations.append(additions)
            self._room.add(additions)

    def _let_pass(self, run: Sequence[tuple[int, Parcel]]) -> None:
        """Under the lock: these are not kept."""
        self._counters[NOT_ARCHIVED] += len(run)
        self._catalogue.miss(run)

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
            self._settle()
            return self._registrations.last_sequence(registration, self._log)

    # -- asking -------------------------------------------------------------------------------------------------

    def open(self, query: HistoryQuery, wake: Callable[[], None], *, count_only: bool = False) -> OpenQuery:
        """See Keeping. `count_only`: nothing is to be taken, `progress` says how many there are."""
        asked_of(query)
        return self._requests.open(query, wake, count_only=count_only)

    def explain(self, query: HistoryQuery) -> Explanation:
        """See Keeping."""
        asked_of(query)
        types = {(scope.type.name, scope.type.version) for scope in query.scopes}
        objects = sum(known.objects for known in self.registrations() if (known.type, known.version) in types)
        return self._requests.explain(query, objects)

    def delete(self, query: HistoryQuery, *, timeout: float = 3_600.0) -> int:
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

    def refuse(self, object_ids: Sequence[str]) -> None:
        """See Keeping."""
        self._catalogue.delete(object_ids)

    def are_deleted(self, object_ids: Iterable[str]) -> set[str]:
        """See Keeping."""
        return self._catalogue.are_deleted(object_ids)

    def rebuild(self) -> None:
        """See Keeping."""
        self._requests.rebuild()

    def retain(self, *, is_dry: bool = False, timeout: float = 3_600.0) -> tuple[GivenUp, ...]:
        """Give up what the rules say, or with `is_dry` only say what that would be: of each volume of which
        something goes. Raises StorageError."""
        answer = self._requests.retain(Retain(0, self._rules, self._clock(), self._had(), is_dry), timeout)
        if not is_dry:
            self._count(answer)
        return answer.volumes

    def follow(self, rules: Sequence[KeepRule]) -> None:
        """See Keeping."""
        self._rules = tuple(rules)

    def expired(self, query: HistoryQuery) -> int:
        """See Keeping. Of what went with a volume that lies there in part, a part."""
        found = {
            lost
            for scope in query.scopes
            for lost in self._catalogue.expired(scope.type.name, scope.type.version, query.after, query.up_to)
            if scope.registrations is None or lost.registration in scope.registrations
        }
        return sum(lost.between(query.after, query.up_to) for lost in found)

    def _had(self) -> int:
        """Up to which position all durable subscriptions have had what they want."""
        now = self._clock()
        return min((each.position for each in self._catalogue.consumers() if each.ends > now), default=MAX_POSITION)

    def _count(self, message: Retained) -> None:
        with self._lock:
            for going in message.volumes:
                for reason, number in going.reasons.items():
                    self._counters[f"expired_{reason}"] += number if going.is_done else 0

    def _hear(self, message: Stored | Going | Retained) -> None:
        """Take the worker's word on what lies on disk, goes, or was given up."""
        match message:
            case Stored():
                with self._lock:
                    self._room.store(message, self._log)
            case Retained():
                self._count(message)
            case Going(positions, lost):
                with self._catalogue.removing:
                    self._requests.lose(positions)
                    try:
                        self._catalogue.expire(lost)
                    except StorageError as exc:
                        log.error("the removed objects could not be counted: %s", exc)

    def _delete(self, found: Sequence[QueryResult]) -> None:
        positions, heads = [each.position for each in found], [Parcel.received(each.data).head for each in found]
        losses = LossSpans()
        for position, head in zip(positions, heads, strict=True):
            losses.add(head.type_name, head.type_version, head.registration, position)
        write = partial(self._log.delete, positions, self._clock())
        with self._catalogue.removing:
            self._catalogue.delete([head.object_id for head in heads], losses.all(), write)
            self._requests.delete(positions)

    # -- registrations ------------------------------------------------------------------------------------------

    def register(self, *sources: Source) -> None:
        """See Keeping. On disk when it returns."""
        with self._lock:
            new = self._registrations.unknown(sources)
        if not new:
            return
        self._room.check_folder()
        self._catalogue.register(new)
        with self._lock:
            self._registrations.describe(new)

    def sources(self) -> list[Source]:
        """See Keeping."""
        return [
            Source(known.uid, TypeName(known.type, known.version), known.publisher, known.entries)
            for known in self.registrations() if known.last
        ]  # fmt: skip

    def registrations(self) -> list[Kept]:
        """All that are known, with what is kept of them."""
        with self._lock:
            self._settle()
            return self._registrations.every()

    # -- durable subscriptions ----------------------------------------------------------------------------------

    def consumers(self) -> list[Consumer]:
        """Durable subscriptions. Raises StorageError."""
        return self._catalogue.consumers()

    def note(self, consumers: Iterable[Consumer]) -> None:
        """Durable subscriptions as they are now, on disk when it returns. Raises StorageError."""
        consumers = list(consumers)
        if not consumers:
            return
        self._room.check_folder()
        count = self._catalogue.note(consumers)
        with self._lock:
            self._consumers = count
            self._end_before = max(self._end_before, *(consumer.position for consumer in consumers))

    def cancel(self, name: str, owner: str) -> bool:
        """A durable subscription is over; whether there was one. Raises StorageError."""
        was_there = self._catalogue.cancel(name, owner)
        with self._lock:
            self._consumers -= was_there
        return was_there

    # -- watching, ending ---------------------------------------------------------------------------------------

    def status(self) -> KeptStatus:
        """See Keeping."""
        with self._lock:
            self._settle()
            counters, registrations = dict(self._counters), len(self._registrations)
        return KeptStatus(
            folder=str(self.folder.path),
            position=self.end,
            synced=self.synced,
            registrations=registrations,
            full=self._room.full(self._log),
            counters=counters,
            **self._room.status(),
            **self._requests.status(),
            consumers=self._consumers,
            troubles=[*self._catalogue.troubles, *self._requests.indexed.troubles, *filter(None, [self._trouble])],
        )

    def close(self) -> None:
        """See Keeping. Raises StorageError when the last of it could not be written."""
        if self._is_closed:
            return
        self._is_closed = True
        self._requests.refuse()
        self._maintenance.stop(30.0)
        self._requests.close()
        self._try_checkpoint()
        try:
            self._log.close()
        finally:
            self._catalogue.close()
            self.folder.close()

    # -- recovery -----------------------------------------------------------------------------------------------

    def _recovered(self, volume_bytes: int) -> tuple[Log, set[int]]:
        """The log, read where the catalogue does not know it yet, and positions of what is deleted and lies there."""
        catalogue, path = self._catalogue, self.folder.path
        with ExitStack() as undo, closing(VolumeStore(path, self.folder.archive)) as store:
            store.refresh(0)
            sealed = max((volume.last for volume in store.volumes), default=0)
            found = Log(
                path / LOG,
                self.folder.archive,
                is_forced=self._seconds == 0,
                volume_bytes=volume_bytes,
                end=max(sealed, catalogue.checkpoint),
                known=catalogue.checkpoint,
                clock=self._clock,
            )
            undo.callback(found.close)
            store.refresh(found.end)
            for trouble in store.troubles:
                log.error("%s", trouble)
            for record in store.read(catalogue.checkpoint, found.end):
                _learn(record, self._registrations)
            files = [volume for volume in store.volumes if isinstance(volume, LogVolume)]
            deleted = {position for volume in files for position in volume.deleted}
            for volume in files:
                _measure(volume, self._room)
            self._room.store(stored_of(store.volumes), found)
            self._forget(store)
            undo.pop_all()
        return found, deleted

    def _forget(self, store: VolumeStore) -> None:
        """Where very many registrations are known, those of which nothing is on disk any more are not."""
        if len(self._registrations) > REGISTRATIONS_MOST and store.volumes:
            gone = self._registrations.ended_before(store.volumes[0].first)
            self._catalogue.forget(gone)
            self._registrations.forget(gone)

    # -- inside -------------------------------------------------------------------------------------------------

    def _without_deleted(self, run: Sequence[tuple[int, Parcel]]) -> Sequence[tuple[int, Parcel]]:
        """Ids that are made from registration and number don't come twice: a registration's numbers go up."""
        own = [parcel.head.own_id for _, parcel in run if parcel.head.own_id]
        gone = self._catalogue.are_deleted(own) if own else None
        return [each for each in run if each[1].head.own_id not in gone] if gone else run

    def _settle(self) -> None:
        """Take over what is on disk. The lock is held."""
        self._registrations.settle(self._log, self._log.synced)

    def _checkpoint(self) -> None:
        """Write what is known of registrations. Raises StorageError."""
        synced = self._log.end
        with suppress(StorageError):  # whoever waits for it is told, and the log has said so
            self._log.force()
        with self._lock:
            self._registrations.settle(self._log, synced)
            rows = self._registrations.take_changed()
            counters = dict(self._counters)
        try:
            self._catalogue.keep(rows, min(synced, self._log.kept), counters)
        except BaseException:
            with self._lock:
                self._registrations.changed_again(rows)
            raise

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

    def _maintain(self) -> Iterator[None]:
        """All that is looked at each time."""
        forced = noted = time.monotonic()
        retained = time.monotonic() + RETAIN_FIRST - RETAIN_SECONDS
        while True:
            now = time.monotonic()
            with guarded("archive maintenance"):
                self._room.look()
                self._log.check()
                self._requests.tell_synced()
                if self._section.full == "drop_oldest" and (surplus := self._room.surplus(self._log)) is not None:
                    self._requests.free(surplus)
                if self._rules and now - retained >= RETAIN_SECONDS:
                    retained = now
                    self._requests.retain_soon(Retain(0, self._rules, self._clock(), self._had()))
                if 0 < self._seconds < MOST_SECONDS and now - forced >= self._seconds:
                    forced = now
                    with suppress(StorageError):  # the log has said so
                        self._log.force()
                if now - noted >= CHECKPOINT_SECONDS:
                    noted = now
                    self._try_checkpoint()
            yield


def _learn(record: Record, registrations: ArchivedRegistrations) -> None:
    """Take over what a record says of its registration."""
    try:
        parcel = Parcel.received(record.data)
    except ProtocolError as exc:  # its CRC holds: it was appended so
        log.error("position %d of the archive is not an object: %s", record.position, exc)
        return
    for addition in additions_of([(record.position, parcel)]):
        registrations.add(addition)


def _measure(volume: LogVolume, room: ArchiveRoom) -> None:
    """Count what is in no pack yet."""
    for record in volume.read(0, MAX_POSITION):
        with suppress(ProtocolError):  # told where it is learned
            room.add(additions_of([(record.position, Parcel.received(record.data))]))


def _says_full(error: StorageError) -> bool:
    """Whether the disk, or what its user may have of it, is full."""
    why = error.__cause__
    return isinstance(why, OSError) and why.errno in (errno.ENOSPC, errno.EDQUOT)


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
