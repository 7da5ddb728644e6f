"""What is said to be impossible never happens: random schemas, documents that lxml finds valid, and random expressions
that lxml evaluates. The oracle knows nothing of outlines."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from lxml import etree

from jbi_pubsub.core.documents.outline import SchemaOutline
from jbi_pubsub.core.documents.simple import UnclearError
from jbi_pubsub.core.xpath.impossible import impossible

URI = "urn:x"
PREFIXES = {"t": URI, "o": "urn:other"}
NAMES = ("a", "b", "c", "d", "e", "f")
VALUES = {
    "xs:string": ("", "5", "x", "2026-01-01"),
    "xs:decimal": ("1", "-2.5", " 7 "),
    "xs:dateTime": ("2026-01-01T00:00:00Z", "1999-12-31T23:59:59.5"),
    "xs:date": ("2026-01-01",),
    "xs:boolean": ("true", "1"),
    "xs:gYear": ("2026",),
    "t:word": ("yes", "no", "7"),
    "t:short": ("yes",),
    "t:either": ("2026-01-01", "5"),
    "t:several": ("2026-01-01 2026-01-02", "2026-01-01"),
}
SIMPLE = """
<xs:simpleType name="word"><xs:restriction base="xs:string">
  <xs:enumeration value="yes"/><xs:enumeration value="no"/><xs:enumeration value="7"/></xs:restriction></xs:simpleType>
