"""The dissector of captures: all kinds, put together again; and nothing that a capture may have in it makes it fail."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.sealing import SealFault
from jbi_pubsub.network import captures, dissection
from jbi_pubsub.network.bodies import NodeAnnouncement, encoded_announcement
from jbi_pubsub.network.captures import Capture, CapturedDatagram
from jbi_pubsub.network.datagram import DatagramKind, DatagramMode, packed
from jbi_pubsub.network.dissection import Dissector, explained
from jbi_pubsub.network.message import MessageForm, NodeMessage, blocks
from jbi_pubsub.trust.seal import DatagramSeal, opened

from .capture_files import GROUP, ONE, pcap, pcapng, udp

pytestmark = [pytest.mark.unit, pytest.mark.row("G-118", "G-182")]

ORIGIN = bytes(range(16))


def dissected(capture: bytes) -> tuple[list[dict[str, Any]], dict[str, Any], Capture]:
    """All datagrams of a capture, its counts, and itself."""
    dissector, found = Dissector(), Capture(io.BytesIO(capture))
    datagrams = [each for captured in found for each in dissector.add(captured)]
    assert json.loads(json.dumps(datagrams)) == datagrams
    return datagrams, dissector.statistics(), found


def numbered(messages: Sequence[NodeMessage], form: MessageForm = MessageForm()) -> list[bytes]:  # noqa: B008  # frozen
    """The datagrams of messages, as one sender numbers them."""
    found = [each for message in messages for each in blocks(message, form)]
    return [
        packed(
            each._replace(
                sender=ORIGIN[:4], number=number,
                footer=each.footer._replace(epoch=3, serial=number) if each.mode else each.footer,
            )
        )
        for number, each in enumerate(found, 1)
    ]  # fmt: skip


def message(kind: DatagramKind, body: bytes, mode: DatagramMode = DatagramMode.RELIABLE, **given: Any) -> NodeMessage:
    """A message of the one node."""
    return NodeMessage(kind, mode, body, ORIGIN, expiration=5_000, **given)


ANNOUNCED = NodeAnnouncement(1, "alpha", ("127.0.0.1:4161",), ("stores",), 3, 8, ())
ASKED = msgspec.msgpack.encode([1, [[ORIGIN, 3, 0, [[5, 7], [9, 9]]]], {ORIGIN[:4]: 17}])


# -- what is in them -----------------------------------------------------------------------------------------------


def test_all_kinds_are_dissected_and_none_is_malformed() -> None:
    # Given a capture with a message of each kind, some of several blocks, compressed, durable, for one node
    bodies = {DatagramKind.ANNOUNCEMENT: encoded_announcement(ANNOUNCED), DatagramKind.REQUEST: ASKED}
    messages = [message(kind, bodies.get(kind, msgspec.msgpack.encode([kind, b"\1\2"]))) for kind in DatagramKind]
    messages += [
        message(DatagramKind.PUBLICATION, random.Random(3).randbytes(1_000).hex().encode(), to=ORIGIN[::-1], level=4),
        message(DatagramKind.SEQUENCE, b"\x92\1\2", DatagramMode.DURABLE, durability=b"d" * 16, update=12),
        message(DatagramKind.STREAM, b"unreliable", DatagramMode.UNRELIABLE),
    ]
    data = numbered(messages, MessageForm(block=100, compression="zlib", algorithm=2))
    datagrams, counts, _ = dissected(pcap(map(udp, data)))

    # Expect each of them, none malformed, and each message once
    assert len(datagrams) == len(data)
    assert (counts["malformed"], counts["incomplete"], counts["datagrams"]) == ({}, 0, len(data))
    assert set(counts["kinds"]) == {kind.name.lower() for kind in DatagramKind}
    assert sum(each["messages"] for each in counts["kinds"].values()) == len(messages)
    # The bodies of those that are readable
    by_kind = {each["kind"]: each for each in datagrams if "message" in each}
    assert by_kind["request"]["message"]["body"] == {
        "wanted": {f"{ORIGIN.hex()}/3/0": [[5, 7], [9, 9]]}, "closed": {ORIGIN[:4].hex(): 17}
    }  # fmt: skip
    assert by_kind["announcement"]["message"]["body"]["name"] == "alpha"
    assert by_kind["query"]["message"]["body"] == [7, "0102"]
    # The fields of one of many blocks, which completes its message
    [whole] = [each for each in datagrams if each.get("message", {}).get("size") == 2_000]
    assert "body" not in whole["message"]
    assert whole["block"] == whole["total"] > 5
    assert whole["flags"] == ["compressed"]
    assert whole["extensions"] == [["compression", b"zlib".hex()], ["to", ORIGIN[::-1].hex()], ["level", "04"]]
    # And of a durable one
    [durable] = [each for each in datagrams if each["mode"] == "durable"]
    footer = durable["footer"]
    assert (footer["durability"], footer["update"], footer["epoch"]) == ((b"d" * 16).hex(), 12, 3)
    assert (durable["from"], durable["to"]) == ("127.0.0.1:47001", "239.192.1.1:47001")


def test_a_datagram_written_by_hand_has_its_fields() -> None:
    # Given a datagram as the tables of the report have it, made without the product
    body = b"<a/>"
    head = b"JN" + bytes((1, 3, 1 | 8, 0, 2, 9)) + struct.pack("!II", 1, 1) + ORIGIN + struct.pack("!HH", 25, 4)
    data = head + b"\1\2\3\4" + struct.pack("!Q", 77) + bytes(16) + body + struct.pack("!IQQI", 5, 6, 7, 1_500)
    # Expect each field, and that its hash is not that of its body
    [found], counts, _ = dissected(pcap([udp(data)]))
    assert {name: found[name] for name in ("kind", "mode", "flags", "hops", "max_hops", "inactivity_ms")} == {
        "kind": "publication", "mode": "reliable", "flags": ["repair"], "hops": 2, "max_hops": 9, "inactivity_ms": 250
    }  # fmt: skip
    assert (found["sender"], found["number"], found["hash_algorithm"], found["data"]) == ("01020304", 77, "md5", 4)
    assert found["footer"] == {
        "epoch": 5, "stream": 6, "serial": 7, "expiration": 1_500, "durability": "", "update": 0
    }  # fmt: skip
    assert found["malformed"] == "a message that is not what its hash says"
    assert (counts["repairs"], counts["repair_share"]) == (1, 1.0)
    # And its bytes one by one, which are all of it
    rows = explained(data)
    assert [(row.offset, row.field) for row in rows[-5:]] == [
        (64, "data"), (68, "epoch"), (72, "stream"), (80, "serial"), (88, "expiration")
    ]  # fmt: skip
    assert {row.field: row.value for row in rows}["flags"] == "reliable, repair"
    assert bytes.fromhex("".join(row.bytes for row in rows)) == data


def test_loss_and_repairs_are_told_by_sender() -> None:
    # Given a hundred datagrams of which ten are lost, five come twice and one is a repair
    data = numbered([message(DatagramKind.STREAM, b"%d" % number) for number in range(100)])
    came = [each for number, each in enumerate(data) if number % 10 != 5] + data[:5]
    came[-1] = came[-1][:4] + bytes((came[-1][4] | 8,)) + came[-1][5:]
    _, counts, _ = dissected(pcap(map(udp, came)))
    # Expect that, for its sender at that group
    assert counts["senders"] == [
        {
            "sender": ORIGIN[:4].hex(), "to": "239.192.1.1:47001", "start": 0, "datagrams": 95, "first": 1, "last": 100,
            "lost": 10, "loss": 0.1, "doubled": 5,
        }
    ]  # fmt: skip
    assert (counts["repairs"], counts["seconds"]) == (1, 9.4)


def test_a_sender_that_starts_anew_has_lost_nothing() -> None:
    # Given three datagrams of a sender's second start, and two of its third
    messages = [message(DatagramKind.STREAM, b"%d" % number) for number in range(5)]
    starts = [(2 << 32) + 1, (2 << 32) + 2, (2 << 32) + 3, (3 << 32) + 1, (3 << 32) + 3]
    data = [
        each[:40] + struct.pack("!Q", number) + each[48:]
        for each, number in zip(numbered(messages), starts, strict=True)
    ]
    datagrams, counts, _ = dissected(pcap(map(udp, data)))
    # Expect them to be counted apart
    assert [(each["start"], each["last"], each["lost"]) for each in counts["senders"]] == [(2, 3, 0), (3, 3, 1)]
    assert (datagrams[-1]["start"], datagrams[-1]["number"]) == (3, 3)


def test_sealed_ones_are_shown_as_sealed() -> None:
    # Given sealed datagrams: reliable, of nobody knows what behind the header
    [plain] = numbered([message(DatagramKind.QUERY, b"secret" * 20)])
    sealed = DatagramSeal(bytes(32), ORIGIN).seal(plain)
    datagrams, counts, _ = dissected(pcap([udp(sealed), udp(sealed[:70])]))
    # Expect the header, nothing malformed but what has no room for a seal, and no message or hash
    assert (datagrams[0]["kind"], datagrams[0]["mode"], datagrams[0]["flags"]) == ("query", "reliable", ["sealed"])
    assert "message" not in datagrams[0]
    assert (datagrams[0]["hash"], datagrams[0]["data"]) == ("", len(plain) - 48)
    assert (counts["sealed"], counts["malformed"]) == (1, {"shorter than its seal": 1})
    assert [row.field for row in explained(sealed)[-3:]] == ["session", "sealed", "tag"]


def test_sealed_ones_are_opened_with_their_key() -> None:
    # Given a message in sealed datagrams, one of them captured twice, their key, and another
    key, other = bytes(32), bytes(31) + b"1"
    seal = DatagramSeal(key, ORIGIN)
    sealed = [seal.seal(each) for each in numbered([message(DatagramKind.QUERY, bytes(150))], MessageForm(block=100))]
    captured = Capture(io.BytesIO(pcap(map(udp, [sealed[0], *sealed]))))
    dissector = Dissector(opener=lambda data: opened(data, key))
    datagrams = [fields for each in captured for fields in dissector.add(each)]
    # Expect all fields and the message with theirs
    assert [each["flags"] for each in datagrams] == [["sealed"]] * 3
    assert (datagrams[-1]["message"]["size"], datagrams[-1]["footer"]["serial"]) == (150, 2)
    assert (dissector.statistics()["sealed"], dissector.statistics()["malformed"]) == (3, {})
    # And the header and why not with another
    dissector = Dissector(opener=lambda data: opened(data, other))
    [fields] = dissector.add(CapturedDatagram(1, 0.0, "a", "b", sealed[0]))
    assert (fields["kind"], fields["flags"], fields["seal"]) == ("query", ["sealed"], str(SealFault.FORGED))


# -- what they are in ----------------------------------------------------------------------------------------------


def framed(link: int, packet: bytes) -> bytes:
    """A packet as an interface of a link type has it."""
    kind = 0x86DD if packet[0] >> 4 == 6 else 0x0800
    return {
        0: struct.pack("=I", 2), 1: bytes(12) + struct.pack("!H", kind), 101: b"", 108: struct.pack("!I", 2),
        113: bytes(14) + struct.pack("!H", kind), 228: b"", 276: struct.pack("!H", kind) + bytes(18),
    }[link] + packet  # fmt: skip


@pytest.mark.parametrize("link", [0, 1, 101, 108, 113, 228, 276])
@pytest.mark.parametrize("writer", [pcap, pcapng], ids=["pcap", "pcapng"])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("six", [False, True], ids=["IPv4", "IPv6"])
def test_it_reads_what_others_write(link: int, writer: Any, order: str, six: bool) -> None:
    # Given two messages in a capture of a link type, format and byte order, among other packets
    data = numbered([message(DatagramKind.STREAM, b"one"), message(DatagramKind.STREAM, b"two")])
    ends = (("::1", 1), ("ff05::1", 2)) if six else (ONE, GROUP)
    packets = [framed(link, udp(each, *ends)) for each in (data[0], b"GET / HTTP/1.1", data[1])]
    packets.append(framed(link, b"\x45" + bytes(8) + b"\x06" + bytes(40)))  # of TCP
    datagrams, counts, capture = dissected(writer(packets, link, order=order))
    # Expect them, with their numbers and times
    assert [(each["packet"], round(each["at"], 3), each["data"]) for each in datagrams] == [
        (1, 1000.0, 3),
        (3, 1000.2, 3),
    ]
    assert datagrams[0]["to"] == ("[ff05::1]:2" if six else "239.192.1.1:47001")
    assert (counts["other"], capture.counts["packets"], capture.counts["no UDP"], capture.trouble) == (1, 4, 1, "")


def test_times_may_be_nanoseconds_and_packets_may_have_none() -> None:
    [data] = numbered([message(DatagramKind.STREAM, b"x")])
    # Given a capture whose times are in nanoseconds
    whole = bytearray(pcap([udp(data)] * 2))
    whole[:4] = struct.pack("<I", 0xA1B23C4D)
    assert [round(each["at"], 6) for each in dissected(bytes(whole))[0]] == [1000.0, 1000.0001]
    # And one whose packets have no times
    packet = udp(data)
    block = struct.pack("<III", 3, 16 + len(packet) + -len(packet) % 4, len(packet)) + packet
    block += bytes(-len(packet) % 4) + struct.pack("<I", 16 + len(packet) + -len(packet) % 4)
    [found] = dissected(pcapng([]) + block)[0]
    assert (found["at"], found["size"]) == (0.0, len(data))


def test_a_virtual_network_and_padding_are_looked_through() -> None:
    [data] = numbered([message(DatagramKind.STREAM, b"x")])
    frame = bytes(12) + b"\x81\x00\x00\x05\x08\x00" + udp(data) + bytes(6)
    [found], *_ = dissected(pcap([frame], 1))
    assert found["size"] == len(data)
    assert "malformed" not in found


def fragments(packet: bytes, size: int) -> list[bytes]:
    """A packet of IPv4 cut up."""
    head, body = packet[:20], packet[20:]
    found = []
    for at in range(0, len(body), size):
        part = body[at : at + size]
        flags = at // 8 | (0x2000 if at + size < len(body) else 0)
        found.append(head[:2] + struct.pack("!HHH", 20 + len(part), 9, flags) + head[8:] + part)
    return found


def fragments_of_6(packet: bytes, size: int) -> list[bytes]:
    """A packet of IPv6 cut up, behind options of each hop."""
    head, body = packet[:40], packet[40:]
    found = []
    for at in range(0, len(body), size):
        part = body[at : at + size]
        more = struct.pack("!BBHI", 17, 0, at | (at + size < len(body)), 9) + part
        found.append(head[:4] + struct.pack("!HBB", len(more) + 8, 0, 1) + head[8:] + bytes((44, *bytes(7))) + more)
    return found


def test_fragments_are_put_together_in_any_order() -> None:
    # Given an announcement of 5,000 bytes in fragments, out of order, one of them missing at first; of either IP
    data = numbered([message(DatagramKind.STREAM, random.Random(1).randbytes(5_000))], MessageForm(block=9_000))
    for packet, cut in ((udp(data[0]), fragments), (udp(data[0], ("::1", 1), ("::1", 2)), fragments_of_6)):
        parts = cut(packet, 1_480)
        datagrams, _, capture = dissected(pcap([parts[2], parts[0], parts[3], parts[0], parts[1]]))
        # Expect it once
        [found] = datagrams
        assert (found["packet"], found["message"]["size"]) == (5, 5_000)
        assert not capture.trouble
        # And nothing of one that is not complete
        assert dissected(pcap(parts[1:]))[0] == []


def test_trains_of_datagrams_are_taken_apart() -> None:
    # Given a train, as a sender's own capture has those that it gave to the system at once
    data = numbered([message(DatagramKind.PUBLICATION, random.Random(2).randbytes(950))], MessageForm(block=100))
    datagrams, counts, _ = dissected(pcap([udp(b"".join(data))]))
    # Expect each, and the message
    assert [each["block"] for each in datagrams] == list(range(1, 11))
    assert (counts["malformed"], datagrams[-1]["message"]["size"]) == ({}, 950)
    # And one whose data only look like a train to stay as it is
    [alone] = numbered([message(DatagramKind.STREAM, data[0] * 3)])
    assert len(dissected(pcap([udp(alone)]))[0]) == 1


# -- rubbish -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:30], "shorter than a header"),
        (lambda data: data[:-1], "shorter than it says"),
        (lambda data: data + b"x", "longer than it says"),
        (lambda data: data[:2] + b"\2" + data[3:], "of version 2"),
        (lambda data: data[:3] + b"\x63" + data[4:], "of kind 99"),
        (lambda data: data[:8] + struct.pack("!II", 3, 2) + data[16:], "with a block or a number that can not be"),
        (lambda data: data[:64] + b"Z" + data[65:], "a message that is not what its hash says"),
    ],
)
def test_malformed_ones_are_told_with_why(change: Any, why: str) -> None:
    [data] = numbered([message(DatagramKind.STREAM, b"some body")])
    [found], counts, _ = dissected(pcap([udp(change(data))]))
    assert found["malformed"] == why
    assert counts["malformed"] == {why: 1}


def test_bodies_that_are_none_and_bombs_are_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a request that is none, and 2 KB that would be 2 MB, where a message may have 1 MB
    monkeypatch.setattr(dissection, "MESSAGE_MOST", 1 << 20)
    rubbish = message(DatagramKind.REQUEST, b"\xc1rubbish")
    bomb = message(DatagramKind.STREAM, bytes(2 << 20))
    data = [*numbered([rubbish]), *numbered([bomb], MessageForm(block=9_000, compression="zlib"))]
    one, other = dissected(pcap(map(udp, data)))[0]
    # Expect both to be told
    assert one["malformed"].startswith("bad request of a node")
    assert other["malformed"] == "a message of more than 1048576 bytes"


def test_what_a_capture_has_cut_off_is_no_fault_of_the_datagram() -> None:
    [data] = numbered([message(DatagramKind.STREAM, bytes(500))])
    [found], counts, _ = dissected(pcap([udp(data)], snap=200))
    assert found["malformed"] == "cut off by the capture"
    assert counts["kinds"] == {}


def test_what_is_no_capture_is_refused() -> None:
    for data in (b"", b"abc", b"# a text\n" * 10, b"\xd4\xc3\xb2\xa1"):
        with pytest.raises(ConfigurationError, match="not a capture"):
            Capture(io.BytesIO(data))


@pytest.mark.parametrize("writer", [pcap, pcapng], ids=["pcap", "pcapng"])
def test_rubbish_raises_nothing_and_ends(writer: Any) -> None:
    # Given captures with bytes changed, cut off and doubled anywhere
    chance = random.Random(5)
    data = numbered(
        [
            message(DatagramKind.ANNOUNCEMENT, encoded_announcement(ANNOUNCED)),
            message(DatagramKind.QUERY, b"\x91" * 2_000 + b"\xc0"),
            message(DatagramKind.OFFER, msgspec.msgpack.encode({"a": float("nan"), "b": [1.5, None]})),
            message(DatagramKind.REQUEST, ASKED),
            message(DatagramKind.PUBLICATION, bytes(3_000), level=3),
        ],
        MessageForm(compression="bz2", block=500),
    )
    packets = [*map(udp, data), *fragments(udp(data[0]), 64)]
    whole = writer([framed(1, each) for each in packets], 1)
    begin = 24 if writer is pcap else 28
    for _ in range(300):
        bad = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            at = chance.randrange(begin, len(bad))
            bad[at] = chance.choice((0, 255, chance.randrange(256)))
        if chance.random() < 0.2:
            del bad[chance.randrange(begin, len(bad)) :]
        # Expect each to be read as far as it can be
        _, counts, capture = dissected(bytes(bad))
        assert counts["datagrams"] <= 60
        assert capture.counts["packets"] <= 60
    # And so datagrams with bytes changed, their bytes explained too
    for _ in range(1_500):
        one = bytearray(chance.choice(data))
        for _ in range(chance.randint(1, 4)):
            one[chance.randrange(len(one))] = chance.randrange(256)
        dissected(pcap([udp(bytes(one))]))
        explained(bytes(one))


def test_fragments_without_end_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given first fragments of many datagrams, and many of one
    monkeypatch.setattr(captures, "FRAGMENTS_MOST", 8)
    first = fragments(udp(bytes(4_000)), 1_480)[1]
    many = [first[:4] + struct.pack("!H", number) + first[6:] for number in range(100)]
    same = [first[:6] + struct.pack("!H", 0x2000 | number) + first[8:] for number in range(100)]
    capture = Capture(io.BytesIO(pcap([*many, *same])))
    assert list(capture) == []
    assert len(capture._fragments) <= 8
    assert max(map(len, capture._fragments.values())) <= 8
