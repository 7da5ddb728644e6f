"""A link from RTI to RTI: what federates see over one is what they see at the RTI itself."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jbi_pubsub.cli.app import run
from jbi_pubsub.cli.status import Servers, tables
from jbi_pubsub.core.config import Config, LookupSection
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.hla.ambassador import RTIAmbassador
from jbi_pubsub.hla.calls import FederateRights
from jbi_pubsub.hla.exceptions import FederationExecutionDoesNotExist, InconsistentFom, NotConnected, RtiInternalError
from jbi_pubsub.hla.federate import FederateAmbassador
from jbi_pubsub.hla.link import RtiLink
from jbi_pubsub.hla.proxy import RTI, Module, Rti
from jbi_pubsub.hla.server import RtiServer
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.lookup.opening import open_lookup
from jbi_pubsub.protocol.entries import RTI_TYPE
from tests.hla.models import SHIPS
from tests.hla.parties import Federate


class Two:
    """Two places with a lookup service each; the federation Air in the one, linked into the other as Sea."""

    def __init__(self, air: bytes) -> None:
        self.air = air
        self.stack = ExitStack()
        self.here, self.there = self._place("here"), self._place("there")
        self.rti = self.serve()
        self.link = RtiLink(self.there, self.here, "Air", "Sea")
        self.stack.callback(self.link.stop)
        self.link.start()

    def _place(self, group: str) -> Config:
        own = LookupSection(port=0, multicast=False, groups=(group,), locators=())
        server = open_lookup(Config(lookup=own), None)
        server.start()
        self.stack.callback(server.stop)
        return Config(lookup=msgspec.structs.replace(own, locators=(server.address,)))

    def serve(self) -> RtiServer:
        """An RTI with the federation."""
        made = RtiServer(self.here, lease=30.0)
        self.stack.callback(made.stop)
        made.start()
        made.create("Air", [Module("air.xml", self.air)])
        return made

    def join(self, name: str, *, over: bool, **options: Any) -> Federate:
        """A federate, over the link or at the RTI itself."""
        one = Federate(self.there if over else self.here, name, "Sea" if over else "Air", **options)
        self.stack.callback(one.rti.disconnect)
        return one


@pytest.fixture
def two(air: bytes) -> Iterator[Two]:
    made = Two(air)
    with made.stack:
        yield made


def story(two: Two, *over: bool) -> dict[str, list[tuple[Any, ...]]]:
    """What three federates are told in a federation's life, those named by `over` behind the link."""
    names = ("a", "b", "c")
    a, b, c = parties = [two.join(name, over=each) for name, each in zip(names, over, strict=True)]
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    position = a.rti.get_attribute_handle(cls, "position")
    radio = a.rti.get_interaction_class_handle("Radio")
    text = a.rti.get_parameter_handle(radio, "text")
    log: dict[str, list[tuple[Any, ...]]] = {name: [] for name in names}

    def told(*wanted: str) -> None:
        for name, one in zip(names, parties, strict=True):
            for each in wanted:
                if each:
                    log[name].append(one.until(each))

    for one in parties:
        one.rti.publish_object_class_attributes(cls, [position])
        one.rti.subscribe_object_class_attributes(cls, [position])
        one.rti.publish_interaction_class(radio)
        one.rti.subscribe_interaction_class(radio)
        one.rti.enable_time_regulation(1.0)
        log[one.rti.federate_name].append(one.until("time_regulation_enabled"))
        one.rti.enable_time_constrained()
        log[one.rti.federate_name].append(one.until("time_constrained_enabled"))
    aircraft = a.rti.register_object_instance(cls, "LH1")
    for name, one in (("b", b), ("c", c)):
        log[name].append(one.until("discover_object_instance"))
    a.rti.register_federation_synchronization_point("ready", b"now")
    told("announce_synchronization_point")
    for one in parties:
        one.rti.synchronization_point_achieved("ready")
    told("federation_synchronized")
    for step in (2.0, 3.0):
        a.rti.update_attribute_values(aircraft, {position: b"%08d" % step}, b"", step)
        b.rti.send_interaction(radio, {text: b"\0\0\0\1\0y"}, b"hello", step)
        for one in parties:
            one.rti.time_advance_request(step)
        log["b"].append(b.until("reflect_attribute_values"))
        log["c"].append(c.until("reflect_attribute_values"))
        log["a"].append(a.until("receive_interaction"))
        log["c"].append(c.until("receive_interaction"))
        told("time_advance_grant")
    c.rti.attribute_ownership_acquisition(aircraft, [position], b"mine")
    log["a"].append(a.until("request_attribute_ownership_release"))
    a.rti.attribute_ownership_divestiture_if_wanted(aircraft, [position])
    log["c"].append(c.until("attribute_ownership_acquisition_notification"))
    b.rti.request_federation_save("S")
    told("initiate_federate_save")
    for one in parties:
        one.rti.federate_save_begun()
        one.rti.federate_save_complete()
    told("federation_saved")
    for one in parties:
        one.rti.disconnect()
    return log


