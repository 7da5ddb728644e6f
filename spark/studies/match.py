"""Studies: bulk runs of the lookup service's own semantics over made-up populations.

`match_study` answers: which of R registrations does each of T templates match, and how are the matches spread?
Small inputs run in this process, large ones on Spark; the results are equal, row by row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial, reduce
from operator import xor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import level1, plots, report, result, session, stages
from jbi_pubsub.spark.generators import CLASSES, SHAPES, WIDTH, Population, hash_long, xxhash64
from jbi_pubsub.spark.page import ResultTable, integers, texts
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.reference import Group, Matcher, match_by_definition
from jbi_pubsub.spark.report import GroupSums, MatchReport, SampleCheck
from jbi_pubsub.spark.result import Result, StudyRun
from jbi_pubsub.spark.session import Progress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LARGEST_LOCAL: Final = 500_000
"""Registrations plus templates up to which `auto` stays in this process (docs/spark.md: where the two cross)."""
SAMPLE_SHARE: Final = 100
"""One registration in so many is compared with the in-process matcher ..."""
FEWEST_SAMPLED: Final = 100
"""... but at least so many, and"""
MOST_SAMPLED: Final = 10_000
"""at most so many: a second or two in this process."""
MOST_INDEXED: Final = 100_000
"""Templates that the check makes and indexes in this process: about a second. Of more, every k-th. Each pair of a
sampled registration and a sampled template is decided by both engines, so what is compared is exact; of a fault that
hits a share p of pairs, n such pairs without a hit or miss (10,000 x 100,000) miss it with (1 - p)^n."""
_DEFINED_REGISTRATIONS: Final = 100
_DEFINED_PAIRS: Final = 200_000
"""Pairs tried by `entry.matches` itself, the definition: 0.1 s."""
_PARTITION_ROWS: Final = 500_000
"""Registrations of a Spark task: about a second of work, so progress moves and a lost task costs little."""
_REPORT_EVERY: Final = 10_000
"""Registrations between two calls of `progress` in this process: 0.1 s."""


class _Outcome(msgspec.Struct, frozen=True):
    """Outcome of an engine: sums, the two checksums, and (rid, gid) of the sampled registrations; of a large study
    also (gid, tid) of the sampled templates."""

    cells: list[GroupSums]
    hits_checksum: int
    groups_checksum: int
    sampled: set[tuple[int, int]]
    members: tuple[tuple[int, int], ...] = ()
    matcher: Matcher | None = None
    spark: str = ""
    java: str = ""
    resumed: str = ""


def match_study(
    *,
    registrations: int,
    templates: int,
    seed: int,
    out: Path,
    engine: str = "auto",
    master: str = "",
    settings: Mapping[str, str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> MatchReport:
    """Match a population of `registrations` with `templates` and write the result to the folder `out`.

    `engine` is "local" (this process), "spark", or "auto": local up to LARGEST_LOCAL rows. `master` and
    `settings` are Spark's; a cluster's executors must see the same folder. With `resume`, stages that
    an earlier run on Spark has finished in `out` for the same population are not done again. `progress` is called from
    this thread with (stage, done, total). Every run checks itself: on Spark a sample of 1 % of the registrations
    against the in-process matcher, and on both engines a sample of pairs against `entry.matches`.

    Raises ConfigurationError (numbers out of range, unknown engine, unusable folder) and StudyError (Java, Spark or
    PyArrow or matplotlib missing or failing, or the check found a difference).
    """
    population = Population(registrations=registrations, templates=templates, seed=seed)
    chosen = "spark" if engine == "auto" and (master or settings) else _choose(engine, population)
    report.parquet_present()
    plots.present()
    with report.claimed(out) as folder:
        step = sample_step(registrations)
        timings: dict[str, float] = {}
        if chosen == "spark":
            made_from = stages.digest([f"match {registrations} {templates} {seed}".encode()])
            done = stages.StudyStages(folder, made_from, resume=resume)
            opened = partial(session.open_session, "jbi study match", extra=settings, master=master)
            outcome = _on_spark(opened, done, population, folder, step, timings, progress)
        else:
            outcome = _in_process(population, folder, step, timings, progress)
        with stages.timed(timings, "check"):
            check = _check(population, outcome, step, progress)
        made = _report(population, chosen, outcome, check, timings, folder)
        how = StudyRun(
            input="a generated population", engine=chosen, spark=outcome.spark, java=outcome.java, timings=made.timings,
            parameters={"seed": seed, **made.checks()}, resumed=outcome.resumed,
        )  # fmt: skip
        result.leave(folder, result_of(made), how)
        return report.finish(folder, made)


def result_of(found: MatchReport) -> Result:
    """The same as other studies tell it: nothing in it depends on the engine."""
    names = tuple(f"{r.low}" if r.low == r.high else f"{r.low}-{r.high}" for r in found.distribution)
    return Result(
        study="match",
        question="Which templates of a made-up population match which registrations?",
        facts=tuple(found.facts()),
        numbers={
            "registrations": found.registrations,
            "subscriptions": found.templates,
            "templates": found.groups,
            "pairs": found.pairs,
            "never": found.templates - found.templates_matched,
        },
        tables=(
            ResultTable(
                name="distribution",
                title="Templates by the number of registrations each matches",
                columns=integers("from", "to", "templates", "pairs"),
                rows=tuple((r.low, r.high, r.templates, r.pairs) for r in found.distribution),
            ),
            ResultTable(
                name="shapes",
                title="Templates by their shape",
                columns=texts("shape") + integers("templates", "distinct", "pairs"),
                rows=tuple((r.shape, r.templates, r.groups, r.pairs) for r in found.shapes),
                note="A shape is a class with the fields that are set.",
            ),
        ),
        plots=(
            Plot(
                name="matches",
                title="Templates by the number of registrations each matches",
                kind="bars",
                x="registrations",
                y="templates",
                series=(Series("templates", names, tuple(float(r.templates) for r in found.distribution)),),
            ),
        ),
    )


def sample_step(registrations: int) -> int:
    """Every how-manieth registration is sampled: 1 %, within FEWEST_SAMPLED and MOST_SAMPLED registrations."""
    share = min(SAMPLE_SHARE, registrations // FEWEST_SAMPLED)
    return max(1, share, -(-registrations // MOST_SAMPLED))


def _choose(engine: str, population: Population) -> str:
    session.check_engine(engine)
    if engine != "auto":
        return engine
    return "local" if population.registrations + population.templates <= LARGEST_LOCAL else "spark"


def _in_process(
    population: Population, folder: Path, step: int, timings: dict[str, float], progress: Progress | None
) -> _Outcome:
    with stages.timed(timings, "templates"):
        _tell(progress, "templates", 0, population.templates)
        matcher = Matcher(population.template_rows())
        with report.table(folder, "templates") as written:
            for group in matcher.groups:
                values = group.template.values
                texts = values + (None,) * (WIDTH - len(values))
                written.add(group.gid, group.template.cls.name, _shape(group), *texts, group.tids)
        _tell(progress, "templates", population.templates, population.templates)
    counts: Counter[int] = Counter()
    checksums: dict[int, int] = {}
    sampled: set[tuple[int, int]] = set()
    hit_seed = xxhash64(level1.HIT_STREAM)
    with stages.timed(timings, "match"), report.table(folder, "hits") as written:
        for rid, entry in population.registration_rows():
            found = matcher.match(entry)
            counts.update(found)
            row_seed = hash_long(rid, hit_seed)
            for gid in found:
                written.add(rid, gid)
                checksums[gid] = checksums.get(gid, 0) ^ hash_long(gid, row_seed)
            if rid % step == 0:
                sampled.update((rid, gid) for gid in found)
            if rid % _REPORT_EVERY == 0:
                _tell(progress, "match", rid, population.registrations)
        _tell(progress, "match", population.registrations, population.registrations)
    with stages.timed(timings, "count"), report.table(folder, "counts") as written:
        for gid, registrations in counts.items():
            written.add(gid, registrations, level1.signed(checksums[gid]))
    cells = _cells(matcher.groups, counts)
    return _Outcome(cells, _xor(checksums.values()), _groups_checksum(matcher.groups), sampled, matcher=matcher)


def _on_spark(
    opened: Callable[[], AbstractContextManager[SparkSession]],
    done: stages.StudyStages,
    population: Population,
    folder: Path,
    step: int,
    timings: dict[str, float],
    progress: Progress | None,
) -> _Outcome:
    with ExitStack() as stack:
        with stages.timed(timings, "start"):
            _tell(progress, "start", 0, 0)
            spark = stack.enter_context(opened())
        views = _Views(spark, folder)
        stack.callback(views.drop)
        cores = spark.sparkContext.defaultParallelism
        parts = max(cores, -(-population.registrations // _PARTITION_ROWS))
        views.define("registration_rows", population.registration_sql(partitions=parts))
        views.define("template_rows", population.template_sql(partitions=cores))

        def stage(name: str, table: str, query: str) -> None:
            with stages.timed(timings, name):
                if done.finished(name) is None:
                    done.begin(name)
                    session.run(spark, name, lambda: views.write(table, query), progress=progress)
                    with report.writing(folder):
                        done.finish(name, [folder / table])
                views.read(table)

        thin = template_step(population.templates)
        broadcast = population.templates <= level1.LARGEST_BROADCAST
        names = views.names
        stage("templates", "templates", level1.groups_sql(names["template_rows"]))
        stage("match", "hits", level1.hits_sql(names["registration_rows"], names["templates"], broadcast=broadcast))
        stage("count", "counts", level1.counts_sql(names["hits"]))
        with stages.timed(timings, "count"):
            outcome = session.run(spark, "sum", lambda: _spark_outcome(spark, names, step, thin), progress=progress)
        return msgspec.structs.replace(outcome, resumed=done.told())


class _Views:
    """The temporary views of one run: made-up rows by their query, results by their Parquet table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self.names: dict[str, str] = {}

    def define(self, name: str, query: str) -> None:
        self._name(name, self._spark.sql(query))

    def write(self, table: str, query: str) -> None:
        """Write the query's rows as Parquet."""
        path = session.hadoop_path(self._folder / table)  # its reading is another step: it may be there already
        self._spark.sql(query).write.mode("overwrite").option("compression", report.COMPRESSION).parquet(path)

    def read(self, table: str) -> None:
        """Let the view `table` read what was written."""
        self._name(table, self._spark.read.parquet(session.hadoop_path(self._folder / table, pattern=True)))

    def drop(self) -> None:
        for name in self.names.values():
            self._spark.catalog.dropTempView(name)

    def _name(self, name: str, rows: DataFrame) -> None:
        self.names[name] = f"jbi_study_{name}"
        rows.createOrReplaceTempView(self.names[name])


