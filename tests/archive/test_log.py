"""The log: what it says is on disk is there, once; what it refused is not; a damage is named, and costs no more."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from extent import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from jbi_pubsub.archive import log as logs
from jbi_pubsub.archive.log import VOLUME_SECONDS, Log
from jbi_pubsub.archive.volume import HEAD, RECORD, LogVolume
from jbi_pubsub.core.errors import StorageError

ID = b"an archive's id."
SMALL = 4_096


def opened(folder: Path, **options: object) -> Log:
    options = {"volume_bytes": SMALL, **options}
    return Log(folder, ID, **options)  # type: ignore[arg-type]  # as the tests give them


def put(log: Log, *positions: int, size: int = 20) -> None:
    log.append([(position, (b"%d:" % position, b"x" * size)) for position in positions], 1_000.0)


def found(folder: Path, up_to: int = 2**62) -> list[int]:
    """Positions of all objects, each read and compared with what was put."""
    positions = []
    for path in sorted(folder.glob("*.log")):
        volume = LogVolume(path, ID)
        volume.refresh(up_to) if up_to < 2**62 else volume.recover()
        for record in volume.read(0, up_to):
            assert record.data.startswith(b"%d:" % record.position)
            assert not record.data.partition(b":")[2].strip(b"x")
            positions.append(record.position)
        volume.close()
    return positions


def test_what_was_synced_is_read_back_in_order_and_by_position(tmp_path: Path) -> None:
    # Given objects under positions with gaps, over several files
    log = opened(tmp_path)
    positions = list(range(3, 600, 2))
    for position in positions:
        put(log, position)
    log.sync(positions[-1])
    assert (log.end, log.synced) == (599, 599)
    # Expect all of them, by whoever reads meanwhile
    files = sorted(tmp_path.glob("*.log"))
    assert len(files) > 3
    assert found(tmp_path, 599) == positions
    # also by position, newest first, and without payloads
    volume = LogVolume(files[1], ID)
    volume.refresh(int(files[2].stem) - 1)
    here = [record.position for record in volume.read(0, 10**6)]
    assert [r.position for r in volume.read(here[3], here[9], newest_first=True)] == here[4:10][::-1]
    assert [r.position for r in volume.get([here[5], here[5] + 1, 1, here[2]])] == [here[5], here[2]]
    assert (volume.first, volume.last, volume.count) == (here[0], here[-1], len(here))


@pytest.mark.parametrize("later", [86_400.0, -10 * 86_400.0])
def test_a_file_is_written_for_a_day_also_if_the_clock_was_ahead_when_it_was_begun(
    tmp_path: Path, later: float
) -> None:
    # Given a file that was begun then
    now = [1e9]
    log = opened(tmp_path, clock=lambda: now[0])
    put(log, 1)
    put(log, 2)
    # When a day has passed, or the clock has been set back; Expect another one
    now[0] = 1e9 + later
    put(log, 3)
    put(log, 4)
    log.close()
    assert [int(path.stem) for path in sorted(tmp_path.glob("*.log"))] == [1, 3]


def test_a_log_that_is_opened_again_goes_on(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1, 2, 5)
    log.close()
    again = opened(tmp_path)
    assert (again.end, again.synced, again.recovered.cut, again.recovered.damages) == (5, 5, 0, [])
    put(again, 6)
    again.sync(6)
    assert found(tmp_path) == [1, 2, 5, 6]
    assert len(list(tmp_path.glob("*.log"))) == 1


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str, list[int]]:
    """A file with three synced batches, without the room behind; its name; where its records end."""
    folder = tmp_path_factory.mktemp("written")
    log = opened(folder)
    ends = []
    for position in (1, 2, 3, 4, 5):
        put(log, position)
        log.sync(position)
        ends.append(HEAD.size + position * (RECORD.size + 22))
    (file,) = folder.glob("*.log")
    data = file.read_bytes()[: ends[-1]]
    log.close()
    return data, file.name, ends


@pytest.mark.long
def test_cut_at_every_byte_all_whole_records_are_there(tmp_path: Path, written: tuple[bytes, str, list[int]]) -> None:
    data, name, ends = written
    for cut in range(HEAD.size, len(data) + 1):
        # Given a file that ends anywhere, with zeros behind or without
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / name).write_bytes(data[:cut] + bytes(100 * (cut % 2)))
        # When it is opened again
        log = opened(folder)
        # Expect each record that is whole, no other, and new ones behind them
        whole = sum(end <= cut for end in ends)
        assert log.end == whole
        put(log, 10)
        log.sync(10)
        assert found(folder) == [*range(1, whole + 1), 10]
        log.close()
        shutil.rmtree(folder)


def test_a_file_that_was_being_begun_is_taken_away(tmp_path: Path, written: tuple[bytes, str, list[int]]) -> None:
    data, name, _ = written
    for cut in range(len(data[: HEAD.size].rstrip(b"\0"))):  # a head that ends in zeros is whole without them
        (tmp_path / name).write_bytes(data[:cut] + bytes(100))
        log = opened(tmp_path)
        assert log.end == 0
        assert not list(tmp_path.glob("*.log"))
        log.close()


def test_a_damaged_head_costs_nothing_and_is_told(
    tmp_path: Path, written: tuple[bytes, str, list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    data, name, ends = written
    for at in range(0, HEAD.size, 3):
        # Given a file with a bit turned in its head
        folder = tmp_path / str(at)
        folder.mkdir()
        (folder / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        # When it is opened; Expect it to be told, the log to go on behind what is in it, and all of it to be there
        caplog.clear()
        log = opened(folder)
        assert f"the head of {folder / name}" in caplog.text
        assert log.end == len(ends)
        put(log, 10)
        log.sync(10)
        log.close()
        assert found(folder) == [*range(1, len(ends) + 1), 10]
        assert len(list(folder.glob("*.log"))) == 2


def test_a_damaged_head_before_a_damaged_record_is_refused(
    tmp_path: Path, written: tuple[bytes, str, list[int]]
) -> None:
    data, name, _ = written
    (tmp_path / name).write_bytes(data[:9] + b"?" + data[10 : HEAD.size + 50] + b"?" + data[HEAD.size + 51 :])
    with pytest.raises(StorageError, match="head is damaged"):
        opened(tmp_path)


def test_a_bit_turned_anywhere_costs_that_record_and_is_named(
    tmp_path: Path, written: tuple[bytes, str, list[int]]
) -> None:
    data, name, ends = written
    for at in range(HEAD.size, ends[2]):
        # Given a file whose first three records are known to be on disk by the fourth and fifth, and a bit turned there
        (tmp_path / name).write_bytes(data[:at] + bytes([data[at] ^ 1 << (at % 8)]) + data[at + 1 :])
        hit = 1 + sum(end <= at for end in ends)
        # When it is opened again
        log = opened(tmp_path)
        # Expect the others, and where the damage is
        assert found(tmp_path) == [position for position in range(1, 6) if position != hit]
        (damage,) = log.recovered.damages
        assert (damage.offset, damage.size) == (ends[hit - 1] - RECORD.size - 22, RECORD.size + 22)
        assert (damage.after, damage.before) == (hit - 1, hit + 1)
        assert log.recovered.cut == 0
        # and what comes next in a file of its own
        put(log, 6)
        log.sync(6)
        log.close()
        assert len(list(tmp_path.glob("*.log"))) == 2
        for file in tmp_path.glob("*.log"):
            file.unlink()


def test_what_is_known_to_be_on_disk_is_no_torn_tail(tmp_path: Path) -> None:
    # Given a log that was closed, and a bit of its last object turned since
    log = opened(tmp_path)
    put(log, 1, 2)
    log.sync(2)
    put(log, 3)
    log.sync(3)
    log.close()
    (path,) = tmp_path.glob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    # When it is opened by who knows nothing of it, expect what can't be told from what was being written to be cut
    copied = shutil.copytree(tmp_path, tmp_path / "copy")
    opened(copied).close()
    assert found(copied) == [1, 2]
    assert sum(each.stat().st_size for each in copied.glob("*.log")) < len(data)
    # and by who knows that three were on disk, to be told, and not cut
    again = opened(tmp_path, known=3, end=3)
    (damage,) = again.recovered.damages
    assert (damage.offset + damage.size, damage.after, damage.before) == (len(data), 2, 0)
    assert path.read_bytes() == bytes(data)
    put(again, 4)
    again.sync(4)
    again.close()
    assert found(tmp_path) == [1, 2, 4]


@pytest.mark.parametrize("how", ["a later record says so", "the catalogue says so"])
def test_damage_in_a_burst_costs_no_more_than_what_is_damaged(tmp_path: Path, how: str) -> None:
    # Given a log of which much was written before it was forced to the disk, perhaps one object since, and a bit of
    # the second object turned
    log = opened(tmp_path)
    put(log, 1, 2, 3, 4, 5)
    log.sync(5)
    if how == "a later record says so":
        put(log, 6)
        log.sync(6)
    log.close()
    (path,) = tmp_path.glob("*.log")
    kept = found(tmp_path)
    with closing(LogVolume(path)) as volume:
        volume.refresh(6)
        second = volume._offsets[1] + 50
    data = bytearray(path.read_bytes())
    data[second] ^= 1
    path.write_bytes(data)
    # When it is opened, expect that one to be named, and all others to be there
    again = opened(tmp_path, known=5 if how == "the catalogue says so" else 0)
    (damage,) = again.recovered.damages
    assert (damage.after, damage.before) == (1, 3)
    assert again.recovered.cut == 0
    again.close()
    assert found(tmp_path, kept[-1]) == [each for each in kept if each != 2]


def test_zeros_in_the_middle_are_a_damage_and_no_end(tmp_path: Path, written: tuple[bytes, str, list[int]]) -> None:
    data, name, ends = written
    (tmp_path / name).write_bytes(data[: ends[0]] + bytes(ends[2] - ends[0]) + data[ends[2] :])
    volume = LogVolume(tmp_path / name, ID)
    assert volume.refresh(5) == 3
    assert [record.position for record in volume.read(0, 9)] == [1, 4, 5]
    assert [(damage.after, damage.before) for damage in volume.damages] == [(1, 4)]


def test_a_record_that_gets_bad_later_is_left_out_and_named(
    tmp_path: Path, written: tuple[bytes, str, list[int]]
) -> None:
    # Given a file that was read, and a bit turned afterwards
    data, name, ends = written
    (tmp_path / name).write_bytes(data)
    volume = LogVolume(tmp_path / name, ID)
    assert volume.refresh(5) == 5
    (tmp_path / name).write_bytes(data[: ends[2] - 1] + b"?" + data[ends[2] :])
    # Expect the others in either order, and alone
    assert [record.position for record in volume.read(0, 9)] == [1, 2, 4, 5]
    assert [record.position for record in volume.read(1, 4, newest_first=True)] == [4, 2]
    assert [record.position for record in volume.get([2, 3, 4])] == [2, 4]
    assert [(each.offset, each.size, each.after, each.before) for each in volume.damages] == [
        (ends[1], ends[2] - ends[1], 2, 4)
    ]


def test_what_a_payload_says_is_no_record(tmp_path: Path) -> None:
    # Given an object whose payload is a file of the log, of another archive, and damage in front of it
    other = Log(tmp_path / "other", b"another archive.", volume_bytes=SMALL)
    put(other, 2)
    other.close()
    (file,) = (tmp_path / "other").glob("*.log")
    forged = file.read_bytes()[HEAD.size :]
    log = opened(tmp_path / "log")
    log.append([(1, (forged,))], 1.0)
    log.sync(1)
    put(log, 3)
    log.sync(3)
    put(log, 4)
    log.close()
    (file,) = (tmp_path / "log").glob("*.log")
    data = bytearray(file.read_bytes())
    data[HEAD.size + RECORD.size - 1] ^= 0xFF  # the kind of the first record
    file.write_bytes(data)
    # Expect the next real record, and not that
    volume = LogVolume(file, ID)
    volume.refresh(4)
    assert [record.position for record in volume.read(0, 9)] == [3, 4]


def test_a_reader_learns_no_more_than_it_is_told_is_on_disk(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1, 2)
    log.sync(2)
    put(log, 3)
    (file,) = tmp_path.glob("*.log")
    volume = LogVolume(file, ID)
    assert volume.refresh(2) == 2
    log.sync(3)
    assert volume.refresh(3) == 1
    assert volume.refresh(3) == 0
    assert volume.damages == []


def test_a_disk_that_fails_to_sync_gives_up_what_was_not_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given objects on disk, and others that are not
    log = opened(tmp_path)
    put(log, 1, 2)
    log.sync(2)
    put(log, 3)
    put(log, 4)

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # When the disk fails once
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(StorageError, match="Input/output error"):
            log.sync(3)
    # Expect whoever asks later to be told, too, and what comes after to be kept
    with pytest.raises(StorageError):
        log.sync(4)
    put(log, 5)
    log.sync(5)
    log.sync(2)
    with pytest.raises(StorageError):
        log.sync(4)
    assert found(tmp_path) == [1, 2, 5]
    # also when it is opened again
    log.close()
    again = opened(tmp_path)
    assert again.end == 5
    again.close()


@pytest.mark.parametrize("after", [0, 1, 7])
def test_a_disk_that_fails_to_write_leaves_nothing_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    # Given a log with an object that is not on disk yet
    log = opened(tmp_path)
    put(log, 1)
    log.sync(1)
    put(log, 2)
    real = os.pwritev
    calls = []

    def fails(fd: int, parts: list[bytes], offset: int) -> int:
        calls.append(offset)
        if len(calls) == 1 and after:
            return real(fd, [b"".join(parts)[:after]], offset)  # a part of it, then
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    # When a write fails
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fails)
        with pytest.raises(StorageError):
            put(log, 3, 4)
    # Expect nothing of it, and the one before to be told when it is asked about
    with pytest.raises(StorageError):
        log.sync(2)
    put(log, 5)
    log.sync(5)
    assert found(tmp_path) == [1, 5]


def test_a_full_disk_refuses_and_goes_on_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    put(log, 1)

    def full(_fd: int, _offset: int, _size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        put(log, 2, size=1_000)  # there is room for it
        with pytest.raises(StorageError, match="No space left"):
            put(log, 3, size=SMALL)
        log.sync(2)
        with pytest.raises(StorageError):
            put(log, 4)
    put(log, 5)
    log.sync(5)
    assert found(tmp_path) == [1, 2, 5]


def test_on_a_full_disk_deletions_are_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a file that is full, and a disk with room for no other, but for a few bytes
    log, allocate = opened(tmp_path), os.posix_fallocate
    put(log, 1, size=SMALL - 200)
    put(log, 2)
    monkeypatch.setattr(logs, "SMALL_BYTES", 200)

    def nearly_full(fd: int, offset: int, size: int) -> None:
        if size >= SMALL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", nearly_full)
        with pytest.raises(StorageError):
            put(log, 3, size=SMALL)
        # When something is deleted, expect that to be written, and objects to be refused as before
        log.delete([1], 2_000.0)
        log.delete([1, 2] * 10, 2_000.0)
        with pytest.raises(StorageError):
            put(log, 3, size=SMALL)
    put(log, 3)
    log.close()
    assert found(tmp_path) == [1, 2, 3]
    again = opened(tmp_path)
    assert (again.end, again.recovered.cut, again.recovered.damages) == (3, 0, [])
    volumes = [LogVolume(path, ID) for path in sorted(tmp_path.glob("*.log"))]
    assert [volume.recover() or volume.deleted for volume in volumes] == [[], [1, *[1, 2] * 10]]


def test_an_object_larger_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1)
    put(log, 2, size=3 * SMALL)
    put(log, 3)
    log.close()
    assert found(tmp_path) == [1, 2, 3]


def test_deletions_are_read_beside_the_objects(tmp_path: Path) -> None:
    log = opened(tmp_path)
    put(log, 1, 2, 3)
    log.delete([1, 3], 2_000.0)
    put(log, 4)
    log.close()
    volume = LogVolume(next(tmp_path.glob("*.log")), ID)
    volume.refresh(4)
    assert volume.deleted == [1, 3]
    assert volume.count == 4


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_file_with_deletions_alone_goes_on_when_it_is_a_day_old(tmp_path: Path, is_opened_again: bool) -> None:
    # Given a file a day old, then a deletion, which begins another one, then nothing for a day
    now = 1e9
    log = opened(tmp_path, clock=lambda: now)
    put(log, 1, 2)
    now += VOLUME_SECONDS
    log.delete([1], now)
    now += VOLUME_SECONDS
    if is_opened_again:
        log.close()
        log = opened(tmp_path, clock=lambda: now)
    # When objects are published and deleted, expect them to be kept
    put(log, 3)
    log.sync(3)
    log.delete([3], now)
    now += VOLUME_SECONDS
    put(log, 4)
    log.close()
    assert found(tmp_path) == [1, 2, 3, 4]
    volumes = [LogVolume(path, ID) for path in sorted(tmp_path.glob("*.log"))]
    assert [volume.recover() or (volume.first, volume.deleted) for volume in volumes] == [(1, []), (3, [1, 3]), (4, [])]


def test_a_file_of_another_archive_is_refused(tmp_path: Path) -> None:
    Log(tmp_path, b"another archive.").close()
    log = Log(tmp_path, b"another archive.")
    put(log, 1)
    log.close()
    with pytest.raises(StorageError, match="another archive"):
        opened(tmp_path)


def test_many_threads_that_sync_share_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a disk that takes its time
    log = opened(tmp_path, volume_bytes=1 << 20)
    calls: list[int] = []
    entered, leave = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        calls.append(fd)
        entered.set()
        assert leave.wait(60.0)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    put(log, 1)
    threads = [threading.Thread(target=log.sync, args=(1,))]
    threads[0].start()
    assert entered.wait(60.0)
    # When many others come meanwhile, each with an object of its own
    for position in range(2, 18):
        put(log, position)
        threads.append(threading.Thread(target=log.sync, args=(position,)))
        threads[-1].start()
    leave.set()
    for thread in threads:
        thread.join(60.0)
    # Expect one call for all of them
    assert log.synced == 17
    assert len(calls) == 2


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int]]:
    kinds = st.sampled_from(["put", "put", "put", "sync", "die", "fail sync", "fail write"])
    return draw(st.lists(st.tuples(kinds, st.integers(1, 4)), max_size=25))


@given(history=histories())
@settings(max_examples=examples(60), deadline=None)
def test_whatever_happens_what_was_acknowledged_is_there_and_what_was_refused_is_not(
    history: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A naive model beside it: positions that were acknowledged, and that were refused."""
    folder = tmp_path_factory.mktemp("history")
    log = opened(folder, volume_bytes=400)
    acknowledged: set[int] = set()
    refused: set[int] = set()
    waiting: list[int] = []
    position = 0
    for what, count in history:
        with failing(what.partition(" ")[2]):
            if what in ("put", "fail write"):
                run = [position := position + 1 for _ in range(count)]
                try:
                    put(log, *run)
                    waiting += run
                except StorageError:
                    refused |= set(run)
            elif what in ("sync", "fail sync"):
                for each in waiting:
                    try:
                        log.sync(each)
                        acknowledged.add(each)
                    except StorageError:
                        refused.add(each)
                waiting = []
        if what == "die":  # what was written is there or not: here it is
            log = opened(folder, volume_bytes=400)
            waiting = []
    there = found(folder)
    assert there == sorted(set(there))
    assert acknowledged <= set(there)
    assert refused.isdisjoint(there)


