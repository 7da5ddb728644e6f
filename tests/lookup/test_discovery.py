"""Discovery goes on, whatever a peer answers, announces or is called; and mDNS uses the interfaces that people mean."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import ifaddr
import msgspec
import pytest
from rpyc.core import brine, consts
from zeroconf import DNSIncoming, ServiceBrowser

from jbi_pubsub.core.config import Config, LeaseSection, LookupSection, PadSection
from jbi_pubsub.core.errors import AdapterStateError, ConfigurationError, EntryError, LookupNotFoundError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import PREAMBLE, Security
from jbi_pubsub.lookup.client import discovery as discovery_module
from jbi_pubsub.lookup.client import join as join_module
from jbi_pubsub.lookup.client import multicast as multicast_module
from jbi_pubsub.lookup.client.discovery import LookupDiscovery
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.client.multicast import SERVICE_TYPE, Announcement, _Listener, addresses_of, interfaces_of
from jbi_pubsub.lookup.client.proxy import LOOKUP_TYPE, RegistrarInfo
from jbi_pubsub.lookup.client.session import RegistrarSession
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

PRINTER = ServiceItem("printer-1", ("Printer",), ServiceRef("p", "printer", ("127.0.0.1:1",)))


# -- what a peer can say --------------------------------------------------------------------------------------------


def _framed(data: bytes) -> bytes:
    """rpyc's frame: length, uncompressed, data, flush byte."""
    return struct.pack("!LB", len(data), 0) + data + b"\n"


def _reply(number: int, value: object) -> bytes:
    return _framed(brine.I1.pack(consts.MSG_REPLY) + brine.dump((number, value)))


def _answered(number: int, good: bool, data: bytes) -> bytes:
    return _reply(number, (consts.LABEL_VALUE, (good, data)))


def _info(service_id: object, groups: object) -> bytes:
    return msgspec.msgpack.encode({"service_id": service_id, "groups": groups})


SAYS: dict[str, Callable[[int], bytes]] = {
    "bad UTF-8": lambda n: _answered(n, True, b"\x82\xaaservice_id\xa1\xff\xa6groups\x90"),
    "nested without end": lambda n: _answered(n, True, b"\x91" * 20_000),
    "a report that is none": lambda n: _answered(n, False, b"\xc1"),
    "a report of bad UTF-8": lambda n: _answered(n, False, b"\x82\xa4code\xa1\xff\xa7message\xa1\xff"),
    "another type": lambda n: _answered(n, True, b"\x05"),
    "no pair": lambda n: _reply(n, (consts.LABEL_VALUE, 5)),
    "no package": lambda n: _reply(n, 5),
    "a reference": lambda n: _reply(n, (consts.LABEL_REMOTE_REF, ("a", 1, 2))),
    "an exception of its own": lambda n: _framed(brine.I1.pack(consts.MSG_EXCEPTION) + brine.dump((n, 7))),
    "no brine": lambda _: _framed(b"\xff" * 20),
    "a huge frame": lambda _: struct.pack("!LB", 2**32 - 1, 0),
    "nothing": lambda _: b"",
    "no id": lambda n: _answered(n, True, _info("", [""])),
    "a line break in its id": lambda n: _answered(n, True, _info("a\nb", [""])),
    "an id without end": lambda n: _answered(n, True, _info("x" * 100_000, [""])),
    "too many groups": lambda n: _answered(n, True, _info("x", ["", *map(str, range(100))])),
    "a group that is none": lambda n: _answered(n, True, _info("x", ["", "\x1b[2J"])),
}


class Peer:
    """Something that is called like a lookup service, and answers `says(number of the call)`."""

    def __init__(self, says: Callable[[int], bytes]) -> None:
        self._says = says
        self.asked = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, name="peer")
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:  # closed
                return
            with sock, contextlib.suppress(OSError, struct.error):
                sock.settimeout(60.0)
                sock.recv(PREAMBLE.size, socket.MSG_WAITALL)
                length, _ = struct.unpack("!LB", sock.recv(5, socket.MSG_WAITALL))
                number, _ = brine.load(sock.recv(length + 1, socket.MSG_WAITALL)[1:-1])
                self.asked += 1
                sock.sendall(self._says(number))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def peer(federation: Any) -> Callable[..., Peer]:
    """peer(says) stands somewhere."""

    def begin(says: Callable[[int], bytes]) -> Peer:
        made = Peer(says)
        federation.stack.callback(made.close)
        return made

    return begin


