"""Predicates on a document into which the one that is at hand is put, as all that they speak of: asked of it alone.

Of the combined view (core/combined.py) most predicates speak of the publisher's part alone: `/og:metadata/image`,
`//image[priority='1']`. Asked of the metadata they have the same answers, and cost what predicates on metadata do.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Final

from jbi_pubsub.core.errors import PredicateError

from .language.grammar import (
    TOKEN,
    Chain,
    Expression,
    Filter,
    FunctionCall,
    Literal,
    LocationStep,
    Path,
    is_constant,
    parse,
    parts_of,
)

_DOWN: Final = frozenset(["child", "attribute", "self", "descendant", "descendant-or-self"])
_COMPARED: Final = frozenset(["=", "!=", "<", "<=", ">", ">="])
_JOINED: Final = frozenset(["or", "and", "|"])
_BESIDE: Final = frozenset(["id", "lang", "name"])
"""Functions whose answer may hang on what stands around the document."""


def inside(expression: str, namespaces: Mapping[str, str], above: str) -> str | None:
    """Predicate to ask of a document in place of one on the document in which it is the child of the document element,
    called `above` as `{uri}local`, beside others of names in that namespace; None: it may speak of these, too. Both are
    false where there is no such child."""
    try:
        parsed = parse(expression, namespaces, "predicate")
    except PredicateError:  # whoever compiles it says so
        return None
    if not _is_inside(parsed.tree, above):
        return None
    uri, _, local = above[1:].partition("}")
    names = {f"{prefix}:{local}" for prefix, bound in namespaces.items() if bound == uri}
    made, count = _without_top(expression, names)
    return made if count == _tops(parsed.tree, above) else None


def _is_inside(part: Expression, above: str) -> bool:
    """Whether it speaks of the child alone, and is false without it."""
    if isinstance(part, Path):
        steps = _within(part, above)
        is_there = steps is not part.steps or (part.steps[:1] and part.steps[0].axis == "descendant")
        return part.start == "/" and bool(is_there) and _is_below(steps, above)
    if isinstance(part, FunctionCall):  # of an empty text as of none, which has no part but the empty one
        path, text = (*part.arguments, None, None)[:2]
        return (
            part.name in ("contains", "starts-with")
            and isinstance(path, Path)
            and isinstance(text, Literal)
            and text.text != ""
            and _is_inside(path, above)
        )
    if not isinstance(part, Chain):
        return False
    if _JOINED.issuperset(part.operators):
        return all(_is_inside(each, above) for each in part.operands)
    paths = [each for each in part.operands if not is_constant(each)]
    return (
        len(part.operators) == 1
        and part.operators[0] in _COMPARED
        and bool(paths)
        and all(isinstance(each, Path) and _is_inside(each, above) for each in paths)
    )


def _within(path: Path, above: str) -> tuple[LocationStep, ...]:
    return path.steps[1:] if path.steps[:1] == (LocationStep("child", above),) else path.steps


def _is_below(steps: tuple[LocationStep, ...], above: str) -> bool:
    """Whether the steps begin at an element that is none of those beside the child, and go down from there."""
    if not steps or steps[0].axis not in ("child", "descendant"):
        return False
    test = steps[0].test
    is_name = test != "*" and "(" not in test and not test.startswith(above[: above.index("}") + 1])
    return is_name and not test.endswith("}*") and all(map(_goes_down, steps))


def _goes_down(step: LocationStep) -> bool:
    return step.axis in _DOWN and all(map(_is_about_below, step.predicates))


def _is_about_below(part: Expression) -> bool:
    """Whether a condition is about what is at its node and below."""
    if isinstance(part, Path):
        return part.start == "" and all(map(_goes_down, part.steps))
    if isinstance(part, Filter) or (isinstance(part, FunctionCall) and part.name in _BESIDE):
        return False
    return all(map(_is_about_below, parts_of(part)))


def _tops(part: Expression, above: str) -> int:
    """Number of paths that begin at the document element."""
    if isinstance(part, Path):
        return int(_within(part, above) is not part.steps)
    return sum(_tops(each, above) for each in parts_of(part))


def _without_top(expression: str, names: Container[str]) -> tuple[str, int]:
    """The expression without the first step of paths that begin at the document element, where that is written as one
    of the names; how many there were."""
    tokens = [(token[0], token.start(), token.end()) for token in TOKEN.finditer(expression)]
    parts, at, count = [], 0, 0
    for (first, start, _), (name, _, end), (then, _, _) in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if first == "/" and name in names and then in ("/", "//"):
            parts.append(expression[at:start])
            at, count = end, count + 1
    return "".join(parts) + expression[at:], count
