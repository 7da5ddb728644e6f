"""Publisher -> delegate -> subscriber over loopback, each a process of its own.

    python benchmarks/dissemination.py [--json] [--seconds 3]

Objects per second with and without predicates, MB/s with large payloads, latency one by one, fan-out. Ratios are
against the first row of the same run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LookupSection, QueueSection

DATA = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
METADATA = (DATA / "fig1.xml").read_bytes()
KABUL = "*[/metadata/ImageDescriptor/LocationCoord/lat>33.2 and /metadata/ImageDescriptor/LocationCoord/lat<35.0]"


def subscribe(config: Config, predicate: str, subscriptions: int, expected: int, out: Any) -> None:
    """A subscriber process: takes `expected` objects, tells when and how late they were."""
    with SubscriberAdapter(config) as adapter:
        uids = [
            adapter.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery", predicate=predicate)
            for _ in range(subscriptions)
        ]
        out.put("ready")
        late = []
        for uid in uids:
            adapter.wait_matched(uid, 1, 30)
        out.put("matched")
        for _ in range(expected):
            for uid in uids:
                obj = adapter.receive(uid, 30)
                assert obj is not None, adapter.status()
                late.append(time.time() - obj.platform.published)
        late.sort()
        out.put((time.time(), statistics.median(late), late[int(len(late) * 0.99)]))


def measure(
    locator: str, *, count: int, payload: bytes, predicate: str, subscribers: int = 1, pause: float = 0.0, each: int = 1
) -> dict[str, float]:
    config = Config(
        lookup=LookupSection(locators=(locator,), multicast=False),
        queue=QueueSection(bound=200_000, publish_seconds=60),
    )
    out: Any = multiprocessing.Queue()
    arguments = (config, predicate, each, count, out)
    processes = [multiprocessing.Process(target=subscribe, args=arguments) for _ in range(subscribers)]
    for process in processes:
        process.start()
    with PublisherAdapterLight(config) as adapter:
        for _ in processes:
            assert out.get(timeout=30) == "ready"
        delegate = adapter.connect_to_delegate("bench", "here")
        registration = adapter.register_publisher(delegate, DATA / "Intel_Imagery.xsd", METADATA)
        for _ in processes:
            assert out.get(timeout=30) == "matched"
        begin = time.time()
        for _ in range(count):
            adapter.publish(registration, METADATA, payload)
            if pause:
                time.sleep(pause)
        published = time.time() - begin
        ends = [out.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    took = max(end for end, _, _ in ends) - begin
    return {
        "objects/s": round(count / took),
        "publish/s": round(count / published),
        "MB/s": round(count * len(payload) / took / 1e6, 1),
        "deliveries/s": round(count * subscribers * each / took),
        "p50 ms": round(statistics.median(p for _, p, _ in ends) * 1e3, 2),
        "p99 ms": round(max(p for _, _, p in ends) * 1e3, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of objects")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    jbi = [sys.executable, "-m", "jbi_pubsub", "--no-multicast"]
    lookup = subprocess.Popen([*jbi, "lookup", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True)
    assert lookup.stdout is not None
    locator = json.loads(lookup.stdout.readline())["address"]
    pad = subprocess.Popen(
        [*jbi, "--locator", locator, "pad", "bench", "here", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert pad.stdout is not None
    pad.stdout.readline()

    def some(number: int) -> int:
        return max(10, int(number * options.scale))

    try:
        rows = {
            "small, no predicate": measure(locator, count=some(20_000), payload=b"x" * 100, predicate=""),
            "1 KB, predicate": measure(locator, count=some(20_000), payload=b"x" * 1024, predicate=KABUL),
            "64 KB": measure(locator, count=some(4_000), payload=b"x" * 65_536, predicate=""),
            "1 MB": measure(locator, count=some(500), payload=b"x" * (1 << 20), predicate=""),
            "one by one": measure(locator, count=some(1_000), payload=b"x" * 1024, predicate=KABUL, pause=0.003),
            "1 KB to 10 subscriptions": measure(
                locator, count=some(5_000), payload=b"x" * 1024, predicate=KABUL, each=10
            ),
        }
    finally:
        pad.terminate()
        lookup.terminate()
        pad.wait(20)
        lookup.wait(20)
    if options.json:
        print(json.dumps(rows))
        return
    columns = list(next(iter(rows.values())))
    base = rows["small, no predicate"]["objects/s"]
    print(f"{'':28}" + "".join(f"{c:>14}" for c in columns) + f"{'ratio':>8}")
    for name, row in rows.items():
        print(f"{name:28}" + "".join(f"{row[c]:>14}" for c in columns) + f"{row['objects/s'] / base:>8.2f}")


if __name__ == "__main__":
    main()
