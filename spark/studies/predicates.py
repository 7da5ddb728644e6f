"""Which predicates match how much, which never do and why, which say the same, and what they cost a delegate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import ExaminedCondition, examine
from jbi_pubsub.spark.dataset import hashed
from jbi_pubsub.spark.judging import Judge, JudgingTopic, MatchedRow, RowMatcher, TaskSums
from jbi_pubsub.spark.page import ResultTable, Value, integers, numbers, texts
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import Data, Study, counted, share

SAMPLES: Final = 20
"""Publications of a registration that predicates which never match are examined with."""
SAMPLED_BYTES: Final = 16 << 10
"""Larger metadata are not among them. A sample is kept as a text of the document's bytes, whatever its encoding."""
EXAMINED: Final = 2_000
"""Examinations in all: some seconds."""


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:  # noqa: ARG001  # the form of all studies
    """Count how many objects each subscription matches, and which."""
    publication = seen.publication
    which = hashed(publication.object_id.encode())
    mixed = hashed(publication.object_id.encode() + publication.metadata) >> 29 if seen.matched else 0
    for number in seen.matched:
        tally.add("match", f"{number:07d}", 1, seen.size, mixed)
    if len(publication.metadata) <= SAMPLED_BYTES:
        tally.keep("sample", publication.publisher, which, publication.metadata.decode("latin-1"), SAMPLES)


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:  # noqa: ARG001  # as above
    """The answer."""
    published = {registration: sums[0] for registration, sums in passed.of("publications").items()}
    asked = _asked(judge, published)
    matches = {int(key): sums for key, sums in passed.of("match").items()}
    wanted = judge.wanted.values()
    rows = tuple(_row(each, asked[each.number], matches.get(each.number, [0, 0, 0])) for each in wanted)
    never = [
        each for each in wanted if each.predicate is not None and asked[each.number] and each.number not in matches
    ]
    reasons = _reasons(judge, never, passed)
    same = _same(judge, matches)
    evaluated = sum(1 for each in wanted if each.predicate is not None and each.predicate.evaluates)
    pairs, total, hits = sum(asked.values()), sum(published.values()), sum(sums[0] for sums in matches.values())
    return Result(
        study="predicates",
        question="How many of the publications that reach it does each predicate let through, and what does it cost?",
        facts=(
            ("publications", f"{total:,} of {len(published):,} registrations"),
            ("subscriptions", f"{len(wanted):,}, {sum(1 for n in asked.values() if n):,} of them asked"),
            ("first level", f"{pairs:,} candidates, {share(pairs, total * len(wanted))} of all pairs"),
            ("second level", f"{hits:,} matches, {share(hits, pairs)} of the candidates"),
            ("never match", counted(len(never), "predicate")),
            (
                "match the same objects",
                f"{counted(len(same), 'group')}, {counted(sum(map(len, same)), 'subscription')}",
            ),
            ("cost class", f"{len(wanted) - evaluated:,} in the index, {evaluated:,} evaluated one by one"),
        ),
        numbers={
            "publications": total,
            "subscriptions": len(wanted),
            "candidates": pairs,
            "matches": hits,
            "never_match": len(never),
            "groups_of_same": len(same),
            "evaluated": evaluated,
        },
        tables=(_predicates(rows), _nevers(never, reasons, asked), _sames(judge, same, matches)),
        plots=(_plot(rows),),
    )


def _asked(judge: Judge, published: Mapping[str, int]) -> Counter[int]:
    """Publications that each subscription's predicate is asked about."""
    topics: Counter[JudgingTopic] = Counter()
    for registration, number in published.items():
        topics[judge.topic(registration)] += number
    asked: Counter[int] = Counter()
    for topic, number in topics.items():
        for each in topic.candidates:
            asked[each.number] += number
    return asked


def _row(wanted: RowMatcher, asked: int, sums: Sequence[int]) -> tuple[Value, ...]:
    predicate = wanted.predicate
    cost = predicate.cost if predicate is not None and predicate.evaluates else 0.0
    kind = "none" if predicate is None else "evaluated" if predicate.evaluates else "indexed"
    selectivity = sums[0] / asked if asked else 0.0
    return (
        wanted.subscription.subscription,
        wanted.subscription.predicate,
        asked,
        sums[0],
        round(selectivity, 6),
        sums[1],
        kind,
        round(cost * 1e6, 1),
    )


