"""`jbi study`: bulk studies, in this process or on Spark, with the product's own matching."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.progress import Progress, TaskID

from jbi_pubsub.spark import ENGINES, match_study, report
from jbi_pubsub.spark.dataset import write
from jbi_pubsub.spark.domain import Domain
from jbi_pubsub.spark.result import Result, Run, finish
from jbi_pubsub.spark.studies import aggregation, bandwidth, comparison, fanout, invariants, predicates
from jbi_pubsub.spark.studies.study import Options, Study, data_in, run

from .cluster import on_clusters, place_option, resume_option, written_to
from .near import NearNames
from .settings import Settings, json_option, pass_settings, try_folder
from .show import console, show_json, show_rows
from .watch import watch

Tell = Callable[[str, int, int], None]


@click.group(cls=NearNames)
def study() -> None:
    """Bulk studies with the product's own matching: who would get what, and what it would cost.

    \b
    jbi study generate --out data          make up a data set, or
    jbi study export --out data            take one from a running federation
    jbi study predicates data              ask it something
    """


@contextmanager
def telling() -> Iterator[Tell]:
    """A progress bar for each stage, in a terminal."""
    with Progress(console=console(), transient=True, disable=not sys.stdout.isatty()) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None)
            progress.update(tasks[stage], completed=done, total=total or None)

        yield tell


def out_option(default: str) -> Callable[[Any], Any]:
    """--out of a study."""
    return click.option(
        "--out", type=click.Path(file_okay=False, path_type=Path), default=Path(default), show_default=True,
        callback=try_folder, help="Folder for the result.",
    )  # fmt: skip


@study.command()
@click.option("--registrations", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--templates", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@out_option("study-match")
@click.option("--engine", type=click.Choice(list(ENGINES)), default="auto", show_default=True)
@resume_option
@on_clusters
@json_option
def match(
    registrations: int,
    templates: int,
    seed: int,
    out: Path,
    engine: str,
    master: str,
    settings: Mapping[str, str],
    resume: bool,
    as_json: bool,
) -> None:
    """Match a generated population of registrations with templates; Parquet, HTML report, a table.

    \b
    jbi study match
    jbi study match --registrations 1000000 --templates 100000 --engine spark --out big
    """
    with telling() as tell:
        found = match_study(
            registrations=registrations,
            templates=templates,
            seed=seed,
            out=out,
            engine=engine,
            master=master,
            settings=settings,
            resume=resume,
            progress=tell,
        )
    if as_json:
        show_json(json.loads(msgspec.json.encode(found)))
    else:
        show_rows(("", ""), found.rows(), title="first-level match study")


@study.command()
@click.option("--registrations", type=click.IntRange(1), default=100, show_default=True)
@click.option("--subscriptions", type=click.IntRange(0), default=1_000, show_default=True)
@click.option("--publications", type=click.IntRange(0), default=100_000, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--skew", type=float, default=1.0, show_default=True, help="Exponent of Zipf's law.")
@click.option("--wildcards", type=float, default=0.5, show_default=True, help="Share of template fields left open.")
@click.option("--selectivity", type=float, default=0.01, show_default=True, help="Share that a predicate lets through.")
@click.option("--rate", type=float, default=100.0, show_default=True, help="Publications a second.")
@click.option("--delegates", type=click.IntRange(1), default=4, show_default=True)
@out_option("study-data")
@json_option
def generate(out: Path, as_json: bool, **numbers: Any) -> None:
    """Make up a data set: imagery, tracks, target lists, alerts, and who wants them.

    \b
    jbi study generate --out data
    jbi study generate --publications 1000000 --selectivity 0.001 --seed 7 --out data
    """
    domain = Domain(**numbers)
    with telling() as tell:
        count = write(out, domain.contracts(), domain.published(), source="generated", progress=tell)
    facts = {"publications": count, "registrations": domain.registrations, "subscriptions": domain.subscriptions}
    if as_json:
        show_json({**facts, "out": str(out)})
    else:
        show_rows(("", ""), [*((name, f"{n:,}") for name, n in facts.items()), ("data set", str(out))], title="made up")


@study.command("export")
@click.option("--publications", type=click.IntRange(1), metavar="N", help="End the tap after so many objects.")
@click.option("--seconds", type=click.FloatRange(0), metavar="S", help="End it after so long; 0: contracts alone.")
@click.option("--megabytes", type=click.IntRange(1), default=1024, show_default=True, help="End it at so much data.")
@click.option("--payloads/--no-payloads", default=True, help="Whether payloads are kept, or only their length.")
@click.option("--resume", is_flag=True, help="Keep what is there, and go on.")
@out_option("study-data")
@json_option
@pass_settings
def export_command(
    settings: Settings,
    publications: int | None,
    seconds: float | None,
    megabytes: int,
    payloads: bool,
    resume: bool,
    out: Path,
    as_json: bool,
) -> int:
    """Take a data set from a running federation: registrations, subscriptions, and a tap of what is published.

    The tap goes on for a minute unless told otherwise; Ctrl-C ends it, and what has come is the data set (exit code
    130). Where access is restricted, it takes who may `administer` the delegates and subscribe to everything.

    
    jbi study export --out data
    jbi study export --publications 100000 --out data
    jbi study export --seconds 3600 --no-payloads --resume --out data
    """
    from . import export

    bounds = export.bounds_of(publications, seconds, megabytes)
    with telling() as tell:
        facts, interrupted = export.export(
            settings.load(), out, bounds, payloads=payloads, resume=resume, progress=tell
        )
    if as_json:
        show_json(facts)
    else:
        show_rows(("", ""), export.shown(facts), title="taken from the federation")
    return 130 if interrupted else 0


QUESTIONS: Final = {
    "predicates": (predicates.STUDY, "How much each predicate lets through, which never do and why, and their cost."),
    "fanout": (fanout.STUDY, "How many deliveries objects make, and how delegates could share them."),
    "bandwidth": (bandwidth.STUDY, "What predicates, filters and compression save, and what fits a link."),
    "invariants": (invariants.STUDY, "Which elements never change, and could be matched by the lookup service."),
    "aggregation": (aggregation.STUDY, "What sending to domains of subscribers saves."),
}


OWN: Final[Mapping[str, Callable[[Any], Any]]] = {
    "fanout": click.option(
        "--delegates",
        type=click.IntRange(1, 10_000),
        default=fanout.DELEGATES,
        show_default=True,
        help="Delegates to share registrations out to in thought.",
    ),
    "bandwidth": click.option("--rates", default=bandwidth.RATES, show_default=True, help="Links' bits a second."),
}
"""What a study asks beside what all do."""


def _command(name: str, asked: Study, sentence: str) -> click.Command:
    @click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
    @place_option(f"study-{name}")
    @click.option("--engine", type=click.Choice(list(ENGINES)), default="auto", show_default=True)
    @click.option("--max-rejects", type=click.IntRange(-1), default=-1, help="Fail above so many unreadable rows.")
    @resume_option
    @on_clusters
    @json_option
    def command(
        data: Path,
        out: Path | str,
        engine: str,
        master: str,
        settings: Mapping[str, str],
        resume: bool,
        max_rejects: int,
        as_json: bool,
        **parameters: Any,
    ) -> None:
        with (
            telling() as tell,
            written_to(out, name=f"jbi study {name}", master=master, settings=settings) as folder,
        ):
            options = Options(
                engine=engine,
                master=master,
                settings=settings,
                resume=resume,
                max_rejects=max_rejects,
                parameters=parameters,
                progress=tell,
            )
            found, how = run(asked, data_in(data), folder, options)
        _show(found, how, out, as_json)

    command.__doc__ = f"{sentence}\n\n\b\njbi study {name} data\njbi study {name} data --engine spark --out {name}"
    return click.command(name)(OWN[name](command) if name in OWN else command)


for _name, (_asked, _sentence) in QUESTIONS.items():
    study.add_command(_command(_name, _asked, _sentence))
study.add_command(watch)


@study.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, file_okay=False, path_type=Path))
@out_option("study-compare")
@json_option
def compare(before: Path, after: Path, out: Path, as_json: bool) -> None:
    """Put two results of a study side by side: what changed.

    \b
    jbi study compare study-fanout-monday study-fanout-friday
    """
    found = comparison.compare(before, after)
    how = Run(input=f"{before} and {after}", engine="local")
    finish(report.claim(out), found, how)
    _show(found, how, out, as_json)


def _show(found: Result, how: Run, out: Path | str, as_json: bool) -> None:
    if as_json:
        facts: Mapping[str, Any] = {"numbers": found.numbers, "facts": dict(found.facts)}
        show_json({"study": found.study, **facts, "run": msgspec.to_builtins(how), "out": str(out)})
    else:
        seconds = ", ".join(f"{stage} {spent:.1f}" for stage, spent in how.timings)
        engine = f"Spark {how.spark}, Java {how.java}" if how.spark else "this process"
        rows = [*found.rows(), ("engine", engine), ("seconds", seconds or "-")]
        rows += [("resumed", how.resumed)] if how.resumed else []
        rows += [("report", f"{out}/report.html")]
        show_rows(("", ""), rows, title=f"study: {found.study}")
