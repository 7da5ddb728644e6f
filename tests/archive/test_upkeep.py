"""Sealing, deletion on disk, retention: what is found stays the same, what went is nowhere, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kept import TRACK, Reader, asking, found, parcel, publish, until

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.archive.pack import seal
from jbi_pubsub.archive.upkeep import SUMMARY, Retained, Upkeep, holdings_of
from jbi_pubsub.core.errors import StorageError, report
from jbi_pubsub.core.history import Consumer, GivenUp, HistoryQuery, KeepRule, Scope
from jbi_pubsub.core.info_object import Head, Parcel, TypeName, pack

SMALL = 20_000
"""Bytes of a volume: some 100 objects."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads look for work without a pause."""
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("jbi_pubsub.archive.engine.TICK", 0.02)


def sealed(archive: Archive) -> None:
    """All files of the log but the last have become packs."""
    until(lambda: len(list((archive.folder.path / "log").glob("*.log"))) == 1 and archive.status()["packs"] > 0)
    files = len(list((archive.folder.path / "packs").glob("*.pack")))
    until(lambda: archive.status()["packs"] == files)


def counted(archive: Archive, predicate: str = "") -> int:
    reader = Reader(archive, asking(predicate), count_only=True)
    reader.all()
    return reader.results.progress().matched


def bytes_on_disk(archive: Archive, wanted: bytes) -> int:
    """In how many objects of the archive's files that stands, deflated or not."""
    from jbi_pubsub.archive.store import VolumeStore

    store = VolumeStore(archive.folder.path, archive.folder.archive)
    store.refresh(2**62)
    number = sum(wanted in record.data for record in store.read(0, 2**62))
    store.close()
    return number


def test_closed_volumes_are_sealed_while_queries_go_on(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL)
    reader = None
    for first in range(1, 2_001, 500):
        publish(archive, 500, first=first)
        reader = reader or Reader(archive, asking())
    sealed(archive)
    assert reader is not None
    assert reader.all() == list(range(1, 501))
    assert found(archive, asking()) == list(range(1, 2_001))
    assert archive.status()["troubles"] == []
    assert archive.status()["packs"] >= 10
    archive.close()
    again = opened(workers=0, volume=SMALL)
    assert found(again, asking("/m/n > 1990")) == list(range(1_991, 2_001))
    assert (again.end, again.last_sequence("r-1")) == (2_000, 2_000)


@pytest.mark.parametrize("payload", [b"", bytes(40)])
def test_bytes_are_those_of_metadata_and_payloads_as_published(opened: Callable[..., Archive], payload: bytes) -> None:
    # Given 400 objects of 60 bytes of metadata, some of them in packs, and a rule for what 200 have
    archive = opened(workers=0, volume=SMALL)
    for number in range(1, 401):
        metadata = (b"<m><n>%d</n>" % number).ljust(56, b"x") + b"</m>"
        head = Head("", "r-1", number, float(number), TRACK.name, TRACK.version, metadata, len(payload))
        archive.append([(number, pack(head, payload))], float(number))
    archive.sync(400)
    sealed(archive)
    archive.follow([KeepRule(types=("*",), bytes=200 * (60 + len(payload)))])
    # When it is followed; Expect what is in packs to be given up, but for the newest 200, in whole packs or in parts
    going = [each for each in archive.retain(is_dry=True) if each.last <= 200 or each.first <= 200]
    assert sum(sum(each.reasons.values()) for each in going) == 200


def test_what_lies_beside_the_archive_counts_as_it_was_published(opened: Callable[..., Archive]) -> None:
    # Given objects whose payloads are too large for a record, so that these have none
    archive = opened(workers=0, volume=SMALL)
    for number in range(1, 101):
        head = Head("", "r-1", number, 1.0, TRACK.name, TRACK.version, bytes(300), 1 << 30)
        archive.append([(number, pack(head, b""))], 1.0)
    archive.sync(100)
    sealed(archive)
    archive.follow([KeepRule(types=("*",), bytes=10 << 30)])
    # Expect a rule to see them
    assert sum(sum(each.reasons.values()) for each in archive.retain(is_dry=True)) > 0


