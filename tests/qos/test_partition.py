"""Predicates by importance: the important subscriptions of an object have it before the others are asked, and each has
what it would have had of one table."""

from __future__ import annotations

import statistics
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from contracts import stand_under
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub import Config
from jbi_pubsub.core.config import QosSection
from jbi_pubsub.core.info_object import Head, Parcel, object_id_of, pack
from jbi_pubsub.core.quality import Contract, PayloadShape, Settings, Strategy
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import Predicate, compile_predicate
from jbi_pubsub.examples.overload import document, predicate
from jbi_pubsub.pad.ingress import lane as lane_module
from jbi_pubsub.pad.ingress.admission import Admission
from jbi_pubsub.pad.ingress.lane import PUBLISHED_LEAST, RegistrationLane
from jbi_pubsub.pad.ingress.pipeline import Pipeline
from jbi_pubsub.pad.matching.match_table import PARTITIONED_SECONDS, UNITED_SECONDS, MatchTable
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription, compile_subscription
from jbi_pubsub.protocol.replies import Registered
from jbi_pubsub.protocol.requests import SubscriptionRequest
from jbi_pubsub.qos.tasks import TaskManager
from tests.conftest import eventually
from tests.pad.test_first_object import World
from tests.qos.test_credit import received, subscribed

pytestmark = pytest.mark.processes

SHAPES = (PayloadShape("scale", (0.5,)),)


def subscription(number: int, importance: int, said: str = "") -> Subscription:
    """One that stands in no delegate."""
    made = compile_subscription(SubscriptionRequest(f"s{number}", predicate=said), owner="session", number=number)
    made.contract = Contract(Settings(importance=importance))
    return made


# -- a table ------------------------------------------------------------------------------------------------------


def stamped(position: int) -> Callable[[Callable[[int], None]], None]:
    return lambda mark: mark(position)


def test_a_table_is_partitioned_where_it_costs_much_and_united_where_it_does_not() -> None:
    # Given
    table = MatchTable()
    table.add(subscription(1, 5))
    # Expect: of one importance there is nothing to be first
    table.balance(1.0, stamped(0))
    assert table.parts is None
    # When
    table.add(subscription(2, 1))
    table.balance(PARTITIONED_SECONDS, stamped(0))
    assert table.parts is None
    table.balance(1.1 * PARTITIONED_SECONDS, stamped(0))
    # Expect
    assert table.parts is not None
    table.balance(UNITED_SECONDS, stamped(0))
    assert table.parts is not None
    table.balance(0.9 * UNITED_SECONDS, stamped(0))
    assert table.parts is None


def test_a_table_stays_partitioned_while_an_object_is_between_its_levels() -> None:
    # Given
    table = MatchTable()
    for number in (1, 5):
        table.add(subscription(number, number))
    table.partition()
    parts = table.enter()
    assert parts is not None
    # Expect
    table.unite()
    assert table.parts is parts
    # When
    parts.leave()
    table.unite()
    # Expect
    assert table.parts is None
    assert table.enter() is None


def test_counters_go_on_when_another_index_takes_the_place_of_the_one_before() -> None:
    # Given
    table = MatchTable()
    for number in (1, 5):
        table.add(subscription(number, number, f"/m/@n = {number}"))
    metadata = parse_metadata(b"<m n='1'/>")
    assert [s.number for s in table.match(metadata)] == [1]
    # When
    table.partition()
    assert [s.number for s in table.match(metadata)] == [1]
    table.replace({each: each.predicate for each in table.subscriptions()})
    assert [s.number for s in table.match(metadata)] == [1]
    table.unite()
    # Expect
    stats = table.stats()
    assert (stats["documents"], stats["evaluations"], stats["predicates"]) == (3, 6, 2)


# -- whatever happens ---------------------------------------------------------------------------------------------


