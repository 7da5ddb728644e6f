"""`jbi study`: bulk studies, in this process or on Spark, with the product's own matching."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource
from rich.progress import Progress, TaskID

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.xml import Element
from jbi_pubsub.spark import ENGINES, ingest, match_study, report
from jbi_pubsub.spark.dataset import Contracts, Writer, write
from jbi_pubsub.spark.domain import Domain
from jbi_pubsub.spark.result import Result, Run, finish
from jbi_pubsub.spark.studies import (
    aggregation,
    bandwidth,
    capacity,
    comparison,
    contracts,
    fanout,
    invariants,
    predicates,
)
from jbi_pubsub.spark.studies.study import ANY, Options, Study, check_rejects, data_in, run, with_rejects

from .cluster import on_clusters, place_option, resume_option, written_to
from .near import NearNames
from .settings import Settings, json_option, pass_settings, try_folder
from .show import console, show_facts, show_json
from .watch import watch

Tell = Callable[[str, int, int], None]


@click.group(cls=NearNames)
def study() -> None:
    """Bulk studies with the product's own matching: who would get what, and what it would cost.

    \b
    jbi study generate --out data          # make up a data set, or
    jbi study export --out data            # take one from a running federation
    jbi study predicates data              # ask it something
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


class _Here(click.Path):  # type: ignore[type-arg,unused-ignore]  # generic in some releases of click
    """A folder of this machine."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A Path. Raises ConfigurationError for a URL."""
        if "://" in str(value):
            raise ConfigurationError(
                f"--out {value}: this command writes to folders of this machine alone",
                hint="Write it here, and copy it with `hadoop fs -put`",
            )
        return super().convert(value, param, ctx)


class _Finite(click.FloatRange):
    """A number in a range: NaN is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number."""
        found = super().convert(value, param, ctx)
        return self.fail("NaN is no number.", param, ctx) if found != found else found  # only NaN is not itself


def out_option(default: str) -> Callable[[Any], Any]:
    """--out of a study."""
    return click.option(
        "--out", type=_Here(file_okay=False, path_type=Path), default=Path(default), show_default=True,
        callback=try_folder, help="Folder for the result.",
    )  # fmt: skip


engine_option = click.option(
    "--engine", type=click.Choice(list(ENGINES)), default="auto", show_default=True,
    help="This process (local) or Spark; auto: this process, unless there is much.",
)  # fmt: skip
rejects_option = click.option(
    "--max-rejects", type=click.IntRange(ANY), default=ANY, help="Fail above so many unreadable rows; -1: never."
)


@study.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path), required=False)
@click.option(
    "--registrations", type=click.IntRange(1), default=100_000, show_default=True, help="Of the generated population."
)
@click.option("--templates", type=click.IntRange(1), default=1_000, show_default=True, help="Of the same.")
@click.option("--seed", type=int, default=1, show_default=True, help="Another one is another population.")
@out_option("study-match")
@engine_option
@rejects_option
@resume_option
@on_clusters
@json_option
@click.pass_context
def match(
    context: click.Context,
    data: Path | None,
    registrations: int,
    templates: int,
    seed: int,
    out: Path,
    engine: str,
    max_rejects: int,
    master: str,
    settings: Mapping[str, str],
    resume: bool,
    as_json: bool,
) -> None:
    """Match the registrations of a data set with its templates; without DATA, those of a generated population.

    \b
    jbi study match data
    jbi study match
    jbi study match --registrations 1000000 --templates 100000 --engine spark --out big
    """
    if data is not None:
        if engine == "spark":
            raise ConfigurationError(
                "contracts of a data set are matched in this process; --engine spark is for a generated population",
                hint="Leave it out, or DATA",
            )
        for name in ("registrations", "templates", "seed", "master", "conf", "resume"):
            if context.get_parameter_source("confs" if name == "conf" else name) is ParameterSource.COMMANDLINE:
                raise ConfigurationError(f"--{name} is for a generated population", hint="Leave it out, or DATA")
        _match_data(data, out, max_rejects, as_json)
        return
    if max_rejects != ANY:
        raise ConfigurationError("--max-rejects is for a data set", hint="Give DATA, or leave it out")
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
        show_facts(found.rows(), title="first-level match study")


def _match_data(data: Path, out: Path, max_rejects: int, as_json: bool) -> None:  # as the command's
    given = data_in(data)
    check_rejects(len(given.rejects), given.rejects, max_rejects)
    with report.claimed(out) as folder:
        began = time.perf_counter()
        found = with_rejects(contracts.match(given.contracts), len(given.rejects))
        timings = (("match", round(time.perf_counter() - began, 3)),)
        how = Run(input=str(data), engine="local", timings=timings, rejected=len(given.rejects))
        finish(folder, found, how, given.rejects)
    _show(found, how, out, as_json)


