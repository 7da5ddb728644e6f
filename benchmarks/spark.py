"""Studies on Spark: what they cost, against DuckDB and against one Python process in the same run.

    python benchmarks/spark.py [--small] [--only match] [--json FILE]

`processes` says who did a row. `wall` is the median of its rounds, in seconds; `CPU` is of all its processes together,
steadier on a machine that does other things as well (but not half of it: there a second of CPU time gets less done);
`MB` is the most that they held at once (proportional set size,
so what forked workers share counts once), 0 where several engines took turns in one process. A row's ratio is to the
row that its name says, of the same run, with rounds that took turns. Rows are twice there: at the size of the goal and
at a tenth of it. With --small both are a twentieth, and goals, which are meant for the full size, are not looked at.

Where two engines answer the same question their answers are compared: counts and sums of all hits, the checksum of a
study, or each byte of result.json. A difference ends the benchmark with exit code 1; a goal that is missed does not.
DuckDB (pip install duckdb) runs the SQL of spark/level1.py in its own words on the same Parquet files, and writes the
same tables; without it those rows say so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from jbi_pubsub.spark import dataset, level1, match_study, session
from jbi_pubsub.spark.domain import StudyDomain
from jbi_pubsub.spark.generators import CLASSES, SHAPES, WIDTH, Population, lineage_bits

SEED = 1
ROUNDS = 3
PATIENCE = 1_800
"""Seconds until a row is given up."""
LOOK = 0.2
"""Seconds between two looks at the memory of a row's processes."""
GOALS = {
    "start": ("session start", 5.0, "s"),
    "cold": ("match 1M x 100k cold, no check", 8.0, "s"),
    "warm": ("match 1M x 100k warm, no check", 4.0, "s"),
    "check": ("check / study, 1M templates", 1.0, "x"),
    "process": ("one Python process / Spark, 1M x 1M", 2.0, "x at least"),
    "duckdb": ("Spark / DuckDB, same SQL, 10M x 100k", 4.0, "x"),
    "memory": ("memory of all, 10M x 100k", 2_500.0, "MB"),
    "hot": ("hot / normal population", 1.3, "x"),
    "cores": ("local[1] / local[2]", 1.7, "x at least"),
    "predicates": ("predicates, 1M publications x 1,000", 60.0, "s"),
    "whole": ("whole study 1M / 100k / 1M with report", 40.0, "s"),
}

Row = dict[str, Any]
_FIELDS = [f"f{n}" for n in range(WIDTH)]


