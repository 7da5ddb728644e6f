"""Letters of the mail queue lead random lives, with a real file, and crashes between any two steps."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from extent import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jbi_pubsub.core.config import MailSection
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.core.state import IllegalTransitionError
from jbi_pubsub.pad.mail.journal import Changes
from jbi_pubsub.pad.mail.letters import MAIL_LETTER, LetterEvent, LetterState
from jbi_pubsub.pad.mail.message import Content
from jbi_pubsub.pad.mail.outbox import UNSUBSCRIBED, Attempt
from jbi_pubsub.pad.mail.queue import MailQueue
from jbi_pubsub.pad.mail.store import KeptMail, MailStore
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.requests import SubscriptionRequest

SETTINGS = MailSection(retries=2, retry_seconds=1.0, suspend_after=3, digest_objects=4, queue_bound=40)
RECIPIENTS = ("a@x", "b@x", "c@x")
KINDS = ("each", "digest", "urgent", "volatile")
"""Subscriptions: each object for itself, in digests, with a deadline, and one that does not survive."""
MEMORY = Path("/dev/shm")  # for speed: the machine does not fail
_S, _E = LetterState, LetterEvent


def test_an_event_that_can_not_happen_raises() -> None:
    with pytest.raises(IllegalTransitionError):
        MAIL_LETTER.after(_S.WRITING, _E.TRY)  # not before it is on disk
    with pytest.raises(IllegalTransitionError):
        MAIL_LETTER.after(_S.GONE, _E.PUT_OFF)


def subscription(kind: str) -> Subscription:
    """One of each kind, as it is opened."""
    attributes = (("mail_digest_seconds", "30"),) if kind == "digest" else ()
    request = SubscriptionRequest(kind, direct=False, recipients=RECIPIENTS, attributes=attributes)
    made = compile_subscription(request, owner="mail", number=0)
    made.contract = Contract(Settings(deadline=20.0)) if kind == "urgent" else None
    return made


class MailServer:
    """Stands for the mail server: how often it has taken what, by process, letter and recipient."""

    def __init__(self) -> None:
        self.taken: Counter[tuple[int, int, str]] = Counter()

    def answer(self, attempt: Attempt, codes: list[int], process: int) -> dict[str, tuple[int, str]]:
        """Take a mail for those whose code is 250; the answers to the others."""
        answers = dict(zip(RECIPIENTS, codes, strict=True))
        for letter in attempt.letters:
            assert {*attempt.recipients} <= {*letter.recipients}
            self.taken.update((process, letter.number, a) for a in attempt.recipients if answers[a] == 250)
        return {a: (answers[a], "no") for a in attempt.recipients if answers[a] != 250}


@settings(
    max_examples=examples(200), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
class Letters(RuleBasedStateMachine):
    """A queue with its file, and a mail server; whoever calls stands for the threads of the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.server = MailServer()
        self.now = 0.0
        self.crashes = self.objects = 0
        self.shared = self.content()
        self.open()

    def open(self) -> None:
        """A process begins, with what is on disk."""
        self.store = MailStore(Path(self.folder.name) / "mails")
        self.store._base.execute("PRAGMA synchronous=OFF")  # only the process fails
        kept: KeptMail = self.store.load(0.0)
        self.queue = MailQueue(SETTINGS, first=kept.first)
        self.under_way: list[Attempt] = []
        self.writing: Changes | None = None
        self.standing = {kind: subscription(kind) for kind in KINDS}
        for kind, one in self.standing.items():
            if kind == "volatile":
                self.queue.open(one, durable=False)
                continue
            self.queue.open(one, durable=True, ledger=kept.ledgers.get(kind))
            self.queue.restore(one, kept.letters.get(kind, []), self.now)

    def content(self) -> Content:
        self.objects += 1
        number = self.objects + 1_000_000 * self.crashes
        return Content(number, f"object-{number}", "t", "t #1", b"x" * 10)

    def outbox(self, kind: str) -> Any:
        return self.queue.outbox(self.standing[kind])

    # -- what happens -----------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), is_shared=st.booleans())
    def offer(self, kind: str, is_shared: bool) -> None:
        self.shared = self.shared if is_shared else self.content()
        self.queue.offer(self.standing[kind], self.shared, self.now)

    @rule(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4), is_shared=st.booleans())
    def offer_and_write(self, kinds: list[str], is_shared: bool) -> None:
        for kind in kinds:
            self.offer(kind, is_shared)
        self.write(True)
        self.take()

    @rule(is_kept=st.booleans())
    def write(self, is_kept: bool) -> None:
        if self.writing is None:
            self.begin_to_write()
        self.written(is_kept)

    @rule()
    def take(self) -> None:
        while (attempt := self.queue.take(self.now)) is not None:
            assert all(letter.state is _S.TRYING for letter in attempt.letters)
            assert not {*attempt.recipients} & {*attempt.subscription.mail_suspended}
            before = itertools.takewhile(lambda letter: letter is not attempt.letters[-1], attempt.outbox.letters)
            earlier = [x for x in before if x not in attempt.letters]
            assert not any({*attempt.recipients} & {*x.recipients} for x in earlier), "each gets them in order"
            self.under_way.append(attempt)

    @precondition(lambda self: self.under_way)
    @rule(
        data=st.data(),
        codes=st.lists(st.sampled_from([250, 250, 451, 550]), min_size=3, max_size=3),
        is_whole=st.booleans(),
    )
    def settle(self, data: st.DataObject, codes: list[int], is_whole: bool) -> None:
        attempt = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        refused, was_open = self.server.answer(attempt, codes, self.crashes), attempt.is_open
        losses = self.queue.settle(attempt, refused, self.now, is_whole=is_whole)
        assert was_open or losses == []
        assert not attempt.is_open

    @precondition(lambda self: self.under_way)
    @rule(is_aborted=st.booleans())
    def not_reached(self, is_aborted: bool) -> None:
        attempt = self.under_way.pop()
        if is_aborted:
            self.queue.release(attempt, self.now)
        else:
            self.queue.put_off(attempt, "away", self.now)

    @rule(seconds=st.integers(1, 70))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.queue.sweep(self.now)
        assert all(loss.cause is Cause.DEADLINE for loss in self.queue.late())

    @rule(kind=st.sampled_from(KINDS), recipient=st.sampled_from(RECIPIENTS))
    def unsubscribe(self, kind: str, recipient: str) -> None:
        self.queue.unsubscribe(self.standing[kind], [recipient], self.now)
        waiting = (letter for letter in self.outbox(kind).letters if letter.state is not _S.TRYING)
        assert not any(recipient in letter.recipients for letter in waiting)

    @rule(kind=st.sampled_from(KINDS))
    def resume(self, kind: str) -> None:
        self.outbox(kind).resume()
        assert set(self.standing[kind].mail_suspended.values()) <= {UNSUBSCRIBED}

    @rule(kind=st.sampled_from(KINDS))
    def cancel(self, kind: str) -> None:
        outbox = self.outbox(kind)
        waiting = sum(len(letter.recipients) for letter in outbox.letters)
        lost, under_way = self.queue.cancel(self.standing[kind])
        assert lost == waiting
        assert (under_way is not None) == any(attempt.outbox is outbox for attempt in self.under_way)
        self.standing[kind] = subscription(kind)
        self.queue.open(self.standing[kind], durable=kind != "volatile")

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin_to_write(self) -> None:
        self.writing = self.queue.journal.take()
        assert not self.queue.journal.is_urgent

    @precondition(lambda self: self.writing is not None)
    @rule(is_kept=st.sampled_from([True, True, False]))
    def written(self, is_kept: bool) -> None:
        assert self.writing is not None
        if is_kept:
            self.store.commit(self.writing, 0.0)
            self.queue.kept(self.writing, self.now)
        else:
            assert {loss.cause for loss in self.queue.not_kept(self.writing)} <= {Cause.STORAGE}
        self.writing = None

    @rule(is_committed=st.booleans())
    def crash(self, is_committed: bool) -> None:
        """At any time, also when what is being written is on disk and nobody has been told of it."""
        if self.writing is not None and is_committed:
            self.store.commit(self.writing, 0.0)
        self.store.close()
        self.crashes += 1
        self.open()

    # -- what is always true ----------------------------------------------------------------------------------------

    @invariant()
    def offered_is_mailed_lost_or_waiting(self) -> None:
        for kind, one in self.standing.items():
            outbox, ledger = self.outbox(kind), self.outbox(kind).ledger
            waiting = sum(len(letter.recipients) for letter in outbox.letters)
            assert ledger.offered * 3 == ledger.mailed + sum(ledger.lost.values()) + waiting
            assert outbox.size == sum(letter.size for letter in outbox.letters)
            assert (one.mail_waiting, one.mailed) == (len(outbox.letters), ledger.mailed), "what status pages show"

    @invariant()
    def nobody_gets_a_letter_twice_of_one_process(self) -> None:
        assert set(self.server.taken.values()) <= {1}

    @invariant()
    def letters_are_in_order_and_only_those_under_way_are_tried(self) -> None:
        tried = [letter for attempt in self.under_way if attempt.is_open for letter in attempt.letters]
        order = [_S.WAITING, _S.WRITING, _S.NEW]
        for kind in KINDS:
            letters = list(self.outbox(kind).letters)
            assert [x.number for x in letters] == sorted(x.number for x in letters)
            states = [order.index(letter.state) for letter in letters if letter.state is not _S.TRYING]
            assert states == sorted(states)
            assert all(letter.recipients or letter.is_unwritten for letter in letters)
            assert all((letter.state is _S.TRYING) == (letter in tried) for letter in letters)
        assert self.queue.under_way == len({attempt.outbox for attempt in self.under_way})
        unwritten = [x for kind in KINDS for x in self.outbox(kind).letters if x.is_unwritten]
        assert self.queue.journal.pending == len(unwritten)
        assert self.queue.room.waiting == sum(len(self.outbox(kind).letters) for kind in KINDS)

    def teardown(self) -> None:
        """When all goes well from now on, nobody waits, and the file is empty but for the accounts."""
        if self.writing is not None:
            self.written(True)
        for attempt in self.under_way:
            self.queue.release(attempt, self.now)
        for _ in range(200):
            changes = self.queue.journal.take()
            self.store.commit(changes, 0.0)
            self.queue.kept(changes, self.now)
            self.now += 60.0
            while (attempt := self.queue.take(self.now)) is not None:
                self.queue.settle(attempt, self.server.answer(attempt, [250, 250, 250], self.crashes), self.now)
            if not (self.queue.room.waiting or self.queue.journal.has_changed):
                break
        kept = self.store.load(0.0)
        assert (self.queue.room.waiting, kept.letters) == (0, {})
        assert kept.ledgers == {k: self.outbox(k).ledger for k in kept.ledgers}
        assert self.store._base.execute("SELECT count(*) FROM contents").fetchone() == (0,)
        self.store.close()
        self.folder.cleanup()


