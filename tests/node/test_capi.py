"""A node behind the Common API: the conformance script against the process, users by password, and its end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.capi import ConnectionManager, PermissionDeniedException
from jbi_pubsub.core.config import Config, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.node.admin import NodeProxy
from jbi_pubsub.node.service import NodeService
from jbi_pubsub.policy import users
from jbi_pubsub.policy.users import Account, write_accounts

from .conftest import of

SCRIPT = Path(__file__).parent.parent / "capi" / "conformance.py"
DESCRIPTOR = """<connectionDescriptor xmlns="http://gdc4s.com/oim/gemini">
<locator>{}</locator><group>{}</group><name>node</name><location>tent</location></connectionDescriptor>"""
CREDENTIALS = (
    """<credentials xmlns="http://gdc4s.com/oim/gemini"><user>{}</user><password>{}</password></credentials>"""
)
RUN = """
import runpy, sys
sys.argv = [{script!r}, "jbi_pubsub.capi.ConnectionManager", {descriptor!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


@pytest.mark.row("G-01")
@pytest.mark.processes
def test_a_node_is_all_that_the_conformance_script_needs(start: Callable[..., Any], world: str, tmp_path: Path) -> None:
    # Given one process: a node with its archive
    flags = ("--no-multicast", "--set", "lookup.port=0", "--set", "archive.reserve=0", "--set", "archive.workers=0")
    ready = start(*flags, "node", "start", "--folder", str(tmp_path / "n"), "--name", "tent", "--json").fact()
    descriptor = tmp_path / "descriptor.xml"
    descriptor.write_text(DESCRIPTOR.format(ready["lookup"], world))
    # When the script runs unchanged, expect all as promised
    client = start(script=RUN.format(script=str(SCRIPT), descriptor=str(descriptor)))
    said, errors = client.communicate(120.0)
    assert client.returncode == 0, errors
    assert len(said.splitlines()) >= 25


RULES = """
[[access]]
allow = true
user = ["alice", "root"]
action = ["connect", "publish", "subscribe", "status"]

[[access]]
allow = true
user = "root"
action = "administer"
"""


class Told:
    def __init__(self) -> None:
        self.all: list[str] = []

    def connectionLost(self, reason: str) -> None:  # noqa: N802  # the API's name
        self.all.append(reason)

    def connectionRestored(self) -> None:  # noqa: N802  # the API's name
        self.all.append("")


@pytest.mark.row("G-77")
def test_who_connects_by_password_and_is_told_when_the_node_is_shut_down(
    settings: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a node with rules and users
    monkeypatch.setattr(users, "COST", 4)
    (tmp_path / "policy.toml").write_text(RULES)
    write_accounts(tmp_path / "users", {name: Account.of(name, name) for name in ("alice", "root")})
    policy = PolicySection(file=str(tmp_path / "policy.toml"), users=str(tmp_path / "users"))
    ends: list[float] = []
    service = NodeService(msgspec.structs.replace(settings, policy=policy), ended=ends.append)
    service.start()
    manager = ConnectionManager(of(service))
    # When somebody comes with another's name, expect a refusal
    stranger = manager.createConnection("stranger", "")
    stranger.authenticate(CREDENTIALS.format("alice", "wrong"))
    with pytest.raises(PermissionDeniedException):
        stranger.connect()
    # and alice with her password to publish and get
    connection, told = manager.createConnection("client", ""), Told()
    connection.authenticate(CREDENTIALS.format("alice", "alice"))
    connection.connect()
    connection.setConnectionCallback(told)
    publisher, subscriber = (
        connection.createPublisherSequence("t", "1.0"), connection.createSubscriberSequence("t", "1.0")
    )  # fmt: skip
    publisher.setValidationAttribute(True, False)
    for sequence in (publisher, subscriber):
        sequence.activateSequence()
    published = publisher.publishInfoObject(connection.createInfoObject("t", "1.0", b"", "<a/>"))
    assert subscriber.getNext(20_000).getInfoObjectID() == published
    # When an administrator shuts the node down, expect her told; she herself may not
    for name, allowed in (("alice", False), ("root", True)):
        client = msgspec.structs.replace(
            of(service), client=msgspec.structs.replace(settings.client, user=name, password=name)
        )
        proxy = NodeProxy(service.delegate.addresses[0], client.security())
        if allowed:
            proxy.shutdown(0.5)
        else:
            with pytest.raises(AccessDeniedError):
                proxy.shutdown(0.5)
        proxy.close()
    assert ends == [0.5]
    service.stop(*ends)
    eventually(lambda: told.all[:1] and told.all[0])
    connection.destroy()
    stranger.destroy()
