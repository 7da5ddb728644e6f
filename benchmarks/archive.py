"""The archive: what an object costs to take in, what it takes on disk, and what queries cost, against lxml over all.

python benchmarks/archive.py [--sizes 100000,1000000] [--json FILE] [--elsewhere]
python benchmarks/archive.py --compare 2000000 [--seed 1]

Times are of the processor, in one thread; what is read by a query was written just before, and lies in the system's
cache. `lxml` is a naive scan: documents in memory, parsed and asked one after the other. `first` is the first of its
kind since the index was opened, `repeated` the least of five. With --elsewhere the same documents go into SQLite (WAL,
FULL, six B-trees) and plain DuckDB (columns of the same leaves), in transactions of 500 and 4,096, read by the same
parser, and the queries that these can say are asked there. `seal` is what it costs to pack a file of the log, by what
its payloads of 1 KB are like. With --compare, answers of random queries over random documents are compared with lxml's,
object by object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy
from lxml import etree

from jbi_pubsub.archive.index import DuckIndex
from jbi_pubsub.archive.items import METADATA_STORES, PAYLOAD_STORES
from jbi_pubsub.archive.leaves import TypePaths
from jbi_pubsub.archive.log import Log
from jbi_pubsub.archive.pack import Sealable, seal
from jbi_pubsub.archive.query import Cursor
from jbi_pubsub.archive.store import LOG, VolumeStore
from jbi_pubsub.archive.volume import OBJECT, Record
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Head, TypeName, pack
from jbi_pubsub.core.xml import parser
from jbi_pubsub.core.xpath.geography import bbox

TYPE: Final = TypeName("Imagery", "1.0")
ID: Final = b"sixteen bytes..."
BATCH: Final = 4096
SAMPLE: Final = 5_000
"""Documents that lxml is asked about; what it takes is in proportion."""
AT: Final = "/metadata/ImageDescriptor"
KINDS: Final = ("IR", "SAR", "EO", "MSI", "HSI", "UV", "LIDAR", "VIS", "FLIR", "PAN")
DOCUMENT: Final = """<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <mil.af.rl.jbi.Intel_Imagery/>
  <RequiredMetadata>
    <Type>Imagery</Type>
    <JBIIIdentifier>JBI{number:08d}</JBIIIdentifier>
    <publisher>{wing}th</publisher>
    <keywords>Intel</keywords>
    <language>EN</language>
    <priority>{priority}</priority>
    <time>2026-11-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}Z</time>
  </RequiredMetadata>
  <ImageDescriptor>
    <ImageType>{kind}</ImageType>
    <Area>Area{area}</Area>
    <LocationCoord>
      <lat>{lat:.5f}</lat>
      <latord>N</latord>
      <long>{long:.5f}</long>
      <longord>E</longord>
    </LocationCoord>
  </ImageDescriptor>
</metadata>
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000,1000000")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--elsewhere", action="store_true")
    parser.add_argument("--compare", type=int, default=0, metavar="ANSWERS")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where to put the archives; default: the system's for such files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.compare:
            return compare(options.compare, options.seed, Path(folder))
        reports = []
        for size in options.sizes.split(","):
            reports.append(measure(int(size), Path(folder) / size) | sealing(Path(folder) / size / "seal"))
            if options.elsewhere:
                reports[-1] |= elsewhere(int(size), Path(folder) / size)
    if options.json:
        options.json.write_text(json.dumps(reports, indent=1) + "\n")
    for report in reports:
        show(report)
    return 0


