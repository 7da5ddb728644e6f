"""From the model to source: an XSLT 1.0 stylesheet over a small XML document (paper section 2.4(3): the stylesheet is
the user's to replace, without touching code).

Rules:
- Whatever comes from a schema reaches the stylesheet as identifiers and finished Python literals, made here.
- The stylesheet can read and write nothing (DENY_ALL), and takes nothing in by xsl:import or xsl:include.
- Output that calls itself Python (xsl:output media-type text/x-python, or none) has to parse, and to do nothing on
  import but define classes: no call other than a decorator with keyword literals, no statement with an effect, no
  import and no decorator that does not stand in the stylesheet.
- A stylesheet of somebody else runs in a child process, which has an end.
- The same model and stylesheet give the same bytes: no date, no path, no hash order.
"""

from __future__ import annotations

import ast
import difflib
import textwrap
from pathlib import Path
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.codegen.model import TEXT, EntryModel, Field, TypeModel, one_line, readable
from jbi_pubsub.codegen.values import kind_of
from jbi_pubsub.core.child import PASSING, Children
from jbi_pubsub.core.errors import ChildError, MetadataError, OversizeError, SchemaError
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.core.xml import Element, parse_metadata, parser

ENTRY_STYLESHEET: Final = Path(__file__).with_name("entry.xsl")
"""The stylesheet for Python modules."""

DICTIONARY_STYLESHEET: Final = Path(__file__).with_name("dictionary.xsl")
"""The stylesheet for a data dictionary in Markdown."""

XSL: Final = "http://www.w3.org/1999/XSL/Transform"
PYTHON: Final = "text/x-python"
WIDTH: Final = 100
"""Columns that documentation is wrapped to, indentation included; inside the 120 of our own formatting."""

MAX_OUTPUT_CHARS: Final = 16 << 20
"""Characters of a stylesheet's result; NewsML-G2's 109 types need about 0.3 MB."""


def render(model: TypeModel, *, stylesheet: Path | None = None) -> str:
    """The source that `stylesheet` (default: the shipped one for Python) makes of `model`.

    Raises SchemaError: a stylesheet that can't be read or compiled, that fails, or whose Python is not what it may be.
    """
    path = stylesheet or ENTRY_STYLESHEET
    order = _Order(path.name, _read(path), etree.tostring(document(model)))
    if path in (ENTRY_STYLESHEET, DICTIONARY_STYLESHEET):
        return _transformed(order)
    try:
        return Children().run("jbi_pubsub.codegen.render:work", msgspec.msgpack.encode(order)).decode()
    except ChildError as exc:
        if exc.facts["cause"] in PASSING:
            raise
        raise SchemaError(
            f"stylesheet {path.name} {exc.message}", hint="Templates that call each other have to come to an end"
        ) from None


class _Order(msgspec.Struct, frozen=True):
    """A stylesheet's name, the stylesheet, and the model's document."""

    name: str
    stylesheet: bytes
    model: bytes


def work(data: bytes) -> bytes:
    """`render` in a child process, since a stylesheet may go on for ever. Raises SchemaError."""
    return _transformed(decoder_of(_Order).decode(data)).encode()


def _transformed(order: _Order) -> str:
    root = _stylesheet(order)
    try:
        transform = etree.XSLT(root, access_control=etree.XSLTAccessControl.DENY_ALL)
        text = str(transform(etree.fromstring(order.model, parser()).getroottree()))
    except etree.XSLTError as exc:
        raise SchemaError(
            f"stylesheet {order.name} fails: {one_line(str(exc))}",
            hint="It is XSLT 1.0 over the document that --dump-model shows, and may read nothing else",
            stylesheet=order.name,
        ) from exc
    if len(text) > MAX_OUTPUT_CHARS:
        raise SchemaError(f"stylesheet {order.name} made more than {MAX_OUTPUT_CHARS} characters")
    if _media_type(root) == PYTHON:
        check_module(text, order.name, order.stylesheet.decode(errors="replace"))
    return text


def dump(model: TypeModel) -> str:
    """The XML document that stylesheets see, indented, for people who write one."""
    return etree.tostring(document(model), pretty_print=True, encoding="unicode")


