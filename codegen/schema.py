"""From a schema bundle to a draft of the model: the only module that knows xmlschema.

Rules:
- Documents go through a private folder under names of our own; xmlschema works there in its sandbox, without fall-back
  locations, and fetches nothing.
- Only the invariant part is walked. Of a variant element the name is noted, what lies below it is never looked at.
- Cardinality counts the enclosing groups: an element is repeated if its parent can hold two of it (XML Schema part 1,
  section 3.8: a sequence adds, a choice takes the larger, maxOccurs multiplies).
- A wildcard (xs:any, xs:anyAttribute) and the text of mixed content are variant. An invariant element without a type
  is refused: there would be nothing to compare.
"""

from __future__ import annotations

import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import xmlschema
from lxml import etree
from xmlschema.exceptions import XMLSchemaWarning
from xmlschema.validators import (
    XsdAnyElement,
    XsdAtomicBuiltin,
    XsdAttribute,
    XsdComplexType,
    XsdElement,
    XsdGroup,
    XsdList,
    XsdSimpleType,
    XsdUnion,
)

from jbi_pubsub.codegen.bundle import PLACE, XML, Sources, normalize, read_bundle
from jbi_pubsub.codegen.marks import HOW_TO_MARK, JBI, VARIANCE, Coverage, Steps
from jbi_pubsub.codegen.model import TEXT, XSD, ValueType, readable, some
from jbi_pubsub.codegen.values import NotAValueError, canonical_text
from jbi_pubsub.core.errors import SchemaError
from jbi_pubsub.core.xml import Element

__all__ = [
    "MAX_CLASSES",
    "Draft",
    "Leaf",
    "PartDraft",
    "Shape",
    "normalize",
    "outline",
    "read_bundle",
    "read_schema",
    "validator",
]

MAX_CLASSES: Final = 1_000
"""Entry classes of one type. NewsML-G2, the largest schema looked at, reaches 109 complex types in all."""

MAX_FIELDS: Final = 10_000
"""Invariant leaves of one type; with MAX_CLASSES it bounds the work a schema can cause."""

Key = tuple[str, ...]

_ONE_LOAD: Final = threading.Lock()  # xmlschema shares its meta-schema and does not promise to be thread-safe
_FACETS: Final = {
    f"{{{XSD}}}{name}": name
    for name in (
        "minInclusive",
        "maxInclusive",
        "minExclusive",
        "maxExclusive",
        "length",
        "minLength",
        "maxLength",
        "totalDigits",
        "fractionDigits",
    )
}


@dataclass
class Leaf:
    """An invariant leaf: a field before it has a name. `place` is "document:line"."""

    tag: str
    type: ValueType
    documentation: str
    default: str | None
    place: str


@dataclass
class Shape:
    """An entry class before it has a name. `key` is ("element", path...), ("type", name) or ("typed", name, path...).

    `declared` is the key that a class for the element's own named type would have.
    """

    key: Key
    path: Steps
    place: str
    documentation: str
    parent: Key | None = None
    declared: Key | None = None
    leaves: list[Leaf] = field(default_factory=list)


@dataclass
class PartDraft:
    """A `model.Part` whose entry is still a key."""

    tag: str
    key: Key
    repeated: bool = False
    simple: bool = False
    parts: list[PartDraft] = field(default_factory=list)
    again: list[tuple[str, int]] = field(default_factory=list)
    variant: list[str] = field(default_factory=list)
    is_open: bool = False
    typed: dict[str, PartDraft] = field(default_factory=dict)


@dataclass
class Draft:
    """What the passes turn into a TypeModel. `marker` is the type name that the schema itself gives, "" for none."""

    root: PartDraft
    shapes: dict[Key, Shape]
    prefixes: dict[str, str]
    marker: str
    documentation: str


