"""Publishing through delegates: brokering for one, leases, registrations (paper section 2.4(1)-(4))."""

from __future__ import annotations

import ast
import inspect
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import jbi_pubsub
from jbi_pubsub import DelegateUid, PublisherAdapter, PublisherAdapterLight, RegistrationUid, SubscriberAdapter
from jbi_pubsub.core.errors import DelegateNotFoundError, JbiError, LookupNotFoundError, UnknownUidError
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

ADAPTERS = (SubscriberAdapter, PublisherAdapter, PublisherAdapterLight)
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
REGISTRATIONS = ServiceTemplate(types=("jbi.PublisherRegistration",))

PUBLISHER = """
import json, sys
from jbi_pubsub import PublisherAdapterLight
publisher = PublisherAdapterLight()
delegate = publisher.connect_to_delegate("alpha", "rome")
publisher.register_publisher(delegate, sys.argv[0] or SCHEMA, INVARIANTS)
print(json.dumps({"ready": "publisher"}), flush=True)
sys.stdin.read()
"""
SUBSCRIBER = """
import json, sys
from jbi_pubsub import SubscriberAdapter
subscriber = SubscriberAdapter()
uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
assert subscriber.wait_matched(uid) == 1
print(json.dumps({"ready": uid}), flush=True)
sys.stdin.read()
"""


def _public(adapter: type) -> dict[str, Callable[..., Any]]:
    return {n: f for n, f in inspect.getmembers(adapter, inspect.isfunction) if not n.startswith("_")}


def _calls(path: Path, adapters: set[str]) -> list[str]:
    """The adapter calls in a program, in order."""
    tree = ast.parse(path.read_text())
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return [c.attr for c in calls if isinstance(c.value, ast.Name) and c.value.id in adapters]


@pytest.fixture
def registered(federation: Any) -> Iterator[Callable[[], list[ServiceItem]]]:
    """registered(): the publisher registrations in the lookup services, as any member of the community sees them."""
    community = JoinManager(federation.config, name="looking on")
    yield lambda: community.lookup(REGISTRATIONS)
    community.close()


# -- the three adapters -------------------------------------------------------------------------------------------


@pytest.mark.row("J-59")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_the_three_adapters_are_importable_and_documented(adapter: type) -> None:
    # Expect each in the face of the package, with a docstring for the class and for every call
    assert adapter.__name__ in jbi_pubsub.__all__
    assert adapter.__doc__
    assert [name for name, call in _public(adapter).items() if not call.__doc__] == []


@pytest.mark.row("J-13", "J-68")
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_no_detail_of_the_brokering_shows_in_the_adapters(adapter: type) -> None:
    # Given the annotations of all calls of an adapter, its constructor and its public attributes
    hidden = re.compile(r"Entry|Proxy|Registrar|rpyc|ServiceItem|ServiceRef|ServiceTemplate|LookupCache|JoinManager")
    calls = [adapter.__init__, *_public(adapter).values()]  # type: ignore[misc]
    texts = [str(inspect.signature(call)) for call in calls]
    names = [name for name in vars(adapter) if not name.startswith("_")]
    # Expect no entries, lookup services, proxies or rpyc
    assert [text for text in texts if hidden.search(text)] == []
    assert [name for name in names if hidden.search(name)] == []


@pytest.mark.row("J-68")
def test_no_adapter_has_public_attributes_that_lead_to_a_proxy(federation: Any) -> None:
    # Given adapters at work
    federation.pad()
    light, peer, subscriber = federation.light(), federation.peer(), federation.subscriber()
    light.connect_to_delegate("alpha", "rome")
    # Expect that they have no public attributes at all, only calls
    for adapter in (light, peer, subscriber):
        assert [name for name in vars(adapter) if not name.startswith("_")] == []


@pytest.mark.row("J-72")
def test_the_example_publisher_makes_exactly_three_calls() -> None:
    # Expect that the whole publisher is connect, register, publish
    calls = _calls(EXAMPLES / "publisher.py", {"publisher"})
    assert calls == ["connect_to_delegate", "register_publisher", "publish"]


