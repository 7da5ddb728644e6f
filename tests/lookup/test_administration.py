"""What an administrator sets, and how lookup services and their clients come to know each other by it."""

from __future__ import annotations

import contextlib
import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.access import AllowAll, Decision
from jbi_pubsub.core.config import MetricsSection
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    ConfigurationError,
    EntryError,
    OversizeError,
    PortInUseError,
    StorageError,
    WireError,
)
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.client import multicast
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.proxy import EXPORTED, LOOKUP_TYPE, LookupService, RegistrarProxy
from jbi_pubsub.lookup.durable import REAP_AT_ONCE
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.lookup.store import Store

PRINTER = ServiceItem("printer-1", ("Printer",), ServiceRef("p", "printer", ("127.0.0.1:1",)))
LOOKUPS = ServiceTemplate(types=(LOOKUP_TYPE,))


@pytest.fixture
def proxy(federation: Any) -> Callable[..., RegistrarProxy]:
    """proxy(server or host:port) calls a lookup service."""

    def connect(server: Any) -> RegistrarProxy:
        address = server if isinstance(server, str) else server.address
        made = RegistrarProxy(ServiceRef("", EXPORTED, (address,)), Security())
        federation.stack.callback(made.close)
        return made

    return connect


@pytest.fixture
def lookup(federation: Any) -> Callable[..., LookupServer]:
    """lookup(locators=..., groups=...) starts one that the federation's parties are not told of."""

    def begin(**changes: Any) -> LookupServer:
        section = msgspec.structs.replace(federation.config.lookup, port=0, **{"locators": (), **changes})
        server = LookupServer(
            msgspec.structs.replace(federation.config, lookup=section),
            Registrar(groups=section.groups, locators=section.locators),
        )
        server.start()
        federation.stack.callback(server.stop)
        return server

    return begin


@pytest.fixture
def party(federation: Any) -> Callable[..., JoinManager]:
    """party(locators=...) is a client."""

    def join(**changes: Any) -> JoinManager:
        section = msgspec.structs.replace(federation.config.lookup, **changes)
        made = JoinManager(msgspec.structs.replace(federation.config, lookup=section), name="party")
        federation.stack.callback(made.close)
        return made

    return join


def listed(server: LookupServer) -> dict[str, LookupService]:
    """The lookup services registered there: address -> what each says of itself."""
    found = server.registrar.read(lambda registrar, now: registrar.lookup_all(LOOKUPS, now, 100)).items
    return {item.proxy.endpoints[0]: LookupService.from_rep(item.entries[0]) for item in found}


def addresses(*servers: LookupServer) -> set[str]:
    return {server.address for server in servers}


# -- a lookup service is a service ----------------------------------------------------------------------------------


def test_a_lookup_service_is_registered_with_itself(lookup: Callable[..., Any]) -> None:
    server = lookup(groups=("lab", ""), name="the one")
    expected = LookupService(name="the one", groups="lab,", address=server.address)
    assert listed(server) == {server.address: expected}
    assert server.status()["items"] == 0, "what others have registered"


