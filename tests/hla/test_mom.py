"""The management object model: what a monitor sees of a federation, and what it changes (IEEE 1516.1-2010, 11)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from jbi_pubsub.hla import rti
from jbi_pubsub.hla.exceptions import RtiError
from jbi_pubsub.hla.execution import FederationModel
from jbi_pubsub.hla.fom import BEST_EFFORT, PRIVILEGE, parsed
from jbi_pubsub.hla.manager import MomManager
from jbi_pubsub.hla.mom import FEDERATE, FEDERATION, MIM, octets, with_mim
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.support import FLOAT_TIME
from tests.hla.models import SHIPS

Told = list[tuple[str, dict[str, Any]]]


class Watched:
    """A federation without a process, with its management object model; federates go by their names."""

    def __init__(self, air: bytes, *names: str) -> None:
        self.fom = with_mim([Module("air.xml", air)])
        self.model = FederationModel(self.fom)
        self.manager = MomManager(self.model, rti.created("Air"))
        self.execution = self.manager.view.execution
        self.handles: dict[str, int] = {}
        self.told: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.may_act = True
        for name in names:
            self.handles[name] = self.call("", rti.JOIN, name)

    def call(self, name: str, service: str, *given: Any) -> Any:
        """The answer of a service that a federate calls."""
        federate, before = self.handles.get(name, 0), self.execution
        try:
            step = rti.call(self.model, before, federate, service, *given)
        except RtiError as exc:
            self._take(self.manager.refused(before, federate, service, exc))
            raise
        step = self.manager.after(federate, service, given, step, may_act=self.may_act)
        self._take(step)
        return step.answer

    def _take(self, step: Any) -> None:
        self.execution = step.execution
        names = {handle: name for name, handle in self.handles.items()}
        for to, callback in step.told:
            self.told[names.get(to, "")].append((callback.name, *callback.arguments))

    def tick(self, now: float) -> None:
        self._take(self.manager.tick(self.execution, now))

    def watch(self, name: str, cls: str = "HLAfederate") -> None:
        """A federate subscribes to all that the RTI tells of federates, or of the federation."""
        handle = self.fom.object_class(f"HLAmanager.{cls}")
        self.call(name, "subscribe_object_class_attributes", handle, self.fom.objects[handle - 1].members)

    def objects(self, name: str) -> dict[str, int]:
        """Instances that a federate has discovered, by their names."""
        return {each[3]: each[1] for each in self.told[name] if each[0] == "discover_object_instance"}

    def reflected(self, name: str, instance: int) -> dict[str, Any]:
        """Values that a federate has got of an instance, decoded; they are forgotten."""
        found, left = {}, []
        for each in self.told[name]:
            if each[:2] == ("reflect_attribute_values", instance):
                found.update({m.name: self.fom.codec(m.data_type).decode(v)
                              for a, v in each[2] for m in [self.fom.attributes[a - 1]]})  # fmt: skip
            else:
                left.append(each)
        self.told[name] = left
        return found

    def values(self, name: str, instance: int) -> dict[str, Any]:
        """All values of an instance, which a federate asks for."""
        known = self.execution.instances.by_handle[instance].known[self.handles[name]]
        self.call(name, "request_attribute_value_update", instance, self.fom.objects[known - 1].members)
        return self.reflected(name, instance)

    def send(self, name: str, interaction: str, **given: Any) -> Told:
        """The reports that a federate gets for an interaction that it sends: names, and decoded parameters."""
        cls = self.fom.interaction_class(f"HLAmanager.{interaction}")
        for each in self.fom.interactions:
            if ".HLAreport." in each.name:
                self.call(name, "subscribe_interaction_class", each.handle)
        self.call(name, "publish_interaction_class", cls)
        parameters = {p: self.fom.parameters[p - 1] for p in self.fom.interactions[cls - 1].members}
        values = [
            (p, self.fom.codec(m.data_type).encode(given[m.name])) for p, m in parameters.items() if m.name in given
        ]
        self.told[name].clear()
        self.call(name, "send_interaction", cls, values)
        return self.reports(name)

    def reports(self, name: str) -> Told:
        found = []
        for each in self.told[name]:
            if each[0] == "receive_interaction":
                parameters = ((self.fom.parameters[p - 1], v) for p, v in each[2])
                report = self.fom.interactions[each[1] - 1].name.rpartition(".HLAreport.")[2]
                found.append((report, {m.name: self.fom.codec(m.data_type).decode(v) for m, v in parameters}))
        return found


@pytest.fixture
def watched(air: bytes) -> Watched:
    """A federation with two federates and a monitor."""
    return Watched(air, "flight", "radar", "monitor")


# -- objects --------------------------------------------------------------------------------------------------------


def test_a_monitor_discovers_the_federation_and_an_object_for_each_federate(watched: Watched) -> None:
    watched.watch("monitor", "HLAfederation")
    watched.watch("monitor")
    names = {f"HLAmanager.HLAfederate-{handle}" for handle in watched.handles.values()}
    assert watched.objects("monitor").keys() == names | {"HLAmanager.HLAfederation"}
    # Expect one more for who joins, and one less for who resigns; and who they are to be told without asking
    watched.told.clear()
    watched.handles["late"] = watched.call("", rti.JOIN, "late")
    [(name, handle)] = watched.objects("monitor").items()
    assert name == f"HLAmanager.HLAfederate-{watched.handles['late']}"
    federation = watched.execution.instances.by_name["HLAmanager.HLAfederation"]
    whole = [octets(each) for each in sorted(watched.handles.values())]
    assert watched.reflected("monitor", federation) == {"HLAfederatesInFederation": whole}
    watched.call("late", rti.LEAVE, "no_action")
    assert ("remove_object_instance", handle, b"", None, 0) in watched.told["monitor"]
    assert watched.reflected("monitor", federation) == {"HLAfederatesInFederation": whole[:-1]}


def test_a_monitor_asks_for_all_that_is_known_of_a_federate(watched: Watched) -> None:
    aircraft, radio = watched.fom.object_class("Vehicle.Aircraft"), watched.fom.interaction_class("Radio")
    position = watched.fom.attribute(aircraft, "position")
    watched.call("flight", "publish_object_class_attributes", aircraft, [position])
    watched.call("radar", "subscribe_object_class_attributes", aircraft, [position])
    watched.call("flight", "publish_interaction_class", radio)
    watched.call("radar", "subscribe_interaction_class", radio)
    # Given a federate that has registered, updated and sent, regulates and asks for a time
    plane = watched.call("flight", "register_object_instance", aircraft, "LH1")
    for _ in range(3):
        watched.call("flight", "update_attribute_values", plane, [(position, b"x" * 8)])
    watched.call("flight", "send_interaction", radio, [])
    watched.call("flight", "enable_time_regulation", 2.0)
    watched.call("radar", "enable_time_constrained")
    watched.call("radar", "time_advance_request", 5.0)
    watched.watch("monitor")
    flight, radar = (
        watched.values("monitor", watched.objects("monitor")[f"HLAmanager.HLAfederate-{watched.handles[each]}"])
        for each in ("flight", "radar")
    )
    assert flight.keys() == FEDERATE.keys()
    assert flight | {
        "HLAfederateHandle": octets(watched.handles["flight"]), "HLAfederateName": "flight",
        "HLAtimeRegulating": "HLAtrue", "HLAtimeConstrained": "HLAfalse",
        "HLAfederateState": "ActiveFederate", "HLAtimeManagerState": "TimeGranted",
        "HLAlogicalTime": time(0.0), "HLAlookahead": time(2.0), "HLAGALT": time(float("inf")), "HLAupdatesSent": 3,
        "HLAinteractionsSent": 1, "HLAobjectInstancesThatCanBeDeleted": 1, "HLAobjectInstancesUpdated": 1,
        "HLAobjectInstancesRegistered": 1, "HLAreflectionsReceived": 0,
    } == flight  # fmt: skip
    assert radar | {
        "HLAtimeConstrained": "HLAtrue", "HLAtimeManagerState": "TimeAdvancing", "HLAlookahead": b"",
        "HLAGALT": time(2.0), "HLALITS": time(2.0), "HLAreflectionsReceived": 3, "HLAobjectInstancesReflected": 1,
        "HLAinteractionsReceived": 1, "HLAobjectInstancesDiscovered": 1, "HLATSOlength": 0,
    } == radar  # fmt: skip


def test_a_monitor_asks_for_all_that_is_known_of_the_federation(watched: Watched) -> None:
    watched.watch("monitor", "HLAfederation")
    [handle] = watched.objects("monitor").values()
    watched.call("flight", "enable_time_regulation", 1.0)
    watched.call("flight", "request_federation_save", "tonight", 20.0)
    values = watched.values("monitor", handle)
    assert values.keys() == FEDERATION.keys()
    assert values | {
        "HLAfederationName": "Air", "HLAMIMdesignator": MIM.name, "HLAFOMmoduleDesignatorList": ["air.xml"],
        "HLAtimeImplementationName": "HLAfloat64Time", "HLAlastSaveName": "", "HLAnextSaveName": "tonight",
        "HLAnextSaveTime": FLOAT_TIME.codec.encode(20.0), "HLAautoProvide": "Disabled",
    } == values  # fmt: skip


def test_a_monitor_is_told_what_changes_and_the_rest_every_so_often(watched: Watched) -> None:
    watched.watch("monitor")
    radar = watched.objects("monitor")[f"HLAmanager.HLAfederate-{watched.handles['radar']}"]
    # When its states change, expect these to be told at once
    watched.call("radar", "enable_time_constrained")
    watched.call("radar", "enable_asynchronous_delivery")
    changed = {"HLAtimeConstrained": "HLAtrue", "HLAasynchronousDelivery": "HLAtrue"}
    assert watched.reflected("monitor", radar) == changed
    # Expect counts and times when somebody has said how often
    watched.tick(100.0)
    assert watched.reflected("monitor", radar) == {}
    federate = octets(watched.handles["radar"])
    timing = "HLAfederate.HLAadjust.HLAsetTiming"
    assert watched.send("monitor", timing, HLAfederate=federate, HLAreportPeriod=2) == []
    for now, is_told in ((100.0, True), (101.0, False), (102.0, True), (103.0, False)):
        watched.tick(now)
        assert ("HLAlogicalTime" in watched.reflected("monitor", radar)) == is_told, now
    watched.send("monitor", timing, HLAfederate=federate, HLAreportPeriod=0)
    watched.tick(200.0)
    assert watched.reflected("monitor", radar) == {}


def test_what_a_save_keeps_is_what_a_restore_brings_back(watched: Watched) -> None:
    watched.watch("monitor")
    before = watched.objects("monitor")
    save(watched)
    watched.call("radar", rti.LEAVE, "no_action")
    watched.handles["radar"] = watched.call("", rti.JOIN, "radar")
    watched.call("flight", "request_federation_restore", "L")
    for each in watched.handles:
        watched.call(each, "federate_restore_complete")
    watched.handles = dict(watched.execution.members.names)
    assert {each: watched.execution.instances.by_name[each] for each in before} == before
    assert set(watched.execution.managed.instances) == {0, *watched.handles.values()}


def test_counts_stay_those_of_a_federate_that_gets_its_handle_of_before(busy: Watched) -> None:
    # Given a federation that is saved, whose federates leave and come again in another order
    save(busy)
    for each in ("flight", "radar"):
        busy.call(each, rti.LEAVE, "delete_objects_then_divest")
    for each in ("radar", "flight"):
        busy.handles[each] = busy.call("", rti.JOIN, each)
    radio = busy.fom.interaction_class("Radio")
    busy.call("flight", "publish_interaction_class", radio)
    for _ in range(3):
        busy.call("flight", "send_interaction", radio, [])
    busy.manager.view.hosts[busy.handles["flight"]] = "far"
    busy.call("radar", "request_federation_restore", "L")
    # When it is restored, and they have other handles
    before = dict(busy.handles)
    for each in busy.handles:
        busy.call(each, "federate_restore_complete")
    busy.handles = dict(busy.execution.members.names)
    assert before != busy.handles
    # Expect what they have done to be told as theirs, and where they are
    busy.call("flight", "send_interaction", radio, [])
    told = {each["name"]: (each["interactionsSent"], each["host"]) for each in busy.manager.facts()}
    assert told == {"flight": (4, "far"), "radar": (0, ""), "monitor": (0, "")}


def save(watched: Watched) -> None:
    watched.call("flight", "request_federation_save", "L")
    for each in watched.handles:
        watched.call(each, "federate_save_begun")
        watched.call(each, "federate_save_complete")


def test_nothing_is_told_while_a_federation_is_saved(watched: Watched) -> None:
    watched.watch("monitor")
    watched.watch("monitor", "HLAfederation")
    federation = watched.objects("monitor")["HLAmanager.HLAfederation"]
    flight = octets(watched.handles["flight"])
    watched.send("monitor", "HLAfederate.HLAadjust.HLAsetTiming", HLAfederate=flight, HLAreportPeriod=1)
    watched.call("flight", "request_federation_save", "L")
    watched.told.clear()
    watched.tick(100.0)
    watched.call("radar", rti.LEAVE, "no_action")
    assert [each for each in watched.told["monitor"] if each[0] == "reflect_attribute_values"] == []
    for each in ("flight", "monitor"):
        watched.call(each, "federate_save_begun")
        watched.call(each, "federate_save_complete")
    # Expect what has changed meanwhile to be told after it
    assert ("federation_not_saved", "L", "RESIGNED") in watched.told["monitor"]
    assert list(watched.reflected("monitor", federation)) == ["HLAfederatesInFederation"]


# -- requests -------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(watched: Watched) -> Watched:
    """One where a flight has an aircraft, which the radar sees, and both talk."""
    aircraft, radio = watched.fom.object_class("Vehicle.Aircraft"), watched.fom.interaction_class("Radio")
    position = watched.fom.attribute(aircraft, "position")
    watched.call("flight", "publish_object_class_attributes", aircraft, [position])
    watched.call("radar", "subscribe_object_class_attributes", aircraft, [position])
    watched.call("flight", "publish_interaction_class", radio)
    watched.call("radar", "subscribe_interaction_class", radio)
    watched.call("flight", "register_object_instance", aircraft, "LH1")
    watched.call("flight", "update_attribute_values", watched.execution.instances.by_name["LH1"], [(position, b"1")])
    watched.call("flight", "send_interaction", radio, [])
    return watched


AIRCRAFT = "HLAobjectClass"


def test_instances_that_are_gone_are_counted_and_not_remembered(busy: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a federation that remembers few instances that are gone
    monkeypatch.setattr("jbi_pubsub.hla.mom.GONE_MOST", 10)
    aircraft = busy.fom.object_class("Vehicle.Aircraft")
    position = busy.fom.attribute(aircraft, "position")
    # When many are registered, updated and deleted, and the first one is there all the time
    for number in range(100):
        flying = busy.call("flight", "register_object_instance", aircraft, f"LH{number + 2}")
        busy.call("flight", "update_attribute_values", flying, [(position, b"1")])
        busy.call("flight", "delete_object_instance", flying, b"")
    busy.call("flight", "update_attribute_values", busy.execution.instances.by_name["LH1"], [(position, b"2")])
    # Expect each to be counted once, and few to be remembered
    view = busy.manager.view
    assert (view.total(busy.handles["flight"], "updated"), view.total(busy.handles["radar"], "reflected")) == (101, 101)
    assert len(view._met) <= 2 * len(view.execution.instances.by_handle) + 10


@pytest.mark.parametrize(
    ("who", "request_", "reports"),
    [
        ("flight", "Publications", {"ObjectClassPublication": {"HLAnumberOfClasses": 1, "HLAobjectClass": "aircraft",
            "HLAattributeList": ["position"]}, "InteractionPublication": {"HLAinteractionClassList": ["radio"]}}),
        ("radar", "Publications", {"ObjectClassPublication": {"HLAnumberOfClasses": 0, "HLAobjectClass": b"",
            "HLAattributeList": []}, "InteractionPublication": {"HLAinteractionClassList": []}}),
        ("radar", "Subscriptions", {
            "ObjectClassSubscription": {"HLAnumberOfClasses": 1, "HLAobjectClass": "aircraft", "HLAactive": "HLAtrue",
                "HLAmaxUpdateRate": "", "HLAattributeList": ["position"]},
            "InteractionSubscription": {
                "HLAinteractionClassList": [{"HLAinteractionClass": "radio", "HLAactive": "HLAtrue"}]}}),
        *[(who, name, {name: {"HLAobjectInstanceCounts": [{"HLAobjectClass": "aircraft", "HLAcount": 1}]}})
          for who, name in (("flight", "ObjectInstancesThatCanBeDeleted"), ("flight", "ObjectInstancesUpdated"),
                            ("radar", "ObjectInstancesReflected"))],
        *[(who, name, {name: [
            {"HLAtransportation": "HLAreliable", part: [{"HLAobjectClass": "aircraft", "HLAcount": 1}]},
            {"HLAtransportation": "HLAbestEffort", part: []}]})
          for who, name, part in (("flight", "UpdatesSent", "HLAupdateCounts"),
                                  ("radar", "ReflectionsReceived", "HLAreflectCounts"))],
        *[(who, name, {name: [
            {"HLAtransportation": "HLAreliable", "HLAinteractionCounts": [
                {"HLAinteractionClass": "radio", "HLAinteractionCount": 1}]},
            {"HLAtransportation": "HLAbestEffort", "HLAinteractionCounts": []}]})
          for who, name in (("flight", "InteractionsSent"), ("radar", "InteractionsReceived"))],
        ("flight", "ObjectInstanceInformation", {"ObjectInstanceInformation": {"HLAobjectInstance": "LH1",
            "HLAownedInstanceAttributeList": ["privilege", "position"], "HLAregisteredClass": "aircraft",
            "HLAknownClass": "aircraft"}}),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_each_request_about_a_federate_has_its_reports(busy: Watched, who: str, request_: str, reports: Any) -> None:
    aircraft = busy.fom.object_class("Vehicle.Aircraft")
    said = {
        "aircraft": octets(aircraft), "radio": octets(busy.fom.interaction_class("Radio")),
        **{name: octets(busy.fom.attribute(aircraft, each)) for name, each in
           (("position", "position"), ("privilege", PRIVILEGE))},
        "LH1": octets(busy.execution.instances.by_name["LH1"]),
    }  # fmt: skip

    def meant(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: meant(each) for key, each in value.items()}
        return list(map(meant, value)) if isinstance(value, list) else said.get(value, value)

    federate = octets(busy.handles[who])
    given = {"HLAfederate": federate, "HLAobjectInstance": said["LH1"]}
    found = busy.send("monitor", f"HLAfederate.HLArequest.HLArequest{request_}", **given)
    wanted = [
        (f"HLAreport{name}", {"HLAfederate": federate, **meant(each)})
        for name, values in reports.items() for each in (values if isinstance(values, list) else [values])
    ]  # fmt: skip
    assert found == wanted


def test_a_monitor_is_told_which_subscriptions_are_passive(busy: Watched) -> None:
    # Given a federate that subscribes to an attribute and, passively, to another one and to interactions
    aircraft, radio = busy.fom.object_class("Vehicle.Aircraft"), busy.fom.interaction_class("Radio")
    callsign = busy.fom.attribute(aircraft, "callsign")
    busy.call("radar", "subscribe_object_class_attributes", aircraft, [callsign], "", True)
    busy.call("radar", "subscribe_interaction_class", radio, True)
    # Expect the attributes of the class to be told apart
    asked = "HLAfederate.HLArequest.HLArequestSubscriptions"
    *classes, (_, heard) = busy.send("monitor", asked, HLAfederate=octets(busy.handles["radar"]))
    told = [(each["HLAnumberOfClasses"], each["HLAactive"], each["HLAattributeList"]) for _, each in classes]
    position = busy.fom.attribute(aircraft, "position")
    assert told == [(1, "HLAtrue", [octets(position)]), (1, "HLAfalse", [octets(callsign)])]
    assert heard["HLAinteractionClassList"] == [{"HLAinteractionClass": octets(radio), "HLAactive": "HLAfalse"}]


def test_a_monitor_is_told_of_modules_that_a_federate_brings(watched: Watched) -> None:
    watched.watch("monitor", "HLAfederation")
    [federation] = watched.objects("monitor").values()
    before = watched.fom.layers
    grown = parsed(*before[0], added=[[("ships.xml", SHIPS)]])
    # When the model grows, and who has brought that joins
    watched.model = watched.model._replace(fom=grown)
    watched.manager.extend(watched.model)
    watched.call("", rti.JOIN, "late")
    # Expect the modules to be told without asking, once
    told = watched.reflected("monitor", federation)
    assert told.keys() == {"HLAfederatesInFederation", "HLAFOMmoduleDesignatorList"}
    assert told["HLAFOMmoduleDesignatorList"] == ["air.xml", "ships.xml"]
    watched.call("", rti.JOIN, "later")
    assert watched.reflected("monitor", federation).keys() == {"HLAfederatesInFederation"}


def test_a_monitor_gets_the_modules_and_the_mim(watched: Watched, air: bytes) -> None:
    asked = "HLAfederation.HLArequest.HLArequest{}".format
    [(report, values)] = watched.send("monitor", asked("FOMmoduleData"), HLAFOMmoduleIndicator=0)
    assert (report, values) == (
        "HLAreportFOMmoduleData",
        {"HLAFOMmoduleIndicator": 0, "HLAFOMmoduleData": air.decode()},
    )
    [(report, values)] = watched.send("monitor", asked("MIMdata"))
    assert (report, values) == ("HLAreportMIMdata", {"HLAMIMdata": MIM.data.decode()})


def test_a_monitor_sees_who_is_where_of_a_synchronization_point(watched: Watched) -> None:
    asked = "HLAfederation.HLArequest.HLArequest{}".format
    watched.call("flight", "register_federation_synchronization_point", "ready")
    watched.call("radar", "synchronization_point_achieved", "ready")
    [(_, values)] = watched.send("monitor", asked("SynchronizationPoints"))
    assert values == {"HLAsyncPoints": ["ready"]}
    [(_, values)] = watched.send("monitor", asked("SynchronizationPointStatus"))
    assert values["HLAsyncPointName"] == "ready"
    states = {each["HLAfederate"]: each["HLAfederateSynchStatus"] for each in values["HLAsyncPointFederates"]}
    assert states.pop(octets(watched.handles["radar"])) == "WaitingForRestOfFederation"
    assert set(states.values()) == {"MovingToSynchPoint"}


# -- what a monitor changes -----------------------------------------------------------------------------------------


def test_a_monitor_makes_federates_call_services(busy: Watched) -> None:
    radar, aircraft = octets(busy.handles["radar"]), busy.fom.object_class("Vehicle.Aircraft")
    service = "HLAfederate.HLAservice.HLA{}".format
    instance = octets(busy.execution.instances.by_name["LH1"])
    assert busy.send("monitor", service("enableTimeRegulation"), HLAfederate=radar, HLAlookahead=time(3.0)) == []
    assert busy.execution.clock.pace(busy.handles["radar"]).lookahead == 3.0
    busy.send(
        "monitor", service("unsubscribeObjectClassAttributes"), HLAfederate=radar, HLAobjectClass=octets(aircraft)
    )
    assert busy.handles["radar"] not in busy.execution.declared.subscribed
    flight = octets(busy.handles["flight"])
    position = [octets(busy.fom.attribute(aircraft, "position"))]
    busy.send("monitor", service("changeAttributeOrderType"), HLAfederate=flight, HLAobjectInstance=instance,
              HLAattributeList=position, HLAsendOrder="Receive")  # fmt: skip
    assert set(busy.execution.instances.orders.values()) == {"receive"}
    busy.send("monitor", service("requestAttributeTransportationTypeChange"), HLAfederate=flight,
              HLAobjectInstance=instance, HLAattributeList=position, HLAtransportation="HLAbestEffort")  # fmt: skip
    assert set(busy.execution.instances.transports.values()) == {BEST_EFFORT}
    busy.send("monitor", service("deleteObjectInstance"), HLAfederate=flight, HLAobjectInstance=instance, HLAtag=b"bye")
    assert busy.told["radar"][-1][0] == "remove_object_instance"
    busy.send("monitor", service("resignFederationExecution"), HLAfederate=radar, HLAresignAction="NoAction")
    assert busy.handles["radar"] not in busy.execution.members.joined


def time(value: float) -> bytes:
    return FLOAT_TIME.codec.encode(value)


def test_a_monitor_gives_attributes_to_a_federate_and_takes_them(busy: Watched) -> None:
    aircraft, instance = busy.fom.object_class("Vehicle.Aircraft"), busy.execution.instances.by_name["LH1"]
    position, radar = busy.fom.attribute(aircraft, "position"), busy.handles["radar"]
    busy.call("radar", "publish_object_class_attributes", aircraft, [position])
    given = {"HLAfederate": octets(radar), "HLAobjectInstance": octets(instance), "HLAattribute": octets(position)}
    modify = "HLAfederate.HLAadjust.HLAmodifyAttributeState"
    assert busy.send("monitor", modify, **given, HLAattributeState="Owned") == []
    assert busy.execution.owned.owner(instance, position) == radar
    assert busy.told["radar"][-1] == ("attribute_ownership_acquisition_notification", instance, (position,), b"")
    assert busy.send("monitor", modify, **given, HLAattributeState="Unowned") == []
    assert busy.execution.owned.owner(instance, position) == 0


def test_a_monitor_gives_what_others_own_and_wait_for(busy: Watched) -> None:
    # Given an aircraft of the flight, which the radar and another one wait for
    aircraft, instance = busy.fom.object_class("Vehicle.Aircraft"), busy.execution.instances.by_name["LH1"]
    position = busy.fom.attribute(aircraft, "position")
    busy.handles["tower"] = busy.call("", rti.JOIN, "tower")
    for each in ("tower", "radar"):
        busy.call(each, "subscribe_object_class_attributes", aircraft, [position])
        busy.call(each, "publish_object_class_attributes", aircraft, [position])
        busy.call(each, "attribute_ownership_acquisition", instance, [position], b"")
    of = {"HLAobjectInstance": octets(instance), "HLAattribute": octets(position), "HLAattributeState": "Owned"}
    # When a monitor gives it to the second of them
    modify = "HLAfederate.HLAadjust.HLAmodifyAttributeState"
    assert busy.send("monitor", modify, HLAfederate=octets(busy.handles["radar"]), **of) == []
    # Expect it to own it, and to be asked by the first; and what can't be to be said
    assert busy.execution.owned.owner(instance, position) == busy.handles["radar"]
    notified = ("attribute_ownership_acquisition_notification", instance, (position,), b"")
    asked = ("request_attribute_ownership_release", instance, (position,), b"")
    assert busy.told["radar"][-2:] == [notified, asked]
    [(report, values)] = busy.send("monitor", modify, HLAfederate=octets(busy.handles["monitor"]), **of)
    assert (report, "ObjectInstanceNotKnown" in values["HLAexception"]) == ("HLAreportMOMexception", True)
    assert busy.execution.owned.owner(instance, position) == busy.handles["radar"]


def test_nobody_gives_away_what_the_rti_tells(watched: Watched) -> None:
    # Given a federate that publishes what the RTI tells
    watched.watch("radar")
    federate = watched.fom.object_class("HLAmanager.HLAfederate")
    name = watched.fom.attribute(federate, "HLAfederateName")
    watched.call("radar", "publish_object_class_attributes", federate, [name])
    instance = watched.objects("radar")[f"HLAmanager.HLAfederate-{watched.handles['radar']}"]
    # When a monitor gives it that; Expect it to stay the RTI's
    given = {"HLAfederate": octets(watched.handles["radar"]), "HLAobjectInstance": octets(instance)}
    modify = "HLAfederate.HLAadjust.HLAmodifyAttributeState"
    [(report, _)] = watched.send("monitor", modify, **given, HLAattribute=octets(name), HLAattributeState="Owned")
    assert report == "HLAreportMOMexception"
    assert watched.values("radar", instance)["HLAfederateName"] == "radar"


def test_a_monitor_hears_that_what_comes_later_is_in_scope(watched: Watched) -> None:
    watched.call("monitor", "set_advisory_switch", "attribute_scope", True)
    watched.watch("monitor")
    watched.told.clear()
    watched.handles["tower"] = watched.call("", rti.JOIN, "tower")
    told = [each for each in watched.told["monitor"] if each[0] in ("discover_object_instance", "attributes_in_scope")]
    assert [each[0] for each in told] == ["discover_object_instance", "attributes_in_scope"]
    assert told[0][1] == told[1][1]


@pytest.mark.parametrize("is_active", [True, False])
def test_a_monitor_says_whether_a_subscription_is_active(busy: Watched, *, is_active: bool) -> None:
    aircraft, radio = busy.fom.object_class("Vehicle.Aircraft"), busy.fom.interaction_class("Radio")
    of = {"HLAfederate": octets(busy.handles["monitor"]), "HLAactive": is_active}
    service = "HLAfederate.HLAservice.HLAsubscribe{}".format
    attributes = [octets(busy.fom.attribute(aircraft, "position"))]
    busy.send("monitor", service("ObjectClassAttributes"), HLAobjectClass=octets(aircraft),
              HLAattributeList=attributes, **of)  # fmt: skip
    busy.send("monitor", service("InteractionClass"), HLAinteractionClass=octets(radio), **of)
    monitor, passive = busy.handles["monitor"], busy.execution.declared.passive
    assert list(busy.execution.declared.subscribed[monitor]) == [aircraft]
    assert {each[:2] for each in passive.get(monitor, ())} == (set() if is_active else {("o", aircraft), ("i", radio)})


def test_a_monitor_switches(busy: Watched) -> None:
    radar = octets(busy.handles["radar"])
    switches = "HLAfederate.HLAadjust.HLAsetSwitches"
    assert busy.send("monitor", switches, HLAfederate=radar, HLAconveyProducingFederate="Enabled") == []
    assert busy.handles["radar"] in busy.execution.declared.conveyed
    # With auto provide owners are asked for values when somebody discovers their instance
    assert busy.send("monitor", "HLAfederation.HLAadjust.HLAsetSwitches", HLAautoProvide="Enabled") == []
    aircraft = busy.fom.object_class("Vehicle.Aircraft")
    position = busy.fom.attribute(aircraft, "position")
    busy.call("monitor", "subscribe_object_class_attributes", aircraft, [position])
    instance = busy.execution.instances.by_name["LH1"]
    assert busy.told["flight"][-1] == ("provide_attribute_value_update", instance, (position,), b"")
    # and those of the RTI are told
    busy.watch("monitor", "HLAfederation")
    assert busy.reflected("monitor", busy.objects("monitor")["HLAmanager.HLAfederation"])["HLAfederationName"] == "Air"


def test_exceptions_of_a_federate_are_reported_where_a_monitor_asks_for_them(watched: Watched) -> None:
    radar = octets(watched.handles["radar"])
    reporting = "HLAfederate.HLAadjust.HLAsetExceptionReporting"
    watched.send("monitor", reporting, HLAfederate=radar, HLAreportingState=True)
    with pytest.raises(RtiError):
        watched.call("radar", "query_lookahead")
    [(report, values)] = watched.reports("monitor")
    assert (report, values["HLAfederate"], values["HLAservice"]) == ("HLAreportException", radar, "query_lookahead")
    assert "TimeRegulationIsNotEnabled" in values["HLAexception"]
    watched.send("monitor", reporting, HLAfederate=radar, HLAreportingState=False)
    with pytest.raises(RtiError):
        watched.call("radar", "query_lookahead")
    assert watched.reports("monitor") == []


@pytest.mark.parametrize(
    ("interaction", "given", "why", "is_parameter"),
    [
        ("HLAfederate.HLArequest.HLArequestPublications", {}, "no federate 0", False),
        ("HLAfederate.HLArequest.HLArequestPublications", {"HLAfederate": b"x"}, "8 octets", True),
        ("HLAfederate.HLArequest.HLArequestObjectInstanceInformation", {"HLAfederate": 0}, "HLAobjectInstance", True),
        ("HLAfederation.HLArequest.HLArequestFOMmoduleData", {"HLAFOMmoduleIndicator": 7}, "of 1 modules", True),
        ("HLAfederate.HLAservice.HLAdisableTimeRegulation", {"HLAfederate": 0}, "TimeRegulationIsNotEnabled", False),
        ("HLAfederate.HLAservice.HLAresignFederationExecution", {"HLAfederate": 0}, "arguments", True),
        ("HLAfederate.HLAadjust.HLAsetServiceReporting", {"HLAfederate": 0}, "not there", False),
        ("HLAfederate.HLAadjust.HLAsetTiming", {"HLAfederate": 0}, "HLAreportPeriod", True),
    ],
)  # fmt: skip
def test_what_the_rti_does_not_do_is_said_to_who_asked_for_it(
    watched: Watched, interaction: str, given: dict[str, Any], why: str, is_parameter: bool
) -> None:
    said = {name: octets(watched.handles["radar"]) if value == 0 and name == "HLAfederate" else value
            for name, value in given.items()}  # fmt: skip
    execution = watched.execution
    [(report, values)] = watched.send("monitor", interaction, **said)
    assert report == "HLAreportMOMexception"
    assert values["HLAfederate"] == octets(watched.handles["monitor"])
    assert values["HLAservice"] == f"HLAinteractionRoot.HLAmanager.{interaction}"
    assert why in values["HLAexception"]
    assert values["HLAparameterError"] == ("HLAtrue" if is_parameter else "HLAfalse")
    assert watched.execution.clock == execution.clock


def test_who_may_not_administer_the_federation_sees_and_changes_nothing(watched: Watched) -> None:
    watched.may_act = False
    radar = octets(watched.handles["radar"])
    for each in ("HLAservice.HLAresignFederationExecution", "HLAadjust.HLAsetTiming"):
        said = {"HLAfederate": radar, "HLAresignAction": "NoAction", "HLAreportPeriod": 1}
        [(report, values)] = watched.send("monitor", f"HLAfederate.{each}", **said)
        assert (report, "may not administer" in values["HLAexception"]) == ("HLAreportMOMexception", True)
    assert watched.handles["radar"] in watched.execution.members.joined
    found = watched.send("monitor", "HLAfederate.HLArequest.HLArequestPublications", HLAfederate=radar)
    assert [report for report, _ in found] == ["HLAreportObjectClassPublication", "HLAreportInteractionPublication"]


# -- models ---------------------------------------------------------------------------------------------------------


def test_a_mim_among_the_modules_is_taken_as_it_is(air: bytes) -> None:
    own = Module("own-mim.xml", MIM.data.replace(b"<name>HLAGALT</name>", b"<name>HLAmyGALT</name>"))
    fom = with_mim([Module("air.xml", air), own])
    assert fom.modules == (Module("air.xml", air), own)
    federation = MomManager(FederationModel(fom), rti.created("Air"))
    assert federation.view.mim == own
    assert [name for name, _ in federation.view.modules] == ["air.xml"]


def test_modules_that_contradict_the_mim_are_served_without_it(air: bytes, caplog: pytest.LogCaptureFixture) -> None:
    other = b"""<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010"><dataTypes><simpleDataTypes>
      <simpleData><name>HLAcount</name><representation>HLAinteger64BE</representation></simpleData>
      </simpleDataTypes></dataTypes></objectModel>"""
    modules = [Module("air.xml", air), Module("other.xml", other)]
    fom = with_mim(modules)
    assert fom.modules == tuple(modules)
    assert "no management object model" in caplog.text
    assert MomManager(FederationModel(fom), rti.created("Air")).view.execution == rti.created("Air")
