"""Documents to entries, by the model: registration documents, templates, and the check of each publication.

Rules:
- XPath's view of a value is taken: the text of an element without comments. An empty element has the value that
  `default` or `fixed` gives it, as in validation, but for xs:QName; an absent one, or an attribute, has none. xsi:nil
  makes it unset.
- An entry is made for each element of the invariant part that has at least one value; several equal ones are one.
- Template (paper, figure 3): an empty or absent element is a wildcard; an element of which nothing is asked gives no
  entry template. A value on a variant element, and an element that the schema does not know, are errors.
- Invariants of a publication equal the registered ones if both give the same set of entries: order and repetition of
  equal entries do not count, as they do not in the lookup service.
- Validation may be switched off, so nothing here relies on it: what occurs twice where the schema allows one, and a
  leaf with child elements, are errors. Derived templates are sound because of that.

A Binder is immutable after its construction, but for bounded memories of values and registrations whose single
steps are atomic; several threads may use it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, NoReturn

import msgspec

from jbi_pubsub.codegen.model import TEXT, Field, TypeModel, classes_of, fields_of, readable
from jbi_pubsub.codegen.values import NotAValueError, canonical_text, needs_context
from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import InvariantError, MetadataError
from jbi_pubsub.core.xml import Element, has_plain_markup, parse_metadata
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.lookup.item import BOUNDS

XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"
_TYPE: Final = f"{{{XSI}}}type"
_NIL: Final = f"{{{XSI}}}nil"
_TRUE: Final = ("true", "1")

MAX_REMEMBERED: Final = 1_024
"""Registrations whose entry sets are kept ready for `check`, and texts per field whose canonical form is kept."""

MAX_REMEMBERED_CHARS: Final = 200
"""Longer texts are made canonical anew: with the number above this bounds a field's memory to about 1 MB."""

_SPACE: Final = re.compile("[ \\t\\r\\n]+")

MAX_HEADS: Final = 8
MAX_HEAD_BYTES: Final = 4 << 10
MAX_TOPS: Final = 6
"""Good documents of a registration whose beginnings are looked at, how long these may be to be remembered, and for how
many marks the rest of a document is searched (each 0.2 us)."""

Values = tuple[str | None, ...]
Found = tuple[str, Values]


class EntryMemory(NamedTuple):
    """The entries of a registration (held, so that their id is not used again), what a document has to give for them,
    and beginnings of documents that did, up to the last element with an entry (b"": there is no telling)."""

    entries: tuple[EntryRep, ...]
    found: frozenset[Found]
    heads: tuple[bytes, ...] = ()

    def knows(self, metadata: bytes, tops: Sequence[bytes]) -> bool:
        """Whether a document gives the same: it begins so, and no further element with an entry comes."""
        for head in self.heads:
            if head and metadata.startswith(head):
                return all(metadata.find(top, len(head)) < 0 for top in tops)
        return False


@dataclasses.dataclass(eq=False, slots=True)
class Slot:
    """One field of a node: its position, and the canonical forms of texts seen lately."""

    at: int
    field: Field
    in_context: bool
    memory: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """A part made ready for reading. `leaves` and `nodes` go by child tag; `single` nodes may occur once only.

    `by_type` is for xsi:type (Clark name).
    """

    entry: str
    fields: tuple[Field, ...]
    text: Slot | None = None
    leaves: dict[str, Slot] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Slot] = dataclasses.field(default_factory=dict)
    nodes: dict[str, Node] = dataclasses.field(default_factory=dict)
    single: frozenset[str] = frozenset()
    variant: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    is_open: bool = False
    by_type: dict[str, Node] = dataclasses.field(default_factory=dict)


