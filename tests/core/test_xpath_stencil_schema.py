"""Stencils of random types: what is told from the bytes is what the validator says, at the edges of every type too."""

from __future__ import annotations

import random
import time

import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import open_type
from jbi_pubsub.core.errors import JbiError, SchemaError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath.index.document import EMPTY, TEXT, Paths
from jbi_pubsub.core.xpath.language.budget import OperandShare
from jbi_pubsub.protocol.conformity import Conformity

YEAR = "123456789012345678"
"""Of 18 digits: libxml2 has no room for it, and fails."""
DATES = (
    *("2000-01-01", "2000-02-29", "2001-02-29", "-0001-12-31", "0000-01-01", "12000-01-01", f"{YEAR}-01-01"),
    *("99999999999999999999-01-01", "2000-01-01Z", "2000-01-01+14:00", "2000-01-01+14:01", " 2000-01-01 "),
)
NUMBERS = (
    *("0", "1", "-1", "+1", "-0", "00", "1.5", "1.", ".5", "", " 1 ", "9" * 18, "9" * 19, "9" * 25, f"1{'0' * 400}"),
    *("2147483648", "-9223372036854775809", "18446744073709551616", "1e400", "INF", "NaN", "1e3", "0x1"),
)
TIMES = ("00:00:00", "24:00:00", "24:00:01", "23:59:60", "12:00:00.123456789012345678901", "12:00:00Z", "1:00:00")
VALUES = {
    "xs:date": DATES,
    "xs:dateTime": tuple(f"{date}T12:00:00" for date in DATES) + tuple(f"2000-01-01T{time}" for time in TIMES),
    "xs:gYear": ("2000", YEAR, "-2000", "20000", "0000"),
    "xs:gYearMonth": ("2000-01", f"{YEAR}-01", "2000-13"),
    "xs:time": TIMES,
    "xs:duration": ("P1Y", f"P{YEAR}Y", "PT1S", "P1M", "-P1D", f"PT{'9' * 30}S"),
    "xs:decimal": NUMBERS,
    "xs:integer": NUMBERS,
    "xs:long": NUMBERS,
    "xs:unsignedLong": NUMBERS,
    "xs:byte": NUMBERS,
    "xs:double": NUMBERS,
    "xs:float": NUMBERS,
    "xs:boolean": ("true", "false", "1", "0", "TRUE", " true"),
    "xs:token": ("a", "a b", " a", "a  b", "", "é"),
    "xs:string": ("a", "", " ", "a\tb", "é", "]]"),
}


def leaf_type(chance: random.Random, base: str) -> str:
    """A simple type: the base itself, an enumeration of it, or a part of it between bounds, with digits or lengths."""
    values = VALUES[base]
    kind = chance.random()
    if kind < 0.2:
        return f'type="{base}"/>'
    if kind < 0.6 or base in ("xs:boolean", "xs:token", "xs:string"):
        some = chance.sample(values, chance.randrange(1, min(4, len(values))))
        overflowing = [value for value in values if YEAR in value and chance.random() < 0.5]
        facets = [("enumeration", value) for value in dict.fromkeys((*some, *overflowing))]
    else:
        names = ("minInclusive", "maxExclusive", "maxInclusive", "minExclusive")
        bounds = chance.sample(names, chance.choice((1, 1, 2)))
        facets = [(bound, chance.choice(values)) for bound in bounds]
        if base in ("xs:decimal", "xs:integer"):
            facets.append(("totalDigits", chance.choice(("1", "18", "24"))))
    inside = "".join(f'<xs:{name} value="{value}"/>' for name, value in facets)
    return f'><xs:simpleType><xs:restriction base="{base}">{inside}</xs:restriction></xs:simpleType></xs:element>'


def schema(chance: random.Random, base: str) -> bytes:
    names = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'
    leaf = f'<xs:element name="v" jbi:variance="variant" {leaf_type(chance, base)}'
    content = f'<xs:sequence><xs:element name="who" type="xs:string"/>{leaf}</xs:sequence>'
    root = f'<xs:element name="r"><xs:complexType>{content}</xs:complexType></xs:element>'
    return f"<xs:schema {names}>{root}</xs:schema>".encode()


def outcome(conformity: Conformity, metadata: bytes) -> tuple[str, str]:
    try:
        conformity.check(metadata)
    except JbiError as exc:
        return type(exc).__name__, str(exc)
    return "", ""


