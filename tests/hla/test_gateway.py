"""A federation as a side of a bridge whose other side is a platform: simulations that are published, and information
objects that are told to simulations."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map
from lxml import etree

from jbi_pubsub.bridge.file import OpenBridge, described
from jbi_pubsub.core.config import Config, PadSection
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.hla import ambassador, datatypes, gateway
from jbi_pubsub.hla.bridge.surrogate import Surrogate
from jbi_pubsub.hla.documents import TEXT_MOST, FederationEvent, metadata, payload, shown
from jbi_pubsub.hla.execution import Callback
from jbi_pubsub.hla.gateway import GatewayAmbassador, _Classes
from jbi_pubsub.hla.mom import with_mim
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.lookup.item import ServiceItem
from tests.hla.parties import Federate

MODEL = b"""<?xml version="1.0"?>
<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
 <objects><objectClass><name>HLAobjectRoot</name>
  <objectClass><name>Vehicle</name>
   <attribute><name>altitude</name><dataType>HLAfloat64BE</dataType></attribute>
   <attribute><name>where</name><dataType>Location</dataType></attribute>
   <objectClass><name>Aircraft</name>
    <attribute><name>callsign</name><dataType>HLAunicodeString</dataType></attribute>
    <attribute><name>image</name><dataType>HLAopaqueData</dataType></attribute>
   </objectClass>
  </objectClass>
  <objectClass><name>Secret</name><attribute><name>key</name></attribute></objectClass>
 </objectClass></objects>
 <interactions><interactionClass><name>HLAinteractionRoot</name>
  <interactionClass><name>Report</name>
   <parameter><name>text</name><dataType>HLAunicodeString</dataType></parameter>
   <parameter><name>level</name><dataType>HLAinteger32BE</dataType></parameter>
   <parameter><name>id</name><dataType>HLAunicodeString</dataType></parameter>
   <parameter><name>document</name></parameter><parameter><name>data</name></parameter>
  </interactionClass>
 </interactionClass></interactions>
 <dataTypes><fixedRecordDataTypes><fixedRecordData><name>Location</name><encoding>HLAfixedRecord</encoding>
  <field><name>X</name><dataType>HLAfloat64BE</dataType></field>
  <field><name>Y</name><dataType>HLAfloat64BE</dataType></field>
 </fixedRecordData></fixedRecordDataTypes></dataTypes>
