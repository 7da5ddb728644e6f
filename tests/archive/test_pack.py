"""Packs: small, and what comes back is what was put in, byte for byte, from every store."""

from __future__ import annotations

import os
import random
import zlib
from pathlib import Path

import pytest
from extent import examples

from jbi_pubsub.archive.items import METADATA_STORES, PAYLOAD_STORES, ItemStore
from jbi_pubsub.archive.pack import Pack, Sealable, remove, seal
from jbi_pubsub.archive.volume import OBJECT, Record
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Head, Parcel, pack

ID = b"an archive's id."
STORES = [(m, p) for m in METADATA_STORES.values() for p in PAYLOAD_STORES.values()]


def record(position: int, metadata: bytes, payload: bytes, type_name: str = "track") -> Record:
    head = Head("", "registration-" + "ab" * 16, position, 1e9 + position, type_name, "1.0", metadata, len(payload))
    return Record(position, 2e9 + position, OBJECT, b"".join(pack(head, payload).parts))


def document(number: int) -> bytes:
    return (
        f"<metadata><source><name>sensor-{number % 7}</name><organization>418th</organization></source><track>"
        f"<id>T{number}</id><latitude>{33 + number / 997}</latitude><longitude>{65 + number / 991}</longitude>"
        f"<altitude unit='m'>{number * 37 % 9000}</altitude><speed unit='m/s'>{number % 300}</speed></track></metadata>"
    ).encode()


@pytest.fixture
def records() -> list[Record]:
    rng = random.Random(5)
    payloads = [b"", b"text " * 200, rng.randbytes(3_000), b"x", rng.randbytes(100_000)]
    return [record(2 * n + 3, document(n), payloads[n % 5], f"type-{n % 3}") for n in range(200)]


def sealable(records: list[Record]) -> Sealable:
    return Sealable(ID, records[0].position, records[-1].position, records[0].position - 1, 1.5)


@pytest.mark.row("G-38")
@pytest.mark.parametrize(("metadata", "payloads"), STORES, ids=lambda store: store.name)
def test_every_byte_comes_back_from_every_store(
    tmp_path: Path, records: list[Record], metadata: ItemStore, payloads: ItemStore
) -> None:
    path = seal(sealable(records), records, tmp_path, metadata=metadata, payloads=payloads)
    sealed = Pack(path, ID)
    assert (sealed.first, sealed.last, sealed.count) == (3, 401, 200)
    assert list(sealed.read(0, 10**6)) == records
    assert list(sealed.read(9, 21, newest_first=True)) == records[4:10][::-1]
    assert list(sealed.get([401, 4, 3])) == [records[-1], records[0]]
    (head,) = sealed.metadata([11])
    whole = Parcel.received(records[4].data)
    assert head.data == records[4].data[: whole.payload_at]
    assert sealed.bad == []
    sealed.close()


def test_what_is_read_one_after_the_other_takes_few_reads(
    tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a pack, all of which is asked for in order, part of it in one go, and part of it at random places
    path = seal(sealable(records), records, tmp_path, metadata=STORES[0][0], payloads=STORES[0][1])
    sealed = Pack(path, ID)
    wanted = [each.position for each in records]
    mixed = [*wanted[:50], wanted[120], *wanted[3:9], *wanted[40:], wanted[0]]
    reads: list[int] = []
    pread = os.pread
    monkeypatch.setattr("jbi_pubsub.archive.items.os.pread", lambda *a: reads.append(a[2]) or pread(*a))
    # Expect the same bytes, and a read for many of them
    assert [each.position for each in sealed.metadata(wanted)] == wanted
    assert len(reads) < 10
    by_position = {each.position: each for each in records}
    assert list(sealed.get(mixed)) == [by_position[position] for position in mixed]
    sealed.close()


@pytest.mark.long
def test_objects_that_are_gone_are_left_out_and_the_pack_is_replaced_while_it_is_read(
    tmp_path: Path, records: list[Record]
) -> None:
    for metadata, payloads in [STORES[0], STORES[-1], STORES[0]]:
        seal(sealable(records), records, tmp_path, metadata=metadata, payloads=payloads)
        path = tmp_path / f"{3:020d}.pack"
        before = Pack(path, ID)
        seal(
            before.sealable, list(before.read(0, 10**6)), tmp_path, metadata=metadata, payloads=payloads, gone={5, 401}
        )
        after = Pack(path, ID)
        assert list(after.read(0, 10**6)) == [r for r in records if r.position not in (5, 401)]
        assert (after.first, after.last, after.count) == (3, 401, 198)
        after.close()
        before.close()
    assert len(list(tmp_path.iterdir())) == 3  # nothing is left of those before
    remove(path)
    assert not list(tmp_path.iterdir())


def test_metadata_that_are_like_each_other_take_a_third(tmp_path: Path) -> None:
    records = [record(n, document(n), b"") for n in range(1, 3_000)]
    path = seal(sealable(records), records, tmp_path, metadata=STORES[0][0], payloads=STORES[0][1])
    on_disk = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert on_disk < sum(len(document(n)) for n in range(1, 3_000)) / 3  # short ones, with what stands beside them
    assert Pack(path).sizes[0] < on_disk


@pytest.mark.long
@pytest.mark.parametrize(("metadata", "payloads"), [STORES[0], STORES[-1]], ids=lambda store: store.name)
def test_a_bit_turned_anywhere_is_told_and_never_another_answer(
    tmp_path: Path, metadata: ItemStore, payloads: ItemStore
) -> None:
    rng = random.Random(3)
    records = [record(n, document(n), rng.randbytes(20)) for n in range(1, 12)]
    path = seal(sealable(records), records, tmp_path, metadata=metadata, payloads=payloads)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    for file in files:
        good = file.read_bytes()
        for at in sorted(rng.sample(range(len(good)), examples(len(good)))):
            # Given a file with one bit turned
            file.write_bytes(good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :])
            # Expect what is read to be as it was put, and what is not to be told
            try:
                sealed = Pack(path, ID)
            except StorageError:
                continue
            found = list(sealed.read(0, 100))
            assert [r for r in records if r in found] == found
            assert len(found) + len(sealed.bad) == len(records)
            sealed.close()
        file.write_bytes(good)


