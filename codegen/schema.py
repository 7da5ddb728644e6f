"""From a schema bundle to a draft of the model: the only module that knows xmlschema.

Rules:
- Documents are handed over in memory, under names of our own; nothing is written, opened or fetched.
- Only the invariant part is walked. Of a variant element the name is noted, what lies below it is never looked at.
- An element has a class of its own, by its path. Types that lead back to themselves have no end of paths: they have one
  class each, and the elements through which documents come to them from outside a subclass of it. Where the paths are
  more than can be held, each named type has one class.
- Cardinality counts the enclosing groups: an element is repeated if its parent can hold two of it (XML Schema part 1,
  section 3.8: a sequence adds, a choice takes the larger, maxOccurs multiplies).
- A wildcard (xs:any, xs:anyAttribute) and the text of mixed content are variant. An invariant element without a type
  is refused: there would be nothing to compare.
"""

from __future__ import annotations

import io
import threading
import urllib.request
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

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

from jbi_pubsub.codegen.bundle import PLACE, Sources, normalize, read_bundle
from jbi_pubsub.codegen.compiled import BASE
from jbi_pubsub.codegen.marks import HOW_TO_MARK, JBI, VARIANCE, Coverage, Steps
from jbi_pubsub.codegen.model import TEXT, XML, ValueType, one_line, readable, some
from jbi_pubsub.codegen.values import NotAValueError, canonical_text
from jbi_pubsub.core.errors import SchemaError
from jbi_pubsub.core.xml import XSD, Element

__all__ = [
    "MAX_CLASSES",
    "Draft",
    "Leaf",
    "Shape",
    "load",
    "normalize",
    "outline",
    "read_bundle",
    "read_schema",
    "written",
]

MAX_CLASSES: Final = 1_000
"""Entry classes of one type. NewsML-G2, the largest schema looked at, reaches 109 complex types in all."""

MAX_FIELDS: Final = 10_000
"""Invariant leaves of one type; with MAX_CLASSES it bounds the work a schema can cause."""

MAX_WEIGHT: Final = 100_000
"""Allowed values and member types of all leaves together; NIEM's longest list of codes has some 3,000."""

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


class Below(NamedTuple):
    """A child element that has a shape of its own."""

    key: Key
    repeated: bool
    default: str | None
    """Default of its text, where that is beside attributes."""


@dataclass
class Shape:
    """Content of documents at an element, and its entry class before it has a name.

    `key` is ("element", path...), ("type", name) or ("typed", name, path...). `declared` is the key that a class for
    the element's own named type would have. `reads` is the shape whose class its elements fill, if that is another (a
    restriction); `like` the shape whose content it has, if that is described there. `below` are child elements with
    shapes of their own, `variant` the names of variant children and "@attributes", `required` of those that have to be
    there, `typed` the shapes for an xsi:type.
    """

    key: Key
    path: Steps
    place: str
    documentation: str
    parent: Key | None = None
    declared: Key | None = None
    reads: Key | None = None
    like: Key | None = None
    leaves: list[Leaf] = field(default_factory=list)
    below: dict[str, Below] = field(default_factory=dict)
    variant: dict[str, None] = field(default_factory=dict)
    is_open: bool = False
    typed: dict[str, Key] = field(default_factory=dict)
    required: list[str] = field(default_factory=list)


@dataclass
class Draft:
    """Draft of a TypeModel, for the passes. `root` is the document element's name, `key` its shape; `marker` is the
    type name that the schema itself gives, "" for none; `has_none`: the marks file says that
    nothing is invariant."""

    root: str
    key: Key
    shapes: dict[Key, Shape]
    prefixes: dict[str, str]
    marker: str
    documentation: str
    has_none: bool = False


