"""Nodes that the index reads at relative paths: from elements of any name, and to any depth.

One walk over a trie of these paths, a set of elements at a time. A path leads to any depth once at most, from elements
that are not within each other: so no element is in a set twice, and a step costs in proportion to the document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language.terms import Where

Slot = tuple[int, int]
"""A slot and its reading (document.py)."""

Nodes = list[tuple[Slot, Element | str]]
"""Slots, each with one node there: an element, or the text of another one."""

ANY: Final = "*"
"""A step to children of any name."""


MAX_NODES: Final = 20_000
"""Nodes read at relative paths of one document, and elements passed in one step to them: some 20 ms."""


class UnreadableError(Exception):
    """Reading a document at relative paths costs too much; never leaves the index."""


class ReadingStep(msgspec.Struct, frozen=True, eq=False):
    """Readings of a set of elements: slots, slots of attributes, and further steps by how they are written: to children
    (`below`) and to any depth."""

    slots: tuple[Slot, ...] = ()
    attributes: tuple[tuple[str, Slot], ...] = ()
    below: tuple[tuple[str, ReadingStep], ...] = ()
    deep: tuple[tuple[str, ReadingStep], ...] = ()

    def having(self, where: Where, slot: Slot) -> ReadingStep:
        """This step with a slot added at `where`; nothing is changed, only copied along the way."""
        if not where:
            return msgspec.structs.replace(self, slots=(*self.slots, slot))
        name, rest = where[0] or ANY, where[1:]
        if name[0] == "@":
            return msgspec.structs.replace(self, attributes=(*self.attributes, (name[1:], slot)))
        kind = "deep" if name[0] == "/" else "below"
        steps = dict(getattr(self, kind))
        steps[name] = steps.get(name, NO_STEP).having(rest, slot)
        return msgspec.structs.replace(self, **{kind: tuple(steps.items())})

    def nodes(self, root: Element) -> Nodes:
        """The nodes at all slots of the document with document element `root`. Raises UnreadableError."""
        found: Nodes = []
        self._deeper([root.iter(name[2:]) for name, _ in self.deep], found)
        for name, step in self.below:
            if name in (ANY, root.tag):
                step._read([root], found)
        return found

    def at(self, path: Sequence[str]) -> tuple[tuple[Slot, ...], tuple[tuple[str, Slot], ...]]:
        """Readings of elements at `path`, tags from the document element down: their slots, and those of their
        attributes."""
        if not path:
            return self.slots, self.attributes
        further = [step.at(path[1:]) for name, step in self.below if name in (ANY, path[0])]
        for name, step in self.deep:
            further += [step.at(path[place + 1 :]) for place, tag in enumerate(path) if tag == name[2:]]
        return tuple(s for slots, _ in further for s in slots), tuple(a for _, named in further for a in named)

    def _read(self, context: list[Element], found: Nodes) -> None:
        if len(context) + len(found) > MAX_NODES:
            raise UnreadableError
        for slot in self.slots:
            found += [(slot, element) for element in context]
        for name, slot in self.attributes:
            found += [(slot, text) for element in context if (text := element.get(name)) is not None]
        if self.deep:
            below = ([e for each in context for e in each.iterdescendants(name[2:])] for name, _ in self.deep)
            self._deeper(below, found)
        if self.below:
            children = _children(context, {name for name, _ in self.below})
            for name, step in self.below:
                if name in children:
                    step._read(children[name], found)

    def _deeper(self, reached: Iterable[Iterable[Element]], found: Nodes) -> None:
        for (_, step), elements in zip(self.deep, reached, strict=True):
            context = list(elements)
            if context:
                step._read(context, found)


NO_STEP: Final = ReadingStep()


def _children(context: list[Element], names: set[str]) -> dict[str, list[Element]]:
    """The children of a set of elements by name, and all of them under ANY, if that is among the names."""
    found: dict[str, list[Element]] = {}
    for each in context:
        for child in each:
            tag = child.tag
            if tag in names:
                found.setdefault(tag, []).append(child)
    if ANY in names:
        found[ANY] = [child for each in context for child in each if isinstance(child.tag, str)]  # no comments
    return found
