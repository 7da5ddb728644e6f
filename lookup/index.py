"""First-level matching by value, both ways: items for a template, templates for an item.

Theory of operation
- `EntryIndex` keeps a posting for each class, field and value: who has it. A template is the intersection of its
  postings, several templates are that of all of theirs. Nothing is built for a template, so there is no first use.
- All set fields of a template must hold in *one* entry. So an item's second entry of a class goes into a second *lane*
  of postings, and so on: an intersection is within a lane, and nothing has to be verified.
- `TemplateIndex` is a trie. A step is what one entry template asks: a class, a *mask* (the positions of its set fields)
  and the *projection* (their values). A key stands where the sorted steps of its templates lead; an item takes all
  steps that its entries allow. So a change costs a probe for each mask in use, not for each template.
- Class identity is (name, fingerprint). A superclass template is a prefix of a subclass entry, so an entry stands under
  its whole lineage. Another generation of a class is another class here: no match.
- An unset value of an entry equals no set field.

Neither index is thread-safe, not even for reading; the owner's lock covers them. What `EntryIndex.find` returns is a
view: use it before the next change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, Generic, TypeVar

from jbi_pubsub.core.errors import IncompatibleEntryError
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.lookup.posting import (
    Bucket,
    Matches,
    Posting,
    intersection,
    joined,
    parted,
    union,
    with_slot,
    without_slot,
)

K = TypeVar("K", bound=Hashable)

ClassKey = tuple[str, str]
"""Name and fingerprint of an entry class: its identity."""

Mask = tuple[int, ...]
"""Positions of the set fields of an entry template, ascending."""

Values = tuple[str | None, ...]

Projection = Any
"""The values at a mask: `()` for none, the value itself for one field, else a tuple. Only a dictionary key."""


class _Lane:
    """The postings of one class by field and value. `rows` counts the entries in it."""

    __slots__ = ("fields", "rows")

    def __init__(self) -> None:
        self.fields: list[dict[str, Posting]] = []
        self.rows = 0

    def postings(self, wanted: Sequence[tuple[int, str]]) -> list[Posting] | None:
        """One for each wanted (position, value); None if there is none for one."""
        found: list[Posting] = []
        for position, value in wanted:
            posting = self.fields[position].get(value) if position < len(self.fields) else None
            if posting is None:
                return None
            found.append(posting)
        return found


class _Family:
    """Part of an EntryIndex for one entry class: who has it, and the lanes."""

    __slots__ = ("lanes", "slots")

    def __init__(self) -> None:
        self.slots: Posting = ()
        self.lanes: list[_Lane] = []


def _laid_out(entries: Iterable[EntryRep]) -> Iterator[tuple[ClassKey, int, Values]]:
    """Each entry by each class of its lineage, with the number of its lane. The first lane is for entries of a single
    field: those of one item may share it, since no template asks two fields of them."""
    counts: dict[ClassKey, int] = {}
    for entry in entries:
        for class_key in entry.cls.lineage:
            lane = 0
            if len(entry.values) > 1:
                lane = counts[class_key] = counts.get(class_key, 0) + 1
            yield class_key, lane, entry.values


class EntryIndex(Generic[K]):
    """Keys with their entries, found by entry templates."""

    def __init__(self) -> None:
        self._rows: dict[K, tuple[tuple[int], tuple[EntryRep, ...]]] = {}
        self._keys: list[K] = []  # by slot; what stands at a free one means nothing
        self._free: list[int] = []
        self._slots: Posting = ()
        self._families: dict[str, dict[str, _Family]] = {}  # by the name and the fingerprint of the class

    def __len__(self) -> int:
        return len(self._rows)

    def generation(self, name: str) -> ClassKey | None:
        """One of the classes of that name among the entries, or None."""
        return next(((name, fingerprint) for fingerprint in self._families.get(name, ())), None)

    def has_class(self, class_key: ClassKey) -> bool:
        """Whether some entry is of that class or a subclass."""
        return class_key[1] in self._families.get(class_key[0], ())

    def add(self, key: K, entries: Iterable[EntryRep]) -> None:
        """Put `key` in with its entries; in place of the ones it had."""
        kept = tuple(entries)
        if key in self._rows:
            single, before = self._rows[key]
            self._take_out(single, before)
        else:
            single = (self._free.pop() if self._free else len(self._keys),)
            self._keys[single[0] : single[0] + 1] = [key]
            self._slots = with_slot(self._slots, single, len(self._keys))
        self._rows[key] = single, kept
        for class_key, number, values in _laid_out(kept):
            name, fingerprint = class_key
            family = self._families.setdefault(name, {}).get(fingerprint)
            if family is None:
                family = self._families[name][fingerprint] = _Family()
            family.slots = with_slot(family.slots, single, len(self._keys))
            while len(family.lanes) <= number:
                family.lanes.append(_Lane())
            lane = family.lanes[number]
            lane.rows += 1
            lane.fields += [{} for _ in range(len(lane.fields), len(values))]
            for by_value, value in zip(lane.fields, values, strict=False):
                if value is not None:
                    by_value[value] = with_slot(by_value.get(value, ()), single, len(self._keys))

    def remove(self, key: K) -> None:
        """Take `key` out. KeyError when it is unknown."""
        single, entries = self._rows.pop(key)
        self._take_out(single, entries)
        self._slots = without_slot(self._slots, single[0])
        self._free.append(single[0])

    def find(self, templates: Iterable[EntryRep]) -> Matches[K]:
        """The keys that have, for each template, an entry which matches it; all keys when there is no template.

        Raises IncompatibleEntryError when a template's class is here under its name, but only with other fields.
        """
        postings: list[Posting] = []
        for template in templates:
            postings += self._postings(template)
        return Matches(intersection(postings or [self._slots]), self._keys, self._rows)

    def _postings(self, template: EntryRep) -> Sequence[Posting]:
        """Postings to be intersected for a template."""
        name, fingerprint = template.cls.lineage[0]
        generations = self._families.get(name)
        if generations is None:
            return [()]
        family = generations.get(fingerprint)
        if family is None:
            raise incompatible(template.cls, (name, next(iter(generations))))
        wanted = [(position, value) for position, value in enumerate(template.values) if value is not None]
        if not wanted:
            return [family.slots]
        found = [postings for lane in family.lanes if (postings := lane.postings(wanted)) is not None]
        if len(found) == 1:  # nearly always
            return found[0]
        return [union(map(intersection, found))]

    def _take_out(self, single: tuple[int], entries: Iterable[EntryRep]) -> None:
        left: dict[ClassKey, _Family] = {}
        for class_key, number, values in _laid_out(entries):
            name, fingerprint = class_key
            family = left[class_key] = self._families[name][fingerprint]
            lane = family.lanes[number]
            lane.rows -= 1
            for by_value, value in zip(lane.fields, values, strict=False):
                before = by_value.pop(value, ()) if value is not None else ()  # an equal entry may have taken it out
                if value is not None and (rest := without_slot(before, single[0])):
                    by_value[value] = rest
        for (name, fingerprint), family in left.items():
            family.slots = without_slot(family.slots, single[0])
            while family.lanes and not family.lanes[-1].rows:
                family.lanes.pop()
            if not family.slots:
                del self._families[name][fingerprint]
                if not self._families[name]:
                    del self._families[name]


def incompatible(wanted: EntryClass, other: ClassKey) -> IncompatibleEntryError:
    """The error for a template of class `wanted` when only `other`, of the same name, is registered."""
    return IncompatibleEntryError(
        f"entry class {wanted.name} of the template has other fields than the registered one",
        hint="Generate both from the same schema",
        entry_class=wanted.name,
        template_fingerprint=wanted.fingerprint,
        registered_fingerprint=other[1],
    )


_Step = tuple[int, ClassKey, Mask, Projection]


def _steps(templates: Iterable[EntryRep]) -> list[_Step]:
    """The way of an AND of templates through the trie, equal ones once: first those of many fields, as few items go on
    from there; of as many, those of reserved classes (NUL, see item.py: nearly all items have some type) come last."""
    steps: set[_Step] = set()
    for template in templates:
        mask = tuple([position for position, value in enumerate(template.values) if value is not None])
        steps.add((len(mask), template.cls.lineage[0], mask, _projector(mask)(template.values)))
    return sorted(steps, reverse=True)


def _projector(mask: Mask) -> Callable[[Values], Projection]:
    """The projection of an entry's values; where one is unset it has (or is) None, and so is no template's."""
    return itemgetter(*mask) if mask else lambda _: ()


class _Node(Generic[K]):
    """`keys` end here; `forks` lead on, by class and mask: the projector, and the next nodes by projection."""

    __slots__ = ("forks", "keys")

    def __init__(self) -> None:
        self.keys: Bucket[K] = ()
        self.forks: dict[ClassKey, dict[Mask, tuple[Callable[[Values], Projection], dict[Projection, _Node[K]]]]] = {}


class _Readers(Generic[K]):
    """The keys whose templates name a class; and how many fields they look at: entries with fewer are padded to it."""

    __slots__ = ("keys", "width")

    def __init__(self) -> None:
        self.keys: Bucket[K] = ()
        self.width = 0


class TemplateIndex(Generic[K]):
    """Keys with their entry templates (a subscription, an event registration), found by the entries of an item."""

    def __init__(self) -> None:
        self._ways: dict[K, list[_Step]] = {}
        self._root: _Node[K] = _Node()
        self._readers: dict[str, dict[ClassKey, _Readers[K]]] = {}  # by the name of the class

    def __len__(self) -> int:
        return len(self._ways)

    def strangers(self, class_key: ClassKey) -> dict[ClassKey, Collection[K]]:
        """Keys whose templates name a class as `class_key` does, but with other fields; by that class."""
        generations = self._readers.get(class_key[0], {})
        return {other: readers.keys for other, readers in generations.items() if other != class_key}

    def add(self, key: K, templates: Iterable[EntryRep]) -> None:
        """Put `key` in with its templates (ANDed; none match everything); in place of the ones it had."""
        if key in self._ways:
            self.remove(key)
        way = self._ways[key] = _steps(templates)
        single, node = (key,), self._root
        for _, class_key, mask, projection in way:
            generations = self._readers.setdefault(class_key[0], {})
            readers = generations.setdefault(class_key, _Readers())
            readers.keys = joined(readers.keys, single)
            readers.width = max(readers.width, 1 + max(mask, default=-1))
            masks = node.forks.setdefault(class_key, {})
            if mask not in masks:
                masks[mask] = _projector(mask), {}
            node = masks[mask][1].setdefault(projection, _Node())
        node.keys = joined(node.keys, single)

    def remove(self, key: K) -> None:
        """Take `key` out. KeyError when it is unknown."""
        way = self._ways.pop(key)
        nodes = [self._root]
        for _, class_key, mask, projection in way:
            nodes.append(nodes[-1].forks[class_key][mask][1][projection])
        nodes[-1].keys = parted(nodes[-1].keys, key)
        for _, class_key, mask, projection in reversed(way):
            node = nodes.pop()
            if not (node.keys or node.forks):
                self._cut(nodes[-1], class_key, mask, projection)
        for class_key in {class_key for _, class_key, _, _ in way}:
            generations = self._readers[class_key[0]]
            readers = generations[class_key]
            readers.keys = parted(readers.keys, key)
            if not readers.keys:
                del generations[class_key]
            if not generations:
                del self._readers[class_key[0]]

    def find(self, entries: Iterable[EntryRep]) -> list[K]:
        """The keys all of whose templates are matched by some entry, each once."""
        view = self._view(entries)
        pools: dict[tuple[ClassKey, Mask], Collection[Projection]] = {}
        found: list[K] = []
        ahead = [self._root]
        while ahead:
            node = ahead.pop()
            found += node.keys
            few: Collection[ClassKey] = view if len(view) < len(node.forks) else node.forks
            for class_key in few:
                if class_key not in view or class_key not in node.forks:
                    continue
                rows = view[class_key]
                for mask, (project, nodes) in node.forks[class_key].items():
                    if len(rows) == 1:  # nearly always
                        if (after := nodes.get(project(rows[0]))) is not None:
                            ahead.append(after)
                        continue
                    if (class_key, mask) not in pools:
                        pools[class_key, mask] = dict.fromkeys(map(project, rows))
                    pool: Collection[Projection] = pools[class_key, mask]
                    fewer = pool if len(pool) < len(nodes) else nodes
                    ahead += [nodes[each] for each in fewer if each in pool and each in nodes]
        return found

    def _view(self, entries: Iterable[EntryRep]) -> dict[ClassKey, list[Values]]:
        """The entries by each class of their lineages that some template names."""
        view: dict[ClassKey, list[Values]] = {}
        for entry in entries:
            for class_key in entry.cls.lineage:
                if (readers := self._readers.get(class_key[0], {}).get(class_key)) is not None:
                    padding = (None,) * (readers.width - len(entry.values))
                    view.setdefault(class_key, []).append(entry.values + padding)
        return view

    def _cut(self, node: _Node[K], class_key: ClassKey, mask: Mask, projection: Projection) -> None:
        masks = node.forks[class_key]
        del masks[mask][1][projection]
        if not masks[mask][1]:
            del masks[mask]
        if not masks:
            del node.forks[class_key]
