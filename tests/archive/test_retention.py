"""What goes by the rules, from the newest back; decided a volume at once it is the same as one by one."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from jbi_pubsub.archive.retention import STAYS, Item, Retention, holdings, is_worth
from jbi_pubsub.core.history import KeepRule

NOW = 1_000_000.0


def items(count: int, *, kind: str = "track", step: float = 10.0) -> list[Item]:
    """Newest first: received `step` seconds apart, 100 bytes each, 40 of them payload."""
    return [Item(n, NOW - (count - n) * step, kind, "1.0", 100, 40, str(n % 3)) for n in range(count, 0, -1)]


def stay(rule: KeepRule, of: list[Item], **options: int) -> list[int]:
    retention = Retention([rule], NOW, **options)
    return [item.position for item in of if retention.one(item) == ""]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (KeepRule(types=("track",), age=25.0), [10, 9, 8]),
        (KeepRule(types=("track",), count=4), [10, 9, 8, 7]),
        (KeepRule(types=("track",), bytes=350), [10, 9, 8]),
        (KeepRule(types=("track",), latest_by="/m/key"), [10, 9, 8]),
        (KeepRule(types=("track",), age=25.0, count=2), [10, 9]),
        (KeepRule(types=("track",), age=1e9, count=0), list(range(10, 0, -1))),
        (KeepRule(types=("t*",), count=1), [10]),
        (KeepRule(types=("Track", "other"), count=1), list(range(10, 0, -1))),
    ],
)
def test_beyond_any_limit_an_object_goes(rule: KeepRule, kept: list[int]) -> None:
    assert stay(rule, items(10)) == kept


def test_the_first_rule_that_names_a_type_holds_and_the_reason_is_told() -> None:
    retention = Retention([KeepRule(types=("trac?",), count=1), KeepRule(types=("*",), age=15.0)], NOW)
    assert [retention.one(item) for item in items(3)] == ["", "count", "count"]
    assert [retention.one(item) for item in items(3, kind="other")] == ["", "", "age"]


def test_versions_are_counted_each_for_itself() -> None:
    retention = Retention([KeepRule(types=("*",), count=1)], NOW)
    two = [Item(n, NOW, "track", version, 1, 0) for n, version in ((4, "1.0"), (3, "2.0"), (2, "1.0"), (1, "2.0"))]
    assert [retention.one(item) for item in two] == ["", "", "count", "count"]


def test_what_durable_subscriptions_have_not_had_stays() -> None:
    assert stay(KeepRule(types=("*",), count=2, until_durables=True), items(10), had=5) == [10, 9, 8, 7, 6]
    assert stay(KeepRule(types=("*",), until_durables=True), items(10), had=8) == [10, 9]
    assert stay(KeepRule(types=("*",), latest_by="k", until_durables=True), items(10), had=5) == [10, 9, 8, 7, 6]
    assert stay(KeepRule(types=("*",), until_durables=True), items(10)) == []


def test_of_an_old_object_the_payload_may_go_alone() -> None:
    retention = Retention([KeepRule(types=("*",), payload_age=15.0, age=35.0)], NOW)
    assert [retention.one(item) for item in items(6)] == ["", "", "payload_age", "payload_age", "age", "age"]


def test_the_newest_of_each_key_stays_whatever_the_bounds_say() -> None:
    rule = KeepRule(types=("*",), latest_by="/m/key", age=10.0)
    retention = Retention([rule], NOW)
    assert retention.one(Item(5, NOW + 5_000, "t", "1", 1, 0, "a")) == ""  # of a clock that is ahead
    assert retention.one(Item(4, NOW, "t", "1", 1, 0, "a")) == ""
    assert retention.one(Item(3, NOW - 20, "t", "1", 1, 0, "b")) == ""
    assert retention.one(Item(2, NOW - 20, "t", "1", 1, 0, "b")) == "age"
    assert retention.one(Item(1, NOW - 20, "t", "1", 1, 0, "")) == "age"
    # and without bounds all others go
    retention = Retention([KeepRule(types=("*",), latest_by="/m/key")], NOW)
    assert retention.one(Item(2, NOW, "t", "1", 1, 0, "b")) == ""
    assert retention.one(Item(1, NOW, "t", "1", 1, 0, "")) == "latest_by"


def test_a_volume_decided_at_once_is_as_its_objects_are_one_by_one() -> None:
    rng = random.Random(5)
    at_once = 0
    for _ in range(400):
        # Given volumes of objects of some types, and a rule
        rule = KeepRule(
            types=("a", "b"),
            age=rng.choice([None, 200.0, 500.0]),
            count=rng.choice([None, 0, 5, 30]),
            bytes=rng.choice([None, 500, 2_000]),
            payload_age=rng.choice([None, None, 100.0]),
            until_durables=rng.random() < 0.3,
        )
        had = rng.randrange(0, 80)
        volumes, position = [], 80
        while position > 0:
            count = min(position, rng.randrange(1, 20))
            volumes.append(
                [
                    Item(p, NOW - (80 - p) * 10, rng.choice("abc"), "1", rng.randrange(1, 200), 0)
                    for p in range(position, position - count, -1)
                ]
            )
            position -= count
        alone, together = Retention([rule], NOW, had), Retention([rule], NOW, had)
        for volume in volumes:
            expected = {item.position: alone.one(item) for item in volume}
            # When what can be is decided at once
            for holding in holdings(volume):
                these = [item for item in volume if item.type == holding.type]
                fate = together.whole(holding)
                at_once += fate is not None
                for item in these:
                    found = together.one(item) if fate is None else fate
                    # Expect the same
                    goes = found not in ("", "payload_age")
                    assert goes == (expected[item.position] not in ("", "payload_age")), (rule, holding, item)
                    if not goes:
                        assert found == expected[item.position]
    assert at_once > 1_000


def test_a_volume_is_made_anew_for_half_of_it() -> None:
    assert not is_worth(10, 0, 100, 0)
    assert not is_worth(10, 4, 100, 40)
    assert is_worth(10, 5, 100, 0)
    assert is_worth(10, 1, 100, 50)


def test_keys_may_be_as_long_as_documents() -> None:
    # Given a thousand different keys of 64 KB
    retention = Retention([KeepRule(latest_by="/m/key")], NOW)
    tracemalloc.start()
    try:
        fates = {retention.one(Item(n, NOW, "t", "1", 1, 0, f"{n}" + "x" * 65_536)) for n in range(1_000, 0, -1)}
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Expect the newest of each to stay, and what is remembered of them to be small
    assert fates == {STAYS}
    assert size < 1_000_000
