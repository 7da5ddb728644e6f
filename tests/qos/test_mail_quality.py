"""E-mail under contracts: who is sent next, what is too late or too large, and how much goes to the mail server."""

from __future__ import annotations

import email.policy
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from email import message_from_bytes
from email.message import EmailMessage
from typing import Any, cast

import msgspec
import pytest
from contracts import stand_under
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.config import MailSection, QosSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.quality import Contract, PayloadShape, Settings
from jbi_pubsub.examples.mailbox import AnyPort
from jbi_pubsub.pad.mail.letters import Loss
from jbi_pubsub.pad.mail.message import Content, single
from jbi_pubsub.pad.mail.outbox import Attempt
from jbi_pubsub.pad.mail.queue import MailQueue
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest

SETTINGS = MailSection(retries=2, retry_seconds=1.0, digest_objects=4, queue_bound=400)
TYPE = "mil.af.rl.jbi.Intel_Imagery"
numbers = itertools.count(1)


def subscription(uid: str, *recipients: str, digest: int = 0, **settings: Any) -> Subscription:
    """An e-mail subscription under a contract; a@x by default."""
    attributes = (("mail_digest_seconds", str(digest)),) if digest else ()
    request = SubscriptionRequest(uid, direct=False, recipients=recipients or ("a@x",), attributes=attributes)
    made = compile_subscription(request, owner="mail", number=0)
    made.contract = Contract(Settings(**settings))
    return made


def content(size: int = 10) -> Content:
    number = next(numbers)
    return Content(number, f"object-{number}", "t", "t #1", b"x" * size)


def queue_of(*subscriptions: Subscription, durable: bool = False, **changes: Any) -> MailQueue:
    queue = MailQueue(msgspec.structs.replace(SETTINGS, **changes))
    for one in subscriptions:
        queue.open(one, durable=durable)
    return queue


def taken(queue: MailQueue, now: float) -> Attempt:
    attempt = queue.take(now)
    assert attempt is not None
    return attempt


# -- who is next --------------------------------------------------------------------------------------------------


def test_the_next_connection_is_for_the_most_important_and_each_keeps_its_order() -> None:
    # Given mail of three importances, the least important first
    boxes = [subscription(str(n), importance=n) for n in (1, 3, 5)]
    queue = queue_of(*boxes)
    waiting = {one: [content(), content()] for one in boxes}
    for one, contents in waiting.items():
        for each in contents:
            queue.offer(one, each, 0.0)
    # When there is one connection; Expect the most important outbox emptied first, each in its order
    sent = []
    while (attempt := queue.take(1.0)) is not None:
        sent += [(attempt.subscription.uid, letter.content) for letter in attempt.letters]
        queue.settle(attempt, {}, 1.0)
    assert sent == [(one.uid, each) for one in reversed(boxes) for each in waiting[one]]


def test_outboxes_of_one_importance_take_turns() -> None:
    boxes = [subscription(name) for name in "abc"]
    queue = queue_of(*boxes)
    for _ in range(2):
        for one in boxes:
            queue.offer(one, content(), 0.0)
    sent = []
    while (attempt := queue.take(1.0)) is not None:
        sent.append(attempt.subscription.uid)
        queue.settle(attempt, {}, 1.0)
    assert sent == ["a", "b", "c"] * 2


def test_what_waits_already_follows_an_importance_that_changes() -> None:
    # Given two outboxes that are ready, one of which waits for the connection of the other
    first, second, third = (subscription(name, importance=3) for name in ("first", "second", "third"))
    queue = queue_of(first, second, third)
    for one in (first, second, third):
        queue.offer(one, content(), 0.0)
    queue.settle(taken(queue, 0.0), {}, 0.0)
    # When the last one becomes more important; Expect it next, within a second
    third.contract.settings = Settings(importance=5)
    assert queue.sweep(0.5) <= 1.0
    assert taken(queue, 0.5).subscription is third
    assert taken(queue, 0.5).subscription is second


# -- too late -----------------------------------------------------------------------------------------------------


