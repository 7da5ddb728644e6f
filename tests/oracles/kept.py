"""Objects to keep, and a reader of what an archive finds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.archive.opened import OpenQuery
from jbi_pubsub.core.history import HistoryQuery, QueryResult, Scope
from jbi_pubsub.core.info_object import Head, Parcel, TypeName, pack

TRACK = TypeName("track", "1.0")


def parcel(
    sequence: int, *, payload: int = 50, registration: str = "r-1", own_id: str = "", kind: str = "track"
) -> Parcel:
    metadata = b"<m><n>%d</n><key>%d</key></m>" % (sequence, sequence % 10)
    head = Head(own_id, registration, sequence, float(sequence), kind, "1.0", metadata, payload)
    return pack(head, b"p" * payload)


def publish(archive: Archive, count: int, *, payload: int = 50, first: int = 1) -> None:
    """Objects whose numbers are their positions."""
    for start in range(first, first + count, 50):
        run = [(n, parcel(n, payload=payload)) for n in range(start, min(start + 50, first + count))]
        archive.append(run, 1_000.0 + start)
        archive.sync(run[-1][0])


def asking(predicate: str = "", **settings: Any) -> HistoryQuery:
    return HistoryQuery(scopes=(Scope(TRACK, predicate),), **settings)


class Reader:
    """Takes all that a query finds."""

    def __init__(self, archive: Archive, query: HistoryQuery, **options: Any) -> None:
        self.came = threading.Event()
        self.results: OpenQuery = archive.open(query, self.came.set, **options)
        self.found: list[QueryResult] = []

    def some(self, count: int = 100, size: int = 1 << 20, seconds: float = 90.0) -> list[QueryResult]:
        """The next ones; [] when there are no more."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.came.clear()
            found = self.results.take(count, size)
            if found or self.results.is_over:
                self.found += found
                return found
            self.came.wait(0.5)
        raise AssertionError(f"nothing came: {self.results.progress()}")

    def all(self) -> list[int]:
        while self.some():
            pass
        return [each.position for each in self.found]


def found(archive: Archive, query: HistoryQuery) -> list[int]:
    return Reader(archive, query).all()


def until(condition: Callable[[], bool], seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
