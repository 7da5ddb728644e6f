"""The lookup service as a server: durable over kill -9, incompatible classes are said, gaps lead to another lookup."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import (
    AccessDeniedError,
    IncompatibleEntryError,
    LookupNotFoundError,
    OversizeError,
    StorageError,
    WireError,
)
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream import ITEMS
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup import channels
from jbi_pubsub.lookup import server as server_module
from jbi_pubsub.lookup.client import join as join_module
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EXPORTED, LOOKUP_TYPE, RegistrarProxy
from jbi_pubsub.lookup.client.session import RegistrarSession
from jbi_pubsub.lookup.durable import OutcomeQueue
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceEvent, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.registrar import Outcome, Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.lookup.store import Store

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
        line = StreamSocket(sock)
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
    community.wait_joined("printer-1", 60.0)
    cache = community.watch(ServiceTemplate(entries=(EntryRep(OTHER_COLOUR, ("red", None)),)))
    # Expect the error, at once, instead of an empty cache
    with pytest.raises(IncompatibleEntryError):
        community.wait_watching(cache, 5.0)


def test_a_client_that_lost_events_looks_up_again(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a watching community, and a lookup service that can't keep a single event for it
    monkeypatch.setattr(channels, "EVENTS_WAITING", 0)
    lookup = federation.lookups[0]
    watcher = JoinManager(federation.config, name="watcher")
    federation.stack.callback(watcher.close)
    cache = watcher.watch(wanting(None))
    watcher.wait_watching(cache, 60.0)
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
        lines.append(StreamSocket(sock))
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
    community.wait_watching(cache, 60.0)
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
    # Given two lookup services, a printer in both under leases of a second, and a cache
    second = federation.lookup()
    lease = msgspec.structs.replace(federation.config.lease, lookup=1.0)
    federation.config = msgspec.structs.replace(federation.config, lease=lease)
    community = JoinManager(federation.config, name="test")
    federation.stack.callback(community.close)
    community.join(printer(1))
    cache = community.watch(wanting("red"))
    eventually(lambda: len(community.sessions()) == 2)
    eventually(lambda: community.wait_joined("printer-1", 60.0) == 2)  # the second may not be connected yet
    eventually(lambda: len(cache.items()) == 1)
    # When one of them ends, expect the printer still there, and changes still seen through the other
    second.stop()
    assert [item.service_id for item in cache.items()] == ["printer-1"]
    community.join(printer(1, "blue"))
    eventually(lambda: cache.items() == [])


def test_who_leaves_keeps_no_thread_for_a_lookup_service_that_has_ended(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a client with leases of a minute, of a lookup service in whose place another one has been started
    lease = msgspec.structs.replace(federation.config.lease, lookup=60.0)
    config = msgspec.structs.replace(federation.config, lease=lease)
    community = JoinManager(config, name="leaving")
    federation.stack.callback(community.close)
    community.wait_watching(community.watch(wanting("red")), 60.0)
    first = federation.lookups[0]
    first.stop()
    place = msgspec.structs.replace(config.lookup, port=int(first.address.rpartition(":")[2]), locators=())
    second = LookupServer(msgspec.structs.replace(config, lookup=place), Registrar(groups=place.groups))
    second.start()
    federation.stack.callback(second.stop)
    eventually(lambda: [s.registrar_id for s in community.sessions()] == [second.info().service_id])
    # When it leaves, before what the first one listed is forgotten, two leases later
    community.close()
    # Expect its threads to end now
    eventually(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("leaving")])


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


def test_what_comes_and_goes_does_not_put_off_the_renewal_of_what_stays(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a process with a service and a watch that stay
    lookup = federation.lookups[0]
    federation.leases(2.0)
    community = JoinManager(federation.config, name="busy")
    federation.stack.callback(community.close)
    community.join(printer(1))
    community.wait_joined("printer-1", 60.0)

    # When others of it come and go, several in each term of a lease
    def a_watch_and_a_service_pass() -> int:
        passing = community.watch(wanting("red"))
        community.join(printer(2))
        community.wait_joined("printer-2", 60.0)
        community.unwatch(passing)
        community.leave("printer-2")
        return lookup.status()["renewals"]  # type: ignore[no-any-return]

    # Expect the leases that stay to be renewed meanwhile
    eventually(lambda: a_watch_and_a_service_pass() >= 4, what=lambda: str(lookup.status()))


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
    public = federation.lookup(groups=("",))
    section = msgspec.structs.replace(federation.config.lookup, groups=groups, locators=(public.address,))
    community = JoinManager(msgspec.structs.replace(federation.config, lookup=section), name="test")
    federation.stack.callback(community.close)
    # Expect it to be found by the public group and by all groups only
    if sees:
        eventually(lambda: community.sessions())
    else:
        with pytest.raises(LookupNotFoundError, match="it serves the public group"):
            community.lookup(ServiceTemplate(), timeout=0.5)


@pytest.fixture
def crowded(federation: Any) -> RegistrarProxy:
    """A lookup service with 600 services of 60 KB each: 36 MB, more than a client takes in one answer."""
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (federation.lookups[0].address,)), Security())
    federation.stack.callback(proxy.close)
    note = define("test.Note", {"text": str})
    for number in range(600):
        red = printer(number)
        large = EntryRep(note, (f"{number % 7}" + "x" * 60_000,))
        proxy.register(msgspec.structs.replace(red, entries=(*red.entries, large)), 300.0)
    return proxy


def test_a_lookup_larger_than_an_answer_comes_in_pages(crowded: RegistrarProxy, federation: Any) -> None:
    # Given 36 MB of services, when they are looked up, expect all of them, in answers of about a megabyte
    pages = list(crowded.pages(wanting("red"), 10_000, total=True))
    assert {item.service_id for page in pages for item in page.items} == {f"printer-{n}" for n in range(600)}
    assert pages[0].total == 600
    assert all(len(msgspec.msgpack.encode(page)) < 1_200_000 for page in pages)
    found = crowded.lookup(wanting("red"), 100, total=True)
    assert (len(found.items), found.total, found.after) == (100, 600, "")
    community = JoinManager(federation.config, name="test")
    federation.stack.callback(community.close)
    assert len(community.lookup(wanting("red"))) == 600
    # Expect a cache to be filled as well, and to be told of changes
    cache = community.watch(wanting("red"))
    community.wait_watching(cache, 60.0)
    assert len(cache.items()) == 600


def test_browsing_is_bounded(crowded: RegistrarProxy) -> None:
    # Given values too long for one answer, expect an error with a hint; names are still told
    note = define("test.Note", {"text": str})
    template = ServiceTemplate(entries=(EntryRep(note, (None,)),))
    assert crowded.entry_classes(ServiceTemplate()) == ("jbi.LookupService", "test.Colour", "test.Note")
    assert crowded.service_types(ServiceTemplate(), "") == ("Printer", LOOKUP_TYPE)
    assert crowded.service_types(ServiceTemplate(), "P") == ("Printer",)
    assert crowded.field_values(wanting(None), 0, "name") == ("red",)
    with pytest.raises(OversizeError, match="Narrow"):
        crowded.field_values(template, 0, "text")


@pytest.mark.processes
def test_jbi_services_lists_what_takes_many_pages(
    crowded: RegistrarProxy, federation: Any, start: Callable[..., Any]
) -> None:
    locator = federation.lookups[0].address
    listing = start("--no-multicast", "--locator", locator, "services", "--type", "Printer", "--json")
    said, _ = listing.communicate(timeout=60.0)
    assert len(json.loads(said)) == 600


@pytest.fixture
def durable(federation: Any, tmp_path: Path) -> LookupServer:
    """A lookup service that keeps its state."""
    store = Store(tmp_path / "durable.db")
    registrar = Registrar(log=store)
    now = time.monotonic()
    registrar.restore(store.recover(now, time.time()), now)
    server = LookupServer(federation.config, registrar, store=store)
    server.start()
    federation.stack.callback(server.stop)
    return server


@pytest.fixture
def told(durable: LookupServer, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the durable one does, in order: "durable", and the events that it gives to its channels."""
    done: list[Any] = []
    sync, offer = durable.registrar._store.sync, durable._events.offer

    def syncing() -> None:
        sync()
        done.append("durable")

    def offering(outcome: Any) -> None:
        done.extend((event.service_id, event.transition, event.number) for _, event in outcome.events)
        offer(outcome)

    monkeypatch.setattr(durable.registrar._store, "sync", syncing)
    monkeypatch.setattr(durable.registrar._outcomes, "_tell", offering)
    everything = ServiceTemplate(types=("Printer",))
    durable.registrar.change(lambda r, now: r.notify(everything, int(ALL_TRANSITIONS), 300.0, now, listener="listener"))
    return done