def test_what_is_deleted_is_on_disk_no_more_when_its_volume_and_the_next_are_sealed(
    opened: Callable[..., Archive],
) -> None:
    # Given objects in packs and in the log, a part of which is deleted
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    until(lambda: archive.status()["indexed"] == 1_000)
    assert archive.delete(asking("/m/key = 3")) == 100
    assert bytes_on_disk(archive, b"<key>3</key>") == 100
    # When later volumes are sealed
    publish(archive, 300, first=1_001)
    sealed(archive)
    until(lambda: not archive._requests._deleted)
    # Expect none on the disk but those that came later, and the index to count what is there
    assert bytes_on_disk(archive, b"<key>3</key>") == 30
    until(lambda: archive.status()["indexed"] == 1_300)
    assert counted(archive, "/m/key = 3") == 30
    assert counted(archive) == 1_200
    assert archive.status()["troubles"] == []
    archive.close()
    again = opened(workers=0, volume=SMALL)
    assert len(found(again, asking())) == 1_200


def test_what_is_deleted_needs_no_room_when_its_volume_is_sealed(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a full file of the log, and a disk without room for a pack of its objects
    def full(of: Any, records: Any, folder: Path, *, gone: set[int], **stores: Any) -> Path:
        if sum(record.position not in gone for record in records) > 5:
            raise StorageError("the disk is full")
        return seal(of, records, folder, gone=gone, **stores)

    monkeypatch.setattr("jbi_pubsub.archive.upkeep.seal", full)
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.AGAIN_SECONDS", 0.05)
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 150)
    # When nearly all of them are deleted, by a record in another file; Expect that to make room
    assert archive.delete(asking("/m/n > 3 and /m/n < 149")) == 145
    sealed(archive)
    assert found(archive, asking()) == [1, 2, 3, 149, 150]
    assert (counted(archive), archive.status()["troubles"]) == (5, [])
    archive.close()
    again = opened(workers=0, volume=SMALL)
    assert found(again, asking()) == [1, 2, 3, 149, 150]


def test_where_giving_up_fails_nothing_is_counted(opened: Callable[..., Archive]) -> None:
    # Given an archive whose worker could not make room on a disk that fails
    archive = opened(workers=0, volume=SMALL)
    going = GivenUp(1, 9, 9, {"full": 9}, True, True)
    # When it says so; Expect nothing to be counted
    archive._requests._hear(Retained(0, (going,), report(StorageError("input/output error"))))
    assert "expired_full" not in archive.status()["counters"]
    # and what went with another message to be counted
    archive._requests._hear(Retained(0, (going,)))
    assert archive.status()["counters"]["expired_full"] == 9


def test_a_summary_with_a_bit_turned_is_made_anew(opened: Callable[..., Archive]) -> None:
    # Given a pack and what is said of it beside it
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 200)
    sealed(archive)
    archive.close()
    folder = archive.folder
    path = min((folder.path / "packs").glob("*.pack"))
    file = path.with_suffix(SUMMARY)
    said, whole = holdings_of(path, folder.archive), file.read_bytes()
    # When any bit of it is turned, or it ends anywhere
    for place in range(len(whole)):
        for damaged in (whole[:place], whole[:place] + bytes((whole[place] ^ 1 << place % 8,)) + whole[place + 1 :]):
            file.write_bytes(damaged)
            # Expect what rules go by to be what is in the pack, and the file to say so again
            assert holdings_of(path, folder.archive) == said
            assert file.read_bytes() == whole


