"""Bad input of studies: each gets a word, is counted, and harms neither the study nor who reads its result."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lxml import etree

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.cli.app import run as command_line
from jbi_pubsub.cli.costs import measure
from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.spark import dataset, ingest, judging, passes, report, result
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, RegistrationRow, SubscriptionRow, Writer
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.judging import MAX_REJECTS, Judge
from jbi_pubsub.spark.page import ResultTable
from jbi_pubsub.spark.result import Result, StudyRun, finish
from jbi_pubsub.spark.studies import aggregation, bandwidth, capacity, fanout, invariants, predicates
from jbi_pubsub.spark.studies.capacity import Costs
from jbi_pubsub.spark.studies.study import Data, Options, Study, data_in, run

pa = pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")

STUDIES = [module.STUDY for module in (predicates, fanout, bandwidth, invariants, aggregation)]
DOCUMENT = b"<t><a>1</a></t>"


def parquet(path: Path, **columns: Any) -> Path:
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def asked(
    study: Study, given: Path, out: Path, contracts: Contracts | None = None, **options: Any
) -> tuple[Result, StudyRun]:
    options = {"engine": "local", **options}
    return run(study, Data(str(given), contracts or Contracts()), out, Options(**options))


def table(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "tables" / f"{name}.csv").open(newline="") as opened:
        return list(csv.DictReader(opened))


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Exit code of a command line, and what it says of an error: never a traceback, for these are not caught here."""
    code = command_line(["study", *map(str, arguments)])
    return code, capsys.readouterr().err


def no_utf8() -> Any:
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])


