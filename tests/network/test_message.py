"""Messages between nodes, cut into blocks and put together again."""

from __future__ import annotations

import bz2
import lzma
import random
import zlib

import pytest

from jbi_pubsub.core.errors import OversizeError, ProtocolError
from jbi_pubsub.network import message as module
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, Footer, packed, read
from jbi_pubsub.network.exchange import Exchange, ExchangeSettings
from jbi_pubsub.network.message import Assembler, MessageForm, NodeMessage, blocks, expanded

pytestmark = pytest.mark.unit

ORIGIN = b"o" * 16
FORM = MessageForm(block=100)


def _message(body: bytes, **given: object) -> NodeMessage:
    return NodeMessage(DatagramKind.PUBLICATION, DatagramMode.RELIABLE, body, ORIGIN)._replace(**given)


def _sent(message: NodeMessage, form: MessageForm = FORM) -> list[Datagram]:
    """Its blocks, as they come over a network."""
    found = [read(packed(each._replace(number=1))) for each in blocks(message, form)]
    assert all(isinstance(each, Datagram) for each in found)
    return [each for each in found if isinstance(each, Datagram)]


@pytest.mark.row("G-13", "G-57", "G-63", "G-79", "G-80", "G-84", "G-161", "G-64")
@pytest.mark.parametrize("compression", ["none", "zlib", "bz2", "lzma"])
@pytest.mark.parametrize("algorithm", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 5_000])
def test_a_message_comes_as_it_was_in_any_order_and_once(compression: str, algorithm: int, size: int) -> None:
    # Given the blocks of a message, in any order, each of them twice
    chance = random.Random(size)
    message = _message(
        bytes(chance.choices(b"abc", k=size)), durability=b"d" * 16, update=7, mode=DatagramMode.DURABLE, level=4
    )
    sent = _sent(message, MessageForm(100, algorithm, compression)) * 2
    chance.shuffle(sent)
    assembler = Assembler()
    # When they come, expect it once
    found = [each for each in (assembler.add(block, 0.0) for block in sent) if each is not None]
    assert [each._replace(hash=b"") for each in found] == [message]
    assert (len(assembler), assembler.size) == (0, 0)
    assert assembler.has_processed(ORIGIN, sent[0].message)


@pytest.mark.row("G-203")
def test_blocks_of_different_messages_do_not_mix() -> None:
    # Given two messages, and one of them again by another node and in smaller blocks
    one, other = _message(b"1" * 500), _message(b"2" * 500)
    again = one._replace(origin=b"p" * 16)
    sent = [*_sent(one), *_sent(other), *_sent(again, MessageForm(block=70))]
    random.Random(3).shuffle(sent)
    assembler = Assembler()
    found = [each for each in (assembler.add(block, 0.0) for block in sent) if each is not None]
    assert sorted((each.origin, each.body) for each in found) == sorted(
        (each.origin, each.body) for each in (one, other, again)
    )


def test_blocks_of_two_starts_of_a_node_do_not_mix() -> None:
    # Given a message that a node says at two starts
    one, two = (
        [each._replace(footer=Footer(epoch, 0, each.block, 60_000)) for each in _sent(_message(bytes(250)))]
        for epoch in (1, 2)
    )
    assembler = Assembler()
    # When some blocks of each come, expect no message of them, and then one of each start
    assert [assembler.add(each, 0.0) for each in (one[0], two[1], one[2])] == [None] * 3
    last = (assembler.add(one[1], 0.0), assembler.add(two[0], 0.0), assembler.add(two[2], 0.0))
    assert [each and (each.epoch, each.serial) for each in last] == [(1, 1), None, (2, 1)]


def test_a_body_that_is_not_what_its_hash_says_is_refused() -> None:
    whole, cut = _sent(_message(b"1" * 50)), _sent(_message(b"1" * 150))
    forged = cut[1]._replace(data=b"2" * 50)
    assembler = Assembler()
    with pytest.raises(ProtocolError, match="not what its hash says"):
        assembler.add(whole[0]._replace(data=b"2" * 50), 0.0)
    assembler.add(cut[0], 0.0)
    with pytest.raises(ProtocolError, match="not what its hash says"):
        assembler.add(forged, 0.0)
    # Expect the true blocks to be taken yet
    assert assembler.add(cut[0], 0.0) is None
    assert assembler.add(cut[1], 0.0) is not None


