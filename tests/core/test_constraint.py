"""Constraints of the trader: what they say of values, and the same as XPath over structured events."""

from __future__ import annotations

import inspect
import random
import sys
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub.core.constraint import Constraint, Preference, as_xpath
from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xpath import compile_predicate
from tests.oracles.constraints import random_event, random_tree, value, written

OFFER = {
    "name": "heat", "domain": 3, "load": 0.25, "ready": True, "categories": ("junior", "senior"), "big": 1 << 40,
}  # fmt: skip


@pytest.mark.row("D-55")
@pytest.mark.parametrize(
    ("constraint", "matches"),
    [
        ("", True),
        ("TRUE", True),
        ("FALSE", False),
        ("ready", True),
        ("not ready", False),
        ("name == 'heat'", True),
        ("'heat' == name", True),
        ("name != 'heat'", False),
        ("domain == 3", True),
        ("domain == 3.0", True),
        ("domain != 4", True),
        ("domain < 3", False),
        ("domain <= 3", True),
        ("domain > 2.5", True),
        ("domain >= 3.5", False),
        ("big == 1099511627776", True),
        ("load < .5", True),
        ("load == 25e-2", True),
        ("load == 2.5E-1", True),
        ("load > -1", True),
        ("-domain == -3", True),
        ("+3 == domain", True),
        ("domain + 1 == 4", True),
        ("domain - 1 - 1 == 1", True),
        ("domain - (1 - 1) == 3", True),
        ("2 + domain * 2 == 8", True),
        ("(2 + domain) * 2 == 10", True),
        ("domain / 2 == 1.5", True),
        ("12 / domain / 2 == 2", True),
        ("domain / 0 > 1000", True),
        ("'ea' ~ name", True),
        ("'eat' ~ 'heat'", True),
        ("name ~ 'ea'", False),
        ("'' ~ name", True),
        ("'junior' in categories", True),
        ("'chief' in categories", False),
        ("not ('chief' in categories)", True),
        ("exist load", True),
        ("exist speed", False),
        ("not exist speed", True),
        ("name == 'heat' and load < 0.5", True),
        ("name == 'cold' or load < 0.5", True),
        ("name == 'cold' or load > 0.5", False),
        ("FALSE and FALSE or TRUE", True),
        ("TRUE or FALSE and FALSE", True),
        ("(TRUE or TRUE) and FALSE", False),
        ("ready == TRUE", True),
        ("ready == (load < 0.5)", True),
        ("ready != FALSE", True),
        ("'it\\'s' == 'it\\'s'", True),
        ("'a\\\\b' == 'a\\\\b'", True),
        ("not ready == FALSE", True),
        ("not not ready", True),
        ("name=='heat'and ready", True),
    ],
)
def test_constraint_says_of_an_offer(constraint: str, matches: bool) -> None:
    assert Constraint(constraint).matches(OFFER) is matches


@pytest.mark.row("D-56")
@pytest.mark.parametrize(
    "undefined",
    ["speed > 3", "speed == 3", "speed != 3", "name > 3", "name == 3", "domain == 'heat'", "domain != 'heat'",
     "categories == 'junior'", "'x' in name", "name in speed", "3 in categories", "name + 1 == 2", "3 ~ name",
     "name < 'z'", "domain", "speed", "load / 0 - load / 0 == 0", "ready > FALSE", "5", "'text'"],
)  # fmt: skip
def test_what_is_not_there_or_of_another_kind_is_neither_true_nor_false(undefined: str) -> None:
    assert not Constraint(undefined).matches(OFFER)
    assert not Constraint(f"not ({undefined})").matches(OFFER)
    # and what is beside it decides
    assert Constraint(f"({undefined}) or ready").matches(OFFER)
    assert Constraint(f"not (({undefined}) and not ready)").matches(OFFER)