def read_schema(sources: Sources) -> Draft:
    """The draft of the type that `sources` describe; `validator` has accepted them.

    Raises SchemaError: invalid schema, no marks, no or several document elements, marks that name nothing, an
    invariant element without a type, too many classes.
    """
    schema = _load(sources)
    root = _document_element(schema, sources)
    marks = sources.marks
    if not (sources.marked or marks.has_paths or marks.root):
        raise SchemaError(f"schema {_name(sources)} does not say what is invariant", hint=HOW_TO_MARK)
    prefixes = _prefixes(sources)
    walk = _Walk(schema, Coverage(marks, prefixes), prefixes)
    part = walk.element(root, (), repeated=False, above=[])
    walk.coverage.all_used(part.tag, walk.tags)
    return Draft(part, walk.shapes, prefixes, _marker(root), _documentation(root) or _first_text(schema.annotations))


def validator(sources: Sources) -> etree.XMLSchema:
    """The compiled schema by which libxml2 validates documents, checked as a whole.

    Raises SchemaError with document and line; by xmlschema's words where it objects, too, since its places are exact.
    """
    with tempfile.TemporaryDirectory(prefix="jbi-schema-") as folder:
        _write(sources, Path(folder))
        parser = etree.XMLParser(no_network=True, resolve_entities=False, load_dtd=False)
        try:
            return etree.XMLSchema(etree.parse(str(Path(folder) / sources.main), parser))
        except etree.XMLSchemaParseError as exc:
            entry = exc.error_log.last_error
            where = Path(entry.filename or "").name if entry else ""
            document, line = sources.names.get(where, where), entry.line if entry else 0
            reason = (entry.message if entry else str(exc)).rstrip(". ")
            _load(sources)
            raise SchemaError(
                f"schema {_name(sources)} is invalid at {document} line {line}: {reason}",
                hint="Check it with an XML Schema 1.0 validator",
                document=document,
                line=line,
            ) from exc


def outline(sources: Sources, *, limit: int = 1_000) -> tuple[str, dict[str, str], tuple[Steps, ...]]:
    """(document element, prefixes by namespace, paths of its children) for drafting marks. Raises SchemaError."""
    schema = _load(sources)
    root = _document_element(schema, sources)
    if not isinstance(root.type, XsdComplexType):
        return root.name, _prefixes(sources), ()
    children = list(_content(root.type).children)[:limit]
    return root.name, _prefixes(sources), tuple((root.name, tag) for tag in children if _is_marker_tag(tag) is False)


def _load(sources: Sources) -> xmlschema.XMLSchema10:
    with tempfile.TemporaryDirectory(prefix="jbi-schema-") as folder, _ONE_LOAD, warnings.catch_warnings():
        # It warns where it gives up a check of content models (deep extension): libxml2 has made that check.
        warnings.simplefilter("ignore", category=XMLSchemaWarning)
        _write(sources, Path(folder), whole=False)
        try:
            return xmlschema.XMLSchema10(
                str(Path(folder) / sources.main),
                base_url=folder,
                allow="sandbox",
                defuse="always",
                use_fallback=False,
            )
        except xmlschema.XMLSchemaParseError as exc:
            place = exc.elem.get(PLACE, "") if exc.elem is not None else ""
            raise SchemaError(
                f"schema {_name(sources)} is invalid{' at ' + place if place else ''}: {exc.message}",
                hint="Check it with an XML Schema 1.0 validator",
                place=place,
                reason=exc.message,
            ) from exc
        except (xmlschema.XMLSchemaException, OSError, RecursionError, ArithmeticError, ValueError) as exc:
            # the last two are Python's of values that it has no room for, such as years of ten digits
            raise SchemaError(
                f"schema {_name(sources)} can't be used: {exc}", hint="Check it with an XML Schema 1.0 validator"
            ) from exc


