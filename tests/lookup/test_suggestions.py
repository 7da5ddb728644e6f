"""Endpoints that others name: remembered as long as somebody names them or they answer, never too many."""

from __future__ import annotations

import itertools

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.lookup.client.discovery import (
    MAX_ENDPOINTS,
    PAUSE_FIRST,
    PAUSE_MOST,
    SUGGESTION_SECONDS,
    Suggestions,
)

NOW = 1000.0


def test_a_suggestion_is_due_at_once_and_again_whenever_somebody_names_it():
    book = Suggestions()
    book.suggest("mdns a", ["h:1"], NOW)
    assert book.due(NOW) == ["h:1"]
    book.failed("h:1", NOW)
    assert book.due(NOW) == []
    book.failed("h:1", NOW + PAUSE_MOST)
    book.failed("h:1", NOW + PAUSE_MOST)
    book.suggest("item a", ["h:1"], NOW + PAUSE_MOST)
    assert book.due(NOW + PAUSE_MOST) == [], "who talks without end is not asked without end"
    assert book.due(NOW + PAUSE_MOST + PAUSE_FIRST) == ["h:1"]


def test_it_goes_with_its_last_source():
    book = Suggestions()
    book.suggest("mdns a", ["h:1"], NOW)
    book.suggest("item a", ["h:1"], NOW)
    book.withdraw("mdns a")
    assert "h:1" in book
    book.withdraw("item a")
    assert "h:1" not in book
    book.withdraw("item a")  # nobody minds


def test_a_source_that_names_another_endpoint_names_the_old_one_no_more():
    book = Suggestions()
    book.suggest("item a", ["h:1"], NOW)
    book.suggest("item a", ["h:2"], NOW)
    assert list(book) == ["h:2"]


@pytest.mark.usefixtures("steady")
def test_one_that_does_not_answer_is_asked_more_and_more_seldom_and_forgotten_in_the_end():
    book, now, asked = Suggestions(), NOW, []
    book.suggest("mdns a", ["h:1"], now)
    while "h:1" in book:
        if book.due(now):
            asked.append(now)
            book.failed("h:1", now)
        now += 0.25
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= PAUSE_MOST
    assert SUGGESTION_SECONDS < asked[-1] - NOW <= SUGGESTION_SECONDS + PAUSE_MOST


def test_one_that_has_answered_begins_anew():
    book = Suggestions()
    book.suggest("mdns a", ["h:1"], NOW)
    book.failed("h:1", NOW)
    book.answered("h:1", NOW + SUGGESTION_SECONDS)
    assert book.due(NOW + SUGGESTION_SECONDS, known={"h:1"}) == [], "nobody asks where one is known"
    book.failed("h:1", NOW + SUGGESTION_SECONDS + 1.0)
    assert "h:1" in book


def test_when_all_places_are_taken_the_one_that_failed_longest_gives_way_and_never_one_that_answers():
    book = Suggestions(2)
    book.suggest("a", ["a:1"], NOW)
    book.suggest("b", ["b:1"], NOW)
    book.suggest("c", ["c:1"], NOW)
    assert "c:1" not in book, "the others have not been asked yet"
    book.answered("a:1", NOW)
    book.failed("b:1", NOW)
    book.suggest("c", ["c:1"], NOW)
    assert set(book) == {"a:1", "c:1"}


NAMES = st.sampled_from([f"h:{number}" for number in range(1, 30)])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("suggest"), st.sampled_from("abc"), st.lists(NAMES, max_size=12)),
        st.tuples(st.just("withdraw"), st.sampled_from("abc"), st.just([])),
        st.tuples(st.sampled_from(["failed", "answered"]), NAMES, st.just([])),
    ),
    max_size=60,
)


@settings(derandomize=True, max_examples=examples(200))
@given(STEPS)
def test_whatever_is_said_there_are_never_more_than_the_bound_and_none_without_a_source(steps):
    book = Suggestions(10)
    said: dict[str, set[str]] = {}
    for now, (what, who, endpoints) in enumerate(steps):
        if what == "suggest":
            book.suggest(who, endpoints, float(now))
            said[who] = set(endpoints[:MAX_ENDPOINTS])
        elif what == "withdraw":
            book.withdraw(who)
            said.pop(who, None)
        else:
            getattr(book, what)(who, float(now))
        assert len(set(book)) <= 10
        assert set(book) <= set().union(*said.values())


def test_a_flood_of_sources_for_one_endpoint_is_bounded() -> None:
    book = Suggestions(10)
    for number in range(1_000):
        book.suggest(f"mdns fake-{number}", ["127.0.0.1:9"], float(number))
    assert len(book._book["127.0.0.1:9"].sources) == 10