@pytest.mark.row("J-72")
def test_three_calls_are_enough(federation: Any, figures: Any) -> None:
    # Given a subscription
    federation.pad()
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    # When a program connects, registers, publishes when there is somebody, and ends
    with PublisherAdapterLight(federation.config) as publisher:
        delegate = publisher.connect_to_delegate("alpha", "rome")
        registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
        assert subscriber.wait_matched(uid) == 1
        publisher.publish(registration, figures.figure_1, b"image")
    # Expect the object: what is queued goes out before the program leaves
    assert subscriber.receive(uid).payload == b"image"


@pytest.mark.row("J-59")
def test_the_examples_run(
    federation: Any,
    figures: Any,
    start: Callable[..., Any],
    process_settings: Callable[..., None],
    eventually: Callable[..., Any],
) -> None:
    # Given a delegate at which the example subscriber stands, as there is a publisher of imagery already
    pad = federation.pad()
    light = federation.light()
    figures.register(light)
    process_settings()
    run = "import runpy; runpy.run_path({!r}, run_name='__main__')"
    subscriber = start(script=run.format(str(EXAMPLES / "subscriber.py")))
    eventually(lambda: pad.status()["subscriptions"], what="the example subscriber stands at the delegate")
    # When the example publisher runs
    publisher = start(script=run.format(str(EXAMPLES / "publisher.py")))
    assert publisher.wait(60.0) == 0, publisher.stderr()
    # Expect that the example subscriber prints its object
    assert "mil.af.rl.jbi.Intel_Imagery" in subscriber.stdout.readline()


# -- brokering for a delegate ---------------------------------------------------------------------------------------


@pytest.mark.row("J-60")
def test_a_delegate_is_found_by_its_two_strings(federation: Any) -> None:
    # Given three delegates
    pads = [federation.pad(*each) for each in (("a", "x"), ("a", "y"), ("b", "x"))]
    light = federation.light()

    def reached(name: str | None, location: str | None) -> list[int]:
        uid = light.connect_to_delegate(name, location)
        found = [number for number, pad in enumerate(pads) if pad.status()["publishers"]]
        light.disconnect(uid)
        return found

    # When a publisher connects by both strings; Expect exactly the one that has them
    assert [reached("a", "x"), reached("a", "y"), reached("b", "x")] == [[0], [1], [2]]
    # When one of them is a wildcard; Expect one that has the other
    assert [reached("b", None), reached(None, "y")] == [[2], [1]]
    assert reached("a", None) in ([0], [1])
    assert reached(None, None) in ([0], [1], [2])


@pytest.mark.row("J-62")
def test_every_connection_has_an_id_of_its_own(federation: Any) -> None:
    # Given a delegate; When one application connects to it three times
    pad = federation.pad()
    light = federation.light()
    ids = [light.connect_to_delegate("alpha", "rome") for _ in range(3)]
    # Expect three ids and three connections
    assert len(set(ids)) == 3
    assert all(isinstance(each, str) and each for each in ids)
    assert len(pad.status()["publishers"]) == 3


@pytest.mark.row("J-63")
def test_one_application_uses_several_delegates_addressed_by_id(federation: Any, figures: Any) -> None:
    # Given a publisher with registrations at two delegates
    pads = [federation.pad("alpha", "rome"), federation.pad("bravo", "paris")]
    light = federation.light()
    ids = [light.connect_to_delegate("alpha"), light.connect_to_delegate("bravo")]
    first, second = (light.register_publisher(each, figures.schema, figures.figure_1) for each in ids)
    # When it publishes three objects with one, and one with the other
    for _ in range(3):
        light.publish(first, figures.figure_1)
    light.publish(second, figures.figure_1)
    light.flush()
    # Expect that each delegate had its own
    assert [pad.status()["published"] for pad in pads] == [3, 1]


@pytest.mark.row("J-64")
def test_no_matching_delegate_is_an_error_in_time_that_says_what_exists(federation: Any) -> None:
    # Given two delegates, and a publisher that waits for a minute where it is told nothing else
    federation.pad("alpha", "rome")
    federation.pad("bravo", "paris")
    patient = msgspec.structs.replace(federation.config.lookup, timeout=60.0)
    light = federation.light(msgspec.structs.replace(federation.config, lookup=patient))
    light.connect_to_delegate("alpha", "rome")
    # When another one is asked for
    began = time.monotonic()
    with pytest.raises(DelegateNotFoundError) as caught:
        light.connect_to_delegate("charlie", "oslo", timeout=2.0)
    # Expect an error after the timeout, not a minute later, with what was looked for and what exists
    assert 2.0 <= time.monotonic() - began < 40.0
    for word in ("charlie", "oslo", "alpha", "rome", "bravo", "paris"):
        assert word in str(caught.value)


