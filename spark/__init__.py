"""Studies on Spark: the matching of the product in bulk, with the same semantics.

Importing this package loads neither PySpark nor PyArrow nor Java; running a study does.
"""

from __future__ import annotations

from jbi_pubsub.spark.report import MatchReport
from jbi_pubsub.spark.session import ENGINES
from jbi_pubsub.spark.studies.match import match_study

__all__ = ["ENGINES", "MatchReport", "match_study"]
