"""Which texts a leaf element may hold for certain, as the documents of a schema tell without a validator.

A document that was found valid stays valid when the text of one leaf is replaced by another text of the leaf's simple
type: XML Schema looks at each by itself (part 1, section 3.3.4), but for identity constraints, ID and IDREF, xsi:type
and xsi:nil. So one that differs from a valid one in such texts alone need not be validated again.

Rules:
- Sound, never complete: what is not understood here is None, and such documents are validated as any other. The texts
  are a part of the type's lexical space (part 2): ASCII, without markup, numbers short enough for every processor.
- With an identity constraint, a redefinition or an include of another namespace anywhere in the schema nothing is
  certain; nor with documents that libxml2 may not have read: one to which nothing leads, or the second for a namespace.
- An element's type is that of the declaration of its name in the parent's content model, or, if a wildcard there or a
  substitution group leads to it, that of the global declaration of its name. Where there are several, they must say the
  same: libxml2 does not check that one name has one type (part 1, section 3.8.6, Element Declarations Consistent), and
  wildcards are not in that rule. One with neither was matched by a wildcard which does not ask for a declaration: any
  text will do, and so below it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, TypeVarTuple

from jbi_pubsub.core.documents.shape import ANY, ANY_TEXT, EXACT, Particle, Texts, Wildcard
from jbi_pubsub.core.documents.simple import Facets, UnclearError, builtin_texts, counted
from jbi_pubsub.core.xml import XSD, Element

MAX_DEPTH: Final = 64
"""Depth of definitions that refer to each other, and of elements; the deepest in use (NIEM, NewsML) go to about ten."""

MAX_PARTICLES: Final = 4_000
"""Most particles of one content model with all that it refers to: four times what bundle.py allows in one group."""

MAX_FACETS: Final = 1_000
"""Most facets of a simple type with all that it is derived from: more make an enumeration that is too long anyway."""

MAX_REMEMBERED: Final = 8_000
"""Answers of each kind kept: more than there are kinds of elements in a document of which a stencil is made, but for
a hostile one, which has the same looked up again for each leaf."""

_TYING: Final = ("key", "keyref", "unique", "redefine")
_GROUPS: Final = frozenset(f"{{{XSD}}}{name}" for name in ("sequence", "choice", "all"))
_IGNORED: Final = frozenset(
    f"{{{XSD}}}{name}" for name in ("annotation", "attribute", "attributeGroup", "anyAttribute")
)
_TYPE_NAMES: Final = ("type", "base", "itemType", "memberTypes")
_IDENTITIES: Final = frozenset(("ID", "IDREF", "IDREFS", "ENTITY", "ENTITIES", "NOTATION"))
_LINKS: Final = (f"{{{XSD}}}include", f"{{{XSD}}}import")
BUILT_IN: Final = f"{{{XSD}}}"
"""The beginning of Clark names of built-in types."""

Path = Sequence[str]
"""Tags (Clark names) from the document element down."""


K = TypeVarTuple("K")
V = TypeVar("V")


def _remembered(ask: Callable[[*K], V]) -> Callable[[*K], V]:
    """A function whose answers are remembered, a bounded number of them; UnclearError is one as well."""

    @functools.lru_cache(MAX_REMEMBERED)
    def answer(*key: *K) -> tuple[V] | None:
        with contextlib.suppress(UnclearError):
            return (ask(*key),)
        return None

    def answered(*key: *K) -> V:
        known = answer(*key)
        if known is None:
            raise UnclearError
        return known[0]

    return answered


class ElementContent:
    """Contents of a content model: the declaration of each name (None: several that differ), and which namespaces its
    wildcards take: any, all but one of `others` and none (part 1, section 3.10.2), or some."""

    def __init__(self) -> None:
        self.declared: dict[str, Element | None] = {}
        self.is_any = False
        self.others: set[str] = set()
        self.spaces: set[str] = set()
        self._size = 0

    def add(self, name: str, declaration: Element) -> None:
        """Note a declaration."""
        first = self.declared.setdefault(name, declaration)
        if first is not None and not _agree(first, declaration):
            self.declared[name] = None

    def add_wildcard(self, wildcard: Element) -> None:
        """Note what a wildcard takes."""
        target = wildcard.getroottree().getroot().get("targetNamespace", "")
        words = set(wildcard.get("namespace", "##any").split())
        self.is_any = self.is_any or "##any" in words
        self.others.update({target} if "##other" in words else ())
        named = {"##targetNamespace": target, "##local": ""}
        self.spaces.update(named.get(word, word) for word in words)

    def grow(self) -> None:
        """Count a particle; UnclearError if there are too many."""
        self._size += 1
        if self._size > MAX_PARTICLES:
            raise UnclearError

    def takes_any(self, tag: str) -> bool:
        """Whether a wildcard may match an element of that name."""
        space = tag[1:].rpartition("}")[0]
        return self.is_any or space in self.spaces or (space != "" and bool(self.others - {space}))


class GlobalComponents(dict[tuple[str, str], Element]):
    """Global declarations and definitions of a schema, by kind and Clark name."""

    def find(self, kind: str, name: str) -> Element:
        """Raises UnclearError for one that is not there."""
        if (found := self.get((kind, name))) is None:
            raise UnclearError
        return found

    def definition(self, name: str) -> Element:
        """The definition of a type. Raises UnclearError for a built-in one, too."""
        if name.startswith(BUILT_IN):
            raise UnclearError
        found = self.get(("complexType", name))
        return found if found is not None else self.find("simpleType", name)

    def declared(self, part: Element, kind: str) -> tuple[str, Element]:
        """Name and declaration of an element or attribute in a type. Raises UnclearError."""
        if (ref := part.get("ref")) is not None:
            return (name := clark(part, ref)), self.find(kind, name)
        schema = part.getroottree().getroot()
        is_qualified = part.get("form", schema.get(f"{kind}FormDefault", "unqualified")) == "qualified"
        return f"{target_of(schema) if is_qualified else ''}{part.get('name')}", part

    def type_of(self, declaration: Element) -> Element | None:
        """The definition of an element's type; None: any content. Raises UnclearError."""
        if declaration.get("substitutionGroup") is not None and declaration.get("type") is None:
            raise UnclearError  # the head's type, if there is none inside
        inside = list(declaration.iterchildren(f"{{{XSD}}}complexType", f"{{{XSD}}}simpleType"))
        if inside:
            return inside[0]
        named = declaration.get("type")
        if named is None:
            return None
        name = clark(declaration, named)
        # a built-in simple type is not clear here: who reads texts knows it, and it has no children
        return None if name == f"{BUILT_IN}anyType" else self.definition(name)


