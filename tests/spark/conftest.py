"""One Spark session for the whole room; tests that ask for it are skipped where PySpark or Java is missing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from jbi_pubsub.core.errors import StudyError
from jbi_pubsub.spark.javaenv import find_java
from jbi_pubsub.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first compiler tier and the simplest collector: a test ends before the others pay.
QUICK_JVM = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}


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