</objectModel>
"""
FOM = with_mim([Module("model.xml", MODEL)])  # an RTI adds the standard's own module
TYPES = datatypes.parsed(("model.xml", MODEL))
AIRCRAFT = shown(FOM, TYPES, "Air", FOM.objects[FOM.object_class("Vehicle.Aircraft") - 1], is_object=True)
ALTITUDE, CALLSIGN, IMAGE, WHERE = (
    next(handle for handle, (each, _) in AIRCRAFT.members.items() if each == name)
    for name in ("altitude", "callsign", "image", "where")
)
FILE = """
name = "gate"
poll = 0.1
[side.sim]
kind = "hla"
federation = "Air"
classes = ["Vehicle*"]
[[side.sim.take]]
types = ["*.Note"]
interaction = "Report"
parameter.text = "/Note/@text"
parameter.level = "/Note/level"
metadata = "document"
payload = "data"
id = "id"
[side.alpha]
"""


def text_of(text: str) -> bytes:
    """As HLAunicodeString."""
    return struct.pack(">i", len(text.encode("utf-16-be")) // 2) + text.encode("utf-16-be")


# -- documents --------------------------------------------------------------------------------------------------------


def test_values_stand_in_a_document_in_the_words_of_the_model() -> None:
    event = FederationEvent(
        ((ALTITUDE, struct.pack(">d", 12.5)), (CALLSIGN, text_of("<&>")), (IMAGE, b"\0\1")), 'LH "1"', 3.25, b"why"
    )  # fmt: skip
    assert metadata(AIRCRAFT, event) == (
        b'<Aircraft object=\'LH "1"\' time="3.25" tag="why"><altitude>12.5</altitude><callsign>&lt;&amp;&gt;</callsign>'
        b'<image encoding="hex">0001</image></Aircraft>'
    )
    assert AIRCRAFT.type == "Air.Vehicle.Aircraft"
    assert (
        metadata(AIRCRAFT, FederationEvent(name="LH1", is_removed=True))
        == b'<Aircraft object="LH1" removed="true"></Aircraft>'
    )


@settings(max_examples=examples(300))
@given(
    st.lists(st.tuples(st.sampled_from((ALTITUDE, CALLSIGN, IMAGE, 99)), st.binary(max_size=40) | st.text().map(text_of)
             | st.floats().map(lambda each: struct.pack(">d", each)))),
    st.text(), st.none() | st.floats(), st.binary(max_size=20), st.booleans(),
)  # fmt: skip
def test_whatever_a_federate_sends_is_a_document(
    values: list[tuple[int, bytes]], name: str, time: float | None, tag: bytes, removed: bool
) -> None:
    # Given values of any bytes, names of any characters; Expect well-formed XML, and all values in the payload
    event = FederationEvent(values, name, time, tag, removed)
    root = etree.fromstring(metadata(AIRCRAFT, event))
    known = [(handle, data) for handle, data in values if handle != 99]
    assert [each.tag for each in root] == [AIRCRAFT.members[handle][0] for handle, _ in known]
    for element, (handle, data) in zip(root, known, strict=True):
        # and each value to be said as it is, or in hexadecimal
        text = element.text or ""
        if element.get("encoding") == "hex":
            assert bytes.fromhex(text) in (data, data[4:])  # octets have no count there
        elif handle == ALTITUDE:
            assert text == "NaN" or struct.pack(">d", float(text)) == data
        else:
            assert text_of(text) == data
    assert msgspec.msgpack.decode(payload(AIRCRAFT, event)) == {
        "values": {AIRCRAFT.members[handle][0]: data for handle, data in known}, "tag": tag
    }  # fmt: skip


def test_long_values_are_cut_and_say_so() -> None:
    event = FederationEvent(((CALLSIGN, text_of("x" * 100_000)), (IMAGE, b"x" * 100_000)), "LH1")
    callsign, image = etree.fromstring(metadata(AIRCRAFT, event))
    assert (len(callsign.text or ""), callsign.get("cut")) == (TEXT_MOST, "true")
    assert (len(image.text or ""), image.get("cut")) == (TEXT_MOST, "true")


# -- what an RTI tells ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("begin", (None,)), ("known", ()), ("_call", ("resign_federation_execution", "no_action")),
        ("_tell_of", (1, FederationEvent())), ("__init__", (None, None)), ("__class__", (1, 2)), ("unheard_of", (1,)),
        ("call_refused", (JbiError("no"),)),
    ],
)  # fmt: skip
def test_an_rti_calls_callbacks_and_nothing_else(name: str, arguments: tuple[Any, ...]) -> None:
    # Given the ambassador of a gateway that is joined
    told: list[Any] = []
    called: list[Any] = []
    ambassador = GatewayAmbassador(lambda *each: told.append(each), lambda *each: called.append(each))
    ambassador.begin(known := _Classes(Map(), Map(), ()))
    # When its RTI names something that is no callback; Expect nothing
    ambassador.hear(Callback(name, arguments))
    assert (told, called, ambassador.known) == ([], [], known)
    ambassador.hear(Callback("announce_synchronization_point", ("A", b"")))
    assert called == [("synchronization_point_achieved", "A")]


# -- over sockets -----------------------------------------------------------------------------------------------------


class Gate:
    """A platform and a federation, and a bridge between them."""

    def __init__(self, federation: Any, folder: Path) -> None:
        self.federation, self.folder = federation, folder
        quick = msgspec.structs.replace(federation.config, pad=PadSection(settle_seconds=0.3))
        self.pad = federation.pad(config=quick)
        self.rti = self.serve()
        self.subscriber = federation.subscriber()

    def serve(self) -> RtiServer:
        """An RTI with the federation."""
        made = RtiServer(self.federation.config, lease=30.0)
        self.federation.stack.callback(made.stop)
        made.start()
        made.create("Air", [Module("model.xml", MODEL)])
        return made

    def bridge(self, text: str = FILE) -> OpenBridge:
        """Started."""
        path = self.folder / "gate.toml"
        path.write_text(text)
        running = described(path).opened(self.federation.config)
        self.federation.stack.callback(running.close)
        running.start()
        return running

    def join(self, name: str, **options: Any) -> Federate:
        """A federate."""
        one = Federate(self.federation.config, name, "Air", **options)
        self.federation.stack.callback(one.rti.disconnect)
        return one

    def fly(self, one: Federate) -> int:
        """An aircraft of a federate."""
        cls = one.rti.get_object_class_handle("Vehicle.Aircraft")
        one.rti.publish_object_class_attributes(cls, [ALTITUDE, CALLSIGN, IMAGE, WHERE])
        return one.rti.register_object_instance(cls, "LH1")


@pytest.fixture
def gate(federation: Any, tmp_path: Path) -> Iterator[Gate]:
    return Gate(federation, tmp_path)


def saved(pilot: Federate, label: str) -> None:
    """The federation, of this federate and gateways, is saved."""
    pilot.rti.request_federation_save(label)
    pilot.until("initiate_federate_save")
    pilot.rti.federate_save_begun()
    pilot.rti.federate_save_complete()
    pilot.until("federation_saved")


def restored(pilot: Federate, label: str) -> None:
    """It is restored."""
    pilot.rti.request_federation_restore(label)
    pilot.until("initiate_federate_restore")
    pilot.rti.federate_restore_complete()
    pilot.until("federation_restored")


def status_of(bridge: OpenBridge) -> Callable[[], Any]:
    """Status of the side that is a federation."""
    return bridge.sides[0].status  # type: ignore[attr-defined,no-any-return]  # a Mirror


@pytest.mark.row("X-08")
def test_a_subscriber_sees_a_simulation_by_xpath(gate: Gate) -> None:
    # Given somebody who wants aircraft above 1,000, and all reports
    high = gate.subscriber.register_subscriber(type_name="Aircraft", predicate="//altitude > 1000")
    reports = gate.subscriber.register_subscriber(type_name="Report")
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    gate.bridge()
    gate.subscriber.wait_matched(high)
    # When an aircraft climbs
    for altitude in (900.0, 1100.0):
        values = {ALTITUDE: struct.pack(">d", altitude), CALLSIGN: text_of("LH441")}
        pilot.rti.update_attribute_values(aircraft, values, b"")
    # Expect what is above to come, once, with all values as they were sent in the payload
    obj = gate.subscriber.receive(high, 20.0)
    assert obj is not None
    assert obj.type.name == "Air.Vehicle.Aircraft"
    document = b'<Aircraft object="LH1"><altitude>1100.0</altitude><callsign>LH441</callsign></Aircraft>'
    assert obj.metadata == document
    assert b"altitude" in obj.payload
    assert struct.pack(">d", 1100.0) in obj.payload
    # and interactions
    radio = pilot.rti.get_interaction_class_handle("Report")
    pilot.rti.publish_interaction_class(radio)
    level = pilot.rti.get_parameter_handle(radio, "level")
    pilot.rti.send_interaction(radio, {level: struct.pack(">i", -3)}, b"")
    obj = gate.subscriber.receive(reports, 20.0)
    assert obj is not None
    assert (obj.type.name, obj.metadata) == ("Air.Report", b"<Report><level>-3</level></Report>")
    assert gate.subscriber.receive(high, 0.1) is None


@pytest.mark.row("X-08")
def test_a_subscriber_selects_by_a_field_of_a_record(gate: Gate) -> None:
    # Given somebody who wants aircraft beyond a place
    beyond = gate.subscriber.register_subscriber(type_name="Aircraft", predicate="//where/X > 1000")
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    gate.bridge()
    gate.subscriber.wait_matched(beyond)
    # When one flies there
    where = pilot.rti.fom.codec("Location")
    for x in (900.0, 1100.0):
        pilot.rti.update_attribute_values(aircraft, {WHERE: where.encode({"X": x, "Y": 0.5})})
    # Expect it to come, field by field
    obj = gate.subscriber.receive(beyond, 20.0)
    assert obj is not None
    assert obj.metadata == b'<Aircraft object="LH1"><where><X>1100.0</X><Y>0.5</Y></where></Aircraft>'


DRONES = """<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
<objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Drone</name>
<attribute><name>range</name><dataType>HLAfloat64BE</dataType></attribute></objectClass></objectClass></objects>
</objectModel>"""


def test_what_a_federate_adds_to_the_object_model_is_published_by_a_gateway_that_runs(gate: Gate) -> None:
    # Given a gateway, an aircraft, and somebody who wants drones that go far
    (gate.folder / "drones.xml").write_text(DRONES)
    gate.bridge(FILE.replace('"Vehicle*"', '"Vehicle*", "Drone"'))
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    planes = gate.subscriber.register_subscriber(type_name="Aircraft")
    far = gate.subscriber.register_subscriber(type_name="Drone", predicate="//range > 10")
    gate.subscriber.wait_matched(planes)
    # When a federate brings them
    other = gate.join("other", modules=[gate.folder / "drones.xml"])
    cls = other.rti.get_object_class_handle("Drone")
    reach = other.rti.get_attribute_handle(cls, "range")
    other.rti.publish_object_class_attributes(cls, [reach])
    drone = other.rti.register_object_instance(cls, "D1")
    gate.subscriber.wait_matched(far)
    for each in (5.0, 50.0):
        other.rti.update_attribute_values(drone, {reach: struct.pack(">d", each)})
    # Expect the one that goes far, and the aircraft as before
    obj = gate.subscriber.receive(far, 20.0)
    assert obj is not None
    assert (obj.type.name, obj.metadata) == ("Air.Drone", b'<Drone object="D1"><range>50.0</range></Drone>')
    pilot.rti.update_attribute_values(aircraft, {ALTITUDE: struct.pack(">d", 1.0)}, b"")
    obj = gate.subscriber.receive(planes, 20.0)
    assert obj is not None
    assert b'object="LH1"' in obj.metadata


VEHICLE = """<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
<interactions><interactionClass><name>HLAinteractionRoot</name><interactionClass><name>Vehicle</name></interactionClass>
</interactionClass></interactions></objectModel>"""


def test_an_addition_that_does_not_fit_leaves_a_gateway_as_it_is(gate: Gate, eventually: Callable[..., Any]) -> None:
    # Given a gateway, and an aircraft that it publishes
    planes = gate.subscriber.register_subscriber(type_name="Aircraft")
    status = status_of(gate.bridge())
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    gate.subscriber.wait_matched(planes)
    # When a federate brings an interaction class that is called as an object class of it
    (gate.folder / "vehicle.xml").write_text(VEHICLE)
    gate.join("other", modules=[gate.folder / "vehicle.xml"])
    # Expect the trouble to be told, and the aircraft to come as before
    eventually(lambda: "both called Air.Vehicle" in status()["trouble"], what=status)
    assert status()["connected"]
    pilot.rti.update_attribute_values(aircraft, {ALTITUDE: struct.pack(">d", 1.0)})
    assert gate.subscriber.receive(planes, 20.0) is not None


def test_who_comes_late_is_told_what_is_there(gate: Gate) -> None:
    # Given an aircraft whose federate says its values when it is asked
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    everything = gate.subscriber.register_subscriber(type_name="Aircraft")
    # When the bridge comes; Expect it to ask
    gate.bridge()
    assert pilot.until("provide_attribute_value_update")[1] == aircraft
    gate.subscriber.wait_matched(everything)
    pilot.rti.update_attribute_values(aircraft, {ALTITUDE: struct.pack(">d", 1.0)}, b"")
    obj = gate.subscriber.receive(everything, 20.0)
    assert obj is not None
    assert b"<altitude>1.0</altitude>" in obj.metadata
    # and an aircraft that is no more to be told of
    pilot.rti.delete_object_instance(aircraft, b"landed")
    obj = gate.subscriber.receive(everything, 20.0)
    assert obj is not None
    assert obj.metadata == b'<Aircraft object="LH1" removed="true" tag="landed"></Aircraft>'


@pytest.mark.row("X-08")
def test_an_information_object_is_an_interaction_with_the_same_id(gate: Gate, eventually: Callable[..., Any]) -> None:
    bridge = gate.bridge()
    pilot = gate.join("pilot")
    report = pilot.rti.get_interaction_class_handle("Report")
    pilot.rti.subscribe_interaction_class(report)
    parameters = {
        each: pilot.rti.get_parameter_handle(report, each) for each in ("text", "level", "id", "document", "data")
    }
    # Given a publisher of notes, and of something else
    light = gate.federation.light()
    at = light.connect_to_delegate("alpha", "rome")
    notes = light.register_publisher(at, type_name="acme.Note", validate=False)
    others = light.register_publisher(at, type_name="acme.Other", validate=False)
    # When one of each is published
    light.publish(others, b"<Other/>")
    document = b'<Note text="caf\xc3\xa9"><level>7</level></Note>'
    object_id = light.publish(notes, document, b"\0payload")
    # Expect the federation to be told of the note
    _, cls, values, *_ = pilot.until("receive_interaction")
    assert cls == report
    assert dict(values) == {
        parameters["text"]: text_of("caf\u00e9"),
        parameters["level"]: struct.pack(">i", 7),
        parameters["id"]: text_of(object_id),
        parameters["document"]: document,
        parameters["data"]: b"\0payload",
    }
    # and of nothing else: what is not taken is counted, and so is what can't be said
    light.publish(notes, b"<Note><level>seven</level></Note>")
    light.publish(notes, b'<Note text="last"/>')
    assert dict(pilot.until("receive_interaction")[2])[parameters["text"]] == text_of("last")
    platform = bridge.sides[0]  # type: ignore[attr-defined]  # a Mirror
    wanted = {"taken": 2, "refused": 1, "filtered": 1}
    eventually(lambda: platform.status() | wanted == platform.status(), what=platform.status)


def test_saves_restores_and_points_do_not_wait_for_a_gateway(gate: Gate) -> None:
    everything = gate.subscriber.register_subscriber(type_name="Aircraft")
    gate.bridge()
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    gate.subscriber.wait_matched(everything)
    rti = pilot.rti
    rti.register_federation_synchronization_point("ready", b"")
    pilot.until("announce_synchronization_point")
    rti.synchronization_point_achieved("ready")
    pilot.until("federation_synchronized")
    saved(pilot, "S")
    rti.delete_object_instance(aircraft, b"")
    restored(pilot, "S")
    # Expect an aircraft that was deleted in between to be known after the restore
    rti.update_attribute_values(aircraft, {ALTITUDE: struct.pack(">d", 5.0)}, b"")
    last = [gate.subscriber.receive(everything, 20.0) for _ in range(2)][-1]
    assert last is not None
    assert last.metadata == b'<Aircraft object="LH1"><altitude>5.0</altitude></Aircraft>'


def test_a_save_is_restored_with_a_gateway_that_was_started_again(gate: Gate, eventually: Callable[..., Any]) -> None:
    # Given a save, and a gateway that was started again since
    everything = gate.subscriber.register_subscriber(type_name="Aircraft")
    first = gate.bridge()
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    gate.subscriber.wait_matched(everything)
    saved(pilot, "S")
    first.close()
    status = status_of(gate.bridge())
    eventually(lambda: status()["connected"], what=status)
    # When the federation is restored
    restored(pilot, "S")
    # Expect it to be, and the aircraft to be seen
    obj = None
    while obj is None:
        pilot.rti.update_attribute_values(aircraft, {ALTITUDE: struct.pack(">d", 5.0)})
        obj = gate.subscriber.receive(everything, 1.0)
    assert obj.metadata == b'<Aircraft object="LH1"><altitude>5.0</altitude></Aircraft>'


def test_of_two_gateways_of_one_name_the_second_waits(
    gate: Gate, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two gateways of one name, and somebody who publishes notes
    monkeypatch.setattr(gateway, "STANDBY_SECONDS", 0.0)
    first = gate.bridge()
    one = status_of(first)
    eventually(lambda: one()["connected"], what=one)
    other = status_of(gate.bridge())
    eventually(lambda: "'gate:sim' is joined" in other()["trouble"], what=other)
    pilot = gate.join("pilot")
    report = pilot.rti.get_interaction_class_handle("Report")
    text = pilot.rti.get_parameter_handle(report, "text")
    pilot.rti.subscribe_interaction_class(report)
    light = gate.federation.light()
    notes = light.register_publisher(light.connect_to_delegate("alpha", "rome"), type_name="acme.Note", validate=False)
    # When one is published; Expect it to be sent by the first alone
    light.publish(notes, b'<Note text="1"/>')
    eventually(lambda: (one()["taken"], other()["filtered"]) == (1, 1), what=lambda: (one(), other()))
    # When the first ends; Expect the second to go on with what comes then
    first.close()
    eventually(lambda: other()["connected"], what=other)
    light.publish(notes, b'<Note text="2"/>')
    heard = [dict(pilot.until("receive_interaction")[2])[text] for _ in range(2)]
    assert heard == [text_of("1"), text_of("2")]


def test_what_is_added_while_a_gateway_joins_is_published(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a gateway that has asked for the object model, and a federate that adds to it before it is read
    (gate.folder / "drones.xml").write_text(DRONES)
    far = gate.subscriber.register_subscriber(type_name="Drone")
    has_begun, told = threading.Event(), threading.Event()
    parsed, added = ambassador.parsed, Surrogate.service_added

    def late(*modules: Any, **more: Any) -> Any:
        if not has_begun.is_set():
            has_begun.set()
            gate.join("pilot", modules=[gate.folder / "drones.xml"])
            assert told.wait(60.0)
        return parsed(*modules, **more)

    def hears(self: Surrogate, item: ServiceItem) -> None:
        added(self, item)
        if has_begun.is_set():
            told.set()

    monkeypatch.setattr(ambassador, "parsed", late)
    monkeypatch.setattr(Surrogate, "service_added", hears)
    # When it is joined; Expect what was added
    gate.bridge(FILE.replace('"Vehicle*"', '"Vehicle*", "Drone"'))
    assert gate.subscriber.wait_matched(far, timeout=20.0) == 1


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_save_does_not_wait_for_what_a_gateway_has_to_declare(
    gate: Gate, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *, is_joined: bool
) -> None:
    # Given a gateway that has not declared yet what was added to the object model, or anything
    may_learn, learned = threading.Event(), Surrogate.has_learned
    monkeypatch.setattr(Surrogate, "has_learned", lambda self: may_learn.wait(20.0) and learned(self))
    (gate.folder / "drones.xml").write_text(DRONES)
    far = gate.subscriber.register_subscriber(type_name="Drone")
    if is_joined:
        may_learn.set()
    status = status_of(gate.bridge(FILE.replace('"Vehicle*"', '"Vehicle*", "Drone"')))
    if is_joined:
        eventually(lambda: status()["connected"], what=status)
        may_learn.clear()
    pilot = gate.join("pilot", modules=[gate.folder / "drones.xml"])
    execution = gate.rti._federations["Air"]
    eventually(lambda: len(execution.manager.facts()) == 2, what=execution.manager.facts)
    # When a save begins before it does
    pilot.rti.request_federation_save("S")
    pilot.until("initiate_federate_save")
    may_learn.set()
    pilot.rti.federate_save_begun()
    pilot.rti.federate_save_complete()
    # Expect it to be made, and the classes to be published after it
    pilot.until("federation_saved")
    gate.subscriber.wait_matched(far)
    # and still after a restore, whose declarations are those of the save
    restored(pilot, "S")
    cls = pilot.rti.get_object_class_handle("Drone")
    reach = pilot.rti.get_attribute_handle(cls, "range")
    pilot.rti.publish_object_class_attributes(cls, [reach])
    drone = pilot.rti.register_object_instance(cls, "D1")
    obj = None
    while obj is None:
        pilot.rti.update_attribute_values(drone, {reach: struct.pack(">d", 5.0)})
        obj = gate.subscriber.receive(far, 1.0)
    assert obj.metadata == b'<Drone object="D1"><range>5.0</range></Drone>'


def test_an_rti_that_comes_again_is_joined_again(gate: Gate, eventually: Callable[..., Any]) -> None:
    everything = gate.subscriber.register_subscriber(type_name="Aircraft")
    bridge = gate.bridge()
    platform = bridge.sides[0]  # type: ignore[attr-defined]  # a Mirror
    gate.subscriber.wait_matched(everything)
    # When the RTI dies, a note waits, and an RTI is there again
    gate.rti.stop()
    eventually(lambda: not platform.status()["connected"], what=platform.status)
    light = gate.federation.light()
    notes = light.register_publisher(light.connect_to_delegate("alpha", "rome"), type_name="acme.Note", validate=False)
    light.publish(notes, b'<Note text="waits"/>')
    gate.serve()
    pilot = gate.join("pilot")
    aircraft = gate.fly(pilot)
    eventually(lambda: platform.status()["connected"], what=platform.status)
    # Expect the aircraft to be seen
    obj = None
    while obj is None:
        pilot.rti.update_attribute_values(aircraft, {ALTITUDE: struct.pack(">d", 5.0)}, b"")
        obj = gate.subscriber.receive(everything, 1.0)
    assert b'object="LH1"' in obj.metadata
    # and the note to have come
    eventually(lambda: platform.status()["taken"] == 1, what=platform.status)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (('federation = "Air"', ""), "federation"),
        (('federation = "Air"', 'federation = ""'), "name of a federation execution"),
        (('classes = ["Vehicle*"]', "clases = []"), "clases"),
        (('"/Note/level"', '"/Note["'), "take.parameter.level"),
        (('federation = "Air"', 'federation = "Air"\nprefix = "a b"'), "can't begin with"),
        (('types = ["*.Note"]', "types = 3"), "types"),
        (("parameter.text", "attribute.text"), "attribute"),
    ],
)
def test_a_side_that_can_not_work_is_told_before_anything_is_opened(
    tmp_path: Path, change: tuple[str, str], reason: str
) -> None:
    path = tmp_path / "gate.toml"
    path.write_text(FILE)
    described(path).check(Config())  # as it is it works
    path.write_text(FILE.replace(*change))
    with pytest.raises(ConfigurationError, match=reason) as refused:
        described(path).check(Config())
    assert "side.sim" in refused.value.message
    assert str(path) in refused.value.message
    assert "Metadata are never modified" not in (refused.value.hint or ""), "which is said of rules"


def test_what_the_model_does_not_have_is_told_when_it_is_known(gate: Gate, eventually: Callable[..., Any]) -> None:
    bridge = gate.bridge(FILE.replace('"Report"', '"Reprot"'))
    platform = bridge.sides[0]  # type: ignore[attr-defined]  # a Mirror
    eventually(lambda: "Reprot" in platform.status()["trouble"], what=platform.status)
