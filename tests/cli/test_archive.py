"""`jbi archive`: what archives hold, give up, lose and get, at delegates and in folders at rest."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from jbi_pubsub.cli import backup, transfer
from jbi_pubsub.cli.app import run
from jbi_pubsub.codegen.repository import repository_of
from jbi_pubsub.core.config import ArchiveSection, PolicySection, TypesSection
from jbi_pubsub.core.errors import EntryError, ProtocolError
from jbi_pubsub.core.history import KeepRule
from jbi_pubsub.core.info_object import Head, ObjectAttributes, pack
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.entries import InformationType
from jbi_pubsub.protocol.replies import ArchivedSource
from jbi_pubsub.protocol.services import HistoryProxy
from tests.cli.conftest import DATA, Said
from tests.test_pages import TOP, agree, blocks, commands

TYPE = "mil.af.rl.jbi.Intel_Imagery"

Jbi = Callable[..., Said]


def kept_in(folder: Path, config: Any) -> Any:
    section = ArchiveSection(folder=str(folder), workers=0, reserve=0.0, memory=64 << 20)
    return msgspec.structs.replace(config, archive=section)


def marked(publisher: Any, figures: Any, *, persist: bool = True, at: str = "alpha") -> Any:
    """A registration of figure 1 at a delegate in rome, to be kept or not."""
    connection = publisher.connect_to_delegate(at, "rome")
    return publisher.register_publisher(connection, figures.schema, figures.figure_1, persist=persist)


@pytest.fixture
def pad(federation: Any, figures: Any, tmp_path: Path) -> DisseminationServer:
    """A delegate whose archive has five objects, in the folder `kept`."""
    server = federation.pad("alpha", "rome", config=kept_in(tmp_path / "kept", federation.config))
    publisher = federation.light()
    registration = marked(publisher, figures)
    for number in range(5):
        publisher.publish(registration, figures.figure_1, f"payload {number}".encode())
    publisher.flush()
    return server


@pytest.fixture
def jbi(pad: DisseminationServer, said: Any, flags: list[str]) -> Jbi:
    return lambda *words: said(*flags, *words)


def ids(jbi: Jbi, *words: str) -> list[str]:
    shown = jbi("query", "--json", *words)
    assert shown.code == 0, shown
    return [json.loads(line)["object"] for line in shown.out.splitlines()]


def test_status_and_check_tell_what_archives_hold(
    jbi: Jbi, pad: DisseminationServer, eventually: Callable[..., Any]
) -> None:
    shown = jbi("archive", "status")
    head, row = (line.split("\t") for line in shown.out.splitlines())
    facts = dict(zip(head, row, strict=True))
    assert (shown.code, facts["archive at"], facts["position"], facts["what is wrong"]) == (0, pad.address, "5", "")
    told = json.loads(jbi("archive", "status", "--json", "--at", pad.address).out)[pad.address]
    assert (told["position"], told["synced"], told["consumers"]) == (5, 5, 0)
    eventually(lambda: json.loads(jbi("archive", "status", "--json").out)[pad.address]["volumes"] == 1)
    assert jbi("archive", "check").code == 0
    # As `jbi status` does, and not once more among what is left
    shown = jbi("status")
    assert "archive at\tposition" in shown.out
    assert "alpha, rome\t5\t" in shown.out
    assert "archive." not in shown.out


def test_trouble_is_told_and_is_an_exit_code(
    jbi: Jbi, pad: DisseminationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive that knows of damage, in words for the terminal
    before = pad._archived()
    worse = msgspec.structs.replace(before, troubles=["\x1b[2Jpack is damaged"], full="payloads take 3 bytes")
    monkeypatch.setattr(pad, "_archived", lambda: worse)
    for words in (("archive", "status"), ("archive", "check"), ("status",)):
        shown = jbi(*words)
        assert shown.code == ("archive" in words)
        assert "pack is damaged" in shown.out
        assert "no room: payloads take 3 bytes" in shown.out
        assert "\x1b" not in shown.out


def test_what_is_deleted_is_gone_from_every_answer_and_does_not_come_back(jbi: Jbi, pad: DisseminationServer) -> None:
    # Given five objects, and a copy of them in a file
    assert jbi("archive", "export", "all.jsonl").out == "5 objects written to all.jsonl\n"
    first, *others = ids(jbi)
    # When one is deleted by its id
    shown = jbi("archive", "delete", first, "--yes")
    # Expect it to be in no answer
    assert (shown.code, shown.out) == (0, "1 object deleted at 1 archive\n")
    assert ids(jbi) == others
    assert jbi("query", "--count-only").out == "4\n"
    # By position, by predicate, by time
    assert jbi("archive", "delete", "--positions", "2-3", "--yes", "--at", pad.address).out.startswith("2 objects")
    assert jbi("archive", "delete", "--type", "Intel_Imagery", "--predicate", "//lat < 0", "--yes").out.startswith("0 ")
    assert jbi("archive", "delete", "--until", "1h", "--yes").out.startswith("0 ")
    told = json.loads(jbi("archive", "delete", "--type", "Intel_Imagery", "--yes", "--json").out)
    assert told == {"deleted": 2, "archives": {pad.address: 2}}
    assert ids(jbi) == []
    # And a late copy does not bring them back
    assert jbi("archive", "import", "all.jsonl").out == "0 objects kept, 5 deleted before\n"
    assert ids(jbi) == []


def test_nothing_is_deleted_without_a_word(jbi: Jbi) -> None:
    shown = jbi("archive", "delete", "--type", "Intel_Imagery")
    assert (shown.code, shown.is_one_line()) == (2, True)
    assert "this deletes 5 objects" in shown.err
    assert "--yes" in shown.err
    assert len(ids(jbi)) == 5


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("delete",), "no objects are named"),
        (("delete", "--all", "--type", "x"), "--all does not go"),
        (("delete", "--positions", "3-1"), "no positions"),
        (("delete", "--positions", "x"), "no positions"),
        (("delete", "--predicate", "//n[", "--yes"), "predicate"),
        (("delete", "--type", "Intel_Imagory", "--yes"), "no archive has objects of type Intel_Imagory"),
        (("delete", "--until", "noon", "--yes"), "for two hours ago"),
        (("status", "--at", "127.0.0.1:1", "--folder", "."), "--at asks a server"),
        (("check", "--folder", "."), "not an archive's folder"),
        (("status", "--folder", "nowhere"), "not an archive's folder"),
        (("export", "--folder", ".", "x.jsonl"), "not an archive's folder"),
        (("rebuild", "--folder", "."), "not an archive's folder"),
        (("export", "x.csv"), ".jsonl for JSON lines"),
        (("export", "there.jsonl"), "is there already"),
        (("import", "there.txt"), ".jsonl for JSON lines"),
        (("import", "there.parquet"), "not Parquet"),
        (("statsu",), "status"),
    ],
)
def test_what_makes_no_sense_is_one_line(jbi: Jbi, tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    for name in ("there.jsonl", "there.txt", "there.parquet"):
        (tmp_path / name).write_text("x")
    shown = jbi("archive", *words)
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert told in shown.err
    assert shown.code in (1, 2)
    assert not (tmp_path / "x.jsonl").exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_server_without_an_archive_is_told(federation: Any, said: Any, flags: list[str]) -> None:
    assert "know of no archive" in said(*flags, "archive", "status").err
    plain = federation.pad("alpha", "rome")
    assert "it has no archive" in said(*flags, "archive", "status", "--at", plain.address).out
    for words in (("retain",), ("rebuild",), ("delete", "--all", "--yes")):
        shown = said(*flags, "archive", *words, "--at", plain.address)
        assert (shown.code, shown.is_one_line()) == (1, True)
        assert "has no archive" in shown.err


def test_the_rules_are_tried_before_they_are_applied(
    jbi: Jbi, pad: DisseminationServer, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    # Given all in a pack, and a rule that keeps two objects
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.05)
    archive: Any = pad._stages.archive.keeping  # type: ignore[union-attr]
    archive._log._volume_records = 5
    jbi("archive", "export", "all.jsonl")
    text = Path("all.jsonl").read_text().replace('"time"', '"was"').replace('"sequence"', '"number"')
    Path("others.jsonl").write_text("".join(line.replace('"object_id"', '"id"') + "\n" for line in text.splitlines()))
    assert jbi("archive", "import", "others.jsonl").out == "5 objects kept\n"
    eventually(lambda: archive.status()["packs"] == 1)
    archive.follow((KeepRule(types=("*",), count=6),))
    # When it is asked what would go
    shown = jbi("archive", "retain")
    # Expect it to be told with the reason, and everything still to be there
    assert "beyond count: 4" in shown.out
    assert "4 objects would go" in shown.err
    assert len(ids(jbi)) == 10
    # When it is applied, expect it to be gone
    assert "4 objects are given up" in jbi("archive", "retain", "--apply").err
    assert len(ids(jbi)) == 6
    assert json.loads(jbi("archive", "retain", "--json").out) == {pad.address: []}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_what_is_exported_is_the_same_when_it_is_imported(
    jbi: Jbi,
    federation: Any,
    pad: DisseminationServer,
    tmp_path: Path,
    ending: str,
    eventually: Callable[..., Any],
) -> None:
    # Given a file of all objects
    assert jbi("archive", "export", f"all.{ending}").code == 0
    before = [json.loads(line) for line in jbi("query", "--json").out.splitlines()]
    places = [facts.pop("place") for facts in before]
    # When it is imported where they are, expect nothing twice
    assert jbi("archive", "import", f"all.{ending}").out == "0 objects kept, 5 here already\n"
    assert len(ids(jbi)) == 5
    # When it is imported into a folder at rest, twice
    told = jbi("archive", "import", f"all.{ending}", "--folder", "other")
    assert (told.code, told.out) == (0, "5 objects kept\n")
    assert jbi("archive", "import", f"all.{ending}", "--folder", "other").out == "0 objects kept, 5 here already\n"
    # Expect a delegate that serves the same objects from there, by type, template and replay
    pad.stop()
    other = federation.pad("bravo", "paris", config=kept_in(tmp_path / "other", federation.config))
    eventually(lambda: other.address in jbi("archive", "status").out)
    after = [json.loads(line) for line in jbi("query", "--type", "Intel_Imagery", "--json").out.splitlines()]
    assert [facts.pop("place") for facts in after] != places  # it is another archive
    assert after == before
    replayed = jbi(
        "subscribe", "--type", "Intel_Imagery", "--start", "all", "--count", "5", "--timeout", "20", "--json"
    )
    assert [json.loads(line)["object"] for line in replayed.out.splitlines()] == [each["object"] for each in before]
    template = ("--template", str(DATA / "fig3-template.xml"), "--schema", str(DATA / "Intel_Imagery.xsd"))
    assert jbi("query", *template, "--count-only").out == "5\n"


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_metadata_that_are_absent_or_no_xml_come_back_as_they_were(
    jbi: Jbi, federation: Any, pad: DisseminationServer, tmp_path: Path, ending: str
) -> None:
    # Given objects without metadata, and with some that are no XML, of a publisher who wants nothing checked
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    uid = publisher.register_publisher(at, type_name="raw", validate=False, well_formed=False, persist=True)
    odd = (b"", b"<a>", b"no xml", b"\xff\x00", "\u2028 <a/> ".encode(), b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>")
    said = ObjectAttributes(2, 30.0, reliable=False)  # the publisher's word on an object comes back as well
    for metadata in odd:
        publisher.publish(uid, metadata, b"p", attributes=None if metadata else said)
    publisher.flush()
    pad.stop()
    # When they are exported, and imported elsewhere
    assert jbi("archive", "export", f"all.{ending}", "--folder", "kept").code == 0
    told = jbi("archive", "import", f"all.{ending}", "--folder", "other")
    # Expect all of them, and the same bytes
    assert (told.err, told.code, told.out) == ("", 0, "11 objects kept\n")
    other = federation.pad("bravo", "paris", config=kept_in(tmp_path / "other", federation.config))
    found = list(federation.subscriber().query(type_name="raw"))
    assert tuple(obj.metadata for obj in found) == odd
    assert [obj.platform.attributes for obj in found] == [said, *[None] * (len(odd) - 1)]
    # And the same where a delegate takes them in
    third = federation.pad("gamma", "oslo", config=kept_in(tmp_path / "third", federation.config))
    assert jbi("archive", "import", f"all.{ending}", "--at", third.address).out == "11 objects kept\n"
    assert other.status()["archive"]["position"] == third.status()["archive"]["position"]


@pytest.mark.parametrize("at_rest", [False, True])
def test_payloads_that_are_too_large_for_an_export_are_told(
    jbi: Jbi, pad: DisseminationServer, monkeypatch: pytest.MonkeyPatch, at_rest: bool
) -> None:
    monkeypatch.setattr(backup, "MEMORY_BYTES", len("payload 1") - 1)
    if at_rest:
        pad.stop()
    where = ("--folder", "kept") if at_rest else ()
    shown = jbi("archive", "export", "all.jsonl", *where)
    assert (shown.code, shown.out) == (1, "5 objects written to all.jsonl\n")
    assert "of 5 objects: an archive has them in `large`" in shown.err
    shown = jbi("archive", "export", "metadata.jsonl", "--no-payloads", *where)
    assert (shown.code, shown.err) == (0, "")


def test_studies_read_what_is_exported(jbi: Jbi) -> None:
    jbi("archive", "export", "all.parquet")
    jbi("archive", "export", "all.jsonl", "--no-payloads")
    for file in ("all.parquet", "all.jsonl"):
        shown = jbi("study", "import", file, "--max-rejects", "0", "--out", f"data-{file}", "--json")
        assert json.loads(shown.out)["publications"] == 5


def test_lines_of_others_get_what_they_lack_and_bad_ones_are_told(jbi: Jbi, tmp_path: Path) -> None:
    # Given objects without ids, one with its own, and lines that are none
    lines = [
        '{"metadata": "<a><n>1</n></a>", "type": "other.A", "time": 5}',
        '{"metadata": "<a><n>2</n></a>", "type": "other.A", "payload": "p"}',
        '{"metadata": "<a><n>3</n></a>", "type": "other.A", "object_id": "own-3", "time": null, "payload": null}',
        '{"metadata": "<a>", "type": "other.A"}',
        "no json \x1b[2J",
        '{"metadata": "<a/>", "object_id": "../../etc"}',
        '{"metadata": "<a/>", "payload": "four", "payload_bytes": 9}',
        '{"metadata": "<a/>", "sequence": -1}',
        '{"metadata": "<a/>", "hops": 256}',
        "[" * 10_000,
    ]
    (tmp_path / "others.jsonl").write_text("\n".join(lines))
    shown = jbi("archive", "import", "others.jsonl")
    # Expect what makes sense, and the reason for the rest
    assert (shown.code, shown.out) == (1, "3 objects kept, 7 not imported\n")
    assert "line 4" in shown.err
    assert "\x1b" not in shown.err
    assert jbi("archive", "import", "others.jsonl").out == "0 objects kept, 3 here already, 7 not imported\n"
    assert "own-3" in ids(jbi, "--type", "other.A")
    # and what says no time to be published now, not in 1970
    assert len(ids(jbi, "--type", "other.A", "--since", "2026-01-01T00:00Z")) == 2
    replayed = jbi("subscribe", "--type", "other.A", "--start", "all", "--count", "3", "--timeout", "20")
    assert len(replayed.out.splitlines()) == 3


def test_an_object_that_can_not_be_imported_keeps_no_other_away(
    jbi: Jbi, pad: DisseminationServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given objects, of which one is too large for the network, and one's registration has another type
    monkeypatch.setattr(transfer, "WIRE_BYTES", 1_000)
    rows = [
        {"type": "other.A", "publisher": "r-1", "sequence": number, "metadata": f"<a>{number}</a>"}
        for number in range(1, 6)
    ]
    rows[1]["payload"] = "p" * 1_000
    rows[3]["type"] = "other.B"
    (tmp_path / "some.jsonl").write_text("\n".join(map(json.dumps, rows)))
    # When they are imported, expect the others, and the reasons with their lines
    shown = jbi("archive", "import", "some.jsonl", "--at", pad.address)
    assert (shown.code, shown.out) == (1, "3 objects kept, 2 not imported\n")
    assert "line 2: object" in shown.err
    assert "1,000 at most go over the network" in shown.err
    assert "line 4: its registration r-1 is of other.A 1.0, not of other.B 1.0" in shown.err
    # Expect one that is large to go into a folder
    shown = jbi("archive", "import", "some.jsonl", "--folder", "other")
    assert (shown.code, shown.out) == (1, "4 objects kept, 1 not imported\n")


def test_one_archive_of_several_is_exported(
    jbi: Jbi, federation: Any, pad: DisseminationServer, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    other = federation.pad("bravo", "paris", config=kept_in(tmp_path / "other", federation.config))
    eventually(lambda: other.address in jbi("archive", "status").out)
    assert jbi("archive", "export", "other.jsonl", "--at", other.address).out == "0 objects written to other.jsonl\n"
    assert jbi("archive", "export", "one.jsonl", "--at", pad.address).out == "5 objects written to one.jsonl\n"
    assert jbi("archive", "export", "x.jsonl", "--at", pad.address, "--folder", "other").code == 2


@pytest.mark.parametrize("full", ["refuse", "pass"])
def test_what_an_archive_has_no_room_for_is_not_imported(
    jbi: Jbi, federation: Any, tmp_path: Path, full: Literal["refuse", "pass"]
) -> None:
    # Given an archive that is full, and lets pass what is published, or refuses it
    config = kept_in(tmp_path / "small", federation.config)
    section = msgspec.structs.replace(config.archive, full=full, max_payload_bytes=10)
    small = federation.pad("bravo", "paris", config=msgspec.structs.replace(config, archive=section))
    assert jbi("archive", "export", "all.jsonl").code == 0
    # When objects are imported there; Expect that to fail, and the archive to say why
    shown = jbi("archive", "import", "all.jsonl", "--at", small.address)
    assert (shown.code, shown.out) == (1, "")
    assert "has no room: payloads take 0 of 10 bytes" in shown.err
    assert small.status()["archive"]["position"] == 0


def an_object(number: int, *, type_: str = "other.A", payload_length: int = 1) -> bytes:
    head = Head("", "registration-1", number, 5.0, type_, "1.0", b"<a/>", payload_length)
    return b"".join(map(bytes, pack(head, b"p").parts))


@pytest.mark.parametrize(
    ("objects", "entries"),
    [
        ([an_object(1), b"no object"], ()),
        ([an_object(1), an_object(0)], ()),
        ([an_object(1), an_object(2, type_="")], ()),
        ([an_object(1), an_object(2, type_="other.B")], ()),
        ([an_object(1), an_object(2, payload_length=9)], ()),
        ([an_object(1)], (msgspec.structs.replace(InformationType(name="other.A").rep(), values=("one",)),)),
    ],
)
def test_of_what_makes_no_sense_nothing_is_kept(
    federation: Any, pad: DisseminationServer, jbi: Jbi, objects: list[bytes], entries: Any
) -> None:
    proxy = HistoryProxy(pad.endpoints.ref("", ()), federation.config.security(), timeout=60.0)
    with pytest.raises((ProtocolError, EntryError)):
        proxy.take_in(objects, [ArchivedSource("registration-1", entries)], 10.0)
    proxy.close()
    assert pad.status()["archive"]["position"] == 5
    assert jbi("query", "--count-only").out == "5\n"


def test_the_index_is_made_anew(jbi: Jbi, pad: DisseminationServer, eventually: Callable[..., Any]) -> None:
    assert jbi("archive", "rebuild").out == "the index is built again\n"
    assert pad.status()["archive"]["indexed"] == 5
    assert jbi("query", "--predicate", "//lat > 33", "--count-only").out == "5\n"
    assert "is being built again" in jbi("archive", "rebuild", "--no-wait", "--at", pad.address).out
    eventually(lambda: pad.status()["archive"]["indexed"] == 5)


def test_a_folder_in_use_is_refused_and_one_at_rest_is_read(jbi: Jbi, pad: DisseminationServer, tmp_path: Path) -> None:
    for words in (("status",), ("check",), ("rebuild",), ("export", "x.jsonl"), ("import", "empty.jsonl")):
        (tmp_path / "empty.jsonl").write_text("")
        shown = jbi("archive", *words, "--folder", "kept")
        assert (shown.code, shown.is_one_line()) == (1, True)
        assert f"in use by process {os.getpid()}" in shown.err
    # When nobody has it
    pad.stop()
    # Expect what docs/archive.md says
    page = blocks(TOP / "docs" / "archive.md")
    (block,) = (b for b in page if b.value == "test_a_folder_in_use_is_refused_and_one_at_rest_is_read")
    for command, expected in commands(block):
        done = jbi(*shlex.split(command.replace("/var/lib/jbi/archive", "kept"))[1:])
        assert done.code == 0
        assert agree(expected.replace("/var/lib/jbi/archive", "kept"), done.out)
    shown = jbi("archive", "check", "--folder", "kept")
    facts = dict(line.split("\t") for line in shown.out.splitlines())
    assert (shown.code, facts["result"], facts[f"  {TYPE} 1.0"]) == (0, "good", "5")
    assert json.loads(jbi("archive", "status", "--folder", "kept", "--json").out)["objects"] == 5
    assert len(Path("rescued.jsonl").read_text().splitlines()) == 5
    assert jbi("archive", "rebuild", "--folder", "kept").out == "the index is built again\n"


def test_damage_in_a_folder_is_found_and_changes_nothing(jbi: Jbi, pad: DisseminationServer, tmp_path: Path) -> None:
    # Given a bit turned in the middle of the log
    pad.stop()
    (log,) = (tmp_path / "kept" / "log").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    for _ in range(2):
        # When it is checked, expect what is missing, and where
        shown = jbi("archive", "check", "--folder", "kept")
        assert (shown.code, "between position 2 and position 4" in shown.out) == (1, True), shown
        assert str(log.relative_to(tmp_path)) in shown.out
        assert "objects\t4, up to position 5" in shown.out
    # When the catalogue is cut as well, and a pack is none
    catalogue = tmp_path / "kept" / "archive.db"
    catalogue.write_bytes(catalogue.read_bytes()[:5_000])
    (tmp_path / "kept" / "packs" / "00000000000000000009.pack").write_bytes(b"none")
    shown = jbi("archive", "check", "--folder", "kept")
    # Expect each to be named, and all to be as it was
    assert shown.code == 1
    assert "archive.db is damaged" in shown.out
    assert "9.pack is not a pack, or damaged" in shown.out
    assert log.read_bytes() == data


def test_tail_shows_the_last_and_goes_on(
    pad: DisseminationServer, federation: Any, figures: Any, flags: list[str], start: Callable[..., Any]
) -> None:
    # Given `jbi archive tail`, as a process
    tail = start(*flags, "archive", "tail", "-n", "2", "--count", "4", "--json")
    before = [tail.fact() for _ in range(2)]
    # When more is published, some of it kept
    publisher = federation.light()
    kept, passed = marked(publisher, figures), marked(publisher, figures, persist=False)
    for _ in range(2):
        publisher.publish(passed, figures.figure_1, b"")
        publisher.publish(kept, figures.figure_1, b"")
    publisher.flush()
    # Expect what is archived
    after = [tail.fact() for _ in range(2)]
    assert tail.wait(60.0) == 0
    assert [each["sequence"] for each in (*before, *after)] == [4, 5, 1, 2]
    assert {each["registration"] for each in after} == {str(kept)}


def test_tail_shows_so_many_of_before_as_are_asked_for_of_all_archives_together(
    pad: DisseminationServer, federation: Any, figures: Any, jbi: Jbi, tmp_path: Path
) -> None:
    # Given two archives
    federation.pad("bravo", "rome", config=kept_in(tmp_path / "other", federation.config))
    publisher = federation.light()
    registration = marked(publisher, figures, at="bravo")
    for _ in range(3):
        publisher.publish(registration, figures.figure_1, b"")
    publisher.flush()
    # When the last two are asked for, or none, expect these alone, and nothing of before as if it came now
    shown = jbi("archive", "tail", "-n", "2", "--timeout", "1", "--json")
    assert [json.loads(line)["sequence"] for line in shown.out.splitlines()] == [2, 3]
    assert jbi("archive", "tail", "-n", "0", "--timeout", "1").out == ""


def test_a_stranger_may_not_change_anything(
    federation: Any, said: Any, flags: list[str], figures: Any, tmp_path: Path
) -> None:
    # Given an archive whose rules let everybody read, and nobody administer
    policy = tmp_path / "policy.toml"
    policy.write_text('[[access]]\naction = ["connect", "publish", "persist", "subscribe", "query", "status"]\n')
    config = kept_in(tmp_path / "kept", federation.config)
    config = msgspec.structs.replace(config, policy=PolicySection(file=str(policy)))
    federation.pad("alpha", "rome", config=config)
    publisher = federation.light()
    publisher.publish(marked(publisher, figures), figures.figure_1, b"")
    publisher.flush()
    assert said(*flags, "archive", "export", "all.jsonl").code == 0
    # Expect every change to be refused in a line, and nothing to be gone
    for words in (
        ("delete", "--all", "--yes"),
        ("retain",),
        ("retain", "--apply"),
        ("rebuild",),
        ("import", "all.jsonl"),
    ):
        shown = said(*flags, "archive", *words)
        assert (shown.code, shown.is_one_line()) == (1, True), shown
        assert "may not administer" in shown.err
    assert said(*flags, "query", "--count-only").out == "1\n"


def test_a_schema_is_tried_on_archived_objects_and_these_keep_their_type(
    federation: Any, figures: Any, said: Any, flags: list[str], tmp_path: Path
) -> None:
    # Given a delegate with a type repository and an archive, and a type in it
    config = kept_in(tmp_path / "kept", federation.config)
    config = msgspec.structs.replace(config, types=TypesSection(folder=str(tmp_path / "types")))
    repository = repository_of(config)
    assert repository.registry is not None
    federation.stack.callback(repository.registry.close)
    server = DisseminationServer(config, repository, characteristics=("alpha", "rome"))
    server.start()
    federation.stack.callback(server.stop, 0.5)
    server.community.wait_joined(server.server_id, 60.0)
    types = lambda *words: said(*flags, "types", *words)  # noqa: E731  # said so often
    assert types("add", str(figures.schema)).code == 0
    whole = figures.schema.read_text().replace('name="lat" type="xs:decimal"', 'name="lat" type="xs:integer"')
    Path("whole.xsd").write_text(whole)
    check = ("check", "whole.xsd", "--of", "Intel_Imagery", "--archived")
    assert types(*check, "10").is_one_line()
    publisher = federation.light()
    registration = marked(publisher, figures)
    for lat in ("1.5", "35", "3.5", "36"):
        publisher.publish(registration, figures.metadata(lat=lat), b"")
    publisher.flush()
    # When a schema is tried that wants whole degrees, expect it to be told which of the last ones it would refuse
    shown = types(*check, "100")
    assert (shown.code, shown.out.splitlines()[0]) == (1, "2 of 4 documents would be refused")
    assert types(*check, "3").out.startswith("1 of 3")
    # When nobody publishes any more, expect the type to be in use as long as the archive has something of it
    publisher.close()
    shown = types("remove", "Intel_Imagery")
    assert (shown.code, shown.is_one_line()) == (1, True)
    assert "in use: archived objects" in shown.err
    assert said(*flags, "archive", "delete", "--all", "--yes").code == 0
    assert types("remove", "Intel_Imagery").code == 0


def test_every_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("status", "check", "tail", "retain", "delete", "rebuild", "export", "import"):
        assert run(["archive", name, "--help"]) == 0
        assert f"jbi archive {name}" in capsys.readouterr().out
