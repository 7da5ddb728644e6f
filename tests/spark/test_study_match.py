"""The study `match`: the same result from every engine, checked against the lookup service's own semantics."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError, StudyError
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.spark import MatchReport, level1, match_study, session
from jbi_pubsub.spark.generators import CLASSES, WIDTH, Population, xxhash64
from jbi_pubsub.spark.reference import match_by_definition
from jbi_pubsub.spark.studies import match

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pq = pytest.importorskip("pyarrow.parquet", reason="PyArrow is not installed: pip install 'jbi-pubsub[spark]'")

SEED = 11


def rows(out: Path, table: str) -> list[tuple[Any, ...]]:
    read = pq.read_table(out / table)
    plain = [tuple(tuple(v) if isinstance(v, list) else v for v in row.values()) for row in read.to_pylist()]
    return sorted(plain, key=repr)


def padded(rep: EntryRep) -> tuple[str | None, ...]:
    return rep.values + (None,) * (WIDTH - len(rep.values))


def manifest(out: Path) -> dict[str, Any]:
    return msgspec.json.decode((out / "manifest.json").read_bytes(), type=dict[str, Any])


def study(population: Population, out: Path, engine: str) -> MatchReport:
    return match_study(
        registrations=population.registrations,
        templates=population.templates,
        seed=population.seed,
        out=out,
        engine=engine,
    )


class TestInThisProcess:
    def test_tables_unfold_to_exactly_the_pairs_of_the_definition(self, tmp_path: Path) -> None:
        population = Population(registrations=400, templates=300, seed=SEED)

        made = match_study(registrations=400, templates=300, seed=SEED, out=tmp_path)

        members = {row[0]: row[-1] for row in rows(tmp_path, "templates")}
        pairs = {(rid, tid) for rid, gid in rows(tmp_path, "hits") for tid in members[gid]}
        assert made.engine == "local"
        assert pairs == match_by_definition(population.registration_rows(), population.template_rows())
        assert made.pairs == len(pairs) == sum(row.pairs for row in made.distribution)
        assert made.templates_matched == len({tid for _, tid in pairs})
        assert sum(row.templates for row in made.distribution) == sum(row.templates for row in made.shapes) == 300

    def test_manifest_is_complete_and_lists_the_files(self, tmp_path: Path) -> None:
        made = match_study(registrations=200, templates=50, seed=SEED, out=tmp_path)

        kept = manifest(tmp_path)
        assert kept["state"] == "complete"
        assert msgspec.convert(kept["report"], type(made)) == made
        assert {f.name: f.rows for f in made.files if f.rows >= 0} == {
            "templates": made.groups,
            "hits": made.hits,
            "counts": len({gid for _, gid in rows(tmp_path, "hits")}),
        }

    def test_a_second_run_replaces_the_first(self, tmp_path: Path) -> None:
        match_study(registrations=300, templates=50, seed=1, out=tmp_path)

        second = match_study(registrations=100, templates=20, seed=2, out=tmp_path)

        assert len(rows(tmp_path, "hits")) == second.hits

    def test_progress_ends_with_everything_done(self, tmp_path: Path) -> None:
        seen: list[tuple[str, int, int]] = []

        match_study(registrations=200, templates=50, seed=SEED, out=tmp_path, progress=lambda *a: seen.append(a))

        assert {"templates": 50, "match": 200}.items() <= {stage: done for stage, done, _ in seen}.items()
        assert all(done <= total for _, done, total in seen)

    @pytest.mark.parametrize(("registrations", "templates"), [(0, 0), (0, 20), (20, 0)])
    def test_nothing_matches_nothing(self, registrations: int, templates: int, tmp_path: Path) -> None:
        made = match_study(registrations=registrations, templates=templates, seed=1, out=tmp_path)

        assert (made.pairs, made.hits, made.templates_matched) == (0, 0, 0)

    def test_large_inputs_go_to_spark(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(session, "find_java", lambda _environ: (_ for _ in ()).throw(StudyError("no Java")))
        monkeypatch.setattr(match, "LARGEST_LOCAL", 10)
        pytest.importorskip("pyspark", reason="needs the spark extra")
        from pyspark.sql import SparkSession

        monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
        monkeypatch.setattr(SparkSession, "_instantiatedSession", None)

        with pytest.raises(StudyError, match="no Java"):
            match_study(registrations=10, templates=1, seed=1, out=tmp_path)

        assert match_study(registrations=9, templates=1, seed=1, out=tmp_path).engine == "local"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
class TestOnSpark:
    def test_the_hash_is_spark_s_own(self, spark: SparkSession) -> None:
        numbers = [0, 1, -1, 42, 2**63 - 1, -(2**63), 1234567890123]

        made = spark.createDataFrame([(n,) for n in numbers], "n bigint").selectExpr("xxhash64(n, 7L, n)").collect()

        assert [row[0] % 2**64 for row in made] == [xxhash64(n, 7, n) for n in numbers]

    @pytest.mark.parametrize("partitions", [1, 3])
    def test_the_population_is_the_same_row_by_row(self, spark: SparkSession, partitions: int) -> None:
        population = Population(registrations=500, templates=500, seed=2**40 + 1)

        registrations = spark.sql(population.registration_sql(partitions=partitions)).collect()
        templates = spark.sql(population.template_sql(partitions=partitions)).collect()

        fields = [f"f{n}" for n in range(WIDTH)]
        assert [(r.rid, CLASSES[r.cls].cls, tuple(r[f] for f in fields)) for r in registrations] == [
            (rid, entry.cls, padded(entry)) for rid, entry in population.registration_rows()
        ]
        assert [(t.tid, CLASSES[t.cls].cls, tuple(t[f] for f in fields)) for t in templates] == [
            (tid, template.cls, padded(template)) for tid, template in population.template_rows()
        ]

    @pytest.mark.row("C-01")
    def test_the_result_is_the_same_as_in_this_process(self, tmp_path: Path) -> None:
        # Brackets in a path are a pattern to Spark's reader, a blank is a trap of its own.
        on_spark, local = tmp_path / "on [spark] {1}", tmp_path / "local"
        size = Population(registrations=30_000, templates=500, seed=SEED)

        first = study(size, on_spark, "spark")
        second = study(size, local, "local")

        for table in ("templates", "hits", "counts"):
            assert rows(on_spark, table) == rows(local, table)
        assert first.checksum == second.checksum
        assert (first.pairs, first.distribution, first.shapes) == (second.pairs, second.distribution, second.shapes)
        # One percent of a large one is checked.
        assert (first.check.step, first.check.registrations) == (100, 300)
        assert first.check.hits > 100
        assert first.check.defined_matches > 0
        assert (first.engine, first.java.partition(".")[0].isdigit()) == ("spark", True)

    def test_shuffling_instead_of_broadcasting_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        size = Population(registrations=500, templates=200, seed=3)
        expected = study(size, tmp_path / "a", "local").checksum
        monkeypatch.setattr(level1, "LARGEST_BROADCAST", 0)

        assert study(size, tmp_path / "b", "spark").checksum == expected

    def test_colliding_keys_are_no_matches(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        size = Population(registrations=100, templates=50, seed=3)
        expected = study(size, tmp_path / "a", "local").checksum
        honest = level1.hits_sql

        def colliding(registrations: str, groups: str, *, broadcast: bool) -> str:
            text = honest(registrations, groups, broadcast=broadcast)
            assert "p.key = t.key" in text
            return text.replace("p.key = t.key", "p.key ^ p.key = t.key ^ t.key")

        monkeypatch.setattr(level1, "hits_sql", colliding)

        assert study(size, tmp_path / "b", "spark").checksum == expected

    @pytest.mark.parametrize("registrations", [0, 20])
    def test_nothing_matches_nothing(self, registrations: int, tmp_path: Path) -> None:
        made = match_study(registrations=registrations, templates=0, seed=1, out=tmp_path, engine="spark")

        assert (made.pairs, made.hits, made.groups, made.checksum) == (0, 0, 0, "0" * 32)

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            (
                "(set_bits & m.bits) = m.bits",
                "rid % 4 <> 0 AND (set_bits & m.bits) = m.bits",
            ),  # loses some sampled ones
            ("(p.shape ^ t.shape) = 0", "p.rid >= 0"),  # compares with templates of other shapes
        ],
    )
    def test_a_wrong_result_is_caught_and_stays_unfinished(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
    ) -> None:
        honest = level1.hits_sql
        keyless = {"p.key = t.key": "p.bits = p.bits"} if right.startswith("(p.shape") else {}

        def broken(registrations: str, groups: str, *, broadcast: bool) -> str:
            text = honest(registrations, groups, broadcast=broadcast)
            for old, new in {right: wrong, **keyless}.items():
                assert old in text
                text = text.replace(old, new)
            return text

        monkeypatch.setattr(level1, "hits_sql", broken)

        with pytest.raises(StudyError, match="differ from the in-process matcher"):
            match_study(registrations=200, templates=100, seed=SEED, out=tmp_path, engine="spark")

        assert manifest(tmp_path)["state"] == "running"

    @pytest.mark.parametrize(
        ("right", "wrong", "differ"),
        [
            ("", "", ""),
            ("(set_bits & m.bits) = m.bits", "rid % 4 <> 0 AND (set_bits & m.bits) = m.bits", "hits"),
            ("GROUP BY cls, shape, ", "GROUP BY cls, shape, tid % 3, ", "groups"),
        ],
    )
    def test_of_many_templates_a_sample_is_checked_and_catches_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str, differ: str
    ) -> None:
        monkeypatch.setattr(match, "MOST_INDEXED", 2_000)
        for name in ("hits_sql", "groups_sql"):
            honest = getattr(level1, name)
            if right and right in honest(
                *("x", "y")[: 2 if name == "hits_sql" else 1], **({"broadcast": True} if name == "hits_sql" else {})
            ):
                monkeypatch.setattr(
                    level1, name, lambda *given, honest=honest, **more: honest(*given, **more).replace(right, wrong)
                )

        def made() -> MatchReport:
            return match_study(registrations=200, templates=4_000, seed=SEED, out=tmp_path, engine="spark")

        if differ:
            with pytest.raises(StudyError, match=f"{differ} .* differ from the in-process matcher"):
                made()
        else:
            found = made()
            assert (found.check.registrations, found.check.defined_matches > 0) == (100, True)
            assert found.check.hits > 100

    def test_what_spark_gives_up_on_is_told_with_its_stage(self, spark: SparkSession) -> None:
        with pytest.raises(StudyError, match="stage 'divide'") as failed:
            session.run(spark, "divide", lambda: spark.sql("SELECT 1 / id FROM range(3)").collect())

        assert failed.value.facts["stage"] == "divide"

    def test_progress_is_told_from_the_callers_thread_and_its_error_stops_the_work(self, spark: SparkSession) -> None:
        seen: list[int] = []
        work_may_end = threading.Event()

        def progress(stage: str, done: int, total: int) -> None:
            seen.append(threading.get_ident())
            work_may_end.set()
            raise KeyError(stage)

        with pytest.raises(KeyError, match="long"):
            session.run(spark, "long", lambda: work_may_end.wait(10), progress=progress)

        assert seen == [threading.get_ident()]

    def test_a_session_that_was_there_is_left_running_and_clean(self, spark: SparkSession, tmp_path: Path) -> None:
        before = dict(os.environ)

        match_study(registrations=10, templates=10, seed=1, out=tmp_path, engine="spark")

        assert spark.range(3).count() == 3
        assert spark.catalog.listTables() == []
        assert dict(os.environ) == before

    @pytest.mark.usefixtures("spark")
    def test_a_session_that_is_there_is_no_other_master_s(self) -> None:
        with (
            pytest.raises(ConfigurationError, match=r"has a Spark session already, at local.*, not at spark://h:1"),
            session.open_session("a study", master="spark://h:1"),
        ):
            pass

    def test_nothing_appears_where_the_user_stands(self, spark: SparkSession) -> None:
        spark.catalog.listTables()

        assert not Path("spark-warehouse").exists()
