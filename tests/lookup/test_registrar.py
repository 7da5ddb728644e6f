"""The registrar clause by clause, after the Jini Lookup Service Specification (LU) and Reggie. Time is a number."""

from __future__ import annotations

import tracemalloc
from itertools import count

import msgspec
import pytest

from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    EntryError,
    IncompatibleEntryError,
    LeaseDeniedError,
    OversizeError,
    StorageError,
    UnknownLeaseError,
)
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.lease import ANY, FOREVER
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup import browse
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceItem, ServiceTemplate, Transition
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.lookup.registrar import Registrar

DEVICE = define("Device", {"building": str})
PRINTER = define("Printer", {"colour": str}, DEVICE)
PRINTER_NEW = define("Printer", {"colour": str, "paper": str}, DEVICE)
COMMENT = define("Comment", {"text": str})
ANCIENT = EntryClass("A0", tuple(f"f{n}" for n in range(20)), tuple((f"A{n}", "0") for n in range(32)))
NOW = 1000.0


def rep(cls: EntryClass, **values: str) -> EntryRep:
    return EntryRep(cls, tuple(values.get(field) for field in cls.fields))


def proxy(name: str) -> ServiceRef:
    return ServiceRef("", name, ("127.0.0.1:4711",))


def item(name: str, *entries: EntryRep, service_id: str = "", types: tuple[str, ...] = ("Printer",)) -> ServiceItem:
    return ServiceItem(service_id, types, proxy(name), entries)


def template(*entries: EntryRep, service_id: str = "", types: tuple[str, ...] = ()) -> ServiceTemplate:
    return ServiceTemplate(service_id, types, entries)


def make(**options) -> Registrar:
    numbers = count(1)
    return Registrar(service_id="own", new_id=lambda: f"new-{next(numbers)}", **options)


@pytest.fixture
def registrar() -> Registrar:
    return make()


def names(registrar: Registrar, wanted: ServiceTemplate, now: float = NOW) -> set[str]:
    return {found.proxy.exported for found in registrar.lookup_all(wanted, now, 100).items}


def told(outcome) -> list[tuple[int, int, str | None]]:
    return [(e.number, e.transition, e.item.proxy.exported if e.item else None) for _, e in outcome.events]


class TestRegister:
    """LU.2.2"""

    @pytest.mark.row("J-24")
    def test_a_registration_gives_a_new_id_and_a_lease(self, registrar):
        result = registrar.register(item("p"), 60.0, NOW).result
        assert (result.service_id, result.duration) == ("new-1", 60.0)
        assert registrar.lookup(template(service_id="new-1"), NOW).proxy == proxy("p")

    @pytest.mark.row("J-24")
    def test_the_same_id_replaces_the_item_and_its_lease_dies(self, registrar):
        first = registrar.register(item("p", service_id="id"), 60.0, NOW).result
        registrar.register(item("q", service_id="id"), 60.0, NOW)
        assert names(registrar, template()) == {"q"}
        with pytest.raises(UnknownLeaseError):
            registrar.renew(first.lease_id, 60.0, NOW)

    def test_an_equal_proxy_without_an_id_gets_its_old_id_again(self, registrar):
        first = registrar.register(item("p"), 60.0, NOW).result
        again = registrar.register(item("p", rep(COMMENT, text="later")), 60.0, NOW).result
        assert again.service_id == first.service_id
        assert again.lease_id != first.lease_id
        assert registrar.status().items == 1

    def test_with_an_id_the_proxy_is_not_looked_at(self, registrar):
        registrar.register(item("p", service_id="one"), 60.0, NOW)
        registrar.register(item("p", service_id="two"), 60.0, NOW)
        assert registrar.status().items == 2
        registrar.register(item("p"), 60.0, NOW)
        assert registrar.status().items == 2, "without an id one of the two is taken"

    def test_the_registrars_own_id_is_refused(self, registrar):
        with pytest.raises(AccessDeniedError, match="own"):
            registrar.register(item("p", service_id="own"), 60.0, NOW)

    def test_equal_entries_stand_once(self, registrar):
        twice, other = rep(DEVICE, building="9"), rep(PRINTER, building="9")
        service_id = registrar.register(item("p", twice, other, twice), 60.0, NOW).result.service_id
        assert registrar.lookup(template(service_id=service_id), NOW).entries == (twice, other)

    def test_a_replacement_is_announced_as_delete_then_create_never_as_a_change(self, registrar):
        registrar.register(item("p", service_id="id"), 60.0, NOW)
        registrar.notify(template(), ALL_TRANSITIONS, 60.0, NOW)
        outcome = registrar.register(item("q", service_id="id"), 60.0, NOW)
        assert told(outcome) == [(1, Transition.MATCH_NOMATCH, None), (2, Transition.NOMATCH_MATCH, "q")]

    def test_a_refused_registration_changes_nothing(self, registrar):
        kept = registrar.register(item("p", service_id="id"), 60.0, NOW).result
        registrar.notify(template(), ALL_TRANSITIONS, 60.0, NOW)
        with pytest.raises(LeaseDeniedError):
            registrar.register(item("q", service_id="id"), -7.0, NOW)
        assert names(registrar, template()) == {"p"}
        assert registrar.renew(kept.lease_id, 60.0, NOW).result.duration == 60.0

    def test_a_lease_of_zero_is_accepted_and_has_ended(self, registrar):
        registrar.register(item("p"), 0.0, NOW)
        assert names(registrar, template()) == set()
        assert registrar.expire(NOW).result == 1

    def test_the_lease_maximum_grows_with_items_and_event_registrations(self):
        """Reggie: 100 ms an item, a sixth of it a listener, 5 minutes at least; events six times that."""
        registrar = make()
        assert registrar.register(item("p"), FOREVER, NOW).result.duration == 300.0
        assert registrar.notify(template(), 7, ANY, NOW).result.duration == 1800.0
        for number in range(4000):
            registrar.register(item(f"p{number}"), ANY, NOW)
        assert registrar.register(item("last"), ANY, NOW).result.duration == pytest.approx(400.1, abs=0.1)
        assert registrar.status().event_lease_maximum == pytest.approx(6 * registrar.status().item_lease_maximum)


