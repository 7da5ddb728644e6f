"""What others have becomes a data set: what can't be read is told, and nothing half-written is taken for whole."""

from __future__ import annotations

import base64
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jbi_pubsub.cli.app import jbi, run
from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.spark import dataset, passes
from jbi_pubsub.spark.dataset import PublicationRow
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.studies.study import Data, data_in

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")

CAP = Path(__file__).parent.parent.parent / "examples" / "data" / "cap"


def command(*arguments: object) -> Result:
    return CliRunner().invoke(jbi, ["study", *map(str, arguments)])


def imported(tmp_path: Path, source: Path, *more: object) -> tuple[Data, list[PublicationRow], dict[str, Any]]:
    told = command("import", source, "--out", tmp_path / "data", "--json", *more)
    assert told.exit_code == 0, (told.output, told.exception)
    files = passes.parquet_files(tmp_path / "data" / "publications")
    return data_in(tmp_path / "data"), [p for path, _ in files for p in passes.publications_in(path)], json.loads(told.output)  # fmt: skip # noqa: E501


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def alerts(tmp_path: Path) -> Path:
    """Real alerts, one of them twice, with a payload; and what is none."""
    folder = tmp_path / "alerts"
    folder.mkdir()
    for name in ("canada", "again"):
        (folder / f"{name}.metadata.xml").write_bytes((CAP / "canada.xml").read_bytes())
    (folder / "again.payload").write_bytes(b"\x00\x01")
    (folder / "again.xml").write_text("<alert/>")
    (folder / "again.txt").write_text("not a document either")
    (folder / "broken.xml").write_text("<alert>")
    (folder / "other.xml").write_text("<track/>")
    (folder / "huge.xml").write_bytes(b"<a>" + b" " * (64 << 20) + b"</a>")
    (folder / "notes.txt").write_text("not a document")
    (folder / "marks.json").write_bytes((CAP / "marks.json").read_bytes())  # named, so no input
    return folder


def test_documents_are_typed_by_their_schema_and_share_a_registration_where_invariants_are_equal(
    alerts: Path, tmp_path: Path
) -> None:
    wanted = lines(tmp_path / "wanted.jsonl", {"subscription": "all"}, {"subscription": "bad", "predicate": "/a["}, "{")

    data, published, told = imported(
        tmp_path, alerts, "--schema", CAP / "cap12.xsd", "--marks", alerts / "marks.json", "--subscriptions", wanted
    )

    # Expect both alerts, of one registration with the entries that a publisher would register
    assert [(p.object_id, p.payload_bytes) for p in published] == [("again", 2), ("canada", 0)]
    [registration] = data.contracts.registrations
    assert {p.publisher for p in published} == {registration.registration}
    assert registration.type == "{urn:oasis:names:tc:emergency:cap:1.2}alert"
    assert registration.entries[0].cls.name == "jbi.InformationType"
    assert len(registration.entries) > 1
    # Expect all else among the rejects, each with its reason
    reasons = {reject.row: reject.reason for reject in data.rejects}
    assert reasons.keys() == {
        "bad", "wanted.jsonl line 3", "broken", "other", "huge.xml", "notes.txt", "again.txt", "again.xml",
    }  # fmt: skip
    assert reasons["again.xml"] == "has the id of again.metadata.xml next to it"
    assert "not well-formed" in reasons["broken"]
    assert "more than 1,048,576 bytes" in reasons["huge.xml"]
    assert told["rejects"] == 8
    study = command("fanout", tmp_path / "data", "--out", tmp_path / "out", "--json")
    assert json.loads(study.output)["numbers"]["deliveries"] == 2
    assert json.loads(study.output)["run"]["rejected"] == 8


def test_json_lines_are_publications_and_each_bad_one_is_named(tmp_path: Path) -> None:
    source = lines(
        tmp_path / "given.jsonl",
        {"object_id": "o1", "metadata": "<t/>", "payload": "x", "time": 5.5},
        {"metadata": "<t/>", "type": "t2", "payload_base64": base64.b64encode(b"\xff").decode()},
        {"metadata": 7}, {"object_id": "late"}, "no json", "", {"metadata": "<t/>", "time": -1},
    )  # fmt: skip

    data, published, _ = imported(tmp_path, source)

    assert [(p.object_id, p.type, p.time, p.payload) for p in published] == [
        ("o1", "t", 5.5, b"x"), ("given.jsonl line 2", "t2", None, b"\xff"),
    ]  # fmt: skip
    assert [reject.row for reject in data.rejects] == [f"given.jsonl line {n}" for n in (3, 4, 5, 7)]


