"""Base of all studies of publications: they read a data set, judge each publication once, and tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark import dataset, passes, plots, report, result, session, stages
from jbi_pubsub.spark.dataset import Contracts, Reject
from jbi_pubsub.spark.judging import Judge, See, pack
from jbi_pubsub.spark.page import Value
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.result import Result, StudyRun
from jbi_pubsub.spark.session import Progress

ANY: Final = -1
"""Bound of rejects: any number."""
LARGEST_LOCAL: Final = 2_000_000
"""Publications up to which `auto` stays in this process: under a minute of judging (docs/spark.md)."""


class Data(msgspec.Struct, frozen=True):
    """Data that a study reads: where the publications' Parquet lies, the contracts, and what of them made no sense."""

    publications: str
    contracts: Contracts
    rejects: tuple[Reject, ...] = ()


class Study(msgspec.Struct, frozen=True):
    """`see` counts, in whatever process; `tell` makes the answer of the sums, in this one."""

    name: str
    see: See
    tell: Callable[[Passed, Judge, Data, Mapping[str, Value]], Result]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a study: `master` and `settings` are Spark's, without them a local one; more than `max_rejects`
    rejects (ANY: any number) fail it; `resume` goes on from what an
    earlier run with the same input has finished; `parameters` are the study's own."""

    engine: str = "auto"
    master: str = ""
    settings: Mapping[str, str] = {}
    max_rejects: int = ANY
    resume: bool = False
    parameters: Mapping[str, Value] = {}
    progress: Progress | None = None


def run(study: Study, data: Data, out: Path, options: Options) -> tuple[Result, StudyRun]:
    """Do it, and write the result to `out`.

    Raises ConfigurationError (unknown engine, unusable folder) and StudyError (columns, Java, Spark, too many rejects,
    a full disk): then no finished result is there.
    """
    session.check_engine(options.engine)
    report.parquet_present()
    plots.present()
    _apart(out, data)
    with report.claimed(out) as folder:
        return _done(study, data, folder, options)


def _apart(out: Path, data: Data) -> None:
    """Raises ConfigurationError for a result among the tables that are read."""
    tables = Path(data.publications.removeprefix("file://")).parent if _here(data) else None
    for name in (*dataset.CONTRACTS, "publications", "rejects") if tables is not None else ():
        if tables is not None and out.resolve().is_relative_to((tables / name).resolve()):
            raise ConfigurationError(f"--out {out} lies in {tables / name}, which is read", hint="Name another folder")


def _done(study: Study, data: Data, folder: Path, options: Options) -> tuple[Result, StudyRun]:
    timings: dict[str, float] = {}
    done = stages.StudyStages(folder, _made_from(study, data), resume=options.resume)
    with stages.timed(timings, "judge"):
        passed = _judged(study, data, options, folder, done)
    judge = Judge(data.contracts)
    rejects = [*data.rejects, *judge.rejects, *passed.rejects]
    rejected = len(data.rejects) + len(judge.rejects) + passed.total("rejected")[0]
    check_rejects(rejected, rejects, options.max_rejects)
    with stages.timed(timings, "tell"):
        told = with_rejects(study.tell(passed, judge, data, options.parameters), rejected)
        if (unknown := passed.total("unregistered")[0]) and data.contracts.registrations:
            fact = "of unknown registrations", f"{counted(unknown, 'object')}: no subscription with a template matches"
            told = msgspec.structs.replace(told, facts=(*told.facts, fact))
    how = StudyRun(
        input=data.publications,
        engine="spark" if passed.spark else "local",
        spark=passed.spark,
        java=passed.java,
        timings=tuple((stage, round(seconds, 3)) for stage, seconds in timings.items()),
        parameters=dict(options.parameters),
        rejected=rejected,
        resumed=done.told(),
    )
    result.finish(folder, told, how, rejects)
    return told, how


def check_rejects(rejected: int, rejects: Sequence[Reject], most: int) -> None:
    """Raises StudyError for more than `most` rows that could not be read."""
    if most != ANY and rejected > most:
        first = rejects[0]
        raise StudyError(
            f"{counted(rejected, 'row')} could not be read, more than {most:,}; the first, of {first.table}: "
            f"{first.row}: {first.reason}"[:600],
            hint="Correct the input, or raise --max-rejects",
            rejected=rejected,
        )