class TestLookup:
    """LU.2.3 and the printer example of the paper, section 2.2"""

    @pytest.fixture
    def printers(self, registrar):
        for name, colour, building in [
            ("p1", "red", "1"), ("p2", "red", "2"), ("p3", "blue", "1"),
            ("p4", "blue", "2"), ("p5", "red", "1"), ("p6", "", "1"),
        ]:  # fmt: skip
            registrar.register(item(name, rep(PRINTER, colour=colour or None, building=building)), 60.0, NOW)
        registrar.register(item("scanner", rep(DEVICE, building="1"), types=("Scanner",)), 60.0, NOW)
        return registrar

    @pytest.mark.row("J-25", "J-26")
    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            (template(rep(PRINTER, colour="red", building="1")), {"p1", "p5"}),
            (template(rep(PRINTER, building="2")), {"p2", "p4"}),
            (template(types=("Printer",)), {"p1", "p2", "p3", "p4", "p5", "p6"}),
            (template(rep(DEVICE, building="1")), {"p1", "p3", "p5", "p6", "scanner"}),
            (template(rep(PRINTER)), {"p1", "p2", "p3", "p4", "p5", "p6"}),
            (template(rep(PRINTER, colour="red"), types=("Scanner",)), set()),
            (template(rep(COMMENT, text="none")), set()),
            (template(), {"p1", "p2", "p3", "p4", "p5", "p6", "scanner"}),
        ],
    )
    def test_equality_with_wildcards_over_class_and_superclass(self, printers, wanted, found):
        assert names(printers, wanted) == found
        assert printers.lookup_all(wanted, NOW, 0, total=True).total == len(found)

    def test_all_fields_of_a_template_hold_in_one_entry_and_one_entry_may_serve_several_templates(self, registrar):
        registrar.register(item("p", rep(PRINTER, colour="red"), rep(PRINTER, building="1")), 60.0, NOW)
        assert names(registrar, template(rep(PRINTER, colour="red", building="1"))) == set()
        assert names(registrar, template(rep(PRINTER, colour="red"), rep(PRINTER, building="1"))) == {"p"}
        assert names(registrar, template(rep(PRINTER, colour="red"), rep(PRINTER), rep(DEVICE))) == {"p"}

    def test_every_listed_type_is_needed(self, registrar):
        registrar.register(item("p", types=("Laser", "Printer", "Service")), 60.0, NOW)
        assert names(registrar, template(types=("Service", "Laser"))) == {"p"}
        assert names(registrar, template(types=("Service", "Scanner"))) == set()

    def test_a_lookup_is_limited_and_counts_only_when_asked(self, printers):
        found = printers.lookup_all(template(types=("Printer",)), NOW, 2)
        assert (len(found.items), found.total) == (2, -1)
        found = printers.lookup_all(template(types=("Printer",)), NOW, 2, total=True)
        assert (len(found.items), found.total) == (2, 6)

    def test_a_negative_limit_is_an_error(self, registrar):
        with pytest.raises(EntryError, match="limit"):
            registrar.lookup_all(template(), NOW, -1)

    def test_an_expired_item_is_invisible_before_it_is_reaped(self, registrar):
        registrar.register(item("p"), 10.0, NOW)
        registrar.register(item("q"), 20.0, NOW)
        assert names(registrar, template(), NOW + 10.0) == {"q"}
        assert registrar.lookup_all(template(), NOW + 10.0, 0, total=True).total == 1
        assert registrar.lookup(template(service_id="new-1"), NOW + 10.0) is None
        assert registrar.status().items == 2

    def test_nobody_can_pass_an_entry_off_as_a_type(self, registrar):
        forged = EntryRep(EntryClass("\0type", ("name",), (("\0type", "x"),)), ("Printer",))
        for call in (
            lambda: registrar.register(item("p", forged), 60.0, NOW),
            lambda: registrar.lookup(template(forged), NOW),
            lambda: registrar.notify(template(forged), 7, 60.0, NOW),
        ):
            with pytest.raises(EntryError, match="control character"):
                call()


