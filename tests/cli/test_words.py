"""What the command says: help, errors of one line, exit codes."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest
from click.shell_completion import ShellComplete

from jbi_pubsub.cli import clients, services
from jbi_pubsub.cli.app import HOMES, _as_options, jbi
from jbi_pubsub.cli.servers import _ended
from jbi_pubsub.cli.show import Table, drawn
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import InformationType

FILES = Path(__file__).parent.parent.parent / "examples" / "data" / "intel_imagery"
SCHEMA, FIGURE_1, FIGURE_3 = (str(FILES / name) for name in ("Intel_Imagery.xsd", "fig1.xml", "fig3-template.xml"))
ALONE = ("--no-multicast", "--locator", "127.0.0.1:1", "--set", "lookup.timeout=0.3")
"""Nobody listens on port 1."""
ASKING = click.Context(jbi, **jbi.context_settings)
"""With the names that help has: click remembers of each command those of whoever asked it first."""


def commands(group: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and subcommand."""
    names = group.list_commands(ASKING) if isinstance(group, click.Group) else ()
    below = [(name, group.get_command(ASKING, name)) for name in names]
    return [path, *(found for name, command in below for found in commands(command, (*path, name)))]


def test_the_commands_of_the_design_exist() -> None:
    promised = {
        "demo", "lookup", "pad", "codegen", "publish", "subscribe", "subscriptions", "services", "status", "study",
        "bench", "config",
    }  # fmt: skip
    assert promised <= set(jbi.list_commands(ASKING))


def test_a_lookup_service_starts_without_what_only_others_need() -> None:
    # Expect neither schema nor SMTP libraries, nor the adapters, in the process of `jbi lookup`
    script = (
        "import sys; from jbi_pubsub.cli.app import jbi\n"
        "jbi.main(['lookup', '--help'], standalone_mode=False)\n"
        "assert not {'xmlschema', 'elementpath', 'aiosmtplib', 'jbi_pubsub.publisher'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", commands(jbi), ids=lambda path: " ".join(path) or "jbi")
def test_every_command_explains_itself(command: tuple[str, ...], option: str, said: Callable[..., Any]) -> None:
    # Expect usage, a sentence and an example, for people who have nothing running
    answer = said(*command, option)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(" ".join(("Usage: jbi", *command)))
    _usage, explanation, *more = answer.out.split("\n\n")
    assert explanation.strip().endswith(".")
    assert re.search(r"^  .*\bjbi\b", "\n".join(more).partition("Options:")[0], re.M)