@pytest.mark.processes
def test_a_worker_that_is_killed_while_it_seals_loses_nothing(opened: Callable[..., Archive]) -> None:
    # Given volumes, deletions, and a worker that is killed at any time
    rng = random.Random(8)
    archive = opened(workers=1, volume=SMALL)
    expected: list[int] = []
    first = 1
    for _ in range(3):
        publish(archive, 400, first=first)
        expected += range(first, first + 400)
        first += 400
        gone = rng.choice(expected)
        archive.delete(asking(after=gone - 1, up_to=gone))
        expected.remove(gone)
        time.sleep(rng.random() * 0.3)
        pid = archive.status()["worker"]["pid"]
        if pid:
            os.kill(pid, signal.SIGKILL)
    sealed(archive)
    # Expect each object once
    assert found(archive, asking()) == expected
    until(lambda: archive.status()["indexed"] == first - 1)
    assert counted(archive) == len(expected)
    archive.close()
    again = opened(workers=0, volume=SMALL)
    assert found(again, asking()) == expected
    assert again.status()["troubles"] == []


def test_a_damaged_file_of_the_log_is_set_aside_when_the_rest_of_it_is_sealed(opened: Callable[..., Archive]) -> None:
    # Given a closed file of the log with a damage
    archive = opened(workers=0, volume=1 << 20)
    publish(archive, 300)
    archive.close()
    log = archive.folder.path / "log"
    (file,) = log.glob("*.log")
    data = bytearray(file.read_bytes())
    at = data.index(b"<n>100</n>")
    data[at] ^= 1
    file.write_bytes(data)
    again = opened(workers=0, volume=SMALL)
    publish(again, 300, first=301)
    # When it is sealed
    sealed(again)
    # Expect all but that object, the file beside, and the trouble to be told
    left = [n for n in range(1, 601) if n != 100]
    assert found(again, asking()) == left
    assert [path.name for path in log.glob("*.damaged")] == [f"{file.name}.damaged"]
    until(lambda: any("damaged between 99 and 101" in each for each in again.status()["troubles"]))


def test_a_damaged_pack_costs_what_is_in_it_and_is_told(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    archive.close()
    packs = sorted((archive.folder.path / "packs").glob("*.pack"))
    firsts = [int(path.stem) for path in packs]
    packs[1].write_bytes(b"?" * 100)
    again = opened(workers=0, volume=SMALL, is_indexed=False)
    assert found(again, asking()) == [n for n in range(1, 1_001) if not firsts[1] <= n < firsts[2]]
    assert again.retain(is_dry=True) == ()
    again.delete(asking(up_to=3))
    publish(again, 200, first=1_001)
    until(lambda: len(list((again.folder.path / "log").glob("*.log"))) == 1)
    assert found(again, asking(up_to=10)) == list(range(4, 11))


def test_rules_give_up_what_is_old_after_a_dry_run_said_so(opened: Callable[..., Archive]) -> None:
    # Given packs, and a rule that keeps the newest 350 objects
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    until(lambda: archive.status()["indexed"] == 1_000)
    assert archive.retain() == ()
    archive.follow([KeepRule(types=("other",), age=1.0), KeepRule(types=("tra*",), count=350)])
    # When it is asked what would go
    said = archive.retain(is_dry=True)
    assert found(archive, asking()) == list(range(1, 1_001))
    done = archive.retain()
    # Expect that to go: whole volumes, and of one the half or more, or nothing
    assert done == said
    left = found(archive, asking())
    assert left == list(range(left[0], 1_001))
    assert 350 <= len(left) <= 350 + 100
    gone = sum(going.reasons["count"] for going in done if going.is_done)
    assert gone == 1_000 - len(left)
    assert archive.status()["counters"]["expired_count"] == gone
    assert archive.expired(asking()) == archive.expired(asking(up_to=gone)) == gone
    assert archive.expired(asking(after=gone)) == 0
    assert archive.expired(asking(after=gone - 10)) == 10
    assert archive.expired(HistoryQuery(scopes=(Scope(TypeName("track"), registrations=("r-2",)),))) == 0
    assert archive.expired(HistoryQuery(scopes=(Scope(TypeName("other")),))) == 0
    # and nothing to be missing
    assert counted(archive) == len(left)
    publish(archive, 10, first=1_001)
    assert found(archive, asking(after=1_000)) == list(range(1_001, 1_011))
    assert archive.status()["troubles"] == []
    assert archive.last_sequence("r-1") == 1_010


@pytest.mark.parametrize("fails", [False, True])
def test_full_files_go_though_the_last_object_has_just_been_written(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    # Given rules that keep the newest 350 objects, packs, and files that nobody has looked at since they were full
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 500)
    sealed(archive)
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 3_600.0)
    archive.retain(is_dry=True)  # it looks no more of itself
    publish(archive, 500, first=501)
    archive.follow([KeepRule(count=350)])
    if fails:

        def seal(*_: object) -> None:
            raise StorageError("no space left on device")

        monkeypatch.setattr(Upkeep, "_seal", seal)
    # When they are applied at once
    archive.retain()
    # Expect all beyond to go, but for what shares a file with what stays; where they can't be sealed, what is in packs
    left = found(archive, asking())
    assert left == list(range(left[0], 1_001))
    assert (350 <= len(left) <= 450) is not fails
    assert left[0] > 350


