"""From a predicate to templates: what has to be derived, what must not be, and that nothing gets lost."""

from __future__ import annotations

import json

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from jbi_pubsub.codegen.derive import MAX_PREDICATE_CHARS
from jbi_pubsub.lookup.entry import matches

FOLDERS = ("intel_imagery", "cap")


def predicates(make, folder):
    known = json.loads((make.fixtures / folder / "predicates.json").read_text())
    return known["predicates"], known["namespaces"]


def is_true(predicate, document, namespaces=None):
    """lxml is the reference: with the document element as context node, as a boolean."""
    return etree.XPath(f"boolean({predicate})", namespaces=namespaces or None)(document)


def satisfied(templates, entries):
    return all(any(matches(template, entry) for entry in entries) for template in templates)


@pytest.mark.row("J-22")
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_has_to_be_derived_is_derived(make, imagery, cap, folder):
    kind = {"intel_imagery": imagery, "cap": cap}[folder]
    cases, namespaces = predicates(make, folder)
    paths = {
        (wire, field.name): path
        for path, field in kind.model.invariants
        for wire in [next(e.wire for e in kind.model.entries if field in e.fields and path.startswith(e.path))]
    }
    for case in cases:
        found = {
            (paths[rep.cls.name, name], value)
            for rep in kind.derive(case["xpath"], namespaces)
            for name, value in rep.as_dict().items()
            if value is not None
        }
        assert {tuple(pair) for pair in case["must_derive"]} <= found, case["xpath"]
        if case.get("must_derive_nothing"):
            assert found == set(), case["xpath"]


@pytest.mark.row("J-23")
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_document_for_which_the_predicate_is_true_is_never_lost(make, imagery, cap, folder):
    kind = {"intel_imagery": imagery, "cap": cap}[folder]
    cases, namespaces = predicates(make, folder)
    figures = {n: make.load(f"intel_imagery/instances/{n}") for n in ("fig1.xml", "fig2-invariant.xml")}
    documents = figures if folder == "intel_imagery" else make.cap_alerts()
    for case in cases:
        templates = kind.derive(case["xpath"], namespaces)
        for name in case["true_for"]:
            assert satisfied(templates, kind.entries(documents[name])), (case["xpath"], name)


def test_conditions_on_one_element_come_into_one_template(make, imagery):
    predicate = "/metadata/RequiredMetadata/Type='Imagery' and /metadata/RequiredMetadata[publisher='418th']"
    assert make.shown(imagery.derive(predicate)) == [
        ("RequiredMetadataEntry", {"Type": "Imagery", "publisher": "418th"})
    ]


def test_each_mention_of_a_repeated_element_gets_a_template_of_its_own(make, cap):
    names = {"c": "urn:oasis:names:tc:emergency:cap:1.2"}
    one = "/c:alert/c:info/c:eventCode[c:valueName='SAME']/c:value='SVA'"
    two = "/c:alert/c:info/c:eventCode/c:valueName='SAME' and /c:alert/c:info/c:eventCode/c:value='SVA'"
    together = [("EventCodeEntry", {"valueName": "SAME", "value": "SVA"})]
    apart = [("EventCodeEntry", {"valueName": "SAME"}), ("EventCodeEntry", {"value": "SVA"})]
    assert make.shown(cap.derive(one, names)) == together
    assert make.shown(cap.derive(two, names)) == apart


