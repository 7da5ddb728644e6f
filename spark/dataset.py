"""Data sets of studies, as tables: registrations, subscriptions, publications. Their columns, and how they are
checked.

    registrations   who publishes what: its entries, as the lookup service holds them
    subscriptions   who wants what: template, predicate, filter
    publications    what was published; the archive exports the same columns
    rejects         what could not be read, each with the reason

A data set is a folder with a folder of Parquet files for each table and a manifest, written last. Registrations and
subscriptions are contracts: thousands, held in memory by whoever judges. Publications are as many as you like, read
where they lie, batch by batch.
"""

from __future__ import annotations

import hashlib
import shutil
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, EntryError, StudyError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.values import converted
from jbi_pubsub.lookup.entry import EntryRep, check_rep
from jbi_pubsub.protocol.requests import Unfiltered, View
from jbi_pubsub.spark import report
from jbi_pubsub.spark.session import Progress

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "jbi-data-1"
"""Names this layout in the manifest."""
MANIFEST: Final = "manifest.json"
ROW_GROUP: Final = 20_000
"""Publications of a row group, which is a task's share: some seconds of judging."""
GROUP_BYTES: Final = 64 << 20
"""Bytes of a row group, if its rows are large."""
BATCH_ROWS: Final = 2_000
"""Publications that are in memory at once, in each process that judges."""
MAX_CONTRACTS: Final = 1_000_000
"""Registrations, or subscriptions, of a data set: about a gigabyte in each process that judges."""
MAX_TEXT: Final = 4_096
"""Characters of an id, a name, a type: the longest path of a file (Linux)."""
MAX_SIZE: Final = 1 << 32
"""Bytes of a payload: what a head can say on the wire. Sums of sizes stay far below 64 bits."""
NOT_SAID: Final = -1
"""Mark that the bytes of a payload are not said."""
MAX_TIME: Final = 253_402_300_800.0
"""The year 10000, in seconds since 1970."""


class RegistrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `registrations`. `entries`: what the lookup service matches, of this registration's item. `owner`: for
    subscriptions that do not want his objects (`unlike`)."""

    registration: str
    publisher: str = ""
    delegate: str = ""
    type: str = ""
    version: str = ""
    owner: str = ""
    entries: tuple[EntryRep, ...] = ()


class SubscriptionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `subscriptions`: what a subscriber has said (pad's SubscriptionRequest), and whose it is. `subscriber`
    is its process: what several subscriptions of a process want goes there once."""

    subscription: str
    subscriber: str = ""
    template: tuple[EntryRep, ...] = ()
    predicate: str = ""
    filter: str = ""
    namespaces: dict[str, str] = msgspec.field(default_factory=dict)
    language: str = "xpath"
    suppress_empty: bool = False
    recipients: int = 0
    direct: bool = True
    view: View = "metadata"
    unfiltered: Unfiltered = "withhold"
    unlike: str = ""
    local: bool = False


class Contracts(msgspec.Struct, frozen=True):
    """All contracts of a data set: what is sent to each process that judges."""

    registrations: tuple[RegistrationRow, ...] = ()
    subscriptions: tuple[SubscriptionRow, ...] = ()


class Reject(msgspec.Struct, frozen=True):
    """Something that could not be read: of which table, which row or file, and why."""

    table: str
    row: str
    reason: str


class PublicationRow(msgspec.Struct, frozen=True, gc=False):
    """A row of `publications`. `publisher` is the id of the registration; `payload` None where it was not kept; `time`
    None where nobody says it; `payload_bytes` NOT_SAID, which is a fault, where a row leaves out what others say."""

    object_id: str
    type: str
    version: str
    time: float | None
    publisher: str
    metadata: bytes
    payload_bytes: int
    payload: bytes | None = None


_JSON: Final = {"entries", "template", "namespaces"}
"""Columns that hold JSON text: entries are data of any class."""

CONTRACTS: Final[Mapping[str, type[RegistrationRow] | type[SubscriptionRow]]] = {
    "registrations": RegistrationRow,
    "subscriptions": SubscriptionRow,
}
_REQUIRED: Final = {
    "registrations": "registration",
    "subscriptions": "subscription",
    "publications": "metadata",
    "rejects": "reason",
}


