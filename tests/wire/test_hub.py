"""One thread sends for many: nobody holds up anybody else. (The rules of a single stream are in test_stream.)"""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from jbi_pubsub.core.errors import WireError
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.wire import hub as hub_module
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.poll import LOOK_SECONDS
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream import (
    ACK,
    ACK_BYTES,
    BATCH,
    FRAME,
    LENGTH,
    MAX_BATCH_BYTES,
    MAX_BATCH_ITEMS,
    WINDOW_BATCHES,
)
from jbi_pubsub.core.wire.stream_socket import StreamSocket

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run in the main thread, for which the hub's sends."""
    monkeypatch.setattr(hub_module, "in_main_thread", lambda: False)


MEGABYTE = 1 << 20


class Stream:
    """A stream of a hub: what waits for it, what was acknowledged, which of its connections have ended."""

    def __init__(self, hub: SenderHub, log: list[str] | None = None, name: str = "") -> None:
        self.waiting: deque[tuple[Part, ...]] = deque()
        self.acked = 0
        self.notes: list[bytes] = []
        self.ended: list[socket.socket] = []
        self.on_take: Callable[[], None] = lambda: None
        self._log, self._name = log, name
        self.sender = HubSender(hub, take=self._take, acked=self._acked)

    def give(self, *items: bytes) -> None:
        """To be sent."""
        self.waiting.extend((item,) for item in items)
        self.sender.ready()

    def connect(self, sock: socket.socket, position: int = 0) -> None:
        """Use that socket from now on."""

        def ended() -> None:
            self.ended.append(sock)
            sock.close()

        self.sender.attach(sock, position, ended=ended)

    def _take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:
        self.on_take()
        if self._log is not None:
            self._log.append(self._name)
        items: list[tuple[Part, ...]] = []
        while self.waiting and len(items) < max_items and sum(len(p) for i in items for p in i) < max_bytes:
            items.append(self.waiting.popleft())
        return items

    def _acked(self, count: int, note: bytes) -> None:
        self.acked += count
        if note:
            self.notes.append(note)


class Reader:
    """A client in a thread of its own: what it has received."""

    def __init__(self, sock: socket.socket) -> None:
        self.received: list[bytes] = []
        self._sock = sock
        self._receiver = Receiver(lambda items: self.received.extend(map(bytes, items)), lambda: b"note")
        self._thread: threading.Thread | None = None
        self.read(sock)

    @property
    def position(self) -> int:
        """How far it has received."""
        return self._receiver.position

    def read(self, sock: socket.socket) -> None:
        """Go on with that socket."""
        self._sock = sock
        self._thread = threading.Thread(target=self._run, args=(StreamSocket(sock),))
        self._thread.start()

    def _run(self, line: StreamSocket) -> None:
        with suppress(WireError):
            self._receiver.run(line)

    def close(self) -> None:
        """Leave."""
        self._receiver.stop()
        assert self._thread is not None
        self._thread.join()
        self._sock.close()


class Field:
    """Hubs, sockets and readers, ended at the end."""

    def __init__(self) -> None:
        self.now = 0.0
        self._hubs: list[SenderHub] = []
        self._readers: list[Reader] = []
        self._sockets: list[socket.socket] = []

    def close(self) -> None:
        """End all, in an order in which nobody waits for anybody."""
        for hub in self._hubs:
            hub.stop()
        for reader in self._readers:
            reader.close()
        for sock in self._sockets:
            sock.close()

    def hub(self, **options: Any) -> SenderHub:
        """A hub whose clock stands still but for `pass_until`."""
        hub = SenderHub(name="test-hub", clock=lambda: self.now, **options)
        hub.start()
        self._hubs.append(hub)
        return hub

    def pass_until(self, now: float) -> None:
        """The clock goes on second by second, and every hub sees each of them."""
        while self.now < now:
            self.now = min(now, self.now + LOOK_SECONDS)
            for hub in self._hubs:
                for _ in range(2):  # the first order may be done in a round that began before
                    done = threading.Event()
                    assert hub.order(done.set)
                    assert done.wait(20.0)

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """Two connected sockets: the hub's and its peer's."""
        ours, theirs = socket.socketpair()
        self._sockets.append(theirs)
        return ours, theirs

    def own(self, sock: socket.socket) -> None:
        """Close it in the end."""
        self._sockets.append(sock)

    def reader(self, sock: socket.socket) -> Reader:
        """A client that reads."""
        self._readers.append(Reader(sock))
        return self._readers[-1]