def test_lookup_services_that_one_locator_connects_know_each_other_and_so_do_their_clients(
    lookup: Callable[..., Any], party: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a lookup service, a party that knows nothing else, and another lookup service that joins by its address
    first = lookup()
    member = party(locators=(first.address,))
    member.join(PRINTER)
    member.wait_joined("printer-1", 60.0)
    second = lookup(locators=(first.address,))
    # When a third joins, which knows only the second
    third = lookup(locators=(second.address,))
    # Expect each to list all, once
    everybody = addresses(first, second, third)
    for server in (first, second, third):
        eventually(lambda server=server: set(listed(server)) == everybody)
    # and that the party, which was there before them, registers with all
    eventually(lambda: member.wait_joined("printer-1", 60.0) == 3)
    assert {session.ref.endpoints[0] for session in member.sessions()} == everybody
    assert len(member.sessions()) == 3
    # and that one that leaves is gone at once from where it was listed
    third.stop()
    eventually(lambda: set(listed(first)) == set(listed(second)) == addresses(first, second))


def test_a_lookup_service_of_other_groups_is_not_joined_whoever_names_it(
    lookup: Callable[..., Any], party: Callable[..., Any], proxy: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a party of the public group, and a lookup service of another group that the party's own one lists
    first, foreign = lookup(), lookup(groups=("lab",))
    member = party(locators=(first.address,))
    eventually(lambda: member.connected() == 1)
    entry = LookupService(name="", groups="", address=foreign.address).rep()
    reference = ServiceRef("x", EXPORTED, (foreign.address,))
    asked = foreign.status()["calls"]
    proxy(first).register(ServiceItem("x", (LOOKUP_TYPE,), reference, (entry,)), 60.0)
    # Expect that the foreign one is asked, and then left alone by the party and by the other lookup service
    eventually(lambda: foreign.status()["calls"] >= asked + 2)
    assert [session.ref.endpoints[0] for session in member.sessions()] == [first.address]
    assert first.status()["lookup_services"] == 0


def test_an_item_that_names_endpoints_where_no_lookup_service_is_does_no_harm(
    lookup: Callable[..., Any], party: Callable[..., Any], proxy: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a lookup service with forged items
    first = lookup()
    for number, endpoint in enumerate(("127.0.0.1:1", "nonsense", "0.0.0.0:9", "h:70000", "")):
        reference = ServiceRef(f"x{number}", EXPORTED, (endpoint,))
        proxy(first).register(ServiceItem(f"x{number}", (LOOKUP_TYPE,), reference), 60.0)
    # Expect that a party finds what there is, and suggests nobody anything that can't be one
    member = party(locators=(first.address,))
    member.join(PRINTER)
    assert member.wait_joined("printer-1", 60.0) == 1
    eventually(lambda: list(member._registrars.discovery.asked()) == [first.address, "127.0.0.1:1"])
    assert first.status()["lookup_services"] == 0


# -- groups ---------------------------------------------------------------------------------------------------------


def test_a_lookup_service_registered_without_an_id_is_a_source_of_its_own(
    lookup: Callable[..., Any], proxy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two that leave their ids to the registrar, expect what they suggest to stand under what they got
    server = lookup()
    heard: list[ServiceItem] = []
    monkeypatch.setattr(server._presence._community, "heard_of", heard.append)
    refs = [ServiceRef("", EXPORTED, (f"127.0.0.1:{port}",)) for port in (1, 2)]
    granted = [proxy(server).register(ServiceItem("", (LOOKUP_TYPE,), ref), 60.0).service_id for ref in refs]
    assert [item.service_id for item in heard] == granted
    assert len(set(granted)) == 2


def test_groups_are_set_added_and_removed_and_everybody_learns_of_it(
    lookup: Callable[..., Any], party: Callable[..., Any], proxy: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given two lookup services of the public group, and a party of it that knows one by its locator
    first = lookup(groups=("",))
    second = lookup(groups=("",), locators=(first.address,))
    member = party(groups=("",), locators=(first.address,))
    cache = member.watch(LOOKUPS)
    eventually(lambda: member.connected() == 2)
    eventually(lambda: set(listed(first)) == addresses(first, second))
    # When the second leaves the group
    admin = proxy(second)
    assert admin.change_groups(["lab"], []).groups == ("", "lab")
    eventually(lambda: listed(first)[second.address].groups == ",lab")
    assert admin.change_groups([], [""]).groups == ("lab",)
    # Expect that the party and the first one leave it, and it leaves them
    eventually(lambda: [s.ref.endpoints[0] for s in member.sessions()] == [first.address])
    eventually(lambda: set(listed(first)) == {first.address})
    eventually(lambda: set(listed(second)) == {second.address})
    eventually(lambda: len(cache.items()) == 1)
    # and when it comes back (it has the first one's locator), that all is as before
    assert admin.set_groups([""]).groups == ("",)
    eventually(lambda: set(listed(first)) == set(listed(second)) == addresses(first, second))
    eventually(lambda: member.connected() == 2)


# -- locators -------------------------------------------------------------------------------------------------------


def test_locators_are_set_added_and_removed(
    lookup: Callable[..., Any], proxy: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given two lookup services that do not know each other
    first, second = lookup(), lookup()
    admin = proxy(second)
    assert admin.administered().locators == ()
    # When one is told of the other
    done = admin.change_locators([first.address.upper(), "127.0.0.1:1"], [])
    # Expect both to list both
    assert (done.locators, done.chosen) == ((first.address, "127.0.0.1:1"), ("locators",))
    eventually(lambda: set(listed(first)) == set(listed(second)) == addresses(first, second))
    # and that others may be removed and set
    assert admin.change_locators([], ["127.0.0.1:1", "127.0.0.1:2"]).locators == (first.address,)
    assert admin.set_locators([]).locators == ()


# -- the port -------------------------------------------------------------------------------------------------------


def test_the_port_is_changed_without_losing_anything(
    lookup: Callable[..., Any], party: Callable[..., Any], proxy: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a lookup service with a party that holds an item, watches, and knows only its old address; and another one
    first = lookup()
    second = lookup(locators=(first.address,))
    member = party(locators=(first.address,))
    member.join(PRINTER)
    cache = member.watch(ServiceTemplate(types=("Printer",)))
    eventually(lambda: member.connected() == 2)
    assert member.wait_joined("printer-1", 60.0) == 2
    old, registered = first.address, first.status()["changes"]
    # When its port is changed
    done = proxy(first).set_port(0)
    # Expect that it answers there, and no more at the old one
    assert f"127.0.0.1:{done.port}" == first.address != old
    assert proxy(first).describe().service_id == first.info().service_id
    eventually(lambda: first.status()["address"] == first.address)

    def closed() -> bool:
        try:
            socket.create_connection(("127.0.0.1", int(old.rpartition(":")[2])), timeout=1.0).close()
        except ConnectionRefusedError:
            return True
        return False

    eventually(closed)
    # that the party and the other lookup service follow it there, and that nothing had to be registered again
    eventually(lambda: set(listed(second)) == addresses(first, second))
    eventually(lambda: first.address in [s.ref.endpoints[0] for s in member.sessions() if s.connected])
    assert len(member.sessions()) == 2
    proxy(first).register(msgspec.structs.replace(PRINTER, service_id="printer-2"), 60.0)
    eventually(lambda: len(cache.items()) == 2)
    assert first.status()["changes"] <= registered + 3, "our own item, the other lookup service's, printer-2"
    assert first.status()["expired"] == 0


def test_a_port_that_is_taken_is_refused_and_the_old_one_kept(
    lookup: Callable[..., Any], proxy: Callable[..., Any]
) -> None:
    server = lookup()
    admin, before = proxy(server), server.address
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(PortInUseError, match="can't listen"):
        admin.set_port(other.getsockname()[1])
    assert server.address == before
    assert admin.administered().chosen == ()
    assert admin.describe().service_id == server.info().service_id
    assert list(listed(server)) == [before]


def test_an_event_connection_over_the_old_port_while_the_new_one_is_announced_is_served(
    lookup: Callable[..., Any],
    proxy: Callable[..., Any],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    federation: Any,
) -> None:
    server = lookup()
    old, was = server._presence.endpoint, ServiceRef("", EXPORTED, (server.address,))
    token = proxy(server).open_events("listener")

    def connect() -> None:
        """In the middle of the change."""
        sock = dial(was, DATA, Security(), 5.0)
        federation.stack.callback(sock.close)
        greet(StreamSocket(sock), Hello(token))
        # Expect the old endpoint to have handed it over, and not to have closed it
        eventually(lambda: any(place.kept for place in old.connections._open.values()))
        eventually(lambda: server._events._channels["listener"].connected)

    monkeypatch.setattr(server._presence, "_announce", connect)
    assert proxy(server).set_port(0).port != old.port


def test_lookup_services_that_stop_let_admin_calls_go(
    lookup: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admin call that waits its turn is a thread that the endpoint waits for."""
    server = lookup()
    stop, free = server._presence.endpoint.stop, []

    def administer() -> None:
        with server._presence._administering:
            free.append(True)

    def stopping() -> None:
        call = threading.Thread(target=administer)
        call.start()
        call.join(60.0)
        assert free == [True]
        stop()

    monkeypatch.setattr(server._presence.endpoint, "stop", stopping)
    server.stop()
    assert free == [True]


def test_a_metrics_port_that_is_taken_leaves_no_port_open(federation: Any) -> None:
    # Given a metrics port that somebody has
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = msgspec.structs.replace(
        federation.config, lookup=msgspec.structs.replace(federation.config.lookup, port=port)
    )
    with socket.create_server(("127.0.0.1", 0)) as other:
        metrics = MetricsSection(host="127.0.0.1", port=other.getsockname()[1])
        with pytest.raises(PortInUseError, match="metrics"):
            LookupServer(msgspec.structs.replace(config, metrics=metrics), Registrar())
    # Expect the other port to be free again
    LookupServer(config, Registrar()).stop()


# -- the disk and the reaper ----------------------------------------------------------------------------------------


def test_what_the_disk_refuses_an_administrator_is_told(
    federation: Any, proxy: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a durable lookup service whose disk becomes full
    store = Store(tmp_path / "state.db")
    registrar = Registrar(log=store)
    registrar.restore(store.recover(0.0, 0.0), 0.0)
    server = LookupServer(federation.config, registrar, store=store)
    server.start()
    federation.stack.callback(server.stop)
    admin, before = proxy(server), server.address

    def full(_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "_commit", full)
        # Expect an error from the call that finds that out, which holds, and is told to others
        with pytest.raises(StorageError, match="full"):
            admin.set_groups(("lab",))
        assert admin.administered().groups == ("lab",)
        assert listed(server)[before].groups == "lab"
        # Expect others to be refused, and nothing to change
        for refused in (
            lambda: admin.set_groups(("",)),
            lambda: admin.set_port(0),
            lambda: admin.set_locators(("h:1",)),
        ):
            with pytest.raises(StorageError, match="full"):
                refused()
        done = admin.administered()
        assert (done.groups, done.locators, server.address, done.chosen) == (("lab",), (), before, ("groups",))
    # When there is room, expect the port to change, and all to be there after a restart
    store.sync()
    done = admin.set_port(0)
    server.stop()
    with contextlib.closing(Store(tmp_path / "state.db")) as again:
        kept = again.recover(0.0, 0.0).admin
    assert kept is not None
    assert (kept.groups, kept.port, kept.chosen) == (("lab",), done.port, ("groups", "port"))


def test_many_leases_that_end_at_once_do_so_in_small_steps(
    lookup: Callable[..., Any], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the others' calls come in between."""
    server = lookup()
    ended, expire = [], server.registrar._registrar.expire

    def note(now: float, limit: int) -> Any:
        outcome = expire(now, limit)
        ended.append(outcome.result)
        return outcome

    monkeypatch.setattr(server.registrar._registrar, "expire", note)
    with server.registrar._lock:
        for number in range(450):
            item = msgspec.structs.replace(PRINTER, service_id=f"printer-{number}")
            server.registrar._registrar.register(item, 0.01, time.monotonic())
    eventually(lambda: server.status()["expired"] == 450)
    assert sum(ended) == 450
    assert max(ended) <= REAP_AT_ONCE <= 100


@pytest.mark.parametrize("name", ["lookup-destroy", "lookup-old-port"])
def test_an_end_that_raises_is_counted(
    name: str, lookup: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service whose owner, or whose old port, fails when it is to end
    server, before = lookup(), faults().get(name, 0)
    stopping = server._presence.endpoint

    def fail() -> None:
        if name == "lookup-old-port":
            type(stopping).stop(stopping)
        raise RuntimeError("gone")

    monkeypatch.setattr(server._presence, "_destroyed", fail)
    monkeypatch.setattr(stopping, "stop", fail)
    if name == "lookup-destroy":
        server._presence.destroy()
    else:
        server._presence.set_port(0)
    # Expect it to be counted
    eventually(lambda: server.status()["faults"].get(name, 0) == before + 1)
    monkeypatch.undo()


# -- errors and rights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda admin: admin.set_locators(["127.0.0.1:1", "nonsense"]), ConfigurationError),
        (lambda admin: admin.change_locators(["h:70000"], []), ConfigurationError),
        (lambda admin: admin.change_locators([], ["nonsense"]), ConfigurationError),
        (lambda admin: admin.set_locators([f"h:{n}" for n in range(1, 100)]), OversizeError),
        (lambda admin: admin.set_groups(["a,b"]), EntryError),
        (lambda admin: admin.change_groups(["*"], []), EntryError),
        (lambda admin: admin.set_groups([f"g{n}" for n in range(100)]), OversizeError),
        (lambda admin: admin.set_port(70000), ConfigurationError),
        (lambda admin: admin.set_port(-1), ConfigurationError),
    ],
)
def test_nonsense_is_refused_with_a_hint_and_changes_nothing(
    lookup: Callable[..., Any],
    proxy: Callable[..., Any],
    call: Callable[[RegistrarProxy], Any],
    error: type[Exception],
) -> None:
    admin = proxy(lookup())
    before = admin.administered()
    with pytest.raises(error) as refused:
        call(admin)
    assert refused.value.hint
    assert admin.administered() == before


class NoAdministrators(AllowAll):
    def allow(self, caller: Any, action: str, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's parameters
        return Decision(action != "administer")


def test_only_an_administrator_administers(federation: Any, proxy: Callable[..., Any]) -> None:
    server = LookupServer(federation.config, Registrar(), access=NoAdministrators())
    server.start()
    federation.stack.callback(server.stop)
    stranger = proxy(server)
    for call in (
        stranger.administered,
        stranger.destroy,
        lambda: stranger.set_groups(["lab"]),
        lambda: stranger.change_groups(["lab"], []),
        lambda: stranger.set_locators([]),
        lambda: stranger.change_locators(["h:1"], []),
        lambda: stranger.set_port(0),
    ):
        with pytest.raises(AccessDeniedError, match="administer"):
            call()
    assert stranger.describe().groups == ("",)


def test_an_odd_locator_is_an_error_at_once(federation: Any, party: Callable[..., Any]) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigurationError, match="nonsense"):
        party(locators=("nonsense",))
    with pytest.raises(ConfigurationError, match="nonsense"):
        Registrar(locators=("nonsense",))
    assert {t for t in threading.enumerate() if t not in before and t.name.startswith("party")} == set()


# -- mDNS, seen from outside ----------------------------------------------------------------------------------------

OBSERVER = """
import json, sys, time
from zeroconf import ServiceBrowser, Zeroconf, IPVersion
zeroconf = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)
kind = sys.argv[1]
class Observer:
    def add_service(self, zc, kind, name):
        info = zc.get_service_info(kind, name, timeout=3000)
        if info is not None:
            texts = {k.decode(): (v or b"").decode() for k, v in info.properties.items()}
            print(json.dumps({"port": info.port, **texts}), flush=True)
    update_service = add_service
    def remove_service(self, zc, kind, name):
        print(json.dumps({"gone": name.partition(".")[0]}), flush=True)
ServiceBrowser(zeroconf, kind, Observer())
sys.stdin.readline()
zeroconf.close()
"""


def _multicast_reaches_loopback() -> bool:
    """Whether a datagram to the mDNS group comes back on loopback."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as hears,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as says,
    ):
        try:
            loopback = socket.inet_aton("127.0.0.1")
            hears.bind(("", 0))
            hears.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + loopback)
            hears.settimeout(5.0)
            says.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)
            says.sendto(b"?", ("224.0.0.251", hears.getsockname()[1]))
            return hears.recv(16) == b"?"
        except OSError:
            return False


@pytest.mark.processes
def test_an_independent_browser_sees_the_service_its_groups_its_changes_and_its_end(
    federation: Any, lookup: Callable[..., Any], party: Callable[..., Any], proxy: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:  # fmt: skip
    if not _multicast_reaches_loopback():
        pytest.skip("no multicast on loopback here")
    federation.leases(2.0)
    # Given a browser in a process of its own that knows the service type and nothing of us, and a party with mDNS only
    command = [sys.executable, "-c", OBSERVER, multicast.SERVICE_TYPE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as observer:
        assert observer.stdout is not None
        assert observer.stdin is not None
        group = f"test-{uuid.uuid4().hex[:8]}"
        server = lookup(groups=(group,), multicast=True)
        own = server.info().service_id

        def said(good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            """The next line that is about us."""
            while True:
                line = json.loads(observer.stdout.readline())
                if good(line):
                    return line

        # Expect id, port and groups in its record
        seen = said(lambda line: line.get("id") == own)
        assert seen == {"port": int(server.address.rpartition(":")[2]), "id": own, "groups": group}
        member = party(locators=(), multicast=True, groups=(group,))
        eventually(lambda: member.connected() == 1)
        assert list(member._registrars.discovery.asked()) == [server.address]
        # When it is administered, expect the change to be seen
        proxy(server).change_groups(["more"], [])
        assert said(lambda line: line.get("groups") == f"{group},more")["id"] == own
        proxy(server).set_port(0)
        port = int(server.address.rpartition(":")[2])
        assert said(lambda line: line.get("port") == port)["id"] == own
        eventually(lambda: server.address in member._registrars.discovery.asked())
        # When it ends, expect the good-bye to be seen, and that nobody suggests it any more
        server.stop()
        assert said(lambda line: line.get("gone") == own)
        eventually(lambda: list(member._registrars.discovery.asked()) == [])
        observer.stdin.write("\n")
        observer.stdin.flush()


def test_groups_too_long_for_the_record_are_announced_without_and_asked_for(
    federation: Any, lookup: Callable[..., Any], party: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    if not _multicast_reaches_loopback():
        pytest.skip("no multicast on loopback here")
    # Given a lookup service of more groups than a TXT string holds
    mine = f"test-{uuid.uuid4().hex[:8]}"
    lookup(groups=(mine, *(f"{n}-{'x' * 200}" for n in range(8))), multicast=True)
    # Expect that a client of one of them finds it
    member = party(locators=(), multicast=True, groups=(mine,))
    eventually(lambda: member.connected() == 1)


def test_the_proxy_refuses_when_nobody_is_there(proxy: Callable[..., Any]) -> None:
    with pytest.raises(WireError):
        proxy("127.0.0.1:1").administered()