def columns(table: str) -> pa.Schema:
    """The columns of a table, which are the fields of its rows. All but the first of contracts, and all but `metadata`
    of publications, may be missing in what is given."""
    import pyarrow as pa

    number, data = pa.int64(), pa.binary()
    kinds = {bool: pa.bool_(), int: number, float | None: pa.float64(), bytes: data, bytes | None: data}
    rows = {**CONTRACTS, "publications": PublicationRow, "rejects": Reject}
    return pa.schema([(each.name, kinds.get(each.type, pa.string())) for each in msgspec.structs.fields(rows[table])])


def check_columns(given: pa.Schema, table: str, where: str) -> list[str]:
    """The columns of `given` that `table` uses. Raises StudyError for one that is missing or of another kind, naming
    it, with what was expected. A column without any value (of Arrow's type null) is as one that is not there."""
    import pyarrow as pa

    wanted = columns(table)
    for name in given.names:
        if given.names.count(name) > 1:
            raise StudyError(f"{where}: table {table} has two columns {name!r}", hint="Leave one", column=name)
    known = [f for f in wanted if f.name in given.names and not pa.types.is_null(given.field(f.name).type)]
    name = _REQUIRED[table]
    if name not in given.names:
        raise StudyError(
            f"{where}: table {table} has no column {name!r}; it has {', '.join(given.names)[:300] or 'none'}",
            hint=f"The columns are {', '.join(f'{f.name} {f.type}' for f in wanted)}",
            column=name,
        )
    for field in known:
        found = given.field(field.name).type
        if not _fits(found, field.type, pa):
            raise StudyError(
                f"{where}: column {field.name!r} of table {table} is {found}, not {field.type}",
                hint="Write it as that type",
                column=field.name,
            )
    return [field.name for field in known]


def _fits(found: Any, wanted: Any, pa: Any) -> bool:
    """Whether a cast loses nothing: texts are bytes as well, timestamps seconds, small numbers large ones."""
    kinds = pa.types
    if kinds.is_dictionary(found):  # categories
        found = found.value_type
    if kinds.is_string_view(found) or kinds.is_binary_view(found):
        found = pa.string() if kinds.is_string_view(found) else pa.binary()
    if kinds.is_binary(wanted) or kinds.is_string(wanted):
        texts = kinds.is_string(found) or kinds.is_large_string(found)
        return bool(texts or (kinds.is_binary(wanted) and (kinds.is_binary(found) or kinds.is_large_binary(found))))
    if kinds.is_floating(wanted):
        return bool(kinds.is_floating(found) or kinds.is_integer(found) or kinds.is_timestamp(found))
    if kinds.is_integer(wanted):
        return bool(kinds.is_integer(found))
    return bool(found == wanted)


def publications_of(batch: pa.RecordBatch) -> Iterator[PublicationRow]:
    """The rows of a batch of publications, sound or not (fault). What is not there: an id made of all that the row
    says, version 1.0, the type's name as the publisher, the payload's length; of a table without payloads and their
    sizes no object has one. A time that is not there is none."""
    import pyarrow as pa

    count = batch.num_rows

    def column(name: str, default: object) -> Sequence[Any]:
        if name not in batch.schema.names:
            return [default] * count
        found = batch.column(name)
        if pa.types.is_timestamp(found.type):
            second = _UNITS[found.type.unit]
            return [default if v is None else v / second for v in found.cast(pa.int64()).to_pylist()]
        return [default if v is None else v for v in values_of(found)]

    ids, types, versions = column("object_id", ""), column("type", ""), column("version", "1.0")
    times, publishers = column("time", None), column("publisher", "")
    metadata, sizes, payloads = column("metadata", b""), column("payload_bytes", None), column("payload", None)
    none = NOT_SAID if "payload_bytes" in batch.schema.names else 0
    for n in range(count):
        payload, document = _bytes(payloads[n]), _bytes(metadata[n]) or b""
        time, size = times[n], sizes[n]
        if size is None:
            size = none if payload is None else len(payload)
        yield PublicationRow(
            ids[n] or id_of(types[n], versions[n], time, document, payload),
            types[n],
            versions[n],
            None if time is None else float(time),
            publishers[n] or types[n],
            document,
            size,
            payload,
        )


