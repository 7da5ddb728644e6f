"""A session at a lookup service with much to hold: leases last over it, ends are prompt, one refusal is no other's."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from unittest import mock

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.core.config import Config, LeaseSection, LookupSection
from jbi_pubsub.core.errors import JbiError, LeaseDeniedError, ProtocolError, WireError, WireTimeoutError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.lease import FixedLeasePeriodPolicy
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client import events as events_module
from jbi_pubsub.lookup.client import session as session_module
from jbi_pubsub.lookup.client.events import EventConnection
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.proxy import RegistrarInfo
from jbi_pubsub.lookup.client.session import LEASES_FIRST, LEASES_MOST, RegistrarSession
from jbi_pubsub.lookup.client.states import LinkState
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import (
    EventRegistration,
    LeaseResult,
    ServiceItem,
    ServiceMatches,
    ServiceRegistration,
    ServiceTemplate,
)
from jbi_pubsub.lookup.registrar import Registrar

TERM = 60.0
PROBE = 0.01
REF = ServiceRef("registrar", "registrar", ("127.0.0.1:1",))
COLOUR = define("test.Colour", {"name": str})


def printer(number: int) -> ServiceItem:
    proxy = ServiceRef(f"printer-{number}", "printer", ("127.0.0.1:1",))
    return ServiceItem(f"printer-{number}", ("Printer",), proxy, (EntryRep(COLOUR, (f"colour-{number}",)),))


def printers(count: int) -> dict[str, ServiceItem]:
    return {item.service_id: item for item in map(printer, range(count))}


def watches(count: int) -> dict[int, LookupCache]:
    caches = [LookupCache(ServiceTemplate(entries=(EntryRep(COLOUR, (f"colour-{n}",)),))) for n in range(count)]
    return {id(cache): cache for cache in caches}


class Desk:
    """A registrar in the place of its proxy: each call takes its time, on a clock of its own."""

    ref = REF

    def __init__(self) -> None:
        leases = FixedLeasePeriodPolicy(TERM, TERM)
        self.registrar = Registrar(service_id="registrar", item_leases=leases, event_leases=leases)
        self.now = 1000.0
        self.call_seconds = self.patience = 0.0
        self.calls: list[tuple[str, int]] = []
        self.before: list[Callable[[str], None]] = []
        """What else happens when it is called."""

    def monotonic(self) -> float:
        return self.now

    def waited(self, seconds: float) -> Desk:
        """Be called by one who waits so long for each answer."""
        self.patience = seconds
        return self

    @property
    def count(self) -> Counter[str]:
        return Counter(name for name, _ in self.calls)

    def _called(self, name: str, size: int = 1) -> float:
        self.calls.append((name, size))
        for happens in self.before:
            happens(name)
        self.now += self.call_seconds
        return self.now

    def close(self) -> None: ...

    def describe(self) -> RegistrarInfo:
        self._called("describe")
        return RegistrarInfo("registrar", ("",))

    def register(self, item: ServiceItem, duration: float, key: str) -> ServiceRegistration:
        return self.registrar.register(item, duration, self._called("register"), key=key).result

    def notify(self, template: ServiceTemplate, kinds: int, duration: float, *rest: str) -> EventRegistration:
        handback, listener = rest
        now = self._called("notify")
        return self.registrar.notify(template, kinds, duration, now, handback=handback, listener=listener).result

    def pages(self, template: ServiceTemplate, limit: int) -> Iterator[ServiceMatches]:
        yield self.registrar.lookup_all(template, self._called("lookup"), limit)

    def renew(self, leases: Sequence[tuple[str, float]]) -> tuple[LeaseResult, ...]:
        return self.registrar.renew_all(leases, self._called("renew", len(leases))).result

    def cancel(self, leases: Sequence[str]) -> tuple[LeaseResult, ...]:
        return self.registrar.cancel_all(leases, self._called("cancel", len(leases))).result


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk()
    monkeypatch.setattr(session_module, "RegistrarProxy", lambda _ref, _security, timeout: made.waited(timeout))
    monkeypatch.setattr(session_module, "time", made)
    monkeypatch.setattr(RegistrarSession, "_open_events", lambda _session: None)
    return made


class Owner:
    """An owner whom nothing concerns."""

    key = staticmethod(lambda _registrar, _service_id: "")

    def __init__(self) -> None:
        self.away = self.progress = self.joined = self.refused = lambda *_: None


def a_session(ref: ServiceRef = REF, term: float = TERM, probe: float = PROBE) -> RegistrarSession:
    config = Config(lookup=LookupSection(probe=probe), lease=LeaseSection(lookup=term))
    return RegistrarSession(ref, Security(), config, "test", Owner())


@pytest.fixture
def session(desk: Desk) -> RegistrarSession:  # it is there before
    """One that is connected; the test itself takes the place of its thread."""
    made = a_session()
    made._connect()
    return made


@pytest.mark.parametrize("what", ["items", "watches"])
def test_leases_do_not_run_out_while_others_are_asked_for(what: str, desk: Desk, session: RegistrarSession) -> None:
    # Given a lookup service where a hundred registrations take longer than a lease lasts
    desk.call_seconds = 1.0
    # When so many are wanted
    session.want(printers(100) if what == "items" else {}, watches(100) if what == "watches" else {})
    session._reconcile()
    # Expect all of them to stand
    assert desk.registrar.expire(desk.now, 1000).result == 0
    assert len(session._held()) == 100


@pytest.mark.parametrize(("timeout", "seconds"), [(60.0, 60.0), (2.0, 10.0)])
def test_a_call_has_the_time_that_the_configuration_gives_it(timeout: float, seconds: float, desk: Desk) -> None:
    # A command that looks for two seconds alone does not give up a slow lookup service within them
    config = Config(lookup=LookupSection(timeout=timeout))
    RegistrarSession(REF, Security(), config, "test", Owner())
    assert desk.patience == seconds


@pytest.mark.parametrize("what", ["items", "watches"])
def test_a_session_that_is_to_end_asks_for_nothing_more(what: str, desk: Desk) -> None:
    # Given a session with hundreds of items or watches to ask for
    session = a_session()
    session.want(printers(500) if what == "items" else {}, watches(500) if what == "watches" else {})
    asking = "register" if what == "items" else "notify"
    stopping = threading.Thread(target=session.stop)

    def stop_at_the_tenth(name: str) -> None:
        if name == asking and desk.count[asking] == 10:
            stopping.start()
            while not session.has_left:
                pass

    desk.before.append(stop_at_the_tenth)
    # When it is to end in the middle of them
    session.start()
    session._thread.join(60.0)
    stopping.join(10.0)
    # Expect it to have ended with the one under way, and nothing to be left there
    assert desk.count[asking] == 10
    status = desk.registrar.status()
    assert status.items == status.event_registrations == 0


@pytest.mark.parametrize(("seconds", "most"), [(0.001, LEASES_MOST), (2.0, LEASES_FIRST)], ids=["fast", "slow"])
def test_many_leases_are_renewed_and_cancelled_in_as_many_calls_as_the_link_asks_for(
    seconds: float, most: int, desk: Desk, session: RegistrarSession
) -> None:
    # Given a thousand items that are held
    session.want(printers(1000), {})
    session._reconcile()
    desk.calls.clear()
    # When they are renewed, and then none is wanted any more, over a link where each call takes its time
    desk.call_seconds = seconds
    session._renew()
    session.want(dict.fromkeys(printers(1000)), {})
    session._reconcile()
    # Expect all in calls of what such a link carries
    for name in ("renew", "cancel"):
        sizes = [size for called, size in desk.calls if called == name]
        assert sum(sizes) == 1000
        assert sizes[0] == LEASES_FIRST
        assert max(sizes) <= most
        assert len(sizes) <= (5 if most == LEASES_MOST else 16)
    assert desk.registrar.status().items == 0


def test_a_renewal_that_takes_long_begins_in_time(desk: Desk, session: RegistrarSession) -> None:
    # Given items whose renewal takes a fifth of a term, and which were renewed once
    session.want(printers(200), {})
    session._reconcile()
    desk.call_seconds = TERM / 5 / 4  # 64 + 64 + 64 + 8
    session._renew()
    # When they are renewed as soon as that is due
    desk.now = max(desk.now, session._renew_by)
    session._renew()
    # Expect none to have run out meanwhile
    assert len(session._held()) == 200


def failing(desk: Desk, call: str, *errors: JbiError) -> None:
    """The next calls of that name fail."""
    left = iter(errors)

    def fail(name: str) -> None:
        if name == call:
            for error in left:
                raise error

    desk.before.append(fail)


def test_a_cancellation_that_nobody_answers_is_tried_again(desk: Desk, session: RegistrarSession) -> None:
    # Given items and a watch that are held
    session.want(printers(3), watches(1))
    session._reconcile()
    # When they are wanted no more, and the lookup service does not answer to that at first
    failing(desk, "cancel", WireTimeoutError("no answer"))
    session.want(dict.fromkeys(printers(3)), {})
    with pytest.raises(WireTimeoutError):
        session._reconcile()
    session._fail()
    session._connect()
    session._reconcile()
    # Expect it to know in the end, and nothing to be asked again behind that
    status = desk.registrar.status()
    assert status.items == status.event_registrations == 0
    session._reconcile()
    assert desk.count["cancel"] == 2


def test_what_is_refused_is_asked_for_again_after_a_pause_and_not_with_every_change(
    desk: Desk, session: RegistrarSession
) -> None:
    # Given a watch and an item that the lookup service refuses
    failing(desk, "register", LeaseDeniedError("no room"))
    failing(desk, "notify", LeaseDeniedError("no room"))
    refused, watch = printers(1), watches(1)
    (cache,) = watch.values()
    session.want(refused, watch)
    session._reconcile()
    assert isinstance(cache.error, LeaseDeniedError)
    desk.calls.clear()
    # When others come and go
    for number in range(1, 20):
        session.want(refused | {"other": printer(number)}, watch)
        session._reconcile()
    # Expect it not to be asked for with each of them
    assert desk.count["register"] == 19
    assert desk.count["notify"] == 0
    failing(desk, "register", LeaseDeniedError("no room"))
    failing(desk, "notify", LeaseDeniedError("no room"))
    # Expect it to be asked for later, twice as late each time, and to stand as soon as there is room
    for pause, stands in ((PROBE, False), (PROBE, False), (PROBE, True)):
        desk.now += pause
        session._reconcile()
        assert session.holds(refused["printer-0"]) is stands
        assert session.watches(cache) is stands
    assert cache.error is None


def test_refused_items_that_come_and_go_leave_nothing_behind(desk: Desk, session: RegistrarSession) -> None:
    # Given a lookup service that has no room, when items come and go
    failing(desk, "register", *[LeaseDeniedError("no room")] * 100)
    for number in range(100):
        session.want({"printer": printer(number)}, {})
        session._reconcile()
    session.want({"printer": None}, {})
    session._reconcile()
    # Expect nothing to be remembered of them
    assert not session._refused


def test_an_item_that_the_lookup_service_does_not_understand_holds_up_no_other(
    desk: Desk, session: RegistrarSession
) -> None:
    # Given items, of which the lookup service does not understand the first
    failing(desk, "register", ProtocolError("bad arguments"))
    # When they are wanted
    session.want(printers(3), watches(1))
    session._reconcile()
    # Expect the others to stand
    assert len(session._held()) == 3


@settings(derandomize=True, deadline=None, max_examples=examples(200))
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("want"), st.integers(0, 4), st.integers(0, 2)),
            st.tuples(st.just("leave"), st.integers(0, 4), st.just(0)),
            st.tuples(st.just("fail"), st.sampled_from(["register", "cancel", "renew"]), st.integers(1, 2)),
            st.tuples(st.just("refuse"), st.just("register"), st.integers(1, 2)),
            st.tuples(st.just("round"), st.just(0), st.just(0)),
            st.tuples(st.just("wait"), st.just(0), st.sampled_from([1, 100])),
        ),
        max_size=30,
    )
)
def test_whatever_fails_meanwhile_all_that_is_wanted_stands_in_the_end_and_nothing_else(steps):
    """Given items that come, change and go in pieces, calls that fail or are refused, and leases that run out, when all
    is well again the lookup service holds each item as it was last wanted."""
    desk, wanted = Desk(), {}
    with (
        mock.patch.object(session_module, "RegistrarProxy", return_value=desk),
        mock.patch.object(session_module, "time", desk),
        mock.patch.object(RegistrarSession, "_open_events"),
    ):
        session = a_session()
        session._connect()

        def round_() -> None:
            try:
                session._reconcile()
                if session._renew_by <= desk.now:
                    session._renew()
            except WireError:
                session._fail()
            if not session.connected:
                with suppress(WireError):
                    session._connect()

        for what, which, value in steps:
            if what == "want":
                item = msgspec.structs.replace(printer(which), entries=printer(value).entries)
                wanted[item.service_id] = item
                session.want({item.service_id: item}, {})
            elif what == "leave":
                wanted.pop(f"printer-{which}", None)
                session.want({f"printer-{which}": None}, {})
            elif what == "fail":
                failing(desk, which, *[WireTimeoutError("no answer")] * value)
            elif what == "refuse":
                failing(desk, which, *[LeaseDeniedError("no room")] * value)
            elif what == "wait":
                desk.now += value
            else:
                round_()
        desk.before.clear()
        for seconds in (*[session_module.REFUSED_MOST] * 4, 0.0, 0.0):
            desk.now += seconds
            round_()
        desk.registrar.expire(desk.now)
        held = desk.registrar.lookup_all(ServiceTemplate(), desk.now, 100).items
        assert {item.service_id: item for item in held} == wanted
        assert all(session.holds(item) for item in wanted.values())
        assert not session._refused


def test_a_change_of_one_item_looks_at_no_other(desk: Desk, session: RegistrarSession) -> None:
    # Given a thousand items that are held
    session.want(printers(1000), {})
    session._reconcile()
    looked: list[str] = []
    bring = session._bring
    session._bring = lambda service_id: looked.append(service_id) or bring(service_id)
    # When one of them changes, expect the round to be about that one
    session.want({"printer-7": printer(7777)}, {})
    session._reconcile()
    assert looked == ["printer-7"]


@pytest.mark.parametrize("granted", [0.0, 1e-300, -1.0, float("nan")])
def test_a_lookup_service_that_grants_nothing_is_not_asked_without_end(
    granted: float, desk: Desk, session: RegistrarSession
) -> None:
    session._renew_within(granted, desk.now)
    assert session._renew_by >= desk.now + session_module.RENEW_LEAST
    session.want(printers(1), {})
    session._reconcile()
    desk.renew = lambda leases: tuple(LeaseResult(lease_id, granted) for lease_id, _ in leases)
    session._renew()
    assert session._renew_by >= desk.now + session_module.RENEW_LEAST


class Raising(LookupCache):
    """A watcher that raises, whatever it is told."""

    def snapshot(self, *_: object) -> None:
        raise RuntimeError("snapshot")

    def changed(self, *_: object) -> None:
        raise RuntimeError("changed")

    def refused(self, *_: object) -> None:
        raise RuntimeError("refused")


def test_a_watcher_that_raises_keeps_nobody_else_from_hearing(desk: Desk, session: RegistrarSession) -> None:
    # Given one watcher that raises, and one behind it
    bad, good = Raising(ServiceTemplate()), LookupCache(ServiceTemplate())
    before = faults().get("lookup watcher", 0)
    session.want({}, {id(bad): bad, id(good): good})
    session._reconcile()
    # When a service comes, events are lost and looked up again
    outcome = desk.registrar.register(printer(1), TERM, desk.now)
    for _, event in outcome.events:
        session._dispatch(event)
    session._look_again()
    session._reconcile()
    # Expect the other one to know of it, and the faults to be counted
    assert [item.service_id for item in good.items()] == ["printer-1"]
    assert session.watches(good)
    assert faults()["lookup watcher"] >= before + 3


def test_a_listener_that_raises_is_told_of_what_comes_next(desk: Desk, session: RegistrarSession) -> None:
    # Given a listener that raises at each call
    told: list[str] = []

    class Listener:
        def service_added(self, item: ServiceItem) -> None:
            told.append(f"+{item.service_id}")
            raise RuntimeError("added")

        def service_changed(self, _: ServiceItem, new: ServiceItem) -> None:
            told.append(f"!{new.service_id}")
            raise RuntimeError("changed")

        def service_removed(self, item: ServiceItem) -> None:
            told.append(f"-{item.service_id}")
            raise RuntimeError("removed")

    cache = LookupCache(ServiceTemplate(), Listener())
    # When two services are there, one changes and goes; expect that it is told of all
    cache.snapshot("registrar", (printer(1), printer(2)))
    cache.changed("registrar", "printer-1", msgspec.structs.replace(printer(1), entries=()))
    cache.changed("registrar", "printer-1", None)
    assert told == ["+printer-1", "+printer-2", "!printer-1", "-printer-1"]
    assert [item.service_id for item in cache.items()] == ["printer-2"]


# -- few round trips: each is a second over a long link --------------------------------------------------------------


def test_who_has_been_asked_just_now_who_it_is_is_not_asked_again(desk: Desk) -> None:
    # Given a lookup service that discovery has found
    session = a_session()
    # When the session begins, expect it not to be asked who it is, and later, as it may be another one, to be
    session._connect()
    assert desk.count["describe"] == 0
    session._fail()
    session._connect()
    assert desk.count["describe"] == 1


def test_what_was_wanted_last_is_watched_first(session: RegistrarSession) -> None:
    # Given watches, the first of which is that of other lookup services
    wanted = watches(3)
    session.want({}, wanted)
    session._reconcile()
    assert list(session._watched) == list(reversed(wanted))


def test_the_connection_of_events_is_made_beside_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a lookup service to which connecting takes long, and fails
    answers, lost = threading.Event(), threading.Event()

    def dial(*_: object) -> object:
        assert answers.wait(60.0)
        raise WireError("refused there")

    monkeypatch.setattr(events_module, "dial", dial)
    made = EventConnection(Security(), name="test", compression="none", receive=lambda _: None, lost=lost.set)
    # When the connection is opened, expect that not to wait
    made.open(REF, "token")
    assert not lost.is_set()
    # and whoever has to know that it stands to be told why it does not
    answers.set()
    with pytest.raises(WireError, match="refused there"):
        made.check()
    assert lost.wait(60.0)
    made.close()


@pytest.mark.parametrize("step", ["_connect", "_work", "away", "_leave"])
def test_the_thread_of_a_session_goes_on_whatever_a_step_of_it_raises(
    step: str, desk: Desk, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    # Given a session one of whose steps fails in a way that nobody expects, three times (the last one once)
    monkeypatch.setattr(session_module, "BACKOFF_FIRST", 0.001)
    before = faults().get("lookup session", 0)
    session = a_session()
    place = session._owner if step == "away" else session
    whole, left = getattr(place, step), [None] * (1 if step == "_leave" else 3)

    def fail(*given: object) -> object:
        if left:
            left.pop()
            raise KeyError("gone")
        return whole(*given)

    monkeypatch.setattr(place, step, fail)
    if step == "away":
        session.state = LinkState.AWAY  # else it is not asked the first time
        failing(desk, "describe", *[WireTimeoutError("no answer")] * 3)
    session.want(printers(1), {})
    session.start()
    # Expect the item to be registered in the end, and the thread to end in order
    eventually(lambda: session.holds(printer(0)))
    session.stop()
    assert not session._thread.is_alive()
    assert not left
    assert faults()["lookup session"] - before == (1 if step == "_leave" else 3)


class _Waits(threading.Condition):
    """Remembers how long it was to be waited on, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return False


@pytest.mark.usefixtures("steady")
def test_a_lookup_service_that_answers_the_first_call_alone_is_not_asked_without_pause(desk: Desk) -> None:
    # Given a lookup service that can be connected to, but does not answer to a registration
    failing(desk, "register", *[WireTimeoutError("no answer")] * 6)
    failures: list[int] = []
    session = a_session()
    session._changed = waits = _Waits()

    def away(_registrar: str) -> None:
        failures.append(1)
        if len(failures) == 6:
            session.leave()

    session._owner.away = away
    session.want(printers(1), {})
    # When it is tried again and again
    session._run()
    # Expect the pauses to grow
    first = session_module.BACKOFF_FIRST
    assert waits.seconds == pytest.approx([first, 2 * first, 4 * first, 8 * first, 16 * first])