class TestGenerations:
    """Entry classes of one name and other fields"""

    def test_a_template_of_another_generation_is_an_error_instead_of_silence(self, registrar):
        registrar.register(item("p", rep(PRINTER, colour="red")), 60.0, NOW)
        for call in (
            lambda: registrar.lookup(template(rep(PRINTER_NEW, colour="red")), NOW),
            lambda: registrar.lookup_all(template(rep(PRINTER_NEW)), NOW, 1),
            lambda: registrar.notify(template(rep(PRINTER_NEW)), 7, 60.0, NOW),
        ):
            with pytest.raises(IncompatibleEntryError, match="Generate both from the same schema"):
                call()

    def test_generations_live_side_by_side_and_a_template_means_its_own(self, registrar):
        registrar.register(item("old", rep(PRINTER, colour="red")), 60.0, NOW)
        registrar.register(item("new", rep(PRINTER_NEW, colour="red")), 60.0, NOW)
        assert names(registrar, template(rep(PRINTER, colour="red"))) == {"old"}
        assert names(registrar, template(rep(PRINTER_NEW, colour="red"))) == {"new"}
        assert names(registrar, template(rep(DEVICE))) == {"old", "new"}

    def test_a_listener_that_was_first_is_told_once_why_it_hears_nothing(self, registrar):
        wanted = registrar.notify(template(rep(PRINTER_NEW)), 7, 60.0, NOW, handback="h", listener="to").result
        outcome = registrar.register(item("p", rep(PRINTER, colour="red")), 60.0, NOW)
        ((listener, said),) = outcome.diagnostics
        assert (listener, said.event_id, said.service_id, said.handback) == ("to", wanted.event_id, "new-3", "h")
        assert said.error.code == IncompatibleEntryError.code
        assert said.error.facts["registered_fingerprint"] == PRINTER.fingerprint
        assert outcome.events == ()
        assert registrar.register(item("q", rep(PRINTER)), 60.0, NOW).diagnostics == ()
        registrar.register(item("p"), 60.0, NOW), registrar.register(item("q"), 60.0, NOW)
        assert registrar.register(item("p", rep(PRINTER)), 60.0, NOW).diagnostics == (), "told is told"

    def test_no_diagnostic_while_the_wanted_generation_is_there(self, registrar):
        registrar.register(item("new", rep(PRINTER_NEW)), 60.0, NOW)
        registrar.notify(template(rep(PRINTER_NEW)), 7, 60.0, NOW)
        assert registrar.register(item("old", rep(PRINTER)), 60.0, NOW).diagnostics == ()

    def test_setting_attributes_of_another_generation_is_diagnosed_too(self, registrar):
        registrar.notify(template(rep(PRINTER_NEW)), 7, 60.0, NOW)
        got = registrar.register(item("p"), 60.0, NOW).result
        outcome = registrar.set_attributes(got.service_id, got.lease_id, (rep(PRINTER),), NOW)
        assert len(outcome.diagnostics) == 1


