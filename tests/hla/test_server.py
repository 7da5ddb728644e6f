"""Federations over sockets: federates find them by name, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.access import AllowAll
from jbi_pubsub.core.config import MetricsSection, PadSection
from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Caller, Security
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.hla import exceptions as exc
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.calls import FederateRights
from jbi_pubsub.hla.execution import KINDS
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.proxy import Module, Rti
from jbi_pubsub.hla.saves import Saves
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.hla.sessions import FRAME_MOST, HIGH_BYTES, LENGTH
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import RTI_TYPE
from tests.hla.models import SHIPS
from tests.hla.parties import Federate, Noting, session


@pytest.fixture
def served(federation: Any, air: bytes, tmp_path: Path) -> RtiServer:
    """An RTI with a federation Air."""
    server = RtiServer(federation.config, saves=tmp_path / "saves", lease=30.0)
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])
    return server


@pytest.fixture
def join(federation: Any, served: RtiServer) -> Callable[..., Federate]:
    """join(name): a federate of it, which leaves at the end."""

    def made(name: str, **options: Any) -> Federate:
        one = Federate(federation.config, name, **options)
        federation.stack.callback(one.rti.disconnect)
        return one

    return made


@pytest.mark.row("H-01")
def test_two_federates_exchange_what_they_have_declared(join: Callable[..., Federate]) -> None:
    # Given two federates, who know the federation's name and nothing else
    a, b = join("a"), join("b")
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    position, callsign = (a.rti.get_attribute_handle(cls, name) for name in ("position", "callsign"))
    a.rti.publish_object_class_attributes(cls, [position, callsign])
    b.rti.subscribe_object_class_attributes(cls, {position})
    # When one registers an aircraft and updates it
    aircraft = a.rti.register_object_instance(cls, "LH1")
    a.rti.update_attribute_values(aircraft, {callsign: b"x", position: b"1"}, b"tag")
    # Expect the other one to be told
    assert b.until("discover_object_instance") == ("discover_object_instance", aircraft, cls, "LH1")
    reflected = ("reflect_attribute_values", aircraft, ((position, b"1"),), b"tag", None, 0)
    assert b.until("reflect_attribute_values") == reflected
    # and interactions, in a batch
    radio = a.rti.get_interaction_class_handle("Radio")
    text = a.rti.get_parameter_handle(radio, "text")
    a.rti.publish_interaction_class(radio)
    b.rti.subscribe_interaction_class(radio)
    with a.rti.batched():
        for number in range(1000):
            a.rti.send_interaction(radio, {text: b"%d" % number})
    assert [b.until("receive_interaction")[2][0][1] for _ in range(1000)] == [b"%d" % n for n in range(1000)]


def test_what_an_rti_refuses_is_raised_where_it_was_called(join: Callable[..., Federate]) -> None:
    a = join("a")
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    with pytest.raises(exc.ObjectClassNotPublished, match="publish_object_class_attributes first"):
        a.rti.register_object_instance(cls)
    with pytest.raises(exc.InvalidLogicalTime):
        a.rti.time_advance_request(float("nan"))
    with pytest.raises(exc.NameNotFound):
        a.rti.get_object_class_handle("Submarine")


@pytest.mark.parametrize("how", ["alone", "batched"])
def test_an_update_that_is_refused_is_told_by_a_callback_and_stops_no_other_call(
    join: Callable[..., Federate], eventually: Callable[..., Any], how: str
) -> None:
    a = join("a")
    a.rti.enable_time_constrained()
    a.until("time_constrained_enabled")
    radio = a.rti.get_interaction_class_handle("Radio")
    # When updates and interactions, which nobody waits for, are refused, and the federate goes on
    if how == "batched":
        with a.rti.batched():
            a.rti.update_attribute_values(4711, {})
            a.rti.send_interaction(radio, {})
    else:
        a.rti.update_attribute_values(4711, {})
        eventually(lambda: a.rti._joined().waits())
        a.rti.send_interaction(radio, {})
    a.rti.time_advance_request(5.0)
    # Expect it to be told, in order, and all that it has called since to be done
    for expected, words in ((exc.ObjectInstanceNotKnown, "4711"), (exc.InteractionClassNotPublished, "Radio")):
        _, error = a.until("call_refused")
        assert isinstance(error, expected)
        assert words in str(error)
    assert a.until("time_advance_grant") == ("time_advance_grant", 5.0)
    # When nobody has said what is to be done then
    a.rti.connect(FederateAmbassador())
    a.rti.update_attribute_values(4711, {})
    # Expect it to be raised where callbacks are evoked, once
    with pytest.raises(exc.ObjectInstanceNotKnown, match="4711"):
        a.rti.evoke_callback(20.0)
    assert a.rti.evoke_callback(0.0) is False


def test_a_call_that_is_too_large_is_refused_where_it_is_made_and_takes_no_other_along(
    join: Callable[..., Federate],
) -> None:
    a, b = join("a"), join("b")
    radio = a.rti.get_interaction_class_handle("Radio")
    text = a.rti.get_parameter_handle(radio, "text")
    a.rti.publish_interaction_class(radio)
    b.rti.subscribe_interaction_class(radio)
    with a.rti.batched():
        a.rti.send_interaction(radio, {text: b"before"})
        with pytest.raises(ProtocolError, match="send_interaction has 33,"):
            a.rti.send_interaction(radio, {text: bytes(33_500_000)})
        a.rti.send_interaction(radio, {text: b"after"})
        # What an RTI takes of values it takes in any company
        a.rti.send_interaction(radio, {text: bytes(16 << 20)})
        for number in range(5_000):
            a.rti.send_interaction(radio, {text: b"%d" % number})
    got = [b.until("receive_interaction")[2][0][1] for _ in range(5_003)]
    assert got == [b"before", b"after", bytes(16 << 20), *(b"%d" % number for number in range(5_000))]
    with pytest.raises(ProtocolError, match="register_object_instance has"):
        a.rti.register_object_instance(1, "n" * FRAME_MOST)
    assert a.rti.query_logical_time() == 0.0


def test_a_request_for_a_time_that_crosses_a_save_is_granted_behind_it(join: Callable[..., Federate]) -> None:
    # Given two federates in lockstep, one of which asks for a save
    a, b = join("a"), join("b")
    for each in (a, b):
        each.rti.enable_time_regulation(1.0)
        each.rti.enable_time_constrained()
        each.until("time_constrained_enabled")
    for each in (a, b):
        each.rti.time_advance_request(1.0)
    for each in (a, b):
        each.until("time_advance_grant")
    b.rti.request_federation_save("early")
    # When the other one, which has not been told, asks for the next time, in a batch
    with a.rti.batched():
        a.rti.time_advance_request(2.0)
        # Expect it to be told of the save, and to be refused what it asks for from then on
        a.until("initiate_federate_save")
    with pytest.raises(exc.SaveInProgress):
        a.rti.time_advance_request(3.0)
    # When all have saved, and the other one goes on
    for each in (a, b):
        each.rti.federate_save_begun()
        each.rti.federate_save_complete()
    b.until("federation_saved")
    b.rti.time_advance_request(2.0)
    # Expect both to be there, and each call that can't be made to be refused at itself
    for each in (a, b):
        assert each.until("time_advance_grant") == ("time_advance_grant", 2.0)
    a.rti.time_advance_request(3.0)
    for time, error in ((4.0, exc.InTimeAdvancingState), (float("nan"), exc.InvalidLogicalTime)):
        with pytest.raises(error):
            a.rti.time_advance_request(time)
    b.rti.time_advance_request(3.0)
    a.until("time_advance_grant")
    with pytest.raises(exc.LogicalTimeAlreadyPassed):
        a.rti.time_advance_request(2.5)
    a.rti.disable_time_constrained()
    a.rti.time_advance_request(5.0)
    a.until("time_advance_grant")
    a.rti.enable_time_constrained()
    with pytest.raises(exc.RequestForTimeConstrainedPending):
        a.rti.time_advance_request(6.0)


def test_time_goes_on_over_sockets(join: Callable[..., Federate]) -> None:
    a, b = join("a"), join("b")
    for each in (a, b):
        each.rti.enable_time_regulation(1.0)
        each.rti.enable_time_constrained()
        each.until("time_constrained_enabled")
    for step in range(1, 50):
        for each in (a, b):
            each.rti.time_advance_request(step)
        assert a.until("time_advance_grant") == b.until("time_advance_grant") == ("time_advance_grant", step)
    assert a.rti.query_galt() == 50.0
    b.rti.resign_federation_execution()
    assert a.rti.query_galt() == float("inf")


BUOYS = SHIPS.replace(b"Ship", b"Buoy").replace(b"draught", b"depth")
OTHER = SHIPS.replace(b"<dataType>Metres", b"<dataType>HLAfloat32BE")


@pytest.fixture
def module(tmp_path: Path) -> Callable[..., list[Path]]:
    """module(name=data): files of an object model."""

    def files(**modules: bytes) -> list[Path]:
        for name, data in modules.items():
            (tmp_path / f"{name}.xml").write_bytes(data)
        return [tmp_path / f"{name}.xml" for name in modules]

    return files


def test_what_a_federate_adds_to_the_object_model_all_know(
    join: Callable[..., Federate], module: Callable[..., list[Path]], air: bytes
) -> None:
    # Given a federate that has joined, and one that joins with modules: a class, a data type, and what is known
    first = join("first")
    aircraft = first.rti.get_object_class_handle("Vehicle.Aircraft")
    second = join("second", modules=module(ships=SHIPS, mine=air))
    # When others join, one of them with a class whose name comes before that one
    third = join("third", modules=module(buoys=BUOYS))
    fourth = join("fourth")
    # Expect all to have the same handles, those of before, and names of all handles
    parties = [each.rti for each in (first, second, third, fourth)]
    assert {each.get_object_class_handle("Vehicle.Aircraft") for each in parties} == {aircraft}
    (ship,) = {each.get_object_class_handle("Ship") for each in parties}
    (buoy,) = {each.get_object_class_handle("Buoy") for each in parties}
    (draught,) = {each.get_attribute_handle(ship, "draught") for each in parties}
    assert {each.get_object_class_name(buoy) for each in parties} == {"HLAobjectRoot.Buoy"}
    assert {each.get_available_dimensions_for_class_attribute(ship, draught) for each in parties} == {(1,)}
    # When what was added is published, expect it to come to who joined before
    first.rti.subscribe_object_class_attributes(ship, {draught})
    second.rti.publish_object_class_attributes(ship, [draught])
    boat = second.rti.register_object_instance(ship, "Nordic")
    second.rti.update_attribute_values(boat, {draught: second.rti.fom.codec("Metres").encode(4.5)}, b"")
    assert first.until("discover_object_instance") == ("discover_object_instance", boat, ship, "Nordic")
    [(_, value)] = first.until("reflect_attribute_values")[2]
    assert first.rti.fom.codec("Metres").decode(value) == 4.5
    # Expect a name that nobody has added to be refused as ever
    with pytest.raises(exc.NameNotFound, match="Submarine"):
        first.rti.get_object_class_handle("Submarine")


def test_modules_that_contradict_the_object_model_are_refused_and_add_nothing(
    join: Callable[..., Federate], served: RtiServer, module: Callable[..., list[Path]]
) -> None:
    before = served.status()["federations"][0]["model"]
    join("second", modules=module(ships=SHIPS))
    known = served.status()["federations"][0]["model"]
    assert known != before
    for name, data, error in (
        ("other", OTHER, exc.InconsistentFom),
        ("page", b"<html/>", exc.ErrorReadingFom),
        ("torn", SHIPS[:-5], exc.ErrorReadingFom),
    ):
        with pytest.raises(error, match=f"{name}.xml"):
            join("third", modules=module(**{name: data}))
    with pytest.raises(exc.ErrorReadingFom, match=r"nowhere.xml can't be read"):
        join("third", modules=[module(ships=SHIPS)[0].with_name("nowhere.xml")])
    assert served.status()["federations"][0]["model"] == known


def test_modules_of_who_may_not_join_add_nothing(
    federation: Any, served: RtiServer, join: Callable[..., Federate], module: Callable[..., list[Path]], air: bytes,
    tmp_path: Path,
) -> None:  # fmt: skip
    # Given a federation that is being saved
    one, files = join("one"), module(ships=SHIPS)
    before = served.status()["federations"][0]["model"]
    one.rti.request_federation_save("evening")
    one.until("initiate_federate_save")
    one.rti.federate_save_begun()
    # When a federate would join it with modules
    with pytest.raises(exc.SaveInProgress):
        join("late", modules=files)
    one.rti.federate_save_complete()
    one.until("federation_saved")
    # or under a name that is in use, or with an action that does not exist
    with pytest.raises(exc.FederateNameAlreadyInUse):
        join("one", modules=files)
    with pytest.raises(exc.InvalidResignAction):
        join("two", modules=files, resign_action="explode")
    # Expect the object model to be as it was, and the save to be there after a restart
    assert served.status()["federations"][0]["model"] == before
    one.rti.disconnect()
    served.stop()
    again = RtiServer(federation.config, saves=tmp_path / "saves", lease=30.0)
    federation.stack.callback(again.stop)
    again.start()
    again.create("Air", [Module("air.xml", air)])
    assert again.status()["federations"][0]["saves"] == ["evening"]


def test_additions_at_the_same_time_are_all_known_and_their_number_is_bounded(
    federation: Any, served: RtiServer, air: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = FederateRights(Caller(""), "Air")
    # When ten federates add a class each at once
    threads = [
        threading.Thread(target=served.open, args=(rights, [Module(f"{n}.xml", SHIPS.replace(b"Ship", b"Ship%d" % n))]))
        for n in range(10)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60.0)
    # Expect all to be there, each as one addition
    layers = served.modules("Air")
    assert sorted(module.name for layer in layers[1:] for module in layer) == sorted(f"{n}.xml" for n in range(10))
    assert len(layers) == 11
    # Expect no more than so many
    monkeypatch.setattr("jbi_pubsub.hla.server.ADDITIONS_MOST", 10)
    with pytest.raises(exc.RtiInternalError, match="10 times"):
        served.open(rights, [Module("more.xml", BUOYS)])
    assert served.open(rights, [Module("under another name.xml", SHIPS.replace(b"Ship", b"Ship5"))])


def test_a_save_of_a_federation_with_additions_is_restored_after_a_restart(
    federation: Any, served: RtiServer, tmp_path: Path, air: bytes, module: Callable[..., list[Path]]
) -> None:
    # Given a federation whose model has an addition, with a ship, that is saved
    files = module(ships=SHIPS)
    one = Federate(federation.config, "one", modules=files)
    federation.stack.callback(one.rti.disconnect)
    ship = one.rti.get_object_class_handle("Ship")
    one.rti.publish_object_class_attributes(ship, [one.rti.get_attribute_handle(ship, "draught")])
    boat = one.rti.register_object_instance(ship, "Nordic")
    one.rti.request_federation_save("evening")
    one.until("initiate_federate_save")
    one.rti.federate_save_begun()
    one.rti.federate_save_complete()
    one.until("federation_saved")
    # When the RTI is another one, and the federate joins with its modules
    one.rti.disconnect()
    served.stop()
    again = RtiServer(federation.config, saves=tmp_path / "saves", lease=30.0)
    federation.stack.callback(again.stop)
    again.start()
    again.create("Air", [Module("air.xml", air)])
    two = Federate(federation.config, "one", modules=files)
    federation.stack.callback(two.rti.disconnect)
    two.rti.request_federation_restore("evening")
    # Expect it to be as it was
    two.until("initiate_federate_restore")
    two.rti.federate_restore_complete()
    two.until("federation_restored")
    assert two.rti.get_object_instance_name(boat) == "Nordic"


@pytest.mark.row("H-02")
def test_names_federations_and_federates_are_told_apart(
    federation: Any, served: RtiServer, join: Callable[..., Federate], tmp_path: Path, air: bytes
) -> None:
    a = join("a")
    with pytest.raises(exc.FederateNameAlreadyInUse):
        join("a")
    with pytest.raises(exc.FederateAlreadyExecutionMember):
        a.rti.join_federation_execution("Air")
    nobody = RTIAmbassador(federation.config)
    with nobody:
        with pytest.raises(exc.NotConnected):
            nobody.join_federation_execution("Air")
        nobody.connect(Noting())
        with pytest.raises(exc.FederateNotExecutionMember):
            nobody.query_logical_time()
        with pytest.raises(exc.FederationExecutionDoesNotExist, match="Sea"):
            nobody.join_federation_execution("Sea", timeout=0.3)
        with pytest.raises(exc.InvalidResignAction):
            nobody.join_federation_execution("Air", resign_action="explode", timeout=20.0)
        # When a federate makes another federation execution
        (tmp_path / "sea.xml").write_bytes(air)
        nobody.create_federation_execution("Sea", [tmp_path / "sea.xml"])
        with pytest.raises(exc.FederationExecutionAlreadyExists):
            nobody.create_federation_execution("Sea", [tmp_path / "sea.xml"])
        assert nobody.join_federation_execution("Sea", timeout=20.0) == 1
        assert set(nobody.list_federation_executions()) == {"Air", "Sea"}
        with pytest.raises(exc.FederatesCurrentlyJoined):
            nobody.destroy_federation_execution("Sea")
        nobody.resign_federation_execution()
        nobody.destroy_federation_execution("Sea")
    assert [each["name"] for each in served.status()["federations"]] == ["Air"]
    assert [each["federates"] for each in served.status()["federations"]] == [["a"]]


def test_callbacks_are_not_evoked_from_within_a_callback(join: Callable[..., Federate]) -> None:
    a = join("a")
    refused = []

    class Nested(FederateAmbassador):
        def time_regulation_enabled(self, time: float) -> None:
            with pytest.raises(exc.CallNotAllowedFromWithinCallback):
                a.rti.evoke_callback()
            refused.append(time)

    a.rti.connect(Nested())
    a.rti.enable_time_regulation(1.0)
    assert a.rti.evoke_callback(20.0) is True
    assert refused == [0.0]
    assert a.rti.evoke_multiple_callbacks(0.0, 0.01) is False


def save(*federates: Federate, label: str = "L") -> None:
    federates[0].rti.request_federation_save(label)
    for each in federates:
        each.until("initiate_federate_save")
        each.rti.federate_save_begun()
        each.rti.federate_save_complete()


def test_a_save_outlives_its_rti(
    federation: Any, served: RtiServer, join: Callable[..., Federate], air: bytes, tmp_path: Path
) -> None:
    # Given a saved federation with an aircraft
    a, b = join("a"), join("b")
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    position = a.rti.get_attribute_handle(cls, "position")
    for each in (a, b):
        each.rti.publish_object_class_attributes(cls, [position])
        each.rti.subscribe_object_class_attributes(cls, [position])
    aircraft = a.rti.register_object_instance(cls, "LH1")
    saved = a.handle, b.handle
    save(a, b)
    for each in (a, b):
        each.until("federation_saved")
    # When the RTI is gone; Expect federates to be told, and calls to say so
    served.stop()
    assert all(each.until("connection_lost")[1] for each in (a, b))
    with pytest.raises(exc.NotConnected, match="Join again"):
        a.rti.query_logical_time()
    # When another one is started over the same folder, and they join in another order
    again = RtiServer(federation.config, saves=tmp_path / "saves")
    federation.stack.callback(again.stop)
    again.start()
    again.create("Air", [Module("air.xml", air)])
    for each, name in ((b, "b"), (a, "a")):
        each.handle = each.rti.join_federation_execution("Air", name, timeout=20.0)
    a.rti.request_federation_restore("L")
    for each in (a, b):
        told = each.until("initiate_federate_restore")
        each.rti.federate_restore_complete()
        each.handle = told[3]
    for each in (a, b):
        each.until("federation_restored")
    # Expect the aircraft to be a's, as it was
    assert (a.handle, b.handle) == saved
    assert a.rti.get_object_instance_name(aircraft) == "LH1"
    a.rti.update_attribute_values(aircraft, {position: b"1"})
    assert b.until("reflect_attribute_values")[1:3] == (aircraft, ((position, b"1"),))


def test_a_save_that_the_disk_does_not_take_has_failed(
    join: Callable[..., Federate], monkeypatch: pytest.MonkeyPatch
) -> None:
    a = join("a")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    save(a)
    assert a.until("federation_not_saved") == ("federation_not_saved", "L", "STORAGE")
    monkeypatch.undo()
    a.rti.request_federation_restore("L")
    assert a.until("request_federation_restore_failed")[2] == "UNKNOWN_LABEL"
    save(a)
    a.until("federation_saved")


def test_a_save_that_is_damaged_or_of_another_model_is_left_out(
    join: Callable[..., Federate], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a = join("a")
    save(a, label="../../etc/passwd")
    a.until("federation_saved")
    [path] = (tmp_path / "saves").rglob("*.save")
    saves = Saves(tmp_path / "saves", *KINDS)
    assert [label for label, _ in saves.of("Air", a.rti.fom.digest)] == ["../../etc/passwd"]
    assert saves.of("Air", "another model") == []
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert saves.of("Air", a.rti.fom.digest) == []
    assert "damaged" in caplog.text
    assert "with the object model" in caplog.text


# -- who dies, hangs, lies ------------------------------------------------------------------------------------------

CHILD = """
import json, sys, time
from jbi_pubsub.core.config import effective
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.federate import FederateAmbassador
rti = RTIAmbassador(effective())
rti.connect(FederateAmbassador())
rti.join_federation_execution("Air", "child", timeout=20.0)
rti.enable_time_regulation(1.0)
cls = rti.get_object_class_handle("Vehicle.Aircraft")
rti.publish_object_class_attributes(cls, [rti.get_attribute_handle(cls, "position")])
rti.register_object_instance(cls, "LH1")
rti.register_federation_synchronization_point("start")
print(json.dumps({"ready": True}), flush=True)
while True:
    rti.evoke_callback(1.0)
