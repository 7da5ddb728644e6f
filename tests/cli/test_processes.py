"""Commands as processes that talk to each other."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub import Config
from jbi_pubsub.cli import demonstration
from jbi_pubsub.cli.app import jbi
from jbi_pubsub.core.config import ArchiveSection, LookupSection
from jbi_pubsub.examples.demo import GROUP, Demo, _archive_flags
from jbi_pubsub.examples.example import EXAMPLES
from jbi_pubsub.examples.federation import Federation

pytestmark = pytest.mark.processes

FILES = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"
SCHEMA, FIGURE_1, FIGURE_3, IMAGE = (
    str(FILES / name) for name in ("Intel_Imagery.xsd", "fig1.xml", "fig3-template.xml", "image.png")
)
TYPE = "mil.af.rl.jbi.Intel_Imagery"
PREDICATE = "//lat>33.2 and //latord='N'"


@pytest.mark.parametrize("how", [("--delegate", "alpha", "rome"), ("--peer",)], ids=lambda how: how[0])
def test_publish_and_subscribe(
    how: tuple[str, ...],
    flags: list[str],
    federation: Any,
    start: Callable[..., Any],
    tmp_path: Path,
    eventually: Callable[..., Any],
) -> None:
    # Given a delegate, a subscriber whose template and predicate fit, and one whose predicate does not
    federation.pad()
    fits = start(
        *flags, "subscribe", "--template", FIGURE_3, "--schema", SCHEMA, "--predicate", PREDICATE,
        "--count", "2", "--timeout", "20", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    misses = start(*flags, "subscribe", "--type", TYPE, "--predicate", "//lat>90", "--timeout", "2", "--json")
    # each says what it matches once the lookup services watch for it
    eventually(lambda: all("none so far: nothing is published now" in each.stderr() for each in (fits, misses)))

    # When an image is published twice
    publishing = start(
        *flags, "publish", *how, "--schema", SCHEMA, "--metadata", FIGURE_1, "--payload", IMAGE,
        "--count", "2", "--json",
    )  # fmt: skip
    published = publishing.fact()
    assert publishing.wait(60.0) == 0
    assert published["undelivered"] == 0
    assert len(published["published"]) == 2

    # Expect both, in order, at the one that fits, which then ends, and its files as published
    received = [fits.fact(), fits.fact()]
    assert [fact["object"] for fact in received] == published["published"]
    assert {(fact["type"], fact["registration"]) for fact in received} == {(TYPE, published["registration"])}
    assert fits.wait(60.0) == 0
    written = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert written.count(Path(IMAGE).read_bytes()) == 2
    assert written.count(Path(FIGURE_1).read_bytes()) == 2

    # Expect nothing at the other, which ends because nothing comes
    out, err = misses.communicate(timeout=60.0)
    assert out == ""
    assert [line for line in err.splitlines() if not line.startswith("subscription ")] == []


def test_publishing_what_the_delegate_refuses_ends_with_what_it_says(
    flags: list[str], federation: Any, said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a delegate whose archive has no room
    full = ArchiveSection(folder=str(tmp_path / "archive"), workers=0, reserve=0.9, reserve_bytes=1 << 60)
    federation.pad(config=msgspec.structs.replace(federation.config, archive=full))
    # When objects are published that are to be kept
    command = [*flags, "publish", "--delegate", "alpha", "rome", "--schema", SCHEMA, "--metadata", FIGURE_1]
    shown = said(*command, "--persist", "--count", "3")
    # Expect none to count as published
    assert shown.code == 1
    assert shown.out.startswith("published 0 objects")
    assert "the delegate refused 3 of 3: the archive in" in shown.err.splitlines()[-1]
    assert json.loads(said(*command, "--persist", "--json").out)["refused"] == 1


def test_services_and_status(
    flags: list[str], federation: Any, figures: Any, said: Callable[..., Any], world: str
) -> None:
    # Given two delegates and a registration at one of them
    alpha = federation.pad("alpha", "rome")
    bravo = federation.pad("bravo", "paris")
    adapter = federation.light()
    registration = figures.register(adapter)
    adapter.publish(registration, figures.figure_1)
    adapter.flush()

    # Expect `services` to list all three and the lookup service with their entries, and to filter by type and field
    everything = json.loads(said(*flags, "services", "--json").out)
    assert len(everything) == 4
    [lookup] = json.loads(said(*flags, "services", "--type", "jbi.Registrar", "--json").out)
    assert lookup["endpoints"] == [federation.lookups[0].address]
    assert (lookup["entries"][0]["groups"], lookup["entries"][0]["address"]) == (world, federation.lookups[0].address)
    delegates = json.loads(said(*flags, "services", "--type", "jbi.PublisherAdapterDelegate", "--json").out)
    assert {(d["id"], *d["endpoints"]) for d in delegates} == {(p.server_id, p.address) for p in (alpha, bravo)}
    for field, count in (("publisher=418th", 1), ("publisher=999th", 0), ("location=paris", 1)):
        assert len(json.loads(said(*flags, "services", "--field", field, "--json").out)) == count
    own = "RequiredMetadataEntry"
    for entry, count in (
        (own, 1),
        (f"{TYPE}%23{own}", 0),
        (f"{TYPE}#{own}?publisher=418th&language=EN", 1),
        (f"{own}?publisher=418th&language=FR", 0),
        ("PublisherAdapterDelegate?location=paris", 1),
    ):
        assert len(json.loads(said(*flags, "services", "--entry", entry, "--json").out)) == count, entry
    for bad in ("", "?a=b", f"{own}?publisher"):
        assert said(*flags, "services", "--entry", bad).code == 2

    # Expect `status` to show what each server does, and one server when asked for it
    servers = json.loads(said(*flags, "status", "--json").out)
    shown = {s["id"]: s for s in servers}
    assert len(shown) == len(servers), "each once"
    assert set(shown) == {alpha.server_id, bravo.server_id, federation.lookups[0].info().service_id}
    assert shown[alpha.server_id]["published"] == 1
    assert [r["uid"] for r in shown[alpha.server_id]["registrations"]] == [registration]
    assert shown[bravo.server_id]["registrations"] == []
    [one] = json.loads(said(*flags, "status", bravo.address, "--json").out)
    assert one["id"] == bravo.server_id

    # Expect the same for people
    assert "alpha" in said(*flags, "services").out
    assert said(*flags, "status").code == 0


def test_less_than_was_asked_for_is_told_and_is_the_exit_code(
    flags: list[str], federation: Any, said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.pad("alpha", "rome")
    monkeypatch.setattr("jbi_pubsub.cli.publish.SUBSCRIBERS_SECONDS", 0.5)
    # When nothing comes, or nobody is there to get it
    got = said(*flags, "subscribe", "--type", "nothing.Such", "--count", "1", "--timeout", "1")
    assert (got.code, got.err.splitlines()[-1]) == (
        1, "jbi: 0 of 1 object came in time: none so far: nothing is published now"
    )  # fmt: skip
    words = ("--schema", SCHEMA, "--metadata", FIGURE_1)
    published = said(*flags, "publish", "--delegate", "alpha", "rome", *words, "--subscribers", "9")
    assert (published.code, published.out[:18]) == (1, "published 1 object")
    assert published.err.splitlines()[-1].startswith("jbi: 0 of 9 subscriptions were there when it was published; see")
    # When an id is not there, expect one code whatever the command
    for command in (
        ("subscriptions", "cancel", "nope"), ("subscriptions", "renew", "nope"), ("types", "list"),
        ("explain", "nope", "--metadata", FIGURE_1), ("archive", "status"), ("--node", "nope", "status"),
    ):  # fmt: skip
        answer = said(*flags, *command)
        assert (answer.code, answer.err[:5]) == (1, "jbi: "), (command, answer.err)


def test_a_server_says_at_once_in_its_log_who_it_is(start: Callable[..., Any], eventually: Callable[..., Any]) -> None:
    server = start("--log-json", "-v", "--no-multicast", "lookup", "--port", "0", "--json")
    address = server.fact()["address"]
    said = [json.loads(line) for line in eventually(server.stderr).splitlines()]
    assert [line["level"] for line in said if address in line["message"]] == ["info"]


def test_two_delegates_of_one_name_are_told(
    flags: list[str], federation: Any, said: Callable[..., Any], caplog: Any, eventually: Callable[..., Any]
) -> None:
    # Given a delegate, and one of another name
    first = federation.pad("alpha", "rome")
    federation.pad("alpha", "paris")
    eventually(lambda: len(json.loads(said(*flags, "services", "--json").out)) == 3)
    assert said(*flags, "services").err == ""
    # When one more begins under its name
    second = federation.pad("alpha", "rome")
    # Expect it to warn of the other, and each command that lists them
    eventually(lambda: f"another delegate is called (alpha, rome), at {first.address}" in caplog.text)
    assert second.address not in caplog.text
    text = f"2 delegates are called (alpha, rome), at {', '.join(sorted((first.address, second.address)))}: publishers"
    assert said(*flags, "services").err.startswith(f"jbi: {text}")
    found = json.loads(said(*flags, "doctor", "servers", "--json").out)["checks"]
    assert [each["state"] for each in found if text in each["found"]] == ["warning"]


def test_the_lookup_service_is_administered(
    flags: list[str], federation: Any, said: Callable[..., Any], start: Callable[..., Any], world: str
) -> None:
    # Given a lookup service of its own process
    server = start(*flags, "lookup", "--port", "0", "--json")
    ready = server.fact()
    assert ready["groups"] == [world]

    # When its groups are set
    assert said(*flags, "lookup", "admin", "--at", ready["address"], "groups", "set", "lab", world).code == 0

    # Expect it to say so; and to end when it is destroyed
    [status] = json.loads(said(*flags, "status", ready["address"], "--json").out)
    assert sorted(status["groups"]) == ["lab", world]
    assert said(*flags, "lookup", "admin", "--at", ready["address"], "destroy", "--yes").code == 0
    assert server.wait(60.0) == 0


def test_a_delegate_that_no_lookup_service_answers_says_so_once(
    start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given nobody on port 1
    pad = start("--no-multicast", "--locator", "127.0.0.1:1", "pad", "alpha", "rome", "--port", "0", "--json")
    pad.fact()
    # Expect it to say where it looks, and what came of it
    eventually(lambda: "tried: 127.0.0.1:1 (can't reach 127.0.0.1:1: Connection refused)" in pad.stderr())
    assert "Clients can't find this delegate until one answers" in pad.stderr()


def test_a_lookup_service_with_a_state_file_is_the_same_after_a_restart(
    flags: list[str], start: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a lookup service that keeps its state, killed
    arguments = (*flags, "lookup", "--port", "0", "--state", str(tmp_path / "state.db"), "--json")
    first = start(*arguments)
    ready = first.fact()
    first.end(kill=True)

    # Expect the same id when it is started again
    assert start(*arguments).fact()["id"] == ready["id"]


def test_the_demo_is_right_whatever_the_user_has_configured(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., Any], tmp_path: Path
) -> None:
    # Given settings for another federation, in a file and in the environment
    (tmp_path / "jbi.toml").write_text('[lookup]\ngroups = ["lab"]\nlocators = ["127.0.0.1:1"]\n')
    monkeypatch.setenv("JBI_CONFIG", str(tmp_path / "jbi.toml"))
    monkeypatch.setenv("JBI_PAD_MAX_REGISTRATIONS", "1")
    # Expect the whole federation to deliver what it must
    demo = start("demo", "--json")
    shown, errors = demo.communicate(150.0)
    assert demo.returncode == 0, errors
    summary = json.loads(shown)
    assert summary["right"] is True
    assert len(summary["subscribers"]) == 9
    assert {s["name"]: s["got"] for s in summary["subscribers"]}["latecomer"] == 8
    assert all(s["got"] == s["must"] for s in summary["subscribers"])
    assert "Traceback" not in errors


def test_the_demo_goes_without_an_archive_where_its_libraries_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given an installation without the extra
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, found=importlib.util.find_spec: None if name == "duckdb" else found(name),
    )
    state = Demo()
    with ExitStack() as stack:
        # Expect it to be said, nobody to come late, and no delegate to be asked for an archive
        assert _archive_flags(state, stack) == {}
    assert "jbi-pubsub[archive]" in state.without
    assert state.without == state.summary()["without"]
    assert len(state.rows) == 8
    # and not that everything has arrived, when all that is left has
    monkeypatch.setattr(Demo, "right", True)
    demonstration._summarise(state)
    *_, verdict, left_out = capsys.readouterr().out.splitlines()
    assert verdict.endswith("what 8 subscribers were to get arrived, nothing twice")
    assert left_out == f"left out: {state.without}"


def test_the_demo_ends_with_commands_that_there_are() -> None:
    # Given what it says at its end, of a `jbi` that is not on the path
    lines = demonstration.next_steps(".venv/bin/jbi").splitlines()
    assert len(lines) == 3
    # Expect commands of that `jbi`, those that the text of one names as well, with options that they know
    commands = [line.partition("#")[0] for line in lines] + re.findall("`(.+?)`", "".join(lines))
    for command in commands:
        program, *words = command.split()
        assert program == ".venv/bin/jbi"
        with jbi.make_context("jbi", words) as context:
            assert context._protected_args is not None
            name, found, rest = jbi.resolve_command(context, context._protected_args + context.args)
            assert found is not None
            made = found.make_context(name, list(rest), parent=context)
        assert made.params.get("name") in (None, *EXAMPLES)
    # and of one that is, by its name alone
    assert demonstration.next_steps(shutil.which("jbi") or "").startswith("  jbi demo --keep ")


def test_the_demo_and_a_node_beside_it_do_not_know_each_other(
    start: Callable[..., Any], said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given the servers of a demo, and a node that asks at their lookup service
    with Federation(Config(lookup=LookupSection(groups=(GROUP,)))) as demo:
        demo.lookup().delegate("alpha", "rome")
        there = ("--no-multicast", "--locator", demo.locator, "--group", "")
        flags = ("--set", "lookup.port=0", "--set", "node.archive=false")
        node = start(*there, *flags, "node", "start", "--folder", str(tmp_path), "--json").fact()
        # Expect each to be found by its own alone
        for group, locator, delegate in ((GROUP, demo.locator, demo.ready["alpha"]), ("", node["lookup"], node)):
            asked = ("--no-multicast", "--locator", demo.locator, "--locator", node["lookup"], "--group", group)
            found = json.loads(said(*asked, "services", "--json").out)
            assert {locator, delegate["address"]} == {at for each in found for at in each["endpoints"] if "/" not in at}


@pytest.mark.row("C-07")
@pytest.mark.parametrize("script", ["jbi", "jbi-lookup", "jbi-pad", "jbi-codegen", "jbi-study"])
def test_the_console_scripts_run(script: str) -> None:
    # Given the installed package
    # Expect each script to explain itself
    command = Path(sys.executable).parent / script
    done = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_command_that_is_interrupted_leaves_and_says_so_by_its_code(
    number: int, code: int, flags: list[str], federation: Any, start: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    # Given a delegate, which watches for other lookup services, and at first for others of its name
    federation.pad()

    def watches() -> int:
        return federation.lookups[0].status()["event_registrations"]  # type: ignore[no-any-return]

    # and a subscriber that waits: it watches for other lookup services, and for the type
    waiting = start(*flags, "-v", "subscribe", "--type", TYPE, "--timeout", "60", "--json")
    eventually(lambda: watches() >= 3, what=watches)

    # When it is interrupted
    waiting.signal(number)
    out, err = waiting.communicate(timeout=60.0)

    # Expect its code, no traceback, and nothing of it to be left that would have to run out
    assert waiting.returncode == code, err
    assert "Traceback" not in out + err
    eventually(lambda: watches() == 1, what=watches)
