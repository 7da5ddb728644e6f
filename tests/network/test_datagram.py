"""Datagrams between nodes: every field comes back, and whatever comes over a socket is a datagram or a reason."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.network.datagram import (
    HASHES,
    NO_FOOTER,
    Datagram,
    DatagramKind,
    DatagramMode,
    Extension,
    Footer,
    hash_of,
    packed,
    passed_on,
    read,
    sent_anew,
)

pytestmark = pytest.mark.unit


def _bytes(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def _uint(bits: int, least: int = 0) -> st.SearchStrategy[int]:
    return st.integers(least, (1 << bits) - 1)


@st.composite
def datagrams(draw: st.DrawFn) -> Datagram:
    """Any that may be sent."""
    mode = draw(st.sampled_from(DatagramMode))
    algorithm = draw(st.sampled_from(range(len(HASHES))))
    footer = NO_FOOTER
    if mode is DatagramMode.RELIABLE:
        footer = Footer(draw(_uint(32)), draw(_uint(64)), draw(_uint(64)), draw(_uint(32)))
    elif mode is DatagramMode.DURABLE:
        footer = Footer(
            draw(_uint(32)), draw(_uint(64)), draw(_uint(64)), draw(_uint(32)), draw(_bytes(16)), draw(_uint(64))
        )
    block, hops = draw(_uint(16, 1)), draw(_uint(7))
    return Datagram(
        kind=draw(st.sampled_from(DatagramKind)), mode=mode, origin=draw(_bytes(16)),
        message=draw(_bytes(HASHES[algorithm][1])), data=draw(st.binary(max_size=200)),
        block=block, total=block + draw(_uint(16)), footer=footer, hops=hops,
        max_hops=hops + draw(_uint(7)), inactivity=draw(_uint(16)), algorithm=algorithm,
        is_compressed=draw(st.booleans()), is_repair=draw(st.booleans()), is_sealed=draw(st.booleans()),
        extensions=tuple(draw(st.lists(st.tuples(_uint(8), st.binary(max_size=40)), max_size=16))),
        sender=draw(_bytes(4)), number=draw(_uint(64, 1)),
    )  # fmt: skip


@pytest.mark.row("G-128", "G-129", "G-131", "G-160")
@given(datagrams())
@settings(deadline=None)
def test_what_is_packed_is_read(datagram: Datagram) -> None:
    found = read(packed(datagram))
    assert isinstance(found, Datagram)
    assert found._replace(data=bytes(found.data)) == datagram


@pytest.mark.row("G-130")
@given(datagrams(), _bytes(4), _uint(64, 1))
@settings(deadline=None)
def test_who_passes_it_on_changes_hops_sender_and_number_alone(datagram: Datagram, sender: bytes, number: int) -> None:
    moved = passed_on(packed(datagram))
    if datagram.hops == datagram.max_hops:
        assert moved is None
    else:
        again = datagram._replace(sender=sender, number=number, hops=datagram.hops + 1, is_repair=False)
        assert sent_anew(moved or b"", sender, number, None) == packed(again)


@given(datagrams(), _bytes(4), _uint(64, 1), _uint(32), st.booleans())
@settings(deadline=None)
def test_what_is_sent_anew_is_what_it_was_but_for_who_when_and_how_often(
    datagram: Datagram, sender: bytes, number: int, expiration: int, is_repair: bool
) -> None:
    if datagram.mode is not DatagramMode.UNRELIABLE:
        again = datagram._replace(
            footer=datagram.footer._replace(expiration=expiration), sender=sender, number=number, is_repair=is_repair
        )
        assert sent_anew(packed(datagram), sender, number, expiration, is_repair=is_repair) == packed(again)


@pytest.mark.row("G-41", "G-129", "G-133")
def test_offsets_are_those_of_the_page_of_the_protocol() -> None:
    # Given the first hops of a durable block
    footer = Footer(1, 2, 3, 4, bytes(range(16)), 5)
    data = packed(Datagram(
        DatagramKind.SEQUENCE, DatagramMode.DURABLE, b"o" * 16, b"h" * 16, b"data", 6, 7, footer, 8, 9, 10, 0,
        True, True, False,
        ((Extension.LEVEL, b"\x03"),), b"send", 11,
    ))  # fmt: skip
    # Expect each field at its place
    assert data.hex(" ") == (
        "4a 4e 01 02 2e 00 08 09 00 00 00 06 00 00 00 07 " + " ".join(["6f"] * 16) + " 00 0a 00 04 73 65 6e 64"
        " 00 00 00 00 00 00 00 0b " + " ".join(["68"] * 16) + " 64 61 74 61"
        " 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 04"
        " 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 00 00 00 00 00 00 00 05"
        " 02 00 01 03"
    )


@pytest.mark.row("G-41")
def test_the_example_on_the_page_of_the_protocol_is_a_datagram_and_its_offsets_are_right() -> None:
    # Given the rows of the table on docs/network.md: offsets, bytes, fields
    page = (Path(__file__).parents[2] / "docs" / "network.md").read_text()
    rows = re.findall(r"^\| ([0-9, ]+) \| `([0-9a-f ]+)` \|", page, re.MULTILINE)
    data = b""
    for offsets, text in rows:
        assert int(offsets.partition(",")[0]) == len(data), offsets
        data += bytes.fromhex(text)
    # Expect a datagram that says what stands there
    found = read(data)
    assert isinstance(found, Datagram)
    assert bytes(found.data) == b"an object"
    assert found.message == hash_of(b"an object", 0)
    assert (found.kind, found.mode, found.number) == (DatagramKind.PUBLICATION, DatagramMode.RELIABLE, 21)
    assert found.footer == Footer(1, 0, 9, 59_997)


@pytest.mark.row("G-128")
def test_rubbish_is_never_more_than_a_reason() -> None:
    # Given datagrams with some bytes changed, cut, or followed by others, and bytes by chance
    chance = random.Random(7)
    good = packed(Datagram(
        DatagramKind.PUBLICATION, DatagramMode.RELIABLE, bytes(16), bytes(16), bytes(100), 1, 2, Footer(1, 0, 1, 1_000),
        extensions=((1, bytes(16)), (200, b"unknown")), number=1,
    ))  # fmt: skip
    refused = 0
    for _ in range(20_000):
        data = bytearray(good if chance.random() < 0.9 else chance.randbytes(chance.randrange(300)))
        for _ in range(chance.randrange(4)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.5:
            del data[chance.randrange(len(data) + 1) :]
        # Expect a datagram or a reason
        found = read(bytes(data))
        assert isinstance(found, Datagram) or found
        refused += isinstance(found, str)
    assert 1_000 < refused < 19_000


@pytest.mark.row("G-160")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((0, b"XX"), "another protocol"), ((2, b"\x02"), "version 2"), ((3, b"\x00"), "kind 0"),
        ((3, b"\x0d"), "kind 13"),
        ((4, b"\x03"), "flags"), ((4, b"\x40"), "flags"), ((5, b"\x03"), "hash"), ((6, b"\x15\x14"), "more hops"),
        ((8, bytes(4)), "block"), ((12, bytes(4)), "block"), ((8, b"\x00\x00\x00\x02"), "block"),
        ((34, b"\xff\xff"), "shorter than it says"), ((34, b"\x00\x01"), "longer than it says"),
        ((40, bytes(8)), "number"),
    ],
)  # fmt: skip
def test_a_datagram_that_can_not_be_is_told_by_its_fault(change: tuple[int, bytes], why: str) -> None:
    data = bytearray(
        packed(Datagram(DatagramKind.QUERY, DatagramMode.UNRELIABLE, bytes(16), bytes(16), b"four", number=1))
    )
    at, new = change
    data[at : at + len(new)] = new
    found = read(bytes(data))
    assert isinstance(found, str)
    assert why in found