class LeafTypes:
    """The simple types of a schema's elements. Immutable but for bounded memories, whose single steps are atomic;
    several threads may use it."""

    def __init__(self, documents: Mapping[str, Element], main: str) -> None:
        """`documents` are the schema's, as the bundle holds them; `main` names the one that leads to the others."""
        self._known = GlobalComponents()
        self._content = _remembered(self._content_of)
        self._step = _remembered(self._below)
        self._leaf = _remembered(self._of_element)
        self._places = _remembered(self._places_of)
        self._segments = _remembered(self._segments_of)
        self._attribute = _remembered(self._attribute_of)
        roots = [root for root in documents.values() if root.tag == f"{{{XSD}}}schema"]
        for root in roots:
            space = target_of(root)
            for part in root.iterchildren("*"):
                self._known[str(part.tag).rpartition("}")[2], f"{space}{part.get('name')}"] = part
        self._names = frozenset(n.rpartition("}")[2] for kind, n in self._known if kind in ("element", "attribute"))
        ties = any(True for root in roots for _ in root.iter(*(f"{{{XSD}}}{name}" for name in _TYING)))
        is_whole = len(roots) == len(documents) and _are_all_read(documents, main)
        self._has_identities = any(_has_identities(root) for root in roots)
        self._unclear = ties or not is_whole or has_chameleons(roots)

    def texts(self, path: Path) -> Texts | None:
        """The texts that a leaf at `path` of a valid document may hold for certain; None: nothing is certain."""
        if self._unclear or len(path) > MAX_DEPTH:
            return None
        try:
            found = self._at(path)
            return ANY_TEXT if found is None else self._leaf(found)
        except UnclearError:
            return None

    def attribute(self, path: Path, name: str) -> Texts | None:
        """The texts that the attribute `name`, in no namespace, of the element at `path` of a valid document may hold
        for certain; None: nothing is certain."""
        if self._unclear or self._has_identities or len(path) > MAX_DEPTH:
            return None
        try:
            found = self._at(path)
            kind = None if found is None else self._known.type_of(found)
            if kind is None:  # any attribute will do, but for one that is declared
                return None if ("attribute", name) in self._known else ANY_TEXT
            return self._attribute(kind, name)
        except UnclearError:
            return None

    def content(self, path: Path, tags: Sequence[str]) -> Particle | None:
        """A content model of the element at `path`, in which each of `tags`, its children in a valid document, has one
        place; EXACT where that is not understood. None: nothing is certain (see shape.Grammar)."""
        if self._unclear or self._has_identities or len(path) > MAX_DEPTH:
            return None
        try:
            found = self._at(path)
            model, named, takes_others = self._places(found)
            distinct = dict.fromkeys(tags)
            if named is None or (not takes_others and not named.issuperset(distinct)):
                return EXACT
            for tag in distinct:
                self._step(found, tag)
                known = self._known.get(("element", tag))
                if tag not in named and known is not None and known.get("substitutionGroup") is not None:
                    return EXACT  # it may stand for another one
            return model
        except UnclearError:
            return EXACT

    # -- elements -----------------------------------------------------------------------------------------------

    def _at(self, path: Path) -> Element | None:
        """The declaration of the element at `path`; None: a wildcard's, without a declaration."""
        found: Element | None = self._known.find("element", path[0])
        for tag in path[1:]:
            found = self._step(found, tag)
        return found

    def _below(self, above: Element | None, tag: str) -> Element | None:
        """The declaration of a child of that name; None: a wildcard's, without a declaration."""
        known = self._known.get(("element", tag))
        kind = None if above is None else self._known.type_of(above)
        if kind is None:
            return known
        content = self._content(kind)
        found = content.declared.get(tag)
        is_any = content.takes_any(tag)
        if tag in content.declared and found is None:
            raise UnclearError
        if known is not None and (is_any or known.get("substitutionGroup") is not None):
            if found is None or _agree(found, known):
                return found if found is not None else known
        elif is_any and found is None:
            return None
        elif found is not None and not is_any:
            return found
        raise UnclearError  # one of that name may be this, and the next one that or anything

    def _content_of(self, kind: Element) -> ElementContent:
        """The content model of a complex type."""
        content = ElementContent()
        self._collect(kind, content, set(), MAX_DEPTH)
        return content

    def _collect(self, part: Element, content: ElementContent, seen: set[Element], depth: int) -> None:
        """Add what a part of a content model holds, but for what definitions in `seen` have in it. Raises
        UnclearError if something is not understood."""
        if not depth:
            raise UnclearError
        if part in seen:
            return  # a group may be used in two places
        seen.add(part)
        for child in part.iterchildren("*"):
            content.grow()
            if child.tag == f"{{{XSD}}}element":
                content.add(*self._known.declared(child, "element"))
            elif child.tag == f"{{{XSD}}}any":
                content.add_wildcard(child)
            elif child.tag in _GROUPS:
                self._collect(child, content, seen, depth - 1)
            elif child.tag == f"{{{XSD}}}group":
                group = self._known.find("group", clark(child, child.get("ref", "")))
                self._collect(group, content, seen, depth - 1)
            elif child.tag == f"{{{XSD}}}complexContent":
                self._collect_derived(child, content, seen, depth - 1)
            elif child.tag not in _IGNORED:
                raise UnclearError

    def _collect_derived(self, derivation: Element, content: ElementContent, seen: set[Element], depth: int) -> None:
        for step in derivation.iterchildren(f"{{{XSD}}}extension", f"{{{XSD}}}restriction"):
            self._collect(step, content, seen, depth)
            if step.tag == f"{{{XSD}}}extension":
                base = self._known.definition(clark(step, step.get("base", "")))  # anyType is none
                self._collect(base, content, seen, depth)

    def _places_of(self, declaration: Element | None) -> tuple[Particle, frozenset[str] | None, bool]:
        """The content model of an element, the names that have a place there (None: some have several), and whether
        others may come."""
        model = _anything(self._names) if declaration is None else self._model_of(declaration)
        names = model.names if len(model.names) == len(model.tags()) else None
        return model, names, _takes_others(model)

    def _model_of(self, declaration: Element) -> Particle:
        """The content model of an element of complex type. Raises UnclearError."""
        if declaration.get("fixed") is not None or declaration.get("default") is not None:
            raise UnclearError
        kind = self._known.type_of(declaration)
        if kind is None:
            return ANY
        if kind.tag != f"{{{XSD}}}complexType":
            raise UnclearError
        self._content(kind)  # so many particles, and no more
        return self._model_of_type(kind, MAX_DEPTH)

    def _model_of_type(self, kind: Element, depth: int) -> Particle:
        if not depth:
            raise UnclearError
        parts: list[Particle] = []
        for child in kind.iterchildren("*"):
            if child.tag == f"{{{XSD}}}complexContent":
                parts += [self._model_of_derived(step, depth - 1) for step in child.iterchildren("*")]
            elif child.tag not in _IGNORED:
                parts.append(self._model_of_part(child, depth - 1, is_once=True))
        return parts[0] if len(parts) == 1 else Particle("sequence", parts=tuple(parts))

    def _model_of_derived(self, step: Element, depth: int) -> Particle:
        """Model of an extension with its base, or a restriction's own."""
        own = self._model_of_type(step, depth)
        if step.tag == f"{{{XSD}}}restriction":
            return own
        if step.tag != f"{{{XSD}}}extension":
            raise UnclearError
        base = self._model_of_type(self._known.definition(clark(step, step.get("base", ""))), depth)
        return Particle("sequence", parts=(base, own))

    def _model_of_part(self, part: Element, depth: int, *, is_once: bool) -> Particle:
        """One particle; `is_once`: what holds it comes once."""
        if not depth:
            raise UnclearError
        least, most = _occurs(part)
        if part.tag == f"{{{XSD}}}element" and (is_once or (least <= 1 and most in (1, None))):
            return Particle("element", least, most, self._known.declared(part, "element")[0])
        if part.tag == f"{{{XSD}}}any" and is_once and (least, most) == (ANY.least, ANY.most):
            return _wildcard(part, self._names)
        if least > 1 or most not in (1, None):
            raise UnclearError  # counts within counts
        is_once = is_once and (least, most) == (1, 1)
        if part.tag == f"{{{XSD}}}group":
            inside = _particles(self._known.find("group", clark(part, part.get("ref", ""))))
            if len(inside) != 1:
                raise UnclearError
            return Particle("sequence", least, most, "", (self._model_of_part(inside[0], depth - 1, is_once=is_once),))
        kind = {f"{{{XSD}}}sequence": "sequence", f"{{{XSD}}}choice": "choice"}.get(str(part.tag))
        if kind is None:
            raise UnclearError
        is_once = is_once and kind == "sequence"
        parts = tuple(self._model_of_part(each, depth - 1, is_once=is_once) for each in _particles(part))
        return Particle(kind, least, most, "", parts)

    def _attribute_of(self, kind: Element, name: str) -> Texts | None:
        declaration = self._declared(kind, name, MAX_DEPTH)
        if declaration is None:
            return None
        said = declaration.get
        form = said("form", declaration.getroottree().getroot().get("attributeFormDefault", "unqualified"))
        is_plain = form == "unqualified" and said("use", "optional") in ("optional", "required")
        if not is_plain or said("fixed") is not None or said("default") is not None:
            return None
        named = said("type")
        if named is not None:
            return self._of_type(declaration, named, (), MAX_DEPTH)
        inside = next(declaration.iterchildren(f"{{{XSD}}}simpleType"), None)
        return ANY_TEXT if inside is None else self._of_definition(inside, (), MAX_DEPTH)

    def _declared(self, part: Element, name: str, depth: int) -> Element | None:
        """The declaration of an attribute in a type, or in a part of one."""
        if not depth or part.tag == f"{{{XSD}}}simpleType":
            raise UnclearError
        for names, child in self._segments(part):
            if name in names:
                return names[name]
            if child is None:
                continue
            local = str(child.tag).rpartition("}")[2]
            if local in ("attribute", "anyAttribute", "restriction"):
                raise UnclearError
            inside: Element | None = None
            if local in ("simpleContent", "complexContent", "extension"):
                inside = child
            elif local == "attributeGroup":
                inside = self._known.find("attributeGroup", clark(child, child.get("ref", "")))
            found = None if inside is None else self._declared(inside, name, depth - 1)
            if found is not None:
                return found
        if part.tag == f"{{{XSD}}}extension":
            base = clark(part, part.get("base", ""))
            if not base.startswith(BUILT_IN):
                return self._declared(self._known.definition(base), name, depth - 1)
        return None

    def _segments_of(self, part: Element) -> list[tuple[dict[str, Element], Element | None]]:
        """Contents of a type, or a part of one, in order: attributes declared there by name, and what comes behind them
        that has to be looked into, or is not clear."""
        segments: list[tuple[dict[str, Element], Element | None]] = []
        names: dict[str, Element] = {}
        for child in part.iterchildren("*"):
            if child.tag == f"{{{XSD}}}attribute" and child.get("ref") is None:
                names.setdefault(child.get("name", ""), child)
            else:
                segments.append((names, child))
                names = {}
        return [*segments, (names, None)]

    # -- simple types -------------------------------------------------------------------------------------------

    def _of_element(self, declaration: Element) -> Texts | None:
        if declaration.get("fixed") is not None or declaration.get("default") is not None:
            return None
        named = declaration.get("type")
        if named is not None and clark(declaration, named).startswith(BUILT_IN):
            return self._of_type(declaration, named, (), MAX_DEPTH)
        kind = self._known.type_of(declaration)
        return ANY_TEXT if kind is None else self._of_definition(kind, (), MAX_DEPTH)

    def _of_type(self, place: Element, name: str, facets: Facets, depth: int) -> Texts | None:
        """Texts of the type called `name` at `place`, under the facets of types derived from it."""
        found = clark(place, name)
        if found.startswith(BUILT_IN):
            return builtin_texts(found.removeprefix(BUILT_IN), facets)
        return self._of_definition(self._known.definition(found), facets, depth)

    def _of_definition(self, kind: Element, facets: Facets, depth: int) -> Texts | None:
        if not depth:
            raise UnclearError
        if kind.tag == f"{{{XSD}}}complexType":
            steps = list(kind.iterchildren(f"{{{XSD}}}simpleContent"))
            extensions = [e for step in steps for e in step.iterchildren(f"{{{XSD}}}extension")]
            if len(extensions) != 1:
                return None  # element-only, empty, mixed or restricted: not looked at
            return self._of_type(extensions[0], extensions[0].get("base", ""), facets, depth - 1)
        restriction = next(kind.iterchildren(f"{{{XSD}}}restriction"), None)
        if restriction is None:
            return None  # a list or union
        inside: Element | None = None
        own: dict[str, list[str]] = {}
        room = MAX_FACETS - sum(len(values) for above in facets for values in above.values())
        for count, part in enumerate(restriction.iterchildren("*")):
            if count > room:
                raise UnclearError
            name = str(part.tag).rpartition("}")[2]
            if name == "simpleType":
                inside = part
            elif name not in ("annotation", "whiteSpace"):
                own.setdefault(name, []).append(part.get("value", ""))
        if inside is not None:
            return self._of_definition(inside, (*facets, own), depth - 1)
        return self._of_type(restriction, restriction.get("base", ""), (*facets, own), depth - 1)