def with_rejects(told: Result, rejected: int) -> Result:
    """With how many rows could not be read, if any."""
    if not rejected:
        return told
    fact = ("could not be read", f"{counted(rejected, 'row')} (table rejects)")
    return msgspec.structs.replace(told, facts=(*told.facts, fact))


def _judged(study: Study, data: Data, options: Options, folder: Path, done: stages.StudyStages) -> Passed:
    """The one expensive stage: its sums are kept."""
    sums = folder / stages.FOLDER / "judge.parquet"
    facts = done.finished("judge")
    if facts is not None:
        return passes.load(sums, spark=str(facts.get("spark", "")), java=str(facts.get("java", "")))
    passed = _pass(study, data, options)
    with report.writing(folder):
        done.begin("judge")
        sums.parent.mkdir(exist_ok=True)
        passes.save(passed, sums)
        done.finish("judge", [sums], {"spark": passed.spark, "java": passed.java})
    return passed


def _made_from(study: Study, data: Data) -> str:
    """Digest of all that the sums depend on: not the parameters, which `tell` alone knows; "" for what is elsewhere."""
    if not _here(data):
        return ""
    where = Path(data.publications.removeprefix("file://"))
    files = [path for path, _ in passes.parquet_files(where)]
    return stages.digest([study.name.encode(), pack(data.contracts), *files])


def _here(data: Data) -> bool:
    return "://" not in data.publications or data.publications.startswith("file://")


def _pass(study: Study, data: Data, options: Options) -> Passed:
    where, is_here = data.publications, _here(data)
    path = Path(where.removeprefix("file://"))
    if _chosen(options, path if is_here else None) == "local":
        return passes.here(path, data.contracts, study.see, options.progress)
    with session.open_session(f"jbi study {study.name}", extra=options.settings, master=options.master) as spark:
        url = session.hadoop_path(path, pattern=True) if is_here else where
        return passes.on_spark(spark, url, data.contracts, study.see, options.progress)


def _chosen(options: Options, path: Path | None) -> str:
    if options.engine != "auto":
        if options.engine == "local" and path is None:
            raise ConfigurationError("the engine local reads files of this machine alone", hint="Use --engine spark")
        return options.engine
    if options.master or options.settings or path is None:
        return "spark"
    return "local" if sum(rows for _, rows in passes.parquet_files(path)) <= LARGEST_LOCAL else "spark"


def data_in(folder: Path) -> Data:
    """A data set. Raises StudyError for what is none, or not finished, and where PyArrow is missing."""
    report.parquet_present()
    if not dataset.is_dataset(folder):
        raise StudyError(f"{folder} is not a data set", hint="`jbi study export` and `jbi study generate` make one")
    rejects: list[Reject] = []
    rows = sum(rows for _, rows in passes.parquet_files(folder / "publications"))
    if (written := dataset.rows_written(folder)) not in (None, rows):
        raise StudyError(
            f"{folder / 'publications'} has {rows:,} rows, {written:,} were written",
            hint="Look for a part that is missing, or there twice, or make the data set again",
        )
    if (folder / "rejects").is_dir():
        rejects += [_reject(row) for row in passes.rows_in(folder / "rejects", "rejects")]
    return Data(str(folder / "publications"), contracts_in(folder, rejects), tuple(rejects))


def _reject(row: Mapping[str, Any]) -> Reject:
    """A row of `rejects`, which anybody may have written."""
    return Reject(*(dataset.sayable(str(row.get(name) or ""), 500) for name in Reject.__struct_fields__))


def contracts_in(folder: Path, rejects: list[Reject]) -> Contracts:
    """Those of a data set, which need not be finished. Raises StudyError."""
    rows = {name: passes.rows_in(folder / name, name) for name in dataset.CONTRACTS}
    return Contracts(**{name: tuple(dataset.contracts_of(each, name, rejects)) for name, each in rows.items()})


def counted(count: int, noun: str) -> str:
    """So many of them, for people."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def share(part: float, whole: float) -> str:
    """A share for people."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def unapplied(passed: Passed) -> list[tuple[str, str]]:
    """Fact that filters could not be applied, if there were some."""
    unknown = passed.total("unknown")[0]
    fact = ("filters not applied", f"{unknown:,} times: the payload was not kept, the whole counts")
    return [fact] if unknown else []
