"""A node as its clients meet it: over loopback, a process for each party, with what it is held against in the same run.

    python benchmarks/node.py through [--rounds 3] [--scale 1] [--sizes 1,64] [--ways socket,call,adapter,capi]
    python benchmarks/node.py idle [--seconds 15] [--limit 256]
    python benchmarks/node.py clients [--seconds 8] [--rate 500] [--rounds 3]
    python benchmarks/node.py http [--seconds 3] [--rounds 3]
    python benchmarks/node.py failover [--rounds 3]
    python benchmarks/node.py query [--objects 100000] [--rounds 5]
    python benchmarks/node.py churn [--connections 2000] [--queries 0] [--rounds 4]
    python benchmarks/node.py bridge [--rounds 3] [--objects 10000]

`--json` gives a line of JSON for each row. Others may use the machine as well: what is compared is measured by turns,
`--rounds` times, and medians are told; CPU us are of all parties together, an object, and steadier than rates.

- `through`: from client to client. *plain*: the document of figure 1, at another position in each object, one
  subscription without a predicate, which is read in turn. *ugly*: with a comment of another length in Cyrillic, ten
  subscriptions with callbacks and predicates over what the platform and the client say, one of them true. `socket`
  sends the same bytes over one TCP connection, an object with each call; `call` has a broker that is called with each
  object, and calls the subscriber with it (rpyc, with which an application would do it); `adapter` and `capi` go
  through a node with all parts. "by adapter" is the median of the rounds' ratios.
- `idle`: memory and processor time of a node that nobody uses; `together` counts what its processes share once. Then
  one in a memory cgroup of `--limit` MB, under load: what it has needed, and whether it was killed.
- `clients`: publishing to receiving, with 5 and with 50 client processes at the same deliveries a second in all, and
  with 5 beside which one sleeps in its callback, its queue filled up or not. *plain*: one object after the other;
  *ugly*: twenty at once, of 16 KB.
- `http`: one client publishes 1 KB objects through a gateway, one a request; and by the adapter.
- `failover`: a client publishes reliably, its node is killed by SIGKILL, another one is there: seconds until the next
  publication has come, and objects that were lost or came twice.
- `query`: a query sequence beside `open_query` of the adapter, of an archive with so many objects.
- `churn`: memory of the node while connections come, publish one object and go, or queries are asked.
- `bridge`: what two nodes and a bridge make of what one node does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import queue
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub import Config, PublisherAdapterLight, SubscriberAdapter
from jbi_pubsub.capi import ConnectionManager
from jbi_pubsub.core.config import LeaseSection, LookupSection, QueueSection
from jbi_pubsub.core.errors import JbiError

DATA: Final = Path(__file__).parent.parent / "examples" / "data" / "intel_imagery"
SCHEMA, METADATA = DATA / "Intel_Imagery.xsd", (DATA / "fig1.xml").read_bytes()
LATITUDE: Final = "//LocationCoord/lat"
QUIET: Final = ("--set", "node.events=false", "--set", "node.statistics_seconds=0")
TYPE: Final = "mil.af.rl.jbi.Intel_Imagery"
PREDICATE: Final = (
    "<predicate><predicateName>benchmark</predicateName><predicateType>XPath</predicateType>"
    "<predicateInstance>{}</predicateInstance></predicate>"
)
GROUP: Final = "bench-node"
WARM: Final = 200
"""Objects that go before those that count."""
WAIT: Final = 300.0
LEASE: Final = 4.0
"""Of the clients of a node that is killed."""

Row = dict[str, Any]


@contextmanager
def command(*words: str, group: int | None = None) -> Iterator[dict[str, Any]]:
    """A `jbi` command: what it says when it is ready. `group`: a cgroup's file of processes."""

    def enter() -> None:
        if group is not None:
            os.write(group, str(os.getpid()).encode())

    process = subprocess.Popen(
        [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "--group", GROUP, "--set", "lookup.port=0", *words],
        stdout=subprocess.PIPE, preexec_fn=enter,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield {"pid": process.pid, **json.loads(process.stdout.readline())}
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def node(*flags: str, name: str = "bench", group: int | None = None) -> Iterator[tuple[dict[str, Any], float]]:
    """A node in a folder of its own: what it says when it is ready, and after how many seconds."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        words = (*flags, "--set", "log.level=error", "node", "start", "--folder", folder, "--name", name, "--json")
        with command(*words, group=group) as ready:
            yield ready, time.monotonic() - began


def client_of(*lookups: str, bound: int = 200_000, blocks: bool = False, lease: float = 30.0) -> Config:
    """Of whoever uses the node; `blocks`: a full queue holds publishers up."""
    return Config(
        lookup=LookupSection(locators=lookups, groups=(GROUP,), multicast=False, timeout=30.0),
        queue=QueueSection(
            bound=bound, publish_seconds=60.0, policy="block" if blocks else "drop_oldest", block_seconds=60.0
        ),
        lease=LeaseSection(publisher=lease, subscriber=lease, lookup=30.0),
    )


# -- processes ------------------------------------------------------------------------------------------------------


def family(pid: int) -> list[int]:
    """A process and those that it has started."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        children = task / "children"
        for child in children.read_text().split() if children.exists() else ():
            found += family(int(child))
    return found


def lasting(pid: int) -> list[int]:
    """A node and its archive's worker; what looks at a schema comes and goes."""
    words = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in family(pid)}
    return [each for each, line in words.items() if each == pid or b"archive.worker" in line]


