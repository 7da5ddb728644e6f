"""What rules do to contracts: refused, narrowed, and asked again when the rules change."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.access import AllowAll, Decision
from jbi_pubsub.core.config import MetricsSection, PadSection, PolicySection
from jbi_pubsub.core.errors import AccessDeniedError, WireError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import predicate, register_language
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.pad.egress.late_join import LateJoiners
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.policy.manager import AccessManager, access_of
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, SubscriptionsProxy
from jbi_pubsub.subscriber import registry

TYPE = "mil.af.rl.jbi.Intel_Imagery"
BUT_SUBSCRIBE = "[[access]]\naction = ['connect', 'publish', 'status', 'administer', 'mail']\n"
ALL_OF_IT = BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\n"
BUT_PUBLISH = "[[access]]\naction = ['connect', 'subscribe', 'status']\n"
NORTH = BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\nwhere = '//lat > 50'\n"


@pytest.fixture
def put_in_force(eventually: Callable[..., Any]) -> Callable[[DisseminationServer, Any, str], None]:
    """Write rules, and wait until the delegate has asked about everything that stands."""

    def put(pad: DisseminationServer, policy: Any, text: str) -> None:
        delegate, permissions = pad.delegate, pad.delegate.contracts.permissions
        ask, version, asked = delegate.review.ask_again, permissions.access.version, threading.Event()

        def asks() -> int:
            ended = ask()
            if permissions.asked_version > version:
                asked.set()  # not sooner: the version is noted before anything is asked about
            return ended

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delegate.review, "ask_again", asks)
            policy.write(text)
            eventually(asked.is_set)

    return put


def lats(objects: list[Any]) -> list[str]:
    return [obj.metadata.partition(b"<lat>")[2].partition(b"</lat>")[0].decode() for obj in objects]


def publish(publisher: Any, registration: Any, figures: Any, *places: object) -> None:
    for lat in places:
        publisher.publish(registration, figures.metadata(lat=str(lat)))


# -- when a contract opens ----------------------------------------------------------------------------------------


def test_a_refused_subscription_is_told_counted_and_written_down(
    federation: Any, policy: Any, figures: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a delegate that lets nobody subscribe, with an audit log
    policy.write(BUT_SUBSCRIBE)
    section = PolicySection(file=str(policy.path), audit=str(tmp_path / "audit.jsonl"))
    pad = federation.pad(config=msgspec.structs.replace(policy.config, policy=section, metrics=MetricsSection(port=0)))
    figures.register(federation.light())
    # When somebody subscribes
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    eventually(lambda: any(s["refused"] for s in subscriber.status()["sessions"]))
    # Expect a line, a count, a metric, and nothing of the rules in what he is told
    eventually((tmp_path / "audit.jsonl").read_text)
    line = json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[0])
    assert (line["decision"], line["action"], line["type"]) == ("refused", "subscribe", TYPE)
    assert line["client"].startswith("subscriber")
    assert pad.status()["access"]["refused"] == {"subscribe": 1}
    assert [(s.value, s.labels) for s in pad.samples() if s.name == "access_refused"] == [
        (1, (("action", "subscribe"),))
    ]
    assert Cause.REFUSED in subscriber.losses(uid)
    assert "may not subscribe" in str(subscriber.status())
    assert "policy.toml" not in str(subscriber.status())


def test_a_refused_publisher_costs_no_schema(federation: Any, policy: Any, figures: Any) -> None:
    policy.write("[[access]]\naction = 'connect'\n")
    pad = federation.pad()
    pad.service.repositories.check_type = lambda *_: pytest.fail("the schema was opened")
    with pytest.raises(AccessDeniedError, match="may not publish"):
        figures.register(federation.light())


def test_who_asks_for_any_type_gets_those_that_he_may_have(
    federation: Any, policy: Any, figures: Any, put_in_force: Callable[..., None], eventually: Callable[..., Any]
) -> None:
    # Given rules that withhold the only type there is, but not all
    policy.write(BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\ntype = 'demo.*'\n")
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    # When somebody asks for any type, by another way than naming it
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber()
    eventually(lambda: pad.status()["subscriptions"])
    publish(publisher, registration, figures, 1)
    publisher.flush()
    # Expect him to be let in and to get nothing; and what comes when he may
    assert pad.status()["unmatched"] == 1
    put_in_force(pad, policy, ALL_OF_IT)
    publish(publisher, registration, figures, 2)
    received = subscriber.receive(uid, timeout=60.0)
    assert lats([received]) == ["2"]


@pytest.fixture
def language() -> Iterator[str]:
    """A predicate language of our own: the document's text contains the expression."""

    def compiler(expression: str, namespaces: Any) -> Callable[[Any], bool]:  # a compiler's form
        return lambda root: expression in "".join(root.itertext())

    register_language("text", compiler)
    yield "text"
    del predicate._languages["text"]


