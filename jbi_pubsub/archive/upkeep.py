"""Upkeep of volumes while others read them: they are sealed, made anew without what is deleted, given up by the rules.

Rules:
- A file of the log goes when its objects are in a pack, and what it says is deleted is in none: so that it is deleted
  stands in the log for as long as it matters.
- The index is told before anything goes, so that it never counts what is not there; what answers queries, after.
- Losses are told before anything goes, and behind all answers that have it: who asks has had an object, or knows that
  it is gone. If the worker dies between, some are told that are still there.
- A volume of which nothing is left stays as an empty pack, unless there is none before it: one that is missing is seen.
- It may end at any moment: whatever is half done is done again, from what is still there.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, NamedTuple

import msgspec

from jbi_pubsub.archive import pack as packs
from jbi_pubsub.archive.catalogue import LossSpans, Lost
from jbi_pubsub.archive.items import METADATA_STORES, PAYLOAD_STORES
from jbi_pubsub.archive.pack import Pack, Sealable, seal
from jbi_pubsub.archive.query import Key
from jbi_pubsub.archive.retention import PAYLOAD, STAYS, Fate, Holding, Item, Retention, holdings, is_worth
from jbi_pubsub.archive.store import LOG, PACKS, Volume
from jbi_pubsub.archive.volume import OBJECT, LogVolume, Record
from jbi_pubsub.core.errors import ErrorReport, JbiError, ProtocolError, StorageError, report
from jbi_pubsub.core.files import Stamp, stamp, sync_folder, written
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import MAX_POSITION, GivenUp, KeepRule, Scope
from jbi_pubsub.core.info_object import Parcel, TypeName
from jbi_pubsub.core.spool import MEMORY_BYTES
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.xml import give_back, parse_metadata

log = logging.getLogger("jbi_pubsub.archive")

LOOK_SECONDS: Final = 1.0
"""Between two looks for volumes to seal."""
AGAIN_SECONDS: Final = 30.0
"""Until what failed is tried again."""
SUMMARY: Final = ".sum"
"""Beside a pack: what it holds, by type, behind a CRC-32. Derived."""
FULL: Final = "full"
"""Reason of what went to make room."""


class Retain(msgspec.Struct, frozen=True, tag=True):
    """Give up what the rules say. `is_dry`: only say what that would be."""

    number: int
    rules: tuple[KeepRule, ...]
    now: float
    had: int = MAX_POSITION
    is_dry: bool = False


class Free(msgspec.Struct, frozen=True, tag=True):
    """Give up the oldest volumes until so many bytes of metadata, of payloads, and of both are free."""

    metadata: int
    payload: int
    both: int


class Going(msgspec.Struct, frozen=True, tag=True):
    """Objects that go from the disk now: they are in no answer that is told after this."""

    positions: tuple[int, ...]
    lost: tuple[Lost, ...]
    """The same by registration, but for those that were deleted."""


class Retained(msgspec.Struct, frozen=True, tag=True):
    """Objects that went, or would."""

    number: int
    volumes: tuple[GivenUp, ...]
    error: ErrorReport | None = None


class Applied(msgspec.Struct, frozen=True, tag=True):
    """These are on disk no more."""

    positions: tuple[int, ...]


class Stored(msgspec.Struct, frozen=True, tag=True):
    """State on disk: objects up to a position, volumes, bytes."""

    up_to: int
    volumes: int
    packs: int
    metadata: int
    payload: int


def stored_of(volumes: Sequence[Volume]) -> Stored:
    """State of an archive with these volumes, the first file of its log among them."""
    packs = [volume for volume in volumes if isinstance(volume, Pack)]
    before = [volume.previous for volume in volumes if isinstance(volume, LogVolume)][:1]  # given up, or in packs
    metadata, payload = (sum(sizes) for sizes in zip(*(pack.sizes for pack in packs), strict=True)) if packs else (0, 0)
    return Stored(max([pack.last for pack in packs] + before, default=0), len(volumes), len(packs), metadata, payload)


class EndedError(Exception):
    """The worker is about to end."""


class Upkeep:
    """See the module. A thread of its own; `tell` may be called by any."""

    def __init__(
        self,
        folder: Path,
        archive: bytes,
        tell: Callable[[Any], None],
        ask_desk: Callable[[Callable[[], None]], None],
        *,
        metadata: str,
        payloads: str,
    ) -> None:
        """`ask_desk` has something done by the thread that answers queries, and returns when it is done; it raises
        EndedError. `metadata`, `payloads`: names of the stores."""
        self._folder = folder
        self._archive = archive
        self._tell = tell
        self._ask_desk = ask_desk
        self._stores = METADATA_STORES[metadata], PAYLOAD_STORES[payloads]
        self._inbox: SimpleQueue[Retain | Free | None] = SimpleQueue()
        self._is_closed = False
        self.forget: Callable[[Iterable[int]], None] = lambda _positions: None
        self.went: Callable[[Iterable[int]], None] = lambda _positions: None
        self.lose: Callable[[Iterable[int], tuple[Lost, ...]], None] = lambda _positions, _lost: None
        self.deleted: Container[int] = ()
        """Calls of the desk before and after objects go, and positions of what is deleted and on disk: that is told."""
        self._thread = threading.Thread(target=self._run, name="archive-upkeep", daemon=True)

    def start(self) -> None:
        """Begin."""
        (self._folder / PACKS).mkdir(mode=0o700, exist_ok=True)
        self._thread.start()

    def take(self, message: Retain | Free) -> None:
        """To be done soon."""
        self._inbox.put(message)

    def close(self) -> None:
        """End; what is being written is written first."""
        self._is_closed = True
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    # -- its thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._told: Stored | None = None
        self._stamps: list[Stamp] | None = None
        pause = 0.0
        while True:
            message = None
            with suppress(Empty):
                message = self._inbox.get(timeout=pause)
            if self._is_closed:
                return
            pause = AGAIN_SECONDS
            with guarded("archive upkeep"):
                pause = self._do(message)

    def _do(self, message: Retain | Free | None) -> float:
        """One thing; seconds until the next."""
        try:
            match message:
                case Retain():
                    self._tell(self._retain(message))
                case Free():
                    self._tell(self._free(message))
                case None:
                    self._seal_all()
            self._tell_stored()
        except EndedError:
            return 0.0
        except OSError as exc:
            error = exc if isinstance(exc, StorageError) else StorageError(str(exc))
            log.error("the archive's volumes: %s", error)
            if message is not None:
                self._tell(Retained(message.number if isinstance(message, Retain) else 0, (), error=report(error)))
            with suppress(OSError):
                self._tell_stored()  # so that the oldest can give way to what could not be made
            return AGAIN_SECONDS
        return LOOK_SECONDS

    # -- sealing ------------------------------------------------------------------------------------------------

    def _logs(self) -> list[Path]:
        return sorted(path for path in (self._folder / LOG).glob("*.log") if path.stem.isdigit())

    def _packs(self) -> list[Path]:
        return sorted(path for path in (self._folder / PACKS).glob("*.pack") if path.stem.isdigit())

    def _good_logs(self) -> list[Path]:
        """The same, but those that can't be read at all: whoever answers queries tells of them."""
        found: list[Path] = []
        for path in self._logs():
            with suppress(StorageError), closing(LogVolume(path, self._archive)):
                found.append(path)
        return found

    def _volumes(self) -> list[tuple[int, list[Path]]]:
        """All of them, in order: the position that each begins with, and what there is of it: a pack, a file of the log
        that has become none yet, or both where that was not taken away yet."""
        found: dict[int, list[Path]] = {}
        for path in (*self._packs(), *self._logs()):
            found.setdefault(int(path.stem), []).append(path)
        return sorted(found.items())

    def _readable(self) -> Iterator[tuple[Path, Pack]]:
        """Packs in order, open; one that is damaged as a whole is told and passed over."""
        for path in self._packs():
            try:
                pack = Pack(path, self._archive)
            except StorageError as exc:
                log.error("%s", exc)
                continue
            with closing(pack):
                yield path, pack

    def _seal_all(self) -> None:
        """Seal all files of the log but the last, in order: what they delete lies before."""
        for path, behind in pairwise(self._good_logs()):
            if self._is_closed:
                return
            self._seal(path, behind)
            self._tell_stored()

    def _seal(self, path: Path, behind: Path) -> None:
        """Make a pack of a file of the log that is written no more."""
        with closing(LogVolume(behind, self._archive)) as next_one:
            end = next_one.previous
        with closing(LogVolume(path, self._archive)) as volume:
            records = list(volume.come(end))
            gaps = tuple((damage.after, damage.before) for damage in volume.damages)
            head, last, deleted = volume.head, volume.last, sorted(set(volume.deleted))
        gone = {*deleted, *(record.position for record in records if record.position in self.deleted)}
        self._desk(lambda: self.forget(sorted(gone)))
        of = Sealable(self._archive, head.first, last, head.previous, head.began, gaps)
        self._make(of, records, gone)
        size = sum([len(record.data) for record in records])
        records.clear()
        give_back(size)
        self._take_out(deleted)
        if gaps:
            log.error("%s is damaged; it is kept as %s.damaged", path, path.name)
            path.rename(path.with_name(path.name + ".damaged"))
        else:
            path.unlink()
        _synced(path.parent)
        self._desk(lambda: self.went(deleted))
        if deleted:
            self._tell(Applied(tuple(deleted)))

    def _make(self, of: Sealable, records: Sequence[Record], gone: set[int]) -> None:
        """A pack, and what is in it."""
        metadata, payloads = self._stores
        path = seal(of, records, self._folder / PACKS, metadata=metadata, payloads=payloads, gone=gone)
        _summarize(path, [record for record in records if record.position not in gone])

    def _take_out(self, positions: Sequence[int]) -> None:
        """Make packs anew without these."""
        if not positions:
            return
        for _, pack in self._readable():
            here = [position for position in positions if pack.first <= position <= pack.last]
            gone = {record.position for record in pack.metadata(here)} if here else set()
            if gone:
                records = list(pack.read(0, MAX_POSITION))
                self._make(_without_damage(pack), records, gone)

    # -- what there is ------------------------------------------------------------------------------------------

    def _tell_stored(self) -> None:
        """Tell how much there is, if that has changed."""
        files, logs = self._packs(), self._logs()
        stamps = [*map(stamp, files), (len(logs), int(logs[0].stem) if logs else 0)]
        if stamps == self._stamps:
            return
        with ExitStack() as stack:
            volumes: list[Volume] = [pack for _, pack in self._readable()]
            with suppress(IndexError, StorageError):
                volumes.append(stack.enter_context(closing(LogVolume(logs[0], self._archive))))
            told = stored_of(volumes)
        self._stamps = stamps
        told = msgspec.structs.replace(told, volumes=len(files) + len(logs), packs=len(files))
        if told != self._told:
            self._told = told
            self._tell(told)

    # -- giving up ----------------------------------------------------------------------------------------------

    def _retain(self, asked: Retain) -> Retained:
        """See Retain. Files of the log that are full are sealed first, so that they can go as well."""
        try:
            self._seal_all()
        except OSError as exc:  # on a full disk: what is in packs goes all the same
            log.error("full files are not sealed, and stay: %s", exc)
        retention = Retention(asked.rules, asked.now, asked.had)
        keys = _Keys()
        for path in reversed(self._good_logs()):
            with closing(LogVolume(path, self._archive)) as volume:
                volume.recover()
                for record in volume.read(0, MAX_POSITION, newest_first=True):
                    _fate(retention, record, keys)
        plans = [self._plan(path, retention, keys) for path in reversed([path for path, _ in self._readable()])]
        found = [plan for plan in reversed(plans) if plan.reasons]
        if asked.is_dry:
            return Retained(asked.number, tuple(plan.going for plan in found))
        for plan in [plan for plan in found if plan.is_done]:
            self._desk(partial(self.lose, sorted(plan.gone), plan.lost.all()))
            self._give_up(plan)
            self._desk(partial(self.went, plan.gone))
        return Retained(asked.number, tuple(plan.going for plan in found))

    def _plan(self, path: Path, retention: Retention, keys: _Keys) -> _Plan:
        """Plan of what goes of a pack."""
        held = holdings_of(path, self._archive)
        fates = {(each.type, each.version): retention.whole(each) for each in held}
        plan = _Plan(path, held, LossSpans(self.deleted))
        with closing(Pack(path, self._archive)) as pack:
            plan.first, plan.last = pack.first, pack.last
            if all(fate == STAYS for fate in fates.values()):
                return plan
            for record in pack.read(0, MAX_POSITION, newest_first=True):
                item = _item(record)
                if item is None:
                    continue
                fate = fates[item.type, item.version]
                if fate is None:
                    fate = _fate(retention, record, keys)
                plan.note(item, fate)
        return plan

    def _give_up(self, plan: _Plan) -> None:
        if plan.is_whole and not any(path.stem < plan.path.stem for path in (*self._packs(), *self._logs())):
            self._remove([plan.path])
            return
        with closing(Pack(plan.path, self._archive)) as pack:
            records = [_cut(record) if record.position in plan.cut else record for record in pack.read(0, MAX_POSITION)]
            of = _without_damage(pack)
        self._make(of, records, plan.gone)

    def _free(self, asked: Free) -> Retained:
        """See Free."""
        wanted = [asked.metadata, asked.payload, asked.both]
        going: list[GivenUp] = []
        for (_, paths), (behind, _) in pairwise(self._volumes()):
            if max(wanted) <= 0:
                break
            whole = self._whole(paths[0], behind - 1)
            self._desk(partial(self.lose, whole.positions, whole.lost))
            self._remove(paths)
            self._desk(partial(self.went, [*whole.positions, *whole.deleted]))
            if whole.deleted:
                self._tell(Applied(tuple(whole.deleted)))
            wanted = [wanted[0] - whole.metadata, wanted[1] - whole.payload, wanted[2] - whole.metadata - whole.payload]
            going.append(whole.going)
        return Retained(0, tuple(going))

    def _whole(self, path: Path, up_to: int) -> _Whole:
        """Losses with a volume. Of one that can't be read, that it may have held positions up to that one."""
        try:
            volume = Pack(path, self._archive) if path.suffix == ".pack" else LogVolume(path, self._archive)
        except StorageError as exc:
            log.error("unreadable files are deleted to free space: %s", exc)
            first, size = int(path.stem), sum(file.stat().st_size for file in path.parent.glob(f"{path.stem}*"))
            return _Whole(GivenUp(first, up_to, 0, {FULL: 0}, True, True), (), range(first, up_to + 1), (), size, 0)
        metadata, payload, losses = 0, 0, LossSpans(self.deleted)
        with closing(volume):
            if isinstance(volume, LogVolume):
                volume.recover()
            for record in volume.read(0, MAX_POSITION):
                if (item := _item(record)) is not None:
                    losses.add(item.type, item.version, item.registration, item.position)
                    metadata, payload = metadata + len(record.data) - item.payload, payload + item.payload
            positions = list(volume.positions)
            deleted: Sequence[int] = volume.deleted if isinstance(volume, LogVolume) else ()
            if isinstance(volume, Pack):
                metadata, payload = volume.sizes
            going = GivenUp(volume.first, volume.last, len(positions), {FULL: len(positions)}, True, True)
        return _Whole(going, losses.all(), positions, deleted, metadata, payload)

    def _remove(self, paths: Sequence[Path]) -> None:
        """Take a volume away."""
        try:
            for path in paths:
                if path.suffix == ".pack":
                    packs.remove(path)
                    path.with_suffix(SUMMARY).unlink(missing_ok=True)
                else:
                    path.unlink(missing_ok=True)
                    sync_folder(path.parent)
        except OSError as exc:
            raise StorageError(f"{paths[0]} can't be taken away: {exc.strerror}", path=str(paths[0])) from exc

    def _desk(self, what: Callable[[], None]) -> None:
        if self._is_closed:
            raise EndedError
        self._ask_desk(what)


