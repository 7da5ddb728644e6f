"""The observer: what all servers of a federation are doing, without a browser."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from jbi_pubsub import SubscriberAdapter
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import ProtocolError, UnknownUidError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.web.federation import ROWS_MOST, TEXT_MOST, VALUES_MOST, Observer, Snapshot, _Watched, checked, harmless

TYPE = "mil.af.rl.jbi.Intel_Imagery"
REF = ServiceRef("", "status", ("127.0.0.1:1",))


@pytest.fixture
def observing() -> Iterator[Callable[..., Observer]]:
    with ExitStack() as stack:

        def start(config: Any, **options: Any) -> Observer:
            observer = Observer(config, every=0.05, **options)
            observer.start()
            stack.callback(observer.stop)
            return observer

        yield start
    assert [t.name for t in threading.enumerate() if "observer" in t.name] == []


@pytest.fixture
def seen(fixtures: Any) -> Callable[[Observer, Callable[[Snapshot], object]], Snapshot]:
    """The first look for which something is true."""

    def wait(observer: Observer, good: Callable[[Snapshot], object]) -> Snapshot:
        def look() -> Snapshot | None:
            shot = observer.snapshot()
            return shot if good(shot) else None

        return fixtures.eventually(look, what=observer.snapshot)

    return wait


def test_a_federation_is_seen_with_rates_on_its_edges(federation: Any, figures: Any, observing: Any, seen: Any) -> None:
    # Given a delegate with a publisher and a subscriber, a peer publisher, and an observer
    federation.pad()
    camera = federation.light(name="camera")
    registration = figures.register(camera)
    peer = federation.peer()
    own = peer.register_publisher(figures.schema, figures.metadata(publisher="999th"))
    kabul = federation.stack.enter_context(SubscriberAdapter(federation.config, name="kabul"))
    uid = kabul.register_subscriber(type_name=TYPE)
    kabul.wait_matched(uid, 2)
    observer = observing(federation.config)
    shot = seen(observer, lambda s: len(s.servers) == 3 and all(x.facts for x in s.servers))
    # Expect the servers by kind
    assert [s.kind for s in shot.servers] == ["lookup", "delegate", "peer"]
    assert shot.servers[1].title == "alpha, rome"
    assert shot.problem == ""
    # When something is published; Expect the rates of servers and edges, and the series of plots
    for _ in range(5):
        camera.publish(registration, figures.figure_1)
    peer.publish(own, figures.metadata(publisher="999th"))

    def told(s: Snapshot) -> bool:
        rates = {(e.kind, e.server, e.name): e.rate or 0.0 for e in s.edges}
        return len([rate for rate in rates.values() if rate > 0]) == 3

    shot = seen(observer, told)
    lookup, delegate, at_peer = shot.servers
    assert {(e.kind, e.server, e.name, e.count) for e in shot.edges} == {
        ("publish", delegate.id, "camera", 1), ("deliver", delegate.id, "kabul", 1), ("deliver", at_peer.id, "kabul", 1)
    }  # fmt: skip
    assert delegate.rates["published"] > 0
    assert lookup.rates.keys() == {"lookups", "changes", "events", "events_lost"}
    assert max(p.value for p in observer.history("published", delegate.id)) > 0
    assert max(p.value for p in observer.history("published")) > 0
    assert observer.history("published", "nobody") == []
    # Expect its subscriptions, of both servers one after the other
    total, rows, silent = observer.subscriptions([delegate.id, at_peer.id], search="INTEL", start=0, count=10)
    assert (total, [server for server, _ in rows], silent) == (2, [delegate.id, at_peer.id], [])
    total, rows, _ = observer.subscriptions([delegate.id, at_peer.id], start=1, count=1)
    assert (total, [(server, row.name) for server, row in rows]) == (2, [(at_peer.id, "kabul")])


def test_a_server_that_ends_leaves_the_picture(federation: Any, observing: Any, seen: Any) -> None:
    pad = federation.pad()
    observer = observing(federation.config)
    shot = seen(observer, lambda s: len(s.servers) == 2 and s.servers[1].facts)
    pad.stop(0.1)
    seen(observer, lambda s: [server.kind for server in s.servers] == ["lookup"])
    with pytest.raises(UnknownUidError):
        observer.ref(shot.servers[1].id)
    assert observer.subscriptions([shot.servers[1].id]) == (0, [], [shot.servers[1].id])


def test_a_drained_delegate_is_seen_on(federation: Any, observing: Any, seen: Any) -> None:
    pad = federation.pad()
    observer = observing(federation.config)
    seen(observer, lambda s: len(s.servers) == 2 and s.servers[1].facts)
    pad.service.drain(0.0)
    shot = seen(observer, lambda s: len(s.servers) == 2 and not s.servers[1].listed and s.servers[1].facts.draining)
    assert shot.servers[1].error == ""


def test_servers_are_asked_by_address_and_one_that_hangs_holds_up_no_other(
    federation: Any, observing: Any, seen: Any
) -> None:
    # Given an address where nobody answers, one of a delegate and one of a lookup service
    pad, lookup = federation.pad(), federation.lookups[0]
    observer = observing(federation.config, addresses=(pad.address, lookup.address, "127.0.0.1:1"))
    shot = seen(observer, lambda s: sum(bool(x.facts) for x in s.servers) == 2 and any(x.error for x in s.servers))
    assert {(s.kind, bool(s.error)) for s in shot.servers} == {
        ("lookup", False), ("delegate", False), ("unknown", True)
    }  # fmt: skip
    assert shot.servers[-1].title == "127.0.0.1:1"
    # Expect wait to give the next look, and the last one when there is none in time
    assert observer.wait(shot.number, 10.0).number > shot.number
    assert observer.wait(10**9, 0.01).number < 10**9


def test_without_a_lookup_service_it_is_said_where_one_was_looked_for(fixtures: Any, observing: Any, seen: Any) -> None:
    observer = observing(fixtures.test_config())
    assert seen(observer, lambda s: s.number).problem == "no lookup service found (nowhere to look)"


HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J\n"


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"kind": "delegate"},
        {"kind": "server", "address": "", "uptime": 1.0},
        {"kind": "delegate", "address": 7, "uptime": 1.0},
        {"kind": "delegate", "address": "", "uptime": "long"},
        {"kind": "delegate", "address": "", "uptime": 1.0, "lost": {"late": "many"}},
        {"kind": "delegate", "address": "", "uptime": 1.0, "sessions": [{"name": "x"}]},
        {"kind": "delegate", "address": "", "uptime": 1.0, "mail": []},
        {"kind": "delegate", "address": "", "uptime": 1.0, "counts": {"subscriptions": -1}},
        {"kind": "delegate", "address": "", "uptime": 1.0, "queued": 2**63},
    ],
)
def test_what_makes_no_sense_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="gives a status that this version does not understand"):
        checked(told, REF)


def test_a_status_of_an_older_or_a_newer_version_is_read() -> None:
    # Given a status that lacks most keys, and has one that nobody knows, beside one that is inside another
    server = {"kind": "delegate", "address": "", "uptime": 1.0}
    told = {**server, "published": 3, "mail": {"queued": 2, "newer": 1}, "new": [7]}
    facts = checked(told, REF)
    assert (facts.published, facts.delivered, facts.mail.queued, facts.mail.fault) == (3, 0, 2, "")
    # Expect it to be told on as the plain data that it was made of, with defaults
    assert facts["mail"]["queued"] == 2
    assert "qos" not in facts
    assert "new" not in facts


def test_hostile_texts_are_bounded_and_have_nothing_a_terminal_obeys() -> None:
    facts = checked({"kind": "delegate", "address": HOSTILE * 1000, "uptime": 1.0, "name": HOSTILE}, REF)
    assert facts.name == "<img src=x onerror=alert(1)> [2J "
    assert len(facts.address) == TEXT_MOST
    # Expect lists, tables and depth bounded
    deep: Any = "x"
    for _ in range(100):
        deep = {"a": deep}
    assert str(harmless(deep)).count("a") < 20
    assert len(harmless(list(range(10**5)))) == ROWS_MOST
    assert len(harmless({str(n): n for n in range(10**4)})) == ROWS_MOST
    assert harmless(b"bytes") == "..."
    # Expect all together bounded too, and numbers to be numbers
    wide: Any = 1
    for _ in range(3):
        wide = [wide] * ROWS_MOST
    assert str(harmless(wide)).count("1") < VALUES_MOST
    assert harmless([float("nan"), float("-inf"), 1e308]) == [" ", " ", 1e308]


@pytest.mark.parametrize(
    "row",
    [
        {"delivered": "many"}, {"delivered": -1}, {"lost": []}, {"lost": {"late": "x"}}, {"recipients": 5},
        {"template": 7}, {"uid": {}}, {"waiting": None}, "row",
    ],
)  # fmt: skip
def test_a_server_whose_subscriptions_make_no_sense_hides_no_others(
    federation: Any, observing: Any, seen: Any, monkeypatch: pytest.MonkeyPatch, row: Any
) -> None:
    # Given a delegate that tells nonsense beside one that does not
    pads = [federation.pad(name) for name in ("alpha", "bravo")]
    pages = [{"total": 1, "rows": [row]}, {"total": 1, "rows": [{"uid": "good", "lost": {"late": 1}}]}]
    for pad, page in zip(pads, pages, strict=True):
        monkeypatch.setattr(pad.delegate.reports, "page", lambda *_, page=page: page)
    observer = observing(federation.config)
    shot = seen(observer, lambda s: len(s.servers) == 3 and all(x.facts for x in s.servers))
    bad, good = (next(s.id for s in shot.servers if s.title == f"{name}, rome") for name in ("alpha", "bravo"))
    total, rows, silent = observer.subscriptions([bad, good])
    assert (total, [row.uid for _, row in rows], silent) == (1, ["good"], [bad])


def test_an_answer_without_an_end_is_refused(federation: Any, observing: Any, seen: Any) -> None:
    pad = federation.pad()
    pad.delegate.overview = lambda _: {"kind": "delegate", "address": "", "uptime": 1.0, "more": ["x" * 1000] * 2000}
    observer = observing(federation.config, addresses=(pad.address,))
    shot = seen(observer, lambda s: s.servers and s.servers[0].error)
    assert "refused frame" in shot.servers[0].error
    assert shot.servers[0].facts is None


def test_an_answer_that_was_taken_long_after_it_was_given_makes_no_peak(
    federation: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delegate with steady work, and an observer that is stopped for a minute while an answer is under way
    now = 0.0
    pad = federation.pad()
    said = pad.overview()
    monkeypatch.setattr(pad.delegate, "overview", lambda _: {**said, "published": int(now * 10)})
    observer = Observer(federation.config, addresses=(pad.address,), clock=lambda: now)
    watched = _Watched(observer._fixed[pad.address], "delegate", Backoff(1.0, 1.0))
    call = observer._call

    def stopped(each: Any) -> Any:
        nonlocal now
        answer = call(each)
        now += 60
        return answer

    for _ in range(3):
        observer._ask(watched)
        now += 1
    monkeypatch.setattr(observer, "_call", stopped)
    observer._ask(watched)
    monkeypatch.setattr(observer, "_call", call)
    for _ in range(3):
        now += 1
        observer._ask(watched)
    # Expect the rate that it has
    assert watched.counters["published"].rate(now) == pytest.approx(10.0)
    assert watched.client is not None
    watched.client.close()
    observer._pool.shutdown()


def test_the_delay_of_all_servers_is_that_of_the_slowest(federation: Any, observing: Any, eventually: Any) -> None:
    for name, delay in (("alpha", 5.0), ("bravo", 9.0)):
        pad = federation.pad(name)
        said = pad.overview()
        pad.delegate.overview = lambda _, said=said, delay=delay: {**said, "delay_ms": delay}
    observer = observing(federation.config)
    eventually(lambda: [p.value for p in observer.history("delay_ms")][-1:] == [9.0])
    ids = {s.title: s.id for s in observer.snapshot().servers}
    assert observer.history("delay_ms", ids["alpha, rome"])[-1].value == 5.0
