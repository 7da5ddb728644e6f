"""The mail queue's decisions: what waits for whom, what is sent next, what becomes of it. Pure: no network, thread,
clock or disk.

Rules:
- One outbox a subscription, one mail of it under way at a time: order is kept for each recipient, also over retries.
  Outboxes that are ready take turns; with QoS those of the most important contracts first.
- With QoS a letter that has not been handed over when its contract's deadline is reached is lost (deadline); a try that
  is under way by then is not aborted. What waits follows a policy that changes.
- The unit of account is one object for one recipient. For each subscription, at any time and over restarts:
  offered objects x recipients = mailed + lost (each under one cause) + waiting.
- SMTP 4xx and an unreachable server: tried again with growing pauses, a bounded number of times; mail to the other
  recipients goes on. 5xx: lost at once. Each recipient's own answer counts (RFC 5321 4.2.1). One refused so many mails
  running is suspended: nothing is sent there until the subscription is made again, and each object is a loss of its own
  cause. One who has unsubscribed is suspended for as long as the subscription stands.
- Bounded in mails and bytes; one subscription has at most a share of both, and all of one party have one, so that
  those that are put off do not take the room of all others.
- What is to survive (`durable`) goes out only when it is on disk: `journal` says what to write, `kept` and `not_kept`
  what came of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Final

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.pad.mail.journal import Changes, MailJournal
from jbi_pubsub.pad.mail.letters import Ledger, Letter, Loss
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.mail.outbox import UNSUBSCRIBED, Attempt, MailRoom, Outbox, Refused
from jbi_pubsub.pad.mail.turns import MailPace, SendingOrder
from jbi_pubsub.pad.model.subscription import Subscription

SWEEP_SECONDS: Final = 0.25
"""So often it is looked, with QoS, what is too late and which outboxes are of another importance than they were."""


class MailQueue:
    """See the module's rules. Its owner calls one method at a time; `now` is seconds of a monotonic clock."""

    def __init__(self, settings: MailSection, *, first: int = 1) -> None:
        """Letters are numbered from `first`."""
        self._settings = settings
        self._numbers = itertools.count(first)
        self._outboxes: dict[Subscription, Outbox] = {}
        self._durable: dict[str, Outbox] = {}
        self._order = SendingOrder()
        self._late: list[Loss] = []
        self._next_sweep = math.inf
        """Infinity: nothing waits that has a contract."""
        self._flushing = False
        self._under_way: set[Outbox] = set()
        self.journal: Final = MailJournal()
        self.pace: Final = MailPace(settings.rate)
        self.room: Final = MailRoom(settings)

    @property
    def under_way(self) -> int:
        """Attempts that have not been settled."""
        return len(self._under_way)

    @property
    def volatile(self) -> int:
        """Letters that would not survive."""
        return sum(len(outbox.letters) for outbox in self._outboxes.values() if not outbox.durable)

    @property
    def gathering(self) -> int:
        """Letters that would not survive, and wait for nothing but their digest's time."""
        if self._flushing:
            return 0
        boxes = (o for o in self._outboxes.values() if not o.durable and next(o.ready(), None) is not None)
        return sum(len(o.letters) for o in boxes if o.digest_seconds and not o.letters[0].tries)

    def is_drained(self, now: float) -> bool:
        """Whether nothing could go out now, is tried, or would not survive, but for what is gathered."""
        is_busy = self.journal.pending or self._under_way or self.next_due() <= now
        return not (is_busy or self.volatile > self.gathering)

    def oldest(self, now: float) -> float:
        """Seconds since the mail was queued that has waited longest; 0 when none waits."""
        firsts = (outbox.letters[0] for outbox in self._outboxes.values() if outbox.letters)
        return max((now - letter.queued for letter in firsts), default=0.0)

    # -- subscriptions ------------------------------------------------------------------------------------------

    def open(self, subscription: Subscription, *, durable: bool, ledger: Ledger | None = None) -> None:
        """Its mail is taken from now on; `ledger` of a time before."""
        journal = self.journal if durable else None
        outbox = Outbox(subscription, self._settings, self.room, journal, ledger)
        self._outboxes[subscription] = outbox
        if durable:
            self._durable[subscription.uid] = outbox

    def restore(self, subscription: Subscription, letters: Iterable[Letter], now: float) -> list[Loss]:
        """Restore what waited for an opened subscription in a time before, but for who was suspended while it was under
        way, or before it was on disk. None was queued after now: the clock was ahead then."""
        outbox = self._outboxes[subscription]
        for letter in letters:
            letter.queued = min(letter.queued, now)
            outbox.add(letter, is_new=False)
        outbox.sweep()
        return self._go_on(outbox, now)

    def cancel(self, subscription: Subscription) -> tuple[int, Outbox | None]:
        """Forget it and what waits for it, also what is under way: how much that was, and whose attempt to abort."""
        outbox = self._outboxes.pop(subscription, None)
        if outbox is None:
            return 0, None
        lost = sum(len(x.recipients) for x in outbox.letters)
        outbox.end(tuple(outbox.letters))
        self._order.remove(outbox)
        if outbox.durable:
            del self._durable[subscription.uid]
            self.journal.forget(subscription.uid)
        return lost, outbox if outbox in self._under_way else None

    def unsubscribe(self, subscription: Subscription, recipients: Sequence[str], now: float) -> list[Loss]:
        """They get no mail of it any more, but for what is under way."""
        outbox = self._outboxes.get(subscription)
        if outbox is None or not recipients:
            return []
        outbox.suspend(dict.fromkeys(recipients, UNSUBSCRIBED))
        return self._go_on(outbox, now)

    # -- in -----------------------------------------------------------------------------------------------------

    def outbox(self, subscription: Subscription) -> Outbox | None:
        """Its outbox, if it is open."""
        return self._outboxes.get(subscription)

    def offer(
        self,
        subscription: Subscription,
        content: Content,
        now: float,
        deadline: float | None = None,
        since: float = 0.0,
    ) -> list[Loss]:
        """Take an object's mail, or lose it. `deadline`: of a contract that decides by the object; `since`: when it was
        published, 0.0: now."""
        outbox = self._outboxes[subscription]
        losses = outbox.offer(next(self._numbers), content, since or now, deadline)
        self._schedule(outbox, now)
        return losses

    # -- out ----------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Attempt | None:
        """The attempt to send now, if anything is due; it must be settled, put off or released."""
        if now < self.pace.slot:
            return None
        while (outbox := self._order.pop(now)) is not None:
            if self._is_in_time(outbox, now):
                letters, recipients = outbox.begin(now)
                if not letters:
                    self._schedule(outbox, now)
                    continue
                self._under_way.add(outbox)
                mails = len(recipients) if self._settings.unsubscribe else 1  # with links one each
                self.pace.use(mails, now, mails * sum(letter.size for letter in letters))
                return Attempt(outbox, letters, recipients, outbox.digest_seconds > 0)
        return None

    def next_due(self) -> float:
        """When something is due, infinity for never."""
        return max(due, self.pace.slot) if (due := self._order.next_due()) < math.inf else math.inf

    def sweep(self, now: float) -> float:
        """Let go what is too late, and follow contracts that have changed; when to come again, infinity for never.
        Nothing without QoS."""
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP_SECONDS if self.room.waiting else math.inf
            for outbox in self._order.refresh():
                if self._is_in_time(outbox, now):
                    self._schedule(outbox, now)  # it may gather no more
        return self._next_sweep

    def late(self) -> list[Loss]:
        """Losses of what was too late, since the last call."""
        late, self._late = self._late, []
        return late

    def flush(self, now: float) -> None:
        """Send what would not survive: digests need not wait for their time."""
        self._flushing = True
        for outbox in self._outboxes.values():
            self._schedule(outbox, now)

    def settle(
        self, attempt: Attempt, refused: Refused, now: float, *, blamed: bool = True, is_whole: bool = False
    ) -> list[Loss]:
        """The server has answered: who is not in `refused` has got it. `blamed`: its refusals speak of recipients or
        message, and lead to suspension. `is_whole`: of the message, so that a digest is divided."""
        if not self._end(attempt):
            return []
        if len(refused) < len(attempt.recipients):
            _meter(attempt, now)
        losses = attempt.outbox.settle(attempt, refused, now, blamed=blamed, is_whole=is_whole)
        return losses + self._go_on(attempt.outbox, now)

    def put_off(self, attempt: Attempt, why: str, now: float) -> list[Loss]:
        """The server could not be reached, or did not answer: tried again later, or lost."""
        if not self._end(attempt):
            return []
        return attempt.outbox.try_again(attempt.letters, attempt.recipients, why, now) + self._go_on(
            attempt.outbox, now
        )

    def release(self, attempt: Attempt, now: float) -> list[Loss]:
        """Release an attempt that was aborted."""
        if not self._end(attempt):
            return []
        attempt.outbox.release(attempt.letters)
        return self._go_on(attempt.outbox, now)

    def close(self) -> list[Loss]:
        """Lose what would not survive (shutdown); nothing goes out any more."""
        losses = []
        for outbox in self._outboxes.values():
            self._order.remove(outbox)
            if not outbox.durable and outbox.letters:
                losses.append(outbox.lose(tuple(outbox.letters), Cause.SHUTDOWN))
        return losses

    # -- disk ---------------------------------------------------------------------------------------------------

    def kept(self, changes: Changes, now: float) -> None:
        """They are on disk: the letters may go out, but for those whose recipients were all suspended meanwhile."""
        for uid in {letter.uid: None for letter in self.journal.keep(changes)}:
            outbox = self._durable[uid]
            outbox.sweep()
            self._schedule(outbox, now)

    def not_kept(self, changes: Changes) -> list[Loss]:
        """They could not be written: letters are lost, all else waits for the next time."""
        lost: dict[str, list[Letter]] = {}
        for letter in self.journal.lose(changes):
            lost.setdefault(letter.uid, []).append(letter)
        losses = [self._durable[uid].lose(letters, Cause.STORAGE) for uid, letters in lost.items()]
        return [loss for loss in losses if loss.amount]

    # -- inside -------------------------------------------------------------------------------------------------

    def _end(self, attempt: Attempt) -> bool:
        """Whether it was under way, and its subscription stands."""
        self._under_way.discard(attempt.outbox)
        return attempt.is_open

    def _is_in_time(self, outbox: Outbox, now: float) -> bool:
        """Lose what is too late; False: there was something, and it waits for another turn with what is left."""
        loss = outbox.drop_late(now)
        if loss is not None:
            self._late.append(loss)
            self._schedule(outbox, now)
        return loss is None

    def _schedule(self, outbox: Outbox, now: float) -> None:
        due = outbox.next_due(is_flushed=self._flushing and not outbox.durable)
        self._order.set_due(outbox, due, now)
        if outbox.subscription.contract is not None and outbox.letters and self._next_sweep == math.inf:
            self._next_sweep = now

    def _go_on(self, outbox: Outbox, now: float) -> list[Loss]:
        """Withhold what waits from who is suspended, and wait for the next turn."""
        losses = outbox.withhold()
        self._schedule(outbox, now)
        outbox.show()
        return losses


def _meter(attempt: Attempt, now: float) -> None:
    """Tell the contract's meter, if it has one, what was sent."""
    contract = attempt.subscription.contract
    if contract is not None and contract.meter is not None:
        for letter in attempt.letters:
            contract.meter.took(letter.content.type_name, letter.size, now - letter.queued)
