"""Revoked and renewed while the servers run: no restart, and nobody else loses anything."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import certificates
import msgspec
import pytest

from jbi_pubsub import Config, SubscriberAdapter
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LeaseSection, LookupSection, TlsSection
from jbi_pubsub.core.errors import ConfigurationError, WireError
from jbi_pubsub.core.wire import credentials, endpoint
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS, SubscriptionsProxy
from jbi_pubsub.trust.authority import Authority

TYPE = "mil.af.rl.jbi.Intel_Imagery"

SUBSCRIBER = """
import sys
from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.config import effective
with SubscriberAdapter(effective()) as subscriber:
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(uid, 1, 30.0) == 1
    print('"ready"', flush=True)
    for obj in subscriber.objects(uid, 600.0):
        print(obj.platform.sequence, flush=True)
"""
"""Says what has come to it."""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at more often, where what counts is not how soon."""
    for module in (credentials, endpoint):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)


@pytest.fixture
def certs(tmp_path: Path) -> Path:
    """An authority's folder, with a server and two clients."""
    folder = tmp_path / "certs"
    now = time.time()
    Authority.init(folder, "test", now=now)
    with Authority.opened(folder) as authority:
        authority.issue("server", "server", ["127.0.0.1"], now=now)
        for name in ("anna", "bert"):
            authority.issue(name, "client", now=now)
    return folder


def security(folder: Path) -> Security:
    """Of the party of a folder."""
    return Config(tls=TlsSection(folder=str(folder))).security()


def revoke(certs: Path, name: str) -> None:
    with Authority.opened(certs) as authority:
        authority.revoke(name, now=time.time())


def tls_federation(federation: Any, folder: Path) -> None:
    """From now on all parties of this federation speak TLS, as that one; a lookup service is there."""
    alone: LookupSection = msgspec.structs.replace(federation.config.lookup, locators=())
    federation.config = msgspec.structs.replace(federation.config, tls=TlsSection(folder=str(folder)), lookup=alone)
    federation.lookups.clear()
    federation.lookup()


def as_party(federation: Any, folder: Path) -> Config:
    """The configuration of another one."""
    changed: Config = msgspec.structs.replace(federation.config, tls=TlsSection(folder=str(folder)))
    return changed


# -- the wire -----------------------------------------------------------------------------------------------------


