"""Domains: what crosses the link between two, how late it comes, and what a trader needs to find something.

    python benchmarks/domains.py [--small] [--only bytes latency offers traders] [--json]

*bytes*: clients of one domain each want a sixteenth of what an application of the other one tells; a part of that is
what their neighbour wants, too. Bytes on the link (of connections, without headers of TCP) when each client subscribes
over it by itself, when a bridge brings everything, and when one brings what is wanted. *latency*: clients who want
everything; from publishing to the listener, on one host, and over a link of 40 ms and 8 Mbit/s. *offers*: queries of a
trader in process, and by a server. *traders*: the same query at one that asks others.

Lookup services and delegates are processes of their own. Exit code 1 if something is lost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec

from jbi_pubsub import Config, PublisherAdapterLight, Services, ServiceType, SubscriberAdapter
from jbi_pubsub.bridge.file import described
from jbi_pubsub.core.node_sections import DomainSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.domains.event import MONITORING, SCHEMA, StructuredEvent
from jbi_pubsub.domains.proxy import TRADER, TraderProxy
from jbi_pubsub.domains.server import TraderServer
from jbi_pubsub.domains.trader import OfferQuery
from jbi_pubsub.examples.federation import Federation
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.network.emulation import Link

CELLS = 160
WIDTH = CELLS // 16
"""Cells that a client wants."""
PAYLOAD = 1_000
MODES = ("by themselves", "bridge: everything", "bridge: wanted")
OFFERED = ServiceType.of("demo.Offered", "long number", "double load", "string name")


class Far(NamedTuple):
    """Two domains: who publishes in the one, at its delegate; how the other one reaches it, and how itself."""

    link: Link
    publisher: PublisherAdapterLight
    at: Any
    over: Config
    here: Config


@contextmanager
def two_domains(delay: float = 0.0, rate: float = 0.0) -> Iterator[Far]:
    """alpha, with an application, and bravo, with a link between them."""
    with (
        Federation().lookup().delegate("alpha", "lab") as alpha,
        Federation().lookup().delegate("bravo", "lab") as bravo,
        Link("127.0.4.2") as link,
        PublisherAdapterLight(alpha.config) as publisher,
    ):
        at = publisher.connect_to_delegate("alpha", "lab")
        over = link.behind(alpha.config, str(alpha.ready["alpha"]["address"]))
        link.shape(delay=delay, bits_per_second=rate)
        yield Far(link, publisher, at, over, bravo.config)


@contextmanager
def bridged(far: Far, *, wanted: bool) -> Iterator[Any]:
    """A bridge from alpha to bravo."""
    text = "name = 'bench'\npoll = 0.2\n" + "".join(
        f"[side.{name}]\nlocators = ['{config.lookup.locators[0]}']\ndelegate = ['{name}', 'lab']\n"
        for name, config in (("alpha", far.over), ("bravo", far.here))
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "bridge.toml"
        file.write_text(text + f"[[direction]]\nfrom = 'alpha'\nto = 'bravo'\nwanted = {str(wanted).lower()}\n")
        bridge = described(file).opened(far.here)
    with closing(bridge):
        bridge.start()
        yield bridge


def event(cell: int) -> bytes:
    """Metadata of an event of that cell."""
    return StructuredEvent("heat", "Monitoring", "", {"cell": cell, "residual": 0.25, "state": "computing"}).metadata()


def run(far: Far, mode: str, profiles: list[tuple[int, int]], count: int, rate: float = 0.0) -> dict[str, Any]:
    """Publish so many events, so many a second (0: at once), for a client with each profile; what crossed, and came."""
    late: list[float] = []

    def heard(_uid: object, obj: Any) -> None:
        late.append(time.monotonic() - float(bytes(obj.payload[:20])))

    with ExitStack() as stack:
        registration = far.publisher.register_publisher(far.at, SCHEMA, event(0), type_name=MONITORING)
        stack.callback(far.publisher.unregister_publisher, registration)
        bridge = None if mode == MODES[0] else stack.enter_context(bridged(far, wanted=mode == MODES[2]))
        for low, high in profiles:
            client = stack.enter_context(SubscriberAdapter(far.over if bridge is None else far.here))
            uid = client.register_subscriber(
                type_name=MONITORING, schema=SCHEMA, predicate=f"cell >= {low} and cell < {high}", language="tcl",
                listener=heard,
            )  # fmt: skip
            client.wait_matched(uid, timeout=60.0)
        until(lambda: bridge is None or stands(bridge, len(profiles), mode), 60.0)
        time.sleep(1.0)  # what is still said because somebody has come
        before, began = sum(far.link.passed.values()), time.monotonic()
        for number in range(count):
            if rate:
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
            payload = f"{time.monotonic():<20.9f}".encode() + bytes(PAYLOAD)
            far.publisher.publish(registration, event(number % CELLS), payload)
        expected = sum(low <= number % CELLS < high for number in range(count) for low, high in profiles)
        until(lambda: len(late) >= expected, 60.0)
        crossed = -1
        while crossed != (crossed := sum(far.link.passed.values()) - before):  # the rest, which nobody wants
            time.sleep(0.3)
    ordered = sorted(late) or [0.0]
    p50, p95 = (round(1_000 * ordered[int(len(ordered) * share)], 1) for share in (0.5, 0.95))
    return {"KB": round(crossed / 1_000), "p50 ms": p50, "p95 ms": p95, "lost": expected - len(late)}


def stands(bridge: Any, clients: int, mode: str) -> object:
    """Whether a bridge brings what so many clients want."""
    (way,) = bridge.status()["directions"]
    of = way["wanted"].get(MONITORING) if mode == MODES[2] else None
    return sum(each["behind"] for each in of["members"]) >= clients if of else mode == MODES[1] and way["registrations"]


def until(good: Callable[[], object], seconds: float) -> None:
    """Wait until it is so, or so long."""
    deadline = time.monotonic() + seconds
    while not good() and time.monotonic() < deadline:
        time.sleep(0.02)


def bytes_across(clients: Iterable[int], count: int) -> Iterator[dict[str, Any]]:
    """Bytes on the link, by clients and by how much of what one wants its neighbour wants as well."""
    with two_domains() as far:
        for number in clients:
            for overlap in (1.0, 0.5, 0.0) if number > 1 else (1.0,):
                starts = [round(each * (1 - overlap) * WIDTH) for each in range(number)]
                profiles = [(start, start + WIDTH) for start in starts]
                for mode in MODES:
                    said = run(far, mode, profiles, count)
                    yield {"clients": number, "overlap": overlap, "how": mode, "KB": said["KB"], "lost": said["lost"]}


def latencies(clients: Iterable[int], count: int, rate: float) -> Iterator[dict[str, Any]]:
    """Latency of clients who want everything, on one host and over a slow link."""
    for link, (delay, bits) in {"none": (0.0, 0.0), "40 ms, 8 Mbit/s": (0.04, 8e6)}.items():
        with two_domains(delay, bits) as far:
            for number in clients:
                for mode in (MODES[0], MODES[2]):
                    said = run(far, mode, [(0, CELLS)] * number, count, rate)
                    yield {"clients": number, "link": link, "how": mode, **said}


def offers(numbers: Iterable[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Time of a query for the offer of an equal value, and for the best of those that a comparison finds."""
    for number in numbers:
        with ExitStack() as stack:
            place = stack.enter_context(Federation()).lookup()
            server = TraderServer(place.config)
            stack.callback(server.stop)
            server.start(30.0)
            trader = server._registry.trader  # so many would need a lookup service as large
            for each in range(number):
                said: dict[str, Any] = {"number": each, "load": each / number, "name": f"service {each}"}
                ref = ServiceRef(f"{each:032x}", "offer", ())
                trader.put(ServiceItem(ref.service_id, (OFFERED.name,), ref, OFFERED.entries(said)))
            proxy = stack.enter_context(closing(TraderProxy(reference(server), place.config.security())))
            for constraint, preference, most in (
                ("number == 7", "", rounds),
                ("load > 0.5", "max load", rounds // 100),
            ):
                query = OfferQuery(OFFERED.name, constraint, preference, returned=1, follow="local_only")
                assert trader.query(query).offers[0].id == proxy.query(query).offers[0].id
                yield {"offers": number, "constraint": f"{constraint} {preference}".strip(),
                       "in process us": round(timed(partial(trader.query, query), most)),
                       "by a server us": round(timed(partial(proxy.query, query), most))}  # fmt: skip


def reference(server: TraderServer) -> ServiceRef:
    """To a trader of this process."""
    return ServiceRef(server.service_id, TRADER, (server.address,))


def timed(what: Callable[[], object], rounds: int) -> float:
    """Median of a call, in microseconds."""
    return 1e6 * statistics.median(timeit.repeat(what, number=1, repeat=rounds))


def traders(most: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Time of a query that 1, 2 .. traders answer: the one of each domain asks those of all domains before it."""
    with ExitStack() as stack:
        locators: list[str] = []
        for number in range(1, most + 1):
            place = stack.enter_context(Federation()).lookup()
            config = msgspec.structs.replace(place.config, domain=DomainSection(number=number, traders=tuple(locators)))
            locators.append(place.locator)
            services = stack.enter_context(Services(config))
            services.offer(OFFERED, {"number": number, "load": 0.5, "name": f"domain {number}"})
            server = TraderServer(config)
            stack.callback(server.stop)
            server.start(30.0)
            query = OfferQuery(OFFERED.name, "load == 0.5", follow="always", hops=1)
            proxy = stack.enter_context(closing(TraderProxy(reference(server), config.security())))
            until(lambda proxy=proxy, query=query, number=number: len(proxy.query(query).offers) == number, 30.0)  # type: ignore[misc]  # mypy knows no defaults
            lost = number - len(proxy.query(query).offers)
            yield {"traders": number, "us": round(timed(partial(proxy.query, query), rounds)), "lost": lost}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="the same with less of everything")
    parser.add_argument("--only", nargs="+", choices=("bytes", "latency", "offers", "traders"))
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    parts: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "bytes": lambda: bytes_across((1, 4) if given.small else (1, 4, 16), 320 if given.small else 1_600),
        "latency": lambda: latencies((1, 4) if given.small else (1, 4, 16), 25 if given.small else 100, 25.0),
        "offers": lambda: offers((1_000,) if given.small else (1_000, 10_000, 100_000), 200 if given.small else 2_000),
        "traders": lambda: traders(3 if given.small else 5, 50 if given.small else 500),
    }
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in given.only or parts:
        rows[name] = []
        for row in parts[name]():
            if not given.json:
                if not rows[name]:
                    print(f"\n{name}\n| {' | '.join(row)} |\n|{'---|' * len(row)}")
                print(f"| {' | '.join(map(str, row.values()))} |", flush=True)
            rows[name].append(row)
    if given.json:
        print(json.dumps(rows, indent=1))
    return int(any(row.get("lost") for each in rows.values() for row in each))


if __name__ == "__main__":
    raise SystemExit(main())