def test_the_help_of_all_imports_no_command_and_says_what_they_say() -> None:
    # Expect the help of `jbi` to be there without what its commands need
    script = (
        "import sys; from jbi_pubsub.cli.app import jbi\n"
        "jbi.main(['--help'], standalone_mode=False)\n"
        "assert not {'msgspec', 'rich', 'lxml', 'jbi_pubsub.core'} & set(sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    # and to have a whole sentence for each
    for name, (_, sentence) in HOMES.items():
        assert f"  {name}  " in shown
        assert sentence in shown
        assert jbi.get_command(ASKING, name) is not None


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("lokup",), "'lookup'"), (("Status",), "'status'"), (("lookup", "admn"), "'admin'"),
        (("subscriptions", "cancle"), "'cancel'"), (("bench", "mtach"), "'match'"),
        (("study", "fanuot"), "'fanout'"),
        (("status", "--wach"), "--watch"), (("subscribe", "--tpye", "x"), "--type"),
        (("--set", "queue.policy=drop", "config"), "drop_oldest, drop_newest or block"),
        (("subscribe", "--queue-policy", "drop"), "'drop_oldest', 'drop_newest', 'block'"),
        (("node", "start", "--insecure"), "--insecure goes before the command: jbi --insecure node start"),
        (("status", "--config", "x"), "--config goes before the command: jbi --config FILE status"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_mistyped_name_is_answered_with_the_nearest(
    arguments: tuple[str, ...], meant: str, said: Callable[..., Any]
) -> None:
    answer = said(*arguments)
    assert answer.code == 2
    assert meant in answer.err


@pytest.mark.parametrize(
    ("typed", "names"),
    [("doc", ["doctor"]), ("to", ["top"]), ("top su", ["subscriptions"]), ("doctor ports cl", ["clock"]),
     ("status --w", ["--watch", "--wide"]), ("study fa", ["fanout"]), ("study fanout --engine s", ["spark"]),
     ("study import --format l", ["lines"]), ("study capacity --su", ["--subscribers"])],
)  # fmt: skip
def test_a_shell_completes_what_is_typed_and_makes_nothing(
    typed: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    *before, last = typed.split()
    complete = ShellComplete(jbi, {}, "jbi", "_JBI_COMPLETE")
    assert [item.value for item in complete.get_completions(before, last)] == names
    assert list(tmp_path.iterdir()) == []


def test_nothing_near_is_not_guessed(said: Callable[..., Any]) -> None:
    assert "Did you mean" not in said("xyzzy").err


@pytest.mark.parametrize("arguments", [("", "rome"), ("alpha", ""), ("", ""), (" ", "rome")])
def test_a_delegate_without_characteristics_does_not_start(
    arguments: tuple[str, ...], said: Callable[..., Any]
) -> None:
    answer = said(*ALONE, "pad", *arguments)
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert "jbi pad alpha rome" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("subscribe", "--type", "x", "--out", "file/out"), ("bench", "match", "--out", "file/out.json"),
        ("study", "match", "--out", "file/out"), ("codegen", SCHEMA, "-o", "file/out.py"),
    ],
    ids=lambda a: a[0],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    arguments: tuple[str, ...], said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a file where a folder would have to be; Expect an error before anybody is asked or anything measured
    (tmp_path / "file").write_text("")
    answer = said(*ALONE, *arguments)
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert "file/out" in answer.err


def test_a_file_that_is_only_to_be_read_is_refused_before_the_work(
    said: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.json").write_text("")
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)  # whoever runs the tests may write everything
    answer = said("bench", "match", "--out", "rows.json")
    assert (answer.code, answer.is_one_line()) == (2, True)


def examples() -> list[str]:
    """The command lines in the help of all commands, but for `codegen` and `explain`, whose files are any."""
    asked = (path for path in commands(jbi) if path[:1] not in (("codegen",), ("explain",)))
    helps = [functools.reduce(lambda group, name: group.get_command(ASKING, name), path, jbi).help for path in asked]
    lines = "\n".join(helps).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines if re.match(r"\s*([A-Z_]+=\S+ )?jbi ", line)]


@pytest.mark.parametrize("example", examples())
def test_the_examples_of_the_help_are_right_as_written(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a command line of the help, and the examples beside data sets and results of studies
    # Expect its options and files to exist
    top = FILES.parent.parent.parent
    (tmp_path / "examples").symlink_to(top / "examples")
    for name in ("data", "arriving", "monday", "friday", "archive.parquet"):
        (tmp_path / name).mkdir()
    for name in ("all.parquet", "kabul.jsonl", "rescued.jsonl"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    _, *arguments = shlex.split(re.sub(r"^\w+=\S+ ", "", example), comments=True)
    command: click.Command = jbi
    while True:
        context = command.make_context(command.name, list(arguments), parent=ASKING)
        rest = [*context._protected_args, *context.args]
        if not isinstance(command, click.Group) or not rest:
            assert rest == []
            break
        _, found, arguments = command.resolve_command(context, rest)
        assert found is not None
        command = found


def test_help_and_version_are_answered_as_words(said: Callable[..., Any]) -> None:
    assert said("version") == said("--version")
    assert said("help", "pad") == said("pad", "--help")
    assert said("help") == said("--help")


def test_the_version(said: Callable[..., Any]) -> None:
    answer = said("--version")
    assert answer.code == 0
    assert "0.1.0" in answer.out


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("pad", "alpha"), ("pad", "--nonsense", "a", "b"), ("lookup", "--port", "70000"), ("publish",)],
    ids=" ".join,
)
def test_wrong_usage_is_code_2(arguments: tuple[str, ...], said: Callable[..., Any]) -> None:
    answer = said(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    assert "Error" in answer.err


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lease.subscribr", "lease.subscriber"),
        ("network.radio.announce_seconds", "node.announce_seconds"),
        ("network.radio.compression", "node.compression"),
        ("lookup.chunk", "link.chunk"),
    ],
)
def test_a_misspelt_key_or_one_of_another_section_is_answered_with_the_nearest(
    key: str, meant: str, said: Callable[..., Any]
) -> None:
    # Expect code 2, and one line that names what was meant
    answer = said("--set", f"{key}=5", "config")
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert f"unknown setting {key} " in answer.err
    assert f"Did you mean {meant}?" in answer.err


