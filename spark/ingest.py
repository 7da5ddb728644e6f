"""Publications and contracts that others have, row by row: XML documents, JSON lines, Parquet. What can't be read is
kept with its reason, and counted; nothing is left out silently.

    a folder of XML documents   each a publication: NAME.xml, or NAME.metadata.xml with NAME.payload beside it, as
                                `jbi subscribe --out` writes them
    JSON lines                  an object a line, its keys the columns; `payload_base64` for a payload that is no text
    Parquet                     a file, or a folder of files, with the columns
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, JbiError, StudyError
from jbi_pubsub.core.xml import MAX_METADATA_BYTES, MAX_XML_PAYLOAD_BYTES, Element, parse_metadata, to_bytes
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.spark import dataset, passes
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, Reject, hashed
from jbi_pubsub.spark.judging import Judge

Form = Literal["xml", "lines", "parquet"]
ENDINGS: Final[dict[str, Form]] = {
    ".xml": "xml", ".jsonl": "lines", ".ndjson": "lines", ".json": "lines", ".parquet": "parquet",
}  # fmt: skip
MAX_LINE: Final = MAX_XML_PAYLOAD_BYTES * 3 // 2
"""Bytes of a JSON line: the largest payload in base64, and metadata."""
MAX_KEPT: Final = 100_000
"""Rejects of an input; one with more is something else."""
METADATA, PAYLOAD = ".metadata.xml", ".payload"
"""Endings of what `jbi subscribe --out` writes."""


class DocumentDescription(msgspec.Struct, frozen=True):
    """Description of a document: its type, and the entries of its invariant part."""

    type: str
    version: str
    entries: tuple[EntryRep, ...]


Describe = Callable[[Element], DocumentDescription]
"""By the type's schema. Raises MetadataError for a document that is not of the type."""


class PublicationLine(msgspec.Struct, frozen=True):
    """A line of JSON that is a publication. null is what is not there, as in a column of Parquet; but a line that names
    `payload_bytes` says it, or has a payload."""

    metadata: str
    object_id: str | None = None
    type: str | None = None
    version: str | None = None
    time: Annotated[float, msgspec.Meta(ge=0)] | None = None
    publisher: str | None = None
    payload_bytes: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType | None = msgspec.UNSET
    payload: str | None = None
    payload_base64: bytes | None = None


