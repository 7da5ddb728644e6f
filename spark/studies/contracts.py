"""Which templates of a data set match which of its registrations, by the lookup service's own index.

Equal templates are one group, and registrations of equal entries one topic: a template that matches everything costs
one row, however many registrations there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.index import TemplateIndex
from jbi_pubsub.spark.dataset import Contracts
from jbi_pubsub.spark.page import ResultTable, integers, numbers, texts
from jbi_pubsub.spark.plots import Plot, Series, by_octave
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import share

ROWS_MOST: Final = 100_000
"""Rows of a table; those with most matches."""
HOT: Final = 0.5
"""A template that matches more than this share of the registrations is hot: it selects next to nothing."""

Entries = tuple[EntryRep, ...]


def match(contracts: Contracts) -> Result:
    """The answer. Raises IncompatibleEntryError for a template's class that a registration has with other fields."""
    topics = Counter(each.entries for each in contracts.registrations)
    groups = Counter(each.template for each in contracts.subscriptions)
    found = _found(topics, groups)
    registrations, subscriptions = topics.total(), groups.total()
    of_template = {group: sum(topics[topic] for topic in found[group]) for group in groups}
    of_topic = dict.fromkeys(topics, 0)
    for group, matched in found.items():
        for topic in matched:
            of_topic[topic] += groups[group]
    pairs = sum(of_template[group] * count for group, count in groups.items())
    hot = [group for group, count in of_template.items() if count > HOT * registrations]
    never = [group for group, count in of_template.items() if not count]
    templates = _templates(groups, of_template, registrations)
    return Result(
        study="match",
        question="Which templates match which registrations?",
        facts=(
            ("registrations", f"{registrations:,}, of {len(topics):,} different invariants"),
            ("subscriptions", f"{subscriptions:,}, of {len(groups):,} different templates"),
            ("matches", f"{pairs:,} pairs, {share(pairs, registrations * subscriptions)} of all"),
            ("hot templates", f"{len(hot):,} match more than {HOT:.0%} of the registrations"),
            ("templates that match nothing", f"{len(never):,}"),
            ("registrations for nobody", f"{sum(n for topic, n in topics.items() if not of_topic[topic]):,}"),
        ),
        numbers={
            "registrations": registrations,
            "subscriptions": subscriptions,
            "topics": len(topics),
            "templates": len(groups),
            "pairs": pairs,
            "hot": len(hot),
            "never": len(never),
        },
        tables=(templates, _registrations(contracts, of_topic)),
        plots=(_spread(of_template, groups), _hottest(templates)),
    )


def _found(topics: Mapping[Entries, int], groups: Mapping[Entries, int]) -> dict[Entries, list[Entries]]:
    """The topics that each template matches."""
    index: TemplateIndex[Entries] = TemplateIndex()
    for group in groups:
        index.add(group, group)
    found: dict[Entries, list[Entries]] = {group: [] for group in groups}
    for topic in topics:
        for group in index.find(topic):
            found[group].append(topic)
    return found


def shown(template: Sequence[EntryRep]) -> str:
    """For people: classes, and the fields that are set."""
    texts = []
    for entry in template:
        fields = ", ".join(f"{name}={value}" for name, value in entry.as_dict().items() if value is not None)
        texts.append(f"{entry.cls.name}({fields})")
    return " and ".join(texts) or "everything"


def _templates(groups: Mapping[Entries, int], matched: Mapping[Entries, int], registrations: int) -> ResultTable:
    rows = [
        (shown(group), count, matched[group], round(matched[group] / max(1, registrations), 6))
        for group, count in groups.items()
    ]
    rows.sort(key=lambda row: (-row[2], -row[1], row[0]))
    return ResultTable(
        name="templates",
        title="Templates by the registrations that they match",
        columns=texts("template") + integers("subscriptions", "registrations") + numbers("share"),
        rows=tuple(rows[:ROWS_MOST]),
        note=f"Those with a share above {HOT:g} are hot: predicates alone decide there.",
    )


def _registrations(contracts: Contracts, matched: Mapping[Entries, int]) -> ResultTable:
    rows = [
        (each.registration, each.publisher, each.type, each.delegate, matched[each.entries])
        for each in contracts.registrations
    ]
    rows.sort(key=lambda row: (-row[4], row[0]))
    return ResultTable(
        name="registrations",
        title="Registrations by the subscriptions that match them",
        columns=texts("registration", "publisher", "type", "delegate") + integers("subscriptions"),
        rows=tuple(rows[:ROWS_MOST]),
    )


def _spread(matched: Mapping[Entries, int], groups: Mapping[Entries, int]) -> Plot:
    return Plot(
        name="matches",
        title="Subscriptions by the number of registrations that their template matches",
        kind="bars",
        x="registrations",
        y="subscriptions",
        series=(by_octave("subscriptions", ((count, groups[group]) for group, count in matched.items())),),
    )


def _hottest(templates: ResultTable) -> Plot:
    first = templates.rows[:20]
    return Plot(
        name="hottest",
        title="Templates that match most",
        kind="ranked",
        x="registrations",
        y="",
        series=(Series("registrations", tuple(str(r[0]) for r in first), tuple(float(r[2]) for r in first)),),
    )
