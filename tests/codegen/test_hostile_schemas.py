"""Schemas come from publishers: what they must not be able to do, and that every refusal says where."""

from __future__ import annotations

import os
from urllib.parse import quote

import pytest

from jbi_pubsub.codegen.bundle import MAX_DOCUMENTS, MAX_PARTICLES, MAX_SCHEMA_BYTES, read_bundle
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.core.errors import MetadataError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.lookup.entry import MAX_FIELDS, MAX_LINEAGE, check_rep

LEAF = '<xs:element name="a" type="xs:string"/>'
R = '<xs:element name="r" type="xs:string"/>'
T = f'<xs:complexType name="T"><xs:sequence>{LEAF}</xs:sequence></xs:complexType>'
R_OF_T = '<xs:element name="r" type="T"/>'


def refused(schema, match, **options):
    with pytest.raises(SchemaError, match=match) as caught:
        open_type(read_bundle(schema, root="r", **options))
    return caught.value


def fanned_out(leaf):
    """Types that nest ten ways, four deep: 11,110 paths out of a schema of 50 lines."""
    inner = "".join(f'<xs:element name="e{m}" type="T{{0}}" minOccurs="0"/>' for m in range(10))
    group = "<xs:sequence>{}</xs:sequence>"
    types = [f'<xs:complexType name="T{n}">{group.format(inner.format(n + 1))}</xs:complexType>' for n in range(4)]
    return "".join(types) + f'<xs:complexType name="T4"><xs:sequence>{leaf}</xs:sequence></xs:complexType>'


@pytest.mark.parametrize(
    "prolog",
    [
        b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>',
        b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE x SYSTEM "http://localhost:1/x.dtd">',
    ],
)
def test_a_schema_with_a_document_type_is_refused(make, prolog):
    error = refused(prolog + make.root(LEAF), "has a DOCTYPE")
    assert error.facts["document"] == "schema.xsd"


def test_a_schema_with_a_value_that_there_is_no_room_for_is_refused(make):
    years = (
        '<xs:simpleType><xs:restriction base="xs:gYear"><xs:enumeration value="{}"/></xs:restriction></xs:simpleType>'
    )
    leaf = '<xs:element name="a">{}</xs:element>'
    refused(make.root(leaf.format(years.format("12345678901"))), "can't be used|is invalid")


@pytest.mark.parametrize(
    ("prolog", "remark"),
    [
        (b'<!DOCTYPE xs:schema SYSTEM "x.dtd">', b"<!-- A & B -->"),
        (
            b'<!DOCTYPE xs:schema SYSTEM "x.dtd">',
            b"<xs:annotation><xs:appinfo><![CDATA[&x;]]></xs:appinfo></xs:annotation>",
        ),
        (b"<!DOCTYPE xs:schema [<!-- see [1] --><!ATTLIST xs:schema id ID #IMPLIED>]>", b""),
        (b"<!DOCTYPE xs:schema [<!-- [ --><!-- ]> --> ]>", b"<!-- & -->"),
    ],
)
def test_a_document_type_that_nothing_needs_is_left_out_whatever_stands_in_comments(make, tmp_path, prolog, remark):
    schema = make.schema(remark.decode() + R)
    (tmp_path / "m.xsd").write_bytes(prolog + schema)
    assert dict(read_bundle(tmp_path / "m.xsd", root="r").documents)["m.xsd"] == schema
    # but where an entity is used it stays
    used = prolog + make.schema(remark.decode() + R.replace('name="r"', 'name="&r;"'))
    (tmp_path / "m.xsd").write_bytes(used)
    refused(tmp_path / "m.xsd", "DOCTYPE|'r' not defined")


def test_an_alert_with_an_external_entity_is_refused_before_it_gets_here(make):
    with pytest.raises(MetadataError, match="DOCTYPE"):
        make.load("cap/hostile/xee.xml")


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (b"not xml", "not well-formed"),
        (b"<a/>", "not an XML Schema"),
        (b"<schema/>", "not an XML Schema"),
        (b"<a>" * 250 + b"</a>" * 250, "nested deeper"),
    ],
)
def test_what_is_no_schema_is_refused(schema, match):
    assert refused(schema, match).hint


def test_an_import_from_the_web_is_never_fetched(make, tmp_path):
    schema = make.schema('<xs:import namespace="urn:b" schemaLocation="http://localhost:1/b.xsd"/>' + R)
    error = refused(schema, "would have to be fetched")
    assert "locations=" in error.hint
    assert error.facts["line"] == 1
    refused("http://localhost:1/main.xsd", "would have to be fetched")
    local = tmp_path / "b.xsd"
    local.write_bytes(make.schema("", 'targetNamespace="urn:b"'))
    for key in ("urn:b", "http://localhost:1/b.xsd"):
        bundle = read_bundle(schema, root="r", locations={key: local})
        assert dict(bundle.documents)["http://localhost:1/b.xsd"] == local.read_bytes()
        assert open_type(bundle).model.invariants