def _write(sources: Sources, folder: Path, *, whole: bool = True) -> None:
    """The documents as files, whole, or (for xmlschema) without what the model does not need.

    That is the inside of elements marked variant, so that work grows with the invariant part; identity constraints;
    and patterns: xmlschema would run a publisher's patterns on the publisher's defaults and enumerations in Python's
    backtracking engine. libxml2 checks all three.
    """
    for name, root in sources.documents.items():
        shown = root if whole else _pruned(deepcopy(root), sources)
        lines_before = b"\n" * ((root.sourceline or 1) - 1)  # libxml2 reports places by line
        (folder / name).write_bytes(lines_before + etree.tostring(shown, encoding="UTF-8", with_tail=False))


def _pruned(root: Element, sources: Sources) -> Element:
    if not sources.marks.has_paths:  # a marks file with paths replaces the marks in the schema
        for element in list(root.iter(f"{{{XSD}}}element")):
            if element.get(VARIANCE) == "variant" and element.get("ref") is None and element.getparent() is not root:
                for child in list(element):
                    element.remove(child)
                for name in ("type", "default", "fixed"):
                    element.attrib.pop(name, None)
    for part in list(root.iter(*(f"{{{XSD}}}{name}" for name in ("pattern", "key", "keyref", "unique")))):
        above = part.getparent()
        if above is not None:
            above.remove(part)
    return root


def _name(sources: Sources) -> str:
    return sources.names[sources.main]


def _prefixes(sources: Sources) -> dict[str, str]:
    """Namespace to prefix: the marks file's, then the main document's; the default namespace gets none."""
    found = {uri: prefix for prefix, uri in sources.marks.namespaces.items()}
    for prefix, uri in sources.documents[sources.main].nsmap.items():
        if prefix and uri not in (XSD, JBI):
            found.setdefault(uri, prefix)
    found.setdefault(XML, "xml")
    return found


def _document_element(schema: xmlschema.XMLSchema10, sources: Sources) -> XsdElement:
    wanted = sources.marks.root
    known = {e.name: e for e in schema.maps.elements.values() if not e.name.startswith(f"{{{XSD}}}")}
    if wanted:
        prefix, _, local = wanted.rpartition(":") if not wanted.startswith("{") else ("", "", wanted)
        uri = sources.marks.namespaces.get(prefix, "") if prefix else ""
        names = (f"{{{uri}}}{local}",) if prefix else (local, f"{{{schema.target_namespace}}}{local}")
        for name in names:
            if name in known:
                return known[name]
        raise SchemaError(
            f"schema {_name(sources)} has no element {wanted} to be the document element",
            hint=f"It declares {some(known)}",
        )
    referred = {ref for root in sources.documents.values() for e in root.iter(f"{{{XSD}}}element") if (ref := _ref(e))}
    own = [e for e in schema.elements.values() if not e.abstract]
    candidates = own if len(own) == 1 else [e for e in own if e.name not in referred and e.substitution_group is None]
    if len(candidates) != 1:
        raise SchemaError(
            f"schema {_name(sources)} has {len(candidates)} elements that could be the document element",
            hint=f"Name one as root (marks file, or --root): {some(e.name for e in own)}",
        )
    return candidates[0]


def _ref(declaration: Any) -> str:
    prefix, _, local = declaration.get("ref", "").rpartition(":")
    uri = declaration.nsmap.get(prefix or None, "")
    return f"{{{uri}}}{local}" if uri else local


def _is_marker_tag(tag: str) -> bool:
    return "." in tag.rpartition("}")[2]


def _marker(root: XsdElement) -> str:
    """The first declared child if it is a type marker: empty, without attributes, a dot in its local name."""
    if not isinstance(root.type, XsdComplexType) or root.type.has_simple_content():
        return ""
    first = next(iter(_content(root.type).children.items()), None)
    if first is None or not _is_marker_tag(first[0]):
        return ""
    kind = first[1].xsd.type
    empty = isinstance(kind, XsdComplexType) and kind.is_empty() and not len(kind.attributes)
    return first[0].rpartition("}")[2] if empty else ""


@dataclass
class _Child:
    xsd: XsdElement
    count: int
    mark: str


