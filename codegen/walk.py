"""From a schema to a draft of the model, by a walk over its invariant part; see schema.py.

Rules:
- Only the invariant part is walked. Of a variant element the name is noted, what lies below it is never looked at.
- An element has a class of its own, by its path. Types that lead back to themselves have no end of paths: they have one
  class each, and the elements through which documents come to them from outside a subclass of it. Where the paths are
  more than can be held, each named type has one class.
- A wildcard (xs:any, xs:anyAttribute) and the text of mixed content are variant. An invariant element without a type
  is refused: there would be nothing to compare.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import xmlschema
from xmlschema.validators import (
    XsdAtomicBuiltin,
    XsdAttribute,
    XsdComplexType,
    XsdElement,
    XsdList,
    XsdSimpleType,
    XsdUnion,
)

from jbi_pubsub.codegen.bundle import Sources
from jbi_pubsub.codegen.marks import HOW_TO_MARK, VARIANCE, Coverage, Steps
from jbi_pubsub.codegen.model import TEXT, ValueType, readable, some
from jbi_pubsub.codegen.schema import (
    MAX_CLASSES,
    PATTERN,
    TypeContents,
    document_element,
    documentation_of,
    first_text,
    load,
    marker_of,
    name_of,
    place_of,
    prefixes_of,
)
from jbi_pubsub.codegen.values import INTEGERS, NotAValueError, canonical_text, needs_context, normalize
from jbi_pubsub.core.errors import SchemaError
from jbi_pubsub.core.xml import XSD

MAX_FIELDS: Final = 10_000
"""Invariant leaves of one type; with MAX_CLASSES it bounds the work a schema can cause."""

MAX_WEIGHT: Final = 100_000
"""Allowed values and member types of all leaves together; NIEM's longest list of codes has some 3,000."""

Key = tuple[str, ...]

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


_NUMBERS: Final = {"decimal", "double", "float", *INTEGERS}
"""Built-ins whose bounds are checked."""


@dataclass
class Leaf:
    """An invariant leaf: a field before it has a name. `place` is "document:line"."""

    tag: str
    type: ValueType
    documentation: str
    default: str | None
    place: str


class ChildShape(NamedTuple):
    """A child element that has a shape of its own."""

    key: Key
    repeated: bool
    default: str | None
    """Default of its text, where that is beside attributes."""


@dataclass
class ElementShape:
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
    below: dict[str, ChildShape] = field(default_factory=dict)
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
    shapes: dict[Key, ElementShape]
    prefixes: dict[str, str]
    marker: str
    documentation: str
    has_none: bool = False


class TooManyError(Exception):
    """Internal: more of something than one type may have; says of what."""


class LeafReader:
    """Reads the leaves of one type, up to as many as it may have, and notes those without a type."""

    def __init__(self, prefixes: Mapping[str, str]) -> None:
        self._prefixes = prefixes
        self._values = ValueTypes()
        self._fields = 0
        self._weight = 0
        self.untyped: dict[str, str] = {}
        """Places of invariant elements without a type, by path."""

    def readable(self, path: Steps) -> str:
        """A path for people."""
        return "/" + "/".join(readable(tag, self._prefixes) for tag in path)

    def note_untyped(self, path: Steps, place: str) -> None:
        """Note one without a type."""
        self.untyped.setdefault(self.readable(path), place)

    def read(self, tag: str, component: Any, kind: Any, path: Steps) -> Leaf:
        """The leaf of a component. Raises TooManyError, SchemaError."""
        if kind is None or kind.name == f"{{{XSD}}}anyType":
            self.note_untyped(path, place_of(component))
            return Leaf(tag, ValueType("xs:anyType", "anySimpleType"), "", None, "")
        value = self._values.of(kind)
        self._fields += 1
        self._weight += self._values.weight(kind)
        if self._fields > MAX_FIELDS:
            raise TooManyError(f"{MAX_FIELDS} leaves")
        if self._weight > MAX_WEIGHT:
            raise TooManyError(
                f"{MAX_WEIGHT} allowed values and member types, those of {self.readable(path)} among them"
            )
        documentation = "" if tag == TEXT else documentation_of(component, kind)
        default = None
        if isinstance(component, XsdElement | XsdAttribute):
            default = _default(component)
        return Leaf(tag, value, documentation, default, place_of(component))

    def no_types(self) -> SchemaError:
        """There would be nothing to compare: the error that names all such elements at once."""
        (path, place), *others = self.untyped.items()
        more = f"; so are {some((other for other, _ in others), 10)}" if others else ""
        return SchemaError(
            f"{path}{' at ' + place if place else ''} is invariant but has no type{more}",
            hint="Give it a type, or mark it variant",
            path=path,
        )


