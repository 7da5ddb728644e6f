"""Names that were meant."""

from __future__ import annotations

from pathlib import Path

import jbi_pubsub
from jbi_pubsub.core.errors import UnknownUidError
from jbi_pubsub.core.near import KNOWN_MOST, NAME_MOST, SHOWN_MOST, near_hint, near_name


def test_the_nearest_name_is_found() -> None:
    assert near_name("subcribe", ["publish", "subscribe", "query"]) == "subscribe"
    assert near_name("zzz", ["publish", "subscribe"]) == ""
    assert near_name("abxx", ["abcd"], 0.5) == "abcd"
    assert near_name("abxx", ["abcd"], 0.6) == ""


def test_a_question_that_a_message_ends_with_has_no_full_stop() -> None:
    assert str(UnknownUidError("no node ra; did you mean rr?", hint="See it")) == "no node ra; did you mean rr? See it"
    assert str(UnknownUidError("no node ra", hint="See them")) == "no node ra. See them"


def test_long_names_and_many_are_not_compared() -> None:
    # A name of a megabyte would take minutes
    assert near_name("subscribe" * 100_000, ["subscribe" * 100_000, "subscribe"]) == ""
    assert near_name("subscribe", ["subscribe" * 100_000, "subscribed"]) == "subscribed"
    assert near_name("a" * NAME_MOST, ["a" * NAME_MOST]) == "a" * NAME_MOST
    assert near_name("mine", (*map(str, range(KNOWN_MOST)), "mine")) == ""


def test_a_hint_says_what_was_meant_or_what_there_is() -> None:
    assert near_hint("subcribe", ["publish", "subscribe"]) == "Did you mean subscribe?"
    assert near_hint("zzz", ["publish", "subscribe"]) == "There are publish, subscribe"
    assert near_hint("zzz", ["publish"]) == "There is publish"
    assert near_hint("zzz", []) == "There is none"
    many = [str(n) for n in range(SHOWN_MOST + 3)]
    assert near_hint("zzz", many) == f"There are {', '.join(many[:SHOWN_MOST])} and 3 more"
    assert near_hint("zzz", many, 2) == f"There are 0, 1 and {SHOWN_MOST + 1} more"


def test_names_are_compared_in_one_place() -> None:
    package = Path(jbi_pubsub.__file__).parent
    sources = [path for room in package.iterdir() if room.is_dir() for path in room.resolve().rglob("*.py")]
    assert [path.name for path in sources if "get_close_matches" in path.read_text()] == ["near.py"]
