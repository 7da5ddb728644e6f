"""What schemas of the world do: types that lead back to themselves, layouts of many folders, marks of later versions.

Made for the purpose, after NewsML-G2's parties, NIEM's metadata, XHTML's inline elements, GML's imports.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.render import render
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.core.errors import MetadataError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.lookup.entry import matches

PARTIES = """
<xs:complexType name="Party"><xs:sequence>
 <xs:element name="name" type="xs:string"/>
 <xs:element name="affiliation" type="Affiliation" minOccurs="0" maxOccurs="9"/>
 <xs:element name="contact" type="Contact" minOccurs="0"/></xs:sequence></xs:complexType>
<xs:complexType name="Affiliation"><xs:sequence>
 <xs:element name="since" type="xs:date"/>
 <xs:element name="organisation" type="Party" minOccurs="0"/>
 <xs:element name="predecessor" type="Affiliation" minOccurs="0"/></xs:sequence></xs:complexType>
<xs:complexType name="Contact"><xs:sequence>
 <xs:element name="street" type="xs:string"/>
 <xs:element name="manager" type="Party" minOccurs="0"/></xs:sequence></xs:complexType>
<xs:element name="r"><xs:complexType><xs:sequence>
 <xs:element name="creator" type="Party"/><xs:element name="contributor" type="Party" maxOccurs="9"/>
