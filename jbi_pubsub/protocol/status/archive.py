"""The archive of a delegate, in its status."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET

from jbi_pubsub.core.status import Count, MaybeCount, Status, counter, gauge


class WorkerStatus(Status, frozen=True):
    """The thread or process that indexes and answers."""

    kind: str = ""
    """thread or process."""
    is_running: bool = True
    """False: a process has died, and is not there again yet."""
    pid: MaybeCount = UNSET
    """0: none; it is started for a query, or for 1,000 objects."""
    starts: Annotated[MaybeCount, counter("Starts of the process for index and queries", "archive_worker_starts")] = (
        UNSET
    )


class QueriesStatus(Status, frozen=True):
    """Queries and replays of subscriptions."""

    open: Annotated[Count, gauge("Open queries", "archive_queries_open")] = 0
    ended: dict[str, Count] = {}
    """Those that have ended, by the way they did."""
    replays: Annotated[Count, gauge("Subscriptions that catch up with the past", "archive_replays")] = 0
    results: Annotated[Count, counter("Objects that queries and replays have found", "archive_results")] = 0


class IndexStatus(Status, frozen=True):
    """The log, its index, and whoever works on it; sizes in bytes."""

    position: Annotated[Count, gauge("Position of the last archived object", "archive_position")] = 0
    synced: Count = 0
    """Position up to which it is on disk."""
    indexed: Count = 0
    """Position up to which it is indexed."""
    index_bytes: Count = 0
    index_trouble: str = ""
    worker: WorkerStatus = WorkerStatus()
    spare_bytes: Annotated[
        int, gauge("Bytes of the archive's disk that are free beyond its reserve", "archive_spare_bytes")
    ] = 0
    volumes: Annotated[Count, gauge("Files of the archive's log, and packs", "archive_volumes")] = 0
    packs: Count = 0
    metadata_bytes: Count = 0
    payload_bytes: Count = 0


class StorageStatus(IndexStatus, frozen=True):
    """The archive's folder: what it keeps, and what is wrong with it."""

    folder: str = ""
    registrations: Count = 0
    full: Annotated[str, gauge("1: the archive is full", "archive_full")] = ""
    """Why there is no room."""
    counters: dict[str, Count] = {}
    """Objects that were given up or not kept, by reason."""
    consumers: Annotated[Count, gauge("Durable subscriptions", "archive_durables")] = 0
    troubles: list[str] = []
    """Files that are damaged or can't be used."""


class KeptStatus(StorageStatus, frozen=True):
    """An archive, by itself."""

    queries: Count = 0
    """Open ones."""


class ArchiveStatus(StorageStatus, frozen=True):
    """An archive, with what a delegate does with it."""

    refused: Annotated[Count, counter("Objects refused because they could not be stored", "archive_refused")] = 0
    rules: list[str] = []
    """Names of the rules that say what is kept."""
    queries: QueriesStatus = QueriesStatus()
