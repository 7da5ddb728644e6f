"""Transportation types and update rates: what may be lost on its way, and how much of it a federate wants (IEEE
1516.1-2010, clauses 5.6, 6.23 to 6.30, 10.13, 10.14)."""

from __future__ import annotations

from typing import Any

import pytest

from jbi_pubsub.hla import exceptions as exc
from jbi_pubsub.hla import rti
from jbi_pubsub.hla.execution import Callback
from jbi_pubsub.hla.fom import BEST_EFFORT, RELIABLE, parsed
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.rates import LEAST_KEPT, UpdateRates
from jbi_pubsub.hla.server import RtiServer
from tests.hla.parties import Federate

RATES = (
    b"<updateRates><updateRate><name>Rare</name><rate>0.001</rate></updateRate>"
    b"<updateRate><name>All</name><rate>0</rate></updateRate></updateRates></objectModel>"
)


def best(air: bytes) -> bytes:
    """The model with a best-effort position, and update rates."""
    attribute = b"<order>TimeStamp</order></attribute>"
    return air.replace(attribute, b"<transportation>HLAbestEffort</transportation>" + attribute).replace(
        b"</objectModel>", RATES
    )


def sent(it: Any, name: str, service: str, *arguments: Any) -> list[Callback]:
    """What a call of a federate has others told."""
    step = rti.call(it.model, it.execution, it.handles[name], service, *arguments)
    it.execution = step.execution
    return [each.callback for each in step.told]


# -- transportation -------------------------------------------------------------------------------------------------


def test_the_owner_says_how_values_go(rig: Any) -> None:
    # Given an aircraft whose values go reliably, as the model says
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b")
    both = ((it.position, b"p"), (it.callsign, b"c"))
    assert [each.is_best_effort for each in sent(it, "a", "update_attribute_values", aircraft, both)] == [False]
    # When its owner asks for another type for one of them; Expect that to be confirmed, and the values to come apart
    it.call("a", "request_attribute_transportation_type_change", aircraft, (it.position,), BEST_EFFORT)
    assert it.heard("a") == [
        ("confirm_attribute_transportation_type_change", aircraft, (it.position,), BEST_EFFORT)
    ]  # fmt: skip
    found = sent(it, "a", "update_attribute_values", aircraft, both)
    assert [(each.is_best_effort, each.arguments[1]) for each in found] == [(True, both[:1]), (False, both[1:])]
    # and whoever knows the instance to be told it when it asks
    it.call("b", "query_attribute_transportation_type", aircraft, it.position)
    it.call("b", "query_attribute_transportation_type", aircraft, it.callsign)
    assert it.heard("b")[-2:] == [
        ("report_attribute_transportation_type", aircraft, it.position, BEST_EFFORT),
        ("report_attribute_transportation_type", aircraft, it.callsign, RELIABLE),
    ]
    # but nobody else to change it, nor to what is no type
    before = it.execution
    with pytest.raises(exc.AttributeNotOwned):
        it.call("b", "request_attribute_transportation_type_change", aircraft, (it.position,), RELIABLE)
    for wrong in (0, 3, True, "HLAreliable"):
        with pytest.raises(exc.InvalidTransportationType, match="takes a transportation type"):
            it.call("a", "request_attribute_transportation_type_change", aircraft, (it.position,), wrong)
    assert it.execution is before


def test_with_another_owner_values_go_as_the_model_says(rig: Any) -> None:
    # Given an owner that has changed transportation and order
    it = rig("a", "b")
    aircraft = it.aircraft_of("a", "b")
    it.call("b", "publish_object_class_attributes", it.aircraft, (it.position,))
    it.call("a", "request_attribute_transportation_type_change", aircraft, (it.position,), BEST_EFFORT)
    it.call("a", "change_attribute_order_type", aircraft, (it.position,), "receive")
    # When somebody else owns the attribute; Expect both to be the model's, also when the first one has it again
    it.call("a", "unconditional_attribute_ownership_divestiture", aircraft, (it.position,))
    it.call("b", "attribute_ownership_acquisition_if_available", aircraft, (it.position,))
    instances = it.execution.instances
    assert not instances.transports
    assert not instances.orders
    # and nothing to be kept of an instance that is gone
    it.call("b", "request_attribute_transportation_type_change", aircraft, (it.position,), BEST_EFFORT)
    it.call("a", "delete_object_instance", aircraft)
    assert not it.execution.instances.transports


