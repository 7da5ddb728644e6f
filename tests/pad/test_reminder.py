"""Reminders by themselves: when one is due, once a lease, and what becomes of it."""

from __future__ import annotations

import math

import pytest

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.pad.mail import reminder
from jbi_pubsub.pad.mail.reminder import Reminder, Reminders, Schedule
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest

HOUR = 3600.0
DAY = 24 * HOUR


def subscription(*recipients: str) -> Subscription:
    """An e-mail subscription."""
    request = SubscriptionRequest("one", direct=False, recipients=recipients or ("a@x.org",))
    return compile_subscription(request, owner="mail", number=0)


def taken(reminders: Reminders, now: float) -> Reminder:
    """What is due."""
    found = reminders.take(now)
    assert found is not None
    return found


def test_a_reminder_is_due_so_long_before_the_lease_ends_and_once() -> None:
    schedule, one = Schedule(2 * HOUR), subscription()
    schedule.set(one, schedule.moment(0.0, DAY))
    assert schedule.take(22 * HOUR - 1) == []
    assert schedule.take(22 * HOUR + 60) == [one]
    assert schedule.take(23 * HOUR) == []


def test_a_lease_that_is_renewed_is_not_reminded_of_until_its_new_end() -> None:
    schedule, one = Schedule(2 * HOUR), subscription()
    schedule.set(one, schedule.moment(0.0, DAY))
    schedule.set(one, schedule.moment(10 * HOUR, DAY))
    assert schedule.take(31 * HOUR) == []
    assert schedule.take(32 * HOUR + 60) == [one]


def test_short_leases_are_not_reminded_of_and_zero_reminds_of_none() -> None:
    assert Schedule(2 * HOUR).moment(0.0, 8 * HOUR) == 6 * HOUR
    assert Schedule(2 * HOUR).moment(0.0, 8 * HOUR - 1) == math.inf
    assert Schedule(0.0).moment(0.0, DAY) == math.inf
    schedule, one = Schedule(2 * HOUR), subscription()
    schedule.set(one, 5.0)
    schedule.set(one, math.inf)
    assert schedule.take(DAY) == []


def test_who_is_suspended_is_not_reminded() -> None:
    # Given a reminder for two, one of whom is suspended before and one after it is taken in
    reminders, one = Reminders(MailSection()), subscription("a@x.org", "b@x.org", "c@x.org")
    one.mail_suspended = {"a@x.org": "550 no such user"}
    assert reminders.add(one, DAY, 0.0)
    one.mail_suspended = {**one.mail_suspended, "b@x.org": "unsubscribed by the recipient"}
    # Expect the third alone to be told
    assert taken(reminders, 0.0).recipients == ("c@x.org",)
    # Given that nobody is left; Expect no reminder, and it to be done with
    two = subscription("a@x.org")
    two.mail_suspended = {"a@x.org": "550 no such user"}
    assert not reminders.add(two, DAY, 0.0)
    assert reminders.done() == ["one"]


def test_a_reminder_is_tried_again_with_growing_pauses_a_bounded_number_of_times() -> None:
    # Given two tries more
    reminders, one = Reminders(MailSection(retries=2, retry_seconds=10.0)), subscription("a@x.org", "b@x.org")
    reminders.add(one, DAY, 0.0)
    # When the server takes it for one, and puts the other off for ever
    now, pauses = 0.0, []
    for _ in range(3):
        found = taken(reminders, now)
        assert reminders.take(now) is None
        reminders.settle(found, {"b@x.org": (451, "later")}, now)
        pauses.append(reminders.next_due() - now)
        now = reminders.next_due()
    # Expect one sent, one lost, and both said
    assert pauses == [10.0, 20.0, math.inf]
    assert (reminders.sent, reminders.lost, len(reminders), reminders.done()) == (1, 1, 0, ["one"])


def test_a_reminder_that_is_withdrawn_under_way_is_not_tried_again() -> None:
    reminders, one = Reminders(MailSection()), subscription()
    reminders.add(one, DAY, 0.0)
    found = taken(reminders, 0.0)
    assert reminders.withdraw(one) is found
    reminders.settle(found, None, 0.0)
    assert (len(reminders), reminders.next_due(), reminders.done()) == (0, math.inf, [])
    assert (reminders.sent, reminders.lost) == (0, 0)


def test_reminders_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reminder, "MOST", 3)
    reminders = Reminders(MailSection())
    for _ in range(4):
        reminders.add(subscription(), DAY, 0.0)
    assert (len(reminders), reminders.lost) == (3, 1)