@pytest.mark.parametrize("location", ["../../secret.xsd", "/etc/passwd", "x/../../../secret.xsd", "link.xsd"])
def test_an_include_does_not_leave_the_folder_above_the_schemas(make, tmp_path, location):
    (tmp_path / "secret.xsd").write_bytes(make.schema(""))
    folder = tmp_path / "all/schemas"
    folder.mkdir(parents=True)
    (folder / "link.xsd").symlink_to(tmp_path / "secret.xsd")
    (folder / "main.xsd").write_bytes(make.schema(f'<xs:include schemaLocation="{location}"/>{R}'))
    error = refused(folder / "main.xsd", f"which lies outside of {tmp_path / 'all'}")
    assert error.facts["document"] == "main.xsd"


def test_a_document_of_the_folder_above_is_read_wherever_the_path_begins(make, tmp_path, monkeypatch):
    # Given a schema that includes one of the folder above and one next to it
    folder = tmp_path / "all/schemas"
    (folder / "deep").mkdir(parents=True)
    links = '<xs:include schemaLocation="../a.xsd"/><xs:include schemaLocation="b.xsd"/>'
    (folder / "main.xsd").write_bytes(make.schema(links + R))
    (folder.parent / "a.xsd").write_bytes(make.schema(""))
    (folder / "b.xsd").write_bytes(make.schema(""))
    # When it is read by a path that leads up, expect both
    monkeypatch.chdir(folder / "deep")
    for path in ("../main.xsd", "../../schemas/main.xsd", folder / "main.xsd"):
        assert [name for name, _ in read_bundle(path, root="r").documents] == ["main.xsd", "../a.xsd", "b.xsd"]


@pytest.mark.parametrize("name", ["my types.xsd", "température.xsd", "50%.xsd", "a%20b.xsd"])
def test_a_document_is_found_by_its_name_as_written_or_as_in_an_address(make, tmp_path, name):
    (tmp_path / name).write_bytes(
        make.schema('<xs:simpleType name="T"><xs:restriction base="xs:int"/></xs:simpleType>')
    )
    for location in (name, quote(name)):
        include = f'<xs:include schemaLocation="{location}"/><xs:element name="r" type="T"/>'
        (tmp_path / "main.xsd").write_bytes(make.schema(include))
        assert open_type(read_bundle(tmp_path / "main.xsd", root="r")).model.invariants


def test_an_address_does_not_hide_the_way_out_of_the_folder(make, tmp_path):
    folder = tmp_path / "all/schemas"
    folder.mkdir(parents=True)
    (tmp_path / "secret.xsd").write_bytes(make.schema(""))
    (folder / "main.xsd").write_bytes(make.schema(f'<xs:include schemaLocation="%2e%2e/%2e%2e/secret.xsd"/>{R}'))
    refused(folder / "main.xsd", "which lies outside of")


def test_an_include_may_lead_back_by_the_name_of_the_folder(make, tmp_path):
    # Given documents in two folders that include each other
    (tmp_path / "msg").mkdir()
    (tmp_path / "common").mkdir()
    part, above = '<xs:simpleType name="{}"><xs:restriction base="{}"/></xs:simpleType>', "../msg/{}.xsd"
    include = '<xs:include schemaLocation="{}"/>'.format
    root = '<xs:element name="r" type="T"/>'
    (tmp_path / "msg/main.xsd").write_bytes(
        make.schema(include("../common/t.xsd") + include("k.xsd") + root + part.format("L", "K"))
    )
    (tmp_path / "msg/k.xsd").write_bytes(make.schema(part.format("K", "xs:token")))
    (tmp_path / "common/t.xsd").write_bytes(
        make.schema(include(above.format("main")) + include(above.format("k")) + part.format("T", "L"))
    )
    # When it is read, expect each document once
    bundle = read_bundle(tmp_path / "msg/main.xsd", root="r")
    assert [name for name, _ in bundle.documents] == ["msg/main.xsd", "common/t.xsd", "msg/k.xsd"]
    assert open_type(bundle).model.invariants[0][1].type.builtin == "token"


