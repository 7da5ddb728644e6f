"""The items of a registrar: found by id, by an equal proxy and by template; read in pages.

Rules
- An item is invisible the moment its lease has ended, reaped or not. Lease ids are secrets.
- The lookup service's own item stands beside the others, without a lease: it is there as long as the service is.
- No answer is longer than a page (`PAGE_BYTES`) and no call works longer than some milliseconds. Each item has a slot
  in the index; pages go by it, and the cursor of a page is the first slot that it has not looked at. So whoever reads
  page after page gets every item that matches all the while, once, whatever comes and goes meanwhile: an item keeps its
  slot, also when it is registered anew in its own place.

Pure, as the registrar: see there.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from hmac import compare_digest
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.lease import Landlord
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.lookup.index import ClassKey, EntryIndex, incompatible
from jbi_pubsub.lookup.item import BOUNDS, ServiceItem, ServiceMatches, ServiceTemplate, item_facets, template_facets
from jbi_pubsub.lookup.leases import unknown_lease
from jbi_pubsub.lookup.posting import Bucket, Matches, joined, parted

PAGE_BYTES: Final = (1 << 20) - BOUNDS.item_bytes
"""Size of a page, over which it goes by less than one item, to a megabyte: 1 Mbit/s carry that within the 10 s that a
client waits for an answer, and some 800 items of 1 KB share a round trip."""

PAGE_STEPS: Final = 5_000
"""Matches that one page looks at, some ms under the lock: most are live, so a page is full before, but after an outage
very many may wait for the reaper. A page may so have few items, or none, and still not be the last."""

COUNT_EACH: Final = 1_000
"""Matches up to which each is asked whether it is live, 0.1 ms; of more, those that are not are taken off."""

SIZE_UNIT: Final = 256
"""Sizes of items are remembered in such units of bytes, rounded up: 64 KiB, more than nearly all have, are 256 of them,
the largest number that CPython has ready-made."""

MAX_SHARED: Final = 100_000
"""Parts remembered for sharing: a few MB."""

SHARED_FEW, SHARED_PER_ITEM = 1_024, 16
"""No more are remembered than so many, and for each item that there is; or what comes and goes would leave its parts
behind, up to an item's size each. An item has some ten."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the cyclic garbage collector: it would walk over what has been made again and again, and find nothing,
    when hundreds of thousands of items are (two thirds of the time for 100,000)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class HeldItem(msgspec.Struct, gc=False):
    """An item and who registered it."""

    item: ServiceItem
    lease_id: str
    owner: str
    size: int  # on the wire, in SIZE_UNITs
    seal: str = ""

    @property
    def bytes(self) -> int:
        """Bytes that it counts for."""
        return self.size * SIZE_UNIT


