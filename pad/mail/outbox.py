"""The mail of one subscription: its letters in order, its account, and what becomes of both. Pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.quality import DEFAULT_IMPORTANCE
from jbi_pubsub.core.wire.places import share_of
from jbi_pubsub.pad.mail.journal import MailJournal
from jbi_pubsub.pad.mail.letters import Ledger, Letter, LetterEvent, LetterState, Loss, pause_after
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.model.subscription import Subscription

SHARE: Final = 4
"""A subscription may hold a quarter of the queue; then its further mails are lost as if the queue were full."""

FINAL: Final = 500
"""SMTP answers from here on are final (RFC 5321 4.2.1)."""

NO_DIGEST: Final = 4
"""From this importance on nothing is gathered for a digest."""

UNSUBSCRIBED: Final = "unsubscribed by the recipient"
"""Where the answer stands that was the reason to suspend a recipient; those of servers begin with a number."""

Refused = Mapping[str, tuple[int, str]]
"""Code and text of the mail server's answer, by recipient."""


class MailRoom:
    """The bounds of the mail queue, and what is taken of them: letters that wait or are under way, and their bytes."""

    def __init__(self, settings: MailSection) -> None:
        self._settings = settings
        self._mails, self._bytes = Counter[str](), Counter[str]()
        """By whose they are."""

    @property
    def waiting(self) -> int:
        """Letters that wait or are under way."""
        return self._mails.total()

    @property
    def size(self) -> int:
        """Their bytes; a content that waits for several subscriptions counts for each."""
        return self._bytes.total()

    def is_full(self, peer: str, size: int, mails_of_one: int, bytes_of_one: int) -> bool:
        """Whether there is no room for `size` bytes of a peer ("": nobody knows), in a subscription with so many."""
        most, room = self._settings.queue_bound, self._settings.queue_bytes
        mails, held = (self._mails[peer], self._bytes[peer]) if peer else (0, 0)
        is_full = self.waiting >= most or self.size + size > room
        is_much = mails_of_one >= max(1, most // SHARE) or 0 < bytes_of_one > room // SHARE - size
        is_theirs = mails > 0 and (mails >= share_of(most) or held + size > share_of(room))
        return is_full or is_much or is_theirs

    def count(self, peer: str, mails: int, size: int) -> None:
        """So many more or less are of that peer."""
        self._mails[peer] += mails
        self._bytes[peer] += size
        if not self._mails[peer]:
            del self._mails[peer], self._bytes[peer]


class Outbox:
    """Letters for one subscription, in order: those under way come first, those that wait for the disk last."""

    def __init__(
        self,
        subscription: Subscription,
        settings: MailSection,
        room: MailRoom,
        journal: MailJournal | None,
        ledger: Ledger | None = None,
    ) -> None:
        """`journal`: where all of it is written; None: it would not survive. `ledger` of a time before."""
        self.subscription = subscription
        self.ledger = ledger or Ledger()
        self.letters: deque[Letter] = deque()
        self.size = 0
        self._settings, self._room, self._journal = settings, room, journal
        self._peer = subscription.caller.peer if subscription.caller is not None else ""
        self._refusals: Counter[str] = Counter()
        """Refusals for good running, by recipient."""
        self._pauses: dict[str, float] = {}
        """When recipients are tried again whose last mail was put off."""
        self._is_trying = False
        self._most = self._last = 0
        """Letters that the next digest may have, up to a number, as the server has refused more of them in one."""
        if journal is not None:
            journal.open(subscription.uid, self.ledger)
        subscription.matched = self.ledger.offered
        subscription.lost.update(self.ledger.lost)
        self.show()

    @property
    def durable(self) -> bool:
        """Whether it is to survive."""
        return self._journal is not None

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

    def ready(self) -> Iterator[Letter]:
        """Letters that the next mail may have, in order; none while one is under way."""
        waiting = itertools.takewhile(lambda letter: letter.state is LetterState.WAITING, self.letters)
        return iter(()) if self._is_trying else waiting

    def show(self) -> None:
        """Put down what status pages show of it."""
        subscription = self.subscription
        subscription.mailed = self.ledger.mailed
        subscription.mail_waiting = len(self.letters)
        subscription.mail_suspended = self.ledger.suspended

    # -- in -----------------------------------------------------------------------------------------------------

    def refusal(self, size: int) -> Cause | None:
        """Why a mail of about `size` bytes would not be taken, or None."""
        if len(self.ledger.suspended) == len(set(self.subscription.request.recipients)):
            return Cause.MAIL_SUSPENDED
        if size > self._settings.max_bytes:
            return Cause.OVERSIZE
        return Cause.QUEUE_OVERFLOW if self._is_full(size) and self._held() is None else None

    def refuse(self, cause: Cause) -> Loss:
        """An object is offered and not taken."""
        self._count_offered()
        return self._lost(cause, len(self.subscription.request.recipients))

    def offer(self, number: int, content: Content, queued: float, deadline: float | None) -> list[Loss]:
        """Take an object's mail, or lose it. What is held up for some recipients alone makes room for it."""
        if (cause := self.refusal(len(content.data))) is not None:
            return [self.refuse(cause)]
        losses = []
        while self._is_full(len(content.data)) and (held := self._held()) is not None:
            losses.append(self.lose([held], Cause.MAIL_UNREACHABLE, "no room for more that is put off"))
        self._count_offered()
        everybody = self.subscription.request.recipients
        recipients = tuple(a for a in everybody if a not in self.ledger.suspended)
        self.add(Letter(number, self.subscription.uid, content, recipients, queued, deadline=deadline))
        gone = len(everybody) - len(recipients)
        return [*losses, self._lost(Cause.MAIL_SUSPENDED, gone)] if gone else losses

    def add(self, letter: Letter, *, is_new: bool = True) -> None:
        """Take it in; one that is not new is on disk from a time before."""
        if not is_new or self._journal is None:
            letter.happen(LetterEvent.ADMIT)
        self.letters.append(letter)
        self.size += letter.size
        self._room.count(self._peer, 1, letter.size)
        if self._journal is not None:
            self._journal.add(letter)
        self.show()

    def suspend(self, suspended: Mapping[str, str]) -> None:
        """They get nothing more, for these reasons."""
        self.ledger.suspended = {**self.ledger.suspended, **suspended}
        self._note()

    def resume(self) -> None:
        """Suspended recipients get mail again, but for those who have unsubscribed."""
        if self.ledger.suspended:
            self.ledger.suspended = {a: why for a, why in self.ledger.suspended.items() if why == UNSUBSCRIBED}
            self._refusals.clear()
            self._note()
            self.show()

    # -- out ----------------------------------------------------------------------------------------------------

    def next_due(self, *, is_flushed: bool) -> float:
        """When its next mail may go out: after the pause of its recipients, and when a digest is full, or has gathered
        for its time, or gathers no more (`is_flushed`)."""
        again = math.inf if self._is_trying or not self.letters else min(self._pauses.values(), default=math.inf)
        head = None if self._are_all_paused else next((x for x in self.ready() if self._reached(x)), None)
        if head is None:
            return again
        seconds, most = self.digest_seconds, self._settings.digest_objects
        is_due = not seconds or is_flushed or head.tries or head.number <= self._last
        if is_due or sum(1 for _ in itertools.islice(self.ready(), most)) == most:
            return 0.0
        return min(again, head.queued + seconds)

    def begin(self, now: float) -> tuple[tuple[Letter, ...], tuple[str, ...]]:
        """The letters of the next mail, which is under way now, and its recipients. A digest that was put off stays as
        it is: the same mail again."""
        self._pauses = {address: end for address, end in self._pauses.items() if end > now}
        usual = self._settings.digest_objects if self.digest_seconds else 1
        chosen, size, first = list[Letter](), 0, (0, False, tuple[str, ...]())
        for letter in self.ready():
            found = (letter.tries, letter.number <= self._last, self._reached(letter))
            if found[2]:
                size += letter.size
                most = min(usual, self._most) if first[1] else usual
                if chosen and (len(chosen) == most or size > self._settings.max_bytes or found != first):
                    break
                chosen.append(letter)
                first = found
        for letter in chosen:
            letter.happen(LetterEvent.TRY)
        self._is_trying = bool(chosen)
        return tuple(chosen), first[2]

    def drop_late(self, now: float) -> Loss | None:
        """Lose what is too late, and not under way."""
        contract = self.subscription.contract
        if contract is None:
            return None
        by_object, deadline, late = contract.by_object is not None, contract.settings.deadline, []
        for letter in self.letters:
            limit = letter.deadline if by_object else deadline
            if letter.state is LetterState.WAITING and limit is not None and now - letter.queued > limit:
                late.append(letter)
                self.subscription.meter_lost(letter.content.type_name)
        return self.lose(late, Cause.DEADLINE) if late else None

    def settle(self, attempt: Attempt, refused: Refused, now: float, *, blamed: bool, is_whole: bool) -> list[Loss]:
        """The server has answered: see MailQueue."""
        letters, recipients = attempt.letters, attempt.recipients
        final = {a: f"{code} {text}" for a, (code, text) in refused.items() if code >= FINAL}
        if is_whole and len(letters) > 1 and len(final) == len(set(recipients)):
            self._most, self._last = len(letters) // 2, max(self._last, letters[-1].number)
            self.release(letters)
            return []
        self._most = min(2 * self._most, self._settings.digest_objects)
        later = tuple(a for a in recipients if a in refused and a not in final)
        self.ledger.mailed += len(letters) * sum(a not in refused for a in recipients)
        losses = []
        if final:
            why = "; ".join(f"{a}: {answer}" for a, answer in final.items())[:500]
            losses.append(self._lost(Cause.MAIL_REFUSED, len(letters) * sum(a in final for a in recipients), why))
        _take_off(letters, {*recipients} - {*later})
        if blamed:
            self._blame(recipients, refused, final)
        if later:
            why = "; ".join(f"{a}: {refused[a][0]} {refused[a][1]}" for a in later)
            return losses + self.try_again(letters, later, why, now, fruitless=len(later) == len(recipients))
        self._finish(letters)
        return losses

    def try_again(
        self, letters: Sequence[Letter], recipients: Sequence[str], why: str, now: float, *, fruitless: bool = True
    ) -> list[Loss]:
        """They are put off for these recipients, or lost; others' mail goes on. A try that somebody has got something
        by, or was refused, is none of the bounded number: it leaves fewer."""
        tries, losses = letters[0].tries + fruitless, list[Loss]()
        if tries > self._settings.retries:
            _take_off(letters, recipients)
            why = f"{tries} tries: {why}"[:500]
            losses.append(self._lost(Cause.MAIL_UNREACHABLE, len(letters) * len(recipients), why))
        else:
            self._pauses.update(dict.fromkeys(recipients, now + pause_after(tries, self._settings)))
            for letter in letters:
                letter.tries = tries
        self._finish(letters)
        return losses

    def release(self, letters: Sequence[Letter]) -> None:
        """They are under way no more: as if they had not been tried."""
        self._is_trying = False
        for letter in letters:
            letter.happen(LetterEvent.PUT_OFF)

    def withhold(self) -> list[Loss]:
        """Nothing that waits, and is not under way, goes to suspended recipients."""
        suspended = self.ledger.suspended
        lost: Counter[str] = Counter()
        changed = []
        for letter in self.letters if suspended else ():
            gone = [a for a in letter.recipients if a in suspended]
            if gone and letter.state is not LetterState.TRYING:
                letter.recipients = tuple(a for a in letter.recipients if a not in suspended)
                lost.update(gone)
                changed.append(letter)
        if not lost:
            return []
        self._note(changed)
        self.sweep()
        why = "mail suspended: " + "; ".join(f"{a}: {suspended[a]}" for a in lost)
        return [self._lost(Cause.MAIL_SUSPENDED, lost.total(), why)]

    def sweep(self) -> None:
        """Letters that nobody is left for go; those that wait for the disk when they are on it."""
        self.end([x for x in self.letters if not x.recipients and not x.is_unwritten])

    def lose(self, letters: Sequence[Letter], cause: Cause, why: str = "") -> Loss:
        """They are lost for all who have not got them."""
        self.end(letters)
        return self._lost(cause, sum(len(x.recipients) for x in letters), why)

    def end(self, letters: Sequence[Letter], event: LetterEvent = LetterEvent.DROP) -> None:
        """They are gone."""
        for letter in letters:
            self.size -= letter.size
            self._room.count(self._peer, -1, -letter.size)
            if self._journal is not None:
                self._journal.remove(letter)
            letter.happen(event)
        left = len(letters)
        while left and self.letters[0].state is LetterState.GONE:
            self.letters.popleft()
            left -= 1
        if left:
            self.letters = deque(x for x in self.letters if x.state is not LetterState.GONE)
        self.show()

    @property
    def _are_all_paused(self) -> bool:
        return self._pauses.keys() >= {*self.subscription.request.recipients} - self.ledger.suspended.keys()

    def _reached(self, letter: Letter) -> tuple[str, ...]:
        """Recipients of a letter that are not paused."""
        return tuple(a for a in letter.recipients if a not in self._pauses)

    def _is_full(self, size: int) -> bool:
        return self._room.is_full(self._peer, size, len(self.letters), self.size)

    def _held(self) -> Letter | None:
        """The oldest letter that waits for paused recipients alone, while others get mail."""
        waiting = () if self._are_all_paused else self.letters
        return next((x for x in waiting if x.state is LetterState.WAITING and not self._reached(x)), None)

    def _finish(self, letters: Sequence[Letter]) -> None:
        """A try has ended: those that nobody is left for are gone, the others wait."""
        self.release(left := [x for x in letters if x.recipients])
        self._note(left)
        self.end([x for x in letters if not x.recipients], LetterEvent.FINISH)

    def _count_offered(self) -> None:
        """Counted in one step with what becomes of it: who cancels sees both or neither."""
        self.ledger.offered += 1
        if not self.subscription.request.direct:  # its queue counts those
            self.subscription.matched += 1

    def _blame(self, recipients: Sequence[str], refused: Refused, final: Mapping[str, str]) -> None:
        """Count refusals in a row, and suspend whom the limit has reached."""
        limit = self._settings.suspend_after
        for address in recipients:
            if address in final:
                self._refusals[address] += 1
            elif address not in refused:
                self._refusals.pop(address, None)
        gone = {a: final[a][:200] for a in final if limit and self._refusals[a] >= limit}
        self.ledger.suspended = {**gone, **self.ledger.suspended}

    def _lost(self, cause: Cause, count: int, why: str = "") -> Loss:
        self.ledger.lost = {**self.ledger.lost, cause.value: self.ledger.lost.get(cause, 0) + count}
        self._note()
        return Loss(self.subscription, cause, count, why)

    def _note(self, letters: Sequence[Letter] = ()) -> None:
        """Its ledger is to be written, and these letters."""
        if self._journal is not None:
            self._journal.update(self.subscription.uid, letters)


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

    @property
    def is_open(self) -> bool:
        """Whether it has not been settled, nor its subscription cancelled."""
        return self.letters[0].state is LetterState.TRYING


def _take_off(letters: Sequence[Letter], recipients: Collection[str]) -> None:
    """They are not for these recipients any more."""
    for letter in letters:
        letter.recipients = tuple(a for a in letter.recipients if a not in recipients)