def read_schema(sources: Sources) -> Draft:
    """The draft of the type that `sources` describe; `validator` has accepted them.

    Raises SchemaError: invalid schema, no marks, no or several document elements, marks that name nothing, an
    invariant element without a type, too many classes.
    """
    schema = load(sources)
    root = _document_element(schema, sources)
    marks = sources.marks
    if not (sources.marked or marks.has_paths or marks.root):
        raise SchemaError(f"schema {_name(sources)} does not say what is invariant", hint=HOW_TO_MARK)
    prefixes = _prefixes(sources)
    try:
        walk = _Walk(schema, Coverage(marks, prefixes), prefixes, by_type=False)
        key = walk.run(root)
    except _TooManyError:
        walk = _Walk(schema, Coverage(marks, prefixes), prefixes, by_type=True)
        try:
            key = walk.run(root)
        except _TooManyError as exc:
            raise walk.too_many(exc) from None
    walk.coverage.all_used(root.name, walk.tags)
    documentation = _documentation(root) or _first_text(schema.annotations)
    return Draft(root.name, key, walk.shapes, prefixes, _marker(root), documentation, marks.invariant == ())


def outline(sources: Sources, *, limit: int = 1_000) -> tuple[str, dict[str, str], tuple[Steps, ...]]:
    """(document element, prefixes by namespace, paths of its children) for drafting marks. Raises SchemaError."""
    schema = load(sources, check=True)
    root = _document_element(schema, sources)
    if not isinstance(root.type, XsdComplexType):
        return root.name, _prefixes(sources), ()
    children = list(_content(root.type).children)[:limit]
    return root.name, _prefixes(sources), tuple((root.name, tag) for tag in children if _is_marker_tag(tag) is False)


def _may_be_absent(element: XsdElement) -> bool:
    return element.elem.get("minOccurs") == "0"


# Simple content that restricts a mixed type asks whether all in that may be absent. xmlschema (4.1) answers by what it
# reads of elements, and reads them later.
XsdElement.is_emptiable = _may_be_absent  # type: ignore[method-assign, assignment]  # said of all particles, meant of this


def load(sources: Sources, *, check: bool = False) -> xmlschema.XMLSchema10:
    """The schema as xmlschema reads it, but for what is variant. `check`: find what is wrong with it; libxml2 has done
    so otherwise, in a hundredth of the time. Raises SchemaError."""
    documents = {name: _written(_pruned(deepcopy(root), sources)) for name, root in sources.documents.items()}
    with _ONE_LOAD, warnings.catch_warnings():
        # It warns where it gives up a check of content models (deep extension): libxml2 has made that check.
        warnings.simplefilter("ignore", category=XMLSchemaWarning)
        try:
            return xmlschema.XMLSchema10(
                BASE + sources.main,
                validation="strict" if check else "skip",
                allow="remote",
                opener=_opener(documents),
                defuse="never",  # they are our own writing of parsed trees, in which no entity is left
                use_fallback=False,
            )
        except xmlschema.XMLSchemaParseError as exc:
            place = exc.elem.get(PLACE, "") if exc.elem is not None else ""
            reason = one_line(exc.message.partition("Schema component:")[0].rstrip(" :\n"))
            raise SchemaError(
                f"schema {_name(sources)} is invalid{' at ' + place if place else ''}: {reason}",
                hint="Check it with an XML Schema 1.0 validator",
                place=place,
                reason=reason,
            ) from exc
        except (xmlschema.XMLSchemaException, OSError, RecursionError, ArithmeticError, ValueError) as exc:
            # the last two are Python's of values that it has no room for, such as years of ten digits
            raise SchemaError(
                f"schema {_name(sources)} can't be used: {one_line(str(exc))}",
                hint="Check it with an XML Schema 1.0 validator",
            ) from exc


def _opener(documents: Mapping[str, bytes]) -> urllib.request.OpenerDirector:
    """Opens the documents by their names; it knows no other way to open anything."""

    class _InMemory(urllib.request.BaseHandler):
        def http_open(self, request: urllib.request.Request) -> io.BytesIO:
            name = request.full_url.removeprefix(BASE)
            if name not in documents:
                raise FileNotFoundError(f"{name} is not in the bundle")
            return io.BytesIO(documents[name])

    opener = urllib.request.OpenerDirector()
    opener.add_handler(_InMemory())
    return opener


def written(sources: Sources) -> dict[str, bytes]:
    """The documents whole, for `validator`."""
    return {name: _written(root) for name, root in sources.documents.items()}