def memory(pid: int) -> tuple[float, float]:
    """RSS and PSS in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    told = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return told["Rss:"], told["Pss:"]


def together(pids: Sequence[int]) -> float:
    """MB that some processes have: what they map of the same file is counted once, whoever else has it as well."""
    anonymous, files = 0, Counter[str]()
    for pid in pids:
        mapped, name = Counter[str](), ""
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            if (found := re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) *(.*)", line)) is not None:
                name = found[2] if found[1] != "0" else ""
            elif line.startswith("Rss:"):
                mapped[name] += int(line.split()[1])
            elif line.startswith("Anonymous:") and name:  # written since
                mapped[name] -= int(line.split()[1])
                mapped[""] += int(line.split()[1])
        anonymous += mapped.pop("", 0)
        files |= mapped
    return (anonymous + files.total()) / 1024


def cpu(*pids: int) -> float:
    """Seconds of the processor."""
    used = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        used += int(words[11]) + int(words[12])
    return used / os.sysconf("SC_CLK_TCK")


def datagram_sockets(pids: Sequence[int]) -> int:
    """UDP sockets of some processes."""
    tables = (Path(f"/proc/{pids[0]}/net/{name}") for name in ("udp", "udp6"))
    theirs = {line.split()[9] for table in tables for line in table.read_text().splitlines()[1:]}
    found = 0
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found += str(fd.readlink()).removeprefix("socket:[").removesuffix("]") in theirs
    return found


# -- through a node -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workload:
    """What is published, and for whom."""

    size: int
    is_ugly: bool = False

    def documents(self, count: int) -> list[bytes]:
        """Metadata, the position another one in each."""
        made = (METADATA.replace(b"<lat>33.34<", b"<lat>33.%06d<" % (at * 7_919 % 400_000)) for at in range(count))
        if not self.is_ugly:
            return list(made)
        return [
            each.replace(b"<ImageDescriptor>", f"<!--{'Заметка ' * (at % 40)}--><ImageDescriptor>".encode(), 1)
            for at, each in enumerate(made)
        ]

    def predicates(self) -> list[str]:
        """Of its subscriptions; one of them is true."""
        if not self.is_ugly:
            return [""]
        return [f"{LATITUDE}>={33 if at == 0 else 80 + at} and //og:PayloadLength>{self.size // 2}" for at in range(10)]


Arrived = Callable[..., object]


@contextmanager
def subscribed(
    way: str, config: Config, predicates: Sequence[str], arrived: Arrived | None
) -> Iterator[Callable[[], object]]:
    """Subscriptions of the adapter or of CAPI: how to take the next object of the first, if nobody is told of it."""
    if way == "capi":
        connection = connected(config, "subscriber")
        sequences = []
        for predicate in predicates:
            sequence = connection.createSubscriberSequence(TYPE, "1.0")
            if predicate:
                sequence.setSequencePredicate(PREDICATE.format(predicate.replace(">", "&gt;")))
            if arrived is not None:
                sequence.setSequenceCallback(Callback(arrived))
            sequence.activateSequence()
            sequences.append(sequence)
        first = sequences[0]
        yield lambda: first.getNext(WAIT * 1000)
        connection.disconnect()
        return
    with SubscriberAdapter(config) as adapter:
        uids = [
            adapter.register_subscriber(
                type_name=TYPE, predicate=predicate or None, view="combined",
                listener=None if arrived is None else lambda _uid, obj: arrived(obj),
            )
            for predicate in predicates
        ]  # fmt: skip
        yield lambda: adapter.receive(uids[0], WAIT)


class Callback:
    """Of a subscriber sequence."""

    def __init__(self, arrived: Arrived) -> None:
        self.infoObjectAvailable = arrived


def connected(config: Config, name: str) -> Any:
    """A connection of CAPI."""
    connection = ConnectionManager(config).createConnection(name)
    connection.connect()
    return connection


def take(way: str, place: Any, case: Workload, count: int, told: Any) -> None:
    """The subscriber's process: tells when it is there, when it is warm, and when it has all, with its CPU seconds."""
    if way in ("socket", "call"):
        {"socket": take_socket, "call": take_calls}[way](place, case, count, told)
        return
    if not case.is_ugly:
        with subscribed(way, place, case.predicates(), None) as following:
            told.put("ready")
            count_with(following, count, told)
        return
    arrivals = Arrivals(count, told)
    with subscribed(way, place, case.predicates(), arrivals.arrived):
        told.put("ready")
        assert arrivals.done.wait(WAIT)


def count_with(following: Callable[[], object], count: int, told: Any) -> None:
    """Take all objects."""
    for _ in range(WARM):
        assert following() is not None
    told.put("warm")
    used = time.process_time()
    for _ in range(count):
        assert following() is not None
    told.put((time.time(), time.process_time() - used))


class Arrivals:
    """Counts calls as `count_with` does."""

    def __init__(self, count: int, told: Any) -> None:
        self.done = threading.Event()
        self._number = 0
        self._count = count
        self._told = told
        self._used = 0.0

    def arrived(self, *_: object) -> None:
        """One more; one call after the other, as one subscription alone gets objects."""
        self._number += 1
        if self._number == WARM:
            self._told.put("warm")
            self._used = time.process_time()
        elif self._number == WARM + self._count:
            self._told.put((time.time(), time.process_time() - self._used))
            self.done.set()


