"""paho's client, with bounds on what a broker sends, and its session; what else of the library is used is had by
`library`."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import ConfigurationError, JbiError, ProtocolError
from jbi_pubsub.core.info_object import Cause
from jbi_pubsub.core.wire.tls import explained

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

PROPERTIES_MOST: Final = 64 << 10
"""Bytes of a message's properties; paho's time for them goes up with their square."""
ALIASES_MOST: Final = 16
"""Topics that the broker may send as a number (Topic Alias Maximum)."""
AGAIN_MOST: Final = 30.0
"""Seconds until a broker is connected to again that ends connections, or sends what can't be read."""
STEADY_SECONDS: Final = 10.0
"""A connection that lasts so long is none of these."""
ANSWERS_MOST: Final = 10_000
"""Packets that wait for a broker that reads none."""
READ_PAUSE: Final = 0.01
"""Seconds until it is looked again whether more may be read."""


class _TlsClient:
    """Knows why TLS has ended a connection: paho tells nobody, and TLS 1.3 refuses a client after the handshake."""

    _failure = ""

    def _sock_recv(self, size: int) -> Any:  # paho's
        client: Any = super()
        try:
            return client._sock_recv(size)
        except ssl.SSLError as exc:
            self._failure = explained(exc)
            raise

    def ended(self) -> str:
        """The reason, once; "": another one."""
        failure, self._failure = self._failure, ""
        return failure


def connect_failure() -> str:
    """Why a connection could not be made, where paho, which has caught it, tells that there is none."""
    failure = sys.exception()
    return explained(failure) if isinstance(failure, Exception) else "it does not answer"


def lasting_client(
    mqtt: Any,
    broken: Callable[[Exception], bool],
    unreadable: Callable[[int, Cause, str], None],
    is_full: Callable[[], bool],
    most: int,
) -> type[Client]:
    """paho's client, with bounds on what the broker sends. Its thread goes on when it has got what it can't read: paho
    raises then, in the middle of a packet, whatever comes of it. `broken` is told, and says whether to go on;
    `unreadable` is told packet identifier (0: QoS 0), cause and reason of a message that is left out alone. While
    `is_full` says so nothing is read, and the connection stays. `most`: bytes of a packet."""

    class LastingClient(_TlsClient, mqtt.Client):  # type: ignore[misc]  # known when it is there
        def _sock_recv(self, size: int) -> Any:  # paho's, which takes an OSError (a ProtocolError is one) for the end
            _check(self._in_packet, most, len(self._out_packet))
            if is_full() and self.is_connected():
                self._ping_t = 0.0  # the answer to the last ping may be among what is not read
                time.sleep(READ_PAUSE)
                raise BlockingIOError  # paho goes on with what is to be sent
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

    return LastingClient


def _check(head: Any, most: int, answers: int) -> None:
    """Raises ValueError for the beginning of a packet that is not wanted, or too many answers that wait."""
    if head["remaining_length"] > most:
        raise ValueError(f"a packet of {head['remaining_length']} bytes, the limit is {most}")
    if head["command"] >> 4 == 3 and head["command"] & 0x04:  # paho keeps these until they are released
        raise ValueError("a message of QoS 2, which nobody has asked for")
    if answers > ANSWERS_MOST:
        raise ValueError(f"it does not read: {ANSWERS_MOST} packets wait for it")


def _variable(data: bytes) -> int:
    """A variable byte integer (section 1.5.5)."""
    found = 0
    for at, byte in enumerate(data):
        found |= (byte & 0x7F) << (7 * at)
        if byte < 0x80:
            return found
    raise ValueError("a length that does not end")


class MqttLibrary(NamedTuple):
    """The parts of the library that are used."""

    client: Any
    properties: Any
    packets: Any
    options: Any


def library() -> MqttLibrary:
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
    return MqttLibrary(client, Properties, PacketTypes, SubscribeOptions)


def matches(wanted: str, topic: str) -> bool:
    """Whether a topic matches a filter (MQTT 5, section 4.7)."""
    from paho.mqtt.client import topic_matches_sub

    return bool(topic_matches_sub(wanted, topic))


def session_asked(most: int, size: int, seconds: int) -> Any:
    """Properties of a connection: so many messages of that size at once, and a session that is kept so long."""
    paho = library()
    asked = paho.properties(paho.packets.CONNECT)
    asked.ReceiveMaximum, asked.MaximumPacketSize = most, min(size, (1 << 32) - 1)
    asked.SessionExpiryInterval, asked.TopicAliasMaximum = seconds, ALIASES_MOST
    return asked


class MqttSession:
    """Our session at a broker, and the connection that it has now. For paho's thread; others read."""

    def __init__(self) -> None:
        self.connection = 0
        """Number of the connection."""
        self.is_kept = False
        """The broker had our session when this connection began."""
        self.lost = 0
        """Sessions that the broker had no more."""
        self._since = 0.0
        """When the connection began (monotonic seconds)."""
        self._backoff = Backoff(2.0, AGAIN_MOST)
        self._aliases: dict[int, bytes] = {}

    def begin(self, *, is_kept: bool) -> bool:
        """A connection begins; whether the session of the one before is lost."""
        is_lost, self.is_kept = bool(self.connection) and not is_kept, is_kept
        self.connection += 1
        self._since = time.monotonic()
        self._aliases.clear()
        self.lost += is_lost
        return is_lost

    def pause(self) -> float:
        """Seconds until the next connection: ever longer while none lasts."""
        if time.monotonic() - self._since >= STEADY_SECONDS:
            self._backoff.reset()
        return self._backoff.pause()

    def resolve_alias(self, message: MQTTMessage) -> None:
        """Give a message its topic, if that is a number (section 3.3.2.3.4). Raises ProtocolError."""
        alias = getattr(message.properties, "TopicAlias", None)
        if alias is None:
            return
        topic = message._topic  # the bytes: they may be no text
        if not 1 <= alias <= ALIASES_MOST or not (topic or alias in self._aliases):
            raise ProtocolError(f"topic alias {alias} is none that we may be sent")
        if topic:
            self._aliases[alias] = topic
        message.topic = self._aliases[alias]