def test_a_letter_is_not_handed_over_after_its_deadline() -> None:
    # Given a deadline of five seconds, a letter that waits for longer to two people, and one that is younger
    one = subscription("one", "a@x", "b@x", deadline=5.0)
    queue = queue_of(one)
    old, young = content(), content()
    queue.offer(one, old, 0.0)
    queue.offer(one, young, 3.0)
    # When a connection is free at last; Expect the young one alone, the old one lost for each recipient
    attempt = taken(queue, 5.5)
    assert [letter.content for letter in attempt.letters] == [young]
    assert queue.late() == [Loss(one, Cause.DEADLINE, 2)]
    assert queue.late() == []
    # Expect the account even
    queue.settle(attempt, {}, 5.6)
    assert (one.matched, one.mailed, one.mail_waiting) == (2, 2, 0)
    assert (queue.room.waiting, queue.room.size) == (0, 0)


def test_late_letters_are_told_while_no_connection_is_free() -> None:
    # Given letters whose deadlines end one by one, while the mail server is away
    one = subscription("one", deadline=5.0)
    queue = queue_of(one)
    for at in range(3):
        queue.offer(one, content(), float(at))
    # When time goes by; Expect each to be told within a quarter of a second
    lost = []
    due = queue.sweep(0.0)
    while due < float("inf"):
        lost += [(due, loss.amount) for loss in queue.late()]
        due = queue.sweep(due)
    assert [amount for _, amount in lost] == [1, 1, 1]
    assert [5.0 + n < at <= 5.6 + n for n, (at, _) in enumerate(lost)] == [True] * 3
    assert queue.next_due() == float("inf")


def test_a_try_under_way_is_not_aborted_and_a_letter_that_was_put_off_may_be_late() -> None:
    # Given a letter that was handed over in time
    one = subscription("one", deadline=5.0)
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    queue.offer(one, content(), 0.0)
    attempt = taken(queue, 4.0)
    # When its deadline is over while it is under way; Expect the second one lost, when it is its turn
    queue.sweep(6.0)
    # When the server puts it off; Expect it to be lost by its deadline, not sent again
    queue.put_off(attempt, "away", 6.0)
    assert queue.take(8.0) is None
    assert sum(loss.amount for loss in queue.late()) == 2
    assert (one.mailed, one.mail_waiting) == (0, 0)


def test_a_deadline_that_changes_holds_for_what_waits_and_none_forgets_it() -> None:
    one = subscription("one", deadline=5.0)
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    one.contract.settings = Settings()
    assert taken(queue, 100.0).subscription is one
    assert queue.late() == []


def test_a_deadline_by_the_object_holds_for_that_object() -> None:
    one = subscription("one")
    one.contract.by_object = lambda _parcel: Settings()
    queue = queue_of(one)
    urgent, patient = content(), content()
    queue.offer(one, urgent, 0.0, deadline=1.0)
    queue.offer(one, patient, 0.0)
    assert [letter.content for letter in taken(queue, 2.0).letters] == [patient]


def test_mail_on_disk_keeps_its_age_over_a_restart() -> None:
    # Given durable letters, of which one was queued long before the restart
    one = subscription("one", deadline=5.0)
    before = queue_of(one, durable=True)
    before.offer(one, content(), 0.0)
    before.offer(one, content(), 4.0)
    letters = before.journal.take().letters
    # When they are taken over; Expect the old one lost, and gone from the disk
    queue = MailQueue(SETTINGS, first=10)
    queue.open(one, durable=True)
    queue.restore(one, letters, 6.0)
    assert [letter.content for letter in taken(queue, 6.0).letters] == [letters[1].content]
    assert queue.late() == [Loss(one, Cause.DEADLINE, 1)]
    assert list(queue.journal.take().deleted) == [letters[0].number]


