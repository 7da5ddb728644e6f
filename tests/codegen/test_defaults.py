"""Empty elements with a default or fixed value are read as validation reads them."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.core.errors import InvariantError, MetadataError
from jbi_pubsub.core.xml import parse_metadata

SCHEMA = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:complexType name="Length"><xs:simpleContent><xs:extension base="xs:int"><xs:attribute name="unit" default="m"/>
</xs:extension></xs:simpleContent></xs:complexType>
<xs:element name="r"><xs:complexType><xs:sequence>
<xs:element name="n" type="xs:int" default=" 07 " minOccurs="0"/>
<xs:element name="f" type="xs:decimal" fixed="1.50" minOccurs="0"/>
<xs:element name="s" type="xs:string" default="x" minOccurs="0" nillable="true"/>
<xs:element name="one" type="Length" default="1" minOccurs="0"/>
<xs:element name="two" type="Length" default="2" minOccurs="0"/>
<xs:element name="none" type="Length" minOccurs="0"/>
<xs:element name="many" type="xs:int" default="9" minOccurs="0" maxOccurs="unbounded"/>
</xs:sequence><xs:attribute name="a" type="xs:int" default="3"/></xs:complexType></xs:element></xs:schema>"""
XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'


@pytest.fixture(scope="module")
def opened() -> Any:
    return open_type(read_bundle(SCHEMA, root="r"))


def values(opened: Any, document: str) -> list[dict[str, str]]:
    """What each entry says, of a document that is valid."""
    root = parse_metadata(document.encode())
    opened.validate(root)
    return [{k: v for k, v in entry.as_dict().items() if v is not None} for entry in opened.entries(root)]


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ("<r><n/></r>", [{"n": "7"}]),
        ("<r><n><!-- as usual --></n></r>", [{"n": "7"}]),
        ("<r><f></f></r>", [{"f": "1.5"}]),
        ("<r><s/></r>", [{"s": "x"}]),
        ("<r><s> </s></r>", [{"s": " "}]),
        ("<r><one/><two unit='km'/></r>", [{"value": "1"}, {"value": "2", "unit": "km"}]),
        ("<r><many/><many>8</many></r>", [{"value": "9"}, {"value": "8"}]),
        ("<r/>", []),
    ],
    ids=["default", "comment", "fixed", "text", "blank", "beside attributes", "repeated", "absent"],
)
def test_an_empty_element_has_the_value_that_validation_gives_it(
    opened: Any, document: str, found: list[dict[str, str]]
) -> None:
    assert values(opened, document) == found


def test_nil_is_no_default_and_what_has_none_is_refused(opened: Any) -> None:
    assert values(opened, f'<r {XSI}><n/><s xsi:nil="true"/></r>') == [{"n": "7"}]
    with pytest.raises(MetadataError, match="/r/none is ''"):
        opened.entries(parse_metadata(b"<r><none/></r>"))
    with pytest.raises(MetadataError, match="/r/@a is ''"):
        opened.entries(parse_metadata(b'<r a=""/>'))


@pytest.mark.parametrize("nil", [" 1 ", "true\n", "1"])
def test_space_around_nil_does_not_count(opened: Any, nil: str) -> None:
    assert values(opened, f'<r {XSI}><n/><s xsi:nil="{nil}"/></r>') == [{"n": "7"}]


@pytest.mark.parametrize("form", ["default", "fixed"])
def test_the_default_of_a_qualified_name_is_left_to_validation(form: str) -> None:
    """Its prefix is the schema's, which a document need not know."""
    leaf = f'<xs:element name="q" type="xs:QName" {form}="xs:int"/><xs:element name="n" type="xs:int"/>'
    content = f"<xs:complexType><xs:sequence>{leaf}</xs:sequence></xs:complexType>"
    xs = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
    kind = open_type(
        read_bundle(f'<xs:schema {xs}><xs:element name="r">{content}</xs:element></xs:schema>'.encode(), root="r")
    )
    assert values(kind, f"<r {xs}><q/><n>1</n></r>") == [{"n": "1"}]


def test_who_has_registered_a_value_may_publish_it_as_the_default(opened: Any) -> None:
    registered = opened.entries(parse_metadata(b"<r><n>7</n></r>"))
    opened.check_invariants(parse_metadata(b"<r><n/></r>"), registered)
    with pytest.raises(InvariantError):
        opened.check_invariants(parse_metadata(b"<r><n>8</n></r>"), registered)


def test_no_template_is_derived_that_would_miss_an_empty_element(opened: Any) -> None:
    """XPath sees the text as it stands: where a predicate asks for that of an empty one, nothing is asked at
    registration."""
    (entry,) = opened.entries(parse_metadata(b"<r><s/></r>"))
    assert entry.as_dict()["s"] == "x"
    assert opened.derive("/r/s = ''") == ()
    assert [each.as_dict()["s"] for each in opened.derive("/r/s = 'x'")] == ["x"]
