"""A subscription that stood before an object was published gets it once and in order, or is told that it has missed it.

Here the delegate alone, without network or thread: what others do in the middle of a step is done in the middle of it.
"""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub import Config
from jbi_pubsub.core.config import PadSection, QueueSection
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import Cause, Head, LossNotice, Parcel, SchemaBundle, TypeName, object_id_of, pack
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.places import PortPlace
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.egress.buffer_pass import BufferPass
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.ingress.pipeline import GAP_MOST
from jbi_pubsub.pad.matching.recent import OLD_SECONDS, RecentBuffers
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.matching.topics import GHOST_SECONDS
from jbi_pubsub.protocol.deliveries import ITEM, LOSS, OBJECT, SHARED, Heard
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import NOT_BEFORE, PublisherRequest, SubscriptionRequest

pytestmark = pytest.mark.processes

UNIT = define("test.Unit", {"name": str})


def secret(name: object) -> str:
    return f"{name}".rjust(32)


class Gate:
    """A type that takes what parses."""

    type = TypeName("t")
    digest = "first object"
    bundle = SchemaBundle("t.xsd", ())

    def validate(self, _root: Any) -> None: ...

    def condition(self, _template: Any) -> str:
        return ""

    def check_invariants(self, _root: Any, _registered: Any, _metadata: bytes = b"") -> None: ...

    def texts(self, _path: Any) -> None: ...

    def attribute(self, _path: Any, _name: Any) -> None: ...

    def content(self, _path: Any, _tags: Any) -> None: ...

    def impossible(self, _said: str, _namespaces: Any, _registered: Any = ()) -> tuple[str, ...]:
        return ()

    def is_invariant(self, _path: Any) -> bool:
        return False


def take(delegate: Delegate, registration: Registration, parcel: Parcel, deliveries: Deliveries) -> None:
    """As a delegate takes one object; raises why it was refused."""
    for _, why in delegate.publishers.publish(registration, [parcel], deliveries):
        raise why