def test_blocks_of_several_sizes_are_no_message() -> None:
    sent = _sent(_message(b"1" * 250))
    assembler = Assembler()
    for each in (sent[0]._replace(data=b"1" * 50), sent[1]):
        assert assembler.add(each, 0.0) is None
    with pytest.raises(ProtocolError, match="different sizes"):
        assembler.add(sent[2], 0.0)


@pytest.mark.row("G-161")
@pytest.mark.parametrize("compress", [zlib.compress, bz2.compress, lzma.compress])
def test_a_bomb_is_given_up_at_the_limit(compress: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGE_MOST", 1 << 20)
    name = {zlib.compress: "zlib", bz2.compress: "bz2", lzma.compress: "lzma"}[compress]  # type: ignore[index]
    bomb = compress(bytes(1 << 24))  # type: ignore[operator]
    with pytest.raises(ProtocolError, match="more than"):
        expanded(bomb, name)
    with pytest.raises(ProtocolError, match="does not end"):
        expanded(compress(bytes(1_000))[:-3], name)  # type: ignore[operator]
    with pytest.raises(ProtocolError, match=r"are not|does not end"):
        expanded(b"rubbish", name)
    with pytest.raises(ProtocolError, match="nobody knows"):
        expanded(bomb, "rar")


@pytest.mark.row("G-134", "G-181")
def test_what_is_not_complete_is_bounded_by_origin_and_in_all() -> None:
    # Given room for 4,000 bytes, a quarter of it for one origin, and one that completes nothing
    assembler = Assembler(most_bytes=4_000, most=10)
    first = _sent(_message(b"first" * 40))
    assembler.add(first[0], 0.0)
    for number in range(100):
        assembler.add(_sent(_message(b"%04d" % number * 50, origin=b"x" * 16))[0], 0.0)
        assert assembler.size <= 1_400
        assert len(assembler) <= 11
    # Expect it to have lost its own alone
    assert assembler.given_up >= 89
    assert assembler.add(first[1], 0.0) is not None


@pytest.mark.parametrize("mode", [DatagramMode.RELIABLE, DatagramMode.DURABLE, DatagramMode.UNRELIABLE])
def test_a_message_that_nobody_would_put_together_is_refused(
    mode: DatagramMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given room for ten blocks of an origin, with what they take beside their data
    monkeypatch.setattr(module, "PARTS_BYTES", 4 * 10 * (100 + module.OVERHEAD))
    exchange = Exchange(ORIGIN, 1, 1, lambda low, _: low, ExchangeSettings(form=FORM))
    assembler = Assembler(most_bytes=module.PARTS_BYTES)
    # When one has one block more, expect it to be refused, and nothing of it to be kept
    with pytest.raises(OversizeError, match="1001 bytes"):
        exchange.say(_message(bytes(1_001), mode=mode, durability=b"d" * 16, expiration=1), 0.0)
    assert not exchange.has_outgoing(0)
    assert list(exchange._own.durables.due(1e9)) == []
    # And the greatest that is not refused to come
    found = [assembler.add(each, 0.0) for each in _sent(_message(bytes(1_000), mode=mode))]
    assert [each and len(each.body) for each in found] == [None] * 9 + [1_000]
    # And one that is compressed to go
    assert len(blocks(_message(bytes(5_000)), FORM._replace(compression="zlib"))) == 1


@pytest.mark.row("G-60")
def test_an_unreliable_message_is_given_up_when_nothing_comes() -> None:
    assembler = Assembler()
    unreliable = _sent(_message(b"1" * 150, mode=DatagramMode.UNRELIABLE))
    reliable = _sent(_message(b"2" * 150))
    assembler.add(unreliable[0], 0.0)
    assembler.add(reliable[0], 0.0)
    assert assembler.expire(0.09) == 0
    assert assembler.expire(0.1) == 1
    assert assembler.add(unreliable[1], 1.1) is None
    assert assembler.add(reliable[1], 1.1) is not None


@pytest.mark.row("G-59")
def test_hashes_of_many_messages_take_bounded_memory() -> None:
    assembler = Assembler(processed=100)
    for number in range(1_000):
        sent = _sent(_message(b"%d" % number))
        assert assembler.add(sent[0], 0.0) is not None
        assert assembler.add(sent[0], 0.0) is None
    kept = assembler._processed
    assert len(kept._new) + len(kept._old) <= 200
