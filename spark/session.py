"""The only door to PySpark: open a session, run work in it with progress, and speak of its failures plainly.

PySpark and its JVM are loaded when a session is opened, not when this module is imported.
"""

from __future__ import annotations

import logging
import os
import re
import signal
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
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.spark import cluster
from jbi_pubsub.spark.javaenv import find_java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, what is done and what there is to do (tasks or rows, 0 while not known)."""

T = TypeVar("T")

ENGINES: Final = ("auto", "spark", "local")
"""Values that a study's `engine` may have."""

_POLL: Final = 0.25
"""Seconds between two looks at the running tasks: smooth for a reader, nothing beside a stage of seconds."""
_MAXIMUM_HEAP: Final = 4 << 30
"""Bytes of Java heap of a local session: 10M x 100k and 100k x 2M were measured with it; at most half the machine's."""
_PACKAGE: Final = "jbi_pubsub.zip"
_OUT_OF_MEMORY: Final = 52
"""Exit code of a Java process that Spark ended for want of memory (its SparkExitCode.OOM)."""
_NO_MEMORY: Final = ("OutOfMemoryError", "UNABLE_TO_ACQUIRE_MEMORY", "Not enough memory to build and broadcast")
"""In what Java and Spark say of it themselves."""
_ENDED_WITHIN: Final = 5.0
"""Seconds until a Java process that has stopped answering has an exit code."""
_SILENCE: Final = 120
"""Seconds without an answer of Java, or until it has started, after which it is ended: a full garbage collection of
tens of GB takes some."""
_HURRY: Final = 20
"""The same, when we are to end anyhow."""
_PULSE: Final = 2.0
"""Seconds between two questions to Java."""
_CONNECT: Final = {"SPARK_REMOTE": "", "SPARK_CONNECT_MODE": "0", "SPARK_API_MODE": "classic"}
"""Variables by which PySpark takes to Spark Connect, and what they are when it does not."""
_CHILDREN: Final = "/proc/self/task/{}/children"


def check_engine(engine: str) -> None:
    """Raises ConfigurationError for one that is none of ENGINES."""
    if engine not in ENGINES:
        raise ConfigurationError(
            f"engine {engine!r} of a study is unknown", hint=f"Use one of {', '.join(ENGINES)}", setting="engine"
        )


@contextmanager
def open_session(name: str, *, extra: Mapping[str, str] | None = None, master: str = "") -> Iterator[SparkSession]:
    """A Spark session: the one that is already there (spark-submit, a notebook), else a local one on all cores.

    A session made here is stopped at the end; one that was there is left as it was. `extra` are Spark settings for
    a session made here, `master` is where it runs. Raises StudyError when PySpark or Java is missing, or Spark does not
    start, or nobody answers at `master` within cluster.PATIENCE seconds; ConfigurationError for what is no master, or
    not that of the session which is there.
    """
    cluster.check_master(master)
    try:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,import-not-found,unused-ignore]  # no types
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise StudyError(
            f"Spark can't be imported: {error}",
            hint="pip install 'jbi-pubsub[spark]'; small studies run without Spark: engine local",
        ) from error
    remote = [name for name, usual in _CONNECT.items() if os.environ.get(name, usual) not in {"", usual}]
    if remote or is_remote():
        raise StudyError(
            "a study needs Spark itself, and this process works through Spark Connect",
            hint=f"Unset {' and '.join(remote) or 'SPARK_REMOTE and SPARK_CONNECT_MODE_ENABLED'}, or run by "
            "spark-submit on the cluster",
        )
    there = _session_there(master)
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
            with _Pulse() as pulse:
                session = _started(builder, master, pulse)
                try:
                    _wait_for_executors(session)
                    yield session
                except (PySparkException, Py4JError, ConnectionError) as error:  # between two stages
                    raise _failed("", error) from error
                finally:
                    _stop(session)


