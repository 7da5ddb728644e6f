"""A queue that catches up with the past has one state, in a table: nothing comes twice, nothing is lost untold."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jbi_pubsub import Config
from jbi_pubsub.core.errors import BackPressureError
from jbi_pubsub.core.history import Consumer, HistoryQuery, Progress, QueryResult, Scope
from jbi_pubsub.core.info_object import Head, LossNotice, Parcel, TypeName, pack
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.catch_up import CATCH_UP, CatchUpState
from jbi_pubsub.pad.egress.levels import LevelledSession
from jbi_pubsub.pad.egress.queue import Backlog, Waiting
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.pad.model.durable import Durable
from jbi_pubsub.pad.model.subscription import compile_subscription
from jbi_pubsub.pad.past.arrivals import Arrivals
from jbi_pubsub.pad.past.catch_up import ArchiveCatchUp
from jbi_pubsub.protocol.deliveries import ITEM, LOSS, PLACED, POSITION, Heard
from jbi_pubsub.protocol.requests import Start, SubscriptionRequest
from jbi_pubsub.qos.enforcement import Enforcement
from tests.pad.test_archiving import of_quality
from tests.pad.test_query_states import HandThread

SHARE = 1 << 20


def parcel_of(number: int, position: int = 0) -> Parcel:
    head = Head(f"o-{number}", "registration-1", number, 1.0, "t", "1.0", b"<m/>", 0)
    parcel = Parcel.received(b"".join(map(bytes, pack(head, b"").parts)))
    parcel.position = position
    return parcel


@cache
def quality() -> Any:
    """Quality of service without a policy."""
    return Enforcement(of_quality(Config(), "on"), "alpha@rome", None)


class ArchiveByHand:
    """An archive in a list: what a catch-up asks of Archiving, Keeping and ArchiveScopes."""

    def __init__(self) -> None:
        self.keeping = self
        self.arrivals = Arrivals()
        self.kept: list[int] = []
        self.removed: set[int] = set()
        self.fails = 0
        """Number of queries that it refuses next."""
        self.rules = ""
        self.results: list[ListedResults] = []

    def here(self, arm: Callable[[int], None]) -> int:
        arm(len(self.kept))
        return len(self.kept)

    def wait_synced(self, position: int) -> None:
        pass

    def remove(self, positions: set[int]) -> None:
        """The rules take these: they are in no answer from now on."""
        self.removed |= positions
        for results in self.results:
            results.ahead = [each for each in results.ahead if each not in positions]

    def expired(self, query: HistoryQuery) -> int:
        return sum(query.after < each <= query.up_to for each in self.removed)

    def scopes_of(self, *_given: Any) -> tuple[tuple[Scope, ...], tuple[str, ...], bool]:
        return (Scope(TypeName("t"), self.rules),), (), False

    def open(self, query: HistoryQuery, _wake: Callable[[], None]) -> ListedResults:
        if self.fails:
            self.fails -= 1
            raise BackPressureError("too many")
        there = (position for position in self.kept if position not in self.removed)
        found = [position for position in there if query.after < position <= query.up_to]
        self.results.append(ListedResults(found))
        return self.results[-1]


class ListedResults:
    """An open query of it."""

    def __init__(self, found: list[int]) -> None:
        self.ahead = found
        self.has_failed = self.is_cancelled = False

    def take(self, count: int, _size: int) -> list[QueryResult]:
        if self.has_failed:
            return []
        taken, self.ahead = self.ahead[: min(2, count)], self.ahead[min(2, count) :]
        return [QueryResult(at, 1.0, b"".join(map(bytes, parcel_of(at).parts))) for at in taken]

    def progress(self) -> Progress:
        return Progress("failed" if self.has_failed else "running" if self.ahead else "finished")

    def cancel(self) -> None:
        self.is_cancelled = True


class Life:
    """A subscription, and its subscriber, who reads by hand. `kind`: of one without an archive, of one that begins in
    the past, or of a durable one."""

    def __init__(self, kind: str, *, qos: bool = False) -> None:
        self.kind = kind
        self.thread, self.archive = HandThread(), ArchiveByHand()
        self.budget = Budget(SHARE)
        make = partial(LevelledSession, quality=quality()) if qos else SubscriberSession
        self.session = make("s", name="test", budget=self.budget, hub=SenderHub(name="test"))
        request = SubscriptionRequest("r", bound=4, start=Start("all"))
        self.subscription = compile_subscription(request, owner="s", number=1)
        self.pending: list[Parcel] = []
        """Published, and not offered to the session yet."""
        self.made = itertools.count(1001)
        self.expected: set[int] = set()
        """Numbers of what is to come; of what is kept these are the positions."""
        self.found: Counter[int] = Counter()
        self.lost = 0
        self.has_reset = False
        if kind == "plain":
            self.session.add(self.subscription, held=True)
            return
        self.subscription.is_replayed = True
        durable = None
        if kind == "durable":
            consumer = Consumer("d", "o", b"", 0, (), 1e9)
            durable = self.subscription.durable = Durable(consumer, (), self.under_way, math.inf)
            durable.attach(self.session)
        archive: Any = self.archive
        self.publish(3, is_offered=False)
        self.pending.clear()  # published before it came
        self.catch_up = ArchiveCatchUp(
            self.thread, self.session, self.subscription, archive, archive, after=0, is_told=False, left=lambda _: None
        )
        self.session.feeds.add_replay(self.subscription, self.catch_up.wake, durable)

    def under_way(self) -> list[tuple[int, int]]:
        return [(each.position, each.position) for each in self.pending if each.position]

    @property
    def queue(self) -> Any:
        return self.session._queues.by_number[1]

    @property
    def state(self) -> CatchUpState:
        state: CatchUpState = self.queue.state
        return state

    def publish(self, count: int = 1, *, is_kept: bool = True, is_offered: bool = True) -> None:
        for _ in range(count):
            position = len(self.archive.kept) + 1 if is_kept and self.kind != "plain" else 0
            number = position or next(self.made)
            if position:
                self.archive.kept.append(position)
            self.expected.add(number)
            self.pending.append(parcel_of(number, position))
        if is_offered:
            self.offer(range(len(self.pending)))

    def offer(self, which: Sequence[int]) -> None:
        """Offer what was published, in whatever order publishers' threads do."""
        for at in which:
            assert not self.session.offer([(self.subscription, self.pending[at])])
        self.pending = [each for at, each in enumerate(self.pending) if at not in which]

    def release(self, owed: int = 2) -> None:
        """What lay in memory was looked through: so many objects, none of which the archive has."""
        if self.state is not CatchUpState.HELD:
            return
        backlog = Backlog(self.subscription, SHARE)
        for _ in range(owed):
            number = next(self.made)
            self.expected.add(number)
            backlog.owe(Waiting(parcel_of(number)))
        self.session.catch_up([(self.subscription, backlog, 0)])
        self.begin()

    def begin(self) -> None:
        if self.kind != "plain":
            self.catch_up.wake()

    def turn(self) -> None:
        self.thread.turn()

    def wait(self) -> None:
        self.thread.now += 10.0

    def take(self, *, consumes: bool = True) -> None:
        while items := self.session._take(500, SHARE):
            for parts in items:
                data = b"".join(map(bytes, parts))
                kind, _ = ITEM.unpack_from(data)
                body = data[ITEM.size :]
                if kind == LOSS:
                    self.lost += msgspec.msgpack.decode(body, type=LossNotice).count
                else:
                    number = Parcel.received(body[POSITION.size if kind == PLACED else 0 :]).head.sequence
                    assert self.found[number] == 0 or self.has_reset, "once"
                    self.found[number] += 1
            self.session._acked(len(items), b"")
            if consumes:
                self.session._acked(0, msgspec.msgpack.encode(Heard({1: self.queue.sent})))
        if consumes:
            self.session._acked(0, msgspec.msgpack.encode(Heard({1: self.queue.sent})))

    def reset(self, position: int = 0) -> None:
        """A durable one is to have all behind that again."""
        durable = self.subscription.durable
        if durable is None:
            return
        self.has_reset = True
        durable.reset(position)
        self.session.feeds.fall_back(self.subscription, position)
        self.begin()
        self.expected -= set(range(1, position + 1))
        self.found = Counter({number: n for number, n in self.found.items() if not position < number <= 1000})

    def remove(self, count: int = 2) -> None:
        """The archive gives up its oldest objects, of which a durable subscription is to be told."""
        if self.kind == "durable":
            there = [each for each in self.archive.kept if each not in self.archive.removed]
            self.archive.remove(set(there[:count]))

    def refuse(self) -> None:
        self.archive.fails = 2

    def fail(self) -> None:
        for results in self.archive.results:
            results.has_failed = True

    def amend(self) -> None:
        """Other terms, or other rules, by which it may have the same."""
        if self.kind != "plain":
            self.subscription.revision += 2
            self.archive.rules += "x"
            self.catch_up.is_changed = True
            self.catch_up.wake()

    def lead(self, step: str) -> None:
        name, _, count = step.partition(" ")
        getattr(self, name)(*([int(count)] if count else []))

    def check(self) -> None:
        behind = self.queue.replay.behind if self.queue.replay is not None else []
        assert self.budget.used == self.queue.waiting_bytes + sum(each.size for each in behind)
        if self.state in (CatchUpState.BEHIND, CatchUpState.OVERRUN):
            assert not behind
        assert sum(not each.is_cancelled for each in self.archive.results) <= 1, "a round at a time"

    def end(self) -> None:
        """When nothing happens any more and the subscriber reads, it has all that it was not told to have lost."""
        self.release(0)
        self.offer(range(len(self.pending)))
        for _ in range(len(self.expected) + 20):
            self.turn()
            self.take()
            self.wait()
        self.check()
        assert self.state is CatchUpState.LIVE
        missing = self.expected - self.found.keys()
        assert self.lost == sum(self.subscription.lost.values()), "each loss is told"
        assert len(missing) == self.lost or (self.has_reset and len(missing) < self.lost)
        if self.kind == "durable" and all(number <= 1000 for number in self.expected):
            assert missing <= self.archive.removed, "nothing of what is kept, unless what is not takes its place"
        if (durable := self.subscription.durable) is not None:
            left = set(range(durable.position + 1, len(self.archive.kept) + 1))
            assert left <= self.archive.removed, "nothing is to come again"
        self.session.remove(self.subscription)
        assert self.budget.used == 0
        self.turn()
        assert all(each.is_cancelled for each in self.archive.results)