TestLetters = Letters.TestCase


def test_who_has_unsubscribed_while_a_letter_was_under_way_does_not_get_it_after_a_crash() -> None:
    # Given a letter that is under way to three recipients, one of whom unsubscribes
    letters = Letters()
    letters.offer_and_write(["each"], is_shared=False)
    letters.unsubscribe("each", "a@x")
    letters.write(is_kept=True)
    # When the process dies before it is answered; Expect it to go to the other two, and the accounts to be right
    letters.crash(is_committed=False)
    letters.offered_is_mailed_lost_or_waiting()
    letters.take()
    assert [attempt.recipients for attempt in letters.under_way] == [("b@x", "c@x")]
    letters.teardown()


def test_an_update_that_could_not_be_written_is_written_the_next_time() -> None:
    # Given a letter that one of three recipients has got, and a disk that fails to note it
    letters = Letters()
    letters.offer_and_write(["each"], is_shared=False)
    attempt = letters.under_way.pop()
    letters.queue.settle(attempt, letters.server.answer(attempt, [250, 451, 451], 0), letters.now)
    letters.write(is_kept=False)
    # When the disk takes it again, and the process dies
    letters.write(is_kept=True)
    letters.crash(is_committed=False)
    # Expect the letter to go to the other two, and the accounts to be right
    letters.offered_is_mailed_lost_or_waiting()
    letters.take()
    assert [attempt.recipients for attempt in letters.under_way] == [("b@x", "c@x")]
    letters.teardown()
