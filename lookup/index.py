"""First-level matching by mask hash, both ways: items for a template, templates for an item.

Theory of operation
- A *part* is what one entry template asks: a class and a *mask*, the positions of its set fields. What it asks of
  them, the values at those positions, is its *projection*. Templates with the same part differ in the projection
  only, so one dictionary from projections finds them, or their matches, in one step: "none", "one" and "all of a
  hundred thousand" cost the same.
- Several entry templates are ANDed, each over some entry of the item: the *shape* is the sorted parts, the key their
  projections in that order (equal parts sorted by projection, so that order does not matter).
- Class identity is (name, fingerprint). A superclass template is a prefix of a subclass entry, so an entry stands in
  the tables of its whole lineage. Another generation of a class is another class here: no match.
- An unset value of an entry equals no set field: projections with None are left out.
- `EntryIndex` builds a table when it pays (rent or buy): a part without one is answered from the tables that cover
  some of its fields, by intersecting and verifying, and the work is put on an account; once it has cost a quarter of
  a table, that is built: first those of single fields, which help all masks, then the part's own. Tables above the
  memory budget go, the least used first, if what wants their place is used more.
- A table over many keys *grows*: it takes every change from its beginning, and what was there before in slices
  (`grow`). Who cannot be answered cheaply meanwhile is told so (`search`), and lets others in between two slices.
- `TemplateIndex` has a table for each shape in use; a lookup costs their number, not the number of templates. Above
  the cap rare shapes share tables over a single field, and are verified.

Neither index is thread-safe, not even for reading; the owner's lock covers them. What `find` returns is a view:
use it before the next change, and don't change it. Keys should be uid strings: sets iterate in hash order, and evenly
spread hashes keep taking "any one" O(1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from itertools import combinations_with_replacement, groupby, product
from math import comb, prod
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from jbi_pubsub.core.errors import IncompatibleEntryError
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, fits

K = TypeVar("K", bound=Hashable)

ClassKey = tuple[str, str]
"""Name and fingerprint of an entry class: its identity."""

Mask = tuple[int, ...]
"""Positions of the set fields of an entry template, ascending."""

Part = tuple[ClassKey, Mask]
Shape = tuple[Part, ...]
Values = tuple[str | None, ...]

Projection = Any
"""The values at a mask: `()` for none, the value itself for one field, else a tuple. Only a dictionary key."""

Bucket = tuple[K, ...] | set[K]

Inner = dict[tuple[Projection, ...], Bucket[K]]
"""Keys by the projections of all parts of a shape but the leading one."""

View = Mapping[ClassKey, list[Values]]
"""The entries of one item by each class of their lineages."""

SMALL: Final = 8
"""Keys a bucket holds as a tuple: below it a tuple takes a quarter of a set's memory (sys.getsizeof: 104 to 472 B)."""

BYTES_PER_KEY: Final = 750
"""Memory budget of an EntryIndex's tables per key, in (estimated) bytes: with 1.2 KB for the item 2 KB in all."""

BYTES_FLOOR: Final = 4_000_000
"""Memory that small indices may take whatever they hold: below it eviction saves nothing."""

BYTES_PER_TABLE: Final = 1000
BYTES_PER_PROJECTION: Final = 150
BYTES_PER_POSTING: Final = 55
"""Estimates (tracemalloc, CPython 3.11): a table; a dictionary slot with its key tuple; a key in a bucket."""

MAX_TABLES: Final = 256
"""Tables of one EntryIndex, which every change of an item may have to update; a bound because clients choose masks."""

SCAN: Final = 16
"""Keys up to which a class is scanned: a table over so few saves nothing."""

NARROW: Final = 16
"""A cover is good if it leaves less than one key in so many."""

LOOKS: Final = 16
"""How many times cheaper it is to look a key up in a set than to put it into a table."""

EAGERNESS: Final = 4
"""How much earlier than at its price a table is built: masks come back, and a build is at worst that much too much."""

MAX_SHAPES: Final = 64
"""Tables a TemplateIndex probes per class: at about 0.1 us each a change stays below 10 us; 50 to 64 is where
merging rare masks begins to pay."""

MAX_COMBINATIONS: Final = 64
"""Keys one item may have in an EntryIndex table for several parts; more, and that table is not kept."""

SLICE: Final = 1000
"""Keys put into a growing table at a time, and the most that a lookup verifies rather than wait for one: 2.5 ms, half
of the 5 ms after which CPython lets another thread run (sys.getswitchinterval)."""

PATIENCE: Final = 4 * SLICE
"""Keys that one lookup verifies at most, some 5 ms, before a table is built for it alone, paid for or not."""

