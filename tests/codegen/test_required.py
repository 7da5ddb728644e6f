"""A registration has all invariants that valid metadata have: without one nothing could be published under it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import InvariantError

HEAD = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
<xs:element name="r" jbi:variance="invariant"><xs:complexType><xs:sequence>
"""
TAIL = "</xs:sequence></xs:complexType></xs:element></xs:schema>"
OPTIONAL = '<xs:element name="a" type="xs:int" minOccurs="0"/>'
COMPLEX = "<xs:complexType>{}</xs:complexType></xs:element>"
INNER = COMPLEX.replace("{}", '<xs:sequence><xs:element name="c" type="xs:int" {least}/></xs:sequence>')


@pytest.mark.parametrize(
    ("content", "document", "lacks"),
    [
        # an element; one behind an optional one; one below a required one, and below one that is optional
        ('<xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:int"/>', "<r><a>1</a></r>", "/r/b"),
        (OPTIONAL + '<xs:element name="b" type="xs:int"/>', "<r/>", "/r/b"),
        ('<xs:element name="b">' + INNER.format(least=""), "<r/>", "/r/b"),
        ('<xs:element name="b">' + INNER.format(least=""), "<r><b/></r>", "/r/b/c"),
        ('<xs:element name="b">' + INNER.format(least='minOccurs="0"'), "<r/>", ""),
        ('<xs:element name="b" minOccurs="0">' + INNER.format(least=""), "<r/>", ""),
        ('<xs:element name="b" minOccurs="0">' + INNER.format(least=""), "<r><b/></r>", "/r/b/c"),
        # one that may come often, one of a choice, one of a group that may be left out
        ('<xs:element name="b" type="xs:int" maxOccurs="9"/>', "<r/>", "/r/b"),
        ('<xs:choice><xs:element name="a" type="xs:int"/><xs:element name="b" type="xs:int"/></xs:choice>', "<r/>", ""),
        ('<xs:sequence minOccurs="0"><xs:element name="b" type="xs:int"/></xs:sequence>', "<r/>", ""),
        ('<xs:sequence><xs:element name="b" type="xs:int"/></xs:sequence>', "<r/>", "/r/b"),
        # an attribute, and what is variant
        ('<xs:element name="b">' + COMPLEX.format('<xs:attribute name="k" use="required"/>'), "<r><b/></r>", "/r/b/@k"),
        (OPTIONAL + '<xs:element name="b" type="xs:int" jbi:variance="variant"/>', "<r/>", ""),
    ],
)
def test_a_registration_that_nothing_could_be_published_under_is_refused(
    federation: Any, tmp_path: Path, content: str, document: str, lacks: str
) -> None:
    federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    schema = tmp_path / "r.xsd"
    schema.write_text(HEAD + content + TAIL)
    if not lacks:
        publisher.register_publisher(delegate, schema, document)
        return
    with pytest.raises(InvariantError, match=f"invariant metadata lacks {lacks}, which is invariant") as caught:
        publisher.register_publisher(delegate, schema, document)
    assert caught.value.facts["path"] == lacks
    # Where objects are not validated, some without it may come
    publisher.register_publisher(delegate, schema, document, validate=False)
