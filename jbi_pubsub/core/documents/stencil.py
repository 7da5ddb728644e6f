"""Documents that differ from a known one in the text of some leaves only: recognised by their bytes, without a parser.

A source publishes the same document again and again with other readings in it. One regular expression, made from a
document that was parsed and found good, tells such a one in a tenth of the time that parsing and checking it takes:
what lies between the holes has the same bytes, in a hole stands a text that is certain to be as good as the one before.

Rules:
- A stencil never guesses: what does not fit is parsed. What fits has the same elements and attributes, in the same
  order, and the same text outside the holes.
- A hole is the whole text of a leaf element. Which texts it takes, the caller says (`Texts`): they have no markup, no
  reference, no carriage return and nothing beyond ASCII, so that their bytes are their characters.
- No stencil is made of documents with comments, CDATA sections, processing instructions, a DOCTYPE, xsi:type or
  xsi:nil, nor where ASCII bytes may mean other characters. The tokens are held against the parsed tree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from jbi_pubsub.core.xml import MAX_METADATA_BYTES, Element, has_plain_markup, parse_metadata
from jbi_pubsub.core.xpath.index.document import NUMBER, Filling, Layout, Many, Values
from jbi_pubsub.core.xpath.language.number import number

MAX_SOURCE_BYTES: Final = 8 << 10
"""Documents larger than that get no stencil: it is held for each registration, compiled to some ten times the bytes of
its expression."""

MAX_HOLES: Final = 200
"""Leaves of one document that may vary; more leave the stencil no better than the parser."""

MAX_EXPRESSION_BYTES: Final = 4 * MAX_SOURCE_BYTES
"""Of a document and what may stand in its holes together; an expression of that size takes some 50 ms to compile.
Enumerations are written out for each leaf."""

_TAG: Final = re.compile(
    rb"""<(/?)([^\s<>/!?="']+)(?:\s+[^\s<>/="']+\s*=\s*(?:"[^"<]*"|'[^'<]*'))*\s*(/?)>""", re.ASCII
)
_DECLARATION: Final = re.compile(rb"\s*<\?xml\s[^<>]*\?>")
_XSI: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
_BINDING: Final = (f"{_XSI}type", f"{_XSI}nil")


class Texts(NamedTuple):
    """Texts that a leaf may hold: those that `expression` matches as a whole; if it is bounded, numbers between the
    bounds, both excluded (a rounded bound then does no harm)."""

    expression: str
    above: float = -math.inf
    below: float = math.inf

    @property
    def is_bounded(self) -> bool:
        """Whether the value counts as well."""
        return self.above > -math.inf or self.below < math.inf


class Stencil:
    """See the module. Immutable but for what it remembers of one layout; several threads may use it."""

    def __init__(self, source: bytes, leaves: Sequence[int], expression: re.Pattern[bytes], bounds: _Bounds) -> None:
        """`leaves`: for each group of `expression` the place of its leaf among the elements of `source`."""
        self._source = source
        self._leaves = leaves
        self._fit = expression.fullmatch
        self._bounds = bounds
        self._filling: tuple[Layout, Filling | None] | None = None

    @classmethod
    def of(cls, source: bytes, root: Element, texts: Callable[[Sequence[str]], Texts | None]) -> Stencil | None:
        """A stencil of `source`, which parses to `root`; None when it can't have one.

        `texts(path)` are the texts that may stand in a leaf at `path` (the tags from the document element down)
        instead of its own; None: no other.
        """
        spans = _leaf_spans(source, root) if len(source) <= MAX_SOURCE_BYTES else None
        if spans is None:
            return None
        parts: list[bytes] = []
        leaves: list[int] = []
        bounds: list[tuple[int, float, float]] = []
        at, size = 0, len(source)
        for place, (element, start, end) in spans.items():
            wanted = texts(_path(element))
            if wanted is None or not re.fullmatch(wanted.expression.encode(), source[start:end]):
                continue
            parts += (re.escape(source[at:start]), b"(", wanted.expression.encode(), b")")
            at = end
            size += len(wanted.expression)
            leaves.append(place)
            if len(leaves) > MAX_HOLES or size > MAX_EXPRESSION_BYTES:
                return None
            if wanted.is_bounded:
                bounds.append((len(leaves), wanted.above, wanted.below))
        if not leaves:
            return None
        parts.append(re.escape(source[at:]))
        return cls(source, leaves, re.compile(b"".join(parts)), tuple(bounds))

    def trace(self, data: bytes) -> Traced | None:
        """The document, if it fits."""
        found = self._fit(data)
        if found is None or len(data) > MAX_METADATA_BYTES:
            return None
        for group, above, below in self._bounds:
            if not above < float(found[group]) < below:
                return None
        return Traced(self, found)

    def filling(self, layout: Layout) -> Filling | None:
        """What to read of documents that fit; None: they have to be parsed for that."""
        known = self._filling
        if known is None or known[0] is not layout:
            root = parse_metadata(self._source)
            elements = list(root.iter())
            holes = {elements[place]: group for group, place in enumerate(self._leaves, 1)}
            known = self._filling = layout, layout.filling(root, holes)
        return known[1]


_Bounds = tuple[tuple[int, float, float], ...]


class Traced:
    """A document that fits a stencil; parsed only if somebody asks for its `root`. One thread at a time."""

    __slots__ = ("_found", "_root", "_stencil")

    def __init__(self, stencil: Stencil, found: re.Match[bytes]) -> None:
        self._stencil = stencil
        self._found = found
        self._root: Element | None = None

    @property
    def root(self) -> Element:
        """The document element."""
        if self._root is None:
            self._root = parse_metadata(self._found.string)
        return self._root

    @property
    def size(self) -> int:
        """Bytes of the document."""
        return len(self._found.string)

    def read(self, layout: Layout) -> tuple[Values, Many]:
        """As `layout.read(root)`."""
        filling = self._stencil.filling(layout)
        if filling is None:
            return layout.read(self.root)
        values = filling.values.copy()
        found = self._found
        for slot, reading, hole in filling.holes:
            text = found[hole].decode()
            values[slot] = number(text) if reading == NUMBER else text
        return values, filling.many


def _leaf_spans(source: bytes, root: Element) -> dict[int, tuple[Element, int, int]] | None:
    """For each leaf with an end tag, by its place among all elements: the element, and where in the bytes its text
    begins and ends. None when that can't be told."""
    declaration = _DECLARATION.match(source)
    begin = declaration.end() if declaration else 0
    if not has_plain_markup(source) or b"<!" in source or b"<?" in source[begin:]:
        return None
    elements = list(root.iter())
    spans: dict[int, tuple[Element, int, int]] = {}
    opened: re.Match[bytes] | None = None
    place, end = -1, begin
    for tag in _TAG.finditer(source, begin):
        if b"<" in source[end : tag.start()]:
            return None
        if tag[1]:
            if opened is not None:
                spans[place] = elements[place], opened.end(), tag.start()
            opened = None
        else:
            place += 1
            if place == len(elements) or not _agrees(elements[place], tag[2]):
                return None
            opened = None if tag[3] else tag
        end = tag.end()
    if place + 1 != len(elements) or source[end:].strip():
        return None
    is_same = all(_holds(element, source[start:end]) for element, start, end in spans.values())
    return spans if is_same else None


def _agrees(element: Element, name: bytes) -> bool:
    """Whether that may be the element's tag, and the document leaves its type to the schema."""
    local = str(element.tag).rpartition("}")[2]
    return name.rpartition(b":")[2] == local.encode() and not any(map(element.attrib.has_key, _BINDING))


def _holds(element: Element, text: bytes) -> bool:
    """Whether the element is a leaf with that text, or one whose text can't be in a hole anyway."""
    if b"&" in text or b"\r" in text or not text.isascii():
        return True
    return len(element) == 0 and (element.text or "") == text.decode()


def _path(element: Element) -> list[str]:
    return [str(each.tag) for each in reversed(list(element.iterancestors()))] + [str(element.tag)]
