"""What quality of service costs and keeps, part by part.

    python benchmarks/qos.py [--only queue] [--json]

queue: a put and a take of a level queue, with key and deadline, in us of CPU time, with 100 to 100,000 waiting.

Exit code 1 if a part misses its goal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

from jbi_pubsub.core.info_object import Cause, Head, pack
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.pad.outlet import Waiting
from jbi_pubsub.qos.queue import LevelQueue

Part = tuple[dict[str, object], bool]
"""What was measured, and whether the goal is reached."""

QUEUE_GOAL = 1.5
"""us, put and take."""
ROUNDS = 5


def queue() -> Part:
    """Put and take, of objects of ten registrations, each with a key (without the XPath, which costs by itself) and a
    deadline, beside so many that wait."""
    figures: dict[str, object] = {}
    best: dict[int, float] = {}
    for waiting in (100, 10_000, 100_000):  # the second is the bound of a queue, unless it is set higher
        best[waiting] = min(_put_and_take(waiting) for _ in range(ROUNDS))
        figures[f"{waiting:,} waiting"] = round(best[waiting], 2)
    plain = min(_put_and_take(100, Settings()) for _ in range(ROUNDS))
    return {
        **figures,
        "100 waiting, neither key nor deadline": round(plain, 2),
        "goal": QUEUE_GOAL,
    }, max(best[100], best[10_000]) <= QUEUE_GOAL


def _put_and_take(waiting: int, settings: Settings | None = None) -> float:
    """us of CPU time of a pair."""
    settings = settings or Settings(deadline=1e6, replace="type")
    count = 50_000
    rows = [
        Waiting(pack(Head(f"{n}", f"registration-{n % 10}", n, 1.0, f"t{n}", "1.0", b"<m/>", 0), b""), arrived=1.0)
        for n in range(waiting + count)
    ]
    lost: list[Cause] = []
    made = LevelQueue(Contract(settings), lambda _waiting, cause: lost.append(cause))
    for row in rows[:waiting]:
        made.put(row, 1.0)
    put, select, take = made.put, made.select, made.take
    began = time.thread_time()
    for row in rows[waiting:]:
        put(row, 1.0)
        select(2, 1.0)
        take()
    spent = time.thread_time() - began
    assert not lost
    return spent / count * 1e6


PARTS: dict[str, Callable[[], Part]] = {"queue": queue}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*PARTS], help="one part alone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = {name: part() for name, part in PARTS.items() if options.only in (None, name)}
    if options.json:
        print(json.dumps({name: figures | {"good": good} for name, (figures, good) in results.items()}))
    else:
        for name, (figures, good) in results.items():
            print(f"{name}: {'good' if good else 'MISSED'}")
            for row, value in figures.items():
                print(f"  {row:44}{value!s:>20}")
    sys.exit(not all(good for _, good in results.values()))


if __name__ == "__main__":
    main()
