"""Schemas as xmlschema reads them, and what their types may hold: with walk.py the only module that knows it.

Rules:
- Documents are handed over in memory, under names of our own; nothing is written, opened or fetched.
- Cardinality counts the enclosing groups: an element is repeated if its parent can hold two of it (XML Schema part 1,
  section 3.8: a sequence adds, a choice takes the larger, maxOccurs multiplies).
"""

from __future__ import annotations

import io
import threading
import urllib.request
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import xmlschema
from lxml import etree
from xmlschema.exceptions import XMLSchemaWarning
from xmlschema.validators import XsdAnyElement, XsdComplexType, XsdElement, XsdGroup

from jbi_pubsub.codegen.bundle import PLACE, Sources
from jbi_pubsub.codegen.compiled import BASE
from jbi_pubsub.codegen.marks import JBI, VARIANCE, Steps
from jbi_pubsub.codegen.model import XML, one_line, some
from jbi_pubsub.core.errors import SchemaError
from jbi_pubsub.core.xml import XSD, Element

MAX_CLASSES: Final = 1_000
"""Entry classes of one type. NewsML-G2, the largest schema looked at, reaches 109 complex types in all."""

PATTERN: Final = f"{{{JBI}}}pattern"
"""Attribute of a restriction with a pattern, once that is gone."""

_ONE_LOAD: Final = threading.Lock()  # xmlschema shares its meta-schema and does not promise to be thread-safe


def outline(
    sources: Sources, found: Sequence[Steps], *, limit: int = 1_000
) -> tuple[str, dict[str, str], tuple[Steps, ...], tuple[Steps, ...]]:
    """(document element, prefixes by namespace, paths of its children, those of the `found` paths that a marks file may
    name) for drafting marks. Raises SchemaError."""
    # as a marks file with paths, which the draft is, leaves it: marks in the schema do not count
    marks = msgspec.structs.replace(sources.marks, invariant=())
    schema = load(replace(sources, marks=marks), check=True)
    root = document_element(schema, sources)
    if not isinstance(root.type, XsdComplexType):
        return root.name, prefixes_of(sources), (), ()
    children = [(root.name, tag) for tag in content_of(root.type).children if not _is_marker_tag(tag)]
    types = TypeContents(schema)
    known = tuple(path for path in found if types.have(root.type, path))
    return root.name, prefixes_of(sources), tuple(children[:limit]), known


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
                f"schema {name_of(sources)} is invalid{' at ' + place if place else ''}: {reason}",
                hint="Check it with an XML Schema 1.0 validator",
                place=place,
                reason=reason,
            ) from exc
        except (xmlschema.XMLSchemaException, OSError, RecursionError, ArithmeticError, ValueError) as exc:
            # the last two are Python's of values that it has no room for, such as years of ten digits
            raise SchemaError(
                f"schema {name_of(sources)} can't be used: {one_line(str(exc))}",
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
    backtracking engine. libxml2 checks all three. Where a pattern was, `PATTERN` says so.
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
            if part.tag == f"{{{XSD}}}pattern":
                above.set(PATTERN, "")
    return root


def name_of(sources: Sources) -> str:
    return sources.names[sources.main]


def prefixes_of(sources: Sources) -> dict[str, str]:
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


def document_element(schema: xmlschema.XMLSchema10, sources: Sources) -> XsdElement:
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
            f"schema {name_of(sources)} has no element {wanted} to be the document element",
            hint=f"It declares {some(known)}",
        )
    referred = {ref for root in sources.documents.values() for e in root.iter(f"{{{XSD}}}element") if (ref := _ref(e))}
    own = [e for e in schema.elements.values() if not e.abstract]
    candidates = own if len(own) == 1 else [e for e in own if e.name not in referred and e.substitution_group is None]
    if len(candidates) != 1:
        raise SchemaError(
            f"schema {name_of(sources)} has {len(candidates)} elements that could be the document element",
            hint=f"Name one as root (marks file, or --root): {some(e.name for e in own)}",
        )
    return candidates[0]


def _ref(declaration: Any) -> str:
    prefix, _, local = declaration.get("ref", "").rpartition(":")
    uri = declaration.nsmap.get(prefix or None, "")
    return f"{{{uri}}}{local}" if uri else local


def _is_marker_tag(tag: str) -> bool:
    return "." in tag.rpartition("}")[2]


def marker_of(root: XsdElement) -> str:
    """The first declared child if it is a type marker: empty, without attributes, a dot in its local name."""
    if not isinstance(root.type, XsdComplexType) or root.type.has_simple_content():
        return ""
    first = next(iter(content_of(root.type).children.items()), None)
    if first is None or not _is_marker_tag(first[0]):
        return ""
    kind = first[1].xsd.type
    empty = isinstance(kind, XsdComplexType) and kind.is_empty() and not len(kind.attributes)
    return first[0].rpartition("}")[2] if empty else ""


@dataclass
class ChildElement:
    xsd: XsdElement
    count: int
    """The most; 2 stands for more."""
    mark: str
    is_required: bool = False


