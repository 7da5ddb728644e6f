"""What leases, health and discovery need of a link on which no object goes (paper section 3.1)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.config import LeaseSection, LookupSection

LINK = 7_200 * 60 / 8
"""Bytes a minute of the paper's slowest link."""
HEADERS = 3 * 52
"""Of the segments of a call: request, answer, acknowledgement."""


@pytest.mark.row("J-95")
def test_an_idle_subscriber_needs_less_than_a_tenth_of_the_slowest_link(scene: Any) -> None:
    # Given a subscriber that has subscribed and then gets nothing, with leases and probes much shorter than by default
    scene.leases(1.0)
    scene.set("lookup", probe=0.3)
    scene.open()
    link = scene.subscribers_link
    delegate, lookup = (int(at.rpartition(":")[2]) for at in (scene.node.address, scene.config.lookup.locators[0]))
    calls = {(delegate, "renew"), (lookup, "renew"), (lookup, "describe")}

    # When it has made each of its calls a few times
    before = {call: (link.traffic[call], link.answers[call]) for call in calls}
    scene.eventually(lambda: all(link.answers[call] >= before[call][1] + 3 for call in calls), what=link.answers)
    each = {call: (link.traffic[call] - size) / (link.answers[call] - count) for call, (size, count) in before.items()}

    # Expect that they need less than a tenth at the default terms, headers included: leases are renewed at 2/5 of
    # their term at delegates, at 7/8 at lookup services
    every = {
        (delegate, "renew"): LeaseSection().subscriber * 2 / 5,
        (lookup, "renew"): LeaseSection().lookup * 7 / 8,
        (lookup, "describe"): LookupSection().probe,
    }
    minute = sum((each[call] + HEADERS) * 60 / seconds for call, seconds in every.items())
    assert 500 < minute < LINK / 10
    scene.publish(b"after")
    assert scene.sequences(1) == [1]
    assert scene.account()["delivered"] == 1


@pytest.mark.row("J-95")
@pytest.mark.slow
@pytest.mark.processes
def test_the_tool_that_counts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given the tool that counts the bytes of idle parties over two terms of the default leases; Expect it to be content
    monkeypatch.setenv("JBI_CONFIG", os.devnull)
    tool = Path(__file__).parents[2] / "benchmarks" / "links.py"
    done = subprocess.run(
        [sys.executable, tool, "--leases", "60"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "share, with headers" in done.stdout
