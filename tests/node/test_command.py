"""`jbi node` as a person uses it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from jbi_pubsub.cli.app import jbi, run
from jbi_pubsub.cli.node import _resident as resident
from jbi_pubsub.node.identity import is_held, running

pytestmark = pytest.mark.processes

DATA = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"
FLAGS = ("--no-multicast", "--set", "lookup.port=0", "--set", "node.archive=false")


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """said("node", "status") runs it in this process: exit code, stdout, stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(list(arguments))
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.mark.row("G-20")
def test_start_status_stop(start: Callable[..., Any], said: Callable[..., Any], tmp_path: Path) -> None:
    # Given a node as a process of its own
    folder = str(tmp_path / "f")
    process = start(*FLAGS, "node", "start", "--folder", folder, "--name", "laptop", "--json")
    ready = process.fact()
    assert (ready["ready"], ready["name"]) == ("node", "laptop")
    # When it is looked at, expect what it said of itself
    code, out, _ = said("node", "status", "--folder", folder, "--json")
    told = json.loads(out)
    assert (code, told["id"], told["pid"], told["status"]["location"]) == (0, ready["id"], ready["pid"], "laptop")
    assert resident(ready["pid"]) < 85 << 20, "without an archive a node takes 55 MB when it is idle"
    code, out, _ = said("node", "status", "--folder", folder)
    assert re.search(r"sequences\t[01] registrations?, 0 subscriptions", out)  # its own events may be registered by now
    # When it is stopped, expect that it is gone, its folder free, and its exit code 0
    assert said("node", "stop", "--folder", folder) == (0, "node laptop has stopped\n", "")
    assert process.wait() == 0
    assert not is_held(Path(folder))
    code, out, err = said("node", "status", "--folder", folder)
    assert (code, out) == (1, "")
    assert "no node runs in" in err


def test_a_relative_folder_without_a_node_is_told_with_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = said("node", "status", "--folder", "laptop")
    assert code == 1
    assert f"no node runs in {tmp_path / 'laptop'}" in err


