"""Archive of a delegate or peer publisher, as the rest of pad sees it.

Absent (None) without `[archive] folder`: then nothing here is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, Protocol

from jbi_pubsub.core.history import (
    Consumer,
    Explanation,
    GivenUp,
    HistoryQuery,
    KeepRule,
    Progress,
    QueryResult,
    Source,
)
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.protocol.status.archive import KeptStatus

LOOK_SECONDS: Final = 0.1
"""Between two looks at results of which nobody tells."""


class QueryResults(Protocol):
    """A query that is open. Any thread."""

    def take(self, count: int, size: int) -> list[QueryResult]:
        """Up to `count` results that are there, of about `size` bytes in all, at least one if there is one. Never
        waits: `wake` was or will be called when there are more."""
        ...

    def progress(self) -> Progress:
        """The progress so far. When the state is not "running", nothing more comes behind what is there to take."""
        ...

    def cancel(self) -> None:
        """Give it up: what is there to take may go, and it takes part in no limit from now on."""
        ...


def looks(
    ask: Callable[[Callable[[], None]], QueryResults], count: int = 0, size: int = 0
) -> Generator[tuple[Progress, list[QueryResult]], None, None]:
    """Looks at a query, which `ask` opens, until all has come: its progress, and up to `count` results that were there
    behind that. Waits a little while nothing is there; whoever goes on asking says for how long. The query is given up
    behind the last look; who stops before that closes it."""
    came = threading.Event()
    results = ask(came.set)
    try:
        while True:
            came.clear()
            progress = results.progress()
            found = results.take(count, size) if count else []
            yield progress, found
            if not found and progress.state != "running":
                return
            if not found:
                came.wait(LOOK_SECONDS)
    finally:
        results.cancel()


class EmptyResults:
    """Results of a query that no type is left of."""

    def take(self, count: int, size: int) -> list[QueryResult]:  # noqa: ARG002  # the protocol's
        """None."""
        return []

    def progress(self) -> Progress:
        """At the end from the beginning."""
        return Progress("finished")

    def cancel(self) -> None:
        """Nothing to do."""


class Keeping(Protocol):
    """The archive of a delegate. Safe from several threads. Whoever is given one closes it."""

    @property
    def id(self) -> str:
        """The id of this archive for good, whoever opens it: up to 100 characters; "" if it has none."""
        ...

    @property
    def incarnations(self) -> Mapping[str, int]:
        """This time that the archive is open and the latest ones before, this one first, each with the last position
        of its own, the greatest of this one. An archive that was put back from a copy has not those since; empty: it
        does not tell them apart."""
        ...

    def room(self, size: int, *, may_pass: bool = True) -> float:
        """In how many seconds there may be room to keep an object of so many bytes, 0.0: there is, or it may pass
        without being kept. Raises StorageError: there will be none; never waits."""
        ...

    def append(self, run: Sequence[tuple[int, Parcel]], received: float) -> None:
        """Keep objects under their positions, which go up from one call to the next. Written when it returns, not yet
        on disk. Raises StorageError: none of the run is kept then, nor will it be."""
        ...

    def sync(self, position: int) -> None:
        """Return when what was appended up to that position is on disk. Raises StorageError when it will not be: that,
        and all behind it that was not synced, is gone."""
        ...

    @property
    def synced(self) -> int:
        """The last position that is on disk, or, with another [archive] sync than "batch", that counts as such."""
        ...

    @property
    def end(self) -> int:
        """The last position that was appended, or that a consumer has had: new ones begin behind it."""
        ...

    def register(self, *sources: Source) -> None:
        """Registrations of which objects are to be kept, before their first one; again, when they have other entries.
        All of them at once, or none. Raises StorageError."""
        ...

    def sources(self) -> Sequence[Source]:
        """All of which something is kept. Raises StorageError."""
        ...

    def follow(self, rules: Sequence[KeepRule]) -> None:
        """Give objects up by these rules from now on; without any all are kept."""
        ...

    def consumers(self) -> Sequence[Consumer]:
        """The durable subscriptions. Raises StorageError."""
        ...

    def note(self, consumers: Sequence[Consumer]) -> None:
        """Durable subscriptions as they are now, known ones or new ones; on disk when it returns. Raises
        StorageError."""
        ...

    def cancel(self, name: str, owner: str) -> bool:
        """A durable subscription is over; whether there was one. Raises StorageError."""
        ...

    def expired(self, query: HistoryQuery) -> int:
        """Number of objects of its scopes, above `after` and up to `up_to`, were given up by the rules; whether they
        would have matched its predicates is not known. Raises StorageError."""
        ...

    def last_sequence(self, registration: str) -> int:
        """The number of the last object that is kept of a registration, 0 for none."""
        ...

    def open(self, query: HistoryQuery, wake: Callable[[], None], *, count_only: bool = False) -> QueryResults:
        """Ask; `count_only`: nothing is to be taken, its progress says how many there are. Everything synced by now is
        seen, nothing later: `wake` is called from any thread, perhaps before this returns. Raises PredicateError,
        BackPressureError (too many are open), StorageError."""
        ...

    def explain(self, query: HistoryQuery) -> Explanation:
        """The way that it would be answered. Raises PredicateError, StorageError."""
        ...

    def delete(self, query: HistoryQuery, *, timeout: float) -> int:
        """Delete what a query finds, within so many seconds: gone from every answer when this returns, from the disk
        soon. How many objects. Raises PredicateError, BackPressureError, StorageError, also when there are more."""
        ...

    def refuse(self, object_ids: Sequence[str]) -> None:
        """Hold these for deleted, whether they are here or not: they do not come. Raises StorageError."""
        ...

    def are_deleted(self, object_ids: Sequence[str]) -> set[str]:
        """Which of these were deleted, and do not come back. Raises StorageError."""
        ...

    def retain(self, *, is_dry: bool, timeout: float) -> Sequence[GivenUp]:
        """Give up now what the rules say, or with `is_dry` only say what that would be: of each volume of which
        something goes. Raises StorageError."""
        ...

    def rebuild(self) -> None:
        """Make the index anew, in the background: its `status` says how far it is."""
        ...

    def status(self) -> KeptStatus:
        """Sizes, positions and troubles."""
        ...

    def close(self) -> None:
        """Sync, and end threads and processes."""
        ...


def open_query(keeping: Keeping, query: HistoryQuery, wake: Callable[[], None]) -> QueryResults:
    """Ask an archive, unless there is nothing to ask of it. Raises as `Keeping.open`."""
    return keeping.open(query, wake) if query.scopes else EmptyResults()
