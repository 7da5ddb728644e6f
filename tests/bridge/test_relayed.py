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
from jbi_pubsub.core.errors import AccessDeniedError, UnknownUidError
from jbi_pubsub.core.info_object import InfoObject, Platform, SchemaBundle, TypeName, object_id_of, packed
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.pad.delivery import Deliveries
from jbi_pubsub.pad.proxy import SUBSCRIPTIONS, fetch_schema
from jbi_pubsub.pad.subscription import HOPS_MOST, Origin, PublisherRequest, origin_of, owned_uid
from jbi_pubsub.publisher.relay import RelayPublisher
from tests.bridge.conftest import ALPHA, Place, taken

TYPE = TypeName("mil.af.rl.jbi.Intel_Imagery")
UID = "registration-00112233445566778899aabbccddeeff"
SECRET = "0123456789abcdef" * 2
FAR = ("far",)


@pytest.fixture
def relay(place: Callable[..., Place], figures: Any, bundle: SchemaBundle) -> Any:
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

        def register(self, bridge: RelayPublisher, uid: str = UID, via: tuple[str, ...] = FAR, **more: Any) -> None:
            bridge.register_relayed(self.at[bridge], uid, TYPE, bundle, entries, via, **more)

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


def test_gaps_of_a_relayed_registration_are_told_by_its_bridge_alone(relay: Any, eventually: Any) -> None:
    # Given a subscriber to a relayed registration
    adapter, uid = relay.here.subscriber(type_name="Intel_Imagery")
    bridge = relay.bridge()
    relay.register(bridge)
    # When numbers are left out, far more than a publisher may claim to have lost
    for number in (5, 9, 9 + 2_000_000):
        bridge.relay(UID, relay.object(number), "far", 5.0)
    # Expect all objects and no loss
    assert [obj.platform.sequence for obj in taken(adapter, uid, 3)] == [5, 9, 2_000_009]
    assert adapter.losses(uid) == {}
    # When the bridge says that it has left some out
    bridge.tell_filtered(UID, 3)
    # Expect that as the loss it is
    eventually(lambda: adapter.losses(uid) == {"filtered": 3})


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


def test_an_object_that_names_no_platform_is_not_relayed(relay: Any, bundle: SchemaBundle, figures: Any) -> None:
    # Given a relayed registration of a delegate
    delegate = relay.here.pad.delegate
    connection = delegate.connect_own().connection_id
    gate = delegate.open_type(bundle, "")
    made = delegate.register_relayed(
        UID,
        gate.entries(parse_metadata(figures.figure_1)),
        gate,
        Origin(FAR, "b1"),
        connection_id=connection,
        number=1,
        secret=SECRET,
    )
    # When an object comes that says nothing of the way that it came
    plain = packed(relay.object(1))
    refused = delegate.publish(made, [plain, plain.relayed("far")], Deliveries())
    # Expect it refused, and the one that does taken
    assert [type(why).__name__ for _, why in refused] == ["MetadataError"]
    assert made.published == 1


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
    assert one.unregister_relayed(UID, waits=True)
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
    connection = delegate.connect_own().connection_id
    made = delegate.register_publisher(connection, PublisherRequest(bundle, (), secret=SECRET), uid=mine, number=1)
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
    config, ref = here.federation.config, here.pad.ref(SUBSCRIPTIONS, ())
    # When a bridge asks for the schema, which nobody publishes by any more, expect it
    assert here.pad.status()["registrations"] == []
    assert fetch_schema(ref, config.security(), TYPE.name, TYPE.version, timeout=5.0).main
    # And nothing of a type that never was
    with pytest.raises(UnknownUidError):
        fetch_schema(ref, config.security(), "no.Such", "1.0", timeout=5.0)