def test_a_volume_in_the_middle_of_which_nothing_is_left_is_not_missing(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL)
    for first in range(1, 1_001, 100):
        kind = "other" if first == 301 else "track"
        run = [(n, parcel(n, kind=kind)) for n in range(first, first + 100)]
        archive.append(run, 1_000.0)
        archive.sync(first + 99)
    sealed(archive)
    archive.follow([KeepRule(types=("other",), age=1.0)])
    archive.retain()
    left = [n for n in range(1, 1_001) if not 301 <= n <= 400]
    assert found(archive, asking()) == left
    archive.close()
    again = opened(workers=0, volume=SMALL)
    assert found(again, asking()) == left
    assert again.status()["troubles"] == []


def test_what_a_durable_subscription_waits_for_stays(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    archive.follow([KeepRule(types=("*",), age=1.0, until_durables=True)])
    archive.note([Consumer("mine", "me", b"", 500, ends=time.time() + 100)])
    archive.retain()
    left = found(archive, asking())
    assert 400 <= left[0] <= 501
    # When its lease is over
    archive.note([Consumer("mine", "me", b"", 500, ends=1.0)])
    archive.retain()
    # Expect all that is sealed to go
    assert len(found(archive, asking())) < 150


def test_payloads_may_go_before_their_objects(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 300)
    sealed(archive)
    archive.follow([KeepRule(types=("*",), payload_age=1.0)])
    (first, *_) = archive.retain()
    assert first.reasons == {"payload_age": first.objects}
    reader = Reader(archive, asking(up_to=10))
    assert reader.all() == list(range(1, 11))
    for each in reader.found:
        obj = Parcel.received(each.data).unpacked()
        assert (obj.payload, obj.platform.payload_length) == (b"", 50)
    assert archive.retain() == ()  # not twice


def test_the_newest_of_each_key_stays(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    archive.follow([KeepRule(types=("*",), latest_by="/m/key")])
    archive.retain()
    assert found(archive, asking(latest_by="/m/key")) == list(range(991, 1_001))
    assert len(found(archive, asking())) < 200


def test_over_a_quota_objects_are_refused_or_the_oldest_go(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=SMALL, max_payload_bytes=60_000)

    def put(archive: Archive, first: int) -> None:
        """Payloads that don't get smaller."""
        run = [(n, pack(parcel(n, payload=500).head, os.urandom(500))) for n in range(first, first + 50)]
        archive.append(run, 1_000.0)
        archive.sync(first + 49)

    def publish_many() -> None:
        for first in range(1, 5_000, 50):
            archive.room(500)
            put(archive, first)

    with pytest.raises(StorageError, match=r"payloads take [67]\d,\d{3} of 60,000 bytes"):
        publish_many()
    kept = archive.end
    assert 50 < kept <= 150
    archive.close()
    # also after a restart
    again = opened(workers=0, volume=SMALL, max_payload_bytes=60_000)
    with pytest.raises(StorageError, match="payloads take"):
        again.room(60_000)
    again.close()
    dropping = opened(workers=0, volume=SMALL, max_payload_bytes=60_000, full="drop_oldest")
    for first in range(kept + 1, 1_000, 50):
        until(lambda: dropping.room(500) == 0.0)
        put(dropping, first)
    until(lambda: dropping.status()["payload_bytes"] <= 60_000)
    assert dropping.status()["counters"]["expired_full"] > 100
    left = found(dropping, asking())
    assert left == list(range(left[0], dropping.end + 1))
    until(lambda: dropping.expired(asking()) == left[0] - 1)


@pytest.mark.long
def test_a_quota_that_is_smaller_than_a_file_of_the_log_is_kept(opened: Callable[..., Archive]) -> None:
    # Given an archive that may have 10 MB of payloads, while a file of its log may have 64 MB
    archive = opened(workers=0, volume=64 << 20, max_payload_bytes=10_000_000, full="drop_oldest")
    # When more than that comes
    for position in range(1, 61):
        until(lambda: archive.room(1_000_000) == 0.0)
        archive.append([(position, pack(parcel(position, payload=1_000_000).head, os.urandom(1_000_000)))], 1_000.0)
        # Expect the oldest to give way in time
        assert archive.status()["payload_bytes"] <= 10_100_000
    archive.sync(60)
    left = found(archive, asking())
    assert left == list(range(left[0], 61))
    assert len(left) >= 5


def test_what_can_not_be_read_gives_way_as_well(opened: Callable[..., Archive]) -> None:
    # Given packs, the two oldest of which are damaged: one as a whole, one in a part
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    until(lambda: archive.status()["indexed"] == 1_000)
    archive.close()
    folder = archive.folder.path / "packs"
    first, second, third, *_ = sorted(folder.glob("*.pack"))
    first.write_bytes(b"?" * 100)
    data = bytearray(second.with_suffix(".meta").read_bytes())
    data[len(data) // 2] ^= 1
    second.with_suffix(".meta").write_bytes(data)
    # When the oldest are to give way, until half is left
    again = opened(workers=0, volume=SMALL)
    until(lambda: again.status()["packs"] > 5)
    again.close()
    half = again.status()["metadata_bytes"] // 2
    dropping = opened(workers=0, volume=SMALL, max_metadata_bytes=half, full="drop_oldest")
    until(lambda: "expired_full" in dropping.status()["counters"])
    until(lambda: not third.exists())
    # Expect these to go first, with all that is of them, and the rest to be found
    assert [path for path in folder.iterdir() if path.stem.rstrip("b") in (first.stem, second.stem)] == []
    left = found(dropping, asking())
    assert left == list(range(left[0], 1_001))
    assert left[0] > int(third.stem)
    until(lambda: dropping.status()["indexed"] == 1_000)
    until(lambda: counted(dropping) == len(found(dropping, asking())))


@pytest.mark.row("G-197")
@pytest.mark.long
def test_sixteen_threads_that_publish_delete_ask_and_retain(opened: Callable[..., Archive]) -> None:
    # Given an archive of small volumes, and threads that do all of it at once
    archive = opened(workers=0, volume=SMALL)
    lock, position, deleted = threading.Lock(), [0], set()
    failures: list[BaseException] = []
    end = time.monotonic() + 0.5

    def guarded(what: Callable[[int], None]) -> Callable[[int], None]:
        def run(which: int) -> None:
            try:
                while time.monotonic() < end:
                    what(which)
            except BaseException as exc:  # noqa: BLE001  # shown below
                failures.append(exc)

        return run

    sequences: dict[int, int] = {}

    def publishing(which: int) -> None:
        with lock:
            first = sequences.get(which, 0) + 1
            run = [(position[0] + n, parcel(first + n - 1, registration=f"r-{which}")) for n in range(1, 11)]
            position[0] += 10
            sequences[which] = first + 9
            archive.append(run, 1_000.0)
        archive.sync(run[-1][0])
        time.sleep(0.01)

    def deleting(which: int) -> None:
        at = random.randrange(1, position[0] + 2)
        if archive.delete(asking(after=at - 1, up_to=at), timeout=100):
            deleted.add(at)
        time.sleep(0.02)

    def asking_all(which: int) -> None:
        before = set(deleted)
        positions = found(archive, asking("/m/key = 3"))
        assert positions == sorted(set(positions))
        assert not before & set(positions)

    def retaining(which: int) -> None:
        archive.retain(timeout=100)
        time.sleep(0.1)

    work: list[Callable[[int], None]] = [publishing] * 6 + [deleting] * 4 + [asking_all] * 5 + [retaining]
    threads = [threading.Thread(target=guarded(what), args=(n,)) for n, what in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    # Expect none to fail, and what is there in the end to be what was not deleted
    assert failures == []
    assert found(archive, asking()) == [n for n in range(1, position[0] + 1) if n not in deleted]
    assert archive.status()["troubles"] == []
    assert archive.status()["queries"] == 0


def test_sealing_on_a_disk_that_fails_goes_on_later(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from jbi_pubsub.archive import upkeep

    fails = [True]
    real: Any = upkeep.seal

    def seal(*args: Any, **named: Any) -> Path:
        if fails[0]:
            raise StorageError("No space left on device")
        return real(*args, **named)  # type: ignore[no-any-return]

    monkeypatch.setattr(upkeep, "seal", seal)
    monkeypatch.setattr(upkeep, "AGAIN_SECONDS", 0.02)
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 500)
    assert found(archive, asking()) == list(range(1, 501))
    assert len(list((tmp_path / "archive" / "log").glob("*.log"))) > 1
    fails[0] = False
    sealed(archive)
    assert found(archive, asking()) == list(range(1, 501))


def test_what_was_deleted_is_counted_once_for_who_has_not_had_it(opened: Callable[..., Archive]) -> None:
    # Given objects in packs and in the log
    archive = opened(workers=0, volume=SMALL)
    publish(archive, 1_000)
    sealed(archive)
    # When some of them are deleted
    assert archive.delete(asking("/m/key = 3", up_to=600)) == 60
    # Expect so many to be missing to who has had none of them, and the rest to who has had a part
    assert archive.expired(asking()) == archive.expired(asking(up_to=600)) == 60
    assert archive.expired(asking(after=300)) == 30
    assert sum(archive.expired(asking(after=n, up_to=n + 7)) for n in range(0, 1_001, 7)) == 60
    assert archive.expired(HistoryQuery(scopes=(*asking().scopes, *asking("/m/n = 1").scopes))) == 60
    assert archive.expired(HistoryQuery(scopes=(Scope(TypeName("other")),))) == 0
    # also after a restart, and when rules give up all of what they lay among
    archive.close()
    again = opened(workers=0, volume=SMALL)
    assert again.expired(asking()) == 60
    again.follow([KeepRule(types=("*",), count=1)])
    again.retain()
    left = found(again, asking())
    assert again.expired(asking()) == 1_000 - len(left)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
@pytest.mark.parametrize("predicate", ["", "/m/n > 0 or /m/n = 0"])
@pytest.mark.long
def test_who_asks_while_rules_give_up_has_each_object_or_its_loss(
    opened: Callable[..., Archive], workers: int, predicate: str
) -> None:
    # Given a query of 2,000 objects that has had a hundred, with others found that wait
    archive = opened(workers=workers, volume=SMALL)
    publish(archive, 2_000)
    sealed(archive)
    until(lambda: archive.status()["indexed"] == 2_000)
    reader = Reader(archive, asking(predicate))
    last = 0
    while last < 100:
        last = reader.some(10)[-1].position
    until(lambda: len(reader.results._waiting) > 100)
    # When the rules take all but the newest 500
    archive.follow([KeepRule(types=("*",), count=500)])
    archive.retain()
    # Expect all that it does not get from then on to be counted as given up
    missing = set(range(1, 2_001)) - set(reader.all())
    assert len(missing) > 1_000
    assert archive.expired(asking(after=last)) == len(missing)
