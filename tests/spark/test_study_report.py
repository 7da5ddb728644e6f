"""Sums, page and result folder of a study."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.spark import report
from jbi_pubsub.spark.report import DistributionRow, GroupSums, MatchReport, SampleCheck
from jbi_pubsub.spark.studies.match import FEWEST_SAMPLED, MOST_SAMPLED, result_of, sample_step

CELLS = [
    GroupSums(shape=0, bucket=0, groups=1, templates=5, hits=0, pairs=0),
    GroupSums(shape=0, bucket=3, groups=2, templates=3, hits=10, pairs=16),
    GroupSums(shape=8, bucket=3, groups=1, templates=1, hits=7, pairs=7),
]


def made_report(**changes: object) -> MatchReport:
    made = MatchReport(
        registrations=1000,
        templates=9,
        seed=1,
        engine="spark",
        spark="4.3.0",
        java="17.0.15",
        groups=4,
        hits=17,
        pairs=23,
        templates_matched=4,
        checksum="0" * 32,
        distribution=report.distribution(CELLS),
        shapes=report.by_shape(CELLS),
        check=SampleCheck(step=10, registrations=100, hits=3, defined_pairs=900, defined_matches=3),
        timings=(("match", 1.25),),
        out="/somewhere",
        files=(),
    )
    return msgspec.structs.replace(made, **changes)


def test_distribution_joins_shapes_by_number_of_matches() -> None:
    assert report.distribution(CELLS) == (
        DistributionRow(low=0, high=0, templates=5, pairs=0),
        DistributionRow(low=4, high=7, templates=4, pairs=23),
    )


def test_shapes_are_named_by_class_and_fixed_fields() -> None:
    rows = report.by_shape([*CELLS, GroupSums(shape=3, bucket=1, groups=1, templates=2, hits=1, pairs=2)])

    assert [(row.shape, row.templates, row.pairs) for row in rows] == [
        ("study.Product()", 8, 16),
        ("study.Product(country, publisher)", 2, 2),
        ("study.Imagery()", 1, 7),
    ]


def test_rows_say_what_ran_and_what_was_checked() -> None:
    rows = dict(made_report().rows())

    assert rows["matches"] == "23 pairs, stored as 17 hits on 4 distinct templates"
    assert rows["engine"] == "Spark 4.3.0, Java 17.0.15"
    assert rows["check by sample"] == "100 registrations, 3 hits equal in process"
    assert dict(made_report(engine="local").rows())["engine"] == "this process"


def test_a_made_up_population_is_told_as_every_study_whatever_the_engine() -> None:
    told, other = result_of(made_report()), result_of(made_report(engine="local", spark="", timings=(), out="/else"))

    assert told == other
    assert told.numbers["pairs"] == 23
    assert [table.rows for table in told.tables] == [
        ((0, 0, 5, 0), (4, 7, 4, 23)),
        (("study.Product()", 8, 3, 16), ("study.Imagery()", 1, 1, 7)),
    ]
    assert told.plots[0].series[0].x == ("0", "4-7")


def test_a_report_survives_its_json() -> None:
    made = made_report()

    assert msgspec.json.decode(msgspec.json.encode(made), type=MatchReport) == made


def test_a_new_folder_is_made_and_marked_as_running(tmp_path: Path) -> None:
    folder = report.claim(tmp_path / "a" / "b")

    assert msgspec.json.decode((folder / "manifest.json").read_bytes())["state"] == "running"
    assert report.claim(folder) == folder  # an interrupted study may be started again


def test_a_folder_with_other_things_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "hits").mkdir()
    (tmp_path / "manifest.json").write_text('{"somebody": "else"}')

    with pytest.raises(ConfigurationError, match="not empty"):
        report.claim(tmp_path)

    assert (tmp_path / "manifest.json").read_text() == '{"somebody": "else"}'


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigurationError, match="can't be used"):
        report.claim(tmp_path / "file")


@pytest.mark.parametrize("registrations", [0, 1, 99, 1000, 12_345, 100_000, 10**6, 10**9])
def test_one_percent_is_sampled_within_bounds(registrations: int) -> None:
    sampled = len(range(0, registrations, sample_step(registrations)))

    assert sampled <= MOST_SAMPLED
    assert sampled >= min(registrations, FEWEST_SAMPLED) * 0.5
    if 10_000 <= registrations <= 10**6:
        assert sampled == -(-registrations // 100)
