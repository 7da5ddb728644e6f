"""Who reads a mail ends it, or has it go on, by the links in it; and is told before it ends by itself."""

from __future__ import annotations

import email.policy
import math
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from email import message_from_bytes
from email.message import EmailMessage
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.examples.mailbox import AnyPort
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.services import follow_link

TYPE = "mil.af.rl.jbi.Intel_Imagery"
BASE = "https://jbi.example.org:8160"
A, B = "a@example.org", "b@example.org"


class Post:
    """A mail server's mind: what it has taken, in order, and whom it refuses."""

    def __init__(self) -> None:
        self.mails: list[tuple[tuple[str, ...], EmailMessage]] = []
        self.answer_rcpt: Callable[[str], str] = lambda _address: "250 OK"

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
        answer = self.answer_rcpt(address)
        if answer.startswith("2"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        message = cast(EmailMessage, message_from_bytes(envelope.content, policy=email.policy.default))
        self.mails.append((tuple(envelope.rcpt_tos), message))
        return "250 OK"

    def to(self, recipient: str) -> list[EmailMessage]:
        """What he has got."""
        return [message for recipients, message in self.mails if recipient in recipients]

    def reminders(self) -> list[tuple[str, ...]]:
        """Whom reminders went to."""
        return [to for to, message in self.mails if message["X-JBI-Object-Id"] is None]

    def link(self, recipient: str, action: str) -> str:
        """The token of a link in the last mail to him."""
        message = self.to(recipient)[-1]
        readable = message.get_body(("plain",))
        assert readable is not None
        found = re.findall(
            rf"{BASE}/{action}\?token=([\w-]+)", f"{message['List-Unsubscribe']} {readable.get_content()}"
        )
        return str(found[-1])


@pytest.fixture
def post() -> Iterator[Post]:
    """A mail server."""
    made = Post()
    controller = AnyPort(made, hostname="127.0.0.1", port=0)
    controller.start()
    made.port = controller.port  # type: ignore[attr-defined]  # told to whoever sends
    yield made
    controller.stop()


@pytest.fixture
def federation(post: Any, federation: Any) -> Any:
    """The federation, whose mails go there, with links."""
    mail = msgspec.structs.replace(federation.config.mail, port=post.port, unsubscribe=BASE)
    federation.config = msgspec.structs.replace(federation.config, mail=mail)
    return federation


def keeping(federation: Any, state: Path, **mail: Any) -> Any:
    """The configuration of a delegate that keeps its state there."""
    config = federation.config
    pad = msgspec.structs.replace(config.pad, state=str(state))
    return msgspec.structs.replace(config, pad=pad, mail=msgspec.structs.replace(config.mail, **mail))


def follow(pad: DisseminationServer, action: Any, token: str) -> None:
    """As `jbi web` does for whoever has used a link."""
    follow_link(ServiceRef("", "", (pad.address,)), Security(), action, token, timeout=60.0)


def row(pad: DisseminationServer, uid: str) -> dict[str, Any]:
    """A subscription's status."""
    [found] = [s for s in pad.status()["subscriptions"] if s["uid"] == uid]
    return dict(found)


def even(status: dict[str, Any]) -> bool:
    """Whether the account of docs/mail.md is."""
    left = sum(a not in status["mail_suspended"] for a in status["recipients"])
    accounted = status["mailed"] + sum(status["lost"].values()) + status["mail_waiting"] * left
    return bool(status["matched"] * len(status["recipients"]) == accounted)


# -- unsubscribing ------------------------------------------------------------------------------------------------


def test_each_recipient_gets_a_mail_with_his_own_link_and_a_click_ends_it_for_him_alone(
    post: Post, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given an e-mail subscription for two
    pad, subscriber, publisher = federation.pad(), federation.subscriber(), federation.light()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A, B))
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    # Expect a mail for each, the same but for the link
    eventually(lambda: len(post.mails) == 2)
    assert sorted(to for to, _ in post.mails) == [(A,), (B,)]
    assert post.to(A)[0]["Message-ID"] == post.to(B)[0]["Message-ID"]
    assert post.to(A)[0]["List-Unsubscribe"] != post.to(B)[0]["List-Unsubscribe"]
    assert post.to(A)[0]["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    # When one of them unsubscribes, twice
    token = post.link(A, "unsubscribe")
    follow(pad, "unsubscribe", token)
    follow(pad, "unsubscribe", token)
    # Expect the next object for the other alone, an even account, and the reason in the status
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: len(post.to(B)) == 2 and row(pad, uid)["mailed"] == 3)
    assert len(post.to(A)) == 1
    assert row(pad, uid)["mail_suspended"] == {A: "unsubscribed by the recipient"}
    assert row(pad, uid)["lost"] == {"mail_suspended": 1}
    assert even(row(pad, uid))