def test_a_pack_of_another_archive_or_without_its_parts_is_refused(tmp_path: Path, records: list[Record]) -> None:
    path = seal(sealable(records), records, tmp_path, metadata=STORES[0][0], payloads=STORES[0][1])
    with pytest.raises(StorageError, match="another archive"):
        Pack(path, b"another archive.")
    path.with_suffix(".data").unlink()
    with pytest.raises(StorageError, match=r"\.data"):
        Pack(path, ID)


@pytest.mark.long
@pytest.mark.parametrize(("metadata", "payloads"), STORES, ids=lambda store: store.name)
def test_a_pack_that_is_made_anew_while_it_is_read_goes_on_without_what_went(
    tmp_path: Path, records: list[Record], metadata: ItemStore, payloads: ItemStore
) -> None:
    # Given a reader in the middle of a pack
    def made(gone: set[int]) -> Path:
        return seal(sealable(records), records, tmp_path, metadata=metadata, payloads=payloads, gone=gone)

    reader = Pack(made(set()), ID)
    reading = reader.read(0, 10**6)
    first = [next(reading) for _ in range(50)]
    # When it is made anew without some objects, twice, and taken away in the end
    made({records[60].position})
    made({records[60].position, records[70].position})
    middle = [next(reading) for _ in range(50)]
    remove(reader.path)
    rest = list(reading)
    # Expect nothing to be damaged, and nothing but those to be missing until then
    assert reader.bad == []
    assert first == records[:50]
    gone = {60, 70} if payloads.name == "folder" else set()
    assert middle == [each for n, each in enumerate(records[50 : 100 + len(gone)], 50) if n not in gone]
    assert rest in ([], records[100:])
    reader.close()


def test_payloads_that_get_no_smaller_are_soon_tried_seldom_and_come_back(tmp_path: Path) -> None:
    # Given: pictures, compressed already; then some of the same type that are not
    rng = random.Random(6)
    payloads = [rng.randbytes(2_000) for _ in range(800)] + [b"text " * 400 for _ in range(50)]
    items = [(payload,) for payload in payloads]
    tried = 0

    # When
    store = PAYLOAD_STORES["file"]
    with pytest.MonkeyPatch.context() as patch:
        made = zlib.compressobj

        def counted(*arguments: int) -> object:
            nonlocal tried
            tried += 1
            return made(*arguments)

        patch.setattr(zlib, "compressobj", counted)
        size = store.write(tmp_path / "1.data", items, ["picture"] * len(items))
    # Expect: an eighth of them were tried, all of those that are worth it but for the first few were deflated
    assert tried <= 8 + 100 + 50
    assert 800 * 2_000 < size < 800 * 2_000 + 8 * 2_000 + 50 * 200
    opened = store.open(tmp_path / "1.data")
    assert [opened.get(number) for number in range(len(items))] == payloads
    opened.close()
