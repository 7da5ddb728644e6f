"""Other people's Spark: what a master is called, whether one answers, and the spark-submit command of a study."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.spark.javaenv import find_java

PATIENCE: Final = 25.0
"""Seconds to wait for a master's answer, and then for its first executor, on a machine that is not overloaded."""
_MOST_PATIENCE: Final = 8
"""Times that, at most, on one that is: there it is Java that is slow to ask, not the master to answer."""
STANDALONE: Final = "spark://"
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
"""Next to nothing: what Spark has to say would stand between the rows of a report, and its errors reach us."""
QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.absolute().as_uri()}",
}
"""No page of Spark's own, nothing between the lines of a report."""
_MASTER: Final = re.compile(
    r"(local(\[(\*|\d+)(, *(\d+|\*))?\])?|local-cluster\[ *\d+ *, *\d+ *, *\d+ *\]"
    r"|spark://[^,/\s]+:\d+(,[^,/\s]+:\d+)*|yarn|k8s://\S+)?"
)
"""Masters that Spark 4.3 takes (its documentation, "Submitting Applications", "Master URLs"), and ""."""
_CONNECT: Final = 5.0
"""Seconds to wait for each master to take a connection."""
_LOOPBACK: Final = "127.0.0.1"
"""A local session listens to nobody else."""


def patience() -> float:
    """Seconds to wait now."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return PATIENCE * min(_MOST_PATIENCE, max(1.0, waiting))


def check_master(master: str) -> None:
    """Raises StudyError for Spark Connect, ConfigurationError for what is no master."""
    if master.startswith("sc://"):
        raise StudyError(
            "a study needs Spark itself, and sc:// is Spark Connect, which does not run our code at the data",
            hint="Give the cluster's own master, spark://HOST:PORT",
        )
    if not _MASTER.fullmatch(master):
        raise ConfigurationError(
            f"{master!r} is not a master of Spark",
            hint="Give local[2], local-cluster[2,1,1024], spark://HOST:PORT, yarn or k8s://URL",
            setting="master",
        )


@lru_cache(maxsize=4)
def own_address(master: str) -> str:
    """Where this process is to listen for a master's executors, "" where Spark is to find out.

    Raises StudyError when nothing takes connections there.
    """
    if not master or master.startswith("local"):
        return _LOOPBACK
    if not master.startswith(STANDALONE):
        return ""
    failed = ""
    for place in master.removeprefix(STANDALONE).split(","):
        host, _, port = place.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT) as opened:
                return str(opened.getsockname()[0])
        except (OSError, OverflowError) as error:
            failed = getattr(error, "strerror", None) or str(error)
    raise unanswered(master, failed)


def unanswered(master: str, why: str) -> StudyError:
    """That there is no master."""
    return StudyError(
        f"the Spark master {master} can't be reached: {why}",
        hint="Look for its host and port in the master's page or log; without --master a study runs on this machine",
        master=master,
    )


def submit_command(arguments: Sequence[str], *, name: str, master: str, settings: Mapping[str, str]) -> str:
    """The command line that does the same as `jbi` with these arguments, by spark-submit: to be run here, or to be
    taken as a pattern. In client mode the package is shipped by the study itself; what it stands on, executors of
    other machines get as `spark.archives` (a packed environment) with `spark.pyspark.python` in it.
    """
    check_master(master)
    given = dict(settings)
    python = given.pop("spark.pyspark.python", sys.executable)
    archives = given.pop("spark.archives", "")
    spec = find_spec("pyspark")
    home = Path(spec.origin).parent if spec is not None and spec.origin else None
    confs = {
        **QUIET,
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": python,
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        **given,
    }
    words = [
        "env", f"JAVA_HOME={find_java(os.environ).path}",
        *((f"SPARK_HOME={home}", str(home / "bin" / "spark-submit")) if home else ("spark-submit",)),
        "--master", master or "local[*]", "--name", name,
        *(("--archives", archives) if archives else ()),
        *(word for key, value in confs.items() for word in ("--conf", f"{key}={value}")),
        str(Path(__file__).parents[1] / "__main__.py"), *arguments,
    ]  # fmt: skip
    return shlex.join(words)
