"""How much a test that goes by chance looks at: a quarter of its examples in each run, all of them in `make check`."""

from __future__ import annotations

import os

LEAST = 10


def examples(count: int) -> int:
    """So many of that many, by `EXAMPLES`, which is "all" in `make check`. The first ones are the same each time."""
    return count if os.environ.get("EXAMPLES") == "all" else min(count, max(LEAST, count // 4))
