"""What `jbi bench qos` makes of what it counts, and its exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from jbi_pubsub.cli import bench
from jbi_pubsub.cli.app import jbi
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.examples import overload
from jbi_pubsub.examples.overload import OverloadDeliveries, document, outcome, predicate


def counted(
    mode: str, important: int, normal: int, late: float = 1.0, later: float = 1.0, *, size: int = 2_000
) -> OverloadDeliveries:
    """Ten seconds in which so many of that size came, all as late, over a link of 10 MB/s."""
    all_late = {"important": [late] * important, "normal": [later] * normal}
    return OverloadDeliveries(mode, 10.0, 9.0, all_late, size * (important + normal), 10e6)


RIGHT = {
    "off": [counted("off", 500, 490, 8.0, 8.0)],
    "fair": [counted("fair", 985, 15, 2.8, 90.0)],
    "strict": [counted("strict", 1_000, 0, 2.8)],
    "light": [counted("light", 100, 900, 0.02, 5.0)],
}


@pytest.mark.row("Q-76")
def test_what_the_paper_has_seen_is_right() -> None:
    found = outcome(RIGHT)
    assert found.right, [promise for promise in found.promises if not promise.kept]
    assert [row[0] for row in found.tables[0].rows] == ["off", "fair", "strict", "light"]


@pytest.mark.row("Q-78")
@pytest.mark.parametrize(
    ("mode", "wrong", "says"),
    [
        ("off", counted("off", 900, 100, 8.0, 8.0), "off: important by normal"),
        ("fair", counted("fair", 960, 40, 2.8, 90.0), "share of important"),
        ("fair", counted("fair", 985, 30, 2.8, 90.0), "at 64 to 1"),
        ("fair", counted("fair", 985, 15, 2.8, 9.0), "latency of normal by important"),
        ("fair", counted("fair", 790, 12, 2.8, 90.0), "fair: total by off"),
        ("fair", counted("fair", 985, 15, 6.0, 90.0), "fair: latency of important by off"),
        ("strict", counted("strict", 1_000, 1, 2.8), "strict: normal objects"),
        ("strict", counted("strict", 800, 0, 2.8), "strict: important by off"),
        ("light", counted("light", 100, 900, 0.2, 5.0), "light: p50"),
        ("strict", counted("strict", 1_000, 0, 2.8, size=5_001), "bytes sent, % of the link"),
    ],
)
def test_what_is_not_met_is_said(mode: str, wrong: OverloadDeliveries, says: str) -> None:
    found = outcome({**RIGHT, mode: [wrong]})
    assert not found.right
    assert any(says in promise.says for promise in found.promises if not promise.kept), found.promises


@pytest.mark.parametrize("mode", ["off", "strict"])
def test_the_command_exits_by_what_was_met(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given
    wrong = {**RIGHT, "strict": [counted("strict", 1_000, 100, 2.8)]}
    asked: list[Any] = []

    def run(tell: Any, **options: Any) -> Any:
        tell("once")
        asked.append(options)
        return outcome(wrong if mode == "strict" else RIGHT)

    monkeypatch.setitem(bench.EXPERIMENTS, "cpu", run)
    # When
    ran = CliRunner().invoke(jbi, ["bench", "qos", "cpu", "--rounds", "2", "--json"], standalone_mode=False)
    # Expect
    assert ran.return_value == (1 if mode == "strict" else 0)
    assert json.loads(ran.output)["right"] == (mode == "off")
    assert asked == [{"rounds": 2}]


@pytest.mark.processes
def test_the_link_is_measured() -> None:
    assert 1e6 < overload.link_rate() < 1e12


def test_each_document_matches_one_predicate() -> None:
    matched = [n for n in range(30) if compile_predicate(predicate(n)).matches(parse_metadata(document(7, 4)))]
    assert matched == [7]


@pytest.mark.row("Q-76")
@pytest.mark.slow
def test_overload_over_real_processes() -> None:
    found = overload.run_cpu(print, seconds=5.0, modes=("off", "fair", "strict"))
    assert [promise.says for promise in found.promises if "normal objects" in promise.says and not promise.kept] == []
    # by weights who matters gets most of what there is, and nobody nothing
    (fair,) = [promise.says for promise in found.promises if promise.says.startswith("fair: important by normal")]
    assert 5.0 < float(fair.partition("): ")[2].partition(",")[0]) < 1000.0, fair
    (sent,) = [promise for promise in found.promises if promise.says.startswith("bytes sent")]
    assert sent.kept, sent.says
    assert all(float(row[-1]) > 0 for row in found.tables[0].rows)
