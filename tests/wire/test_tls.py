"""Mutual TLS on both planes, pinned certificates, and no listening in clear beyond loopback (decision 10)."""

from __future__ import annotations

import gc
import logging
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import certificates
import msgspec
import pytest
import trustme
from cryptography import x509 as reference
from cryptography.x509.oid import NameOID

from jbi_pubsub import Config
from jbi_pubsub.core.config import LookupSection, TlsSection
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, WireError
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import CONTROL, DATA, Endpoint, Security
from jbi_pubsub.core.wire.ref import ServiceRef
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.core.wire.tls import TlsIdentity, is_named
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.trust.signature import identity_of

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class Authority:
    """A certificate authority that hands out identities as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(folder / "ca.pem"))

    def identity(self, *names: str, **options: Any) -> TlsIdentity:
        """Somebody's certificate (for these names), key, and this authority's certificate."""
        issued = self._ca.issue_cert(*names, **options)
        name = names[0].replace("/", "_") if names else "nameless"
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        key.chmod(0o600)
        return TlsIdentity(certificate, key, self._folder / "ca.pem")


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    """The authority that everybody here believes."""
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """Another one."""
    return Authority(tmp_path / "theirs")


def test_both_planes_work_over_mutual_tls_and_know_the_caller(serve: Callable[..., Any], ours: Authority) -> None:
    # Given a server and a client with certificates of one authority
    served = serve(Security(ours.identity("server.example")))
    security = Security(ours.identity("client.example"))

    # Expect calls to be answered, and the caller's identity to be that of its certificate
    client = ControlClient(served.ref, security)
    assert client.call("echo", str, "hello") == "hello"
    client.close()
    assert [caller.identity for caller in served.echo.callers] == ["client.example"]

    # Expect the data plane to carry bytes both ways
    with dial(served.ref, DATA, security, 5.0) as sock:
        sock.sendall(b"there and back")
        assert sock.recv(100) == b"there and back"


def test_nobody_may_show_another_certificate_on_a_connection_that_stands(ours: Authority) -> None:
    identity = ours.identity("client.example")
    for context in (identity.server_context(), identity.client_context()):
        assert context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize("kind", ["other", "folder", "registered"])
def test_a_caller_is_known_by_the_first_of_its_names_that_is_a_name(
    serve: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    """As Windows authorities issue them, with another kind of name first. Objects are signed by the same one."""
    other: Any = {
        "other": reference.OtherName(reference.ObjectIdentifier("1.3.6.1.4.1.311.20.2.3"), b"\x0c\x05alice"),
        "folder": reference.DirectoryName(reference.Name([reference.NameAttribute(NameOID.COMMON_NAME, "alice")])),
        "registered": reference.RegisteredID(reference.ObjectIdentifier("1.2.3.4")),
    }[kind]
    authority = certificates.Authority(tmp_path / "authority")
    section = authority.issue("bob", names=(other, reference.RFC822Name("bob@example.org")))
    served = serve(Security(authority.issue("server").identity()))
    client = ControlClient(served.ref, Security(section.identity()))
    assert client.call("echo", str, "hello") == "hello"
    client.close()
    assert [caller.identity for caller in served.echo.callers] == ["bob@example.org"]
    [leaf, *_] = reference.load_pem_x509_certificates(Path(section.certificate).read_bytes())
    assert identity_of(leaf) == "bob@example.org"


@pytest.mark.parametrize("plane", [CONTROL, DATA])
def test_a_server_of_another_authority_is_refused(
    plane: bytes, serve: Callable[..., Any], ours: Authority, theirs: Authority
) -> None:
    served = serve(Security(theirs.identity("server.example")))
    with pytest.raises(WireError, match="certificate"):
        dial(served.ref, plane, Security(ours.identity("client.example")), 5.0)


@pytest.mark.parametrize("plane", ["control", "data"])
@pytest.mark.parametrize("who", ["other authority", "in clear"])
def test_a_client_without_a_certificate_of_ours_is_not_served(
    plane: str, who: str, serve: Callable[..., Any], ours: Authority, theirs: Authority
) -> None:
    # Given a server, and a client that believes the server but whose certificate is of another authority, or none
    served = serve(Security(ours.identity("server.example")))
    intruder = theirs.identity("client.example")
    mixed = TlsIdentity(intruder.certificate, intruder.key, ours.identity("unused.example").ca)
    security = Security() if who == "in clear" else Security(mixed)

    def use() -> None:
        if plane == "control":
            ControlClient(served.ref, security, timeout=60.0).call("echo", str, "hello")
            return
        with dial(served.ref, DATA, security, 20.0) as sock:
            sock.settimeout(20.0)
            sock.sendall(b"there and back")
            if sock.recv(100) != b"there and back":
                raise WireError("closed")

    # When it calls, or sends data
    # Expect a refusal, at the latest with the first answer
    with pytest.raises((WireError, OSError)):
        use()
    assert served.echo.callers == []

    # Expect that the server goes on serving
    client = ControlClient(served.ref, Security(ours.identity("client.example")))
    assert client.call("echo", str, "hello") == "hello"
    client.close()


@pytest.mark.parametrize("plane", [CONTROL, DATA])
def test_another_certificate_than_the_pinned_one_is_refused(
    plane: bytes, serve: Callable[..., Any], ours: Authority
) -> None:
    # Given a reference that promises one certificate, and a server of the same authority that shows another
    promised, shown = ours.identity("server.example"), ours.identity("impostor.example")
    served = serve(Security(shown))
    pinned = msgspec.structs.replace(served.ref, certificate=promised.fingerprint())

    # Expect the client to refuse
    security = Security(ours.identity("client.example"))
    with pytest.raises(ProtocolError, match="certificate"):
        dial(pinned, plane, security, 5.0)
    dial(served.ref, plane, security, 5.0).close()


@pytest.mark.processes
@pytest.mark.filterwarnings("error")
def test_a_connection_that_is_reset_before_the_handshake_is_closed_and_told(
    ours: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython's `wrap_socket` of a socket that was reset meanwhile raises, and nobody has that socket."""
    # Given a server that resets a connection as soon as it has it
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reset(_sock: socket.socket, _idle: int) -> None:  # between connecting and the handshake
            taken, _ = server.accept()
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            taken.close()

        monkeypatch.setattr("jbi_pubsub.core.wire.dial.tune", reset)
        ref = ServiceRef("", "echo", (f"127.0.0.1:{server.getsockname()[1]}",))
        # Expect our error, and no socket that is left open
        with pytest.raises(WireError, match="reset"):
            dial(ref, DATA, Security(ours.identity("client.example")), 10.0)
        gc.collect()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "host.example"])