class World:
    """A delegate whose clock is set by hand, with subscribers that are read by hand."""

    def __init__(self, **pad: Any) -> None:
        self.now = 100.0
        self.delegate = Delegate(
            "d" * 32,
            config=Config(pad=PadSection(**pad), queue=QueueSection(block_seconds=0.0)),
            types=self,
            announcer=self,
            subscriptions_ref=ServiceRef("d", "subscriptions", ("127.0.0.1:1",)),
            clock=lambda: self.now,
        )
        joiners = self.delegate.subscribers.late_joiners
        joiners._clock = lambda: self.now
        joiners._thread = object()  # type: ignore[assignment]  # a pass is made by hand
        self.connection = self.delegate.publishers.connect("publisher", 1e6)[0].connection_id
        self.delegate.tables.attached(self.connection)
        self.registrations: list[Registration] = []
        self.published: dict[tuple[str, int], float] = {}
        self.sessions: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.got: dict[str, list[tuple[str, int]]] = {}
        self.lost: dict[str, Counter[str]] = {}
        self._names = itertools.count()

    def open(self, _bundle: SchemaBundle) -> Gate:
        return Gate()

    def forget(self, _type: TypeName) -> None: ...

    def join(self, item: ServiceItem, secret: str = "") -> None: ...

    def leave(self, *service_ids: str) -> None: ...

    def register(self, *entries: EntryRep, announced: bool = True, owner: str = "") -> Registration:
        number = len(self.registrations) + 1
        uid = owned_uid("registration", secret(number))
        request = PublisherRequest(SchemaBundle("main.xsd", ()), entries, secret=secret(number), owner=owner)
        made = self.delegate.registrations.register(self.connection, request, uid=uid, number=number)
        self.registrations.append(made)
        if announced:
            self.delegate.registrations.announced(uid, 0)
        return made

    def publish(self, registration: Registration, metadata: bytes = b"<m/>", payload: bytes = b"") -> None:
        uid, sequence = registration.uid, registration.sequence + 1
        head = Head(object_id_of(uid, sequence), uid, sequence, 1.0, "t", "1.0", metadata, len(payload))
        deliveries = Deliveries()
        self.published[uid, sequence] = self.now
        take(self.delegate, registration, Parcel.received(b"".join(pack(head, payload).parts)), deliveries)
        self.delegate.pipeline.distribution.deliver(deliveries)

    def subscribe(self, age: float, *, session: str = "", **options: Any) -> str:
        name = f"s{next(self._names)}"
        session = session or self.delegate.sessions.open("subscriber", 1e6)[0]
        self.delegate.tables.attached(session)
        self.sessions[name] = session
        self.got[name], self.lost[name] = [], Counter()
        request = SubscriptionRequest(name, **options)
        self.numbers[name] = self.delegate.subscribers.subscribe(session, request, 60.0, age).number
        return name

    def serve(self) -> None:
        """One slice, as the thread makes it."""
        self.delegate.subscribers.late_joiners.step()

    def serve_all(self) -> None:
        while self.delegate.subscribers.late_joiners.count:
            self.serve()
            self.now += 1.0

    def read(self) -> None:
        """Subscribers take all that goes out."""
        for session_id in set(self.sessions.values()):
            session = self.delegate.tables.sessions.get(session_id)
            if session is None:
                continue
            while items := session._take(500, 1 << 30):
                for parts in items:
                    self._read_one(session_id, b"".join(parts))
                consumed = {self.numbers[n]: len(self.got[n]) for n, s in self.sessions.items() if s == session_id}
                session._acked(len(items), msgspec.msgpack.encode(Heard(consumed)))

    def _read_one(self, session_id: str, data: bytes) -> None:
        kind, number = ITEM.unpack_from(data)
        of = {self.numbers[name]: name for name, session in self.sessions.items() if session == session_id}
        if kind == LOSS:
            notice = msgspec.msgpack.decode(data[ITEM.size :], type=LossNotice)
            self.lost[of[number]][notice.cause] += notice.count
            return
        assert kind in (OBJECT, SHARED)
        count = number if kind == SHARED else 0
        numbers = [int.from_bytes(data[at : at + 4], "big") for at in range(5, 5 + 4 * count, 4)] or [number]
        head = Parcel.received(data[5 + 4 * count :]).head
        for one in numbers:
            self.got[of[one]].append((head.registration, head.sequence))

    def sequences(self, name: str) -> list[int]:
        self.read()
        return [sequence for _, sequence in self.got[name]]

    def status(self) -> dict[str, Any]:
        return self.delegate.status()


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    worlds: list[World] = []

    def world(**pad: Any) -> World:
        worlds.append(World(**pad))
        return worlds[-1]

    yield world
    for made in worlds:
        made.delegate.subscribers.late_joiners._thread = None
        made.delegate.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


# -- what came before ---------------------------------------------------------------------------------------------


def test_who_stood_before_gets_what_was_published_before_he_came(world: World) -> None:
    # Given five objects, one a second, and a subscription that stood when the third was published
    registration = world.register()
    for _ in range(5):
        world.now += 1.0
        world.publish(registration)
    # When it comes, and a sixth is published before it has caught up
    late = world.subscribe(age=2.0)
    world.publish(registration)
    assert world.sequences(late) == []
    world.serve()
    # Expect the third and all later ones, in order; nothing is lost
    assert world.sequences(late) == [3, 4, 5, 6]
    assert world.lost[late] == {}
    status = world.status()
    assert (status["unmatched"], status["found_late"], status["replayed"]) == (5, 3, 3)
    assert status["matched"] == status["delivered"] == 4


def test_an_object_published_before_the_subscription_stood_never_comes(world: World) -> None:
    registration = world.register()
    world.publish(registration)
    world.now += 0.01
    late = world.subscribe(age=0.0)
    world.publish(registration)
    assert world.sequences(late) == [2]


def test_a_subscription_made_after_its_session_was_opened_stands_since_then(world: World) -> None:
    # Given a session that was opened at 100, and objects at 105 and 107
    registration = world.register()
    session = world.delegate.sessions.open("subscriber", 1e6)[0]
    for second in (105.0, 107.0):
        world.now = second
        world.publish(registration)
    # When a subscription comes that stands since 106
    late = world.subscribe(age=-6.0, session=session)
    world.serve()
    assert world.sequences(late) == [2]


