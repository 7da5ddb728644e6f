"""Asking an archive: what a predicate finds is there, all of it, once, in order, whoever dies meanwhile."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kept import Reader, asking, found, parcel, publish, until

from jbi_pubsub.archive import engine
from jbi_pubsub.archive.desk import Desk, Setup, Synced
from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.archive.requests import UNINDEXED_MOST
from jbi_pubsub.core.errors import BackPressureError, PredicateError, StorageError
from jbi_pubsub.core.info_object import Parcel, TypeName

pytestmark = pytest.mark.processes

TRACK = TypeName("track", "1.0")
BOTH = pytest.mark.parametrize("workers", [0, 1])


@BOTH
def test_a_query_finds_what_was_synced_before_it_and_nothing_later(
    opened: Callable[..., Archive], workers: int
) -> None:
    # Given objects over several volumes, some of them later than the query
    archive = opened(workers=workers)
    publish(archive, 1_000)
    archive.append([(1_001, parcel(1_001))], 5_000.0)
    reader = Reader(archive, asking("/m/key = 3"))
    archive.sync(1_001)
    publish(archive, 100, first=1_002)
    # Expect each that matches, in order
    assert reader.all() == list(range(3, 1_001, 10))
    progress = reader.results.progress()
    assert (progress.state, progress.matched, progress.error) == ("finished", 100, "")
    assert Parcel.received(reader.found[0].data).unpacked().payload == b"p" * 50
    # in whatever order and part
    until(lambda: archive.status()["indexed"] == 1_101)
    assert found(archive, asking("/m/key = 3", order="newest", limit=3)) == [1_093, 1_083, 1_073]
    assert found(archive, asking(since=500.0, until=502.0)) == [500, 501, 502]
    assert found(archive, asking(after=700, up_to=703)) == [701, 702, 703]
    assert found(archive, asking(latest_by="/m/key")) == list(range(1_092, 1_102))
    assert found(archive, asking(object_ids=("1" + f"{7:012x}",))) == [7]
    assert found(archive, asking("//nothing")) == []
    # and counted without being taken
    counting = Reader(archive, asking("/m/key = 3"), count_only=True)
    assert counting.all() == []
    assert counting.results.progress().matched == 110


def test_what_is_asked_while_the_first_worker_starts_is_answered(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive whose worker takes its time to start
    may_start = threading.Event()
    popen = subprocess.Popen

    def slowly(*arguments: Any, **options: Any) -> Any:
        assert may_start.wait(60.0)
        return popen(*arguments, **options)

    monkeypatch.setattr("jbi_pubsub.archive.worker.subprocess.Popen", slowly)
    archive = opened(workers=1)
    publish(archive, 20)
    reader = Reader(archive, asking("/m/key = 3"))
    # When it is asked for more than objects before it has
    with ThreadPoolExecutor(2) as pool:
        explained = pool.submit(archive.explain, asking())
        retained = pool.submit(archive.retain)
        until(lambda: len(archive._requests._questions) == 2)
        may_start.set()
        # Expect answers: none has died
        assert explained.result(30).objects == 20
        assert retained.result(30) == ()
    assert reader.all() == [3, 13]


@pytest.mark.parametrize("first", ["a query", "many objects", "another file"])
def test_a_worker_is_started_when_there_is_something_to_do(opened: Callable[..., Archive], first: str) -> None:
    # Given an archive with some objects, which was closed and opened again, and nobody who asks
    archive = opened(workers=1, volume=1 << 20)
    publish(archive, 500)
    archive.close()
    archive = opened(workers=1, volume=1 << 20)
    publish(archive, 400, first=501)
    # Expect no process, which is no trouble
    archive._requests.tell_synced()
    status = archive.status()
    assert (status["worker"]["pid"], status["worker"]["starts"], status["worker"]["is_running"]) == (0, 0, True)
    assert (status["synced"], status["indexed"]) == (900, 0)
    # When somebody asks, or more have come than are read in a moment, or another file is to be sealed
    if first == "a query":
        assert found(archive, asking("/m/n > 895")) == [896, 897, 898, 899, 900]
    elif first == "many objects":
        publish(archive, UNINDEXED_MOST - 900, first=901)
    else:
        archive.close()
        archive = opened(workers=1, volume=5_000)
        publish(archive, 90, first=901)
    # Expect all to be indexed
    until(lambda: archive.status()["indexed"] == archive.end)
    assert archive.status()["worker"]["starts"] == 1


def test_what_lies_in_packs_is_known_before_a_worker_is_there(opened: Callable[..., Archive]) -> None:
    # Given packs, and files of the log that are to be sealed
    archive = opened(workers=0, volume=20_000)
    publish(archive, 600)
    until(lambda: (status := archive.status())["packs"] and status["packs"] == status["volumes"] - 1)
    known = {key: archive.status()[key] for key in ("volumes", "packs", "metadata_bytes", "payload_bytes")}
    archive.close()
    # When it is opened with a worker that is not started; Expect the same to be told
    again = opened(workers=1, volume=20_000)
    status = again.status()
    assert {key: status[key] for key in known} == known
    assert status["worker"]["starts"] == 0


def test_without_an_index_the_answers_are_the_same(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, is_indexed=False)
    publish(archive, 500)
    assert found(archive, asking("/m/n > 490")) == list(range(491, 501))
    explained = archive.explain(asking("/m/n > 490"))
    assert (explained.not_indexed, explained.is_exact) == (500, False)
    assert archive.status()["indexed"] == 0


def test_explaining_says_what_the_index_decides(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0)
    publish(archive, 300)
    until(lambda: archive.status()["indexed"] == 300)
    explained = archive.explain(asking("/m/n > 290"))
    assert explained.is_exact
    assert explained.not_indexed == 0
    assert explained.steps[0].rows == 10
    with pytest.raises(PredicateError):
        archive.explain(asking("/m/n >"))


def test_nobody_else_on_the_host_may_read_its_files(opened: Callable[..., Archive], tmp_path: Path) -> None:
    # Given a process that lets others read its files, and an archive with a worker
    before = os.umask(0o022)
    try:
        archive = opened(workers=1)
        publish(archive, 300)
        assert found(archive, asking("/m/n = 5")) == [5]
        until(lambda: archive.status()["indexed"] == 300)
    finally:
        os.umask(before)
    # Expect no file of the archive to be theirs, and least of all the index
    files = [path for path in (tmp_path / "archive").rglob("*") if path.is_file()]
    assert any(path.parent.name == "index" for path in files)
    assert [path for path in files if path.stat().st_mode & 0o077] == []


def test_nothing_piles_up_where_nobody_takes(opened: Callable[..., Archive]) -> None:
    # Given many queries that would find more than they are allowed to have waiting
    archive = opened(workers=0, volume=1 << 20)
    publish(archive, 2_000, payload=2_000)
    readers = [Reader(archive, asking()) for _ in range(20)]
    # When nobody takes anything
    until(lambda: all(len(reader.results._waiting) >= engine.PAGE for reader in readers))
    time.sleep(0.2)
    # Expect each to wait with a page
    assert max(len(reader.results._waiting) for reader in readers) == engine.PAGE
    # and others to get their answer, and these all of theirs
    assert found(archive, asking("/m/n = 1999")) == [1_999]
    assert readers[3].all() == list(range(1, 2_001))
    for reader in readers:
        reader.results.cancel()
        assert reader.results.take(10, 10_000) == []
        assert reader.results.progress().state in ("cancelled", "finished")
    assert archive.status()["queries"] == 0


def test_large_objects_wait_one_by_one(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, volume=8 << 20)
    for position in range(1, 13):
        archive.append([(position, parcel(position, payload=3 << 20))], 1.0)
    archive.sync(12)
    reader = Reader(archive, asking())
    until(lambda: len(reader.results._waiting) > 0)
    time.sleep(0.2)
    assert len(reader.results._waiting) == 1
    assert reader.all() == list(range(1, 13))


def test_too_many_queries_are_refused_and_a_bad_one_says_where(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0, max_queries=3)
    publish(archive, 600)
    readers = [Reader(archive, asking()) for _ in range(3)]
    with pytest.raises(BackPressureError, match="3 queries of the archive are open"):
        archive.open(asking(), lambda: None)
    readers[0].results.cancel()
    assert Reader(archive, asking()).all() == list(range(1, 601))
    with pytest.raises(PredicateError, match="prefix"):
        archive.open(asking("x:y"), lambda: None)
    with pytest.raises(PredicateError, match="since"):
        archive.open(asking(since=5.0, until=4.0), lambda: None)


def memory(pid: int | str = "self") -> int:
    """Bytes of it that a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_who_evaluates_queries_has_the_processor_after_those_who_judge_objects(opened: Callable[..., Archive]) -> None:
    # Given an archive with a worker of its own, and a query that no index can answer
    archive = opened(workers=1)
    publish(archive, 200)
    assert found(archive, asking("number(concat(//n, '')) * 2 > 390")) == [196, 197, 198, 199, 200]
    # Expect that to be another process, which the system prefers less
    worker = archive.status()["worker"]["pid"]
    assert worker not in (0, os.getpid())
    assert os.getpriority(os.PRIO_PROCESS, worker) > os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.row("G-199")