def test_the_last_recipient_who_unsubscribes_ends_it_and_only_its_owner_makes_a_new_one(
    post: Post, federation: Any, figures: Any, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given an e-mail subscription for one, whose subscriber goes on and renews it every 0.4 s
    lease = msgspec.structs.replace(federation.config.lease, mail=1.0)
    federation.config = msgspec.structs.replace(federation.config, lease=lease)
    pad, subscriber, publisher = federation.pad(), federation.subscriber(), federation.light()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A,))
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: post.to(A))
    token = post.link(A, "unsubscribe")
    request = pad.delegate.tables.subscriptions["mail", uid].request
    # When he unsubscribes; Expect it to end
    follow(pad, "unsubscribe", token)
    assert pad.status()["subscriptions"] == []
    # Expect it not to come back when its subscriber makes it again, who is told why
    eventually(lambda: subscriber.losses(uid) == {"refused": 1}, what=lambda: subscriber.losses(uid))
    assert f"all recipients of subscription {uid} have unsubscribed" in caplog.text
    with pytest.raises(ConfigurationError, match=r"all recipients of subscription .* have unsubscribed"):
        pad.delegate.subscribers.subscribe("", request, 60.0)
    # Expect the link to be good for nothing any more, as one that is none
    for used in (token, token[:-2] + "AA", "A" * 43):
        with pytest.raises(UnknownUidError, match="no subscription of this link here"):
            follow(pad, "unsubscribe", used)
    # When its owner makes a new one; Expect mail
    new = subscriber.register_subscriber(type_name=TYPE, recipients=(A,))
    assert subscriber.wait_matched(new) == 1
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: len(post.to(A)) == 2)


def test_an_owner_who_is_connected_is_told_that_a_recipient_has_left_and_his_queue_goes_on(
    publishing: Any, post: Post, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that is delivered both ways, by a delegate or a peer publisher
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A,), direct=True)
    registration = publishing.register(figures.figure_1, figures.schema)
    assert subscriber.wait_matched(uid) == 1
    publishing.publish(registration, figures.figure_1)
    assert subscriber.receive(uid) is not None
    eventually(lambda: post.to(A))
    # When its recipient unsubscribes
    [address] = {publishing.status()["address"]}
    follow_link(ServiceRef("", "", (address,)), Security(), "unsubscribe", post.link(A, "unsubscribe"), timeout=60.0)
    # Expect the owner to get what follows, and to be told that it was not mailed
    assert subscriber.losses(uid) == {}
    sent = publishing.publish(registration, figures.figure_1)
    assert subscriber.receive(uid).object_id == sent
    eventually(lambda: subscriber.losses(uid) == {"mail_suspended": 1}, what=lambda: subscriber.losses(uid))
    assert len(post.to(A)) == 1


def test_who_has_unsubscribed_stays_so_over_a_restart_and_when_the_subscription_is_made_again(
    post: Post, federation: Any, figures: Any, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a delegate that keeps its state, and a subscription for two, one of whom has unsubscribed
    config = keeping(federation, tmp_path / "state")
    pad, subscriber, publisher = federation.pad(config=config), federation.subscriber(), federation.light()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A, B))
    assert subscriber.wait_matched(uid) == 1
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: len(post.mails) == 2)
    of_b = post.link(B, "unsubscribe")
    request = pad.delegate.tables.subscriptions["mail", uid].request
    follow(pad, "unsubscribe", post.link(A, "unsubscribe"))
    subscriber.close()
    publisher.close()
    pad.stop(0.5)
    # When it is started again; Expect him to be out still, also when the subscription has ended and is made again
    again = federation.pad(config=config)
    assert row(again, uid)["mail_suspended"] == {A: "unsubscribed by the recipient"}
    again.delegate.subscribers.unsubscribe("", uid, administer=True)
    again.delegate.subscribers.subscribe("", request, 60.0)
    publisher = federation.light()
    registration = figures.register(publisher)
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: len(post.to(B)) == 2)
    assert len(post.to(A)) == 1
    # When the other one uses a link from before the restart, and the delegate is started once more
    follow(again, "unsubscribe", of_b)
    again.stop(0.5)
    last = federation.pad(config=config)
    # Expect the subscription to have ended, for good
    assert last.status()["subscriptions"] == []
    with pytest.raises(ConfigurationError, match="unsubscribed"):
        last.delegate.subscribers.subscribe("", request, 60.0)


