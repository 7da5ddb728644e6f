"""docs/access.md says what is so: each block is a file that can be used, or commands that were run."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.policy.access import access_rules, review
from jbi_pubsub.policy.context import ACTIONS
from jbi_pubsub.policy.file import parse

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs" / "access.md").read_text()


def blocks(language: str, before: str = "") -> list[tuple[str, str]]:
    """What stands in a comment before each block of a language, and the block."""
    pattern = rf"(?:<!-- ({before}[^\n]*) -->\n)?```{language}\n(.*?)```"
    return [(said or "", text) for said, text in re.findall(pattern, PAGE, re.DOTALL)]


@pytest.mark.parametrize("text", [text for _, text in blocks("toml")])
def test_every_policy_of_the_page_can_be_used_as_it_stands(text: str) -> None:
    document = parse(text, "policy.toml")
    rules = access_rules(document)
    review(document, rules)
    assert [document.told(problem) for problem in document.problems if problem.is_error] == []
    assert rules.rules


def test_the_page_names_every_action() -> None:
    table = PAGE.partition("## Actions")[2].partition("## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= set(ACTIONS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page."""
    for said, text in blocks("toml"):
        if said.startswith("file: "):
            (tmp_path / said.removeprefix("file: ")).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.processes
def test_the_session_of_the_page_runs_as_it_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ((_, session),) = blocks("console")
    for said in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, expected = said.partition("\n")
        if command.startswith("jbi "):
            with suppress(SystemExit):
                run(shlex.split(command)[1:])
            seen = capsys.readouterr().out
        else:
            seen = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout
        shown = fnmatch.translate(re.sub(r"([\[\]*?])", r"[\1]", expected).replace("...", "*"))
        assert re.match(shown, seen), f"{command}\n{seen}"


@pytest.mark.processes
def test_the_first_commands_of_the_page_do_what_it_says(
    folder: Path, start: Callable[..., Any], eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given the commands, at a port that nobody else has
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("JBI_LOOKUP_PORT", str(port))
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", f"127.0.0.1:{port}")
    shutil.copytree(TOP / "examples" / "data", folder / "examples" / "data")
    ((_, script),) = (block for block in blocks("sh") if block[0] == "run: first")
    # When they are run one after the other; those in the background are waited for, as people do
    background = []
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removesuffix("&"))
        if words[0] == "export":
            for setting in words[1:]:
                monkeypatch.setenv(*setting.split("=", 1))
        elif words[0] == "cat":
            eventually(lambda: "alert" in (folder / words[1]).read_text())  # noqa: B023  # called here
        else:
            process = start(*words[1:])
            if line.endswith("&"):
                background.append(process)
                if words[1] in ("lookup", "pad"):
                    assert process.stdout.readline()
            else:
                assert process.wait() == 0, process.stderr()
    # Expect the image to come to the first subscriber
    assert background[2].wait() == 0, background[2].stderr()
    assert "Intel_Imagery" in background[2].stdout.read()
    # Expect the other one to be refused, and told
    eventually(lambda: "may not subscribe" in background[3].stderr(), what=background[3].stderr)
    # Expect the audit log to say so, as on the page
    ((_, shown),) = blocks("json")
    said = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
    line = next(line for line in said if "alert" in line.get("type", ""))
    assert line.keys() == json.loads(shown).keys()
    assert (line["decision"], line["action"], line["component"], line["rule"]) == (
        "refused",
        "subscribe",
        "alpha@rome",
        "",
    )
