"""Platform that is a broker of MQTT: its connection, what comes by it, and what goes."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jbi_pubsub.bridge.listed import BridgedRegistration
from jbi_pubsub.bridge.listening import HANDED_SECONDS, HandOver, ObjectReceiver, Profile
from jbi_pubsub.bridge.plain import PlainPlatform
from jbi_pubsub.core.errors import BackPressureError, JbiError, OversizeError, ProtocolError
from jbi_pubsub.core.guard import guarded, is_told
from jbi_pubsub.core.info_object import Cause, InfoObject, Platform, SchemaBundle, TypeName, object_id_of

from .client import AGAIN_MOST, MqttSession, connect_failure, lasting_client, library, matches, session_asked
from .message import MessageContent, RetainedMessages, content_of, message_of, reason_of, topic_of
from .side import (
    NO_TOPIC,
    TOPIC_MOST,
    HeardTopics,
    MqttSide,
    MqttTopic,
    address,
    check_side,
    password,
    speak_tls,
)
from .waiting import UNACKNOWLEDGED_MOST, WAITING_MOST, MqttArrival, MqttInbox, UnacknowledgedMessages

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

log = logging.getLogger("jbi_pubsub.bridge")

TYPES_MOST: Final = 1_000
"""Types that messages may bring."""
SETTLE_SECONDS: Final = 0.002
"""Until it is looked again what the other side has taken: the broker sends no more meanwhile."""
PACKET_MOST: Final = 256 << 10
"""Bytes of a packet beside the payload; the broker is told to send no larger ones."""
ROOM_PAUSE: Final = 0.01
CLOSE_SECONDS: Final = 5.0
"""For the broker to acknowledge what it has got."""
KEEPALIVE: Final = 30


class MqttPlatform(PlainPlatform):
    """A broker (see Platform). Nobody need be there yet: it is connected to again and again."""

    def __init__(
        self, name: str, side: MqttSide, bridge: str, *, folder: Path, wall: Callable[[], float] = time.time
    ) -> None:
        """Raises ConfigurationError. `folder` is that of the file names in `side`."""
        check_side(side, folder)
        super().__init__("mqtt", name, bridge, folder, wall=wall)
        self._side = side
        self._arrived: ObjectReceiver | None = None
        self._topics = HeardTopics(side.topic)
        for topic in side.topic:
            if topic.type:
                self._registration(TypeName(topic.type, topic.version))
        self._inbox = MqttInbox(side.max_payload)
        self._handed = HandOver[MqttArrival](self._acknowledge)
        """Messages that the other side was given, or that are no objects, until they are acknowledged, in order."""
        self._open: dict[int, MqttArrival] = {}
        """These by their packet identifiers."""
        self._is_settling = True
        self._session = MqttSession()
        self._retained = RetainedMessages()
        self._is_refused = False
        self._unacknowledged = UnacknowledgedMessages()
        self._expirations: dict[str, float] = {}
        self.refused = 0
        self._lost: Counter[str] = Counter()
        self._packet_most = 0
        self._trouble = ""
        self._is_listening = True
        self._may = threading.Event()
        """Somebody is told of objects, or we leave."""
        self._stopping = threading.Event()
        self._client = self._opened(side, bridge, folder)
        self._thread = threading.Thread(target=self._run, name=f"bridge-mqtt-{name}", daemon=True)
        self._thread.start()
        self._client.loop_start()

    def _opened(self, side: MqttSide, bridge: str, folder: Path) -> Client:
        mqtt = library().client
        packets = PACKET_MOST + side.max_payload
        client: Client = lasting_client(mqtt, self._broken, self._unreadable, self._inbox.is_stalled, packets)(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=side.client_id or f"jbi-{bridge}-{self.name}",  # the same in each process
            protocol=mqtt.MQTTv5,
            manual_ack=True,
        )
        client.max_queued_messages_set(UNACKNOWLEDGED_MOST)
        client.reconnect_delay_set(1, int(AGAIN_MOST))
        if side.user:
            client.username_pw_set(side.user, password(side, folder))
        speak_tls(client, side, folder, self._tell)
        client.on_connect, client.on_disconnect = self._on_connect, self._on_disconnect
        client.on_connect_fail = self._on_connect_fail
        client.on_message, client.on_publish = self._on_message, self._on_publish
        client.on_subscribe = self._on_subscribe
        asked = session_asked(self._inbox.most, packets, side.session)
        host, port = address(side)
        self._connect = partial(
            client.connect_async, host, port, keepalive=KEEPALIVE, clean_start=False, properties=asked
        )
        self._connect()
        return client

    # -- what is there --------------------------------------------------------------------------------------------

    def _registration(self, type_: TypeName) -> BridgedRegistration | None:
        """The one of a type; None: there are too many."""
        with self._lock:
            known = self._published.get(type_)
            if known is not None or len(self._published) >= TYPES_MOST:
                return known
            made = self._published[type_] = self._registration_of(type_, f"{type_.name}\0{type_.version}")
        self._changed()
        return made

    # -- objects from there ---------------------------------------------------------------------------------------

    def subscribe(self, types: Sequence[str], arrived: ObjectReceiver) -> None:  # noqa: ARG002  # of topics, not of types
        """Have objects told, from now on."""
        self._hear(arrived, None)

    def want(self, name: str, profile: Profile, arrived: ObjectReceiver, since: float | None = None) -> None:  # noqa: ARG002  # a broker knows topics alone
        """See SelectivePlatform: topics of that type, as wholes."""
        self._hear(arrived, (self._topics.types or frozenset()) | {name})

    def unwant(self, name: str) -> None:
        """See SelectivePlatform."""
        self._hear(self._arrived, (self._topics.types or frozenset()) - {name})

    def _hear(self, arrived: ObjectReceiver | None, names: frozenset[str] | None) -> None:
        self._arrived, self._topics.types = arrived, names
        if arrived is not None:
            self._may.set()
        if self._client.is_connected():
            self._subscribe_topics()

    def _subscribe_topics(self) -> None:
        """Again with each connection: in a session that the broker has kept that changes nothing."""
        if self._arrived is not None or self._topics.types is not None:
            self._topics.subscribe(self._client)

    def _run(self) -> None:
        self._may.wait()
        is_over = False
        while not is_over:
            with guarded(self._thread.name):
                try:
                    one = self._inbox.take(SETTLE_SECONDS if self._handed else None)
                except queue.Empty:
                    pass
                else:
                    if one is None:
                        is_over = True
                    else:
                        self._take(one)
                if self._arrived is not None and self._inbox.is_empty() and self._is_settling:
                    self._handed.settle(self._arrived)

    def _take(self, came: MqttArrival) -> None:
        """A message for the other side; it is acknowledged when that has taken it, or when it is lost."""
        message, session = came.message, self._session
        if not self._is_listening or (came.number and came.connection != session.connection and session.is_kept):
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

    def _acknowledge(self, came: MqttArrival) -> None:
        if self._open.get(came.number) is came:
            del self._open[came.number]
        if came.connection == self._session.connection:  # by another one its number is of another message
            self._client.ack(came.number, 1)
            self._inbox.acknowledge(came.number)

    def _lose(self, cause: Cause, why: str, uid: str = "") -> None:
        """A message is no object."""
        with self._lock:
            count = self._lost[cause] = self._lost[cause] + 1
        if is_told(count):
            self._tell(f"{why} ({cause}, {count} times)" if count > 1 else why)
        if self._arrived is not None:
            self._arrived.lost(cause, 1, uid, self._numbers.next() if uid else 0)

    def _object(self, message: MQTTMessage) -> InfoObject | None:
        """Object that a message stands for; None for a copy of another one, one that nobody wants, or a lost one."""
        topic, wanted = "", None
        try:
            topic = topic_of(message)
            wanted = next((one for one in self._side.topic if matches(one.filter, topic)), None)
            identifiers = getattr(message.properties, "SubscriptionIdentifier", ())
            if wanted is None or (identifiers and wanted.identifier not in identifiers):
                return None  # of a filter that is not in the file any more; or the copy for another filter
            if wanted.retained == "change" and self._retained.is_repeated(message, topic):
                return None
            expiry = getattr(message.properties, "MessageExpiryInterval", None)
            if expiry is not None and time.monotonic() - message.timestamp >= expiry:
                why = f"a message on {topic[:200]!r} has waited here for longer than its {expiry} s"
                self._lose(Cause.EXPIRED, why, self._known(wanted))
                return None
            return self._numbered(content_of(message, topic, wanted, self._side.max_payload))
        except JbiError as exc:
            cause = Cause.OVERSIZE if isinstance(exc, OversizeError) else Cause.INVALID
            self._lose(cause, f"a message on {topic[:200]!r} is left out: {exc.message}", self._known(wanted))
            return None

    def _known(self, topic: MqttTopic | None) -> str:
        """The registration of what comes there, if the file says it."""
        known = self._registration(TypeName(topic.type, topic.version)) if topic is not None and topic.type else None
        return known.uid if known is not None else ""

    def _numbered(self, content: MessageContent) -> InfoObject:
        """Raises OversizeError."""
        registration = self._registration(content.type)
        if registration is None:
            raise OversizeError(f"there are {TYPES_MOST} types already")
        uid, metadata, payload, via = registration.uid, content.metadata, content.payload, content.via
        number = self._numbers.next()
        platform = Platform(self._wall(), uid, number, len(metadata), len(payload), len(via), via)
        return InfoObject(object_id_of(uid, number), content.type, metadata, payload, platform)

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
        published: BridgedRegistration,
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

    def publish(self, uid: str, obj: InfoObject, source: str, timeout: float, waited: float = 0.0) -> None:
        """An object as a message. Raises BackPressureError, OversizeError."""
        topic = f"{self._side.prefix}/{NO_TOPIC.sub('_', obj.type.name)}"
        payload, properties = message_of(obj, source, self._expirations.get(uid, 0.0), waited)
        if self._packet_most and len(payload) + len(obj.metadata) + TOPIC_MOST > self._packet_most:
            raise OversizeError(f"object {obj.object_id} is larger than the broker takes ({self._packet_most} bytes)")
        full = library().client.MQTT_ERR_QUEUE_SIZE
        deadline = time.monotonic() + timeout
        while True:
            if self._unacknowledged.has_room(len(payload)):
                with self._client._out_message_mutex:  # in which paho tells what is acknowledged: not before we know it
                    done = self._client.publish(topic, payload, qos=1, properties=properties)
                    if done.rc != full:
                        self._unacknowledged.add(done.mid, uid, len(payload))
                        return
            if self._stopping.is_set() or time.monotonic() >= deadline:
                raise BackPressureError(f"{UNACKNOWLEDGED_MOST} messages wait for the broker {self._side.broker}")
            time.sleep(ROOM_PAUSE)  # paho tells nobody

    def unfinished(self, uid: str) -> int:
        """Objects that the broker has not acknowledged."""
        return self._unacknowledged.count(uid)

    # -- paho's thread --------------------------------------------------------------------------------------------

    def _on_connect(self, client: Any, _data: Any, flags: Any, reason: Any, properties: Any) -> None:
        with guarded(f"bridge-mqtt-{self.name}"):
            self._is_refused = reason.is_failure
            if self._is_refused:
                self._tell(f"the broker refuses us: {reason} {reason_of(properties)}".strip())
                return
            is_lost = self._session.begin(is_kept=flags.session_present)
            self._inbox.begin_connection()
            self._packet_most = getattr(properties, "MaximumPacketSize", 0)
            self._topics.has_identifiers = bool(getattr(properties, "SubscriptionIdentifierAvailable", 1))
            client.allow(min(WAITING_MOST, getattr(properties, "ReceiveMaximum", WAITING_MOST)))
            self._tell("")
            self._tell_session(is_lost=is_lost, expiry=getattr(properties, "SessionExpiryInterval", None))
            self._subscribe_topics()
        if not getattr(properties, "MaximumQoS", 1):
            raise ProtocolError("it has no QoS 1: nobody would know what is lost")

    def _tell_session(self, *, is_lost: bool, expiry: int | None) -> None:
        """`expiry`: what the broker says instead of our seconds."""
        seconds = self._side.session if expiry is None else expiry
        if seconds < self._side.session:
            log.warning("%s (%s): it keeps the session for %d s only", self.name, self._side.broker, seconds)
        if is_lost and self._side.topic and self._arrived is not None:
            self._arrived.lost("session_lost", 0)
            self._tell("the broker has lost our session: what it kept for us, an unknown number of messages, is lost")

    def _on_subscribe(self, _client: Client, _data: Any, _mid: int, reasons: Any, properties: Any) -> None:
        for reason in reasons:
            if reason.is_failure:
                self._tell(f"the broker refuses a subscription: {reason} {reason_of(properties)}".strip())
            elif not reason.value:
                self._tell("the broker gives a subscription QoS 0 alone: what comes while we are away is lost")

    def _on_disconnect(self, client: Any, _data: Any, _flags: Any, reason: Any, properties: Any) -> None:
        if not self._stopping.is_set() and not self._is_refused:
            pause, hint = self._session.pause(), ""
            if reason == "Session taken over":
                pause = AGAIN_MOST
                hint = "another process has our client id: each bridge has its own client_id, or name"
            why = client.ended() or reason
            self._tell(" ".join(f"the broker is away: {why} {reason_of(properties)} {hint}".split()))
            client.reconnect_delay_set(int(pause), int(AGAIN_MOST))

    def _on_connect_fail(self, _client: Client, _data: Any) -> None:
        self._tell(f"no connection to the broker: {connect_failure()}")

    def _broken(self, exc: Exception) -> bool:
        """The broker has sent what can't be read; a new connection begins with a new packet. Whether to go on."""
        self._tell(f"the broker sends bytes that are not MQTT: {type(exc).__name__}: {exc}"[:300])
        self._connect()
        return not self._stopping.wait(self._session.pause())

    def _unreadable(self, number: int, cause: Cause, why: str) -> None:
        """A message (0: of QoS 0) can't be read: it is left out, or the broker would send it for ever."""
        self._lose(cause, f"a message is left out: {why}"[:300])
        if number:
            self._inbox.put(MqttArrival(self._session.connection, number, None))

    def _on_message(self, _client: Client, _data: Any, message: MQTTMessage) -> None:
        """Raises ProtocolError for what no broker may send: the connection is made anew."""
        self._session.resolve_alias(message)
        if not message.qos and self._inbox.is_full(len(message.payload)):  # of others the broker sends no more
            self._lose(Cause.QUEUE_OVERFLOW, "messages of QoS 0 come faster than the other side takes them")
        else:
            self._inbox.put(MqttArrival(self._session.connection, message.mid if message.qos else 0, message))

    def _on_publish(self, _client: Client, _data: Any, number: int, reason: Any, properties: Any) -> None:
        self._unacknowledged.remove(number)
        if reason.is_failure:
            self.refused += 1
            self._tell(f"the broker refuses a message: {reason} {reason_of(properties)}".strip())

    def _tell(self, trouble: str) -> None:
        """Once, and when it is over."""
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s (%s): %s", self.name, self._side.broker, trouble or "the broker answers")

    # -- the rest -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            return {
                "kind": "mqtt",
                "connected": self._client.is_connected(),
                "broker": self._side.broker,
                "published": len(self._published),
                "session": {"kept": self._session.is_kept, "lost": self._session.lost},
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
        self._stopping.set()
        self._client.disconnect()
        self._client.loop_stop()
        self._inbox.end()
        self._may.set()
        self._thread.join(CLOSE_SECONDS)
