"""Constraints over structured events as XPath 1.0, so that subscriptions in the trader's words are those of everybody.
Pure.

The document, without namespaces; the context node is its element, whatever it is called:

    <event>
      <header> <domain>heat</domain> <type>Monitoring</type> <name>step 17</name> </header>
      <qos> <priority number="5"/> </qos>
      <body> <residual number="0.001"/> <state string="running"/> <converged boolean="true"/>
             <categories sequence="string"> <item>junior</item> </categories> </body>
    </event>

A property is one element of the body, and its kind is its attribute's name; `$domain`, `$type`, `$name` are of the
header, `$qos.x` of the qos. So a comparison is one condition on a plain path, which the index of predicates knows, and
is false where the property is not there or of another kind, as its negation is. The truth of a constraint has three
values (see evaluation.py): for each part there is an XPath of when it is true, and one of when it is false.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from jbi_pubsub.core.errors import PredicateError

from .expression import (
    Arithmetic,
    Comparison,
    ConstantTerm,
    Exists,
    Expression,
    InclusionTerm,
    Junction,
    Negative,
    Not,
    PropertyTerm,
    Substring,
    parsed,
)

_KINDS: Final = ("number", "string", "boolean")
_OPPOSITE: Final[Mapping[str, str]] = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_NO: Final = "false()"


def as_xpath(text: str) -> str:
    """The XPath of a constraint: true for the metadata of those structured events for which it is. Raises
    PredicateError, with the position, and for what XPath can't say: truth values that are compared, but properties and
    TRUE and FALSE."""
    return _truth(parsed(text), text, wanted=True)


def _truth(of: Expression, text: str, *, wanted: bool) -> str:
    """When it is `wanted`."""
    match of:
        case ConstantTerm(value):
            return "true()" if value is wanted else _NO
        case PropertyTerm():
            return f"{_typed(of, 'boolean')} = '{str(wanted).lower()}'" if "boolean" in _kinds(of) else _NO
        case Exists(name):
            return _path(name) if wanted else f"not({_path(name)})"
        case Not(inner):
            return _truth(inner, text, wanted=not wanted)
        case Junction(word, parts):
            inside = [_truth(each, text, wanted=wanted) for each in parts]
            return f"({(' and ' if (word == 'and') is wanted else ' or ').join(inside)})"
        case Comparison():
            return _comparison(of, text, wanted=wanted)
        case InclusionTerm(member, sequence):
            items = f"{_path(sequence.name)}[@sequence = 'string']"
            return _guarded([member], f"{items}/item = {_text(member)}", wanted=wanted, there=[items])
        case Substring(part, whole):
            return _guarded([part, whole], f"contains({_text(whole)}, {_text(part)})", wanted=wanted)
        case Arithmetic() | Negative():
            return _NO


def _guarded(texts: list[Expression], holds: str, *, wanted: bool, there: list[str] | None = None) -> str:
    """Whether that holds, or does not, where the texts are some and the paths are there."""
    if not all("string" in _kinds(each) for each in texts):
        return _NO
    guards = [*(there or []), *(_text(each) for each in texts if isinstance(each, PropertyTerm))]
    return f"({' and '.join([*guards, holds if wanted else f'not({holds})'])})"


def _comparison(of: Comparison, text: str, *, wanted: bool) -> str:
    if not all(isinstance(each, PropertyTerm | ConstantTerm | Arithmetic | Negative) for each in (of.left, of.right)):
        raise PredicateError(
            "a subscription's constraint compares truth values", hint="Say it with and, or and not",
            argument="constraint", expression=text[:200], position=1,
        )  # fmt: skip
    sign = of.sign if wanted else _OPPOSITE[of.sign]
    common = [kind for kind in _KINDS if kind in _kinds(of.left) and kind in _kinds(of.right)]
    if sign not in ("==", "!="):
        common = [kind for kind in common if kind == "number"]
    ways = [_of_kind(of.left, sign, of.right, kind) for kind in common]
    return f"({' or '.join(ways)})" if len(ways) > 1 else "".join(ways) or _NO


def _of_kind(left: Expression, sign: str, right: Expression, kind: str) -> str:
    if kind != "number":
        return f"{_typed(left, kind)} {'=' if sign == '==' else sign} {_typed(right, kind)}"
    one, other = _number(left), _number(right)
    if sign not in ("==", "!="):
        return f"{one} {sign} {other}"
    if isinstance(left, ConstantTerm) or isinstance(right, ConstantTerm):
        is_plain = isinstance(left, PropertyTerm | ConstantTerm) and isinstance(right, PropertyTerm | ConstantTerm)
        if is_plain or sign == "==":
            return f"{one} {'=' if sign == '==' else sign} {other}"
    # two paths would be compared as texts, and no number is unequal to any
    return f"({one} <= {other} and {one} >= {other})" if sign == "==" else f"({one} < {other} or {one} > {other})"


def _kinds(of: Expression) -> tuple[str, ...]:
    match of:
        case ConstantTerm(value):
            return ("boolean",) if isinstance(value, bool) else ("string",) if isinstance(value, str) else ("number",)
        case PropertyTerm(name):
            return ("string",) if name in ("$domain", "$type", "$name") else _KINDS
        case Arithmetic() | Negative():
            return ("number",)
        case _:
            return ("boolean",)


def _path(name: str) -> str:
    if not name.startswith("$"):
        return f"body/{name}"
    return f"qos/{name[5:]}" if name.startswith("$qos.") else f"header/{name[1:]}"


def _typed(of: Expression, kind: str) -> str:
    """A text or truth value as it is in the document."""
    if isinstance(of, PropertyTerm):
        return _path(of.name) if _kinds(of) == ("string",) else f"{_path(of.name)}/@{kind}"
    assert isinstance(of, ConstantTerm)
    return _quoted(str(of.value).lower() if isinstance(of.value, bool) else str(of.value))


def _text(of: Expression) -> str:
    return _typed(of, "string") if isinstance(of, PropertyTerm | ConstantTerm) else "''"


def _quoted(text: str) -> str:
    if "'" not in text:
        return f"'{text}'"
    if '"' not in text:
        return f'"{text}"'
    parts = text.split("'")
    return "concat(" + ', "\'", '.join(f"'{each}'" for each in parts) + ")"


def _number(of: Expression) -> str:
    match of:
        case ConstantTerm(value) if isinstance(value, float) and not isinstance(value, bool):
            return f"{Decimal(repr(value)):f}"
        case PropertyTerm() if "number" in _kinds(of):
            return f"{_path(of.name)}/@number"
        case Negative(inner):
            return f"-({_number(inner)})"
        case Arithmetic(first, rest):
            steps = (f" {'div' if sign == '/' else sign} {_number(each)}" for sign, each in rest)
            return f"({_number(first)}{''.join(steps)})"
        case _:
            return "number('')"
