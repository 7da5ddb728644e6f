"""The registrar: what a lookup service knows and decides, without network, thread, disk or clock.

Rules (Jini Lookup Service Specification LU.2; Apache River's Reggie where the specification leaves it open)
- register: id "" takes the id of an item with an equal proxy, else a new one; a given id is taken as it is. An item
  under that id is replaced, its lease dies. The call is atomic, and is announced as delete, then create.
- Ids are public, so an item may be registered with a key: as long as its lease lives, only who shows the key may
  replace it. The key's hash is kept, never the key. (Jini lets everybody replace; there the proxy's code is signed.)
- The lookup service's own item stands beside the others, without a lease: it is there as long as the service is.
- Equal entries of one item stand once.
- An item is invisible the moment its lease has ended, reaped or not. Lease ids are secrets: who has one, may renew,
  cancel and change. Expired, cancelled, superseded and foreign lease ids are all the same UnknownLeaseError.
- modify: all templates are held against the state before the call; a deletion wins over updates of the same entry;
  equal entries are merged at the very end.
- Generations of an entry class (same name, other fields) may be registered side by side, so that publishers can move
  on one by one; a template means its own. Only where its own is not registered, but another is, the answer is
  IncompatibleEntryError instead of silence (for event registrations made before: one diagnostic).
- What has to be sent is returned (`Outcome`), never sent here: decide under the lock, act after it.
- No answer is longer than a page (`PAGE_BYTES`) and no call works longer than some milliseconds. Each item has a slot
  in the index; pages go by it, and the cursor of a page is the first slot that it has not looked at. So whoever reads
  page after page gets every item that matches all the while, once, whatever comes and goes meanwhile: an item keeps its
  slot, also when it is registered anew in its own place.

`now` is monotonic seconds. The caller holds one lock around every call, lookups included.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from hmac import compare_digest
from itertools import chain, zip_longest
from secrets import token_hex
from typing import Any, Final, Generic, Literal, Protocol, TypeVar
from uuid import uuid4

import msgspec

from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    EntryError,
    LeaseDeniedError,
    OversizeError,
    StorageError,
    UnknownLeaseError,
    report,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.lease import (
    DEFAULT_DURATION,
    DEFAULT_INTERVAL,
    FOREVER,
    Landlord,
    Lease,
    LeasePeriodPolicy,
    LoadScaledLeasePeriodPolicy,
)
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import check_endpoint
from jbi_pubsub.lookup.entry import EntryRep, check_rep, matches
from jbi_pubsub.lookup.events import AddressedDiagnostic, AddressedEvent, EventBook, Interest, check_transitions
from jbi_pubsub.lookup.index import EntryIndex, incompatible
from jbi_pubsub.lookup.item import (
    BOUNDS,
    EventRegistration,
    ItemBounds,
    LeaseResult,
    ServiceItem,
    ServiceMatches,
    ServiceRegistration,
    ServiceTemplate,
    item_facets,
    size_of,
    template_facets,
)
from jbi_pubsub.lookup.posting import Bucket, Matches, joined, parted
from jbi_pubsub.lookup.status import RegistrarStatus

EVENT_LEASE_FACTOR: Final = 6
"""Event leases last that many times longer than item leases (Reggie: 30 minutes to 5): a lost listener costs less
than a dead service that clients still find."""

PUBLIC_GROUP: Final = ""
"""The group that every client looks in (Jini DJ.2.1)."""

ALL_GROUPS: Final = "*"
"""In the groups of a client: every group (Jini's DiscoveryGroupManagement.ALL_GROUPS). No group can have this name."""

OWN_LEASE: Final = "own"
"""Lease id of the registrar's own item in the book of leases; nobody can renew or cancel it."""


class RegistrarLimits(ItemBounds, frozen=True, forbid_unknown_fields=True):
    """Bounds, so that no client can take all memory: those of one item, and how many there are.

    A million items of 2 KB are 2 GB. One owner gets a tenth of the places, and of the bytes on the wire of all that he
    has here 128 MiB. `matches` bounds the items of one page.
    """

    items: int = 1_000_000
    items_per_owner: int = 100_000
    event_registrations: int = 1_000_000
    event_registrations_per_owner: int = 100_000
    bytes_per_owner: int = 1 << 27
    matches: int = 10_000
    groups: int = 64


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

MAX_GROUP: Final = 255
"""Characters of a group name: it travels in a DNS-SD TXT string (RFC 6763 section 6.1: 255 bytes)."""

MAX_SHARED: Final = 100_000
"""Parts remembered for sharing: a few MB."""

SHARED_FEW, SHARED_PER_ITEM = 1_024, 16
"""No more are remembered than so many, and for each item that there is; or what comes and goes would leave its parts
behind, up to an item's size each. An item has some ten."""

_COUNTERS: Final = ("lookups", "changes", "renewals", "expired", "events", "diagnostics", "refused")

R = TypeVar("R")


class Outcome(msgspec.Struct, Generic[R], frozen=True):
    """Decision of a call: `result` for the caller; `events` and `diagnostics` as (listener, message) to send, in this
    order, when the lock is released."""

    result: R
    events: tuple[AddressedEvent, ...] = ()
    diagnostics: tuple[AddressedDiagnostic, ...] = ()


class RegistrarAdmin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Administration of a lookup service: the groups served ("" is public; () means in none), the locators (host:port)
    of other lookup services to join, the port to listen on, and whether this one was destroyed.

    `chosen` names what an administrator has set, which wins over the configuration from then on. `secret` is what
    this lookup service makes its keys at other lookup services from; it never leaves the process and its store.
    """

    service_id: str
    groups: tuple[str, ...] = (PUBLIC_GROUP,)
    locators: tuple[str, ...] = ()
    destroyed: bool = False
    port: int = 0
    chosen: tuple[str, ...] = ()
    secret: str = ""


Kind = Literal["items", "event_registrations"]
"""Purpose of a lease. Clients may choose service ids, so an id alone does not tell."""


class ItemKept(msgspec.Struct, frozen=True, tag="item", gc=False):
    """Log record: an item is registered, or has a new state. `expires` is monotonic, `term` what was granted, `size`
    the item's on the wire (a log may say somewhat more), `seal` the hash of the key it was registered with ("":
    none)."""

    item: ServiceItem
    lease_id: str
    owner: str
    expires: float
    term: float
    size: int
    seal: str = ""


class InterestKept(msgspec.Struct, frozen=True, tag="interest"):
    """Log record: an event registration."""

    interest: Interest
    expires: float
    term: float


class LeaseMoved(msgspec.Struct, frozen=True, tag="lease"):
    """Log record: the lease of the item or event registration `kept` was renewed."""

    kind: Kind
    kept: str
    expires: float
    term: float


class Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    """Log record: the item or event registration `kept` is gone."""

    kind: Kind
    kept: str


LogRecord = ItemKept | InterestKept | LeaseMoved | Dropped | RegistrarAdmin


class RegistrarLog(Protocol):
    """Where a registrar writes what has to survive it. Both are called under the registrar's lock: don't block."""

    def admit(self) -> None:
        """Raise StorageError if nothing new may be accepted (the disk is full)."""

    def write(self, records: Sequence[LogRecord]) -> None:
        """Take the records of one call; they become durable together."""


class KeptState(msgspec.Struct, frozen=True):
    """All that a log has kept, for `Registrar.restore`. `expires` are on the scale of the new `now`; the interests'
    numbers are those to go on from."""

    admin: RegistrarAdmin | None = None
    items: tuple[ItemKept, ...] = ()
    interests: tuple[InterestKept, ...] = ()


class _Held(msgspec.Struct, gc=False):
    item: ServiceItem
    lease_id: str
    owner: str
    size: int  # on the wire, in SIZE_UNITs
    seal: str = ""


class Registrar:
    """The state of one lookup service. See the rules above; errors are raised before anything is changed.

    `service_id` is the registrar's own (a new one by default). `item_leases` and `event_leases` default to maxima
    that grow with the load, so that all renewals together stay below 10 a second (LoadScaledLeasePeriodPolicy).
    `log` makes the state durable. `new_id` makes ids of services, events and leases; they must be unguessable.
    `groups`, `locators` and `port` are as configured: they count as long as no administrator has set others.
    `stall`: seconds between two looks into the leases beyond which they were left alone (see Landlord).
    """

    def __init__(
        self,
        *,
        service_id: str | None = None,
        item_leases: LeasePeriodPolicy | None = None,
        event_leases: LeasePeriodPolicy | None = None,
        limits: RegistrarLimits | None = None,
        groups: Sequence[str] = (PUBLIC_GROUP,),
        locators: Sequence[str] = (),
        port: int = 0,
        log: RegistrarLog | None = None,
        new_id: Callable[[], str] = lambda: uuid4().hex,
        stall: float = math.inf,
    ) -> None:
        self._limits = limits or RegistrarLimits()
        self._new_id = new_id
        self._log = log
        self._items: dict[str, _Held] = {}
        self._run = uuid4().hex[:8]  # slots of another run of this lookup service say nothing
        self._by_proxy: dict[
            tuple[ServiceRef, str], Bucket[str]
        ] = {}  # and by seal: who may replace it finds it at once
        self._index: EntryIndex[str] = EntryIndex()
        self._book = EventBook()
        self._item_leases: Landlord[str] = Landlord(item_leases or self._scaled(1), new_id=new_id, stall=stall)
        self._event_leases: Landlord[str] = Landlord(
            event_leases or self._scaled(EVENT_LEASE_FACTOR), new_id=new_id, stall=stall
        )
        self._owned: Counter[tuple[Kind, str]] = Counter()
        self._bytes: Counter[str] = Counter()
        """On the wire, of all that an owner has here."""
        self._counts: Counter[str] = Counter()
        self._pool = _Pool()
        self._admin = RegistrarAdmin(
            service_id or new_id(),
            self._check_groups(groups),
            self._check_locators(locators),
            port=check_port(port),
            secret=token_hex(16),
        )

    @property
    def service_id(self) -> str:
        """The registrar's own id."""
        return self._admin.service_id

    # -- register and look up (LU.2.2, LU.2.3) ------------------------------------------------------------------

    def register(
        self, item: ServiceItem, duration: float, now: float, *, owner: str = "", key: str = ""
    ) -> Outcome[ServiceRegistration]:
        """Register `item` for `duration` seconds (or ANY, FOREVER), in place of the one that has its id or, without
        an id, an equal proxy.

        `owner` is who it counts for (limits only). `key` is a secret of the registrant's: while the lease lives the
        item can be replaced with it only; "" lets everybody. An item with an equal proxy that `key` does not open is
        left alone: there is a new id then.

        Raises EntryError (malformed), OversizeError, AccessDeniedError (the registrar's own id, or another's item),
        LeaseDeniedError (bad duration, or no room), StorageError (disk full).
        """
        size = self._check_item(item)
        self._limits.check_text("owner", owner)
        self._limits.check_text("key", key)
        seal = sha256(key.encode()).hexdigest() if key else ""
        service_id = item.service_id or self._alike(item.proxy, seal) or self._new_id()
        replaced = self._items.get(service_id)
        if replaced is not None and not self._opens(seal, replaced, now):
            raise AccessDeniedError(
                f"service {service_id} is registered by another owner",
                hint="Register under an id of your own; this one is free when its lease has run out",
                service_id=service_id,
            )
        freed = replaced.size * SIZE_UNIT if replaced and replaced.owner == owner else 0
        self._check_room("items", self._registered(), owner, replaced.owner if replaced else None)
        self._check_bytes(owner, size - freed)
        self._check_log()
        lease = self._item_leases.grant(service_id, duration, now)
        kept = msgspec.structs.replace(item, service_id=service_id, entries=_distinct(item.entries))
        kept = self._pool.share(kept, len(self._items))
        events = self._let_go(replaced, now) if replaced else []
        self._hold(kept, lease.lease_id, owner, size, seal)
        self._own("items", owner, _units(size) * SIZE_UNIT)
        diagnostics = self._put(kept, now)
        events += self._fire(None, kept, now)
        self._write(ItemKept(kept, lease.lease_id, owner, now + lease.duration, lease.duration, size, seal))
        return Outcome(
            ServiceRegistration(service_id, lease.lease_id, lease.duration), tuple(events), tuple(diagnostics)
        )

    def lookup(self, template: ServiceTemplate, now: float) -> ServiceItem | None:
        """Any one matching item, or None. Raises EntryError, IncompatibleEntryError."""
        page = self.lookup_all(template, now, 1)
        return page.items[0] if page.items else None

    def lookup_all(
        self, template: ServiceTemplate, now: float, limit: int, *, total: bool = False, after: str = ""
    ) -> ServiceMatches:
        """As `page`, however long it takes; a page with no item has none behind it either."""
        while True:
            page = self.page(template, now, limit, total=total, after=after)
            if page.items or not page.after:
                return page
            after = page.after

    def page(
        self, template: ServiceTemplate, now: float, limit: int, *, total: bool = False, after: str = ""
    ) -> ServiceMatches:
        """At most `limit` matching items (0: none), and how many match in all if `total`. Where they are more than a
        page, its `after` is the cursor to go on with; one of an earlier run begins again.

        Raises EntryError (malformed, or a negative limit), IncompatibleEntryError.
        """
        if limit < 0:
            raise EntryError(f"limit of a lookup is {limit}", hint="Use 0 or more", limit=limit)
        first = self._read_cursor(after) if after else 0
        self._limits.check_parts("template", template)
        self._counts["lookups"] += 1
        if template.service_id:
            found = self._by_id(template, now)
            return ServiceMatches(found[:limit], len(found) if total else -1)
        matches = self._index.find(template_facets(template))
        count = self._count(matches, now) if total else -1
        items, further = self._page(matches, first, limit, now)
        return ServiceMatches(tuple(items), count, f"{self._run}:{further}" if further else "")

    # -- attributes (LU.2.6) ------------------------------------------------------------------------------------

    def add_attributes(self, service_id: str, lease_id: str, entries: Sequence[EntryRep], now: float) -> Outcome[None]:
        """Add entries to an item; those it has already stay once. Raises UnknownLeaseError, EntryError,
        OversizeError, LeaseDeniedError (no room), StorageError."""
        held = self._held(service_id, lease_id, now)
        return self._change(held, (*held.item.entries, *entries), now)

    def set_attributes(self, service_id: str, lease_id: str, entries: Sequence[EntryRep], now: float) -> Outcome[None]:
        """Replace all entries of an item, () clears them. Raises as add_attributes."""
        return self._change(self._held(service_id, lease_id, now), tuple(entries), now)

    def modify_attributes(
        self,
        service_id: str,
        lease_id: str,
        changes: Sequence[tuple[EntryRep, EntryRep | None]],
        now: float,
    ) -> Outcome[None]:
        """Change entries by pairs (template, update): each entry that matched the template before the call takes the
        update's set fields, or goes if the update is None. The update's class must be the template's or an ancestor.
        Raises as add_attributes, and IncompatibleEntryError."""
        held = self._held(service_id, lease_id, now)
        for template, update in changes:
            _check_change(template, update)
        modified = (_modified(entry, changes) for entry in held.item.entries)
        return self._change(held, tuple(entry for entry in modified if entry is not None), now)

    # -- events (LU.2.4) ----------------------------------------------------------------------------------------

    def notify(
        self,
        template: ServiceTemplate,
        transitions: int,
        duration: float,
        now: float,
        *,
        handback: str = "",
        owner: str = "",
        listener: str = "",
    ) -> Outcome[EventRegistration]:
        """Ask for events of changes to what matches `template`. `listener` names the client's channel, `handback`
        comes back with each event.

        Raises EntryError (malformed template, no transitions), IncompatibleEntryError, OversizeError,
        LeaseDeniedError (bad duration, or no room). A log that takes nothing new is no reason to refuse: whoever finds
        the registration gone after a restart makes it again.
        """
        self._limits.check_parts("template", template)
        for entry in template.entries:
            other = self._index.generation(entry.cls.name)
            if other and not self._index.has_class(entry.cls.lineage[0]):
                raise incompatible(entry.cls, other)
        kind = check_transitions(transitions)
        size = self._limits.check_size("event registration", (template, handback, owner, listener))
        self._check_room("event_registrations", len(self._book), owner, None)
        self._check_bytes(owner, size)
        event_id = self._new_id()
        lease = self._event_leases.grant(event_id, duration, now)
        interest = Interest(event_id, template, kind, listener, lease.lease_id, handback, owner)
        self._own_interest(interest)
        self._write(InterestKept(interest, now + lease.duration, lease.duration))
        return Outcome(EventRegistration(event_id, interest.number, lease.lease_id, lease.duration))

    # -- leases -------------------------------------------------------------------------------------------------

    def renew(self, lease_id: str, duration: float, now: float) -> Outcome[Lease]:
        """A new term for the lease of an item or event registration. Raises UnknownLeaseError, LeaseDeniedError."""
        lease, record = self._renew(lease_id, duration, now)
        self._write(record)
        return Outcome(lease)

    def renew_all(self, leases: Sequence[tuple[str, float]], now: float) -> Outcome[tuple[LeaseResult, ...]]:
        """Renew (lease id, duration) pairs; a result for each, and one log record for all."""
        results: list[LeaseResult] = []
        records: list[LogRecord] = []
        for lease_id, duration in leases:
            try:
                lease, record = self._renew(lease_id, duration, now)
            except (UnknownLeaseError, LeaseDeniedError) as error:  # this lease's result, the others go on
                results.append(LeaseResult(lease_id, error=report(error)))
            else:
                results.append(LeaseResult(lease_id, lease.duration))
                records.append(record)
        self._write(*records)
        return Outcome(tuple(results))

    def has_lease(self, lease_id: str, now: float) -> bool:
        """Whether the lease of an item or event registration lives."""
        return self._item_leases.is_live(lease_id, now) or self._event_leases.is_live(lease_id, now)

    def cancel(self, lease_id: str, now: float) -> Outcome[None]:
        """End a lease: its item or event registration goes. Raises UnknownLeaseError."""
        dropped, events = self._cancel(lease_id, now)
        self._write(dropped)
        return Outcome(None, tuple(events))

    def cancel_all(self, lease_ids: Sequence[str], now: float) -> Outcome[tuple[LeaseResult, ...]]:
        """Cancel leases; a result for each, and one log record for all."""
        results: list[LeaseResult] = []
        records: list[LogRecord] = []
        events: list[AddressedEvent] = []
        for lease_id in lease_ids:
            try:
                dropped, told = self._cancel(lease_id, now)
            except UnknownLeaseError as error:  # this lease's result, the others go on
                results.append(LeaseResult(lease_id, error=report(error)))
            else:
                results.append(LeaseResult(lease_id))
                records.append(dropped)
                events += told
        self._write(*records)
        return Outcome(tuple(results), tuple(events))

    def expire(self, now: float, limit: int = 1000) -> Outcome[int]:
        """Take out at most `limit` items and as many event registrations whose lease has ended; the result is how
        many. Call again at once when it is `limit` or more, else at `next_deadline`."""
        silent = self._event_leases.expire(now, limit)  # first: an expired registration hears nothing of the items
        events: list[AddressedEvent] = []
        for event_id in silent:
            with guarded("lookup expiry"):  # one that can't be taken out must not keep the others
                self._stop(event_id)
        gone = self._item_leases.expire(now, limit)
        for service_id in gone:
            with guarded("lookup expiry"):
                events += self._withdraw(service_id, now)
        self._counts["expired"] += len(silent) + len(gone)
        self._write(*(Dropped("event_registrations", event_id) for event_id in silent))
        self._write(*(Dropped("items", service_id) for service_id in gone))
        return Outcome(len(silent) + len(gone), tuple(events))

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expire` may have work, or None."""
        deadlines = (self._item_leases.next_deadline(), self._event_leases.next_deadline())
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- administration (LU.2.7; DiscoveryAdmin, JoinAdmin, DestroyAdmin) -----------------------------------------

    def admin(self) -> RegistrarAdmin:
        """Administration as it is now."""
        return self._admin

    def set_groups(self, groups: Sequence[str]) -> Outcome[RegistrarAdmin]:
        """The groups to serve from now on; () serves in none. Raises EntryError, OversizeError, StorageError."""
        return self._set(groups=self._check_groups(groups))

    def set_locators(self, locators: Sequence[str]) -> Outcome[RegistrarAdmin]:
        """The lookup services (host:port) to join from now on. Raises ConfigurationError, OversizeError,
        StorageError."""
        return self._set(locators=self._check_locators(locators))

    def set_port(self, port: int) -> Outcome[RegistrarAdmin]:
        """The port to listen on from now on, and after a restart. Raises ConfigurationError, StorageError."""
        return self._set(port=check_port(port))

    def put_own(self, item: ServiceItem, now: float) -> Outcome[None]:
        """Show the lookup service's own item (Jini's lookup services register with themselves), or what has become of
        it. It has no lease, counts for nobody and is not kept: each start puts it anew. Raises EntryError."""
        if item.service_id != self.service_id:
            raise EntryError(f"service id {item.service_id} is not the lookup service's own")
        kept = msgspec.structs.replace(item, entries=_distinct(item.entries))
        size = size_of("item", kept)  # unbounded: nobody can make it large from outside
        held = self._items.get(self.service_id)
        before = held.item if held else None
        if held is None:
            self._item_leases.restore(OWN_LEASE, self.service_id, FOREVER)
            self._hold(kept, OWN_LEASE, "", size)
        else:  # it keeps its place in the pages
            self._unlink(held)
            held.item, held.size = kept, _units(size)
            self._link(held)
        diagnostics = self._put(kept, now)
        events = self._fire(before, kept, now)
        return Outcome(None, tuple(events), tuple(diagnostics))

    def destroy(self) -> Outcome[RegistrarAdmin]:
        """End for good: all items, event registrations and leases go, nobody is told, and nothing new is accepted."""
        for landlord in (self._item_leases, self._event_leases):
            for lease_id, _, _ in tuple(landlord.items()):
                landlord.drop(lease_id)
        self._items, self._by_proxy, self._owned, self._bytes = {}, {}, Counter(), Counter()
        self._index, self._book = EntryIndex(), EventBook()
        return self._administer(destroyed=True)

    def status(self) -> RegistrarStatus:
        """The registrar in numbers; its own item does not count."""
        return RegistrarStatus(
            service_id=self.service_id,
            groups=self._admin.groups,
            items=self._registered(),
            event_registrations=len(self._book),
            owners=len({owner for _, owner in self._owned}),
            item_lease_maximum=self._item_leases.policy.period(FOREVER, 0.0),
            event_lease_maximum=self._event_leases.policy.period(FOREVER, 0.0),
            **{name: self._counts[name] for name in _COUNTERS},  # type: ignore[arg-type]  # they are its counters
        )

    def restore(self, state: KeptState, now: float) -> None:
        """Take over what a log has kept, into a registrar that is still empty. Leases go on as they were; those
        that have ended meanwhile are taken out, with their events, by the next `expire`."""
        with uncollected():
            self._restore(state, now)

    def _restore(self, state: KeptState, now: float) -> None:
        if state.admin is None:
            self._write(self._admin)  # new: its id has to survive
        else:
            self._admin = self._reconfigured(state.admin)
        for each in state.items:
            kept = self._pool.share(each.item, len(state.items))
            service_id = kept.service_id
            self._item_leases.restore(each.lease_id, service_id, each.expires)
            self._hold(kept, each.lease_id, each.owner, each.size, each.seal)
            self._own("items", each.owner, _units(each.size) * SIZE_UNIT)
            self._put(kept, now)
        for record in state.interests:
            interest = record.interest
            self._event_leases.restore(interest.lease_id, interest.event_id, record.expires)
            self._own_interest(interest)

    # -- inside -------------------------------------------------------------------------------------------------

    def _hold(self, item: ServiceItem, lease_id: str, owner: str, size: int, seal: str = "") -> None:
        held = self._items[item.service_id] = _Held(item, lease_id, owner, _units(size), seal)
        self._link(held)

    def _by_id(self, template: ServiceTemplate, now: float) -> tuple[ServiceItem, ...]:
        held = self._items.get(template.service_id)
        found = held is not None and self._item_leases.is_live(held.lease_id, now) and template.matches(held.item)
        return (held.item,) if held is not None and found else ()

    def _page(self, matches: Matches[str], first: int, limit: int, now: float) -> tuple[list[ServiceItem], int]:
        """A page of at most `limit` items from slot `first` on; the slot to go on from, 0 if there are no more."""
        items: list[ServiceItem] = []
        is_live, room, steps = self._item_leases.is_live, PAGE_BYTES // SIZE_UNIT, PAGE_STEPS
        for slot, service_id in matches.ascending(first):
            if len(items) == limit:
                break
            if room <= 0 or steps <= 0 or len(items) == self._limits.matches:
                return items, slot
            steps -= 1
            held = self._items[service_id]
            if is_live(held.lease_id, now):
                items.append(held.item)
                room -= held.size
        return items, 0

    def _count(self, matches: Matches[str], now: float) -> int:
        """Number of the matching items that are live: all but those that wait for `expire`."""
        if len(matches) <= COUNT_EACH:
            return sum(self._item_leases.is_live(self._items[service_id].lease_id, now) for service_id in matches)
        return len(matches) - sum(service_id in matches for service_id in self._item_leases.overdue(now))

    def _read_cursor(self, after: str) -> int:
        run, _, number = after.rpartition(":")
        if not (run and number.isascii() and number.isdigit() and len(number) < 20):
            raise EntryError("this is not a cursor of a lookup", hint="Give back `after` of the page before as it is")
        return int(number) if run == self._run else 0

    def _held(self, service_id: str, lease_id: str, now: float) -> _Held:
        held = self._items.get(service_id)
        if (
            held is None
            or not compare_digest(held.lease_id.encode(), lease_id.encode())
            or not self._item_leases.is_live(lease_id, now)
        ):
            raise _unknown_lease(lease_id)
        return held

    def _change(self, held: _Held, entries: tuple[EntryRep, ...], now: float) -> Outcome[None]:
        """Give an item other entries, and tell who wants to know."""
        before = held.item
        after = msgspec.structs.replace(before, entries=_distinct(entries))
        size = self._check_item(after)
        self._check_bytes(held.owner, size - held.size * SIZE_UNIT)
        self._check_log()
        after = held.item = self._pool.share(after, len(self._items))
        self._bytes[held.owner] += (_units(size) - held.size) * SIZE_UNIT
        held.size = _units(size)
        diagnostics = self._put(after, now) if after.entries != before.entries else []
        events = self._fire(before, after, now)
        lease_id = held.lease_id
        left = self._item_leases.left(lease_id, now)
        self._write(ItemKept(after, lease_id, held.owner, now + left, left, size, held.seal))
        return Outcome(None, tuple(events), tuple(diagnostics))

    def _put(self, item: ServiceItem, now: float) -> list[AddressedDiagnostic]:
        """Index an item; what to say of classes that nobody had registered before."""
        classes = {class_key for entry in item.entries for class_key in entry.cls.lineage}
        appeared = [class_key for class_key in classes if not self._index.has_class(class_key)]
        self._index.add(item.service_id, item_facets(item)[1:])  # not the id: `_items` finds it
        if not appeared or not self._book:
            return []
        said = self._book.diagnose(sorted(appeared), item.service_id, self._index.has_class, self._hears(now))
        self._counts["diagnostics"] += len(said)
        return said

    def _fire(self, before: ServiceItem | None, after: ServiceItem | None, now: float) -> list[AddressedEvent]:
        events = self._book.fire(before, after, self._hears(now))
        self._counts["changes"] += 1
        self._counts["events"] += len(events)
        return events

    def _hears(self, now: float) -> Callable[[str], bool]:
        return lambda lease_id: self._event_leases.is_live(lease_id, now)

    def _withdraw(self, service_id: str, now: float) -> list[AddressedEvent]:
        """Take an item out, with its lease."""
        self._index.remove(service_id)
        return self._let_go(self._items[service_id], now)

    def _let_go(self, held: _Held, now: float) -> list[AddressedEvent]:
        """The same but for the index, where another one is about to take its place."""
        del self._items[held.item.service_id]
        self._item_leases.drop(held.lease_id)
        self._unlink(held)
        self._own("items", held.owner, -held.size * SIZE_UNIT, -1)
        return self._fire(held.item, None, now)

    def _link(self, held: _Held) -> None:
        key = held.item.proxy, held.seal
        self._by_proxy[key] = joined(self._by_proxy.get(key, ()), (held.item.service_id,))

    def _unlink(self, held: _Held) -> None:
        key = held.item.proxy, held.seal
        others = parted(self._by_proxy[key], held.item.service_id)
        if others:
            self._by_proxy[key] = others
        else:
            del self._by_proxy[key]

    def _stop(self, event_id: str) -> None:
        interest = self._book.remove(event_id)
        self._own("event_registrations", interest.owner, -_size_of(interest), -1)

    def _own_interest(self, interest: Interest) -> None:
        self._book.add(interest)
        self._own("event_registrations", interest.owner, _size_of(interest))

    def _own(self, kind: Kind, owner: str, size: int, count: int = 1) -> None:
        self._owned[kind, owner] += count
        self._bytes[owner] += size
        if not self._owned[kind, owner]:
            del self._owned[kind, owner]
        if not self._bytes[owner]:
            del self._bytes[owner]

    def _renew(self, lease_id: str, duration: float, now: float) -> tuple[Lease, LeaseMoved]:
        kind, landlord = self._landlord(lease_id, now)
        kept = landlord.resource(lease_id, now)
        lease = landlord.renew(lease_id, duration, now)
        self._counts["renewals"] += 1
        return lease, LeaseMoved(kind, kept, now + lease.duration, lease.duration)

    def _cancel(self, lease_id: str, now: float) -> tuple[Dropped, list[AddressedEvent]]:
        kind, landlord = self._landlord(lease_id, now)
        kept = landlord.cancel(lease_id, now)
        if kind == "items":
            return Dropped(kind, kept), self._withdraw(kept, now)
        self._stop(kept)
        return Dropped(kind, kept), []

    def _landlord(self, lease_id: str, now: float) -> tuple[Kind, Landlord[str]]:
        if lease_id == OWN_LEASE:  # known to everybody, and nobody's
            raise _unknown_lease(lease_id)
        if self._event_leases.is_live(lease_id, now):
            return "event_registrations", self._event_leases
        return "items", self._item_leases

    def _set(self, **changes: Any) -> Outcome[RegistrarAdmin]:
        """Set what is to hold after a restart: refused where it can't be kept; an end (`destroy`) never is."""
        self._check_log()
        return self._administer(**changes)

    def _administer(self, **changes: Any) -> Outcome[RegistrarAdmin]:
        chosen = tuple(dict.fromkeys((*self._admin.chosen, *(name for name in changes if name != "destroyed"))))
        self._admin = msgspec.structs.replace(self._admin, chosen=chosen, **changes)
        self._write(self._admin)
        return Outcome(self._admin)

    def _reconfigured(self, kept: RegistrarAdmin) -> RegistrarAdmin:
        """Administration that was kept, with what no administrator has set as it is configured now."""
        configured = {
            name: getattr(self._admin, name) for name in ("groups", "locators", "port") if name not in kept.chosen
        }
        return msgspec.structs.replace(kept, secret=kept.secret or self._admin.secret, **configured)

    def _alike(self, proxy: ServiceRef, seal: str) -> str:
        """The id of an item with an equal proxy that may be replaced, or ""; however many others have such a one."""
        alike = chain(*(self._by_proxy.get((proxy, each), ()) for each in (seal, "")))
        return next((known for known in alike if known != self.service_id), "")

    def _opens(self, seal: str, held: _Held, now: float) -> bool:
        """Whether who shows the key of `seal` may replace an item: its lease has ended, or it is theirs."""
        return not held.seal or compare_digest(seal, held.seal) or not self._item_leases.is_live(held.lease_id, now)

    def _registered(self) -> int:
        """Number of items registered, without the own one."""
        return len(self._items) - (self.service_id in self._items)

    def _check_item(self, item: ServiceItem) -> int:
        """The item's size on the wire."""
        if item.service_id == self.service_id:
            raise AccessDeniedError(
                f"service id {item.service_id} is the lookup service's own", hint="Leave it empty to get a new one"
            )
        return self._limits.check("item", item)

    def _check_room(self, kind: Kind, taken: int, owner: str, replaced: str | None) -> None:
        """Raise LeaseDeniedError if `owner` can't have one more; `replaced` is the owner whose place becomes free."""
        most = self._limits.items if kind == "items" else self._limits.event_registrations
        own = self._limits.items_per_owner if kind == "items" else self._limits.event_registrations_per_owner
        if self._admin.destroyed:
            why = "the lookup service was destroyed"
        elif taken - (replaced is not None) >= most:
            why = f"the lookup service has its {most} {kind}"
        elif self._owned[kind, owner] - (replaced == owner) >= own:
            why = f"{owner or 'this client'} has its {own} {kind}"
        else:
            return
        self._counts["refused"] += 1
        raise LeaseDeniedError(why, hint="Cancel some, or use another lookup service", kind=kind)

    def _check_bytes(self, owner: str, more: int) -> None:
        """Raise LeaseDeniedError if `owner` can't have so many bytes more."""
        most = self._limits.bytes_per_owner
        if more > 0 and self._bytes[owner] + more > most:
            self._counts["refused"] += 1
            what = (
                f"{owner or 'this client'} has {self._bytes[owner]:,} of its {most:,} bytes, and asks for {more:,} more"
            )
            raise LeaseDeniedError(what, hint="Cancel some, or use another lookup service")

    def _check_log(self) -> None:
        if self._log is not None:
            try:
                self._log.admit()
            except StorageError:
                self._counts["refused"] += 1
                raise

    def _check_groups(self, groups: Sequence[str]) -> tuple[str, ...]:
        if len(groups) > self._limits.groups:
            raise OversizeError(f"{len(groups)} groups", hint=f"At most {self._limits.groups}")
        for group in groups:
            if len(group) > MAX_GROUP or not group.isprintable() or "," in group or group == ALL_GROUPS:
                raise EntryError(
                    f"{group!r} is not a group to serve",
                    hint=f'At most {MAX_GROUP} printable characters without comma; "{ALL_GROUPS}" is for clients',
                    group=group,
                )
        return tuple(dict.fromkeys(groups))

    def _check_locators(self, locators: Sequence[str]) -> tuple[str, ...]:
        if len(locators) > self._limits.groups:
            raise OversizeError(f"{len(locators)} locators", hint=f"At most {self._limits.groups}")
        return tuple(dict.fromkeys(map(check_endpoint, locators)))

    def _write(self, *records: LogRecord) -> None:
        if self._log is not None and records:
            self._log.write(records)

    def _scaled(self, factor: int) -> LeasePeriodPolicy:
        return LoadScaledLeasePeriodPolicy(
            lambda: len(self._items) + len(self._book) / EVENT_LEASE_FACTOR,
            minimum=factor * DEFAULT_DURATION,
            interval=factor * DEFAULT_INTERVAL,
        )


def _size_of(interest: Interest) -> int:
    said = interest.template, interest.handback, interest.owner, interest.listener
    return size_of("event registration", said)


def _units(size: int) -> int:
    return -(-size // SIZE_UNIT)


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


def check_port(port: int) -> int:
    """`port` if there is such a one to listen on, 0 for any free one. Raises ConfigurationError."""
    if not 0 <= port < 65536:
        raise ConfigurationError(f"{port} is not a port", hint="Use 1 to 65535, or 0 for any free one", port=port)
    return port


def _distinct(entries: Iterable[EntryRep]) -> tuple[EntryRep, ...]:
    """Entries of the same class with equal fields stand once (LU.2.2)."""
    return tuple(dict.fromkeys(entries))


def _check_change(template: EntryRep, update: EntryRep | None) -> None:
    check_rep(template)
    if update is not None and check_rep(update).cls.lineage[0] not in template.cls.lineage:
        raise EntryError(
            f"update of class {update.cls.name} for a template of class {template.cls.name}",
            hint="The update's class must be the template's or one of its superclasses",
        )


def _modified(entry: EntryRep, changes: Sequence[tuple[EntryRep, EntryRep | None]]) -> EntryRep | None:
    """`entry` after all changes whose template it matches as it is now; None if one of them deletes it."""
    updates = [update for template, update in changes if matches(template, entry)]
    values = entry.values
    for update in updates:
        if update is None:
            return None
        pairs = zip_longest(update.values[: len(values)], values)
        values = tuple(old if new is None else new for new, old in pairs)
    return EntryRep(entry.cls, values)


def _unknown_lease(lease_id: str) -> UnknownLeaseError:
    return UnknownLeaseError(
        f"lease {lease_id} is expired, cancelled, or not of this service", hint="Register again", lease_id=lease_id
    )