def compile_parts(model: TypeModel) -> Node:
    """The node of the document element; nodes of parts that are recursive lead back to themselves."""
    fields = fields_of(model)
    nodes = [_bare(part.entry, fields[part.entry]) for part in model.parts]
    for node, part in zip(nodes, model.parts, strict=True):
        node.variant, node.is_open, node.required = frozenset(part.variant), part.is_open, part.required
        node.nodes = {below.tag: nodes[below.part] for below in part.below}
        node.single = frozenset(below.tag for below in part.below if not below.repeated)
        node.by_type = {name: nodes[number] for name, number in part.typed}
    for node, part in zip(nodes, model.parts, strict=True):
        for below in part.below:
            text = node.nodes[below.tag].text
            if below.default is not None and text is not None:  # its part may be others' as well, of another default
                field = msgspec.structs.replace(text.field, default=below.default)
                own = Slot(text.at, field, text.in_context)
                node.nodes[below.tag] = dataclasses.replace(node.nodes[below.tag], text=own)
    return nodes[0]


def _bare(entry: str, fields: tuple[Field, ...]) -> Node:
    node = Node(entry, fields)
    for at, one in enumerate(fields):
        slot = Slot(at, one, needs_context(one.type))
        if one.tag == TEXT:
            node.text = slot
        elif one.tag.startswith("@"):
            node.attributes[one.tag[1:]] = slot
        else:
            node.leaves[one.tag] = slot
    return node


