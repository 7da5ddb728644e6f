"""Predicates that cover others, against lxml over random documents; and aggregates, against a plain search."""

from __future__ import annotations

import random
import re

import pytest
from lxml import etree

from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate
from jbi_pubsub.core.xpath.covering import Aggregate, covers
from jbi_pubsub.core.xpath.narrowing import narrowed
from jbi_pubsub.core.xpath.predicate import Predicate
from tests.oracles.differential import NAMESPACES, document, expression, is_taken

KABUL = "*[LocationCoord[lat >= {} and lat <= {} and long >= {} and long <= {}]]"


def _compiled(text: str) -> Predicate:
    return compile_predicate(text, namespaces=NAMESPACES)


@pytest.mark.row("D-17")
@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("/m/a > 3", "/m/a > 3"),
        ("/m/a > 3", "/m/a > 3.5"),
        ("/m/a >= 3", "/m/a > 3"),
        ("/m/a != 3", "/m/a > 3"),
        ("/m/a > 3", "/m/a = 5"),
        ("/m/a", "/m/a > 3"),
        ("/m/P", "/m/P/a = 'x'"),
        ("/m/a != 'y'", "/m/a = 'x'"),
        ("/m/a > 3", "/m/a > 4 and /m/b < 2"),
        ("/m/a > 3 or /m/b < 2", "/m/a > 4"),
        ("/m/a > 3 or /m/b < 2", "/m/a > 4 or /m/b < 1"),
        ("not(/m/a > 5)", "not(/m/a > 3)"),
        (KABUL.format(30, 40, 60, 70), KABUL.format(33, 35, 65, 68)),
        ("count(/m/a) < 5", "count(/m/a) < 3"),
        ("/m/a - 3 < 5", "/m/a - 3 < 2"),
        ("/m/a[b > 3]/c = 'x'", "/m/a[b > 4]/c = 'x'"),
    ],
)
def test_wide_one_covers_the_narrow_one_and_not_the_other_way(wide: str, narrow: str) -> None:
    assert covers(_compiled(wide), _compiled(narrow))
    assert wide == narrow or not covers(_compiled(narrow), _compiled(wide))


@pytest.mark.parametrize(
    ("wide", "narrow", "why"),
    [
        ("/m/P[a > 1 and a < 6]", "/m/P/a > 2 and /m/P/a < 5", "two nodes may meet one condition each"),
        ("/m/a > 3", "/n/a > 4", "another document"),
        ("/m/a = '5'", "/m/a = 5", "'5.0' is the number, not the text"),
        ("/m/a = 5", "/m/a = '5.0'", "not looked into, though it is so"),
        ("/m/a < 5", "not(/m/a >= 5)", "true without a node"),
        ("not(/m/a > 3)", "not(/m/a > 5)", "the other way round"),
        ("contains(/m/a, 'x')", "contains(/m/a, 'xy')", "parts of texts are not looked into"),
        ("/m/a[position() < 3]", "/m/a[position() < 2]", "nor are positions"),
        ("/m/a * 2 < 5", "/m/a * 1 < 5", "nor factors: of a negative one it is less"),
        ("/m/a > number('x')", "/m/a > 5", "NaN"),
    ],
)
def test_what_is_not_known_to_cover_covers_nothing(wide: str, narrow: str, why: str) -> None:
    assert not covers(_compiled(wide), _compiled(narrow)), why


def test_predicates_of_other_languages_and_namespaces_cover_their_equal_alone() -> None:
    one = compile_predicate("/q:m/a > 3", namespaces={"q": "urn:q"})
    assert not covers(one, compile_predicate("/q:m/a > 4", namespaces={"q": "urn:other"}))
    assert covers(one, compile_predicate("/q:m/a > 3", namespaces={"q": "urn:q"}))


