"""Publications that arrive in a folder, judged as they come: rolling windows of who gets how much.

Spark's Structured Streaming finds the files and remembers in its checkpoint which it has handed out as which batch;
the product's own Judge decides beside the data (mapInArrow). What comes back are sums, added to a state that is
written whole, with the number of its batch: a batch that comes again after a crash is known and not counted twice.

Windows are of the publications' own time. The watermark is the latest time seen in earlier batches less `delay`
(Akidau et al., The Dataflow Model, VLDB 2015); a window that it has passed is closed, and what comes for it is late:
counted, and nowhere else. A time later than our clock and `delay` opens no window: one wrong clock
would close them all.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, JbiError, StudyError
from jbi_pubsub.core.values import from_json
from jbi_pubsub.core.xml import MAX_XML_PAYLOAD_BYTES
from jbi_pubsub.spark import dataset, report, session
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, Reject
from jbi_pubsub.spark.judging import Judge, MatchedRow, Sums, TaskSums, judged, pack
from jbi_pubsub.spark.page import ResultTable, integers, numbers, texts
from jbi_pubsub.spark.result import Result, StudyRun, page_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

CLOSED_MOST: Final = 100
"""Closed windows that are remembered one by one."""
OPEN_MOST: Final = 1_000
"""Windows that are open at once; what would open another counts as ahead of the clock."""
FILES_A_BATCH: Final = 64
"""So that a full folder does not come as one batch."""
HOTTEST: Final = 20
REFRESH_SECONDS: Final = 5
"""Between two looks of a browser at the page."""
_COUNTED: Final = ("publications", "deliveries", "rejected", "late", "ahead", "closed")
"""Numbers of the state that are those of the result."""
_TURN: Final = 0.2
_STATE: Final = "state.json"
_CHECKPOINT: Final = "checkpoint"
_FORMAT: Final = "jbi-watch-1"
_ANY_AGE: Final = "1000000d"
"""By its default Spark passes over files a week older than the newest it has seen: one wrong clock would lose all."""


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings: a restart must ask the same. `folder` has the files, Parquet publications or (`xml`) a document
    each, then of registration `publisher`; `window` and `delay` are seconds."""

    folder: str
    xml: bool = False
    publisher: str = ""
    window: int = 60
    delay: int = 60


class _Handed(msgspec.Struct):
    """A file in Spark's log of a stream: its URI, and the number under which it was handed out."""

    path: str
    batchId: int  # noqa: N815  # Spark's name


class WatchWindow(msgspec.Struct):
    """Sums of the publications of a window that begins at `start` (seconds since 1970)."""

    start: int
    publications: int = 0
    rejected: int = 0
    size: int = 0
    deliveries: int = 0
    undelivered: int = 0
    most: int = 0
    """Deliveries of the object that had most."""
    matches: dict[str, int] = {}
    """Deliveries of each subscription; of closed windows the HOTTEST alone."""


class State(msgspec.Struct):
    """All that is known after batch `batch`."""

    settings: WatchSettings
    format: str = _FORMAT
    batch: int = -1
    watermark: float = 0.0
    latest: float = 0.0
    publications: int = 0
    deliveries: int = 0
    rejected: int = 0
    late: int = 0
    ahead: int = 0
    closed: int = 0
    open: dict[str, WatchWindow] = {}
    """By their start; JSON has no other keys."""
    history: list[WatchWindow] = []
    """Closed ones, the latest last."""


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:
    """Count an object's deliveries, by subscription."""
    deliveries = judge.deliveries(seen)
    for wanted, payload in deliveries:
        tally.add("match", wanted.subscription.subscription, 1, seen.size_with(payload))
    tally.add("fanout", f"{len(deliveries):09d}")


