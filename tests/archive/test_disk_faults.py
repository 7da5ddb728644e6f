"""A disk that fails at any step: what was acknowledged is there once, what was refused is not, and it goes on."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from kept import asking, found, parcel, publish, until

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.errors import StorageError
from jbi_pubsub.core.history import Consumer, KeepRule

SMALL = 20_000


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("jbi_pubsub.archive.upkeep.AGAIN_SECONDS", 0.02)
    monkeypatch.setattr("jbi_pubsub.archive.engine.TICK", 0.01)
    monkeypatch.setattr("jbi_pubsub.archive.engine.CHECKPOINT_SECONDS", 0.05)


class Failing:
    """Calls of the system that fail now and then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], number: int, often: float) -> None:
        self.rng = random.Random(f"{names}{number}")
        self.number = number
        self.often = often
        self.is_on = False
        self.failed = 0
        for name in names:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name)))

    def wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            writes = real.__name__ != "open" or (len(given) > 1 and given[1] & (os.O_WRONLY | os.O_RDWR))
            if self.is_on and writes and self.rng.random() < self.often:
                self.failed += 1
                raise OSError(self.number, os.strerror(self.number))
            return real(*given, **named)

        return call


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "number"),
    [
        (("pwritev",), errno.ENOSPC),
        (("pwritev", "fdatasync"), errno.EIO),
        (("fdatasync",), errno.EIO),
        (("fsync",), errno.EIO),
        (("posix_fallocate",), errno.ENOSPC),
        (("open",), errno.EROFS),
        (("open",), errno.EMFILE),
        (("rename", "replace"), errno.EIO),
        (("unlink",), errno.EROFS),
        (("pwritev", "fdatasync", "fsync", "posix_fallocate", "open", "rename", "replace", "unlink"), errno.EIO),
    ],
    ids=lambda each: errno.errorcode[each] if isinstance(each, int) else " ".join(each),
)
def test_whatever_the_disk_refuses_nothing_acknowledged_is_lost_and_nothing_ends(
    opened: Callable[..., Archive], monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], number: int
) -> None:
    # Given an archive on a disk that refuses some of what it is asked
    archive = opened(workers=0, volume=SMALL, is_indexed=False)
    archive.follow([KeepRule(types=("nothing",), age=1.0)])
    failing = Failing(monkeypatch, names, number, 0.5 if names == ("open",) else 0.1)
    kept: list[int] = []
    refused: list[int] = []
    failing.is_on = True
    # When objects are published, some deleted, and durable subscriptions put down
    for first in range(1, 1_501, 10):
        positions = list(range(first, first + 10))
        try:
            archive.append([(n, parcel(n)) for n in positions], 1_000.0)
            archive.sync(positions[-1])
        except StorageError:
            refused += positions
        else:
            kept += positions
        if first % 500 == 1:
            with suppress(StorageError):
                archive.note([Consumer("mine", "me", b"", 0, ends=1.0)])
            with suppress(StorageError):
                archive.retain(timeout=20)
    failing.is_on = False
    assert failing.failed
    assert kept
    # Expect all that was acknowledged to be there once, and nothing that was refused, also after a restart
    publish(archive, 300, first=1_501)
    kept += range(1_501, 1_801)
    until(lambda: len(list((archive.folder.path / "log").glob("*.log"))) == 1)
    assert found(archive, asking()) == kept
    assert archive.last_sequence("r-1") == 1_800
    archive.close()
    again = opened(workers=0, volume=SMALL, is_indexed=False)
    assert found(again, asking()) == kept
    assert again.status()["troubles"] == []