@pytest.mark.parametrize("age", [NOT_BEFORE, math.nan])
def test_who_wants_nothing_from_before_gets_nothing_from_before(world: World, age: float) -> None:
    registration = world.register()
    world.publish(registration)
    late = world.subscribe(age=age)
    world.publish(registration)
    world.serve_all()
    assert world.sequences(late) == [2]
    assert world.lost[late] == {}


@pytest.mark.parametrize("age", [math.inf, 1e308])
def test_whoever_claims_to_have_stood_for_ever_gets_what_is_kept_and_no_more(world: World, age: float) -> None:
    registration = world.register()
    for _ in range(3):
        world.publish(registration)
    world.now += 11.0
    world.delegate.expire()
    world.publish(registration)
    late = world.subscribe(age=age)
    world.serve_all()
    assert world.sequences(late) == [4]
    assert world.lost[late] == {Cause.MISSED: 3}


def test_what_is_not_kept_any_more_is_told_before_what_is(world: World) -> None:
    # Given 15 objects, one a second
    registration = world.register()
    for _ in range(15):
        world.now += 1.0
        world.publish(registration)
        world.delegate.expire()
    # When a subscription comes that stood since the third: the buffer is old by now, and holds the last second
    late = world.subscribe(age=12.0)
    world.serve()
    # Expect exactly those that are missing to be told
    got = world.sequences(late)
    assert got == list(range(16 - len(got), 16))
    assert 1 <= len(got) <= 1 + OLD_SECONDS
    assert world.lost[late] == {Cause.MISSED: 13 - len(got)}
    assert world.status()["lost"] == {Cause.MISSED: 13 - len(got)}


def test_nothing_kept_and_nothing_missed_costs_no_pass(world: World) -> None:
    registration = world.register()
    late = world.subscribe(age=50.0)
    assert world.status()["catching_up"] == 0
    world.publish(registration)
    assert world.sequences(late) == [1]


def test_predicates_and_filters_hold_for_what_was_kept(world: World) -> None:
    registration = world.register()
    for number in range(6):
        world.publish(registration, b"<m><n>%d</n></m>" % number, b"<p><a/><b/></p>")
    wanted = world.subscribe(age=50.0, predicate="/m/n >= 4", payload_filter="//a")
    silent = world.subscribe(age=50.0, payload_filter="//c", suppress_empty=True)
    world.serve_all()
    assert world.sequences(wanted) == [5, 6]
    assert world.sequences(silent) == []
    status = {s["uid"]: s for s in world.status()["subscriptions"]}
    assert (status[silent]["matched"], status[silent]["suppressed"], status[silent]["replayed"]) == (6, 6, 0)


def test_a_subscription_to_several_topics_catches_up_in_the_order_of_publication(world: World) -> None:
    # Given two registrations that publish by turns
    first, second = world.register(), world.register()
    for _ in range(3):
        world.publish(first)
        world.publish(second)
    late = world.subscribe(age=50.0)
    world.serve()
    world.read()
    assert [uid for uid, _ in world.got[late]] == [first.uid, second.uid] * 3


# -- publishers come and go ---------------------------------------------------------------------------------------


def test_a_publisher_that_has_left_leaves_its_objects_for_those_who_stood(world: World) -> None:
    registration = world.register()
    world.publish(registration)
    world.delegate.publishers.disconnect(world.connection)
    world.delegate.expire()
    late = world.subscribe(age=5.0)
    world.serve()
    assert world.sequences(late) == [1]
    # And when nobody can come for them any more, nothing of it is left
    world.now += 10.0 + OLD_SECONDS + 1.0
    world.delegate.expire()
    assert world.status()["kept"]["objects"] == 0
    assert world.delegate.tables.topics
    later = world.subscribe(age=20.0)
    world.serve_all()
    assert (world.sequences(later), world.lost[later]) == ([], {Cause.MISSED: 1})
    world.now += GHOST_SECONDS
    world.delegate.expire()
    assert not world.delegate.tables.topics
    assert not world.delegate.tables.topics.ghosts


def test_topics_without_a_publisher_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jbi_pubsub.pad.matching.topics.GHOSTS_MOST", 10)
    for number in range(30):
        made = world.register(EntryRep(UNIT, (f"unit-{number}",)))
        world.publish(made)
        world.delegate.publishers.unregister(world.connection, made.uid)
        world.delegate.expire()
    assert len(world.delegate.tables.topics) == len(world.delegate.tables.topics.ghosts) == 10
    assert world.status()["kept"]["objects"] == 10


