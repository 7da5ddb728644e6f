"""Time management: nobody gets a message in its past, nobody waits for ever."""

from __future__ import annotations

import math
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

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


def send(it: Any, name: str, text: bytes, time: float) -> int:
    handle: int = it.call(name, "send_interaction", it.radio, ((it.text, text),), b"", time)
    return handle


def texts(log: list[tuple[Any, ...]]) -> list[Any]:
    """Texts of messages, and granted times."""
    return [each[2][0][1] if each[0] == "receive_interaction" else each[1] for each in log]


@pytest.mark.row("H-23")
def test_a_time_is_granted_when_all_others_are_beyond_it(pair: Any) -> None:
    # Given two federates at 0 with lookahead 1; When one asks for 1; Expect it to wait for the other
    pair.call("a", "time_advance_request", 1.0)
    assert pair.heard("a") == []
    with pytest.raises(exc.InTimeAdvancingState):
        pair.call("a", "time_advance_request", 2.0)
    # When the other one asks for 0.5, it promises 1.5
    pair.call("b", "time_advance_request", 0.5)
    assert pair.heard("a") == [("time_advance_grant", 1.0)]
    assert pair.heard("b") == [("time_advance_grant", 0.5)]
    with pytest.raises(exc.LogicalTimeAlreadyPassed):
        pair.call("a", "time_advance_request", 0.9)


@pytest.mark.row("H-23")
def test_tara_is_granted_at_the_bound_itself(pair: Any) -> None:
    pair.call("a", "time_advance_request", 1.0)
    assert pair.heard("a") == []
    pair.call("b", "time_advance_request_available", 1.0)
    assert pair.heard("b") == [("time_advance_grant", 1.0)]


def test_nmra_is_granted_at_a_message_at_the_bound_itself(pair: Any) -> None:
    send(pair, "a", b"1", 1.0)
    pair.call("b", "next_message_request_available", 9.0)
    assert texts(pair.heard("b")) == [b"1", 1.0]


@pytest.mark.row("H-24")
def test_messages_come_in_the_order_of_their_time_stamps(pair: Any) -> None:
    # Given messages that are sent in another order, two for the same time
    for time, text in ((3.0, b"3"), (1.0, b"1"), (2.0, b"2a"), (2.0, b"2b")):
        send(pair, "a", text, time)
    # When the receiver advances; Expect each before the grant of its time, in order
    pair.call("a", "time_advance_request", 10.0)
    pair.call("b", "time_advance_request", 2.0)
    assert texts(pair.heard("b")) == [b"1", b"2a", b"2b", 2.0]
    pair.call("b", "time_advance_request", 3.0)
    assert texts(pair.heard("b")) == [b"3", 3.0]


def test_nobody_sends_below_its_time_and_lookahead(pair: Any) -> None:
    with pytest.raises(exc.InvalidLogicalTime, match=r"before 1\.0"):
        send(pair, "a", b"", 0.9)
    pair.call("a", "time_advance_request", 5.0)
    with pytest.raises(exc.InvalidLogicalTime, match=r"before 6\.0"):
        send(pair, "a", b"", 5.5)


def test_the_next_message_is_where_time_goes(pair: Any) -> None:
    # Given a message at 3; When the receiver asks for its next one up to 8
    send(pair, "a", b"3", 3.0)
    pair.call("a", "time_advance_request", 20.0)
    pair.call("b", "next_message_request", 8.0)
    assert texts(pair.heard("b")) == [b"3", 3.0]
    # When there is none, expect what was asked for
    pair.call("b", "next_message_request", 8.0)
    assert texts(pair.heard("b")) == [8.0]


def test_two_who_ask_for_their_next_message_do_not_wait_for_each_other(pair: Any) -> None:
    # Given no message at all; When both ask for the next one; Expect both to be granted what they asked for
    pair.call("a", "next_message_request", 100.0)
    pair.call("b", "next_message_request", 70.0)
    assert pair.heard("b") == [("time_advance_grant", 70.0)]
    assert pair.heard("a") == []
    pair.call("b", "next_message_request", 100.0)
    assert pair.heard("a") == pair.heard("b") == [("time_advance_grant", 100.0)]


def test_a_flushed_queue_is_all_that_waits(pair: Any) -> None:
    send(pair, "a", b"9", 9.0)
    send(pair, "a", b"4", 4.0)
    pair.call("b", "flush_queue_request", 8.0)
    assert texts(pair.heard("b")) == [b"4", b"9", 1.0]


def test_galt_and_lits_are_what_may_still_come(pair: Any) -> None:
    assert pair.call("a", "query_galt") == 1.0
    pair.call("b", "time_advance_request", 4.0)
    send(pair, "b", b"", 7.0)
    assert pair.call("a", "query_galt") == 5.0
    pair.call("b", "disable_time_regulation")
    assert (pair.call("a", "query_galt"), pair.call("a", "query_lits")) == (math.inf, 7.0)
    with pytest.raises(exc.TimeRegulationIsNotEnabled):
        pair.call("b", "query_lookahead")


