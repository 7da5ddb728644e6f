"""Registrations of another platform: their objects keep what they are, and only who may relay them does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.platform import SideSubscriber
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import PolicySection
from jbi_pubsub.core.errors import AccessDeniedError, UnknownUidError, WireError
from jbi_pubsub.core.info_object import InfoObject, Platform, SchemaBundle, TypeName, object_id_of, packed
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.protocol.entries import HOPS_MOST, Origin, origin_of
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import PublisherRequest
from jbi_pubsub.protocol.services import SUBSCRIPTIONS, fetch_schema
from jbi_pubsub.publisher.publication import RegistrationUid
from jbi_pubsub.publisher.relay import RelayPublisher
from tests.bridge.conftest import ALPHA, Place, taken

TYPE = TypeName("mil.af.rl.jbi.Intel_Imagery")
UID = "registration-00112233445566778899aabbccddeeff"
SECRET = "0123456789abcdef" * 2
FAR = ("far",)


@pytest.fixture
def relay(place: Callable[..., Place], figures: Any, bundle: SchemaBundle, eventually: Callable[..., Any]) -> Any:
    """A platform with a bridge to another, at its delegate."""
    entries = TypeRepository().open_schema(bundle).entries(parse_metadata(figures.figure_1))

    class Relay:
        def __init__(self) -> None:
            self.here = place()
            self.at: dict[Any, Any] = {}

        def bridge(self, name: str = "b1", config: Any = None) -> RelayPublisher:
            made = self.here.federation.stack.enter_context(
                RelayPublisher(config or self.here.federation.config, name=name, bridge=name)
            )
            self.at[made] = made.connect_to_delegate(*ALPHA)
            return made

        def register(
            self,
            bridge: RelayPublisher,
            uid: str = UID,
            via: tuple[str, ...] = FAR,
            first: int | None = None,
            *,
            is_sparse: bool = False,
        ) -> None:
            request = PublisherRequest(bundle, entries)
            bridge.register_relayed(self.at[bridge], uid, TYPE, request, via, first=first, is_sparse=is_sparse)

        def unregister(self, bridge: RelayPublisher) -> None:
            """Also in the lookup service, which the delegate tells by a thread of its own."""
            assert bridge.unregister_relayed(UID, waits=True)
            eventually(lambda: not self.here.pad.community.lookup(ServiceTemplate(service_id=UID), timeout=5.0))

        def registered(self) -> tuple[Any, str, Any]:
            """The delegate, a connection, and a registration that was made by it without a bridge of ours."""
            delegate = self.here.pad.delegate
            connection = delegate.publishers.connect_own().connection_id
            request = PublisherRequest(bundle, entries, secret=SECRET, origin=Origin(FAR, "b1"))
            made = delegate.registrations.register(connection, request, uid=UID, number=1)
            return delegate, connection, made

        def object(self, number: int, uid: str = UID, **changed: str) -> InfoObject:
            metadata = figures.metadata(**changed)
            platform = Platform(1e9 + number, uid, number, len(metadata), 3)
            return InfoObject(object_id_of(uid, number), TYPE, metadata, b"abc", platform)

    return Relay()


def test_relayed_objects_keep_id_number_and_time_and_say_how_they_came(relay: Any) -> None:
    # Given a subscriber, and a bridge with a registration of another platform
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    relay.register(bridge)
    # When it relays an object, twice
    assert bridge.relay(UID, relay.object(7), "far", 5.0)
    assert not bridge.relay(UID, relay.object(7), "far", 5.0)
    # Expect it once, as it was published
    (came,) = taken(adapter, uid, 1)
    assert (came.object_id, came.platform.registration, came.platform.sequence) == (object_id_of(UID, 7), UID, 7)
    assert (came.platform.published, came.platform.hops, came.platform.via) == (1e9 + 7, 1, ("far",))
    assert (came.metadata, came.payload) == (relay.object(7).metadata, b"abc")


def test_numbers_of_who_does_not_count_are_no_loss(relay: Any) -> None:
    # Given a subscriber to a registration whose numbers are times, or whose bridge does not say
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    relay.register(bridge)
    # When numbers do not come, far more than a publisher may claim to have lost
    for number in (5, 9, 9 + 2_000_000):
        bridge.relay(UID, relay.object(number), "far", 5.0)
    # Expect all objects and no loss
    assert [obj.platform.sequence for obj in taken(adapter, uid, 3)] == [5, 9, 2_000_009]
    assert adapter.losses(uid) == {}


def test_a_number_that_does_not_come_is_lost_or_was_left_out(relay: Any, eventually: Any) -> None:
    # Given a subscriber to a relayed registration whose numbers count
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    relay.register(bridge, first=5)
    # When some numbers do not come, of which the bridge has left out two
    bridge.relay(UID, relay.object(5), "far", 5.0)
    bridge.tell_filtered(UID, 2, 8, 5.0)
    bridge.relay(UID, relay.object(11), "far", 5.0)
    # Expect both told
    assert [obj.platform.sequence for obj in taken(adapter, uid, 2)] == [5, 11]
    assert adapter.losses(uid) == {"filtered": 2, "sequence_gap": 3}
    # When nobody lacks two more, and it leaves out others, and nothing follows, expect these told, too
    bridge.tell_filtered(UID, 0, 13, 5.0)
    bridge.tell_filtered(UID, 2, 15, 5.0)
    eventually(lambda: adapter.losses(uid) == {"filtered": 4, "sequence_gap": 3}, what=lambda: adapter.losses(uid))
    # When it says so again, or leaves out nothing, expect nothing told
    for up_to, count in ((15, 4), (15, 0)):
        bridge._publication(RegistrationUid(UID))[0].sequence = up_to - 1  # as if it had not been told
        bridge.tell_filtered(UID, count, up_to, 5.0)
    # When more do not come than anybody believes, expect that nobody knows how many
    bridge.relay(UID, relay.object(15 + 2_000_000), "far", 5.0)
    assert len(taken(adapter, uid, 1)) == 1
    assert adapter.losses(uid) == {"filtered": 4, "sequence_gap": 4}


def test_of_what_is_brought_as_it_is_wanted_losses_are_told_and_numbers_say_nothing(
    relay: Any, eventually: Any
) -> None:
    # Given a subscriber to a registration whose bridge brings what is wanted alone
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    relay.register(bridge, first=5, is_sparse=True)
    # When numbers do not come, expect no loss
    for number in (5, 9):
        bridge.relay(UID, relay.object(number), "far", 5.0)
    assert ([obj.platform.sequence for obj in taken(adapter, uid, 2)], adapter.losses(uid)) == ([5, 9], {})
    # When it tells of a loss, and of what a rule has left out; Expect both told, behind the last number
    bridge.tell_filtered(UID, 4, 10, 5.0, lost=True)
    bridge.tell_filtered(UID, 1, 12, 5.0)
    bridge.relay(UID, relay.object(20), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 1)] == [20]
    assert adapter.losses(uid) == {"filtered": 1, "sequence_gap": 4}
    # When another one comes in that has all that follows, expect nothing told, and nothing twice
    other = relay.bridge("b2")
    relay.unregister(bridge)
    relay.register(other, first=21, is_sparse=True)
    for number in (20, 40):
        other.relay(UID, relay.object(number), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 1)] == [40]
    assert adapter.losses(uid) == {"filtered": 1, "sequence_gap": 4}


def test_who_comes_in_for_another_one_and_may_lack_something_has_that_told(
    relay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a registration that was relayed up to number 9 by a bridge that is gone
    monkeypatch.setattr("jbi_pubsub.pad.delegate.registrations.FOLLOWED_SECONDS", 0.0)
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge, other = relay.bridge(), relay.bridge("b2")
    relay.register(bridge, first=1, is_sparse=True)
    bridge.relay(UID, relay.object(9), "far", 5.0)
    assert len(taken(adapter, uid, 1)) == 1
    relay.unregister(bridge)
    # When another one has what is behind number 14; Expect a loss of unknown number before its first object, once
    relay.register(other, first=15, is_sparse=True)
    for number in (17, 30):
        other.relay(UID, relay.object(number), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 2)] == [17, 30]
    assert adapter.losses(uid) == {"sequence_gap": 1}


def test_who_comes_late_to_a_relayed_registration_hears_what_was_left_out_before(relay: Any, eventually: Any) -> None:
    # Given a subscription that stands at a lookup service, and has not come to a delegate yet
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    # When a bridge leaves the first objects of a registration out before anybody can have come
    relay.register(bridge, first=1)
    bridge.tell_filtered(UID, 3, 3, 5.0)
    # Expect it told
    eventually(lambda: adapter.losses(uid) == {"filtered": 3}, what=lambda: adapter.losses(uid))


def test_what_a_bridge_of_before_says_is_told(relay: Any) -> None:
    # Given a bridge that tells what it leaves out by a call of its own, and does not say what it has
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    delegate, connection, made = relay.registered()
    assert adapter.wait_matched(uid) == 1
    # When it does so, expect that told
    delegate.publishers.tell_filtered(connection, UID, 3)
    delegate.publishers.publish(made, [packed(relay.object(9), "far")], deliveries := Deliveries())
    delegate.pipeline.distribution.deliver(deliveries)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 1)] == [9]
    assert adapter.losses(uid) == {"filtered": 3}


def test_whoever_has_what_follows_goes_first(relay: Any, eventually: Any) -> None:
    # Given a registration that was relayed up to number 2
    relay.here.federation.leases(2.0)
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    one, restarted, standby = (relay.bridge(name, relay.here.federation.config) for name in ("b1", "b2", "b3"))
    relay.register(one, first=0)
    for number in (1, 2):
        one.relay(UID, relay.object(number), "far", 5.0)
    relay.unregister(one)
    # When bridges come that have what was published later, or nothing yet
    # Expect them refused
    for first in (5, 0):
        with pytest.raises(AccessDeniedError, match="relayed here up to number 2"):
            relay.register(restarted, first=first)
    # And the one taken that has what follows; what was there before goes no second time
    relay.register(standby, first=1)
    for number in (1, 2, 3, 4):
        standby.relay(UID, relay.object(number), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 4)] == [1, 2, 3, 4]
    (known,) = relay.here.pad.status()["registrations"]
    assert known["published"] == 2
    assert adapter.losses(uid) == {}


def test_what_nobody_has_any_more_is_a_loss_with_its_number(relay: Any, eventually: Any) -> None:
    # Given a registration that was relayed up to number 477
    relay.here.federation.leases(0.5)
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    one, restarted = (relay.bridge(name, relay.here.federation.config) for name in ("b1", "b2"))
    relay.register(one, first=0)
    for number in (476, 477):
        one.relay(UID, relay.object(number), "far", 5.0)
    relay.unregister(one)

    # When a bridge alone has what comes from number 634 on
    def is_taken() -> bool:
        try:
            relay.register(restarted, first=634)
        except AccessDeniedError:
            return False
        return True

    # Expect it taken when nobody else has come for a while, and the rest told
    eventually(is_taken)
    restarted.relay(UID, relay.object(634), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 3)] == [476, 477, 634]
    assert adapter.losses(uid) == {"sequence_gap": 156}


def test_a_registration_that_changes_keeps_its_objects(relay: Any) -> None:
    # Given a bridge with a registration
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    relay.register(bridge, first=0)
    bridge.relay(UID, relay.object(1), "far", 5.0)
    # When it comes by another way, or another certificate answers for it, so that it is registered once more
    relay.register(bridge, first=2, via=("far", "farther"))
    bridge.relay(UID, relay.object(2), "far", 5.0)
    # Expect that it goes on
    assert [obj.platform.sequence for obj in taken(adapter, uid, 2)] == [1, 2]
    assert adapter.losses(uid) == {}


def test_a_registration_whose_answer_was_lost_is_made_again_and_stays(
    relay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a bridge whose registration is made, and the answer does not come
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    connection = bridge._connection(relay.at[bridge])
    attachment = connection._link.attached()

    def cut(*arguments: Any, register: Callable[..., Any] = attachment.register) -> None:
        register(*arguments)
        raise WireError("cut")

    with monkeypatch.context() as patched:
        patched.setattr(attachment, "register", cut)
        with pytest.raises(WireError):
            relay.register(bridge)
    # When it registers again, and what was not answered to is taken back
    relay.register(bridge)
    bridge.relay(UID, relay.object(1), "far", 5.0)
    monkeypatch.setattr("jbi_pubsub.publisher.registrations.ABANDONED_SECONDS", 0.0)
    connection.registrations.look_again(attachment)
    # Expect that objects come, before and behind that
    bridge.relay(UID, relay.object(2), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 2)] == [1, 2]


def test_a_relayed_object_is_admitted_and_judged_as_any(relay: Any, figures: Any, eventually: Any) -> None:
    # Given a bridge, and a subscriber with a predicate
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery", predicate="//lat > 50")
    bridge = relay.bridge()
    relay.register(bridge)
    # When it relays objects of which one matches, one is invalid, and one is of another registration
    bridge.relay(UID, relay.object(1, lat="40"), "far", 5.0)
    bridge.relay(UID, relay.object(2, lat="north"), "far", 5.0)
    bridge.relay(UID, relay.object(3, lat="51"), "far", 5.0)
    strange = relay.object(4)
    bridge.relay(UID, msgspec.structs.replace(strange, type=TypeName("Other")), "far", 5.0)
    bridge.flush()
    # Expect the one, and the bad ones refused
    assert [obj.platform.sequence for obj in taken(adapter, uid, 1)] == [3]
    (known,) = relay.here.pad.status()["registrations"]
    assert (known["refused"], known["via"]) == (2, ["far"])


def test_an_object_that_names_no_platform_is_not_relayed(relay: Any) -> None:
    # Given a relayed registration of a delegate
    delegate, _, made = relay.registered()
    # When an object comes that says nothing of the way that it came
    obj = relay.object(1)
    refused = delegate.publishers.publish(made, [packed(obj), packed(obj, "far")], Deliveries())
    # Expect it refused, and the one that does taken
    assert [type(why).__name__ for _, why in refused] == ["MetadataError"]
    assert made.totals.published == 1


def test_where_the_original_stands_nothing_is_relayed(relay: Any) -> None:
    # Given a publisher here, at another delegate than the bridge's
    relay.here.federation.pad("other", "rome")
    publisher = relay.here.federation.light()
    at = publisher.connect_to_delegate("other", "rome")
    original = publisher.register_publisher(at, relay.here.figures.schema, relay.here.figures.figure_1)
    bridge = relay.bridge()
    # When a bridge brings it back
    # Expect a refusal, and nothing left behind
    with pytest.raises(AccessDeniedError, match="is published here"):
        relay.register(bridge, original)
    with pytest.raises(UnknownUidError):
        bridge.relay(original, relay.object(1, original), "far", 1.0)
    assert relay.here.pad.status()["registrations"] == []


def test_of_two_bridges_one_relays_and_the_other_comes_in_when_it_leaves(relay: Any, eventually: Any) -> None:
    # Given two bridges at two delegates of a platform, and a subscriber
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    one, two = relay.bridge("b1"), relay.bridge("b2")
    relay.register(one)
    # When both have the same registration
    # Expect the second one refused, which is told by whom
    with pytest.raises(AccessDeniedError, match="is relayed here by bridge b1"):
        relay.register(two)
    # When the first one leaves
    one.relay(UID, relay.object(1), "far", 5.0)
    relay.unregister(one)
    # Expect the second one taken, and each object once
    relay.register(two)
    for number in (1, 2):
        two.relay(UID, relay.object(number), "far", 5.0)
    assert [obj.platform.sequence for obj in taken(adapter, uid, 2)] == [1, 2]


def test_a_publisher_that_comes_to_where_it_was_relayed_takes_its_registration_over(
    relay: Any, bundle: SchemaBundle
) -> None:
    # Given a registration that is relayed to a delegate
    bridge = relay.bridge()
    mine = owned_uid("registration", SECRET)
    relay.register(bridge, mine)
    # When its publisher comes there
    delegate = relay.here.pad.delegate
    connection = delegate.publishers.connect_own().connection_id
    made = delegate.registrations.register(connection, PublisherRequest(bundle, (), secret=SECRET), uid=mine, number=1)
    # Expect the original
    assert made.origin is None
    assert [r["via"] for r in relay.here.pad.status()["registrations"]] == [[]]


def test_it_is_seen_in_the_lookup_services_by_what_platforms_it_came(relay: Any) -> None:
    # Given a bridge
    bridge = relay.bridge()
    # When it relays a registration
    relay.register(bridge, via=("far", "farther"))
    # Expect that on its item
    (item,) = relay.here.pad.community.lookup(ServiceTemplate(service_id=UID))
    assert origin_of(item.entries) == Origin(("far", "farther"), "b1")
    # And, of another one, that its numbers count
    other = UID[:-1] + "0"
    relay.register(bridge, other, first=7)
    (item,) = relay.here.pad.community.lookup(ServiceTemplate(service_id=other))
    assert origin_of(item.entries) == Origin(FAR, "b1", 0)


@pytest.mark.parametrize(
    ("uid", "via"),
    [(UID, ()), (UID, ("x",) * (HOPS_MOST + 1)), (UID, ("a b",)), (UID, ("",)), ("<b>" * 9, FAR), ("x" * 65, FAR)],
)
def test_names_that_are_none_are_refused(relay: Any, uid: str, via: tuple[str, ...]) -> None:
    # Given a bridge
    bridge = relay.bridge()
    # When it relays what has no way, a way in circles, or names that nobody could read
    # Expect a refusal
    with pytest.raises(AccessDeniedError, match="can't be relayed"):
        relay.register(bridge, uid, via)


def test_relaying_needs_the_right_to_bridge(relay: Any, tmp_path: Path, eventually: Any) -> None:
    # Given a delegate whose rules let everybody publish, and nobody bridge
    rules = tmp_path / "policy.toml"
    rules.write_text('[[access]]\naction = ["connect", "publish", "subscribe"]\n')
    here = relay.here.federation
    config = msgspec.structs.replace(here.config, policy=PolicySection(file=str(rules)))
    here.pad("strict", "rome", config)
    bridge = relay.bridge()
    at = bridge.connect_to_delegate("strict", "rome")
    # When a bridge relays there
    # Expect a refusal that says what is missing
    relay.at[bridge] = at
    with pytest.raises(AccessDeniedError, match="may not bridge"):
        relay.register(bridge)
    # When that is allowed for the type
    rules.write_text(
        '[[access]]\naction = ["connect", "publish", "subscribe"]\n'
        f'[[access]]\naction = "bridge"\ntype = "{TYPE.name}"\n'
    )

    # Expect it taken
    def taken_now() -> bool:
        try:
            relay.register(bridge)
        except AccessDeniedError:
            return False
        return True

    eventually(taken_now)


def test_a_process_has_one_subscriber_adapter_beside_those_of_a_bridge(place: Callable[..., Place]) -> None:
    # Given a platform
    here = place()
    # When a bridge has an adapter on it, and the application its own
    with SideSubscriber(here.federation.config), SideSubscriber(here.federation.config):
        own = here.federation.subscriber()
    # Expect both open, and the application's alone closed by itself
    own.register_subscriber(type_name="Intel_Imagery")


def test_a_schema_is_told_as_long_as_somebody_may_come_for_the_objects(place: Callable[..., Place]) -> None:
    # Given a publisher that has published and left
    here = place()
    publisher, uid = here.publisher()
    publisher.publish(uid, here.figures.figure_1)
    publisher.flush()
    publisher.close()
    config, ref = here.federation.config, here.pad.endpoints.ref(SUBSCRIPTIONS, ())
    # When a bridge asks for the schema, which nobody publishes by any more, expect it
    assert here.pad.status()["registrations"] == []
    assert fetch_schema(ref, config.security(), TYPE.name, TYPE.version, timeout=5.0).main
    # And nothing of a type that never was
    with pytest.raises(UnknownUidError):
        fetch_schema(ref, config.security(), "no.Such", "1.0", timeout=5.0)
