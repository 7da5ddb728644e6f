"""Many subscriptions of one process: until they stand, and until they stand again at a delegate that was killed.

    python benchmarks/subscriptions.py [--sizes 1000,10000] [--sets plain,ugly] [--rounds 1] [--json]

A process each for lookup service, delegate, publisher (this one) and subscriber. *plain*: a rectangle each, over one
schema; *ugly*: predicates of twenty kinds in turn, those of the styles mixed and kinds of benchmarks/peers. Each round
has a federation of its own. Nothing is published while they are registered one by one, `returned` is when the last call
has, `served` when all stand at the delegate. Then RATE objects a second are published, and go on; after a second the
delegate is killed (SIGKILL) and started again at the same port. `again`: seconds from then until all stand at the new
one; `start` of these until it has said that it is there. CPU is that of each process between these marks, in us a
subscription.

Each object's number is its payload, and who gets it is known beforehand (for *ugly* from lxml alone). Deliveries that
are missing, or came twice, are counted by when their object was published: before the kill, until all stood again, or
later. `told`: subscriptions that were told that something may be lost; `refused`: beyond budgets, nothing is expected.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LookupSection, QueueSection
from jbi_pubsub.core.info_object import InfoObject

sys.path.insert(0, str(Path(__file__).parent / "peers"))
from workload import generate, schema

TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"
RATE: Final = 20
DOCUMENTS: Final = 40
MATCHES: Final = 10
"""Subscriptions that an object matches in the mean, of rectangles."""
Expected = list[tuple[int, ...]]


def predicates_of(kind: str, size: int) -> tuple[list[bytes], list[str], Expected]:
    """The documents, the predicates, and by document who is to get it."""
    styles = ("rect",) if kind == "plain" else ("mixed", "kinds")
    made = [generate(DOCUMENTS, size // len(styles), 0, MATCHES, style=style) for style in styles]
    wanted = [each.xpath for some in zip(*(predicates for _, predicates, _ in made), strict=True) for each in some]
    expected = [
        tuple(sub * len(made) + at for at, subs in enumerate(some) for sub in subs)
        for some in zip(*(expected for _, _, expected in made), strict=True)
    ]
    return [each.metadata for each in made[0][0]], wanted, expected


def subscribe(config: Config, predicates: list[str], pipe: Connection) -> None:
    """The subscriber's process: says when it has come how far, and in the end what it has got."""
    logging.basicConfig(filename=os.devnull)  # a line for each that is told of a loss
    got: list[tuple[str, int]] = []

    def take(uid: str, obj: InfoObject) -> None:
        got.append((uid, int(obj.payload)))

    with SubscriberAdapter(config) as adapter:
        pipe.send(time.monotonic())
        uids = [adapter.register_subscriber(type_name=TYPE, predicate=p, listener=take, timeout=60) for p in predicates]
        pipe.send(time.monotonic())
        for delegate in iter(pipe.recv, ""):
            for uid in uids:
                while delegate not in adapter.qos(uid) and adapter.refusal(uid) is None:
                    time.sleep(0.005)
            pipe.send(time.monotonic())
        refused = {at for at, uid in enumerate(uids) if adapter.refusal(uid) is not None}
        losses = [adapter.losses(uid) for uid in uids]
        place = {uid: at for at, uid in enumerate(uids)}
        pipe.send(([(place[uid], number) for uid, number in got], losses, refused))


