"""Operands that are no path, evaluated by lxml once for a document: their values stand at slots, as those of paths do.

An operand is evaluated for each of the nodes at its context, so a slot has as many values, and of an operand that
selects nodes the values of all of them. What may cost too much on a document, or fails there, is told: who asks for it
is decided alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lxml import etree

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language import cost
from jbi_pubsub.core.xpath.language.cost import Extent
from jbi_pubsub.core.xpath.language.terms import Evaluation
from jbi_pubsub.core.xpath.predicate import compiled_xpath

from .relative import MAX_NODES, Nodes, Slot, UnreadableError

MAX_EXTENTS: Final = 64
"""Extents of documents for which it is remembered what they are too large for; extents are rounded."""


class CostLimits:
    """Limits of some expressions, by extents of documents: one may take too long, or they all together; the cheapest
    come first."""

    def __init__(self, costs: Sequence[Callable[[Extent], float]]) -> None:
        self._costs = costs
        self._known: dict[Extent, tuple[frozenset[int], float]] = {}

    def of(self, extent: Extent) -> tuple[frozenset[int], float]:
        """The places of those that are not to be evaluated, and what the others may take."""
        known = self._known.get(extent)
        if known is None:
            if len(self._known) >= MAX_EXTENTS:
                self._known = {}
            spent, beyond = 0.0, set()
            for seconds, place in sorted((seconds(extent), place) for place, seconds in enumerate(self._costs)):
                if seconds > cost.MAX_SECONDS or spent + seconds > cost.MAX_SECONDS_OF_OBJECT:
                    beyond.add(place)
                else:
                    spent += seconds
            known = self._known[extent] = frozenset(beyond), spent
        return known


class OperandReader:
    """Reader of one operand at some slots. Immutable; lxml lets one thread at a time evaluate it."""

    def __init__(
        self, operand: Evaluation, seconds: Callable[[Extent], float], slots: tuple[Slot, ...], compiled: etree.XPath
    ) -> None:
        self.operand = operand
        self.seconds = seconds
        self._slots = slots
        self._evaluate = compiled

    @classmethod
    def of(cls, operand: Evaluation, seconds: Callable[[Extent], float]) -> OperandReader:
        """For no slot yet. `seconds`: most that reading it takes."""
        return cls(operand, seconds, (), compiled_xpath(operand.pieces[0], dict(operand.namespaces)))

    def having(self, slot: Slot) -> OperandReader:
        """This one with a slot added."""
        slots = tuple(dict.fromkeys((*self._slots, slot)))
        return OperandReader(self.operand, self.seconds, slots, self._evaluate)

    def read(self, root: Element, found: Nodes) -> None:
        """Add the values in the document with document element `root`: nodes, texts or numbers, nothing for what is
        false. Raises what lxml does, and UnreadableError."""
        for context in self._contexts(root):
            value = self._evaluate(context)
            if isinstance(value, list):  # of nodes; a namespace is a pair
                values = [each[1] if isinstance(each, tuple) else each for each in value]
                if len(found) + len(values) > MAX_NODES:
                    raise UnreadableError
                found += [(slot, each) for slot in self._slots for each in values]
            elif value is not False:
                found += [(slot, value) for slot in self._slots]

    def _contexts(self, root: Element) -> Sequence[Element]:
        top, *below = self.operand.context
        found = [root] if top in ("", root.tag) else []
        for name in below:
            found = [child for each in found for child in each.iterchildren(name)]
            if len(found) > MAX_NODES:
                raise UnreadableError
        return found
