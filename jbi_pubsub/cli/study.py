"""`jbi study`: bulk studies, in this process or on Spark, with the product's own matching."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from click.core import ParameterSource

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.xml import Element
from jbi_pubsub.spark import ENGINES, ingest, match_study, report
from jbi_pubsub.spark.dataset import Contracts, Writer, write
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.result import Result, StudyRun, finish
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

from .cluster import RESUME, ClusterArguments, place_option, written_to
from .near import NearNames
from .options import EXISTING_FILE, EXISTING_FOLDER, MARKS, Arguments, JsonArguments, argument, command, flag, option
from .settings import try_folder
from .show import show_facts, telling
from .watch import watch


@click.group(cls=NearNames)
def study() -> None:
    """Predict deliveries and costs with the product's own matching.

    \b
    jbi study generate --out data          # generate a data set, or
    jbi study export --out data            # take one from a running federation
    jbi study predicates data              # run a study on it
    """


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
        return self.fail("NaN is not a number.", param, ctx) if found != found else found  # only NaN is not itself


def out_option(default: str) -> Any:
    """--out of a study."""
    folder = _Here(file_okay=False, path_type=Path)
    folder.name = "folder"
    return option("Folder for the result.", "--out", type=folder, shown=Path(default), callback=try_folder)


MAX_REJECTS: Final = option("Fail above that many unreadable rows; -1: never.", type=click.IntRange(ANY), default=ANY)


class _Spark(ClusterArguments, JsonArguments, first=True):
    engine: str = option(
        "This process (local) or Spark; auto: by the amount of data.",
        type=click.Choice(list(ENGINES)),
        shown="auto",
    )
    max_rejects: int = MAX_REJECTS
    resume: bool = RESUME


class _StudyMatch(_Spark, first=True):
    data: Path | None = argument(type=EXISTING_FOLDER, required=False)
    registrations: int = option("Registrations of the generated population.", type=click.IntRange(1), shown=100_000)
    templates: int = option("Templates of the generated population.", type=click.IntRange(1), shown=1_000)
    seed: int = option("Seed of the population.", type=int, shown=1)
    out: Path = out_option("study-match")


@command(study, _StudyMatch)
def match(given: _StudyMatch) -> None:
    """Match the registrations of a data set with its templates; without DATA, those of a generated population.

    \b
    jbi study match data
    jbi study match
    jbi study match --registrations 1000000 --templates 100000 --engine spark --out big
    """
    if given.is_submitted():
        return
    if given.data is not None:
        _match_data(given, given.data)
        return
    if given.max_rejects != ANY:
        raise ConfigurationError("--max-rejects is for a data set", hint="Give DATA, or leave it out")
    with telling() as tell:
        found = match_study(
            registrations=given.registrations,
            templates=given.templates,
            seed=given.seed,
            out=given.out,
            engine=given.engine,
            master=given.master,
            settings=given.conf,
            resume=given.resume,
            progress=tell,
        )
    plain = json.loads(msgspec.json.encode(found))
    given.show(plain, lambda: show_facts(found.rows(), title="first-level match study"))


def _match_data(given: _StudyMatch, path: Path) -> None:
    if given.engine == "spark":
        raise ConfigurationError(
            "contracts of a data set are matched in this process; --engine spark is for a generated population",
            hint="Leave it out, or DATA",
        )
    context = click.get_current_context()
    for name in ("registrations", "templates", "seed", "master", "conf", "resume"):
        if context.get_parameter_source("confs" if name == "conf" else name) is ParameterSource.COMMANDLINE:
            raise ConfigurationError(f"--{name} is for a generated population", hint="Leave it out, or DATA")
    data = data_in(path)
    rejected = len(data.rejects)
    check_rejects(rejected, data.rejects, given.max_rejects)
    with report.claimed(given.out) as folder:
        began = time.perf_counter()
        found = with_rejects(contracts.match(data.contracts), rejected)
        timings = (("match", round(time.perf_counter() - began, 3)),)
        how = StudyRun(input=str(path), engine="local", timings=timings, rejected=rejected)
        finish(folder, found, how, data.rejects)
    _show(given, found, how, given.out)


class _StudyGenerate(JsonArguments):
    registrations: int = option("Number of publishers' registrations.", type=click.IntRange(1), shown=100)
    subscriptions: int = option("Number of subscriptions.", type=click.IntRange(0), shown=1_000)
    publications: int = option("Objects, in all.", type=click.IntRange(0), shown=100_000)
    seed: int = option("Seed of the data set.", type=click.IntRange(0), shown=1)
    skew: float = option(
        "Exponent of Zipf's law: 0 is all values alike, 5 nearly always the first.", type=float, shown=1.0
    )
    wildcards: float = option("Share of template fields left open, 0 to 1.", type=float, shown=0.5)
    selectivity: float = option("Share of objects that a predicate selects, 0 to 1.", type=float, shown=0.01)
    rate: float = option("Publications a second.", type=float, shown=100.0)
    delegates: int = option("Number of delegates.", type=click.IntRange(1), shown=4)
    out: Path = out_option("study-data")


@command(study, _StudyGenerate)
def generate(given: _StudyGenerate) -> None:
    """Generate a data set: imagery, tracks, target lists, alerts, and subscriptions to them.

    \b
    jbi study generate --out data
    jbi study generate --publications 1000000 --selectivity 0.001 --seed 7 --out data
    """
    domain = StudyDomain(**{name: getattr(given, name) for name in StudyDomain.__struct_fields__})
    with telling() as tell:
        count = write(given.out, domain.contracts(), domain.published(), source="generated", progress=tell)
    facts = {"publications": count, "registrations": domain.registrations, "subscriptions": domain.subscriptions}
    rows = [*((name, f"{n:,}") for name, n in facts.items()), ("data set", str(given.out))]
    given.show({**facts, "out": str(given.out)}, lambda: show_facts(rows, title="made up"))


class _StudyExport(JsonArguments):
    publications: int | None = option("End the tap after that many objects.", type=click.IntRange(1), metavar="N")
    seconds: float | None = option("End it after that time; 0: no publications.", type=_Finite(0), metavar="S")
    megabytes: int = option("End it at that amount of data.", type=click.IntRange(1), shown=1024)
    payloads: bool = option("Keep payloads, or only their length.", "--payloads/--no-payloads", default=True)
    resume: bool = flag("Keep the objects that are already written, and continue.")
    parent: int = option("End with that process, which is ours.", type=int, default=0, hidden=True)
    out: Path = out_option("study-data")


@command(study, _StudyExport, "export")
def export_command(given: _StudyExport) -> int:
    """Make a data set from a running federation: registrations, subscriptions, and a tap of publications.

    The tap runs for a minute by default. Ctrl-C ends it, and the recorded objects are the data set (exit code 130).
    Where access is restricted, it needs the rights to `administer` the delegates and to subscribe to everything.

    \b
    jbi study export --out data
    jbi study export --publications 100000 --out data
    jbi study export --seconds 3600 --no-payloads --resume --out data
    """
    from . import export

    default = export.DEFAULT_SECONDS if given.publications is None else float("inf")
    with telling() as tell:
        wanted = export.TapRequest(
            given.out, given.publications or 0, default if given.seconds is None else given.seconds,
            given.megabytes << 20, given.payloads, given.resume, given.parent,
        )  # fmt: skip
        facts, interrupted = export.export(given.settings.load(), wanted, tell)
    given.show(facts, lambda: show_facts(export.shown(facts), title="taken from the federation"))
    return 130 if interrupted else 0


existing_path = click.Path(exists=True, path_type=Path)


class _StudyImport(JsonArguments):
    source: Path = argument(type=existing_path)
    form: str = option(
        "Format of SOURCE; auto: by the endings of its files.",
        "--format",
        type=click.Choice(["auto", "xml", "lines", "parquet"]),
        shown="auto",
    )
    schema: Path | None = option("XML Schema of the metadata, for types and invariants.", type=EXISTING_FILE)
    marks: Path | None = MARKS
    type_name: str = option("Type name, if the schema does not give it.", "--type", default="")
    contracts: Path | None = option("Data set with registrations and subscriptions.", type=EXISTING_FOLDER)
    registrations: Path | None = option("JSON lines or Parquet.", type=existing_path)
    subscriptions: Path | None = option("JSON lines or Parquet.", type=existing_path)
    max_rejects: int = MAX_REJECTS
    out: Path = out_option("study-data")


@command(study, _StudyImport, "import")
def import_command(given: _StudyImport) -> None:
    """Make a data set of XML documents, JSON lines, or Parquet of publications.

    What can't be read goes to the table `rejects`, with the reason. Documents of equal invariants are of one
    registration.

    \b
    jbi study import examples/data/cap --schema examples/data/cap/cap12.xsd \\
        --marks examples/data/cap/marks.json --out alerts
    jbi study import archive.parquet --contracts data --max-rejects 0 --out archive
    """
    if given.schema is None and (given.marks or given.type_name):
        raise ConfigurationError("--marks and --type are for --schema", hint="Give the schema, too")
    if given.out.resolve().is_relative_to(given.source.resolve()):
        raise ConfigurationError(f"--out {given.out} lies in {given.source}, which is read", hint="Name another folder")
    known = data_in(given.contracts).contracts if given.contracts is not None else None
    described = _described(given.schema, given.marks, given.type_name) if given.schema else None
    intake = ingest.Intake(described, given.max_rejects)
    leave = [path for path in (given.schema, given.marks, given.registrations, given.subscriptions) if path is not None]
    chosen: Any = ingest.form_of(given.source, leave) if given.form == "auto" else given.form
    own = {
        name: intake.contracts(name, path) if path is not None else getattr(known, name, ())
        for name, path in (("registrations", given.registrations), ("subscriptions", given.subscriptions))
    }
    if known is not None or given.registrations is not None:
        intake.known = {each.registration for each in own["registrations"]}
    with telling() as tell, Writer(given.out, source="imported") as writer:
        wanted = ingest.sound(Contracts(own["registrations"], own["subscriptions"]), intake)
        for publication in intake.publications(given.source, chosen, leave):
            writer.add(publication)
            tell("publications", writer.count, 0)
        made = (*intake.registrations.values(), *wanted.registrations)
        writer.finish(Contracts(made, wanted.subscriptions), intake.rejects)
    counts = {"publications": writer.count, "registrations": len(made), "subscriptions": len(wanted.subscriptions)}
    facts = {**counts, "rejects": len(intake.rejects)}
    first = [("the first reject", f"{each.row}: {each.reason}") for each in intake.rejects[:1]]
    rows = [*((name, f"{n:,}") for name, n in facts.items()), *first, ("data set", str(given.out))]
    given.show({**facts, "out": str(given.out)}, lambda: show_facts(rows, title="imported"))


def _described(schema: Path, marks: Path | None, type_name: str) -> ingest.Describe:
    """By the product's own schema binding. Raises SchemaError."""
    from jbi_pubsub.codegen.repository import TypeRepository
    from jbi_pubsub.protocol.entries import InformationType, local_name

    from .codegen import bundle_of

    opened = TypeRepository().open_schema(bundle_of(schema, marks=marks, name=type_name))
    name, version = opened.type.name, opened.type.version
    own = InformationType(name=name, version=version, schema=opened.digest, local=local_name(name)).rep()

    def describe(root: Element) -> ingest.DocumentDescription:
        opened.validate(root)
        return ingest.DocumentDescription(name, version, (own, *opened.entries(root)))

    return describe


