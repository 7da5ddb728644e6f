"""`jbi codegen`, `jbi study`, `jbi completion`: tools that need no server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import get_completion_class
from rich.progress import Progress, TaskID

from jbi_pubsub.codegen.drafting import draft_marks
from jbi_pubsub.codegen.render import DICTIONARY_STYLESHEET, difference, dump, render
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.codegen.schema import read_bundle
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.spark import ENGINES, match_study

from .near import NearNames
from .settings import json_option, try_file, try_folder
from .show import console, show_json, show_rows

existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)


class _WithDefault(click.Group):
    """`jbi codegen SCHEMA` is `jbi codegen generate SCHEMA`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["generate", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_WithDefault)
def codegen() -> None:
    """Generate Entry classes from a metadata schema.

    \b
    jbi codegen Intel_Imagery.xsd -o intel_imagery.py
    jbi codegen cap12.xsd --marks marks.json --check -o cap.py
    jbi codegen marks cap12.xsd --from alerts/*.xml
    jbi codegen explain cap12.xsd --marks marks.json "/c:alert/c:status='Actual'" --namespace c=urn:...
    """


schema_options = [
    click.argument("schema", type=existing_file),
    click.option("--marks", type=existing_file, help="Marks file, for a schema without marks."),
    click.option("--root", default="", help="Document element, when the schema declares several."),
    click.option("--type-name", default="", help="Type name, when the schema does not give the right one."),
]


def _schema_options(function: Any) -> Any:
    for option in reversed(schema_options):
        function = option(function)
    return function


@codegen.command()
@_schema_options
@click.option("--xsl", type=existing_file, help="Your stylesheet instead of the shipped one.")
@click.option("--dictionary", is_flag=True, help="The shipped Markdown data dictionary instead of Python.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=try_file,
    help="File to write; default stdout.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing: exit 1 with a diff if the file is stale.")
@click.option("--dump-model", is_flag=True, help="Show the XML that stylesheets transform.")
def generate(
    schema: Path,
    marks: Path | None,
    root: str,
    type_name: str,
    xsl: Path | None,
    dictionary: bool,
    output: Path | None,
    check: bool,
    dump_model: bool,
) -> int:
    """Generate (the default subcommand)."""
    opened = open_type(read_bundle(schema, marks=marks, root=root, name=type_name))
    if dump_model:
        click.echo(dump(opened.model), nl=False)
        return 0
    stylesheet = DICTIONARY_STYLESHEET if dictionary and xsl is None else xsl
    text = render(opened.model, stylesheet=stylesheet)
    if check:
        if output is None:
            raise ConfigurationError("--check needs -o FILE")
        changes = difference(output, text)
        click.echo(changes, nl=False)
        return 1 if changes else 0
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"{output}: {len(opened.model.entries)} entry classes of {opened.type}", err=True)
    return 0


@codegen.command()
@click.argument("schema", type=existing_file)
@click.option("--from", "samples", type=existing_file, multiple=True, help="Sample document; repeatable.")
@click.argument("more", type=existing_file, nargs=-1)
@click.option("--root", default="", help="Document element, when the schema declares several.")
def marks(schema: Path, samples: tuple[Path, ...], more: tuple[Path, ...], root: str) -> None:
    """Propose a marks file: from samples, what is constant in all of them."""
    documents = [parse_metadata(path.read_bytes(), what=str(path)) for path in (*samples, *more)]
    click.echo(draft_marks(read_bundle(schema, root=root), documents).decode())


@codegen.command()
@_schema_options
@click.argument("predicate")
@click.option("--namespace", "namespaces", metavar="PREFIX=URI", multiple=True, help="Prefix; repeatable.")
@json_option
def explain(
    schema: Path,
    marks: Path | None,
    root: str,
    type_name: str,
    predicate: str,
    namespaces: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show which parts of a predicate are matched at registration, and why the others are not."""
    opened = open_type(read_bundle(schema, marks=marks, root=root, name=type_name))
    spaces = dict(pair.split("=", 1) for pair in namespaces if "=" in pair)
    facts = msgspec.to_builtins(opened.explain(predicate, spaces))
    if as_json:
        show_json(facts)
        return
    conditions = facts.get("conditions", [])
    columns = tuple(conditions[0]) if conditions else ("condition",)
    show_rows(columns, ([c[k] for k in columns] for c in conditions), title=facts.get("reason", "") or predicate)


@click.group(cls=NearNames)
def study() -> None:
    """Bulk studies on Spark, with the lookup service's semantics."""


@study.command()
@click.option("--registrations", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--templates", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("study-match"), show_default=True,
    callback=try_folder, help="Folder for Parquet and the report.",
)  # fmt: skip
@click.option("--engine", type=click.Choice(list(ENGINES)), default="auto", show_default=True)
@json_option
def match(registrations: int, templates: int, seed: int, out: Path, engine: str, as_json: bool) -> None:
    """Match a generated population of registrations with templates; Parquet, HTML report, a table.

    \b
    jbi study match
    jbi study match --registrations 1000000 --templates 100000 --engine spark --out big
    """
    with Progress(console=console(), transient=True, disable=not sys.stdout.isatty()) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total or None)
            progress.update(tasks[stage], completed=done, total=total or None)

        report = match_study(
            registrations=registrations, templates=templates, seed=seed, out=out, engine=engine, progress=tell
        )
    if as_json:
        show_json(json.loads(msgspec.json.encode(report)))
    else:
        show_rows(("", ""), report.rows(), title="first-level match study")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    source <(jbi completion bash)
    """
    from .app import jbi

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(jbi, {}, "jbi", "_JBI_COMPLETE").source())
