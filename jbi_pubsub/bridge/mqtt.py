"""A broker of MQTT 5 as a platform (OASIS, MQTT Version 5.0); the one place that knows paho.

Rules:
- To the broker an object is a message on the topic PREFIX/TYPE: its payload is the payload, metadata and what the
  platform says of it are user properties `jbi-...`. Metadata beyond METADATA_MOST go in an envelope, with the payload:
  the object's bytes as they are on our own wire, content type ENVELOPE.
- From the broker a message is an object of a registration of the bridge's own, as MQTT knows neither: its id is made
  from name and type, so that of several bridges one relays it; numbers are times (microseconds), so that they go up
  over restarts, and from one bridge to the next. Metadata are those in the message, else made of topic, content type
  and user properties.
- QoS 1 both ways: what is not acknowledged is sent again. We acknowledge a message when the other side has taken it.
- What we have published does not come back (No Local, section 3.8.3.1); what another bridge has is known by `jbi-via`.
- There are no subscriptions, queries, or losses to be told over there.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import re
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from xml.sax.saxutils import escape

import msgspec

from jbi_pubsub.codegen.opening import checked_name
from jbi_pubsub.codegen.types.untyped import bundle_without
from jbi_pubsub.core.errors import (
    BackPressureError,
    ConfigurationError,
    JbiError,
    OversizeError,
    ProtocolError,
    SchemaError,
)
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import (
    DEFAULT_VERSION,
    InfoObject,
    Parcel,
    Platform,
    SchemaBundle,
    TypeName,
    object_id_of,
    packed,
)
from jbi_pubsub.core.wire.endpoint import check_endpoint
from jbi_pubsub.core.xml import NO_XML, parse_metadata
from jbi_pubsub.pad.foreign import Answers, Foreign
from jbi_pubsub.pad.subscription import HOPS_MOST, PLATFORM_NAME, QueryRequest

from .platform import Answered, Arrived, Published

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

log = logging.getLogger("jbi_pubsub.bridge")

ENVELOPE: Final = "application/vnd.jbi.object"
METADATA_MOST: Final = 32 << 10
"""Bytes of metadata that go as a user property; its length is 16 bits (section 1.5.7)."""
TOPIC_MOST: Final = 65_535
"""Bytes of a topic (section 1.5.4)."""
PREFIX_MOST: Final = 1_000
"""Characters of the prefix of a topic, which a type's name follows."""
TYPE_MOST: Final = 256
"""Characters of the name of a type that a message brings."""
TYPES_MOST: Final = 1_000
"""Types that messages may bring."""
WAITING_MOST: Final = 100
"""Messages that have come and wait for the other side; of QoS 1 the broker sends no more (Receive Maximum)."""
WAITING_BYTES: Final = 256 << 20
"""Of these: where messages may be large fewer of them wait."""
PROPERTIES_MOST: Final = 256 << 10
"""Bytes of a message beside its payload; the broker is told to send no larger packets."""
BROKEN_SECONDS: Final = 1.0
"""Until a broker is connected to again that has sent what can't be read."""
UNACKNOWLEDGED_MOST: Final = 1_000
"""Messages that the broker has not acknowledged, or that wait for it."""
ROOM_PAUSE: Final = 0.01
CLOSE_SECONDS: Final = 5.0
"""For the broker to acknowledge what it has got."""
KEEPALIVE: Final = 30
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_NO_TOPIC: Final = re.compile("[+#\x00-\x1f\x7f]")
"""Wildcards (section 4.7.1), and what a broker may refuse."""


class Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[side.NAME.topic]]`: messages that are objects for the other side."""

    filter: str
    """Topics, with the wildcards of MQTT."""
    type: str = ""
    """Information object type of what comes there; "": as each message says (`jbi-type`)."""
    version: str = DEFAULT_VERSION


class MqttSide(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[side.NAME]` of kind "mqtt"."""

    broker: str
    """HOST:PORT."""
    kind: str = "mqtt"
    prefix: str = "jbi"
    """Of the topics that objects go to."""
    topic: tuple[Topic, ...] = ()
    client_id: str = ""
    """"": one of the bridge's own."""
    user: str = ""
    password_file: str = ""
    """File with the password, from the bridge file's folder."""
    tls: bool = False
    ca: str = ""
    """The broker's authority; "": those of this host."""
    certificate: str = ""
    key: str = ""
    max_payload: Annotated[int, msgspec.Meta(ge=1)] = 16 << 20
    """Bytes of a message's payload; larger ones are left out."""


def check_side(side: MqttSide, folder: Path) -> None:
    """Raises ConfigurationError for what can't work, whoever is there."""
    host, port = _address(side)
    _paho()
    for topic in side.topic:
        if not topic.filter or len(topic.filter.encode()) > TOPIC_MOST or not _is_filter(topic.filter):
            raise ConfigurationError(
                f"{topic.filter[:100]!r} is no topic filter", hint="'+' stands for a level, a last '#' for all below"
            )
        try:
            checked_name(topic.type, topic.version)
        except SchemaError as exc:
            raise ConfigurationError(exc.message, hint=exc.hint) from exc
    for name, text in (("client_id", side.client_id), ("user", side.user)):
        if len(text.encode()) > TOPIC_MOST:  # as any text (section 1.5.4)
            raise ConfigurationError(f"{name} is longer than {TOPIC_MOST} bytes")
    if not side.prefix or _NO_TOPIC.search(side.prefix) or side.prefix[0] == "$" or len(side.prefix) > PREFIX_MOST:
        raise ConfigurationError(f"prefix {side.prefix[:100]!r} can't begin a topic")
    if side.password_file and not side.tls and not _is_loopback(host):
        raise ConfigurationError(
            f"the password for {host}:{port} would go in clear text", hint="Set tls = true for this side"
        )
    _password(side, folder)
    _context(side, folder)