@dataclass
class ContentModel:
    children: dict[str, ChildElement]
    is_open: bool


def content_of(kind: XsdComplexType) -> ContentModel:
    """The child elements that `kind` allows directly, in order, with how many there can be, and must."""
    if kind.has_simple_content() or not isinstance(kind.content, XsdGroup):
        return ContentModel({}, is_open=False)
    return _group(kind.content, "")


def _group(group: XsdGroup, mark: str) -> ContentModel:
    mark = group.elem.get(VARIANCE, mark) if group.elem is not None else mark
    found = ContentModel({}, is_open=False)
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
                child = ChildElement(xsd, 1 if particle.max_occurs == 1 else 2, _mark(particle, xsd, mark), needed)
                _add(found, xsd.name, child, is_choice=group.model == "choice")
    if group.max_occurs == 0:
        return ContentModel({}, is_open=False)
    for child in found.children.values():
        if group.max_occurs != 1:
            child.count = 2
        child.is_required = child.is_required and group.min_occurs > 0 and group.model != "choice"
    return found


def _add(content: ContentModel, tag: str, child: ChildElement, *, is_choice: bool) -> None:
    known = content.children.get(tag)
    if known is None:
        content.children[tag] = child
        return
    if known.mark != child.mark and "variant" in (known.mark, child.mark):
        raise SchemaError(
            f"{tag} is variant at one place of its parent and not at another",
            hint=f"Mark both alike: {place_of(known.xsd)}, {place_of(child.xsd)}",
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


def place_of(component: Any) -> str:
    return component.elem.get(PLACE, "") if component.elem is not None else ""


def documentation_of(*components: Any) -> str:
    """The xs:documentation of the first component that has any, paragraphs kept."""
    parts = (part for component in components for part in (component, getattr(component, "ref", None)))
    return first_text(getattr(part, "annotation", None) for part in parts)


def first_text(annotations: Iterable[Any]) -> str:
    for annotation in annotations:
        if annotation is not None:
            texts = ["".join(node.itertext()).strip() for node in annotation.documentation]
            if any(texts):
                return "\n\n".join(text for text in texts if text)
    return ""


class TypeContents:
    """Contents of the complex types of a schema, and which of them derive from which; each worked out once."""

    def __init__(self, schema: xmlschema.XMLSchema10) -> None:
        self._contents: dict[int, ContentModel] = {}
        self._repeats: dict[int, frozenset[str]] = {}
        self._derived: dict[int, list[XsdComplexType]] = {}
        for name in sorted(schema.maps.types):
            kind = schema.maps.types[name]
            if isinstance(kind, XsdComplexType) and isinstance(kind.base_type, XsdComplexType) and kind.name:
                self._derived.setdefault(id(kind.base_type), []).append(kind)

    def derived(self, kind: XsdComplexType) -> Sequence[XsdComplexType]:
        """The named types that derive from it directly."""
        return self._derived.get(id(kind), ())

    def _led_to(self, kind: XsdComplexType) -> list[XsdComplexType]:
        """The complex types that elements of `kind` may hold directly, or may be of."""
        inside = [child.xsd.type for child in self.of(kind).children.values() if child.mark != "variant"]
        return [found for found in (*inside, *self.derived(kind)) if isinstance(found, XsdComplexType)]

    def of(self, kind: XsdComplexType) -> ContentModel:
        """The child elements that it allows directly."""
        if id(kind) not in self._contents:
            self._contents[id(kind)] = content_of(kind)
        return self._contents[id(kind)]

    def repeated(self, kind: XsdComplexType) -> frozenset[str]:
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
            found |= {tag for tag, child in self.of(member).children.items() if child.count > 1}
            if len(family) < MAX_CLASSES:
                family.extend(self.derived(member))
        self._repeats[id(kind)] = frozenset(found)
        return self._repeats[id(kind)]

    def are_declared(self, root: Any, path: Steps) -> bool:
        """Whether declared types lead along `path`, and not only what an xsi:type may put in their place."""
        kind = root
        for tag in path[1:]:
            child = self.of(kind).children.get(tag) if isinstance(kind, XsdComplexType) else None
            if child is None:
                return False
            kind = child.xsd.type
        return True

    def have(self, root: XsdComplexType, path: Steps) -> bool:
        """Whether something of a type is declared at `path`, also by what an xsi:type may put in place."""
        kinds: list[Any] = [root]
        for tag in path[1:]:
            family = [kind for kind in kinds if isinstance(kind, XsdComplexType)]
            for kind in family:
                family += self.derived(kind)
            if tag.startswith("@"):
                return any(tag[1:] in kind.attributes for kind in family)
            found = [self.of(kind).children.get(tag) for kind in family]
            kinds = list({id(child.xsd.type): child.xsd.type for child in found if child is not None}.values())
        return any(kind.name != f"{{{XSD}}}anyType" for kind in kinds)

    def circular(self, root: XsdComplexType) -> set[int]:
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
            walk.append((kind, iter(self._led_to(kind))))

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
