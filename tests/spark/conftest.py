"""One Spark session for the whole room; tests that ask for it are skipped where PySpark or Java is missing."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark import plots
from jbi_pubsub.spark.javaenv import find_java
from jbi_pubsub.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first compiler tier, the simplest collector, and plans that are run as they are, not compiled: a test ends before
# the others pay. What users have is in test_clusters.py and in the pages of the documentation.
QUICK_JVM = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="session", autouse=True)
def _drawn_once() -> Iterator[None]:
    """A plot has the same bytes each time (test_report_page.py), and drawing them is most of a small study."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "drawn", functools.lru_cache(200)(plots.drawn))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    if find_spec("pyspark") is None:
        pytest.skip("PySpark is not installed: pip install 'jbi-pubsub[spark]'")
    try:
        find_java(os.environ)
    except StudyError as error:
        pytest.skip(str(error))
    with open_session("tests", extra=QUICK_JVM) as session:
        yield session
