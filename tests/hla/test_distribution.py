"""Data distribution management: what is in which region, who wants it there (IEEE 1516.1-2010, clause 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.hla import exceptions as exc
from jbi_pubsub.hla.execution import KINDS, FederationModel
from jbi_pubsub.hla.fom import DIMENSION_MOST, parsed
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.saves import built, plain
from jbi_pubsub.hla.server import RtiServer
from tests.hla.conftest import AIR, Rig
from tests.hla.parties import Federate

BOTH = b"<dimensions><dimension>East</dimension><dimension>North</dimension></dimensions>"
SKY = (
    AIR.replace(b"<order>TimeStamp</order></attribute>", BOTH + b"<order>TimeStamp</order></attribute>")
    .replace(b"<name>Radio</name>", b"<name>Radio</name><dimensions><dimension>East</dimension></dimensions>")
    .replace(
        b"</objectModel>",
        b"<dimensions><dimension><name>East</name><upperBound>100</upperBound></dimension>"
        b"<dimension><name>North</name><upperBound>50</upperBound></dimension></dimensions></objectModel>",
    )
)
"""The position of a vehicle is in East and North, what is said on the radio in East."""


class Sky(Rig):
    """A federation of that model."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.model = FederationModel(parsed(("sky.xml", SKY)))  # its handles are those of the model without dimensions
        for name in names:
            self.join(name)
        self.east, self.north = self.model.fom.dimension("East"), self.model.fom.dimension("North")

    def region(self, name: str, *east: int) -> int:
        """A region of a federate that counts."""
        handle: int = self.call(name, "create_region", (self.east,))
        self.move(name, handle, *east or (0, 100))
        return handle

    def move(self, name: str, region: int, lower: int, upper: int) -> None:
        """Other bounds that count."""
        self.call(name, "set_range_bounds", region, self.east, lower, upper)
        self.call(name, "commit_region_modifications", (region,))

    def want(self, name: str, *regions: int) -> None:
        """A federate subscribes to the positions of aircraft with regions."""
        pairs = tuple((self.position, each) for each in regions)
        self.call(name, "subscribe_object_class_attributes_with_regions", self.aircraft, pairs)

    def aircraft_in(self, owner: str, region: int, name: str = "") -> int:
        """An aircraft in a region."""
        self.call(owner, "publish_object_class_attributes", self.aircraft, (self.position, self.callsign))
        pairs = ((self.position, region),)
        handle: int = self.call(owner, "register_object_instance_with_regions", self.aircraft, pairs, name)
        return handle

    def reflected(self, owner: str, aircraft: int, *readers: str) -> list[str]:
        """Readers who get a new position."""
        self.forget()
        self.call(owner, "update_attribute_values", aircraft, ((self.position, b"1"),))
        return [each for each in readers if self.heard(each)]


def discovered(aircraft: int, it: Sky, name: str) -> tuple[Any, ...]:
    return ("discover_object_instance", aircraft, it.aircraft, name)


# -- objects --------------------------------------------------------------------------------------------------------