@pytest.fixture
def field() -> Iterator[Field]:
    before = set(threading.enumerate())
    made = Field()
    yield made
    made.close()
    assert set(threading.enumerate()) <= before


def test_one_thread_sends_for_a_hundred(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a hundred streams of one hub, each with a reader
    before = threading.active_count()
    hub = field.hub()
    assert threading.active_count() == before + 1
    streams = [Stream(hub) for _ in range(100)]
    readers = []
    for stream in streams:
        ours, theirs = field.pair()
        stream.connect(ours)
        readers.append(field.reader(theirs))

    # When each is given hundreds of items of its own, by turns
    items = [[f"{n}-{k}".encode() for k in range(300)] for n in range(100)]
    for first in range(0, 300, 100):
        for n, stream in enumerate(streams):
            stream.give(*items[n][first : first + 100])

    # Expect each reader to receive its own, in order, and all to be acknowledged with its notes
    eventually(lambda: all(stream.acked == 300 for stream in streams), 30.0)
    assert [reader.received for reader in readers] == items
    assert all(set(stream.notes) == {b"note"} for stream in streams)
    assert sum(stream.sender.unacknowledged for stream in streams) == 0


def test_a_large_backlog_of_one_gives_turns_to_others(field: Field, eventually: Callable[..., Any]) -> None:
    # Given one stream with forty batches waiting, and another that gets its only item at the tenth of them
    log: list[str] = []
    hub = field.hub()
    large, small = Stream(hub, log, "large"), Stream(hub, log, "small")
    readers = []
    for stream in (large, small):
        ours, theirs = field.pair()
        stream.connect(ours)
        readers.append(field.reader(theirs))
    eventually(lambda: large.sender.connected and small.sender.connected)
    del log[:]

    def at_the_tenth() -> None:
        if log.count("large") == 10:
            small.give(b"small")

    large.on_take = at_the_tenth

    # When both are sent
    large.give(*[b"item"] * 20_000)
    eventually(lambda: large.acked == 20_000 and small.acked == 1, 30.0)

    # Expect the small one's turn to come before a second batch of the large one
    assert log.index("small") <= 11
    assert (len(readers[0].received), readers[1].received) == (20_000, [b"small"])


def test_a_peer_that_takes_nothing_holds_up_nobody_and_is_dropped_in_the_end(
    field: Field, eventually: Callable[..., Any]
) -> None:
    # Given a peer that reads nothing although far more waits than its socket takes, and one that reads
    hub = field.hub(send_seconds=30.0)
    stalled, lively = Stream(hub), Stream(hub)
    hub_end, silent = field.pair()
    stalled.connect(hub_end)
    stalled.give(*[bytes(MEGABYTE)] * 50)
    ours, theirs = field.pair()
    lively.connect(ours)
    reader = field.reader(theirs)

    # Expect that the other one is sent to, and that little is taken for the one that stalls: it can still be dropped
    for n in range(100):
        lively.give(b"%d" % n)
    eventually(lambda: lively.acked == 100)
    assert reader.received == [b"%d" % n for n in range(100)]
    assert len(stalled.waiting) >= 50 - WINDOW_BATCHES
    assert stalled.ended == []

    # When it takes something after 29 seconds, expect that its time begins anew
    field.pass_until(29.0)
    silent.recv(MEGABYTE, socket.MSG_WAITALL)
    lively.give(b"something for the hub to do")
    eventually(lambda: lively.acked == 101)
    field.pass_until(58.0)
    lively.give(b"something for the hub to do")
    eventually(lambda: lively.acked == 102)
    assert stalled.ended == []

    # When it takes nothing for 30 seconds, expect it to be disconnected, and the other one not
    field.pass_until(120.0)
    eventually(lambda: stalled.ended == [hub_end])
    assert not stalled.sender.connected
    assert lively.sender.connected

    # When it comes back, expect everything from the beginning, once
    ours, theirs = field.pair()
    stalled.connect(ours)
    again = field.reader(theirs)
    eventually(lambda: stalled.acked == 50)
    assert [len(item) for item in again.received] == [MEGABYTE] * 50


def test_a_hub_that_was_kept_from_its_work_drops_nobody_for_that(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a peer for which more waits than its socket takes, and that reads nothing
    hub = field.hub(send_seconds=30.0)
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    stream.give(*[bytes(MEGABYTE)] * 20)
    eventually(lambda: stream.sender in hub.stalls.unsent)

    # When the hub is kept from its work for longer than a peer has, and works for a while then
    busy, go_on = threading.Event(), threading.Event()

    def keep() -> None:
        busy.set()
        go_on.wait(20.0)

    hub.order(keep)
    assert busy.wait(20.0)
    field.now = 60.0
    go_on.set()
    field.pass_until(85.0)

    # Expect the peer to be there still, and to get everything when it reads
    assert stream.ended == []
    reader = field.reader(theirs)
    eventually(lambda: stream.acked == 20)
    assert [len(item) for item in reader.received] == [MEGABYTE] * 20


def test_orders_that_make_orders_hold_up_nobody(field: Field, eventually: Callable[..., Any]) -> None:
    # Given an order that gives itself again and again
    hub = field.hub()
    ended = threading.Event()

    def again() -> None:
        if not ended.is_set():
            hub.order(again)

    hub.order(again)

    # When something is given to a stream, expect it to be sent
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    field.reader(theirs)
    stream.give(b"item")
    try:
        eventually(lambda: stream.acked == 1)
    finally:
        ended.set()


def test_a_newer_connection_wins_and_resumes_where_the_peer_is(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a peer that has received three items and acknowledged them, and whose connection is half open
    hub = field.hub()
    stream = Stream(hub)
    first, theirs = field.pair()
    stream.connect(first)
    reader = field.reader(theirs)
    stream.give(b"1", b"2", b"3")
    eventually(lambda: stream.acked == 3)
    reader.close()
    eventually(lambda: stream.ended == [first])
    second, silent = field.pair()
    stream.connect(second, position=3)
    stream.give(b"4", b"5")
    eventually(lambda: stream.sender.unacknowledged == 2)

    # When it connects again
    third, theirs = field.pair()
    stream.connect(third, position=reader.position)
    reader.read(theirs)

    # Expect the older connection to be ended, and what it was not known to have to come by the newer one
    eventually(lambda: stream.acked == 5)
    assert stream.ended == [first, second]
    assert reader.received == [b"1", b"2", b"3", b"4", b"5"]
    silent.settimeout(60.0)
    with suppress(ConnectionError):
        while silent.recv(1000):
            pass


@pytest.mark.parametrize(
    "sent",
    [
        FRAME.pack(8, ACK) + (6).to_bytes(8, "big"),
        FRAME.pack(8, 99) + bytes(8),
        FRAME.pack(7, ACK) + bytes(7),
        FRAME.pack(ACK_BYTES + 1, ACK),
    ],
    ids=["never sent", "another kind", "no position", "too large"],
)
def test_a_peer_that_breaks_the_rules_is_disconnected_and_nobody_else(
    sent: bytes, field: Field, eventually: Callable[..., Any]
) -> None:
    # Given two peers, each of which was sent five items
    hub = field.hub()
    bad, good = Stream(hub), Stream(hub)
    ours, breaker = field.pair()
    bad.connect(ours)
    bad.give(*[b"item"] * 5)
    others, theirs = field.pair()
    good.connect(others)
    reader = field.reader(theirs)
    eventually(lambda: bad.sender.unacknowledged == 5)

    # When one breaks the rules
    breaker.sendall(sent)

    # Expect its connection to be over, what it was sent to be kept, and the other one to go on
    eventually(lambda: bad.ended == [ours])
    assert bad.sender.unacknowledged == 5
    good.give(b"still here")
    eventually(lambda: good.acked == 1)
    assert reader.received == [b"still here"]


def test_what_fails_for_one_stream_fails_for_no_other(
    field: Field, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a stream whose source has a fault, and one without
    hub = field.hub()
    faulty, good = Stream(hub), Stream(hub)
    ours, _silent = field.pair()

    def fail() -> None:
        raise KeyError("a fault")

    faulty.on_take = fail
    faulty.connect(ours)
    others, theirs = field.pair()
    good.connect(others)
    reader = field.reader(theirs)

    # When both have something
    faulty.give(b"never")
    good.give(b"sent")

    # Expect the one connection to be ended, which the log tells of, and the other to be served
    eventually(lambda: faulty.ended == [ours] and good.acked == 1)
    assert reader.received == [b"sent"]
    assert "a fault" in caplog.text


def test_a_connection_that_can_not_be_closed_ends_no_other(
    field: Field, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a connection whose owner fails when it is told of its end, and another one
    hub = field.hub()
    bad, good = Stream(hub), Stream(hub)
    ours, theirs = field.pair()
    field.own(ours)

    def fail() -> None:
        raise KeyError("a fault")

    bad.sender.attach(ours, 0, ended=fail)
    others, reading = field.pair()
    good.connect(others)
    field.reader(reading)
    eventually(lambda: bad.sender.connected)

    # When its peer leaves, expect the other one to be served
    theirs.close()
    eventually(lambda: not bad.sender.connected)
    good.give(b"still here")
    eventually(lambda: good.acked == 1)
    assert "a fault" in caplog.text


def test_acknowledgements_may_come_in_pieces_and_together(field: Field, eventually: Callable[..., Any]) -> None:
    # Given four items sent
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    stream.give(*[b"item"] * 4)
    eventually(lambda: stream.sender.unacknowledged == 4)

    # When acknowledgements come byte by byte, then two at once with a part of a third
    def ack(position: int, note: bytes) -> bytes:
        return FRAME.pack(8 + len(note), ACK) + position.to_bytes(8, "big") + note

    for byte in ack(1, b"one"):
        theirs.sendall(bytes([byte]))
    eventually(lambda: stream.acked == 1)
    last = ack(4, bytes(100_000))
    theirs.sendall(ack(2, b"two") + ack(3, b"three") + last[:50])
    eventually(lambda: stream.acked == 3)
    theirs.sendall(last[50:])

    # Expect each with its note
    eventually(lambda: stream.acked == 4)
    assert stream.notes == [b"one", b"two", b"three", bytes(100_000)]


def test_a_hub_that_stops_ends_its_connections_and_takes_no_more(field: Field) -> None:
    # Given a hub with a connection that has things to send
    hub = field.hub()
    stream = Stream(hub)
    ours, _theirs = field.pair()
    stream.connect(ours)
    stream.give(*[bytes(MEGABYTE)] * 50)

    # When it stops, expect the connection to be over, and one that comes then to be ended at once
    hub.stop()
    assert stream.ended == [ours]
    late, _peer = field.pair()
    stream.connect(late)
    assert stream.ended == [ours, late]
    stream.give(b"nobody hears this")
    hub.stop()


def test_a_stream_that_is_stopped_takes_no_connection(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a connected stream
    hub = field.hub()
    stream = Stream(hub)
    ours, _theirs = field.pair()
    stream.connect(ours)
    eventually(lambda: stream.sender.connected)

    # When it is stopped, expect its connection to be over, and another one to be ended at once
    stream.sender.stop()
    late, _peer = field.pair()
    stream.connect(late)
    eventually(lambda: stream.ended == [ours, late])
    assert not stream.sender.connected


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS for a server and for its client."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.num_tickets = 0
    authority.issue_cert("server.example").configure_cert(server)
    authority.configure_trust(client)
    return server, client


def secured(field: Field, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """A pair of sockets after the handshake."""
    ours, theirs = field.pair()
    client = contexts[1].wrap_socket(theirs, do_handshake_on_connect=False, server_hostname="server.example")
    field.own(client)
    shaking = threading.Thread(target=client.do_handshake)
    shaking.start()
    server = contexts[0].wrap_socket(ours, server_side=True)
    shaking.join()
    return server, client


def test_tls_connections_are_served_by_the_same_thread(
    field: Field, contexts: tuple[ssl.SSLContext, ssl.SSLContext], eventually: Callable[..., Any]
) -> None:
    # Given two TLS connections, one of which is not read at first, and large and small items for both
    hub = field.hub()
    slow, lively = Stream(hub), Stream(hub)
    items = [b"small", bytes(3 * MEGABYTE), *[b"%d" % n for n in range(2000)], b"x" * MEGABYTE, b"last"]
    ends = []
    for stream in (slow, lively):
        server, client = secured(field, contexts)
        stream.connect(server)
        ends.append(client)
        stream.give(*items)

    # Expect the one that reads to receive all while the other does not
    reader = field.reader(ends[1])
    eventually(lambda: lively.acked == len(items), 30.0)
    assert reader.received == items
    assert slow.sender.unacknowledged < len(items)

    # When the other reads as well, expect it to receive all
    late = field.reader(ends[0])
    eventually(lambda: slow.acked == len(items), 30.0)
    assert late.received == items


def test_a_tls_peer_that_takes_a_little_is_not_dropped(
    field: Field, contexts: tuple[ssl.SSLContext, ssl.SSLContext], eventually: Callable[..., Any]
) -> None:
    # Given a TLS peer that has read nothing of ten megabytes for 29 seconds
    hub = field.hub(send_seconds=30.0)
    stream, other = Stream(hub), Stream(hub)
    server, client = secured(field, contexts)
    stream.connect(server)
    stream.give(bytes(10 * MEGABYTE))
    ours, theirs = field.pair()
    other.connect(ours)
    field.reader(theirs)
    other.give(b"1")
    eventually(lambda: other.acked == 1 and stream.sender.unacknowledged == 1)

    # When it reads a part of it at 29 and at 58 seconds, expect it to be connected still
    for turn, until in enumerate((29.0, 58.0), 2):
        field.pass_until(until)
        left = MEGABYTE
        while left > 0:
            left -= len(client.recv(left))
        other.give(b"something for the hub to do")
        eventually(lambda turn=turn: other.acked == turn)
    assert stream.ended == []

    # When it reads nothing for 30 seconds, expect it to be dropped
    field.pass_until(120.0)
    eventually(lambda: stream.ended == [server])


class Counting(socket.socket):
    """A socket that notes how many bytes it is given at once."""

    given: list[int]

    def send(self, data: Any, *flags: int) -> int:
        """Note it."""
        self.given.append(len(data))
        return super().send(data, *flags)

    def sendmsg(self, buffers: Any, *more: Any) -> int:
        """Note it."""
        self.given.append(sum(map(len, buffers)))
        return super().sendmsg(buffers, *more)


@pytest.mark.parametrize("size", [100, 700, 5_000, 100_000])
def test_a_batch_is_given_to_the_socket_at_once_however_many_parts_it_has(
    size: int, field: Field, eventually: Callable[..., Any]
) -> None:
    # Given a full batch of items of two parts each, be it full by their number or by their bytes
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    counting = Counting(fileno=ours.detach())
    counting.given = []
    count = min(MAX_BATCH_ITEMS, -(-MAX_BATCH_BYTES // size))
    stream.connect(counting)
    stream.waiting.extend((b"x" * (size // 2), b"y" * (size // 2)) for _ in range(count))
    # When it is sent
    stream.sender.ready()
    reader = field.reader(theirs)
    eventually(lambda: stream.acked == count)
    # Expect the first call to have got all of it, and each further one what was left by then
    assert reader.received == [b"x" * (size // 2) + b"y" * (size // 2)] * count
    assert counting.given[0] == FRAME.size + BATCH.size + count * (LENGTH.size + size)
    assert counting.given == sorted(counting.given, reverse=True)


# -- sent by whoever has something --------------------------------------------------------------------------------


def idle(stream: Stream, hub: SenderHub, eventually: Callable[..., Any]) -> None:
    """Wait until it is connected and the hub's thread has nothing to do."""
    eventually(lambda: stream.sender.connected and hub.is_idle)


def test_what_is_new_is_sent_by_the_thread_that_has_it(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a connected stream of an idle hub
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    idle(stream, hub, eventually)
    threads: list[threading.Thread] = []
    stream.on_take = lambda: threads.append(threading.current_thread())

    # When a thread has something new, expect it to be on its way when the call returns
    stream.waiting.append((b"new",))
    stream.sender.send()
    assert threads == [threading.current_thread()]
    assert theirs.recv(100, socket.MSG_PEEK | socket.MSG_DONTWAIT)[-3:] == b"new"

    # When more than a batch waits, expect one to go at once, and the hub's thread to see to the rest
    stream.waiting.extend((b"%d" % n,) for n in range(1200))
    eventually(lambda: hub.is_idle)
    stream.sender.send()
    reader = field.reader(theirs)
    eventually(lambda: stream.acked == 1201)
    assert reader.received == [b"new", *(b"%d" % n for n in range(1200))]
    assert threads[1] is threading.current_thread()
    assert set(threads[2:]) == {hub._thread}


def test_a_peer_that_takes_nothing_does_not_hold_up_who_sends(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a stream whose peer reads nothing
    hub = field.hub(send_seconds=30.0)
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    idle(stream, hub, eventually)

    # When far more is sent than its socket takes, expect each call to return, and little to be taken
    for n in range(200):
        stream.waiting.append((b"%6d" % n * 10_000,))
        stream.sender.send()
    assert len(stream.waiting) >= 200 - 2 * WINDOW_BATCHES
    taken = len(stream.waiting)

    # Expect the hub's thread to know of it: the peer has its time, and is dropped when that is over
    eventually(lambda: hub.stalls.unsent == {stream.sender})
    field.pass_until(29.0)
    stream.sender.send()
    assert len(stream.waiting) == taken
    assert stream.ended == []
    field.pass_until(120.0)
    eventually(lambda: stream.ended == [ours])
    stream.sender.send()  # to nobody
    theirs.close()

    # When it comes back and reads, expect everything once, in order
    again, reading = field.pair()
    stream.connect(again)
    reader = field.reader(reading)
    eventually(lambda: stream.acked == 200, 30.0)
    assert reader.received == [b"%6d" % n * 10_000 for n in range(200)]


def test_who_finds_a_stream_busy_does_not_wait_for_it(field: Field, eventually: Callable[..., Any]) -> None:
    # Given a thread in the middle of sending
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    reader = field.reader(theirs)
    idle(stream, hub, eventually)
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        stream.on_take = lambda: None
        entered.set()
        assert gate.wait(60.0)

    stream.on_take = hold
    stream.waiting.append((b"first",))
    sending = threading.Thread(target=stream.sender.send)
    sending.start()
    assert entered.wait(60.0)

    # When another one has something as well, expect its call to return at once
    stream.waiting.append((b"second",))
    stream.sender.send()
    assert reader.received == []

    # When the first goes on, expect both items, in order
    gate.set()
    sending.join()
    eventually(lambda: stream.acked == 2)
    assert reader.received == [b"first", b"second"]


def test_a_fault_while_a_thread_sends_is_the_streams_and_not_the_threads(
    field: Field, eventually: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a stream whose source fails once
    hub = field.hub()
    stream = Stream(hub)
    ours, _silent = field.pair()
    stream.connect(ours)
    idle(stream, hub, eventually)

    def fail() -> None:
        stream.on_take = lambda: None
        raise KeyError("a fault")

    stream.on_take = fail

    # When a thread sends, expect its call to return, and the connection to be ended by the hub's thread
    stream.waiting.append((b"kept",))
    stream.sender.send()
    eventually(lambda: stream.ended == [ours])
    assert "a fault" in caplog.text
    assert not stream.sender.connected

    # When its peer comes back, expect what was not taken
    again, theirs = field.pair()
    stream.connect(again)
    reader = field.reader(theirs)
    eventually(lambda: stream.acked == 1)
    assert reader.received == [b"kept"]


def test_a_connection_that_breaks_while_a_thread_sends_is_ended_by_the_hub(
    field: Field, eventually: Callable[..., Any]
) -> None:
    # Given a stream whose peer leaves just before something is sent to it, unnoticed by the hub's thread
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    idle(stream, hub, eventually)
    stream.on_take = lambda: theirs.close()

    # When a thread sends, expect its call to return, the connection to be over, and the item to be kept
    stream.waiting.append((b"kept",))
    stream.sender.send()
    eventually(lambda: stream.ended == [ours])
    assert stream.sender.unacknowledged == 1
    stream.on_take = lambda: None
    again, reading = field.pair()
    stream.connect(again)
    reader = field.reader(reading)
    eventually(lambda: stream.acked == 1)
    assert reader.received == [b"kept"]


@pytest.mark.parametrize("whole", [True, False], ids=["hub", "stream"])
def test_what_is_stopped_while_a_thread_sends_ends_behind_it(
    whole: bool, field: Field, eventually: Callable[..., Any]
) -> None:
    # Given a thread in the middle of sending
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    idle(stream, hub, eventually)
    entered, gate = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(60.0)

    stream.on_take = hold
    stream.waiting.append((b"last",))
    sending = threading.Thread(target=stream.sender.send)
    sending.start()
    assert entered.wait(60.0)

    # When the hub, or the stream, is stopped, expect the connection to stay for as long as the thread uses it
    stopping = threading.Thread(target=hub.stop if whole else stream.sender.stop)
    stopping.start()
    eventually(lambda: hub.stopping if whole else stream.sender._stopped)
    assert stream.ended == []
    gate.set()

    # Expect it to be over then, whole, and nothing to be sent any more
    sending.join()
    stopping.join()
    eventually(lambda: stream.ended == [ours])
    assert theirs.recv(100)[-4:] == b"last"
    assert theirs.recv(100) == b""
    stream.waiting.append((b"nobody hears this",))
    stream.sender.send()
    assert len(stream.waiting) == 1


def test_tls_is_left_to_the_hubs_thread(
    field: Field, contexts: tuple[ssl.SSLContext, ssl.SSLContext], eventually: Callable[..., Any]
) -> None:
    # Given a TLS connection
    hub = field.hub()
    stream = Stream(hub)
    server, client = secured(field, contexts)
    stream.connect(server)
    reader = field.reader(client)
    idle(stream, hub, eventually)
    threads: list[threading.Thread] = []
    stream.on_take = lambda: threads.append(threading.current_thread())
    # When a thread has something, expect it to be sent by the one thread that uses OpenSSL's object
    stream.waiting.append((b"item",))
    stream.sender.send()
    eventually(lambda: stream.acked == 1)
    assert reader.received == [b"item"]
    assert set(threads) == {hub._thread}


@pytest.mark.parametrize("seed", range(6))
def test_several_threads_that_send_over_lines_that_are_cut_lose_and_double_nothing(
    seed: int, field: Field, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given four threads that have items for the same stream, of any size, numbered in the order in which they wait;
    # in some of the runs they take the hub's thread for idle although it is not
    chance = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(SenderHub, "is_idle", True)
    hub = field.hub()
    stream = Stream(hub)
    lock, made = threading.Lock(), [0]
    sizes = [chance.choice((0, 10, 100, 30_000, 300_000)) for _ in range(1500)]

    def send() -> None:
        while True:
            with lock:
                if made[0] == len(sizes):
                    return
                made[0] += 1
                stream.waiting.append((made[0].to_bytes(8, "big"), bytes(sizes[made[0] - 1])))
            stream.sender.send()

    received: list[tuple[int, int]] = []

    def take(items: list[memoryview]) -> None:
        received.extend((int.from_bytes(item[:8], "big"), len(item) - 8) for item in items)

    receiver = Receiver(take, lambda: b"", ack_after=4)
    senders = [threading.Thread(target=send) for _ in range(4)]
    for sender in senders:
        sender.start()

    # When the connection is cut again and again, at either end, in the middle of frames
    cuts = 0
    while not (len(received) == len(sizes) and stream.acked == len(sizes)):
        ours, theirs = field.pair()
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        stream.connect(ours, receiver.position)
        reading = threading.Thread(target=run, args=(receiver, StreamSocket(theirs)))
        reading.start()
        aim = receiver.position + chance.randrange(1, 200) if cuts < 12 else len(sizes) + 1
        while reading.is_alive() and receiver.position < aim and stream.acked < len(sizes):
            reading.join(0.001)
        cuts += 1
        with suppress(OSError):  # ended by the other end
            (ours if chance.random() < 0.5 else theirs).shutdown(socket.SHUT_RDWR)
        reading.join(60.0)
        assert not reading.is_alive()
    for sender in senders:
        sender.join()

    # Expect every item once, whole, in order
    assert received == [(n, size) for n, size in enumerate(sizes, 1)]
    assert cuts > 3


def run(receiver: Receiver, line: StreamSocket) -> None:
    """Receive until the line is cut."""
    with suppress(WireError):
        receiver.run(line)


def test_what_the_main_thread_has_the_hubs_thread_sends(
    field: Field, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a connected stream of an idle hub, and the main thread, in which signals' handlers run
    monkeypatch.undo()
    hub = field.hub()
    stream = Stream(hub)
    ours, theirs = field.pair()
    stream.connect(ours)
    idle(stream, hub, eventually)
    threads: list[threading.Thread] = []
    stream.on_take = lambda: threads.append(threading.current_thread())
    # When it has something new, expect the hub's thread to take it
    stream.waiting.append((b"new",))
    stream.sender.send()
    reader = field.reader(theirs)
    eventually(lambda: stream.acked == 1)
    assert reader.received == [b"new"]
    assert set(threads) == {hub._thread}
