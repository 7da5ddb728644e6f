"""What peers say of themselves reaches a terminal as text, and a folder as files in it."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.cli.app import JsonFormatter, TextFormatter, run
from jbi_pubsub.cli.clients import line_of, write_object
from jbi_pubsub.cli.show import Column, Table, as_json, drawn, printable, show_json, show_rows
from jbi_pubsub.core.errors import ProtocolError, WireError
from jbi_pubsub.core.info_object import InfoObject, Parcel, Platform, TypeName, decode, encode, object_id_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.entries import PAD_TYPE, PublisherAdapterDelegate

OBJECT = InfoObject("object-1", TypeName("t"), b"<m/>", b"payload", Platform(1.0, "registration-1", 1, 4, 7))

SPITEFUL = {
    "title": "x\x1b]0;another title\x07y",
    "colour": "\x1b[31mred",
    "8-bit control": "\x9b31mred",
    "line": "one\ntwo\r\nthree",
    "tab": "one\ttwo",
    "backspace": "good\b\b\b\bevil",
    "right to left": "txt\u202egpj.exe",
    "line separator": "one\u2028two",
    "next line": "one\x85two",
    "zero width": "jbi\u200b.\ufeffRegistrar\u2060",
    "tags": "a\U000e0041\U000e007f",
}


def _wire(obj: InfoObject) -> memoryview:
    return memoryview(b"".join(encode(obj)))


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "object_id",
    [
        "../escaped",
        "../../escaped/../x",
        "/tmp/absolute",  # what a peer would say
        "sub/folder",
        "..\\escaped",
        " ",
        "a\0b",
        "name\n",
        "a b",
        "C:x",
        "ü",
        "x" * 65,
    ],
)
def test_an_object_id_that_is_no_plain_name_is_refused(object_id: str) -> None:
    data = _wire(msgspec.structs.replace(OBJECT, object_id=object_id))
    with pytest.raises(ProtocolError):
        Parcel.received(data)
    with pytest.raises(ProtocolError):
        decode(data)


@pytest.mark.parametrize("registration", ["r-../escaped", "r-a b", "r-\0", "r-", "/tmp/x", "r-ü"])
def test_nor_is_one_that_is_made_of_such_a_registration(registration: str) -> None:
    platform = msgspec.structs.replace(OBJECT.platform, registration=registration)
    object_id = object_id_of(registration, platform.sequence)
    data = _wire(msgspec.structs.replace(OBJECT, object_id=object_id, platform=platform))
    with pytest.raises(ProtocolError):
        Parcel.received(data)
    with pytest.raises(ProtocolError):
        decode(data)


@pytest.mark.parametrize("object_id", ["object-1", "0123456789abcdef" * 4, "a.b_c-D", ".", "..", "..."])
def test_an_object_is_written_into_its_folder_whatever_its_id(object_id: str, tmp_path: Path) -> None:
    # Given an object that has come over the wire
    obj = decode(_wire(msgspec.structs.replace(OBJECT, object_id=object_id)))
    # When it is written
    folder = tmp_path / "a" / "out"
    write_object(folder, obj)
    # Expect two files, both in the folder
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    assert {path.parent for path in files} == {folder}
    assert sorted(path.read_bytes() for path in files) == [b"<m/>", b"payload"]


def test_the_ids_that_publishers_give_are_taken(federation: Any, figures: Any, tmp_path: Path) -> None:
    # Given a subscriber to a peer publisher
    publisher = federation.peer()
    registration = publisher.register_publisher(figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(uid) == 1
    # When an object is published, expect it to arrive under its id and to be written
    object_id = publisher.publish(registration, figures.figure_1, b"payload")
    obj = subscriber.receive(uid, 60.0)
    write_object(tmp_path, obj)
    assert obj.object_id == object_id
    assert (tmp_path / f"{object_id}.payload").read_bytes() == b"payload"


@pytest.mark.parametrize("published", [float("nan"), float("inf"), -1.0, 1e20])
def test_an_object_with_a_time_that_is_none_is_refused(published: float) -> None:
    platform = msgspec.structs.replace(OBJECT.platform, published=published)
    with pytest.raises(ProtocolError):
        decode(_wire(msgspec.structs.replace(OBJECT, platform=platform)))


# -- terminals ----------------------------------------------------------------------------------------------------


def _shown(cell: str) -> str:
    """The row of a table with one cell, as a terminal gets it, without the table's own borders and styles."""
    return drawn(Table([Column("value", long=True)], [(cell,)]), width=120).split("\n")[2]