def test_topics_without_a_publisher_share_a_schema_and_hold_nothing_that_was_made_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given types that are made anew with each registration, as nobody else has registered that one
    made = weakref.WeakSet[Gate]()

    def opened(_bundle: SchemaBundle) -> Gate:
        gate = Gate()
        gate.bundle = SchemaBundle("t.xsd", (("t.xsd", b"".join([b"<a", b"/>"])),))
        made.add(gate)
        return gate

    monkeypatch.setattr(world, "open", opened)
    # When publishers with entries of their own come, publish and leave
    for number in range(5):
        registration = world.register(EntryRep(UNIT, (f"unit-{number}",)))
        world.publish(registration)
        world.delegate.publishers.unregister(world.connection, registration.uid)
    # Expect the schema to be there once, and no type when their objects are not kept any more
    del registration
    world.now += 10.0 + OLD_SECONDS + 1.0
    world.delegate.expire()
    world.registrations.clear()
    gc.collect()
    assert not made
    assert len({id(schema) for schema in world.delegate.tables.topics.ghosts.values()}) == 1
    assert len(world.delegate.tables.topics.ghosts) == 5
    # And that the next registration is of a type as ever
    again = world.register(EntryRep(UNIT, ("unit-1",)))
    assert again.topic.gate is not None


def test_a_new_registration_lets_its_topic_wait_for_its_announcement(world: World) -> None:
    # Given a topic that is old
    world.register()
    world.now += 100.0
    # When a second publisher of it registers, and no lookup service tells of it for a minute
    second = world.register(announced=False)
    world.publish(second)
    world.now += 60.0
    world.delegate.expire()
    # Expect that who is told then gets all
    world.delegate.registrations.announced(second.uid, 1)
    late = world.subscribe(age=100.0)
    world.serve()
    assert world.sequences(late) == [1]


# -- bounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"), [("drop_oldest", [4, 5, 6]), ("drop_newest", [1, 2, 3]), ("block", [1, 2, 3])]
)
def test_catching_up_stays_within_the_bound_by_the_policy(world: World, policy: str, expected: list[int]) -> None:
    registration = world.register()
    for _ in range(6):
        world.publish(registration)
    late = world.subscribe(age=50.0, bound=3, policy=policy, block_seconds=0.0)
    world.serve()
    assert world.sequences(late) == expected
    assert world.lost[late] == {Cause.QUEUE_OVERFLOW: 3}
    status = world.status()
    assert status["matched"] == status["delivered"] + sum(status["lost"].values())


def test_what_comes_live_meanwhile_counts_in_the_bound_too(world: World) -> None:
    registration = world.register()
    for _ in range(4):
        world.publish(registration)
    late = world.subscribe(age=50.0, bound=5)
    for _ in range(3):
        world.publish(registration)
    world.serve()
    assert world.sequences(late) == [3, 4, 5, 6, 7]
    assert world.lost[late] == {Cause.QUEUE_OVERFLOW: 2}
    assert world.status()["queued_bytes"] == 0


def test_several_of_one_process_get_what_they_catch_up_with_over_the_link_once(world: World) -> None:
    registration = world.register()
    for _ in range(4):
        world.publish(registration)
    session = world.delegate.sessions.open("subscriber", 1e6)[0]
    names = [world.subscribe(age=50.0, session=session) for _ in range(3)]
    world.serve()
    items = world.delegate.tables.sessions[session]._take(500, 1 << 30)
    assert [ITEM.unpack_from(b"".join(parts)) for parts in items] == [(SHARED, 3)] * 4
    assert len(names) == 3


def test_a_pass_takes_no_more_memory_than_a_queue_may(make: Callable[..., World]) -> None:
    # Given large payloads in the buffer, of which each subscription cuts something else
    world = make(max_queued_bytes=8 << 20)
    registration = world.register()
    for _ in range(4):
        world.publish(registration, payload=b"<p>" + b"<a>%s</a>" % (b"x" * 200_000) + b"</p>")
    session = world.delegate.sessions.open("subscriber", 1e6)[0]
    names = [world.subscribe(age=50.0, session=session, payload_filter=f"//a[{n} = {n}]") for n in range(20)]
    world.serve_all()
    assert world.status()["queued_bytes"] < (1 << 20) + 500_000
    # Expect what went over that to be told, and the account to come out even
    world.read()
    dropped = sum(world.lost[name][Cause.QUEUE_OVERFLOW] for name in names)
    assert sum(len(world.got[name]) for name in names) + dropped == 80
    assert dropped > 0


