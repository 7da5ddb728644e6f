"""The only door to PySpark: open a session, run work in it with progress, and speak of its failures plainly.

PySpark and its JVM are loaded when a session is opened, not when this module is imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark.javaenv import find_java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is to do (tasks or rows, 0 while not known)."""

T = TypeVar("T")

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
"""Errors only: Spark's greeting would stand between the rows of a report."""

_LOOPBACK: Final = "127.0.0.1"
"""A local session listens to nobody else."""
_POLL: Final = 0.25
"""Seconds between two looks at the running tasks: smooth for a reader, nothing beside a stage of seconds."""
_MAXIMUM_HEAP: Final = 4 << 30
"""Bytes of Java heap of a local session: 10M x 100k and 100k x 2M were measured with it; at most half the machine's."""


@contextmanager
def open_session(name: str, *, extra: Mapping[str, str] | None = None, master: str = "") -> Iterator[SparkSession]:
    """A Spark session: the one that is already there (spark-submit, a notebook), else a local one on all cores.

    A session made here is stopped at the end; one that was there is left as it was. `extra` are Spark settings for
    a session made here. Raises StudyError when PySpark or Java is missing, or Spark does not start.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise StudyError(
            f"Spark can't be imported: {error}",
            hint="pip install 'jbi-pubsub[spark]'; small studies run without Spark: engine local",
        ) from error
    if is_remote():
        raise StudyError(
            "a study needs Spark itself, and this process works through Spark Connect",
            hint="Unset SPARK_REMOTE and SPARK_CONNECT_MODE_ENABLED, or run by spark-submit on the cluster",
        )
    try:
        there: SparkSession | None = SparkSession.active()  # of this thread, or of the process
    except PySparkException:  # its way to say that there is none
        there = None
    if there is not None:
        yield there
        return
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # set by spark-submit, whose master and settings then hold
    builder = SparkSession.builder.appName(name)
    with _environment({} if submitted else _local_environment()), TemporaryDirectory(prefix="jbi-study-") as scratch:
        if not submitted:
            builder = builder.config(map=_local_settings(scratch, extra or {}))
            if master:
                builder = builder.master(master)
        try:
            session = builder.getOrCreate()
        except PySparkException as error:
            raise StudyError(
                f"Spark did not start: {_first_line(error)}",
                hint="Java's own message stands above; try another Java by JAVA_HOME",
            ) from error
        try:
            yield session
        finally:
            session.stop()


def run(session: SparkSession, stage: str, work: Callable[[], T], *, progress: Progress | None = None) -> T:
    """Result of `work` (which starts Spark jobs), with `progress` called from this thread meanwhile.

    Raises StudyError when Spark gives up on it. An interrupt cancels the stage's jobs.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]  # no types
    from pyspark.errors import PySparkException

    context = session.sparkContext

    def grouped() -> T:
        context.setJobGroup(stage, stage, interruptOnCancel=True)
        return work()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(grouped)
        try:
            return _wait(session, stage, future, progress)
        except (Py4JError, PySparkException) as error:
            raise StudyError(
                f"Spark failed in stage {stage!r}: {_first_line(error)}",
                hint="Look for a full disk or too little memory (spark.driver.memory); smaller numbers need less",
                stage=stage,
            ) from error
        except BaseException:  # an interrupt, or the progress callback's own error: stop the jobs, then pass it on
            context.cancelJobGroup(stage)
            raise


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a frame as PyArrow has them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema)


def ship(session: SparkSession) -> None:
    """Let the executors' Python have this package, as it is here. What it stands on (lxml, msgspec, pyarrow ...) they
    must have: by --archives, or because they run on this machine."""
    context = session.sparkContext
    if str(context.master).startswith("local[") or context.master == "local":
        return
    root = Path(__file__).parents[1]
    with TemporaryDirectory(prefix="jbi-ship-") as folder:
        archive = Path(folder) / "jbi_pubsub.zip"
        with ZipFile(archive, "w", ZIP_DEFLATED) as written:
            for here, _, names in os.walk(root, followlinks=True):  # an editable installation has links
                for path in (Path(here) / name for name in names if name.endswith(".py")):
                    written.write(path, Path("jbi_pubsub") / path.relative_to(root))
        context.addPyFile(str(archive))


def java_version(session: SparkSession) -> str:
    """Full version of the Java that the session's driver runs on, for example "17.0.15"."""
    row = session.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')").first()
    return str(row[0]) if row else ""


def _wait(session: SparkSession, stage: str, future: Future[T], progress: Progress | None) -> T:
    tracker = session.sparkContext.statusTracker()
    while not wait([future], timeout=_POLL).done:
        if progress is not None:
            stages = [
                tracker.getStageInfo(stage_id)
                for job in tracker.getJobIdsForGroup(stage)
                for stage_id in getattr(tracker.getJobInfo(job), "stageIds", ())
            ]
            known = [info for info in stages if info is not None]
            progress(stage, sum(i.numCompletedTasks for i in known), sum(i.numTasks for i in known))
    return future.result()


def _local_environment() -> dict[str, str]:
    return {
        "JAVA_HOME": str(find_java(os.environ).path),
        "PYSPARK_PYTHON": sys.executable,  # workers see the packages of this interpreter
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": _LOOPBACK,
    }


def _local_settings(scratch: str, extra: Mapping[str, str]) -> dict[str, bool | float | int | str | None]:
    cores = os.cpu_count() or 1
    memory = min(_MAXIMUM_HEAP, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return {
        "spark.master": f"local[{cores}]",
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.driver.memory": f"{memory >> 20}m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
        "spark.sql.warehouse.dir": scratch,  # else a folder spark-warehouse appears where the user stands
        "spark.sql.shuffle.partitions": str(cores),
        **extra,
    }


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables that Spark reads from the environment, and put back what was there."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