def _written(root: Element) -> bytes:
    lines_before = b"\n" * ((root.sourceline or 1) - 1)  # libxml2 reports places by line
    return lines_before + etree.tostring(root, encoding="UTF-8", with_tail=False)


def _pruned(root: Element, sources: Sources) -> Element:
    """For xmlschema, without what the model does not need.

    That is the inside of elements marked variant, so that work grows with the invariant part; identity constraints;
    and patterns: xmlschema would run a publisher's patterns on the publisher's defaults and enumerations in Python's
    backtracking engine. libxml2 checks all three.
    """
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
    """Namespace to prefix: the marks file's, then the main document's, then those of the others; the default namespace
    gets none."""
    found = {uri: prefix for prefix, uri in sources.marks.namespaces.items()}
    used = set(found.values())
    for root in (sources.documents[sources.main], *sources.documents.values()):
        for prefix, uri in root.nsmap.items():
            if prefix and prefix not in used and uri not in (XSD, JBI) and uri not in found:
                found[uri] = prefix
                used.add(prefix)
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
    """The most; 2 stands for more."""
    mark: str
    is_required: bool = False


@dataclass
class _Content:
    children: dict[str, _Child]
    is_open: bool


def _content(kind: XsdComplexType) -> _Content:
    """The child elements that `kind` allows directly, in order, with how many there can be, and must."""
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
            members = list(_members(particle))
            for xsd in members:
                needed = particle.min_occurs > 0 and len(members) == 1
                child = _Child(xsd, 1 if particle.max_occurs == 1 else 2, _mark(particle, xsd, mark), needed)
                _add(found, xsd.name, child, is_choice=group.model == "choice")
    if group.max_occurs == 0:
        return _Content({}, is_open=False)
    for child in found.children.values():
        if group.max_occurs != 1:
            child.count = 2
        child.is_required = child.is_required and group.min_occurs > 0 and group.model != "choice"
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
    known.is_required = known.is_required or child.is_required
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


class _TooManyError(Exception):
    """Internal: more of something than one type may have; says of what."""