class MqttPlatform:
    """A broker (see Platform). Nobody need be there yet: it is connected to again and again."""

    def __init__(
        self, name: str, side: MqttSide, bridge: str, *, folder: Path, wall: Callable[[], float] = time.time
    ) -> None:
        """Raises ConfigurationError. `folder` is that of the file names in `side`."""
        check_side(side, folder)
        self._name = name
        self._side = side
        self._wall = wall
        self._changed: Callable[[], None] = lambda: None
        self._arrived: Arrived | None = None
        self._lock = threading.Lock()
        self._published: dict[TypeName, Published] = {}
        self._numbers: dict[str, int] = {}
        for topic in side.topic:
            if topic.type:
                self._registration(TypeName(topic.type, topic.version))
        self._waiting: queue.Queue[tuple[int, MQTTMessage] | None] = queue.Queue(WAITING_MOST)
        """Messages, each with the number of the connection that it came by."""
        self._waiting_bytes = 0
        self._connection = 0
        self._is_refused = False
        self._sent = self._acknowledged = 0
        self.refused = self.lost = 0
        self._packet_most = 0
        self._trouble = ""
        self._told = ""
        self._is_listening = True
        self._stopping = threading.Event()
        self._client = self._opened(side, bridge, folder)
        self._thread = threading.Thread(target=self._run, name=f"bridge-mqtt-{name}", daemon=True)
        self._thread.start()
        self._client.loop_start()

    def _opened(self, side: MqttSide, bridge: str, folder: Path) -> Client:
        paho = _paho()
        mqtt = paho.client
        client: Client = _lasting(mqtt, self._broken)(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=side.client_id or f"jbi-{bridge}-{self._name}",
            protocol=mqtt.MQTTv5,
            manual_ack=True,
        )
        client.max_inflight_messages_set(WAITING_MOST)
        client.max_queued_messages_set(UNACKNOWLEDGED_MOST)
        client.reconnect_delay_set(1, 30)
        if side.user:
            client.username_pw_set(side.user, _password(side, folder))
        if (context := _context(side, folder)) is not None:
            client.tls_set_context(context)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message, client.on_publish = self._on_message, self._on_publish
        wanted = paho.properties(paho.packets.CONNECT)
        wanted.ReceiveMaximum = max(1, min(WAITING_MOST, WAITING_BYTES // side.max_payload))
        wanted.MaximumPacketSize = min(side.max_payload + PROPERTIES_MOST, (1 << 32) - 1)
        host, port = _address(side)
        self._connect = partial(client.connect_async, host, port, keepalive=KEEPALIVE, properties=wanted)
        self._connect()
        return client

    @property
    def name(self) -> str:
        """What it is called in `via`."""
        return self._name

    # -- what is there --------------------------------------------------------------------------------------------

    def published(self) -> Sequence[Published]:
        """A registration for each type that messages are of."""
        with self._lock:
            return list(self._published.values())

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called when that has changed."""
        self._changed = changed

    def schema(self, published: Published) -> SchemaBundle:
        """None: messages have none."""
        return bundle_without(published.type)

    def _registration(self, type_: TypeName) -> Published | None:
        """The one of a type; None: there are too many."""
        with self._lock:
            known = self._published.get(type_)
            if known is not None or len(self._published) >= TYPES_MOST:
                return known
            text = f"jbi-pubsub mqtt 1:{self._name}\0{type_.name}\0{type_.version}"
            uid = f"registration-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
            made = self._published[type_] = Published(uid, type_)
            self._numbers[uid] = 0
        self._changed()
        return made

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: Arrived) -> None:  # noqa: ARG002  # of topics, not of types
        """Have objects told, from now on."""
        self._arrived = arrived
        if self._client.is_connected():
            self._subscribe_topics()

    def _subscribe_topics(self) -> None:
        if self._arrived is not None and self._side.topic:
            options = _paho().options(qos=1, noLocal=True)
            self._client.subscribe([(topic.filter, options) for topic in self._side.topic])

    def _run(self) -> None:
        while (one := self._waiting.get()) is not None:
            connection, message = one
            with guarded(self._thread.name):
                self._take(message)
            with self._lock:
                self._waiting_bytes -= len(message.payload)
            if connection == self._connection:  # by another one its number is of another message
                self._client.ack(message.mid, message.qos)

    def _take(self, message: MQTTMessage) -> None:
        """A message for the other side."""
        topic = ""
        try:
            topic = _topic(message)
            obj = self._object(message, topic)
        except JbiError as exc:
            self.lost += 1
            self._tell(f"a message on {topic[:200]!r} is left out: {exc.message}")
            return
        if self._arrived is not None and self._is_listening:
            self._arrived.arrived(obj)

    def _object(self, message: MQTTMessage, on: str) -> InfoObject:
        """What a message stands for. Raises MetadataError, OversizeError, ProtocolError."""
        if len(message.payload) > self._side.max_payload:
            raise OversizeError(f"it has {len(message.payload)} bytes, the limit is {self._side.max_payload}")
        said = _user_properties(message)
        content = _text(getattr(message.properties, "ContentType", ""))
        topic = next((one for one in self._side.topic if _matches(one.filter, on)), Topic("#"))
        if content == ENVELOPE:
            head = (parcel := Parcel.received(message.payload)).head
            metadata, payload = bytes(head.metadata), bytes(parcel.payload)
            said = {"jbi-type": head.type_name, "jbi-version": head.type_version, "jbi-via": " ".join(head.via)}
        else:
            payload = bytes(message.payload)
            metadata = _given(said) or _described(message, on, content, said)
        parse_metadata(metadata)
        type_ = TypeName(topic.type, topic.version)
        if not topic.type:
            type_ = TypeName(said.get("jbi-type", "")[:TYPE_MOST], said.get("jbi-version", DEFAULT_VERSION)[:TYPE_MOST])
            if not type_.name or not (type_.name + type_.version).isprintable():
                raise ProtocolError("it says no type (jbi-type), nor does its topic in the bridge's file")
        registration = self._registration(type_)
        if registration is None:
            raise OversizeError(f"there are {TYPES_MOST} types already")
        return self._numbered(registration.uid, type_, metadata, payload, _via(said.get("jbi-via", "")))

    def _numbered(self, uid: str, type_: TypeName, metadata: bytes, payload: bytes, via: tuple[str, ...]) -> InfoObject:
        with self._lock:
            number = self._numbers[uid] = max(self._numbers[uid] + 1, int(self._wall() * 1e6))
        platform = Platform(self._wall(), uid, number, len(metadata), len(payload), len(via), via)
        return InfoObject(object_id_of(uid, number), type_, metadata, payload, platform)

    def stop_listening(self) -> None:
        """Nothing is told any more."""
        self._is_listening = False

    # -- objects to there -----------------------------------------------------------------------------------------

    def register(
        self, published: Published, type_: TypeName, bundle: SchemaBundle, via: tuple[str, ...], *, validate: bool
    ) -> None:
        """Nobody is to be told."""

    def unregister(self, uid: str, *, waits: bool) -> bool:  # noqa: ARG002  # as above
        """As above."""
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:  # noqa: ARG002  # it is in the object
        """An object as a message. Raises BackPressureError, OversizeError."""
        topic = f"{self._side.prefix}/{_NO_TOPIC.sub('_', obj.type.name)}"
        payload, properties = _message(obj, source)
        if self._packet_most and len(payload) + len(obj.metadata) + TOPIC_MOST > self._packet_most:
            raise OversizeError(f"object {obj.object_id} is larger than the broker takes ({self._packet_most} bytes)")
        full = _paho().client.MQTT_ERR_QUEUE_SIZE
        deadline = time.monotonic() + timeout
        while True:
            done = self._client.publish(topic, payload, qos=1, properties=properties)
            if done.rc != full:
                with self._lock:
                    self._sent += 1
                return
            if self._stopping.is_set() or time.monotonic() >= deadline:
                raise BackPressureError(f"{UNACKNOWLEDGED_MOST} messages wait for the broker {self._side.broker}")
            time.sleep(ROOM_PAUSE)  # paho tells nobody

    def tell_filtered(self, uid: str, count: int, up_to: int, timeout: float) -> None:
        """There is nobody to be told."""

    # -- the past -------------------------------------------------------------------------------------------------

    def query(self, request: QueryRequest) -> Answers:  # noqa: ARG002  # the protocol's
        """A broker has none."""
        return Answered(None)

    def provide(self, foreign: Foreign) -> None:
        """Nobody asks."""

    # -- paho's thread --------------------------------------------------------------------------------------------

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, reason: Any, properties: Any) -> None:
        with guarded(f"bridge-mqtt-{self._name}"):
            self._is_refused = reason.is_failure
            if self._is_refused:
                self._tell(f"the broker refuses us: {reason}")
                return
            self._connection += 1
            self._packet_most = getattr(properties, "MaximumPacketSize", 0)
            self._tell("")
            self._subscribe_topics()

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        if not self._stopping.is_set() and not self._is_refused:
            self._tell(f"the broker is away: {reason}")

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        self._tell("the broker does not answer")

    def _broken(self, exc: Exception) -> bool:
        """The broker has sent what can't be read; a new connection begins with a new packet. Whether to go on."""
        self._tell(f"the broker sends what is no MQTT: {type(exc).__name__}: {exc}"[:300])
        self._connect()
        return not self._stopping.wait(BROKEN_SECONDS)

    def _on_message(self, client: Client, _data: Any, message: MQTTMessage) -> None:
        with guarded(f"bridge-mqtt-{self._name}"):
            size = len(message.payload)
            try:
                if self._waiting_bytes and self._waiting_bytes + size > WAITING_BYTES:
                    raise queue.Full
                self._waiting.put_nowait((self._connection, message))
                with self._lock:
                    self._waiting_bytes += size
            except queue.Full:  # of QoS 0: of others the broker sends no more
                self.lost += 1
                client.ack(message.mid, message.qos)

    def _on_publish(self, _client: Client, _data: Any, _mid: int, reason: Any, _properties: Any) -> None:
        with self._lock:
            self._acknowledged += 1
            self.refused += bool(reason.is_failure)
        if reason.is_failure:
            self._tell(f"the broker refuses a message: {reason}")

    def _tell(self, trouble: str) -> None:
        """Once, and when it is over."""
        if trouble != self._told:
            self._told = trouble
            log.warning("%s (%s): %s", self._name, self._side.broker, trouble or "the broker answers")
        self._trouble = trouble

    # -- the rest -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            return {
                "kind": "mqtt",
                "connected": self._client.is_connected(),
                "broker": self._side.broker,
                "published": len(self._published),
                "unacknowledged": self._sent - self._acknowledged,
                "refused": self.refused,
                "lost": self.lost,
                "trouble": self._trouble,
            }

    def close(self) -> None:
        """Leave, when the broker has acknowledged what was published, or after some seconds."""
        self.stop_listening()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._acknowledged < self._sent and self._client.is_connected() and time.monotonic() < deadline:
            time.sleep(ROOM_PAUSE)
        self._stopping.set()
        if left := self._sent - self._acknowledged:
            log.warning("%s (%s): %d messages are not acknowledged", self._name, self._side.broker, left)
        self._client.disconnect()
        self._client.loop_stop()
        self._empty()
        self._thread.join(CLOSE_SECONDS)

    def _empty(self) -> None:
        """The thread ends, whatever waits: the broker has what was not acknowledged."""
        while True:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                with self._waiting.mutex:
                    self._waiting.queue.clear()
            else:
                return


# -- messages ---------------------------------------------------------------------------------------------------------


def _message(obj: InfoObject, source: str) -> tuple[bytes, Any]:
    """Payload and properties for an object."""
    paho = _paho()
    properties = paho.properties(paho.packets.PUBLISH)
    if len(obj.metadata) > METADATA_MOST:
        properties.ContentType = ENVELOPE
        return b"".join(packed(obj).relayed(source).in_memory().parts), properties
    platform = obj.platform
    properties.UserProperty = [
        ("jbi-id", obj.object_id),
        ("jbi-type", obj.type.name),
        ("jbi-version", obj.type.version),
        ("jbi-registration", platform.registration),
        ("jbi-sequence", str(platform.sequence)),
        ("jbi-published", f"{platform.published:.6f}"),
        ("jbi-via", " ".join((*platform.via, source))),
        _metadata(obj.metadata),
    ]
    return obj.payload, properties


def _metadata(metadata: bytes) -> tuple[str, str]:
    """As a property: text, or base64 of what a text of MQTT had better not have (section 1.5.4), line ends among it."""
    try:
        text = metadata.decode()
    except UnicodeDecodeError:
        text = "\n"
    if text.startswith("<?xml") or _CONTROL.search(text):
        return "jbi-metadata-base64", b64encode(metadata).decode()
    return "jbi-metadata", text


def _topic(message: MQTTMessage) -> str:
    """Raises ProtocolError."""
    try:
        return message.topic
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"its topic is no text: {exc}") from exc


