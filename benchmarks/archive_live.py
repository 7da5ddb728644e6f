"""A delegate with an archive, as publishers and subscribers meet it: over loopback, a process for each party.

    python benchmarks/archive_live.py [--sizes 100000,1000000] [--questions 1000] [--folder FOLDER] [--json]
    python benchmarks/archive_live.py --turns 9 [--count 40000]

Documents of figure 1 (0.6 KB) with another position in each, 1 KB of payload that does not shrink. In this order:

- all published by one publisher, first to a delegate without an archive, then to one with it: the rate until all is
  acknowledged, what the delegate spent and grew by, what the archive's worker spent, and how long it was behind;
- a durable subscription that was away meanwhile, for which one of 1,000 objects matches: back and served;
- latency of a live subscriber at 1,000 objects/s: alone, beside one that replays all, beside one that queries all;
- so many queries for a handful of objects one after the other: how many a second, what the processes grew by;
- kill -9: from the start of the delegate until it has acknowledged an object, and until it has answered.

With `--turns` there is nothing but publishing, with `publish_many` and no subscriber: `--count` objects to a delegate
without an archive, then to one with it, and so on in turns; medians, and of the ratios and differences of each turn the
lowest and the highest.

Wall times are of whatever else the machine does: the ratios are within one run. CPU us are an object.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
from dissemination import DATA, LATITUDE, METADATA, TYPE, Federation, cpu_seconds, megabytes, positions

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import ClientSection, TlsSection
from jbi_pubsub.core.info_object import InfoObject

PAYLOAD: Final = 1 << 10
RATE: Final = 1_000
"""Objects a second of which latency is taken."""
RARE: Final = f"{LATITUDE}<33.3004"
"""One of 1,000 documents."""
BOUND: Final = 10_000
WAIT: Final = 300.0
QUIET: Final = 0.5
"""A worker that spends nothing for so many seconds is done."""


class Place(Federation):
    """A lookup service and a delegate with an archive, or without one, that can be killed and started again."""

    def __init__(self, archive: str) -> None:
        super().__init__(TlsSection(), archive=archive)
        self._owner = str(Path(tempfile.gettempdir()) / f"jbi-bench-owner-{os.getpid()}")

    def config(self, bound: int = BOUND) -> Config:
        """Durable subscriptions are of an owner of their own."""
        return msgspec.structs.replace(super().config(bound), client=ClientSection(owner=self._owner))

    def kill(self) -> None:
        """As kill -9 does: the worker ends with its delegate."""
        self.pad.kill()
        self.pad.wait()

    def again(self) -> None:
        """Start the delegate; back when it says that it is there."""
        self.pad, _ = self._start("--locator", self._locator, "pad", "bench", "here")

    @property
    def worker(self) -> int:
        """The process id of the archive's worker."""
        children = Path(f"/proc/{self.pad.pid}/task").glob("*/children")
        return next(int(pid) for each in children for pid in each.read_text().split())


