"""Deletion of what an archive has, so that those hear of it who keep the same elsewhere, and the other way round."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

import msgspec

from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.pad.past.archiving import IDS_AT_ONCE, Archiving
from jbi_pubsub.protocol.replies import DeletionCount
from jbi_pubsub.protocol.requests import QueryRequest

DELETE_SECONDS: Final = 300.0
"""For objects that were deleted elsewhere."""


class ArchiveDeletions:
    """Deletions from one archive. Any thread."""

    def __init__(self, archive: Archiving) -> None:
        self._archive = archive
        self.told: Callable[[Sequence[str]], None] | None = None
        """Told the ids of what an administrator has deleted here; None: nobody is."""

    def delete(self, request: QueryRequest, query: HistoryQuery, seconds: float) -> DeletionCount:
        """Delete what a query finds, which was planned of that request. Raises StorageError, PredicateError, also when
        there are more."""
        count = 0
        if query.scopes and self.told is None:
            count = self._archive.keeping.delete(query, timeout=seconds)
        elif query.scopes:
            count = self._delete_some(query, time.monotonic() + seconds)
        is_told = self.told is not None and count > 0
        if request.object_ids and self.told is not None and _is_of_ids_alone(request):
            self._archive.keeping.refuse(request.object_ids)  # they may be elsewhere, and on their way here
            self.told(request.object_ids)
            is_told = True
        self._archive.deleted()
        return DeletionCount(count, query.up_to, is_told=is_told)

    def _delete_some(self, query: HistoryQuery, until: float) -> int:
        """So many at a time, so that their ids can be told."""
        count = 0
        found = (Parcel.received(each.data).head.object_id for each in self._archive.answers(query))
        while ids := tuple(islice(found, IDS_AT_ONCE)):
            some = HistoryQuery(scopes=query.scopes, object_ids=ids)
            count += self._archive.keeping.delete(some, timeout=max(0.0, until - time.monotonic()))
            if self.told is not None:
                self.told(ids)
        return count

    def delete_as_told(self, object_ids: Sequence[str]) -> None:
        """Objects were deleted elsewhere: none of them is here any more, nor comes. Nobody is told. Raises
        StorageError."""
        self._archive.keeping.refuse(object_ids)
        scopes = tuple(map(Scope, {source.type for source in self._archive.keeping.sources()}))
        for start in range(0, len(object_ids) if scopes else 0, IDS_AT_ONCE):
            some = HistoryQuery(scopes=scopes, object_ids=tuple(object_ids[start : start + IDS_AT_ONCE]))
            self._archive.keeping.delete(some, timeout=DELETE_SECONDS)
        self._archive.deleted()


def _is_of_ids_alone(request: QueryRequest) -> bool:
    """Whether a query names objects, and says nothing else of them."""
    return msgspec.structs.replace(request, object_ids=None, bound=100, timeout=0.0) == QueryRequest()
