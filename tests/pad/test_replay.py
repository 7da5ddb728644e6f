"""A subscription that begins in the past: what was kept, then what comes live, without a gap, and nothing twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub.core.access import Decision
from jbi_pubsub.core.errors import ConfigurationError, JbiError, PredicateError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.quality import Contract, GrantedQos, Rate, Settings
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription
from jbi_pubsub.protocol.deliveries import Heard
from jbi_pubsub.protocol.replies import Grant
from jbi_pubsub.protocol.requests import NEW, NOT_BEFORE, Start, SubscriptionRequest
from tests.conftest import eventually
from tests.pad.test_first_object import World
from tests.pad.test_history import EVERYBODY, Asking, Rules

pytestmark = pytest.mark.processes


class Replaying(Asking):
    """A subscriber that reads all queues of one session by hand."""

    def begin(self, start: Start, *, age: float = NOT_BEFORE, caller: Any = None, **options: Any) -> Grant:
        self.names = getattr(self, "names", 0) + 1
        request = SubscriptionRequest(f"r{self.names}", start=start, **options)
        granted = self.delegate.subscribers.subscribe(self.session_id, request, 60.0, age, caller=caller)
        self.found[granted.number] = []
        return granted

    def subscription(self, granted: Grant) -> Subscription:
        return next(s for s in self.delegate.tables.subscriptions.values() if s.number == granted.number)

    def is_live(self) -> bool:
        return not self.history.status()["replays"]

    def until(self, granted: Grant, count: int) -> list[int]:
        """The positions of what has come, when it is so many, and nothing is left to catch up with."""
        eventually(lambda: self.take() or (len(self.found[granted.number]) >= count and self.is_live()))
        self.take()
        return self.found[granted.number]


@pytest.fixture
def make(standing: Callable[..., Any]) -> Callable[..., Replaying]:
    return partial(standing, Replaying)


@pytest.fixture
def place(make: Callable[..., Replaying], keeping: MemoryKeeping) -> Replaying:
    made = make(keeping)
    made.fill()
    return made


ALL = Start("all")


@pytest.mark.parametrize(
    ("start", "positions"),
    [
        (Start("new"), ()),
        (ALL, range(1, 21)),
        (Start("since", since=1.0), range(1, 21)),
        (Start("since", since=1.5), ()),
        (Start("after", after=15), range(16, 21)),
        (Start("after", after=10**6), range(1, 21)),  # it is none of this archive's
        (Start("last"), (20,)),
        (Start("last", latest_by="/m/n mod 3"), (18, 19, 20)),
    ],
)
def test_where_it_begins(place: Replaying, start: Start, positions: Any) -> None:
    granted = place.begin(start)
    if start.kind == "new":
        assert not granted.placed
        return
    assert granted.placed
    assert place.until(granted, len(positions)) == list(positions)
    # When more is published
    place.fill(3)
    # Expect that to come live, with its positions
    assert place.until(granted, len(positions) + 3) == [*positions, 21, 22, 23]
    subscription = place.subscription(granted)
    assert (subscription.replayed, subscription.matched) == (len(positions), len(positions) + 3)
    assert not subscription.lost


def test_predicate_filter_and_template_hold_as_live(place: Replaying) -> None:
    place.fill(1, payload=b"<p><a/><b/></p>")
    mine = place.registrations[0].topic.entries[:1]
    granted = place.begin(ALL, predicate="/m/n > 18", payload_filter="//b", entries=mine)
    assert place.until(granted, 3) == [19, 20, 21]
    assert b"<a/>" not in bytes(place.objects[-1].payload)
    assert b"<b/>" in bytes(place.objects[-1].payload)
    place.fill(1)
    assert place.until(granted, 4) == [19, 20, 21, 22]


@pytest.mark.parametrize("qos", [False, True])
@pytest.mark.parametrize("bound", [2, 16, 10_000])
def test_nothing_is_lost_or_comes_twice_however_fast_objects_come_meanwhile(
    make: Callable[..., Replaying], keeping: MemoryKeeping, bound: int, qos: bool
) -> None:  # fmt: skip
    # Given three publishers, two of which are archived, that publish while subscriptions come, and a slow reader
    place = make(keeping, qos=qos)
    registrations = [place.enter(f"k{n}", persist=True) for n in range(2)]
    failed: list[object] = []

    def publish(registration: Registration, seed: int) -> None:
        rest, number = random.Random(seed), 0
        while number < 150:
            count = rest.randint(1, 7)
            failed.extend(place.send(registration, *range(number + 1, number + count + 1)))
            number += count
            threading.Event().wait(rest.random() * 0.004)

    threads = [threading.Thread(target=publish, args=(each, n)) for n, each in enumerate(registrations)]
    for thread in threads:
        thread.start()
    granted = []
    for _ in range(4):
        threading.Event().wait(0.05)
        granted.append(place.begin(ALL, bound=bound, policy="block"))
        place.take()
    while any(thread.is_alive() for thread in threads):
        place.take()
    for thread in threads:
        thread.join()
    # Expect each to get all of it once, of each registration in its order, when it has caught up
    assert not failed
    whole = [position for position, _, _ in keeping.records]
    for each in granted:
        eventually(lambda each=each: place.take() or len(place.found[each.number]) >= len(whole), timeout=30.0)
        assert sorted(place.found[each.number]) == whole
        assert not place.subscription(each).lost
    by_position = {
        position: number for (position, _, _), number in zip(keeping.records, keeping.numbers(), strict=True)
    }
    for each in granted:
        for registration in registrations:
            of = [n for uid, n in map(by_position.get, place.found[each.number]) if uid == registration.uid]
            assert of == sorted(of)
    assert not place.losses
    eventually(lambda: place.take() or place.is_live())
    assert place.delegate.sessions.budget.used == 0


@pytest.mark.parametrize("durable", ["", "d"])
def test_deadline_rate_and_replacement_are_for_what_comes_when_it_has_caught_up(
    make: Callable[..., Replaying], keeping: MemoryKeeping, monkeypatch: pytest.MonkeyPatch, durable: str
) -> None:
    # Given policies by which objects are late, too fast and replaced, and a slow subscriber to a past
    place = make(keeping, qos=True)
    place.fill(20)
    settings = Settings(deadline=5.0, max_rate=Rate(1.0, "objects"), replace="type")
    given = Contract(settings), GrantedQos()
    monkeypatch.setattr(place.delegate.contracts, "open_for", lambda *_: given)
    monkeypatch.setattr(place.delegate.contracts, "end", lambda _: None)
    place.consumes = False
    granted = place.begin(ALL, bound=8, durable=durable, secret="m" * 32 if durable else "")
    for _ in range(5):
        eventually(lambda: place.take() or place.objects)
        place.fill(1)
        place.now += 10.0
        place.session.sweep()
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode(Heard({granted.number: len(place.found[granted.number])})))
    # Expect all of the past, and what came meanwhile
    assert place.until(granted, 25) == list(range(1, 26))
    assert not place.losses
    # When three come at once now, expect what the policies say, and no more of them later
    place.now += 10.0
    place.fill(3)
    place.take()
    assert place.found[granted.number][25:] == [26]
    assert [(notice.cause, notice.count) for notice in place.losses] == [(Cause.RATE, 2)]
    if durable:
        eventually(lambda: place.take() or place.history.catch_ups.durables.status()[0]["position"] == 28)


def test_who_takes_nothing_loses_nothing_while_it_catches_up(place: Replaying) -> None:
    # Given a subscriber that takes nothing, with room for four
    place.consumes = False
    granted = place.begin(ALL, bound=4)
    eventually(lambda: place.take() or place.objects)
    for _ in range(5):
        place.take()
        place.fill(20)
    assert not place.subscription(granted).lost
    assert place.delegate.sessions.budget.used <= 10 * place.objects[0].size
    # When it takes them
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode([{granted.number: len(place.found[granted.number])}]))
    # Expect all
    assert place.until(granted, 120) == list(range(1, 121))
    assert not place.losses


def test_what_is_not_kept_comes_live_meanwhile(place: Replaying, keeping: MemoryKeeping) -> None:
    other = place.enter("other", persist=False)
    keeping.may_answer.clear()
    granted = place.begin(ALL)
    place.send(other, 1)
    eventually(lambda: place.take() or place.found[granted.number] == [0])
    keeping.may_answer.set()
    assert sorted(place.until(granted, 21)) == [0, *range(1, 21)]


def test_the_buffer_serves_what_no_archive_has(make: Callable[..., Replaying], keeping: MemoryKeeping) -> None:
    # Given objects that are not kept, of a topic of its own, and a subscription that stood before them
    place = make(keeping)
    other = place.enter("other", persist=None)
    place.send(other, 1, 2)
    granted = place.begin(ALL, age=50.0)
    place.serve_all()
    assert place.until(granted, 2) == [0, 0]
    # Expect objects that are kept to come from the archive alone, though they lie in the buffer as well
    kept = make(MemoryKeeping())
    kept.fill(5)
    granted = kept.begin(ALL, age=50.0)
    kept.serve_all()
    assert kept.until(granted, 5) == [1, 2, 3, 4, 5]


def test_an_archive_that_fails_is_asked_again(place: Replaying, keeping: MemoryKeeping) -> None:
    # Given an archive that takes no query, then one whose worker dies
    keeping.max_queries = 0
    place.consumes = False
    granted = place.begin(ALL, bound=4)
    place.take()
    assert place.found[granted.number] == []
    keeping.max_queries = 10
    eventually(lambda: place.take() or len(place.found[granted.number]) == 4)
    keeping.open_now[-1].fail("the worker died")
    place.fill(2)
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode([{granted.number: 4}]))
    # Expect all, once
    assert place.until(granted, 22) == list(range(1, 23))


def test_who_leaves_in_the_middle_leaves_nothing(place: Replaying, keeping: MemoryKeeping) -> None:
    place.consumes = False
    place.begin(ALL, bound=2)
    place.begin(ALL, bound=2)
    eventually(lambda: place.take() or len(keeping.open_now) == 2)
    place.fill(30)
    place.delegate.subscribers.unsubscribe(place.session_id, "r1")
    eventually(lambda: place.history.status()["replays"] == 1)
    place.delegate.sessions.close(place.session_id)
    eventually(place.is_live)
    assert all(each.cancelled for each in keeping.open_now)
    assert place.delegate.sessions.budget.used == 0


def test_when_rules_change_in_the_middle_the_new_ones_hold(
    place: Replaying, monkeypatch: pytest.MonkeyPatch, keeping: MemoryKeeping
) -> None:
    class Subscribing(Rules):
        def allow(self, caller: Any, action: str, subject: Any) -> Decision:
            return super().allow(caller, "query" if action == "subscribe" else action, subject)

    rules = Subscribing(t=Decision(True, "p:1"))
    monkeypatch.setattr(place.history.queries.source._scopes, "_access", rules)
    place.consumes = False
    granted = place.begin(ALL, bound=4, caller=EVERYBODY)
    eventually(lambda: place.take() or len(place.found[granted.number]) == 4)
    rules.of["t"] = Decision(True, "p:1", "/m/n < 11")
    place.history.ask_again()
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode([{granted.number: 4}]))
    assert place.until(granted, 10) == list(range(1, 11))


def test_without_an_archive_it_begins_now() -> None:
    place = World()
    try:
        registration = place.register()
        place.publish(registration)
        name = place.subscribe(age=NOT_BEFORE, start=ALL)
        place.publish(registration)
        assert place.sequences(name) == [2]
    finally:
        place.delegate.subscribers.late_joiners._thread = None
        place.delegate.close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": Start("all", latest_by="/m/n")}, ConfigurationError),
        ({"start": Start("last", latest_by="//[")}, PredicateError),
        ({"start": ALL, "language": "python", "predicate": "True"}, ConfigurationError),
        ({"start": ALL, "recipients": ("a@example.org",)}, JbiError),
    ],
)
def test_what_makes_no_sense_is_refused(place: Replaying, options: dict[str, Any], error: type[JbiError]) -> None:
    with pytest.raises(error):
        place.begin(**options)
    assert place.is_live()
    assert not place.session._queues


@pytest.mark.parametrize(
    "terms", [{"start": Start("after", after=MAX_POSITION)}, {"start": NEW, "durable": "d"}], ids=str
)
def test_what_begins_now_has_what_was_kept_between_its_standing_and_its_opening(
    place: Replaying, terms: dict[str, Any]
) -> None:
    # Given objects before it stands, and some between then and when it is opened at the delegate
    place.now += 10.0
    begun = place.now
    place.now += 1.0
    place.fill(3)
    place.now += 1.0
    # When it is opened, and more comes
    if "durable" in terms:
        terms = {**terms, "secret": "s" * 32}
    granted = place.begin(age=place.session.opened - begun, **terms)
    assert place.until(granted, 3) == [21, 22, 23]
    place.fill(1)
    # Expect all since it stands, and nothing else
    assert place.until(granted, 4) == [21, 22, 23, 24]
    assert not place.subscription(granted).lost


def test_who_goes_on_behind_a_position_is_told_what_the_rules_took_meanwhile(
    place: Replaying, keeping: MemoryKeeping
) -> None:
    keeping.expire(13)
    assert place.until(place.begin(Start("after", after=10)), 7) == list(range(14, 21))
    eventually(lambda: place.take() or place.losses)
    assert [(notice.cause, notice.count) for notice in place.losses] == [(Cause.EXPIRED, 3)]
    # Expect who asks for all that is there not to be told of what is not
    assert len(place.until(place.begin(ALL), 7)) == 7
    assert len(place.losses) == 1