@pytest.mark.parametrize("base", VALUES)
def test_what_a_stencil_takes_the_validator_takes(base: str) -> None:
    chance = random.Random(base)
    traced = 0
    for _ in range(10):
        # Given a type, and a stencil of each document of it that is good
        try:
            kind = open_type(read_bundle(schema(chance, base)))
        except SchemaError:
            continue  # its facets say nothing that can be
        documents = [f"<r><who>a</who><v>{value}</v></r>".encode() for value in VALUES[base]]
        registered = kind.entries(parse_metadata(documents[0]))
        expected = {d: outcome(Conformity(kind, registered, validate=True), d) for d in documents}
        for source in (d for d in documents if expected[d] == ("", "")):
            conformity = Conformity(kind, registered, validate=True)
            conformity._known.learn([source])
            conformity.check(source)
            # Expect of all others the answer that they have without one
            for document in documents:
                assert outcome(conformity, document) == expected[document], document
            traced += sum(stencil.fitted for stencil in conformity._known.stencils) - 1
    assert traced or base in ("xs:gYear", "xs:gYearMonth", "xs:duration")


OPEN = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"><xs:element name="r">
<xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>
<xs:element name="v" type="xs:int" jbi:variance="variant" minOccurs="0"/>
<xs:any namespace="##other" processContents="lax" minOccurs="0" maxOccurs="unbounded"/></xs:sequence></xs:complexType>
</xs:element><xs:element name="g" type="xs:int"/><xs:attribute name="i" type="xs:int"/></xs:schema>"""


@pytest.mark.parametrize(
    ("inside", "is_known"),
    [
        pytest.param("", True, id="nothing"),
        pytest.param("<o:z9/>", True, id="another name"),
        pytest.param(
            "<o:a x='1' y=\"&lt;\"><b><!-- c --><?p i?><c>\u00e9</c>1</b></o:a>\n<o:b/>", True, id="any content"
        ),
        pytest.param("<o:a><g>x</g></o:a>", False, id="an element with a declaration, and a wrong value"),
        pytest.param("<o:a><g>1</g></o:a>", False, id="an element with a declaration"),
        pytest.param("<o:a i='x'/>", False, id="an attribute with a declaration, and a wrong value"),
        pytest.param("<o:a><r><v>x</v></r></o:a>", False, id="a document element in it"),
        pytest.param("<a/>", False, id="no namespace"),
        pytest.param("<q:a/>", False, id="a prefix that is not declared"),
        pytest.param("<o:a x='1' x='2'/>", False, id="an attribute twice"),
        pytest.param("<o:a></o:b>", False, id="tags that do not match"),
        pytest.param("<o:a><b></o:a></b>", False, id="tags that cross"),
        pytest.param("<o:a>", False, id="no end tag"),
        pytest.param("<o:a/>text", False, id="text beside it"),
        pytest.param("<o:a/><![CDATA[ ]]>", False, id="a CDATA section beside it"),
        pytest.param("<o:a>]]></o:a>", False, id="what may stand in no text"),
        pytest.param("<o:a x='<![CDATA[1]]>'/>", False, id="a CDATA section in an attribute"),
        pytest.param("<o:a x='<?p i?>'/>", False, id="an instruction in an attribute"),
        pytest.param("<o:a xmlns='urn:o'/>", False, id="another namespace"),
        pytest.param("<o:a xsi:type='xs:int'>x</o:a>", False, id="xsi:type"),
        pytest.param("<o:a xml:id='1'/>", False, id="xml:id"),
        pytest.param("<o:a/><v>1</v>", False, id="a declared element behind"),
    ],
)
def test_what_a_wildcard_takes_is_skipped_if_it_is_well_formed_and_unknown(inside: str, is_known: bool) -> None:
    # Given a type with a lax wildcard, and known documents with other elements there each time
    kind = open_type(read_bundle(OPEN, marks=b'{"root": "r"}'))
    spaces = 'xmlns:o="urn:o" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
    document = f"<r {spaces}><who>a</who>%s</r>"
    known = [(document % f"<v>1</v><o:z{number}>1</o:z{number}>").encode() for number in range(8)]
    known.append((document % "<o:z1/>").encode())
    registered = kind.entries(parse_metadata(known[0]))
    conformity, plain = (Conformity(kind, registered, validate=True) for _ in "12")
    expected = outcome(plain, (document % inside).encode())
    conformity._known.learn(known)
    assert all(conformity._known.trace(each) is not None for each in known)
    # Expect others to be known if nothing in them may be wrong, and the validator's answer for all
    other = (document % inside).encode()
    assert (conformity._known.trace(other) is not None) == is_known
    assert outcome(conformity, other) == expected
    assert not is_known or expected == ("", "")
    # and what is asked of it to be read by the parser
    traced = conformity._known.trace(known[0])
    assert traced is not None
    for place, is_read in ((("r", "v"), True), (("r", "{urn:o}z0"), False), (("//v",), False)):
        paths = Paths()
        if place == ("//v",):  # a relative path is an operand, which takes room
            assert paths.room.take({place: OperandShare(place, lambda _: 0.0)})
        paths.slot(place, TEXT)
        layout = paths.layout(EMPTY)
        for _ in "12":  # the second time it is known that it is wanted
            traced = conformity._known.trace(known[0])
            assert traced is not None
            assert traced.read(layout) == layout.read(parse_metadata(known[0]))
            for stencil in conformity._known.stencils:
                conformity._known._read_more(stencil.missing)
        assert (traced._root is None) == is_read


REPEATED = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
<xs:element name="r">
<xs:complexType><xs:sequence><xs:element name="who" type="xs:string"/>
<xs:element name="t" jbi:variance="variant" maxOccurs="unbounded"><xs:complexType><xs:sequence>
 <xs:element name="v" type="xs:int"/>
 <xs:any namespace="##other" processContents="lax" minOccurs="0" maxOccurs="unbounded"/></xs:sequence></xs:complexType>
</xs:element><xs:element name="end" type="xs:int" jbi:variance="variant"/></xs:sequence></xs:complexType></xs:element>
</xs:schema>"""


