"""The mail queue by itself: order, turns, retries, digests, suspension, and an account that is always even."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.mail.letters import Loss
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.mail.outbox import UNSUBSCRIBED, Attempt, Outbox
from jbi_pubsub.pad.mail.queue import MailQueue
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest

SETTINGS = MailSection(retries=2, retry_seconds=1.0, suspend_after=3, digest_objects=4, queue_bound=40)
numbers = itertools.count(1)


def subscription(uid: str = "one", *recipients: str, digest: int = 0) -> Subscription:
    """An e-mail subscription; a@x by default."""
    attributes = (("mail_digest_seconds", str(digest)),) if digest else ()
    request = SubscriptionRequest(uid, direct=False, recipients=recipients or ("a@x",), attributes=attributes)
    return compile_subscription(request, owner="mail", number=0)


def content(name: str = "", size: int = 10) -> Content:
    """An object's mail."""
    number = next(numbers)
    return Content(number, name or f"object-{number}", "t", "t #1", b"x" * size)


def queue_of(*subscriptions: Subscription, durable: bool = False, **changes: Any) -> MailQueue:
    """A queue with opened subscriptions."""
    queue = MailQueue(msgspec.structs.replace(SETTINGS, **changes))
    for one in subscriptions:
        queue.open(one, durable=durable)
    return queue


def taken(queue: MailQueue, now: float) -> Attempt:
    """What is due."""
    attempt = queue.take(now)
    assert attempt is not None
    return attempt


def outbox_of(queue: MailQueue, subscription: Subscription) -> Outbox:
    """The outbox of an open subscription."""
    outbox = queue.outbox(subscription)
    assert outbox is not None
    return outbox


def names(attempt: Attempt) -> list[str]:
    """The objects of a mail."""
    return [letter.content.object_id for letter in attempt.letters]


# -- who has unsubscribed ------------------------------------------------------------------------------------------


def test_who_has_unsubscribed_gets_what_is_under_way_and_nothing_more_also_when_all_is_resumed() -> None:
    # Given a mail to two that is under way, and one that waits
    one = subscription("one", "a@x", "b@x")
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    queue.offer(one, content(), 0.0)
    under_way = taken(queue, 0.0)
    # When one of them unsubscribes; Expect what waits for him to be lost, each object under one cause
    assert queue.unsubscribe(one, ["a@x"], 0.0) == [
        Loss(one, Cause.MAIL_SUSPENDED, 1, "mail suspended: a@x: unsubscribed by the recipient")
    ]
    # When the server has taken the first, and the subscription is made again; Expect the second to go to the other
    assert queue.settle(under_way, {}, 0.0) == []
    outbox_of(queue, one).resume()
    assert taken(queue, 0.0).recipients == ("b@x",)
    assert one.mail_suspended == {"a@x": UNSUBSCRIBED}
    assert (one.matched, one.mailed, one.lost) == (2, 2, Counter())  # losses are counted by who is told of them
    # Expect each further object to be no mail to him
    assert queue.offer(one, content(), 0.0) == [Loss(one, Cause.MAIL_SUSPENDED, 1)]


def test_a_mail_that_is_put_off_is_not_tried_again_for_whom_has_unsubscribed_meanwhile() -> None:
    # Given a mail under way to two, one of whom unsubscribes
    one = subscription("one", "a@x", "b@x")
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    under_way = taken(queue, 0.0)
    assert queue.unsubscribe(one, ["a@x"], 0.0) == []
    # When the server puts both off; Expect one loss, and a further try for the other alone
    [lost] = queue.settle(under_way, {"a@x": (451, "later"), "b@x": (451, "later")}, 0.0)
    assert (lost.cause, lost.amount) == (Cause.MAIL_SUSPENDED, 1)
    assert taken(queue, 1.0).recipients == ("b@x",)


def test_a_rate_counts_each_recipients_own_mail() -> None:
    # Given links, so that each recipient gets a mail of his own, and two mails a second
    one, other = subscription("one", "a@x", "b@x", "c@x"), subscription("other")
    queue = queue_of(one, other, rate=2.0, unsubscribe="https://x.org")
    queue.offer(one, content(), 0.0)
    queue.offer(other, content(), 0.0)
    # When the first object has gone to three; Expect the next mail a second and a half later
    assert taken(queue, 0.0).recipients == ("a@x", "b@x", "c@x")
    assert queue.take(1.4) is None
    assert taken(queue, 1.5).recipients == ("a@x",)


