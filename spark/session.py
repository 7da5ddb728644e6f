"""The only door to PySpark: open a session, run work in it with progress, and speak of its failures plainly.

PySpark and its JVM are loaded when a session is opened, not when this module is imported.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zipfile import ZIP_DEFLATED, ZipFile

from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark import cluster
from jbi_pubsub.spark.javaenv import find_java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is to do (tasks or rows, 0 while not known)."""

T = TypeVar("T")

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
"""Next to nothing: what Spark has to say would stand between the rows of a report, and its errors reach us."""

_POLL: Final = 0.25
"""Seconds between two looks at the running tasks: smooth for a reader, nothing beside a stage of seconds."""
_MAXIMUM_HEAP: Final = 4 << 30
"""Bytes of Java heap of a local session: 10M x 100k and 100k x 2M were measured with it; at most half the machine's."""
_PACKAGE: Final = "jbi_pubsub.zip"
_OUT_OF_MEMORY: Final = 52
"""Exit code of a Java process that Spark ended for want of memory (its SparkExitCode.OOM)."""
_ENDED_WITHIN: Final = 5.0
"""Seconds until a Java process that has stopped answering has an exit code."""


@contextmanager
def open_session(name: str, *, extra: Mapping[str, str] | None = None, master: str = "") -> Iterator[SparkSession]:
    """A Spark session: the one that is already there (spark-submit, a notebook), else a local one on all cores.

    A session made here is stopped at the end; one that was there is left as it was. `extra` are Spark settings for
    a session made here, `master` is where it runs. Raises StudyError when PySpark or Java is missing, or Spark does not
    start, or nobody answers at `master` within cluster.PATIENCE seconds; ConfigurationError for what is no master.
    """
    cluster.check_master(master)
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
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what it raises as well
    with TemporaryDirectory(prefix="jbi-study-", ignore_cleanup_errors=True) as scratch:
        given = {} if submitted else _environment_of(master, extra or {}, Path(scratch))
        with _environment(given):
            builder = SparkSession.builder.appName(name)
            if not submitted:
                builder = builder.config(map=_settings(master, scratch, extra or {}))
            session = _started(builder, master)
            try:
                _wait_for_executors(session, {} if submitted else extra or {})
                yield session
            finally:
                _stop(session)


def _started(builder: Any, master: str) -> SparkSession:
    """A new session. Its Java process is ended where it does not come in time: Spark itself tries for long."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]  # no types
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException

    too_late, here, seconds = threading.Event(), threading.Event(), cluster.patience()

    def end() -> None:
        """Java's own start does not count: a busy machine takes long for it."""
        while SparkContext._gateway is None and not here.wait(_POLL):
            pass
        if not here.wait(seconds):
            too_late.set()
            process = getattr(SparkContext._gateway, "proc", None)
            if process is not None:
                process.kill()

    if master.startswith(cluster.STANDALONE):
        threading.Thread(target=end, name="jbi-study-start", daemon=True).start()
    try:
        session: SparkSession = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        _forget()
        if too_late.is_set():
            raise cluster.unanswered(master, f"no answer of a Spark master within {seconds:.0f} s") from error
        raise StudyError(
            f"Spark did not start: {_first_line(error)}",
            hint="Try another Java by JAVA_HOME, or the settings of --conf without those of your own",
        ) from error
    finally:
        here.set()
    return session


def _wait_for_executors(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Until there is one. Raises StudyError; Spark itself waits for ever."""
    context = session.sparkContext
    if not str(context.master).startswith((cluster.STANDALONE, "local-cluster")):
        return
    if settings.get("spark.dynamicAllocation.enabled") == "true":  # then they come with the work
        return
    seconds = cluster.patience()
    until = time.monotonic() + seconds
    while context._jsc.sc().getExecutorMemoryStatus().size() < 2:  # the driver is one
        if time.monotonic() > until:
            raise StudyError(
                f"{context.master} gave no executor within {seconds:.0f} s",
                hint="Look whether it has workers with free cores and memory; --conf spark.executor.memory=512m asks "
                "for less",
            )
        time.sleep(_POLL)


def _stop(session: SparkSession) -> None:
    """End a session, whether or not its Java process is still there."""
    from py4j.protocol import Py4JError

    try:
        session.stop()
    except (Py4JError, OSError):
        _forget()


def _forget() -> None:
    """A Java process that is no more: the next session gets another."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait(_ENDED_WITHIN)
        SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


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
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise _failed(stage, error) from error
        except BaseException:  # an interrupt, or the progress callback's own error: stop the jobs, then pass it on
            with suppress(Py4JError, ConnectionError):  # there may be nobody left to tell
                context.cancelJobGroup(stage)
            raise


def _failed(stage: str, error: BaseException) -> StudyError:
    """Spark's failure for people."""
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException

    told, code = str(error), None
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and not isinstance(error, PySparkException) and "\n" not in told.strip():
        with suppress(subprocess.TimeoutExpired):  # not even a stack trace came: it has ended, or is about to
            code = process.wait(_ENDED_WITHIN)
    if code == _OUT_OF_MEMORY or "OutOfMemoryError" in told:
        return StudyError(
            f"Java ran out of memory in stage {stage!r}",
            hint="Give it more, --conf spark.driver.memory=8g (on a cluster also spark.executor.memory=8g), or study "
            "less at once",
            stage=stage,
        )
    if code is not None:
        return StudyError(
            f"Spark's Java process ended in stage {stage!r} with code {code}",
            hint="-9 is a machine out of memory: give less to --conf spark.driver.memory; --resume goes on",
            stage=stage,
        )
    return StudyError(
        f"Spark failed in stage {stage!r}: {_first_line(error)}",
        hint="Look for a full disk or too little memory (--conf spark.driver.memory=8g); smaller numbers need less",
        stage=stage,
    )


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The columns of a frame as PyArrow has them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema)


