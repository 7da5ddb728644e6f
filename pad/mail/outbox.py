"""The mail queue's state and decisions: what waits for whom, what is sent next, what becomes of it. Pure: no network,
thread, clock or disk.

Rules:
- One outbox a subscription, one mail of it under way at a time: its order is kept, also over retries. Outboxes that
  are ready take turns; with QoS those of the most important contracts first.
- With QoS a letter that has not been handed over when its contract's deadline is reached is lost (deadline); a try that
  is under way by then is not aborted. What waits follows a policy that changes.
- The unit of account is one object for one recipient. For each subscription, at any time and over restarts:
  offered objects x recipients = mailed + lost (each under one cause) + waiting.
- SMTP 4xx and an unreachable server: tried again with growing pauses, a bounded number of times. 5xx: lost at once.
  Each recipient's own answer counts (RFC 5321 4.2.1). One refused so many mails running is suspended: nothing is sent
  there until the subscription is made again, and each object is a loss of its own cause. One who has unsubscribed is
  suspended for as long as the subscription stands.
- Bounded in mails and bytes; one subscription has at most a share of both, and all of one party have one, so that
  those that are put off do not take the room of all others.
- What is to survive (`durable`) goes out only when it is on disk. `changes` says what to write, `kept` and `not_kept`
  what came of it.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.pacing import TokenBucket
from jbi_pubsub.core.quality import DEFAULT_IMPORTANCE, LEVELS
from jbi_pubsub.core.wire.places import share_of
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.model.subscription import Subscription

LONGEST_PAUSE: Final = 60.0
"""Seconds; pauses double up to here."""

SHARE: Final = 4
"""A subscription may hold a quarter of the queue; then its further mails are lost as if the queue were full."""

FINAL: Final = 500
"""SMTP answers from here on are final (RFC 5321 4.2.1)."""

NO_DIGEST: Final = 4
"""From this importance on nothing is gathered for a digest."""

SWEEP_SECONDS: Final = 0.25
"""So often it is looked, with QoS, what is too late and which outboxes are of another importance than they were."""

BURST_SECONDS: Final = 0.1
"""Burst that a pause of the mail server's link lets go, of its rate; a mail is in one piece, however large."""

UNSUBSCRIBED: Final = "unsubscribed by the recipient"
"""Where the answer stands that was the reason to suspend a recipient; those of servers begin with a number."""


class Loss(NamedTuple):
    """So many objects times recipients were lost for a subscription; `why` is for the log, "" for none."""

    subscription: Subscription
    cause: Cause
    amount: int
    why: str = ""


class Ledger(msgspec.Struct):
    """The account of a subscription's mail so far; `suspended` maps recipients to the answer that was the last drop.

    `offered` counts objects, `mailed` and `lost` objects times recipients.
    """

    offered: int = 0
    mailed: int = 0
    lost: dict[str, int] = {}
    suspended: dict[str, str] = {}


@dataclass(eq=False, slots=True)
class Letter:
    """One object for one subscription. `recipients` are those who have not got it; `queued` is a time of our clock:
    when it was published, where that is known."""

    number: int
    uid: str
    content: Content
    recipients: tuple[str, ...]
    queued: float
    tries: int = 0
    durable: bool = False
    deadline: float | None = None
    """Seconds from `queued` on, of a contract that decides by the object."""


