"""The ids of registrations and subscriptions are public, and prove their owners: nobody else can use one, anywhere."""

from __future__ import annotations

import logging
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.core.config import PadSection
from jbi_pubsub.core.errors import AccessDeniedError, JbiError, MetadataError, ProtocolError, WireError, rebuild
from jbi_pubsub.core.info_object import Head, SchemaBundle, object_id_of
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.ownership import check_owner, owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest, SubscriptionRequest
from jbi_pubsub.protocol.services import DELEGATE, SUBSCRIPTIONS, DelegateProxy, SubscriptionsProxy, fetch_status
from jbi_pubsub.publisher import publication as publishing
from jbi_pubsub.subscriber import options as subscribing

TYPE = "mil.af.rl.jbi.Intel_Imagery"
MINE, THEIRS = "0123456789abcdef" * 2, "fedcba9876543210" * 2
MAIL = SubscriptionRequest(
    owned_uid("subscription", MINE), direct=False, recipients=("chief@example.org",), secret=MINE
)


class Party:
    """Somebody who knows the address of a delegate and speaks its protocol."""

    def __init__(self, pad: DisseminationServer) -> None:
        ref = pad.endpoints.ref(SUBSCRIPTIONS, ())
        self._ref = ref
        self.publishing = DelegateProxy(msgspec.structs.replace(ref, exported=DELEGATE), Security(), timeout=60.0)
        self.subscribing = SubscriptionsProxy(ref, Security(), timeout=60.0)

    def subscribe(self, request: SubscriptionRequest, session: str = "") -> Any:
        """The grant. Raises what the delegate says."""
        (answer,) = self.subscribing.subscribe(session, [request], 60.0, [0.0])
        if answer.error is not None:
            raise rebuild(answer.error)
        return answer.granted

    def status(self) -> dict[str, Any]:
        """As everybody sees it."""
        return fetch_status(self._ref, Security(), timeout=60.0)

    def close(self) -> None:
        self.publishing.close()
        self.subscribing.close()


@pytest.fixture
def meet(federation: Any) -> Iterator[Callable[[DisseminationServer], Party]]:  # ends before it does
    """meet(pad) is a party at the delegate."""
    with ExitStack() as stack:
        yield lambda pad: stack.enter_context(closing(Party(pad)))


def _request(figures: Any, secret: str) -> PublisherRequest:
    bundle = read_bundle(figures.schema, marks=None, name="", version="1.0", locations={})
    return PublisherRequest(bundle, (), secret=secret)


# -- registrations ------------------------------------------------------------------------------------------------


def test_nobody_publishes_under_anothers_registration_at_another_delegate(
    federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a publisher at one delegate, and a subscriber that follows another delegate, too
    federation.pad("alpha", "rome")
    federation.pad("beta", "utica")
    publisher, stranger, subscriber = federation.light(), federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    elsewhere = stranger.connect_to_delegate("beta", "utica")
    stranger.register_publisher(elsewhere, figures.schema, figures.figure_1)
    subscription = subscriber.register_subscriber(type_name=TYPE)
    assert subscriber.wait_matched(subscription, 2) == 2
    publisher.publish(registration, figures.figure_1, b"real")
    assert subscriber.receive(subscription).payload == b"real"
    # When a stranger registers at that one under the first one's public id, and publishes with high numbers
    refused = ""
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "owned_uid", lambda _kind, _secret: registration)
        try:
            forged = stranger.register_publisher(elsewhere, figures.schema, figures.figure_1)
        except AccessDeniedError as exc:
            refused = str(exc)
        else:
            stranger._publication(forged)[0].sequence = 1000
            stranger.publish(forged, figures.figure_1, b"forged")
            stranger.flush()
            subscriber.receive(subscription)
    # Expect the registration to be refused, with a hint, and what the publisher publishes to come
    publisher.publish(registration, figures.figure_1, b"real, too")
    obj = subscriber.receive(subscription, timeout=60.0)
    assert obj is not None
    assert obj.payload == b"real, too"
    assert "not proven" in refused
    assert "Send the secret" in refused
    assert subscriber.status()["subscriptions"][subscription]["duplicates"] == 0


