"""What a simulation says of a workload: by virtual time, beside what really runs, and of what can't be read."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.quality import PayloadShape
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.qos.simulate import (
    Change,
    Flow,
    Simulated,
    SimulatedRun,
    TraceSubscriber,
    Workload,
    demo,
    estimated,
)
from jbi_pubsub.qos.virtual import StageResult

DEMO = Path(__file__).parents[2] / "jbi_pubsub" / "policy" / "data" / "demo.toml"

TWO_TO_ONE = """
[space]
strategy = "{strategy}"
link_weights = [1, 1, 1, 1, 2]

[[policy]]
name = "important"
type = "important"
importance = 5

[[policy]]
name = "normal"
type = "normal"
importance = 4
deadline = "{deadline}"

[[link]]
name = "narrow"
members = "action == 'subscribe'"
rate = "300 kbps"
reserve = 0.0
"""


def two_to_one(strategy: str = "weighted_fair", deadline: str = "none") -> PolicySet:
    return PolicySet.parse(TWO_TO_ONE.format(strategy=strategy, deadline=deadline))


def two_types(rate: float, seconds: float) -> Workload:
    """As much of an important and of a normal type, 3,000 bytes each on the wire."""
    flows = [Flow(name, "publisher", rate, 2_800, 2_800) for name in ("important", "normal")]
    return Workload.of(flows, [TraceSubscriber("one", name) for name in ("important", "normal")], seconds)


def got(found: Simulated, stage: int = -1) -> dict[str, StageResult]:
    return {each.type: each for each in found.stages[stage].got.values()}


@pytest.mark.long
def test_ten_minutes_of_the_demonstration_take_seconds() -> None:
    # When
    began = time.process_time()
    found = SimulatedRun(PolicySet.read(DEMO), demo(600.0), 600.0).result()
    # Expect
    assert time.process_time() - began < 60.0
    [stage] = found.stages
    assert (
        sum(each.matched for each in stage.got.values())
        == sum(len(each.late) + sum(each.lost.values()) for each in stage.got.values()) + found.waiting
    )
    assert {each.importance for each in stage.got.values()} == {2, 3, 4}
    assert all(8 * used <= 850_000 for _, used in found.links["downlink"])


@pytest.mark.row("Q-50")
def test_the_demonstration_has_the_papers_types_and_sizes_and_offers_just_over_a_megabit() -> None:
    # Given its objects, and how many subscribe to each type
    workload = demo(600.0)
    sizes: dict[str, list[int]] = {}
    for each in workload.publications:
        sizes.setdefault(each.type, []).append(each.size)
        assert each.picture is (each.type in ("uav.imagery", "cas.image"))
    many = Counter(each.type for each in workload.subscribers)
    # Expect pictures of 42 to 70 KB, and 10 KB of all else
    assert set(sizes) == {"uav.imagery", "cas.image", "patrol_report", "uav.tasking", "blue_force_tracking"}
    for type_ in ("uav.imagery", "cas.image"):
        assert 42_000 <= min(sizes[type_]) < 45_000
        assert 67_000 < max(sizes.pop(type_)) <= 70_000
    assert all(set(each) == {10_000} for each in sizes.values())
    # Expect what is to be delivered to be more than the link's 800 kbit/s
    offered = sum(8 * each.size * many[each.type] for each in workload.publications) / 600
    assert 1_000_000 < offered < 1_050_000


@pytest.mark.row("Q-51")
def test_when_the_link_becomes_narrow_the_important_keep_their_rate_and_the_rest_gives_way() -> None:
    # Given the demonstration without a limit, in which nobody's pictures are scaled
    text = DEMO.read_text().replace('preference = "GeneralSurv"', 'preference = "FullImageDrop"')
    wide = PolicySet.parse(text.replace('rate = "800 kbps"', 'rate = "100 Mbps"'))
    # When the link gets its limit after a minute
    narrow = Change(60.0, policies=PolicySet.parse(text).of_version(2))
    found = SimulatedRun(wide, demo(180.0), 180.0, changes=[narrow]).result()
    # Expect the important types to keep their rate, imagery to be dropped, and the limit to hold
    before, after = ({(row["subscriber"], row["type"]): row for row in stage.rows()} for stage in found.stages)
    assert not any(row["lost"] for row in before.values())
    important = [key for key, row in after.items() if row["importance"] >= 4]
    assert {type_ for _, type_ in important} == {"blue_force_tracking", "uav.tasking"}
    for key in important:
        assert after[key]["rate"] == pytest.approx(before[key]["rate"], rel=0.05)
    for user in ("Ops-1", "Ops-2"):
        assert after[user, "uav.imagery"]["lost"]["deadline"] > 10
    used = [8 * bytes_ for at, bytes_ in found.links["downlink"] if at > 62.0]
    assert 700_000 < sum(used) / len(used) <= 800_000
    assert max(used) <= 1.05 * 800_000


def test_the_same_twice_is_the_same() -> None:
    first, second = (SimulatedRun(PolicySet.read(DEMO), demo(60.0), 60.0).result().plain() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("strategy", "ratio"), [("weighted_fair", 2.0), ("strict", float("inf"))])
def test_levels_share_a_link_by_their_weights(strategy: str, ratio: float) -> None:
    # When 15 of each are published a second, and 12.5 of both fit
    found = got(SimulatedRun(two_to_one(strategy), two_types(15.0, 60.0), 60.0).result())
    # Expect
    important, normal = (len(found[name].late) for name in ("important", "normal"))
    if strategy == "strict":
        assert important == pytest.approx(60 * 12.5, rel=0.03)
        assert normal <= 1  # the first one came while nothing else waited
    else:
        assert important / normal == pytest.approx(ratio, rel=0.03)
        assert important + normal == pytest.approx(60 * 12.5, rel=0.03)


def test_what_is_too_old_is_lost_and_the_account_is_even() -> None:
    found = SimulatedRun(two_to_one(deadline="2 s"), two_types(15.0, 60.0), 60.0).result()
    normal = got(found)["normal"]
    assert normal.lost["deadline"] > 300
    assert all(late < 2.2 for late in normal.late)
    assert sum(each.matched - len(each.late) - sum(each.lost.values()) for each in got(found).values()) == found.waiting


def test_a_narrower_link_and_other_policies_hold_from_their_time_on() -> None:
    # Given a link that carries 100 kbit/s from 20 s on, of which the important type alone is served from 40 s on
    changes = [
        Change(20.0, bandwidth=12_500.0),
        Change(40.0, policies=two_to_one("strict").of_version(2)),
    ]
    # When
    found = SimulatedRun(two_to_one(deadline="1 s"), two_types(5.0, 60.0), 60.0, changes=changes).result()
    # Expect
    wide, narrow, strict = (got(found, stage) for stage in range(3))
    assert [round(stage.begins) for stage in found.stages] == [0, 20, 40]
    assert len(wide["normal"].late) == 100
    assert 5 < len(narrow["normal"].late) < 50
    assert len(strict["normal"].late) < 15
    used = dict(found.links["narrow"])
    assert 0.9 < sum(used[at] for at in range(30, 60)) / 30 / 12_500 < 1.05


def test_judging_takes_turns_by_importance() -> None:
    # Given that one object takes 0.1 s to judge, and 20 come a second
    found = got(SimulatedRun(two_to_one("strict"), two_types(10.0, 30.0), 30.0, judging=0.1).result())
    # Expect
    assert len(found["important"].late) > 280
    assert len(found["normal"].late) < 10


def test_a_measured_link_is_used_and_found_out() -> None:
    policies = PolicySet.parse(TWO_TO_ONE.format(strategy="strict", deadline="1 s").replace('rate = "300 kbps"\n', ""))
    found = SimulatedRun(policies, two_types(15.0, 60.0), 60.0, changes=[Change(0.0, bandwidth=37_500.0)]).result()
    used = dict(found.links["narrow"])
    assert 0.9 < sum(used[at] for at in range(20, 60)) / 40 / 37_500 < 1.03
    assert len(got(found)["important"].late) > 700


@pytest.mark.parametrize(
    ("shape", "picture", "left"),
    [
        ("drop_payload", False, 0),
        ("truncate 100", False, 100),
        ("truncate 100", True, 1000),
        ("scale 0.5", False, 1000),
    ],
)
def test_what_shapes_leave_is_estimated(shape: str, picture: bool, left: int) -> None:
    name, *arguments = shape.split()
    assert estimated(1000, [PayloadShape(name, tuple(map(float, arguments)))], picture=picture) == left


@pytest.mark.slow
def test_it_is_as_what_really_runs() -> None:
    # Given what two types of an overloaded link really get
    from jbi_pubsub.examples.narrow import narrow

    counted = narrow("fair", 300_000, 10.0)
    # When
    found = got(SimulatedRun(two_to_one(), two_types(15.0, 60.0), 60.0).result())
    # Expect
    for name in ("important", "normal"):
        assert len(found[name].late) / 60 == pytest.approx(counted.rate(name), rel=0.1)


# -- traces and the command -------------------------------------------------------------------------------------------

TRACE = """{"subscriber": "Ops-1", "type": "important"}

