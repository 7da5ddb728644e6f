"""Operands that are no path: evaluated once for a document, for all who ask for them, and charged once."""

from __future__ import annotations

import random
import threading

import pytest
from lxml import etree

from jbi_pubsub.cli import matching
from jbi_pubsub.core.errors import OversizeError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import CostBudget, PredicateIndex, compile_predicate
from jbi_pubsub.core.xpath.index import document, operands
from jbi_pubsub.core.xpath.language import budget, cost

SOURCE = b"<m><a>IMG-7</a><b>2</b><P><c>5</c></P><P><c>7</c></P></m>"


def index_of(*texts: str) -> PredicateIndex[int]:
    index: PredicateIndex[int] = PredicateIndex()
    for key, text in enumerate(texts):
        index.add(key, compile_predicate(text))
    return index


@pytest.mark.parametrize(
    "operand",
    [
        "substring-after(a,'-')",
        "string-length(a)+b",
        "count(P[c>5])",
        "name(*)",
        "P[2]/c",
        "concat(a,b)",
        "//P//c",
        "a|b",
    ],
)
def test_an_operand_is_evaluated_once_for_all_who_compare_it(operand: str) -> None:
    index = index_of(*[f"{operand}={n}" for n in range(50)], *[f"{operand}='{n}' and b<{n}" for n in range(50)])
    expected = [n for n in range(100) if etree.XPath(f"{operand}={n % 50}")(etree.fromstring(SOURCE))]
    found = index.match(parse_metadata(SOURCE))
    assert sorted(n for n in found if n < 50) == [n for n in expected if n < 50]
    assert index.stats()["xpath_evaluations"] <= 1 + operand.startswith("string-length")


def test_two_bounds_of_one_operand_are_a_range() -> None:
    # Given many ranges of what is written out twice in each of them
    part = "substring(a,5,1)"
    index = index_of(*[f"{part} > {n} and {part} < {n + 2}" for n in range(20)])
    assert index.match(parse_metadata(SOURCE)) == [6]
    assert index.explain(compile_predicate(f"{part} > 6 and {part} < 8"))["indexed"]
    assert index.stats()["families"] == index.stats()["xpath_evaluations"] == 1


def test_an_operand_in_brackets_is_evaluated_for_each_node_there() -> None:
    index = index_of(*[f"P[round(c) = {n}]" for n in range(9)], "P[floor(c) = 5 and ceiling(c) = 7]")
    assert sorted(index.match(parse_metadata(SOURCE))) == [5, 7]


def test_what_nobody_asks_for_any_more_is_not_evaluated() -> None:
    index = index_of("string-length(a)=5", "string-length(b)=1")
    root = parse_metadata(SOURCE)
    index.match(root)
    index.remove(0)
    before = index.stats()["xpath_evaluations"]
    assert index.match(root) == [1]
    assert index.stats()["xpath_evaluations"] == before + 1
    # Expect it to be evaluated again when somebody asks again
    index.add(2, compile_predicate("string-length(a) > 4"))
    assert sorted(index.match(root)) == [1, 2]


def test_what_has_another_literal_inside_each_time_takes_no_room_from_others() -> None:
    index = index_of(*[f"count(P[c > {n}]) = 1" for n in range(100)])
    assert index.stats()["indexed"] == budget.MAX_ALIKE
    index.add(100, compile_predicate("string-length(a) = 5"))
    assert index.stats()["indexed"] == budget.MAX_ALIKE + 1
    assert sorted(index.match(parse_metadata(SOURCE))) == [5, 6, 100]


def test_an_operand_that_may_cost_too_much_on_a_document_is_asked_of_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given operands of which the document is too large for one
    index = index_of("count(//P[c > 5]) = 1", "string-length(a) = 5", "b = 2")
    dear, cheap = (reader.seconds for reader in index._state.layout.operands)
    root = parse_metadata(SOURCE)
    extent = cost.exact_extent(root, len(SOURCE))
    monkeypatch.setattr(cost, "MAX_SECONDS", (dear(extent) + cheap(extent)) / 2)
    # Expect those who ask for it to be false, and counted, and the others to be answered
    assert sorted(index.match(root, len(SOURCE))) == [1, 2]
    assert index.stats()["errors"] == 1


