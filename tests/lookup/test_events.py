"""The book of event registrations alone; what it does inside the registrar is told in test_registrar."""

from __future__ import annotations

from jbi_pubsub.core.lease import FixedLeasePeriodPolicy, Landlord
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.events import MAX_DIAGNOSTICS, NUMBER_JUMP, EventBook, Interest
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate, Transition

PRINTER = define("Printer", {"colour": str})


def item(*colours: str, service_id: str = "id") -> ServiceItem:
    return ServiceItem(service_id, ("T",), ServiceRef("", "p", ()), tuple(EntryRep(PRINTER, (c,)) for c in colours))


def interest(event_id: str, *colours: str, transitions: int = 7, number: int = 0) -> Interest:
    template = ServiceTemplate(entries=tuple(EntryRep(PRINTER, (c,)) for c in colours))
    return Interest(event_id, template, transitions, f"to-{event_id}", f"lease-{event_id}", number=number)


NOW = 1000.0


def a_book(*interests: Interest) -> EventBook:
    """With the leases of `interests` live."""
    leases: Landlord[str] = Landlord(FixedLeasePeriodPolicy())
    book = EventBook(leases)
    for each in interests:
        leases.restore(each.lease_id, each.event_id, NOW + 60.0)
        book.add(each)
    return book


def test_one_change_is_told_to_each_registration_as_what_it_is_for_that_one():
    """Given three templates, when an item turns from red to blue, each hears of its own transition."""
    book = a_book(interest("red", "red"), interest("blue", "blue"), interest("any"), interest("green", "green"))
    told = {event.event_id: event.transition for _, event in book.fire(item("red"), item("blue"), NOW)}
    assert told == {
        "red": Transition.MATCH_NOMATCH,
        "blue": Transition.NOMATCH_MATCH,
        "any": Transition.MATCH_MATCH,
    }


def test_numbers_go_on_from_the_number_of_the_registration():
    book = a_book(interest("e", number=NUMBER_JUMP))
    numbers = [book.fire(None, item("red"), NOW)[0][1].number for _ in range(3)]
    assert numbers == [NUMBER_JUMP + 1, NUMBER_JUMP + 2, NUMBER_JUMP + 3]


def test_a_registration_without_a_live_lease_gets_no_event_and_no_number():
    book = a_book(interest("e"))
    assert book.fire(None, item("red"), NOW + 60.0) == []
    assert book.fire(None, item("red"), NOW)[0][1].number == 1


def test_diagnostics_are_bounded_for_each_registration():
    """Given a flood of generations of one class name, a listener is told of the first few."""
    book = a_book(interest("e", "red"))
    flood = [("Printer", str(number)) for number in range(100)]
    said = [d for key in flood for d in book.diagnose([key], "id", lambda _: False, NOW)]
    assert len(said) == MAX_DIAGNOSTICS
    assert book.diagnose([("Scanner", "1")], "id", lambda _: False, NOW) == []


def test_a_removed_registration_leaves_nothing_behind():
    book = a_book(interest("e", "red"))
    assert book.remove("e").event_id == "e"
    assert (len(book), len(book._index)) == (0, 0)
    assert book.fire(None, item("red"), NOW) == []