@contextmanager
def served(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """A command that serves, and what it says of itself."""
    command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", *words, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "JBI_CONFIG": os.devnull})
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(30)


class Publishing(threading.Thread):
    """Publishes one document after the other, until `stopping`; `sent` has when each was given to it."""

    def __init__(self, publisher: PublisherAdapterLight, uid: Any, documents: list[bytes]) -> None:
        super().__init__()
        self.sent: list[float] = []
        self.stopping = threading.Event()
        self._publisher, self._uid, self._documents = publisher, uid, documents

    def run(self) -> None:
        while not self.stopping.wait(1 / RATE):
            number = len(self.sent)
            self.sent.append(time.monotonic())
            self._publisher.publish(self._uid, self._documents[number % DOCUMENTS], payload=str(number).encode())
        self._publisher.flush()


def spent(pids: dict[str, int]) -> Counter[str]:
    """Seconds of CPU of each process so far."""
    times = {name: psutil.Process(pid).cpu_times() for name, pid in pids.items()}
    return Counter({name: each.user + each.system for name, each in times.items()})


def measure(kind: str, size: int) -> dict[str, Any]:
    """The figures of one federation."""
    documents, predicates, expected = predicates_of(kind, size)
    pipe, theirs = multiprocessing.Pipe()
    with served("lookup", "--port", "0") as (lookup, facts):
        at = ("--locator", facts["address"], "pad", "many", "here")
        section = LookupSection(locators=(facts["address"],), multicast=False)
        config = Config(lookup=section, queue=QueueSection(publish_seconds=60))
        process = multiprocessing.Process(target=subscribe, args=(config, predicates, theirs), daemon=True)
        with PublisherAdapterLight(config) as publisher:
            with served(*at) as (pad, first):
                delegate = publisher.connect_to_delegate("many", "here")
                uid = publisher.register_publisher(delegate, schema("rect"), documents[0])
                process.start()
                assert process.pid is not None
                pids = {"delegate": pad.pid, "subscriber": process.pid, "lookup": lookup.pid}
                began, before = pipe.recv(), spent(pids)
                pipe.send(first["id"])
                returned, standing = pipe.recv(), pipe.recv()
                used = spent(pids) - before
                rows = {"returned s": returned - began, "served s": standing - began}
                rows |= {f"{name} us": seconds / size * 1e6 for name, seconds in used.items()}
                publishing = Publishing(publisher, uid, documents)
                publishing.start()
                time.sleep(1.0)
                before = spent(pids)
                pad.send_signal(signal.SIGKILL)
                killed = time.monotonic()
            with served(*at, "--port", first["address"].rpartition(":")[2]) as (pad, second):
                pids["delegate"] = pad.pid
                before["delegate"] = spent(pids)["delegate"]
                rows["start s"] = time.monotonic() - killed
                pipe.send(second["id"])
                rows["again s"] = (again := pipe.recv()) - killed
                rows |= {f"again, {name} us": seconds / size * 1e6 for name, seconds in (spent(pids) - before).items()}
                time.sleep(2.0)
                publishing.stopping.set()
                publishing.join()
                time.sleep(2.0)
                pipe.send("")
                got, losses, refused = pipe.recv()
        process.join(30)
    numbers = range(len(publishing.sent))
    wanted = Counter((who, n) for n in numbers for who in expected[n % DOCUMENTS] if who not in refused)
    came = Counter(each for each in got if each[0] not in refused)
    for what, counted in (("missing", wanted - came), ("twice or wrong", came - wanted)):
        when = Counter(
            ("before", "meanwhile", "after")[(publishing.sent[n] > killed) + (publishing.sent[n] > again)]
            for (_, n), count in counted.items() for _ in range(count)
        )  # fmt: skip
        rows |= {f"{what}, {phase}": when[phase] for phase in ("before", "meanwhile", "after")}
    rows |= {"expected": wanted.total(), "told": sum(map(bool, losses)), "refused": len(refused)}
    return rows


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--sets", default="plain,ugly")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {}
    for kind in options.sets.split(","):
        for size in map(int, options.sizes.split(",")):
            rounds = [measure(kind, size) for _ in range(options.rounds)]
            found[f"{kind} {size}"] = {k: round(statistics.median(each[k] for each in rounds), 2) for k in rounds[0]}
            if not options.json:
                print(f"{kind}, {size}:", *(f"  {k:28}{v:>10}" for k, v in found[f"{kind} {size}"].items()), sep="\n")
    print(json.dumps(found, indent=1) if options.json else "")


if __name__ == "__main__":
    main()
