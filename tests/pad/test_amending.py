"""What is decided about an object while a subscription is amended is decided again: predicate and filter go
together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError, OversizeError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.lookup.entry import EntryRep, define
from jbi_pubsub.protocol.deliveries import ITEM, LOSS
from jbi_pubsub.protocol.requests import NOT_BEFORE, SubscriptionRequest
from tests.pad.test_first_object import UNIT, World

pytestmark = pytest.mark.processes

PAYLOAD = b"<p><a>1</a><b>2</b></p>"


class Amended(World):
    """A delegate with one subscription, of which payloads are looked at."""

    def __init__(self, **pad: Any) -> None:
        super().__init__(**pad)
        self.payloads: list[bytes] = []
        self.session = self.delegate.sessions.open("subscriber", 1e6)[0]
        self.delegate.tables.attached(self.session)
        self.request = SubscriptionRequest("s", predicate="/m/@n = 1", payload_filter="/p/a")

    def amend(self, **changed: Any) -> None:
        self.request = msgspec.structs.replace(self.request, **changed)
        self.delegate.subscribers.subscribe(self.session, self.request, 60.0)

    def _read_one(self, session_id: str, data: bytes) -> None:  # noqa: ARG002  # there is one
        if ITEM.unpack_from(data)[0] == LOSS:
            return
        self.payloads.append(bytes(Parcel.received(data[ITEM.size :]).payload))

    def taken(self) -> list[bytes]:
        self.sessions["s"], self.numbers["s"], self.got["s"] = self.session, 1, []
        self.read()
        found, self.payloads = self.payloads, []
        return [
            b"a" if b"<a>" in each and b"<b>" not in each else b"b" if b"<a>" not in each else b"ab" for each in found
        ]


@pytest.fixture
def world() -> Any:
    made = Amended()
    yield made
    made.delegate.subscribers.late_joiners._thread = None
    made.delegate.close()


@pytest.mark.parametrize("step", ["match", "select"])
@pytest.mark.parametrize("number", [1, 2])
def test_an_object_gets_the_filter_of_the_predicate_that_matched_it(world: Amended, step: str, number: int) -> None:
    # Given a subscription that is amended just when an object was matched by its old predicate
    registration = world.register()
    world.amend()
    real = registration.judgement.table.match
    times = []

    def match(*arguments: Any) -> Any:
        before = real(*arguments)
        if not times:
            times.append(step)
            world.amend(predicate="/m/@n = 2", payload_filter="/p/b")
            return before if step == "match" else real(*arguments)
        return before

    registration.judgement.table.match = match  # type: ignore[method-assign]
    # When it is published; Expect it to be judged by the new terms alone
    world.publish(registration, b'<m n="%d"/>' % number, PAYLOAD)
    assert world.taken() == ([b"b"] if number == 2 else [])
    # and later ones, too; with both terms in one run each comes once
    for each in (1, 2, 1):
        world.publish(registration, b'<m n="%d"/>' % each, PAYLOAD)
    assert world.taken() == [b"b"]
    world.amend(predicate="", payload_filter="")
    for each in (1, 2, 1):
        world.publish(registration, b'<m n="%d"/>' % each, PAYLOAD)
    assert world.taken() == [b"ab"] * 3


def test_who_catches_up_does_so_by_the_new_terms(world: Amended) -> None:
    # Given objects in the buffer, and a subscription that is amended before it has caught up with them
    registration = world.register()
    for number in (1, 2, 1):
        world.publish(registration, b'<m n="%d"/>' % number, PAYLOAD)
    world.delegate.subscribers.subscribe(world.session, world.request, 60.0, 1e3)
    world.amend(predicate="/m/@n = 2", payload_filter="/p/b")
    # When it catches up; Expect what the new terms give
    world.serve_all()
    assert world.taken() == [b"b"]


def test_amended_to_another_template_it_leaves_some_tables_and_comes_into_others(world: Amended) -> None:
    # Given two registrations, and a subscription to the first one
    def named(name: str) -> EntryRep:
        return EntryRep(UNIT, (name,))

    first, second = world.register(named("a")), world.register(named("b"))
    world.amend(entries=(named("a"),), predicate="", payload_filter="")
    # When it asks for the second one
    world.amend(entries=(named("b"),))
    for registration in (first, second):
        world.publish(registration, payload=PAYLOAD)
    # Expect that one's objects alone, also of a registration of the kind that comes later
    assert world.taken() == [b"ab"]
    assert [len(each.judgement.table) for each in (first, second)] == [0, 1]
    for name in "ab":
        world.publish(world.register(named(name)), payload=PAYLOAD)
    assert world.taken() == [b"ab"]


def test_terms_that_cost_too_much_leave_the_old_ones_in_force(world: Amended, monkeypatch: pytest.MonkeyPatch) -> None:
    registration = world.register()
    world.amend()
    table = registration.judgement.table
    costs = len(table.budget), len(world.delegate.tables.costs[world.session])
    real = world.delegate.tables.check_cost

    def check(subscription: Any, let_in: Any) -> None:
        assert len(table.budget) == 0, "its own old terms do not count against the new ones"
        real(subscription, let_in)
        raise OversizeError("too much")

    with monkeypatch.context() as patched:
        patched.setattr(world.delegate.tables, "check_cost", check)
        with pytest.raises(OversizeError):
            world.amend(predicate="/m/@n = 2 and string-length(/m) < 3", payload_filter="/p/b")
    assert (len(table.budget), len(world.delegate.tables.costs[world.session])) == costs
    for number in (1, 2):
        world.publish(registration, b'<m n="%d"/>' % number, PAYLOAD)
    assert world.taken() == [b"a"]


@pytest.mark.parametrize("changed", [{"bound": 7}, {"policy": "block"}, {"suppress_empty": True}, {"local": True}])
def test_other_terms_than_these_stand_as_they_are(world: Amended, changed: dict[str, Any]) -> None:
    world.register()
    world.amend()
    with pytest.raises(ConfigurationError):
        world.delegate.subscribers.subscribe(
            world.session, msgspec.structs.replace(world.request, **changed), 60.0, NOT_BEFORE
        )
    world.amend()


def test_at_a_partitioned_table_it_keeps_its_level(world: Amended) -> None:
    # Given predicates that are partitioned by importance
    registration = world.register()
    world.amend()
    registration.judgement.table.partition()
    # When it is amended; Expect each object to come once, by the new terms
    world.amend(predicate="/m/@n = 2", payload_filter="/p/b")
    for number in (1, 2):
        world.publish(registration, b'<m n="%d"/>' % number, PAYLOAD)
    assert world.taken() == [b"b"]
    world.delegate.subscribers.unsubscribe(world.session, "s")
    assert len(registration.judgement.table) == 0


@pytest.mark.parametrize("partitioned", ["first", "second"])
def test_among_partitioned_tables_it_leaves_some_and_comes_into_others(world: Amended, partitioned: str) -> None:
    # Given two registrations, one with predicates that are partitioned by importance, and a subscription to the first
    def named(name: str) -> EntryRep:
        return EntryRep(UNIT, (name,))

    registrations = {"first": world.register(named("first")), "second": world.register(named("second"))}
    world.amend(entries=(named("first"),), predicate="", payload_filter="")
    registrations[partitioned].judgement.table.partition()
    # When it asks for the second one, and for the first one again
    for wanted in ("second", "first"):
        world.amend(entries=(named(wanted),))
        for each in registrations.values():
            world.publish(each, payload=PAYLOAD)
        # Expect that one's objects alone
        assert world.taken() == [b"ab"]
        assert {name: len(each.judgement.table) for name, each in registrations.items()} == {
            name: int(name == wanted) for name in registrations
        }


def test_it_is_amended_also_where_its_old_template_fits_nothing_any_more(world: Amended) -> None:
    # Given a subscription to what nobody registers any more but with another class of that name
    world.amend(entries=(EntryRep(UNIT, ("a",)),), predicate="", payload_filter="")
    other = define("test.Unit", {"name": str, "side": str})
    registration = world.register(EntryRep(other, ("a", "blue")))
    # When it asks for that; Expect its objects
    world.amend(entries=(EntryRep(other, (None, "blue")),))
    world.publish(registration, payload=PAYLOAD)
    assert world.taken() == [b"ab"]


def test_those_who_have_waited_get_the_first_objects_of_what_is_new_to_it(world: Amended) -> None:
    # Given a subscription that has had something of one topic, and nothing of two others that came moments ago
    def named(name: str) -> EntryRep:
        return EntryRep(UNIT, (name,))

    world.amend(predicate="/m/@n = 1", payload_filter="")
    had, fresh, behind = (world.register(named(name)) for name in ("had", "fresh", "behind"))
    for registration in (had, fresh, behind):
        world.publish(registration, b'<m n="2"/>', PAYLOAD)
    world.publish(had, b'<m n="1"/>', PAYLOAD)
    world.now += 5.0
    world.publish(fresh, b'<m n="3"/>', PAYLOAD)
    world.publish(fresh, b'<m n="2"/>', PAYLOAD)
    world.delegate.tables.buffers.drop(behind.topic.buffer)  # some of its objects are kept no more
    assert world.taken() == [b"ab"]
    # When it is amended for somebody who has stood for three seconds
    world.request = msgspec.structs.replace(world.request, predicate="/m/@n < 3")
    opened = world.delegate.tables.sessions[world.session].opened
    since = opened - (world.now - 3.0)
    world.delegate.subscribers.subscribe(world.session, world.request, 60.0, since)
    # Expect what was published since then of the topic that is new to it, before what comes, and nothing of the others
    for registration in (behind, had, fresh):
        world.publish(registration, b'<m n="2"/>', PAYLOAD)
    assert world.taken() == [b"ab"] * 4
    # When it is amended once more, and nobody has waited; Expect nothing of before
    late = world.register(named("late"))
    world.publish(late, b'<m n="4"/>', PAYLOAD)
    world.amend(predicate="/m/@n > 3")
    assert world.taken() == []


def test_who_has_waited_for_more_than_may_be_looked_at_gets_what_comes(
    world: Amended, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given more objects of a topic than are looked at
    monkeypatch.setattr("jbi_pubsub.pad.delegate.amendments.FIRST_MOST", 2)
    world.amend(predicate="/m/@n = 1", payload_filter="")
    registration = world.register()
    for _ in range(3):
        world.publish(registration, b'<m n="2"/>', PAYLOAD)
    # When the subscription is amended; Expect what comes alone, and that told
    world.request = msgspec.structs.replace(world.request, predicate="/m/@n = 2")
    world.delegate.subscribers.subscribe(world.session, world.request, 60.0, 1e3)
    world.publish(registration, b'<m n="2"/>', PAYLOAD)
    (standing,) = world.delegate.tables.subscriptions.values()
    assert (world.taken(), standing.lost) == ([b"ab"], {"missed": 3})
