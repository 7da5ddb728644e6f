"""What contracts get is measured: counts, delays, jitter, rates, and series of all that is told."""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest
from contracts import stand_under
from hypothesis import given
from hypothesis import strategies as st

from jbi_pubsub.core.config import QosSection
from jbi_pubsub.core.info_object import Head, pack
from jbi_pubsub.core.quality import Contract, Settings
from jbi_pubsub.core.values import decoder_of
from jbi_pubsub.pad.delegate import subscribers
from jbi_pubsub.pad.egress.queue import Waiting
from jbi_pubsub.protocol.deliveries import Heard
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.protocol.status.quality import BinStatus, LinkStatus, PolicyInForce, TasksStatus
from jbi_pubsub.qos import enforcement
from jbi_pubsub.qos.enforcement import Enforcement
from jbi_pubsub.qos.meter import (
    BUCKETS,
    LONGEST,
    SERIES_MOST,
    TYPES_MOST,
    Meters,
    Monitor,
    bucket_of,
    numbers_in,
    percentile,
)
from jbi_pubsub.qos.queue import LevelQueue
from jbi_pubsub.subscriber.flows import FlowTable, TimedFlow
from jbi_pubsub.subscriber.listeners import ListenerPool
from jbi_pubsub.subscriber.subscription import LocalSubscription

TYPE = "mil.af.rl.jbi.Intel_Imagery"


# -- delays -------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(2e-4, 660.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_right_within_a_quarter(delays: list[float], part: float) -> None:
    counts = [0] * BUCKETS
    for each in delays:
        counts[bucket_of(each)] += 1
    exact = sorted(delays)[math.ceil(part * len(delays)) - 1]
    found = percentile(counts, part)
    assert found is not None
    assert exact / 1.25 <= found <= exact * 1.25


def test_what_no_delay_can_be_is_in_the_first_or_last_bucket() -> None:
    assert [bucket_of(each) for each in (-1.0, 0.0, 1e-4, LONGEST, 1e9)] == [0, 0, 0, BUCKETS - 1, BUCKETS - 1]
    assert percentile([0] * BUCKETS, 0.5) is None
    meter = Meters().meter()
    for waited in (-1.0, 1e9):
        meter.took("t", 1, waited)  # a clock that was set back, and nonsense: counted


def test_jitter_is_that_of_rfc_3550() -> None:
    # Given objects whose waiting time is known
    rng = random.Random(1)
    waited = [rng.uniform(0.01, 0.2) for _ in range(200)]
    meters = Meters()
    meter = meters.meter()
    expected, last = 0.0, None
    for number, each in enumerate(waited):
        meter.took("t", 10, each)
        if last is not None:
            expected += (abs(each - last) - expected) / 16
        last = each
        if number % 17 == 0:
            meters.fold(float(number), 0.0)  # it goes on over what is added up
    meters.fold(1_000.0, 0.0)
    assert meter.status(1_000.0)["jitter"] == pytest.approx(expected, abs=1e-6)


# -- contracts and types ------------------------------------------------------------------------------------------


def test_contracts_and_types_are_added_up_once_a_second() -> None:
    # Given two contracts; one gets two types
    meters = Meters()
    one, other = meters.meter(), meters.meter()
    for second in range(1, 11):
        for _ in range(5):
            one.took("imagery", 1_000, 0.5)
        one.took("report", 10, 0.01)
        other.took("imagery", 100, 0.5)
        other.lost("imagery", 2)
        meters.fold(float(second), 1_000.0 + second)
    # Expect each contract to be told all of its own
    status = one.status(10.0)
    assert (status["received"], status["dropped"], status["bytes"]) == (60, 0, 50_100)
    assert status["rate"] == pytest.approx(6.0)
    assert status["deviation"] == pytest.approx(0.0)
    assert other.status(10.0)["dropped"] == 20
    # Expect types over all contracts, that with more first, with rates for a plot and the time of the last
    imagery, report = meters.types(10.0)
    assert (imagery["name"], imagery["received"], imagery["dropped"], imagery["bytes"]) == ("imagery", 60, 20, 51_000)
    assert (imagery["last"], imagery["rate"]) == (1_010.0, pytest.approx(6.0))
    assert imagery["rates"] == [6.0] * 10
    assert imagery["p95"] == pytest.approx(0.5, rel=0.25)
    assert (report["name"], report["received"]) == ("report", 10)
    # When nothing comes any more; Expect rate and delays to be forgotten, counts not
    for second in range(11, 31):
        meters.fold(float(second), 1_000.0 + second)
    imagery = next(each for each in meters.types(30.0) if each["name"] == "imagery")
    assert (imagery["received"], imagery["rate"], imagery["last"]) == (60, 0.0, 1_010.0)
    assert "p95" not in imagery


