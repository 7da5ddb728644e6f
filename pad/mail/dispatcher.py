"""E-mail delivery (paper section 2.4(5)): the thread that sends what `outbox` says. The only aiosmtplib.

Rules:
- One asyncio loop on one thread; at most `connections` mails under way, each on a connection of its own, which is used
  again. A server that is silent holds up what is under way, each try until its deadline, and nobody's publishing.
- With a store, mail of e-mail-only subscriptions goes out when it is on disk; what is there after a restart is sent.
  One writer thread commits for all that wait (group commit); `sync` is for who must know that it is there.
- At least once: when the connection is lost between the end of the message and the answer, or the process killed
  before the answer is on disk, the server may have the mail, and gets it again (RFC 5321 4.1.1.4, 4.2.5 and 6.1: it has
  taken over with its 250, and nobody else can know). Whoever gets it twice sees the same Message-ID.
- A full disk loses the mail that it can't take, counted; the rest goes on.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

import aiosmtplib

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.pad.mail.message import Content, compose, digest, estimate, reminder, single
from jbi_pubsub.pad.mail.outbox import FINAL, Attempt, Changes, Ledger, Loss, MailQueue, Outbox
from jbi_pubsub.pad.mail.reminder import Reminder, Reminders
from jbi_pubsub.pad.mail.store import KeptMail, MailStore
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.mail_links import check_base, link
from jbi_pubsub.protocol.requests import check_recipients

log = logging.getLogger("jbi_pubsub.mail")
T = TypeVar("T")

FLUSH_SECONDS: Final = 0.1
"""Longest time until what has been sent is noted on disk: a kill sends again what was sent in that time."""

FAULT_SECONDS: Final = 1.0
"""Pause before a disk that has failed is tried again, unless there is new mail."""

SYNC_SECONDS: Final = 10.0
"""Longest that a publisher waits for a disk that does not answer at all."""

AWAY_SECONDS: Final = 1.0
"""A mail server that has answered within so many seconds is not called away for one failure: it may be flapping."""

AWAY_AGAIN_SECONDS: Final = 3600.0
"""A mail server that stays away is said again so often, as long as mail waits for it."""

AGAIN: Final = 451
"""As if the server had said so (RFC 5321 4.2.3): for recipients to whom a mail of their own could not be sent any more
when it could to others."""

QUIT_SECONDS: Final = 1.0
"""For the server's good-bye."""

CANCEL_AGAIN_SECONDS: Final = 0.1
"""For a try to end that has been cancelled."""


class _NotConnectedError(Exception):
    """The server could not be reached, or did not let us in: nobody's mail was refused."""


class _Answer(NamedTuple):
    """Answer of the server to one mail: whom it refused, or why it was not reached. `blamed`: see MailQueue.settle."""

    refused: Mapping[str, tuple[int, str]] = {}
    unreachable: str = ""
    blamed: bool = True