def test_the_text_of_a_line_is_read_as_a_text_whatever_encoding_its_declaration_names(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="iso-8859-1"?><t>\u00e9</t>'

    _, [published], _ = imported(tmp_path, lines(tmp_path / "given.jsonl", {"metadata": text}))

    assert parse_metadata(published.metadata).text == "\u00e9"


def test_parquet_of_publications_takes_its_contracts_from_another_data_set(tmp_path: Path) -> None:
    domain = StudyDomain(registrations=5, subscriptions=20, publications=60, selectivity=0.5)
    dataset.write(tmp_path / "whole", domain.contracts(), domain.published(), source="generated")
    fewer = domain.contracts()
    dataset.write(tmp_path / "part", dataset.Contracts(fewer.registrations[:1], fewer.subscriptions), [], source="x")
    given = tmp_path / "whole" / "publications"

    _, published, _ = imported(tmp_path, given, "--contracts", tmp_path / "whole")
    told = [json.loads(command("fanout", tmp_path / d, "--out", tmp_path / f"o{d}", "--json").output)["numbers"]
            for d in ("whole", "data")]  # fmt: skip

    assert published == list(domain.published())
    assert told[0] == told[1]
    some, kept, _ = imported(tmp_path, given, "--contracts", tmp_path / "part")
    assert {p.publisher for p in kept} == {"registration-0"}
    assert {reject.reason for reject in some.rejects} >= {"registration 'registration-1' is not among the contracts"}
    assert len(kept) + len(some.rejects) == 60


def test_contracts_below_the_folder_that_is_read_are_no_publications(tmp_path: Path) -> None:
    # Given a data set's tables in one folder, in any form that contracts may have
    assert command("generate", "--publications", 5, "--out", tmp_path / "made").exit_code == 0
    folder = tmp_path / "in"
    shutil.copytree(tmp_path / "made" / "publications", folder)
    shutil.copytree(tmp_path / "made" / "registrations", folder / "registrations")
    shutil.copy(next((tmp_path / "made" / "subscriptions").iterdir()), folder / "subscriptions.parquet")

    contracts = ("--registrations", folder / "registrations", "--subscriptions", folder / "subscriptions.parquet")
    data, published, told = imported(tmp_path, folder, *contracts)

    # Expect each file to be read as what it is named to be
    assert (len(published), told["rejects"]) == (5, 0)
    assert len(data.contracts.registrations) > 1
    assert len(data.contracts.subscriptions) > 1


def test_a_link_to_itself_is_told_as_no_document(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "track.xml").write_text("<track/>")
    (folder / "circle.xml").symlink_to("circle.xml")

    data, published, _ = imported(tmp_path, folder)

    assert [each.object_id for each in published] == ["track"]
    assert [(each.row, each.reason) for each in data.rejects] == [("circle.xml", "is not a .xml file")]


def test_rejects_name_the_row_from_one_and_what_stands_for_a_missing_publisher(tmp_path: Path) -> None:
    # Given a subscription without an id, the second of its file, and a document that no registration is named for
    dataset.write(tmp_path / "part", dataset.Contracts(), [], source="x")
    wanted = lines(tmp_path / "wanted.jsonl", {"subscription": "s"}, {"predicate": "/t"})
    source = lines(tmp_path / "given.jsonl", {"metadata": "<t/>"})

    data, published, _ = imported(tmp_path, source, "--contracts", tmp_path / "part", "--subscriptions", wanted)

    assert published == []
    assert [(each.row, each.reason) for each in data.rejects] == [
        ("row 2", "Object missing required field `subscription`"),
        ("given.jsonl line 1",
         "registration 't' is not among the contracts: there is no `publisher`, so its type is used instead"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("files", "more", "problem"),
    [
        ({}, [], "holds nothing"),
        ({"a.txt": b"x"}, [], "holds a.txt"),
        ({"a.xml": b"<a/>", "b.jsonl": b"{}"}, [], "holds lines and xml"),
        ({"a.jsonl": b"\n"}, [], "is empty"),
        ({"a.parquet": b"PAR1 cut short"}, [], "can't be read: Parquet"),
        ({"a.xml": b"<a>"}, ["--max-rejects", "0"], "more than 0 rows could not be read"),
        ({"a.xml": b"<a/>"}, ["--marks", CAP / "marks.json"], "for --schema"),
        ({"a.xml": b"<a/>"}, ["--schema", CAP / "cap12.xsd", "--marks", CAP / "canada.xml"], "marks"),
        ({"a.xml": b"<a/>"}, ["--schema", CAP / "canada.xml"], "schema"),
    ],
    ids=["empty folder", "something else", "two forms", "blank", "cut short", "too many rejects", "marks alone",
         "wrong marks", "wrong schema"],
)  # fmt: skip
def test_what_is_no_input_is_refused_with_a_word(
    files: dict[str, bytes], more: list[object], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        (tmp_path / "in" / name).write_bytes(content)

    code = run(["study", "import", str(tmp_path / "in"), "--out", str(tmp_path / "data"), *map(str, more)])

    said = capsys.readouterr().err
    assert code in (1, 2)
    assert problem in said
    assert "Traceback" not in said
    with pytest.raises(StudyError):
        data_in(tmp_path / "data")


@pytest.mark.parametrize("arguments", [["generate", "--publications", "20000", "--out", "data"],
                                       ["fanout", "small", "--out", "data"]], ids=["data", "result"])  # fmt: skip
def test_a_disk_that_is_full_leaves_nothing_that_is_taken_for_finished(arguments: list[str], tmp_path: Path) -> None:
    # Given files that can't grow beyond 20 kB, which is as a full disk to who writes them
    domain = StudyDomain(registrations=5, subscriptions=20, publications=60)
    dataset.write(tmp_path / "small", domain.contracts(), domain.published(), source="generated")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # noqa: E731

    done = subprocess.run(
        [sys.executable, "-c", "from jbi_pubsub.cli import main; main()", "study", *arguments],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, preexec_fn=limit,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert "can't be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads((tmp_path / "data" / "manifest.json").read_text())["state"] == "running"


@pytest.mark.processes
def test_ctrl_c_ends_a_study_with_its_code_and_leaves_nothing_finished(
    start: Callable[..., Any], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    told = start("study", "generate", "--publications", "100000000", "--out", str(tmp_path / "data"))
    eventually(lambda: (tmp_path / "data" / "publications").is_dir())

    told.signal(signal.SIGINT)

    assert told.wait(60.0) == 130
    with pytest.raises(StudyError, match="unfinished"):
        data_in(tmp_path / "data")


def test_a_folder_that_may_not_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    lines(tmp_path / "in.jsonl", {"metadata": "<t/>"})
    told = command("import", tmp_path / "in.jsonl", "--out", "/proc/nothing")
    assert told.exception is not None
    assert "--out /proc/nothing" in str(told.exception)


def test_one_file_that_is_cut_short_does_not_end_an_import(tmp_path: Path) -> None:
    # Given three files, one of which is cut short, one empty of columns that are asked for
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "in").mkdir()
    for name in "ab":
        pq.write_table(pa.table({"metadata": [f"<{name}/>"]}), tmp_path / "in" / f"{name}.parquet")
    whole = (tmp_path / "in" / "a.parquet").read_bytes()
    (tmp_path / "in" / "c.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"other": ["<d/>"]}), tmp_path / "in" / "d.parquet")

    data, published, _ = imported(tmp_path, tmp_path / "in")

    # Expect the sound ones, and the others among the rejects, each with its reason
    assert [p.metadata for p in published] == [b"<a/>", b"<b/>"]
    reasons = {each.row: each.reason for each in data.rejects}
    assert set(reasons) == {"c.parquet", "d.parquet"}
    assert "can't be read" in reasons["c.parquet"]
    assert "no column 'metadata'" in reasons["d.parquet"]


def test_lines_and_parquet_take_what_is_not_there_alike(tmp_path: Path) -> None:
    # Given the same rows as lines and as Parquet: equal documents without ids, with null for what is not said
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"object_id": None, "metadata": "<t/>", "time": 5.0, "payload": "x", "payload_bytes": None},
        {"object_id": None, "metadata": "<t/>", "time": 6.0, "payload": "x", "payload_bytes": 1},
        {"object_id": None, "metadata": "<t/>", "time": None, "payload": None, "payload_bytes": 0},
        {"object_id": None, "metadata": "<t/>", "time": 7.0, "payload": None, "payload_bytes": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "given.parquet")
    source = lines(tmp_path / "given.jsonl", *rows)

    found = {}
    for each in (tmp_path / "given.parquet", source):
        (tmp_path / each.suffix).mkdir()
        found[each.suffix] = imported(tmp_path / each.suffix, each)

    # Expect the same objects of both, each with an id of its own, and the row that says no size rejected
    for data, published, _ in found.values():
        assert [(p.time, p.payload, p.payload_bytes) for p in published] == [
            (5.0, b"x", 1),
            (6.0, b"x", 1),
            (None, None, 0),
        ]
        assert len({p.object_id for p in published}) == 3
        (reject,) = data.rejects
        assert "says neither a payload nor payload_bytes" in reject.reason
