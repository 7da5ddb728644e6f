"""Expressions that contradict a schema, and the reasons that are told for them; tests/core/test_impossible_fuzz.py has
that none is told wrongly."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import pytest
from lxml import etree

from jbi_pubsub.core.documents.outline import SchemaOutline
from jbi_pubsub.core.documents.simple import UnclearError
from jbi_pubsub.core.xpath.impossible import impossible

CAP: Final = "urn:oasis:names:tc:emergency:cap:1.2"
EXAMPLES: Final = Path(__file__).parent.parent.parent / "examples" / "data"
PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "xpath.md"
XSD: Final = "http://www.w3.org/2001/XMLSchema"


@pytest.fixture(scope="module")
def alerts() -> SchemaOutline:
    return SchemaOutline([etree.parse(EXAMPLES / "cap" / "cap12.xsd").getroot()], f"{{{CAP}}}alert")


def _said(expression: str, outline: SchemaOutline) -> list[str]:
    return [str(each) for each in impossible(expression, {"c": CAP}, outline)]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("/c:alert/c:inf/c:severity = 'Severe'", "there is no element c:inf in c:alert; did you mean c:info?"),
        ("c:info[c:severty = 'x' or c:urgncy]", "there is no element c:severty in c:info; did you mean c:severity?"),
        ("/c:alert/@foo", "there is no attribute @foo in c:alert"),
        (
            "/alert/info",
            f"alert without a prefix is in no namespace, and the schema's alert is in {CAP}: bind the prefix c",
        ),
        ("/c:alert/c:sent > '2001-01-01'", "> compares numbers, and xs:dateTime is none; compare the digits of times"),
        ("c:sent = 5", "= with a number compares numbers, and xs:dateTime is none; write the value in quotes"),
        ("c:status = 'Actuall'", "did you mean 'Actual'?"),
        ("count(c:inf) > 0", "there is no element c:inf"),
        ("-c:inf * 2 < 66", "there is no element c:inf"),
        ("not(true())", "it is false by itself"),
        ("c:info/c:area[c:polygon/c:x]", "there is no element c:x in c:polygon"),
    ],
)
def test_what_contradicts_the_schema_is_told_with_what_was_meant(
    expression: str, reason: str, alerts: SchemaOutline
) -> None:
    assert reason in _said(expression, alerts)[0]


@pytest.mark.parametrize(
    "expression",
    [
        "/c:alert/c:status = 'Actual'", "c:inf or c:info", "not(c:inf)", "count(c:inf) = 0", "c:info != 5",
        "//c:severty",  # a wildcard for signatures is in the schema, in which anything may be
        "number(translate(substring(/c:alert/c:sent, 1, 10), '-', '')) > 20260131",
        "c:info/.. and c:info/following::c:x", "boolean(c:inf) = false()", "c:inf = not(c:info)", "name()",
        "c:status = ''", "c:info[2]/c:area[last()]", "contains(c:inf, '')", "@*",
    ],
)  # fmt: skip
def test_what_may_match_is_told_nothing(expression: str, alerts: SchemaOutline) -> None:
    assert _said(expression, alerts) == []


@pytest.mark.parametrize(
    "inside",
    [
        '<xs:element name="m"/><xs:redefine schemaLocation="x"/>',
        '<xs:element name="m" type="t"/>',
        '<xs:element name="m"><xs:complexType><xs:group ref="g"/></xs:complexType></xs:element>',
        '<xs:element name="n"/>',
    ],
)
def test_a_schema_that_is_not_understood_is_not_held_against_anything(inside: str) -> None:
    root = etree.fromstring(f'<xs:schema xmlns:xs="{XSD}">{inside}</xs:schema>')
    try:
        outline = SchemaOutline([root], "m")
    except UnclearError:
        return
    assert impossible("m/x/y = 'z' and x", {}, outline) == ()


def test_the_page_of_xpath_says_what_is_told(alerts: SchemaOutline) -> None:
    rows = re.findall(
        r"^\| `(/.+?)` \| (.*\S) \|$", PAGE.read_text().partition("## Predicates that can")[2], re.MULTILINE
    )
    assert len(rows) == 6
    for expression, said in rows:
        if "is invariant" in said:  # of a registration, not of its schema
            continue
        assert said.replace("`", "") in _said(expression, alerts)[0]


def test_an_expression_that_would_take_long_is_not_judged() -> None:
    # Given elements that may all hold each other
    names = [f"e{number}" for number in range(150)]
    inside = "".join(f'<xs:element ref="{each}" minOccurs="0"/>' for each in names)
    group = f'<xs:complexType name="t"><xs:sequence>{inside}</xs:sequence></xs:complexType>'
    elements = "".join(f'<xs:element name="{each}" type="t"/>' for each in names)
    outline = SchemaOutline([etree.fromstring(f'<xs:schema xmlns:xs="{XSD}">{group}{elements}</xs:schema>')], "e0")
    assert impossible("//x", {}, outline)
    begun = time.process_time()
    for _ in range(3):
        assert impossible("//*[.//*[.//x]]", {}, outline) == ()
    assert time.process_time() - begun < 3


def test_types_that_may_stand_for_one_are_work_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jbi_pubsub.core.documents.outline.MAX_WORK", 50_000)
    # Given elements of a type from which many others are derived, each of which xsi:type may put there
    derived = "".join(
        f'<xs:complexType name="t{number}"><xs:complexContent><xs:extension base="b"/></xs:complexContent>'
        "</xs:complexType>"
        for number in range(250)
    )
    elements = "".join(f'<xs:element name="e{number}" type="b"/>' for number in range(220))
    text = (
        f'<xs:schema xmlns:xs="{XSD}"><xs:complexType name="b"/>{derived}<xs:element name="r"><xs:complexType>'
        f"<xs:sequence>{elements}</xs:sequence></xs:complexType></xs:element></xs:schema>"
    )
    outline = SchemaOutline([etree.fromstring(text)], "r")
    # Expect a path that needs no look at all of them to be judged, and one that does not to be
    assert impossible("e0/x", {}, outline)
    assert impossible("//x > 3", {}, outline) == ()
