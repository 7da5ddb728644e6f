"""What studies count is what plain loops over definitions count: `entry.matches`, and lxml's own XPath."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.lookup.entry import EntryRep, define, matches
from jbi_pubsub.protocol.deliveries import ITEM, LOSS, SHARED
from jbi_pubsub.protocol.requests import NOT_BEFORE, Unfiltered
from jbi_pubsub.spark import passes
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, SubscriptionRow
from jbi_pubsub.spark.judging import Judge, judged, pack
from jbi_pubsub.spark.page import Value
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies import aggregation, bandwidth, capacity, fanout, invariants, predicates
from jbi_pubsub.spark.studies.study import Data, Study
from tests.pad.test_first_object import World

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")

BASE = define("o.Base", {"x": str})
MORE = define("o.More", {"y": str}, BASE)
LETTERS = st.sampled_from("abc")
ENTRIES = st.one_of(
    st.tuples(LETTERS).map(lambda values: EntryRep(BASE, values)),
    st.tuples(LETTERS, LETTERS).map(lambda values: EntryRep(MORE, values)),
)
TEMPLATES = st.one_of(
    st.tuples(st.none() | LETTERS).map(lambda values: EntryRep(BASE, values)),
    st.tuples(st.none() | LETTERS, st.none() | LETTERS).map(lambda values: EntryRep(MORE, values)),
)
EQUALITY = LETTERS
"""Of a predicate: c = this."""
PREDICATES = st.one_of(
    st.just(("", "")),
    EQUALITY.map(lambda c: (f"/t[c = '{c}']", c)),
    st.tuples(EQUALITY, st.integers(0, 4)).map(lambda each: (f"/t[c = '{each[0]}' and n > {each[1]}]", each[0])),
    st.integers(0, 4).map(lambda n: (f"//n < {n}", "")),
    st.just(("count(//n) = 2 or /t/n = 1", "")),
)
DOCUMENTS = st.tuples(LETTERS, st.lists(st.integers(0, 5), min_size=1, max_size=2))
WORLDS = st.tuples(
    st.lists(st.lists(ENTRIES, max_size=2), min_size=1, max_size=4),
    st.lists(st.tuples(st.lists(TEMPLATES, max_size=2), PREDICATES, st.sampled_from(["p", "q", "r", ""])), max_size=7),
    st.lists(st.tuples(st.integers(0, 3), DOCUMENTS, st.integers(0, 40)), min_size=1, max_size=12),
)
FILTERS = st.sampled_from(["", "", "//item", "//item[. > 2]", "//none"])
OWNERS = st.sampled_from(["", "me"])
UNFILTERED: st.SearchStrategy[Unfiltered] = st.sampled_from(["withhold", "deliver"])
PAYLOADS = st.sampled_from(
    [
        b"",
        b"no XML",
        b"<!DOCTYPE p><p><item/></p>",
        b"<p/>",
        b"<p><item>1</item></p>",
        b"<p><item>1</item><item>5</item></p>",
    ]
)
LIVE = st.tuples(
    st.lists(st.tuples(st.lists(ENTRIES, max_size=2), OWNERS), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.lists(TEMPLATES, max_size=2),
            PREDICATES,
            st.sampled_from("pqr"),
            FILTERS,
            st.booleans(),
            UNFILTERED,
            OWNERS,
        ),
        max_size=6,
    ),
    st.lists(st.tuples(st.integers(0, 2), DOCUMENTS, PAYLOADS), min_size=1, max_size=10),
)
Pairs = list[tuple[PublicationRow, list[int], list[int]]]


def told(study: Study, contracts: Contracts, publications: Sequence[PublicationRow], **given: Value) -> Result:
    sums = judged(pack(contracts), study.see, publications, [])
    parameters: dict[str, Value] = {"delegates": 2, "rates": "800", **given}
    return study.tell(passes.Passed(sums, []), Judge(contracts), Data("", contracts), parameters)


def rows(result: Result, name: str) -> list[tuple[object, ...]]:
    return next(list(table.rows) for table in result.tables if table.name == name)


def by_definition(contracts: Contracts, publications: Sequence[PublicationRow]) -> Pairs:
    """Each publication, the subscriptions whose templates match its registration, and those that get it."""
    entries = {each.registration: each.entries for each in contracts.registrations}
    found: Pairs = []
    for publication in publications:
        root = etree.fromstring(publication.metadata)
        first, second = [], []
        for n, each in enumerate(contracts.subscriptions):
            if all(any(matches(t, e) for e in entries[publication.publisher]) for t in each.template):
                first.append(n)
                if not each.predicate or root.xpath(f"boolean({each.predicate})"):
                    second.append(n)
        found.append((publication, first, second))
    return found


@pytest.mark.row("C-02")
@settings(max_examples=40, deadline=None)
@given(WORLDS)
def test_studies_count_what_plain_loops_count(world: tuple) -> None:  # type: ignore[type-arg]  # as drawn
    published_by, wanted, documents = world
    registrations = tuple(
        RegistrationRow(registration=f"r{n}", delegate=f"d{n % 2}", type="t", entries=tuple(entries))
        for n, entries in enumerate(published_by)
    )
    subscriptions = tuple(
        SubscriptionRow(subscription=f"s{n}", subscriber=who, template=tuple(template), predicate=predicate)
        for n, (template, (predicate, _), who) in enumerate(wanted)
    )
    contracts = Contracts(registrations, subscriptions)
    publications = [
        PublicationRow(
            f"o{n}", "t", "1.0", 10.0 + n, f"r{at % len(registrations)}",
            f"<t><c>{c}</c>{''.join(f'<n>{each}</n>' for each in numbers)}</t>".encode(), size, b"z" * size,
        )
        for n, (at, (c, numbers), size) in enumerate(documents)
    ]  # fmt: skip
    pairs = by_definition(contracts, publications)
    process = [each.subscriber or each.subscription for each in subscriptions]
    size = {p.object_id: len(p.metadata) + p.payload_bytes for p in publications}

    # predicates
    found = told(predicates.STUDY, contracts, publications)
    assert {row[0]: row[2:4] for row in rows(found, "predicates")} == {
        s.subscription: (sum(n in first for _, first, _ in pairs), sum(n in got for *_, got in pairs))
        for n, s in enumerate(subscriptions)
    }
    assert found.numbers["candidates"] == sum(len(first) for _, first, _ in pairs)
    assert {row[0] for row in rows(found, "never")} == {
        s.subscription for n, s in enumerate(subscriptions)
        if s.predicate and any(n in first for _, first, _ in pairs) and not any(n in got for *_, got in pairs)
    }  # fmt: skip
    gets = {
        n: tuple(p.object_id for p, _, got in pairs if n in got) for n, s in enumerate(subscriptions) if s.predicate
    }
    together = [ids for ids in gets.values() if ids and list(gets.values()).count(ids) > 1]
    assert found.numbers["groups_of_same"] == len(set(together))

    # fan-out
    found = told(fanout.STUDY, contracts, publications)
    assert found.numbers["deliveries"] == sum(len(got) for *_, got in pairs)
    assert found.numbers["unmatched"] == sum(not got for *_, got in pairs)
    reached = [(p, {process[n] for n in got}) for p, _, got in pairs]
    assert {row[0]: row[1:] for row in rows(found, "subscribers")} == {
        who: (sum(who in each for _, each in reached), sum(size[p.object_id] for p, each in reached if who in each))
        for who in set(process) if any(who in each for _, each in reached)
    }  # fmt: skip
    delegate = {each.registration: each.delegate for each in registrations}
    assert {row[0]: row[2:4] for row in rows(found, "delegates")} == {
        d: (sum(delegate[p.publisher] == d for p in publications),
            sum(len(got) for p, _, got in pairs if delegate[p.publisher] == d))
        for d in set(delegate.values())
    }  # fmt: skip

    # bandwidth, without filters
    found = told(bandwidth.STUDY, contracts, publications)
    assert found.numbers["seconds"] == len(publications) - 1
    packed = {
        p.object_id: min(len(zlib.compress(p.metadata + (p.payload or b""))), size[p.object_id]) for p in publications
    }
    expected = {}
    for who in set(process):
        offered = sum(size[p.object_id] for p, first, _ in pairs if any(process[n] == who for n in first))
        got = [p.object_id for p, each in reached if who in each]
        if offered:
            expected[who] = (offered, *[sum(size[o] for o in got)] * 2, sum(packed[o] for o in got))
    assert {row[0]: row[1:5] for row in rows(found, "subscribers")} == expected
    room = 800 / 8 * found.numbers["seconds"]
    carried, whole = sum(min(each[3], room) for each in expected.values()), sum(each[3] for each in expected.values())
    assert found.numbers.get("fits_800") == (round(carried / max(1, whole), 4) if room else None)

    # aggregation: where somebody who could get something asks for everything, everything goes there
    found = told(aggregation.STUDY, contracts, publications)
    assert found.numbers["copies"] == sum(len(each) for _, each in reached)
    greedy = [
        n for n, s in enumerate(subscriptions)
        if not s.predicate and not any(value for each in s.template for value in each.values)
        and any(all(any(matches(t, e) for e in r.entries) for t in s.template) for r in registrations)
    ]  # fmt: skip
    for domains, copies, sent, *_ in rows(found, "domains"):
        assert isinstance(domains, int)
        all_to = {aggregation.domain_of(process[n], domains) for n in greedy}
        to = [(p, all_to | {aggregation.domain_of(who, domains) for who in each}) for p, each in reached]
        assert (copies, sent) == (
            sum(len(each) for _, each in to), sum(len(each) * size[p.object_id] for p, each in to),
        )  # fmt: skip

    # invariants: a predicate with c = 'value' is spared where c is always another
    found = told(invariants.STUDY, contracts, publications)
    values: dict[str, set[str]] = {}
    for p in publications:
        values.setdefault(p.publisher, set()).add(str(etree.fromstring(p.metadata).findtext("c")))
    spared = sum(
        1 for p, first, _ in pairs for n in first
        if wanted[n][1][1] and len(values[p.publisher]) == 1 and wanted[n][1][1] not in values[p.publisher]
    )  # fmt: skip
    assert found.numbers["avoidable"] == spared
    assert ("/t/c" in {row[1] for row in rows(found, "constant")}) == all(len(each) == 1 for each in values.values())


class Delivering(World):
    """A delegate that is read by hand: how many objects come for each subscription, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[int, list[int]] = {}
        self.copies: dict[str, list[int]] = {}

    def _read_one(self, session_id: str, data: bytes) -> None:
        kind, number = ITEM.unpack_from(data)
        if kind == LOSS:  # what its filter can't be applied to
            return
        count = number if kind == SHARED else 0
        numbers = [int.from_bytes(data[at : at + 4], "big") for at in range(5, 5 + 4 * count, 4)] or [number]
        parcel = Parcel.received(data[5 + 4 * count :])
        size = len(parcel.head.metadata) + len(parcel.payload)
        for one in numbers:
            self.came.setdefault(one, []).append(size)
        self.copies.setdefault(session_id, []).append(size)


