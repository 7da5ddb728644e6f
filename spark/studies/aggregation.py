"""Savings when one sends an object once to a domain of subscribers instead of to each of them (aggregated profiles), as
a bridge with `wanted = true` does: it asks for each type by one predicate, for all who want something of it there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.core.xpath.covering import Aggregate
from jbi_pubsub.core.xpath.narrowing import Condition, joined
from jbi_pubsub.core.xpath.predicate import XPATH
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.wanted import PREDICATES_MOST, PREDICATES_TEXT, TYPES_MOST
from jbi_pubsub.spark.dataset import SubscriptionRow, hashed
from jbi_pubsub.spark.judging import Judge, MatchedRow, RowMatcher, TaskSums, contents
from jbi_pubsub.spark.page import ResultTable, Value, integers
from jbi_pubsub.spark.passes import Passed
from jbi_pubsub.spark.plots import Plot, Series
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies.study import Data, Study, counted, share

DOMAINS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of domains that subscribers are grouped into, by their names; told as far as there are subscribers for."""

COLUMNS: Final = (
    "domains", "copies", "bytes", "copies_saved", "unwanted", "subscriptions", "predicates", "conditions", "whole",
)  # fmt: skip
NOTE: Final = f"""As a bridge with `wanted = true` brings them: each copy is matched once more, in its domain.
predicates: different ones by domain and type, with what templates say; conditions: those that no other one covers.
whole: types that come as a whole to a domain, as somebody there wants all of it or asks in another language than XPath,
or there are more than {PREDICATES_MOST} predicates, or too large ones; unwanted: copies that nobody there wants."""


class DomainProfile(NamedTuple):
    """Interest of a domain in a type: how many different predicates its subscriptions have, how many of these no other
    one covers, and whether all objects of the type are brought."""

    predicates: int
    conditions: int
    is_whole: bool


def domain_of(subscriber: str, domains: int) -> int:
    """The domain of a subscriber among so many."""
    return hashed(subscriber.encode()) % domains


def see(judge: Judge, seen: MatchedRow, tally: TaskSums) -> None:
    """Copies to subscribers, of an object as many as payloads that filters leave of it; and to domains of them, to
    which it goes as it is: they cut there."""
    sizes = [seen.size_with(part) for parts in contents(judge.deliveries(seen)).values() for part in parts]
    if sizes:
        tally.add("copies", "", len(sizes), sum(sizes))
    type_ = seen.publication.type
    tally.add("types", type_, 1, seen.size)
    processes = {judge.wanted[number].process for number in seen.matched}
    for domains in DOMAINS:
        for domain in {domain_of(process, domains) for process in processes}:
            tally.add("wanted", _key(domains, domain, type_), 1, seen.size)


def _key(domains: int, domain: int, type_: str) -> str:
    return f"{domains} {domain} {type_}"


