"""Keeping: what was acknowledged is there after any death, once; what was refused is not; full disks are told."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from jbi_pubsub.archive import engine
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.archive.store import VolumeStore
from jbi_pubsub.core.config import ArchiveSection, Config
from jbi_pubsub.core.errors import ConfigurationError, StorageError
from jbi_pubsub.core.history import Consumer, Source
from jbi_pubsub.core.info_object import Head, Parcel, TypeName, pack

pytestmark = pytest.mark.processes

SMALL = 16_384


def section(folder: Path, **settings: Any) -> Config:
    return Config(archive=ArchiveSection(**{"folder": str(folder), "workers": 0, "reserve": 0.0, **settings}))


def opened(folder: Path, *, clock: Callable[[], float] = time.time, volume: int = SMALL, **settings: Any) -> Archive:
    return Archive(section(folder, **settings), clock=clock, volume_bytes=volume)


def parcel(sequence: int, registration: str = "r-1", *, own_id: str = "", payload: bytes = b"p" * 50) -> Parcel:
    head = Head(own_id, registration, sequence, 1.0, "track", "1.0", b"<m><n>%d</n></m>" % sequence, len(payload))
    return pack(head, payload)


def put(archive: Archive, *positions: int, registration: str = "r-1", received: float = 5.0) -> None:
    """Objects whose numbers are their positions."""
    archive.append([(position, parcel(position, registration)) for position in positions], received)


def there(folder: Path, archive: bytes) -> list[int]:
    """Positions of all objects on disk."""
    store = VolumeStore(folder, archive)
    store.refresh(2**62)
    found = [record.position for record in store.read(0, 2**62)]
    store.close()
    return found


def test_what_was_kept_is_known_at_the_next_start(tmp_path: Path) -> None:
    # Given objects of two registrations, over several volumes
    archive = opened(tmp_path)
    for position in range(1, 400, 2):
        put(archive, position, registration=f"r-{position % 4}")
    archive.sync(399)
    assert (archive.end, archive.synced) == (399, 399)
    assert (archive.last_sequence("r-1"), archive.last_sequence("r-3")) == (397, 399)
    assert archive.last_sequence("r-9") == 0
    archive.register(Source("r-1", TypeName("track"), "the publisher", b"its entries"))
    archive.close()
    # When it is opened again, without what the catalogue had last
    assert [source.publisher for source in archive.sources()] == ["the publisher", ""]
    for name in (None, "archive.db"):
        if name is not None:
            (tmp_path / name).unlink()
        again = opened(tmp_path)
        # Expect the same
        assert (again.end, again.synced) == (399, 399)
        assert (again.last_sequence("r-1"), again.last_sequence("r-3")) == (397, 399)
        (known,) = (each for each in again.registrations() if each.uid == "r-1")
        assert (known.first, known.last, known.objects) == (1, 397, 100)
        assert known.entries == (b"its entries" if name is None else b"")
        again.close()
    assert len([*(tmp_path / "log").glob("*.log"), *(tmp_path / "packs").glob("*.pack")]) > 1


def test_who_has_published_is_on_disk_before_the_first_object(tmp_path: Path) -> None:
    # Given a registration whose archive is killed at once
    archive = opened(tmp_path / "a")
    archive.register(Source("r-1", TypeName("track"), "me", b"entries"))
    put(archive, 1)
    archive.sync(1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    archive.close()
    # Expect it to be known
    again = opened(tmp_path / "b")
    assert again.sources() == [Source("r-1", TypeName("track"), "me", b"entries")]
    assert again.last_sequence("r-1") == 1
    again.close()


def test_new_positions_begin_behind_what_a_durable_subscription_has_had(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    put(archive, 5)
    archive.note([Consumer("mine", "me", b"asked", 1_000)])
    assert archive.end == 1_000
    archive.close()
    again = opened(tmp_path)
    assert again.end == 1_000
    assert [each.position for each in again.consumers()] == [1_000]
    again.close()


def test_what_could_not_be_synced_is_not_the_last_of_its_registration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an object on disk, and one that the disk does not take
    archive = opened(tmp_path)
    put(archive, 1)
    archive.sync(1)
    put(archive, 2)

    def fails(_fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(StorageError, match="forced to the disk"):
            archive.sync(2)
    # Expect the archive to go on behind it
    assert archive.last_sequence("r-1") == 1
    put(archive, 3)
    archive.sync(3)
    assert archive.last_sequence("r-1") == 3
    archive.close()
    again = opened(tmp_path)
    assert there(tmp_path, again.folder.archive) == [1, 3]
    assert again.last_sequence("r-1") == 3
    again.close()


def test_the_last_number_of_a_registration_is_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a number that is lost, and nothing behind it
    archive = opened(tmp_path)
    put(archive, 1)
    archive.sync(1)
    put(archive, 2)
    fails = OSError(errno.EIO, "Input/output error")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", lambda _fd: (_ for _ in ()).throw(fails))
        archive._checkpoint()  # nobody need be told here
        with pytest.raises(StorageError):
            archive.sync(2)
    archive.close()
    again = opened(tmp_path)
    assert again.last_sequence("r-1") == 1
    again.close()


@pytest.mark.parametrize("sync", ["", "often", "-1", "0", "nan", "inf", "1e9", "batch "])
def test_when_to_sync_is_a_word_or_seconds(tmp_path: Path, sync: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[archive\] sync is"):
        opened(tmp_path / "a", sync=sync)
    assert not (tmp_path / "a").exists()


def test_without_a_sync_for_each_batch_the_disk_gets_it_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = threading.Event()
    real = os.fdatasync

    def told(fd: int) -> None:
        real(fd)
        forced.set()

    archive = opened(tmp_path, sync="0.01")
    put(archive, 1)
    monkeypatch.setattr(os, "fdatasync", told)
    archive.sync(1)  # does not wait
    assert archive.synced == 1
    assert forced.wait(60.0)
    archive.close()


@pytest.mark.parametrize(
    ("total", "free", "has_room"),
    [
        (2 << 30, 110 << 20, True),  # of 2 GiB the twentieth is 102 MiB
        (2 << 30, 100 << 20, False),
        (1 << 40, 300 << 20, True),  # of a TiB 256 MiB are enough
        (1 << 40, 256 << 20, False),
    ],
)
def test_a_twentieth_of_the_disk_stays_free_and_of_a_large_one_256_mib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, free: int, has_room: bool
) -> None:
    # Given an archive on a disk of some size, of which something is free
    disk = os.statvfs_result((1 << 12, 1 << 12, total >> 12, free >> 12, free >> 12, 1, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    archive = opened(tmp_path / "archive", reserve=ArchiveSection().reserve)
    # When an object comes for which a new file is needed
    room = nullcontext() if has_room else pytest.raises(StorageError, match="MiB are to stay so")
    # Expect it to be taken, or the refusal to say what is free and what is to stay so
    with room:
        archive.room(128 << 10)
    archive.close()


def test_an_object_without_room_is_refused_or_passed_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a disk with nothing left beside the reserve
    for full in ("refuse", "pass"):
        archive = opened(tmp_path / full, full=full)
        put(archive, 1)
        archive.room(100)
        monkeypatch.setattr(archive._room, "look", lambda: None)
        archive._room.spare = 1_000
        # When objects come for which the volume has no room
        large = [(2, parcel(2, payload=b"p" * SMALL))]
        if full == "refuse":
            with pytest.raises(StorageError, match="has no room: 0 MiB of the disk"):
                archive.room(SMALL)
        else:
            archive.room(SMALL)
            archive.append(large, 1.0)
            archive.sync(2)
            # Expect them to be counted, over restarts
            assert archive.status()["counters"] == {"not_archived": 1}
        # and smaller ones to be kept
        archive.room(100)
        put(archive, 3)
        archive.sync(3)
        archive.close()
        again = opened(tmp_path / full, full=full)
        assert there(tmp_path / full, again.folder.archive) == [1, 3]
        assert again.status()["counters"] == ({"not_archived": 1} if full == "pass" else {})
        again.close()


@pytest.mark.parametrize("full", ["refuse", "pass"])
def test_an_archive_that_had_no_room_says_so_until_it_has(tmp_path: Path, full: str) -> None:
    # Given an archive with a quota, of which some is left
    archive = opened(tmp_path, full=full, max_payload_bytes=2_000)
    for position in range(1, 19):
        put(archive, position)
    archive.room(1_100)
    assert archive.status()["full"] == ""
    # When what comes is larger than that; Expect it to be refused, or to pass, but never to pass where it is needed
    for may_pass in {False, full == "pass"}:
        if may_pass:
            assert archive.room(1_101) == 0.0
            archive.append([(19, parcel(19, payload=b"p" * 1_101))], 5.0)
            assert archive.status()["counters"] == {"not_archived": 1}
        else:
            with pytest.raises(StorageError, match="payloads take 900 of 2,000 bytes"):
                archive.room(1_101, may_pass=False)
    if full == "refuse":
        with pytest.raises(StorageError):
            archive.room(1_101)
    # Expect the archive to say that it is full, also when something smaller has come
    put(archive, 20)
    assert archive.status()["full"] == "payloads take 950 of 2,000 bytes"
    # When the rest is gone; Expect it to say so no more
    archive.close()
    again = opened(tmp_path, full=full, max_payload_bytes=4_000)
    again.room(1_101)
    assert again.status()["full"] == ""
    again.close()


def test_a_clock_set_back_changes_no_order(tmp_path: Path) -> None:
    now = [1_000_000.0]
    archive = opened(tmp_path, clock=lambda: now[0])
    for position in range(1, 200):
        put(archive, position, received=now[0])
        now[0] -= 3_600.0
    archive.sync(199)
    archive.close()
    again = opened(tmp_path, clock=lambda: 5.0)
    put(again, 200, received=5.0)
    again.sync(200)
    assert there(tmp_path, again.folder.archive) == list(range(1, 201))
    again.close()


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    where = tmp_path / "disk"
    where.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("mounting a small disk needs root")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(where)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no small disk can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield where
    finally:
        subprocess.run([shutil.which("umount") or "umount", "-l", str(where)], check=True)


def filled(disk: Path) -> Path:
    """A file that leaves no room."""
    with suppress(OSError), (disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4_096)
    return disk / "ballast"


def test_a_full_disk_refuses_what_it_has_no_room_for_and_goes_on_when_it_has(tmpfs: Path) -> None:
    # Given a small disk that is filled by others
    archive = opened(tmpfs / "archive", volume=64 << 10)
    put(archive, 1)
    archive.sync(1)
    ballast = filled(tmpfs)
    # When more comes than the volume has room for
    kept = [1]

    def put_many() -> None:
        for position in range(2, 1_000):
            put(archive, position)
            kept.append(position)

    with pytest.raises(StorageError, match="No space left"):
        put_many()
    position = kept[-1] + 1
    assert 100 < len(kept) < 900
    archive.sync(kept[-1])
    assert archive.last_sequence("r-1") == kept[-1]
    # Expect it to say so before, too
    archive._room.look()
    with pytest.raises(StorageError, match="no room"):
        archive.room(100)
    # and to go on by itself when there is room
    ballast.unlink()
    archive._room.look()
    archive.room(100)
    put(archive, position + 1)
    archive.sync(position + 1)
    archive.close()
    again = opened(tmpfs / "archive", volume=64 << 10)
    assert there(tmpfs / "archive", again.folder.archive) == [*kept, position + 1]
    again.close()


def test_on_a_full_disk_objects_are_passed_on_where_they_may(tmpfs: Path) -> None:
    # Given an archive that passes on what it has no room for, and a disk that is full before it has noticed
    archive = opened(tmpfs / "archive", volume=64 << 10, full="pass")
    filled(tmpfs)
    archive._room.look = lambda: None  # type: ignore[method-assign]
    archive._room.spare = 1 << 30
    for position in range(1, 1_000):
        put(archive, position)
    archive.sync(999)
    kept = there(tmpfs / "archive", archive.folder.archive)
    assert kept == list(range(1, len(kept) + 1))
    assert archive.status()["counters"] == {"not_archived": 999 - len(kept)}
    # and the catalogue, which has no room either, to be told and no more
    archive._try_checkpoint()
    assert any("disk is full" in each for each in archive.status()["troubles"])
    archive.close()


@pytest.mark.parametrize("can_seal", [True, False])
def test_on_a_small_disk_the_oldest_give_way(tmpfs: Path, monkeypatch: pytest.MonkeyPatch, can_seal: bool) -> None:
    # Given a disk of 1 MiB, on which there is room for packs, or for none
    def no_room(*_given: Any, **_named: Any) -> Path:
        raise StorageError("No space left on device")

    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.01)
    monkeypatch.setattr(engine, "TICK", 0.01)
    if not can_seal:
        monkeypatch.setattr("jbi_pubsub.archive.upkeep.seal", no_room)
        monkeypatch.setattr("jbi_pubsub.archive.upkeep.AGAIN_SECONDS", 0.1)
    archive = Archive(section(tmpfs / "archive", full="drop_oldest"), volume_bytes=64 << 10, is_indexed=False)
    # When more is published than it has room for, as fast as it says that there is some
    refused = 0
    for position in range(1, 5_000, 20):
        until = time.monotonic() + 30
        while archive.room(20 * 400):
            assert time.monotonic() < until
            time.sleep(0.002)
        try:
            archive.append([(position + n, parcel(position + n, payload=os.urandom(300))) for n in range(20)], 1.0)
            archive.sync(position + 19)
        except StorageError:  # a pack was being made on the last of it
            refused += 1
    # Expect the newest to be there, and most to have been taken
    kept = there(tmpfs / "archive", archive.folder.archive)
    assert kept == sorted(set(kept))
    assert kept[-1] >= 4_900
    assert refused < 10
    assert archive.status()["counters"]["expired_full"] > 1_000
    # and no trace of what went
    assert archive.status()["payload_bytes"] < 1 << 20
    archive.close()
    again = Archive(section(tmpfs / "archive"), volume_bytes=64 << 10, is_indexed=False)
    assert again.end == kept[-1]
    assert again.status()["troubles"] == []
    again.close()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_an_archive_whose_folder_is_taken_away_refuses_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    # Given an archive
    monkeypatch.setattr(engine, "TICK", 0.01)
    archive = opened(tmp_path / "archive")
    put(archive, 1)
    archive.sync(1)
    # When its folder is removed, in one step: it writes there meanwhile; Expect it to be told, and nothing more to be
    # acknowledged
    shutil.rmtree((tmp_path / "archive").rename(tmp_path / "removed"), ignore_errors=True)
    why = "No such file"
    if is_replaced:
        opened(tmp_path / "archive").close()  # another one, under its name
        why = "another folder is in its place"
    until = time.monotonic() + 60
    while f"can't be looked at: {why}" not in archive.status()["full"] or archive._log.room:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(StorageError, match=f"can't be looked at: {why}"):
        archive.room(10)
    with pytest.raises(StorageError, match=why):
        put(archive, 2)
    with pytest.raises(StorageError, match="can't be looked at"):
        archive.note([Consumer("mine", "me", b"asked", 1)])
    with suppress(StorageError):
        archive.close()
    assert archive.status()["worker"]["is_running"] is False


def test_a_disk_that_is_full_from_the_beginning_is_told_in_a_word(tmpfs: Path) -> None:
    filled(tmpfs)
    with pytest.raises(StorageError, match=r"No space left|disk is full|disk I/O error"):
        opened(tmpfs / "archive")


def test_a_disk_that_can_only_be_read_is_told_in_a_word(tmpfs: Path) -> None:
    mount = shutil.which("mount") or "mount"
    subprocess.run([mount, "-o", "remount,ro", str(tmpfs)], check=True)
    with pytest.raises(StorageError, match="Read-only file system"):
        opened(tmpfs / "archive")


def test_a_damaged_catalogue_does_not_open_the_archive_nor_keep_its_folder(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "archive.db", isolation_level=None)) as base:
        base.execute("DROP TABLE consumers")
    base.close()
    for _ in range(2):  # it can be tried again: the lock is free
        with pytest.raises(StorageError, match="no such table: consumers"):
            opened(tmp_path)


WRITER = """
import os, sys, threading
from pathlib import Path
from jbi_pubsub.archive import engine
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.config import ArchiveSection, Config
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.info_object import Head, pack