MAX_ACCOUNTS: Final = 4096
"""Parts and shapes without a table whose work is remembered; a bound because clients choose them."""


class IndexStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An index in numbers: keys, tables, (projection, key) pairs in them, tables built and evicted so far; tables
    being built, and lookups that had to verify for want of one (EntryIndex); keys that are verified when found
    (TemplateIndex)."""

    keys: int
    tables: int
    postings: int
    built: int
    evicted: int
    growing: int = 0
    rented: int = 0
    loose: int = 0


def _part(template: EntryRep) -> Part:
    return template.cls.lineage[0], tuple([i for i, value in enumerate(template.values) if value is not None])


def _projector(mask: Mask) -> Callable[[Values], Projection]:
    """The projection of an entry's values; it has a None (or is None) where the entry has."""
    return itemgetter(*mask) if mask else _nothing


def _nothing(_: Values) -> Projection:
    return ()


def _is_whole(projection: Projection) -> bool:
    return projection is not None and (type(projection) is not tuple or None not in projection)


def _shape(templates: Iterable[EntryRep]) -> tuple[Shape, Any]:
    """Shape and key of an AND of entry templates; a template that stands there twice counts once."""
    asked = sorted({(part := _part(t), _projector(part[1])(t.values)) for t in templates})
    shape, key = tuple(part for part, _ in asked), tuple(projection for _, projection in asked)
    return shape, key[0] if len(key) == 1 else key


def joined(bucket: Bucket[K] | None, single: tuple[K]) -> Bucket[K]:
    """`bucket` with one key more; `single` is shared by all the buckets that hold this key alone."""
    if bucket is None:
        return single
    if isinstance(bucket, set):
        bucket.add(single[0])
        return bucket
    if single[0] in bucket:
        return bucket
    return bucket + single if len(bucket) < SMALL else {*bucket, *single}


def parted(bucket: Bucket[K], key: K) -> Bucket[K]:
    """`bucket` without `key`. A set that has become sparse is made anew, or taking any one would walk over holes."""
    if isinstance(bucket, tuple):
        return tuple(other for other in bucket if other != key)
    bucket.discard(key)
    if len(bucket) <= SMALL // 2:
        return tuple(bucket)
    return set(bucket) if bucket.__sizeof__() > 512 * len(bucket) else bucket  # a set at rest: 27 to 107 B per key


class _PartTable(Generic[K]):
    """Keys by projection, for a shape of one part."""

    __slots__ = ("buckets", "class_key", "lead", "postings", "project", "shape", "used", "waiting")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.class_key, mask = shape[0]
        self.lead = 0
        self.project = _projector(mask)
        self.buckets: dict[Projection, Bucket[K]] = {}
        self.postings = 0
        self.used = 1
        self.waiting: set[K] = set()  # keys that are still to be put in, while it grows

    @property
    def weight(self) -> int:
        """Estimated bytes."""
        return BYTES_PER_TABLE + BYTES_PER_PROJECTION * len(self.buckets) + BYTES_PER_POSTING * self.postings

    def get(self, key: Projection) -> Bucket[K]:
        return self.buckets.get(key, ())

    def put(self, key: Projection, single: tuple[K]) -> None:
        """Put a member under one of its keys; each pair once."""
        bucket = self.buckets.get(key)
        if isinstance(bucket, set):
            bucket.add(single[0])
        else:
            self.buckets[key] = joined(bucket, single)
        self.postings += 1

    def take(self, key: Projection, member: K) -> None:
        left = parted(self.buckets[key], member)
        self.postings -= 1
        if left:
            self.buckets[key] = left
        else:
            del self.buckets[key]

    def keys_of(self, view: View) -> Collection[Projection] | None:
        """The keys of an item here, each once."""
        rows = view.get(self.class_key, ())
        if len(rows) == 1:  # nearly always
            key = self.project(rows[0])
            return (key,) if _is_whole(key) else ()
        return {key for values in rows if _is_whole(key := self.project(values))}

    def find(self, view: View, pools: _Pools) -> Iterator[Bucket[K]]:
        """The buckets of all keys that the entries in `view` have here."""
        found = map(self.buckets.get, pools.pool(view, self.shape[0]))
        return (bucket for bucket in found if bucket)

    def members(self) -> list[K]:
        return [member for bucket in self.buckets.values() for member in bucket]


