"""The registrar: what a lookup service knows and decides, without network, thread, disk or clock.

Rules (Jini Lookup Service Specification LU.2; Apache River's Reggie where the specification leaves it open)
- register: id "" takes the id of an item with an equal proxy, else a new one; a given id is taken as it is. An item
  under that id is replaced, its lease dies. The call is atomic, and is announced as delete, then create.
- Ids are public, so an item may be registered with a key: as long as its lease lives, only who shows the key may
  replace it. The key's hash is kept, never the key. (Jini lets everybody replace; there the proxy's code is signed.)
- Equal entries of one item stand once.
- modify: all templates are held against the state before the call; a deletion wins over updates of the same entry;
  equal entries are merged at the very end.
- Generations of an entry class (same name, other fields) may be registered side by side, so that publishers can move
  on one by one; a template means its own. Only where its own is not registered, but another is, the answer is
  IncompatibleEntryError instead of silence (for event registrations made before: one diagnostic).
- What has to be sent is returned (`Outcome`), never sent here: decide under the lock, act after it.

`now` is monotonic seconds. The caller holds one lock around every call, lookups included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from secrets import token_hex
from typing import Any, Generic, TypeVar
from uuid import uuid4

import msgspec

from jbi_pubsub.core.errors import (
    AccessDeniedError,
    EntryError,
    LeaseDeniedError,
    StorageError,
    UnknownLeaseError,
    report,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.lease import FOREVER, Lease, LeasePeriodPolicy
from jbi_pubsub.lookup.administration import PUBLIC_GROUP, RegistrarAdmin, check_groups, check_locators, check_port
from jbi_pubsub.lookup.entry import EntryRep, check_change, modified
from jbi_pubsub.lookup.events import AddressedDiagnostic, AddressedEvent, EventBook, Interest, check_transitions
from jbi_pubsub.lookup.item import (
    EventRegistration,
    LeaseResult,
    ServiceItem,
    ServiceMatches,
    ServiceRegistration,
    ServiceTemplate,
    size_of,
)
from jbi_pubsub.lookup.items import HeldItem, ItemBook, uncollected
from jbi_pubsub.lookup.leases import OWN_LEASE, LeaseBook
from jbi_pubsub.lookup.quotas import Quotas, RegistrarLimits
from jbi_pubsub.lookup.records import Dropped, InterestKept, ItemKept, KeptState, LogRecord, RegistrarLog
from jbi_pubsub.lookup.status import RegistrarStatus

R = TypeVar("R")


class Outcome(msgspec.Struct, Generic[R], frozen=True):
    """Decision of a call: `result` for the caller; `events` and `diagnostics` as (listener, message) to send, in this
    order, when the lock is released."""

    result: R
    events: tuple[AddressedEvent, ...] = ()
    diagnostics: tuple[AddressedDiagnostic, ...] = ()


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
        limits = self._limits = limits or RegistrarLimits()
        self._new_id = new_id
        self._log = log
        self._admin = RegistrarAdmin(
            service_id or new_id(),
            check_groups(groups, limits.groups),
            check_locators(locators, limits.groups),
            port=check_port(port),
            secret=token_hex(16),
        )
        self._leases = LeaseBook(item_leases, event_leases, new_id=new_id, stall=stall)
        self._items = ItemBook(self.service_id, self._leases.items)
        self._events = EventBook(self._leases.events)
        self._quotas = Quotas(limits)
        self._lookups = self._changes = self._expired = 0

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
        service_id = item.service_id or self._items.alike(item.proxy, seal) or self._new_id()
        replaced = self._items.get(service_id)
        if replaced is not None and not self._items.opens(seal, replaced, now):
            raise AccessDeniedError(
                f"service {service_id} is registered by another owner",
                hint="Register under an id of your own; this one is free when its lease has run out",
                service_id=service_id,
            )
        freed = replaced.bytes if replaced and replaced.owner == owner else 0
        self._quotas.check_place("items", len(self._items), owner, replaced.owner if replaced else None)
        self._quotas.check_bytes(owner, size - freed)
        self._check_log()
        lease = self._leases.items.grant(service_id, duration, now)
        kept = msgspec.structs.replace(item, service_id=service_id, entries=_distinct(item.entries))
        events = self._let_go(replaced, now) if replaced else []
        held = self._items.hold(kept, lease.lease_id, owner, size, seal)
        self._quotas.add("items", owner, held.bytes)
        diagnostics = self._put(held.item, now)
        events += self._fire(None, held.item, now)
        self._write(ItemKept(held.item, lease.lease_id, owner, now + lease.duration, lease.duration, size, seal))
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
        self._limits.check_parts("template", template)
        self._lookups += 1
        return self._items.page(template, now, limit, self._limits.matches, total=total, after=after)

    # -- attributes (LU.2.6) ------------------------------------------------------------------------------------

    def add_attributes(self, service_id: str, lease_id: str, entries: Sequence[EntryRep], now: float) -> Outcome[None]:
        """Add entries to an item; those it has already stay once. Raises UnknownLeaseError, EntryError,
        OversizeError, LeaseDeniedError (no room), StorageError."""
        held = self._items.held(service_id, lease_id, now)
        return self._change(held, (*held.item.entries, *entries), now)

    def set_attributes(self, service_id: str, lease_id: str, entries: Sequence[EntryRep], now: float) -> Outcome[None]:
        """Replace all entries of an item, () clears them. Raises as add_attributes."""
        return self._change(self._items.held(service_id, lease_id, now), tuple(entries), now)

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
        held = self._items.held(service_id, lease_id, now)
        for template, update in changes:
            check_change(template, update)
        left = (modified(entry, changes) for entry in held.item.entries)
        return self._change(held, tuple(entry for entry in left if entry is not None), now)

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
        self._items.check_classes(template)
        kind = check_transitions(transitions)
        size = self._limits.check_size("event registration", (template, handback, owner, listener))
        self._quotas.check_place("event_registrations", len(self._events), owner)
        self._quotas.check_bytes(owner, size)
        event_id = self._new_id()
        lease = self._leases.events.grant(event_id, duration, now)
        interest = Interest(event_id, template, kind, listener, lease.lease_id, handback, owner)
        self._own_interest(interest)
        self._write(InterestKept(interest, now + lease.duration, lease.duration))
        return Outcome(EventRegistration(event_id, interest.number, lease.lease_id, lease.duration))

    # -- leases -------------------------------------------------------------------------------------------------

    def renew(self, lease_id: str, duration: float, now: float) -> Outcome[Lease]:
        """A new term for the lease of an item or event registration. Raises UnknownLeaseError, LeaseDeniedError."""
        lease, record = self._leases.renew(lease_id, duration, now)
        self._write(record)
        return Outcome(lease)

    def renew_all(self, leases: Sequence[tuple[str, float]], now: float) -> Outcome[tuple[LeaseResult, ...]]:
        """Renew (lease id, duration) pairs; a result for each, and one log record for all."""
        results: list[LeaseResult] = []
        records: list[LogRecord] = []
        for lease_id, duration in leases:
            try:
                lease, record = self._leases.renew(lease_id, duration, now)
            except (UnknownLeaseError, LeaseDeniedError) as error:  # this lease's result, the others go on
                results.append(LeaseResult(lease_id, error=report(error)))
            else:
                results.append(LeaseResult(lease_id, lease.duration))
                records.append(record)
        self._write(*records)
        return Outcome(tuple(results))

    def has_lease(self, lease_id: str, now: float) -> bool:
        """Whether the lease of an item or event registration lives."""
        return self._leases.is_live(lease_id, now)

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
        silent = self._leases.events.expire(now, limit)  # first: an expired registration hears nothing of the items
        events: list[AddressedEvent] = []
        for event_id in silent:
            with guarded("lookup expiry"):  # one that can't be taken out must not keep the others
                self._stop(event_id)
        gone = self._leases.items.expire(now, limit)
        for service_id in gone:
            with guarded("lookup expiry"):
                events += self._withdraw(service_id, now)
        self._expired += len(silent) + len(gone)
        self._write(*(Dropped("event_registrations", event_id) for event_id in silent))
        self._write(*(Dropped("items", service_id) for service_id in gone))
        return Outcome(len(silent) + len(gone), tuple(events))

    def next_deadline(self) -> float | None:
        """The earliest moment at which `expire` may have work, or None."""
        return self._leases.next_deadline()

    # -- administration (LU.2.7; DiscoveryAdmin, JoinAdmin, DestroyAdmin) -----------------------------------------

    def admin(self) -> RegistrarAdmin:
        """Administration as it is now."""
        return self._admin

    def set_groups(self, groups: Sequence[str]) -> Outcome[RegistrarAdmin]:
        """The groups to serve from now on; () serves in none. Raises EntryError, OversizeError, StorageError."""
        return self._set(groups=check_groups(groups, self._limits.groups))

    def set_locators(self, locators: Sequence[str]) -> Outcome[RegistrarAdmin]:
        """The lookup services (host:port) to join from now on. Raises ConfigurationError, OversizeError,
        StorageError."""
        return self._set(locators=check_locators(locators, self._limits.groups))

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
            self._leases.items.restore(OWN_LEASE, self.service_id, FOREVER)
        self._items.hold(kept, OWN_LEASE, "", size)  # it keeps its place in the pages
        diagnostics = self._put(kept, now)
        events = self._fire(before, kept, now)
        return Outcome(None, tuple(events), tuple(diagnostics))

    def destroy(self) -> Outcome[RegistrarAdmin]:
        """End for good: all items, event registrations and leases go, nobody is told, and nothing new is accepted."""
        self._leases.clear()
        self._items, self._events = ItemBook(self.service_id, self._leases.items), EventBook(self._leases.events)
        self._quotas = Quotas(self._limits)
        self._quotas.is_closed = True
        return self._administer(destroyed=True)

    def status(self) -> RegistrarStatus:
        """The registrar in numbers; its own item does not count."""
        item_lease, event_lease = self._leases.maxima()
        return RegistrarStatus(
            service_id=self.service_id,
            groups=self._admin.groups,
            items=len(self._items),
            event_registrations=len(self._events),
            owners=self._quotas.owners,
            item_lease_maximum=item_lease,
            event_lease_maximum=event_lease,
            lookups=self._lookups,
            changes=self._changes,
            renewals=self._leases.renewals,
            expired=self._expired,
            events=self._events.fired,
            diagnostics=self._events.diagnostics,
            refused=self._quotas.refused,
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
            self._admin = state.admin.configured(self._admin)
        for each in state.items:
            self._leases.items.restore(each.lease_id, each.item.service_id, each.expires)
            held = self._items.hold(each.item, each.lease_id, each.owner, each.size, each.seal)
            self._quotas.add("items", each.owner, held.bytes)
            self._put(held.item, now)
        for record in state.interests:
            interest = record.interest
            self._leases.events.restore(interest.lease_id, interest.event_id, record.expires)
            self._own_interest(interest)

    # -- inside -------------------------------------------------------------------------------------------------

    def _change(self, held: HeldItem, entries: tuple[EntryRep, ...], now: float) -> Outcome[None]:
        """Give an item other entries, and tell who wants to know."""
        before, taken = held.item, held.bytes
        after = msgspec.structs.replace(before, entries=_distinct(entries))
        size = self._check_item(after)
        self._quotas.check_bytes(held.owner, size - taken)
        self._check_log()
        self._items.change(held, after, size)
        self._quotas.add("items", held.owner, held.bytes - taken, 0)
        diagnostics = self._put(held.item, now) if held.item.entries != before.entries else []
        events = self._fire(before, held.item, now)
        lease_id = held.lease_id
        left = self._leases.items.left(lease_id, now)
        self._write(ItemKept(held.item, lease_id, held.owner, now + left, left, size, held.seal))
        return Outcome(None, tuple(events), tuple(diagnostics))

    def _put(self, item: ServiceItem, now: float) -> list[AddressedDiagnostic]:
        """Index an item; diagnostics of classes that nobody had registered before."""
        appeared = self._items.index(item)
        if not appeared or not self._events:
            return []
        return self._events.diagnose(sorted(appeared), item.service_id, self._items.has_class, now)

    def _fire(self, before: ServiceItem | None, after: ServiceItem | None, now: float) -> list[AddressedEvent]:
        self._changes += 1
        return self._events.fire(before, after, now)

    def _withdraw(self, service_id: str, now: float) -> list[AddressedEvent]:
        """Take an item out, with its lease."""
        self._items.unindex(service_id)
        held = self._items.get(service_id)
        return self._let_go(held, now) if held is not None else []

    def _let_go(self, held: HeldItem, now: float) -> list[AddressedEvent]:
        """The same but for the index, where another one is about to take its place."""
        self._items.drop(held)
        self._quotas.add("items", held.owner, -held.bytes, -1)
        return self._fire(held.item, None, now)

    def _stop(self, event_id: str) -> None:
        interest = self._events.remove(event_id)
        self._quotas.add("event_registrations", interest.owner, -_size_of(interest), -1)

    def _own_interest(self, interest: Interest) -> None:
        self._events.add(interest)
        self._quotas.add("event_registrations", interest.owner, _size_of(interest))

    def _cancel(self, lease_id: str, now: float) -> tuple[Dropped, list[AddressedEvent]]:
        dropped = self._leases.cancel(lease_id, now)
        if dropped.kind == "items":
            return dropped, self._withdraw(dropped.kept, now)
        self._stop(dropped.kept)
        return dropped, []

    def _set(self, **changes: Any) -> Outcome[RegistrarAdmin]:
        """Set what is to hold after a restart: refused where it can't be kept; an end (`destroy`) never is."""
        self._check_log()
        return self._administer(**changes)

    def _administer(self, **changes: Any) -> Outcome[RegistrarAdmin]:
        self._admin = self._admin.changed(**changes)
        self._write(self._admin)
        return Outcome(self._admin)

    def _check_item(self, item: ServiceItem) -> int:
        """The item's size on the wire."""
        if item.service_id == self.service_id:
            raise AccessDeniedError(
                f"service id {item.service_id} is the lookup service's own", hint="Leave it empty to get a new one"
            )
        return self._limits.check("item", item)

    def _check_log(self) -> None:
        if self._log is not None:
            try:
                self._log.admit()
            except StorageError:
                self._quotas.refused += 1
                raise

    def _write(self, *records: LogRecord) -> None:
        if self._log is not None and records:
            self._log.write(records)


def _size_of(interest: Interest) -> int:
    said = interest.template, interest.handback, interest.owner, interest.listener
    return size_of("event registration", said)


def _distinct(entries: Iterable[EntryRep]) -> tuple[EntryRep, ...]:
    """Entries of the same class with equal fields stand once (LU.2.2)."""
    return tuple(dict.fromkeys(entries))
