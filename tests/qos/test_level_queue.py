"""What waits for one subscription: by level, in order per registration, newest per key, until its deadline."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.info_object import Cause, Head, Parcel, pack
from jbi_pubsub.core.quality import Contract, Rate, Settings
from jbi_pubsub.pad.egress.queue import Waiting
from jbi_pubsub.qos.queue import LevelQueue


def _waiting(
    registration: int, sequence: int, *, size: int = 10, key: str = "", arrived: float = 0.0, type_name: str = "t"
) -> Waiting:
    metadata = f"<m><track>{key}</track></m>".encode()
    head = Head(f"{registration}.{sequence}", f"r-{registration}", sequence, 1.0, type_name, "1.0", metadata, size)
    return Waiting(pack(head, bytes(size)), arrived=arrived)


class Kept:
    """A queue, what it lost, and what was taken, by the ids of the objects."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.lost: list[tuple[str, Cause]] = []
        self.queue = LevelQueue(contract, lambda waiting, cause: self.lost.append((_id(waiting), cause)))

    def put(self, waiting: Any, now: float = 1.0) -> None:
        self.queue.put(waiting, now)

    def take(self, now: float = 1.0, level: int | None = None) -> str | None:
        if not self.queue.levels:
            return None
        found = self.queue.select(self.queue.levels.bit_length() - 1 if level is None else level, now)
        return None if found is None else _id(self.queue.take())

    def take_all(self, now: float = 1.0) -> list[str]:
        taken = []
        while self.queue.levels:
            one = self.take(now)
            if one is not None:
                taken.append(one)
        return taken


def _id(waiting: Any) -> str:
    return str(waiting.parcel.head.object_id)


def _by_size(parcel: Parcel) -> Settings:
    """Levels as policies on sizes give them: the payload's length is the importance."""
    return Settings(importance=parcel.head.payload_length)


def test_the_more_important_comes_first_and_brings_what_is_before_it_of_its_registration() -> None:
    # Given objects of three registrations, one of which has something important behind something that is not
    kept = Kept(Contract(by_object=_by_size))
    for registration, sequence, importance in ((1, 1, 2), (2, 1, 3), (3, 1, 1), (1, 2, 5), (1, 3, 1)):
        kept.put(_waiting(registration, sequence, size=importance))
    assert kept.queue.levels == 0b10101
    # Expect the important one first, behind its predecessor alone
    assert kept.take_all() == ["1.1", "1.2", "2.1", "3.1", "1.3"]


def test_registrations_of_a_level_take_turns() -> None:
    kept = Kept(Contract())
    for sequence in range(1, 4):
        for registration in (1, 2, 3):
            kept.put(_waiting(registration, 10 * registration + sequence))
    assert [one[0] for one in kept.take_all()] == list("123123123")


def test_a_newer_object_of_its_key_replaces_the_one_that_waits_and_stands_last() -> None:
    # Given three tracks, of which the first reports again
    kept = Kept(Contract(Settings(replace="//track")))
    for sequence, track in enumerate("abca", 1):
        kept.put(_waiting(1, sequence, key=track))
    # Expect its older report to be lost, and the order of the numbers to hold: a lower one after a higher one counts as
    # seen at the subscriber
    assert kept.lost == [("1.1", Cause.REPLACED)]
    assert kept.take_all() == ["1.2", "1.3", "1.4"]
    # What was taken is not replaced any more, and what has no key replaces nothing
    kept.put(_waiting(1, 5, key="a"))
    kept.put(_waiting(1, 6))
    kept.put(_waiting(1, 7))
    assert kept.take_all() == ["1.5", "1.6", "1.7"]
    assert len(kept.lost) == 1


@pytest.mark.parametrize(
    ("replace", "left"), [("registration", ["1.2", "2.1"]), ("type", ["2.1"]), ("", ["1.1", "2.1", "1.2"])]
)
def test_the_newest_of_a_registration_or_of_a_type(replace: str, left: list[str]) -> None:
    kept = Kept(Contract(Settings(replace=replace)))
    for registration, sequence in ((1, 1), (1, 2), (2, 1)):
        kept.put(_waiting(registration, sequence))
    assert sorted(kept.take_all()) == sorted(left)
    assert Counter(cause for _, cause in kept.lost) == Counter({Cause.REPLACED: 3 - len(left)} if replace else {})