class MailDispatcher:
    """Takes objects from any thread, and sends them as mail. `_changed` covers the queue and all that is said of it."""

    def __init__(
        self,
        settings: MailSection,
        *,
        name: str,
        lost: Callable[[Subscription, Cause, int, str], None],
        store: MailStore | None = None,
        link_rate: Callable[[], float] | None = None,
    ) -> None:
        """`lost(subscription, cause, count, why)` is called, on any thread, for objects times recipients that are given
        up. What `store` holds waits for its subscriptions to be opened. `link_rate()`: bytes a second that the link to
        the mail server takes, 0 for any number. Raises AddressError for a bad `sender`, and StorageError."""
        (self._sender,) = check_recipients((settings.sender,))
        self._domain = self._sender.rpartition("@")[2]
        self._base = check_base(settings.unsubscribe)
        self._settings = settings
        self._lost = lost
        self._link_rate = link_rate
        self._store = store
        self._offset = time.time() - time.monotonic()
        self._before = store.load(self._offset) if store is not None else KeptMail({}, {}, 1)
        self._queue = MailQueue(settings, first=self._before.first)
        self._reminders = Reminders(settings)
        self._numbers = itertools.count(self._before.first)  # of contents; next() is atomic
        self._composed: tuple[InfoObject | None, dict[int, tuple[bytes, Content]]] = (None, {})
        self._connections = _Connections(settings, self._sender)
        self._changed = threading.Condition()
        self._stopping = self._closing = False
        self._written = True
        """The writer has nothing more to do."""
        self._offered = self._durable = 0
        self._fault = ""
        self._away = ""
        """Why the mail server can't be reached, as long as it can't."""
        self._answered = -math.inf
        """When it answered last."""
        self._said_away = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._poked = False
        self._tasks: dict[Outbox | Reminder, asyncio.Task[_Answer]] = {}  # of the loop's thread alone
        self._thread = threading.Thread(target=self._run, name=f"mail-{name}", daemon=True)
        self._writer = Job("mail store writer", FAULT_SECONDS, self._write, slow=True)
        self._write_at = math.inf
        """When what has changed is written at the latest (monotonic seconds)."""

    def start(self) -> list[Ledger]:
        """Begin to send. The ledgers of subscriptions that were not opened: their mail is lost (cancelled)."""
        abandoned = []
        with self._changed:
            for uid in {*self._before.letters, *self._before.ledgers}:
                letters, ledger = self._before.letters.get(uid, []), self._before.ledgers.get(uid, Ledger())
                count = self._queue.abandon(uid, letters)
                if count:
                    log.warning("subscription %s has ended, and %d mails with it", uid, count)
                    ledger.lost[Cause.CANCELLED.value] = ledger.lost.get(Cause.CANCELLED, 0) + count
                abandoned.append(ledger)
            self._before = KeptMail({}, {}, 1)
            waiting, oldest = self._queue.waiting, self._queue.oldest(time.monotonic())
        if self._store is not None and waiting:
            since = datetime.fromtimestamp(time.time() - oldest, UTC).strftime("%Y-%m-%d %H:%M UTC")
            log.warning("%d mails wait in %s from before, the first since %s", waiting, self._store.path, since)
        with self._changed:
            self._begin_thread()
            if self._store is not None:
                self._written = False
                self._writer.start()
        return abandoned

    def open(self, subscription: Subscription) -> None:
        """Its mail is taken from now on, and what the store holds for it goes out."""
        if not subscription.request.recipients:
            return
        durable = self._store is not None and not subscription.request.direct
        uid = subscription.uid
        with self._changed:
            ledger = self._before.ledgers.pop(uid, None) if durable else None
            self._queue.open(subscription, durable=durable, ledger=ledger)
            if durable:
                self._queue.restore(subscription, self._before.letters.pop(uid, []), time.monotonic())

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
            if not self._queue.stands(subscription):
                return False
            cause = Cause.SHUTDOWN if self._stopping else self._queue.refusal(subscription, size)
            losses = self._queue.refuse(subscription, cause) if cause is not None else []
        if cause is None:
            content = self._content(obj, payload)
            with self._changed:
                if not self._queue.stands(subscription):
                    return False
                losses = self._queue.offer(subscription, content, time.monotonic(), deadline, since)
                self._offered += self._queue.urgent
                self._poke()
        self._tell(losses)
        return True

    def refuse(self, subscription: Subscription, cause: Cause) -> bool:
        """An object that it matches is no mail to it. False: the subscription is gone."""
        with self._changed:
            if not self._queue.stands(subscription):
                return False
            losses = self._queue.refuse(subscription, cause)
            self._notify()
        self._tell(losses)
        return True

    def cancel(self, subscription: Subscription) -> int:
        """Forget what waits for the subscription; how many objects times recipients that were.

        What is under way is aborted; a mail whose end the server has already may still arrive.
        """
        with self._changed:
            lost, under_way = self._queue.cancel(subscription)
            if under_way is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._abort, under_way)
            self._withdraw(subscription)
            self._notify()
        return lost

    def resume(self, subscription: Subscription) -> None:
        """Suspended recipients get mail again, but for those who have unsubscribed."""
        with self._changed:
            self._queue.resume(subscription)

    def unsubscribe(self, subscription: Subscription, recipients: Sequence[str]) -> None:
        """They get no mail of it any more, but for what is under way."""
        with self._changed:
            losses = self._queue.unsubscribe(subscription, recipients, time.monotonic())
            self._notify()
        self._tell(losses)

    def remind(self, subscription: Subscription, ends: float) -> None:
        """Tell its recipients, when nothing else is due, that its lease ends then (seconds since the epoch)."""
        with self._changed:
            if not self._stopping and self._reminders.add(subscription, ends, time.time()):
                self._poke()

    def withdraw(self, subscription: Subscription) -> None:
        """Its lease has been renewed: a reminder that has not gone is none any more."""
        with self._changed:
            self._withdraw(subscription)

    def reminded(self) -> list[str]:
        """Subscriptions whose reminder has been sent or given up since the last call."""
        with self._changed:
            return self._reminders.done()

    def sync(self) -> None:
        """Return when all that was offered before this call is on disk, or lost for the disk's fault."""
        with self._changed:
            wanted = self._offered
            if not self._changed.wait_for(lambda: self._durable >= wanted or self._written, SYNC_SECONDS):
                log.error("the disk of the mail queue has not answered for %g s", SYNC_SECONDS)

    @property
    def offered(self) -> int:
        """Number of mails offered that are to be on disk."""
        return self._offered

    def is_durable(self, number: int) -> bool:
        """Whether so many of them are, or were lost for the disk's fault: as `sync`, without waiting."""
        return self._durable >= number or self._written

    def drain(self, timeout: float, *, closing: bool = False) -> int:
        """Wait until all has gone out that could go now or is tried again; how many mails that would not survive are
        left after `timeout` seconds. What is gathered for a digest does not count; `closing` sends it before its time
        if it would not survive."""
        deadline = time.monotonic() + timeout
        with self._changed:
            if closing:
                self._queue.flush(time.monotonic())
                self._poke()
            while not self._is_drained() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            return self._queue.volatile - self._queue.gathering

    def stop(self, timeout: float = 5.0) -> None:
        """End the threads; what would not survive is lost (shutdown)."""
        with self._changed:
            self._stopping = True
            self._poke()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        with self._changed:
            losses = self._queue.close()
            self._closing = True
            self._notify()
        self._tell(losses)
        if self._store is not None:
            self._end_store(self._store, timeout)

    def status(self) -> dict[str, object]:
        """Plain data. `queued` mails wait, `kept` of them on disk; `fault` is what is wrong with the disk,
        `away` with the mail server; `oldest` is for how many seconds the first of them has waited. Reminders, of those
        who were to get one."""
        with self._changed:
            return {
                "queued": self._queue.waiting,
                "oldest": round(self._queue.oldest(time.monotonic()), 1),
                "kept": self._queue.waiting - self._queue.volatile - self._queue.pending,
                "bytes": self._queue.size,
                "under_way": self._queue.under_way,
                "connections": self._connections.open,
                "fault": self._fault,
                "away": self._away,
                "server": f"{self._settings.host}:{self._settings.port}",
                "reminders_waiting": len(self._reminders),
                "reminders": self._reminders.sent,
                "reminders_lost": self._reminders.lost,
            }

    # -- any thread ---------------------------------------------------------------------------------------------

    def _content(self, obj: InfoObject, payload: bytes) -> Content:
        """Built once for an object and payload, whatever the number of subscriptions. Threads that publish at the same
        moment may take the one place from each other: then it is built again."""
        known, contents = self._composed
        if known is not obj:
            contents = {}
            self._composed = (obj, contents)
        made = contents.get(id(payload))  # the same bytes for all with the same filter and shape
        if made is None:  # with the payload, so that no other one gets its id meanwhile
            content = compose(obj, payload, number=next(self._numbers), sender=self._sender)
            made = contents[id(payload)] = payload, content
        return made[1]

    def _withdraw(self, subscription: Subscription) -> None:
        """Under the lock."""
        found = self._reminders.withdraw(subscription)
        if found is not None and found.busy and self._loop is not None:
            self._loop.call_soon_threadsafe(self._abort, found)

    def _tell(self, losses: list[Loss]) -> None:
        for loss in losses:
            self._lost(*loss)

    def _poke(self) -> None:
        """Under the lock: the loop looks at the queue."""
        self._begin_thread()
        if self._loop is not None and not self._poked:
            self._poked = True
            self._loop.call_soon_threadsafe(self._woken.set)
        self._notify()

    def _begin_thread(self) -> None:
        """Under the lock: start the loop's thread with the first mail."""
        if self._thread.ident is None and not self._stopping and (self._queue.waiting or len(self._reminders)):
            with guarded("mail dispatcher's thread"):
                self._thread.start()

    def _notify(self) -> None:
        """Under the lock: who waits looks again, and what has changed is written."""
        if self._queue.urgent or (self._queue.changed and self._write_at == math.inf):
            self._writer.wake()
        self._changed.notify_all()

    def _is_drained(self) -> bool:
        queue = self._queue
        ready = queue.next_due() <= time.monotonic()
        return not (queue.pending or queue.under_way or ready or queue.volatile > queue.gathering)

    def _end_store(self, store: MailStore, timeout: float) -> None:
        with self._changed:
            self._writer.wake()
            self._changed.wait_for(lambda: self._written, timeout)
        self._writer.stop(timeout)
        try:
            store.close()
        except StorageError as exc:
            log.error("what was committed is on disk, the file was not closed: %s", exc)

    # -- the writer's job ---------------------------------------------------------------------------------------

    def _write(self) -> float:
        """Commit what has changed, at once or a while after the first of it; the last time when the loop has ended.
        Seconds until it is looked at again."""
        with self._changed:
            ended, now = self._closing, time.monotonic()
            if not (self._queue.changed or ended):
                return math.inf
            if self._write_at == math.inf:
                self._write_at = now + (FAULT_SECONDS if self._fault else FLUSH_SECONDS)
            if now < self._write_at and not (self._queue.urgent or ended):
                return self._write_at - now
            self._write_at = math.inf
        try:
            self._write_all()
        finally:
            with self._changed:
                self._written |= ended
                self._notify()
        return math.inf

    def _write_all(self) -> None:
        with self._changed:
            changes, upto = self._queue.changes(), self._offered
        why = self._commit(changes)
        with self._changed:
            now = time.monotonic()
            losses = self._queue.not_kept(changes) if why else []
            if not why:
                self._queue.kept(changes, now)
            before, self._fault = self._fault, why
            self._durable = upto
            self._poke()
        if why and not before:
            log.error("mail is lost, the disk does not take it: %s", why)
        elif before and not why:
            log.warning("the disk takes mail again")
        self._tell(losses)

    def _commit(self, changes: Changes) -> str:
        """Write them; why they are not on disk, "" if they are."""
        assert self._store is not None
        with guarded("mail store"):
            try:
                self._store.commit(changes, self._offset)
            except StorageError as exc:
                return str(exc)
            return ""
        return "writing has failed in an unforeseen way"

    # -- the loop's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        with guarded("mail dispatcher's loop"), asyncio.Runner() as runner:
            try:
                runner.run(self._serve())
            finally:
                with self._changed:
                    self._loop = None

    async def _serve(self) -> None:
        """Start what is due, as long as there are connections; sleep until something may be."""
        with self._changed:
            self._loop = asyncio.get_running_loop()
        while True:
            due, late = time.monotonic() + FAULT_SECONDS, list[Loss]()
            with guarded("mail dispatcher"):
                now = time.monotonic()
                with self._changed:
                    self._poked = False  # from here on: what changes behind our back pokes us again
                    if self._stopping:
                        self._loop = None
                        break
                    if self._link_rate is not None:
                        self._queue.pace(self._link_rate(), now)
                    again = self._queue.sweep(now)
                    due = min(self._begin_due(now), again)
                    late = self._queue.late()
                due = min(due, self._connections.close_idle(now))
            with guarded("losses of the mail dispatcher"):
                self._tell(late)
            await self._sleep(due - time.monotonic())
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._connections.close()
        with self._changed:
            self._notify()

    def _begin_due(self, now: float) -> float:
        """Under the lock: begin what is due, as far as there are connections; when something will be. Reminders come
        behind everything else."""
        while len(self._tasks) < self._settings.connections:
            attempt = self._queue.take(now)
            if attempt is not None:
                self._begin(attempt)
            elif not self._remind(now):
                return min(self._queue.next_due(), max(self._reminders.next_due(), self._queue.slot))
        return math.inf

    def _remind(self, now: float) -> bool:
        """Under the lock: begin to send a reminder; whether there was one."""
        if now < self._queue.slot or self._reminders.next_due() > now:
            return False
        found = self._reminders.take(now)
        if found is None:
            return False
        self._queue.use_slot(len(found.left), now)
        task = asyncio.get_running_loop().create_task(self._try(found))
        self._tasks[found] = task
        task.add_done_callback(functools.partial(self._end_reminder, found))
        return True

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None if seconds == math.inf else max(0.0, seconds)):
                await self._woken.wait()
        except TimeoutError:
            pass  # something is due
        self._woken.clear()

    def _begin(self, attempt: Attempt) -> None:
        task = asyncio.get_running_loop().create_task(self._try(attempt))
        self._tasks[attempt.outbox] = task
        task.add_done_callback(functools.partial(self._end, attempt))

    def _abort(self, what: Outbox | Reminder) -> None:
        task = self._tasks.get(what)
        if task is not None:
            task.cancel()

    def _end(self, attempt: Attempt, task: asyncio.Task[_Answer]) -> None:
        """Account for an attempt, whatever its end was."""
        del self._tasks[attempt.outbox]
        with guarded("account of a mail"):
            self._account(attempt, None if task.cancelled() else task.result())
        if attempt.outbox.busy:  # that has failed: not sent again at once, and not for ever
            with guarded("account of a mail"):
                self._account(attempt, _Answer(unreachable="its account has failed here"))
        self._woken.set()

    def _end_reminder(self, sent: Reminder, task: asyncio.Task[_Answer]) -> None:
        """Account for a reminder, on its own: a refusal here suspends nobody."""
        del self._tasks[sent]
        with guarded("account of a reminder"):
            self._account_reminder(sent, None if task.cancelled() else task.result())
        self._woken.set()

    def _account_reminder(self, sent: Reminder, answer: _Answer | None) -> None:
        """`answer`: None if it was aborted."""
        refused, now = answer.refused if answer is not None else {}, time.monotonic()
        unsent = answer is None or answer.unreachable
        again = sent.left if unsent else tuple(a for a in refused if refused[a][0] < FINAL)
        given_up = [a for a in refused if refused[a][0] >= FINAL]
        with self._changed:
            self._reminders.settle(sent, again, len(given_up), now)
            said = self._note(answer, now) if answer is not None else ""
            self._notify()
        if said:
            log.warning("%s", said)
        for address in given_up:
            log.warning("subscription %s: no reminder for %s: %s", sent.subscription.uid, address, refused[address])

    def _account(self, attempt: Attempt, answer: _Answer | None) -> None:
        """`answer`: None if it was aborted."""
        now = time.monotonic()
        with self._changed:
            if answer is None:
                losses = self._queue.release(attempt, now)
            elif answer.unreachable:
                losses = self._queue.put_off(attempt, answer.unreachable, now)
            else:
                losses = self._queue.settle(attempt, answer.refused, now, blamed=answer.blamed)
            said = self._note(answer, now) if answer is not None else ""
            self._notify()
        if said:
            log.warning("%s", said)
        self._tell(losses)

    def _note(self, answer: _Answer, now: float) -> str:
        """Under the lock: whether the mail server is away; what is to be said when that changes."""
        before = self._away
        if not answer.unreachable:
            self._answered, self._away = now, ""
        elif now - self._answered > AWAY_SECONDS:
            self._away = answer.unreachable
        server, waiting = f"{self._settings.host}:{self._settings.port}", self._queue.waiting
        if self._away and not before:
            self._said_away = now
            return f"the mail server {server} is away: {self._away}; {self._waiting()}"
        if self._away and (waiting or len(self._reminders)) and now - self._said_away >= AWAY_AGAIN_SECONDS:
            self._said_away = now
            return f"the mail server {server} is still away: {self._away}; {self._waiting()}"
        if before and not self._away:
            return f"the mail server {server} answers again; {waiting} mails wait"
        return ""

    def _waiting(self) -> str:
        """Under the lock: how many mails wait, and what becomes of them at a stop."""
        waiting, volatile = self._queue.waiting, self._queue.volatile
        if self._store is None:
            end = "are lost at a stop without [pad] state"
        elif volatile:
            end = f"survive a stop, but for {volatile} of subscriptions that are bound to their process"
        else:
            end = "survive a stop"
        reminders = f" ({len(self._reminders)} reminders beside them)" if len(self._reminders) else ""
        return f"{waiting} mails wait for it{reminders}, and {end}"

    async def _try(self, what: Attempt | Reminder) -> _Answer:
        with guarded("a try to send mail"):
            if isinstance(what, Reminder):
                return await self._send_each(what.left, functools.partial(self._reminder, what))
            if self._base:
                return await self._send_each(what.recipients, functools.partial(self._message, what))
            return await self._tried(what.recipients, self._message(what))
        return _Answer(unreachable="the try has failed here in an unforeseen way")

    async def _send_each(self, recipients: Sequence[str], message: Callable[[str], bytes]) -> _Answer:
        """A mail for each, with his own links. Who has got his keeps it, whatever becomes of the others; those who
        have not after [mail] try_seconds come later, so that other subscriptions get the connection."""
        deadline = time.monotonic() + self._settings.try_seconds
        refused: dict[str, tuple[int, str]] = {}
        left = dict.fromkeys(recipients)  # who is named twice gets it once
        tried = False
        while left:
            address = next(iter(left))
            if time.monotonic() > deadline:
                return _Answer({**refused, **dict.fromkeys(left, (AGAIN, "its turn was over"))})
            try:
                answer = await self._tried((address,), message(address))
            except asyncio.CancelledError:
                if not tried:
                    raise
                answer = _Answer(unreachable="stopped")
            if answer.unreachable and not tried:
                return answer
            if answer.unreachable:
                return _Answer({**refused, **dict.fromkeys(left, (AGAIN, answer.unreachable))})
            if not answer.blamed:
                return _Answer({**refused, **dict.fromkeys(left, answer.refused[address])}, blamed=False)
            refused |= answer.refused
            tried = True
            del left[address]
        return _Answer(refused)

    async def _tried(self, everybody: tuple[str, ...], message: bytes) -> _Answer:
        try:
            return _Answer(await _within(self._settings.try_seconds, self._connections.send(everybody, message)))
        except aiosmtplib.SMTPRecipientsRefused as exc:
            return _Answer({r.recipient: _said(r) for r in exc.recipients})
        except aiosmtplib.SMTPHeloError as exc:
            return _Answer(unreachable=_printable(f"{exc.code} {exc.message}"))
        except aiosmtplib.SMTPSenderRefused as exc:
            return _Answer(dict.fromkeys(everybody, _said(exc)), blamed=False)
        except aiosmtplib.SMTPResponseException as exc:
            return _Answer(dict.fromkeys(everybody, _said(exc)))
        except (_NotConnectedError, aiosmtplib.SMTPException, OSError, ValueError) as exc:
            return _Answer(unreachable=_printable(str(exc) or type(exc).__name__))

    def _message(self, attempt: Attempt, recipient: str = "") -> bytes:
        uid, contents = attempt.subscription.uid, [x.content for x in attempt.letters]
        leave = link(self._base, "unsubscribe", attempt.subscription.request, recipient)
        contract = attempt.subscription.contract
        importance = contract.settings.importance if contract is not None else None
        if not attempt.is_digest:
            return single(contents[0], uid, self._domain, leave, importance)
        return digest(
            contents,
            uid,
            sender=self._sender,
            domain=self._domain,
            published=attempt.letters[-1].queued + self._offset,
            unsubscribe=leave,
            importance=importance,
        )

    def _reminder(self, wanted: Reminder, recipient: str) -> bytes:
        request = wanted.subscription.request
        return reminder(
            request,
            ends=wanted.ends,
            date=wanted.made,
            sender=self._sender,
            domain=self._domain,
            unsubscribe=link(self._base, "unsubscribe", request, recipient),
            renew=link(self._base, "renew", request, recipient),
        )


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises TimeoutError when it has not ended after so many seconds.

    Cancels until it ends: of a cancellation that comes together with an answer, asyncio.wait_for, which waits for
    answers in there, gives the answer and forgets the cancellation (Python 3.11); the next answer may take for ever."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait((task,), timeout=seconds)
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=CANCEL_AGAIN_SECONDS)
        if not task.cancelled():
            task.exception()  # who is cancelled has no use for it
    if task.cancelled():
        raise TimeoutError
    return task.result()