def test_listening_beyond_loopback_without_tls_is_refused(host: str) -> None:
    # Expect a refusal that says how to mend it, before any socket is bound
    with pytest.raises(ConfigurationError, match="TLS"):
        Endpoint(host, 0, name="x", security=Security(), control=lambda *_: None, data=lambda *_: None)


@pytest.mark.parametrize("host", ["127.evil.example", "localhost.evil.example"])
def test_a_name_that_begins_like_loopback_is_not_loopback(host: str) -> None:
    # Expect a refusal as for any other name: whoever runs that domain says where it leads
    with pytest.raises(ConfigurationError, match="TLS"):
        Security().check(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_needs_no_tls(host: str) -> None:
    Security().check(host)


def test_listening_beyond_loopback_is_allowed_with_tls_or_insecure(ours: Authority) -> None:
    for security in (Security(ours.identity("server.example")), Security(insecure=True)):
        security.check("0.0.0.0")


@pytest.mark.parametrize("given", [{"certificate": "a"}, {"certificate": "a", "key": "b"}, {"ca": "c"}])
def test_some_but_not_all_tls_files_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="certificate, key and ca"):
        Config(tls=TlsSection(**given)).security()


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    identity = TlsIdentity(tmp_path / "x.pem", tmp_path / "x.pem", tmp_path / "missing.pem")
    with pytest.raises(ConfigurationError, match=r"x\.pem"):
        identity.server_context()


@pytest.mark.parametrize("missing", ["certificate", "key", "ca"])
def test_a_file_that_is_not_there_is_named_at_once(missing: str, ours: Authority, tmp_path: Path) -> None:
    # Given files of ours but for one; When a party is about to listen or connect; Expect an error that names that one
    identity = ours.identity("ours")
    files = {"certificate": str(identity.certificate), "key": str(identity.key), "ca": str(identity.ca)}
    config = Config(tls=msgspec.convert(files | {missing: str(tmp_path / "nowhere.pem")}, TlsSection))
    with pytest.raises(ConfigurationError, match=r"nowhere\.pem: No such file") as caught:
        JoinManager(config, name="party")
    assert all(path not in str(caught.value) for name, path in files.items() if name != missing)


