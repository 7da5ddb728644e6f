"""Simple content that restricts a mixed type; and whose fault it is when a schema can't be read."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.codegen import opening, walk
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.core.errors import MetadataError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.xml import parse_metadata

SIMPLE = """<xs:complexType name="B"><xs:simpleContent><xs:extension base="xs:string">
<xs:attribute name="scheme" type="xs:string"/></xs:extension></xs:simpleContent></xs:complexType>"""
ANY = '<xs:any processContents="lax" minOccurs="0" maxOccurs="0"/>'
CHILD = '<xs:element name="e" minOccurs="0" type="xs:string"/>'
REFERENCE = '<xs:element ref="elsewhere" minOccurs="0"/>'


def mixed(content: str) -> str:
    return f"""<xs:complexType name="B" mixed="true"><xs:sequence>{content}</xs:sequence>
    <xs:attribute name="scheme" type="xs:string"/></xs:complexType><xs:element name="elsewhere" type="xs:int"/>"""


def bundle(base: str, inner: str) -> SchemaBundle:
    """A document element with one of a type that restricts B."""
    restricted = f"""<xs:complexType name="W"><xs:simpleContent><xs:restriction base="B">{inner}</xs:restriction>
    </xs:simpleContent></xs:complexType>"""
    root = '<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="v" type="W"/></xs:sequence></xs:complexType></xs:element>'  # noqa: E501  # one line of XML
    text = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{base}{restricted}{root}</xs:schema>'
    return read_bundle(text.encode(), root="r")


def simple(content: str) -> str:
    return f"<xs:simpleType>{content}</xs:simpleType>"


INT = simple('<xs:restriction base="xs:int"/>')
UNION = simple('<xs:union memberTypes="xs:gYear xs:date"/>')


@pytest.mark.parametrize("content", [ANY, CHILD, REFERENCE, ""], ids=["any", "element", "reference", "nothing"])
@pytest.mark.parametrize(
    ("inner", "text", "value", "bad"),
    [
        (INT, " 012 ", "12", "x"),
        (INT + '<xs:maxInclusive value="9"/>', "07", "7", "12"),
        (simple('<xs:restriction base="xs:int"><xs:enumeration value="1"/></xs:restriction>'), "01", "1", "2"),
        (simple('<xs:list itemType="xs:int"/>'), " 01  2 ", "1 2", "x"),
        (UNION, "2003-02-01+13:00", "2003-01-31-11:00", "x"),
        (simple('<xs:restriction base="xs:token"/>'), " a  b ", "a b", None),
    ],
    ids=["int", "facet", "enumeration", "list", "union", "token"],
)
def test_a_mixed_type_is_restricted_to_simple_content(
    content: str, inner: str, text: str, value: str, bad: str | None
) -> None:
    """Given Dublin Core's way of making a value of mixed content, when a document is registered, then the value is that
    of the simple type."""
    opened = open_type(bundle(mixed(content), inner))
    (entry,) = opened.entries(parse_metadata(f'<r><v scheme="s">{text}</v></r>'.encode()))
    assert entry.as_dict() == {"value": value, "scheme": "s"}
    if bad is not None:
        with pytest.raises(MetadataError):
            opened.entries(parse_metadata(f"<r><v>{bad}</v></r>".encode()))


def test_simple_content_is_restricted_by_a_type_of_its_own() -> None:
    opened = open_type(bundle(SIMPLE, simple('<xs:restriction base="xs:token"/>')))
    (entry,) = opened.entries(parse_metadata(b"<r><v> a  b </v></r>"))
    assert entry.as_dict()["value"] == "a b"


@pytest.mark.parametrize("kind", [AttributeError, KeyError, AssertionError, TypeError])
def test_what_we_have_not_thought_of_is_no_fault_of_a_valid_schema(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a reader that falls over a valid schema, then nobody is sent to look for what is wrong with that."""

    def falls(*_: Any) -> None:
        raise kind("facets")

    monkeypatch.setattr(walk, "read_schema", falls)
    with pytest.raises(SchemaError, match=rf"can't be read here: {kind.__name__}: .*facets") as told:
        open_type(bundle(SIMPLE, '<xs:maxLength value="5"/>'))
    assert told.value.hint == opening.OUR_FAULT


def test_what_is_invalid_is_told_as_that() -> None:
    """Given a schema that is invalid, then its author hears where, whoever notices it."""
    with pytest.raises(SchemaError, match="content type is not a restriction of base content") as told:
        open_type(bundle(SIMPLE, INT))
    assert told.value.hint != opening.OUR_FAULT
