"""What a peer that may only open a port can't do to a delegate: use what is not its own, exhaust it, poison it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import msgspec
import pytest

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.access import AllowAll, Decision, Subject
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    AddressError,
    ConfigurationError,
    EntryError,
    JbiError,
    LeaseDeniedError,
    OversizeError,
    ProtocolError,
    UnknownUidError,
    rebuild,
)
from jbi_pubsub.core.info_object import (
    COUNT_BELIEVED,
    Cause,
    Head,
    InfoObject,
    LossNotice,
    Parcel,
    Platform,
    SchemaBundle,
    TypeName,
    decode,
    encode,
    pack,
)
from jbi_pubsub.core.lease import ANY, FOREVER, Lease
from jbi_pubsub.core.wire.control import MAX_CONTROL_FRAME, ControlServer
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import CONTROL, DATA, MAGIC, PREAMBLE, Caller, Endpoint, Security
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.core.wire.ref import PROTOCOL, ServiceRef
from jbi_pubsub.core.wire.stream import FRAME, HELLO, ITEMS, MAX_FRAME_BYTES
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.entry import EntryClass, EntryRep
from jbi_pubsub.pad.delegate.tables import UNATTACHED_SECONDS
from jbi_pubsub.pad.egress.budget import SHARE, Budget
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.subscription import compile_subscription
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest, check_recipients
from jbi_pubsub.protocol.services import DELEGATE, SUBSCRIPTIONS, DelegateProxy, SubscriptionsProxy, fetch_status

TYPE = "mil.af.rl.jbi.Intel_Imagery"
SECRET = "0123456789abcdef" * 2
UID = owned_uid("registration", SECRET)
MAIL = SubscriptionRequest(
    owned_uid("subscription", SECRET), direct=False, recipients=("chief@example.org",), secret=SECRET
)


class Policy(AllowAll):
    """An access policy that remembers what it was asked, and forbids some actions."""

    def __init__(self, *forbidden: str) -> None:
        self.forbidden = set(forbidden)
        self.asked: list[tuple[str, str]] = []

    def allow(self, caller: Caller, action: str, subject: Subject) -> Decision:  # noqa: ARG002  # the protocol's parameters
        self.asked.append((action, subject.type))
        return Decision(action not in self.forbidden)


class Peer:
    """Somebody who knows the address of a delegate and speaks its protocol."""

    def __init__(self, pad: DisseminationServer) -> None:
        self.pad = pad
        self.ref = pad.endpoints.ref(SUBSCRIPTIONS, ())
        self.publishing = DelegateProxy(pad.endpoints.ref(DELEGATE, ()), Security(), timeout=60.0)
        self.subscribing = SubscriptionsProxy(self.ref, Security(), timeout=60.0)

    def status(self) -> dict[str, Any]:
        """As the status page has it."""
        return fetch_status(self.ref, Security(), timeout=60.0)

    def subscribe(self, session: str, request: SubscriptionRequest) -> Any:
        """The grant. Raises what the delegate says."""
        (answer,) = self.subscribing.subscribe(session, [request], 60.0, [0.0])
        if answer.error is not None:
            raise rebuild(answer.error)
        return answer.granted

    def close(self) -> None:
        self.publishing.close()
        self.subscribing.close()


@pytest.fixture
def meet(federation: Any) -> Iterator[Callable[[DisseminationServer], Peer]]:
    """meet(pad) is a peer of the delegate."""
    with ExitStack() as stack:
        yield lambda pad: stack.enter_context(closing(Peer(pad)))


@pytest.fixture
def guarded(federation: Any) -> Iterator[Callable[..., DisseminationServer]]:
    """guarded(policy) is a delegate with an access hook."""
    with ExitStack() as stack:

        def make(policy: Policy) -> DisseminationServer:
            server = DisseminationServer(
                federation.config, TypeRepository(), characteristics=("alpha", "rome"), access=policy
            )
            server.start()
            stack.callback(server.stop, 0.5)
            return server

        yield make


def _with_pad(federation: Any, **changes: Any) -> Any:
    section = msgspec.structs.replace(federation.config.pad, **changes)
    return msgspec.structs.replace(federation.config, pad=section)


def _bundle(figures: Any, name: str = "", **changed: str) -> SchemaBundle:
    text = figures.schema.read_bytes()
    for old, new in changed.items():
        text = text.replace(f'name="{old}"'.encode(), f'name="{new}"'.encode())
    return read_bundle(text, marks=None, name=name, version="1.0", locations={})


# -- secrets ------------------------------------------------------------------------------------------------------


def test_a_status_page_shows_no_id_that_could_be_used(federation: Any, figures: Any, meet: Callable[..., Peer]) -> None:
    # Given a delegate with a publisher, a subscriber, and an e-mail subscription
    pad = federation.pad()
    owner, stranger = meet(pad), meet(pad)
    publisher = owner.publishing.connect("publisher", 60.0)
    owner.publishing.register(publisher.uid, PublisherRequest(_bundle(figures), (), secret=SECRET), UID, 1)
    subscriber = owner.subscribing.open("subscriber", 60.0)
    owner.subscribe(subscriber.uid, SubscriptionRequest("direct"))
    mail = owner.subscribe("", MAIL)
    # When a stranger asks for the status
    status = stranger.status()
    # Expect everything to be there, but no connection, session or lease id
    text = json.dumps(status)
    assert len(status["publishers"]) == len(status["sessions"]) == len(status["registrations"]) == 1
    assert {s["uid"] for s in status["subscriptions"]} == {"direct", MAIL.uid}
    for secret in (publisher.uid, publisher.lease.lease_id, subscriber.uid, subscriber.lease.lease_id, SECRET):
        assert secret not in text
        assert secret.partition("-")[2] not in text or "-" not in secret
    assert mail.lease.lease_id not in text
    # Expect what it shows instead to open nothing
    shown = status["publishers"][0]["id"], status["sessions"][0]["session"], status["subscriptions"][0]["owner"]
    for uid in shown:
        for attempt in (
            lambda uid=uid: stranger.publishing.open_publications(uid),
            lambda uid=uid: stranger.publishing.unregister(uid, UID),
            lambda uid=uid: stranger.publishing.disconnect(uid),
            lambda uid=uid: stranger.subscribing.open_deliveries(uid),
            lambda uid=uid: stranger.subscribing.unsubscribe(uid, "direct"),
            lambda uid=uid: stranger.subscribing.close_session(uid),
            lambda uid=uid: stranger.subscribe(uid, SubscriptionRequest("mine")),
        ):
            with pytest.raises(UnknownUidError):
                attempt()
    assert stranger.status()["subscriptions"] == status["subscriptions"]


def test_a_status_page_tells_sessions_apart(federation: Any, meet: Callable[..., Peer]) -> None:
    pad = federation.pad()
    peer = meet(pad)
    sessions = {peer.subscribing.open("same name", 60.0).uid for _ in range(3)}
    shown = [session["session"] for session in peer.status()["sessions"]]
    assert len(sessions) == len(set(shown)) == 3
    assert all(uid.startswith("session-") for uid in shown)


def test_who_cancels_an_email_subscription_must_be_allowed_to_administer(
    guarded: Callable[..., Any], meet: Callable[..., Peer]
) -> None:
    # Given a delegate that lets nobody administer, and an e-mail subscription
    policy = Policy("administer")
    peer = meet(guarded(policy))
    peer.subscribe("", MAIL)
    # When somebody cancels it
    # Expect a refusal, and the subscription to stand
    with pytest.raises(AccessDeniedError, match="administer"):
        peer.subscribing.unsubscribe("", MAIL.uid)
    assert [s["uid"] for s in peer.status()["subscriptions"]] == [MAIL.uid]
    # When administering is allowed, expect it to be cancelled
    policy.forbidden.clear()
    peer.subscribing.unsubscribe("", MAIL.uid)
    assert peer.status()["subscriptions"] == []


@pytest.mark.parametrize("session", ["own", "made up"])
def test_a_session_id_gives_no_right_to_email_subscriptions(
    session: str, guarded: Callable[..., Any], meet: Callable[..., Peer]
) -> None:
    # Given a delegate that lets nobody administer, an e-mail subscription, and a stranger with a session of its own
    pad = guarded(Policy("administer"))
    owner, stranger = meet(pad), meet(pad)
    owner.subscribe("", MAIL)
    uid = stranger.subscribing.open("stranger", 60.0).uid if session == "own" else "session-made-up"
    # When the stranger cancels the e-mail subscription under that session
    # Expect a refusal, and the subscription to stand
    with pytest.raises(JbiError):
        stranger.subscribing.unsubscribe(uid, MAIL.uid)
    assert [s["uid"] for s in owner.status()["subscriptions"]] == [MAIL.uid]


# -- access -------------------------------------------------------------------------------------------------------


def test_the_access_hook_is_asked_about_the_type_that_the_schema_decides(
    guarded: Callable[..., Any], federation: Any, figures: Any
) -> None:
    # Given a delegate with an access hook
    policy = Policy()
    guarded(policy)
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    # When a publisher registers without naming the type, as the schema does
    publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    # Expect the hook to be asked whether some type may be published, and then about that one
    assert [type_name for action, type_name in policy.asked if action == "publish"] == ["", TYPE]


def test_a_type_whose_publication_is_forbidden_is_not_registered(
    guarded: Callable[..., Any], federation: Any, figures: Any
) -> None:
    policy = Policy()
    policy.allow = lambda _caller, _action, subject: Decision(subject.type != TYPE)  # type: ignore[method-assign,assignment]
    pad = guarded(policy)
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    with pytest.raises(AccessDeniedError, match=TYPE):
        publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    assert pad.status()["registrations"] == []


# -- types --------------------------------------------------------------------------------------------------------


def _poison(peer: Peer, figures: Any, how: str) -> None:
    """Fail to register the type "Victim" with a schema that is not its own."""
    wrong = PublisherRequest(_bundle(figures, "Victim", lat="latitude"), (), secret=SECRET)
    if how == "unknown connection":
        peer.publishing.register("connection-made-up", wrong, UID, 1)
    connection = peer.publishing.connect("stranger", 60.0).uid
    if how == "bad registration id":
        peer.publishing.register(connection, wrong, "not-a-registration", 1)
    if how == "forged entries":
        forged = EntryRep(EntryClass("Forged", ("a", "b"), (("Forged", "1"),)), ("only one",))
        peer.publishing.register(connection, msgspec.structs.replace(wrong, entries=(forged,)), UID, 1)
    if how == "forbidden":
        peer.publishing.register(connection, wrong, UID, 1)


@pytest.mark.parametrize(
    "how",
    [
        "unknown connection",
        "bad registration id",
        "forged entries",
        "forbidden",
    ],
)
def test_a_refused_registration_leaves_no_type_behind(
    how: str, guarded: Callable[..., Any], figures: Any, meet: Callable[..., Peer]
) -> None:
    # Given a registration of a type with a wrong schema that is refused
    policy = Policy(*(("publish",) if how == "forbidden" else ()))
    pad = guarded(policy)
    with pytest.raises(JbiError):
        _poison(meet(pad), figures, how)
    policy.forbidden.clear()
    # When the type is registered with the right one
    honest = meet(pad)
    connection = honest.publishing.connect("honest", 60.0).uid
    honest.publishing.register(connection, PublisherRequest(_bundle(figures, "Victim"), (), secret=SECRET), UID, 1)
    # Expect that to be taken
    assert [r["uid"] for r in honest.status()["registrations"]] == [UID]


# -- forged values ------------------------------------------------------------------------------------------------

FORGED = {
    "too few values": EntryRep(EntryClass("Forged", ("a", "b"), (("Forged", "1"),)), ("only one",)),
    "too many values": EntryRep(EntryClass("Forged", ("a",), (("Forged", "1"),)), ("one", "two")),
    "no lineage": EntryRep(EntryClass("Forged", (), ()), ()),
    "another's lineage": EntryRep(EntryClass("Forged", (), (("Other", "1"),)), ()),
}


@pytest.mark.parametrize("rep", FORGED.values(), ids=FORGED)
def test_a_forged_entry_is_refused_and_the_delegate_stays_usable(
    rep: EntryRep, federation: Any, figures: Any, meet: Callable[..., Peer]
) -> None:
    # Given a peer with a connection and a session
    peer = meet(federation.pad())
    connection = peer.publishing.connect("stranger", 60.0).uid
    session = peer.subscribing.open("stranger", 60.0).uid
    # When it subscribes and registers with entries that no class could make
    # Expect refusals
    with pytest.raises(EntryError):
        peer.subscribe(session, SubscriptionRequest("forged", (rep,)))
    with pytest.raises(EntryError):
        peer.publishing.register(connection, PublisherRequest(_bundle(figures), (rep,), secret=SECRET), UID, 1)
    # Expect the status page to show that nothing came of it
    status = peer.status()
    assert (status["subscriptions"], status["registrations"]) == ([], [])


@pytest.mark.parametrize("seconds", [1e9, 60.5, -1.0, float("nan"), float("inf"), float("-inf")])
def test_nobody_may_hold_publishers_up_for_longer_than_a_minute(
    seconds: float, federation: Any, meet: Callable[..., Peer]
) -> None:
    # When a subscription asks for another time to block its publishers
    # Expect a refusal
    request = SubscriptionRequest("blocking", bound=1, policy="block", block_seconds=seconds)
    with pytest.raises(ConfigurationError, match="block_seconds"):
        compile_subscription(request, owner="session-1", number=1)
    # Expect the same over the wire
    peer = meet(federation.pad())
    session = peer.subscribing.open("stranger", 60.0).uid
    with pytest.raises(JbiError):
        peer.subscribe(session, request)
    assert peer.status()["subscriptions"] == []


@pytest.mark.parametrize("seconds", [0.0, 5.0, 60.0])
def test_a_publisher_may_be_held_up_for_up_to_a_minute(seconds: float) -> None:
    request = SubscriptionRequest("blocking", bound=1, policy="block", block_seconds=seconds)
    assert compile_subscription(request, owner="session-1", number=1).request == request


@pytest.mark.parametrize(
    "address",
    [
        "a@[",
        "a@[b",
        "(" * 3000 + "a@b.org",
        "a" * 250 + "@b.org",
        ".a@b.org",
        "a..b@b.org",
        "a@b.org\r\nRCPT TO:<c@b.org>",
        "a@b.org\n",
        "a@-\0",
        '"a b"@b.org',
        "@relay:a@b.org",
        "a@b@c.org",
        "a@b..org",
    ],
    ids=lambda address: repr(address)[:20],
)
def test_what_is_no_address_is_an_error_of_ours_that_does_not_repeat_it_all(address: str) -> None:
    request = msgspec.structs.replace(MAIL, recipients=("good@example.org", address))
    with pytest.raises(AddressError, match="not exactly one plain") as caught:
        compile_subscription(request, owner="session-1", number=1)
    assert len(str(caught.value)) < 600
    assert len(caught.value.facts["address"]) <= 254


@pytest.mark.parametrize(
    "address", ["o'brien+x@mail.example.org", "a.b@localhost", "a@[192.0.2.1]", "a@[IPv6:2001:db8::1]"]
)
def test_a_plain_address_is_one(address: str) -> None:
    assert check_recipients((address,)) == (address,)


def _numbered(sequence: int) -> InfoObject:
    return InfoObject("object-1", TypeName("t"), b"<m/>", b"", Platform(1.0, "registration-1", sequence, 4, 0))


@pytest.mark.parametrize("sequence", [2**53 + 1, 2**60, 2**63, -1])
def test_a_sequence_number_that_leaves_no_room_for_others_is_refused(sequence: int) -> None:
    with pytest.raises(ProtocolError, match="sequence"):
        decode(memoryview(b"".join(encode(_numbered(sequence)))))


@pytest.mark.parametrize("sequence", [0, 1, 2**53])
def test_any_number_that_a_publisher_can_reach_is_taken(sequence: int) -> None:
    assert decode(memoryview(b"".join(encode(_numbered(sequence))))) == _numbered(sequence)


@pytest.mark.parametrize(
    ("claimed", "told"), [(0, 0), (1, 1), (COUNT_BELIEVED, COUNT_BELIEVED), (2**53 - 2, 0), (2**63, 0), (-1, 0)]
)
def test_a_loss_of_more_than_can_be_is_one_of_an_unknown_number(claimed: int, told: int) -> None:
    # Given a notice of so many lost objects, as a forged number makes one, or a delegate tells; Expect a number that
    # may be true, wherever it was made
    made = LossNotice("subscription-1", Cause.SEQUENCE_GAP, claimed)
    raw = msgspec.msgpack.encode(
        {"subscription": "subscription-1", "cause": "sequence_gap", "count": claimed, "detail": ""}
    )
    assert made.count == msgspec.msgpack.decode(raw, type=LossNotice).count == told


def test_an_object_that_has_passed_more_nodes_than_may_be_is_refused() -> None:
    head = Head("object1", "registration-1", 1, 1.0, "t", "1.0", b"<m/>", 0, 255, ("",) * 255)
    assert Parcel.received(b"".join(pack(head, b"").parts)).head == head
    beyond = msgspec.structs.replace(head, via=("",) * 256)
    with pytest.raises(ProtocolError, match="via"):
        Parcel.received(b"".join(pack(beyond, b"").parts))


# -- memory -------------------------------------------------------------------------------------------------------

AFFORDABLE = 8 << 20
"""Bytes: a few steps of memory for a frame, far below what is announced."""


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """traced() is the largest amount of memory in use since the test began, beyond what was in use then."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()