def test_a_contract_that_has_nothing_costs_nothing_and_one_that_ends_stays_in_the_sums() -> None:
    meters = Meters()
    idle = [meters.meter() for _ in range(100)]
    busy = meters.meter()
    busy.took("t", 1, 0.1)
    assert meters.active == [busy]
    meters.fold(1.0, 1.0)
    meters.ended(busy)
    busy.took("t", 1, 0.1)  # what was under way when it ended
    meters.fold(2.0, 2.0)
    [told] = meters.types(2.0)
    assert told["received"] == 2
    assert idle[0].status(2.0)["received"] == 0


def test_types_beyond_the_bound_are_told_together() -> None:
    meters = Meters()
    meter = meters.meter()
    for number in range(TYPES_MOST + 50):
        meter.took(f"type{number}", 1, 0.1)
    meters.fold(1.0, 1.0)
    assert len(meters._types) == TYPES_MOST + 1
    assert meters._types[""].whole.received == 50


def test_nothing_is_lost_between_threads() -> None:
    # Given threads that tell meters while another one adds up
    meters = Meters()
    shared = meters.meter()
    stop = threading.Event()

    def tell() -> None:
        for _ in range(20_000):
            shared.took("t", 1, 0.001)
            shared.lost("t")

    def fold() -> None:
        at = 0.0
        while not stop.is_set():
            at += 1.0
            meters.fold(at, at)

    folding = threading.Thread(target=fold)
    folding.start()
    tellers = [threading.Thread(target=tell) for _ in range(3)]
    for each in tellers:
        each.start()
    for each in tellers:
        each.join(60.0)
    stop.set()
    folding.join(60.0)
    meters.fold(1e6, 1e6)
    [told] = meters.types(1e6)
    assert (told["received"], told["dropped"], told["bytes"]) == (60_000, 60_000, 60_000)
    assert shared.status(1e6)["received"] == 60_000


# -- series -------------------------------------------------------------------------------------------------------


@pytest.mark.row("Q-74")
def test_a_series_has_the_statistics_of_its_window() -> None:
    # Given a value that is known, for longer than the window
    monitor = Monitor()
    values = [float(n * n % 17) for n in range(30)]
    for second, value in enumerate(values):
        monitor.sample({"links": [{"name": "satcom", "used": value}]}, float(second), 1_000.0 + second)
    told = monitor.status(29.0)["links.satcom.used"]
    # Expect name, last time and value, mean, deviation and trend of the last ten seconds
    window = values[-11:]
    slope, _ = statistics.linear_regression(range(11), window)
    assert (told["at"], told["last"]) == (1_029.0, values[-1])
    assert told["mean"] == pytest.approx(statistics.fmean(window), rel=1e-5)
    assert told["deviation"] == pytest.approx(statistics.pstdev(window), rel=1e-5)
    assert told["trend"] == pytest.approx(slope, rel=1e-5)
    assert told["points"] == [(1_019.0 + n, value) for n, value in enumerate(window)]


def test_what_only_grows_is_told_by_what_it_grows_by() -> None:
    monitor = Monitor()
    for second in range(5):
        monitor.sample({"bins": [{"importance": 5, "bin": 2, "depth": second, "served": 10 * second}]}, second, second)
    told = monitor.status(4.0)
    assert {name: each["per_second"] for name, each in told.items()} == {
        "bins.5.2.depth": False,
        "bins.5.2.served": True,
    }
    assert told["bins.5.2.served"]["points"] == [(float(n), 10.0) for n in range(1, 5)]
    # When a bin is not told any more; Expect its series to be gone
    monitor.sample({}, 5.0, 5.0)
    assert monitor.status(5.0) == {}