class TestAttributes:
    """LU.2.6"""

    RED, BLUE = rep(PRINTER, colour="red", building="1"), rep(PRINTER, colour="blue", building="1")

    @pytest.fixture
    def got(self, registrar):
        return registrar.register(item("p", self.RED, self.BLUE), 60.0, NOW).result

    def entries(self, registrar) -> tuple[EntryRep, ...]:
        return registrar.lookup(template(), NOW).entries

    def test_add_is_idempotent(self, registrar, got):
        comment = rep(COMMENT, text="x")
        for _ in range(2):
            registrar.add_attributes(got.service_id, got.lease_id, (self.RED, comment), NOW)
        assert self.entries(registrar) == (self.RED, self.BLUE, comment)

    def test_set_replaces_and_nothing_clears(self, registrar, got):
        registrar.set_attributes(got.service_id, got.lease_id, (self.BLUE,), NOW)
        assert self.entries(registrar) == (self.BLUE,)
        registrar.set_attributes(got.service_id, got.lease_id, (), NOW)
        assert self.entries(registrar) == ()

    def test_modify_holds_all_templates_against_the_state_before_the_call(self, registrar, got):
        changes = [
            (rep(PRINTER, colour="red"), rep(PRINTER, colour="blue")),
            (rep(PRINTER, colour="blue"), rep(PRINTER, colour="green")),
        ]
        registrar.modify_attributes(got.service_id, got.lease_id, changes, NOW)
        assert {e.values[1] for e in self.entries(registrar)} == {"blue", "green"}

    def test_an_unset_field_of_an_update_leaves_the_value(self, registrar, got):
        changes = [(rep(PRINTER, colour="red"), rep(DEVICE, building="2"))]
        registrar.modify_attributes(got.service_id, got.lease_id, changes, NOW)
        assert self.entries(registrar) == (rep(PRINTER, colour="red", building="2"), self.BLUE)

    @pytest.mark.parametrize("order", [1, -1])
    def test_a_deletion_wins_over_an_update_of_the_same_entry(self, registrar, got, order):
        changes = [(rep(PRINTER, colour="red"), None), (rep(DEVICE), rep(DEVICE, building="3"))][::order]
        registrar.modify_attributes(got.service_id, got.lease_id, changes, NOW)
        assert self.entries(registrar) == (rep(PRINTER, colour="blue", building="3"),)

    def test_entries_that_have_become_equal_are_merged_at_the_end(self, registrar, got):
        changes = [(rep(PRINTER), rep(PRINTER, colour="grey"))]
        registrar.modify_attributes(got.service_id, got.lease_id, changes, NOW)
        assert self.entries(registrar) == (rep(PRINTER, colour="grey", building="1"),)

    def test_an_update_of_a_class_that_is_no_superclass_is_refused(self, registrar, got):
        with pytest.raises(EntryError, match="superclasses"):
            registrar.modify_attributes(got.service_id, got.lease_id, [(rep(DEVICE), rep(PRINTER))], NOW)
        with pytest.raises(IncompatibleEntryError):
            registrar.modify_attributes(got.service_id, got.lease_id, [(rep(PRINTER_NEW), None)], NOW)

    def test_only_the_live_lease_of_that_item_may_change_it(self, registrar, got):
        other = registrar.register(item("q"), 60.0, NOW).result
        for service_id, lease_id, now in [
            (got.service_id, "foreign", NOW),
            (got.service_id, other.lease_id, NOW),
            ("unknown", got.lease_id, NOW),
            (got.service_id, got.lease_id, NOW + 60.0),
        ]:
            with pytest.raises(UnknownLeaseError):
                registrar.set_attributes(service_id, lease_id, (), now)
        assert len(self.entries(registrar)) in (0, 2)
        assert registrar.lookup(template(service_id=got.service_id), NOW).entries == (self.RED, self.BLUE)


