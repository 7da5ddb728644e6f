"""Saves at a logical time: nothing before that time can come any more when one begins, and nothing is lost by it."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.hla import exceptions as exc


@pytest.fixture
def pair(rig: Any) -> Any:
    """Two federates that regulate (lookahead 1) and are constrained; each sends radio to the other."""
    it = rig("a", "b")
    for each in "ab":
        it.call(each, "publish_interaction_class", it.radio)
        it.call(each, "subscribe_interaction_class", it.radio)
        it.call(each, "enable_time_regulation", 1.0)
        it.call(each, "enable_time_constrained")
    it.forget()
    return it


def save(it: Any) -> None:
    for each in "ab":
        it.call(each, "federate_save_begun")
    for each in "ab":
        it.call(each, "federate_save_complete")


def restore(it: Any, label: str) -> None:
    it.call("a", "request_federation_restore", label)
    for each in "ab":
        it.call(each, "federate_restore_complete")


def test_a_save_at_a_time_comes_behind_all_that_is_before_it(pair: Any) -> None:
    # Given a message before the time of a save and one behind it
    pair.call("a", "request_federation_save", "noon", 12.0)
    for time in (11.0, 13.0):
        pair.call("a", "send_interaction", pair.radio, (), b"%d" % time, time)
    assert pair.heard("a") == pair.heard("b") == []
    # When both ask for more than that time; Expect the one message, the save, and no grant
    pair.call("a", "time_advance_request", 20.0)
    pair.call("b", "next_message_request", 20.0)
    log = pair.heard("b")
    assert [each[0] for each in log] == ["receive_interaction", "time_advance_grant"]
    pair.call("b", "next_message_request", 20.0)
    assert pair.heard("a") == pair.heard("b") == [("initiate_federate_save", "noon", 12.0)]
    # When it is done; Expect time to go on
    save(pair)
    assert [each[0] for each in pair.heard("b")] == ["federation_saved", "receive_interaction", "time_advance_grant"]


def test_who_waited_when_it_was_saved_is_granted_its_time_after_a_restore(pair: Any) -> None:
    # Given a save that held both back from 20
    pair.call("a", "request_federation_save", "noon", 12.0)
    for each in "ab":
        pair.call(each, "time_advance_request", 20.0)
    save(pair)
    for each in "ab":
        assert pair.heard(each)[-1] == ("time_advance_grant", 20.0)
        pair.call(each, "time_advance_request", 30.0)
    pair.forget()
    # When it is restored; Expect both to be granted 20 again, behind the restore
    restore(pair, "noon")
    for each in "ab":
        assert pair.heard(each)[-2:] == [("federation_restored", "noon"), ("time_advance_grant", 20.0)]
        assert pair.call(each, "query_logical_time") == 20.0


def test_what_waits_for_its_time_is_saved(pair: Any) -> None:
    # Given a message that waits; When it is saved, delivered, and restored; Expect it to come a second time
    pair.call("a", "send_interaction", pair.radio, (), b"later", 5.0)
    pair.call("b", "request_federation_save", "early")
    save(pair)
    for _ in range(2):
        pair.forget()
        for each in "ab":
            pair.call(each, "time_advance_request", 6.0)
        assert [each[0] for each in pair.heard("b")] == ["receive_interaction", "time_advance_grant"]
        restore(pair, "early")
        assert pair.call("b", "query_lits") == 1.0


def test_who_resigns_while_others_restore_holds_nobody_back(pair: Any) -> None:
    # Given one that waits for the other; When that leaves in a restore; Expect the grant when the restore is over
    pair.call("a", "request_federation_save", "early")
    save(pair)
    pair.call("b", "time_advance_request", 6.0)
    pair.call("a", "request_federation_restore", "early")
    pair.forget()
    pair.call("a", "resign_federation_execution", "no_action")
    pair.call("b", "federate_restore_not_complete")
    assert pair.heard("b") == [("federation_not_restored", "early", "RESIGNED"), ("time_advance_grant", 6.0)]


@pytest.mark.parametrize("ends", ["federation_restored", "federation_not_restored"])
def test_a_save_that_waits_for_its_time_outlives_a_restore_that_fails(pair: Any, ends: str) -> None:
    # Given a save at 5, and a restore of an earlier one
    pair.call("a", "request_federation_save", "early")
    save(pair)
    pair.call("a", "request_federation_save", "noon", 5.0)
    pair.call("b", "request_federation_restore", "early")
    # When that is done, or given up; Expect the save to be asked for no more, or to begin at its time
    if ends == "federation_restored":
        for each in "ab":
            pair.call(each, "federate_restore_complete")
    else:
        pair.call("b", "abort_federation_restore")
    assert pair.heard("a")[-1][0] == ends
    for each in "ab":
        pair.call(each, "time_advance_request", 9.0)
    is_saved = pair.heard("a")[-1] == ("initiate_federate_save", "noon", 5.0)
    assert is_saved == (ends == "federation_not_restored")


def test_the_time_of_a_save_is_not_past(pair: Any) -> None:
    before = pair.execution
    with pytest.raises(exc.LogicalTimeAlreadyPassed):
        pair.call("a", "request_federation_save", "late", 0.5)
    pair.call("a", "disable_time_regulation")
    with pytest.raises(exc.FederateUnableToUseTime):
        pair.call("a", "request_federation_save", "late", 5.0)
    assert pair.execution.saving == before.saving


def test_a_request_for_a_time_that_crosses_the_beginning_of_a_save_is_granted_behind_it(pair: Any) -> None:
    # Given a save of which a federate has not been told yet, and a message that waits until it asks for a time
    pair.call("b", "send_interaction", pair.radio, (), b"held")
    pair.call("b", "request_federation_save", "early")
    pair.forget()
    # When it asks for a time and waits for no answer; Expect nothing to come while it saves
    pair.send("a", "time_advance_request", 6.0)
    assert pair.heard("a") == []
    # Expect one that is waited for, and one behind what the federate knows of the save, to be refused
    with pytest.raises(exc.SaveInProgress):
        pair.call("b", "time_advance_request", 6.0)
    pair.call("b", "federate_save_begun")
    with pytest.raises(exc.SaveInProgress):
        pair.send("b", "time_advance_request", 6.0)
    # When all have saved and the other one asks, too; Expect what waited, and the time
    for each in ("a", "a", "b"):
        state = pair.execution.saving.states[pair.handles[each]]
        pair.call(each, "federate_save_begun" if state == "instructed" else "federate_save_complete")
    assert [each[0] for each in pair.heard("a")] == ["federation_saved", "receive_interaction"]
    pair.call("b", "time_advance_request", 6.0)
    assert pair.heard("a") == [("time_advance_grant", 6.0)]
    # Expect the same when the save is restored
    pair.call("b", "request_federation_restore", "early")
    for each in "ab":
        pair.call(each, "federate_restore_complete")
    assert [each[0] for each in pair.heard("a")][-2:] == ["federation_restored", "receive_interaction"]
    pair.call("b", "time_advance_request", 6.0)
    assert pair.heard("a") == [("time_advance_grant", 6.0)]