class failing:  # noqa: N801  # read as a statement
    """A disk that fails in one kind of call, every other time."""

    def __init__(self, what: str) -> None:
        self._name = {"sync": "fdatasync", "write": "pwritev"}.get(what, "")

    def __enter__(self) -> None:
        if self._name:
            self._real = getattr(os, self._name)
            turns: Iterator[bool] = iter([True, False] * 100)

            def call(*arguments: object) -> object:
                if next(turns):
                    raise OSError(errno.EIO, "it fails")
                return self._real(*arguments)

            setattr(os, self._name, call)

    def __exit__(self, *_: object) -> None:
        if self._name:
            setattr(os, self._name, self._real)


def test_a_file_that_is_being_begun_is_seen_with_its_head_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[bytes]] = []
    real = os.fsync

    def look(fd: int) -> None:
        seen.append([path.read_bytes()[:7] for path in tmp_path.glob("*.log")])
        real(fd)

    def allocate(fd: int, offset: int, length: int) -> None:
        os.ftruncate(fd, length)
        look(fd)

    monkeypatch.setattr(os, "fsync", look)
    monkeypatch.setattr(os, "posix_fallocate", allocate)
    log = opened(tmp_path)
    put(log, 1)
    log.close()
    assert len(seen) >= 3
    assert all(heads in ([], [b"JBILOG1"]) for heads in seen)
    assert not list(tmp_path.glob("*.tmp"))
