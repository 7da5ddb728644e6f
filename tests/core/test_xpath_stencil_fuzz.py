"""Stencils of random schemas and documents: verdict and readings are those of parser, validator and parsed walk."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from lxml import etree

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import InformationType, open_type
from jbi_pubsub.core.documents import Traced
from jbi_pubsub.core.errors import JbiError, SchemaError
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath.index.document import ABSENT_NUMBER, EMPTY, NUMBER, PRESENT, TEXT, Layout, Paths
from jbi_pubsub.protocol.conformity import Conformity

SPACES = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'
INSTANCE = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xmlns:xs="http://www.w3.org/2001/XMLSchema"'
LEAVES = {
    'type="xs:string"': ("a", "", "a b", " a ", "\u00e9t\u00e9 &amp; \u6a4b", "<![CDATA[<b> & c]]>", "&#8217;s"),
    'type="xs:token"': ("a", "a b", "b", "\u03b3 &lt; 1"),
    'type="xs:decimal"': ("1", "-2.50", "0", "007"),
    'type="xs:int" nillable="true"': ("1", "2"),
    'type="xs:int" default="7"': ("1", "", "7"),
    'type="xs:token" fixed="a"': ("a", ""),
    'type="xs:date"': ("2000-01-01", "2024-02-29"),
    'type="xs:boolean"': ("true", "0"),
    'type="xs:anyURI"': ("urn:a", "a b"),
    'type="xs:NMTOKENS"': ("a", "a b"),
    'type="xs:ID"': ("a", "b", "c"),
    'type="xs:anyType"': ("a", "1", "<a>1</a>", "<z/>"),
    'type="lat"': ("1", "-90", "90", "12.5"),
    'type="code"': ("N", "NE", "S"),
    'type="pattern"': ("a1", "b22"),
    'type="short"': ("ab", "abc"),
    'type="valued"': ("1", "2.5"),
}
TYPES = """
<xs:simpleType name="lat"><xs:restriction base="xs:decimal"><xs:minInclusive value="-90"/><xs:maxInclusive value="90"/>
</xs:restriction></xs:simpleType>
<xs:simpleType name="code"><xs:restriction base="xs:token"><xs:enumeration value="N"/><xs:enumeration value="NE"/>
<xs:enumeration value="S"/></xs:restriction></xs:simpleType>
<xs:simpleType name="pattern"><xs:restriction base="xs:token"><xs:pattern value="[ab]\\d+"/></xs:restriction>
</xs:simpleType>
<xs:simpleType name="short"><xs:restriction base="xs:string"><xs:minLength value="2"/><xs:maxLength value="3"/>
</xs:restriction></xs:simpleType>
<xs:complexType name="valued"><xs:simpleContent><xs:extension base="xs:decimal"><xs:attribute name="x" type="xs:int"/>
</xs:extension></xs:simpleContent></xs:complexType>
<xs:complexType name="base"><xs:sequence><xs:element name="a" type="xs:int" minOccurs="0"/></xs:sequence>
</xs:complexType>
<xs:element name="g" type="xs:decimal"/><xs:element name="h" type="xs:decimal" substitutionGroup="g"/>
<xs:element name="deep" type="base"/>
<xs:group name="two"><xs:sequence><xs:element name="p" type="xs:int"/>
<xs:element name="q" type="xs:token" minOccurs="0"/></xs:sequence></xs:group>
"""
PIECES = (
    *("", "<", ">", "x", "\x00", "-", "&", "]]>", "<?p i?>", "<![CDATA[a]]>", "<!--", "-->", "&amp;", "&#233;"),
    *("\u00e9", "?>", "<![CDATA[", "<?p ", "]]", "&#60;", "&quot;", "<![CDATA[ ]]>", "\ufeff"),
)
BYTES = (b"\xf8", b"\xfb", b"\xfd", b"\xfe", b"\xff", b"\xc3", b"\x80", b"\xed\xa0\x80", b"\xef\xbf\xbf", b"\xc0\x80")
"""What may come into a document anywhere, by mistake or malice."""
ANY_ATTRIBUTE = '<xs:anyAttribute processContents="lax"/>'
ORDERED = """<xs:attribute name="x" type="xs:int"/><xs:attribute name="y" type="lat"/><xs:attribute name="s"/>
<xs:attribute name="t" type="code" use="required"/><xs:attribute name="u" default="1"/>"""
ORDERS = tuple(
    "".join(random.Random(seed).sample([" x='1'", ' y="-90"', ' s="a x=1 t="', ' t="N"', ' u="2"'], seed % 6))
    for seed in range(30)
)
ODD_ATTRIBUTES = (
    *(' n="1" n="2"', ' n=\'1\' m="" n="1"', ' xml:lang="en"', ' xsi:type="xs:int"', ' xml:id="q"', ' xmlns="urn:o"'),
    *(
        ' o:n="1"',
        ' n="<"',
        ' n="a>b"',
        ' n="<?p i?>"',
        ' n="<![CDATA[a]]>"',
        ' xmlns:q="urn:q"',
        " n=1",
        ' x="a"m="b"',
    ),
)
ATTRIBUTES = (
    ("", ()),
    ('<xs:attribute name="x" type="xs:int"/>', ("", ' x="1"', ' x="2"', " x='3' ")),
    ('<xs:attribute name="x" type="xs:int" use="required"/>', (' x="1"', ' x="2"')),
    (
        '<xs:attribute name="x" type="xs:int" default="5"/><xs:attribute name="y"/>',
        ("", ' y="a"', ' x="1" y="b"', ' y="b" x="1"'),
    ),
    (
        '<xs:attribute name="x" type="lat" use="required"/><xs:attribute name="y" type="code"/>',
        (' x="1"', ' x="2.5" y="N"', " y='NE' x='-3'", ' x="90" y="S"', ' x="89" y="N "', ' x="\t1"'),
    ),
    (
        '<xs:attribute name="x" fixed="a"/><xs:attribute name="y" type="xs:string"/>' + ANY_ATTRIBUTE,
        (' x="a"', ' y="a&amp;b"', ' y="a\nb"', " y='\"' x='a'", ' y="it\'s"', ' y="" z="q"', ' y="\u00e9"', ' y="91"'),
    ),
    (
        '<xs:attribute name="x" type="xs:token"/><xs:attribute name="y" type="short"/>',
        (' y="ab"', ' x=" a " y="abc"', ' x="b"'),
    ),
    (ORDERED, ORDERS),
    (
        '<xs:attribute name="t" type="code"/><xs:attribute name="s"/>' + ANY_ATTRIBUTE,
        (
            *("", ' s="a"\n t="N"', " t='S' s='b'", ' z="1" s="\u00e9"', ' xml:lang="en" t="N"', ' s="a>b"'),
            *(' xmlns:o="urn:o" xmlns:p="urn:o" o:z="1"', ' xmlns:p="urn:o" p:z="1" xmlns:o="urn:o"'),
            *(" s = 'a' t=\"N\"", ' t="N" s="c" z="2" ', ' s="&amp;" t="S"', ' s="" o:z="1" xmlns:o="urn:o"'),
        ),
    ),
    ('<xs:attribute name="x" type="xs:ID"/>', ("", ' x="i1"', ' x="i2"')),
)
TEXTS = (
    *("1", "x", "", " ", "a b", "\u00e9", "&amp;", "&#49;", "<![CDATA[1]]>", "1<!-- c -->2", "<!-- c -->", "<?p i?>1"),
    *("\u6a4b", "\U0001f600a", "\ufffe", "\x7f", "\x85", "\u2028", "a > b", "]]", "a?b", "[a]", "?>", "-->"),
    *(
        "&lt;b&gt;",
        "&quot;&apos;",
        "&#233;",
        "&#x1F600;",
        "&#38;amp;",
        "&#10;",
        "&#0;",
        "&nbsp;",
        "&amp;amp;",
        "& ",
        "&lt",
    ),
    *("<![CDATA[a & b]]>", "<![CDATA[]]>", "<![CDATA[ ]]>", "x<![CDATA[<\u00e9>]]>y", "<![CDATA[]]]]><![CDATA[>b]]>"),
    *(
        "<![CDATA[&amp;]]>",
        "<![CDATA[a\r\nb]]>",
        "<![CDATA[<!-- c -->]]>",
        "a<?p i?>",
        "]<![CDATA[]>]]>",
        "<![CDATA[<?p]]>?>",
    ),
    *(
        "1\r\n2",
        "]]>",
        "1e3",
        "<a>1</a>",
        "91",
        "-90.0",
        "N ",
        "2023-02-29",
        "9" * 20,
        "\t1\n",
        "it's",
        '"',
        "2",
        "-3.5",
        "7",
        "\u0663",
    ),
)
BETWEEN = (
    *(" ", "\n", "\r\n", "\t", "<!-- c -->", "<!-- <a>1</a> -->", "\n<!----><!-- - -->\n", "<!-- \u00e9 -->"),
    *("<?p i?>", "<?p?>", "<?xml-stylesheet href='a'?>\n", "<?p a ? > \u00e9 & <b?>", "<!-- &amp; & ? [ -->"),
)
ODD = (
    *("<?xml i?>", "<?XML i?>", "<?p", "<?p:q i?>", "<?1 i?>", "<?p i??>", "<?p\x0b?>", "<?p \ufffe?>", "<?p <!-- ?>"),
    *("<!-- <?p i?> -->", "<!-- <?p i -->?>", "<!-- <![CDATA[ -->]]>", "<![CDATA[x]]>", "<![CDATA[]]>", "&amp;"),
    *("<?p <![CDATA[ ?>]]>", "<![CDATA[<?p]]>?>", "<!-- &amp;-- -->", "<!<?p i?>-- c -->", "\u00e9"),
    "<!--\u00e9-->",
    "<!-- a -- b -->",
    "<!-- c --->",
    "<?p i?>",
    "x",
    "<![CDATA[ ]]>",
    "&#32;",
    "\x0b",
    "<!-->",
    "<!--",
    "<a>1</a>",
)

INVARIANT = """
<xs:element name="k" minOccurs="0" maxOccurs="unbounded" type="xs:token"/>
<xs:element name="n" minOccurs="0"><xs:complexType><xs:sequence><xs:element name="i" type="xs:int"/>
<xs:element name="w" type="xs:int" minOccurs="0" jbi:variance="variant"/></xs:sequence></xs:complexType></xs:element>
<xs:element name="who" type="xs:token"/>
"""

WILD = 0.25
"""Share of schemas with a wildcard at the top."""

Make = Callable[[], str]
"""Writes one element or part, as often and as well as chance has it."""


class Kind:
    """A random schema, and random documents of it, good and bad."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.noise = 0.0
        self._space = chance.choice(("", "", "urn:t"))
        self._prefix = ""
        self._has_identities = chance.random() < 0.1
        content, self._content = self._model(2)
        attributes, self._attributes = self._some_attributes()
        mixed = chance.choice(("", "", "", ' mixed="true"')) if "extension" not in content else ""
        tie = '<xs:unique name="u"><xs:selector xpath=".//a"/><xs:field xpath="."/></xs:unique>'
        self._is_wild = chance.random() < WILD
        taken = chance.choice(("##any", "##local", "urn:p ##targetNamespace", *("##other", "urn:o") * 4))
        self._tops = {"##any": "", "##local": "", "urn:p ##targetNamespace": "p:"}.get(taken, "o:")
        self._own = ' xmlns:o="urn:o" xmlns:p="urn:p"' if self._is_wild else ""
        process = chance.choice(("lax", "lax", "lax", "skip", "strict"))
        wild = f'<xs:any namespace="{taken}" processContents="{process}" minOccurs="0" maxOccurs="unbounded"/>'
        if taken in ("##other", "urn:o") and chance.random() < 0.5:
            wild += '<xs:element name="b" type="xs:int" minOccurs="0"/>'
        variant = (
            '<xs:element name="v" jbi:variance="variant" minOccurs="0" maxOccurs="2">'
            f"<xs:complexType{mixed}>{content.replace('@', attributes)}</xs:complexType></xs:element>"
        )
        root = (
            f'<xs:element name="r"><xs:complexType><xs:sequence>{INVARIANT}{wild if self._is_wild else variant}'
            f"</xs:sequence></xs:complexType>{tie if chance.random() < 0.05 else ''}</xs:element>"
        )
        own = ' xmlns="urn:t" targetNamespace="urn:t" elementFormDefault="qualified"' if self._space else ""
        self.schema = f"<xs:schema {SPACES}{own}>{root}{TYPES}</xs:schema>".encode()
        self.marks = f'{{"root": "{{{self._space}}}r"}}'.encode() if self._space else b'{"root": "r"}'

    def _model(self, depth: int) -> tuple[str, Make]:
        """A content model, "@" where attributes may be declared, and what writes content of it."""
        chance = self.chance
        names = chance.sample("bcdef", 5)
        parts = [self._particle(depth, name) for name in names[: chance.randrange(1, 5)]]
        written = "".join(part for part, _ in parts)
        makes = [make for _, make in parts]
        kind = chance.random()
        if kind < 0.12 and "xs:any" not in written and "xs:group" not in written:
            inside = "".join(map(_once, (part for part, _ in parts)))
            return f"<xs:all>{inside}</xs:all>@", lambda: "".join(chance.sample([m() for m in makes], len(makes)))
        if kind < 0.22:
            first = self._element("a", ("1", "2"))
            extension = f'<xs:extension base="base"><xs:sequence>{written}</xs:sequence>@</xs:extension>'
            return (
                f"<xs:complexContent>{extension}</xs:complexContent>",
                lambda: self._times(first, 0, 1) + "".join(make() for make in makes),
            )
        if kind < 0.45:
            least, most = chance.choice(((1, 1), (0, 1), (0, None), (1, None)))
            return f"<xs:choice{_occurs(least, most)}>{written}</xs:choice>@", lambda: self._times(
                lambda: chance.choice(makes)(), least, most
            )
        least, most = chance.choice(((1, 1), (1, 1), (1, 1), (1, 1), (0, 1), (0, None)))
        return f"<xs:sequence{_occurs(least, most)}>{written}</xs:sequence>@", lambda: self._times(
            lambda: "".join(make() for make in makes), least, most
        )

    def _particle(self, depth: int, name: str) -> tuple[str, Make]:
        chance = self.chance
        least, most = chance.choice(((1, 1), (1, 1), (0, 1), (0, 1), (0, None), (1, None), (0, 3), (2, 4)))
        times = _occurs(least, most)
        kind = chance.random()
        if kind < 0.06:
            processing, spaces = chance.choice(("lax", "skip", "strict")), chance.choice(("##other", "##any", "urn:o"))
            names = ("g", "h", "z", "deep") if spaces == "##any" else ('o:z xmlns:o="urn:o"', 'z xmlns="urn:o"')
            others = [self._element(each, ("1", "2.5")) for each in names]
            return f'<xs:any namespace="{spaces}" processContents="{processing}"{times}/>', lambda: self._times(
                lambda: chance.choice(others)(), least, most
            )
        if kind < 0.1:
            one, other = self._element("g", ("1",)), self._element("h", ("2",))
            return f'<xs:element ref="g"{times}/>', lambda: self._times(
                lambda: chance.choice((one, other))(), least, most
            )
        if kind < 0.14:
            p, q = self._element("p", ("1", "2")), self._element("q", ("a",))
            return f'<xs:group ref="two"{times}/>', lambda: self._times(lambda: p() + self._times(q, 0, 1), least, most)
        if chance.random() < 0.1:
            name = "a"
        if depth and kind < 0.5:
            content, make = self._model(depth - 1)
            attributes, some = self._some_attributes()
            written = f"<xs:complexType>{content.replace('@', attributes)}</xs:complexType>"
            return (
                f'<xs:element name="{name}"{times}>{written}</xs:element>',
                lambda: self._times(lambda: self._complex(name, some, make), least, most),
            )
        leaf = chance.choice([each for each in LEAVES if self._has_identities or "ID" not in each])
        made = self._element(name, LEAVES[leaf], ("", ' x="1"', ' x="2"') if "valued" in leaf else ())
        return f'<xs:element name="{name}" {leaf}{times}/>', lambda: self._times(made, least, most)

    def _some_attributes(self) -> tuple[str, tuple[str, ...]]:
        return self.chance.choice(ATTRIBUTES if self._has_identities else ATTRIBUTES[:-1])

    def _times(self, make: Make, least: int, most: int | None) -> str:
        chance = self.chance
        count = chance.randrange(least, (least + 3 if most is None else most) + 1)
        if chance.random() < self.noise / 4:
            count += chance.choice((-1, 1))
        return "".join(make() for _ in range(count))

    def _element(self, name: str, values: tuple[str, ...], attributes: tuple[str, ...] = ()) -> Make:
        return lambda: self._tag(name, self._value(values), self.chance.choice(attributes) if attributes else "")

    def _complex(self, name: str, attributes: tuple[str, ...], make: Make) -> str:
        own = (
            self.chance.choice(attributes)
            if attributes and self.chance.random() < 0.6
            else attributes[0]
            if attributes
            else ""
        )
        return self._tag(name, self._gap() + make(), own)

    def _value(self, values: tuple[str, ...]) -> str:
        return self.chance.choice(TEXTS) if self.chance.random() < self.noise / 3 else self.chance.choice(values)

    def _tag(self, name: str, inside: str, attributes: str) -> str:
        chance = self.chance
        if chance.random() < self.noise / 20:
            name = chance.choice("abgz")
        if chance.random() < self.noise / 20:
            attributes += chance.choice(
                (
                    ' z="1"',
                    ' x="1"',
                    ' t="S"',
                    " s=''",
                    ' xml:id="q"',
                    ' xsi:nil="true"',
                    ' xsi:type="xs:int"',
                    ' xmlns="urn:o"',
                    " ",
                )
            )
        name = name if ":" in name or " " in name else self._prefix + name
        if not inside and chance.random() < 0.3:
            return f"<{name}{attributes}/>{self._gap()}"
        space = " " if chance.random() < self.noise / 20 else ""
        return f"<{name}{attributes}>{inside}</{name.partition(' ')[0]}{space}>{self._gap()}"

    def _foreign(self, depth: int) -> str:
        """An element that no schema knows."""
        chance = self.chance
        is_odd = chance.random() < self.noise / 4
        odd = ("g", "r", "k", "who", "deep", "q:z", "xml:z", "v", "b", "z", "o:z", "p:z", "z:z")
        top = self._tops if depth == 0 else chance.choice(("", "o:", "p:"))
        name = (
            chance.choice(odd)
            if is_odd
            else f"{top}{chance.choice('xyz')}{chance.choice(('', '-1.b', chance.randrange(9)))}"
        )
        is_odd = chance.random() < self.noise / 10
        attributes = chance.choice(
            ODD_ATTRIBUTES if is_odd else ("", "", ' n="1"', " m='a &amp; \u00e9' n=\"2\"", ' m=""')
        )
        text = lambda: chance.choice(("1", "\u00e9 &lt; ", "<![CDATA[<a>]]>", "\n"))  # noqa: E731
        below = [self._gap, lambda: self._foreign(depth + 1)] if depth < 5 else [self._gap]
        parts = [text, *below] if chance.random() < self.noise / 2 else chance.choice(([text], below))
        inside = "".join(chance.choice(parts)() for _ in range(chance.randrange(4)))
        end = chance.choice("zgo") if chance.random() < self.noise / 20 else name
        return (
            f"<{name}{attributes}/>"
            if not inside and chance.random() < 0.5
            else f"<{name}{attributes}>{inside}</{end}>"
        )

    def _gap(self) -> str:
        chance = self.chance
        if chance.random() < self.noise / 20:
            return chance.choice(ODD)
        return chance.choice(BETWEEN) if chance.random() < 0.15 + self.noise / 4 else ""

    def document(self, noise: float) -> bytes:
        """One document; `noise`: how likely it is to be odd or bad."""
        self.noise = noise
        chance = self.chance
        self._prefix = chance.choice(("", "t:", "t:", "t:", "u:")) if self._space and noise != 0.1 else ""
        who = self._tag("who", chance.choice(("us", "us", "us", "them")) if noise > 0.5 else "us", "")
        keys = "".join(
            self._tag("k", chance.choice("ab") if noise > 0.5 else "a", "") for _ in range(chance.randrange(3))
        )
        node = self._tag("n", self._tag("i", "1", "") + self._times(self._element("w", ("1", "2")), 0, 1), "")
        parts = self._times(lambda: self._complex("v", self._attributes, self._content), 0, 2)
        if self._is_wild:
            wild = [self._element(name, ("1", "<y>1</y>")) for name in "zvo"]
            foreign = [
                lambda: self._foreign(0),
                lambda: f"<o:w xmlns:o='urn:o'>{self._foreign(1)}{self._foreign(1)}</o:w>",
            ]
            parts = "".join(self._times(make, 0, 2) for make in chance.choice((wild, foreign, foreign, foreign[:1])))
            parts += self._times(self._element("b", ("1", "2")), 0, int('name="b" type="xs:int"' in str(self.schema)))
        inside = self._gap() + keys + chance.choice(("", node)) + who + parts
        own = f' xmlns{":" * bool(self._prefix)}{self._prefix[:-1]}="{self._space}"' if self._space else ""
        own += self._own
        text = f"<{self._prefix}r{own} {INSTANCE}>{inside}</{self._prefix}r>"
        if noise and chance.random() < 0.1:
            at = chance.randrange(len(text))
            text = text[:at] + chance.choice(PIECES) + text[at + chance.randrange(3) :]
        head = chance.choice(("", '<?xml version="1.0"?>\n')) if noise > 0.5 else ""
        before, after = (chance.choice(("", "", *BETWEEN)) for _ in "12")
        if noise > 0.5 and chance.random() < 0.1:
            encoding = chance.choice(("utf-8", "iso-8859-1", "utf-16", "us-ascii"))
            return f'<?xml version="1.0" encoding="{encoding}"?>{before}{text}{after}'.encode(encoding, "replace")
        return f"{head}{before}{text}{after}".encode()