QUESTIONS: Final = {
    "predicates": (
        predicates.STUDY,
        "Selectivity and cost of each predicate, and predicates that never match and why.",
    ),
    "fanout": (fanout.STUDY, "Number of deliveries of objects, and how delegates could share them."),
    "bandwidth": (bandwidth.STUDY, "Savings by predicates, filters and compression, and what fits a link."),
    "invariants": (invariants.STUDY, "Elements that never change, and that the lookup service could match."),
    "aggregation": (
        aggregation.STUDY,
        "Savings by domains of subscribers, with bridges that bring only wanted objects.",
    ),
}


OWN: Final[Mapping[str, dict[str, Any]]] = {
    "fanout": {
        "delegates": option(
            "Number of delegates that share the registrations.",
            type=click.IntRange(1, 10_000),
            shown=fanout.DELEGATES,
        )
    },
    "bandwidth": {"rates": option("Links' bits a second, eight at most.", shown=bandwidth.RATES)},
}
"""Options of one study, without those of all."""


class _StudyQuestion(_Spark):
    data: Path = argument(type=EXISTING_FOLDER)
    out: Path | str


def _add(name: str, asked: Study, sentence: str) -> None:
    own = OWN.get(name, {})

    def ask(given: _StudyQuestion) -> None:
        if given.is_submitted():
            return
        place = written_to(given.out, name=f"jbi study {name}", master=given.master, settings=given.conf)
        with telling() as tell, place as folder:
            options = Options(
                engine=given.engine,
                master=given.master,
                settings=given.conf,
                resume=given.resume,
                max_rejects=given.max_rejects,
                parameters={each: getattr(given, each) for each in own},
                progress=tell,
            )
            found, how = run(asked, data_in(given.data), folder, options)
        _show(given, found, how, given.out)

    ask.__doc__ = f"{sentence}\n\n\b\njbi study {name} data\njbi study {name} data --engine spark --out {name}"
    fields = {**own, "out": place_option(f"study-{name}")}
    command(study, type("_StudyQuestion", (_StudyQuestion,), fields, first=True), name)(ask)


