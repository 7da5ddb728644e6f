"""Why an expression can be true of no valid document: the reasons, for whoever wrote it.

Pure. Each part of an expression is given the nodes that it can select by the schema's outline, or its value where that
is the same for all documents. Rules:
- Sound: what is said to be impossible is so for each document that is valid by the schema. What is not understood
  (axes upwards and sideways, positions, values of functions) may be anything.
- A reason is told only if the whole expression is false for it: one side of `or` that can be true is enough.
"""

from __future__ import annotations

import math
import operator as operators
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from jbi_pubsub.core.documents.outline import ANYTHING, DOCUMENT, NEVER_NUMBERS, TEXT, SchemaNode, SchemaOutline
from jbi_pubsub.core.documents.simple import UnclearError
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.near import near_name
from jbi_pubsub.core.xpath.language.grammar import (
    Chain,
    Expression,
    Filter,
    FunctionCall,
    Literal,
    LocationStep,
    Negate,
    Number,
    Parsed,
    Path,
    is_boolean,
    parse,
)
from jbi_pubsub.core.xpath.language.number import number

MAX_STEPS: Final = 20_000
"""Nodes looked at for one expression, some 20 ms; what takes more is not judged."""
MAX_REASONS: Final = 3
_XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
_TIME: Final = re.compile(r"\s*\d{4}-\d\d|\s*\d\d:\d\d")
_RELATIONS: Final = ("<", "<=", ">", ">=")
_OF_NOTHING: Final[Mapping[str, str | float]] = {
    **dict.fromkeys(("count", "sum", "string-length"), 0.0),
    **dict.fromkeys(("string", "normalize-space", "substring", "substring-before", "substring-after", "translate"), ""),
    **dict.fromkeys(("local-name", "name", "namespace-uri"), ""),
}
"""Values of functions of an empty set or text."""
_COMPARE: Final = {"=": operators.eq, "<": operators.lt, "<=": operators.le, ">": operators.gt, ">=": operators.ge}


class ImpossibleCondition(NamedTuple):
    """A part of an expression for which it is never true. `near`: what was meant, "" if nothing is like it."""

    condition: str
    reason: str
    near: str = ""

    def __str__(self) -> str:
        return f"{self.condition} can't match: {self.reason}" + (f"; did you mean {self.near}?" if self.near else "")


class _Value(NamedTuple):
    """Value of a part: nodes that it can select, a constant, or (neither) unknown; and why it is so."""

    nodes: Mapping[SchemaNode, None] | None = None
    constant: str | float | bool | None = None
    why: tuple[ImpossibleCondition, ...] = ()

    @property
    def truth(self) -> bool | None:
        """Its truth in all documents; None: it depends."""
        if self.nodes is not None:
            return None if self.nodes else False
        return None if self.constant is None else bool(self.constant) and self.constant == self.constant

    @property
    def text(self) -> str | None:
        """Its text in all documents."""
        if self.nodes is not None:
            return None if self.nodes else ""
        return self.constant if isinstance(self.constant, str) else None


_UNKNOWN: Final = _Value()


def impossible(
    expression: str, namespaces: Mapping[str, str], outline: SchemaOutline, prefixes: Mapping[str, str] = {}
) -> tuple[ImpossibleCondition, ...]:
    """Why `expression` (XPath, about the document element) is false, or selects nothing, in all documents of a schema;
    () if it may not, or nothing is known. `prefixes` (by namespace) are those of the schema, for names in reasons."""
    names = {**prefixes, **{uri: prefix for prefix, uri in namespaces.items()}}
    try:
        parsed = parse(expression, namespaces, "predicate")
        value = _Judge(outline, parsed, names).value(parsed.tree, outline.root)
    except (PredicateError, UnclearError, RecursionError):
        return ()
    if value.truth is not False:
        return ()
    return tuple(dict.fromkeys(value.why))[:MAX_REASONS] or (ImpossibleCondition(expression, "it is false by itself"),)


