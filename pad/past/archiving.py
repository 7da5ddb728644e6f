"""The archive's part of the stage `keep`: which registrations are kept, and how their objects get there.

Rules:
- Whether a registration is kept is decided when it opens: what its publisher says, else a `[[keep]]` rule, else that a
  durable subscription waits for it. Objects of others cost nothing.
- Positions are the buffer's. Of what is kept they are given and appended under one lock, so that the archive has its
  objects in their order.
- What could not be appended is taken out of the buffer again, and refused. What was appended is acknowledged, or with
  quality of service done, when it is on disk; what is lost before that is refused, although it was delivered.
- An object that the archive has from our time before, as its publisher was not told, is delivered and not kept twice.
"""

from __future__ import annotations

import fnmatch
import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache, partial
from typing import Final

import msgspec

from jbi_pubsub.core.combined import Provenance
from jbi_pubsub.core.errors import EntryError, JbiError, OversizeError, ProtocolError, StorageError
from jbi_pubsub.core.history import HistoryQuery, KeepRule, QueryResult, Scope, Source, TakenIn
from jbi_pubsub.core.info_object import Head, Parcel, TypeName
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.core.spool import COST_LEAST, MEMORY_BYTES
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.lookup.entry import EntryRep, check_rep
from jbi_pubsub.pad.matching.recent import RecentBuffers, RecentObject
from jbi_pubsub.pad.matching.registration import Entries, Registration
from jbi_pubsub.pad.past.arrivals import Arrivals
from jbi_pubsub.pad.past.blobs import LargePayloads
from jbi_pubsub.pad.past.store_protocol import Keeping, looks
from jbi_pubsub.pad.past.syncs import Synced, SyncQueue
from jbi_pubsub.protocol.conformity import InformationTypeGate
from jbi_pubsub.protocol.entries import ArchiveEntry, InformationType, ProvenanceEntry, SigningKeyEntry, local_name
from jbi_pubsub.protocol.status.archive import ArchiveStatus, StorageStatus

log = logging.getLogger("jbi_pubsub.pad")

TYPES_TOLD_MOST: Final = 4_096
"""Characters of the names of all types that lookup services are told."""
IDS_AT_ONCE: Final = 1_000
ANSWER_BYTES: Final = 1 << 20
ANSWER_SECONDS: Final = 60.0
"""For the next answer: the archive reads through what is not indexed."""


