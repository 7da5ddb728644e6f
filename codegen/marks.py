"""Marks: what of a schema is invariant (paper sections 2.1 and 4).

A mark is the attribute jbi:variance="invariant|variant", a comment with one of these words before the declaration, on
its line behind it, or as the first thing in it, or a path in a marks file. A mark covers its subtree, so a variant
element has nothing invariant in it. What is not marked is invariant, unless a marks file lists what is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.codegen.model import XML, some
from jbi_pubsub.core.errors import SchemaError
from jbi_pubsub.core.values import from_json
from jbi_pubsub.core.xml import XSD, Element

JBI: Final = "urn:jbi:codegen:1"
VARIANCE: Final = f"{{{JBI}}}variance"

Steps = tuple[str, ...]
"""A path from the document element: Clark names, an attribute as "@name"."""

HOW_TO_MARK: Final = (
    'Mark elements with the attribute jbi:variance="variant" or "invariant" (xmlns:jbi="urn:jbi:codegen:1"), with a '
    "comment <!-- variant --> or <!-- invariant --> before their declaration, or give a marks file such as "
    '{"root": "metadata", "invariant": ["/metadata/RequiredMetadata"]}; `jbi codegen marks SCHEMA` drafts one'
)

_MARKABLE: Final = tuple(
    f"{{{XSD}}}{name}" for name in ("element", "attribute", "sequence", "choice", "all", "group", "any", "anyAttribute")
)
_WORDS: Final = ("variant", "invariant")


class Marks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A marks file. `root` is the document element (Clark name, "prefix:name" or plain), `namespaces` prefix to URI.

    With `invariant` only what lies at or below these paths is invariant, with [] nothing; without it everything is, but
    for what lies at or below `variant`. Paths are like /c:alert/c:info/c:eventCode or /order/@id. `schema` and `note`
    are for people. When a file has paths, marks in the schema do not count.
    """

    schema: str = ""
    root: str = ""
    namespaces: dict[str, str] = {}
    invariant: tuple[str, ...] | None = None
    variant: tuple[str, ...] = ()
    note: str = ""

    @property
    def has_paths(self) -> bool:
        """Whether the file itself says what is invariant."""
        return self.invariant is not None or bool(self.variant)


