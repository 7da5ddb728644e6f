"""Moments as people give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.protocol.requests import Start
from jbi_pubsub.subscriber.moments import Moment, seconds_at, start_at

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-11-01T00:00Z", 1_793_491_200.0),
        ("2026-11-01", 1_793_491_200.0),
        ("2026-11-01T01:00:00+01:00", 1_793_491_200.0),
        ("2026-11-01 00:00:00.5Z", 1_793_491_200.5),
        ("2026-10-31T24:00:00Z", 1_793_491_200.0),
        ("20261031T2400Z", 1_793_491_200.0),
        ("2026-10-31 24:00+01:00", 1_793_487_600.0),
        (datetime(2026, 11, 1, tzinfo=UTC), 1_793_491_200.0),
        (datetime(2026, 11, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1_793_491_200.0),
        ("2h", NOW - 7_200),
        ("1d12h", NOW - 129_600),
        ("1.5h", NOW - 5_400),
        (" 90s ", NOW - 90),
        ("0s", NOW),
        ("9999999w", 0.0),
    ],
)
def test_a_moment_is_a_time_or_so_long_ago(given: Moment, expected: float) -> None:
    assert seconds_at(given, now=NOW, what="since") == expected


@pytest.mark.parametrize(
    "given",
    [
        "", "yesterday", "2h ago", "-2h", "2", "1e9h", "2026-13-01T00:00Z", "2026-02-30", "2026-11-01T00:00",
        "1969-12-31T23:59:59Z", "\u0662h", datetime(2026, 11, 1), "2026-11-01T00:00Z\x00", "h",  # noqa: DTZ001  # no zone
        "2026-11-01T24:01Z", "9999-12-31T24:00Z", "2026-11-01T00:00+24:00", "\ud800",
    ],
)  # fmt: skip
def test_what_is_no_moment_is_refused_with_an_example(given: Moment) -> None:
    with pytest.raises(ConfigurationError, match="since") as refused:
        seconds_at(given, now=NOW, what="since")
    assert refused.value.hint


@pytest.mark.parametrize(("given", "why"), [("1900-01-01T00:00Z", "before 1970"), ("9999-01-01T00:00Z", "after the")])
def test_a_time_that_can_not_be_asked_for_is_told_on_its_side(given: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        seconds_at(given, now=NOW, what="since")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, Start()),
        ("new", Start()),
        ("now", Start("after", after=MAX_POSITION)),
        ("all", Start("all")),
        ("last", Start("last")),
        ("2h", Start("since", since=NOW - 7_200)),
        (123_456, Start("after", after=123_456)),
        ("123456", Start("after", after=123_456)),
        (0, Start("after", after=0)),
    ],
)
def test_a_subscription_begins_where_it_is_told_to(given: Moment | int | None, expected: Start) -> None:
    assert start_at(given, now=NOW) == expected


@pytest.mark.parametrize("given", ["none", "ALL ", -1, 2**63, "9" * 40])
def test_where_nothing_can_begin_is_refused(given: Moment | int) -> None:
    with pytest.raises(ConfigurationError, match="start"):
        start_at(given, now=NOW)


def test_the_newest_of_each_key_is_for_last_alone() -> None:
    assert start_at("last", now=NOW, latest_by="/m/id") == Start("last", latest_by="/m/id")
    with pytest.raises(ConfigurationError, match="latest_by"):
        start_at("all", now=NOW, latest_by="/m/id")