class AnyTurns:
    """Whoever is chosen is next, whatever his importance."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def task(self, kind: str, work: Any, _owner: object) -> Any:
        return SimpleNamespace(kind=kind, work=work)

    def seconds(self, _task: Any) -> float:
        return 0.0

    def submit(self, task: Any) -> None:
        if task not in self.waiting and task.work.size():
            self.waiting.append(task)

    def step(self, choice: int) -> None:
        if self.waiting:
            task = self.waiting.pop(choice % len(self.waiting))
            task.work.step(1 + choice % 3 * 20)
            self.submit(task)


class AnyShapes:
    """Shaping that takes long, of what is large."""

    is_on = True

    def seconds(self, _head: Any, _wanted: Any, payload: Any, _shapes: Any) -> float:
        return float(len(payload))

    def shape(self, _head: Any, _wanted: Any, payload: Any, _shapes: Any) -> bytes:
        return bytes(payload[:1])


class Lanes:
    """A world whose objects go through lanes, with what each subscription is to have."""

    def __init__(self, turns: Any = None, **options: Any) -> None:
        self.world = World(**options)
        self.delegate = self.world.delegate
        self.turns = turns or AnyTurns()
        self.pipeline: Pipeline = self.delegate.pipeline
        reports = SimpleNamespace(wanted=lambda _: None)
        self.admission = Admission(
            self.turns,
            self.pipeline,
            cast("Any", reports),
            QosSection(credit=64, credit_bytes=1 << 20),
            lambda _: Registered(64, 3, 0, 1 << 20),
        )
        self.registrations = [self.world.register(), self.world.register()]
        self.lanes: dict[int, RegistrationLane] = self.admission._lanes
        self.session = self.delegate.sessions.open("subscriber", 1e6)[0]
        self.standing: dict[str, Subscription] = {}
        self.wanted: dict[str, tuple[str, bool]] = {}
        """The predicate of each subscription, and whether it wants what came before."""

    @property
    def table(self) -> MatchTable:
        return self.registrations[0].topic.table

    def publish(self, registration: Registration, metadata: bytes, payload: bytes = b"") -> None:
        uid, sequence = registration.uid, registration.sequence + 1
        head = Head(object_id_of(uid, sequence), uid, sequence, 1.0, "t", "1.0", metadata, len(payload))
        parcel = Parcel.received(b"".join(pack(head, payload).parts))
        lane = self.lanes.get(registration.number)
        if lane is None or lane.progress.admitted < 64:
            self.admission.take({registration.number: registration}, registration.number, [parcel])

    def subscribe(self, said: str, importance: int, *, before: bool = False, **options: Any) -> str:
        name = self.world.subscribe(1000.0 if before else -1e9, session=self.session, predicate=said, **options)
        found = self.delegate.tables.subscriptions[self.session, name]
        found.contract = Contract(Settings(importance=importance, shapes=SHAPES * (importance % 2)))
        self.standing[name] = found
        self.wanted[name] = said, before
        return name

    def balance(self) -> None:
        self.table.balance(1.0, self.delegate.tables.buffers.stamp)

    def finish(self) -> None:
        """All that was published goes through."""
        for turn in range(5_000):
            if not self.turns.waiting and not self.delegate.subscribers.late_joiners.count:
                break
            self.turns.step(turn)
            self.world.read()
            if self.delegate.subscribers.late_joiners.count:
                self.world.serve()
        assert not self.turns.waiting
        self.world.read()


@pytest.fixture
def lanes() -> Iterator[Callable[..., Lanes]]:
    made: list[Lanes] = []

    def make(*arguments: Any) -> Lanes:
        made.append(Lanes(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.delegate.subscribers.late_joiners._thread = None
        each.delegate.close()


SAID = ("", "", "/m/@n > 1", "/m/@n = 2", "string-length(/m) = 0 and /m/@n < 3")


def steps_of(chance: Random) -> Iterator[tuple[Any, ...]]:
    """Some hundred of them. (Lists that hypothesis makes seldom have what it takes to lose an order.)"""
    kinds = {"publish": 8, "step": 10, "importance": 3, "balance": 3, "read": 2, "serve": 1, "subscribe": 1}
    kinds |= {"cancel": 0.5, "replace": 0.5, "unite": 1, "partition": 1}
    for what in chance.choices(list(kinds), list(kinds.values()), k=150):
        if what == "publish":
            yield what, chance.randrange(2), chance.randint(1, 3), chance.random() < 0.3
        elif what == "subscribe":
            yield what, chance.choice(SAID), chance.randint(1, 5), chance.random() < 0.5
        else:
            yield what, chance.randrange(50), chance.randint(1, 5)


@pytest.mark.parametrize(("seconds", "judged"), [(-1.0, [10, 10, 10, 5]), (60.0, [35])])
def test_a_step_that_turns_out_to_take_long_ends_and_the_rest_keeps_its_order(
    lanes: Callable[..., Lanes], monkeypatch: pytest.MonkeyPatch, seconds: float, judged: list[int]
) -> None:
    # Given objects that were thought to be cheap, and take more than that, or do not
    monkeypatch.setattr(lane_module, "STEP_LONG", seconds)
    made = lanes()
    name = made.subscribe("", 3)
    made.turns.submit = lambda _task: None
    for _ in range(35):
        made.publish(made.registrations[0], b'<m n="1"/>')
    (lane,) = made.lanes.values()
    # When it is their turn, with as many as there are
    steps = [lane.step(1 << 30)[0] for _ in judged]
    # Expect some in each step, and all of them in order
    assert steps == judged
    assert lane.size() == 0
    assert lane.progress.admitted == lane.progress.bytes == 0
    made.world.read()
    assert [sequence for _, sequence in made.world.got[name]] == list(range(1, 36))


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 1 << 32))
def test_whatever_happens_each_has_what_one_table_would_give_it_once_and_in_order(seed: int) -> None:
    # Given: a partitioned table; any order of turns, payloads that take long to shape, one subscriber that blocks
    chance = Random(seed)
    looked = pytest.MonkeyPatch()
    if seed % 2:  # and steps that turn out to take too long
        looked.setattr(lane_module, "LOOKED_AFTER", 1)
        looked.setattr(lane_module, "STEP_LONG", -1.0)
    lanes = Lanes()
    lanes.pipeline.distribution.shaper = cast("Any", AnyShapes())
    cancelled: dict[str, Subscription] = {}
    kept: list[tuple[int, str, int, int]] = []
    keep = lanes.delegate.tables.buffers.keep

    def keeps(buffer: Any, run: Any, reader: Any, now: float) -> Any:
        found = keep(buffer, run, reader, now)
        kept.extend(
            (k.position, k.parcel.head.registration, k.parcel.head.sequence, number_of(k.parcel)) for k in found
        )
        return found

    lanes.delegate.tables.buffers.keep = keeps  # type: ignore[method-assign]
    try:
        for importance in (1, 2, 4, 5):
            lanes.subscribe(chance.choice(SAID), importance)
        lanes.subscribe("", 2, policy="block", bound=1)
        lanes.table.partition()
        # When
        for what, *rest in steps_of(chance):
            names = list(lanes.standing)
            if what == "publish":
                which, number, is_large = rest
                metadata = f'<m n="{number}"/>'.encode()
                lanes.publish(lanes.registrations[which], metadata, b"large" * is_large)
            elif what == "step":
                lanes.turns.step(rest[0])
            elif what == "subscribe" and len(names) < 10:
                lanes.subscribe(rest[0], rest[1], before=rest[2])
            elif what == "importance":
                found = lanes.standing[names[rest[0] % len(names)]]
                assert found.contract is not None
                found.contract.settings = Settings(importance=rest[1], shapes=SHAPES * (rest[1] % 2))
            elif what == "cancel" and len(names) > 1:
                name = names[rest[0] % len(names)]
                lanes.world.read()
                cancelled[name] = lanes.standing.pop(name)
                lanes.delegate.subscribers.unsubscribe(lanes.session, name)
            elif what == "balance":
                lanes.balance()
            elif what == "unite":
                lanes.table.unite()
            elif what == "partition" and lanes.table.parts is None:
                lanes.table.partition()
            elif what == "replace":
                lanes.table.replace({each: again(each.predicate) for each in lanes.standing.values()})
            elif what == "read":
                lanes.world.read()
            elif what == "serve":
                lanes.world.serve()
            for lane in lanes.lanes.values():
                left = [each for run in lane.deferred.runs for each in run.batch.entries]
                assert all(lane.progress.done < each.head.sequence for each in left if isinstance(each, Parcel))
        lanes.finish()
        # Expect: who stands has each object that it matches, once, those of a registration in their order
        for name, found in (lanes.standing | cancelled).items():
            said, before = lanes.wanted[name]
            for registration in lanes.registrations:
                uid = registration.uid
                due = [
                    sequence
                    for position, of, sequence, number in kept
                    if of == uid and (before or position > found.place) and holds(said, number)
                ]
                got = [sequence for of, sequence in lanes.world.got[name] if of == uid]
                assert got == (due if name in lanes.standing else due[: len(got)]), (name, found.place, got, due)
        # Expect: all is done, and nothing is left
        for lane in lanes.lanes.values():
            assert (lane.progress.admitted, lane.progress.bytes, lane.progress.done) == (
                0,
                0,
                lane.registration.sequence,
            )
            assert (list(lane.deferred.runs), lane.deferred.behind, lane.deferred._left) == ([], {}, 0)
        lanes.balance()
        if lanes.table.parts is not None:
            assert not lanes.table.parts.between
            lanes.balance()  # what has moved stands at one level
            indexes = lanes.table.parts._indexes
            assert sum(map(len, indexes)) == len(lanes.standing) + len(lanes.table.parts.moves)
            lanes.table.unite()
        assert lanes.table.parts is None
        assert set(lanes.table.subscriptions()) == set(lanes.standing.values())
    finally:
        looked.undo()
        lanes.delegate.subscribers.late_joiners._thread = None
        lanes.delegate.close()


def again(before: Predicate | None) -> Predicate | None:
    """Another one that says the same."""
    return compile_predicate(before.expression) if before is not None else None


def number_of(parcel: Parcel) -> int:
    return int(bytes(parcel.head.metadata)[6:7])


def holds(said: str, number: int) -> bool:
    """What a predicate says of an object."""
    return {"": True, "/m/@n > 1": number > 1, "/m/@n = 2": number == 2}.get(said, number < 3)


@pytest.mark.parametrize("count", [400, pytest.param(1_500, marks=pytest.mark.slow)])
def test_importance_that_changes_all_the_time_on_another_thread_loses_and_doubles_nothing(
    lanes: Callable[..., Lanes], count: int
) -> None:
    # Given
    made, chance, over = lanes(), Random(1), threading.Event()
    for importance in (1, 2, 3, 4, 5):
        made.subscribe(chance.choice(SAID), importance)
    made.table.partition()

    def change() -> None:
        other = Random(2)
        while not over.is_set():
            for each in made.standing.values():
                assert each.contract is not None
                each.contract.settings = Settings(importance=other.choice((1, 5)))
            made.balance()  # at times all are of one importance, and the table is united

    thread = threading.Thread(target=change, name="change")
    thread.start()
    # When
    said: list[int] = []
    try:
        for _ in range(count):
            said.append(chance.randint(1, 3))
            made.publish(made.registrations[0], f'<m n="{said[-1]}"/>'.encode())
            for _ in range(3):
                made.turns.step(chance.randrange(50))
            made.world.read()
            while made.lanes[1].progress.admitted > 50:
                made.turns.step(chance.randrange(50))
        made.finish()
    finally:
        over.set()
        thread.join(60.0)
    # Expect
    for name, (predicate_, _) in made.wanted.items():
        due = [sequence for sequence, number in enumerate(said, 1) if holds(predicate_, number)]
        assert [sequence for _, sequence in made.world.got[name]] == due


# -- who waits how long -------------------------------------------------------------------------------------------


@pytest.mark.row("Q-20")
def test_who_is_important_waits_for_few_predicates_however_many_there_are(lanes: Callable[..., Lanes]) -> None:
    # Given: 4 important subscribers beside 200 who are not, with predicates that are evaluated one by one; strict
    turns = TaskManager("test", Strategy(name="strict"))
    made = lanes(turns)
    levels = {number: 5 if number < 4 else 1 for number in range(204)}
    for number, importance in levels.items():
        made.subscribe(f"/m[position() = 1] and /m/@n < {number + 2}", importance)
    contract = Contract(Settings(importance=5))
    for each in made.registrations:
        each.contract = contract
    delays: dict[int, list[int]] = {1: [], 5: []}
    hand_out = made.pipeline.distribution.hand_out

    def noted(parcel: Parcel, matched: list[Subscription], *rest: Any, **options: Any) -> None:
        for each in matched:
            assert each.contract is not None
            delays[each.contract.settings.importance].append(made.table.stats()["xpath_evaluations"])
        hand_out(parcel, matched, *rest, **options)

    made.pipeline.distribution.hand_out = noted  # type: ignore[method-assign]
    p95 = {}
    for is_partitioned in (False, True):
        if is_partitioned:
            made.table.partition()
        before = made.table.stats()["xpath_evaluations"]
        # When: objects come all at once, each with other metadata
        turns.run(contract, made, lambda: publish(made, 30))
        assert turns.drain(30)
        # Expect
        evaluated = made.table.stats()["xpath_evaluations"] - before
        p95[is_partitioned] = {
            level: statistics.quantiles([each - before for each in each_of], n=20)[-1] / evaluated
            for level, each_of in delays.items()
        }
        assert evaluated >= 29 * 204
        counts = {level: len(each) for level, each in delays.items()}
        delays = {1: [], 5: []}
    turns.close()
    # Expect: of all evaluations those that were made before who is important had 95 % of his objects
    assert p95[False][5] > 0.9
    assert p95[True][5] < 0.25 * p95[True][1]
    assert p95[True][5] < 0.05
    assert min(counts.values()) > 50


def test_two_registrations_of_a_topic_go_through_its_levels_at_the_same_time(lanes: Callable[..., Lanes]) -> None:
    # Given: long steps are usual, so that two are done at a time; a partitioned table of two registrations
    turns = TaskManager("test", judges=2)
    for _ in range(20):
        turns.run(Contract(), object(), lambda: sum(range(2_000_000)))
    made = lanes(turns)
    for importance in (5, 1):
        made.subscribe("", importance)
    made.table.partition()
    assert made.registrations[0].topic is made.registrations[1].topic
    hand_out, inside = made.pipeline.distribution.hand_out, threading.Barrier(2)
    handed: list[tuple[str, int]] = []
    come: list[Parcel] = []
    lock = threading.Lock()

    def noted(parcel: Parcel, matched: list[Subscription], *rest: Any, **options: Any) -> Any:
        with lock:
            come.append(parcel)
        if len(come) <= 2:
            inside.wait(30)  # each is between its levels when the other one comes
        handed.extend((parcel.head.object_id, each.contract.level + 1) for each in matched if each.contract)
        return hand_out(parcel, matched, *rest, **options)

    made.pipeline.distribution.hand_out = noted  # type: ignore[method-assign]
    # When
    publishers = [threading.Thread(target=made.publish, args=(r, b'<m n="1"/>')) for r in made.registrations]
    for each in publishers:
        each.start()
    for each in publishers:
        each.join(60)
    assert turns.drain(30)
    turns.close()
    # Expect: each object once at each level, nothing refused, and nothing left between the levels
    assert Counter(handed) == Counter((object_id_of(r.uid, 1), level) for r in made.registrations for level in (5, 1))
    assert not made.admission._refused
    made.table.unite()
    assert made.table.parts is None


def publish(made: Lanes, count: int) -> None:
    for n in range(count):
        made.publish(made.registrations[n % 2], b'<m n="%d"/>' % (n % 9))


def test_a_quarter_of_the_credit_at_most_waits_for_those_who_are_not_important(lanes: Callable[..., Lanes]) -> None:
    # Given: the unimportant level has its turn when nothing else is to be done
    class Important(AnyTurns):
        def step(self, choice: int) -> None:
            self.waiting.sort(key=lambda task: -task.work.importance())
            super().step(choice)

    made = lanes(Important())
    contract = Contract(Settings(importance=5))
    for each in made.registrations:
        each.contract = contract
    for importance in (1, 5):
        made.subscribe("", importance)
    made.table.partition()
    # When
    for _ in range(60):
        made.publish(made.registrations[0], b'<m n="1"/>')
    most = 0
    while made.turns.waiting:
        made.turns.step(0)
        assert made.table.parts is not None
        most = max(most, len(made.table.parts.between))
    # Expect: of 64
    assert most == 16
    made.world.read()
    assert [len(got) for got in made.world.got.values()] == [60, 60]


# -- over a delegate ----------------------------------------------------------------------------------------------


def test_a_costly_table_is_partitioned_by_itself_and_a_change_of_importance_is_followed(
    federation: Any, by_type: Callable[..., Config], figures: Any
) -> None:
    # Given: 60 unimportant subscriptions whose predicates are evaluated one by one
    pad = federation.pad(config=by_type(federation.config))
    publisher = federation.light()
    at = publisher.connect_to_delegate("alpha", "rome")
    registration = publisher.register_publisher(
        at, figures.schema, figures.figure_1, type_name="important", validate=False
    )
    subscriber, uid = subscribed(federation, "important")
    (topic,) = {each.topic for each in pad.delegate.tables.registrations.values()}
    sessions = [pad.delegate.sessions.open("many", 600.0)[0] for _ in range(4)]
    for session in sessions:
        pad.delegate.tables.attached(session)
    for number in range(60):
        name = f"subscription-{number}"
        request = SubscriptionRequest(name, topic.entries[:1], predicate=predicate(number))
        pad.delegate.subscribers.subscribe(sessions[number % 4], request, 60.0)
        stand_under(pad.delegate, name, importance=1)
    assert not pad.delegate.status()["registrations"][0]["partitioned"]
    # When
    documents = [document(number, 20).decode() for number in (6, 7)]
    for n in range(PUBLISHED_LEAST):
        publisher.publish(registration, documents[n % 2])
    # Expect
    eventually(lambda: pad.delegate.status()["registrations"][0]["partitioned"])
    assert received(subscriber, uid, 128) == list(range(1, 129))
    # When: somebody becomes important, and objects come meanwhile
    matched = stand_under(pad.delegate, "subscription-7", importance=5)[0]
    for n in range(100):
        publisher.publish(registration, documents[n % 2])
    eventually(lambda: level_in(topic, matched) == 4)
    # Expect
    publisher.flush(60.0)
    assert received(subscriber, uid, 100) == list(range(129, 229))
    assert matched.matched == 114
    assert {"judge", "match"} <= pad.status()["qos"]["tasks"]["kinds"].keys()
    # When: they leave
    for session in sessions:
        pad.delegate.sessions.close(session)
    eventually(lambda: not pad.delegate.status()["registrations"][0]["partitioned"])
    publisher.publish(registration, documents[0])
    assert received(subscriber, uid, 1) == [229]


def level_in(topic: Any, whose: Subscription) -> int:
    """Where it stands, and nowhere else."""
    parts = topic.table.parts
    return -1 if parts is None or parts.moves else parts._level[whose]