BAD_ROWS = {
    "time": ([float("nan")], "time nan is not between"),
    "later": ([1e300], "time 1e+300 is not between"),
    "endless": ([float("inf")], "time inf is not between"),
    "before": ([-5.0], "time -5 is not between"),
    "size": ([-7], "payload_bytes -7 is not between"),
    "huge size": ([1 << 62], "payload_bytes 4611686018427387904 is not between"),
    "other size": ([3], "payload_bytes is 3, but its payload has 1"),
    "control": (["a\x01b"], "publisher has a control character"),
    "nul": (["a\0b"], "publisher has a control character"),
    "long": (["x" * 5_000], "publisher has 5,000 characters, more than 4,096"),
    "bytes": (no_utf8, "type is not UTF-8"),
}
COLUMN = {"time": "time", "later": "time", "endless": "time", "before": "time", "size": "payload_bytes",
          "huge size": "payload_bytes", "other size": "payload_bytes", "bytes": "type"}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_makes_no_sense_is_a_reject_of_import_and_of_every_study(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, reason = BAD_ROWS[name]
    column = {COLUMN.get(name, "publisher"): values() if callable(values) else values}
    given = parquet(tmp_path / "given.parquet", metadata=[DOCUMENT], payload=[b"x"], **column)

    for study in STUDIES:
        asked(study, given, tmp_path / study.name)
        [row] = table(tmp_path / study.name, "rejects")
        assert row["reason"].startswith(reason)
    assert said(capsys, "import", given, "--out", tmp_path / "data", "--json")[0] == 0
    [reject] = data_in(tmp_path / "data").rejects
    assert reject.reason.startswith(reason)
    code, error = said(capsys, "import", given, "--out", tmp_path / "data", "--max-rejects", "0")
    assert (code, reason in error) == (1, True)


def test_timestamps_of_any_unit_are_seconds(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for unit, value in (("ms", 1_500), ("us", 1_500_000), ("ns", 1_500_000_001)):
        given = parquet(tmp_path / f"{unit}.parquet", metadata=[DOCUMENT], time=pa.array([value], pa.timestamp(unit)))
        [row] = dataset.publications_of(pq.read_table(given).to_batches()[0])
        assert row.time == pytest.approx(1.5)


def test_lines_that_are_no_json_in_any_way_are_rejects_and_a_mark_of_utf8_is_none(tmp_path: Path) -> None:
    deep = b'{"metadata":"<t/>","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    given = tmp_path / "given.jsonl"
    given.write_bytes(b'\xef\xbb\xbf{"metadata":"<t/>"}\r\n' + deep + b'\n{"metadata":"<t>\xff</t>"}\n{"time":NaN}\n')

    told = CliRunner().invoke(jbi, ["study", "import", str(given), "--out", str(tmp_path / "data"), "--json"])

    assert told.exit_code == 0, told.exception
    counts = json.loads(told.output)
    assert (counts["publications"], counts["rejects"]) == (1, 3)
    wanted = tmp_path / "wanted.jsonl"
    wanted.write_bytes(
        b'{"subscription":"s"}\n' + deep.replace(b"metadata", b"subscription") + b'\n{"subscription":"\xff"}\n'
    )
    more = ["--subscriptions", str(wanted), "--out", str(tmp_path / "data"), "--json"]
    told = CliRunner().invoke(jbi, ["study", "import", str(given), *more])
    assert told.exit_code == 0, told.exception
    counts = json.loads(told.output)
    assert (counts["subscriptions"], counts["rejects"]) == (1, 5)


@pytest.mark.parametrize("encoding", ["utf-16", "iso-8859-1"])
def test_documents_of_any_encoding_are_studied(encoding: str, tmp_path: Path) -> None:
    document = f"<?xml version='1.0' encoding='{encoding}'?><t><a>\xe9</a></t>".encode(encoding)
    given = parquet(tmp_path / "given.parquet", metadata=[document] * 2)
    wanted = Contracts((), (SubscriptionRow(subscription="s", predicate="/t[a = '\xe9']"),
                            SubscriptionRow(subscription="never", predicate="/t[a = 'e']")))  # fmt: skip

    found = {study.name: asked(study, given, tmp_path / study.name, wanted)[0].numbers for study in STUDIES}

    assert found["predicates"]["matches"] == 2
    assert table(tmp_path / "predicates", "never")[0]["fails_most"] == "a = 'e'"
    assert found["invariants"]["avoidable"] == 2


def test_objects_are_told_by_their_whole_id(tmp_path: Path) -> None:
    given = parquet(tmp_path / "given.parquet", metadata=[DOCUMENT], object_id=["given.jsonl line 2"], type=["a b"])
    asked(fanout.STUDY, given, tmp_path / "out")
    assert [(row["object"], row["type"]) for row in table(tmp_path / "out", "hottest")] == [
        ("given.jsonl line 2", "a b")
    ]


def test_a_data_set_without_publications_takes_no_time(tmp_path: Path) -> None:
    given = parquet(tmp_path / "given.parquet", metadata=pa.array([], pa.binary()))
    assert asked(bandwidth.STUDY, given, tmp_path / "out")[0].numbers["seconds"] == 0


def test_two_columns_of_a_name_are_refused_and_one_without_a_value_is_as_none(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    twice = pa.Table.from_arrays([pa.array([DOCUMENT])] * 2, names=["metadata", "metadata"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    given = parquet(tmp_path / "given.parquet", metadata=[DOCUMENT], payload=pa.nulls(1))

    with pytest.raises(StudyError, match="two columns 'metadata'"):
        asked(fanout.STUDY, tmp_path / "twice.parquet", tmp_path / "out")
    assert asked(fanout.STUDY, given, tmp_path / "out")[0].numbers["objects"] == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"subscription": ""}, "has no id"),
        ({"subscription": "twice"}, "is there twice"),
        ({"subscription": "a\0b"}, "has a control character"),
        ({"subscription": "s", "recipients": -1}, "recipients -1"),
        ({"subscription": "s", "recipients": 1 << 63}, "recipients 9223372036854775808"),
        ({"subscription": "s", "subscriber": "x" * 5_000}, "subscriber has 5,000 characters"),
        ({"subscription": "s", "template": "[" * 5_000}, "template: Expected `object`"),
    ],
)
def test_contracts_that_make_no_sense_are_rejects_and_nothing_goes_with_them(row: dict[str, Any], reason: str) -> None:
    rejects: list[dataset.Reject] = []
    made = list(dataset.contracts_of([{"subscription": "twice"}, row, {"subscription": "z"}], "subscriptions", rejects))

    assert [each.subscription for each in made] == ["twice", "z"]
    assert [reject.reason for reject in rejects if reason in reject.reason] == [rejects[0].reason]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A small data set of the paper's domain."""
    domain = StudyDomain(registrations=4, subscriptions=10, publications=40, selectivity=0.5)
    dataset.write(tmp_path / "data", domain.contracts(), domain.published(), source="generated")
    return tmp_path / "data"


def test_two_do_not_write_to_one_folder(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted((data / "publications").iterdir())
    with report.held(data):
        assert said(capsys, "generate", "--out", data)[0] == 2
    with report.claimed(tmp_path / "out"):
        code, error = said(capsys, "fanout", data, "--out", tmp_path / "out")
    assert (code, "another process writes to" in error) == (2, True)
    assert sorted((data / "publications").iterdir()) == before
    assert data_in(data)
    assert said(capsys, "fanout", data, "--out", tmp_path / "out")[0] == 0


@pytest.mark.parametrize("words", [["match"], ["generate"], ["import", "given"], ["compare", "given", "given"],
                                   ["export", "--seconds", "0"]], ids=lambda words: words[0])  # fmt: skip
def test_a_url_as_place_for_a_folder_of_this_machine_is_refused_and_makes_none(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "given").mkdir()
    code, error = said(capsys, *words, "--out", "hdfs://host/data")
    assert (code, "folders of this machine alone" in error) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_a_result_does_not_lie_in_what_is_read(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "fanout", data, "--out", tmp_path / "one")[0] == 0
    before = (tmp_path / "one" / "result.json").read_bytes()

    assert said(capsys, "compare", tmp_path / "one", tmp_path / "one", "--out", tmp_path / "one")[0] == 2
    assert said(capsys, "fanout", data, "--out", data / "publications" / "new")[0] == 2

    assert (tmp_path / "one" / "result.json").read_bytes() == before
    assert said(capsys, "fanout", data, "--out", tmp_path / "two")[0] == 0  # its tables are no publications


def test_tables_of_an_earlier_study_do_not_stay_in_a_result(data: Path, tmp_path: Path) -> None:
    for study in (fanout.STUDY, aggregation.STUDY):
        run(study, data_in(data), tmp_path / "out", Options(engine="local"))
    assert {path.name for path in (tmp_path / "out" / "tables").iterdir()} == {"domains.csv", "domains.parquet"}
    assert {path.name for path in (tmp_path / "out" / "plots").iterdir()} == {"saved.svg", "saved.png"}


@pytest.mark.parametrize(
    "text",
    [b"[1]", b"null", b"{", b'{"study": "fanout"}', b"[" * 100_000, b'{"study": 1, "facts": [], "numbers": {}}',
     b"\xff", b'{"study": "fanout", "facts": [], "numbers": {"objects": "many"}}', b" " * ((16 << 20) + 1)],
)  # fmt: skip
@pytest.mark.parametrize("name", ["result.json", "manifest.json"])
def test_a_result_that_somebody_has_edited_is_not_compared(
    name: str, text: bytes, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(
        report.claim(tmp_path / "one"),
        Result(study="fanout", question="", facts=(), numbers={}),
        StudyRun(input="", engine="local"),
    )
    (tmp_path / "one" / name).write_bytes(text)
    code, error = said(capsys, "compare", tmp_path / "one", tmp_path / "one", "--out", tmp_path / "out")
    assert code == 1
    assert "result" in error


def test_numbers_as_large_as_they_get_are_compared(tmp_path: Path) -> None:
    for name, numbers in (("one", {"a": 1e-300, "b": -1e308}), ("two", {"a": 1e308, "b": 1e308})):
        finish(
            report.claim(tmp_path / name),
            Result(study="s", question="", facts=(), numbers=numbers),
            StudyRun(input="", engine="local"),
        )
    done = CliRunner().invoke(
        jbi, ["study", "compare", *(str(tmp_path / n) for n in ("one", "two")), "--out", str(tmp_path / "out")]
    )
    assert done.exit_code == 0, done.exception


@pytest.mark.parametrize("option", ["growth", "rate", "publishers", "subscribers", "utilisation"])
def test_a_forecast_of_no_number_is_refused(option: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"publishers": "1", "rate": "1", "subscribers": "1", option: "nan"}
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    assert said(capsys, "capacity", data, *words, "--out", data.parent / "out")[0] == 2


def test_a_forecast_without_measure_is_refused() -> None:
    known = {"publishers": 1e9, "rate": 1e6, "subscribers": 1e9, "growth": 10.0, "years": 50, "utilisation": 0.7}
    costs = Costs(((1.0, 1.0, 1, 1),)).parameters()
    passed = passes.Passed({("publications", "r"): [1, 1, 0], ("deliveries", ""): [1, 1, 0]}, [])
    wanted = Data("", Contracts((), (SubscriptionRow(subscription="s"),)))
    with pytest.raises(StudyError, match="deliveries a second in year 0, more than"):
        capacity.STUDY.tell(passed, Judge(wanted.contracts), wanted, {**known, **costs})


def resumed(folder: Path) -> Writer:
    return Writer(folder, source="exported", resume=True)


def test_an_export_goes_on_behind_its_last_part_and_not_over_it(tmp_path: Path) -> None:
    with resumed(tmp_path / "d") as writer:
        for n in range(2):
            writer.add(PublicationRow(f"o{n}", "t", "1.0", 1.0, "r", DOCUMENT, 0))
            writer.close_part()
    (tmp_path / "d" / "publications" / "part-00000.parquet").unlink()

    with resumed(tmp_path / "d") as writer:
        assert writer.count == 1
        writer.add(PublicationRow("o2", "t", "1.0", 1.0, "r", DOCUMENT, 0))
        writer.finish(Contracts())

    files = passes.parquet_files(tmp_path / "d" / "publications")
    assert [p.object_id for path, _ in files for p in passes.publications_in(path)] == ["o1", "o2"]


def test_a_part_or_manifest_that_is_damaged_is_told_or_started_anew(tmp_path: Path) -> None:
    with resumed(tmp_path / "d") as writer:
        writer.add(PublicationRow("o", "t", "1.0", 1.0, "r", DOCUMENT, 0))
        writer.finish(Contracts())
    manifest = tmp_path / "d" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"facts": {}', '"facts": [1]'))
    with resumed(tmp_path / "d") as writer:
        assert writer.facts == {}
    (tmp_path / "d" / "publications" / "part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(StudyError, match="is not a part of a data set"):
        resumed(tmp_path / "d")
    manifest.write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match="holds no data set"):
        resumed(tmp_path / "d")


def test_a_table_that_cannot_be_removed_is_not_mixed_with_the_new_one(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data / "publications").rename(data / "elsewhere")
    (data / "publications").symlink_to(data / "elsewhere")
    with pytest.raises(StudyError, match="can't be written"):
        dataset.write(data, Contracts(), [], source="test")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_of_more_rejects_than_are_kept_the_same_are_kept_whoever_reads_them(tmp_path: Path) -> None:
    # Given three files with bad rows, some of them twice, in a folder whose name Spark could take for a pattern
    folder = tmp_path / "given [a] b"
    folder.mkdir()
    for n in range(3):
        ids = [f"o{(7 * k) % 1_100}" for k in range(n, 3_000, 3)]
        parquet(folder / f"{n}.parquet", object_id=[*ids, "good"], metadata=[b"<t>"] * len(ids) + [DOCUMENT])

    outs = {engine: asked(fanout.STUDY, folder, tmp_path / engine, engine=engine) for engine in ("local", "spark")}

    assert {how.rejected for _, how in outs.values()} == {3_000}
    files = [(tmp_path / engine / "tables" / "rejects.csv").read_bytes() for engine in outs]
    assert files[0] == files[1]
    assert len(table(tmp_path / "local", "rejects")) == MAX_REJECTS


def test_objects_that_are_there_twice_do_not_make_predicates_the_same(tmp_path: Path) -> None:
    given = parquet(tmp_path / "given.parquet", metadata=[b"<t><a>1</a></t>", b"<t><a>2</a></t>"] * 2)
    wanted = Contracts((), tuple(SubscriptionRow(subscription=f"s{n}", predicate=f"/t[a = {n}]") for n in (1, 2)))
    assert asked(predicates.STUDY, given, tmp_path / "out", wanted)[0].numbers["groups_of_same"] == 0


def test_more_things_to_count_than_memory_holds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MAX_SUMS", 100)
    given = parquet(tmp_path / "g.parquet", metadata=[DOCUMENT] * 99, publisher=[f"{n}" for n in range(99)])
    with pytest.raises(StudyError, match="more than 100 different things to count"):
        asked(fanout.STUDY, given, tmp_path / "out")


HOSTILE = [
    "=cmd|' /C calc'!A0",
    "@SUM(1)",
    "+1+1",
    "-1+cmd",
    "\x1b[31mred\r\n\x07",
    "<script>alert(1)</script>",
    "中\u202e$x$",
]


def test_hostile_texts_reach_no_reader_of_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Given templates and predicates with such texts
    cls = define("x.Y", {"a": str})
    wanted = tuple(
        SubscriptionRow(subscription=f"={n}", predicate=f"/t[a = '{text.replace(chr(39), '')}']",
                     template=(EntryRep(cls, (text,)),))
        for n, text in enumerate(HOSTILE)
    )  # fmt: skip
    owners = tuple(
        RegistrationRow(registration=f"r{n}", entries=(EntryRep(cls, (text,)),)) for n, text in enumerate(HOSTILE)
    )
    dataset.write(tmp_path / "data", Contracts(owners, wanted), [], source="test")
    parquet(tmp_path / "given.parquet", metadata=[DOCUMENT] * len(HOSTILE), object_id=HOSTILE, type=HOSTILE)

    # When they are studied
    assert command_line(["study", "match", str(tmp_path / "data"), "--out", str(tmp_path / "match")]) == 0
    asked(fanout.STUDY, tmp_path / "given.parquet", tmp_path / "fanout", Contracts((), wanted))

    # Expect that no cell is a formula, nothing is for a terminal, pages have no script of theirs, pictures are XML
    assert "\x1b" not in capsys.readouterr().out
    for out in (tmp_path / "match", tmp_path / "fanout"):
        for path in (out / "tables").glob("*.csv"):
            text = path.read_text()
            assert text.replace("\n", "").isprintable()
            with path.open(newline="") as opened:
                assert not [
                    cell for row in csv.reader(opened) for cell in row if cell[:1] in ("=", "@", "+", "-", "\t")
                ]
        assert "<script>alert" not in (out / "report.html").read_text()
        for path in (out / "plots").glob("*.svg"):
            etree.parse(path)
    # and the whole text where programs read it
    import pyarrow.parquet as pq

    kept = pq.read_table(tmp_path / "fanout" / "tables" / "hottest.parquet")["object"].to_pylist()
    assert set(kept) == {text for text in HOSTILE if "\x1b" not in text}


def test_numbers_below_nothing_are_no_formulas() -> None:
    told = ResultTable(name="t", title="", columns=(("a", "text"), ("b", "number")), rows=(("-12.5", -1.5), ("-", 0.0)))
    assert result._csv(told) == b"a,b\n-12.5,-1.5\n-,0.0\n"


@pytest.mark.parametrize("repeats", [80, pytest.param(2_000, marks=pytest.mark.slow)])
def test_a_small_file_that_unpacks_to_gigabytes_is_read_piece_by_piece(repeats: int, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    # Given a value of 4 MB that many rows repeat, and rows of half a megabyte
    once = pa.array([b"x" * (4 << 20)])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * repeats, pa.int32()), once)
    bomb = pa.table({"metadata": [DOCUMENT] * repeats, "payload": repeated})
    pq.write_table(bomb, tmp_path / "bomb.parquet", store_schema=False)
    given = parquet(tmp_path / "large.parquet", metadata=[b"%d" % n + b" " * (1 << 19) for n in range(300)])
    assert (tmp_path / "bomb.parquet").stat().st_size < 1 << 20

    # Expect all rows, of which few megabytes are in memory at once
    for path, count in ((tmp_path / "bomb.parquet", repeats), (given, 300)):
        rows = 0
        for batch in passes._batches(path):
            assert batch.get_total_buffer_size() < 160 << 20
            rows += batch.num_rows
        assert rows == count
    sizes = {len(each.payload or b"") for each in passes.publications_in(tmp_path / "bomb.parquet")}
    assert sizes == {4 << 20}


def test_a_payload_that_is_too_large_to_be_kept_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "MAX_XML_PAYLOAD_BYTES", 10)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.metadata.xml").write_bytes(DOCUMENT)
    (tmp_path / "in" / "a.payload").write_bytes(b"12345678901")
    [found] = ingest.Intake().publications(tmp_path / "in", "xml")
    assert (found.payload, found.payload_bytes) == (None, 11)


def test_costs_are_measured_by_what_a_publisher_could_have_published(tmp_path: Path) -> None:
    good = [PublicationRow(f"o{n}", "t", "1.0", 1.0, "r", DOCUMENT, 0) for n in range(40)]
    bad = [
        PublicationRow(name, "t", "1.0", time, "r", document, size)
        for name, time, document, size in (
            ("a", float("nan"), DOCUMENT, 0), ("b", 1.0, b"<t>", 0),
            ("c", 1.0, DOCUMENT, -5), ("d", 1.0, DOCUMENT, 1 << 60),
        )
    ]  # fmt: skip
    dataset.write(tmp_path / "d", Contracts((), (SubscriptionRow(subscription="s"),)), [*bad, *good], source="test")
    costs = measure(data_in(tmp_path / "d"))
    assert sum(number for _, _, number, _ in costs.rounds) == 40


@pytest.mark.parametrize("form", ["xml", "lines"])
def test_a_folder_that_cannot_be_read_is_told(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a folder below, which is ours to read only if we are root: so it is taken away in thought
    (tmp_path / "in" / "closed").mkdir(parents=True)
    (tmp_path / "in" / "a.xml").write_bytes(DOCUMENT)
    (tmp_path / "in" / "a.jsonl").write_bytes(b'{"metadata":"<t/>"}\n')
    scan = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    intake = ingest.Intake()
    assert len(list(intake.publications(tmp_path / "in", form))) == 1
    assert [r.reason for r in intake.rejects if r.row.endswith("closed")] == ["can't be read: Permission denied"]


def test_rejects_that_somebody_has_edited_are_told_as_they_are(data: Path) -> None:
    import pyarrow.parquet as pq

    (data / "rejects").mkdir(exist_ok=True)
    rows = [{"table": "publications", "row": None, "reason": "r" * 1_000}]
    pq.write_table(pa.Table.from_pylist(rows, schema=dataset.columns("rejects")), data / "rejects" / "part-0.parquet")

    [reject] = data_in(data).rejects
    assert (reject.table, reject.row, len(reject.reason)) == ("publications", "", 500)
