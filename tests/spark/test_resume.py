"""A study that was interrupted goes on from what it has finished, and comes to the same."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import dataset, match_study, passes, plots
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.result import StudyRun
from jbi_pubsub.spark.stages import StudyStages, digest
from jbi_pubsub.spark.studies import fanout, predicates
from jbi_pubsub.spark.studies.study import Options, data_in, run

pytest.importorskip("pyarrow", reason="needs the spark extra")

SMALL = StudyDomain(registrations=6, subscriptions=30, publications=100, seed=3, selectivity=0.2)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    dataset.write(folder, SMALL.contracts(), SMALL.published(), source="generated")
    return folder


@pytest.fixture(autouse=True)
def drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of a small study's time: here what they would be drawn of stands in for them."""
    monkeypatch.setattr(plots, "drawn", lambda plot: (f"<svg>{escape(repr(plot))}</svg>", repr(plot).encode()))


def interrupted(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends after its publications are judged."""
    with monkeypatch.context() as patch:
        patch.setattr(plots, "drawn", lambda _plot: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(fanout.STUDY, data_in(data), out, Options(engine="local"))


def resumed(data: Path, out: Path, **more: Any) -> StudyRun:
    return run(fanout.STUDY, data_in(data), out, Options(engine="local", resume=True, parameters=more))[1]


def answers(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.name not in {"manifest.json", "report.html", "judge.json"}
    }


def test_what_was_judged_is_not_judged_again_and_that_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(fanout.STUDY, data_in(data), tmp_path / "whole", Options(engine="local"))
    interrupted(data, tmp_path / "out", monkeypatch)
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["state"] == "running"
    monkeypatch.setattr(passes, "here", lambda *_: pytest.fail("judged again"))

    how = resumed(data, tmp_path / "out")

    assert how.resumed == "skipped judge: finished before"
    assert answers(tmp_path / "out") == answers(tmp_path / "whole")


def test_parameters_of_the_answer_alone_may_be_others(data: Path, tmp_path: Path) -> None:
    run(fanout.STUDY, data_in(data), tmp_path / "two", Options(engine="local", parameters={"delegates": 2}))
    run(fanout.STUDY, data_in(data), tmp_path / "three", Options(engine="local", parameters={"delegates": 3}))

    how = resumed(data, tmp_path / "two", delegates=3)

    assert how.resumed == "skipped judge: finished before"
    assert answers(tmp_path / "two") == answers(tmp_path / "three")


def test_rejects_are_told_again_by_a_run_that_goes_on(data: Path, tmp_path: Path) -> None:
    bad = [dataset.PublicationRow("bad", "t", "1.0", 0.0, "r", b"<t>", 0)]
    dataset.write(data, SMALL.contracts(), [*SMALL.published(), *bad], source="generated")
    run(fanout.STUDY, data_in(data), tmp_path / "out", Options(engine="local"))

    assert resumed(data, tmp_path / "out").rejected == 1
    assert "bad" in (tmp_path / "out" / "tables" / "rejects.csv").read_text()


@pytest.mark.parametrize("changed", ["publication", "subscription", "study", "file", "mark", "other"])
def test_what_was_made_from_something_else_is_made_anew(
    changed: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    interrupted(data, out, monkeypatch)
    domain, study = SMALL, fanout.STUDY
    if changed == "publication":
        domain = StudyDomain(registrations=6, subscriptions=30, publications=101, seed=3, selectivity=0.2)
    elif changed == "subscription":
        domain = StudyDomain(registrations=6, subscriptions=31, publications=100, seed=3, selectivity=0.2)
    elif changed == "study":
        study = predicates.STUDY
    elif changed == "file":
        with (out / "stages" / "judge.parquet").open("ab") as opened:
            opened.write(b"x")
    elif changed == "mark":
        (out / "stages" / "judge.json").write_text('{"digest": 7')
    else:
        found = json.loads((out / "stages" / "judge.json").read_text())
        (out / "stages" / "judge.json").write_text(json.dumps({**found, "files": {"../../data/manifest.json": 1}}))
    dataset.write(data, domain.contracts(), domain.published(), source="generated")
    run(study, data_in(data), tmp_path / "whole", Options(engine="local"))

    how = run(study, data_in(data), out, Options(engine="local", resume=True))[1]

    assert how.resumed.startswith("nothing to skip; ")
    assert (out / "result.json").read_bytes() == (tmp_path / "whole" / "result.json").read_bytes()


def test_without_the_flag_nothing_is_taken_over(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(data, tmp_path / "out", monkeypatch)
    judged = list[str]()
    monkeypatch.setattr(passes, "here", lambda *_: judged.append("again") or passes.Passed({}, []))

    run(fanout.STUDY, data_in(data), tmp_path / "out", Options(engine="local"))

    assert judged == ["again"]


def test_a_stage_that_begins_again_is_no_longer_finished(tmp_path: Path) -> None:
    (tmp_path / "file.parquet").write_bytes(b"1")
    made_from = digest([b"x"])
    StudyStages(tmp_path, made_from, resume=False).finish("one", [tmp_path / "file.parquet"], {"n": 1})
    again = StudyStages(tmp_path, made_from, resume=True)
    assert again.finished("one") == {"n": 1}

    again.begin("one")

    assert again.finished("one") is None
    assert again.told() == "skipped one: finished before; one was not finished"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_tables_that_spark_has_written_are_not_written_again(tmp_path: Path) -> None:
    def matched(seed: int, *, resume: bool) -> Any:
        return match_study(
            registrations=200, templates=100, seed=seed, out=tmp_path / "o", engine="spark", resume=resume
        )

    first = matched(1, resume=False)
    (tmp_path / "o" / "stages" / "count.json").unlink()  # as if it had been interrupted there
    shutil.rmtree(tmp_path / "o" / "counts")

    second, other = matched(1, resume=True), matched(2, resume=True)

    assert second.resumed == "skipped templates, match: finished before; count was not finished"
    assert (second.checksum, second.pairs) == (first.checksum, first.pairs)
    assert other.resumed.startswith("nothing to skip")
    assert other.checksum != first.checksum


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_any_time_it_comes_to_the_same(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    domain = StudyDomain(registrations=6, subscriptions=100, publications=5_000, seed=3)
    dataset.write(data, domain.contracts(), domain.published(), source="generated")
    command = [sys.executable, "-m", "jbi_pubsub", "study", "fanout", str(data), "--resume", "--engine", "local"]
    begin = time.monotonic()
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True, timeout=120)
    took, chance = time.monotonic() - begin, random.Random(7)

    for _ in range(8):
        process = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(chance.uniform(0, took * 1.1))  # the point of time is what is tried
        process.kill()
        process.wait(60.0)
        assert not (out / "result.json").exists() or json.loads((out / "manifest.json").read_text())["state"] in {
            "running", "complete",
        }  # fmt: skip
    subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, timeout=120)

    assert answers(out) == answers(tmp_path / "whole")


def test_sums_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    (tmp_path / "sums.parquet").write_bytes(b"nothing")
    with pytest.raises(StudyError, match=r"sums\.parquet can't be read"):
        passes.load(tmp_path / "sums.parquet", spark="", java="")
