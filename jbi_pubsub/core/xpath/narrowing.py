"""A condition of somebody else's, ANDed to a predicate: each side with its own namespaces, in whatever language.

What comes out is a predicate like any other: the index takes it apart and shares what it has in common with others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language.grammar import TOKEN
from jbi_pubsub.core.xpath.predicate import XPATH, Predicate, compile_predicate

Condition = tuple[str, tuple[tuple[str, str], ...]]
"""An XPath, and the namespaces of its prefixes."""


def joined(conditions: Iterable[Condition], operator: Literal["and", "or"]) -> Condition:
    """All of them as one; where two bind a prefix to different namespaces, the later one's is renamed."""
    bound: dict[str, str] = {}
    texts: dict[str, None] = {}
    for expression, namespaces in conditions:
        renamed: dict[str, str] = {}
        for prefix, space in namespaces:
            if bound.get(prefix, space) != space:
                renamed[prefix] = _other_than({*bound, *dict(namespaces)}, prefix)
            bound[renamed.get(prefix, prefix)] = space
        texts[_with_prefixes(expression, renamed)] = None
    whole = f" {operator} ".join(f"({text})" for text in texts) if len(texts) > 1 else next(iter(texts))
    return whole, tuple(sorted(bound.items()))


def negated(condition: Condition) -> Condition:
    """True where it is false."""
    return f"not({condition[0]})", condition[1]


def narrowed(predicate: Predicate | None, where: Condition) -> Predicate:
    """True for the documents for which both are; with a lenient predicate for all for which `where` is, as nobody knows
    of both together which of them can't be decided. Raises PredicateError when they are too much together."""
    if predicate is None or predicate.is_lenient:
        return compile_predicate(where[0], namespaces=dict(where[1]))
    if predicate.language == XPATH:
        expression, namespaces = joined([(predicate.expression, predicate.namespaces), where], "and")
        return compile_predicate(expression, namespaces=dict(namespaces))
    condition = compile_predicate(where[0], namespaces=dict(where[1]))

    def both(root: Element) -> bool:
        return condition.evaluate(root) is True and predicate.evaluate(root) is True

    return predicate.under(both, f"{where[0]} {where[1]}")


def prefixes_of(expression: str) -> set[str]:
    """Prefixes in an expression, whatever they are bound to."""
    names = (token[2].partition(":") for token in TOKEN.findall(expression))
    return {prefix for prefix, colon, _ in names if colon}


def _other_than(taken: set[str], prefix: str) -> str:
    return next(name for number in range(2, len(taken) + 3) if (name := f"{prefix}-{number}") not in taken)


def _with_prefixes(expression: str, renamed: Mapping[str, str]) -> str:
    """The expression with other prefixes in its names: `renamed` maps those there are to those there are to be."""

    def written(token: re.Match[str]) -> str:
        prefix, colon, rest = (token[3] or "").partition(":")
        return renamed.get(prefix, prefix) + colon + rest if colon else token[0]

    return TOKEN.sub(written, expression) if renamed else expression
