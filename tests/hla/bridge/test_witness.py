"""Federates of an exploration know what they were told: what one RTI would never have told them is found."""

from __future__ import annotations

from typing import Any

import pytest
from immutables import Map

from jbi_pubsub.hla.bridge.policy import Solutions
from jbi_pubsub.hla.execution import Callback, RtiOptions
from jbi_pubsub.hla.exploration import script, search, witness
from jbi_pubsub.hla.exploration.scenarios import SCENARIOS, line, matrix, prepared
from jbi_pubsub.hla.exploration.search import Exploration
from jbi_pubsub.hla.exploration.system import built, fom, planned

THING = fom().object_class("Thing")
X = fom().attribute(THING, "x")
SAVES = """* <- initiate_federate_save: federate_save_begun(); federate_save_complete()
* <- initiate_federate_restore: federate_restore_complete()
"""
ACHIEVES = "* <- announce_synchronization_point: synchronization_point_achieved($1)\n"
SEEN = f"""f0: publish_object_class_attributes({THING}, ({X},))
g0: subscribe_object_class_attributes({THING}, ({X},))
f0: register_object_instance({THING}, "a")
"""
AGREED = (Solutions(), Solutions(consensus="add", ownership="allow-add"))


def explored(text: str, policy: Solutions, *, couples: bool = False, **more: Any) -> Exploration:
    """One federate on each side."""
    plan, options = planned(policy, couples=couples), RtiOptions(adds=True, **more)
    return search.explore(*built((1, 1), line(2), plan, script.read(text), options=options))


def ends(result: Exploration) -> set[str]:
    """How it can end."""
    return {each.outcome for each in result.terminals}


# -- what must not be -----------------------------------------------------------------------------------------------


def _message(tag: bytes) -> Callback:
    return Callback("receive_interaction", (1, (), tag, None, 0))


def _sent(*tags: bytes) -> list[witness.Memory]:
    """Three federates, the first of which has sent messages to the others."""
    memories: list[witness.Memory] = [Map()] * 3
    for tag in tags:
        witness.done(memories, 0, "send_interaction", (1, (), tag), (1, 2), "")
    return memories


def _told(memories: list[witness.Memory], place: int, *callbacks: Callback) -> set[str]:
    return {what for each in callbacks for what, _ in witness.told(memories, place, each)}


POINT = Callback("announce_synchronization_point", ("A", b"a"))
OVER = Callback("federation_synchronized", ("A",))


def test_a_message_is_told_once_in_its_order_and_to_all() -> None:
    assert _told(_sent(b"1", b"2"), 1, _message(b"1"), _message(b"2")) == set()
    assert _told(_sent(b"1"), 1, _message(b"1"), _message(b"1")) == {"TWICE"}
    assert _told(_sent(b"1", b"2"), 1, _message(b"2"), _message(b"1")) == {"DISORDER"}
    memories = _sent(b"1")
    assert _told(memories, 1, _message(b"1")) == set()
    assert [what for what, _ in witness.missing(tuple(memories), frozenset((0, 1, 2)))] == ["LOST"]
    assert list(witness.missing(tuple(memories), frozenset((0, 1)))) == []  # who has left is told nothing


def test_a_message_is_told_on_its_side_of_a_point() -> None:
    # Given a message that is sent before its sender achieves a point: the others hear it before the end
    memories = [Map()] * 3
    assert _told(memories, 0, POINT) | _told(memories, 1, POINT) == set()
    witness.done(memories, 0, "send_interaction", (1, (), b"1"), (1,), "")
    for place in (0, 1):
        witness.done(memories, place, "synchronization_point_achieved", ("A",), (), "")
    assert _told(memories, 0, OVER) == set()
    late = list(memories)
    assert _told(late, 1, OVER, _message(b"1")) == {"LATE"}
    # and one that is sent behind it they hear behind it
    witness.done(memories, 0, "send_interaction", (1, (), b"2"), (1,), "")
    assert _told(memories, 1, _message(b"1"), _message(b"2")) == {"EARLY"}


def test_a_point_is_over_when_all_have_achieved_it_and_once() -> None:
    memories = [Map()] * 3
    assert _told(memories, 0, POINT) | _told(memories, 1, POINT) == set()
    witness.done(memories, 0, "synchronization_point_achieved", ("A",), (), "")
    assert _told(memories, 0, OVER) == {"SOON"}
    assert _told(memories, 0, OVER) == {"TWICE"}
    assert _told(memories, 1, POINT) == {"TWICE"}


# -- scenarios ------------------------------------------------------------------------------------------------------