class _Pool:
    """One copy of what many items say alike: entry classes, values, type lists, methods and endpoints.

    Items come decoded from the wire, each with its own copies; an entry class alone is 1 KB.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def share(self, item: ServiceItem, items: int) -> ServiceItem:
        """`item` made of shared parts; `items` is how many there are."""
        if len(self._known) > min(MAX_SHARED, SHARED_FEW + SHARED_PER_ITEM * items):
            self._known.clear()  # what is used will be back soon; the items keep their parts
        one = self._known.setdefault
        proxy = item.proxy
        proxy = msgspec.structs.replace(
            proxy, endpoints=one(proxy.endpoints, proxy.endpoints), methods=one(proxy.methods, proxy.methods)
        )
        entries = tuple(
            EntryRep(one(entry.cls, entry.cls), tuple([one(value, value) for value in entry.values]))
            for entry in item.entries
        )
        return ServiceItem(item.service_id, one(item.types, item.types), proxy, entries)


class ItemBook:
    """All items of a registrar, with their leases."""

    def __init__(self, own_id: str, leases: Landlord[str]) -> None:
        """`own_id`: that of the lookup service's own item."""
        self._own_id = own_id
        self._leases = leases
        self._run = uuid4().hex[:8]  # slots of another run of this lookup service say nothing
        self._items: dict[str, HeldItem] = {}
        self._by_proxy: dict[
            tuple[ServiceRef, str], Bucket[str]
        ] = {}  # and by seal: who may replace it finds it at once
        self._index: EntryIndex[str] = EntryIndex()
        self._pool = _Pool()

    def __len__(self) -> int:
        """Number of items registered, without the own one."""
        return len(self._items) - (self._own_id in self._items)

    def get(self, service_id: str) -> HeldItem | None:
        """The item of that id, its lease over or not; None: there is none."""
        return self._items.get(service_id)

    def held(self, service_id: str, lease_id: str, now: float) -> HeldItem:
        """The item that somebody has that lease for. Raises UnknownLeaseError."""
        held = self._items.get(service_id)
        if (
            held is None
            or not compare_digest(held.lease_id.encode(), lease_id.encode())
            or not self._leases.is_live(lease_id, now)
        ):
            raise unknown_lease(lease_id)
        return held

    def alike(self, proxy: ServiceRef, seal: str) -> str:
        """The id of an item with an equal proxy that may be replaced, or ""; however many others have such a one."""
        alike = chain(*(self._by_proxy.get((proxy, each), ()) for each in (seal, "")))
        return next((known for known in alike if known != self._own_id), "")

    def opens(self, seal: str, held: HeldItem, now: float) -> bool:
        """Whether who shows the key of `seal` may replace an item: its lease has ended, or it is theirs."""
        return not held.seal or compare_digest(seal, held.seal) or not self._leases.is_live(held.lease_id, now)

    def hold(self, item: ServiceItem, lease_id: str, owner: str, size: int, seal: str = "") -> HeldItem:
        """Take an item in, of `size` bytes on the wire; where it was held before, its proxy may be another one."""
        if (before := self._items.get(item.service_id)) is not None:
            self._unlink(before)
        shared = self._pool.share(item, len(self._items))
        held = self._items[item.service_id] = HeldItem(shared, lease_id, owner, units(size), seal)
        key = shared.proxy, seal
        self._by_proxy[key] = joined(self._by_proxy.get(key, ()), (shared.service_id,))
        return held

    def change(self, held: HeldItem, item: ServiceItem, size: int) -> None:
        """Give a held item other entries."""
        held.item = self._pool.share(item, len(self._items))
        held.size = units(size)

    def index(self, item: ServiceItem) -> list[ClassKey]:
        """Let templates find an item by what it says now; the classes of it that nobody had registered before."""
        classes = {class_key for entry in item.entries for class_key in entry.cls.lineage}
        appeared = [class_key for class_key in classes if not self._index.has_class(class_key)]
        self._index.add(item.service_id, item_facets(item)[1:])  # not the id: `_items` finds it
        return appeared

    def unindex(self, service_id: str) -> None:
        """Let no template find an item any more. Not before it is held anew: it keeps its slot."""
        self._index.remove(service_id)

    def drop(self, held: HeldItem) -> None:
        """Let an item go, with its lease."""
        del self._items[held.item.service_id]
        self._leases.drop(held.lease_id)
        self._unlink(held)

    def has_class(self, class_key: ClassKey) -> bool:
        """Whether an entry of that class is registered."""
        return self._index.has_class(class_key)

    def check_classes(self, template: ServiceTemplate) -> None:
        """Raise IncompatibleEntryError if an entry class of a template is registered with other fields alone."""
        for entry in template.entries:
            other = self._index.generation(entry.cls.name)
            if other and not self._index.has_class(entry.cls.lineage[0]):
                raise incompatible(entry.cls, other)

    def page(
        self, template: ServiceTemplate, now: float, limit: int, most: int, *, total: bool, after: str
    ) -> ServiceMatches:
        """At most `limit` matching items, and `most` in one page. Raises EntryError, IncompatibleEntryError."""
        first = self._slot_of(after) if after else 0
        if template.service_id:
            found = self._by_id(template, now)
            return ServiceMatches(found[:limit], len(found) if total else -1)
        matches = self._index.find(template_facets(template))
        count = self._count(matches, now) if total else -1
        items, further = self._read(matches, first, limit, most, now)
        return ServiceMatches(tuple(items), count, f"{self._run}:{further}" if further else "")

    def _by_id(self, template: ServiceTemplate, now: float) -> tuple[ServiceItem, ...]:
        held = self._items.get(template.service_id)
        found = held is not None and self._leases.is_live(held.lease_id, now) and template.matches(held.item)
        return (held.item,) if held is not None and found else ()

    def _read(
        self, matches: Matches[str], first: int, limit: int, most: int, now: float
    ) -> tuple[list[ServiceItem], int]:
        """A page from slot `first` on; the slot to go on from, 0 if there are no more."""
        items: list[ServiceItem] = []
        is_live, room, steps = self._leases.is_live, PAGE_BYTES // SIZE_UNIT, PAGE_STEPS
        for slot, service_id in matches.ascending(first):
            if len(items) == limit:
                break
            if room <= 0 or steps <= 0 or len(items) == most:
                return items, slot
            steps -= 1
            held = self._items[service_id]
            if is_live(held.lease_id, now):
                items.append(held.item)
                room -= held.size
        return items, 0

    def _count(self, matches: Matches[str], now: float) -> int:
        """Number of the matching items that are live: all but those that wait to be expired."""
        if len(matches) <= COUNT_EACH:
            return sum(self._leases.is_live(self._items[service_id].lease_id, now) for service_id in matches)
        return len(matches) - sum(service_id in matches for service_id in self._leases.overdue(now))

    def _slot_of(self, cursor: str) -> int:
        """The slot that a cursor names; one of an earlier run begins again."""
        run, _, number = cursor.rpartition(":")
        if not (run and number.isascii() and number.isdigit() and len(number) < 20):
            raise EntryError("this is not a cursor of a lookup", hint="Give back `after` of the page before as it is")
        return int(number) if run == self._run else 0

    def _unlink(self, held: HeldItem) -> None:
        key = held.item.proxy, held.seal
        others = parted(self._by_proxy[key], held.item.service_id)
        if others:
            self._by_proxy[key] = others
        else:
            del self._by_proxy[key]


def units(size: int) -> int:
    """Bytes in SIZE_UNITs, rounded up."""
    return -(-size // SIZE_UNIT)
