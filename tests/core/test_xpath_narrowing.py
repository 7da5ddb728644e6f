"""A condition of somebody else's, ANDed to a predicate."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xpath import Predicate, PredicateIndex, compile_predicate, predicate, register_language
from jbi_pubsub.core.xpath.narrowing import joined, narrowed, negated

DOCUMENTS = [
    "<m/>",
    "<m><a>1</a></m>",
    "<m><a>1</a><b>p:a</b></m>",
    "<m xmlns:x='urn:x'><x:a>1</x:a></m>",
    "<m xmlns:x='urn:x' xmlns:y='urn:y'><x:a>1</x:a><y:a>2</y:a></m>",
    "<m xmlns:y='urn:y'><y:a>2</y:a><y:b>p:a</y:b></m>",
]
OWN: list[tuple[str, dict[str, str]]] = [
    ("a = '1'", {}),
    ("a or b", {}),
    ("p:a", {"p": "urn:x"}),
    ("child::p:a = '1' and 'p:a'", {"p": "urn:x"}),
    ("count(//p:*)", {"p": "urn:y"}),
    ("b = 'p:a' or p:b", {"p": "urn:y", "p-2": "urn:x"}),
]


@pytest.mark.parametrize(("own", "where"), list(itertools.product(OWN, OWN)), ids=str)
def test_it_is_true_for_what_both_are_true_for(own: Any, where: Any) -> None:
    mine, theirs = (compile_predicate(text, namespaces=spaces) for text, spaces in (own, where))
    both = narrowed(mine, (where[0], tuple(sorted(where[1].items()))))
    without = narrowed(mine, negated((where[0], tuple(sorted(where[1].items())))))
    index: PredicateIndex[str] = PredicateIndex()
    index.add("both", both)
    for text in DOCUMENTS:
        root = etree.fromstring(text)
        expected = mine.matches(root) and theirs.matches(root)
        assert both.matches(root) is expected, text
        assert index.match(root) == (["both"] if expected else []), text
        assert without.matches(root) is (mine.matches(root) and not theirs.matches(root)), text


def test_what_the_index_takes_of_both_it_takes_of_them_together() -> None:
    assert not narrowed(compile_predicate("a/b = '1'"), ("c/d > 5", ())).evaluates
    assert not narrowed(None, ("c/d > 5", ())).evaluates


def test_conditions_that_say_the_same_are_one() -> None:
    assert joined([("a", ()), ("a", ())], "or") == ("a", ())
    assert joined([("p:a", (("p", "urn:x"),)), ("p:a", (("p", "urn:y"),))], "or") == (
        "(p:a) or (p-2:a)",
        (("p", "urn:x"), ("p-2", "urn:y")),
    )


@pytest.fixture
def text_language() -> Any:
    def compiler(expression: str, namespaces: Any) -> Callable[[Any], bool]:  # a compiler's form
        def holds(root: Any) -> bool:
            if expression == "fails":
                raise ValueError("fails")
            return expression in "".join(root.itertext())

        return holds

    register_language("text", compiler)
    yield "text"
    del predicate._languages["text"]


def test_another_language_is_narrowed_as_well(text_language: str) -> None:
    def own(text: str) -> Predicate:
        return compile_predicate(text, language=text_language)

    where = ("a", ())
    one, other = narrowed(own("1"), where), narrowed(own("1"), ("b", ()))
    index: PredicateIndex[str] = PredicateIndex()
    for name, each in {"own": own("1"), "one": one, "other": other, "fails": narrowed(own("fails"), where)}.items():
        index.add(name, each)
    assert set(index.match(etree.fromstring("<m><a>1</a></m>"))) == {"own", "one"}
    assert set(index.match(etree.fromstring("<m><b>1</b></m>"))) == {"own", "other"}
    assert index.match(etree.fromstring("<m><a>2</a></m>")) == []


def test_what_is_too_much_together_is_refused() -> None:
    with pytest.raises(PredicateError):
        narrowed(compile_predicate("a='" + "x" * 8000 + "'"), ("b='" + "x" * 8000 + "'", ()))