class _Connections:
    """Connections to the mail server, used again last in first out, so that those too many become idle and are closed.

    Of the loop's thread alone. There are never more than sends at once.
    """

    def __init__(self, settings: MailSection, sender: str) -> None:
        self._settings = settings
        self._sender = sender
        self._idle: list[tuple[float, aiosmtplib.SMTP]] = []
        self._leaving: set[asyncio.Task[None]] = set()
        self._name: str | None = None
        self.open = 0
        """Connections, as status pages show it."""

    async def send(self, recipients: tuple[str, ...], message: bytes) -> Mapping[str, tuple[int, str]]:
        """Send a mail; who was refused, and how. Raises _NotConnectedError and aiosmtplib's errors."""
        while self._idle:
            _, client = self._idle.pop()
            try:
                return await self._send(client, recipients, message)
            except (aiosmtplib.SMTPServerDisconnected, ConnectionError):
                continue  # the server has closed it meanwhile: no failure of the mail's
            except aiosmtplib.SMTPSenderRefused as exc:
                if exc.code != aiosmtplib.SMTPStatus.domain_unavailable:
                    raise  # 421: closes the connection, RFC 5321 3.8
        return await self._send(await self._connect(), recipients, message)

    async def _send(
        self, client: aiosmtplib.SMTP, recipients: tuple[str, ...], message: bytes
    ) -> Mapping[str, tuple[int, str]]:
        usable = False
        try:
            refused, _ = await client.sendmail(self._sender, list(recipients), message)
            usable = True
        except (aiosmtplib.SMTPResponseException, aiosmtplib.SMTPRecipientsRefused):
            usable = True  # an answer, and the envelope is reset
            raise
        finally:
            if usable and client.is_connected:
                self._idle.append((time.monotonic(), client))
            else:
                self._drop(client)
        return {address: _said(answer) for address, answer in refused.items()}

    async def _connect(self) -> aiosmtplib.SMTP:
        settings = self._settings
        secure = settings.start_tls == "required"
        client = aiosmtplib.SMTP(
            hostname=settings.host,
            port=settings.port,
            local_hostname=self._name,
            timeout=settings.timeout,
            start_tls=secure,
            username=settings.username or None,
            password=settings.password or None,
            tls_context=self._tls if secure else None,
        )
        try:
            await client.connect()
        except (aiosmtplib.SMTPException, OSError, ValueError) as exc:
            raise _NotConnectedError(str(exc) or type(exc).__name__) from exc
        self._name = client.local_hostname  # asking the resolver for it once is enough
        self.open += 1
        return client

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    def _drop(self, client: aiosmtplib.SMTP) -> None:
        client.close()
        self.open -= 1

    def close_idle(self, now: float) -> float:
        """Say good-bye on connections that have been idle for too long; when the next one will have been."""
        while self._idle and self._idle[0][0] + self._settings.idle_seconds <= now:
            task = asyncio.get_running_loop().create_task(self._leave(self._idle.pop(0)[1]))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        return self._idle[0][0] + self._settings.idle_seconds if self._idle else math.inf

    async def close(self) -> None:
        """All of them."""
        self.close_idle(math.inf)
        await asyncio.gather(*self._leaving)

    async def _leave(self, client: aiosmtplib.SMTP) -> None:
        try:
            async with asyncio.timeout(QUIT_SECONDS):
                await client.quit()
        except (aiosmtplib.SMTPException, OSError) as exc:
            log.debug("no good-bye from the mail server: %s", exc)
        finally:
            self._drop(client)


def _said(answer: aiosmtplib.SMTPResponse | aiosmtplib.SMTPResponseException) -> tuple[int, str]:
    """Code and text of an answer."""
    return answer.code, _printable(answer.message)


def _printable(text: str) -> str:
    """A server's words as logs, status pages and our disk can take them: bytes that are no UTF-8 come as surrogates."""
    return "".join(c if c.isprintable() else " " for c in text[:500])