class Archiving:
    """See the module. Any thread; `close` closes the archive."""

    def __init__(self, keeping: Keeping, buffers: RecentBuffers, *, beside: LargePayloads | None = None) -> None:
        """Positions go on behind the archive's. `beside`: place of payloads too large for memory; None: refuse them."""
        self.keeping: Final = keeping
        self._buffers = buffers
        buffers.position = max(buffers.position, keeping.end)
        self._lock = threading.Lock()
        """The lock for giving positions and appending."""
        self._under_way: dict[int, int] = {}
        """First and last positions, by the last, of runs that were appended and not all offered to sessions yet."""
        self._rules: tuple[tuple[re.Pattern[str], KeepRule], ...] = ()
        self._syncs = SyncQueue(keeping)
        self.refused = 0
        """Objects that were not kept, or not on disk."""
        self._types = {source.type.name for source in keeping.sources()}
        self._described: Mapping[str, bytes] = {}
        """Entries of registrations, as they were when they were looked at."""
        self.is_wanted: Callable[[Entries], bool] = lambda _: False
        """Whether a durable subscription waits for a registration of those entries."""
        self.arrivals: Final = Arrivals()
        self._beside = beside
        if beside is not None:
            beside.follow(self._ids)
        self.appeared: Callable[[], None] = lambda: None
        """Called when there is something of a type of which there was nothing."""

    # -- which ----------------------------------------------------------------------------------------------------

    def follow(self, rules: Sequence[KeepRule]) -> None:
        """These say from now on what is kept, of registrations that open, and how long."""
        self._rules = tuple((re.compile("|".join(map(fnmatch.translate, rule.types))), rule) for rule in rules)
        self.keeping.follow(rules)

    def is_kept(
        self,
        persist: bool | None,  # a publisher's word
        type_: TypeName,
        entries: Entries,
        *,
        is_relayed: bool = False,
    ) -> bool:
        """Whether a registration is kept whose publisher says so, says not, or says nothing; `is_relayed`: by a
        bridge."""
        if persist is not None:
            return persist
        if self.is_wanted(entries):
            return True
        rule = self._rule_of(type_.name)
        return rule is not None and rule.count != 0 and (rule.relayed or not is_relayed)

    def check_rule(self, gate: InformationTypeGate) -> None:
        """Tell an operator of a rule that contradicts the schema of a type: all of its objects have one key."""
        rule = self._rule_of(gate.type.name)
        for line in gate.impossible(rule.latest_by, {}) if rule is not None and rule.latest_by else ():
            log.warning("[[keep]] rule %s, latest_by, for %s: %s", rule.name if rule else "", gate.type, line)

    def open(self, uid: str, type_: TypeName, provenance: Provenance | None, entries: Entries) -> int:
        """A registration is to be kept: the number of its last object that is already. `provenance`: None if it is
        among the entries, or not known. Raises StorageError."""
        self.open_all([(uid, type_, provenance, entries)])
        return self.keeping.last_sequence(uid)

    def open_all(self, registrations: Sequence[tuple[str, TypeName, Provenance | None, Entries]]) -> None:
        """These (id, type, provenance, entries) are to be kept: one write, however many. Raises StorageError."""
        self.keeping.register(*(_source(*registration) for registration in registrations))
        self._described = {}
        types = {type_.name for _, type_, _, _ in registrations}
        if not types <= self._types:
            self._types |= types
            self.appeared()

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key that the objects of a registration that is kept are signed with; None: none, or not known. Raises
        StorageError."""
        described = self._described
        if uid not in described:
            self._described = described = {source.uid: source.entries for source in self.keeping.sources()}
        return _signing_key(described[uid]) if uid in described else None

    def entry(self) -> EntryRep:
        """The entry by which lookup services are told of it."""
        types = " ".join(sorted(self._types))
        is_short = len(types) <= TYPES_TOLD_MOST and len(types.split()) == len(self._types)
        incarnation = next(iter(self.keeping.incarnations), None)
        return ArchiveEntry(types=types if is_short else None, incarnation=incarnation).rep()

    # -- objects --------------------------------------------------------------------------------------------------

    def room(self, registration: Registration, parcel: Parcel) -> float:
        """See Stages.room. Raises StorageError, OversizeError."""
        if registration.archived is None:
            return 0.0
        size = parcel.size
        if size >= COST_LEAST and (size := max(size, parcel.payload_size)) > MEMORY_BYTES and self._beside is None:
            raise OversizeError(
                f"object of {size} bytes: an archive takes up to {MEMORY_BYTES}, and its registration is archived",
                hint="Register with persist=False for larger ones", size=size, limit=MEMORY_BYTES,
            )  # fmt: skip
        try:
            return self.keeping.room(size)
        except StorageError:
            self.refused += 1
            raise

    def keep(self, registration: Registration, run: Sequence[Parcel], now: float) -> list[RecentObject]:
        """Objects of a registration that is kept, in the buffer and in the archive. Raises StorageError: none of them
        is in either."""
        if not run:
            return []
        buffer, archived = registration.topic.buffer, registration.archived
        whole = [parcel if parcel.size < COST_LEAST else self._recorded(parcel) for parcel in run]
        with self._lock:
            kept = self._buffers.keep(buffer, run, registration.judgement, now, archived=archived)
            appended = [(at.position, each) for at, each in zip(kept, whole, strict=True) if at.parcel.position]
            if appended:
                self._under_way[appended[-1][0]] = appended[0][0]
                try:
                    self.keeping.append(appended, time.time())
                except StorageError:
                    del self._under_way[appended[-1][0]]
                    self._buffers.withdraw(kept)
                    self.refused += len(kept)
                    raise
        return kept

    def _recorded(self, parcel: Parcel) -> Parcel:
        """An object as it is appended: in memory, or without its payload, which is on disk already. Raises
        StorageError."""
        if self._beside is None or parcel.payload_size <= MEMORY_BYTES:
            return parcel.in_memory()
        return self._beside.keep(parcel)

    def whole(self, found: QueryResult) -> Parcel:
        """A result of a query, with its payload wherever that is. Raises ProtocolError, StorageError."""
        parcel = Parcel.received(found.data)
        if parcel.head.payload_length <= MEMORY_BYTES or self._beside is None or parcel.payload_size:
            return parcel
        return self._beside.whole(parcel)

    def offered(self, parcels: Iterable[Parcel]) -> None:
        """Note that the rest is with the sessions, in their queues or nowhere: whole runs of `keep`."""
        for parcel in parcels:
            self._under_way.pop(parcel.position, None)

    def under_way(self) -> list[tuple[int, int]]:
        """Positions (first, last) that were given, and of which something may still come to a session. What is not
        there any more is with the sessions."""
        return [(first, last) for last, first in list(self._under_way.items())]

    def take_in(self, parcels: Sequence[Parcel], entries: Mapping[str, Entries]) -> TakenIn:
        """Keep objects that were published elsewhere, or before, under positions behind all others: whoever asks for
        the past finds them, and nobody else gets them. What is here already or was deleted here is left out. `entries`:
        of their registrations, as far as they are known. Metadata are what was published, XML or not. Raises
        StorageError, PredicateError, ProtocolError or EntryError for what is none."""
        wanted = {parcel.head.object_id: parcel for parcel in parcels}
        known = self._known(wanted)
        deleted = self.keeping.are_deleted([each for each in wanted if each not in known])
        run = [parcel for uid, parcel in wanted.items() if uid not in known and uid not in deleted]
        self._introduce(run, entries)
        if run:
            self.keeping.room(sum(parcel.size for parcel in run), may_pass=False)
            with self._lock:
                first = self._buffers.reserve(len(run))
                self.keeping.append(list(enumerate(run, first)), time.time())
            self.keeping.sync(first + len(run) - 1)
        return TakenIn(len(run), len(parcels) - len(run) - len(deleted), len(deleted))

    def _known(self, wanted: Mapping[str, Parcel]) -> set[str]:
        """Which of these objects are here."""
        types = {TypeName(parcel.head.type_name, parcel.head.type_version) for parcel in wanted.values()}
        return {head.object_id for head, _ in self._heads(types, list(wanted))}

    def _ids(self, ids: Collection[str]) -> set[str]:
        """Which of these are of objects that are here, not deleted, and have their payloads. Raises StorageError."""
        found = self._heads({source.type for source in self.keeping.sources()}, list(ids))
        return {head.object_id for head, received in found if not self._is_given_up(head.type_name, received)}

    def _heads(self, types: Collection[TypeName], ids: Sequence[str]) -> Iterator[tuple[Head, float]]:
        """Heads of those of these objects that are here, each with when it was received."""
        scopes = tuple(map(Scope, types))
        for start in range(0, len(ids) if scopes else 0, IDS_AT_ONCE):
            query = HistoryQuery(scopes=scopes, object_ids=tuple(ids[start : start + IDS_AT_ONCE]))
            for each in self.answers(query):
                yield Parcel.received(each.data).head, each.received

    def _is_given_up(self, type_name: str, received: float) -> bool:
        """Whether a rule gives up the payload of what was received then. What it may hold longer is left alone."""
        rule = self._rule_of(type_name)
        if rule is None or rule.payload_age is None or rule.latest_by or rule.until_durables:
            return False
        return received < time.time() - rule.payload_age

    def _rule_of(self, type_name: str) -> KeepRule | None:
        return next((rule for types, rule in self._rules if types.match(type_name)), None)

    def uses(self, type_: TypeName) -> str:
        """Objects of that type here, in words; "" for nothing."""
        if type_ not in {source.type for source in self.keeping.sources()}:
            return ""
        try:
            found = any(True for _ in self.answers(HistoryQuery(scopes=(Scope(type_),), limit=1)))
        except JbiError as exc:
            return f"archived objects, perhaps: {exc.message}"
        return "archived objects" if found else ""

    def answers(self, query: HistoryQuery) -> Iterator[QueryResult]:
        """All that a query finds. Raises StorageError, also when nothing comes for too long."""
        until = time.monotonic() + ANSWER_SECONDS
        with closing(looks(partial(self.keeping.open, query), IDS_AT_ONCE, ANSWER_BYTES)) as all_found:
            for progress, found in all_found:
                if found:
                    yield from found
                    until = time.monotonic() + ANSWER_SECONDS
                elif progress.state != "finished" and (progress.state != "running" or time.monotonic() >= until):
                    raise StorageError(f"the archive does not answer: {progress.error or 'it is slow'}")

    def _introduce(self, run: Sequence[Parcel], entries: Mapping[str, Entries]) -> None:
        """Registrations that are not known here, of what is brought."""
        known = {source.uid: source.type for source in self.keeping.sources()}
        here = frozenset(known)
        for parcel in run:
            head, type_ = parcel.head, TypeName(parcel.head.type_name, parcel.head.type_version)
            if not (head.type_name and head.registration and head.sequence):
                raise ProtocolError(f"object {head.object_id} has no type, registration or number")
            if parcel.payload_size not in (0, head.payload_length):
                raise ProtocolError(f"object {head.object_id} has another payload than its head says")
            if known.setdefault(head.registration, type_) != type_:
                raise ProtocolError(f"object {head.object_id}: its registration is of {known[head.registration]}")
        new = []
        for uid in {parcel.head.registration for parcel in run} - here:
            type_ = known[uid]
            own = InformationType(name=type_.name, version=type_.version, local=local_name(type_.name)).rep()
            told = entries.get(uid) or (own,)
            for entry in told:
                check_rep(entry)
            new.append((uid, type_, None, told))
        if new:
            self.open_all(new)

    def here(self, arm: Callable[[int], None] = lambda _: None) -> int:
        """The position up to which all that is kept was appended. `arm` is told before anything later is."""
        with self._lock:
            position = self._buffers.position
            arm(position)
        return position

    def deleted(self) -> None:
        """Objects were deleted: what is beside them is to go soon."""
        if self._beside is not None:
            self._beside.sweep()

    def wait_synced(self, position: int) -> None:
        """Return when what was appended up to there is on disk, or lost."""
        self._syncs.failure(position)

    def sync(self, parcels: Sequence[Parcel], *, comes_again: bool = False) -> list[tuple[Parcel, StorageError]]:
        """Wait until those of the objects that are kept are on disk, and if some of them came again, all that is
        appended; those that never will be, and why."""
        last = self.keeping.end if comes_again else max((parcel.position for parcel in parcels), default=0)
        if not last or self._syncs.failure(last) is None:
            return []
        lost = [(p, why) for p in parcels if p.position and (why := self._syncs.failure(p.position)) is not None]
        self.refused += len(lost)
        return lost

    def when_synced(self, position: int, told: Synced) -> None:
        """Have `told` called, on a thread of ours, when that position is on disk, or lost: for who may not wait."""

        def count(why: StorageError | None) -> None:
            self.refused += why is not None
            told(why)

        self._syncs.put(position, count)

    # -- the rest -------------------------------------------------------------------------------------------------

    def status(self) -> ArchiveStatus:
        """The archive's, with what goes into it."""
        told = dict(self.keeping.status())  # a plug-in's may have more
        kept = {name: value for name, value in told.items() if name in StorageStatus.__struct_fields__}
        return ArchiveStatus(**kept, refused=self.refused, rules=[rule.name for _, rule in self._rules])

    def close(self) -> None:
        """Sync what waits, and close the archive."""
        is_first = self._syncs.close()
        if self._beside is not None:
            self._beside.close()
        if is_first:
            self.keeping.close()


