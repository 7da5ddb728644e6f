"""The index of an archive: which objects may match, told from the values of their leaves. Derived: made anew at will.

The only duckdb; `held.py` knows the types, `tables.py` fills what there is of them, `sql.py` puts the questions. What
must not be lost is in the log; how far the index has come stands in the same transaction as the rows.

Rules:
- Constants are bound parameters, tables and columns have numbers: no text of anybody's ever stands in SQL.
- The database reads and writes its own files alone, loads nothing, and takes no more memory than it is given.
- A file that can't be opened, is of another archive or format, or knows more than the log, is thrown away.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.archive.held import LARGE, MORE, NUMBERS, TEXTS, TypeIndex
from jbi_pubsub.archive.marks import PositionMarks
from jbi_pubsub.archive.plan import Restriction, places
from jbi_pubsub.archive.query import CandidateCount, Candidates, CompiledScope, asked_of_scope
from jbi_pubsub.archive.sql import Select, among
from jbi_pubsub.archive.tables import COLUMNS, ENOUGH, ArchivedHead, TypeTables
from jbi_pubsub.archive.volume import OBJECT, Record
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, StorageError
from jbi_pubsub.core.history import MAX_POSITION, ExplanationStep, HistoryQuery, Order, Scope
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.xpath.language.terms import Where

FORMAT: Final = 2
"""Version of the tables; those of another one are made anew."""
NAME: Final = "index.duckdb"
SAID_MOST: Final = 400
"""Characters of what DuckDB says that are told."""
MEMORY: Final = 256 << 20
"""Bytes that the database may take."""
MAX_TYPES: Final = 1000
"""With tables of their own. Objects of further ones are in one table, and nothing is known of them but their bounds."""

_OTHERS: Final = ("", "others")
"""In the place of a type: those beyond MAX_TYPES. No type has an empty name."""


class DuckIndex:
    """See the module. One thread at a time, one process. All of it raises StorageError; then what was not done is as if
    it had not been begun."""

    def __init__(
        self,
        folder: Path,
        archive: bytes,
        end: int,
        *,
        columns: int = COLUMNS,
        memory: int = MEMORY,
        enough: int = ENOUGH,
    ) -> None:
        """In that folder, which is its own, of the archive with that id whose log ends at position `end`. `columns`:
        paths of a type that may have some; `enough`: objects of a type that are looked at before any has. Raises
        ConfigurationError without duckdb, StorageError where it can't be made or another process has it."""
        self._duckdb, self._numpy = _libraries()
        self._path = folder / NAME
        self._archive = archive
        self._tables = TypeTables(self._numpy, columns=columns, enough=enough)
        self._memory = memory
        self._connection: Any = None
        self.why_anew = ""
        """Why what was there had to be thrown away."""
        self.trouble = ""
        """Why it can't be read, until it is made anew."""
        self._position = 0
        self._marks = PositionMarks()
        self._types: dict[tuple[str, str], TypeIndex] = {}
        self._registrations: dict[str, int] = {}
        try:
            folder.mkdir(mode=0o700, exist_ok=True)  # an archive's that was taken away is not made again
        except OSError as exc:
            raise StorageError(f"{folder} can't be made: {exc.strerror}", path=str(folder)) from exc
        self._open(end)

    @property
    def position(self) -> int:
        """All objects up to there are in it; 0 while it can't be read."""
        return 0 if self.trouble else self._position

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self._path.parent.glob(NAME + "*") if path.is_file())

    def add(self, records: Iterable[Record], up_to: int) -> None:
        """Take in the objects behind `position`, up to that one: all or none of them. What could not be read since is
        made anew: then `position` is 0, and nothing is taken in."""
        if self.trouble:
            self._anew(self.trouble)
            raise StorageError(f"{self._path} is built again: {self.why_anew}", path=str(self._path))
        by_type: dict[tuple[str, str], list[ArchivedHead]] = {}
        count = 0
        for record in records:
            if record.kind == OBJECT and record.position > self._position:
                try:
                    head = Parcel.received(record.data).head
                except ProtocolError:
                    continue  # no query finds it either
                by_type.setdefault((head.type_name, head.type_version), []).append((record, head))
                count += 1
        with self._transaction() as run:
            for name, objects in by_type.items():
                kind = self._type(run, name)
                registrations = [self._registration(run, head.registration) for _, head in objects]
                self._tables.add(run, kind, objects, registrations, is_known=kind is not self._types.get(_OTHERS))
            if rows := self._marks.add(up_to, count):
                run.execute("INSERT INTO marks VALUES (?, ?)", [up_to, rows])
            run.execute("UPDATE head SET position = ?", [max(up_to, self._position)])
        self._position = max(up_to, self._position)

    def forget(self, positions: Sequence[int]) -> None:
        """Objects that are no more, and types and registrations of which there is none any more."""
        with self._transaction() as run:
            types, ended = self._tables.forget(run, positions, [each.number for each in self._types.values()])
        self._types = {name: each for name, each in self._types.items() if each.number not in types}
        self._registrations = {uid: each for uid, each in self._registrations.items() if each not in ended}

    def window(self, after: int, up_to: int, rows: int, order: Order) -> tuple[int, int]:
        """See query.QueryIndex."""
        return self._marks.window(after, up_to, rows, order)

    def candidates(self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int) -> Candidates:
        """See query.QueryIndex."""
        made = self._made(asked, query, after, up_to)
        if made is None:
            return Candidates([], [])
        is_plain = made.exact in ("true", "false")
        columns = "pos" if is_plain else f"pos, ({made.exact}) IS TRUE AS exact"
        found = self._asked(made, f"SELECT {columns} FROM {made.rows}").fetchnumpy()  # noqa: S608  # numbers and our own words
        positions = self._numpy.ma.getdata(found["pos"])
        order = self._numpy.argsort(positions, kind="stable") if _is_mixed(positions) else slice(None)
        turned = slice(None, None, -1 if query.order == "newest" or query.latest_by else 1)
        positions = positions[order][turned].tolist()
        if is_plain:
            return Candidates(positions, [made.exact == "true"] * len(positions))
        return Candidates(positions, self._numpy.ma.getdata(found["exact"])[order][turned].tolist())

    def count(
        self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int, restricted: Restriction | None = None
    ) -> CandidateCount:
        """See query.QueryIndex; `restricted`: of these alone."""
        made = self._made(asked, query, after, up_to, restricted)
        if made is None:
            return CandidateCount(0, 0)
        counts = f"count(*), count(*) FILTER (({made.exact}) IS TRUE)"
        return CandidateCount(*self._asked(made, f"SELECT {counts} FROM {made.rows}").fetchone())  # noqa: S608  # numbers and our own words

    def latest(
        self, asked: CompiledScope, query: HistoryQuery, key: Where, after: int, up_to: int
    ) -> Sequence[int] | None:
        """See query.QueryIndex."""
        made = self._made(asked, query, after, up_to)
        if made is None:
            return []
        kind = self._of(asked.scope)
        if kind is None or kind is self._types.get(_OTHERS):
            return None
        found = places(key, kind.paths)
        if not found:
            return None if kind.has_open else []
        (path, *others), flags = found, kind.flags[found[0]]
        is_sure = made.exact == "true" and not kind.has_open and not kind.kinds_with([LARGE])
        if others or not is_sure or flags & MORE or kind.paths.is_inner(path):
            return None
        columns = [f"{name}{path}" for name, flag in (("n", NUMBERS), ("t", TEXTS)) if flags & flag]
        if not columns:
            return []
        there = " OR ".join(f"{column} IS NOT NULL" for column in columns)
        some = f" AND t{path} IS DISTINCT FROM ''" if flags & TEXTS else ""
        sql = f"SELECT max(pos) FROM {made.rows} AND ({there}){some} GROUP BY {', '.join(columns)}"  # noqa: S608  # numbers and our own words
        return [position for (position,) in self._asked(made, sql).fetchall()]

    def explain(
        self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int
    ) -> tuple[tuple[ExplanationStep, ...], int, bool]:
        """See query.QueryIndex."""
        scope = asked.scope
        known = self._of(scope)
        if known is None:
            return (), 0, True
        rule = asked_of_scope(Scope(scope.type, scope.where, scope.bound, scope.registrations))
        everything = self.count(rule, query, after, up_to)
        lets, made = known.restriction(rule), known.restriction(asked)
        steps = []
        for conjunct in made.conjuncts:
            those = tuple(conjunct.within(each) for each in lets.conjuncts) if scope.where else (conjunct,)
            within = Restriction(those, min(made.sizes, lets.sizes))
            found = self.count(rule if asked.is_everything else asked, query, after, up_to, within)
            words = *(on.words for on in conjunct.on), *(f"payload {test} {size:g}" for test, size in conjunct.payload)
            rows = found.exact if scope.where else found.candidates
            steps.append(ExplanationStep(scope.type, words, conjunct.why, rows))
        if scope.where:
            return tuple(steps), everything.exact, not any(step.left for step in steps)
        counted = self.count(asked, query, after, up_to)
        return tuple(steps), everything.candidates, counted.exact == counted.candidates

    def drop(self) -> None:
        """Throw all away, to be filled anew."""
        self._anew("it was asked for")

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- opening ------------------------------------------------------------------------------------------------

    def _open(self, end: int) -> None:
        is_there = self._path.exists()
        try:
            self._connection = _connected(self._duckdb, self._path, self._memory)
            if is_there:
                self._load()
        except self._duckdb.Error as exc:
            if "Could not set lock" in str(exc):
                raise StorageError(f"{self._path} is in use by another process", path=str(self._path)) from exc
            self._anew(_said(exc))
        except (msgspec.DecodeError, ValueError, LookupError, TypeError) as exc:
            self._anew(str(exc))
        else:
            if not is_there:
                self._make()
            elif self._position > end:
                self._anew(f"it knows of position {self._position}, the log ends at {end}")

    def _load(self) -> None:
        run = self._connection
        format_, archive, self._position = run.execute("SELECT format, archive, position FROM head").fetchone()
        if format_ != FORMAT or bytes(archive) != self._archive:
            raise ValueError("it is of another archive, or version")
        self._marks = PositionMarks(run.execute("SELECT position, rows FROM marks ORDER BY position").fetchall())
        self._types = {
            (name, version): TypeIndex(place, known)
            for place, name, version, known in run.execute("SELECT id, name, version, known FROM types").fetchall()
        }
        self._registrations = dict(run.execute("SELECT uid, id FROM registrations ORDER BY id").fetchall())

    def _make(self) -> None:
        self._position, self._marks = 0, PositionMarks()
        self._types, self._registrations = {}, {}
        with self._guarded():
            run = self._connection
            run.execute("BEGIN")
            run.execute("CREATE TABLE head(format INTEGER, archive BLOB, position UBIGINT)")
            run.execute("INSERT INTO head VALUES (?, ?, 0)", [FORMAT, self._archive])
            run.execute("CREATE TABLE marks(position UBIGINT, rows UBIGINT)")
            run.execute("CREATE TABLE types(id INTEGER, name VARCHAR, version VARCHAR, known BLOB)")
            run.execute("CREATE TABLE registrations(id INTEGER, uid VARCHAR)")
            run.execute("COMMIT")

    def _anew(self, why: str) -> None:
        self.why_anew, self.trouble = why, ""
        self.close()
        _clear(self._path)
        with self._guarded():
            self._connection = _connected(self._duckdb, self._path, self._memory)
        self._make()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except self._duckdb.Error as exc:
            if not isinstance(exc, self._duckdb.OutOfMemoryException):
                self.trouble = _said(exc)
            raise StorageError(f"{self._path}: {_said(exc)}", path=str(self._path)) from exc

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """All that is done within, or nothing: then what is known is read again."""
        try:
            self._connection.execute("BEGIN")
            yield self._connection
            self._connection.execute("COMMIT")
        except BaseException as exc:
            self.close()  # whatever it was: also what the library calls fatal, after which nothing works
            self._open(MAX_POSITION)
            if not isinstance(exc, self._duckdb.Error):
                raise
            raise StorageError(f"{self._path}: {_said(exc)}", path=str(self._path)) from exc

    # -- taking in ----------------------------------------------------------------------------------------------

    def _type(self, run: Any, name: tuple[str, str]) -> TypeIndex:
        known = self._types.get(name)
        if known is None and (len(self._types) >= MAX_TYPES or _OTHERS in self._types):  # there it may have objects
            known = self._types.get(name := _OTHERS)
        if known is None:
            known = self._types[name] = TypeIndex(max((each.number for each in self._types.values()), default=-1) + 1)
            run.execute("INSERT INTO types VALUES (?, ?, ?, NULL)", [known.number, *name])
            self._tables.make(run, known.number)
        return known

    def _registration(self, run: Any, uid: str) -> int:
        known = self._registrations.get(uid)
        if known is None:
            known = self._registrations[uid] = next(reversed(self._registrations.values()), -1) + 1
            run.execute("INSERT INTO registrations VALUES (?, ?)", [known, uid])
        return known

    # -- asking -------------------------------------------------------------------------------------------------

    def _asked(self, made: Select, sql: str) -> Any:
        used = {name: made.parameters[name] for name in _PARAMETER.findall(sql)}
        with self._guarded():
            return self._connection.execute(sql, used or None)

    def _made(
        self, asked: CompiledScope, query: HistoryQuery, after: int, up_to: int, restricted: Restriction | None = None
    ) -> Select | None:
        """Selection to ask; None: nothing can be found."""
        scope = asked.scope
        kind = self._of(scope)
        if kind is None:
            return None
        bounds = [f"pos > {int(after)}", f"pos <= {int(up_to)}"]
        made = Select(kind, " AND ".join(bounds))
        if scope.registrations is not None:
            those = {self._registrations[uid] for uid in scope.registrations if uid in self._registrations}
            bounds.append(among("registration", those))
        if query.object_ids is not None:
            bounds.append(made.identified(query.object_ids, self._registrations))
        bounds += made.bounded(query)
        if kind is self._types.get(_OTHERS):
            made.exact = "false"  # of which type they are says their head
        elif asked.is_everything:
            made.exact = "true"
        else:
            bounds.append(made.restricted(restricted or kind.restriction(asked)))
        if "false" in bounds:
            return None
        made.rows = f"{made.table} WHERE {' AND '.join(bound for bound in bounds if bound != 'true')}"
        return made

    def _of(self, scope: Scope) -> TypeIndex | None:
        return self._types.get((scope.type.name, scope.type.version)) or self._types.get(_OTHERS)


