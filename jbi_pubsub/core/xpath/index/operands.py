"""Operands that are no path, evaluated by lxml once for a document: their values stand at slots, as those of paths do.

An operand is evaluated for each of the nodes at its context, so a slot has as many values, and of an operand that
selects nodes the values of all of them. What may cost too much on a document, or fails there, is told: who asks for it
is decided alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language import cost
from jbi_pubsub.core.xpath.language.cost import Extent
from jbi_pubsub.core.xpath.language.terms import Evaluation
from jbi_pubsub.core.xpath.predicate import compiled_xpath

from .relative import MAX_NODES, Slot, UnreadableError

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
    """Reader of one operand: evaluates it for a context node, for some `slots`. Immutable; lxml lets one thread at a
    time evaluate it."""

    def __init__(self, operand: Evaluation, seconds: Callable[[Extent], float], slots: tuple[Slot, ...] = ()) -> None:
        """`seconds`: most that reading it takes."""
        self.operand: Final = operand
        self.seconds: Final = seconds
        self.slots: Final = slots
        self.evaluate: Final[Callable[[Element], Any]] = compiled_xpath(operand.pieces[0], dict(operand.namespaces))

    def having(self, slot: Slot) -> OperandReader:
        """This one with a slot added."""
        return OperandReader(self.operand, self.seconds, tuple(dict.fromkeys((*self.slots, slot))))

    def contexts(self, root: Element) -> list[Element]:
        """The nodes that it is evaluated for. Raises UnreadableError."""
        top, *below = self.operand.context
        found = [root] if top in ("", root.tag) else []
        for name in below:
            found = [child for each in found for child in each.iterchildren(name)]
            if len(found) > MAX_NODES:
                raise UnreadableError
        return found
