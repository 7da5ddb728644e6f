"""A broker of MQTT 5 as a side of a bridge, against the real one."""

from __future__ import annotations

import shutil
import socket
import subprocess
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from jbi_pubsub.bridge.mirror import Direction, Mirror, Terms
from jbi_pubsub.bridge.mqtt import ENVELOPE, METADATA_MOST, MqttPlatform, MqttSide, Topic, check_side
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Transformation
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.xml import parse_metadata
from tests.bridge.conftest import ALPHA, Place, taken

MOSQUITTO = shutil.which("mosquitto", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


class Broker:
    """mosquitto on loopback."""

    def __init__(self, folder: Path, eventually: Callable[..., Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._file = folder / "mosquitto.conf"
        self._file.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
        self._eventually = eventually
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert MOSQUITTO is not None
        self._process = subprocess.Popen([MOSQUITTO, "-c", self._file], stderr=subprocess.DEVNULL)
        self._eventually(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60.0)
            self._process = None


class Party:
    """Somebody else at the broker."""

    def __init__(self, port: int, *filters: str) -> None:
        self.heard: list[mqtt.MQTTMessage] = []
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_message = lambda _client, _data, message: self.heard.append(message)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        for one in filters:
            self._client.subscribe(one, qos=1)

    def say(self, topic: str, payload: bytes, content: str = "", **said: str) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if said:
            properties.UserProperty = [(name.replace("_", "-"), value) for name, value in said.items()]
        if content:
            properties.ContentType = content
        self._client.publish(topic, payload, qos=1, properties=properties).wait_for_publish(10.0)

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


def said_by(message: mqtt.MQTTMessage) -> dict[str, str]:
    return dict(getattr(message.properties, "UserProperty", ()))


@pytest.fixture
def broker(tmp_path: Path, eventually: Any) -> Iterator[Broker]:
    made = Broker(tmp_path, eventually)
    yield made
    made.stop()


@pytest.fixture
def bridged(place: Callable[..., Place], broker: Broker, tmp_path: Path, eventually: Any) -> Iterator[Any]:
    """bridged(name) is a bridge between a platform and the broker; `here` is the platform, `party()` somebody else at
    the broker."""
    with ExitStack() as stack:
        here = place(ALPHA)

        def made(name: str = "b1", **side: Any) -> Mirror:
            given = {"topic": (Topic("sensors/#", "field.Reading"), Topic("open/+"))} | side
            a = JbiPlatform("alpha", here.federation.config, ALPHA, name)
            b = MqttPlatform("field", MqttSide(f"127.0.0.1:{broker.port}", **given), name, folder=tmp_path)
            terms = Terms(poll=0.2)
            ways = tuple(
                Direction(*ends, Transformation(("*",), (), ()), bridge=name, terms=terms) for ends in ((a, b), (b, a))
            )
            mirror = Mirror((a, b), ways)
            stack.callback(mirror.close)
            mirror.start()
            eventually(
                lambda: b.status()["connected"] and all(way["listening"] for way in mirror.status()["directions"]),
                what=mirror.status,
            )
            return mirror

        made.here = here  # type: ignore[attr-defined]
        made.party = lambda *filters: stack.enter_context(_closing(Party(broker.port, *filters)))  # type: ignore[attr-defined]
        yield made


class _closing:  # noqa: N801  # as contextlib's
    def __init__(self, party: Party) -> None:
        self._party = party

    def __enter__(self) -> Party:
        return self._party

    def __exit__(self, *raised: object) -> None:
        self._party.close()


def test_an_object_is_a_message_with_its_metadata_and_ids(bridged: Any, figures: Any, eventually: Any) -> None:
    # Given a bridge to a broker, and somebody who listens there
    bridged()
    party = bridged.party("jbi/#")
    publisher, uid = bridged.here.publisher()
    # When an object is published
    object_id = publisher.publish(uid, figures.figure_1, b"\x00payload")
    # Expect it on the topic of its type
    eventually(lambda: party.heard)
    (message,) = party.heard
    said = said_by(message)
    assert (message.topic, message.payload) == ("jbi/mil.af.rl.jbi.Intel_Imagery", b"\x00payload")
    assert b64decode(said["jbi-metadata-base64"]) == figures.figure_1
    assert (said["jbi-id"], said["jbi-registration"], said["jbi-sequence"]) == (object_id, uid, "1")
    assert (said["jbi-type"], said["jbi-version"], said["jbi-via"]) == ("mil.af.rl.jbi.Intel_Imagery", "1.0", "alpha")


def test_metadata_that_are_no_property_go_in_an_envelope(bridged: Any, eventually: Any) -> None:
    # Given a bridge to a broker, and a publisher of long metadata
    bridged()
    party = bridged.party("jbi/#")
    publisher = bridged.here.federation.light()
    at = publisher.connect_to_delegate(*ALPHA)
    uid = publisher.register_publisher(at, type_name="long", validate=False)
    metadata = b"<m>" + b"x" * METADATA_MOST + b"</m>"
    # When it publishes
    object_id = publisher.publish(uid, metadata, b"p")
    # Expect the object's own bytes
    eventually(lambda: party.heard)
    (message,) = party.heard
    assert message.properties.ContentType == ENVELOPE
    obj = Parcel.received(message.payload).unpacked()
    assert (obj.object_id, obj.metadata, obj.payload, obj.platform.via) == (object_id, metadata, b"p", ("alpha",))


def test_a_message_is_an_object_of_a_registration_of_the_bridges_own(bridged: Any, eventually: Any) -> None:
    # Given a bridge whose file says of which type a topic is, and a subscriber with a predicate
    bridged()
    party = bridged.party()
    adapter, uid = bridged.here.subscriber(type_name="field.Reading", predicate="//property[@name='unit'] = '<C>'")
    # When messages of others come, hostile ones too
    party.say("sensors/1", b"17.5", unit="<C>", evil="\"'>&]]>")
    party.say("sensors/2", b"290", unit="K")
    party.say("other/1", b"x", unit="<C>")
    # Expect those of the topic that match, with metadata that say where they come from
    (obj,) = taken(adapter, uid, 1)
    assert obj.payload == b"17.5"
    root = parse_metadata(obj.metadata)
    assert root.findtext("topic") == "sensors/1"
    assert {each.get("name"): each.text for each in root.iter("property")}["unit"] == "<C>"
    assert (obj.platform.hops, obj.platform.via) == (1, ("field",))


def test_a_message_may_say_its_type_and_metadata_itself(bridged: Any, eventually: Any) -> None:
    # Given a topic whose messages say their types
    mirror = bridged()
    party = bridged.party()
    adapter, uid = bridged.here.subscriber(type_name="said.Type")
    # When one does, and others say none, no metadata, or a way that is none
    party.say("open/1", b"p", jbi_type="said.Type", jbi_metadata="<m><n>1</n></m>")
    party.say("open/1", b"p")
    party.say("open/1", b"p", jbi_type="said.Type", jbi_metadata="<m>")
    party.say("open/1", b"p", jbi_type="said.Type", jbi_metadata="<m/>", jbi_via="a  b")
    party.say("open/1", b"rubbish", ENVELOPE)
    # Expect the one, and the others counted
    (obj,) = taken(adapter, uid, 1)
    assert (obj.metadata, obj.type.name) == (b"<m><n>1</n></m>", "said.Type")
    eventually(lambda: mirror.status()["sides"]["field"]["lost"] == 4, what=mirror.status)


def test_nothing_comes_back_from_a_broker(bridged: Any, figures: Any, eventually: Any) -> None:
    # Given two bridges that publish to the topics that they listen to
    mirrors = [bridged(name, topic=(Topic("jbi/#"),)) for name in ("b1", "b2")]
    adapter, uid = bridged.here.subscriber(type_name="Intel_Imagery")
    publisher, registration = bridged.here.publisher()
    # When an object is published
    object_id = publisher.publish(registration, figures.figure_1, b"p")
    # Expect it once, and an echo at the bridge that has heard the other one
    eventually(lambda: sum(each.status()["directions"][1]["echoes"] for each in mirrors) >= 1)
    assert [obj.object_id for obj in taken(adapter, uid, 1)] == [object_id]
    assert [each.status()["directions"][1]["relayed"] for each in mirrors] == [0, 0]


def test_a_bridge_survives_the_restart_of_the_broker(
    bridged: Any, broker: Broker, figures: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a bridge whose broker goes away
    mirror = bridged()
    publisher, uid = bridged.here.publisher()
    adapter, subscription = bridged.here.subscriber(type_name="field.Reading")
    broker.stop()
    eventually(lambda: not mirror.status()["sides"]["field"]["connected"])
    # When objects are published meanwhile, and it comes back
    ids = [publisher.publish(uid, figures.figure_1) for _ in range(3)]
    eventually(lambda: mirror.status()["sides"]["field"]["unacknowledged"] == 3, what=mirror.status)
    broker.start()
    party = bridged.party("jbi/#")
    # Expect the bridge there again, both ways; what waited was sent, to whoever listened by then
    eventually(lambda: mirror.status()["sides"]["field"]["unacknowledged"] == 0, what=mirror.status)
    more = publisher.publish(uid, figures.figure_1)
    eventually(lambda: more in [said_by(each)["jbi-id"] for each in party.heard])
    assert {said_by(each)["jbi-id"] for each in party.heard} <= {*ids, more}
    party.say("sensors/1", b"1")
    assert [obj.payload for obj in taken(adapter, subscription, 1)] == [b"1"]
    # And that it is told when it went, and when it was back
    told = [each for each in caplog.messages if each.startswith("field (")]
    assert "the broker is away" in told[0]
    assert told[-1].endswith("the broker answers")
    assert told.count(told[-1]) == 1


def test_messages_are_numbered_on_over_a_restart_of_the_bridge(bridged: Any) -> None:
    # Given a bridge that has brought messages, and leaves
    adapter, uid = bridged.here.subscriber(type_name="field.Reading")
    party = bridged.party()
    first = bridged("b1")
    party.say("sensors/1", b"1")
    assert len(taken(adapter, uid, 1)) == 1
    first.close()
    # When it is started again
    bridged("b2")
    party.say("sensors/1", b"2")
    # Expect what it brings to be new to those who have had the others
    assert [obj.payload for obj in taken(adapter, uid, 1)] == [b"2"]


@pytest.mark.parametrize(
    ("side", "why"),
    [
        (MqttSide("nowhere"), "no host:port"),
        (MqttSide("127.0.0.1:1883", topic=(Topic("a/#/b"),)), "no topic filter"),
        (MqttSide("127.0.0.1:1883", topic=(Topic("a+"),)), "no topic filter"),
        (MqttSide("127.0.0.1:1883", prefix="a/#"), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", prefix=""), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", prefix="$SYS"), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", prefix="x" * 65_000), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", topic=(Topic("a", "t\n"),)), "no name and version"),
        (MqttSide("127.0.0.1:1883", topic=(Topic("a", "t", ""),)), "no name and version"),
        (MqttSide("127.0.0.1:1883", user="x" * 65_536), "longer than"),
        (MqttSide("127.0.0.1:1883", client_id="x" * 65_536), "longer than"),
        (MqttSide("192.0.2.1:1883", password_file="x"), "in clear text"),
        (MqttSide("127.0.0.1:1883", password_file="x"), "password_file x"),
        (MqttSide("127.0.0.1:1883", tls=True, ca="x"), "TLS to the broker"),
    ],
)
def test_settings_that_can_t_work_are_told(side: MqttSide, why: str, tmp_path: Path) -> None:
    # Given such settings, expect what is wrong
    with pytest.raises(ConfigurationError, match=why):
        check_side(side, tmp_path)