def ship(session: SparkSession) -> None:
    """Let the executors' Python have this package, as it is here. What it stands on (lxml, msgspec, pyarrow ...) they
    must have: by --archives, or because they run on this machine."""
    context = session.sparkContext
    root = Path(__file__).parents[1]
    shipped = getattr(context, "_python_includes", None) or []
    master = str(context.master)
    if master == "local" or master.startswith("local[") or _PACKAGE in shipped or not root.is_dir():
        return  # executors are here, or have it, or we are ourselves what spark-submit was given as --py-files
    archive = Path(context._temp_dir) / _PACKAGE  # Spark's own: executors may ask for it until the session ends
    pack_package(archive)
    context.addPyFile(str(archive))


def pack_package(archive: Path) -> None:
    """This package as a .zip that Python can import from."""
    root = Path(__file__).parents[1]
    with ZipFile(archive, "w", ZIP_DEFLATED) as written:
        for here, folders, names in os.walk(root, followlinks=True):  # an editable installation has links
            folders[:] = sorted(set(folders) - {"__pycache__"})
            for path in (Path(here) / name for name in sorted(names) if name.endswith((".py", ".properties"))):
                written.write(path, Path("jbi_pubsub") / path.relative_to(root))


def check_remote(session: SparkSession, url: str) -> None:
    """Whether a study may write to a folder of a Hadoop file system: new, empty, or an earlier result.

    Raises ConfigurationError.
    """
    files, target, path = _remote(session, url)
    try:
        if not files.exists(target) or not len(files.listStatus(target)) or files.exists(path(target, "manifest.json")):
            return
    except Exception as error:
        raise _unusable(url, error) from error
    raise ConfigurationError(
        f"{url} is not empty and holds no earlier study", hint="Give an empty or new folder; nothing was changed"
    )


def upload(session: SparkSession, folder: Path, url: str) -> None:
    """Put a finished result to a folder of a Hadoop file system, its manifest last: without one it is none.

    Raises ConfigurationError for a path that can't be used.
    """
    files, target, path = _remote(session, url)
    try:
        files.setWriteChecksum(False)  # of a local folder behind another name: no file beside each file
        files.mkdirs(target)
        files.delete(path(target, "manifest.json"), False)
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        for name in (*(n for n in names if n != "manifest.json"), "manifest.json"):
            files.copyFromLocalFile(False, True, path((folder / name).as_uri()), path(target, name))
    except Exception as error:
        raise _unusable(url, error) from error


def _remote(session: SparkSession, url: str) -> tuple[Any, Any, Callable[..., Any]]:
    """The file system of a URL, its path there, and the maker of paths: Hadoop's own, by Spark's Java."""
    context = session.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path
    try:
        target = path(url)
        return target.getFileSystem(context._jsc.hadoopConfiguration()), target, path
    except Exception as error:
        raise _unusable(url, error) from error


def _unusable(url: str, error: BaseException) -> ConfigurationError:
    cause = getattr(error, "java_exception", None)
    return ConfigurationError(
        f"{url} can't be written: {str(cause) if cause is not None else _first_line(error)}"[:400],
        hint="Name a folder of a file system that this Spark knows, or one of this machine",
    )


def java_version(session: SparkSession) -> str:
    """Full version of the Java that the session's driver runs on, for example "17.0.15"."""
    jvm: Any = session.sparkContext._jvm
    return str(jvm.java.lang.System.getProperty("java.version"))


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


def _environment_of(master: str, extra: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """What Spark reads from the environment: Java, the workers' Python, and the address to listen at."""
    java = str(find_java(os.environ).path)
    address = cluster.own_address(master)
    wanted = {
        "JAVA_HOME": java,
        "PYSPARK_PYTHON": extra.get("spark.pyspark.python", sys.executable),  # by default with our packages
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if address:
        wanted["SPARK_LOCAL_IP"] = address
    if master.startswith("local-cluster"):  # its workers write below SPARK_HOME: not into the installed package
        import pyspark

        home = scratch / "spark"
        home.mkdir()
        for path in Path(pyspark.__file__).parent.iterdir():
            if path.name != "work":
                (home / path.name).symlink_to(path)
        wanted["SPARK_HOME"] = str(home)
    return wanted


def _settings(master: str, scratch: str, extra: Mapping[str, str]) -> dict[str, bool | float | int | str | None]:
    cores = os.cpu_count() or 1
    memory = min(_MAXIMUM_HEAP, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    address = cluster.own_address(master)
    return {
        "spark.master": master or f"local[{cores}]",
        **({"spark.driver.host": address, "spark.driver.bindAddress": address} if address else {}),
        "spark.driver.memory": f"{memory >> 20}m",
        **cluster.QUIET,
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
