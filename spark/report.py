"""Files of a study of a made-up population, besides result, page and plots (result.py): Parquet tables and a
manifest; and how all studies take a folder and write to it.

    out/manifest.json    parameters, results, check, timings, files; `state` is "running" until all is there
    out/templates/       gid, entry_class, shape, f0 ... f7, tids: groups of equal templates
    out/hits/            rid, gid: which registration matches which group
    out/counts/          gid, registrations, checksum: matches per group (groups without a match have no row)

All pairs (registration, template) are hits joined with templates on gid, tids unfolded.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.core.files import locked, written
from jbi_pubsub.spark.generators import SHAPES, WIDTH

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "jbi-study-1"
"""Names this layout in the manifest."""
RESULTS: Final = (FORMAT, "jbi-result-1")
"""Folders that hold one of these may be written anew."""
ROW_GROUP: Final = 1_000_000
"""Rows of a Parquet row group; Spark reads one row group in one task, so a large table in few pieces starves it."""
COMPRESSION: Final = "zstd"
"""Smallest of the codecs that every Parquet reader has."""
MANIFEST: Final = "manifest.json"
JSON_MOST: Final = 16 << 20
"""Bytes of a manifest, or of a result's facts and numbers; ours have some kilobytes."""
_PAGE: Final = "report.html"
_TABLES: Final = ("templates", "hits", "counts")


class GroupSums(msgspec.Struct, frozen=True):
    """Sums over the groups of one shape that match about equally often: `bucket` is the number of bits of the number
    of registrations matched (0: none, 1: one, 2: 2-3, 3: 4-7, ...)."""

    shape: int
    bucket: int
    groups: int
    templates: int
    hits: int
    pairs: int


class DistributionRow(msgspec.Struct, frozen=True):
    """Templates that match `low` to `high` registrations each: how many, and their matches together."""

    low: int
    high: int
    templates: int
    pairs: int


class ShapeRow(msgspec.Struct, frozen=True):
    """Templates of one shape: class(fixed fields), their number, distinct ones, and their matches together."""

    shape: str
    templates: int
    groups: int
    pairs: int


class SampleCheck(msgspec.Struct, frozen=True):
    """Comparisons that found all equal; a difference raises instead.

    `registrations` sampled ones (every `step`-th) had the same `hits` on Spark as in this process (0: the study ran in
    this process). `defined_pairs` pairs were also tried by `entry.matches` itself; `defined_matches` of them matched.
    """

    step: int
    registrations: int
    hits: int
    defined_pairs: int
    defined_matches: int


class OutputFile(msgspec.Struct, frozen=True):
    """A table or file of the result: name inside the folder, rows (-1: no table), bytes."""

    name: str
    rows: int
    size: int


class MatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the study `match`.

    `pairs` counts (registration, template) matches, `hits` the same with equal templates as one (`groups` of them).
    `checksum` is the XOR of xxhash64 over the rows of hits, then over those of groups: 32 hexadecimal digits, equal
    whatever the engine, the partitions and the order. `spark` and `java` are versions, "" for the engine local.
    `timings` are (stage, seconds) of wall time. `resumed` says what was taken from an earlier run.
    """

    registrations: int
    templates: int
    seed: int
    engine: str
    spark: str
    java: str
    groups: int
    hits: int
    pairs: int
    templates_matched: int
    checksum: str
    distribution: tuple[DistributionRow, ...]
    shapes: tuple[ShapeRow, ...]
    check: SampleCheck
    timings: tuple[tuple[str, float], ...]
    out: str
    files: tuple[OutputFile, ...]
    resumed: str = ""

    def facts(self) -> list[tuple[str, str]]:
        """(what, value) lines about the population, the same whatever the engine."""
        return [
            ("registrations x templates", f"{self.registrations:,} x {self.templates:,} (seed {self.seed})"),
            ("matches", f"{self.pairs:,} pairs, stored as {self.hits:,} hits on {self.groups:,} distinct templates"),
            ("templates with a match", f"{self.templates_matched:,} of {self.templates:,}"),
            ("checksum", self.checksum),
        ]

    def checks(self) -> dict[str, str]:
        """Comparisons that found all equal."""
        check = self.check
        sampled = f"{check.registrations:,} registrations, {check.hits:,} hits equal in process"
        return {
            "check by sample": sampled if check.registrations else "ran in process",
            "check by definition": f"{check.defined_pairs:,} pairs tried, {check.defined_matches:,} match, all equal",
        }

    def rows(self) -> list[tuple[str, str]]:
        """(what, value) lines to print."""
        engine = f"Spark {self.spark}, Java {self.java}" if self.engine == "spark" else "this process"
        return [
            *self.facts(),
            *self.checks().items(),
            ("engine", engine),
            ("seconds", ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in self.timings)),
            *([("resumed", self.resumed)] if self.resumed else []),
            ("report", f"{self.out}/{_PAGE}"),
        ]


def distribution(cells: Iterable[GroupSums]) -> tuple[DistributionRow, ...]:
    """Templates by the number of registrations each matches, fewest first."""
    sums = _sums((cell.bucket, (cell.templates, cell.pairs)) for cell in cells)
    return tuple(DistributionRow(1 << b >> 1, max(0, (1 << b) - 1), *sums[b]) for b in sorted(sums))


def by_shape(cells: Iterable[GroupSums]) -> tuple[ShapeRow, ...]:
    """Templates by their shape, in the order of SHAPES."""
    sums = _sums((cell.shape, (cell.templates, cell.groups, cell.pairs)) for cell in cells)
    return tuple(ShapeRow(str(SHAPES[n]), *sums[n]) for n in sorted(sums))


@contextmanager
def claimed(out: Path) -> Iterator[Path]:
    """`claim`, and nobody else writes there meanwhile. Raises ConfigurationError."""
    folder = out.expanduser().resolve()
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with held(folder):
        yield claim(folder)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """A folder for ourselves, as long as we live (flock(2) ends with its process). Raises ConfigurationError."""
    with _usable(folder):
        lock = locked(folder, needed=False)
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise ConfigurationError(
            f"another process writes to {folder}", hint="Wait for it, or name another folder", path=str(folder)
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"the result folder {folder} can't be used: {error.strerror}",
            hint="Give a folder that you may write to",
            path=str(folder),
        ) from error


def claim(out: Path) -> Path:
    """Take `out` for a result and return it absolute: made if missing, an earlier result in it marked as running.

    Raises ConfigurationError when it holds anything but a study's result, or can't be written.
    """
    folder = out.expanduser().resolve()
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not _is_study(folder / MANIFEST):
            raise ConfigurationError(
                f"{folder} is not empty and holds no earlier study",
                hint="Give an empty or new folder; nothing was changed",
                path=str(folder),
            )
        write(folder / MANIFEST, msgspec.json.encode({"format": FORMAT, "state": "running"}))
    return folder


def finish(folder: Path, report: MatchReport) -> MatchReport:
    """Write the manifest, when all else is there; returns the report with its files."""
    with writing(folder):
        tables = [_table_file(folder / name) for name in _TABLES]
        files = (*tables, OutputFile(_PAGE, -1, (folder / _PAGE).stat().st_size))
        done = msgspec.structs.replace(report, files=files)
        manifest = {"format": FORMAT, "state": "complete", "study": "match", "report": done}
        write(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    return done


def parquet_present() -> None:
    """Raises StudyError when PyArrow, which reads and writes the tables, is missing."""
    try:
        import pyarrow.parquet  # noqa: F401  # asked only whether it is there
    except ImportError as error:
        raise StudyError(
            f"Parquet files need PyArrow, which can't be imported: {error}",
            hint="pip install 'jbi-pubsub[spark]'",
        ) from error


@contextmanager
def table(folder: Path, name: str) -> Iterator[TableWriter]:
    """Write the table `name` of a result as one file, replacing an earlier one. Raises StudyError (full disk)."""
    import shutil

    with writing(folder):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
        with TableWriter(folder / name / "part-00000.parquet", _schema(name)) as opened:
            yield opened


def table_of(rows: Sequence[Sequence[object]], schema: pa.Schema) -> pa.Table:
    """An Arrow table of rows, whose values stand in the order of the schema."""
    import pyarrow as pa

    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


class TableWriter:
    """Collects rows of a Parquet table and writes them as row groups, of so many rows, or fewer if they are large."""

    def __init__(
        self, file: Any, schema: pa.Schema, *, most: int = ROW_GROUP, most_bytes: float = math.inf,
        dictionary: bool | list[str] = True,
    ) -> None:  # fmt: skip
        """`most` and `most_bytes`: rows of a group and bytes of their texts; `dictionary`: columns of which many are
        equal, or all."""
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(file, schema, compression=COMPRESSION, use_dictionary=dictionary)
        self._schema = schema
        self._most = most
        self._most_bytes = most_bytes
        self._rows: list[Sequence[object]] = []
        self._size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._rows:
            self._flush()
        self._writer.close()

    def add(self, *row: object) -> None:
        """Add a row, in the order of the schema."""
        self._rows.append(row)
        if self._most_bytes < math.inf:
            self._size += sum(len(value) for value in row if isinstance(value, bytes | str))
        if len(self._rows) >= self._most or self._size >= self._most_bytes:
            self._flush()

    def add_named(self, row: Mapping[str, object]) -> None:
        """Add a row by the names of its columns."""
        self.add(*map(row.get, self._schema.names))

    def _flush(self) -> None:
        self._writer.write_table(table_of(self._rows, self._schema), row_group_size=self._most)
        self._rows, self._size = [], 0


def _sums(rows: Iterable[tuple[int, tuple[int, ...]]]) -> Mapping[int, tuple[int, ...]]:
    sums: dict[int, tuple[int, ...]] = {}
    for key, values in rows:
        sums[key] = tuple(map(sum, zip(sums.get(key, (0,) * len(values)), values, strict=True)))
    return sums


def _schema(name: str) -> pa.Schema:
    import pyarrow as pa

    number = pa.int64()
    texts = [(f"f{n}", pa.string()) for n in range(WIDTH)]
    members = ("tids", pa.list_(number))
    columns: dict[str, list[tuple[str, pa.DataType]]] = {
        "templates": [("gid", number), ("entry_class", pa.string()), ("shape", pa.int32()), *texts, members],
        "hits": [("rid", number), ("gid", number)],
        "counts": [("gid", number), ("registrations", number), ("checksum", number)],
    }
    return pa.schema(columns[name])


def _table_file(path: Path) -> OutputFile:
    import pyarrow.parquet as pq

    parts = sorted(path.glob("*.parquet"))
    rows = sum(pq.read_metadata(part).num_rows for part in parts)
    return OutputFile(path.name, rows, sum(part.stat().st_size for part in parts))


def _is_study(manifest: Path) -> bool:
    found = json_in(manifest)
    return isinstance(found, dict) and found.get("format") in RESULTS


def json_in(path: Path) -> Any:
    """Content of a small file of JSON, None for one that is not there, too large, or no JSON."""
    try:
        if path.stat().st_size <= JSON_MOST:
            return msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None


def write(path: Path, content: bytes) -> None:
    """All or nothing: a reader never sees half a file."""
    with written(path, mode=None, is_durable=False) as file:
        file.write(content)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raises StudyError for what the disk says meanwhile."""
    try:
        yield
    except OSError as error:
        raise StudyError(
            f"the result can't be written to {folder}: {error}",
            hint="Look for a full disk or missing rights",
            path=str(folder),
        ) from error