def _end_of(sock: socket.socket) -> bytes:
    """What the server still says until it closes, once it has seen that nothing more comes."""
    sock.settimeout(60.0)
    said = b""
    with suppress(OSError):  # it may have closed already
        sock.shutdown(socket.SHUT_WR)
    with suppress(ConnectionError):
        while data := sock.recv(1 << 16):
            said += data
    return said


@pytest.mark.parametrize(
    ("plane", "header"),
    [
        (DATA, FRAME.pack(MAX_FRAME_BYTES, HELLO)),
        (DATA, FRAME.pack(MAX_FRAME_BYTES, ITEMS)),
        (CONTROL, struct.pack("!LB", MAX_CONTROL_FRAME - 1, 0)),
    ],
    ids=["hello", "items before a hello", "call"],
)
def test_a_stranger_that_announces_a_huge_frame_costs_no_such_memory(
    plane: bytes, header: bytes, federation: Any, traced: Callable[[], int]
) -> None:
    # Given a delegate
    host, _, port = federation.pad().address.rpartition(":")
    with ExitStack() as stack:
        # When strangers announce as much as is allowed, and send next to nothing
        strangers = [stack.enter_context(socket.create_connection((host, int(port)), 5.0)) for _ in range(4)]
        for stranger in strangers:
            stranger.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, plane) + header + b"next to nothing")
        for stranger in strangers:
            _end_of(stranger)
    # Expect the delegate to have taken no memory for what did not come
    assert traced() < AFFORDABLE