@settings(max_examples=40, deadline=None)
@given(LIVE)
def test_fan_out_is_what_a_delegate_delivers(world: tuple) -> None:  # type: ignore[type-arg]  # as drawn
    # Given registrations, subscriptions with filters of three processes, and objects with all kinds of payloads
    published_by, wanted, documents = world
    live = Delivering()
    try:
        registrations = [live.register(*entries, owner=owner) for entries, owner in published_by]
        sessions = {process: live.delegate.sessions.open(process, 1e6)[0] for process in "pqr"}
        for session in sessions.values():
            live.delegate.tables.attached(session)
        names = [
            live.subscribe(
                NOT_BEFORE, session=sessions[process], entries=tuple(template), predicate=predicate,
                payload_filter=wanted_part, suppress_empty=suppresses, unfiltered=unfiltered, unlike=unlike,
            )
            for template, (predicate, _), process, wanted_part, suppresses, unfiltered, unlike in wanted
        ]  # fmt: skip
        contracts = Contracts(
            tuple(
                RegistrationRow(registration=made.uid, type="t", entries=tuple(entries), owner=owner)
                for made, (entries, owner) in zip(registrations, published_by, strict=True)
            ),
            tuple(
                SubscriptionRow(
                    subscription=name, subscriber=process, template=tuple(template), predicate=predicate,
                    filter=wanted_part, suppress_empty=suppresses, unfiltered=unfiltered, unlike=unlike,
                )
                for name, (template, (predicate, _), process, wanted_part, suppresses, unfiltered, unlike) in zip(
                    names, wanted, strict=True
                )
            ),
        )  # fmt: skip
        publications = []
        # When they are published, and studied
        for n, (at, (c, numbers), payload) in enumerate(documents):
            made = registrations[at % len(registrations)]
            metadata = f"<t><c>{c}</c>{''.join(f'<n>{each}</n>' for each in numbers)}</t>".encode()
            live.publish(made, metadata, payload)
            publications.append(
                PublicationRow(f"o{n}", "t", "1.0", 10.0 + n, made.uid, metadata, len(payload), payload)
            )
        live.read()
    finally:
        live.delegate.subscribers.late_joiners._thread = None
        live.delegate.close()
    found = told(fanout.STUDY, contracts, publications)
    # Expect each subscription to have got what the study says, and each process no more copies than it says
    assert {row[0]: row[3:5] for row in rows(found, "subscriptions")} == {
        name: (len(sizes), sum(sizes)) for name in names if (sizes := live.came.get(live.numbers[name], []))
    }
    assert found.numbers["deliveries"] == sum(map(len, live.came.values()))
    sent = told(aggregation.STUDY, contracts, publications).numbers
    assert sent["copies"] == found.numbers["copies"] <= sum(map(len, live.copies.values()))
    try:
        forecast = told(
            capacity.STUDY, contracts, publications,
            years=0, growth=0, publishers=1, subscribers=1, rate=1, utilisation=0.5,
            **{f"{what}_p{percent}": 1.0 for what in ("object", "delivery") for percent in capacity.SPREAD},
        )  # fmt: skip
    except StudyError:
        assert not live.came
    else:
        assert forecast.numbers["deliveries_per_object"] == round(found.numbers["deliveries"] / len(documents), 6)
