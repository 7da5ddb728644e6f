"""How fast the first level matches: items for a template, events for a change, and recovery of the store.

    python benchmarks/lookup.py [--small N] [--large N] [--json FILE]

Entries have 8 fields with values of a power law, templates one of 30 masks, or (`shapes`) any, friendly and ugly. The
times are microseconds of CPU per call (of the store: on the wall); the baseline of the same run is the linear scan with
the definition of matching. Items carry a type, a proxy and an id.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup.entry import EntryRep, define, matches
from jbi_pubsub.lookup.index import EntryIndex, TemplateIndex
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.store import Store

FIELDS = 8
MASKS = 30
HITS = 800 / 1_000_000
"""Share of the entries that the templates of the index benchmark match on average: about 800 of a million."""

CLASS = define("jbi.bench.Imagery", {f"f{i}": str for i in range(FIELDS)})
TYPE = "jbi.PublisherRegistration"

Row = dict[str, float | int | str]


class Population:
    """Entries and templates of one seed: each template is taken from an entry, so it matches something."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pairs = [tuple(sorted(self.random.sample(range(FIELDS), 2 + i % 3))) for i in range(MASKS)]
        self.masks = list(dict.fromkeys(pairs))

    def values(self) -> tuple[str, ...]:
        return tuple(f"value-{min(99, int(self.random.paretovariate(0.5)) - 1)}" for _ in range(FIELDS))

    def entry(self) -> EntryRep:
        return EntryRep(CLASS, self.values())

    def template(self) -> EntryRep:
        mask, values = self.random.choice(self.masks), self.values()
        return EntryRep(CLASS, tuple(v if i in mask else None for i, v in enumerate(values)))

    def item(self, number: int) -> ServiceItem:
        proxy = ServiceRef("", f"publisher-{number}", ("127.0.0.1:4711",), ("register_subscription", "renew", "cancel"))
        return ServiceItem("", (TYPE, "jbi.Service"), proxy, (self.entry(),))


def microseconds(
    calls: Sequence[Callable[[], object]], rounds: int = 1, clock: Callable[[], float] = time.thread_time
) -> float:
    """Mean CPU time of a call; the collector is off. A pause of either, or of the machine, is not the call's."""
    gc.collect()
    gc.disable()
    start = clock()
    for _ in range(rounds):
        for call in calls:
            call()
    spent = clock() - start
    gc.enable()
    return spent / len(calls) / rounds * 1e6


def items_by_template(n: int) -> Iterator[Row]:
    """One EntryIndex of n entries."""
    population = Population(1)
    index: EntryIndex[str] = EntryIndex()
    entries = [population.entry() for _ in range(n)]
    start = time.thread_time()
    for number, entry in enumerate(entries):
        index.add(f"{number:x}-{population.random.getrandbits(64):x}", (entry,))
    added = (time.thread_time() - start) / n * 1e6
    templates = [population.template() for _ in range(2000)]
    hits = [len(index.find((t,))) for t in templates]
    few = [t for t, h in zip(templates, hits, strict=True) if 0 < h <= 2 * HITS * 1_000_000][:1000]
    found = [len(index.find((t,))) for t in few]
    linear = microseconds([lambda t=t: [e for e in entries[:10_000] if matches(t, e)] for t in few[:10]]) * n / 10_000
    every = microseconds([lambda t=t: list(index.find((t,))) for t in few], 3)
    first = microseconds([lambda t=t: next(iter(index.find((t,))), None) for t in templates], 3)
    yield {"what": "items by template: all", "n": n, "us": every, "hits": sum(found) / len(found), "baseline": linear}
    yield {"what": "items by template: first", "n": n, "us": first, "hits": 1, "baseline": linear}
    yield {"what": "index an entry, from the first on", "n": n, "us": added}
    some = [(f"new-{i}", population.entry()) for i in range(2000)]
    put = microseconds([lambda k=k, e=e: index.add(k, (e,)) for k, e in some])
    taken = microseconds([lambda k=k: index.remove(k) for k, _ in some])
    yield {"what": "index an entry", "n": n, "us": put}
    yield {"what": "take an entry out", "n": n, "us": taken}


