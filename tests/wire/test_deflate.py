"""Compression of a data connection: what goes in comes out, what does not shrink goes as it is, no bombs."""

from __future__ import annotations

import random
import socket
import struct
import threading
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub import Config
from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.config import LinkSection, LookupSection
from jbi_pubsub.core.errors import ProtocolError, WireError
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.deflate import DEFLATE, INFLATED_MOST, Allowance, Compression, described
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Security
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.ref import ServiceRef
from jbi_pubsub.core.wire.stream import ACK, BATCH, DEFLATED, FRAME, ITEMS, LENGTH, WELCOME, Window, deflated
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet, listen, welcome
from jbi_pubsub.pad.server.server import DisseminationServer

pytestmark = pytest.mark.processes

LINE = b"<metadata><name>T%05d</name><lat>34.817</lat><long>67.817</long></metadata>"


def packed(body: bytes, length: int | None = None, *, end: int = zlib.Z_SYNC_FLUSH) -> bytes:
    """A deflated batch as another implementation would make it, that says it were `length` bytes long."""
    stream = zlib.compressobj(wbits=-15)
    data = stream.compress(body) + stream.flush(end)
    data = data[:-4] if end == zlib.Z_SYNC_FLUSH else data
    return struct.pack("!I", len(body) if length is None else length) + data


@pytest.fixture
def pair() -> Iterator[tuple[StreamSocket, StreamSocket]]:
    """Both ends of a connection."""
    ends = socket.socketpair()
    yield StreamSocket(ends[0]), StreamSocket(ends[1])
    for end in ends:
        end.close()


# -- the stream -------------------------------------------------------------------------------------------------


PIECES = st.one_of(
    st.binary(max_size=300),
    st.integers(0, 999).map(lambda n: LINE % n),
    st.integers(1, 60_000).map(lambda n: (LINE % n) * (n % 400)),
    st.integers(1, 40_000).map(lambda n: random.Random(n).randbytes(n)),
)


