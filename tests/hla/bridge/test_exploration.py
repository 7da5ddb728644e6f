"""Every order in which federations and bridges can act: what can come of it, and what can't."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.hla.bridge import bridge as spans
from jbi_pubsub.hla.bridge import policy
from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.execution import RtiOptions
from jbi_pubsub.hla.exploration import chart, report, scenarios, script, search
from jbi_pubsub.hla.exploration.scenarios import CELLS, SCENARIOS, SOLUTIONS, Explored, line, matrix, prepared
from jbi_pubsub.hla.exploration.search import Exploration
from jbi_pubsub.hla.exploration.system import built, fom, planned

ADDED = RtiOptions(adds=True)
SMART = Solutions()
THING = fom().object_class("Thing")
X = fom().attribute(THING, "x")


def explored(
    name: str, sizes: tuple[int, ...], policy: Solutions = SMART, edges: Any = None, **more: Any
) -> Exploration:
    """A scenario, or a script."""
    if name in SCENARIOS and not more:
        return search.explore(*prepared(SCENARIOS[name], policy, sizes, edges))
    text = SCENARIOS[name].text if name in SCENARIOS else name
    given = {"options": more.pop("options", ADDED), "late": more.pop("late", False)}
    plan = planned(policy, **more)
    return search.explore(*built(sizes, edges or line(len(sizes)), plan, script.read(text), **given))


def ends(result: Exploration) -> set[str]:
    """How it can end."""
    return {each.outcome for each in result.terminals}


# -- agreements -----------------------------------------------------------------------------------------------------


@pytest.mark.row("H-36", "H-69")
@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1)])
@pytest.mark.parametrize("name", ["save", "sync"])
def test_a_bridge_that_only_passes_on_what_it_is_told_deadlocks_always(name: str, sizes: tuple[int, ...]) -> None:
    result = explored(name, sizes, Solutions(consensus="naive"))
    assert result.verdict == "DEADLOCK"
    label = {"save": "save, L", "sync": "sync, A"}[name]
    assert ends(result) == {"; ".join(f"DEADLOCK({label}) in {each}" for each in "FGH"[: len(sizes)])}


@pytest.mark.row("H-28", "H-37", "H-38", "H-41", "H-45", "H-69", "H-70")
@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1)])
@pytest.mark.parametrize("consensus", ["add", "smart"])
@pytest.mark.parametrize(
    ("name", "outcome"),
    [("save", "save L: saved"), ("sync", "sync A: synchronized"), ("restore", "restore L: restored")],
)
def test_told_or_asked_all_end_together(name: str, outcome: str, consensus: str, sizes: tuple[int, ...]) -> None:
    result = explored(name, sizes, Solutions(consensus=consensus))
    assert result.verdict == "ok"
    [end] = result.terminals
    assert all(f"{each} {outcome}" in end.outcome for each in "FGH"[: len(sizes)])


@pytest.mark.row("H-43")
@pytest.mark.parametrize("name", ["save", "sync"])
def test_who_is_the_last_may_be_told_to_all_who_are_or_to_surrogates_alone(name: str) -> None:
    for discloses in (True, False):
        result = explored(
            SCENARIOS[name].text, (2, 2), Solutions(consensus="add"), options=RtiOptions(adds=True, discloses=discloses)
        )
        assert result.verdict == "ok"
        assert "DEADLOCK" not in "".join(ends(result))


@pytest.mark.row("H-33")
@pytest.mark.parametrize("count", [2, 3, 4, pytest.param(5, marks=pytest.mark.slow)])
def test_chains_of_federations_save(count: int) -> None:
    result = explored("save", (1,) * count)
    assert result.verdict == "ok"
    assert ends(result) == {"; ".join(f"{each} save L: saved" for each in "FGHIJK"[:count])}


@pytest.mark.row("H-34")
def test_a_star_of_four_federations_saves() -> None:
    result = explored("save", (1, 1, 1, 1), edges=((0, 1), (0, 2), (0, 3)))
    assert result.verdict == "ok"


@pytest.mark.row("H-35")
def test_a_ring_deadlocks_since_each_surrogate_waits_for_the_next() -> None:
    result = explored("save", (1, 1, 1), edges=((0, 1), (1, 2), (2, 0)))
    assert result.verdict == "DEADLOCK"
    # and nothing goes round for ever: all that can happen has been seen
    assert result.whole


@pytest.mark.row("H-38", "H-44")
def test_a_side_that_is_done_before_its_surrogate_was_the_last_one_has_to_say_so() -> None:
    result = explored("save", (2, 2), Solutions(consensus="add"), forwards=False)
    assert result.verdict == "DEADLOCK"
    assert "F save L: saved; DEADLOCK(save, L) in G" in ends(result)


def test_of_two_saves_at_once_the_smaller_label_stays() -> None:
    result = explored("saves", (2, 2))
    assert result.verdict == "ok"
    assert ends(result) == {
        "F save K: saved; G save K: saved; G save L: not saved",  # at once
        "F save K: saved; F save L: saved; G save K: saved; G save L: saved",  # one after the other
    }


def test_two_saves_of_one_label_at_once_are_one() -> None:
    text = (
        "* <- initiate_federate_save: federate_save_begun(); federate_save_complete()\n"
        'f0: request_federation_save("L")\ng0: request_federation_save("L")'
    )
    result = explored(text, (2, 2))
    assert result.verdict == "ok"
    assert ends(result) == {"F save L: saved; G save L: saved"}


def test_a_federate_that_can_not_save_keeps_both_sides_from_it() -> None:
    text = (
        "* <- initiate_federate_save: federate_save_begun()\n"
        "f0 <- initiate_federate_save: federate_save_complete()\n"
        "g0 <- initiate_federate_save: federate_save_not_complete()\n"
        'f0: request_federation_save("L")'
    )
    result = explored(text, (1, 1))
    assert result.verdict == "ok"
    assert ends(result) == {"F save L: not saved; G save L: not saved"}


def test_a_save_that_fails_behind_a_point_that_is_over_on_one_side_fails_on_both() -> None:
    # Given a point that all achieve, and a save after it of which one side says that it could not while the other one
    # has not heard of the end of the point; Expect neither to wait for the other
    text = (
        'g0 <- announce_synchronization_point: synchronization_point_achieved("A"); request_federation_save("L")\n'
        "f0 <- initiate_federate_save: federate_save_begun(); federate_save_not_complete()\n"
        "g0 <- initiate_federate_save: federate_save_begun(); federate_save_complete()\n"
        'f0: register_federation_synchronization_point("A"); synchronization_point_achieved("A")'
    )
    for consensus in ("smart", "add"):
        result = explored(text, (1, 1), Solutions(consensus=consensus))
        assert result.verdict == "ok"
        assert all("DEADLOCK" not in each for each in ends(result))


@pytest.mark.parametrize("consensus", ["add", "smart"])
@pytest.mark.parametrize("leaving", ["f1", "g1"])
def test_a_federate_that_leaves_while_both_sides_save_ends_the_save_on_both(consensus: str, leaving: str) -> None:
    names = [each for each in ("f0", "f1", "g0", "g1") if each != leaving]
    text = "\n".join(
        [f"{each} <- initiate_federate_save: federate_save_begun(); federate_save_complete()" for each in names]
        + [f'{leaving} <- initiate_federate_save: resign_federation_execution("no_action")']
        + ['f0: request_federation_save("L")']
    )
    result = explored(text, (2, 2), Solutions(consensus=consensus))
    assert result.verdict == "ok"
    assert ends(result) == {"F save L: not saved; G save L: not saved"}


def test_what_can_not_be_restored_there_is_restored_nowhere() -> None:
    # Given a save of the one federation alone: there was no bridge yet
    result = explored(
        "* <- initiate_federate_save: federate_save_begun(); federate_save_complete()\n"
        "* <- initiate_federate_restore: federate_restore_complete()\n"
        'f0: request_federation_save("L")\n---\nf0: request_federation_restore("L")',
        (1, 1),
        late=True,
    )
    # Expect it not to be restored either: who is joined differs
    assert result.verdict == "ok"
    assert not any("restored" in each for each in ends(result))


# -- barrier, failure, addressing -----------------------------------------------------------------------------------


@pytest.mark.row("H-46", "H-47")
@pytest.mark.parametrize("consensus", ["add", "smart"])
def test_links_that_do_not_keep_the_order_need_the_barrier(consensus: str) -> None:
    ugly = explored("barrier", (2, 2), Solutions(consensus=consensus, barrier="ignore"), reordered=True)
    assert "DEADLOCK" in ugly.verdict
    good = explored("barrier", (2, 2), Solutions(consensus=consensus), reordered=True)
    assert good.verdict == "ok"
    assert len(good.terminals) == 1


@pytest.mark.row("H-48")
def test_without_the_barrier_what_comes_too_early_is_found() -> None:
    assert explored("barrier", (2, 2), Solutions(barrier="ignore")).verdict == "BARRIER"


@pytest.mark.row("H-50", "H-54")
@pytest.mark.parametrize("sizes", [(1, 1), pytest.param((2, 2), marks=pytest.mark.slow)])
def test_what_is_called_the_same_on_both_sides_is_renamed_or_told(sizes: tuple[int, ...]) -> None:
    renamed = explored("failure", sizes)
    assert renamed.verdict == "ok"
    assert any("F sync G:A: synchronized; G sync A: synchronized; G sync F:A" in each for each in ends(renamed))
    told = explored("failure", (1, 1), Solutions(consensus="add", failure="add"))
    assert told.verdict == "ok"
    # of two points of one label that of the first federation wins, as one RTI would have had one win
    assert ends(told) == {"F sync A: synchronized; G sync A: synchronized"}
    naive = explored("failure", sizes, Solutions(failure="naive"))
    assert naive.verdict == "DEADLOCK"


@pytest.mark.row("H-53")
def test_labels_that_do_not_say_where_they_come_from_stay_there() -> None:
    text = (
        "* <- announce_synchronization_point: synchronization_point_achieved($1)\n"
        'f0: register_federation_synchronization_point("F:A", b"")\n'
        'f0: register_federation_synchronization_point("B", b"")'
    )
    result = explored(text, (1, 1), Solutions(failure="restrict"))
    assert result.verdict == "ok"
    assert ends(result) == {"F sync B: synchronized; F sync F:A: synchronized; G sync F:A: synchronized"}


@pytest.mark.row("H-56")
def test_sets_have_members_on_both_sides() -> None:
    result = explored("sets", (2, 2), Solutions(consensus="add", addressing="add"))
    assert ends(result) == {"F sync A: synchronized; G sync A: synchronized"}
    # and those who are in no set are not asked: they would have to achieve it
    assert result.verdict == "ok"


# -- ownership ------------------------------------------------------------------------------------------------------


@pytest.mark.row("H-59", "H-70")
@pytest.mark.parametrize("sizes", [(2, 2), (2, 1, 1)])
@pytest.mark.parametrize("name", ["ownership", "divestiture"])
@pytest.mark.parametrize("policy", [Solutions(), Solutions(consensus="add", ownership="allow-add", unowned="add")])
def test_nothing_has_two_owners_whoever_wants_it_when(name: str, policy: Solutions, sizes: tuple[int, ...]) -> None:
    result = explored(name, sizes, policy)
    assert result.verdict == "ok"


def test_what_is_given_away_at_once_has_two_owners() -> None:
    result = explored("ownership", (2, 1), Solutions(ownership="allow-naive"))
    assert result.verdict == "DOUBLE_OWNER"
    assert "own" in result.violations[0].found.detail


OWNED = (
    "".join(
        f"{who}: {service}_object_class_attributes({THING}, ({X},))\n"
        for who in ("f0", "g0")
        for service in ("publish", "subscribe")
    )
    + f'f0: register_object_instance({THING}, "a")\n---\n'
)


def owner(result: Exploration, federation: int, federates: dict[int, str]) -> set[str]:
    """Who owns the attribute in the end, in a federation: a federate, "surrogate", or nobody."""
    found = set()
    for end in result.terminals:
        execution = end.system.executions[federation]
        handle = execution.instances.by_name["a"]
        who = execution.owned.owner(handle, X)
        found.add(federates.get(who, "surrogate") if who else "nobody")
    return found


@pytest.mark.row("H-58")
@pytest.mark.parametrize(
    ("policy", "reaction", "there"),
    [
        (Solutions(), "attribute_ownership_divestiture_if_wanted($1, $2)", "g0"),
        (Solutions(), "attribute_ownership_release_denied($1, $2)", "surrogate"),
        (Solutions(ownership="deny"), "attribute_ownership_divestiture_if_wanted($1, $2)", "surrogate"),
    ],
)
def test_an_attribute_goes_to_who_wants_it_if_its_owner_and_the_bridge_let_it(
    policy: Solutions, reaction: str, there: str
) -> None:
    text = (
        f'{OWNED}g0: attribute_ownership_acquisition(@a, ({X},), b"")\n'
        f"f0 <- request_attribute_ownership_release: {reaction}"
    )
    setup, system = built((1, 1), line(2), planned(policy), script.read(text), options=ADDED)
    result = search.explore(setup, system)
    federates = {handle: name for federation, name, handle in setup.federates if federation == 1}
    assert owner(result, 1, federates) == {there}
    federates = {handle: name for federation, name, handle in setup.federates if federation == 0}
    assert owner(result, 0, federates) == {"surrogate" if there == "g0" else "f0"}


def test_who_negotiates_is_asked_to_confirm_and_who_was_offered_it_beyond_the_bridge_has_it() -> None:
    text = (
        f'{OWNED}f0: negotiated_attribute_ownership_divestiture(@a, ({X},), b"")\n'
        "g0 <- request_attribute_ownership_assumption: attribute_ownership_acquisition_if_available($1, $2)\n"
        '* <- request_divestiture_confirmation: confirm_divestiture($1, $2, b"")'
    )
    setup, system = built((1, 1), line(2), planned(Solutions()), script.read(text), options=ADDED)
    result = search.explore(setup, system)
    assert result.verdict == "ok"
    handles = {handle: name for federation, name, handle in setup.federates if federation == 1}
    assert owner(result, 1, handles) == {"g0"}


def test_who_wants_it_no_more_leaves_it_on_the_side_it_came_from() -> None:
    text = (
        f'{OWNED}g0: attribute_ownership_acquisition(@a, ({X},), b"")\n'
        f"g0: cancel_attribute_ownership_acquisition(@a, ({X},))\n"
        "f0 <- request_attribute_ownership_release: attribute_ownership_divestiture_if_wanted($1, $2)"
    )
    setup, system = built((1, 1), line(2), planned(Solutions()), script.read(text), options=ADDED)
    result = search.explore(setup, system)
    assert result.verdict == "ok"
    for federation in (0, 1):
        handles = {handle: name for each, name, handle in setup.federates if each == federation}
        for end in result.terminals:
            here = end.system.executions[federation]
            who = here.owned.owner(here.instances.by_name["a"], X)
            mine = handles.get(who, "surrogate") if who else "nobody"
            assert mine in ({"f0", "nobody", "surrogate"} if federation == 0 else {"g0", "surrogate"})
    # and one of both sides is where it is from: not a surrogate on each
    for end in result.terminals:
        owners = [each.owned.owner(each.instances.by_name["a"], X) for each in end.system.executions]
        surrogates = setup.spans[0].surrogates
        assert [who == surrogate for who, surrogate in zip(owners, surrogates, strict=True)] != [True, True]


def test_an_attribute_goes_there_and_back_and_there_again() -> None:
    wanted, has = "request_attribute_ownership_release", "attribute_ownership_acquisition_notification"
    acquires = f'attribute_ownership_acquisition(@a, ({X},), b"why")\n'
    result = explored(
        f"{OWNED}* <- {wanted}: attribute_ownership_divestiture_if_wanted($1, $2)\n"
        f"g0: {acquires}g0 <- {has}\ng0 <- {wanted}\ng0: {acquires}g0 <- {has}\n"
        f"f0 <- {wanted}\nf0: {acquires}f0 <- {has}",
        (1, 1),
    )
    assert (result.verdict, ends(result)) == ("ok", {"nothing is pending"})
    # Expect whoever has it to hear the tag of who wants it
    asked = {
        each.arguments for state in result.ways for inbox in state.inboxes for each in inbox if each.name == wanted
    }
    assert {tag for _, _, tag in asked} == {b"why"}


def test_the_privilege_to_delete_goes_over_the_bridge_as_an_attribute_does() -> None:
    text = (
        f'{OWNED}g0: attribute_ownership_acquisition(@a, ({fom().privilege},), b"")\n'
        "g0 <- attribute_ownership_acquisition_notification\ng0: delete_object_instance(@a)\n"
        "f0 <- request_attribute_ownership_release: attribute_ownership_divestiture_if_wanted($1, $2)\n"
        "f0 <- remove_object_instance"
    )
    result = explored(text, (1, 1))
    assert (result.verdict, ends(result)) == ("ok", {"nothing is pending"})


def test_what_a_surrogate_has_given_away_it_does_not_update() -> None:
    policy = Solutions(ownership="allow-naive", unowned="ignore")
    text = f'{OWNED}g0: attribute_ownership_acquisition(@a, ({X},), b"")\n'
    text += f'f0: update_attribute_values(@a, (({X}, b"1"),), b"1")'
    setup, system = built((1, 1), line(2), planned(policy), script.read(text), options=ADDED)
    plan, done = setup.spans[0].plan, set()
    # Expect an update that goes over the bridge to be one there if, and only if, the surrogate has the attribute
    for state in search.explore(setup, system).ways:
        bridge = state.bridges[0]
        (twin,) = [each for (side, _), each in bridge.objects.items() if side == 1]
        for due in spans.due(plan, bridge):
            if due.what == "data" and bridge.links[due.side].data[due.place].kind == "update":
                calls = spans.forwarded(plan, bridge, due)[1]
                assert bool(calls) == (X in twin.held)
                done.add(bool(calls))
    assert done == {True, False}


# -- what federates see ---------------------------------------------------------------------------------------------

SEEN = f"""f0: publish_object_class_attributes({THING}, ({X},))
g0: subscribe_object_class_attributes({THING}, ({X},))
f0: register_object_instance({THING}, "a")
---
"""


@pytest.mark.row("H-60")
@pytest.mark.parametrize(("policy", "count"), [("smart", 1), ("ignore", 0)])
def test_a_value_that_nobody_owns_is_the_last_one_or_silence(policy: str, count: int) -> None:
    text = (
        SEEN.replace("---", f'f0: update_attribute_values(@a, (({X}, b"1"),), b"")\n'
                     f'f0: update_attribute_values(@a, (({X}, b"2"),), b"")\n'
                     f"f0: unconditional_attribute_ownership_divestiture(@a, ({X},))\n---")
        + f'g0: request_attribute_value_update(@a, ({X},), b"why")\n'
    )  # fmt: skip
    result = explored(text, (1, 1), Solutions(unowned=policy, ownership="deny"))
    assert ends(result) == {"nothing is pending"}
    told = {
        each.arguments[1:3]
        for state in result.ways
        for each in state.inboxes[1]
        if each.name == "reflect_attribute_values"
    }
    assert told == {(((X, b"2"),), b"why") for _ in range(count)}


LATE: Final = (
    SEEN
    + f"""f0 <- provide_attribute_value_update: update_attribute_values($1, (({X}, b"1"),), b"")