def test_the_oldest_mail_is_told_by_its_age() -> None:
    one, other = subscription("one"), subscription("other")
    queue = queue_of(one, other)
    assert queue.oldest(7.0) == 0.0
    queue.offer(one, content(), 5.0)
    queue.offer(other, content(), 3.0)
    queue.offer(other, content(), 6.0)
    assert queue.oldest(7.0) == 4.0


# -- order and turns ----------------------------------------------------------------------------------------------


def test_mails_of_one_subscription_go_one_after_the_other_also_when_one_is_put_off() -> None:
    # Given two mails of one subscription
    one = subscription()
    queue = queue_of(one)
    queue.offer(one, content("first"), 0.0)
    queue.offer(one, content("second"), 0.0)
    # When the first is under way; Expect the second to wait
    attempt = taken(queue, 0.0)
    assert queue.take(0.0) is None
    # When it is put off; Expect nothing before its pause, and then the first again
    queue.settle(attempt, {"a@x": (451, "later")}, 0.0)
    assert queue.take(0.9) is None
    assert queue.next_due() == 1.0
    again = taken(queue, 1.0)
    assert names(again) == ["first"]
    queue.settle(again, {}, 1.0)
    assert names(taken(queue, 1.0)) == ["second"]


def test_subscriptions_take_turns() -> None:
    # Given a subscription with three mails, and one whose mail came last
    many, late = subscription("many"), subscription("late")
    queue = queue_of(many, late)
    for n in range(3):
        queue.offer(many, content(), n)
    queue.offer(late, content(), 3.0)
    # When mails go out one at a time; Expect the late one second
    order = []
    for now in range(4, 8):
        attempt = taken(queue, now)
        order.append(attempt.subscription.uid)
        queue.settle(attempt, {}, now)
    assert order == ["many", "late", "many", "many"]


def test_pauses_double_and_end_in_a_loss() -> None:
    # Given a mail, and two retries
    one = subscription("one", "a@x", "b@x")
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    # When the server is away each time
    assert queue.put_off(taken(queue, 0.0), "away", 0.0) == []
    assert queue.next_due() == 1.0
    assert queue.put_off(taken(queue, 1.0), "away", 1.0) == []
    assert queue.next_due() == 3.0
    # Expect a loss for each recipient after the third try
    [loss] = queue.put_off(taken(queue, 3.0), "away", 3.0)
    assert (loss.cause, loss.amount) == (Cause.MAIL_UNREACHABLE, 2)
    assert queue.room.waiting == queue.room.size == 0


def test_a_try_that_leaves_fewer_recipients_is_none_of_the_bounded_number() -> None:
    # Given two tries after the first, and a mail to four that the server takes for one more each time
    one = subscription("one", *(f"{name}@x" for name in "abcd"))
    queue, now = queue_of(one), 0.0
    queue.offer(one, content(), now)
    for left in (3, 2, 1):
        attempt = taken(queue, now)
        assert queue.settle(attempt, dict.fromkeys(attempt.recipients[1:], (451, "later")), now) == []
        assert one.mailed == 4 - left
        now += 1.0
    # When it is taken for nobody any more; Expect the bounded number of tries from here on
    for last in (False, False, True):
        losses = queue.settle(taken(queue, now), {"d@x": (451, "later")}, now)
        assert bool(losses) == last
        now += 60.0