def objects(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Metadata and payload of each."""
    payloads = [os.urandom(PAYLOAD) for _ in range(500)]
    for at, payload in zip(positions(count), itertools.cycle(payloads), strict=False):
        yield METADATA.replace(b"<lat>33.34<", b"<lat>33.%06d<" % (300_000 + at)), payload


def fill(place: Place, count: int, *, persist: bool, durable: bool = False) -> dict[str, float]:
    """Publish all of them; what it took. `durable`: such a subscription has been there before."""
    with PublisherAdapterLight(place.config()) as publisher:
        delegate = publisher.connect_to_delegate("bench", "here", timeout=60.0)
        registration = publisher.register_publisher(delegate, DATA / "Intel_Imagery.xsd", METADATA, persist=persist)
        if durable:
            begin_durable(place)
        pad = place.pad.pid
        cpu, memory, begin = cpu_seconds(pad), megabytes(pad), time.perf_counter()
        publisher.publish_many(registration, objects(count), timeout=WAIT)
        publisher.flush(WAIT)
        took = time.perf_counter() - begin
        return {
            "objects/s": count / took,
            "delegate CPU us": (cpu_seconds(pad) - cpu) / count * 1e6,
            "delegate grows by MB": megabytes(pad) - memory,
        }


def rest(worker: int) -> None:
    """Wait until a worker is done."""
    deadline, spent = time.monotonic() + WAIT, -1.0
    while (now := cpu_seconds(worker)) != spent:
        assert time.monotonic() < deadline, "the worker does not come to rest"
        spent = now
        time.sleep(QUIET)


def begin_durable(place: Place) -> None:
    """Open a durable subscription for the first time, and leave it."""
    with SubscriberAdapter(place.config()) as app:
        uid = app.register_subscriber(type_name=TYPE, predicate=RARE, durable="bench")
        assert app.wait_matched(uid, 1, 30)


def durable(place: Place, expected: int) -> float:
    """Open it again and take what it has; seconds."""
    begin = time.perf_counter()
    with SubscriberAdapter(place.config()) as app:
        uid = app.register_subscriber(type_name=TYPE, predicate=RARE, durable="bench")
        for number in range(expected):
            assert app.receive(uid, 60.0) is not None, f"{number} of {expected} came"
        return time.perf_counter() - begin


def watch(config: Config, orders: Any, out: Any) -> None:
    """A process with a live subscriber: says p50 and p99 in ms of each so many objects that it is told to await."""
    late: list[float] = []

    def arrived(_uid: str, obj: InfoObject) -> None:
        late.append(time.time() - obj.platform.published)

    with SubscriberAdapter(config) as app:
        uid = app.register_subscriber(type_name=TYPE, listener=arrived)
        app.wait_matched(uid, 1, 30)
        out.put("ready")
        while count := orders.get():
            deadline = time.monotonic() + WAIT
            while len(late) < count and time.monotonic() < deadline:
                time.sleep(0.05)
            late.sort()
            out.put((late[len(late) // 2] * 1e3, late[len(late) * 99 // 100] * 1e3))
            late.clear()


def replay(config: Config, count: int, out: Any) -> None:
    """A process that replays everything, again and again."""
    with SubscriberAdapter(config) as app:
        while True:
            begin = time.perf_counter()
            uid = app.register_subscriber(type_name=TYPE, start="all")
            for place in range(count):
                assert app.receive(uid, WAIT) is not None
                if place % 1_000 == 999 or place == count - 1:
                    out.put((place + 1) / (time.perf_counter() - begin))
            app.cancel_subscription(uid)


def ask(config: Config, count: int, out: Any) -> None:
    """A process that queries everything, again and again."""
    with SubscriberAdapter(config) as app:
        while True:
            begin = time.perf_counter()
            for place, _ in enumerate(app.query(TYPE, limit=count)):
                if place % 1_000 == 999 or place == count - 1:
                    out.put((place + 1) / (time.perf_counter() - begin))


def beside(place: Place, count: int, seconds: float) -> dict[str, float]:
    """Latency of a live subscriber, with nothing, a replay and a query beside it."""
    found: dict[str, float] = {}
    orders: Any = multiprocessing.Queue()
    out: Any = multiprocessing.Queue()
    live = multiprocessing.Process(target=watch, args=(place.config(), orders, out), daemon=True)
    live.start()
    others: dict[str, Callable[[Config, int, Any], None] | None] = {"alone": None, "replay": replay, "query": ask}
    try:
        assert out.get(timeout=60) == "ready"
        with PublisherAdapterLight(place.config()) as publisher:
            delegate = publisher.connect_to_delegate("bench", "here", timeout=60.0)
            registration = publisher.register_publisher(
                delegate, DATA / "Intel_Imagery.xsd", METADATA, persist=True
            )  # fmt: skip
            publisher.wait_for_subscribers(registration, 1, 30)
            for name, other in others.items():
                rates: Any = multiprocessing.Queue()
                process = None
                if other is not None:
                    process = multiprocessing.Process(target=other, args=(place.config(), count, rates), daemon=True)
                    process.start()
                    rates.get(timeout=60)
                number = int(RATE * seconds)
                begin = time.perf_counter()
                for at, (metadata, payload) in enumerate(objects(number)):
                    if (left := begin + at / RATE - time.perf_counter()) > 0:
                        time.sleep(left)
                    publisher.publish(registration, metadata, payload)
                orders.put(number)
                found[f"live p50 ms, {name}"], found[f"live p99 ms, {name}"] = out.get(timeout=WAIT)
                if process is not None:
                    process.kill()
                    process.join()
                    said = 0.0
                    while not rates.empty():
                        said = rates.get()
                    found[f"{name}: objects/s"] = said
    finally:
        orders.put(0)
        live.join(10.0)
        live.kill()
    return found


def question(number: int) -> str:
    """A predicate of a handful of objects of 400,000."""
    at = 300_000 + number * 7_919 % 400_000
    return f"{LATITUDE}=33.{at:06d}"


def asked(place: Place, count: int) -> dict[str, float]:
    """So many queries one after the other."""
    with SubscriberAdapter(place.config()) as app:
        for number in range(min(100, count)):
            list(app.query(TYPE, predicate=question(number)))
        pids = (place.pad.pid, place.worker)
        before, begin = [megabytes(pid) for pid in pids], time.perf_counter()
        for number in range(count):
            list(app.query(TYPE, predicate=question(number)))
        took, after = time.perf_counter() - begin, [megabytes(pid) for pid in pids]
    return {
        "queries": count,
        "queries/s": count / took,
        "queries: delegate grows by MB": after[0] - before[0],
        "queries: worker grows by MB": after[1] - before[1],
    }


def killed(place: Place) -> dict[str, float]:
    """The delegate is killed; how long until it takes an object, and answers."""
    place.kill()
    begin = time.perf_counter()
    place.again()
    found = {"after kill -9: there s": time.perf_counter() - begin}
    with PublisherAdapterLight(place.config()) as publisher, SubscriberAdapter(place.config()) as app:
        delegate = publisher.connect_to_delegate("bench", "here", timeout=60.0)
        registration = publisher.register_publisher(delegate, DATA / "Intel_Imagery.xsd", METADATA, persist=True)
        publisher.publish(registration, METADATA, b"x")
        publisher.flush(WAIT)
        found["after kill -9: publishing s"] = time.perf_counter() - begin
        assert list(app.query(TYPE, predicate=question(0)))
        found["after kill -9: queries s"] = time.perf_counter() - begin
    return found


def in_turns(turns: int, count: int, folder: Path) -> dict[str, float]:
    """Publishing alone, without an archive and with it."""
    with closing(Place("")) as plain, closing(Place(str(folder / "archive"))) as place:
        both = [(fill(plain, count, persist=False), fill(place, count, persist=True)) for _ in range(turns)]
    report: dict[str, float] = {"objects a turn": count, "turns": turns}
    for at, name in enumerate(("no archive", "archive")):
        for what in ("objects/s", "delegate CPU us"):
            report[f"{name}: {what}"] = statistics.median(turn[at][what] for turn in both)
    more = sorted(kept["delegate CPU us"] - alone["delegate CPU us"] for alone, kept in both)
    ratios = sorted(kept["objects/s"] / alone["objects/s"] for alone, kept in both)
    for what, found in (("more CPU us", more), ("ratio of objects/s", ratios)):
        report |= {
            f"archive: {what}": statistics.median(found),
            f"{what}, lowest": found[0],
            f"{what}, highest": found[-1],
        }
    return report


def measure(size: int, questions: int, seconds: float, folder: Path) -> dict[str, float]:
    """All of it."""
    report: dict[str, float] = {"objects": size}
    with closing(Place("")) as plain:
        without = fill(plain, min(size, 200_000), persist=False)
    report |= {f"no archive: {name}": value for name, value in without.items()}
    with closing(Place(str(folder / "archive"))) as place:
        report |= {f"archive: {name}": value for name, value in fill(place, size, persist=True, durable=True).items()}
        report["archive: ratio of objects/s"] = report["archive: objects/s"] / without["objects/s"]
        begin, worker = time.perf_counter(), place.worker
        rest(worker)
        report["archive: worker behind s"] = time.perf_counter() - begin - QUIET
        report["archive: worker CPU us"] = cpu_seconds(worker) / size * 1e6
        report["archive: worker MB"] = megabytes(worker)
        report["archive: B an object"] = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / size
        matching = sum(at < 400 for at in positions(size))
        report["durable: matching"], report["durable: back and served s"] = matching, durable(place, matching)
        report |= beside(place, size, seconds)
        report |= asked(place, questions)
        report |= killed(place)
    return report


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100000,1000000")
    parser.add_argument("--questions", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement of latency")
    parser.add_argument("--turns", type=int, default=0, help="publishing alone, so many times each")
    parser.add_argument("--count", type=int, default=40_000, help="objects of a turn")
    parser.add_argument("--folder", type=Path, help="where to put the archives; default: the system's for such files")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    reports = []
    for size in [options.count] if options.turns else map(int, options.sizes.split(",")):
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder = Path(name)
            if options.turns:
                reports.append(in_turns(options.turns, size, folder))
            else:
                reports.append(measure(size, options.questions, options.seconds, folder))
        if not options.json:
            for name, value in reports[-1].items():
                print(f"{name:<36}{value:>16,.2f}", flush=True)
            print()
    if options.json:
        print(json.dumps(reports))
    return 0


if __name__ == "__main__":
    sys.exit(main())
