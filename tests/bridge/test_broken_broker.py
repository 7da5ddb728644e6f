"""A broker that sends what is no MQTT, as whoever publishes there may make it do."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import certificates
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from jbi_pubsub.bridge.mqtt import MqttPlatform, MqttSide, MqttTopic
from jbi_pubsub.bridge.mqtt.side import check_side
from jbi_pubsub.bridge.mqtt.waiting import HELD_MOST
from jbi_pubsub.core.errors import BackPressureError, ConfigurationError
from jbi_pubsub.core.guard import TOLD_WHOLE
from jbi_pubsub.core.info_object import InfoObject, Platform, TypeName

pytestmark = pytest.mark.processes

CONNACK = b"\x20\x03\x00\x00\x00"
KEPT = b"\x20\x03\x01\x00\x00"
"""The same, of a broker that has our session."""


def variable(number: int) -> bytes:
    """A variable byte integer (MQTT 5, section 1.5.5)."""
    found = []
    while True:
        number, digit = divmod(number, 128)
        found.append(digit | (0x80 if number else 0))
        if not number:
            return bytes(found)


def publication(
    number: int, payload: bytes, topic: bytes = b"open/x", properties: bytes = b"", *, head: int = 0x32
) -> bytes:
    """A PUBLISH of QoS 1 (section 3.3)."""
    body = struct.pack("!H", len(topic)) + topic + (struct.pack("!H", number) if head & 6 else b"")
    body += variable(len(properties)) + properties + payload
    return bytes([head]) + variable(len(body)) + body


class Broker:
    """Greets whoever connects, and sends to the first and the second connection what the test wants. It ends the first
    one when `next` is set."""

    def __init__(self, *sent: bytes, connack: bytes = CONNACK, granted: bytes = b"\x01") -> None:
        self._sent, self._connack, self._granted = sent, connack, granted
        self.connects: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.acknowledged: list[tuple[int, int]] = []
        """Connection and number of each message that was."""
        self.pings = 0
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
                    self.connects.append(data)
                    peer.sendall(self._connack)
                elif data[0] == 0x82:  # SUBSCRIBE
                    peer.sendall(b"\x90\x04" + data[2:4] + b"\x00" + self._granted + sent)
                while data[:1] == b"\xc0":  # PINGREQ
                    self.pings += 1
                    data = data[2:]
                while data[:1] == b"\x40":  # PUBACK
                    self.acknowledged.append((number, struct.unpack("!H", data[2:4])[0]))
                    data = data[2 + data[1] :]

    def close(self) -> None:
        self._listener.close()


class Heard:
    """Gets objects, and waits where the test wants it."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.objects: list[InfoObject] = []
        self.losses: Counter[str] = Counter()
        self.untaken = 0
        self.may = threading.Event()
        self.may.set()

    def arrived(self, obj: InfoObject) -> None:
        self.payloads.append(bytes(obj.payload))
        self.objects.append(obj)
        self.may.wait(60.0)

    def lost(self, cause: str, count: int, uid: str = "", up_to: int = 0) -> None:  # noqa: ARG002  # the protocol's
        self.losses[cause] += count

    def waiting(self, uid: str) -> int:  # noqa: ARG002  # as above
        return self.untaken


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Callable[..., tuple[Broker, MqttPlatform, Heard]]]:
    """side(sent first, sent then) is a broker, a bridge's side of it, and who hears."""
    made: list[Any] = []

    def make(
        *sent: bytes, connack: bytes = CONNACK, granted: bytes = b"\x01", **given: Any
    ) -> tuple[Broker, MqttPlatform, Heard]:
        broker, heard = Broker(*sent, connack=connack, granted=granted), Heard()
        settings = MqttSide(f"127.0.0.1:{broker.port}", topic=(MqttTopic("open/+", "t"),), **given)
        platform = MqttPlatform("field", settings, "b", folder=tmp_path)
        made.extend((platform, broker))
        platform.subscribe((), heard)
        return broker, platform, heard

    yield make
    for each in made:
        each.close()


