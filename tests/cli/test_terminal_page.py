"""docs/terminal.md says what is so: its commands run, and have the tables that it shows."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.checks import CHECKS
from jbi_pubsub.cli.pages import PAGES

PAGE = (Path(__file__).parent.parent.parent / "docs" / "terminal.md").read_text()


def examples() -> list[tuple[str, str]]:
    """Each command of the page with what it shows."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [(command, shown) for block in blocks for command, shown in re.findall(r"\$ jbi (.*)\n([^$]*)", block)]


def heads(shown: str) -> dict[str, set[str]]:
    """Of each table its columns, by the first."""
    tables = re.findall(r"^(.*)\n-{3,}[- ]*$", shown, re.MULTILINE)
    columns = [re.split(r"\s{2,}", line.strip()) for line in tables]
    return {first: {first, *others} | heads_of(first, columns) for first, *others in columns}


def heads_of(first: str, columns: list[list[str]]) -> set[str]:
    """Two tables may begin with the same column."""
    return {head for line in columns if line[0] == first for head in line}


@pytest.fixture
def demo(federation: Any, figures: Any) -> str:
    """Something of all that the page shows; the address of the delegate."""
    pad = federation.pad("alpha", "rome")
    adapter = federation.light()
    registration = figures.register(adapter)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", recipients=["a@example.org"])
    assert subscriber.wait_matched(uid) == 1
    adapter.publish(registration, figures.figure_1)
    return str(pad.address)


@pytest.mark.processes
def test_the_commands_of_the_page_show_its_tables(
    demo: str, flags: list[str], said: Callable[..., Any], terminal: Callable[..., Any]
) -> None:
    for command, shown in examples():
        arguments = shlex.split(command)
        if command == "top":  # on a screen
            with terminal(*flags[:1], "top", "--server", demo) as screen:
                screen.until("alpha, rome")
                screen.press("q")
                assert screen.ends() == 0
            arguments = ["top", "--once"]
        fast = ("--every", "0.1") if arguments[0] == "top" else ()
        answer = said(*flags, *arguments, *fast)
        if arguments[0] == "doctor":
            told = json.loads(answer.out)["checks"] if "--json" in arguments else answer.out
            assert told
            continue
        assert answer.code == 0, (command, answer)
        lines = [line.split("\t") for line in answer.out.splitlines()]
        for first, columns in heads(shown).items():
            known = {head for line in lines if line[0] == first for head in line}
            assert columns <= known, (command, columns - known)


def test_the_page_names_all_pages_keys_and_checks() -> None:
    named = set(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    words = {word for cell in named for word in re.findall(r"`([\w]+)`", cell)}
    assert words >= {*PAGES, *CHECKS, "s", "r", "q"}
    # Expect the example of the doctor to have no check that there is not, and none to be missing
    [shown] = [shown for command, shown in examples() if command == "doctor"]
    assert set(re.findall(r"^(?:ok|-|WARNING|FAILURE)\s+(\w+)", shown, re.MULTILINE)) == set(CHECKS)
