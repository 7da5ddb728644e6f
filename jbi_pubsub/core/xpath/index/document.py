"""Nodes that the index reads from a document: those at plain paths, found in one walk over a trie of the paths.

Rules:
- A slot is a plain path together with a way to read its nodes: that they are there, their string value, or its number.
- String values are XPath's (section 5): all descendant text of an element, around comments and CDATA sections.
- Relative paths (relative.py) are read by themselves; terms are computed from what was read, by the index.
- Only paths that some predicate names are visited; the rest of the document costs one dictionary look-up per child.
- A layout never changes; a new path makes a new layout with more slots, and slots keep their numbers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
from lxml import etree

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language.budget import OperandRoom, Shares
from jbi_pubsub.core.xpath.language.cost import Extent
from jbi_pubsub.core.xpath.language.number import number
from jbi_pubsub.core.xpath.language.terms import Evaluation, Term, Where, is_relative

from .operands import CostLimits, OperandReader
from .relative import MAX_NODES, NO_STEP, Nodes, Slot, UnreadableError
from .relative import ReadingStep as Relative

PRESENT: Final = 0
TEXT: Final = 1
NUMBER: Final = 2

MAX_SLOTS: Final = 4096
"""Slots of one index. A schema has tens to hundreds of paths; more come from nonsense, which lxml then evaluates."""

MAX_READERS: Final = 16
"""Kinds of documents for which a layout remembers how to read them."""

MAX_TEXT: Final = 2 << 20
"""Characters read at relative paths of one document: texts within texts are read several times."""

ABSENT_NUMBER: Final = math.nan - 0.0
"""Marks "no such node" in a number slot; told by identity from the NaN of a node that holds no number."""

Values = list[Any]
"""The value at each slot: None or ABSENT_NUMBER when there is no node, "" for PRESENT, else text or number.

Slot 0 is no path: it holds the visit (see index.py) on whose behalf the document is read.
"""

Many = dict[int, list[Any]]
"""All values, in document order, of the slots whose path occurs more than once; a term over such a path may be any
number (ANY_NUMBER)."""

ANY_NUMBER: Final = [-math.inf, math.inf]

Compute = Callable[[Values, Many], float]
"""Arithmetic, of the values of the slots that it reads."""

_STRING: Final = etree.XPath("string()", regexp=False, smart_strings=False)


class _ElementReadings(msgspec.Struct, frozen=True, eq=False):
    """Readings of an element: slots with their readings, slots of attributes, and children by tag."""

    slots: tuple[Slot, ...] = ()
    attributes: tuple[tuple[str, Slot], ...] = ()
    below: dict[Any, _ElementReadings] | None = None

    def having(self, where: Where, slot: Slot) -> _ElementReadings:
        """This node with a slot added at `where`, relative to it; nothing is changed, only copied along the way."""
        if not where:
            return _ElementReadings((*self.slots, slot), self.attributes, self.below)
        name, rest = where[0], where[1:]
        if name[0] == "@":
            return _ElementReadings(self.slots, (*self.attributes, (name[1:], slot)), self.below)
        below = dict(self.below) if self.below else {}
        below[name] = below.get(name, _NOTHING).having(rest, slot)
        return _ElementReadings(self.slots, self.attributes, below)


_NOTHING: Final = _ElementReadings()


class Paths:
    """The slots of an index, in the order of their first use. One writer."""

    def __init__(self) -> None:
        self._slots: dict[tuple[Where | Term, int], int] = {}
        self._blank: Values = [None]
        self._free: dict[bool, list[int]] = {False: [], True: []}
        self._terms: dict[int, tuple[Compute, tuple[int, ...]]] = {}
        self._operands: dict[Where | Term, OperandReader] = {}
        self.room = OperandRoom()

    def __len__(self) -> int:
        return len(self._slots)

    def full(self, needed: int) -> bool:
        """Whether `needed` more slots may not fit."""
        return len(self._slots) + needed > MAX_SLOTS

    def slot(self, where: Where | Term, reading: int) -> int:
        """The slot for what is at `where`, read as `reading`; of operands perhaps one that was another's."""
        found = self._slots.get((where, reading))
        if found is None:
            free = self._free[reading == NUMBER] if isinstance(where, Term) or is_relative(where) else []
            if not free:
                free.append(len(self._blank))
                self._blank.append(ABSENT_NUMBER if reading == NUMBER else None)
            found = self._slots[where, reading] = free.pop()
        return found

    def release(self, shares: Shares) -> bool:
        """Undo that the operands were taken; whether some are not read any more."""
        if not self.room.give_back(shares):
            return False
        for (where, reading), slot in list(self._slots.items()):
            if where in shares and where not in self.room:
                del self._slots[where, reading]
                self._free[reading == NUMBER].append(slot)
                self._terms.pop(slot, None)
                self._operands.pop(where, None)
        return True

    def computed(self, slot: int, read: tuple[int, ...], compute: Callable[[], Compute]) -> None:
        """The slot is one for arithmetic over the slots `read`."""
        if slot not in self._terms:
            self._terms[slot] = compute(), read

    def evaluated(self, slot: int, reading: int, operand: Evaluation, seconds: Callable[[Extent], float]) -> None:
        """The slot is one for an evaluation."""
        reader = self._operands.get(operand) or OperandReader(operand, seconds)
        self._operands[operand] = reader.having((slot, reading))

    def layout(self, before: Layout) -> Layout:
        """Layout to read all slots there are now; `before` is an earlier layout of the same paths."""
        named, anywhere, relative = dict(before.named), before.anywhere, NO_STEP
        for (where, reading), slot in self._slots.items():
            if slot < len(before.blank) or isinstance(where, Term) or is_relative(where):
                continue
            top, rest = where[0], where[1:]
            if top:
                named[top] = named.get(top, _NOTHING).having(rest, (slot, reading))
            else:
                anywhere = anywhere.having(rest, (slot, reading))
        asked = [(where, (slot, reading)) for (where, reading), slot in self._slots.items() if where in self.room]
        for where, read in asked:
            relative = relative if isinstance(where, Term) else relative.having(where, read)
        terms = tuple((slot, *self._terms[slot]) for _, (slot, _) in asked if slot in self._terms)
        operands = tuple(self._operands[w] for w in dict.fromkeys(w for w, _ in asked) if isinstance(w, Evaluation))
        limits = CostLimits([reader.seconds for reader in operands])
        blank = self._blank.copy()
        return Layout(blank, named, anywhere, relative, terms, operands, limits, frozenset(w for w, _ in asked))


