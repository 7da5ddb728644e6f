"""Studies of publications: what they count is what a delegate would decide, whoever counts it and in how many parts."""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from click.testing import CliRunner
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.cli.app import run as command_line
from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define, matches
from jbi_pubsub.spark import dataset, judging, passes
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, SubscriptionRow
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.judging import Judge, Sums, TaskSums, judged, pack
from jbi_pubsub.spark.result import Result
from jbi_pubsub.spark.studies import aggregation, bandwidth, comparison, fanout, invariants, predicates
from jbi_pubsub.spark.studies.match import match_study
from jbi_pubsub.spark.studies.study import Data, Options, Study, data_in, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")

STUDIES = [module.STUDY for module in (predicates, fanout, bandwidth, invariants, aggregation)]
SMALL = StudyDomain(registrations=12, subscriptions=60, publications=300, seed=3, selectivity=0.2)
FEW = msgspec.structs.replace(SMALL, publications=60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of the paper's domain."""
    folder = tmp_path_factory.mktemp("data") / "small"
    dataset.write(folder, SMALL.contracts(), SMALL.published(), source="generated")
    return folder


def written(folder: Path, contracts: Contracts, publications: Sequence[PublicationRow]) -> Data:
    dataset.write(folder, contracts, publications, source="test")
    return data_in(folder)


def asked(study: Study, data: Data, tmp_path: Path, **parameters: Any) -> tuple[Result, Path]:
    out = tmp_path / f"result-{study.name}"
    return run(study, data, out, Options(engine="local", parameters=parameters))[0], out


def table(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "tables" / f"{name}.csv").open() as opened:
        return list(csv.DictReader(opened))


def pairs_by_definition(domain: StudyDomain) -> Counter[str]:
    """How many publications each subscription gets: each pair by `entry.matches` and lxml itself."""
    contracts = domain.contracts()
    entries = {each.registration: each.entries for each in contracts.registrations}
    expressions = [etree.XPath(each.predicate) if each.predicate else None for each in contracts.subscriptions]
    found: Counter[str] = Counter()
    for publication in domain.published():
        root = etree.fromstring(publication.metadata)
        for each, expression in zip(contracts.subscriptions, expressions, strict=True):
            first = all(any(matches(t, e) for e in entries[publication.publisher]) for t in each.template)
            if first and (expression is None or expression(root)):
                found[each.subscription] += 1
    return found


def test_each_subscription_matches_what_its_template_and_lxml_say(made: Path, tmp_path: Path) -> None:
    expected = pairs_by_definition(SMALL)

    _, out = asked(predicates.STUDY, data_in(made), tmp_path)

    assert {row["subscription"]: int(row["matches"]) for row in table(out, "predicates")} == {
        each.subscription: expected[each.subscription] for each in SMALL.contracts().subscriptions
    }
    assert sum(expected.values()) > 100


@pytest.mark.parametrize("lonely", ["", "//lat > 80", "string-length(lat) > 3"])
def test_topics_that_share_an_index_match_what_each_would_alone(lonely: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given predicates of all topics, one of which lxml may have to decide, and documents with several nodes at a path
    made = SMALL.contracts()
    more = [
        SubscriptionRow(subscription="all"),
        SubscriptionRow(subscription="one of several", predicate="/track[p[a = 1 and b = 2]]"),
        *([SubscriptionRow(subscription="lonely", predicate=lonely)] if lonely else []),
    ]
    contracts = Contracts(made.registrations, (*made.subscriptions, *more))
    several = [
        msgspec.structs.replace(
            each,
            metadata=each.metadata.replace(b"</lat>", b"</lat><lat>10</lat><p><a>1</a></p><p><a>1</a><b>2</b></p>"),
        )
        for each in list(SMALL.published())[::3]
    ]
    published = [*SMALL.published(), *several, PublicationRow("o", "t", "1.0", 0.0, "nobody knows", b"<t/>", 0)]
    alone = [Judge(contracts).judge(each).matched for each in published]

    monkeypatch.setattr(judging, "LARGEST_OWN", 0)
    monkeypatch.setattr(judging, "MOST_KEPT", 50)
    judge = Judge(contracts)
    seen = [judge.judge(each) for each in published]

    # Expect the same, and that they did share one where no lxml is needed
    assert [each.matched for each in seen] == alone
    assert len({id(each.topic.shared) for each in seen} - {id(None)}) == (0 if lonely else 5)
    assert any(each.topic.index is not None for each in seen)
    assert len(judge._topics) < len({id(each.topic) for each in seen})


@pytest.mark.spark
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_spark_gives_the_same_bytes_as_this_process(
    study: Study, made: Path, tmp_path: Path, spark: SparkSession
) -> None:
    outs = {}
    for engine in ("local", "spark"):
        outs[engine] = tmp_path / engine
        _, how = run(study, data_in(made), outs[engine], Options(engine=engine))
        assert how.engine == engine

    files = {
        engine: {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for engine, out in outs.items()
    }
    differ = {str(name) for name in files["local"] if files["local"][name] != files["spark"].get(name)}
    assert differ == {
        "manifest.json",
        "report.html",
        "stages/judge.json",
    }  # they say who has done it, and how long it took


@cache
def few() -> tuple[Contracts, Judge, bytes]:
    contracts = FEW.contracts()
    return contracts, Judge(contracts), pack(contracts)


def told_of(study: Study, sums: Sums) -> Result:
    return study.tell(passes.Passed(sums, []), few()[1], Data("", few()[0]), {})


@cache
def told_of_the_whole(study: Study) -> Result:
    return told_of(study, judged(few()[2], study.see, FEW.published(), []))


@settings(max_examples=examples(30), deadline=None)
@given(cuts=st.lists(st.integers(0, 60), max_size=5), order=st.randoms(use_true_random=False))
def test_the_sums_of_parts_are_those_of_the_whole_in_any_order(cuts: list[int], order: random.Random) -> None:
    publications = list(FEW.published())
    order.shuffle(publications)
    bounds = [0, *sorted(cuts), len(publications)]
    parts = [publications[a:b] for a, b in pairwise(bounds)]

    for study in STUDIES:
        sums: dict[tuple[str, str], list[int]] = {}
        for part in parts:
            passes._join(sums, judged(few()[2], study.see, part, []))
        assert told_of(study, sums) == told_of_the_whole(study)


def test_a_predicate_that_never_matches_is_told_with_the_condition_that_fails_most(tmp_path: Path) -> None:
    contracts = Contracts((), (
        SubscriptionRow(subscription="fast", predicate="/track[speed > 2000 and lat < 95]"),
        SubscriptionRow(subscription="north", predicate="/track[lat > 0]"),
    ))  # fmt: skip
    published = [
        PublicationRow(
            f"o{n}", "track", "1.0", 0.0, "r", f"<track><speed>{n}</speed><lat>{n}</lat></track>".encode(), 0
        )
        for n in range(30)
    ]

    found, out = asked(predicates.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    [row] = table(out, "never")
    assert (row["subscription"], row["fails_most"], row["times"], row["samples"]) == (
        "fast",
        "speed > 2000",
        "20",
        "20",
    )
    assert found.numbers["never_match"] == 1


def test_predicates_that_match_the_same_objects_are_found_whatever_their_text(tmp_path: Path) -> None:
    texts = ("/t[a = 1]", "/t[not(a != 1)]", "/t[a < 1]", "/t[a = 1]", "/t[a = 7]")
    contracts = Contracts((), tuple(SubscriptionRow(subscription=f"s{n}", predicate=p) for n, p in enumerate(texts)))
    published = [PublicationRow(f"o{n}", "t", "1.0", 0.0, "r", f"<t><a>{n % 3}</a></t>".encode(), 0) for n in range(9)]

    _, out = asked(predicates.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    assert [row["subscription"] for row in table(out, "together")] == ["s0", "s1", "s3"]


def test_fan_out_adds_up_and_the_greedy_share_is_never_worse_than_its_bound(made: Path, tmp_path: Path) -> None:
    expected = pairs_by_definition(SMALL)

    found, out = asked(fanout.STUDY, data_in(made), tmp_path, delegates=3)

    assert found.numbers["deliveries"] == sum(expected.values())
    assert sum(int(row["objects"]) for row in table(out, "fanout")) == SMALL.publications
    work = Counter[str]()
    rows = table(out, "assignment")
    for row in rows:
        work[row["by_load"]] += int(row["work"])
    largest, mean = max(int(row["work"]) for row in rows), sum(work.values()) / 3
    assert max(work.values()) <= max(largest, mean + largest)


def test_a_delegate_without_work_counts_in_the_mean(tmp_path: Path) -> None:
    # Given all work at one of two delegates, by one registration
    contracts = Contracts(
        (RegistrationRow(registration="r", delegate="a", type="t"), RegistrationRow(registration="idle", delegate="b"))
    )
    data = written(tmp_path / "data", contracts, [PublicationRow("o", "t", "1.0", 0.0, "r", b"<t/>", 0)])

    found, out = asked(fanout.STUDY, data, tmp_path, delegates=4)

    # Expect it to have twice the mean, and four times that of four, whatever the way to share out
    numbers = found.numbers
    assert [numbers[f"balance_{name}"] for name in ("now", "by_type", "by_hash", "by_load")] == [2, 4, 4, 4]
    assert [(row["delegate"], row["registrations"], row["objects"]) for row in table(out, "delegates")] == [
        ("a", "1", "1"), ("b", "1", "0"),
    ]  # fmt: skip


def test_bandwidth_counts_an_object_once_for_a_process_and_what_filters_leave_of_it(tmp_path: Path) -> None:
    def said(name: str, process: str, **more: Any) -> SubscriptionRow:
        return SubscriptionRow(subscription=name, subscriber=process, predicate="/t[a = 1]", **more)

    contracts = Contracts((), (
        said("whole", "one"), said("again", "one"), said("part", "two", filter="//keep"),
        said("nothing", "three", filter="//no", suppress_empty=True), said("other", "four", filter="//no"),
    ))  # fmt: skip
    payload = b"<p><keep>yes</keep>" + b"<drop>no</drop>" * 50 + b"</p>"
    metadata = b"<t><a>1</a></t>"
    published = [
        PublicationRow("o1", "t", "1.0", 100.0, "r", metadata, len(payload), payload),
        PublicationRow("o2", "t", "1.0", 110.0, "r", b"<t><a>2</a></t>", len(payload), payload),
    ]

    found, out = asked(bandwidth.STUDY, written(tmp_path / "data", contracts, published), tmp_path, rates="8000")

    rows = {row["subscriber"]: row for row in table(out, "subscribers")}
    whole, cut = (
        len(metadata) + len(payload),
        len(metadata) + len(b'<jbi:selection xmlns:jbi="urn:jbi-pubsub:selection:1">'),
    )
    assert int(rows["one"]["offered"]) == 2 * whole
    assert int(rows["one"]["predicates"]) == int(rows["one"]["filters"]) == whole
    assert cut < int(rows["two"]["filters"]) < whole
    assert int(rows["two"]["filters"]) > int(rows["four"]["filters"]) > int(rows["three"]["filters"]) == 0
    assert found.numbers["seconds"] == 10
    assert found.numbers["fits_8000"] == 1


@pytest.mark.parametrize("study", [fanout.STUDY, aggregation.STUDY], ids=["fanout", "aggregation"])
def test_what_filters_leave_out_or_suppress_is_no_delivery(study: Any, tmp_path: Path) -> None:
    # Given an object with an item and one without, and subscriptions with and without filters
    def said(name: str, process: str, **more: Any) -> SubscriptionRow:
        return SubscriptionRow(subscription=name, subscriber=process, **more)

    contracts = Contracts((), (
        said("silent", "one", filter="//item", suppress_empty=True), said("empty", "two", filter="//item"),
        said("whole", "three"), said("again", "three"),
    ))  # fmt: skip
    published = [
        PublicationRow(f"o{n}", "t", "1.0", 10.0 * n, "r", b"<m/>", len(payload), payload)
        for n, payload in enumerate([b"<p><item/><rest/></p>", b"<p/>"])
    ]
    item = b'<jbi:selection xmlns:jbi="urn:jbi-pubsub:selection:1"><item/></jbi:selection>'
    nothing = b'<jbi:selection xmlns:jbi="urn:jbi-pubsub:selection:1"></jbi:selection>'

    found, out = asked(study, written(tmp_path / "data", contracts, published), tmp_path)

    # Expect what live subscribers would have got
    silent, empty, whole = 4 + len(item), 8 + len(item) + len(nothing), 8 + len(published[0].payload or b"") + 4
    if study is fanout.STUDY:
        assert (found.numbers["deliveries"], found.numbers["suppressed"]) == (7, 1)
        rows = {row["subscription"]: (int(row["objects"]), int(row["bytes"])) for row in table(out, "subscriptions")}
        assert rows == {"silent": (1, silent), "empty": (2, empty), "whole": (2, whole), "again": (2, whole)}
        processes = {row["subscriber"]: (int(row["objects"]), int(row["bytes"])) for row in table(out, "subscribers")}
        assert processes == {"one": (1, silent), "two": (2, empty), "three": (2, whole)}
    else:
        assert (found.numbers["copies"], found.numbers["bytes"]) == (5, silent + empty + whole)


def test_a_study_knows_the_terms_that_decide_a_delivery_beside_template_predicate_and_filter(tmp_path: Path) -> None:
    # Given a registration with an owner and a relayed one, and subscriptions with all kinds of terms
    relayed = EntryRep(EntryClass("jbi.Relayed", ("via", "bridge"), (("jbi.Relayed", "1"),)), ("there", "b"))
    registrations = (
        RegistrationRow(registration="mine", type="t", owner="me"),
        RegistrationRow(registration="relayed", type="t", entries=(relayed,)),
    )
    subscriptions = (
        SubscriptionRow(subscription="all"), SubscriptionRow(subscription="others", unlike="me"),
        SubscriptionRow(subscription="here", local=True),
        SubscriptionRow(subscription="cut", filter="//item", suppress_empty=True),
        SubscriptionRow(subscription="cut or whole", filter="//item", unfiltered="deliver"),
        SubscriptionRow(subscription="combined", predicate="/og:metadata", view="combined"),
    )  # fmt: skip
    # When each publishes an object whose payload no filter is applied to
    payload = b"<!DOCTYPE p><p><item/></p>"
    published = [
        PublicationRow(f"of {each.registration}", "t", "1.0", 1.0, each.registration, b"<t/>", len(payload), payload)
        for each in registrations
    ]

    found, out = asked(
        fanout.STUDY, written(tmp_path / "data", Contracts(registrations, subscriptions), published), tmp_path
    )

    # Expect what subscribers of a delegate get, and to be told of what can't be judged
    assert {row["subscription"]: int(row["objects"]) for row in table(out, "subscriptions")} == {
        "all": 2, "others": 1, "here": 1, "cut or whole": 2,
    }  # fmt: skip
    assert (found.numbers["withheld"], found.numbers["suppressed"]) == (2, 0)
    [reject] = table(out, "rejects")
    assert (reject["row"], "combined view" in reject["reason"]) == ("combined", True)


def test_objects_of_registrations_that_nobody_knows_are_told(tmp_path: Path) -> None:
    contracts = Contracts((RegistrationRow(registration="r", type="t"),), (SubscriptionRow(subscription="all"),))
    published = [PublicationRow(f"o{n}", "t", "1.0", 1.0, who, b"<t/>", 0) for n, who in enumerate("rgg")]

    found, _ = asked(fanout.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    assert dict(found.facts)["of unknown registrations"] == "2 objects: no subscription with a template matches"


@pytest.mark.parametrize("change", ["missing", "twice"])
def test_a_part_that_is_missing_or_there_twice_is_noticed(tmp_path: Path, change: str) -> None:
    # Given a data set of three parts
    with dataset.Writer(tmp_path / "d", source="test") as writer:
        for n in range(3):
            writer.add(PublicationRow(f"o{n}", "t", "1.0", 1.0, "r", b"<t/>", 0))
            writer.close_part()
        writer.finish(Contracts())
    assert data_in(tmp_path / "d")

    # When one of them is lost, or copied
    part = tmp_path / "d" / "publications" / "part-00001.parquet"
    if change == "missing":
        part.unlink()
    else:
        (part.parent / "copy.parquet").write_bytes(part.read_bytes())

    # Expect a study to say so
    with pytest.raises(StudyError, match=r"has [24] rows, 3 were written"):
        data_in(tmp_path / "d")


def test_nothing_is_told_of_rates_where_a_time_is_missing(tmp_path: Path) -> None:
    contracts = Contracts((), (SubscriptionRow(subscription="all", subscriber="one"),))
    published = [
        PublicationRow(f"o{n}", "t", "1.0", time, "r", b"<t/>", 0) for n, time in enumerate([10.0, None, 30.0])
    ]

    found, _ = asked(bandwidth.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    assert found.numbers["seconds"] == 20
    assert dict(found.facts)["links"] == "1 publications say no time: nothing is told of rates"
    assert [name for name in found.numbers if name.startswith("fits")] == []


def test_who_needs_nothing_is_no_point_of_the_curve_and_each_link_has_its_line(tmp_path: Path) -> None:
    contracts = Contracts((), (
        SubscriptionRow(subscription="all", subscriber="one"),
        SubscriptionRow(subscription="none", subscriber="two", predicate="/no"),
    ))  # fmt: skip
    published = [PublicationRow(f"o{n}", "t", "1.0", 10.0 * n, "r", b"<t/>", 0) for n in range(2)]

    found, _ = asked(
        bandwidth.STUDY, written(tmp_path / "data", contracts, published), tmp_path, rates="7200,23000,1000000"
    )

    plot = next(each for each in found.plots if each.name == "rates")
    assert {each.label: each.y for each in plot.series if each.label.startswith("compressed")} == {
        "compressed, 1 need nothing": (6.4,)
    }
    assert [each.label for each in plot.series if each.label.endswith("bit/s")] == [
        "7,200 bit/s", "23,000 bit/s", "1,000,000 bit/s",
    ]  # fmt: skip


def test_a_payload_that_was_not_kept_does_not_grow_by_compression(tmp_path: Path) -> None:
    contracts = Contracts((), (SubscriptionRow(subscription="all", subscriber="one"),))
    published = [PublicationRow("o", "t", "1.0", 0.0, "r", b"<t/>", 1000)]

    found, _ = asked(bandwidth.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    assert found.numbers["bytes_compressed"] == found.numbers["bytes_filters"] == 1004
    assert dict(found.facts)["time"] == "0 s of publications to 1 subscriber"
    # Expect no word about rates, of which one moment tells nothing
    assert "less than 1 s" in dict(found.facts)["links"]
    assert [name for name in found.numbers if name.startswith("fits")] == []
    assert [plot.name for plot in found.plots] == ["bytes"]


def test_equal_predicates_are_examined_once_for_a_registration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ("//country = 'c1'", "//country = 'c2'")
    contracts = Contracts((), tuple(SubscriptionRow(subscription=f"s{n}", predicate=texts[n % 2]) for n in range(40)))
    published = [PublicationRow(f"o{n}", "t", "1.0", 0.0, "r", b"<t><country>c1</country></t>", 0) for n in range(3)]
    examined: list[str] = []
    examine = invariants.examine
    monkeypatch.setattr(invariants, "examine", lambda p, *of: (examined.append(p.expression), examine(p, *of))[1])

    found, out = asked(invariants.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    assert sorted(examined) == sorted(texts)
    assert (len(table(out, "movable")), found.numbers["avoidable"]) == (40, 3 * 20)


def test_what_never_changes_within_a_registration_could_be_invariant_and_spare_the_second_level(tmp_path: Path) -> None:
    contracts = Contracts(
        tuple(RegistrationRow(registration=f"r{n}", type="t") for n in range(3)),
        (
            SubscriptionRow(subscription="one", predicate="/t[country = 'c1' and n > 1]"),
            SubscriptionRow(subscription="two", predicate="/t[n = 2]"),
        ),
    )
    published = [
        PublicationRow(
            f"o{n}", "t", "1.0", 0.0, f"r{n % 3}", f"<t><country>c{n % 3}</country><n>{n}</n></t>".encode(), 0
        )
        for n in range(12)
    ]

    found, out = asked(invariants.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    assert [row["path"] for row in table(out, "constant")] == ["/t/country"]
    [row] = table(out, "movable")
    assert row["condition"] == "country = 'c1'"
    assert (int(row["false_for"]), int(row["spared"])) == (2, 8)
    assert (found.numbers["candidates"], found.numbers["avoidable"]) == (24, 8)


@pytest.mark.row("C-02")
def test_domains_save_the_copies_that_go_to_the_same_one(made: Path, tmp_path: Path) -> None:
    judge, contracts = Judge(SMALL.contracts()), SMALL.contracts()
    subscribers = len({each.subscriber for each in contracts.subscriptions})
    expected = dict.fromkeys((domains for domains in aggregation.DOMAINS if domains <= subscribers), 0)
    assert 1 < len(expected) < len(aggregation.DOMAINS)  # more domains than subscribers tell nothing
    for publication in SMALL.published():
        names = {contracts.subscriptions[n].subscriber for n in judge.judge(publication).matched}
        for domains in expected:
            expected[domains] += len({aggregation.domain_of(name, domains) for name in names})

    _, out = asked(aggregation.STUDY, data_in(made), tmp_path)

    assert {int(row["domains"]): int(row["copies"]) for row in table(out, "domains")} == expected


@pytest.mark.row("C-02", "D-19")
def test_a_domain_asks_once_for_what_one_of_its_predicates_covers(tmp_path: Path) -> None:
    # Given one domain: of type a, predicates that one covers, a template's among them, and another one; of type b more
    # than a bridge asks for one by one; of type c somebody who wants all of it, and cuts it
    classes = {kind: define(f"aggregation.{kind}", {"colour": str}) for kind in "abc"}
    registrations = tuple(
        RegistrationRow(registration=kind, type=kind, entries=(EntryRep(cls, ("red",)),))
        for kind, cls in classes.items()
    )
    wanted = [
        *(("a", None, text, "") for text in ("/t[n > 1 and n < 9]", "/t[n > 2 and n < 5]", "/t[n = 20]")),
        ("a", "red", "/t[n > 4 and n < 5]", ""),
        *(("b", None, f"/t[n = {number}]", "") for number in range(65)),
        ("c", None, "", "//item"), ("c", None, "/t[n = 1]", ""),
    ]  # fmt: skip
    subscriptions = tuple(
        SubscriptionRow(
            subscription=f"s{n}", subscriber="one", template=(EntryRep(classes[kind], (colour,)),), predicate=text,
            filter=part,
        )
        for n, (kind, colour, text, part) in enumerate(wanted)
    )  # fmt: skip
    payload = b"<p><item>1</item>     </p>"
    published = [
        PublicationRow(f"{kind}{n}", kind, "1.0", 0.0, kind, f"<t><n>{n}</n></t>".encode(), len(payload), payload)
        for kind in "abc" for n in (10, 4, 20, 70)
    ]  # fmt: skip

    _, out = asked(
        aggregation.STUDY, written(tmp_path / "data", Contracts(registrations, subscriptions), published), tmp_path
    )

    # Expect two of a, and all of b and c to come as they are, one of b for nobody, by two predicates and two times none
    [row] = table(out, "domains")
    size = 10 * len(payload) + sum(len(f"<t><n>{n}</n></t>") for n in (4, 20, *(2 * (10, 4, 20, 70))))
    assert {name: int(value) for name, value in row.items()} == {
        "domains": 1, "copies": 10, "bytes": size, "copies_saved": -1, "unwanted": 1, "subscriptions": 71,
        "predicates": 71, "conditions": 4, "whole": 2,
    }  # fmt: skip


def test_what_cannot_be_read_is_counted_told_and_left_out(tmp_path: Path) -> None:
    contracts = Contracts((), (
        SubscriptionRow(subscription="good"),
        SubscriptionRow(subscription="bad", predicate="/t[a ="),
    ))  # fmt: skip
    published = [
        PublicationRow("o1", "t", "1.0", 0.0, "r", b"<t/>", 0),
        PublicationRow("o2", "t", "1.0", 0.0, "r", b"<t>", 0),
        PublicationRow("o3", "t", "1.0", 0.0, "r", b"<!DOCTYPE t [<!ENTITY a 'b'>]><t>&a;</t>", 0),
    ]
    data = written(tmp_path / "data", contracts, published)

    found, out = asked(fanout.STUDY, data, tmp_path)

    assert found.numbers["deliveries"] == 1
    assert [(row["table"], row["row"]) for row in table(out, "rejects")] == [
        ("subscriptions", "bad"), ("publications", "o2"), ("publications", "o3"),
    ]  # fmt: skip
    with pytest.raises(StudyError, match="3 rows could not be read, more than 2"):
        run(fanout.STUDY, data, tmp_path / "again", Options(engine="local", max_rejects=2))
    assert json.loads((tmp_path / "again" / "manifest.json").read_text())["state"] == "running"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"object_id": ["o"]}, "has no column 'metadata'; it has object_id"),
        ({"metadata": [1]}, "column 'metadata' of table publications is int64, not binary"),
        ({"metadata": [b"<t/>"], "time": ["noon"]}, "column 'time' of table publications is string, not double"),
    ],
)
def test_columns_that_are_missing_or_of_another_kind_are_named(
    columns: dict[str, list[Any]], problem: str, tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "given.parquet")

    with pytest.raises(StudyError, match=problem):
        run(fanout.STUDY, Data(str(tmp_path / "given.parquet"), Contracts()), tmp_path / "out", Options(engine="local"))


def test_columns_as_other_libraries_write_texts_are_taken(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Given texts as categories and as views, and documents as large texts
    columns = {
        "metadata": pa.array(["<t/>", "<u/>"], pa.large_string()),
        "type": pa.array(["a", "a"]).dictionary_encode(),
        "publisher": pa.array(["r", "s"], pa.string_view()),
    }
    pq.write_table(pa.table(columns), tmp_path / "given.parquet")

    found = list(passes.publications_in(tmp_path / "given.parquet"))

    assert [(each.type, each.publisher, each.metadata) for each in found] == [("a", "r", b"<t/>"), ("a", "s", b"<u/>")]
    # Expect categories of something else to be refused as that
    pq.write_table(pa.table({**columns, "type": pa.array([1, 1]).dictionary_encode()}), tmp_path / "given.parquet")
    with pytest.raises(StudyError, match="column 'type' of table publications is int64"):
        list(passes.publications_in(tmp_path / "given.parquet"))


def test_what_was_tapped_of_a_federation_is_not_written_over(tmp_path: Path) -> None:
    def write(folder: Path, published: list[PublicationRow], source: str) -> None:
        dataset.write(folder, Contracts(), published, source=source)

    one = PublicationRow("o", "t", "1.0", 0.0, "r", b"<t/>", 0)
    # Given a data set of a federation, one of contracts alone, and one that was made up
    for name, published, source in (("a", [one], "exported"), ("b", [], "exported"), ("c", [one], "generated")):
        write(tmp_path / name, published, source)

    # When each is written anew; Expect what can't be had again to be left as it is
    with pytest.raises(ConfigurationError, match="can't be had again"):
        write(tmp_path / "a", [one, one], "generated")
    assert len(list(passes.publications_in(tmp_path / "a" / "publications" / "part-00000.parquet"))) == 1
    write(tmp_path / "b", [one], "exported")
    write(tmp_path / "c", [one], "exported")


def test_an_unfinished_data_set_is_no_data_set(made: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": "jbi-data-1", "state": "running"}')
    with pytest.raises(StudyError, match="unfinished"):
        data_in(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(ConfigurationError, match="not empty"):
        dataset.write(tmp_path / "other", Contracts(), [], source="test")


def test_a_page_needs_nothing_else_and_takes_text_as_text(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>$\\frac"
    cls = define("x.Y", {"a": str})
    contracts = Contracts(
        (RegistrationRow(registration=hostile, delegate=hostile, type=hostile, entries=(EntryRep(cls, (hostile,)),)),),
        (SubscriptionRow(subscription=hostile, subscriber=hostile),),
    )
    published = [PublicationRow(hostile, hostile, "1.0", 0.0, hostile, b"<t/>", 0)]

    _, out = asked(fanout.STUDY, written(tmp_path / "data", contracts, published), tmp_path)

    page = (out / "report.html").read_text().replace("http://www.w3.org/", "")  # names of namespaces
    assert "<img" not in page
    assert "&lt;img src=x" in page
    assert not [part for part in ("http://", "https://", "//cdn", "@import") if part in page]
    assert {path.name for path in (out / "plots").iterdir()} == {
        "fanout.svg", "fanout.png", "balance.svg", "balance.png",
    }  # fmt: skip


def test_two_results_are_compared_number_by_number(tmp_path: Path) -> None:
    outs = []
    for seed in (1, 2):
        domain = StudyDomain(registrations=4, subscriptions=10, publications=50, seed=seed)
        data = written(tmp_path / f"data{seed}", domain.contracts(), list(domain.published()))
        outs.append(tmp_path / f"out{seed}")
        run(aggregation.STUDY, data, outs[-1], Options(engine="local"))

    same, other = comparison.compare(outs[0], outs[0]), comparison.compare(*outs)

    assert dict(same.facts)["numbers that changed"] == f"0 of {len(same.tables[0].rows)}"
    assert str(tmp_path / "data2") in dict(other.facts)["after"]  # what was compared with what
    [copies] = [row for row in other.tables[0].rows if row[0] == "copies"]
    assert dict(other.facts)["copies"] == f"{copies[1]:,.10g} -> {copies[2]:,.10g} ({copies[3]:+,.2f} %)"
    assert other.numbers["copies"] == copies[3]
    with pytest.raises(StudyError, match="holds no result"):
        comparison.compare(outs[0], tmp_path)


def test_a_result_in_the_place_of_another_leaves_nothing_of_it_and_made_up_ones_are_compared(
    made: Path, tmp_path: Path
) -> None:
    # Given a result of another study in the same folder; Expect its tables and plots to be gone
    out = tmp_path / "out"
    run(fanout.STUDY, data_in(made), out, Options(engine="local"))
    run(aggregation.STUDY, data_in(made), out, Options(engine="local"))
    assert {path.stem for kind in ("tables", "plots") for path in (out / kind).iterdir()} == {"domains", "saved"}
    # Given two made-up populations; Expect them to be compared as all results are
    for seed in (1, 2):
        match_study(registrations=500, templates=100, seed=seed, out=tmp_path / f"{seed}", engine="local")
    told = comparison.compare(tmp_path / "1", tmp_path / "2")
    assert {"registrations", "pairs", "never"} < {row[0] for row in told.tables[0].rows}


def test_from_the_command_line_a_made_up_data_set_is_studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(jbi, ["study", "generate", "--publications", "50", "--out", "data"])
    told = CliRunner().invoke(jbi, ["study", "fanout", "data", "--delegates", "2", "--json"])
    again = command_line(["study", "fanout", "nowhere"])

    assert made.exit_code == told.exit_code == 0, (made.output, told.output)
    assert json.loads(told.output)["numbers"]["objects"] == 50
    assert (tmp_path / "study-fanout" / "report.html").is_file()
    assert again == 2


def test_values_and_kept_texts_do_not_depend_on_who_saw_them_first() -> None:
    def seen(values: Sequence[str]) -> TaskSums:
        tally = TaskSums()
        for value in values:
            tally.value("leaf", "k", value)
            tally.keep("hot", "", len(value), value, 2)
        return tally

    def joined(*parts: Sequence[str]) -> passes.Passed:
        sums: dict[tuple[str, str], list[int]] = {}
        for part in parts:
            passes._join(sums, seen(part).closed())
        return passes.Passed(sums, [])

    one, two = joined(["a", "a"], ["a"]), joined(["bb", "a"], ["c"], ["a", "bb"])
    assert one.values("leaf") == {"k": ("a", 3)}
    assert two.values("leaf") == {"k": ("\0", 5)}
    assert two.kept("hot", 2) == {"": [(1, "a"), (1, "c")]}
