"""A broker that sends what is no MQTT, as whoever publishes there may make it do."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.bridge.mqtt import MqttPlatform, MqttSide, Topic
from jbi_pubsub.core.info_object import InfoObject

CONNACK = b"\x20\x03\x00\x00\x00"


def publication(number: int, payload: bytes, topic: bytes = b"open/x", properties: bytes = b"") -> bytes:
    """A PUBLISH of QoS 1 (MQTT 5, section 3.3)."""
    body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", number)
    body += bytes([len(properties)]) + properties + payload
    return b"\x32" + bytes([len(body)]) + body


class Broker:
    """Greets whoever connects, and sends to the first and the second connection what the test wants. It ends the first
    one when `next` is set."""

    def __init__(self, *sent: bytes) -> None:
        self._sent = sent
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.acknowledged: list[tuple[int, int]] = []
        """Connection and number of each message that was."""
        self.next = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            for number, sent in enumerate(self._sent):
                peer, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=[peer, number, sent], daemon=True).start()

    def _answer(self, peer: socket.socket, number: int, sent: bytes) -> None:
        with suppress(OSError), peer:
            peer.settimeout(0.05)
            while not (number == 0 and self.next.is_set()):
                try:
                    data = peer.recv(65_536)
                except TimeoutError:
                    continue
                if not data:
                    return
                if data[0] == 0x10:  # CONNECT
                    peer.sendall(CONNACK)
                elif data[0] == 0x82:  # SUBSCRIBE
                    peer.sendall(b"\x90\x04" + data[2:4] + b"\x00\x01" + sent)
                elif data[0] == 0x40:  # PUBACK
                    self.acknowledged.append((number, struct.unpack("!H", data[2:4])[0]))

    def close(self) -> None:
        self._listener.close()


class Heard:
    """Gets objects, and waits where the test wants it."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.may = threading.Event()
        self.may.set()

    def arrived(self, obj: InfoObject) -> None:
        self.payloads.append(bytes(obj.payload))
        self.may.wait(60.0)

    def lost(self, cause: str, count: int) -> None:
        pass


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Callable[..., tuple[Broker, MqttPlatform, Heard]]]:
    """side(sent first, sent then) is a broker, a bridge's side of it, and who hears."""
    made: list[Any] = []

    def make(*sent: bytes) -> tuple[Broker, MqttPlatform, Heard]:
        broker, heard = Broker(*sent), Heard()
        topics = (Topic("open/+", "t"),)
        platform = MqttPlatform("field", MqttSide(f"127.0.0.1:{broker.port}", topic=topics), "b", folder=tmp_path)
        made.extend((platform, broker))
        platform.subscribe((), heard)
        return broker, platform, heard

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize(
    "rubbish",
    [
        publication(1, b"p", properties=b"\x26\x00\x01\xff\x00\x01x"),  # a user property that is no UTF-8
        publication(1, b"p", properties=b"\x26\x00\x01a\x00\x01\x00"),  # one with a zero character
        publication(1, b"p", properties=b"\x7f\x01"),  # one that there is not
        b"\x32\x01\x00",  # cut off
        b"\x40\x03\x00\x01\xfa",  # a reason that there is not
    ],
)
def test_a_broker_that_sends_what_is_no_mqtt_is_connected_to_anew(
    side: Any, rubbish: bytes, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker that sends rubbish, and what is none to the next connection
    broker, platform, heard = side(rubbish, publication(7, b"good"))
    # When, Expect that to come, and the rubbish told
    eventually(lambda: heard.payloads == [b"good"], what=platform.status)
    eventually(lambda: broker.acknowledged == [(1, 7)])
    assert "sends what is no MQTT" in caplog.text or "Protocol error" in caplog.text  # as of paho 2.2 it notices itself


def test_a_topic_that_is_no_text_is_left_out_and_counted(side: Any, eventually: Any) -> None:
    # Given
    bad = publication(1, b"bad", topic=b"open/\xff")
    # When
    broker, platform, heard = side(bad + publication(2, b"good"))
    # Expect
    eventually(lambda: broker.acknowledged[-1:] == [(0, 2)])
    assert heard.payloads == [b"good"]
    assert platform.status()["lost"] == 1


def test_what_came_by_a_former_connection_is_not_acknowledged_to_the_next(side: Any, eventually: Any) -> None:
    # Given a message that is not taken yet when the broker goes away
    broker, platform, heard = side(publication(1, b"first"), publication(2, b"second"))
    heard.may.clear()
    eventually(lambda: heard.payloads)
    broker.next.set()
    # When it is taken, and another one is there
    eventually(lambda: platform._waiting.qsize() == 1)
    heard.may.set()
    # Expect
    eventually(lambda: heard.payloads == [b"first", b"second"])
    eventually(lambda: broker.acknowledged == [(1, 2)])
