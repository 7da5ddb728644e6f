"""Answers larger than a page: nothing is missed or made up, whatever comes, changes and goes between the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from unittest import mock

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.errors import EntryError, IncompatibleEntryError, JbiError, ProtocolError
from jbi_pubsub.core.lease import FOREVER, FixedLeasePeriodPolicy
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.lookup import items as items_module
from jbi_pubsub.lookup import posting as posting_module
from jbi_pubsub.lookup.client import proxy as proxy_module
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.proxy import EVERYTHING, RegistrarProxy
from jbi_pubsub.lookup.client.states import RegistrarWatch, WatchState
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ALL_TRANSITIONS, BOUNDS, ServiceItem, ServiceMatches, ServiceTemplate
from jbi_pubsub.lookup.items import PAGE_BYTES
from jbi_pubsub.lookup.quotas import RegistrarLimits
from jbi_pubsub.lookup.registrar import Outcome, Registrar
from tests.lookup.test_registrar_session import a_session

COLOUR = define("Colour", {"name": str, "note": str})
COLOUR_NEW = define("Colour", {"name": str, "shade": str})
RED = ServiceTemplate(entries=(EntryRep(COLOUR, ("red", None)),))
NOW = 1000.0
NAMES = [f"s{number}" for number in range(12)]
POLICY = FixedLeasePeriodPolicy(maximum=1000.0, default=1000.0)


def item(name: str, colour: str = "red", note: str = "") -> ServiceItem:
    return ServiceItem(name, ("Lamp",), ServiceRef("", name, ()), (EntryRep(COLOUR, (colour, note)),))


class Lamps:
    """A registrar with items that come, change and go, and what a list of them says."""

    def __init__(self) -> None:
        self.registrar = Registrar(service_id="own", item_leases=POLICY, event_leases=POLICY)
        self.now = NOW
        self.held: dict[str, tuple[ServiceItem, str, float]] = {}

    def apply(self, step: tuple[str, str, str]) -> Outcome:
        """Do one step; what the registrar wants sent."""
        what, name, value = step
        if what == "time":
            self.now += 1.0
            return self.registrar.expire(self.now) if value == "red" else Outcome(None)
        if what == "own":
            self.held["own"] = (item("own", value, name), "own", FOREVER)
            return self.registrar.put_own(self.held["own"][0], self.now)
        if what == "register" or name not in self.held or self.held[name][2] <= self.now:
            duration = 3.0 if what == "brief" else 1000.0
            outcome = self.registrar.register(item(name, value), duration, self.now)
            self.held[name] = (item(name, value), outcome.result.lease_id, self.now + duration)
            return outcome
        kept, lease_id, ends = self.held[name]
        if what == "cancel":
            del self.held[name]
            return self.registrar.cancel(lease_id, self.now)
        changed = (EntryRep(COLOUR, (value, str(self.now))),)
        self.held[name] = (msgspec.structs.replace(kept, entries=changed), lease_id, ends)
        return self.registrar.set_attributes(name, lease_id, changed, self.now)

    def matching(self, template: ServiceTemplate) -> dict[str, ServiceItem]:
        return {n: kept for n, (kept, _, ends) in self.held.items() if ends > self.now and template.matches(kept)}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "register", "change", "cancel", "time", "brief", "own"]),
        st.sampled_from(NAMES),
        st.sampled_from(["red", "blue"]),
    ),
    max_size=5,
)
PAGES = st.lists(STEPS, max_size=12)
LONGER = st.lists(STEPS, max_size=5).map(lambda parts: [step for part in parts for step in part])
SIZES = {
    "page_bytes": st.sampled_from([256, 600]),
    "page_steps": st.sampled_from([1, 3, 20_000]),
    "count_each": st.sampled_from([0, 1000]),
    "crowd": st.sampled_from([1, 512]),
}
TEMPLATES = st.sampled_from([RED, ServiceTemplate(), ServiceTemplate(types=("Lamp",)), ServiceTemplate("s3")])


@contextmanager
def small(page_bytes: int, page_steps: int = 20_000, count_each: int = 1000, crowd: int = 512) -> Iterator[None]:
    sizes = {"PAGE_BYTES": page_bytes, "PAGE_STEPS": page_steps, "COUNT_EACH": count_each}
    with mock.patch.multiple(items_module, **sizes), mock.patch.object(posting_module, "CROWD", crowd):
        yield


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=examples(250))
@given(
    before=LONGER,
    between=PAGES,
    template=TEMPLATES,
    limit=st.sampled_from([1, 4, 1000]),
    **SIZES,
)
def test_what_matches_all_the_while_is_in_the_pages_and_what_never_did_is_not(
    before, between, template, limit, **sizes
):
    """Given items, when they change between the pages, then each that matched all the while came, in a state that it
    had; none came that did not match at some time; and without changes each came once."""
    with small(**sizes):
        lamps = Lamps()
        for name in NAMES:
            lamps.apply(("register", name, "red"))
        for step in before:
            lamps.apply(step)
        always = lamps.matching(template)
        ever: dict[str, list[ServiceItem]] = {}
        got: list[ServiceItem] = []
        after, changes = "", iter(between)
        for pages in count():
            assert pages < 500, "it ends"
            for name, matching in lamps.matching(template).items():
                ever.setdefault(name, []).append(matching)
            page = lamps.registrar.lookup_all(template, lamps.now, limit, total=True, after=after)
            assert page.total == len(lamps.matching(template))
            assert len(page.items) <= limit
            assert sum(-(-len(msgspec.msgpack.encode(i)) // 256) * 256 for i in page.items[:-1]) < sizes["page_bytes"]
            got += page.items
            after = page.after
            if not after or len(got) >= limit:
                break
            for step in next(changes, ()):
                lamps.apply(step)
                matching = lamps.matching(template)
                always = {name: kept for name, kept in always.items() if name in matching}
    assert all(each in ever[each.service_id] for each in got)
    if len(got) < limit:
        assert {each.service_id for each in got} >= set(always)
    else:
        assert len(got) >= limit
    if not any(between):
        assert len({each.service_id for each in got}) == len(got) == min(limit, len(always))


class Wire(RegistrarProxy):
    """A registrar's proxy without a wire; `between` is what happens behind each page."""

    def __init__(self, lamps: Lamps, between: Callable[[], None]) -> None:
        self._lamps = lamps
        self._between = between
        self.ref = ServiceRef("", "registrar", ("nowhere:1",))
        self._client = self  # type: ignore[assignment]  # answers its own calls

    def call(self, method: str, _: object, *arguments: object) -> ServiceMatches:
        assert method == "lookup"
        template, limit, total, after = arguments
        try:
            return self._lamps.registrar.lookup_all(template, self._lamps.now, limit, total=total, after=after)
        finally:
            self._between()