@pytest.mark.row("H-66")
def test_federates_over_a_link_are_told_what_one_rti_tells_them(
    two: Two, eventually: Callable[..., Any], air: bytes
) -> None:
    eventually(two.link.is_there)
    # Given the same story with all three at the RTI, and with some behind a link; Expect the same logs, to the letter
    alone = story(two, False, False, False)
    two.rti.destroy("Air")
    for over in ((True, True, True), (True, False, False), (False, True, True)):
        two.rti.create("Air", [Module("air.xml", air)])
        eventually(two.link.is_there)
        assert story(two, *over) == alone
        two.rti.destroy("Air")
        eventually(lambda: not two.link.is_there())


def test_modules_of_a_federate_go_over_a_link(two: Two, eventually: Callable[..., Any], tmp_path: Path) -> None:
    eventually(two.link.is_there)
    near = two.join("near", over=False)
    module = tmp_path / "ships.xml"
    module.write_bytes(SHIPS)
    far = two.join("far", over=True, modules=[module])
    assert far.rti.get_object_class_handle("Ship") == near.rti.get_object_class_handle("Ship")
    module.write_bytes(SHIPS.replace(b"HLAfloat64BE", b"HLAfloat32BE"))
    with pytest.raises(InconsistentFom, match=r"ships.xml"):
        two.join("further", over=True, modules=[module])