def take_socket(_place: Any, case: Workload, count: int, told: Any) -> None:
    """All bytes of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        told.put(server.getsockname()[1])
        peer, _ = server.accept()
        buffer = bytearray(1 << 20)

        def read(size: int) -> None:
            while size:
                got = peer.recv_into(buffer, min(size, len(buffer)))
                assert got, "the publisher has gone"
                size -= got

        with peer:
            documents = case.documents(WARM + count)
            read(sum(len(each) + case.size for each in documents[:WARM]))
            told.put("warm")
            used = time.process_time()
            read(sum(len(each) + case.size for each in documents[WARM:]))
            told.put((time.time(), time.process_time() - used))


def called(port: int) -> Any:
    """A connection to the broker, as quick as rpyc has it: nothing waits, nothing is compressed."""
    import rpyc
    from rpyc.core.channel import Channel
    from rpyc.core.stream import SocketStream

    Channel.COMPRESSION_THRESHOLD = 1 << 30
    return rpyc.connect_stream(SocketStream.connect("127.0.0.1", port, nodelay=True))


def broker(told: Any) -> None:
    """A process that calls whoever has subscribed with each object that it is called with."""
    import rpyc
    from rpyc.core.channel import Channel
    from rpyc.utils.server import ThreadedServer

    Channel.COMPRESSION_THRESHOLD = 1 << 30
    subscribers: list[Any] = []

    class Broker(rpyc.Service):  # type: ignore[misc]  # it has no types
        """What is exposed."""

        def on_connect(self, connection: Any) -> None:
            """Answers go at once."""
            connection._channel.stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exposed_subscribe(self, callback: Any) -> None:
            """Be called."""
            subscribers.append(callback)

        def exposed_publish(self, type_: str, version: str, metadata: bytes, payload: bytes) -> None:
            """Tell all."""
            for each in subscribers:
                each(type_, version, metadata, payload)

    server = ThreadedServer(Broker, hostname="127.0.0.1", port=0)
    told.put(server.port)
    server.start()


def take_calls(port: Any, _case: Workload, count: int, told: Any) -> None:
    """Be called by the broker."""
    arrivals = Arrivals(count, told)
    connection = called(port)
    connection.root.subscribe(arrivals.arrived)
    told.put("ready")
    while not arrivals.done.is_set():
        connection.serve(1.0)


@contextmanager
def publishing(way: str, place: Any) -> Iterator[tuple[Callable[[Any, bytes], object], Callable[[], object]]]:
    """How to publish an object, and to wait until all are taken."""
    if way == "socket":
        with socket.create_connection(("127.0.0.1", place)) as raw:
            yield lambda metadata, payload: raw.sendall(metadata + payload), lambda: None
    elif way == "call":
        connection = called(place)
        publish = connection.root.publish
        yield lambda metadata, payload: publish(TYPE, "1.0", metadata, payload), lambda: None
        connection.close()
    elif way == "capi":
        client = connected(place, "publisher")
        sequence = client.createPublisherSequence(TYPE, "1.0")
        sequence.setInvariantsAttribute(METADATA.decode())
        sequence.activateSequence()
        made = client.createInfoObject
        yield (
            lambda metadata, payload: sequence.publishInfoObject(made(TYPE, "1.0", payload, metadata)),
            lambda: client.destroySequence(sequence),
        )
        client.disconnect()
    else:
        with PublisherAdapterLight(place) as publisher:
            at = publisher.connect_to_delegate("node", "bench")
            uid = publisher.register_publisher(at, SCHEMA, METADATA)
            yield lambda metadata, payload: publisher.publish(uid, metadata, payload), lambda: publisher.flush(WAIT)


def run(way: str, case: Workload, count: int) -> Row:
    """One way, once: objects a second, and CPU us an object of all parties."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    with ExitStack() as stack:
        servers: list[int] = []
        place: Any = None
        if way == "call":
            place, pid = started(stack, context, broker, (told,), told)
            servers = [pid]
        elif way != "socket":
            ready, _ = stack.enter_context(node(*QUIET))
            place, servers = client_of(ready["lookup"]), lasting(ready["pid"])
            publisher = stack.enter_context(PublisherAdapterLight(place))
            publisher.register_publisher(publisher.connect_to_delegate("node", "bench"), SCHEMA, METADATA)
        said, _ = started(stack, context, take, (way, place, case, count, told), told)
        documents: list[Any] = case.documents(WARM + count)
        if way == "capi":
            documents = [each.decode() for each in documents]
        payload = os.urandom(case.size)
        with publishing(way, said if way == "socket" else place) as (publish, flush):
            for each in documents[:WARM]:
                publish(each, payload)
            assert told.get(timeout=WAIT) == "warm"
            began, ours, theirs = time.time(), time.process_time(), cpu(*servers)
            for each in documents[WARM:]:
                publish(each, payload)
            flush()
            ended, used = told.get(timeout=WAIT)
            mine, servings = time.process_time() - ours, cpu(*servers) - theirs
    took = ended - began
    return {
        "objects/s": count / took,
        "MB/s": count * case.size / took / 1e6,
        "CPU us": (mine + servings + used) / count * 1e6,
        "publisher us": mine / count * 1e6,
        "node us": servings / count * 1e6,
        "subscriber us": used / count * 1e6,
    }


