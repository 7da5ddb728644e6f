"""E-mail subscriptions and their mail, when the wall clock is set. Both clocks are numbers, far apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from email import message_from_bytes
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from jbi_pubsub.core.config import Config, MailSection
from jbi_pubsub.pad.delegate.store import SubscriptionStore
from jbi_pubsub.pad.mail.journal import Changes
from jbi_pubsub.pad.mail.letters import Letter
from jbi_pubsub.pad.mail.message import MailComposer
from jbi_pubsub.pad.mail.store import MailStore
from tests.pad.test_leases import MAIL, World
from tests.pad.test_outbox import content, names, queue_of, subscription, taken

EPOCH = 1_800_000_000.0
YEARS = 2 * 31_557_600.0
DAY = 86_400.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """start(now, ahead) is a process of a delegate that keeps e-mail subscriptions; the one before was killed."""
    with ExitStack() as stack:

        def made(now: float = 0.0, ahead: float = EPOCH) -> World:
            store = SubscriptionStore(tmp_path / "state")
            world = World(now, ahead, store)
            stack.callback(world.delegate.close)
            world.delegate.mail.start()
            return world

        yield made


def leases(world: World) -> list[float]:
    """Seconds that the e-mail subscriptions have left."""
    return [each["lease"] for each in world.delegate.mail.rows()]


@pytest.mark.parametrize("step", [YEARS, -YEARS])
def test_an_email_subscription_has_what_was_left_when_the_wall_clock_is_set_and_after_a_restart(
    start: Callable[..., World], step: float
) -> None:
    # Given an e-mail subscription under a lease of a day
    world = start()
    world.delegate.subscribers.subscribe("", MAIL, DAY)
    # When the wall clock is set, and the delegate is killed and started again
    world.ahead += step
    world.later(100.0)
    again = start(world.now, world.ahead)
    # Expect it to have what was left, and to end with that
    assert leases(again) == [DAY - 100.0]
    again.later(DAY)
    assert leases(again) == []


def test_no_email_subscription_has_more_than_the_longest_lease_when_the_clock_was_ahead_before_a_restart(
    start: Callable[..., World],
) -> None:
    # Given one of a delegate whose clock was ahead
    start(ahead=EPOCH + YEARS).delegate.subscribers.subscribe("", MAIL, DAY)
    # When the delegate is started again, with the clock right; Expect the longest lease that there is
    most = Config().lease.maximum
    assert leases(start()) == [most]
    # And no new one with each further start
    assert leases(start(now=1_000.0)) == [most - 1_000.0]


def test_what_has_ended_while_the_delegate_was_away_is_told(
    start: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    # Given one whose lease ends while nobody is there
    start().delegate.subscribers.subscribe("", MAIL, DAY)
    # When the delegate is started again; Expect it to be in the log
    assert leases(start(now=DAY + 7.0)) == []
    assert f"e-mail subscription {MAIL.uid} has ended, 7 s ago" in caplog.text


@pytest.mark.parametrize("step", [YEARS, -YEARS])
def test_mail_on_disk_has_waited_as_long_as_it_has_when_the_wall_clock_was_set(tmp_path: Path, step: float) -> None:
    # Given a mail that waits on the disk
    store = MailStore(tmp_path / "mails")
    store.load(EPOCH)
    letter = Letter(1, "one", content(), ("a@x",), 500.0)
    store.commit(Changes((), (), (), (letter,), (), {}), EPOCH)
    # When the wall clock is set, and nothing else is written
    for _ in range(2):
        store.commit(Changes((), (), (), (), (), {}), EPOCH + step)
    # Expect it to have been queued when it was
    [found] = store.load(EPOCH + step).letters["one"]
    assert found.queued == 500.0
    store.close()


def test_a_digest_that_was_begun_while_the_clock_was_ahead_goes_in_its_time() -> None:
    # Given a digest of an hour that a process before has left, queued in a day by the clock of now
    one = subscription(digest=3_600)
    queue = queue_of(one, durable=True)
    left = Letter(1, one.uid, content("late"), ("a@x",), DAY)
    # When it is restored; Expect it within the hour
    queue.restore(one, [left], 10.0)
    assert queue.take(3_609.0) is None
    assert names(taken(queue, 3_610.0)) == ["late"]


def test_the_date_of_a_digest_is_by_the_wall_clock_as_it_is() -> None:
    # Given a clock that was ahead when the delegate came, and is right now
    ahead = [EPOCH + DAY]
    composer = MailComposer(MailSection(sender="jbi@example.org"), lambda: ahead[0], 1)
    ahead[0] = EPOCH
    # When a digest is made of what was queued at some moment; Expect its date
    data = composer.mail(subscription(digest=60), [content(), content()], 500.0, "", is_digest=True)
    assert parsedate_to_datetime(message_from_bytes(data)["Date"]).timestamp() == EPOCH + 500.0