def test_an_object_has_to_pass_the_subscription_and_the_rule(
    policy: Any, publishing: Any, figures: Any, federation: Any, language: str, eventually: Callable[..., Any]
) -> None:
    # Given a rule that lets through what is in the north, at a delegate, and at a peer publisher
    policy.write(NORTH)
    eventually(lambda: publishing.status()["access"]["rules"] == 2)
    registration = publishing.register(figures.figure_1, figures.schema)
    subscriber = federation.subscriber()
    # When three subscribe: to all, by XPath, and in another language
    uids = [
        subscriber.register_subscriber(type_name=TYPE),
        subscriber.register_subscriber(type_name=TYPE, predicate="//lat < 70 or false()"),
        subscriber.register_subscriber(type_name=TYPE, predicate="61", language=language),
    ]
    for uid in uids:
        assert subscriber.wait_matched(uid) == 1
    publishing.adapter.wait_for_subscribers(registration, 3)
    for lat in (40, 61, 75, 99):
        publishing.publish(registration, figures.metadata(lat=str(lat)))
    # Expect of each what passes both
    got = [lats([subscriber.receive(uid) for _ in range(count)]) for uid, count in zip(uids, (3, 1, 1), strict=True)]
    assert got == [["61", "75", "99"], ["61"], ["61"]]
    assert [subscriber.receive(uid, timeout=0.0) for uid in uids] == [None] * 3
    # Expect the rule to be named where servers are looked at, and its text nowhere
    status = publishing.status()
    assert {s["narrowed_by"] for s in status["subscriptions"]} == {"policy.toml:3"}
    assert {s["predicate"] for s in status["subscriptions"]} == {"", "//lat < 70 or false()", "61"}
    assert "lat > 50" not in str(status)