@pytest.mark.row("D-55")
@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("name ==", 8, "expected a property"),
        ("== 3", 1, "expected a property"),
        ("(name == 'heat'", 16, "expected an operator or )"),
        ("name == 'heat", 9, "begins here"),
        ("name == 'heat')", 15, "expected an operator, or the end"),
        ("1 < domain < 3", 12, "no second comparison"),
        ("name 'heat'", 6, "expected an operator, or the end"),
        ("'x' in 'categories'", 8, "expected the name of a sequence"),
        ("exist 3", 7, "expected the name of a property"),
        ("name and", 9, "expected a property"),
        ("not", 4, "expected a property"),
        ("name = 'heat'", 6, "begins here"),
        ('name == "heat"', 9, "begins here"),
        ("load < 1e999", 8, "a number below"),
        ("load < 0x10", 8, "begins here"),
        ("a.b == 1", 1, "names have letters"),
        ("$other == 1", 1, "names have letters"),
        ("- - 3 == 3", 3, "expected a property"),
        ("/event/body", 1, "expected a property"),
        ("(" * 10_000, 33, "no more than 32"),
        ("not " * 8_000 + "ready", 129, "no more than 32"),
        ("load < \u0663", 8, "begins here"),
        ("a" * 33_000, 32_769, "at most 32,768"),
    ],
)
def test_what_does_not_parse_is_refused_with_the_position(text: str, position: int, expected: str) -> None:
    with pytest.raises(PredicateError, match="constraint, position") as caught:
        Constraint(text)
    assert (caught.value.facts["position"], expected in caught.value.message) == (position, True), caught.value.message


def _position(text: str) -> int:
    """Position of what is wrong; 1 if nothing is."""
    try:
        Constraint(text).matches(OFFER)
    except PredicateError as exc:
        return int(exc.facts["position"])
    return 1


def test_each_token_that_is_missing_is_seen_or_leaves_a_constraint() -> None:
    text = "( name == 'heat' or 'x' ~ name ) and not ( load + 1 * - 2 < 3 ) and 'a' in categories and exist b"
    tokens = text.split()
    for missing in range(len(tokens)):
        text = " ".join(token for at, token in enumerate(tokens) if at != missing)
        assert 1 <= _position(text) <= len(text) + 1


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_random_texts_are_a_constraint_or_are_refused_with_a_position(count: int) -> None:
    rnd = random.Random(count)
    pieces = ["name", "==", "'x'", "(", ")", "and", "or", "not", "in", "~", "+", "-", "*", "/", "exist", "3", ".5", "$",
              "'", "\\", "\0", "é", " ", "<", ">=", "TRUE", "$qos.x", "\n", "e5", '"']  # fmt: skip
    for _ in range(count):
        text = rnd.choice(["", " "]).join(rnd.choices(pieces, k=rnd.randrange(12)))
        assert 1 <= _position(text) <= len(text) + 1, text


@pytest.mark.row("D-62")
@pytest.mark.parametrize("count", [1_000, pytest.param(300_000, marks=pytest.mark.slow)])
@pytest.mark.long
def test_constraint_says_the_same_as_the_rules_of_values_and_as_xpath_of_events(count: int) -> None:
    # Given random constraints; when each is asked of some random events
    rnd = random.Random(count)
    matched = 0
    for _ in range(count):
        tree = random_tree(rnd, 3)
        text = written(tree)
        constraint, xpath = Constraint(text), etree.XPath(f"boolean({as_xpath(text)})")
        for _ in range(4):
            values, event = random_event(rnd)
            # Expect the rules' answer of both
            said = value(tree, values) is True
            assert constraint.matches(values) is said, (text, values)
            assert xpath(event) is said, (text, as_xpath(text), values)
            matched += said
    assert matched > count / 4