def test_a_federate_says_how_its_interactions_go(rig: Any) -> None:
    it = rig("a", "b", "c")
    for each in "ab":
        it.call(each, "publish_interaction_class", it.radio)
    it.call("c", "subscribe_interaction_class", it.radio)
    # When one of two that send asks for another type; Expect its own alone to go so, but for those with a time
    it.call("a", "request_interaction_transportation_type_change", it.radio, BEST_EFFORT)
    assert it.heard("a") == [("confirm_interaction_transportation_type_change", it.radio, BEST_EFFORT)]
    goes = {each: sent(it, each, "send_interaction", it.radio, ())[0].is_best_effort for each in "ab"}
    assert goes == {"a": True, "b": False}
    it.call("a", "enable_time_regulation", 1.0)
    assert not sent(it, "a", "send_interaction", it.radio, (), b"", 5.0)[0].is_best_effort
    for each in "ab":
        it.call("c", "query_interaction_transportation_type", it.handles[each], it.radio)
    assert [each[-1] for each in it.heard("c")] == [BEST_EFFORT, RELIABLE]
    # and nobody to change what he does not publish, nor anything to be kept of who resigns, or told of who is not there
    with pytest.raises(exc.InteractionClassNotPublished):
        it.call("c", "request_interaction_transportation_type_change", it.radio, BEST_EFFORT)
    it.call("a", "resign_federation_execution", "no_action")
    assert not it.execution.instances.sends
    for each in (it.handles["a"], 4711):
        it.call("c", "query_interaction_transportation_type", each, it.radio)
        assert it.heard("c")[-1][-1] == RELIABLE


# -- update rates ---------------------------------------------------------------------------------------------------


def reflection(*attributes: int, rates: tuple[float, ...]) -> Callback:
    values = tuple((each, b"v") for each in attributes)
    return Callback("reflect_attribute_values", (7, values, b"", None, 0), is_best_effort=True, rates=rates)


def test_of_values_that_come_too_often_so_many_are_told_as_are_wanted() -> None:
    # Given a clock, a subscription of ten a second, and one without a rate
    now = [0.0]
    rates = UpdateRates(lambda: now[0])
    told = [0, 0]
    # When a hundred come a second for ten seconds
    for number in range(1000):
        now[0] = number / 100
        for federate, callback in enumerate((reflection(1, rates=(10.0,)), reflection(1, rates=()))):
            told[federate] += rates.within(federate, callback) is not None
    # Expect the one to be told ten a second, and the other one all
    assert told == [101, 1000]
    assert rates.reduced == 1000 - 101
    # and of one who sends just as many, unevenly, none to be left out
    late = [n / 10 + (0.04 if n % 2 else 0.0) for n in range(200, 300)]
    for now[0] in late:
        assert rates.within(9, reflection(1, rates=(10.0,))) is not None


def test_each_attribute_instance_and_federate_has_its_own_rate() -> None:
    now = [0.0]
    rates = UpdateRates(lambda: now[0])
    # Given two attributes of which one has a rate; Expect the other one to come always
    assert rates.within(1, reflection(1, 2, rates=(1.0, 0.0))) == reflection(1, 2, rates=(1.0, 0.0))
    left = rates.within(1, reflection(1, 2, rates=(1.0, 0.0)))
    assert left is not None
    assert left.arguments == (7, ((2, b"v"),), b"", None, 0)
    # and other federates to have theirs; what is due anyhow is not kept
    for federate in range(2 * LEAST_KEPT):
        assert rates.within(federate + 2, reflection(1, rates=(1.0,))) is not None
        now[0] += 0.01
    assert len(rates._due) < LEAST_KEPT + 200


def test_a_subscription_says_its_rate(rig: Any, air: bytes) -> None:
    # Given a model with update rates
    it = rig("a", "b")
    it.model = it.model._replace(fom=parsed(("best.xml", best(air))))
    aircraft = it.aircraft_of("a", "b")
    value = ((it.position, b"p"),)
    assert sent(it, "a", "update_attribute_values", aircraft, value)[0].rates == ()
    # When a federate subscribes with one; Expect what goes by best effort to know it
    it.call("b", "subscribe_object_class_attributes", it.aircraft, (it.position, it.callsign), "Rare")
    found = sent(it, "a", "update_attribute_values", aircraft, (*value, (it.callsign, b"c")))
    assert [(each.is_best_effort, each.rates) for each in found] == [(True, (0.001,)), (False, ())]
    assert it.call("b", "get_update_rate_value_for_attribute", aircraft, it.position) == 0.001
    assert it.call("a", "get_update_rate_value_for_attribute", aircraft, it.position) == 0.0
    # and nothing of it when it subscribes without one, or no more
    for again in (("subscribe_object_class_attributes", it.aircraft, (it.position, it.callsign)),
                  ("unsubscribe_object_class", it.aircraft)):  # fmt: skip
        it.call("b", "subscribe_object_class_attributes", it.aircraft, (it.position, it.callsign), "Rare", True)
        it.call("b", *again)
        assert not it.execution.declared.rates
        assert not it.execution.declared.passive
    with pytest.raises(exc.InvalidUpdateRateDesignator, match="Rarely"):
        it.call("b", "subscribe_object_class_attributes", it.aircraft, (it.position,), "Rarely")


