"""Publisher -> delegate -> subscribers over loopback, end to end.

    python benchmarks/dissemination.py [--json] [--scale 1.0] [--only TLS]

A process each for the lookup service, the delegate and the publisher (this one), and one subscriber process, or as many
as the row's name says. Documents are those of figure 1 (0.6 KB), the position another one in each unless the row says
otherwise; all are validated. Each row has a federation of its own; ratios are against the first row of the same run.

`CPU us` is of all parties together, an object: steadier than rates on a machine that does other things as well.
`busiest` is the party with the most CPU time, and how much of a core that was: near 100 % it is what limits the row.
Latency runs from publish() to the subscriber's hands, of every LOOK-th delivery. `delegate MB` is what it grew by.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.core.config import LookupSection, QueueSection, TlsSection
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.publisher.publication import RegistrationUid

DATA = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
METADATA = (DATA / "fig1.xml").read_bytes()
LATITUDE = "/metadata/ImageDescriptor/LocationCoord/lat"
KABUL = f"*[{LATITUDE}>33.2 and {LATITUDE}<35.0]"
TYPE = "mil.af.rl.jbi.Intel_Imagery"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
LOOK = 8
"""One delivery in so many has its latency taken: the subscriber is to spend no more than one that only receives."""
BOUND = 10_000
"""Objects that may wait for a subscription by default. Rows that are not about that allow more."""

Parties = dict[str, list[int]]
"""Process ids by party."""
Watch = Callable[[Parties], AbstractContextManager[object]]
"""Entered when all are connected, left when all has been delivered."""


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def megabytes(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


class Listener:
    """Of all subscriptions of a process that get different objects: counts them."""

    def __init__(self, expected: int, arrived: Callable[[InfoObject], None]) -> None:
        self.done = threading.Event()
        self._left = expected
        self._arrived = arrived
        self._lock = threading.Lock()  # calls are one at a time for a subscription, not for all

    def arrived(self, _uid: str, obj: InfoObject) -> None:
        """One more."""
        with self._lock:
            self._arrived(obj)
            self._left -= 1
            if not self._left:
                self.done.set()

    def lost(self, uid: str, notice: object) -> None:
        """None should be."""
        print("lost:", uid, notice, file=sys.stderr)


def subscribe(config: Config, predicates: Sequence[str], expected: int, out: Any, wanted: str | None = None) -> None:
    """A subscriber process: takes `expected` deliveries in all, and tells when, how late they were and what they cost.
    Subscriptions that are alike are read in turn; others have a listener."""
    late: list[float] = []
    number = itertools.count()

    def arrived(obj: InfoObject) -> None:
        if not next(number) % LOOK:
            late.append(time.time() - obj.platform.published)

    with SubscriberAdapter(config) as adapter:
        listener = Listener(expected, arrived) if len(set(predicates)) > 1 else None
        uids = [
            adapter.register_subscriber(type_name=TYPE, predicate=p, payload_filter=wanted, listener=listener)
            for p in predicates
        ]
        out.put("ready")
        for uid in uids:
            adapter.wait_matched(uid, 1, 30)
        out.put("matched")
        before = time.process_time()
        if listener is not None:
            assert listener.done.wait(120), adapter.status()
        else:
            for _ in range(expected // len(uids)):
                for uid in uids:
                    obj = adapter.receive(uid, 60)
                    assert obj is not None, adapter.status()
                    arrived(obj)
        late.sort()
        out.put((time.time(), statistics.median(late), late[int(len(late) * 0.99)], time.process_time() - before))


class Federation:
    """A lookup service and a delegate, each a process; in clear, or with mutual TLS."""

    def __init__(
        self, tls: TlsSection, *, keeps: bool = True, signed: str = "", qos: bool = False, archive: str = ""
    ) -> None:
        self._tls = tls
        self._signed = signed
        names = ("certificate", "key", "ca")
        given = {f"JBI_TLS_{n.upper()}": getattr(tls, n) for n in names if getattr(tls, n)}
        if signed in ("require", "cut"):
            given |= {"JBI_TLS_VERIFY": "require", "JBI_TLS_SIGN": "true"}
        if qos:
            given["JBI_QOS_MODE"] = "on"
        if archive:
            given["JBI_ARCHIVE_FOLDER"] = archive
        self._environment = {**os.environ, **given, **({} if keeps else {"JBI_PAD_KEEP_SECONDS": "0"})}
        self.lookup, answer = self._start("lookup", "--port", "0")
        self._locator = answer["address"]
        self.pad, _ = self._start("--locator", self._locator, "pad", "bench", "here")

    def _start(self, *words: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
        command = [sys.executable, "-m", "jbi_pubsub", "--no-multicast", *words, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment)
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def config(self, bound: int, *, blocks: bool = False) -> Config:
        """For its clients; `bound` of what may wait for a subscription, `blocks` whether publishers wait beyond it."""
        verify: Any = "require" if self._signed in ("require", "cut") else "off"
        return Config(
            lookup=LookupSection(locators=(self._locator,), multicast=False),
            queue=QueueSection(bound=bound, publish_seconds=60, policy="block" if blocks else "drop_oldest"),
            tls=msgspec.structs.replace(self._tls, sign=bool(self._signed), verify=verify),
        )

    def close(self) -> None:
        """End both."""
        for process in (self.pad, self.lookup):
            process.terminate()
            process.wait(20)


def positions(count: int) -> Iterable[int]:
    """Millionths of a degree, spread over 400,000 of them."""
    return (at * 7_919 % 400_000 for at in range(count))


def stripes(number: int) -> list[str]:
    """Predicates of which exactly one holds for each document."""
    edges = [33.2999995 + at * 0.4 / number for at in range(number + 1)]
    return [f"*[{LATITUDE}>{low:.7f} and {LATITUDE}<{high:.7f}]" for low, high in itertools.pairwise(edges)]


@dataclass(frozen=True)
class Case:
    """What a row measures: `count` objects for `processes` subscriber processes with `each` subscriptions."""

    count: int
    payload: int
    predicate: str = ""
    """Of all subscriptions, if each has not its `own`, of which one matches an object."""
    own: bool = False
    processes: int = 1
    each: int = 1
    rate: float = 0.0
    """Objects a second, where who is late catches up; 0: as fast as they are taken."""
    many: bool = False
    """All in one call of publish_many."""
    vary: bool = True
    stopped: int = 0
    """Further subscriber processes that take nothing."""
    bound: int = 200_000
    signed: str = ""
    """Who has to do with signatures: `sign` the publisher; `require` the delegate and the subscribers as well; `cut`
    the same, and the subscribers have a filter, so that the delegate signs what it leaves. With TLS alone."""
    qos: bool = False
    """Whether the delegate manages quality of service, with nothing to hold anybody back."""
    archived: bool = False
    """Whether all is archived: on disk before it is acknowledged, and indexed meanwhile."""
    keeps: bool = True
    """Whether the delegate keeps objects for late joiners (`[pad] keep_seconds`), which hides what a queue weighs."""
    blocks: bool = False
    """Whether the publisher waits for its subscribers."""

    def documents(self) -> list[bytes]:
        """Metadata as a moving source says them, all in the rectangle; or always the same."""
        if not self.vary:
            return [METADATA] * self.count
        return [METADATA.replace(b"<lat>33.34<", b"<lat>33.%06d<" % (300_000 + at)) for at in positions(self.count)]

    def subscribers(self) -> list[tuple[list[str], int]]:
        """Predicates of each process, and how many deliveries it gets."""
        number = self.processes * self.each
        if not self.own:
            return [([self.predicate] * self.each, self.count * self.each)] * (self.processes + self.stopped)
        matched = Counter(at * number // 400_000 for at in positions(self.count))
        shares = [range(at, number, self.processes) for at in range(self.processes)]
        predicates = stripes(number)
        return [([predicates[at] for at in share], sum(matched[at] for at in share)) for share in shares]

    def publish_all(
        self, adapter: PublisherAdapterLight, registration: RegistrationUid, documents: Sequence[bytes]
    ) -> None:
        """As this case says."""
        payload = b"<a>" + b"x" * (self.payload - 7) + b"</a>" if self.signed == "cut" else b"x" * self.payload
        if self.many:
            adapter.publish_many(registration, ((metadata, payload) for metadata in documents))
            return
        begin = time.perf_counter()
        for at, metadata in enumerate(documents):
            if self.rate and (left := begin + at / self.rate - time.perf_counter()) > 0:
                time.sleep(left)
            adapter.publish(registration, metadata, payload)


def measure(case: Case, tls: TlsSection | None = None, watch: Watch = lambda _: nullcontext()) -> dict[str, Any]:
    """A row: the case in a federation of its own, in clear or with `tls`."""
    folder = tempfile.TemporaryDirectory(prefix="jbi-archive-")
    archive = folder.name if case.archived else ""
    federation = Federation(tls or TlsSection(), keeps=case.keeps, signed=case.signed, qos=case.qos, archive=archive)
    out: Any = multiprocessing.Queue()
    config = federation.config(case.bound, blocks=case.blocks)
    wanted = "//a" if case.signed == "cut" else None
    arguments = [(config, *share, out, wanted) for share in case.subscribers()]
    processes = [multiprocessing.Process(target=subscribe, args=given, daemon=True) for given in arguments]
    try:
        for process in processes:
            process.start()
        with PublisherAdapterLight(config) as adapter:
            _await(out, "ready", len(processes))
            delegate = adapter.connect_to_delegate("bench", "here")
            registration = adapter.register_publisher(
                delegate, DATA / "Intel_Imagery.xsd", METADATA, persist=case.archived or None
            )
            _await(out, "matched", len(processes))
            pids = [process.pid or 0 for process in processes]
            taking, stopped = pids[: case.processes], pids[case.processes :]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            documents = case.documents()
            pad = federation.pad.pid
            parties = {"publisher": [os.getpid()], "delegate": [pad], "subscribers": taking}
            with watch({**parties, "lookup": [federation.lookup.pid]}):
                cpu, memory, begin = (time.process_time(), cpu_seconds(pad)), megabytes(pad), time.time()
                case.publish_all(adapter, registration, documents)
                published = time.time() - begin
                ends = [out.get(timeout=240) for _ in taking]
                spent = {"publisher": time.process_time() - cpu[0], "delegate": cpu_seconds(pad) - cpu[1]}
                grown = megabytes(pad) - memory
    finally:
        for process in processes:
            process.kill()
        federation.close()
        folder.cleanup()
    took = max(end[0] for end in ends) - begin
    shares = {name: seconds / took for name, seconds in spent.items()} | {"subscriber": max(e[3] for e in ends) / took}
    busiest = max(shares, key=lambda name: shares[name])
    deliveries = sum(expected for _, expected in case.subscribers()[: case.processes])
    return {
        "objects": case.count,
        "delegate us": round(spent["delegate"] / case.count * 1e6, 1),
        "objects/s": round(case.count / took),
        "publish/s": round(case.count / published),
        "MB/s": round(case.count * case.payload / took / 1e6, 1),
        "deliveries/s": round(deliveries / took),
        "CPU us": round((sum(spent.values()) + sum(end[3] for end in ends)) / case.count * 1e6, 1),
        "busiest": f"{busiest} {shares[busiest]:.0%}",
        "p50 ms": round(statistics.median(end[1] for end in ends) * 1e3, 2),
        "p99 ms": round(max(end[2] for end in ends) * 1e3, 2),
        "delegate MB": round(grown, 1),
    }


def _await(out: Any, word: str, count: int) -> None:
    for _ in range(count):
        said = out.get(timeout=60)
        assert said == word, said


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


SMALL, KILO, LARGE, HUGE = 100, 1 << 10, 64 << 10, 1 << 20
CASES = {
    "100 B, one by one calls": Case(80_000, SMALL),
    "100 B, publish_many": Case(80_000, SMALL, many=True),
    "100 B, same metadata": Case(80_000, SMALL, vary=False),
    "1 KB, predicate": Case(20_000, KILO, KABUL),
    "1 KB, predicate, archived": Case(20_000, KILO, KABUL, archived=True),
    "1 KB, predicate, with QoS": Case(20_000, KILO, KABUL, qos=True),
    "64 KB": Case(6_000, LARGE),
    "1 MB": Case(600, HUGE),
    "1 KB, all match: 10 in 1 process": Case(5_000, KILO, KABUL, each=10),
    "1 KB, all match: 10 in 2 processes": Case(5_000, KILO, KABUL, processes=2, each=5),
    "1 KB, all match: 10 in 10 processes": Case(5_000, KILO, KABUL, processes=10),
    "12,500/s: 1 in 1 process": Case(25_000, KILO, own=True, rate=12_500),
    "12,500/s: 1 in 1 process, with QoS": Case(25_000, KILO, own=True, rate=12_500, qos=True),
    "12,500/s: 10 in 2 processes": Case(25_000, KILO, own=True, rate=12_500, processes=2, each=5),
    "12,500/s: 100 in 2 processes": Case(25_000, KILO, own=True, rate=12_500, processes=2, each=50),
    "300/s": Case(900, KILO, KABUL, rate=300),
    "300/s, archived": Case(900, KILO, KABUL, rate=300, archived=True),
    "5,000/s, none stopped": Case(15_000, KILO, rate=5_000, bound=BOUND, keeps=False),
    "1 stopped, its queue a tenth full": Case(BOUND // 10, KILO, rate=5_000, stopped=1, bound=BOUND, keeps=False),
    "1 stopped, its queue at the bound": Case(15_000, KILO, rate=5_000, stopped=1, bound=BOUND, keeps=False),
}
SECURED = {
    "TLS, 1 KB, predicate": Case(10_000, KILO, KABUL),
    "TLS, 64 KB": Case(3_000, LARGE),
    "TLS, 1 MB": Case(300, HUGE),
    "TLS, 1 KB, nothing signed": Case(10_000, KILO),
    "TLS, 1 KB, signed": Case(10_000, KILO, signed="sign"),
    "TLS, 1 KB, signed and verified": Case(10_000, KILO, signed="require"),
    "TLS, 1 KB, signed, verified and cut": Case(10_000, KILO, signed="cut"),
    "TLS, 64 KB, nothing signed": Case(3_000, LARGE),
    "TLS, 64 KB, signed": Case(3_000, LARGE, signed="sign"),
    "TLS, 64 KB, signed and verified": Case(3_000, LARGE, signed="require"),
}


def rows(scale: float, only: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """All measurements whose name contains `only`; rows about a bound are never scaled."""
    for cases, section in ((CASES, nullcontext(None)), (SECURED, authority())):
        chosen = {name: case for name, case in cases.items() if only in name}
        if not chosen:
            continue
        with section as tls:
            for name, case in chosen.items():
                count = case.count if case.bound == BOUND else max(10 * LOOK, int(case.count * scale))
                yield name, measure(replace(case, count=count), tls)


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of objects")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    found = {}
    for name, row in rows(options.scale, options.only):
        if not options.json:
            if not found:
                print(f"{'':36}" + "".join(f"{column:>14}" for column in row) + f"{'ratio':>8}")
            base = next(iter(found.values()), row)["objects/s"]
            cells = "".join(f"{cell:>14,}" if not isinstance(cell, str) else f"{cell:>14}" for cell in row.values())
            print(f"{name:36}{cells}{row['objects/s'] / base:>8.2f}", flush=True)
        found[name] = row
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