class _Walk:
    """One walk over the invariant part. `shapes` hold what was found."""

    def __init__(
        self, schema: xmlschema.XMLSchema10, coverage: Coverage, prefixes: Mapping[str, str], *, by_type: bool
    ) -> None:
        """`by_type`: one class for each named type, wherever it occurs."""
        self.coverage = coverage
        self.shapes: dict[Key, Shape] = {}
        self.tags: set[str] = set()
        self._prefixes = prefixes
        self._by_type = by_type
        self._values = ValueTypes()
        self._fields = 0
        self._weight = 0
        self._work: deque[Callable[[], None]] = deque()
        self._circular: set[int] = set()
        self._first: dict[int, Key] = {}
        self._kinds: dict[Key, int] = {}
        self._untyped: dict[str, str] = {}
        self._root: Any = None
        self._described: set[Key] = set()
        self._shared: set[Key] = set()
        self._contents: dict[int, _Content] = {}
        self._repeats: dict[int, frozenset[str]] = {}
        self._derived: dict[int, list[XsdComplexType]] = {}
        for name in sorted(schema.maps.types):
            kind = schema.maps.types[name]
            if isinstance(kind, XsdComplexType) and isinstance(kind.base_type, XsdComplexType) and kind.name:
                self._derived.setdefault(id(kind.base_type), []).append(kind)

    def run(self, root: XsdElement) -> Key:
        """Walk from the document element; the key of its shape. Raises _TooManyError."""
        path = (root.name,)
        self._root = root.type
        self.tags.add(root.name)
        if isinstance(root.type, XsdComplexType):
            self._circular = _circular(root.type, self._led_to)
        key = self._element(root, path, self.coverage.of(path, ""), inside=self._by_type)
        while self._work:
            self._work.popleft()()  # so the path that names a shared type is the shortest one
        if self._untyped:
            raise self._no_types()
        return key

    def too_many(self, what: _TooManyError) -> SchemaError:
        """The error that says where most of it lies."""
        counted = Counter(shape.path[:2] for shape in self.shapes.values())
        path = max(counted, key=lambda path: counted[path])
        most = f"; most of it is reached through {self._readable(path)}" if len(path) > 1 else ""
        return SchemaError(
            f"the invariant part has more than {what}{most}",
            hint="Mark what changes as variant, or name in a marks file the few paths that do not",
            **({"path": self._readable(path)} if most else {}),
        )

    def _element(self, xsd: XsdElement, path: Steps, cover: str, *, inside: bool) -> Key:
        """The key of the shape for `xsd`, a complex element, or a simple one that repeats (or is the document element).

        `inside` a type that occurs at any number of paths, so do all types.
        """
        kind = xsd.type
        if not isinstance(kind, XsdComplexType):
            return self._value(xsd, path, cover, inside=inside)
        plain = cover == "all" and self.coverage.is_plain(path)
        if plain and inside:
            return self._of_type(kind, path)
        if plain and id(kind) in self._circular:
            return self._of_type(kind, path) if id(kind) in self._derived else self._entrance(xsd, kind, path)
        key: Key = ("element", *path)
        while key in self.shapes:
            if self._kinds.get(key) == id(kind):
                return key  # a type in place of the declared one leads here as well
            key = (*key, "again")
        self._kinds[key] = id(kind)
        shape = self._add(Shape(key, path, _place(xsd), _documentation(xsd, kind)))
        skip = self._lineage(kind, shape, path) if plain else set()
        if plain and kind.name:
            shape.declared = ("type", kind.name)
        self._later(shape, kind, path, cover, skip, inside=inside, typed=plain)
        return key

    def _value(self, xsd: XsdElement, path: Steps, cover: str, *, inside: bool) -> Key:
        key: Key = ("element", *path)
        declared = xsd.ref if xsd.ref is not None else xsd
        if inside:
            key = self._first.setdefault(id(declared), key)
        if key not in self.shapes:
            shape = self._add(Shape(key, path, _place(xsd), _documentation(xsd, xsd.type)))
            if cover == "all":
                shape.leaves.append(self._leaf(TEXT, xsd, xsd.type, path))
        return key

    def _entrance(self, xsd: XsdElement, kind: XsdComplexType, path: Steps) -> Key:
        """An element by which documents come to a type that leads back to itself: a subclass, so that templates tell it
        from what lies further down."""
        like = self._of_type(kind, path)
        key: Key = ("element", *path)
        if key == like:
            return like
        reads = self.shapes[like].reads or like
        self._add(Shape(key, path, _place(xsd), _documentation(xsd, kind), parent=reads, like=like))
        return key

    def _of_type(self, kind: XsdComplexType, path: Steps) -> Key:
        """The shape of a type, wherever it occurs: its class is that of the type that it restricts, if it does."""
        owner = _owner(kind)
        key = self._class(owner, path)
        if kind is not owner:
            restricted: Key = ("restricted", str(kind.name), *(path if kind.name is None else ()))
            if restricted not in self.shapes:
                self._add(Shape(restricted, path, "", "", reads=key))
                self._shared.add(restricted)
                self._later(self.shapes[restricted], kind, path, "all", self._tags(key), inside=True)
            return restricted
        if key not in self._described:
            self._shared.add(key)
            self._later(self.shapes[key], kind, path, "all", self._tags(key), inside=True)
        return key

    def _class(self, kind: XsdComplexType, path: Steps) -> Key:
        """The shape that stands for a type, with its leaves and lineage, without what lies below."""
        key: Key = ("type", kind.name) if kind.name else self._first.setdefault(id(kind), ("element", *path))
        if key not in self.shapes:
            shape = self._add(Shape(key, path, _place(kind), _documentation(kind)))
            skip = self._lineage(kind, shape, path)
            self._own(shape, kind, path, "all", skip)
        return key

    def _lineage(self, kind: XsdComplexType, shape: Shape, path: Steps) -> set[str]:
        """Put `shape` below the classes of the types that `kind` extends. The tags of their leaves."""
        bases = [base for base in _extended(kind) if self.shapes.get(("type", str(base.name))) is not shape]
        parent: Key | None = None
        for base in reversed(bases):
            key: Key = ("type", str(base.name))
            if key not in self.shapes:
                made = self._add(Shape(key, path, _place(base), _documentation(base), parent))
                self._own(made, base, path, "all", self._tags(parent))
            parent = key
        shape.parent = parent
        return self._tags(parent)

    def _tags(self, key: Key | None) -> set[str]:
        """The tags of all leaves of a class, inherited ones too."""
        found: set[str] = set()
        while key is not None:
            found |= {leaf.tag for leaf in self.shapes[key].leaves}
            key = self.shapes[key].parent
        return found

    def _add(self, shape: Shape) -> Shape:
        if len(self.shapes) >= MAX_CLASSES:
            raise _TooManyError(f"{MAX_CLASSES} entry classes")
        self.shapes[shape.key] = shape
        return shape

    def _later(
        self,
        shape: Shape,
        kind: XsdComplexType,
        path: Steps,
        cover: str,
        skip: set[str],
        *,
        inside: bool,
        typed: bool = True,
    ) -> None:
        """Describe the content of `shape`, when what is under way is done: types may lead deep."""
        self._described.add(shape.key)
        if cover == "all" and kind.name == f"{{{XSD}}}anyType":
            self._untyped.setdefault(self._readable(path), shape.place)
            return
        self._own(shape, kind, path, cover, skip)

        def describe() -> None:
            self._deeper(shape, kind, path, inside=inside)
            if typed:
                self._typed(shape, kind, path, inside=inside)

        self._work.append(describe)

    def _own(self, shape: Shape, kind: XsdComplexType, path: Steps, cover: str, skip: set[str]) -> None:
        """The leaves of a type's own: its text, its simple children that occur once, its attributes."""
        if cover == "all" and kind.has_simple_content() and TEXT not in skip:
            shape.leaves.append(self._leaf(TEXT, kind, kind.content, path))
        repeats = self._repeated(kind)
        for tag, child in self._of(kind).children.items():
            leaf_type = _leaf_type(child.xsd.type)
            if leaf_type is None or tag in repeats or tag in skip:
                continue
            if self.coverage.of((*path, tag), child.mark) == "all":
                shape.leaves.append(self._leaf(tag, child.xsd, leaf_type, (*path, tag)))
        for name, attribute in kind.attributes.items():
            if isinstance(attribute, XsdAttribute) and name is not None and attribute.use != "prohibited":
                tag, mark = f"@{name}", attribute.elem.get(VARIANCE, "")
                if tag in skip:
                    continue
                if cover == "none" or self.coverage.of((*path, tag), mark) != "all":
                    shape.variant[tag] = None
                else:
                    shape.leaves.append(self._leaf(tag, attribute, attribute.type, (*path, tag)))

    def _deeper(self, shape: Shape, kind: XsdComplexType, path: Steps, *, inside: bool) -> None:
        """Note what lies below a type: children with shapes of their own, variant ones, whether there may be others."""
        content, repeats = self._of(kind), self._repeated(kind)
        named = all(isinstance(a, XsdAttribute) and name is not None for name, a in kind.attributes.items())
        shape.is_open = content.is_open or bool(kind.mixed) or not named
        shape.required += [tag for tag, child in content.children.items() if child.is_required]
        shape.required += [
            f"@{name}" for name, found in kind.attributes.items() if getattr(found, "use", "") == "required"
        ]
        for tag, child in content.children.items():
            self.tags.add(tag)
            below = (*path, tag)
            cover = self.coverage.of(below, child.mark)
            untyped = child.xsd.type.name == f"{{{XSD}}}anyType"
            if cover == "none" or (untyped and (inside or not self._is_declared(below))):
                shape.variant[tag] = None  # without a type it is as good as a wildcard, and no mark can name it
            elif _leaf_type(child.xsd.type) is None or tag in repeats:
                key = self._element(child.xsd, below, cover, inside=inside)
                shape.below[tag] = Below(key, tag in repeats, _default(child.xsd))

    def _is_declared(self, path: Steps) -> bool:
        """Whether declared types lead along `path`, and not only what an xsi:type may put in their place."""
        kind: Any = self._root
        for tag in path[1:]:
            child = self._of(kind).children.get(tag) if isinstance(kind, XsdComplexType) else None
            if child is None:
                return False
            kind = child.xsd.type
        return True

    def _typed(self, shape: Shape, kind: XsdComplexType, path: Steps, *, inside: bool) -> None:
        """Shapes for the named types that an xsi:type may put in place of the declared one: their classes lie below
        that of the element."""
        own = shape.reads or shape.key
        waiting = [(derived, own) for derived in self._derived.get(id(kind), ())]
        while waiting:
            derived, parent = waiting.pop(0)
            if shape.key in self._shared:
                key, below = self._of_type(derived, path), own
            else:
                key = ("typed", str(derived.name), *path)
                made = self._add(Shape(key, path, _place(derived), _documentation(derived), parent))
                below = parent
                if derived.derivation == "extension":
                    below = key
                else:
                    made.reads = parent  # a restriction has no fields of its own
                self._later(made, derived, path, "all", self._tags(parent), inside=inside, typed=False)
            shape.typed[str(derived.name)] = key
            waiting.extend((further, below) for further in self._derived.get(id(derived), ()))

    def _leaf(self, tag: str, component: Any, kind: Any, path: Steps) -> Leaf:
        if kind is None or kind.name == f"{{{XSD}}}anyType":
            self._untyped.setdefault(self._readable(path), _place(component))
            return Leaf(tag, ValueType("xs:anyType", "anySimpleType"), "", None, "")
        value = self._values.of(kind)
        self._fields += 1
        self._weight += self._values.weight(kind)
        if self._fields > MAX_FIELDS:
            raise _TooManyError(f"{MAX_FIELDS} leaves")
        if self._weight > MAX_WEIGHT:
            raise _TooManyError(
                f"{MAX_WEIGHT} allowed values and member types, those of {self._readable(path)} among them"
            )
        documentation = "" if tag == TEXT else _documentation(component, kind)
        default = None
        if isinstance(component, XsdElement | XsdAttribute):
            default = _default(component)
        return Leaf(tag, value, documentation, default, _place(component))

    def _no_types(self) -> SchemaError:
        """There would be nothing to compare: the error that names all such elements at once."""
        (path, place), *others = self._untyped.items()
        more = f"; so are {some((other for other, _ in others), 10)}" if others else ""
        return SchemaError(
            f"{path}{' at ' + place if place else ''} is invariant but has no type{more}",
            hint="Give it a type, or mark it variant",
            path=path,
        )

    def _led_to(self, kind: XsdComplexType) -> list[XsdComplexType]:
        """The complex types that elements of `kind` may hold directly, or may be of."""
        inside = [child.xsd.type for child in self._of(kind).children.values() if child.mark != "variant"]
        return [found for found in (*inside, *self._derived.get(id(kind), ())) if isinstance(found, XsdComplexType)]

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


