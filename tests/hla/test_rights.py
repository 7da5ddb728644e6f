"""Servers of federations do nothing for who has no right, and tell nothing of what somebody may not see."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.file import described
from jbi_pubsub.core.access import AllowAll, Decision, Question
from jbi_pubsub.core.config import ClientSection, Config, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError, ProtocolError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import CONTROL, DATA, Endpoint, Security
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.hla.exceptions import FederationExecutionDoesNotExist, NotConnected
from jbi_pubsub.hla.link import RtiLink
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.policy.settings import access_of
from jbi_pubsub.policy.users import Account, write_accounts
from tests.hla.parties import Federate

CALLS: dict[str, tuple[Any, ...]] = {
    "rti.create": ("Sea", [Module("sea.xml", b"<objectModel/>")]),
    "rti.destroy": ("Air",),
    "rti.join": ("Air", [], []),
    "rti.join_over_link": ("Air", [], [], True),
    "rti.modules": ("Air",),
    "rti.model": ("Air",),
    "status.status": (),
    "admin.explain": (Question("connect", "alice"),),
}
BRIDGE = """poll = 0.2
[side.here]
kind = "hla"
federation = "Air"
[side.there]
kind = "hla"
federation = "Sea"
[[direction]]
from = "here"
to = "there"
"""


class DenyAll(AllowAll):
    """Nobody may do anything."""

    def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's parameters
        return Decision(False)


class SomeNames(AllowAll):
    """Everybody may do everything with what begins so."""

    def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's parameters
        return Decision(subject.name.startswith("Air"))


class NoAdministration(AllowAll):
    """Everybody may do everything but administer."""

    def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's parameters
        return Decision(action != "administer")


@pytest.fixture
def served(federation: Any, air: bytes) -> RtiServer:
    """An RTI that denies everything, with a federation."""
    server = RtiServer(federation.config, access=DenyAll())
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])
    return server


@pytest.fixture
def endpoints(federation: Any, served: RtiServer, tmp_path: Path) -> dict[str, Endpoint]:
    """Of an RTI, a link to one and a bridge, all of which deny everything."""
    link = RtiLink(federation.config, federation.config, "Air", "Air here", access=DenyAll())
    federation.stack.callback(link.stop)
    link.start()
    nobody = tmp_path / "policy.toml"
    nobody.write_text('[[access]]\naction = "publish"\n')
    config = msgspec.structs.replace(federation.config, policy=PolicySection(file=str(nobody)))
    (tmp_path / "bridge.toml").write_text(BRIDGE)
    bridge: Any = described(tmp_path / "bridge.toml").opened(config)
    federation.stack.callback(bridge.close)
    return {
        "rti": served.front.endpoint,
        "link": link.front.endpoint,
        "bridge": bridge._presence._sides[0].front.endpoint,
    }


@pytest.mark.parametrize("kind", ["rti", "link", "bridge"])
def test_who_may_nothing_gets_nothing(endpoints: dict[str, Endpoint], served: RtiServer, kind: str) -> None:
    endpoint = endpoints[kind]
    exports = endpoint._handlers[CONTROL].__self__._exports  # type: ignore[attr-defined]  # of its control server
    calls = {
        f"{name}.{method}"
        for name, target in exports.items()
        for method, function in inspect.getmembers(type(target))
        if getattr(function, "__exported__", False) and name != "login"
    }
    assert calls == {each for each in CALLS if kind != "bridge" or not each.startswith("rti.")}
    for each in sorted(calls):
        name, method = each.split(".")
        client = ControlClient(ServiceRef("", name, (endpoint.address,)), Security(), timeout=20.0)
        with pytest.raises(AccessDeniedError):
            client.call(method, Any, *CALLS[each])
        client.close()
    assert [each["name"] for each in served.status()["federations"]] == ["Air"]
    # A token that nobody was given opens nothing
    sock = dial(ServiceRef("", "", (endpoint.address,)), DATA, Security(), 20.0)
    with sock, pytest.raises(ProtocolError):
        greet(StreamSocket(sock), Hello.of("0" * 32))


def test_federations_that_somebody_may_not_join_are_not_named(
    federation: Any, air: bytes, eventually: Callable[..., Any]
) -> None:
    # Given an RTI with two federations, and a link to it, at which everybody may join those of some names
    server = RtiServer(federation.config, access=SomeNames())
    federation.stack.callback(server.stop)
    server.start()
    for name in ("Air", "Secret"):
        server.create(name, [Module("air.xml", air)])
    link = RtiLink(federation.config, federation.config, "Secret", "Secret too", access=SomeNames())
    federation.stack.callback(link.stop)
    link.start()
    eventually(link.is_there)
    for address in (server.address, link.address):
        client = ControlClient(ServiceRef("", "rti", (address,)), Security(), timeout=20.0)
        for method, *modules in (("join", [], []), ("modules",)):
            # When somebody asks for one that does not exist
            with pytest.raises(FederationExecutionDoesNotExist) as refused:
                client.call(method, Any, "Air 2" + "x" * 10_000, *modules)
            # Expect no word of the other one
            assert not re.search("Secret", str(refused.value))
            assert len(str(refused.value)) < 1_000
            # nor of whether it exists
            for name in ("Secret", "Nothing"):
                with pytest.raises(AccessDeniedError):
                    client.call(method, Any, name, *modules)
        client.close()


def test_who_may_not_administer_a_federation_changes_nothing_of_others(federation: Any, air: bytes) -> None:
    server = RtiServer(federation.config, access=AllowAll())
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])
    server.front.access = NoAdministration()
    flight, monitor = Federate(federation.config, "flight"), Federate(federation.config, "monitor")
    for each in (flight, monitor):
        federation.stack.callback(each.rti.disconnect)
    assert "may not administer this federation" in Resigning(monitor).refusal(flight)
    assert flight.rti.query_logical_time() == 0.0


class Resigning:
    """A monitor that has others resigned."""

    def __init__(self, monitor: Federate) -> None:
        self.monitor, self.rti, names = monitor, monitor.rti, "HLAmanager.HLAfederate.{}".format
        self.report = self.rti.get_interaction_class_handle(names("HLAreport.HLAreportMOMexception"))
        self.resign = self.rti.get_interaction_class_handle(names("HLAservice.HLAresignFederationExecution"))
        self.rti.subscribe_interaction_class(self.report)
        self.rti.publish_interaction_class(self.resign)

    def ask(self, other: Federate) -> None:
        """Have another one resigned."""
        fom = self.rti.fom
        who, action = (self.rti.get_parameter_handle(self.resign, each) for each in ("HLAfederate", "HLAresignAction"))
        handle = fom.codec("HLAhandle").encode(other.handle.to_bytes(8, "big"))
        self.rti.send_interaction(self.resign, {who: handle, action: fom.codec("HLAresignAction").encode("NoAction")})

    def refusal(self, other: Federate) -> str:
        """Why another one is not resigned."""
        self.ask(other)
        values = dict(self.monitor.until("receive_interaction")[2])
        why = values[self.rti.get_parameter_handle(self.report, "HLAexception")]
        return str(self.rti.fom.codec("HLAunicodeString").decode(why))


class Ruled:
    """Servers of a federation with rules of access, and users with passwords."""

    def __init__(self, federation: Any, folder: Path, rules: str, *users: str) -> None:
        self.federation, self.users = federation, folder / "users"
        self.policy = folder / "policy.toml"
        self.policy.write_text(rules)
        self.known = {each: Account.of(each, each) for each in users}
        self.accounts(*users)
        section = PolicySection(file=str(self.policy), users=str(self.users))
        self.settings: Config = msgspec.structs.replace(federation.config, policy=section)

    def served(self, air: bytes) -> RtiServer:
        """An RTI that has them, with the federation Air."""
        return served_by(self.federation, air, self.settings)

    def accounts(self, *users: str) -> None:
        """The users there are, whose passwords are their names."""
        write_accounts(self.users, {each: self.known[each] for each in users})

    def config(self, user: str) -> Config:
        """The settings of a user."""
        found: Config = msgspec.structs.replace(self.federation.config, client=ClientSection(user=user, password=user))
        return found

    def join(self, user: str, name: str = "Air") -> Federate:
        """A federate of a user, in a federation of that name."""
        one = Federate(self.config(user), user, name)
        self.federation.stack.callback(one.rti.disconnect)
        return one


def served_by(federation: Any, air: bytes, settings: Config) -> RtiServer:
    """An RTI of such settings, with the federation Air."""
    server = RtiServer(settings, access=access_of(settings, "rti"))
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])
    return server


def test_a_user_with_a_password_who_may_administer_a_federation_changes_others(
    federation: Any, air: bytes, tmp_path: Path
) -> None:
    # Given one who may do everything, and one who may join
    rules = '[[access]]\nuser = "root"\n[[access]]\nuser = "alice"\naction = "connect"\n'
    ruled = Ruled(federation, tmp_path, rules, "root", "alice")
    ruled.served(air)
    root, alice = ruled.join("root"), ruled.join("alice")
    # When each has the other one resigned; Expect it to be done for the first alone
    assert "may not administer this federation" in Resigning(alice).refusal(root)
    Resigning(root).ask(alice)
    alice.until("connection_lost")
    assert root.rti.query_logical_time() == 0.0


@pytest.mark.parametrize("what", ["rules", "account"])
def test_a_federate_whose_user_may_not_connect_any_more_is_resigned_and_told(
    federation: Any, air: bytes, tmp_path: Path, eventually: Callable[..., Any], what: str
) -> None:
    # Given two who may join, one of whom has an aircraft
    rules = '[[access]]\nuser = ["root", "alice"]\naction = ["connect", "status"]\n'
    ruled = Ruled(federation, tmp_path, rules, "root", "alice")
    server = ruled.served(air)
    root, alice = ruled.join("root"), ruled.join("alice")
    cls = alice.rti.get_object_class_handle("Vehicle.Aircraft")
    position = [alice.rti.get_attribute_handle(cls, "position")]
    root.rti.subscribe_object_class_attributes(cls, position)
    alice.rti.publish_object_class_attributes(cls, position)
    alice.rti.register_object_instance(cls, "LH1")
    root.until("discover_object_instance")
    # and a token that is not used yet
    ref = ServiceRef("", "rti", (server.address,))
    client = ControlClient(ref, ruled.config("alice").security(), timeout=20.0)
    token = client.call("join", str, "Air", [], [])
    client.close()
    # When the rules, or the accounts, are without the second
    if what == "rules":
        ruled.policy.write_text(rules.replace(', "alice"', ""))
    else:
        ruled.accounts("root")
    # Expect it to be told why, others to be told that it is gone, and the first one to stay
    assert "alice may not connect Air. The audit log" in alice.until("connection_lost")[1]
    with pytest.raises(NotConnected, match="alice may not connect"):
        alice.rti.query_logical_time()
    root.until("remove_object_instance")
    [facts] = server.status()["federations"]
    assert (facts["federates"], facts["resigned"]) == (["root"], {"its user may not connect any more": 1})
    eventually(lambda: server.status()["connections"] == 1)
    # and nobody to join, with or without a token
    with pytest.raises(AccessDeniedError):
        ruled.join("alice")
    sock = dial(ref, DATA, Security(), 20.0)
    with sock, pytest.raises(ProtocolError, match="alice may not connect Air"):
        greet(StreamSocket(sock), Hello.of(token))


def test_what_a_federate_may_administer_changes_with_the_rules(
    federation: Any, air: bytes, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given one who may administer a federation
    rules = '[[access]]\nuser = "*"\naction = "connect"\n[[access]]\nuser = "root"\naction = "administer"\n'
    ruled = Ruled(federation, tmp_path, rules, "root", "alice", "bob")
    ruled.served(air)
    root, alice, bob = map(ruled.join, ("root", "alice", "bob"))
    one, other = Resigning(root), Resigning(alice)
    assert other.refusal(bob)
    # When another one may do that; Expect it to be done for that one alone
    ruled.policy.write_text(rules.replace("root", "alice"))

    def is_resigned() -> bool:
        other.ask(bob)
        bob.rti.evoke_callback(0.1)
        return any(each[0] == "connection_lost" for each in bob.told.log)

    eventually(is_resigned)
    assert "may not administer this federation" in one.refusal(alice)
    assert alice.rti.query_logical_time() == 0.0


def test_a_link_asks_its_own_rules_what_federates_behind_it_may(
    federation: Any, air: bytes, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a link with rules, by which all may join and one may administer, to an RTI that lets the link do everything
    rules = '[[access]]\nuser = "*"\naction = "connect"\n[[access]]\nuser = "root"\naction = "administer"\n'
    ruled = Ruled(federation, tmp_path, rules, "root", "alice", "bob")
    server = served_by(federation, air, federation.config)
    link = RtiLink(ruled.settings, federation.config, "Air", "Sea", access=access_of(ruled.settings, "rti"))
    federation.stack.callback(link.stop)
    link.start()
    eventually(link.is_there)
    root, alice, bob = (ruled.join(each, "Sea") for each in ("root", "alice", "bob"))
    # Expect that one alone to act on others
    assert "may not administer this federation" in Resigning(alice).refusal(root)
    Resigning(root).ask(bob)
    bob.until("connection_lost")
    # When that one may not administer any more, and another one may not connect
    ruled.policy.write_text('[[access]]\nuser = "root"\naction = "connect"\n')
    # Expect both to be cut off, and the first one to come back
    for each in (alice, root):
        each.until("connection_lost")
    root = ruled.join("root", "Sea")
    with pytest.raises(AccessDeniedError, match="alice may not connect Sea"):
        ruled.join("alice", "Sea")
    eventually(lambda: server.status()["federations"][0]["federates"] == ["root"])


def test_a_link_gives_nobody_what_its_rti_does_not_give_it(
    federation: Any, air: bytes, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given an RTI that lets nobody administer, and a link to it that lets everybody
    ruled = Ruled(federation, tmp_path, '[[access]]\naction = ["connect", "status"]\n')
    ruled.served(air)
    link = RtiLink(federation.config, federation.config, "Air", "Sea")
    federation.stack.callback(link.stop)
    link.start()
    eventually(link.is_there)
    flight, monitor = (Federate(federation.config, each, "Sea") for each in ("flight", "monitor"))
    for each in (flight, monitor):
        federation.stack.callback(each.rti.disconnect)
    # When somebody acts on another one over it; Expect a refusal
    assert "may not administer this federation" in Resigning(monitor).refusal(flight)