def test_whose_pass_took_long_comes_behind_those_who_have_used_less(world: World) -> None:
    # Given a session whose pass took 2 s
    registration = world.register()
    world.publish(registration)
    first = world.subscribe(age=50.0)
    look = world.delegate.tables.buffers.look

    def slow(*args: Any) -> Any:
        world.now += 2.0
        return look(*args)

    world.delegate.tables.buffers.look = slow  # type: ignore[method-assign]
    world.serve()
    world.delegate.tables.buffers.look = look  # type: ignore[method-assign]
    # When it subscribes again, and then another one does
    again = world.subscribe(age=50.0, session=world.sessions[first])
    other = world.subscribe(age=50.0)
    # Expect the other to be served first, and then it
    world.serve()
    assert (world.sequences(other), world.sequences(again)) == ([1], [])
    world.serve()
    assert world.sequences(again) == [1]


def test_peers_with_many_sessions_have_one_share(world: World) -> None:
    # Given a peer whose many sessions have caught up, each for some time
    registration = world.register()
    world.publish(registration)

    def subscribe(peer: str) -> str:
        session = world.delegate.sessions.open("subscriber", 1e6)[0]
        request = SubscriptionRequest(f"{peer}-{session}")
        world.delegate.subscribers.subscribe(
            session, request, 60.0, 50.0, caller=Caller("", place=PortPlace(peer=peer))
        )
        return session

    look = world.delegate.tables.buffers.look

    def slow(*args: Any) -> Any:
        world.now += 0.5
        return look(*args)

    world.delegate.tables.buffers.look = slow  # type: ignore[method-assign]
    greedy = [subscribe("greedy") for _ in range(5)]
    world.serve()
    # When somebody else comes behind them
    honest = subscribe("honest")
    world.serve()
    # Expect that he is the next
    held = world.delegate.subscribers.late_joiners
    assert world.delegate.tables.sessions[honest] not in held._waiting
    assert sum(world.delegate.tables.sessions[session] in held._waiting for session in greedy) == 4
    world.serve_all()