@pytest.mark.parametrize(
    ("constraint", "xpath"),
    [
        ("residual > 0.001", "body/residual/@number > 0.001"),
        ("not (residual > 1e-3)", "body/residual/@number <= 0.001"),
        ("$domain == 'heat' and $qos.priority >= 5", "(header/domain = 'heat' and qos/priority/@number >= 5.0)"),
        ("state != 'running'", "body/state/@string != 'running'"),
        ("converged", "body/converged/@boolean = 'true'"),
    ],
)
def test_comparison_is_one_condition_on_a_plain_path(constraint: str, xpath: str) -> None:
    assert as_xpath(constraint) == xpath


def test_sum_of_many_terms_is_no_deeper_than_one_of_two() -> None:
    # Given a sum, and a product, of as many terms as XPath has no levels
    many = " + ".join(["a"] * 100)
    values, event = {"a": 1}, etree.fromstring('<event><body><a number="1"/></body></event>')
    # Expect both to be predicates, that say what the constraint says
    for text, is_true in ((f"{many} == 100", True), (f"{many} - 1 - 1 == 100", False), ("6 / 3 / 2 == 1", True)):
        assert Constraint(text).matches(values) is is_true
        assert compile_predicate(as_xpath(text)).matches(event) is is_true
    assert Constraint("2 * a" + " * a" * 99 + " < 3").matches(values)
    assert compile_predicate(as_xpath("2 * a" + " * a" * 99 + " < 3")).matches(event)


def test_deepest_constraint_leaves_half_of_the_stack_to_whoever_asks() -> None:
    # Given constraints as deep as may be, one with something of each precedence in every level
    within = ("a == 1", "not " * 32 + "a", "(" * 32 + "a == 1" + ")" * 32)
    mixed = "(c or b and 1 == 's' ~ 1 + 2 * " * 32 + "a" + ")" * 32
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 500)
    # When they are read, asked, and made XPath; expect no RecursionError
    try:
        assert [Constraint(text).matches({"a": 1}) for text in (*within, mixed)] == [True, False, True, False]
        assert all(as_xpath(text) for text in within)
    finally:
        sys.setrecursionlimit(limit)


def test_truth_values_that_are_compared_are_refused_in_subscriptions() -> None:
    with pytest.raises(PredicateError, match="and, or and not"):
        as_xpath("(a > 3) == (b > 3)")


@pytest.mark.row("D-57")
@pytest.mark.parametrize(
    ("preference", "order"),
    [
        ("", "abcd"), ("first", "abcd"), ("max load", "cabd"), ("min load", "bacd"), ("min 0 - load", "cabd"),
        ("with load > 1", "acbd"), ("with not (load > 1)", "bacd"), ("max speed", "abcd"),
    ],
)  # fmt: skip
def test_preference_puts_in_order_and_last_what_it_can_not_say(preference: str, order: str) -> None:
    offers: dict[str, dict[str, Any]] = {"a": {"load": 2}, "b": {"load": 1}, "c": {"load": 3.5}, "d": {"load": "heavy"}}
    assert "".join(Preference(preference).ordered("abcd", offers.__getitem__)) == order


@pytest.mark.row("D-57")
def test_random_preference_has_each_once() -> None:
    orders = {"".join(Preference("random").ordered("abcd", lambda _: {})) for _ in range(200)}
    assert len(orders) > 5
    assert all(sorted(order) == list("abcd") for order in orders)


@pytest.mark.parametrize("preference", ["max", "best load", "first load", "with", "min load <", "random 3"])
def test_what_is_no_preference_is_refused(preference: str) -> None:
    with pytest.raises(PredicateError):
        Preference(preference)


def test_equal_values_are_known_where_they_have_to_hold() -> None:
    assert Constraint("name == 'heat' and 3 == domain and load < 1").equalities == {"name": "heat", "domain": 3.0}
    assert Constraint("name == 'heat' or domain == 3").equalities == {}
    assert Constraint("not (name == 'heat')").equalities == {}
    assert Constraint("domain == 9007199254740993").equalities == {}, "more than a double can tell apart"