def test_the_object_model_goes_over_a_link_once_and_again_when_it_grows(
    two: Two, eventually: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a link that notes what it asks the RTI for
    eventually(two.link.is_there)
    asked: list[str] = []
    ask = two.link.ask

    def noted(method: str, *rest: Any, **more: Any) -> Any:
        asked.append(method)
        return ask(method, *rest, **more)

    monkeypatch.setattr(two.link, "ask", noted)
    # When federates join over it; Expect the first alone to have the object model fetched
    one, _ = two.join("one", over=True), two.join("other", over=True)
    assert asked.count("modules") == 1
    # When it grows, expect it to be fetched once more, for who asks for a name that is new
    (tmp_path / "ships.xml").write_bytes(SHIPS)
    near = two.join("near", over=False, modules=[tmp_path / "ships.xml"])
    assert one.rti.get_object_class_handle("Ship") == near.rti.get_object_class_handle("Ship")
    assert asked.count("modules") == 2


def test_a_line_that_is_cut_loses_no_federate_before_its_lease_has_ended(
    two: Two, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a federation whose federates have 300 seconds
    two.rti.stop()
    eventually(lambda: not two.link.is_there())
    two.rti = RtiServer(two.here, lease=300.0)
    two.stack.callback(two.rti.stop)
    two.rti.start()
    two.rti.create("Air", [Module("air.xml", two.air)])
    eventually(two.link.is_there)
    waited: list[float] = []
    for place in ("server", "link", "connection"):
        monkeypatch.setattr(f"jbi_pubsub.hla.{place}.wait_for", lambda _, seconds: waited.append(seconds))
    # When one joins over a link, expect TCP to wait as long, at both ends of the line and of the link
    two.join("one", over=True)
    assert waited == [300.0] * 4


def test_a_federation_is_not_away_while_its_registration_is_another_one(
    two: Two, eventually: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a link that has just lost its federation, as this is registered with a larger object model
    eventually(two.link.is_there)
    lost, asked, leave = threading.Event(), threading.Event(), two.link._community.leave

    def left(*items: str) -> None:
        lost.set()
        asked.wait(20.0)
        leave(*items)

    monkeypatch.setattr(two.link._community, "leave", left)
    monkeypatch.setattr(two.link, "_check", lambda _: asked.set())
    (tmp_path / "ships.xml").write_bytes(SHIPS)
    two.join("one", over=False, modules=[tmp_path / "ships.xml"])
    assert lost.wait(20.0)
    # When somebody asks it for something; Expect the answer
    assert [module.name for layer in two.link.modules("Sea")[1:] for module in layer] == ["ships.xml"]


def test_much_goes_over_a_link_in_order(two: Two) -> None:
    a, b = two.join("a", over=True), two.join("b", over=True)
    cls = a.rti.get_object_class_handle("Vehicle.Aircraft")
    position = a.rti.get_attribute_handle(cls, "position")
    a.rti.publish_object_class_attributes(cls, [position])
    b.rti.subscribe_object_class_attributes(cls, [position])
    aircraft = a.rti.register_object_instance(cls, "LH1")
    # When 40 MB go while nobody looks at them; Expect all to come, in order
    with a.rti.batched():
        for number in range(4000):
            a.rti.update_attribute_values(aircraft, {position: number.to_bytes(8, "big") * 1250}, b"")
    came = [b.until("reflect_attribute_values")[2][0][1] for _ in range(4000)]
    assert came == [number.to_bytes(8, "big") * 1250 for number in range(4000)]


def test_a_federate_that_dies_behind_a_link_is_resigned(two: Two, eventually: Callable[..., Any]) -> None:
    a = two.join("a", over=True)
    a.rti._joined().close()  # without a word
    eventually(lambda: two.rti.status()["federations"][0]["federates"] == [])
    eventually(lambda: two.link.status()["link"]["federates"] == 0)


def test_a_federation_that_goes_and_comes_is_joined_again(two: Two, eventually: Callable[..., Any]) -> None:
    a = two.join("a", over=True)
    # When the RTI stops; Expect the federate to be told, and nobody to join
    two.rti.stop()
    a.until("connection_lost")
    eventually(lambda: not two.link.is_there())
    assert two.link.status()["link"]["trouble"] == "the federation Air is away"
    with RTIAmbassador(two.there) as late:
        late.connect(FederateAmbassador())
        with pytest.raises((FederationExecutionDoesNotExist, NotConnected)):
            late.join_federation_execution("Sea", "late", timeout=0.2)
        # When there is an RTI again; Expect them to join
        two.serve()
        late.join_federation_execution("Sea", "late", timeout=20.0)


def test_a_link_leaves_an_rti_that_was_killed_for_one_that_lives(two: Two, eventually: Callable[..., Any]) -> None:
    # Given a federation whose RTI was killed: its service is held until its lease ends
    two.rti.stop()
    eventually(lambda: not two.link.is_there())
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    community = JoinManager(two.here, name="killed")
    two.stack.callback(community.close)
    entry = Rti(federation="Air", model="").rep()
    community.join(ServiceItem("killed", (RTI_TYPE,), ServiceRef("killed", RTI, (address,)), (entry,)))
    eventually(two.link.is_there)
    # When there is another one; Expect federates to join it over the link
    two.serve()
    two.join("a", over=True)
    # and when the dead one is gone, too
    community.leave("killed")
    two.join("b", over=True)


def test_a_link_goes_to_another_rti_when_one_leaves(two: Two, eventually: Callable[..., Any]) -> None:
    # Given two services of the federation
    cache = JoinManager(two.here, name="another")
    two.stack.callback(cache.close)
    [first] = cache.lookup(ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation="Air").rep(),)))
    cache.join(ServiceItem("another", first.types, first.proxy, first.entries))
    cache.wait_joined("another", 20.0)
    eventually(two.link.is_there)
    # When the one that the link is to leaves; Expect it to be to the other one
    two.rti._community.leave(first.service_id)
    eventually(lambda: two.link._behind is not None and two.link._behind.service_id == "another")
    two.join("a", over=True)


