"""`jbi codegen`: entry classes, marks files and explanations from a metadata schema. It needs no server."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.opening import OPENER
from jbi_pubsub.codegen.render import DICTIONARY_STYLESHEET, difference, dump, render
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.xml import parse_metadata

from .near import NearNames
from .settings import Settings, json_option, pass_settings, try_file
from .show import show_json, show_rows

existing_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_Pairs = tuple[tuple[str, str], ...]
existing_folder = click.Path(exists=True, file_okay=False, path_type=Path)


class _WithDefault(NearNames):
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
    jbi codegen gml.xsd --locations http://www.w3.org/1999/=copies/ -o gml.py
    jbi codegen marks cap12.xsd --from alerts/*.xml
    jbi codegen explain cap12.xsd --marks marks.json "/c:alert/c:status='Actual'" --namespace c=urn:...
    """


def split_option(form: str, *, at_last: bool) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], _Pairs]:
    """A callback of options like KEY=VALUE, cut at the last or the first "="."""

    def split(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> _Pairs:
        found: list[tuple[str, str]] = []
        for pair in given:
            key, equals, value = pair.rpartition("=") if at_last else pair.partition("=")
            if not (key and equals and value):
                raise click.BadParameter(f"{pair!r} is not {form}")
            found.append((key, value))
        return tuple(found)

    return split


def _source_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The schema, and where its parts lie."""
    for option in (
        click.option(
            "--within",
            type=existing_folder,
            help="Folder that all documents lie in; default the one above the schema's.",
        ),
        click.option(
            "--locations",
            callback=split_option("ADDRESS=PATH", at_last=True),
            metavar="ADDRESS=PATH",
            multiple=True,
            help="Local copy of a document, or folder of copies for the beginning of addresses; repeatable.",
        ),
        click.option("--root", default="", help="Document element, when the schema declares several."),
        click.argument("schema", type=existing_file),
    ):
        function = option(function)
    return function


def _type_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a type of a schema."""
    for option in (
        click.option("--type-name", default="", help="Type name, when the schema does not give the right one."),
        click.option("--marks", type=existing_file, help="Marks file, for a schema without marks."),
    ):
        function = option(function)
    return _source_options(function)


def _bundle(
    schema: Path,
    root: str,
    locations: _Pairs,
    within: Path | None,
    marks: Path | None = None,
    type_name: str = "",
) -> SchemaBundle:
    return read_bundle(
        schema,
        marks=marks,
        root=root,
        name=type_name,
        locations={key: Path(path) for key, path in locations},
        within=within or schema.absolute().parent.parent,
    )


def cache_of(settings: Settings) -> Path:
    """Where what was made of schemas is kept: as configured, else where users' caches are (XDG base directories)."""
    own = os.environ.get("XDG_CACHE_HOME", "")
    return settings.load().type_cache() or (Path(own) if own else Path.home() / ".cache") / "jbi-pubsub" / "types"


@codegen.command()
@_type_options
@click.option("--xsl", type=existing_file, help="Your stylesheet instead of the shipped one.")
@click.option("--dictionary", is_flag=True, help="The shipped Markdown data dictionary instead of Python.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), callback=try_file,
    help="File to write; default stdout.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing: exit 1 with a diff if the file is stale.")
@click.option("--dump-model", is_flag=True, help="Show the XML that stylesheets transform.")
@pass_settings
def generate(
    settings: Settings,
    /,
    xsl: Path | None,
    dictionary: bool,
    output: Path | None,
    check: bool,
    dump_model: bool,
    **source: Any,
) -> int:
    """Generate (the default subcommand)."""
    model = OPENER.open(_bundle(**source), cache_dir=cache_of(settings)).model
    if dump_model:
        click.echo(dump(model), nl=False)
        return 0
    stylesheet = DICTIONARY_STYLESHEET if dictionary and xsl is None else xsl
    text = render(model, stylesheet=stylesheet)
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
        click.echo(f"{output}: {len(model.entries)} entry classes of {model.type}", err=True)
    return 0


@codegen.command()
@_source_options
@click.option("--from", "samples", type=existing_file, multiple=True, help="Sample document; repeatable.")
@click.argument("more", type=existing_file, nargs=-1)
def marks(samples: tuple[Path, ...], more: tuple[Path, ...], **source: Any) -> None:
    """Propose a marks file: from samples, what is constant in all of them."""
    from jbi_pubsub.codegen.drafting import draft_marks

    documents = [parse_metadata(path.read_bytes(), what=str(path)) for path in (*samples, *more)]
    click.echo(draft_marks(_bundle(**source), documents).decode())


@codegen.command()
@_type_options
@click.argument("predicate")
@click.option(
    "--namespace",
    "namespaces",
    callback=split_option("PREFIX=URI", at_last=False),
    metavar="PREFIX=URI",
    multiple=True,
    help="Prefix; repeatable.",
)
@json_option
@pass_settings
def explain(settings: Settings, /, predicate: str, namespaces: _Pairs, as_json: bool, **source: Any) -> None:
    """Show which parts of a predicate are matched at registration, and why the others are not."""
    from jbi_pubsub.codegen.repository import TypeRepository
    from jbi_pubsub.core.xpath import compile_predicate

    compile_predicate(predicate, namespaces=dict(namespaces))
    opened = TypeRepository(cache_dir=cache_of(settings)).open_schema(_bundle(**source))
    facts = msgspec.to_builtins(opened.explain(predicate, dict(namespaces)))
    if as_json:
        show_json(facts)
        return
    conditions = facts.get("conditions", [])
    columns = tuple(conditions[0]) if conditions else ("condition",)
    show_rows(columns, ([c[k] for k in columns] for c in conditions), title=facts.get("reason", "") or predicate)
