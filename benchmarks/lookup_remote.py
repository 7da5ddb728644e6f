"""The lookup service over loopback: its own process, clients in this one and in others.

    python benchmarks/lookup_remote.py [--json] [--small]

Ratios are against a ping (a call that does nothing) of the same run. Reference: Reggie 3.0.1 on a machine of this kind:
lookup 0.35 ms, register 0.5 to 1 ms, events 74/s to one listener in a burst, about 7,000/s to 1,000 listeners.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import DATA, Security, dial
from jbi_pubsub.core.wire.stream import Hello, Line, Receiver, greet
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.proxy import EXPORTED, RegistrarProxy

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


class Listener:
    """An event connection that counts."""

    def __init__(self, proxy: RegistrarProxy, name: str, template: ServiceTemplate, counter: list[int]) -> None:
        proxy.notify(template, int(ALL_TRANSITIONS), 300.0, "", name)
        self.sock = dial(proxy.ref, DATA, SECURITY, 10.0)
        line = Line(self.sock)
        greet(line, Hello(proxy.open_events(name)))
        lock = threading.Lock()

        def count(items: list[memoryview]) -> None:
            with lock:
                counter[0] += len(items)

        self.receiver = Receiver(count, lambda: b"")
        self.thread = threading.Thread(target=self.run, args=(line,), daemon=True)
        self.thread.start()

    def run(self, line: Line) -> None:
        try:
            self.receiver.run(line)
        except ConnectionError:
            self.sock.close()


def events(address: str, listeners: int, burst: int) -> float:
    """Events per second to so many listeners, when `burst` items leave with one call."""
    proxy = proxy_at(address)
    counter = [0]
    template = ServiceTemplate(types=("benchmark.Burst",))
    heard = [Listener(proxy, f"listener-{listeners}-{n}", template, counter) for n in range(listeners)]
    leases = []
    for number in range(burst):
        of = ServiceRef(f"b{number}", "sensor", ("127.0.0.1:1",))
        leases.append(proxy.register(ServiceItem(f"burst-{number}", ("benchmark.Burst",), of), 300.0).lease_id)
    settled = time.perf_counter() + 60
    while counter[0] < burst * listeners and time.perf_counter() < settled:
        time.sleep(0.01)
    counter[0] = 0
    begin = time.perf_counter()
    proxy.cancel(leases)
    while counter[0] < burst * listeners and time.perf_counter() - begin < 60:
        time.sleep(0.001)
    took = time.perf_counter() - begin
    for listener in heard:
        listener.receiver.stop()
    proxy.close()
    return counter[0] / took


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
            "events/s to 1": round(events(address, 1, 5_000)),
            "events/s to 1000": round(events(address, 1000, 20)),
        }
    finally:
        server.terminate()
        server.wait(20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--small", action="store_true", help="1,000 and 10,000 items instead of up to 100,000")
    options = parser.parse_args()
    rows = [measure(size) for size in ((1_000, 10_000) if options.small else (1_000, 100_000))]
    if options.json:
        print(json.dumps(rows))
        return
    for key in rows[0]:
        print(f"{key:20}" + "".join(f"{row[key]:>12}" for row in rows))


if __name__ == "__main__":
    main()