class _Judge:
    def __init__(self, outline: SchemaOutline, parsed: Parsed, names: Mapping[str, str]) -> None:
        self._outline = outline
        self._text_of = parsed.text_of
        self._names = names
        self._left = MAX_STEPS

    def value(self, part: Expression, at: SchemaNode) -> _Value:
        """Value of a part about a node. Raises UnclearError where it takes too long."""
        if isinstance(part, Literal):
            return _Value(constant=part.text)
        if isinstance(part, Number):
            return _Value(constant=number(part.text))
        if isinstance(part, Negate):
            return self._nothing(self.value(part.operand, at))
        if isinstance(part, Path):
            start = _Value({DOCUMENT: None} if part.start == "/" else {at: None})
            return self._path(part, start if isinstance(part.start, str) else self.value(part.start, at))
        if isinstance(part, Filter):
            return self._filtered(self.value(part.primary, at), part.predicates)
        if isinstance(part, FunctionCall):
            return self._call(part, at)
        return self._chain(part, at)

    # -- paths --------------------------------------------------------------------------------------------------

    def _path(self, path: Path, value: _Value) -> _Value:
        for step in path.steps:
            if not value.nodes:
                break
            found = dict.fromkeys(node for each in value.nodes for node in self._selected(each, step))
            self._left -= len(found) + len(value.nodes)
            if self._left < 0:
                raise UnclearError
            why = () if found else (self._unknown(path, value.nodes, step),)
            value = self._filtered(_Value(found, None, why), step.predicates)
        return value

    def _filtered(self, value: _Value, predicates: Sequence[Expression]) -> _Value:
        for predicate in predicates:
            if not value.nodes:
                break
            judged = {node: self.value(predicate, node) for node in value.nodes}
            # a number is a position
            kept = {n: None for n, v in judged.items() if v.truth is not False or isinstance(v.constant, float)}
            why = () if kept else tuple(each for v in judged.values() for each in v.why)
            value = _Value(kept, None, why)
        return value

    def _selected(self, node: SchemaNode, step: LocationStep) -> Iterable[SchemaNode]:
        """Nodes that a step can lead to."""
        axis, test = step.axis, step.test
        if node is ANYTHING:
            return (ANYTHING,)
        if axis == "self":
            return (node,) if _fits(node, test) else ()
        if axis == "attribute":
            return self._attributes(node, test)
        if axis not in ("child", "descendant", "descendant-or-self"):
            return (ANYTHING,)
        own = [node] if axis == "descendant-or-self" and _fits(node, test) else []
        if node.kind in ("text", "attribute"):
            return own
        root = self._outline.root
        found: list[SchemaNode] = [root] if node is DOCUMENT else []
        if axis != "child":
            found += self._outline.below(root if node is DOCUMENT else node)
            self._left -= len(found)
        elif node is not DOCUMENT:
            content = self._outline.content(node)
            found += (each for nodes in content.children.values() for each in nodes)
            if content.is_open and (test in ("*", "node()") or test[-2:] == "}*" or content.wildcards.takes_any(test)):
                found.append(ANYTHING)
        texts = [TEXT] if _fits(TEXT, test) else []
        return [*own, *texts, *(each for each in found if _fits(each, test))]

    def _attributes(self, node: SchemaNode, test: str) -> Iterable[SchemaNode]:
        if node.kind != "element":
            return ()
        content = self._outline.content(node)
        # those of xsi may stand everywhere
        if content.has_any_attribute or test in ("*", "node()") or test.startswith(_XSI):
            return (ANYTHING,)
        return [each for nodes in content.attributes.values() for each in nodes if _fits(each, test)]

    def _unknown(self, path: Path, nodes: Iterable[SchemaNode], step: LocationStep) -> ImpossibleCondition:
        """Reason for a step that leads nowhere."""
        known: dict[str, None] = {}
        for node in nodes:
            known |= self._known(node, step.axis)
        mark = "@" if step.axis == "attribute" else ""
        what = "attribute" if mark else "element"
        names = list(dict.fromkeys(self._shown(each.name) for each in nodes if each.name))
        above = names[0] if len(names) == 1 else "the document"
        space, _, local = step.test.rpartition("}")
        where = f" below {above}" if step.axis.startswith("descendant") else f" in {above}"
        reason = (
            f"there is no {what} {mark}{self._shown(step.test)}{where}" if local[-1:] != ")" else "nothing is there"
        )
        same = next((name for name in known if name.rpartition("}")[2] == local), "")
        if same:
            uri = same[1:].rpartition("}")[0]
            prefix = self._names.get(uri)
            if uri and not space:
                reason = f"{local} without a prefix is in no namespace, and the schema's {local} is in {uri}: bind "
                reason += f"{'the prefix ' + prefix if prefix else 'a prefix'} to it"
                same = same if prefix else f"PREFIX:{local}"
            else:
                reason += f", as its {local} is in {uri or 'no namespace'}"
        else:
            locals_ = {name.rpartition("}")[2]: name for name in known}
            same = locals_.get(near_name(local, locals_), "")
        return ImpossibleCondition(self._text_of(path), reason, f"{mark}{self._shown(same)}" if same else "")

    def _known(self, node: SchemaNode, axis: str) -> dict[str, None]:
        """Names of what lies on an axis."""
        if node is DOCUMENT and axis == "child":
            return {self._outline.root.name: None}
        if node is not DOCUMENT and node.kind != "element":
            return {}
        start = self._outline.root if node is DOCUMENT else node
        if axis == "attribute":
            return dict.fromkeys(self._outline.content(start).attributes)
        if axis == "child":
            return dict.fromkeys(self._outline.content(start).children)
        return dict.fromkeys(each.name for each in (start, *self._outline.below(start)) if each.name)

    def _shown(self, name: str) -> str:
        space, _, local = name[1:].rpartition("}")
        return f"{self._names[space]}:{local}" if space and space in self._names else local if space else name

    # -- values -------------------------------------------------------------------------------------------------

    def _chain(self, chain: Chain, at: SchemaNode) -> _Value:
        first = chain.operators[0]
        values = [self.value(each, at) for each in chain.operands]
        if first == "|":
            if any(each.nodes is None for each in values):
                return _UNKNOWN
            return _Value({n: None for v in values for n in v.nodes or ()}, None, _reasons(values))
        if first in ("and", "or"):
            never = [each for each in values if each.truth is False]
            if never and (first == "and" or len(never) == len(values)):
                return _Value(constant=False, why=_reasons(never))
            always = [each for each in values if each.truth is True]
            if always and (first == "or" or len(always) == len(values)):
                return _Value(constant=True, why=_reasons(always))
            return _UNKNOWN
        if first in ("=", "!=", *_RELATIONS):
            return self._compared(chain, values) if len(values) == 2 else _UNKNOWN
        return self._nothing(*values)

    def _nothing(self, *values: _Value) -> _Value:
        """Arithmetic: with one that is no number it has none."""
        never = [each for each in values if self._is_no_number(each)]
        return _Value(constant=math.nan, why=_reasons(never)) if never else _UNKNOWN

    def _is_no_number(self, value: _Value) -> bool:
        """Whether it, or each node of it, is no number in any document."""
        if value.nodes is not None:
            return all(self._outline.value(node).builtin in NEVER_NUMBERS for node in value.nodes)
        constant = value.constant
        return constant is not None and math.isnan(number(constant) if isinstance(constant, str) else constant)

    def _compared(self, chain: Chain, values: Sequence[_Value]) -> _Value:
        operator, (left, right) = chain.operators[0], values
        text = self._text_of(chain)
        for one, other, part in ((left, right, chain.operands[1]), (right, left, chain.operands[0])):
            is_truth = isinstance(other.constant, bool) or (other.constant is None and is_boolean(part))
            if one.nodes is not None and not one.nodes and not is_truth:
                return _Value(constant=False, why=one.why)
            as_numbers = operator in _RELATIONS or isinstance(one.constant, float) or isinstance(other.constant, float)
            if operator == "!=" or not as_numbers or not self._is_no_number(one):
                continue
            if one.nodes is not None and is_truth:
                continue  # the set is compared as a truth
            if operator in _RELATIONS or not is_truth:
                return _Value(constant=False, why=one.why or (self._no_number(text, operator, one, other),))
        if operator == "=" and None not in (left.text, right.text) and left.nodes is right.nodes is None:
            return _Value(constant=left.text == right.text)
        numbers = left.constant, right.constant
        if operator in _COMPARE and isinstance(numbers[0], float) and isinstance(numbers[1], float):
            return _Value(constant=_COMPARE[operator](numbers[0], numbers[1]), why=left.why + right.why)
        for one, other in ((left, right), (right, left)):
            if operator == "=" and one.nodes and isinstance(other.constant, str):
                return self._allowed(text, one.nodes, str(other.constant))
        return _UNKNOWN

    def _no_number(self, text: str, operator: str, one: _Value, other: _Value) -> ImpossibleCondition:
        """Reason for a comparison of what is no number."""
        types = {self._outline.value(node).builtin for node in one.nodes or ()}
        what = f"xs:{', xs:'.join(sorted(types))}" if types else repr(one.constant)
        reason = f"{'= with a number' if operator == '=' else operator} compares numbers, and {what} is none"
        is_time = types & {"date", "dateTime", "time"} or (
            isinstance(one.constant, str) and _TIME.match(str(one.constant))
        )
        if is_time and operator != "=":
            reason += "; compare the digits of times: number(translate(substring(PATH, 1, 10), '-', '')) > 20260131"
        elif types and isinstance(other.constant, float):
            reason += "; write the value in quotes"
        return ImpossibleCondition(text, reason)

    def _allowed(self, text: str, nodes: Iterable[SchemaNode], literal: str) -> _Value:
        """Equality with a text that none of the nodes can have."""
        wanted, allowed = " ".join(literal.split()), [self._outline.value(node).allowed for node in nodes]
        if not wanted or not all(each and wanted not in each for each in allowed):
            return _UNKNOWN
        known = dict.fromkeys(value for each in allowed for value in each)
        near = near_name(wanted, known)
        shown = ", ".join([*known][:8]) + (", ..." if len(known) > 8 else "")
        reason = f"the schema allows {shown}"
        return _Value(constant=False, why=(ImpossibleCondition(text, reason, repr(near) if near else ""),))

    def _call(self, call: FunctionCall, at: SchemaNode) -> _Value:
        name, own = call.name, _Value({at: None})
        values = [self.value(each, at) for each in call.arguments] or [own]
        first, why = values[0], _reasons(values)
        if name in ("true", "false"):
            return _Value(constant=name == "true")
        if name in ("not", "boolean"):
            truth = first.truth
            return _UNKNOWN if truth is None else _Value(constant=truth is (name == "boolean"), why=why)
        if name in ("number", "floor", "ceiling", "round"):
            return self._nothing(first)
        if first.text == "" and name in ("contains", "starts-with") and values[1].text:
            return _Value(constant=False, why=why)
        return _Value(constant=_OF_NOTHING[name], why=why) if first.text == "" and name in _OF_NOTHING else _UNKNOWN


def _fits(node: SchemaNode, test: str) -> bool:
    """Whether a node may pass a node test."""
    if node is ANYTHING or test == "node()":
        return True
    if test[-1:] == ")":
        return node is TEXT
    if node.kind not in ("element", "attribute"):
        return False
    return test in ("*", node.name) or (test[-2:] == "}*" and node.name.startswith(test[:-1]))


def _reasons(values: Iterable[_Value]) -> tuple[ImpossibleCondition, ...]:
    return tuple(each for value in values for each in value.why)
