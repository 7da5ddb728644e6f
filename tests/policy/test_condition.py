"""The `when` of policies: what it says, what is refused and where, and what is left of it when a contract is known."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.quality import Resources
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import Predicate
from jbi_pubsub.policy.condition import (
    ConditionError,
    about_resources,
    holds,
    parse_condition,
    reduced,
    restricts,
)
from jbi_pubsub.policy.context import CallerFacts


@dataclass
class Object:
    """What a condition asks of an object."""

    size: int = 1_000
    payload_type: str = "image/jpeg"
    metadata: bytes = b"<a><Area>Kabul</Area></a>"

    def says(self, predicate: Predicate) -> bool | None:
        return predicate.decide(parse_metadata(self.metadata), len(self.metadata)) if self.metadata else None


def facts(**said: Any) -> CallerFacts:
    """Of a contract of Patrol-1."""
    given = {
        "user": ("Patrol-1",), "group": ("UAS", "ops"), "role": ("patrol",), "client": ("field-7",),
        "component": ("alpha@rome",), "address": ("10.1.2.3",), "type": ("uav.imagery",), "version": ("1.0",),
        "action": ("subscribe",), "delivery": ("queue",), "attribute": (("area", "Kabul"),),
    }  # fmt: skip
    return CallerFacts(**given | said)


def decided(text: str, known: Object | None = None, resources: Resources | None = None, **said: Any) -> bool:
    """Whether it holds, by way of what is left of it."""
    node = reduced(parse_condition(text), facts(**said))
    node = about_resources(node, lambda test: test.of(getattr(resources or Resources(), test.name)))
    return holds(node, known or Object())


@pytest.mark.row("Q-21")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user == 'Patrol-1'", True),
        ("user == 'Patrol-*'", False),  # texts are what they are; globs are for like
        ("like(user, 'Patrol-*')", True),
        ("group == 'ops' and group == 'UAS'", True),
        ("group != 'ops'", False),
        ("group not in ['a', 'b']", True),
        ("not group in ['a', 'ops']", False),
        ("role in ('cas', 'patrol')", True),
        ("address in '10.1.0.0/16'", True),
        ("address not in ['192.0.2.0/24', '10.2.0.0/16']", True),
        ("attribute['area'] == 'Kabul'", True),
        ("attribute['other'] == ''", True),
        ("'subscribe' == action", True),
        ("size > '500 B'", True),
        ("'500 B' < size <= '1 KB'", True),
        ("not ('500 B' < size <= '1 KB')", False),
        ("payload_type == 'image/jpeg' and metadata(\"//Area='Kabul'\")", True),
        ("not metadata(\"//Area='Kabul'\")", False),
        ("True and not False", True),
        ("user == 'a' or\n\tuser == 'Patrol-1'", True),
    ],
)
def test_what_a_condition_says(text: str, expected: bool) -> None:
    assert decided(text) is expected


@pytest.mark.parametrize(
    "text",
    [
        "payload_type == 'image/jpeg'",
        "payload_type != 'image/jpeg'",
        "not like(payload_type, 'image/*')",
        "metadata('//Area')",
        "not metadata('//Area')",
        "size < '1 KB'",
        "not (size < '1 KB')",
        "not (payload_type == 'image/jpeg' or size > '1 KB')",
    ],
)
def test_of_what_is_not_known_neither_a_condition_nor_its_negation_holds(text: str) -> None:
    assert decided(text, Object(-1, "", b"")) is False
    # Expect what does not hang on that to hold
    assert decided(f"{text} or user == 'Patrol-1'", Object(-1, "", b"")) is True


@pytest.mark.parametrize(
    ("text", "at", "told"),
    [
        ("typ == 'x'", 0, "unknown property 'typ'"),
        ("user == 'é' and typ == 'x'", 16, "unknown property 'typ'"),
        ("   size > 5", 10, "5 has no unit"),
        ("size > '5 s'", 7, "'5 s' is not in B"),
        ("size > '50'", 7, "has no unit"),
        ("user == role", 8, "a property is compared with another one"),
        ("size > ", 6, "ends too early"),
        ("", 0, "is empty"),
        ("user", 0, "user is compared with nothing"),
        ("user in 'Patrol'", 8, "user in what?"),
        ("user > 'a'", 0, "user is a text"),
        ("size in ['1 B']", 0, "size is a quantity"),
        ("__import__('os').system('x')", 0, "a call is not allowed"),
        ("open('x')", 0, "no function 'open'"),
        ("user.__class__ == 'x'", 0, "a dot is not allowed"),
        ("(lambda: True)()", 0, "a call is not allowed"),
        ("lambda: True", 0, "a lambda is not allowed"),
        ("True if user == 'a' else False", 0, "an if is not allowed"),
        ("(user := 'a') == 'a'", 1, "an assignment is not allowed"),
        ("[u for u in 'a'] == 'a'", 0, "ListComp is not allowed"),
        ("f'{user}' == 'a'", 0, "an f-string is not allowed"),
        ("user == b'a'", 8, "a text is meant"),
        ("user == 1", 8, "a text is meant"),
        ("user is 'a'", 0, "`is` is not allowed"),
        ("size + size > '1 KB'", 0, "arithmetic is not allowed"),
        ("'a' == 'a'", 0, "neither side is a property"),
        ("attribute[1] == 'a'", 0, "the name of an attribute is a text"),
        ("client['a'] == 'b'", 0, "client has no [ ]"),
        ("like(user)", 0, "like is written"),
        ("like(size, 'a')", 5, "size is not text"),
        ("metadata('//[')", 9, "unexpected"),
        ("address == '10.0.0.300'", 11, "not an address or network"),
        ("queue > 1e999", 8, "inf is not a number"),
        ("queue > " + "9" * 400, 8, "too large"),
        ("user == '\\x41'", 9, "a backslash"),
        ("(" * 1_000 + "user == 'a'" + ")" * 900, 200, "too many nested parentheses"),
        ("not " * 40 + "user == 'a'", 132, "more than 32"),
        (" or ".join(["user=='a'"] * 65), 832, "more than 64 tests"),
        ("x" * 2_001, 2_000, "more than 2000 characters"),
        ("user == 'a'\0", 12, ""),
        ("\ud800 == 'a'", 0, ""),
    ],
)
def test_what_is_refused_says_where(text: str, at: int, told: str) -> None:
    with pytest.raises(ConditionError) as caught:
        parse_condition(text)
    assert told in caught.value.message
    assert caught.value.at == at or not told


def test_what_is_not_known_makes_no_test_hold_and_no_negation() -> None:
    unknown, narrow = Resources(), Resources(bandwidth=40_000.0)
    assert not decided("bandwidth < '400 kbps'", resources=unknown)
    assert not decided("not bandwidth < '400 kbps'", resources=unknown)
    assert decided("bandwidth < '400 kbps'", resources=narrow)
    assert not decided("not bandwidth < '400 kbps'", resources=narrow)


def test_what_a_context_restricts_is_what_each_way_to_hold_needs() -> None:
    assert restricts(parse_condition("user == 'a' and size > '1 B'")) == {"user", "size"}
    assert restricts(parse_condition("user == 'a' or user == 'b' and type == 't'")) == {"user"}
    assert restricts(parse_condition("not (user == 'a' or type == 't')")) == {"user", "type"}


OPEN = ("user == 'Patrol-1'", "type == 'other'", "like(client, 'field-*')", "group != 'ops'", "True", "False")
LATER = ("size > '500 B'", "size > '2 KB'", "metadata(\"//Area='Rome'\")", "cpu > '80 %'", "loss < '1 %'")
TRUTHS = dict(
    zip((*OPEN, *LATER), (True, False, True, False, True, False, True, False, False, True, False), strict=True)
)


def _tree(leaf: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map("not ({})".format),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: " and ".join(f"({p})" for p in parts)),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: " or ".join(f"({p})" for p in parts)),
        ),
        max_leaves=8,
    )


@settings(max_examples=examples(150), deadline=None)
@given(text=_tree(st.sampled_from((*OPEN, *LATER))))
def test_deciding_in_two_steps_is_deciding_at_once(text: str) -> None:
    # Given any combination of what is known when a contract opens and of what is not (all of which is known here)
    spelled = text
    for number, leaf in enumerate(TRUTHS):
        spelled = spelled.replace(leaf, f"t[{number}]") if leaf not in ("True", "False") else spelled
    expected = eval(spelled, {"t": list(TRUTHS.values())})  # Python itself is the oracle of its own grammar
    # Expect what Python makes of it
    assert decided(text, resources=Resources(cpu=0.9, loss=0.02)) is bool(expected)


def test_negations_of_quantities_are_their_opposites() -> None:
    for comparison, value in itertools.product(("<", "<=", ">", ">=", "==", "!="), (999, 1_000, 1_001)):
        text = f"size {comparison} '1 KB'"
        assert decided(text, Object(size=value)) is not decided(f"not {text}", Object(size=value))


@pytest.mark.processes
def test_python_says_nothing_of_its_own_about_a_condition() -> None:
    # Given an interpreter of its own, as the tests' has other filters
    said = "from jbi_pubsub.policy.condition import parse_condition; parse_condition('queue > 5and cpu > \"5 %\"')"
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == ""
