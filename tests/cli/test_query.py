"""`jbi query`, `subscribe --from` and `--durable`, `subscriptions reset`: the past on the command line."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from histories import Past, an_object

from jbi_pubsub.core.errors import StorageError
from tests.test_pages import TOP, agree, blocks, commands

TIME = 1_790_000_000.0
"""2026-09-21T14:13:20Z."""


@pytest.fixture
def archive(federation: Any) -> Iterator[Callable[..., Past]]:
    """One more archive, with objects of these numbers, a second apart."""
    with ExitStack() as stack:

        def made(*numbers: int, **options: Any) -> Past:
            objects = [an_object(n, published=TIME + n, type_="mil.Image", **options) for n in numbers]
            past = Past(federation.config, objects, types="mil.Image")
            stack.callback(past.stop)
            return past

        yield made


def test_results_are_lines_that_other_programs_read(
    archive: Callable[..., Past], said: Any, flags: list[str], tmp_path: Path
) -> None:
    # Given two archives
    first = archive(1, 2, 3)
    archive(4, 5)
    # When they are asked, piped; Expect a head and a line for each, by time, with tabs
    shown = said(*flags, "query", "--type", "Image", "--predicate", "/m/n > 1")
    assert (shown.code, shown.err) == (0, "")
    lines = [line.split("\t") for line in shown.out.splitlines()]
    assert lines[0] == ["published", "type", "position", "metadata", "payload", "object"]
    assert [line[0] for line in lines[1:]] == [f"2026-09-21 14:13:{20 + n}Z" for n in (2, 3, 4, 5)]
    assert [line[2] for line in lines[1:]] == ["20", "30", "10", "20"]
    # As JSON, the newest first, some of them
    shown = said(*flags, "query", "--type", "Image", "--json", "--newest", "--limit", "2")
    assert [json.loads(line)["sequence"] for line in shown.out.splitlines()] == [5, 4]
    # Of a time
    shown = said(
        *flags, "query", "--type", "Image", "--since", "2026-09-21T14:13:23Z", "--until", "2026-09-21T14:13:24Z"
    )
    assert len(shown.out.splitlines()) == 3
    # How many
    assert said(*flags, "query", "--type", "Image", "--count-only").out == "5\n"
    assert json.loads(said(*flags, "query", "--type", "Image", "--count-only", "--json").out) == {"count": 5}
    # The newest of each key, written to files
    shown = said(*flags, "query", "--type", "Image", "--latest-by", "/m/key", "--out", "found")
    assert "3 objects written to found" in shown.err
    assert len(list((tmp_path / "found").glob("*.metadata.xml"))) == 3
    assert len(list((tmp_path / "found").glob("*.payload"))) == 3
    # How it would be answered
    shown = said(*flags, "query", "--type", "Image", "--explain")
    assert shown.out.count("archive\t127.0.0.1:") == 2
    assert len(json.loads(said(*flags, "query", "--explain", "--json").out)) == 2
    # Of one archive alone, and of who goes by a name
    shown = said(*flags, "query", "--type", "Image", "--at", first.address, "--publisher", "anna")
    assert len(shown.out.splitlines()) == 4
    assert first.queries[-1].publisher == "anna"


def test_more_than_a_hundred_results_are_not_shown_unasked(
    archive: Callable[..., Past], said: Any, flags: list[str]
) -> None:
    archive(*range(1, 151))
    shown = said(*flags, "query")
    assert len(shown.out.splitlines()) == 101
    assert "--limit" in shown.err
    assert len(said(*flags, "query", "--limit", "150").out.splitlines()) == 151


def test_an_archive_that_does_not_answer_is_named(archive: Callable[..., Past], said: Any, flags: list[str]) -> None:
    # Given two archives, one of which refuses, with words for the terminal
    archive(1)
    broken = archive(2)
    broken.refusal = StorageError("\x1b[2Jgone")
    # Expect what the other has, the name of the broken one, and an exit code that says so
    shown = said(*flags, "query", "--type", "Image")
    assert shown.code == 1
    assert len(shown.out.splitlines()) == 2
    assert f"not complete: the archive at {broken.address}" in shown.err
    assert "\x1b" not in shown.err
    # Expect the same of a number, and of what is told beforehand
    for option, told in (("--count-only", "1\n"), ("--explain", "archive\t127.0.0.1:")):
        shown = said(*flags, "query", "--type", "Image", option)
        assert shown.code == 1
        assert shown.out.startswith(told)
        assert f"not complete: the archive at {broken.address}: " in shown.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--type", "Imagery"), "no archive has objects of type Imagery. "),
        (("--type", "a\njbi: all is well"), r"type 'a\njbi: all is well'. "),
        (("--type", "x" * 5_000), f"type {'x' * 100}. "),
        (("--predicate", "//n["), "predicate"),
        (("--since", "noon"), "for two hours ago"),
        (("--since", "1h", "--until", "2h"), "since is above until"),
        (("--count-only", "--explain"), "--count-only does not go with --explain"),
        (("--count-only", "--out", "x"), "--out does not go with --count-only"),
        (("--follow", "--newest"), "--newest does not go with --follow"),
        (("--follow", "--publisher", "anna"), "--publisher does not go with --follow"),
        (("--at", "nowhere:1"), "no archive at nowhere:1"),
        (("--namespace", "x"), "no PREFIX=URI"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    archive: Callable[..., Past], said: Any, flags: list[str], arguments: tuple[str, ...], told: str
) -> None:
    archive(1)
    shown = said(*flags, "query", *arguments)
    assert shown.is_one_line()
    assert told in shown.err
    assert shown.code in (1, 2)


def test_following_goes_on_with_what_is_published(
    archive: Callable[..., Past], said: Any, flags: list[str], eventually: Callable[..., Any]
) -> None:
    past = archive(1, 2, 3)
    shown = said(
        *flags, "query", "--type", "Image", "--follow", "--since", "2026-09-21T14:13:22Z", "--limit", "2", "--json"
    )
    assert [json.loads(line)["position"] for line in shown.out.splitlines()] == [20, 30]
    # Expect a subscription to begin in the past as well
    shown = said(*flags, "subscribe", "--type", "mil.Image", "--start", "10", "--count", "2", "--json")
    assert [json.loads(line)["sequence"] for line in shown.out.splitlines()] == [2, 3]
    # Expect a durable one to be known by its name
    for _ in range(2):
        said(*flags, "subscribe", "--type", "mil.Image", "--durable", "fusion-1", "--start", "all", "--count", "3")
    names = [request.durable for request in past.subscribed]
    assert names[-2:] == ["fusion-1", "fusion-1"]


def test_a_durable_subscription_is_set_back(archive: Callable[..., Past], said: Any, flags: list[str]) -> None:
    # Given a durable subscription
    past = archive(1, 2, 3)
    said(*flags, "subscribe", "--type", "mil.Image", "--durable", "fusion-2", "--start", "all", "--count", "3")
    # When it is set back as docs/archive.md says, expect what the page says
    (block,) = (b for b in blocks(TOP / "docs" / "archive.md") if b.value == "test_a_durable_subscription_is_set_back")
    for command, expected in commands(block):
        assert agree(expected, said(*flags, *shlex.split(command)[1:]).out)
    # Expect it to go on from there, and one that is not known to be refused
    assert said(*flags, "subscriptions", "reset", "fusion-2", "--start", "20").code == 0
    assert list(past.durables.values()) == [{10, 20}]
    assert said(*flags, "subscriptions", "reset", "fusion-1", "--start", "all").is_one_line()


def test_a_table_in_a_terminal(
    archive: Callable[..., Past], flags: list[str], terminal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive, and a narrow terminal
    archive(1, 2)
    monkeypatch.setenv("PYTHONPATH", os.environ["PYTHONPATH"])
    with terminal(*flags, "query", "--type", "Image", columns=60) as shown:
        assert shown.ends() == 0
    # Expect a table that fits
    lines = shown.output.splitlines()
    assert lines[0] == "2 objects"
    assert lines[1].split()[:2] == ["published", "type"]
    assert all(len(line) <= 60 for line in lines)
    assert time.strftime("%Y", time.gmtime(TIME)) in lines[3]