def _user_properties(message: MQTTMessage) -> dict[str, str]:
    """The first one of each name."""
    found: dict[str, str] = {}
    for name, value in getattr(message.properties, "UserProperty", ()):
        found.setdefault(_text(name), _text(value))
    return found


def _given(said: dict[str, str]) -> bytes | None:
    """Metadata that a message brings. Raises ProtocolError."""
    if (coded := said.get("jbi-metadata-base64")) is not None:
        try:
            return b64decode(coded, validate=True)
        except ValueError as exc:
            raise ProtocolError(f"jbi-metadata-base64 is none: {exc}") from exc
    text = said.get("jbi-metadata")
    return None if text is None else text.encode()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _via(text: str) -> tuple[str, ...]:
    """Names of platforms, as a message says them. Raises ProtocolError."""
    names = tuple(text.split(" ", HOPS_MOST + 1)) if text else ()
    if len(names) > HOPS_MOST or not all(map(PLATFORM_NAME.fullmatch, names)):
        raise ProtocolError("jbi-via names no platforms")
    return names


def _described(message: MQTTMessage, topic: str, content: str, said: dict[str, str]) -> bytes:
    """Metadata for a message that has none."""

    def clean(text: str) -> str:
        return escape(NO_XML.sub("\ufffd", text), {'"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})

    own = "".join(f'<property name="{clean(name)}">{clean(value)}</property>' for name, value in said.items())
    retained = "true" if message.retain else "false"
    kind = f"<content>{clean(content)}</content>" if content else ""
    return f"<message><topic>{clean(topic)}</topic>{kind}<retained>{retained}</retained>{own}</message>".encode()


# -- topics and settings ----------------------------------------------------------------------------------------------


def _is_filter(text: str) -> bool:
    """MQTT 5, section 4.7.1."""
    levels = text.split("/")
    return "\0" not in text and all(
        level in ("+", "#") or not ("+" in level or "#" in level) for level in levels
    ) and "#" not in levels[:-1]  # fmt: skip


def _matches(wanted: str, topic: str) -> bool:
    from paho.mqtt.client import topic_matches_sub

    return bool(topic_matches_sub(wanted, topic))


def _address(side: MqttSide) -> tuple[str, int]:
    host, _, port = check_endpoint(side.broker).rpartition(":")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _password(side: MqttSide, folder: Path) -> str | None:
    """Raises ConfigurationError."""
    if not side.password_file:
        return None
    try:
        return (folder / side.password_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigurationError(f"password_file {side.password_file}: {exc}") from exc


def _context(side: MqttSide, folder: Path) -> ssl.SSLContext | None:
    """Raises ConfigurationError."""
    if not side.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=str(folder / side.ca) if side.ca else None)
        if side.certificate:
            context.load_cert_chain(folder / side.certificate, folder / side.key if side.key else None)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigurationError(
            f"TLS to the broker {side.broker}: {exc}", hint="ca, certificate and key are PEM files"
        ) from exc
    return context


def _lasting(mqtt: Any, broken: Callable[[Exception], bool]) -> type[Client]:
    """paho's client, whose thread goes on when it has got what it can't read: paho raises then, in the middle of a
    packet, whatever comes of it. `broken` is told, and says whether to go on."""

    class Lasting(mqtt.Client):  # type: ignore[misc]  # known when it is there
        def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> Any:  # paho's
            while True:
                try:
                    return super().loop_forever(timeout, retry_first_connection)
                except Exception as exc:  # noqa: BLE001  # of any kind: KeyError, struct.error, UnicodeDecodeError ...
                    if not broken(exc):
                        return mqtt.MQTT_ERR_PROTOCOL

    return Lasting


class _Paho(NamedTuple):
    """The parts of the library that are used."""

    client: Any
    properties: Any
    packets: Any
    options: Any


def _paho() -> _Paho:
    """Raises ConfigurationError without it."""
    try:
        from paho.mqtt import client
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties
        from paho.mqtt.subscribeoptions import SubscribeOptions
    except ImportError as exc:
        raise ConfigurationError(
            "a side of kind mqtt needs the library paho-mqtt, which is not here",
            hint="Install it: pip install 'jbi-pubsub[mqtt]'",
        ) from exc
    return _Paho(client, Properties, PacketTypes, SubscribeOptions)