@pytest.mark.row("G-180")
def test_a_revoked_client_is_cut_off_and_does_not_come_back(
    serve: Callable[..., Any], certs: Path, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a server with two clients, each with a call and a data connection
    served = serve(security(certs / "server"))
    clients = {name: ControlClient(served.ref, security(certs / name), timeout=60.0) for name in ("anna", "bert")}
    socks = {name: dial(served.ref, DATA, security(certs / name), 5.0) for name in clients}
    for name, client in clients.items():
        assert client.call("echo", str, name) == name
        socks[name].sendall(b"x")
        assert socks[name].recv(1) == b"x"

    # When one of them is revoked
    with caplog.at_level(logging.WARNING):
        revoke(certs, "anna")
        revoked = time.monotonic()
        # Expect its data connection to end soon
        socks["anna"].settimeout(60.0)
        assert socks["anna"].recv(1) == b""
        assert time.monotonic() - revoked < 60.0
        eventually(lambda: "connections of anna ended" in caplog.text)
    # Expect it not to come in again, on either plane, and to be told why
    with pytest.raises(WireError, match="revoked"):
        clients["anna"].call("echo", str, "again")
    # Expect the other one's connections to be those of before
    socks["bert"].sendall(b"y")
    assert socks["bert"].recv(1) == b"y"
    assert clients["bert"].call("echo", str, "still") == "still"
    for each in (*clients.values(), *socks.values()):
        each.close()


def test_with_an_authority_all_whom_it_has_certified_are_cut_off(
    serve: Callable[..., Any], tmp_path: Path, often: None
) -> None:
    # Given a server, and clients of two authorities, of which one is certified by the other
    above = certificates.Authority(tmp_path / "above", "above")
    below = certificates.Authority(tmp_path / "below", "below", below=above)
    above.ca.write_bytes(above.ca.read_bytes() + certificates.pem(below.certificate))
    listed = tmp_path / "lists.pem"
    listed.write_bytes(above.revoke().read_bytes() + below.revoke().read_bytes())
    served = serve(Config(tls=msgspec.structs.replace(above.issue("server"), revoked=str(listed))).security())
    clients = {by.name: Config(tls=by.issue(f"{by.name}-client")).security() for by in (above, below)}
    socks = {name: dial(served.ref, DATA, client, 5.0) for name, client in clients.items()}
    for sock in socks.values():
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    # When that one is revoked
    (own := tmp_path / "below.pem").write_bytes(certificates.pem(below.certificate))
    listed.write_bytes(above.revoke(str(own)).read_bytes() + below.revoke().read_bytes())
    # Expect what stands with its clients to end, and none of them to come again
    with contextlib.suppress(ConnectionError):
        assert socks["below"].recv(1) == b""
    with pytest.raises(WireError, match="revoked"):
        ControlClient(served.ref, clients["below"], timeout=60.0).call("echo", str, "")
    # ... and others to be served as before
    socks["above"].sendall(b"y")
    assert socks["above"].recv(1) == b"y"
    for sock in socks.values():
        sock.close()


def test_a_client_leaves_a_server_that_is_revoked(
    serve: Callable[..., Any], certs: Path, often: None, eventually: Callable[..., Any]
) -> None:
    # Given a client that is connected, and a server whose key, its list will say, is stolen; the server's own is older
    (certs / "server").rename(certs.parent / "stolen")
    served = serve(security(certs.parent / "stolen"))
    client = ControlClient(served.ref, security(certs / "anna"), timeout=60.0)
    assert client.call("echo", str, "1") == "1"
    revoke(certs, "server")
    # Expect it to be left, soon, with the reason

    def reason() -> str:
        try:
            client.call("echo", str, "2")
        except WireError as exc:
            return str(exc)
        return ""

    assert "revoked" in eventually(reason)
    client.close()


def test_a_list_that_is_no_good_leaves_the_one_before_in_force(
    serve: Callable[..., Any],
    certs: Path,
    often: None,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
) -> None:
    served = serve(security(certs / "server"))
    revoke(certs, "anna")
    client = ControlClient(served.ref, security(certs / "bert"), timeout=60.0)

    def refused() -> bool:
        try:
            ControlClient(served.ref, security(certs / "anna"), timeout=60.0).call("echo", str, "x")
        except WireError:
            return True
        return False

    eventually(refused)
    # When the file becomes rubbish
    (certs / "server" / "crl.pem").write_text("rubbish")
    eventually(lambda: client.call("echo", str, "x") and "stay in force" in caplog.text)
    # Expect who was revoked to be that, and others to be served
    assert refused()
    assert client.call("echo", str, "y") == "y"
    assert "crl.pem" in caplog.text
    # Expect that to be said once, and to be in the status until it is mended
    assert caplog.text.count("stay in force") == 1
    assert "crl.pem" in served.endpoint.tls()["problem"]
    shutil.copy(certs / "authority" / "crl.pem", certs / "server" / "crl.pem")
    eventually(lambda: client.call("echo", str, "z") and served.endpoint.tls()["problem"] == "")
    client.close()


def test_a_renewed_certificate_is_shown_without_a_restart(
    serve: Callable[..., Any], certs: Path, often: None, eventually: Callable[..., Any]
) -> None:
    # Given a server, and a client that knows it by its reference
    served = serve(security(certs / "server"))
    me = security(certs / "anna")

    def shown() -> int:
        with dial(served.ref, DATA, me, 5.0) as sock:
            assert isinstance(sock, ssl.SSLSocket)
            return int((sock.getpeercert() or {})["serialNumber"], 16)

    before = shown()
    # When its certificate is renewed, expect the new one to be shown, and to be good by the old reference
    with Authority.opened(certs) as authority:
        renewed = authority.renew("server", now=time.time()).certificate.serial
    eventually(lambda: shown() == renewed)
    assert renewed != before


def test_another_key_is_not_taken_while_a_server_runs(
    serve: Callable[..., Any],
    certs: Path,
    often: None,
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Given a server that others know by its key
    served = serve(security(certs / "server"))
    client = ControlClient(served.ref, security(certs / "anna"), timeout=60.0)
    # When its files become those of another key
    for name in ("certificate.pem", "key.pem"):
        (certs / "server" / name).write_bytes((certs / "bert" / name).read_bytes())
    # Expect it to say so, and to go on as who it was
    eventually(lambda: client.call("echo", str, "x") and "a server is known by it" in caplog.text)
    dial(served.ref, DATA, security(certs / "anna"), 5.0).close()
    client.close()


# -- a federation -------------------------------------------------------------------------------------------------


def test_a_revoked_subscriber_receives_nothing_more_and_others_lose_nothing(
    federation: Any,
    figures: Any,
    certs: Path,
    start: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Given a federation with TLS, and two subscribers of their own certificates, one in a process of its own
    tls_federation(federation, certs / "server")
    pad = federation.pad()
    monkeypatch.setenv("JBI_TLS_FOLDER", str(certs / "anna"))
    monkeypatch.setenv("JBI_LEASE_SUBSCRIBER", "2")
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", federation.lookups[0].address)
    anna = start(script=SUBSCRIBER)
    bert: SubscriberAdapter = federation.subscriber(as_party(federation, certs / "bert"))
    subscription = bert.register_subscriber(type_name=TYPE)
    adapter = federation.light()
    registration = figures.register(adapter)
    assert bert.wait_matched(subscription) == 1
    assert anna.fact() == "ready"
    heard: list[int] = []
    reading = threading.Thread(target=lambda: heard.extend(map(int, anna.stdout)), daemon=True)
    reading.start()
    last = 0

    def publish(count: int) -> None:
        nonlocal last
        for _ in range(count):
            adapter.publish(registration, figures.figure_1, b"x")
            last += 1
            time.sleep(0.005)

    publish(50)
    adapter.flush()
    eventually(lambda: pad.status()["delivered"] == 100)

    # When one is revoked while objects flow
    with caplog.at_level(logging.WARNING):
        revoke(certs, "anna")
        revoked = time.monotonic()
        while "connections of anna ended" not in caplog.text:
            publish(5)
            assert time.monotonic() - revoked < 60.0
    after = last
    publish(100)
    adapter.flush()

    # Expect it to receive nothing any more
    got = [bert.receive(subscription, 60.0).platform.sequence for _ in range(last)]
    # Expect it to be told why, once
    eventually(lambda: "our certificate is revoked" in anna.stderr())
    assert anna.stderr().count("lookup service") == anna.stderr().count("is away") == 1
    assert "Traceback" not in anna.stderr()
    anna.end(kill=True)
    reading.join(60.0)
    assert 50 <= max(heard) <= after
    # Expect the other one to have all, once, in order
    assert got == list(range(1, last + 1))
    # Expect its lease to have run out
    eventually(lambda: len(pad.status()["sessions"]) == 1)


def test_a_delegate_that_is_revoked_is_left_by_its_subscribers(
    federation: Any, figures: Any, certs: Path, often: None, eventually: Callable[..., Any]
) -> None:
    # Given a subscriber at a delegate that has a certificate of its own, and does not hear of new lists
    tls_federation(federation, certs / "server")
    with Authority.opened(certs) as authority:
        authority.issue("pad", "server", ["127.0.0.1"], now=time.time())
    (certs / "pad").rename(certs.parent / "pad")
    pad = federation.pad(config=as_party(federation, certs.parent / "pad"))
    adapter = federation.light(as_party(federation, certs.parent / "pad"))
    registration = figures.register(adapter)
    bert: SubscriberAdapter = federation.subscriber(as_party(federation, certs / "bert"))
    subscription = bert.register_subscriber(type_name=TYPE)
    assert bert.wait_matched(subscription) == 1
    adapter.publish(registration, figures.figure_1, b"before")
    assert bert.receive(subscription, 60.0).payload == b"before"
    # When it is revoked, expect the subscriber to leave it: at the next probe of a lookup service at the latest
    revoke(certs, "pad")
    eventually(lambda: not any(each["connected"] for each in bert.status()["sessions"]))
    # Expect nothing that it publishes to come any more
    adapter.publish(registration, figures.figure_1, b"after")
    eventually(lambda: pad.status()["published"] == 2)
    assert bert.receive(subscription, 0.3) is None


def test_certificates_of_all_are_renewed_while_objects_flow(
    federation: Any, figures: Any, certs: Path, often: None
) -> None:
    # Given lookup service, delegate, publisher and subscriber with TLS
    tls_federation(federation, certs / "server")
    federation.pad()
    bert: SubscriberAdapter = federation.subscriber(as_party(federation, certs / "bert"))
    subscription = bert.register_subscriber(type_name=TYPE)
    adapter = federation.light(as_party(federation, certs / "anna"))
    registration = figures.register(adapter)
    assert bert.wait_matched(subscription) == 1
    got: list[int] = []
    count = 0
    # When everybody's certificate is renewed, the old ones revoked never so little, and leases are renewed meanwhile
    for turn in range(3):
        if turn == 1:
            with Authority.opened(certs) as authority:
                for name in authority.latest():
                    authority.renew(name, now=time.time())
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            adapter.publish(registration, figures.figure_1, b"x")
            count += 1
            time.sleep(0.01)
    # Expect a subscriber who comes now to see the delegate's new certificate, and nothing to be lost
    late = federation.light(as_party(federation, certs / "bert"))
    assert late.connect_to_delegate("alpha", "rome")
    got = [bert.receive(subscription, 60.0).platform.sequence for _ in range(count)]
    assert got == list(range(1, count + 1))


def test_status_and_metrics_say_when_certificates_end(federation: Any, certs: Path) -> None:
    # Given a delegate and a lookup service with TLS
    tls_federation(federation, certs / "server")
    pad = federation.pad()
    with Authority.opened(certs) as authority:
        issued, own = authority.latest()["server"].certificate, authority.certificate
    for server in (pad, federation.lookups[0]):
        # Expect dates of certificate, authority and list in the status
        told = server.status()["tls"]
        assert (told["identity"], told["issuer"], told["names"]) == ("server", "test", ["server", "127.0.0.1"])
        assert told["until"] == issued.not_after
        assert 89 < told["days"] < 90.1
        assert not told["ends_soon"]
        assert [each["until"] for each in told["authorities"]] == [own.not_after]
        assert [(each["certificates"], each["until"]) for each in told["revocations"]] == [(0, own.not_after)]
        # Expect the same as metrics
        ends = {s.labels: s.value for s in server.samples() if s.name == "certificate_expires_seconds"}
        assert ends[(("of", "certificate"),)] == issued.not_after
        assert ends[(("of", "authority"),)] == ends[(("of", "revocations"),)] == own.not_after


def test_without_tls_there_is_nothing_to_tell(federation: Any) -> None:
    pad = federation.pad()
    assert pad.status()["tls"] == {}
    assert [s for s in pad.samples() if s.name == "certificate_expires_seconds"] == []


def test_a_revoked_server_does_not_start(certs: Path, serve: Callable[..., Any]) -> None:
    revoke(certs, "server")
    with pytest.raises(ConfigurationError, match=r"server/certificate\.pem: it is revoked"):
        serve(security(certs / "server"))


def test_mail_of_a_revoked_party_ends_also_over_a_restart(
    federation: Any, certs: Path, tmp_path: Path, often: None, eventually: Callable[..., Any]
) -> None:
    # Given a delegate that keeps e-mail subscriptions, with one of each of two parties, and sessions of both
    tls_federation(federation, certs / "server")
    section = msgspec.structs.replace(federation.config.pad, state=str(tmp_path / "mail.db"))
    config = msgspec.structs.replace(federation.config, pad=section)
    uids = {}
    with contextlib.ExitStack() as first:
        pad = DisseminationServer(config, TypeRepository(), characteristics=("alpha", "rome"))
        pad.start()
        first.callback(pad.stop, 0.0)
        for name in ("anna", "bert"):
            proxy = SubscriptionsProxy(
                pad.endpoints.ref(SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS), security(certs / name), timeout=10.0
            )
            uids[name] = owned_uid("subscription", name * 8)
            asked = SubscriptionRequest(uids[name], direct=False, recipients=(f"{name}@example.org",), secret=name * 8)
            [answer] = proxy.subscribe("", [asked], 600_000.0, [0.0])
            assert answer.granted is not None
            proxy.open(name, 600_000.0)
            proxy.close()
        sessions = pad.status()["sessions"]
    # When it has been started again, and one of the two is revoked
    again = federation.pad(config=config)
    assert len(sessions) == 2
    assert {each["uid"] for each in again.status()["subscriptions"]} == set(uids.values())
    revoke(certs, "anna")
    # Expect hers to have ended, long before its lease, and the other one to stand
    eventually(lambda: {each["uid"] for each in again.status()["subscriptions"]} == {uids["bert"]})


def test_the_session_and_the_registrations_of_a_revoked_party_end(
    federation: Any, figures: Any, certs: Path, often: None, eventually: Callable[..., Any]
) -> None:
    # Given a publisher and a subscriber of one certificate, with leases of hours, and another subscriber
    lease = LeaseSection(publisher=36_000.0, subscriber=36_000.0, lookup=2.0)
    tls_federation(federation, certs / "server")
    pad = federation.pad()
    hers = msgspec.structs.replace(as_party(federation, certs / "anna"), lease=lease)
    ref = pad.endpoints.ref(SUBSCRIPTIONS, SUBSCRIPTIONS_METHODS)
    for name in ("anna", "bert"):
        proxy = SubscriptionsProxy(ref, security(certs / name), timeout=60.0)
        proxy.open(name, 36_000.0)
        proxy.close()
    figures.register(federation.light(hers))
    assert len(pad.status()["publishers"]) == len(pad.status()["registrations"]) == 1
    # When it is revoked, expect what it had to end at once
    revoke(certs, "anna")
    eventually(lambda: [each["name"] for each in pad.status()["sessions"]] == ["bert"])
    eventually(lambda: pad.status()["publishers"] == pad.status()["registrations"] == [])


# -- what goes over the wire --------------------------------------------------------------------------------------

MARKER = b"999th-Recce-Marker"


class Tap:
    """Stands at `host`, forwards to the same port of 127.0.0.1, and writes down what passes either way."""

    def __init__(self, host: str, port: int) -> None:
        self.captured: list[bytes] = []
        self._port = port
        self._listener = socket.create_server((host, port))
        self._socks: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="tap")]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._socks += [near, far]
                for ends in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pump, args=ends, name="tap"))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):  # one of them has left
            while data := source.recv(65_536):
                self.captured.append(data)
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End all of it."""
        for sock in (self._listener, *self._socks):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(60.0)
        for sock in (self._listener, *self._socks):
            sock.close()


@pytest.mark.row("G-179", "D-23")
@pytest.mark.parametrize("encrypted", [True, False])
def test_a_capture_shows_nothing_of_an_object_with_tls(
    encrypted: bool, federation: Any, figures: Any, certs: Path
) -> None:
    # Given a delegate that is reached through somebody who writes down what passes
    if encrypted:
        tls_federation(federation, certs / "server")
    section = msgspec.structs.replace(federation.config.pad, advertise="127.0.0.2")
    pad = federation.pad(config=msgspec.structs.replace(federation.config, pad=section))
    tap = Tap("127.0.0.2", int(pad.address.rpartition(":")[2]))
    federation.stack.callback(tap.close)
    # When an object is published and received whose metadata and payload hold a marker, as does a predicate
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE, predicate=f"//publisher = '{MARKER.decode()}'")
    adapter = federation.light()
    metadata = figures.metadata(publisher=MARKER.decode())
    registration = adapter.register_publisher(adapter.connect_to_delegate("alpha", "rome"), figures.schema, metadata)
    assert subscriber.wait_matched(subscription) == 1
    adapter.publish(registration, metadata, MARKER * 10)
    assert subscriber.receive(subscription, 60.0).payload == MARKER * 10
    # Expect the marker in clear without TLS, and nothing of it, or of the type, with it
    seen = b"".join(tap.captured)
    assert len(seen) > 1000
    assert (MARKER in seen) is (TYPE.encode() in seen) is not encrypted


# -- bad files ----------------------------------------------------------------------------------------------------


def spoilt(certs: Path, what: str) -> Path:
    """A party's folder that is no good in one way."""
    now, at = time.time(), certs / "server"
    other = certs.parent / "other"
    match what:
        case "no folder":
            return certs / "nobody"
        case "no key" | "no list" | "no ca" | "no certificate":
            names = {"key": "key.pem", "list": "crl.pem", "ca": "ca.pem", "certificate": "certificate.pem"}
            (at / names[what[3:]]).unlink()
        case "a folder for a key":
            (at / "key.pem").unlink()
            (at / "key.pem").mkdir()
        case "rubbish certificate" | "rubbish ca" | "rubbish list" | "rubbish key":
            names = {"certificate": "certificate.pem", "ca": "ca.pem", "list": "crl.pem", "key": "key.pem"}
            (at / names[what[8:]]).write_bytes(bytes(range(256)))
        case "truncated certificate" | "truncated list":
            path = at / ("crl.pem" if "list" in what else "certificate.pem")
            head, *lines, tail = path.read_text().splitlines()
            path.write_text("\n".join([head, *lines[:2], tail]))
        case "key of another":
            (at / "key.pem").write_bytes((certs / "anna" / "key.pem").read_bytes())
        case "key with a passphrase":
            (at / "key.pem").write_bytes((other / "authority" / "key.pem").read_bytes())
        case "list of another authority":
            (at / "crl.pem").write_bytes((other / "authority" / "crl.pem").read_bytes())
        case "old list" | "list of tomorrow":
            made = now + (-20 if what == "old list" else 2) * 86_400
            Authority.init(certs.parent / "third", "third", now=made, days=10)
            with Authority.opened(certs.parent / "third") as authority:
                authority.issue("server", "server", now=made)
            return certs.parent / "third" / "server"
        case "huge list":
            os.truncate(at / "crl.pem", 33 << 20)
    return at


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("no folder", r"nobody/certificate\.pem: No such file"),
        ("no certificate", r"certificate\.pem: No such file"),
        ("no key", r"key\.pem: No such file"),
        ("no ca", r"ca\.pem: No such file"),
        ("no list", r"crl\.pem: No such file"),
        ("a folder for a key", r"key\.pem: Is a directory"),
        ("rubbish certificate", r"certificate\.pem: there is no certificate in it"),
        ("rubbish ca", r"ca\.pem: there is no certificate in it"),
        ("rubbish list", r"crl\.pem: there is no list of revoked certificates"),
        ("rubbish key", r"key\.pem.*Check that they are PEM"),
        ("truncated certificate", r"certificate\.pem: no good certificate: truncated"),
        ("truncated list", r"crl\.pem: no good list of revoked certificates.*: truncated"),
        ("key of another", r"key\.pem does not belong to certificate .*certificate\.pem"),
        ("key with a passphrase", r"key\.pem is encrypted, and nobody is there to be asked"),
        ("list of another authority", r"crl\.pem is of other, which is not in .*ca\.pem"),
        ("old list", r"crl\.pem was good until 20"),
        ("list of tomorrow", r"crl\.pem is good from 20.*clock"),
        ("huge list", r"crl\.pem: over 32 MiB"),
    ],
)
def test_files_that_are_no_good_are_told_at_the_start_in_one_line(what: str, told: str, certs: Path) -> None:
    # Given a party's folder that is no good; When somebody is about to use it, expect an error that says which and why
    Authority.init(certs.parent / "other", "other", now=time.time(), passphrase=b"x" * 8)
    folder = spoilt(certs, what)
    with pytest.raises(ConfigurationError, match=told) as caught:
        security(folder)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_a_key_that_everybody_may_read_is_told(certs: Path, caplog: pytest.LogCaptureFixture) -> None:
    (certs / "server" / "key.pem").chmod(0o644)
    security(certs / "server")
    assert "every user of this host may read TLS key" in caplog.text