class Layout(msgspec.Struct, frozen=True, eq=False):
    """An immutable plan for reading documents; any thread may use it.

    `blank` are the values of a document with none of the nodes, `named` what to read by the document element's tag,
    `anywhere` what to read whatever it is; `terms` are slots, what computes them, and the slots they read; `operands`
    are what lxml evaluates, within `limits`; `asked` are all of these and the relative paths.
    `readers` read documents that need not be parsed for it (see documents/).
    """

    blank: Values
    named: dict[Any, _ElementReadings]
    anywhere: _ElementReadings
    relative: Relative = NO_STEP
    terms: tuple[tuple[int, Compute, tuple[int, ...]], ...] = ()
    operands: tuple[OperandReader, ...] = ()
    limits: CostLimits = CostLimits(())
    asked: frozenset[Where | Term] = frozenset()
    readers: dict[int, Any] = msgspec.field(default_factory=dict)

    def read(self, root: Element) -> tuple[Values, Many]:
        """The values at all slots of the document with document element `root`. Raises UnreadableError."""
        values = self.blank.copy()
        many: Many = {}
        node = self.named.get(root.tag)
        if node is not None:
            _visit(root, node, values, many)
        if self.anywhere is not _NOTHING:
            _visit(root, self.anywhere, values, many)
        if self.relative is not NO_STEP:
            take(self.relative.nodes(root), values, many)
        return values, many

    def at(self, path: Sequence[str]) -> tuple[tuple[Slot, ...], tuple[tuple[str, Slot], ...]]:
        """Readings of elements at `path` (tags from the document element down): their slots, and those of their
        attributes."""
        nodes = list(self._nodes(path))
        further, named = self.relative.at(path)
        slots = (slot for node in nodes for slot in node.slots)
        attributes = (attribute for node in nodes for attribute in node.attributes)
        return (*slots, *further), (*attributes, *named)

    def reads_below(self, path: Sequence[str], but: frozenset[str]) -> bool:
        """Whether something in elements at `path` may be read, other than children with these tags and what is in
        them."""
        below = (node.below for node in self._nodes(path) if node.below is not None)
        return self.relative is not NO_STEP or not all(map(but.issuperset, below))

    def _nodes(self, path: Sequence[str]) -> Iterator[_ElementReadings]:
        for top in (self.named.get(path[0]), self.anywhere):
            node = top
            for tag in path[1:]:
                node = node.below.get(tag) if node is not None and node.below else None
            if node is not None:
                yield node

    def remember(self, key: int, reader: Any) -> Any:
        """Keep what reads documents of one kind by this layout, for a few kinds."""
        if len(self.readers) >= MAX_READERS:
            self.readers.clear()
        self.readers[key] = reader
        return reader

    def compute(self, values: Values, many: Many) -> Many:
        """Fill in the terms, once all else is read; gives `many` with them."""
        for slot, term, read in self.terms:
            values[slot] = term(values, many)
            if many and not many.keys().isdisjoint(read):
                many = {**many, slot: ANY_NUMBER}
        return many