@pytest.mark.parametrize(("word", "hint"), [("ture", "Did you mean true?"), ("drop_oldest", "texts need quotes")])
def test_a_word_that_is_no_value_is_told_with_what_was_meant(
    word: str, hint: str, said: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "jbi.toml").write_text(f"[tls]\ninsecure = {word}\n")
    answer = said("config")
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert "at line 2, column 12" in answer.err
    assert hint in answer.err


@pytest.mark.parametrize("where", ["file", "variable"])
def test_a_misspelt_key_names_its_place(
    where: str, said: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "file":
        (tmp_path / "jbi.toml").write_text("[queue]\nbond = 5\n")
    else:
        monkeypatch.setenv("JBI_QUEUE_BOND", "5")
    answer = said("config")
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert ("jbi.toml" if where == "file" else "JBI_QUEUE_BOND") in answer.err
    assert "queue.bound" in answer.err


@pytest.mark.parametrize(
    "assignment",
    [
        "lease.subscriber=soon", "lookup.port=x", "queue.policy=drop_all", "queue.bound=1.5", "queue.bound",
        # no duration, port or bound
        "lease.subscriber=0", "lease.lookup=-1", "lease.publisher=nan", "lease.mail=inf", "lookup.timeout=-1",
        "lookup.probe=0", "queue.publish_seconds=nan", "mail.retry_seconds=-2", "lookup.port=70000", "pad.port=-1",
        "metrics.port=70000", "metrics.port=-2", "mail.port=70000", "queue.bound=0", "pad.max_queued_bytes=0",
        "pad.max_sessions=-1", "mail.retries=-1", "mail.queue_bound=0",
    ],
)  # fmt: skip
def test_a_bad_value_is_refused(assignment: str, said: Callable[..., Any]) -> None:
    answer = said("--set", assignment, "config")
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert assignment.partition("=")[0] in answer.err


def test_a_file_that_is_not_there_or_no_toml_is_refused(said: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[queue\n")
    for name in ("bad.toml", "missing.toml"):
        answer = said("--config", name, "config")
        assert answer.code == 2
        assert answer.is_one_line(), answer
        assert name in answer.err


def test_config_shows_where_each_value_comes_from(
    said: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given one setting in the file, one in file and variable, one in file, variable and flag
    (tmp_path / "jbi.toml").write_text("[lease]\npublisher = 11\nsubscriber = 11\nlookup = 11\n")
    monkeypatch.setenv("JBI_LEASE_SUBSCRIBER", "22")
    monkeypatch.setenv("JBI_LEASE_LOOKUP", "22")
    answer = said("--set", "lease.lookup=33", "config", "--json")

    # Expect the one of highest rank, and its origin
    assert answer.code == 0
    shown = json.loads(answer.out)
    assert shown["lease.mail"] == {"value": 86400.0, "origin": "default"}
    assert shown["lease.publisher"]["value"] == 11.0
    assert shown["lease.publisher"]["origin"].endswith("jbi.toml")
    assert shown["lease.subscriber"] == {"value": 22.0, "origin": "$JBI_LEASE_SUBSCRIBER"}
    assert shown["lease.lookup"] == {"value": 33.0, "origin": "flag"}


def test_config_names_another_file(said: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given jbi.toml here, and two files named by variable and by flag
    for number, name in enumerate(("jbi.toml", "variable.toml", "flag.toml")):
        (tmp_path / name).write_text(f"[queue]\nbound = {number + 1}\n")
    # Expect flag over variable over folder
    assert json.loads(said("config", "--json").out)["queue.bound"]["value"] == 1
    monkeypatch.setenv("JBI_CONFIG", "variable.toml")
    assert json.loads(said("config", "--json").out)["queue.bound"]["value"] == 2
    assert json.loads(said("--config", "flag.toml", "config", "--json").out)["queue.bound"]["value"] == 3


def test_config_hides_the_mail_password(said: Callable[..., Any]) -> None:
    answer = said("--set", "mail.password=secret", "config")
    assert answer.code == 0
    assert "mail.password" in answer.out
    assert "secret" not in answer.out


# -- errors of a run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [("lookup",), ("pad", "alpha", "rome")], ids=" ".join)
def test_a_port_in_use(server: tuple[str, ...], said: Callable[..., Any]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        answer = said(*ALONE, *server, "--port", port)
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert port in answer.err


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_a_host_of_another_machine_is_told_as_that(host: str, said: Callable[..., Any]) -> None:
    answer = said(*ALONE, "--insecure", "lookup", "--host", host, "--port", "0")
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert answer.err.endswith(f"{host} is not an address of this machine: give one that is with --host\n")


def test_a_hint_names_the_option_instead_of_the_argument(said: Callable[..., Any]) -> None:
    answer = said(*ALONE, "subscribe", "--type", "x", "--predicate", "//s:a")
    assert (answer.code, answer.is_one_line()) == (2, True), answer
    assert "for example --namespace s=urn:..., or write *[local-name()='a'" in answer.err


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("status", "foo"), "'foo' is not HOST:PORT"),
        (("top", "--once", "--server", "foo"), "'foo' is not HOST:PORT"),
        (("subscribe", "--type", "x", "--email", "notanaddress"), "'notanaddress' is not exactly one plain e-mail"),
        (("subscribe", "--type", "x", "--predicate", "///"), "predicate: unexpected '/'"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_a_wrong_word_is_code_2(arguments: tuple[str, ...], fault: str, said: Callable[..., Any]) -> None:
    answer = said(*ALONE, *arguments)
    assert (answer.code, answer.is_one_line()) == (2, True), answer
    assert fault in answer.err


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        ("Give schema=, or a file", "Give --schema, or a file"),
        ("or register with validate=False", "or register with --untyped"),
        ("Give it a name: durable=", "Give it a name: --durable"),
        ("See xsi:noNamespaceSchemaLocation, [lookup] timeout", "See xsi:noNamespaceSchemaLocation, [lookup] timeout"),
    ],
)
def test_arguments_in_hints_are_options_on_the_command_line(hint: str, expected: str) -> None:
    assert _as_options(hint) == expected


@pytest.mark.parametrize("server", [("lookup",), ("pad", "alpha", "rome")], ids=" ".join)
def test_listening_beyond_loopback_without_tls(server: tuple[str, ...], said: Callable[..., Any]) -> None:
    answer = said(*ALONE, *server, "--host", "0.0.0.0", "--port", "0")
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert "TLS" in answer.err
    assert "--insecure" in answer.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("services",),
        ("status",),
        ("subscriptions",),
        ("subscribe", "--type", "x"),
        ("publish", "--schema", SCHEMA, "--metadata", FIGURE_1, "--delegate", "alpha", "rome"),
    ],
    ids=lambda a: a[0],
)
def test_no_lookup_service(arguments: tuple[str, ...], said: Callable[..., Any]) -> None:
    answer = said(*ALONE, *arguments)
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert "lookup" in answer.err.lower()


def test_who_waits_for_a_lookup_service_is_told_where_is_looked(
    said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a command that has to wait longer than people expect; Expect it to say where it looks, before the error
    monkeypatch.setattr("jbi_pubsub.cli.settings.SILENT_SECONDS", 0.05)
    for arguments in (("services",), ("status",), ("subscribe", "--type", "x"), ("subscriptions",)):
        first, *_, last = said(*ALONE, *arguments).err.splitlines()
        assert first == "jbi: looking for a lookup service (127.0.0.1:1), 0.3 s at most"
        assert "no lookup service" in last


def test_services_that_do_not_exist_are_answered_with_what_there_is(
    flags: list[str], federation: Any, figures: Any, said: Callable[..., Any]
) -> None:
    # Given a delegate with a registration
    federation.pad("alpha", "rome")
    figures.register(federation.light())
    for arguments, hint in (
        (("--type", "PublisherRegistraton"), "did you mean jbi.PublisherRegistration?"),
        (("--type", "jbi.Trader"), "no jbi.Trader is registered now"),
        (("--entry", "RequiredMetadatEntry"), "Intel_Imagery#RequiredMetadataEntry?"),
        (("--field", "publishr=418th"), "no field publishr; did you mean publisher?"),
        (("--field", "publisher=418"), "no publisher that is 418; did you mean 418th?"),
        (("--field", "publisher=xyz"), "no publisher that is xyz; there are: 418th"),
    ):
        # When one asks for what nobody has; Expect no service, and what was meant, or what there is
        answer = said(*flags, "services", *arguments)
        assert (answer.code, len(answer.out.splitlines())) == (0, 1)
        assert hint in answer.err, arguments
        assert json.loads(said(*flags, "services", *arguments, "--json").out) == []


@pytest.mark.parametrize(
    ("width", "shown", "entries"),
    [(90, " Intel_Imagery ", True), (76, " Intel_Imagery ", False), (130, " mil.af.rl.jbi.Intel_Imagery ", True)],
)
def test_the_type_that_a_service_publishes_is_not_cut(width: int, shown: str, entries: bool) -> None:
    # Given a registration as the lookup service lists it
    published = InformationType(name="mil.af.rl.jbi.Intel_Imagery", version="1.0", schema="0" * 32)
    ref = ServiceRef("d", "delegate", ("127.0.0.1:40123",))
    item = ServiceItem(f"registration-{'5' * 32}", ("jbi.PublisherRegistration",), ref, (published.rep(),))
    # Expect its type whole, or its last part where there is no room, and other columns to go before that is cut
    lines = drawn(Table(services._SERVICES, [services._item_row(item)]), width=width).splitlines()
    assert shown in f"{lines[2]} "
    assert max(map(len, lines)) <= width
    assert entries == ("Informa" in lines[2])


def test_no_such_delegate(flags: list[str], federation: Any, said: Callable[..., Any]) -> None:
    # Given another delegate
    federation.pad("alpha", "rome")
    answer = said(
        *flags, "--set", "lookup.timeout=1",
        "publish", "--delegate", "alpha", "paris", "--schema", SCHEMA, "--metadata", FIGURE_1,
    )  # fmt: skip
    # Expect what was looked for, and what exists
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert "paris" in answer.err
    assert "rome" in answer.err


def test_a_broken_schema(flags: list[str], federation: Any, said: Callable[..., Any], tmp_path: Path) -> None:
    federation.pad()
    (tmp_path / "broken.xsd").write_text("<xs:schema xmlns:xs='http://www.w3.org/2001/XMLSchema'><xs:element/>")
    answer = said(*flags, "publish", "--delegate", "alpha", "rome", "--schema", "broken.xsd", "--metadata", FIGURE_1)
    assert answer.code in (1, 2)
    assert answer.is_one_line(), answer
    assert "broken.xsd" in answer.err


def test_invalid_metadata(
    flags: list[str], federation: Any, figures: Any, said: Callable[..., Any], tmp_path: Path
) -> None:
    federation.pad()
    (tmp_path / "bad.xml").write_bytes(figures.metadata(lat="north"))
    answer = said(*flags, "publish", "--delegate", "alpha", "rome", "--schema", SCHEMA, "--metadata", "bad.xml")
    # Expect the element and its value
    assert answer.code in (1, 2)
    assert answer.is_one_line(), answer
    assert "'lat'" in answer.err
    assert "'north'" in answer.err


@pytest.mark.parametrize("option", ["--metadata", "--invariants"])
def test_metadata_that_are_no_xml_are_named_by_option_and_file(
    option: str, said: Callable[..., Any], tmp_path: Path
) -> None:
    # Given a picture where a document belongs, and nobody to publish to
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    given = ("--metadata", FIGURE_1) if option == "--invariants" else ()
    answer = said(*ALONE, "publish", "--peer", "--schema", SCHEMA, *given, option, "image.png")
    # Expect what was given, where; not what it is for inside
    assert answer.code == 1
    assert answer.is_one_line(), answer
    assert answer.err.startswith(f"jbi: {option} image.png is not well-formed XML: ")
    for strange in ("invariant metadata", "<string>"):
        assert strange not in answer.err


def test_one_is_not_many(flags: list[str], federation: Any, said: Callable[..., Any]) -> None:
    federation.pad("alpha", "rome")
    publish = ("publish", "--delegate", "alpha", "rome", "--schema", SCHEMA, "--metadata", FIGURE_1)
    assert said(*flags, *publish).out.startswith("published 1 object under")
    assert said(*flags, *publish, "--count", "2").out.startswith("published 2 objects under")
    made = said(*flags, "subscribe", "--email", "a@example.org", "--type", "Intel_Imagery").out
    assert "at 1 delegate, lease" in made
    assert "1 services" not in said(*flags, "services").out
    assert _ended(1, {"queued": 1, "kept": 1, "away": "", "server": ""}, 1, state="s") == (
        "jbi: stopped with 1 object undelivered, 0 of them by mail\n"
        "jbi: 1 mail waited in s.mails, to go out after the next start\n"
    )


def test_an_email_subscription_that_no_delegate_has_is_an_error(flags: list[str], said: Callable[..., Any]) -> None:
    # Given a lookup service, and no delegate
    answer = said(*flags, "subscribe", "--email", "a@example.org", "--type", "Intel_Imagery")
    # Expect no id and no lease of what nobody has
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[-1].startswith("jbi: no delegate has the e-mail subscription, so that nothing")


@pytest.mark.parametrize("option", ["--predicate", "--filter"])
def test_a_malformed_xpath(option: str, flags: list[str], said: Callable[..., Any]) -> None:
    answer = said(*flags, "subscribe", "--type", "x", option, "//lat >")
    assert answer.code in (1, 2)
    assert answer.is_one_line(), answer
    # Expect the argument and the place in it
    assert option.strip("-") in answer.err
    assert "position 7" in answer.err


@pytest.mark.parametrize("address", ["nobody", "a@b, c@d", "a@example.org\nBcc: x@example.org"])
def test_a_bad_email_address(address: str, flags: list[str], said: Callable[..., Any]) -> None:
    answer = said(*flags, "subscribe", "--type", "x", "--email", address)
    assert answer.code in (1, 2)
    assert answer.is_one_line(), answer


def test_bad_input_is_refused_before_anybody_is_looked_for(said: Callable[..., Any]) -> None:
    # Given nobody; Expect what is wrong, not that nobody is there
    for wrong in (("--email", "nobody"), ("--predicate", "//a["), ("--filter", "//a[")):
        answer = said(*ALONE, "subscribe", "--type", "x", *wrong)
        assert answer.is_one_line(), answer
        assert "lookup service" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("subscribe", "--email", "a@example.org", "--count", "3"), "--count"),
        (("subscribe", "--email", "a@example.org", "--timeout", "0"), "--timeout"),
        (("subscribe", "--email", "a@example.org", "--out", "folder"), "--out"),
        (("status", "--count", "3"), "--count"),
        (("status", "--every", "3"), "--every"),
    ],
    ids=str,
)
def test_an_option_that_would_be_without_effect_is_refused(
    arguments: tuple[str, ...], option: str, said: Callable[..., Any]
) -> None:
    answer = said(*ALONE, *arguments)
    assert answer.code == 2
    assert answer.is_one_line(), answer
    assert f"{option} is " in answer.err


