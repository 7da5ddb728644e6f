"""What the paper's figures become: entries, templates, the check of each publication."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import open_type, type_name
from jbi_pubsub.core.errors import InvariantError, MetadataError, SchemaError
from jbi_pubsub.lookup.entry import matches


@pytest.mark.row("J-15")
def test_figure_1_is_valid_and_without_its_publisher_it_is_not(imagery, figure):
    document = figure(1)
    imagery.validate(document)
    publisher = document.find("RequiredMetadata/publisher")
    publisher.getparent().remove(publisher)
    with pytest.raises(MetadataError) as refused:
        imagery.validate(document)
    assert refused.value.facts["path"] == "/metadata/RequiredMetadata/keywords"
    assert refused.value.facts["line"] > 1
    assert "Expected is ( publisher )" in str(refused.value)


@pytest.mark.row("J-16")
def test_the_type_name_is_the_name_of_the_marker_element(imagery, figure):
    assert type_name(figure(1)) == imagery.type.name == "mil.af.rl.jbi.Intel_Imagery"


@pytest.mark.parametrize(
    ("document", "name"),
    [
        ("<m/>", "m"),
        ("<m><a/></m>", "m"),  # no dot
        ("<m><a.b>text</a.b></m>", "m"),  # not empty
        ("<m><a.b x='1'/></m>", "m"),  # an attribute
        ("<m><c/><a.b/></m>", "m"),  # not the first: an empty element may be a wildcard
        ("<m><!-- c --><a.b> </a.b></m>", "a.b"),
        ("<m xmlns='urn:m'><n:a.b xmlns:n='urn:n'/></m>", "a.b"),
        ("<m xmlns='urn:m'/>", "{urn:m}m"),
    ],
)
def test_without_a_marker_the_qualified_name_of_the_document_element_is_the_type_name(make, document, name):
    assert type_name(make.document(document)) == name


def test_an_explicit_type_name_and_version_win(make):
    opened = open_type(read_bundle(make.fixtures / "intel_imagery/Intel_Imagery.xsd", name="x.y", version="2"))
    assert str(opened.type) == "x.y 2"
    assert opened.model.entries[0].wire == "x.y#RequiredMetadataEntry"


@pytest.mark.row("J-19", "J-21")
def test_the_invariants_are_the_five_leaves_of_required_metadata(imagery):
    assert [path for path, _ in imagery.model.invariants] == [
        f"/metadata/RequiredMetadata/{leaf}" for leaf in ("Type", "JBIIIdentifier", "publisher", "language")
    ] + ["/metadata/RequiredMetadata/keywords"]


@pytest.mark.row("J-37")
def test_figure_2_populates_the_entries(make, imagery, figure):
    assert make.shown(imagery.entries(figure(2))) == [
        (
            "RequiredMetadataEntry",
            {"Type": "Imagery", "JBIIIdentifier": "JBII00023", "publisher": "418th", "language": "EN"},
        ),
        ("KeywordsEntry", {"value": "Intel"}),
    ]


@pytest.mark.row("J-38")
def test_empty_and_absent_elements_of_figure_3_are_wildcards(make, imagery, figure):
    shorter = figure(3)
    for wildcard in shorter.findall("RequiredMetadata/JBIIIdentifier") + shorter.findall("RequiredMetadata/keywords"):
        wildcard.getparent().remove(wildcard)
    wanted = [("RequiredMetadataEntry", {"Type": "Imagery", "publisher": "418th", "language": "EN"})]
    assert make.shown(imagery.template(figure(3))) == make.shown(imagery.template(shorter)) == wanted


@pytest.mark.row("J-39")
@pytest.mark.parametrize(
    ("element", "text", "expected"),
    [
        ("publisher", "419th", False),
        ("language", "FR", False),
        ("JBIIIdentifier", "other", True),
        ("keywords", "x", True),
    ],
)
def test_figure_3_matches_figure_2_but_for_what_it_fixes(imagery, figure, element, text, expected):
    changed = figure(2)
    changed.find(f"RequiredMetadata/{element}").text = text
    templates = imagery.template(figure(3))
    assert all(any(matches(t, e) for e in imagery.entries(figure(2))) for t in templates)
    assert all(any(matches(t, e) for e in imagery.entries(changed)) for t in templates) is expected


def test_a_value_on_a_variant_element_of_a_template_is_refused_and_an_empty_one_is_not(make, imagery):
    asked = "<metadata><ImageDescriptor><Area>{}</Area></ImageDescriptor></metadata>"
    assert imagery.template(make.document(asked.format(""))) == ()
    with pytest.raises(MetadataError, match="variant") as refused:
        imagery.template(make.document(asked.format("Kabul")))
    assert refused.value.facts["path"] == "/metadata/ImageDescriptor"
    assert "predicate" in refused.value.hint


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("<metadata><Required/></metadata>", "not in the schema"),
        ("<metadata><RequiredMetadata><typ>x</typ></RequiredMetadata></metadata>", "not in the schema"),
        ("<metadata><RequiredMetadata x='1'/></metadata>", "schema does not know"),
        ("<metadata><RequiredMetadata>text</RequiredMetadata></metadata>", "no invariant value"),
        ("<metadata><RequiredMetadata><Type>a</Type><Type>b</Type></RequiredMetadata></metadata>", "twice"),
        ("<metadata><RequiredMetadata/><RequiredMetadata/></metadata>", "twice"),
        ("<metadata><RequiredMetadata><Type><b/></Type></RequiredMetadata></metadata>", "holds a value"),
        ("<metadata><RequiredMetadata><language>not a language</language></RequiredMetadata></metadata>", "expected"),
        ("<other/>", "begin with metadata"),
    ],
)
def test_a_template_that_the_schema_does_not_know_is_refused(make, imagery, document, problem):
    with pytest.raises(MetadataError, match=problem) as refused:
        imagery.template(make.document(document))
    assert refused.value.facts["path"].startswith("/")
    assert refused.value.hint


def test_a_bad_invariant_value_names_path_value_and_type(make):
    kind = make.type(make.root(make.leaf("n", "xs:int")))
    with pytest.raises(MetadataError) as refused:
        kind.entries(make.document("<r><n>seven</n></r>"))
    assert {k: refused.value.facts[k] for k in ("path", "value", "type")} == {
        "path": "/r/n",
        "value": "seven",
        "type": "xs:int",
    }


def test_a_publication_with_the_registered_invariants_passes_whatever_varies(imagery, figure):
    registered = imagery.entries(figure(1))
    varied = figure(1)
    varied.find("ImageDescriptor/Area").text = "Herat"
    imagery.check_invariants(varied, registered)


@pytest.mark.parametrize("text", ["419th", ""])
def test_a_changed_invariant_is_refused_with_path_and_both_values(imagery, figure, text):
    registered = imagery.entries(figure(1))
    changed = figure(1)
    changed.find("RequiredMetadata/publisher").text = text
    with pytest.raises(InvariantError) as refused:
        imagery.check_invariants(changed, registered)
    assert refused.value.facts == {"path": "/metadata/RequiredMetadata/publisher", "registered": "418th", "found": text}


def test_a_missing_and_an_additional_keyword_are_refused(make, imagery, figure):
    registered = imagery.entries(figure(1))
    more = figure(1)
    keywords = more.find("RequiredMetadata/keywords")
    keywords.addnext(make.document("<keywords>More</keywords>"))
    with pytest.raises(InvariantError) as refused:
        imagery.check_invariants(more, registered)
    assert refused.value.facts["path"] == "/metadata/RequiredMetadata/keywords[2]"
    with pytest.raises(InvariantError, match="missing") as refused:
        imagery.check_invariants(figure(1), imagery.entries(more))
    assert refused.value.facts["path"] == "/metadata/RequiredMetadata/keywords[2]"


@pytest.mark.parametrize(
    ("published", "path"),
    [
        ("<r><g><s>a</s></g></r>", "/r/g/s[2]"),
        ("<r><g/></r>", "/r/g/s"),
        ("<r/>", "/r/g/s"),
        ("<r><g><s>a</s></g><g/></r>", "/r/g/s"),
    ],
    ids=["one of two", "both", "with their group", "one, and two groups might have it"],
)
def test_a_missing_repeated_invariant_is_named_by_its_path(make, published, path):
    # Given a registration with a value twice
    value = make.leaf("s", more="minOccurs='0' maxOccurs='3'")
    content = f"<xs:complexType><xs:sequence>{value}</xs:sequence></xs:complexType>"
    opened = make.type(make.root(f"<xs:element name='g' minOccurs='0' maxOccurs='2'>{content}</xs:element>"))
    registered = opened.entries(make.document("<r><g><s>a</s><s>b</s></g></r>"))
    # When one is not published, expect the place where it is not
    with pytest.raises(InvariantError, match="is missing") as refused:
        opened.check_invariants(make.document(published), registered)
    assert refused.value.facts["path"] == path


@pytest.mark.parametrize(
    ("document", "others"),
    [
        pytest.param("<r a='1'><k>a</k>*</r>", ("<r a='2'><k>a</k></r>", "<r a='1'><k>b</k></r>"), id="another value"),
        pytest.param("<r a='1'><k>a</k>*</r>", ("<r a='1'><k>a</k><k>b</k></r>",), id="one more behind"),
        pytest.param("<!-- </k> --><r a='1'>*</r>", ("<!-- </k> --><r a='2'/>",), id="a comment before"),
        pytest.param("<r b='>/k' a='1'>*</r>", ("<r b='>/k' a='2'/>",), id="an attribute"),
        pytest.param(
            "<r a='1'><k>a<!-- /k --></k>*</r>", ("<r a='1'><k>a<!-- /k -->b</k></r>",), id="a comment within"
        ),
        pytest.param("<r a='1'>*<k/></r>", ("<r a='1'><v>1</v><k>b</k></r>",), id="at the end"),
    ],
)
def test_what_begins_as_a_good_document_did_is_looked_at_further(make, document, others):
    # Given documents that passed, in which something varies
    marks = {"variant": ["/r/v", "/r/@b"]}
    attributes = '<xs:attribute name="a"/><xs:attribute name="b"/>'
    leaves = make.leaf("k", more='minOccurs="0" maxOccurs="9"'), make.leaf("v", more='minOccurs="0"')
    kind = make.type(make.root(*leaves, attributes=attributes), **marks)
    good = [document.replace("*", varying) for varying in ("", "<v>1</v>", "<v>/k</v>", "<v>&lt;k</v>")]
    registered = kind.entries(make.document(good[0]))
    for _ in "12":
        for each in good:
            kind.check_invariants(make.document(each), registered, each.encode())
    # When one differs in an invariant, expect it to be refused
    for other in others:
        with pytest.raises((InvariantError, MetadataError)):
            kind.check_invariants(make.document(other), registered, other.encode())


def test_order_and_repetition_of_equal_values_do_not_count(make):
    kind = make.type(make.root(make.leaf("k", more='maxOccurs="9"')))
    registered = kind.entries(make.document("<r><k>a</k><k>b</k></r>"))
    kind.check_invariants(make.document("<r><k>b</k><k>a</k><k>b</k></r>"), registered)


@pytest.mark.row("J-41")
def test_values_compare_in_the_value_space_of_their_type(make):
    kind = make.type(make.root(make.leaf("d", "xs:decimal"), make.leaf("t", "xs:token"), make.leaf("s")))
    registered = kind.entries(make.document("<r><d>1.0</d><t>a b</t><s>a</s></r>"))
    kind.check_invariants(make.document("<r><d> +01.00 </d><t>\n a\t b </t><s>a</s></r>"), registered)
    with pytest.raises(InvariantError):
        kind.check_invariants(make.document("<r><d>1</d><t>a b</t><s> a</s></r>"), registered)  # xs:string keeps space


def test_a_comment_inside_a_value_does_not_cut_it(make):
    kind = make.type(make.root(make.leaf("s")))
    assert make.shown(kind.entries(make.document("<r><s>a<!-- c -->b<?p?>c</s></r>"))) == [("REntry", {"s": "abc"})]


@pytest.mark.row("J-43")
def test_full_metadata_are_needed_on_publication_where_variant_elements_are_required(make):
    kind = make.type(make.root(make.leaf("i"), make.leaf("v")), variant=["/r/v"])
    invariant = make.document("<r><i>x</i></r>")
    assert make.shown(kind.entries(invariant)) == [("REntry", {"i": "x"})]
    with pytest.raises(MetadataError, match="full metadata"):
        kind.validate(invariant)


def test_a_template_never_takes_a_default_for_a_value(make):
    kind = make.type(make.root(make.leaf("l", more='default="EN"'), make.leaf("n", "xs:int", 'minOccurs="0"')))
    assert kind.template(make.document("<r><l/><n/></r>")) == ()
    assert make.shown(kind.entries(make.document("<r><l/></r>"))) == [("REntry", {"l": "EN"})]


def test_what_is_nil_is_unset(make):
    kind = make.type(make.root(make.leaf("n", "xs:int", 'nillable="true"'), make.leaf("s")))
    nil = '<r xmlns:x="http://www.w3.org/2001/XMLSchema-instance"><n x:nil="true"/><s>y</s></r>'
    assert make.shown(kind.entries(make.document(nil))) == [("REntry", {"s": "y"})]


@pytest.mark.parametrize("folder", ["intel_imagery", "cap"])
def test_the_extracted_values_are_those_of_the_fixed_set(make, imagery, cap, folder):
    kind = {"intel_imagery": imagery, "cap": cap}[folder]
    for line in (make.fixtures / folder / "expected.jsonl").read_text().splitlines():
        case = json.loads(line)
        wanted = sorted({value for leaves in case["values"].values() for value in leaves.values()})
        reps = kind.entries(make.load(f"{folder}/instances/{case['instance']}"))
        found = {" ".join(value.split()) for rep in reps for value in rep.values if value is not None}
        assert sorted(found) == wanted, case["instance"]


def test_cap_alerts_are_valid_and_keep_their_own_invariants(make, cap):
    for name, alert in make.cap_alerts().items():
        cap.validate(alert, what=name)
        cap.check_invariants(alert, cap.entries(alert))


def test_the_path_of_an_invalid_element_is_readable_in_any_namespace(make, cap):
    alert = make.load("cap/instances/canada.xml")
    scope = next(alert.iter("{*}scope"))
    scope.text = "Everybody"
    with pytest.raises(MetadataError, match="Everybody") as refused:
        cap.validate(alert)
    assert refused.value.facts["path"] == "/c:alert/c:scope"


def test_the_pairs_of_a_repeated_element_stay_together(make, cap):
    found = make.shown(cap.entries(make.load("cap/instances/canada.xml")))
    assert ("EventCodeEntry", {"valueName": "SAME", "value": "SVA"}) in found
    assert ("EventCodeEntry", {"valueName": "SAME", "value": "thunderstorm"}) not in found


TEXTS = st.none() | st.sampled_from(("", " ", "a", " a\t b ", "b", "1", "01.0"))


@settings(max_examples=examples(300), derandomize=True, deadline=None)
@given(
    groups=st.lists(st.tuples(TEXTS, TEXTS, st.lists(TEXTS.filter(bool), max_size=3)), max_size=3),
    single=TEXTS,
    comment=st.booleans(),
)
def test_entries_are_what_plain_xpath_finds(make, nested, groups, single, comment):
    """The oracle: for each class the elements at its path, for each field the string value."""
    root = etree.Element("r")
    if single is not None:
        etree.SubElement(root, "s").text = single
    for attribute, x, repeats in groups:
        group = etree.SubElement(root, "g")
        if attribute is not None:
            group.set("k", attribute)
        if x is not None:
            etree.SubElement(group, "x").text = x
        for text in repeats:
            etree.SubElement(group, "m").text = text
    if comment:
        for element in root.xpath("//*"):
            element.insert(0, etree.Comment("c"))
    expected = set()
    for path, fields in (("/r", {"s": "s"}), ("/r/g", {"x": "x", "k": "@k"}), ("/r/g/m", {"value": "."})):
        for element in root.xpath(path):
            found = {n: element.xpath(f"string({p})") for n, p in fields.items() if element.xpath(f"boolean({p})")}
            values = {n: v if n == "s" else " ".join(v.split()) for n, v in found.items()}
            expected.add((path, tuple(sorted(values.items()))) if values else None)
    paths = {entry.wire: entry.path for entry in nested.model.entries}
    reps = nested.entries(root)
    assert {
        (paths[rep.cls.name], tuple(sorted((n, v) for n, v in rep.as_dict().items() if v is not None))) for rep in reps
    } == expected - {None}
    nested.check_invariants(root, reps)


@pytest.fixture(scope="module")
def nested(make):
    optional = 'minOccurs="0"'
    inner = make.leaf("x", "xs:token", optional) + make.leaf("m", "xs:token", f'{optional} maxOccurs="9"')
    group = (
        f'<xs:complexType><xs:sequence>{inner}</xs:sequence><xs:attribute name="k" type="xs:token"/></xs:complexType>'
    )
    return make.type(
        make.root(make.leaf("s", more=optional), f'<xs:element name="g" maxOccurs="unbounded">{group}</xs:element>')
    )


def test_threads_may_validate_and_check_at_once(imagery, figure):
    registered = imagery.entries(figure(1))

    def work(number: int) -> str:
        document = figure(1)
        if number % 2:
            document.find("ImageDescriptor/ImageType").text = f"bad{number}"
            with pytest.raises(MetadataError, match=f"bad{number}") as refused:
                imagery.validate(document)
            return str(refused.value.facts["path"])
        imagery.validate(document)
        imagery.check_invariants(document, registered)
        return ""

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(work, range(200)))
    assert set(paths[1::2]) == {"/metadata/ImageDescriptor/ImageType"}


def test_a_schema_error_is_a_value_error_and_says_how_to_mend(make):
    with pytest.raises(ValueError, match="does not say what is invariant") as refused:
        open_type(read_bundle(make.root(make.leaf("a"))))
    assert isinstance(refused.value, SchemaError)
    assert "<!-- variant -->" in refused.value.hint
    assert "jbi codegen marks" in refused.value.hint