def test_series_are_bounded_and_take_numbers_alone() -> None:
    told = {"on": True, "name": "x", "bad": math.nan, "text": "5", "list": [1, 2], "deep": {"x": {"y": 3}}}
    assert dict(numbers_in(told)) == {"list.1": 1.0, "list.2": 2.0, "deep.x.y": 3.0}
    monitor = Monitor()
    monitor.sample({f"n{number}": number for number in range(SERIES_MOST + 100)}, 1.0, 1.0)
    assert len(monitor.status(1.0)) == SERIES_MOST


def test_a_level_queue_tells_what_it_gave_and_what_it_lost() -> None:
    # Given a queue whose contract has a meter: newest per type, a deadline
    meters = Meters()
    contract = Contract(Settings(deadline=5.0, replace="type"), meter=meters.meter())
    queue = LevelQueue(contract, lambda _waiting, _cause: None)

    def waiting(number: int, type_name: str) -> Waiting:
        head = Head(f"{number:044x}", "registration-1", number, 1.0, type_name, "1.0", b"<m/>", 3)
        return Waiting(pack(head, b"xyz"))

    # When one is replaced, one is too late, one is dropped for room, and one is taken
    for number, (type_name, now) in enumerate([("a", 0.0), ("a", 1.0), ("b", 8.0), ("c", 8.0)], 1):
        queue.put(waiting(number, type_name), now)
    assert queue.select(2, 8.5) is not None
    taken = queue.take()
    queue.drop_least()
    # Expect each counted once, with how long it has waited
    meters.fold(9.0, 9.0)
    told = {each["name"]: each for each in meters.types(9.0)}
    assert {name: (each["received"], each["dropped"]) for name, each in told.items()} == {
        "a": (0, 2), "b": (1, 0), "c": (0, 1)
    }  # fmt: skip
    assert told["b"]["p50"] == pytest.approx(0.5, rel=0.25)
    assert told["b"]["bytes"] == taken.parcel.size


def test_what_applications_let_wait_is_added_to_what_waited_here() -> None:
    # Given two objects that have waited for 0.1 and 0.3 s
    meters = Meters()
    meter = meters.meter()
    meter.reached(1.0, 0.0)  # of nothing that ever went
    meter.took("t", 10, 0.1)
    meter.took("t", 10, 0.3)
    # When it is told that one took 0.7 s more, by 0.05 s; before the next second, and after it
    meter.reached(0.7, 0.05)
    meters.fold(1.0, 1.0)
    meter.reached(0.7, 0.05)
    meters.fold(2.0, 2.0)
    # Expect delays of a second, of the type and of the contract; and not one object more
    (told,) = meters.types(2.0)
    assert told["end_p50"] == told["end_p95"] == pytest.approx(1.0, rel=0.25)
    assert told["p95"] == pytest.approx(0.3, rel=0.25)
    assert told["received"] == 2
    status = meter.status(2.0)
    assert status["end_p50"] == told["end_p50"]
    assert status["end_jitter"] == pytest.approx(0.2 / 16 + 0.05, abs=1e-6)
    # When somebody lies; Expect numbers that can be shown
    meter.reached(2**40 / 1e6, 2**40 / 1e6)
    meters.fold(3.0, 3.0)
    assert meter.status(3.0)["end_jitter"] <= 1e3
    assert meter.status(3.0)["end_p99"] <= 1e3


# -- through a delegate -------------------------------------------------------------------------------------------


