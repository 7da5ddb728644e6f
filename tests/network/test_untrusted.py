"""Whatever comes to a node of the network: nothing but our own errors, in bounded room and time, and others go on."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from heapq import heappush

import msgspec
import pytest

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.network import missing
from jbi_pubsub.network.bodies import (
    LogRanges,
    NodeAnnouncement,
    RequestBody,
    decoded_announcement,
    encoded_announcement,
)
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, Footer, hash_of, packed, read
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.log import LOGS_OF_ORIGIN, LOGS_OF_UNKNOWN, SERIAL_MOST, LogId
from jbi_pubsub.network.message import NodeMessage
from jbi_pubsub.network.missing import MISSING_OF_LOG

from .simulated import Node, Segment, World

pytestmark = pytest.mark.unit

SETTINGS = ExchangeSettings(cache_bytes=1 << 20, processed_hashes=1_000)
ME, OTHER, LIAR = bytes(15) + b"\1", b"o" * 16, b"l" * 16
FAR = (1 << 64) - 1


def _exchange(me: bytes = ME, settings: ExchangeSettings = SETTINGS) -> Exchange:
    return Exchange(me, 1, 1, random.Random(1).uniform, settings)


def _block(origin: bytes, serial: int, body: bytes, *, epoch: int = 1, stream: int = 0, **given: object) -> bytes:
    footer = Footer(epoch, stream, serial, 60_000)
    datagram = Datagram(
        DatagramKind.PUBLICATION, DatagramMode.RELIABLE, origin, hash_of(body, 0), body, footer=footer,
        sender=origin[:4], number=serial,
    )  # fmt: skip
    return packed(datagram._replace(**given))


def _announced(origin: bytes, *held: LogRanges, number: int = 1, epoch: int = 1) -> bytes:
    body = encoded_announcement(NodeAnnouncement(1, "", (), (), epoch, number, held))
    footer = Footer(0, 0, 0, 2_000)
    return packed(
        Datagram(
            DatagramKind.ANNOUNCEMENT, DatagramMode.RELIABLE, origin, hash_of(body, 0), body, footer=footer,
            sender=origin[:4], number=number,
        )
    )  # fmt: skip


def _asked(origin: bytes, *wanted: LogRanges, number: int = 1, closed: int = FAR) -> bytes:
    body = msgspec.msgpack.encode(RequestBody(1, wanted, {ME[:4]: closed}))
    return packed(
        Datagram(
            DatagramKind.REQUEST, DatagramMode.UNRELIABLE, origin, hash_of(body, 0), body, sender=origin[:4],
            number=number,
        )
    )  # fmt: skip


def _hear(exchange: Exchange, data: bytes, now: float = 0.0) -> list[NodeMessage]:
    with suppress(ProtocolError):
        return list(exchange.received(0, data, now))
    return []


def _drained(exchange: Exchange, now: float = 0.0) -> list[Datagram]:
    found = []
    while (data := exchange.outgoing(0, now)) is not None:
        datagram = read(data)
        assert isinstance(datagram, Datagram)
        found.append(datagram)
    return found


def _samples(chance: random.Random) -> list[bytes]:
    """Datagrams of all kinds, modes and forms."""
    world = World(1)
    segment = Segment(world, loss=0.1)
    sent: list[bytes] = []
    nodes = [Node(world, number, [segment], ExchangeSettings()) for number in (1, 2)]
    listener = Node(world, 3, [segment], ExchangeSettings())
    listener.hear = lambda _, data: sent.append(data)  # type: ignore[method-assign]
    for kind in DatagramKind:
        for mode in DatagramMode:
            message = NodeMessage(kind, mode, chance.randbytes(chance.choice([10, 4_000])), durability=b"d" * 16)
            if kind not in (DatagramKind.REQUEST, DatagramKind.ANNOUNCEMENT):
                nodes[0].exchange.say(message, world.now)
    world.run(5.0)
    return sent


@pytest.mark.parametrize("count", [4_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_random_and_mutated_datagrams_raise_nothing_but_ours_and_take_bounded_room(count: int) -> None:
    # Given datagrams of all kinds, and a node that has heard some of them
    chance = random.Random(1)
    samples = _samples(chance)
    exchange = _exchange()
    _hear(exchange, _announced(OTHER))
    # When others come that are random, cut, changed, or played again
    for number in range(count):
        data = bytearray(chance.choice(samples))
        how = number % 4
        if how == 0:
            data = bytearray(chance.randbytes(chance.randint(0, 200)))
            data[:4] = b"JN\1" + bytes((chance.randint(0, 12),))
        elif how == 1:
            del data[chance.randrange(len(data)) :]
        elif how == 2:
            for _ in range(chance.randint(1, 8)):
                data[chance.randrange(chance.choice([48, len(data)]))] = chance.randrange(256)
        _hear(exchange, bytes(data), number / 1_000)
        if not number % 100:
            exchange.tick(number / 1_000)
            _drained(exchange, number / 1_000)
    # Expect bounded tables, and a node that is at work
    assert len(exchange.logs) <= 2 * LOGS_OF_UNKNOWN
    assert exchange.held.size <= SETTINGS.cache_bytes + (64 << 20)
    assert len(exchange.peers) <= 1_000
    _hear(exchange, _announced(OTHER, number=2), count / 1_000)
    assert _hear(exchange, _block(OTHER, 1, b"hello"), count / 1_000)[0].body == b"hello"


@pytest.mark.parametrize("where", [(2, 2), (3, 0), (3, 13), (5, 9), (6, 21)])
def test_headers_of_another_protocol_are_refused(where: tuple[int, int]) -> None:
    data = bytearray(_block(OTHER, 1, b"body"))
    data[where[0]] = where[1]
    with pytest.raises(ProtocolError):
        list(_exchange().received(0, bytes(data), 0.0))


def test_the_greatest_numbers_do_no_harm() -> None:
    exchange = _exchange()
    for data in (
        _block(OTHER, FAR, b"1"),
        _block(OTHER, SERIAL_MOST, b"2"),
        _block(OTHER, 7, b"3", number=FAR),
        _block(OTHER, 8, b"4", footer=Footer((1 << 32) - 1, FAR, 1, (1 << 32) - 1)),
        _announced(OTHER, LogRanges(OTHER, 1, 0, ((1, FAR),), 1)),
        _asked(LIAR, LogRanges(OTHER, 1, 0, ((1, FAR),))),
    ):
        _hear(exchange, data)
        exchange.tick(1.0)
    recovered = exchange.sides[0].recovery._here[LogId(OTHER, 1)]
    assert len(recovered.missing) <= MISSING_OF_LOG
    assert exchange.settled(OTHER, 1) == 0


def test_a_million_ranges_are_refused_and_ten_thousand_are_bounded() -> None:
    many = tuple((2 * at + 1, 2 * at + 1) for at in range(10_001))
    with pytest.raises(ProtocolError):
        decoded_announcement(
            encoded_announcement(NodeAnnouncement(1, "", (), (), 1, 1, (LogRanges(OTHER, 1, 0, many),)))
        )
    exchange = _exchange()
    for number in range(1, 20):
        ranges = tuple((first + 30_000 * number, last + 30_000 * number) for first, last in many[:3_000])
        _hear(exchange, _announced(LIAR, LogRanges(OTHER, 1, 0, ranges), number=number))
    recovered = exchange.sides[0].recovery._here[LogId(OTHER, 1)]
    assert len(recovered.missing) <= MISSING_OF_LOG
    assert len(recovered.announced) <= 10_000


def test_logs_of_one_origin_and_of_those_that_are_unknown_are_bounded() -> None:
    # Given one that has announced itself, and others that have not, with ever new logs
    exchange = _exchange()
    _hear(exchange, _announced(OTHER))
    for number in range(1, 2_000):
        _hear(exchange, _block(OTHER, 1, b"%d" % number, epoch=number))
        _hear(exchange, _block(number.to_bytes(16, "big"), 1, b"%d" % number))
    assert len(exchange.logs) <= LOGS_OF_ORIGIN + LOGS_OF_UNKNOWN + 1
    # Expect another one that announces itself to be heard yet
    _hear(exchange, _announced(LIAR))
    assert _hear(exchange, _block(LIAR, 1, b"heard"))


def test_what_others_say_of_our_own_logs_makes_none() -> None:
    exchange = _exchange()
    for number in range(1, 11):
        told = (LogRanges(ME, 1, 1_000 * number + at, ((1, 5),)) for at in range(100))
        _hear(exchange, _announced(LIAR, *told, number=number))
        _hear(exchange, _asked(LIAR, *(LogRanges(ME, 1, 1_000 * number + at, ((1, 5),)) for at in range(100))))
    assert len(exchange.logs) == 0


@pytest.mark.row("G-181")
def test_what_a_liar_announces_is_asked_for_ever_more_seldom_and_then_given_up() -> None:
    # Given one who announces what nobody holds, of a node that is not there
    exchange = _exchange(settings=ExchangeSettings(announce_seconds=2.0, node_timeout=5.0))
    _hear(exchange, _announced(LIAR, LogRanges(OTHER, 1, 0, ((1, 100),))))
    asked: list[float] = []
    now = 0.0
    while now < 60.0:
        now = max(now + 0.001, min(exchange.due(), now + 1.0))
        exchange.tick(now)
        asked += [now for each in _drained(exchange, now) if each.kind == DatagramKind.REQUEST]
    # Expect some questions, the last of them far apart, and then none
    assert 9 <= len(asked) <= 15
    assert asked[-1] - asked[-2] > 0.5
    assert exchange.settled(OTHER, 1) in (100, SERIAL_MOST)
    # When one comes nevertheless, expect it to be taken
    assert _hear(exchange, _block(OTHER, 50, b"late"), now)


@pytest.mark.row("G-181")
def test_one_who_asks_for_everything_for_ever_leaves_room_for_what_is_new() -> None:
    # Given a node that has said a thousand blocks, and one who asks for all of them again and again
    exchange = _exchange(settings=ExchangeSettings())
    for number in range(1_000):
        exchange.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%d" % number), 0.0)
    _drained(exchange)
    _hear(exchange, _announced(LIAR))
    sent: list[Datagram] = []
    for turn in range(1, 200):
        _hear(exchange, _asked(LIAR, LogRanges(ME, 1, 0, ((1, FAR),)), number=turn + 1), turn / 100)
        exchange.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"new %d" % turn), turn / 100)
        for _ in range(6):
            datagram = read(exchange.outgoing(0, turn / 100) or b"")
            assert isinstance(datagram, Datagram)
            sent.append(datagram)
    # Expect what is new to have gone nevertheless, and the queue of repairs to be bounded
    assert sum(not each.is_repair for each in sent) >= 195
    assert exchange.sides[0].queues.repairs <= 20_000


def test_a_member_that_acknowledges_nothing_stops_nobody() -> None:
    exchange = _exchange(settings=ExchangeSettings(cache_bytes=100_000, queue_bytes=10_000))
    _hear(exchange, _announced(LIAR))
    for turn in range(2, 100):
        exchange.say(
            NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, bytes(1_000) + b"%d" % turn), turn / 10
        )
        _drained(exchange, turn / 10)
        _hear(exchange, _announced(LIAR, number=turn), turn / 10)
        assert exchange.room(turn / 10) == 0


def test_one_hash_with_two_bodies_does_not_hide_the_true_one() -> None:
    # Given a block under the serial and the hash of another one
    exchange = _exchange()
    true = _block(OTHER, 1, b"true")
    with pytest.raises(ProtocolError, match="not what its hash says"):
        list(exchange.received(0, _block(OTHER, 1, b"lies", message=hash_of(b"true", 0)), 0.0))
    # Expect it to be asked for, and the true one to be taken
    assert exchange.settled(OTHER, 1) == 0
    exchange.tick(1.1)
    assert DatagramKind.REQUEST in {each.kind for each in _drained(exchange, 1.1)}
    assert _hear(exchange, true, 1.2)[0].body == b"true"
    assert _hear(exchange, true, 1.3) == []


def test_what_is_never_what_its_hash_says_is_asked_for_once_a_second_at_most() -> None:
    # Given a node whose block is forged each time that it comes
    exchange = _exchange()
    asked, now = 0, 0.0
    _hear(exchange, _announced(OTHER))
    _hear(exchange, _block(OTHER, 1, b"lies", message=hash_of(b"true", 0)))
    # When it is sent again as soon as it is asked for
    while now < 5.0:
        now += 0.005
        exchange.tick(now)
        for each in _drained(exchange, now):
            if each.kind == DatagramKind.REQUEST:
                asked += 1
                _hear(exchange, _block(OTHER, 1, b"lies", message=hash_of(b"true", 0), is_repair=True), now)
    assert 3 <= asked <= 5


@pytest.mark.parametrize("count", [1_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_memory_stays_flat_over_many_messages(count: int) -> None:
    # Given two nodes that keep little, and all that they keep looked after
    settings = ExchangeSettings(cache_bytes=100_000, processed_hashes=500)
    tracemalloc.start()
    one, other = _exchange(settings=settings), _exchange(OTHER, settings)
    now = 0.0

    def peak(count: int) -> int:
        """Bytes, at most, while one says so many: some tables grow, and are cleared by turns."""
        nonlocal now
        tracemalloc.reset_peak()
        for number in range(count):
            now += 0.001
            one.say(NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, b"%f %d" % (now, number)), now)
            for here, there in ((one, other), (other, one)):
                if here.due() <= now:
                    here.tick(now)
                while (data := here.outgoing(0, now)) is not None:
                    _hear(there, data, now)
        return tracemalloc.get_traced_memory()[1]

    try:
        _, before, after = (peak(each) for each in (2_000, count, count))
    finally:
        tracemalloc.stop()
    assert other.settled(ME, 1) == 2_000 + 2 * count
    assert after - before < 100 * count


def test_two_thousand_missing_cost_little_for_each_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given two thousand blocks, of which but the last has come
    exchange = _exchange(settings=ExchangeSettings())
    _hear(exchange, _announced(OTHER))
    _hear(exchange, _block(OTHER, 2_001, b"last"))
    exchange.tick(0.1)
    recovered = exchange.sides[0].recovery._here[LogId(OTHER, 1)]
    assert len(recovered.missing) == 2_000
    pushed: list[int] = []
    monkeypatch.setattr(missing, "heappush", lambda heap, one: (pushed.append(1), heappush(heap, one)))
    # When each second one is repaired, expect few steps for each of them
    for serial in range(1, 2_001, 2):
        _hear(exchange, _block(OTHER, serial, b"%d" % serial, is_repair=True, number=serial + 3_000), 0.2)
        exchange.due()
    assert len(pushed) <= 4 * 2_000


def test_the_logs_of_an_earlier_start_are_forgotten() -> None:
    # Given a node that is started anew, again and again
    exchange = _exchange(settings=ExchangeSettings(node_timeout=4.0))
    for epoch in range(1, 30):
        now = 10.0 * epoch
        held = LogRanges(OTHER, epoch, 0, ((1, 3),), 1)
        _hear(exchange, _announced(OTHER, held, number=epoch, epoch=epoch), now)
        for serial in (1, 2, 3):
            body = b"%d %d" % (epoch, serial)
            _hear(exchange, _block(OTHER, serial, body, epoch=epoch, footer=Footer(epoch, 0, serial, 5_000)), now)
        for step in range(10):
            exchange.tick(now + step)
            _drained(exchange, now + step)
    assert len([each for each in exchange.logs if each.origin == OTHER]) <= 3
    assert exchange.settled(OTHER, 1) == SERIAL_MOST