class Binder:
    """Reads documents of one type. `classes` maps class names to identities, `root` is the compiled model."""

    def __init__(self, model: TypeModel) -> None:
        self.classes: dict[str, EntryClass] = classes_of(model)
        self.prefixes = dict(model.prefixes)
        self.root_tag = model.root
        self.root = compile_parts(model)
        self._names = {cls.name: name for name, cls in self.classes.items()}
        self._remembered: Cache[int, EntryMemory] = Cache(MAX_REMEMBERED)
        self._tops = _tops(self.root)

    def entries(self, root: Element, what: str) -> tuple[EntryRep, ...]:
        """The entries of a document. Raises MetadataError: another type, an element that the schema does not know, a
        bad value, a single element twice."""
        self._check_root(root, what)
        self._check_known(root, self.root, what)
        return self._reps(self._found(root, what), what)

    def check_complete(self, root: Element, what: str) -> None:
        """Raises InvariantError for a document without an invariant value that each valid one has: under a registration
        of it nothing valid could be published."""
        self._check_root(root, what)
        self._check_required(root, self.root, what)

    def _check_required(self, element: Element, node: Node, what: str) -> None:
        node = actual(element, node)
        children = list(element.iterchildren("*"))
        tags = {str(child.tag) for child in children}
        for tag in node.required:
            is_there = tag in tags or (tag[0] == "@" and element.get(tag[1:]) is not None)
            if not is_there and _has_value(node, tag, set()):
                path = self.where(element, tag)
                raise InvariantError(
                    f"{what} lacks {path}, which is invariant and in all valid metadata: none could be published",
                    hint="Add it, with the value that all objects of this registration have; or mark it variant",
                    path=path,
                )
        for child in children:
            if (below := node.nodes.get(str(child.tag))) is not None:
                self._check_required(child, below, what)

    def template(self, root: Element, what: str) -> tuple[EntryRep, ...]:
        """The entry templates of a template document. Raises MetadataError."""
        self._check_root(root, what)
        found: list[Found] = []
        self._ask(root, self.root, what, found)
        return self._reps(found, what)

    def condition(self, template: Sequence[EntryRep]) -> str:
        """An XPath that holds for all documents whose entries a template matches, as far as it can be said simply: of
        texts in no namespace, of elements that stand in one place alone. "": nothing."""
        places: dict[str, list[tuple[str, Node]]] = {}
        _place(self.root, f"/{self.root_tag}", places, frozenset())
        said = []
        for rep in template:
            found = places.get(self._names.get(rep.cls.name, ""), ())
            for path, node in found if len(found) == 1 else ():
                for value, slot in zip(rep.values, node.fields, strict=False):
                    plain = _SPACE.sub(" ", value or "").strip(" ")
                    if path and plain and _is_plain(slot) and not {"'", "{"} & {*plain, *slot.tag[:1]}:
                        said.append(f"normalize-space({path}/{slot.tag}) = '{plain}'")
        return " and ".join(dict.fromkeys(said))

    def is_invariant(self, path: Sequence[str]) -> bool:
        """Whether the element at `path` (tags from the document element down) belongs to the invariant part."""
        node = self.root
        for tag in path[1:]:
            if tag in node.leaves:
                return True
            if tag not in node.nodes:
                return False
            node = node.nodes[tag]
        return True

    def check(self, root: Element, registered: tuple[EntryRep, ...], metadata: bytes = b"") -> None:
        """Raises InvariantError unless the document gives exactly the entries `registered`. `metadata`: its bytes."""
        known = self._remembered.get(id(registered))
        if known is None or known.entries is not registered:
            wanted = frozenset((self._names.get(rep.cls.name, rep.cls.name), rep.values) for rep in registered)
            known = self._remembered[id(registered)] = EntryMemory(registered, wanted)
        if known.knows(metadata, self._tops):
            return
        found = frozenset(self._found(root, "metadata"))
        if found != known.found:
            raise self._difference(root, known.found, found)
        if self._tops and metadata and len(known.heads) < MAX_HEADS:
            head, whole = _head(root, metadata, self._tops)
            is_all = whole is not None and frozenset(self._found(whole, "metadata")) == known.found
            known = known._replace(heads=(*known.heads, head if is_all else b""))
        self._remembered[id(registered)] = known

    def _found(self, root: Element, what: str) -> list[Found]:
        self._check_root(root, what)
        found: list[Found] = []
        self._collect(root, self.root, what, found)
        return found

    def _collect(self, element: Element, node: Node, what: str, found: list[Found]) -> None:
        """Append (class, values) of `element`, then of what lies below it. The hot path of every publication."""
        node = actual(element, node)
        values, deeper = self._own(element, node, what)
        if values.count(None) != len(values):
            found.append((node.entry, tuple(values)))
        for child, below in deeper:
            self._collect(child, below, what, found)

    def _own(self, element: Element, node: Node, what: str) -> tuple[list[str | None], list[tuple[Element, Node]]]:
        """The values of the element itself, and the children that have nodes of their own."""
        values: list[str | None] = [None] * len(node.fields)
        deeper: list[tuple[Element, Node]] = []
        leaves, nodes = node.leaves, node.nodes
        for child in element:
            tag: str = child.tag  # type: ignore[assignment]  # of a comment it is a function, which no dict has
            slot = leaves.get(tag)
            if slot is not None:
                if values[slot.at] is not None:
                    self._twice(child, what)
                values[slot.at] = self._value(child, slot, what)
            elif tag in nodes:
                if tag in node.single and any(tag == known.tag for known, _ in deeper):
                    self._twice(child, what)
                deeper.append((child, nodes[tag]))
        for name, slot in node.attributes.items():
            text = element.get(name)
            if text is not None:
                values[slot.at] = self._canonical(text, slot, element, what)
        if node.text is not None:
            values[node.text.at] = self._value(element, node.text, what)
        return values, deeper

    def _value(self, element: Element, slot: Slot, what: str) -> str | None:
        text = element.text or ""
        if len(element):
            text = self._joined(element, what)
        known = slot.memory.get(text)
        if known is not None:
            return known
        default = None if text else slot.field.default
        if not text.strip() and (element.get(_NIL, "").strip() in _TRUE or (default and slot.in_context)):
            return None  # nil, or a name whose prefix is the schema's
        return self._canonical(text if default is None else default, slot, element, what)

    def _joined(self, element: Element, what: str) -> str:
        """The text around comments and processing instructions, as XPath sees it."""
        child = next(element.iterchildren("*"), None)
        if child is not None:
            self._refuse(what, child, f"is in {self.where(element)}, which holds a value", "Remove it")
        return (element.text or "") + "".join(child.tail or "" for child in element)

    def _canonical(self, text: str, slot: Slot, element: Element, what: str) -> str:
        known = slot.memory.get(text)
        if known is not None:
            return known
        kind = slot.field.type
        try:
            value = canonical_text(text, kind, element.nsmap if slot.in_context else None)
        except NotAValueError as exc:
            tag = slot.field.tag
            path = self.where(element, tag if tag.startswith("@") else TEXT)
            raise MetadataError(
                f"{what} line {element.sourceline}: {path} is {text[:80]!r}, expected {exc}",
                hint="Correct the value",
                path=path,
                value=text[:80],
                type=kind.name,
                line=element.sourceline or 0,
            ) from exc
        if not slot.in_context and 0 < len(text) <= MAX_REMEMBERED_CHARS:  # of "" xsi:nil decides what it means
            if len(slot.memory) >= MAX_REMEMBERED:
                slot.memory.clear()
            slot.memory[text] = value
        return value

    def _ask(self, element: Element, node: Node, what: str, found: list[Found]) -> None:
        """Append the entry templates of a template element and of what lies below it."""
        node = actual(element, node)
        values: list[str | None] = [None] * len(node.fields)
        at = len(found)
        self._ask_attributes(element, node, what, values)
        if node.text is not None:
            values[node.text.at] = self._wanted(element, node.text, what)
        elif (element.text or "").strip() or any((child.tail or "").strip() for child in element):
            self._refuse(what, element, "has text where no invariant value is", _ASK_VARIANT)
        seen: set[str] = set()
        for child in element.iterchildren("*"):
            tag = str(child.tag)
            if tag in seen and (tag in node.leaves or tag in node.single):
                self._twice(child, what)
            seen.add(tag)
            if tag in node.leaves:
                values[node.leaves[tag].at] = self._wanted(child, node.leaves[tag], what)
            elif tag in node.nodes:
                self._ask(child, node.nodes[tag], what, found)
            else:
                self._ask_other(child, node, what)
        if values.count(None) != len(values):
            found.insert(at, (node.entry, tuple(values)))

    def _ask_attributes(self, element: Element, node: Node, what: str, values: list[str | None]) -> None:
        for raw, text in element.attrib.items():
            name = str(raw)
            slot = node.attributes.get(name)
            if slot is not None:
                values[slot.at] = self._canonical(str(text), slot, element, what) if text else None
            elif name.startswith(f"{{{XSI}}}") or not text:
                continue
            elif f"@{name}" in node.variant or node.is_open:
                self._refuse(what, element, f"asks for a value of the variant attribute {name}", _ASK_VARIANT)
            else:
                self._refuse(what, element, f"has the attribute {name}, which the schema does not know", _ASK_KNOWN)

    def _wanted(self, element: Element, slot: Slot, what: str) -> str | None:
        text = self._joined(element, what)
        return self._canonical(text, slot, element, what) if text.strip() else None

    def _check_known(self, element: Element, node: Node, what: str) -> None:
        """Documents of registrations need not be valid (the variant part may be missing), but have no strangers."""
        node = actual(element, node)
        for child in element.iterchildren("*"):
            tag = str(child.tag)
            if tag in node.nodes:
                self._check_known(child, node.nodes[tag], what)
            elif tag not in node.leaves:
                self._check_variant(child, node, what)

    def _check_variant(self, child: Element, node: Node, what: str) -> None:
        if child.tag not in node.variant and not node.is_open:
            known = sorted({*node.leaves, *node.nodes, *(tag for tag in node.variant if tag[:1] != "@")})
            names = ", ".join(readable(tag, self.prefixes) for tag in known[:20])
            self._refuse(what, child, "is not in the schema", f"Elements known here: {names or 'none'}")

    def _ask_other(self, child: Element, node: Node, what: str) -> None:
        self._check_variant(child, node, what)
        if any((part.text or "").strip() or _own_attributes(part) for part in child.iter("*")):
            self._refuse(what, child, "is variant, so no publisher registers a value for it", _ASK_VARIANT)

    def _reps(self, found: list[Found], what: str) -> tuple[EntryRep, ...]:
        distinct = dict.fromkeys(found)
        if len(distinct) > BOUNDS.entries:
            raise MetadataError(
                f"{what} has {len(distinct):,} invariant entries; lookup services take {BOUNDS.entries:,}",
                hint="Mark as variant the elements that repeat (docs/codegen.md)",
            )
        return tuple(EntryRep(self.classes[name], values) for name, values in distinct)

    def _difference(self, root: Element, registered: frozenset[Found], found: frozenset[Found]) -> InvariantError:
        """The first value, in document order, that was not registered; else the first registered that is missing."""
        gone = sorted(registered - found, key=repr)
        for element, node, values in self._located(root, self.root):
            if node.entry and (node.entry, values) in found - registered:
                before = max(
                    (old for name, old in gone if name == node.entry),
                    key=lambda old: sum(pair[0] == pair[1] for pair in zip(old, values, strict=True)),
                    default=(None,) * len(values),
                )
                at = next(at for at, pair in enumerate(zip(before, values, strict=True)) if pair[0] != pair[1])
                return _changed(self.where(element, node.fields[at].tag), before[at], values[at])
        name, lost = gone[0]
        at = next(at for at, value in enumerate(lost) if value is not None)
        return _changed(_missing(self, root, name, at), lost[at], None)

    def _located(self, element: Element, node: Node) -> Iterator[tuple[Element, Node, Values]]:
        node = actual(element, node)
        values, deeper = self._own(element, node, "metadata")
        yield element, node, tuple(values)
        for child, below in deeper:
            yield from self._located(child, below)

    def _check_root(self, root: Element, what: str) -> None:
        if root.tag != self.root_tag:
            raise MetadataError(
                f"{what} begins with {root.tag!s}; documents of this type begin with {self.root_tag}",
                hint="Check the information object type",
                path=f"/{root.tag!s}",
                expected=self.root_tag,
            )

    def _twice(self, element: Element, what: str) -> NoReturn:
        hint = "Remove one of them; if a wildcard allows the other, mark the element variant"
        self._refuse(what, element, "occurs twice; the schema declares one, which is invariant", hint)

    def _refuse(self, what: str, element: Element, problem: str, hint: str) -> NoReturn:
        path = self.where(element)
        raise MetadataError(
            f"{what} line {element.sourceline}: {path} {problem}", hint=hint, path=path, line=element.sourceline or 0
        )

    def where(self, element: Element, tag: str = TEXT) -> str:
        """A readable path: /metadata/RequiredMetadata/keywords[2]."""
        steps: list[str] = [] if tag == TEXT else [readable(tag, self.prefixes)]
        at: Element | None = element
        while at is not None:
            tag_of = str(at.tag)
            same = 1 + sum(1 for _ in at.itersiblings(tag_of, preceding=True))
            alone = same == 1 and next(at.itersiblings(tag_of), None) is None
            steps.append(readable(tag_of, self.prefixes) + ("" if alone else f"[{same}]"))
            at = at.getparent()
        return "/" + "/".join(reversed(steps))


