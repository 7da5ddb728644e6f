"""PayloadFilter: an XPath expression that cuts an XML payload down to the parts a subscriber wants (paper 2.3.2).

Rules:
- The result is always well-formed: one `selection` element that holds the selected nodes in document order, each
  with every namespace declaration in scope where it stood. Attributes, texts, numbers and booleans become `value`
  elements with their XPath string value. The payload itself is never changed.
- Nothing selected gives an empty selection; whether that is delivered is the subscription's choice.
- A selection larger than its bound, or of what stands within more namespaces than its bound, or an evaluation that
  fails, gives an empty selection, counted and explained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from lxml import etree

from jbi_pubsub.core.cache import InUse
from jbi_pubsub.core.info_object import SELECTION_BEGIN
from jbi_pubsub.core.xml import MAX_XML_PAYLOAD_BYTES, Element
from jbi_pubsub.core.xpath.language.cost import (
    MAX_SECONDS_OF_BYTE,
    MAX_SECONDS_OF_FILTER,
    MAX_SECONDS_OF_FILTERS,
    exact_extent,
    longest,
    rough_extent,
    size_of,
)
from jbi_pubsub.core.xpath.language.grammar import check_text
from jbi_pubsub.core.xpath.predicate import (
    FOREIGN_ERRORS,
    NO_NAMESPACES,
    EvaluatedExpression,
    PredicateShape,
    analysed,
)

MAX_SELECTION_BYTES: Final = MAX_XML_PAYLOAD_BYTES
"""A selection of nested nodes repeats them; it may not grow beyond what a payload may be."""

MAX_NAMESPACES: Final = 256
"""Declared around a part. Each is compared with all others, for each part."""

_CLOSE: Final = b"</jbi:selection>"
# A parser would read a bare carriage return as a line feed. Not xml.sax.saxutils: that loads all of urllib, with TLS.
_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#13;"})
_STRING: Final = etree.XPath("string($value)", regexp=False, smart_strings=False)

Selected = Element | str | float | bool | tuple[str, str]


class Selection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Selection of a filter: `payload` is a well-formed XML document, `count` the number of parts in it."""

    payload: bytes
    count: int


NOTHING: Final = Selection(SELECTION_BEGIN + _CLOSE, 0)
"""The selection that holds nothing."""


class PayloadFilter(EvaluatedExpression):
    """A filter over payloads.

    Filters with equal text and namespaces are equal, and those from `compile_filter` are one object: what one of them
    selects from a payload, the others do.
    """

    __slots__ = ("_holes",)

    def __init__(
        self, expression: str, namespaces: tuple[tuple[str, str], ...], shape: PredicateShape, holes: list[str]
    ) -> None:
        """`holes`: its literals as written."""
        super().__init__(expression, namespaces, shape, longest(holes))
        self._holes: Final = holes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PayloadFilter):
            return NotImplemented
        return (self.expression, self.namespaces) == (other.expression, other.namespaces)

    def __hash__(self) -> int:
        return hash((self.expression, self.namespaces))

    def copy(self) -> PayloadFilter:
        """The same, with no errors counted, and none to be counted for others."""
        return PayloadFilter(self.expression, self.namespaces, self._shape, self._holes)

    def apply(self, payload: Element, size: int = 0) -> Selection:
        """The parts of the document with document element `payload` that the filter selects. `size`: its bytes, if
        they are known."""
        return select([self], payload, size)[self]

    def _apply(self, payload: Element) -> Selection:
        try:
            result = self._compiled()(payload)
            return self._written(result if isinstance(result, list) else [result])
        except FOREIGN_ERRORS as exc:
            return self._nothing(exc)

    def _written(self, parts: list[Selected]) -> Selection:
        pieces, size = [SELECTION_BEGIN], 0
        around: Element | None = None
        for part in parts:
            if isinstance(part, etree._Element) and part.getparent() is not around:
                around = part.getparent()
                if around is not None and len(around.nsmap) > MAX_NAMESPACES:
                    return self._nothing(f"selects a part within more than {MAX_NAMESPACES} namespaces")
            piece = _piece(part)
            size += len(piece)
            if size > MAX_SELECTION_BYTES:
                return self._nothing(f"selects more than {MAX_SELECTION_BYTES} bytes")
            pieces.append(piece)
        return Selection(b"".join([*pieces, _CLOSE]), len(parts))

    def _text(self) -> str:
        return self._shape.evaluated(self.expression, self._holes)

    def _nothing(self, reason: object) -> Selection:
        self.failed(reason)
        return NOTHING


def compile_filter(
    expression: str, *, namespaces: Mapping[str, str] = NO_NAMESPACES, argument: str = "payload_filter"
) -> PayloadFilter:
    """The filter that `expression` stands for. Raises PredicateError as compile_predicate does."""
    check_text(expression, argument)
    key = expression, tuple(sorted(namespaces.items()))
    known = _known.find(key)
    if known is not None:
        return known
    return _known.one(key, PayloadFilter(*key, *analysed(expression, namespaces, argument, is_filter=True)))


_known: InUse[tuple[str, tuple[tuple[str, str], ...]], PayloadFilter] = InUse()


def select(filters: Iterable[PayloadFilter], payload: Element, size: int = 0) -> dict[PayloadFilter, Selection]:
    """Selections of the filters from the document with document element `payload`; equal ones are one.

    The cheapest come first; one that may take too long, by itself or with those before it, selects nothing. `size`:
    the payload's bytes, if they are known.
    """
    size = size or size_of(payload)
    distinct = set(filters)
    extra = size * MAX_SECONDS_OF_BYTE
    extent = rough_extent(size)
    if sum(each.seconds(extent) for each in distinct) > MAX_SECONDS_OF_FILTER:
        extent = exact_extent(payload, size)
    found: dict[PayloadFilter, Selection] = {}
    spent = 0.0
    for each in sorted(distinct, key=lambda one: one.seconds(extent)):
        seconds = each.seconds(extent)
        spent += seconds
        if seconds > MAX_SECONDS_OF_FILTER + extra:
            found[each] = each._nothing(f"may take more than {MAX_SECONDS_OF_FILTER + extra:.2g} s on this payload")
        elif spent > MAX_SECONDS_OF_FILTERS + extra:
            found[each] = each._nothing("the filters of this payload may take too long together")
        else:
            found[each] = each._apply(payload)
    return found


def _piece(part: Selected) -> bytes:
    if isinstance(part, etree._Element):
        # tostring declares on the part whatever its ancestors declared, so prefixes in its content keep their meaning
        return etree.tostring(part, encoding="UTF-8", xml_declaration=False, with_tail=False)
    if isinstance(part, tuple):
        text = part[1] or ""  # a namespace node: its string value is the URI (XPath 1.0 section 5.4)
    else:
        text = part if isinstance(part, str) else str(_STRING(_ANYWHERE, value=part))
    return f"<jbi:value>{text.translate(_ESCAPES)}</jbi:value>".encode()


_ANYWHERE: Final = etree.Element("anywhere")