def id_of(type_: str, version: str, time: float | None, metadata: bytes, payload: bytes | None) -> str:
    """Id of an object whose row says none: the same for equal rows, wherever they are read."""
    return f"of-{hashed(repr((type_, version, time, metadata, payload)).encode()):015x}"


_UNITS: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def values_of(column: Any) -> list[Any]:
    """The values of a column. A text that is no UTF-8 has lone surrogates, by which `fault` knows it."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        known = values_of(column.dictionary)
        return [None if at is None else known[at] for at in column.indices.to_pylist()]
    try:
        return column.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
    except UnicodeDecodeError:
        found = column.cast(pa.large_binary()).to_pylist()
        return [None if v is None else v.decode("utf-8", "surrogateescape") for v in found]


def fault(given: PublicationRow) -> str:
    """Fault in a row of publications but its metadata; "" if it is sound."""
    for name in ("object_id", "type", "version", "publisher"):
        if wrong := text_fault(getattr(given, name)):
            return f"{name} {wrong}"
    if given.time is not None and not 0 <= given.time < MAX_TIME:
        return f"time {given.time:g} is not between 1970 and the year 10000, in seconds"
    if given.payload_bytes == NOT_SAID:
        return "says neither a payload nor payload_bytes, as other rows do: 0 if there is no payload"
    if not 0 <= given.payload_bytes <= MAX_SIZE:
        return f"payload_bytes {given.payload_bytes} is not between 0 and {MAX_SIZE:,}"
    if given.payload is not None and len(given.payload) != given.payload_bytes:
        return f"payload_bytes is {given.payload_bytes}, but its payload has {len(given.payload)}"
    return ""


def text_fault(text: str) -> str:
    """Fault of an id or a name; "" if it has none. Ids are keys of sums, and are shown."""
    if len(text) > MAX_TEXT:
        return f"has {len(text):,} characters, more than {MAX_TEXT:,}"
    if text.isprintable():
        return ""
    if any(unicodedata.category(c) == "Cs" for c in text):
        return "is not UTF-8"
    return "has a control character" if any(unicodedata.category(c) == "Cc" for c in text) else ""


def sayable(text: str, most: int) -> str:
    """The beginning of a text that may be no text, as one that can be written."""
    return text[:most].encode("utf-8", "replace").decode()


def hashed(data: bytes) -> int:
    """60 bits of a text or document, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 4


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def contracts_of(rows: Iterable[Mapping[str, Any]], table: str, rejects: list[Reject]) -> Iterator[Any]:
    """Registration or Subscription of each row; what makes no sense goes to `rejects`. Raises StudyError beyond
    MAX_CONTRACTS."""
    kind = CONTRACTS[table]
    name = kind.__struct_fields__[0]
    known: set[str] = set()
    for number, row in enumerate(rows):
        if number == MAX_CONTRACTS:
            raise StudyError(f"table {table} has more than {MAX_CONTRACTS:,} rows", hint="Study a part of it")
        try:
            given = {key: _value(key, value) for key, value in row.items() if value is not None}
            made = converted(given, kind)
            _check(made, known)
        except (*UNREADABLE, EntryError) as error:
            rejects.append(
                Reject(table, sayable(str(row.get(name) or f"row {number + 1}"), 200), sayable(str(error), 500))
            )
        else:
            known.add(getattr(made, name))
            yield made


def sound(contracts: Iterable[Any], table: str, rejects: list[Reject]) -> Iterator[Any]:
    """The contracts that make sense; the others go to `rejects`."""
    known: set[str] = set()
    for each in contracts:
        uid = getattr(each, each.__struct_fields__[0])
        try:
            _check(each, known)
        except (msgspec.ValidationError, EntryError) as error:
            rejects.append(Reject(table, sayable(uid, 200), sayable(str(error), 500)))
        else:
            known.add(uid)
            yield each


def _check(made: RegistrationRow | SubscriptionRow, known: Collection[str]) -> None:
    """Raises ValidationError for ids and names that are none, an id that is there already, and odd numbers, EntryError
    for entries."""
    for entry in (*getattr(made, "entries", ()), *getattr(made, "template", ())):
        check_rep(entry)
    uid = getattr(made, made.__struct_fields__[0])
    wrong = ""
    if not uid:
        wrong = "has no id"
    elif uid in known:
        wrong = "is there twice: the first one counts"
    elif not 0 <= getattr(made, "recipients", 0) < MAX_CONTRACTS:
        wrong = f"recipients {getattr(made, 'recipients', 0)} is not a number of recipients"
    for name in (
        () if wrong else ("registration", "subscription", "subscriber", "publisher", "delegate", "type", "version")
    ):
        if found := text_fault(getattr(made, name, "")):
            wrong = f"{name} {found}"
    if wrong:
        raise msgspec.ValidationError(wrong)


UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for JSON that is none, is of other types, is no UTF-8, is nested a thousand deep."""
_decode_json: Final = msgspec.json.Decoder().decode


def _value(key: str, value: Any) -> Any:
    if key not in _JSON:
        return value
    if key == "namespaces":
        return _decode_json(value) if isinstance(value, str) else value
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    try:
        return _entries(text) if len(text) <= _REMEMBERED else _entries.__wrapped__(text)
    except msgspec.DecodeError as error:  # a ValidationError is one
        raise msgspec.ValidationError(f"{key}: {error}") from error


_REMEMBERED: Final = 2_000
"""Characters of entries that are remembered."""


@lru_cache(maxsize=1 << 16)
def _entries(text: str) -> tuple[EntryRep, ...]:
    """Entries of registrations and templates, of which many are equal: read, checked and held once."""
    made = _decode_entries(text)
    for entry in made:
        check_rep(entry)
    return made


_decode_entries: Final = msgspec.json.Decoder(tuple[EntryRep, ...]).decode


def row_of(contract: RegistrationRow | SubscriptionRow) -> dict[str, Any]:
    """The row of a contract."""
    given = {name: getattr(contract, name) for name in contract.__struct_fields__}
    return {key: msgspec.json.encode(value).decode() if key in _JSON else value for key, value in given.items()}


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds a whole data set. Raises StudyError for an unfinished one."""
    found = _manifest(folder)
    if found is None:
        return False
    if found.get("state") != "complete":
        again = "Let `jbi study export --resume` finish it" if found.get("source") == "exported" else "Make it again"
        raise StudyError(f"{folder} is an unfinished data set", hint=again)
    return True


def rows_written(folder: Path) -> int | None:
    """Publications of a data set when it was finished; None where its manifest says no number."""
    rows = (_manifest(folder) or {}).get("rows")
    count = rows.get("publications") if isinstance(rows, dict) else None
    return count if isinstance(count, int) else None


def check_out(folder: Path) -> None:
    """Raises ConfigurationError where a data set may not be written."""
    if folder.exists() and any(folder.iterdir()) and _manifest(folder) is None:
        raise ConfigurationError(
            f"{folder} is not empty and holds no data set", hint="Give an empty or new folder; nothing was changed"
        )


def _manifest(folder: Path) -> dict[str, Any] | None:
    found = report.json_in(folder / MANIFEST)
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None


def write(
    folder: Path,
    contracts: Contracts,
    publications: Iterable[PublicationRow],
    *,
    source: str,
    progress: Progress | None = None,
    rejects: Sequence[Reject] = (),
) -> int:
    """Write a data set, the manifest last; how many publications it has. `rejects` may grow while `publications` come.
    Raises ConfigurationError for a folder that holds something else, StudyError when the disk is full."""
    with Writer(folder, source=source) as writer:
        for publication in publications:
            writer.add(publication)
            if progress is not None and writer.count % BATCH_ROWS == 0:
                progress("publications", writer.count, 0)
        writer.finish(contracts, rejects)
    return writer.count


EXPORTED: Final = "exported"
"""Source of a data set that is never written anew: what was tapped comes once."""