LIVES = (
    ("plain", "publish, release, publish, take"),
    ("past", "publish, release, turn, take, turn"),
    ("past", "release, turn, publish 5, take, turn, publish, take"),
    ("past", "release 0, turn, publish 2, take, wait, turn, publish 9"),
    ("past", "release 0, turn, publish 5"),
    ("durable", "reset, publish 5, release, reset, turn, reset, reset, take, turn"),
    ("durable", "release 0, turn, reset, take, turn"),
    ("durable", "release 0, turn, take, wait, turn, publish 9, take"),
)
"""Lives of a queue that walk all rows of the table."""


def test_lives_walk_every_row_of_the_table(walked_rows: Any) -> None:
    # When each of these lives is led; Expect it to end well
    for kind, text in LIVES:
        life = Life(kind)
        for step in text.split(", "):
            life.lead(step)
            life.check()
        life.end()
    # Expect no row to be left that nothing leads to
    assert walked_rows.left(CATCH_UP) == set()


def test_what_is_wanted_again_before_the_archive_was_asked_comes_again() -> None:
    # Given a durable subscription that has had all, and comes again
    life = Life("durable")
    durable = life.subscription.durable
    assert durable is not None
    life.catch_up.after = durable.position = 3
    # When it is to begin anew while what lies in memory is looked through
    life.lead("reset")
    # Expect all of it
    life.end()
    assert life.found.keys() >= {1, 2, 3}