@pytest.mark.parametrize(
    "predicate",
    [
        "/r/s='a' or /r/s='b'",
        "not(/r/s='a')",
        "/r/s!='a'",
        "/r/n>1",
        "/r/s=true()",
        "/r/s=(1=1)",
        "//s='a'",
        "/r/s='a' | /r/s",
        "/r/s/text()='a'",
        "/r/s=''",
        "/r/s='  '",
        "/r/n=1.5",
        "/r/n=9007199254740992",
        "/r/n='one'",
        "/r/d=1.5",
        "/r/f=1",
        "/r/s=1",
        "/r/q='p:x'",
        "count(/r/s)=1",
        "starts-with(/r/s,'a')",
        "/r/v='a'",
        "/r/following::s='a'",
        "/r/descendant::s='a'",
        "/q/s='a'",
        "/p:r/s='a'",
        "/r/*='a'",
        "/r/s='a' and",
        "[[",
        "",
        "(" * 5000,
        "-" * 9000 + "1",
        "/r/n=" + "9" * 5000,
        "/r/s='a''b' and",
        "/r/s='" + "a" * MAX_PREDICATE_CHARS + "'",
        "$v = /r/s",
        "/r[count(s)]",
        "/r[1]",
        "/r/s[.='a'] = false()",
        "(/r/s='a') = false()",
    ],
)
def test_nothing_is_derived_from(make, predicate):
    leaves = [make.leaf("s"), make.leaf("n", "xs:integer"), make.leaf("d", "xs:decimal"), make.leaf("f", "xs:double")]
    kind = make.type(make.root(*leaves, make.leaf("q", "xs:QName"), make.leaf("v")), variant=["/r/v"])
    explained = kind.explain(predicate)
    assert explained.templates == kind.derive(predicate) == ()
    assert all(condition.went == "predicate" and condition.reason for condition in explained.conditions)


@pytest.mark.parametrize(
    ("predicate", "fields"),
    [
        ("/r/s='a'", {"s": "a"}),
        ("'a'=/r/s", {"s": "a"}),
        ("s='a'", {"s": "a"}),
        ("self::node()[s='a']", {"s": "a"}),
        ("/*/s='a'", {"s": "a"}),
        ("/r[s='a']/v", {"s": "a"}),
        ("/r[s='a']/v > 5", {"s": "a"}),
        ("/r/v[/r/s='a']='x'", {"s": "a"}),
        ("/r/v[../s='a']", {"s": "a"}),
        ("/r/s[.='a']", {"s": "a"}),
        ("(/r/s)[1]='a'", {"s": "a"}),
        ("/r/child::s='a' and /r/attribute::k='b'", {"s": "a", "k": "b"}),
        ("/r/@k='b' and (not(/r/s='z') and /r/s='a')", {"s": "a", "k": "b"}),
        ("/r[self::node()/s='a']", {"s": "a"}),
        ("/r/t='  a   b '", {"t": "a b"}),
        ("/r/d='01.50'", {"d": "1.5"}),
        ("/r/n=5", {"n": "5"}),
        ("/r/n=-5.0", {"n": "-5"}),
        ("/r/b=1.50", {"b": "1.5"}),
        ("/r/w='2003-02-01T12:00:00+02:00'", {"w": "2003-02-01T10:00:00Z"}),
    ],
)
def test_an_equality_is_derived_from(make, predicate, fields):
    bounded = (
        '<xs:element name="b"><xs:simpleType><xs:restriction base="xs:decimal"><xs:totalDigits value="9"/>'
        "</xs:restriction></xs:simpleType></xs:element>"
    )
    leaves = [make.leaf("s"), make.leaf("t", "xs:token"), make.leaf("d", "xs:decimal"), make.leaf("n", "xs:integer")]
    leaves += [bounded, make.leaf("w", "xs:dateTime"), make.leaf("v")]
    kind = make.type(make.root(*leaves, attributes='<xs:attribute name="k"/>'), variant=["/r/v"])
    assert make.shown(kind.derive(predicate)) == [("REntry", fields)]


def test_an_explanation_says_where_each_condition_went_and_why(imagery):
    explained = imagery.explain("/metadata/RequiredMetadata/Type='Imagery' and /metadata/ImageDescriptor/Area='Kabul'")
    derived, left = explained.conditions
    assert (derived.went, derived.entry, derived.field, derived.value) == (
        "template",
        "RequiredMetadataEntry",
        "Type",
        "Imagery",
    )
    assert (left.went, left.entry) == ("predicate", "")
    assert "ImageDescriptor" in left.reason


OPTIONAL = 'minOccurs="0"'
TEXTS = ("", "a", " a", "a  b", "1", "1.0", "01", "+1", "2", "-1")
LITERALS = ("'a'", "'a  b'", "'a b'", "'1'", "'1.0'", "1", "1.0", "-1", "''", "' '", "true()", "2", "/r/s", "'q'")


def _documents():
    text = st.sampled_from(TEXTS)
    number = st.sampled_from(("1", "01", "+1", "2", "-1", " 1 "))
    group = st.tuples(st.none() | text, st.none() | text)
    return st.tuples(
        text, text, number, number, st.lists(text, max_size=2), st.lists(group, max_size=2), st.none() | text
    )


