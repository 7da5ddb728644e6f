"""Bridges between federations over sockets: two RTIs, and federates that never know of a bridge."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.bridge.file import OpenBridge, described
from jbi_pubsub.core.config import MetricsSection, PolicySection
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.wire import detour
from jbi_pubsub.core.wire.address import split_endpoint
from jbi_pubsub.core.wire.endpoint import Endpoint
from jbi_pubsub.hla.bridge.state import Call
from jbi_pubsub.hla.bridge.surrogate import Surrogate
from jbi_pubsub.hla.exceptions import SaveInProgress
from jbi_pubsub.hla.execution import RtiOptions
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.saves import Saves
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.network.emulation import Link
from jbi_pubsub.node.tunnel import TunnelService
from tests.hla.parties import Federate
from tests.node.tunnels import TunnelNode

FILE = """
name = "span"
poll = 0.2
[side.air]
kind = "hla"
federation = "Air"
[side.sea]
kind = "hla"
federation = "Sea"
"""


class Joint:
    """Two federations of one model, or of two, and a bridge."""

    def __init__(self, federation: Any, folder: Path, air: bytes, sea: bytes) -> None:
        self.federation, self.folder = federation, folder
        self.server = RtiServer(federation.config, lease=30.0)
        federation.stack.callback(self.server.stop)
        self.server.start()
        for name, model in (("Air", air), ("Sea", sea)):
            self.server.create(name, [Module(f"{name}.xml", model)], RtiOptions(adds=True))

    def bridge(self, more: str = "") -> OpenBridge:
        """Started, and up."""
        path = self.folder / "bridge.toml"
        path.write_text((FILE if more.startswith("[") else more + FILE) + (more if more.startswith("[") else ""))
        running = described(path).opened(self.federation.config)
        self.federation.stack.callback(running.close)
        running.start()
        return running

    def join(self, name: str, federation: str, **options: Any) -> Federate:
        """A federate."""
        one = Federate(self.federation.config, name, federation, **options)
        self.federation.stack.callback(one.rti.disconnect)
        return one


@pytest.fixture
def joint(federation: Any, air: bytes, tmp_path: Path) -> Joint:
    return Joint(federation, tmp_path, air, air)


def handles(one: Federate) -> tuple[int, int, int]:
    """Of a class and two attributes."""
    cls = one.rti.get_object_class_handle("Vehicle.Aircraft")
    return cls, one.rti.get_attribute_handle(cls, "position"), one.rti.get_attribute_handle(cls, "callsign")


@pytest.mark.row("H-25")
def test_what_one_federation_simulates_the_other_sees(joint: Joint, eventually: Callable[..., Any]) -> None:
    # Given two federations and a bridge
    bridge = joint.bridge()
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    a, b = joint.join("a", "Air"), joint.join("b", "Sea")
    cls, position, callsign = handles(a)
    a.rti.publish_object_class_attributes(cls, [position, callsign])
    b.rti.subscribe_object_class_attributes(cls, [position])
    radio = a.rti.get_interaction_class_handle("Radio")
    text = a.rti.get_parameter_handle(radio, "text")
    b.rti.publish_interaction_class(radio)
    a.rti.subscribe_interaction_class(radio)
    # When there is an aircraft in the one; Expect the other one to see it, and to be heard
    aircraft = a.rti.register_object_instance(cls, "LH1")
    _, there, _, name = b.until("discover_object_instance")
    assert name == "LH1"
    a.rti.update_attribute_values(aircraft, {position: b"p" * 8, callsign: b"\0\0\0\1\0x"}, b"tag")
    assert b.until("reflect_attribute_values")[1:4] == (there, ((position, b"p" * 8),), b"tag")
    b.rti.send_interaction(radio, {text: b"\0\0\0\1\0y"}, b"hello")
    assert a.until("receive_interaction")[1:4] == (radio, ((text, b"\0\0\0\1\0y"),), b"hello")
    a.rti.delete_object_instance(aircraft, b"over")
    assert b.until("remove_object_instance")[1:3] == (there, b"over")
    assert [way["relayed"] for way in bridge.status()["directions"]] == [1, 1]


def test_what_a_far_rti_is_asked_for_goes_together(joint: Joint, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given instances from before a bridge, and a note of what its surrogates call in one go
    a, b = joint.join("a", "Air"), joint.join("b", "Sea")
    cls, position, _ = handles(a)
    a.rti.publish_object_class_attributes(cls, [position])
    b.rti.subscribe_object_class_attributes(cls, [position])
    for _ in range(50):
        a.rti.register_object_instance(cls)
    trips: list[list[str]] = []
    do = Surrogate.do

    def noted(surrogate: Surrogate, calls: Sequence[Call]) -> Any:
        trips.append([call.service for call in calls])
        return do(surrogate, calls)

    monkeypatch.setattr(Surrogate, "do", noted)
    joint.bridge()
    # When they cross, expect few journeys there and back
    for _ in range(50):
        b.until("discover_object_instance")
        a.until("provide_attribute_value_update")
    for service in ("register_object_instance", "request_attribute_value_update"):
        journeys = [trip.count(service) for trip in trips if service in trip]
        assert (sum(journeys), len(journeys) < 10) == (50, True)


DRONES = """<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
<objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Drone</name>
<attribute><name>range</name><dataType>HLAfloat64BE</dataType></attribute></objectClass></objectClass></objects>
<interactions><interactionClass><name>HLAinteractionRoot</name><interactionClass><name>Alarm</name></interactionClass>
</interactionClass></interactions></objectModel>"""


def test_what_federates_add_to_both_object_models_goes_over_a_bridge_that_runs(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    # Given a bridge, and two federates that know drones
    (joint.folder / "drones.xml").write_text(DRONES)
    bridge = joint.bridge()
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    a = joint.join("a", "Air", modules=[joint.folder / "drones.xml"])
    cls = a.rti.get_object_class_handle("Drone")
    reach = a.rti.get_attribute_handle(cls, "range")
    a.rti.publish_object_class_attributes(cls, [reach])
    drone = a.rti.register_object_instance(cls, "D1")
    b = joint.join("b", "Sea", modules=[joint.folder / "drones.xml"])
    b.rti.subscribe_object_class_attributes(cls, [reach])
    alarm = a.rti.get_interaction_class_handle("Alarm")
    a.rti.subscribe_interaction_class(alarm)
    b.rti.publish_interaction_class(alarm)
    # When the one is asked for what there was before the bridge knew; Expect the other to see it, and to be heard
    _, asked, attributes, _ = a.until("provide_attribute_value_update")
    assert asked == drone
    assert reach in attributes
    a.rti.update_attribute_values(drone, {reach: b"r" * 8})
    _, there, _, name = b.until("discover_object_instance")
    assert name == "D1"
    assert b.until("reflect_attribute_values")[1:3] == (there, ((reach, b"r" * 8),))
    b.rti.send_interaction(alarm, {}, b"now")
    assert a.until("receive_interaction")[1:4] == (alarm, (), b"now")
    assert bridge.status()["trouble"] == ""


def test_additions_that_do_not_go_together_leave_a_bridge_as_it_was(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    # Given a bridge, and an aircraft
    bridge = joint.bridge()
    a, b = joint.join("a", "Air"), joint.join("b", "Sea")
    cls, position, callsign = handles(a)
    a.rti.publish_object_class_attributes(cls, [position, callsign])
    b.rti.subscribe_object_class_attributes(cls, [position])
    aircraft = a.rti.register_object_instance(cls, "LH1")
    _, there, *_ = b.until("discover_object_instance")
    # When the ranges of drones are numbers on one side, and texts on the other
    for side, text in (("Air", DRONES), ("Sea", DRONES.replace("HLAfloat64BE", "HLAunicodeString"))):
        (joint.folder / f"{side}.xml").write_text(text)
        joint.join(f"{side}'s", side, modules=[joint.folder / f"{side}.xml"])
    # Expect it to say so, and the aircraft to be seen as before
    eventually(lambda: "range" in bridge.status()["trouble"], what=bridge.status)
    a.rti.update_attribute_values(aircraft, {position: b"p" * 8}, b"tag")
    assert b.until("reflect_attribute_values")[1:3] == (there, ((position, b"p" * 8),))


@pytest.mark.parametrize(("actions", "wanted"), [("'connect', 'status'", 200), ("'connect'", 403)])
def test_who_may_not_see_a_status_gets_no_metrics_of_a_bridge(joint: Joint, actions: str, wanted: int) -> None:
    rules = joint.folder / "policy.toml"
    rules.write_text(f"[[access]]\naction = [{actions}]\n")
    config = msgspec.structs.replace(
        joint.federation.config, policy=PolicySection(file=str(rules)), metrics=MetricsSection(port=0)
    )
    path = joint.folder / "bridge.toml"
    path.write_text(FILE)
    bridge: Any = described(path).opened(config)
    joint.federation.stack.callback(bridge.close)
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", bridge.metrics.port, timeout=20)) as connection:
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == wanted


def test_a_bridge_that_can_not_serve_closes_what_it_has_opened(joint: Joint, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a host that has no thread left; When a bridge is opened; Expect its port to be closed
    def start(_: Endpoint) -> None:
        raise RuntimeError("can't start new thread")

    stopped: list[str] = []
    stop = Endpoint.stop
    monkeypatch.setattr(Endpoint, "start", start)
    monkeypatch.setattr(Endpoint, "stop", lambda endpoint: (stop(endpoint), stopped.append(endpoint.address)))
    path = joint.folder / "bridge.toml"
    path.write_text(FILE)
    with pytest.raises(RuntimeError):
        described(path).opened(joint.federation.config)
    assert len(stopped) == 1


@pytest.mark.row("H-26", "H-37")
def test_a_save_and_a_point_take_both_federations(joint: Joint, eventually: Callable[..., Any]) -> None:
    bridge = joint.bridge()
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    a, b = joint.join("a", "Air"), joint.join("b", "Sea")
    # When a point is registered in the one; Expect nobody to be synchronized before all are
    a.rti.register_federation_synchronization_point("ready", b"now")
    for one in (a, b):
        assert one.until("announce_synchronization_point") == ("announce_synchronization_point", "ready", b"now")
    a.rti.synchronization_point_achieved("ready")
    assert a.rti.evoke_callback(0.2) is False
    b.rti.synchronization_point_achieved("ready")
    for one in (a, b):
        assert one.until("federation_synchronized") == ("federation_synchronized", "ready")
    # and the same of a save, and a restore
    b.rti.request_federation_save("S")
    for one in (a, b):
        one.until("initiate_federate_save")
        one.rti.federate_save_begun()
        one.rti.federate_save_complete()
    for one in (a, b):
        one.until("federation_saved")
    a.rti.request_federation_restore("S")
    for one in (a, b):
        one.until("initiate_federate_restore")
        one.rti.federate_restore_complete()
    for one in (a, b):
        one.until("federation_restored")
    eventually(lambda: bridge.status()["pending"] == [], what=bridge.status)


@pytest.mark.row("H-68")
def test_time_advances_on_both_sides_together(joint: Joint, eventually: Callable[..., Any]) -> None:
    # Given a bridge that couples time, and federates that regulate and are constrained on both sides
    bridge = joint.bridge("[time]\ncouple = true\nlookahead = 0.001\n")
    a, b, aircraft, there = flying(joint, bridge, eventually)
    position = handles(a)[1]
    for one in (a, b):
        one.rti.enable_time_regulation(1.0)
        one.until("time_regulation_enabled")
        one.rti.enable_time_constrained()
        one.until("time_constrained_enabled")
    eventually(lambda: b.rti.query_galt() < math.inf)  # the bridge regulates there, as it has heard of the other side
    # When values are sent out of order, and who has to get them asks for a time
    for time in (5.0, 3.0, 9.0):
        a.rti.update_attribute_values(aircraft, {position: int(time).to_bytes(8, "big")}, b"", time)
    b.rti.time_advance_request(6.0)
    # Expect it not to be granted before the other side has asked for as much
    b.rti.evoke_callback(0.2)
    assert "time_advance_grant" not in [each[0] for each in b.told.log]
    a.rti.time_advance_request(6.0)
    a.until("time_advance_grant")
    # and what is earlier to come before the grant, in order, and nothing later
    came = [b.until("reflect_attribute_values") for _ in range(2)]
    assert [(each[1], each[2][0][1][-1], each[4]) for each in came] == [(there, 3, 3.0), (there, 5, 5.0)]
    assert b.until("time_advance_grant") == ("time_advance_grant", 6.0)
    for one in (a, b):
        one.rti.time_advance_request(10.0)
    assert b.until("reflect_attribute_values")[4] == 9.0
    # When both are through; Expect both to be at infinity
    for one in (a, b):
        one.until("time_advance_grant")
        one.rti.time_advance_request(math.inf)
    for one in (a, b):
        assert one.until("time_advance_grant") == ("time_advance_grant", math.inf)


# -- what dies, and comes again --------------------------------------------------------------------------------------


def save(*federates: Federate, label: str = "S", ends: str = "federation_saved") -> None:
    """A save of both sides."""
    federates[0].rti.request_federation_save(label)
    for one in federates:
        one.until("initiate_federate_save")
        one.rti.federate_save_begun()
        one.rti.federate_save_complete()
    for one in federates:
        one.until(ends)


def restore(*federates: Federate, label: str = "S", ends: str = "federation_restored") -> None:
    """A restore of both sides."""
    federates[0].rti.request_federation_restore(label)
    for one in federates:
        one.until("initiate_federate_restore")
        one.rti.federate_restore_complete()
    for one in federates:
        one.until(ends)


def flying(joint: Joint, bridge: OpenBridge, eventually: Callable[..., Any]) -> tuple[Federate, Federate, int, int]:
    """Two federates, and an aircraft that the one has and the other sees: its handles."""
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    a, b = joint.join("a", "Air"), joint.join("b", "Sea")
    cls, position, _ = handles(a)
    a.rti.publish_object_class_attributes(cls, [position])
    b.rti.subscribe_object_class_attributes(cls, [position])
    aircraft = a.rti.register_object_instance(cls, "LH1")
    return a, b, aircraft, b.until("discover_object_instance")[1]


@pytest.mark.row("H-67")
def test_what_a_save_has_of_the_bridge_outlives_it(joint: Joint, eventually: Callable[..., Any]) -> None:
    # Given a bridge that keeps saves in a folder, and a save of both federations
    bridge = joint.bridge('saves = "saves"\n')
    a, b, aircraft, there = flying(joint, bridge, eventually)
    position = handles(a)[1]
    save(a, b)
    # When the bridge has gone and another one has come
    bridge.close()
    b.until("remove_object_instance")
    bridge = joint.bridge('saves = "saves"\n')
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    b.until("discover_object_instance")
    # Expect both federations to go back, and the aircraft to be seen as it was then
    restore(b, a)
    a.rti.update_attribute_values(aircraft, {position: b"p" * 8}, b"")
    assert b.until("reflect_attribute_values")[1:3] == (there, ((position, b"p" * 8),))


def test_a_save_whose_part_in_the_bridge_is_not_known_any_more_is_not_restored(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    # Given a bridge that keeps saves in memory, and a save of both federations
    bridge = joint.bridge()
    a, b, aircraft, _ = flying(joint, bridge, eventually)
    save(a, b)
    # Expect another bridge to have nobody restored
    bridge.close()
    b.until("remove_object_instance")
    bridge = joint.bridge()
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    there = b.until("discover_object_instance")[1]
    restore(a, b, ends="federation_not_restored")
    assert bridge.status()["counters"]["unknown_save"] == 1
    # and all to go on as before
    position = handles(a)[1]
    a.rti.update_attribute_values(aircraft, {position: b"p" * 8}, b"")
    assert b.until("reflect_attribute_values")[1] == there


def test_a_bridge_that_can_not_keep_its_part_of_a_save_has_nobody_saved(
    joint: Joint, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a bridge whose folder is full
    bridge = joint.bridge('saves = "saves"\n')
    a, b, _, _ = flying(joint, bridge, eventually)
    with monkeypatch.context() as full:
        full.setattr(Saves, "put", refuse)
        save(a, b, ends="federation_not_saved")
    # Expect the next save to be one, and to be restored
    save(a, b)
    restore(a, b)


def refuse(*_: Any) -> None:
    raise StorageError("no space left on device")


@pytest.mark.row("H-61")
def test_an_rti_that_dies_and_comes_again_is_joined_again_and_nothing_is_there_twice(
    joint: Joint, eventually: Callable[..., Any], air: bytes
) -> None:
    # Given a bridge to a federation in an RTI of its own
    other = RtiServer(joint.federation.config, lease=30.0)
    other.start()
    other.create("Land", [Module("air.xml", air)])
    path = joint.folder / "land.toml"
    path.write_text(FILE.replace("Sea", "Land"))
    bridge = described(path).opened(joint.federation.config)
    joint.federation.stack.callback(bridge.close)
    bridge.start()
    a = joint.join("a", "Air")
    cls, position, _ = handles(a)
    a.rti.publish_object_class_attributes(cls, [position])
    aircraft = a.rti.register_object_instance(cls, "LH1")
    # When that RTI dies, and another one serves the federation
    other.stop()
    eventually(lambda: bridge.status()["state"] == "waiting", what=bridge.status)
    assert "Land" in bridge.status()["trouble"]
    again = RtiServer(joint.federation.config, lease=30.0)
    joint.federation.stack.callback(again.stop)
    again.start()
    again.create("Land", [Module("air.xml", air)])
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    # Expect who joins there to see the aircraft, once, and what becomes of it
    b = joint.join("b", "Land")
    b.rti.subscribe_object_class_attributes(cls, [position])
    assert b.until("discover_object_instance")[3] == "LH1"
    a.rti.update_attribute_values(aircraft, {position: b"p" * 8}, b"")
    assert b.until("reflect_attribute_values")[2] == ((position, b"p" * 8),)
    assert [each for each in b.told.log if each[0] == "discover_object_instance"] == []


def test_a_bridge_whose_policy_needs_more_than_an_rti_offers_says_so_and_comes_when_it_is_offered(
    joint: Joint, eventually: Callable[..., Any], air: bytes
) -> None:
    # Given a bridge that asks for services beyond the standard, and an RTI without them on one side
    def serve(options: RtiOptions) -> RtiServer:
        other = RtiServer(joint.federation.config, lease=30.0)
        joint.federation.stack.callback(other.stop)
        other.start()
        other.create("Land", [Module("air.xml", air)], options)
        return other

    def opened() -> OpenBridge:
        bridge = described(path).opened(joint.federation.config)
        joint.federation.stack.callback(bridge.close)
        return bridge

    path = joint.folder / "land.toml"
    path.write_text(FILE.replace("Sea", "Land") + '[policy]\nconsensus = "add"\n')
    without = serve(RtiOptions())
    # When it is started; Expect a refusal that says who lacks what
    with pytest.raises(ConfigurationError, match="the RTI of Land does not offer disclose_surrogate") as caught:
        opened().start()
    assert "--adds" in caught.value.hint
    # When that RTI is another one while a bridge waits; Expect it to wait on, and to say why, and to come in the end
    without.stop()
    bridge = opened()
    bridge.start()
    without = serve(RtiOptions())
    eventually(lambda: "disclose_surrogate" in bridge.status()["trouble"], what=bridge.status)
    assert bridge.status()["state"] == "waiting"
    without.stop()
    serve(RtiOptions(adds=True))
    eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
    assert bridge.status()["trouble"] == ""


def test_a_federate_that_dies_while_both_sides_save_ends_the_save_on_both(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    bridge = joint.bridge()
    a, b, _, _ = flying(joint, bridge, eventually)
    c = joint.join("c", "Sea")
    # Given a save that waits for one federate
    a.rti.request_federation_save("S")
    for one in (a, b):
        one.until("initiate_federate_save")
        one.rti.federate_save_begun()
        one.rti.federate_save_complete()
    c.until("initiate_federate_save")
    # When its connection breaks without a word; Expect both sides to hear that they have not saved
    c.rti._joined()._socket.shut()
    for one in (a, b):
        one.until("federation_not_saved")
    eventually(lambda: bridge.status()["pending"] == [], what=bridge.status)


def test_a_bridge_that_dies_while_both_sides_wait_leaves_nobody_waiting(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    # Given a point that waits for the other side
    bridge = joint.bridge()
    a, b, _, _ = flying(joint, bridge, eventually)
    a.rti.register_federation_synchronization_point("ready", b"")
    for one in (a, b):
        one.until("announce_synchronization_point")
    a.rti.synchronization_point_achieved("ready")
    # When the bridge goes; Expect each side to be synchronized by itself
    bridge.close()
    a.until("federation_synchronized")
    b.rti.synchronization_point_achieved("ready")
    b.until("federation_synchronized")


def test_who_sends_faster_than_the_other_side_takes_is_held_back_and_nothing_is_lost(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    # Given a bridge in which ten messages may wait
    bridge = joint.bridge("[flow]\nqueue = 10\n")
    a, b, aircraft, there = flying(joint, bridge, eventually)
    position = handles(a)[1]
    # When a thousand values go while it takes nothing
    for number in range(1000):
        a.rti.update_attribute_values(aircraft, {position: number.to_bytes(8, "big")}, b"")
    # Expect all of them to come, in their order
    came = [b.until("reflect_attribute_values") for _ in range(1000)]
    assert [int.from_bytes(each[2][0][1], "big") for each in came] == list(range(1000))
    assert {each[1] for each in came} == {there}
    assert bridge.status()["directions"][0]["relayed"] >= 1000


@pytest.mark.row("H-47")
def test_a_save_begins_behind_more_messages_than_may_wait(joint: Joint, eventually: Callable[..., Any]) -> None:
    # Given a bridge in which ten messages may wait, and a federate that sends without end
    bridge = joint.bridge("[flow]\nqueue = 10\n")
    a, b, aircraft, _ = flying(joint, bridge, eventually)
    position = handles(a)[1]
    sent = 0
    for number in range(3):
        # When the other side begins to save, and takes no more of them
        b.rti.request_federation_save(f"S{number}")
        with contextlib.suppress(SaveInProgress):
            while True:
                with a.rti.batched():
                    for _ in range(200):
                        a.rti.update_attribute_values(aircraft, {position: sent.to_bytes(8, "big")}, b"")
                        sent += 1
                a.rti.query_attribute_ownership(aircraft, position)  # is refused as soon as the save begins
        # Expect this side to begin as well, though many are before that
        for one in (a, b):
            one.until("initiate_federate_save")
            one.rti.federate_save_begun()
            one.rti.federate_save_complete()
        for one in (a, b):
            one.until("federation_saved")
    # and all messages to come
    a.rti.update_attribute_values(aircraft, {position: b"the last"}, b"")
    while b.until("reflect_attribute_values")[2][0][1] != b"the last":
        pass


@pytest.mark.row("X-09")
def test_a_save_completes_over_a_bad_link_and_what_is_cut_ends_alike_on_both_sides(
    joint: Joint, eventually: Callable[..., Any]
) -> None:
    # Given a bridge whose far side is behind a slow and uneven link
    with Link("127.0.0.4", seed=1) as link:
        config = joint.federation.config
        [locator] = link.behind(config, joint.server.address).lookup.locators
        path = joint.folder / "bad.toml"
        path.write_text(f'{FILE}locators = ["{locator}"]\n')
        bridge = described(path).opened(config)
        joint.federation.stack.callback(bridge.close)
        link.shape(bits_per_second=200_000, delay=0.02, jitter=0.05)
        bridge.start()
        a, b, _, _ = flying(joint, bridge, eventually)
        # Expect saves to complete
        save(a, b)
        assert link.passed["up"] > 0
        # When the link breaks while both save; Expect both to end alike, by themselves
        a.rti.request_federation_save("T")
        for one in (a, b):
            one.until("initiate_federate_save")
            one.rti.federate_save_begun()
        link.cut()
        ends = []
        for one in (a, b):
            one.rti.federate_save_complete()
            ended = eventually(lambda one=one: ending(one))
            ends.append(ended)
        assert ends == ["federation_not_saved"] * 2
        # and the bridge to come again, and the next save to be one
        eventually(lambda: bridge.status()["state"] == "up", what=bridge.status)
        save(a, b, label="U")


@pytest.mark.row("X-09")
def test_a_save_completes_through_nodes_whose_network_loses_a_fifth_of_all(
    joint: Joint, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given two nodes that lose a fifth of what they say to each other, by which alone the RTIs are reached
    host, port = split_endpoint(joint.server.address)
    reached = {"rti": TunnelService((joint.server.address,), lambda _: socket.create_connection((host, port)))}
    segment = f"save-{os.urandom(6).hex()}"
    near, far = (TunnelNode(segment, name, loss=0.2, services=reached) for name in ("near", "far"))
    for node in (near, far):
        joint.federation.stack.callback(node.stop)
        node.start()
    eventually(lambda: far.id in near.peers() and near.id in far.peers())
    door = near.tunnels.door(far.id, "rti").address
    monkeypatch.setattr(detour, "way_to", lambda endpoint: door if endpoint == joint.server.address else endpoint)
    # When two federations are bridged, expect an aircraft to be seen, and saves to complete
    bridge = joint.bridge()
    a, b, _, _ = flying(joint, bridge, eventually)
    for number in range(3):
        save(a, b, label=f"S{number}")
    assert near.tunnels.status()["streams"] >= 2
    assert far.network.status()["links"][0]["repairs"] > 0


def ending(one: Federate) -> str:
    """How a save has ended for a federate; "": it has not."""
    one.rti.evoke_callback(0.01)
    return next((each[0] for each in one.told.log if each[0] in ("federation_saved", "federation_not_saved")), "")
