"""Tables of an index: rows and columns of the objects that are taken in.

A row an object, with two columns for each frequent path, of numbers and of texts; a second table holds the values of
rare paths, further ones of a path that comes again, and what is not held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

from jbi_pubsub.archive.held import MORE, NOT_HELD, NUMBERS, TEXTS, TypeIndex
from jbi_pubsub.archive.leaves import UNHELD, DocumentRow, Value, Values
from jbi_pubsub.archive.volume import Record
from jbi_pubsub.core.info_object import Head

COLUMNS: Final = 64
"""Paths of a type that have columns."""
FREQUENT: Final = 8
"""One in so many objects of a type has a path that gets columns."""
ENOUGH: Final = 256
"""Objects of a type that are looked at before any gets some."""
FORGETFUL: Final = 1 << 16
"""Objects after which what was counted weighs half."""

ArchivedHead = tuple[Record, Head]
"""An object as the log has it, with its head."""
_Other = tuple[int, int, float, str | None]
"""A row of the second table: path, position, number (NaN for none), text."""
_Columns = tuple[dict[int, tuple[list[float], list[str | None]]], list[_Other]]

_FIXED: Final = (
    "pos UBIGINT, registration INTEGER, sequence UBIGINT, published DOUBLE, received DOUBLE, payload UBIGINT,"
    " kind USMALLINT, own VARCHAR"
)
_NAN: Final = float("nan")


class TypeTables:
    """The two tables of each type. Numbers of types, paths and registrations name all that is in them."""

    def __init__(self, numpy: Any, *, columns: int, enough: int) -> None:
        """`columns`: paths of a type that may have some; `enough`: objects of a type that are looked at before any
        has."""
        self._numpy = numpy
        self._columns = columns
        self._enough = enough
        self._values = Values()

    def make(self, run: Any, number: int) -> None:
        """Make those of a new type."""
        run.execute(f"CREATE TABLE o{number}({_FIXED})")
        run.execute(f"CREATE TABLE m{number}(path USMALLINT, pos UBIGINT, n DOUBLE, t VARCHAR)")

    def add(
        self,
        run: Any,
        kind: TypeIndex,
        objects: Sequence[ArchivedHead],
        registrations: Sequence[int],
        *,
        is_known: bool,
    ) -> None:
        """Take in objects of a type, with the numbers of their registrations; `is_known`: their documents are looked
        into."""
        before = kind.learned
        if is_known:
            rows = [kind.paths.read(bytes(head.metadata)) for _, head in objects]
        else:
            rows = [DocumentRow(is_open=True)] * len(objects)
        kind.flags.extend(bytes(len(kind.paths) - len(kind.flags)))
        self._choose(kind, rows)
        columns, more = self._values_of(kind, objects, rows)
        fixed = self._fixed(kind, objects, rows) | {"registration": self._numpy.array(registrations, dtype="int32")}
        self._insert(run, f"o{kind.number}", fixed | self._columned(run, kind, columns))
        if more:
            self._insert(run, f"m{kind.number}", self._others(more))
        if before != kind.learned:
            run.execute("UPDATE types SET known = ? WHERE id = ?", [kind.known(), kind.number])

    def forget(self, run: Any, positions: Sequence[int], types: Collection[int]) -> tuple[set[int], set[int]]:
        """Take objects out of the tables of these types. The types, and the registrations, of which nothing is left:
        they go with them."""
        run.register("gone", {"pos": self._numpy.array(positions, dtype="uint64")})
        empty, ended = set(), set()
        for number in types:
            gone = f"FROM o{number} WHERE pos IN (SELECT pos FROM gone)"  # noqa: S608  # numbers and our own words
            of = run.execute(f"SELECT DISTINCT registration {gone}").fetchall()
            if of:
                ended |= {registration for (registration,) in of}
                run.execute(f"DELETE {gone}")
                run.execute(f"DELETE FROM m{number} WHERE pos IN (SELECT pos FROM gone)")  # noqa: S608  # as above
                if run.execute(f"SELECT pos FROM o{number} LIMIT 1").fetchone() is None:  # noqa: S608  # as above
                    empty.add(number)
        for number in set(types) - empty:  # another type may have had a registration of that id
            if ended:
                left = f"SELECT DISTINCT registration FROM o{number} WHERE registration IN (SELECT unnest($1))"  # noqa: S608  # as above
                ended -= {registration for (registration,) in run.execute(left, [list(ended)]).fetchall()}
        for number in empty:
            run.execute(f"DROP TABLE o{number}")
            run.execute(f"DROP TABLE m{number}")
        run.execute("DELETE FROM types WHERE id IN (SELECT unnest($1))", [list(empty)])
        run.execute("DELETE FROM registrations WHERE id IN (SELECT unnest($1))", [list(ended)])
        run.unregister("gone")
        return empty, ended

    def _values_of(self, kind: TypeIndex, objects: Sequence[ArchivedHead], rows: Sequence[DocumentRow]) -> _Columns:
        """The values that go into columns, and the others."""
        columns: dict[int, tuple[list[float], list[str | None]]] = {
            path: ([_NAN] * len(rows), [None] * len(rows)) for path in kind.frequent
        }
        more: list[_Other] = []
        of = self._values.of
        for place, ((record, _), row) in enumerate(zip(objects, rows, strict=True)):
            for path, text in row.firsts.items():
                value = of(text)
                column = columns.get(path)
                if column is None or value is UNHELD:
                    more.append(_other(kind, path, record.position, value))
                    continue
                held, written = value
                if held is not None:
                    column[0][place] = held
                if written is not None:
                    column[1][place] = written
            more += [_other(kind, path, record.position, of(text)) for path, text in row.further]
        return columns, more

    def _fixed(self, kind: TypeIndex, objects: Sequence[ArchivedHead], rows: Sequence[DocumentRow]) -> dict[str, Any]:
        """Columns of each object besides its values."""
        array = self._numpy.array
        heads = [head for _, head in objects]
        batch = {
            "pos": array([record.position for record, _ in objects], dtype="uint64"),
            "sequence": array([head.sequence for head in heads], dtype="uint64"),
            "published": array([head.published for head in heads], dtype="float64"),
            "received": array([record.received for record, _ in objects], dtype="float64"),
            "payload": array([head.payload_length for head in heads], dtype="uint64"),
            "kind": array([kind.kind(row) for row in rows], dtype="uint16"),
        }
        if any(head.own_id for head in heads):
            batch["own"] = array([head.own_id or None for head in heads], dtype=object)
        return batch

    def _columned(
        self, run: Any, kind: TypeIndex, columns: dict[int, tuple[list[float], list[str | None]]]
    ) -> dict[str, Any]:
        """The columns of frequent paths, which are made when they are needed first."""
        numpy = self._numpy
        batch = {}
        for path, (numbers, texts) in columns.items():
            held = numpy.array(numbers, dtype="float64")
            missing = numpy.isnan(held)
            if not missing.all():
                self._column(run, kind, path, NUMBERS)
                batch[f"n{path}"] = numpy.ma.masked_array(held, mask=missing)
            if any(text is not None for text in texts):
                self._column(run, kind, path, TEXTS)
                batch[f"t{path}"] = numpy.array(texts, dtype=object)
        return batch

    def _others(self, more: list[_Other]) -> dict[str, Any]:
        """The rows of the second table, by path."""
        numpy = self._numpy
        more.sort(key=_by_path)
        held = numpy.array([each[2] for each in more], dtype="float64")
        return {
            "path": numpy.array([each[0] for each in more], dtype="uint16"),
            "pos": numpy.array([each[1] for each in more], dtype="uint64"),
            "n": numpy.ma.masked_array(held, mask=numpy.isnan(held)),
            "t": numpy.array([each[3] for each in more], dtype=object),
        }

    def _insert(self, run: Any, table: str, batch: dict[str, Any]) -> None:
        run.register("batch", batch)
        run.execute(f"INSERT INTO {table} BY NAME SELECT * FROM batch")  # noqa: S608  # numbers and our own words
        run.unregister("batch")

    def _choose(self, kind: TypeIndex, rows: Sequence[DocumentRow]) -> None:
        """Give columns to paths that are frequent by now."""
        if kind.seen >= FORGETFUL:
            kind.seen //= 2
            kind.counts = Counter({path: count // 2 for path, count in kind.counts.items()})
        kind.seen += len(rows)
        for row in rows:
            kind.counts.update(row.firsts.keys())
        if kind.seen < self._enough or len(kind.frequent) >= self._columns:
            return
        for path, count in kind.counts.most_common():
            if count * FREQUENT < kind.seen or len(kind.frequent) >= self._columns:
                return
            kind.frequent.add(path)

    def _column(self, run: Any, kind: TypeIndex, path: int, flag: int) -> None:
        if not kind.flags[path] & flag:
            kind.flags[path] |= flag
            name = f"n{path} DOUBLE" if flag == NUMBERS else f"t{path} VARCHAR"
            run.execute(f"ALTER TABLE o{kind.number} ADD COLUMN {name}")


def _by_path(value: _Other) -> int:
    return value[0]


def _other(kind: TypeIndex, path: int, position: int, value: Value) -> _Other:
    """A value for the second table."""
    held, text = value
    kind.flags[path] |= MORE | NOT_HELD if value is UNHELD else MORE
    return path, position, _NAN if held is None else held, text