g0 <- reflect_attribute_values()
"""
)


@pytest.mark.parametrize(
    ("policy", "is_seen"),
    [(Solutions(), True), (Solutions(consensus="add"), True), (Solutions(info="ignore"), False)],
)
def test_values_from_before_the_bridge_are_asked_for(policy: Solutions, is_seen: bool) -> None:
    # Given an instance that is there before the bridge, and whoever owns it gives its values when asked
    setup, system = built((1, 1), line(2), planned(policy), script.read(LATE), options=ADDED, late=True)
    # Expect them reflected on the other side, or never
    for end in search.explore(setup, system).terminals:
        heard = {act.name for act in end.system.heard[1]}
        assert heard == ({"reflect_attribute_values"} if is_seen else set())


def test_what_nobody_owned_before_the_bridge_is_so_on_its_other_side() -> None:
    # Given an attribute that nobody owns before the bridge comes
    text = SEEN.replace("---", f"f0: unconditional_attribute_ownership_divestiture(@a, ({X},))\n---")
    policy = Solutions(consensus="add", unowned="add")
    setup, system = built((1, 1), line(2), planned(policy), script.read(text), options=ADDED, late=True)
    # Expect the RTI of the other side to know it however it came about
    for end in search.explore(setup, system).terminals:
        there = end.system.executions[1]
        instance = there.instances.by_name["a"]
        assert X in there.owned.declared[instance]


@pytest.mark.row("H-67")
def test_what_is_under_way_when_both_save_comes_again_after_a_restore() -> None:
    # Given a value in the bridge when a save begins, which is still there when both sides save
    text = f"""* <- initiate_federate_save: federate_save_begun(); federate_save_complete()
