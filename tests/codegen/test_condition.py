"""A template as a predicate: it holds for all documents whose entries the template matches."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import parse_metadata

pytestmark = pytest.mark.processes

SCHEMA = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
<xs:element name="m"><xs:complexType><xs:sequence>
<xs:element name="a" type="xs:token"/><xs:element name="free" type="xs:string" minOccurs="0" jbi:variance="variant"/>
<xs:element name="n" type="xs:integer"/>
<xs:element name="d" type="xs:string" default="x"/>
<xs:element name="one"><xs:complexType><xs:sequence>
<xs:element name="t" type="xs:string"/></xs:sequence>
<xs:attribute name="k" type="xs:string"/></xs:complexType></xs:element>
<xs:element name="many" maxOccurs="2"><xs:complexType><xs:sequence>
<xs:element name="t" type="xs:string"/></xs:sequence></xs:complexType></xs:element>
</xs:sequence></xs:complexType></xs:element></xs:schema>"""
DOCUMENT = (
    "<m><a>{a}</a><n>{n}</n><d>{d}</d><one k='{k}'><t>{t}</t></one><many><t>{u}</t></many><many><t>{v}</t></many></m>"
)


def document(**values: str) -> bytes:
    return DOCUMENT.format(**{"a": "1", "n": "5", "d": "x", "k": "y", "t": "z", "u": "u", "v": "v"} | values).encode()


@pytest.fixture
def opened() -> InformationType:
    return TypeRepository().open_schema(SchemaBundle("m.xsd", (("m.xsd", SCHEMA),), type=TypeName("m")))


def test_what_a_template_says_of_texts_in_one_place_is_its_predicate(opened: InformationType) -> None:
    # Given a template of all that is invariant
    entries = opened.entries(parse_metadata(document(a="b", t="it  is")))
    # Expect the texts of single elements in it: numbers may be written otherwise, what has a default may be empty
    said = ("/m/a) = 'b'", "/m/one/t) = 'it is'", "/m/one/@k) = 'y'")
    assert opened.condition(entries) == " and ".join(f"normalize-space({each}" for each in said)
    # and nothing of a text with a quote, nor of a template that says nothing
    assert opened.condition(opened.entries(parse_metadata(document(a="b'", t="", k="")))) == ""
    assert opened.condition(()) == ""


def test_it_holds_wherever_the_template_matches(opened: InformationType) -> None:
    # Given documents that are written in many ways
    written: dict[str, tuple[str, ...]] = {
        "a": ("1", " 1 ", "1<!-- c -->", "2"), "n": ("5", "05", " 5"), "d": ("", "x"), "t": ("z", " z", "q"),
        "u": ("u", "z"),
    }  # fmt: skip
    documents = [document(**dict(zip(written, values, strict=True))) for values in itertools.product(*written.values())]
    roots = [etree.fromstring(each) for each in documents]
    kinds = {each: opened.entries(parse_metadata(each)) for each in documents}
    held = 0
    for template in list(dict.fromkeys(kinds.values()))[::3]:
        condition = opened.condition(template)
        decide: Any = etree.XPath(f"boolean({condition})")
        for root, each in zip(roots, documents, strict=True):
            # Expect the condition to hold for each whose entries are those of the template
            if kinds[each] == template:
                assert decide(root), (condition, each)
                held += 1
    assert held > len(documents) // 4


def test_the_figures_template_is_one(figures: Any) -> None:
    bundle = read_bundle(figures.schema, marks=None, name="", version="1.0", locations={})
    opened = TypeRepository().open_schema(bundle)
    condition = opened.condition(opened.template(parse_metadata(figures.figure_3)))
    assert "normalize-space(/metadata/RequiredMetadata/publisher) = '418th'" in condition
    assert etree.XPath(f"boolean({condition})")(etree.fromstring(figures.figure_1))