def test_what_is_behind_counts_when_it_ends() -> None:
    life = Life("past")
    for step in ("release 0", "turn", "publish 2"):
        life.lead(step)
    assert life.session.remove(life.subscription) == life.subscription.matched == 5


def test_what_another_object_takes_the_place_of_is_lost_for_good() -> None:
    # Given a durable subscription whose queue is full of what is kept
    life = Life("durable")
    life.lead("release 0")
    life.lead("turn")
    # When an object comes that is not kept, and takes the place of one that is; Expect that to be told
    life.publish(2, is_kept=False)
    life.take()
    assert life.lost == 1
    # Expect it not to hold up the position of the subscription
    life.end()
    assert life.subscription.durable is not None
    assert life.subscription.durable.position == 3


def test_what_is_removed_while_it_is_behind_is_told_once() -> None:
    # Given a durable subscription that reads slowly, and of which three rounds are under way one after the other
    life = Life("durable")
    steps = "release 0, turn, publish 9, remove 5, turn, take, turn, publish 9, remove 12, take"
    for step in steps.split(", "):
        life.lead(step)
        life.check()
    # Expect each object, or its loss
    life.end()
    assert life.lost > 0


def test_what_was_removed_is_told_before_what_comes_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a durable subscription of three objects, of which two are removed, and a subscriber who takes at once
    life = Life("durable")
    put, items = life.session.feeds.put, list[Any]()

    def taken_at_once(*given: Any) -> None:
        put(*given)
        items.extend(life.session._take(500, SHARE))

    monkeypatch.setattr(life.session.feeds, "put", taken_at_once)
    # When the third one goes out; Expect the loss before it
    for step in ("remove 2", "release 0", "turn"):
        life.lead(step)
    assert [ITEM.unpack_from(b"".join(map(bytes, parts)))[0] for parts in items] == [LOSS, PLACED]
    life.session._acked(len(items), b"")


