"""Matching: cost per document, subscription and predicate, at two sizes, against the parse and against lxml alone.

    python benchmarks/match.py [--sizes 1000,100000] [--json FILE] [--compare COMPARISONS]

--compare checks so many answers of the index against lxml instead of measuring (2000000 take about 15 s).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jbi_pubsub.core.xpath import bench
from jbi_pubsub.core.xpath.differential import compare


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, bench.SIZES)))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compare", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.compare:
        return _compare(options.compare, options.seed)
    sizes = [int(s) for s in options.sizes.split(",")]
    rows = bench.run(sizes, lambda what: print(what, file=sys.stderr))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    _print(rows)
    return 0


def _print(rows: list[bench.Report]) -> None:
    for name in rows[0]:
        width = 24
        print(f"{name:<{width}}" + "".join(f"{row[name]!s:>18}" for row in rows))


def _compare(comparisons: int, seed: int) -> int:
    result = compare(comparisons, seed=seed)
    print(
        f"{result.compared:,} answers compared, {result.true:,} true; {result.expressions:,} expressions, "
        f"{result.indexed:,} indexed; {len(result.mismatches)} mismatches"
    )
    for mismatch in result.mismatches:
        print(f"  {mismatch.expression}\n  {mismatch.document.decode()}\n  lxml: {mismatch.lxml}")
    return 1 if result.mismatches else 0


if __name__ == "__main__":
    sys.exit(main())