class _ShapeTable(Generic[K]):
    """Keys by projections, for a shape of several parts: by the leading part's projection, then by the others'.

    An item that has nothing to do with the shape is done after one step, the leading one.
    """

    __slots__ = ("buckets", "lead", "others", "postings", "project", "shape", "used", "waiting")

    def __init__(self, shape: Shape, lead: int) -> None:
        self.shape = shape
        self.lead = lead
        self.project = _projector(shape[lead][1])
        self.others = shape[:lead] + shape[lead + 1 :]
        self.buckets: dict[Projection, Inner[K]] = {}
        self.postings = 0
        self.used = 1
        self.waiting: set[K] = set()  # keys that are still to be put in, while it grows

    @property
    def weight(self) -> int:
        """Estimated bytes; a projection more per leading one, for the inner dictionary."""
        keys = len(self.buckets) + sum(map(len, self.buckets.values()))
        return BYTES_PER_TABLE + BYTES_PER_PROJECTION * keys + BYTES_PER_POSTING * self.postings

    def get(self, key: tuple[Projection, ...]) -> Bucket[K]:
        inner = self.buckets.get(key[self.lead])
        return inner.get(self._rest(key), ()) if inner else ()

    def put(self, key: tuple[Projection, ...], single: tuple[K]) -> None:
        """Put a member under one of its keys; each pair once."""
        inner, rest = self.buckets.setdefault(key[self.lead], {}), self._rest(key)
        inner[rest] = joined(inner.get(rest), single)
        self.postings += 1

    def take(self, key: tuple[Projection, ...], member: K) -> None:
        inner, rest = self.buckets[key[self.lead]], self._rest(key)
        left = parted(inner[rest], member)
        self.postings -= 1
        if left:
            inner[rest] = left
            return
        del inner[rest]
        if not inner:
            del self.buckets[key[self.lead]]

    def keys_of(self, view: View) -> Collection[tuple[Projection, ...]] | None:
        """The keys of an item here, each once; None when they are more than MAX_COMBINATIONS."""
        pools = []
        for (class_key, mask), run in groupby(self.shape):
            project, count = _projector(mask), len(list(run))
            pool = {p for values in view.get(class_key, ()) if _is_whole(p := project(values))}
            pools.append((pool, count))
        if prod(comb(len(pool) + count - 1, count) for pool, count in pools) > MAX_COMBINATIONS:
            return None
        # equal parts stand in order of their projections, in an item's keys as in a template's
        choices = [combinations_with_replacement(sorted(pool), count) for pool, count in pools]
        return [tuple(p for run in chosen for p in run) for chosen in product(*choices)]

    def find(self, inner: Inner[K], view: View, pools: _Pools) -> Iterator[Bucket[K]]:
        """Of the buckets below one leading projection, those of all keys that the entries in `view` have here."""
        wanted = [pools.pool(view, part) for part in self.others]
        if prod(map(len, wanted)) < len(inner):
            found = map(inner.get, product(*wanted))
            yield from (bucket for bucket in found if bucket)
            return
        for rest, bucket in inner.items():
            if all(p in pool for p, pool in zip(rest, wanted, strict=True)):
                yield bucket

    def members(self) -> list[K]:
        return [member for inner in self.buckets.values() for bucket in inner.values() for member in bucket]

    def _rest(self, key: tuple[Projection, ...]) -> tuple[Projection, ...]:
        return key[: self.lead] + key[self.lead + 1 :]


_Table = _PartTable[K] | _ShapeTable[K]


