"""The adapters for asyncio beside the blocking ones: CPU time of the application's process.

    python benchmarks/aio.py [--rounds 5] [--count 10000] [--alone] [--json]

Lookup service and delegate run as processes. In this one a subscriber and a publisher are opened, blocking or of
asyncio, in turns; the publisher is one through the delegate or a peer. Objects of figure 1 with 100 bytes are
published one by one, or a lot in one call, and iterated by `objects`, LOT at a time so that no queue is full. The CPU
time is that of this process, for both adapters. `ratio` is asyncio to blocking: the median of those of the rounds,
the lowest and the highest.

With `--alone` there is a blocking publisher in the process and nothing else, and no subscriber anywhere: `publish` and
`publish_many` of `--count` different documents through the delegate, in turns. `ratio` is `publish` to `publish_many`.
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


def alone(config: Config, is_many: bool, count: int) -> float:
    """CPU time of a publisher that is alone, in us an object of different documents."""
    objects = [(FIGURE.replace(b"<lat>33.34<", b"<lat>33.%06d<" % number), PAYLOAD) for number in range(LOT + count)]
    with PublisherAdapterLight(config) as publisher:
        registration = publisher.register_publisher(publisher.connect_to_delegate("alpha", "rome"), SCHEMA, FIGURE)
        publisher.publish_many(registration, objects[:LOT])  # the first ones warm up
        publisher.flush(SECONDS)
        before = time.process_time()
        if is_many:
            publisher.publish_many(registration, objects[LOT:], timeout=SECONDS)
        else:
            for metadata, payload in objects[LOT:]:
                publisher.publish(registration, metadata, payload)
        publisher.flush(SECONDS)
        return (time.process_time() - before) / count * 1e6


def measured_alone(rounds: int, count: int) -> dict[str, dict[str, float]]:
    """The row of a publisher that is alone."""
    with servers() as config:
        pairs = [(alone(config, False, count), alone(config, True, count)) for _ in range(rounds)]
    return {"publisher alone": row(("publish us", "many us"), pairs, [single / many for single, many in pairs])}


def row(names: tuple[str, str], pairs: list[tuple[float, float]], ratios: list[float]) -> dict[str, float]:
    """Medians of pairs by their names, and of the ratios of the rounds."""
    medians = [round(statistics.median(each), 1) for each in zip(*pairs, strict=True)]
    found = {"ratio": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
    return {**dict(zip(names, medians, strict=True)), **{name: round(value, 2) for name, value in found.items()}}


def measured(rounds: int, count: int) -> dict[str, dict[str, float]]:
    """Rows of the table."""
    rows: dict[str, dict[str, float]] = {}
    with servers() as config:
        for name, way in WAYS.items():
            pairs = [(blocking(config, *way, count), asyncio.run(awaited(config, *way, count))) for _ in range(rounds)]
            ratios = [of_asyncio / plain for plain, of_asyncio in pairs]
            rows[name] = row(("blocking us", "asyncio us"), pairs, ratios)
    return rows


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=10_000, help="objects of a round")
    parser.add_argument("--alone", action="store_true", help="a publisher alone, publish and publish_many")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = (measured_alone if options.alone else measured)(options.rounds, options.count)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    names = list(next(iter(rows.values())))
    print(f"{'CPU time an object':20}" + "".join(f"{name:>13}" for name in names))
    for what, row in rows.items():
        print(f"{what:20}" + "".join(f"{row[name]:>13}" for name in names))


if __name__ == "__main__":
    main()