def _session_there(master: str) -> SparkSession | None:
    """The session of this thread, or of the process. Raises ConfigurationError where it is not at `master`."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session: SparkSession = SparkSession.active()
    except PySparkException:  # its way to say that there is none
        return None
    has = session.sparkContext.master
    if master not in ("", has):
        raise ConfigurationError(
            f"this process has a Spark session already, at {has}, not at {master}",
            hint="Stop that session first, or name no master",
        )
    return session


class _Pulse:
    """Ends a Java process of ours that has stopped answering: who asks it waits for ever, and so would an interrupt.

    What counts is the number of our own looks: where both of us were stopped (Ctrl-Z), it is not to blame.
    """

    def __init__(self) -> None:
        self.ended = ""
        """Why we have ended it; "" while we have not."""
        self._patience = _SILENCE
        self._answers = 0
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"jbi-study-{work.__name__.strip('_')}", daemon=True)
            for work in (self._ask, self._watch)
        ]

    def __enter__(self) -> _Pulse:
        global _pulse  # as PySpark has one context in a process
        _pulse = self
        logging.getLogger().addFilter(_not_of_py4j)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        global _pulse
        _pulse = None
        self._over.set()
        for thread in self._threads:
            thread.join(_HURRY)
        logging.getLogger().removeFilter(_not_of_py4j)

    def hurry(self) -> None:
        """We are to end: there is little to wait for."""
        self._patience = _HURRY

    def end(self, why: str) -> None:
        """End it now."""
        from pyspark.core.context import SparkContext

        self.ended = self.ended or why
        process = getattr(SparkContext._gateway, "proc", None)
        if process is not None:
            process.kill()
        elif SparkContext._gateway is None:
            _end_starting()

    def _ask(self) -> None:
        from py4j.protocol import Py4JError
        from pyspark.core.context import SparkContext

        with guarded("asking Java"), suppress(Py4JError, OSError):  # it has ended: who works with it is told
            while (jvm := SparkContext._jvm) is None:
                if self._over.wait(_POLL):
                    return
            clock: Any = jvm.java.lang.System
            while not self._over.wait(_PULSE):
                clock.nanoTime()
                self._answers += 1

    def _watch(self) -> None:
        silent = seen = 0
        while not self._over.wait(1.0) and self._threads[0].is_alive():
            silent = silent + 1 if self._answers == seen else 0
            seen = self._answers
            if silent >= self._patience:
                with guarded("ending Java"):
                    self.end(f"gave no answer for {silent} s")
                return


_pulse: _Pulse | None = None


def _not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record is not of Py4J: what that logs by the root's logger, it raises as well."""
    return "py4j" not in Path(record.pathname).parts


def _end_starting() -> None:
    """End the Java process that PySpark starts and does not yet tell of, with what it may have become (Linux alone)."""
    for thread in threading.enumerate():
        with suppress(OSError):
            for child in Path(_CHILDREN.format(thread.native_id)).read_text().split():
                words = Path(f"/proc/{child}/environ").read_bytes()
                if b"_PYSPARK_DRIVER_CONN_INFO_PATH=" in words:
                    os.kill(int(child), signal.SIGKILL)


