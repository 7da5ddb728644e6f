"""Numbers that a bridge gives where the other side has none."""

from __future__ import annotations

from pathlib import Path

import pytest

from jbi_pubsub.bridge.plain import TimedNumbers

NOW = 1_800_000_000.0


def test_numbers_are_times_and_grow(tmp_path: Path) -> None:
    # Given a clock that stands, and then goes back
    now = [NOW, NOW, NOW - 3_600.0, NOW + 5.0]
    numbers = TimedNumbers(tmp_path / "n", lambda: now.pop(0))
    # When numbers are taken, expect the time, or one more than the last
    start = int(NOW * 1e6)
    assert [numbers.next() for _ in range(4)] == [start, start + 1, start + 2, start + 5_000_000]


def test_a_process_goes_on_behind_the_numbers_of_the_one_before(tmp_path: Path) -> None:
    # Given numbers that a process has given while the clock was an hour ahead
    before = TimedNumbers(tmp_path / "n", lambda: NOW + 3_600.0)
    last = [before.next() for _ in range(3)][-1]
    # When another one comes, with the clock right, expect its own to be beyond
    after = TimedNumbers(tmp_path / "n", lambda: NOW)
    assert last < after.next() < last + 2_000_000


def test_processes_that_take_turns_do_not_run_away_from_the_clock(tmp_path: Path) -> None:
    # Given two with the same file, and a clock that goes on
    now = [NOW]
    both = [TimedNumbers(tmp_path / "n", lambda: now[0]) for _ in range(2)]
    # When they give numbers in turn for a while
    given = []
    for turn in range(200):
        now[0] += 0.1
        given.append(both[turn % 2].next())
    # Expect them near the time
    assert max(given) < (now[0] + 3.0) * 1e6


@pytest.mark.parametrize("text", [b"", b"x", b"\xff"])
def test_a_note_that_says_nothing_is_none(tmp_path: Path, text: bytes) -> None:
    # Given a file that is none of ours, expect the time
    (tmp_path / "n").write_bytes(text)
    assert TimedNumbers(tmp_path / "n", lambda: NOW).next() == int(NOW * 1e6)


def test_a_folder_that_can_t_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Given a folder that there is not
    now = [NOW]
    numbers = TimedNumbers(tmp_path / "gone" / "n", lambda: now[0])
    # When numbers are taken for a while
    for _ in range(3):
        now[0] += 2.0
        assert numbers.next() == int(now[0] * 1e6)
    # Expect to hear of it once
    assert [record.args[0] for record in caplog.records if record.args] == [tmp_path / "gone" / "n"]
