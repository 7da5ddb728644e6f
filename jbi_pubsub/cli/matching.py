"""Measurements of the index: what a document and a subscription cost, against parsing and against lxml alone.

Each row compares within its own run, so ratios mean the same on every machine. `parse_us` is parse_metadata, the
entrance every publication takes; `lxml_parse_us` is the bare parser.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any, Final

from lxml import etree

from jbi_pubsub.core.xml import Element, parse_metadata, parser
from jbi_pubsub.core.xpath.geography import bbox
from jbi_pubsub.core.xpath.index.predicate_index import PredicateIndex
from jbi_pubsub.core.xpath.predicate import compile_predicate, compiled_xpath

SIZES: Final = (1_000, 100_000)
"""Two sizes show the slope; others, up to a million, take some minutes."""

DOCUMENTS: Final = 1_000
ROUNDS: Final = 5
"""Each figure is the least of so many rounds: the others were disturbed."""

FEW: Final = 50
"""Predicates left to lxml from which on a round takes so long that few documents are enough."""

NAIVE: Final = 500
"""Predicates of which the naive cost is measured; it is proportional to their number."""

MEMORY: Final = 100_000
"""Largest size whose memory is traced (tracing takes ten times as long as the building itself)."""

_AREAS: Final = tuple(f"Area{i}" for i in range(100))
_KINDS: Final = ("IR", "SAR", "EO", "MSI", "HSI", "UV", "LIDAR", "VIS", "FLIR", "PAN")
_WINGS: Final = tuple(f"{400 + i}th" for i in range(10))
_AT: Final = "/metadata/ImageDescriptor"
_LAT: Final = f"{_AT}/LocationCoord/lat"
_LONG: Final = f"{_AT}/LocationCoord/long"
_DOCUMENT: Final = """<?xml version="1.0" encoding="UTF-8"?>
<metadata>
  <mil.af.rl.jbi.Intel_Imagery/>
  <RequiredMetadata>
    <Type>Imagery</Type>
    <JBIIIdentifier>JBI{number:06d}</JBIIIdentifier>
    <publisher>{wing}</publisher>
    <keywords>Intel</keywords>
    <language>EN</language>
  </RequiredMetadata>
  <ImageDescriptor>
    <ImageType>{kind}</ImageType>
    <Area>{area}</Area>{more}
    <LocationCoord>
      <lat>{lat}</lat>
      <latord>N</latord>
      <long>{long}</long>
      <longord>E</longord>
    </LocationCoord>
  </ImageDescriptor>