class Writer:
    """Writes a data set part by part: publications as they come, contracts and the manifest at the end. What makes a
    part is there when it is whole; a data set without `finish` is one that `resume` goes on with."""

    def __init__(self, folder: Path, *, source: str, resume: bool = False) -> None:
        """`resume`: keep what is there, of the same source. Raises ConfigurationError for a folder that holds something
        else, StudyError where it can't be written, or PyArrow is missing."""
        report.parquet_present()
        check_out(folder)
        self._folder, self._source = folder, source
        there = _manifest(folder)
        if (
            there is not None
            and there.get("source") == EXPORTED
            and not resume
            and any(rows for _, rows, _ in self._parts())
        ):
            raise ConfigurationError(
                f"{folder} holds what a federation has published, which can't be had again",
                hint="Go on with it (`jbi study export --resume`), name another folder, or remove it",
            )
        before = there if resume else None
        if before is not None and before.get("source") != source:
            raise ConfigurationError(f"{folder} is a data set that was {before.get('source')}, not {source}")
        kept = before.get("facts") if before is not None else None
        self.facts: dict[str, Any] = dict(kept) if isinstance(kept, dict) else {}
        """Kept in the manifest."""
        with report.writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            stack.enter_context(report.held(folder))
            self._begin(resume=before is not None)
            self._held = stack.pop_all()

    def _begin(self, *, resume: bool) -> None:
        with report.writing(self._folder):
            self.mark("running")
            for name in (*CONTRACTS, "publications", "rejects"):
                if not resume and (self._folder / name).exists():
                    shutil.rmtree(self._folder / name)  # what can't be removed would be among the new parts
        self.count = 0
        """Publications, those of before among them."""
        self.size = 0
        """Their bytes, as they are on disk but for the part that is being written."""
        self._next = 0
        for part, number, size in self._parts():
            self.count += number
            self.size += size
            self._next = part + 1
        self._stack = ExitStack()
        self._rows: report.TableWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._held, report.writing(self._folder):
            self._stack.__exit__(kind, error, trace)

    def add(self, publication: PublicationRow) -> None:
        """Add one. Raises StudyError when the disk is full."""
        with report.writing(self._folder):
            if self._rows is None:
                part = f"part-{self._next:05d}"
                self._rows = self._stack.enter_context(table(self._folder, "publications", part))
            self._rows.add_named({name: getattr(publication, name) for name in PublicationRow.__struct_fields__})
        self.count += 1
        self.size += len(publication.metadata) + len(publication.payload or b"")

    def close_part(self) -> None:
        """Put what has come on disk, as a part that is whole."""
        if self._rows is not None:
            with report.writing(self._folder):
                self._stack.close()
            self._rows = None
            self._next += 1

    def put(self, contracts: Contracts) -> None:
        """Write the contracts, instead of those that are there."""
        with report.writing(self._folder):
            for name in CONTRACTS:
                with table(self._folder, name) as written:
                    for each in getattr(contracts, name):
                        written.add_named(row_of(each))

    def mark(self, state: str, **more: Any) -> None:
        """Write the manifest."""
        facts = {"format": FORMAT, "state": state, "source": self._source, "facts": self.facts, **more}
        report.write(self._folder / MANIFEST, msgspec.json.format(msgspec.json.encode(facts)))

    def finish(self, contracts: Contracts, rejects: Sequence[Reject] = ()) -> None:
        """Write all else, the manifest last. Raises StudyError when the disk is full."""
        if not self._next and self._rows is None:
            with report.writing(self._folder), table(self._folder, "publications"):
                pass  # an empty table, with its columns
        self.close_part()
        self.put(contracts)
        rows = {"publications": self.count, "rejects": len(rejects)}
        rows |= {name: len(getattr(contracts, name)) for name in CONTRACTS}
        with report.writing(self._folder):
            with table(self._folder, "rejects") as written:
                for reject in rejects:
                    written.add(reject.table, reject.row, reject.reason)
            self.mark("complete", rows=rows)

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        """Number, rows and bytes of each part that is there. Raises StudyError for one that can't be read."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        for path in sorted((self._folder / "publications").glob("part-*.parquet")):
            try:
                yield int(path.stem.removeprefix("part-")), pq.read_metadata(path).num_rows, path.stat().st_size
            except (pa.ArrowException, OSError, ValueError) as error:
                raise StudyError(
                    f"{path} is not a part of a data set: {error}"[:400], hint="Remove it, and go on without it"
                ) from error


@contextmanager
def table(folder: Path, name: str, part: str = "part-00000") -> Iterator[report.TableWriter]:
    """Write a table of a data set, as one file that is there when it is whole."""
    (folder / name).mkdir(exist_ok=True)
    few = [field for field in columns(name).names if field not in ("metadata", "payload")]  # of which many are equal
    with (
        written(folder / name / f"{part}.parquet", mode=None) as file,
        report.TableWriter(file, columns(name), most=ROW_GROUP, most_bytes=GROUP_BYTES, dictionary=few) as rows,
    ):
        yield rows