_PARAMETER: Final = re.compile(r"\$(p\d+)")


def _connected(duckdb: Any, path: Path, memory: int) -> Any:
    """The file, open within its bounds; made if it is not there. Raises the library's errors."""
    settings = {
        "memory_limit": f"{memory}B",
        "threads": 1,
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "max_temp_directory_size": f"{4 * memory}B",
        "lock_configuration": True,
    }
    connection = duckdb.connect(str(path), config=settings)
    path.chmod(0o600)  # it makes it as the umask says; the folder is nobody else's
    return connection


def _clear(file: Path) -> None:
    """Take the file away, and what lies beside it. Raises StorageError."""
    folder = file.parent
    try:
        for path in folder.glob(file.name + "*"):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as exc:
        raise StorageError(f"{folder} can't be cleared: {exc.strerror}", path=str(folder)) from exc


def _is_mixed(positions: Any) -> bool:
    """Whether positions do not go up."""
    return len(positions) > 1 and not bool((positions[1:] > positions[:-1]).all())


def _said(exc: Exception) -> str:
    """Message of the library, in a line: of a fault of its own the first paragraph, without its stack."""
    return " ".join(str(exc).partition("\n\n")[0].partition("Stack Trace")[0].split())[:SAID_MOST]


def _libraries() -> tuple[Any, Any]:
    """Optional libraries, imported when an archive is opened."""
    try:
        import duckdb
        import numpy
    except ImportError as exc:
        raise ConfigurationError(
            f"the archive's index needs {exc.name}", hint="pip install 'jbi-pubsub[archive]'"
        ) from exc
    return duckdb, numpy