class SchemaWalk:
    """One walk over the invariant part. `shapes` hold what was found."""

    def __init__(
        self, schema: xmlschema.XMLSchema10, coverage: Coverage, prefixes: Mapping[str, str], *, by_type: bool
    ) -> None:
        """`by_type`: one class for each named type, wherever it occurs."""
        self.coverage = coverage
        self.shapes: dict[Key, ElementShape] = {}
        self.tags: set[str] = set()
        self._by_type = by_type
        self._leaves = LeafReader(prefixes)
        self._types = TypeContents(schema)
        self._work: deque[Callable[[], None]] = deque()
        self._circular: set[int] = set()
        self._first: dict[int, Key] = {}
        self._kinds: dict[Key, int] = {}
        self._root: Any = None
        self._described: set[Key] = set()
        self._shared: set[Key] = set()

    def run(self, root: XsdElement) -> Key:
        """Walk from the document element; the key of its shape. Raises TooManyError."""
        path = (root.name,)
        self._root = root.type
        self.tags.add(root.name)
        if isinstance(root.type, XsdComplexType):
            self._circular = self._types.circular(root.type)
        key = self._element(root, path, self.coverage.of(path, ""), inside=self._by_type)
        while self._work:
            self._work.popleft()()  # so the path that names a shared type is the shortest one
        if self._leaves.untyped:
            raise self._leaves.no_types()
        return key

    def too_many(self, what: TooManyError) -> SchemaError:
        """The error that says where most of it lies."""
        counted = Counter(shape.path[:2] for shape in self.shapes.values())
        path = max(counted, key=lambda path: counted[path])
        most = f"; most of it is reached through {self._leaves.readable(path)}" if len(path) > 1 else ""
        return SchemaError(
            f"the invariant part has more than {what}{most}",
            hint="Mark what changes as variant, or name in a marks file the few paths that do not",
            **({"path": self._leaves.readable(path)} if most else {}),
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
            return self._of_type(kind, path) if self._types.derived(kind) else self._entrance(xsd, kind, path)
        key: Key = ("element", *path)
        while key in self.shapes:
            if self._kinds.get(key) == id(kind):
                return key  # a type in place of the declared one leads here as well
            key = (*key, "again")
        self._kinds[key] = id(kind)
        shape = self._add(ElementShape(key, path, place_of(xsd), documentation_of(xsd, kind)))
        skip = self._lineage(kind, shape, path) if plain else set()
        if plain and kind.name:
            shape.declared = ("type", kind.name)
        self._later(shape, kind, path, cover, skip, inside=inside)
        return key

    def _value(self, xsd: XsdElement, path: Steps, cover: str, *, inside: bool) -> Key:
        key: Key = ("element", *path)
        declared = xsd.ref if xsd.ref is not None else xsd
        if inside:
            key = self._first.setdefault(id(declared), key)
        if key not in self.shapes:
            shape = self._add(ElementShape(key, path, place_of(xsd), documentation_of(xsd, xsd.type)))
            if cover == "all":
                shape.leaves.append(self._leaves.read(TEXT, xsd, xsd.type, path))
        return key

    def _entrance(self, xsd: XsdElement, kind: XsdComplexType, path: Steps) -> Key:
        """An element by which documents come to a type that leads back to itself: a subclass, so that templates tell it
        from what lies further down."""
        like = self._of_type(kind, path)
        key: Key = ("element", *path)
        if key == like:
            return like
        reads = self.shapes[like].reads or like
        self._add(ElementShape(key, path, place_of(xsd), documentation_of(xsd, kind), parent=reads, like=like))
        return key

    def _of_type(self, kind: XsdComplexType, path: Steps) -> Key:
        """The shape of a type, wherever it occurs: its class is that of the type that it restricts, if it does."""
        owner = _owner(kind)
        key = self._class(owner, path)
        if kind is not owner:
            restricted: Key = ("restricted", str(kind.name), *(path if kind.name is None else ()))
            if restricted not in self.shapes:
                self._add(ElementShape(restricted, path, "", "", reads=key))
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
            shape = self._add(ElementShape(key, path, place_of(kind), documentation_of(kind)))
            skip = self._lineage(kind, shape, path)
            self._own(shape, kind, path, "all", skip)
        return key

    def _lineage(self, kind: XsdComplexType, shape: ElementShape, path: Steps) -> set[str]:
        """Put `shape` below the classes of the types that `kind` extends. The tags of their leaves."""
        bases = [base for base in _extended(kind) if self.shapes.get(("type", str(base.name))) is not shape]
        parent: Key | None = None
        for base in reversed(bases):
            key: Key = ("type", str(base.name))
            if key not in self.shapes:
                made = self._add(ElementShape(key, path, place_of(base), documentation_of(base), parent))
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

    def _add(self, shape: ElementShape) -> ElementShape:
        if len(self.shapes) >= MAX_CLASSES:
            raise TooManyError(f"{MAX_CLASSES} entry classes")
        self.shapes[shape.key] = shape
        return shape

    def _later(
        self,
        shape: ElementShape,
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
            self._leaves.note_untyped(path, shape.place)
            return
        self._own(shape, kind, path, cover, skip)

        def describe() -> None:
            self._deeper(shape, kind, path, inside=inside)
            if typed:
                self._typed(shape, kind, path, cover, inside=inside)

        self._work.append(describe)

    def _own(self, shape: ElementShape, kind: XsdComplexType, path: Steps, cover: str, skip: set[str]) -> None:
        """The leaves of a type's own: its text, its simple children that occur once, its attributes."""
        if cover == "all" and kind.has_simple_content() and TEXT not in skip:
            shape.leaves.append(self._leaves.read(TEXT, kind, kind.content, path))
        repeats = self._types.repeated(kind)
        for tag, child in self._types.of(kind).children.items():
            leaf_type = _leaf_type(child.xsd.type)
            if leaf_type is None or tag in repeats or tag in skip:
                continue
            if self.coverage.of((*path, tag), child.mark) == "all":
                shape.leaves.append(self._leaves.read(tag, child.xsd, leaf_type, (*path, tag)))
        for name, attribute in kind.attributes.items():
            if isinstance(attribute, XsdAttribute) and name is not None and attribute.use != "prohibited":
                tag, mark = f"@{name}", attribute.elem.get(VARIANCE, "")
                if tag in skip:
                    continue
                if cover == "none" or self.coverage.of((*path, tag), mark) != "all":
                    shape.variant[tag] = None
                else:
                    shape.leaves.append(self._leaves.read(tag, attribute, attribute.type, (*path, tag)))

    def _deeper(self, shape: ElementShape, kind: XsdComplexType, path: Steps, *, inside: bool) -> None:
        """Note what lies below a type: children with shapes of their own, variant ones, whether there may be others."""
        content, repeats = self._types.of(kind), self._types.repeated(kind)
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
            if cover == "none" or (untyped and (inside or not self._types.are_declared(self._root, below))):
                shape.variant[tag] = None  # without a type it is as good as a wildcard, and no mark can name it
            elif _leaf_type(child.xsd.type) is None or tag in repeats:
                key = self._element(child.xsd, below, cover, inside=inside)
                shape.below[tag] = ChildShape(key, tag in repeats, _default(child.xsd))

    def _typed(self, shape: ElementShape, kind: XsdComplexType, path: Steps, cover: str, *, inside: bool) -> None:
        """Shapes for the named types that an xsi:type may put in place of the declared one: their classes lie below
        that of the element."""
        own = shape.reads or shape.key
        plain = cover == "all" and self.coverage.is_plain(path)
        waiting = [(derived, own) for derived in self._types.derived(kind)]
        while waiting:
            derived, parent = waiting.pop(0)
            if not plain and not self._adds(shape, kind, derived, path):
                waiting.extend((further, parent) for further in self._types.derived(derived))
                continue
            if shape.key in self._shared:
                key, below = self._of_type(derived, path), own
            else:
                key = ("typed", str(derived.name), *path)
                made = self._add(ElementShape(key, path, place_of(derived), documentation_of(derived), parent))
                below = parent
                if derived.derivation == "extension":
                    below = key
                else:
                    made.reads = parent  # a restriction has no fields of its own
                self._later(made, derived, path, cover, self._tags(parent), inside=inside, typed=False)
            shape.typed[str(derived.name)] = key
            waiting.extend((further, below) for further in self._types.derived(derived))

    def _adds(self, shape: ElementShape, kind: XsdComplexType, derived: XsdComplexType, path: Steps) -> bool:
        """Whether a type in place of another one has further invariants; what else it has is noted as variant."""
        content = self._types.of(derived)
        known = {*self._types.of(kind).children, *(f"@{name}" for name in kind.attributes)}
        further = {*content.children, *(f"@{name}" for name in derived.attributes if name is not None)} - known
        if any(self.coverage.of((*path, tag), "") != "none" for tag in further):
            return True
        shape.variant.update(dict.fromkeys(sorted(further)))
        shape.is_open = shape.is_open or content.is_open or None in derived.attributes
        return False


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
                    f"{name} at {place_of(kind)} has more than {MAX_WEIGHT} allowed values and member types",
                    hint="Mark the elements of that type as variant",
                    place=place_of(kind),
                )
            self._known[id(kind)] = found[0], weight
        return self._known[id(kind)]

    def _made(self, kind: XsdSimpleType) -> tuple[ValueType, list[XsdSimpleType]]:
        """The value type, and the types that it is made of."""
        facets: list[tuple[str, str]] = []
        enumeration: list[str] | None = None
        has_pattern = False
        at: Any = kind
        while True:
            if isinstance(at, XsdComplexType):  # simple content that restricts that of another type, or a mixed one's
                at = at.content
                continue
            if isinstance(at, XsdAtomicBuiltin | XsdList | XsdUnion) or at.base_type is None:
                break
            has_pattern = has_pattern or at.elem.get(PATTERN) is not None
            for name, facet in at.facets.items():
                if name in _FACETS and getattr(facet, "value", None) is not None:
                    facets.append((_FACETS[name], normalize(facet.elem.get("value"), "collapse")))
                elif name == f"{{{XSD}}}enumeration" and enumeration is None:
                    enumeration = [each.get("value") for each in facet]
            at = at.base_type
        space = kind.white_space or "preserve"
        name = str(kind.prefixed_name) if kind.name else f"a restriction of {at.prefixed_name or 'a list or union'}"
        parts: list[XsdSimpleType] = []
        if isinstance(at, XsdList):
            parts = [at.item_type]
            items = self.of(at.item_type)
            enumeration = None if items.members and items.is_loose else enumeration  # as of such a union
            is_loose = has_pattern or items.is_loose
            found = ValueType(name, "list", "collapse", items=items, facets=tuple(facets), is_loose=is_loose)
        elif isinstance(at, XsdUnion):
            parts = list({id(member): member for member in at.member_types}.values())
            members = tuple(self.of(member) for member in parts)
            is_loose = any(member.is_loose for member in members)
            space = "collapse" if all(member.space == "collapse" for member in members) else "preserve"
            enumeration = None if is_loose else enumeration  # of values; texts alone are known
            is_loose = has_pattern or is_loose
            found = ValueType(name, "union", space, members=members, facets=tuple(facets), is_loose=is_loose)
        else:
            has_dates = at.local_name not in _NUMBERS and any(facet.endswith("clusive") for facet, _ in facets)
            facets.extend(_bounds_of(at))
            is_loose = has_pattern or has_dates
            found = ValueType(name, at.local_name, space, facets=tuple(facets), is_loose=is_loose)
        return _with_enumeration(found, enumeration), parts


def _bounds_of(builtin: XsdAtomicBuiltin) -> Iterator[tuple[str, str]]:
    at: Any = builtin
    while at is not None:
        for name, facet in at.facets.items():
            if name in _FACETS and isinstance(getattr(facet, "value", None), int):
                yield _FACETS[name], str(facet.value)
        at = at.base_type


def _with_enumeration(kind: ValueType, values: list[str] | None) -> ValueType:
    if values is None or needs_context(kind):  # of names the prefixes are not at hand: left to validation
        return kind
    try:
        canonical = tuple(dict.fromkeys(canonical_text(value, kind) for value in values))
    except NotAValueError:
        return kind  # of more digits or items than are read here: left to validation
    return msgspec.structs.replace(kind, enumeration=canonical)


def read_schema(sources: Sources) -> Draft:
    """The draft of the type that `sources` describe; `validator` has accepted them.

    Raises SchemaError: invalid schema, no marks, no or several document elements, marks that name nothing, an
    invariant element without a type, too many classes.
    """
    schema = load(sources)
    root = document_element(schema, sources)
    marks = sources.marks
    if not (sources.marked or marks.has_paths or marks.root):
        raise SchemaError(f"schema {name_of(sources)} does not say what is invariant", hint=HOW_TO_MARK)
    prefixes = prefixes_of(sources)
    try:
        walk = SchemaWalk(schema, Coverage(marks, prefixes), prefixes, by_type=False)
        key = walk.run(root)
    except TooManyError:
        walk = SchemaWalk(schema, Coverage(marks, prefixes), prefixes, by_type=True)
        try:
            key = walk.run(root)
        except TooManyError as exc:
            raise walk.too_many(exc) from None
    walk.coverage.all_used(root.name, walk.tags)
    documentation = documentation_of(root) or first_text(schema.annotations)
    return Draft(root.name, key, walk.shapes, prefixes, marker_of(root), documentation, marks.invariant == ())