for _name, (_asked, _sentence) in QUESTIONS.items():
    _add(_name, _asked, _sentence)
study.add_command(watch)


class _Forecast(Arguments):
    publishers: float = option("Number of publishers' registrations.", type=_Finite(1, 1e9), required=True)
    rate: float = option("Objects a second of each.", type=_Finite(0, 1e6, min_open=True), required=True)
    subscribers: float = option("Subscriptions.", type=_Finite(1, 1e9), required=True)
    growth: float = option("Growth of both in a year: 0.3 is 30 %.", type=_Finite(-0.9, 10), shown=0.0)
    years: int = option("Number of years.", type=click.IntRange(1, 50), shown=3)
    utilisation: float = option("Planned load of a core.", type=_Finite(0.05, 1), shown=0.7)


class _Capacity(_Forecast, JsonArguments):
    data: Path = argument(type=EXISTING_FOLDER)
    max_rejects: int = MAX_REJECTS
    out: Path = out_option("study-capacity")


@command(study, _Capacity, "capacity")
def capacity_command(given: _Capacity) -> None:
    """Number of delegates for a forecast, from costs measured on this machine now.

    A delegate runs in this process for some seconds, with the data set's objects and subscriptions.

    \b
    jbi study capacity data --publishers 200 --rate 2 --subscribers 5000
    jbi study capacity data --publishers 200 --rate 2 --subscribers 5000 --growth 0.3 --years 5
    """
    from . import costs

    data = data_in(given.data)
    measured = costs.measure(data)
    forecast = {each.name or "": getattr(given, each.name or "") for each in _Forecast.parameters()}
    with telling() as tell:
        parameters = {**forecast, **measured.parameters()}
        options = Options(engine="local", max_rejects=given.max_rejects, parameters=parameters, progress=tell)
        found, how = run(capacity.STUDY, data, given.out, options)
    if measured.refused:
        click.echo(f"jbi: a delegate would not take {measured.refused:,} of the subscriptions", err=True)
    _show(given, found, how, given.out)