class Intake:
    """Reads an input. `rejects` are what it could not; `registrations` those that were made for what it could."""

    def __init__(self, describe: Describe | None = None, most: int = -1) -> None:
        """Without `describe` a document's type is what its row says, or its root's name. More than `most` rejects (-1:
        any number) are a StudyError."""
        self.rejects: list[Reject] = []
        self.registrations: dict[str, RegistrationRow] = {}
        self._describe = describe
        self._most = most
        self.known: set[str] | None = None
        """Registrations that publications have to be of one of; None: of any. Not asked with `describe`."""

    def publications(self, source: Path, form: Form, leave: Collection[Path] = ()) -> Iterator[PublicationRow]:
        """The publications of `source`; of a folder the files in `leave` are something else. Raises StudyError for an
        input that is none, or empty, or has other columns."""
        read = {"xml": self._documents, "lines": self._lines, "parquet": self._parquet}[form]
        count = len(self.rejects)
        paths = _without(self._below(source) if source.is_dir() else [source], leave)
        if source.is_dir() and form != "xml":  # among documents, what is none is told
            paths = [path for path in paths if _form(path) == form]
        for each in read(source, paths):
            count += 1
            found = self._checked(each)
            if found is not None:
                yield found
        if count == len(self.rejects) == 0:
            raise StudyError(f"{source} is empty", hint="Give something to study")

    def contracts(self, table: str, source: Path) -> tuple[Any, ...]:
        """Registrations or subscriptions of a file. Raises StudyError."""
        form = form_of(source)
        if form == "xml":
            raise StudyError(f"{source}: {table} are JSON lines or Parquet")
        rows = self._rows(source, table) if form == "lines" else passes.rows_in(source, table)
        found: list[Reject] = []
        contracts = tuple(dataset.contracts_of(rows, table, found))
        for each in found:
            self.reject(each.table, each.row, each.reason)
        return contracts

    def reject(self, table: str, row: str, reason: str) -> None:
        """Keep what could not be read. Raises StudyError for one too many."""
        self.rejects.append(Reject(table, dataset.sayable(row, 200), dataset.sayable(reason, 500)))
        most = self._most if 0 <= self._most < MAX_KEPT else MAX_KEPT
        if len(self.rejects) > most:
            raise StudyError(
                f"more than {most:,} rows could not be read; the first, of {self.rejects[0].table}: "
                f"{self.rejects[0].row}: {self.rejects[0].reason}"[:600],
                hint="Correct the input, or raise --max-rejects",
                rejected=len(self.rejects),
            )

    def _checked(self, given: PublicationRow) -> PublicationRow | None:
        """With type and registration; None for one that no delegate would take."""
        try:
            if wrong := dataset.fault(given):
                raise StudyError(wrong)
            root = parse_metadata(given.metadata)
            if self._describe is not None:
                return self._registered(given, self._describe(root))
            type_ = given.type or str(root.tag).rpartition("}")[2]
            publisher = given.publisher or type_
            if self.known is not None and publisher not in self.known:
                raise StudyError(
                    f"registration {publisher[:100]!r} is not among the contracts"
                    + ("" if given.publisher else ": there is no `publisher`, so its type is used instead")
                )
        except JbiError as error:
            self.reject("publications", given.object_id, error.message)
            return None
        return msgspec.structs.replace(given, type=type_, publisher=publisher)

    def _registered(self, given: PublicationRow, what: DocumentDescription) -> PublicationRow:
        """Those of equal invariants, from one publisher, are of one registration."""
        uid = f"of-{hashed(msgspec.msgpack.encode((given.publisher, what))):015x}"
        if uid not in self.registrations:
            if len(self.registrations) >= dataset.MAX_CONTRACTS:
                raise StudyError(f"more than {dataset.MAX_CONTRACTS:,} different invariants")
            self.registrations[uid] = RegistrationRow(
                registration=uid, publisher=given.publisher, type=what.type, version=what.version, entries=what.entries
            )
        return msgspec.structs.replace(given, type=what.type, version=what.version, publisher=uid)

    def _documents(self, source: Path, paths: Sequence[Path]) -> Iterator[PublicationRow]:
        for path in paths:
            name = str(path.relative_to(source)) if source.is_dir() else path.name
            try:
                has_metadata = path.with_suffix(METADATA).is_file()
                if path.is_dir() or (has_metadata and path.suffix == PAYLOAD):
                    continue  # what is no document: a payload is read with its metadata
                if has_metadata and path.suffix == ".xml":
                    self.reject("publications", name, f"has the id of {path.stem}{METADATA} next to it")
                elif path.suffix.lower() != ".xml" or not path.is_file():
                    self.reject("publications", name, "is not a .xml file")
                elif path.stat().st_size > MAX_METADATA_BYTES:
                    self.reject("publications", name, f"has more than {MAX_METADATA_BYTES:,} bytes, which is the limit")
                else:
                    yield _document(path, name)
            except OSError as error:
                self.reject("publications", name, f"can't be read: {error.strerror}")

    def _below(self, source: Path) -> list[Path]:
        """The files in a folder and its folders; one that can't be read is a reject."""

        def note(error: OSError) -> None:
            self.reject("publications", str(error.filename), f"can't be read: {error.strerror}")

        walked = os.walk(source, onerror=note)
        return sorted(Path(folder) / name for folder, _, names in walked for name in names)

    def _lines(self, _source: Path, paths: Sequence[Path]) -> Iterator[PublicationRow]:
        for path in paths:
            for number, line in self._read_lines(path, "publications"):
                try:
                    found = _decode_line(line)
                except dataset.UNREADABLE as error:
                    self.reject("publications", number, str(error))
                    continue
                yield _of_line(found, number)

    def _rows(self, source: Path, table: str) -> Iterator[dict[str, Any]]:
        for number, line in self._read_lines(source, table):
            try:
                yield _decode_row(line)
            except dataset.UNREADABLE as error:
                self.reject(table, number, str(error))

    def _read_lines(self, path: Path, table: str) -> Iterator[tuple[str, bytes]]:
        """(where, line) of those that are not blank and not too long."""
        try:
            with path.open("rb") as opened:
                number = 0
                while line := opened.readline(MAX_LINE + 1):
                    number += 1
                    if len(line) > MAX_LINE:
                        self.reject(table, f"{path.name} line {number}", f"has more than {MAX_LINE:,} bytes")
                        while line and not line.endswith(b"\n"):
                            line = opened.readline(MAX_LINE)
                    elif (line := line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).strip():
                        yield f"{path.name} line {number}", line
        except OSError as error:
            raise StudyError(f"{path} can't be read: {error.strerror}") from error

    def _parquet(self, source: Path, paths: Sequence[Path]) -> Iterator[PublicationRow]:
        if not paths:
            passes.parquet_files(source)  # says so
        for path in paths:
            try:
                yield from passes.publications_in(path)
            except StudyError as error:  # of a hundred files one that is cut short is no reason to leave the others
                if len(paths) == 1:
                    raise
                self.reject("publications", path.name, error.message)


