"""Publisher -> delegate -> subscriber over loopback, each a process of its own.

    python benchmarks/dissemination.py [--json] [--scale 1.0] [--only tls]

Objects per second with metadata that vary from object to object or do not, with and without predicates, MB/s with
large payloads in clear and over mutual TLS, latency one by one, fan-out within a process and over processes, and what a
stopped subscriber costs the others. Ratios are against the first row of the same run. CPU is of all three parties (of
the subscribers all), in us an object: steadier than rates on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LookupSection, QueueSection, TlsSection

DATA = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
METADATA = (DATA / "fig1.xml").read_bytes()
KABUL = "*[/metadata/ImageDescriptor/LocationCoord/lat>33.2 and /metadata/ImageDescriptor/LocationCoord/lat<35.0]"
TYPE = "mil.af.rl.jbi.Intel_Imagery"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def subscribe(config: Config, predicate: str, subscriptions: int, expected: int, out: Any) -> None:
    """A subscriber process: takes `expected` objects for each subscription, tells when and how late they were."""
    with SubscriberAdapter(config) as adapter:
        uids = [adapter.register_subscriber(type_name=TYPE, predicate=predicate) for _ in range(subscriptions)]
        out.put("ready")
        for uid in uids:
            adapter.wait_matched(uid, 1, 30)
        out.put("matched")
        before = time.process_time()
        late = []
        for _ in range(expected):
            for uid in uids:
                obj = adapter.receive(uid, 60)
                assert obj is not None, adapter.status()
                late.append(time.time() - obj.platform.published)
        late.sort()
        spent = time.process_time() - before
        out.put((time.time(), statistics.median(late), late[int(len(late) * 0.99)], spent))


class Federation:
    """A lookup service and a delegate, each a process; in clear, or with mutual TLS."""

    def __init__(self, tls: TlsSection) -> None:
        self._tls = tls
        names = ("certificate", "key", "ca")
        given = {f"JBI_TLS_{n.upper()}": getattr(tls, n) for n in names if getattr(tls, n)}
        self._environment = {**os.environ, **given}
        self.lookup, answer = self._start("lookup", "--port", "0")
        self.locator = answer["address"]
        self.pad, _ = self._start("--locator", self.locator, "pad", "bench", "here")

    def _start(self, *words: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
        command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", *words, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    @property
    def config(self) -> Config:
        """For its clients."""
        return Config(
            lookup=LookupSection(locators=(self.locator,), multicast=False),
            queue=QueueSection(bound=200_000, publish_seconds=60),
            tls=self._tls,
        )

    def close(self) -> None:
        """End both."""
        for process in (self.pad, self.lookup):
            process.terminate()
            process.wait(20)


def varied(count: int) -> Iterator[bytes]:
    """Metadata as a moving source says them: each another position, all of them in the rectangle."""
    for at in range(count):
        yield METADATA.replace(b"<lat>33.34<", b"<lat>33.%06d<" % (300_000 + at % 400_000))


def measure(
    federation: Federation,
    *,
    count: int,
    payload: bytes,
    predicate: str = "",
    subscribers: int = 1,
    each: int = 1,
    pause: float = 0.0,
    vary: bool = True,
    validate: bool = True,
    stopped: int = 0,
) -> dict[str, float]:
    """`count` objects for `subscribers` processes with `each` subscriptions; `stopped` more processes take nothing."""
    config = federation.config
    out: Any = multiprocessing.Queue()
    arguments = (config, predicate, each, count, out)
    processes = [multiprocessing.Process(target=subscribe, args=arguments) for _ in range(subscribers + stopped)]
    for process in processes:
        process.start()
    with PublisherAdapterLight(config) as adapter:
        for _ in processes:
            assert out.get(timeout=60) == "ready"
        delegate = adapter.connect_to_delegate("bench", "here")
        registration = adapter.register_publisher(delegate, DATA / "Intel_Imagery.xsd", METADATA, validate=validate)
        for _ in processes:
            assert out.get(timeout=60) == "matched"
        for process in processes[subscribers:]:
            os.kill(process.pid or 0, signal.SIGSTOP)
        documents = list(varied(count)) if vary else [METADATA] * count
        spent = time.process_time() + cpu_seconds(federation.pad.pid)
        begin = time.time()
        for metadata in documents:
            adapter.publish(registration, metadata, payload)
            if pause:
                time.sleep(pause)
        published = time.time() - begin
        ends = [out.get(timeout=240) for _ in range(subscribers)]
        spent = time.process_time() + cpu_seconds(federation.pad.pid) - spent + sum(end[3] for end in ends)
        for process in processes[subscribers:]:
            process.kill()
    for process in processes:
        process.join()
    took = max(end[0] for end in ends) - begin
    return {
        "objects/s": round(count / took),
        "publish/s": round(count / published),
        "MB/s": round(count * len(payload) / took / 1e6, 1),
        "deliveries/s": round(count * subscribers * each / took),
        "CPU us": round(spent / count * 1e6, 1),
        "p50 ms": round(statistics.median(end[1] for end in ends) * 1e3, 2),
        "p99 ms": round(max(end[2] for end in ends) * 1e3, 2),
    }


@contextmanager
def authority() -> Iterator[TlsSection]:
    """Certificates of an authority made for this run."""
    import trustme  # a test extra, needed for the TLS rows alone

    with tempfile.TemporaryDirectory() as folder:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        paths = {name: str(Path(folder) / f"{name}.pem") for name in ("certificate", "key", "ca")}
        Path(paths["certificate"]).write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(paths["key"])
        authority.cert_pem.write_to_path(paths["ca"])
        yield TlsSection(**paths)


def rows(scale: float, only: str) -> dict[str, dict[str, float]]:
    """All measurements whose name contains `only`."""
    small, kilo, large, huge = (b"x" * size for size in (100, 1 << 10, 64 << 10, 1 << 20))
    clear: dict[str, dict[str, Any]] = {
        "small": {"count": 20_000, "payload": small},
        "small, same metadata": {"count": 50_000, "payload": small, "vary": False},
        "1 KB, predicate": {"count": 20_000, "payload": kilo, "predicate": KABUL},
        "64 KB": {"count": 4_000, "payload": large},
        "1 MB": {"count": 500, "payload": huge},
        "one by one": {"count": 1_000, "payload": kilo, "predicate": KABUL, "pause": 0.003},
        "to 10 subscriptions of one process": {"count": 5_000, "payload": kilo, "predicate": KABUL, "each": 10},
        "to 4 processes": {"count": 5_000, "payload": kilo, "predicate": KABUL, "subscribers": 4},
        "to 1 process, one by one": {"count": 1_000, "payload": kilo, "pause": 0.002},
        "the same, 1 other stopped": {"count": 1_000, "payload": kilo, "pause": 0.002, "stopped": 1},
    }
    secured: dict[str, dict[str, Any]] = {
        "TLS, 1 KB, predicate": {"count": 10_000, "payload": kilo, "predicate": KABUL},
        "TLS, 64 KB": {"count": 2_000, "payload": large},
        "TLS, 1 MB": {"count": 200, "payload": huge},
    }
    found = {}
    for cases, tls in ((clear, False), (secured, True)):
        chosen = {name: options for name, options in cases.items() if only in name}
        if not chosen:
            continue
        with authority() if tls else nullcontext(TlsSection()) as section:
            federation = Federation(section)
            try:
                for name, options in chosen.items():
                    found[name] = measure(federation, **{**options, "count": max(10, int(options["count"] * scale))})
            finally:
                federation.close()
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of objects")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    found = rows(options.scale, options.only)
    if options.json:
        print(json.dumps(found))
        return
    columns = list(next(iter(found.values())))
    base = next(iter(found.values()))["objects/s"]
    print(f"{'':36}" + "".join(f"{c:>14}" for c in columns) + f"{'ratio':>8}")
    for name, row in found.items():
        print(f"{name:36}" + "".join(f"{row[c]:>14}" for c in columns) + f"{row['objects/s'] / base:>8.2f}")


if __name__ == "__main__":
    main()