</metadata>
"""

_MORE: Final = """
    <ImageId>IMG-{id:03d}</ImageId>
    <Acquired>2003-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:00Z</Acquired>"""

Workload = Callable[[random.Random, int], list[str]]
Report = dict[str, Any]


def run(sizes: Sequence[int], progress: Callable[[str], None], workloads: Sequence[str] = ()) -> list[Report]:
    """One row per workload and size, as plain data; see `row_of`. Without names: all but single kinds of operands."""
    rows = []
    for name in workloads or [name for name in WORKLOADS if not name.startswith("kind:")]:
        for size in sizes:
            if name == "fallback" and size > sizes[0]:
                continue  # lxml evaluates each: the cost is proportional, one size says all
            progress(f"{name}, {size:,} predicates")
            rows.append(row_of(name, WORKLOADS[name], size))
    return rows


def row_of(name: str, workload: Workload, size: int) -> Report:
    """Measure one workload at one size.

    `match_us`: reading and matching one parsed document; `ratio`: parse and match, relative to the parse alone;
    `naive_us`: evaluating every predicate with compiled lxml XPath; `subscribe_us`: compile and add, shape known;
    `new_shape_us`: the same for an expression of a shape not seen before.
    """
    chance = random.Random(size)  # noqa: S311  # reproducible figures, no secret
    texts = workload(chance, size)
    sources = [_document(chance, i, has_more=name.startswith("kind")) for i in range(DOCUMENTS)]
    roots = [parse_metadata(s) for s in sources]
    for text in workload(random.Random(1), 64):  # noqa: S311  # as above: the shapes become known
        compile_predicate(text)
    index: PredicateIndex[int] = PredicateIndex()
    subscribe = _timed(lambda: _add_all(index, texts)) / size
    stats = index.stats()
    rounds, some = (1, roots[:20]) if stats["fallback"] > FEW else (ROUNDS, roots)
    matches = sum(len(index.match(r)) for r in some) / len(some)
    match = min(_timed(lambda: [index.match(r) for r in some]) for _ in range(rounds)) / len(some)
    parse = min(_timed(lambda: [parse_metadata(s) for s in sources]) for _ in range(ROUNDS)) / len(sources)
    reader = parser()
    bare = min(_timed(lambda: [etree.fromstring(s, reader) for s in sources]) for _ in range(ROUNDS)) / len(sources)
    naive = _naive(texts, roots[:20]) * size
    removed = min(size, 2_000)
    unsubscribe = _timed(lambda: _remove_all(index, removed)) / removed
    return {
        "workload": name,
        "predicates": size,
        "matches": round(matches, 2),
        "lxml_parse_us": round(bare, 2),
        "parse_us": round(parse, 2),
        "match_us": round(match, 2),
        "ratio": round((parse + match) / parse, 2),
        "ratio_to_lxml_parse": round((bare + match) / bare, 2),
        "naive_us": round(naive, 1),
        "speedup": round(naive / match, 1),
        "subscribe_us": round(subscribe, 1),
        "new_shape_us": round(_new_shapes(), 1),
        "unsubscribe_us": round(unsubscribe, 2),
        "bytes_per_predicate": _memory(texts) if size <= MEMORY else stats["bytes"] // size,
        "fallback": stats["fallback"],
    }


def small_rectangles(chance: random.Random, size: int) -> list[str]:
    """Rectangles in the north-eastern quarter, about one of which holds any point."""
    return _rectangles(chance, size, 1)


def rectangles(chance: random.Random, size: int) -> list[str]:
    """Rectangles nine of which hold any point."""
    return _rectangles(chance, size, 9)


def _rectangles(chance: random.Random, size: int, matches: int) -> list[str]:
    side = (matches / size) ** 0.5
    found = []
    for _ in range(size):
        shape = chance.uniform(0.5, 2) ** 0.5
        height, width = min(90 * side * shape, 80), min(180 * side / shape, 160)
        south, west = chance.uniform(0, 90 - height), chance.uniform(0, 180 - width)
        found.append(bbox(round(south, 5), round(west, 5), round(south + height, 5), round(west + width, 5)))
    return found


def mixed(chance: random.Random, size: int) -> list[str]:
    """Equality, range, or, not: each true for about one document in a thousand."""
    return [chance.choice(_MIXTURE)(chance) for _ in range(size)]


def _area_and_band(chance: random.Random) -> str:
    south = round(chance.uniform(0, 81), 4)
    return f"{_AT}/Area='{chance.choice(_AREAS)}' and {_LAT}>{south} and {_LAT}<{south + 9:.4f}"


def _kind_and_bound(chance: random.Random) -> str:
    kind, wing = chance.choice(_KINDS), chance.choice(_WINGS)
    north = round(chance.uniform(72, 90), 4)
    publisher = "/metadata/RequiredMetadata/publisher"
    return f"{_AT}/ImageType='{kind}' and {publisher}='{wing}' and {_LAT}>{north}"


def _either_area(chance: random.Random) -> str:
    one, other = chance.sample(_AREAS, 2)
    west = round(chance.uniform(0, 171), 4)
    return f"({_AT}/Area='{one}' or {_AT}/Area='{other}') and {_LONG}>={west} and {_LONG}<{west + 9:.4f}"


def _area_without(chance: random.Random) -> str:
    area, kinds = chance.choice(_AREAS), chance.sample(_KINDS, 2)
    south = round(chance.uniform(0, 77), 4)
    return (
        f"{_AT}/Area='{area}' and not({_AT}/ImageType='{kinds[0]}') and {_AT}/ImageType!='{kinds[1]}'"
        f" and {_LAT}>={south} and {_LAT}<={south + 11:.4f}"
    )


_MIXTURE: Final = (_area_and_band, _kind_and_bound, _either_area, _area_without)


def arithmetic(chance: random.Random, size: int) -> list[str]:
    """Sums of two leaves, and leaves moved and scaled: each true for about one document in a hundred."""
    found = []
    for number in range(size):
        middle, least = round(chance.uniform(1, 89), 4), round(chance.uniform(250, 260), 4)
        found.append(
            f"{_LAT} + {_LONG} > {least}" if number % 2 else f"{_LAT} - {middle} < 0.5 and {middle} - {_LAT} < 0.5"
        )
    return found


def relative(chance: random.Random, size: int) -> list[str]:
    """Conditions on elements wherever they are, and on their neighbours: each true for about two documents in
    ten thousand."""
    found = []
    for _ in range(size):
        area, north = chance.choice(_AREAS), round(chance.uniform(0, 2), 4)
        found.append(f"//Area[starts-with(., '{area}') and ../LocationCoord/lat < {north}]")
    return found


def fallback(chance: random.Random, size: int) -> list[str]:
    """Expressions that lxml has to evaluate one by one: each with another constant within its operand."""
    return [f"sum(//lat[. > {round(chance.uniform(0, 90), 4)}]) > {chance.randrange(80, 90)}" for _ in range(size)]


def _north(chance: random.Random) -> str:
    return f"{_LAT} > {chance.uniform(87, 90):.4f}"


KINDS: Final[dict[str, Callable[[random.Random], str]]] = {
    "substring-after": lambda chance: f"substring-after({_AT}/ImageId, '-') = '{chance.randrange(1000):03d}'",
    "date parts": lambda chance: (
        f"substring({_AT}/Acquired, 6, 2) = '{chance.randrange(1, 13):02d}' and "
        f"translate(substring({_AT}/Acquired, 12, 4), ':', '') = '{chance.randrange(24):02d}{chance.randrange(6)}'"
    ),
    "product": lambda chance: (
        f"{_LAT} * {_LONG} > {(least := chance.randrange(8_000))} and {_LAT} * {_LONG} < {least + 8}"
    ),
    "count": lambda chance: f"count({_AT}/*[string-length(.) > 5]) = {chance.randrange(2, 7)} and {_north(chance)}",
    "string-length": lambda chance: (
        f"string-length({_AT}/Area) = {chance.choice((5, 6))} and string-length({_LAT}) = 8 and {_north(chance)}"
    ),
    "name": lambda chance: f"name({_AT}/*[1]) = 'ImageType' and {_north(chance)}",
    "concat": lambda chance: (
        f"concat({_AT}/ImageType, '/', {_AT}/Area) = '{chance.choice(_KINDS)}/{chance.choice(_AREAS)}'"
    ),
    "translate": lambda chance: f"translate({_AT}/Area, 'AERS', 'aers') = '{chance.choice(_AREAS).lower()}'",
    "floor": lambda chance: (
        f"{_AT}/LocationCoord[floor(lat) = {chance.randrange(90)} and round(long) = {chance.randrange(180)}]"
    ),
    "two leaves": lambda chance: f"{_LAT} > {_LONG} and {_north(chance)}",
}
"""Operands that are no leaves, with a predicate for each, true for one document in a thousand, or in a hundred."""


def kinds(chance: random.Random, size: int) -> list[str]:
    """Ten kinds of operands that are no leaves, mixed."""
    makers = list(KINDS.values())
    return [makers[number % len(makers)](chance) for number in range(size)]


def _of_kind(kind: str) -> Workload:
    return lambda chance, size: [KINDS[kind](chance) for _ in range(size)]


WORKLOADS: Final[dict[str, Workload]] = {
    "small rectangles": small_rectangles,
    "rectangles": rectangles,
    "mixed": mixed,
    "arithmetic": arithmetic,
    "relative": relative,
    "fallback": fallback,
    "kinds": kinds,
    **{f"kind: {kind}": _of_kind(kind) for kind in KINDS},
}


def _document(chance: random.Random, number: int, *, has_more: bool) -> bytes:
    return _DOCUMENT.format(
        number=number,
        wing=chance.choice(_WINGS),
        kind=chance.choice(_KINDS),
        area=chance.choice(_AREAS),
        lat=round(chance.uniform(0, 90), 5),
        long=round(chance.uniform(0, 180), 5),
        more=_MORE.format(
            id=chance.randrange(1000),
            month=chance.randrange(1, 13),
            day=chance.randrange(1, 29),
            hour=chance.randrange(24),
            minute=chance.randrange(60),
        )
        if has_more
        else "",
    ).encode()


def _timed(work: Callable[[], object]) -> float:
    """Microseconds of the processor that `work` takes, whatever else the machine does; without the garbage collector,
    which would measure the benchmark's own data."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        work()
        return (time.process_time() - start) * 1e6
    finally:
        gc.enable()


