"""Screens that refresh, in a pseudo-terminal: nothing flickers, and the terminal is left as it was."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.cli.screen import LOGGED_MOST, Screen, keys_in

pytestmark = pytest.mark.processes

LOOK = ("--no-multicast", "status")
FRAME = re.compile(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[\?2026l", re.DOTALL)


@pytest.fixture
def address(federation: Any) -> str:
    federation.pad("alpha", "rome")
    return str(federation.lookups[0].address)


def test_watching_draws_over_what_is_there_and_leaves_the_last_behind(
    terminal: Callable[..., Any], address: str
) -> None:
    # When somebody watches in a terminal
    with terminal(*LOOK, address, "--watch", "--count", "3", "--every", "0.1", columns=60) as screen:
        assert screen.ends() == 0
        frames = FRAME.findall(screen.output)
        # Expect a frame a look, in one go, on the other screen, never an empty one before it
        assert len(frames) == 3
        assert "\x1b[2J" not in screen.output
        for frame in frames:
            lines = re.sub(r"\x1b\[[KJ]", "", frame).replace("\r\r", "\r").split("\r\n")
            assert "\x1b" not in "".join(lines)
            assert max(map(len, lines)) <= 60
        # Expect the terminal as it was, with the last tables to be read
        assert screen.is_restored()
        *_, left = screen.output.split("\x1b[?1049l")
        assert "lookup at" in left
        assert "lookups/s" in left


def test_a_terminal_that_knows_lines_alone_gets_lines(terminal: Callable[..., Any], address: str) -> None:
    watching = ("--watch", "--count", "2", "--every", "0.1")
    with terminal(*LOOK, address, *watching, TERM="dumb", NO_COLOR="1") as screen:
        assert screen.ends() == 0
        assert "\x1b" not in screen.output
        assert screen.output.count("lookup at") == 2


def test_keys_that_come_together_are_told_one_by_one() -> None:
    assert keys_in("2s\x1b[A\x1bOB\x1b[5~q") == ["2", "s", "up", "down", "page up", "q"]
    assert keys_in("\x1b") == ["escape"]
    assert keys_in("\x1b[15~é") == ["\x1b[15~", "é"]


def test_what_is_logged_meanwhile_is_told_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    # Given a screen on which somebody looks
    log = logging.getLogger("jbi_pubsub.test")
    with Screen():
        for number in range(LOGGED_MOST + 5):
            log.warning("no mDNS on %d", number)
        assert "no mDNS" not in caplog.text
    # Expect the last of it when it is left
    assert caplog.text.count("no mDNS") == LOGGED_MOST
    assert f"no mDNS on {LOGGED_MOST + 4}" in caplog.text


def test_after_ctrl_c_the_terminal_is_as_it_was(terminal: Callable[..., Any], address: str) -> None:
    with terminal(*LOOK, address, "--watch") as screen:
        screen.until("lookup at")
        screen.press("\x03")
        assert screen.ends() == 130
        assert screen.is_restored()
        assert "Traceback" not in screen.output