"""


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_nobody_waits_for_a_federate_that_is_gone(
    federation: Any, air: bytes, start: Callable[..., Any], eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals,
) -> None:  # fmt: skip
    # Given a federate in a process of its own, which holds time, a point and a save
    server = RtiServer(federation.config, lease=1.0)
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])
    a = Federate(federation.config, "a")
    federation.stack.callback(a.rti.disconnect)
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    a.rti.subscribe_object_class_attributes(cls, [a.rti.get_attribute_handle(cls, "position")])
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", federation.lookups[0].address)
    monkeypatch.setenv("JBI_LOOKUP_GROUPS", federation.config.lookup.groups[0])
    monkeypatch.setenv("JBI_LOOKUP_MULTICAST", "false")
    child = start(script=CHILD)
    child.fact()
    a.rti.enable_time_constrained()
    a.rti.time_advance_request(10.0)
    a.until("discover_object_instance")
    a.rti.synchronization_point_achieved("start")
    a.rti.request_federation_save("L")
    a.until("initiate_federate_save")
    a.rti.federate_save_begun()
    a.rti.federate_save_complete()
    # When it dies, or hangs
    os.kill(child.pid, number)
    # Expect it to be resigned: the save fails, the point is reached, time goes on, its aircraft is gone
    for name in ("federation_not_saved", "time_advance_grant"):
        a.until(name)
    eventually(lambda: server.status()["federations"][0]["federates"] == ["a"])
    eventually(lambda: server.status()["federations"][0]["objects"] == 0)
    assert server.status()["federations"][0]["points"] == []
    if number == signal.SIGSTOP:
        os.kill(child.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!I", FRAME_MOST + 1),
        struct.pack("!I", 5) + b"\xc1garb",
        LENGTH.pack(4) + msgspec.msgpack.encode([[1]])[:1] + b"\x91\x91\x91",
        LENGTH.pack(len(b := msgspec.msgpack.encode({"a": 1}))) + b,
        LENGTH.pack(len(b := b"\x91" * 3000 + b"\x90")) + b,
    ],
    ids=["too long", "no msgpack", "too few", "a map", "nested"],
)
def test_who_sends_rubbish_is_resigned_and_nobody_else_harmed(
    federation: Any, served: RtiServer, join: Callable[..., Federate], eventually: Callable[..., Any], data: bytes
) -> None:
    before = served.status()["faults"]
    a = join("a")
    sock = session(federation, "Air")
    eventually(lambda: served.status()["federations"][0]["federates"] == ["a", "ugly"])
    sock.sendall(data)
    eventually(lambda: served.status()["federations"][0]["federates"] == ["a"])
    sock.close()
    assert a.rti.query_logical_time() == 0.0
    assert served.status()["faults"] == before


def test_a_token_opens_one_session(federation: Any, served: RtiServer, join: Callable[..., Federate]) -> None:
    join("a")
    rti = RTIAmbassador(federation.config)
    rti.connect(FederateAmbassador())
    found = rti._federation("Air", 20.0)
    rti.disconnect()
    sock = dial(found.proxy, DATA, Security(), 20.0)
    with pytest.raises(ProtocolError, match="token"):
        greet(StreamSocket(sock), Hello.of("guessed"))
    sock.close()


def test_who_does_not_read_holds_up_those_who_send_to_it_and_then_is_resigned(
    federation: Any, served: RtiServer, join: Callable[..., Federate], eventually: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # Given a federate that subscribes and never reads, and one that sends more than an RTI keeps
    monkeypatch.setattr("jbi_pubsub.hla.sessions.STALL_SECONDS", 1.0)
    a = join("a")
    sock = session(federation, "Air")
    radio = a.rti.get_interaction_class_handle("Radio")
    text = a.rti.get_parameter_handle(radio, "text")
    calls = msgspec.msgpack.encode([(0, "subscribe_interaction_class", [radio])])
    sock.sendall(LENGTH.pack(len(calls)) + calls)
    a.rti.publish_interaction_class(radio)
    sent = threading.Event()

    def send() -> None:
        for _ in range(200):
            a.rti.send_interaction(radio, {text: bytes(200_000)})
        sent.set()

    thread = threading.Thread(target=send, name="sender")
    thread.start()
    # Expect the sender to be held up: what waits for the other one is bounded
    most = 0
    while not sent.wait(0.01):
        most = max([most, *(each["unsent"] for each in served.status()["federations"])])
    thread.join(30.0)
    # and the other one to be resigned
    eventually(lambda: served.status()["federations"][0]["federates"] == ["a"])
    [why] = served.status()["federations"][0]["resigned"]
    assert "has read nothing" in why
    assert 0 < most < HIGH_BYTES + 4 * 1024 * 1024
    sock.close()


def test_what_goes_by_best_effort_waits_for_nobody(
    federation: Any, air: bytes, join: Callable[..., Federate], served: RtiServer
) -> None:
    # Given a model with an interaction that goes by best effort, one who reads it and one who never does
    best = air.replace(
        b"<name>Radio</name>", b"<name>Radio</name><transportation>HLAbestEffort</transportation>"
    ).replace(b"<order>TimeStamp</order></attribute>", b"<transportation>HLAbestEffort</transportation></attribute>")
    served.create("Best", [Module("best.xml", best)])
    a, b = (Federate(federation.config, name, "Best") for name in ("a", "b"))
    for each in (a, b):
        federation.stack.callback(each.rti.disconnect)
    sock = session(federation, "Best")
    radio = a.rti.get_interaction_class_handle("Radio")
    text = a.rti.get_parameter_handle(radio, "text")
    calls = msgspec.msgpack.encode([(0, "subscribe_interaction_class", [radio])])
    sock.sendall(LENGTH.pack(len(calls)) + calls)
    b.rti.subscribe_interaction_class(radio)
    a.rti.publish_interaction_class(radio)
    # When more is sent than an RTI keeps for anybody
    for number in range(100):
        a.rti.send_interaction(radio, {text: bytes(200_000)}, b"%d" % number)
        assert b.until("receive_interaction")[3] == b"%d" % number
    # Expect who reads to have got all, and what the other one has not got to be counted, who is there still
    [status] = [each for each in served.status()["federations"] if each["name"] == "Best"]
    assert status["dropped"] > 0
    assert status["unsent"] < HIGH_BYTES
    assert status["federates"] == ["a", "b", "ugly"]
    # and of an update what is reliable to come apart
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    position, callsign = (a.rti.get_attribute_handle(cls, name) for name in ("position", "callsign"))
    a.rti.publish_object_class_attributes(cls, [position, callsign])
    b.rti.subscribe_object_class_attributes(cls, [position, callsign])
    aircraft = a.rti.register_object_instance(cls)
    a.rti.update_attribute_values(aircraft, {position: b"p", callsign: b"c"})
    got = [b.until("reflect_attribute_values")[2] for _ in range(2)]
    assert sorted(got) == sorted([((position, b"p"),), ((callsign, b"c"),)])
    sock.close()


@pytest.mark.processes
def test_the_command_serves_a_federation_and_says_what_is_wrong(
    federation: Any, start: Callable[..., Any], air: bytes, tmp_path: Path
) -> None:
    # Given a lookup service; When an RTI is started by its command
    (tmp_path / "air.xml").write_bytes(air)
    flags = (
        "--no-multicast",
        "--group",
        federation.config.lookup.groups[0],
        "--locator",
        federation.lookups[0].address,
    )
    server = start(*flags, "hla", "serve", "--federation", "Air", "--fom", str(tmp_path / "air.xml"), "--json")
    assert server.fact()["federation"] == "Air"
    # Expect a federate to join it, and a second one of that name to be refused
    with ExitStack() as stack:
        a = Federate(federation.config, "a")
        stack.callback(a.rti.disconnect)
        second = start(*flags, "hla", "serve", "--federation", "Air", "--fom", str(tmp_path / "air.xml"))
        assert second.wait(30.0) == 1
    server.signal(signal.SIGTERM)
    assert server.wait(30.0) == 0


@pytest.mark.processes
def test_after_a_kill_an_rti_serves_the_federation_at_once(
    federation: Any, air: bytes, tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an RTI with a federation, which is killed: its services are held until their leases end
    monkeypatch.setenv("JBI_LOOKUP_LOCATORS", federation.lookups[0].address)
    monkeypatch.setenv("JBI_LOOKUP_GROUPS", federation.config.lookup.groups[0])
    monkeypatch.setenv("JBI_LOOKUP_MULTICAST", "false")
    (tmp_path / "air.xml").write_bytes(air)
    serve = ("hla", "serve", "--federation", "Air", "--fom", str(tmp_path / "air.xml"), "--json")
    killed = start(*serve)
    killed.fact()
    with RTIAmbassador(federation.config) as rti:
        rti.connect(Noting())
        rti.join_federation_execution("Air", timeout=20.0)
        killed.end(kill=True)
        assert rti.evoke_callback(20.0)
        # When it is started again
        again = start(*serve)
        assert again.fact()["federation"] == "Air"
        # Expect federates to join there, though both are held
        rti.join_federation_execution("Air", timeout=20.0)
        community = JoinManager(federation.config, name="looks")
        federation.stack.callback(community.close)
        template = ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation="Air").rep(),))
        assert len(community.lookup(template)) == 2
        # When that is killed, too; Expect no federation to be found
        again.end(kill=True)
        assert rti.evoke_callback(20.0)
        assert rti.list_federation_executions(timeout=0.1) == ()
        with pytest.raises(exc.FederationExecutionDoesNotExist):
            rti.join_federation_execution("Air", timeout=0.1)


@pytest.mark.parametrize(
    ("arguments", "word", "code"),
    [
        (["--fom", "missing.xml"], "Give --federation", 2),
        (["--federation", "Air", "--fom", "missing.xml"], "missing.xml can't be read", 1),
        (["--federation", "Air", "--fom", __file__], "not well-formed", 1),
    ],
)
def test_a_command_that_can_not_serve_says_why_in_a_line(
    arguments: list[str], word: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    from jbi_pubsub.cli.app import run

    assert run(["hla", "serve", *arguments]) == code
    said = capsys.readouterr()
    assert word in said.err
    assert "Traceback" not in said.err
    assert json.dumps(said.out) == '""'


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [each.name for each in threading.enumerate() if each not in before and each.name.startswith(("rti", "fede"))]
    assert not [name for name in left if name == "federate-link"]


def test_policies_say_who_may_join(federation: Any, air: bytes, tmp_path: Path) -> None:
    # Given an RTI whose rules let nobody connect
    from jbi_pubsub.core.config import PolicySection
    from jbi_pubsub.core.errors import AccessDeniedError
    from jbi_pubsub.policy.manager import access_of

    rules = tmp_path / "policy.toml"
    rules.write_text('[[access]]\naction = "status"\n')
    config = msgspec.structs.replace(federation.config, pad=PadSection(port=0), policy=PolicySection(file=str(rules)))
    server = RtiServer(config, access=access_of(config, "rti"))
    federation.stack.callback(server.stop)
    server.start()
    server.create("Air", [Module("air.xml", air)])
    rti = RTIAmbassador(federation.config)
    with rti:
        rti.connect(FederateAmbassador())
        with pytest.raises(AccessDeniedError):
            rti.join_federation_execution("Air", timeout=20.0)


def test_metrics_end_before_the_rules_that_they_ask(federation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given an RTI with a metrics port
    order: list[str] = []
    config = msgspec.structs.replace(federation.config, pad=PadSection(port=0), metrics=MetricsSection(port=0))

    class Rules(AllowAll):
        def close(self) -> None:
            order.append("rules")

    server = RtiServer(config, access=Rules())
    assert server.metrics is not None
    stop = server.metrics.stop
    monkeypatch.setattr(server.metrics, "stop", lambda: (stop(), order.append("metrics")))
    monkeypatch.setattr(server._sessions, "stop", lambda stop=server._sessions.stop: (stop(), order.append("sessions")))
    server.start()
    # When it stops; Expect nobody to be asked who has ended
    server.stop()
    assert order == ["metrics", "rules", "sessions"]


def test_an_rti_without_a_federation_is_found_and_shown(
    federation: Any, air: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Given an RTI that serves nothing yet
    from jbi_pubsub.cli.app import run

    server = RtiServer(federation.config)
    federation.stack.callback(server.stop)
    server.start()
    (tmp_path / "air.xml").write_bytes(air)
    # When a federate has it serve a federation, and joins
    with RTIAmbassador(federation.config) as rti:
        rti.connect(FederateAmbassador())
        rti.create_federation_execution("Air", [tmp_path / "air.xml"], timeout=20.0)
        rti.join_federation_execution("Air", timeout=20.0)
        rti.register_federation_synchronization_point("start")
        # Expect people to see it
        group, locator = federation.config.lookup.groups[0], federation.lookups[0].address
        assert run(["--no-multicast", "--group", group, "--locator", locator, "status"]) == 0
        said = capsys.readouterr().out
    row = next(line.split("\t") for line in said.splitlines() if line.startswith("Air\t"))
    assert row[:3] == ["Air", server.address, "1"]
    assert row[-1] == "point start"
    assert any(line.startswith("rti\t") for line in said.splitlines())


def test_federates_speak_tls_where_it_is_set(
    federation: Any, fixtures: Any, air: bytes, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    # Given a lookup service and an RTI with certificates
    pytest.importorskip("cryptography")
    from certificates import Authority

    authority = Authority(tmp_path)
    with ExitStack() as stack:
        config = fixtures.test_config()
        made = fixtures.Federation(msgspec.structs.replace(config, tls=authority.issue("all")), stack)
        made.lookup()
        server = RtiServer(made.config)
        stack.callback(server.stop)
        server.start()
        server.create("Air", [Module("air.xml", air)])
        a, b = (Federate(made.config, name) for name in "ab")
        stack.callback(a.rti.disconnect)
        stack.callback(b.rti.disconnect)
        radio = a.rti.get_interaction_class_handle("Radio")
        text = a.rti.get_parameter_handle(radio, "text")
        a.rti.publish_interaction_class(radio)
        b.rti.subscribe_interaction_class(radio)
        # When many small messages and some large ones go both ways at once; Expect all, in order
        sent = [bytes([n % 256]) * (1 if n % 20 else 300_000) for n in range(200)]
        for each in sent:
            a.rti.send_interaction(radio, {text: each})
        assert [b.until("receive_interaction")[2][0][1] for _ in sent] == sent
        for each in (a, b):
            each.rti.enable_time_regulation(1.0)
            each.rti.enable_time_constrained()
            each.until("time_constrained_enabled")
        for step in range(1, 20):
            for each in (a, b):
                each.rti.time_advance_request(step)
            assert a.until("time_advance_grant") == b.until("time_advance_grant") == ("time_advance_grant", step)


# -- the management object model ------------------------------------------------------------------------------------


def test_a_monitor_of_an_rti_sees_federates_come_go_and_die_and_makes_one_resign(
    join: Callable[..., Federate], served: RtiServer
) -> None:
    a, monitor = join("a", federate_type="flight"), join("monitor")
    fom, rti = monitor.rti.fom, monitor.rti
    cls = rti.get_object_class_handle("HLAmanager.HLAfederate")
    rti.subscribe_object_class_attributes(cls, fom.objects[cls - 1].members)
    lost = rti.get_interaction_class_handle("HLAmanager.HLAfederate.HLAreport.HLAreportFederateLost")
    rti.subscribe_interaction_class(lost)
    known = {monitor.until("discover_object_instance")[3] for _ in range(2)}
    assert known == {f"HLAmanager.HLAfederate-{each.handle}" for each in (a, monitor)}

    def told(values: Any) -> dict[str, Any]:
        names = {each: fom.attributes[each - 1] for each, _ in values}
        return {names[each].name: fom.codec(names[each].data_type).decode(value) for each, value in values}

    # Expect who it is to be told to who asks
    instance = rti.get_object_instance_handle(f"HLAmanager.HLAfederate-{a.handle}")
    rti.request_attribute_value_update(instance, fom.objects[cls - 1].members)
    values = told(monitor.until("reflect_attribute_values")[2])
    assert (values["HLAfederateName"], values["HLAfederateType"]) == ("a", "flight")
    assert values["HLAfederateHost"] == "127.0.0.1"
    [facts] = served.status()["federations"]
    assert [(each["name"], each["type"]) for each in facts["members"]] == [("a", "flight"), ("monitor", "")]
    assert facts["objects"] == 0
    # and its times every second, when somebody has said so
    timing = rti.get_interaction_class_handle("HLAmanager.HLAfederate.HLAadjust.HLAsetTiming")
    who, period = (rti.get_parameter_handle(timing, each) for each in ("HLAfederate", "HLAreportPeriod"))
    rti.publish_interaction_class(timing)
    federate = fom.codec("HLAhandle").encode(a.handle.to_bytes(8, "big"))
    rti.send_interaction(timing, {who: federate, period: fom.codec("HLAseconds").encode(1)})
    assert all("HLAlogicalTime" in told(monitor.until("reflect_attribute_values")[2]) for _ in range(2))
    # When the monitor has it resigned; Expect it to be told, and its object to be gone
    resign = rti.get_interaction_class_handle("HLAmanager.HLAfederate.HLAservice.HLAresignFederationExecution")
    who, action = (rti.get_parameter_handle(resign, each) for each in ("HLAfederate", "HLAresignAction"))
    rti.publish_interaction_class(resign)
    rti.send_interaction(resign, {who: federate, action: fom.codec("HLAresignAction").encode("NoAction")})
    assert a.until("connection_lost")
    assert monitor.until("remove_object_instance")[1] == instance
    # When one dies; Expect that to be reported
    b = join("b")
    b.rti._joined()._socket.shut()
    _, got, parameters, *_ = monitor.until("receive_interaction")
    why = {fom.parameters[each - 1].name: value for each, value in parameters}["HLAfaultDescription"]
    assert (got, fom.codec("HLAunicodeString").decode(why)) == (lost, "the federate's connection was closed")
    assert monitor.until("remove_object_instance")
