"""Nothing is exported that does not ask: a policy that denies everything blocks every call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.access import AllowAll, Decision, Question
from jbi_pubsub.core.config import ArchiveSection, QosSection
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, UnknownLeaseError, UnknownUidError
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup import server as lookup_server
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.pad.server import server as pad_server
from jbi_pubsub.policy.proxy import Joining
from jbi_pubsub.policy.server import PolicyServer
from jbi_pubsub.protocol.requests import PublisherRequest, QueryRequest, Start, SubscriptionRequest
from jbi_pubsub.protocol.services import NO_CLAIMS

pytestmark = pytest.mark.processes


class DenyAll(AllowAll):
    """Nobody may do anything."""

    def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's parameters
        return Decision(False)


SAID = msgspec.Raw(msgspec.msgpack.encode(SubscriptionRequest("uid")))

BY_RIGHT: dict[tuple[str, str], tuple[Any, ...]] = {
    # what an id opens that was given when something was allowed; here one that was given to nobody
    ("pad.login", "login"): ("alice", "no-password"),
    ("lookup.login", "login"): ("alice", "no-password"),
    ("policy.login", "login"): ("alice", "no-password"),
    ("pad.delegate", "renew"): ("no-lease", 1.0),
    ("pad.delegate", "disconnect"): ("no-connection",),
    ("pad.delegate", "register"): ("no-connection", "REQUEST", "uid", 1),
    ("pad.delegate", "unregister"): ("no-connection", "uid"),
    ("pad.delegate", "filtered"): ("no-connection", "uid", 1),
    ("pad.delegate", "wait_for_subscriptions"): ("no-connection", "uid", 1, 0.0),
    ("pad.delegate", "open_publications"): ("no-connection",),
    ("pad.subscriptions", "renew"): ("no-lease", 1.0),
    ("pad.subscriptions", "close"): ("no-session",),
    ("pad.subscriptions", "subscribe"): (
        "no-session",
        (SAID,),
        1.0,
        (0.0,),
        0.0,
        NO_CLAIMS,
    ),
    ("pad.subscriptions", "unsubscribe"): ("no-session", "uid"),
    ("pad.subscriptions", "open_deliveries"): ("no-session",),
    ("pad.subscriptions", "mail_losses"): (("no-lease",),),
    ("pad.history", "open_query"): ("no-session", QueryRequest(), NO_CLAIMS),
    ("pad.history", "progress"): ("no-session", 1),
    ("pad.history", "cancel_query"): ("no-session", 1),
    ("pad.mail_links", "follow"): ("unsubscribe", "no-token"),
    ("lookup.registrar", "add_attributes"): ("id", "no-lease", ()),
    ("lookup.registrar", "set_attributes"): ("id", "no-lease", ()),
    ("lookup.registrar", "modify_attributes"): ("id", "no-lease", ()),
    ("lookup.registrar", "cancel"): (("no-lease",),),
}

REF = ServiceRef("0" * 32, "x", ("127.0.0.1:1",))
ASKING: dict[tuple[str, str], tuple[Any, ...]] = {
    ("pad.delegate", "connect"): ("me", 1.0, NO_CLAIMS),
    ("pad.bridging", "wanted"): ("bridge", 0, 0.0, False),
    ("pad.subscriptions", "open"): ("me", 1.0, NO_CLAIMS),
    ("pad.subscriptions", "unsubscribe"): ("", "uid"),
    ("pad.subscriptions", "explain"): ("uid", b"<a/>", b""),
    ("pad.subscriptions", "explain_object"): ("uid", "object"),
    ("pad.subscriptions", "mail_subscriptions"): (),
    ("pad.subscriptions", "durable_subscriptions"): (),
    ("pad.subscriptions", "renew_mail"): ("uid", 1.0),
    ("pad.subscriptions", "signing_key"): ("uid",),
    ("pad.history", "count"): (QueryRequest(), 1.0, NO_CLAIMS),
    ("pad.history", "explain_query"): (QueryRequest(), NO_CLAIMS),
    ("pad.history", "reset"): ("name", "secret", Start(), NO_CLAIMS),
    ("pad.history", "end_durable"): ("name", "secret", NO_CLAIMS),
    ("pad.history", "delete"): (QueryRequest(), 1.0),
    ("pad.history", "retain"): (True, 1.0),
    ("pad.history", "rebuild"): (),
    ("pad.history", "take_in"): ((), ()),
    ("pad.history", "describe"): (("uid",), NO_CLAIMS),
    ("pad.history", "types_called"): ("type", NO_CLAIMS),
    ("pad.types", "get"): ("type", "1.0"),
    ("pad.types", "held"): ("type", "a", "1.0"),
    ("pad.types", "list"): ("type", 0),
    ("pad.types", "show"): ("type", "a", "1.0"),
    ("pad.types", "property"): ("type", "a", "1.0", "icon"),
    ("pad.types", "history"): ("type", "a", "1.0", 0),
    ("pad.types", "faults"): (),
    ("pad.types", "add"): ("type", SchemaBundle("", ()), None, ""),
    ("pad.types", "describe"): ("type", "a", "1.0", ""),
    ("pad.types", "deprecate"): ("type", "a", "1.0", False),
    ("pad.types", "set_property"): ("type", "a", "1.0", "icon", b""),
    ("pad.types", "remove"): ("type", "a", "1.0", True),
    ("pad.join_admin", "lookup_attributes"): (),
    ("pad.join_admin", "add_lookup_attributes"): ((),),
    ("pad.join_admin", "remove_lookup_attributes"): ((),),
    ("pad.admin", "explain"): (Question("connect", "alice"),),
    ("pad.admin", "explain_contract"): ("uid",),
    ("pad.admin", "set_policy"): ("space.strategy", "strict", ""),
    ("pad.admin", "cancel"): ("uid",),
    ("pad.admin", "drain"): (1.0,),
    ("pad.admin", "resume"): (),
    ("pad.status", "status"): (),
    ("pad.status", "overview"): (),
    ("pad.status", "subscriptions"): ("", "", 0, 1),
    ("pad.status", "terms"): (0, 1),
    ("lookup.registrar", "describe"): (),
    ("lookup.registrar", "renew"): ((("no-lease", 1.0),),),
    ("lookup.registrar", "register"): (ServiceItem("", ("demo.Sensor",), REF, ()), 1.0, ""),
    ("lookup.registrar", "lookup"): (ServiceTemplate(), 1, False, ""),
    ("lookup.registrar", "notify"): (ServiceTemplate(), ALL_TRANSITIONS, 1.0, "", "me"),
    ("lookup.registrar", "open_events"): ("me",),
    ("lookup.registrar", "entry_classes"): (ServiceTemplate(),),
    ("lookup.registrar", "field_values"): (ServiceTemplate(), 0, "name"),
    ("lookup.registrar", "service_types"): (ServiceTemplate(), ""),
    ("lookup.registrar", "administered"): (),
    ("lookup.registrar", "set_groups"): ((),),
    ("lookup.registrar", "change_groups"): ((), ()),
    ("lookup.registrar", "set_locators"): ((),),
    ("lookup.registrar", "change_locators"): ((), ()),
    ("lookup.registrar", "set_port"): (0,),
    ("lookup.registrar", "destroy"): (),
    ("lookup.status", "status"): (),
    ("lookup.admin", "explain"): (Question("connect", "alice"),),
    ("policy.policy_manager", "join"): (Joining("id", "alpha@rome"),),
    ("policy.policy_manager", "leave"): ("id",),
    ("policy.policy_manager", "apply"): ("", ""),
    ("policy.policy_manager", "set"): ("space.strategy", "strict", ""),
    ("policy.policy_manager", "rollback"): (1, ""),
    ("policy.policy_manager", "history"): (),
    ("policy.policy_manager", "text"): (0,),
    ("policy.policy_manager", "status"): (),
    ("policy.admin", "explain"): (Question("connect", "alice"),),
}


@pytest.fixture(scope="module")
def servers(fixtures: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A delegate, a lookup service and a policy manager that deny everything."""
    file = tmp_path_factory.mktemp("policy") / "policy.toml"
    file.write_text("")
    config = fixtures.test_config()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        engine = type("engine", (), {"Archive": staticmethod(lambda _config: MemoryKeeping())})
        patch.setitem(sys.modules, "jbi_pubsub.archive.engine", engine)
        archive = ArchiveSection(folder="/nowhere")
        managed = msgspec.structs.replace(config, qos=QosSection(mode="on"), archive=archive)
        pad = pad_server.DisseminationServer(
            managed, TypeRepository(), characteristics=("alpha", "rome"), access=DenyAll()
        )
        stack.callback(pad.stop, 0.0)
        lookup = lookup_server.LookupServer(config, Registrar(), access=DenyAll())
        stack.callback(lookup.stop)
        manager = PolicyServer(config, file, access=DenyAll())
        stack.callback(manager.stop)
        pad.start()
        lookup.start()
        yield {
            f"{name}.{export}": target
            for name, server in (("pad", pad), ("lookup", lookup), ("policy", manager))
            for export, target in server._control._exports.items()
        }