def test_of_what_leaves_the_buffer_during_a_pass_it_is_told_how_much(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given ten objects, and a pass whose slices have time for one object each
    world = make(keep_bytes=20_000)
    registration = world.register()
    for _ in range(10):
        world.publish(registration)
    monkeypatch.setattr("jbi_pubsub.pad.egress.buffer_pass.SLICE_SECONDS", -1.0)
    late = world.subscribe(age=50.0)
    owe = BufferPass._owe
    taken: list[int] = []

    def one_each(self: BufferPass, kept: Any, topic: Any) -> None:
        taken.append(kept.parcel.head.sequence)
        owe(self, kept, topic)

    monkeypatch.setattr(BufferPass, "_owe", one_each)
    world.serve()
    assert taken == []
    # When the buffer is filled with others before it goes on
    for _ in range(30):
        world.publish(registration)
    monkeypatch.undo()
    world.serve_all()
    # Expect what is left of the ten, what came live, and the number of the others
    got = world.sequences(late)
    assert got == sorted(set(got))
    missed = 10 - sum(number <= 10 for number in got)
    assert world.lost[late][Cause.MISSED] == missed
    assert got[-30:] == list(range(11, 41))


def test_a_pass_that_fails_lets_the_late_joiners_live_and_tells_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = world.register()
    world.publish(registration)
    late = world.subscribe(age=50.0)
    with monkeypatch.context() as patch:
        patch.setattr(RecentBuffers, "look", lambda *_: 1 / 0)
        world.serve()
    world.publish(registration)
    assert world.sequences(late) == [2]
    assert world.lost[late] == {Cause.MISSED: 0}  # how many is not known


def test_who_cancels_while_catching_up_gets_nothing_and_costs_nothing(world: World) -> None:
    registration = world.register()
    world.publish(registration)
    late = world.subscribe(age=50.0)
    world.publish(registration)
    world.delegate.subscribers.unsubscribe(world.sessions[late], late)
    world.serve()
    assert world.sequences(late) == []
    status = world.status()
    assert status["queued_bytes"] == status["catching_up"] == 0
    assert status["matched"] == sum(status["lost"].values()) == 1  # the second, which waited in its queue


def test_a_publisher_that_fills_the_buffers_at_once_waits_once_for_late_joiners(make: Callable[..., World]) -> None:
    # Given room for about ten objects, a flooding publisher, and one that is quiet
    world = make(keep_bytes=20_000, settle_seconds=2.0)
    waits: list[float] = []
    world.delegate.pipeline.control.stopping.wait = waits.append  # type: ignore[assignment]
    loud, quiet = world.register(), world.register(EntryRep(UNIT, ("quiet",)))
    world.publish(quiet)
    # While nobody was told of it that has not come, it waits for nobody
    for _ in range(100):
        world.publish(loud)
    assert waits == []
    # When somebody was
    world.delegate.registrations.announced(loud.uid, 1)
    for _ in range(100):
        world.publish(loud)
    # Expect it to wait once, and the quiet one, which has not filled them, not at all
    world.publish(quiet)
    assert waits == [2.0]


def test_numbers_that_no_publisher_can_have_skipped_are_refused(world: World) -> None:
    # Given a subscription and an object
    registration = world.register()
    name = world.subscribe(age=0.0)
    world.publish(registration)
    # When one leaves out more than a million, and then one a million
    uid = registration.uid

    def skip_to(sequence: int) -> None:
        head = Head(object_id_of(uid, sequence), uid, sequence, 1.0, "t", "1.0", b"<m/>", 0)
        deliveries = Deliveries()
        take(world.delegate, registration, Parcel.received(b"".join(pack(head, b"").parts)), deliveries)
        world.delegate.pipeline.distribution.deliver(deliveries)

    with pytest.raises(MetadataError, match="leaves out"):
        skip_to(2**53)
    skip_to(GAP_MOST + 2)
    # Expect the first to be refused and forgotten, the second to be told as it is
    assert sorted(world.sequences(name)) == [1, GAP_MOST + 2]
    assert world.lost[name] == {Cause.SEQUENCE_GAP: GAP_MOST}
    assert world.status()["refused"] == 1


# -- every interleaving ---------------------------------------------------------------------------------------------

ACTIONS = ("publish", "subscribe", "unsubscribe", "serve", "trim", "wait")


class Interleaved(World):
    """Before and behind each step that one thread makes, others do what the schedule says, as other threads would."""

    def __init__(self, schedule: list[str]) -> None:
        super().__init__(keep_seconds=6.0)
        self.schedule = schedule
        self.since: dict[str, float] = {}
        self.cancelled: set[str] = set()
        self._busy: set[str] = set()
        self.register()
        self.register()
        self.hook(self.delegate.tables.buffers, "keep")
        self.hook(self.delegate.tables.buffers, "look")
        self.hook(self.delegate.tables.buffers, "owes")
        self.hook(self.delegate.subscribers.late_joiners, "_let_go")
        self.hook(self.delegate.pipeline.distribution, "hand_out")
        for topic in self.delegate.tables.topics:
            self.hook(topic.table, "add")
            self.hook(topic.table, "match")

    def hook(self, target: Any, name: str) -> None:
        step = getattr(target, name)

        def stepped(*args: Any, **options: Any) -> Any:
            self.act()
            result = step(*args, **options)
            self.act()
            return result

        setattr(target, name, stepped)

    def act(self) -> None:
        """What comes next in the schedule, if a thread is free for it."""
        if not self.schedule:
            return
        action = self.schedule.pop(0)
        # What a lock or a single thread keeps apart is kept apart here.
        lane = {"subscribe": "lock", "unsubscribe": "lock", "serve": "pass"}.get(action, "")
        if action == "publish":
            free = [r for r in self.registrations if r.uid not in self._busy]
            if not free:
                return
            self.occupied(free[0].uid, lambda: self.publish(free[0]))
        elif lane in self._busy:
            return
        elif action == "subscribe":
            self.occupied("lock", self.joiner)
        elif action == "unsubscribe":
            self.occupied("lock", self.cancel)
        elif action == "serve":
            self.occupied("pass", self.serve)
        elif action == "trim":
            self.delegate.tables.buffers.trim(self.now)
        else:
            self.now += 1.0

    def occupied(self, lane: str, step: Callable[[], Any]) -> None:
        self._busy.add(lane)
        try:
            self.now += 1.0
            step()
        finally:
            self._busy.discard(lane)

    def joiner(self) -> None:
        age = float(len(self.since) % 4) * 3.0
        since = self.now - age
        self.since[self.subscribe(age)] = since

    def cancel(self) -> None:
        standing = [name for name in self.since if name not in self.cancelled]
        if standing:
            self.cancelled.add(standing[0])
            self.delegate.subscribers.unsubscribe(self.sessions[standing[0]], standing[0])


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.sampled_from(ACTIONS), max_size=60))
def test_in_every_interleaving_each_object_comes_once_in_order_or_is_told_as_missed(schedule: list[str]) -> None:
    # Given two registrations of one topic, and any schedule of what happens in the middle of what
    world = Interleaved(list(schedule))
    try:
        while world.schedule:
            world.act()
        world.serve_all()
        world.read()
        # Expect for each subscription that stands
        for name, since in world.since.items():
            if name in world.cancelled:
                continue
            got = world.got[name]
            assert len(got) == len(set(got)), "nothing twice"
            for registration in world.registrations:
                numbers = [sequence for uid, sequence in got if uid == registration.uid]
                assert numbers == sorted(numbers), "in order"
            due = {key for key, time in world.published.items() if time >= since}
            missing = due - set(got)
            assert world.lost[name][Cause.MISSED] == len(missing), "all that came since, or told"
        status = world.status()
        assert status["published"] == len(world.published)
        assert status["queued"] == status["in_flight"] == status["queued_bytes"] == 0
    finally:
        world.delegate.subscribers.late_joiners._thread = None
        world.delegate.close()