def test_a_recipient_who_is_put_off_holds_nobody_else_up_and_gets_all_in_order() -> None:
    # Given three mails to two, of whom one has a full mailbox
    one = subscription("one", "a@x", "full@x")
    queue = queue_of(one)
    for name in ("first", "second", "third"):
        queue.offer(one, content(name), 0.0)
    full = {"full@x": (452, "mailbox full")}
    assert queue.settle(taken(queue, 0.0), full, 0.0) == []
    # Expect the other one to get the next ones at once
    for name in ("second", "third"):
        attempt = taken(queue, 0.0)
        assert (names(attempt), attempt.recipients) == ([name], ("a@x",))
        queue.settle(attempt, {}, 0.0)
    assert (one.mailed, queue.take(0.9), queue.next_due()) == (3, None, 1.0)
    # When it is put off again, and then takes mail; Expect its pause to grow, and each mail in order
    attempt = taken(queue, 1.0)
    assert (names(attempt), attempt.recipients) == (["first"], ("full@x",))
    queue.settle(attempt, full, 1.0)
    assert queue.next_due() == 2.0
    for name in ("first", "second", "third"):
        attempt = taken(queue, 2.0)
        assert (names(attempt), attempt.recipients) == ([name], ("full@x",))
        queue.settle(attempt, {}, 2.0)
    assert (one.mailed, one.lost, queue.room.waiting) == (6, Counter(), 0)


def test_a_mail_is_given_up_for_the_recipient_who_is_put_off_too_often_and_for_nobody_else() -> None:
    # Given a mail that one recipient has got, and two are put off at other times
    one = subscription("one", "a@x", "b@x", "c@x")
    queue = queue_of(one)
    queue.offer(one, content("first"), 0.0)
    queue.settle(taken(queue, 0.0), {"b@x": (451, "later"), "c@x": (452, "full")}, 0.0)
    queue.settle(taken(queue, 1.0), {"b@x": (550, "gone"), "c@x": (452, "full")}, 1.0)
    # When one is put off as often as is allowed; Expect one loss, and the next mail to have its own tries
    queue.offer(one, content("second"), 1.0)
    queue.settle(taken(queue, 1.0), {}, 1.0)
    losses, now = list[Loss](), 1.0
    while not losses:
        now = queue.next_due()
        losses = queue.settle(taken(queue, now), {"c@x": (452, "full")}, now)
    assert [(loss.cause, loss.amount, loss.why) for loss in losses] == [
        (Cause.MAIL_UNREACHABLE, 1, "3 tries: c@x: 452 full")
    ]
    assert names(taken(queue, now)) == ["second"]


def test_mail_that_is_held_up_for_one_recipient_makes_room_for_mail_to_the_others() -> None:
    # Given as many mails as a subscription may have, which wait for one of two recipients
    one = subscription("one", "a@x", "full@x")
    queue = queue_of(one)
    for n in range(10):
        queue.offer(one, content(str(n)), 0.0)
    for n in range(10):
        queue.settle(taken(queue, 0.0), {} if n else {"full@x": (452, "full")}, 0.0)
    assert (one.mail_waiting, one.mailed) == (10, 10)
    # When another one comes; Expect the oldest to be given up for it
    [loss] = queue.offer(one, content("new"), 0.0)
    assert (loss.cause, loss.amount, one.mail_waiting) == (Cause.MAIL_UNREACHABLE, 1, 10)
    attempt = taken(queue, 0.0)
    assert (names(attempt), attempt.recipients) == (["new"], ("a@x",))
    # When nobody gets mail; Expect what waits to stay, and what is new to be lost
    queue.put_off(attempt, "away", 0.0)
    [loss] = queue.offer(one, content("newer"), 0.0)
    assert (loss.cause, loss.amount) == (Cause.QUEUE_OVERFLOW, 2)


@pytest.mark.parametrize("bad", ["0", "1", "3"])
def test_a_digest_that_the_server_refuses_is_divided_until_only_what_it_refuses_is_lost(bad: str) -> None:
    # Given a digest of four objects, and a server that refuses each mail with one of them
    one = subscription(digest=60)
    queue = queue_of(one)
    for n in range(4):
        queue.offer(one, content(str(n)), 0.0)
    came, losses = list[str](), list[Loss]()
    while (attempt := queue.take(1.0)) is not None:
        is_bad = bad in names(attempt)
        losses += queue.settle(attempt, {"a@x": (554, "content")} if is_bad else {}, 1.0, is_whole=is_bad)
        came += [] if is_bad else names(attempt)
    # Expect the others, in order, and the one lost
    assert came == [n for n in "0123" if n != bad]
    assert [(loss.cause, loss.amount) for loss in losses] == [(Cause.MAIL_REFUSED, 1)]
    # When the next four come; Expect a digest of four again
    for n in range(4):
        queue.offer(one, content(str(n)), 2.0)
    assert len(names(taken(queue, 2.0))) == 4


