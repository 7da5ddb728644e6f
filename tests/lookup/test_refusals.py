"""What a lookup service refuses, over the wire: our own errors, each with a hint; and it serves on as before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import Config, LookupSection
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    EntryError,
    IncompatibleEntryError,
    JbiError,
    LeaseDeniedError,
    OversizeError,
    UnknownLeaseError,
    rebuild,
)
from jbi_pubsub.core.lease import ANY, FOREVER
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.entry import EntryClass, EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer

pytestmark = pytest.mark.processes

COLOUR = define("test.Colour", {"name": str})
OTHER_COLOUR = define("test.Colour", {"name": str, "shade": str})
MOST = 4
CONFIG = Config(lookup=LookupSection(port=0, multicast=False, locators=(), timeout=5.0, probe=0.3))


def item(name: str, *entries: EntryRep, service_id: str | None = None) -> ServiceItem:
    ref = ServiceRef(name, name, ("127.0.0.1:1",))
    return ServiceItem(name if service_id is None else service_id, ("Service",), ref, entries or (colour("red"),))


def colour(name: str | None) -> EntryRep:
    return EntryRep(COLOUR, (name,))


@pytest.fixture(scope="module")
def server() -> Iterator[LookupServer]:
    """A lookup service in which a client has room for a few items."""
    limits = RegistrarLimits(items_per_owner=MOST, event_registrations_per_owner=MOST)
    made = LookupServer(CONFIG, Registrar(limits=limits))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def registrar(server: LookupServer) -> Iterator[RegistrarProxy]:
    """A client that leaves nothing behind, and finds the lookup service well after what it was refused."""
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (server.address,)), Security())
    yield proxy
    with server.registrar._lock:
        registrar = server.registrar._registrar
        held = [lease_id for landlord in (registrar._leases.items, registrar._leases.events)
                for lease_id, _, _ in landlord.items()]  # fmt: skip
    proxy.cancel(held)
    assert [left.service_id for left in proxy.lookup(ServiceTemplate(), 10).items] == [server.info().service_id]
    proxy.close()


def refused(kind: type[JbiError], call: Callable[[], object]) -> JbiError:
    """The error of that kind that `call` ends with; it has a hint."""
    with pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    assert raised.value.hint
    return raised.value


@pytest.mark.parametrize("lease_id", ["unknown", "", "x" * 10_000])
def test_an_unknown_lease(registrar: RegistrarProxy, lease_id: str) -> None:
    got = registrar.register(item("one"), 60.0)
    for results in (registrar.renew([(lease_id, 60.0), (got.lease_id, 60.0)]), registrar.cancel([lease_id])):
        assert results[0].error is not None
        error = rebuild(results[0].error)
        assert isinstance(error, UnknownLeaseError)
        assert error.hint
        assert all(result.error is None for result in results[1:]), "the others of the batch go on"
    for call in (
        lambda: registrar.set_attributes("one", lease_id, ()),
        lambda: registrar.add_attributes("one", lease_id, (colour("blue"),)),
        lambda: registrar.modify_attributes("one", lease_id, ((colour("red"), None),)),
        lambda: registrar.set_attributes("nobody", got.lease_id, ()),
    ):
        refused(UnknownLeaseError, call)


def test_a_lease_of_another_item(registrar: RegistrarProxy) -> None:
    """Given two items, the lease of one is no right to the other."""
    one, _ = registrar.register(item("one"), 60.0), registrar.register(item("two"), 60.0)
    refused(UnknownLeaseError, lambda: registrar.set_attributes("two", one.lease_id, ()))


@pytest.mark.parametrize("duration", [math.nan, -5.0, -math.inf, -0.5])
def test_a_bad_duration(registrar: RegistrarProxy, duration: float) -> None:
    assert "lease duration" in str(refused(LeaseDeniedError, lambda: registrar.register(item("one"), duration)))
    refused(
        LeaseDeniedError,
        lambda: registrar.notify(ServiceTemplate(), int(ALL_TRANSITIONS), duration, "", "listener"),
    )
    got = registrar.register(item("one"), 60.0)
    (result,) = registrar.renew([(got.lease_id, duration)])
    assert result.error is not None
    assert isinstance(rebuild(result.error), LeaseDeniedError)
    assert registrar.renew([(got.lease_id, 60.0)])[0].duration == 60.0, "the lease is as it was"


@pytest.mark.parametrize("duration", [1e300, FOREVER, ANY, 400.0])
def test_a_huge_duration_is_cut_to_the_maximum(registrar: RegistrarProxy, duration: float) -> None:
    assert registrar.register(item("one"), duration).duration == 300.0


def test_the_lookup_services_own_id(registrar: RegistrarProxy) -> None:
    own = registrar.describe().service_id
    refused(AccessDeniedError, lambda: registrar.register(item("one", service_id=own), 60.0))


def test_a_template_of_another_generation_of_a_class(registrar: RegistrarProxy) -> None:
    registrar.register(item("one"), 60.0)
    template = ServiceTemplate(entries=(EntryRep(OTHER_COLOUR, ("red", None)),))
    for call in (
        lambda: registrar.lookup(template, 10),
        lambda: registrar.lookup(msgspec.structs.replace(template, service_id="one"), 10),
        lambda: registrar.lookup(msgspec.structs.replace(template, types=("Service",)), 10),
        lambda: registrar.notify(template, int(ALL_TRANSITIONS), 60.0, "", "listener"),
        lambda: registrar.entry_classes(template),
        lambda: registrar.field_values(template, 0, "name"),
        lambda: registrar.service_types(template, ""),
    ):
        error = refused(IncompatibleEntryError, call)
        assert error.facts["entry_class"] == "test.Colour"


def test_a_watcher_whose_class_comes_in_another_generation_later(
    server: LookupServer, registrar: RegistrarProxy, eventually: Callable[..., Any]
) -> None:
    """Given a cache that watched before anything was there, the other generation is told, not silently left out."""
    lookup = msgspec.structs.replace(CONFIG.lookup, locators=(server.address,))
    community = JoinManager(msgspec.structs.replace(CONFIG, lookup=lookup), name="test")
    try:
        cache = community.watch(ServiceTemplate(entries=(EntryRep(OTHER_COLOUR, ("red", None)),)))
        community.wait_watching(cache, 60.0)
        registrar.register(item("one"), 60.0)
        error = eventually(lambda: cache.error)
        assert isinstance(error, IncompatibleEntryError)
        assert error.hint
    finally:
        community.close()


def test_entries_that_are_too_large(registrar: RegistrarProxy) -> None:
    long, many = colour("x" * 300_000), tuple(colour(str(number)) for number in range(1_100))
    got = registrar.register(item("one"), 60.0)
    for call in (
        lambda: registrar.register(item("two", long), 60.0),
        lambda: registrar.register(item("two", *many), 60.0),
        lambda: registrar.register(item("x" * 2000), 60.0),
        lambda: registrar.register(item("two", colour("x" * 40_000_000)), 60.0),
        lambda: registrar.set_attributes("one", got.lease_id, (long,)),
        lambda: registrar.add_attributes("one", got.lease_id, many),
        lambda: registrar.notify(ServiceTemplate(entries=(long,)), 7, 60.0, "", "listener"),
        lambda: registrar.lookup(ServiceTemplate(entries=many), 10),
        lambda: registrar.lookup(ServiceTemplate(types=tuple(map(str, range(100)))), 10),
    ):
        refused(OversizeError, call)
    assert registrar.lookup(ServiceTemplate("one"), 10).items[0].entries == (colour("red"),)


def test_entries_that_are_no_entries(registrar: RegistrarProxy) -> None:
    """Given classes that say two things at once, nothing is guessed."""
    name, fingerprint = COLOUR.lineage[0]
    for forged in (
        EntryRep(COLOUR, ("red", "one value too many")),
        EntryRep(EntryClass("test.Else", ("name",), COLOUR.lineage), ("red",)),
        EntryRep(EntryClass(name, ("name",), ((name, fingerprint), (name, fingerprint))), ("red",)),
        EntryRep(EntryClass(name, ("name", "name"), COLOUR.lineage), ("red", "blue")),
        EntryRep(EntryClass("\0id", ("service_id",), (("\0id", "0"),)), ("one",)),
    ):
        refused(EntryError, lambda entry=forged: registrar.register(item("one", entry), 60.0))
        refused(EntryError, lambda entry=forged: registrar.lookup(ServiceTemplate(entries=(entry,)), 10))


def test_more_items_or_event_registrations_than_one_client_may_have(registrar: RegistrarProxy) -> None:
    got = [registrar.register(item(f"s{number}"), 60.0) for number in range(MOST)]
    error = refused(LeaseDeniedError, lambda: registrar.register(item("one more"), 60.0))
    assert str(MOST) in error.message
    registrar.register(item("s1"), 60.0)  # in place of one of its own
    registrar.cancel([got[0].lease_id])
    registrar.register(item("one more"), 60.0)
    for _ in range(MOST):
        registrar.notify(ServiceTemplate(), 7, 60.0, "", "listener")
    refused(LeaseDeniedError, lambda: registrar.notify(ServiceTemplate(), 7, 60.0, "", "listener"))


@pytest.mark.parametrize("transitions", [0, 8, -1, 255])
def test_transitions_that_are_none(registrar: RegistrarProxy, transitions: int) -> None:
    refused(EntryError, lambda: registrar.notify(ServiceTemplate(), transitions, 60.0, "", "listener"))


def test_a_negative_limit_a_bad_cursor_a_field_that_is_none(registrar: RegistrarProxy) -> None:
    refused(EntryError, lambda: registrar.lookup(ServiceTemplate(), -1))
    refused(
        EntryError,
        lambda: registrar._client.call("lookup", None, ServiceTemplate(), 10, False, "not a cursor"),
    )
    template = ServiceTemplate(entries=(colour(None),))
    refused(EntryError, lambda: registrar.field_values(template, 0, "shade"))
    refused(EntryError, lambda: registrar.field_values(template, 1, "name"))


def test_an_event_channel_with_an_overlong_name(registrar: RegistrarProxy) -> None:
    refused(OversizeError, lambda: registrar.open_events("x" * 100))
