"""What is invariant: comments, attributes, marks files, and what contradicts itself."""

from __future__ import annotations

import json
import re

import pytest

from jbi_pubsub.codegen.binder import XSI
from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.drafting import draft_marks
from jbi_pubsub.codegen.render import render
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.codegen.schema import MAX_CLASSES
from jbi_pubsub.core.errors import InvariantError, MetadataError, SchemaError
from jbi_pubsub.lookup.entry import matches

INSIDE = '<xs:complexType><xs:sequence><xs:element name="w" jbi:variance="invariant"/></xs:sequence></xs:complexType>'
LEAF = '<xs:element name="{}" type="xs:string"/>'


def leaves(kind):
    return [path for path, _ in kind.model.invariants]


def only(schema: bytes, form: str) -> bytes:
    """The schema with its comments or its attributes only."""
    text = schema.decode()
    if form == "comments":
        text = re.sub(r' jbi:variance="\w+"| xmlns:jbi="[^"]+"', "", text)
    else:
        text = re.sub(r"<!--.*?-->\s*", "", text)
    return text.encode()


@pytest.mark.row("J-20")
def test_comments_and_attributes_generate_byte_identical_modules_and_one_digest(make, imagery):
    schema = (make.fixtures / "intel_imagery/Intel_Imagery.xsd").read_bytes()
    comments, attributes = (open_type(read_bundle(only(schema, form))) for form in ("comments", "attributes"))
    assert only(schema, "comments") != only(schema, "attributes")
    assert render(comments.model) == render(attributes.model) == render(imagery.model)
    assert comments.digest == attributes.digest == imagery.digest


def test_the_marks_file_of_the_figures_means_the_same_as_the_marks_in_the_schema(make, imagery):
    folder = make.fixtures / "intel_imagery"
    unmarked = only(only((folder / "Intel_Imagery.xsd").read_bytes(), "comments"), "attributes")
    assert render(open_type(read_bundle(unmarked, marks=folder / "marks.json")).model) == render(imagery.model)


@pytest.mark.parametrize("mark", ["<!-- variant -->", "<!--VARIANT-->", "<!-- v: --><!-- variant --><!-- more -->"])
def test_a_comment_before_a_declaration_marks_it(make, mark):
    schema = make.root(LEAF.format("a"), mark, LEAF.format("v"), LEAF.format("b"))
    assert leaves(open_type(read_bundle(schema))) == ["/r/a", "/r/b"]


def test_a_comment_behind_a_declaration_on_its_line_marks_that_one(make):
    lines = f"\n{LEAF.format('a')}\n{LEAF.format('v')} <!-- variant -->\n{LEAF.format('b')}\n"
    assert leaves(open_type(read_bundle(make.root(lines)))) == ["/r/a", "/r/b"]


def test_a_comment_as_the_first_thing_in_a_declaration_marks_it(make):
    inner = "<xs:simpleType><xs:restriction base='xs:string'/></xs:simpleType>"
    schema = make.root(LEAF.format("a"), f'<xs:element name="v"><!-- variant -->{inner}</xs:element>')
    assert leaves(open_type(read_bundle(schema))) == ["/r/a"]


def test_a_mark_on_a_group_covers_its_elements(make):
    group = f'<xs:sequence jbi:variance="variant">{LEAF.format("v")}{LEAF.format("w")}</xs:sequence>'
    assert leaves(open_type(read_bundle(make.root(LEAF.format("a"), group)))) == ["/r/a"]


def test_a_mark_on_an_attribute_covers_it(make):
    attributes = '<xs:attribute name="k" type="xs:int"/><xs:attribute name="v" jbi:variance="variant"/>'
    assert leaves(open_type(read_bundle(make.root(LEAF.format("a"), attributes=attributes)))) == ["/r/a", "/r/@k"]


@pytest.mark.row("J-21")
def test_a_variant_mark_covers_the_whole_subtree_and_nothing_else(imagery):
    assert not [path for path in leaves(imagery) if "ImageDescriptor" in path]