class DifferError(Exception):
    """Two engines gave two answers."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a twentieth of everything")
    parser.add_argument("--only", action="append", choices=sorted(MEASURED), help="this alone; may be repeated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)  # what one of the processes does
    options = parser.parse_args()
    if options.part:
        print(json.dumps(PARTS[options.part[0]](*options.part[1:])))
        return 0
    rows: list[Row] = []
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before it begins", file=sys.stderr)
    try:
        with tempfile.TemporaryDirectory(prefix="jbi-bench-") as scratch:
            for name in options.only or MEASURED:
                for shrunk in (10, 1):
                    sizes = Sizes(shrunk * (20 if options.small else 1), last=shrunk == 1)
                    for row in MEASURED[name](sizes, Path(scratch)):
                        rows.append(row)
                        print(_line(row), file=sys.stderr)
    except DifferError as error:
        print(f"engines differ: {error}", file=sys.stderr)
        return 1
    finally:
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(_table(rows))
    return 0


class Sizes:
    """Sizes of a row, full or shrunk."""

    def __init__(self, shrunk: int, *, last: bool) -> None:
        self.full = shrunk == 1
        self.last = last
        self._shrunk = shrunk

    def __call__(self, number: int) -> int:
        return max(1, number // self._shrunk)


def _row(sizes: Sizes, goal: str, size: str, processes: str, value: float, **more: Any) -> Row:
    what, limit, unit = GOALS[goal]
    met = value >= limit if unit.endswith("least") else value <= limit
    row: Row = {"what": what, "size": size, "processes": processes, "value": round(value, 2), "unit": unit.split()[0]}
    row |= {key: round(float(found), 2) for key, found in more.items()}
    return row | {"goal": f"{'>=' if unit.endswith('least') else '<='} {limit:g}", "met": met if sizes.full else None}


# What is measured: the rows of a name.


def starts(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    if not sizes.last:  # it has no size
        return
    parts = [_part(scratch, "start") for _ in range(ROUNDS)]
    yield _row(sizes, "start", "-", "python (open_session) + java", _median(parts, "wall"), **_cost(parts))


def matches(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    """A study in a fresh session and again, and its check at many templates, against one Python process."""
    for templates in (sizes(100_000), sizes(1_000_000)):
        registrations = sizes(1_000_000)
        size, who = f"{registrations:,} x {templates:,}", "python (match_study) + java, local[2]"
        spark = _part(scratch, "study", str(registrations), str(templates), f"local[{_cores()}]")
        one = _part(scratch, "one", str(registrations), str(templates))
        _same(f"{size}: checksums of Spark and of one Python process", spark["checksum"], one["checksum"])
        cost = {"MB": spark["MB"]}
        if templates == sizes(100_000):
            yield _row(sizes, "cold", size, who, spark["cold"], CPU=spark["cold_cpu"], **cost)
            yield _row(
                sizes, "warm", size, who, spark["warm"], CPU=spark["warm_cpu"], one_process=one["wall"] / spark["warm"]
            )
        else:
            yield _row(sizes, "check", size, who, spark["check"] / spark["warm"], wall=spark["check"])
            ratio = one["wall"] / spark["whole"]
            yield _row(
                sizes, "process", size, f"{who} with its start | python", ratio, wall=spark["whole"],
                CPU=spark["cold_cpu"], **cost, one_process=ratio,
            )  # fmt: skip


def sql(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    """The SQL alone, on the same Parquet files."""
    size = (sizes(10_000_000), sizes(100_000))
    told = f"{size[0]:,} x {size[1]:,}"
    study = _part(scratch, "study", str(size[0]), str(size[1]), f"local[{_cores()}]", "1")
    who = "python (match_study) + java, local[2]"
    yield _row(sizes, "memory", told, who, study["MB"], wall=study["warm"], CPU=study["warm_cpu"])
    if find_spec("duckdb") is None:
        yield {"what": GOALS["duckdb"][0], "size": told, "processes": "DuckDB is not installed: pip install duckdb"}
        return
    part = _part(scratch, "sql", str(size[0]), str(size[1]))
    _same(f"{told}: counts and sums of Spark and DuckDB", part["spark_sums"], part["duckdb_sums"])
    ratio = part["spark"] / part["duckdb"]
    yield _row(
        sizes, "duckdb", told, "python + java, local[2] | python (duckdb, 2 threads)", ratio, wall=part["spark"],
        CPU=part["spark_cpu"], DuckDB=ratio,
    )  # fmt: skip


def hot(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    """A tenth of all templates match everything."""
    size = (sizes(1_000_000), sizes(100_000))
    part = _part(scratch, "sql", str(size[0]), str(size[1]), "hot")
    if find_spec("duckdb") is not None:
        _same("hot templates: counts and sums of Spark and DuckDB", part["hot_sums"], part["hot_duckdb_sums"])
    against = {"DuckDB": part["hot"] / part["hot_duckdb"]} if "hot_duckdb" in part else {}
    yield _row(
        sizes, "hot", f"{size[0]:,} x {size[1]:,}", "python + java, local[2]", part["hot"] / part["spark"],
        wall=part["hot"], CPU=part["hot_cpu"], **against,
    )  # fmt: skip


def cores(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    size = (sizes(1_000_000), sizes(100_000))
    found: dict[str, list[Row]] = {"local[1]": [], "local[2]": []}
    for _ in range(2):
        for master, parts in found.items():
            parts.append(_part(scratch, "study", str(size[0]), str(size[1]), master))
    _same("local[1] and local[2]", *({part["checksum"] for part in parts}.pop() for parts in found.values()))
    one, two = (_median(parts, "warm") for parts in found.values())
    yield _row(
        sizes, "cores", f"{size[0]:,} x {size[1]:,}", "python (match_study) + java", one / two, wall=two,
        CPU=_median(found["local[2]"], "warm_cpu"),
    )  # fmt: skip


def predicates(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    """The whole command, against itself in one process."""
    domain = {"registrations": 100, "subscriptions": 1_000, "publications": sizes(1_000_000)}
    data = _made(scratch, domain)
    spark, one = (
        _part(scratch, "command", "study", "predicates", str(data), "--engine", engine) for engine in ("spark", "local")
    )
    _same("result.json of predicates from Spark and from one Python process", spark["result"], one["result"])
    yield _row(
        sizes, "predicates", f"{domain['publications']:,} x {domain['subscriptions']:,}",
        "jbi study predicates + java + 2 python workers", spark["wall"], CPU=spark["CPU"], MB=spark["MB"],
        one_process=one["wall"] / spark["wall"],
    )  # fmt: skip


def whole(sizes: Sizes, scratch: Path) -> Iterator[Row]:
    """All of it as somebody would ask: who gets what of whom, and how the publications fan out."""
    domain = {"registrations": sizes(1_000_000), "subscriptions": sizes(100_000), "publications": sizes(1_000_000)}
    data = _made(scratch, domain, selectivity=0.0002)
    spark, one = (
        _part(scratch, "command", "study", "fanout", str(data), "--engine", engine) for engine in ("spark", "local")
    )
    _same("result.json of fanout from Spark and from one Python process", spark["result"], one["result"])
    yield _row(
        sizes, "whole", " / ".join(f"{n:,}" for n in domain.values()), "jbi study fanout + java + 2 python workers",
        spark["wall"], CPU=spark["CPU"], MB=spark["MB"], one_process=one["wall"] / spark["wall"],
    )  # fmt: skip


MEASURED: dict[str, Callable[[Sizes, Path], Iterator[Row]]] = {
    "start": starts,
    "match": matches,
    "sql": sql,
    "hot": hot,
    "cores": cores,
    "predicates": predicates,
    "whole": whole,
}


def _same(what: str, one: object, other: object) -> None:
    if one != other:
        raise DifferError(f"{what}: {one!s:.200} and {other!s:.200}")


def _made(scratch: Path, domain: Mapping[str, int], selectivity: float = 0.01) -> Path:
    """A data set of the paper's domain."""
    folder = scratch / f"data-{'-'.join(map(str, domain.values()))}"
    if not folder.exists():
        known = StudyDomain(**domain, seed=SEED, selectivity=selectivity)
        dataset.write(folder, known.contracts(), known.published(), source="generated")
    return folder


