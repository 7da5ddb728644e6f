"""The adapters for asyncio beside the blocking ones: CPU time of the application's process.

    python benchmarks/aio.py [--rounds 5] [--count 10000] [--json]

Lookup service and delegate run as processes. In this one a subscriber and a publisher are opened, blocking or of
asyncio, in turns; the publisher is one through the delegate or a peer. Objects of figure 1 with 100 bytes are
published one by one, or a lot in one call, and iterated by `objects`, LOT at a time so that no queue is full. The CPU
time is that of this process, for both adapters. `ratio` is asyncio to blocking: the median of those of the rounds,
the lowest and the highest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from jbi_pubsub import Config, PublisherAdapter, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.aio import AsyncPublisherAdapter, AsyncPublisherAdapterLight, AsyncSubscriberAdapter
from jbi_pubsub.core.config import LookupSection

DATA: Final = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
SCHEMA: Final = DATA / "Intel_Imagery.xsd"
FIGURE: Final = (DATA / "fig1.xml").read_bytes()
PAYLOAD: Final = b"x" * 100
LOT: Final = 500
SECONDS: Final = 30.0
WAYS: Final = {
    "through a delegate": (False, False),
    "through a delegate, publish_many": (False, True),
    "peer publisher": (True, False),
    "peer, publish_many": (True, True),
}
"""Whether the publisher is a peer, and whether it publishes a lot in one call."""


@contextmanager
def servers() -> Iterator[Config]:
    """A lookup service and a delegate as processes; the settings by which they are found."""
    jbi = [sys.executable, "-m", "jbi_pubsub", "--no-multicast"]
    environment = {**os.environ, "JBI_CONFIG": os.devnull}
    started: list[subprocess.Popen[bytes]] = []

    def address(*arguments: str) -> str:
        started.append(subprocess.Popen([*jbi, *arguments, "--json"], stdout=subprocess.PIPE, env=environment))
        assert started[-1].stdout is not None
        return str(json.loads(started[-1].stdout.readline())["address"])

    try:
        locator = address("lookup", "--port", "0")
        address("--locator", locator, "pad", "alpha", "rome")
        yield Config(lookup=LookupSection(locators=(locator,), multicast=False))
    finally:
        for server in reversed(started):
            server.terminate()
            server.wait(20)


def blocking(config: Config, is_peer: bool, is_many: bool, count: int) -> float:
    """CPU time of the blocking adapters, in us an object."""
    publisher: Any = PublisherAdapter(config) if is_peer else PublisherAdapterLight(config)
    with SubscriberAdapter(config) as subscriber, publisher:
        wanted = subscriber.register_subscriber(type_name="Intel_Imagery")
        at = [] if is_peer else [publisher.connect_to_delegate("alpha", "rome")]
        registration = publisher.register_publisher(*at, SCHEMA, FIGURE)
        assert publisher.wait_for_subscribers(registration, 1, SECONDS) == 1
        objects, before = subscriber.objects(wanted, SECONDS), 0.0
        for lot in range(1 + count // LOT):
            if lot == 1:
                before = time.process_time()  # the first one warms up
            if is_many:
                publisher.publish_many(registration, [(FIGURE, PAYLOAD)] * LOT)
            else:
                for _ in range(LOT):
                    publisher.publish(registration, FIGURE, PAYLOAD)
            for _ in range(LOT):
                next(objects)
        return (time.process_time() - before) / (count // LOT * LOT) * 1e6


async def awaited(config: Config, is_peer: bool, is_many: bool, count: int) -> float:
    """The same of those for asyncio."""
    publisher: Any = AsyncPublisherAdapter(config) if is_peer else AsyncPublisherAdapterLight(config)
    async with AsyncSubscriberAdapter(config) as subscriber, publisher:
        wanted = await subscriber.register_subscriber(type_name="Intel_Imagery")
        at = [] if is_peer else [await publisher.connect_to_delegate("alpha", "rome")]
        registration = await publisher.register_publisher(*at, SCHEMA, FIGURE)
        assert await publisher.wait_for_subscribers(registration, 1, SECONDS) == 1
        objects, before = subscriber.objects(wanted, SECONDS), 0.0
        for lot in range(1 + count // LOT):
            if lot == 1:
                before = time.process_time()
            if is_many:
                await publisher.publish_many(registration, [(FIGURE, PAYLOAD)] * LOT)
            else:
                for _ in range(LOT):
                    await publisher.publish(registration, FIGURE, PAYLOAD)
            for _ in range(LOT):
                await anext(objects)
        return (time.process_time() - before) / (count // LOT * LOT) * 1e6


def measured(rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Rows of the table."""
    rows: dict[str, dict[str, float]] = {}
    with servers() as config:
        for name, way in WAYS.items():
            pairs = [(blocking(config, *way, count), asyncio.run(awaited(config, *way, count))) for _ in range(rounds)]
            ratios = [of_asyncio / plain for plain, of_asyncio in pairs]
            rows[name] = {
                "blocking us": round(statistics.median(plain for plain, _ in pairs), 1),
                "asyncio us": round(statistics.median(of_asyncio for _, of_asyncio in pairs), 1),
                "ratio": round(statistics.median(ratios), 2),
                "lowest": round(min(ratios), 2),
                "highest": round(max(ratios), 2),
            }
    return rows


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=10_000, help="objects of a round")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measured(options.rounds, options.count)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    names = ("blocking us", "asyncio us", "ratio", "lowest", "highest")
    print(f"{'CPU time an object':20}" + "".join(f"{name:>13}" for name in names))
    for what, row in rows.items():
        print(f"{what:20}" + "".join(f"{row[name]:>13}" for name in names))


if __name__ == "__main__":
    main()