class TestEvents:
    """LU.2.4"""

    RED = template(rep(PRINTER, colour="red"))

    @pytest.mark.parametrize("transitions", [0, 8, -1, 15, "1"])
    def test_transitions_are_a_non_empty_set(self, registrar, transitions):
        with pytest.raises(EntryError, match="transitions"):
            registrar.notify(template(), transitions, 60.0, NOW)

    def test_there_is_no_replay(self, registrar):
        registrar.register(item("p", rep(PRINTER, colour="red")), 60.0, NOW)
        assert registrar.notify(self.RED, 7, 60.0, NOW).events == ()

    def test_each_change_is_one_of_three_transitions_numbered_without_gaps(self, registrar):
        event = registrar.notify(self.RED, 7, 600.0, NOW, handback="mine", listener="channel").result
        outcome = registrar.register(item("p", rep(PRINTER, colour="red")), 60.0, NOW)
        got = outcome.result
        ((listener, first),) = outcome.events
        assert (listener, first.event_id, first.handback) == ("channel", event.event_id, "mine")
        assert told(outcome) == [(event.number + 1, Transition.NOMATCH_MATCH, "p")]
        same = registrar.add_attributes(got.service_id, got.lease_id, (), NOW)
        assert told(same) == [(event.number + 2, Transition.MATCH_MATCH, "p")], "a change even if nothing differs"
        blue = registrar.set_attributes(got.service_id, got.lease_id, (rep(PRINTER, colour="blue"),), NOW)
        assert told(blue) == [(event.number + 3, Transition.MATCH_NOMATCH, "p")], "it is there, but matches no more"
        assert registrar.cancel(got.lease_id, NOW).events == ()
        assert event.event_id != registrar.notify(self.RED, 7, 60.0, NOW).result.event_id

    def test_only_the_wanted_transitions_come_and_the_others_take_no_number(self, registrar):
        registrar.notify(template(), Transition.MATCH_NOMATCH, 600.0, NOW)
        outcome = registrar.register(item("p"), 60.0, NOW)
        assert outcome.events == ()
        assert told(registrar.cancel(outcome.result.lease_id, NOW)) == [(1, Transition.MATCH_NOMATCH, None)]

    def test_a_renewal_is_no_change(self, registrar):
        registrar.notify(template(), 7, 600.0, NOW)
        got = registrar.register(item("p"), 60.0, NOW).result
        assert registrar.renew(got.lease_id, 60.0, NOW).events == ()

    def test_a_service_that_expires_is_announced_by_reaping(self, registrar):
        registrar.notify(template(service_id="id"), 7, 600.0, NOW)
        registrar.register(item("p", service_id="id"), 60.0, NOW)
        registrar.register(item("q"), 60.0, NOW)
        assert registrar.next_deadline() == NOW + 60.0
        outcome = registrar.expire(NOW + 60.0)
        assert outcome.result == 2
        assert told(outcome) == [(2, Transition.MATCH_NOMATCH, None)], "the template names one id"

    def test_reaping_is_done_in_portions(self, registrar):
        for number in range(5):
            registrar.register(item(f"p{number}"), 10.0 + number, NOW)
        assert [registrar.expire(NOW + 100.0, 2).result for _ in range(4)] == [2, 2, 1, 0]

    def test_an_expired_event_registration_hears_nothing_and_is_released(self, registrar):
        registrar.notify(template(), 7, 10.0, NOW)
        assert registrar.register(item("p"), 60.0, NOW + 10.0).events == ()
        assert registrar.status().event_registrations == 1
        assert registrar.expire(NOW + 10.0).result == 1
        assert registrar.status().event_registrations == 0