def test_a_delegate_that_is_listed_and_dead_is_said_to_be_that(federation: Any) -> None:
    # Given a delegate that has died, and whose lease at the lookup service has not run out
    pad = federation.pad("alpha", "rome")
    pad.endpoints.first.stop()
    light = federation.light()
    # When it is asked for; Expect the error to say that it is there and does not answer
    with pytest.raises(DelegateNotFoundError) as caught:
        light.connect_to_delegate("alpha", "rome", timeout=2.0)
    assert "no delegate" not in str(caught.value)
    assert "did not answer within 2 s" in str(caught.value)
    assert pad.address in str(caught.value)


def test_an_empty_characteristic_is_no_wildcard(federation: Any) -> None:
    federation.pad("alpha", "rome")
    with pytest.raises(DelegateNotFoundError, match=re.escape('no delegate ("", *) within 2 s')):
        federation.light().connect_to_delegate("", timeout=2.0)


def test_a_line_break_in_the_name_of_a_delegate_begins_no_line(federation: Any) -> None:
    federation.pad("alpha\njbi: all is well", "rome")
    with pytest.raises(DelegateNotFoundError, match="there are") as caught:
        federation.light().connect_to_delegate("bravo", timeout=0.5)
    assert caught.value.message.endswith("there are: ('alpha\\njbi: all is well', rome)")


def test_the_timeout_for_a_delegate_is_configurable(federation: Any) -> None:
    # Given a configuration with a timeout of two seconds, and no delegate
    config = federation.config
    config = msgspec.structs.replace(config, lookup=msgspec.structs.replace(config.lookup, timeout=2.0))
    light = federation.light(config)
    # When one is asked for; Expect the error after that time
    began = time.monotonic()
    with pytest.raises(DelegateNotFoundError, match=r"within 2 s"):
        light.connect_to_delegate("alpha", "rome")
    assert time.monotonic() - began >= 2.0


def test_a_delegate_that_starts_within_the_timeout_is_found(federation: Any) -> None:
    # Given a publisher that waits for its delegate
    light = federation.light()
    found: list[DelegateUid] = []
    thread = threading.Thread(target=lambda: found.append(light.connect_to_delegate("alpha", "rome", timeout=10)))
    thread.start()
    # When the delegate starts; Expect the connection
    federation.pad()
    thread.join(60.0)
    assert len(found) == 1
    light.close()  # before its delegate


def test_a_publisher_says_which_delegate_it_is_connected_to(federation: Any) -> None:
    pad = federation.pad()
    light = federation.light()
    uid = light.connect_to_delegate("alpha", "rome")
    shown = light.status()["delegates"][uid]
    assert (shown["delegate"], shown["address"]) == (pad.server_id, pad.address)


def test_without_any_lookup_service_the_error_says_so(fixtures: Any, federation: Any) -> None:
    # Given a configuration that names a lookup service that is not there
    lookup = msgspec.structs.replace(fixtures.test_config().lookup, locators=("127.0.0.1:9",))
    light = federation.light(msgspec.structs.replace(federation.config, lookup=lookup))
    # When a delegate is asked for; Expect an error that names where was looked, and for how long
    with pytest.raises(LookupNotFoundError, match=r"within 1 s; tried: 127\.0\.0\.1:9"):
        light.connect_to_delegate("alpha", "rome", timeout=0.5)


@pytest.mark.row("J-64")
def test_an_id_that_no_connection_has_is_an_error(federation: Any, figures: Any) -> None:
    # Given a connection, and an id that is not its own; When it is used; Expect errors, and the other unharmed
    pad = federation.pad()
    light = federation.light()
    light.connect_to_delegate("alpha")
    for uid in ("", "delegate-0"):
        with pytest.raises(UnknownUidError):
            light.register_publisher(DelegateUid(uid), figures.schema, figures.figure_1)
        with pytest.raises(UnknownUidError):
            light.disconnect(DelegateUid(uid))
        with pytest.raises(UnknownUidError):
            light.unregister_publisher(RegistrationUid(uid))
    assert len(pad.status()["publishers"]) == 1
    assert pad.status()["registrations"] == []