@pytest.mark.parametrize(
    ("uid", "secret"),
    [
        (owned_uid("registration", MINE), THEIRS),
        (owned_uid("registration", MINE), ""),
        (owned_uid("registration", MINE)[:-1], MINE),
        (owned_uid("registration", MINE).upper(), MINE),
        (owned_uid("subscription", MINE), MINE),
        (owned_uid("registration", ""), ""),
        (owned_uid("registration", "guess"), "guess"),
        (owned_uid("registration", "x" * 2000), "x" * 2000),
        ("registration-\u00fc", MINE),
        ("registration-" + "0" * 100_000, MINE),
    ],
    ids=[
        "another's secret", "no secret", "a part of the id", "other letters", "a subscription's id",
        "made from nothing", "a secret to be guessed", "a huge secret", "not ASCII", "a huge id",
    ],
)  # fmt: skip
def test_an_id_that_is_not_the_secrets_is_refused_and_leaves_nothing(
    uid: str, secret: str, federation: Any, figures: Any, meet: Callable[..., Party]
) -> None:
    stranger = meet(federation.pad())
    connection = stranger.publishing.connect("stranger", 60.0).uid
    with pytest.raises(AccessDeniedError, match="not proven") as refusal:
        stranger.publishing.register(connection, _request(figures, secret), uid, 1)
    assert len(str(refusal.value)) < 500
    assert not secret or secret not in str(refusal.value)
    assert stranger.status()["registrations"] == []


def test_an_id_that_its_owners_lease_has_freed_is_still_its_owners(
    federation: Any, figures: Any, meet: Callable[..., Party]
) -> None:
    # Given a registration whose publisher has gone
    pad = federation.pad()
    owner, stranger = meet(pad), meet(pad)
    uid = owned_uid("registration", MINE)
    first = owner.publishing.connect("owner", 60.0).uid
    owner.publishing.register(first, _request(figures, MINE), uid, 1)
    owner.publishing.disconnect(first)
    # When a stranger takes its id before it is back
    connection = stranger.publishing.connect("stranger", 60.0).uid
    with pytest.raises(AccessDeniedError):
        stranger.publishing.register(connection, _request(figures, THEIRS), uid, 1)
    # Expect a refusal, and the owner to have it again
    again = owner.publishing.connect("owner", 60.0).uid
    owner.publishing.register(again, _request(figures, MINE), uid, 1)
    assert [r["uid"] for r in owner.status()["registrations"]] == [uid]


def test_an_object_under_anothers_id_is_refused(federation: Any, figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a subscriber, a publisher, and a stranger with a registration of its own
    federation.pad()
    refusals: list[tuple[str, JbiError]] = []
    publisher, stranger = federation.light(), federation.light(refused=lambda *refused: refusals.append(refused))
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE)
    mine, own = figures.register(publisher), figures.register(stranger)
    assert subscriber.wait_matched(subscription) == 1
    # When the stranger publishes an object under the id that the publisher's next one will have
    with monkeypatch.context() as patched:
        forged = object_id_of(mine, 1)
        patched.setattr(publishing, "Head", lambda _none, *others, **named: Head(forged, *others, **named))
        stranger.publish(own, figures.figure_1, b"forged")
        stranger.flush()
    # Expect it to be refused: a mail of it would have the id of the mail to come
    assert [(object_id, type(error)) for object_id, error in refusals] == [(forged, MetadataError)]
    assert publisher.publish(mine, figures.figure_1, b"real") == forged
    assert subscriber.receive(subscription).payload == b"real"


def test_a_peer_publishers_port_takes_nobodys_registrations_or_objects(
    federation: Any, figures: Any, meet: Callable[..., Party]
) -> None:
    # Given a peer publisher
    peer = federation.peer()
    peer.register_publisher(figures.schema, figures.figure_1)
    stranger = meet(peer._server)
    # When a stranger calls it as one does a delegate, or opens a data connection with a token of its own making
    with pytest.raises(ProtocolError, match="no exported method"):
        stranger.publishing.connect("stranger", 60.0)
    with closing(dial(peer._server.endpoints.ref(SUBSCRIPTIONS, ()), DATA, Security(), 5.0)) as sock:
        line = StreamSocket(sock)
        with pytest.raises(WireError, match="token"):
            greet(line, Hello("0" * 32, 0))


# -- subscriptions ------------------------------------------------------------------------------------------------


