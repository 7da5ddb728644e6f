"""Result of a study, and the folder that it leaves: tables, plots, a page for people, and what has to be known to
trust it.

    out/result.json      facts and numbers: the same bytes for the same input, whatever the engine
    out/report.html      the same to look at: one file, no network
    out/tables/          NAME.parquet and NAME.csv
    out/plots/           NAME.svg and NAME.png
    out/stages/          what stages have come to, for a run that goes on (stages.py)
    out/manifest.json    input, engine, versions, timings, files; `state` is "running" until all is there
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.core.values import converted
from jbi_pubsub.spark import page, plots, report
from jbi_pubsub.spark.dataset import Reject
from jbi_pubsub.spark.page import ResultTable, Value, texts
from jbi_pubsub.spark.plots import Plot

FORMAT: Final = "jbi-result-1"
"""Names this layout in the manifest."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of a study. `facts` are lines for people, `numbers` the same to be compared by programs."""

    study: str
    question: str
    facts: tuple[tuple[str, str], ...]
    numbers: dict[str, float]
    tables: tuple[ResultTable, ...] = ()
    plots: tuple[Plot, ...] = ()


class ResultFacts(msgspec.Struct, frozen=True):
    """result.json: what is told of a Result."""

    study: str
    facts: tuple[tuple[str, str], ...]
    numbers: dict[str, float]


class StudyRun(msgspec.Struct, frozen=True, kw_only=True):
    """Run that found it. `spark` and `java` are versions, "" for the engine local; `timings` are (stage, seconds);
    `resumed` says what was taken from an earlier run."""

    input: str
    engine: str
    spark: str = ""
    java: str = ""
    timings: tuple[tuple[str, float], ...] = ()
    parameters: dict[str, Value] = msgspec.field(default_factory=dict)
    rejected: int = 0
    resumed: str = ""


def page_of(
    result: Result, run: StudyRun, tables: Sequence[ResultTable], drawn: Sequence[tuple[Plot, str]], *, refresh: int = 0
) -> str:
    """The page of a result. `drawn`: its plots with their SVG; `refresh`: seconds until a browser reads it again."""
    title = f"Study: {result.study}"
    return page.laid_out(title, result.question, result.facts, tables, drawn, _how(run), refresh=refresh)


def _how(run: StudyRun) -> str:
    engine = f"Spark {run.spark}, Java {run.java}" if run.spark else "one process"
    parameters = ", ".join(f"{name} {value}" for name, value in run.parameters.items())
    seconds = ", ".join(f"{stage} {spent:.1f}" for stage, spent in run.timings)
    told = [f"Input {run.input}", f"By {engine}", parameters, f"Seconds: {seconds}" if seconds else ""]
    return "".join(f"{each}. " for each in told if each).strip()


def finish(folder: Path, result: Result, run: StudyRun, rejects: Sequence[Reject] = ()) -> list[str]:
    """Write all of it, the manifest last; the files' names. Raises StudyError (full disk, no matplotlib)."""
    names = leave(folder, result, run, rejects)
    manifest = {"format": FORMAT, "state": "complete", "study": result.study, "run": run, "files": names}
    with report.writing(folder):
        encoded = msgspec.json.Encoder(order="sorted").encode(manifest)
        report.write(folder / report.MANIFEST, msgspec.json.format(encoded))
    return names


def leave(folder: Path, result: Result, run: StudyRun, rejects: Sequence[Reject] = ()) -> list[str]:
    """Write all but the manifest, and remove what an earlier result has left; the files' names. Raises StudyError."""
    told = [*result.tables, *([_rejected(rejects)] if rejects else [])]
    drawn = [(plot, *plots.drawn(plot)) for plot in result.plots]
    encode = msgspec.json.Encoder(order="sorted").encode
    files: dict[str, bytes] = {
        "result.json": msgspec.json.format(
            encode({"study": result.study, "facts": result.facts, "numbers": result.numbers})
        )
    }
    for table in told:
        files[f"tables/{table.name}.csv"] = _csv(table)
        files[f"tables/{table.name}.parquet"] = _parquet(table)
    for plot, svg, png in drawn:
        files[f"plots/{plot.name}.svg"] = svg.encode()
        files[f"plots/{plot.name}.png"] = png
    files["report.html"] = page_of(result, run, told, [(plot, svg) for plot, svg, _ in drawn]).encode()
    with report.writing(folder):
        for old in (path for kind in ("tables", "plots") for path in (folder / kind).glob("*.*")):
            if f"{old.parent.name}/{old.name}" not in files:
                old.unlink()
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            report.write(folder / name, content)
    return sorted(files)


def read(folder: Path) -> tuple[Result, StudyRun]:
    """A finished result, without its tables and plots, and how it was found. Raises StudyError for what is none, or not
    finished."""
    manifest, found = (report.json_in(folder / name) for name in (report.MANIFEST, "result.json"))
    if not isinstance(manifest, dict) or manifest.get("format") not in report.RESULTS:
        raise StudyError(f"{folder} holds no result of a study", hint="Give the folder of --out")
    if manifest.get("state") != "complete":
        raise StudyError(f"the study in {folder} was not finished", hint="Run it again with --resume")
    try:
        told = converted(found, ResultFacts)
        run = converted(manifest.get("run") or {"input": "", "engine": ""}, StudyRun)  # a made-up one's is in its facts
    except (msgspec.ValidationError, RecursionError) as error:
        raise StudyError(
            f"{folder} is not as a study has left it: {error}"[:400], hint="Run the study again"
        ) from error
    return Result(study=told.study, question="", facts=told.facts, numbers=told.numbers), run


def _rejected(rejects: Sequence[Reject]) -> ResultTable:
    return ResultTable(
        name="rejects",
        title="What could not be read",
        columns=texts("table", "row", "reason"),
        rows=tuple((each.table, each.row, each.reason) for each in rejects),
        note="Nothing of these is counted anywhere else. Of many, the first by row are here.",
    )


def _csv(table: ResultTable) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for name, _ in table.columns])
    writer.writerows(["" if value != value else _harmless(value) for value in row] for row in table.rows)  # NaN
    return out.getvalue().encode()


def _harmless(value: Value) -> Value:
    """A text as a terminal shows and a spreadsheet takes it: neither obeys it (OWASP, CSV injection)."""
    if not isinstance(value, str):
        return value
    text = value if value.isprintable() else "".join(c if c.isprintable() or c == "\n" else " " for c in value)
    return f"'{text}" if _FORMULA.match(text) else text


_FORMULA: Final = re.compile(r"[=+@]|-(?!\d*\.?\d*(e[+-]\d+)?\Z)")
"""Text that a spreadsheet takes for a formula; a number below 0 is one."""


def _parquet(table: ResultTable) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in table.columns])
    sink = io.BytesIO()
    pq.write_table(report.table_of(table.rows, schema), sink, compression=report.COMPRESSION)
    return sink.getvalue()
