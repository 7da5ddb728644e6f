"""Messages that wait: those that have come, for the other side to take them, and those that the broker has not
acknowledged.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

WAITING_MOST: Final = 100
"""Messages that have come and wait for the other side; of QoS 1 the broker sends no more (Receive Maximum)."""
WAITING_BYTES: Final = 256 << 20
"""Limit of their bytes: where messages may be large fewer of them wait."""
HELD_MOST: Final = 1_000
"""Limit of messages of QoS 1, not acknowledged. A broker that has restored a session may send more than Receive Maximum
(mosquitto 2.0.11); those wait in its socket."""
UNACKNOWLEDGED_MOST: Final = 1_000
UNACKNOWLEDGED_BYTES: Final = 256 << 20
"""Messages that the broker has not acknowledged, or that wait for it, and their bytes."""


@dataclass(eq=False, slots=True)
class MqttArrival:
    """A message, and by which connection it has come."""

    connection: int
    number: int
    """Its packet identifier; 0: of QoS 0, there is nothing to acknowledge."""
    message: MQTTMessage | None
    """None when it is not needed any more, or can't be read."""
    payload: int = 0
    """Hash of its payload."""


class MqttInbox:
    """Messages of this connection or one before that have come, in order. Any thread puts them, one takes them."""

    def __init__(self, max_payload: int) -> None:
        """`max_payload`: bytes that one may have."""
        self.most = max(1, min(WAITING_MOST, WAITING_BYTES // max_payload))
        """Messages that the broker is asked to send before one is acknowledged."""
        self._lock = threading.Lock()
        self._waiting: queue.Queue[MqttArrival | None] = queue.Queue()
        self._bytes = 0
        self._held: set[int] = set()
        """Packet identifiers of this connection that are not acknowledged."""

    def is_full(self, size: int) -> bool:
        """Whether one more of so many bytes is too much; of QoS 1 the broker sends no more then."""
        return self._waiting.qsize() >= WAITING_MOST or self._bytes + size > WAITING_BYTES

    def is_stalled(self) -> bool:
        """Whether nothing more is to be read, of any QoS, until some are taken or acknowledged."""
        return len(self._held) >= HELD_MOST or self._bytes > WAITING_BYTES

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return self._waiting.empty()

    def put(self, came: MqttArrival) -> None:
        """One more waits, until it is acknowledged."""
        with self._lock:
            if came.number:
                self._held.add(came.number)
            self._bytes += len(came.message.payload) if came.message is not None else 0
        self._waiting.put(came)

    def end(self) -> None:
        """Have `take` say that nothing more comes."""
        self._waiting.put(None)

    def take(self, timeout: float | None) -> MqttArrival | None:
        """The next one; None: nothing more comes. Raises queue.Empty."""
        came = self._waiting.get(timeout=timeout)
        if came is not None and came.message is not None:
            with self._lock:
                self._bytes -= len(came.message.payload)
        return came

    def begin_connection(self) -> None:
        """Begin anew: what came before is not acknowledged any more."""
        with self._lock:
            self._held.clear()

    def acknowledge(self, number: int) -> None:
        """That one of this connection is acknowledged."""
        with self._lock:
            self._held.discard(number)


class UnacknowledgedMessages:
    """Messages that the broker has not acknowledged, or that wait for it: their registration and bytes. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: dict[int, tuple[str, int]] = {}
        """By packet identifier."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    def has_room(self, size: int) -> bool:
        """Whether one more of so many bytes may be sent: one always may."""
        return not self._messages or self._bytes + size <= UNACKNOWLEDGED_BYTES

    def add(self, number: int, uid: str, size: int) -> None:
        """One more is sent."""
        with self._lock:  # within paho's own lock, as in what paho tells
            self._messages[number] = uid, size
            self._bytes += size

    def remove(self, number: int) -> None:
        """The broker has answered."""
        with self._lock:
            _, size = self._messages.pop(number, ("", 0))
            self._bytes -= size

    def count(self, uid: str) -> int:
        """Those of a registration."""
        with self._lock:
            return sum(each == uid for each, _ in self._messages.values())