* <- initiate_federate_restore: federate_restore_complete()
{SEEN}f0: update_attribute_values(@a, (({X}, b"1"),), b"")
f0: request_federation_save("L")
"""
    setup, system = built((1, 1), line(2), planned(Solutions()), script.read(text), options=ADDED)
    result = search.explore(setup, system)
    assert result.verdict == "ok"
    # Expect the save to have the value in the federation, or in the bridge: never lost, never in both
    with_it = {len(end.system.bridges[0].kept["L"].links[0].data) for end in result.terminals}
    assert with_it <= {0, 1}
    kept = {len(each.bridges[0].kept["L"].links[0].data) for each in result.ways if "L" in each.bridges[0].kept}
    assert kept == {0, 1}


@pytest.mark.row("H-42", "H-68", "H-70")
def test_time_advances_on_both_sides_and_nothing_comes_late() -> None:
    for sizes in ((1, 1), (1, 1, 1)):
        result = explored("time", sizes)
        assert result.verdict == "ok"
        assert ends(result) == {"nothing is pending"}


# -- the matrix, and who looks at it --------------------------------------------------------------------------------


@pytest.mark.row("H-52", "H-55", "H-57", "H-61", "H-63", "H-64")
def test_there_are_24_cells_and_each_is_what_it_is_documented_to_be() -> None:
    assert len(CELLS) == 6 * len(SOLUTIONS)
    seen = set()
    for each in matrix((1, 1)):
        assert each.result.whole
        assert each.result.verdict == each.cell.expected(each.scenario.name), (each.cell, each.scenario.name)
        seen.add((each.cell.problem, each.cell.solution))
    assert {(cell.problem, cell.solution) for cell in CELLS} - seen <= {
        (cell.problem, cell.solution)
        for cell in CELLS
        if cell.policy is None or cell.problem in ("state", "information")
    }


@pytest.mark.row("H-64", "H-69")
@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 2), (1, 1, 1), (2, 2, 1)])
def test_each_cell_is_so_in_larger_federations_as_well(sizes: tuple[int, ...]) -> None:
    for each in matrix(sizes, most=3_000_000):
        assert each.result.whole
        assert each.result.verdict == each.cell.expected(each.scenario.name), (each.cell, each.scenario.name)


@pytest.mark.row("H-65")
@pytest.mark.parametrize(
    ("problem", "solution"), [("consensus", "naive"), ("consensus", "ignore"), ("ownership", "allow-naive")]
)
def test_what_may_end_differently_or_have_two_owners_has_to_be_asked_for_twice(problem: str, solution: str) -> None:
    # Given a bridge's file with such a solution; Expect it to be refused, with what to add to have it all the same
    with pytest.raises(ConfigurationError, match=f"{problem} = '{solution}'") as refused:
        policy.read({problem: solution})
    assert "override = true" in refused.value.hint
    assert policy.read({problem: solution, "override": True}) == Solutions()._replace(**{problem: solution})


def test_a_chart_shows_the_shortest_way_to_what_is_wrong(tmp_path: Path) -> None:
    # Given a cell with two owners
    [cell] = [each for each in CELLS if each.solution == "ignore" and "ownership" in each.scenarios]
    assert cell.policy is not None
    scene, system = prepared(SCENARIOS["ownership"], cell.policy, (2, 1))
    found = Explored(cell, SCENARIOS["ownership"], (2, 1), scene, system, search.explore(scene, system))
    # Expect the way to it to be told, drawn and written
    what, told = report.shown(found)
    assert what.startswith("DOUBLE_OWNER: ")
    drawn = chart.text(told)
    assert drawn.splitlines()[0].split() == ["s_F", "in", "G", "RTI", "G", "g0"]
    assert "attribute_ownership_divestiture_if_wanted" in drawn.splitlines()[-1]
    picture = ET.fromstring(chart.svg(told))
    texts = [each.text for each in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == len(told) + len(chart.parties(told))
    page = report.write(tmp_path / "new", [found]).read_text()
    assert "DOUBLE_OWNER" in page
    assert "no rule for federates prevents the race" in page


@pytest.mark.row("H-36")
def test_the_command_says_what_it_found(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["hla", "explore", "--federates", "1,1", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["explored"]
    assert (row["verdict"], row["scenario"], row["whole"]) == ("ok", "save", True)
    assert run(["hla", "explore", "--federates", "1,1", "--set", "consensus=naive"]) == 1
    assert "DEADLOCK(save, L) in F" in capsys.readouterr().out
    own = tmp_path / "own.script"
    own.write_text('f0: request_federation_save("x")\n')
    assert run(["hla", "explore", "--federates", "1", "--script", str(own)]) == 0
    monkeypatch.setattr(scenarios, "CELLS", CELLS[:6])  # all of them are explored above
    assert run(["hla", "explore", "--matrix", "--federates", "1,1", "--report", str(tmp_path)]) == 0
    assert (tmp_path / "bridges.html").exists()


@pytest.mark.row("H-49", "H-64")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--federates", "x"], "--federates 'x'"),
        (["--federates", "0,0"], "one federate at least"),
        (["--policy", "number.toml"], "policy = 5 is not a table"),
        (["--federates", "1,1", "--bridges", "0-7"], "--bridges '0-7'"),
        (["--scenario", "sav"], "Did you mean save?"),
        (["--set", "consensus"], "--set 'consensus'"),
        (["--set", "consensus=smrt"], "Did you mean smart?"),
        (["--set", "barrier=restrict"], "no restriction of federates prevents the race"),
        (["--script", "nowhere"], "No such file"),
    ],
)
def test_what_can_not_be_explored_is_told_in_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "number.toml").write_text("policy = 5\n")
    assert run(["hla", "explore", *arguments]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["nonsense", "f0: service(", "f0: s(__import__('os'))", "f0: s(1", "f9: query_lits()", "x y: z()"]
)
def test_scripts_are_data_and_what_is_none_is_told_with_its_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"line 1 of the script|has a federate f9"):
        built((1, 1), line(2), planned(Solutions()), script.read(text))
