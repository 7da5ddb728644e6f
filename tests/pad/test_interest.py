"""A delegate tells a bridge what its subscriptions want of what is relayed, and no less."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from jbi_pubsub.core.access import AllowAll, Decision
from jbi_pubsub.core.combined import NAMESPACE
from jbi_pubsub.core.errors import AccessDeniedError, ConfigurationError
from jbi_pubsub.core.info_object import SchemaBundle, TypeName
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.delegate.interest import RelayedInterest
from jbi_pubsub.pad.model.rights import Rights
from jbi_pubsub.protocol.conditions import MANY_ATTRIBUTE
from jbi_pubsub.protocol.entries import Origin
from jbi_pubsub.protocol.requests import NOT_BEFORE, PublisherRequest, SubscriptionRequest
from jbi_pubsub.protocol.wanted import PREDICATES_MOST, TYPES_MOST, InterestMembers, Wanted, WantedPredicate, WantedType
from tests.pad.test_first_object import Gate, World

pytestmark = pytest.mark.processes

TYPE = TypeName("t")


class Bridged(World):
    """A delegate with registrations that bridge b1 relays to it."""

    def open(self, bundle: SchemaBundle) -> Gate:
        gate = Gate()
        gate.type = bundle.type if bundle.type.name else TYPE
        return gate

    def relay(self, name: str = "t", bridge: str = "b1") -> Any:
        number = len(self.registrations) + 1
        bundle, origin = SchemaBundle("main.xsd", (), type=TypeName(name)), Origin(("far",), bridge)
        request = PublisherRequest(bundle, (), secret="1" * 32, owner=bridge, origin=origin)
        uid = f"registration-{number:032x}"
        made = self.delegate.registrations.register(self.connection, request, uid=uid, number=number)
        self.registrations.append(made)
        return made

    def want(self, **options: Any) -> str:
        return self.subscribe(NOT_BEFORE, **options)

    def forget(self, type: Any) -> None:  # noqa: A002  # the type repository's call
        pass

    def end(self, name: str) -> None:
        self.delegate.subscribers.forget((self.sessions[name], name))

    def wanted(self, bridge: str = "b1", after: int = 0, seconds: float = 0.0) -> Wanted:
        return self.delegate.interest.wanted(bridge, after, seconds)

    def predicates(self, bridge: str = "b1") -> list[str] | None:
        """Those on TYPE; [""]: everything; None: nothing."""
        for each in self.wanted(bridge).types or ():
            if each.type == TYPE:
                return [one.text for one in each.predicates] or [""]
        return None


@pytest.fixture
def world() -> Iterator[Bridged]:
    made = Bridged()
    yield made
    made.delegate.subscribers.late_joiners._thread = None
    made.delegate.close()


def test_of_what_is_relayed_the_predicates_are_told_and_of_what_is_published_here_nothing(world: Bridged) -> None:
    # Given a registration of another platform, and one that was made here
    world.relay()
    world.register()
    assert world.wanted().types == ()
    # When subscriptions come, two of which ask the same
    world.want(predicate="/a:m/@n = 1", namespaces=(("a", "urn:a"),))
    for _ in range(2):
        world.want(predicate="//n > 2")
    # Expect each predicate once, with all that it takes to ask it elsewhere
    told = (WantedPredicate("//n > 2"), WantedPredicate("/a:m/@n = 1", (("a", "urn:a"),)))
    assert world.wanted().types == (WantedType(TYPE, told),)
    # When somebody wants all of it, expect all told, and less again when he has left
    everything = world.want()
    assert world.wanted().types == (WantedType(TYPE),)
    world.end(everything)
    assert world.wanted().types == (WantedType(TYPE, told),)


def test_who_asks_does_not_count_and_other_bridges_do(world: Bridged) -> None:
    # Given bridges' subscriptions to all that is published here, and one to what is published here alone
    world.relay(bridge="north-0001")
    world.want(unlike="north-0001")
    world.want(unlike="north-0002")  # the same bridge, a process beside it
    world.want(local=True, predicate="//n")
    # Expect nothing wanted of it, and everything of another one, which the first one's platform may want
    assert world.predicates("north-0001") is None
    assert world.predicates("south-0001") == [""]
    # When another bridge subscribes, expect that told as well
    world.want(unlike="south-0001", predicate="//n > 3")
    assert world.predicates("north-0001") == ["//n > 3"]


def test_what_can_not_be_asked_elsewhere_or_is_too_much_is_wanted_as_a_whole(world: Bridged) -> None:
    # Given a subscription whose predicate is about what the platform says
    world.relay()
    combined = world.want(predicate="//og:PayloadLength > 5", view="combined", namespaces=(("og", NAMESPACE),))
    assert world.predicates() == [""]
    world.end(combined)
    # When there are as many predicates as may be, and one more; Expect all of them, and the whole
    names = [world.want(predicate=f"//n = {number}") for number in range(PREDICATES_MOST)]
    assert len(world.predicates() or ()) == PREDICATES_MOST
    world.want(predicate="//one_more")
    assert world.predicates() == [""]
    # When they are few, and long, expect the whole, too
    for name in names:
        world.end(name)
    assert world.predicates() == ["//one_more"]
    for number in range(4):
        world.want(predicate=f"//n = '{'x' * 5_000}{number}'")
    assert world.predicates() == [""]


def test_what_is_archived_is_wanted_whoever_subscribes(world: Bridged) -> None:
    # Given a relayed registration that a few want some objects of
    relayed = world.relay()
    world.want(predicate="//n > 2")
    # When its objects are archived here; Expect all of them wanted
    relayed.archived = 0
    assert world.predicates() == [""]


def test_what_subscriptions_demand_of_publishers_elsewhere_is_told(world: Bridged) -> None:
    # Given subscriptions with demands
    world.relay()
    world.want(demands=("persist",), predicate="//n")
    names = [world.want(demands=("reliable", "persist")), world.want()]
    # Expect them with the type, each once, as long as they stand
    assert world.wanted().types == (WantedType(TYPE, (), ("persist", "reliable")),)
    for name in names:
        world.end(name)
    assert world.wanted().types == (WantedType(TYPE, (WantedPredicate("//n"),), ("persist",)),)
    # When one demands what there is not, expect a refusal
    with pytest.raises(ConfigurationError, match="demands"):
        world.want(demands=("all",))


def test_who_may_not_have_objects_archived_may_not_demand_it() -> None:
    # Given somebody who may subscribe, and not persist
    class NotToPersist(AllowAll):
        def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's
            return Decision(action != "persist")

    rights = Rights(NotToPersist(), Caller("192.0.2.7:1"))
    # When he demands that what is lost is sent again, expect that allowed; that it is archived, refused
    rights.check(SubscriptionRequest("uid", demands=("reliable",)))
    with pytest.raises(AccessDeniedError, match="persist"):
        rights.check(SubscriptionRequest("uid", demands=("reliable", "persist")))


def test_of_very_many_types_everything_is_wanted(world: Bridged) -> None:
    # Given as many types as may be told
    world.want()
    for number in range(TYPES_MOST):
        world.relay(f"t{number}")
    assert len(world.wanted().types or ()) == TYPES_MOST
    # When there is one more, expect that everything is wanted
    world.relay("one more")
    assert world.wanted().types is None


def test_who_waits_is_told_as_soon_as_it_is_another_interest(world: Bridged, eventually: Any) -> None:
    # Given a bridge that knows what is wanted, and waits for something else
    world.relay()
    known = world.wanted()
    answers: list[Wanted] = []
    waiting = threading.Thread(target=lambda: answers.append(world.wanted(after=known.revision, seconds=60.0)))
    waiting.start()
    # When a subscription comes, expect it told at once, under a larger number
    name = world.want(predicate="//n > 2")
    waiting.join(20.0)
    (told,) = answers
    assert told.types == (WantedType(TYPE, (WantedPredicate("//n > 2"),)),)
    assert told.revision > known.revision
    # When another one asks the same, expect that nothing has changed
    again = world.want(predicate="//n > 2")
    assert world.wanted(after=told.revision, seconds=0.05) == told
    # When both end, which nobody is told of, expect that told as well
    waiting = threading.Thread(target=lambda: answers.append(world.wanted(after=told.revision, seconds=60.0)))
    waiting.start()
    world.end(name)
    world.end(again)
    waiting.join(20.0)
    assert answers[1].types == ()


def test_nobody_waits_at_a_delegate_that_stops(world: Bridged) -> None:
    # Given a bridge that waits
    world.relay()
    known = world.wanted()
    waiting = threading.Thread(target=world.wanted, args=("b1", known.revision, 60.0))
    waiting.start()
    # When the delegate stops, expect it to come back
    world.delegate.subscribers.late_joiners._thread = None
    world.delegate.close()
    waiting.join(20.0)
    assert not waiting.is_alive()


def test_a_restarted_delegate_tells_larger_numbers(world: Bridged) -> None:
    # Given a delegate, and one that was started a second later
    world.relay()
    tables, stopping = world.delegate.tables, threading.Event()
    before, after = RelayedInterest(tables, stopping, lambda: 1e9), RelayedInterest(tables, stopping, lambda: 1e9 + 1)
    # Expect what the first one has told not to be taken for what the second one tells
    assert after.wanted("b1", 0, 0.0).revision > before.wanted("b1", 0, 0.0).revision


def test_a_bridges_predicate_of_many_alternatives_is_indexed_where_it_may_bridge(world: Bridged) -> None:
    # Given a predicate of as many alternatives as a type may have members
    world.relay()
    many = " or ".join(f"/m/@n = {number}" for number in range(PREDICATES_MOST))
    # When a bridge asks for that, and somebody else; Expect the index to take the bridge's whole
    names = [
        world.want(predicate=many, unlike="b1", attributes=((MANY_ATTRIBUTE, "true"),)),
        world.want(predicate=many, unlike="desk-3"),
    ]
    standing = [world.delegate.tables.subscriptions[world.sessions[each], each] for each in names]
    assert [each.predicate is not None and each.predicate.evaluates for each in standing] == [False, True]
    # and what costs too much to decide to be the bridge's, and nobody else's, whoever it does not want to hear
    assert [each.predicate is not None and each.predicate.is_lenient for each in standing] == [True, False]
    # Given somebody who may subscribe, and not bridge; Expect that he may not have it so
    assert [Rights(policy, Caller("192.0.2.7:1")).may_bridge() for policy in (AllowAll(), _NoBridge())] == [True, False]


class _NoBridge(AllowAll):
    def allow(self, caller: Any, action: Any, subject: Any) -> Decision:  # noqa: ARG002  # the protocol's
        return Decision(action != "bridge")


def test_who_wants_it_is_told_where_that_is_asked(world: Bridged) -> None:
    # Given a relayed registration, two who want the same, one who wants something else, and is important
    world.relay()
    for predicate, importance in (("//n > 2", None), ("//n > 2", 2), ("//n > 3", 4)):
        world.want(predicate=predicate, qos=Wish(importance=importance))
    # Expect that told with the predicates, and without being asked not
    told = (WantedPredicate("//n > 2"), WantedPredicate("//n > 3"))
    members = InterestMembers((2, 1), 4)
    assert world.delegate.interest.wanted("b1", 0, 0.0, members=True).types == (WantedType(TYPE, told, (), members),)
    assert world.wanted().types == (WantedType(TYPE, told),)
    # When one who has stood since before comes, to all of it; Expect that he has waited
    world.now += 5.0
    world.subscribe(60.0)
    (of,) = world.delegate.interest.wanted("b1", 0, 0.0, members=True).types or ()
    assert (of.predicates, of.members) == ((), InterestMembers((4,), 4, has_waited=True))