def test_marks_in_an_included_document_count(make, tmp_path):
    tmp_path.joinpath("inc.xsd").write_bytes(
        make.schema(
            '<xs:complexType name="T"><xs:sequence>'
            f"{LEAF.format('a')}<!-- variant -->{LEAF.format('v')}"
            "</xs:sequence></xs:complexType>"
        )
    )
    main = make.schema('<xs:include schemaLocation="inc.xsd"/><xs:element name="r" type="T"/>')
    tmp_path.joinpath("main.xsd").write_bytes(main)
    assert leaves(open_type(read_bundle(tmp_path / "main.xsd"))) == ["/r/a"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ('<xs:element name="v" type="xs:string" jbi:variance="sometimes"/>', "'sometimes'"),
        ('<!-- variant --><xs:element name="v" type="xs:string" jbi:variance="invariant"/>', "both variant and"),
        (
            f'<xs:element name="v" jbi:variance="variant">{INSIDE}</xs:element>',
            "w is marked both",
        ),
        ('<xs:element name="v" type="xs:string"/>\n<!-- variant -->\n', "marks nothing"),
        ('<!-- variant --><xs:any processContents="lax"/>', "nothing in the schema is invariant"),
        ('<xs:element name="v" jbi:variance="invariant"/>', "has no type"),
    ],
)
def test_a_mark_that_makes_no_sense_is_refused_with_its_line(make, schema, problem):
    with pytest.raises(SchemaError, match=problem) as refused:
        open_type(read_bundle(make.root(schema)))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("marks", "problem"),
    [
        (b"{", "can't be read"),
        (b'{"invariants": []}', "can't be read"),
        (b'{"invariant": ["/r/nothing"]}', "names /r/nothing"),
        (b'{"invariant": ["/r/a/b"]}', "names /r/a/b"),
        (b'{"variant": ["/x"]}', "names /x"),
        (b'{"invariant": ["//a"]}', "not a path"),
        (b'{"invariant": ["a"]}', "not a path"),
        (b'{"invariant": ["/p:r/p:a"]}', "prefix p"),
        (b'{"root": "q", "invariant": ["/r/a"]}', "no element q"),
        (b'{"variant": ["/r/a"]}', "nothing in the schema is invariant"),
    ],
)
def test_a_marks_file_that_names_nothing_is_refused(make, marks, problem):
    with pytest.raises(SchemaError, match=problem) as refused:
        open_type(read_bundle(make.root(LEAF.format("a")), marks=marks))
    assert refused.value.hint