def test_a_stranger_that_announces_more_than_a_hello_is_not_listened_to(federation: Any) -> None:
    # Given a stranger on the data plane that announces somewhat more than the largest hello
    host, _, port = federation.pad().address.rpartition(":")
    with socket.create_connection((host, int(port)), 5.0) as stranger:
        stranger.sendall(PREAMBLE.pack(MAGIC, PROTOCOL, DATA) + FRAME.pack(1025, HELLO))
        # Expect to be disconnected without having sent any of it
        assert stranger.recv(1) == b""


def test_a_publisher_that_announces_a_huge_batch_costs_no_such_memory(
    federation: Any, meet: Callable[..., Peer], traced: Callable[[], int], eventually: Callable[..., Any]
) -> None:
    # Given publishers with a data connection
    peer = meet(federation.pad())
    with ExitStack() as stack:
        publishers = []
        for _ in range(4):
            uid = peer.publishing.connect("publisher", 60.0).uid
            sock = stack.enter_context(closing(dial(peer.publishing.ref, DATA, Security(), 5.0)))
            greet(StreamSocket(sock), Hello(peer.publishing.open_publications(uid)))
            publishers.append(sock)
        # When each announces the largest batch, and sends next to nothing of it
        for sock in publishers:
            sock.setblocking(True)
            sock.sendall(FRAME.pack(MAX_FRAME_BYTES, ITEMS) + b"next to nothing")
        for sock in publishers:
            _end_of(sock)
    # Expect the delegate to have taken no memory for what did not come
    assert traced() < AFFORDABLE