def test_a_recipient_that_is_named_twice_counts_once_whatever_becomes_of_it() -> None:
    # Given a mail to somebody who is named twice, and to another one
    one = subscription("one", "a@x", "a@x", "b@x")
    queue = queue_of(one)
    queue.offer(one, content(), 0.0)
    # When the server puts it off for the one and takes it for the other
    assert queue.settle(taken(queue, 0.0), {"a@x": (451, "later")}, 0.0) == []
    assert one.mailed == 1
    # Expect one to be lost when it refuses it for good
    [loss] = queue.settle(taken(queue, 1.0), {"a@x": (550, "unknown")}, 1.0)
    assert (one.mailed, loss.amount, queue.room.waiting) == (1, 1, 0)


def test_a_rate_spreads_mails_evenly() -> None:
    # Given two mails a second at most, and three subscriptions with a mail each
    several = [subscription(str(n)) for n in range(3)]
    queue = queue_of(*several, rate=2.0)
    for one in several:
        queue.offer(one, content(), 0.0)
    # Expect one each half second
    times = [now for now in (0.0, 0.25, 0.5, 0.75, 1.0) if queue.take(now) is not None]
    assert times == [0.0, 0.5, 1.0]


# -- bounds -------------------------------------------------------------------------------------------------------


def test_one_subscription_does_not_take_the_room_of_the_others() -> None:
    # Given room for 40 mails
    greedy, modest = subscription("greedy"), subscription("modest")
    queue = queue_of(greedy, modest)
    # When one subscription has 15 offered
    losses = [loss for _ in range(15) for loss in queue.offer(greedy, content(), 0.0)]
    # Expect a quarter of the room to be its own, the rest lost, and room for others
    assert [loss.cause for loss in losses] == [Cause.QUEUE_OVERFLOW] * 5
    assert queue.offer(modest, content(), 0.0) == []


def test_one_party_does_not_take_the_room_of_the_others_by_many_subscriptions() -> None:
    # Given room for 40 mails, a stranger with ten subscriptions, and somebody else with one
    several, modest = [subscription(str(number)) for number in range(10)], subscription("modest")
    for each in several:
        each.caller = Caller("192.0.2.7:1")
    modest.caller = Caller("192.0.2.8:1")
    queue = queue_of(*several, modest, queue_bytes=400)
    # When each of the stranger's has 9 offered
    losses = [loss for each in several for _ in range(9) for loss in queue.offer(each, content(size=5), 0.0)]
    # Expect three quarters of the room to be theirs, the rest lost, and room for others
    assert [loss.cause for loss in losses] == [Cause.QUEUE_OVERFLOW] * 60
    assert [queue.offer(modest, content(size=5), 0.0) for _ in range(10)] == [[]] * 10
    # ... and theirs to be free again
    for each in several:
        queue.cancel(each)
    assert (queue.room.waiting, queue.room.size) == (10, 50)
    # When the bytes are what is scarce; Expect the same of these
    for each in several:
        queue.open(each, durable=False)
    losses = [loss for each in several for loss in queue.offer(each, content(size=60), 0.0)]
    assert (len(losses), queue.room.size) == (5, 350)


def test_bytes_are_bounded_too() -> None:
    # Given room for 100 bytes, and four subscriptions with 40 bytes each
    several = [subscription(str(n)) for n in range(4)]
    queue = queue_of(*several, queue_bytes=100)
    losses = [loss for one in several for loss in queue.offer(one, content(size=40), 0.0)]
    assert [loss.cause for loss in losses] == [Cause.QUEUE_OVERFLOW] * 2
    assert queue.room.size == 80


# -- digests ------------------------------------------------------------------------------------------------------


