"""Studies on other people's Spark: the same bytes as on this machine, and one clear line for what goes wrong there
(docs/spark-clusters.md)."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from jbi_pubsub.cli.app import jbi
from jbi_pubsub.cli.app import run as command_line
from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark import cluster, dataset, session
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.studies import fanout
from jbi_pubsub.spark.studies.study import Options, data_in, run

pytest.importorskip("pyarrow", reason="needs the spark extra")
pytest.importorskip("pyspark", reason="needs the spark extra")

PATIENT = 240.0  # seconds; a machine that does ten things at once starts Java slowly
BUSY = StudyDomain(registrations=12, subscriptions=200, publications=60_000, seed=5, selectivity=0.2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    domain = StudyDomain(registrations=12, subscriptions=60, publications=300, seed=3, selectivity=0.2)
    dataset.write(folder, domain.contracts(), domain.published(), source="generated")
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "large"
    dataset.write(folder, BUSY.contracts(), BUSY.published(), source="generated")
    return folder


def started(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "jbi_pubsub", "study", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENT)
    finally:
        process.kill()
    return process.returncode, out, err


def content(out: Path) -> dict[str, bytes]:
    """What is the same whoever has found it."""
    names = [out / "result.json", *out.glob("tables/*"), *out.glob("plots/*")]
    return {str(path.relative_to(out)): path.read_bytes() for path in names}


def awaited(condition: Callable[[], object], of: subprocess.Popen[str] | None = None) -> None:
    """Until the condition holds; `of` whom, if it can end before."""
    until = time.monotonic() + PATIENT
    while not condition():
        assert of is None or of.poll() is None, ended(of)
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize(
    "master", ["", "local", "local[2]", "local[*]", "local-cluster[2,1,1024]", "spark://h:7077,i:7077", "yarn"]
)
def test_masters_are_those_of_spark(master: str) -> None:
    cluster.check_master(master)


@pytest.mark.parametrize("master", ["spark://h", "http://h:1", "local[x]", "hadoop", "spark://h:7077 --conf x"])
def test_what_is_no_master_is_refused_before_anything_starts(master: str, made: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a master of Spark"):
        cluster.check_master(master)
    assert command_line(["study", "fanout", str(made), "--out", str(tmp_path / "o"), "--master", master]) == 2


def test_spark_connect_is_refused_with_its_reason() -> None:
    with pytest.raises(StudyError, match="is Spark Connect"):
        cluster.check_master("sc://localhost:15002")


def test_a_master_that_is_not_there_is_one_line_and_no_java(made: Path, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{unused.getsockname()[1]}"

        words = ["study", "fanout", str(made), "--out", str(tmp_path / "o"), "--master", master]
        done = subprocess.run(
            [sys.executable, "-m", "jbi_pubsub", *words], stderr=subprocess.PIPE, text=True, timeout=60
        )

    assert done.returncode == 1
    assert f"the Spark master {master} can't be reached: Connection refused" in done.stderr


def test_settings_are_spark_s_or_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["study", "fanout", str(made), "--out", str(tmp_path / "o")]

    assert command_line([*common, "--conf", "memory=8g"]) == 2
    assert command_line([*common, "--engine", "local", "--master", "local[2]"]) == 2
    assert "no KEY=VALUE of Spark" in capsys.readouterr().err


def test_the_printed_command_has_all_that_was_asked(made: Path) -> None:
    told = CliRunner().invoke(
        jbi,
        ["study", "fanout", str(made), "--out", "a b", "--delegates", "7", "--master", "spark://h:7077", "--json",
         "--conf", "spark.executor.memory=2g", "--conf", "spark.archives=env.tar.gz#environment",
         "--conf", "spark.pyspark.python=./environment/bin/python", "--print-submit"],
    )  # fmt: skip

    words = shlex.split(told.output)
    at = words.index("study")
    assert words[at : at + 2] == ["study", "fanout"]
    assert sorted(words[at + 2 :]) == sorted([
        str(made),
        "--delegates", "7", "--out", str(Path("a b").absolute()), "--max-rejects", "-1", "--json", "--engine", "spark",
    ])  # fmt: skip
    assert words[words.index("--master") + 1] == "spark://h:7077"
    assert words[words.index("--archives") + 1] == "env.tar.gz#environment"
    assert {"spark.executor.memory=2g", "spark.pyspark.python=./environment/bin/python"} <= set(words)
    assert not Path("a b").exists()


ON_A_CLUSTER = """
import sys
from pathlib import Path
from jbi_pubsub.spark import session
from jbi_pubsub.spark.studies import fanout
from jbi_pubsub.spark.studies.study import Options, data_in, run

quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
extra = {
    "spark.executor.memory": "512m", "spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick,
}
with session.open_session("test", master="local-cluster[1,2,1024]", extra=extra) as spark:
    run(fanout.STUDY, data_in(Path(sys.argv[1])), Path(sys.argv[2]), Options(engine="spark"))
    found = spark.sparkContext.parallelize([1, 2], 2).map(lambda _: __import__("jbi_pubsub").__file__).collect()
print(*found)
"""


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_executors_get_the_package_and_count_the_same(made: Path, tmp_path: Path) -> None:
    import pyspark

    run(fanout.STUDY, data_in(made), tmp_path / "here", Options(engine="local"))

    done = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER, str(made), str(tmp_path / "cluster")],
        capture_output=True, text=True, timeout=PATIENT, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert all("jbi_pubsub.zip" in path for path in done.stdout.split()), done.stdout
    assert content(tmp_path / "cluster") == content(tmp_path / "here")
    assert not (Path(pyspark.__file__).parent / "work").exists()


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master with two workers of one core each."""
    import pyspark

    from jbi_pubsub.spark.javaenv import find_java

    home, work = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("standalone")
    environment = {
        **os.environ, "JAVA_HOME": str(find_java(os.environ).path), "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip

    def launched(name: str, *words: str) -> subprocess.Popen[bytes]:
        with (work / name).open("wb") as log:
            return subprocess.Popen(
                [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{words[0]}", *words[1:],
                 "--host", "127.0.0.1", "--webui-port", "0"],
                env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=work,
            )  # fmt: skip

    processes = [launched("master", "master.Master", "--port", "0")]
    try:
        told = re.compile(r"Starting Spark master at (spark://\S+)")
        awaited(lambda: told.search((work / "master").read_text()))
        found = told.search((work / "master").read_text())
        assert found is not None
        # The log names the port that was asked for; the one it got stands in the line of the service.
        port = re.search(r"service 'sparkMaster' on port (\d+)", (work / "master").read_text())
        url = f"spark://127.0.0.1:{port[1]}" if port else found[1]
        for n in range(2):
            words = ("worker.Worker", url, "--cores", "1", "--memory", "1g", "--work-dir", str(work / f"work{n}"))
            processes.append(launched(f"worker{n}", *words))
        awaited(lambda: (work / "master").read_text().count("Registering worker") == 2)
        yield url
    finally:
        for process in processes:
            process.kill()
            process.wait(60.0)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_standalone_cluster_finds_the_same_and_so_does_the_printed_command(
    made: Path, standalone: str, tmp_path: Path
) -> None:
    asked = ["fanout", str(made), "--master", standalone, "--conf", "spark.executor.memory=512m"]
    run(fanout.STUDY, data_in(made), tmp_path / "here", Options(engine="local"))

    code, out, err = ended(started(*asked, "--out", f"file://{tmp_path}/cluster", "--json"))
    printed = ended(started(*asked, "--out", str(tmp_path / "submitted"), "--print-submit"))[1]
    submitted = subprocess.run(
        shlex.split(printed), capture_output=True, text=True, timeout=PATIENT, check=False, cwd=tmp_path
    )

    assert code == 0, err
    assert json.loads(out)["run"]["engine"] == "spark"
    assert submitted.returncode == 0, submitted.stderr
    assert content(tmp_path / "cluster") == content(tmp_path / "submitted") == content(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_an_executor_that_is_killed_changes_no_count(large: Path, tmp_path: Path) -> None:
    run(fanout.STUDY, data_in(large), tmp_path / "here", Options(engine="local"))
    asked = ["--master", "local-cluster[2,1,1024]", "--conf", "spark.executor.memory=512m"]
    study = started("fanout", str(large), "--out", str(tmp_path / "cluster"), *asked)
    mine = psutil.Process(study.pid)

    def working() -> list[psutil.Process]:
        """Executors whose Python has judged for a second."""
        found = []
        for each in mine.children(recursive=True):
            try:
                if "pyspark.daemon" in " ".join(each.cmdline()) and each.cpu_times().user > 1:
                    found += [p for p in each.parents() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline())]
            except psutil.NoSuchProcess:
                continue
        return found

    awaited(working, study)
    working()[0].kill()
    code, _, err = ended(study)

    assert code == 0, err
    assert content(tmp_path / "cluster") == content(tmp_path / "here")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_master_that_says_nothing_is_not_waited_for_long(made: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        code, _, err = ended(started("fanout", str(made), "--out", str(tmp_path / "o"), "--master", master))

    assert code == 1
    assert "no answer of a Spark master within" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_java_out_of_memory_says_what_to_set(tmp_path: Path) -> None:
    code, _, err = ended(
        started("match", "--registrations", "1000000", "--templates", "2000000", "--out", str(tmp_path / "o"),
                "--master", "local[2]", "--conf", "spark.driver.memory=480m")
    )  # fmt: skip

    assert code == 1
    assert "Java ran out of memory in stage" in err
    assert "--conf spark.driver.memory=8g" in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_an_interrupted_study_takes_java_with_it(large: Path, tmp_path: Path) -> None:
    study = started("fanout", str(large), "--out", str(tmp_path / "o"), "--master", "local[2]")
    mine = psutil.Process(study.pid)

    def judging() -> bool:
        with suppress(psutil.NoSuchProcess):  # a child that ends while we look
            return any("pyspark.daemon" in " ".join(each.cmdline()) for each in mine.children(recursive=True))
        return False

    awaited(judging, study)
    children = mine.children(recursive=True)
    study.send_signal(signal.SIGINT)
    code, _, err = ended(study)

    assert code == 130
    assert "Traceback" not in err
    psutil.wait_procs(children, timeout=30)
    assert [each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []
    assert json.loads((tmp_path / "o" / "manifest.json").read_text())["state"] == "running"


IMPATIENT = """
import sys
from jbi_pubsub.cli.app import run
from jbi_pubsub.spark import session
session._SILENCE = session._HURRY = 20
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("java", "us", "code", "told"),
    [
        (signal.SIGKILL, 0, 1, "Spark's Java process ended in stage 'publications' with code -9"),
        (signal.SIGSTOP, 0, 1, "Spark's Java process gave no answer for 20 s in stage 'publications' and was ended"),
        (signal.SIGSTOP, signal.SIGINT, 130, ""),
    ],
)
def test_java_that_has_gone_or_does_not_answer_is_not_waited_for(
    large: Path, tmp_path: Path, java: int, us: int, code: int, told: str
) -> None:
    words = ["study", "fanout", str(large), "--out", str(tmp_path / "o"), "--master", "local[2]"]
    study = subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    mine = psutil.Process(study.pid)

    def working() -> bool:
        with suppress(psutil.NoSuchProcess):  # a child that ends while we look
            return any("pyspark.daemon" in " ".join(each.cmdline()) for each in mine.children(recursive=True))
        return False

    awaited(working, study)
    [jvm] = [each for each in mine.children() if "SparkSubmit" in " ".join(each.cmdline())]
    jvm.send_signal(java)
    if us:
        study.send_signal(us)
    found, _, err = ended(study)

    assert (found, told in err, "Traceback" in err) == (code, True, False), err
    assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_cluster_that_loses_all_its_executors_is_not_waited_for(large: Path, tmp_path: Path) -> None:
    code = IMPATIENT.replace("session._SILENCE = session._HURRY = 20", "session.cluster.PATIENCE = 5.0")
    words = ["study", "fanout", str(large), "--out", str(tmp_path / "o"), "--master", "local-cluster[1,1,1024]"]
    study = subprocess.Popen(
        [sys.executable, "-c", code, *words, "--conf", "spark.executor.memory=512m"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    mine = psutil.Process(study.pid)

    def executors() -> list[psutil.Process]:
        found = []
        for each in mine.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                found += [each] if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()) else []
        return found

    until = time.monotonic() + PATIENT
    while study.poll() is None and time.monotonic() < until:  # the master starts another, ten times
        for each in executors():
            with suppress(psutil.NoSuchProcess):
                if time.time() - each.create_time() > 3:
                    each.kill()
        time.sleep(0.1)
    found, _, err = ended(study)

    assert found == 1, err
    assert "Traceback" not in err
    assert "jbi: " in err.splitlines()[-1]


def test_the_environment_of_another_spark_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    other, same = tmp_path / "other", tmp_path / "same"
    for home, release in ((other, "3.5.1"), (same, pyspark.__version__)):
        (home / "jars").mkdir(parents=True)
        (home / "jars" / f"spark-core_2.13-{release}.jar").touch()
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")

    monkeypatch.setenv("SPARK_HOME", str(other))
    found = session._environment_of("local[1]", {}, tmp_path)
    monkeypatch.setenv("SPARK_HOME", str(same))
    kept = session._environment_of("local[1]", {}, tmp_path)

    assert found["SPARK_HOME"] == str(Path(pyspark.__file__).parent)
    assert (found["PYSPARK_SUBMIT_ARGS"], found["PYSPARK_PYTHON"]) == ("pyspark-shell", sys.executable)
    assert "SPARK_HOME" not in kept


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_results_go_to_other_file_systems_whole_and_never_over_something_else(made: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted" / "taken").mkdir(parents=True)
    (tmp_path / "mounted" / "taken" / "mine").write_text("x")
    mounted = ["--master", "local[2]", "--conf",
               f"spark.hadoop.fs.viewfs.mounttable.default.link./data=file://{tmp_path}/mounted"]  # fmt: skip
    run(fanout.STUDY, data_in(made), tmp_path / "here", Options(engine="local"))

    code, _, err = ended(started("fanout", str(made), "--out", "viewfs:///data/new", *mounted))
    taken = ended(started("fanout", str(made), "--out", "viewfs:///data/taken", *mounted))
    unknown = ended(started("fanout", str(made), "--out", "nothing://x/y", "--master", "local[2]"))

    assert code == 0, err
    assert content(tmp_path / "mounted" / "new") == content(tmp_path / "here")
    assert json.loads((tmp_path / "mounted" / "new" / "manifest.json").read_text())["state"] == "complete"
    assert (taken[0], "is not empty and holds no earlier study" in taken[2]) == (2, True)
    assert (unknown[0], "nothing://x/y can't be written" in unknown[2]) == (2, True), unknown[2]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "x.SparkException: Not enough memory to build and broadcast the table",
            "Java ran out of memory in stage 'match'",
        ),
        ("java.lang.OutOfMemoryError: Java heap space", "Java ran out of memory"),
        (
            "x.SparkException: Exception thrown in awaitResult:\n\tat y\nCaused by: x.Y: a worker crashed",
            "x.Y: a worker",
        ),
        ("java.io.IOException: disk full.", "Spark failed in stage 'match': java.io.IOException: disk full. Look"),
    ],
)
def test_what_java_says_is_told_and_not_which_call_met_it(said: str, told: str) -> None:
    error = RuntimeError(f"An error occurred while calling o866.parquet.\n: {said}\n\tat x.y")

    assert told in str(session._failed("match", error))