@pytest.mark.parametrize("replace", ["//track[", "unknown(//track)", "//a:track"])
def test_a_key_that_is_no_expression_replaces_nothing_and_is_noted_once(replace: str) -> None:
    kept = Kept(Contract(Settings(replace=replace)))
    for sequence in (1, 2, 3):
        kept.put(_waiting(1, sequence, key="a"))
    assert kept.take_all() == ["1.1", "1.2", "1.3"]
    assert faults()[f"replacement by {replace!r}"] == 1


def test_a_deadline_counts_from_publication_and_nothing_comes_after_it() -> None:
    # Given a deadline of 5 s, an object that waited 3 s at its publisher, and one that did not
    kept = Kept(Contract(Settings(deadline=5.0)))
    kept.put(_waiting(1, 1, arrived=97.0), 100.0)
    kept.put(_waiting(2, 1, arrived=100.0), 100.0)
    # Expect each to go up to its own
    assert kept.queue.next_expiry == 102.0
    assert kept.take_all(102.5) == ["2.1"]
    assert kept.lost == [("1.1", Cause.DEADLINE)]


def test_what_expires_is_found_without_being_taken() -> None:
    kept = Kept(Contract(Settings(deadline=5.0)))
    for sequence, arrived in ((1, 100.0), (2, 101.0), (3, 104.0)):
        kept.put(_waiting(1, sequence, arrived=arrived), 104.0)
    kept.queue.expire(106.5)
    assert [one for one, _ in kept.lost] == ["1.1", "1.2"]
    assert (len(kept.queue), kept.queue.next_expiry) == (1, 109.0)
    kept.queue.expire(math.inf)
    assert (len(kept.queue), kept.queue.levels, kept.queue.next_expiry) == (0, 0, math.inf)


def test_the_oldest_of_the_least_important_makes_room_wherever_it_stands() -> None:
    # Given an unimportant object that an important one pulls along, and a younger unimportant one
    kept = Kept(Contract(by_object=_by_size))
    for registration, sequence, importance in ((1, 1, 2), (1, 2, 5), (2, 1, 2), (3, 1, 3)):
        kept.put(_waiting(registration, sequence, size=importance))
    # Expect that one to go, then the younger, then the next level
    assert not kept.queue.is_least(_waiting(9, 9, size=2).parcel)
    assert [_id(kept.queue.drop_least()) for _ in range(3)] == ["1.1", "2.1", "3.1"]
    assert kept.queue.is_least(_waiting(9, 9, size=4).parcel)
    assert kept.take_all() == ["1.2"]


def test_the_oldest_of_all_makes_room_where_that_is_asked_for() -> None:
    kept = Kept(Contract(by_object=_by_size))
    for sequence, importance in ((1, 5), (2, 1), (3, 5)):
        kept.put(_waiting(sequence, 1, size=importance, arrived=float(sequence)))
    assert _id(kept.queue.drop_oldest()) == "1.1"


def test_a_rate_in_bytes_allows_a_second_at_once_and_one_in_objects_keeps_them_apart() -> None:
    kept = Kept(Contract(Settings(max_rate=Rate(1_000))))
    for sequence in range(1, 11):
        kept.put(_waiting(1, sequence, size=500), 10.0 + sequence / 100)
    assert len(kept.take_all(10.2)) == 2  # 600 bytes each with their heads
    assert Counter(cause for _, cause in kept.lost) == {Cause.RATE: 8}
    slow = Kept(Contract(Settings(max_rate=Rate(2, "objects"))))
    for tenth in range(30):
        slow.put(_waiting(1, tenth + 1), 10.0 + tenth / 10)
    assert slow.take_all(13.0) == [f"1.{n}" for n in (1, 6, 11, 16, 21, 26)]


def test_a_rate_that_is_raised_lets_through_what_it_pays_for() -> None:
    # Given a subscription that got an object of 1 MB at 1,000 bytes a second
    contract = Contract(Settings(max_rate=Rate(1_000)))
    kept = Kept(contract)
    kept.put(_waiting(1, 1, size=1_000_000), 10.0)
    assert kept.take_all(10.0) == ["1.1"]
    # When it may have a thousand times as much
    contract.settings = Settings(max_rate=Rate(1_000_000))
    kept.queue.refresh(10.0)
    # Expect the next ones two seconds later, not after 17 minutes
    kept.put(_waiting(1, 2, size=100), 10.5)
    kept.put(_waiting(1, 3, size=100), 12.0)
    assert kept.take_all(12.0) == ["1.3"]
    assert [cause for _, cause in kept.lost] == [Cause.RATE]


