"""Why a predicate is true or false for a document: each of its conditions by itself, with the values it found.

For people who ask about one document; matching does nothing of this. Rules:
- A condition is a part between `and`, `or` and `not()`, as it was written. One within brackets behind a path is about
  the nodes of that path: it holds if it holds for one of them, and its values are those of all of them.
- The values are those of the paths in the condition, as texts: the first few, cut to MAX_TEXT characters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language.cost import MAX_SECONDS, exact_extent
from jbi_pubsub.core.xpath.language.grammar import (
    Chain,
    Expression,
    Filter,
    FunctionCall,
    Parsed,
    Path,
    is_boolean,
    parse,
    parts_of,
    selects,
)
from jbi_pubsub.core.xpath.predicate import FOREIGN_ERRORS, XPATH, Predicate, compiled_xpath

MAX_CONDITIONS: Final = 100
"""Conditions that are looked at; who has more is shown the first."""
MAX_PATHS: Final = 8
MAX_VALUES: Final = 5
"""Paths of a condition, and values of each."""
MAX_TEXT: Final = 400

_STRING: Final = "string(.)"


class ExaminedPath(msgspec.Struct, frozen=True):
    """A path in a condition: as it is evaluated, the texts of the first nodes there, and how many nodes there are."""

    path: str
    values: tuple[str, ...]
    count: int


class ExaminedCondition(msgspec.Struct, frozen=True):
    """A condition of a predicate. `level` counts the joints around it, `joint` says how it joins those that follow at a
    deeper level ("and", "or", "not", "" for a condition by itself); `holds` None: it can't be evaluated."""

    text: str
    level: int
    joint: str
    holds: bool | None
    found: tuple[ExaminedPath, ...] = ()


def examine(predicate: Predicate, root: Element, size: int) -> tuple[ExaminedCondition, ...]:
    """The conditions of a predicate, for the document with document element `root` and `size` bytes.

    One condition, the predicate itself, when it is of another language, or is too costly for the document.
    """
    whole = ExaminedCondition(predicate.expression, 0, "", predicate.decide(root, size))
    if predicate.language != XPATH or predicate.seconds(exact_extent(root, size)) > MAX_SECONDS:
        return (whole,)
    parsed = parse(predicate.expression, dict(predicate.namespaces), "predicate")
    examiner = _Examiner(parsed, dict(predicate.namespaces), root)
    return tuple(itertools.islice(examiner.conditions(parsed.tree, "", 0, "and"), MAX_CONDITIONS))


class _Examiner:
    """`within` is the path, from the document element, whose nodes a part is about; "" for the document element."""

    def __init__(self, parsed: Parsed, namespaces: dict[str, str], root: Element) -> None:
        self._text_of = parsed.text_of
        self._namespaces = namespaces
        self._root = root

    def conditions(self, part: Expression, within: str, level: int, around: str) -> Iterator[ExaminedCondition]:
        """A part and what it joins; `around` is the joint that it stands in."""
        text = self._text_of(part)
        joint, inside = _joined(part)
        found: tuple[ExaminedPath, ...] = ()
        if not joint:
            bracket = self._bracket(part, within)
            if bracket is None:
                paths = itertools.islice(dict.fromkeys(self._paths(part, within)), MAX_PATHS)
                found = tuple(map(self._found, paths))
                yield ExaminedCondition(_cut(text), level, "", self._holds(text, within), found)
                return
            nodes, inside = bracket
            joint, around, found = "and", "", (self._found(nodes),)
        else:
            nodes = within
        if joint != around:
            yield ExaminedCondition(_cut(text), level, joint, self._holds(text, within), found)
            level += 1
        for each in inside:
            yield from self.conditions(each, nodes, level, joint)

    def _bracket(self, part: Expression, within: str) -> tuple[str, tuple[Expression, ...]] | None:
        """Parts of a path whose last step has conditions: the path without them, and these."""
        if not isinstance(part, Path) or not isinstance(part.start, str):
            return None
        if not part.steps or not part.steps[-1].predicates:
            return None
        conditions = part.steps[-1].predicates
        if any(step.predicates for step in part.steps[:-1]) or not all(is_boolean(c) or selects(c) for c in conditions):
            return None
        text = self._text_of(part)
        head = text[: text.index("[")].rstrip()
        return _below(within, head), conditions

    def _paths(self, part: Expression, within: str) -> Iterator[str]:
        """The paths in a condition, each from the document element."""
        if isinstance(part, Path) and isinstance(part.start, str):
            yield _below(within, self._text_of(part))
        elif isinstance(part, (Path, Filter)):
            if not within:
                yield self._text_of(part)
        else:
            for each in parts_of(part):
                yield from self._paths(each, within)

    def _holds(self, text: str, within: str) -> bool | None:
        try:
            whole = f"boolean({text})" if not within else f"boolean({within}[boolean({text})])"
            return bool(compiled_xpath(whole, self._namespaces)(self._root))
        except FOREIGN_ERRORS:
            return None

    def _found(self, path: str) -> ExaminedPath:
        try:
            nodes = compiled_xpath(path, self._namespaces)(self._root)
        except FOREIGN_ERRORS:
            return ExaminedPath(_cut(path), (), 0)
        return ExaminedPath(_cut(path), tuple(_shown(node) for node in nodes[:MAX_VALUES]), len(nodes))


def _joined(part: Expression) -> tuple[str, tuple[Expression, ...]]:
    if isinstance(part, Chain) and part.operators[0] in ("and", "or"):
        return part.operators[0], part.operands
    if isinstance(part, FunctionCall) and part.name == "not" and _joined(part.arguments[0])[0]:
        return "not", part.arguments
    return "", ()


def _below(within: str, path: str) -> str:
    """`path` from the document element, where its context node is one of those at `within`."""
    return path if not within or path.startswith("/") else f"{within}/{path}"


def _shown(node: object) -> str:
    if isinstance(node, etree._Element):
        text = str(node.xpath(_STRING, smart_strings=False))
    else:
        text = str(node[1] if isinstance(node, tuple) else node)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "..."