class _Whole(NamedTuple):
    """A volume that goes, its objects, and those that it says are deleted; bytes of metadata and payloads."""

    going: GivenUp
    lost: tuple[Lost, ...]
    positions: Sequence[int]
    deleted: Sequence[int]
    metadata: int
    payload: int


class _Plan:
    """Plan of what goes of a pack."""

    def __init__(self, path: Path, held: Sequence[Holding], lost: LossSpans) -> None:
        self.path = path
        self.first = self.last = 0
        self.gone: set[int] = set()
        self.cut: set[int] = set()
        self.reasons: Counter[str] = Counter()
        self.lost = lost
        self._objects = sum(each.objects for each in held)
        self._payload = sum(each.payload for each in held)
        self._size = sum(each.size for each in held)
        self._going = self._payload_going = 0

    def note(self, item: Item, fate: Fate) -> None:
        """Note the fate of an object."""
        if fate == STAYS or (fate == PAYLOAD and not item.payload):
            return
        self.reasons[fate] += 1
        self._payload_going += item.payload
        if fate == PAYLOAD:
            self.cut.add(item.position)
        else:
            self.gone.add(item.position)
            self._going += item.size
            self.lost.add(item.type, item.version, item.registration, item.position)

    @property
    def is_whole(self) -> bool:
        return len(self.gone) == self._objects

    @property
    def is_done(self) -> bool:
        """Whether half of it goes: of its objects, its bytes, or its payloads."""
        return is_worth(self._objects, len(self.gone), self._size, self._going) or is_worth(
            self._objects, len(self.cut), self._payload, self._payload_going
        )

    @property
    def going(self) -> GivenUp:
        return GivenUp(self.first, self.last, self._objects, dict(self.reasons), self.is_whole, self.is_done)


