"""The mail queue against a real mail server that is silent, busy, or dies, a disk that is full, a delegate killed."""

from __future__ import annotations

import asyncio
import email.policy
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from email import message_from_bytes
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiosmtplib
import msgspec
import pytest
from aiosmtpd.smtp import SMTP, syntax

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.errors import AddressError, BackPressureError, ConfigurationError, StorageError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.info_object import Cause, InfoObject, Platform, TypeName
from jbi_pubsub.examples.mailbox import AnyPort
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.mail.store import MailStore
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import DIGEST_ATTRIBUTE, SubscriptionRequest

TYPE = "mil.af.rl.jbi.Intel_Imagery"


class Server:
    """A mail server that can be told to fail; aiosmtpd calls the handle_ methods on the loop's thread."""

    def __init__(self) -> None:
        self.mails: list[tuple[tuple[str, ...], Any]] = []
        self.tries = 0
        self.port = 0
        self.under_way = self.most_under_way = 0
        self.connected = self.disconnected = 0
        self.silent_for = ""
        """Recipients that begin so get no answer."""
        self.hold = False
        """No message gets its answer while this is true."""
        self.dies_inside = self.dies_after = 0
        """So many connections are cut inside the next messages, or after their end."""
        self.raw = b""
        """Answer to RCPT as it is."""
        self.one_each, self.enough, self.taken = False, "421 enough", 0
        """A connection takes one mail (fewer those that are taken), and says so to the next."""
        self.most = 1_000
        """Recipients of a mail; to others it says 552."""
        self.answer_rcpt: Callable[[str], str] = lambda _address: "250 OK"
        self.answer_data: Callable[[int], str] = lambda _tries: "250 OK"
        self.answer_message: Callable[[Any], str] = lambda _message: "250 OK"

    async def handle_MAIL(self, _server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
        if self.one_each and getattr(session, "mails", self.taken):
            return self.enough
        session.mails = getattr(session, "mails", 0) + 1
        envelope.mail_from, envelope.mail_options = address, options
        return "250 OK"

    async def handle_RCPT(self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any) -> str:  # noqa: N802
        while self.silent_for and address.startswith(self.silent_for):
            await asyncio.sleep(0.01)
        answer = self.answer_rcpt(address) if len(envelope.rcpt_tos) < self.most else "552 5.5.3 too many recipients"
        if answer.startswith("2"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        self.tries += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        while self.hold:
            await asyncio.sleep(0.01)
        self.under_way -= 1
        message = message_from_bytes(envelope.content, policy=email.policy.default)
        answer = self.answer_data(self.tries)
        if answer.startswith("2"):
            answer = self.answer_message(message)
        if answer.startswith("2"):
            self.mails.append((tuple(envelope.rcpt_tos), message))
        if self.dies_after:
            self.dies_after -= 1
            server.transport.abort()
        return answer

    def ids(self, recipient: str = "") -> list[str]:
        """Object ids of the mails taken (for `recipient`), in order."""
        return [str(m["X-JBI-Object-Id"]) for to, m in self.mails if not recipient or recipient in to]


class Frail(SMTP):
    """aiosmtpd's protocol, which may die in the middle of a message."""

    def connection_made(self, transport: Any) -> None:
        self.event_handler.connected += 1
        super().connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self.event_handler.disconnected += 1
        super().connection_lost(error)

    @syntax("RCPT TO: <address>")
    async def smtp_RCPT(self, arg: str) -> None:  # noqa: N802
        if not self.event_handler.raw:
            await super().smtp_RCPT(arg)
            return
        self.transport.write(self.event_handler.raw)

    @syntax("DATA")
    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        if not self.event_handler.dies_inside:
            await super().smtp_DATA(arg)
            return
        self.event_handler.dies_inside -= 1
        await self.push("354 go on")
        await self._reader.readline()
        self.transport.abort()


class FrailController(AnyPort):
    """Of one that can be frail."""

    def factory(self) -> Frail:
        return Frail(self.handler, **self.SMTP_kwargs)


@pytest.fixture
def server() -> Iterator[Server]:
    """A mail server."""
    made = Server()
    controller = FrailController(made, hostname="127.0.0.1", port=0)
    controller.start()
    made.port = controller.port
    while made.disconnected < 1:  # the controller's own, to see whether it serves
        time.sleep(0.01)
    made.connected = made.disconnected = 0
    yield made
    made.hold, made.silent_for = False, ""
    controller.stop()


@pytest.fixture
def federation(server: Server, federation: Any) -> Any:
    """The federation, whose parties use that server, and suspend after two mails."""
    mail = msgspec.structs.replace(federation.config.mail, port=server.port, suspend_after=2)
    federation.config = msgspec.structs.replace(federation.config, mail=mail)
    return federation


class Office:
    """A dispatcher and what it has lost; a new one with the same store is a restart."""

    def __init__(self, server: Server, store: Path | None = None, **changes: Any) -> None:
        settings = MailSection(port=server.port, timeout=10.0, retries=50, retry_seconds=0.01, sender="jbi@example.org")
        self.lost: Counter[str] = Counter()
        self.store = MailStore(store) if store else None
        self.commits = 0
        self.mail = MailDispatcher(
            msgspec.structs.replace(settings, **changes), name="test", lost=self._note, store=self.store
        )
        self._numbers = 0

    def _note(self, _subscription: Subscription, cause: Cause, count: int, _why: str) -> None:
        self.lost[cause] += count

    def subscribe(self, uid: str, *recipients: str, digest: str = "0", direct: bool = False) -> Subscription:
        """An e-mail subscription."""
        request = SubscriptionRequest(
            uid, direct=direct, recipients=recipients, attributes=(("mail_digest_seconds", digest),)
        )
        made = compile_subscription(request, owner="mail", number=0)
        self.mail.open(made)
        return made

    def publish(self, *subscriptions: Subscription, payload: bytes = b"payload") -> str:
        """An object for them; its id."""
        self._numbers += 1
        platform = Platform(1.0, "registration-1", self._numbers, 4, len(payload))
        obj = InfoObject(f"object-{self._numbers}", TypeName(TYPE), b"<a/>", payload, platform)
        for one in subscriptions:
            assert self.mail.offer(one, obj, payload)
        return obj.object_id


@pytest.fixture
def office(server: Server) -> Iterator[Callable[..., Office]]:
    """office(...) begins to send mail; it has to end by itself."""
    made: list[Office] = []

    def begin(*arguments: Any, start: bool = True, **changes: Any) -> Office:
        made.append(Office(server, *arguments, **changes))
        if start:
            made[-1].mail.start()
        return made[-1]

    before = set(threading.enumerate())
    yield begin
    server.hold, server.silent_for = False, ""
    for each in made:
        each.mail.stop()
    assert [t.name for t in threading.enumerate() if t not in before and t.name.startswith("mail-")] == []


# -- faults of ours -----------------------------------------------------------------------------------------------


FAULTY = {
    "mail dispatcher": ("_queue", "take"),
    "a try to send mail": ("_server", "send"),
    "account of a mail": ("_queue", "settle"),
    "mail store writer": ("_queue.journal", "take"),
    "mail store": ("writer.store", "commit"),
}
"""What fails once, by the name under which it is counted."""


@pytest.mark.parametrize("what", FAULTY)
def test_a_fault_that_nobody_expected_ends_no_mail_thread(
    what: str,
    server: Server,
    office: Callable[..., Office],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., Any],
) -> None:
    # Given a dispatcher with a store, of whose steps one fails once in a way nobody expects
    here = office(tmp_path / "mails")
    one = here.subscribe("one", "one@x.org")
    part, method = FAULTY[what]
    target = attrgetter(part)(here.mail)
    before = faults().get(what, 0)
    failed = threading.Event()
    does = getattr(target, method)

    def once(*arguments: Any, **options: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise LookupError("nobody expected this")
        return does(*arguments, **options)

    monkeypatch.setattr(target, method, once)
    # When an object comes, and then another one
    here.publish(one)
    assert failed.wait(60.0)
    eventually(lambda: faults().get(what, 0) == before + 1)
    second = here.publish(one)
    # Expect the fault to be counted once, the second mail to come, and the account to be even; the first is lost, told,
    # if it could not be written, and comes twice if nobody could note that it has
    eventually(lambda: one.mailed + sum(here.lost.values()) == 2)
    eventually(lambda: one.mail_waiting == 0)
    assert server.ids()[-1] == second
    assert here.lost == (Counter(storage=1) if what == "mail store" else Counter())
    assert len(server.ids()) == {"account of a mail": 3, "mail store": 1}.get(what, 2)


# -- several at a time --------------------------------------------------------------------------------------------


def test_mails_of_several_subscriptions_are_under_way_at_once_up_to_the_bound_and_of_one_never_two(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that holds every message, three connections at most, and mail for one and for five subscriptions
    server.hold = True
    here = office(connections=3)
    one = here.subscribe("one", "one@x.org")
    for _ in range(3):
        here.publish(one)
    eventually(lambda: server.under_way == 1)
    several = [here.subscribe(str(n), f"{n}@x.org") for n in range(5)]
    for _ in range(3):
        here.publish(*several)
    # Expect as many at once as there are connections
    eventually(lambda: server.under_way == 3)
    assert here.mail.status()["under_way"] == here.mail.status()["connections"] == 3
    assert server.tries == 3
    # When the server goes on; Expect everything, in order for each, over the same connections
    server.hold = False
    eventually(lambda: len(server.mails) == 18)
    assert server.ids("one@x.org") == ["object-1", "object-2", "object-3"]
    for n in range(5):
        assert server.ids(f"{n}@x.org") == ["object-4", "object-5", "object-6"]
    assert server.most_under_way == server.connected == 3
    eventually(lambda: here.mail.drain(0.0) == 0 and [s.mailed for s in (one, *several)] == [3] * 6)


def test_a_silent_recipient_does_not_delay_the_other_subscriptions(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that never answers for one subscription's recipient, and two connections
    server.silent_for = "silent"
    here = office(connections=2)
    silent, other = here.subscribe("silent", "silent@x.org"), here.subscribe("other", "other@x.org")
    # When objects come for both
    for _ in range(10):
        here.publish(silent, other)
    # Expect the other's mail while the silent one's still waits for its answer
    eventually(lambda: len(server.mails) == 10)
    assert server.ids("other@x.org") == [f"object-{n}" for n in range(1, 11)]
    assert (silent.mailed, silent.mail_waiting, sum(here.lost.values())) == (0, 10, 0)


def test_a_try_has_a_deadline_as_a_whole(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a silent server, an hour for each command, and a quarter of a second for a try
    server.silent_for = "silent"
    here = office(timeout=3600.0, try_seconds=0.25, retries=1)
    here.publish(here.subscribe("one", "silent@x.org"))
    # Expect the mail to be given up after its tries
    eventually(lambda: here.lost == {Cause.MAIL_UNREACHABLE: 1})
    eventually(lambda: server.disconnected == server.connected <= 2)  # fewer: not even connected in time


def test_the_deadline_of_a_try_holds_when_it_is_over_just_as_an_answer_comes(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a library that forgets that it was cancelled, once, as asyncio.wait_for does when an answer comes with it
    forgotten: list[str] = []

    async def forgetful(_client: Any, recipient: str, *_rest: Any, **_options: Any) -> Any:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600.0)
        forgotten.append(recipient)
        await asyncio.sleep(3600.0)

    monkeypatch.setattr(aiosmtplib.SMTP, "rcpt", forgetful)
    here = office(timeout=3600.0, try_seconds=0.5, retries=1)
    # When a mail is sent; Expect it to be given up after its tries
    here.publish(here.subscribe("one", "one@x.org"))
    eventually(lambda: here.lost == {Cause.MAIL_UNREACHABLE: 1})
    eventually(lambda: server.disconnected == server.connected)
    assert set(forgotten) <= {"one@x.org"}


def test_reminders_come_behind_all_other_mail(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given one connection, over which a mail goes that has no answer yet
    server.hold = True
    here = office(connections=1)
    one = here.subscribe("one", "one@x.org")
    here.publish(one)
    eventually(lambda: server.under_way == 1)
    # When a reminder is due, and then three mails of objects
    here.mail.remind(one, 1_700_000_000.0)
    for _ in range(3):
        here.publish(one)
    server.hold = False
    # Expect the objects first, and the reminder apart from their account
    eventually(lambda: here.mail.status()["reminders"] == 1)
    assert server.ids() == [*(f"object-{n}" for n in range(1, 5)), "None"]
    assert (one.matched, one.mailed, here.mail.reminded()) == (4, 4, ["one"])
    # When its lease is renewed while the next one is under way; Expect that to be given up, and not to be tried again
    server.hold = True
    here.mail.remind(one, 1_700_000_000.0)
    eventually(lambda: server.under_way == 1)
    here.mail.withdraw(one)
    eventually(lambda: here.mail.status()["connections"] == 0)
    assert (here.mail.status()["reminders"], here.mail.status()["reminders_waiting"]) == (1, 0)


def test_mails_of_their_own_for_many_recipients_do_not_keep_the_connection_from_others(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one connection, a turn of a minute, 24 seconds for a mail, and links: a mail for each recipient
    here = office(connections=1, try_seconds=60.0, unsubscribe="https://x.org")
    many, other = here.subscribe("many", *(f"{n}@x.org" for n in range(5))), here.subscribe("other", "other@x.org")
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0], time=time.time)
    monkeypatch.setattr("jbi_pubsub.pad.mail.smtp.time", clock)

    def slow(_address: str) -> str:
        later[0] += 24.0
        return "250 OK"

    server.answer_rcpt = slow
    # When an object comes for many, and then one for somebody else
    here.publish(many, other)
    # Expect the other's mail before the many have theirs, each of which comes once
    eventually(lambda: (many.mailed, other.mailed) == (5, 1))
    names = [to[0] for to, _ in server.mails]
    assert names.index("other@x.org") < 5
    assert sorted(names) == [*(f"{n}@x.org" for n in range(5)), "other@x.org"]
    assert sum(here.lost.values()) == 0


def test_an_idle_connection_is_closed(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given connections that may be idle for a twentieth of a second
    here = office(idle_seconds=0.05)
    one = here.subscribe("one", "one@x.org")
    # When mail comes, and then none, twice
    for count in (1, 2):
        here.publish(one)
        eventually(lambda count=count: one.mailed == count)
        eventually(lambda count=count: server.disconnected == server.connected == count)
    # Expect no connection, and no loss
    eventually(lambda: here.mail.status()["connections"] == 0)
    assert here.lost == {}


def test_a_sender_that_is_no_address_is_refused_at_once(server: Server) -> None:
    with pytest.raises(AddressError, match=r"^\[mail\] sender: 'nobody at all' is not exactly one plain"):
        Office(server, sender="nobody at all")


# -- a server that fails ------------------------------------------------------------------------------------------


def test_a_storm_of_4xx_delays_mail_and_keeps_its_order(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that puts off the first forty tries
    server.answer_data = lambda tries: "451 too busy" if tries <= 40 else "250 OK"
    here = office()
    several = [here.subscribe(str(n), f"{n}@x.org") for n in range(5)]
    for _ in range(6):
        here.publish(*several)
    # Expect every mail once, in order for each subscription, and no loss
    eventually(lambda: len(server.mails) == 30, what=lambda: here.mail.status())
    for n in range(5):
        assert server.ids(f"{n}@x.org") == [f"object-{k}" for k in range(1, 7)]
    eventually(lambda: [s.mailed for s in several] == [6] * 5)
    assert here.lost == {}


@pytest.mark.parametrize("enough", ["421 4.7.0 enough for one connection", "530 5.7.0 Authentication required"])
def test_a_connection_that_is_over_or_whose_login_is_costs_no_try(
    enough: str, server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given mail that may not be tried again, and a server that takes one mail a connection and then says so
    server.one_each, server.enough = True, enough
    here = office(retries=0)
    one = here.subscribe("one", "one@x.org")
    for _ in range(3):
        here.publish(one)
    # Expect all of it, and a connection each
    eventually(lambda: one.mailed == 3)
    assert (server.connected, here.lost) == (3, {})


def test_mail_waits_while_the_server_wants_a_login_that_there_is_not(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that takes no mail without a login
    server.one_each, server.enough = True, "530 5.7.0 Authentication required"
    server.taken = 1
    here = office(retries=1_000)
    one = here.subscribe("one", "one@x.org")
    here.publish(one)
    # Expect its words to be told, and the mail to come when it takes mail again
    eventually(lambda: here.mail.status().away == "530 5.7.0 Authentication required", what=here.mail.status)
    server.one_each = False
    eventually(lambda: one.mailed == 1)
    assert here.lost == {}


def test_too_many_recipients_for_the_server_are_put_off_whichever_code_says_so(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that takes two recipients a mail, and says 552 to more (RFC 5321 4.5.3.1.10)
    server.most = 2
    here = office()
    one = here.subscribe("one", *(f"{n}@x.org" for n in range(5)))
    here.publish(one)
    # Expect all to get it
    eventually(lambda: one.mailed == 5, what=lambda: here.lost)
    assert [len(to) for to, _ in server.mails] == [2, 2, 1]
    # When it says so of a single one; Expect a mail that is refused
    server.most = 0
    here.publish(one)
    eventually(lambda: here.lost == {Cause.MAIL_REFUSED: 5}, what=lambda: here.lost)


def test_a_digest_that_is_too_large_for_the_server_goes_in_several(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that refuses mails of more than two objects
    server.answer_message = lambda message: "552 5.3.4 too large" if len(list(message.walk())) > 4 + 2 * 4 else "250 OK"
    here = office(digest_objects=6)
    one = here.subscribe("one", "one@x.org", digest="60")
    for _ in range(6):
        here.publish(one)
    # Expect all of them
    eventually(lambda: one.mailed == 6, what=lambda: (here.lost, server.tries))
    assert here.lost == {}


@pytest.mark.parametrize("where", ["inside", "after"])
def test_a_server_that_dies_with_a_message_gets_the_same_mail_again(
    where: str, server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a server that cuts the connection inside the first message, or after its end and before the answer
    setattr(server, f"dies_{where}", 1)
    here = office()
    one = here.subscribe("one", "one@x.org")
    here.publish(one)
    # Expect the mail; twice, and the same, only where the server had all of it and nobody can know
    eventually(lambda: one.mailed == 1)
    assert len(server.mails) == (1 if where == "inside" else 2)
    assert len({message["Message-ID"] for _, message in server.mails}) == 1
    assert len({message.as_bytes() for _, message in server.mails}) == 1
    assert here.lost == {}


def test_a_recipient_refused_for_good_again_and_again_is_suspended_until_the_subscription_is_made_again(
    server: Server, publishing: Any, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that does not know one of two recipients, and suspension after two mails
    server.answer_rcpt = lambda address: "550 no such user" if address.startswith("gone@") else "250 OK"
    registration = publishing.register(figures.figure_1, figures.schema)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, recipients=("gone@x.org", "here@x.org"))
    assert subscriber.wait_matched(uid) == 1

    def record() -> dict[str, Any]:
        return next(s for s in publishing.status()["subscriptions"] if s["uid"] == uid)

    # When five objects are published, one by one
    for n in range(1, 6):
        publishing.publish(registration, figures.figure_1)
        eventually(lambda n=n: record()["mailed"] == n)
    # Expect two refusals, three under a cause of their own, and the reason in the status
    assert record()["lost"] == {"mail_refused": 2, "mail_suspended": 3}
    assert list(record()["mail_suspended"]) == ["gone@x.org"]
    assert record()["mail_suspended"]["gone@x.org"].startswith("550")
    # When the recipient exists again, and the same subscription is made again
    server.answer_rcpt = lambda _address: "250 OK"
    delegate = (publishing.pad if publishing.kind == "delegate" else publishing.adapter._server).delegate
    [known] = [s for s in delegate.tables.subscriptions.values() if s.uid == uid]
    delegate.subscribers.subscribe("", known.request, 10.0)
    publishing.publish(registration, figures.figure_1)
    # Expect its mail
    eventually(lambda: server.ids("gone@x.org"))
    eventually(lambda: record()["mailed"] == 7)
    assert record()["mail_suspended"] == {}


def test_objects_of_a_digest_come_in_one_mail(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given digests of five objects at most, every hour
    here = office(digest_objects=5)
    one = here.subscribe("one", "one@x.org", digest="3600")
    # When seven objects come
    ids = [here.publish(one) for _ in range(7)]
    # Expect the first five in one mail at once, each counted, and the others to wait
    eventually(lambda: one.mailed == 5)
    [(_, message)] = server.mails
    _, gathered = message.iter_parts()
    assert [part.get_content()["X-JBI-Object-Id"] for part in gathered.iter_parts()] == ids[:5]
    assert one.mail_waiting == 2
    # When the publisher waits until all that can go has gone; Expect them not to go before their time
    assert here.mail.drain(10.0) == 0
    assert (len(server.mails), one.mail_waiting) == (1, 2)
    # When the dispatcher is to end; Expect them before their time, because they would not survive
    assert here.mail.drain(10.0, closing=True) == 0
    assert (len(server.mails), one.mailed) == (2, 7)


def test_cancelling_aborts_what_is_under_way(
    server: Server, office: Callable[..., Office], eventually: Callable[..., Any]
) -> None:
    # Given a recipient that the server is silent for, and three objects
    server.silent_for = "silent"
    here = office()
    one = here.subscribe("one", "silent@x.org")
    for _ in range(3):
        here.publish(one)
    eventually(lambda: here.mail.status()["under_way"] == 1)
    # When the subscription is cancelled; Expect all three to be accounted for, and the connection to be closed
    assert here.mail.cancel(one) == 3
    eventually(lambda: here.mail.status() == {**here.mail.status(), "under_way": 0, "queued": 0, "connections": 0})
    # Expect that what was matched before and comes late is not taken
    obj = InfoObject("late", TypeName(TYPE), b"<a/>", b"", Platform(1.0, "r", 1, 4, 0))
    assert here.mail.offer(one, obj, b"") is False


# -- the disk -----------------------------------------------------------------------------------------------------


def test_what_sync_has_returned_for_is_on_disk(
    server: Server, office: Callable[..., Office], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given mail that can't go out, offered and synced
    server.hold = True
    here = office(tmp_path / "mails")
    one = here.subscribe("one", "one@x.org")
    ids = [here.publish(one) for _ in range(5)]
    here.mail.writer.sync()
    # When the machine stops at this moment: the file and its log as they are now
    for name in ("mails", "mails-wal"):
        shutil.copy(tmp_path / name, tmp_path / f"copy-of-{name}")
    after = MailStore(tmp_path / "copy-of-mails")
    kept = after.load(0.0)
    after.close()
    # Expect all of it there
    assert [letter.content.object_id for letter in kept.letters["one"]] == ids
    assert kept.ledgers["one"].offered == 5


def test_mail_that_has_not_gone_is_sent_after_a_restart_and_the_account_goes_on(
    server: Server, office: Callable[..., Office], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a server that takes two mails and then puts off, and one recipient that it refuses
    server.answer_data = lambda tries: "250 OK" if tries <= 2 else "451 later"
    server.answer_rcpt = lambda address: "550 no" if address.startswith("gone@") else "250 OK"
    here = office(tmp_path / "mails")
    one = here.subscribe("one", "one@x.org", "gone@x.org")
    ids = [here.publish(one) for _ in range(5)]
    eventually(lambda: server.tries >= 4)
    # When the dispatcher ends; Expect nothing to be lost by that
    here.mail.stop()
    assert here.lost == {Cause.MAIL_REFUSED: 2}
    # When another one begins with the same store, and the server is well
    server.answer_data = lambda _tries: "250 OK"
    again = office(tmp_path / "mails", start=False)
    one = again.subscribe("one", "one@x.org", "gone@x.org")
    assert (one.matched, one.mailed, one.lost, one.mail_waiting) == (5, 2, {Cause.MAIL_REFUSED: 2}, 3)
    again.mail.start()
    # Expect the other three, and the account even: 5 objects x 2 recipients
    eventually(lambda: one.mailed == 5)
    assert server.ids("one@x.org") == ids
    assert one.mailed + sum(one.lost.values()) + sum(again.lost.values()) == 10
    # Expect nothing to be left on disk but the account
    again.mail.stop()
    store = MailStore(tmp_path / "mails")
    kept = store.load(0.0)
    store.close()
    assert (kept.letters, kept.ledgers["one"].offered, kept.ledgers["one"].mailed) == ({}, 5, 5)


def test_mail_of_a_subscription_that_has_ended_meanwhile_is_told_and_forgotten(
    server: Server, office: Callable[..., Office], tmp_path: Path
) -> None:
    # Given mail on disk of a subscription whose lease runs out while nobody is there
    server.hold = True
    here = office(tmp_path / "mails")
    here.publish(here.subscribe("one", "one@x.org", "two@x.org"))
    here.mail.stop()
    # When the next one begins without it; Expect its account with the loss, and once only
    again = office(tmp_path / "mails", start=False)
    [ledger] = again.mail.start()
    assert (ledger.offered, ledger.lost) == (1, {"cancelled": 2})
    again.mail.stop()
    assert office(tmp_path / "mails", start=False).mail.start() == []


def test_many_mails_share_a_commit(
    server: Server, office: Callable[..., Office], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a disk that is busy with the first mail
    busy, go = threading.Event(), threading.Event()
    commits: list[int] = []
    commit = MailStore.commit

    def slow(store: MailStore, changes: Any, offset: float) -> None:
        if changes.letters:
            commits.append(len(changes.letters))
            busy.set()
            assert go.wait(60.0)
        commit(store, changes, offset)

    monkeypatch.setattr(MailStore, "commit", slow)
    here = office(tmp_path / "mails")
    one = here.subscribe("one", "one@x.org")
    here.publish(one)
    assert busy.wait(60.0)
    # When 200 more come meanwhile; Expect that they did not wait for it, and one commit for them all
    for _ in range(200):
        here.publish(one)
    go.set()
    here.mail.writer.sync()
    assert commits == [1, 200]


def test_a_publisher_is_told_that_its_batch_is_taken_when_the_mail_is_on_disk(
    server: Server, federation: Any, figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate with state whose disk is slow, and an e-mail subscription
    go, commit = threading.Event(), MailStore.commit

    def slow(store: MailStore, changes: Any, offset: float) -> None:
        assert not changes.letters or go.wait(60.0)
        commit(store, changes, offset)

    monkeypatch.setattr(MailStore, "commit", slow)
    section = msgspec.structs.replace(federation.config.pad, state=str(tmp_path / "state.db"))
    pad = federation.pad(config=msgspec.structs.replace(federation.config, pad=section))
    secret = "0123456789abcdef" * 2
    uid = owned_uid("subscription", secret)
    request = SubscriptionRequest(uid, direct=False, recipients=("one@x.org",), secret=secret)
    pad.delegate.subscribers.subscribe("", request, 60.0)
    adapter = federation.light()
    registration = figures.register(adapter)
    # When an object is published; Expect it not to be acknowledged before the mail is there
    adapter.publish(registration, figures.figure_1)
    with pytest.raises(BackPressureError):
        adapter.flush(0.3)
    go.set()
    adapter.flush(60.0)


def test_a_full_disk_is_a_counted_loss_and_no_end(
    server: Server, office: Callable[..., Office], tmp_path: Path, eventually: Callable[..., Any], caplog: Any
) -> None:
    # Given a mail queue on a disk with room for some hundred kilobytes
    here = office(tmp_path / "mails")
    assert here.store is not None
    base = here.store._base
    base.execute(f"PRAGMA max_page_count={base.execute('PRAGMA page_count').fetchone()[0] + 20}").fetchall()
    one = here.subscribe("one", "one@x.org")
    # When objects of a megabyte come; Expect them to be lost under that cause, and one word in the log
    for _ in range(3):
        here.publish(one, payload=b"x" * (1 << 20))
        here.mail.writer.sync()
    eventually(lambda: here.lost == {Cause.STORAGE: 3})
    assert len([r for r in caplog.records if "disk can't store it" in r.getMessage()]) == 1
    assert "full" in str(here.mail.status()["fault"])
    # When there is a small one; Expect it to go out
    small = here.publish(one)
    here.mail.writer.sync()
    eventually(lambda: server.ids() == [small])
    eventually(lambda: one.mailed == 1)
    assert here.mail.status()["fault"] == ""
    assert one.mail_waiting == 0


def test_a_disk_that_hangs_holds_up_a_stop_for_its_seconds_alone(
    office: Callable[..., Office], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a disk that does not answer while a mail is written, in a file that waits for it to be closed, too
    here = office(tmp_path / "mails")
    one = here.subscribe("one", "one@x.org")
    assert here.store is not None
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(here.store, "commit", lambda *_arguments: begun.set() or go_on.wait(60.0))
    monkeypatch.setattr(here.store, "close", lambda: go_on.wait(60.0) and closed.set())
    here.publish(one)
    assert begun.wait(60.0)
    # When the dispatcher is stopped; Expect it to wait for its seconds once, and not to close the file
    began = time.monotonic()
    here.mail.stop(1.0)
    assert time.monotonic() - began < 1.9
    assert not closed.is_set()
    # When the disk answers again; Expect a stop to close it
    go_on.set()
    here.mail.stop()
    assert closed.is_set()
    monkeypatch.undo()
    here.store.close()


def test_two_delegates_do_not_share_a_mail_queue(server: Server, office: Callable[..., Office], tmp_path: Path) -> None:
    office(tmp_path / "mails")
    with pytest.raises(StorageError, match="another delegate"):
        MailStore(tmp_path / "mails")
    assert (tmp_path / "mails").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["no database", "another version"])
def test_a_file_that_is_no_mail_queue_of_ours_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "mails"
    if damage == "no database":
        path.write_bytes(b"something else, long enough to be looked at" * 100)
    else:
        MailStore(path).close()
        with closing(sqlite3.connect(path)) as base:
            base.execute("PRAGMA user_version=7")
    with pytest.raises(StorageError, match="mails"):
        MailStore(path)


@pytest.mark.processes
def test_mail_queued_in_a_delegate_that_is_killed_is_sent_when_it_is_back(
    server: Server, federation: Any, figures: Any, field: Any, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a delegate with state, an e-mail subscription, and a mail server that puts everything off
    server.answer_data = lambda _tries: "451 later"
    mail = msgspec.structs.replace(field.config.mail, retries=1000)
    field.config = federation.config = msgspec.structs.replace(field.config, mail=mail)
    state = ("--state", str(tmp_path / "state.db"))
    pad = field.pad(more=state)
    subscribing = field.jbi("subscribe", "--type", TYPE, "--email", "duty@example.org", "--json")
    uid = subscribing.fact()["subscription"]
    assert subscribing.wait() == 0
    # When objects are published and taken, and then the delegate is killed
    adapter = field.light()
    registration = figures.register(adapter)
    ids = [adapter.publish(registration, figures.figure_1) for _ in range(5)]
    assert not adapter.flush()
    eventually(lambda: server.tries > 0)
    pad.signal(9)
    # When it is back, and the mail server is well
    server.answer_data = lambda _tries: "250 OK"
    again = field.pad(port=pad.port, more=state)
    # Expect all mails in order, and the account of before to go on
    eventually(lambda: server.ids() == ids, what=lambda: server.ids())

    def record() -> dict[str, Any]:
        return next(s for s in field.status(again)["subscriptions"] if s["uid"] == uid)

    eventually(lambda: record()["mailed"] == 5)
    assert (record()["matched"], record()["mail_waiting"], record()["lost"]) == (5, 0, {})


@pytest.mark.processes
def test_the_command_line_makes_digests_and_shows_who_is_suspended(
    server: Server, federation: Any, figures: Any, field: Any, eventually: Callable[..., Any]
) -> None:
    # Given a server that knows nobody, one subscription with digests and one without, from the command line
    server.answer_rcpt = lambda _address: "550 no such user"
    field.leases(lookup=60.0)
    pad = field.pad()
    uids = []
    for more in ((), ("--digest", "3600")):
        process = field.jbi("subscribe", "--type", TYPE, "--email", "gone@example.org", *more, "--json")
        uids.append(process.fact()["subscription"])
        assert process.wait() == 0
    # When three objects are published
    adapter = field.light()
    registration = figures.register(adapter)
    for _ in range(3):
        adapter.publish(registration, figures.figure_1)
    adapter.flush()

    def waits() -> int:
        return int(field.status(pad)["mail"]["queued"])

    eventually(lambda: waits() == 3)
    # Expect the one to be suspended after two, and the other to gather
    answer = field.jbi("subscriptions", "--json").fact()
    plain, digest = sorted(answer, key=lambda row: uids.index(row["uid"]))
    assert plain["lost"] == {"mail_refused": 2, "mail_suspended": 1}
    assert plain["mail_suspended"] == {"gone@example.org": "550 no such user"}
    assert (digest["mail_digest_seconds"], digest["mail_waiting"], digest["mailed"]) == (3600.0, 3, 0)
    table = field.jbi("subscriptions")
    assert "gone@example.org: 550 no such user" in table.communicate()[0]


@pytest.mark.parametrize("value", ["-1", "nan", "soon", "86401"])
def test_a_digest_time_that_is_none_is_refused(value: str) -> None:
    request = SubscriptionRequest("one", direct=False, recipients=("a@x.org",), attributes=((DIGEST_ATTRIBUTE, value),))
    with pytest.raises(ConfigurationError, match="mail_digest_seconds"):
        compile_subscription(request, owner="mail", number=0)


def test_digests_are_for_mail() -> None:
    request = SubscriptionRequest("one", attributes=((DIGEST_ATTRIBUTE, "60"),))
    with pytest.raises(ConfigurationError, match="recipients"):
        compile_subscription(request, owner="s", number=0)


@pytest.mark.parametrize("name", ["mail_digest_second", "mail-digest-seconds", "Mail_Digest_Seconds", "digest_seconds"])
def test_an_attribute_that_is_nearly_a_known_one_is_refused(name: str) -> None:
    # Given a name without effect that was meant to be another; Expect it to be told, not each object mailed by itself
    request = SubscriptionRequest("one", direct=False, recipients=("a@x.org",), attributes=((name, "60"),))
    with pytest.raises(ConfigurationError, match=f"{name}.*Did you mean 'mail_digest_seconds'"):
        compile_subscription(request, owner="mail", number=0)


@pytest.mark.parametrize("name", ["", "priority", "mail_priority", "x" * 1000])
def test_other_attributes_are_kept(name: str) -> None:
    request = SubscriptionRequest("one", attributes=((name, "high"), (DIGEST_ATTRIBUTE, "0")))
    assert compile_subscription(request, owner="s", number=0).request.attributes[0] == (name, "high")


def test_what_a_server_says_can_be_shown_and_stored(
    server: Server, office: Callable[..., Office], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a server that refuses with bytes that are no UTF-8
    server.raw = b"550 \xff\x1b[2J no\r\n"
    here = office(tmp_path / "mails", suspend_after=1)
    one = here.subscribe("one", "one@x.org")
    here.publish(one)
    eventually(lambda: one.mail_suspended)
    # Expect the words without them, and that the disk takes them
    assert one.mail_suspended["one@x.org"].isprintable()
    assert one.mail_suspended["one@x.org"].startswith("550 ")
    here.mail.writer.sync()
    here.mail.stop()
    again = office(tmp_path / "mails", start=False)
    assert again.subscribe("one", "one@x.org").mail_suspended == one.mail_suspended