@dataclass
class _Content:
    children: dict[str, _Child]
    is_open: bool


def _content(kind: XsdComplexType) -> _Content:
    """The child elements that `kind` allows directly, in order, with how many there can be (2 stands for more)."""
    if kind.has_simple_content() or not isinstance(kind.content, XsdGroup):
        return _Content({}, is_open=False)
    return _group(kind.content, "")


def _group(group: XsdGroup, mark: str) -> _Content:
    mark = group.elem.get(VARIANCE, mark) if group.elem is not None else mark
    found = _Content({}, is_open=False)
    for particle in group:
        if isinstance(particle, XsdAnyElement):
            found.is_open = True
        elif isinstance(particle, XsdGroup):
            inner = _group(particle, mark)
            found.is_open = found.is_open or inner.is_open
            for tag, child in inner.children.items():
                _add(found, tag, child, is_choice=group.model == "choice")
        elif particle.max_occurs != 0:
            for xsd in _members(particle):
                child = _Child(xsd, 1 if particle.max_occurs == 1 else 2, _mark(particle, xsd, mark))
                _add(found, xsd.name, child, is_choice=group.model == "choice")
    if group.max_occurs == 0:
        return _Content({}, is_open=False)
    if group.max_occurs != 1:
        for child in found.children.values():
            child.count = 2
    return found


def _add(content: _Content, tag: str, child: _Child, *, is_choice: bool) -> None:
    known = content.children.get(tag)
    if known is None:
        content.children[tag] = child
        return
    if known.mark != child.mark and "variant" in (known.mark, child.mark):
        raise SchemaError(
            f"{tag} is variant at one place of its parent and not at another",
            hint=f"Mark both alike: {_place(known.xsd)}, {_place(child.xsd)}",
        )
    known.count = min(2, max(known.count, child.count) if is_choice else known.count + child.count)


def _members(particle: XsdElement) -> Iterator[XsdElement]:
    """The declarations that can stand for `particle`: itself, and those of its substitution group by name."""
    declared = particle.ref if particle.ref is not None else particle
    if not declared.abstract:
        yield particle
    if particle.ref is not None:
        members = {m.name: m for m in declared.iter_substitutes() if not m.abstract and m.name != declared.name}
        yield from (members[name] for name in sorted(members))


def _mark(particle: XsdElement, xsd: XsdElement, outer: str) -> str:
    for declaration in (particle.elem, xsd.elem, xsd.ref.elem if xsd.ref is not None else None):
        if declaration is not None and declaration.get(VARIANCE):
            return str(declaration.get(VARIANCE))
    return outer


def _place(component: Any) -> str:
    return component.elem.get(PLACE, "") if component.elem is not None else ""


def _documentation(*components: Any) -> str:
    """The xs:documentation of the first component that has any, paragraphs kept."""
    parts = (part for component in components for part in (component, getattr(component, "ref", None)))
    return _first_text(getattr(part, "annotation", None) for part in parts)


def _first_text(annotations: Iterable[Any]) -> str:
    for annotation in annotations:
        if annotation is not None:
            texts = ["".join(node.itertext()).strip() for node in annotation.documentation]
            if any(texts):
                return "\n\n".join(text for text in texts if text)
    return ""