@pytest.mark.parametrize("text", SPITEFUL.values(), ids=SPITEFUL)
def test_nothing_that_a_terminal_would_obey_is_printed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Given text from a peer with control characters
    # When it is printed in a table, expect one row of printable characters
    assert _shown(text).isprintable()
    # When it is printed in lines, expect one line with a cell for each column
    show_rows(("first", "second"), [(text, "end")])
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "first\tsecond"
    first, second = lines[1].split("\t")
    assert (first.isprintable(), second, lines[2:]) == (True, "end", [""])
    # When an object's type has it, expect one printable line
    assert line_of(msgspec.structs.replace(OBJECT, type=TypeName(text))).isprintable()


@pytest.mark.parametrize("text", SPITEFUL.values(), ids=SPITEFUL)
def test_json_says_all_of_it_and_nothing_that_a_terminal_would_obey(
    text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given text from a peer; When it is shown as JSON, on a terminal or to a program, or logged as JSON
    value = {"name": f"Größe {text}", text: [1.5, None]}
    for terminal in (True, False):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal, raising=False)
        show_json(value)
    record = logging.LogRecord("jbi", logging.WARNING, "x.py", 1, "peer says %s", (text,), None)
    shown = capsys.readouterr().out + JsonFormatter().format(record) + "\n"
    # Expect printable characters alone, letters as they are, and every reader to get the same value
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert "Größe" in shown
    decoder, found = json.JSONDecoder(), []
    while shown.strip():
        one, end = decoder.raw_decode(shown)
        found.append(one)
        shown = shown[end:].lstrip()
    assert found[:2] == [value, value]
    assert found[2]["message"] == f"peer says {text}"


@pytest.mark.parametrize("text", SPITEFUL.values(), ids=SPITEFUL)
def test_what_a_peer_says_in_an_error_reaches_log_and_terminal_as_text(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given an error that a peer has worded
    error = WireError(f"the peer says {text}")
    # When it is logged, expect one printable line
    record = logging.LogRecord("jbi", logging.WARNING, "x.py", 1, "%s", (error,), None)
    assert TextFormatter("%(levelname)s: %(message)s").format(record).isprintable()
    # Expect the same of what an exception of somebody else's says, and that it is bounded
    try:
        raise ValueError("\x1b[2J\x1b]0;owned\x07" + "x" * 1_000_000)
    except ValueError:
        record.exc_info = sys.exc_info()
    shown = TextFormatter("%(levelname)s: %(message)s").format(record)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert max(len(shown), len(JsonFormatter().format(record))) < 50_000
    # When it ends a command, expect printable lines, and its exit code

    def fails(**_options: object) -> None:
        raise error

    monkeypatch.setattr("jbi_pubsub.cli.app.jbi.main", fails)
    assert run([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("jbi: the peer says ")
    assert all(c.isprintable() or c == "\n" for c in said)


@pytest.mark.parametrize(
    "text", ["//item[name='x']", "//a[/b]", "//a[@id=1]/b", "[red]red[/red]", "[link=http://x.example]y[/link]", "[/]"]
)
def test_markup_of_a_peer_is_shown_as_it_is(text: str) -> None:
    assert text in _shown(text)


@pytest.mark.parametrize("text", [*SPITEFUL.values(), "\x9b2J", "a\u202eb", "a\u200bb", "\x7f"])
def test_json_says_what_is_there_and_nothing_that_a_terminal_would_obey(text: str) -> None:
    said = as_json({"name": text})
    assert said.isprintable()
    assert json.loads(said) == {"name": text}


def test_printable_text_stays_as_it_is() -> None:
    assert printable("Größe 5 µm, 東京: [a] 'b'") == "Größe 5 µm, 東京: [a] 'b'"
    assert printable(5.0) == "5.0"


def test_services_of_spiteful_peers_are_listed_in_one_line_each(
    federation: Any, said: Callable[..., Any], flags: list[str]
) -> None:
    # Given services in the lookup service whose entries have control characters
    with closing(JoinManager(federation.config, name="spiteful")) as community:
        for number, text in enumerate(SPITEFUL.values()):
            item = ServiceItem(
                f"service-{number}",
                (PAD_TYPE,),
                ServiceRef("d", "delegate", ("127.0.0.1:1",)),
                (PublisherAdapterDelegate(name=text, location="[red]rome[/red]").rep(),),
            )
            community.join(item)
            community.wait_joined(item.service_id, 60.0)
        # When they are listed
        answer = said(*flags, "services", "--type", PAD_TYPE)
    # Expect a line for each, of printable cells, with the markup as it is
    lines = answer.out.split("\n")[1:-1]
    assert answer.code == 0
    assert len(lines) == len(SPITEFUL)
    for line in lines:
        assert all(cell.isprintable() for cell in line.split("\t"))
        assert "[red]rome[/red]" in line
