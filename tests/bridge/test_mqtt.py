"""A broker of MQTT 5 as a side of a bridge, against the real one."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from jbi_pubsub.bridge.mirror import Direction, DirectionTerms, Mirror
from jbi_pubsub.bridge.mqtt import ENVELOPE, METADATA_MOST, MqttPlatform, MqttSide, MqttTopic, check_side
from jbi_pubsub.bridge.platform import JbiPlatform
from jbi_pubsub.bridge.transformation import Transformation
from jbi_pubsub.core.config import ArchiveSection
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.info_object import InfoObject, ObjectAttributes, Parcel, Platform, TypeName, object_id_of
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
        self._file.write_text(
            f"listener {self.port} 127.0.0.1\nallow_anonymous true\n"
            f"persistence true\npersistence_location {folder}/\nmax_queued_messages 10000\nuser root\n"
        )
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

    def say(
        self,
        topic: str,
        payload: bytes,
        content: str = "",
        *,
        retain: bool = False,
        more: Mapping[str, Any] = MappingProxyType({}),
        **said: str,
    ) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if said:
            properties.UserProperty = [(name.replace("_", "-"), value) for name, value in said.items()]
        if content:
            properties.ContentType = content
        for name, value in more.items():
            setattr(properties, name, value)
        told = self._client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        told.wait_for_publish(10.0)
        assert told.is_published()  # the broker has acknowledged it

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

        def made(name: str = "b1", *, wanted: bool = False, ahead: float = 0.0, **side: Any) -> Mirror:
            given = {"topic": (MqttTopic("sensors/#", "field.Reading"), MqttTopic("open/+"))} | side
            a = JbiPlatform("alpha", here.federation.config, ALPHA, name)
            wall = lambda: time.time() + ahead  # noqa: E731  # handed on
            b = MqttPlatform("field", MqttSide(f"127.0.0.1:{broker.port}", **given), name, folder=tmp_path, wall=wall)
            terms = DirectionTerms(poll=0.2, wanted=wanted)
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


@pytest.fixture
def party(broker: Broker) -> Iterator[Callable[..., Party]]:
    """party(filters) is somebody else at the broker."""
    with ExitStack() as stack:
        yield lambda *filters: stack.enter_context(_closing(Party(broker.port, *filters)))


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


def test_characters_that_brokers_or_clients_refuse_in_a_text_are_in_none(bridged: Any, eventually: Any) -> None:
    # Given a bridge to a broker, and a client that ends its connection for U+FEFF, as paho does
    bridged()
    party = bridged.party("jbi/#")
    publisher = bridged.here.federation.light()
    at = publisher.connect_to_delegate(*ALPHA)
    odd, plain = (publisher.register_publisher(at, type_name=name, validate=False) for name in ("a\ufdd0b", "plain"))
    # When metadata with U+FEFF and non-characters, which are XML, are published, and a type whose name has one
    texts = [f"<m>{character}</m>".encode() for character in ("\ufeff", "\ufdd0", "\U0001fffe", "\U0010ffff")]
    texts.append(b"\xef\xbb\xbf<m/>")
    for text in texts:
        publisher.publish(plain, text)
    publisher.publish(odd, b"<m/>", b"p")
    # Expect all of them there
    eventually(lambda: len(party.heard) == len(texts) + 1, what=lambda: [said_by(each) for each in party.heard])
    coded = [said_by(each).get("jbi-metadata-base64") for each in party.heard if each.topic == "jbi/plain"]
    assert [b64decode(each or "") for each in coded] == texts
    (named,) = (each for each in party.heard if each.topic == "jbi/a_b")
    assert Parcel.received(named.payload).unpacked().type.name == "a\ufdd0b"


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
    # When one does, and others say none, one that no application can name, no metadata, or a way that is none
    party.say("open/1", b"p", jbi_type="said.Type", jbi_metadata="<m><n>1</n></m>")
    party.say("open/1", b"p")
    party.say("open/1", b"p", jbi_type="said.Type", jbi_metadata="<m>")
    party.say("open/1", b"p", jbi_type="said.Type", jbi_metadata="<m/>", jbi_via="a  b")
    party.say("open/1", b"rubbish", ENVELOPE)
    party.say("open/1", b"p", jbi_type="said.Type ", jbi_metadata="<m/>")
    party.say("open/1", b"p", jbi_type="said.Type", jbi_version=" 1.0", jbi_metadata="<m/>")
    # Expect the one, and the others counted
    (obj,) = taken(adapter, uid, 1)
    assert (obj.metadata, obj.type.name) == (b"<m><n>1</n></m>", "said.Type")
    eventually(lambda: mirror.status()["sides"]["field"]["lost"] == {"invalid": 6}, what=mirror.status)


def test_nothing_comes_back_from_a_broker(bridged: Any, figures: Any, eventually: Any) -> None:
    # Given two bridges that publish to the topics that they listen to
    mirrors = [bridged(name, topic=(MqttTopic("jbi/#"),)) for name in ("b1", "b2")]
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


def test_what_was_acknowledged_before_has_no_say_about_a_later_message_of_its_number(
    bridged: Any, broker: Broker, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a message that the broker has acknowledged though the call that has sent it failed
    field = bridged().sides[1]
    client = field._client
    send, sent = client._send_publish, []

    def fail(number: int, *arguments: Any) -> None:
        sent.append(number)
        send(number, *arguments)
        raise MemoryError

    obj = InfoObject(
        object_id_of("registration-1", 1), TypeName("t"), b"<m/>", b"p", Platform(0.0, "registration-1", 1, 4, 1)
    )
    with monkeypatch.context() as patched:
        patched.setattr(client, "_send_publish", fail)
        with pytest.raises(MemoryError):
            field.publish("registration-1", obj, "alpha", 5.0)
    eventually(lambda: not client._out_messages)
    # When packet identifiers have gone round, and the broker does not acknowledge the next one of that number
    broker.stop()
    eventually(lambda: not field.status()["connected"])
    client._last_mid = sent[0] - 1
    field.publish("registration-1", obj, "alpha", 5.0)
    # Expect it to be waited for
    assert field.unfinished("registration-1") == 1


@pytest.mark.parametrize("ahead", [0.0, 3_600.0])
def test_messages_are_numbered_on_over_a_restart_of_the_bridge(bridged: Any, ahead: float) -> None:
    # Given a bridge that has brought messages, perhaps while the clock was ahead, and leaves
    adapter, uid = bridged.here.subscriber(type_name="field.Reading")
    party = bridged.party()
    first = bridged("b1", ahead=ahead)
    party.say("sensors/1", b"1")
    assert len(taken(adapter, uid, 1)) == 1
    first.close()
    # When it is started again, and the clock is right
    bridged("b1")
    party.say("sensors/1", b"2")
    # Expect what it brings to be new to those who have had the others
    assert [obj.payload for obj in taken(adapter, uid, 1)] == [b"2"]


def test_a_message_is_one_object_however_many_filters_it_matches(bridged: Any, eventually: Any) -> None:
    # Given filters that overlap, of two types, and the same one twice
    filters = ("sensors/+/x", "sensors/#", "#", "sensors/#")
    mirror = bridged(topic=tuple(MqttTopic(each, f"field.T{number}") for number, each in enumerate(filters)))
    party = bridged.party()
    adapter, uid = bridged.here.subscriber()
    # When messages come that match three, two, and one
    for topic in ("sensors/1/x", "sensors/2", "other"):
        party.say(topic, topic.encode())
    # Expect one object of each, of the type of the first filter in the file
    found = taken(adapter, uid, 3)
    assert sorted((obj.type.name, obj.payload) for obj in found) == [
        ("field.T0", b"sensors/1/x"), ("field.T1", b"sensors/2"), ("field.T2", b"other"),
    ]  # fmt: skip
    assert mirror.status()["directions"][1]["lost"] == 0


@pytest.mark.parametrize(
    ("retained", "first", "again"),
    [("change", [b"old"], [b"late"]), ("new", [b"old"], [b"old", b"late"]), ("never", [], [b"late"])],
)
def test_what_is_retained_comes_as_the_file_says(
    bridged: Any, broker: Broker, retained: Any, first: list[bytes], again: list[bytes], eventually: Any
) -> None:
    # Given something retained, and a bridge
    party = bridged.party()
    party.say("sensors/1", b"old", retain=True)
    adapter, uid = bridged.here.subscriber(type_name="field.Reading")
    mirror = bridged(topic=(MqttTopic("sensors/#", "field.Reading", retained=retained),), session=0)
    assert [obj.payload for obj in taken(adapter, uid, len(first))] == first
    # When the broker has forgotten us, and something else is retained on another topic meanwhile
    broker.stop()
    eventually(lambda: not mirror.status()["sides"]["field"]["connected"])
    broker.start()
    eventually(lambda: mirror.status()["sides"]["field"]["connected"], what=mirror.status)
    bridged.party().say("sensors/2", b"late", retain=True)
    # Expect what was retained as the file says; what is published while we listen is new in any case
    found = taken(adapter, uid, len(again))
    assert [obj.payload for obj in found] == again
    assert parse_metadata(found[-1].metadata).findtext("retained") == "false"


def test_all_that_a_message_says_is_in_its_metadata(bridged: Any) -> None:
    # Given a bridge
    bridged()
    adapter, uid = bridged.here.subscriber(type_name="field.Reading")
    # When a message comes with all properties that a publisher may set, one of the user's twice
    more = {
        "PayloadFormatIndicator": 1, "MessageExpiryInterval": 600, "ResponseTopic": "answers/1",
        "CorrelationData": b"\x00\xff", "UserProperty": [("unit", "C"), ("unit", "K"), ("a", "b")],
    }  # fmt: skip
    bridged.party().say("sensors/1", b"17", "text/plain", more=more)
    # Expect each of them
    (obj,) = taken(adapter, uid, 1)
    root = parse_metadata(obj.metadata)
    assert [(each.tag, each.get("name"), each.text) for each in root] == [
        ("topic", None, "sensors/1"), ("content", None, "text/plain"), ("retained", None, "false"),
        ("format", None, "text"), ("expiry", None, "600"), ("response", None, "answers/1"),
        ("correlation", None, "AP8="), ("property", "unit", "C"), ("property", "unit", "K"), ("property", "a", "b"),
    ]  # fmt: skip


def test_an_object_that_expires_is_a_message_that_expires(bridged: Any, figures: Any, eventually: Any) -> None:
    # Given a publisher whose objects may wait for 90 s
    bridged()
    party = bridged.party("jbi/#")
    publisher, uid = bridged.here.publisher(expiration=89.5)
    # When it publishes, expect the broker told
    publisher.publish(uid, figures.figure_1)
    publisher.publish(uid, figures.figure_1, attributes=ObjectAttributes(timeout=5.0))
    publisher.publish(uid, figures.figure_1, attributes=ObjectAttributes(timeout=500.0))
    eventually(lambda: len(party.heard) == 3)
    assert [each.properties.MessageExpiryInterval for each in party.heard] == [90, 5, 90]


def test_a_broker_is_asked_for_topics_of_types_that_are_wanted(bridged: Any, eventually: Any) -> None:
    # Given a direction that brings what is wanted alone, of two types, and somebody at the broker
    topics = MqttTopic("sensors/#", "field.Reading"), MqttTopic("alarms/#", "field.Alarm")
    mirror = bridged(wanted=True, topic=topics)
    party, way = bridged.party(), mirror.directions[1]
    eventually(lambda: way.status()["registrations"] == 2, what=way.status)
    # When somebody wants one type; Expect that alone brought
    adapter, uid = bridged.here.subscriber(type_name="field.Reading", predicate="topic = 'sensors/1'")
    eventually(lambda: way.status()["wanted"].get("field.Reading", {}).get("subscribed"), what=way.status)

    def said() -> Any:
        for topic in ("alarms/1", "sensors/2", "sensors/1"):
            party.say(topic, b"x")
        return adapter.receive(uid, 0.2)

    assert eventually(said).payload == b"x"  # type: ignore[func-returns-value]
    assert way.status()["relayed"] > 0
    registrations = {each["type"]: each["published"] for each in bridged.here.pad.status()["registrations"]}
    assert registrations["field.Alarm 1.0"] == 0


def test_a_message_that_expires_while_it_waits_here_is_lost_and_told(
    bridged: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a bridge whose other side takes nothing for a while
    mirror = bridged()
    adapter, uid = bridged.here.subscriber(type_name="field.Reading")
    may, arrived = threading.Event(), Direction.arrived
    monkeypatch.setattr(Direction, "arrived", lambda way, obj: may.wait(30.0) and arrived(way, obj))
    party = bridged.party()
    # When a message expires behind another one
    party.say("sensors/1", b"first")
    party.say("sensors/1", b"late", more={"MessageExpiryInterval": 1})
    side = mirror.sides[1]
    eventually(lambda: side._inbox._waiting.qsize() == 1)
    waits = side._inbox._waiting.queue[0].message
    eventually(lambda: time.monotonic() - waits.timestamp > 1.0)
    may.set()
    # Expect the first one, and its subscriber told of the other
    assert [obj.payload for obj in taken(adapter, uid, 1)] == [b"first"]
    assert mirror.status()["sides"]["field"]["lost"] == {"expired": 1}
    eventually(lambda: adapter.losses(uid) == {"sequence_gap": 1}, what=lambda: adapter.losses(uid))


def test_what_the_broker_has_acknowledged_is_not_lost_by_kills_of_the_bridge_nor_its_own_restart(
    place: Callable[..., Place],
    broker: Broker,
    party: Callable[..., Party],
    start: Callable[..., Any],
    tmp_path: Path,
    eventually: Any,
) -> None:
    # Given a bridge, a process of its own, and a publisher at the broker that goes on all the time
    here = place(ALPHA)
    bridge = bridge_file(tmp_path, here, broker)
    process = start(*bridge)
    assert process.fact()["ready"] == "bridge"
    adapter, uid = here.subscriber(type_name="field.Reading")
    one = party()
    eventually(lambda: (one.say("sensors/1", b"begin"), adapter.receive(uid, 0.2))[1])  # type: ignore[func-returns-value]
    first = [str(number) for number in range(100)]
    said = []

    def say(numbers: list[str]) -> None:
        for number in numbers:
            one.say("sensors/1", number.encode())
            said.append(number)

    # When it is killed between, and while nobody bridges more is said
    saying = threading.Thread(target=say, args=[first])
    saying.start()
    eventually(lambda: len(said) > 50)
    process.signal(signal.SIGKILL)
    saying.join()
    # And the broker is started anew, before the bridge is
    broker.stop()
    broker.start()
    one = party()
    say([str(number) for number in range(100, 150)])
    assert start(*bridge).fact()["ready"] == "bridge"
    say([str(number) for number in range(150, 200)])
    # Expect all of it: what was under way twice, as QoS 1 has it
    missing = set(said)
    while missing and (obj := adapter.receive(uid, 20.0)) is not None:
        missing.discard(obj.payload.decode())
    assert len(said) == 200
    assert sorted(missing) == []


def test_objects_that_the_broker_has_not_acknowledged_go_again_when_a_durable_side_is_bridged_anew(
    place: Callable[..., Place],
    broker: Broker,
    party: Callable[..., Party],
    start: Callable[..., Any],
    figures: Any,
    tmp_path: Path,
    eventually: Any,
) -> None:
    # Given a bridge whose side is durable, as there is an archive, and somebody who listens at the broker
    here = place(ALPHA)
    archive = ArchiveSection(folder=str(tmp_path / "archive"), sync="never", workers=0)
    here.federation.pad("kept", "rome", msgspec.structs.replace(here.federation.config, archive=archive))
    bridge = bridge_file(tmp_path, here, broker, durable=True)
    process = start(*bridge)
    assert process.fact()["ready"] == "bridge"
    one = party("jbi/#")
    publisher = here.federation.light()
    uid = publisher.register_publisher(publisher.connect_to_delegate("kept", "rome"), figures.schema, figures.figure_1)
    assert publisher.wait_for_subscribers(uid, 1, 20.0) == 1
    ids = [publisher.publish(uid, figures.figure_1) for _ in range(50)]
    eventually(lambda: one.heard)
    # When it is killed, and more is published while no bridge runs
    process.signal(signal.SIGKILL)
    ids += [publisher.publish(uid, figures.figure_1) for _ in range(50)]
    publisher.flush()
    assert start(*bridge).fact()["ready"] == "bridge"
    # Expect all of it at the broker
    eventually(lambda: {said_by(each)["jbi-id"] for each in one.heard} == set(ids), timeout=30.0)


def bridge_file(folder: Path, here: Place, broker: Broker, *, durable: bool = False) -> list[str]:
    """The command of a bridge between a platform and the broker."""
    file = folder / "bridge.toml"
    file.write_text(f"""
