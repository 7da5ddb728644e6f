"""Payload filters: only the parts a subscriber needs, cut at the dissemination node (2.3.2)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from lxml import etree

JPEG = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + random.Random(3).randbytes(3000) + b"\xff\xd9"


def _texts(payload: bytes, path: str) -> list[str]:
    return [str(text) for text in etree.fromstring(payload).xpath(f"{path}/text()")]


def _targets(count: int) -> bytes:
    each = "".join(f"<descriptor><name>T{n}</name><n>{n}</n></descriptor>" for n in range(count))
    return f"<targets>{each}</targets>".encode()


@pytest.mark.row("J-11", "J-48")
def test_the_filter_of_figure_4_returns_bravo51_only(walk: Any, figure_4_filter: str, selection: str) -> None:
    # Given a subscription with the filter of section 2.3.2, verbatim
    uid = walk.subscribe(payload_filter=figure_4_filter)
    # When figure 4 is published
    walk.publish(payload=walk.figures.figure_4)
    # Expect BRAVO51 without ALPHA50 (which lies north of the rectangle)
    (payload,) = walk.payloads(uid)
    root = etree.fromstring(payload)
    assert root.tag == selection
    assert [child.findtext("name") for child in root] == ["BRAVO51"]
    assert b"ALPHA50" not in payload
    assert [child.findtext("position/lat") for child in root] == ["34.817"]


@pytest.mark.row("J-50")
@pytest.mark.parametrize(
    "expression",
    [
        "//descriptor[n = 2 or n = 5 or n = 7]",
        "//descriptor[n = 7] | //descriptor[n = 2] | //descriptor[n = 5]",
        "//descriptor[n = 8]/preceding-sibling::*[n = 2 or n = 5 or n = 7]",
    ],
)
def test_several_parts_come_in_document_order_in_one_well_formed_payload(
    walk: Any, selection: str, expression: str
) -> None:
    # Given filters that select three of ten descriptors, in any order
    uid = walk.subscribe(payload_filter=expression)
    # When ten are published
    walk.publish(payload=_targets(10))
    # Expect exactly the three, in the order of the document
    (payload,) = walk.payloads(uid)
    root = etree.fromstring(payload)
    assert root.tag == selection
    assert [child.tag for child in root] == ["descriptor"] * 3
    assert _texts(payload, "descriptor/name") == ["T2", "T5", "T7"]


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("string(//name[2])", "B & C"),
        ("count(//name)", "2"),
        ("count(//name) > 1", "true"),
        ("//name = 'X'", "false"),
        ("//name[1]/text()", "A"),
        ("//name/@code", "7"),
        ("1 div 4", "0.25"),
    ],
)
def test_what_is_not_an_element_comes_as_text(walk: Any, selection: str, expression: str, text: str) -> None:
    # Given filters whose result is text, a number, a boolean or an attribute
    uid = walk.subscribe(payload_filter=expression)
    # When XML is published
    walk.publish(payload=b"<a><name code='7'>A</name><name>B &amp; C</name></a>")
    # Expect the result as text in a selection, always well-formed
    (payload,) = walk.payloads(uid)
    root = etree.fromstring(payload)
    assert root.tag == selection
    assert "".join(root.itertext()) == text or list(root.attrib.values()) == [text]


def test_a_selected_part_keeps_its_namespaces_and_content(walk: Any, selection: str) -> None:
    # Given a filter with a prefix of the subscriber's choice
    uid = walk.subscribe(payload_filter="//p:b", namespaces={"p": "urn:x"})
    # When the payload binds the namespace to another prefix, at its root
    walk.publish(payload='<x:a xmlns:x="urn:x"><x:b c="ä &lt;">1<!--k--><x:d/></x:b>tail</x:a>'.encode())
    # Expect the part with its namespaces and all that is in it, without what follows it
    (payload,) = walk.payloads(uid)
    (part,) = etree.fromstring(payload)
    assert part.tag == "{urn:x}b"
    assert (part.get("c"), part.text, part[1].tag) == ("ä <", "1", "{urn:x}d")
    assert b"tail" not in payload


@pytest.mark.row("J-51")
def test_a_filter_that_selects_nothing_delivers_an_empty_selection(walk: Any, selection: str) -> None:
    # Given a subscription whose filter selects nothing in this payload
    uid = walk.subscribe(payload_filter="//nothing")
    # When XML is published
    walk.publish(payload=_targets(2))
    # Expect the object with an empty, well-formed selection
    (obj,) = walk.received(uid)
    root = etree.fromstring(obj.payload)
    assert (root.tag, len(root), root.text) == (selection, 0, None)
    assert obj.metadata == walk.figures.figure_1


@pytest.mark.row("J-51")
def test_a_filter_that_selects_nothing_can_suppress_the_object(walk: Any) -> None:
    # Given a subscription that asks for it
    uid = walk.subscribe(payload_filter="//n[. > 5]", suppress_empty=True)
    # When one object has nothing of interest, and the next has
    walk.publish(payload=_targets(2))
    walk.publish(payload=_targets(7))
    # Expect the second only; the first is no loss
    (payload,) = walk.payloads(uid)
    assert _texts(payload, "n") == ["6"]
    assert walk.subscriber.losses(uid) == {}
    assert walk.record(uid)["suppressed"] == 1


@pytest.mark.row("J-11", "J-52", "J-53")
@pytest.mark.parametrize("suppress_empty", [False, True])
@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(JPEG, id="JPEG"),
        pytest.param(b"", id="empty"),
        pytest.param(b"plain text", id="text"),
        pytest.param(b"<a><b></a>", id="malformed XML"),
        pytest.param(b"<a/><b/>", id="two roots"),
        pytest.param(b"<a>\x00</a>", id="forbidden character"),
        pytest.param(b'<?xml version="1.0" encoding="UTF-8"?><a>\xff</a>', id="wrong encoding"),
        pytest.param(b"<a>&unknown;</a>", id="unknown entity"),
    ],
)
def test_a_payload_that_is_not_well_formed_xml_passes_unchanged(
    walk: Any, payload: bytes, *, suppress_empty: bool
) -> None:
    # Given a subscription with a filter
    uid = walk.subscribe(payload_filter="//b", suppress_empty=suppress_empty)
    # When the payload happens not to be XML
    walk.publish(payload=payload)
    # Expect it byte by byte, no error
    assert walk.payloads(uid) == [payload]


def test_xml_that_cannot_be_filtered_is_lost_or_comes_whole_as_it_was_wished(walk: Any) -> None:
    # Given subscriptions with a filter, one of which wants what that can't be applied to
    usual, whole = (walk.subscribe(payload_filter="//id", unfiltered=choice) for choice in (None, "deliver"))
    # When a document nested too deeply comes before one with a long text, as of a picture
    deep = b"<r><id>1</id>" + b"<a>" * 500 + b"</a>" * 500 + b"</r>"
    walk.publish(payload=deep)
    walk.publish(payload=b"<r><id>2</id><image>" + b"QUJD" * 2_700_000 + b"</image></r>")
    # Expect the second one's part for both, and of the first a loss, or all of it
    (obj,) = walk.received(usual)
    assert _texts(obj.payload, "id") == ["2"]
    assert walk.subscriber.losses(usual) == {"oversize": 1}
    first, second = walk.received(whole)
    assert (first.payload, first.is_selection) == (deep, False)
    assert (second.payload, second.is_selection) == (obj.payload, True)


@pytest.mark.row("J-47")
def test_a_filter_sees_the_payload_only(walk: Any) -> None:
    # Given a filter that names an element of the metadata
    uid = walk.subscribe(payload_filter="//publisher | //lat | /metadata")
    # When an XML payload without such elements is published
    walk.publish(payload=_targets(3))
    # Expect that nothing is selected
    (payload,) = walk.payloads(uid)
    assert len(etree.fromstring(payload)) == 0


@pytest.mark.row("J-55", "J-90")
def test_filters_leave_metadata_and_the_publishers_copy_untouched(walk: Any) -> None:
    # Given three subscribers with three filters, and one without
    filters = ["//descriptor[n = 0]", "//descriptor[n = 1]/name", "count(//descriptor)", ""]
    uids = [walk.subscribe(payload_filter=each) for each in filters]
    original = _targets(3)
    copy = bytearray(original)
    # When the same object is published to all of them
    walk.publish(payload=copy)
    # Expect three different payloads and the whole one; metadata and the publisher's copy as they were
    found = [walk.received(uid)[0] for uid in uids]
    assert len({obj.payload for obj in found}) == 4
    assert len({obj.object_id for obj in found}) == 1
    assert _texts(found[0].payload, "descriptor/name") == ["T0"]
    assert _texts(found[1].payload, "name") == ["T1"]
    assert "".join(etree.fromstring(found[2].payload).itertext()) == "3"
    assert found[3].payload == original == bytes(copy)
    assert {obj.metadata for obj in found} == {walk.figures.figure_1}
    assert {obj.platform.payload_length for obj in found} == {len(original)}


@pytest.mark.row("J-54")
def test_filtering_saves_the_bandwidth_between_node_and_subscriber(walk: Any, bytes_from: Callable[[str], int]) -> None:
    # Given a filter that selects little of a payload of half a megabyte
    uid = walk.subscribe(payload_filter="//descriptor[n = 5000]")
    address = walk.publishing.status()["address"]
    payload = _targets(10_000)
    assert len(payload) > 450_000
    before = bytes_from(address)
    # When it is published
    walk.publish(payload=payload)
    obj = walk.subscriber.receive(uid)
    # Expect the selected part and at most 2 KiB more on the way to the subscriber; metadata are untouched
    assert _texts(obj.payload, "descriptor/name") == ["T5000"]
    assert bytes_from(address) - before <= len(obj.payload) + 2048
    assert obj.metadata == walk.figures.figure_1