def test_objects_are_gathered_for_the_digests_time() -> None:
    # Given a digest of 60 seconds, and two objects
    one = subscription(digest=60)
    queue = queue_of(one)
    queue.offer(one, content("first"), 0.0)
    queue.offer(one, content("second"), 50.0)
    # Expect both in one mail 60 seconds after the first
    assert queue.take(59.0) is None
    assert names(taken(queue, 60.0)) == ["first", "second"]


def test_a_full_digest_does_not_wait() -> None:
    # Given digests of four objects at most; When five come; Expect four at once, the fifth in time
    one = subscription(digest=60)
    queue = queue_of(one)
    for n in range(5):
        queue.offer(one, content(str(n)), 1.0)
    attempt = taken(queue, 1.0)
    assert names(attempt) == ["0", "1", "2", "3"]
    queue.settle(attempt, {}, 1.0)
    assert queue.next_due() == 61.0


def test_a_digest_that_was_put_off_is_the_same_mail_again() -> None:
    # Given a digest of two objects that is put off, and a third object meanwhile
    one = subscription(digest=60)
    queue = queue_of(one)
    queue.offer(one, content("first"), 0.0)
    queue.offer(one, content("second"), 0.0)
    queue.settle(taken(queue, 60.0), {"a@x": (451, "later")}, 60.0)
    queue.offer(one, content("third"), 60.5)
    # Expect the same two again, and the third in a mail of its own
    again = taken(queue, 61.0)
    assert names(again) == ["first", "second"]
    queue.settle(again, {}, 61.0)
    assert names(taken(queue, 120.5)) == ["third"]


def test_a_digest_that_would_not_survive_goes_out_when_all_is_flushed() -> None:
    one, kept = subscription("one", digest=60), subscription("kept", digest=60)
    queue = queue_of(one)
    queue.open(kept, durable=True)
    for each in (one, kept):
        queue.offer(each, content(), 0.0)
    queue.kept(queue.journal.take(), 0.0)
    queue.flush(1.0)
    assert taken(queue, 1.0).subscription is one
    assert queue.take(1.0) is None


# -- suspension ---------------------------------------------------------------------------------------------------


def test_a_recipient_refused_for_good_three_times_running_is_suspended_and_the_others_are_not() -> None:
    # Given two recipients of which one is refused for good, and five objects
    one = subscription("one", "gone@x", "b@x")
    queue = queue_of(one)
    for _ in range(5):
        queue.offer(one, content(), 0.0)
    losses: list[Loss] = []
    # When three mails have gone
    for _ in range(3):
        losses += queue.settle(taken(queue, 0.0), {"gone@x": (550, "no such user")}, 0.0)
    # Expect what waits for it to be lost as well, and the others' mail to go on
    assert Counter({loss.cause: loss.amount for loss in losses}) == {Cause.MAIL_REFUSED: 1, Cause.MAIL_SUSPENDED: 2}
    assert one.mail_suspended == {"gone@x": "550 no such user"}
    assert taken(queue, 0.0).recipients == ("b@x",)
    # When an object comes; Expect it to be lost for the one under its own cause
    [loss] = queue.offer(one, content(), 0.0)
    assert (loss.cause, loss.amount) == (Cause.MAIL_SUSPENDED, 1)


def test_refusals_that_are_not_running_do_not_suspend() -> None:
    # Given a recipient that is refused twice, accepted, refused twice
    one = subscription()
    queue = queue_of(one)
    for n, refused in enumerate((True, True, False, True, True)):
        queue.offer(one, content(), float(n))
        queue.settle(taken(queue, n), {"a@x": (550, "no")} if refused else {}, n)
    assert one.mail_suspended == {}


def test_a_refused_sender_suspends_nobody() -> None:
    one = subscription()
    queue = queue_of(one)
    for n in range(4):
        queue.offer(one, content(), float(n))
        [loss] = queue.settle(taken(queue, n), {"a@x": (530, "authenticate first")}, n, blamed=False)
        assert loss.cause == Cause.MAIL_REFUSED
    assert one.mail_suspended == {}


