"""What a leaf may hold for certain: whatever is said here, libxml2 must agree with; what is not sure is not said."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from extent import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, open_type
from jbi_pubsub.core.documents import Texts
from jbi_pubsub.core.documents.certain import MAX_DEPTH, GlobalComponents, LeafTypes
from jbi_pubsub.core.errors import MetadataError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.xml import parse_metadata

FEW = settings(max_examples=examples(60), derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def type_of(body: str, attributes: str = "") -> InformationType:
    """The type of document element `r`; its child `who` is invariant, all else is variant."""
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'
    schema = f"<xs:schema {names} {attributes}>{body}</xs:schema>".encode()
    return open_type(read_bundle(schema, marks=json.dumps({"root": "r", "invariant": ["/r/who"]}).encode()))


def document_type(*elements: str, more: str = "", attributes: str = "") -> InformationType:
    """`r` with `who` and those elements."""
    content = f'<xs:element name="who" type="xs:string"/>{"".join(elements)}'
    root = f'<xs:element name="r"><xs:complexType><xs:sequence>{content}</xs:sequence></xs:complexType></xs:element>'
    return type_of(root + more, attributes)


def restricted(base: str, *facets: str) -> str:
    """Element `v` of a restriction: facets like 'minInclusive=3'."""
    inside = "".join('<xs:{} value="{}"/>'.format(*facet.split("=", 1)) for facet in facets)
    return (
        f'<xs:element name="v"><xs:simpleType><xs:restriction base="{base}">{inside}</xs:restriction></xs:simpleType>'
        "</xs:element>"
    )


def valid(kind: InformationType, text: str) -> bool:
    """What libxml2 says of a document with that text in `v`."""
    try:
        kind.validate(parse_metadata(f"<r><who>a</who><v>{text}</v></r>".encode()))
    except MetadataError:
        return False
    return True


def within(texts: Texts, text: str) -> bool:
    """Whether the value lies between the bounds."""
    return not texts.is_bounded or texts.above < float(text) < texts.below


KNOWN = {
    **{
        name: f'<xs:element name="v" type="xs:{name}"/>'
        for name in (
            *("string", "normalizedString", "token", "language", "Name", "NCName", "NMTOKEN", "boolean"),
            *("decimal", "integer", "long", "int", "short", "byte", "float", "double", "dateTime", "date", "time"),
            *("nonNegativeInteger", "positiveInteger", "anySimpleType", "anyType"),
            *("unsignedLong", "unsignedInt", "unsignedShort", "unsignedByte"),
        )
    },
    "untyped": '<xs:element name="v"/>',
    "nillable": '<xs:element name="v" type="xs:int" nillable="true"/>',
    "enumerated": restricted("xs:token", "enumeration=N", "enumeration=S", "enumeration=Very Likely"),
    "enumerated numbers": restricted("xs:decimal", "enumeration=1.50", "enumeration=2"),
    "latitude": restricted("xs:decimal", "minInclusive=-90", "maxInclusive=90"),
    "open interval": restricted("xs:double", "minExclusive=0", "maxExclusive=1e2"),
    "percentage": restricted("xs:nonNegativeInteger", "maxInclusive=100"),
    "digits": restricted("xs:decimal", "totalDigits=9", "fractionDigits=6"),
    "total digits": restricted("xs:decimal", "totalDigits=3"),
    "total digits from nought on": restricted("xs:decimal", "totalDigits=3", "minInclusive=0"),
    "fraction digits below ten": restricted("xs:decimal", "fractionDigits=1", "maxExclusive=10"),
    "no fraction": restricted("xs:decimal", "fractionDigits=0"),
    "short string": restricted("xs:string", "minLength=2", "maxLength=4"),
    "exact token": restricted("xs:token", "length=3"),
    "with attribute": (
        '<xs:element name="v"><xs:complexType><xs:simpleContent><xs:extension base="xs:decimal">'
        '<xs:attribute name="unit"/></xs:extension></xs:simpleContent></xs:complexType></xs:element>'
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", KNOWN)
def test_texts_said_to_be_certain_are_valid(name: str) -> None:
    # Given a leaf of some type, of which something is certain
    kind = document_type(KNOWN[name])
    texts = kind.texts(("r", "v"))
    assert texts is not None

    # Expect whatever text is said to be certain to be valid for libxml2
    @FEW
    @given(st.from_regex(texts.expression.replace("++", "+").replace("*+", "*"), fullmatch=True))
    def each(text: str) -> None:
        if text.isascii() and within(texts, text):
            assert valid(kind, text)

    each()


YEARS = ("0000", "0001", "-0001", "1999", "2000", "9999", "10000", "99999", "123456789012345678", "1" * 40)
DAYS = ("01-01", "02-28", "02-29", "02-30", "04-31", "12-31", "13-01", "00-10", "1-1")
CLOCKS = ("00:00:00", "23:59:59", "23:59:60", "24:00:00", "24:00:01", "12:00", "12:00:00.", "12:00:00." + "1" * 30)
ZONES = ("", "Z", "+00:00", "-00:00", "+13:59", "+14:00", "-14:00", "+14:01", "+15:00", "-1:00", "z")
NUMBERS = (
    *(
        "0",
        "-0",
        "+0",
        "00",
        "1",
        "-1",
        "+5",
        "007",
        "255",
        "256",
        "-128",
        "-129",
        "127",
        "128",
        "32768",
        "65535",
        "65536",
    ),
    *("2147483647", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808", "18446744073709551616"),
    *("1" * 24, "1" * 25, "9" * 100, "0" * 50, "1.", ".5", "-.5", ".", "1.0", "0.1", "1." + "1" * 30, "1e3", "1E400"),
    *("-1e400", "1e-400", "1e+5", "1e", "INF", "-INF", "+INF", "NaN", "nan", "inf", "0x10", "1_000", "1,5", "--1"),
    *("0.099999999", "0.1000000001", "89.9999999", "90.0000000000001", "-90", "-90.0", "100", "100.0", "99", "101"),
)
WORDS = (
    *(
        "",
        " ",
        "a",
        " a",
        "a ",
        "a b",
        "a  b",
        "\t",
        "a\nb",
        "ab",
        "abc",
        "abcd",
        "abcde",
        "1a",
        "a1",
        ":a",
        "a:b",
        "_a",
    ),
    *(
        "-a",
        ".a",
        "a.b-c",
        "en",
        "en-GB",
        "en-",
        "abcdefghi",
        "a-b-c-d",
        "true",
        "false",
        "TRUE",
        "0",
        "1",
        "01",
        "x" * 300,
    ),
    *("\u00e9", "\u65e5", "\u0660", "\u00a0", "http://a b", "%", "1 2 3", "1 a", "P1D", "QQ==", "0f", "\u00b2"),
)
NASTY = (
    *(f"{year}-{day}{zone}" for year in YEARS for day in DAYS[:4] for zone in ("", "Z", "+14:00", "+14:01")),
    *(f"2003-{day}T{clock}{zone}" for day in DAYS for clock in CLOCKS for zone in ("", "Z", "-14:00")),
    *(f"{year}-01-01T{clock}" for year in YEARS for clock in CLOCKS),
    *(f"{clock}{zone}" for clock in CLOCKS for zone in ZONES),
    *(f"2003-01-01{zone}" for zone in ZONES),
    *NUMBERS,
    *(f" {number}\n" for number in NUMBERS[:8]),
    *WORDS,
)
MORE = {
    "list": '<xs:element name="v"><xs:simpleType><xs:list itemType="xs:int"/></xs:simpleType></xs:element>',
    "union": (
        '<xs:element name="v"><xs:simpleType><xs:union memberTypes="xs:int xs:date xs:token"/></xs:simpleType>'
        "</xs:element>"
    ),
    "collapsed string": restricted("xs:string", "whiteSpace=collapse", "minLength=2", "maxLength=3"),
    "replaced string": restricted("xs:string", "whiteSpace=replace", "length=3"),
    "collapsed enumeration": restricted("xs:string", "whiteSpace=collapse", "enumeration=a b", "enumeration=1"),
    "preserved enumeration": restricted("xs:string", "enumeration=a b", "enumeration=abc"),
    **{
        f"bounded {base}": restricted(f"xs:{base}", f"{low}=-90", f"{high}=90")
        for base in ("decimal", "float", "double", "integer", "long", "int", "short", "byte")
        for low, high in (("minInclusive", "maxExclusive"), ("minExclusive", "maxInclusive"))
    },
    **{
        f"unsigned {base}": restricted(f"xs:{base}", "maxInclusive=100") for base in ("unsignedByte", "positiveInteger")
    },
    "two digits": restricted("xs:integer", "totalDigits=2"),
    "digits of an int": restricted("xs:int", "totalDigits=3", "minInclusive=-5"),
    "a tenth": restricted("xs:float", "maxInclusive=0.1"),
}


@pytest.mark.parametrize("name", [*KNOWN, *MORE])
def test_of_the_nasty_texts_none_is_certain_that_libxml2_does_not_take(name: str) -> None:
    # Given texts at the edges of all types
    kind = document_type({**KNOWN, **MORE}[name])
    texts = kind.texts(("r", "v"))
    if texts is None:
        return
    said = re.compile(texts.expression, re.ASCII)
    # Expect those that are said to be certain to be valid
    certain = [text for text in NASTY if said.fullmatch(text) and (not texts.is_bounded or within(texts, text))]
    assert [text for text in certain if not valid(kind, text)] == []
    # And to be among them those that are told without a look at their value
    sure = [text for text in NASTY if texts.sure and re.fullmatch(texts.sure, text, re.ASCII)]
    assert [text for text in sure if not said.fullmatch(text) or not valid(kind, text)] == []


@pytest.mark.parametrize("base", ["decimal", "integer", "nonNegativeInteger", "int"])
@pytest.mark.parametrize(
    ("low", "high"),
    [("-90", "90"), ("0", "100"), ("-5", "7"), ("0", "1000"), ("-180", "1"), ("-1", "909"), ("-0.5", "20"), ("3", "9")],
)
@pytest.mark.parametrize("kinds", ["Inclusive", "Exclusive"])
def test_numbers_told_by_their_digits_lie_between_the_bounds(base: str, low: str, high: str, kinds: str) -> None:
    # Given a number between bounds
    chance = random.Random(f"{base} {low} {high}")
    values = [f"{sign}{whole}" for whole in range(1100) for sign in ("", "-")]
    values += [f"{chance.uniform(-200, 1100):.{digits}f}" for digits in (1, 3, 9) for _ in range(300)] + [
        "00",
        "-0",
        "+1",
        "0.0",
    ]
    try:
        kind = document_type(restricted(f"xs:{base}", f"min{kinds}={low}", f"max{kinds}={high}"))
    except SchemaError:
        return  # no such number
    texts = kind.texts(("r", "v"))
    assert texts is not None
    # Expect those that their digits tell to lie there, and to be almost all where both bounds are whole
    sure = [value for value in values if texts.sure and re.fullmatch(texts.sure, value)]
    assert all(float(low) <= float(value) <= float(high) and valid(kind, value) for value in sure)
    if low not in ("3", "-0.5") and (low, kinds) != ("0", "Exclusive") and base != "nonNegativeInteger":
        inside = [value for value in values if float(low) < float(value) < float(high)]
        missing = {value for value in inside if value not in sure and (base == "decimal" or "." not in value)}
        assert missing <= {"+1", "00"}


@pytest.mark.parametrize(
    ("base", "values"),
    [
        ("date", ["2000-01-01", "2000-01-01+14:00", "-0001-01-01", "99999-01-01", "123456789012345678-01-01"]),
        ("dateTime", ["2000-01-01T24:00:00", "2000-01-01T00:00:00Z", "123456789012345678-01-01T00:00:00"]),
        ("time", ["24:00:00", "12:00:00", "12:00:00.123456789012345678901234567890"]),
        ("decimal", ["1.50", "-0", "1" * 24, "0.1"]),
        ("double", ["1e400", "INF", "NaN", "1.5"]),
        ("float", ["1e50", "NaN", "2"]),
        ("integer", ["1" * 24, "007", "-0"]),
        ("long", ["9223372036854775807", "5"]),
        ("token", ["a b", " a", "a"]),
        ("NCName", ["a", "a.b", "\u00e9"]),
        ("nonNegativeInteger", ["-0", "0", "+1"]),
    ],
)
def test_enumerated_texts_are_certain_only_where_libxml2_takes_them(base: str, values: list[str]) -> None:
    # Given a variant leaf with an enumeration that no other processor has looked into
    leaf = restricted(f"xs:{base}", *(f"enumeration={value}" for value in values)).replace(
        '<xs:element name="v">', '<xs:element name="v" jbi:variance="variant">'
    )
    inside = f'<xs:element name="who" type="xs:string"/>{leaf}'
    body = f'<xs:element name="r"><xs:complexType><xs:sequence>{inside}</xs:sequence></xs:complexType></xs:element>'
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'
    kind = open_type(read_bundle(f"<xs:schema {names}>{body}</xs:schema>".encode()))
    texts = kind.texts(("r", "v"))
    assert texts is not None
    # Expect one value at least to be certain, and all of those to be valid
    certain = [value for value in (*values, *NASTY) if re.fullmatch(texts.expression, value, re.ASCII)]
    assert certain
    assert [text for text in certain if not valid(kind, text)] == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("latitude", "33.9482"),
        ("percentage", "68"),
        ("digits", "-179.123456"),
        ("enumerated", "Very Likely"),
        ("dateTime", "2003-09-13T16:08:06Z"),
        ("dateTime", "2003-12-31T23:59:59.25-05:00"),
        ("string", "a text,\n\tof (two) lines"),
        ("double", "1.5e-3"),
    ],
)
def test_the_usual_texts_are_certain(name: str, text: str) -> None:
    texts = document_type(KNOWN[name]).texts(("r", "v"))
    assert texts is not None
    assert re.fullmatch(texts.expression, text, re.ASCII)
    assert within(texts, text)


@pytest.mark.parametrize(
    "element",
    [
        pytest.param(restricted("xs:string", "pattern=[a-z]+"), id="a pattern"),
        pytest.param(
            '<xs:element name="v"><xs:simpleType><xs:list itemType="xs:int"/></xs:simpleType></xs:element>', id="a list"
        ),
        pytest.param(
            '<xs:element name="v"><xs:simpleType><xs:union memberTypes="xs:int xs:date"/></xs:simpleType></xs:element>',
            id="a union",
        ),
        pytest.param('<xs:element name="v" type="xs:string" fixed="a"/>', id="fixed"),
        pytest.param('<xs:element name="v" type="xs:string" default="a"/>', id="a default"),
        pytest.param('<xs:element name="v" type="xs:ID"/>', id="an ID"),
        pytest.param('<xs:element name="v" type="xs:IDREF"/>', id="an IDREF"),
        pytest.param('<xs:element name="v" type="xs:QName"/>', id="a QName"),
        pytest.param('<xs:element name="v" type="xs:anyURI"/>', id="a URI"),
        pytest.param(restricted("xs:dateTime", "minInclusive=2000-01-01T00:00:00Z"), id="a bounded time"),
        pytest.param(restricted("xs:float", "maxExclusive=0.1"), id="0.099999999 is 0.1 as an xs:float"),
        pytest.param(
            '<xs:element name="v"><xs:complexType mixed="true"><xs:sequence/></xs:complexType></xs:element>', id="mixed"
        ),
        pytest.param('<xs:element name="v"><xs:complexType/></xs:element>', id="empty"),
        pytest.param(
            '<xs:element name="v"><xs:simpleType><xs:restriction><xs:simpleType><xs:restriction base="xs:string">'
            '<xs:pattern value="a*"/></xs:restriction></xs:simpleType><xs:maxLength value="3"/></xs:restriction>'
            "</xs:simpleType></xs:element>",
            id="a pattern further up",
        ),
    ],
)
def test_of_what_is_not_understood_nothing_is_certain(element: str) -> None:
    assert document_type(element).texts(("r", "v")) is None


@pytest.mark.parametrize(
    "tie",
    [
        '<xs:key name="k"><xs:selector xpath="v"/><xs:field xpath="."/></xs:key>',
        '<xs:unique name="k"><xs:selector xpath="v"/><xs:field xpath="."/></xs:unique>',
    ],
)
def test_where_leaves_are_tied_together_nothing_is_certain(tie: str) -> None:
    # Given a schema in which no two of `v` may be equal
    kind = type_of(
        '<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>'
        f'<xs:element name="v" type="xs:int" maxOccurs="9"/></xs:sequence></xs:complexType>{tie}</xs:element>'
    )
    assert kind.texts(("r", "v")) is None


NAMED = (
    '<xs:simpleType name="N"><xs:restriction base="xs:int">'
    '<xs:maxInclusive value="9"/></xs:restriction></xs:simpleType>'
)
ANY = '<xs:any minOccurs="0" maxOccurs="9" processContents="{}"/>'


@pytest.mark.parametrize(
    ("elements", "more", "path"),
    [
        pytest.param('<xs:element name="v" type="N"/>', NAMED, "v", id="a named type"),
        pytest.param('<xs:element ref="v"/>', '<xs:element name="v" type="N"/>' + NAMED, "v", id="a reference"),
        pytest.param(
            '<xs:group ref="g"/>',
            '<xs:group name="g"><xs:choice><xs:element name="v" type="N"/></xs:choice></xs:group>' + NAMED,
            "v",
            id="a group",
        ),
        pytest.param(
            '<xs:element name="a" type="Derived"/>',
            '<xs:complexType name="Base"><xs:sequence><xs:element name="v" type="N"/></xs:sequence></xs:complexType>'
            '<xs:complexType name="Derived"><xs:complexContent><xs:extension base="Base"><xs:sequence>'
            '<xs:element name="w" type="xs:string" minOccurs="0"/></xs:sequence></xs:extension></xs:complexContent>'
            "</xs:complexType>" + NAMED,
            "a/v",
            id="inherited content",
        ),
        pytest.param(
            '<xs:element ref="head"/>',
            '<xs:element name="head" type="xs:int" abstract="true"/>'
            '<xs:element name="v" type="N" substitutionGroup="head"/>' + NAMED,
            "v",
            id="a member of a substitution group",
        ),
        pytest.param(ANY.format("lax"), '<xs:element name="v" type="N"/>' + NAMED, "v", id="a wildcard, declared"),
        pytest.param(
            ANY.format("lax"), '<xs:element name="v" type="N"/>' + NAMED, "a/v", id="below a wildcard, declared"
        ),
    ],
)
def test_the_type_is_that_of_the_declaration_that_counts(elements: str, more: str, path: str) -> None:
    # Given an element of type N (below 10), declared in one way or the other
    texts = document_type(elements, more=more).texts(("r", *path.split("/")))
    # Expect its type to be found
    assert texts is not None
    assert (texts.above, texts.below) == (float("-inf"), 9.0)


VWV = f'<xs:element name="v" type="xs:string"/><xs:element name="w" type="xs:string"/>{ANY}'
INT_V = '<xs:element name="v" type="xs:int"/>'


@pytest.mark.parametrize(
    ("elements", "more"),
    [
        pytest.param(VWV.format("strict"), INT_V, id="the second by a wildcard"),
        pytest.param(VWV.format("lax").replace("xs:string", "N"), NAMED, id="the second perhaps not declared"),
        pytest.param(
            '<xs:element name="v" type="xs:string"/><xs:element name="w" type="xs:string"/><xs:element ref="head"/>',
            '<xs:element name="head" type="xs:int"/><xs:element name="v" type="xs:int" substitutionGroup="head"/>',
            id="the second for another",
        ),
        pytest.param(
            '<xs:element name="v" type="xs:int"/><xs:element name="w" type="xs:string"/>'
            '<xs:element name="v" type="xs:int" fixed="7"/>',
            "",
            id="the second with a fixed value",
        ),
    ],
)
def test_where_declarations_of_one_name_differ_nothing_is_certain(elements: str, more: str) -> None:
    assert document_type(elements, more=more).texts(("r", "v")) is None


def test_declarations_of_one_name_that_a_variant_part_tells_apart_make_nothing_certain() -> None:
    # Given two elements `v` of different types in an element marked variant, which only libxml2 looks into
    inside = f'{INT_V.replace("xs:int", "xs:string")}<xs:element name="w" type="xs:string"/>{INT_V}'
    body = (
        '<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>'
        f'<xs:element name="d" jbi:variance="variant"><xs:complexType><xs:sequence>{inside}</xs:sequence>'
        "</xs:complexType></xs:element></xs:sequence></xs:complexType></xs:element>"
    )
    schema = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">{body}</xs:schema>'
    kind = open_type(read_bundle(schema.encode()))
    # Expect neither type to stand for both
    assert kind.texts(("r", "d", "v")) is None
    assert kind.texts(("r", "d", "w")) is not None


@pytest.mark.parametrize(
    ("elements", "more"),
    [
        pytest.param(
            '<xs:element name="v" type="N"/><xs:element name="w" type="xs:string"/><xs:element name="v" type="N"/>',
            NAMED,
            id="two of one type",
        ),
        pytest.param(
            '<xs:element name="v" type="N"/><xs:any namespace="##other" processContents="lax"/>',
            NAMED,
            id="a wildcard for other namespaces",
        ),
        pytest.param('<xs:element name="v" type="N"/>', INT_V + NAMED, id="a global one that nothing leads to"),
    ],
)
def test_declarations_that_agree_or_do_not_meet_do_not_disturb(elements: str, more: str) -> None:
    texts = document_type(elements, more=more).texts(("r", "v"))
    assert texts is not None
    assert texts.below == 9.0


@pytest.mark.parametrize(
    "links",
    [
        pytest.param("", id="a document to which nothing leads"),
        pytest.param(
            '<xs:import namespace="urn:b" schemaLocation="b1.xsd"/>'
            '<xs:import namespace="urn:b" schemaLocation="b2.xsd"/>',
            id="a second one for a namespace, which libxml2 passes over",
        ),
    ],
)
def test_with_documents_that_the_validator_does_not_know_nothing_is_certain(links: str) -> None:
    # Given a bundle in which two documents define a type, of which libxml2 knows one
    def document(inside: str, of: str) -> bytes:
        names = f'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns="{of}" xmlns:b="urn:b" targetNamespace="{of}"'
        return f"<xs:schema {names}>{inside}</xs:schema>".encode()

    def defining(base: str) -> str:
        return f'<xs:simpleType name="N"><xs:restriction base="{base}"/></xs:simpleType>'

    main = (
        f'{links}<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>'
        f'<xs:element name="v" type="{"b:N" if links else "N"}"/></xs:sequence></xs:complexType></xs:element>'
    )
    if links:
        main_document, first = document(main, "urn:a"), document(defining("xs:int"), "urn:b")
        documents = [
            ("main.xsd", main_document),
            ("b1.xsd", first),
            ("b2.xsd", document(defining("xs:string"), "urn:b")),
        ]
    else:
        main_document = document(main + defining("xs:int"), "urn:a")
        documents = [("main.xsd", main_document), ("stray.xsd", document(defining("xs:string"), "urn:a"))]
    marks = {"root": "{urn:a}r", "namespaces": {"a": "urn:a"}, "invariant": ["/a:r/who"]}
    kind = open_type(SchemaBundle("main.xsd", tuple(documents), json.dumps(marks).encode(), TypeName("")))
    # Expect nothing, since the other one might count
    assert kind.texts(("{urn:a}r", "v")) is None


def test_a_document_that_is_included_is_known() -> None:
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema"'
    main = (
        f'<xs:schema {names}><xs:include schemaLocation="n.xsd"/><xs:element name="r"><xs:complexType><xs:sequence>'
        '<xs:element name="who" type="xs:string"/><xs:element name="v" type="N"/></xs:sequence></xs:complexType>'
        "</xs:element></xs:schema>"
    )
    documents = (("main.xsd", main.encode()), ("n.xsd", f"<xs:schema {names}>{NAMED}</xs:schema>".encode()))
    marks = json.dumps({"invariant": ["/r/who"]}).encode()
    texts = open_type(SchemaBundle("main.xsd", documents, marks, TypeName(""))).texts(("r", "v"))
    assert texts is not None
    assert texts.below == 9.0


@pytest.mark.parametrize("processing", ["lax", "skip"])
def test_what_a_wildcard_takes_without_a_declaration_may_hold_any_text(processing: str) -> None:
    texts = document_type(ANY.format(processing)).texts(("r", "a", "b"))
    assert texts is not None
    assert not texts.is_bounded


def test_a_local_name_is_qualified_as_the_schema_says() -> None:
    # Given two schemas of a namespace, with local elements in it and without
    body = (
        '<xs:element name="r"><xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>'
        '<xs:element name="v" type="xs:int"/></xs:sequence></xs:complexType></xs:element>'
    )

    def of(form: str, path: tuple[str, ...]) -> Any:
        names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'
        schema = f'<xs:schema {names} targetNamespace="urn:n" elementFormDefault="{form}">{body}</xs:schema>'
        who = "/n:r/n:who" if form == "qualified" else "/n:r/who"
        marks = {"root": "{urn:n}r", "namespaces": {"n": "urn:n"}, "invariant": [who]}
        return open_type(read_bundle(schema.encode(), marks=json.dumps(marks).encode())).texts(path)

    # Expect the element under its own name only: the other one can't be there
    assert of("qualified", ("{urn:n}r", "{urn:n}v")).expression == of("unqualified", ("{urn:n}r", "v")).expression


def test_a_schema_that_unfolds_without_end_costs_no_time() -> None:
    # Given groups each of which uses the next one twice
    groups = "".join(
        f'<xs:group name="g{n}"><xs:sequence><xs:group ref="g{n + 1}" minOccurs="0"/>'
        f'<xs:element name="e{n}" type="xs:int"/><xs:group ref="g{n + 1}" minOccurs="0"/></xs:sequence></xs:group>'
        for n in range(30)
    )
    last = '<xs:group name="g30"><xs:sequence><xs:element name="v" type="xs:int"/></xs:sequence></xs:group>'
    body = f'<xs:element name="r"><xs:complexType><xs:group ref="g0"/></xs:complexType></xs:element>{groups}{last}'
    schema = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{body}</xs:schema>'
    types = LeafTypes({"d0.xsd": parse_metadata(schema.encode())}, "d0.xsd")
    # Expect one look at each
    assert types.texts(("r", "e29")) is not None
    assert types.texts(("r", "v")) is not None


def test_a_content_model_is_read_once_however_many_leaves_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a recursive element with many children
    read: list[Any] = []
    once = GlobalComponents.declared

    def counted(self: GlobalComponents, element: Any, kind: str) -> Any:
        read.append(element)
        return once(self, element, kind)

    monkeypatch.setattr(GlobalComponents, "declared", counted)
    many = "".join(f'<xs:element name="e{n}" type="xs:int"/>' for n in range(100))
    body = f'<xs:element name="r"><xs:complexType><xs:choice>{many}<xs:element ref="r"/></xs:choice></xs:complexType>'
    schema = f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{body}</xs:element></xs:schema>'
    types = LeafTypes({"d0.xsd": parse_metadata(schema.encode())}, "d0.xsd")
    # When it is asked for leaves far below
    assert all(types.texts((*["r"] * 50, f"e{n}")) is not None for n in range(100))
    # Expect it to have read each child's declaration once, and to give up where documents are deeper than any in use
    assert len(read) == 101
    assert types.texts((*["r"] * MAX_DEPTH, "e1")) is None


def test_of_a_content_model_larger_than_any_in_use_nothing_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a type of five groups, each as large as a group may be
    def group(number: int) -> str:
        many = "".join(f'<xs:element name="e{number}-{n}" type="xs:int"/>' for n in range(900))
        return f'<xs:group name="g{number}"><xs:choice>{many}</xs:choice></xs:group>'

    used = "".join(f'<xs:group ref="g{number}"/>' for number in range(5))
    body = f'<xs:element name="r"><xs:complexType><xs:sequence>{used}</xs:sequence></xs:complexType></xs:element>'
    schema = "".join(map(group, range(5)))
    root = parse_metadata(f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{body}{schema}</xs:schema>'.encode())
    types = LeafTypes({"d0.xsd": root}, "d0.xsd")
    assert types.texts(("r", "e0-1")) is None
    # Expect it not to be read again for the next leaf
    monkeypatch.delattr(GlobalComponents, "declared")
    assert types.texts(("r", "e0-2")) is None


def test_a_type_with_more_facets_than_any_in_use_is_not_read_to_its_end() -> None:
    # Given two levels of enumerations that have one plain value in common
    values = "".join(f'<xs:enumeration value="&#233;{n}"/>' for n in range(600))
    base = (
        f'<xs:simpleType name="N"><xs:restriction base="xs:token">{values}<xs:enumeration value="a"/></xs:restriction>'
    )
    derived = '<xs:restriction base="N">{}<xs:enumeration value="a"/></xs:restriction>'

    def texts(more: str) -> Texts | None:
        leaf = f'<xs:element name="v"><xs:simpleType>{derived.format(more)}</xs:simpleType></xs:element>'
        return document_type(leaf, more=f"{base}</xs:simpleType>").texts(("r", "v"))

    # Expect nothing to be certain where there are very many
    assert texts("") is not None
    assert texts(values) is None


def test_of_a_long_enumeration_nothing_is_certain() -> None:
    values = [f"enumeration=value-{number}" for number in range(1_000)]
    assert document_type(restricted("xs:token", *values)).texts(("r", "v")) is None


def test_the_leaves_of_real_schemas() -> None:
    # Given the imagery schema of the figures
    imagery = open_type(read_bundle(Path(__file__).parent.parent / "fixtures/intel_imagery/Intel_Imagery.xsd"))
    coordinates = ("metadata", "ImageDescriptor", "LocationCoord")
    # Expect numbers and enumerations of the variant part to be certain, of the invariant part as well
    assert imagery.texts((*coordinates, "lat")) is not None
    letters = imagery.texts((*coordinates, "latord"))
    assert letters is not None
    assert letters.expression == "(?:N|S)"
    assert imagery.is_invariant(("metadata", "RequiredMetadata", "publisher"))
    assert not imagery.is_invariant((*coordinates, "lat"))


@pytest.mark.parametrize(
    ("inside", "is_certain"),
    [
        pytest.param('<xs:attribute name="x" type="xs:int"/>', True, id="declared"),
        pytest.param('<xs:attribute name="x"/>', True, id="of any type"),
        pytest.param('<xs:attributeGroup ref="G"/>', True, id="in a group"),
        pytest.param('<xs:attribute name="y"/>', False, id="another one"),
        pytest.param('<xs:attribute name="x" type="xs:int" fixed="1"/>', False, id="fixed"),
        pytest.param('<xs:attribute name="x" type="xs:int" default="1"/>', False, id="with a default"),
        pytest.param('<xs:attribute name="x" type="xs:int" form="qualified"/>', False, id="in a namespace"),
        pytest.param('<xs:attribute name="x" type="xs:anyURI"/>', False, id="of a type that is not understood"),
        pytest.param('<xs:anyAttribute processContents="lax"/>', False, id="any"),
        pytest.param('<xs:attribute name="y" type="xs:ID"/><xs:attribute name="x"/>', False, id="beside an ID"),
        pytest.param(
            '<xs:simpleContent><xs:extension base="B"><xs:attribute name="y"/></xs:extension></xs:simpleContent>',
            True,
            id="of the base",
        ),
        pytest.param(
            '<xs:simpleContent><xs:restriction base="B"><xs:attribute name="x" use="prohibited"/></xs:restriction>'
            "</xs:simpleContent>",
            False,
            id="restricted",
        ),
    ],
)
def test_attributes_hold_what_their_declaration_says(inside: str, is_certain: bool) -> None:
    more = (
        '<xs:attributeGroup name="G"><xs:attribute name="x" type="xs:int"/></xs:attributeGroup>'
        '<xs:complexType name="B"><xs:simpleContent><xs:extension base="xs:int"><xs:attribute name="x" type="xs:int"/>'
        "</xs:extension></xs:simpleContent></xs:complexType>"
    )
    kind = document_type(f'<xs:element name="v"><xs:complexType>{inside}</xs:complexType></xs:element>', more=more)
    assert (kind.attribute(("r", "v"), "x") is not None) == is_certain


@pytest.mark.parametrize(
    ("content", "tags", "expected"),
    [
        pytest.param(
            '<xs:sequence>{a}<xs:element name="b" minOccurs="0"/></xs:sequence>', "ab", "sequence", id="sequence"
        ),
        pytest.param('<xs:choice maxOccurs="unbounded">{a}</xs:choice>', "aaa", "choice", id="choice"),
        pytest.param("<xs:all>{a}</xs:all>", "a", "exact", id="all"),
        pytest.param("<xs:sequence>{a}{a}</xs:sequence>", "aa", "exact", id="a name in two places"),
        pytest.param(
            '<xs:sequence maxOccurs="unbounded"><xs:element name="a" maxOccurs="3"/></xs:sequence>',
            "a",
            "exact",
            id="counts within counts",
        ),
        pytest.param(
            '<xs:sequence>{a}<xs:any namespace="urn:o" minOccurs="0" maxOccurs="unbounded" processContents="lax"/>'
            "</xs:sequence>",
            ("a", "{urn:o}c"),
            "sequence",
            id="a wildcard",
        ),
        pytest.param(
            '<xs:sequence>{a}<xs:any maxOccurs="2"/></xs:sequence>', "ac", "exact", id="a wildcard that counts"
        ),
        pytest.param('<xs:sequence>{a}<xs:element name="c" type="xs:ID"/></xs:sequence>', "ac", None, id="an ID"),
    ],
)
def test_the_content_of_elements_is_what_their_type_says(content: str, tags: Any, expected: str | None) -> None:
    inside = content.format(a='<xs:element name="a"/>')
    kind = document_type(f'<xs:element name="v"><xs:complexType>{inside}</xs:complexType></xs:element>')
    found = kind.content(("r", "v"), tuple(tags))
    assert (None if found is None else found.kind) == expected