# What one process does, and how the others look at it meanwhile.


def _part(scratch: Path, *words: str) -> Row:
    """What a process of its own has found, with the most memory that it and its children held at once."""
    command = [sys.executable, __file__, "--part", *words]
    with tempfile.TemporaryDirectory(dir=scratch) as own:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": own})
        most, spent, ended = [0.0], dict[psutil.Process, float](), threading.Event()

        def look() -> None:
            while not ended.wait(LOOK):
                seen = _tree(process.pid)
                most[0] = max(most[0], sum(map(_megabytes, seen)))
                for each in seen:
                    with suppress(psutil.NoSuchProcess):
                        spent[each] = sum(each.cpu_times()[:2])

        looker = threading.Thread(target=look, name="memory")
        looker.start()
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        finally:
            for each in _tree(process.pid):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            ended.set()
            looker.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}")
    found: Row = json.loads(said.splitlines()[-1])
    return {"CPU": sum(spent.values())} | found | {"MB": most[0]}


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    return []


def _megabytes(process: psutil.Process) -> float:
    with suppress(OSError):  # it has ended
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1e3
    return 0.0


def _cpu_seconds() -> float:
    """Of this process and those below it, also of those that have ended."""
    spent = 0.0
    for process in _tree(os.getpid()):
        with suppress(psutil.NoSuchProcess):
            spent += sum(process.cpu_times()[:4])
    return spent


@contextmanager
def _taken(into: dict[str, list[float]], name: str) -> Iterator[None]:
    begin, before = time.perf_counter(), _cpu_seconds()
    yield
    into.setdefault(name, []).append(time.perf_counter() - begin)
    into.setdefault(f"{name}_cpu", []).append(_cpu_seconds() - before)


def part_start() -> Row:
    took: dict[str, list[float]] = {}
    with _taken(took, "wall"):
        opened = session.open_session("benchmark")
        spark = opened.__enter__()
    assert spark.range(3).count() == 3
    opened.__exit__(None, None, None)
    return {"wall": took["wall"][0], "CPU": took["wall_cpu"][0]}