def test_every_exported_call_is_in_the_table(servers: dict[str, Any]) -> None:
    exported = {
        (name, method)
        for name, target in servers.items()
        for method, function in inspect.getmembers(type(target))
        if getattr(function, "__exported__", False)
    }
    assert exported == {*ASKING, *BY_RIGHT}


@pytest.mark.row("G-40", "X-11")
@pytest.mark.parametrize(("name", "method"), ASKING, ids=str)
def test_who_may_nothing_gets_nothing(servers: dict[str, Any], name: str, method: str) -> None:
    call = getattr(servers[name], method)
    with pytest.raises(AccessDeniedError):
        call(Caller("192.0.2.7:1"), *ASKING[name, method])


@pytest.mark.parametrize(("name", "method"), BY_RIGHT, ids=str)
def test_what_an_id_opens_needs_that_id(servers: dict[str, Any], name: str, method: str) -> None:
    call = getattr(servers[name], method)
    request = PublisherRequest(SchemaBundle("", ()), ()) if name == "pad.delegate" else SubscriptionRequest("")
    arguments = [request if argument == "REQUEST" else argument for argument in BY_RIGHT[name, method]]
    try:
        results = call(Caller("192.0.2.7:1"), *arguments)
    except (UnknownUidError, UnknownLeaseError, AccessDeniedError):
        return
    if method == "login":  # nobody here knows passwords
        assert results is False
        return
    if method == "cancel_query":  # one that has ended, or never was, is none
        assert results is None
        return
    if method == "mail_losses":
        assert results == {}
        return
    # Expect of several leases an answer for each, which is that it is unknown
    assert [result.error.code for result in results] == ["unknown_lease"]


def test_a_contract_that_is_made_under_a_decision_is_refused_without(servers: dict[str, Any]) -> None:
    subscribing = servers["pad.subscriptions"]
    said = msgspec.Raw(msgspec.msgpack.encode(SubscriptionRequest("uid", direct=False, recipients=("a@b.org",))))
    answers = subscribing.subscribe(Caller("192.0.2.7:1"), "", (said,), 1.0, (0.0,), 0.0, NO_CLAIMS)
    assert answers.answers[0].error.code == "access_denied"
    with pytest.raises(JbiError):
        subscribing.open_deliveries(Caller("192.0.2.7:1"), "")