class _Pools:
    """The projections of one item's entries by part, worked out once for all tables that look at the part."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Part, Collection[Projection]] = {}

    def pool(self, view: View, part: Part) -> Collection[Projection]:
        known = self._known.get(part)
        if known is None:
            project = _projector(part[1])
            known = self._known[part] = {project(values) for values in view.get(part[0], ())}
        return known


class _Family(Generic[K]):
    """What an index knows of one entry class: the keys that have it, its tables by mask, the tables it leads."""

    __slots__ = ("keys", "led", "masks", "probes", "several", "width")

    def __init__(self) -> None:
        self.keys: Bucket[K] = ()
        self.masks: dict[Mask, _PartTable[K]] = {}
        self.led: dict[Shape, _Table[K]] = {}
        self.probes: tuple[tuple[Callable[[Values], Projection], dict[Projection, Bucket[K]]], ...] = ()
        self.width = 0  # fields that the tables look at; entries of (forged) classes with fewer are padded to it

        self.several: tuple[tuple[Callable[[Values], Projection], dict[Projection, Inner[K]], _ShapeTable[K]], ...] = ()

    def arrange(self) -> None:
        """Lay out what is led for probing: the plain dictionaries of one-part tables, and the others."""
        tables = self.led.values()
        self.probes = tuple((table.project, table.buckets) for table in tables if isinstance(table, _PartTable))
        self.several = tuple((t.project, t.buckets, t) for t in tables if isinstance(t, _ShapeTable))

    def widen(self, shape: Shape, class_key: ClassKey) -> None:
        self.width = max(self.width, *(mask[-1] + 1 for own, mask in shape if own == class_key and mask), 0)


def _view(families: Mapping[ClassKey, _Family[K]], entries: Iterable[EntryRep]) -> dict[ClassKey, list[Values]]:
    """`entries` by each class of their lineages that is one of `families`."""
    view: dict[ClassKey, list[Values]] = {}
    for entry in entries:
        for class_key in entry.cls.lineage:
            family = families.get(class_key)
            if family is None:
                continue
            values = entry.values
            if len(values) < family.width:
                values += (None,) * (family.width - len(values))
            if class_key in view:
                view[class_key].append(values)
            else:
                view[class_key] = [values]
    return view


def _lead(shape: Shape, families: Mapping[ClassKey, _Family[K]]) -> int:
    """The part to find a table by: of the class that the fewest keys name, so that a class which nearly all name (a
    service type) does not collect the tables of all others; else the one with the most fields."""
    order = range(len(shape) - 1, -1, -1)
    return min(order, key=lambda i: (len(families[shape[i][0]].keys), -len(shape[i][1])))


class EntryIndex(Generic[K]):
    """Keys with their entries, found by entry templates.

    `bytes_per_key` and `bytes_floor` bound the memory of the tables: their sum at most the larger of the floor and
    `bytes_per_key` times the number of keys (estimated; checked when a table is built).
    """

    def __init__(self, *, bytes_per_key: int = BYTES_PER_KEY, bytes_floor: int = BYTES_FLOOR) -> None:
        self._bytes_per_key = bytes_per_key
        self._bytes_floor = bytes_floor
        self._rows: dict[K, tuple[tuple[K], tuple[EntryRep, ...]]] = {}
        self._families: dict[ClassKey, _Family[K]] = {}
        self._generations: dict[str, set[ClassKey]] = {}
        self._shapes: dict[Shape, _Table[K]] = {}
        self._growing: dict[Shape, _Table[K]] = {}  # of `_shapes`: takes changes, but is no use yet
        self._accounts: dict[Shape, tuple[int, int]] = {}  # (keys looked at for want of a table, times)
        self._built = 0
        self._evicted = 0
        self._rented = 0
        self._wide = 0  # tables for several parts

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def generation(self, name: str) -> ClassKey | None:
        """One of the classes of that name among the entries, or None."""
        return next(iter(self._generations.get(name, ())), None)

    def has_class(self, class_key: ClassKey) -> bool:
        """Whether some entry is of that class or a subclass."""
        return class_key in self._families

    def entries(self, key: K) -> tuple[EntryRep, ...]:
        """The entries of `key`. KeyError when it is unknown."""
        return self._rows[key][1]

    def add(self, key: K, entries: Iterable[EntryRep]) -> None:
        """Put `key` in with its entries; in place of the ones it had."""
        if key in self._rows:
            self.remove(key)
        single, kept = (key,), tuple(entries)
        self._rows[key] = (single, kept)
        for class_key in {known for entry in kept for known in entry.cls.lineage}:
            family = self._families.get(class_key)
            if family is None:
                family = self._families[class_key] = _Family()
                self._generations.setdefault(class_key[0], set()).add(class_key)
            family.keys = joined(family.keys or None, single)
        view = _view(self._families, kept)
        for table in self._tables_of(view):
            keys = table.keys_of(view)
            if keys is None:
                self._drop(table)
                continue
            for projection in keys:
                table.put(projection, single)

    def remove(self, key: K) -> None:
        """Take `key` out. KeyError when it is unknown."""
        _, entries = self._rows.pop(key)
        view = _view(self._families, entries)
        for table in self._tables_of(view):
            if key in table.waiting:
                table.waiting.discard(key)
                continue
            for each in table.keys_of(view) or ():
                table.take(each, key)
        for class_key in view:
            self._leave_family(class_key, key)

    def find(self, templates: Iterable[EntryRep]) -> Collection[K]:
        """The keys that have, for each template, an entry which matches it; all keys when there is no template.
        Builds what tables it needs at once, see `search`.

        Raises IncompatibleEntryError when a template's class is here under its name, but only with other fields.
        """
        asked = list(templates)
        while (found := self.search(asked)) is None:
            self.grow(len(self._rows))
        keys, unsure = found
        for template in unsure:
            keys = self._verify(keys, template)
        return keys

    def search(self, templates: Iterable[EntryRep]) -> tuple[Collection[K], list[EntryRep]] | None:
        """As `find`, but never long: with the keys come the templates that are still to be held against each of them
        (`fits`), as there is no room for a table. None: a table is growing; let others in, call `grow`, ask again."""
        asked = list(templates)
        unsure: list[EntryRep] = []
        for template in asked:
            self._check_generation(template.cls)
        if not asked:
            return self._rows.keys(), unsure
        keys = self._find_one(asked[0], unsure) if len(asked) == 1 else self._find_several(asked, unsure)
        return None if keys is None else (keys, unsure)

    def fits(self, key: K, templates: Iterable[EntryRep]) -> bool:
        """Whether `key` has, for each template, an entry which matches it. KeyError when it is unknown."""
        entries = self._rows[key][1]
        return all(any(fits(template, entry) for entry in entries) for template in templates)

    def grow(self, most: int = SLICE) -> bool:
        """Put at most `most` keys into the table that began to grow first; whether one is still growing."""
        table = next(iter(self._growing.values()), None)
        if table is not None:
            self._take_in(table, most)
        return bool(self._growing)

    def status(self) -> IndexStatus:
        """The index in numbers."""
        postings = sum(table.postings for table in self._shapes.values())
        return IndexStatus(
            len(self._rows),
            len(self._shapes),
            postings,
            self._built,
            self._evicted,
            growing=len(self._growing),
            rented=self._rented,
        )

    def _check_generation(self, cls: EntryClass) -> None:
        if cls.lineage[0] not in self._families and (other := self.generation(cls.name)):
            raise incompatible(cls, other)

    def _find_one(self, template: EntryRep, unsure: list[EntryRep]) -> Collection[K] | None:
        part = class_key, mask = _part(template)
        family = self._families.get(class_key)
        if family is None:
            return ()
        if not mask:
            return family.keys
        table = family.masks.get(mask)
        if table is None:
            cover, work = self._cover(family, mask, template.values)
            shape = (self._worth(family, part, len(cover)),)
            if self._is_wanted(shape, work, len(family.keys)):
                if shape not in self._growing:
                    self._begin(_PartTable(shape))
                return None if shape in self._growing else self._find_one(template, unsure)
            self._rented += 1
            if len(cover) <= PATIENCE:
                return self._verify(cover, template)
            unsure.append(template)
            return cover
        table.used += 1
        return table.get(table.project(template.values))

    def _is_wanted(self, shape: Shape, work: int, price: int) -> bool:
        """Whether a table for `shape` is to be built, or waited for, rather than do `work` for want of it."""
        growing = self._growing.get(shape)
        if growing is not None:
            if work <= SLICE:  # an answer at once, and a hand lent: nobody else may be waiting for that table
                self._take_in(growing, SLICE)
            return work > SLICE
        return self._owe(shape, price if work > PATIENCE else work, price)

    def _worth(self, family: _Family[K], part: Part, cover: int) -> Part:
        """What a lookup without a table should pay for: the table of its part; but as long as nothing narrows it
        well, that of a single field, which narrows all other masks with this field too."""
        class_key, mask = part
        if cover * NARROW > len(family.keys):
            return next(((class_key, (i,)) for i in mask if (i,) not in family.masks), part)
        return part

    def _cover(self, family: _Family[K], mask: Mask, values: Values) -> tuple[Bucket[K], int]:
        """Few keys among which all matches are, what the tables over some of the mask's fields agree on; and the
        work, in keys."""
        wanted, buckets = set(mask), [family.keys]
        for covered, table in family.masks.items():
            if wanted.issuperset(covered):
                table.used += 1
                buckets.append(table.get(table.project(values)))
        buckets.sort(key=len)
        few, work = buckets[0], 0
        for other in buckets[1:-1]:  # the last is nearly the class itself
            if len(few) > SCAN and isinstance(few, set) and isinstance(other, set):
                work += len(few) // LOOKS
                few = few & other
        return few, work + len(few)

    def _verify(self, keys: Iterable[K], template: EntryRep) -> list[K]:
        """Those of `keys` that have an entry which matches the template (with a field set): `fits` at once."""
        class_key, mask = _part(template)
        project, longer = _projector(mask), mask[-1]
        wanted, rows = project(template.values), self._rows
        found = (
            key
            for key in keys
            for entry in rows[key][1]
            if class_key in entry.cls.lineage and len(entry.values) > longer and project(entry.values) == wanted
        )
        return list(dict.fromkeys(found))  # two entries of one key may match

    def _find_several(self, templates: list[EntryRep], unsure: list[EntryRep]) -> Collection[K] | None:
        shape: Shape = ()
        if self._wide:
            shape, key = _shape(templates)
            table = self._shapes.get(shape)
            if table and shape not in self._growing:
                table.used += 1
                return table.get(key)
        found: list[Collection[K]] = []
        for template in templates:
            one = self._find_one(template, unsure)
            if one is None:
                return None
            found.append(one)
        found.sort(key=len)
        matching = found[0]
        others = [other for other in found[1:] if len(other) < len(self._rows)]  # what all have decides nothing
        if others and self._pay_for_several(shape or _shape(templates)[0], len(matching) // LOOKS):
            return None
        for other in others:
            members = set(other) if isinstance(other, list) else other
            matching = [each for each in matching if each in members]
        return matching

    def _pay_for_several(self, shape: Shape, work: int) -> bool:
        """Whether to wait for a table over several parts, which has begun to grow."""
        if not work or len(shape) == 1:
            return False
        fewest = min(len(self._families[class_key].keys) for class_key, _ in shape)
        if not self._is_wanted(shape, work, fewest):
            return False
        if shape not in self._growing:
            self._begin(_ShapeTable(shape, _lead(shape, self._families)))
        return work > SLICE and shape in self._growing

    def _owe(self, shape: Shape, cost: int, price: int) -> bool:
        """Put `cost` on the shape's account. True when it has paid for a table."""
        if not cost or price <= SCAN:
            return False
        owed, times = self._accounts.pop(shape, (0, 0))
        if len(self._accounts) >= MAX_ACCOUNTS:
            del self._accounts[next(iter(self._accounts))]  # the one not heard of for the longest time
        self._accounts[shape] = (owed + cost, times + 1)
        return (owed + cost) * EAGERNESS >= price and self._make_room(shape, times + 1)

    def _begin(self, table: _Table[K]) -> None:
        """Let a table grow: from now on it takes the changes; what is there already waits. Few keys don't wait."""
        families = {class_key: self._families[class_key] for class_key, _ in table.shape}
        for class_key, family in families.items():
            family.widen(table.shape, class_key)
        leading = families[table.shape[table.lead][0]]
        table.waiting = set(leading.keys)  # of the class that leads: each removal of these comes by here
        self._shapes[table.shape] = self._growing[table.shape] = leading.led[table.shape] = table
        self._wide += len(table.shape) > 1
        table.used += self._accounts.pop(table.shape, (0, 0))[1]
        if len(table.waiting) <= SLICE:
            self._take_in(table, SLICE)

    def _take_in(self, table: _Table[K], most: int) -> None:
        """Put at most `most` of the waiting keys in; behind the last one the table is of use."""
        families = {class_key: self._families[class_key] for class_key, _ in table.shape}
        waiting, rows = table.waiting, self._rows
        for _ in range(min(most, len(waiting))):
            key = waiting.pop()
            single, entries = rows[key]
            keys = table.keys_of(_view(families, entries))
            if keys is None:
                self._drop(table)
                self._accounts[table.shape] = (0, 0)
                return  # some item has too many keys here: not kept
            for each in keys:
                table.put(each, single)
        if waiting:
            return
        table.waiting = set()  # the old one keeps its memory
        del self._growing[table.shape]
        self._built += 1
        if isinstance(table, _PartTable):
            self._families[table.class_key].masks[table.shape[0][1]] = table

    def _make_room(self, shape: Shape, times: int) -> bool:
        """Whether a table for `shape`, wanted `times` times lately, has room: if need be, in place of tables that
        were used less than half as often. Where all are used alike nothing changes: no pushing out in turn."""
        fewest = min(len(self._families[class_key].keys) for class_key, _ in shape)
        budget = max(self._bytes_floor, self._bytes_per_key * len(self._rows))
        tables = sorted(self._shapes.values(), key=lambda table: table.used)
        spent = sum(table.weight for table in tables) + BYTES_PER_TABLE + BYTES_PER_POSTING * fewest
        leaving: list[_Table[K]] = []
        for table in tables:
            if spent <= budget and len(tables) - len(leaving) < MAX_TABLES:
                break
            if 2 * table.used >= times:  # twice: a swap has its price too
                self._age(shape)
                return False
            spent -= table.weight
            leaving.append(table)
        for table in leaving:
            self._drop(table)
        if leaving:
            self._evicted += len(leaving)
            self._age(shape)
        return True

    def _age(self, shape: Shape) -> None:
        """Halve all counts of uses: what was hot once must not stay for ever. `shape` has to pay anew."""
        for table in self._shapes.values():
            table.used //= 2
        for other, (owed, times) in self._accounts.items():
            self._accounts[other] = (0 if other == shape else owed, times // 2)

    def _drop(self, table: _Table[K]) -> None:
        del self._shapes[table.shape]
        self._growing.pop(table.shape, None)
        self._wide -= len(table.shape) > 1
        for class_key, mask in table.shape:
            family = self._families[class_key]
            family.led.pop(table.shape, None)
            if len(table.shape) == 1:
                family.masks.pop(mask, None)

    def _tables_of(self, view: View) -> list[_Table[K]]:
        return [table for class_key in view for table in self._families[class_key].led.values()]

    def _leave_family(self, class_key: ClassKey, key: K) -> None:
        family = self._families[class_key]
        family.keys = parted(family.keys, key)
        if family.keys:
            return
        for table in [t for t in self._shapes.values() if any(class_key == own for own, _ in t.shape)]:
            self._drop(table)
        del self._families[class_key]
        generations = self._generations[class_key[0]]
        generations.discard(class_key)
        if not generations:
            del self._generations[class_key[0]]


def incompatible(wanted: EntryClass, other: ClassKey) -> IncompatibleEntryError:
    """The error for a template of class `wanted` when only `other`, of the same name, is registered."""
    return IncompatibleEntryError(
        f"entry class {wanted.name} of the template has other fields than the registered one",
        hint="Generate both from the same schema",
        entry_class=wanted.name,
        template_fingerprint=wanted.fingerprint,
        registered_fingerprint=other[1],
    )


class TemplateIndex(Generic[K]):
    """Keys with their entry templates (a subscription, an event registration), found by the entries of an item.

    `max_shapes` bounds the tables that one class leads. Above it a new shape is *loose*: its keys stand in a table
    over one field, with other loose ones, and are verified when found. A loose shape with twice the keys of the
    rarest table changes places with it.
    """

    def __init__(self, *, max_shapes: int = MAX_SHAPES) -> None:
        self._max_shapes = max_shapes
        self._rows: dict[K, tuple[tuple[K], tuple[EntryRep, ...]]] = {}
        self._families: dict[ClassKey, _Family[K]] = {}
        self._generations: dict[str, set[ClassKey]] = {}
        self._shapes: dict[Shape, _Table[K]] = {}
        self._undemanding: Bucket[K] = ()
        self._loose: dict[K, Part] = {}
        self._crowds: dict[Shape, Bucket[K]] = {}
        self._built = 0
        self._evicted = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __iter__(self) -> Iterator[K]:
        return iter(self._rows)

    def strangers(self, class_key: ClassKey) -> dict[ClassKey, Collection[K]]:
        """Keys whose templates name a class as `class_key` does, but with other fields; by that class."""
        others = self._generations.get(class_key[0], set()) - {class_key}
        return {other: self._families[other].keys for other in others}

    def add(self, key: K, templates: Iterable[EntryRep]) -> None:
        """Put `key` in with its templates (ANDed; none match everything); in place of the ones it had."""
        if key in self._rows:
            self.remove(key)
        single, kept = (key,), tuple(templates)
        self._rows[key] = (single, kept)
        shape, projections = _shape(kept)
        if not shape:
            self._undemanding = joined(self._undemanding or None, single)
            return
        for class_key in {class_key for class_key, _ in shape}:
            family = self._families.get(class_key)
            if family is None:
                family = self._families[class_key] = _Family()
                self._generations.setdefault(class_key[0], set()).add(class_key)
            family.keys = joined(family.keys or None, single)
            family.widen(shape, class_key)
        table = self._shapes.get(shape) or self._open(shape)
        if table:
            table.put(projections, single)
            return
        self._loosen(shape, key)
        crowd = len(self._crowds[shape])
        if crowd >= SCAN and crowd & (crowd - 1) == 0:  # at powers of two: what moving costs is spread over adding
            self._change_places(shape, crowd)

    def remove(self, key: K) -> None:
        """Take `key` out. KeyError when it is unknown."""
        _, templates = self._rows.pop(key)
        shape, projections = _shape(templates)
        if not shape:
            self._undemanding = parted(self._undemanding, key)
            return
        if key in self._loose:
            self._tighten(shape, key, templates)
        else:
            table = self._shapes[shape]
            table.take(projections, key)
            if not table.postings:
                self._close(table)
                self._promote_instead(shape)
        for class_key in {class_key for class_key, _ in shape}:
            self._leave_family(class_key, key)

    def find(self, entries: Iterable[EntryRep]) -> list[K]:
        """The keys all of whose templates are matched by some entry, each once."""
        given = tuple(entries)
        view, pools = _view(self._families, given), _Pools()
        found = list(self._undemanding)
        for class_key, rows in view.items():
            family = self._families[class_key]
            if len(rows) == 1:
                for project, buckets in family.probes:
                    bucket = buckets.get(project(rows[0]))
                    if bucket:
                        found.extend(bucket)
            else:
                for project, buckets in family.probes:
                    for projection in set(map(project, rows)):
                        found.extend(buckets.get(projection, ()))
            for project, heads, table in family.several:
                for projection in set(map(project, rows)) if len(rows) > 1 else (project(rows[0]),):
                    inner = heads.get(projection)
                    if inner:
                        for bucket in table.find(inner, view, pools):
                            found.extend(bucket)
            for loose in family.masks.values():
                for bucket in loose.find(view, pools):
                    found.extend(key for key in bucket if self._fits(key, given))
        return found

    def status(self) -> IndexStatus:
        """The index in numbers."""
        postings = sum(table.postings for table in self._shapes.values())
        return IndexStatus(
            len(self._rows), len(self._shapes), postings, self._built, self._evicted, loose=len(self._loose)
        )

    def _fits(self, key: K, entries: tuple[EntryRep, ...]) -> bool:
        return all(any(fits(template, entry) for entry in entries) for template in self._rows[key][1])

    def _open(self, shape: Shape) -> _Table[K] | None:
        lead = _lead(shape, self._families)
        family = self._families[shape[lead][0]]
        if len(family.led) >= self._max_shapes:
            return None
        table: _Table[K] = _PartTable(shape) if len(shape) == 1 else _ShapeTable(shape, lead)
        self._shapes[shape] = family.led[shape] = table
        family.arrange()
        self._built += 1
        return table

    def _close(self, table: _Table[K]) -> None:
        del self._shapes[table.shape]
        for class_key, _ in table.shape:
            family = self._families[class_key]
            if family.led.pop(table.shape, None):
                family.arrange()

    def _loosen(self, shape: Shape, key: K) -> None:
        """Put `key` into a table over one of its fields: the one with the fewest others at that value."""
        single, templates = self._rows[key]
        fields = [
            ((t.cls.lineage[0], (position,)), value)
            for t in templates
            for position, value in enumerate(t.values)
            if value is not None
        ]
        part, value = min(fields, key=self._crowding) if fields else ((templates[0].cls.lineage[0], ()), ())
        masks = self._families[part[0]].masks
        if part[1] not in masks:
            masks[part[1]] = _PartTable((part,))
        masks[part[1]].put(value, single)
        self._loose[key] = part
        self._crowds[shape] = joined(self._crowds.get(shape), single)

    def _crowding(self, field: tuple[Part, Projection]) -> int:
        (class_key, mask), value = field
        table = self._families[class_key].masks.get(mask)
        return len(table.get(value)) if table else 0

    def _tighten(self, shape: Shape, key: K, templates: tuple[EntryRep, ...]) -> None:
        """Undo `_loosen`."""
        class_key, mask = self._loose.pop(key)
        masks = self._families[class_key].masks
        # Two templates of one class may differ in that field: it stands under one of their values.
        values = {_projector(mask)(t.values) for t in templates if t.cls.lineage[0] == class_key}
        value = next(v for v in values if v is not None and key in masks[mask].get(v))
        masks[mask].take(value, key)
        if not masks[mask].postings:
            del masks[mask]
        self._crowds[shape] = parted(self._crowds[shape], key)
        if not self._crowds[shape]:
            del self._crowds[shape]

    def _change_places(self, shape: Shape, crowd: int) -> None:
        """Give a loose shape the table of the rarest one, if that has less than half as many keys."""
        leading = shape[_lead(shape, self._families)][0]
        rarest = min(self._families[leading].led.values(), key=lambda table: table.postings)
        if 2 * rarest.postings > crowd:
            return
        self._close(rarest)
        for key in rarest.members():
            self._loosen(rarest.shape, key)
        self._evicted += 1
        self._promote(shape)

    def _promote_instead(self, closed: Shape) -> None:
        """A table is free: give it to the loose shape with the most keys."""
        classes = {class_key for class_key, _ in closed}
        able = [shape for shape in self._crowds if any(class_key in classes for class_key, _ in shape)]
        if able:
            self._promote(max(able, key=lambda shape: len(self._crowds[shape])))

    def _promote(self, shape: Shape) -> None:
        table = self._open(shape)
        if table is None:
            return
        for key in tuple(self._crowds[shape]):
            single, templates = self._rows[key]
            self._tighten(shape, key, templates)
            table.put(_shape(templates)[1], single)

    def _leave_family(self, class_key: ClassKey, key: K) -> None:
        family = self._families[class_key]
        family.keys = parted(family.keys, key)
        if family.keys:
            return
        del self._families[class_key]
        generations = self._generations[class_key[0]]
        generations.discard(class_key)
        if not generations:
            del self._generations[class_key[0]]