class TestLeases:
    def test_a_batch_has_a_result_for_each_lease(self, registrar):
        good = registrar.register(item("p"), 60.0, NOW).result
        event = registrar.notify(template(), 7, 60.0, NOW).result
        results = registrar.renew_all(
            [(good.lease_id, 30.0), ("foreign", 30.0), (event.lease_id, 40.0), (good.lease_id, -9.0)], NOW
        ).result
        assert [(r.duration, r.error.code if r.error else "") for r in results] == [
            (30.0, ""), (0.0, "unknown_lease"), (40.0, ""), (0.0, "lease_denied"),
        ]  # fmt: skip
        outcome = registrar.cancel_all([good.lease_id, good.lease_id, event.lease_id], NOW)
        assert [r.error is None for r in outcome.result] == [True, False, True]
        assert told(outcome) == [(1, Transition.MATCH_NOMATCH, None)]

    def test_a_service_id_that_equals_an_event_id_confuses_nobody(self, registrar):
        event = registrar.notify(template(), 7, 60.0, NOW).result
        registrar.register(item("p", service_id=event.event_id), 60.0, NOW)
        registrar.cancel(event.lease_id, NOW)
        assert (registrar.status().items, registrar.status().event_registrations) == (1, 0)


class Browsed:
    """Browses all that a registrar finds."""

    def __init__(self, registrar: Registrar) -> None:
        self._registrar = registrar

    def entry_classes(self, wanted, now):
        return browse.entry_classes(self._found(wanted, now), wanted)

    def field_values(self, wanted, index, field, now):
        return browse.field_values(self._found(wanted, now), wanted, index, field)

    def service_types(self, wanted, prefix, now):
        return browse.service_types(self._found(wanted, now), wanted, prefix)

    def _found(self, wanted, now):
        return self._registrar.lookup_all(wanted, now, 100).items


class TestBrowse:
    """LU.2.5"""

    @pytest.fixture
    def browsed(self, registrar):
        laser = ("a.Laser", "a.Printer", "Service")
        entries = (rep(PRINTER, colour="red", building="1"), rep(COMMENT, text="x"))
        registrar.register(item("p", *entries, types=laser), 60.0, NOW)
        registrar.register(item("q", rep(PRINTER, building="2"), types=("b.Ink", "a.Printer", "Service")), 60.0, NOW)
        registrar.register(item("gone", rep(DEVICE), types=("c.Gone",)), 1.0, NOW)
        return Browsed(registrar)

    def test_entry_classes_leave_out_what_was_asked_exactly(self, browsed):
        assert browsed.entry_classes(template(), NOW + 1.0) == ("Comment", "Printer")
        assert browsed.entry_classes(template(rep(PRINTER)), NOW + 1.0) == ("Comment",)
        assert browsed.entry_classes(template(rep(DEVICE)), NOW + 1.0) == ("Comment", "Printer"), (
            "a superclass is not it"
        )
        assert browsed.entry_classes(template(types=("Scanner",)), NOW + 1.0) == ()

    def test_field_values_are_distinct_and_unset_is_one_of_them(self, browsed):
        assert browsed.field_values(template(rep(PRINTER)), 0, "colour", NOW) == (None, "red")
        assert browsed.field_values(template(rep(COMMENT), rep(DEVICE)), 1, "building", NOW) == ("1",)
        for index, field in [(1, "colour"), (-1, "colour"), (0, "size")]:
            with pytest.raises(EntryError, match="no field"):
                browsed.field_values(template(rep(PRINTER)), index, field, NOW)

    def test_service_types_climb_to_the_first_name_with_the_prefix(self, browsed):
        now = NOW + 1.0
        assert browsed.service_types(template(), "", now) == ("a.Laser", "b.Ink")
        assert browsed.service_types(template(), "a.", now) == ("a.Laser", "a.Printer")
        assert browsed.service_types(template(types=("a.Printer",)), "a.", now) == ("a.Laser",)
        assert browsed.service_types(template(types=("a.Printer",)), "Serv", now) == ()

    def test_a_result_has_a_bound(self, monkeypatch, browsed):
        assert len(browsed.service_types(template(), "", NOW)) == 3
        monkeypatch.setattr(browse, "MAX_VALUES", 2)
        with pytest.raises(OversizeError, match="Narrow"):
            browsed.service_types(template(), "", NOW)
        monkeypatch.setattr(browse, "PAGE_BYTES", 8)
        with pytest.raises(OversizeError, match="bytes"):
            browsed.field_values(template(rep(PRINTER)), 0, "colour", NOW)