def part_study(registrations: str, templates: str, master: str, rounds: str = str(ROUNDS)) -> Row:
    """A study in a new session, which is cold, and again in the same one. Without start and check but for `whole`."""
    took: dict[str, list[float]] = {}
    checks: list[float] = []
    checksum = ""

    def study(name: str, out: Path) -> float:
        nonlocal checksum
        before = _cpu_seconds()
        made = match_study(
            registrations=int(registrations), templates=int(templates), seed=SEED, out=out, engine="spark"
        )
        spent, seconds = _cpu_seconds() - before, dict(made.timings)
        checks.append(seconds["check"])
        took.setdefault(name, []).append(seconds["templates"] + seconds["match"] + seconds["count"])
        took.setdefault(f"{name}_cpu", []).append(spent - seconds["check"])  # one thread, which is busy throughout
        checksum = made.checksum
        return sum(seconds.values())

    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        with session.open_session("benchmark", master=master):
            started = time.perf_counter() - begin
            first = study("cold", Path(folder) / "out")
            for _ in range(int(rounds)):
                study("warm", Path(folder) / "out")
    found: Row = {name: statistics.median(values) for name, values in took.items()}
    return found | {"check": statistics.median(checks), "checksum": checksum, "whole": started + first}


def part_one(registrations: str, templates: str) -> Row:
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, _taken(took, "wall"):
        made = match_study(
            registrations=int(registrations), templates=int(templates), seed=SEED, out=Path(folder), engine="local"
        )
    return {"wall": took["wall"][0], "CPU": took["wall_cpu"][0], "checksum": made.checksum}


def part_command(*words: str) -> Row:
    """A command of its own, as it is typed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "jbi_pubsub", *words, "--out", str(out), "--json"]
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {"wall": time.perf_counter() - begin, "result": (out / "result.json").read_text()}


def part_sql(registrations: str, templates: str, kind: str = "normal") -> Row:
    """The same SQL on the same files, engines (and with `hot` populations) taking turns; the first round warms up."""
    took: dict[str, list[float]] = {}
    sums: Row = {}
    population = Population(registrations=int(registrations), templates=int(templates), seed=SEED)
    kinds = {"spark": "templates"} | ({"hot": "hot"} if kind == "hot" else {})
    with tempfile.TemporaryDirectory() as folder, session.open_session("benchmark") as spark:
        files = Path(folder)
        _write_population(spark, population, files)
        for warm in range(1 + ROUNDS):
            for name, table in kinds.items():
                with _taken(took if warm else {}, name):
                    _by_spark(spark, files, table)
                other = f"{name}_duckdb" if name != "spark" else "duckdb"
                if find_spec("duckdb") is not None:
                    with _taken(took if warm else {}, other):
                        _by_duckdb(files, table)
                    sums[f"{other}_sums"] = _sums(files / "by-duckdb")
                sums[f"{name}_sums"] = _sums(files / "by-spark")
    return sums | {name: statistics.median(values) for name, values in took.items()}


def _write_population(spark: Any, population: Population, files: Path) -> None:
    """Registrations, templates, and `hot`: templates of which each tenth asks for everything."""
    spark.sql(population.registration_sql(partitions=_cores())).write.parquet(str(files / "registrations"))
    spark.sql(population.template_sql(partitions=_cores())).write.parquet(str(files / "templates"))
    open_fields = ", ".join(f"IF(tid % 10 = 0, NULL, {field}) AS {field}" for field in _FIELDS)
    choice = ", ".join(f"IF(tid % 10 = 0, 0, {name}) AS {name}" for name in ("shape", "cls", "bits"))
    assert SHAPES[0].bits == 0
    spark.read.parquet(str(files / "templates")).createOrReplaceTempView("given")
    spark.sql(f"SELECT tid, {choice}, {open_fields} FROM given").write.parquet(str(files / "hot"))


def _by_spark(spark: Any, files: Path, templates: str) -> None:
    """As spark/studies/match.py does it."""

    def stage(name: str, query: str) -> None:
        path = str(files / "by-spark" / name)
        spark.sql(query).write.mode("overwrite").option("compression", "zstd").parquet(path)
        spark.read.parquet(path).createOrReplaceTempView(name)

    spark.read.parquet(str(files / "registrations")).createOrReplaceTempView("r0")
    spark.read.parquet(str(files / templates)).createOrReplaceTempView("t0")
    stage("groups", level1.groups_sql("t0"))
    stage("hits", level1.hits_sql("r0", "groups", broadcast=True))
    stage("counts", level1.counts_sql("hits"))


def _by_duckdb(files: Path, templates: str) -> None:
    """The SQL of spark/level1.py in DuckDB's words: its own hash of 64 bits, the shapes as a table."""
    import duckdb

    fields = ", ".join(_FIELDS)
    hashes = ", ".join(f"hash({field}, {n}) AS h{n}" for n, field in enumerate(_FIELDS))
    set_bits = " | ".join(f"if({field} IS NULL, 0, {1 << n})" for n, field in enumerate(_FIELDS))
    chosen, fixed = "m.hash", "hash(shape)"
    for n, field in enumerate(_FIELDS):
        chosen = f"xor({chosen}, if((m.bits & {1 << n}) = 0, 0::UBIGINT, h{n}))"
        fixed = f"xor({fixed}, if({field} IS NULL, 0::UBIGINT, hash({field}, {n})))"
    equal = " AND ".join(f"((p.bits & {1 << n}) = 0 OR p.{field} = t.{field})" for n, field in enumerate(_FIELDS))
    names = ", ".join(f"'{known.cls.name}'" for known in CLASSES)
    queries = {
        "groups": f"SELECT min(tid) AS gid, [{names}][cls + 1] AS entry_class, shape, {fields}, "
        f"list_sort(list(tid)) AS tids FROM t0 GROUP BY cls, shape, {fields}",
        "hits": f"WITH r AS (SELECT rid, cls, {fields}, {hashes}, {set_bits} AS set_bits FROM r0), "
        f"p AS (SELECT rid, {fields}, m.shape, m.bits, {chosen} AS key FROM r JOIN shapes m ON m.cls = r.cls "
        f"WHERE (set_bits & m.bits) = m.bits), t AS (SELECT gid, shape, {fields}, {fixed} AS key FROM groups) "
        f"SELECT p.rid, t.gid FROM p JOIN t ON p.key = t.key AND p.shape = t.shape WHERE {equal}",
        "counts": "SELECT gid, count(*) AS registrations, bit_xor(hash(rid, gid)) AS checksum FROM hits GROUP BY gid",
    }
    rows = [(c, n, s.bits) for c in range(len(CLASSES)) for n, s in enumerate(SHAPES) if lineage_bits(c) >> s.cls & 1]
    with duckdb.connect() as database:
        database.sql(f"SET threads = {_cores()}")
        database.sql(f"CREATE VIEW r0 AS SELECT * FROM '{files}/registrations/*.parquet'")
        database.sql(f"CREATE VIEW t0 AS SELECT * FROM '{files}/{templates}/*.parquet'")
        values = ", ".join(f"({c}, {n}::INTEGER, {bits})" for c, n, bits in rows)
        database.sql(f"CREATE TABLE shapes AS SELECT *, hash(shape) AS hash FROM (VALUES {values}) v(cls, shape, bits)")
        for name, query in queries.items():
            path = files / "by-duckdb" / name / "all.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            database.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
            database.sql(f"CREATE VIEW {name} AS SELECT * FROM '{path}'")