def test_a_rate_for_some_objects_alone_holds_for_those_and_for_each_type_by_itself() -> None:
    # Given policies that let large objects through once a second, and small ones as they come
    def by_object(parcel: Parcel) -> Settings:
        return Settings(max_rate=Rate(1, "objects") if parcel.head.payload_length > 100 else None)

    kept = Kept(Contract(by_object=by_object))
    for sequence in range(1, 41):
        kept.put(_waiting(1 + sequence % 2, sequence, size=200 if sequence % 2 else 10), 10.0 + sequence / 10)
    # Expect 4 of the large ones in four seconds, and all of the small ones
    came = Counter(one[0] for one in kept.take_all(14.0))
    assert came == {"1": 20, "2": 4}
    assert Counter(cause for _, cause in kept.lost) == {Cause.RATE: 16}
    # Given a contract for any type, and two types that may come once a second
    typed = Kept(Contract(by_object=lambda _parcel: Settings(max_rate=Rate(1, "objects"))))
    for sequence in range(1, 21):
        typed.put(_waiting(1, sequence, type_name="ab"[sequence % 2]), 10.0 + sequence / 10)
    # Expect one of each in a second, as if there were a contract for each
    assert [int(one[2:]) for one in typed.take_all(12.0)] == [1, 2, 11, 12]


def test_what_waits_already_follows_other_settings() -> None:
    # Given objects that wait without a deadline at importance 2
    contract = Contract(Settings(importance=2))
    kept = Kept(contract)
    for sequence in (1, 2, 3):
        kept.put(_waiting(1, sequence, arrived=10.0 + sequence), 14.0)
    assert not kept.queue.refresh(14.0)
    # When policies raise it to 5, with a deadline of 2 s
    contract.settings = Settings(importance=5, deadline=2.0)
    assert kept.queue.refresh(14.0)
    # Expect both to hold for what waits
    assert (kept.queue.levels, kept.queue.next_expiry) == (0b10000, 13.0)
    assert kept.take_all(14.5) == ["1.3"]
    assert [cause for _, cause in kept.lost] == [Cause.DEADLINE] * 2


def test_what_waits_is_looked_at_again_only_when_something_else_is_said_of_it() -> None:
    # Given a hundred objects under a condition
    asked: list[Parcel] = []

    def by_size(parcel: Parcel) -> Settings:
        asked.append(parcel)
        return _by_size(parcel)

    contract = Contract(Settings(), by_size)
    kept = Kept(contract)
    for sequence in range(1, 101):
        kept.put(_waiting(1, sequence, size=2))
    asked.clear()
    # When other policies come that say the same of it
    contract.settings = Settings(version=2)
    assert not kept.queue.refresh(2.0)
    assert (asked, kept.queue.levels) == ([], 0b10)
    # When the condition is another one, expect it to be asked about each
    contract.by_object = lambda _parcel: Settings(importance=4)
    contract.settings = Settings(version=3)
    assert kept.queue.refresh(2.0)
    assert kept.queue.levels == 0b1000


def test_marks_and_empty_lanes_stay_few() -> None:
    # Given a key that changes ten thousand times while nothing goes out, and registrations that come and go
    kept = Kept(Contract(Settings(replace="//track")))
    kept.put(_waiting(1, 1, key="first"))
    for sequence in range(2, 10_000):
        kept.put(_waiting(1, sequence, key="a"))
    queue: Any = kept.queue
    assert len(queue) == 2
    assert len(queue._lanes["r-1"].entries) < 40
    assert max(map(len, queue._orders)) < 40
    kept.take_all()
    for registration in range(2, 2_000):
        kept.put(_waiting(registration, 1, key=f"{registration}"))
        kept.take_all()
    assert len(queue._lanes) < 100
    assert max(map(len, queue._rings)) < 100
    assert queue._by_key == {}


# -- against a naive queue --------------------------------------------------------------------------------------------

