"""The whole registrar against a naive model: linear scans with the definitions, lists, and no index."""

from __future__ import annotations

from itertools import count
from unittest import mock

import msgspec
import pytest
from extent import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jbi_pubsub.core.errors import IncompatibleEntryError, LeaseDeniedError, UnknownLeaseError
from jbi_pubsub.core.lease import FixedLeasePeriodPolicy
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup import posting as posting_module
from jbi_pubsub.lookup.entry import EntryRep, define, fits
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.lookup.records import KeptState
from jbi_pubsub.lookup.registrar import Registrar

pytestmark = pytest.mark.row("J-25")

DEVICE = define("Device", {"building": str})
PRINTER = define("Printer", {"colour": str}, DEVICE)
PRINTER_NEW = define("Printer", {"colour": str, "paper": str}, DEVICE)
CLASSES = (DEVICE, PRINTER, PRINTER_NEW)
TYPES = ("Laser", "Printing", "Service")

VALUES = st.sampled_from([None, "a", "b"])
REPS = st.sampled_from(CLASSES).flatmap(
    lambda cls: st.tuples(*[VALUES] * len(cls.fields)).map(lambda values: EntryRep(cls, values))
)
ENTRIES = st.lists(REPS, max_size=3).map(tuple)
IDS = st.sampled_from(["", "one", "two", "three"])
PROXIES = st.sampled_from([ServiceRef("", name, ("127.0.0.1:1",)) for name in ("p", "q", "r")])
KINDS = st.lists(st.sampled_from(TYPES), max_size=2, unique=True).map(tuple)
TEMPLATES = st.builds(ServiceTemplate, IDS, KINDS, st.lists(REPS, max_size=2).map(tuple))
DURATIONS = st.sampled_from([0.0, 3.0, 10.0, 10_000.0])
LONGEST = 100.0
LIMIT = 4


class Kept(msgspec.Struct):
    item: ServiceItem
    lease_id: str
    expires: float


class Wanted(msgspec.Struct):
    template: ServiceTemplate
    transitions: int
    lease_id: str
    expires: float
    number: int = 0