def difference(path: Path, text: str) -> str:
    """A unified diff from the file at `path` to `text`, "" when the file is up to date. Raises SchemaError."""
    try:
        present = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as exc:
        raise SchemaError(f"{path} can't be read: {exc}", hint="Check the path", path=str(path)) from exc
    lines = present.splitlines(keepends=True), text.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*lines, fromfile=str(path), tofile="generated"))


def document(model: TypeModel) -> Element:
    """The model as XML: <model> with <entry> with <field>; see docs/codegen.md for each attribute."""
    prefixes = dict(model.prefixes)
    lead = f"Entry classes of {model.type}."
    root = etree.Element("model", type=model.type.name, version=model.type.version, title=markdown(str(model.type)))
    root.set("root", readable(model.root, prefixes))
    etree.SubElement(root, "docstring").text = docstring(f"{lead}\n\n{model.documentation}\n\n{_ORIGIN}", 0)
    etree.SubElement(root, "text").text = markdown(model.documentation)
    for name in sorted(entry.name for entry in model.entries):
        etree.SubElement(root, "export", name=name)
    for entry in model.entries:
        _entry(root, entry, prefixes)
    return root


_ORIGIN: Final = "Generated by `jbi codegen`: a change belongs into the schema, its marks or the stylesheet."


def _entry(root: Element, entry: EntryModel, prefixes: dict[str, str]) -> None:
    made = etree.SubElement(root, "entry", name=entry.name, base=entry.base, wire=literal(entry.wire), path=entry.path)
    kind = "Complex type" if entry.path.startswith("type ") else "Element"
    first = entry.documentation or f"{kind} {entry.path.removeprefix('type ')}."
    place = f"\n\n{kind}: {entry.path.removeprefix('type ')}" if entry.documentation else ""
    etree.SubElement(made, "docstring").text = docstring(first + place, 4)
    etree.SubElement(made, "text").text = markdown(entry.documentation)
    for field in entry.fields:
        _field(made, field, entry, prefixes)


def _field(made: Element, field: Field, entry: EntryModel, prefixes: dict[str, str]) -> None:
    tag = readable(field.tag, prefixes)
    kind = "text" if field.tag == TEXT else "attribute" if tag.startswith("@") else "element"
    one = etree.SubElement(made, "field", name=field.name, kind=kind, tag=tag, type=field.type.name)
    one.set("canonical", kind_of(field.type))
    one.set("path", entry.path if field.tag == TEXT else f"{entry.path}/{tag}")
    if field.default is not None:
        one.set("default", markdown(field.default))
    said = f"{tag if kind != 'text' else 'The text'}: {field.type.name}."
    etree.SubElement(one, "docstring").text = docstring(
        f"{field.documentation}\n\n{said}" if field.documentation else said, 4
    )
    etree.SubElement(one, "text").text = markdown(field.documentation)
    for value in field.type.enumeration:
        etree.SubElement(one, "value").text = markdown(value)


def literal(text: str) -> str:
    """A Python string literal of `text`, in double quotes where that needs no more escapes."""
    shown = repr(text)
    if shown.startswith("'") and '"' not in text:
        return '"' + shown[1:-1].replace("\\'", "'") + '"'
    return shown


def docstring(text: str, indent: int) -> str:
    """A triple-quoted Python literal of `text`, wrapped, as a docstring at `indent` columns."""
    blocks = [block for block in (" ".join(part.split()) for part in text.split("\n\n")) if block]
    margin = " " * indent
    width = WIDTH - indent - 3
    lines = "\n\n".join(
        "\n".join(textwrap.wrap(block, width, break_long_words=False, break_on_hyphens=False)) for block in blocks
    ).split("\n")
    shown = [_escaped(line) for line in lines]
    if len(shown) == 1:
        return f'"""{shown[0]}"""'
    first, *rest = shown
    return "\n".join([f'"""{first}', *(f"{margin}{line}" if line else "" for line in rest), f'{margin}"""'])


def _escaped(line: str) -> str:
    """Backslashes, quotes that might end the literal, and whatever does not print, as escapes."""
    shown = line.replace("\\", "\\\\")
    if '"""' in line or line.startswith('"') or line.endswith('"'):
        shown = shown.replace('"', '\\"')
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


