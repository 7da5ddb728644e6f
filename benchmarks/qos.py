"""What quality of service costs and keeps, part by part.

    python benchmarks/qos.py [--only policies] [--json]

policies: 1,000 are read and checked; a contract is resolved among them; 200,000 contracts follow another
file; CPU time.
bins: a task put and another one taken, with up to a million waiting (goal: 1 us, and as much with a million); CPU time.

Exit code 1 if a part misses its goal.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable

from jbi_pubsub.core.quality import Strategy, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.policy.context import facts_of
from jbi_pubsub.policy.file import parse
from jbi_pubsub.policy.policyfile import policies_of, review
from jbi_pubsub.qos.bins import Bins
from jbi_pubsub.qos.local import LocalManager

Part = tuple[dict[str, object], bool]
"""What was measured, and whether the goal is reached."""

POLICIES, CONTRACTS, CLASSES = 1_000, 200_000, 1_000
WAITING = (100, 10_000, 1_000_000)


def cpu(work: Callable[[], object]) -> float:
    """Seconds of CPU that it takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def text_of(count: int, importance: int) -> str:
    """A policy file: of users, groups, types and operations, every third with a condition."""
    chance = random.Random(7)
    lines = ["[group]", *(f'g{n} = ["u{n}", "x{n}-*"]' for n in range(50))]
    for number in range(count):
        lines += ["[[policy]]", f'name = "p{number}"']
        kind = number % 4
        if kind in (0, 1):
            lines.append(f'type = "t{number % 250}.*"')
        if kind in (1, 2):
            lines.append(f'user = "u{number % 400}"')
        if kind == 3:
            lines.append(f'group = "g{number % 50}"')
        if number % 3 == 0:
            lines.append(f"when = \"size > '{chance.randint(1, 900)} KB' and bandwidth < '400 kbps'\"")
        lines += [f"importance = {importance}", 'preference = "GeneralSurv"']
    return "\n".join(lines)


def policies() -> Part:
    """Of policy/ and qos/local.py."""
    text = text_of(POLICIES, 2)

    def check() -> None:
        document = parse(text, "policy.toml")
        review(document, policies_of(document))

    found = policies_of(parse(text, "policy.toml"))
    asked = [
        facts_of(Caller("10.1.2.3:1", user=f"u{n}", claimed=True), "subscribe", f"t{n % 250}.a", "1.0")
        for n in range(CLASSES)
    ]
    checking = cpu(check)
    resolving = cpu(lambda: [found.resolve(facts, now=0.0) for facts in asked]) / CLASSES
    local = LocalManager("alpha@rome")
    try:
        local.install(found)
        for n in range(CONTRACTS):
            who = Caller("10.1.2.3:1", user=f"u{n % CLASSES}", claimed=True)
            local.contract(who, "subscribe", f"t{n % 250}.a", "1.0", "queue", Wish())
        other = policies_of(parse(text_of(POLICIES, 4), "policy.toml")).of_version(2)
        applying = cpu(lambda: local.install(other))
        classes = local.status()["classes"]
    finally:
        local.stop()
    return {
        f"check {POLICIES:,} policies, s (goal 1)": round(checking, 3),
        "resolve a contract among them, ms (goal 2)": round(1000 * resolving, 3),
        f"apply at {CONTRACTS:,} contracts, s (goal 1)": round(applying, 3),
        "classes of these contracts": classes,
    }, checking < 1 and resolving < 0.002 and applying < 1


def bins() -> Part:
    """Of qos/bins.py: a task taken and another one put, with so many waiting in 5 levels; the best of ten."""
    chance = random.Random(7)
    tasks = [(chance.randint(1, 5), chance.random() / 100) for _ in range(5_000)]
    found: dict[str, float] = {}
    for name in ("strict", "weighted_fair"):
        for waiting in WAITING:
            line: Bins[int] = Bins(Strategy(name=name))
            for number in range(waiting):
                line.put(number, *tasks[number % len(tasks)])

            def turns(line: Bins[int] = line) -> None:
                for importance, cost in tasks:
                    task, _ = line.take()
                    line.put(task, importance, cost)

            found[f"{name}, {waiting:,} wait, us"] = round(min(cpu(turns) for _ in range(10)) / len(tasks) * 1e6, 3)
    each = list(found.values())
    flat = max(max(part) / min(part) for part in (each[:3], each[3:]))
    found["slowest by fastest of a strategy (goal 1.3)"] = round(flat, 2)
    return {**found}, max(each) <= 1 and flat <= 1.3


PARTS: dict[str, Callable[[], Part]] = {"policies": policies, "bins": bins}


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