def _spark_outcome(spark: SparkSession, names: dict[str, str], step: int, thin: int) -> _Outcome:
    cells = [
        GroupSums(**row.asDict()) for row in spark.sql(level1.cells_sql(names["templates"], names["counts"])).collect()
    ]
    [sums] = spark.sql(level1.checksum_sql(names["templates"], names["counts"])).collect()
    sample = spark.table(names["hits"]).where(f"rid % {step} = 0").select("rid", "gid").toArrow()
    return _Outcome(
        cells,
        sums["hits"] % (1 << 64),
        sums["groups"] % (1 << 64),
        set(zip(sample["rid"].to_pylist(), sample["gid"].to_pylist(), strict=True)),
        _spark_members(spark, names["templates"], thin) if thin > 1 else (),
        spark=spark.version,
        java=session.java_version(spark),
    )


def _spark_members(spark: SparkSession, templates: str, thin: int) -> tuple[tuple[int, int], ...]:
    rows = spark.table(templates).selectExpr("gid", "explode(tids) AS tid").where(f"tid % {thin} = 0").toArrow()
    return tuple(zip(rows["gid"].to_pylist(), rows["tid"].to_pylist(), strict=True))


def _check(population: Population, outcome: _Outcome, step: int, progress: Progress | None) -> SampleCheck:
    """Compare the sample with the in-process matcher (when Spark ran), and pairs with the definition."""
    _tell(progress, "check", 0, 2)
    matcher, hits, thin, compared = outcome.matcher, outcome.sampled, 1, 0
    if matcher is None:
        thin = template_step(population.templates)
        matcher = Matcher(population.template_rows(step=thin))
        expected = {
            (rid, gid) for rid, entry in population.registration_rows(step=step) for gid in matcher.match(entry)
        }
        compared = len(range(0, population.registrations, step))
        if thin > 1:
            hits = _check_thinned(outcome, matcher, expected)
        else:
            _equal("the in-process matcher", "hits (registration, group)", hits, expected)
            groups = {(outcome.groups_checksum, len(matcher.groups))}
            own = {(_groups_checksum(matcher.groups), sum(cell.groups for cell in outcome.cells))}
            _equal("the in-process matcher", "groups (checksum, number)", own, groups)
    _tell(progress, "check", 1, 2)
    tried, matched = _check_by_definition(population, hits, matcher, step, thin)
    _tell(progress, "check", 2, 2)
    return SampleCheck(step, compared, len(hits) if compared else 0, tried, matched)