def of_events(told: list[Any]) -> list[Any]:
    return [each for each in told if each != "durable"]


def test_an_event_leaves_behind_the_commit_of_what_it_tells(durable: LookupServer, told: list[Any]) -> None:
    # Given a listener at a durable lookup service, when a printer comes, changes and goes
    told.clear()
    granted = durable.registrar.grant(lambda registrar, now: registrar.register(printer(1), 300.0, now))
    lease, red = granted.lease_id, printer(1).entries
    durable.registrar.decide(lambda registrar, now: registrar.set_attributes("printer-1", lease, red, now))
    durable.registrar.change(lambda registrar, now: registrar.cancel(lease, now))
    # Expect that nothing of it was told before it was on the disk
    events = [each for each in told if each == "durable" or each[0] == "printer-1"]
    at = [n for n, each in enumerate(events) if each != "durable"]
    assert [events[n][1:] for n in at] == [(2, 1), (4, 2), (1, 3)]
    assert [events[n - 1] for n in at] == ["durable"] * 3


def test_nobody_hears_of_a_service_that_the_disk_does_not_take(
    durable: LookupServer, told: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a durable lookup service with a printer, and a disk that is full for a while
    kept = durable.registrar.grant(lambda registrar, now: registrar.register(printer(1), 300.0, now))
    told.clear()
    with monkeypatch.context() as patched:
        patched.setattr(durable.registrar._store, "_commit", lambda _: (_ for _ in ()).throw(StorageError("full")))
        with pytest.raises(StorageError):
            durable.registrar.grant(lambda registrar, now: registrar.register(printer(2), 300.0, now))
        # Expect nothing of what was taken back, but what has ended is told, as it is gone whatever the disk does
        assert of_events(told) == []
        durable.registrar.change(lambda registrar, now: registrar.cancel(kept.lease_id, now))
    assert [event[:2] for event in of_events(told)] == [("printer-1", 1)]
    # and that who listens sees from the next number that there was something, and looks again
    assert of_events(told)[0][2] > 2


@settings(derandomize=True, deadline=None)
@given(st.permutations(range(5)), st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)))
def test_events_leave_in_the_order_of_the_decisions_whichever_is_durable_first(order, silent, taken_back):
    """Given decisions that become durable in any order, some with nothing to say and some taken back, what is said is
    in the order in which it was decided, and is said as soon as nothing before it is open."""
    said: list[str] = []
    outbox = OutcomeQueue(lambda outcome: said.extend(listener for listener, _ in outcome.events))
    decided = [
        outbox.add(Outcome(None, () if n in silent else ((f"{n}", ServiceEvent("e", n, "s", 2)),))) for n in range(5)
    ]
    for done, n in enumerate(order, 1):
        outbox.settle(decided[n], holds=n not in taken_back)
        open_ones = set(order[done:]) - silent
        first = min(open_ones, default=5)
        assert said == [f"{n}" for n in range(first) if n not in silent | taken_back]


