"""Processes that hang for a while: SIGSTOP, and SIGCONT."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup import channels
from jbi_pubsub.lookup.client.proxy import EVENT, EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceEvent, ServiceItem, ServiceTemplate

pytestmark = pytest.mark.processes

TYPE = "mil.af.rl.jbi.Intel_Imagery"

LONG = "colour" * 1_000
COLOUR = define("test.Colour", {"name": str})
PRINTERS = ServiceTemplate(types=("Printer",))

WATCHER = """
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.lookup.client.join import JoinManager

community = JoinManager(config, name="watcher")
cache = community.watch(ServiceTemplate(types=("Printer",)))
tell(lookups=community.wait_watching(cache, 60.0))
while told() == "items":
    tell(items={item.service_id: item.entries[0].values[0] for item in cache.items()})
community.close()
"""


def printer(number: int, colour: str) -> ServiceItem:
    proxy = ServiceRef(f"printer-{number}", "printer", ("127.0.0.1:1",))
    return ServiceItem(f"printer-{number}", ("Printer",), proxy, (EntryRep(COLOUR, (colour,)),))


@contextmanager
def listening(proxy: RegistrarProxy, heard: list[tuple[bytes, int]]) -> Iterator[None]:
    """An event connection for what happens to printers; the kind and number of each event is added to `heard`."""

    def hear(items: list[memoryview]) -> None:
        heard.extend((bytes(i[:1]), msgspec.msgpack.decode(i[1:], type=ServiceEvent).number) for i in items)

    def read() -> None:
        with suppress(WireError):
            receiver.run(line)

    proxy.notify(PRINTERS, int(ALL_TRANSITIONS), 60.0, "", "listener")
    with dial(proxy.ref, DATA, Security(), 5.0) as sock:
        line = StreamSocket(sock)
        greet(line, Hello(proxy.open_events("listener")))
        receiver = Receiver(hear, lambda: b"")
        reading = threading.Thread(target=read)
        reading.start()
        yield
        line.shut()
        reading.join()


def test_a_listener_that_hangs_holds_up_no_other_and_learns_what_it_missed(
    field: Any, federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service that keeps 200 events for a listener, a process that watches 100 printers there, and
    # another listener
    monkeypatch.setattr(channels, "EVENTS_WAITING", 200)
    field.leases(lookup=60.0)
    lookup = federation.lookups[0]
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (lookup.address,)), Security())
    leases = [proxy.register(printer(n, "white"), 300.0).lease_id for n in range(100)]
    watcher = field.script(WATCHER)
    assert watcher.ready["lookups"] == 1
    assert watcher.ask("items")["items"] == {f"printer-{n}": "white" for n in range(100)}
    heard: list[tuple[bytes, int]] = []
    with listening(proxy, heard):
        # When the process hangs, and every printer changes its colour 12 times, which is more than the window of the
        # connection and the lookup service hold together, as its name is long
        watcher.signal(signal.SIGSTOP)
        made = waiting = 0
        for turn in range(12):
            for n in range(100):
                proxy.set_attributes(f"printer-{n}", leases[n], (EntryRep(COLOUR, (f"{LONG} {turn}",)),))
            made += 100

            # Expect the other listener to hear of each, and no more than the bound to be kept for the one that hangs
            eventually(lambda: len(heard) == made)  # noqa: B023  # called in this turn
            waiting = max(waiting, lookup.status()["events_waiting"])
        assert 0 < waiting <= 200
        assert lookup.status()["events_lost"] >= 200

        # When half of the printers leave, and the process goes on
        proxy.cancel(leases[:50])
        eventually(lambda: len(heard) == made + 50)
        watcher.signal(signal.SIGCONT)

        # Expect that it gets to the true state, although it can't have heard of all that led there
        true = {f"printer-{n}": f"{LONG} 11" for n in range(50, 100)}
        eventually(lambda: watcher.ask("items")["items"] == true)
        assert heard == [(EVENT, number) for number in range(1, made + 51)]

    # When a printer changes then, expect it to hear of that
    proxy.set_attributes("printer-99", leases[99], (EntryRep(COLOUR, ("black",)),))
    eventually(lambda: watcher.ask("items")["items"]["printer-99"] == "black")
    watcher.process.say("end")
    proxy.close()


@pytest.mark.row("J-83")
def test_a_subscriber_that_hangs_does_not_delay_others(field: Any, figures: Any) -> None:
    # Given two subscribers at one delegate, under leases that outlive the test
    field.leases(subscriber=60.0)
    pad = field.pad()
    adapter = field.light()
    registration = figures.register(adapter)
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    hanging = field.subscriber(bound=10)
    assert hanging.ready["servers"] == 1

    # When one hangs, and far more is published than its socket and its queue can hold
    hanging.signal(signal.SIGSTOP)
    payload = bytes(512 << 10)
    slowest = 0.0
    for _ in range(60):
        began = time.monotonic()
        sent = adapter.publish(registration, figures.figure_1, payload)
        received = subscriber.receive(subscription, 60.0)
        slowest = max(slowest, time.monotonic() - began)
        assert received is not None
        assert received.object_id == sent

    # Expect that the other got each object in time, and the hanging one has lost what its bound does not hold
    assert slowest < 20.0, "one that waits for the one that hangs waits for 30 s"
    assert subscriber.losses(subscription) == {}
    status = {s["uid"]: s for s in field.status(pad)["subscriptions"]}
    assert set(status) == {subscription, hanging.ready["subscription"]}
    assert status[hanging.ready["subscription"]]["lost"]["queue_overflow"] >= 60 - 10 - 10
    queued = {k: v for s in field.status(pad)["sessions"] for k, v in s["queued"].items()}
    assert queued[hanging.ready["subscription"]] <= 10

    # When it goes on, expect that it gets the newest, in order
    hanging.signal(signal.SIGCONT)
    sequences = [hanging.fact()["sequence"]]
    while sequences[-1] != 60:
        sequences.append(hanging.fact()["sequence"])
    assert sequences == sorted(set(sequences))
    assert sequences[-10:] == list(range(51, 61))


@pytest.mark.row("J-67")
def test_a_publisher_that_hangs_longer_than_its_lease_publishes_again(
    field: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher process that has published three objects
    pad = field.pad()
    publisher = field.publisher()
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    publisher.ask(3)

    # When it hangs until the delegate has given it up, then goes on and publishes three more
    publisher.signal(signal.SIGSTOP)
    eventually(lambda: field.status(pad)["publishers"] == [], field.within)
    assert field.status(pad)["registrations"] == []
    publisher.signal(signal.SIGCONT)
    publisher.ask(3)

    # Expect all six, once each, in order
    received = []
    while len(received) < 6 and (obj := subscriber.receive(subscription, 5.0)) is not None:
        received.append((obj.platform.registration, obj.platform.sequence))
    assert received == [(publisher.ready["registration"], n) for n in range(1, 7)]
    publisher.ask(1)
    marker = subscriber.receive(subscription)
    assert marker is not None
    assert marker.platform.sequence == 7


def test_a_subscriber_that_hangs_longer_than_its_lease_receives_again(
    field: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber process that has received an object
    pad = field.pad()
    adapter = field.light()
    registration = figures.register(adapter)
    subscriber = field.subscriber()
    adapter.publish(registration, figures.figure_1)
    assert subscriber.fact() == {"sequence": 1}

    # When it hangs until the delegate has dropped it, then goes on
    subscriber.signal(signal.SIGSTOP)
    eventually(lambda: field.status(pad)["sessions"] == [], field.within)
    assert field.status(pad)["subscriptions"] == []
    subscriber.signal(signal.SIGCONT)

    # Expect that it stands at the delegate again under its id, and receives
    eventually(lambda: [s["uid"] for s in field.status(pad)["subscriptions"]] == [subscriber.ready["subscription"]])
    adapter.publish(registration, figures.figure_1)
    assert subscriber.fact() == {"sequence": 2}


def test_a_subscriber_that_hangs_shorter_than_its_lease_loses_nothing(field: Any, figures: Any) -> None:
    # Given a subscriber process under a lease that outlives the test
    field.leases(subscriber=60.0)
    field.pad()
    adapter = field.light()
    registration = figures.register(adapter)
    subscriber = field.subscriber()

    # When 500 objects are published while it hangs
    subscriber.signal(signal.SIGSTOP)
    for _ in range(500):
        adapter.publish(registration, figures.figure_1)
    adapter.flush()
    subscriber.signal(signal.SIGCONT)

    # Expect all of them, in order, once
    assert [subscriber.fact()["sequence"] for _ in range(500)] == list(range(1, 501))


def hang(party: Any, seconds: float) -> None:
    """Stop a process for so long; nothing that could be awaited happens meanwhile."""
    party.signal(signal.SIGSTOP)
    time.sleep(seconds)
    party.signal(signal.SIGCONT)


def test_a_delegate_that_hangs_longer_than_leases_loses_nobody_who_lives(
    field: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a publisher, a subscriber and a subscriber process at a delegate, under leases of two seconds, whose calls
    # wait for a second
    field.leases(subscriber=2.0, publisher=2.0, lookup=60.0)
    section = msgspec.structs.replace(field.config.lookup, timeout=1.0)
    field.config = msgspec.structs.replace(field.config, lookup=section)
    pad = field.pad()
    adapter = field.light()
    registration = figures.register(adapter)
    subscriber = field.adapter()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription) == 1
    other = field.subscriber()
    adapter.publish(registration, figures.figure_1)
    assert subscriber.receive(subscription) is not None
    before = field.held(pad)
    sessions = {each["session"] for each in field.status(pad)["sessions"]}

    # When the delegate hangs for longer than that, and an object is published
    hang(pad, 4.0)
    adapter.publish(registration, figures.figure_1)

    # Expect it to arrive, everybody to stand as before, and nobody to be told of a loss
    received = subscriber.receive(subscription)
    assert received is not None
    assert received.platform.sequence == 2
    assert [other.fact()["sequence"] for _ in range(2)] == [1, 2]
    assert {each["session"] for each in field.status(pad)["sessions"]} == sessions
    assert field.held(pad)["leases"] == before["leases"]
    assert subscriber.losses(subscription) == {}

    # When the subscriber process dies, expect that to be noticed by its lease
    other.signal(signal.SIGSTOP)
    eventually(lambda: len(field.status(pad)["sessions"]) == 1, field.within)
    assert {each["session"] for each in field.status(pad)["sessions"]} <= sessions
    other.signal(signal.SIGCONT)


def test_a_lookup_service_that_hangs_longer_than_leases_drops_no_item_of_who_lives(
    field: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate at a lookup service, under a short lease
    lookup = field.lookup()
    field.lookups(lookup.address)
    field.leases(lookup=1.5)
    pad = field.pad()
    eventually(lambda: field.status(lookup)["renewals"])

    # When the lookup service hangs for longer than that
    hang(lookup, 2.0)

    # Expect what the delegate has there to stand still, and to be renewed
    renewals = field.status(lookup)["renewals"]
    eventually(lambda: field.status(lookup)["renewals"] >= renewals + 1)
    assert field.status(lookup)["expired"] == 0

    # When the delegate hangs, expect that to be noticed by its lease
    pad.signal(signal.SIGSTOP)
    eventually(lambda: field.status(lookup)["expired"] > 0, field.within)
    pad.signal(signal.SIGCONT)