class _Compare(JsonArguments):
    before: Path = argument(type=EXISTING_FOLDER)
    after: Path = argument(type=EXISTING_FOLDER)
    out: Path = out_option("study-compare")


@command(study, _Compare)
def compare(given: _Compare) -> None:
    """Compare two results of a study.

    \b
    jbi study compare monday friday
    """
    if any(given.out.resolve().is_relative_to(each.resolve()) for each in (given.before, given.after)):
        raise ConfigurationError(f"--out {given.out} is in what is compared", hint="Name another folder")
    found = comparison.compare(given.before, given.after)
    how = StudyRun(input=f"{given.before} and {given.after}", engine="local")
    with report.claimed(given.out) as folder:
        finish(folder, found, how)
    _show(given, found, how, given.out)


def _show(given: JsonArguments, found: Result, how: StudyRun, out: Path | str) -> None:
    facts = {"numbers": found.numbers, "facts": dict(found.facts)}
    seconds = ", ".join(f"{stage} {spent:.1f}" for stage, spent in how.timings)
    engine = f"Spark {how.spark}, Java {how.java}" if how.spark else "this process"
    rows = [*found.facts, ("engine", engine), ("seconds", seconds or "-")]
    rows += [("resumed", how.resumed)] if how.resumed else []
    rows += [("report", f"{out}/report.html")]
    plain = {"study": found.study, **facts, "run": msgspec.to_builtins(how), "out": str(out)}
    given.show(plain, lambda: show_facts(rows, title=f"study: {found.study}"))