@settings(derandomize=True, max_examples=examples(60), deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_batches_come_out_as_they_went_in_whatever_shrinks_of_them(bodies: list[bytes]) -> None:
    # Given two ends of a connection
    near, far = Compression(), Compression()

    for body in bodies:
        # When a batch is sent, deflated or, if that is no use, as it is
        sent = near.deflate(body)
        if sent is None:
            far.passed(len(body))
        else:
            # Expect it back, and that it was worth it
            assert far.inflate(memoryview(sent)) == body
            assert len(sent) < len(body)

    # Expect both ends to say the same of the connection
    assert described(near) == described(far)
    assert near.plain == sum(map(len, bodies))


@pytest.mark.row("G-13")
def test_metadata_that_repeats_costs_little_after_the_first_time() -> None:
    # Given objects whose metadata differ in a number, each in a batch of its own
    compression = Compression()

    # When 50 are sent
    sizes = [len(compression.deflate(LINE % n) or LINE) for n in range(50)]

    # Expect the first not much smaller than in clear, and those after it a quarter: references into what went before
    assert sizes[0] >= 60
    assert max(sizes[1:]) < len(LINE) // 4
    assert described(compression)["ratio"] > 4


def test_what_does_not_shrink_goes_as_it_is_and_leaves_the_stream_alone() -> None:
    # Given a connection that has carried a batch of metadata
    near, far = Compression(), Compression()
    far.inflate(near.deflate(LINE % 1) or b"")

    # When imagery of any size is sent between two that repeat it
    images = [random.Random(size).randbytes(size) for size in (10, 1_000, 10_000, 200_000)]
    went = [near.deflate(image) for image in images]

    # Expect the imagery in clear, and the next metadata as small as without it
    assert went == [None] * 4
    small = near.deflate(LINE % 2)
    assert small is not None
    assert len(small) < 20
    assert far.inflate(small) == LINE % 2


def test_a_frame_that_carries_no_batch_or_too_long_a_one_is_not_compressed() -> None:
    # Expect acknowledgements and greetings, and batches beyond the limit, untouched
    compression = Compression()
    for frame in ([FRAME.pack(100, WELCOME), bytes(100)], Window().add([(bytes(INFLATED_MOST + 1),)]).frame):
        assert deflated(frame, compression) is frame


# -- what an attacker may send ----------------------------------------------------------------------------------

BAD = {
    "empty": b"",
    "truncated": b"\0\0",
    "garbage": struct.pack("!I", 100) + b"\xff" * 50,
    "longer than it says": packed(bytes(10_000), 9_999),
    "shorter than it says": packed(bytes(10_000), 10_001),
    "a bomb that says the limit": packed(bytes(50 << 20), INFLATED_MOST),
    "a bomb that says so": packed(bytes(50 << 20)),
    "more than the limit": packed(bytes(INFLATED_MOST + 1)),
    "larger than what is in it": packed(random.Random(1).randbytes(100)),
    "the end of the stream": packed(bytes(1_000), end=zlib.Z_FINISH),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_batch_that_is_not_what_it_says_is_refused_and_takes_no_memory(data: bytes) -> None:
    # When a deflated batch comes that is not exactly as long as it says, up to a thousand times longer
    far = Compression()
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        far.inflate(memoryview(data))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # Expect a refusal that has cost no more than the batch itself, and some of what one may announce at most
    assert most < 2 * len(data) + 4 * INFLATED_MOST


def test_a_deflated_batch_on_a_line_in_clear_is_refused(pair: tuple[StreamSocket, StreamSocket]) -> None:
    # Given a connection on which nobody has agreed to compress
    near, far = pair
    taken: list[memoryview] = []

    # When a deflated batch comes
    near.send(DEFLATED, [packed(bytes(BATCH.pack(1, 0)))])

    # Expect the connection to end, and nothing to be taken
    with pytest.raises(ProtocolError, match="kind 7"):
        Receiver(taken.extend, lambda: b"").run(far)
    assert taken == []


def test_a_bomb_ends_the_publishers_connection_and_only_that(eventually: Callable[..., Any]) -> None:
    # Given a delegate, and a publisher that has agreed with it to compress
    alone = LookupSection(port=0, multicast=False, locators=(), timeout=1.0)
    server = DisseminationServer(Config(lookup=alone), TypeRepository(), characteristics=("alpha", "rome"))
    server.start()
    ref = ServiceRef("", "delegate", (server.address,))
    client = ControlClient(ref, Security())
    opened = client.call("connect", dict[str, Any], "publisher", 60.0, {})
    sock = dial(ref, DATA, Security(), 5.0)
    line = StreamSocket(sock)
    greet(line, Hello(client.call("open_publications", str, opened["uid"]), 0, (DEFLATE,)))
    assert server.status()["compressed"] == 1

    # When a batch of 30 kB comes that would be 30 MB
    line.send(DEFLATED, [packed(bytes(30 << 20), 1 << 20)])

    # Expect the connection to end; the publisher is known, and the delegate answers
    assert line.receive(5.0)[0] == ACK  # of nothing, which opens each connection
    with pytest.raises(WireError):
        line.receive(5.0)
    eventually(lambda: server.status()["compressed"] == 0)
    assert len(server.status()["publishers"]) == 1
    client.close()
    sock.close()
    server.stop(0.5)


# -- agreeing ---------------------------------------------------------------------------------------------------


def shake(
    pair: tuple[StreamSocket, StreamSocket], hello: Hello, allowance: Allowance
) -> tuple[StreamSocket, StreamSocket]:
    """Both halves of the handshake."""
    near, far = pair
    answering = threading.Thread(target=lambda: welcome(far, 7, allowance.grant(listen(far).compression)))
    answering.start()
    assert greet(near, hello) == 7
    answering.join()
    return near, far


@pytest.mark.parametrize(
    ("asked", "most", "agreed"),
    [
        ((), 1, False),
        ((DEFLATE,), 1, True),
        ((DEFLATE,), 0, False),
        (("zstd", DEFLATE), 1, True),
        (("zstd",), 1, False),
    ],
    ids=["not asked", "asked", "asked and declined", "asked with another", "asked for another"],
)
def test_a_connection_is_compressed_if_the_client_asks_and_the_server_agrees(
    asked: tuple[str, ...], most: int, agreed: bool, pair: tuple[StreamSocket, StreamSocket]
) -> None:
    # When a client asks for compressions, of a server that takes `most` compressed connections
    ends = shake(pair, Hello("token", compression=asked), Allowance(most))

    # Expect both ends to think the same of it
    assert [end.compression is not None for end in ends] == [agreed, agreed]
    assert described(ends[0].compression)["compression"] == (DEFLATE if agreed else "none")

    # Expect a batch to come through, smaller if they agreed
    received: list[bytes] = []
    body = b"".join((BATCH.pack(1, 1), LENGTH.pack(1000), bytes(1000)))
    ends[0].send(ITEMS, [body])
    ends[0].shut()
    with pytest.raises(WireError):
        Receiver(lambda items: received.extend(map(bytes, items)), lambda: b"").run(ends[1])
    assert received == [bytes(1000)]
    if ends[1].compression is not None:
        assert ends[1].compression.plain == len(body)
        assert ends[1].compression.carried < 100


def test_a_server_that_names_what_nobody_asked_for_is_not_believed(pair: tuple[StreamSocket, StreamSocket]) -> None:
    # When a server answers a client that has asked for nothing that it compresses
    near, far = pair
    answering = threading.Thread(target=lambda: (listen(far), welcome(far, 0, Compression())))
    answering.start()

    # Expect the connection to end
    with pytest.raises(ProtocolError, match="welcome"):
        greet(near, Hello("token"))
    answering.join()


def test_a_server_compresses_no_more_connections_than_it_has_memory_for() -> None:
    # Given a server that takes two
    allowance = Allowance(2)
    granted = [allowance.grant((DEFLATE,)) for _ in range(3)]

    # Expect the third in clear, until one of the others has gone
    assert [compression is not None for compression in granted] == [True, True, False]
    assert len(allowance) == 2
    granted.pop(0)
    assert len(allowance) == 1
    assert allowance.grant((DEFLATE,)) is not None


@pytest.mark.parametrize("setting", ["none", "deflate"])
@pytest.mark.parametrize("kind", ["delegate", "peer"])
def test_each_client_asks_by_its_configuration_and_status_says_what_came_of_it(
    setting: Any, kind: str, federation: Any, figures: Any, eventually: Callable[..., Any]
) -> None:
    # Given a node, a publisher and a subscriber, the latter two with a setting for compression
    lookup = federation.lookup()
    node: Any = federation.pad() if kind == "delegate" else federation.peer()
    federation.config = msgspec.structs.replace(federation.config, link=LinkSection(compression=setting))
    publisher = node
    if kind == "peer":
        registration = publisher.register_publisher(figures.schema, figures.figure_1)
    else:
        publisher = federation.light()
        at = publisher.connect_to_delegate("alpha", "rome")
        registration = publisher.register_publisher(at, figures.schema, figures.figure_1)
    subscriber = federation.subscriber()
    uid = subscriber.register_subscriber(type_name="mil.af.rl.jbi.Intel_Imagery")
    assert subscriber.wait_matched(uid) == 1

    # When twenty objects are published
    for n in range(20):
        publisher.publish(registration, figures.figure_1, b"%d" % n)
    stream = subscriber.objects(uid, 10.0)
    payloads = [bytes(next(stream).payload) for _ in range(20)]

    # Expect all of them, and each end to say whether they came compressed, and how much that has saved
    assert payloads == [b"%d" % n for n in range(20)]
    [session] = node.status()["sessions"]
    [seen] = subscriber.status()["sessions"]
    assert session["compression"] == seen["compression"] == setting
    eventually(lambda: node.status()["sessions"][0]["ratio"] == subscriber.status()["sessions"][0]["ratio"])
    assert (subscriber.status()["sessions"][0]["ratio"] > 2) == (setting == "deflate")
    if kind == "delegate":
        [connection] = publisher.status()["delegates"].values()
        assert (connection["ratio"] > 2) == (setting == "deflate")
    # Expect that events come so as well; the node, which was not asked, gets them in clear
    assert (lookup.status()["compressed"] > 0) == (setting == "deflate")
