"""Durable subscriptions: each goes on where it was, with any process, over restarts, for as long as its lease."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from keeping import MemoryKeeping

from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError, OversizeError, StorageError, UnknownUidError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.egress.catch_up import CatchUpState
from jbi_pubsub.pad.egress.session import SubscriberSession
from jbi_pubsub.protocol.deliveries import ASK_AGAIN, END, ITEM, Heard
from jbi_pubsub.protocol.replies import Grant
from jbi_pubsub.protocol.requests import NEW, Start
from tests.conftest import eventually
from tests.pad.test_first_object import World
from tests.pad.test_replay import ALL, Replaying

pytestmark = pytest.mark.processes

MINE = "m" * 32
OTHERS = "o" * 32


class Lasting(Replaying):
    def open(self, start: Start = ALL, name: str = "fusion-1", **options: Any) -> Any:  # type: ignore[override]
        if not isinstance(start, Start):
            return super().open(start)  # a schema bundle: the type repository's
        return self.begin(start, durable=name, **{"secret": MINE, **options})

    def leave(self, *_: Any) -> None:  # the announcer's
        """Nothing."""

    def again(self) -> None:
        """Another process."""
        self.delegate.sessions.close(self.session_id)
        self.session_id = self.delegate.sessions.open("asker", 1e6)[0]
        self.delegate.tables.attached(self.session_id)

    def acknowledge(self, granted: Grant, *positions: int) -> None:
        heard = Heard({}, {}, {granted.number: positions})
        self.session._acked(0, msgspec.msgpack.encode(heard))

    @property
    def known(self) -> dict[str, Any]:
        (durable,) = self.history.catch_ups.durables.status()
        return durable


@pytest.fixture
def make(standing: Callable[..., Any]) -> Callable[..., Lasting]:
    return partial(standing, Lasting)


@pytest.fixture
def place(make: Callable[..., Lasting], keeping: MemoryKeeping) -> Lasting:
    made = make(keeping)
    made.fill(10)
    return made


def test_it_goes_on_where_it_was_with_another_process(place: Lasting, keeping: MemoryKeeping) -> None:
    # Given a durable subscription that has had ten objects, and five more while it was away
    first = place.open()
    assert place.until(first, 10) == list(range(1, 11))
    place.fill(2)
    assert place.until(first, 12) == list(range(1, 13))
    place.again()
    place.fill(5)
    assert place.delegate.sessions.budget.used == 0
    # When another process opens it
    second = place.open()
    # Expect what it has not had, then what comes live; nothing is lost or counted so
    assert place.until(second, 5) == list(range(13, 18))
    place.fill(1)
    assert place.until(second, 6) == list(range(13, 19))
    assert not place.losses
    assert place.delegate.status()["lost"] == {}


def test_it_goes_on_after_a_restart_of_the_delegate(make: Callable[..., Lasting], keeping: MemoryKeeping) -> None:
    before = make(keeping)
    before.fill(10)
    assert before.until(before.open(), 10) == list(range(1, 11))
    before.delegate.subscribers.late_joiners._thread = None
    before.delegate.close()
    assert [(each.name, each.position) for each in keeping.durables.values()] == [("fusion-1", 10)]
    assert MINE.encode() not in next(iter(keeping.durables.values())).request
    after = make(keeping)
    after.fill(1)
    assert after.until(after.open(), 1) == [11]


def test_a_new_one_begins_where_it_says(place: Lasting) -> None:
    assert place.until(place.open(NEW, "a"), 0) == []
    assert place.until(place.open(Start("after", after=7), "b"), 3) == [8, 9, 10]
    assert place.until(place.open(Start("last"), "c"), 1) == [10]


def test_what_was_not_acknowledged_comes_again(place: Lasting) -> None:
    # Given one that acknowledges object by object, and may have three that are not
    first = place.open(ack="explicit", bound=3)
    eventually(lambda: place.take() or len(place.found[first.number]) == 3)
    time.sleep(0.05)
    place.take()
    assert place.found[first.number] == [1, 2, 3]
    # When it acknowledges two of them, one twice, and some that were never sent
    place.acknowledge(first, 1, 3, 3, 9, 10**6)
    eventually(lambda: place.take() or len(place.found[first.number]) == 5)
    assert place.found[first.number] == [1, 2, 3, 4, 5]
    assert (place.known["position"], place.known["unacknowledged"]) == (1, 3)
    # And leaves
    place.again()
    # Expect the others again, and not those
    second = place.open(ack="explicit", bound=100)
    assert place.until(second, 8) == [2, 4, 5, 6, 7, 8, 9, 10]
    place.acknowledge(second, *place.found[second.number])
    assert (place.known["position"], place.known["unacknowledged"]) == (10, 0)


@pytest.mark.parametrize("qos", [False, True])
def test_a_slow_one_loses_nothing_though_it_lives(
    make: Callable[..., Lasting], keeping: MemoryKeeping, qos: bool
) -> None:  # fmt: skip
    # Given one that lives, with room for four, and takes nothing for a while
    place = make(keeping, qos=qos)
    place.fill(1)
    granted = place.open(bound=4)
    assert place.until(granted, 1) == [1]
    place.consumes = False
    for _ in range(10):
        place.fill(10)
        place.take()
    assert place.delegate.sessions.budget.used < 20 * place.objects[0].size
    # When it takes again, while more is published
    place.consumes = True
    for _ in range(5):
        place.session._acked(0, msgspec.msgpack.encode(Heard({granted.number: len(place.found[granted.number])})))
        place.fill(1)
        place.take()
    # Expect all of it, once
    assert sorted(place.until(granted, 106)) == list(range(1, 107))
    assert not place.losses
    assert not place.subscription(granted).lost
    eventually(lambda: place.known["position"] == 106)


def test_what_its_publisher_sends_again_after_a_kill_comes_once(
    make: Callable[..., Lasting], keeping: MemoryKeeping
) -> None:
    # Given a delegate that is killed before it has told its publisher of three objects, of which one has been had
    before = make(keeping)
    before.send(before.enter("a", persist=True), 1, 2, 3)
    first = before.open(ack="explicit")
    assert before.until(first, 3) == [1, 2, 3]
    before.acknowledge(first, 2)
    before.history.catch_ups.note()
    # When it is there again, with a durable and a replaying subscription, and the publisher sends all again, and more
    after = make(keeping)
    opened = [after.open(ack="explicit"), after.begin(ALL), after.begin(Start("last"))]
    for granted, positions in zip(opened, ([1, 3], [1, 2, 3], [3]), strict=True):
        assert after.until(granted, len(positions)) == positions
    registration = after.enter("a", persist=True)
    after.send(registration, 1, 2, 3, 4)
    # Expect what is new alone
    new = keeping.end
    assert len(keeping.records) == 4
    for granted, positions in zip(opened, ([1, 3, new], [1, 2, 3, new], [3, new]), strict=True):
        assert after.until(granted, len(positions)) == positions
    assert not after.losses


@pytest.mark.parametrize("qos", [False, True])
@pytest.mark.parametrize("ack", ["auto", "explicit"])
@pytest.mark.parametrize("is_offered", [False, True])
def test_what_another_publisher_overtakes_is_not_lost(
    make: Callable[..., Lasting], keeping: MemoryKeeping, is_offered: bool, ack: Any, qos: bool
) -> None:  # fmt: skip
    # Given two publishers, one of which has its object overtaken between the archive and the queue, or waits in it
    place = make(keeping, qos=qos)
    slow, fast = place.enter("slow", persist=True), place.enter("fast", persist=True)
    first = place.open(ack=ack)
    place.send(fast, 1)
    assert place.until(first, 1) == [1]
    deliver = place.judge(slow, 1)
    place.send(fast, 2)
    place.take()
    assert place.found[first.number] == [1, 3]
    if is_offered:
        deliver()
    if ack == "explicit":
        place.acknowledge(first, 1, 3)
    # When the delegate is killed, or another process opens it
    place.history.catch_ups.note()
    killed = make(keeping, qos=qos)
    for made, opened in ((killed, killed.open(ack=ack)), (place, place.again() or place.open(ack=ack))):
        # Expect it to come, and what was acknowledged not to
        assert made.until(opened, 1) == [2]
    if not is_offered:
        assert deliver() == []
    place.send(slow, 2)
    assert place.until(opened, 2) == [2, 4]


def test_what_is_overtaken_while_a_slow_one_falls_back_is_not_lost(
    make: Callable[..., Lasting], keeping: MemoryKeeping
) -> None:
    # Given one that lives, with room for four, whose third object was sent, and overtook the second
    place = make(keeping)
    slow, fast = place.enter("slow", persist=True), place.enter("fast", persist=True)
    granted = place.open(ack="explicit", bound=4)
    place.send(fast, 1)
    assert place.until(granted, 1) == [1]
    deliver = place.judge(slow, 1)
    place.send(fast, 2)
    place.take()
    # When it falls back, as it takes no more, and that object is offered then; and it acknowledges what it has
    place.send(fast, *range(3, 15))
    assert place.session.feeds.state_of(place.subscription(granted)) is not CatchUpState.LIVE
    deliver()
    place.take()
    while len(place.found[granted.number]) < 15:
        had = len(place.found[granted.number])
        place.acknowledge(granted, *place.found[granted.number])
        eventually(lambda had=had: place.take() or len(place.found[granted.number]) > had)
    # Expect each once
    assert sorted(place.found[granted.number]) == list(range(1, 16))
    place.acknowledge(granted, *place.found[granted.number])
    eventually(lambda: place.known["position"] == 15)


@pytest.mark.parametrize("ack", ["auto", "explicit"])
def test_what_is_not_kept_acknowledges_nothing_else(
    make: Callable[..., Lasting], keeping: MemoryKeeping, ack: Any
) -> None:
    # Given one with room for four that gets what is kept, and, in between, what is not
    place = make(keeping)
    kept, never = place.enter("a", persist=True), place.enter("b", persist=False)
    granted = place.open(ack=ack, bound=4)
    place.send(kept, 1)
    assert place.until(granted, 1) == [1]
    place.consumes = False
    place.send(never, 1, 2)
    place.send(kept, 2)
    place.take()
    assert place.found[granted.number] == [1, 0, 0, 4]
    # When the application has taken, or acknowledged, all but the last
    if ack == "auto":
        place.session._acked(0, msgspec.msgpack.encode(Heard({granted.number: 3})))
    else:
        place.acknowledge(granted, 1, 0, 0, 0, 0)
    # Expect that one not to be, and room for three more
    assert place.known["position"] < 4
    place.send(kept, 3, 4, 5)
    place.take()
    assert place.found[granted.number] == [1, 0, 0, 4, 5, 6, 7]


def test_what_the_rules_took_meanwhile_is_told(place: Lasting, keeping: MemoryKeeping) -> None:
    assert place.until(place.open(), 10) == list(range(1, 11))
    place.again()
    place.fill(5)
    keeping.expire(13)
    second = place.open()
    assert place.until(second, 2) == [14, 15]
    eventually(lambda: place.take() or place.losses)
    assert [(notice.cause, notice.count) for notice in place.losses] == [(Cause.EXPIRED, 3)]


def test_what_was_acknowledged_before_the_rules_took_it_is_no_loss(place: Lasting, keeping: MemoryKeeping) -> None:
    # Given one that has acknowledged the second and fourth of five objects, and leaves
    first = place.open(ack="explicit", bound=5)
    eventually(lambda: place.take() or len(place.found[first.number]) == 5)
    place.acknowledge(first, 2, 4)
    place.again()
    # When the rules take four, and it comes again; Expect the other two to be told
    keeping.expire(4)
    second = place.open(ack="explicit", bound=10)
    assert place.until(second, 6) == [5, 6, 7, 8, 9, 10]
    eventually(lambda: place.take() or place.losses)
    assert sum(notice.count for notice in place.losses) == 2


def test_what_the_rules_take_while_it_is_open_and_behind_is_told(place: Lasting, keeping: MemoryKeeping) -> None:
    # Given one that has two of ten objects, and room for no more
    place.consumes = False
    granted = place.open(bound=2)
    found = place.found[granted.number]
    eventually(lambda: place.take() or len(found) == 2)
    # When the rules take six of the others, and, when it has two more, some of what came meanwhile
    keeping.expire(8)
    place.fill(5)
    for up_to in (11, 11, 12, 12, 12):
        had = len(found)
        place.session._acked(0, msgspec.msgpack.encode(Heard({granted.number: had})))
        eventually(lambda had=had: place.take() or len(found) > had or found[-1] == 15)
        keeping.expire(up_to)
    # Expect each object, or its loss
    place.consumes = True
    place.session._acked(0, msgspec.msgpack.encode(Heard({granted.number: len(found)})))
    assert place.until(granted, len(found) + 15 - found[-1])[-1] == 15
    eventually(lambda: place.take() or len(found) + sum(notice.count for notice in place.losses) >= 15)
    assert len(found) + sum(notice.count for notice in place.losses) == 15
    assert {notice.cause for notice in place.losses} == {Cause.EXPIRED}


def test_a_name_alone_is_no_right(place: Lasting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.until(place.open(), 10)
    # Expect who has no secret to be refused, and who has another one to have one of his own
    with pytest.raises(AccessDeniedError, match="secret"):
        place.open(secret="")
    assert place.until(place.open(secret=OTHERS), 10) == list(range(1, 11))
    assert place.until(place.open(secret="", caller=Caller("1.2.3.4:5", identity="bob")), 10) == list(range(1, 11))
    assert not place.history.catch_ups.reset("fusion-1", "x" * 32, ALL, None)
    # And one process to have it at a time, until it is not connected any more
    mine = place.session_id
    place.session_id = place.delegate.sessions.open("other", 1e6)[0]
    with pytest.raises(ConfigurationError, match="open in another process"):
        place.open()
    assert not place.session._take(10, 1 << 20)
    # When that one closes one of its own, expect who was refused to be told to ask again
    place.delegate.subscribers.unsubscribe(mine, "r3")
    assert place.session._take(10, 1 << 20) == [(ITEM.pack(END, ASK_AGAIN),)]
    monkeypatch.setattr(SubscriberSession, "has_gone", property(lambda self: self.session_id == mine))
    place.fill(1)
    assert place.until(place.open(), 1)[-1] == 11


@pytest.mark.row("G-206")
def test_what_it_waits_for_is_kept_from_then_on(make: Callable[..., Lasting], keeping: MemoryKeeping) -> None:
    # Given registrations that are not kept
    place = make(keeping)
    standing, never = place.enter("a", persist=None), place.enter("b", persist=False)
    place.send(standing, 1)
    assert not keeping.records
    # When a durable subscription waits for them
    granted = place.open(NEW)
    place.send(standing, 2)
    place.send(never, 1)
    later = place.enter("c", persist=None)
    place.send(later, 1)
    # Expect them to be kept, also those that come later, but for those that never are
    assert keeping.numbers() == [(standing.uid, 2), (later.uid, 1)]
    place.again()
    place.send(standing, 3)
    assert place.until(place.open(), 1)[-1] == keeping.end
    assert granted.placed


def test_it_ends_with_its_lease_or_when_it_is_cancelled(place: Lasting, keeping: MemoryKeeping) -> None:
    granted = place.open()
    place.until(granted, 10)
    place.open(name="other")
    assert len(keeping.durables) == 2
    # When one is cancelled by its subscriber, and the other's lease runs out while it is away
    place.delegate.subscribers.unsubscribe(place.session_id, place.subscription(granted).uid)
    assert [name for name, _ in keeping.durables] == ["other"]
    durables = place.history.catch_ups.durables
    durables._clock = lambda: time.monotonic() + 10 * durables._lease
    durables.note()
    assert keeping.durables, "somebody has it"
    durables._clock = time.monotonic
    place.again()
    durables._clock = lambda: time.monotonic() + 20 * durables._lease
    durables.note()
    assert not keeping.durables
    assert durables.status() == []


def test_what_was_never_sent_can_not_be_acknowledged(place: Lasting, keeping: MemoryKeeping) -> None:
    # Given one that has ten objects, and has acknowledged none
    granted = place.open(ack="explicit")
    assert place.until(granted, 10) == list(range(1, 11))
    # When it acknowledges what it never got, what nobody has, the same twice, and the wrong way round
    place.acknowledge(granted, 0, 10**6, 2**63 - 1, 9, 9, 3, 3)
    place.fill(2)
    assert place.until(granted, 12) == list(range(1, 13))
    # Expect what it got of that to be acknowledged alone
    assert place.known["unacknowledged"] == 10
    place.again()
    # and nothing by who has gone
    place.acknowledge(granted, *range(1, 10**4))
    second = place.open(ack="explicit")
    assert place.until(second, 10) == [1, 2, 4, 5, 6, 7, 8, 10, 11, 12]


def test_there_may_be_very_many(place: Lasting, keeping: MemoryKeeping, make: Callable[..., Lasting]) -> None:
    # Given ten thousand durable subscriptions that are away
    place.until(place.open(), 10)
    place.again()
    place.history.catch_ups.durables.note()
    ((_, owner),) = keeping.durables
    known = keeping.durables["fusion-1", owner]
    keeping.note([msgspec.structs.replace(known, name=f"name-{n}") for n in range(10_000)])
    # When the delegate is started again
    began = time.process_time()
    again = make(keeping)
    again.fill(100)
    # Expect it to know them, and each to go on where it was
    assert len(again.history.catch_ups.durables.status()) == 10_001
    assert again.until(again.open(name="name-7777"), 100) == list(range(11, 111))
    again.history.catch_ups.durables.note()
    assert time.process_time() - began < 60.0


def test_it_may_be_set_anywhere(place: Lasting, keeping: MemoryKeeping) -> None:
    granted = place.open()
    place.until(granted, 10)
    # When it is reset while it is open, and while it is not
    for start, positions in (
        (Start("after", after=8), [9, 10]),
        (ALL, list(range(1, 11))),
        (Start("last"), [10]),
        (Start("since", since=1.0), list(range(1, 11))),
    ):
        place.found[granted.number].clear()
        assert place.history.catch_ups.reset("fusion-1", MINE, start, None)
        assert place.until(granted, len(positions)) == positions
        queue = place.session._queues.by_number[granted.number]
        place.session._acked(0, msgspec.msgpack.encode(Heard({granted.number: queue.sent})))
    place.again()
    assert place.history.catch_ups.reset("fusion-1", MINE, Start("after", after=9), None)
    assert place.until(place.open(), 1) == [10]
    assert place.history.catch_ups.reset("fusion-1", MINE, NEW, None)
    assert not place.history.catch_ups.reset("nobody's", MINE, NEW, None)


def test_one_that_begins_beyond_the_end_moves_no_positions(place: Lasting, keeping: MemoryKeeping) -> None:
    # Given an archive of ten objects, and who begins, or is set, where none will ever be
    far = Start("after", after=MAX_POSITION)
    beyond = place.open(far)
    place.history.catch_ups.note()
    # Expect it to be at the end: positions that durable subscriptions have had are not given again
    assert place.known["position"] == 10
    assert place.history.catch_ups.reset("fusion-1", MINE, far, None)
    place.history.catch_ups.note()
    assert [each.position for each in keeping.durables.values()] == [10]
    # And to get what comes
    place.fill(2)
    assert place.until(beyond, 2) == [11, 12]


def test_what_makes_no_sense_is_refused(place: Lasting, keeping: MemoryKeeping) -> None:
    for options, error in (
        ({"name": "x" * 300}, ConfigurationError),
        ({"name": "a\nb"}, ConfigurationError),
        ({"namespaces": (("p", "u" * 20_000),)}, OversizeError),
        ({"recipients": ("a@example.org",)}, AccessDeniedError),
        ({"language": "python", "predicate": "True"}, ConfigurationError),
    ):
        with pytest.raises(error):
            place.open(**options)
    with pytest.raises(ConfigurationError, match="durable"):
        place.begin(ALL, ack="explicit")
    keeping.fails["note"] = True
    with pytest.raises(StorageError):
        place.open()
    keeping.fails.clear()
    assert not place.session._queues
    assert place.history.catch_ups.durables.status() == []
    with pytest.raises(UnknownUidError):
        place.delegate.subscribers.unsubscribe(place.session_id, "r1")


def test_without_an_archive_there_is_none() -> None:
    bare = World()
    try:
        with pytest.raises(ConfigurationError, match="needs an archive"):
            bare.subscribe(age=0.0, durable="fusion-1", secret=MINE)
    finally:
        bare.delegate.subscribers.late_joiners._thread = None
        bare.delegate.close()


def test_what_it_begins_to_wait_for_is_put_down_at_once(make: Callable[..., Lasting], keeping: MemoryKeeping) -> None:
    # Given many registrations that nobody has asked to keep
    place = make(keeping)
    registrations = [place.enter(f"sensor-{number}", persist=None) for number in range(50)]
    before = len(keeping.registers)
    # When a durable subscription comes that waits for all of them
    place.open()
    # Expect all to be kept from then on, by one write: others wait for it
    assert all(registration.persist for registration in registrations)
    assert keeping.registers[before:] == [50]
    assert {registration.uid for registration in registrations} <= set(keeping.known)


def test_one_that_stood_before_an_object_was_published_gets_it(make: Callable[..., Lasting]) -> None:
    # Given objects that are archived, and one whose publisher has left at once
    place = make()
    place.fill(2)
    place.now += 10.0
    place.again()
    stood = place.now
    place.now += 1.0
    place.fill(3)
    # When a durable subscription comes late that stood before three of them
    granted = place.open(NEW, age=0.5 + place.delegate.tables.session(place.session_id).opened - stood)
    # Expect these, and to be asked for them again
    assert place.until(granted, 3) == [3, 4, 5]
    place.again()
    place.fill(1)
    assert place.until(place.open(NEW), 1) == [6]


def test_what_came_before_it_made_objects_be_archived_is_not_lost(make: Callable[..., Lasting]) -> None:
    # Given a registration that nobody has asked to keep
    place = make()
    registration = place.enter("a", persist=None)
    assert not place.send(registration, 1, metadata=b"<m><n>1</n></m>")
    # When a durable subscription that stood before its first object comes, and it goes on
    granted = place.open(NEW, age=1e3)
    place.delegate.subscribers.late_joiners.step()
    assert not place.send(registration, 2, metadata=b"<m><n>2</n></m>")
    # Expect both: the first one comes from the buffer, and has no place in the archive
    eventually(lambda: place.take() or len(place.found[granted.number]) == 2)
    assert [obj.head.sequence for obj in place.objects] == [1, 2]
    assert place.found[granted.number] == [0, 2]
    assert not place.losses
