"""Screens that refresh, in a pseudo-terminal: nothing flickers, and the terminal is left as it was."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

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


def test_after_ctrl_c_the_terminal_is_as_it_was(terminal: Callable[..., Any], address: str) -> None:
    with terminal(*LOOK, address, "--watch") as screen:
        screen.until("lookup at")
        screen.press("\x03")
        assert screen.ends() == 130
        assert screen.is_restored()
        assert "Traceback" not in screen.output
