"""`jbi bench domains`: what is measured is counted right, and what is not as it is to be is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.examples import domains
from jbi_pubsub.examples.domains import APART, EVERYTHING, EXPERIMENTS, OVERLAPS, WANTED, DomainPair

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def pair() -> Iterator[DomainPair]:
    """Two domains, and a link."""
    with domains.two_domains() as made:
        yield made


@pytest.mark.row("D-31")
@pytest.mark.slow
@pytest.mark.processes
def test_bytes_between_domains_are_those_of_what_is_wanted(pair: DomainPair) -> None:
    # Given clients of one domain who want the same of another one, half of it, or nothing in common
    cells = [*range(40)] * 8
    found: dict[tuple[int, float, str], int] = {}
    for clients, overlap, mode in [
        (1, 1.0, WANTED), (1, 1.0, EVERYTHING),
        *((4, overlap, mode) for overlap in OVERLAPS.values() for mode in (APART, WANTED)),
    ]:  # fmt: skip
        starts = [round(each * (1 - overlap) * 10) for each in range(clients)]
        said = domains.delivered(pair, mode, [(low, low + 10) for low in starts], cells)
        # Expect nothing to be lost
        assert said["lost"] == 0
        found[clients, overlap, mode] = said["KB"]
    # Expect a copy of each event, whoever of them wants it
    one = found[1, 1.0, WANTED]
    for overlap, copies in ((1.0, 1), (0.5, 2.5), (0.0, 4)):
        assert found[4, overlap, WANTED] == pytest.approx(one * copies, rel=0.1)
        assert found[4, overlap, APART] == pytest.approx(one * 4, rel=0.1)
    assert found[1, 1.0, EVERYTHING] == pytest.approx(4 * one, rel=0.1)


@pytest.mark.row("D-63", "D-64")
@pytest.mark.slow
@pytest.mark.processes
def test_latencies_are_told_of_one_host_and_of_a_link(pair: DomainPair) -> None:
    # Given clients by themselves, and over a bridge; Expect latencies of both, over a link no less than its delay
    rows = list(domains.latencies(pair, quick=True))
    assert [(row["link"], row["how"]) for row in rows] == [
        (link, how) for link in ("none", "40 ms, 8 Mbit/s") for how in (APART, WANTED)
    ]
    assert all(row["lost"] == 0 and 0 < row["p50 ms"] <= row["p95 ms"] for row in rows)
    assert all(row["p50 ms"] >= 40 for row in rows[2:])


@pytest.mark.row("D-63", "D-64")
@pytest.mark.slow
@pytest.mark.processes
def test_sixty_four_clients_get_what_one_copy_has_brought(pair: DomainPair) -> None:
    # Given as many clients as are measured, over a slow link
    pair.link.shape(delay=0.04, bits_per_second=8e6)
    said = {mode: domains.delivered(pair, mode, [(0, 1)] * 64, [0] * 5, 5.0) for mode in (APART, WANTED)}
    # Expect all to come to all, over a bridge by a 64th of the bytes
    assert [each["lost"] for each in said.values()] == [0, 0]
    assert said[APART]["KB"] > 40 * said[WANTED]["KB"]


@pytest.mark.row("D-33")
@pytest.mark.processes
def test_who_polls_knows_later_by_more_messages_and_misses_some(pair: DomainPair) -> None:
    # Given four changes a second, to be known to two clients, by events and by asking each second
    events, polls = domains.polling(pair, quick=True)
    # Expect each change to be one message, and known to both within a second
    assert (events["messages"], events["missed"]) == (4, 0)
    assert events["p50 ms"] >= 40
    # Expect who asks to send more, and to miss what was changed again before
    assert polls["messages"] > 4
    assert polls["missed"] >= 2
    assert polls["p95 ms"] >= 80  # there and back


@pytest.mark.row("D-19")
def test_matching_by_an_aggregate_is_measured_beside_its_members() -> None:
    # Given equal rectangles, ones that overlap, and ones with nothing in common
    rows = list(domains.matching(None, quick=True))
    # Expect one to be asked for those that are equal, and all else
    assert [(row["overlap"], row["asked"]) for row in rows] == [("full", 1), ("half", 64), ("none", 64)]
    assert all(row[name] > 0 for row in rows for name in ("us apart", "us together", "us to add"))


@pytest.mark.row("D-65")
@pytest.mark.processes
def test_queries_that_several_traders_answer_are_timed() -> None:
    rows = list(domains.traders(None, quick=True))
    assert [(row["traders"], row["link"], row["lost"]) for row in rows] == [
        (number, link, 0) for number in (1, 2) for link in ("none", "40 ms")
    ]
    # Expect who asks another one to wait for the way there and back
    assert rows[3]["us"] >= 80_000


@pytest.mark.processes
def test_time_of_a_trader_is_of_equal_values_and_of_others() -> None:
    rows = list(domains.offers(None, quick=True))
    found = {(row["constraint"], row["asked"]): row["us"] for row in rows}
    for constraint in ("number == 7", "load > 0.5 max load"):
        assert 0 < found[constraint, "in process"] < found[constraint, "by a server"]


GOOD: dict[str, Rows] = {
    "bytes": [
        {"clients": clients, "overlap": overlap, "how": how, "KB": kilobytes, "lost": 0}
        for clients, overlap, how, kilobytes in (
            (1, "full", WANTED, 100), (4, "full", WANTED, 102), (4, "none", APART, 400), (4, "none", WANTED, 410),
        )
    ],
    "latency": [
        {"clients": clients, "link": "40 ms, 8 Mbit/s", "how": how, "KB": kilobytes, "p95 ms": late, "lost": 0}
        for clients, how, kilobytes, late in ((1, WANTED, 80, 52.0), (8, APART, 600, 60.0), (8, WANTED, 81, 55.0))
    ],
    "polling": [
        {"clients": 1, "how": "events", "messages": 40, "p50 ms": 50.0, "missed": 0},
        {"clients": 1, "how": "polling", "messages": 60, "p50 ms": 500.0, "missed": 9},
    ],
    "matching": [{"overlap": "none", "us apart": 5.0, "us together": 5.5, "us to add": 100.0}],
    "offers": [
        {"offers": 10, "constraint": "number == 7", "asked": "in process", "us": 7},
        {"offers": 10, "constraint": "number == 7", "asked": "by a server", "us": 90},
    ],
    "traders": [{"traders": 2, "link": "none", "us": 900, "lost": 0}],
}  # fmt: skip


def test_each_experiment_promises_something_that_can_be_kept() -> None:
    assert GOOD.keys() == EXPERIMENTS.keys()
    for name, rows in GOOD.items():
        promises = list(EXPERIMENTS[name].promised(rows))
        assert promises
        assert all(each.kept for each in promises), name


@pytest.mark.parametrize(
    ("name", "at", "wrong", "says"),
    [
        ("bytes", 0, {"lost": 1}, "lost"), ("bytes", 1, {"KB": 106}, "4 equal"), ("bytes", 3, {"KB": 421}, "in common"),
        ("latency", 2, {"lost": 1}, "lost"), ("latency", 2, {"KB": 90}, "grow"),
        ("latency", 2, {"p95 ms": 61.0}, "p95"),
        ("polling", 0, {"missed": 1}, "missed"), ("polling", 0, {"p50 ms": 501.0}, "sooner"),
        ("polling", 0, {"messages": 60}, "fewer"), ("matching", 0, {"us together": 6.1}, "1.2"),
        ("matching", 0, {"us to add": 2_001.0}, "2 ms"), ("offers", 0, {"us": 51}, "in process"),
        ("offers", 1, {"us": 501}, "by a server"), ("traders", 0, {"lost": 1}, "lost"),
    ],
)  # fmt: skip
def test_what_is_not_met_is_said(name: str, at: int, wrong: dict[str, Any], says: str) -> None:
    rows = [row | wrong if number == at else row for number, row in enumerate(GOOD[name])]
    broken = [each.says for each in EXPERIMENTS[name].promised(rows) if not each.kept]
    assert len(broken) == 1
    assert says in broken[0]


@pytest.mark.parametrize("is_good", [True, False])
@pytest.mark.processes
def test_the_command_writes_plots_with_their_data_and_ends_with_one_if_something_is_wrong(
    is_good: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given an experiment that has been measured
    pytest.importorskip("matplotlib", reason="needs the spark extra")
    rows = [row | {"lost": int(not is_good)} for row in GOOD["latency"]]
    measured = EXPERIMENTS["latency"]._replace(measure=lambda *_: iter(rows), has_pair=False)
    monkeypatch.setitem(domains.EXPERIMENTS, "latency", measured)
    # When it is asked for
    asked = ["domains", "latency", "--plot", str(tmp_path / "plots"), "--json"]
    ran = CliRunner().invoke(jbi, ["bench", *asked], standalone_mode=False)
    # Expect one document, the same beside the plots, and the exit code
    assert ran.return_value == (0 if is_good else 1), ran.output
    said = json.loads(ran.output)
    assert (said["right"], len(said["tables"][0]["rows"])) == (is_good, 3)
    data = json.loads((tmp_path / "plots" / "data.json").read_text())
    assert data == {name: value for name, value in said.items() if name != "right"}
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {"index.html", "data.json", "latency.svg", "growth.svg"}