_ASK_VARIANT: Final = "Say it in the XPath predicate; a template covers the invariant part only"
_ASK_KNOWN: Final = "Compare the template with the schema"


def actual(element: Element, node: Node) -> Node:
    """The node for the element's xsi:type, if it names a type that is known here; else `node`."""
    name = element.get(_TYPE) if node.by_type else None
    if not name:
        return node
    prefix, _, local = name.strip().rpartition(":")
    uri = element.nsmap.get(prefix or None)
    return node.by_type.get(f"{{{uri}}}{local}" if uri else local, node)


def _tops(root: Node) -> tuple[bytes, ...]:
    """Beginnings of the start tags of all elements right below the document element that have entries, prefixed or not;
    () if there are others than these, or too many."""
    names = [tag.rpartition("}")[2] for tag in (*root.leaves, *root.nodes)]
    is_clear = root.text is None and not root.by_type and all(name.isascii() for name in names)
    tops = tuple(dict.fromkeys(mark + name.encode() for name in names for mark in (b"<", b":")))
    return tops if is_clear and len(tops) <= MAX_TOPS else ()


def _head(root: Element, metadata: bytes, tops: Sequence[bytes]) -> tuple[bytes, Element | None]:
    """The beginning of a document up to the end tag of the last element right below the document element that has
    entries, and that as a document; None if it can't be told."""
    last = max(metadata.rfind(mark + top[1:]) for top in tops for mark in (b"/", b":"))
    head = metadata[: metadata.find(b">", last) + 1]
    if last < 0 or len(head) > MAX_HEAD_BYTES or not has_plain_markup(metadata):
        return b"", None
    name = f"{root.prefix or ''}:{str(root.tag).rpartition('}')[2]}".lstrip(":")
    try:
        return head, parse_metadata(head + f"</{name}>".encode())
    except MetadataError:  # it ends within something else
        return b"", None