# -- registrations --------------------------------------------------------------------------------------------------


@pytest.mark.row("J-69")
def test_every_registration_has_an_id_of_its_own(walk: Any) -> None:
    # When a publisher registers three times with the same metadata; Expect three ids
    assert len({walk.register() for _ in range(3)}) == 3


@pytest.mark.row("J-70")
def test_the_dissemination_node_registers_the_invariant_metadata_with_the_lookup_service(
    own_walk: Any, registered: Callable[[], list[ServiceItem]], eventually: Callable[..., Any]
) -> None:
    # Given nothing registered; When a publisher registers
    assert registered() == []
    own_walk.register()
    # Expect an item with the invariant metadata, whose proxy is the dissemination node
    (item,) = eventually(registered)
    status = own_walk.publishing.status()
    assert (item.proxy.service_id, item.proxy.endpoints) == (status["id"], (status["address"],))
    values = {k: v for entry in item.entries for k, v in entry.as_dict().items()}
    expected = {"Type": "Imagery", "JBIIIdentifier": "JBI000023", "publisher": "418th", "language": "EN"}
    assert {name: values.get(name) for name in expected} == expected
    assert not {"lat", "Area", "ImageType"} & set(values)


@pytest.mark.row("J-42")
def test_the_proxy_for_subscribers_has_no_publishers_calls(
    own_walk: Any, registered: Callable[[], list[ServiceItem]], eventually: Callable[..., Any]
) -> None:
    # Given the proxy that subscribers get from the lookup service
    own_walk.register()
    (item,) = eventually(registered)
    calls = {"connect", "disconnect", "register", "unregister", "open_publications", "publish"}
    assert item.proxy.methods
    assert not calls & set(item.proxy.methods)
    # When somebody forges the list of its calls
    forged = msgspec.structs.replace(item.proxy, methods=())
    client = ControlClient(forged, own_walk.federation.config.security())
    # Expect that the publishers' calls are not there
    for call in sorted(calls):
        with pytest.raises(JbiError, match=call):
            client.call(call, None)
    client.close()
    assert len(own_walk.publishing.status()["registrations"]) == 1


@pytest.mark.row("J-73")
def test_unregister_and_disconnect_undo_register_and_connect(
    federation: Any,
    figures: Any,
    registered: Callable[[], list[ServiceItem]],
    eventually: Callable[..., Any],
) -> None:
    # Given a delegate, and the threads there are after a publisher has come and gone
    pad = federation.pad()
    light = federation.light()

    def come_and_go(*, unregister: bool) -> None:
        at = light.connect_to_delegate("alpha", "rome")
        registration = light.register_publisher(at, figures.schema, figures.figure_1)
        light.publish(registration, figures.figure_1)
        light.flush()
        eventually(registered)
        if unregister:
            light.unregister_publisher(registration)
            eventually(lambda: not registered())
            with pytest.raises(UnknownUidError):
                light.publish(registration, figures.figure_1)
        light.disconnect(at)
        with pytest.raises(UnknownUidError):
            light.publish(registration, figures.figure_1)

    come_and_go(unregister=True)
    eventually(lambda: not registered(), what="lookup service empty")
    baseline = threading.active_count()
    # When two more come and go, one of them without unregistering
    come_and_go(unregister=True)
    come_and_go(unregister=False)
    # Expect that nothing is left at the delegate, in the lookup service, in this process
    eventually(lambda: not pad.status()["publishers"] and not pad.status()["registrations"])
    eventually(lambda: not registered(), what="lookup service empty")
    eventually(lambda: threading.active_count() <= baseline, what="threads at baseline")
    assert light.status()["registrations"] == {} == light.status()["delegates"]


# -- leases -------------------------------------------------------------------------------------------------------