@pytest.mark.row("H-69")
@pytest.mark.parametrize("sizes", [(1, 1), (2, 2)])
@pytest.mark.parametrize("policy", AGREED, ids=["smart", "add"])
@pytest.mark.parametrize("name", ["fails", "leaves", "order", "undone"])
def test_federates_are_told_what_one_rti_tells_them(name: str, policy: Solutions, sizes: tuple[int, ...]) -> None:
    result = search.explore(*prepared(SCENARIOS[name], policy, sizes))
    assert (result.verdict, result.whole) == ("ok", True)
    assert not any(bridge.rounds for end in result.terminals for bridge in end.system.bridges)


@pytest.mark.parametrize("policy", AGREED, ids=["smart", "add"])
def test_who_joins_a_side_that_is_done_may_be_late_for_a_point_and_nothing_worse(policy: Solutions) -> None:
    result = search.explore(*prepared(SCENARIOS["joins"], policy, (1, 1)))
    assert result.verdict == "SOON"
    assert ends(result) == {"F sync A: synchronized", "F sync A: synchronized; G sync A: synchronized"}


@pytest.mark.row("H-67")
@pytest.mark.parametrize("policy", AGREED, ids=["smart", "add"])
def test_a_message_under_way_at_a_save_is_told_again_after_the_restore(policy: Solutions) -> None:
    result = explored(
        f'{SAVES}{SEEN}---\nf0: update_attribute_values(@a, (({X}, b"1"),), b"1")\nf0: request_federation_save("L")\n'
        'f0 <- federation_saved("L")\nf0: request_federation_restore("L")',
        policy,
    )
    assert result.verdict == "ok"
    assert all("F restore L: restored" in each for each in ends(result))


@pytest.mark.parametrize("policy", AGREED, ids=["smart", "add"])
def test_a_point_under_way_at_a_save_is_one_after_the_restore(policy: Solutions) -> None:
    # Given that who is announced it achieves it, again where it is announced again
    told = 'g0 <- announce_synchronization_point("A")\ng0: synchronization_point_achieved("A")\n'
    result = explored(
        f'{SAVES}* <- federation_restored: synchronization_point_achieved("A")\n{told}{told}'
        'f0: register_federation_synchronization_point("A", b"")\nf0 <- announce_synchronization_point("A")\n'
        'f0: synchronization_point_achieved("A")\nf0: request_federation_save("L")\n'
        'f0 <- federation_saved("L")\nf0: request_federation_restore("L")\nf0 <- federation_restored("L")',
        policy,
    )
    assert result.verdict == "ok"
    assert all("F sync A: synchronized" in each and "G sync A: synchronized" in each for each in ends(result))


@pytest.mark.parametrize("policy", AGREED, ids=["smart", "add"])
def test_a_point_that_waits_for_the_end_of_a_save_is_one_after_the_restore(policy: Solutions) -> None:
    # Given a save that begins on the other side, where the point is announced behind it, and again after the restore
    told = 'g0 <- announce_synchronization_point("A")\ng0: synchronization_point_achieved("A")\n'
    result = explored(
        f'{SAVES}f0 <- federation_restored: synchronization_point_achieved("A")\n'
        'f0: register_federation_synchronization_point("A", b"")\nf0 <- announce_synchronization_point("A")\n'
        'f0: synchronization_point_achieved("A")\ng0: request_federation_save("L")\ng0 <- federation_saved("L")\n'
        f'g0: request_federation_restore("L")\ng0 <- federation_restored("L")\n{told}{told}',
        policy,
    )
    # Expect it to be over on both sides, or, as it began behind the save, on none
    assert result.verdict == "ok"
    assert len({side for end in ends(result) for side in "FG" if f"{side} sync A: synchronized" in end}) == 2


def test_the_last_value_after_a_restore_is_the_one_that_was_saved() -> None:
    result = explored(
        f'{SAVES}{SEEN}f0: update_attribute_values(@a, (({X}, b"1"),), b"1")\nf0: request_federation_save("L")\n---\n'
        f'f0: update_attribute_values(@a, (({X}, b"2"),), b"2")\nf0: request_federation_restore("L")\n'
        f'f0 <- federation_restored("L")\nf0: unconditional_attribute_ownership_divestiture(@a, ({X},))\n'
        f'g0 <- federation_restored("L")\ng0: request_attribute_value_update(@a, ({X},), b"")\n'
        "g0 <- reflect_attribute_values()",
        Solutions(ownership="deny"),
    )
    assert result.verdict == "ok"


def test_a_point_that_is_renamed_keeps_its_tag() -> None:
    result = explored(
        f'{ACHIEVES}f0: register_federation_synchronization_point("A", b"f")\n'
        'g0: register_federation_synchronization_point("A", b"g")',
        Solutions(),
    )
    assert result.verdict == "ok"
    # Expect both sides to be told the same tags: both, or of one point if the other one was refused
    told = {
        tuple(frozenset(each[1] for each in memory if each[0] == "over") for memory in end.system.memories)
        for end in result.terminals
    }
    assert (frozenset((b"f", b"g")),) * 2 in told
    assert all(one == other for one, other in told)


