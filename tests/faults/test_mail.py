"""E-mail delivery through a real SMTP server (paper section 2.4(5), (7))."""

from __future__ import annotations

import asyncio
import email.policy
from collections import Counter
from collections.abc import Callable, Iterator
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from lxml import etree

from jbi_pubsub.core.config import PadSection
from jbi_pubsub.core.info_object import InfoObject, LossNotice
from jbi_pubsub.core.renewal import RENEW_AT
from jbi_pubsub.core.wire.control import ControlServer
from jbi_pubsub.examples.mailbox import AnyPort
from jbi_pubsub.subscriber.listeners import SubscriptionListener

TYPE = "mil.af.rl.jbi.Intel_Imagery"
NORTH = "//descriptor[./position/lat<'35.0']"
"""Drops ALPHA50 (35.217) of figure 4 and keeps BRAVO51."""

DATA = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"


class Sink:
    """An SMTP server's mind: what it has taken, and whom it refuses. aiosmtpd calls the handle_ methods."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], EmailMessage]] = []
        self.tries = 0
        self.port = 0
        self.answer_rcpt: Callable[[str], str] = lambda _address: "250 OK"
        self.answer_data: Callable[[int], str] = lambda _tries: "250 OK"
        self.hold = False
        """No message gets its answer while this is true."""

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
        answer = self.answer_rcpt(address)
        if answer.startswith("2"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.tries += 1
        while self.hold:
            await asyncio.sleep(0.01)
        answer = self.answer_data(self.tries)
        if answer.startswith("2"):
            message = cast(EmailMessage, message_from_bytes(envelope.content, policy=email.policy.default))
            self.mails.append((list(envelope.rcpt_tos), message))
        return answer


@pytest.fixture
def sink() -> Iterator[Sink]:
    """An SMTP server."""
    sink = Sink()
    controller = AnyPort(sink, hostname="127.0.0.1", port=0)
    controller.start()
    sink.port = controller.port
    yield sink
    sink.hold = False
    controller.stop()


@pytest.fixture
def federation(sink: Sink, federation: Any) -> Any:
    """The federation, whose parties use that server."""
    mail = msgspec.structs.replace(federation.config.mail, port=sink.port)
    federation.config = msgspec.structs.replace(federation.config, mail=mail)
    return federation


def attachments(message: EmailMessage) -> list[bytes]:
    """The attached files."""
    return [cast(bytes, part.get_payload(decode=True)) for part in message.iter_attachments()]


def body(message: EmailMessage) -> str:
    """The text a person reads."""
    part = message.get_body(("plain",))
    assert part is not None
    return str(part.get_content())


def lost(publishing: Any, subscription: str) -> dict[str, int]:
    """What the dissemination node counts as lost for a subscription."""
    [status] = [s for s in publishing.status()["subscriptions"] if s["uid"] == subscription]
    return dict(status["lost"])


@pytest.mark.row("J-85", "C-05")
def test_every_recipient_gets_every_object_with_type_metadata_and_payload(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription with three recipients
    recipients = ("duty@example.org", "watch@example.org", "ops@example.net")
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE, recipients=recipients)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(subscription) == 1

    # When two objects are published, one of them with bytes of every value
    other = figures.metadata(Area="Herat")
    payloads = [bytes(range(256)) * 8, b"second"]
    publishing.publish(registration, figures.figure_1, payloads[0])
    publishing.publish(registration, other, payloads[1])

    # Expect six deliveries, two to each recipient
    eventually(lambda: sum(len(to) for to, _ in sink.mails) == 6, what=lambda: sink.mails)
    for recipient in recipients:
        messages = [message for to, message in sink.mails if recipient in to]
        assert len(messages) == 2
        # Expect the type in the subject, the metadata to read, metadata and payload attached as published
        for message, metadata, payload in zip(messages, (figures.figure_1, other), payloads, strict=True):
            assert TYPE in message["Subject"]
            assert "<publisher>418th</publisher>" in body(message)
            assert metadata in attachments(message)
            assert payload in attachments(message)


def test_a_recipient_who_is_named_twice_gets_an_object_once(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription that names a mailbox three times, and another that differs in case before the @
    recipients = ("duty@example.org", "duty@example.org", "duty@EXAMPLE.org", "Duty@example.org")
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE, recipients=recipients)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(subscription) == 1
    # When an object is published
    publishing.publish(registration, figures.figure_1, b"p")
    # Expect one mail to each mailbox
    eventually(lambda: sink.mails)
    assert sorted(each for to, _ in sink.mails for each in to) == ["Duty@example.org", "duty@example.org"]


@pytest.mark.row("J-86")
def test_the_filter_applies_to_the_mailed_payload_as_to_the_direct_one(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription with a payload filter, delivered both ways
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(
        type_name=TYPE, payload_filter=NORTH, recipients=("duty@example.org",), direct=True
    )
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(subscription) == 1

    # When the target list of figure 4 is published
    publishing.publish(registration, figures.figure_1, figures.figure_4)

    # Expect only the selected part in the mail, the same bytes as delivered directly, and the metadata untouched
    received = subscriber.receive(subscription)
    eventually(lambda: sink.mails)
    [(_, message)] = sink.mails
    assert received is not None
    assert received.payload in attachments(message)
    assert len(etree.fromstring(received.payload).findall(".//descriptor")) == 1
    assert b"BRAVO51" in received.payload
    assert b"ALPHA50" in figures.figure_4
    assert b"ALPHA50" not in b"".join(attachments(message)) + body(message).encode()
    assert figures.figure_1 in attachments(message)


@pytest.mark.row("J-87")
def test_an_email_only_subscription_delivers_nothing_to_the_queue(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription, and a direct one that shows when an object has come
    subscriber = federation.subscriber()
    mailed = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
    direct = subscriber.register_subscriber(type_name=TYPE)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(mailed) == 1
    assert subscriber.wait_matched(direct) == 1

    # When two objects are published
    sent = [publishing.publish(registration, figures.figure_1) for _ in range(2)]

    # Expect the mails, and nothing in that subscription's queue by the time the direct one has both
    eventually(lambda: len(sink.mails) == 2)
    assert [subscriber.receive(direct).object_id for _ in range(2)] == sent
    assert subscriber.queue_size(mailed) == 0
    assert subscriber.drain(mailed) == []


@pytest.mark.row("J-87")
def test_both_at_once_deliver_both_ways(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription delivered by e-mail and directly
    subscriber = federation.subscriber()
    both = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",), direct=True)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(both) == 1

    # When an object is published
    sent = publishing.publish(registration, figures.figure_1, b"payload")

    # Expect it in the queue and in the mail
    assert subscriber.receive(both).object_id == sent
    eventually(lambda: sink.mails)
    assert b"payload" in attachments(sink.mails[0][1])
    assert lost(publishing, both) == {}


@pytest.mark.parametrize("where", ["RCPT", "DATA"])
def test_mail_refused_for_good_is_a_counted_loss_and_direct_delivery_goes_on(
    where: str, sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that refuses with 5xx, and a subscription delivered both ways
    if where == "RCPT":
        sink.answer_rcpt = lambda _address: "550 no such user"
    else:
        sink.answer_data = lambda _tries: "554 not wanted"
    subscriber = federation.subscriber()
    both = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",), direct=True)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(both) == 1

    # When three objects are published
    sent = [publishing.publish(registration, figures.figure_1) for _ in range(3)]

    # Expect all three directly, and three losses of that cause at the node and told to the subscription
    assert [subscriber.receive(both).object_id for _ in range(3)] == sent
    eventually(lambda: lost(publishing, both) == {"mail_refused": 3}, what=lambda: lost(publishing, both))
    eventually(lambda: subscriber.losses(both) == {"mail_refused": 3}, what=lambda: subscriber.losses(both))
    assert sink.mails == []


def test_one_refused_recipient_does_not_keep_the_others_from_their_mail(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that refuses one of three recipients
    sink.answer_rcpt = lambda address: "550 no such user" if address.startswith("gone@") else "250 OK"
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(
        type_name=TYPE, recipients=("duty@example.org", "gone@example.org", "ops@example.net")
    )
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(subscription) == 1

    # When an object is published
    publishing.publish(registration, figures.figure_1)

    # Expect the mail at the two others, and one loss
    eventually(lambda: sorted(a for to, _ in sink.mails for a in to) == ["duty@example.org", "ops@example.net"])
    eventually(
        lambda: lost(publishing, subscription) == {"mail_refused": 1}, what=lambda: lost(publishing, subscription)
    )


class Told(SubscriptionListener):
    """Whoever is told what is lost."""

    def __init__(self) -> None:
        self.lost_by: Counter[str] = Counter()

    def arrived(self, subscription: Any, obj: InfoObject) -> None:
        """None comes: all goes by mail."""
        raise AssertionError((subscription, obj))

    def lost(self, subscription: Any, notice: LossNotice) -> None:  # noqa: ARG002  # the listener's form
        self.lost_by[notice.cause] += notice.count


@pytest.fixture
def asking_often(federation: Any) -> None:
    """Subscribers who ask each half second what mail is lost; after two refusals nothing is sent to a recipient."""
    mail = msgspec.structs.replace(federation.config.mail, suspend_after=2)
    lease = msgspec.structs.replace(federation.config.lease, subscriber=0.5 / RENEW_AT)
    federation.config = msgspec.structs.replace(federation.config, lease=lease, mail=mail)


@pytest.mark.usefixtures("asking_often")
def test_a_subscriber_whose_objects_all_go_by_mail_is_told_what_of_it_is_lost(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that refuses one of two recipients, two subscriptions by mail alone to both, and one to the other
    sink.answer_rcpt = lambda address: "550 no such user" if address.startswith("gone@") else "250 OK"
    subscriber, told = federation.subscriber(), Told()
    to = ("duty@example.org", "gone@example.org")
    heard = subscriber.register_subscriber(type_name=TYPE, recipients=to, listener=told)
    looked_at = subscriber.register_subscriber(type_name=TYPE, recipients=to)
    good = subscriber.register_subscriber(type_name=TYPE, recipients=to[:1])
    registration = publishing.register(figures.figure_1, figures.schema)
    assert [subscriber.wait_matched(uid) for uid in (heard, looked_at, good)] == [1, 1, 1]

    for expected in (
        {"mail_refused": 1},
        {"mail_refused": 2},
        {"mail_refused": 2, "mail_suspended": 1},
        {"mail_refused": 2, "mail_suspended": 2},
    ):
        # When one object more is published
        publishing.publish(registration, figures.figure_1)
        # Expect the subscriber to hear of what it lacks by now, each loss once, under the cause that the node counts
        for uid in (heard, looked_at):
            eventually(lambda uid=uid: sum(subscriber.losses(uid).values()) >= sum(expected.values()))  # noqa: B023  # called at once
            assert subscriber.losses(uid) == lost(publishing, uid) == expected
        eventually(lambda: dict(told.lost_by) == expected, what=lambda: told.lost_by)  # noqa: B023  # as above
    assert subscriber.losses(good) == {}


@pytest.mark.usefixtures("asking_often")
def test_what_was_lost_of_mail_is_told_once_over_restarts_and_by_several_delegates(
    sink: Sink, federation: Any, figures: Any, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a delegate that keeps its mail and one that does not, and a server that refuses all
    sink.answer_rcpt = lambda _address: "550 no such user"
    kept = msgspec.structs.replace(federation.config, pad=PadSection(state=str(tmp_path / "pad.db")))
    pad, other = federation.pad(config=kept), federation.pad("bravo", "paris")
    subscriber, publisher = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=("gone@example.org",))

    def publish(name: str, location: str) -> None:
        at = publisher.connect_to_delegate(name, location)
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
        publisher.wait_for_subscribers(registration, 1)
        publisher.publish(registration, figures.figure_1)
        publisher.flush()

    publish("alpha", "rome")
    publish("bravo", "paris")
    eventually(lambda: subscriber.losses(uid) == {"mail_refused": 2}, what=lambda: subscriber.losses(uid))
    # When both start again, and lose two more and one
    pad.stop(0.5)
    other.stop(0.5)
    again, _ = federation.pad(config=kept), federation.pad("bravo", "paris")
    [standing] = again.delegate.mail.rows()
    assert standing["lost"] == {"mail_refused": 1}
    publish("alpha", "rome")
    publish("bravo", "paris")
    publish("alpha", "rome")
    # Expect three losses more
    eventually(lambda: subscriber.losses(uid).get("mail_refused", 0) >= 5, what=lambda: subscriber.losses(uid))
    assert subscriber.losses(uid) == {"mail_refused": 5}


@pytest.mark.usefixtures("asking_often")
def test_a_delegate_that_does_not_tell_what_mail_is_lost_serves_as_before(
    sink: Sink, federation: Any, figures: Any, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate of a version that has no such call, which has been asked for it twice
    called, asked = ControlServer._called, 0

    def before(self: ControlServer, name: object, method: object, request: object) -> Any:
        nonlocal asked
        asked += method == "mail_losses"
        return called(self, name, "unknown" if method == "mail_losses" else method, request)

    monkeypatch.setattr(ControlServer, "_called", before)
    federation.pad()
    subscriber, publisher = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    eventually(lambda: asked >= 2)
    # When an object is published; Expect the mail
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: sink.mails)
    assert (subscriber.losses(uid), subscriber.refusal(uid)) == ({}, None)


@pytest.mark.row("J-88")
def test_a_slow_mail_server_holds_up_neither_the_publisher_nor_direct_delivery(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a mail server that takes a message and does not answer, and a subscription that is delivered both ways
    sink.hold = True
    subscriber = federation.subscriber()
    both = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",), direct=True)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(both) == 1
    publishing.publish(registration, figures.figure_1)
    assert subscriber.receive(both) is not None
    eventually(lambda: sink.tries == 1)
    # When many objects are published; Expect each directly, one after the other, while the first mail has no answer yet
    for _ in range(50):
        sent = publishing.publish(registration, figures.figure_1)
        assert subscriber.receive(both).object_id == sent
    assert (sink.tries, sink.mails) == (1, [])
    # When the server answers; Expect all mail, in order, none of it twice
    sink.hold = False
    eventually(lambda: len(sink.mails) == 51)
    numbers = [int(str(message["Subject"]).rpartition("#")[2]) for _, message in sink.mails]
    assert numbers == list(range(1, 52))
    assert subscriber.losses(both) == {}


def test_mail_put_off_is_tried_again(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that puts off the first try
    sink.answer_data = lambda tries: "451 later" if tries == 1 else "250 OK"
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(subscription) == 1

    # When an object is published
    publishing.publish(registration, figures.figure_1)

    # Expect it mailed once, at the second try, and no loss
    eventually(lambda: len(sink.mails) == 1)
    assert sink.tries == 2
    assert lost(publishing, subscription) == {}


@pytest.mark.row("J-88")
def test_mail_put_off_for_ever_is_tried_a_bounded_number_of_times_and_lost(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that always puts off, and two retries
    sink.answer_data = lambda _tries: "451 later"
    subscriber = federation.subscriber()
    subscription = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",))
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(subscription) == 1

    # When an object is published
    publishing.publish(registration, figures.figure_1)

    # Expect the first try and two more, then a counted loss
    eventually(
        lambda: lost(publishing, subscription) == {"mail_unreachable": 1}, what=lambda: lost(publishing, subscription)
    )
    assert sink.tries == 3


# -- beyond the subscriber's process ------------------------------------------------------------------------------


def subscribe_by_mail(field: Any, recipient: str = "duty@example.org") -> str:
    """The id of a subscription made by a command that has ended."""
    process = field.jbi("subscribe", "--type", TYPE, "--email", recipient, "--json")
    subscription = process.fact()["subscription"]
    assert process.wait() == 0
    return str(subscription)


def publisher_at(federation: Any, figures: Any) -> Callable[[], None]:
    """A publisher at alpha, rome; calling it publishes figure 1."""
    adapter = federation.light()
    at = adapter.connect_to_delegate("alpha", "rome")
    registration = adapter.register_publisher(at, figures.schema, figures.figure_1)

    def publish() -> None:
        adapter.publish(registration, figures.figure_1)
        adapter.flush()

    return publish


@pytest.mark.row("J-89")
@pytest.mark.processes
def test_an_email_subscription_outlives_its_process_until_it_is_cancelled(
    sink: Sink, federation: Any, figures: Any, field: Any, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription from the command line, whose process has ended long (in leases of a session) ago
    pad = federation.pad()
    subscription = subscribe_by_mail(field)
    eventually(lambda: pad.status()["sessions"] == [])

    # When a publisher comes only now
    publish = publisher_at(federation, figures)
    publish()

    # Expect the mail
    eventually(lambda: [to for to, _ in sink.mails] == [["duty@example.org"]])

    # When it is cancelled from the command line
    cancelling = field.jbi("subscriptions", "cancel", subscription)
    assert cancelling.wait() == 0
    assert pad.status()["subscriptions"] == []

    # Expect no further mail: that of a later subscription, to somebody else, is the next
    subscribe_by_mail(field, "marker@example.org")
    publish()
    eventually(lambda: len(sink.mails) == 2)
    assert sink.mails[1][0] == ["marker@example.org"]


@pytest.mark.row("J-89")
def test_mail_beside_a_queue_ends_with_the_subscribers_process(
    sink: Sink, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that is delivered both ways
    subscriber = federation.subscriber()
    both = subscriber.register_subscriber(type_name=TYPE, recipients=("duty@example.org",), direct=True)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(both) == 1
    publishing.publish(registration, figures.figure_1)
    eventually(lambda: len(sink.mails) == 1)
    # When its process leaves, and an object comes; Expect no mail of it: the object matches nobody
    subscriber.close()
    eventually(lambda: publishing.status()["subscriptions"] == [])
    publishing.publish(registration, figures.figure_1)
    assert publishing.status()["unmatched"] == 1
    assert len(sink.mails) == 1


@pytest.mark.processes
def test_an_email_subscription_ends_with_its_lease(
    sink: Sink, federation: Any, field: Any, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription with a lease of a second, whose process has ended
    pad = federation.pad()
    field.leases(mail=1.0)
    subscription = subscribe_by_mail(field)
    assert [s["uid"] for s in pad.status()["subscriptions"]] == [subscription]

    # When nobody renews it
    # Expect that it ends
    eventually(lambda: pad.status()["subscriptions"] == [], field.within)


@pytest.mark.processes
def test_an_email_subscription_survives_a_restart_of_its_delegate(
    sink: Sink, federation: Any, figures: Any, field: Any, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    # Given an e-mail subscription whose process has ended, at a delegate that keeps its state
    state = ("--state", str(tmp_path / "mail.db"))
    pad = field.pad(more=state)
    subscription = subscribe_by_mail(field)

    # When its delegate is stopped and started again in the same place
    assert pad.process.end() == 0
    again = field.pad(port=pad.port, more=state)

    # Expect that the subscription stands, and that objects are mailed
    eventually(
        lambda: [s["uid"] for s in field.status(again)["subscriptions"]] == [subscription],
        field.within,
        what=lambda: field.status(again)["subscriptions"],
    )
    publisher_at(federation, figures)()
    eventually(lambda: [to for to, _ in sink.mails] == [["duty@example.org"]])