def test_a_connection_shows_the_certificate_that_is_there_when_it_begins(tmp_path: Path, eventually: Any) -> None:
    # Given a broker that asks for certificates, and ends each connection when it has seen one
    authority = certificates.Authority(tmp_path)
    ours, theirs = authority.issue("localhost"), authority.issue("bridge", number=1)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ours.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(ours.certificate, ours.key)
    shown: list[str] = []

    def serve(listener: socket.socket) -> None:
        while True:
            with suppress(OSError):
                peer, _ = listener.accept()
                with context.wrap_socket(peer, server_side=True) as line:
                    shown.append((line.getpeercert() or {})["serialNumber"])
            if listener.fileno() < 0:
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        broker = f"localhost:{listener.getsockname()[1]}"
        files = {"ca": ours.ca, "certificate": theirs.certificate, "key": theirs.key}
        platform = MqttPlatform("field", MqttSide(broker, tls=True, **files), "b", folder=tmp_path)
        try:
            eventually(lambda: shown)
            # When ours is renewed; Expect the next connection to show the new one
            before = shown[-1]
            authority.issue("bridge", number=1)
            eventually(lambda: shown[-1] != before)
            # When the file is damaged; Expect that to be said, and the certificate of before to be shown
            Path(theirs.certificate).write_text("damaged")
            eventually(lambda: "TLS to the broker" in platform.status()["trouble"])
        finally:
            platform.close()
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # paho leaves its socket to the collector
@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ca": "mine"}, "TLS: the other side asks for a certificate"),
        ({"ca": "other"}, "TLS: the certificate shown is not valid: "),
        ({}, "TLS: the certificate shown is not valid: "),
    ],
)
def test_a_broker_that_tls_keeps_from_us_is_told_with_the_reason(
    given: dict[str, str], why: str, tmp_path: Path, eventually: Any
) -> None:
    # Given a broker that asks for certificates, and a bridge with none, or that does not know the broker's authority
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
    ours = certificates.Authority(tmp_path / "mine").issue("localhost")
    known = {"mine": ours.ca, "other": certificates.Authority(tmp_path / "other").issue("localhost").ca}
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ours.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(ours.certificate, ours.key)

    def serve(listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            with suppress(OSError):
                peer, _ = listener.accept()
                with context.wrap_socket(peer, server_side=True) as line:
                    line.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=[listener], daemon=True).start()
        broker = f"localhost:{listener.getsockname()[1]}"
        side = MqttSide(broker, tls=True, **{name: known[whose] for name, whose in given.items()})
        platform = MqttPlatform("field", side, "b", folder=tmp_path)
        try:
            # Expect its status to say that
            eventually(lambda: why in platform.status()["trouble"])
        finally:
            platform.close()
            listener.shutdown(socket.SHUT_RDWR)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked(tmp_path: Path) -> None:
    # Given a key that is encrypted; Expect a refusal, not a question at the terminal
    ours = certificates.Authority(tmp_path).issue("localhost")
    key = load_pem_private_key(Path(ours.key).read_bytes(), None)
    secret = BestAvailableEncryption(b"x")
    Path(ours.key).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    side = MqttSide("localhost:1", tls=True, ca=ours.ca, certificate=ours.certificate, key=ours.key)
    with pytest.raises(ConfigurationError, match="is encrypted, and nobody is there to be asked"):
        check_side(side, tmp_path)


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x32\x01\x00",  # cut off
        b"\x40\x03\x00\x01\xfa",  # a reason that there is not
        b"\xff\xff\xff\xff\xff\xff",  # a length without an end
        b"\x32" + variable(200 << 20) + bytes(1_000),  # the beginning of 200 MiB
        publication(1, b"p", head=0x34),  # QoS 2, which nobody has asked for
        publication(1, b"p", b"", properties=b"\x23\x00\x01"),  # a topic alias that was not said
        publication(1, b"p", properties=b"\x23\xff\xff"),  # one that we have not room for
    ],
)
def test_a_broker_that_sends_what_is_no_mqtt_is_connected_to_anew(
    side: Any, rubbish: bytes, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker that sends rubbish, and what is none to the next connection; the other side takes nothing yet
    broker, platform, heard = side(rubbish, publication(7, b"good"))
    heard.untaken = 1_000
    # When, Expect that to come, and the rubbish told
    eventually(lambda: heard.payloads[-1:] == [b"good"], what=platform.status)
    assert broker.acknowledged == []
    heard.untaken = 0
    eventually(lambda: broker.acknowledged[-1:] == [(1, 7)])
    told = ("sends bytes that are not MQTT", "Protocol error", "Unspecified error")  # some of it paho notices itself
    assert any(each in caplog.text for each in told)


@pytest.mark.parametrize(
    ("properties", "cause"),
    [
        (b"\x26\x00\x01\xff\x00\x01x", "invalid"),  # a user property that is no UTF-8
        (b"\x26\x00\x01a\x00\x01\x00", "invalid"),  # one with a zero character
        (b"\x7f\x01", "invalid"),  # one that there is not
        (b"\x01\x00\x01\x00", "invalid"),  # one that is there twice and may not
        (b"\x26\x00\x01a\x00\x00" * 40_000, "oversize"),  # more than anybody reads in a second
    ],
)
def test_a_message_that_can_t_be_read_is_lost_alone_and_does_not_come_again(
    side: Any, properties: bytes, cause: str, eventually: Any
) -> None:
    # Given a broker that hands on what somebody has published there, and something good behind it
    broker, platform, heard = side(publication(1, b"p", properties=properties) + publication(2, b"good"))
    # When, Expect both acknowledged by the same connection: a session's broker would send the bad one for ever
    eventually(lambda: broker.acknowledged == [(0, 1), (0, 2)], what=platform.status)
    assert heard.payloads == [b"good"]
    assert heard.losses == platform.status()["lost"] == {cause: 1}


def test_a_message_is_acknowledged_when_the_other_side_has_taken_it(side: Any, eventually: Any) -> None:
    # Given three messages that have come, of which the other side has taken none
    broker, platform, heard = side(b"".join(publication(number, b"%d" % number) for number in (1, 2, 3)))
    heard.untaken = 3
    eventually(lambda: heard.payloads == [b"1", b"2", b"3"])
    # When it takes two, expect these acknowledged, in their order, and the third not
    heard.untaken = 1
    eventually(lambda: broker.acknowledged == [(0, 1), (0, 2)])
    # When the bridge leaves in order, expect that it waits for the third
    leaving = threading.Thread(target=platform.stop_listening)
    leaving.start()
    heard.untaken = 0
    leaving.join(10.0)
    eventually(lambda: broker.acknowledged == [(0, 1), (0, 2), (0, 3)])


def test_of_more_messages_than_were_asked_for_the_rest_waits_at_the_broker(
    side: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a broker that sends at once all that waits in our session, some of it again, and another side that takes
    # nothing for so long that the broker is to be asked whether it is there
    monkeypatch.setattr("jbi_pubsub.bridge.mqtt.platform.KEEPALIVE", 1)
    first, again = publication(1, b"1"), publication(1, b"1", head=0x3A) * HELD_MOST  # DUP
    rest = b"".join(publication(number, b"%d" % number) for number in range(2, 2 * HELD_MOST))
    broker, platform, heard = side(first + again + rest)
    heard.untaken = 2 * HELD_MOST
    eventually(lambda: len(heard.payloads) >= HELD_MOST and broker.pings >= 3, what=platform.status)
    seen = broker.pings
    eventually(lambda: broker.pings > seen, what=platform.status)
    assert len(heard.payloads) == HELD_MOST
    # When it takes what there is
    heard.untaken = 0
    # Expect all acknowledged by that connection, and each to be one object
    eventually(lambda: broker.acknowledged == [(0, number) for number in range(1, 2 * HELD_MOST)], what=platform.status)
    assert heard.payloads == [b"%d" % number for number in range(1, 2 * HELD_MOST)]


def test_what_is_sent_again_before_it_could_be_acknowledged_is_one_object(side: Any, eventually: Any) -> None:
    # Given a broker with our session, and a message that the other side has not taken when the connection ends
    again = publication(1, b"first", head=0x3A)  # DUP
    broker, platform, heard = side(publication(1, b"first"), again + publication(2, b"second"), connack=KEPT)
    heard.untaken = 2
    eventually(lambda: heard.payloads == [b"first"])
    # When it is sent again by the next one, and taken
    broker.next.set()
    eventually(lambda: heard.payloads[-1:] == [b"second"], what=platform.status)
    heard.untaken = 0
    # Expect one object of it, acknowledged where it came last
    eventually(lambda: broker.acknowledged == [(1, 1), (1, 2)])
    assert heard.payloads == [b"first", b"second"]


def test_a_session_is_asked_for_and_its_loss_is_told(side: Any, eventually: Any) -> None:
    # Given a broker that has no session of ours, two times
    broker, platform, heard = side(b"", b"", session=3_600)
    eventually(lambda: platform.status()["connected"] and broker.connects)
    broker.next.set()
    # When we are connected again
    eventually(lambda: len(broker.connects) == 2 and platform.status()["session"]["lost"] == 1, what=platform.status)
    # Expect what we have asked for: no clean start, an hour, and the same id each time
    for packet in broker.connects:
        assert packet[9] & 0x02 == 0
        assert b"\x11" + struct.pack("!I", 3_600) in packet
        assert packet.endswith(b"\x00\x0bjbi-b-field")
    # And that what was lost is told, without a number
    assert heard.losses == {"session_lost": 0}


def test_topic_aliases_are_understood(side: Any, eventually: Any) -> None:
    # Given a broker that says a topic once, and its number from then on
    named = publication(1, b"1", b"open/long", properties=b"\x23\x00\x03")
    _broker, platform, heard = side(named + publication(2, b"2", b"", properties=b"\x23\x00\x03"))
    # When, Expect both on that topic
    eventually(lambda: len(heard.objects) == 2, what=platform.status)
    assert all(b"<topic>open/long</topic>" in obj.metadata for obj in heard.objects)


def test_a_broker_that_ends_each_connection_is_asked_ever_less_often(tmp_path: Path, eventually: Any) -> None:
    # Given a broker that greets, and leaves
    with socket.create_server(("127.0.0.1", 0)) as listener:
        came: list[float] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    with peer:
                        peer.recv(65_536)
                        peer.sendall(CONNACK)
                        came.append(time.monotonic())

        threading.Thread(target=serve, daemon=True).start()
        side = MqttSide(f"127.0.0.1:{listener.getsockname()[1]}", topic=(MqttTopic("open/+", "t"),))
        platform = MqttPlatform("field", side, "b", folder=tmp_path)
        # When it was connected to three times
        eventually(lambda: len(came) >= 3, what=platform.status)
        platform.close()
    # Expect a longer pause before the third one
    assert came[2] - came[1] > 1.5 > 0.9 < came[1] - came[0]


@pytest.mark.parametrize(
    ("properties", "told"),
    [
        (b"\x24\x00", "it has no QoS 1"),
        (b"\x21\x00\x01\x27\x00\x00\x00\x01\x22\xff\xff\x13\x00\x01\x29\x00", ""),  # one at a time, of one byte ...
        (b"\x11\x00\x00\x00\x05", "keeps the session for 5 s only"),
    ],
)
def test_what_a_broker_says_of_itself_is_kept_to(
    side: Any, properties: bytes, told: str, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker with such properties
    connack = b"\x20" + variable(3 + len(properties)) + b"\x00\x00" + variable(len(properties)) + properties
    broker, platform, _heard = side(publication(1, b"p"), connack=connack)
    # When, Expect what can't be to be told, and messages of the others
    if told:
        eventually(lambda: told in caplog.text)
    if "no QoS 1" not in told:
        eventually(lambda: broker.acknowledged == [(0, 1)], what=platform.status)


@pytest.mark.parametrize(
    ("granted", "told"), [(b"\x87", "refuses a subscription: Not authorized"), (b"\x00", "QoS 0 alone")]
)
def test_a_subscription_that_is_not_what_was_asked_for_is_told(
    side: Any, granted: bytes, told: str, eventually: Any
) -> None:
    # Given a broker that refuses a filter, or gives it another QoS, expect that told
    _broker, platform, _heard = side(b"", granted=granted)
    eventually(lambda: told in platform.status()["trouble"], what=platform.status)


def test_another_process_with_the_same_client_id_is_told(
    side: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker that ends the connection since our session is another one's now (reason 0x8E)
    side(b"\xe0\x02\x8e\x00")
    # When, Expect it told, with what helps
    eventually(lambda: "Session taken over another process has our client id" in caplog.text)


def test_a_broker_that_we_leave_is_not_told_to_be_away(
    side: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a connection to a broker
    _broker, platform, _heard = side(b"")
    eventually(lambda: platform.status()["connected"], what=platform.status)
    # When we leave, expect no trouble
    platform.close()
    assert platform.status()["trouble"] == ""
    assert "is away" not in caplog.text


def test_a_broker_that_reads_nothing_does_not_take_our_memory(
    side: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a broker for which more packets wait than may, as it sends and does not read
    _broker, platform, heard = side(b"", publication(1, b"good"))
    eventually(lambda: platform.status()["connected"])
    monkeypatch.setattr("jbi_pubsub.bridge.mqtt.client.ANSWERS_MOST", -1)
    # When it sends something
    _broker.next.set()
    # Expect the connection given up, and another one when it reads
    eventually(lambda: "it does not read" in caplog.text)
    monkeypatch.setattr("jbi_pubsub.bridge.mqtt.client.ANSWERS_MOST", 10_000)
    eventually(lambda: heard.payloads == [b"good"], what=platform.status)


def test_a_broker_that_acknowledges_nothing_does_not_take_our_memory(
    side: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a broker that acknowledges nothing, and a bound of bytes
    monkeypatch.setattr("jbi_pubsub.bridge.mqtt.waiting.UNACKNOWLEDGED_BYTES", 10_000)
    _broker, platform, _heard = side(b"")
    eventually(lambda: platform.status()["connected"])
    obj = InfoObject("i", TypeName("t"), b"<m/>", bytes(4_000), Platform(0.0, "r", 1, 4, 4_000))
    # When objects are published there
    for _ in range(2):
        platform.publish("r", obj, "alpha", 1.0)
    # Expect no third one, and the two not taken
    with pytest.raises(BackPressureError, match="wait for the broker"):
        platform.publish("r", obj, "alpha", 0.1)
    assert platform.unfinished("r") == 2


def test_a_topic_that_is_no_text_is_left_out_and_counted(side: Any, eventually: Any) -> None:
    # Given
    bad = publication(1, b"bad", topic=b"open/\xff")
    # When
    broker, platform, heard = side(bad + publication(2, b"good"))
    # Expect
    eventually(lambda: broker.acknowledged[-1:] == [(0, 2)])
    assert heard.payloads == [b"good"]
    assert platform.status()["lost"] == {"invalid": 1}


def test_of_messages_that_are_left_out_a_few_are_in_the_log(
    side: Any, eventually: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Given many messages whose metadata are no XML, each on a topic of its own
    bad = b"\x26\x00\x0cjbi-metadata\x00\x02<a"
    broker, platform, heard = side(b"".join(publication(n, b"", b"open/%d" % n, bad) for n in range(1, 301)))
    # When all were left out
    eventually(lambda: len(broker.acknowledged) == 300, what=platform.status)
    # Expect each to be counted, the first ones in the log, and then how many they are
    assert heard.losses == platform.status()["lost"] == {"invalid": 300}
    lines = [each.getMessage() for each in caplog.records if "is left out" in each.getMessage()]
    assert len(lines) == TOLD_WHOLE + 5
    assert "open/256" in lines[-1]
    assert lines[-1].endswith("(invalid, 256 times)")


def test_what_came_by_a_former_connection_is_not_acknowledged_to_the_next(side: Any, eventually: Any) -> None:
    # Given a message that is not taken yet when the broker goes away
    broker, platform, heard = side(publication(1, b"first"), publication(2, b"second"))
    heard.may.clear()
    eventually(lambda: heard.payloads)
    broker.next.set()
    # When it is taken, and another one is there
    eventually(lambda: platform._inbox._waiting.qsize() == 1)
    heard.may.set()
    # Expect
    eventually(lambda: heard.payloads == [b"first", b"second"])
    eventually(lambda: broker.acknowledged == [(1, 2)])
    assert platform.status()["session"] == {"kept": False, "lost": 1}
