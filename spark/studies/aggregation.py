"""Savings when one sends an object once to a domain of subscribers instead of to each of them (aggregated profiles)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from jbi_pubsub.spark.dataset import hashed
from jbi_pubsub.spark.judging import Judge, MatchedRow, TaskSums, contents
from jbi_pubsub.spark.page import ResultTable, Value
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import Data, Study, counted, share

DOMAINS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of domains that subscribers are grouped into, by their names; told as far as there are subscribers for."""


def domain_of(subscriber: str, domains: int) -> int:
    """The domain of a subscriber among so many."""
    return hashed(subscriber.encode()) % domains


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:
    """Copies to subscribers, and to domains of them: of an object as many as payloads that filters leave of it."""
    to = contents(judge.deliveries(seen))
    if not to:
        return
    _count(tally, "copies", "", seen, to.values())
    for domains in DOMAINS:
        of: dict[int, set[bytes | None]] = {}
        for subscriber, payloads in to.items():
            of.setdefault(domain_of(subscriber, domains), set()).update(payloads)
        _count(tally, "domains", f"{domains:04d}", seen, of.values())


def _count(tally: TaskSums, what: str, key: str, seen: MatchedRow, copies: Iterable[set[bytes | None]]) -> None:
    sizes = [seen.size_with(payload) for payloads in copies for payload in payloads]
    tally.add(what, key, len(sizes), sum(sizes))


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:  # noqa: ARG001  # the form of all studies
    """The answer."""
    copies, size, _ = passed.total("copies")
    to = {int(key): sums for key, sums in passed.of("domains").items()}
    wanted = [each.subscription for each in judge.wanted if each is not None]
    said, subscribers = len(wanted), len({each.subscriber or each.subscription for each in wanted})
    told = [domains for domains in DOMAINS if domains == 1 or domains <= subscribers]
    profiles = {domains: _profile(judge, domains) for domains in told}
    rows = tuple(
        (domains, *to.get(domains, [0, 0, 0])[:2], copies - to.get(domains, [0, 0, 0])[0], *profiles[domains])
        for domains in told
    )
    saved = {domains: 1 - to.get(domains, [0, 0, 0])[1] / size if size else 0.0 for domains in told}
    return Result(
        study="aggregation",
        question="What do domains save, when an object goes to each domain once, whoever wants it there?",
        facts=(
            ("without domains", f"{copies:,} copies, {size:,} bytes, to {counted(subscribers, 'subscriber')}"),
            *(
                (
                    counted(domains, "domain"),
                    f"{share(saved[domains], 1)} of the bytes saved, {profiles[domains][1]:,} of {said:,} conditions",
                )
                for domains in told
            ),
        ),
        numbers={
            "copies": copies,
            "bytes": size,
            **{f"saved_{domains}": round(saved[domains], 6) for domains in told},
        },
        tables=(
            ResultTable(
                name="domains",
                title="Domains",
                columns=(
                    ("domains", "integer"),
                    ("copies", "integer"),
                    ("bytes", "integer"),
                    ("copies_saved", "integer"),
                    ("subscriptions", "integer"),
                    ("conditions", "integer"),
                ),
                rows=rows,
                note="conditions: what is left of the domains' subscriptions when those that say the same are one; "
                "those that include others count by themselves.",
            ),
        ),
        plots=(
            Plot(
                name="saved",
                title="Bytes that domains save",
                kind="bars",
                x="domains",
                y="% of the bytes saved",
                series=(Series("saved", tuple(map(float, told)), tuple(100 * saved[n] for n in told)),),
            ),
        ),
    )


def _profile(judge: Judge, domains: int) -> tuple[int, int]:
    """Subscriptions, and distinct (template, predicate) in the domains."""
    all_of: set[tuple[object, ...]] = set()
    count = 0
    for each in judge.wanted:
        if each is not None:
            count += 1
            said = each.subscription
            meaning = each.predicate.meaning if each.predicate is not None else None
            all_of.add((domain_of(each.process, domains), said.template, meaning))
    return count, len(all_of)


STUDY: Final = Study("aggregation", see, tell)