def _check_thinned(outcome: _Outcome, matcher: Matcher, expected: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """The same for every `thin`-th template alone: whose groups must be one exactly where the templates are equal, and
    which must match the sampled registrations that the in-process matcher says: these hits."""
    own = {tid: group.gid for group in matcher.groups for tid in group.tids}
    _equal(
        "the population", "sampled templates (0, template)", {(0, t) for _, t in outcome.members}, {(0, t) for t in own}
    )
    # The lowest sampled member of a group names it here, as the lowest of all does there: the two must go together.
    named: dict[int, int] = {}
    for gid, tid in outcome.members:
        named[gid] = min(named.get(gid, tid), tid)
    grouped = {(named[gid], tid) for gid, tid in outcome.members}
    _equal("the in-process matcher", "groups (lowest, template)", grouped, {(gid, tid) for tid, gid in own.items()})
    found = {(rid, named[gid]) for rid, gid in outcome.sampled if gid in named}
    _equal("the in-process matcher", "hits (registration, lowest template)", found, expected)
    return found


def template_step(templates: int) -> int:
    """Every how-manieth template the check looks at: all, up to MOST_INDEXED of them."""
    return max(1, -(-templates // MOST_INDEXED))


def _check_by_definition(
    population: Population, sampled: set[tuple[int, int]], matcher: Matcher, step: int, thin: int
) -> tuple[int, int]:
    """Number of pairs tried with `entry.matches`, and of those that match. Raises StudyError on a difference."""
    spread = -(-population.registrations // _DEFINED_REGISTRATIONS)  # over the whole population, like the sample
    entries = list(population.registration_rows(step=max(step, -(-spread // step) * step)))
    thinned = max(1, -(-population.templates * len(entries) // _DEFINED_PAIRS))
    asked = list(population.template_rows(step=-(-thinned // thin) * thin))
    expected = match_by_definition(entries, asked)
    rids, tids = {rid for rid, _ in entries}, {tid for tid, _ in asked}
    members = {group.gid: tids.intersection(group.tids) for group in matcher.groups}
    found = {(rid, tid) for rid, gid in sampled if rid in rids for tid in members[gid]}
    _equal("the definition, entry.matches", "pairs (registration, template)", found, expected)
    return len(entries) * len(asked), len(expected)


def _equal(reference: str, what: str, found: set[tuple[int, int]], expected: set[tuple[int, int]]) -> None:
    if found != expected:
        first = min(found ^ expected)
        raise StudyError(
            f"the study's {what} differ from {reference}: {len(found - expected)} too many and "
            f"{len(expected - found)} missing, the first {first}",
            hint="The result is wrong and its manifest stays unfinished; please report parameters and versions",
            too_many=len(found - expected),
            missing=len(expected - found),
        )


def _report(
    population: Population, engine: str, outcome: _Outcome, check: SampleCheck, timings: dict[str, float], folder: Path
) -> MatchReport:
    cells = outcome.cells
    return MatchReport(
        registrations=population.registrations,
        templates=population.templates,
        seed=population.seed,
        engine=engine,
        spark=outcome.spark,
        java=outcome.java,
        resumed=outcome.resumed,
        groups=sum(cell.groups for cell in cells),
        hits=sum(cell.hits for cell in cells),
        pairs=sum(cell.pairs for cell in cells),
        templates_matched=sum(cell.templates for cell in cells if cell.bucket),
        checksum=f"{outcome.hits_checksum:016x}{outcome.groups_checksum:016x}",
        distribution=report.distribution(cells),
        shapes=report.by_shape(cells),
        check=check,
        timings=tuple((stage, round(seconds, 3)) for stage, seconds in timings.items()),
        out=str(folder),
        files=(),
    )


def _cells(groups: tuple[Group, ...], counts: Counter[int]) -> list[GroupSums]:
    sums: dict[tuple[int, int], list[int]] = {}
    for group in groups:
        matched, size = counts[group.gid], len(group.tids)
        cell = sums.setdefault((_shape(group), matched.bit_length()), [0, 0, 0, 0])
        for n, value in enumerate((1, size, matched, matched * size)):
            cell[n] += value
    return [GroupSums(shape, bucket, *values) for (shape, bucket), values in sums.items()]


def _shape(group: Group) -> int:
    bits = sum(1 << n for n, value in enumerate(group.template.values) if value is not None)
    return _SHAPE_NUMBERS[group.template.cls.name, bits]


_SHAPE_NUMBERS: Final = {(CLASSES[shape.cls].cls.name, shape.bits): n for n, shape in enumerate(SHAPES)}


def _groups_checksum(groups: tuple[Group, ...]) -> int:
    return _xor(xxhash64(level1.MEMBER_STREAM, group.gid, tid) for group in groups for tid in group.tids)


def _xor(values: Iterable[int]) -> int:
    return reduce(xor, values, 0)


def _tell(progress: Progress | None, stage: str, done: int, total: int) -> None:
    if progress is not None:
        progress(stage, done, total)