@dataclass(eq=False, slots=True)
class Outbox:
    """Letters that wait for one subscription, in order. Only MailQueue changes it."""

    subscription: Subscription
    durable: bool
    peer: str = ""
    """The peer whose it is, who has a share of the queue; "" where nobody knows."""
    ledger: Ledger = field(default_factory=Ledger)
    letters: deque[Letter] = field(default_factory=deque)
    pending: dict[int, Letter] = field(default_factory=dict)
    """Those that are not on disk yet, by number."""
    due: float = math.inf
    not_before: float = 0.0
    busy: bool = False
    closed: bool = False
    trying: int = 0
    """Its first letters that are under way; only what the server answers changes them."""
    size: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.letters) + len(self.pending)

    @property
    def level(self) -> int:
        """The level of its contract, 0 to 4."""
        contract = self.subscription.contract
        return contract.level if contract is not None else DEFAULT_IMPORTANCE - 1

    @property
    def digest_seconds(self) -> float:
        """Seconds that it gathers for a mail; 0: not at all."""
        contract = self.subscription.contract
        is_urgent = contract is not None and contract.settings.importance >= NO_DIGEST
        return 0.0 if is_urgent else self.subscription.digest_seconds

    def is_late(self, letter: Letter, now: float) -> bool:
        """Whether its deadline is over."""
        contract = self.subscription.contract
        if contract is None:
            return False
        deadline = contract.settings.deadline if contract.by_object is None else letter.deadline
        return deadline is not None and now - letter.queued > deadline


class Attempt(NamedTuple):
    """A try to send the first letters of an outbox in one mail, to `recipients`; in a digest, even if it is one."""

    outbox: Outbox
    letters: tuple[Letter, ...]
    recipients: tuple[str, ...]
    is_digest: bool = False

    @property
    def subscription(self) -> Subscription:
        """The subscription whose they are."""
        return self.outbox.subscription


class Changes(NamedTuple):
    """Changes to write to disk, in this order: `deleted` letters and `dropped` contents by number, `forgotten` ledgers;
    then new `letters`, `updated` ones, and `ledgers` by subscription."""

    deleted: Sequence[int]
    dropped: Sequence[int]
    forgotten: Sequence[str]
    letters: Sequence[Letter]
    updated: Sequence[Letter]
    ledgers: Mapping[str, Ledger]