# -- the end of things, and those who wish us ill -------------------------------------------------------------------


def test_who_still_catches_up_when_the_delegate_stops_is_told(world: World) -> None:
    # Given a late joiner whose turn has not come, with an object of before and one that came live
    registration = world.register()
    world.publish(registration)
    late = world.subscribe(age=50.0)
    world.publish(registration)
    # When the delegate stops
    world.delegate.subscribers.late_joiners._thread = None
    world.delegate.subscribers.late_joiners.stop()
    world.delegate.tables.sessions[world.sessions[late]].part()
    session = world.delegate.tables.sessions[world.sessions[late]]
    notices = [
        msgspec.msgpack.decode(data[ITEM.size :], type=LossNotice)
        for parts in session._take(500, 1 << 30)
        for data in [b"".join(parts)]
        if ITEM.unpack_from(data)[0] == LOSS
    ]
    # Expect to be told that something may be missing, and what was lost for certain
    assert {(notice.cause, notice.count) for notice in notices} == {(Cause.MISSED, 0), (Cause.SHUTDOWN, 1)}


def test_without_a_thread_late_joiners_live_and_are_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a system that has no thread for us
    registration = world.register()
    world.publish(registration)
    world.delegate.subscribers.late_joiners._thread = None

    def refuse(_thread: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", refuse)
        late = world.subscribe(age=50.0)
    # Expect what comes live, and to be told; the next one has a thread again
    world.publish(registration)
    assert world.sequences(late) == [2]
    assert world.lost[late] == {Cause.MISSED: 0}
    assert world.delegate.subscribers.late_joiners._thread is None


def test_topics_that_never_had_an_object_push_nobody_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a publisher that has left an object behind, and room for two such topics
    monkeypatch.setattr("jbi_pubsub.pad.matching.topics.GHOSTS_MOST", 2)
    honest = world.register(EntryRep(UNIT, ("honest",)))
    world.publish(honest)
    world.delegate.publishers.unregister(world.connection, honest.uid)
    # When a stranger registers and leaves many times, the same topic and others
    for number in range(20):
        made = world.register(EntryRep(UNIT, (f"stranger-{number % 5}",)))
        world.delegate.publishers.unregister(world.connection, made.uid)
    world.delegate.expire()
    # Expect who stood for the honest one to get it
    late = world.subscribe(age=50.0, entries=(EntryRep(UNIT, ("honest",)),))
    world.serve_all()
    assert world.sequences(late) == [1]


def test_a_registration_that_leaves_unannounced_keeps_no_buffer_young_for_ever(world: World) -> None:
    # Given a topic with objects, and a second registration of it that leaves before anybody has told of it
    registration = world.register()
    world.publish(registration)
    second = world.register(announced=False)
    world.delegate.publishers.unregister(world.connection, second.uid)
    # Expect its buffer to become old as ever
    world.now += 60.0
    world.delegate.expire()
    assert world.status()["kept"]["objects"] == 0


def test_an_object_that_is_refused_tells_no_gap(world: World) -> None:
    # Given a subscriber and an object; When a forged one of another registration leaves out a thousand
    registration, other = world.register(), world.register()
    name = world.subscribe(age=0.0)
    world.publish(registration)
    head = Head(object_id_of(other.uid, 1000), other.uid, 1000, 1.0, "t", "1.0", b"<m/>", 0)
    with pytest.raises(MetadataError):
        take(world.delegate, registration, Parcel.received(b"".join(pack(head, b"").parts)), Deliveries())
    world.publish(registration)
    # Expect nobody to hear of it
    assert world.sequences(name) == [1, 2]
    assert world.lost[name] == {}


def test_one_session_that_takes_nothing_leaves_the_others_their_room(make: Callable[..., World]) -> None:
    # Given a session with many subscriptions that takes nothing, and another subscriber
    world = make(max_queued_bytes=100_000)
    registration = world.register()
    session = world.delegate.sessions.open("silent", 1e6)[0]
    for _ in range(10):
        world.subscribe(age=0.0, session=session, bound=1_000)
    honest = world.subscribe(age=0.0)
    # When far more is published than there is room for
    for _ in range(100):
        world.publish(registration, payload=bytes(2_000))
        for parts in world.delegate.tables.sessions[world.sessions[honest]]._take(500, 1 << 30):
            world._read_one(world.sessions[honest], b"".join(parts))
    # Expect no publish to be refused, and the other one to have all
    assert len(world.got[honest]) == 100
    assert world.status()["queued_bytes"] <= 100_000 // 4 + 3_000


def test_one_that_hoards_costs_another_of_its_session_no_more_than_the_room_for_the_next(
    make: Callable[..., World],
) -> None:
    # Given a session whose share is filled by one subscription, while another has a few objects waiting
    world = make(max_queued_bytes=400_000)
    registration = world.register()
    session = world.delegate.sessions.open("subscriber", 1e6)[0]
    small = world.subscribe(age=0.0, session=session, predicate="/m[@small]")
    for _ in range(5):
        world.publish(registration, b"<m small='1'/>", bytes(1_000))
    hoards = [world.subscribe(age=NOT_BEFORE, session=session, predicate=f"/m[@large='{n}']") for n in range(3)]
    for number in range(len(hoards)):
        for _ in range(25):
            world.publish(registration, b"<m large='%d'/>" % number, bytes(2_000))
    # When one more comes for the small one
    world.publish(registration, b"<m small='1'/>", bytes(1_000))
    # Expect its oldest to have made way, and no more
    uids = {s["uid"]: s for s in world.status()["subscriptions"]}
    assert uids[small]["lost"] == {Cause.QUEUE_OVERFLOW: 1}
    assert world.sequences(small) == [2, 3, 4, 5, registration.sequence]


def test_who_comes_late_with_others_gets_what_its_own_template_says(world: World) -> None:
    # Given objects of two units, and a session that comes late with a subscription to each
    registrations = {name: world.register(EntryRep(UNIT, (name,))) for name in ("a", "b")}
    for registration in registrations.values():
        world.publish(registration)
    session = world.delegate.sessions.open("subscriber", 1e6)[0]
    names = {unit: world.subscribe(10.0, session=session, entries=(EntryRep(UNIT, (unit,)),)) for unit in ("a", "b")}
    # When they catch up together
    world.serve_all()
    world.read()
    # Expect each to get the objects of its unit alone
    assert {unit: world.got[name] for unit, name in names.items()} == {
        unit: [(registration.uid, 1)] for unit, registration in registrations.items()
    }