def ending(work: Callable[[], object]) -> None:
    """Do what ends something, in a thread of its own, which has its own connection to Java: after an interrupt there
    may be the answer to an earlier question in ours. Errors of one that is no more are nobody's."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def tried() -> None:
        with guarded("ending work of Spark"), suppress(Py4JError, PySparkException, OSError):
            work()

    if _pulse is not None:
        _pulse.hurry()
    thread = threading.Thread(target=tried, name="jbi-study-ending", daemon=True)
    thread.start()
    thread.join(2 * _HURRY)


def _started(builder: Any, master: str, pulse: _Pulse) -> SparkSession:
    """A new session. Its Java process is ended where it does not come in time: Spark itself tries for long."""
    from py4j.protocol import Py4JError, Py4JNetworkError
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException

    late, here, seconds = f"no answer of a Spark master within {cluster.patience():.0f} s", threading.Event(), 0.0

    def end() -> None:
        """Java's own start does not count: a busy machine takes long for it."""
        while SparkContext._gateway is None and not here.wait(_POLL):
            pass
        if not here.wait(seconds):
            with guarded("ending Java"):
                pulse.end(late)

    if master.startswith(cluster.STANDALONE):
        seconds = cluster.patience()
        threading.Thread(target=end, name="jbi-study-start", daemon=True).start()
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        session: SparkSession = builder.getOrCreate()
        session.sparkContext.statusTracker().getActiveJobsIds()  # Spark may have given up the master, and said nothing
    except (PySparkException, Py4JError, OSError, KeyError, ValueError) as error:
        _forget()
        if master.startswith(cluster.STANDALONE) and (
            pulse.ended == late or isinstance(error, OSError | Py4JNetworkError)
        ):
            raise cluster.unanswered(master, late) from error
        raise StudyError(
            f"Spark did not start: {'Java ' + pulse.ended if pulse.ended else _first_line(error)}",
            hint="Try another Java by JAVA_HOME, or the settings of --conf without those of your own",
        ) from error
    except BaseException:  # an interrupt
        _forget()
        raise
    finally:
        here.set()
        if threading.current_thread() is threading.main_thread():  # Spark's own asks Java first, and for ever
            signal.signal(signal.SIGINT, interrupted)
    return session


class Executors:
    """Those of a cluster that gives them beforehand. Spark itself waits for them for ever."""

    def __init__(self, session: SparkSession) -> None:
        context = session.sparkContext
        self._context = context
        self._given = str(context.master).startswith((cluster.STANDALONE, "local-cluster"))
        if context.getConf().get("spark.dynamicAllocation.enabled") == "true":  # then they come with the work
            self._given = False
        self._seen = time.monotonic()

    def there(self) -> bool:
        """Whether there is one. Raises StudyError when there has been none for cluster.patience() seconds."""
        if not self._given or self._context._jsc.sc().getExecutorMemoryStatus().size() > 1:  # the driver is one
            self._seen = time.monotonic()
            return True
        seconds = time.monotonic() - self._seen
        if seconds > cluster.patience():
            raise StudyError(
                f"{self._context.master} gave no executor within {seconds:.0f} s",
                hint="Look whether it has workers with free cores and memory; --conf spark.executor.memory=512m asks "
                "for less",
            )
        return False


def _wait_for_executors(session: SparkSession) -> None:
    """Until there is one. Raises StudyError."""
    executors = Executors(session)
    while not executors.there():
        time.sleep(_POLL)


def _stop(session: SparkSession) -> None:
    """End a session, whether or not its Java process is still there."""
    from pyspark.core.context import SparkContext

    ending(session.stop)
    if SparkContext._active_spark_context is not None:
        _forget()


def _forget() -> None:
    """A Java process that is no more: the next session gets another."""
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDED_WITHIN)
        SparkContext._gateway = SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def run(session: SparkSession, stage: str, work: Callable[[], T], *, progress: Progress | None = None) -> T:
    """Result of `work` (which starts Spark jobs), with `progress` called from this thread meanwhile.

    Raises StudyError when Spark gives up on it. An interrupt cancels the stage's jobs.
    """
    from py4j.protocol import Py4JError
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
            ending(lambda: context.cancelJobGroup(stage))
            raise


def _failed(stage: str, error: BaseException) -> StudyError:
    """Spark's failure for people. `stage` "" is between two."""
    from pyspark.core.context import SparkContext

    told, code, where = str(error), None, f" in stage {stage!r}" if stage else ""
    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None and ("\n" not in told.strip() or "SparkContext was shut down" in told):
        with suppress(subprocess.TimeoutExpired):  # not even a stack trace came: it has ended, or is about to
            code = process.wait(_ENDED_WITHIN)
    if _pulse is not None and _pulse.ended:
        said = f"Spark's Java process {_pulse.ended}{where} and was ended"
        hint = "Look whether the machine is out of memory, or whether somebody has stopped it; --resume goes on"
    elif code == _OUT_OF_MEMORY or any(words in told for words in _NO_MEMORY):
        said = f"Java ran out of memory{where}"
        hint = "Give it more, --conf spark.driver.memory=8g (on a cluster also spark.executor.memory=8g), or study "
        hint += "less at once"
    elif code is not None:
        said = f"Spark's Java process ended{where} with code {code}"
        hint = "-9 is a machine out of memory: give less to --conf spark.driver.memory; --resume goes on"
    else:
        said = f"Spark failed{where}: {_first_line(error)}"
        hint = "Look for a full disk or too little memory (--conf spark.driver.memory=8g); smaller numbers need less"
    return StudyError(said, hint=hint, stage=stage)


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