</xs:sequence></xs:complexType></xs:element>"""


def test_types_that_lead_back_to_themselves_have_one_class_each(make: Any) -> None:
    # Given parties that are affiliated with parties that have contacts that have managers
    kind = make.type(make.schema(PARTIES))
    # Expect a class for each type, and one below it for each way into them
    assert {entry.name: entry.base for entry in kind.model.entries} == {
        "PartyEntry": "",
        "AffiliationEntry": "",
        "ContactEntry": "",
        "CreatorEntry": "PartyEntry",
        "ContributorEntry": "PartyEntry",
    }
    compile(render(kind.model), "parties", "exec")
    # When a document goes four types deep
    document = parse_metadata(
        b"<r><creator><name>A</name><affiliation><since>2001-01-01</since><organisation><name>B</name><contact>"
        b"<street>S</street><manager><name>C</name></manager></contact></organisation></affiliation></creator>"
        b"<contributor><name>D</name></contributor></r>"
    )
    kind.validate(document)
    published = kind.entries(document)
    # Expect all its values, and templates for each depth that find them
    assert make.shown(published) == [
        ("CreatorEntry", {"name": "A"}),
        ("AffiliationEntry", {"since": "2001-01-01"}),
        ("PartyEntry", {"name": "B"}),
        ("ContactEntry", {"street": "S"}),
        ("PartyEntry", {"name": "C"}),
        ("ContributorEntry", {"name": "D"}),
    ]
    for predicate, found in (
        ("/r/creator/name='A'", True),
        ("/r/creator/name='D'", False),
        ("/r/creator/affiliation/organisation/contact/manager/name='C'", True),
        ("/r/creator/affiliation/organisation/name='X'", False),
    ):
        templates = kind.derive(predicate)
        assert templates
        assert all(any(matches(template, entry) for entry in published) for template in templates) is found
    kind.check_invariants(document, published)


def test_what_lies_inside_such_types_has_one_class_each_as_well(make: Any) -> None:
    # Given 30 types that may hold each other, each with two kinds of elements that hold nothing further
    content = '<xs:group ref="inline"/>'
    elements = "".join(
        f'<xs:element name="i{n}"><xs:complexType><xs:choice minOccurs="0" maxOccurs="9">{content}</xs:choice>'
        '<xs:attribute name="class" type="xs:string"/></xs:complexType></xs:element>'
        for n in range(30)
    )
    refs = "".join(f'<xs:element ref="i{n}"/>' for n in range(30))
    image = '<xs:complexType><xs:attribute name="src" type="xs:string"/></xs:complexType>'
    group = f'<xs:group name="inline"><xs:choice>{refs}<xs:element ref="img"/></xs:choice></xs:group>'
    root = f'<xs:element name="r"><xs:complexType><xs:sequence>{content}</xs:sequence></xs:complexType></xs:element>'
    kind = make.type(make.schema(f'{elements}<xs:element name="img">{image}</xs:element>{group}{root}'))
    # Expect one class for those inside of them, and one for those outside
    assert sum("img" in entry.name.lower() for entry in kind.model.entries) == 2
    assert len(kind.model.entries) <= 62


def test_the_extension_of_a_type_that_leads_back_to_itself_is_found_by_its_base(make: Any) -> None:
    # Given a node that may hold nodes, and one that is more than a node
    kind = make.type(
        make.schema(
            '<xs:complexType name="Node"><xs:sequence><xs:element name="v" type="xs:string"/>'
            '<xs:element name="n" type="Node" minOccurs="0" maxOccurs="9"/></xs:sequence></xs:complexType>'
            '<xs:complexType name="Big"><xs:complexContent><xs:extension base="Node"><xs:sequence>'
            '<xs:element name="w" type="xs:string"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>'
            '<xs:complexType name="Small"><xs:complexContent><xs:restriction base="Node"><xs:sequence>'
            '<xs:element name="v" type="xs:token"/></xs:sequence></xs:restriction></xs:complexContent></xs:complexType>'
            '<xs:element name="r" type="Node"/>'
        )
    )
    document = make.document(
        '<r xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><v>1</v><n xsi:type="Big"><v>2</v><w>x</w></n>'
        '<n xsi:type="Small"><v>3</v></n></r>'
    )
    kind.validate(document)
    published = kind.entries(document)
    assert make.shown(published) == [
        ("NodeEntry", {"v": "1"}),
        ("BigEntry", {"v": "2", "w": "x"}),
        ("NodeEntry", {"v": "3"}),
    ]
    # Expect a predicate on any of them to find it, whatever stands in its place
    for value in "123":
        [template] = kind.derive(f"/r/n/v='{value}'")
        assert any(matches(template, entry) for entry in published)


def test_marks_of_single_paths_into_such_types_are_kept_to(make: Any) -> None:
    kind = make.type(make.schema(PARTIES), invariant=["/r/creator/affiliation/organisation/name"])
    document = make.document(
        "<r><creator><name>A</name><affiliation><since>2001-01-01</since><organisation><name>B</name></organisation>"
        "</affiliation></creator></r>"
    )
    assert make.shown(kind.entries(document)) == [("OrganisationEntry", {"name": "B"})]
    without = make.type(make.schema(PARTIES), variant=["/r/creator/affiliation"])
    assert ("AffiliationEntry", {"since": "2001-01-01"}) not in make.shown(without.entries(document))


@pytest.mark.parametrize("attribute", ['vc:minVersion="1.1"', 'vc:minVersion="1.0"', 'vc:maxVersion="1.1"'])
def test_a_schema_that_names_a_version_is_read_as_it_is_validated(make: Any, attribute: str) -> None:
    # Given a schema that says that it is for a processor of version 1.1, with nothing of 1.1 in it
    versions = f'xmlns:vc="http://www.w3.org/2007/XMLSchema-versioning" {attribute}'
    kind = open_type(read_bundle(make.schema('<xs:element name="r" type="xs:int"/>', versions), root="r"))
    assert [path for path, _ in kind.model.invariants] == ["/r"]
    kind.validate(make.document("<r>1</r>"))


def test_of_declarations_for_several_versions_those_of_1_0_count(make: Any) -> None:
    versions = 'xmlns:vc="http://www.w3.org/2007/XMLSchema-versioning"'
    both = '<xs:element name="r" type="xs:{}" vc:{}Version="1.1"/>'
    kind = open_type(
        read_bundle(make.schema(both.format("int", "min") + both.format("date", "max"), versions), root="r")
    )
    kind.validate(make.document("<r>2001-01-01</r>"))
    assert kind.model.invariants[0][1].type.builtin == "date"


def published_layout(folder: Path, make: Any) -> Path:
    """a/main.xsd imports a document of the folder above by path, and one by its address."""
    (folder / "a").mkdir()
    (folder / "copies/deep").mkdir(parents=True)
    links = (
        '<xs:import namespace="urn:c" schemaLocation="../c.xsd"/>'
        '<xs:import namespace="urn:d" schemaLocation="http://example.org/schemas/deep/d.xsd"/>'
    )
    content = '<xs:element ref="c:c" xmlns:c="urn:c"/><xs:element ref="d:d" xmlns:d="urn:d"/>'
    root = f'<xs:element name="r"><xs:complexType><xs:sequence>{content}</xs:sequence></xs:complexType></xs:element>'
    (folder / "a/main.xsd").write_bytes(make.schema(links + root))
    one = '<xs:element name="{}" type="xs:int"/>'
    (folder / "c.xsd").write_bytes(make.schema(one.format("c"), 'targetNamespace="urn:c"'))
    # as the W3C's own documents begin
    doctype = b'<?xml version="1.0"?>\n<!DOCTYPE xs:schema PUBLIC "-//W3C//DTD" "x.dtd" [\n<!ENTITY % p ""> ]>\n'
    (folder / "copies/deep/d.xsd").write_bytes(doctype + make.schema(one.format("d"), 'targetNamespace="urn:d"'))
    return folder / "a/main.xsd"


@pytest.mark.parametrize(
    "key", ["http://example.org/schemas/", "http://example.org/schemas/deep/d.xsd", "urn:d", "http://example.org/"]
)
def test_a_published_layout_is_read_from_local_copies(make: Any, tmp_path: Path, key: str) -> None:
    main = published_layout(tmp_path, make)
    copies = tmp_path / "copies"
    if key == "http://example.org/":
        copies.rename(tmp_path / "schemas")
        copies = tmp_path
    locations = {key: copies if key.endswith("/") else copies / "deep/d.xsd"}
    with pytest.raises(SchemaError, match="which lies outside of") as refused:
        read_bundle(main, root="r", locations=locations, within=main.parent)
    assert "--within" in refused.value.hint
    with pytest.raises(SchemaError, match="would have to be fetched") as refused:
        read_bundle(main, root="r")
    assert "--locations" in refused.value.hint
    kind = open_type(read_bundle(main, root="r", locations=locations))
    assert [field.name for _, field in kind.model.invariants] == ["c", "d"]


def test_copies_of_a_folder_do_not_lead_out_of_it(make: Any, tmp_path: Path) -> None:
    main = published_layout(tmp_path, make)
    main.write_bytes(main.read_bytes().replace(b"schemas/deep/d.xsd", b"schemas/../c.xsd"))
    with pytest.raises(SchemaError, match="outside"):
        read_bundle(main, root="r", within=tmp_path, locations={"http://example.org/schemas/": tmp_path / "copies"})


def test_the_prefix_xml_needs_no_declaration(make: Any) -> None:
    link = '<xs:import namespace="http://www.w3.org/XML/1998/namespace"/>'
    body = (
        '<xs:complexType><xs:sequence><xs:element name="a" type="xs:string"/></xs:sequence>'
        '<xs:attribute ref="xml:lang"/></xs:complexType>'
    )
    schema = make.schema(f'{link}<xs:element name="r">{body}</xs:element>')
    kind = open_type(read_bundle(schema, marks=json.dumps({"root": "r", "invariant": ["/r/@xml:lang"]}).encode()))
    assert make.shown(kind.derive("/r/@xml:lang='en'")) == [("REntry", {"lang": "en"})]


def test_an_invalid_document_is_told_by_a_path_that_people_read(make: Any) -> None:
    schema = make.schema(
        '<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="a" type="xs:int" maxOccurs="3"/>'
        "</xs:sequence></xs:complexType></xs:element>",
        'targetNamespace="urn:x" elementFormDefault="qualified"',
    )
    kind = open_type(read_bundle(schema, marks=b'{"root": "x:r", "namespaces": {"x": "urn:x"}}'))
    with pytest.raises(Exception, match=r"at /x:r/x:a\[2\]: line 1: ") as refused:
        kind.validate(make.document('<r xmlns="urn:x"><a>1</a><a>b</a></r>'))
    assert refused.value.facts["path"] == "/x:r/x:a[2]"


def test_all_elements_without_a_type_are_named_at_once(make: Any) -> None:
    inside = '<xs:complexType><xs:sequence><xs:element name="v"/></xs:sequence></xs:complexType>'
    parts = "".join(f'<xs:element name="{name}">{inside}</xs:element>' for name in "abc")
    with pytest.raises(SchemaError, match=r"/r/a/v at .* has no type; so are /r/b/v, /r/c/v\. ") as refused:
        make.type(make.root(parts))
    assert refused.value.facts["path"] == "/r/a/v"
    # Expect marking them to be all that is needed
    kind = make.type(make.root(make.leaf("w"), parts), variant=[f"/r/{name}/v" for name in "abc"])
    assert [path for path, _ in kind.model.invariants] == ["/r/w"]


SHAPES = """
<xs:complexType name="Shape"><xs:sequence>
 <xs:element name="name" type="xs:token"/><xs:element name="tag" type="xs:token" minOccurs="0" maxOccurs="3"/>
 <xs:element name="part" type="Shape" minOccurs="0" maxOccurs="2"/><xs:element name="frame" type="Frame" minOccurs="0"/>