def _related(chance: random.Random) -> list[str]:
    """An expression, others with its form, and some around it."""
    base = expression(chance)

    def moved(match: re.Match[str]) -> str:
        return chance.choice([match[0], match[0], "0", "1", "5", "33", "4.5", "1000"])

    varied = [re.sub(r"(?<![\w.\"'])\d+(?:\.\d*)?(?![\w\"'.])", moved, base) for _ in range(5)]
    other = expression(chance)
    texts = [base, *varied, other, f"({base}) or ({other})", f"({base}) and ({other})"]
    return [text for text in dict.fromkeys(texts) if is_taken(text)]


@pytest.mark.row("D-15")
@pytest.mark.row("D-17")
@pytest.mark.parametrize("count", [4_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_covering_is_never_wrong(count: int) -> None:
    # Given random predicates and documents, half of which have paths twice
    chance = random.Random(count)
    documents = [etree.fromstring(document(chance)) for _ in range(200)]
    pairs = said = 0
    while pairs < count:
        predicates = [_compiled(text) for text in _related(chance)]
        answers: dict[int, list[bool]] = {}
        # When one is said to cover another one
        for at, narrow in enumerate(predicates):
            for beside, wide in enumerate(predicates):
                if at == beside:
                    continue
                pairs += 1
                if not covers(wide, narrow):
                    continue
                said += 1
                for each in (at, beside):
                    if each not in answers:
                        asked = etree.XPath(f"boolean({predicates[each].expression})", namespaces=NAMESPACES)
                        answers[each] = [bool(asked(root)) for root in documents]
                # Expect it to be true wherever that is
                lost = [a and not b for a, b in zip(answers[at], answers[beside], strict=True)]
                assert not any(lost), (narrow.expression, wide.expression)
    assert said > count / 100


@pytest.mark.row("D-16")
@pytest.mark.row("D-17")
@pytest.mark.row("D-18")
def test_aggregate_has_what_no_other_one_covers_whoever_comes_and_goes() -> None:
    # Given rectangles that come and go
    chance = random.Random(4)
    aggregate: Aggregate[int] = Aggregate()
    there: dict[int, Predicate] = {}
    for step in range(600):
        before = set(aggregate.widest)
        if there and chance.random() < 0.45:
            gone = chance.choice(list(there))
            del there[gone]
            has_changed = aggregate.remove(gone)
        else:
            low, size = chance.randrange(8), chance.choice([1, 2, 6])
            there[step] = _compiled(KABUL.format(low, low + size, low, low + size))
            has_changed = aggregate.add(step, there[step])
        # Expect each to be covered by one of the widest, and none of these by another one
        widest = aggregate.widest
        assert all(any(covers(there[each], one) for each in widest) for one in there.values())
        assert not any(covers(there[a], there[b]) for a in widest for b in widest if a != b)
        # and a change to be told
        assert has_changed or set(widest) == before
        assert len(aggregate) == len(there)


@pytest.mark.row("D-15")
def test_what_is_joined_for_many_is_true_where_it_costs_too_much() -> None:
    # Given a document of many equal paths, for which each of some rectangles can be decided
    places = "".join(f"<LocationCoord><lat>{n}</lat><long>{n}</long></LocationCoord>" for n in range(100))
    root = etree.fromstring(f"<m><d>{places}</d></m>")
    members = [KABUL.format(n, n + 1, n, n + 1) for n in range(64)]
    assert all(_compiled(each).matches(root) for each in members)
    # When they are asked all at once, by a bridge, expect that to cost too much, and to be true for that
    whole = " or ".join(f"({each})" for each in members)
    index: PredicateIndex[str] = PredicateIndex()
    index.add("bridge", compile_predicate(whole, most=256))
    assert index.match(root) == ["bridge"]
    assert index.stats()["errors"] == 1
    # and under somebody's rule to be true for what that allows alone
    many = compile_predicate(whole, most=256)
    assert narrowed(many, ("//lat = 7", ())).matches(root)
    assert not narrowed(many, ("//lat = 700", ())).matches(root)
    # and of everybody else to be false, as ever
    index.add("other", compile_predicate(whole))
    assert index.match(root) == ["bridge"]
