"""Large objects that come in pieces pass on as they came, and are one object for whoever looks."""

from __future__ import annotations

import pytest

from jbi_pubsub.core.config import LinkSection
from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.gathering import Gathering
from jbi_pubsub.core.info_object import Head, Parcel, pack
from jbi_pubsub.core.wire.stream import ParcelCut

PAYLOAD = bytes(range(256)) * 500


def gathered(size: int) -> tuple[Parcel, bytes]:
    """An object that has come in pieces of that size, each in a batch of its own; and its bytes."""
    head = Head("", "registration-1", 7, 1.0, "t", "1.0", b"<m>" + b"y" * 900 + b"</m>", len(PAYLOAD))
    data = b"".join(pack(head, PAYLOAD).parts)
    coming = Gathering(LinkSection().spooling(), 1 << 20, 0.0)
    for at in range(0, len(data), size):
        coming.add(memoryview(data[at : at + size]))
    return coming.parcel(0.0), data


@pytest.mark.parametrize("size", [3, 500, 5_000, 40_000, 127_000, 1 << 20])
def test_what_came_in_pieces_is_one_object(size: int) -> None:
    parcel, data = gathered(size)
    # Expect its bytes, in whatever parts
    assert b"".join(parcel.parts) == data
    assert (parcel.size, parcel.payload_size) == (len(data), len(PAYLOAD))
    # and its payload, for whoever asks, again and again
    assert [bytes(parcel.payload) for _ in range(2)] == [PAYLOAD] * 2
    assert parcel.unpacked().payload == PAYLOAD
    assert (parcel.size, parcel.payload_size) == (len(data), len(PAYLOAD))
    # and what a filter leaves of it
    left = gathered(size)[0].with_payload(b"less")
    assert (bytes(left.payload), left.payload_size, left.unpacked().metadata[:4]) == (b"less", 4, b"<m>y")


def test_pieces_are_passed_on_and_not_copied() -> None:
    # Given an object in pieces of 40 kB; When it goes on in pieces of another size
    parcel, data = gathered(40_000)
    cut, gone, is_last = ParcelCut(parcel), [], False
    while not is_last:
        pieces, is_last = cut.take(64_000)
        assert sum(map(len, pieces)) <= 64_000
        gone += pieces
    # Expect all of it, each piece a view of what has come
    assert b"".join(gone) == data
    came = [memoryview(part).obj for part in parcel.parts]
    assert all(any(piece.obj is obj for obj in came) for piece in gone)


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0\0", b"\0\0\1\0abc", b"\xff\xff\xff\xff"])
def test_pieces_of_no_object_are_refused(data: bytes) -> None:
    coming = Gathering(LinkSection().spooling(), 1 << 20, 0.0)
    for at in range(max(1, len(data))):
        coming.add(memoryview(data[at : at + 1]))
    with pytest.raises(ProtocolError):
        coming.parcel(0.0)