def test_a_smaller_lookahead_counts_as_far_as_time_goes(pair: Any) -> None:
    pair.call("a", "modify_lookahead", 0.25)
    assert pair.call("b", "query_galt") == 1.0
    assert pair.call("a", "query_lookahead") == 1.0
    with pytest.raises(exc.InvalidLogicalTime):
        send(pair, "a", b"", 0.5)
    pair.call("a", "time_advance_request", 0.9)
    assert pair.call("b", "query_galt") == 1.15
    pair.call("b", "time_advance_request", 0.9)
    pair.call("a", "modify_lookahead", 3.0)
    assert pair.call("b", "query_galt") == pytest.approx(3.9)


def test_without_lookahead_a_grant_excludes_its_own_time(rig: Any) -> None:
    # Given two federates in lockstep without lookahead
    it = rig("a", "b")
    for each in "ab":
        it.call(each, "publish_interaction_class", it.radio)
        it.call(each, "enable_time_regulation", 0.0)
        it.call(each, "enable_time_constrained")
    it.forget()
    # When both ask for 1; Expect both to have it: nobody sends at 1 any more
    it.call("a", "time_advance_request", 1.0)
    it.call("b", "time_advance_request", 1.0)
    assert it.heard("a") == it.heard("b") == [("time_advance_grant", 1.0)]
    with pytest.raises(exc.InvalidLogicalTime, match="or at it"):
        it.call("a", "send_interaction", it.radio, (), b"", 1.0)
    it.call("a", "send_interaction", it.radio, (), b"", 1.5)


def test_who_begins_to_regulate_is_where_nobodys_past_is(pair: Any) -> None:
    pair.join("c")
    for each in "ab":
        pair.call(each, "time_advance_request", 5.0)
    pair.call("c", "enable_time_regulation", 0.5)
    assert pair.heard("c") == [("time_regulation_enabled", 5.0)]
    with pytest.raises(exc.TimeRegulationAlreadyEnabled):
        pair.call("c", "enable_time_regulation", 0.5)
    # and the others wait for it from now on
    pair.forget()
    pair.call("a", "time_advance_request", 5.6)
    pair.call("b", "time_advance_request", 5.6)
    assert pair.heard("a") == []
    pair.call("c", "resign_federation_execution", "no_action")
    assert pair.heard("a") == [("time_advance_grant", 5.6)]


def test_who_becomes_constrained_waits_until_its_time_is_safe(pair: Any) -> None:
    pair.join("c")
    pair.call("c", "time_advance_request", 3.0)
    assert pair.heard("c") == [("time_advance_grant", 3.0)]
    pair.call("c", "enable_time_constrained")
    assert pair.heard("c") == []
    for each in "ab":
        pair.call(each, "time_advance_request", 4.0)
    assert pair.heard("c") == [("time_constrained_enabled", 3.0)]
    with pytest.raises(exc.TimeConstrainedAlreadyEnabled):
        pair.call("c", "enable_time_constrained")
    pair.call("c", "disable_time_constrained")
    with pytest.raises(exc.TimeConstrainedIsNotEnabled):
        pair.call("c", "disable_time_constrained")


def test_messages_without_a_time_come_while_one_asks_for_a_time(pair: Any) -> None:
    # Given a constrained federate; When it gets a message in receive order; Expect it to wait until it asks for a time
    pair.call("a", "send_interaction", pair.radio, ((pair.text, b"now"),))
    assert pair.heard("b") == []
    pair.call("b", "time_advance_request", 50.0)
    assert texts(pair.heard("b")) == [b"now"]
    # and at any time with asynchronous delivery
    pair.call("a", "enable_asynchronous_delivery")
    pair.call("b", "send_interaction", pair.radio, ((pair.text, b"here"),))
    assert texts(pair.heard("a")) == [b"here"]
    with pytest.raises(exc.AsynchronousDeliveryAlreadyEnabled):
        pair.call("a", "enable_asynchronous_delivery")
    pair.call("a", "disable_asynchronous_delivery")
    with pytest.raises(exc.AsynchronousDeliveryAlreadyDisabled):
        pair.call("a", "disable_asynchronous_delivery")


def test_a_message_that_waits_is_retracted_silently_another_one_is_asked_back(pair: Any) -> None:
    pair.join("free")
    pair.call("free", "subscribe_interaction_class", pair.radio)
    handle = send(pair, "a", b"5", 5.0)
    assert texts(pair.heard("free")) == [b"5"]
    pair.call("a", "retract", handle)
    assert pair.heard("free") == [("request_retraction", handle)]
    pair.call("a", "time_advance_request", 9.0)
    pair.call("b", "time_advance_request", 6.0)
    assert texts(pair.heard("b")) == [6.0]
    # When it is too late, or there is no such message
    with pytest.raises(exc.MessageCanNoLongerBeRetracted):
        pair.call("a", "retract", handle)
    with pytest.raises(exc.InvalidMessageRetractionHandle):
        pair.call("a", "retract", 10_000)


