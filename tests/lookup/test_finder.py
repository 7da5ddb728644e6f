"""What a cache makes of several lookup services that know of the same service, some of them better than others."""

from __future__ import annotations

from jbi_pubsub.core.errors import EntryError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate


def at(port: int) -> ServiceItem:
    """A printer that answers there."""
    return ServiceItem("printer", ("Printer",), ServiceRef("printer", "printer", (f"127.0.0.1:{port}",)))


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.news: list[tuple[str, ServiceItem]] = []

    def service_added(self, item: ServiceItem) -> None:
        self.news.append(("added", item))

    def service_changed(self, _old: ServiceItem, new: ServiceItem) -> None:
        self.news.append(("changed", new))

    def service_removed(self, item: ServiceItem) -> None:
        self.news.append(("removed", item))


def test_what_is_old_at_one_lookup_service_does_not_outlive_it_at_another() -> None:
    # Given a service that two lookup services list, and that has moved; one of them can't be told of it
    told = Told()
    cache = LookupCache(ServiceTemplate(types=("Printer",)), told)
    for registrar in ("one", "other"):
        cache.snapshot(registrar, (at(1),))
    cache.changed("one", "printer", at(2))
    # When that one is asked again, and later gives the service up
    cache.snapshot("other", (at(1),))
    assert cache.items() == [at(2)]
    cache.changed("other", "printer", None)
    # Expect where it is to be what counts
    assert cache.items() == [at(2)]
    assert told.news == [("added", at(1)), ("changed", at(2))]


def test_a_lookup_service_that_was_behind_is_not_believed_for_longer_than_it_lists_it() -> None:
    # Given a service that has moved, and then a lookup service that lists it where it was
    told = Told()
    cache = LookupCache(ServiceTemplate(types=("Printer",)), told)
    cache.snapshot("one", (at(2),))
    cache.snapshot("behind", (at(1),))
    # When that one gives it up
    cache.forget("behind")
    # Expect it to be where it is
    assert cache.items() == [at(2)]
    assert told.news[-1] == ("changed", at(2))


def test_a_refusal_holds_until_the_lookup_service_watches() -> None:
    # Given two lookup services that refuse to watch
    cache = LookupCache(ServiceTemplate(types=("Printer",)))
    for registrar in ("one", "other"):
        cache.refused(registrar, EntryError(f"refused by {registrar}"))
    # When one of them does it in the end, expect the other's refusal to hold still
    cache.snapshot("one", ())
    assert "other" in str(cache.error)
    # When that one is given up, expect none
    cache.forget("other")
    assert cache.error is None
