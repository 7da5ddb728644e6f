"""An archive that all use at once, and one that is asked again and again: right answers, and nothing left behind."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kept import Reader, asking, found, parcel, publish, until

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.history import KeepRule

KEPT = 600


@pytest.mark.row("G-197")
@pytest.mark.long
def test_sixteen_threads_publish_delete_ask_and_retain(opened: Callable[..., Archive]) -> None:
    # Given an archive that keeps the newest objects
    archive = opened(workers=0)
    archive.follow([KeepRule(types=("track",), count=KEPT)])
    appending, knowing = threading.Lock(), threading.Lock()
    deleted: set[int] = set()

    def publishes(_: random.Random) -> None:
        with appending:
            first = archive.end + 1
            archive.append([(n, parcel(n)) for n in range(first, first + 20)], 1_000.0 + first)
        archive.sync(first + 19)
        assert archive.synced >= first + 19

    def asks(chance: random.Random) -> None:
        with knowing:
            gone = set(deleted)
        key = chance.randint(0, 9)
        positions = found(archive, asking(f"/m/key = {key}"))
        # Expect each once, in order, those that match alone, and none that was deleted before it was asked
        assert positions == sorted({n for n in positions if n % 10 == key} - gone)

    def counts(_: random.Random) -> None:
        reader = Reader(archive, asking("/m/key = 3"), count_only=True)
        reader.all()
        assert reader.results.progress().state == "finished"

    def deletes(chance: random.Random) -> None:
        until(lambda: archive.synced > 0)
        number = chance.randint(1, archive.synced)
        archive.delete(asking(f"/m/n = {number}"))
        with knowing:
            deleted.add(number)

    def retains(_: random.Random) -> None:
        archive.retain()

    def again(job: Callable[[random.Random], None], times: int, seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(times):
            job(chance)

    # When all is done at once
    jobs = [*[(publishes, 15)] * 6, *[(asks, 4)] * 5, *[(counts, 4)] * 2, *[(deletes, 5)] * 2, (retains, 4)]
    assert len(jobs) == 16
    with ThreadPoolExecutor(len(jobs)) as pool:
        for each in [pool.submit(again, job, times, seed) for seed, (job, times) in enumerate(jobs)]:
            each.result(100)
    # Expect the newest of them but for the deleted ones, by what is left of the index as well
    assert archive.end == 1_800
    left = found(archive, asking())
    assert set(range(1_800 - KEPT + 1, 1_801)) - deleted <= set(left)
    assert not deleted & set(left)
    until(lambda: archive.status()["indexed"] == 1_800)
    assert found(archive, asking("/m/n > 0")) == left
    assert archive.status()["troubles"] == []


@pytest.mark.row("G-199")
@pytest.mark.long
def test_hundreds_of_queries_leave_nothing_behind(opened: Callable[..., Archive]) -> None:
    # Given an archive, and queries that are taken whole, in part, cancelled twice, or counted
    archive = opened(workers=0)
    publish(archive, 300)
    until(lambda: archive.status()["indexed"] == 300)

    def ask(number: int) -> None:
        which = number % 5
        if which == 0:
            assert found(archive, asking(f"/m/n = {number % 300 + 1}")) == [number % 300 + 1]
        elif which == 1:
            reader = Reader(archive, asking())
            reader.results.cancel()
            reader.results.cancel()
        elif which == 2:
            Reader(archive, asking(f"/m/n > {number % 300}"), count_only=True).all()
        elif which == 3:
            reader = Reader(archive, asking(latest_by="/m/key"))
            reader.some(2)
            reader.results.cancel()
        else:
            assert len(found(archive, asking("//key = 7", limit=3))) == 3

    for number in range(50):
        ask(number)
    files, threads = sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()
    # When there were hundreds more of them
    for number in range(200):
        ask(number)
    # Expect no query, question, file or thread to be left of them
    until(lambda: archive.status()["queries"] == 0)
    assert not archive._requests._questions
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) <= files
    assert threading.active_count() <= threads
