"""`jbi bench qos`: what is made of the demonstration that was played, and the command over all experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from jbi_pubsub.cli import bench
from jbi_pubsub.cli.app import jbi
from jbi_pubsub.core.errors import DemoError
from jbi_pubsub.examples import targeting
from jbi_pubsub.examples.example import ExampleOutcome, OutcomeTable, Promise
from jbi_pubsub.examples.targeting import STAGES, SUPPORT, Came, DemonstrationRun, outcome, policies, rows_of, simulated
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.qos.simulate import DEMO_SUBSCRIBERS, Simulated, demo
from jbi_pubsub.spark.plots import Plot, Series

SECONDS = 120.0
EFFECT = 0.5
STAGES_LATE = ("preferences", "importance")


def late_of(stage: str, user: str, type_: str) -> float:
    """As policies want it, roughly: seconds by importance, longer for what is large."""
    if stage == "free":
        return 0.01
    levels = {
        "uav.imagery": 2.0, "cas.image": 3.0, "patrol_report": 3.0, "uav.tasking": 4.0, "blue_force_tracking": 4.0
    }  # fmt: skip
    level = levels[type_]
    if stage == SUPPORT and user == "Patrol-1":
        level = 5.0
    if stage == "importance":
        level = {("Ops-2", "uav.imagery"): 5.0, ("Patrol-1", "patrol_report"): 1.0}.get((user, type_), level)
    return (6.0 - level) ** 2 * (0.7 if "ima" in type_ else 0.2)


def stage_of(at: float) -> str:
    return [name for name, part in STAGES if part * SECONDS + (EFFECT if part else 0.0) <= at][-1]


@pytest.fixture(scope="module")
def good() -> tuple[DemonstrationRun, Simulated]:
    """A play in which all went well, and its simulation."""
    published: dict[str, list[tuple[float, int]]] = {}
    for each in demo(SECONDS).publications:
        published.setdefault(each.type, []).append((each.at, each.size))
    came: dict[str, list[Came]] = {}
    accounts = []
    for who in DEMO_SUBSCRIBERS:
        sent = published[who.type]
        for number, (at, size) in enumerate(sent, 1):
            stage = stage_of(at)
            is_scaled = (who.subscriber, who.type) == ("Ops-1", "uav.imagery") and stage in (
                "preferences",
                "importance",
            )
            late = 0.1 if is_scaled else late_of(stage, who.subscriber, who.type)
            mine = came.setdefault(who.subscriber, [])
            mine.append(Came(who.type, at, late, size // 7 if is_scaled else size, f"of {who.type}", number))
        accounts.append(
            {"user": who.subscriber, "type": who.type, "matched": len(sent), "delivered": len(sent), "suppressed": 0,
             "lost": {}, "importance": 3}
        )  # fmt: skip
    use = [(at, 97_000.0 if at > SECONDS / 4 else 120_000.0) for at in range(1, int(SECONDS))]
    effects = {name: EFFECT for name, part in STAGES if part}
    played = DemonstrationRun(SECONDS, came, {user: {} for user in came}, accounts, use, published, effects)
    return played, simulated(played)


def test_a_play_in_which_all_went_well_keeps_all_promises(good: tuple[DemonstrationRun, Simulated]) -> None:
    found = outcome(*good)
    assert [promise.says for promise in found.promises if not promise.kept] == []
    assert found.right
    assert [plot.name for plot in found.plots] == ["demo-link", "demo-latency", "demo-simulated"]
    assert all(len(series.x) == len(series.y) > 1 for plot in found.plots for series in plot.series)


def changed(played: DemonstrationRun, what: str) -> DemonstrationRun:
    """The same with one thing wrong."""
    came = {user: list(each) for user, each in played.came.items()}
    accounts = [dict(each) for each in played.subscriptions]
    if what == "received + lost":
        accounts[0] = accounts[0] | {"lost": {"deadline": 1}}
    elif what == "objects twice":
        came["HQ-1"].append(came["HQ-1"][-1])
        accounts = [
            each | {"matched": each["matched"] + 1, "delivered": each["delivered"] + 1}
            if each["user"] == "HQ-1"
            else each
            for each in accounts
        ]
    elif what == "out of their":
        came["HQ-1"][3:5] = reversed(came["HQ-1"][3:5])
    elif what == "the link carries":
        return msgspec.structs.replace(played, use=[(at, 105_000.0) for at, _ in played.use])
    elif what == "fullest":
        return msgspec.structs.replace(played, use=[*played.use, (SECONDS - 1, 130_000.0)])
    elif what == "in force":
        return msgspec.structs.replace(played, effects=played.effects | {"support": 2.5})
    elif what == "came, at least":
        came["HQ-1"] = came["HQ-1"][:50]
    elif what == "calls for support":
        came["Patrol-1"] = [
            msgspec.structs.replace(each, late=1.2) if each.type == "cas.image" else each for each in came["Patrol-1"]
        ]
    elif what == "order of importance":
        came["Patrol-1"] = [msgspec.structs.replace(each, late=0.3) for each in came["Patrol-1"]]
    elif what == "as steadily":  # the same means, but what matters most comes now soon, now late
        patrols = [each for each in came["Patrol-1"] if each.type == "cas.image" and stage_of(each.at) == SUPPORT]
        late = {id(each): each.late + (0.5 if number % 2 else -0.5) for number, each in enumerate(patrols)}
        came["Patrol-1"] = [
            msgspec.structs.replace(each, late=late.get(id(each), each.late)) for each in came["Patrol-1"]
        ]
    elif what == "in full":
        came["Ops-1"] = [msgspec.structs.replace(each, size=50_000) for each in came["Ops-1"]]
    return msgspec.structs.replace(played, came=came, subscriptions=accounts)


@pytest.mark.parametrize(
    "what",
    [
        "received + lost", "objects twice", "out of their", "the link carries", "fullest", "in force", "came, at least",
        "calls for support", "order of importance", "as steadily", "in full",
    ],
)  # fmt: skip
def test_what_went_wrong_is_told(what: str, good: tuple[DemonstrationRun, Simulated]) -> None:
    played, said = good
    found = outcome(changed(played, what), said)
    assert not found.right
    assert any(what in promise.says for promise in found.promises if not promise.kept), found.promises


def test_what_went_before_the_limit_was_in_force_is_no_use_of_it(good: tuple[DemonstrationRun, Simulated]) -> None:
    played, said = good
    begin = 0.25 * SECONDS
    use = [(at, 125_000.0 if begin < at < begin + 3 else used) for at, used in played.use]
    found = outcome(msgspec.structs.replace(played, use=use), said)
    assert [promise.says for promise in found.promises if not promise.kept] == []


def test_the_simulation_knows_importance_stage_by_stage(good: tuple[DemonstrationRun, Simulated]) -> None:
    levels = {(row.stage, row.user, row.type): row.importance for row in rows_of(*good)}
    patrol = [levels[stage, "Patrol-1", "cas.image"] for stage, _ in STAGES]
    assert patrol == [3, 3, 5, 4, 3]  # patrol, then close air support, then damage assessment
    assert levels["importance", "Ops-2", "uav.imagery"] == 5
    assert levels["importance", "Patrol-1", "patrol_report"] == 1


@pytest.mark.row("Q-53", "Q-54", "Q-72")
def test_who_matters_more_is_served_sooner_and_more_steadily_from_the_change_on(
    good: tuple[DemonstrationRun, Simulated],
) -> None:
    # Given what the simulation makes of the play, subscription by subscription
    told = {(row.stage, row.user, row.type): row.simulated for row in rows_of(*good)}

    def late(stage: str, user: str, type_: str) -> tuple[float, float]:
        row = told[stage, user, type_]
        return row["delay"], row["deviation"]

    # Expect images that a patrol has called for within a second, while imagery fills the link
    assert told[SUPPORT, "Patrol-1", "cas.image"]["p95"] < 1.0
    assert told[SUPPORT, "Ops-2", "uav.imagery"]["delay"] > 5.0
    # Expect those of its other duties in their order: nothing shaped, by importance 5, 4 and 3
    in_order = [late(stage, "Patrol-1", "cas.image") for stage in (SUPPORT, "preferences", "importance")]
    assert in_order == sorted(in_order)
    # When imagery becomes what matters most to one commander, and reports least; Expect both to change places
    before, after = ({key[1:]: row["delay"] for key, row in told.items() if key[0] == stage} for stage in STAGES_LATE)
    assert before["Ops-2", "uav.imagery"] > 3 * after["Ops-2", "uav.imagery"]
    assert 10 * before["Patrol-1", "patrol_report"] < after["Patrol-1", "patrol_report"]
    most, least = late("importance", "Ops-2", "uav.imagery"), late("importance", "Ops-1", "cas.image")
    assert most[0] < least[0]
    assert most[1] < least[1]
    # Expect the commander whose preference has changed, and no other one, to get his imagery scaled
    scaled = {key for key, row in told.items() if row["shaped"]}
    assert scaled == {(stage, "Ops-1", "uav.imagery") for stage in STAGES_LATE}


@pytest.mark.parametrize("stage", [name for name, _ in STAGES])
def test_policies_of_each_stage_can_be_used(stage: str) -> None:
    said = PolicySet.parse(policies(stage)).check()
    assert [each for each in said if "no role" not in each] == []  # of three duties one is present


def test_a_demonstration_file_that_was_changed_is_noticed() -> None:
    with pytest.raises(DemoError, match="0 times"):
        targeting._replaced(policies("free"), "800 Gbps", "1 bps")


def test_a_play_that_is_too_short_is_refused() -> None:
    with pytest.raises(DemoError, match="too little"):
        targeting.run_demo(print, seconds=10.0)


def experiment(name: str, *, kept: bool) -> Any:
    def run(tell: Any, **options: Any) -> ExampleOutcome:
        tell(f"{name} {options}")
        table = OutcomeTable(name, ("what", "rate"), [("<script>", 1.5), ("b", 2)])
        plot = Plot(name=name, title=f"{name} <b>", kind="bars", x="", y="", series=(Series("s", ("off",), (1.0,)),))
        return ExampleOutcome((table,), (Promise(f"{name} is good", kept),), (plot,))

    return run


@pytest.mark.processes
@pytest.mark.parametrize("kept", [True, False])
def test_all_experiments_make_one_outcome_and_plots(
    kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Given
    for name in ("cpu", "link", "demo"):
        monkeypatch.setitem(bench.EXPERIMENTS, name, experiment(name, kept=kept or name != "link"))
    # When
    asked = ["qos", "all", "--fast", "--plot", str(tmp_path / "plots"), "--json"]
    ran = CliRunner().invoke(jbi, ["bench", *asked], standalone_mode=False)
    # Expect
    assert ran.return_value == (0 if kept else 1), ran.output
    told = json.loads(ran.output)
    assert (told["right"], len(told["tables"]), len(told["promises"]), len(told["plots"])) == (kept, 3, 3, 3)
    files = {path.name for path in (tmp_path / "plots").iterdir()}
    assert files == {"index.html", "data.json", "cpu.svg", "link.svg", "demo.svg"}
    assert len(json.loads((tmp_path / "plots" / "data.json").read_text())["tables"]) == 3
    page = (tmp_path / "plots" / "index.html").read_text()
    assert page.count("<svg") == 3
    assert "<script>1" not in page
    assert "&lt;script&gt;" in page


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    ran = CliRunner().invoke(jbi, ["bench", "qos", "link", "--plot", str(tmp_path)], standalone_mode=False)
    assert "jbi-pubsub[plot]" in str(getattr(ran.exception, "hint", ""))


@pytest.mark.row("Q-51")
@pytest.mark.processes
@pytest.mark.slow
def test_the_demonstration_over_real_processes() -> None:
    # When
    found = targeting.run_demo(print, seconds=targeting.FAST_SECONDS)
    # Expect
    broken = [promise.says for promise in found.promises if not promise.kept]
    always = ("matched", "twice", "in full", "the link carries", "came, at least")  # however busy the machine is
    assert [says for says in broken if any(word in says for word in always)] == []