def test_what_of_a_mail_could_be_sent_is_not_sent_again_for_the_sake_of_the_others(
    post: Post, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a mail server that puts one of three recipients off at first, and refuses another one
    tries: list[str] = []

    def answer(address: str) -> str:
        tries.append(address)
        if address == A:
            return "550 no"
        return "451 later" if address == B and tries.count(B) == 1 else "250 OK"

    post.answer_rcpt = answer
    pad, subscriber, publisher = federation.pad(), federation.subscriber(), federation.light()
    registration = figures.register(publisher)
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A, B, "c@example.org"))
    assert subscriber.wait_matched(uid) == 1
    # When an object comes; Expect one mail for each who takes it
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: row(pad, uid)["mailed"] == 2)
    assert sorted(to for to, _ in post.mails) == [(B,), ("c@example.org",)]
    assert row(pad, uid)["lost"] == {"mail_refused": 1}
    assert even(row(pad, uid))


# -- reminders ----------------------------------------------------------------------------------------------------


DAY, HOUR = 86_400.0, 3_600.0


@pytest.fixture
def lasting(federation: Any) -> Any:
    """The federation, whose parties' leases outlast those of e-mail subscriptions, of a day: nobody waits for that."""
    lease = msgspec.structs.replace(federation.config.lease, publisher=7 * DAY, subscriber=7 * DAY)
    federation.config = msgspec.structs.replace(federation.config, lease=lease)
    return federation


def pass_time(pad: DisseminationServer, seconds: float) -> None:
    """For the delegate's leases, and not as if it had stalled."""
    pad.delegate.tables.leases.landlord._stall = math.inf
    clock = pad.delegate.tables.clock
    pad.delegate.tables.clock = lambda: clock() + seconds


def left_alone(federation: Any, *recipients: str) -> str:
    """A subscription that nobody renews: its process has ended."""
    subscriber = federation.subscriber()
    uid = str(subscriber.register_subscriber(type_name=TYPE, recipients=recipients))
    assert subscriber.wait_matched(uid, 1) == 1
    subscriber.close()
    return uid