class Model(RuleBasedStateMachine):
    """What the specification says, told as lists. Expired things stay in the model until they are reaped."""

    def __init__(self) -> None:
        super().__init__()
        policy = FixedLeasePeriodPolicy(maximum=LONGEST, default=LONGEST)
        self.kept: dict[str, Kept] = {}
        self.wanted: dict[str, Wanted] = {}
        self.now = 1000.0
        self.told: list[tuple[str, int, str, int, ServiceItem | None]] = []
        numbers = count(1)
        self.make = lambda log: Registrar(
            item_leases=policy,
            event_leases=policy,
            limits=RegistrarLimits(items=LIMIT),
            log=log,
            new_id=lambda: f"id-{next(numbers):04}",
        )
        self.registrar = self.make(self.Log())
        self.patch = mock.patch.object(posting_module, "CROWD", 1)
        self.patch.start()

    def teardown(self) -> None:
        self.patch.stop()

    class Log:
        """Keeps the last record of everything, as a store does."""

        def __init__(self) -> None:
            self.state: dict[tuple[str, str], object] = {}

        def admit(self) -> None:
            pass  # never full

        def write(self, records) -> None:
            for record in records:
                match type(record).__name__:
                    case "ItemKept":
                        self.state["items", record.item.service_id] = record
                    case "InterestKept":
                        self.state["event_registrations", record.interest.event_id] = record
                    case "LeaseMoved":
                        key = (record.kind, record.kept)
                        self.state[key] = msgspec.structs.replace(self.state[key], expires=record.expires)
                    case "Dropped":
                        del self.state[record.kind, record.kept]

    # -- the definitions, told naively ----------------------------------------------------------------------------

    def matches(self, template: ServiceTemplate, item: ServiceItem | None) -> bool:
        return (
            item is not None
            and template.service_id in ("", item.service_id)
            and set(template.types) <= set(item.types)
            and all(any(fits(t, e) for e in item.entries) for t in template.entries)
        )

    def changed(self, service_id: str, before: ServiceItem | None, after: ServiceItem | None) -> None:
        for event_id, wanted in self.wanted.items():
            was, is_now = self.matches(wanted.template, before), self.matches(wanted.template, after)
            kind = 4 if was and is_now else 1 if was else 2 if is_now else 0
            if kind & wanted.transitions and wanted.expires > self.now:
                wanted.number += 1
                self.told.append((event_id, wanted.number, service_id, kind, after))

    def check_told(self, outcome) -> None:
        """The same events, in the same order for each registration."""
        got = [(e.event_id, e.number, e.service_id, e.transition, e.item) for _, e in outcome.events]
        assert sorted(got, key=lambda e: e[:2]) == sorted(self.told, key=lambda e: e[:2])
        assert all(listener == f"to-{event.handback}" for listener, event in outcome.events)
        self.told = []

    def is_silent(self, template: ServiceTemplate) -> bool:
        """Whether an entry class of the template is registered with other fields only (an error, not an answer)."""
        lineages = {known for kept in self.kept.values() for e in kept.item.entries for known in e.cls.lineage}
        return any(
            t.cls.lineage[0] not in lineages and t.cls.name in {name for name, _ in lineages} for t in template.entries
        )

    def live(self, template: ServiceTemplate) -> dict[str, ServiceItem]:
        return {
            service_id: kept.item
            for service_id, kept in self.kept.items()
            if kept.expires > self.now and self.matches(template, kept.item)
        }

    # -- rules ------------------------------------------------------------------------------------------------------

    @rule(service_id=IDS, types=KINDS, proxy=PROXIES, entries=ENTRIES, duration=DURATIONS)
    def register(self, service_id, types, proxy, entries, duration):
        same = sorted(i for i, kept in self.kept.items() if kept.item.proxy == proxy)
        target = service_id or (same[0] if len(same) == 1 else "")
        item = ServiceItem(service_id, types, proxy, entries)
        if not service_id and len(same) > 1:
            return  # any of them is reused: not determined
        if target not in self.kept and len(self.kept) >= LIMIT:
            try:
                self.registrar.register(item, duration, self.now)
            except LeaseDeniedError:
                return
            raise AssertionError("one item more than the limit")
        outcome = self.registrar.register(item, duration, self.now)
        result = outcome.result
        assert result.service_id == (target or result.service_id)
        assert result.duration == min(duration, LONGEST)
        assert target or result.service_id not in self.kept
        kept = msgspec.structs.replace(item, service_id=result.service_id, entries=tuple(dict.fromkeys(entries)))
        if target in self.kept:
            self.changed(target, self.kept.pop(target).item, None)
        self.kept[result.service_id] = Kept(kept, result.lease_id, self.now + result.duration)
        self.changed(result.service_id, None, kept)
        self.check_told(outcome)

    @rule(template=TEMPLATES, limit=st.sampled_from([0, 1, 10]))
    def lookup(self, template, limit):
        live = self.live(template)
        by_id = template.service_id
        if self.is_silent(template) or (by_id and template.entries):
            return  # by id the definition itself raises; see test_registrar
        found = self.registrar.lookup_all(template, self.now, limit, total=True)
        assert found.total == len(live)
        assert len(found.items) == min(limit, len(live))
        assert all(live[item.service_id] == item for item in found.items)
        one = self.registrar.lookup(template, self.now)
        assert (one is None) == (not live)
        assert one is None or live[one.service_id] == one

    @rule(template=TEMPLATES)
    def lookup_for_another_generation_is_an_error(self, template):
        if not template.service_id and self.is_silent(template):
            try:
                self.registrar.lookup(template, self.now)
            except IncompatibleEntryError:
                return
            raise AssertionError("silence")

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), entries=ENTRIES, add=st.booleans())
    def change_attributes(self, data, entries, add):
        service_id = data.draw(st.sampled_from(sorted(self.kept)))
        kept = self.kept[service_id]
        change = self.registrar.add_attributes if add else self.registrar.set_attributes
        if kept.expires <= self.now:
            try:
                change(service_id, kept.lease_id, entries, self.now)
            except UnknownLeaseError:
                return
            raise AssertionError("an expired lease was taken")
        outcome = change(service_id, kept.lease_id, entries, self.now)
        before = kept.item
        both = (*before.entries, *entries) if add else entries
        kept.item = msgspec.structs.replace(before, entries=tuple(dict.fromkeys(both)))
        self.changed(service_id, before, kept.item)
        self.check_told(outcome)

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), changes=st.lists(st.tuples(REPS, st.none() | VALUES), max_size=3))
    def modify_attributes(self, data, changes):
        service_id = data.draw(st.sampled_from(sorted(self.kept)))
        kept = self.kept[service_id]
        if kept.expires <= self.now:
            return
        names = {t.cls.lineage[0] for t, _ in changes}
        if any(c[0] == n[0] and c != n for e in kept.item.entries for c in e.cls.lineage for n in names):
            return  # another generation: an error, see test_registrar
        # an update to the superclass: the building alone; None deletes
        pairs = [(t, None if value is None else EntryRep(DEVICE, (value,))) for t, value in changes]
        outcome = self.registrar.modify_attributes(service_id, kept.lease_id, pairs, self.now)
        entries: list[EntryRep] = []
        for entry in kept.item.entries:
            updates = [update for template, update in pairs if fits(template, entry)]
            if None in updates:
                continue
            building = updates[-1].values[0] if updates else entry.values[0]
            entries.append(EntryRep(entry.cls, (building, *entry.values[1:])))
        before = kept.item
        kept.item = msgspec.structs.replace(before, entries=tuple(dict.fromkeys(entries)))
        self.changed(service_id, before, kept.item)
        self.check_told(outcome)

    @rule(template=TEMPLATES, transitions=st.integers(1, 7), duration=DURATIONS)
    def notify(self, template, transitions, duration):
        if self.is_silent(template):
            return
        handback = str(len(self.wanted))
        outcome = self.registrar.notify(
            template, transitions, duration, self.now, handback=handback, listener=f"to-{handback}"
        )
        got = outcome.result
        assert got.duration == min(duration, LONGEST)
        self.wanted[got.event_id] = Wanted(
            template, transitions, got.lease_id, self.now + got.duration, number=got.number
        )
        self.check_told(outcome)

    @precondition(lambda self: self.kept or self.wanted)
    @rule(data=st.data(), duration=DURATIONS)
    def renew(self, data, duration):
        held = data.draw(st.sampled_from([*self.kept.values(), *self.wanted.values()]))
        if held.expires <= self.now:
            assert self.registrar.renew_all([(held.lease_id, duration)], self.now).result[0].error is not None
            return
        (result,) = self.registrar.renew_all([(held.lease_id, duration)], self.now).result
        assert result.error is None
        assert result.duration == min(duration, LONGEST)
        held.expires = self.now + result.duration

    @precondition(lambda self: self.kept or self.wanted)
    @rule(data=st.data())
    def cancel(self, data):
        everything = [*sorted(self.kept), *sorted(self.wanted)]
        key = data.draw(st.sampled_from(everything))
        held = self.kept.get(key) or self.wanted[key]
        if held.expires <= self.now:
            assert self.registrar.cancel_all([held.lease_id], self.now).result[0].error is not None
            return
        outcome = self.registrar.cancel(held.lease_id, self.now)
        if key in self.kept:
            self.changed(key, self.kept.pop(key).item, None)
        else:
            del self.wanted[key]
        self.check_told(outcome)

    @rule(seconds=st.sampled_from([1.0, 4.0, 50.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def expire(self):
        outcome = self.registrar.expire(self.now)
        silent = [event_id for event_id, wanted in self.wanted.items() if wanted.expires <= self.now]
        gone = [service_id for service_id, kept in self.kept.items() if kept.expires <= self.now]
        assert outcome.result == len(silent) + len(gone)
        for event_id in silent:
            del self.wanted[event_id]
        for service_id in sorted(gone, key=lambda each: self.kept[each].expires):
            self.changed(service_id, self.kept.pop(service_id).item, None)
        # several services may go at one moment, in any order: compare what each listener is told, number for number
        told, self.told = self.told, []
        got = [(e.event_id, e.service_id, e.transition, e.item) for _, e in outcome.events]
        assert sorted(got, key=str) == sorted(((i, s, k, a) for i, _, s, k, a in told), key=str)
        assert sorted((e.event_id, e.number) for _, e in outcome.events) == sorted(t[:2] for t in told)
        due = self.registrar.next_deadline()
        assert due is None or due > self.now

    @rule()
    def restart(self):
        """What the log has kept makes the same registrar again."""
        log = self.registrar._log
        items = tuple(r for (kind, _), r in log.state.items() if kind == "items")
        interests = tuple(
            msgspec.structs.replace(
                r, interest=msgspec.structs.replace(r.interest, number=self.wanted[r.interest.event_id].number)
            )
            for (kind, _), r in log.state.items()
            if kind == "event_registrations"
        )
        again = self.make(log)
        again.restore(KeptState(self.registrar.admin(), items, interests), self.now)
        self.registrar = again

    @invariant()
    def nothing_is_left_over(self):
        status = self.registrar.status()
        assert (status.items, status.event_registrations) == (len(self.kept), len(self.wanted))
        assert len(self.registrar._items._index) == len(self.kept)
        assert len(self.registrar._events._index) == len(self.wanted)
        assert status.owners == bool(self.kept or self.wanted)


Model.TestCase.settings = settings(derandomize=True, deadline=None, max_examples=examples(120), stateful_step_count=40)
TestRegistrarAgainstTheModel = Model.TestCase
TestRegistrarAgainstTheModel.pytestmark = [pytest.mark.long]  # type: ignore[attr-defined]  # pytest's own name