{"at": 2.5, "type": "important", "size": 3000, "user": "p"}
{"at": 0.5, "type": "important", "size": 3000, "user": "p", "metadata": "<m/>"}
{"at": 1.5, "type": "nobody's", "size": 3000}
"""


@pytest.mark.processes
def test_a_trace_is_played(tmp_path: Path) -> None:
    # Given
    trace, policies = tmp_path / "trace.jsonl", tmp_path / "policy.toml"
    trace.write_text(TRACE)
    policies.write_text(TWO_TO_ONE.format(strategy="strict", deadline="1 s"))
    page = tmp_path / "page.html"
    # When
    asked = ["policy", "simulate", str(policies), "--workload", str(trace), "--plot", str(page), "--json"]
    ran = CliRunner().invoke(jbi, asked, standalone_mode=False)
    # Expect
    assert ran.exit_code == 0, ran.output
    [row] = json.loads(ran.output)["stages"][0]["rows"]
    assert (row["subscriber"], row["importance"], row["matched"], row["delivered"]) == ("Ops-1", 5, 2, 2)
    assert "5: important, Ops-1" in page.read_text()
    assert "<svg" in page.read_text()


def test_keys_of_the_file_are_set_one_behind_the_other(tmp_path: Path) -> None:
    # Given
    policies = tmp_path / "policy.toml"
    policies.write_text(TWO_TO_ONE.format(strategy="strict", deadline="1 s"))
    trace = tmp_path / "trace.jsonl"
    lines = ['{"subscriber": "one", "type": "normal"}']
    lines += [f'{{"at": {at}.5, "type": "normal", "size": 1000}}' for at in range(6)]
    trace.write_text("\n".join(lines))
    changes = ["--set", "policy.normal.importance=2@4s", "--set", "policy.normal.importance=1@2s"]
    # When
    asked = ["policy", "simulate", str(policies), "--workload", str(trace), *changes, "--json"]
    ran = CliRunner().invoke(jbi, asked, standalone_mode=False)
    # Expect
    stages = json.loads(ran.output)["stages"]
    assert [(stage["begins"], stage["rows"][0]["importance"]) for stage in stages] == [(0, 4), (2, 1), (4, 2)]
    assert [stage["rows"][0]["delivered"] for stage in stages] == [2, 2, 2]
    assert "importance = 4" in policies.read_text()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", ":1: "),
        ("[1]", ":1: "),
        ('{"at": -1, "type": "t", "size": 1}', "at"),
        ('{"at": 1e400, "type": "t", "size": 1}', ":1: "),
        ('{"at": 1, "type": "t", "size": 99999999999}', "size"),
        ('{"at": 1, "type": "t", "size": 1, "sise": 1}', "sise"),
        ('{"subscriber": "", "type": "t"}', "subscriber"),
        ("[" * 100_000, ":1: "),
        ("\xff", ":1: "),
        ("\n" + "x" * (1 << 20) + "\n", ":2: a line of over 1 MiB"),
        ('{"subscriber": "a", "type": "t"}\n' * 10_001, "over 10,000 subscribers"),
        ("", "no subscribers"),
        ('{"at": 1, "type": "subscriber", "size": 1}', "no subscribers"),
        ('{"subscriber": "a", "type": "t"}', "no objects"),
    ],
)
def test_a_trace_that_can_not_be_read_says_where(line: str, says: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(line.encode("latin-1"))
    with pytest.raises(ConfigurationError, match="(?s)" + says.replace("[", r"\[")):
        Workload.read(trace)
    with pytest.raises(ConfigurationError, match="missing"):
        Workload.read(tmp_path / "missing")


def test_a_device_without_end_is_no_trace() -> None:
    with pytest.raises(ConfigurationError, match="a line of over 1 MiB"):
        Workload.read(Path("/dev/zero"))


def test_what_waits_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    # Given 3 GB that wait for a narrow link
    import tracemalloc

    lines = ['{"subscriber": "one", "type": "normal"}']
    lines += ['{"at": 0.5, "type": "normal", "size": 30000000}'] * 100
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(lines))
    # When
    tracemalloc.start()
    found = SimulatedRun(two_to_one(), Workload.read(trace), 2.0).result()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Expect
    assert found.waiting == 100
    assert most < 200_000_000


@pytest.mark.parametrize(
    ("when", "importance"), [([], 5), (["--begin", "2024-12-31T23:59Z"], 3), (["--begin", "2025-01-01T00:00Z"], 5)]
)
def test_policies_are_in_force_at_the_time_that_is_simulated(tmp_path: Path, when: list[str], importance: int) -> None:
    # Given a policy that is in force since 2025
    policies, trace = tmp_path / "policy.toml", tmp_path / "trace.jsonl"
    policies.write_text('[[policy]]\nname = "p"\ntype = "t"\nimportance = 5\nfrom = 2025-01-01T00:00:00Z\n')
    trace.write_text('{"subscriber": "one", "type": "t"}\n{"at": 0.5, "type": "t", "size": 1000}\n')
    # When it is simulated now, or at another time
    asked = ["policy", "simulate", str(policies), "--workload", str(trace), *when, "--json"]
    ran = CliRunner().invoke(jbi, asked, standalone_mode=False)
    # Expect
    [stage] = json.loads(ran.output)["stages"]
    assert [row["importance"] for row in stage["rows"]] == [importance]


def test_a_trace_of_years_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"subscriber": "one", "type": "t"}\n{"at": 9e6, "type": "t", "size": 1}')
    ran = CliRunner().invoke(jbi, ["policy", "simulate", str(DEMO), "--workload", str(trace)], standalone_mode=False)
    assert isinstance(ran.exception, ConfigurationError)
    assert "a day" in str(ran.exception)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--set", "bandwidth=400 kbps"], "has no time"),
        (["--set", "bandwidth=400@1 min"], "has no unit"),
        (["--set", "bandwidth=2/s@1 min"], "carries bytes"),
        (["--set", "bandwith=400 kbps@1 min"], "bandwith"),
        (["--set", "space.strategy=fairest@1 min"], "fairest"),
        (["--set", "policy.nobody.importance=1@1 min"], "nobody"),
        (["--set", "strict@1 min"], "is not KEY=VALUE@TIME"),
        (["--set", "bandwidth=400 kbps@soon"], "soon"),
        (["--then", "none.toml@1 s"], "none.toml"),
        (["--duration", "0 s"], "--duration"),
        (["--duration", "400 d"], "--duration"),
        (["--workload", "none.jsonl"], "none.jsonl"),
        (["--judging", "fast"], "--judging"),
    ],
)
def test_what_can_not_be_simulated_is_said(asked: list[str], says: str) -> None:
    ran = CliRunner().invoke(jbi, ["policy", "simulate", str(DEMO), *asked], standalone_mode=False)
    assert ran.exit_code != 0
    assert says in str(getattr(ran.exception, "message", ran.exception))


def test_plots_without_matplotlib_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    asked: list[Any] = ["policy", "simulate", str(DEMO), "--plot", str(tmp_path / "page.html")]
    ran = CliRunner().invoke(jbi, asked, standalone_mode=False)
    assert "jbi-pubsub[plot]" in str(getattr(ran.exception, "hint", ""))
    assert not (tmp_path / "page.html").exists()