def test_cancelling_an_unknown_subscription(flags: list[str], federation: Any, said: Callable[..., Any]) -> None:
    federation.pad()
    answer = said(*flags, "subscriptions", "cancel", "subscription-unknown")
    assert answer.code in (1, 2)
    assert answer.is_one_line(), answer
    assert "subscription-unknown" in answer.err


def test_an_email_subscription_is_cancelled_by_the_first_characters_of_its_id(
    flags: list[str], federation: Any, said: Callable[..., Any]
) -> None:
    # Given two e-mail subscriptions
    federation.pad()
    made = [
        json.loads(said(*flags, "subscribe", "--email", f"{who}@example.org", "--json").out)["subscription"]
        for who in ("first", "second")
    ]
    # When one is cancelled as the list shows it; Expect the other to stay
    brief = made[0].partition("-")[2][:12]
    assert said(*flags, "subscriptions", "cancel", brief).out == "cancelled at 1 delegate\n"
    assert [s["uid"] for s in json.loads(said(*flags, "subscriptions", "--json").out)] == made[1:]
    # When the beginning is that of none, or of several; Expect an error
    assert "no e-mail subscription" in said(*flags, "subscriptions", "cancel", brief).err
    said(*flags, "subscribe", "--email", "third@example.org")
    assert "2 e-mail subscriptions begin with" in said(*flags, "subscriptions", "cancel", "subscription-").err


