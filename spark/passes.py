"""One pass over all publications: each judged once, what a study counts of it added up. In this process, or on Spark.

The sums of parts add up to the sums of the whole, in any order (judging.Sums), so both ways give the same. On Spark the
product itself runs in the executors' Python workers (mapInArrow), beside the data; what comes back are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import dataset, session
from jbi_pubsub.spark.dataset import Contracts, Reject
from jbi_pubsub.spark.judging import MANY, See, Sums, judged, pack, tidy
from jbi_pubsub.spark.report import COMPRESSION, table_of
from jbi_pubsub.spark.session import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_REJECT: Final = "reject"
_SUMS: Final = "what string, key string, number bigint, size bigint, mixed bigint"
_SUMMED: Final = ("sum(number)", "sum(size)", "sum(mixed)")
"""The last three columns, added up."""
_ROWS: Final = 4_096
"""Sums in a batch that a worker sends."""


_REPEATED_MOST: Final = 1 << 30
"""Bytes that a batch may have if its rows all repeat the largest value there could be."""


class Passed(msgspec.Struct, frozen=True):
    """Result of a pass."""

    sums: Sums
    rejects: list[Reject]
    spark: str = ""
    java: str = ""

    def of(self, what: str) -> dict[str, list[int]]:
        """The sums of one kind, by what they are of, sorted."""
        return {key: sums for (kind, key), sums in sorted(self.sums.items()) if kind == what}

    def kept(self, what: str, most: int) -> dict[str, list[tuple[int, str]]]:
        """Texts kept of one kind: (rank, text) by group, the lowest first."""
        groups: dict[str, list[tuple[int, str]]] = {}
        for key in self.of(what):  # sorted: by group, then rank
            group, rank, text = key.split(MANY, 2)
            groups.setdefault(group, []).append((int(rank, 16), text))
        return {group: kept[:most] for group, kept in groups.items()}

    def values(self, what: str) -> dict[str, tuple[str, int]]:
        """The value of each thing of one kind, MANY if it has several, and how often it was there."""
        found: dict[str, tuple[str, int]] = {}
        for key, (number, _, _) in self.of(what).items():
            thing, value = key.split(MANY, 1)
            before = found.get(thing)
            found[thing] = (value, number) if before is None else (MANY, before[1] + number)
        return found

    def total(self, what: str, key: str = "") -> list[int]:
        """One of the sums: number, bytes, hashes."""
        return self.sums.get((what, key), [0, 0, 0])


def here(publications: Path, contracts: Contracts, see: See, progress: Progress | None = None) -> Passed:
    """In this process. Raises StudyError for columns that are missing or of another kind, or no Parquet."""
    files = parquet_files(publications)
    packed, rejects = pack(contracts), list[Reject]()
    total, done = sum(rows for _, rows in files), 0
    sums = Sums()

    def tell(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress("publications", done, total)

    tell(0)
    for path, _ in files:
        batches = _told(_batches(path), tell)
        _join(sums, judged(packed, see, _rows(batches), rejects))
    return Passed(sums, tidy(rejects))


def on_spark(
    spark: SparkSession, publications: str, contracts: Contracts, see: See, progress: Progress | None = None
) -> Passed:
    """On a session, which reads the publications' Parquet at any path that it knows. Raises StudyError."""
    frame = session.run(spark, "columns", lambda: spark.read.parquet(publications), progress=progress)
    names = dataset.check_columns(session.arrow_schema(frame), "publications", publications)
    packed = spark.sparkContext.broadcast(pack(contracts))

    def partial(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rejects: list[Reject] = []
        yield from _encoded(judged(packed.value, see, _rows(batches), rejects), rejects)

    session.ship(spark)
    parts = frame.select(*names).mapInArrow(partial, _SUMS)
    added = parts.groupBy("what", "key").agg({"number": "sum", "size": "sum", "mixed": "sum"})
    table = session.run(spark, "publications", added.toArrow, progress=progress)
    packed.destroy()
    return _decoded(table.to_batches(), spark.version, session.java_version(spark))


def parquet_files(where: Path) -> list[tuple[Path, int]]:
    """The Parquet files of a table, a file or a folder of them, with their rows. Raises StudyError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [where] if where.is_file() else sorted(p for p in where.rglob("*.parquet") if p.is_file())
    if not paths:
        raise StudyError(f"no Parquet files in {where}", hint="Give a .parquet file or a folder of them")
    try:
        return [(path, pq.read_metadata(path).num_rows) for path in paths]
    except (pa.ArrowException, OSError) as error:
        raise StudyError(f"no Parquet table in {where}: {error}"[:400], hint="Look for a file cut short") from error


def rows_in(where: Path, table: str) -> Iterator[dict[str, Any]]:
    """The rows of a table of contracts or rejects, a Parquet file or a folder of them. Raises StudyError."""
    for path, _ in parquet_files(where):
        for batch in _batches(path, table):
            columns = [dataset.values_of(column) for column in batch.columns]
            yield from (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True))


def publications_in(path: Path) -> Iterator[dataset.PublicationRow]:
    """The publications of a Parquet file. Raises StudyError."""
    return _rows(_batches(path))


def _batches(path: Path, table: str = "publications") -> Iterator[pa.RecordBatch]:
    """The rows of a file, so many at once as memory has room for: fewer if they are large. A value that a dictionary
    holds once is in memory once, however many rows repeat it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as opened:
            names = dataset.check_columns(opened.schema_arrow, table, str(path))
            for group in range(opened.num_row_groups):
                rows, repeated = _plan(opened.metadata.row_group(group), names)
                if not repeated:
                    yield from opened.iter_batches(rows, row_groups=[group], columns=names)
                    continue
                with pq.ParquetFile(path, read_dictionary=repeated) as again:
                    yield from again.iter_batches(rows, row_groups=[group], columns=names)
    except (pa.ArrowException, OSError) as error:
        why = str(error)[:400].rstrip(".")
        raise StudyError(f"{path} can't be read: {why}", hint="Look for a file cut short") from error


def _plan(group: Any, names: Collection[str]) -> tuple[int, list[str]]:
    """Number of rows of a row group to read at once, and the columns whose dictionaries could fill memory."""
    chunks = [chunk for n in range(group.num_columns) if (chunk := group.column(n)).path_in_schema in names]
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    rows = max(1, min(dataset.BATCH_ROWS, dataset.GROUP_BYTES * group.num_rows // max(1, size)))
    return rows, [
        chunk.path_in_schema
        for chunk in chunks
        if chunk.has_dictionary_page and rows * chunk.total_uncompressed_size > _REPEATED_MOST
    ]


def _told(batches: Iterable[pa.RecordBatch], tell: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch
        tell(batch.num_rows)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dataset.PublicationRow]:
    for batch in batches:
        yield from dataset.publications_of(batch)


def _join(sums: Sums, part: Sums) -> None:
    for of, (number, size, mixed) in part.items():
        found = sums.setdefault(of, [0, 0, 0])
        found[0] += number
        found[1] += size
        found[2] += mixed


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts, numbers = ("what", "key"), ("number", "size", "mixed")
    return pa.schema([*((name, pa.string()) for name in texts), *((name, pa.int64()) for name in numbers)])


def _encoded(part: Sums, rejects: list[Reject]) -> Iterator[pa.RecordBatch]:
    rows = [(what, key, *sums) for (what, key), sums in part.items()]
    rows += [(_REJECT, msgspec.json.encode(each).decode(), 0, 0, 0) for each in rejects]
    schema = _schema()
    for at in range(0, len(rows), _ROWS):
        yield from table_of(rows[at : at + _ROWS], schema).to_batches()


def _decoded(batches: Iterable[pa.RecordBatch], spark: str, java: str) -> Passed:
    sums, rejects = Sums(), list[Reject]()
    for batch in batches:
        for row in batch.to_pylist():
            if row["what"] == _REJECT:
                rejects.append(_decode_reject(row["key"]))
            else:
                sums[row["what"], row["key"]] = [row[name] for name in _SUMMED]
    return Passed(sums, tidy(rejects), spark, java)


def save(passed: Passed, path: Path) -> None:
    """Write what a pass came to as Parquet: the same bytes for the same sums. Raises OSError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    batches = list(_encoded(dict(sorted(passed.sums.items())), passed.rejects))
    pq.write_table(pa.Table.from_batches(batches, schema=_schema()), path, compression=COMPRESSION)


def load(path: Path, *, spark: str, java: str) -> Passed:
    """Load what `save` wrote. Raises StudyError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        return _decoded(table.rename_columns(["what", "key", *_SUMMED]).to_batches(), spark, java)
    except (pa.ArrowException, OSError, KeyError, msgspec.DecodeError) as error:
        raise StudyError(f"{path} can't be read: {error}"[:400], hint="Run the study without --resume") from error


_decode_reject: Final = msgspec.json.Decoder(Reject).decode
