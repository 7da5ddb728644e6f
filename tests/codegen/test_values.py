"""Canonical text: equal values have equal text (XML Schema part 2), whatever they were written as."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.codegen.model import ValueType
from jbi_pubsub.codegen.values import MAX_LIST_ITEMS, MAX_VALUE_CHARS, NotAValueError, canonical_text, is_value
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.lookup.entry import canonical

DAYS = st.dates(min_value=date(2, 1, 2), max_value=date(9998, 12, 30))
MOMENTS = st.builds(datetime.combine, DAYS, st.times(), st.just(UTC))
BUILTINS = ("boolean", "decimal", "int", "double", "float", "dateTime", "date", "time")
SPACES = {"string": "preserve", "anySimpleType": "preserve", "normalizedString": "replace"}


NAMES = ("Name", "NCName", "NMTOKEN", "ID", "IDREF", "ENTITY", "QName")


def kind(builtin: str, **more: object) -> ValueType:
    return ValueType(f"xs:{builtin}", builtin, SPACES.get(builtin, "collapse"), **more)  # type: ignore[arg-type]  # test


@pytest.mark.parametrize(
    ("builtin", "text", "expected"),
    [
        ("string", "  a  b ", "  a  b "),
        ("normalizedString", " a\t b\n", " a  b "),
        ("token", " a\t b\n", "a b"),
        ("token", "a\u00a0 b", "a\u00a0 b"),  # a no-break space is no XML white space
        ("language", "EN", "EN"),
        ("anyURI", " http://a/b ", "http://a/b"),
        ("NCName", "x.y-z", "x.y-z"),
        *((builtin, text, text) for builtin in NAMES for text in ("हिन्दी", "ที่", "Me\u0301xico", "日本", "_\u203f")),
        ("boolean", "1", "true"),
        ("boolean", " false ", "false"),
        ("decimal", "1.0", "1"),
        ("decimal", "+001.500", "1.5"),
        ("decimal", "-.50", "-0.5"),
        ("decimal", "-0.0", "0"),
        ("decimal", "12345678901234567890123456789012345.10", "12345678901234567890123456789012345.1"),
        ("integer", "+0012", "12"),
        ("integer", "-0", "0"),
        ("double", "1.5E3", "1500.0"),
        ("double", "1500", "1500.0"),
        ("double", "-0", "0.0"),
        ("double", "INF", "INF"),
        ("double", "-INF", "-INF"),
        ("double", "NaN", "NaN"),
        ("float", "16777217", "16777216.0"),  # single precision
        ("float", "1e39", "INF"),
        ("dateTime", "2003-02-01T12:00:00+02:00", "2003-02-01T10:00:00Z"),
        ("dateTime", "2003-02-01T10:00:00.500Z", "2003-02-01T10:00:00.5Z"),
        ("dateTime", "2003-02-01T10:00:00.0", "2003-02-01T10:00:00"),
        ("dateTime", "2003-12-31T24:00:00Z", "2004-01-01T00:00:00Z"),
        ("dateTime", "12003-01-01T00:30:00+01:00", "12002-12-31T23:30:00Z"),
        ("dateTime", "-0001-12-31T23:30:00-01:00", "0001-01-01T00:30:00Z"),  # there is no year 0
        ("date", "2003-02-01", "2003-02-01"),
        ("date", "2003-02-01+13:00", "2003-01-31-11:00"),
        ("date", "2003-02-01-12:00", "2003-02-02+12:00"),
        ("date", "2003-02-01+00:00", "2003-02-01Z"),
        ("time", "01:30:00+02:00", "23:30:00Z"),
        ("time", "24:00:00", "00:00:00"),
        ("gYear", "2003+00:00", "2003Z"),
        ("gMonthDay", "--02-29", "--02-29"),
        ("duration", "P1Y14M", "P2Y2M"),
        ("duration", "PT36H", "P1DT12H"),
        ("duration", "-PT0.50S", "-PT0.5S"),
        ("duration", "P0Y", "PT0S"),
        ("duration", "PT90M", "PT1H30M"),
        ("hexBinary", "0fb8", "0FB8"),
        ("base64Binary", "AQ ID", "AQID"),
    ],
)
def test_the_canonical_text_of(builtin, text, expected):
    assert canonical_text(text, kind(builtin)) == expected
    assert canonical_text(expected, kind(builtin)) == expected


@pytest.mark.parametrize(
    ("builtin", "text"),
    [
        ("boolean", "yes"),
        ("boolean", "TRUE"),
        ("decimal", "1e3"),
        ("decimal", ""),
        ("decimal", "\u0661"),  # Arabic digits are digits to Python, not to XML Schema
        ("integer", "1.0"),
        ("double", "inf"),
        ("double", "0x1p3"),
        ("double", "1_000"),
        ("dateTime", "2003-02-30T00:00:00"),
        ("dateTime", "0000-01-01T00:00:00"),
        ("dateTime", "2003-02-01T24:00:01"),
        ("dateTime", "2003-02-01 10:00:00"),
        ("dateTime", "2003-02-01T10:00:00+15:00"),
        ("date", "03-02-01"),
        ("time", "25:00:00"),
        ("gMonth", "--13"),
        ("duration", "P"),
        ("duration", "P1DT"),
        ("duration", "1D"),
        ("hexBinary", "abc"),
        ("base64Binary", "A"),
        ("language", "a b"),
        ("NCName", "a:b"),
        *((builtin, text) for builtin in NAMES for text in ("a b", "²", "a\u00d7", "a\u037e")),
        *((builtin, text) for builtin in NAMES if builtin != "NMTOKEN" for text in ("\u0301a", "1a", "·a")),
        ("QName", "p:x"),  # the prefix is not declared
        ("string", "x" * (MAX_VALUE_CHARS + 1)),
    ],
)
def test_no_value(builtin, text):
    with pytest.raises(NotAValueError):
        canonical_text(text, kind(builtin))
    assert not is_value(text, kind(builtin))


def test_a_qname_is_its_expanded_name():
    assert canonical_text("p:x", kind("QName"), {"p": "urn:p"}) == "{urn:p}x"
    assert canonical_text("q:x", kind("QName"), {"q": "urn:p"}) == "{urn:p}x"
    assert canonical_text("x", kind("QName"), {None: "urn:d"}) == "{urn:d}x"
    assert canonical_text("x", kind("QName")) == "x"


def test_a_list_is_canonical_item_by_item_and_bounded():
    numbers = kind("list", items=kind("int"), facets=(("maxLength", "3"),))
    assert canonical_text(" +1  02\n3 ", numbers) == "1 2 3"
    with pytest.raises(NotAValueError, match="maxLength 3"):
        canonical_text("1 2 3 4", numbers)
    with pytest.raises(NotAValueError, match=str(MAX_LIST_ITEMS)):
        canonical_text("1 " * (MAX_LIST_ITEMS + 1), kind("list", items=kind("int")))


def test_a_union_takes_the_first_member_that_accepts_the_text():
    union = ValueType("u", "union", "preserve", members=(kind("int"), kind("boolean"), kind("token")))
    assert [canonical_text(text, union) for text in ("01", "true", " a  b ")] == ["1", "true", "a b"]


def simple(name, content):
    return f'<xs:simpleType name="{name}">{content}</xs:simpleType>'


WORD = simple("Word", '<xs:restriction base="xs:boolean"><xs:pattern value="true|false"/></xs:restriction>')
LATER = simple("Later", '<xs:restriction base="xs:date"><xs:minInclusive value="2020-01-01"/></xs:restriction>')
UNIONS = [
    pytest.param(WORD, "Word xs:int", "1", "true", id="pattern"),
    pytest.param(LATER, "Later xs:token", "2003-02-01+13:00", "2003-01-31-11:00", id="bound of dates"),
    pytest.param(WORD + simple("Words", '<xs:list itemType="Word"/>'), "Words xs:token", "1 1", "true true", id="list"),
    pytest.param(WORD + simple("In", '<xs:union memberTypes="Word"/>'), "In xs:int", "1", "true", id="union"),
    pytest.param(
        WORD + simple("Wide", '<xs:union memberTypes="Word xs:int"/>'), "Wide xs:token", "1", "true", id="union of it"
    ),
    pytest.param(
        simple("Wide", '<xs:union memberTypes="xs:boolean xs:int"/>')
        + simple("Few", '<xs:restriction base="Wide"><xs:pattern value="true|false"/></xs:restriction>'),
        "Few xs:int",
        "1",
        "true",
        id="restricted union",
    ),
]


@pytest.mark.parametrize(("types", "members", "one", "other"), UNIONS)
def test_texts_of_a_union_are_kept_where_only_validation_knows_whose_they_are(make, types, members, one, other):
    # Given a union one of whose members refuses, by a pattern or a bound of dates, what the next one takes
    opened = make.type(
        make.root('<xs:element name="e" type="U"/>', more=types + simple("U", f'<xs:union memberTypes="{members}"/>'))
    )
    documents = [make.document(f"<r><e> {text} </e></r>") for text in (one, other)]
    # When two documents have unequal values, expect two entries
    for document in documents:
        opened.validate(document)
    assert [make.shown(opened.entries(document)) for document in documents] == [
        [("REntry", {"e": text})] for text in (one, other)
    ]


def test_the_allowed_values_of_such_a_union_are_left_to_validation(make):
    few = '<xs:restriction base="U"><xs:enumeration value="1"/><xs:enumeration value="true"/></xs:restriction>'
    types = WORD + simple("U", '<xs:union memberTypes="Word xs:int"/>') + simple("Few", few)
    opened = make.type(make.root('<xs:element name="e" type="Few"/>', more=types))
    document = make.document("<r><e>+1</e></r>")
    opened.validate(document)
    assert make.shown(opened.entries(document)) == [("REntry", {"e": "+1"})]


@pytest.mark.parametrize(
    ("facet", "bound", "good", "bad"),
    [
        ("minInclusive", "-90", "-90.0", "-90.01"),
        ("maxInclusive", "90", "90", "90.01"),
        ("minExclusive", "0", "0.1", "0.0"),
        ("maxExclusive", "1", "0.99", "1.0"),
        ("totalDigits", "3", "0012.30", "12.34"),
        ("totalDigits", "3", "0.123", "0.1234"),
        ("fractionDigits", "1", "1.50", "1.55"),
    ],
)
def test_numbers_keep_to_the_bounds_of_their_type(facet, bound, good, bad):
    bounded = kind("decimal", facets=((facet, bound),))
    assert is_value(good, bounded)
    assert not is_value(bad, bounded)


@pytest.mark.parametrize("bound", ["0.3", "0.7", "1.1", "89.9", "1e39", "-INF"])
def test_a_value_of_single_precision_is_held_against_a_bound_of_single_precision(bound):
    for facet in ("minInclusive", "maxInclusive"):
        assert is_value(bound, kind("float", facets=((facet, bound),)))
    for facet in ("minExclusive", "maxExclusive"):
        assert not is_value(bound, kind("float", facets=((facet, bound),)))


@pytest.mark.parametrize(
    ("items", "values", "document"),
    [
        ('<xs:union memberTypes="xs:int xs:token"/>', ("1", "2 3"), "+2  03"),
        ('<xs:union memberTypes="Word xs:int"/>', ("1", "2 3"), "+2 3"),
        ('<xs:restriction base="xs:int"/>', ("1", " 2 3 "), "02 3"),
        ('<xs:restriction base="xs:token"/>', ("a", "b c"), "b  c"),
        ('<xs:restriction base="xs:anyURI"/>', ("a", "b c"), "b c"),
        ('<xs:restriction base="xs:float"/>', ("1", "2 -INF"), "2.0 -INF"),
        ('<xs:restriction base="xs:NMTOKEN"/>', ("a", "b c"), "b c"),
    ],
)
def test_an_enumeration_of_lists_takes_each_of_their_spellings(make, items, values, document):
    # Given a type of lists of which some are allowed
    few = "".join(f'<xs:enumeration value="{value}"/>' for value in values)
    types = WORD + simple("I", items) + simple("L", '<xs:list itemType="I"/>')
    opened = make.type(
        make.root(
            '<xs:element name="e" type="F"/>',
            more=types + simple("F", f'<xs:restriction base="L">{few}</xs:restriction>'),
        )
    )
    # Expect what validation takes to be taken, and of lists that compare by value no other one
    for text in (*values, document):
        opened.validate(made := make.document(f"<r><e>{text}</e></r>"))
        assert opened.entries(made)
    if "Word" not in items:
        with pytest.raises(MetadataError, match="one of"):
            opened.entries(make.document("<r><e>4</e></r>"))


def test_an_enumeration_of_names_is_left_to_validation(make):
    # Given a name without a prefix in the schema, where a namespace is the default
    few = simple("Q", '<xs:restriction base="xs:QName"><xs:enumeration xmlns="urn:d" value="a"/></xs:restriction>')
    opened = make.type(make.root('<xs:element name="e" type="Q"/>', more=few))
    document = make.document('<r xmlns:d="urn:d"><e>d:a</e></r>')
    # Expect the name to be taken with a prefix
    opened.validate(document)
    assert make.shown(opened.entries(document)) == [("REntry", {"e": "{urn:d}a"})]


def test_lengths_count_what_the_type_counts():
    assert is_value("abc", kind("string", facets=(("length", "3"),)))
    assert is_value("0FB8", kind("hexBinary", facets=(("length", "2"),)))
    assert is_value("AQID", kind("base64Binary", facets=(("maxLength", "3"),)))
    assert not is_value("ab", kind("string", facets=(("minLength", "3"),)))


def test_an_enumeration_compares_values_not_spellings():
    halves = kind("decimal", enumeration=("0.5", "1"))
    assert canonical_text("+01.0", halves) == "1"
    with pytest.raises(NotAValueError, match=r"one of 0\.5, 1"):
        canonical_text("2", halves)


@settings(max_examples=examples(300), derandomize=True)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=6), st.integers(0, 3), st.integers(0, 3))
def test_decimals_have_one_text_each(value, zeros_before, zeros_behind):
    plain = f"{value.copy_abs():f}"
    written = ("-" if value.is_signed() else "") + "0" * zeros_before + plain + "0" * zeros_behind
    assert canonical_text(written, kind("decimal")) == canonical(value)
    assert Decimal(canonical_text(written, kind("decimal"))) == value


@settings(max_examples=examples(300), derandomize=True)
@given(
    MOMENTS,
    st.integers(-14 * 60, 14 * 60),
    st.integers(-14 * 60, 14 * 60),
)
def test_one_instant_has_one_text_in_every_time_zone(moment, one, other):
    instant = moment.replace(microsecond=0)
    texts = {
        canonical_text(instant.astimezone(timezone(timedelta(minutes=offset))).isoformat(), kind("dateTime"))
        for offset in (one, other, 0)
    }
    assert texts == {instant.isoformat().replace("+00:00", "Z")}


@settings(max_examples=examples(300), derandomize=True)
@given(
    DAYS,
    st.integers(-14 * 60, 14 * 60),
    DAYS,
    st.integers(-14 * 60, 14 * 60),
)
def test_dates_with_a_zone_are_equal_exactly_if_they_begin_at_one_instant(day, offset, other_day, other_offset):
    def begin(at, minutes):
        return datetime(at.year, at.month, at.day, tzinfo=timezone(timedelta(minutes=minutes)))

    def text(at, minutes):
        return canonical_text(begin(at, minutes).isoformat().replace("T00:00:00", ""), kind("date"))

    near = day + timedelta(days=(other_day.toordinal() % 3) - 1)
    same = begin(day, offset) == begin(near, other_offset)
    assert (text(day, offset) == text(near, other_offset)) is same
    assert text(day, offset) == text(day, offset)
    if offset > 12 * 60:
        assert text(day, offset) == text(day - timedelta(days=1), offset - 24 * 60)


@settings(max_examples=examples(300), derandomize=True)
@given(st.text(max_size=20), st.sampled_from(BUILTINS))
def test_any_text_is_a_value_or_the_one_error(text, builtin):
    if is_value(text, kind(builtin)):
        once = canonical_text(text, kind(builtin))
        assert canonical_text(once, kind(builtin)) == once


EVERY = (
    *("string", "normalizedString", "token", "language", "Name", "NCName", "NMTOKEN", "ID", "anyURI", "boolean"),
    *("decimal", "integer", "int", "double", "float", "dateTime", "date", "time", "gYear", "gYearMonth", "gMonth"),
    *("gMonthDay", "gDay", "duration", "hexBinary", "base64Binary", "QName"),
)


@pytest.mark.long
@pytest.mark.parametrize("builtin", EVERY)
@settings(max_examples=examples(60), derandomize=True, deadline=None)
@given(text=st.text(max_size=20) | st.from_regex(r"[-+0-9TZ:.PYMDHS=eEA-Fa-f\u00e9\u0660]{0,30}", fullmatch=True))
def test_whatever_text_it_is_a_value_or_none_and_canonical_text_is_its_own(builtin: str, text: str) -> None:
    try:
        value = canonical_text(text, kind(builtin), {None: "", "p": "urn:p"})
    except NotAValueError:
        return
    if builtin != "QName":
        assert canonical_text(value, kind(builtin)) == value


@pytest.mark.parametrize(
    ("builtin", "text"),
    [
        ("base64Binary", "QUJD\u00e9"),
        ("base64Binary", "\u0660\u0660=="),
        ("Name", "1a"),
        ("Name", "-a"),
        ("NCName", "a:b"),
    ],
)
def test_what_looks_like_a_value_and_is_none_is_refused(builtin: str, text: str) -> None:
    assert not is_value(text, kind(builtin))


@pytest.mark.parametrize("text", [":a", "a:b", "_", ":"])
def test_names_may_begin_with_a_colon(text: str) -> None:
    assert is_value(text, kind("Name"))
