"""Objects of archives as rows of files, and back: JSON lines and Parquet with the columns that `jbi study` reads, and
and what an object needs to be the same one again.

    object_id, type, version, time, publisher (the registration), metadata, payload_bytes, payload   as for studies
    sequence, hops, via, signature, attributes        of the object
    entries                               of its registration, in the first of its rows
    payload_base64, metadata_base64       in JSON lines, where the text would not be the same bytes again
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, JbiError, StudyError
from jbi_pubsub.core.files import written
from jbi_pubsub.core.info_object import SIGNATURE_BYTES, Head, InfoObject, ObjectAttributes, Parcel, object_id_of, pack
from jbi_pubsub.core.spool import MEMORY_BYTES
from jbi_pubsub.core.values import converted
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, parse_metadata
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.spark import dataset, report

from .show import counted

LINES: Final = (".jsonl", ".ndjson", ".json")
PARQUET: Final = ".parquet"
STDIO: Final = "-"
BATCH_ROWS: Final = 1_000
BATCH_BYTES: Final = 8 << 20
"""Bytes of objects that are handed over at once."""
MAX_LINE: Final = 100 << 20
"""Bytes of a JSON line: the largest object in base64, and its metadata."""
_ID: Final = re.compile(r"[0-9A-Za-z._-]{1,64}")

Entries = tuple[EntryRep, ...]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Name = Annotated[str, msgspec.Meta(max_length=dataset.MAX_TEXT)]


class IdentityColumns(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Columns without which an object is not the same one again."""

    sequence: _Number = 0
    hops: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    via: Annotated[tuple[str, ...], msgspec.Meta(max_length=255)] = ()
    signature: Annotated[bytes, msgspec.Meta(max_length=SIGNATURE_BYTES)] = b""
    entries: Entries = ()
    """Entries of the registration, as templates match them: in one of its rows."""
    attributes: ObjectAttributes | None = None


class ObjectRow(IdentityColumns, frozen=True, omit_defaults=True, kw_only=True):
    """An object. What is missing in files of others is made: see `parcel_of`."""

    object_id: _Name = ""
    type: _Name = ""
    version: _Name = "1.0"
    time: Annotated[float, msgspec.Meta(ge=0, le=1e11)] | None = None
    publisher: _Name = ""
    metadata: str | None = None
    metadata_base64: bytes | None = None
    payload_bytes: _Number | None = None
    payload: str | None = None
    payload_base64: bytes | None = None


_decode: Final = msgspec.json.Decoder(ObjectRow).decode
_decode_any: Final = msgspec.json.Decoder(dict[str, Any]).decode
_decode_entries: Final = msgspec.json.Decoder(Entries).decode


Sink = Callable[[InfoObject, Entries], None]
"""Takes one more object, with the entries of its registration, once."""


# -- out ------------------------------------------------------------------------------------------------------------


@contextmanager
def writing(path: Path, *, payloads: bool) -> Iterator[Sink]:
    """A file by its ending, or JSON lines to stdout for "-". It is there when it is whole, and not before. Raises
    ConfigurationError for another ending, or a file that is there."""
    if str(path) == STDIO:
        yield _line_sink(sys.stdout.buffer, payloads=payloads)
        return
    form = form_of(path)
    if path.exists():
        raise ConfigurationError(f"{path} is there already", hint="Name another file, or remove it")
    with written(path, mode=None) as file:
        if form == "lines":
            yield _line_sink(file, payloads=payloads)
        else:
            with _parquet_sink(file, payloads=payloads) as sink:
                yield sink


def form_of(path: Path) -> str:
    """lines or parquet. Raises ConfigurationError, or StudyError where the library for Parquet is missing."""
    if path.suffix.lower() in LINES:
        return "lines"
    if path.suffix.lower() == PARQUET:
        report.parquet_present()
        return "parquet"
    raise ConfigurationError(f"{path} has no known ending", hint="Use .jsonl for JSON lines, .parquet for Parquet")


def _line_sink(file: Any, *, payloads: bool) -> Sink:
    def add(obj: InfoObject, entries: Entries) -> None:
        file.write(msgspec.json.encode(row_of(obj, entries, payload=payloads)) + b"\n")

    return add