def _has_value(node: Node, tag: str, seen: set[int]) -> bool:
    """Whether each valid element `tag` ("@" before attributes) has an invariant value, itself or below it."""
    below = node.nodes.get(tag)
    if below is None:
        return tag in node.leaves or tag[1:] in node.attributes
    if id(below) in seen:
        return False
    seen.add(id(below))
    return below.text is not None or any(_has_value(below, each, seen) for each in below.required)


def _own_attributes(element: Element) -> bool:
    return any(text and not str(name).startswith(f"{{{XSI}}}") for name, text in element.attrib.items())


def _places(root: Node) -> Iterator[tuple[Node, tuple[str, ...], bool]]:
    """All nodes, each with the tags from the document element down to it, and whether the last may repeat."""
    seen, waiting = {id(root)}, [(root, tuple[str, ...](), False)]
    while waiting:
        node, tags, repeats = waiting.pop()
        yield node, tags, repeats
        ways = [(below, (*tags, tag), tag not in node.single) for tag, below in node.nodes.items()]
        for way in (*ways, *((below, tags, repeats) for below in node.by_type.values())):
            if id(way[0]) not in seen:
                seen.add(id(way[0]))
                waiting.append(way)


def _missing(binder: Binder, root: Element, name: str, at: int) -> str:
    """The path of a registered value that no element of the document has: behind the last that might have it."""
    node, tags, repeats = next(found for found in _places(binder.root) if found[0].entry == name)
    above, alike = [root], [root]
    for tag in tags:
        above, alike = alike, [child for element in alike for child in element.iterchildren(tag)]
    steps = ["", *(readable(tag, binder.prefixes) for tag in (binder.root_tag, *tags))]
    if repeats and len(above) == 1:
        steps = [binder.where(above[0]), steps[-1] + (f"[{len(alike) + 1}]" if alike else "")]
    field = node.fields[at].tag
    return "/".join(steps if field == TEXT else [*steps, readable(field, binder.prefixes)])


def _changed(path: str, registered: str | None, found: str | None) -> InvariantError:
    now = "missing" if found is None else repr(found)
    was = "not there" if registered is None else repr(registered)
    return InvariantError(
        f"{path} is {now}, but in the registration it was {was} and invariant",
        hint="Publish what was registered, or register again with the other value",
        path=path,
        registered=registered,
        found=found,
    )


def _place(node: Node, path: str, places: dict[str, list[tuple[str, Node]]], above: frozenset[int]) -> None:
    """The places of the elements of each entry class in a document; "" of one that is not alone, or has another type
    than its own."""
    if id(node) in above:
        places.setdefault(node.entry, []).append(("", node))
        return
    path = "" if node.by_type or "{" in path else path
    places.setdefault(node.entry, []).append((path, node))
    for tag, below in node.nodes.items():
        _place(below, f"{path}/{tag}" if path and tag in node.single else "", places, above | {id(node)})


def _is_plain(field: Field) -> bool:
    """Whether its values are texts, alike but for white space."""
    kind = field.type
    is_text = kind.builtin in ("string", "normalizedString", "token") and kind.items is None and not kind.members
    return is_text and field.default is None and field.tag != TEXT