def test_who_subscribes_with_a_region_hears_of_what_is_there() -> None:
    # Given readers who want the west, the east, and all
    it = Sky("owner", "west", "east", "all")
    it.want("west", it.region("west", 0, 50))
    it.want("east", it.region("east", 50, 100))
    it.call("all", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    # When an aircraft is registered in the west
    area = it.region("owner", 40, 50)
    aircraft = it.aircraft_in("owner", area, "LH1")
    # Expect those who want it there to discover it, and to get its values
    assert it.heard("west") == it.heard("all") == [discovered(aircraft, it, "LH1")]
    assert it.heard("east") == []
    assert it.reflected("owner", aircraft, "west", "east", "all") == ["west", "all"]
    # When it flies east, which is not committed yet; Expect nothing to change
    it.call("owner", "set_range_bounds", area, it.east, 50, 60)
    assert it.call("owner", "get_range_bounds", area, it.east) == (50, 60)
    assert it.reflected("owner", aircraft, "west", "east", "all") == ["west", "all"]
    # When it is; Expect the other one to discover it, and this one to get no more
    it.call("owner", "commit_region_modifications", (area,))
    assert it.heard("east") == [discovered(aircraft, it, "LH1")]
    assert it.reflected("owner", aircraft, "west", "east", "all") == ["east", "all"]
    # When the reader's region moves instead; Expect the same
    [area] = it.execution.regions.made[it.handles["west"]]
    it.move("west", area, 0, 51)
    assert it.reflected("owner", aircraft, "west", "east", "all") == ["west", "east", "all"]


def test_who_leaves_a_class_discovers_at_the_one_above_what_its_regions_hid() -> None:
    # Given a reader of all vehicles, and of aircraft in the west, who has forgotten one of these
    it = Sky("owner", "reader")
    it.call("reader", "subscribe_object_class_attributes", it.vehicle, (it.position,))
    area = it.region("reader", 0, 50)
    it.want("reader", area)
    near, _ = (it.aircraft_in("owner", it.region("owner", at, at + 1), f"LH{at}") for at in (40, 60))
    it.call("reader", "local_delete_object_instance", near)
    it.forget()
    # When it subscribes to aircraft no more; Expect it to discover, as a vehicle, the one in the east alone
    it.call("reader", "unsubscribe_object_class_attributes_with_regions", it.aircraft, ((it.position, area),))
    assert [each[2:] for each in it.heard("reader")] == [(it.vehicle, "LH60")]


def test_a_deletion_that_is_taken_back_leaves_an_instance_in_its_regions() -> None:
    # Given an aircraft in two regions, which is deleted at a time to come
    it = Sky("owner", "west", "east")
    it.want("west", it.region("west", 0, 50))
    it.want("east", it.region("east", 50, 100))
    here, there = it.region("owner", 10, 20), it.region("owner", 20, 30)
    aircraft = it.aircraft_in("owner", here, "LH1")
    it.call("owner", "associate_regions_for_updates", aircraft, ((it.position, there),))
    it.call("owner", "enable_time_regulation", 1.0)
    retraction = it.call("owner", "delete_object_instance", aircraft, b"", 5.0)
    # When one of the regions is deleted, the other one moves, and the deletion is taken back
    it.call("owner", "delete_region", there)
    it.move("owner", here, 70, 80)
    it.call("owner", "retract", retraction)
    # Expect it to be where the region is now, for who did not know it as well
    assert it.heard("east") == [discovered(aircraft, it, "LH1")]
    assert it.reflected("owner", aircraft, "west", "east") == ["east"]
    it.move("owner", here, 10, 20)
    assert it.reflected("owner", aircraft, "west", "east") == ["west"]


def test_what_has_no_region_is_everywhere() -> None:
    it = Sky("owner", "reader")
    it.want("reader", it.region("reader", 0, 10))
    area = it.region("owner", 50, 60)
    aircraft = it.aircraft_in("owner", area)
    assert it.heard("reader") == []
    # When it is taken out of its only region; Expect that it is in the default one
    it.call("owner", "unassociate_regions_for_updates", aircraft, ((it.position, area),))
    assert [each[0] for each in it.heard("reader")] == ["discover_object_instance"]
    assert it.reflected("owner", aircraft, "reader") == ["reader"]
    # When it is put into one again; Expect it to be there alone
    it.call("owner", "associate_regions_for_updates", aircraft, ((it.position, area),))
    assert it.reflected("owner", aircraft, "reader") == []
    # and an attribute that is not wanted there to be wanted as before
    it.call("reader", "subscribe_object_class_attributes", it.aircraft, (it.callsign,))
    it.call("owner", "update_attribute_values", aircraft, ((it.position, b"1"), (it.callsign, b"x")))
    assert it.heard("reader") == [("reflect_attribute_values", aircraft, ((it.callsign, b"x"),), b"", None, 0)]


def test_subscriptions_with_regions_and_without_are_apart() -> None:
    it = Sky("owner", "reader")
    here, area = it.region("reader", 0, 10), it.region("owner", 50, 60)
    aircraft = it.aircraft_in("owner", area)
    it.call("reader", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    it.want("reader", here)
    assert it.reflected("owner", aircraft, "reader") == ["reader"]
    # When it ends the one without; Expect it to hear of its region alone
    it.call("reader", "unsubscribe_object_class_attributes", it.aircraft, (it.position,))
    assert it.reflected("owner", aircraft, "reader") == []
    it.move("owner", area, 0, 1)
    assert it.reflected("owner", aircraft, "reader") == ["reader"]
    # When it ends that one too; Expect it to hear nothing
    pairs = ((it.position, here),)
    it.call("reader", "unsubscribe_object_class_attributes_with_regions", it.aircraft, pairs)
    assert it.reflected("owner", aircraft, "reader") == []
    assert not it.execution.declared.subscribed
    # When it has both, and ends the one with regions; Expect it to hear of all
    it.call("reader", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    it.want("reader", here)
    it.call("reader", "unsubscribe_object_class_attributes_with_regions", it.aircraft, pairs)
    it.move("owner", area, 50, 60)
    assert it.reflected("owner", aircraft, "reader") == ["reader"]


def test_a_dimension_that_a_region_has_not_is_not_limited() -> None:
    it = Sky("owner", "reader")
    north = it.call("reader", "create_region", (it.north,))
    it.call("reader", "set_range_bounds", north, it.north, 0, 1)
    it.call("reader", "commit_region_modifications", (north,))
    it.want("reader", north)
    aircraft = it.aircraft_in("owner", it.region("owner", 50, 60))
    assert it.reflected("owner", aircraft, "reader") == ["reader"]


def test_the_lowest_class_that_is_subscribed_to_counts() -> None:
    # Given a reader who wants vehicles everywhere, and aircraft in the west
    it = Sky("owner", "reader")
    it.call("reader", "subscribe_object_class_attributes", it.vehicle, (it.position,))
    it.want("reader", it.region("reader", 0, 50))
    # When an aircraft is in the east; Expect it to be no vehicle for the reader (clause 6.9)
    area = it.region("owner", 60, 70)
    aircraft = it.aircraft_in("owner", area, "LH1")
    assert it.heard("reader") == []
    it.move("owner", area, 0, 1)
    assert it.heard("reader") == [discovered(aircraft, it, "LH1")]


def test_a_passive_subscription_with_a_region_leaves_the_active_one_active() -> None:
    # Given an owner with all advisories, and a reader of all
    it = Sky("owner", "reader")
    for switch in ("object_class_relevance", "attribute_relevance", "interaction_relevance"):
        it.call("owner", "set_advisory_switch", switch, True)
    it.aircraft_in("owner", it.region("owner", 0, 50))
    it.call("owner", "publish_interaction_class", it.radio)
    it.call("reader", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    it.call("reader", "subscribe_interaction_class", it.radio)
    assert len(it.heard("owner")) == 3
    # When it subscribes passively with a region as well, and ends that
    area = it.region("reader", 0, 50)
    pairs = ((it.position, area),)
    it.call("reader", "subscribe_object_class_attributes_with_regions", it.aircraft, pairs, "", True)
    it.call("reader", "subscribe_interaction_class_with_regions", it.radio, (area,), True)
    assert it.heard("owner") == []
    # Expect nothing to be told before the active ones have ended, whichever end first
    it.call("reader", "unsubscribe_object_class_attributes", it.aircraft, (it.position,))
    it.call("reader", "unsubscribe_interaction_class", it.radio)
    assert sorted(each[0] for each in it.heard("owner")) == [
        "stop_registration_for_object_class", "turn_interactions_off", "turn_updates_off_for_object_instance",
    ]  # fmt: skip
    it.call("reader", "unsubscribe_object_class_attributes_with_regions", it.aircraft, pairs)
    it.call("reader", "unsubscribe_interaction_class_with_regions", it.radio, (area,))
    assert it.heard("owner") == []
    assert not it.execution.declared.passive


def test_a_rate_in_a_region_bounds_no_other_subscription() -> None:
    it = Sky("owner", "reader")
    rates = b"<updateRates><updateRate><name>Low</name><rate>2</rate></updateRate></updateRates></objectModel>"
    it.model = FederationModel(parsed(("sky.xml", SKY.replace(b"</objectModel>", rates))))
    aircraft, area = it.aircraft_in("owner", it.region("owner", 0, 50)), it.region("reader", 0, 50)
    it.call("reader", "subscribe_object_class_attributes_with_regions", it.aircraft, ((it.position, area),), "Low")
    assert it.call("reader", "get_update_rate_value_for_attribute", aircraft, it.position) == 2.0
    # When it subscribes to all without a rate, and ends that
    it.call("reader", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    assert it.call("reader", "get_update_rate_value_for_attribute", aircraft, it.position) == 0.0
    it.call("reader", "unsubscribe_object_class_attributes", it.aircraft, (it.position,))
    # Expect the other one to be as before
    assert it.call("reader", "get_update_rate_value_for_attribute", aircraft, it.position) == 2.0


def test_values_are_asked_for_in_regions() -> None:
    it = Sky("owner", "reader")
    aircraft = it.aircraft_in("owner", it.region("owner", 50, 60))
    plain_one = it.call("owner", "register_object_instance", it.aircraft)
    region = it.region("reader", 0, 50)
    pairs = ((it.position, region),)
    it.call("reader", "request_attribute_value_update_with_regions", it.vehicle, pairs, b"?")
    assert it.heard("owner") == [("provide_attribute_value_update", plain_one, (it.position,), b"?")]
    it.move("reader", region, 0, 51)
    it.call("reader", "request_attribute_value_update_with_regions", it.vehicle, pairs)
    assert [each[1] for each in it.heard("owner")] == [aircraft, plain_one]


def test_a_new_owner_brings_its_own_regions() -> None:
    it = Sky("first", "second", "reader")
    it.want("reader", it.region("reader", 0, 10))
    it.call("second", "publish_object_class_attributes", it.aircraft, (it.position,))
    it.call("second", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    aircraft = it.aircraft_in("first", it.region("first", 50, 60), "LH1")
    far = it.region("second", 50, 60)
    it.call("second", "associate_regions_for_updates", aircraft, ((it.position, far),))
    for owner, other in (("first", "second"), ("second", "first")):
        it.call(owner, "unconditional_attribute_ownership_divestiture", aircraft, (it.position,))
        it.forget()
        it.call(other, "attribute_ownership_acquisition", aircraft, (it.position,))
        assert it.heard("reader") == []
    # When the owner has no region; Expect it to be found everywhere
    it.call("second", "unassociate_regions_for_updates", aircraft, ((it.position, far),))
    it.call("first", "unconditional_attribute_ownership_divestiture", aircraft, (it.position,))
    it.call("second", "attribute_ownership_acquisition", aircraft, (it.position,))
    assert it.heard("reader") == [discovered(aircraft, it, "LH1")]


def test_who_asks_is_told_that_attributes_come_and_go() -> None:
    it = Sky("owner", "reader")
    it.call("reader", "set_advisory_switch", "attribute_scope", True)
    it.call("owner", "set_advisory_switch", "attribute_relevance", True)
    it.want("reader", it.region("reader", 0, 50))
    area = it.region("owner", 0, 10)
    aircraft = it.aircraft_in("owner", area)
    assert ("attributes_in_scope", aircraft, (it.position,)) in it.heard("reader")
    it.forget()
    it.move("owner", area, 50, 60)
    assert it.heard("reader") == [("attributes_out_of_scope", aircraft, (it.position,))]
    assert it.heard("owner") == [("turn_updates_off_for_object_instance", aircraft, (it.position,))]
    it.move("owner", area, 0, 10)
    assert it.heard("reader") == [("attributes_in_scope", aircraft, (it.position,))]
    assert it.heard("owner") == [("turn_updates_on_for_object_instance", aircraft, (it.position,))]


# -- interactions ---------------------------------------------------------------------------------------------------


def test_interactions_go_where_they_are_wanted() -> None:
    it = Sky("sender", "reader")
    here, there = it.region("reader", 0, 50), it.region("sender", 50, 60)
    it.call("sender", "publish_interaction_class", it.radio)
    it.call("reader", "subscribe_interaction_class_with_regions", it.radio, (here,))

    def heard(*regions: int) -> int:
        it.call("sender", "send_interaction_with_regions", it.radio, ((it.text, b"hi"),), regions, b"tag")
        return len(it.heard("reader"))

    assert heard(there) == 0
    it.move("sender", there, 49, 60)
    assert heard(there) == 1
    # What is sent without regions is sent everywhere
    it.call("sender", "send_interaction", it.radio, (), b"tag")
    assert it.heard("reader") == [("receive_interaction", it.radio, (), b"tag", None, 0)]
    assert heard() == 1
    # and who subscribes without gets all, until that alone is left of both
    it.move("sender", there, 50, 60)
    it.call("reader", "subscribe_interaction_class", it.radio)
    assert heard(there) == 1
    it.call("reader", "unsubscribe_interaction_class", it.radio)
    assert heard(there) == 0
    assert heard() == 1
    it.call("reader", "unsubscribe_interaction_class_with_regions", it.radio, (here,))
    assert heard() == 0
    assert not it.execution.declared.hears


# -- regions --------------------------------------------------------------------------------------------------------


def test_a_region_is_used_or_deleted() -> None:
    it = Sky("owner")
    area = it.region("owner")
    assert it.call("owner", "get_dimension_handle_set", area) == (it.east,)
    aircraft = it.aircraft_in("owner", area)
    with pytest.raises(exc.RegionInUseForUpdateOrSubscription, match="used 1 times"):
        it.call("owner", "delete_region", area)
    # When the aircraft is no more; Expect the region to be free
    it.call("owner", "delete_object_instance", aircraft)
    it.call("owner", "delete_region", area)
    with pytest.raises(exc.InvalidRegion):
        it.call("owner", "get_range_bounds", area, it.east)
    assert not it.execution.regions.made


@pytest.mark.parametrize(
    ("service", "arguments", "error"),
    [
        ("create_region", lambda _: ((9,),), exc.InvalidDimensionHandle),
        ("delete_region", lambda _: (99,), exc.InvalidRegion),
        ("delete_region", lambda it: (it.theirs,), exc.RegionNotCreatedByThisFederate),
        ("commit_region_modifications", lambda it: ((it.own, it.theirs),), exc.RegionNotCreatedByThisFederate),
        ("get_range_bounds", lambda it: (it.own, it.north), exc.RegionDoesNotContainSpecifiedDimension),
        ("set_range_bounds", lambda it: (it.own, it.north, 0, 1), exc.RegionDoesNotContainSpecifiedDimension),
        ("set_range_bounds", lambda it: (it.own, it.east, 5, 5), exc.InvalidRangeBound),
        ("set_range_bounds", lambda it: (it.own, it.east, -1, 5), exc.InvalidRangeBound),
        ("set_range_bounds", lambda it: (it.own, it.east, 0, 101), exc.InvalidRangeBound),
        ("set_range_bounds", lambda it: (it.own, it.east, 0.5, 1), exc.InvalidRangeBound),
        ("associate_regions_for_updates", lambda _: (99, ()), exc.ObjectInstanceNotKnown),
        (
            "associate_regions_for_updates",
            lambda it: (it.plane, ((it.position, it.theirs),)),
            exc.RegionNotCreatedByThisFederate,
        ),
        ("associate_regions_for_updates", lambda it: (it.plane, ((it.callsign, it.own),)), exc.InvalidRegionContext),
        ("associate_regions_for_updates", lambda it: (it.plane, ((it.souls, it.own),)), exc.AttributeNotDefined),
        ("associate_regions_for_updates", lambda it: (it.plane, (it.position, it.own)), exc.InvalidArgument),
        ("associate_regions_for_updates", lambda it: (it.plane, ((it.position,),)), exc.InvalidArgument),
        (
            "register_object_instance_with_regions",
            lambda it: (it.vehicle, ((it.position, it.own),)),
            exc.ObjectClassNotPublished,
        ),
        (
            "subscribe_object_class_attributes_with_regions",
            lambda it: (99, ((it.position, it.own),)),
            exc.InvalidObjectClassHandle,
        ),
        ("subscribe_interaction_class_with_regions", lambda it: (it.mayday, (it.own,)), exc.InvalidRegionContext),
        ("subscribe_interaction_class_with_regions", lambda _: (99, ()), exc.InvalidInteractionClassHandle),
        ("send_interaction_with_regions", lambda it: (it.radio, (), (it.own,)), exc.InteractionClassNotPublished),
        ("unsubscribe_interaction_class_with_regions", lambda it: (it.radio, (99,)), exc.InvalidRegion),
    ],
)
def test_what_a_region_is_not_for_is_refused_and_changes_nothing(
    service: str, arguments: Callable[[Any], tuple[Any, ...]], error: type[exc.RtiError]
) -> None:
    it: Any = Sky("a", "b")
    it.own, it.theirs = it.region("a"), it.region("b")
    it.plane = it.aircraft_in("a", it.own)
    it.souls = 10_000
    before = it.execution
    with pytest.raises(error) as caught:
        it.call("a", service, *arguments(it))
    assert it.execution is before
    assert caught.value.hint


def test_only_published_attributes_are_registered_with_regions() -> None:
    it = Sky("a")
    area = it.region("a")
    it.call("a", "publish_object_class_attributes", it.aircraft, (it.callsign,))
    with pytest.raises(exc.AttributeNotPublished, match="position"):
        it.call("a", "register_object_instance_with_regions", it.aircraft, ((it.position, area),))
    assert not it.execution.instances.by_handle


def test_a_federate_has_so_many_regions_and_takes_them_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jbi_pubsub.hla.distribution.REGIONS_MOST", 3)
    it = Sky("a", "b")
    own = [it.region("a") for _ in range(3)]
    with pytest.raises(exc.RtiInternalError, match="3 regions"):
        it.region("a")
    theirs = it.region("b")
    it.want("b", theirs)
    it.call("b", "subscribe_interaction_class_with_regions", it.radio, (theirs,))
    it.aircraft_in("a", own[0])
    # When the first leaves; Expect the other one's to be there alone
    it.call("a", "resign_federation_execution", "delete_objects")
    assert set(it.execution.regions.made) == {it.handles["b"]}
    assert {use[1] for use in it.execution.regions.used} == {it.handles["b"]}


def test_regions_are_saved_and_restored() -> None:
    it = Sky("owner", "reader")
    it.want("reader", it.region("reader", 0, 10))
    aircraft = it.aircraft_in("owner", it.region("owner", 50, 60))
    it.execution = built(plain(it.execution), {each.__name__: each for each in KINDS})
    assert it.reflected("owner", aircraft, "reader") == []


# -- the object model -----------------------------------------------------------------------------------------------


def test_dimensions_come_from_all_modules() -> None:
    other = b"""<objectModel><dimensions><dimension><name>East</name><upperBound>%d</upperBound></dimension>
    <dimension><name>HLAfederate</name></dimension></dimensions></objectModel>"""
    fom = parsed(("sky.xml", SKY), ("other.xml", other % 100))
    assert [(each.name, each.upper) for each in fom.dimensions] == [
        ("East", 100), ("HLAfederate", DIMENSION_MOST), ("North", 50),
    ]  # fmt: skip
    with pytest.raises(exc.InconsistentFom, match="East has another upper bound"):
        parsed(("sky.xml", SKY), ("other.xml", other % 99))
    assert parsed(("air.xml", AIR)).digest != fom.digest


# -- what a federate hears ------------------------------------------------------------------------------------------

ranges = st.tuples(st.integers(0, 12), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
steps = st.one_of(
    st.tuples(st.just("move"), st.integers(0, 3), ranges),
    st.tuples(st.sampled_from(["in", "out", "want", "leave"]), st.integers(0, 3), st.just(None)),
    st.tuples(st.sampled_from(["all", "none"]), st.just(0), st.just(None)),
)


def is_heard(sent: Iterable[int], wanted: Iterable[int], is_wanted: bool, at: list[tuple[int, int]]) -> bool:
    """The rule of clause 9.1, word for word: the default region is sent with where there is no other, and wanted where
    it is subscribed to without regions."""
    if is_wanted:
        return True
    if not sent:
        return bool(wanted)
    return any(at[a][0] < at[b][1] and at[b][0] < at[a][1] for a in sent for b in wanted)


@settings(deadline=None, max_examples=examples(150))
@given(st.lists(steps, max_size=25))
def test_whatever_regions_come_and_go_those_hear_who_should(todo: list[Any]) -> None:
    # Given an owner and a reader, each with two regions, and an aircraft
    it = Sky("owner", "reader")
    east = it.east
    owners = ["owner", "owner", "reader", "reader"]
    regions = [it.call(who, "create_region", (east,)) for who in owners]
    at = [(0, 100)] * 4
    it.call("owner", "publish_object_class_attributes", it.aircraft, (it.position,))
    aircraft = it.call("owner", "register_object_instance", it.aircraft)
    sent, wanted, is_wanted, is_known = set[int](), set[int](), False, False
    for what, number, bounds in todo:
        # When anybody does anything with them
        number = number % 2 if what in ("in", "out") else 2 + number % 2 if what in ("want", "leave") else number
        pair = ((it.position, regions[number]),)
        if what == "move":
            it.call(owners[number], "set_range_bounds", regions[number], east, *bounds)
            it.call(owners[number], "commit_region_modifications", (regions[number],))
            at[number] = bounds
        elif what in ("in", "out"):
            it.call("owner", f"{'' if what == 'in' else 'un'}associate_regions_for_updates", aircraft, pair)
            (sent.add if what == "in" else sent.discard)(number)
        elif what in ("want", "leave"):
            service = "subscribe_object_class_attributes_with_regions"
            it.call("reader", f"{'' if what == 'want' else 'un'}{service}", it.aircraft, pair)
            (wanted.add if what == "want" else wanted.discard)(number)
        else:
            is_wanted = what == "all"
            service = "subscribe_object_class_attributes"
            it.call("reader", f"{'' if is_wanted else 'un'}{service}", it.aircraft, (it.position,))
        # Expect the reader to know it from when on it is to hear of it, and to hear when it is
        hears = is_heard(sent, wanted, is_wanted, at)
        found = [each[0] for each in it.heard("reader")]
        assert found == ["discover_object_instance"] * (hears and not is_known)
        is_known = is_known or hears
        it.call("owner", "update_attribute_values", aircraft, ((it.position, b"1"),))
        assert len(it.heard("reader")) == hears
    # When both leave; Expect nothing to be left of their regions
    for each in ("reader", "owner"):
        it.call(each, "resign_federation_execution", "delete_objects_then_divest")
    assert not it.execution.regions.made
    assert not it.execution.regions.used


# -- over sockets ---------------------------------------------------------------------------------------------------


def test_federates_use_regions_over_sockets(federation: Any) -> None:
    # Given an RTI, and federates of it
    server = RtiServer(federation.config, lease=30.0)
    federation.stack.callback(server.stop)
    server.start()
    server.create("Sky", [Module("sky.xml", SKY)])
    pilot, west = (Federate(federation.config, name, "Sky") for name in ("pilot", "west"))
    for each in (pilot, west):
        federation.stack.callback(each.rti.disconnect)
    cls = pilot.rti.get_object_class_handle("Vehicle.Aircraft")
    position = pilot.rti.get_attribute_handle(cls, "position")
    radio = pilot.rti.get_interaction_class_handle("Radio")
    text = pilot.rti.get_parameter_handle(radio, "text")
    # When they ask for the dimensions
    east, north = (pilot.rti.get_dimension_handle(name) for name in ("East", "North"))
    assert pilot.rti.get_dimension_name(north) == "North"
    assert pilot.rti.get_dimension_upper_bound(east) == 100
    assert pilot.rti.get_available_dimensions_for_class_attribute(cls, position) == (east, north)
    assert pilot.rti.get_available_dimensions_for_interaction_class(radio) == (east,)
    with pytest.raises(exc.NameNotFound, match="no dimension 'Up'"):
        pilot.rti.get_dimension_handle("Up")
    with pytest.raises(exc.InvalidDimensionHandle, match="get_dimension_handle"):
        pilot.rti.get_dimension_upper_bound(3)
    # and one wants what is in the west
    regions = [west.rti.create_region([east]) for _ in range(500)]
    assert west.rti.get_dimension_handle_set(regions[0]) == (east,)
    for region in regions:
        west.rti.set_range_bounds(region, east, 0, 50)
    assert west.rti.get_range_bounds(regions[0], east) == (0, 50)
    west.rti.commit_region_modifications(regions)
    west.rti.subscribe_object_class_attributes_with_regions(cls, [(position, each) for each in regions])
    west.rti.subscribe_interaction_class_with_regions(radio, regions[:1])
    # and the other one flies there from the east
    area = pilot.rti.create_region([east])
    pilot.rti.set_range_bounds(area, east, 50, 60)
    pilot.rti.commit_region_modifications([area])
    pilot.rti.publish_object_class_attributes(cls, [position])
    pilot.rti.publish_interaction_class(radio)
    plane = pilot.rti.register_object_instance_with_regions(cls, [(position, area)], "LH1")
    for said in (b"east", b"west"):
        pilot.rti.update_attribute_values(plane, {position: said})
        pilot.rti.send_interaction_with_regions(radio, {text: said}, [area])
        pilot.rti.set_range_bounds(area, east, 40, 50)
        pilot.rti.commit_region_modifications([area])
    # Expect it to be seen there, and before nowhere
    assert west.until("discover_object_instance")[3] == "LH1"
    assert west.until("reflect_attribute_values")[2] == ((position, b"west"),)
    assert west.until("receive_interaction")[2] == ((text, b"west"),)
    # When values are asked for, and nothing is wanted any more
    west.rti.request_attribute_value_update_with_regions(cls, [(position, regions[0])], b"?")
    assert pilot.until("provide_attribute_value_update") == (
        "provide_attribute_value_update", plane, (position,), b"?",
    )  # fmt: skip
    west.rti.unsubscribe_object_class_attributes_with_regions(cls, [(position, each) for each in regions])
    west.rti.unsubscribe_interaction_class_with_regions(radio, regions)
    west.rti.delete_region(regions[0])
    pilot.rti.associate_regions_for_updates(plane, [(position, area)])
    with pytest.raises(exc.RegionInUseForUpdateOrSubscription):
        pilot.rti.delete_region(area)
    pilot.rti.unassociate_regions_for_updates(plane, [(position, area)])
    pilot.rti.delete_region(area)
    with pytest.raises(exc.InvalidRangeBound):
        west.rti.set_range_bounds(regions[1], east, -1, 5)
    # and in time-stamp order all is as without a time
    pilot.rti.enable_time_regulation(1.0)
    assert pilot.rti.send_interaction_with_regions(radio, {text: b"late"}, [], time=5.0) > 0