VALUE = re.compile(rb"""\s[\w:]+=["']([^"']*)""")
ATTRIBUTE = re.compile(rb"""\s+[\w:]+\s*=\s*("[^"<]*"|'[^'<]*')""")
LEAF = re.compile(rb"<([\w:]+)[^<>]*>([^<]*)</\1>")


def changed(document: bytes, chance: random.Random) -> bytes:
    """The document with one thing changed: an element more or less, or at another place; a text; something between."""
    leaves = list(LEAF.finditer(document))
    if not leaves:
        return document + b" "
    one, other = chance.choice(leaves), chance.choice(leaves)
    start, end = one.span()
    kind = chance.randrange(12)
    attributes = [each for each in ATTRIBUTE.finditer(document) if b"xsi" not in each[0]]
    if kind > 9 and attributes:
        one, other = chance.choice(attributes), chance.choice(attributes)
        without = document[: one.start()] + document[one.end() :] if kind == 10 else document
        at = other.start() if other.start() < one.start() else other.end() - len(document) + len(without)
        return without if chance.random() < 0.3 else without[:at] + one[0] + without[at:]
    if kind > 7:
        at = chance.randrange(len(document))
        piece = chance.choice(PIECES).encode() if kind == 8 else chance.choice(BYTES)
        return document[:at] + piece + document[at:]
    values = [value for value in VALUE.finditer(document) if b"xmlns" not in value[0]]
    if kind > 5 and values:
        value = chance.choice(values)
        text = chance.choice(TEXTS if kind == 6 else ("1", "91", "N", "ab", "abcd", "a", "\t", "x\ny", " 1")).encode()
        return document[: value.start(1)] + text + document[value.end(1) :]
    if kind == 0:
        return document[:start] + document[end:]
    if kind == 1:
        return document[:end] + document[start:]
    if kind == 2:
        return document[: other.start()] + one[0] + document[other.start() :]
    if kind == 3:
        return document[: one.start(2)] + chance.choice((*TEXTS, other[2].decode())).encode() + document[one.end(2) :]
    gap = chance.choice(ODD if kind == 4 else BETWEEN).encode()
    at = chance.choice((start, end, document.rindex(b"<"), document.index(b"<"), len(document)))
    return document[:at] + gap + document[at:]