def test_all_suspended_takes_nothing_and_resuming_starts_anew() -> None:
    # Given a suspended subscription
    one = subscription()
    queue = queue_of(one, suspend_after=1)
    queue.offer(one, content(), 0.0)
    queue.settle(taken(queue, 0.0), {"a@x": (550, "no")}, 0.0)
    assert outbox_of(queue, one).refusal(10) == Cause.MAIL_SUSPENDED
    # When it is made again; Expect its mail to go out
    outbox_of(queue, one).resume()
    assert queue.offer(one, content("again"), 1.0) == []
    assert names(taken(queue, 1.0)) == ["again"]
    assert one.mail_suspended == {}


def test_who_gets_mail_again_does_so_after_a_restart_too() -> None:
    # Given a suspended recipient, which is on disk
    one = subscription()
    queue = queue_of(one, durable=True, suspend_after=1)
    queue.offer(one, content(), 0.0)
    queue.kept(queue.journal.take(), 0.0)
    queue.settle(taken(queue, 0.0), {"a@x": (550, "no")}, 0.0)
    assert queue.journal.take().ledgers["one"].suspended == {"a@x": "550 no"}
    # When it is made again; Expect that to be written
    outbox_of(queue, one).resume()
    assert queue.journal.take().ledgers["one"].suspended == {}


# -- disk ---------------------------------------------------------------------------------------------------------


def test_what_is_to_survive_goes_out_only_when_it_is_on_disk() -> None:
    one = subscription()
    queue = queue_of(one, durable=True)
    queue.offer(one, content("first"), 0.0)
    assert queue.take(0.0) is None
    changes = queue.journal.take()
    assert [x.content.object_id for x in changes.letters] == ["first"]
    queue.kept(changes, 0.0)
    assert names(taken(queue, 0.0)) == ["first"]


def test_what_the_disk_does_not_take_is_lost_and_the_rest_goes_on() -> None:
    # Given a mail on disk, and one that can't be written
    one = subscription()
    queue = queue_of(one, durable=True)
    queue.offer(one, content("first"), 0.0)
    queue.kept(queue.journal.take(), 0.0)
    queue.offer(one, content("second"), 0.0)
    [loss] = queue.not_kept(queue.journal.take())
    assert (loss.cause, loss.amount) == (Cause.STORAGE, 1)
    # Expect the first to go out, and the next that can be written
    queue.offer(one, content("third"), 0.0)
    queue.kept(queue.journal.take(), 0.0)
    first = taken(queue, 0.0)
    queue.settle(first, {}, 0.0)
    assert [names(first), names(taken(queue, 0.0))] == [["first"], ["third"]]


def suspended_while_one_is_written() -> tuple[MailQueue, Subscription, Any]:
    """A queue, a subscription whose only recipient was suspended while its second mail was being written, and what is
    written."""
    one = subscription()
    queue = queue_of(one, durable=True, suspend_after=1)
    queue.offer(one, content("first"), 0.0)
    queue.kept(queue.journal.take(), 0.0)
    attempt = taken(queue, 0.0)
    queue.offer(one, content("second"), 0.0)
    queue.settle(attempt, {"a@x": (550, "no")}, 0.0)
    return queue, one, queue.journal.take()


def test_mail_that_nobody_is_left_for_when_it_is_on_disk_waits_no_longer() -> None:
    # Given that; When it is written
    queue, one, writing = suspended_while_one_is_written()
    assert one.mail_waiting == 1
    queue.kept(writing, 0.0)
    # Expect it not to wait any more, here and as status pages show it, and to go from the disk
    assert (queue.room.waiting, one.mail_waiting) == (0, 0)
    assert one.lost == {}, "the delegate counts that"
    assert [x.number for x in writing.letters] == list(queue.journal.take().deleted)


def test_mail_that_nobody_is_left_for_is_not_sent_to_nobody_after_a_restart() -> None:
    # Given that, and a process that is killed when it is on disk
    _, _, writing = suspended_while_one_is_written()
    (left,) = writing.letters
    assert left.recipients == ()
    # When the queue is opened again
    one = subscription()
    queue = queue_of(one, durable=True)
    queue.restore(one, [left], 0.0)
    # Expect nothing to be sent or to wait, and the disk to be told
    assert queue.take(0.0) is None
    assert (queue.room.waiting, one.mail_waiting) == (0, 0)
    assert list(queue.journal.take().deleted) == [left.number]
