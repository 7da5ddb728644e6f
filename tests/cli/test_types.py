"""`jbi types` on a folder and at a delegate: what people type, and what schemas and repositories of others may hold."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.cli.repositories import named
from jbi_pubsub.cli.types import _write_documents
from jbi_pubsub.codegen.repository import repository_of
from jbi_pubsub.core.config import TypesSection
from jbi_pubsub.core.errors import JbiError, SchemaError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.pad.server.server import DisseminationServer

Said = Callable[..., tuple[int, str, str]]

HEAD = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1">'
REPORT = (
    f'{HEAD}<xs:element name="report"><xs:complexType><xs:sequence><xs:element name="unit" type="xs:string"'
    ' jbi:variance="invariant"/><xs:element name="count" type="xs:int" jbi:variance="variant"/>'
    "</xs:sequence></xs:complexType></xs:element></xs:schema>"
)
SPEED = f'{HEAD}<xs:element name="speed" type="xs:decimal"/></xs:schema>'


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Runs `jbi types`; exit code, stdout, stderr. In an empty folder with two schemas."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "report.xsd").write_text(REPORT)
    (tmp_path / "speed.xsd").write_text(SPEED)

    def call(*words: str, folder: str = "types", at: str = "") -> tuple[int, str, str]:
        capfd.readouterr()
        where = ["--at", at] if at else ["--folder", folder] if folder else []
        code = run(["types", *words, *where])
        told = capfd.readouterr()
        assert "Traceback" not in told.err
        return code, told.out, told.err

    return call


@pytest.fixture
def delegate(federation: Any, tmp_path: Path) -> DisseminationServer:
    """A delegate (alpha, rome) with a type repository."""
    config = msgspec.structs.replace(federation.config, types=TypesSection(folder=str(tmp_path / "types")))
    repository = repository_of(config)
    assert repository.registry is not None
    federation.stack.callback(repository.registry.close)
    server = DisseminationServer(config, repository, characteristics=("alpha", "rome"))
    server.start()
    federation.stack.callback(server.stop, 0.5)
    return server


@pytest.fixture(params=["folder", "delegate"])
def types(request: pytest.FixtureRequest, said: Said) -> Said:
    """The same commands on a folder, and at a delegate."""
    if request.param == "folder":
        return said
    at = request.getfixturevalue("delegate").address
    return lambda *words: said(*words, at=at)


@pytest.mark.parametrize("given", ["Summary", "mil.Sumary"])
def test_a_publisher_of_an_unknown_type_is_told_which_was_meant(
    given: str, delegate: DisseminationServer, federation: Any, said: Said
) -> None:
    # Given a type in the repository of a delegate; When its name is in short or mistyped, expect its whole name
    assert said("add", "report.xsd", "--name", "mil.Summary", at=delegate.address)[0] == 0
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    with pytest.raises(SchemaError, match=r"no schema of .* Did you mean mil\.Summary\?"):
        publisher.register_publisher(at, type_name=given)
    # And of a name that is like none, what to do
    with pytest.raises(SchemaError, match="Give the schema, add it to the repository"):
        publisher.register_publisher(at, type_name="other")


@pytest.mark.row("G-117")
def test_a_type_from_its_beginning_to_its_end(types: Said, tmp_path: Path) -> None:
    code, out, _ = types("add", "report.xsd", "--description", "what is seen")
    assert (code, out) == (0, f"type report 1.0, schema {_shown(types)['digest']}\n")
    assert types("add", "report.xsd", "--name", "mil.Summary", "--version", "2", "--parent", "report")[0] == 0
    listed = json.loads(types("list", "--json")[1])["types"]
    assert [(e["name"], e["version"], e["state"], e["parent"]) for e in listed] == [
        ("mil.Summary", "2", "active", {"name": "report", "version": "1.0"}), ("report", "1.0", "active", None),
    ]  # fmt: skip
    assert types("describe", "report", "what was seen")[0] == 0
    assert types("deprecate", "report/1.0")[1] == "type report 1.0 is deprecated\n"
    assert (_shown(types)["description"], _shown(types)["state"]) == ("what was seen", "deprecated")
    assert types("deprecate", "report", "--undo")[1] == "type report 1.0 is active\n"
    (tmp_path / "icon").write_bytes(bytes(range(256)))
    assert types("property", "report", "icon", "--set", "icon")[0] == 0
    assert types("property", "report", "icon", "-o", "copy")[0] == 0
    assert (tmp_path / "copy").read_bytes() == bytes(range(256))
    assert types("property", "report")[1].startswith("icon  256 bytes")
    assert types("property", "report", "icon", "--remove")[0] == 0
    assert types("property", "report")[1] == ""
    assert types("export", "report")[1] == REPORT
    assert types("remove", "report")[0] in (1, 2)  # a delegate refuses it; of a folder the command line is wrong
    assert types("remove", "Summary/2")[1] == "type mil.Summary 2 is removed\n"
    assert types("remove", "report")[0] == 0
    told = json.loads(types("history", "report", "--json")[1])
    assert [each["what"].replace(",", "").split()[0] for each in told] == [
        "added", "described", "deprecated", "made", "property", "property", "removed",
    ]  # fmt: skip


def _shown(types: Said) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(types("show", "report", "--json")[1])
    return found


def test_an_attribute_needs_no_marks(types: Said) -> None:
    assert types("add", "speed.xsd", "--name", "speed", "--attribute")[0] == 0
    assert [e["name"] for e in json.loads(types("list", "--attribute", "--json")[1])["attributes"]] == ["speed"]
    assert json.loads(types("list", "--json")[1])["types"] == []
    assert types("deprecate", "speed", "--attribute")[1] == "attribute speed 1.0 is deprecated\n"
    assert types("remove", "speed", "--attribute")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("show", "reprot"), 1, "no type reprot; did you mean report?"),
        (("show", "report/7"), 1, "no version 7 of report; there are: 1.0"),
        (("add", "other.xsd", "--name", "report"), 1, "with schema"),
        (("add", "speed.xsd"), 1, "does not say what is invariant"),
        (("add", "report.xsd", "--name", "x", "--parent", "ghost"), 1, "no type ghost"),
        (("add", "report.xsd", "--name", "a\x1b[2Jb"), 1, "is not a name and version"),
        (("add", "report.xsd", "--name", "x", "--description", "\x1b[2J"), 2, "can't be printed"),
        (("add", "two.xsd", "--attribute"), 1, "--root"),
        (("add", "nothing.xsd"), 2, "does not exist"),
        (("add", "text.xsd"), 1, "text.xsd"),
        (("property", "report", "--set", "text.xsd"), 2, "with the name of a property"),
        (("property", "report", "a", "--remove"), 1, "has no property a"),
        (("property", "report", "a"), 1, "has no property a"),
        (("history", "ghost"), 1, "no type ghost"),
        (("check", "report.xsd", "--of", "report"), 2, "--from FOLDER or --archived N"),
        (("check", "report.xsd", "--of", "report", "--from", "empty"), 2, r"no *.xml below empty"),
        (("lsit",), 2, "Did you mean 'list'?"),
    ],
)
def test_what_makes_no_sense_gets_one_line(
    said: Said, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    said("add", "report.xsd")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.xsd").write_text("no schema")
    (tmp_path / "other.xsd").write_text(REPORT.replace("xs:int", "xs:long"))
    (tmp_path / "two.xsd").write_text(SPEED.replace("<xs:element", '<xs:element name="b"/><xs:element'))
    # Expect an exit code, and what is wrong
    found = said(*words)
    assert found[0] == code
    assert told in found[2]
    assert "\x1b" not in found[1] + found[2]


def test_where_there_is_no_repository(said: Said, federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said("list", folder="nowhere")[::2] == (
        1,
        "jbi: nowhere holds no type repository. `jbi types add --folder` makes one\n",
    )
    assert said("list", "--at", "127.0.0.1:1")[0] == 2
    # and nobody, or a delegate, or a lookup service that has none
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", federation.lookups[0].address)
    assert "no delegate with a type repository" in said("list", folder="")[2]
    pad = federation.pad()
    for name in ("bravo", "carol"):
        config = msgspec.structs.replace(federation.config, types=TypesSection(folder=name))
        repository = repository_of(config)
        assert repository.registry is not None
        federation.stack.callback(repository.registry.close)
        server = DisseminationServer(config, repository, characteristics=(name, "rome"))
        server.start()
        federation.stack.callback(server.stop, 0.5)
        server.community.wait_joined(server.server_id, 60.0)
        # or one, or two that have one
        code, _, err = said("list", folder="")
        assert (code, "several delegates have a type repository" in err) == (
            (0, False) if name == "bravo" else (2, True)
        )
    assert "(bravo, rome)" in err
    assert "has no type repository" in said("list", at=pad.address)[2]
    assert "is not a delegate" in said("list", at=federation.lookups[0].address)[2]


def test_a_new_schema_is_tried_on_documents(said: Said, tmp_path: Path) -> None:
    # Given documents of a type, one of which it never was valid for, and one that is no XML
    said("add", "report.xsd")
    samples = tmp_path / "samples"
    (samples / "more").mkdir(parents=True)
    for number, count in enumerate((1, 20, 300, -4)):
        (samples / "more" / f"{number}.xml").write_text(f"<report><unit>1</unit><count>{count}</count></report>")
    (samples / "bad.xml").write_text("<report/>")
    (samples / "text.xml").write_text("<report>")
    (samples / "note.txt").write_text("no metadata")
    # When a schema is tried that takes small counts alone; Expect those it would refuse, each kind with its first
    small = REPORT.replace("xs:int", "xs:unsignedByte")
    (tmp_path / "new.xsd").write_text(small)
    code, out, _ = said("check", "new.xsd", "--of", "report", "--from", "samples", "--json")
    found = json.loads(out)
    assert code == 1
    (reason,) = found.pop("reasons")
    assert found == {
        "type": "report 1.0", "documents": 6, "refused": 2, "before": 1, "unreadable": 1, "others": 0,
        "same_schema": False,
    }  # fmt: skip
    assert (reason["path"], reason["documents"], reason["first"]) == ("/report/count", 2, "more/2.xml")
    assert "300" in reason["error"]
    # and the same schema, laid out differently, to refuse none
    (tmp_path / "same.xsd").write_text(REPORT.replace("><", ">\n<"))
    code, out, _ = said("check", "same.xsd", "--of", "report", "--from", "samples")
    assert (code, out.splitlines()[0]) == (0, "same.xsd means the same as the schema of report 1.0")
    # and nothing to be remembered of it
    assert [e["version"] for e in json.loads(said("list", "--json")[1])["types"]] == ["1.0"]


def test_a_schema_of_many_documents_is_exported_as_it_was(said: Said, tmp_path: Path) -> None:
    # Given a schema in a folder, one above it, and one at an address, with a marks file
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a/main.xsd").write_text(
        f'{HEAD}<xs:include schemaLocation="../b.xsd"/><xs:include schemaLocation="http://example.org/c.xsd"/>'
        '<xs:element name="r" type="B"/></xs:schema>'
    )
    for name, base in (("B", "C"), ("C", "xs:string")):
        (tmp_path / f"in/{name.lower()}.xsd").write_text(
            f'{HEAD}<xs:simpleType name="{name}"><xs:restriction base="{base}"/></xs:simpleType></xs:schema>'
        )
    (tmp_path / "in/b.xsd").write_text(
        (tmp_path / "in/b.xsd")
        .read_text()
        .replace("<xs:simple", '<xs:include schemaLocation="http://example.org/c.xsd"/><xs:simple')
    )
    (tmp_path / "marks.json").write_text('{"root": "r"}')
    where = ("--locations", "http://example.org/c.xsd=in/c.xsd", "--marks", "marks.json", "--name", "many")
    assert said("add", "in/a/main.xsd", *where)[0] == 0
    # When it is exported, and added to another repository from there; Expect the same schema
    assert said("export", "many")[0] == 2
    code, _, err = said("export", "many", "-o", "out")
    assert code == 0
    assert "--locations http://example.org/c.xsd=out/example.org/c.xsd" in err
    where = (
        "--locations",
        "http://example.org/c.xsd=out/example.org/c.xsd",
        "--marks",
        "out/marks.json",
        "--name",
        "many",
    )
    assert said("add", "out/schema/main.xsd", *where, folder="second")[0] == 0
    digests = {json.loads(said("show", "many", "--json", folder=f)[1])["digest"] for f in ("types", "second")}
    assert len(digests) == 1
    assert said("export", "many", "-o", "out")[0] == 2  # nothing is written over


@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "/etc/passwd", "http://../../../etc/passwd", "file:/../../x", "..", "."]
)
def test_no_document_of_a_stranger_leaves_the_folder(tmp_path: Path, name: str) -> None:
    # Given a bundle of a repository of others, with names of its choice
    inside = tmp_path / "a/b/c/out"
    bundle = SchemaBundle("m.xsd", (("m.xsd", b"main"), (name, b"bad")), b"", TypeName("t"))
    # When it is exported; Expect an error, or files in the folder alone
    try:
        _write_documents(bundle, inside)
    except JbiError as exc:
        assert "not a name for a file" in str(exc)  # noqa: PT017  # one of two good ends
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(inside)]
    assert outside == []


def test_a_namespace_has_slashes_of_its_own() -> None:
    cap = "{http://a.org/cap/1.2}alert"
    assert named(cap) == TypeName(cap)
    assert named(f"{cap}/2.1") == TypeName(cap, "2.1")
    assert named("mil.Report/1.1") == TypeName("mil.Report", "1.1")
    assert named("mil.Report") == TypeName("mil.Report")