def _occurs(least: int, most: int | None) -> str:
    return f' minOccurs="{least}" maxOccurs="{"unbounded" if most is None else most}"'


def _once(part: str) -> str:
    """A particle that may stand in an all-group."""
    for old in (' minOccurs="0" maxOccurs="unbounded"', ' minOccurs="0" maxOccurs="3"'):
        part = part.replace(old, ' minOccurs="0" maxOccurs="1"')
    return part.replace('maxOccurs="unbounded"', 'maxOccurs="1"').replace('minOccurs="2" maxOccurs="4"', "")


class Tally:
    """What was compared, and what differed."""

    def __init__(self) -> None:
        self.documents = self.traced = self.read = self.comparisons = 0


def outcome(check: Callable[[bytes], Any], metadata: bytes) -> tuple[Any, tuple[str, str]]:
    try:
        return check(metadata), ("", "")
    except JbiError as exc:
        return None, (type(exc).__name__, str(exc))


def layouts(roots: list[Element], chance: random.Random) -> list[Layout]:
    """Layouts that read some of what is in documents: of leaves all, of others that they are there, and their names."""
    leaves: dict[tuple[str, ...], bool] = {}
    attributes: set[tuple[str, ...]] = set()
    for root in roots:
        for element in root.iter("*"):
            path = tuple(str(each.tag) for each in (*reversed(list(element.iterancestors())), element))
            leaves[path] = leaves.get(path, True) and next(element.iterchildren("*"), None) is None
            attributes.update((*path, f"@{name}") for name in element.attrib)
    made = []
    for share, odd in ((1.0, 0.0), (0.5, 0.05)):
        paths = Paths()
        for path, is_leaf in leaves.items():
            for reading in (PRESENT, TEXT, NUMBER):
                if chance.random() < share and (is_leaf or reading == PRESENT or chance.random() < odd):
                    paths.slot(path if chance.random() < 0.8 else ("", *path[1:]), reading)
        for path in chance.sample(sorted(leaves), min(4, len(leaves))):
            where = chance.choice(
                ((f"//{path[-1]}",), ("*", *path[1:]), (f"//{path[0]}", *path[1:]), ("", "*", *path[2:]))
            )
            if share == 1.0 and leaves[path] and all(leaves[other] for other in leaves if other[-1] == path[-1]):
                paths.slot(where, chance.choice((PRESENT, TEXT, NUMBER)))
        for path in attributes:
            if chance.random() < share:
                paths.slot(path, chance.choice((PRESENT, TEXT, NUMBER)))
        made.append(paths.layout(EMPTY))
    return made


