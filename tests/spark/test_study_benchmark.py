"""What the benchmark of studies relies on: DuckDB's wording of the SQL says the same, and a difference is not passed
over."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from jbi_pubsub.spark.generators import Population

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyarrow", reason="needs the spark extra")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    return importlib.import_module("spark")


@pytest.mark.spark
def test_duckdb_says_the_same_of_the_same_files(benchmark: ModuleType, spark: SparkSession, tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="only the benchmark needs it: pip install duckdb")
    spark = spark.newSession()  # its views are its own
    benchmark._write_population(spark, Population(registrations=300, templates=100, seed=1), tmp_path)

    benchmark._by_spark(spark, tmp_path, "hot")
    benchmark._by_duckdb(tmp_path, "hot")

    sums = benchmark._sums(tmp_path / "by-spark")
    assert sums == benchmark._sums(tmp_path / "by-duckdb")
    assert min(sums) > 0


@pytest.mark.parametrize(("checksum", "code"), [("a", 0), ("b", 1)])
def test_engines_that_differ_end_it(
    checksum: str,
    code: int,
    benchmark: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def part(_scratch: Path, *words: str) -> dict[str, Any]:
        found = dict.fromkeys(("cold", "warm", "check", "whole", "wall", "cold_cpu", "warm_cpu", "MB"), 1.0)
        return {**found, "checksum": checksum if words[0] == "one" else "a"}

    monkeypatch.setattr(benchmark, "_part", part)
    monkeypatch.setattr("sys.argv", ["spark.py", "--only", "match"])

    assert benchmark.main() == code
    said = capsys.readouterr()
    assert ("engines differ" in said.err) == bool(code)
    assert ("one Python process / Spark" in said.out) == (not code)
