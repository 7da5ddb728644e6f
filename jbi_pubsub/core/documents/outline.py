"""Elements, attributes and values that valid documents can have, as the documents of their schema tell.

Rules:
- Sound: what a valid document can have is never left out. Members of substitution groups, types that xsi:type may put
  in place of the declared one, wildcards and recursion count; limits of derivation and numbers of occurrences do not.
- Where a wildcard, or an element without a type, admits what the schema does not declare, anything is possible.
- A schema that redefines, declares a name twice, or includes documents of no namespace into one is not outlined.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from jbi_pubsub.core.documents.certain import (
    BUILT_IN,
    MAX_DEPTH,
    ElementContent,
    GlobalComponents,
    clark,
    has_chameleons,
    target_of,
)
from jbi_pubsub.core.documents.simple import UnclearError
from jbi_pubsub.core.xml import XSD, Element

NEVER_NUMBERS: Final = frozenset((
    "dateTime", "date", "time", "gYearMonth", "gMonthDay", "gMonth", "gDay", "duration", "language",
    "Name", "NCName", "ID", "IDREF", "ENTITY", "QName", "NOTATION",
))  # fmt: skip
"""Built-in types none of whose texts is a number of XPath (XML Schema part 2, section 3)."""

MAX_WORK: Final = 400_000
"""Declarations looked at for one schema as long as it is known, some 0.5 s in all; then nothing more is said."""

CLOSURES_KEPT: Final = 32
"""Elements of which it is remembered what can lie below them."""

_TEXTS: Final = frozenset(("string", "normalizedString", "token", "NMTOKEN", "Name", "NCName", "language", "anyURI"))
_GLOBAL: Final = frozenset(("element", "attribute", "complexType", "simpleType", "group", "attributeGroup"))
_TYPES: Final = (f"{{{XSD}}}complexType", f"{{{XSD}}}simpleType")
_DERIVED: Final = (f"{{{XSD}}}restriction", f"{{{XSD}}}extension")
_ANY_TYPE: Final = f"{{{XSD}}}anyType"


class SchemaNode(NamedTuple):
    """Kind of node that documents can have: "document", "element", "attribute", "text" (comments and processing
    instructions, too), or "any", of which nothing is known. `name` is in Clark notation."""

    kind: str
    name: str = ""
    declaration: Element | None = None


DOCUMENT: Final = SchemaNode("document")
TEXT: Final = SchemaNode("text")
ANYTHING: Final = SchemaNode("any")


class SimpleValue(NamedTuple):
    """Values of an element or attribute: the built-in type ("" unknown), and the texts allowed, white space collapsed
    (() any)."""

    builtin: str = ""
    allowed: tuple[str, ...] = ()


class NodeContent:
    """Children and attributes that elements of one declaration can have. `is_open`: also children that are not
    declared; `has_any_attribute`: the same of attributes."""

    def __init__(self) -> None:
        self.children: dict[str, dict[SchemaNode, None]] = {}
        self.attributes: dict[str, dict[SchemaNode, None]] = {}
        self.has_any_attribute = False
        self.wildcards = ElementContent()

    @property
    def is_open(self) -> bool:
        """Whether a wildcard is among the children."""
        return self.wildcards.is_any or bool(self.wildcards.others or self.wildcards.spaces)


class SchemaOutline:
    """Outline of the documents of one type. Immutable but for what it remembers, whose single steps are atomic."""

    def __init__(self, documents: Iterable[Element], root: str) -> None:
        """`documents` are those of the schema, `root` is the document element. Raises UnclearError."""
        self._left = MAX_WORK
        self._known = GlobalComponents()
        self._contents: dict[Element | None, NodeContent] = {}
        self._below: dict[SchemaNode, dict[SchemaNode, None]] = {}
        self._derived: dict[str, list[Element]] = {}
        self._members: dict[str, list[str]] = {}
        schemas = list(documents)
        if has_chameleons(schemas):
            raise UnclearError
        for schema in schemas:
            for part in schema.iterchildren("*"):
                self._note(str(part.tag).rpartition("}")[2], f"{target_of(schema)}{part.get('name')}", part)
        if ("element", root) not in self._known:
            raise UnclearError
        simple = f"{{{XSD}}}simpleContent"
        self._extending = [each for each in self._known.values() if next(each.iterchildren(simple), None) is not None]
        self.root: Final = SchemaNode("element", root, self._known["element", root])

    def _note(self, kind: str, name: str, part: Element) -> None:
        if kind == "redefine":
            raise UnclearError
        if kind not in _GLOBAL:
            return
        if self._known.setdefault((kind, name), part) is not part:
            raise UnclearError
        if (head := part.get("substitutionGroup")) is not None:
            self._members.setdefault(clark(part, head), []).append(name)
        for step in _derivation(part):
            if (base := clark(step, step.get("base", ""))) != "":
                self._derived.setdefault(base, []).append(part)

    def content(self, node: SchemaNode) -> NodeContent:
        """Content that an element can hold. Raises UnclearError."""
        found = self._contents.get(node.declaration)
        if found is None:
            found = NodeContent()
            kinds = None if node.declaration is None else self._kinds(node.declaration)
            if kinds is None:
                found.wildcards.is_any = found.has_any_attribute = True
            for kind in kinds or ():
                self._collect(kind, found, set())
            self._contents[node.declaration] = found
        return found

    def below(self, node: SchemaNode) -> Mapping[SchemaNode, None]:
        """All elements that can lie below one, at any depth; ANYTHING if a wildcard is among them. Raises
        UnclearError."""
        found = self._below.get(node)
        if found is None:
            found, waiting = {}, [node]
            while waiting:
                content = self.content(waiting.pop())
                self._spend(len(content.children) + 1)
                new = [each for nodes in content.children.values() for each in nodes if each not in found]
                found.update(dict.fromkeys(new))
                waiting += new
                if content.is_open:
                    found[ANYTHING] = None
            if len(self._below) >= CLOSURES_KEPT:
                self._below = {}
            self._below[node] = found
        return found

    def value(self, node: SchemaNode) -> SimpleValue:
        """Values of an element or attribute, in whatever type that is derived from the declared one."""
        return SimpleValue() if node.declaration is None else self._value(node.declaration, 0)

    def _kinds(self, declaration: Element) -> list[Element] | None:
        """Definitions of types that an element can be of; None: any content."""
        inside = next(declaration.iterchildren(*_TYPES), None)
        named, head = declaration.get("type"), declaration.get("substitutionGroup")
        if inside is None and named is None:
            return None if head is None else self._kinds(self._known.find("element", clark(declaration, head)))
        name = "" if named is None else clark(declaration, named)
        if name == _ANY_TYPE:
            return None
        first = inside if inside is not None else self._definition(name)
        if first is None or first.tag == _TYPES[1]:  # any complex type of simple content may extend it
            return self._extending
        found, waiting = {first: None}, [name]
        while waiting:
            for each in self._derived.get(waiting.pop(), ()):
                self._spend(1)
                if each not in found:
                    found[each] = None
                    waiting.append(f"{target_of(each.getroottree().getroot())}{each.get('name')}")
        return list(found)

    def _collect(self, part: Element, content: NodeContent, seen: set[Element]) -> None:
        """Add what a definition, or a part of one, holds; also what a restriction leaves out of its base."""
        if part in seen:
            return
        seen.add(part)
        for child in part.iterchildren("*"):
            self._spend(1)
            kind, ref = str(child.tag).rpartition("}")[2], child.get("ref")
            if kind == "element":
                self._add(content, child)
            elif kind == "attribute":
                name, declaration = self._known.declared(child, kind)
                content.attributes.setdefault(name, {})[SchemaNode(kind, name, declaration)] = None
            elif kind == "any":
                content.wildcards.add_wildcard(child)
            elif kind == "anyAttribute":
                content.has_any_attribute = True
            elif kind in ("group", "attributeGroup") and ref is not None:
                self._collect(self._known.find(kind, clark(child, ref)), content, seen)
            elif kind in ("sequence", "choice", "all", "simpleContent", "complexContent", "restriction", "extension"):
                self._collect(child, content, seen)
                base = clark(child, child.get("base", ""))
                if base == _ANY_TYPE and kind == "extension":
                    content.wildcards.is_any = content.has_any_attribute = True
                elif base and (definition := self._definition(base)) is not None:
                    self._collect(definition, content, seen)

    def _add(self, content: NodeContent, particle: Element) -> None:
        """An element, and those that may stand for it."""
        name, declaration = self._known.declared(particle, "element")
        waiting = [(name, declaration)]
        while waiting:
            name, declaration = waiting.pop()
            node, known = SchemaNode("element", name, declaration), content.children.setdefault(name, {})
            if node not in known:
                known[node] = None
                if ("element", name) in self._known and self._known["element", name] is declaration:
                    waiting += [(each, self._known.find("element", each)) for each in self._members.get(name, ())]

    def _value(self, part: Element, depth: int) -> SimpleValue:
        """Values by a declaration, a definition, or a step of derivation."""
        if depth > MAX_DEPTH:
            raise UnclearError
        named = part.get("type") or part.get("base")
        inside = next(part.iterchildren(*_TYPES), None)
        steps = _derivation(part) if part.tag in _TYPES else []
        head = part.get("substitutionGroup")
        found = SimpleValue()
        if inside is not None:
            found = self._value(inside, depth + 1)
        elif named is not None:
            name = clark(part, named)
            definition = self._definition(name)
            local = name.rpartition("}")[2]
            found = self._value(definition, depth + 1) if definition is not None else SimpleValue(local)
        elif steps:
            found = self._value(steps[0], depth + 1)
        elif head is not None:
            found = self._value(self._known.find("element", clark(part, head)), depth + 1)
        allowed = [" ".join(each.get("value", "").split()) for each in part.iterchildren(f"{{{XSD}}}enumeration")]
        return found._replace(allowed=tuple(allowed)) if allowed and found.builtin in _TEXTS else found

    def _spend(self, work: int) -> None:
        self._left -= work
        if self._left < 0:
            raise UnclearError

    def _definition(self, name: str) -> Element | None:
        """The definition of a type; None: a built-in one. Raises UnclearError."""
        return None if name.startswith(BUILT_IN) else self._known.definition(name)


def _derivation(kind: Element) -> list[Element]:
    """The restriction or extension that a type is made by: one, or none."""
    inner: Iterator[Element] = kind.iterchildren(f"{{{XSD}}}simpleContent", f"{{{XSD}}}complexContent")
    holders = [kind, *inner] if kind.tag in _TYPES else []
    return [step for each in holders for step in each.iterchildren(*_DERIVED)][:1]