@pytest.mark.row("J-65")
def test_an_idle_publisher_stays_registered_by_renewal(
    federation: Any,
    figures: Any,
    registered: Callable[[], list[ServiceItem]],
    eventually: Callable[..., Any],
) -> None:
    # Given leases of four seconds, a publisher and a subscriber that have met
    lease = msgspec.structs.replace(federation.config.lease, publisher=4.0, subscriber=4.0, lookup=4.0)
    federation.config = msgspec.structs.replace(federation.config, lease=lease)
    pad = federation.pad()
    light = federation.light()
    registration = light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(figures.figure_3, schema=figures.schema)
    assert subscriber.wait_matched(uid) == 1
    publishers = pad.status()["publishers"]
    # When nothing happens for longer than that
    until = time.monotonic() + 1.75 * 4.0
    eventually(lambda: time.monotonic() > until)
    # Expect the same connection, registration and subscription, at work
    assert pad.status()["publishers"] == publishers
    eventually(lambda: [item.service_id for item in registered()] == [registration])
    light.publish(registration, figures.figure_1, b"after a while")
    assert subscriber.receive(uid).payload == b"after a while"
    assert subscriber.losses(uid) == {}


@pytest.mark.row("J-66")
@pytest.mark.parametrize("lease", ["publisher", "subscriber", "lookup"])
def test_lease_times_are_configurable_at_start_up(
    federation: Any,
    figures: Any,
    start: Callable[..., Any],
    process_settings: Callable[..., None],
    eventually: Callable[..., Any],
    lease: str,
) -> None:
    # Given two processes that differ in one setting: a lease of a second and one of an hour
    light = federation.light()
    pad = federation.pad()
    if lease == "subscriber":
        light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    prefix = f"SCHEMA, INVARIANTS = {str(figures.schema)!r}, {figures.figure_1!r}\n"
    processes = []
    for seconds in ("3600", "1"):
        process_settings(**{f"lease_{lease}": seconds})
        if lease == "lookup":
            processes.append(start("pad", f"pad of {seconds}", "oslo", "--port", "0", "--json"))
        else:
            code = SUBSCRIBER if lease == "subscriber" else prefix + PUBLISHER.replace("sys.argv[0] or ", "")
            processes.append(start(script=code))
    for process in processes:
        assert process.fact()["ready"]

    def count() -> int:
        status = pad.status()
        if lease == "lookup":
            return int(federation.lookups[0].status()["items"]) - 1  # without the delegate in this process
        return len(status["publishers"] if lease == "publisher" else status["sessions"])

    eventually(lambda: count() == 2, what="both there")
    # When both are killed at once
    for process in processes:
        process.signal(signal.SIGKILL)
    killed = time.monotonic()
    # Expect that the one is gone when its short lease is over, long before the default of a minute, and not the other
    eventually(lambda: count() == 1, what="short lease expired")
    assert time.monotonic() - killed < 60.0
    assert count() == 1


@pytest.mark.row("J-70")
def test_a_killed_delegate_leaves_the_lookup_service_with_its_registrations(
    federation: Any,
    figures: Any,
    registered: Callable[[], list[ServiceItem]],
    start: Callable[..., Any],
    process_settings: Callable[..., None],
    eventually: Callable[..., Any],
) -> None:
    # Given a delegate in a process of its own with a registration
    process_settings(lease_lookup="1")
    pad = start("pad", "alpha", "rome", "--port", "0", "--json")
    fact = pad.fact()
    light = federation.light()
    light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    (item,) = eventually(registered)
    assert item.proxy.endpoints == (fact["address"],)
    # When the delegate is killed, though the publisher lives
    pad.signal(signal.SIGKILL)
    # Expect that its items expire
    eventually(lambda: federation.lookups[0].status()["items"] == 0, what="items expired")
    assert registered() == []


def test_a_publisher_with_nothing_to_hand_over_leaves_at_once_without_a_lookup_service(
    federation: Any, figures: Any
) -> None:
    # Given a publisher at a delegate, nothing queued, and a lookup service that has gone, which it has a minute to find
    federation.pad()
    patient = msgspec.structs.replace(federation.config.lookup, timeout=60.0)
    light = federation.light(msgspec.structs.replace(federation.config, lookup=patient))
    light.register_publisher(light.connect_to_delegate("alpha"), figures.schema, figures.figure_1)
    federation.lookups[0].stop()
    # When it closes with half a second to hand over what is queued; Expect that it takes no minute
    began = time.monotonic()
    light.close(timeout=0.5)
    assert time.monotonic() - began < 30.0