class _Keys:
    """Texts at `latest_by`, of objects."""

    def __init__(self) -> None:
        self._known: dict[tuple[TypeName, str], Key] = {}

    def of(self, parcel: Parcel, expression: str) -> str:
        """ "" where there is none."""
        name = TypeName(parcel.head.type_name, parcel.head.type_version)
        metadata = bytes(parcel.head.metadata)
        try:
            key = self._known.get((name, expression)) or Key(Scope(name), expression)
            self._known[name, expression] = key
            return key.of(parse_metadata(metadata), len(metadata))
        except JbiError:
            return ""


def _fate(retention: Retention, record: Record, keys: _Keys) -> Fate:
    """Fate of an object, the next one back."""
    item = _item(record)
    if item is None:
        return STAYS
    rule = retention.rule(item.type)
    if rule is not None and rule.latest_by:
        item = msgspec.structs.replace(item, key=keys.of(Parcel.received(record.data), rule.latest_by))
    return retention.one(item)


def holdings_of(path: Path, archive: bytes) -> tuple[Holding, ...]:
    """Holdings of a pack, by type: as the summary beside it says, else as it says itself. Raises StorageError."""
    try:
        said = path.with_suffix(SUMMARY).read_bytes()
        if said[:4] == zlib.crc32(said[4:]).to_bytes(4, "big"):
            made_of, found = decoded(_summary, said[4:], "summary")
            if made_of == stamp(path):
                return found
    except (OSError, ProtocolError):
        pass  # read below
    with closing(Pack(path, archive)) as pack:
        return _summarize(path, pack.read(0, MAX_POSITION))