def test_a_whole_federation_works_over_tls(federation: Any, figures: Any, ours: Authority) -> None:
    # Given lookup service, delegate, publisher and subscriber that have only TLS in common
    me = ours.identity("party.example", "127.0.0.1")
    tls = TlsSection(certificate=str(me.certificate), key=str(me.key), ca=str(me.ca))
    alone: LookupSection = msgspec.structs.replace(federation.config.lookup, locators=())
    federation.config = msgspec.structs.replace(federation.config, tls=tls, lookup=alone)
    federation.lookups.clear()
    federation.lookup()
    federation.pad()
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    adapter = federation.light()
    registration = figures.register(adapter)
    assert subscriber.wait_matched(subscription) == 1

    # When a megabyte and a small object are published
    payloads = [bytes(range(256)) * 4096, b"small"]
    for payload in payloads:
        adapter.publish(registration, figures.figure_1, payload)

    # Expect both, unchanged
    assert [subscriber.receive(subscription).payload for _ in payloads] == payloads


# -- who was refused, and why -------------------------------------------------------------------------------------

NOW = datetime.now(UTC)
PAST = {"not_before": NOW - timedelta(days=400), "not_after": NOW - timedelta(days=1)}
FUTURE = {"not_before": NOW + timedelta(days=1), "not_after": NOW + timedelta(days=400)}


def refusals(served: Any, security: Security, eventually: Callable[..., Any], log: Any) -> tuple[str, str, list[str]]:
    """What the client is told on each plane, and what the server logs."""
    with log.at_level(logging.WARNING), pytest.raises(WireError) as control:
        ControlClient(served.ref, security, timeout=5.0).call("echo", str, "hello")
    with pytest.raises(WireError) as data, closing(dial(served.ref, DATA, security, 5.0)) as sock:
        greet(StreamSocket(sock), Hello("token"))
    eventually(lambda: len(served.endpoint.connections) == 0)
    lines = [r.getMessage() for r in log.records if ": refused " in r.getMessage()]
    return str(control.value), str(data.value), lines