def test_of_two_points_that_wait_for_each_other_one_is_for_all() -> None:
    result = explored(
        f'{ACHIEVES}f0: register_federation_synchronization_point("A", b"")\n'
        'g0: register_federation_synchronization_point("B", b"")',
        Solutions(),
        one_at_a_time=True,
    )
    both = [{f"{side} sync {label}: synchronized" for side in "FG"} for label in "AB"]
    assert all(any(each <= set(end.split("; ")) for each in both) for end in ends(result))
    # it is the smaller one, where each side has begun with its own
    assert all("G sync A: synchronized" in end for end in ends(result) if "F sync A: synchronized" in end)


@pytest.mark.parametrize("policy", AGREED, ids=["smart", "add"])
def test_values_of_an_instance_keep_their_order_and_none_is_lost_whenever_somebody_saves(policy: Solutions) -> None:
    result = explored(
        f'{SAVES}{SEEN}---\nf0: update_attribute_values(@a, (({X}, b"1"),), b"1")\n'
        f'f0: update_attribute_values(@a, (({X}, b"2"),), b"2")\ng0: request_federation_save("L")',
        policy,
    )
    assert result.verdict == "ok"


def test_what_both_sides_call_the_same_both_discover() -> None:
    result = explored(
        "".join(f"{who}: {verb}_object_class_attributes({THING}, ({X},))\n" for who in ("f0", "g0")
                for verb in ("publish", "subscribe"))
        + f'---\nf0: register_object_instance({THING}, "a")\ng0: register_object_instance({THING}, "a")',
        Solutions(),
    )  # fmt: skip
    assert ends(result) == {"nothing is pending"}
    # unless the name was taken there before the second registered: then that was refused
    there = {tuple(len(each.instances.by_handle) for each in state.executions) for state in result.ways}
    assert there == {(0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (1, 2), (2, 2)}


def test_time_goes_on_behind_a_save() -> None:
    result = explored(
        f"""{SAVES}f0: enable_time_regulation(1.0); enable_time_constrained()
g0: enable_time_regulation(1.0); enable_time_constrained()
---
g0: time_advance_request(5.0)
f0: request_federation_save("L")
f0 <- federation_saved("L")
f0: time_advance_request(5.0)
f0 <- time_advance_grant(5.0)
g0 <- time_advance_grant(5.0)
""",
        Solutions(),
        couples=True,
    )
    assert ends(result) == {"F save L: saved; G save L: saved"}


def test_time_goes_on_behind_a_save_that_held_back_a_grant() -> None:
    # Given a save at 8 for which the one side waits, When the other one goes beyond that, and further
    result = explored(
        f"""{SAVES}f0: enable_time_constrained(); enable_time_regulation(1.0)
f0: request_federation_save("L", 8.0); disable_time_regulation()
g0: enable_time_regulation(1.0); enable_time_constrained()
---
g0: time_advance_request(9.0)
g0 <- time_advance_grant(9.0)
g0: time_advance_request(19.0)
g0 <- time_advance_grant(19.0)
f0: time_advance_request(15.0)
f0 <- time_advance_grant(15.0)
""",
        Solutions(),
        couples=True,
    )
    # Expect the one to get there, too, when the save is over: the surrogate is granted its time then, and asks for more
    assert ends(result) == {"F save L: saved; G save L: saved"}


def test_a_message_that_is_taken_back_is_told_to_nobody_beyond() -> None:
    call = fom().interaction_class("Call")
    first = f"""f0: publish_interaction_class({call}); enable_time_regulation(1.0); enable_time_constrained()
g0: subscribe_interaction_class({call}); enable_time_regulation(1.0); enable_time_constrained()
---
"""
    _, begun = built((1, 1), line(2), planned(Solutions(), couples=True), script.read(first))
    handle = begun.executions[0].handles + 1
    result = explored(
        f"""{first}f0: send_interaction({call}, (), b"1", 3.0)
f0: retract({handle})
f0: time_advance_request(5.0)
g0: time_advance_request(5.0)
f0 <- time_advance_grant(5.0)
g0 <- time_advance_grant(5.0)
""",
        Solutions(),
        couples=True,
    )
    assert ends(result) == {"nothing is pending"}
    told = {each.name for state in result.ways for each in state.inboxes[1]}
    assert "time_advance_grant" in told
    assert "receive_interaction" not in told


@pytest.mark.parametrize("sizes", [(1, 0), (2, 0), (1, 0, 1)])
def test_a_federation_may_have_nobody_but_surrogates(sizes: tuple[int, ...]) -> None:
    seen = set()
    for each in matrix(sizes):
        assert each.result.verdict == each.cell.expected(each.scenario.name), each.scenario.name
        seen.add(each.scenario.name)
    assert {"save", "sync", "barrier"} <= seen