class _Walk:
    """One walk over the invariant part. `shapes` come out in document order, parents before children."""

    def __init__(self, schema: xmlschema.XMLSchema10, coverage: Coverage, prefixes: Mapping[str, str]) -> None:
        self.coverage = coverage
        self.shapes: dict[Key, Shape] = {}
        self.tags: set[str] = set()
        self._prefixes = prefixes
        self._fields = 0
        self._contents: dict[int, _Content] = {}
        self._repeats: dict[int, frozenset[str]] = {}
        self._derived: dict[int, list[XsdComplexType]] = {}
        for name in sorted(schema.maps.types):
            kind = schema.maps.types[name]
            if isinstance(kind, XsdComplexType) and isinstance(kind.base_type, XsdComplexType) and kind.name:
                self._derived.setdefault(id(kind.base_type), []).append(kind)

    def element(
        self, xsd: XsdElement, above_path: Steps, *, repeated: bool, above: list[tuple[str, int]], mark: str = ""
    ) -> PartDraft:
        """The part for `xsd`, a complex element, or a simple one that repeats (or is the document element)."""
        path = (*above_path, xsd.name)
        cover = self.coverage.of(path, mark)
        key = ("element", *path)
        part = PartDraft(xsd.name, key, repeated=repeated)
        self.tags.add(xsd.name)
        shape = self._shape(key, path, xsd, xsd.type)
        if not isinstance(xsd.type, XsdComplexType):
            part.simple = True
            shape.leaves.append(self._leaf(TEXT, xsd, xsd.type, path))
            return part
        plain = cover == "all" and self.coverage.is_plain(path)
        inherited = self._bases(xsd.type, shape, path) if plain else set()
        if plain and xsd.type.name:
            shape.declared = ("type", xsd.type.name)
        above = [*above, (xsd.name, id(xsd.type))]
        self._fill(part, shape, xsd.type, path, cover, inherited, above)
        if plain:
            self._typed(part, xsd, path, above, inherited | {leaf.tag for leaf in shape.leaves})
        return part

    def _shape(self, key: Key, path: Steps, component: Any, kind: Any, parent: Key | None = None) -> Shape:
        if len(self.shapes) >= MAX_CLASSES:
            raise SchemaError(
                f"the invariant part has more than {MAX_CLASSES} entry classes",
                hint="Mark what changes as variant, or name in a marks file the few paths that do not",
            )
        shape = Shape(key, path, _place(component), _documentation(component, kind), parent)
        self.shapes[key] = shape
        return shape

    def _bases(self, kind: XsdComplexType, shape: Shape, path: Steps) -> set[str]:
        """Shapes for the extension bases of `kind`, outermost first; `shape` goes below the last. Their tags."""
        inherited: set[str] = set()
        parent: Key | None = None
        for base in reversed(list(_extended(kind))):
            key = ("type", str(base.name))
            if key not in self.shapes:
                base_shape = self._shape(key, (), base, None, parent)
                base_shape.leaves = [leaf for leaf in self._leaves(base, path) if leaf.tag not in inherited]
                self.shapes[shape.key] = self.shapes.pop(shape.key)  # bases come before what extends them
            inherited |= {leaf.tag for leaf in self.shapes[key].leaves}
            parent = key
        shape.parent = parent
        return inherited

    def _typed(
        self, part: PartDraft, xsd: XsdElement, path: Steps, above: list[tuple[str, int]], inherited: set[str]
    ) -> None:
        """Parts for the named types that an xsi:type may put in place of the declared one."""
        waiting = [(kind, part.key, inherited) for kind in self._derived.get(id(xsd.type), ())]
        while waiting:
            kind, parent, known = waiting.pop(0)
            key = parent
            if kind.derivation == "extension":
                key = ("typed", str(kind.name), *path)
                shape = self._shape(key, path, kind, None, parent)
            else:
                shape = Shape(key, path, "", "")  # a restriction has no fields of its own
            typed = PartDraft(xsd.name, key, repeated=part.repeated)
            self._fill(typed, shape, kind, path, "all", known, above)
            part.typed[str(kind.name)] = typed
            known = known | {leaf.tag for leaf in shape.leaves}
            waiting.extend((further, key, known) for further in self._derived.get(id(kind), ()))

    def _fill(
        self,
        part: PartDraft,
        shape: Shape,
        kind: XsdComplexType,
        path: Steps,
        cover: str,
        inherited: set[str],
        above: list[tuple[str, int]],
    ) -> None:
        if cover == "all" and kind.name == f"{{{XSD}}}anyType":
            raise SchemaError(
                f"{self._readable(path)} at {shape.place} is invariant but has no type",
                hint="Give it a type, or mark it variant",
                path=self._readable(path),
            )
        content = self._of(kind)
        part.is_open = content.is_open or kind.mixed
        repeats = self._repeated(kind)
        if cover == "all" and kind.has_simple_content():
            self._keep(shape, inherited, TEXT, lambda: self._leaf(TEXT, kind, kind.content, path))
        for tag, child in content.children.items():
            self._child(part, shape, child, (*path, tag), inherited, above, repeated=tag in repeats)
        self._attributes(part, shape, kind, path, cover, inherited)

    def _child(
        self,
        part: PartDraft,
        shape: Shape,
        child: _Child,
        path: Steps,
        inherited: set[str],
        above: list[tuple[str, int]],
        *,
        repeated: bool,
    ) -> None:
        xsd, tag = child.xsd, path[-1]
        self.tags.add(tag)
        cover = self.coverage.of(path, child.mark)
        leaf_type = _leaf_type(xsd.type)
        if cover == "none":
            part.variant.append(tag)
        elif leaf_type is not None and not repeated:
            if cover == "all":
                self._keep(shape, inherited, tag, lambda: self._leaf(tag, xsd, leaf_type, path))
        elif (tag, id(xsd.type)) in above:
            part.again.append((tag, len(above) - 1 - above.index((tag, id(xsd.type)))))
        else:
            part.parts.append(self.element(xsd, path[:-1], repeated=repeated, above=above, mark=child.mark))

    def _attributes(
        self, part: PartDraft, shape: Shape, kind: XsdComplexType, path: Steps, cover: str, inherited: set[str]
    ) -> None:
        for name, attribute in kind.attributes.items():
            if not isinstance(attribute, XsdAttribute) or name is None:
                part.is_open = True
                continue
            tag = f"@{name}"
            if attribute.use == "prohibited":
                continue
            covered = self.coverage.of((*path, tag), attribute.elem.get(VARIANCE, ""))
            if cover == "none" or covered != "all":
                part.variant.append(tag)
            else:
                self._keep(shape, inherited, tag, partial(self._leaf, tag, attribute, attribute.type, (*path, tag)))

    def _keep(self, shape: Shape, inherited: set[str], tag: str, make: Callable[[], Leaf]) -> None:
        if tag not in inherited:
            shape.leaves.append(make())

    def _leaves(self, kind: XsdComplexType, path: Steps) -> list[Leaf]:
        """The leaves of a type's own content; elements marked variant are left out."""
        part, shape = PartDraft("", ()), Shape((), path, "", "")
        repeats = self._repeated(kind)
        if kind.has_simple_content():
            shape.leaves.append(self._leaf(TEXT, kind, kind.content, path))
        for tag, child in self._of(kind).children.items():
            leaf_type = _leaf_type(child.xsd.type)
            if leaf_type is not None and tag not in repeats and self.coverage.of((*path, tag), child.mark) == "all":
                shape.leaves.append(self._leaf(tag, child.xsd, leaf_type, (*path, tag)))
        self._attributes(part, shape, kind, path, "all", set())
        return shape.leaves

    def _leaf(self, tag: str, component: Any, kind: Any, path: Steps) -> Leaf:
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise SchemaError(f"the invariant part has more than {MAX_FIELDS} leaves", hint="Mark more as variant")
        if kind is None or kind.name == f"{{{XSD}}}anyType":
            raise SchemaError(
                f"{self._readable(path)} at {_place(component)} is invariant but has no type",
                hint="Give it a type, or mark it variant",
                path=self._readable(path),
            )
        documentation = "" if tag == TEXT else _documentation(component, kind)
        default = None
        if isinstance(component, XsdElement | XsdAttribute):
            default = component.default if component.default is not None else component.fixed
        return Leaf(tag, value_type(kind), documentation, default, _place(component))

    def _of(self, kind: XsdComplexType) -> _Content:
        if id(kind) not in self._contents:
            self._contents[id(kind)] = _content(kind)
        return self._contents[id(kind)]

    def _repeated(self, kind: XsdComplexType) -> frozenset[str]:
        """Tags that some type of the family (all that derive from the outermost base) can hold twice.

        So a field of a base class is a field in every class below it.
        """
        if id(kind) in self._repeats:
            return self._repeats[id(kind)]
        top = kind
        while isinstance(top.base_type, XsdComplexType) and top.base_type.name != f"{{{XSD}}}anyType":
            top = top.base_type
        found: set[str] = set()
        family = [top, kind]
        for member in family:
            found |= {tag for tag, child in self._of(member).children.items() if child.count > 1}
            if len(family) < MAX_CLASSES:
                family.extend(self._derived.get(id(member), ()))
        self._repeats[id(kind)] = frozenset(found)
        return self._repeats[id(kind)]

    def _readable(self, path: Steps) -> str:
        return "/" + "/".join(readable(tag, self._prefixes) for tag in path)


