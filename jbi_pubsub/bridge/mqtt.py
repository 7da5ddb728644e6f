"""A broker of MQTT 5 as a platform (OASIS, MQTT Version 5.0); the one place that knows paho.

Rules:
- To the broker an object is a message on the topic PREFIX/TYPE: its payload is the payload, metadata and what the
  platform says of it are user properties `jbi-...`. Metadata beyond METADATA_MOST go in an envelope, with the payload:
  the object's bytes as they are on our own wire, content type ENVELOPE.
- From the broker a message is an object of a registration of the bridge's own, as MQTT knows neither: its id is made
  from name and type, so that of several bridges one relays it; numbers are times (microseconds), so that they go up
  over restarts, and from one bridge to the next. Metadata are those in the message, else made of topic, content type
  and user properties.
- QoS 1 both ways: what is not acknowledged is sent again. We acknowledge a message when the other side has taken it, in
  the order in which they came. The broker keeps our session while we are away.
- One message is one object, however many of our filters it matches: of the copies that a broker sends, each with its
  subscription identifier, that of the first filter counts.
- A message that can't be an object, or that paho can't read, is acknowledged, or it would come again for ever; it is
  lost, and counted by cause.
- What we have published does not come back (No Local, section 3.8.3.1); what another bridge has is known by `jbi-via`.
- There are no subscriptions, queries, or losses to be told over there.
"""

from __future__ import annotations

import hashlib
import logging
import math
import queue
import re
import ssl
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple
from xml.sax.saxutils import escape

import msgspec

from jbi_pubsub.codegen.opening import checked_name
from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.cache import Cache
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
    Cause,
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
from jbi_pubsub.protocol.entries import HOPS_MOST, PLATFORM_NAME

from .plain import PlainPlatform
from .platform import HANDED_SECONDS, Arrived, Handed, Published

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
"""Limit of their bytes: where messages may be large fewer of them wait."""
HELD_MOST: Final = 1_000
"""Limit of messages of QoS 1, not acknowledged: brokers that have restored a session send more than Receive Maximum."""
SETTLE_SECONDS: Final = 0.002
"""Until it is looked again what the other side has taken: the broker sends no more meanwhile."""
PROPERTIES_MOST: Final = 64 << 10
"""Bytes of a message's properties; paho's time for them goes up with their square."""
PACKET_MOST: Final = 256 << 10
"""Bytes of a packet beside the payload; the broker is told to send no larger ones."""
ALIASES_MOST: Final = 16
"""Topics that the broker may send as a number (Topic Alias Maximum)."""
SESSION_MOST: Final = (1 << 32) - 1
AGAIN_MOST: Final = 30.0
"""Seconds until a broker is connected to again that ends connections, or sends what can't be read."""
STEADY_SECONDS: Final = 10.0
"""A connection that lasts so long is none of these."""
RETAINED_MOST: Final = 10_000
"""Topics of which it is known what was there last."""
UNACKNOWLEDGED_MOST: Final = 1_000
UNACKNOWLEDGED_BYTES: Final = 256 << 20
"""Messages that the broker has not acknowledged, or that wait for it, and their bytes."""
ANSWERS_MOST: Final = 10_000
"""Packets that wait for a broker that reads none."""
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
    retained: Literal["change", "new", "never"] = "change"
    """When the broker's retained messages come: when they have changed; anew with each connection; or never."""

    @property
    def identifier(self) -> int:
        """Identifier of its subscription (section 3.8.2.1.2); the same in all files."""
        return int.from_bytes(hashlib.sha256(self.filter.encode()).digest()[:4]) % ((1 << 28) - 1) + 1


