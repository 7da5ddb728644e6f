"""The lookup service as a server: durable over kill -9, incompatible classes are said, gaps lead to another lookup."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import AccessDeniedError, IncompatibleEntryError, LookupNotFoundError, WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import DATA, Security, dial
from jbi_pubsub.core.wire.stream import ITEMS, Hello, Line, Receiver, greet
from jbi_pubsub.lookup import server as server_module
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceEvent, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.join import JoinManager
from jbi_pubsub.lookup.proxy import EXPORTED, RegistrarProxy

COLOUR = define("test.Colour", {"name": str})
OTHER_COLOUR = define("test.Colour", {"name": str, "shade": str})


def printer(number: int, colour: str = "red") -> ServiceItem:
    proxy = ServiceRef(f"printer-{number}", "printer", ("127.0.0.1:1",))
    return ServiceItem(f"printer-{number}", ("Printer",), proxy, (EntryRep(COLOUR, (colour,)),))


def wanting(colour: str | None) -> ServiceTemplate:
    return ServiceTemplate(types=("Printer",), entries=(EntryRep(COLOUR, (colour,)),))


@contextmanager
def listening(proxy: RegistrarProxy, listener: str, heard: list[ServiceEvent]) -> Iterator[None]:
    """An event connection for a while; what comes is added to `heard`."""

    def hear(items: list[memoryview]) -> None:
        heard.extend(msgspec.msgpack.decode(item[1:], type=ServiceEvent) for item in items)

    def read() -> None:
        with suppress(WireError):
            receiver.run(line)

    with dial(proxy.ref, DATA, Security(), 5.0) as sock:
        line = Line(sock)
        greet(line, Hello(proxy.open_events(listener)))
        receiver = Receiver(hear, lambda: b"")
        reading = threading.Thread(target=read)
        reading.start()
        yield
        line.shut()
        reading.join()


@pytest.mark.processes
def test_a_killed_lookup_service_comes_back_with_its_items_leases_and_identity(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a durable lookup service with a registered printer
    arguments = ("--no-multicast", "lookup", "--port", "0", "--state", str(tmp_path / "state.db"), "--json")
    first = start(*arguments)
    facts = first.fact()
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (facts["address"],)), Security())
    granted = proxy.register(printer(1), 300.0)
    proxy.close()
    # When it is killed and started again
    first.signal(signal.SIGKILL)
    first.end()
    again = start(*arguments).fact()
    # Expect the same service, the same item, and the same lease
    assert again["id"] == facts["id"]
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (again["address"],)), Security())
    assert [item.service_id for item in proxy.lookup(wanting("red"), 10).items] == ["printer-1"]
    assert proxy.renew([(granted.lease_id, 300.0)])[0].error is None
    proxy.close()


def test_a_template_of_another_generation_is_an_error_never_silence(federation: Any) -> None:
    # Given a printer whose Colour has one field, and a community watching for a Colour of two
    community = JoinManager(federation.config, name="test")
    federation.stack.callback(community.close)
    community.join(printer(1))
    community.wait_joined("printer-1", 5.0)
    cache = community.watch(ServiceTemplate(entries=(EntryRep(OTHER_COLOUR, ("red", None)),)))
    # Expect the error, at once, instead of an empty cache
    with pytest.raises(IncompatibleEntryError):
        community.wait_watching(cache, 5.0)


def test_a_client_that_lost_events_looks_up_again(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a watching community, and a lookup service that can't keep a single event for it
    monkeypatch.setattr(server_module, "EVENTS_WAITING", 0)
    lookup = federation.lookups[0]
    watcher = JoinManager(federation.config, name="watcher")
    federation.stack.callback(watcher.close)
    cache = watcher.watch(wanting(None))
    watcher.wait_watching(cache, 5.0)
    # When many printers come
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (lookup.address,)), Security())
    federation.stack.callback(proxy.close)
    for number in range(200):
        proxy.register(printer(number), 300.0)
    # Expect every event to be lost, and the cache to hold all printers in the end
    eventually(lambda: len(cache.items()) == 200)
    assert lookup.status()["events_lost"] >= 200
    proxy.register(printer(3, "blue"), 300.0)
    eventually(lambda: any(item.entries[0].values == ("blue",) for item in cache.items()))


def test_a_listener_that_connects_again_hears_what_comes_then(federation: Any, eventually: Callable[..., Any]) -> None:
    # Given a listener that has heard of a printer, and whose event connection is cut
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (federation.lookups[0].address,)), Security())
    federation.stack.callback(proxy.close)
    proxy.notify(wanting(None), int(ALL_TRANSITIONS), 300.0, "", "listener")
    heard: list[ServiceEvent] = []
    with listening(proxy, "listener", heard):
        proxy.register(printer(1), 300.0)
        eventually(lambda: len(heard) == 1)

    # When it connects again, expect to hear of the next printer
    with listening(proxy, "listener", heard):
        proxy.register(printer(2), 300.0)
        eventually(lambda: len(heard) == 2)
    assert [(event.service_id, event.number) for event in heard] == [("printer-1", 1), ("printer-2", 2)]


def test_event_connections_cost_no_threads(federation: Any, eventually: Callable[..., Any]) -> None:
    # Given a lookup service, and a client that can call it
    lookup = federation.lookups[0]
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (lookup.address,)), Security())
    federation.stack.callback(proxy.close)
    proxy.describe()
    before = threading.active_count()

    # When a hundred event connections are opened, expect no thread for any of them
    lines = []
    for n in range(100):
        proxy.notify(wanting(None), int(ALL_TRANSITIONS), 300.0, "", f"listener-{n}")
        sock = federation.stack.enter_context(dial(proxy.ref, DATA, Security(), 5.0))
        lines.append(Line(sock))
        greet(lines[-1], Hello(proxy.open_events(f"listener-{n}")))
    eventually(lambda: threading.active_count() <= before)
    assert lookup.status()["connections"] == 101

    # Expect each to hear of a printer
    proxy.register(printer(1), 300.0)
    assert [line.receive(10.0)[0] for line in lines] == [ITEMS] * 100


def test_a_service_whose_entries_cease_to_match_leaves_the_cache(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a cache of what is red, with a red printer
    community = JoinManager(federation.config, name="test")
    federation.stack.callback(community.close)
    cache = community.watch(wanting("red"))
    community.wait_watching(cache, 5.0)
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (federation.lookups[0].address,)), Security())
    federation.stack.callback(proxy.close)
    lease = proxy.register(printer(1), 300.0).lease_id
    eventually(lambda: len(cache.items()) == 1)
    # When its entries change, expect it gone, and back when they change again
    proxy.set_attributes("printer-1", lease, [EntryRep(COLOUR, ("blue",))])
    eventually(lambda: cache.items() == [])
    proxy.set_attributes("printer-1", lease, [EntryRep(COLOUR, ("red",))])
    eventually(lambda: len(cache.items()) == 1)


def test_two_lookup_services_show_a_service_once_and_one_may_die(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given two lookup services, a printer in both, and a cache
    second = federation.lookup()
    community = JoinManager(federation.config, name="test")
    federation.stack.callback(community.close)
    community.join(printer(1))
    cache = community.watch(wanting("red"))
    eventually(lambda: len(community.sessions()) == 2)
    eventually(lambda: community.wait_joined("printer-1", 5.0) == 2)  # the second may not be connected yet
    eventually(lambda: len(cache.items()) == 1)
    # When one of them ends, expect the printer still there, and changes still seen through the other
    second.stop()
    assert [item.service_id for item in cache.items()] == ["printer-1"]
    community.join(printer(1, "blue"))
    eventually(lambda: cache.items() == [])


def test_a_service_registered_again_is_never_seen_as_gone(federation: Any) -> None:
    # Given a registered printer, and a client that looks it up all the time
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (federation.lookups[0].address,)), Security())
    federation.stack.callback(proxy.close)
    proxy.register(printer(1), 300.0)
    ended, seen = threading.Event(), Counter[int]()

    def look() -> None:
        own = RegistrarProxy(proxy.ref, Security())
        while not ended.is_set():
            seen[len(own.lookup(wanting("red"), 10).items)] += 1
        own.close()

    watching = threading.Thread(target=look)
    watching.start()
    # When it is registered again and again
    for _ in range(300):
        proxy.register(printer(1), 300.0)
    ended.set()
    watching.join()
    # Expect that no lookup ever missed it
    assert set(seen) == {1}
    assert seen[1] > 20


def test_entries_that_a_service_controls_are_nobody_elses(federation: Any, eventually: Callable[..., Any]) -> None:
    # Given a service that joined with a Colour
    community = JoinManager(federation.config, name="test")
    federation.stack.callback(community.close)
    community.join(printer(1))
    # When an administrator adds a Room, expect it in the lookup service
    room = EntryRep(define("test.Room", {"number": str}), ("12",))
    community.add_lookup_attributes("printer-1", [room])
    eventually(lambda: len(community.lookup(ServiceTemplate(entries=(room,)))) == 1)
    # When one touches the Colour, expect a refusal
    blue = EntryRep(COLOUR, ("blue",))
    with pytest.raises(AccessDeniedError, match=r"test\.Colour"):
        community.add_lookup_attributes("printer-1", [blue])
    with pytest.raises(AccessDeniedError):
        community.remove_lookup_attributes("printer-1", [EntryRep(COLOUR, (None,))])
    assert community.remove_lookup_attributes("printer-1", [room]) == 1


@pytest.mark.parametrize(("groups", "sees"), [(("",), True), (("*",), True), (("lab",), False), ((), False)])
def test_groups_public_all_another_none(
    federation: Any, eventually: Callable[..., Any], groups: tuple[str, ...], sees: bool
) -> None:
    # Given a lookup service in the public group, and a client of other groups
    section = msgspec.structs.replace(federation.config.lookup, groups=groups)
    community = JoinManager(msgspec.structs.replace(federation.config, lookup=section), name="test")
    federation.stack.callback(community.close)
    # Expect it to be found by the public group and by all groups only
    if sees:
        eventually(lambda: community.sessions())
    else:
        with pytest.raises(LookupNotFoundError):
            community.lookup(ServiceTemplate(), timeout=0.5)