@study.command()
@click.option("--registrations", type=click.IntRange(1), default=100, show_default=True, help="Who publishes.")
@click.option("--subscriptions", type=click.IntRange(0), default=1_000, show_default=True, help="Who wants something.")
@click.option("--publications", type=click.IntRange(0), default=100_000, show_default=True, help="Objects, in all.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Another one is another data set.")
@click.option(
    "--skew",
    type=float,
    default=1.0,
    show_default=True,
    help="Exponent of Zipf's law: 0 is all values alike, 5 nearly always the first.",
)
@click.option(
    "--wildcards", type=float, default=0.5, show_default=True, help="Share of template fields left open, 0 to 1."
)
@click.option(
    "--selectivity", type=float, default=0.01, show_default=True, help="Share that a predicate lets through, 0 to 1."
)
@click.option("--rate", type=float, default=100.0, show_default=True, help="Publications a second.")
@click.option("--delegates", type=click.IntRange(1), default=4, show_default=True, help="That registrations stand at.")
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
        show_facts([*((name, f"{n:,}") for name, n in facts.items()), ("data set", str(out))], title="made up")


@study.command("export")
@click.option("--publications", type=click.IntRange(1), metavar="N", help="End the tap after so many objects.")
@click.option("--seconds", type=_Finite(0), metavar="S", help="End it after so long; 0: contracts alone.")
@click.option("--megabytes", type=click.IntRange(1), default=1024, show_default=True, help="End it at so much data.")
@click.option("--payloads/--no-payloads", default=True, help="Whether payloads are kept, or only their length.")
@click.option("--resume", is_flag=True, help="Keep what is there, and go on.")
@click.option("--parent", type=int, default=0, hidden=True, help="End with that process, which is ours.")
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
    parent: int,
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
            settings.load(), out, bounds, payloads=payloads, resume=resume, progress=tell, parent=parent
        )
    if as_json:
        show_json(facts)
    else:
        show_facts(export.shown(facts), title="taken from the federation")
    return 130 if interrupted else 0


existing_path = click.Path(exists=True, path_type=Path)
existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@study.command("import")
@click.argument("source", type=existing_path)
@click.option(
    "--format", "form", type=click.Choice(["auto", "xml", "lines", "parquet"]), default="auto", show_default=True,
    help="What SOURCE is; auto: by the endings of its files.",
)  # fmt: skip
@click.option("--schema", type=existing_file, help="XML Schema of the metadata: types and invariants are told by it.")
@click.option("--marks", type=existing_file, help="Marks file, for a schema without marks.")
@click.option("--type-name", default="", help="Type name, when the schema does not give the right one.")
@click.option(
    "--contracts", type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Take registrations and subscriptions of that data set.",
)  # fmt: skip
@click.option("--registrations", type=existing_path, help="Take them of JSON lines or Parquet.")
@click.option("--subscriptions", type=existing_path, help="Take them of JSON lines or Parquet.")
@rejects_option
@out_option("study-data")
@json_option
def import_command(
    source: Path,
    form: str,
    schema: Path | None,
    marks: Path | None,
    type_name: str,
    contracts: Path | None,
    registrations: Path | None,
    subscriptions: Path | None,
    max_rejects: int,
    out: Path,
    as_json: bool,
) -> None:
    """Make a data set of XML documents, JSON lines, or Parquet of publications.

    What can't be read goes to the table `rejects`, with the reason. Documents of equal invariants are of one
    registration.

    \b
    jbi study import examples/data/cap --schema examples/data/cap/cap12.xsd \
        --marks examples/data/cap/marks.json --out alerts
    jbi study import archive.parquet --contracts data --max-rejects 0 --out archive
    """
    if schema is None and (marks or type_name):
        raise ConfigurationError("--marks and --type-name are for --schema", hint="Give the schema, too")
    if out.resolve().is_relative_to(source.resolve()):
        raise ConfigurationError(f"--out {out} lies in {source}, which is read", hint="Name another folder")
    known = data_in(contracts) if contracts is not None else None
    given = known.contracts if known is not None else None
    intake = ingest.Intake(_described(schema, marks, type_name) if schema else None, max_rejects)
    leave = [path for path in (schema, marks, registrations, subscriptions) if path is not None]
    chosen: Any = ingest.form_of(source, leave) if form == "auto" else form
    own = {
        name: intake.contracts(name, path) if path is not None else getattr(given, name, ())
        for name, path in (("registrations", registrations), ("subscriptions", subscriptions))
    }
    if given is not None or registrations is not None:
        intake.known = {each.registration for each in own["registrations"]}
    with telling() as tell, Writer(out, source="imported") as writer:
        wanted = ingest.sound(Contracts(own["registrations"], own["subscriptions"]), intake)
        for publication in intake.publications(source, chosen, leave):
            writer.add(publication)
            tell("publications", writer.count, 0)
        made = (*intake.registrations.values(), *wanted.registrations)
        writer.finish(Contracts(made, wanted.subscriptions), intake.rejects)
    counts = {"publications": writer.count, "registrations": len(made), "subscriptions": len(wanted.subscriptions)}
    facts = {**counts, "rejects": len(intake.rejects)}
    if as_json:
        show_json({**facts, "out": str(out)})
    else:
        first = [("the first reject", f"{each.row}: {each.reason}") for each in intake.rejects[:1]]
        rows = [*((name, f"{n:,}") for name, n in facts.items()), *first, ("data set", str(out))]
        show_facts(rows, title="imported")