def parse_marks(data: bytes) -> Marks:
    """The marks file `data` (b"" for none). Raises SchemaError."""
    if not data:
        return Marks()
    try:
        return from_json(Marks, data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise SchemaError(
            f"the marks file can't be read: {exc}",
            hint='It is JSON like {"root": "metadata", "namespaces": {}, "invariant": ["/metadata/RequiredMetadata"]}',
        ) from exc


class Coverage:
    """Which paths are invariant: by the marks file if it has paths, else by marks in the schema alone."""

    def __init__(self, marks: Marks, prefixes: Mapping[str, str]) -> None:
        self._marks = marks
        self._prefixes = prefixes
        self._wanted = None if marks.invariant is None else {self._path(text): text for text in marks.invariant}
        self._unwanted = {self._path(text): text for text in marks.variant}
        self._used: set[Steps] = set()

    def of(self, path: Steps, mark: str) -> str:
        """ "all" of what lies at `path` is invariant, "some" below it is, or "none"."""
        if not self._marks.has_paths:
            return "none" if mark == "variant" else "all"
        if path in self._unwanted:
            self._used.add(path)
            return "none"
        if self._wanted is None:
            return "all"
        for end in range(len(path), 0, -1):
            if path[:end] in self._wanted:
                self._used.add(path[:end])
                return "all"
        return "some" if any(wanted[: len(path)] == path for wanted in self._wanted) else "none"

    def is_plain(self, path: Steps) -> bool:
        """Whether no path of the marks file ends below `path`: the element's type then means the same everywhere."""
        below = [*(self._wanted or ()), *self._unwanted]
        return not any(len(other) > len(path) and other[: len(path)] == path for other in below)

    def all_used(self, root: str, met: Iterable[str]) -> None:
        """Raises SchemaError if a path of the marks file names nothing, or nothing invariant is left."""
        for path, text in {**(self._wanted or {}), **self._unwanted}.items():
            if path not in self._used:
                hint = f"Document element: {root}; elements met on the way: {some(met)}"
                if not path[0].startswith("{") and root.endswith(f"}}{path[0]}"):
                    uri = root[1:].partition("}")[0]
                    hint = (
                        f'Its elements are in a namespace: add "namespaces": {{"p": "{uri}"}}, and write /p:{path[0]}'
                    )
                raise SchemaError(
                    f"the marks file names {text}, which does not exist or lies below a variant element",
                    hint=hint,
                    path=text,
                )

    def _path(self, text: str) -> Steps:
        if not text.startswith("/") or text.startswith("//") or not text.strip("/"):
            raise SchemaError(
                f"{text!r} in the marks file is not a path", hint="Paths look like /metadata/RequiredMetadata"
            )
        return tuple(self._clark(step, text) for step in text[1:].split("/"))

    def _clark(self, step: str, text: str) -> str:
        mark, name = ("@", step[1:]) if step.startswith("@") else ("", step)
        prefix, colon, local = name.rpartition(":")
        namespaces = {"xml": XML, **self._marks.namespaces}
        if colon and prefix not in namespaces:
            raise SchemaError(
                f"{text} in the marks file uses the prefix {prefix}, which it does not declare",
                hint=f'Add it: "namespaces": {{"{prefix}": "..."}}',
            )
        uri = namespaces[prefix] if colon else ""
        return f"{mark}{{{uri}}}{local}" if uri else f"{mark}{local}"


def comments_to_attributes(name: str, root: Element) -> None:
    for comment in list(root.iter(etree.Comment)):
        word = (comment.text or "").strip().lower()
        if word not in _WORDS:
            continue
        marked = _marked_by(comment)
        if marked is None:
            hint = "Put it before the xs:element it is meant for"
            raise fault_at(name, comment, f": the comment <!-- {word} --> marks nothing", hint)
        if marked.get(VARIANCE, word) != word:
            raise _contradiction(name, marked)
        marked.set(VARIANCE, word)


def _marked_by(comment: Element) -> Element | None:
    """The declaration a comment belongs to: that on its line before it, the next one, or the one it opens."""
    before, after, parent = comment.getprevious(), comment.getnext(), comment.getparent()
    ends_line = "\n" in (comment.tail or "") or after is None
    if before is not None and before.tag in _MARKABLE and "\n" not in (before.tail or "") and ends_line:
        return before
    while isinstance(after, etree._Comment):
        after = after.getnext()
    if after is not None and after.tag in _MARKABLE:
        return after
    if before is None and parent is not None and parent.tag in _MARKABLE:
        return parent
    return None


def check_marks(name: str, root: Element) -> bool:
    found = False
    for declaration in root.iter(*_MARKABLE):
        word = declaration.get(VARIANCE)
        if word is None:
            continue
        found = True
        if word not in _WORDS:
            raise fault_at(name, declaration, f": jbi:variance is {word!r}", 'It is "variant" or "invariant"')
        if word == "invariant" and any(above.get(VARIANCE) == "variant" for above in declaration.iterancestors()):
            raise _contradiction(name, declaration)
    return found


def _contradiction(name: str, declaration: Element) -> SchemaError:
    marked = declaration.get("name") or declaration.get("ref")
    hint = "A mark covers the whole subtree; keep one of them"
    return fault_at(name, declaration, f": {marked} is marked both variant and invariant", hint)


def fault_at(name: str, place: Element, what: str, hint: str) -> SchemaError:
    """Error about a place in the document `name` of a schema; `what` stands behind name and line."""
    line = place.sourceline
    return SchemaError(f"{name} line {line}{what}", hint=hint, document=name, line=line or 0)
