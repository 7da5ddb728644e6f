"""Schema to entries: what opening a type, reading and checking a document, and deriving a template cost.

Two sizes each (invariant leaves, or predicates), as ratios to a baseline of the same run: parsing the same document
(reading, checking, validating), compiling the same predicate with lxml (deriving), or the smaller size (opening).

    python benchmarks/codegen.py [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lxml import etree

from jbi_pubsub.codegen.bundle import read_bundle
from jbi_pubsub.codegen.opening import Opener
from jbi_pubsub.codegen.render import render
from jbi_pubsub.codegen.repository import TypeRepository, open_type
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.xml import parse_metadata

FIGURES = Path(__file__).parent.parent / "tests" / "fixtures" / "intel_imagery"
XS = 'xmlns:xs="http://www.w3.org/2001/XMLSchema" xmlns:jbi="urn:jbi:codegen:1"'


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true")
    rows = [*figures(), *opening(), *deriving()]
    if options.parse_args().json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'what':44} {'size':>8} {'time':>12} {'ratio':>8}  baseline")
    for row in rows:
        print(f"{row['what']:44} {row['size']:>8} {row['us']:>9.1f} us {row['ratio']:>8.2f}  {row['baseline']}")


def figures() -> list[dict[str, object]]:
    """The paths that every publication takes: figure 1, and a document of 100 invariant leaves."""
    rows: list[dict[str, object]] = []
    figure = (FIGURES / "instances/fig1.xml").read_bytes()
    for size, kind, data in (
        (5, open_type(read_bundle(FIGURES / "Intel_Imagery.xsd")), figure),
        (100, open_type(wide(100, 0)), wide_document(100)),
    ):
        root = parse_metadata(data)
        registered = kind.entries(root)
        base = best(lambda data=data: parse_metadata(data), 2_000)
        works: dict[str, Callable[[], object]] = {
            "parse the document": lambda data=data: parse_metadata(data),
            "check_invariants": lambda k=kind, r=root, e=registered: k.check_invariants(r, e),
            "entries": lambda k=kind, r=root: k.entries(r),
            "validate": lambda k=kind, r=root: k.validate(r),
        }
        rows += [row(what, size, best(work, 2_000), base, "parse") for what, work in works.items()]
    return rows


def opening() -> list[dict[str, object]]:
    """Opening a type grows with what is marked; what is variant costs only its share of reading the schema."""
    rows: list[dict[str, object]] = []
    base = 0.0
    for what, marked, unmarked in (("open", 10, 0), ("open", 300, 0), ("open, the rest variant", 10, 290)):
        bundle = wide(marked, unmarked)
        took = best(lambda b=bundle: open_type(b), 3)
        base = base or took
        rows.append(row(what, marked + unmarked, took, base, "open 10"))
    with tempfile.TemporaryDirectory() as folder:
        bundle = wide(300, 0)
        cached = TypeRepository(cache_dir=Path(folder), opener=Opener()).open(bundle)
        kind = open_type(bundle)
        assert kind.model == cached.model
        rows.append(
            row(
                "open, cached",
                300,
                best(lambda: TypeRepository(cache_dir=Path(folder), opener=Opener()).open(bundle), 5),
                base,
                "open 10",
            )
        )
    rows.append(row("render", 300, best(lambda: render(kind.model), 5), base, "open 10"))
    return rows


def deriving() -> list[dict[str, object]]:
    """One derivation per subscription: the paper's figure 3 as a predicate, and one of 30 conditions."""
    rows: list[dict[str, object]] = []
    kind = open_type(read_bundle(FIGURES / "Intel_Imagery.xsd"))
    for size in (3, 30):
        leaves = ("Type", "publisher", "language")
        predicate = " and ".join(f"/metadata/RequiredMetadata/{leaves[n % 3]}='x'" for n in range(size))
        base = best(lambda p=predicate: etree.XPath(p), 300)
        rows.append(row("derive", size, best(lambda p=predicate, k=kind: k.derive(p), 300), base, "lxml compile"))
    return rows


def wide(marked: int, unmarked: int) -> SchemaBundle:
    """A schema of groups of ten leaves: `marked` invariant ones, `unmarked` in a variant part."""
    leaves = "".join(f'<xs:element name="l{n}" type="xs:token"/>' for n in range(10))
    body = f"<xs:complexType><xs:sequence>{leaves}</xs:sequence></xs:complexType>"
    kept = "".join(f'<xs:element name="g{n}">{body}</xs:element>' for n in range(marked // 10))
    loose = "".join(
        f'<xs:element name="v{n}" minOccurs="0" jbi:variance="variant">{body}</xs:element>'
        for n in range(unmarked // 10)
    )
    root = f"<xs:complexType><xs:sequence>{kept}{loose}</xs:sequence></xs:complexType>"
    return read_bundle(f'<xs:schema {XS}><xs:element name="r">{root}</xs:element></xs:schema>'.encode(), root="r")


def wide_document(leaves: int) -> bytes:
    """A document with `leaves` invariant leaves."""
    group = "".join(f"<l{n}>value {n}</l{n}>" for n in range(10))
    return f"<r>{''.join(f'<g{n}>{group}</g{n}>' for n in range(leaves // 10))}</r>".encode()


def best(work: Callable[[], object], rounds: int) -> float:
    """Microseconds: the median of five runs of `rounds`."""
    work()
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        taken.append((time.perf_counter() - start) / rounds * 1e6)
    return statistics.median(taken)


def row(what: str, size: int, took: float, base: float, baseline: str) -> dict[str, object]:
    """One line of the table."""
    return {"what": what, "size": size, "us": took, "ratio": took / base, "baseline": baseline}


if __name__ == "__main__":
    main()