engine.CHECKPOINT_SECONDS = 0.02
engine.TICK = 0.01
config = Config(archive=ArchiveSection(folder=sys.argv[1], workers=int(sys.argv[2]), reserve=0.0))
archive = Archive(config, volume_bytes=20_000, is_indexed=False)
print("open", archive.end, archive.last_sequence("r-0"), archive.last_sequence("r-1"), flush=True)
lock, position = threading.Lock(), archive.end

def publish(which):
    global position
    registration, sequence = f"r-{which}", archive.last_sequence(f"r-{which}")
    while True:
        run = []
        with lock:
            for _ in range(1 + sequence % 7):
                position += 1
                sequence += 1
                if sequence % 11 == 0:
                    continue  # refused by a check
                head = Head("", registration, sequence, 1.0, "track", "1.0", b"<m>%d</m>" % sequence, 100)
                run.append((position, pack(head, b"%0100d" % position)))
            archive.append(run, 1.0)
        if run:
            archive.sync(run[-1][0])
            words = ["done", which, run[-1][0], *(p.head.sequence for _, p in run)]
            os.write(1, " ".join(map(str, words)).encode() + b"\\n")

for which in (0, 1):
    threading.Thread(target=publish, args=(which,)).start()
"""


def helpers_of(pid: int) -> list[int]:
    """Processes that a process has started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in children for word in path.read_text().split()]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "kills", [6, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(600)])], ids=["some", "many"]
)
def test_a_writer_that_is_killed_at_any_time_keeps_what_it_acknowledged_once(
    tmp_path: Path, kills: int, workers: int
) -> None:
    rng = random.Random(15 + workers)
    acknowledged: dict[str, set[int]] = {"r-0": set(), "r-1": set()}
    last_done = 0
    for turn in range(kills):
        # Given a process that keeps objects of two registrations at once
        command = [sys.executable, "-c", WRITER, str(tmp_path / "archive"), str(workers)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            assert writer.stderr is not None
            word, end, *sequences = writer.stdout.readline().split() or ("", "0")
            assert word == "open", writer.stderr.read()
            # Expect what was acknowledged before to be known
            assert int(end) >= last_done
            for known, done in zip(map(int, sequences), acknowledged.values(), strict=True):
                assert known >= max(done, default=0)
            # When it is killed at some time, its helper before it, or that one alone for a while
            lines = rng.randrange(1, 60)
            helper_goes_at = rng.randrange(0, 2 * lines)
            time.sleep(rng.random() * 0.02)
            for line_number in range(lines):
                if line_number == helper_goes_at:
                    for helper in helpers_of(writer.pid):
                        with suppress(ProcessLookupError):
                            os.kill(helper, signal.SIGKILL)
                _, which, position, *kept = writer.stdout.readline().split()
                acknowledged[f"r-{which}"].update(map(int, kept))
                last_done = max(last_done, int(position))
            os.kill(writer.pid, signal.SIGKILL)
            for line in writer.stdout.read().split("\n")[:-1]:  # said before it died
                _, which, position, *kept = line.split()
                acknowledged[f"r-{which}"].update(map(int, kept))
                last_done = max(last_done, int(position))
        assert writer.returncode == -signal.SIGKILL
        if turn % 7 == 3:
            (tmp_path / "archive" / "archive.db").unlink()  # its catalogue is lost as well
    # Expect each acknowledged object once, in order, and none that was refused
    archive = opened(tmp_path / "archive", volume=20_000)
    store = VolumeStore(tmp_path / "archive", archive.folder.archive)
    store.refresh(archive.end)
    assert store.troubles == []
    found: dict[str, list[int]] = {"r-0": [], "r-1": []}
    for record in store.read(0, archive.end):
        head = Parcel.received(record.data).head
        found[head.registration].append(head.sequence)
        assert record.data.endswith(b"%0100d" % record.position)
    store.close()
    for registration, sequences in found.items():
        assert sequences == sorted(set(sequences))
        assert acknowledged[registration] <= set(sequences)
        assert not [sequence for sequence in sequences if sequence % 11 == 0]
        assert archive.last_sequence(registration) == sequences[-1]
        (known,) = (each for each in archive.registrations() if each.uid == registration)
        assert known.objects == len(sequences)
    archive.close()


HOLDER = """
import os, sys, time
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.config import ArchiveSection, Config
from jbi_pubsub.core.info_object import Head, pack

archive = Archive(Config(archive=ArchiveSection(folder=sys.argv[1], reserve=0.0)), is_indexed=False)
head = Head("", "r-1", archive.end + 1, 1.0, "track", "1.0", b"<m/>", 0)
archive.append([(archive.end + 1, pack(head, b""))], 1.0)
archive.sync(archive.end)
archive.retain(is_dry=True)
print(archive.status()["worker"]["pid"], archive.end, flush=True)
time.sleep(100)
"""


def test_a_worker_ends_with_its_delegate_however_that_ends(tmp_path: Path) -> None:
    for turn in range(1, 3):
        # Given an archive with a worker process
        with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            worker, end = map(int, holder.stdout.readline().split())
            # When its delegate is killed, or the next one comes at once
            holder.kill()
        # Expect the folder to be free, nothing to be lost, and the worker to be gone
        assert end == turn
    opened(tmp_path).close()
    state = Path(f"/proc/{worker}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


SERVER = """
import sys, threading, time
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.cli.servers import wait_for
from jbi_pubsub.core.config import ArchiveSection, Config

archive = Archive(Config(archive=ArchiveSection(folder=sys.argv[1], workers=int(sys.argv[2]), reserve=0.0)))
archive.retain(is_dry=True)
while archive.status()["indexed"] or not list(archive.folder.path.glob("index/*.duckdb")):
    time.sleep(0.01)
stop = threading.Event()
threading.Timer(0.1, stop.set).start()
wait_for(stop)
archive.close()
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_server_with_an_archive_ends_without_a_word(tmp_path: Path, workers: str) -> None:
    done = subprocess.run([sys.executable, "-c", SERVER, str(tmp_path), workers], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_started_by_hand_says_whose_it_is() -> None:
    command = [sys.executable, "-m", "jbi_pubsub.archive.worker", "/tmp"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is started by a delegate" in done.stderr


def test_without_the_libraries_an_archive_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match=r"jbi-pubsub\[archive\]"):
        opened(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_of_very_many_registrations_those_without_objects_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "REGISTRATIONS_MOST", 3)
    archive = opened(tmp_path)
    for n in range(5):
        archive.register(Source(f"r-{n}", TypeName("track"), "", b"entries"))
    put(archive, 1, registration="r-1")
    archive.sync(1)
    archive.close()
    again = opened(tmp_path)
    assert [known.uid for known in again.registrations()] == ["r-1"]
    again.close()


def test_nothing_of_a_closed_archive_stays(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    archive = opened(tmp_path)
    put(archive, 1)
    archive.note([Consumer("mine", "me", b"asked", 1)])
    archive.close()
    archive.close()
    assert (archive.status()["consumers"], archive.status()["worker"]["is_running"]) == (1, False)
    with pytest.raises(StorageError, match="closed"):
        put(archive, 2)
    assert {thread.name for thread in threading.enumerate()} <= before
    assert engine.TICK < 1.0
