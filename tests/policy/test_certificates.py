"""Who somebody is, as the certificate says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme

from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.access import ADMIN, Question
from jbi_pubsub.core.config import PolicySection, TlsSection
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.wire.tls import TlsIdentity
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SubscriptionsProxy

POLICY = """
[group]
analysts = ["alice", "@watch"]
watch = ["carol"]
[[access]]
user = "*"
action = "connect"
[[access]]
group = "analysts"
action = "subscribe"
type = "intel.*"
[[access]]
user = "alice"
action = "administer"
"""


@pytest.fixture
def issue(tmp_path: Path) -> Callable[[str], TlsIdentity]:
    """issue("alice") is her certificate, of the authority that the delegate trusts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def make(name: str) -> TlsIdentity:
        issued = authority.issue_cert(name)
        issued.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / f"{name}.pem"))
        return TlsIdentity(tmp_path / f"{name}.pem", tmp_path / f"{name}.pem", tmp_path / "ca.pem", ("*",))

    return make


@pytest.fixture
def pad(fixtures: Any, tmp_path: Path, issue: Callable[[str], TlsIdentity]) -> Iterator[DisseminationServer]:
    """A delegate with TLS and that policy."""
    (tmp_path / "policy.toml").write_text(POLICY)
    server = issue("127.0.0.1")
    tls = TlsSection(certificate=str(server.certificate), key=str(server.key), ca=str(server.ca))
    policy = PolicySection(file=str(tmp_path / "policy.toml"))
    config = msgspec.structs.replace(fixtures.test_config(), tls=tls, policy=policy)
    with ExitStack() as stack:
        made = DisseminationServer(config, TypeRepository(), characteristics=("alpha", "rome"))
        stack.callback(made.stop, 0.0)
        made.start()
        yield made


@pytest.mark.processes
@pytest.mark.parametrize(("user", "allowed"), [("alice", True), ("carol", True), ("bob", False)])
def test_the_certificate_decides_who_subscribes(
    pad: DisseminationServer, issue: Callable[[str], TlsIdentity], user: str, allowed: bool
) -> None:
    proxy = SubscriptionsProxy(pad.endpoints.ref(SUBSCRIPTIONS, ()), Security(issue(user)), timeout=60.0)
    wanted = InformationType(name="intel.Report", version="1.0").rep()
    try:
        # When somebody calls himself alice, whoever he is
        opened = proxy.open("alice", 60.0)
        (answer,) = proxy.subscribe(opened.uid, [SubscriptionRequest("s", (wanted,))], 60.0, [0.0])
        assert (answer.granted is not None) is allowed
        if answer.error is not None:
            assert answer.error.message == "bob may not subscribe intel.Report 1.0"
    finally:
        proxy.close()


@pytest.mark.processes
def test_an_administrator_asks_a_running_server_and_nobody_else(
    pad: DisseminationServer, issue: Callable[[str], TlsIdentity]
) -> None:
    question = Question("subscribe", "carol", type="intel.Report")
    for user in ("alice", "bob"):
        client = ControlClient(pad.endpoints.ref(ADMIN, ()), Security(issue(user)), timeout=60.0)
        try:
            if user == "alice":
                found = client.call("explain", dict[str, Any], question)
                assert (found["allowed"], found["rule"]) == (True, "policy.toml:8")
                assert found["groups"] == ["analysts", "watch"]
            else:
                with pytest.raises(AccessDeniedError, match="bob may not administer"):
                    client.call("explain", dict[str, Any], question)
        finally:
            client.close()