def _source(uid: str, type_: TypeName, provenance: Provenance | None, entries: Entries) -> Source:
    kept = entries if provenance is None else (*entries, ProvenanceEntry.of(provenance).rep())
    return Source(uid, type_, provenance.publisher if provenance else "", msgspec.msgpack.encode(kept))


def provenance_of(source: Source) -> Provenance:
    """Publisher and place of a registration that is kept, as they are kept; of one that was kept before that was,
    its publisher alone. Raises StorageError."""
    told = _told(source.entries)
    return told if told.publisher or not source.publisher else told._replace(publisher=source.publisher)


@lru_cache(maxsize=16_384)
def _told(entries: bytes) -> Provenance:
    rep = next((e for e in entries_of(entries) if e.cls.name == ProvenanceEntry.entry_name), None)
    if rep is None:
        return Provenance()
    try:
        told = ProvenanceEntry.from_rep(rep)
    except EntryError:  # of another version
        return Provenance()
    return Provenance(
        told.publisher or "",
        told.node or "",
        tuple((told.addresses or "").split()),
        told.owner or "",
        told.relayed is not None,
    )


def _signing_key(entries: bytes) -> SigningKey | None:
    rep = next((each for each in entries_of(entries) if each.cls.name == SigningKeyEntry.entry_name), None)
    try:
        return SigningKeyEntry.from_rep(rep).signing_key() if rep is not None else None
    except EntryError:  # of another version, or of a file
        return None


@lru_cache(maxsize=4_096)
def entries_of(data: bytes) -> Entries:
    """Entries of a registration that is kept. Raises StorageError."""
    try:
        return decoder_of(Entries).decode(data)
    except msgspec.DecodeError as exc:
        raise StorageError(f"entries of a registration in the archive can't be read: {exc}") from exc