@pytest.mark.parametrize("count", [300, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(3_000)])])
def test_many_queries_one_after_the_other_leave_nothing(opened: Callable[..., Archive], count: int) -> None:
    # Given an archive that has answered some, so that all is loaded
    archive = opened(workers=1)
    publish(archive, 50)

    def ask(first: int, last: int) -> None:
        for n in range(first, last):
            reader = Reader(archive, asking(f"/m/n = {n % 50 + 1} and {n} = {n}"))
            if n % 3:
                assert reader.all() == [n % 50 + 1]
            else:
                reader.results.cancel()

    ask(0, 150)
    worker = archive.status()["worker"]["pid"]
    before = memory(), memory(worker)
    # When many more are asked, each another one, some of them cancelled
    ask(150, 150 + count)
    # Expect none to be known any more, and the delegate and its worker to be as large as before
    assert archive.status()["queries"] == 0
    assert found(archive, asking("/m/n = 5")) == [5]
    assert archive.status()["worker"]["pid"] == worker
    assert [max(0, now - was) >> 20 for was, now in zip(before, (memory(), memory(worker)), strict=True)] <= [8, 24]


def kill(archive: Archive) -> None:
    """Kill the worker, once it runs."""
    until(lambda: archive.status()["worker"]["pid"] != 0)
    os.kill(archive.status()["worker"]["pid"], signal.SIGKILL)