# -- digests and the link -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("importance", range(1, 6))
def test_nothing_important_is_gathered(importance: int) -> None:
    one = subscription("one", digest=60, importance=importance)
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    attempt = queue.take(0.0)
    if importance < 4:
        assert attempt is None
        # When it becomes important; Expect what was gathered to go, each by itself
        queue.offer(one, content(), 0.0)
        one.contract.settings = Settings(importance=4)
        queue.sweep(0.5)
        attempt = taken(queue, 0.5)
    assert attempt is not None
    assert (len(attempt.letters), attempt.is_digest) == (1, False)


def test_the_link_to_the_mail_server_takes_so_many_bytes_a_second() -> None:
    # Given a link of 1,000 bytes a second, and mails of 500 for two, of which one counts for each of its recipients
    one, both = subscription("one"), subscription("both", "a@x", "b@x", importance=2)
    queue = queue_of(one, both, unsubscribe="https://x.org")
    queue.pace.limit(1_000.0, 0.0)
    for _ in range(4):
        queue.offer(one, content(500), 0.0)
    queue.offer(both, content(500), 0.0)
    # When all goes out as soon as it may; Expect them half a second apart, the first after what a pause has saved
    at = []
    now = 0.0
    while (due := queue.next_due()) < float("inf"):
        now = max(now, due)
        attempt = taken(queue, now)
        at.append(round(now, 3))
        queue.settle(attempt, {}, now)
    assert at == [0.0, 0.4, 0.9, 1.4, 1.9]
    # Expect the mail for two to have taken twice as much; When the rate is gone, expect nothing to wait
    assert queue.pace.slot == pytest.approx(2.9)
    queue.pace.limit(0.0, 1.9)
    assert queue.pace.slot <= 1.9


def test_a_link_that_becomes_faster_is_used_at_once() -> None:
    one = subscription("one")
    queue = queue_of(one)
    queue.pace.limit(10.0, 0.0)
    queue.offer(one, content(1_001), 0.0)
    queue.settle(taken(queue, 0.0), {}, 0.0)
    assert queue.pace.slot == pytest.approx(100.0)
    queue.pace.limit(10_000.0, 1.0)
    assert queue.pace.slot <= 1.0


@given(st.data())
def test_whatever_happens_each_object_for_each_recipient_has_one_end(data: st.DataObject) -> None:
    # Given outboxes of all importances, some with deadlines, digests, memory of the disk
    boxes = [
        subscription(
            str(n),
            *["a@x", "b@x"][: 1 + n % 2],
            digest=10 * (n % 3 == 2),
            importance=1 + n,
            deadline=[None, 3.0][n % 2],
        )
        for n in range(5)
    ]
    queue = queue_of(*boxes)
    lost: dict[str, int] = {}
    under_way: list[Attempt] = []
    now = 0.0

    def note(losses: list[Loss]) -> None:
        for loss in losses:
            lost[loss.subscription.uid] = lost.get(loss.subscription.uid, 0) + loss.amount

    # When objects come, connections are free, servers answer or not, policies change and time goes by
    for _ in range(data.draw(st.integers(5, 60))):
        match data.draw(st.integers(0, 5)):
            case 0 | 1:
                note(queue.offer(data.draw(st.sampled_from(boxes)), content(), now))
            case 2:
                attempt = queue.take(now)
                if attempt is not None:
                    # Expect nobody more important to be ready
                    others = [o for o in queue._outboxes.values() if o.next_due(is_flushed=False) <= now]
                    assert all(other.level <= attempt.outbox.level for other in others)
                    under_way.append(attempt)
            case 3 if under_way:
                attempt = under_way.pop(0)
                answer = data.draw(st.integers(0, 2))
                refused = {"a@x": (500, "no")} if answer == 1 else {}
                note(queue.put_off(attempt, "away", now) if answer == 2 else queue.settle(attempt, refused, now))
            case 4:
                now += data.draw(st.floats(0.1, 4.0))
                queue.sweep(now)
            case 5:
                box = data.draw(st.sampled_from(boxes))
                box.contract.settings = msgspec.structs.replace(
                    box.contract.settings, importance=data.draw(st.integers(1, 5))
                )
                now += 0.3
                queue.sweep(now)
            case _:
                pass
        note(queue.late())
        # Expect at each moment: offered = mailed + lost + waiting
        for box in boxes:
            people = len(box.request.recipients)
            outbox = queue._outboxes[box]
            waiting = sum(len(letter.recipients) for letter in outbox.letters)
            assert box.matched * people == box.mailed + lost.get(box.uid, 0) + waiting, box.uid