def _anything(declared: frozenset[str]) -> Particle:
    """Content of an element without a declaration."""
    return Particle("any", 0, None, wildcard=Wildcard(lambda _: True, declared, mixed=True))


def _wildcard(part: Element, declared: frozenset[str]) -> Particle:
    """One that takes any number of elements; of `declared` names none that may come unseen."""
    if part.get("processContents", "").strip() not in ("lax", "skip"):
        return ANY
    content = ElementContent()
    content.add_wildcard(part)
    return Particle("any", 0, None, wildcard=Wildcard(content.takes_any, declared))


def target_of(schema: Element) -> str:
    """The target namespace of a schema document, as names in Clark notation begin with it."""
    space = schema.get("targetNamespace", "")
    return f"{{{space}}}" if space else ""


def _are_all_read(documents: Mapping[str, Element], main: str) -> bool:
    """Whether libxml2 has read all documents: links lead to each, and to one only from outside of its namespace (of
    several it takes the first that it meets)."""
    entrances, reached = {main}, [main]
    for name in reached:
        for link in documents[name].iterchildren(*_LINKS):
            target = link.get("schemaLocation", "")
            if target in documents:
                entrances.update([target] if link.tag == f"{{{XSD}}}import" else ())
                reached.extend([target] if target not in reached else ())
    return len(reached) == len(documents) and len({target_of(documents[name]) for name in entrances}) == len(entrances)