class TestLimits:
    @pytest.mark.row("G-134")
    def test_the_number_of_items_is_bounded_in_all_and_for_each_owner(self):
        registrar = make(limits=RegistrarLimits(items=3, items_per_owner=2))
        registrar.register(item("1", service_id="1"), 60.0, NOW, owner="a")
        two = registrar.register(item("2"), 60.0, NOW, owner="a").result
        with pytest.raises(LeaseDeniedError, match="a has its 2 items"):
            registrar.register(item("3"), 60.0, NOW, owner="a")
        registrar.register(item("1", service_id="1"), 60.0, NOW, owner="a")  # a replacement takes no place
        registrar.register(item("3"), 60.0, NOW, owner="b")
        with pytest.raises(LeaseDeniedError, match="lookup service has its 3 items"):
            registrar.register(item("4"), 60.0, NOW, owner="c")
        registrar.cancel(two.lease_id, NOW)
        registrar.register(item("4"), 60.0, NOW, owner="a")
        assert registrar.status().refused == 2

    def test_the_number_of_event_registrations_is_bounded(self):
        registrar = make(limits=RegistrarLimits(event_registrations_per_owner=1))
        registrar.notify(template(), 7, 60.0, NOW, owner="a")
        with pytest.raises(LeaseDeniedError, match="event_registrations"):
            registrar.notify(template(), 7, 60.0, NOW, owner="a")

    def test_sizes_are_bounded(self):
        registrar = make(limits=RegistrarLimits(item_bytes=2000, entries=2, types=2, postings=500))
        got = registrar.register(item("p"), 60.0, NOW).result
        long, many = rep(COMMENT, text="x" * 2000), [rep(COMMENT, text=str(n)) for n in range(3)]
        for call in (
            lambda: registrar.register(item("q", long), 60.0, NOW),
            lambda: registrar.register(item("q", *many), 60.0, NOW),
            lambda: registrar.register(item("q", types=("a", "b", "c")), 60.0, NOW),
            lambda: registrar.register(item("q", service_id="x" * 1025), 60.0, NOW),
            lambda: registrar.register(item("q"), 60.0, NOW, owner="x" * 1025),
            lambda: registrar.add_attributes(got.service_id, got.lease_id, (long,), NOW),
            lambda: registrar.add_attributes(got.service_id, got.lease_id, many, NOW),
            lambda: registrar.lookup(template(*many), NOW),
            lambda: registrar.notify(template(), 7, 60.0, NOW, handback="x" * 2000),
            lambda: registrar.notify(template(long), 7, 60.0, NOW),
        ):
            with pytest.raises(OversizeError):
                call()
        with pytest.raises(OversizeError, match="values, each counted for each class"):
            registrar.register(item("q", EntryRep(ANCIENT, ("x",) * 20)), 60.0, NOW)
        assert registrar.lookup(template(), NOW).entries == ()

    def test_text_that_is_no_unicode_is_refused(self, registrar):
        with pytest.raises(EntryError, match="Unicode"):
            registrar.register(item("\ud800"), 60.0, NOW)

    def test_no_page_has_more_items_than_the_limit(self):
        registrar = make(limits=RegistrarLimits(matches=2))
        for number in range(4):
            registrar.register(item(str(number)), 60.0, NOW)
        found = registrar.lookup_all(template(), NOW, 1000, total=True)
        assert (len(found.items), found.total) == (2, 4)
        assert found.after