class Client:
    """A session at the lamps' registrar whose events come late, and are lost now and then."""

    def __init__(self, lamps: Lamps, between: Iterator[tuple[list[tuple[str, str, str]], int, int]]) -> None:
        self.lamps, self.between, self.on_the_way = lamps, between, []
        self.cache = LookupCache(RED)
        ref = ServiceRef("lamps", "registrar", ("nowhere:1",))
        self.session = a_session(ref, 1000.0, 1.0)
        self.session._proxy = Wire(lamps, self.meanwhile)
        self.key = id(self.cache)
        self.session._watchers = {self.key: self.cache}

    def watch(self) -> None:
        """As the session does it: register first, then look up."""
        registrar, now = self.lamps.registrar, self.lamps.now
        got = registrar.notify(RED, int(ALL_TRANSITIONS), 1000.0, now, handback=str(self.key)).result
        self.session._watched[self.key] = RegistrarWatch(self.cache, got.event_id, got.number, got.lease_id)
        self.meanwhile()
        self.resync()

    def resync(self) -> None:
        while self.session._watched[self.key].state is WatchState.STALE:
            self.session._resync(self.session._watched[self.key])

    def meanwhile(self) -> None:
        """Changes; then some events are lost, and some of the others arrive."""
        steps, lost, arrived = next(self.between, ([], 0, 3))
        for step in steps:
            self.on_the_way += [event for _, event in self.lamps.apply(step).events]
        del self.on_the_way[:lost]
        self.arrive(arrived)

    def arrive(self, most: int) -> None:
        coming, self.on_the_way = self.on_the_way[:most], self.on_the_way[most:]
        for event in coming:
            self.session._dispatch(event)


