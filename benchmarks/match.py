"""Matching: cost per document, subscription and predicate, at two sizes, against the parse and against lxml alone.

python benchmarks/match.py [--sizes 1000,100000] [--workloads kinds,mixed] [--json FILE]

"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jbi_pubsub.cli import matching as bench


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, bench.SIZES)))
    parser.add_argument("--workloads", default="", help="of " + ", ".join(bench.WORKLOADS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sizes = [int(s) for s in options.sizes.split(",")]
    workloads = list(filter(None, options.workloads.split(",")))
    rows = bench.run(sizes, lambda what: print(what, file=sys.stderr), workloads)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    _print(rows)
    return 0


def _print(rows: list[bench.Report]) -> None:
    for name in rows[0]:
        width = 24
        print(f"{name:<{width}}" + "".join(f"{row[name]!s:>18}" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
