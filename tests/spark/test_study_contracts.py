"""Which templates of a data set match which registrations: as `entry.matches` says, pair by pair."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.lookup.entry import matches
from jbi_pubsub.spark import dataset
from jbi_pubsub.spark.dataset import Contracts, Reject, SubscriptionRow
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.studies.contracts import match, shown

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")


def test_templates_and_registrations_of_a_data_set_match_as_each_pair_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given contracts, a subscription of everything among them
    monkeypatch.chdir(tmp_path)
    made = StudyDomain(registrations=60, subscriptions=80, seed=9).contracts()
    contracts = Contracts(made.registrations, (*made.subscriptions, SubscriptionRow(subscription="all")))
    dataset.write(tmp_path / "data", contracts, [], source="x")
    pairs = {
        (registration.registration, subscription.subscription)
        for registration in contracts.registrations
        for subscription in contracts.subscriptions
        if all(any(matches(t, e) for e in registration.entries) for t in subscription.template)
    }

    told = CliRunner().invoke(jbi, ["study", "match", "data", "--json"])

    assert told.exit_code == 0, (told.output, told.exception)
    numbers = json.loads(told.output)["numbers"]
    assert numbers["pairs"] == len(pairs) > 100
    with (tmp_path / "study-match" / "tables" / "registrations.csv").open() as opened:
        by_registration = {row["registration"]: int(row["subscriptions"]) for row in csv.DictReader(opened)}
    assert by_registration == {
        each.registration: sum(r == each.registration for r, _ in pairs) for each in contracts.registrations
    }
    with (tmp_path / "study-match" / "tables" / "templates.csv").open() as opened:
        templates = list(csv.DictReader(opened))
    assert (templates[0]["template"], templates[0]["registrations"]) == ("everything", "60")
    assert sum(int(row["subscriptions"]) for row in templates) == 81
    assert {row["template"] for row in templates} == {shown(each.template) for each in contracts.subscriptions}


def test_match_tells_what_could_not_be_read_and_fails_above_so_many(tmp_path: Path) -> None:
    dataset.write(tmp_path / "data", Contracts(), [], source="x", rejects=[Reject("publications", "o1", "no XML")])
    command = ["study", "match", str(tmp_path / "data"), "--out", str(tmp_path / "o"), "--max-rejects"]

    enough, too_many = (CliRunner().invoke(jbi, [*command, most, "--json"]) for most in ("1", "0"))
    made_up = CliRunner().invoke(jbi, ["study", "match", "--max-rejects", "0", "--out", str(tmp_path / "p")])

    assert json.loads(enough.output)["facts"]["could not be read"] == "1 row (table rejects)"
    assert str(too_many.exception).startswith("1 row could not be read, more than 0; the first, of publications: o1")
    assert "for a data set" in str(made_up.exception)


def test_options_of_the_generator_are_refused_with_a_data_set(tmp_path: Path) -> None:
    dataset.write(tmp_path / "data", Contracts(), [], source="x")

    told = CliRunner().invoke(
        jbi, ["study", "match", str(tmp_path / "data"), "--seed", "2", "--out", str(tmp_path / "o")]
    )

    assert isinstance(told.exception, ConfigurationError)
    engines = {
        engine: CliRunner().invoke(
            jbi, ["study", "match", str(tmp_path / "data"), "--engine", engine, "--out", str(tmp_path / "o")]
        )
        for engine in ("local", "spark")
    }
    assert engines["local"].exit_code == 0
    assert "in this process" in str(engines["spark"].exception)
    assert match(Contracts()).numbers["pairs"] == 0