def _add_all(index: PredicateIndex[int], texts: list[str]) -> None:
    for key, text in enumerate(texts):
        index.add(key, compile_predicate(text))


def _remove_all(index: PredicateIndex[int], count: int) -> None:
    for key in range(count):
        index.remove(key)


def _naive(texts: list[str], roots: list[Element]) -> float:
    """Microseconds one compiled evaluation takes, on average over expressions and documents."""
    compiled = [compiled_xpath(t, {}) for t in texts[:NAIVE]]
    once = min(_timed(lambda: [[c(r) for c in compiled] for r in roots]) for _ in range(3))
    return once / (len(compiled) * len(roots))


def _new_shapes() -> float:
    """Compile and add rectangles over paths never seen before."""
    texts = [
        bbox(33.2, 65.7, 35.0, 70.0, location=f"/m{time.monotonic_ns()}n{i}/LocationCoord")
        for i in range(40)  # within the number of families an index may have, so that each makes one
    ]
    index: PredicateIndex[int] = PredicateIndex()
    return _timed(lambda: _add_all(index, texts)) / len(texts)


def _memory(texts: list[str]) -> int:
    """Bytes per predicate that an index holds, without the keys and predicates that subscriptions have anyway."""
    predicates = list(enumerate(map(compile_predicate, texts)))
    gc.collect()
    tracemalloc.start()
    index: PredicateIndex[int] = PredicateIndex()
    for key, predicate in predicates:
        index.add(key, predicate)
    gc.collect()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held // len(index)