@pytest.mark.processes
def test_a_frame_that_does_come_is_read_whole() -> None:
    # Given a line, and a frame of several of the steps in which memory is taken
    left, right = socket.socketpair()
    with closing(left), closing(right):
        body = bytes(range(256)) * (20 << 10)
        sending = threading.Thread(target=lambda: StreamSocket(left).send(ITEMS, [body], 10.0))
        sending.start()
        # When it comes, expect all of it
        kind, received = StreamSocket(right).receive(10.0)
        sending.join()
    assert (kind, bytes(received) == body) == (ITEMS, True)


@pytest.mark.processes
def test_a_frame_larger_than_is_expected_is_refused_unread() -> None:
    left, right = socket.socketpair()
    with closing(left), closing(right):
        left.sendall(FRAME.pack(1025, HELLO))
        with pytest.raises(ProtocolError, match="1025"):
            StreamSocket(right).receive(5.0, limit=1024)


# -- numbers ------------------------------------------------------------------------------------------------------


class Connected:
    """Data connections of a peer's sessions and publishers."""

    def __init__(self, peer: Peer, stack: ExitStack) -> None:
        self._peer = peer
        self._stack = stack

    def _attach(self, token: str) -> None:
        sock = self._stack.enter_context(closing(dial(self._peer.ref, DATA, Security(), 5.0)))
        greet(StreamSocket(sock), Hello(token))

    def session(self) -> str:
        """A subscriber session with a delivery connection."""
        uid = self._peer.subscribing.open("subscriber", 60.0).uid
        self._attach(self._peer.subscribing.open_deliveries(uid))
        return uid

    def publisher(self) -> str:
        """A publisher with a data connection."""
        uid = self._peer.publishing.connect("publisher", 60.0).uid
        self._attach(self._peer.publishing.open_publications(uid))
        return uid