def templates_by_item(n: int) -> Iterator[Row]:
    """One TemplateIndex of n templates, asked with entries."""
    population = Population(2)
    index: TemplateIndex[str] = TemplateIndex()
    templates = [population.template() for _ in range(n)]
    start = time.perf_counter()
    for number, template in enumerate(templates):
        index.add(f"{number:x}-{population.random.getrandbits(64):x}", (template,))
    added = (time.perf_counter() - start) / n * 1e6
    entries = [population.entry() for _ in range(2000)]
    hits = [len(index.find((e,))) for e in entries]
    few = [e for e, h in zip(entries, hits, strict=True) if h <= 2 * HITS * 1_000_000][:1000] or entries[:100]
    found = [len(index.find((e,))) for e in few]
    linear = microseconds([lambda e=e: [t for t in templates[:10_000] if matches(t, e)] for e in few[:10]]) * n / 10_000
    warm = microseconds([lambda e=e: index.find((e,)) for e in few], 3)
    yield {"what": "templates by item", "n": n, "us": warm, "hits": sum(found) / len(found), "baseline": linear}
    yield {"what": "add a template", "n": n, "us": added}


def registrar(n: int) -> Iterator[Row]:
    """A registrar with n items, then n event registrations."""
    population = Population(3)
    decoder = msgspec.msgpack.Decoder(ServiceItem)  # items come from the wire: nothing is shared before
    limits = RegistrarLimits(items_per_owner=10 * n, event_registrations_per_owner=10 * n, bytes_per_owner=1 << 40)
    services = Registrar(limits=limits)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(n):
        services.register(decoder.decode(msgspec.msgpack.encode(population.item(number))), 300.0, 0.0)
    templates = [ServiceTemplate(types=(TYPE,), entries=(population.template(),)) for _ in range(500)]
    size = (tracemalloc.get_traced_memory()[0] - before) / n
    tracemalloc.stop()
    yield {"what": "memory of an item, bytes", "n": n, "us": size}
    held = services.lookup_all(ServiceTemplate(), 0.0, 10_000).items
    linear = microseconds([lambda t=t: [i for i in held if t.matches(i)] for t in templates[:10]]) * n / len(held)
    few = [t for t in templates if services.lookup_all(t, 0.0, 0, total=True).total <= 2 * HITS * 1_000_000]
    fields = [ServiceTemplate(entries=t.entries) for t in few]
    any_of = ServiceTemplate(types=(TYPE,))
    for what, calls in (
        ("lookup one, fields", [lambda t=t: services.lookup(t, 0.0) for t in fields]),
        ("lookup one, type and fields", [lambda t=t: services.lookup(t, 0.0) for t in few]),
        ("lookup ten, type and fields", [lambda t=t: services.lookup_all(t, 0.0, 10) for t in few]),
        ("lookup one of all, by type", [lambda: services.lookup(any_of, 0.0)] * 100),
        ("lookup one and the total, by type", [lambda: services.lookup_all(any_of, 0.0, 1, total=True)] * 100),
    ):
        yield {"what": what, "n": n, "us": microseconds(calls, 3), "baseline": linear}
    population = Population(4)
    for listeners in (0, n // 100, n):
        while services.status().event_registrations < listeners:
            for _ in range(max(1, listeners // 10)):
                wanted = population.template()
                values = tuple(v and f"{v}-{population.random.randrange(3000)}" for v in wanted.values)
                wanted = ServiceTemplate(types=(TYPE,), entries=(EntryRep(CLASS, values),))
                services.notify(wanted, ALL_TRANSITIONS, 300.0, 0.0, listener="channel")
        yield from _changes(services, population, n, listeners)


def _changes(services: Registrar, population: Population, n: int, listeners: int) -> Iterator[Row]:
    items = [population.item(10 * n + number) for number in range(500)]
    book = services._book
    got = []
    matching = microseconds([lambda i=i: book.fire(None, i, lambda _: True) for i in items], 3)
    put = microseconds([lambda i=i: got.append(services.register(i, 300.0, 0.0).result) for i in items])
    renewed = microseconds([lambda g=g: services.renew(g.lease_id, 300.0, 0.0) for g in got])
    gone = microseconds([lambda g=g: services.cancel(g.lease_id, 0.0) for g in got])
    for what, spent in (("match a change", matching), ("register", put), ("renew", renewed), ("cancel", gone)):
        yield {"what": f"{what}, {listeners:,} listeners", "n": n, "us": spent}


HALVES = define("jbi.bench.Halves", {"left": str, "right": str, "serial": str})
"""Of each item `left` or `right` is set to "yes", never both; every serial is another."""


def shapes(n: int) -> Iterator[Row]:
    """Lookups of one item in a registrar of n, by all kinds of templates, the ugly ones too, each for the first time:
    the median and the longest."""
    population = Population(6)
    random = population.random
    services = Registrar(limits=RegistrarLimits(items_per_owner=10 * n, bytes_per_owner=1 << 40))
    took, values = [], []
    gc.collect()
    gc.disable()
    for number in range(n):
        item = population.item(number)
        half = EntryRep(HALVES, (("yes", None)[number % 2], (None, "yes")[number % 2], f"{number}"))
        values.append(item.entries[0].values)
        item = msgspec.structs.replace(item, entries=(*item.entries, half))
        start = time.thread_time()
        services.register(item, 300.0, 0.0)
        took.append(time.thread_time() - start)
    yield _spread("register an item of two entries", n, took)

    def any_mask(fields: int) -> ServiceTemplate:
        mask, found = random.sample(range(FIELDS), fields), random.choice(values)
        rep = EntryRep(CLASS, tuple(value if i in mask else None for i, value in enumerate(found)))
        return ServiceTemplate(types=(TYPE,) if random.random() < 0.5 else (), entries=(rep,))

    def half(left: str | None, right: str | None, serial: str | None = None, *more: EntryRep) -> ServiceTemplate:
        return ServiceTemplate(types=(TYPE,), entries=(EntryRep(HALVES, (left, right, serial)), *more))

    all_wild = EntryRep(CLASS, (None,) * FIELDS)
    for what, templates in (
        ("any mask of 1 to 8 fields, half with a type", [any_mask(1 + i % FIELDS) for i in range(2000)]),
        ("the same with the total", [any_mask(1 + i % FIELDS) for i in range(500)]),
        ("two halves that have nothing in common", [half("yes", "yes")] * 50),
        ("the same and another class", [half("yes", "yes", None, all_wild)] * 50),
        ("a half and one serial", [half("yes", None, f"{2 * random.randrange(n // 2)}") for _ in range(500)]),
        ("nothing set, of a class", [ServiceTemplate(entries=(all_wild,))] * 50),
        ("nothing at all", [ServiceTemplate()] * 50),
    ):
        took = []
        for template in templates:
            start = time.thread_time()
            services.page(template, 0.0, 1, total="total" in what)
            took.append(time.thread_time() - start)
        yield _spread(what, n, took)
    for what, template in (("page of all items", ServiceTemplate()), ("page of a half", half("yes", None))):
        took, after = [], None
        while after != "":
            start = time.thread_time()
            after = services.page(template, 0.0, n, after=after or "").after
            took.append(time.thread_time() - start)
        yield _spread(f"{what} (of {len(took)})", n, took)
    gc.enable()


def _spread(what: str, n: int, took: list[float]) -> Row:
    return {"what": what, "n": n, "us": sorted(took)[len(took) // 2] * 1e6, "longest": max(took) * 1e6}


def store(n: int) -> Iterator[Row]:
    """A store of n items: written in one burst, one by one, and recovered. Times are microseconds an item."""
    population = Population(5)
    limits = RegistrarLimits(items_per_owner=10 * n, bytes_per_owner=1 << 40)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lookup.db"
        kept = Store(path)
        services = Registrar(log=kept, limits=limits)
        services.restore(kept.recover(0.0, 1e9), 0.0)
        for number in range(n):
            services.register(population.item(number), 300.0, 0.0)
        burst = microseconds([kept.sync], clock=time.perf_counter) / n
        single = []
        for number in range(200):
            services.register(population.item(n + number), 300.0, 0.0)
            single.append(microseconds([kept.sync], clock=time.perf_counter))
        size = kept.status().bytes / n
        kept.close()
        start = time.perf_counter()
        kept = Store(path)
        services = Registrar(log=kept, limits=limits)
        services.restore(kept.recover(0.0, 1e9), 0.0)
        recovered = (time.perf_counter() - start) / n * 1e6
        assert services.status().items == n + 200
        kept.close()
    yield {"what": "store: an item of a burst", "n": n, "us": burst}
    yield {"what": "store: a commit alone (median)", "n": n, "us": sorted(single)[100]}
    yield {"what": "store: recover an item", "n": n, "us": recovered}
    yield {"what": "store: bytes on disk an item", "n": n, "us": size}


def main() -> None:
    """Print a table; --json writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=10_000)
    parser.add_argument("--large", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS])
    options = parser.parse_args()
    rows: list[Row] = []
    print(f"{'':44}{'n':>10}{'us':>12}{'longest':>10}{'hits':>8}{'x linear':>12}")
    for part in PARTS:
        for n in (options.small, options.large) if options.only in (None, part.__name__) else ():
            for row in part(n):
                rows.append(row)
                faster = f"{float(row['baseline']) / float(row['us']):,.0f}" if "baseline" in row else ""
                hits = f"{row['hits']:.0f}" if "hits" in row else ""
                most = f"{row['longest']:,.0f}" if "longest" in row else ""
                print(f"{row['what']:44}{n:>10,}{row['us']:>12,.2f}{most:>10}{hits:>8}{faster:>12}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"python": sys.version.split()[0], "rows": rows}, indent=1))


PARTS = (items_by_template, templates_by_item, registrar, shapes, store)

if __name__ == "__main__":
    main()