def test_an_operand_that_fails_or_selects_too_much_leaves_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of("//P//c = 7", "string-length(a) = 5", "P/c[2] | b = 2")
    monkeypatch.setattr("jbi_pubsub.core.xpath.index.document.MAX_NODES", 1)
    assert sorted(index.match(parse_metadata(SOURCE))) == [0, 1, 2]
    assert index.stats()["errors"] == 0


def test_readers_are_right_while_operands_come_and_go() -> None:
    # Given predicates that stay, and others whose operand nobody else has
    stay = ["string-length(a)=5", "not(contains(concat(a,b),'7'))", "name(*)='a'"]
    index = index_of(*stay)
    root, stop, wrong = parse_metadata(SOURCE), threading.Event(), []

    def read() -> None:
        own = parse_metadata(SOURCE)
        while not stop.is_set():
            found = index.match(own)
            if {0, 2} - set(found) or 1 in found or any(key % 2 for key in found if key > 9):
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for number in range(400):  # that of the odd key is never true, whatever slot it has from another one
            operand = f"substring(a,{1 + number % 5})"
            index.add(10, compile_predicate(f"not({operand}='') and b=2"))
            index.add(11, compile_predicate(f"{operand}='' or not({operand})"))
            if number % 3:
                index.remove(10)
                index.remove(11)
    finally:
        stop.set()
        for each in threads:
            each.join()
    assert wrong == []
    assert sorted(index.match(root)) == [0, 2, 10]


class TestBudget:
    def test_charges_an_operand_once(self) -> None:
        mine = CostBudget(0.02)
        charges = [[compile_predicate(f"substring-after(a,'-')='{n}' and b<{n}").charge] for n in range(5_000)]
        for each in charges:
            mine.check(each, "me")
            mine.add(each)
        assert mine.spent < 50e-6
        # Expect it to be paid as long as somebody asks for it
        for each in charges[1:]:
            mine.remove(each)
        assert mine.spent > 0
        mine.remove(charges[0])
        assert (len(mine), mine.spent) == (0, 0.0)

    def test_charges_what_has_no_room_by_itself(self) -> None:
        mine = CostBudget(1.0)
        charges = [[compile_predicate(f"count(P[c > {n}]) = 1").charge] for n in range(100)]
        for each in charges:
            mine.add(each)
        whole = charges[0][0].cost
        assert mine.spent > (100 - budget.MAX_ALIKE) * whole
        # Expect all to be given back, whichever goes first
        for each in charges[::-1]:
            mine.remove(each)
        assert (len(mine), mine.spent) == (0, 0.0)

    def test_refuses_what_is_dear_however_many_share_it(self) -> None:
        mine = CostBudget(0.02)
        charges = [[compile_predicate(f"count(//a[//b[//c{n}]]) > {n}").charge] for n in range(100)]
        for each in charges[:12]:
            mine.check(each, "me")
            mine.add(each)
        with pytest.raises(OversizeError):
            mine.check(charges[12], "me")

    @pytest.mark.parametrize("name", ["kinds", "mixed"])
    def test_five_hundred_ordinary_predicates_fit(self, name: str) -> None:
        mine = CostBudget(0.02)
        for text in matching.WORKLOADS[name](random.Random(1), 500):
            predicate = compile_predicate(text)
            mine.check([predicate.charge] * predicate.evaluates, "me")
            mine.add([predicate.charge] * predicate.evaluates)
        assert mine.spent < 0.001


def test_limits_of_cost_take_the_cheapest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "MAX_SECONDS", 3.0)
    monkeypatch.setattr(cost, "MAX_SECONDS_OF_OBJECT", 4.0)
    limits = operands.CostLimits([lambda _: 9.0, lambda _: 2.0, lambda _: 1.0, lambda _: 2.5])
    assert limits.of(cost.REFERENCE) == ({0, 3}, 3.0)


def test_operands_that_come_and_go_for_long_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_SLOTS", 512)
    # Given as many operands, one after the other, as an index has slots
    index: PredicateIndex[int] = PredicateIndex()
    for number in range(document.MAX_SLOTS + 10):
        index.add(0, compile_predicate(f"count(P[c > {number}]) = 1"))
    # Expect that the last one is read as the first was, and others beside it
    index.add(1, compile_predicate("string-length(a) = 5 and b = 2"))
    assert index.match(parse_metadata(SOURCE)) == [1]
    assert index.stats()["fallback"] == 0
    assert len(index._state.layout.blank) < 10
