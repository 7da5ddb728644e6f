"""How many delegates a forecast needs: by what was measured, and nothing else."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.cli.costs import ROUNDS, measure
from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import dataset, plots
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, SubscriptionRow
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.judging import Judge
from jbi_pubsub.spark.studies import capacity
from jbi_pubsub.spark.studies.capacity import Costs, percentile
from jbi_pubsub.spark.studies.study import Options, data_in, run

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")


def test_the_delegate_that_is_measured_delivers_what_a_study_says(tmp_path: Path) -> None:
    # Given a data set, with a subscription that no delegate takes
    domain = StudyDomain(registrations=6, subscriptions=40, publications=100, selectivity=0.3, seed=5)
    contracts = domain.contracts()
    bad = SubscriptionRow(subscription="bad", predicate="/a[")
    dataset.write(
        tmp_path, Contracts(contracts.registrations, (*contracts.subscriptions, bad)), domain.published(), source="x"
    )
    before = set(threading.enumerate())

    # When costs are measured by it
    costs = measure(data_in(tmp_path))

    # Expect each object once, as many deliveries as by the studies' judge, some time for each, and no thread left
    judge = Judge(contracts)
    assert sum(number for _, _, number, _ in costs.rounds) == 100
    assert sum(copies for *_, copies in costs.rounds) == sum(len(judge.judge(p).matched) for p in domain.published())
    assert len(costs.rounds) == ROUNDS
    assert all(judging > 0 for judging, *_ in costs.rounds)
    assert costs.refused == 1
    assert {
        t.name for t in set(threading.enumerate()) - before if t.name.startswith(("deliver-", "jbi-study"))
    } == set()


def test_delegates_are_what_rates_and_costs_come_to(tmp_path: Path) -> None:
    # Given a data set where each of four subscriptions gets half of the objects, and costs of a known spread
    contracts = Contracts((), tuple(SubscriptionRow(subscription=f"s{n}", predicate="/t[a=1]") for n in range(4)))
    published = [
        PublicationRow(f"o{n}", "t", "1.0", 0.0, "r", f"<t><a>{n % 2}</a></t>".encode(), 85) for n in range(10)
    ]
    dataset.write(tmp_path / "data", contracts, published, source="x")
    told: dict[str, Any] = {"publishers": 100, "rate": 10, "subscribers": 40, "growth": 1.0, "years": 1,
                            "utilisation": 0.5, "object_p10": 100, "object_p50": 200, "object_p90": 300,
                            "delivery_p10": 10, "delivery_p50": 20, "delivery_p90": 30}  # fmt: skip

    found, _ = run(
        capacity.STUDY, data_in(tmp_path / "data"), tmp_path / "out", Options(engine="local", parameters=told)
    )

    # Expect 1,000 objects/s x 200 us + 20,000 deliveries/s x 20 us = 0.6 cores, 1.2 delegates now; both twice as many
    # a year later: 2,000 x 200 us + 80,000 x 20 us = 2 cores, 4 delegates
    first, last = found.tables[0].rows[0], found.tables[0].rows[-1]
    assert first == (0.0, 100, 1_000, 40, 20_000, 16.0, 1, 2, 2)
    assert (last[2], last[4], *last[6:]) == (2_000, 80_000, 2, 4, 6)
    [plot] = found.plots
    assert plot.series[0].low[-1] == 2
    assert plot.series[0].high[-1] == 6
    assert "PolyCollection" in plots.drawn(plot)[0]


def test_percentiles_lie_between_what_was_measured() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0, 5.0], p) for p in (0, 10, 50, 90, 100)] == [1.0, 1.4, 3.0, 4.6, 5.0]
    with pytest.raises(StudyError, match="nothing was delivered"):
        Costs(((1.0, 0.0, 5, 0),)).parameters()


def test_from_the_command_line_a_forecast_is_measured_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    domain = StudyDomain(registrations=4, subscriptions=20, publications=60, selectivity=0.3)
    dataset.write(tmp_path / "data", domain.contracts(), domain.published(), source="x")
    dataset.write(tmp_path / "empty", Contracts(), [], source="x")
    asked = ["--publishers", "100", "--rate", "1", "--subscribers", "100", "--json"]

    told = CliRunner().invoke(jbi, ["study", "capacity", "data", *asked])
    empty = CliRunner().invoke(jbi, ["study", "capacity", "empty", *asked])

    assert told.exit_code == 0, (told.output, told.exception)
    answer = json.loads(told.output)
    assert answer["numbers"]["delegates_now"] >= 1
    assert 0 < answer["run"]["parameters"]["object_p10"] <= answer["run"]["parameters"]["object_p90"]
    assert isinstance(empty.exception, StudyError)