def test_what_lies_on_the_buffer_has_to_pass_the_rule_as_well(
    federation: Any, policy: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that stands, and a delegate that comes after objects were published elsewhere
    policy.write(NORTH)
    pad = federation.pad()
    publisher = federation.light()
    registration = figures.register(publisher)
    publish(publisher, registration, figures, 40, 60)
    publisher.flush()
    with SubscriptionsProxy_at(pad) as proxy:
        opened = proxy.open("late", 60.0)
        # When it comes late
        (answer,) = proxy.subscribe(opened.uid, [SubscriptionRequest("late")], 60.0, [30.0])
        assert answer.granted is not None
        # Expect what the rule lets through alone
        eventually(lambda: pad.status()["subscriptions"][0]["replayed"])
        assert pad.status()["subscriptions"][0]["replayed"] == 1


@pytest.mark.parametrize(
    ("later", "replayed"), [(NORTH, 1), (BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\ntype = 'demo.*'\n", 0)]
)
def test_who_is_catching_up_when_the_rules_change_gets_what_they_let_through_then(
    federation: Any,
    policy: Any,
    figures: Any,
    put_in_force: Callable[..., None],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    later: str,
    replayed: int,
) -> None:
    # Given a subscription that may have everything, and whose turn to catch up has not come
    turn, step = threading.Event(), LateJoiners.step
    monkeypatch.setattr(LateJoiners, "step", lambda self: turn.wait(20.0) and step(self))
    pad = federation.pad()
    publisher = federation.light()
    publish(publisher, figures.register(publisher), figures, 40, 60)
    publisher.flush()
    with SubscriptionsProxy_at(pad) as proxy:
        opened = proxy.open("late", 60.0)
        proxy.subscribe(opened.uid, [SubscriptionRequest("late")], 60.0, [30.0])
        # When the rules change before it comes
        put_in_force(pad, policy, later)
        assert pad.status()["catching_up"] == 1
        turn.set()
        # Expect nothing that they withhold
        eventually(lambda: pad.status()["catching_up"] == 0)
        assert pad.status()["subscriptions"][0]["replayed"] == replayed


class SubscriptionsProxy_at:  # noqa: N801  # read as a phrase
    """Whoever speaks a delegate's protocol."""

    def __init__(self, pad: DisseminationServer) -> None:
        self.proxy = SubscriptionsProxy(pad.endpoints.ref(SUBSCRIPTIONS, ()), Security(), timeout=60.0)

    def __enter__(self) -> SubscriptionsProxy:
        return self.proxy

    def __exit__(self, *_: object) -> None:
        self.proxy.close()


def test_mail_goes_to_the_domains_that_rules_name_and_outlives_a_restart(
    federation: Any, policy: Any, tmp_path: Path
) -> None:
    # Given a durable delegate whose rules name a domain
    named = (
        "[[access]]\naction = ['connect', 'subscribe', 'administer']\n"
        "[[access]]\naction = 'mail'\nclient = '{}'\nrecipients = 'example.org'\n"
    )
    policy.write(named.format("me"))
    config = msgspec.structs.replace(policy.config, pad=PadSection(state=str(tmp_path / "pad.db")))
    pad = federation.pad(config=config)
    secret = "0123456789abcdef" * 2
    request = SubscriptionRequest(owned_uid("subscription", secret), recipients=("a@Example.ORG",), secret=secret)
    with SubscriptionsProxy_at(pad) as proxy:
        opened = proxy.open("me", 60.0)
        other = msgspec.structs.replace(request, recipients=("a@example.org", "b@example.com"))
        answers = proxy.subscribe(opened.uid, [other, request], 60.0, [0.0, 0.0])
        # Expect mail to others to be refused, with the domain that it is about
        assert answers[0].error is not None
        assert "example.com" in answers[0].error.message
        assert answers[1].granted is not None
        mailing = msgspec.structs.replace(request, direct=False)
        (answer,) = proxy.subscribe(opened.uid, [mailing], 60.0, [0.0])
        assert answer.granted is not None
    pad.stop(0.5)
    # When the delegate is started again, expect the subscription to be there, and to be its owner's
    again = federation.pad(config=config)
    assert len(again.delegate.mail.rows()) == 1
    again.delegate.expire()
    assert len(again.delegate.mail.rows()) == 1
    again.stop(0.5)
    # When nobody of that name may mail any more, expect it to end at the next start
    policy.write(named.format("you"))
    last = federation.pad(config=config)
    last.delegate.expire()
    assert last.delegate.mail.rows() == []


def test_nothing_is_asked_for_an_object(federation: Any, policy: Any, figures: Any) -> None:
    # Given a delegate whose policy counts what it is asked
    class Counting(AllowAll):
        asked = 0

        def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's parameters
            Counting.asked += 1
            return Decision(True, "r", "//lat > 50")

    federation.config = msgspec.structs.replace(federation.config, policy=PolicySection())
    pad = DisseminationServer(federation.config, TypeRepository(), characteristics=("alpha", "rome"), access=Counting())
    pad.start()
    federation.stack.callback(pad.stop, 0.5)
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE)
    publisher.wait_for_subscribers(registration, 1)
    before = Counting.asked
    assert before > 0
    # When objects are published
    publish(publisher, registration, figures, *range(40, 60))
    publisher.flush()
    for _ in range(9):
        subscriber.receive(uid)
    # Expect that nobody was asked
    assert Counting.asked == before


@pytest.mark.processes
def test_without_a_policy_nothing_of_it_runs(tmp_path: Path) -> None:
    script = """
import sys, threading
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import Config, LookupSection
from jbi_pubsub.pad.server.server import DisseminationServer
config = Config(lookup=LookupSection(locators=(), multicast=False))
pad = DisseminationServer(config, TypeRepository(), characteristics=("a", "b"))
pad.start()
assert not [t.name for t in threading.enumerate() if "policy" in t.name]
loaded = {name for name in sys.modules if name.startswith("jbi_pubsub.policy")}
assert loaded == {"jbi_pubsub.policy", "jbi_pubsub.policy.settings"}
pad.stop(0.0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, timeout=60)


# -- when the rules change ----------------------------------------------------------------------------------------


def test_a_subscription_that_is_no_longer_allowed_ends_is_told_and_comes_back(
    federation: Any,
    policy: Any,
    figures: Any,
    put_in_force: Callable[..., None],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given two subscriptions, one to a type that will be withdrawn
    monkeypatch.setattr(registry, "ASK_SECONDS", 0.1)
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    publisher.wait_for_subscribers(registration, 1)
    publish(publisher, registration, figures, 1)
    assert lats([subscriber.receive(uid)]) == ["1"]
    # When that is withdrawn
    put_in_force(pad, policy, BUT_SUBSCRIBE)
    # Expect it to end, and its subscriber to be told, in band
    assert pad.status()["subscriptions"] == []
    eventually(lambda: Cause.REFUSED in subscriber.losses(uid))
    publish(publisher, registration, figures, 2)
    publisher.flush()
    assert subscriber.receive(uid, timeout=0.0) is None
    # When it is allowed again, expect it to come back by itself, and not a minute later
    put_in_force(pad, policy, ALL_OF_IT)
    eventually(lambda: len(pad.status()["subscriptions"]) == 1)
    publish(publisher, registration, figures, 3)
    assert lats([subscriber.receive(uid)]) == ["3"]
    status = pad.status()
    assert status["matched"] == status["delivered"] + sum(status["lost"].values()) + status["in_flight"]


def test_a_session_that_may_not_connect_any_more_ends_and_comes_back(
    federation: Any,
    policy: Any,
    figures: Any,
    put_in_force: Callable[..., None],
    eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "REFUSED_AGAIN", 0.3)
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE)
    publisher.wait_for_subscribers(registration, 1)
    # When nobody who calls himself a subscriber may connect
    put_in_force(pad, policy, "[[access]]\n[[access]]\nclient = 'subscriber*'\nallow = false\n")
    # Expect the session to go once it has been told
    eventually(lambda: Cause.REFUSED in subscriber.losses(uid))
    eventually(lambda: pad.status()["sessions"] == [])
    assert subscriber.losses(uid).keys() == {Cause.REFUSED}
    # And to be there again when it may
    put_in_force(pad, policy, "[[access]]\n")
    eventually(lambda: pad.status()["sessions"] and pad.status()["subscriptions"])
    publish(publisher, registration, figures, 3)
    assert lats([subscriber.receive(uid)]) == ["3"]


def test_a_publisher_that_is_no_longer_allowed_is_told_and_loses_nothing_that_it_keeps(
    federation: Any,
    policy: Any,
    figures: Any,
    put_in_force: Callable[..., None],
    eventually: Callable[..., Any],
) -> None:
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE)
    publisher.wait_for_subscribers(registration, 1)
    publish(publisher, registration, figures, 1)
    assert lats([subscriber.receive(uid)]) == ["1"]
    # When publishing is withdrawn
    put_in_force(pad, policy, BUT_PUBLISH)

    def is_told() -> bool:
        try:
            publish(publisher, registration, figures, 7)
        except WireError as exc:
            return "may not publish" in str(exc)
        return False

    # Expect the publisher to be told, and nothing to be taken
    assert pad.status()["registrations"] == []
    eventually(is_told)
    assert subscriber.receive(uid, timeout=0.0) is None
    # When it is allowed again, expect it to come back, with what it has kept
    put_in_force(pad, policy, "[[access]]\n")
    eventually(lambda: len(pad.status()["registrations"]) == 1)
    eventually(lambda: not any(d["refused_registrations"] for d in publisher.status()["delegates"].values()))
    publish(publisher, registration, figures, 2)
    got = []
    while "2" not in got:
        got += lats([subscriber.receive(uid, timeout=60.0)])
    assert set(got[:-1]) <= {"7"}


def test_rules_that_change_what_is_let_through_lose_nothing_and_double_nothing(
    federation: Any, policy: Any, figures: Any, put_in_force: Callable[..., None]
) -> None:
    # Given a subscription under a rule, and a publisher that does not stop
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE)
    publisher.wait_for_subscribers(registration, 1)
    stop = threading.Event()
    published = []

    def publish_on() -> None:
        while not stop.wait(0.0005):
            published.append(str(len(published)))
            publish(publisher, registration, figures, published[-1])

    thread = threading.Thread(target=publish_on)
    thread.start()
    # When the rules change again and again, in what they say, not in what they let through
    try:
        for where in ("//lat >= 0", "//lat > -1", "", "//lat != -5", ""):
            narrowing = f"where = '{where}'\n" if where else ""
            put_in_force(pad, policy, BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\n" + narrowing)
            assert pad.status()["subscriptions"][0]["narrowed_by"] == ("policy.toml:3" if where else "")
    finally:
        stop.set()
        thread.join()
    publisher.flush()
    # Expect every object, once and in order
    got = [subscriber.receive(uid) for _ in published]
    assert lats(got) == published
    assert subscriber.receive(uid, timeout=0.0) is None
    # And what a rule withholds from now on is withheld
    put_in_force(pad, policy, NORTH)
    publish(publisher, registration, figures, 10, 60)
    assert lats([subscriber.receive(uid)]) == ["60"]


# -- lookup services ----------------------------------------------------------------------------------------------


@pytest.fixture
def guarded_lookup(federation: Any, policy: Any) -> Iterator[LookupServer]:
    """A lookup service with a policy of its own."""
    with ExitStack() as stack:
        server = LookupServer(policy.config, Registrar(), access=access_of(policy.config, "lookup"))
        server.start()
        stack.callback(server.stop)
        yield server


SENSOR = ServiceItem("", ("demo.Sensor",), ServiceRef("0" * 32, "x", ("127.0.0.1:1",)), ())
DELEGATE = msgspec.structs.replace(SENSOR, types=("jbi.PublisherAdapterDelegate",))


def test_services_are_registered_by_who_may_and_go_when_he_may_not_any_more(
    guarded_lookup: LookupServer, policy: Any, eventually: Callable[..., Any]
) -> None:
    assert isinstance(guarded_lookup.access, AccessManager)
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (guarded_lookup.address,)), Security())
    found = lambda: len(proxy.lookup(ServiceTemplate(types=("demo.Sensor",)), 10).items)  # noqa: E731  # asked again
    try:
        # Given rules for sensors, and not for delegates
        version = guarded_lookup.access.version
        policy.write("[[access]]\ntype = 'demo.*'\naction = ['connect', 'publish']\ncomponent = 'lookup'\n")
        eventually(lambda: guarded_lookup._permissions._asked_version > version)
        proxy.register(SENSOR, 60.0, "")
        with pytest.raises(AccessDeniedError, match="may not peer"):
            proxy.register(DELEGATE, 60.0, "")
        with pytest.raises(AccessDeniedError, match="may not administer"):
            proxy.set_groups(["x"])
        assert found() == 1
        # When sensors are not wanted any more
        version = guarded_lookup.access.version
        policy.write("[[access]]\naction = ['connect', 'status']\n")
        # Expect what is registered to go
        eventually(lambda: guarded_lookup._permissions._asked_version > version and found() == 0)
        with pytest.raises(AccessDeniedError, match="may not publish"):
            proxy.register(SENSOR, 60.0, "")
        assert guarded_lookup.status()["access"]["refused"]["publish"] == 2
    finally:
        proxy.close()


TOLD = InformationType(name="demo.Sensor", version="1.0", local="Sensor").rep()
SECRET = ("intel.Secret", "1.0", None, "Secret")


def forged(fields: tuple[str, ...], values: tuple[str | None, ...], name: str = "demo.Forged") -> EntryRep:
    """An entry that is found as one that says a type, whatever it is called."""
    lineage = TOLD.cls.lineage if name == TOLD.cls.name else ((name, "0" * 16), *TOLD.cls.lineage)
    return EntryRep(EntryClass(name, fields, lineage), values)


@pytest.mark.parametrize(
    ("types", "entries"),
    [
        (("jbi.PublisherAdapterDelegate",), ()),
        (("demo.Other",), ()),
        ((), (InformationType(name="intel.Secret", version="1.0").rep(),)),
        ((), (InformationType(name="demo.Sensor", version="1.0", local="Secret").rep(),)),
        ((), (forged(TOLD.cls.fields, SECRET),)),
        ((), (forged((*"abcd", "name", "version"), (*SECRET, "demo.Sensor", "1.0"), TOLD.cls.name),)),
    ],
)
def test_who_may_publish_one_type_stands_for_nothing_else(
    guarded_lookup: LookupServer,
    policy: Any,
    eventually: Callable[..., Any],
    types: tuple[str, ...],
    entries: tuple[EntryRep, ...],
) -> None:
    # Given somebody who may publish one type, as a peer publisher
    version = guarded_lookup.access.version
    policy.write("[[access]]\ntype = 'demo.Sensor'\naction = ['connect', 'publish']\n")
    eventually(lambda: guarded_lookup._permissions._asked_version > version)
    peer = msgspec.structs.replace(SENSOR, types=("jbi.PeerPublisher", "jbi.PublisherRegistration"), entries=(TOLD,))
    proxy = RegistrarProxy(ServiceRef("", EXPORTED, (guarded_lookup.address,)), Security())
    try:
        proxy.register(peer, 60.0, "")
        # Expect him not to be found as a delegate, another service, or under another type beside it
        more = msgspec.structs.replace(peer, types=(*peer.types, *types), entries=(TOLD, *entries))
        with pytest.raises(AccessDeniedError, match=r"may not (peer|publish)"):
            proxy.register(more, 60.0, "")
    finally:
        proxy.close()


def test_a_registration_at_a_delegate_is_found_under_no_other_type_than_its_own(
    federation: Any, policy: Any, tmp_path: Path
) -> None:
    # Given a schema whose invariants have the values that say a type
    (tmp_path / "own.xsd").write_text(
        """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">
        <xs:element name="demo"><xs:complexType><xs:sequence>
        <xs:element name="Other" jbi:variance="invariant"><xs:complexType><xs:sequence>
        <xs:element name="a" type="xs:string"/><xs:element name="b" type="xs:string"/>
        </xs:sequence></xs:complexType></xs:element>
        </xs:sequence></xs:complexType></xs:element></xs:schema>"""
    )
    pad = federation.pad()
    bundle = read_bundle(tmp_path / "own.xsd")
    document = parse_metadata(b"<demo><Other><a>intel.Secret</a><b>1.0</b></Other></demo>")
    connection, _ = pad.delegate.publishers.connect("hostile", 5.0)
    secret = "s" * 32
    gate = pad.delegate.registrations.open_type(bundle, "hostile")
    (entry,) = gate.entries(document)
    lineage = (*entry.cls.lineage, *TOLD.cls.lineage)
    found_as_told = EntryRep(msgspec.structs.replace(entry.cls, lineage=lineage), entry.values)
    gate.check_invariants(document, (found_as_told,))
    # Expect the delegate to refuse them as entries that are found as those
    with pytest.raises(AccessDeniedError, match="which its delegate makes"):
        pad.delegate.registrations.register(
            connection.connection_id,
            PublisherRequest(bundle, (found_as_told,), secret=secret),
            uid=owned_uid("registration", secret),
            number=1,
        )
    assert pad.status()["registrations"] == []


def test_rules_that_change_while_a_contract_opens_are_asked_about_it(
    federation: Any, policy: Any, figures: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscription that is decided about, and has not come into the tables
    pad = federation.pad()
    figures.register(federation.light())
    subscribe = pad.delegate.subscribers.subscribe

    def changed_meanwhile(*arguments: Any, **more: Any) -> Any:
        version = pad.delegate.contracts.permissions.access.version
        policy.write(BUT_SUBSCRIBE)
        eventually(lambda: pad.delegate.contracts.permissions.asked_version > version)
        return subscribe(*arguments, **more)

    monkeypatch.setattr(pad.delegate.subscribers, "subscribe", changed_meanwhile)
    # When the rules change in between, expect it not to stay
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, version="1.0")
    eventually(lambda: Cause.REFUSED in subscriber.losses(uid))
    eventually(lambda: pad.status()["subscriptions"] == [])


def test_a_predicate_that_is_too_much_with_the_rule_is_refused_without_its_text(
    federation: Any, policy: Any, figures: Any
) -> None:
    policy.write(BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\nwhere = \"secret = '1'\"\n")
    pad = federation.pad()
    figures.register(federation.light())
    long = "a='" + "x" * 8180 + "'"
    with SubscriptionsProxy_at(pad) as proxy:
        opened = proxy.open("me", 60.0)
        (answer,) = proxy.subscribe(opened.uid, [SubscriptionRequest("s", predicate=long)], 60.0, [0.0])
        assert answer.error is not None
        assert "together with what the access policy adds" in answer.error.message
        assert "secret" not in str(answer.error)
    assert pad.status()["subscriptions"] == []


def test_explain_names_the_rule_that_withholds(
    federation: Any, policy: Any, figures: Any, put_in_force: Callable[..., None], eventually: Callable[..., Any]
) -> None:
    # Given a subscription under a rule
    pad = federation.pad()
    figures.register(federation.light())
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(predicate="//lat < 70")
    eventually(lambda: pad.status()["subscriptions"])
    put_in_force(pad, policy, NORTH)

    def misses(lat: int) -> Any:
        told = pad.delegate.reports.explain(uid, figures.metadata(lat=str(lat)), b"")
        (first,) = told["first_level"].values()
        return told["delivered"], first["misses"]

    # Expect what is withheld to be said so, and its own predicate to be blamed for what that rules out
    assert misses(60) == (True, [])
    assert misses(40) == (False, ["access policy: withheld by policy.toml:3"])
    assert misses(80) == (False, [])
    # And a type that it may not have
    put_in_force(pad, policy, BUT_SUBSCRIBE + "[[access]]\naction = 'subscribe'\ntype = 'demo.*'\n")
    assert misses(60) == (False, ["access policy: the subscriber may not have this type"])


def test_an_object_without_a_document_is_explained_to_nobody_whom_a_rule_asks_for_one(
    federation: Any, policy: Any, put_in_force: Callable[..., None]
) -> None:
    # Given an object without metadata, and a rule that lets through a part by them
    pad = federation.pad()
    publisher, subscriber = federation.light(), federation.subscriber()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(at, type_name="t", validate=False)
    uid = subscriber.register_subscriber(type_name="t")
    assert subscriber.wait_matched(uid) == 1
    published = publisher.publish(registration, b"", b"payload")
    publisher.flush()
    put_in_force(pad, policy, NORTH)
    # Expect it to be withheld, and its explanation refused
    told = pad.delegate.reports.explain_object(uid, published)
    (first,) = told["first_level"].values()
    assert (told["delivered"], first["misses"]) == (False, ["access policy: withheld by policy.toml:3"])
    with SubscriptionsProxy_at(pad) as proxy, pytest.raises(AccessDeniedError, match="may not subscribe t"):
        proxy.explain_object(uid, published)


def test_a_mail_subscription_of_an_earlier_version_is_nobodys(federation: Any, policy: Any, tmp_path: Path) -> None:
    # Given a file of e-mail subscriptions that does not say whose they are
    file = tmp_path / "pad.db"
    secret = "0123456789abcdef" * 2
    uid = owned_uid("subscription", secret)
    request = SubscriptionRequest(uid, direct=False, recipients=("a@example.org",), secret=secret)
    with closing(sqlite3.connect(file, isolation_level=None)) as base:
        base.execute(
            "CREATE TABLE mail (uid TEXT PRIMARY KEY, request BLOB NOT NULL, lease TEXT NOT NULL, ends REAL NOT NULL)"
            " WITHOUT ROWID"
        )
        base.execute("INSERT INTO mail VALUES (?, ?, 'lease', ?)", (uid, msgspec.msgpack.encode(request), 4e9))
    base.close()
    config = msgspec.structs.replace(policy.config, pad=PadSection(state=str(file)))
    # When rules allow everybody, expect it to stay; when they allow those with a certificate alone, to end
    for text, left in (("[[access]]\n", 1), ("[[access]]\nuser = '*'\n", 0)):
        policy.write(text)
        pad = federation.pad(config=config)
        pad.delegate.expire()
        assert len(pad.delegate.mail.rows()) == left
        pad.stop(0.0)


def test_a_mail_subscription_of_before_there_were_rules_is_its_makers(
    federation: Any, policy: Any, tmp_path: Path
) -> None:
    # Given a durable delegate without rules, and an e-mail subscription of an application that calls itself "me"
    section = PadSection(state=str(tmp_path / "pad.db"))
    pad = federation.pad(config=msgspec.structs.replace(federation.config, pad=section))
    secret = "0123456789abcdef" * 2
    uid = owned_uid("subscription", secret)
    request = SubscriptionRequest(uid, direct=False, recipients=("a@example.org",), secret=secret)
    with SubscriptionsProxy_at(pad) as proxy:
        (answer,) = proxy.subscribe(proxy.open("me", 60.0).uid, [request], 60.0, [0.0])
        assert answer.granted is not None
    pad.stop(0.0)
    # When it starts again with rules for "me", expect it to stay; with rules for others, to end
    config = msgspec.structs.replace(policy.config, pad=section)
    for client, left in (("me", 1), ("you", 0)):
        policy.write(f"[[access]]\nclient = '{client}'\n")
        pad = federation.pad(config=config)
        pad.delegate.expire()
        assert len(pad.delegate.mail.rows()) == left
        pad.stop(0.0)


def test_an_operator_is_told_of_rules_that_contradict_the_types_that_are_there(
    federation: Any, figures: Any, policy: Any, put_in_force: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a rule that asks for what no metadata of the type have
    doubtful = ALL_OF_IT + "[[access]]\naction = 'subscribe'\nallow = false\nwhere = '//latt'\n"
    policy.write(doubtful)
    pad, publisher = federation.pad("alpha", "rome"), federation.light()
    figures.register(publisher)
    told = pad.status().access.contradictions
    assert len(told) == 1
    assert "did you mean lat?" in told[0]
    # When others are in force, which have the rule as well, expect it to be told once
    put_in_force(pad, policy, doubtful + "[[access]]\nuser = 'eve'\naction = 'subscribe'\n")
    assert pad.status().access.contradictions == told
    assert [record.getMessage() for record in caplog.records].count(told[0]) == 1
    # When the type has left, and others are in force, expect nothing any more
    publisher.close()
    put_in_force(pad, policy, doubtful + "[[access]]\nuser = 'mallory'\naction = 'subscribe'\n")
    assert pad.status().access.contradictions is msgspec.UNSET