class MailQueue:
    """See the module's rules. Its owner calls one method at a time; `now` is seconds of a monotonic clock."""

    def __init__(self, settings: MailSection, *, first: int = 1) -> None:
        """Letters are numbered from `first`."""
        self._settings = settings
        self._numbers = itertools.count(first)
        self._turns = itertools.count()
        self._outboxes: dict[Subscription, Outbox] = {}
        self._durable: dict[str, Outbox] = {}
        self._heap: list[tuple[float, int, Outbox]] = []
        self._ready: tuple[deque[tuple[float, Outbox]], ...] = tuple(deque() for _ in range(LEVELS))
        """Those that are due, each level in turn; of those that are due at another time by now until they come up."""
        self._bucket: TokenBucket | None = None
        """Bucket of bytes, where the mail server's link has a rate."""
        self._late: list[Loss] = []
        self._is_managed = False
        """Something waits, and there are contracts: outboxes that are due wait by level."""
        self._next_sweep = math.inf
        self._flushing = False
        self._contents: Counter[int] = Counter()
        self._inserted: dict[int, Letter] = {}
        self._updated: dict[int, Letter] = {}
        self._deleted: list[int] = []
        self._dropped: list[int] = []
        self._forgotten: list[str] = []
        self._ledgers: set[Outbox] = set()
        self._slot = 0.0
        """When the rate lets the next mail go."""
        self._paid = 0.0
        """When the link does."""
        self._mails, self._bytes = Counter[str](), Counter[str]()
        """Letters that wait or are under way, and their bytes, by whose they are."""
        self.under_way = 0
        """Attempts that have not been settled."""
        self.pending = 0
        """Letters that wait for the disk."""
        self.volatile = 0
        """Letters that would not survive."""

    @property
    def waiting(self) -> int:
        """Letters that wait or are under way."""
        return self._mails.total()

    @property
    def size(self) -> int:
        """Their bytes; a content that waits for several subscriptions counts for each."""
        return self._bytes.total()

    # -- subscriptions ------------------------------------------------------------------------------------------

    def open(self, subscription: Subscription, *, durable: bool, ledger: Ledger | None = None) -> None:
        """Its mail is taken from now on; `ledger` of a time before."""
        peer = subscription.caller.peer if subscription.caller is not None else ""
        outbox = self._outboxes[subscription] = Outbox(subscription, durable, peer, ledger or Ledger())
        if durable:
            self._durable[subscription.uid] = outbox
        subscription.matched, subscription.mailed = outbox.ledger.offered, outbox.ledger.mailed
        subscription.lost.update(outbox.ledger.lost)
        self._show(outbox)

    def restore(self, subscription: Subscription, letters: Iterable[Letter], now: float) -> None:
        """Restore what waited for an opened subscription in a time before."""
        outbox = self._outboxes[subscription]
        for letter in letters:
            outbox.letters.append(letter)
            self._count(outbox, letter)
            self._contents[letter.content.number] += 1
        self._sweep(outbox)  # whose recipients were suspended before it was on disk, or all of it was
        self._manage(subscription, now)
        self._schedule(outbox, now)
        self._show(outbox)

    def abandon(self, uid: str, letters: Iterable[Letter]) -> int:
        """Forget what a time before has left for a subscription that has ended; how many objects times recipients."""
        count = 0
        for letter in letters:
            count += len(letter.recipients)
            self._deleted.append(letter.number)
            self._dropped.append(letter.content.number)
        self._forgotten.append(uid)
        return count

    def cancel(self, subscription: Subscription) -> tuple[int, Outbox | None]:
        """Forget it and what waits for it, also what is under way: how much that was, and whose attempt to abort."""
        outbox = self._outboxes.pop(subscription, None)
        if outbox is None:
            return 0, None
        lost = sum(len(x.recipients) for x in (*outbox.letters, *outbox.pending.values()))
        for letter in (*outbox.letters, *outbox.pending.values()):
            self._discard(outbox, letter)
        outbox.letters.clear()
        outbox.pending.clear()
        outbox.closed, outbox.due = True, math.inf
        self._ledgers.discard(outbox)
        if outbox.durable:
            del self._durable[subscription.uid]
            self._forgotten.append(subscription.uid)
        return lost, outbox if outbox.busy else None

    def resume(self, subscription: Subscription) -> None:
        """Suspended recipients get mail again, but for those who have unsubscribed."""
        outbox = self._outboxes.get(subscription)
        if outbox is not None and outbox.ledger.suspended:
            outbox.ledger.suspended = {a: why for a, why in outbox.ledger.suspended.items() if why == UNSUBSCRIBED}
            outbox.refusals.clear()
            self._show(outbox)

    def unsubscribe(self, subscription: Subscription, recipients: Sequence[str], now: float) -> list[Loss]:
        """They get no mail of it any more, but for what is under way."""
        outbox = self._outboxes.get(subscription)
        if outbox is None or not recipients:
            return []
        outbox.ledger.suspended = {**outbox.ledger.suspended, **dict.fromkeys(recipients, UNSUBSCRIBED)}
        self._touch(outbox, ())
        losses = self._withhold(outbox)
        self._schedule(outbox, now)
        self._show(outbox)
        return losses

    # -- in -----------------------------------------------------------------------------------------------------

    def refusal(self, subscription: Subscription, size: int) -> Cause | None:
        """Why a mail of about `size` bytes would not be taken, or None."""
        outbox, settings = self._outboxes[subscription], self._settings
        if len(outbox.ledger.suspended) == len(set(subscription.request.recipients)):
            return Cause.MAIL_SUSPENDED
        if size > settings.max_bytes:
            return Cause.OVERSIZE
        most, room = settings.queue_bound, settings.queue_bytes
        mails, held = (self._mails[outbox.peer], self._bytes[outbox.peer]) if outbox.peer else (0, 0)
        is_full = self.waiting >= most or self.size + size > room
        is_much = len(outbox) >= max(1, most // SHARE) or (outbox.size and outbox.size + size > room // SHARE)
        is_theirs = mails and (mails >= share_of(most) or held + size > share_of(room))
        return Cause.QUEUE_OVERFLOW if is_full or is_much or is_theirs else None

    def stands(self, subscription: Subscription) -> bool:
        """Whether it is open."""
        return subscription in self._outboxes

    def refuse(self, subscription: Subscription, cause: Cause) -> list[Loss]:
        """An object is offered and not taken."""
        outbox = self._outboxes[subscription]
        self._offered(outbox)
        return [self._lose(outbox, cause, len(subscription.request.recipients))]

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
        cause = self.refusal(subscription, len(content.data))
        if cause is not None:
            return self.refuse(subscription, cause)
        outbox = self._outboxes[subscription]
        self._offered(outbox)
        everybody, suspended = subscription.request.recipients, outbox.ledger.suspended
        recipients = tuple(a for a in everybody if a not in suspended)
        letter = Letter(
            next(self._numbers), subscription.uid, content, recipients, since or now, durable=outbox.durable
        )
        letter.deadline = deadline
        self._manage(subscription, now)
        self._count(outbox, letter)
        if outbox.durable:
            self._contents[content.number] += 1
            self._inserted[letter.number] = outbox.pending[letter.number] = letter
            self.pending += 1
            self._ledgers.add(outbox)
        else:
            outbox.letters.append(letter)
            self._schedule(outbox, now)
        self._show(outbox)
        gone = len(everybody) - len(recipients)
        return [self._lose(outbox, Cause.MAIL_SUSPENDED, gone)] if gone else []

    # -- out ----------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Attempt | None:
        """The attempt to send now, if anything is due; it must be settled or put off."""
        if now < self.slot:
            return None
        while self._heap and self._heap[0][0] <= now:
            due, _, outbox = heapq.heappop(self._heap)
            if due != outbox.due:
                continue  # scheduled anew since
            if not self._is_managed:
                return self._begin(outbox, now)
            self._ready[outbox.level].append((due, outbox))
        for ring in reversed(self._ready) if self._is_managed else ():
            while ring:
                due, outbox = ring.popleft()
                if due == outbox.due and self._is_in_time(outbox, now) and due == outbox.due:
                    return self._begin(outbox, now)
        return None

    def _begin(self, outbox: Outbox, now: float) -> Attempt:
        outbox.due, outbox.busy = math.inf, True
        self.under_way += 1
        letters, recipients = self._first(outbox), outbox.letters[0].recipients
        outbox.trying = len(letters)
        mails = len(recipients) if self._settings.unsubscribe else 1  # with links one each
        self.use_slot(mails, now, mails * sum(len(letter.content.data) for letter in letters))
        return Attempt(outbox, letters, recipients, outbox.digest_seconds > 0)

    def use_slot(self, mails: int, now: float, size: int = 0) -> None:
        """So many mails go out now, of `size` bytes: the next one as much later as the rates ask for."""
        if self._settings.rate:
            self._slot = max(self._slot, now) + mails / self._settings.rate
        if self._bucket is not None:
            self._bucket.take(size, now)
            self._paid = now + self._bucket.ready_in(now)

    def pace(self, rate: float, now: float) -> None:
        """The link to the mail server takes so many bytes a second from now on; 0: any number. What is owed by the rate
        before is forgotten: on a link that was slow one mail may owe hours."""
        if rate != (self._bucket.rate if self._bucket is not None else 0.0):
            self._bucket = TokenBucket(rate, max(1.0, rate * BURST_SECONDS), now) if rate else None
            self._paid = 0.0

    @property
    def slot(self) -> float:
        """When the next mail may go."""
        return max(self._slot, self._paid)

    def next_due(self) -> float:
        """When something is due, infinity for never."""
        while self._heap and self._heap[0][0] != self._heap[0][2].due:
            heapq.heappop(self._heap)
        due = self._heap[0][0] if self._heap else math.inf
        for ring in self._ready if self._is_managed else ():
            while ring and ring[0][0] != ring[0][1].due:
                ring.popleft()
            if ring:
                due = min(due, ring[0][0])
        return max(due, self.slot) if due < math.inf else math.inf

    # -- contracts ----------------------------------------------------------------------------------------------

    def _manage(self, subscription: Subscription, now: float) -> None:
        """Its contract, if it has one, is looked after."""
        if not self._is_managed and subscription.contract is not None:
            self._is_managed, self._next_sweep = True, now

    def sweep(self, now: float) -> float:
        """Let go what is too late, and follow contracts that have changed; when to come again, infinity for never.
        Nothing without QoS."""
        if now < self._next_sweep:
            return self._next_sweep
        self._is_managed = self.waiting > 0
        self._next_sweep = now + SWEEP_SECONDS if self._is_managed else math.inf
        ready = [entry for ring in self._ready for entry in ring]
        for ring in self._ready:
            ring.clear()
        for due, outbox in ready if self._is_managed else ():
            self._ready[outbox.level].append((due, outbox))
        for due, outbox in [*ready, *((due, outbox) for due, _, outbox in self._heap)]:
            if due == outbox.due and self._is_in_time(outbox, now):
                self._schedule(outbox, now)  # it may gather no more
        return self._next_sweep

    def late(self) -> list[Loss]:
        """Losses of what was too late, since the last call."""
        late, self._late = self._late, []
        return late

    def _is_in_time(self, outbox: Outbox, now: float) -> bool:
        """Lose what is too late, and not under way; whether something is left to be sent."""
        if outbox.subscription.contract is None:
            return True
        late = [x for x in itertools.islice(outbox.letters, outbox.trying, None) if outbox.is_late(x, now)]
        if not late:
            return True
        gone = set(map(id, late))
        outbox.letters = deque(x for x in outbox.letters if id(x) not in gone)
        for letter in late:
            self._discard(outbox, letter)
            outbox.subscription.meter_lost(letter.content.type_name)
        self._late.append(self._lose(outbox, Cause.DEADLINE, sum(len(x.recipients) for x in late)))
        self._schedule(outbox, now)
        self._show(outbox)
        return bool(outbox.letters)

    def flush(self, now: float) -> None:
        """Send what would not survive: digests need not wait for their time."""
        self._flushing = True
        for outbox in self._outboxes.values():
            self._schedule(outbox, now)

    @property
    def gathering(self) -> int:
        """Letters that would not survive, and wait for nothing but their digest's time."""
        if self._flushing:
            return 0
        boxes = (o for o in self._outboxes.values() if o.letters and not o.durable and not o.busy)
        return sum(len(o.letters) for o in boxes if o.digest_seconds and not o.letters[0].tries)

    def settle(
        self, attempt: Attempt, refused: Mapping[str, tuple[int, str]], now: float, *, blamed: bool = True
    ) -> list[Loss]:
        """The server has answered: who is not in `refused` (address -> code and text) has got it. `blamed`: its
        refusals speak of recipients or message, and lead to suspension."""
        outbox, letters = attempt.outbox, attempt.letters
        self._end(outbox)
        if outbox.closed:
            return []
        final = {a: f"{code} {text}" for a, (code, text) in refused.items() if code >= FINAL}
        later = tuple(a for a in attempt.recipients if a in refused and a not in final)
        outbox.ledger.mailed += len(letters) * sum(a not in refused for a in attempt.recipients)
        self._touch(outbox, letters)
        losses = []
        if len(refused) < len(attempt.recipients):
            self._meter(attempt, now)
        if final:
            why = "; ".join(f"{a}: {answer}" for a, answer in final.items())[:500]
            count = len(letters) * sum(a in final for a in attempt.recipients)  # who is named twice counts twice
            losses.append(self._lose(outbox, Cause.MAIL_REFUSED, count, why))
        for letter in letters:
            letter.recipients = later
        if blamed:
            self._blame(outbox, attempt.recipients, refused, final)
        if later:
            why = "; ".join(f"{a}: {refused[a][0]} {refused[a][1]}" for a in later)
            losses += self._again(outbox, letters, why, now, fruitless=len(later) == len(attempt.recipients))
        else:
            self._remove_first(outbox, len(letters))
        losses += self._withhold(outbox)
        self._schedule(outbox, now)
        self._show(outbox)
        return losses

    def _meter(self, attempt: Attempt, now: float) -> None:
        """Tell the contract's meter, if it has one, what was sent."""
        contract = attempt.subscription.contract
        if contract is not None and contract.meter is not None:
            for letter in attempt.letters:
                contract.meter.took(letter.content.type_name, len(letter.content.data), now - letter.queued)

    def put_off(self, attempt: Attempt, why: str, now: float) -> list[Loss]:
        """The server could not be reached, or did not answer: tried again later, or lost."""
        outbox = attempt.outbox
        self._end(outbox)
        if outbox.closed:
            return []
        self._touch(outbox, attempt.letters)
        losses = self._again(outbox, attempt.letters, why, now) + self._withhold(outbox)
        self._schedule(outbox, now)
        self._show(outbox)
        return losses

    def release(self, attempt: Attempt, now: float) -> list[Loss]:
        """Release an attempt that was aborted: as if it had not been tried."""
        self._end(attempt.outbox)
        losses = self._withhold(attempt.outbox)
        self._schedule(attempt.outbox, now)
        self._show(attempt.outbox)
        return losses

    def close(self) -> list[Loss]:
        """Lose what would not survive (shutdown); nothing goes out any more."""
        losses = []
        for outbox in self._outboxes.values():
            outbox.due = math.inf
            if not outbox.durable and outbox.letters:
                losses.append(self._lose(outbox, Cause.SHUTDOWN, sum(len(x.recipients) for x in outbox.letters)))
                self._remove_first(outbox, len(outbox.letters))
                self._show(outbox)
        return losses

    def oldest(self, now: float) -> float:
        """Seconds since the mail was queued that has waited longest; 0 when none waits."""
        firsts = (
            next(itertools.chain(outbox.letters, outbox.pending.values()), None) for outbox in self._outboxes.values()
        )
        return max((now - letter.queued for letter in firsts if letter is not None), default=0.0)

    # -- disk ---------------------------------------------------------------------------------------------------

    def changes(self) -> Changes:
        """Changes since the last call, to be written in one transaction."""
        ledgers = {o.subscription.uid: msgspec.structs.replace(o.ledger) for o in self._ledgers}
        taken = Changes(
            self._deleted,
            [n for n in self._dropped if not self._contents[n]],
            self._forgotten,
            [_copy(x) for x in self._inserted.values()],
            [_copy(x) for n, x in self._updated.items() if n not in self._inserted],
            ledgers,
        )
        self._deleted, self._dropped, self._forgotten = [], [], []
        self._inserted, self._updated = {}, {}
        self._ledgers.clear()
        return taken

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        return bool(self._inserted or self._deleted or self._updated or self._ledgers or self._forgotten)

    @property
    def urgent(self) -> bool:
        """Whether letters wait for the disk that nothing has been told of."""
        return bool(self._inserted)

    def kept(self, changes: Changes, now: float) -> None:
        """They are on disk: the letters may go out."""
        for outbox, letter in self._pending(changes):
            if letter.recipients:
                outbox.letters.append(letter)
                self._schedule(outbox, now)
            else:  # all its recipients were suspended meanwhile
                self._discard(outbox, letter)
                self._show(outbox)

    def not_kept(self, changes: Changes) -> list[Loss]:
        """They could not be written: letters are lost, all else waits for the next time."""
        self._deleted = [*changes.deleted, *self._deleted]
        self._dropped = [*changes.dropped, *self._dropped]
        self._forgotten = [*changes.forgotten, *self._forgotten]
        lost: Counter[Outbox] = Counter()
        for outbox, letter in self._pending(changes):
            lost[outbox] += len(letter.recipients)
            self._discard(outbox, letter)
        again = {x.number for x in changes.updated}
        for outbox in filter(None, map(self._durable.get, changes.ledgers)):
            self._touch(outbox, (x for x in outbox.letters if x.number in again))
            self._show(outbox)
        for outbox in lost:
            self._show(outbox)
        return [self._lose(outbox, Cause.STORAGE, count) for outbox, count in lost.items() if count]

    # -- inside -------------------------------------------------------------------------------------------------

    def _offered(self, outbox: Outbox) -> None:
        """Counted here, in one step with what becomes of it: who cancels sees both or neither."""
        outbox.ledger.offered += 1
        if not outbox.subscription.request.direct:  # its queue counts those
            outbox.subscription.matched += 1

    def _pending(self, changes: Changes) -> list[tuple[Outbox, Letter]]:
        """The changes' letters that are still wanted; the others were cancelled, their rows go."""
        found = []
        for written in changes.letters:
            outbox = self._durable.get(written.uid)
            letter = outbox.pending.pop(written.number, None) if outbox is not None else None
            if outbox is not None and letter is not None:
                self.pending -= 1
                found.append((outbox, letter))
        return found

    def _first(self, outbox: Outbox) -> tuple[Letter, ...]:
        """The letters of the next mail. A digest that was put off stays as it is: the same mail again."""
        head, settings = outbox.letters[0], self._settings
        if not outbox.digest_seconds:
            return (head,)
        chosen: list[Letter] = []
        size = 0
        for letter in itertools.islice(outbox.letters, settings.digest_objects):
            size += len(letter.content.data)
            if chosen and (
                size > settings.max_bytes or (letter.tries, letter.recipients) != (head.tries, head.recipients)
            ):
                break
            chosen.append(letter)
        return tuple(chosen)

    def _schedule(self, outbox: Outbox, now: float) -> None:
        if outbox.busy or outbox.closed or not outbox.letters:
            outbox.due = math.inf
            return
        due = outbox.not_before
        head, seconds = outbox.letters[0], outbox.digest_seconds
        waits = outbox.durable or not self._flushing
        if seconds and waits and not head.tries and len(outbox.letters) < self._settings.digest_objects:
            due = max(due, head.queued + seconds)
        if due <= now:
            due = now if outbox.due > now else outbox.due  # ready already: keeps its turn
        if due != outbox.due:
            outbox.due = due
            heapq.heappush(self._heap, (due, next(self._turns), outbox))

    def _again(
        self, outbox: Outbox, letters: Sequence[Letter], why: str, now: float, *, fruitless: bool = True
    ) -> list[Loss]:
        """A try that somebody has got something by, or was refused, is none of the bounded number: it leaves fewer."""
        tries = letters[0].tries + fruitless
        if tries > self._settings.retries:
            count = sum(len(x.recipients) for x in letters)
            self._remove_first(outbox, len(letters))
            return [self._lose(outbox, Cause.MAIL_UNREACHABLE, count, f"{tries} tries: {why}"[:500])]
        for letter in letters:
            letter.tries = tries
        outbox.not_before = now + min(self._settings.retry_seconds * 2.0 ** max(0, tries - 1), LONGEST_PAUSE)
        return []

    def _blame(
        self, outbox: Outbox, recipients: Iterable[str], refused: Mapping[str, object], final: Mapping[str, str]
    ) -> None:
        """Count refusals in a row, and suspend whom the limit has reached."""
        limit, ledger = self._settings.suspend_after, outbox.ledger
        for address in recipients:
            if address in final:
                outbox.refusals[address] += 1
            elif address not in refused:
                outbox.refusals.pop(address, None)
        gone = {a: final[a][:200] for a in final if limit and outbox.refusals[a] >= limit}
        ledger.suspended = {**gone, **ledger.suspended}

    def _withhold(self, outbox: Outbox) -> list[Loss]:
        """Nothing that waits, and is not under way, goes to suspended recipients. Letters that nobody is left for go:
        those that wait for the disk when they are on it."""
        suspended = outbox.ledger.suspended
        if not suspended or outbox.closed:
            return []
        lost: Counter[str] = Counter()
        changed = []
        for letter in (*itertools.islice(outbox.letters, outbox.trying, None), *outbox.pending.values()):
            gone = [a for a in letter.recipients if a in suspended]
            if gone:
                letter.recipients = tuple(a for a in letter.recipients if a not in suspended)
                lost.update(gone)
                changed.append(letter)
        self._touch(outbox, changed)
        self._sweep(outbox)
        why = "mail suspended: " + "; ".join(f"{a}: {suspended[a]}" for a in lost)
        return [self._lose(outbox, Cause.MAIL_SUSPENDED, lost.total(), why)] if lost else []

    def _lose(self, outbox: Outbox, cause: Cause, count: int, why: str = "") -> Loss:
        outbox.ledger.lost = {**outbox.ledger.lost, cause.value: outbox.ledger.lost.get(cause, 0) + count}
        self._touch(outbox, ())
        return Loss(outbox.subscription, cause, count, why)

    def _touch(self, outbox: Outbox, letters: Iterable[Letter]) -> None:
        if outbox.durable and not outbox.closed:
            self._ledgers.add(outbox)
            self._updated.update({x.number: x for x in letters})

    def _remove_first(self, outbox: Outbox, count: int) -> None:
        """Done with the first letters."""
        for _ in range(count):
            self._discard(outbox, outbox.letters.popleft())
        outbox.not_before = 0.0

    def _sweep(self, outbox: Outbox) -> None:
        """Letters that nobody is left for go; those that wait for the disk when they are on it."""
        for letter in outbox.letters:
            if not letter.recipients:
                self._discard(outbox, letter)
        outbox.letters = deque(x for x in outbox.letters if x.recipients)

    def _count(self, outbox: Outbox, letter: Letter) -> None:
        size = len(letter.content.data)
        outbox.size += size
        self._mails[outbox.peer] += 1
        self._bytes[outbox.peer] += size
        self.volatile += not letter.durable

    def _discard(self, outbox: Outbox, letter: Letter) -> None:
        size = len(letter.content.data)
        outbox.size -= size
        self._mails[outbox.peer] -= 1
        self._bytes[outbox.peer] -= size
        if not self._mails[outbox.peer]:
            del self._mails[outbox.peer], self._bytes[outbox.peer]
        self.volatile -= not letter.durable
        if not letter.durable:
            return
        self._updated.pop(letter.number, None)
        if outbox.pending.pop(letter.number, None) is not None:
            self.pending -= 1
        if self._inserted.pop(letter.number, None) is None:
            self._deleted.append(letter.number)
        number = letter.content.number
        self._contents[number] -= 1
        if not self._contents[number]:
            del self._contents[number]
            self._dropped.append(number)

    def _end(self, outbox: Outbox) -> None:
        outbox.busy = False
        outbox.trying = 0
        self.under_way -= 1

    def _show(self, outbox: Outbox) -> None:
        """Put down what status pages show of it."""
        subscription = outbox.subscription
        subscription.mailed = outbox.ledger.mailed
        subscription.mail_waiting = len(outbox)
        subscription.mail_suspended = outbox.ledger.suspended


def _copy(letter: Letter) -> Letter:
    """As it is now: it changes while its copy is being written."""
    return replace(letter, deadline=None)