def test_update_rates_of_modules_are_checked() -> None:
    def module(name: str, rate: str) -> bytes:
        row = f"<updateRate><name>{name}</name><rate>{rate}</rate></updateRate>"
        return f"<objectModel><updateRates>{row}</updateRates></objectModel>".encode()

    fom = parsed(("a", module("Low", "2.5")), ("b", module("High", "60")), ("c", module("Low", "2.50")))
    assert dict(fom.rates) == {"Low": 2.5, "High": 60.0}
    assert fom.digest != parsed(("a", module("Low", "2"))).digest
    with pytest.raises(exc.InconsistentFom, match="'Low'"):
        parsed(("a", module("Low", "2")), ("b", module("Low", "3")))
    for name, rate in (("", "1"), ("Low", "often"), ("Low", "-1"), ("Low", "inf"), ("Low", "1e999")):
        with pytest.raises(exc.ErrorReadingFom, match="a number a second"):
            parsed(("a", module(name, rate)))


# -- over sockets ---------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_rates_and_types_at_an_rti(federation: Any, air: bytes) -> None:
    server = RtiServer(federation.config, lease=30.0)
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("best.xml", best(air))])
    one, other = (Federate(federation.config, name) for name in ("one", "other"))
    for each in (one, other):
        federation.stack.callback(each.rti.disconnect)
    rti = one.rti
    cls, radio = rti.get_object_class_handle("Vehicle.Aircraft"), rti.get_interaction_class_handle("Radio")
    position, callsign = (rti.get_attribute_handle(cls, name) for name in ("position", "callsign"))
    assert (rti.get_update_rate_value("Rare"), rti.get_update_rate_value("All")) == (0.001, 0.0)
    with pytest.raises(exc.InvalidUpdateRateDesignator, match="Rear"):
        rti.get_update_rate_value("Rear")
    # Given a federate that wants one value in a thousand seconds
    other.rti.subscribe_object_class_attributes(cls, [position, callsign], rate="Rare")
    rti.publish_object_class_attributes(cls, [position, callsign])
    aircraft = rti.register_object_instance(cls)
    # When three are sent, and then one of what goes reliably
    for value in (b"1", b"2", b"3"):
        rti.update_attribute_values(aircraft, {position: value})
    rti.update_attribute_values(aircraft, {callsign: b"4"})
    # Expect the first, and what goes reliably; and the others to be counted
    assert [other.until("reflect_attribute_values")[2] for _ in range(2)] == [((position, b"1"),), ((callsign, b"4"),)]
    assert other.rti.get_update_rate_value_for_attribute(aircraft, position) == 0.001
    assert server.status()["federations"][0]["reduced"] == 2
    # When the owner sends it reliably; Expect all of it
    reliable = rti.get_transportation_type_handle("HLAreliable")
    rti.request_attribute_transportation_type_change(aircraft, [position], reliable)
    assert one.until("confirm_attribute_transportation_type_change")[1:] == (aircraft, (position,), reliable)
    for value in (b"5", b"6"):
        rti.update_attribute_values(aircraft, {position: value})
        assert other.until("reflect_attribute_values")[2] == ((position, value),)
    other.rti.query_attribute_transportation_type(aircraft, position)
    assert other.until("report_attribute_transportation_type")[1:] == (aircraft, position, reliable)
    rti.publish_interaction_class(radio)
    rti.request_interaction_transportation_type_change(radio, BEST_EFFORT)
    assert one.until("confirm_interaction_transportation_type_change")[1:] == (radio, BEST_EFFORT)
    other.rti.query_interaction_transportation_type(one.handle, radio)
    assert other.until("report_interaction_transportation_type")[1:] == (one.handle, radio, BEST_EFFORT)
    # and who subscribes passively to be no reason to send
    rti.set_interaction_relevance_advisory_switch(True)
    other.rti.subscribe_interaction_class(radio, passive=True)
    rti.query_interaction_transportation_type(one.handle, radio)
    one.until("report_interaction_transportation_type")
    assert one.told.log == []
    other.rti.subscribe_interaction_class(radio)
    assert one.until("turn_interactions_on")[1] == radio
