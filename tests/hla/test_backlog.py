"""What waits in the order of time stamps, however much it is; and what a clock keeps at most."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest

from jbi_pubsub.hla import backlog, clock
from jbi_pubsub.hla import exceptions as exc


class Item(NamedTuple):
    time: float
    number: int


def test_items_come_by_their_times_and_in_the_order_in_which_they_were_put() -> None:
    # Given far more items than one chunk holds, of few times; When they are put in any order
    chance = random.Random(1)
    put: list[Item] = []
    whole: backlog.Backlog[Item] = ()
    for number in range(5 * backlog.CHUNK):
        put.append(Item(float(chance.randrange(20)), number))
        whole = backlog.put(whole, put[-1])
    # Expect what sorting them gives, in chunks none of which is empty or too large
    assert list(backlog.items(whole)) == sorted(put)
    assert all(0 < len(chunk) <= backlog.CHUNK for chunk in whole)
    # and the same when it is taken apart at any time
    for time in (-1.0, 0.0, 7.0, 7.5, 19.0, 30.0):
        taken, rest = backlog.split(whole, time)
        assert list(taken) == [each for each in sorted(put) if each.time <= time]
        assert list(backlog.items(rest)) == [each for each in sorted(put) if each.time > time]
        assert all(rest)


def test_what_is_taken_out_leaves_the_rest_as_it_was() -> None:
    whole: backlog.Backlog[Item] = ()
    for number in range(2 * backlog.CHUNK):
        whole = backlog.put(whole, Item(float(number), number))
    assert backlog.without(whole, lambda each: each.number < 0) is whole
    left = backlog.without(whole, lambda each: each.number < backlog.CHUNK or each.number % 2 == 0)
    assert [each.number for each in backlog.items(left)] == list(range(backlog.CHUNK + 1, 2 * backlog.CHUNK, 2))
    assert all(left)


def test_short_backlogs_that_hold_the_same_are_equal() -> None:
    one: backlog.Backlog[Item] = ()
    for number in range(backlog.CHUNK):
        one = backlog.put(one, Item(float(number), number))
    other: backlog.Backlog[Item] = ()
    for number in reversed(range(backlog.CHUNK)):
        other = backlog.put(other, Item(float(number), number))
    assert one == other
    assert hash(one) == hash(other)


# -- what a clock keeps ---------------------------------------------------------------------------------------------


@pytest.fixture
def pair(rig: Any) -> Any:
    """A regulating federate a, and a constrained one that hears its radio."""
    it = rig("a", "b")
    it.call("a", "publish_interaction_class", it.radio)
    it.call("b", "subscribe_interaction_class", it.radio)
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    it.forget()
    return it


def test_more_messages_than_may_wait_are_refused(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a federate that does not advance; When it is sent more than may wait; Expect who sends to be refused
    monkeypatch.setattr(clock, "WAITING_MOST", 2 * backlog.CHUNK)
    for _ in range(2 * backlog.CHUNK):
        pair.call("a", "send_interaction", pair.radio, (), b"", 5.0)
    before = pair.execution
    with pytest.raises(exc.RtiInternalError, match="too many"):
        pair.call("a", "send_interaction", pair.radio, (), b"", 5.0)
    assert pair.execution is before
    # and nothing to be lost
    pair.call("a", "time_advance_request", 9.0)
    pair.call("b", "time_advance_request", 9.0)
    assert len(pair.heard("b")) == 2 * backlog.CHUNK + 1


def test_only_the_latest_messages_can_be_retracted(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SENT_MOST", backlog.CHUNK)
    handles = [pair.call("a", "send_interaction", pair.radio, (), b"", 5.0 + n) for n in range(backlog.CHUNK + 1)]
    with pytest.raises(exc.MessageCanNoLongerBeRetracted):
        pair.call("a", "retract", handles[0])
    pair.call("a", "retract", handles[-1])
    # and none after an advance, or when the federate regulates no more: nothing is kept of it then
    pair.call("a", "time_advance_request", 10_000.0)
    assert not pair.execution.clock.sent
    handle = pair.call("a", "send_interaction", pair.radio, (), b"", 20_000.0)
    pair.call("a", "disable_time_regulation")
    assert not pair.execution.clock.sent
    pair.call("a", "enable_time_regulation", 1.0)
    with pytest.raises(exc.MessageCanNoLongerBeRetracted):
        pair.call("a", "retract", handle)


def test_messages_in_receive_order_wait_up_to_a_number(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a constrained federate that asks for no time; When it is sent one more than may wait; Expect all, in order
    monkeypatch.setattr(clock, "HELD_MOST", 3)
    for number in range(3):
        pair.call("a", "send_interaction", pair.radio, (), b"%d" % number)
    assert pair.heard("b") == []
    pair.call("a", "send_interaction", pair.radio, (), b"3")
    assert [each[3] for each in pair.heard("b")] == [b"0", b"1", b"2", b"3"]


def test_who_leaves_is_forgotten(pair: Any) -> None:
    pair.call("a", "send_interaction", pair.radio, (), b"", 5.0)
    pair.call("a", "send_interaction", pair.radio, (), b"")
    for each in "ba":
        pair.call(each, "resign_federation_execution", "no_action")
    assert pair.execution.clock == clock.Clock()


# -- promises -------------------------------------------------------------------------------------------------------


def test_who_asks_for_its_next_message_sends_nothing_before_what_it_asked_for(pair: Any) -> None:
    # Given a regulating and constrained federate that asks for its next message up to 10, another one at 0
    pair.call("b", "enable_time_regulation", 1.0)
    pair.call("a", "enable_time_constrained")
    pair.call("a", "next_message_request", 10.0)
    # When it sends for less than 11; Expect that to be refused: others rely on it
    with pytest.raises(exc.InvalidLogicalTime):
        pair.call("a", "send_interaction", pair.radio, (), b"", 5.0)
    pair.call("a", "send_interaction", pair.radio, (), b"", 11.0)


def test_without_lookahead_what_was_promised_behind_a_time_stays_so(rig: Any) -> None:
    # Given a federate without lookahead that was granted 3 by TAR: it sends behind 3 alone
    it = rig("a", "b")
    it.call("a", "publish_interaction_class", it.radio)
    it.call("a", "enable_time_regulation", 0.0)
    it.call("b", "enable_time_constrained")
    it.call("a", "time_advance_request", 3.0)
    it.call("b", "time_advance_request", 3.0)
    assert it.heard("b")[-1] == ("time_advance_grant", 3.0)
    # When it asks for 3 again by TARA; Expect nothing to be sent at 3, which others were granted
    it.call("a", "time_advance_request_available", 3.0)
    with pytest.raises(exc.InvalidLogicalTime):
        it.call("a", "send_interaction", it.radio, (), b"", 3.0)


def test_who_is_not_yet_constrained_gets_messages_as_they_come(pair: Any) -> None:
    # Given a federate at 10 that asks to be constrained, when messages for 5 may still come
    pair.join("late")
    pair.call("late", "subscribe_interaction_class", pair.radio)
    pair.call("late", "time_advance_request", 10.0)
    pair.call("late", "enable_time_constrained")
    pair.forget()
    # When one comes; Expect it at once, and not when the federate is constrained: it would be in its past
    pair.call("a", "send_interaction", pair.radio, (), b"", 5.0)
    assert [each[0] for each in pair.heard("late")] == ["receive_interaction"]
    with pytest.raises(exc.RequestForTimeConstrainedPending):
        pair.call("late", "time_advance_request", 11.0)
    with pytest.raises(exc.TimeConstrainedIsNotEnabled):
        pair.call("late", "disable_time_constrained")
    pair.call("a", "time_advance_request", 20.0)
    assert pair.heard("late") == [("time_constrained_enabled", 10.0)]