class Known(Protocol):
    """A document of which more is known than its bytes, so that what is asked of it may be had without parsing it."""

    @property
    def root(self) -> Element:
        """The document element, parsed by now."""
        ...

    @property
    def size(self) -> int:
        """Bytes of the document."""
        ...

    def read(self, layout: Layout) -> tuple[Values, Many]:
        """As `layout.read(root)`."""
        ...


def _visit(element: Element, node: _ElementReadings, values: Values, many: Many) -> None:
    if node.slots:
        _fill(element, node.slots, values, many)
    for name, (slot, reading) in node.attributes:
        text = element.get(name)
        if text is not None:
            put(slot, "" if reading == PRESENT else number(text) if reading == NUMBER else text, values, many)
    below = node.below
    if below is None:
        return
    for child in element:
        found = below.get(child.tag)
        if found is not None:
            if found.below or found.attributes:
                _visit(child, found, values, many)
            else:
                _fill(child, found.slots, values, many)


def _fill(element: Element, slots: tuple[Slot, ...], values: Values, many: Many) -> None:
    text: Any = None
    for slot, reading in slots:
        if reading == PRESENT:
            value: Any = ""
        else:
            if text is None:
                text = _text(element)
            value = number(text) if reading == NUMBER else text
        if values[slot] is None or values[slot] is ABSENT_NUMBER:
            values[slot] = value
        else:
            put(slot, value, values, many)


def count(values: Values, many: Many, slot: int) -> float:
    """Number of nodes at a slot."""
    return float(len(many[slot])) if slot in many else float(values[slot] is not None)


def total(values: Values, many: Many, slot: int) -> float:
    """The sum of the numbers at a slot, added up one after the other."""
    one = values[slot]
    found = many.get(slot, () if one is ABSENT_NUMBER else (one,))
    return functools.reduce(operator.add, found, 0.0)  # -0 becomes 0; sum() of Python would be more exact


def take(nodes: Nodes, values: Values, many: Many) -> None:
    """Note the values of nodes. Raises UnreadableError."""
    room = MAX_TEXT
    for (slot, reading), found in nodes:
        text = "" if reading == PRESENT else found if isinstance(found, str) else _text(found)
        room -= len(text)
        if room < 0:
            raise UnreadableError
        put(slot, number(text) if reading == NUMBER else text, values, many)


def evaluate(reader: OperandReader, contexts: Iterable[Element], values: Values, many: Many) -> None:
    """Note what an operand comes to for some context nodes. Raises what lxml does, and UnreadableError."""
    for context in contexts:
        value = reader.evaluate(context)
        if isinstance(value, list):  # of nodes, each an element, a text, or a namespace, which is a pair
            if len(value) > MAX_NODES:
                raise UnreadableError
            nodes = [each[1] if isinstance(each, tuple) else each for each in value]
            take([(slot, node) for slot in reader.slots for node in nodes], values, many)
        elif value is not False:
            value = "" if value is True else value
            for slot, reading in reader.slots:
                put(slot, number(value) if reading == NUMBER and isinstance(value, str) else value, values, many)


def _text(element: Element) -> str:
    return str(_STRING(element)) if len(element) else element.text or ""


def put(slot: int, value: Any, values: Values, many: Many) -> None:
    """Note one more value at a slot."""
    before = values[slot]
    if before is None or before is ABSENT_NUMBER:
        values[slot] = value
    elif slot in many:
        many[slot].append(value)
    else:
        many[slot] = [before, value]


EMPTY: Final = Layout([None], {}, _NOTHING)
"""Reads nothing: the layout to begin with."""
