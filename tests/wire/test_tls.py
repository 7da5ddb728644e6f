"""Mutual TLS on both planes, pinned certificates, and no listening in clear beyond loopback (decision 10)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from jbi_pubsub import Config
from jbi_pubsub.core.config import LookupSection, TlsSection
from jbi_pubsub.core.errors import ConfigurationError, ProtocolError, WireError
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import CONTROL, DATA, Endpoint, Security, dial
from jbi_pubsub.core.wire.tls import TlsIdentity
from jbi_pubsub.lookup.client.join import JoinManager

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class Authority:
    """A certificate authority that hands out identities as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(folder / "ca.pem"))

    def identity(self, name: str) -> TlsIdentity:
        """Somebody's certificate, key, and this authority's certificate."""
        issued = self._ca.issue_cert(name)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
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
            ControlClient(served.ref, security, timeout=20.0).call("echo", str, "hello")
            return
        with dial(served.ref, DATA, security, 2.0) as sock:
            sock.settimeout(2.0)
            sock.sendall(b"there and back")
            if not sock.recv(100):
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
    me = ours.identity("party.example")
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