@pytest.fixture
def managed(fixtures: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A federation with QoS, in which each subscription has a contract with a meter."""
    compiled = subscribers.compile_subscription
    meters: list[Meters] = []

    def compile_subscription(*given: Any, **named: Any) -> Any:
        made = compiled(*given, **named)
        made.contract = Contract(Settings(), meter=meters[0].meter())
        return made

    monkeypatch.setattr(subscribers, "compile_subscription", compile_subscription)
    with ExitStack() as stack:
        qos = QosSection(mode="on", monitor_window=30.0)
        federation = fixtures.Federation(msgspec.structs.replace(fixtures.test_config(), qos=qos), stack)
        server = federation.pad()
        meters.append(server.delegate.contracts.quality.meters)
        yield federation, server


@pytest.mark.row("Q-71")
@pytest.mark.processes
def test_a_delegate_tells_what_each_type_and_contract_got(managed: Any, figures: Any, eventually: Any) -> None:
    # Given a subscription whose queue is short and whose application takes nothing yet
    federation, server = managed
    subscriber, publisher = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name=TYPE, bound=5)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    # When twenty objects come, and it takes what is there
    for _ in range(20):
        publisher.publish(registration, figures.figure_1, b"x" * 100)
    publisher.flush()
    eventually(lambda: server.status()["lost"].get("queue_overflow", 0) > 0)
    taken = 0
    while taken < 20 - sum(server.status()["lost"].values()):
        taken += subscriber.receive(uid).payload == b"x" * 100
    server.delegate.contracts.quality._look()
    lost = sum(server.status()["lost"].values())
    assert taken + lost == 20

    # Expect the type's numbers to be those of who counted himself, its source by name
    def told() -> dict[str, Any]:
        server.delegate.contracts.quality._look()
        [one] = server.overview()["qos"]["types"]
        return one if one["received"] == taken else {}

    one = eventually(told)
    assert (one["name"], one["received"], one["dropped"]) == (TYPE, taken, lost)
    assert len(one["sources"]) == 1
    assert one["last"] > 0
    assert 0 < one["p50"] <= one["p99"]
    # Expect the contract's beside its settings
    [row] = server.status()["subscriptions"]
    assert (row["qos"]["importance"], row["qos"]["received"], row["qos"]["dropped"]) == (3, taken, lost)
    assert row["qos"]["bytes"] > taken * 100
    # Expect series of every number
    series = server.status()["qos"]["series"]
    assert series[f"types.{TYPE}.received"]["per_second"] is True
    assert "shaping.shaped" in series
    # Expect the metrics to have it
    samples = {(s.name, s.labels): s.value for s in server.samples()}
    assert samples["qos_received", (("type", TYPE),)] == taken
    assert samples["qos_dropped", (("type", TYPE),)] == lost
    assert samples["qos_shaped", ()] == 0
    assert samples["qos_delay_seconds", (("type", TYPE), ("quantile", "0.5"))] == one["p50"]


@pytest.mark.processes
def test_what_a_late_joiner_catches_up_with_is_counted_as_well(managed: Any, figures: Any, eventually: Any) -> None:
    # Given objects that were published before anybody had subscribed
    federation, server = managed
    publisher = federation.light()
    registration = figures.register(publisher)
    for _ in range(4):
        publisher.publish(registration, figures.figure_1, b"x")
    publisher.flush()
    welcome = server.delegate.subscribers.late_joiners.welcome

    def late(subscription: Any, session: Any, topics: Any, since: float, *more: Any) -> None:
        welcome(subscription, session, topics, since - 3600, *more)  # as if it had stood for an hour

    server.delegate.subscribers.late_joiners.welcome = late
    # When somebody comes who may have three; Expect the oldest lost and the others received, all of it counted
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name=TYPE, bound=3)
    assert [subscriber.receive(uid).payload for _ in range(3)] == [b"x"] * 3

    def told() -> tuple[int, int]:
        server.delegate.contracts.quality._look()
        [one] = server.overview()["qos"]["types"]
        return one.get("received", 0), one.get("dropped", 0)

    eventually(lambda: told() == (3, 1))


@pytest.mark.processes
def test_what_bins_and_links_tell_is_shown_by_the_metrics(managed: Any) -> None:
    # Given managers that tell of themselves
    _, server = managed
    quality = server.delegate.contracts.quality
    tell = quality.status
    link = LinkStatus(name="satcom", limit=100_000.0, sent=1_000, backlog=12, waiting_by_level=[4, 3, 2, 1, 0])
    quality.status = lambda: msgspec.structs.replace(
        tell(),
        tasks=TasksStatus(bins=[BinStatus(importance=5, bin=1, depth=7, served=3, cpu=0.5)]),
        links=[link],
        policy=PolicyInForce(version=12, fault="policies.toml:3: what"),
    )
    samples = {(s.name, s.labels): s.value for s in server.samples()}
    assert samples["qos_policy_version", ()] == 12
    assert samples["qos_policy_fault", ()] == 1
    assert samples["qos_bin_depth", (("importance", "5"), ("bin", "1"))] == 7
    assert samples["qos_bin_cpu_seconds", (("importance", "5"), ("bin", "1"))] == 0.5
    assert samples["qos_link_limit", (("link", "satcom"),)] == 100_000.0
    assert samples["qos_link_bytes", (("link", "satcom"),)] == 1_000
    assert samples["qos_link_estimate", (("link", "satcom"),)] == 0
    assert samples["qos_backlog", (("link", "satcom"),)] == 12
    levels = [(("link", "satcom"), ("importance", str(n))) for n in range(1, 6)]
    assert [samples["qos_waiting", level] for level in levels] == [4, 3, 2, 1, 0]


def test_the_monitor_ends_with_its_delegate_and_without_qos_there_is_none(
    federation: Any, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., Any]
) -> None:
    looks: list[Enforcement] = []
    monkeypatch.setattr(enforcement, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(Enforcement, "_look", lambda self: looks.append(self))  # a builtin is no method
    federation.lookup()
    server = federation.pad()
    assert "qos" not in server.status()
    assert "qos" not in server.overview()
    config = msgspec.structs.replace(federation.config, qos=QosSection(mode="on"))
    managed = federation.pad("bravo", "rome", config)
    eventually(lambda: len(looks) > 2)
    managed.stop(0.0)
    count = len(looks)
    time.sleep(0.05)
    assert len(looks) == count


@pytest.mark.processes
def test_contracts_by_hand_have_no_meter_and_are_told_all_the_same(managed: Any, figures: Any) -> None:
    federation, server = managed
    subscriber, publisher = federation.subscriber(), federation.light()
    uid = subscriber.register_subscriber(type_name=TYPE)
    registration = figures.register(publisher)
    assert subscriber.wait_matched(uid) == 1
    stand_under(server.delegate, uid, importance=5)
    publisher.publish(registration, figures.figure_1, b"x")
    assert subscriber.receive(uid).payload == b"x"
    assert server.status()["subscriptions"][0]["qos"]["importance"] == 5


@pytest.mark.parametrize("delay", [(-1, 0), (0, 2**40 + 1), (float("nan"), 0), (1.5, 0), "soon", (1,), None])
def test_a_subscriber_that_tells_nonsense_of_its_delays_is_not_believed(delay: Any) -> None:
    with pytest.raises(msgspec.DecodeError):
        decoder_of(Heard).decode(msgspec.msgpack.encode([{}, {1: delay}]))


def test_one_object_a_second_is_looked_at_until_its_application_takes_it() -> None:
    # Given a subscription that stands, and a clock
    now = [100.0]
    local = LocalSubscription(SubscriptionRequest("s1"), None, ListenerPool("test"))
    table = FlowTable(threading.Condition(), lambda: False, lambda: None)
    standing = TimedFlow(local, 1, table, None, 64, clock=lambda: now[0])
    # When five objects come, and the application takes four of them, then the last
    standing.came(5)
    now[0] += 0.5
    standing.consume(4)
    assert standing.delay() is None
    now[0] += 0.25
    standing.consume(1)
    # Expect the time of the last, told once
    assert standing.delay() == (750_000, 0)
    assert standing.delay() is None
    # When more come within the second: they are not looked at; the next ones are
    now[0] += 0.1
    standing.came(1)
    standing.consume(1)
    assert standing.delay() is None
    now[0] += 1.0
    standing.came(1)
    now[0] += 0.11
    standing.consume(1)
    waited, jitter = standing.delay() or (0, 0)
    assert (waited, jitter) == (pytest.approx(110_000, abs=2), pytest.approx(40_000, abs=2))


@pytest.mark.processes
def test_a_slow_application_shows_in_the_delays_of_its_contract_and_type(
    managed: Any, figures: Any, eventually: Any
) -> None:
    # Given an application that takes a third of a second for each object
    federation, server = managed
    subscriber, publisher = federation.subscriber(), federation.light()
    registration = figures.register(publisher)
    slow = threading.Event()
    uid = subscriber.register_subscriber(type_name=TYPE, listener=lambda *_: slow.wait(0.33))
    assert subscriber.wait_matched(uid) == 1
    # When objects come
    for _ in range(6):
        publisher.publish(registration, figures.figure_1, b"x")

    def told() -> Any:
        publisher.publish(registration, figures.figure_1, b"x")
        server.delegate.contracts.quality._look()
        [one] = server.overview()["qos"]["types"]
        return one if "end_p95" in one else None

    one = eventually(told)
    # Expect it in the delay to the application, and not in that here
    assert one["end_p95"] > 0.25
    assert one["p50"] < 0.25
    [row] = server.status()["subscriptions"]
    assert row["qos"]["end_p95"] > 0.25
    assert f"types.{TYPE}.end_p95" in server.status()["qos"]["series"]
    slow.set()
