"""Where a type repository keeps its descriptors: rows of an SQLite file, and schema documents as files that rows name.

Rules:
- A folder holds `types.db` and each document of a schema as `<SHA-256 of its bytes>.xsd`. Both copied elsewhere, while
  nobody writes, are the same repository: there is no log beside them (journal_mode DELETE).
- Documents are on disk before the row that names them is, and go after it: a kill in the middle leaves a document that
  nobody names, never a row without its document. A change is one transaction with its line of history (synchronous
  FULL).
- What is read is checked: rows by their checksums, documents by their names, properties by their digests. What is
  damaged is named, with its file, and the rest goes on; a document that is added again is mended.
- One process has a folder for itself (flock); any number read it (`readonly`).

A plug-in needs no rules of its own: those are in registry.py, above any TypeCatalogue.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from jbi_pubsub.core.descriptors import MAX_HISTORY, Descriptor, Key, Kind, Property, TypeChange, unknown
from jbi_pubsub.core.errors import OversizeError, StorageError
from jbi_pubsub.core.files import TEMPORARY, locked, locker, written
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.sqlite import transaction

APPLICATION_ID: Final = 0x4A425459
"""Marks the file as ours (SQLite header, offset 68): "JBTY"."""
VERSION: Final = 1
"""Version of the tables (SQLite user_version)."""
FILE: Final = "types.db"
LOCK: Final = "LOCK"
MAX_BYTES: Final = 4 << 30
"""Bound of the SQLite file: 10,000 types with 100 properties each that are small, or 1,000 of the largest."""
MAX_DOCUMENTS_BYTES: Final = 2 << 30
"""Bytes of the schema documents of one repository: 10,000 types of 200 KB, or 1,000 of the largest looked at."""
MAX_CHANGES: Final = 100_000
"""Changes of all types that are remembered, also of those that are gone; of more the first are forgotten."""
BUSY_SECONDS: Final = 5.0
"""For a reader of another process to end."""

_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")
_SCHEMA: Final = f"""
BEGIN;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
CREATE TABLE types (
    kind TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, digest TEXT NOT NULL, parent_name TEXT,
    parent_version TEXT, state TEXT NOT NULL, created REAL NOT NULL, by TEXT NOT NULL, description TEXT NOT NULL,
    main TEXT NOT NULL, given_name TEXT NOT NULL, given_version TEXT NOT NULL, marks BLOB NOT NULL,
    checksum INTEGER NOT NULL, PRIMARY KEY (kind, name, version)
) WITHOUT ROWID;
CREATE TABLE documents (
    kind TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, position INTEGER NOT NULL, document TEXT NOT NULL,
    sha256 TEXT NOT NULL, PRIMARY KEY (kind, name, version, position)
) WITHOUT ROWID;
CREATE INDEX documents_by_file ON documents (sha256);
CREATE TABLE properties (
    kind TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, property TEXT NOT NULL, size INTEGER NOT NULL,
    sha256 TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (kind, name, version, property)
) WITHOUT ROWID;
CREATE TABLE history (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, at REAL NOT NULL,
    who TEXT NOT NULL, what TEXT NOT NULL
);
CREATE INDEX history_by_type ON history (kind, name, version, number);
COMMIT;
"""
_ROW: Final = (
    "kind, name, version, digest, parent_name, parent_version, state, created, by, description, main, given_name,"
    " given_version, marks, checksum"
)
_OF: Final = "kind = ? AND name = ? AND version = ?"

_HINTS: Final = {
    "SQLITE_FULL": "Free some space",
    "SQLITE_BUSY": "Somebody reads it without an end: try again",
    "SQLITE_READONLY": "A change was cut off: the next process that opens it for changes repairs it, a delegate too",
    "": "Check the disk, and who may write there",
}

_Row = tuple[Any, ...]
_Documents = tuple[tuple[str, str], ...]
"""(name in the bundle, SHA-256) in order."""


class TypeCatalogue(Protocol):
    """A store of descriptors with their schemas, properties and history: what a plug-in offers. Each change is done
    whole, with its line of history, or not at all; what `put` has returned from is not lost. One caller at a time."""

    def find(self, key: Key) -> Descriptor | None:
        """Raises StorageError for one that is damaged: it is no unknown one."""
        ...

    def all(self) -> tuple[Descriptor, ...]:
        """All but those that are damaged, which `faults` tells."""
        ...

    def bundle(self, key: Key) -> SchemaBundle:
        """As it was put, byte for byte. Raises UnknownUidError, and StorageError for a damaged one."""
        ...

    def put(self, descriptor: Descriptor, change: TypeChange, bundle: SchemaBundle | None = None) -> None:
        """Add one, with its schema, or replace what is said of one. Raises OversizeError when there is no room."""
        ...

    def drop(self, key: Key, change: TypeChange) -> None:
        """With its schema and properties; the history stays."""
        ...

    def properties(self, key: Key) -> tuple[Property, ...]:
        """By name."""
        ...

    def property(self, key: Key, name: str) -> bytes | None:
        """None for one that is not there. Raises StorageError for a damaged one."""
        ...

    def put_property(self, key: Key, name: str, data: bytes | None, change: TypeChange) -> None:
        """Add, replace or (None) remove one."""
        ...

    def history(self, key: Key) -> tuple[TypeChange, ...]:
        """The last MAX_HISTORY changes, in order."""
        ...

    def faults(self) -> tuple[str, ...]:
        """Faults of what is damaged, file by file."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class MemoryTypes:
    """A TypeCatalogue that ends with its process."""

    def __init__(self) -> None:
        self._held: dict[Key, tuple[Descriptor, SchemaBundle]] = {}
        self._properties: dict[Key, dict[str, bytes]] = {}
        self._history: dict[Key, list[TypeChange]] = {}

    def find(self, key: Key) -> Descriptor | None:
        """See TypeCatalogue."""
        found = self._held.get(key)
        return found[0] if found is not None else None

    def all(self) -> tuple[Descriptor, ...]:
        """See TypeCatalogue."""
        return tuple(self._held[key][0] for key in sorted(self._held))

    def bundle(self, key: Key) -> SchemaBundle:
        """See TypeCatalogue."""
        if key not in self._held:
            raise unknown(key)
        return self._held[key][1]

    def put(self, descriptor: Descriptor, change: TypeChange, bundle: SchemaBundle | None = None) -> None:
        """See TypeCatalogue."""
        if bundle is not None:
            _check_room(sum(_size(each) for _, each in self._held.values()), bundle)
        self._held[descriptor.key] = descriptor, bundle or self.bundle(descriptor.key)
        self._note(descriptor.key, change)

    def drop(self, key: Key, change: TypeChange) -> None:
        """See TypeCatalogue."""
        self._held.pop(key, None)
        self._properties.pop(key, None)
        self._note(key, change)

    def properties(self, key: Key) -> tuple[Property, ...]:
        """See TypeCatalogue."""
        return tuple(described(name, data) for name, data in sorted(self._properties.get(key, {}).items()))

    def property(self, key: Key, name: str) -> bytes | None:
        """See TypeCatalogue."""
        return self._properties.get(key, {}).get(name)

    def put_property(self, key: Key, name: str, data: bytes | None, change: TypeChange) -> None:
        """See TypeCatalogue."""
        held = self._properties.setdefault(key, {})
        if data is None:
            held.pop(name, None)
        else:
            held[name] = data
        self._note(key, change)

    def history(self, key: Key) -> tuple[TypeChange, ...]:
        """See TypeCatalogue."""
        return tuple(self._history.get(key, ()))

    def _note(self, key: Key, change: TypeChange) -> None:
        self._history[key] = [*self._history.pop(key, ()), change][-MAX_HISTORY:]  # changed last
        while sum(map(len, self._history.values())) > MAX_CHANGES:
            del self._history[next(iter(self._history))]

    def faults(self) -> tuple[str, ...]:
        """Memory has none."""
        return ()

    def close(self) -> None:
        """There is nothing to end."""