def markdown(text: str) -> str:
    """`text` on one line, with what Markdown or HTML would take as markup escaped."""
    line = " ".join(text.split())
    for letter in "\\`*_[]|":
        line = line.replace(letter, f"\\{letter}")
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def check_module(source: str, stylesheet: str, written: str) -> None:
    """Raises SchemaError unless `source` parses, and only defines classes and constants when it is imported. What it
    imports and decorates with has to stand in the stylesheet itself, `written`."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as exc:
        raise SchemaError(
            f"stylesheet {stylesheet} made something that is not Python: {exc}",
            hint=f'Use the literals of the model, or set <xsl:output media-type="..."/> to other than {PYTHON}',
            stylesheet=stylesheet,
        ) from exc
    for statement in module.body:
        _check_statement(statement, stylesheet, written)


def _check_statement(statement: ast.stmt, stylesheet: str, written: str) -> None:
    match statement:
        case ast.Pass():
            return
        case ast.Import(names=names):
            if not all(f"import {name.name}" in written for name in names):
                raise _refused(statement, stylesheet)
            return
        case ast.ImportFrom(module=module, level=level):
            if f"from {'.' * level}{module or ''} import" not in written:
                raise _refused(statement, stylesheet)
            return
        case ast.Expr(value=ast.Constant()):
            return
        case ast.ClassDef(body=body, decorator_list=decorators, bases=bases, keywords=[]):
            parts: list[ast.expr] = [*bases, *(_called(decorator, written) for decorator in decorators)]
            for inner in body:
                _check_statement(inner, stylesheet, written)
        case ast.FunctionDef(decorator_list=decorators, args=args, returns=returns):
            parts = [
                *(_called(decorator, written) for decorator in decorators),
                *args.defaults,
                *(d for d in args.kw_defaults if d),
                *((returns,) if returns else ()),
            ]
            parts += [arg.annotation for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs) if arg.annotation]
        case ast.Assign(targets=[ast.Name()], value=value):
            parts = [value]
        case ast.AnnAssign(target=ast.Name(), annotation=annotation, value=set_to):
            parts = [annotation, *((set_to,) if set_to else ())]
        case _:
            raise _refused(statement, stylesheet)
    for part in parts:
        for node in ast.walk(part):
            if not isinstance(node, _HARMLESS):
                raise _refused(node, stylesheet)


_HARMLESS: Final = (
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.Subscript,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.BinOp,
    ast.BitOr,
    ast.expr_context,
)


def _called(decorator: ast.expr, written: str) -> ast.expr:
    """A decorator that the stylesheet has written, without its keyword literals; else what is refused: with anything
    else in its brackets it stays a call, and one that came out of a schema is taken for one."""
    made = decorator.func if isinstance(decorator, ast.Call) else decorator
    if f"@{ast.unparse(made)}" not in written:
        return ast.Call(made, [], [], lineno=decorator.lineno)
    if not isinstance(decorator, ast.Call) or decorator.args:
        return decorator
    plain = all(isinstance(keyword.value, ast.Constant) and keyword.arg for keyword in decorator.keywords)
    return made if plain else decorator


def _refused(node: ast.AST, stylesheet: str) -> SchemaError:
    line = getattr(node, "lineno", 0)
    return SchemaError(
        f"stylesheet {stylesheet} made Python that does more than define classes: {type(node).__name__} in line {line}",
        hint="Write texts of the schema by the literals of the model (wire, docstring), never as they are",
        stylesheet=stylesheet,
        line=line,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise SchemaError(f"stylesheet {path} can't be read: {exc.strerror}", hint="Check the path") from exc


def _stylesheet(order: _Order) -> Element:
    try:
        root = parse_metadata(order.stylesheet, what=f"stylesheet {order.name}")
    except (MetadataError, OversizeError) as exc:
        raise SchemaError(exc.message, hint=exc.hint, **exc.facts) from exc
    taken_in = next(root.iter(f"{{{XSL}}}import", f"{{{XSL}}}include"), None)
    if taken_in is not None:
        raise SchemaError(
            f"stylesheet {order.name} line {taken_in.sourceline} takes in another file",
            hint="Copy what it needs into the stylesheet: nothing but the model is read",
            stylesheet=order.name,
            line=taken_in.sourceline or 0,
        )
    return root


def _media_type(root: Element) -> str:
    found = [output.get("media-type") for output in root.iter(f"{{{XSL}}}output")]
    return next((kind for kind in found if kind), PYTHON)