def test_who_has_seen_an_email_subscription_does_not_get_its_lease(federation: Any, meet: Callable[..., Party]) -> None:
    # Given an e-mail subscription
    pad = federation.pad()
    owner, stranger = meet(pad), meet(pad)
    lease = owner.subscribe(MAIL).lease
    # When a stranger sends what the status page shows of it, as its owner does whom an answer has not reached
    (seen,) = stranger.status()["subscriptions"]
    copied = SubscriptionRequest(seen["uid"], direct=False, recipients=tuple(seen["recipients"]))
    assert msgspec.structs.replace(copied, secret=MINE) == MAIL
    for secret in ("", THEIRS):
        with pytest.raises(AccessDeniedError, match="not proven"):
            stranger.subscribe(msgspec.structs.replace(copied, secret=secret))
    # Expect its owner alone to be told the lease, the right to renew and cancel it
    assert owner.subscribe(MAIL).lease.lease_id == lease.lease_id
    assert [s["uid"] for s in stranger.status()["subscriptions"]] == [MAIL.uid]


def test_nobody_keeps_a_subscription_away_by_taking_its_id_first(federation: Any, meet: Callable[..., Party]) -> None:
    pad = federation.pad()
    owner, stranger = meet(pad), meet(pad)
    with pytest.raises(AccessDeniedError):
        stranger.subscribe(msgspec.structs.replace(MAIL, recipients=("nobody@example.org",), secret=THEIRS))
    owner.subscribe(MAIL)
    assert [s["recipients"] for s in owner.status()["subscriptions"]] == [["chief@example.org"]]


def test_nobody_sends_mail_under_the_id_of_anothers_subscription(federation: Any, meet: Callable[..., Party]) -> None:
    """A mail's Message-ID is made from object and subscription: mail servers drop the real one behind an empty one."""
    pad = federation.pad()
    owner, stranger = meet(pad), meet(pad)
    owner.subscribe(MAIL)
    session = stranger.subscribing.open("stranger", 60.0).uid
    empty = msgspec.structs.replace(MAIL, direct=True, payload_filter="//nothing", secret=THEIRS)
    with pytest.raises(AccessDeniedError, match="not proven"):
        stranger.subscribe(empty, session)
    assert [s["uid"] for s in owner.status()["subscriptions"]] == [MAIL.uid]


# -- secrets ------------------------------------------------------------------------------------------------------


def test_secrets_are_in_no_log_status_or_lookup_item(
    federation: Any, figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a delegate with state, a publisher, and subscriptions of both kinds, one of them refused
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(publishing, "token_hex", lambda _size: MINE)
    monkeypatch.setattr(subscribing, "token_hex", lambda _size: THEIRS)
    state = tmp_path / "state.db"
    pad = federation.pad(config=msgspec.structs.replace(federation.config, pad=PadSection(state=str(state))))
    publisher, subscriber = federation.light(), federation.subscriber()
    registration = figures.register(publisher)
    subscription = subscriber.register_subscriber(type_name=TYPE, recipients=("chief@example.org",))
    assert subscriber.wait_matched(subscription) == 1
    publisher.publish(registration, figures.figure_1)
    publisher.flush()
    with monkeypatch.context() as patched:
        patched.setattr(publishing, "owned_uid", lambda kind, _secret: owned_uid(kind, THEIRS))
        with pytest.raises(AccessDeniedError) as refusal:
            figures.register(publisher)
    # Expect them to be in nothing that others see
    told = [pad.status(), publisher.status(), subscriber.status(), pad.delegate.mail.rows()]
    listed = str(subscriber._community.lookup(ServiceTemplate(service_id=registration)))
    assert registration in listed
    encoded = msgspec.json.encode(told).decode()
    for text in (encoded, caplog.text, listed, str(refusal.value), repr(refusal.value.facts)):
        assert MINE not in text
        assert THEIRS not in text
    # Expect the file that holds one to be its owner's alone
    assert stat.S_IMODE(state.stat().st_mode) == 0o600


def test_a_request_does_not_show_its_secret() -> None:
    for request in (MAIL, PublisherRequest(SchemaBundle("main.xsd", ()), (), secret=MINE)):
        assert MINE not in repr(request)
        assert MINE not in f"{request}"
    assert "chief@example.org" in repr(MAIL)


@settings(derandomize=True)
@given(st.text(min_size=32, max_size=40), st.text(min_size=32, max_size=40))
def test_an_id_fits_the_secret_that_it_is_made_from_and_no_other(one: str, other: str) -> None:
    check_owner("registration", owned_uid("registration", one), one)
    assert len(owned_uid("registration", one)) == len("registration-") + 32
    if one != other:
        with pytest.raises(AccessDeniedError):
            check_owner("registration", owned_uid("registration", one), other)
