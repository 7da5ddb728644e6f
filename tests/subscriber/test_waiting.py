"""Subscriptions that wait are looked at again, by a thread that ends with its adapter, started or not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.core import guard, ticker
from jbi_pubsub.subscriber import table as waiting
from jbi_pubsub.subscriber.table import UnmatchedSubscriptions


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "AGAIN_FIRST", 0.01)
    monkeypatch.setattr(waiting, "AGAIN_MOST", 0.01)


def test_who_waits_is_looked_at_until_it_need_not_be(eventually: Callable[..., Any], left_over: Any) -> None:
    # Given two that wait; When one has what it waits for at the third look
    looks: list[str] = []

    def look(uid: str) -> bool:
        looks.append(uid)
        return uid == "a" and looks.count("a") == 3

    made = UnmatchedSubscriptions(look)
    made.add("a")
    made.add("b")
    # Expect it to be left alone from then on, and the other to be looked at
    eventually(lambda: looks.count("b") > 5)
    assert looks.count("a") == 3
    made.stop()
    assert left_over.names() == []
    made.add("c")
    assert "c" not in looks


def test_a_look_that_fails_ends_nothing(eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a look that raises what nobody expects
    monkeypatch.setattr(guard, "_faults", guard._faults.copy())
    looks: list[str] = []

    def look(uid: str) -> bool:
        looks.append(uid)
        raise ZeroDivisionError

    made = UnmatchedSubscriptions(look)
    made.add("a")
    # Expect it to be tried again
    eventually(lambda: len(looks) > 2)
    made.stop()


def test_a_thread_that_a_signal_has_kept_from_starting_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a signal whose handler ends the process while the thread is being started
    def interrupted(_thread: threading.Thread) -> None:
        raise SystemExit(143)

    monkeypatch.setattr(ticker, "_OF_PROCESS", ticker.Ticker())  # that of the process may have its thread
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    made = UnmatchedSubscriptions(lambda _: True)
    with pytest.raises(SystemExit):
        made.add("a")
    # Expect the end to be in order
    made.stop()