def test_an_import_may_lead_back_by_the_name_of_the_folder(make, tmp_path):
    # Given two documents that import each other, each in a folder of its own
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    link = '<xs:import namespace="urn:{0}" schemaLocation="../{0}/{0}.xsd"/>'
    part = '<xs:simpleType name="T"><xs:restriction base="{}"/></xs:simpleType>'
    root = '<xs:element name="r" type="b:T" xmlns:b="urn:b"/>'
    (tmp_path / "a/a.xsd").write_bytes(
        make.schema(link.format("b") + root + part.format("xs:int"), 'targetNamespace="urn:a"')
    )
    (tmp_path / "b/b.xsd").write_bytes(
        make.schema(link.format("a") + part.format("a:T"), 'targetNamespace="urn:b" xmlns:a="urn:a"')
    )
    # When it is read, expect it to be taken as before, with its digest
    bundle = read_bundle(tmp_path / "a/a.xsd", root="r")
    assert [name for name, _ in bundle.documents] == ["a.xsd", "../b/b.xsd", "../a/a.xsd"]
    assert open_type(bundle).model.invariants[0][1].type.builtin == "int"


def test_an_import_without_a_place_is_legal_where_nothing_of_it_is_used(make):
    assert open_type(read_bundle(make.schema('<xs:import namespace="urn:b"/>' + R), root="r")).model.invariants
    used = '<xs:import namespace="urn:b"/><xs:element name="r" type="b:T" xmlns:b="urn:b"/>'
    refused(make.schema(used), "T")


def test_the_text_of_a_schema_is_given_as_bytes(make):
    assert "bytes" in refused(make.schema(R).decode(), "given as text").hint


def test_a_file_address_is_not_followed(make):
    refused(make.schema('<xs:include schemaLocation="file:///etc/passwd"/>' + R), "would have to be fetched")


def test_a_missing_include_is_named(make, tmp_path):
    (tmp_path / "main.xsd").write_bytes(make.schema('<xs:include schemaLocation="gone.xsd"/>' + R))
    refused(tmp_path / "main.xsd", r"gone\.xsd, which main\.xsd refers to, .*can't be read")


def test_a_received_bundle_finds_its_documents_by_name_only(make, tmp_path):
    secret = tmp_path / "secret.xsd"
    secret.write_bytes(make.schema(LEAF))
    main = make.schema(f'<xs:include schemaLocation="{secret}"/>{R}')
    with pytest.raises(SchemaError, match="not in the bundle"):
        open_type(SchemaBundle("main.xsd", (("main.xsd", main),), b'{"root": "r"}'))
    with pytest.raises(SchemaError, match="no document 'x'"):
        open_type(SchemaBundle("x", (("main.xsd", main),)))


def test_document_names_are_names_and_never_paths(make, tmp_path):
    outside = tmp_path / "evil.xsd"
    names = (str(outside), "../../evil.xsd", "evil\x00.xsd", "")
    main = make.schema('<xs:include schemaLocation="x.xsd"/>' + R_OF_T)
    documents = (("main.xsd", main), ("x.xsd", make.schema(T)), *((name, make.schema("")) for name in names))
    assert open_type(SchemaBundle("main.xsd", documents, b'{"root": "r"}')).model.invariants
    assert list(tmp_path.iterdir()) == []


