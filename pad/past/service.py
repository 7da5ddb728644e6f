"""The archive of a delegate or peer publisher, or another platform in its place, as subscribers and administrators ask
it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jbi_pubsub.core.access import AccessPolicy, Subject, denied
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.history import GivenUp, QueryResult, TakenIn
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.pad.past.archiving import Archiving, entries_of
from jbi_pubsub.pad.past.catch_up import ArchiveCatchUps
from jbi_pubsub.pad.past.deletions import ArchiveDeletions
from jbi_pubsub.pad.past.feeds import FeedThread
from jbi_pubsub.pad.past.queries import COUNT_SECONDS, ArchiveSource, QueryContracts, QueryService, QuerySource
from jbi_pubsub.pad.past.remote import RemoteSource
from jbi_pubsub.pad.past.scopes import ArchiveScopes
from jbi_pubsub.protocol.entries import local_name
from jbi_pubsub.protocol.remote import RemoteArchive
from jbi_pubsub.protocol.replies import ArchivedSource, DeletionCount
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.archive import QueriesStatus

RETAIN_SECONDS: Final = 3_600.0
"""That a call to retain takes at most."""


class ArchiveAdministration:
    """Calls to an archive that is here, beside queries. Any thread."""

    def __init__(self, archive: Archiving, scopes: ArchiveScopes, access: AccessPolicy) -> None:
        self._archive = archive
        self.deletions: Final = ArchiveDeletions(archive)
        self._scopes = scopes
        self._access = access

    def delete(self, request: QueryRequest, seconds: float) -> DeletionCount:
        """See HistoryProxy.delete."""
        query = self._scopes.plan(request, None).query
        return self.deletions.delete(request, query, max(0.0, min(seconds, COUNT_SECONDS)))

    def retain(self, seconds: float, *, is_dry: bool) -> tuple[GivenUp, ...]:
        """See HistoryProxy.retain."""
        found = self._archive.keeping.retain(is_dry=is_dry, timeout=max(0.0, min(seconds, RETAIN_SECONDS)))
        return tuple(
            GivenUp(each.first, each.last, each.objects, each.reasons, each.is_whole, each.is_done) for each in found
        )

    def rebuild(self) -> None:
        """See HistoryProxy.rebuild."""
        self._archive.keeping.rebuild()

    def take_in(self, objects: Sequence[bytes], of: Sequence[ArchivedSource]) -> TakenIn:
        """See HistoryProxy.take_in."""
        return self._archive.take_in([Parcel.received(data) for data in objects], {o.uid: o.entries for o in of})

    def describe(self, uids: Sequence[str], caller: Caller) -> tuple[ArchivedSource, ...]:
        """See HistoryProxy.describe."""
        wanted = frozenset(uids)
        found = [source for source in self._archive.keeping.sources() if source.uid in wanted]
        types = {source.type for source in found}
        may = {t for t in types if self._access.allow(caller, "query", Subject(t.name, t.version))}
        return tuple(ArchivedSource(each.uid, entries_of(each.entries)) for each in found if each.type in may)

    def types_called(self, name: str, caller: Caller) -> tuple[str, ...]:
        """See HistoryProxy.types_called."""
        types = {source.type for source in self._archive.keeping.sources()}
        called = [t for t in types if name in (t.name, local_name(t.name))]
        may = {t.name for t in called if self._access.allow(caller, "query", Subject(t.name, t.version))}
        if called and not may:
            raise denied(caller, "query", Subject(name))
        return tuple(sorted(may))


class ArchiveService:
    """See the module. `catch_ups` and `administration`: None where another platform answers."""

    def __init__(
        self,
        archive: Archiving | RemoteArchive,
        make_thread: Callable[[Callable[[QueryResult], Parcel]], FeedThread],
        access: AccessPolicy,
        contracts: QueryContracts,
        numbers: Callable[[], int],
        config: Config,
        wall: Callable[[], float],
    ) -> None:
        """`make_thread(whole)` makes a FeedThread; `numbers` gives the number of a new queue. Raises StorageError."""
        most = config.archive.max_queries
        self.catch_ups: ArchiveCatchUps | None = None
        self.administration: ArchiveAdministration | None = None
        source: QuerySource
        if isinstance(archive, Archiving):
            self._thread = make_thread(archive.whole)
            scopes = ArchiveScopes(archive.keeping, access)
            self.signing_key = archive.signing_key
            source = ArchiveSource(archive.keeping, scopes, self._thread, most)
            self.catch_ups = ArchiveCatchUps(
                archive, scopes, self._thread, source.incarnations, config.lease.durable, contracts.quota, wall
            )
            self.administration = ArchiveAdministration(archive, scopes, access)
        else:
            self._thread = make_thread(lambda found: Parcel.received(found.data))
            source = RemoteSource(archive, access, self._thread)
            self.signing_key = source.signing_key
        self.queries: Final = QueryService(source, self._thread, contracts, numbers, most)

    def ask_again(self) -> None:
        """The access rules have changed."""
        if self.catch_ups is not None:
            self.catch_ups.ask_again()
        self.queries.ask_again()

    def status(self) -> QueriesStatus:
        """Queries, and subscriptions that catch up."""
        replays = self.catch_ups.count if self.catch_ups is not None else 0
        return QueriesStatus(**self.queries.status(), replays=replays, results=self._thread.results)

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, and all that is open without a word."""
        self._thread.stop(timeout)
        self.queries.stop(timeout)
        if self.catch_ups is not None:
            self.catch_ups.stop()
