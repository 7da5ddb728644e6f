"""Prints docs/locks.md, made from what the suite has seen:

JBI_LOCK_ORDER=/tmp/locks .venv/bin/python -m pytest -n 4; python docs/make_locks.py /tmp/locks > docs/locks.md
"""

from __future__ import annotations

import graphlib
import sys
from pathlib import Path
from typing import Final

HEAD: Final = """# Locks

A thread that holds one of these locks may take those further down, and none further up. Locks are left out that are short, call
nobody, and take no other lock. Three rules go with the list:

- Decide under the lock, act after it, and look again.
- Under a lock that others need, call no other process and no callback, and wait for no disk.
- What is done after a lock is keyed by what it was decided for (an id, a number), not by the state at that time.

The list is made from what the tests have seen (`docs/make_locks.py`), the outermost first; `depth` is how many locks may be
held by then. With `JBI_LOCK_ORDER=1` a test fails in which a circle comes up; `make check` runs so.

| depth | lock |
|---|---|
"""


def page(folder: Path) -> str:
    """The page; `folder` has files with a line "held taken" each."""
    before: dict[str, set[str]] = {}
    for file in folder.glob("*.txt"):
        for line in file.read_text().splitlines():
            held, taken = line.split()
            before.setdefault(taken, set()).add(held)
            before.setdefault(held, set())
    depth: dict[str, int] = {}
    for lock in graphlib.TopologicalSorter(before).static_order():
        depth[lock] = max((depth[each] + 1 for each in before[lock]), default=0)
    return HEAD + "".join(f"| {deep} | `{lock}` |\n" for lock, deep in sorted(depth.items(), key=lambda row: row[::-1]))


if __name__ == "__main__":
    print(page(Path(sys.argv[1])), end="")