def judged_by_window(
    packed: bytes, settings: WatchSettings, publications: Iterable[PublicationRow]
) -> Iterator[tuple[int, float, Sums]]:
    """(start of the window, latest time in it, sums) of publications. Those without a time, or with one that is none,
    are rejected, in the window of 1970."""
    windows: dict[int, list[PublicationRow]] = {}
    latest: dict[int, float] = {}
    for each in publications:
        if each.time is None:
            each = msgspec.structs.replace(each, time=math.nan)  # which is a fault
        said = each.time
        at = said if said is not None and math.isfinite(said) and abs(said) < 1e11 else 0.0
        start = int(at // settings.window) * settings.window
        windows.setdefault(start, []).append(each)
        latest[start] = max(latest.get(start, at), at)
    rejects: list[Reject] = []
    for start, those in windows.items():
        yield start, latest[start], judged(packed, see, those, rejects)


def count(state: State, batch: int, parts: Iterable[tuple[int, float, Sums]], now: float) -> bool:
    """Add what a batch came to, once: whether it was new. `now` is our clock."""
    if batch <= state.batch:
        return False
    settings, ahead_of = state.settings, now + state.settings.delay
    latest = state.latest
    for start, last, sums in parts:
        number = sum(found[0] for (what, _), found in sums.items() if what in {"publications", "rejected"})
        known = str(start) in state.open
        if start + settings.window <= state.watermark:
            state.late += number
        elif start > ahead_of:
            state.ahead += number
        else:
            latest = max(latest, min(last, ahead_of))
            if not known and len(state.open) >= OPEN_MOST:
                state.ahead += number
                continue
            _add(state, state.open.setdefault(str(start), WatchWindow(start)), sums)
    state.latest = latest
    state.watermark = max(state.watermark, latest - settings.delay)
    for key in sorted(state.open, key=int):
        window = state.open[key]
        if window.start + settings.window <= state.watermark:
            del state.open[key]
            window.matches = dict(_hottest(window.matches))
            state.history.append(window)
            state.closed += 1
    state.history = sorted(state.history, key=lambda window: window.start)[-CLOSED_MOST:]
    state.batch = batch
    return True


def _add(state: State, window: WatchWindow, sums: Sums) -> None:
    for (what, key), (number, size, _) in sums.items():
        if what == "publications":
            window.publications += number
            window.size += size
            state.publications += number
        elif what == "rejected":
            window.rejected += number
            state.rejected += number
        elif what == "match":
            window.matches[key] = window.matches.get(key, 0) + number
            window.deliveries += number
            state.deliveries += number
        elif what == "fanout":
            window.undelivered += number if int(key) == 0 else 0
            window.most = max(window.most, int(key))


def _hottest(matches: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(matches.items(), key=lambda pair: (-pair[1], pair[0]))[:HOTTEST]


def told(state: State) -> Result:
    """Result to show."""
    windows = sorted([*state.history, *state.open.values()], key=lambda window: -window.start)
    closed = {window.start for window in state.history}
    total = state.publications

    def when(start: float) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(start)) if start else "-"

    rows = tuple(
        (
            when(w.start), "closed" if w.start in closed else "open", w.publications,
            round(w.publications / state.settings.window, 2), w.deliveries,
            round(w.deliveries / w.publications, 4) if w.publications else 0.0,
            w.undelivered, w.most, w.size, w.rejected,
        )
        for w in windows
    )  # fmt: skip
    hot = tuple((when(w.start), name, n) for w in windows[:10] for name, n in _hottest(w.matches)[:5])
    return Result(
        study="watch",
        question="What arrives, and who would get how much of it, window by window?",
        facts=(
            ("publications", f"{total:,}, {state.rejected:,} more could not be read, or have no time"),
            ("deliveries", f"{state.deliveries:,}, {state.deliveries / total:.2f} an object" if total else "0"),
            ("windows", f"{state.closed:,} closed, {len(state.open):,} open, of {state.settings.window} s"),
            ("watermark", f"{when(state.watermark)} UTC"),
            ("late", f"{state.late:,}, and {state.ahead:,} ahead of our clock"),
            ("batches", f"{state.batch + 1:,}"),
        ),
        numbers={name: getattr(state, name) for name in _COUNTED},
        tables=(
            ResultTable(
                name="windows", title="Windows, the latest first", note="Times are UTC.",
                columns=texts("window", "state") + integers("publications") + numbers("a_second")
                + integers("deliveries") + numbers("fan_out") + integers("for_nobody", "most", "bytes", "unreadable"),
                rows=rows,
            ),
            ResultTable(
                name="hottest", title="Subscriptions that get most, of the last windows",
                columns=texts("window", "subscription") + integers("deliveries"), rows=hot,
            ),
        ),
    )  # fmt: skip


class Watch:
    """A stream over a folder, with its state in `out`. Goes on from what is there."""

    def __init__(self, out: Path, settings: WatchSettings, contracts: Callable[[], Contracts]) -> None:
        """`contracts` is asked before each batch: they may change meanwhile. Raises ConfigurationError for a folder
        with something else, or with a watch that counts otherwise."""
        before = _read(out / _STATE)
        if before is not None and before.settings != settings:
            raise ConfigurationError(
                f"{out} watches with other settings: {_differences(before.settings, settings)}",
                hint="Give the same, or another --out",
            )
        self.folder = report.claim(out)
        self.state = before or State(settings)
        self._broken: Exception | None = None
        self.batches = 0
        """Batches counted by this process."""
        self.changed = time.monotonic()
        """When there was something to count last."""
        self._contracts = contracts
        self._lock = threading.Lock()

    def run(self, spark: SparkSession, every: float, turn: Callable[[], bool]) -> None:
        """Until `turn`, which is called often, is false. Raises StudyError when Spark gives up."""
        session.ship(spark)
        with report.held(self.folder):
            self.state = _read(self.folder / _STATE) or self.state  # by now another may have counted
            _check(self.folder, self.state.batch)
            executors = session.Executors(spark)
            query = (
                self._stream(spark)
                .writeStream.queryName("jbi study watch")
                .option("checkpointLocation", session.hadoop_path(self.folder / _CHECKPOINT))
                .trigger(processingTime=f"{every:g} seconds")
                .foreachBatch(self._batch)
                .start()
            )
            try:
                while query.isActive:
                    if query.lastProgress is None or query.status["isDataAvailable"]:  # not idle: it has not looked yet
                        self.changed = time.monotonic()  # before the turn: Spark may take longer to begin than to idle
                    if not turn():
                        break
                    executors.there()
                    time.sleep(_TURN)
                failed = query.exception()
            finally:
                session.ending(query.stop)
        if self._broken is not None:
            with report.writing(self.folder):
                raise self._broken
        if failed is not None:
            raise StudyError(
                f"the stream ended: {_cause(str(failed))}",
                hint="Move away a file that can't be read; the same command goes on, with what was counted until then",
            ) from failed

    def shown(self) -> Result:
        """Result to show now."""
        with self._lock:
            return told(self.state)

    def _stream(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.option("maxFilesPerTrigger", FILES_A_BATCH).option("maxFileAge", _ANY_AGE)
        return self._columns(spark, reader, session.hadoop_path(Path(self.state.settings.folder), pattern=True))

    def _columns(self, spark: SparkSession, reader: Any, where: str | list[str]) -> DataFrame:
        """Columns that are judged, of a stream of a folder or of files."""
        from pyspark.sql.pandas.types import from_arrow_schema

        reader = reader.option("ignoreMissingFiles", "true")  # so that one which can't be read may be moved away
        if not self.state.settings.xml:
            schema = from_arrow_schema(dataset.columns("publications"))
            parquet: DataFrame = (
                reader.schema(schema).format("parquet").option("pathGlobFilter", "*.parquet").load(where)
            )
            return parquet
        spark.conf.set("spark.sql.sources.binaryFile.maxLength", str(MAX_XML_PAYLOAD_BYTES))  # else up to 2 GB
        columns = "path string, modificationTime timestamp, length bigint, content binary"
        files: DataFrame = reader.schema(columns).format("binaryFile").option("pathGlobFilter", "*.xml").load(where)
        return files.selectExpr(
            "path AS object_id", "content AS metadata",
            "CAST(unix_micros(modificationTime) AS DOUBLE) / 1e6 AS time",
        )  # fmt: skip

    def _batch(self, frame: DataFrame, batch: int) -> None:
        try:
            self._counted(frame, batch)
        except (JbiError, OSError) as error:  # through Java it would come back as a stack trace
            self._broken = error
            raise

    def _counted(self, frame: DataFrame, batch: int) -> None:
        if batch <= self.state.batch:  # it was counted, and then we were interrupted before Spark knew
            return
        spark, settings = frame.sparkSession, self.state.settings
        files = files_of(self.folder / _CHECKPOINT, batch)
        if any(session.is_pattern(str(file)) for file in files):
            # Spark 4.3 takes the name of such a file in a stream for a pattern, and reads others of the batch again
            there = [session.hadoop_path(file, pattern=True) for file in files if file.is_file()]
            if there:
                frame = self._columns(spark, spark.read, there)
        packed = spark.sparkContext.broadcast(pack(self._contracts()))

        def partial(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for each in batches:
                rows = dataset.publications_of(each)
                if settings.publisher:
                    rows = (msgspec.structs.replace(row, publisher=settings.publisher) for row in rows)
                yield from _encoded(judged_by_window(packed.value, settings, rows))

        columns = "start bigint, last double, what string, key string, number bigint, size bigint"
        parts = frame.mapInArrow(partial, columns).groupBy("start", "what", "key")
        table = parts.agg({"last": "max", "number": "sum", "size": "sum"}).toArrow()
        packed.destroy()
        with self._lock:
            count(self.state, batch, _decoded(table.to_pylist()), time.time())
            report.write(self.folder / _STATE, msgspec.json.encode(self.state))
            found = told(self.state)
            if table.num_rows:
                self.batches += 1
                self.changed = time.monotonic()
        run = StudyRun(input=settings.folder, engine="spark", spark=spark.version)
        shown = page_of(found, run, found.tables, [], refresh=REFRESH_SECONDS)
        report.write(self.folder / "report.html", shown.encode())


def _encoded(parts: Iterable[tuple[int, float, Sums]]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = pa.schema([
        ("start", pa.int64()), ("last", pa.float64()), ("what", pa.string()), ("key", pa.string()),
        ("number", pa.int64()), ("size", pa.int64()),
    ])  # fmt: skip
    for start, last, sums in parts:
        rows = [(start, last, what, key, number, size) for (what, key), (number, size, _) in sums.items()]
        yield from report.table_of(rows, schema).to_batches()


def _decoded(rows: Iterable[dict[str, Any]]) -> list[tuple[int, float, Sums]]:
    found: dict[int, tuple[float, Sums]] = {}
    for row in rows:
        last, sums = found.get(row["start"], (row["max(last)"], {}))
        sums[row["what"], row["key"]] = [row["sum(number)"], row["sum(size)"], 0]
        found[row["start"]] = (max(last, row["max(last)"]), sums)
    return [(start, *found[start]) for start in sorted(found)]


def _read(path: Path) -> State | None:
    try:
        found = from_json(State, path.read_bytes())
        if found.format != _FORMAT or any(str(window.start) != key for key, window in found.open.items()):
            raise msgspec.ValidationError(f"it is not of format {_FORMAT}")
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StudyError(
            f"the state of an earlier watch, {path}, can't be read: {error}"[:400], hint="Give another --out"
        ) from error
    return found


def _check(folder: Path, batch: int) -> None:
    """Raises ConfigurationError where the state, of after `batch`, and Spark's checkpoint are not of each other:
    something would be lost, or counted twice."""
    begun, done = (_last(folder / _CHECKPOINT / name) for name in ("offsets", "commits"))
    if not done <= batch <= begun <= batch + 1:
        raise ConfigurationError(
            f"{_STATE} and {_CHECKPOINT} in {folder} are not of one watch: one knows {batch + 1} batches, the other "
            f"{begun + 1}",
            hint="Somebody has removed or replaced one of them: give another --out, and count again",
        )


def files_of(checkpoint: Path, batch: int) -> list[Path]:
    """The files that Spark hands out as a batch. Raises StudyError for a log that can't be read."""

    def offset(number: int) -> int:
        if number < 0:
            return -1
        lines = (checkpoint / "offsets" / str(number)).read_bytes().splitlines()
        return int(from_json(dict[str, int], lines[-1])["logOffset"])

    try:
        found = []
        for number in range(offset(batch - 1) + 1, offset(batch) + 1):
            log = checkpoint / "sources" / "0" / str(number)
            log = log if log.is_file() else log.with_name(f"{number}.compact")
            entries = [from_json(_Handed, line) for line in log.read_bytes().splitlines()[1:]]
            found += [Path(unquote(urlsplit(each.path).path)) for each in entries if each.batchId == number]
    except (OSError, ValueError, KeyError, IndexError, msgspec.DecodeError) as error:
        raise StudyError(f"{checkpoint} can't be read: {error}"[:400], hint="Give another --out") from error
    return found


def _last(log: Path) -> int:
    """The last batch in one of Spark's logs, -1 for none."""
    return max((int(path.name) for path in log.glob("*") if path.name.isdecimal()), default=-1)


def _differences(before: WatchSettings, now: WatchSettings) -> str:
    names = [name for name in now.__struct_fields__ if getattr(before, name) != getattr(now, name)]
    return ", ".join(f"{name} {getattr(before, name)!r}, not {getattr(now, name)!r}" for name in names)


def _cause(text: str) -> str:
    """The line of a stream's failure that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:") or ("Exception: " in line and "[" in line)]
    return (causes or lines or ["no reason given"])[0].removeprefix("Caused by: ")[:400]
