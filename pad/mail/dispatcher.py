"""E-mail delivery (paper section 2.4(5)): sends what `queue` says.

Rules:
- One asyncio loop on one thread; at most `connections` mails under way, each on a connection of its own, which is used
  again. A server that is silent holds up what is under way, each try until its deadline, and nobody's publishing.
- With a store, mail of e-mail-only subscriptions goes out when it is on disk; what is there after a restart is sent.
  One writer commits for all that wait (group commit); `writer.sync` is for who must know that it is there.
- At least once: when the connection is lost between the end of the message and the answer, or the process killed
  before the answer is on disk, the server may have the mail, and gets it again (RFC 5321 4.1.1.4, 4.2.5 and 6.1: it has
  taken over with its 250, and nobody else can know). Whoever gets it twice sees the same Message-ID.
- A full disk loses the mail that it can't take, counted; the rest goes on.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.wall_clock import WallClock
from jbi_pubsub.pad.mail.letters import Ledger, Loss
from jbi_pubsub.pad.mail.loop import MailLoop
from jbi_pubsub.pad.mail.message import MailComposer, estimate
from jbi_pubsub.pad.mail.outbox import FINAL, Attempt, Outbox
from jbi_pubsub.pad.mail.queue import MailQueue
from jbi_pubsub.pad.mail.reminder import Reminder, Reminders
from jbi_pubsub.pad.mail.smtp import MailAnswer, MailServer
from jbi_pubsub.pad.mail.store import KeptMail, MailStore
from jbi_pubsub.pad.mail.writer import MailWriter
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.status.delegate import MailStatus

log = logging.getLogger("jbi_pubsub.mail")


class MailDispatcher:
    """Takes objects from any thread, and sends them as mail. `_changed` covers the queue and all that is said of it."""

    def __init__(
        self,
        settings: MailSection,
        *,
        name: str,
        lost: Callable[[Subscription, Cause, int, str], None],
        store: MailStore | None = None,
        link_rate: Callable[[], float] = lambda: 0.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`lost(subscription, cause, count, why)` is called, on any thread, for objects times recipients that are given
        up. What `store` holds waits for its subscriptions to be opened. `link_rate()`: bytes a second that the link to
        the mail server takes, 0 for any number. Raises AddressError for a bad `sender`, and StorageError."""
        self._settings = settings
        self._lost = lost
        self._link_rate = link_rate
        self._wall = wall
        ahead = WallClock(wall).ahead
        self._before = store.load(ahead()) if store is not None else KeptMail({}, {}, 1)
        self._composer = MailComposer(settings, ahead, self._before.first)
        self._queue = MailQueue(settings, first=self._before.first)
        self._reminders = Reminders(settings)
        self._server = MailServer(settings)
        self._changed = threading.Condition()
        self._is_stopping = False
        self._loop: MailLoop[Outbox | Reminder, MailAnswer] = MailLoop(
            f"mail-{name}", self._changed, self._begin_due, self._end
        )
        self.writer: Final = MailWriter(store, self._queue, self._changed, ahead, self._go_on)

    def start(self) -> list[Ledger]:
        """Begin to send. The ledgers of subscriptions that were not opened: their mail is lost (cancelled)."""
        abandoned = []
        with self._changed:
            for uid in {*self._before.letters, *self._before.ledgers}:
                letters, ledger = self._before.letters.get(uid, []), self._before.ledgers.get(uid, Ledger())
                self._queue.journal.forget(uid, letters)
                if count := sum(len(letter.recipients) for letter in letters):
                    log.warning("subscription %s has ended, and %d mails with it", uid, count)
                    ledger.lost[Cause.CANCELLED.value] = ledger.lost.get(Cause.CANCELLED, 0) + count
                abandoned.append(ledger)
            self._before = KeptMail({}, {}, 1)
            waiting, oldest = self._queue.room.waiting, self._queue.oldest(time.monotonic())
        if waiting and self.writer.store is not None:
            since = datetime.fromtimestamp(self._wall() - oldest, UTC).strftime("%Y-%m-%d %H:%M UTC")
            log.warning("%d mails wait in %s from before, the first since %s", waiting, self.writer.store.path, since)
        with self._changed:
            self._poke()
        self.writer.start()
        return abandoned

    def open(self, subscription: Subscription) -> None:
        """Its mail is taken from now on, and what the store holds for it goes out."""
        if not subscription.request.recipients:
            return
        durable = self.writer.store is not None and not subscription.request.direct
        uid, losses = subscription.uid, list[Loss]()
        with self._changed:
            ledger = self._before.ledgers.pop(uid, None) if durable else None
            self._queue.open(subscription, durable=durable, ledger=ledger)
            if durable:
                losses = self._queue.restore(subscription, self._before.letters.pop(uid, []), time.monotonic())
        self._tell(losses)

    def offer(
        self,
        subscription: Subscription,
        obj: InfoObject,
        payload: bytes,
        deadline: float | None = None,
        since: float = 0.0,
    ) -> bool:
        """Queue an object's mail; `payload` is what filter and shape have left, `deadline` of a contract that decides
        by the object; `since`: when it was published (monotonic seconds), 0.0: now. False: the subscription is gone,
        and does not account for the object any more. Never waits."""
        size = estimate(obj, payload)
        with self._changed:
            outbox = self._queue.outbox(subscription)
            if outbox is None:
                return False
            cause = Cause.SHUTDOWN if self._is_stopping else outbox.refusal(size)
            losses = [outbox.refuse(cause)] if cause is not None else []
        if cause is None:
            content = self._composer.content(obj, payload)
            with self._changed:
                if self._queue.outbox(subscription) is None:
                    return False
                losses = self._queue.offer(subscription, content, time.monotonic(), deadline, since)
                self._poke()
        self._tell(losses)
        return True

    def refuse(self, subscription: Subscription, cause: Cause) -> bool:
        """An object that it matches is no mail to it. False: the subscription is gone."""
        with self._changed:
            outbox = self._queue.outbox(subscription)
            if outbox is None:
                return False
            loss = outbox.refuse(cause)
            self.writer.notify()
        self._lost(*loss)
        return True

    def cancel(self, subscription: Subscription) -> int:
        """Forget what waits for the subscription; how many objects times recipients that were.

        What is under way is aborted; a mail whose end the server has already may still arrive.
        """
        with self._changed:
            lost, under_way = self._queue.cancel(subscription)
            if under_way is not None:
                self._loop.abort(under_way)
            self.withdraw(subscription)
            self.writer.notify()
        return lost

    def resume(self, subscription: Subscription) -> None:
        """Suspended recipients get mail again, but for those who have unsubscribed."""
        with self._changed:
            if (outbox := self._queue.outbox(subscription)) is not None:
                outbox.resume()
                self.writer.notify()

    def unsubscribe(self, subscription: Subscription, recipients: Sequence[str]) -> None:
        """They get no mail of it any more, but for what is under way."""
        with self._changed:
            losses = self._queue.unsubscribe(subscription, recipients, time.monotonic())
            self.writer.notify()
        self._tell(losses)

    def remind(self, subscription: Subscription, ends: float) -> None:
        """Tell its recipients, when nothing else is due, that its lease ends then (seconds since the epoch)."""
        with self._changed:
            if not self._is_stopping and self._reminders.add(subscription, ends, self._wall()):
                self._poke()

    def withdraw(self, subscription: Subscription) -> None:
        """Its lease has been renewed: a reminder that has not gone is none any more."""
        with self._changed:
            if (found := self._reminders.withdraw(subscription)) is not None:
                self._loop.abort(found)

    def reminded(self) -> list[str]:
        """Subscriptions whose reminder has been sent or given up since the last call."""
        with self._changed:
            return self._reminders.done()

    def drain(self, timeout: float, *, closing: bool = False) -> int:
        """Wait until all has gone out that could go now or is tried again; how many mails that would not survive are
        left after `timeout` seconds. What is gathered for a digest does not count; `closing` sends it before its time
        if it would not survive."""
        with self._changed:
            if closing:
                self._queue.flush(time.monotonic())
                self._poke()
            self._changed.wait_for(lambda: self._queue.is_drained(time.monotonic()), timeout)
            return self._queue.volatile - self._queue.gathering

    def stop(self, timeout: float = 5.0) -> None:
        """End the threads; what would not survive is lost (shutdown)."""
        with self._changed:
            self._is_stopping = True
        self._loop.stop(timeout)
        with self._changed:
            losses = self._queue.close()
            self.writer.notify()
        self._tell(losses)
        self.writer.stop(timeout)

    def status(self) -> MailStatus:
        """Mails that wait, and what is wrong. Reminders are of those who were to get one."""
        queue = self._queue
        with self._changed:
            return MailStatus(
                queued=queue.room.waiting,
                oldest=round(queue.oldest(time.monotonic()), 1),
                kept=queue.room.waiting - queue.volatile - queue.journal.pending,
                bytes=queue.room.size,
                under_way=queue.under_way,
                connections=self._server.open,
                fault=self.writer.fault,
                away=self._server.reachability.away,
                server=self._server.address,
                reminders_waiting=len(self._reminders),
                reminders=self._reminders.sent,
                reminders_lost=self._reminders.lost,
            )

    # -- any thread ---------------------------------------------------------------------------------------------

    def _tell(self, losses: list[Loss]) -> None:
        for loss in losses:
            self._lost(*loss)

    def _poke(self) -> None:
        """Under the lock: the loop looks at the queue, which begins with the first mail."""
        self._loop.poke(is_needed=bool(self._queue.room.waiting or len(self._reminders)))
        self.writer.notify()

    def _go_on(self, losses: list[Loss]) -> None:
        """Send what was written, and tell what was lost."""
        with self._changed:
            self._poke()
        self._tell(losses)

    # -- the loop's thread --------------------------------------------------------------------------------------

    def _begin_due(self, now: float) -> float:
        """Begin what is due, as far as there are connections; when something will be. Reminders come behind everything
        else."""
        due = math.inf
        with self._changed:
            self._queue.pace.limit(self._link_rate(), now)
            again = self._queue.sweep(now)
            while len(self._loop) < self._settings.connections:
                attempt = self._queue.take(now)
                if attempt is not None:
                    self._loop.begin(attempt.outbox, self._try(attempt), functools.partial(self._account, attempt))
                elif now >= self._queue.pace.slot and (reminder := self._reminders.take(now)) is not None:
                    self._queue.pace.use(len(reminder.recipients), now)
                    self._loop.begin(reminder, self._try(reminder), functools.partial(self._account, reminder))
                else:
                    due = min(self._queue.next_due(), max(self._reminders.next_due(), self._queue.pace.slot))
                    break
            late = self._queue.late()
        with guarded("losses of the mail dispatcher"):
            self._tell(late)
        return min(due, again, self._server.close_idle(now))

    async def _try(self, what: Attempt | Reminder) -> MailAnswer:
        with guarded("a try to send mail"):
            if self._composer.has_links or isinstance(what, Reminder):
                return await self._server.attempt_each(what.recipients, functools.partial(self._mail, what))
            return await self._server.attempt(what.recipients, self._mail(what, ""))
        return MailAnswer(unreachable="the try has failed here in an unforeseen way")

    def _mail(self, what: Attempt | Reminder, recipient: str) -> bytes:
        if isinstance(what, Reminder):
            return self._composer.reminder(what.subscription.request, what.ends, what.made, recipient)
        contents, queued = [letter.content for letter in what.letters], what.letters[-1].queued
        return self._composer.mail(what.subscription, contents, queued, recipient, is_digest=what.is_digest)

    def _account(self, what: Attempt | Reminder, answer: MailAnswer | None) -> None:
        """Account for a try, whatever its end was; `answer`: None if it was aborted."""
        if isinstance(what, Reminder):
            with guarded("account of a reminder"):
                self._settle_reminder(what, answer)
            return
        with guarded("account of a mail"):
            self._settle(what, answer)
        if what.is_open:  # that has failed: not sent again at once, and not for ever
            with guarded("account of a mail"):
                self._settle(what, MailAnswer(unreachable="its account has failed here"))

    def _settle(self, attempt: Attempt, answer: MailAnswer | None) -> None:
        now = time.monotonic()
        with self._changed:
            if answer is None:
                losses = self._queue.release(attempt, now)
            elif answer.unreachable:
                losses = self._queue.put_off(attempt, answer.unreachable, now)
            else:
                losses = self._queue.settle(
                    attempt, answer.refused, now, blamed=answer.blamed, is_whole=answer.is_whole
                )
            said = self._note(answer, now)
        if said:
            log.warning("%s", said)
        self._tell(losses)

    def _settle_reminder(self, reminder: Reminder, answer: MailAnswer | None) -> None:
        """On its own account: a refusal here suspends nobody."""
        now = time.monotonic()
        refused = answer.refused if answer is not None and not answer.unreachable else None
        with self._changed:
            self._reminders.settle(reminder, refused, now)
            said = self._note(answer, now)
        if said:
            log.warning("%s", said)
        for address, why in (refused or {}).items():
            if why[0] >= FINAL:
                log.warning("subscription %s: no reminder for %s: %s", reminder.subscription.uid, address, why)

    def _note(self, answer: MailAnswer | None, now: float) -> str:
        """Under the lock: words for whether the mail server is away, when that changes, and for what waits."""
        self.writer.notify()
        waiting, reminders, reachability = self._queue.room.waiting, len(self._reminders), self._server.reachability
        said = answer and reachability.note(answer.unreachable, now, is_needed=bool(waiting or reminders))
        return _told(said, self._server, self._queue, reminders, is_kept=self.writer.store is not None) if said else ""

    async def _end(self) -> None:
        """The loop has ended."""
        await self._server.close()
        with self._changed:
            self.writer.notify()


def _told(said: str, server: MailServer, queue: MailQueue, reminders: int, *, is_kept: bool) -> str:
    """The words for the log, with how many mails wait and what becomes of them at a stop."""
    waiting, volatile = queue.room.waiting, queue.volatile
    if not server.reachability.away:
        return f"the mail server {server.address} {said}; {waiting} mails wait"
    end = "survive a stop"
    if not is_kept:
        end = "are lost at a stop without [pad] state"
    elif volatile:
        end = f"survive a stop, but for {volatile} of subscriptions that are bound to their process"
    also = f" ({reminders} reminders in addition)" if reminders else ""
    told = f"the mail server {server.address} {said}: {server.reachability.away}"
    return f"{told}; {waiting} mails wait for it{also}, and {end}"