@contextmanager
def _parquet_sink(file: Any, *, payloads: bool) -> Iterator[Sink]:
    import pyarrow as pa

    own = [
        ("sequence", pa.int64()),
        ("hops", pa.int64()),
        ("via", pa.list_(pa.string())),
        ("signature", pa.binary()),
        ("entries", pa.string()),
        ("attributes", pa.string()),
    ]
    schema = pa.schema([*dataset.columns("publications"), *(pa.field(*each) for each in own)])
    with report.TableWriter(file, schema, most=dataset.ROW_GROUP, most_bytes=dataset.GROUP_BYTES) as rows:

        def add(obj: InfoObject, entries: Entries) -> None:
            at = obj.platform
            rows.add_named(
                {
                    "object_id": obj.object_id, "type": obj.type.name, "version": obj.type.version,
                    "time": at.published, "publisher": at.registration, "metadata": obj.metadata,
                    "payload_bytes": at.payload_length, "payload": obj.payload if payloads and is_whole(obj) else None,
                    "sequence": at.sequence, "hops": at.hops, "via": list(at.via), "signature": at.signature,
                    "entries": msgspec.json.encode(entries).decode() if entries else None,
                    "attributes": msgspec.json.encode(at.attributes).decode() if at.attributes is not None else None,
                }
            )  # fmt: skip

        yield add


def left_out(count: int) -> str:
    """Message on objects that are written without their payloads."""
    return (
        f"jbi: payloads of more than {MEMORY_BYTES:,} bytes are left out, of {counted(count, 'object')}:"
        " an archive has them in `large` of its folder"
    )


def is_too_large(obj: InfoObject) -> bool:
    """Whether its payload is for no file of ours, wherever it is."""
    return obj.platform.payload_length > MEMORY_BYTES


def is_whole(obj: InfoObject) -> bool:
    """Whether its payload is there; of one that is too large for memory, nothing of it is taken."""
    return MEMORY_BYTES >= obj.payload_size == obj.platform.payload_length


def row_of(obj: InfoObject, entries: Entries, *, payload: bool) -> ObjectRow:
    """An object as a line. Its payload is missing where retention has taken it, or it is too large."""
    at = obj.platform
    whole = payload and is_whole(obj)
    text, data = _text(obj.payload) if whole else (None, None)
    metadata, raw = _text(obj.metadata)
    return ObjectRow(
        object_id=obj.object_id, type=obj.type.name, version=obj.type.version, time=at.published,
        publisher=at.registration, sequence=at.sequence, metadata=metadata, metadata_base64=raw,
        payload_bytes=at.payload_length, payload=text, payload_base64=data, hops=at.hops, via=at.via,
        signature=at.signature, entries=entries, attributes=at.attributes,
    )  # fmt: skip