def form_of(source: Path, leave: Collection[Path] = ()) -> Form:
    """Form of an input, by the endings of its files but those in `leave`. Raises StudyError for what is none of ours,
    or several things."""
    if source.is_dir() and (source / dataset.MANIFEST).is_file():
        raise ConfigurationError(f"{source} is a data set, or a result", hint="Studies take data sets as they are")
    paths = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
    forms = {form for path in _without(paths, leave) if (form := _form(path)) is not None}
    if len(forms) == 1:
        return forms.pop()
    names = ", ".join(sorted({path.name for path in paths})[:5]) or "nothing"
    held = f"holds {' and '.join(sorted(forms))}" if forms else f"holds {names[:200]}"
    raise StudyError(
        f"{source} {held}: not XML documents, JSON lines, or Parquet alone",
        hint=f"Files end in {', '.join(ENDINGS)}; say which with --format",
    )


def sound(contracts: Contracts, intake: Intake) -> Contracts:
    """Without the subscriptions that no delegate would take, which are rejects."""
    bad = set()
    for reject in Judge(contracts).rejects:
        bad.add(reject.row)
        intake.reject(reject.table, reject.row, reject.reason)
    kept = tuple(each for each in contracts.subscriptions if each.subscription not in bad)
    return Contracts(contracts.registrations, kept)


def _without(paths: Iterable[Path], leave: Collection[Path]) -> list[Path]:
    """The files that are neither among those that are left out nor below them, whatever links lead there."""
    left = [Path(os.path.realpath(path)) for path in leave]
    return [path for path in paths if not any(Path(os.path.realpath(path)).is_relative_to(each) for each in left)]


def _form(path: Path) -> Form | None:
    return ENDINGS.get(path.suffix.lower())


def _document(path: Path, name: str) -> PublicationRow:
    payload: bytes | None = None
    size = 0
    stem = name.removesuffix(".xml").removesuffix(".metadata")
    beside = path.with_name(path.name.removesuffix(METADATA) + PAYLOAD)
    if path.name.endswith(METADATA) and beside.is_file():
        size = beside.stat().st_size
        payload = beside.read_bytes() if size <= MAX_XML_PAYLOAD_BYTES else None  # a larger one is not cut by filters
    size = size if payload is None else len(payload)
    return PublicationRow(stem, "", "1.0", path.stat().st_mtime, "", path.read_bytes(), size, payload)


def _of_line(line: PublicationLine, where: str) -> PublicationRow:
    payload = line.payload_base64 if line.payload is None else line.payload.encode()
    size = line.payload_bytes
    if size is msgspec.UNSET or (size is None and payload is not None):
        size = len(payload or b"")
    return PublicationRow(
        line.object_id or where,
        line.type or "",
        line.version or "1.0",
        line.time,
        line.publisher or "",
        to_bytes(line.metadata),
        dataset.NOT_SAID if size is None else size,
        payload,
    )


_decode_line: Final = msgspec.json.Decoder(PublicationLine).decode
_decode_row: Final = msgspec.json.Decoder(dict[str, Any]).decode
