"""A step of a thread that fails in a way nobody expected: logged, counted, and the loop goes on."""

from __future__ import annotations

import logging

import pytest

from jbi_pubsub.core.guard import TOLD_WHOLE, faults, guarded


def test_a_step_that_fails_is_counted_and_the_next_one_is_done(caplog: pytest.LogCaptureFixture) -> None:
    done = []
    with caplog.at_level(logging.ERROR):
        for n in range(3):
            with guarded("a loop of this test"):
                if n == 1:
                    raise KeyError("gone")
                done.append(n)
    assert done == [0, 2]
    assert faults()["a loop of this test"] == 1
    assert "a loop of this test failed and continues: KeyError: 'gone'" in caplog.text
    assert "Traceback" in caplog.text


def test_many_faults_of_a_kind_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            with guarded("a loop that always fails"):
                raise ValueError("again")
    assert faults()["a loop that always fails"] == 1000
    assert len(caplog.records) <= TOLD_WHOLE + 10


def test_the_end_of_the_process_is_no_fault() -> None:
    with pytest.raises(KeyboardInterrupt), guarded("a loop that is interrupted"):
        raise KeyboardInterrupt
    assert "a loop that is interrupted" not in faults()