def test_a_marks_file_without_the_namespace_of_its_schema_is_told_so(make):
    # Given a schema with a namespace, and a path that names its document element without
    schema = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:track"
        elementFormDefault="qualified"><xs:element name="track"><xs:complexType>
        <xs:attribute name="creator"/></xs:complexType></xs:element></xs:schema>"""
    marks = {"root": "track", "invariant": ["/track/@creator"]}
    with pytest.raises(SchemaError) as refused:
        open_type(read_bundle(schema, marks=json.dumps(marks).encode()))
    # Expect what is to be written, which is right
    assert '"namespaces": {"p": "urn:track"}, and write /p:track' in refused.value.hint
    marks = {"root": "track", "namespaces": {"p": "urn:track"}, "invariant": ["/p:track/@creator"]}
    assert leaves(open_type(read_bundle(schema, marks=json.dumps(marks).encode())))


def test_a_marks_file_may_say_that_nothing_is_invariant(make):
    found = make.type(make.root(LEAF.format("a")), invariant=[])
    assert leaves(found) == []
    assert not found.has_invariants
    assert found.entries(make.document("<r><a>1</a></r>")) == ()
    assert found.derive("/r[a='1']", {}) == ()
    found.check_invariants(make.document("<r><a>2</a></r>"), ())
    found.validate(make.document("<r><a>1</a></r>"))
    with pytest.raises(MetadataError):
        found.validate(make.document("<r><b/></r>"))


def test_a_marks_file_may_name_attributes_and_exceptions(make):
    attributes = '<xs:attribute name="k"/><xs:attribute name="j"/>'
    schema = make.root(LEAF.format("a"), LEAF.format("b"), attributes=attributes)
    assert leaves(make.type(schema, invariant=["/r/b", "/r/@k"])) == ["/r/b", "/r/@k"]
    assert leaves(make.type(schema, variant=["/r/b", "/r/@k"])) == ["/r/a", "/r/@j"]


def test_naming_the_root_says_that_all_of_it_is_invariant_unless_marked(make):
    schema = make.root(LEAF.format("a"), LEAF.format("b"))
    with pytest.raises(SchemaError, match="does not say"):
        open_type(read_bundle(schema))
    assert leaves(open_type(read_bundle(schema, root="r"))) == ["/r/a", "/r/b"]


def test_several_possible_document_elements_are_named_and_one_has_to_be_chosen(make):
    schema = make.schema(LEAF.format("a") + LEAF.format("b") + "<!-- variant -->" + LEAF.format("c"))
    with pytest.raises(SchemaError, match="3 elements that could be") as refused:
        open_type(read_bundle(schema))
    assert "a, b, c" in refused.value.hint


@pytest.mark.processes
def test_a_draft_from_the_schema_names_the_children_and_is_itself_a_marks_file(make):
    bundle = read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd")
    draft = draft_marks(bundle)
    assert json.loads(draft)["invariant"] == ["/metadata/RequiredMetadata", "/metadata/ImageDescriptor"]
    again = read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd", marks=draft)
    assert "/metadata/ImageDescriptor/LocationCoord/lat" in leaves(open_type(again))


def test_a_draft_from_samples_names_the_largest_subtrees_that_do_not_change(make, figure):
    bundle = read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd")
    moved = figure(1)
    moved.find("ImageDescriptor/LocationCoord/lat").text = "34.0"
    draft = json.loads(draft_marks(bundle, [figure(1), moved]))
    assert draft["invariant"] == [
        "/metadata/ImageDescriptor/Area",
        "/metadata/ImageDescriptor/ImageType",
        "/metadata/ImageDescriptor/LocationCoord/latord",
        "/metadata/ImageDescriptor/LocationCoord/long",
        "/metadata/ImageDescriptor/LocationCoord/longord",
        "/metadata/RequiredMetadata",
    ]


def test_a_draft_from_cap_samples_can_be_used_as_it_is(make):
    alerts = make.cap_alerts()
    bundle = read_bundle(make.fixtures / "cap/schema/cap12.xsd")
    draft = draft_marks(bundle, [alerts["canada.xml"], alerts["canada_signed.xml"]])
    kind = open_type(read_bundle(make.fixtures / "cap/schema/cap12.xsd", marks=draft))
    assert kind.entries(alerts["canada.xml"]) == kind.entries(alerts["canada_signed.xml"])


def test_a_draft_names_nothing_that_wildcards_allow(make):
    # Given samples with an element and an attribute that wildcards allow, of which one changes
    anything = '<xs:any processContents="lax"/>'
    schema = make.root(LEAF.format("a"), anything, attributes='<xs:anyAttribute processContents="lax"/>')
    documents = [make.document(f'<r k="1"><a>1</a><z>5</z><y>{number}</y></r>') for number in range(2)]
    # When a draft is made of them, expect it to name what is declared, and to be taken
    draft = draft_marks(read_bundle(schema), documents)
    assert leaves(open_type(read_bundle(schema, marks=draft))) == ["/r/a"]


EXTENDED = (
    '<xs:complexType name="B"><xs:sequence><xs:element name="a" type="xs:int"/></xs:sequence></xs:complexType>'
    '<xs:complexType name="D"><xs:complexContent><xs:extension base="B"><xs:sequence><xs:element name="b"'
    ' type="xs:int"/></xs:sequence><xs:attribute name="k"/></xs:extension></xs:complexContent></xs:complexType>'
)


def test_a_draft_of_samples_with_an_xsi_type_can_be_used_as_it_is(make):
    # Given samples in which what an xsi:type brings is the same
    schema = make.root('<xs:element name="x" type="B"/>', more=EXTENDED)
    documents = [_extended(make, a=a, b=5) for a in (1, 2)]
    # When a draft is made of them, expect it to be taken, and to hold
    draft = draft_marks(read_bundle(schema), documents)
    kind = open_type(read_bundle(schema, marks=draft))
    assert kind.entries(documents[0]) == kind.entries(documents[1])
    with pytest.raises(InvariantError, match="/r/x/b is '6'"):
        kind.check_invariants(_extended(make, a=1, b=6), kind.entries(documents[0]))


@pytest.mark.parametrize(
    ("marks", "values"),
    [
        ({"invariant": ["/r/x/a"]}, {"a": "1"}),
        ({"invariant": ["/r/x/b"]}, {"b": "2"}),
        ({"invariant": ["/r/x/@k"]}, {"k": "3"}),
        ({"variant": ["/r/x/a"]}, {"b": "2", "k": "3"}),
        ({"variant": ["/r/x/b", "/r/x/@k"]}, {"a": "1"}),
    ],
)
def test_a_path_below_an_element_leaves_room_for_an_xsi_type(make, marks, values):
    # Given a marks file with a path below an element; When a document has an xsi:type there
    kind = make.type(make.root('<xs:element name="x" type="B"/>', more=EXTENDED), **marks)
    document = _extended(make, a=1, b=2)
    kind.validate(document)
    # Expect what is marked to be invariant, and a template to be taken
    entries = kind.entries(document)
    assert [fields for _, fields in make.shown(entries)] == [values]
    kind.check_invariants(document, entries)
    assert make.shown(kind.template(_extended(make, a="", b="", k=""))) == []
    # Expect a predicate on what each type declares to find it
    for template in kind.derive("/r/x/a='1'"):
        assert any(matches(template, entry) for entry in entries)


def test_types_that_add_nothing_invariant_have_the_class_of_the_element(make):
    # Given an element of a type that more extend than there may be classes, and a path that names what all have
    extension = (
        '<xs:complexType name="D{0}"><xs:complexContent><xs:extension base="D"><xs:sequence><xs:any minOccurs="0"'
        ' processContents="skip"/></xs:sequence></xs:extension></xs:complexContent></xs:complexType>'
    )
    more = EXTENDED + "".join(map(extension.format, range(MAX_CLASSES)))
    kind = make.type(make.root('<xs:element name="x" type="B"/>', more=more), invariant=["/r/x/a"])
    # When a document has an xsi:type there, expect its entry to be of the element's class
    assert [entry.name for entry in kind.model.entries] == ["XEntry"]
    document = _extended(make, a=1, b=2)
    document[0].set(f"{{{XSI}}}type", "D7")
    document[0].append(make.document("<z/>"))
    kind.validate(document)
    assert make.shown(kind.entries(document)) == [("XEntry", {"a": "1"})]


def test_what_a_wildcard_holds_under_the_name_of_an_invariant_element_is_refused_with_the_way_out(make):
    # Given an element beside a wildcard that allows it as well, and a document with both
    schema = make.root(LEAF.format("a"), LEAF.format("v"), '<xs:any processContents="lax" minOccurs="0"/>')
    document = make.document("<r><a>1</a><v>2</v><a>3</a></r>")
    # When the element is invariant, expect it to be refused; else to be taken
    kind = make.type(schema, invariant=["/r/a"])
    kind.validate(document)
    with pytest.raises(MetadataError, match="occurs twice; the schema declares one, which is invariant") as refused:
        kind.entries(document)
    assert "mark the element variant" in refused.value.hint
    assert make.shown(make.type(schema, invariant=["/r/v"]).entries(document)) == [("REntry", {"v": "2"})]


def _extended(make, a, b, k="3"):
    xsi = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    return make.document(f'<r {xsi}><x xsi:type="D" k="{k}"><a>{a}</a><b>{b}</b></x></r>')


def test_samples_of_another_type_are_refused(make, figure):
    with pytest.raises(SchemaError, match="a sample begins with metadata"):
        draft_marks(read_bundle(make.fixtures / "cap/schema/cap12.xsd"), [figure(1)])