def _described(schema: Path, marks: Path | None, type_name: str) -> ingest.Describe:
    """By the product's own schema binding. Raises SchemaError."""
    from jbi_pubsub.codegen.bundle import read_bundle
    from jbi_pubsub.codegen.repository import TypeRepository
    from jbi_pubsub.protocol.entries import InformationType, local_name

    bundle = read_bundle(schema, marks=marks, name=type_name, within=schema.absolute().parent.parent)
    opened = TypeRepository().open_schema(bundle)
    name, version = opened.type.name, opened.type.version
    own = InformationType(name=name, version=version, schema=opened.digest, local=local_name(name)).rep()

    def describe(root: Element) -> ingest.Described:
        opened.validate(root)
        return ingest.Described(name, version, (own, *opened.entries(root)))

    return describe


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
    "bandwidth": click.option(
        "--rates", default=bandwidth.RATES, show_default=True, help="Links' bits a second, eight at most."
    ),
}
"""What a study asks beside what all do."""


def _command(name: str, asked: Study, sentence: str) -> click.Command:
    @click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
    @place_option(f"study-{name}")
    @engine_option
    @rejects_option
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


@study.command("capacity")
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--publishers", type=_Finite(1, 1e9), required=True, help="Registrations that publish.")
@click.option("--rate", type=_Finite(0, 1e6, min_open=True), required=True, help="Objects a second of each.")
@click.option("--subscribers", type=_Finite(1, 1e9), required=True, help="Subscriptions.")
@click.option("--growth", type=_Finite(-0.9, 10), default=0.0, show_default=True, help="Of both, a year: 0.3 is 30 %.")
@click.option("--years", type=click.IntRange(1, 50), default=3, show_default=True, help="How far it looks ahead.")
@click.option(
    "--utilisation",
    type=_Finite(0.05, 1),
    default=0.7,
    show_default=True,
    help="Share of a core that is planned for.",
)
@rejects_option
@out_option("study-capacity")
@json_option
def capacity_command(data: Path, max_rejects: int, out: Path, as_json: bool, **forecast: float) -> None:
    """How many delegates a forecast needs, by costs that are measured on this machine, now.

    A delegate runs in this process for some seconds, with the data set's objects and subscriptions.

    \b
    jbi study capacity data --publishers 200 --rate 2 --subscribers 5000
    jbi study capacity data --publishers 200 --rate 2 --subscribers 5000 --growth 0.3 --years 5
    """
    from . import costs

    given = data_in(data)
    measured = costs.measure(given)
    with telling() as tell:
        parameters = {**forecast, **measured.parameters()}
        options = Options(engine="local", max_rejects=max_rejects, parameters=parameters, progress=tell)
        found, how = run(capacity.STUDY, given, out, options)
    if measured.refused:
        click.echo(f"jbi: a delegate would not take {measured.refused:,} of the subscriptions", err=True)
    _show(found, how, out, as_json)


@study.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, file_okay=False, path_type=Path))
@out_option("study-compare")
@json_option
def compare(before: Path, after: Path, out: Path, as_json: bool) -> None:
    """Put two results of a study side by side: what changed.

    \b
    jbi study compare monday friday
    """
    if any(out.resolve().is_relative_to(each.resolve()) for each in (before, after)):
        raise ConfigurationError(f"--out {out} is in what is compared", hint="Name another folder")
    found = comparison.compare(before, after)
    how = Run(input=f"{before} and {after}", engine="local")
    with report.claimed(out) as folder:
        finish(folder, found, how)
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
        show_facts(rows, title=f"study: {found.study}")