@pytest.mark.row("H-42")
def test_who_watches_hears_of_its_bound_behind_the_messages_below_it(pair: Any) -> None:
    pair.join("bridge")
    pair.call("bridge", "subscribe_interaction_class", pair.radio)
    pair.call("bridge", "enable_time_regulation", 0.5)
    pair.call("bridge", "watch_lower_bound", True)
    assert pair.heard("bridge") == [("time_regulation_enabled", 0.0), ("lower_bound", 1.0, 1.0, math.inf, 0.5, 0.0)]
    send(pair, "a", b"2", 2.0)
    for each in "ab":
        pair.call(each, "time_advance_request", 4.0)
    assert [each[:2] for each in pair.heard("bridge")] == [("receive_interaction", pair.radio), ("lower_bound", 5.0)]
    # and what it promises itself does not bound it, but others: it hears where they are
    pair.call("bridge", "time_advance_request", 4.5)
    assert pair.heard("bridge") == [("time_advance_grant", 4.5), ("lower_bound", 5.0, 5.0, math.inf, 5.0, 4.0)]


def test_who_watches_hears_of_its_bound_if_nobody_has_a_message_of_it(pair: Any) -> None:
    pair.join("bridge")
    pair.call("bridge", "enable_time_regulation", 0.5)
    pair.call("bridge", "watch_lower_bound", True)
    pair.heard("bridge")
    # When all wait for a message; Expect it to hear when they send without one of it, and how soon after one of it
    for each in "ab":
        pair.call(each, "next_message_request", 9.0)
    assert pair.heard("bridge")[-1] == ("lower_bound", 1.5, 10.0, 1.0, 0.5, 0.0)
    # and when it is to send nothing before some time
    pair.call("bridge", "time_advance_request", 2.0)
    assert pair.heard("bridge") == [("time_advance_grant", 2.0), ("lower_bound", 3.5, 10.0, 1.0, 2.5, 0.0)]


# -- whatever is asked for ------------------------------------------------------------------------------------------

KINDS = (
    "time_advance_request", "time_advance_request_available", "next_message_request", "next_message_request_available",
)  # fmt: skip


@settings(max_examples=examples(80), deadline=None)
@given(data=st.data())
def test_time_never_runs_back_and_never_stands_still(data: st.DataObject) -> None:
    # Given some federates with their lookaheads
    from .conftest import Rig

    count = data.draw(st.integers(2, 4))
    names = "abcd"[:count]
    lookaheads = {each: data.draw(st.sampled_from((0.5, 1.0, 2.0))) for each in names}
    it = Rig(*names)
    for each in names:
        it.call(each, "publish_interaction_class", it.radio)
        it.call(each, "subscribe_interaction_class", it.radio)
        it.call(each, "enable_time_regulation", lookaheads[each])
        it.call(each, "enable_time_constrained")
    it.forget()
    times = dict.fromkeys(names, 0.0)
    asked: dict[str, tuple[str, float]] = {}
    sent: list[tuple[float, bytes, str]] = []
    got: dict[str, list[bytes]] = {each: [] for each in names}
    stamps: dict[bytes, float] = {}
    for number in range(data.draw(st.integers(5, 40))):
        # When one that is not waiting sends, or asks for a time
        free = [each for each in names if each not in asked]
        # Expect there to be one: with lookahead, not all wait
        assert free, (times, asked)
        who = data.draw(st.sampled_from(free))
        if data.draw(st.booleans()):
            stamp = times[who] + lookaheads[who] + data.draw(st.sampled_from((0.0, 0.25, 1.0, 5.0)))
            text = b"%d" % number
            send(it, who, text, stamp)
            sent.append((stamp, text, who))
            stamps[text] = stamp
        else:
            kind, time = data.draw(st.sampled_from(KINDS)), times[who] + data.draw(st.sampled_from((0.5, 1.0, 3.0)))
            asked[who] = kind, time
            it.call(who, kind, time)
        for each in names:
            for what, *arguments in it.heard(each):
                if what == "receive_interaction":
                    text = arguments[1][0][1]
                    # Expect nothing in anybody's past, and the order of time stamps
                    assert stamps[text] >= times[each]
                    assert not got[each] or stamps[got[each][-1]] <= stamps[text]
                    got[each].append(text)
                else:
                    kind, time = asked.pop(each)
                    granted = arguments[0]
                    assert times[each] <= granted <= time
                    assert kind.startswith("next") or granted == time
                    times[each] = granted
                    # Expect everything at or before the granted time to have come, and nothing twice
                    due = {text for stamp, text, sender in sent if sender != each and stamp <= granted}
                    assert due <= set(got[each])
                    assert len(got[each]) == len(set(got[each]))
