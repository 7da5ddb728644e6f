"""Publications that arrive are counted once, in the window of their time, whatever happens to whoever counts
(docs/spark-clusters.md)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.cli.app import run as command_line
from jbi_pubsub.cli.watch import contracts_of
from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark import dataset, watching
from jbi_pubsub.spark.dataset import Contracts, PublicationRow, SubscriptionRow
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.judging import pack
from jbi_pubsub.spark.studies import fanout
from jbi_pubsub.spark.studies.study import Options, data_in, run
from jbi_pubsub.spark.watching import State, Watch, WatchSettings, count, judged_by_window, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("matplotlib", reason="needs the spark extra")

CONTRACTS = Contracts(
    (), (SubscriptionRow(subscription="all"), SubscriptionRow(subscription="odd", predicate="/t[n = 1]"))
)
NOW = 100_000.0


def at(when: float, n: int = 0, *, broken: bool = False) -> PublicationRow:
    return PublicationRow(f"o{when}-{n}", "t", "1.0", when, "r", b"<t>" if broken else f"<t><n>{n}</n></t>".encode(), 0)


def asked(**more: Any) -> WatchSettings:
    return WatchSettings(folder="/x", window=10, delay=20, **more)


def fed(state: State, batch: int, *publications: PublicationRow) -> bool:
    return count(state, batch, judged_by_window(pack(CONTRACTS), state.settings, publications), NOW)


def test_windows_are_of_the_publications_time_and_close_when_the_watermark_has_passed() -> None:
    state = State(asked())

    fed(state, 0, at(1000, 1), at(1009), at(1010), at(1015, broken=True))
    assert sorted(state.open) == ["1000", "1010"]
    fed(state, 1, at(1031))

    [closed] = state.history
    assert (closed.start, closed.publications, closed.deliveries, closed.most) == (1000, 2, 3, 2)
    assert closed.matches == {"all": 2, "odd": 1}
    assert (state.publications, state.deliveries, state.rejected, state.late) == (4, 5, 1, 0)
    assert state.watermark == 1011


def test_what_comes_for_a_closed_window_is_late_and_counted_nowhere_else() -> None:
    state = State(asked())
    fed(state, 0, at(1031))
    before = (state.publications, state.deliveries)

    fed(state, 1, at(1000), at(1001))  # 1000-1010 ends before the watermark, 1011
    fed(state, 2, at(1010))  # its window does not

    assert state.late == 2
    assert (state.publications, state.deliveries) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize("when", [NOW + 21, 1e10, float("inf"), float("nan"), -1e300])
def test_a_wrong_clock_closes_nobody_else_s_window(when: float) -> None:
    state = State(asked())
    fed(state, 0, at(NOW - 5))

    fed(state, 1, at(when))
    fed(state, 2, at(NOW - 5, 1))

    assert state.publications == 2
    assert state.late + state.ahead == 1


def test_a_batch_that_comes_again_is_not_counted_twice() -> None:
    state = State(asked())
    assert fed(state, 0, at(1000))

    assert not fed(state, 0, at(1000))

    assert state.publications == 1


@settings(max_examples=30, deadline=None)
@given(
    times=st.lists(st.integers(1000, 1200), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_every_publication_is_counted_once_however_batches_are_cut(times: list[int], cuts: list[int]) -> None:
    state = State(asked())
    bounds = [0, *sorted(cuts), len(times)]
    for batch, (a, b) in enumerate(pairwise(bounds)):
        fed(state, batch, *(at(when, n) for n, when in enumerate(times[a:b])))

    assert state.publications + state.late == len(times)
    known = [*state.history, *state.open.values()]
    assert sum(window.publications for window in known) == state.publications
    assert state.watermark == max(0, max(times) - 20)


def test_what_is_remembered_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "CLOSED_MOST", 3)
    monkeypatch.setattr(watching, "OPEN_MOST", 2)
    state = State(asked())

    for batch in range(10):
        fed(state, batch, *(at(1000 + 100 * batch + 10 * n) for n in range(3)))

    assert len(state.history) == 3
    assert len(state.open) <= 2
    assert state.ahead > 0
    assert state.publications + state.late + state.ahead == 30


def test_a_page_and_a_table_take_names_as_text() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    state = State(asked())
    contracts = Contracts((), (SubscriptionRow(subscription=hostile),))
    count(state, 0, judged_by_window(pack(contracts), state.settings, [at(1000)]), NOW)
    found = told(state)

    shown = watching.page_of(found, watching.StudyRun(input="x", engine="spark"), found.tables, [], refresh=5)

    assert "<img" not in shown
    assert '<meta http-equiv="refresh" content="5">' in shown


def put(folder: Path, part: str, publications: Sequence[PublicationRow]) -> None:
    """A part that arrives: whole or not at all, as dataset.table does."""
    with dataset.table(folder.parent, folder.name, part) as rows:
        for each in publications:
            rows.add_named({name: getattr(each, name) for name in PublicationRow.__struct_fields__})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    dataset.write(tmp_path / "data", CONTRACTS, [at(1000, 1), at(1001)], source="test")
    return tmp_path / "data"


def watched(data: Path, out: Path, spark: SparkSession, batches: int) -> Watch:
    """Until so many batches have been counted."""
    files = data / "publications" if (data / "publications").is_dir() else data
    xml = any(files.glob("*.xml"))
    given = WatchSettings(folder=str(files), xml=xml, publisher="r" if xml else "", window=10, delay=20)
    watch = Watch(out, given, lambda: CONTRACTS)
    until = time.monotonic() + 100
    watch.run(spark, 0.1, lambda: watch.batches < batches and time.monotonic() < until)
    assert watch.batches == batches
    return watch


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_it_is_not_idle_before_it_has_looked(data: Path, tmp_path: Path, spark: SparkSession) -> None:
    watch = Watch(tmp_path / "out", WatchSettings(folder=str(data), window=10, delay=20), lambda: CONTRACTS)
    # Given Spark, which takes an hour to begin
    watch.changed -= 3600
    idle: list[float] = []

    def turn() -> bool:
        idle.append(time.monotonic() - watch.changed)
        return False

    watch.run(spark, 0.1, turn)
    # Expect that hour not to be one in which nothing came
    assert [seconds < 1800 for seconds in idle] == [True]


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_watch_that_was_killed_goes_on_and_counts_nothing_twice(
    data: Path, tmp_path: Path, spark: SparkSession
) -> None:
    out = tmp_path / "out"
    first = watched(data, out, spark, 1)
    assert (first.state.publications, first.state.deliveries) == (2, 3)

    # When Spark does not know that the batch was done: killed after the state was written, before its commit
    for commit in (out / "checkpoint" / "commits").iterdir():
        commit.unlink()
    put(data / "publications", "part-00001", [at(1031), at(1032, broken=True)])
    second = watched(data, out, spark, 1)

    # Expect what is new, and nothing again; what comes for a closed window is late
    assert (second.state.publications, second.state.deliveries, second.state.rejected) == (3, 4, 1)
    put(data / "publications", "part-00002", [at(1003), at(1035)])
    third = watched(data, out, spark, 1)
    assert (third.state.publications, third.state.late) == (4, 1)
    page = (out / "report.html").read_text()
    assert 'http-equiv="refresh"' in page
    assert "http" not in page.replace('http-equiv="refresh"', "")
    with pytest.raises(ConfigurationError, match="watches with other settings: window 10, not 11"):
        Watch(out, WatchSettings(folder=str(data / "publications"), window=11, delay=20), lambda: CONTRACTS)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_documents_are_judged_as_they_are_renamed_into_the_folder(tmp_path: Path, spark: SparkSession) -> None:
    folder = tmp_path / "arriving"
    folder.mkdir()
    for n, text in enumerate(("<t><n>1</n></t>", "<t><n>2</n></t>", "<t><n>")):
        (folder / f"{n}.part").write_text(text)
        (folder / f"{n}.part").rename(folder / f"{n}.xml")
        os.utime(folder / f"{n}.xml", (1000 + n, 1000 + n))
    (folder / "other.txt").write_text("no document")

    watch = watched(folder, tmp_path / "out", spark, 1)

    assert (watch.state.publications, watch.state.deliveries, watch.state.rejected) == (2, 3, 1)
    [window] = watch.state.open.values()
    assert (window.start, Counter(window.matches)) == (1000, Counter(all=2, odd=1))


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_file_that_is_no_parquet_ends_the_stream_with_a_line(data: Path, tmp_path: Path, spark: SparkSession) -> None:
    bad = data / "publications" / "part-00009.parquet"
    bad.write_bytes(b"nothing")

    with pytest.raises(StudyError, match=r"the stream ended: .*part-00009"):
        watched(data, tmp_path / "out", spark, 1)

    bad.unlink()
    assert watched(data, tmp_path / "out", spark, 1).state.publications == 2


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(240)
def test_from_the_command_line_it_ends_when_nothing_comes(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    code = command_line(
        ["study", "watch", str(data), "--every", "0.1", "--until-idle", "2", "--out", str(out), "--json"]
    )

    lines = capsys.readouterr().out.strip().splitlines()
    assert code == 0
    assert json.loads(lines[0])["publications"] == 2
    assert json.loads((out / "manifest.json").read_text())["state"] == "complete"
    assert (out / "tables" / "windows.csv").read_text().count("\n") == 2


def test_what_cannot_be_watched_is_told(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "both").mkdir()
    for name in ("a.xml", "b.parquet"):
        (tmp_path / "both" / name).write_text("x")
    out = ["--out", str(tmp_path / "out")]

    codes = [
        command_line(["study", "watch", *words, *out])
        for words in (
            [], [str(data), "--live"], [str(tmp_path / "none")], [str(tmp_path / "empty")],
            [str(tmp_path / "both"), "--data", str(data)],
        )
    ]  # fmt: skip

    said = capsys.readouterr().err
    assert codes == [2] * 5
    for part in (
        "what is to be watched?",
        "is not a folder",
        "has no contracts to judge by",
        "has both Parquet and XML",
    ):
        assert part in said


def test_contracts_that_change_are_read_again(data: Path) -> None:
    read = contracts_of(data)
    first = read()
    assert read() is first

    shutil.rmtree(data)
    dataset.write(data, Contracts((), CONTRACTS.subscriptions[:1]), [], source="test")

    assert len(read().subscriptions) == 1


@pytest.mark.parametrize("lost", ["state", "checkpoint", "commits ahead"])
def test_a_state_and_a_checkpoint_that_are_not_of_each_other_are_refused(lost: str, tmp_path: Path) -> None:
    for name in ("offsets", "commits"):
        (tmp_path / "checkpoint" / name).mkdir(parents=True)
        for batch in range(12):
            (tmp_path / "checkpoint" / name / str(batch)).touch()
    watching._check(tmp_path, 11)
    (tmp_path / "checkpoint" / "commits" / "11").unlink()
    watching._check(tmp_path, 11)  # killed before Spark knew
    watching._check(tmp_path, 10)  # killed before we had counted
    known = {"state": -1, "checkpoint": 11, "commits ahead": 9}[lost]
    if lost == "checkpoint":
        shutil.rmtree(tmp_path / "checkpoint")

    with pytest.raises(ConfigurationError, match="are not of one watch"):
        watching._check(tmp_path, known)


@pytest.mark.parametrize(
    "text", [b"{", b'{"settings": {"folder": "\xff"}}', b'{"settings": {"folder": "x"}, "format": "jbi-watch-9"}',
             b'{"settings": {"folder": "x"}, "open": {"noon": {"start": 1}}}', b"[" * 100_000],
)  # fmt: skip
def test_a_state_that_is_not_ours_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_bytes(text)

    with pytest.raises(StudyError, match="can't be read"):
        Watch(tmp_path, asked(), lambda: CONTRACTS)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["{} [x]", "{}*", "{}?", "{}{{a,b}}", "{}%20", "{}#"])
def test_names_that_look_like_patterns_are_names(name: str, tmp_path: Path, spark: SparkSession) -> None:
    folder, tables = tmp_path / "arriving", tmp_path / "p" / "publications"
    for made in (folder, tables):
        made.mkdir(parents=True)
    for n in range(4):
        (folder / f"{name.format(n)}.xml").write_text("<t><n>1</n></t>")
        put(tables, name.format(n), [at(1000, n)])

    documents, rows = watched(folder, tmp_path / "x", spark, 1), watched(tables, tmp_path / "y", spark, 1)

    assert (documents.state.publications, rows.state.publications) == (4, 4)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(240)
def test_files_of_any_age_are_counted_in_folders_of_any_name(tmp_path: Path, spark: SparkSession) -> None:
    # Given a file of the next century, by which others are older than Spark looks back to
    folder, out = tmp_path / "a [1] {b} %20 é", tmp_path / "o %20 [2]"
    folder.mkdir()
    (folder / "0.xml").write_text("<t><n>1</n></t>")
    os.utime(folder / "0.xml", (5e9, 5e9))
    assert watched(folder, out, spark, 1).state.ahead == 1

    # When such come afterwards, and one of a hundred megabytes
    (folder / "1.xml").write_text("<t><n>1</n></t>")
    os.utime(folder / "1.xml", (1000, 1000))
    second = watched(folder, out, spark, 1)

    # Expect them to be counted
    assert (second.state.publications, second.state.deliveries) == (1, 2)
    with (folder / "large.xml").open("wb") as opened:
        opened.truncate(100 << 20)
    with pytest.raises(StudyError, match=r"the stream ended: .*large\.xml"):
        watched(folder, out, spark, 1)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_two_watches_do_not_count_into_one_folder(data: Path, tmp_path: Path, spark: SparkSession) -> None:
    out = watching.report.claim(tmp_path / "out")

    with watching.report.held(out), pytest.raises(ConfigurationError, match="another process writes to"):
        watched(data, out, spark, 1)


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_disk_that_is_full_is_told_as_such_and_nothing_is_lost(
    data: Path, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(watching.report, "claim", lambda folder: folder.mkdir() or folder)
        patch.setattr(watching.report, "write", full)
        with pytest.raises(StudyError, match=r"can't be written to .*No space left"):
            watched(data, out, spark, 1)

    (out / "manifest.json").write_text('{"format": "jbi-study-1", "state": "running"}')
    assert watched(data, out, spark, 1).state.publications == 2


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(580)
@pytest.mark.parametrize("form", ["parquet", "xml"])
def test_killed_at_any_time_it_counts_what_a_study_counts(form: str, tmp_path: Path) -> None:
    # Given a data set, whose publications arrive one file after the other, hostile ones among them
    domain, chance = (
        StudyDomain(registrations=4, subscriptions=40, publications=240, seed=11, selectivity=0.3),
        Random(5),
    )
    publications = [*domain.published()]
    publications.append(msgspec.structs.replace(at(0, broken=True), time=publications[0].time))
    if form == "xml":  # documents are of one registration
        first = publications[0].publisher
        publications = [each for each in publications if each.publisher in {first, "r"}]
        publications = [msgspec.structs.replace(each, publisher=first) for each in publications]
    dataset.write(tmp_path / "all", domain.contracts(), publications, source="generated")
    study = run(fanout.STUDY, data_in(tmp_path / "all"), tmp_path / "study", Options(engine="local"))
    arriving, out = tmp_path / "arriving" / "publications", tmp_path / "out"
    arriving.mkdir(parents=True)

    def arrive(number: int, part: Sequence[PublicationRow]) -> None:
        if form == "parquet":
            put(arriving, f"part-{number:05d}", part)
        for n, each in enumerate(part if form == "xml" else ()):
            (tmp_path / "half").write_bytes(each.metadata)
            (tmp_path / "half").rename(arriving / f"{number} {n} [x].xml")

    words = [sys.executable, "-m", "jbi_pubsub", "study", "watch", str(arriving), "--data", str(tmp_path / "all")]
    words += ["--out", str(out), "--window", "86400", "--delay", "86400", "--every", "0.1", "--json"]
    words += ["--publisher", publications[0].publisher] if form == "xml" else []
    size = len(publications) // 6 + 1
    parts = [publications[n : n + size] for n in range(0, len(publications), size)]
    arrive(0, parts[0])

    # When whoever counts is killed at some time, again and again, while they come
    for number, part in enumerate(parts[1:], 1):
        watch = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if number % 2 and watch.stdout is not None:
            watch.stdout.readline()  # a batch was counted
        arrive(number, part)
        time.sleep(chance.uniform(0, 2))  # the point of time is what is tried
        watch.kill()
        watch.communicate(timeout=60)
    done = subprocess.run([*words, "--until-idle", "20"], capture_output=True, text=True, timeout=240, check=False)

    # Expect the account of the study
    assert done.returncode == 0, done.stderr
    found = json.loads((out / "result.json").read_text())["numbers"]
    assert (found["publications"], found["deliveries"]) == (len(publications) - 1, study[0].numbers["deliveries"])
    assert (found["rejected"], found["late"], found["ahead"]) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(580)
def test_the_guide_comes_to_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from test_pages import agree, blocks, commands, disagreement

    page = Path(__file__).parents[2] / "docs" / "spark-clusters.md"
    [block] = [each for each in blocks(page) if each.value == "tests/spark/test_watch.py"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    for command, expected in commands(block):
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env={**os.environ, "PATH": path, "COLUMNS": "100"},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert agree(expected, done.stdout), disagreement(block, expected, done.stdout)

    whole = run(fanout.STUDY, data_in(tmp_path / "data"), tmp_path / "whole", Options(engine="local"))[0].numbers
    found = json.loads((tmp_path / "watched" / "result.json").read_text())["numbers"]
    assert found["deliveries"] == 2 * whole["deliveries"] > 0