@pytest.mark.row("G-134")
def test_sessions_and_publishers_are_bounded(federation: Any, meet: Callable[..., Peer]) -> None:
    # Given a delegate for two sessions and two publishers, taken by some that are connected
    peer = meet(federation.pad(config=_with_pad(federation, max_sessions=2)))
    with ExitStack() as stack:
        connected = Connected(peer, stack)
        sessions = [connected.session() for _ in range(2)]
        connections = [connected.publisher() for _ in range(2)]
        # When a third of each comes, expect a refusal that leaves no lease
        with pytest.raises(OversizeError, match="sessions"):
            peer.subscribing.open("subscriber", 60.0)
        with pytest.raises(OversizeError, match="publishers"):
            peer.publishing.connect("publisher", 60.0)
        assert peer.status()["leases"] == 4
        # When one of each leaves, expect there to be room again
        peer.subscribing.close_session(sessions[0])
        peer.publishing.disconnect(connections[0])
        assert peer.subscribing.open("subscriber", 60.0).uid not in sessions
        assert peer.publishing.connect("publisher", 60.0).uid not in connections


def test_strangers_who_open_sessions_without_end_keep_nobody_out(federation: Any, meet: Callable[..., Peer]) -> None:
    # Given a delegate for twenty sessions and twenty publishers, and one of each that is connected
    pad = federation.pad(config=_with_pad(federation, max_sessions=20))
    stranger, peer = meet(pad), meet(pad)
    with ExitStack() as stack:
        connected = Connected(peer, stack)
        session, connection = connected.session(), connected.publisher()
        # When a stranger opens a hundred of each for a week, and connects none
        opened = [stranger.subscribing.open("stranger", 604_800.0) for _ in range(100)]
        opened += [stranger.publishing.connect("stranger", 604_800.0) for _ in range(100)]
        # Expect no more than there are places for, none for longer than the client of one needs to connect
        status = peer.status()
        assert (len(status["sessions"]), len(status["publishers"]), status["leases"]) == (20, 20, 40)
        assert {each.lease.duration for each in opened} == {UNATTACHED_SECONDS}
        # Expect whoever is connected to stay, others to find a place, and each lease to be in the book once
        pad.delegate.tables.session(session)
        pad.delegate.tables.connection(connection)
        connected.session()
        connected.publisher()
        assert len(pad.delegate.tables.leases.unattached) == 36
    with pytest.raises(UnknownUidError):
        pad.delegate.tables.session(opened[0].uid)


