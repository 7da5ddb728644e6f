"""`jbi codegen`: entry classes, marks files and explanations from a metadata schema. It needs no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.opening import OPENER
from jbi_pubsub.codegen.render import DICTIONARY_STYLESHEET, difference, dump, render
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.xml import parse_metadata

from .near import NearNames
from .options import (
    EXISTING_FILE,
    EXISTING_FOLDER,
    FILE,
    MARKS,
    Arguments,
    JsonArguments,
    argument,
    command,
    flag,
    option,
    repeated,
)
from .settings import try_file
from .show import printable, show_rows

_Pairs = tuple[tuple[str, str], ...]


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


ROOT: Final = option("Document element, if the schema declares several.", default="")
LOCATIONS: Final = repeated(
    "Local copy of a document, or folder of copies for the beginning of addresses; repeatable.",
    callback=split_option("ADDRESS=PATH", at_last=True),
    metavar="ADDRESS=PATH",
)


class _CodegenSource(Arguments):
    """The schema, and where its parts lie."""

    schema: Path = argument(type=EXISTING_FILE)
    root: str = ROOT
    locations: _Pairs = LOCATIONS
    within: Path | None = option("Folder of all documents; default: the parent of the schema's.", type=EXISTING_FOLDER)

    def bundle(self, **own: Any) -> SchemaBundle:
        """The schema's bundle."""
        return bundle_of(self.schema, self.within, self.locations, root=self.root, **own)


class _CodegenType(_CodegenSource):
    """A schema with its marks and the name of its type."""

    marks: Path | None = MARKS
    type_name: str = option("Type name, if the schema does not give it.", "--type", default="")

    def bundle(self, **own: Any) -> SchemaBundle:
        """The schema's bundle, with the marks and the name."""
        return super().bundle(marks=self.marks, name=self.type_name, **own)


def bundle_of(schema: Path, within: Path | None = None, locations: _Pairs = (), **own: Any) -> SchemaBundle:
    """A schema with what it includes and imports; `own` as of `read_bundle`. Raises SchemaError."""
    copies = {key: Path(path) for key, path in locations}
    return read_bundle(schema, locations=copies, within=within, **own)


class _CodegenGenerate(_CodegenType):
    xsl: Path | None = option("Another stylesheet.", type=EXISTING_FILE)
    dictionary: bool = flag("A Markdown data dictionary instead of Python.")
    output: Path | None = option("File to write; default stdout.", "-o", "--out", type=FILE, callback=try_file)
    check: bool = flag("Write nothing; exit 1 with a diff if the file is not up to date.")
    dump_model: bool = flag("Show the XML that stylesheets transform.")


@command(codegen, _CodegenGenerate)
def generate(given: _CodegenGenerate) -> int:
    """Generate the Entry classes of a schema, as Python (the default subcommand).

    \b
    jbi codegen Intel_Imagery.xsd -o intel_imagery.py
    jbi codegen Intel_Imagery.xsd -o intel_imagery.py --check
    jbi codegen Intel_Imagery.xsd --dictionary -o intel_imagery.md
    """
    output = given.output
    model = OPENER.open(given.bundle(), cache_dir=given.settings.load().type_cache()).model
    if given.dump_model:
        click.echo(dump(model), nl=False)
        return 0
    stylesheet = DICTIONARY_STYLESHEET if given.dictionary and given.xsl is None else given.xsl
    text = render(model, stylesheet=stylesheet)
    if given.check:
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


class _CodegenMarks(_CodegenSource):
    samples: tuple[Path, ...] = repeated("Sample document; repeatable.", "--from", type=EXISTING_FILE)
    more: tuple[Path, ...] = argument(type=EXISTING_FILE, nargs=-1)


@command(codegen, _CodegenMarks)
def marks(given: _CodegenMarks) -> None:
    """Draft a marks file from samples: the elements that are equal in all of them.

    \b
    jbi codegen marks cap12.xsd --from alerts/*.xml > marks.json
    """
    from jbi_pubsub.codegen.drafting import draft_marks

    documents = [parse_metadata(path.read_bytes(), what=str(path)) for path in (*given.samples, *given.more)]
    click.echo(draft_marks(given.bundle(), documents).decode())


class _CodegenExplain(_CodegenType, JsonArguments):
    predicate: str = argument()
    namespaces: _Pairs = repeated(
        "Prefix; repeatable.", "--namespace", callback=split_option("PREFIX=URI", at_last=False), metavar="PREFIX=URI"
    )


@command(codegen, _CodegenExplain)
def explain(given: _CodegenExplain) -> None:
    """Show which parts of a predicate are matched at registration, and why the others are not.

    \b
    jbi codegen explain Intel_Imagery.xsd "//publisher='418th' and //lat > 33"
    """
    from jbi_pubsub.codegen.repository import TypeRepository
    from jbi_pubsub.core.xpath import compile_predicate

    predicate, namespaces = given.predicate, dict(given.namespaces)
    compile_predicate(predicate, namespaces=namespaces)
    opened = TypeRepository(cache_dir=given.settings.load().type_cache()).open_schema(given.bundle())
    never = opened.impossible(predicate, namespaces)
    facts = {**msgspec.to_builtins(opened.explain(predicate, namespaces)), "impossible": never}
    conditions = facts.get("conditions", [])
    columns = tuple(conditions[0]) if conditions else ("condition",)
    rows = [[condition[name] for name in columns] for condition in conditions]
    given.show(facts, lambda: show_rows(columns, rows, title=facts.get("reason", "") or predicate))
    for line in never:
        click.echo(f"jbi: {printable(line)}", err=True)