def _text(data: bytes) -> tuple[str | None, bytes | None]:
    """As a text, or where it is none as bytes."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, data


# -- in -------------------------------------------------------------------------------------------------------------


class ObjectFile:
    """Objects of a file of ours, or of others. What can't be read is counted, with the first reasons."""

    def __init__(self, path: Path, *, most: int = sys.maxsize) -> None:
        """`most`: bytes of an object; a larger one counts as not read. Raises ConfigurationError for a file of neither
        form."""
        self._path = path
        self._most = most
        self._form = form_of(path)
        self._now = time.time()
        """When objects count as published whose rows say no time."""
        self.rejects = 0
        self.reasons: list[str] = []
        self.bytes_read = 0
        self.entries: dict[str, Entries] = {}
        """Entries of registrations, as far as the file has told them."""
        self._made: dict[tuple[str, str, str], tuple[str, int]] = {}
        """For rows without a number: the registration made for them, and how many it has."""
        self._types: dict[str, tuple[str, str]] = {}
        """Types of registrations, by their first objects."""

    def batches(self) -> Iterator[list[Parcel]]:
        """Some objects at a time. Raises StudyError for a file that can't be read at all."""
        batch: list[Parcel] = []
        size = 0
        for where, row, problem in self._lines() if self._form == "lines" else self._parquet():
            try:
                if row is None:
                    raise StudyError(problem)
                parcel = self._parcel_of(row)
            except JbiError as exc:
                self._reject(where, exc.message)
                continue
            if batch and (len(batch) >= BATCH_ROWS or size + parcel.size > BATCH_BYTES):
                yield batch
                batch, size = [], 0
            batch.append(parcel)
            size += parcel.size
        if batch:
            yield batch

    def _reject(self, where: str, reason: str) -> None:
        self.rejects += 1
        if len(self.reasons) < 5:
            self.reasons.append(f"{where}: {reason[:300]}")

    def _parcel_of(self, row: ObjectRow) -> Parcel:
        """A row of ours has a type and a number: its metadata are as they were published, absent or no XML among them.
        Raises StudyError, MetadataError."""
        metadata = row.metadata.encode() if row.metadata is not None else row.metadata_base64 or b""
        if len(metadata) > MAX_METADATA_BYTES:
            raise StudyError(f"metadata of {len(metadata):,} bytes, {MAX_METADATA_BYTES:,} at most")
        root = None if row.type and row.sequence else parse_metadata(metadata)
        payload = row.payload.encode() if row.payload is not None else row.payload_base64
        length = row.payload_bytes if row.payload_bytes is not None else len(payload or b"")
        if payload is not None and len(payload) != length:
            raise StudyError(f"payload_bytes is {length}, but its payload has {len(payload)}")
        uid = row.object_id or dataset.id_of(row.type, row.version, row.time, metadata, payload)
        if not _ID.fullmatch(uid):
            raise StudyError(f"object_id {uid[:80]!r}: letters, digits and . _ - alone, 64 at most")
        type_ = row.type if root is None else row.type or str(root.tag)
        registration, sequence = (row.publisher, row.sequence) if row.sequence else self._numbered(row, type_, uid)
        if not 0 < len(registration) <= 64:
            raise StudyError(f"publisher of {len(registration)} characters: 1 to 64 with a sequence")
        if row.entries:
            self.entries.setdefault(registration, row.entries)
        own = "" if uid == object_id_of(registration, sequence) else uid
        published = self._now if row.time is None else row.time
        head = Head(
            own, registration, sequence, published, type_, row.version, metadata, length, row.hops, row.via,
            row.signature, row.attributes,
        )  # fmt: skip
        parcel = pack(head, payload or b"")
        if parcel.size > self._most:
            raise StudyError(
                f"object {uid} has {parcel.size:,} bytes, {self._most:,} at most go over the network: import it into"
                " the folder while no process has it open (--folder)"
            )
        if (of := self._types.setdefault(registration, (type_, row.version))) != (type_, row.version):
            raise StudyError(f"its registration {registration} is of {' '.join(of)}, not of {type_} {row.version}")
        return Parcel.received(b"".join(map(bytes, parcel.parts)))

    def _numbered(self, row: ObjectRow, type_: str, uid: str) -> tuple[str, int]:
        """Rows of others have no number: one in a registration that is made of them, the same whenever they come."""
        key = row.publisher, type_, row.version
        name, count = self._made.get(key) or (f"import-{dataset.hashed(repr((*key, uid)).encode()):015x}", 0)
        self._made[key] = name, count + 1
        return name, count + 1

    def _lines(self) -> Iterator[tuple[str, ObjectRow | None, str]]:
        try:
            with self._path.open("rb") as file:
                number = 0
                while line := file.readline(MAX_LINE):
                    number += 1
                    self.bytes_read += len(line)
                    where = f"line {number}"
                    if len(line) == MAX_LINE and not line.endswith(b"\n"):
                        while line and not line.endswith(b"\n"):
                            line = file.readline(MAX_LINE)
                            self.bytes_read += len(line)
                        yield where, None, f"has more than {MAX_LINE:,} bytes"
                    elif line.strip():
                        yield where, *_decoded(line)
        except OSError as exc:
            raise StudyError(f"{self._path} can't be read: {exc.strerror}") from exc

    def _parquet(self) -> Iterator[tuple[str, ObjectRow | None, str]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self._path) as file:
                known = dataset.check_columns(file.schema_arrow, "publications", str(self._path))
                own = [name for name in IdentityColumns.__struct_fields__ if name in file.schema_arrow.names]
                number = 0
                for batch in file.iter_batches(BATCH_ROWS, columns=[*known, *own]):
                    beside = batch.select(own).to_pylist() if own else [{}] * batch.num_rows
                    for publication, fields in zip(dataset.publications_of(batch), beside, strict=True):
                        number += 1
                        yield f"row {number}", *_of_fields(publication, fields)
                self.bytes_read = self._path.stat().st_size
        except (OSError, pa.ArrowException, UnicodeDecodeError) as exc:
            raise StudyError(f"{self._path} is not Parquet that can be read: {str(exc)[:300]}") from exc


def _decoded(line: bytes) -> tuple[ObjectRow | None, str]:
    try:
        return _decode(line), ""
    except dataset.UNREADABLE as exc:
        why = str(exc)
    try:  # null is what is not there, as in a column of Parquet
        said = _decode_any(line)
        return converted({name: value for name, value in said.items() if value is not None}, ObjectRow), ""
    except dataset.UNREADABLE:
        return None, why


def _of_fields(of: dataset.PublicationRow, beside: dict[str, Any]) -> tuple[ObjectRow | None, str]:
    """A row of Parquet: the columns of studies, and ours."""
    given = {name: getattr(of, name) for name in ("object_id", "type", "version", "time", "publisher", "payload_bytes")}
    own = {name: value for name, value in beside.items() if value is not None}
    try:
        if of.payload_bytes == dataset.NOT_SAID:
            return None, dataset.fault(of)
        if "entries" in own:
            own["entries"] = _decode_entries(own["entries"])
        if "attributes" in own:
            own["attributes"] = msgspec.json.decode(own["attributes"])
        return converted({**given, "metadata_base64": of.metadata, "payload_base64": of.payload, **own}, ObjectRow), ""
    except dataset.UNREADABLE as exc:
        return None, str(exc)