def started(
    stack: ExitStack, context: Any, does: Callable[..., object], given: tuple[Any, ...], told: Any
) -> tuple[Any, int]:
    """A process: the first that it says, and its number."""
    process = context.Process(target=does, args=given, daemon=True)
    process.start()
    stack.callback(process.join, 10)
    stack.callback(process.kill)
    return told.get(timeout=WAIT), process.pid


COUNTS: Final = {"socket": 40_000, "call": 1_000, "adapter": 20_000, "capi": 20_000}
"""Objects of 1 KB; of 64 KB a quarter."""


def through(rounds: int, scale: float, sizes: str, ways: str) -> Iterator[Row]:
    """From client to client."""
    for kilobytes, is_ugly in itertools.product(map(int, sizes.split(",")), (False, True)):
        case = Workload(kilobytes << 10, is_ugly)
        found: dict[str, list[Row]] = {way: [] for way in ways.split(",")}
        for _ in range(rounds):
            for way, rows in found.items():
                rows.append(run(way, case, int(COUNTS[way] * scale / (1 if kilobytes < 16 else 4))))
        for way, rows in found.items():
            yield {
                "what": f"{kilobytes} KB, {'ugly' if is_ugly else 'plain'}: {way}",
                **{name: rounded(statistics.median(row[name] for row in rows)) for name in rows[0]},
                "by adapter": by(rows, found.get("adapter"), "objects/s"),
                "CPU by adapter": by(rows, found.get("adapter"), "CPU us"),
                "by call": by(rows, found.get("call"), "objects/s"),
                "by socket": by(rows, found.get("socket"), "objects/s"),
            }


