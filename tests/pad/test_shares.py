"""What is kept for a peer is bounded in bytes: each request as a whole, and all that it has standing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.core.config import QosSection
from jbi_pubsub.core.errors import JbiError, LeaseDeniedError, OversizeError, PredicateError, rebuild
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller, Security
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import BOUNDS, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.pad.matching.match_table import MatchTable
from jbi_pubsub.pad.model.quota import RequestQuota
from jbi_pubsub.pad.past.scopes import check_query
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, QueryRequest, SubscriptionRequest
from jbi_pubsub.protocol.services import DELEGATE, SUBSCRIPTIONS, DelegateProxy, HistoryProxy, SubscriptionsProxy

NOTE = define("test.Note", {"text": str})
SECRET = "0123456789abcdef" * 2
LONG = "x" * (BOUNDS.item_bytes + 1)


def notes(count: int, size: int) -> tuple[EntryRep, ...]:
    return tuple(EntryRep(NOTE, (f"{number} {'x' * size}",)) for number in range(count))


class Stranger:
    """Somebody who knows the address of a delegate."""

    def __init__(self, pad: DisseminationServer) -> None:
        self.publishing = DelegateProxy(pad.endpoints.ref(DELEGATE, ()), Security(), timeout=60.0)
        self.subscribing = SubscriptionsProxy(pad.endpoints.ref(SUBSCRIPTIONS, ()), Security(), timeout=60.0)
        self.asking = HistoryProxy(pad.endpoints.ref(SUBSCRIPTIONS, ()), Security(), timeout=60.0)
        self.session = self.subscribing.open("stranger", 60.0).uid
        self.taken = pad.delegate.contracts.quota._taken

    def subscribe(self, request: SubscriptionRequest) -> None:
        """Raises what the delegate says."""
        (answer,) = self.subscribing.subscribe(self.session, [request], 60.0, [0.0])
        if answer.error is not None:
            raise rebuild(answer.error)

    def close(self) -> None:
        for each in (self.publishing, self.subscribing, self.asking):
            each.close()


@pytest.fixture
def stranger(federation: Any) -> Iterator[Callable[[DisseminationServer], Stranger]]:
    with ExitStack() as stack:
        yield lambda pad: stack.enter_context(closing(Stranger(pad)))


@pytest.mark.parametrize(
    "request_",
    [
        SubscriptionRequest("s", language=LONG),
        SubscriptionRequest("s", secret=LONG),
        SubscriptionRequest("s", entries=notes(60, 5_000)),
        SubscriptionRequest("s", entries=notes(BOUNDS.entries + 1, 1)),
        SubscriptionRequest("s", attributes=tuple((f"note-{number}", "x" * 900) for number in range(400))),
        SubscriptionRequest("s", durable=LONG),
    ],
    ids=["language", "secret", "entries together", "entries", "attributes", "durable"],
)
def test_a_subscription_is_bounded_whatever_makes_it_large(
    request_: SubscriptionRequest, federation: Any, stranger: Callable[..., Stranger]
) -> None:
    pad = federation.pad()
    with pytest.raises(OversizeError, match=r"a subscription (of|with) .*At most (262,144|1,024)"):
        stranger(pad).subscribe(request_)
    assert pad.status()["subscriptions"] == []


def test_an_unknown_language_is_refused_also_without_a_predicate(
    federation: Any, stranger: Callable[..., Stranger]
) -> None:
    pad = federation.pad()
    for said in ("", "/a"):
        with pytest.raises(PredicateError, match="unknown predicate language 'xql'"):
            stranger(pad).subscribe(SubscriptionRequest("s", language="xql", predicate=said))
    with pytest.raises(PredicateError, match="unknown predicate language"):
        federation.subscriber().register_subscriber(type_name="a", language="xql")


def test_a_template_that_no_lookup_service_watches_for_is_refused_at_the_call(federation: Any) -> None:
    # Given a template of more bytes than an item may have
    federation.pad()
    schema = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="r">
      <xs:complexType><xs:sequence><!-- invariant --><xs:element name="point" type="xs:string" maxOccurs="unbounded"/>
      </xs:sequence></xs:complexType></xs:element></xs:schema>"""
    points = "".join(f"<point>{number:01000}</point>" for number in range(BOUNDS.item_bytes // 1_000))
    # When somebody subscribes by it, expect a refusal
    with pytest.raises(OversizeError):
        federation.subscriber().register_subscriber(f"<r>{points}</r>", schema=schema, type_name="track")


@pytest.fixture
def small_shares(monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes that a peer may have standing."""
    most = 20_000
    monkeypatch.setattr(RequestQuota.__init__, "__defaults__", (most,))
    return most


def test_all_that_a_peer_has_standing_is_bounded_and_what_it_cancels_counts_no_more(
    small_shares: int, federation: Any, figures: Any, stranger: Callable[..., Stranger]
) -> None:
    """Given a peer with registrations and subscriptions up to its share, it gets no more of either until it has
    cancelled some, and everything when its session ends."""
    pad = federation.pad()
    peer = stranger(pad)

    def subscription(number: int) -> SubscriptionRequest:
        return SubscriptionRequest(f"s{number}", attributes=tuple((f"note-{n}", "x" * 900) for n in range(5)))

    def as_many_as_it_gets() -> int:
        for number in range(100):
            try:
                peer.subscribe(subscription(number))
            except OversizeError:
                return number
        pytest.fail("nothing was refused")

    count = as_many_as_it_gets()
    assert count == small_shares // BOUNDS.check_size("", subscription(0))
    connection = peer.publishing.connect("stranger", 60.0).uid
    uid, bundle = owned_uid("registration", SECRET), read_bundle(figures.schema)
    request = PublisherRequest(bundle, (), secret=SECRET, qos=Wish(attributes={f"a{n}": "x" * 190 for n in range(20)}))
    with pytest.raises(OversizeError, match=r"127\.0\.0\.1 has .*At most 20,000"):
        peer.publishing.register(connection, request, uid, 1)
    peer.subscribing.unsubscribe(peer.session, "s0")
    peer.publishing.register(connection, request, uid, 1)
    with pytest.raises(OversizeError):
        peer.subscribe(subscription(0))
    peer.publishing.unregister(connection, uid)
    peer.subscribe(subscription(0))
    peer.subscribing.close_session(peer.session)
    peer.session = peer.subscribing.open("stranger", 60.0).uid
    assert as_many_as_it_gets() == count


def test_what_is_amended_counts_as_it_is_now(
    small_shares: int, federation: Any, stranger: Callable[..., Stranger]
) -> None:
    """Given subscriptions that are amended to be larger, they are within the share, or as they were."""
    peer = stranger(federation.pad())
    wide = " or ".join(f"/a/b = '{number:0500}'" for number in range(12))
    for number in range(2):
        peer.subscribe(SubscriptionRequest(f"s{number}"))
        peer.subscribe(SubscriptionRequest(f"s{number}", predicate=wide))
    for number in range(2, 5):
        peer.subscribe(SubscriptionRequest(f"s{number}"))
    with pytest.raises(OversizeError, match=r"127\.0\.0\.1 has .*At most 20,000"):
        peer.subscribe(SubscriptionRequest("s2", predicate=wide))
    peer.subscribing.unsubscribe(peer.session, "s0")
    peer.subscribe(SubscriptionRequest("s2", predicate=wide))
    peer.subscribing.close_session(peer.session)
    assert not peer.taken


def test_a_registration_is_bounded_as_a_whole(federation: Any, figures: Any, stranger: Callable[..., Stranger]) -> None:
    pad = federation.pad()
    peer = stranger(pad)
    connection = peer.publishing.connect("stranger", 60.0).uid
    request = PublisherRequest(read_bundle(figures.schema), (), secret=SECRET, qos=Wish(attributes={"why": LONG}))
    with pytest.raises(OversizeError, match="262,144"):
        peer.publishing.register(connection, request, owned_uid("registration", SECRET), 1)
    assert pad.status()["registrations"] == []


def test_a_registration_that_comes_to_nothing_takes_nothing(
    federation: Any, figures: Any, stranger: Callable[..., Stranger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a subscription that waits, and a fault when it is put in for a new registration, then neither the share
    nor the contract of that stands; without the fault it is made, and the subscription matches it."""
    federation.config = msgspec.structs.replace(federation.config, qos=QosSection(mode="on"))
    pad = federation.pad()
    peer = stranger(pad)
    peer.subscribe(SubscriptionRequest("s"))
    connection = peer.publishing.connect("stranger", 60.0).uid
    uid, request = owned_uid("registration", SECRET), PublisherRequest(read_bundle(figures.schema), (), secret=SECRET)

    def standing() -> tuple[dict[str, int], dict[str, int]]:
        return dict(peer.taken), pad.status()["qos"]["policy"]["contracts"]

    def fails(*_: object) -> None:
        raise RuntimeError("a fault")

    before = standing()
    with monkeypatch.context() as patched:
        patched.setattr(MatchTable, "add", fails)
        with pytest.raises(RuntimeError, match="a fault"):
            pad.delegate.registrations.register(connection, request, uid=uid, number=1)
    assert standing() == before
    made = pad.delegate.registrations.register(connection, request, uid=uid, number=1)
    assert len(made.topic.table) == 1
    assert standing() != before


def test_a_query_is_bounded_as_a_whole() -> None:
    with pytest.raises(OversizeError, match="1,048,576"):
        check_query(QueryRequest(object_ids=tuple(f"{number:01000}" for number in range(2_000))))
    with pytest.raises(OversizeError):
        check_query(QueryRequest(entries=notes(BOUNDS.entries + 1, 1)))
    check_query(QueryRequest(object_ids=tuple(f"registration-{number:032}-1" for number in range(10_000))))


def test_open_queries_count_among_what_a_peer_has(
    small_shares: int, archived: Any, stranger: Callable[..., Stranger], eventually: Any
) -> None:
    """Given large queries, as many are open as its share takes; what has ended counts no more."""
    peer = stranger(archived.pad())
    asked = QueryRequest(object_ids=tuple(f"{number:01000}" for number in range(7)))
    opened = [peer.asking.open_query(peer.session, asked) for _ in range(2)]
    with pytest.raises(OversizeError, match=r"127\.0\.0\.1 has .*At most 20,000"):
        peer.asking.open_query(peer.session, asked)
    peer.asking.cancel_query(peer.session, opened[0].number)
    peer.subscribing.close_session(peer.session)
    peer.session = peer.subscribing.open("stranger", 60.0).uid

    def is_open() -> bool:
        with suppress(OversizeError):  # queries end on a thread of their own
            peer.asking.open_query(peer.session, asked)
            return True
        return False

    eventually(is_open)


def test_durable_subscriptions_that_nobody_has_open_count_as_well(
    small_shares: int, archived: Any, stranger: Callable[..., Stranger]
) -> None:
    peer = stranger(archived.pad())

    def leave_many() -> None:
        for number in range(100):
            note = tuple((f"note-{n}", "x" * 900) for n in range(3))
            peer.subscribe(SubscriptionRequest(f"s{number}", durable=f"d{number}", secret=SECRET, attributes=note))
            peer.subscribing.close_session(peer.session)
            peer.session = peer.subscribing.open("stranger", 60.0).uid

    with pytest.raises(OversizeError, match=r"127\.0\.0\.1 has .*At most 20,000"):
        leave_many()


def test_shares_are_each_peers_own() -> None:
    shares = RequestQuota(100)
    taken = shares.take(Caller("10.0.0.1:1"), 80)
    with pytest.raises(OversizeError):
        shares.take(Caller("10.0.0.1:2"), 30)
    shares.take(Caller("10.0.0.2:1"), 80)
    shares.take(Caller("10.0.0.1:3", identity="CN=anna"), 80)
    shares.take(None, 1_000)
    shares.give_back(taken)
    shares.take(Caller("10.0.0.1:2"), 100)


def test_all_that_an_owner_has_at_a_lookup_service_is_bounded() -> None:
    """Items and event registrations together, however they come to be as large as they are."""
    registrar = Registrar(limits=RegistrarLimits(bytes_per_owner=10_000))

    def item(name: str, size: int) -> ServiceItem:
        return ServiceItem(name, (), ServiceRef(name, name, ("127.0.0.1:1",)), notes(1, size))

    def refused(call: Callable[[], object]) -> None:
        with pytest.raises(LeaseDeniedError, match="10,000 bytes"):
            call()

    one = registrar.register(item("1", 3_000), 60.0, 0.0, owner="a").result
    watch = registrar.notify(ServiceTemplate(entries=notes(1, 3_000)), 7, 60.0, 0.0, owner="a").result
    refused(lambda: registrar.register(item("2", 4_000), 60.0, 0.0, owner="a"))
    refused(lambda: registrar.notify(ServiceTemplate(entries=notes(1, 4_000)), 7, 60.0, 0.0, owner="a"))
    refused(lambda: registrar.set_attributes(one.service_id, one.lease_id, notes(1, 7_000), 0.0))
    registrar.register(item("2", 4_000), 60.0, 0.0, owner="b")
    registrar.register(item("1", 5_000), 60.0, 0.0, owner="a")  # in its own place
    registrar.cancel(watch.lease_id, 0.0)
    registrar.register(item("3", 4_000), 60.0, 0.0, owner="a")
    registrar.expire(100.0)
    registrar.register(item("4", 9_000), 60.0, 100.0, owner="a")


def test_a_request_is_refused_before_it_takes_room(federation: Any, stranger: Callable[..., Stranger]) -> None:
    """Given requests of many megabytes, the delegate's answer names the bound, and it goes on."""
    pad = federation.pad()
    peer = stranger(pad)
    for _ in range(5):
        with pytest.raises(JbiError, match="At most 262,144"):
            peer.subscribe(SubscriptionRequest("s", language="x" * 5_000_000))
    peer.subscribe(SubscriptionRequest("s"))
    assert len(pad.status()["subscriptions"]) == 1