def test_who_is_mailed_is_reminded_once_before_the_lease_ends_and_renews_it_with_the_link(
    post: Post, lasting: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription with a lease of a day, whose process ends
    pad, publisher = lasting.pad(), lasting.light()
    registration = figures.register(publisher)
    uid = left_alone(lasting, A, B)
    # When all but two hours of it are over; Expect a reminder for each, and none of it in the subscription's account
    pass_time(pad, DAY - 2 * HOUR - 60)
    pad.delegate.expire()
    assert pad.status()["mail"]["reminders_waiting"] == 0
    pass_time(pad, 2 * 60)
    eventually(lambda: pad.status()["mail"]["reminders"] == 2)
    assert sorted(post.reminders()) == [(A,), (B,)]
    assert f"e-mail subscription {uid}" in str(post.to(A)[-1]["Subject"])
    assert (row(pad, uid)["matched"], row(pad, uid)["mailed"], row(pad, uid)["lost"]) == (0, 0, {})
    # When one of them renews by his link; Expect the lease to be a whole one again, and mail to come
    follow(pad, "renew", post.link(B, "renew"))
    [listed] = pad.delegate.mail.rows()
    assert DAY - 60 < listed["lease"] <= DAY
    publisher.publish(registration, figures.figure_1)
    eventually(lambda: row(pad, uid)["mailed"] == 2)
    # When nobody renews it then; Expect one more reminder each, the end, and links that are good for nothing
    pass_time(pad, DAY - HOUR)
    eventually(lambda: pad.status()["mail"]["reminders"] == 4)
    pass_time(pad, HOUR)
    eventually(lambda: pad.status()["subscriptions"] == [])
    assert len(post.reminders()) == 4
    with pytest.raises(UnknownUidError):
        follow(pad, "renew", post.link(B, "renew"))


def test_whoever_has_unsubscribed_is_not_reminded_and_does_not_renew_for_the_others(
    post: Post, lasting: Any, eventually: Callable[..., Any], figures: Any
) -> None:
    # Given a subscription for two that has been reminded of, one of whom unsubscribes by the link in the reminder
    pad = lasting.pad()
    registration = figures.register(lasting.light())
    left_alone(lasting, A, B)
    pass_time(pad, DAY - HOUR)
    eventually(lambda: len(post.reminders()) == 2)
    renew = post.link(A, "renew")
    follow(pad, "unsubscribe", post.link(A, "unsubscribe"))
    # Expect his link to renew nothing any more, the other's to do so, and the next reminder for the other alone
    with pytest.raises(UnknownUidError):
        follow(pad, "renew", renew)
    follow(pad, "renew", post.link(B, "renew"))
    pass_time(pad, DAY - HOUR)
    eventually(lambda: len(post.reminders()) == 3)
    assert post.reminders()[-1] == (B,)
    assert registration


@pytest.mark.processes
def test_a_subscription_that_is_renewed_is_not_reminded_of_and_an_operator_renews_it_by_command(
    post: Post, lasting: Any, field: Any, eventually: Callable[..., Any]
) -> None:
    # Given a subscription that is renewed after 20 hours, and one of a command that has ended
    pad, staying = lasting.pad(), lasting.subscriber()
    kept = staying.register_subscriber(type_name=TYPE, recipients=(A,))
    left = field.jbi("subscribe", "--type", TYPE, "--email", B, "--json").fact()["subscription"]
    eventually(lambda: {s["uid"] for s in pad.status()["subscriptions"]} == {kept, left})
    pass_time(pad, 20 * HOUR)
    pad.delegate.renew(pad.delegate.tables.subscriptions["mail", kept].lease_id, DAY)
    # When the day is nearly over; Expect the other one alone to be reminded of
    pass_time(pad, 3 * HOUR)
    eventually(lambda: post.reminders() == [(B,)])
    # When an operator renews it for two days, by its first characters; Expect that, and no further mail
    renewing = field.jbi("--set", "lease.mail=172800", "subscriptions", "renew", left[:25])
    assert renewing.communicate()[0] == "renewed at 1 delegate, for 172800 s\n"
    listed = {s["uid"]: s["lease"] for s in pad.delegate.mail.rows()}
    assert 2 * DAY - 60 < listed[left] <= 2 * DAY
    pass_time(pad, 2 * HOUR)
    pad.delegate.expire()
    assert pad.status()["mail"]["reminders_waiting"] == 0
    assert post.reminders() == [(B,)]


def test_a_reminder_is_sent_once_over_restarts_and_when_the_mail_server_is_back(
    post: Any, federation: Any, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a delegate that keeps its state, whose mail server is away when the reminder is due
    away = keeping(federation, tmp_path / "state", port=9, retries=1000)
    pad = federation.pad(config=away)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=(A,))
    eventually(lambda: [s["uid"] for s in pad.status()["subscriptions"]] == [uid])
    subscriber.close()
    brought_forward(tmp_path / "state", pad)
    # When its lease is renewed before the reminder has gone; Expect none to wait
    pad = federation.pad(config=away)
    eventually(lambda: pad.status()["mail"]["away"])
    assert pad.status()["mail"]["reminders_waiting"] == 1
    pad.delegate.mail.renew_by_uid(uid, DAY)
    assert pad.status()["mail"]["reminders_waiting"] == 0
    # When the next one is due, and it is stopped with that unsent
    brought_forward(tmp_path / "state", pad)
    pad = federation.pad(config=away)
    eventually(lambda: pad.status()["mail"]["reminders_waiting"] == 1)
    pad.stop(0.0)
    # Expect it to go out after the next start, and not again after a further one
    config = keeping(federation, tmp_path / "state")
    pad = federation.pad(config=config)
    eventually(lambda: pad.status()["mail"]["reminders"] == 1)
    pad.stop(0.0)
    pad = federation.pad(config=config)
    pad.delegate.expire()
    assert [s["uid"] for s in pad.status()["subscriptions"]] == [uid]
    assert pad.status()["mail"]["reminders_waiting"] == 0
    assert post.reminders() == [(A,)]


def brought_forward(state: Path, pad: DisseminationServer) -> None:
    """Stop the delegate, and have the reminders in its file be due."""
    pad.stop(0.0)
    with closing(sqlite3.connect(state)) as base, base:
        assert base.execute("UPDATE mail SET remind = 1.0 WHERE remind > 1.0").rowcount == 1