def rounded(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def by(rows: Sequence[Row], others: Sequence[Row] | None, name: str) -> float | None:
    """The median of what each round's is, divided by the same of the others."""
    if not others:
        return None
    return rounded(statistics.median(row[name] / other[name] for row, other in zip(rows, others, strict=True)))


# -- what it takes --------------------------------------------------------------------------------------------------


def idle(seconds: float, limit: int) -> Iterator[Row]:
    """What a node takes that nobody uses, and one under load in `limit` MB."""
    for what, flags in (
        ("all parts", ()),
        ("archive.workers = 0", ("--set", "archive.workers=0")),
        ("without archive", ("--set", "node.archive=false")),
        ("without archive, nothing told", ("--set", "node.archive=false", *QUIET)),
    ):
        with node(*flags) as (ready, after):
            time.sleep(5.0)
            there = lasting(ready["pid"])
            before = cpu(*there)
            time.sleep(seconds)
            used = (cpu(*there) - before) / seconds * 100
            yield {
                "what": what, "ready s": round(after, 2), "RSS MB": sizes_of(there),
                "together MB": round(together(there)), "CPU %": round(used, 2),
            }  # fmt: skip
    for what, flags in (("all parts", ()), ("small", SMALL)):
        for large in (0, 100):
            yield within(limit, what, flags, large)


SMALL: Final = (
    "--set", "archive.workers=0", "--set", f"archive.memory={64 << 20}", "--set", f"pad.keep_bytes={8 << 20}",
    "--set", f"pad.max_queued_bytes={32 << 20}",
)  # fmt: skip
"""Settings for a small machine."""


def sizes_of(pids: Sequence[int]) -> str:
    """RSS of each."""
    return " + ".join(str(round(memory(pid)[0])) for pid in pids)


def within(limit: int, what: str, flags: tuple[str, ...], large: int) -> Row:
    """A node in a memory cgroup, under load: 20,000 archived objects of 1 KB, so many of a megabyte, 200 queries."""
    row: Row = {"what": f"{what}, {20_000:,} of 1 KB, {large} of 1 MB, in {limit} MB"}
    try:
        group = Cgroup(limit)
    except OSError as exc:
        return row | {"RSS MB": f"this system lets us make no memory cgroup: {exc}"}
    with group, node(*QUIET, *flags, group=group.processes) as (ready, after):
        row |= {"ready s": round(after, 2), "RSS MB": "", "together MB": "", "peak MB": limit, "killed": 0}
        config = client_of(ready["lookup"], blocks=True)
        try:
            with PublisherAdapterLight(config) as publisher, SubscriberAdapter(config) as subscriber:
                at = publisher.connect_to_delegate("node", "bench")
                uid = publisher.register_publisher(at, SCHEMA, METADATA, persist=True)
                live = subscriber.register_subscriber(type_name=TYPE)
                subscriber.wait_matched(live, 1, 30)
                documents, payload = Workload(1024).documents(20_000), os.urandom(1024)
                publisher.publish_many(uid, ((each, payload) for each in documents), timeout=WAIT)
                publisher.publish_many(uid, ((each, os.urandom(1 << 20)) for each in documents[:large]), timeout=WAIT)
                publisher.flush(WAIT)
                came = sum(subscriber.receive(live, 60.0) is not None for _ in range(20_000 + large))
                hits = sum(
                    len(list(subscriber.query(TYPE, predicate=f"{LATITUDE}=33.{at * 7_919 % 400_000:06d}")))
                    for at in range(200)
                )
        except JbiError:
            if not group.killed():
                raise
            return row | {"killed": group.killed()}
        there = lasting(ready["pid"])
        return row | {
            "ready s": round(after, 2), "RSS MB": sizes_of(there), "together MB": round(together(there)),
            "peak MB": round(group.peak() / (1 << 20)), "killed": group.killed(), "received": came, "hits": hits,
        }  # fmt: skip


class Cgroup:
    """A memory cgroup (version 1 or 2) below that of this process, of `limit` MB."""

    def __init__(self, limit: int) -> None:
        """Raises OSError where that may not be done."""
        lines = [line.strip().split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        self._is_first = next((path for _, name, path in lines if name == "memory"), None)
        path = self._is_first if self._is_first is not None else next(path for at, _, path in lines if at == "0")
        top = Path("/sys/fs/cgroup/memory" if self._is_first is not None else "/sys/fs/cgroup")
        self._folder = top / path.lstrip("/") / f"jbi-node-bench-{os.getpid()}"
        self._folder.mkdir()
        try:
            name = "memory.limit_in_bytes" if self._is_first is not None else "memory.max"
            (self._folder / name).write_text(str(limit << 20))
            self.processes = os.open(self._folder / "cgroup.procs", os.O_WRONLY)
        except OSError:
            self._folder.rmdir()
            raise

    def peak(self) -> int:
        """Bytes, with the pages of files that it has read and written."""
        name = "memory.max_usage_in_bytes" if self._is_first is not None else "memory.peak"
        return int((self._folder / name).read_text())

    def killed(self) -> int:
        """Processes that the system has killed for want of memory."""
        name = "memory.oom_control" if self._is_first is not None else "memory.events"
        return int(dict(line.split() for line in (self._folder / name).read_text().splitlines())["oom_kill"])

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.processes)
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline and (self._folder / "cgroup.procs").read_text():
            time.sleep(0.1)
        self._folder.rmdir()


# -- many clients ---------------------------------------------------------------------------------------------------


def subscribe(lookup: str, bound: int, sleeps: bool, ready: Any, stop: Any, told: Any) -> None:
    """A process with a subscription: the delays of what it got, in seconds."""
    delays: list[float] = []

    def listener(_uid: Any, obj: Any) -> None:
        delays.append(time.time() - obj.platform.published)
        if sleeps:
            time.sleep(600.0)

    with SubscriberAdapter(client_of(lookup, bound=bound)) as adapter:
        adapter.wait_matched(adapter.register_subscriber(type_name=TYPE, listener=listener), 1, 30.0)
        ready.release()
        stop.wait()
        told.put([] if sleeps else delays)
        if sleeps:
            told.close()
            told.join_thread()
            os._exit(0)  # it sleeps


PARTIES: Final = {
    "5 clients": (5, 0, 10_000),
    "50 clients": (50, 0, 10_000),
    "5 clients and one sleeps": (5, 1, 10_000),
    "5 clients and one sleeps, its queue full": (5, 1, 50),
}
"""Clients, sleeping ones, and what may wait for each of these."""


def clients(seconds: float, rate: float, rounds: int) -> Iterator[Row]:
    """Delays at `rate` deliveries a second in all."""
    for is_ugly in (False, True):
        found: dict[str, list[Row]] = {what: [] for what in PARTIES}
        for _ in range(rounds):
            for what, (awake, asleep, bound) in PARTIES.items():
                found[what].append(party(awake, asleep, bound, seconds, rate, is_ugly))
        for what, rows in found.items():
            yield {
                "what": f"{what}, {'ugly' if is_ugly else 'plain'}",
                **{name: rounded(statistics.median(row[name] for row in rows)) for name in rows[0]},
                "p50 by 5": by(rows, found["5 clients"], "p50 ms"),
                "p99 by 5": by(rows, found["5 clients"], "p99 ms"),
            }


def party(awake: int, asleep: int, bound: int, seconds: float, rate: float, is_ugly: bool) -> Row:
    """So many clients, once."""
    context = multiprocessing.get_context("spawn")
    burst, payload = (20, os.urandom(16 << 10)) if is_ugly else (1, os.urandom(1024))
    with ExitStack() as stack:
        ready, _ = stack.enter_context(node(*QUIET, "--set", "node.archive=false"))
        stood, stop, told = context.Semaphore(0), context.Event(), context.Queue()
        publisher = stack.enter_context(PublisherAdapterLight(client_of(ready["lookup"])))
        at = publisher.connect_to_delegate("node", "bench")
        registration = publisher.register_publisher(at, SCHEMA, METADATA)
        there = [
            context.Process(
                target=subscribe,
                args=(ready["lookup"], bound if number < asleep else 10_000, number < asleep, stood, stop, told),
                daemon=True,
            )
            for number in range(awake + asleep)
        ]
        for each in there:
            each.start()
            stack.callback(each.kill)
        for _ in there:
            assert stood.acquire(timeout=120)
        sockets = datagram_sockets([*lasting(ready["pid"]), *(each.pid or 0 for each in there)])
        documents = Workload(1024, is_ugly).documents(1_000)
        used, began, sent = cpu(ready["pid"]), time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            if (left := sent * awake / rate - now) > 0:
                time.sleep(left)
                continue
            for _ in range(burst):
                publisher.publish(registration, documents[sent % 1_000], payload)
                sent += 1
        publisher.flush()
        time.sleep(1.0)
        used = cpu(ready["pid"]) - used
        stop.set()
        delays: list[float] = []
        for _ in there:
            with suppress(queue.Empty):
                delays += told.get(timeout=60)
        for each in there:
            each.join(30)
    cuts = statistics.quantiles(delays, n=100)
    return {
        "sent": sent, "missing": sent * awake - len(delays), "p50 ms": cuts[49] * 1000, "p99 ms": cuts[98] * 1000,
        "node us a delivery": used / len(delays) * 1e6, "UDP sockets": sockets,
    }  # fmt: skip


def http(seconds: float, rounds: int) -> Iterator[Row]:
    """One client publishes over a gateway."""
    import gateway

    with node(*QUIET) as (ready, _), command("--locator", ready["lookup"], "gateway", "--port", "0", "--json") as facts:
        port = int(facts["url"].rpartition(":")[2])
        rows: dict[str, list[Row]] = {"1 KB, one a request": [], "1 KB, fifty a request": [], "adapter": []}
        for _ in range(rounds):
            for what, count in (("1 KB, one a request", 1), ("1 KB, fifty a request", 50)):
                rate, cost, refused = gateway.over_http(port, facts["pid"], seconds, count)
                rows[what].append({"objects/s": rate, "gateway us": cost, "told 429": refused})
            rate = gateway.by_adapter(client_of(ready["lookup"]), seconds)
            rows["adapter"].append({"objects/s": rate, "gateway us": 0.0, "told 429": 0})
        for what, found in rows.items():
            yield {
                "what": what, **{name: rounded(statistics.median(row[name] for row in found)) for name in found[0]},
                "by adapter": by(found, rows["adapter"], "objects/s"),
            }  # fmt: skip


# -- faults ---------------------------------------------------------------------------------------------------------


def note(config: Config, ready: Any, stop: Any, told: Any) -> None:
    """A subscriber's process: number and time of all that comes, and what was lost."""
    came: list[tuple[int, float]] = []
    lost: Counter[str] = Counter()

    class Listener:
        """Of the sequence."""

        def infoObjectAvailable(self, io: Any) -> None:  # noqa: N802  # the API's word
            came.append((int.from_bytes(io.getPayload()[:8]), time.time()))

        def infoObjectsLost(self, cause: str, count: int) -> None:  # noqa: N802
            lost[cause] += count or 1

    connection = connected(config, "subscriber")
    sequence = connection.createSubscriberSequence("bench.Failover", "1.0")
    sequence.setSequenceCallback(Listener())
    sequence.activateSequence()
    ready.release()
    stop.wait()
    told.put((came, dict(lost)))


def failover(rounds: int) -> Iterator[Row]:
    """A node is killed by SIGKILL while a client publishes."""
    for what, size, rate in (("1 KB, 1,000/s", 1 << 10, 1_000), ("64 KB, as fast as they are taken", 64 << 10, 0)):
        found = [killed(size, rate) for _ in range(rounds)]
        yield {
            "what": what, "published": sum(row["published"] for row in found),
            "again s": rounded(statistics.median(row["again s"] for row in found)),
            "most s": rounded(max(row["again s"] for row in found)),
            "lost": sum(row["lost"] for row in found), "twice": sum(row["twice"] for row in found),
            "told": " ".join(row["told"] for row in found),
        }  # fmt: skip


def killed(size: int, rate: float) -> Row:
    """Once: two nodes that are found by one lookup service."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        lookup = stack.enter_context(command("lookup", "--port", "0", "--json"))["address"]
        joined = ("--locator", lookup, "--set", "node.lookup=join", "--set", "node.archive=false", *QUIET)
        nodes = [stack.enter_context(node(*joined, name=name))[0] for name in ("one", "other")]
        ready, stop, told = context.Semaphore(0), context.Event(), context.Queue()
        config = client_of(lookup, bound=1_000, blocks=True, lease=LEASE)
        process = context.Process(target=note, args=(config, ready, stop, told), daemon=True)
        process.start()
        stack.callback(process.kill)
        assert ready.acquire(timeout=60)
        client = connected(config, "publisher")
        sequence = client.createPublisherSequence("bench.Failover", "1.0")
        sequence.setReliableDeliveryAttribute(True, 0)
        sequence.activateSequence()
        (victim,) = [each for each in nodes if each["address"] in client.node_addresses()]
        body, count = os.urandom(size - 8), 0
        time.sleep(1.0)  # the subscriber is at both

        def publish(seconds: float) -> int:
            """So long, from the next number on; the number behind the last."""
            began, number = time.monotonic(), count
            while (now := time.monotonic() - began) < seconds:
                if rate and (left := (number - count) / rate - now) > 0:
                    time.sleep(left)
                    continue
                data = number.to_bytes(8) + body
                sequence.publishInfoObject(client.createInfoObject("bench.Failover", "1.0", data, "<a/>"))
                number += 1
            return number

        before = count = publish(1.5)
        os.kill(victim["pid"], signal.SIGKILL)
        at, count = time.time(), publish(3.0)
        client.destroySequence(sequence)
        time.sleep(LEASE + 2.0)  # until it is known that the node is gone
        stop.set()
        came, lost = told.get(timeout=60)
        client.disconnect()
    seen = Counter(number for number, _ in came)
    return {
        "published": count, "again s": min(when for number, when in came if number >= before) - at,
        "lost": len(set(range(count)) - set(seen)), "twice": sum(each - 1 for each in seen.values()),
        "told": json.dumps(lost),
    }  # fmt: skip


# -- the archive ----------------------------------------------------------------------------------------------------


def rest(pids: Sequence[int]) -> None:
    """Wait until some processes spend nothing."""
    deadline, spent = time.monotonic() + 900.0, -1.0
    while (now := cpu(*pids)) > spent + 0.02:
        assert time.monotonic() < deadline, "they do not come to rest"
        spent = now
        time.sleep(1.0)


def query(objects: int, rounds: int) -> Iterator[Row]:
    """A query sequence beside the adapter's query."""
    rare = 33 + 0.4 * 1_000 / objects
    questions = {
        "1 hit": f"{LATITUDE}=33.{7_919 * 5 % 400_000:06d}",
        "1,000 hits": f"{LATITUDE}<{rare:.6f}",
        "1,000 hits, ugly: both parts": f"{LATITUDE}<{rare:.6f} and //og:PayloadLength>100",
        "1,000 hits, ugly: nothing to go by": f"number(concat({LATITUDE},''))<{rare:.6f}",
    }
    with node(*QUIET) as (ready, _):
        config, servers = client_of(ready["lookup"]), lasting(ready["pid"])
        with PublisherAdapterLight(config) as publisher:
            at = publisher.connect_to_delegate("node", "bench")
            uid = publisher.register_publisher(at, SCHEMA, METADATA, persist=True)
            documents, payload = Workload(1024).documents(min(objects, 400_000)), os.urandom(1024)
            again = itertools.islice(itertools.cycle(documents), objects)
            publisher.publish_many(uid, ((each, payload) for each in again), timeout=WAIT)
            publisher.flush(WAIT)
            rest(servers)
            client = connected(config, "asker")
            adapter = client.subscriber()  # a process has one
            sequence = client.createQuerySequence(TYPE, "1.0")
            sequence.activateSequence()

            def by_capi(text: str) -> int:
                sequence.setSequencePredicate(PREDICATE.format(text.replace("<", "&lt;").replace(">", "&gt;")))
                sequence.executeQuery()
                found = 0
                while came := sequence.getNext(256, WAIT * 1000):
                    found += len(came)
                return found

            def by_adapter(text: str, view: Any) -> int:
                return sum(1 for _ in adapter.open_query(TYPE, predicate=text, view=view, at=[ready["address"]]))

            for what, text in questions.items():
                ways: dict[str, Callable[[], int]] = {
                    "adapter": lambda text=text: by_adapter(text, "combined" if "og:" in text else "metadata"),  # type: ignore[misc]
                    "capi": lambda text=text: by_capi(text),  # type: ignore[misc]
                }
                found: dict[str, list[Row]] = {way: [] for way in ways}
                for number in range(rounds + 1):
                    for way, ask in ways.items():
                        began, used = time.perf_counter(), time.process_time() + cpu(*servers)
                        hits = sum(ask() for _ in range(20 if "1 hit" in what else 1))
                        took, used = time.perf_counter() - began, time.process_time() + cpu(*servers) - used
                        if number:  # the first one reads from the disk
                            found[way].append({"hits": hits, "ms": took * 1e3, "CPU ms": used * 1e3})
                for way, rows in found.items():
                    yield {
                        "what": f"{objects:,} objects, {what}: {way}",
                        **{name: rounded(statistics.median(row[name] for row in rows)) for name in rows[0]},
                        "by adapter": by(rows, found["adapter"], "ms"),
                        "CPU by adapter": by(rows, found["adapter"], "CPU ms"),
                    }
            client.disconnect()


# -- coming and going -----------------------------------------------------------------------------------------------


def churn(connections: int, queries: int, rounds: int) -> Iterator[Row]:
    """Memory of the node, after each round of what came and left."""
    with node() as (ready, _):
        config, there = client_of(ready["lookup"]), lasting(ready["pid"])
        host, _, port = ready["address"].rpartition(":")

        def orderly(_: int) -> None:
            client = connected(config, "passing")
            sequence = client.createPublisherSequence(TYPE, "1.0")
            sequence.setInvariantsAttribute(METADATA.decode())
            sequence.activateSequence()
            sequence.publishInfoObject(client.createInfoObject(TYPE, "1.0", b"x", METADATA.decode()))
            client.disconnect()

        def ugly(number: int) -> None:
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(os.urandom(number % 64))

        with PublisherAdapterLight(config) as publisher:
            at = publisher.connect_to_delegate("node", "bench")
            uid = publisher.register_publisher(at, SCHEMA, METADATA, persist=True)
            documents = Workload(1024).documents(1_000)
            publisher.publish_many(uid, ((each, b"x") for each in documents))
            publisher.flush(WAIT)
            client = connected(config, "asker")
            client.subscriber().register_subscriber(type_name="jbi.Event", listener=lambda _uid, _obj: None)
            asking = client.createQuerySequence(TYPE, "1.0")
            asking.activateSequence()

            def ask(number: int) -> None:
                said = f"{LATITUDE}=33.{number % 1_000 * 7_919 % 400_000:06d} and //og:PayloadLength>{number % 2}"
                asking.setSequencePredicate(PREDICATE.format(said.replace(">", "&gt;")))
                asking.executeQuery()
                while asking.getNext(100, WAIT * 1000):
                    pass

            kinds = (
                ("connections", orderly, connections),
                ("ugly: rubbish, cut off", ugly, connections),
                ("queries", ask, queries),
            )
            for what, does, count in kinds:
                sizes: list[list[float]] = []
                for number in range(rounds + 1 if count else 0):
                    used = cpu(*there)
                    for one in range(count):
                        does(number * count + one)
                    sizes.append([memory(pid)[0] for pid in there])
                    grown = [
                        (now - first) / number / count * 1e6 if number else 0.0
                        for now, first in zip(sizes[-1], sizes[0], strict=True)
                    ]
                    yield {
                        "what": f"{(number + 1) * count:,} {what}",
                        "RSS MB": " + ".join(f"{size:.1f}" for size in sizes[-1]),
                        "KB per 1,000, from the first row on": " + ".join(f"{each:.0f}" for each in grown),
                        "threads": len(list(Path(f"/proc/{there[0]}/task").iterdir())),
                        "files": len(list(Path(f"/proc/{there[0]}/fd").iterdir())),
                        "CPU us each": rounded((cpu(*there) - used) / count * 1e6),
                    }  # fmt: skip
            client.disconnect()


# -- a bridge -------------------------------------------------------------------------------------------------------

BRIDGE: Final = """
name = "bench"
[side.one]
locators = ["{one}"]
delegate = ["node", "one"]
[side.other]
locators = ["{other}"]
delegate = ["node", "other"]
[[direction]]
from = "one"
to = "other"
"""
RULE: Final = """
[[direction.rule]]
types = ["*"]
where = "//lat > 0 and //long > 0"
"""


def bridge(rounds: int, objects: int) -> Iterator[Row]:
    """What comes through one node, and through two and a bridge."""
    for kilobytes, is_ugly in itertools.product((1, 64), (False, True)):
        case = Workload(kilobytes << 10, is_ugly)
        found: dict[str, list[Row]] = {"one node": [], "bridge": []}
        for _ in range(rounds):
            for way, rows in found.items():
                rows.append(mirrored(way == "bridge", case, objects if kilobytes < 16 else objects // 5))
        for way, rows in found.items():
            yield {
                "what": f"{kilobytes} KB, {'ugly' if is_ugly else 'plain'}: {way}",
                **{name: rounded(statistics.median(row[name] for row in rows)) for name in rows[0]},
                "by one node": by(rows, found["one node"], "objects/s"),
            }


def mirrored(is_bridged: bool, case: Workload, count: int) -> Row:
    """Once."""
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    with ExitStack() as stack:
        names = ("one", "other") if is_bridged else ("one",)
        nodes = [stack.enter_context(node(*QUIET, "--set", "node.archive=false", name=name))[0] for name in names]
        lookups = [each["lookup"] for each in nodes]
        pids = [each["pid"] for each in nodes]
        if is_bridged:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            text = BRIDGE.format(one=lookups[0], other=lookups[1]) + (RULE if case.is_ugly else "")
            (folder / "bridge.toml").write_text(text)
            words = ("--set", "queue.bound=200000", "bridge", str(folder / "bridge.toml"), "--json")
            pids.append(stack.enter_context(command(*words))["pid"])
        publisher = stack.enter_context(PublisherAdapterLight(client_of(lookups[0])))
        uid = publisher.register_publisher(publisher.connect_to_delegate("node", "one"), SCHEMA, METADATA)
        started(stack, context, take, ("adapter", client_of(lookups[-1]), case, count, told), told)
        publisher.wait_for_subscribers(uid, 1, 30)
        documents, payload = case.documents(WARM + count), os.urandom(case.size)
        for each in documents[:WARM]:
            publisher.publish(uid, each, payload)
        assert told.get(timeout=WAIT) == "warm"
        began, used = time.time(), [cpu(pid) for pid in pids]
        for each in documents[WARM:]:
            publisher.publish(uid, each, payload)
        ended, _ = told.get(timeout=WAIT)
        spent = [(cpu(pid) - before) / count * 1e6 for pid, before in zip(pids, used, strict=True)]
    took = ended - began
    row = {"objects/s": count / took, "MB/s": count * case.size / took / 1e6, "node us": spent[0]}
    return row | {"other node us": sum(spent[1:2]), "bridge us": sum(spent[2:])}


def shown(row: Row, head: list[str]) -> str:
    """A line of the table, below its head if that is another one than before."""
    widths = [48, *(max(len(name), 9) for name in list(row)[1:])]

    def line(cells: Iterable[object]) -> str:
        padded = (f"{'' if cell is None else cell!s:>{width}}" for cell, width in zip(cells, widths, strict=True))
        first = next(padded)
        return "  ".join((f"{first.strip():<{widths[0]}}", *padded))

    lines = [line(row.values())]
    if head != list(row):
        head[:] = row
        lines.insert(0, line(row))
    return "\n".join(lines)


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    what = parser.add_subparsers(dest="what", required=True)
    settings: dict[str, dict[str, Any]] = {
        "through": {"rounds": 3, "scale": 1.0, "sizes": "1,64", "ways": "socket,call,adapter,capi"},
        "idle": {"seconds": 15.0, "limit": 256},
        "clients": {"seconds": 8.0, "rate": 500.0, "rounds": 3},
        "http": {"seconds": 3.0, "rounds": 3},
        "failover": {"rounds": 3},
        "query": {"objects": 100_000, "rounds": 5},
        "churn": {"connections": 2_000, "queries": 0, "rounds": 4},
        "bridge": {"rounds": 3, "objects": 10_000},
    }
    for name, defaults in settings.items():
        made = what.add_parser(name)
        for key, default in defaults.items():
            made.add_argument(f"--{key}", type=type(default), default=default)
    given = vars(parser.parse_args())
    is_json, name = given.pop("json"), given.pop("what")
    head: list[str] = []
    for row in globals()[name](**given):
        print(msgspec.json.encode(row).decode() if is_json else shown(row, head), flush=True)


if __name__ == "__main__":
    main()