def test_queries_go_on_where_they_were_when_the_worker_dies(opened: Callable[..., Archive]) -> None:
    # Given queries on their way: either order, all objects or the newest of each key, with a limit and without
    rng = random.Random(3)
    archive = opened(workers=1, volume=1 << 20)
    publish(archive, 1_500)
    readers = {
        (order, latest_by, limit): Reader(archive, asking(order=order, latest_by=latest_by, limit=limit))
        for order in ("oldest", "newest")
        for latest_by in ("", "/m/n")
        for limit in (0, 1_200)
    }
    count = Reader(archive, asking("/m/key = 3"), count_only=True)
    # When the worker is killed at some times
    for _ in range(3):
        for reader in readers.values():
            for _ in range(rng.randrange(1, 6)):
                reader.some(rng.randrange(1, 200))
        kill(archive)
        # Expect publishing to notice nothing
        position = archive.end + 1
        archive.append([(position, parcel(position))], 1.0)
        archive.sync(position)
    # and each to find all, once, in order
    for (order, _, limit), reader in readers.items():
        expected = list(range(1, 1_501)) if order == "oldest" else list(range(1_500, 0, -1))
        assert reader.all() == expected[: limit or 1_500]
        assert reader.results.progress().state == "finished"
    count.all()
    assert count.results.progress().matched == 150
    assert archive.status()["worker"]["starts"] >= 3