@pytest.mark.parametrize("kind", ["session", "publisher"])
@pytest.mark.parametrize(("asked", "short"), [(60.0, 15.0), (ANY, 15.0), (2.0, 2.0), (FOREVER, 15.0)])
def test_a_lease_is_short_until_the_data_connection_stands(
    kind: str, asked: float, short: float, federation: Any, meet: Callable[..., Peer]
) -> None:
    # Given somebody who opens a session, or connects as a publisher
    pad = federation.pad()
    peer = meet(pad)
    proxy = peer.subscribing if kind == "session" else peer.publishing
    opened = (peer.subscribing.open if kind == "session" else peer.publishing.connect)("peer", asked)

    def left() -> float:
        return pad.delegate.tables.leases.landlord.left(opened.lease.lease_id, time.monotonic())

    # Expect a short lease, however often it is renewed
    assert opened.lease.duration == short
    assert proxy.renew(opened.lease.lease_id, asked).duration == short
    # When its data connection stands, expect the term that it has asked for, at once and when it renews
    token = (peer.subscribing.open_deliveries if kind == "session" else peer.publishing.open_publications)(opened.uid)
    granted = {ANY: 300.0, FOREVER: 604_800.0}.get(asked, asked)
    with closing(dial(peer.ref, DATA, Security(), 5.0)) as sock:
        greet(StreamSocket(sock), Hello(token))
        assert granted - 5.0 < left() <= granted
        assert proxy.renew(opened.lease.lease_id, asked).duration == pytest.approx(granted, abs=5.0)
    assert pad.delegate.tables.leases.unattached == {}


@pytest.mark.parametrize("asked", [float("nan"), -5.0])
def test_what_is_no_duration_is_refused_before_and_behind_the_data_connection(
    asked: float, federation: Any, meet: Callable[..., Peer]
) -> None:
    pad = federation.pad()
    peer = meet(pad)
    with pytest.raises(LeaseDeniedError):
        peer.subscribing.open("peer", asked)
    opened = peer.subscribing.open("peer", 60.0)
    with pytest.raises(LeaseDeniedError):
        peer.subscribing.renew(opened.lease.lease_id, asked)
    with closing(dial(peer.ref, DATA, Security(), 5.0)) as sock:
        greet(StreamSocket(sock), Hello(peer.subscribing.open_deliveries(opened.uid)))
    assert len(peer.status()["sessions"]) == 1


def test_a_data_connection_of_a_publisher_that_has_left_is_refused(
    federation: Any, meet: Callable[..., Peer], eventually: Callable[..., Any]
) -> None:
    # Given a publisher that asks for a data connection, and leaves before it opens it
    pad = federation.pad()
    peer = meet(pad)
    connection = peer.publishing.connect("publisher", 60.0).uid
    token = peer.publishing.open_publications(connection)
    peer.publishing.disconnect(connection)
    # When it opens it, expect a refusal, and nothing to be held for it
    before = peer.status()["connections"]
    with (
        closing(dial(peer.publishing.ref, DATA, Security(), 5.0)) as sock,
        pytest.raises(ProtocolError, match="no publisher connection"),
    ):
        greet(StreamSocket(sock), Hello(token))
    assert pad.service.data._publications == {}
    eventually(lambda: peer.status()["connections"] == before)