class TestAdministration:
    def test_groups_and_locators_are_kept_once_each(self, registrar):
        assert registrar.admin().groups == ("",), "public by default"
        registrar.set_groups(("ops", "", "ops"))
        registrar.set_locators(("Host:4160", "jbi://host:4160", "[::1]:99"))
        assert registrar.admin().groups == ("ops", "")
        assert registrar.admin().locators == ("host:4160", "[::1]:99")
        assert registrar.status().groups == ("ops", "")

    @pytest.mark.parametrize("group", ["a,b", "a\nb", "x" * 256, "*"])
    def test_a_group_that_discovery_could_not_carry_is_refused(self, registrar, group):
        with pytest.raises(EntryError, match="group"):
            registrar.set_groups((group,))

    @pytest.mark.parametrize(
        "locator",
        ["", "nonsense", ":1", "host:", "host:0", "host:70000", "host:x", "host:٣", "a b:1", "::1", "[::1", "[]:1", "http://h:1",
         "h/x:1", "u@h:1", "h" * 254 + ":1", "host:" + "9" * 5000],
    )  # fmt: skip
    def test_a_malformed_locator_is_refused_and_nothing_changed(self, registrar, locator):
        registrar.set_locators(("host:1",))
        with pytest.raises(ConfigurationError, match=r"HOST:PORT|limit"):
            registrar.set_locators(("other:1", locator))
        assert registrar.admin().locators == ("host:1",)

    def test_a_destroyed_registrar_is_empty_and_accepts_nothing(self, registrar):
        got = registrar.register(item("p", rep(PRINTER)), 60.0, NOW).result
        registrar.notify(template(), 7, 60.0, NOW)
        assert registrar.destroy().result.destroyed
        assert registrar.lookup(template(), NOW) is None
        assert (registrar.status().items, registrar.next_deadline()) == (0, None)
        with pytest.raises(LeaseDeniedError, match="destroyed"):
            registrar.register(item("p"), 60.0, NOW)
        with pytest.raises(UnknownLeaseError):
            registrar.renew(got.lease_id, 60.0, NOW)

    def test_status_is_plain_data(self, registrar):
        registrar.register(item("p"), 60.0, NOW)
        assert msgspec.json.decode(msgspec.json.encode(registrar.status()))["items"] == 1


class FullLog:
    """The disk is full."""

    def admit(self) -> None:
        raise StorageError("the disk is full")

    def write(self, records) -> None:
        pass  # in memory


def test_on_a_full_disk_nothing_new_is_accepted_and_the_rest_goes_on():
    registrar = make()
    got = registrar.register(item("p"), 60.0, NOW).result
    registrar._log = FullLog()
    for call in (
        lambda: registrar.register(item("q"), 60.0, NOW),
        lambda: registrar.set_attributes(got.service_id, got.lease_id, (), NOW),
    ):
        with pytest.raises(StorageError):
            call()
    registrar.notify(template(), 7, 60.0, NOW)  # its client makes it again where it is lost
    assert names(registrar, template()) == {"p"}
    assert registrar.renew(got.lease_id, 60.0, NOW).result.duration == 60.0
    assert registrar.status().refused == 2
    registrar.cancel(got.lease_id, NOW)
    assert registrar.status().items == 0


def test_what_can_not_be_taken_out_keeps_nothing_else_from_ending():
    """Given an item and an event registration that fail when their leases have ended, all others end."""
    registrar = make()
    services = [registrar.register(item(name), 10.0, NOW).result.service_id for name in "abc"]
    events = [registrar.notify(template(), 7, 10.0, NOW, listener=name).result.event_id for name in "abc"]
    registrar.notify(template(), 7, 100.0, NOW, listener="watching")
    before = faults().get("lookup expiry", 0)
    failing = {"_withdraw": services[1], "_stop": events[0]}
    for name, poisoned in failing.items():
        whole = getattr(registrar, name)

        def fail(key, *rest, whole=whole, poisoned=poisoned):
            if key == poisoned:
                raise KeyError(key)
            return whole(key, *rest)

        setattr(registrar, name, fail)
    outcome = registrar.expire(NOW + 20.0)
    assert sorted(event.service_id for _, event in outcome.events) == sorted({services[0], services[2]})
    assert registrar.status().event_registrations == 2
    assert faults()["lookup expiry"] == before + 2
    assert names(registrar, template(), NOW + 20.0) == set()


def test_an_item_shares_its_parts_with_others_like_it(registrar):
    """Items decoded from the wire come each with their own copy of the entry class; only one is kept."""
    for name in ("p", "q"):
        sent = item(name, rep(PRINTER, colour="red"))
        registrar.register(msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ServiceItem), 60.0, NOW)
    one, two = registrar.lookup_all(template(), NOW, 2).items
    assert one.entries[0].cls is two.entries[0].cls
    assert one.types is two.types


@pytest.mark.long
def test_items_that_come_and_go_leave_nothing_behind(registrar):
    """What they say is shared with others like them, but not kept for them once they are gone."""
    tracemalloc.start()
    for number in range(2_000):
        sent = item("p", rep(COMMENT, text=str(number) * 10_000))
        got = registrar.register(msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=ServiceItem), 60.0, NOW)
        registrar.cancel(got.result.lease_id, NOW)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 60_000_000  # of 78,000,000