@pytest.mark.parametrize(
    ("who", "told", "logged"),
    [
        ("expired", "our certificate has expired", "certificate has expired"),
        ("not yet", "TLS", "not yet valid"),
        ("other authority", "does not know the authority of our certificate", "issuer"),
        ("none", "asks for a certificate", "shows no certificate"),
        ("in clear", "speaks TLS, and we do not", "does not speak TLS"),
    ],
)
def test_a_client_that_is_refused_is_told_why_and_the_server_logs_it_in_one_line(
    who: str,
    told: str,
    logged: str,
    serve: Callable[..., Any],
    ours: Authority,
    theirs: Authority,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given a server with TLS, and a client that has no certificate that is good there
    served = serve(Security(ours.identity("server.example")))
    if who in ("expired", "not yet"):
        security = Security(ours.identity("client.example", **(PAST if who == "expired" else FUTURE)))
    elif who == "other authority":
        intruder = theirs.identity("client.example")
        security = Security(TlsIdentity(intruder.certificate, intruder.key, ours.identity("unused.example").ca))
    elif who == "none":
        security = Security(ours.identity("client.example"))
        monkeypatch.setattr("ssl.SSLContext.load_cert_chain", lambda *_, **__: None)
    else:
        security = Security()
    # When it calls twice, and opens data connections; Expect both planes to say TLS, and why
    control, data, lines = refusals(served, security, eventually, caplog)
    assert told in control
    assert told in data
    assert "TLS" in control
    # Expect the server to log who and why, once
    assert len(lines) == 1
    assert "127.0.0.1" in lines[0]
    assert "TLS" in lines[0]
    assert logged in lines[0]


def test_a_client_that_speaks_tls_to_a_server_that_does_not_is_told_and_logged(
    serve: Callable[..., Any], ours: Authority, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    served = serve(Security())
    control, data, lines = refusals(served, Security(ours.identity("client.example")), eventually, caplog)
    assert control.count("does not speak TLS") == data.count("does not speak TLS") == 1
    assert len(lines) == 1
    assert "speaks TLS, and we do not" in lines[0]


@pytest.mark.parametrize(("dates", "why"), [(PAST, "expired"), (FUTURE, "not yet valid")])
def test_the_certificate_of_a_server_is_refused_by_its_dates(
    dates: dict[str, Any],
    why: str,
    serve: Callable[..., Any],
    ours: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Callable[..., Any],
) -> None:
    # Given a server whose certificate has run out since it was started
    monkeypatch.setattr(TlsIdentity, "check_dates", lambda *_: None)
    served = serve(Security(ours.identity("server.example", **dates)))
    # When it is called, expect the client to say why it refuses, and the server as well
    control, _, lines = refusals(served, Security(ours.identity("client.example")), eventually, caplog)
    assert "TLS" in control
    assert why in control
    assert len(lines) == 1
    assert "our certificate" in lines[0]


@pytest.mark.parametrize(("dates", "why"), [(PAST, "expired"), (FUTURE, "not yet valid")])
def test_a_server_whose_own_certificate_is_no_good_now_does_not_start(
    dates: dict[str, Any], why: str, serve: Callable[..., Any], ours: Authority
) -> None:
    with pytest.raises(ConfigurationError, match=rf"server\.example\.pem.*{why}"):
        serve(Security(ours.identity("server.example", **dates)))


@pytest.mark.parametrize(("days", "told"), [(29, True), (31, False)])
def test_a_server_says_that_its_certificate_ends_soon(
    days: int, told: bool, serve: Callable[..., Any], ours: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        serve(Security(ours.identity("server.example", not_after=NOW + timedelta(days=days))))
    assert any("is valid until" in record.getMessage() for record in caplog.records) == told


def test_refusals_do_not_fill_the_log(
    serve: Callable[..., Any], ours: Authority, caplog: pytest.LogCaptureFixture, eventually: Callable[..., Any]
) -> None:
    # Given a server with TLS; When strangers without come thirty times
    served = serve(Security(ours.identity("server.example")))
    with caplog.at_level(logging.WARNING):
        for number in range(30):
            with socket.create_connection(
                ("127.0.0.1", served.endpoint.port), 5.0, source_address=(f"127.0.0.{number % 25 + 1}", 0)
            ) as sock:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
                sock.recv(100)
        eventually(lambda: len(served.endpoint.connections) == 0)
    # Expect no more lines than a minute may have
    assert len(caplog.records) == 20


# -- whose certificate --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "common", "server_names", "good"),
    [
        (("127.0.0.1",), None, (), True),
        (("127.0.0.0/8",), None, (), False),
        (("127.0.0.2",), None, (), False),
        (("server.example",), None, (), False),
        (("server.example",), None, ("server.example",), True),
        (("SERVER.example",), None, ("server.EXAMPLE",), True),
        (("server.example",), None, ("*.example",), True),
        (("deep.server.example",), None, ("*.example",), False),
        (("client.example",), None, ("server.example",), False),
        ((), "server", (), False),
        ((), "server", ("server",), True),
        ((), "127.0.0.1", (), False),
        (("client.example",), None, ("*",), True),
    ],
)
@pytest.mark.parametrize("plane", [CONTROL, DATA])
def test_a_server_found_by_its_address_shows_a_certificate_for_that_or_a_name_that_is_configured(
    names: tuple[str, ...],
    common: str | None,
    server_names: tuple[str, ...],
    good: bool,
    plane: bytes,
    serve: Callable[..., Any],
    ours: Authority,
) -> None:
    # Given a server of our authority with such a certificate, known by its address alone
    served = serve(Security(ours.identity(*names, common_name=common)))
    found = msgspec.structs.replace(served.ref, certificate="")
    me = ours.identity("client.example")
    security = Security(TlsIdentity(me.certificate, me.key, me.ca, server_names))
    # When a client connects, expect it to go on if that certificate is one for the address, or for a configured name
    if good:
        dial(found, plane, security, 5.0).close()
        return
    with pytest.raises(ProtocolError, match=r"shows a certificate for .*, not for 127\.0\.0\.1.*server_names"):
        dial(found, plane, security, 5.0)
    # Expect the one that a lookup service lists to be good whatever its name
    dial(served.ref, plane, security, 5.0).close()


@pytest.mark.parametrize(
    ("name", "host", "good"),
    [
        ("lookup.example.org", "lookup.example.org", True),
        ("lookup.example.org", "LOOKUP.example.org.", True),
        ("*.example.org", "lookup.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "a.lookup.example.org", False),
        ("l*.example.org", "lookup.example.org", False),
        ("*", "localhost", False),
        ("*.", "localhost", False),
        ("lookup.example.org", "lookup.example.org.evil.example", False),
    ],
)
def test_names_are_compared_as_rfc_9525_says(name: str, host: str, good: bool) -> None:
    assert is_named({"subjectAltName": (("DNS", name),)}, host) == good
    assert not is_named({"subject": ((("commonName", name),),)}, host)


def test_addresses_are_compared_as_addresses() -> None:
    certificate = {"subjectAltName": (("IP Address", "2001:DB8:0:0:0:0:0:1"), ("DNS", "192.0.2.1"))}
    assert is_named(certificate, "2001:db8::1")
    assert not is_named(certificate, "192.0.2.1")
    assert not is_named({}, "2001:db8::1")