# -- codegen ------------------------------------------------------------------------------------------------------


@pytest.mark.row("J-34")
def test_codegen_writes_a_module_that_check_accepts(said: Callable[..., Any], tmp_path: Path) -> None:
    # Given generated entries
    assert said("codegen", SCHEMA, "-o", "entries.py").code == 0
    made = (tmp_path / "entries.py").read_bytes()
    compile(made, "entries.py", "exec")

    # Expect --check to pass, to change nothing, and the output to be the same each time, in a file and on stdout
    assert said("codegen", SCHEMA, "--check", "-o", "entries.py").code == 0
    assert said("codegen", SCHEMA).out.encode() == made
    assert said("codegen", "generate", SCHEMA).out.encode() == made

    # When the file is stale
    (tmp_path / "entries.py").write_bytes(made.replace(b"publisher", b"published"))
    answer = said("codegen", SCHEMA, "--check", "-o", "entries.py")

    # Expect code 1, a diff, and the file as it was
    assert answer.code == 1
    assert "-" in answer.out + answer.err
    assert "publisher" in answer.out + answer.err
    assert b"published" in (tmp_path / "entries.py").read_bytes()


def test_codegen_explains_what_is_matched_at_registration(said: Callable[..., Any]) -> None:
    # Given one equality on an invariant element, one inequality on a variant one
    predicate = "/metadata[RequiredMetadata/publisher='418th' and ImageDescriptor/LocationCoord/lat>33]"
    answer = said("codegen", "explain", SCHEMA, predicate)

    # Expect both to be named
    assert answer.code == 0
    assert "418th" in answer.out
    assert "lat" in answer.out