_PATTERN: Final = re.compile(r"([{}\[\]*?\\])")


def is_pattern(name: str) -> bool:
    """Whether Hadoop would take a name for a pattern."""
    return _PATTERN.search(name) is not None


def hadoop_path(path: Path, *, pattern: bool = False) -> str:
    """A path of this machine as Hadoop reads it: no URI, for nothing is encoded. Where Spark takes a `pattern`, what
    would be one in it stands for itself."""
    text = str(path.resolve())
    return "file://" + (_PATTERN.sub(r"\\\1", text) if pattern else text)


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
        files.mkdirs(target)
        target = files.resolvePath(target)  # of a folder behind another name, itself
        files = target.getFileSystem(session.sparkContext._jsc.hadoopConfiguration())
        files.setWriteChecksum(False)  # on a disk of this machine: no file beside each file
        files.delete(path(target, "manifest.json"), False)
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        for name in (*(n for n in names if n != "manifest.json"), "manifest.json"):
            files.copyFromLocalFile(False, True, path(hadoop_path(folder / name)), path(target, name))
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
    tracker, executors = session.sparkContext.statusTracker(), Executors(session)
    while not wait([future], timeout=_POLL).done:
        executors.there()
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
    """Variables that Spark reads from the environment: Java, the workers' Python, and the address to listen at."""
    java = str(find_java(os.environ).path)
    address = cluster.own_address(master)
    import pyspark

    home = Path(pyspark.__file__).parent
    wanted = {
        "JAVA_HOME": java,
        "PYSPARK_SUBMIT_ARGS": "pyspark-shell",  # settings are those of --conf and of the user's spark-defaults.conf
        "PYSPARK_PYTHON": extra.get("spark.pyspark.python", sys.executable),  # by default with our packages
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if address:
        wanted["SPARK_LOCAL_IP"] = address
    own = os.environ.get("SPARK_HOME", "")
    if own and not [*Path(own).glob(f"jars/spark-core_*-{pyspark.__version__}.jar")]:
        wanted["SPARK_HOME"] = own = str(home)  # another release does not understand this PySpark
    if master.startswith("local-cluster"):  # its workers write below SPARK_HOME: not into the installed package
        linked = scratch / "spark"
        linked.mkdir()
        for path in Path(own or home).iterdir():
            if path.name != "work":
                (linked / path.name).symlink_to(path.resolve())
        wanted["SPARK_HOME"] = str(linked)
    return wanted


def _settings(master: str, scratch: str, extra: Mapping[str, str]) -> dict[str, bool | float | int | str | None]:
    cores = os.cpu_count() or 1
    memory = min(_MAXIMUM_HEAP, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    address = cluster.own_address(master)
    return {
        "spark.master": master or f"local[{cores}]",
        "spark.submit.deployMode": "client",
        **({"spark.driver.host": address, "spark.driver.bindAddress": address} if address else {}),
        "spark.driver.memory": f"{memory >> 20}m",
        **cluster.QUIET,
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
    """Line that says most: of an error in Java neither which of our calls met it, nor who awaited it there."""
    lines = [line.strip(" :.") for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    said = [line for line in (*lines[:2], *causes) if not line.startswith("An error occurred while calling")]
    return next((line for line in said if "awaitResult" not in line), lines[0])[:300]