def _predicates(rows: Sequence[tuple[Value, ...]]) -> ResultTable:
    return ResultTable(
        name="predicates",
        title="Each subscription's predicate",
        columns=texts("subscription", "predicate")
        + integers("asked", "matches")
        + numbers("selectivity")
        + integers("bytes")
        + texts("class")
        + numbers("cost_us"),
        rows=tuple(sorted(rows, key=lambda row: (-int(row[3]), str(row[0])))),
        note="asked: publications whose registration matches its template. cost_us: the most that one evaluation is "
        "expected to take where the index does not take it.",
    )


def _reasons(judge: Judge, never: Sequence[RowMatcher], passed: Passed) -> dict[int, tuple[str, int, int]]:
    """Causes of never matching: the condition that fails most often, how often, and of how many samples."""
    samples = passed.kept("sample", SAMPLES)
    found: dict[int, tuple[str, int, int]] = {}
    left = EXAMINED
    asked: dict[int, list[str]] = {each.number: [] for each in never}
    for registration, kept in samples.items():
        for each in judge.topic(registration).candidates:
            if each.number in asked and len(asked[each.number]) < SAMPLES:
                asked[each.number] += [text for _, text in kept]
    for each in never:
        documents = asked[each.number][: min(SAMPLES, left)]
        left -= len(documents)
        failed: Counter[str] = Counter()
        for text in documents:
            failed.update(_failing(each, text))
        if failed:
            condition, times = min(failed.items(), key=lambda pair: (-pair[1], pair[0]))
            found[each.number] = condition, times, len(documents)
    return found


def _failing(wanted: RowMatcher, text: str) -> list[str]:
    """The conditions without which the predicate would be true of a document, or nearer to it."""
    assert wanted.predicate is not None
    data = text.encode("latin-1")
    try:
        conditions = examine(wanted.predicate, parse_metadata(data), len(data))
    except JbiError:
        return []
    return [each.text for each in conjuncts(conditions) if each.holds is False]


def conjuncts(conditions: Sequence[ExaminedCondition]) -> list[ExaminedCondition]:
    """Those that all have to hold: joined by nothing but "and"."""
    found: list[ExaminedCondition] = []
    closed = len(conditions) + 1  # the level below which nothing is a conjunct
    for each in conditions:
        if each.level > closed:
            continue
        closed = len(conditions) + 1
        if each.joint != "and":
            found.append(each)
            closed = each.level if each.joint else closed
    return found


def _nevers(
    never: Sequence[RowMatcher], reasons: Mapping[int, tuple[str, int, int]], asked: Counter[int]
) -> ResultTable:
    nothing = ("", 0, 0)
    return ResultTable(
        name="never",
        title="Predicates that never match",
        columns=texts("subscription", "predicate")
        + integers("asked")
        + texts("fails_most")
        + integers("times", "samples"),
        rows=tuple(
            (
                each.subscription.subscription,
                each.subscription.predicate,
                asked[each.number],
                *reasons.get(each.number, nothing),
            )
            for each in never
        ),
        note="fails_most: the condition that was false most often, in samples of what was published.",
    )


def _same(judge: Judge, matches: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Subscriptions that matched the very same objects, by number, bytes, and hashes."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, sums in matches.items():
        if judge.wanted[number].predicate is not None:
            groups.setdefault(tuple(sums), []).append(number)
    return [group for group in groups.values() if len(group) > 1]


def _sames(judge: Judge, same: Sequence[Sequence[int]], matches: Mapping[int, Sequence[int]]) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for at, group in enumerate(sorted(same, key=lambda numbers: (-len(numbers), numbers[0])), 1):
        said = [judge.wanted[n].subscription for n in group]
        alike = "yes" if len({each.predicate for each in said}) == 1 else "no"
        rows += [(at, each.subscription, each.predicate, matches[group[0]][0], alike) for each in said]
    return ResultTable(
        name="together",
        title="Predicates that match the same objects",
        columns=integers("group") + texts("subscription", "predicate") + integers("matches") + texts("same_text"),
        rows=tuple(rows),
    )


def _plot(rows: Sequence[tuple[Value, ...]]) -> Plot:
    """Plot of how many predicates let through how much."""
    bounds = (0.0, 0.0001, 0.001, 0.01, 0.1, 0.5, 1.0)
    names = ("0", "0.01 %", "0.1 %", "1 %", "10 %", "50 %", "100 %")
    counts = [0] * len(bounds)
    for row in rows:
        if row[2]:
            counts[next(n for n, bound in enumerate(bounds) if float(row[4]) <= bound)] += 1
    series = Series("predicates", names, tuple(map(float, counts)))
    return Plot(
        name="selectivity",
        title="Predicates by the share of publications they let through",
        kind="bars",
        x="at most",
        y="predicates",
        series=(series,),
    )


STUDY: Final = Study("predicates", see, tell)