@pytest.mark.parametrize("arguments", [("codegen", "missing.xsd"), ("codegen", "broken.xsd")], ids=" ".join)
def test_codegen_without_a_good_schema(arguments: tuple[str, ...], said: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "broken.xsd").write_text("<not-a-schema/>")
    answer = said(*arguments)
    assert answer.code in (1, 2)
    assert "Traceback" not in answer.err
    assert arguments[1] in answer.err


def test_what_a_subscriber_lost_is_told_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    # Given a subscription that gets nothing, and was refused at one server
    adapter = Mock(receive=Mock(return_value=None), losses=Mock(return_value={"refused": 1, "queue_full": 2000}))
    # Expect causes and numbers, and no braces
    clients.show_objects(adapter, "subscription-1", count=None, timeout=0.0, out=None, as_json=False)
    assert capsys.readouterr() == ("", "lost: refused 1, queue_full 2,000\n")


def test_a_place_that_can_not_be_written_is_code_2(said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a folder that this user can't write in; Expect where an authority or an export was to be, and what to do
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for arguments, place in ((("certs", "init", "x"), "x"), (("archive", "export", "y/z.jsonl"), "y/z.jsonl")):
        answer = said(*ALONE, *arguments)
        assert (answer.code, answer.is_one_line()) == (2, True), answer
        assert f"{place}: Permission denied. Name a place that" in answer.err


def test_where_the_system_has_no_more_threads_a_command_says_so(
    said: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a host that begins no thread any more; Expect one line with what to look at
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    answer = said(*ALONE, "services")
    assert (answer.code, answer.is_one_line()) == (1, True), answer
    assert "can't start new thread. The system allows no more here" in answer.err