def _xml(parts):
    s, t, n, d, repeats, groups, attribute = parts
    root = etree.Element("r")
    if attribute is not None:
        root.set("k", attribute)
    for name, text in (("s", s), ("t", t), ("n", n), ("d", d), *(("m", text) for text in repeats)):
        etree.SubElement(root, name).text = text
    for x, y in groups:
        group = etree.SubElement(root, "g")
        for name, text in (("x", x), ("y", y)):
            if text is not None:
                etree.SubElement(group, name).text = text
    etree.SubElement(root, "v").text = s
    return root


_relative = st.sampled_from(
    ("s", "t", "n", "d", "@k", "m", "g/x", "g/y", "v", ".", "..", "*", "g[x='a']/y", "m[.='a']")
)
_steps = st.sampled_from(
    (
        "/r/",
        "/*/",
        "//",
        "",
        "./",
        "../r/",
        "/r/../r/",
        "/r/v/../",
        "/r/*/../",
        "/r/descendant::*/../",
        "/r/g[1]/",
        "/r[s='a']/",
        "/r/g[y='1'][x='a']/",
        "/r/v/",
    )
)
_operators = st.sampled_from(("=", "=", "=", "=", "!=", "<", ">="))
_atoms = st.one_of(
    st.builds("{}{} {} {}".format, _steps, _relative, _operators, st.sampled_from(LITERALS)),
    st.builds("{} {} {}{}".format, st.sampled_from(LITERALS), _operators, _steps, _relative),
    st.builds("/r[{} {} {}]".format, _relative, _operators, st.sampled_from(LITERALS)),
    st.builds(
        "/r/g[{}{}{} and {}={}]".format,
        _relative,
        _operators,
        st.sampled_from(LITERALS),
        _relative,
        st.sampled_from(LITERALS),
    ),
    st.builds("{}{}".format, _steps, _relative),
)
_predicates = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("{} and {}".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not({})".format, inner),
        st.builds("*[{}]".format, inner),
        st.builds("boolean({})".format, inner),
        st.builds("({}) = true()".format, inner),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def mixed_bag(make):
    group = (
        '<xs:element name="g" minOccurs="0" maxOccurs="9"><xs:complexType><xs:sequence>'
        f"{make.leaf('x', more=OPTIONAL)}{make.leaf('y', 'xs:token', OPTIONAL)}"
        "</xs:sequence></xs:complexType></xs:element>"
    )
    leaves = [make.leaf("s"), make.leaf("t", "xs:token"), make.leaf("n", "xs:integer"), make.leaf("d", "xs:decimal")]
    leaves += [make.leaf("m", "xs:token", 'minOccurs="0" maxOccurs="9"'), group, make.leaf("v")]
    return make.type(make.root(*leaves, attributes='<xs:attribute name="k" type="xs:token"/>'), variant=["/r/v"])


@pytest.mark.row("J-23")
@pytest.mark.long
@settings(max_examples=examples(1000), derandomize=True, deadline=None)
@given(predicate=_predicates, parts=_documents())
def test_whatever_the_predicate_a_document_that_satisfies_it_matches_the_templates(mixed_bag, predicate, parts):
    document = _xml(parts)
    mixed_bag.validate(document)
    if is_true(predicate, document):
        assert satisfied(mixed_bag.derive(predicate), mixed_bag.entries(document))


@settings(max_examples=examples(300), derandomize=True, deadline=None)
@given(value=st.sampled_from(TEXTS), others=_documents(), leaf=st.sampled_from(("s", "t", "@k", "m", "g/x")))
def test_an_equality_finds_every_document_that_has_the_value(mixed_bag, value, others, leaf):
    document, predicate = _xml(others), f"/r/{leaf}='{value}'"
    templates = mixed_bag.derive(predicate)
    assert bool(templates) is bool(value.strip())
    if is_true(predicate, document):
        assert satisfied(templates, mixed_bag.entries(document))


@settings(max_examples=examples(300), derandomize=True, deadline=None)
@given(text=st.text(alphabet="/r[]()=.'\"@*|$:sand or1-!<>,", max_size=40))
def test_any_text_is_answered_and_never_raises(mixed_bag, text):
    explained = mixed_bag.explain(text)
    assert explained.predicate == text