OPERATION = st.one_of(
    st.tuples(st.just("put"), st.integers(1, 3), st.integers(1, 5), st.sampled_from(["", "a", "b"])),
    st.tuples(st.sampled_from(["take", "take any", "least", "wait", "expire", "settings"]), st.integers(0, 4)),
)


class Naive:
    """The same by looking through a list: rows of (registration, sequence, importance, expires, key, size)."""

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []

    def levels(self) -> dict[int, int]:
        """Of each registration."""
        found: dict[int, int] = {}
        for registration, _, importance, *_rest in self.rows:
            found[registration] = max(found.get(registration, 0), importance - 1)
        return found

    def first(self, registration: int) -> list[Any]:
        return next(row for row in self.rows if row[0] == registration)

    def remove(self, registration: int, sequence: int) -> list[Any]:
        [row] = [row for row in self.rows if (row[0], row[1]) == (registration, sequence)]
        self.rows.remove(row)
        return row


@settings(max_examples=examples(300))
@given(operations=st.lists(OPERATION, max_size=60), deadline=st.sampled_from([None, 3.0]))
def test_as_a_naive_queue_and_all_is_accounted_for(operations: list[Any], deadline: float | None) -> None:
    """Order per registration holds; dropped + replaced + expired + received = matched."""
    contract = Contract(Settings(deadline=deadline, replace="//track"))

    def by_object(parcel: Parcel) -> Settings:
        return Settings(
            importance=min(5, parcel.head.payload_length + contract.settings.importance - 3),
            deadline=deadline,
            replace="//track",
        )

    contract.by_object = by_object
    kept, naive, now = Kept(contract), Naive(), 100.0
    sequences, received, dropped = Counter[int](), list[tuple[int, int]](), 0

    def account() -> None:
        """What the queue has lost is what the naive one says."""
        for one, cause in kept.lost:
            registration, sequence = map(int, one.split("."))
            row = naive.remove(registration, sequence)
            if cause is Cause.DEADLINE:
                assert row[3] <= now
            else:
                assert (cause, row[4]) == (Cause.REPLACED, naive.rows[-1][4])
        causes.update(cause for _, cause in kept.lost)
        kept.lost.clear()

    causes: Counter[Cause] = Counter()
    for operation in operations:
        match operation:
            case ("put", registration, importance, key):
                sequences[registration] += 1
                waiting = _waiting(registration, sequences[registration], size=importance, key=key, arrived=now)
                level = by_object(waiting.parcel).importance
                expires = now + (deadline or math.inf)
                naive.rows.append([registration, sequences[registration], level, expires, key, importance])
                kept.put(waiting, now)
            case ("take" | "take any", which) if kept.queue.levels:
                waiting_levels = sorted(set(naive.levels().values()))
                level = waiting_levels[-1] if operation[0] == "take" else waiting_levels[which % len(waiting_levels)]
                standing = naive.levels()
                taken = kept.take(now, level)
                account()
                if taken is not None:
                    registration, sequence = map(int, taken.split("."))
                    assert standing[registration] >= level
                    assert naive.first(registration)[1] == sequence
                    assert naive.remove(registration, sequence)[3] > now
                    received.append((registration, sequence))
            case ("least", _) if len(kept.queue):
                least = min(row[2] for row in naive.rows)
                oldest = next(row for row in naive.rows if row[2] == least)
                assert _id(kept.queue.drop_least()) == f"{oldest[0]}.{oldest[1]}"
                naive.rows.remove(oldest)
                dropped += 1
            case ("wait", seconds):
                now += seconds
            case ("expire", _):
                kept.queue.expire(now)
                account()
                assert all(row[3] > now for row in naive.rows)
            case ("settings", which):
                contract.settings = Settings(importance=max(3, which), deadline=deadline, replace="//track")
                for row in naive.rows:
                    row[2] = by_object(_waiting(0, 0, size=row[5]).parcel).importance
                kept.queue.refresh(now)
        account()
        assert len(kept.queue) == len(naive.rows)
        assert kept.queue.levels == sum(1 << level for level in set(naive.levels().values()))
    for registration in (1, 2, 3):
        mine = [sequence for whose, sequence in received if whose == registration]
        assert mine == sorted(mine)
    assert len(received) + dropped + causes.total() + len(kept.queue) == sequences.total()