def test_the_channel_of_a_client_that_has_left_is_forgotten_at_once(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service and two clients of its events, one of which has opened its channel and does not connect
    lookup = federation.lookups[0]
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (lookup.address,)), Security())
    federation.stack.callback(proxy.close)
    before = lookup.status()["event_channels"]
    proxy.open_events("late")
    with listening(proxy, "early", []):
        assert lookup.status()["event_channels"] == before + 2
        # When the other one connects again, expect that it has one channel
        with listening(proxy, "early", []):
            assert lookup.status()["event_channels"] == before + 2
    # When it has left, expect that its channel has gone
    eventually(lambda: lookup.status()["event_channels"] == before + 1)


def test_the_reaper_goes_on_whatever_a_step_of_it_raises(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service whose expiry and whose look at idle channels fail for a while
    monkeypatch.setattr(server_module, "REAP_MOST", 0.02)
    lookup = federation.lookups[0]
    before = lookup.status()["faults"].get("lookup reaper", 0)
    with monkeypatch.context() as patched:
        patched.setattr(lookup.registrar._registrar, "expire", lambda *_: {}["gone"])
        eventually(lambda: lookup.status()["faults"].get("lookup reaper", 0) >= before + 2)
    with monkeypatch.context() as patched:
        patched.setattr(lookup._events, "drop_idle", lambda _: {}["gone"])
        eventually(lambda: lookup.status()["faults"]["lookup reaper"] >= before + 4)
    # When it has passed, expect that leases end as ever
    lookup.registrar.grant(lambda registrar, now: registrar.register(printer(1), 0.1, now))
    eventually(lambda: lookup.status()["expired"] == 1)


def test_what_a_channel_can_not_take_ends_no_call_and_holds_no_other_back(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lookup service that fails to hand one event over
    lookup = federation.lookups[0]
    heard: list[str] = []

    def say(outcome: Any) -> None:
        heard.extend(event.service_id for _, event in outcome.events)
        raise RuntimeError("first")

    monkeypatch.setattr(lookup.registrar._outcomes, "_tell", say)
    lookup.registrar.change(
        lambda r, now: r.notify(wanting(None), int(ALL_TRANSITIONS), 300.0, now, listener="listener")
    )
    # Expect that the calls are answered, and the next event is told
    for number in (1, 2):
        lookup.registrar.grant(lambda registrar, now: registrar.register(printer(number), 300.0, now))  # noqa: B023
    assert heard == ["printer-1", "printer-2"]
    assert lookup.status()["faults"]["lookup events"] >= 2


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
def test_when_the_wall_clock_jumps_leases_neither_all_end_nor_live_for_ever(
    jump: float, federation: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a durable lookup service with services under leases of ten minutes and of half a second
    wall = {"offset": 0.0}

    def open_server() -> LookupServer:
        store = Store(tmp_path / "state.db")
        registrar = Registrar(log=store)
        now = time.monotonic()
        registrar.restore(store.recover(now, time.time() + wall["offset"], boot="this"), now)
        server = LookupServer(federation.config, registrar, store=store, wall=lambda: time.time() + wall["offset"])
        server.start()
        return server

    def items(server: LookupServer) -> set[str]:
        every = server.registrar.search(ServiceTemplate(), 10, total=False, after="").items
        return {item.service_id for item in every} - {server.info().service_id}

    server = open_server()
    granted = server.registrar.grant(lambda registrar, now: registrar.register(printer(1), 200.0, now))
    server.registrar.grant(lambda registrar, now: registrar.register(printer(2), 0.5, now))
    # When the clock jumps while it runs, expect that the one stays and the other ends as it should
    wall["offset"] += jump
    eventually(lambda: server.status()["expired"] == 1)
    assert items(server) == {"printer-1"}
    eventually(
        lambda: abs(server.registrar._store._clock.wall - (time.time() + wall["offset"] - time.monotonic())) < 1.0
    )
    server.stop()
    # When it jumps between stop and start, expect the same
    wall["offset"] += jump
    server = open_server()
    assert items(server) == {"printer-1"}
    server.registrar.grant(lambda registrar, now: registrar.register(printer(3), 0.5, now))
    left = server.registrar.read(lambda registrar, now: registrar._leases.items.left(granted.lease_id, now))
    assert 100.0 < left <= 200.0
    eventually(lambda: server.status()["expired"] == 1)
    assert items(server) == {"printer-1"}
    server.stop()


def test_a_watch_that_follows_another_that_was_just_ended_is_a_new_one(federation: Any) -> None:
    # Given two services that differ, and a community
    community = JoinManager(federation.config, name="hasty")
    federation.stack.callback(community.close)
    for number, colour in enumerate(("red", "blue")):
        community.join(printer(number, colour))
        community.wait_joined(f"printer-{number}", 60.0)

    def watched(colour: str) -> list[str]:
        cache = community.watch(wanting(colour))
        community.wait_watching(cache, 60.0)
        found = [item.service_id for item in cache.wait(1, 60.0)]
        community.unwatch(cache)
        return found

    # When one watch after the other begins and ends, each at once behind the one before
    # Expect each to find what it asks for: not what the one before has asked for, and not nothing
    for _ in range(50):
        assert (watched("red"), watched("blue")) == (["printer-0"], ["printer-1"])


def test_sessions_that_do_not_end_have_the_same_seconds_for_it(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a community with sessions at two lookup services
    federation.lookup()
    community = JoinManager(federation.config, name="leaving")
    federation.stack.callback(community.close)
    eventually(lambda: community.connected() == 2)
    stop, told = RegistrarSession.stop, []

    def stopped(session: RegistrarSession, timeout: float) -> None:
        told.append([other.has_left for other in community.sessions()])
        stop(session, timeout)

    monkeypatch.setattr(RegistrarSession, "stop", stopped)
    # When it is closed, expect both to know before the end of any is waited for
    community.close()
    assert told == [[True, True]] * 2


def test_a_lookup_does_not_wait_for_a_lookup_service_that_is_known_to_be_away(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a community with two lookup services, one of which has gone
    gone = federation.lookup()
    community = JoinManager(federation.config, name="asking")
    federation.stack.callback(community.close)
    community.join(printer(1))
    eventually(lambda: community.wait_joined("printer-1", 60.0) == 2)  # the second may not be known yet
    gone.stop()
    eventually(lambda: community.connected() == 1)
    asked: list[tuple[str, ...]] = []

    def proxy(ref: ServiceRef, *rest: Any, **options: Any) -> RegistrarProxy:
        asked.append(ref.endpoints)
        return RegistrarProxy(ref, *rest, **options)

    monkeypatch.setattr(join_module, "RegistrarProxy", proxy)
    # When it looks something up
    found = community.lookup(wanting(None))
    # Expect it to ask the other one alone
    assert [item.service_id for item in found] == ["printer-1"]
    assert asked == [(federation.lookups[0].address,)]


@pytest.mark.parametrize("thread", ["registrar", "events"])
def test_a_lookup_service_is_joined_when_the_system_has_threads_again(
    thread: str, federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a system that has no more threads for a while
    start, refused = threading.Thread.start, threading.Semaphore(2)

    def refuses(self: threading.Thread) -> None:
        if self.name == f"short-{thread}" and refused.acquire(blocking=False):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuses)
    # When a community finds a lookup service
    community = JoinManager(federation.config, name="short")
    federation.stack.callback(community.close)
    community.join(printer(1))
    # Expect it to be joined in the end
    assert eventually(lambda: community.connected() == 1)
    assert community.wait_joined("printer-1", 60.0) == 1


def test_a_lookup_service_that_another_one_stands_in_for_is_forgotten_by_all_watches_together(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a community with many watches that see a service, and another process that has joined it
    first = federation.lookups[0]
    community = JoinManager(federation.config, name="watching")
    service = JoinManager(federation.config, name="serving")
    for each in (community, service):
        federation.stack.callback(each.close)
    service.join(printer(1))
    caches = [community.watch(wanting(None)) for _ in range(20)]
    eventually(lambda: all(cache.items() for cache in caches))
    before = set(threading.enumerate())
    # When another lookup service stands in its place, without what it knew
    port = int(first.address.rpartition(":")[2])
    first.stop()
    section = msgspec.structs.replace(federation.config.lookup, port=port, locators=())
    second = LookupServer(msgspec.structs.replace(federation.config, lookup=section), Registrar(groups=section.groups))
    second.start()
    federation.stack.callback(second.stop)
    eventually(lambda: [s.registrar_id for s in community.sessions()] == [second.info().service_id])

    def forgetting() -> list[str]:
        return [t.name for t in threading.enumerate() if t not in before and t.name.startswith("watching-forget")]

    # Expect one thread to wait until the services have joined it, and none behind the end of the community
    assert len(eventually(forgetting)) == 1
    community.close()
    eventually(lambda: not forgetting())


def test_who_waits_for_a_lookup_service_goes_on_as_soon_as_it_has_done_its_part(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a process whose item is about to be registered, and that waits for it
    community = JoinManager(federation.config, name="waits")
    federation.stack.callback(community.close)
    community.lookup(ServiceTemplate())
    looks: list[bool] = []
    holds = RegistrarSession.holds

    def counted(session: RegistrarSession, item: ServiceItem) -> bool:
        looks.append(holds(session, item))
        return looks[-1]

    monkeypatch.setattr(RegistrarSession, "holds", counted)
    community.join(printer(1))
    # Expect it to look when there is news, not all the time
    assert community.wait_joined("printer-1", 60.0) == 1
    assert looks[-1]
    assert len(looks) <= 8  # news of others, too, where the machine is busy
