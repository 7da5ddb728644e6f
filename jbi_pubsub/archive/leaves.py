"""Content of a document, as an index holds it: its leaves and attributes, by path.

Rules:
- A path is as in core/xpath: the names of elements from the document element down, perhaps "@name" at the end.
  `TypePaths` numbers those of one information type, and knows them all: what no document of the type had is in none of
  them.
- A leaf is an element without child elements; its text is XPath's string value. Of other elements it is known that they
  are there, for a leaf or attribute is below them; their text is not held.
- A text stands as a number where XPath takes it for one, and as text besides unless it is written as numbers usually
  are (`is_canonical`): so texts are told apart by what is held.
- Documents that are like known ones are read by their stencils (core/documents), without a parser.
- A document that has too much of anything `is_open`: nothing is known of it, and lxml is asked whatever the question.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from lxml import etree

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.documents.known import AnyDocument, KnownDocuments
from jbi_pubsub.core.documents.shape import EXACT, Particle
from jbi_pubsub.core.documents.stencil import Stencil, Traced
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.xml import Element, parse_metadata
from jbi_pubsub.core.xpath.index.document import EMPTY, PRESENT, TEXT, Layout
from jbi_pubsub.core.xpath.index.document import Paths as Slots
from jbi_pubsub.core.xpath.language.number import number
from jbi_pubsub.core.xpath.language.terms import Where

MAX_PATHS: Final = 4096
"""Paths of a type, inner elements and attributes counted."""
MAX_PATHS_CHARS: Final = 1 << 20
"""Characters of all these paths together."""
MAX_VALUES: Final = 8192
"""Values of one document."""
MAX_LAYOUTS: Final = 16
"""Stencils for which it is remembered how to read the documents that fit."""
MAX_TEXT: Final = 1024
"""Characters of a text that is held."""
SIZES: Final = (4 << 10, 16 << 10)
"""Bytes of documents. Whether a predicate may be evaluated for a larger one has to be asked each time
(core/xpath/language/cost.py), so for these the index alone never decides; for those in between it does for most."""
MAX_REMEMBERED: Final = 20_000
"""Short texts whose values are remembered: the same come again and again."""
MAX_REMEMBERED_CHARS: Final = 40

Value = tuple[float | None, str | None]
"""A number, a text, or a number with the text that it is written as. Neither: a text that is not held."""

UNHELD: Final[Value] = (None, None)

_CANONICAL: Final = re.compile(r"-?(?=[0-9.]{1,15}$)(0|[1-9][0-9]*)(\.[0-9]*[1-9])?")
"""Fifteen digits at most: two different ones are different numbers (IEEE 754 keeps that many decimal digits, and
`number()` is off by a digit of the seventeenth place at most)."""
_BEGINS_NUMBER: Final = frozenset("0123456789-+. \t\r\n")
_STRING: Final = etree.XPath("string()", regexp=False, smart_strings=False)


class DocumentRow(msgspec.Struct):
    """A document, read: of each path the first value, further ones in document order, and which paths come again."""

    firsts: dict[int, str] = msgspec.field(default_factory=dict)
    further: list[tuple[int, str]] = msgspec.field(default_factory=list)
    repeated: set[int] = msgspec.field(default_factory=set)
    """Also those of elements that are no leaves."""
    size: int = 0
    """Number of SIZES that it is beyond."""
    is_open: bool = False


class _PathNode:
    """A path that is known, and what goes on from it."""

    __slots__ = ("attributes", "below", "is_inner", "number", "where")

    def __init__(self, number: int, where: Where) -> None:
        self.number = number
        self.where = where
        self.is_inner = False
        self.below: dict[str, _PathNode] = {}
        self.attributes: dict[str, int] = {}


class _Layout(NamedTuple):
    """Layout of documents that fit a stencil: the slots of texts with the numbers of their paths, and the numbers of
    all slots."""

    layout: Layout
    texts: tuple[tuple[int, int], ...]
    numbers: dict[int, int]


class _AnyText(AnyDocument):
    """Grammar of documents without a schema: any text in the elements that were seen."""

    def content(self, path: Sequence[str], tags: Sequence[str]) -> Particle | None:  # noqa: ARG002  # of any element
        """Content of other elements: what was seen."""
        return EXACT


class TypePaths:
    """The paths of a type, numbered from 0 in the order in which they came. One thread at a time.

    `version` changes when anything is learned.
    """

    def __init__(self, known: Iterable[tuple[Where, bool]] = ()) -> None:
        """`known`: those that are known already, and of which of them there were elements with others inside."""
        self._nodes: list[_PathNode | None] = []
        self._wheres: list[Where] = []
        self._above = _PathNode(-1, ())
        self._chars = 0
        self.version = 0
        self._known = KnownDocuments(_AnyText())
        self._layouts: Cache[int, _Layout | None] = Cache(MAX_LAYOUTS)
        for where, is_inner in known:
            self._learn(where, is_inner)

    def __len__(self) -> int:
        return len(self._wheres)

    def where(self, number: int) -> Where:
        """The path of that number."""
        return self._wheres[number]

    def is_inner(self, number: int) -> bool:
        """Whether elements there had others inside."""
        node = self._nodes[number]
        return node is not None and node.is_inner

    def known(self) -> list[tuple[Where, bool]]:
        """All, as `TypePaths` takes them."""
        return [(where, self.is_inner(number)) for number, where in enumerate(self._wheres)]

    def read(self, metadata: bytes) -> DocumentRow:
        """Row of a document. One that is no XML, or too large, is `is_open`."""
        traced = self._known.trace(metadata)
        row = self._traced(traced) if traced is not None else None
        if row is None:
            row = self._parsed(metadata)
            if row.is_open:
                return row
            if traced is None:
                self._known.parsed(metadata)
        row.size = bisect_left(SIZES, len(metadata))
        return row

    def _parsed(self, metadata: bytes) -> DocumentRow:
        try:
            root = parse_metadata(metadata)
        except JbiError:
            return DocumentRow(is_open=True)
        row = DocumentRow()
        try:
            self._visit(root, self._above.below.get(str(root.tag)) or self._new(self._above, str(root.tag)), row, set())
        except OverflowError:
            return DocumentRow(is_open=True)
        return row

    def _traced(self, traced: Traced) -> DocumentRow | None:
        """Row of a document that fits a stencil; None: it has to be parsed."""
        stencil = traced.stencil
        if stencil.number not in self._layouts:
            self._layouts[stencil.number] = self._layout(stencil)
        known = self._layouts[stencil.number]
        if known is None:
            return None
        values, many = traced.read(known.layout)
        row = DocumentRow({number: values[slot] for slot, number in known.texts if values[slot] is not None})
        for slot, found in many.items():
            number = known.numbers[slot]
            row.repeated.add(number)
            if number in row.firsts:
                row.firsts[number] = found[0]
                row.further += [(number, text) for text in found[1:]]
        return row if len(row.further) <= MAX_VALUES else DocumentRow(is_open=True)

    def _layout(self, stencil: Stencil) -> _Layout | None:
        """Layout of documents that fit; None if not all of their paths are known, or elements at one of them are leaves
        and are none."""
        places = {where: number for number, where in enumerate(self._wheres)}
        slots = Slots()
        readings: dict[Where, int] = {}
        for path, is_leaf, names in stencil.elements():
            wanted = TEXT if is_leaf else PRESENT
            if readings.setdefault(path, wanted) != wanted:
                return None
            readings |= {(*path, "@" + name): TEXT for name in names}
        texts: list[tuple[int, int]] = []
        numbers: dict[int, int] = {}
        for where, reading in readings.items():
            number, slot = places.get(where), slots.slot(where, reading)
            if number is None or slot is None or slots.full(0):
                return None
            numbers[slot] = number
            if reading == TEXT:
                texts.append((slot, number))
        return _Layout(slots.layout(EMPTY), tuple(texts), numbers)

    def _visit(self, element: Element, node: _PathNode, row: DocumentRow, inner: set[int]) -> None:
        number = node.number
        for name, text in element.items():
            at = node.attributes.get(name)
            self._put(self._new_attribute(node, name) if at is None else at, str(text), row)
        if number in inner:
            row.repeated.add(number)
        if not len(element):
            self._put(number, element.text or "", row)
            return
        has_elements = False
        below = node.below
        for child in element:
            tag: Any = child.tag
            if type(tag) is str:  # else a comment or an instruction
                has_elements = True
                self._visit(child, below.get(tag) or self._new(node, tag), row, inner)
        if not has_elements:
            self._put(number, str(_STRING(element)), row)
            return
        if not node.is_inner:
            node.is_inner = True
            self.version += 1
        if number in row.firsts:
            row.repeated.add(number)
        inner.add(number)

    def _put(self, number: int, text: str, row: DocumentRow) -> None:
        if number not in row.firsts:
            row.firsts[number] = text
            return
        row.further.append((number, text))
        row.repeated.add(number)
        if len(row.further) > MAX_VALUES:
            raise OverflowError

    def _new(self, above: _PathNode, tag: str) -> _PathNode:
        made = _PathNode(len(self._wheres), (*above.where, tag))
        self._note(made.where, made)
        above.below[tag] = made
        return made

    def _new_attribute(self, node: _PathNode, name: str) -> int:
        number = len(self._wheres)
        self._note((*node.where, "@" + name), None)
        node.attributes[name] = number
        return number

    def _note(self, where: Where, node: _PathNode | None) -> None:
        chars = sum(map(len, where))
        if len(self._wheres) >= MAX_PATHS or self._chars + chars > MAX_PATHS_CHARS:
            raise OverflowError
        self._chars += chars
        self._wheres.append(where)
        self._nodes.append(node)
        self.version += 1

    def _learn(self, where: Where, is_inner: bool) -> None:
        """Note a path whose beginnings are known."""
        above = self._above
        for name in where[:-1]:
            above = above.below[name]
        if where[-1][0] == "@":
            self._new_attribute(above, where[-1][1:])
        else:
            self._new(above, where[-1]).is_inner = is_inner


class Values:
    """Makes values of texts; remembers those of short ones. One thread at a time."""

    def __init__(self) -> None:
        self._known: Cache[str, Value] = Cache(MAX_REMEMBERED, value_of)

    def of(self, text: str) -> Value:
        """Value of a text, as it is held."""
        return self._known[text] if len(text) <= MAX_REMEMBERED_CHARS else value_of(text)


def value_of(text: str) -> Value:
    """Value of a text, as it is held."""
    if len(text) > MAX_TEXT:
        return UNHELD
    if text[:1] not in _BEGINS_NUMBER or not text:
        return None, text
    value = number(text) + 0.0  # -0 compares as 0
    if math.isnan(value):
        return None, text
    return value, (None if is_canonical(text) else text)


def is_canonical(text: str) -> bool:
    """Whether a number is written so that no other text of this kind is the same number."""
    return _CANONICAL.fullmatch(text) is not None and text != "-0"