class MqttSide(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[side.NAME]` of kind "mqtt"."""

    broker: str
    """HOST:PORT."""
    kind: str = "mqtt"
    prefix: str = "jbi"
    """Prefix of the topics that objects go to."""
    topic: tuple[Topic, ...] = ()
    client_id: str = ""
    """"": made of the names of bridge and side."""
    session: Annotated[int, msgspec.Meta(ge=0, le=SESSION_MOST)] = 86_400
    """Seconds for which the broker is to keep what comes for us while we are away (Session Expiry Interval)."""
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
        if topic.filter.startswith("$share/"):  # there is no No Local for these (section 3.8.3.1)
            raise ConfigurationError(
                f"{topic.filter[:100]!r} is a shared subscription", hint="Give the bridges client ids of their own"
            )
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


class MqttPlatform(PlainPlatform):
    """A broker (see Platform). Nobody need be there yet: it is connected to again and again."""

    def __init__(
        self, name: str, side: MqttSide, bridge: str, *, folder: Path, wall: Callable[[], float] = time.time
    ) -> None:
        """Raises ConfigurationError. `folder` is that of the file names in `side`."""
        check_side(side, folder)
        super().__init__("mqtt", name, wall)
        self._side = side
        self._arrived: Arrived | None = None
        for topic in side.topic:
            if topic.type:
                self._registration(TypeName(topic.type, topic.version))
        self._waiting: queue.Queue[_Came | None] = queue.Queue()
        self._waiting_bytes = 0
        self._handed = Handed[_Came](self._acknowledge)
        """Messages that the other side was given, or that are no objects, until they are acknowledged, in order."""
        self._open: dict[int, _Came] = {}
        """These by their packet identifiers."""
        self._is_settling = True
        self._held = 0
        """Messages of QoS 1 of this connection that are not acknowledged."""
        self._held_most = max(1, min(WAITING_MOST, WAITING_BYTES // side.max_payload))
        self._connection = 0
        self._since = 0.0
        """When it began (monotonic seconds)."""
        self._backoff = Backoff(2.0, AGAIN_MOST)
        self._aliases: dict[int, bytes] = {}
        self._seen: Cache[bytes, bytes] = Cache(RETAINED_MOST)
        """Digests of topics, and of what came there last."""
        self._is_refused = False
        self._has_identifiers = True
        self._is_kept = False
        """The broker had our session when this connection began."""
        self._lost_sessions = 0
        self._unacknowledged: dict[int, tuple[str, int]] = {}
        """Messages to the broker: registration and bytes, by packet identifier."""
        self._unacknowledged_bytes = 0
        self._expirations: dict[str, float] = {}
        self.refused = 0
        self._lost: Counter[str] = Counter()
        self._packet_most = 0
        self._trouble = ""
        self._told = ""
        self._is_listening = True
        self._may = threading.Event()
        """Somebody is told of objects, or we leave."""
        self._stopping = threading.Event()
        self._client = self._opened(side, bridge, folder)
        self._thread = threading.Thread(target=self._run, name=f"bridge-mqtt-{name}", daemon=True)
        self._thread.start()
        self._client.loop_start()

    def _opened(self, side: MqttSide, bridge: str, folder: Path) -> Client:
        paho = _paho()
        mqtt = paho.client
        self._packets = PACKET_MOST + side.max_payload
        client: Client = _lasting(mqtt, self._broken, self._unreadable, self._packets)(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=side.client_id or f"jbi-{bridge}-{self.name}",  # the same in each process
            protocol=mqtt.MQTTv5,
            manual_ack=True,
        )
        client.max_queued_messages_set(UNACKNOWLEDGED_MOST)
        client.reconnect_delay_set(1, int(AGAIN_MOST))
        if side.user:
            client.username_pw_set(side.user, _password(side, folder))
        if (context := _context(side, folder)) is not None:
            client.tls_set_context(context)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message, client.on_publish = self._on_message, self._on_publish
        client.on_subscribe = self._on_subscribe
        wanted = paho.properties(paho.packets.CONNECT)
        wanted.ReceiveMaximum = self._held_most
        wanted.MaximumPacketSize = min(self._packets, (1 << 32) - 1)
        wanted.SessionExpiryInterval = side.session
        wanted.TopicAliasMaximum = ALIASES_MOST
        host, port = _address(side)
        self._connect = partial(
            client.connect_async, host, port, keepalive=KEEPALIVE, clean_start=False, properties=wanted
        )
        self._connect()
        return client

    # -- what is there --------------------------------------------------------------------------------------------

    def _registration(self, type_: TypeName) -> Published | None:
        """The one of a type; None: there are too many."""
        with self._lock:
            known = self._published.get(type_)
            if known is not None or len(self._published) >= TYPES_MOST:
                return known
            made = self._published[type_] = self._registration_of(type_, f"{type_.name}\0{type_.version}")
        self._changed()
        return made

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: Arrived) -> None:  # noqa: ARG002  # of topics, not of types
        """Have objects told, from now on."""
        self._arrived = arrived
        self._may.set()
        if self._client.is_connected():
            self._subscribe_topics()

    def _subscribe_topics(self) -> None:
        """Again with each connection: in a session that the broker has kept that changes nothing."""
        if self._arrived is None:
            return
        paho = _paho()
        for topic in {one.filter: one for one in reversed(self._side.topic)}.values():
            handling = {"new": 0, "change": 1, "never": 2}[topic.retained]  # section 3.8.3.1
            options = paho.options(qos=1, noLocal=True, retainHandling=handling)
            properties = paho.properties(paho.packets.SUBSCRIBE)
            if self._has_identifiers:
                properties.SubscriptionIdentifier = topic.identifier
            self._client.subscribe([(topic.filter, options)], properties=properties)

    def _run(self) -> None:
        self._may.wait()
        is_over = False
        while not is_over:
            with guarded(self._thread.name):
                try:
                    one = self._waiting.get(timeout=SETTLE_SECONDS if self._handed else None)
                except queue.Empty:
                    pass
                else:
                    if one is None:
                        is_over = True
                    else:
                        self._take(one)
                if self._arrived is not None and self._waiting.empty() and self._is_settling:
                    self._handed.settle(self._arrived)

    def _take(self, came: _Came) -> None:
        """A message for the other side; it is acknowledged when that has taken it, or when it is lost."""
        message = came.message
        if message is not None:
            with self._lock:
                self._waiting_bytes -= len(message.payload)
        if not self._is_listening or (came.number and came.connection != self._connection and self._is_kept):
            return  # it comes again, to the next process, or by this connection
        before = self._open.get(came.number) if message is not None and message.dup else None
        if before is not None and message is not None and before.payload == hash(bytes(message.payload)):
            before.connection = came.connection  # by the one before we could not acknowledge it
            return
        uid = ""
        try:
            obj = self._object(message) if message is not None else None
            if obj is not None and self._arrived is not None:
                uid = obj.platform.registration
                self._arrived.arrived(obj)
        finally:
            if came.number and self._is_listening:  # or it may have been given up
                came.message, came.payload = None, hash(bytes(message.payload)) if message is not None else 0
                self._open[came.number] = came
                self._handed.add(uid, came)

    def _acknowledge(self, came: _Came) -> None:
        if self._open.get(came.number) is came:
            del self._open[came.number]
        if came.connection == self._connection:  # by another one its number is of another message
            self._client.ack(came.number, 1)
            with self._lock:
                self._held -= 1

    def _lose(self, cause: Cause, why: str, uid: str = "") -> None:
        """A message is no object."""
        with self._lock:
            self._lost[cause] += 1
        self._tell(why)
        if self._arrived is not None:
            self._arrived.lost(cause, 1, uid, self._next(uid) if uid else 0)

    def _object(self, message: MQTTMessage) -> InfoObject | None:
        """Object that a message stands for; None for a copy of another one, one that nobody wants, or a lost one."""
        topic, wanted = "", None
        try:
            topic = _topic(message)
            wanted = next((one for one in self._side.topic if _matches(one.filter, topic)), None)
            identifiers = getattr(message.properties, "SubscriptionIdentifier", ())
            if wanted is None or (identifiers and wanted.identifier not in identifiers):
                return None  # of a filter that is not in the file any more; or the copy for another filter
            if wanted.retained == "change" and self._is_seen(message, topic):
                return None
            expiry = getattr(message.properties, "MessageExpiryInterval", None)
            if expiry is not None and time.monotonic() - message.timestamp >= expiry:
                why = f"a message on {topic[:200]!r} has waited here for longer than its {expiry} s"
                self._lose(Cause.EXPIRED, why, self._known(wanted))
                return None
            return self._made(message, topic, wanted)
        except JbiError as exc:
            cause = Cause.OVERSIZE if isinstance(exc, OversizeError) else Cause.INVALID
            self._lose(cause, f"a message on {topic[:200]!r} is left out: {exc.message}", self._known(wanted))
            return None

    def _known(self, topic: Topic | None) -> str:
        """The registration of what comes there, if the file says it."""
        known = self._registration(TypeName(topic.type, topic.version)) if topic is not None and topic.type else None
        return known.uid if known is not None else ""

    def _is_seen(self, message: MQTTMessage, topic: str) -> bool:
        """Whether it was retained, and is what was there last."""
        properties = message.properties
        said = [getattr(properties, each, "") for each in ("ContentType", "UserProperty")]
        what = hashlib.blake2b(message.payload, digest_size=16)
        what.update(repr(said).encode())
        digest, key = what.digest(), hashlib.blake2b(topic.encode(), digest_size=16).digest()
        before = self._seen.get(key)
        self._seen[key] = digest
        return message.retain and digest == before

    def _made(self, message: MQTTMessage, on: str, topic: Topic) -> InfoObject:
        """Raises MetadataError, OversizeError, ProtocolError."""
        if len(message.payload) > self._side.max_payload:
            raise OversizeError(f"it has {len(message.payload)} bytes, the limit is {self._side.max_payload}")
        properties = _user_properties(message)
        said = dict(reversed(properties))  # the first of each name
        content = _text(getattr(message.properties, "ContentType", ""))
        if content == ENVELOPE:
            head = (parcel := Parcel.received(message.payload)).head
            metadata, payload = bytes(head.metadata), bytes(parcel.payload)
            said = {"jbi-type": head.type_name, "jbi-version": head.type_version, "jbi-via": " ".join(head.via)}
        else:
            payload = bytes(message.payload)
            metadata = _given(said) or _described(message, on, content, properties)
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
        number = self._next(uid)
        platform = Platform(self._wall(), uid, number, len(metadata), len(payload), len(via), via)
        return InfoObject(object_id_of(uid, number), type_, metadata, payload, platform)

    def stop_listening(self) -> None:
        """Nothing is told any more; what was told is waited for, some seconds, and acknowledged."""
        self._is_listening = False
        deadline = time.monotonic() + HANDED_SECONDS
        while self._handed and self._client.is_connected() and time.monotonic() < deadline:
            time.sleep(ROOM_PAUSE)
        self._is_settling = False

    # -- objects to there -----------------------------------------------------------------------------------------

    def register(
        self,
        published: Published,
        type_: TypeName,  # noqa: ARG002  # the protocol's, as what follows
        bundle: SchemaBundle,  # noqa: ARG002
        via: tuple[str, ...],  # noqa: ARG002
        *,
        validate: bool,  # noqa: ARG002
    ) -> None:
        """Nobody is to be told."""
        self._expirations[published.uid] = published.expiration

    def unregister(self, uid: str, *, waits: bool) -> bool:
        """As above."""
        if waits and self.unfinished(uid):
            return False
        self._expirations.pop(uid, None)
        return True

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float) -> None:
        """An object as a message. Raises BackPressureError, OversizeError."""
        topic = f"{self._side.prefix}/{_NO_TOPIC.sub('_', obj.type.name)}"
        payload, properties = _message(obj, source)
        if expiration := self._expirations.get(uid):
            properties.MessageExpiryInterval = min(math.ceil(expiration), SESSION_MOST)
        if self._packet_most and len(payload) + len(obj.metadata) + TOPIC_MOST > self._packet_most:
            raise OversizeError(f"object {obj.object_id} is larger than the broker takes ({self._packet_most} bytes)")
        full = _paho().client.MQTT_ERR_QUEUE_SIZE
        deadline = time.monotonic() + timeout
        while True:
            if not self._unacknowledged or self._unacknowledged_bytes + len(payload) <= UNACKNOWLEDGED_BYTES:
                with self._client._out_message_mutex:  # in which paho tells what is acknowledged: not before we know it
                    done = self._client.publish(topic, payload, qos=1, properties=properties)
                    if done.rc != full:
                        self._sent(done.mid, uid, len(payload))
                        return
            if self._stopping.is_set() or time.monotonic() >= deadline:
                raise BackPressureError(f"{UNACKNOWLEDGED_MOST} messages wait for the broker {self._side.broker}")
            time.sleep(ROOM_PAUSE)  # paho tells nobody

    def _sent(self, number: int, uid: str, size: int) -> None:
        with self._lock:  # within paho's own lock, as in what paho tells
            self._unacknowledged[number] = uid, size
            self._unacknowledged_bytes += size

    def unfinished(self, uid: str) -> int:
        """Objects that the broker has not acknowledged."""
        with self._lock:
            return sum(each == uid for each, _ in self._unacknowledged.values())

    # -- paho's thread --------------------------------------------------------------------------------------------

    def _on_connect(self, client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with guarded(f"bridge-mqtt-{self.name}"):
            self._is_refused = reason.is_failure
            if self._is_refused:
                self._tell(f"the broker refuses us: {reason} {_said(properties)}".strip())
                return
            self._since = time.monotonic()
            self._aliases.clear()
            self._packet_most = getattr(properties, "MaximumPacketSize", 0)
            self._has_identifiers = bool(getattr(properties, "SubscriptionIdentifierAvailable", 1))
            client.allow(min(WAITING_MOST, getattr(properties, "ReceiveMaximum", WAITING_MOST)))
            self._tell("")
            self._note_session(is_kept=flags.session_present, expiry=getattr(properties, "SessionExpiryInterval", None))
            self._subscribe_topics()
        if not getattr(properties, "MaximumQoS", 1):
            raise ProtocolError("it has no QoS 1: nobody would know what is lost")

    def _note_session(self, *, is_kept: bool, expiry: int | None) -> None:
        """A connection begins; `expiry`: what the broker says instead of our seconds."""
        seconds = self._side.session if expiry is None else expiry
        with self._lock:
            is_first, self._is_kept = not self._connection, is_kept
            self._connection += 1
            self._held = 0
            self._lost_sessions += not (is_first or is_kept)
        if seconds < self._side.session:
            log.warning("%s (%s): it keeps our session for %d s alone", self.name, self._side.broker, seconds)
        if not (is_first or is_kept) and self._side.topic and self._arrived is not None:
            self._arrived.lost("session_lost", 0)
            self._tell("the broker has lost our session: what it kept for us, an unknown number of messages, is lost")

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: Any, properties: Any) -> None:
        for reason in reasons:
            if reason.is_failure:
                self._tell(f"the broker refuses a subscription: {reason} {_said(properties)}".strip())
            elif not reason.value:
                self._tell("the broker gives a subscription QoS 0 alone: what comes while we are away is lost")

    def _on_disconnect(self, client: Client, _data: Any, _flags: Any, reason: Any, properties: Any) -> None:
        if not self._stopping.is_set() and not self._is_refused:
            pause, hint = self._pause(), ""
            if reason == "Session taken over":
                pause, hint = (
                    AGAIN_MOST,
                    "another process has our client id: each bridge has its own client_id, or name",
                )
            self._tell(" ".join(f"the broker is away: {reason} {_said(properties)} {hint}".split()))
            client.reconnect_delay_set(int(pause), int(AGAIN_MOST))

    def _pause(self) -> float:
        """Seconds until the next connection: ever longer while none lasts."""
        if time.monotonic() - self._since >= STEADY_SECONDS:
            self._backoff.reset()
        return self._backoff.pause()

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        self._tell("the broker does not answer")

    def _broken(self, exc: Exception) -> bool:
        """The broker has sent what can't be read; a new connection begins with a new packet. Whether to go on."""
        self._tell(f"the broker sends what is no MQTT: {type(exc).__name__}: {exc}"[:300])
        self._connect()
        return not self._stopping.wait(self._pause())

    def _unreadable(self, number: int, cause: Cause, why: str) -> None:
        """A message (0: of QoS 0) can't be read: it is left out, or the broker would send it for ever."""
        self._lose(cause, f"a message is left out: {why}"[:300])
        if number:
            self._keep(_Came(self._connection, number, None))

    def _keep(self, came: _Came) -> None:
        """One more waits, until it is acknowledged. Raises ProtocolError."""
        with self._lock:
            self._held += bool(came.number)
            self._waiting_bytes += len(came.message.payload) if came.message is not None else 0
            if self._held > HELD_MOST or self._waiting_bytes > WAITING_BYTES + self._side.max_payload:
                raise ProtocolError(f"far more than the {self._held_most} messages at a time that we have asked for")
        self._waiting.put(came)

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        """Raises ProtocolError for what no broker may send: the connection is made anew."""
        self._unalias(message)
        is_full = self._waiting.qsize() >= WAITING_MOST or self._waiting_bytes + len(message.payload) > WAITING_BYTES
        if is_full and not message.qos:  # of others the broker sends no more
            self._lose(Cause.QUEUE_OVERFLOW, "messages of QoS 0 come faster than the other side takes them")
        else:
            self._keep(_Came(self._connection, message.mid if message.qos else 0, message))

    def _unalias(self, message: MQTTMessage) -> None:
        """A topic that is a number (section 3.3.2.3.4)."""
        alias = getattr(message.properties, "TopicAlias", None)
        if alias is None:
            return
        topic = message._topic  # the bytes: they may be no text
        if not 1 <= alias <= ALIASES_MOST or not (topic or alias in self._aliases):
            raise ProtocolError(f"topic alias {alias} is none that we may be sent")
        if topic:
            self._aliases[alias] = topic
        message.topic = self._aliases[alias]

    def _on_publish(self, _client: Client, _data: Any, number: int, reason: Any, properties: Any) -> None:
        with self._lock:
            _, size = self._unacknowledged.pop(number, ("", 0))
            self._unacknowledged_bytes -= size
            self.refused += bool(reason.is_failure)
        if reason.is_failure:
            self._tell(f"the broker refuses a message: {reason} {_said(properties)}".strip())

    def _tell(self, trouble: str) -> None:
        """Once, and when it is over."""
        if trouble != self._told:
            self._told = trouble
            log.warning("%s (%s): %s", self.name, self._side.broker, trouble or "the broker answers")
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
                "session": {"kept": self._is_kept, "lost": self._lost_sessions},
                "unacknowledged": len(self._unacknowledged),
                "refused": self.refused,
                "lost": dict(self._lost),
                "trouble": self._trouble,
            }

    def close(self) -> None:
        """Leave, when the broker has acknowledged what was published, or after some seconds."""
        self.stop_listening()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._unacknowledged and self._client.is_connected() and time.monotonic() < deadline:
            time.sleep(ROOM_PAUSE)
        if left := len(self._unacknowledged):
            log.warning("%s (%s): %d messages are not acknowledged", self.name, self._side.broker, left)
        self._client.disconnect()
        self._client.loop_stop()
        self._waiting.put(None)
        self._may.set()
        self._thread.join(CLOSE_SECONDS)


@dataclass(eq=False, slots=True)
class _Came:
    """A message, and by which connection it has come."""

    connection: int
    number: int
    """Its packet identifier; 0: of QoS 0, there is nothing to acknowledge."""
    message: MQTTMessage | None
    """None when it is not needed any more, or can't be read."""
    payload: int = 0
    """Hash of its payload."""


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


def _user_properties(message: MQTTMessage) -> list[tuple[str, str]]:
    """In their order; names may stand there several times."""
    return [(_text(name), _text(value)) for name, value in getattr(message.properties, "UserProperty", ())]


def _said(properties: Any) -> str:
    """The broker's own words."""
    return _text(getattr(properties, "ReasonString", ""))[:200]


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


def _described(message: MQTTMessage, topic: str, content: str, properties: list[tuple[str, str]]) -> bytes:
    """Metadata for a message that has none."""

    def clean(text: str) -> str:
        return escape(NO_XML.sub("\ufffd", text), {'"': "&quot;", "\n": "&#10;", "\t": "&#9;", "\r": "&#13;"})

    own = "".join(f'<property name="{clean(name)}">{clean(value)}</property>' for name, value in properties)
    correlation = getattr(message.properties, "CorrelationData", b"")
    told = {
        "topic": topic,
        "content": content,
        "retained": "true" if message.retain else "false",
        "format": "text" if getattr(message.properties, "PayloadFormatIndicator", 0) else "",
        "expiry": str(getattr(message.properties, "MessageExpiryInterval", "")),
        "response": _text(getattr(message.properties, "ResponseTopic", "")),
        "correlation": b64encode(correlation).decode() if isinstance(correlation, bytes | bytearray) else "",
    }
    parts = "".join(f"<{name}>{clean(text)}</{name}>" for name, text in told.items() if text)
    return f"<message>{parts}{own}</message>".encode()


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


def _lasting(
    mqtt: Any,
    broken: Callable[[Exception], bool],
    unreadable: Callable[[int, Cause, str], None],
    most: int,
) -> type[Client]:
    """paho's client, with bounds on what the broker sends. Its thread goes on when it has got what it can't read: paho
    raises then, in the middle of a packet, whatever comes of it. `broken` is told, and says whether to go on;
    `unreadable` is told packet identifier (0: QoS 0), cause and reason of a message that is left out alone; `most`:
    bytes of a packet."""

    class Lasting(mqtt.Client):  # type: ignore[misc]  # known when it is there
        def _sock_recv(self, size: int) -> Any:  # paho's, which takes an OSError (a ProtocolError is one) for the end
            head = self._in_packet
            if head["remaining_length"] > most:
                raise ValueError(f"a packet of {head['remaining_length']} bytes, the limit is {most}")
            if head["command"] >> 4 == 3 and head["command"] & 0x04:  # paho keeps these until they are released
                raise ValueError("a message of QoS 2, which nobody has asked for")
            if len(self._out_packet) > ANSWERS_MOST:
                raise ValueError(f"it does not read: {ANSWERS_MOST} packets wait for it")
            return super()._sock_recv(size)

        def _handle_publish(self) -> Any:  # paho's
            command, packet = self._in_packet["command"], self._in_packet["packet"]
            number = 0
            try:
                at = 2 + int.from_bytes(packet[:2])
                if command & 0x06:
                    number = int.from_bytes(packet[at : at + 2])
                    at += 2
                if _variable(packet[at : at + 4]) <= PROPERTIES_MOST:
                    return super()._handle_publish()
            except JbiError:
                raise  # ours: the connection is over
            except Exception as exc:  # of any kind, as below
                if not number and command & 0x06:
                    raise
                unreadable(number, Cause.INVALID, f"{type(exc).__name__}: {exc}")
            else:
                unreadable(number, Cause.OVERSIZE, f"it has more than {PROPERTIES_MOST} bytes of properties")
            return mqtt.MQTT_ERR_SUCCESS

        def allow(self, most: int) -> None:
            """So many messages may be under way from now on: for the others it waits for acknowledgements."""
            self._max_inflight_messages = most
            with self._out_message_mutex:
                for message in list(self._out_messages.values())[most:]:
                    message.state = mqtt.mqtt_ms_queued

        def loop_forever(self, timeout: float = 1.0, retry_first_connection: bool = False) -> Any:  # paho's
            while True:
                try:
                    return super().loop_forever(timeout, retry_first_connection)
                except Exception as exc:  # noqa: BLE001  # of any kind: KeyError, struct.error, UnicodeDecodeError ...
                    if not broken(exc):
                        return mqtt.MQTT_ERR_PROTOCOL

    return Lasting


def _variable(data: bytes) -> int:
    """A variable byte integer (section 1.5.5)."""
    found = 0
    for at, byte in enumerate(data):
        found |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return found
    raise ValueError("a length that does not end")


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
