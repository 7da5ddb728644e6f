"""Payload filters: what is selected, in which form, and that the form is always well-formed."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub.core.xml import Element, parse_payload
from jbi_pubsub.core.xpath import Selection, compile_filter, payload_filter
from jbi_pubsub.core.xpath import payload_filter as module

FIGURES = Path(__file__).parent.parent / "fixtures" / "intel_imagery"
SELECTION = "{urn:jbi-pubsub:selection:1}selection"
VALUE = "{urn:jbi-pubsub:selection:1}value"

FIGURE_4 = b"""<targets>
<descriptor><name>ALPHA50</name><type>F15E</type><position>
<lat>35.217</lat><ladir>N</ladir><long>62.267</long><lodir>E</lodir></position></descriptor>
<descriptor><name>BRAVO51</name><type>A10A</type><position>
<lat>34.817</lat><ladir>N</ladir><long>67.817</long><lodir>E</lodir></position></descriptor></targets>"""
FILTER_OF_FIGURE_4 = """//descriptor[(((./position/lat>'33.2') and
(./position/lat<'35.0')) and (./position/ladir='N'))
and (((./position/long<'70.0') and
(./position/long>'67.8')) and (./position/lodir='E'))]"""


def applied(expression: str, payload: bytes, **namespaces: str) -> tuple[Selection, Element]:
    """The selection, and its payload parsed again: it always must be well-formed."""
    root = parse_payload(payload)
    assert root is not None
    before = etree.tostring(root)
    selection = compile_filter(expression, namespaces=namespaces).apply(root)
    assert etree.tostring(root) == before  # other subscribers filter the same payload
    again = etree.fromstring(selection.payload)
    assert again.tag == SELECTION
    return selection, again


def test_the_papers_filter_returns_bravo51_only() -> None:
    selection, again = applied(FILTER_OF_FIGURE_4, FIGURE_4)
    assert selection.count == 1
    assert [n.text for n in again.iter("name")] == ["BRAVO51"]


def test_several_parts_come_in_document_order_in_one_payload() -> None:
    payload = b"<t>" + b"".join(b"<d><n>%d</n></d>" % i for i in range(10)) + b"</t>"
    selection, again = applied("//d[n=7] | //d[n=2] | //d[n=5]/preceding-sibling::d[1]", payload)
    assert selection.count == 3
    assert [d.findtext("n") for d in again] == ["2", "4", "7"]


def test_nothing_selected_is_an_empty_selection() -> None:
    selection, again = applied("//nothing", FIGURE_4)
    assert (selection.count, len(again), again.text) == (0, 0, None)


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("//@id", ["1", "<2>&\r\n"]),
        ("//a/text()", ["x", "y"]),
        ("//b/text() | //b/text()[2]", ["x<y>z"]),
        ("count(//b/text())", ["1"]),
        ("count(//a)", ["2"]),
        ("1 div 3", ["0.333333333333333"]),
        ("1 div 0", ["Infinity"]),
        ("count(//a)=2", ["true"]),
        ("concat('<',//a)", ["<x"]),
        ("''", [None]),
    ],
)
def test_what_is_no_element_comes_as_text(expression: str, texts: list[str | None]) -> None:
    payload = b'<t><a id="1">x</a><a id="&lt;2>&amp;&#13;&#10;">y</a><b>x<![CDATA[<y>]]>z</b></t>'
    selection, again = applied(expression, payload)
    assert selection.count == len(texts)
    assert [v.tag for v in again] == [VALUE] * len(texts)
    assert [v.text for v in again] == texts


def test_comments_and_instructions_are_kept() -> None:
    _, again = applied("//comment() | //processing-instruction()", b"<t><!--c--><a/><?p i?></t>")
    assert etree.tostring(again[0], with_tail=False) == b"<!--c-->"
    assert again[1].text == "i"


def test_a_part_with_a_cdata_section_is_the_same_document() -> None:
    payload = b"<t><a>1 <![CDATA[< 2 && ']]&gt;']]> 3<b/><![CDATA[]]]]><![CDATA[>]]></a></t>"
    _, again = applied("//a", payload)
    assert list(again[0].itertext()) == ["1 < 2 && ']]&gt;' 3", "]]>"]


def test_text_behind_an_element_is_not_part_of_it() -> None:
    selection, _ = applied("//a", b"<t><a>1</a>behind</t>")
    assert b"behind" not in selection.payload


def test_namespaces_stay_right() -> None:
    # Given a prefix declared above and used in content only, and one that collides with the selection's own
    payload = b'<t xmlns="urn:d" xmlns:v="urn:v" xmlns:jbi="urn:other"><a v="v:x"><jbi:b/></a></t>'
    _, again = applied("//d:a", payload, d="urn:d")
    # I expect the part to mean what it meant in the payload
    (part,) = again
    assert part.tag == "{urn:d}a"
    assert part.nsmap["v"] == "urn:v"
    assert part[0].tag == "{urn:other}b"


def test_a_part_in_no_namespace_stays_in_none() -> None:
    _, again = applied("//a", b"<t><a/></t>")
    assert again[0].tag == "a"


def test_nested_parts_are_both_there() -> None:
    selection, again = applied("//a", b"<t><a><a/></a></t>")
    assert selection.count == 2
    assert [len(part) for part in again] == [1, 0]


def test_different_filters_do_not_disturb_each_other() -> None:
    root = parse_payload(FIGURE_4)
    assert root is not None
    filters = [compile_filter(e) for e in ("//name", "//lat", "//descriptor[2]")]
    first = [f.apply(root) for f in filters]
    assert [s.count for s in first] == [2, 2, 1]
    assert [f.apply(root) for f in reversed(filters)] == first[::-1]


def test_a_selection_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given nested elements, each of which would be written with all that it holds
    monkeypatch.setattr(module, "MAX_SELECTION_BYTES", 2000)
    depth = 100
    root = etree.fromstring(b"<a>" * depth + b"</a>" * depth)
    cut = compile_filter("//a")
    # I expect an empty selection, counted and explained
    assert cut.apply(root) == module.NOTHING
    assert cut.errors == 1
    assert "more than 2000 bytes" in cut.last_error


def test_a_part_within_very_many_namespaces_is_not_selected() -> None:
    # Given parts within so many declarations that comparing them with each other would take minutes
    declared = b"".join(b" xmlns:n%d='urn:%d'" % (n, n) for n in range(100_000))
    root = parse_payload(b"<r" + declared + b"><a/><a/></r>")
    assert root is not None
    cut = compile_filter("//a")
    # Expect an empty selection, counted and explained
    assert cut.apply(root) == module.NOTHING
    assert "within more than 256 namespaces" in cut.last_error
    # and as many as may be to be there
    root = parse_payload(b"<r" + b"".join(b" xmlns:n%d='urn:%d'" % (n, n) for n in range(256)) + b"><a/></r>")
    assert root is not None
    assert len(etree.fromstring(cut.apply(root).payload)[0].nsmap) == 257


def test_a_failing_evaluation_selects_nothing() -> None:
    cut = compile_filter("position()")
    assert cut.apply(etree.fromstring("<m/>")) == module.NOTHING
    assert cut.errors == 1


def test_equal_filters_are_one_and_analysed_once_while_one_of_them_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a filter in use
    analysed = payload_filter.analysed
    asked: list[str] = []

    def noted(expression: str, *rest: Any, **named: Any) -> Any:
        asked.append(expression)
        return analysed(expression, *rest, **named)

    monkeypatch.setattr(payload_filter, "analysed", noted)
    one = compile_filter("//p:only-here", namespaces={"p": "urn:p"})
    # Expect an equal one to be the same object, without more ado, and one with another namespace to be another
    assert compile_filter("//p:only-here", namespaces={"p": "urn:p"}) is one
    assert asked == ["//p:only-here"]
    assert compile_filter("//p:only-here", namespaces={"p": "urn:q"}) is not one
    # and it to be made anew when it was out of use
    del one
    gc.collect()
    compile_filter("//p:only-here", namespaces={"p": "urn:p"})
    assert len(asked) == 3