@pytest.fixture
def discovery(federation: Any) -> Callable[..., LookupDiscovery]:
    """discovery(locators, discovered=...) looks for lookup services."""

    def begin(locators: list[str], **options: Any) -> LookupDiscovery:
        own: dict[str, Any] = {"multicast": False, "interfaces": tuple, "discarded": lambda _: None, **options}
        made = LookupDiscovery(groups=None, locators=locators, security=Security(), interval=0.02, **own)
        federation.stack.callback(made.stop)
        made.start()
        return made

    return begin


@pytest.mark.parametrize("says", SAYS.values(), ids=SAYS)
def test_whatever_answers_at_one_endpoint_the_lookup_service_at_another_is_found(
    says: Callable[[int], bytes], peer: Any, discovery: Any, federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given something that answers nonsense, named by a locator that stands before that of a lookup service
    odd, good = peer(says), federation.lookups[0]
    found: list[str] = []
    looking = discovery([odd.address, good.address], discovered=lambda _, info: found.append(info.service_id))
    # Expect the lookup service to be found, the other one to be asked again, and to be told why it is none
    eventually(lambda: found == [good.info().service_id] and odd.asked >= 2)
    assert looking.asked()[odd.address]


def test_a_service_that_says_it_is_a_lookup_service_and_is_none_ends_no_discovery(
    peer: Any, federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a party at a lookup service, and an item there that names something which answers nonsense
    first = federation.lookups[0]
    party = JoinManager(federation.config, name="party")
    federation.stack.callback(party.close)
    party.join(PRINTER)
    party.wait_joined("printer-1", 60.0)
    odd = peer(SAYS["bad UTF-8"])
    hostile = ServiceItem("f" * 32, (LOOKUP_TYPE,), ServiceRef("f" * 32, "registrar", (odd.address,)))
    first.registrar.grant(lambda registrar, now: registrar.register(hostile, 300.0, now))
    first._presence.heard_of(hostile)
    eventually(lambda: odd.asked >= 2)  # the party, and the lookup service itself
    # When another lookup service joins the first, expect that the party finds it and registers there
    federation.lookup()
    eventually(lambda: party.wait_joined("printer-1", 60.0) == 2)


@pytest.mark.parametrize(
    "fault", [TypeError("x"), KeyError("x"), RecursionError("x"), UnicodeDecodeError("utf-8", b"", 0, 0, "")]
)
def test_a_probe_that_raises_is_a_probe_that_failed(
    fault: Exception, discovery: Any, federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a suggestion whose probe raises what nobody expects
    good, before = federation.lookups[0], faults().get("discovery probe", 0)
    describe = discovery_module.RegistrarProxy.describe

    def fail(proxy: Any) -> RegistrarInfo:
        if proxy.ref.endpoints == ("127.0.0.1:9",):
            raise fault
        return describe(proxy)

    monkeypatch.setattr(discovery_module.RegistrarProxy, "describe", fail)
    monkeypatch.setattr(discovery_module, "PAUSE_FIRST", 0.02)
    found: list[str] = []
    looking = discovery([], discovered=lambda _, info: found.append(info.service_id))
    looking.suggest("odd", ["127.0.0.1:9"])
    # Expect it to be asked again behind a pause, and others to be found
    eventually(lambda: faults().get("discovery probe", 0) >= before + 2)
    assert looking._suggestions._book["127.0.0.1:9"].failing_since is not None
    looking.suggest("good", [good.address])
    eventually(lambda: found == [good.info().service_id])


@pytest.mark.parametrize("step", ["_browse", "_due", "_probe", "_take"])
def test_discovery_goes_on_whatever_a_step_of_it_raises(
    step: str, discovery: Any, federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a step that fails the first time, and a lookup service that is suggested
    good, before = federation.lookups[0], faults().get("discovery", 0)
    whole, left = getattr(LookupDiscovery, step), [None]

    def fail(*given: Any) -> Any:
        if left:
            left.pop()
            raise KeyError("gone")
        return None if step == "_browse" else whole(*given)

    monkeypatch.setattr(LookupDiscovery, step, fail)
    found: list[str] = []
    looking = discovery([], discovered=lambda _, info: found.append(info.service_id), multicast=True)
    looking.suggest("good", [good.address])
    # Expect that it is found all the same
    eventually(lambda: found == [good.info().service_id])
    assert faults()["discovery"] == before + 1
    assert not left


def test_mdns_begins_when_locators_have_had_time_to_answer_and_at_once_when_none_does(
    discovery: Any, federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given that locators have all the time in the world
    monkeypatch.setattr(discovery_module, "LOCATORS_SECONDS", 600.0)
    begun: list[LookupDiscovery] = []
    monkeypatch.setattr(LookupDiscovery, "_browse", lambda looking: begun.append(looking))
    good = federation.lookups[0]
    # Expect no mDNS where one answers, which ends with the process
    first = discovery([good.address], discovered=lambda *_: None, multicast=True)
    eventually(lambda: first.asked() == {good.address: ""} and first._known)
    # ... and mDNS where none does, or there is none
    second = discovery(["127.0.0.1:1"], discovered=lambda *_: None, multicast=True)
    eventually(lambda: second in begun)
    third = discovery([], discovered=lambda *_: None, multicast=True)
    eventually(lambda: third in begun)
    assert first not in begun


def test_who_is_told_of_a_discovery_and_raises_ends_nothing(
    discovery: Any, federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given two lookup services, and somebody who can't cope with the first
    first, second = federation.lookups[0], federation.lookup()
    found: list[str] = []

    def discovered(_: ServiceRef, info: RegistrarInfo) -> None:
        found.append(info.service_id)
        raise RuntimeError("first")

    discovery([first.address, second.address], discovered=discovered)
    eventually(lambda: found == [first.info().service_id, second.info().service_id])


# -- mDNS -----------------------------------------------------------------------------------------------------------


def test_what_is_announced_by_mdns_ends_no_thread_and_is_not_asked_for_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a listener of zeroconf's that fails over one name
    found: list[str] = []
    gone: list[str] = []
    ended = threading.Event()

    def take(info: Any) -> None:
        found.append(info.name)
        raise ValueError("odd")

    def drop(name: str) -> None:
        gone.append(name)
        raise ValueError("odd")

    known: list[str] = []

    class Info(SimpleNamespace):
        """What the cache has of a name: all of it."""

        def __init__(self, _: str, name: str) -> None:
            super().__init__(name=name)

        def load_from_cache(self, _: Any) -> bool:
            known.append(self.name)
            if self.name == "odd":
                raise TypeError
            return True

    zeroconf: Any = None
    monkeypatch.setattr(multicast_module, "ServiceInfo", Info)
    listener = _Listener(take, drop, ended.is_set)
    before = faults().get("discovery by mDNS", 0)
    # When names come, change and go, expect no exception, and each to be counted
    for name in ("odd", "a"):
        listener.add_service(zeroconf, "type", name)
    listener.update_service(zeroconf, "type", "b")
    listener.remove_service(zeroconf, "type", "a")
    assert (found, gone) == (["a", "b"], ["a"])
    assert faults()["discovery by mDNS"] == before + 4
    # When we end, expect that nobody is asked after any more
    ended.set()
    known.clear()
    for number in range(1000):
        listener.add_service(zeroconf, "type", f"flood-{number}")
    assert known == []


def test_a_lookup_service_behind_a_long_link_is_found_by_its_locator(
    peer: Any, discovery: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lookup service whose answer takes longer than a probe has
    monkeypatch.setattr(discovery_module, "PROBE_SECONDS", 0.2)

    def late(number: int) -> bytes:
        time.sleep(0.5)
        return _answered(number, True, _info("far", [""]))

    found: list[str] = []
    # When it is looked for; Expect it to be found, as it is waited for longer each time
    discovery([peer(late).address], discovered=lambda _, info: found.append(info.service_id))
    eventually(lambda: found == ["far"])


@pytest.mark.row("J-29")
def test_names_that_nobody_answers_for_hold_up_neither_who_announces_itself_nor_who_leaves(
    federation: Any, eventually: Callable[..., Any]
) -> None:
    # Given a party that looks for lookup services, and a stranger's names, behind which nobody is
    found: list[str] = []
    looking = LookupDiscovery(
        groups=None, locators=(), multicast=True, interfaces=lambda: ("127.0.0.1",), security=Security(), interval=0.1,
        discovered=lambda _, info: found.append(info.service_id), discarded=lambda _: None,
    )  # fmt: skip
    looking.start()
    zeroconf: Any = eventually(lambda: looking._browser).zeroconf
    for number in range(1000):
        packet = DNSIncoming(_pointer(b"\x09fake-%04d" % number, multicast_module.SERVICE_TYPE))
        zeroconf.loop.call_soon_threadsafe(zeroconf.record_manager.async_updates_from_response, packet)
    # When a lookup service announces itself; Expect it to be found long before they could have been asked after in turn
    one = federation.lookups[0]
    announced = Announcement(one.info(), one.address, ("127.0.0.1",))
    announced.start()
    eventually(lambda: one.info().service_id in found)
    # ... and who leaves not to wait for them
    began = time.monotonic()
    looking.stop()
    assert time.monotonic() - began < 60.0
    announced.stop()


def _pointer(instance: bytes, of: str = SERVICE_TYPE) -> bytes:
    """A response that says that there is a lookup service of that name: labels with their lengths."""

    def name(*labels: bytes) -> bytes:
        return b"".join(bytes([len(label)]) + label for label in labels)

    kind = name(*of.rstrip(".").encode().split(b".")) + b"\0"
    return (
        struct.pack("!6H", 0, 0x8400, 0, 1, 0, 0)
        + kind
        + struct.pack("!HHIH", 12, 1, 4500, 2 + len(instance))
        + (instance + b"\xc0\x0c")
    )


@pytest.mark.processes
def test_names_that_can_not_be_asked_for_spoil_no_query(caplog: pytest.LogCaptureFixture) -> None:
    # Given names that zeroconf reads and can't write, that a terminal would obey, and one as it should be
    told: list[str] = []
    names = (b"\xff" * 40, b"a\xff" * 31, b"\x1b[2J\x1b]0;owned\x07", b"ok")
    zeroconf = multicast_module._opened(["127.0.0.1"])
    try:
        listener = _Listener(lambda info: told.append(info.name), lambda _: None, lambda: False)
        browser = ServiceBrowser(zeroconf, SERVICE_TYPE, listener)
        done = threading.Event()

        def come() -> None:
            for each in names:
                packet = DNSIncoming(_pointer(bytes([len(each)]) + each))
                zeroconf.record_manager.async_updates_from_response(packet)
            done.set()

        zeroconf.loop.call_soon_threadsafe(come)
        assert done.wait(10.0)
        # Expect what is known to go into the next query, which it does not spoil
        known = [r.alias for r in zeroconf.cache.entries_with_name(SERVICE_TYPE) if r.type == 12]
        assert f"ok.{SERVICE_TYPE}" in known
        assert all(name.isprintable() and len(name.partition(".")[0].encode()) < 64 for name in known)
        browser.cancel()
    finally:
        zeroconf.close()
    # Expect nobody to have been asked about the others, and nothing in the log
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "WARNING")]


def test_an_announcement_that_fails_unexpectedly_is_counted(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    monkeypatch.setattr(multicast_module, "Zeroconf", lambda **_: {}["gone"])
    before = faults().get("lookup announcement", 0)
    announced = Announcement(federation.lookups[0].info(), federation.lookups[0].address, ("127.0.0.1",))
    announced.start()
    announced.stop()
    assert faults()["lookup announcement"] == before + 1


def adapter(name: str, *addresses: str) -> ifaddr.Adapter:
    return ifaddr.Adapter(name, name, [ifaddr.IP(address, 24, name) for address in addresses], index=1)


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with loopback, a network card, one with two addresses, and one without any of IPv4."""
    cards = [adapter("lo", "127.0.0.1"), adapter("eth0", "192.0.2.2"), adapter("eth1", "198.51.100.7", "198.51.100.8")]
    bare = ifaddr.Adapter("tun0", "tun0", [ifaddr.IP(("fe80::1", 0, 3), 64, "tun0")], index=3)
    monkeypatch.setattr(multicast_module.ifaddr, "get_adapters", lambda: [*cards, bare])


@pytest.mark.row("G-164")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (("eth0",), ["192.0.2.2"]),
        (("192.0.2.2",), ["192.0.2.2"]),
        (("lo", "eth1"), ["127.0.0.1", "198.51.100.7", "198.51.100.8"]),
        (("eth0", "192.0.2.2"), ["192.0.2.2"]),
        (("127.0.0.9",), ["127.0.0.9"]),
        (("eth7", "eth0", "tun0"), ["192.0.2.2"]),
        ((), []),
    ],
)
@pytest.mark.usefixtures("interfaces")
def test_an_interface_is_named_as_people_do(written: tuple[str, ...], meant: list[str]) -> None:
    assert addresses_of(written) == meant


@pytest.mark.usefixtures("interfaces")
def test_an_interface_that_is_not_there_is_told_and_the_locators_are_used(
    discovery: Any, federation: Any, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError, match=r"'eth7' or 'tun0'; there are lo, 127\.0\.0\.1, eth0"):
        addresses_of(("eth7", "tun0"))
    good = federation.lookups[0]
    found: list[str] = []
    with caplog.at_level(logging.WARNING):
        discovery(
            [good.address],
            discovered=lambda _, info: found.append(info.service_id),
            multicast=True,
            interfaces=lambda: ("eth7",),
        )
        eventually(lambda: found == [good.info().service_id])
        announced = Announcement(good.info(), good.address, ("eth7",))
        announced.start()
        announced.stop()
        eventually(lambda: "no mDNS on eth7" in caplog.text)
    assert "no mDNS announcement on eth7" in caplog.text


@pytest.mark.parametrize(
    ("lookup", "pad", "used"),
    [
        ("127.0.0.1", "127.0.0.1", ("127.0.0.1",)),
        ("192.0.2.2", "127.0.0.1", ("127.0.0.1", "192.0.2.2")),
        ("127.0.0.1", "198.51.100.8", ("127.0.0.1", "198.51.100.8")),
        ("0.0.0.0", "127.0.0.1", ("127.0.0.1", "192.0.2.2", "198.51.100.7", "198.51.100.8")),
        ("lookup.example.org", "127.0.0.1", ("127.0.0.1",)),
    ],
)
@pytest.mark.usefixtures("interfaces")
def test_mdns_goes_where_others_can_connect_to_unless_interfaces_are_set(
    lookup: str, pad: str, used: tuple[str, ...]
) -> None:
    """Whoever listens on an address of a network is announced there, and looks there for others."""
    config = Config(lookup=LookupSection(host=lookup), pad=PadSection(host=pad))
    assert interfaces_of(config) == used
    chosen = Config(lookup=LookupSection(host=lookup, interfaces=("eth1",)), pad=PadSection(host=pad))
    assert interfaces_of(chosen) == ("eth1",)


# -- joining --------------------------------------------------------------------------------------------------------


def test_a_lookup_service_that_answers_too_slowly_is_not_called_away(federation: Any) -> None:
    # Given a party at a lookup service; When what it watches for does not come in time
    party = JoinManager(federation.config, name="party")
    federation.stack.callback(party.close)
    party.lookup(ServiceTemplate(), timeout=60.0)
    other = LookupCache(ServiceTemplate())  # nobody feeds it
    # Expect it to be told that it was too slow, and what gives it longer
    with pytest.raises(
        LookupNotFoundError, match=f"at {federation.lookups[0].address} answers, but not in time"
    ) as told:
        party.wait_watching(other, 0.05)
    assert "[lookup] timeout" in told.value.hint


def test_events_go_on_whatever_one_of_them_raises(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a party that watches, and an event that raises where it is received
    party = JoinManager(federation.config, name="party")
    federation.stack.callback(party.close)
    cache = party.watch(ServiceTemplate(types=("Printer",)))
    party.wait_watching(cache, 60.0)
    before, left = faults().get("stream of a receiver", 0), [None]
    whole = RegistrarSession._dispatch

    def fail(session: RegistrarSession, event: Any) -> None:
        if left:
            left.pop()
            raise KeyError("gone")
        whole(session, event)

    monkeypatch.setattr(RegistrarSession, "_dispatch", fail)
    # When services come, expect that the party knows of all in the end
    lookup = federation.lookups[0]
    for number in range(2):
        item = msgspec.structs.replace(PRINTER, service_id=f"printer-{number}")
        lookup.registrar.grant(lambda registrar, now, item=item: registrar.register(item, 300.0, now))
        eventually(lambda: f"printer-{number}" in {item.service_id for item in cache.items()})  # noqa: B023
    assert faults()["stream of a receiver"] == before + 1


def test_a_session_that_can_not_be_ended_is_counted(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a party, and a session whose end raises, as does what is forgotten behind it
    party = JoinManager(federation.config, name="party")
    federation.stack.callback(party.close)
    party.join(PRINTER)
    party.wait_joined("printer-1", 60.0)
    (session,) = party.sessions()
    before = faults()
    whole = RegistrarSession.stop

    def stop(session: RegistrarSession, timeout: float = 5.0) -> None:
        whole(session, timeout)
        raise KeyError("gone")

    monkeypatch.setattr(RegistrarSession, "stop", stop)
    # When the lookup service is none of ours any more, expect the end to be counted, and no thread to be left
    party._registrars._discarded(session.registrar_id)
    eventually(lambda: faults().get("lookup leave", 0) == before.get("lookup leave", 0) + 1)
    assert not session._thread.is_alive()
    monkeypatch.undo()
    # and the same for what it listed, which is forgotten later
    monkeypatch.setattr(join_module.LookupCache, "forget", lambda *_: {}["gone"])
    registrars = party._registrars
    registrars._config = msgspec.structs.replace(registrars._config, lease=LeaseSection(lookup=0.01))
    registrars._hand_over(session, session)
    eventually(lambda: faults().get("lookup hand-over", 0) == before.get("lookup hand-over", 0) + 1)
    eventually(lambda: not registrars._handing_over)


def test_who_has_left_is_told_that_nothing_is_registered_any_more(federation: Any) -> None:
    party = JoinManager(federation.config, name="party")
    party.close()
    with pytest.raises(AdapterStateError, match="printer-1 can't be registered"):
        party.join(PRINTER)


def test_a_lookup_service_that_is_away_is_told_once(
    federation: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a party of a lookup service
    server = federation.lookups[0] if federation.lookups else federation.lookup()
    party = JoinManager(federation.config, name="party")
    try:
        eventually(party.connected)
        caplog.set_level(logging.DEBUG, logger="jbi_pubsub.lookup")
        # When that ends, and is tried again and again
        server.stop()
        told = eventually(lambda: len(away := [r for r in caplog.records if "is away" in r.message]) > 2 and away)
        # Expect it told once, by its address; all else is for who looks for a fault
        assert [record.levelno for record in told].count(logging.INFO) == 1
        assert {record.levelno for record in told[1:]} == {logging.DEBUG}
        assert f"lookup service {server.address} is away" in told[0].message
    finally:
        party.close()


def test_wrong_entries_of_an_administrator_are_refused(federation: Any) -> None:
    party = JoinManager(federation.config, name="party")
    federation.stack.callback(party.close)
    party.join(PRINTER)
    wrong = EntryRep(EntryClass("X", (), ()), ())
    for change in (party.add_lookup_attributes, party.remove_lookup_attributes):
        with pytest.raises(EntryError, match="lineage"):
            change("printer-1", [wrong])