def _extended(kind: XsdComplexType) -> Iterator[XsdComplexType]:
    """The complex types that `kind` extends, nearest first. A redefinition is its original under one name."""
    while isinstance(kind.base_type, XsdComplexType) and kind.base_type.name != f"{{{XSD}}}anyType":
        base = kind.base_type
        if kind.derivation == "extension" and base.name and base.name != kind.name:
            yield base
        kind = base


def _leaf_type(kind: Any) -> XsdSimpleType | None:
    """The simple type of a leaf element: simple, or simple content without attributes."""
    if isinstance(kind, XsdSimpleType):
        return kind
    if isinstance(kind, XsdComplexType) and kind.has_simple_content() and not len(kind.attributes):
        return kind.content if isinstance(kind.content, XsdSimpleType) else None
    return None


def value_type(kind: XsdSimpleType) -> ValueType:
    """What canonicalising needs of an XSD simple type."""
    facets: list[tuple[str, str]] = []
    enumeration: list[Any] | None = None
    at: Any = kind
    while not isinstance(at, XsdAtomicBuiltin | XsdList | XsdUnion) and at.base_type is not None:
        for name, facet in at.facets.items():
            if name in _FACETS and getattr(facet, "value", None) is not None:
                facets.append((_FACETS[name], str(facet.value)))
            elif name == f"{{{XSD}}}enumeration" and enumeration is None:
                enumeration = list(facet.enumeration)
        at = at.base_type
    space = kind.white_space or "preserve"
    name = str(kind.prefixed_name) if kind.name else f"a restriction of {at.prefixed_name or 'a list or union'}"
    if isinstance(at, XsdList):
        found = ValueType(name, "list", "collapse", items=value_type(at.item_type), facets=tuple(facets))
    elif isinstance(at, XsdUnion):
        members = tuple(value_type(member) for member in at.member_types)
        found = ValueType(name, "union", "preserve", members=members, facets=tuple(facets))
    else:
        facets.extend(_bounds_of(at))
        found = ValueType(name, at.local_name, space, facets=tuple(facets))
    return _with_enumeration(found, enumeration)


def _bounds_of(builtin: XsdAtomicBuiltin) -> Iterator[tuple[str, str]]:
    at: Any = builtin
    while at is not None:
        for name, facet in at.facets.items():
            if name in _FACETS and isinstance(getattr(facet, "value", None), int):
                yield _FACETS[name], str(facet.value)
        at = at.base_type


def _with_enumeration(kind: ValueType, values: list[Any] | None) -> ValueType:
    if values is None:
        return kind
    try:
        canonical = tuple(dict.fromkeys(canonical_text(str(value), kind) for value in values))
    except NotAValueError:
        return kind  # xs:QName and the like, whose prefixes are not at hand: left to validation
    return ValueType(kind.name, kind.builtin, kind.space, kind.items, kind.members, canonical, kind.facets)
