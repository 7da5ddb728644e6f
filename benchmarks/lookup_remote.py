"""The lookup service over loopback: its own process, clients in this one and in others.

    python benchmarks/lookup_remote.py [--json] [--small]

Ratios are against a ping (a call that does nothing) of the same run. Reference: Reggie 3.0.1 on a machine of this kind:
lookup 0.35 ms, register 0.5 to 1 ms, events 74/s to one listener in a burst, about 7,000/s to 1,000 listeners.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import selectors
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.stream import ACK, BATCH, FRAME
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.client.proxy import EXPORTED, RegistrarProxy
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceItem, ServiceTemplate

SECURITY = Security()
FIELDS = dict.fromkeys(("kind", "place", "owner", "serial"), str)
SENSOR = define("benchmark.Sensor", FIELDS)


def item(number: int) -> ServiceItem:
    """One of many sensors; the serial number is its own."""
    values = (f"kind {number % 7}", f"place {number % 101}", f"owner {number % 13}", f"serial {number}")
    proxy = ServiceRef(f"s{number}", "sensor", ("127.0.0.1:1",))
    return ServiceItem(f"service-{number}", ("benchmark.Service",), proxy, (EntryRep(SENSOR, values),))


def proxy_at(address: str) -> RegistrarProxy:
    return RegistrarProxy(ServiceRef("", EXPORTED, (address,)), SECURITY, timeout=60.0)


def timed(call: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """(median, 99th percentile) in microseconds."""
    times = []
    for number in range(rounds):
        begin = time.perf_counter()
        call(number)
        times.append((time.perf_counter() - begin) * 1e6)
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


def one_of(size: int, number: int) -> ServiceTemplate:
    return ServiceTemplate(types=("benchmark.Service",), entries=item(number * 7919 % size).entries)


def look_up(address: str, size: int, seconds: float, out: Any) -> None:
    """A client process: how many lookups it gets done."""
    proxy = proxy_at(address)
    done, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        proxy.lookup(one_of(size, done), 1)
        done += 1
    out.put(done)


def four_clients(address: str, size: int) -> float:
    out: Any = multiprocessing.Queue()
    clients = [multiprocessing.Process(target=look_up, args=(address, size, 2.0, out)) for _ in range(4)]
    for client in clients:
        client.start()
    done = sum(out.get(timeout=30) for _ in clients)
    for client in clients:
        client.join()
    return done / 2.0


class Connection:
    """One event connection, read without a thread: counts what comes and acknowledges it."""

    def __init__(self, proxy: RegistrarProxy, name: str, template: ServiceTemplate) -> None:
        proxy.notify(template, int(ALL_TRANSITIONS), 300.0, "", name)
        self.sock = dial(proxy.ref, DATA, SECURITY, 10.0)
        greet(StreamSocket(self.sock), Hello(proxy.open_events(name)))
        self._came = bytearray()

    def read(self) -> int:
        """How many events came, after one read of the socket."""
        data = self.sock.recv(256 << 10)
        if not data:
            raise SystemExit("the lookup service closed an event connection")
        self._came += data
        events = last = at = 0
        while len(self._came) - at >= FRAME.size:
            length, _ = FRAME.unpack_from(self._came, at)
            if len(self._came) - at - FRAME.size < length:
                break
            first, count = BATCH.unpack_from(self._came, at + FRAME.size)
            events, last, at = events + count, first + count - 1, at + FRAME.size + length
        del self._came[:at]
        if events:
            self.sock.send(FRAME.pack(8, ACK) + last.to_bytes(8, "big"))
        return events


def listen(address: str, listeners: int, orders: Any) -> None:
    """A client process of one thread: opens the connections, says so, and then for each number n that it is told when
    n more events had come, and its own CPU seconds for them."""
    proxy = proxy_at(address)
    template = ServiceTemplate(types=("benchmark.Burst",))
    selector = selectors.DefaultSelector()
    for n in range(listeners):
        connection = Connection(proxy, f"listener-{listeners}-{n}", template)
        selector.register(connection.sock, selectors.EVENT_READ, connection)
    orders.send("ready")
    came = 0
    while wanted := orders.recv():
        begin = time.process_time()
        while came < wanted:
            for key, _ in selector.select(60.0):
                came += key.data.read()
        came -= wanted
        orders.send((time.perf_counter(), time.process_time() - begin))


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def events(address: str, pid: int, listeners: int, burst: int) -> dict[str, float]:
    """To so many listeners: items that come by one call each, the same ones leaving with one call, and items of which
    each comes when everybody has heard of the one before. Events per second, and CPU time of the lookup service
    (process `pid`) and of the listeners for each."""
    proxy = proxy_at(address)
    ours, theirs = multiprocessing.Pipe()
    client = multiprocessing.Process(target=listen, args=(address, listeners, theirs))
    client.start()
    ours.recv()
    items = [
        msgspec.structs.replace(item(n), service_id=f"burst-{n}", types=("benchmark.Burst",)) for n in range(burst)
    ]
    result: dict[str, float] = {}
    leases: list[str] = []

    def run(name: str, make: Callable[[], object]) -> None:
        count = burst * listeners
        ours.send(count)
        before, begin = cpu_seconds(pid), time.perf_counter()
        make()
        end, theirs_cpu = ours.recv()
        result[f"{name} to {listeners} /s"] = round(count / (end - begin))
        result[f"{name} to {listeners}: us"] = round((cpu_seconds(pid) - before) / count * 1e6, 1)
        result[f"{name} to {listeners}: us there"] = round(theirs_cpu / count * 1e6, 1)

    run("one by one", lambda: leases.extend(proxy.register(each, 300.0).lease_id for each in items))
    run("in a burst", lambda: proxy.cancel(leases))
    took = []
    before = cpu_seconds(pid)
    for each in items:
        ours.send(listeners)
        begin = time.perf_counter()
        lease = proxy.register(each, 300.0).lease_id
        took.append(ours.recv()[0] - begin)
        ours.send(listeners)
        proxy.cancel([lease])
        ours.recv()
    result[f"alone to {listeners}: ms to all"] = round(statistics.median(took) * 1e3, 2)
    result[f"alone to {listeners}: us"] = round((cpu_seconds(pid) - before) / (2 * burst * listeners) * 1e6, 1)
    ours.send(0)
    client.join()
    proxy.close()
    return result


def measure(size: int) -> dict[str, Any]:
    server = subprocess.Popen(
        [sys.executable, "-m", "jbi_pubsub", "--no-multicast", "lookup", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline())["address"]
        proxy = proxy_at(address)
        ping, _ = timed(lambda _: proxy.describe(), 2000)
        register, register99 = timed(lambda n: proxy.register(item(n), 300.0), size)
        lookup, lookup99 = timed(lambda n: proxy.lookup(one_of(size, n), 1), 3000)
        return {
            "items": size,
            "ping us": round(ping),
            "register p50 us": round(register),
            "register p99 us": round(register99),
            "lookup p50 us": round(lookup),
            "lookup p99 us": round(lookup99),
            "lookup/ping": round(lookup / ping, 2),
            "4 clients /s": round(four_clients(address, size)),
            **events(address, server.pid, 1, 5_000),
            **events(address, server.pid, 1_000, 50),
        }
    finally:
        server.terminate()
        server.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true", help="1,000 and 10,000 items instead of up to 100,000")
    options = parser.parse_args()
    # one client may have 100,000 items, and those that make the events come on top
    rows = [measure(size) for size in ((1_000, 10_000) if options.small else (1_000, 90_000))]
    if options.json:
        print(json.dumps(rows))
        return
    for key in rows[0]:
        print(f"{key:30}" + "".join(f"{row[key]:>12}" for row in rows))


if __name__ == "__main__":
    main()