def test_an_authority_without_a_list_is_named_to_both_ends(
    serve: Callable[..., Any],
    certs: Path,
    often: None,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
) -> None:
    # Given a server that believes two authorities, and has the list of one of them
    now, other = time.time(), certs.parent / "other"
    Authority.init(other, "other", now=now)
    with Authority.opened(other) as authority:
        authority.issue("carl", "client", now=now)
    ca = certs / "server" / "ca.pem"
    ca.write_text(ca.read_text() + (other / "carl" / "ca.pem").read_text())
    served = serve(security(certs / "server"))
    (other / "carl" / "ca.pem").write_bytes(ca.read_bytes())
    (other / "carl" / "crl.pem").write_bytes(
        (other / "carl" / "crl.pem").read_bytes() + (certs / "server" / "crl.pem").read_bytes()
    )
    # When a client of the other one comes, expect both to say TLS, and the server what is missing
    with pytest.raises(WireError, match="TLS: the other side does not know the authority"):
        ControlClient(served.ref, security(other / "carl"), timeout=5.0).call("echo", str, "x")
    eventually(lambda: "[tls] revoked has no list of its authority" in caplog.text)
    # Expect it to be served when the server has that list as well
    crl = certs / "server" / "crl.pem"
    crl.write_text(crl.read_text() + (other / "authority" / "crl.pem").read_text())

    def served_now() -> bool:
        try:
            return ControlClient(served.ref, security(other / "carl"), timeout=60.0).call("echo", str, "x") == "x"
        except WireError:
            return False

    eventually(served_now)