def compare(answers: int, seed: int, folder: Path) -> int:
    """Random queries over random documents, each answer against lxml's."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))
    from archived import compare as compared

    numbers = itertools.count()
    found = compared(
        answers, lambda: DuckIndex(folder / str(next(numbers)), ID, 0, columns=12, enough=20), seed=seed, documents=200
    )
    print(f"{found.compared:,} answers, {found.true:,} of them true; {len(found.mismatches)} differ from lxml's")
    for mismatch in found.mismatches:
        print(mismatch)
    return 1 if found.mismatches else 0


def documents(size: int) -> Iterator[bytes]:
    chance = random.Random(size)
    for number in range(size):
        yield DOCUMENT.format(
            number=number, wing=400 + chance.randrange(10), priority=chance.randrange(1, 6), day=1 + number % 28,
            hour=chance.randrange(24), minute=chance.randrange(60), second=chance.randrange(60),
            kind=chance.choice(KINDS), area=chance.randrange(100), lat=chance.uniform(0, 90),
            long=chance.uniform(0, 180),
        ).encode()  # fmt: skip


def queries(size: int) -> dict[str, str]:
    """The predicates by name."""
    small, wide = (10 / size) ** 0.5, 0.1
    lat, long = f"{AT}/LocationCoord/lat", f"{AT}/LocationCoord/long"
    identifier = f"/metadata/RequiredMetadata/JBIIIdentifier='JBI{size // 2:08d}'"
    return {
        "unique text": identifier,
        "rectangle, 10 hits": bbox(20, 40, 20 + 90 * small, 40 + 180 * small),
        "two equalities and a bound": f"{AT}/ImageType='SAR' and {AT}/Area='Area7' and {lat} > {90 - 9e4 * 1e3 / size}"
        if size > 1_000_000
        else f"{AT}/ImageType='SAR' and {AT}/Area='Area7' and {lat} > 45",
        "rectangle, a hundredth": bbox(20, 40, 20 + 90 * wide, 40 + 180 * wide),
        "contains(unique text)": f"contains(/metadata/RequiredMetadata/JBIIIdentifier, '{size // 2:08d}')",
        "nowhere": f"{AT}/Area='nowhere'",
        "//Area": f"//Area='Area7' and {long} > 175",
        "/.../Area": f"{AT}/Area='Area7' and {long} > 175",
        "a sum": f"sum(//lat) > {90 - 900 / size:.6f}",
        "a sum, a fifth": "sum(//lat) * 2 > 144",
        "nothing to go by": f"number(concat(//lat, '')) > {90 - 900 / size:.6f}",
        "nothing to go by, a fifth": "number(concat(//lat, '')) * 2 > 144",
    }


def measure(size: int, folder: Path) -> dict[str, Any]:
    """All figures of one size."""
    log = Log(folder / LOG, ID)
    index = DuckIndex(folder / "index", ID, 0)
    store = VolumeStore(folder, ID)
    payload, taken, parsed, walked, read = b"x" * 100, 0.0, 0.0, 0.0, 0.0
    bare, paths, worst = parser(), TypePaths(), 0.0
    metadata_bytes, position = 0, 0
    source = documents(size)
    while batch := list(itertools.islice(source, BATCH)):
        parcels = [
            pack(Head("", f"r-{n % 7}", position + n + 1, 1e9 + position + n, *_type(), d, len(payload)), payload)
            for n, d in enumerate(batch)
        ]
        metadata_bytes += sum(map(len, batch))
        log.append([(position + n + 1, each.parts) for n, each in enumerate(parcels)], 2e9)
        log.sync(position + len(batch))
        after, position = position, position + len(batch)
        store.refresh(position)
        records: list[Any] = []
        read += _timed(lambda a=after, b=position, r=records: r.extend(store.read(a, b)))
        once = _timed(lambda r=records, p=position: index.add(r, p))
        taken, worst = taken + once, max(worst, once)
        if position <= 20 * BATCH:
            parsed += _timed(lambda b=batch: [etree.fromstring(d, bare) for d in b])
            walked += _timed(lambda b=batch: [paths.read(d) for d in b])
            measured = position
    index.close()
    index = DuckIndex(folder / "index", ID, position)
    report: dict[str, Any] = {
        "objects": size,
        "parse_us": parsed / measured * 1e6,
        "read leaves_us": walked / measured * 1e6,
        "index_us": taken / size * 1e6,
        "index / parse": taken / size / (parsed / measured),
        "worst batch_ms": worst * 1e3,
        "read log_us": read / size * 1e6,
        "metadata_bytes": metadata_bytes / size,
        "index_bytes": index.size / size,
        "queries": {},
    }
    sample = list(itertools.islice(documents(size), SAMPLE))
    for name, text in queries(size).items():
        holds = etree.XPath(f"boolean({text})")
        naive = _timed(lambda h=holds: [h(etree.fromstring(d)) for d in sample]) / len(sample) * size
        if name.startswith("nothing to go by") and size > 1_000_000:
            report["queries"][name] = {"lxml_ms": naive * 1e3}
            continue
        query = HistoryQuery(scopes=(Scope(TYPE, text),))
        first, cursor, soon = _asked(query, store, index, position)
        again = min(_asked(query, store, index, position)[0] for _ in range(5 if first < 1 else 1))
        count = min(_asked(query, store, index, position, count_only=True)[0] for _ in range(3 if first < 1 else 1))
        report["queries"][name] = {
            "hits": cursor.progress.matched,
            "verified": cursor.progress.verified,
            "first result_ms": soon * 1e3,
            "first_ms": first * 1e3,
            "repeated_ms": again * 1e3,
            "count_ms": count * 1e3,
            "lxml_ms": naive * 1e3,
            "ratio": naive / again,
        }
    for name, key, text in (
        ("newest of 100 keys", f"{AT}/Area", ""),
        ("newest of a hundredth", "/metadata/RequiredMetadata/JBIIIdentifier", f"{AT}/Area='Area7'"),
    ):
        query = HistoryQuery(scopes=(Scope(TYPE, text),), latest_by=key)
        first, cursor, soon = _asked(query, store, index, position)
        again = min(_asked(query, store, index, position)[0] for _ in range(2))
        report["queries"][name] = {
            "hits": cursor.progress.matched,
            "verified": cursor.progress.verified,
            "first result_ms": soon * 1e3,
            "first_ms": first * 1e3,
            "repeated_ms": again * 1e3,
        }
    report["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    index.close()
    store.close()
    log.close()
    return report


def sealing(folder: Path) -> dict[str, float]:
    """What packing costs, and leaves, an object; 1 KB of payload."""
    chance = random.Random(1)
    words = [bytes(chance.choices(b"aeinrst", k=5)) for _ in range(100)]
    kinds: dict[str, Callable[[], bytes]] = {
        "random": lambda: chance.randbytes(1_024),
        "words": lambda: b" ".join(chance.choices(words, k=171)),
    }
    found: dict[str, float] = {}
    for name, payload in kinds.items():
        records = []
        for number, document in enumerate(documents(BATCH)):
            parcel = pack(Head("", "r-1", number + 1, 1e9 + number, *_type(), document, 1_024), payload())
            records.append(Record(number + 1, 2e9, OBJECT, b"".join(parcel.parts)))
        where = folder / name
        where.mkdir(parents=True)
        spent = _timed(lambda r=records, w=where: _seal(r, w))
        found[f"seal, {name}_us"] = spent / BATCH * 1e6
        for kind in ("meta", "data"):
            found[f"{kind}, {name}_bytes"] = sum(file.stat().st_size for file in where.glob(f"*.{kind}")) / BATCH
    return found


def _seal(records: list[Record], folder: Path) -> None:
    of = Sealable(ID, 1, len(records), 0, 1.0)
    seal(of, records, folder, metadata=METADATA_STORES["deflated"], payloads=PAYLOAD_STORES["file"])


LEAVES: Final = {
    "ident": "RequiredMetadata/JBIIIdentifier", "kind": "ImageDescriptor/ImageType", "area": "ImageDescriptor/Area",
    "lat": "ImageDescriptor/LocationCoord/lat", "long": "ImageDescriptor/LocationCoord/long",
    "priority": "RequiredMetadata/priority",
}  # fmt: skip
NUMBERS: Final = ("lat", "long", "priority")


def elsewhere(size: int, folder: Path) -> dict[str, float]:
    """The same documents, and queries, in other stores."""
    small = (10 / size) ** 0.5
    bound = 90 - 9e4 * 1e3 / size if size > 1_000_000 else 45
    wanted = {
        "unique text": f"ident = 'JBI{size // 2:08d}'",
        "rectangle, 10 hits": f"lat > 20 and lat < {20 + 90 * small} and long > 40 and long < {40 + 180 * small}",
        "two equalities and a bound": f"kind = 'SAR' and area = 'Area7' and lat > {bound}",
        "contains(unique text)": f"ident like '%{size // 2:08d}%'",
    }
    columns = ", ".join(f"{name} {'double' if name in NUMBERS else 'text'}" for name in LEAVES)
    lite = sqlite3.connect(folder / "sqlite.db", isolation_level=None)
    lite.execute("pragma journal_mode = wal")
    lite.execute("pragma synchronous = full")
    duck = duckdb.connect(str(folder / "duck.db"), config={"threads": 1, "memory_limit": "256MB"})
    found: dict[str, float] = {}
    for store, name, batch in ((lite, "SQLite", 500), (duck, "DuckDB", BATCH)):
        store.execute(f"create table o(pos bigint primary key, {columns}, document blob)")
        if store is lite:
            for column in LEAVES:
                store.execute(f"create index by_{column} on o({column})")
        source, position, spent = documents(size), 0, 0.0
        while some := list(itertools.islice(source, batch)):
            spent += _timed(lambda s=store, d=some, at=position: _put(s, d, at))
            position += len(some)
        found[f"{name} in_us"] = spent / size * 1e6
        for query, where in wanted.items():
            ask = f"select pos, document from o where {where} order by pos"  # our own words
            first, again = (_timed(lambda s=store, a=ask: s.execute(a).fetchall()) for _ in range(2))
            found[f"{name}: {query}, first_ms"], found[f"{name}: {query}, again_ms"] = first * 1e3, again * 1e3
        store.close()
    for name in ("sqlite", "duck"):
        found[f"{name}_bytes"] = (folder / f"{name}.db").stat().st_size / size
    return found


def _put(store: Any, some: list[bytes], position: int) -> None:
    rows = []
    for number, document in enumerate(some, position + 1):
        root = etree.fromstring(document)
        texts = {name: root.findtext(path) for name, path in LEAVES.items()}
        rows.append((number, *(float(t) if name in NUMBERS else t for name, t in texts.items()), document))
    store.execute("begin")
    if isinstance(store, sqlite3.Connection):
        store.executemany("insert into o values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
    else:
        names = ("pos", *LEAVES, "document")
        given = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
        kinds = dict.fromkeys(NUMBERS, "float64") | {"pos": "int64"}
        store.register("batch", {n: numpy.array(v, dtype=kinds.get(n, "object")) for n, v in given.items()})
        store.execute("insert into o by name select * from batch")
        store.unregister("batch")
    store.execute("commit")


def _type() -> tuple[str, str]:
    return TYPE.name, TYPE.version


def _asked(query: HistoryQuery, store: VolumeStore, index: DuckIndex, end: int, *, count_only: bool = False) -> Any:
    start = time.process_time()
    cursor = Cursor(query, store, index, end, count_only=count_only)
    soon = 0.0
    while cursor.progress.state == "running":
        found = cursor.step()
        if found and not soon:
            soon = time.process_time() - start
    assert cursor.progress.state == "finished", cursor.progress
    return time.process_time() - start, cursor, soon


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def show(report: dict[str, Any]) -> None:
    for name, value in report.items():
        if name != "queries":
            print(f"{name:<50}{value:>14,.1f}")
    columns = (
        "hits",
        "verified",
        "first result_ms",
        "first_ms",
        "repeated_ms",
        "count_ms",
        "lxml_ms",
        "ratio",
        "count ratio",
    )
    print(f"{'':<30}" + "".join(f"{name:>17}" for name in columns))
    for name, row in report["queries"].items():
        print(f"{name:<30}" + "".join(f"{row.get(column, 0):>17,.1f}" for column in columns))
    print()


if __name__ == "__main__":
    sys.exit(main())