def _particles(part: Element) -> list[Element]:
    return [each for each in part.iterchildren("*") if each.tag not in _IGNORED]


def _has_identities(root: Element) -> bool:
    """Whether a type is used whose values must be there once in a document, or be declared in it."""
    words = (word for part in root.iter("*") for name in _TYPE_NAMES for word in part.get(name, "").split())
    return any(word.rpartition(":")[2] in _IDENTITIES for word in words)


def _takes_others(model: Particle) -> bool:
    """Whether elements of any other name may come; with several places for them it is not clear where."""
    if model.kind == "any":
        return True
    count = sum(map(_takes_others, model.parts))
    if count > 1:
        raise UnclearError
    return count == 1


def _occurs(part: Element) -> tuple[int, int | None]:
    """Least and most times that a particle may come."""
    least, most = counted(part.get("minOccurs", "1")), part.get("maxOccurs", "1").strip()
    if most == "unbounded":
        return least, None
    if counted(most) < max(1, least):
        raise UnclearError
    return least, counted(most)


def has_chameleons(roots: Sequence[Element]) -> bool:
    """Whether a document without a namespace may be included into one with a namespace."""
    return len({target_of(root) for root in roots}) > 1 and any(not target_of(root) for root in roots)


def _agree(one: Element, other: Element) -> bool:
    """Whether two declarations say the same of an element's text and content."""
    if one is other:
        return True
    named = one.get("type"), other.get("type")
    if named[0] is None or named[1] is None or clark(one, named[0]) != clark(other, named[1]):
        return False
    return all(one.get(name) is None and other.get(name) is None for name in ("default", "fixed"))


def clark(place: Element, name: str) -> str:
    """Clark name of a QName at `place`; "" for none. Raises UnclearError."""
    prefix, _, local = name.strip().rpartition(":")
    space = place.nsmap.get(prefix or None, "")
    if prefix and not space:
        raise UnclearError
    return f"{{{space}}}{local}" if space and name else local
