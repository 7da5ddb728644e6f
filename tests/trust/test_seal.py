"""Sealed datagrams between nodes: who has no key reads and changes nothing, and nothing comes twice."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.sealing import (
    FLAGS_AT,
    HEADER_BYTES,
    NUMBER_AT,
    SEAL_BYTES,
    SEALED_FLAG,
    SENDER_AT,
    TAG_BYTES,
    SealFault,
    Unsealed,
)
from jbi_pubsub.network import datagram
from jbi_pubsub.network.datagram import Datagram, DatagramKind, DatagramMode, packed, passed_on, read, sent_anew
from jbi_pubsub.network.sealing import seal_of
from jbi_pubsub.trust import seal
from jbi_pubsub.trust.seal import SESSIONS_MOST, WINDOW, DatagramSeal, shared_key

pytestmark = pytest.mark.unit

KEY = bytes(range(32))
ALPHA, BRAVO = bytes.fromhex("aa" * 16), bytes.fromhex("bb" * 16)
MARKER = b"<secret>plain</secret>"


def said(number: int, sender: bytes = ALPHA, body: bytes = MARKER, hops: int = 0) -> bytes:
    """A datagram as an exchange gives it."""
    return packed(
        Datagram(
            DatagramKind.PUBLICATION, DatagramMode.UNRELIABLE, ALPHA, datagram.hash_of(body, 0), body,
            hops=hops, sender=sender[:4], number=number,
        )
    )  # fmt: skip


def test_what_is_sealed_is_opened_by_who_has_the_key_and_read_by_nobody_else() -> None:
    # Given two nodes with one key
    alpha, bravo = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, BRAVO)
    # When one seals
    before = said(7)
    sealed = alpha.seal(before)
    # Expect that the other gets what it was, that nothing but the header is to be read, and 24 bytes more
    assert bravo.open(sealed) == before
    assert len(sealed) == len(before) + SEAL_BYTES
    assert MARKER not in sealed
    assert datagram.hash_of(MARKER, 0) not in sealed
    assert sealed[:FLAGS_AT] + sealed[FLAGS_AT + 1 : HEADER_BYTES] == before[:FLAGS_AT] + before[FLAGS_AT + 1 : 48]
    # And that its own, which come back by multicast, are no fault
    assert alpha.open(sealed) is None


def test_the_layout_is_that_of_a_datagram() -> None:
    data = sent_anew(said(1), b"\1\2\3\4", 0x0506070809, None)
    assert data[SENDER_AT:HEADER_BYTES] == bytes((1, 2, 3, 4, 0, 0, 0, 5, 6, 7, 8, 9))
    assert (NUMBER_AT - SENDER_AT, SEALED_FLAG) == (4, datagram.SEALED)
    found = read(packed(Datagram(DatagramKind.KEY, DatagramMode.UNRELIABLE, ALPHA, bytes(16), b"", is_sealed=True,
                                 number=1)))  # fmt: skip
    assert isinstance(found, Datagram)
    assert found.is_sealed


def test_a_number_is_sealed_once_and_for_its_sender_alone() -> None:
    # Given one who has sealed number 5
    alpha = DatagramSeal(KEY, ALPHA)
    alpha.seal(said(5))
    # Expect that the same number, an earlier one, and another sender are refused: a nonce would come again
    for again in (said(5), said(4), said(6, BRAVO)):
        with pytest.raises(ProtocolError, match="can't be sealed"):
            alpha.seal(again)
    assert isinstance(alpha.seal(said(6)), bytes)


@pytest.mark.parametrize("other", [ALPHA, ALPHA[:4] + BRAVO[4:]], ids=["started anew", "begins alike"])
def test_starts_and_ids_that_begin_alike_have_keys_of_their_own(other: bytes) -> None:
    # Given two sessions that seal the same under the same sender and number: after a start, or of two nodes
    first, second = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, other)
    one, two = first.seal(said(1)), second.seal(said(1))
    # Expect that what is encrypted has nothing in common, as it would with one key and nonce
    assert one[:HEADER_BYTES] == two[:HEADER_BYTES]
    same = sum(a == b for a, b in zip(one[56:], two[56:], strict=True))
    assert same < len(one[56:]) // 4
    # And that both are opened, neither as a replay of the other, and each by the other too
    bravo = DatagramSeal(KEY, BRAVO)
    assert bravo.open(one) == bravo.open(two) == said(1)
    assert first.open(two) == second.open(one) == said(1)


def test_whoever_passes_on_seals_as_his_own() -> None:
    # Given a datagram of alpha that bravo passes on
    alpha, bravo, third = (DatagramSeal(KEY, each) for each in (ALPHA, BRAVO, b"c" * 16))
    opened = bravo.open(alpha.seal(said(9)))
    assert isinstance(opened, bytes)
    passed = sent_anew(passed_on(opened) or b"", BRAVO[:4], 1, None)
    again = bravo.seal(passed)
    # Expect that a third node opens both; and that hops are covered as all else is
    assert third.open(again) == passed
    changed = bytearray(bravo.seal(said(2, BRAVO)))
    changed[6] ^= 1
    assert third.open(bytes(changed)) is SealFault.FORGED


def test_what_comes_again_or_too_late_is_dropped() -> None:
    # Given 3,000 datagrams, most of which come in an order of their own, within the window
    alpha, bravo = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, BRAVO)
    sealed = [alpha.seal(said(number)) for number in range(1, 3_001)]
    random = Random(3)
    order = sorted(range(2_999), key=lambda at: at + random.uniform(0, WINDOW - 1))
    # Expect that each is opened once
    assert all(isinstance(bravo.open(sealed[at]), bytes) for at in order)
    assert {bravo.open(sealed[at]) for at in order} == {SealFault.REPLAYED}
    # And that a jump leaves the window right: what it has passed over can come, no earlier ones, and once
    assert isinstance(bravo.open(alpha.seal(said(10_000))), bytes)
    assert bravo.open(sealed[-1]) is SealFault.REPLAYED
    late = DatagramSeal(KEY, ALPHA)
    numbers = [1, 2, WINDOW + 1]
    one, two, last = (late.seal(said(each)) for each in numbers)
    assert [type(bravo.open(each)) for each in (last, two)] == [bytes, bytes]
    assert [bravo.open(each) for each in (two, one, last)] == [SealFault.REPLAYED] * 3


@pytest.mark.parametrize("numbers", [(1, 2, 3), (3, 2, 1), (1, 1 << 40, (1 << 64) - 1)])
def test_numbers_may_be_any(numbers: tuple[int, ...]) -> None:
    alpha, bravo = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, BRAVO)
    sealed = {each: alpha.seal(said(each)) for each in sorted(numbers)}
    opened = [bravo.open(sealed[each]) for each in numbers]
    assert all(isinstance(each, bytes) for each in opened)


def test_what_is_not_sealed_by_our_key_never_opens() -> None:
    # Given a session that is known, and one that is not
    alpha, fresh, bravo = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, BRAVO)
    bravo.open(alpha.seal(said(1)))
    random = Random(11)
    good = [by.seal(said(number, body=random.randbytes(60))) for by in (alpha, fresh) for number in range(2, 12)]
    # When 20,000 mutations of what they have sealed come: bits, pieces, ends, and what is random
    found: set[object] = set()
    for _ in range(20_000):
        each = bytearray(random.choice(good))
        match random.randrange(4):
            case 0:
                for _ in range(random.randint(1, 4)):
                    each[random.randrange(len(each))] ^= 1 << random.randrange(8)
            case 1:
                del each[random.randrange(len(each)) :]
            case 2:
                at = random.randrange(len(each))
                each[at : at + random.randint(0, 20)] = random.randbytes(random.randint(1, 20))
            case _:
                each = bytearray(random.randbytes(random.randrange(200)))
        if bytes(each) not in good:
            found.add(bravo.open(bytes(each)))
    # Expect that none opens, each by its cause, and that nothing is remembered of them
    assert found == {SealFault.OPEN, SealFault.SHORT, SealFault.FORGED, SealFault.REPLAYED}
    assert len(bravo) == 1
    # And that what is good opens yet
    assert all(isinstance(bravo.open(each), bytes) for each in good)


def test_a_forged_number_holds_up_nobody() -> None:
    # Given a datagram whose number somebody has made the highest that there is
    alpha, bravo = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY, BRAVO)
    assert isinstance(bravo.open(alpha.seal(said(1))), bytes)
    forged = sent_anew(alpha.seal(said(2)), ALPHA[:4], (1 << 64) - 1, None)
    assert bravo.open(forged) is SealFault.FORGED
    # Expect that the next ones come as if it had not
    assert bravo.open(alpha.seal(said(3))) == said(3)


def test_who_has_another_key_none_or_one_for_himself_is_told_by_cause() -> None:
    alpha, other, none = DatagramSeal(KEY, ALPHA), DatagramSeal(KEY[::-1], BRAVO), Unsealed()
    sealed = alpha.seal(said(1))
    assert other.open(sealed) is SealFault.FORGED
    assert none.open(sealed) is SealFault.SEALED
    assert other.open(none.seal(said(1))) is SealFault.OPEN
    assert none.open(said(1)) == said(1)
    assert [none.open(said(1)[:size]) for size in (0, 4)] == [b"", said(1)[:4]]
    assert {other.open(sealed[:size]) for size in range(5, HEADER_BYTES + SEAL_BYTES)} == {SealFault.SHORT}
    assert {other.open(sealed[:size]) for size in range(5)} == {SealFault.OPEN}
    assert other.open(sealed[:-TAG_BYTES]) is SealFault.FORGED


def test_sessions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given room for three sessions
    assert SESSIONS_MOST == 10_000
    monkeypatch.setattr(seal, "SESSIONS_MOST", 3)
    bravo = DatagramSeal(KEY, BRAVO)
    alpha = DatagramSeal(KEY, ALPHA)
    first = alpha.seal(said(1))
    bravo.open(first)
    # When others start again and again, and alpha goes on speaking
    for number in range(2, 50):
        bravo.open(DatagramSeal(KEY, b"c" * 16).seal(said(1, b"cccc")))
        assert isinstance(bravo.open(alpha.seal(said(number))), bytes)
    # Expect that the three are kept that were heard last, alpha's among them
    assert len(bravo) == 3
    assert bravo.open(first) is SealFault.REPLAYED


def test_a_secret_is_a_key_the_same_for_all() -> None:
    keys = [shared_key(secret) for secret in ("correct horse battery staple", "a" * 64, "a" * 63)]
    assert all(len(each) == 32 for each in keys)
    assert all(one != two for one, two in pairwise(keys))
    one, two = seal_of("a" * 64, ALPHA), seal_of("a" * 64, BRAVO)
    assert two.open(one.seal(said(1))) == said(1)
    assert isinstance(seal_of("", ALPHA), Unsealed)
