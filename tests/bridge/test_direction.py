"""One direction of a bridge between platforms of stubs: in what order objects go, and what waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.bridge import listening, mirror, relayed
from jbi_pubsub.bridge.mirror import Direction, DirectionTerms
from jbi_pubsub.bridge.platform import BridgedRegistration
from jbi_pubsub.bridge.transformation import Rule, Transformation
from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.errors import (
    AccessDeniedError,
    JbiError,
    OversizeError,
    TypeConflictError,
    UnknownUidError,
    WireError,
)
from jbi_pubsub.core.info_object import InfoObject, Platform, SchemaBundle, TypeName, object_id_of
from jbi_pubsub.subscriber.listeners import SubscriptionUid

TYPE = TypeName("t", "1.0")
UID = "registration-" + "0" * 32


class Side:
    """A platform where UID is published, or one that fails as the test wants."""

    def __init__(self, name: str, *published: BridgedRegistration) -> None:
        self.name = name
        self.there = published
        self.got: list[int] = []
        self.waited: list[float] = []
        self.fails: list[JbiError | None] = []
        self.refusal: JbiError | None = None
        self.registered = self.unacknowledged = 0
        self.firsts: list[int | None] = []
        """From which numbers on a bridge has said that it has all."""
        self.left_out: list[tuple[int, int]] = []
        self.ended: list[str] = []

    def unfinished(self, uid: str) -> int:  # noqa: ARG002  # as below
        return self.unacknowledged

    def published(self) -> tuple[BridgedRegistration, ...]:
        return self.there

    def schema(self, published: BridgedRegistration) -> SchemaBundle:
        return bundle_without(published.type)

    def subscribe(self, types: Any, arrived: Any) -> None:
        pass

    def wanted(self, changed: Any, *, members: bool) -> None:
        pass

    def want(self, *_: Any) -> None:
        pass

    def unwant(self, name: str) -> None:
        pass

    def register(self, published: BridgedRegistration, *_: Any, **__: Any) -> None:
        self.registered += 1
        self.firsts.append(published.first)
        if self.refusal is not None:
            raise self.refusal

    def unregister(self, uid: str, *, waits: bool) -> bool:  # noqa: ARG002  # the protocol's
        self.ended.append(uid)
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float, waited: float = 0.0) -> None:  # noqa: ARG002  # as above
        if self.fails and (exc := self.fails.pop(0)) is not None:
            raise exc
        self.got.append(obj.platform.sequence)
        self.waited.append(waited)

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float, *, lost: bool = False) -> None:  # noqa: ARG002  # as above
        if self.fails and (exc := self.fails.pop(0)) is not None:
            raise exc
        self.left_out.append((-count if lost else count, up_to))


def direction(
    source: Side, target: Side, clock: Callable[[], float] = time.monotonic, rules: tuple[Rule, ...] = ()
) -> Direction:
    way = Transformation(("*",), (), rules)
    return Direction(source, target, way, bridge="b", clock=clock)  # type: ignore[arg-type]  # stubs


def numbered(number: int, payload: bytes = b"", uid: str = UID, metadata: bytes = b"<a/>") -> InfoObject:
    platform = Platform(0.0, uid, number, 4, len(payload))
    return InfoObject(object_id_of(uid, number), TYPE, metadata, payload, platform)


def test_what_waits_goes_in_order_when_the_other_side_fails_half_way() -> None:
    # Given five objects that wait for their registration
    target = Side("bravo")
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target)
    for number in range(1, 6):
        way.arrived(numbered(number))
    # When the other side has forgotten the registration after the second one
    target.fails = [None, None, UnknownUidError("it was started anew")]
    way.look()
    way.look()
    # Expect all of them in their order: what is behind a later one would not be taken any more
    assert target.got == [1, 2, 3, 4, 5]


def test_how_long_an_object_has_waited_is_told_with_it() -> None:
    # Given an object that waits for its registration, and another one five seconds later
    now = [0.0]
    target = Side("bravo")
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target, lambda: now[0])
    for number in (1, 2):
        way.arrived(numbered(number))
        now[0] += 5.0
    # When it is registered, expect that told, so that neither lives longer than its publisher says
    way.look()
    way.arrived(numbered(3))
    assert (target.got, target.waited) == ([1, 2, 3], [10.0, 5.0, 0.0])


def test_a_registration_that_has_left_stays_as_long_as_objects_wait_for_room() -> None:
    # Given two registrations, of which one leaves when something has come of it
    now, other = [0.0], UID.replace("0", "1")

    class Slow(Side):
        def publish(self, *given: Any) -> None:
            now[0] += 4.0
            super().publish(*given)

    source, target = Side("alpha", *(BridgedRegistration(uid, TYPE) for uid in (UID, other))), Slow("bravo")
    way = direction(source, target, lambda: now[0])
    way.look()
    way.arrived(numbered(1))
    source.there = source.there[1:]
    # When the other one's objects wait for room, and one of its own comes behind them a minute later
    for number in range(1, 13):
        now[0] += 1.0
        way.arrived(numbered(number, uid=other))
        way.look()
    way.arrived(numbered(2))
    # Expect them to go, and it to end when that is over
    assert target.got == [1, *range(1, 13), 2]
    assert not target.ended
    now[0] += mirror.LINGER_SECONDS
    way.look()
    assert target.ended == [UID]


def test_who_stands_by_keeps_as_much_as_who_waits_for_a_side_that_is_away() -> None:
    # Given a registration that another bridge has
    target = Side("bravo")
    target.there = (BridgedRegistration(UID, TYPE, bridge="other"),)
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target)
    # When the side was away for a while, and it is this bridge that has it then
    for number in range(1, 10_001):
        way.arrived(numbered(number))
    target.there = ()
    way.look()
    # Expect all of it
    assert target.got == list(range(1, 10_001))


def test_what_waits_of_one_registration_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a registration that can't be had on the other side, with more objects than may wait, and one more
    monkeypatch.setattr(relayed, "PARKED_BYTES", 80_000)
    other = UID[:-1] + "1"
    target = Side("bravo")
    way = direction(Side("alpha", BridgedRegistration(other, TYPE)), target)
    for number in range(1, 101):
        way.arrived(numbered(number, b"x" * 200))
    assert 60_000 < way._relays._parked <= 70_000
    # When the other one's first objects come, expect that they wait
    for number in (1, 2, 3):
        way.arrived(numbered(number, b"x" * 200, other))
    way.look()
    assert target.got == [1, 2, 3]


def test_what_the_other_side_has_not_taken_waits_and_what_is_another_bridges_does_not() -> None:
    # Given two objects on their way to a side that is away, and two that it has not acknowledged
    target = Side("bravo")
    target.refusal = WireError("away")
    now = [0.0]
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target, lambda: now[0])
    way.arrived(numbered(1))
    way.arrived(numbered(2))
    target.unacknowledged = 2
    # When it is away for ten minutes, expect that all of it waits, and nothing is given up
    for second in range(0, 600, 2):
        now[0] = second
        way.look()
    assert way.waiting(UID) == 4
    # When another bridge has the registration, expect that what is its own does not; nor is it lost when it goes
    target.there = (BridgedRegistration(UID, TYPE, bridge="other-2"),)
    way.look()
    now[0] += 100.0
    way.look()
    assert (way.waiting(UID), way.status()["lost"]) == (2, 0)


def test_what_a_killed_process_of_the_same_bridge_has_still_is_waited_for() -> None:
    # Given a registration that a process before this one has, until its lease ends
    target = Side("bravo")
    target.there = (BridgedRegistration(UID, TYPE, bridge="b-1"),)
    now = [0.0]
    source = Side("alpha", BridgedRegistration(UID, TYPE))
    way = Direction(source, target, Transformation(("*",), (), ()), bridge="b-2", clock=lambda: now[0])  # type: ignore[arg-type]
    way.arrived(numbered(1))
    # When that takes longer than a minute, expect that the object waits, and goes then
    for second in range(0, 100, 2):
        now[0] = second
        way.look()
    assert way.waiting(UID) == 1
    target.there = ()
    way.look()
    assert (target.got, way.waiting(UID), way.status()["lost"]) == ([1], 0, 0)


def test_what_is_of_a_registration_that_nobody_knows_is_lost_with_its_number() -> None:
    # Given two objects of a publisher that has left before the bridge came, as a durable subscription brings them
    now = [0.0]
    way = direction(Side("alpha"), Side("bravo"), lambda: now[0])
    way.arrived(numbered(1))
    way.arrived(numbered(2))
    # When its registration does not come, expect that they wait for it a while, and are counted then
    way.look()
    assert (way.waiting(UID), way.status()["lost"]) == (2, 0)
    now[0] = mirror.PARKED_SECONDS + 1
    way.look()
    assert (way.waiting(UID), way.status()["lost"]) == (0, 2)


def test_what_is_refused_for_good_is_lost_with_its_number_and_holds_up_nobody() -> None:
    # Given an object of a type that the other side does not take
    target = Side("bravo")
    target.refusal = TypeConflictError("another schema")
    now = [0.0]
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target, lambda: now[0])
    way.arrived(numbered(1))
    way.look()
    assert way.waiting(UID) == 0
    # When it has waited for too long, expect it counted
    now[0] = mirror.PARKED_SECONDS + 1
    way.look()
    assert way.status()["lost"] == 1


@pytest.mark.parametrize("refusal", [OversizeError("full"), TypeConflictError("another schema"), WireError("away")])
def test_what_is_refused_is_tried_again_after_ever_longer_pauses(refusal: JbiError) -> None:
    # Given a side that has no room for a registration, another schema, or is away
    now = [0.0]
    target = Side("bravo")
    target.refusal = refusal
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target, lambda: now[0])
    # When it is looked at for ten minutes
    for second in range(0, 600, 2):
        now[0] = second
        way.look()
    # Expect some 20 tries of what was refused, twice as many at most as pauses may be halved, and one at each look for
    # who is away
    assert (15 < target.registered < 45) == (not isinstance(refusal, WireError))
    # When another bridge has it, and leaves, expect it to be had at once
    target.there = (BridgedRegistration(UID, TYPE, bridge="other"),)
    way.look()
    target.there, target.refusal = (), None
    way.look()
    assert way.status()["registrations"] == 1


def test_a_bridge_says_from_which_number_on_it_has_all() -> None:
    # Given a registration whose numbers count, and a side that does not take it
    now = [0.0]
    target = Side("bravo")
    target.refusal = AccessDeniedError("another one may come that has what follows")
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE, first=0)), target, lambda: now[0])
    # When nothing has come, then some objects, and when these have waited too long
    way.look()
    for number in (7, 8):
        way.arrived(numbered(number))
    way.look()
    now[0] = mirror.PARKED_SECONDS + 1
    way.look()
    way.look()
    # Expect that it knows of none, has them, and has what comes next
    assert target.firsts == [0, 7, 7, 9]
    # And that nothing is said of numbers that are times
    other = Side("bravo")
    direction(Side("alpha", BridgedRegistration(UID, TYPE)), other).look()
    assert other.firsts == [None]


def test_what_is_left_out_is_told_in_its_place() -> None:
    # Given a rule that lets nothing through but <b/>
    target = Side("bravo")
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target, rules=(Rule(("*",), where="/b"),))
    way.look()
    # When two are left out, the next one goes, and then one is left out that nothing follows
    for number in (1, 2):
        way.arrived(numbered(number))
    way.arrived(numbered(3, metadata=b"<b/>"))
    assert (target.left_out, target.got) == ([(2, 2)], [3])
    way.arrived(numbered(4))
    target.fails = [WireError("away")]
    way.look()
    assert target.left_out == [(2, 2)]
    # Expect it told as soon as it can be
    way.look()
    assert target.left_out == [(2, 2), (1, 4)]
    # When one more is left out, and the bridge ends, expect it told: nobody else knows of it
    way.arrived(numbered(5))
    way.stop()
    assert target.left_out == [(2, 2), (1, 4), (1, 5)]
    assert way.status()["filtered"] == 4


def test_what_is_lost_on_its_way_is_told_beside_what_is_left_out() -> None:
    # Given a registration of which two objects were left out elsewhere, and three more are lost
    target = Side("bravo")
    way = direction(Side("alpha", BridgedRegistration(UID, TYPE)), target)
    way.look()
    way.lost("filtered", 2, UID, 2)
    way.lost("sequence_gap", 3, UID, 5)
    # When the other side is away after the first word, and there again, expect each cause told once
    target.fails = [None, WireError("away")]
    way.look()
    way.look()
    assert target.left_out == [(2, 2), (-3, 5)]
    # and after them objects, with what is lost alone
    way.arrived(numbered(6))
    way.lost("sequence_gap", 1, UID, 7)
    way.arrived(numbered(8))
    assert (target.left_out, target.got) == ([(2, 2), (-3, 5), (-1, 7)], [6, 8])
    # Expect none to be kept back where some are lost and others left out that have one number
    way.lost("filtered", 1, UID, 9)
    way.lost("sequence_gap", 1, UID, 9)
    way.arrived(numbered(10))
    assert (target.left_out[3:], target.got) == ([(-2, 9)], [6, 8, 10])
    assert way.status()["lost"] == 5


def test_a_side_that_does_not_say_what_it_has_taken_keeps_no_bridge_from_leaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Given an object of a durable subscription, and another side that hangs when it is asked whether it has it
    for name in ("HANDED_SECONDS", "CONNECT_SECONDS"):
        monkeypatch.setattr(listening, name, 0.1)
    asked, answers = threading.Event(), threading.Event()
    acknowledged: list[int] = []

    class Hanging:
        def arrived(self, obj: InfoObject) -> None:
            """It is taken."""

        def waiting(self, _uid: str) -> int:
            asked.set()
            assert answers.wait(60.0)
            return 0

    class Subscriber:
        def acknowledge(self, obj: InfoObject, _subscription: str) -> None:
            acknowledged.append(obj.platform.sequence)

    durable = listening._Durably(Hanging(), Subscriber())  # type: ignore[arg-type]
    durable.arrived(SubscriptionUid("s"), numbered(1))
    assert asked.wait(60.0)
    # When the bridge leaves, expect it to be gone before that answers
    leaving = threading.Thread(target=durable.stop)
    leaving.start()
    leaving.join(10.0)
    is_kept = leaving.is_alive()
    answers.set()
    for thread in (leaving, durable._thread):
        thread.join(60.0)
    assert (is_kept, acknowledged) == (False, [1])


def sparse_way(*uids: str) -> tuple[Direction, Side]:
    """A direction that brings what is wanted alone, of registrations that stand on both sides."""
    target = Side("bravo")
    source = Side("alpha", *(BridgedRegistration(uid, TYPE, first=0) for uid in uids))
    terms = DirectionTerms(wanted=True)
    way = Direction(source, target, Transformation(("*",), (), ()), bridge="b", terms=terms)  # type: ignore[arg-type]
    way.look()
    return way, target


def test_what_nobody_wants_is_no_loss_and_what_is_lost_is_told() -> None:
    # Given a registration of which what is wanted is brought alone
    way, target = sparse_way(UID)
    # When numbers do not come, expect nothing told
    for number in (3, 7, 8):
        way.arrived(numbered(number))
    assert (target.got, target.left_out) == ([3, 7, 8], [])
    # When two are lost at the source, expect them told before the next object, once, behind the last one
    way.lost("queue_overflow", 2, name=TYPE.name)
    assert target.left_out == []
    for number in (20, 30):
        way.arrived(numbered(number))
    assert (target.got, target.left_out) == ([3, 7, 8, 20, 30], [(-2, 9)])
    # When more were lost than there are numbers between, or it is another type's, expect no more than can be
    way.lost("queue_overflow", 9, name=TYPE.name)
    way.lost("queue_overflow", 1, name="other")
    way.arrived(numbered(32))
    assert target.left_out == [(-2, 9), (-1, 31)]
    # When there is a number between again, expect the rest
    for number in (33, 40):
        way.arrived(numbered(number))
    assert target.left_out == [(-2, 9), (-1, 31), (-6, 34)]
    assert way.status()["lost"] == 12


def test_where_it_may_be_of_several_registrations_a_loss_is_told_to_all_as_of_unknown_number() -> None:
    # Given two registrations of a type
    other = UID[:-1] + "1"
    way, target = sparse_way(UID, other)
    for uid in (UID, other):
        way.arrived(numbered(1, uid=uid))
    # When something of the type is lost, expect that told where it may be
    way.lost("queue_overflow", 1, name=TYPE.name)
    way.arrived(numbered(2, uid=other))
    assert target.left_out == []
    way.arrived(numbered(5))
    assert target.left_out == [(0, 2)]


def test_what_is_given_up_or_refused_of_what_is_sparse_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a side that goes away after the first object
    monkeypatch.setattr(relayed, "PARKED_OBJECTS", 2)
    way, target = sparse_way(UID)
    way.arrived(numbered(1))
    target.fails, target.refusal = [WireError("away")], WireError("away")
    # When more come than may wait, and one is refused when it is back; Expect both told
    for number in (5, 9, 13):
        way.arrived(numbered(number))
    target.refusal, target.fails = None, [None, None, OversizeError("too large")]
    way.look()
    way.arrived(numbered(20))
    assert (target.got, target.left_out, target.firsts) == ([1, 9, 20], [(-1, 2), (-1, 10)], [0, 2])