@pytest.mark.long
@settings(derandomize=True, deadline=None, max_examples=examples(250))
@given(
    before=STEPS,
    between=st.lists(st.tuples(STEPS, st.sampled_from([0, 0, 0, 1, 2]), st.integers(0, 6)), max_size=15),
    behind=STEPS,
    **SIZES,
)
def test_a_watcher_sees_the_truth_though_items_change_between_the_pages(before, between, behind, **sizes):
    """Given a watcher that looks up page by page while items change, and events that come late or are lost; when all
    that was not lost has come, and one more after that, it has seen exactly what a list of the items says."""
    with small(**sizes):
        lamps = Lamps()
        for name in NAMES[:6]:
            lamps.apply(("register", name, "red"))
        for step in before:
            lamps.apply(step)
        client = Client(lamps, iter(between))
        client.watch()
        for step in behind:
            client.on_the_way += [event for _, event in lamps.apply(step).events]
        client.arrive(1000)
        client.resync()
        client.between = iter(())  # now it is quiet
        for step in [("time", "", "red"), ("register", "last", "red")]:  # a gap shows with the next event
            client.on_the_way += [event for _, event in lamps.apply(step).events]
        client.arrive(1000)
        client.resync()
    assert {each.service_id: each for each in client.cache.items()} == lamps.matching(RED)