</xs:sequence></xs:complexType>
<xs:complexType name="Circle"><xs:complexContent><xs:extension base="Shape"><xs:sequence>
 <xs:element name="radius" type="xs:int"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>
<xs:complexType name="Dot"><xs:complexContent><xs:restriction base="Circle"><xs:sequence>
 <xs:element name="name" type="xs:token"/><xs:element name="radius" type="xs:int"/>
</xs:sequence></xs:restriction></xs:complexContent></xs:complexType>
<xs:complexType name="Spot"><xs:complexContent><xs:extension base="Dot"><xs:sequence>
 <xs:element name="hue" type="xs:token"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>
<xs:complexType name="Frame"><xs:sequence><xs:element name="colour" type="xs:token"/>
 <xs:element name="inside" type="Shape" minOccurs="0"/></xs:sequence></xs:complexType>
<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="frame" type="Frame"/>
 <xs:element name="shape" type="Shape" maxOccurs="9"/></xs:sequence></xs:complexType></xs:element>"""
XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'


def drawing(draw: random.Random) -> str:
    """A document of frames in shapes in frames, some of them of a type in place of the declared one."""

    def word() -> str:
        return draw.choice("abcdefgh")

    def frame(tag: str, depth: int) -> str:
        inside = shape("inside", depth - 1) if depth and draw.random() < 0.6 else ""
        return f"<{tag}><colour>{word()}</colour>{inside}</{tag}>"

    def shape(tag: str, depth: int) -> str:
        kind = draw.choice(["", "", "Circle", "Dot", "Spot"])
        content = f"<name>{word()}</name>"
        if kind in ("", "Circle"):
            content += "".join(f"<tag>{word()}</tag>" for _ in range(draw.randrange(3)))
            content += "".join(shape("part", depth - 1) for _ in range(draw.randrange(3) if depth else 0))
            content += frame("frame", depth - 1) if depth and draw.random() < 0.5 else ""
        content += f"<radius>{draw.randrange(9)}</radius>" if kind else ""
        content += f"<hue>{word()}</hue>" if kind == "Spot" else ""
        said = f' xsi:type="{kind}"' if kind else ""
        return f"<{tag}{said}>{content}</{tag}>"

    return f"<r {XSI}>{frame('frame', 3)}{shape('shape', 3)}{shape('shape', 1)}</r>"


@pytest.mark.parametrize("most", [None, 8], ids=["by path", "by type"])
def test_whatever_stands_in_a_document_is_found_by_the_predicate_that_says_so(
    make: Any, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given types that lead back to themselves and may be put in each other's place, by path or one class each
    if most is not None:
        monkeypatch.setattr("jbi_pubsub.codegen.walk.MAX_CLASSES", most)
    kind = make.type(make.schema(SHAPES))
    draw = random.Random(7)
    derived = 0
    for _ in range(60):
        document = make.document(drawing(draw))
        kind.validate(document)
        published = kind.entries(document)
        # Expect each leaf of a document to be in its entries
        assert sum(len(element) == 0 for element in document.iter()) >= len(published)
        for leaf in document.iter():
            if len(leaf):
                continue
            path = "/" + "/".join([*reversed([above.tag for above in leaf.iterancestors()]), leaf.tag])
            # and each template that its value gives to match one of them
            for template in kind.derive(f"{path}='{leaf.text}'"):
                derived += 1
                assert any(matches(template, entry) for entry in published), (path, template)
    assert derived > 500


XS = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'


def document(space: str, *links: str, body: str) -> bytes:
    spaces = " ".join(f'xmlns:{each.lower()}="{each}"' for each in "ABCD")
    imports = "".join(f'<xs:import namespace="{each}" schemaLocation="{each.lower()}.xsd"/>' for each in links)
    return f'<xs:schema {XS} {spaces} targetNamespace="{space}">{imports}{body}</xs:schema>'.encode()


def derived(name: str, base: str) -> str:
    return f'<xs:simpleType name="{name}"><xs:restriction base="{base}"/></xs:simpleType>'


def imported(*documents: bytes) -> SchemaBundle:
    named = tuple((f"{name}.xsd", data) for name, data in zip("abcd", documents, strict=False))
    return SchemaBundle("a.xsd", named, b'{"root": "{A}r"}', TypeName("chain"))


ROOT = '<xs:element name="r" type="b:T"/>'


@pytest.mark.row("G-178")
def test_imports_over_three_levels_validate() -> None:
    found = open_type(
        imported(
            document("A", "B", body=ROOT),
            document("B", "C", body=derived("T", "c:T")),
            document("C", "D", body=derived("T", "d:T")),
            document(
                "D",
                body='<xs:simpleType name="T"><xs:restriction base="xs:string"><xs:pattern value="[a-z]+"/>'
                "</xs:restriction></xs:simpleType>",
            ),
        )
    )
    found.validate(parse_metadata(b'<a:r xmlns:a="A">deep</a:r>'))
    with pytest.raises(MetadataError, match=r"\[a-z\]\+"):
        found.validate(parse_metadata(b'<a:r xmlns:a="A">DEEP</a:r>'))


def test_a_circle_of_imports_that_makes_sense_is_taken() -> None:
    found = open_type(
        imported(
            document("A", "B", body=ROOT + derived("S", "xs:string")), document("B", "A", body=derived("T", "a:S"))
        )
    )
    found.validate(parse_metadata(b'<a:r xmlns:a="A">x</a:r>'))


@pytest.mark.row("G-178")
@pytest.mark.parametrize(
    ("documents", "chain"),
    [
        # types that are made of each other, over two and over three documents
        (
            (document("A", "B", body=ROOT + derived("S", "b:T")), document("B", "A", body=derived("T", "a:S"))),
            "a.xsd -> b.xsd -> a.xsd",
        ),
        (
            (
                document("A", "B", body=ROOT + derived("S", "b:T")),
                document("B", "C", body=derived("T", "c:U")),
                document("C", "A", body=derived("U", "a:S")),
            ),
            "a.xsd -> b.xsd -> c.xsd -> a.xsd",
        ),
        # a document that imports itself
        ((document("A", "A", body=ROOT),), "a.xsd -> a.xsd"),
    ],
)
def test_a_circle_of_imports_that_makes_no_sense_is_shown(documents: tuple[bytes, ...], chain: str) -> None:
    with pytest.raises(SchemaError, match="in a circle") as refused:
        open_type(imported(*documents))
    told = str(refused.value.facts["chain"])
    assert set(told.split(" -> ")) == set(chain.split(" -> "))
    assert len(told) == len(chain)
    assert told.split(" -> ")[0] == told.split(" -> ")[-1]
    assert told in str(refused.value)


def test_a_fault_beside_a_circle_is_told_without_it() -> None:
    with pytest.raises(SchemaError) as refused:
        open_type(imported(document("A", "B", body=ROOT), document("B", body=derived("T", "xs:nothing"))))
    assert "circle" not in str(refused.value)