def tell(passed: Passed, judge: Judge, data: Data, parameters: Mapping[str, Value]) -> Result:  # noqa: ARG001  # the form of all studies
    """The answer."""
    copies, size, _ = passed.total("copies")
    subscribers = len({each.process for each in judge.wanted.values()})
    told = [domains for domains in DOMAINS if domains == 1 or domains <= subscribers]
    interest = _interest(judge, data)
    matched, types = passed.of("wanted"), passed.of("types")
    sent = {domains: _sent(matched, types, interest, domains) for domains in told}
    saved = {domains: 1 - each[1] / size if size else 0.0 for domains, each in sent.items()}
    rows = tuple(
        (domains, *each[:2], copies - each[0], each[2], len(judge.wanted), *each[3:]) for domains, each in sent.items()
    )
    return Result(
        study="aggregation",
        question="What do domains save, when an object goes to each domain once, for all subscribers there?",
        facts=(
            ("without domains", f"{copies:,} copies, {size:,} bytes, to {counted(subscribers, 'subscriber')}"),
            *(
                (
                    counted(domains, "domain"),
                    f"{share(saved[domains], 1)} of the bytes saved, by {conditions:,} of {predicates:,} predicates",
                )
                for domains, (_, _, _, predicates, conditions, _) in sent.items()
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
                columns=integers(*COLUMNS),
                rows=rows,
                note=NOTE,
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


def _sent(
    wanted: Mapping[str, list[int]],
    types: Mapping[str, list[int]],
    interest: Mapping[str, Collection[RowMatcher]],
    domains: int,
) -> tuple[int, ...]:
    """Copies to so many domains, their bytes, how many nobody there wants; predicates, conditions, and whole types."""
    came = [sums for key, sums in wanted.items() if key.startswith(f"{domains} ")]
    copies, size = sum(each[0] for each in came), sum(each[1] for each in came)
    unwanted = predicates = conditions = whole = 0
    for type_ in {*interest, *types}:
        groups: dict[int, list[RowMatcher]] = {}
        for each in interest.get(type_, interest[""]):
            groups.setdefault(domain_of(each.process, domains), []).append(each)
        for domain, members in groups.items():
            profile = profile_of(members, is_whole=len(interest) > TYPES_MOST)
            predicates, conditions = predicates + profile.predicates, conditions + profile.conditions
            if profile.is_whole:
                some = wanted.get(_key(domains, domain, type_), [0, 0, 0])
                number, more, _ = (one - other for one, other in zip(types.get(type_, some), some, strict=True))
                copies, size, unwanted, whole = copies + number, size + more, unwanted + number, whole + 1
    return copies, size, unwanted, predicates, conditions, whole


def _interest(judge: Judge, data: Data) -> dict[str, Collection[RowMatcher]]:
    """By type the subscriptions whose templates match one of its registrations; "": those without a template."""
    found: dict[str, dict[int, RowMatcher]] = {"": {each.number: each for each in judge.topic("").candidates}}
    for registration in data.contracts.registrations:
        topic = judge.topic(registration.registration)
        found.setdefault(registration.type, {}).update({each.number: each for each in topic.candidates})
    return {type_: tuple(each.values()) for type_, each in found.items()}


def profile_of(wanted: Iterable[RowMatcher], *, is_whole: bool = False) -> DomainProfile:
    """The interest of these subscriptions in a type, as a bridge asks for it."""
    members = {_member(each.subscription) for each in wanted}
    asked = [each for each in sorted(members) if each[0]]
    size = sum(len(text) + sum(map(len, sum(spaces, ()))) for text, spaces in asked)
    if is_whole or len(asked) < len(members) or len(members) > PREDICATES_MOST or size > PREDICATES_TEXT:
        return DomainProfile(len(members), 1, is_whole=True)
    aggregate: Aggregate[Condition] = Aggregate()
    try:
        for each in asked:
            aggregate.add(each, compile_predicate(each[0], namespaces=dict(each[1])))
        text, spaces = joined(sorted(aggregate.widest), "or")
        compile_predicate(text, namespaces=dict(spaces))
    except JbiError:  # all together are too much
        return DomainProfile(len(members), 1, is_whole=True)
    return DomainProfile(len(members), len(aggregate.widest), is_whole=False)


def _member(said: SubscriptionRow) -> Condition:
    """Its predicate, with what its template says, which a schema makes XPath; "": everything."""
    if said.predicate and (said.language or XPATH) != XPATH:
        return "", ()
    parts = [
        (f"/t/c{hashed(entry.cls.name.encode())}/f{number} = '{value}'", ())
        for entry in said.template
        if entry.cls.name != InformationType.entry_name
        for number, value in enumerate(entry.values)
        if value and "'" not in value
    ]
    own = [(said.predicate, tuple(sorted(said.namespaces.items())))] if said.predicate else []
    return joined([*parts, *own], "and") if parts or own else ("", ())


STUDY: Final = Study("aggregation", see, tell)
