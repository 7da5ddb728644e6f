"""Queries against lxml: random documents in an archive, random predicates, every answer compared.

Documents and predicates are those of `differential.py`. A part of the documents is in the index, another is not yet;
the index may be lost while a query is on its way. What a query finds has to be what lxml finds, in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec
from differential import NAMESPACES, document, expression, is_taken
from lxml import etree

from jbi_pubsub.archive.query import Cursor, QueryIndex
from jbi_pubsub.archive.volume import OBJECT, Record
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Head, TypeName, pack
from jbi_pubsub.core.xpath.predicate import compile_predicate

TYPE = TypeName("track", "1.0")


class Index(QueryIndex):
    """One that can be filled."""

    def add(self, records: Sequence[Record], up_to: int) -> None: ...


class Mismatch(msgspec.Struct, frozen=True):
    """Answers that differ from lxml's: with these anybody can repeat it."""

    expression: str
    order: str
    indexed: int
    document: bytes
    lxml: bool


class Comparison(msgspec.Struct, frozen=True):
    """How many answers were compared, how many of the objects matched, how many were not read for it because the index
    knew, and every mismatch."""

    compared: int
    true: int
    exact: int
    candidates: int
    mismatches: tuple[Mismatch, ...]


class Shelf:
    """Records in a list: an `archive.query.Reading`."""

    def __init__(self, records: Sequence[Record] = ()) -> None:
        self.records = {record.position: record for record in records}

    def read(self, after: int, up_to: int, *, newest_first: bool = False) -> Iterator[Record]:
        there = sorted((p for p in self.records if after < p <= up_to), reverse=newest_first)
        return (self.records[position] for position in there)

    def get(self, positions: Sequence[int]) -> Iterator[Record]:
        return (self.records[position] for position in positions if position in self.records)

    def metadata(self, positions: Sequence[int]) -> Iterator[Record]:
        return self.get(positions)


def record(position: int, metadata: bytes, payload: bytes = b"", **fields: object) -> Record:
    """An object as the log gives it."""
    head = Head("", "registration-1", position, 1000.0 + position, TYPE.name, TYPE.version, metadata, len(payload))
    parcel = pack(msgspec.structs.replace(head, **fields), payload)
    return Record(position, 2000.0 + position, OBJECT, b"".join(map(bytes, parcel.parts)))


def first_of_several(chance: random.Random) -> str:
    """What is asked of the first node, or of one that has two properties, where several paths lead to some."""
    path = chance.choice(("//a", "//P/b", "/*/a", "//P//a", "/m/*/a", "/m/P/a", ".//b"))
    value = chance.choice(("5", "7", "x", "N", "5.5", "12.358816"))
    asked = chance.choice(
        (
            f"string({path})='{value}'", f"contains({path},'{value}')", f"number({path})!={value[:1] * 2}",
            f"starts-with({path},'{value[:1]}')", f"normalize-space({path})='{value}'", f"{path}='{value}'",
            f"//P[a='{value}' and b>5]", f"/*/P[b='{value}' and not(a=5)]", f"//P[P/a='{value}']/b",
        )
    )  # fmt: skip
    return f"not({asked})" if chance.random() < 0.3 else asked


def calculation(chance: random.Random) -> str:
    """A sum or another calculation, mostly close to what some documents come to."""
    path, other = chance.choices(("//a", "//b", "/m/a", "//P//a", "/*/b", "/m/P/b", "//@id", "//P", "//zz", "//*"), k=2)
    one, two = chance.choices(("a", "/m/b", "/m/P/a", "@id", "/*/c", "P/b"), k=2)
    term = chance.choice(
        (
            f"sum({path})", f"sum({path})", f"sum({path}) * 2", f"1 - sum({path})", f"count({path})",
            f"sum({path}) + sum({other})", f"sum({path}) div count({other})", f"sum({path}) mod 5", f"{one} + {two}",
            f"{one} * sum({path})", f"-{one} div {two}", f"number({one}) - {two} mod {one}",
            f"sum({path}) - sum({path})",
        )
    )  # fmt: skip
    value = 0.0
    for number in chance.choices((5.5, 5.0, 7.0, 12.358816, 33.2, 0.5, 4.999999999, -3.0), k=chance.randrange(6)):
        value += number
    asked = f"{term} {chance.choice(('<', '<=', '>', '>=', '=', '!='))} {value!r}"
    return chance.choice((asked, asked, f"not({asked})", f"{asked} and {first_of_several(chance)}"))


def answer(cursor: Cursor) -> list[int]:
    """All that a query finds."""
    found: list[int] = []
    while cursor.progress.state == "running":
        found += [each.position for each in cursor.step()]
    assert cursor.progress.state == "finished", cursor.progress
    return found


def compare(
    comparisons: int,
    make: Callable[[], Index],
    *,
    seed: int = 1,
    documents: int = 40,
    expressions: int = 120,
    stays: float = 0.9,
    progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Compare at least `comparisons` answers; the same `seed` makes the same comparisons. `stays`: how often an index
    is not lost during a query."""
    chance = random.Random(seed)
    compared = true = exact = candidates = 0
    found: list[Mismatch] = []
    while compared < comparisons and len(found) < 20:
        sources = [document(chance) for _ in range(documents)]
        of = chance.choices((expression, first_of_several, calculation), (5, 1, 2), k=expressions)
        texts = list(dict.fromkeys(filter(is_taken, (each(chance) for each in of))))
        positions = sorted(chance.sample(range(1, 3 * documents), documents))
        records = [record(position, source) for position, source in zip(positions, sources, strict=True)]
        index, shelf = make(), Shelf(records)
        up_to = 0
        for cut in sorted(chance.sample(range(documents), 3)):
            index.add([each for each in records[: cut + 1] if each.position > up_to], positions[cut])
            up_to = positions[cut]
        roots = [etree.fromstring(source) for source in sources]
        for text in texts:
            predicate = compile_predicate(text, namespaces=NAMESPACES)
            expected = [p for p, root in zip(positions, roots, strict=True) if predicate.matches(root)]
            order = chance.choice(("oldest", "newest"))
            query = HistoryQuery(scopes=(Scope(TYPE, text, tuple(NAMESPACES.items())),), order=order)
            cursor = Cursor(query, shelf, index, positions[-1])
            answered = [each.position for each in cursor.step(3)]
            if chance.random() > stays:
                cursor._index = None
            answered += answer(cursor)
            if answered != (expected if order == "oldest" else expected[::-1]):
                wrong = sorted({*answered}.symmetric_difference(expected)) or answered[:1] or expected[:1]
                found += [Mismatch(text, order, up_to, sources[positions.index(p)], p in expected) for p in wrong]
            compared, true = compared + documents, true + len(expected)
            candidates += cursor.progress.candidates
            exact += cursor.progress.candidates - cursor.progress.verified
        close = getattr(index, "close", None)
        if close is not None:
            close()
        if progress is not None:
            progress(compared)
    return Comparison(compared, true, exact, candidates, tuple(found[:20]))