def told(values: Any, many: Any) -> tuple[list[str], list[str]]:
    """Values to compare; the mark of an absent number is another NaN than that of a text that is none."""
    return (
        ["absent" if value is ABSENT_NUMBER else repr(value) for value in values],
        [f"{slot} {texts!r}" for slot, texts in sorted(many.items())],
    )


def compare(kind: Kind, known: InformationType, tally: Tally) -> None:
    """Teach some good documents, and compare what is said of others."""
    validates = kind.chance.random() < 0.9

    def parsed(metadata: bytes) -> Element:
        parse_metadata(metadata)  # for what it refuses
        root = etree.fromstring(metadata)
        if validates:
            known.validate(root)
        known.check_invariants(root, registered)
        return root

    chance = kind.chance
    documents = [kind.document(noise) for noise in (0.0, 0.0, 0.1, 0.2, 0.5, 1.5) for _ in range(40)]
    own = f' xmlns="{kind._space}"' if kind._space else ""
    registered = known.entries(parse_metadata(f"<r{own}><k>a</k><who>us</who></r>".encode()))
    answers = {document: outcome(parsed, document) for document in documents}
    good = [document for document, answer in answers.items() if answer[0] is not None]
    others = [changed(document, chance) for document in good if b"who>" in document for _ in "12"]
    answers.update((document, outcome(parsed, document)) for document in others)
    plans = layouts([answers[document][0] for document in good], chance)
    conformity = Conformity(known, registered, validate=validates)
    for samples in (good[:1], good[:3], good[: len(good) // 3], chance.sample(good, len(good) // 2)):
        conformity._known.learn(samples)
        for _ in "12":  # once more, for what is learned by the first round
            for document, answer in answers.items():
                compare_one(conformity, document, answer, plans, tally)
        for stencil in conformity._known.stencils:
            conformity._known._read_more(stencil.missing)


def compare_one(
    conformity: Conformity, document: bytes, answer: tuple[Any, tuple[str, str]], plans: list[Layout], tally: Tally
) -> None:
    found, said = outcome(conformity.check, document)
    tally.documents += 1
    assert said == answer[1], document
    if not isinstance(found, Traced):
        return
    tally.traced += 1
    tally.comparisons += 1
    for plan in plans:
        values, many = found.read(plan)
        if found._root is None:
            assert told(values, many) == told(*plan.read(answer[0])), document
            tally.read += 1
            tally.comparisons += len(values) - 1


@pytest.mark.long
@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(4_000, id="some"),
        pytest.param(5_000_000, id="many", marks=[pytest.mark.slow, pytest.mark.timeout(3_600)]),
    ],
)
def test_verdict_and_readings_are_those_of_the_parser(
    wanted: int, record_property: Callable[[str, object], None]
) -> None:
    tally, seed = Tally(), 0
    while tally.comparisons < wanted:
        # Given a random schema, and random documents of it
        seed += 1
        kind = Kind(random.Random(seed if wanted < 10**6 else -seed))
        try:
            known = open_type(read_bundle(kind.schema, marks=kind.marks))
        except SchemaError:
            continue  # not deterministic, or contradicting itself
        # Expect of those that are known by their bytes what is said of them when they are parsed
        compare(kind, known, tally)
    assert tally.traced > tally.documents / 40
    assert tally.read > tally.traced / 4
    record_property("compared", f"{tally.comparisons}, {tally.traced} of {tally.documents} documents traced")
