"""How fast the first level matches: items for a template, events for a change, and recovery of the store.

    python benchmarks/lookup.py [--small N] [--large N] [--json FILE]

Entries have 8 fields with values of a power law, templates one of 30 masks; the times are microseconds per call, the
baseline of the same run is the linear scan with the definition of matching; for the longest call it is the time until
the slowest answer, of which a call is a slice. Items carry a type, a proxy and an id.
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
from jbi_pubsub.lookup.registrar import Registrar, RegistrarLimits
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


def microseconds(calls: Sequence[Callable[[], object]], rounds: int = 1) -> float:
    """Mean time of a call; the collector is off, as a pause is not the call's."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    for _ in range(rounds):
        for call in calls:
            call()
    spent = time.perf_counter() - start
    gc.enable()
    return spent / len(calls) / rounds * 1e6


def items_by_template(n: int) -> Iterator[Row]:
    """One EntryIndex of n entries, asked with warm tables."""
    population = Population(1)
    index: EntryIndex[str] = EntryIndex(bytes_per_key=10_000)
    entries = [population.entry() for _ in range(n)]
    start = time.perf_counter()
    for number, entry in enumerate(entries):
        index.add(f"{number:x}-{population.random.getrandbits(64):x}", (entry,))
    added = (time.perf_counter() - start) / n * 1e6
    templates = [population.template() for _ in range(2000)]
    start = time.perf_counter()
    hits = [len(index.find((t,))) for t in templates]
    cold = (time.perf_counter() - start) / len(templates) * 1e6
    few = [t for t, h in zip(templates, hits, strict=True) if 0 < h <= 2 * HITS * 1_000_000][:1000]
    rented = -1
    while rented != index.status().rented:  # until every mask has paid for its table
        rented = index.status().rented
        for template in templates:
            index.find((template,))
    found = [len(index.find((t,))) for t in few]
    linear = microseconds([lambda t=t: [e for e in entries[:10_000] if matches(t, e)] for t in few[:10]]) * n / 10_000
    warm = microseconds([lambda t=t: list(index.find((t,))) for t in few], 3)
    first = microseconds([lambda t=t: next(iter(index.find((t,))), None) for t in templates], 3)
    yield {"what": "items by template: all", "n": n, "us": warm, "hits": sum(found) / len(found), "baseline": linear}
    yield {"what": "items by template: first", "n": n, "us": first, "hits": 1, "baseline": linear}
    yield {
        "what": "items by template: with building",
        "n": n,
        "us": cold,
        "hits": sum(hits) / len(hits),
        "baseline": linear,
    }
    yield {"what": "index an entry, no tables", "n": n, "us": added}
    some = [(f"new-{i}", population.entry()) for i in range(2000)]
    put = microseconds([lambda k=k, e=e: index.add(k, (e,)) for k, e in some])
    taken = microseconds([lambda k=k: index.remove(k) for k, _ in some])
    yield {"what": f"index an entry, {index.status().tables} tables", "n": n, "us": put}
    yield {"what": f"take an entry out, {index.status().tables} tables", "n": n, "us": taken}


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
    """A registrar with n items and default limits of memory, four hot masks, then n event registrations."""
    population = Population(3)
    decoder = msgspec.msgpack.Decoder(ServiceItem)  # items come from the wire: nothing is shared before
    limits = RegistrarLimits(items_per_owner=10 * n, event_registrations_per_owner=10 * n)
    services = Registrar(limits=limits)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(n):
        services.register(decoder.decode(msgspec.msgpack.encode(population.item(number))), 300.0, 0.0)
    population.masks = population.masks[:4]
    templates = [ServiceTemplate(types=(TYPE,), entries=(population.template(),)) for _ in range(500)]
    rented = -1
    while rented != services.status().item_index.rented:
        rented = services.status().item_index.rented
        for template in templates:
            services.lookup(template, 0.0)
    size = (tracemalloc.get_traced_memory()[0] - before) / n
    tracemalloc.stop()
    yield {"what": "memory of an item with its tables, bytes", "n": n, "us": size}
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


def waits(n: int) -> Iterator[Row]:
    """How long a call keeps the registrar's lock at most: when masks are used for the first time, and page by page. The
    collector is off, as a pause is not the call's."""
    population = Population(6)
    services = Registrar(limits=RegistrarLimits(items_per_owner=10 * n))
    for number in range(n):
        services.register(population.item(number), 300.0, 0.0)
    templates = [ServiceTemplate(types=(TYPE,), entries=(population.template(),)) for _ in range(300)]
    gc.collect()
    gc.disable()
    longest, answers = 0.0, []
    for template in templates:
        began = time.perf_counter()
        page = None
        while page is None:
            start = time.perf_counter()
            page = services.page(template, 0.0, 1)
            longest = max(longest, time.perf_counter() - start)
        answers.append(time.perf_counter() - began)
    yield {"what": "first use of masks: longest call", "n": n, "us": longest * 1e6, "baseline": max(answers) * 1e6}
    pages: list[float] = []
    after: str | None = None
    while after != "":
        start = time.perf_counter()
        page = services.page(ServiceTemplate(), 0.0, n, after=after or "")
        pages.append(time.perf_counter() - start)
        assert page is not None
        after = page.after
    gc.enable()
    yield {"what": "all items, page by page: longest call", "n": n, "us": max(pages) * 1e6, "hits": len(pages)}
    yield {"what": "all items, page by page: the last page", "n": n, "us": pages[-1] * 1e6, "hits": 1}


def store(n: int) -> Iterator[Row]:
    """A store of n items: written in one burst, one by one, and recovered. Times are microseconds an item."""
    population = Population(5)
    limits = RegistrarLimits(items_per_owner=10 * n)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lookup.db"
        kept = Store(path)
        services = Registrar(log=kept, limits=limits)
        services.restore(kept.recover(0.0, 1e9), 0.0)
        for number in range(n):
            services.register(population.item(number), 300.0, 0.0)
        burst = microseconds([kept.sync]) / n
        single = []
        for number in range(200):
            services.register(population.item(n + number), 300.0, 0.0)
            single.append(microseconds([kept.sync]))
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
    print(f"{'':44}{'n':>10}{'us':>12}{'hits':>8}{'x linear':>12}")
    for part in PARTS:
        for n in (options.small, options.large) if options.only in (None, part.__name__) else ():
            for row in part(n):
                rows.append(row)
                faster = f"{float(row['baseline']) / float(row['us']):,.0f}" if "baseline" in row else ""
                hits = f"{row['hits']:.0f}" if "hits" in row else ""
                print(f"{row['what']:44}{n:>10,}{row['us']:>12,.2f}{hits:>8}{faster:>12}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"python": sys.version.split()[0], "rows": rows}, indent=1))


PARTS = (items_by_template, templates_by_item, registrar, waits, store)

if __name__ == "__main__":
    main()