def test_what_is_refused_of_a_publisher_that_leaves_meanwhile_is_not_kept(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher that leaves while an object of it is refused
    pad = federation.pad()
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    publisher.publish(registration, figures.figure_1)
    publisher.flush()
    before = _kept(pad)
    tried = threading.Event()

    def left_meanwhile(*_rest: Any) -> int:
        for connection in list(pad.delegate.tables.connections):
            pad.delegate.publishers.disconnect(connection)
            pad.service.data.forget(connection)
        tried.set()
        raise OversizeError("refused")

    monkeypatch.setattr(pad.delegate.publishers, "publish", left_meanwhile)
    publisher.publish(registration, figures.figure_1)
    assert tried.wait(60.0)
    monkeypatch.undo()
    # When it has come back, expect no more to be kept than before
    publisher.publish(registration, figures.figure_1)
    publisher.flush(60.0)
    assert _kept(pad) == before


def _kept(pad: DisseminationServer) -> dict[str, int]:
    """How much the server keeps by connection, in each of its tables."""
    return {name: len(table) for name, table in vars(pad).items() if isinstance(table, dict)}


def test_a_session_without_a_delivery_connection_costs_no_thread(federation: Any, meet: Callable[..., Peer]) -> None:
    # Given a delegate and a peer of it
    peer = meet(federation.pad())
    peer.subscribing.open("first", 60.0)
    before = set(threading.enumerate())
    # When the peer opens many sessions
    for _ in range(40):
        peer.subscribing.open("session", 60.0)
    # Expect no thread for each of them
    assert len(set(threading.enumerate()) - before) < 10
    assert len(peer.status()["sessions"]) == 41


@pytest.mark.processes
def test_a_port_goes_on_accepting_after_the_system_had_no_thread_left(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a port, and a system without a thread for its next connection
    control = ControlServer({}).serve
    endpoint = Endpoint("127.0.0.1", 0, name="busy", security=Security(), control=control, data=control)
    endpoint.start()
    start = threading.Thread.start
    full = [True]

    def scarce(thread: threading.Thread) -> None:
        if full[0] and thread.name.startswith("busy-127"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    ref = ServiceRef("", "status", (f"127.0.0.1:{endpoint.port}",))
    # When somebody connects, expect the connection to be closed
    with closing(dial(ref, CONTROL, Security(), 5.0)) as refused:
        assert _end_of(refused) == b""
    assert (endpoint.connections.refused, len(endpoint.connections)) == (1, 0)
    # When there are threads again, expect the next one to be served
    full[0] = False
    with closing(dial(ref, CONTROL, Security(), 5.0)) as sock:
        sock.sendall(struct.pack("!LB", MAX_CONTROL_FRAME + 1, 0))
        assert _end_of(sock) == b""
    assert endpoint.connections.refused == 1
    endpoint.stop()


# -- a share of the memory ----------------------------------------------------------------------------------------


def _parcel(size: int) -> Parcel:
    """An object of so many bytes in all."""
    head = Head("object1", "registration-1", 1, 1.0, "t", "1.0", b"<m/>", 0)
    return pack(head, b"x" * (size - pack(head, b"").size))


@pytest.mark.parametrize("policy", ["drop_oldest", "drop_newest"])
def test_a_queue_may_hold_an_eighth_of_the_memory_then_its_policy_decides(policy: Any) -> None:
    # Given memory for 80 kB, and two subscriptions with room for thousands of objects each
    budget = Budget(80_000)
    assert budget.share == 80_000 // SHARE == 10_000
    session = SubscriberSession("session-1", name="stalled", budget=budget, hub=SenderHub(name="test"))
    stalled, other = (
        compile_subscription(SubscriptionRequest(uid, policy=policy), owner="session-1", number=number)
        for number, uid in enumerate(("stalled", "other"), 1)
    )
    session.add(stalled)
    session.add(other)
    # When 50 objects of 1 kB come for one that takes none
    for _ in range(50):
        session.offer([(stalled, _parcel(1000))])
    # Expect ten to wait, the others lost by its policy and told so, and no more memory taken
    assert session.status()["queued"]["stalled"] == 10
    assert stalled.lost == {"queue_overflow": 40}
    assert budget.used == 10_000
    # Expect room for the other one
    assert session.offer([(other, _parcel(1000))]) == []
    assert other.lost == {}
    assert budget.used == 11_000


def test_large_objects_do_not_take_more_than_the_share_in_the_place_of_small_ones() -> None:
    # Given a queue that holds its share in small objects
    budget = Budget(80_000)
    session = SubscriberSession("session-1", name="stalled", budget=budget, hub=SenderHub(name="test"))
    subscription = compile_subscription(SubscriptionRequest("stalled"), owner="session-1", number=1)
    session.add(subscription)
    session.offer([(subscription, _parcel(100)) for _ in range(100)])
    # When large ones come, expect as many small ones to go as it takes, each counted
    for _ in range(20):
        session.offer([(subscription, _parcel(3000))])
        assert budget.used < budget.share + 3000
    queued = session.status()["queued"]["stalled"]
    assert queued == 4
    assert subscription.matched == 120 == queued + subscription.lost["queue_overflow"]


def test_a_queue_takes_one_object_larger_than_its_share() -> None:
    budget = Budget(80_000)
    session = SubscriberSession("session-1", name="large", budget=budget, hub=SenderHub(name="test"))
    subscription = compile_subscription(SubscriptionRequest("large"), owner="session-1", number=1)
    session.add(subscription)
    assert session.offer([(subscription, _parcel(20_000))]) == []
    assert (subscription.lost, budget.used) == ({}, 20_000)


def test_a_subscriber_that_takes_nothing_stops_no_publisher_and_no_other_subscriber(
    federation: Any, figures: Any
) -> None:
    # Given a delegate with memory for 1 MB, a subscriber that never connects, and one that listens
    config = _with_pad(federation, max_queued_bytes=1 << 20)
    config = msgspec.structs.replace(config, queue=msgspec.structs.replace(config.queue, block_seconds=0.1))
    pad = federation.pad(config=config)
    stalled, _ = pad.delegate.sessions.open("stalled", 60.0)
    pad.delegate.subscribers.subscribe(stalled, SubscriptionRequest("stalled"), 60.0)
    publisher = federation.light()
    delegate = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(delegate, figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(uid) == 1
    # When 40 objects of 50 kB are published, twice the memory
    received = []
    for _ in range(40):
        publisher.publish(registration, figures.figure_1, b"x" * 50_000)
        obj = subscriber.receive(uid, 60.0)
        received.append(obj and obj.platform.sequence)
    # Expect all of them to be taken and to reach who listens
    publisher.flush()
    assert received == list(range(1, 41))
    status = pad.status()
    assert [r["refused"] for r in status["registrations"]] == [0]
    # Expect the other's queue to be within its share, and the rest told as lost
    assert status["queued_bytes"] < (1 << 20) // SHARE + 60_000
    assert status["lost"] == {"queue_overflow": 37}


# -- a delegate that is not trusted -------------------------------------------------------------------------------

GARBAGE_ANSWERS = {
    "a report that is not UTF-8": (False, b"\x82\xa4code\xa5error\xa7message\xa1\xff"),
    "a report of depth": (False, b"\x81\xa5facts" + b"\x91" * 50_000),
    "another type": (True, msgspec.msgpack.encode({"a": 1})),
    "no pair": (True, b"\xc0", b"\xc0"),
    "nothing": None,
}


@pytest.mark.parametrize("answer", GARBAGE_ANSWERS.values(), ids=GARBAGE_ANSWERS)
def test_a_delegate_that_answers_garbage_to_a_good_bye_does_not_keep_a_subscriber(
    answer: Any, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a subscriber at a delegate that will answer its good-bye with what no delegate says
    pad = federation.pad()
    figures.register(federation.light())
    subscriber = federation.subscriber()
    subscriber.register_subscriber(type_name=TYPE)
    eventually_open(pad)
    answers = pad._control.answer
    said: list[object] = []

    def garbage(caller: Caller, name: object, method: object, request: object) -> Any:
        if method != "close":
            return answers(caller, name, method, request)
        said.append(answer)
        return answer

    monkeypatch.setattr(pad._control, "answer", garbage)
    # When it leaves, expect no error, and nothing of it to be left here
    before = set(threading.enumerate())
    subscriber.close()
    assert said == [answer]
    assert not {t for t in threading.enumerate() if "subscriber" in t.name} - before


def eventually_open(pad: DisseminationServer) -> None:
    """Wait until a session is connected."""
    deadline = time.monotonic() + 60.0
    while not any(each["connected"] for each in pad.status()["sessions"]):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("term", [0.0, float("nan")])
def test_a_delegate_that_grants_leases_of_no_time_is_not_asked_without_end(
    term: float, federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate that says so of each lease
    pad = federation.pad()
    grants, renews = pad.delegate.sessions.open, pad.delegate.renew
    calls: list[str] = []

    def opened(name: str, duration: float, caller: Caller) -> tuple[str, Lease]:
        calls.append("open")
        session, lease = grants(name, duration, caller)
        return session, msgspec.structs.replace(lease, duration=term)

    def renewed(lease_id: str, duration: float) -> Lease:
        calls.append("renew")
        return msgspec.structs.replace(renews(lease_id, duration), duration=term)

    monkeypatch.setattr(pad.delegate.sessions, "open", opened)
    monkeypatch.setattr(pad.delegate, "renew", renewed)
    # When a subscriber uses it for a while
    figures.register(federation.light())
    subscriber = federation.subscriber()
    subscriber.register_subscriber(type_name=TYPE)
    eventually_open(pad)
    began, count = time.monotonic(), len(calls)
    while time.monotonic() - began < 0.4:
        time.sleep(0.05)
    # Expect no more calls than by pauses, of which a tenth of a second is the least: without, it were thousands
    assert len(calls) - count <= 200 * (time.monotonic() - began)
    subscriber.close()
