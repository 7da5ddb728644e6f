"""`jbi bench domains`: what crosses the link between two domains, how late it comes, and how soon something is found.

Rules: lookup services and delegates are processes of their own; applications, clients, the bridge and the traders are
threads of this one. A client by itself subscribes over the link; else a bridge brings what is wanted, or everything.
Bytes on the link are those of connections, without headers of TCP. Latency is from publishing to the listener.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
import timeit
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal, NamedTuple

import msgspec

from jbi_pubsub import Config, InfoObject, PublisherAdapterLight, Services, ServiceType, SubscriberAdapter
from jbi_pubsub.bridge.file import OpenBridge, described
from jbi_pubsub.core.node_sections import DomainSection
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import exported
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import Predicate, PredicateIndex, bbox, compile_predicate
from jbi_pubsub.core.xpath.covering import Aggregate
from jbi_pubsub.core.xpath.narrowing import joined
from jbi_pubsub.domains.event import MONITORING, SCHEMA, StructuredEvent
from jbi_pubsub.domains.proxy import TRADER, TraderProxy
from jbi_pubsub.domains.server import TraderServer
from jbi_pubsub.domains.trader import OfferQuery
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.network.emulation import Link
from jbi_pubsub.pad.model.subscription import WIDE_CONJUNCTS
from jbi_pubsub.spark.plots import Plot, Series

from .example import ExampleOutcome, OutcomeTable, Promise
from .federation import PATIENCE, Federation, cpu_seconds

Row = dict[str, Any]
Rows = list[Row]

WIDTH: Final = 10
"""Cells that a client wants, of as many as all want who want nothing in common."""
PAYLOAD: Final = 1_000
OVERLAPS: Final = {"full": 1.0, "half": 0.5, "none": 0.0}
"""Parts of what a client wants that its neighbour wants, too."""
APART, EVERYTHING, WANTED = MODES = ("by itself", "everything", "wanted")
"""Each client by itself; a bridge that brings everything; one that brings what is wanted."""
LINKS: Final = {"none": (0.0, 0.0), "40 ms, 8 Mbit/s": (0.04, 8e6)}
"""Delay each way in seconds, and bits a second."""
QUIET_SECONDS: Final = 0.3
"""For which nothing crosses a link when nothing more is to come."""
RATE: Final = 10.0
"""Events a second, where latency is measured."""
MEMBERS: Final = 64
"""Rectangles of an aggregate: as many as a bridge asks for one by one."""
PERIOD: Final = 1.0
"""Seconds between two polls."""
OFFERED: Final = ServiceType.of("demo.Offered", "long number", "double load", "string name")


class DomainPair(NamedTuple):
    """Two domains: who publishes in the one, at its delegate; how the other one reaches it, and how itself; process ids
    of the delegates."""

    link: Link
    publisher: PublisherAdapterLight
    at: Any
    there: Config
    over: Config
    here: Config
    delegates: tuple[int, ...]


class DomainExperiment(NamedTuple):
    """Experiment: its rows, measured with less of everything or not; promises about them, and plots: name, columns of x
    and y, columns of a line."""

    title: str
    measure: Callable[[DomainPair | None, bool], Iterator[Row]]
    promised: Callable[[Rows], Iterator[Promise]]
    plots: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    has_pair: bool = True


def run(tell: Callable[[str], object], names: Collection[str], *, quick: bool) -> ExampleOutcome:
    """Experiments of EXPERIMENTS by name; `quick`: with less of everything. Raises DemoError."""
    tables: list[OutcomeTable] = []
    promises: list[Promise] = []
    plots: list[Plot] = []
    chosen = {name: EXPERIMENTS[name] for name in names}
    with ExitStack() as stack:
        pair = stack.enter_context(two_domains()) if any(each.has_pair for each in chosen.values()) else None
        for name, each in chosen.items():
            tell(f"{each.title} ...")
            rows = list(each.measure(pair, quick))
            tables.append(OutcomeTable(each.title, tuple(rows[0]), [tuple(row.values()) for row in rows]))
            promises += [Promise(f"{name}: {says}", kept) for says, kept in each.promised(rows)]
            plots += [_plot(each.title, rows, *said) for said in each.plots]
    return ExampleOutcome(tuple(tables), tuple(promises), tuple(plots))


def _plot(title: str, rows: Rows, name: str, x: str, y: str, by: tuple[str, ...]) -> Plot:
    """Lines over numbers; over words bars, of the last rows that have the same in their first column."""
    is_said = isinstance(rows[0][x], str)
    if is_said:
        first, last = next(iter(rows[-1].items()))
        rows, title = [row for row in rows if row[first] == last], f"{title}: {last} {first}"
    lines: dict[str, list[tuple[float | str, float]]] = {}
    for row in rows:
        lines.setdefault(", ".join(str(row[each]) for each in by), []).append((row[x], row[y]))
    series = tuple(Series.of(label, points) for label, points in lines.items())
    kind: Literal["bars", "lines"] = "bars" if is_said else "lines"
    return Plot(name=name, title=title, kind=kind, x=x, y=y, series=series, log_x=not is_said, log_y=not is_said)


def _complete(rows: Rows) -> Iterator[Promise]:
    yield Promise("Nothing was lost", not any(row["lost"] for row in rows))


@contextmanager
def two_domains() -> Iterator[DomainPair]:
    """alpha, with an application, and bravo, with a link between them."""
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        places = {name: stack.enter_context(Federation()) for name in ("alpha", "bravo")}
        alpha, bravo = pool.map(lambda name: places[name].lookup().delegate(name, "lab"), places)
        link = stack.enter_context(Link("127.0.4.2"))
        publisher = stack.enter_context(PublisherAdapterLight(alpha.config))
        at = publisher.connect_to_delegate("alpha", "lab")
        over = link.behind(alpha.config, str(alpha.ready["alpha"]["address"]))
        pids = alpha.pid("alpha"), bravo.pid("bravo")
        yield DomainPair(link, publisher, at, alpha.config, over, bravo.config, pids)


@contextmanager
def bridged(pair: DomainPair, *, wanted: bool) -> Iterator[OpenBridge]:
    """A bridge from alpha to bravo."""
    text = "name = 'bench'\npoll = 0.2\n" + "".join(
        f"[side.{name}]\nlocators = ['{config.lookup.locators[0]}']\ndelegate = ['{name}', 'lab']\n"
        for name, config in (("alpha", pair.over), ("bravo", pair.here))
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / "bridge.toml"
        file.write_text(text + f"[[direction]]\nfrom = 'alpha'\nto = 'bravo'\nwanted = {str(wanted).lower()}\n")
        bridge = described(file).opened(pair.here)
    with closing(bridge):
        bridge.start()
        yield bridge


def event(cell: int) -> bytes:
    """Metadata of an event of that cell."""
    return StructuredEvent("heat", "Monitoring", "", {"cell": cell, "residual": 0.25, "state": "computing"}).metadata()


def stamped() -> bytes:
    """A payload that says when it was published."""
    return f"{time.monotonic():<20.9f}".encode() + bytes(PAYLOAD)


def delivered(
    pair: DomainPair, mode: str, profiles: Sequence[tuple[int, int]], cells: Sequence[int], rate: float = 0.0
) -> Row:
    """Publish an event of each of `cells`, so many a second (0: at once), for a client with each profile; what crossed,
    and came."""
    late: list[float] = []

    def heard(_uid: object, obj: InfoObject) -> None:
        late.append(time.monotonic() - float(bytes(obj.payload[:20])))

    with ExitStack() as stack:
        registration = pair.publisher.register_publisher(pair.at, SCHEMA, event(0), type_name=MONITORING)
        stack.callback(pair.publisher.unregister_publisher, registration)
        bridge = None if mode == APART else stack.enter_context(bridged(pair, wanted=mode == WANTED))

        def subscribe(profile: tuple[int, int]) -> None:
            client = stack.enter_context(SubscriberAdapter(pair.over if bridge is None else pair.here))
            uid = client.register_subscriber(
                type_name=MONITORING, schema=SCHEMA, listener=heard, language="tcl",
                predicate=f"cell >= {profile[0]} and cell < {profile[1]}",
            )  # fmt: skip
            client.wait_matched(uid, timeout=PATIENCE)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(subscribe, profiles))
        until(lambda: bridge is None or stands(bridge, len(profiles), mode))
        before, used, began = quiet(pair.link), cpu(pair), time.monotonic()
        for number, cell in enumerate(cells):
            if rate:
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
            pair.publisher.publish(registration, event(cell), stamped())
        expected = sum(low <= cell < high for cell in cells for low, high in profiles)
        until(lambda: len(late) >= expected)
        crossed = quiet(pair.link) - before
    return {"KB": round(crossed / 1_000), "CPU ms": round(1_000 * (cpu(pair) - used)), **latency(late),
            "lost": expected - len(late)}  # fmt: skip


def latency(late: Collection[float]) -> Row:
    """Quantiles of seconds, in ms."""
    ordered = sorted(late) or [0.0]
    return {f"p{share} ms": round(1_000 * ordered[len(ordered) * share // 100], 1) for share in (50, 95)}


def cpu(pair: DomainPair) -> float:
    """Processor seconds of both delegates and this process."""
    return time.process_time() + sum(map(cpu_seconds, pair.delegates))


def stands(bridge: OpenBridge, clients: int, mode: str) -> object:
    """Whether a bridge brings what so many clients want."""
    (way,) = bridge.status()["directions"]
    of = way["wanted"].get(MONITORING) if mode == WANTED else None
    return sum(each["behind"] for each in of["members"]) >= clients if of else mode != WANTED and way["registrations"]


def until(good: Callable[[], object]) -> None:
    """Wait until it is so, or so long as it may take."""
    deadline = time.monotonic() + PATIENCE
    while not good() and time.monotonic() < deadline:
        time.sleep(0.02)


def quiet(link: Link) -> int:
    """Bytes that have passed, once no more do."""
    passed = -1
    while passed != (passed := sum(link.passed.values())):
        time.sleep(QUIET_SECONDS)
    return passed


# -- the experiments ------------------------------------------------------------------------------------------------


def bytes_across(pair: DomainPair | None, quick: bool) -> Iterator[Row]:
    """Bytes by clients, and by how much of what one wants its neighbour wants as well."""
    assert pair is not None
    pair.link.shape(delay=0.0, bits_per_second=0.0)
    some = (1, 3) if quick else (1, 4, 16, 64)
    cells = [*range(WIDTH * some[-1])] * (10 if quick else 4)
    for clients, overlap in product(some, OVERLAPS):
        if overlap == "full" or (clients > 1 and not (quick and overlap == "half")):
            starts = [round(each * (1 - OVERLAPS[overlap]) * WIDTH) for each in range(clients)]
            for mode in MODES if not quick else (WANTED,) if overlap == "full" else (APART, WANTED):
                said = delivered(pair, mode, [(low, low + WIDTH) for low in starts], cells)
                yield {"clients": clients, "overlap": overlap, "how": mode,
                       **{name: said[name] for name in ("KB", "CPU ms", "lost")}}  # fmt: skip


def bytes_promised(rows: Rows) -> Iterator[Promise]:
    """Copies are as many as there is something else to bring."""
    found = {(row["clients"], row["overlap"], row["how"]): row["KB"] for row in rows}
    one = found[1, "full", WANTED]
    yield from _complete(rows)
    for clients in sorted({row["clients"] for row in rows} - {1}):
        most = found[clients, "full", WANTED]
        yield Promise(f"{clients} equal clients: at most 1.05 of the bytes of one", most <= 1.05 * one)
        apart = found[clients, "none", APART]
        yield Promise(
            f"{clients} clients with nothing in common: at most 1.05 of the bytes by themselves",
            found[clients, "none", WANTED] <= 1.05 * apart,
        )


def latencies(pair: DomainPair | None, quick: bool) -> Iterator[Row]:
    """Latencies by clients, who want everything; on one host, and over a slow link."""
    assert pair is not None
    for (link, (delay, bits)), clients in product(LINKS.items(), (2,) if quick else (1, 2, 4, 8, 16, 32, 64)):
        pair.link.shape(delay=delay, bits_per_second=bits)
        for mode in (APART, WANTED):
            said = delivered(pair, mode, [(0, 1)] * clients, [0] * (4 if quick else 60), RATE)
            del said["CPU ms"]
            yield {"clients": clients, "link": link, "how": mode, **said}


def latencies_promised(rows: Rows) -> Iterator[Promise]:
    """The slow link alone: on one host there is none to spare."""
    slow = {(row["clients"], row["how"]): row for row in rows if row["link"] != "none"}
    clients = sorted({number for number, _ in slow})
    yield from _complete(rows)
    yield Promise(
        "On the slow link bytes do not grow with clients, by 5 % at most",
        slow[clients[-1], WANTED]["KB"] <= 1.05 * slow[clients[0], WANTED]["KB"],
    )
    for each in clients:
        if each >= 8:
            good = slow[each, WANTED]["p95 ms"] <= slow[each, APART]["p95 ms"]
            yield Promise(f"On the slow link p95 of {each} clients is no more than by themselves", good)


def matching(pair: DomainPair | None, quick: bool) -> Iterator[Row]:  # noqa: ARG001  # as all experiments
    """Processor time for a document by all members, and by the one predicate that stands for them; for one more."""
    chance = random.Random(1)  # noqa: S311  # the same documents each time
    document = "<m><p><lat>{:.3f}</lat><latord>N</latord><long>{:.3f}</long><longord>E</longord></p></m>"
    documents = [
        parse_metadata(document.format(chance.uniform(0, 64), chance.uniform(0, 64)).encode())
        for _ in range(200 if quick else 2_000)
    ]
    for overlap, shared in OVERLAPS.items():
        members = [
            compile_predicate(bbox(low, low, low + 1, low + 1, location="/m/p"))
            for low in (number * (1 - shared) for number in range(MEMBERS + 1))
        ]
        aggregate: Aggregate[int] = Aggregate()
        for number, member in enumerate(members[:-1]):
            aggregate.add(number, member)
        widest = len(aggregate.widest)
        text, _ = joined(((members[each].expression, ()) for each in aggregate.widest), "or")
        indexes = PredicateIndex[int](), PredicateIndex[int]()
        for number, member in enumerate(members[:-1]):
            indexes[0].add(number, member)
        indexes[1].add(0, compile_predicate(text, most=WIDE_CONJUNCTS))
        apart, together = (_each_us(partial(index.match, size=100), documents) for index in indexes)
        added = _each_us(partial(_again, aggregate), [members[-1]] * (len(documents) // 50))
        yield {"overlap": overlap, "members": MEMBERS, "asked": widest,
               "us apart": apart, "us together": together, "us to add": added}  # fmt: skip


def _again(aggregate: Aggregate[int], member: Predicate) -> None:
    aggregate.add(MEMBERS, member)
    aggregate.remove(MEMBERS)


def _each_us(work: Callable[[Any], object], of: Sequence[Any]) -> float:
    """Least processor time of some rounds, for each."""
    return round(1e6 * min(timeit.repeat(lambda: [*map(work, of)], time.process_time, number=1, repeat=5)) / len(of), 1)


def matching_promised(rows: Rows) -> Iterator[Promise]:
    """Costs to a delegate, and to whoever puts members together."""
    for row in rows:
        good = row["us together"] <= 1.2 * row["us apart"]
        yield Promise(f"Overlap {row['overlap']}: the aggregate costs at most 1.2 of its members", good)
        yield Promise(f"Overlap {row['overlap']}: one more member takes 2 ms at most", row["us to add"] <= 2_000)


def offers(pair: DomainPair | None, quick: bool) -> Iterator[Row]:  # noqa: ARG001  # as all experiments
    """Times by the number of offers: of an equal value, and of the best of those that a comparison finds."""
    with ExitStack() as stack:
        place = stack.enter_context(Federation()).lookup()
        for number in (1_000,) if quick else (1_000, 10_000, 100_000):
            server = TraderServer(place.config)
            stack.callback(server.stop)
            server.start(30.0)
            trader = server._registry.trader  # so many would need a lookup service as large
            for each in range(number):
                said: dict[str, Any] = {"number": each, "load": each / number, "name": f"service {each}"}
                ref = ServiceRef(f"{each:032x}", "offer", ())
                trader.put(ServiceItem(ref.service_id, (OFFERED.name,), ref, OFFERED.entries(said)))
            proxy = stack.enter_context(closing(_proxy(server, place.config)))
            for constraint, preference, most in (("number == 7", "", 1_000), ("load > 0.5", "max load", 10)):
                query = OfferQuery(OFFERED.name, constraint, preference, returned=1, follow="local_only")
                for asked, ask in (("in process", trader.query), ("by a server", proxy.query)):
                    yield {"offers": number, "constraint": f"{constraint} {preference}".strip(), "asked": asked,
                           "us": _median_us(partial(ask, query), most)}  # fmt: skip


def offers_promised(rows: Rows) -> Iterator[Promise]:
    """Those that are looked up by an equal value are found at once."""
    for asked, most in (("in process", 50), ("by a server", 500)):
        worst = max(row["us"] for row in rows if row["asked"] == asked and "==" in row["constraint"])
        yield Promise(f"An offer by an equal value, {asked}: at most {most} us", worst <= most)


def _proxy(server: TraderServer, config: Config) -> TraderProxy:
    """Proxy of a trader of this process."""
    return TraderProxy(ServiceRef(server.service_id, TRADER, (server.address,)), config.security())


def _median_us(what: Callable[[], object], rounds: int) -> int:
    return round(1e6 * statistics.median(timeit.repeat(what, number=1, repeat=rounds)))


def traders(pair: DomainPair | None, quick: bool) -> Iterator[Row]:  # noqa: ARG001  # as all experiments
    """Times by the number of traders that answer: that of each domain asks those of all before it, side by side."""
    with ExitStack() as stack:
        link = stack.enter_context(Link("127.0.4.3"))
        behind: list[str] = []
        for number in range(1, 3 if quick else 6):
            place = stack.enter_context(Federation()).lookup()
            config = msgspec.structs.replace(place.config, domain=DomainSection(number=number, traders=tuple(behind)))
            services = stack.enter_context(Services(config))
            services.offer(OFFERED, {"number": number, "load": 0.5, "name": f"domain {number}"})
            server = TraderServer(config)
            stack.callback(server.stop)
            server.start(30.0)
            behind += link.behind(place.config, server.address).lookup.locators
            query = OfferQuery(OFFERED.name, "load == 0.5", follow="always", hops=1)
            proxy = stack.enter_context(closing(_proxy(server, config)))
            until(partial(_is_answered, proxy, query, number))
            for name, (delay, _) in LINKS.items():
                link.shape(delay=delay)
                lost = number - len(proxy.query(query).offers)
                yield {"traders": number, "link": name.partition(",")[0],
                       "us": _median_us(partial(proxy.query, query), 5 if quick else 50), "lost": lost}  # fmt: skip
                link.shape(delay=0.0)


def _is_answered(proxy: TraderProxy, query: OfferQuery, number: int) -> bool:
    return len(proxy.query(query).offers) == number


class _Polled:
    """Service that says what has come last to whoever asks."""

    last = b""

    @exported
    def get(self, caller: Caller) -> bytes:  # noqa: ARG002  # the form of what is exported
        return self.last


def polling(pair: DomainPair | None, quick: bool) -> Iterator[Row]:
    """Latencies of clients that are to know of each change, by events, and by asking each second."""
    assert pair is not None
    pair.link.shape(delay=0.04, bits_per_second=8e6)
    changes, rate = (4, 4.0) if quick else (40, 1.4)
    for clients in (2,) if quick else (1, 8):
        said = delivered(pair, WANTED, [(0, 1)] * clients, [0] * changes, rate)
        yield {"clients": clients, "how": "events", "messages": changes, **_known(said)}
        yield {"clients": clients, "how": "polling", **_known(polled(pair, clients, changes, rate))}


def _known(said: Row) -> Row:
    return {{"lost": "missed"}.get(name, name): value for name, value in said.items() if name != "CPU ms"}


def polled(pair: DomainPair, clients: int, changes: int, rate: float) -> Row:
    """The same changes, known by a call a second of each client."""
    service, done, calls = _Polled(), threading.Event(), [0]
    late: list[float] = []

    def poll(offset: float) -> int:
        """Asks until the end; how many changes it has seen."""
        due = time.monotonic() + offset
        seen: set[bytes] = set()
        with closing(over.connect(offer)) as client:
            while not done.wait(max(0.0, due - time.monotonic())):
                calls[0] += 1
                due += PERIOD
                said: bytes = client.call("get", bytes)
                if said and said not in seen:
                    seen.add(said)
                    late.append(time.monotonic() - float(said[:20]))
        return len(seen)

    with Services(pair.there) as services, Services(pair.over) as over:
        services.offer(OFFERED, {"name": "polled"}, calls=service)
        until(lambda: services.find(OFFERED.name))
        pair.link.to(services.find(OFFERED.name)[0].reference.endpoints[0])
        until(lambda: over.find(OFFERED.name))
        offer = over.find(OFFERED.name)[0]
        before, began = quiet(pair.link), time.monotonic()
        with ThreadPoolExecutor(clients) as pool:
            polls = [pool.submit(poll, PERIOD * number / clients) for number in range(clients)]
            try:
                for number in range(changes):
                    time.sleep(max(0.0, began + number / rate - time.monotonic()))
                    service.last = stamped()
                time.sleep(1.5 * PERIOD)
            finally:
                done.set()
            seen = sum(each.result() for each in polls)
        crossed = quiet(pair.link) - before
    return {"messages": 2 * calls[0], "KB": round(crossed / 1_000), **latency(late), "lost": clients * changes - seen}


def polling_promised(rows: Rows) -> Iterator[Promise]:
    """Events come sooner, by fewer messages, and none is missed."""
    events, polls = ([row for row in rows if row["how"] == how] for how in ("events", "polling"))
    yield Promise("By events no change was missed", not any(row["missed"] for row in events))
    for one, other in zip(events, polls, strict=True):
        good = one["p50 ms"] < other["p50 ms"] and one["messages"] < other["messages"]
        yield Promise(f"{one['clients']} by events: sooner, and by fewer messages than by polling", good)


EXPERIMENTS: Final = {
    "bytes": DomainExperiment(
        "Bytes over the link, by what clients have in common", bytes_across, bytes_promised,
        (("bytes", "overlap", "KB", ("how",)),),
    ),
    "latency": DomainExperiment(
        f"Latency of {RATE:.0f} events a second", latencies, latencies_promised,
        (("latency", "clients", "p95 ms", ("link", "how")), ("growth", "clients", "KB", ("link", "how"))),
    ),
    "polling": DomainExperiment(
        "Events against polling each second, 40 ms each way", polling, polling_promised,
        (("polling", "clients", "messages", ("how",)), ("polling-latency", "clients", "p50 ms", ("how",))),
    ),
    "matching": DomainExperiment(
        f"Matching by {MEMBERS} rectangles and by their aggregate", matching, matching_promised,
        (), has_pair=False,
    ),
    "offers": DomainExperiment(
        "Query of a trader", offers, offers_promised,
        (("offers", "offers", "us", ("constraint", "asked")),), has_pair=False,
    ),
    "traders": DomainExperiment(
        "Query that several traders answer", traders, _complete,
        (("traders", "traders", "us", ("link",)),), has_pair=False,
    ),
}  # fmt: skip