<xs:simpleType name="short"><xs:restriction base="t:word"><xs:enumeration value="yes"/></xs:restriction></xs:simpleType>
<xs:simpleType name="either"><xs:union memberTypes="xs:date xs:decimal"/></xs:simpleType>
<xs:simpleType name="several"><xs:list itemType="xs:date"/></xs:simpleType>
<xs:complexType name="wordy"><xs:simpleContent><xs:extension base="t:word"><xs:attribute name="z"/></xs:extension>
</xs:simpleContent></xs:complexType>
"""


class _World:
    """A random schema, and random documents that are more often than not valid by it."""

    def __init__(self, seed: int) -> None:
        self.any = random.Random(seed)
        self.is_qualified = self.any.random() < 0.7
        self.is_mixed = self.any.random() < 0.2
        self.types = [f"T{number}" for number in range(4)]
        self.globals = {name: self.any.choice([*self.types, *VALUES]) for name in NAMES[:4]}
        self.globals["r"] = "T0"
        self.heads = {name: self.any.choice(NAMES[:4]) for name in NAMES[:4] if self.any.random() < 0.3}
        self.heads = {name: head for name, head in self.heads.items() if name > head}
        for name, head in self.heads.items():
            self.globals[name] = self.globals[head]
        self.documents: list[etree._Element] = []
        self.content: dict[str, list[tuple[str, str, str]]] = {}
        self.attributes: dict[str, list[tuple[str, str]]] = {}
        self.base: dict[str, str] = {}
        parts = "".join(map(self._type, self.types)) + "".join(map(self._global, self.globals))
        self.xsd = (
            '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:t="urn:x" targetNamespace="urn:x"'
            f' elementFormDefault="{"qualified" if self.is_qualified else "unqualified"}">{SIMPLE}{parts}</xs:schema>'
        )

    def _global(self, name: str) -> str:
        head = f' substitutionGroup="t:{self.heads[name]}"' if name in self.heads else ""
        kind = self.globals[name]
        given = "" if head and self.any.random() < 0.3 else f' type="{kind if ":" in kind else f"t:{kind}"}"'
        return f'<xs:element name="{name}" nillable="true"{given}{head}/>'

    def _type(self, name: str) -> str:
        pick = self.any
        above = pick.choice([each for each in self.types if each < name] or [""]) if pick.random() < 0.5 else ""
        self.base[name] = above
        content: list[tuple[str, str, str]] = []
        used = {
            each for above_ in self._line(above) for _, child, _ in self.content[above_] for each in self._group(child)
        }
        for _ in range(pick.randint(1, 3)):
            kind = pick.choice(("ref", "local", "local", "any"))
            child = "" if kind == "any" else pick.choice(NAMES[:4] if kind == "ref" else NAMES)
            if not used & self._group(child):  # else the content model is not deterministic
                content.append((kind, child, pick.choice([*VALUES, *self.types])))
                used |= self._group(child)
        if pick.random() < 0.7:
            content = [each for each in content if each[0] != "any"]
        self.content[name] = content
        self.attributes[name] = [(f"{name.lower()}{n}", pick.choice([*VALUES])) for n in range(pick.randint(0, 2))]
        inner = "".join(self._particle(each) for each in content)
        wild = '<xs:anyAttribute namespace="##other" processContents="skip"/>' if pick.random() < 0.1 else ""
        own = (
            f"<xs:sequence>{inner}</xs:sequence>"
            + "".join(f'<xs:attribute name="{each}" type="{kind}"/>' for each, kind in self.attributes[name])
            + wild
        )
        mixed = ' mixed="true"' if self.is_mixed else ""
        if above:
            own = f'<xs:complexContent><xs:extension base="t:{above}">{own}</xs:extension></xs:complexContent>'
        return f'<xs:complexType name="{name}"{mixed}>{own}</xs:complexType>'

    def _group(self, name: str) -> set[str]:
        """Elements that may stand for that one, itself included."""
        found = {name}
        for each in NAMES:
            if self.heads.get(each) in found:
                found.add(each)
        return found

    @staticmethod
    def _particle(given: tuple[str, str, str]) -> str:
        kind, name, of = given
        if kind == "any":
            return '<xs:any namespace="##other" processContents="lax" minOccurs="0"/>'
        if kind == "ref":
            return f'<xs:element ref="t:{name}" minOccurs="0" maxOccurs="2"/>'
        of = of if ":" in of else f"t:{of}"
        return f'<xs:element name="{name}" type="{of}" minOccurs="0" maxOccurs="2"/>'

    def document(self) -> etree._Element:
        root = etree.Element(f"{{{URI}}}r", nsmap={"t": URI})
        self._fill(root, "T0", 0)
        return root

    def _fill(self, element: etree._Element, kind: str, depth: int) -> None:
        pick = self.any
        derived = [each for each in self.types if kind in self._line(each)]
        if kind in VALUES or not derived:
            element.text = pick.choice(VALUES[kind])
            if kind == "t:word" and pick.random() < 0.3:
                element.set("{http://www.w3.org/2001/XMLSchema-instance}type", "t:wordy")
                element.set("z", "1")
            return
        actual = pick.choice(derived)
        if actual != kind:
            element.set("{http://www.w3.org/2001/XMLSchema-instance}type", f"t:{actual}")
        for each in reversed(self._line(actual)):
            for name, of in self.attributes[each]:
                if pick.random() < 0.6:
                    element.set(name, pick.choice(VALUES[of]))
            for particle, name, of in self.content[each]:
                for _ in range(pick.randint(0, 2) if depth < 4 else 0):
                    self._child(element, particle, name, of, depth)

    def _child(self, above: etree._Element, particle: str, name: str, of: str, depth: int) -> None:
        if particle == "any":
            if above.find("{urn:other}o") is None:
                other = etree.SubElement(above, "{urn:other}o")
                etree.SubElement(other, self.any.choice((f"{{{URI}}}e", "f"))).text = "5"
        elif particle == "ref":
            stands = self.any.choice([name, *(each for each, head in self.heads.items() if head == name)])
            self._fill(etree.SubElement(above, f"{{{URI}}}{stands}"), self.globals[stands], depth + 1)
        else:
            self._fill(etree.SubElement(above, f"{{{URI}}}{name}" if self.is_qualified else name), of, depth + 1)

    def _line(self, kind: str) -> list[str]:
        found = []
        while kind in self.base:
            found.append(kind)
            kind = self.base[kind]
        return found

    def expression(self, depth: int = 0) -> str:
        pick = self.any
        kind = pick.randint(0, 11 if depth < 3 else 3)
        if kind <= 1:
            return self.path(depth)
        if kind <= 4:
            other = pick.choice(("5", "'yes'", "'maybe'", "''", "'2026-01-01'", "true()", self.path(depth), "1 div 0"))
            sides = [self.path(depth), other]
            pick.shuffle(sides)
            return f"{sides[0]} {pick.choice(('=', '!=', '<', '>=', '>'))} {sides[1]}"
        if kind <= 6:
            joined = pick.choice((" and ", " or "))
            return joined.join(f"({self.expression(depth + 1)})" for _ in range(2))
        one = self.path(depth)
        return pick.choice((
            f"not({self.expression(depth + 1)})", f"count({one}) {pick.choice('<>=')} {pick.randint(0, 1)}",
            f"contains({one}, 'e')", f"starts-with({one}, {self.path(depth)})", f"{one} * 2 > 3", f"-{one} < 1",
            f"string-length({one}) > 0", f"boolean({one}) = {pick.choice(('true()', 'false()'))}", f"sum({one}) = 0",
            f"string({one}) = 'yes'", f"translate({one}, '-', '') > 5", f"({one} | {self.path(depth)}) = 'no'",
            f"substring({one}, 1, 2) = 'ye'", f"number({one})", f"name({one})",
            f"({one})[1] = 5", f"normalize-space({one})", f"{one} = not({self.path(depth)})",
        ))  # fmt: skip

    def path(self, depth: int) -> str:
        pick = self.any
        if depth < 2 and self.documents and pick.random() < 0.5:
            return self._of_document()
        steps = "".join(self._step(depth) for _ in range(pick.randint(1, 3)))
        return pick.choice((steps.lstrip("/"), f"/t:r{steps}", f"/{steps.lstrip('/')}", f"/{steps}")).replace(
            "///", "//"
        )

    def _of_document(self) -> str:
        """Path to an element or attribute that is there."""
        element = self.any.choice(list(self.any.choice(self.documents).iter("*")))
        line = [element, *element.iterancestors()][::-1]
        names = [str(each.tag).replace(f"{{{URI}}}", "t:").replace("{urn:other}", "o:") for each in line]
        own = [f"/@{name}" for name in element.attrib if "{" not in name]
        path = "/".join(names[self.any.randint(1, len(names)) - 1 :])
        return ("//" if path != "/".join(names) else "/") + path + (self.any.choice(own) if own else "")

    def _step(self, depth: int) -> str:
        pick = self.any
        name = pick.choice((*(f"t:{each}" for each in NAMES), *NAMES, "*", "t:*", "node()", "text()", ".", "..", "t:r"))
        if pick.random() < 0.2:
            name = "@" + pick.choice(("t00", "t01", "t10", "t20", "z", "*", "q"))
        elif name[0] != "." and pick.random() < 0.15:
            axis = pick.choice(("self", "parent", "descendant", "ancestor", "following-sibling", "descendant-or-self"))
            name = f"{axis}::{name}"
        inside = f"[{self.expression(depth + 2)}]" if depth < 2 and name[0] != "." and pick.random() < 0.2 else ""
        return f"{pick.choice(('/', '/', '//'))}{name}{inside}"


def _seeds() -> Iterator[int]:
    yield from range(40)


def _valid(world: _World, schema: etree.XMLSchema) -> list[etree._Element]:
    found = [world.document() for _ in range(40)]
    return [etree.fromstring(etree.tostring(each)) for each in found if schema.validate(each)]


def _judged(seed: int, expressions: int) -> tuple[int, int]:
    """How many expressions were said to be impossible, of how many that no document matches."""
    world = _World(seed)
    try:
        schema = etree.XMLSchema(etree.fromstring(world.xsd))
    except etree.XMLSchemaParseError:
        return 0, 0
    documents = world.documents = _valid(world, schema)
    try:
        outline = SchemaOutline([etree.fromstring(world.xsd)], f"{{{URI}}}r")
    except UnclearError:
        return 0, 0
    said = silent = 0
    for _ in range(expressions):
        text = world.expression()
        try:
            holds = etree.XPath(f"boolean({text})", namespaces=PREFIXES)
        except etree.XPathSyntaxError:
            continue
        why = impossible(text, PREFIXES, outline)
        matched = [each for each in documents if holds(each)]
        if why:
            shown = [etree.tostring(each).decode() for each in matched[:1]]
            assert not matched, f"seed {seed}: {text}: {[*map(str, why)]}, and it is true of {shown} by {world.xsd}"
            said += 1
        silent += bool(documents) and not matched
    return said, silent


@pytest.mark.long
def test_what_is_said_to_be_impossible_is_true_of_no_valid_document() -> None:
    found = [_judged(seed, 60) for seed in _seeds()]

    said, never = sum(each for each, _ in found), sum(each for _, each in found)
    assert said > 100  # else nothing was tried
    assert said > never / 5


@pytest.mark.slow
def test_that_holds_for_many_more() -> None:
    for seed in range(1_000, 3_000):
        _judged(seed, 200)