@pytest.mark.parametrize(
    ("second", "is_known"),
    [
        pytest.param("<t><v>2</v><o:a n='1'><b>x</b></o:a></t>", True, id="as it has to be"),
        pytest.param("<t><v>2</v><o:a n='1'><b>x</b></o:a></t><t><v>3</v></t><t><v>4</v><o:y/></t>", True, id="again"),
        pytest.param("<t><v>2</v><o:a></o:b></t>", False, id="tags that do not match"),
        pytest.param("<t><v>2</v><o:a n='1' n='2'/></t>", False, id="an attribute twice"),
        pytest.param("<t><v>x</v><o:a/></t>", False, id="a wrong value beside it"),
    ],
)
def test_what_a_wildcard_takes_is_told_in_each_part_that_comes_again(second: str, is_known: bool) -> None:
    # Given a type whose parts come again and again, each with elements that a lax wildcard takes
    kind = open_type(read_bundle(REPEATED, marks=b'{"root": "r"}'))
    document = '<r xmlns:o="urn:o"><who>a</who><t><v>%d</v><o:z%d n="1">1</o:z%d></t>%s<end>%d</end></r>'
    known = [(document % (n, n, n, "<t><v>7</v></t>" * (n % 3), n)).encode() for n in range(8)]
    conformity, plain = (Conformity(kind, kind.entries(parse_metadata(known[0])), validate=True) for _ in "12")
    conformity._known.learn(known)
    # Expect the validator's answer for another one
    other = (document % (5, 9, 9, second, 6)).encode()
    assert (conformity._known.trace(other) is not None) == is_known
    assert outcome(conformity, other) == outcome(plain, other)
    # and of what is read, inside such parts and behind them, what the parser reads
    paths = Paths()
    for place in (("r", "t", "v"), ("r", "end"), ("r", "who")):
        paths.slot(place, TEXT)
    layout = paths.layout(EMPTY)
    for _ in range(2 * is_known):
        traced = conformity._known.trace(other)
        assert traced is not None
        assert traced.read(layout) == layout.read(parse_metadata(other))
        for stencil in conformity._known.stencils:
            conformity._known._read_more(stencil.missing)
    assert not is_known or traced._root is None


@pytest.mark.parametrize("piece", ["<![CDATA[x", "<?p ", "<?p ?", "&#", "<!--", "<o:a>", "<o:a/>", "]", "ATTRIBUTES"])
def test_hostile_documents_take_time_in_proportion_to_their_bytes(piece: str) -> None:
    # Given a type with a wildcard, whose documents are known
    kind = open_type(read_bundle(OPEN, marks=b'{"root": "r"}'))
    known = [f'<r xmlns:o="urn:o"><who>a</who><o:z{number}>1</o:z{number}></r>'.encode() for number in range(8)]
    conformity = Conformity(kind, kind.entries(parse_metadata(known[0])), validate=True)
    conformity._known.learn(known)
    # When one comes that begins the same thing again and again
    many = "<o:a" + "".join(f' x{number}=""' for number in range(60_000)) if piece == "ATTRIBUTES" else piece * 60_000
    hostile = known[0].replace(b">1<", f"><o:a>{many}[?&<".encode())
    start = time.process_time()
    assert conformity._known.trace(hostile) is None
    # Expect a fraction of a second: in proportion to the square of its bytes it would be minutes
    assert time.process_time() - start < 2