def _sums(tables: Path) -> list[int]:
    """Of what was written: numbers of groups, members, hits, pairs; sums of what tells them apart."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    groups = pq.read_table(tables / "groups", columns=["gid", "tids"])
    hits = pq.read_table(tables / "hits")
    counts = pq.read_table(tables / "counts", columns=["gid", "registrations"])
    members = pc.list_value_length(groups["tids"])
    pairs = counts.join(groups.select(["gid"]).append_column("members", members.cast("int64")), "gid")
    mixed = pc.bit_wise_xor(pc.multiply(hits["rid"], 1_000_003), pc.multiply(hits["gid"], 97))
    found = [
        pc.sum(groups["gid"]), pc.sum(members), pc.sum(hits["rid"]), pc.sum(hits["gid"]), pc.sum(mixed),
        pc.sum(pc.multiply(pairs["registrations"], pairs["members"])),
    ]  # fmt: skip
    return [groups.num_rows, hits.num_rows, counts.num_rows, *(each.as_py() for each in found)]


PARTS: dict[str, Callable[..., Row]] = {
    "start": part_start,
    "study": part_study,
    "one": part_one,
    "command": part_command,
    "sql": part_sql,
}


def _cores() -> int:
    return os.cpu_count() or 1


def _median(parts: list[Row], name: str) -> float:
    return statistics.median(part[name] for part in parts)


def _cost(parts: list[Row]) -> dict[str, float]:
    return {"CPU": _median(parts, "CPU"), "MB": max(part["MB"] for part in parts)}


COLUMNS = ("what", "size", "processes", "value", "unit", "goal", "met", "wall", "CPU", "MB", "DuckDB", "one_process")


def _table(rows: list[Row]) -> str:
    lines = [["" if row.get(name) is None else _said(row[name]) for name in COLUMNS] for row in rows]
    lines.insert(0, list(COLUMNS))
    widths = [max(len(line[n]) for line in lines) for n in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _line(row: Row) -> str:
    return ", ".join(f"{name} {_said(row[name])}" for name in COLUMNS if row.get(name) is not None)


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