def test_a_node_goes_on_from_a_copy_of_its_folder(
    start: Callable[..., Any], said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a node that has archived something, and was copied when it had stopped
    folder, copy, exported = tmp_path / "f", tmp_path / "copy", tmp_path / "all.jsonl"
    kept = ("--no-multicast", "--set", "lookup.port=0", "--set", "archive.reserve=0")
    flags = (*kept, "node", "start", "--name", "tent-3", "--json", "--folder")
    first = start(*flags, str(folder))
    ready = first.fact()
    at = ("--no-multicast", "--locator", ready["lookup"], "--node", "tent-3")
    schema = ("--schema", str(DATA / "Intel_Imagery.xsd"), "--metadata", str(DATA / "fig1.xml"))
    code, _, err = said(*at, "publish", *schema, "--count", "3", "--persist")
    assert code == 0, err
    assert said(*at[:3], "archive", "export", str(exported))[0] == 0
    assert said("node", "stop", "--folder", str(folder))[0] == 0
    assert first.wait() == 0
    shutil.copytree(folder, copy)
    shutil.rmtree(folder)
    # When one is started from the copy
    again = start(*flags, str(copy)).fact()
    # Expect it to be the same, with what it had
    assert again["id"] == ready["id"]
    assert again["epoch"] > ready["epoch"]
    at = ("--no-multicast", "--locator", again["lookup"], "--node", "tent-3")
    code, out, err = said(*at, "query", "--count-only", "--json")
    assert code == 0, err
    assert json.loads(out)["count"] == 3
    # and an export of it to bring nothing that is there already
    code, out, err = said(*at, "archive", "import", str(exported), "--json")
    assert (code, json.loads(out)["known"]) == (0, 3), err
    assert json.loads(said(*at, "query", "--count-only", "--json")[1])["count"] == 3


def test_a_node_is_meant_by_its_name(
    start: Callable[..., Any], said: Callable[..., Any], eventually: Callable[..., Any], tmp_path: Path
) -> None:
    # Given two nodes that know each other
    first = start(*FLAGS, "node", "start", "--folder", str(tmp_path / "a"), "--name", "tent-3", "--json").fact()
    there = ("--no-multicast", "--locator", first["lookup"], "--set", "lookup.timeout=20")
    own = (*there, "--set", "node.lookup=join", "--set", "node.archive=false")
    # of which one was killed, and is back while its lease goes on
    killed = start(*own, "node", "start", "--folder", str(tmp_path / "b"), "--name", "tent-4", "--json")
    before = killed.fact()["address"]
    killed.end(kill=True)
    second = start(*own, "node", "start", "--folder", str(tmp_path / "b"), "--name", "tent-4", "--json").fact()
    assert second["address"] != before
    eventually(lambda: second["address"] in said(*there, "services", "--json")[1])
    schema = ("--schema", str(DATA / "Intel_Imagery.xsd"), "--metadata", str(DATA / "fig1.xml"))
    # When somebody publishes at one of them
    code, out, err = said(*there, "--node", "tent-4", "publish", *schema, "--count", "3")
    assert (code, out[:19]) == (0, "published 3 objects"), err
    # Expect it there, and to be asked by name, as by address
    for name, facts, published in (("tent-3", first, 0), ("tent-4", second, 3)):
        (seen,) = json.loads(said(*there, "--node", name, "status", "--json")[1])
        assert (seen["address"], seen["published"]) == (facts["address"], published)
        assert json.loads(said(*there, "--node", name, "node", "details", "--json")[1])["name"] == name
        told = json.loads(said(*there, "--node", name, "node", "status", "--json")[1])
        assert (told["name"], told["address"], told["status"]["published"]) == (name, facts["address"], published)
        assert said(*there, "--node", name, "node", "status")[1].startswith(f"node\t{name} ")
    code, out, _ = said(*there, "--node", "tent-3", "types", "list")
    assert (code, "Intel_Imagery" in out) == (0, False)
    # And whoever has mistyped it, or named it where it means nothing, told
    for words, why, code in (
        (("--node", "tend-3", "status"), "no node tend-3; did you mean tent-", 1),
        (("--node", "tend-3", "node", "clients"), "no node tend-3; did you mean tent-", 1),
        (("--node", "tend-3", "publish", *schema), "no node tend-3; did you mean tent-", 1),
        (("--node", "tent-3", "doctor"), "this command asks no single node", 2),
        (("--node", "tent-3", "node", "start"), "this command asks no single node", 2),
        (("--node", "tent-3", "publish", "--peer", *schema), "give either", 2),
        (("--node", "tent-3", "types", "list", "--at", first["address"]), "or was told whom to ask", 2),
    ):
        got, out, err = said(*there, *words)
        assert (got, out, err.count("\n")) == (code, "", 1), (words, err)
        assert why in err
    # When a second one has that name; Expect neither to be taken for the one that was meant
    start(*own, "node", "start", "--folder", str(tmp_path / "c"), "--name", "tent-4", "--json").fact()
    eventually(lambda: said(*there, "--node", "tent-4", "status")[0] == 1)  # the lookup service knows of it
    for words in (("publish", *schema), ("types", "list"), ("status",)):
        got, out, err = said(*there, "--node", "tent-4", *words)
        assert (got, out, "2 nodes are called tent-4" in err) == (1, "", True), (words, err)


def test_a_shell_completes_the_names_of_nodes(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given a node; When a shell asks for what may follow --node, expect its name, or nothing where nobody answers
    facts = start(*FLAGS, "node", "start", "--folder", str(tmp_path / "a"), "--name", "tent-3", "--json").fact()
    monkeypatch.setenv("JBI_LOOKUP_MULTICAST", "false")
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", facts["lookup"])
    complete = ShellComplete(jbi, {}, "jbi", "_JBI_COMPLETE")
    names = eventually(lambda: complete.get_completions(["--node"], "te"))  # it waits half a second alone
    assert [item.value for item in names] == ["tent-3"]
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", "127.0.0.1:1")
    assert complete.get_completions(["--node"], "") == []


def test_killed_it_leaves_a_folder_that_says_so(
    start: Callable[..., Any], said: Callable[..., Any], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a node that was killed
    process = start(*FLAGS, "node", "start", "--folder", str(tmp_path), "--json")
    first = process.fact()
    os.kill(first["pid"], signal.SIGKILL)
    process.wait(60.0)
    # Expect that nobody takes it for one that runs, once its child processes have ended too, though its file is still
    # there, and the next one has its id
    eventually(lambda: running(tmp_path) is None)
    assert said("node", "stop", "--folder", str(tmp_path))[0] == 1
    again = start(*FLAGS, "node", "start", "--folder", str(tmp_path), "--json").fact()
    assert again["id"] == first["id"]
    assert again["epoch"] > first["epoch"]


def test_who_ends_its_lookup_service_ends_a_node(
    start: Callable[..., Any], said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a node; When an administrator destroys its lookup service, expect that it ends in order
    process = start(*FLAGS, "node", "start", "--folder", str(tmp_path), "--json")
    lookup = process.fact()["lookup"]
    assert said("lookup", "admin", "--at", lookup, "destroy", "--yes")[0] == 0
    assert process.wait() == 0
    assert not is_held(tmp_path)


def test_in_the_background(said: Callable[..., Any], tmp_path: Path) -> None:
    # Given a node with a gateway that was started in the background
    http = ("--set", "node.gateway=true", "--set", "gateway.port=0")
    code, out, err = said(*FLAGS, *http, "node", "start", "--detach", "--folder", str(tmp_path), "--json")
    assert (code, err) == (0, "")
    try:
        # Expect its address wherever it is told of
        url = json.loads(out)["gateway"]
        assert url.startswith("http://127.0.0.1:")
        assert running(tmp_path).gateway == url
        assert f"gateway\t{url}\n" in said("node", "status", "--folder", str(tmp_path))[1]
        # Expect it ready, with its log in the folder; a second one there says why it is not
        assert json.loads(out)["pid"] == running(tmp_path).pid
        assert "is ready, epoch " in (tmp_path / "node.log").read_text()
        code, out, err = said(*FLAGS, "node", "start", "--detach", "--folder", str(tmp_path))
        assert (code, out) == (1, "")
        assert "is the folder of a node that runs" in err
    finally:
        assert said("node", "stop", "--folder", str(tmp_path))[0] == 0


@pytest.mark.row("G-19")
@pytest.mark.parametrize(
    ("setting", "code", "told"),
    [
        ("node.lookup=both", 2, "It takes own or join"),
        ("node.statistics_seconds=-1", 2, "node.statistics_seconds"),
        ("node.folde=x", 2, "Did you mean node.folder?"),
        ("types.folder=ldap://x", 2, "no plug-in 'ldap' keeps type repositories"),
        ("archive.folder=cloud://x", 2, "no plug-in 'cloud' keeps archives"),
        ("policy.file=sso://x", 2, "no plug-in 'sso' says who may do what"),
        ("log.level=loud", 2, "It takes debug, info, warning or error"),
        ("pad.hosts=127.0.0.1,10.255.255.1", 2, "without TLS"),
    ],
)
def test_what_cannot_be_is_told_by_its_name(
    said: Callable[..., Any], tmp_path: Path, setting: str, code: int, told: str
) -> None:
    # Given a setting that can't be; When a node is started, expect one line that names it, and nothing that stays
    found = said(*FLAGS, "--set", setting, "node", "start", "--folder", str(tmp_path / "f"))
    assert (found[0], found[1], len(found[2].splitlines())) == (code, "", 1), found
    assert told in found[2]
    assert not is_held(tmp_path / "f")


@pytest.mark.parametrize("library", ["duckdb", "numpy"])
def test_without_the_libraries_of_an_archive_it_says_which_extra_or_setting(
    said: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    code, out, err = said("--no-multicast", "--set", "lookup.port=0", "node", "start", "--folder", str(tmp_path / "f"))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert library in err
    assert "jbi-pubsub[archive]" in err
    assert "archive = false" in err
    assert not is_held(tmp_path / "f")
