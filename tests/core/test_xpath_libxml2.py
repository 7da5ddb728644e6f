"""libxml2's own XPath tests (fixtures/xpath_libxml2, MIT): same truth, alone and through the index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from lxml import etree

from jbi_pubsub.core.errors import PredicateError
from jbi_pubsub.core.xpath import PredicateIndex, compile_predicate

FIXTURES = Path(__file__).parent.parent / "fixtures" / "xpath_libxml2"
DOCUMENTS = sorted((FIXTURES / "test" / "docs").iterdir(), key=lambda d: -len(d.name))
RESULTS = sorted(p for p in (FIXTURES / "result").rglob("*") if p.is_file())


def cases(file: Path) -> Iterator[tuple[str, str]]:
    """Expression and printed result."""
    for block in file.read_text(encoding="utf-8").split("========================\n")[1:]:
        found = re.match(r"Expression: (.*?)\n(.*)", block, re.DOTALL)
        assert found is not None
        yield found.group(1), found.group(2).strip()


def truth(result: str) -> bool | None:
    """boolean() of a printed result; None where libxml2 refused the expression."""
    kind, _, rest = result.partition(":")
    value = rest.strip()
    if kind.startswith("Object is a number"):
        return value not in ("0", "-0", "NaN")
    if kind.startswith("Object is a string"):
        return value not in ("", '""')
    if kind.startswith("Object is a Boolean"):
        return value == "true"
    return "contains 0 nodes" not in value if kind.startswith("Object is a Node Set") else None


def document_of(file: Path) -> etree._Element:
    if file.parent.name == "expr":
        return etree.fromstring("<none/>")
    source = next(d for d in DOCUMENTS if file.name.startswith(d.name))
    return etree.parse(str(source), etree.XMLParser(load_dtd=False, resolve_entities=False)).getroot()


@pytest.mark.parametrize("file", RESULTS, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_every_expression_has_libxml2s_truth(file: Path) -> None:
    root = document_of(file)
    expected: dict[str, bool | None] = {}
    found: dict[str, bool | None] = {}
    index: PredicateIndex[str] = PredicateIndex()
    for expression, result in cases(file):
        expected[expression] = truth(result)
        try:
            predicate = compile_predicate(expression)
        except PredicateError:
            found[expression] = None
            continue
        found[expression] = predicate.matches(root)
        index.add(expression, predicate)
    assert found == expected
    assert set(index.match(root)) == {e for e, true in expected.items() if true}


def test_all_of_them_are_read() -> None:
    assert sum(1 for file in RESULTS for _ in cases(file)) == 327
