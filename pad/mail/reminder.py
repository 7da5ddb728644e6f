"""Reminders before the leases of e-mail subscriptions end: when whose is due, and which wait to be sent. Pure.

A reminder is no object: it is in no subscription's account, and is sent only when no mail of an object is due.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from jbi_pubsub.core.agenda import Agenda
from jbi_pubsub.core.config import MailSection
from jbi_pubsub.pad.mail.letters import pause_after
from jbi_pubsub.pad.mail.outbox import FINAL, Refused
from jbi_pubsub.pad.model.subscription import Subscription

TERMS: Final = 4
"""A lease that is shorter than so many times [mail] reminder_seconds is not reminded of: whoever asks for it knows."""

MOST: Final = 10_000
"""Reminders that wait to be sent; more are not sent."""


class Schedule:
    """When each subscription's reminder is due, by our caller's clock. Its lock covers it."""

    def __init__(self, before: float) -> None:
        """Due `before` seconds before the end of a lease; 0: never."""
        self._before = before
        self._due: Agenda[Subscription] = Agenda()

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._due

    def moment(self, now: float, term: float) -> float:
        """When the reminder of a lease of so many seconds from now on is due; infinity for none."""
        return now + term - self._before if self._before and term >= TERMS * self._before else math.inf

    def set(self, subscription: Subscription, due: float) -> None:
        """Its lease has begun, or has been renewed; infinity for no reminder."""
        if due < math.inf:
            self._due.set_time(subscription, due)
        else:
            self._due.discard(subscription)

    def due(self, subscription: Subscription) -> float:
        """When its reminder is due; infinity for none."""
        return self._due.time(subscription) if subscription in self._due else math.inf

    def take(self, now: float) -> list[Subscription]:
        """Those that are due and were not taken."""
        due = []
        while (subscription := self._due.pop(now)) is not None:
            self._due.discard(subscription)
            due.append(subscription)
        return due


@dataclass(eq=False, slots=True)
class Reminder:
    """One that waits to be sent. `ends` and `made` are seconds since the epoch."""

    subscription: Subscription
    ends: float
    made: float
    recipients: tuple[str, ...]
    """Those who have not got it."""
    tries: int = 0


class Reminders:
    """Those that wait; each subscription has one at most. Counts recipients."""

    def __init__(self, settings: MailSection) -> None:
        self._settings = settings
        self._waiting: dict[Subscription, Reminder] = {}
        self._agenda: Agenda[Reminder] = Agenda()
        """When each that is not under way may be sent."""
        self.sent = self.lost = 0
        self._done: list[str] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, subscription: Subscription, ends: float, made: float) -> bool:
        """Whether it is taken: there is somebody to tell, and room."""
        left = tuple(dict.fromkeys(a for a in subscription.request.recipients if a not in subscription.mail_suspended))
        if len(self._waiting) >= MOST:
            self.lost += len(left)
        elif left:
            reminder = self._waiting[subscription] = Reminder(subscription, ends, made, left)
            self._agenda.set_time(reminder, 0.0)
            return True
        self._done.append(subscription.uid)
        return False

    def withdraw(self, subscription: Subscription) -> Reminder | None:
        """Its lease has been renewed, or it has ended; the reminder, to abort it if it is under way."""
        reminder = self._waiting.pop(subscription, None)
        if reminder is not None:
            self._agenda.discard(reminder)
        return reminder

    def take(self, now: float) -> Reminder | None:
        """One to send now; it must be settled."""
        while (reminder := self._agenda.pop(now)) is not None:
            suspended = reminder.subscription.mail_suspended
            reminder.recipients = tuple(a for a in reminder.recipients if a not in suspended)
            if reminder.recipients:
                return reminder
            self._finish(reminder)
        return None

    def next_due(self) -> float:
        """When one may be sent; infinity for never."""
        return self._agenda.first()

    def settle(self, reminder: Reminder, refused: Refused | None, now: float) -> None:
        """Settle a try: who is not in `refused` has got it, who was refused for good never will; None: nobody has."""
        before = reminder.recipients
        again = before if refused is None else tuple(a for a in refused if refused[a][0] < FINAL)
        given_up = len(refused) - len(again) if refused is not None else 0
        self.sent += len(before) - len(again) - given_up
        self.lost += given_up
        reminder.recipients = again
        if self._waiting.get(reminder.subscription) is not reminder:
            return  # withdrawn meanwhile
        reminder.tries += 1
        if again and reminder.tries > self._settings.retries:
            self.lost += len(again)
            again = ()
        if again:
            self._agenda.set_time(reminder, now + pause_after(reminder.tries, self._settings))
        else:
            self._finish(reminder)

    def done(self) -> list[str]:
        """Subscriptions whose reminder has been sent or given up since the last call."""
        done, self._done = self._done, []
        return done

    def _finish(self, reminder: Reminder) -> None:
        del self._waiting[reminder.subscription]
        self._agenda.discard(reminder)
        self._done.append(reminder.subscription.uid)