name = "field"
poll = 0.2
[side.alpha]
locators = ["{here.federation.lookups[0].address}"]
delegate = {list(here.delegate)}
{"durable = true" if durable else ""}
[side.broker]
kind = "mqtt"
broker = "127.0.0.1:{broker.port}"
[[side.broker.topic]]
filter = "sensors/#"
type = "field.Reading"
""")
    leases = ("--set", "lease.publisher=2", "--set", "lease.lookup=2", "--set", "lease.subscriber=2")
    return [*leases, "bridge", str(file), "--json"]


@pytest.mark.parametrize(
    ("side", "why"),
    [
        (MqttSide("nowhere"), "not HOST:PORT"),
        (MqttSide("127.0.0.1:1883", topic=(MqttTopic("a/#/b"),)), "not a topic filter"),
        (MqttSide("127.0.0.1:1883", topic=(MqttTopic("a+"),)), "not a topic filter"),
        (MqttSide("127.0.0.1:1883", topic=(MqttTopic("$share/g/a"),)), "is a shared subscription"),
        (MqttSide("127.0.0.1:1883", prefix="a/#"), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", prefix=""), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", prefix="$SYS"), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", prefix="x" * 65_000), "can't begin a topic"),
        (MqttSide("127.0.0.1:1883", topic=(MqttTopic("a", "t\n"),)), "not a name and version"),
        (MqttSide("127.0.0.1:1883", topic=(MqttTopic("a", "t", ""),)), "not a name and version"),
        (MqttSide("127.0.0.1:1883", user="x" * 65_536), "longer than"),
        (MqttSide("127.0.0.1:1883", client_id="x" * 65_536), "longer than"),
        (MqttSide("192.0.2.1:1883", password_file="x"), "in clear text"),
        (MqttSide("127.0.0.1:1883", user="u", password_file="x"), "password_file x"),
        (MqttSide("127.0.0.1:1883", password_file="x"), "password_file without user"),
        (MqttSide("127.0.0.1:1883", ca="x"), "in clear text"),
        (MqttSide("127.0.0.1:1883", certificate="x", key="x"), "in clear text"),
        (MqttSide("127.0.0.1:1883", tls=True, key="x"), "key without certificate"),
        (MqttSide("127.0.0.1:1883", tls=True, ca="x"), "TLS to the broker"),
    ],
)
def test_settings_that_can_t_work_are_told(side: MqttSide, why: str, tmp_path: Path) -> None:
    # Given such settings, expect what is wrong
    with pytest.raises(ConfigurationError, match=why):
        check_side(side, tmp_path)