def test_documents_that_include_each_other_are_read_once(make, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b.xsd").write_bytes(make.schema('<xs:include schemaLocation="c.xsd"/>' + T))
    (tmp_path / "sub/c.xsd").write_bytes(make.schema('<xs:include schemaLocation="b.xsd"/>'))
    (tmp_path / "a.xsd").write_bytes(make.schema('<xs:include schemaLocation="sub/b.xsd"/>' + R_OF_T))
    bundle = read_bundle(tmp_path / "a.xsd", root="r")
    assert [name for name, _ in bundle.documents] == ["a.xsd", "sub/b.xsd", "sub/c.xsd"]
    assert [path for path, _ in open_type(bundle).model.invariants] == ["/r/a"]


def test_a_document_that_includes_itself_is_refused(make, tmp_path):
    (tmp_path / "a.xsd").write_bytes(make.schema('\n<xs:include schemaLocation="a.xsd"/>' + R))
    refused(tmp_path / "a.xsd", r"a\.xsd line 2: .*must not .* itself")


def test_includes_three_levels_deep_are_read(make, tmp_path):
    (tmp_path / "x/y").mkdir(parents=True)
    (tmp_path / "x/y/c.xsd").write_bytes(make.schema(T))
    (tmp_path / "x/b.xsd").write_bytes(make.schema('<xs:include schemaLocation="y/c.xsd"/>'))
    (tmp_path / "a.xsd").write_bytes(make.schema('<xs:include schemaLocation="x/b.xsd"/>' + R_OF_T))
    assert open_type(read_bundle(tmp_path / "a.xsd", root="r")).model.invariants


def test_the_xml_namespace_needs_no_copy(make):
    link = (
        '<xs:import namespace="http://www.w3.org/XML/1998/namespace" schemaLocation="http://www.w3.org/2001/xml.xsd"/>'
    )
    body = f"<xs:complexType><xs:sequence>{LEAF}</xs:sequence><xs:attribute ref='xml:lang'/></xs:complexType>"
    kind = open_type(read_bundle(make.schema(f"{link}<xs:element name='r'>{body}</xs:element>"), root="r"))
    kind.validate(make.document("<r xml:lang='en'><a>x</a></r>"))
    assert [path for path, _ in kind.model.invariants] == ["/r/a", "/r/@xml:lang"]


def test_size_and_number_of_documents_are_bounded(make):
    refused(make.schema(f"<!--{'x' * MAX_SCHEMA_BYTES}-->{R}"), "bytes")
    with pytest.raises(SchemaError, match=f"has {MAX_DOCUMENTS + 1} documents, the limit is {MAX_DOCUMENTS}"):
        open_type(SchemaBundle("0", tuple((str(n), make.schema("")) for n in range(MAX_DOCUMENTS + 1))))


def test_a_group_that_would_take_minutes_to_check_is_refused(make):
    many = "".join(f'<xs:element name="e{n}" minOccurs="0"/>' for n in range(MAX_PARTICLES + 1))
    assert refused(make.root(many), f"group of {MAX_PARTICLES + 1} particles").facts["line"] == 1


def test_the_number_of_classes_is_bounded_and_the_refusal_says_what_to_mark(make, monkeypatch):
    monkeypatch.setattr("jbi_pubsub.codegen.walk.MAX_CLASSES", 30)
    inside = f"<xs:complexType><xs:sequence>{LEAF}</xs:sequence></xs:complexType>"
    many = "".join(f'<xs:element name="e{n}">{inside}</xs:element>' for n in range(30))
    much = f'<xs:element name="much"><xs:complexType><xs:sequence>{many}</xs:sequence></xs:complexType></xs:element>'
    error = refused(make.root(LEAF, much), "more than 30 entry classes; most of it is reached through /r/much")
    assert "variant" in error.hint
    assert error.facts["path"] == "/r/much"


def test_types_that_occur_at_more_paths_than_can_be_held_have_one_class_each(make):
    kind = open_type(read_bundle(make.schema(fanned_out(LEAF) + '<xs:element name="r" type="T0"/>'), root="r"))
    assert [entry.name for entry in kind.model.entries] == ["T4Entry"]
    deep = make.document("<r><e1><e2><e3><e4><a>x</a></e4></e3></e2></e1></r>")
    assert make.shown(kind.entries(deep)) == [("T4Entry", {"a": "x"})]
    assert make.shown(kind.derive("/r/e1/e2/e3/e4/a='x'")) == [("T4Entry", {"a": "x"})]


def test_a_class_larger_than_the_lookup_service_takes_is_refused_with_its_place(make):
    leaves = "".join(make.leaf(f"l{n}", more='minOccurs="0"') for n in range(MAX_FIELDS + 1))
    assert refused(make.root(leaves), f"/r at schema.xsd:1 has {MAX_FIELDS + 1} invariant leaves").facts["place"]
    extension = '<xs:complexContent><xs:extension base="T{}"/></xs:complexContent>'
    types = "".join(
        f'<xs:complexType name="T{n}">{extension.format(n - 1)}</xs:complexType>' for n in range(1, MAX_LINEAGE + 1)
    )
    base = T.replace('"T"', '"T0"') + types + f'<xs:element name="r" type="T{MAX_LINEAGE}"/>'
    refused(make.schema(base), f"{MAX_LINEAGE + 1} levels of extension")


def test_every_entry_is_one_that_the_lookup_service_takes(imagery, cap, make, figure):
    reps = [*imagery.entries(figure(1)), *imagery.template(figure(3))]
    reps += [rep for alert in make.cap_alerts().values() for rep in cap.entries(alert)]
    assert [check_rep(rep) for rep in reps] == reps


def test_what_is_variant_is_never_walked(make):
    """The same eleven thousand paths, marked variant, disturb nothing, not even by a leaf that has no type."""
    body = f'{LEAF}<xs:element name="v" type="T0" jbi:variance="variant"/>'
    root = f'<xs:element name="r"><xs:complexType><xs:sequence>{body}</xs:sequence></xs:complexType></xs:element>'
    kind = open_type(read_bundle(make.schema(fanned_out('<xs:element name="untyped"/>') + root)))
    assert [path for path, _ in kind.model.invariants] == ["/r/a"]


def test_what_is_variant_has_to_be_valid_all_the_same(make):
    inside = '<xs:complexType><xs:sequence><xs:element name="w" type="NoSuch"/></xs:sequence></xs:complexType>'
    variant = f'\n<xs:element name="v" jbi:variance="variant">{inside}</xs:element>'
    refused(make.root(LEAF, variant), r"schema\.xsd line 2: .*NoSuch")


def test_a_pattern_that_would_hold_up_a_backtracking_engine_does_not(make):
    slow = '<xs:restriction base="xs:string"><xs:pattern value="(a+)+b"/></xs:restriction>'
    schema = make.root(f'<xs:element name="a"><xs:simpleType>{slow}</xs:simpleType></xs:element>')
    kind = open_type(read_bundle(schema, root="r"))
    long = make.document(f"<r><a>{'a' * 5000}</a></r>")
    with pytest.raises(MetadataError, match="pattern"):
        kind.validate(long)
    assert kind.entries(long)
    default = schema.replace(b'<xs:element name="a">', b'<xs:element name="a" default="' + b"a" * 60 + b'">')
    refused(default, "invalid")


@pytest.mark.parametrize(("one", "other"), [("class", "class_"), ("rep", "rep_"), ("__x", "x__x")])
def test_names_that_clash_go_on_to_others_whatever_their_order(make, one, other):
    def names(*tags):
        kind = open_type(read_bundle(make.root(*map(make.leaf, tags)), root="r"))
        return {field.tag: field.name for _, field in kind.model.invariants}

    found = names(one, other)
    assert len(set(found.values())) == 2
    assert all(name.isidentifier() for name in found.values())
    assert names(other, one) == found


@pytest.mark.parametrize("name", ["x\n", "x\x00", "x" * 501])
def test_a_type_name_is_printable_and_short(make, name):
    refused(make.root(LEAF), "not a name and version", name=name)


def test_an_invalid_schema_says_where(make):
    error = refused(make.root('\n\n<xs:element name="a" type="xs:strin"/>'), r"schema\.xsd:3: unknown type 'xs:strin'")
    assert error.facts["place"] == "schema.xsd:3"


def test_a_value_too_long_for_an_index_is_refused(make):
    kind = open_type(read_bundle(make.root(LEAF), root="r"))
    with pytest.raises(MetadataError, match="at most 8192 characters"):
        kind.entries(make.document(f"<r><a>{'x' * 8193}</a></r>"))


def test_validation_switched_off_does_not_let_a_document_claim_two_values(make):
    group = f'<xs:element name="g"><xs:complexType><xs:sequence>{LEAF}</xs:sequence></xs:complexType></xs:element>'
    kind = open_type(read_bundle(make.root(LEAF, group), root="r"))
    for twice in ("<r><a>x</a><a>y</a></r>", "<r><a>x<b/></a></r>", "<r><g/><g/></r>"):
        with pytest.raises(MetadataError):
            kind.entries(make.document(twice))


def test_the_type_of_an_unmarked_bundle_can_be_explicit(make):
    assert open_type(read_bundle(make.root(LEAF), root="r", name="a b")).type == TypeName("a b")


def test_what_is_no_file_is_refused_at_once(make, tmp_path):
    os.mkfifo(tmp_path / "pipe.xsd")
    (tmp_path / "a.xsd").symlink_to("b.xsd")
    (tmp_path / "b.xsd").symlink_to("a.xsd")
    (tmp_path / "folder.xsd").mkdir()
    for name, problem in (("pipe", "is not a file"), ("folder", "is not a file"), ("a", "outside|can't be read")):
        (tmp_path / "main.xsd").write_bytes(make.schema(f'<xs:include schemaLocation="{name}.xsd"/>{R}'))
        refused(tmp_path / "main.xsd", problem)


def test_a_message_is_one_line_and_names_no_temporary_file(make):
    types = "".join(f'<xs:element name="e{n}" type="no:T{n}" xmlns:no="urn:no"/>' for n in range(30))
    for schema in (make.root(types), make.root(LEAF, '<xs:element name="b" type="xs:int" default="x"/>')):
        error = refused(schema, "invalid")
        assert "\n" not in str(error)
        assert "/tmp" not in str(error)
        assert "schema.invalid" not in str(error)
        assert len(str(error)) < 500


def test_a_version_is_not_empty(make):
    refused(make.root(LEAF), "not a name and version", version="")