def _circular(root: XsdComplexType, led_to: Callable[[XsdComplexType], list[XsdComplexType]]) -> set[int]:
    """Types reached from `root` that lead back to themselves, by id (the strongly connected components;
    Tarjan 1972, without recursion)."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_: list[int] = []
    is_open: set[int] = set()
    found: set[int] = set()
    walk: list[tuple[XsdComplexType, Iterator[XsdComplexType]]] = []

    def enter(kind: XsdComplexType) -> None:
        number[id(kind)] = lowest[id(kind)] = len(number)
        open_.append(id(kind))
        is_open.add(id(kind))
        walk.append((kind, iter(led_to(kind))))

    enter(root)
    while walk:
        kind, rest = walk[-1]
        other = next(rest, None)
        if other is not None:
            if id(other) not in number:
                enter(other)
            elif id(other) in is_open:
                lowest[id(kind)] = min(lowest[id(kind)], number[id(other)])
                found.update([id(kind)] if other is kind else ())
            continue
        walk.pop()
        if walk:
            above = id(walk[-1][0])
            lowest[above] = min(lowest[above], lowest[id(kind)])
        if lowest[id(kind)] == number[id(kind)]:
            members: list[int] = []
            while not members or members[-1] != id(kind):
                members.append(open_.pop())
            is_open.difference_update(members)
            found.update(members if len(members) > 1 else ())
    return found


def _owner(kind: XsdComplexType) -> XsdComplexType:
    """The type whose class holds what elements of `kind` say: of a restriction it is that of its base."""
    while (
        kind.derivation == "restriction"
        and isinstance(kind.base_type, XsdComplexType)
        and kind.base_type.name
        and kind.base_type.name not in (f"{{{XSD}}}anyType", kind.name)
    ):
        kind = kind.base_type
    return kind


def _extended(kind: XsdComplexType) -> Iterator[XsdComplexType]:
    """The complex types that `kind` extends, nearest first. A redefinition is its original under one name."""
    while isinstance(kind.base_type, XsdComplexType) and kind.base_type.name != f"{{{XSD}}}anyType":
        base = kind.base_type
        if kind.derivation == "extension" and base.name and base.name != kind.name:
            yield base
        kind = base


def _default(component: XsdElement | XsdAttribute) -> str | None:
    """The value that an empty one has, by `default` or `fixed`."""
    return component.default if component.default is not None else component.fixed


def _leaf_type(kind: Any) -> XsdSimpleType | None:
    """The simple type of a leaf element: simple, or simple content without attributes."""
    if isinstance(kind, XsdSimpleType):
        return kind
    if isinstance(kind, XsdComplexType) and kind.has_simple_content() and not len(kind.attributes):
        return kind.content if isinstance(kind.content, XsdSimpleType) else None
    return None


class ValueTypes:
    """Value types of XSD simple types, for canonicalising: each worked out once, and how large it is."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ValueType, int]] = {}

    def of(self, kind: XsdSimpleType) -> ValueType:
        """Raises SchemaError if it has more allowed values and member types than can be held."""
        return self._both(kind)[0]

    def weight(self, kind: XsdSimpleType) -> int:
        """Allowed values, and types it is made of, itself included."""
        return self._both(kind)[1]

    def _both(self, kind: XsdSimpleType) -> tuple[ValueType, int]:
        if id(kind) not in self._known:
            found = self._made(kind)
            parts = [*found[1]]
            weight = 1 + len(found[0].enumeration) + sum(map(self.weight, parts))
            if weight > MAX_WEIGHT:
                name = f"type {kind.local_name}" if kind.name else "a type"
                raise SchemaError(
                    f"{name} at {_place(kind)} has more than {MAX_WEIGHT} allowed values and member types",
                    hint="Mark the elements of that type as variant",
                    place=_place(kind),
                )
            self._known[id(kind)] = found[0], weight
        return self._known[id(kind)]

    def _made(self, kind: XsdSimpleType) -> tuple[ValueType, list[XsdSimpleType]]:
        """The value type, and the types that it is made of."""
        facets: list[tuple[str, str]] = []
        enumeration: list[Any] | None = None
        at: Any = kind
        while True:
            if isinstance(at, XsdComplexType):  # simple content that restricts that of another type, or a mixed one's
                at = at.content
                continue
            if isinstance(at, XsdAtomicBuiltin | XsdList | XsdUnion) or at.base_type is None:
                break
            for name, facet in at.facets.items():
                if name in _FACETS and getattr(facet, "value", None) is not None:
                    facets.append((_FACETS[name], str(facet.value)))
                elif name == f"{{{XSD}}}enumeration" and enumeration is None:
                    enumeration = list(facet.enumeration)
            at = at.base_type
        space = kind.white_space or "preserve"
        name = str(kind.prefixed_name) if kind.name else f"a restriction of {at.prefixed_name or 'a list or union'}"
        parts: list[XsdSimpleType] = []
        if isinstance(at, XsdList):
            parts = [at.item_type]
            found = ValueType(name, "list", "collapse", items=self.of(at.item_type), facets=tuple(facets))
        elif isinstance(at, XsdUnion):
            parts = list({id(member): member for member in at.member_types}.values())
            members = tuple(self.of(member) for member in parts)
            found = ValueType(name, "union", "preserve", members=members, facets=tuple(facets))
        else:
            facets.extend(_bounds_of(at))
            found = ValueType(name, at.local_name, space, facets=tuple(facets))
        return _with_enumeration(found, enumeration), parts


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
