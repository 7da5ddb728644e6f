"""Bridges between federations over sockets: two RTIs, and federates that never know of a bridge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.bridge.file import Running, described
from jbi_pubsub.hla.execution import Options
from jbi_pubsub.hla.proxy import Module
from jbi_pubsub.hla.server import RtiServer
from tests.hla.parties import Federate

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
            self.server.create(name, [Module(f"{name}.xml", model)], Options(adds=True))

    def bridge(self, more: str = "") -> Running:
        """Started, and up."""
        path = self.folder / "bridge.toml"
        path.write_text(FILE + more)
        running = described(path).opened(self.federation.config)
        self.federation.stack.callback(running.close)
        running.start()
        return running

    def join(self, name: str, federation: str) -> Federate:
        """A federate."""
        one = Federate(self.federation.config, name, federation)
        self.federation.stack.callback(one.rti.disconnect)
        return one


@pytest.fixture
def joint(federation: Any, air: bytes, tmp_path: Path) -> Joint:
    return Joint(federation, tmp_path, air, air)


def handles(one: Federate) -> tuple[int, int, int]:
    """Of a class and two attributes."""
    cls = one.rti.get_object_class_handle("Vehicle.Aircraft")
    return cls, one.rti.get_attribute_handle(cls, "position"), one.rti.get_attribute_handle(cls, "callsign")


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