class DocumentFolder:
    """Documents of schemas in a folder, each in a file that is called by its SHA-256."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self) -> int:
        """Bytes of all of them."""
        return sum(path.stat().st_size for path in self._folder.glob("*.xsd"))

    def read(self, sha: str, key: Key) -> bytes:
        """One of that schema. Raises StorageError for one that is damaged."""
        path = self._folder / f"{sha}.xsd"
        cause = None
        try:
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == sha:
                return data
            why = "is damaged: its bytes are others than its name says"
        except OSError as exc:
            why, cause = f"can't be read: {exc.strerror}", exc
        raise StorageError(
            f"{path}, a document of {key[0]} {key[1]}, {why}",
            hint="Put it back from a copy of the folder, or add the schema again",
            path=str(path),
        ) from cause

    def store(self, data: bytes) -> str:
        """Write a document, whole and on disk when this returns, unless it is there; its SHA-256."""
        sha = hashlib.sha256(data).hexdigest()
        path = self._folder / f"{sha}.xsd"
        with contextlib.suppress(OSError):  # none yet
            if hashlib.sha256(path.read_bytes()).hexdigest() == sha:
                return sha
        with written(path) as file:
            file.write(data)
        return sha

    def remove(self, sha: str) -> None:
        """Take one away, if it is there."""
        (self._folder / f"{sha}.xsd").unlink(missing_ok=True)


class FolderTypes:
    """A TypeCatalogue in a folder (see the module's rules). Raises StorageError for a folder that can't be opened, is
    in use, or is of something else."""

    def __init__(self, folder: Path, *, readonly: bool = False, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self._path = folder / FILE
        self._files = DocumentFolder(folder)
        self._held: int | None = None
        with self._disk():
            if readonly:
                if not self._path.is_file():
                    raise StorageError(
                        f"{folder} holds no type repository",
                        hint="`jbi types add --folder` makes one",
                        path=str(folder),
                    )
                self._base = _connected(f"{self._path.absolute().as_uri()}?mode=ro")
            else:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._held = self._alone()
            try:
                if not readonly:
                    os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                    self._base = _connected(self._path.absolute().as_uri())
                self._set_up(readonly, max_bytes)
            except BaseException:
                self.close()
                raise

    def find(self, key: Key) -> Descriptor | None:
        """See TypeCatalogue."""
        with self._disk():
            row = self._row(key)
            return None if row is None else self._read(row)

    def all(self) -> tuple[Descriptor, ...]:
        """See TypeCatalogue."""
        with self._disk():
            found = []
            for row in self._rows():
                with contextlib.suppress(StorageError):  # `faults` tells it
                    found.append(self._read(row))
            return tuple(found)

    def bundle(self, key: Key) -> SchemaBundle:
        """See TypeCatalogue."""
        with self._disk():
            row = self._row(key)
            if row is None:
                raise unknown(key)
            self._read(row)
            main, name, version, marks = row[10:14]
            documents = []
            for document, sha in self._documents(key):
                if _DIGEST.match(sha) is None:
                    raise self._damaged(f"a document of {key[1]} is called {sha[:80]!r}")
                documents.append((document, self._files.read(sha, key)))
            return SchemaBundle(str(main), tuple(documents), bytes(marks), TypeName(str(name), str(version)))

    def put(self, descriptor: Descriptor, change: TypeChange, bundle: SchemaBundle | None = None) -> None:
        """See TypeCatalogue."""
        key = descriptor.key
        with self._disk():
            before = self._row(key)
            if bundle is None:
                if before is None:
                    raise unknown(key)
                documents, rest = self._documents(key), before[10:14]
            else:
                _check_room(self._files.size(), bundle)
                documents = tuple((name, self._files.store(data)) for name, data in bundle.documents)
                rest = (bundle.main, bundle.type.name, bundle.type.version, bundle.marks)
            old = self._documents(key)
            with transaction(self._base):
                self._write(descriptor, rest, documents)
                self._note(key, change)
            self._tidy(sha for _, sha in old)

    def drop(self, key: Key, change: TypeChange) -> None:
        """See TypeCatalogue."""
        with self._disk():
            old = self._documents(key)
            with transaction(self._base):
                for table in ("types", "documents", "properties"):
                    self._base.execute(f"DELETE FROM {table} WHERE {_OF}", _of(key))
                self._note(key, change)
            self._tidy(sha for _, sha in old)

    def properties(self, key: Key) -> tuple[Property, ...]:
        """See TypeCatalogue."""
        with self._disk():
            rows = self._base.execute(
                f"SELECT property, size, sha256 FROM properties WHERE {_OF} ORDER BY property",
                _of(key),
            )
            return tuple(Property(*row) for row in rows)

    def property(self, key: Key, name: str) -> bytes | None:
        """See TypeCatalogue."""
        with self._disk():
            row = self._base.execute(
                f"SELECT data, sha256 FROM properties WHERE {_OF} AND property = ?",
                (*_of(key), name),
            ).fetchone()
            if row is None:
                return None
            if hashlib.sha256(row[0]).hexdigest() != row[1]:
                raise self._damaged(f"property {name} of {key[1]} does not fit its digest")
            return bytes(row[0])

    def put_property(self, key: Key, name: str, data: bytes | None, change: TypeChange) -> None:
        """See TypeCatalogue."""
        with self._disk(), transaction(self._base):
            if data is None:
                self._base.execute(f"DELETE FROM properties WHERE {_OF} AND property = ?", (*_of(key), name))
            else:
                told = described(name, data)
                self._base.execute(
                    "INSERT OR REPLACE INTO properties VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*_of(key), name, told.size, told.digest, data),
                )
            self._note(key, change)

    def history(self, key: Key) -> tuple[TypeChange, ...]:
        """See TypeCatalogue."""
        with self._disk():
            rows = self._base.execute(f"SELECT at, who, what FROM history WHERE {_OF} ORDER BY number", _of(key))
            return tuple(TypeChange(*row) for row in rows)

    def faults(self) -> tuple[str, ...]:
        """See TypeCatalogue. Reads all that there is."""
        found: list[str] = []
        with self._disk():
            for row in self._rows():
                key = _key(row)
                try:
                    self.bundle(key)
                    for each in self.properties(key):
                        self.property(key, each.name)
                except StorageError as exc:
                    found.append(exc.message)
        return tuple(dict.fromkeys(found))

    def close(self) -> None:
        """See TypeCatalogue."""
        base = getattr(self, "_base", None)
        if base is not None:
            base.close()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    # -- opening ------------------------------------------------------------------------------------------------

    def _alone(self) -> int:
        """The folder for this process, for as long as what is returned is open."""
        path = self.folder / LOCK
        try:
            return locked(path)
        except BlockingIOError as exc:
            raise StorageError(
                f"type repository {self.folder} is in use by process {locker(path) or 'unknown'}",
                hint="Ask the delegate that has it open (--at HOST:PORT), or stop it",
                path=str(self.folder),
            ) from exc

    def _set_up(self, readonly: bool, max_bytes: int) -> None:
        base = self._base
        kind = base.execute("PRAGMA application_id").fetchone()[0]
        version = base.execute("PRAGMA user_version").fetchone()[0]
        is_new = not kind and not base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if is_new and not readonly:
            base.executescript(_SCHEMA)
        elif kind != APPLICATION_ID:
            raise self._refused("is not a type repository", "Give another folder")
        elif version != VERSION:
            raise self._refused(f"is of version {version}, this is {VERSION}", "Use the version that has written it")
        if (said := base.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise self._damaged(said)
        if not readonly:
            base.execute("PRAGMA journal_mode = DELETE")
            base.execute("PRAGMA synchronous = FULL")
            size = base.execute("PRAGMA page_size").fetchone()[0]
            base.execute(f"PRAGMA max_page_count = {max(1, max_bytes // size)}")
            for left in self.folder.glob(f"*{TEMPORARY}"):
                left.unlink(missing_ok=True)

    # -- rows ---------------------------------------------------------------------------------------------------

    def _row(self, key: Key) -> _Row | None:
        found: _Row | None = self._base.execute(f"SELECT {_ROW} FROM types WHERE {_OF}", _of(key)).fetchone()
        return found

    def _rows(self) -> list[_Row]:
        return self._base.execute(f"SELECT {_ROW} FROM types ORDER BY kind, name, version").fetchall()

    def _documents(self, key: Key) -> _Documents:
        return tuple(
            self._base.execute(f"SELECT document, sha256 FROM documents WHERE {_OF} ORDER BY position", _of(key))
        )

    def _read(self, row: _Row) -> Descriptor:
        """The descriptor of a row. Raises StorageError for a damaged one."""
        key = _key(row)
        if row[-1] != _checksum(row[:-1], self._documents(key)):
            raise self._damaged(f"the row of {key[0]} {key[1]} does not fit its checksum")
        _, _, _, digest, above, above_version, state, created, by, description = row[:10]
        parent = TypeName(str(above), str(above_version)) if above is not None else None
        return Descriptor(
            key[0],
            key[1],
            str(digest),
            parent,
            state,
            float(created),
            str(by),
            str(description),
        )

    def _write(self, told: Descriptor, rest: Sequence[object], documents: _Documents) -> None:
        parent = (told.parent.name, told.parent.version) if told.parent is not None else (None, None)
        row = (*_of(told.key), told.digest, *parent, told.state, told.created, told.by, told.description, *rest)
        marks = ", ".join("?" * (len(row) + 1))
        self._base.execute(
            f"INSERT OR REPLACE INTO types ({_ROW}) VALUES ({marks})",
            (*row, _checksum(row, documents)),
        )
        self._base.execute(f"DELETE FROM documents WHERE {_OF}", _of(told.key))
        self._base.executemany(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)",
            [(*_of(told.key), number, name, sha) for number, (name, sha) in enumerate(documents)],
        )

    def _note(self, key: Key, change: TypeChange) -> None:
        self._base.execute(
            "INSERT INTO history (kind, name, version, at, who, what) VALUES (?, ?, ?, ?, ?, ?)",
            (*_of(key), change.when, change.who, change.what),
        )
        self._base.execute(
            f"DELETE FROM history WHERE {_OF} AND number <= (SELECT number FROM history WHERE {_OF}"
            f" ORDER BY number DESC LIMIT 1 OFFSET {MAX_HISTORY})",
            (*_of(key), *_of(key)),
        )
        self._base.execute("DELETE FROM history WHERE number <= (SELECT max(number) FROM history) - ?", (MAX_CHANGES,))

    def _tidy(self, digests: Iterator[str]) -> None:
        """Take documents away that no row names any more."""
        for sha in digests:
            used = self._base.execute("SELECT 1 FROM documents WHERE sha256 = ? LIMIT 1", (sha,)).fetchone()
            if used is None and _DIGEST.match(sha):
                self._files.remove(sha)

    # -- errors -------------------------------------------------------------------------------------------------

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Raise what the disk and SQLite say as StorageError."""
        try:
            yield
        except StorageError:
            raise  # is an OSError, and says all of it already
        except sqlite3.Error as exc:
            name = getattr(exc, "sqlite_errorname", "")
            if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
                raise self._damaged(str(exc)) from exc
            hint = next((said for code, said in _HINTS.items() if name.startswith(code)), _HINTS[""])
            raise StorageError(f"type repository {self._path}: {exc}", hint=hint, path=str(self._path)) from exc
        except UnicodeError as exc:
            raise self._damaged(str(exc)) from exc
        except OSError as exc:
            raise StorageError(
                f"type repository {exc.filename or self.folder}: {exc.strerror or exc}",
                hint="Check the disk, and who may write there",
                path=str(self.folder),
            ) from exc

    def _refused(self, why: str, hint: str) -> StorageError:
        return StorageError(f"{self._path} {why}", hint=hint, path=str(self._path))

    def _damaged(self, why: str) -> StorageError:
        return StorageError(
            f"{self._path} is damaged: {why}", hint="Put it back from a copy of the folder", path=str(self._path)
        )


def _size(bundle: SchemaBundle) -> int:
    return sum(len(data) for _, data in bundle.documents)


def _check_room(held: int, bundle: SchemaBundle) -> None:
    if held + _size(bundle) > MAX_DOCUMENTS_BYTES:
        raise OversizeError(
            f"the type repository holds {held} bytes of schema documents, its limit is {MAX_DOCUMENTS_BYTES}",
            hint="Remove types that nobody uses",
            limit=MAX_DOCUMENTS_BYTES,
        )


def described(name: str, data: bytes) -> Property:
    """A property."""
    return Property(name, len(data), hashlib.sha256(data).hexdigest())


def _connected(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, uri=True, check_same_thread=False, isolation_level=None, timeout=BUSY_SECONDS)


def _of(key: Key) -> tuple[str, str, str]:
    return key[0], key[1].name, key[1].version


def _key(row: _Row) -> Key:
    kind: Kind = "attribute" if row[0] == "attribute" else "type"
    return kind, TypeName(str(row[1]), str(row[2]))


def _checksum(row: Sequence[object], documents: _Documents) -> int:
    """CRC-32 of all that is said of a type: any flipped bit, and nearly anything else, changes it."""
    return zlib.crc32(repr((tuple(row), documents)).encode())
