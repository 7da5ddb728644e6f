"""Support services, advisories, reserved names, who has sent what, and the end of time."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from jbi_pubsub.hla import exceptions as exc
from jbi_pubsub.hla.advice import SWITCHES
from jbi_pubsub.hla.fom import BEST_EFFORT
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.hla.support import FLOAT_TIME, INTEGER_TIME
from tests.hla.parties import Federate

# -- names of instances ---------------------------------------------------------------------------------------------


def test_a_name_that_is_reserved_is_the_federates_alone(rig: Any) -> None:
    # Given a federate that reserves a name
    it = rig("a", "b")
    for each in "ab":
        it.call(each, "publish_object_class_attributes", it.aircraft, (it.position,))
    it.call("a", "reserve_object_instance_name", "LH1")
    assert it.heard("a") == [("object_instance_name_reservation_succeeded", "LH1")]
    # Expect another one to get neither the name nor an instance of it, until the first one gives it back
    it.call("b", "reserve_object_instance_name", "LH1")
    assert it.heard("b") == [("object_instance_name_reservation_failed", "LH1")]
    with pytest.raises(exc.ObjectInstanceNameInUse):
        it.call("b", "register_object_instance", it.aircraft, "LH1")
    with pytest.raises(exc.ObjectInstanceNameNotReserved):
        it.call("b", "release_multiple_object_instance_names", ("LH1",))
    it.call("a", "release_multiple_object_instance_names", ("LH1",))
    it.call("b", "register_object_instance", it.aircraft, "LH1")
    # and what an instance has to be none that can be reserved
    it.call("a", "reserve_object_instance_name", "LH1")
    assert it.heard("a") == [("object_instance_name_reservation_failed", "LH1")]
    with pytest.raises(exc.IllegalName):
        it.call("a", "reserve_object_instance_name", "HLAmine")


def test_several_names_are_reserved_all_or_none(rig: Any) -> None:
    it = rig("a", "b")
    it.call("a", "reserve_multiple_object_instance_names", ("x", "y", "x"))
    assert it.heard("a") == [("multiple_object_instance_name_reservation_succeeded", ("x", "y"))]
    it.call("b", "reserve_multiple_object_instance_names", ("z", "y"))
    assert it.heard("b") == [("multiple_object_instance_name_reservation_failed", ("z", "y"))]
    it.call("b", "reserve_multiple_object_instance_names", ("z",))
    assert it.heard("b") == [("multiple_object_instance_name_reservation_succeeded", ("z",))]
    # When who has reserved leaves; Expect the names to be free
    it.call("a", "resign_federation_execution", "no_action")
    it.call("b", "reserve_multiple_object_instance_names", ("x", "y"))
    assert it.heard("b")[-1] == ("multiple_object_instance_name_reservation_succeeded", ("x", "y"))
    for names in ((), ("",), "x", (5,)):
        with pytest.raises((exc.IllegalName, exc.InvalidArgument)):
            it.call("b", "reserve_multiple_object_instance_names", names)


# -- advisories -----------------------------------------------------------------------------------------------------


def test_who_publishes_is_told_whether_anybody_wants_it(rig: Any) -> None:
    it = rig("a", "b")
    for each in ("object_class_relevance", "interaction_relevance"):
        it.call("a", "set_advisory_switch", each, True)
    it.call("a", "publish_object_class_attributes", it.aircraft, (it.position,))
    it.call("a", "publish_interaction_class", it.mayday)
    assert it.heard("a") == []
    # When somebody subscribes to another attribute; Expect nothing, and a word when it is the one, at a class above
    it.call("b", "subscribe_object_class_attributes", it.aircraft, (it.callsign,))
    assert it.heard("a") == []
    it.call("b", "subscribe_object_class_attributes", it.vehicle, (it.position,))
    it.call("b", "subscribe_interaction_class", it.radio)
    assert it.heard("a") == [
        ("start_registration_for_object_class", it.aircraft), ("turn_interactions_on", it.mayday)
    ]  # fmt: skip
    it.call("b", "unsubscribe_object_class", it.vehicle)
    assert it.heard("a") == [("stop_registration_for_object_class", it.aircraft)]
    it.call("b", "resign_federation_execution", "no_action")
    assert it.heard("a") == [("turn_interactions_off", it.mayday)]
    with pytest.raises(exc.InvalidArgument, match="There are object_class_relevance"):
        it.call("a", "set_advisory_switch", "gossip", True)


def test_owner_and_reader_of_an_attribute_are_told_of_each_other(rig: Any) -> None:
    it = rig("a", "b", "silent")
    it.call("a", "set_advisory_switch", "attribute_relevance", True)
    it.call("b", "set_advisory_switch", "attribute_scope", True)
    aircraft = it.aircraft_of("a", "b", "silent", name="LH1")
    both = (it.position, it.callsign)
    # When one of three stops to listen; Expect no word, as another one listens still
    it.call("silent", "unsubscribe_object_class", it.aircraft)
    assert it.heard("a") == it.heard("silent") == []
    it.call("b", "unsubscribe_object_class_attributes", it.aircraft, (it.callsign,))
    assert it.heard("a") == [("turn_updates_off_for_object_instance", aircraft, (it.callsign,))]
    assert it.heard("b") == [("attributes_out_of_scope", aircraft, (it.callsign,))]
    it.call("b", "subscribe_object_class_attributes", it.aircraft, both)
    assert it.heard("a") == [("turn_updates_on_for_object_instance", aircraft, (it.callsign,))]
    assert it.heard("b") == [("attributes_in_scope", aircraft, (it.callsign,))]
    # When the owner lets go; Expect the reader to be told alone
    it.call("a", "unconditional_attribute_ownership_divestiture", aircraft, (it.position,))
    assert it.heard("b") == [("attributes_out_of_scope", aircraft, (it.position,))]
    assert [each for each in it.heard("a") if each[0].startswith("turn")] == []
    # and what comes to be to be told behind its discovery
    second = it.call("a", "register_object_instance", it.aircraft, "LH2")
    assert [each[0] for each in it.heard("b")] == ["discover_object_instance", "attributes_in_scope"]
    assert it.heard("a") == [("turn_updates_on_for_object_instance", second, both)]
    it.call("a", "delete_object_instance", second)
    assert [each[0] for each in it.heard("b")] == ["remove_object_instance"]
    assert it.heard("silent") == []


BEGINS = {
    "start_registration_for_object_class": "class", "turn_interactions_on": "interaction",
    "turn_updates_on_for_object_instance": "relevant", "attributes_in_scope": "scope",
}  # fmt: skip
ENDS = {
    "stop_registration_for_object_class": "class", "turn_interactions_off": "interaction",
    "turn_updates_off_for_object_instance": "relevant", "attributes_out_of_scope": "scope",
}  # fmt: skip


def holds(it: Any, me: int) -> dict[str, set[Any]]:
    """What a federate has to have been told, by the words of the standard."""
    declared, owned, fom = it.execution.declared, it.execution.owned, it.model.fom
    found: dict[str, set[Any]] = {"class": set(), "interaction": set(), "relevant": set(), "scope": set()}
    for other in it.execution.members.joined:
        for cls in fom.objects if other != me else ():
            for attribute in declared.publishes(me, cls.handle):
                if any(
                    attribute in declared.subscribed.get(other, {}).get(above, ())
                    and ("o", above, attribute, 0) not in declared.passive.get(other, {})
                    for above in cls.above
                ):
                    found["class"].add(cls.handle)
        for cls in fom.interactions if other != me else ():
            hears = {
                at for at in declared.hears.get(other, ()) if ("i", at, 0, 0) not in declared.passive.get(other, {})
            }
            if cls.handle in declared.sends.get(me, ()) and any(above in hears for above in cls.above):
                found["interaction"].add(cls.handle)
        for handle, instance in it.execution.instances.by_handle.items():
            at = instance.known.get(other)
            for attribute in declared.subscribed.get(other, {}).get(at, ()):
                owner = owned.owner(handle, attribute)
                is_silent = owner == me and ("o", at, attribute, 0) in declared.passive.get(other, {})
                if owner and owner != other and me in (owner, other) and not is_silent:
                    found["relevant" if owner == me else "scope"].add((handle, attribute))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_called_what_was_told_is_what_holds(rig: Any, seed: int) -> None:
    # Given three federates with all advisories; When they declare, register, pass, delete and forget at random
    chance = random.Random(seed)
    it = rig("a", "b", "c")
    for each in "abc":
        for switch in SWITCHES:
            it.call(each, "set_advisory_switch", switch, True)
    told: dict[str, dict[str, set[Any]]] = {each: defaultdict(set) for each in "abc"}
    for _ in range(150):
        who = chance.choice("abc")
        cls = chance.choice((it.vehicle, it.aircraft))
        attributes = (it.position,) if cls == it.vehicle else chance.choice(((it.position,), (it.callsign,)))
        handle = chance.choice(sorted(it.execution.instances.by_handle) or [0])
        service, *arguments = chance.choice((
            ("publish_object_class_attributes", cls, attributes), ("unpublish_object_class", cls),
            ("subscribe_object_class_attributes", cls, attributes), ("unsubscribe_object_class", cls),
            ("subscribe_object_class_attributes", cls, attributes, "", True),
            ("subscribe_interaction_class", it.radio, True),
            ("publish_interaction_class", it.mayday), ("unpublish_interaction_class", it.mayday),
            ("subscribe_interaction_class", it.radio), ("unsubscribe_interaction_class", it.radio),
            ("register_object_instance", cls), ("register_object_instance", cls), ("delete_object_instance", handle),
            ("local_delete_object_instance", handle),
            ("attribute_ownership_acquisition_if_available", handle, attributes),
            ("unconditional_attribute_ownership_divestiture", handle, attributes),
        ))  # fmt: skip
        try:
            it.call(who, service, *arguments)
        except exc.RtiError:
            continue
        # Expect each to have been told what holds, no more and no less
        for each in "abc":
            mine, me = told[each], it.handles[each]
            for name, *said in it.heard(each):
                pairs = (
                    {said[0]}
                    if len(said) == 1
                    else {(said[0], one) for one in said[1]}
                    if name in BEGINS | ENDS
                    else ()
                )
                if name in BEGINS:
                    assert mine[BEGINS[name]].isdisjoint(pairs)
                    mine[BEGINS[name]] |= set(pairs)
                elif name in ENDS:
                    assert set(pairs) <= mine[ENDS[name]]
                    mine[ENDS[name]] -= set(pairs)
            by_handle = it.execution.instances.by_handle  # what is gone, lost or forgotten needs no word
            mine["relevant"] = {(at, a) for at, a in mine["relevant"] if it.execution.owned.owner(at, a) == me}
            mine["scope"] = {(at, a) for at, a in mine["scope"] if at in by_handle and me in by_handle[at].known}
            assert {key: mine[key] for key in ("class", "interaction", "relevant", "scope")} == holds(it, me)


# -- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["time_advance_request", "next_message_request_available", "next_message_request"])
def test_federates_advance_to_infinity(rig: Any, kind: str) -> None:
    # Given two federates that regulate and are constrained
    it = rig("a", "b")
    it.call("a", "publish_interaction_class", it.radio)
    it.call("b", "subscribe_interaction_class", it.radio)
    for each in "ab":
        it.call(each, "enable_time_regulation", 1.0)
    for each in "ab":
        it.call(each, "enable_time_constrained")
    it.forget()
    # When one is through, and the other is not; Expect it to wait
    it.call("b", "time_advance_request", math.inf)
    assert it.heard("b") == []
    sent = it.call("a", "send_interaction", it.radio, (), b"", 7.0)
    it.call("a", kind, math.inf)
    # Expect both to get what is on its way, and to be at infinity
    assert it.heard("b")[-2:] == [
        ("receive_interaction", it.radio, (), b"", 7.0, sent),
        ("time_advance_grant", math.inf),
    ]
    assert it.heard("a") == [("time_advance_grant", math.inf)]
    assert it.call("a", "query_logical_time") == math.inf
    # and to send nothing in time-stamp order any more, nor to be at another time
    with pytest.raises(exc.InvalidLogicalTime):
        it.call("a", "send_interaction", it.radio, (), b"", 1e300)
    with pytest.raises(exc.LogicalTimeAlreadyPassed):
        it.call("a", "time_advance_request", 8.0)
    it.call("a", "disable_time_regulation")


def test_who_is_through_holds_nobody_back(rig: Any) -> None:
    it = rig("a", "b")
    for each in "ab":
        it.call(each, "enable_time_regulation", 0.0)
    for each in "ab":
        it.call(each, "enable_time_constrained")
    it.call("a", "flush_queue_request", math.inf)
    it.forget()
    it.call("a", "time_advance_request", math.inf)
    for time in (5.0, 9.0):
        it.call("b", "time_advance_request", time)
    assert it.heard("b") == [("time_advance_grant", 5.0), ("time_advance_grant", 9.0)]
    assert it.heard("a") == []
    it.call("b", "resign_federation_execution", "no_action")
    assert it.heard("a") == [("time_advance_grant", math.inf)]


def test_times_have_factories() -> None:
    assert (FLOAT_TIME.name, FLOAT_TIME.final, FLOAT_TIME.epsilon > 0) == ("HLAfloat64Time", math.inf, True)
    assert FLOAT_TIME.codec.encode(FLOAT_TIME.final).hex() == "7ff0000000000000"
    assert INTEGER_TIME.codec.encode(INTEGER_TIME.epsilon).hex() == "0000000000000001"
    assert float(INTEGER_TIME.final) - 1 == INTEGER_TIME.final - 1


# -- retraction of deletions ----------------------------------------------------------------------------------------


def test_a_deletion_is_taken_back(rig: Any) -> None:
    # Given an aircraft that is deleted at 5, for one who waits for that time, and one who does not
    it = rig("a", "b", "c")
    aircraft = it.aircraft_of("a", "b", "c", name="LH1")
    it.execution = it.execution._replace(
        instances=it.execution.instances._replace(
            orders=it.execution.instances.orders.set((aircraft, it.model.fom.privilege), "timestamp")
        )
    )
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    it.forget()
    retraction = it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    assert it.heard("c") == [("remove_object_instance", aircraft, b"", 5.0, retraction)]
    # When it is taken back; Expect it to be there, with its owner, for both: the one never hears of it
    it.call("a", "retract", retraction)
    assert it.heard("c") == [("request_retraction", retraction)]
    assert it.heard("b") == []
    assert [it.call(each, "get_object_instance_handle", "LH1") for each in "abc"] == [aircraft] * 3
    it.call("a", "update_attribute_values", aircraft, ((it.position, b"1"),))
    assert [each[0] for each in it.heard("c")] == ["reflect_attribute_values"]
    with pytest.raises(exc.MessageCanNoLongerBeRetracted):
        it.call("a", "retract", retraction)


def test_a_deletion_that_is_taken_back_leaves_nothing_out(rig: Any) -> None:
    # Given an aircraft whose owner has changed the order and the transportation of an attribute, which others wait for
    it = rig("a", "b", "gone", "late")
    aircraft = it.aircraft_of("a", "b", "gone", name="LH1")
    for each in ("b", "gone"):
        it.call(each, "publish_object_class_attributes", it.aircraft, (it.callsign,))
        it.call(each, "attribute_ownership_acquisition", aircraft, (it.callsign,), each.encode())
    it.call("a", "change_attribute_order_type", aircraft, (it.position,), "receive")
    it.call("a", "request_attribute_transportation_type_change", aircraft, (it.position,), BEST_EFFORT)
    it.call("a", "enable_time_regulation", 1.0)
    before = it.execution
    retraction = it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    # When one subscribes and one leaves, and then it is taken back
    it.call("late", "subscribe_object_class_attributes", it.aircraft, (it.position,))
    it.call("late", "set_advisory_switch", "attribute_scope", True)
    it.call("a", "set_advisory_switch", "attribute_relevance", True)
    it.call("gone", "resign_federation_execution", "no_action")
    it.forget()
    it.call("a", "retract", retraction)
    # Expect all to be as it was, without who has left, and who came late to discover it
    in_scope = "attributes_in_scope", aircraft, (it.position,)
    assert it.heard("late") == [("discover_object_instance", aircraft, it.aircraft, "LH1"), in_scope]
    assert [each[:2] for each in it.heard("a")] == [("turn_updates_on_for_object_instance", aircraft)]
    after, b = it.execution, it.handles["b"]
    assert (after.instances.orders, after.instances.transports) == (before.instances[2], before.instances[4])
    assert after.owned.owners == before.owned.owners
    assert [each.federate for each in after.owned.claims[aircraft][it.callsign]] == [b]
    assert it.call("a", "attribute_ownership_divestiture_if_wanted", aircraft, (it.callsign,)) == (it.callsign,)


def test_who_has_forgotten_an_instance_discovers_it_anew_when_its_deletion_is_taken_back(rig: Any) -> None:
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b", name="LH1")
    it.call("a", "enable_time_regulation", 1.0)
    it.call("b", "enable_time_constrained")
    retraction = it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    it.call("b", "local_delete_object_instance", aircraft)
    it.forget()
    it.call("a", "retract", retraction)
    assert it.heard("b") == [("discover_object_instance", aircraft, it.aircraft, "LH1")]


def test_what_nobody_has_any_more_is_offered_when_a_deletion_is_taken_back(rig: Any) -> None:
    # Given an aircraft with an attribute of another federate, which stops to publish it while the aircraft is deleted
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b", name="LH1")
    it.call("a", "unconditional_attribute_ownership_divestiture", aircraft, (it.callsign,))
    it.call("b", "publish_object_class_attributes", it.aircraft, (it.callsign,))
    it.call("b", "attribute_ownership_acquisition", aircraft, (it.callsign,))
    it.call("a", "enable_time_regulation", 1.0)
    retraction = it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    it.call("b", "unpublish_object_class", it.aircraft)
    it.forget()
    # When it is taken back; Expect the attribute to be unowned, and offered
    it.call("a", "retract", retraction)
    assert it.execution.owned.owner(aircraft, it.callsign) == 0
    assert it.heard("a") == [("request_attribute_ownership_assumption", aircraft, (it.callsign,), b"")]


def test_a_deletion_stays_when_the_name_is_taken(rig: Any) -> None:
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b", name="LH1")
    it.call("a", "change_attribute_order_type", aircraft, (it.model.fom.privilege,), "timestamp")
    it.call("a", "enable_time_regulation", 1.0)
    retraction = it.call("a", "delete_object_instance", aircraft, b"", 5.0)
    it.call("a", "register_object_instance", it.aircraft, "LH1")
    before = it.execution
    with pytest.raises(exc.MessageCanNoLongerBeRetracted, match="'LH1'"):
        it.call("a", "retract", retraction)
    assert it.execution is before


# -- over sockets ---------------------------------------------------------------------------------------------------


@pytest.fixture
def join(federation: Any, air: bytes) -> Callable[..., Federate]:
    """join(name): a federate of Air, which leaves at the end."""
    server = RtiServer(federation.config, lease=30.0)
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])

    def made(name: str) -> Federate:
        one = Federate(federation.config, name)
        federation.stack.callback(one.rti.disconnect)
        return one

    return made


@pytest.mark.processes
def test_support_services_of_a_federate(join: Callable[..., Federate]) -> None:
    one, other = join("one"), join("other")
    rti = one.rti
    # Given the model's names; Expect handles from names, and names from handles
    cls, radio = rti.get_object_class_handle("Vehicle.Aircraft"), rti.get_interaction_class_handle("Radio")
    position, text = rti.get_attribute_handle(cls, "position"), rti.get_parameter_handle(radio, "text")
    assert rti.get_object_class_name(cls) == "HLAobjectRoot.Vehicle.Aircraft"
    assert rti.get_interaction_class_name(radio) == "HLAinteractionRoot.Radio"
    assert (rti.get_attribute_name(cls, position), rti.get_parameter_name(radio, text)) == ("position", "text")
    assert [rti.get_order_name(rti.get_order_type(each)) for each in ("Receive", "TimeStamp")] == [
        "Receive",
        "TimeStamp",
    ]
    names = ("HLAreliable", "HLAbestEffort")
    assert tuple(rti.get_transportation_type_name(rti.get_transportation_type_handle(each)) for each in names) == names
    assert (rti.federate_handle, rti.federate_name) == (one.handle, "one")
    assert rti.normalize_federate_handle(one.handle) == one.handle
    assert rti.normalize_service_group("object management") == 2
    assert rti.get_time_factory() is FLOAT_TIME
    assert rti.fom.codec("HLAunicodeString").encode("x") == b"\0\0\0\1\0x"
    for call in (lambda: rti.get_attribute_name(cls, 99), lambda: rti.get_parameter_name(radio, 99),
                 lambda: rti.get_order_type("Sideways"), lambda: rti.get_transportation_type_name(3),
                 lambda: rti.get_object_class_name(99), lambda: rti.get_interaction_class_name(99)):  # fmt: skip
        with pytest.raises(exc.RtiError):
            call()
    # what is done when it dies
    rti.set_automatic_resign_directive("no_action")
    assert rti.get_automatic_resign_directive() == "no_action"
    with pytest.raises(exc.InvalidResignAction):
        rti.set_automatic_resign_directive("explode")
    # advisories and reservations, by their callbacks
    rti.set_object_class_relevance_advisory_switch(True)
    rti.set_interaction_relevance_advisory_switch(True)
    rti.set_attribute_relevance_advisory_switch(True)
    other.rti.set_attribute_scope_advisory_switch(True)
    rti.publish_object_class_attributes(cls, [position])
    rti.publish_interaction_class(radio)
    other.rti.subscribe_object_class_attributes(cls, [position])
    other.rti.subscribe_interaction_class(radio)
    assert one.until("start_registration_for_object_class") == ("start_registration_for_object_class", cls)
    assert one.until("turn_interactions_on") == ("turn_interactions_on", radio)
    rti.reserve_object_instance_name("LH1")
    assert one.until("object_instance_name_reservation_succeeded")[1] == "LH1"
    many = [f"LH{number}" for number in range(2, 2000)]
    rti.reserve_multiple_object_instance_names(many)
    assert one.until("multiple_object_instance_name_reservation_succeeded")[1] == tuple(many)
    rti.release_multiple_object_instance_names(many)
    rti.release_object_instance_name("LH1")
    aircraft = rti.register_object_instance(cls, "LH1")
    assert one.until("turn_updates_on_for_object_instance")[2] == (position,)
    assert other.until("attributes_in_scope")[1:] == (aircraft, (position,))
    other.rti.leave()
    assert one.until("turn_updates_off_for_object_instance")[1:] == (aircraft, (position,))


@pytest.mark.processes
def test_who_asks_is_told_who_has_sent_what(join: Callable[..., Federate]) -> None:
    sender, asks, none = join("sender"), join("asks"), join("none")
    radio = sender.rti.get_interaction_class_handle("Radio")
    sender.rti.publish_interaction_class(radio)
    for each in (asks, none):
        each.rti.subscribe_interaction_class(radio)
    asks.rti.set_convey_producing_federate_switch(True)
    sender.rti.enable_time_regulation(1.0)
    # When something is sent, without a time and with one
    sender.rti.send_interaction(radio, {}, b"a")
    sender.rti.send_interaction(radio, {}, b"b", 5.0)
    # Expect the callback as ever, the sender beside it for who asked, and the order in which it was sent
    for each, producer in ((asks, sender.handle), (none, 0)):
        for tag, order in ((b"a", "receive"), (b"b", "timestamp")):
            got = each.until("receive_interaction")
            assert (len(got), got[3]) == (6, tag)
            assert (each.rti.producing_federate, each.rti.sent_order) == (producer, order)
    asks.rti.set_convey_producing_federate_switch(False)
    sender.rti.send_interaction(radio, {}, b"c")
    asks.until("receive_interaction")
    assert asks.rti.producing_federate == 0
    # When callbacks are disabled; Expect none, until they are enabled
    sender.rti.send_interaction(radio, {}, b"d")
    asks.rti.disable_callbacks()
    assert not asks.rti.evoke_callback(0.3)
    asks.rti.enable_callbacks()
    assert asks.until("receive_interaction")[3] == b"d"