# -- what people see ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("importance", "word", "number"),
    [(1, "low", "5"), (2, "low", "4"), (3, "normal", "3"), (4, "high", "2"), (5, "high", "1")],
)
def test_mail_programs_are_told_how_important_it_is(importance: int, word: str, number: str) -> None:
    mail = message_from_bytes(single(content(), "s", "x.org", importance=importance))
    assert (mail["Importance"], mail["X-Priority"]) == (word, number)
    assert message_from_bytes(single(content(), "s", "x.org"))["Importance"] is None


class Sink:
    """An SMTP server's mind; `hold`: nothing is answered."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.answer = "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.answer.startswith("2"):
            self.mails.append(cast(EmailMessage, message_from_bytes(envelope.content, policy=email.policy.default)))
        return self.answer


@pytest.fixture
def sink() -> Iterator[tuple[Sink, int]]:
    sink = Sink()
    controller = AnyPort(sink, hostname="127.0.0.1", port=0)
    controller.start()
    yield sink, controller.port
    controller.stop()


@pytest.mark.row("X-04")
@pytest.mark.processes
def test_mail_is_shaped_dropped_and_late_as_queues_are_and_all_of_it_is_told(
    sink: tuple[Sink, int], fixtures: Any, figures: Any, eventually: Any
) -> None:
    # Given a mail server that puts everybody off, and a subscription by queue and mail under a contract
    server, port = sink
    server.answer = "451 later"
    mail = MailSection(port=port, retries=1_000, retry_seconds=0.05, timeout=2.0)
    with ExitStack() as stack:
        config = msgspec.structs.replace(fixtures.test_config(mail=mail), qos=QosSection(mode="on"))
        federation = fixtures.Federation(config, stack)
        pad, publisher, subscriber = federation.pad(), federation.light(), federation.subscriber()
        uid = subscriber.register_subscriber(type_name=TYPE, recipients=["ops@example.org"], direct=True)
        registration = figures.register(publisher)
        eventually(lambda: pad.status()["subscriptions"])
        assert subscriber.wait_matched(uid) >= 1
        [standing] = stand_under(
            pad.delegate, uid, importance=5, deadline=0.3,
            shapes=(PayloadShape("truncate", (4,)),), max_size=len(figures.figure_1) + 100,
        )  # fmt: skip

        # When an object comes that is in time for the queue alone; Expect its mail lost by its deadline
        publisher.publish(registration, figures.figure_1, b"too late")
        assert subscriber.receive(uid).payload == b"too "
        eventually(lambda: subscriber.losses(uid) == {"deadline": 1})

        # When the mail server takes mail again; Expect the shape in both, and the importance for people to see
        server.answer = "250 OK"
        standing.contract = Contract(Settings(importance=5, shapes=(PayloadShape("truncate", (4,)),), max_size=10**6))
        publisher.publish(registration, figures.figure_1, b"in time")
        assert subscriber.receive(uid).payload == b"in t"
        [message] = eventually(lambda: list(server.mails))
        files = [part.get_payload(decode=True) for part in message.iter_attachments()]
        assert files == [figures.figure_1, b"in t"]
        assert (message["Importance"], message["X-Priority"]) == ("high", "1")

        # When one comes that is too large for the contract; Expect it lost to the queue and to the recipient
        standing.contract = Contract(Settings(max_size=10))
        publisher.publish(registration, figures.figure_1, b"large")
        eventually(lambda: subscriber.losses(uid) == {"deadline": 1, "oversize": 2})
        assert pad.status()["lost"] == {"deadline": 1, "oversize": 2}
        eventually(lambda: pad.status()["delivered"] == 2)
        assert (standing.matched, standing.mailed, standing.mail_waiting) == (3, 1, 0)
