"""What a delegate pays for an object beside judging it: transport, codec, queues, and each further subscription.

    python benchmarks/transport.py [--json]

In one thread, without sockets, in us of CPU time an object, for batches of 1 and of 100 and objects of 0.1 and 1.7 KB:
taking a batch apart, reading the objects' heads, putting them into queues, taking them out, making the frame; then what
each further subscription costs, of the same process (the object is shared) and of another one. The ratio is against the
first row.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

from jbi_pubsub.core.info_object import Head, Parcel, pack
from jbi_pubsub.core.wire.hub import SenderHub
from jbi_pubsub.core.wire.stream import BATCH, FRAME, Window, split
from jbi_pubsub.pad.egress.budget import Budget
from jbi_pubsub.pad.egress.session import Deliveries, SubscriberSession
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.pad.server.data import _whole
from jbi_pubsub.protocol.publications import PUBLICATION, WHOLE
from jbi_pubsub.protocol.requests import SubscriptionRequest

OBJECTS = 20_000
HUB = SenderHub(name="never started")
FURTHER = 9
"""Subscriptions beside the first one."""


def cost(work: Callable[[], object]) -> float:
    """The least of five runs, in us an object."""
    best = float("inf")
    for _ in range(5):
        began = time.thread_time()
        work()
        best = min(best, time.thread_time() - began)
    return best / OBJECTS * 1e6


def session(numbers: range) -> tuple[SubscriberSession, list[Subscription]]:
    """A subscriber process with so many subscriptions."""
    made = SubscriberSession("session-1", name="bench", budget=Budget(1 << 40), hub=HUB)
    subscriptions = [
        compile_subscription(SubscriptionRequest(f"s{n}", bound=10_000_000), owner="session-1", number=n)
        for n in numbers
    ]
    for subscription in subscriptions:
        made.add(subscription)
    return made, subscriptions


def measure(size: int, at_once: int) -> dict[str, float]:
    """Each step for objects of `size` bytes of payload, `at_once` in a batch."""
    metadata = b"<m>" + b"x" * (20 if size < 500 else 640) + b"</m>"
    heads = [Head(f"{n:044x}", "registration-1", n, 1.0, "t", "1.0", metadata, size) for n in range(1, OBJECTS + 1)]
    payload = bytes(size)
    window = Window()
    frames = []
    for at in range(0, OBJECTS, at_once):
        items = [(PUBLICATION.pack(WHOLE, 1, 0), *pack(head, payload).parts) for head in heads[at : at + at_once]]
        frames.append(bytearray(b"".join(window.add(items).frame)))
        window.restart()
    bodies = [memoryview(frame)[FRAME.size + BATCH.size :] for frame in frames]

    def parted() -> list[list[memoryview]]:
        return [split(body, at_once) for body in bodies]

    def read(batches: list[list[memoryview]]) -> list[list[Parcel]]:
        return [[Parcel.received(_whole(item, {})[2] or b"") for item in items] for items in batches]

    batches = parted()
    parcels = read(batches)

    def passed_on(processes: int, each: int) -> None:
        sessions = [session(range(1, each + 1)) for _ in range(processes)]
        windows = [Window() for _ in sessions]
        for batch in parcels:
            deliveries = Deliveries()
            for parcel in batch:
                for target, subscriptions in sessions:
                    for subscription in subscriptions:
                        deliveries.add(target, subscription, parcel)
            deliveries.offer()
            for (target, _), sent in zip(sessions, windows, strict=True):
                sent.add(target._take(500, 1 << 30))
                target._acked(at_once, b"")
                sent.restart()

    one = cost(lambda: passed_on(1, 1))
    return {
        "taken apart": cost(parted),
        "heads read, small ones copied": cost(lambda: read(batches)),
        "queued, taken, framed, acknowledged": one,
        "all of it": cost(parted) + cost(lambda: read(batches)) + one,
        "each further subscription of the process": (cost(lambda: passed_on(1, 1 + FURTHER)) - one) / FURTHER,
        "each further process": (cost(lambda: passed_on(1 + FURTHER, 1)) - one) / FURTHER,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    columns: dict[str, dict[str, float]] = {}
    for name, size in (("0.1 KB", 100), ("1.7 KB", 1_000)):
        for at_once in (1, 100):
            columns[f"{name}, by {at_once}"] = measure(size, at_once)
    if options.json:
        print(json.dumps(columns))
        return
    print(f"{'us an object':44}" + "".join(f"{name:>16}" for name in columns) + f"{'ratio':>8}")
    rows: dict[str, Any] = {row: [column[row] for column in columns.values()] for row in next(iter(columns.values()))}
    base = next(iter(rows.values()))[-1]
    for row, values in rows.items():
        print(f"{row:44}" + "".join(f"{value:>16.2f}" for value in values) + f"{values[-1] / base:>8.1f}")


if __name__ == "__main__":
    main()
