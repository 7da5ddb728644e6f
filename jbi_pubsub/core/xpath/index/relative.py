"""What the index reads at relative paths: from elements of any name, anywhere, and from parents on.

Rules:
- One walk over a trie of these paths, a set of elements at a time: no element is in a set twice, so that a document
  costs each step of the trie about its size, however it is made.
- The document node is a parent as others; it is never read itself.
"""

from __future__ import annotations

from typing import Final

import msgspec

from jbi_pubsub.core.xml import Element
from jbi_pubsub.core.xpath.language.conditions import Where

Slot = tuple[int, int]
"""A slot and its reading (document.py)."""

Nodes = list[tuple[Slot, Element | str]]
"""Slots, each with one node there: an element, or the text of an attribute."""

_Context = list[Element | None]
"""A set of elements; None is the document node."""

ANY: Final = "*"
"""Stands for a step to children of any name."""


class Step(msgspec.Struct, frozen=True, eq=False):
    """What to read of a set of elements: slots, slots of attributes, and further steps by how they are written."""

    slots: tuple[Slot, ...] = ()
    attributes: tuple[tuple[str, Slot], ...] = ()
    below: tuple[tuple[str, Step], ...] = ()
    further: tuple[tuple[str, Step], ...] = ()

    def having(self, where: Where, slot: Slot) -> Step:
        """This step with a slot added at `where`; nothing is changed, only copied along the way."""
        if not where:
            return msgspec.structs.replace(self, slots=(*self.slots, slot))
        name, rest = where[0] or ANY, where[1:]
        if name[0] == "@":
            return msgspec.structs.replace(self, attributes=(*self.attributes, (name[1:], slot)))
        kind = "further" if name[0] in "./" else "below"
        steps = dict(getattr(self, kind))
        steps[name] = steps.get(name, NO_STEP).having(rest, slot)
        return msgspec.structs.replace(self, **{kind: tuple(steps.items())})

    def nodes(self, root: Element) -> Nodes:
        """The nodes at all slots of the document with document element `root`; those of one slot in document order,
        unless a step to any depth or to the parent leads elsewhere."""
        found: Nodes = []
        self._read([None], root, found)
        return found

    def _read(self, context: _Context, root: Element, found: Nodes) -> None:
        for slot in self.slots:
            found += [(slot, element) for element in context if element is not None]
        for name, slot in self.attributes:
            found += [
                (slot, text) for element in context if element is not None and (text := element.get(name)) is not None
            ]
        for name, step in self.further:
            reached = _reached(context, name, root)
            if reached:
                step._read(reached, root, found)
        if self.below:
            children = _children(context, {name for name, _ in self.below}, root)
            for name, step in self.below:
                if name in children:
                    step._read(children[name], root, found)


NO_STEP = Step()


def _reached(context: _Context, name: str, root: Element) -> _Context:
    """The parents of a set of elements, or the elements of a name that are below."""
    if name == "..":
        return list(dict.fromkeys([each.getparent() for each in context if each is not None]))
    found: _Context = []
    for each in context:
        found += root.iter(name[2:]) if each is None else each.iterdescendants(name[2:])
    return found


def _children(context: _Context, names: set[str], root: Element) -> dict[str, _Context]:
    """The children of a set of elements by name, and all of them under ANY, if that is among the names."""
    found: dict[str, _Context] = {}
    every: _Context = []
    for each in context:
        for child in (root,) if each is None else each:
            tag = child.tag
            if tag in names:
                found.setdefault(tag, []).append(child)
            every.append(child)
    if ANY in names:
        found[ANY] = [child for child in every if child is not None and isinstance(child.tag, str)]  # no comments
    return found