def test_what_made_way_in_the_queue_and_is_removed_before_it_comes_again_is_told() -> None:
    # Given a durable subscription that has caught up, with two objects of the archive in its queue
    life = Life("durable")
    life.publish(2)
    for step in ("release 0", "turn", "take", "turn", "wait", "turn"):
        life.lead(step)
    life.publish(3, is_offered=False)
    life.offer(range(3))
    # When its queue is full, so that these are to come again, and the archive has removed them
    life.publish(9)
    life.lead("remove 7")
    # Expect each object, or its loss
    life.end()


class CatchUpLives(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    @initialize(kind=st.sampled_from(["plain", "past", "durable"]), qos=st.booleans())
    def begin(self, kind: str, qos: bool) -> None:
        self.life = Life(kind, qos=qos)

    @rule(count=st.integers(1, 6), is_kept=st.booleans(), is_offered=st.booleans())
    def publish(self, count: int, is_kept: bool, is_offered: bool) -> None:
        self.life.publish(count, is_kept=is_kept, is_offered=is_offered)

    @rule(data=st.data())
    def offer(self, data: st.DataObject) -> None:
        self.life.offer(data.draw(st.permutations(range(len(self.life.pending)))))

    @rule(owed=st.integers(0, 6))
    def release(self, owed: int) -> None:
        self.life.release(owed)

    @rule(consumes=st.booleans())
    def take(self, consumes: bool) -> None:
        self.life.take(consumes=consumes)

    @rule(position=st.integers(0, 8))
    def reset(self, position: int) -> None:
        self.life.reset(min(position, len(self.life.archive.kept)))

    @rule(count=st.integers(1, 6))
    def remove(self, count: int) -> None:
        self.life.remove(count)

    @rule(step=st.sampled_from(["turn", "turn", "wait", "refuse", "fail", "amend"]))
    def happen(self, step: str) -> None:
        self.life.lead(step)

    @invariant()
    def is_in_step(self) -> None:
        if hasattr(self, "life"):
            self.life.check()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


TestCatchUpLives = CatchUpLives.TestCase