def _summarize(path: Path, records: Iterable[Record]) -> tuple[Holding, ...]:
    found = holdings(item for record in records if (item := _item(record)) is not None)
    summary = path.with_suffix(SUMMARY)
    try:
        data = msgspec.msgpack.encode((stamp(path), found))
        with written(summary, is_durable=False) as file:
            file.write(zlib.crc32(data).to_bytes(4, "big") + data)
    except OSError as exc:
        log.warning("%s: %s", summary, exc.strerror)  # it is derived: read from the pack when it is asked for
    return found


def _item(record: Record) -> Item | None:
    """Item that rules look at; None for what is no object, which nobody's rule is about."""
    if record.kind != OBJECT:
        return None
    try:
        parcel = Parcel.received(record.data)
    except ProtocolError:
        return None
    head, payload = parcel.head, parcel.size - parcel.payload_at
    is_beside = not payload and head.payload_length > MEMORY_BYTES  # its payload lies in a file of its own
    size = len(head.metadata) + (head.payload_length if is_beside else payload)
    return Item(
        record.position, record.received, head.type_name, head.type_version, size, payload, "", head.registration
    )


def _cut(record: Record) -> Record:
    """An object without its payload."""
    return record._replace(data=record.data[: Parcel.received(record.data).payload_at])


def _without_damage(pack: Pack) -> Sealable:
    """Source that a pack is made anew of, after all of it was read."""
    of = pack.sealable
    return msgspec.structs.replace(of, gaps=(*of.gaps, (of.previous, of.last))) if pack.bad else of


def _synced(folder: Path) -> None:
    try:
        sync_folder(folder)
    except OSError as exc:
        raise StorageError(f"{folder} can't be forced to the disk: {exc.strerror}", path=str(folder)) from exc


_summary = decoder_of(tuple[tuple[int, ...], tuple[Holding, ...]])