class TestPages:
    def many(self, registrar: Registrar, number: int, size: int) -> None:
        for each in range(number):
            registrar.register(item(f"big-{each:04}", note="x" * size), 300.0, NOW)

    def test_600_items_of_60_kb_come_in_pages_of_a_megabyte(self):
        """Given 36 MB of items, more than a client takes in one answer, each page is a megabyte."""
        registrar = Registrar()
        self.many(registrar, 600, 60_000)
        sizes, found, after = [], set(), ""
        while True:
            page = registrar.lookup_all(RED, NOW, EVERYTHING, after=after)
            sizes.append(len(msgspec.msgpack.encode(page)))
            found |= {each.service_id for each in page.items}
            if not page.after:
                break
            after = page.after
        assert len(found) == 600
        assert max(sizes) < PAGE_BYTES + BOUNDS.item_bytes + 1000
        assert min(sizes[:-1]) > PAGE_BYTES // 2

    def test_the_own_item_keeps_its_place_and_counts_with_what_it_is_now(self):
        """Given an own item that becomes large behind the first of others, when it is looked up page by page,
        then it comes once, in its place, and closes the page."""
        registrar = Registrar(service_id="own")
        registrar.register(item("first"), 60.0, NOW)
        registrar.put_own(item("own"), NOW)
        registrar.register(item("last"), 60.0, NOW)
        with small(page_bytes=1024):
            registrar.put_own(item("own", note="x" * 2000), NOW)
            registrar.register(item("new"), 60.0, NOW)
            page = registrar.lookup_all(RED, NOW, 10)
            rest = registrar.lookup_all(RED, NOW, 10, after=page.after)
        assert [each.service_id for each in (*page.items, *rest.items)] == ["first", "own", "last", "new"]
        assert len(rest.items) == 2

    def test_everything_is_all_that_a_registrar_holds_and_its_own_item(self):
        assert RegistrarLimits().items + 1 == EVERYTHING

    def test_the_own_item_may_be_larger_than_others(self):
        """Nobody can make it so from outside; the names of 64 groups take more than an item may."""
        registrar = Registrar(service_id="own", limits=RegistrarLimits(item_bytes=500))
        registrar.put_own(item("own", note="x" * 1000), NOW)
        assert len(registrar.lookup_all(RED, NOW, 10).items) == 1

    def test_a_lookup_of_few_says_nothing_of_pages(self):
        registrar = Registrar()
        self.many(registrar, 30, 60_000)
        assert registrar.lookup_all(RED, NOW, 10).after == ""
        assert registrar.lookup_all(RED, NOW, 30).after != ""

    def test_a_cursor_of_another_run_begins_again(self):
        registrar, other = Registrar(), Registrar()
        self.many(registrar, 30, 60_000)
        self.many(other, 60, 60_000)
        foreign = other.lookup_all(RED, NOW, 1000).after
        assert registrar.lookup_all(RED, NOW, 1000, after=foreign) == registrar.lookup_all(RED, NOW, 1000)

    @pytest.mark.parametrize("cursor", ["x", ":", "x:", "x:-1", "x:1e9", "x:" + "9" * 30, "x:\u0663", "5"])
    def test_what_is_no_cursor_is_refused(self, cursor):
        with pytest.raises(EntryError, match="not a cursor"):
            Registrar().lookup_all(RED, NOW, 10, after=cursor)

    def test_a_page_costs_the_same_wherever_it_begins(self):
        """Given many small items, a page in the middle looks at its own items only, not at all before it."""
        registrar = Registrar(limits=RegistrarLimits(matches=100))
        for number in range(2000):
            registrar.register(item(f"s{number:04}"), 300.0, NOW)
        looked = 0
        is_live = registrar._leases.items.is_live

        def counting(lease_id: str, now: float) -> bool:
            nonlocal looked
            looked += 1
            return is_live(lease_id, now)

        after, pages = registrar.lookup_all(ServiceTemplate(), NOW, 1000).after, 1
        with mock.patch.object(registrar._leases.items, "is_live", counting):
            while after:
                looked = 0
                after = registrar.lookup_all(ServiceTemplate(), NOW, 1000, after=after).after
                assert looked <= 100
                pages += 1
        assert pages == 20

    @pytest.mark.parametrize("what", ["the same cursor", "empty pages", "the same items"])
    def test_a_lookup_service_whose_pages_never_end_is_left(self, what):
        cursors = count()

        def page(*_: object) -> ServiceMatches:
            items = () if what == "empty pages" else (item("s1"),)
            return ServiceMatches(items, -1, "run:1" if what == "the same cursor" else f"run:{next(cursors)}")

        proxy = Wire(Lamps(), lambda: None)
        with (
            mock.patch.object(Wire, "call", side_effect=page),
            mock.patch.object(proxy_module, "EVERYTHING", 100),
            pytest.raises(ProtocolError, match="circle"),
        ):
            proxy.lookup(RED, 10)
        assert next(cursors) <= 202


def test_a_lookup_that_is_refused_in_a_resync_is_told_and_disturbs_nobody():
    """Given a watcher whose entry class has left and come back as another generation, its resync tells the error; the
    session goes on, and events of its own generation still come."""
    lamps = Lamps()
    client = Client(lamps, iter(()))
    client.watch()
    other = ServiceItem("new", ("Lamp",), ServiceRef("", "new", ()), (EntryRep(COLOUR_NEW, ("red", "dark")),))
    lamps.registrar.register(other, 300.0, NOW)
    client.session._look_again()
    client.resync()
    error: JbiError | None = client.cache.error
    assert isinstance(error, IncompatibleEntryError)
    client.on_the_way += [event for _, event in lamps.apply(("register", "s1", "red")).events]
    client.arrive(10)
    assert [each.service_id for each in client.cache.items()] == ["s1"]