def test_what_only_an_rti_does_is_refused(two: Two, eventually: Callable[..., Any]) -> None:
    eventually(two.link.is_there)
    with pytest.raises(FederationExecutionDoesNotExist):
        two.link.open(FederateRights(Caller(""), "Land"), [])
    with RTIAmbassador(two.there) as one:
        one.connect(FederateAmbassador())
        with pytest.raises(RtiInternalError, match="where its RTI is"):
            one.destroy_federation_execution("Sea")


def test_a_link_to_what_is_here_already_says_so(two: Two, eventually: Callable[..., Any]) -> None:
    # Given a link into the place where the federation is, under the same name
    again = RtiLink(two.here, two.here, "Air")
    two.stack.callback(again.stop)
    again.start()
    eventually(lambda: "is here already" in again.status()["link"]["trouble"], what=again.status)


def test_links_are_seen_with_all_other_servers(two: Two, eventually: Callable[..., Any]) -> None:
    two.join("a", over=True)
    servers = Servers(two.there, ())
    try:
        found = servers.ask()
    finally:
        servers.close()
    shown = [table for table in tables(found) if table.columns[0].head == "federation"]
    [[name, at, federates, *_, state]] = shown[0].rows
    assert (name, at, federates, state) == ("Sea", two.link.address, "1", "link to Air")


def test_the_federates_of_an_rti_are_seen_with_what_they_did(two: Two) -> None:
    # Given: a federate that regulates time
    a = two.join("a", over=False)
    a.rti.enable_time_regulation(2.5)
    servers = Servers(two.here, ())
    # When
    try:
        found = servers.ask()
    finally:
        servers.close()
    # Expect
    [shown] = [table for table in tables(found) if table.columns[0].head == "federate"]
    assert [row for row in shown.rows if row[0] == "a"] == [("a", "Air", "", "0", "2.5", *"000000", "regulates")]


@pytest.mark.processes
def test_the_command_is_a_door_to_a_federation(two: Two) -> None:
    locator = ["--at", two.here.lookup.locators[0], "--in-group", "here"]
    place = ["--no-multicast", "--locator", two.there.lookup.locators[0], "--group", "there"]
    command = [
        sys.executable,
        "-m",
        "jbi_pubsub",
        *place,
        "hla",
        "link",
        "--federation",
        "Air",
        "--as",
        "Lake",
        *locator,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("link to Air at 127.0.0.1:")
        one = Federate(two.there, "one", "Lake")
        one.rti.disconnect()
        process.terminate()
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, ""), err
    finally:
        process.kill()
        process.communicate()


def test_errors_of_the_rti_come_over_a_link_as_they_are(two: Two) -> None:
    a = two.join("a", over=True)
    with pytest.raises(JbiError) as refused:
        a.rti.register_object_instance(1, "LH1")
    b = two.join("b", over=False)
    with pytest.raises(JbiError) as same:
        b.rti.register_object_instance(1, "LH1")
    assert (type(refused.value), refused.value.message) == (type(same.value), same.value.message)


def test_a_link_to_a_federation_without_a_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    # Given no name, as of a variable of a shell that is not set; Expect a refusal that names the option
    assert run(["hla", "link", "--federation", "", "--at", "127.0.0.1:9"]) != 0
    assert "--federation ''" in capsys.readouterr().err