def test_a_query_that_kills_its_worker_fails_in_order_and_the_others_go_on(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a worker that dies whenever it begins
    monkeypatch.setattr("jbi_pubsub.archive.worker.LONGEST_PAUSE", 0.1)
    archive = opened(workers=1)
    publish(archive, 100)
    assert found(archive, asking("/m/n = 5")) == [5]
    environment = {"PYTHONPATH": "/nowhere", "PATH": "/nowhere"}
    with monkeypatch.context() as patch:
        patch.setattr("jbi_pubsub.archive.worker.environment", lambda: environment)
        reader = Reader(archive, asking("/m/n = 6"))
        patch.setattr("sys.executable", "/bin/false")
        kill(archive)
        # Expect the query to say so
        reader.all()
        progress = reader.results.progress()
        if progress.state == "failed":  # else it was answered before
            assert "has died" in progress.error
        starting = Reader(archive, asking())
        until(lambda: starting.results.progress().state == "failed")
    # and the next ones to be answered when it lives again
    assert found(archive, asking("/m/n = 7")) == [7]


def test_nobody_else_has_the_folder_until_the_worker_is_gone(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=1)
    publish(archive, 10)
    assert found(archive, asking()) == list(range(1, 11))
    pid = archive.status()["worker"]["pid"]
    archive.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    again = opened(workers=1)
    assert found(again, asking()) == list(range(1, 11))


def test_a_closed_archive_ends_its_queries(opened: Callable[..., Archive]) -> None:
    archive = opened(workers=0)
    publish(archive, 2_000)
    reader = Reader(archive, asking())
    reader.some(1)
    archive.close()
    reader.all()
    assert reader.results.progress().state in ("failed", "finished")
    with pytest.raises(StorageError, match="closed"):
        archive.open(asking(), lambda: None)


def test_an_index_that_is_damaged_is_made_anew_while_answers_go_on(
    opened: Callable[..., Archive], tmp_path: Path
) -> None:
    archive = opened(workers=0)
    publish(archive, 200)
    until(lambda: archive.status()["indexed"] == 200)
    archive.close()
    (file,) = (tmp_path / "archive" / "index").glob("*.duckdb")
    file.write_bytes(b"?" * 5_000)
    again = opened(workers=0)
    assert found(again, asking("/m/n = 77")) == [77]
    until(lambda: again.status()["indexed"] == 200)
    again.rebuild()
    assert found(again, asking("/m/n = 77")) == [77]
    until(lambda: again.status()["indexed"] == 200)


@BOTH
def test_what_is_deleted_is_in_no_answer_and_does_not_come_back(opened: Callable[..., Archive], workers: int) -> None:
    # Given objects, and a query that has found some and is on its way
    archive = opened(workers=workers)
    publish(archive, 1_000)
    archive.append([(1_001, parcel(1_001, own_id="mine"))], 1.0)
    archive.sync(1_001)
    until(lambda: archive.status()["indexed"] == 1_001)
    reader = Reader(archive, asking())
    until(lambda: len(reader.results._waiting) >= 100)
    # When some are deleted
    assert archive.delete(asking("/m/key = 3")) == 100
    assert archive.delete(asking(object_ids=("mine",))) == 1
    # Expect none of them anywhere, neither in what waits there
    left = [n for n in range(1, 1_001) if n % 10 != 3]
    assert reader.all() == left
    assert found(archive, asking()) == left
    assert found(archive, asking("/m/key = 3")) == []
    count = Reader(archive, asking("/m/key = 3"), count_only=True)
    count.all()
    assert count.results.progress().matched == 0
    assert found(archive, asking(latest_by="/m/key", order="newest", limit=1)) == [1_000]
    # nor a late copy, nor after a restart
    archive.append([(1_002, parcel(1_002, own_id="mine")), (1_003, parcel(1_003))], 1.0)
    archive.sync(1_003)
    archive.close()
    again = opened(workers=workers)
    assert found(again, asking()) == [*left, 1_003]
    assert again.delete(asking("/m/key = 3", up_to=1_000)) == 0
    # nor when the index is made anew
    until(lambda: again.status()["indexed"] == 1_003)
    again.rebuild()
    assert found(again, asking()) == [*left, 1_003]
    until(lambda: again.status()["indexed"] == 1_003)
    assert found(again, asking("/m/key = 3")) == [1_003]
    assert found(again, asking(object_ids=("mine",))) == []


@BOTH
@pytest.mark.parametrize("what", ["_log", "_catalogue"])
def test_a_deletion_that_can_not_be_written_deletes_nothing(
    opened: Callable[..., Archive], workers: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an archive with an index
    archive = opened(workers=workers)
    publish(archive, 20)
    archive.append([(21, parcel(21, own_id="mine"))], 1.0)
    archive.sync(21)

    def full(*_given: object) -> None:
        raise StorageError("the disk is full")

    # When something is deleted, and that can't be written
    with monkeypatch.context() as patch:
        patch.setattr(getattr(archive, what), "delete", full)
        with pytest.raises(StorageError, match="is full"):
            archive.delete(asking(object_ids=("mine",)))
    # Expect it to be there, also by the index, and not to be known as deleted or lost
    assert found(archive, asking()) == list(range(1, 22))
    assert archive.are_deleted(["mine"]) == set()
    assert archive.expired(asking()) == 0
    # Expect it to be deleted, and lost once, when it can
    assert archive.delete(asking(object_ids=("mine",))) == 1
    assert found(archive, asking()) == list(range(1, 21))
    assert archive.expired(asking()) == 1


@pytest.mark.parametrize("memory", [0, 64 << 20])
def test_a_desk_rests_where_there_is_nothing_to_do(opened: Callable[..., Archive], memory: int) -> None:
    # Given an archive with and without an index, of which nothing is asked
    archive = opened(is_indexed=False)
    setup = Setup(str(archive.folder.path), archive.folder.archive, 0, columns=4, memory=memory)
    desk = Desk(setup, lambda _: None)
    # Expect it to wait before it looks again
    try:
        desk.step()
        assert desk.step() > 0.05
    finally:
        desk.close()


def test_a_worker_that_is_stopped_holds_nobody_up_who_publishes_and_goes_on_where_it_was(
    opened: Callable[..., Archive],
) -> None:
    # Given an archive whose worker is stopped in the middle of a query
    archive = opened(workers=1, volume=20_000)
    publish(archive, 600)
    reader = Reader(archive, asking())
    reader.some(50)
    pid = archive.status()["worker"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        # When objects are published, and something is asked
        started = time.monotonic()
        publish(archive, 600, first=601)
        assert time.monotonic() - started < 60
        late = Reader(archive, asking(after=1_190))
        with pytest.raises(StorageError, match="did not answer within"):
            archive.retain(timeout=0.1)
        until(lambda: archive._requests._told == 1_200)
        publish(archive, 20, first=1_201)
        for position in range(20_000):  # as in the course of an hour
            archive._requests._worker.tell(Synced(position % 1_000))
        waiting = sum(isinstance(each, Synced) for each in archive._requests._worker._outbox)  # type: ignore[attr-defined]
    finally:
        os.kill(pid, signal.SIGCONT)
    # Expect no pile of messages, and each query to see what it is to see
    assert waiting < 1_000
    assert reader.all() == list(range(1, 601))
    assert late.all() == list(range(1_191, 1_201))
    assert found(archive, asking()) == list(range(1, 1_221))
    assert archive.status()["worker"]["pid"] == pid
