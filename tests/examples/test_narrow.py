"""A link that is too narrow for all: what is to come true of it."""

from __future__ import annotations

import msgspec
import pytest

from jbi_pubsub.examples.narrow import LIMIT, WIRE_BYTES, LinkArrivals, narrow, outcome

SECONDS = 40.0


def _counted(
    mode: str, important: float, normal: float, *, late: float = 1.0, sent: float = 1.0, efficiency: float = 0.96
) -> LinkArrivals:
    """A run in which so many came a second, evenly."""
    came = [
        (n / rate, name, int(efficiency * WIRE_BYTES), delay)
        for name, rate, delay in (("important", important, 1.0), ("normal", normal, late))
        for n in range(round(rate * SECONDS))
    ]
    return LinkArrivals(mode, SECONDS, sorted(came), round(LIMIT / 8 * SECONDS * sent))


GOOD = {
    "alike": [_counted("alike", 6.25, 6.25)],
    "fair": [_counted("fair", 25 / 3, 25 / 6, late=2.0)],
    "strict": [_counted("strict", 12.5, 0)],
}


def test_all_promises_hold_when_shares_are_as_they_are_to_be() -> None:
    found = outcome(GOOD, LIMIT, [])
    assert [promise.says for promise in found.promises if not promise.kept] == []
    assert found.right
    assert [row[0] for row in found.tables[0].rows] == ["alike", "fair", "strict"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (_counted("fair", 7.0, 5.5, late=2.0), "fair: important objects"),
        (_counted("fair", 25 / 3, 25 / 6, late=1.2), "fair: latency"),
        (_counted("strict", 12.3, 0.2), "strict: normal"),
        (_counted("alike", 8.0, 4.5), "alike: important by normal"),
        (_counted("strict", 12.5, 0, sent=1.02), "strict: of the limit"),
        (_counted("strict", 11.0, 0, sent=0.9), "strict: important"),
        (_counted("strict", 12.5, 0, efficiency=0.94), "strict: efficiency"),
    ],
)
def test_a_share_that_is_missed_is_told(wrong: LinkArrivals, says: str) -> None:
    found = outcome(GOOD | {wrong.mode: [wrong]}, LIMIT, [])
    assert not found.right
    assert any(promise.says.startswith(says) for promise in found.promises if not promise.kept)


def test_a_second_that_carries_more_than_the_limit_is_told() -> None:
    good = GOOD["strict"][0]
    crowded = msgspec.structs.replace(good, came=[*good.came, *[(20.5, "important", 2_880, 1.0)] * 5])
    found = outcome(GOOD | {"strict": [crowded]}, LIMIT, [])
    assert any("fullest" in promise.says for promise in found.promises if not promise.kept)


@pytest.mark.row("Q-77", "Q-79")
@pytest.mark.processes
@pytest.mark.slow
def test_real_processes_share_a_narrow_link_by_importance() -> None:
    counted = narrow("fair", LIMIT, 8.0)
    assert counted.rate("important") / counted.rate("normal") == pytest.approx(2.0, rel=0.1)
    assert 0.95 <= counted.sent * 8 / counted.seconds / LIMIT <= 1.02
    assert counted.efficiency >= 0.95
