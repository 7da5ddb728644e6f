"""Which elements never change within a registration: they could be invariant, and be matched by the lookup service once
instead of by predicates for each object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath import ExaminedCondition, examine
from jbi_pubsub.spark.dataset import hashed
from jbi_pubsub.spark.judging import MANY, Judge, MatchedRow, RowMatcher, TaskSums
from jbi_pubsub.spark.page import ResultTable, Value, integers, texts
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.predicates import SAMPLED_BYTES, conjuncts
from jbi_pubsub.spark.studies.study import Data, Study, counted, share

PATHS: Final = 500
"""Leaves of a document that are looked at."""
VALUE_MOST: Final = 200
"""Characters of a value that may be invariant."""
_JOINT: Final = "\x01"
_EQUALS: Final = re.compile(r"""[^<>!='"]+=\s*('[^']*'|"[^"]*"|-?[\d.]+)\s*|('[^']*'|"[^"]*"|-?[\d.]+)\s*=[^<>!='"]+""")
"""A condition that a template can say: a path equals a literal."""
_EQUALITY: Final = re.compile("(?<![<>!])=")
"""Sign without which a predicate need not be looked at."""


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:  # noqa: ARG001  # the form of all studies
    """The values of the leaves."""
    publication = seen.publication
    where = publication.publisher
    tally.add("matched", "", len(seen.matched))
    for number, (path, value) in enumerate(leaves(seen.root)):
        if number == PATHS:
            break
        tally.value("leaf", f"{where}{_JOINT}{path}", value if len(value) <= VALUE_MOST else MANY)
    if len(publication.metadata) <= SAMPLED_BYTES:
        which = hashed(publication.object_id.encode())
        tally.keep("sample", where, which, publication.metadata.decode("latin-1"), 1)


def leaves(root: Element) -> Iterator[tuple[str, str]]:
    """(path, value) of all texts and attributes of a document. Steps have no numbers: equal names share a path."""
    ahead = [(f"/{_name(root)}", root)]
    while ahead:
        path, element = ahead.pop()
        for name, value in element.attrib.items():
            yield f"{path}/@{name}", str(value)
        children = [child for child in element if isinstance(child.tag, str)]
        if not children:
            yield path, (element.text or "").strip()
        ahead += [(f"{path}/{_name(child)}", child) for child in reversed(children)]


def _name(element: Element) -> str:
    return str(element.tag)


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:  # noqa: ARG001  # as above
    """The answer."""
    published = {registration: sums[0] for registration, sums in passed.of("publications").items()}
    constants = _constants(passed, published)
    types = {each.registration: each.type for each in data.contracts.registrations}
    paths = _by_type(constants, published, types)
    moves, avoided, candidates = _moves(passed, judge, constants, published)
    hits, matched = candidates - avoided, passed.total("matched")[0]
    return Result(
        study="invariants",
        question="Which elements never change within a registration, and what would marking them as invariant save?",
        facts=(
            ("registrations", f"{len(published):,}, {sum(published.values()):,} publications"),
            ("constant", f"{len(paths):,} paths are constant in every registration of their type"),
            ("candidates now", f"{candidates:,} pairs of publication and subscription come to the second level"),
            ("would be spared", f"{avoided:,} of them, {share(avoided, candidates)}"),
            (
                "first-level precision",
                f"{share(matched, candidates)} now, {share(matched, hits)} then",
            ),
            ("could move", f"conditions of {counted(len({row[0] for row in moves}), 'predicate')} into templates"),
        ),
        numbers={
            "constant_paths": len(paths),
            "candidates": candidates,
            "avoidable": avoided,
            "movable": len({row[0] for row in moves}),
        },
        tables=(
            ResultTable(
                name="constant",
                title="Elements that never change within a registration",
                columns=texts("type", "path") + integers("registrations", "values") + texts("example"),
                rows=tuple(paths),
                note="Of all registrations of the type. values: how many different ones there are among them; with one "
                "alone it tells nothing apart.",
            ),
            _movable(moves),
        ),
        plots=(
            Plot(
                name="candidates",
                title="Pairs that come to the second level",
                kind="bars",
                x="",
                y="pairs",
                series=(Series("pairs", ("now", "with invariants"), (float(candidates), float(hits))),),
            ),
        ),
    )


def _movable(moves: Sequence[tuple[str, str, int, int, int]]) -> ResultTable:
    return ResultTable(
        name="movable",
        title="Conditions that templates could say",
        columns=texts("subscription", "condition") + integers("registrations", "false_for", "spared"),
        rows=tuple(moves),
        note="false_for: registrations for whose objects it is never true. spared: their publications, for which the "
        "predicate would not be evaluated.",
    )


Constants = dict[str, dict[str, str]]
"""Paths with one value in every publication, by registration."""


def _constants(passed: Passed, published: Mapping[str, int]) -> Constants:
    found: Constants = {}
    for key, (value, number) in passed.values("leaf").items():
        registration, path = key.split(_JOINT, 1)
        if value != MANY and number == published[registration]:
            found.setdefault(registration, {})[path] = value
    return found


def _by_type(
    constants: Constants, published: Mapping[str, int], types: Mapping[str, str]
) -> list[tuple[str, str, int, int, str]]:
    """The paths that are constant in all registrations of a type."""
    of: dict[str, list[dict[str, str]]] = {}
    for registration in published:
        of.setdefault(types.get(registration, registration), []).append(constants.get(registration, {}))
    rows = []
    for name, each in sorted(of.items()):
        for path in sorted(set.intersection(*(set(known) for known in each))):
            values = {known[path] for known in each}
            rows.append((name, path, len(each), len(values), min(values)))
    return rows


def _moves(
    passed: Passed, judge: Judge, constants: Constants, published: Mapping[str, int]
) -> tuple[list[tuple[str, str, int, int, int]], int, int]:
    """Conditions on constant paths that a template can say; candidates that they would spare, and all candidates."""
    samples = passed.kept("sample", 1)
    rows: dict[tuple[str, str], tuple[int, int, int]] = {}
    spared = candidates = 0
    for registration, number in published.items():
        asked = judge.topic(registration).candidates
        candidates += number * len(asked)
        if registration not in samples:
            continue
        data = samples[registration][0][1].encode("latin-1")
        root = parse_metadata(data)
        of_text: dict[object, list[ExaminedCondition]] = {}
        for each in asked:
            same = (each.subscription.predicate, tuple(each.subscription.namespaces.items()))
            if same not in of_text:
                found = _conditions(each, root, len(data))
                of_text[same] = [c for c in found if _is_constant(c, each, root, constants.get(registration, {}))]
            said = of_text[same]
            spared += number * any(condition.holds is False for condition in said)
            for condition in said:
                key, is_false = (each.subscription.subscription, condition.text), condition.holds is False
                many, false_for, of_them = rows.get(key, (0, 0, 0))
                rows[key] = many + 1, false_for + is_false, of_them + number * is_false
    moves = [(uid, text, *counts) for (uid, text), counts in rows.items()]
    return sorted(moves, key=lambda row: (-row[4], row[0], row[1])), spared, candidates


def _conditions(wanted: RowMatcher, root: Element, size: int) -> Sequence[ExaminedCondition]:
    if wanted.predicate is None or not _EQUALITY.search(wanted.predicate.expression):
        return ()
    try:
        return [
            each for each in conjuncts(examine(wanted.predicate, root, size)) if _EQUALS.fullmatch(each.text.strip())
        ]
    except JbiError:
        return ()


def _is_constant(condition: ExaminedCondition, wanted: RowMatcher, root: Element, constants: Mapping[str, str]) -> bool:
    """Whether all that a condition looks at is constant, and there."""
    names = wanted.subscription.namespaces
    for found in condition.found:
        if not found.count:
            return False
        for node in root.xpath(found.path, namespaces=names or None):
            if _path_of(node) not in constants:
                return False
    return bool(condition.found)


def _path_of(node: object) -> str:
    if isinstance(node, Element):
        parts = [node, *node.iterancestors()]
        return "/" + "/".join(str(part.tag) for part in reversed(parts))
    parent = getattr(node, "getparent", lambda: None)()
    name = getattr(node, "attrname", None)
    if parent is None:
        return ""
    return f"{_path_of(parent)}/@{name}" if name else _path_of(parent)


STUDY: Final = Study("invariants", see, tell)
