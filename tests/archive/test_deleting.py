"""Deletion of archived objects, as those have to know it who keep copies elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from keeping import MemoryKeeping

from jbi_pubsub.archive.engine import Archive
from jbi_pubsub.core.access import AllowAll
from jbi_pubsub.core.history import HistoryQuery, Scope
from jbi_pubsub.core.info_object import Head, Parcel, object_id_of, pack
from jbi_pubsub.pad.matching.recent import RecentBuffers
from jbi_pubsub.pad.past.archiving import Archiving
from jbi_pubsub.pad.past.deletions import ArchiveDeletions
from jbi_pubsub.pad.past.scopes import ArchiveScopes
from jbi_pubsub.pad.past.service import ArchiveAdministration
from jbi_pubsub.protocol.requests import QueryRequest

from .conftest import TRACK

pytestmark = pytest.mark.processes

UID = "registration-1"


def an_object(number: int) -> Parcel:
    head = Head(object_id_of(UID, number), UID, number, 5.0, TRACK.name, TRACK.version, b"<m><a>1</a></m>", 1)
    return Parcel.received(b"".join(map(bytes, pack(head, b"p").parts)))


def ids(*numbers: int) -> set[str]:
    return {object_id_of(UID, number) for number in numbers}


@pytest.fixture(params=["engine", "memory"])
def archiving(request: pytest.FixtureRequest, opened: Callable[..., Archive]) -> Archiving:
    keeping = opened(workers=0) if request.param == "engine" else MemoryKeeping()
    return Archiving(keeping, RecentBuffers(10.0, 64 << 20))  # type: ignore[arg-type]  # one of the two


def here(archiving: Archiving) -> set[str]:
    found = archiving.answers(HistoryQuery(scopes=(Scope(TRACK),)))
    return {Parcel.received(each.data).head.object_id for each in found}


def deleted(archiving: Archiving, request: QueryRequest) -> tuple[int, set[str]]:
    """Count of what an administrator deletes, and what those are told who are to know."""
    told: list[str] = []

    def note(gone: Sequence[str]) -> None:
        told.extend(gone)

    access = AllowAll()
    administration = ArchiveAdministration(archiving, ArchiveScopes(archiving.keeping, access), access)
    administration.deletions.told = note
    return administration.delete(request, 60.0).count, set(told)


@pytest.mark.row("G-172")
def test_whoever_is_to_know_is_told_the_ids_of_what_was_deleted(archiving: Archiving) -> None:
    archiving.take_in([an_object(number) for number in range(1, 11)], {})

    count, told = deleted(archiving, QueryRequest(type=TRACK.name, object_ids=tuple(ids(3, 4))))

    assert (count, told) == (2, ids(3, 4))
    assert here(archiving) == ids(1, 2, 5, 6, 7, 8, 9, 10)


def test_ids_that_are_named_alone_are_told_although_they_are_not_here(archiving: Archiving) -> None:
    archiving.take_in([an_object(1), an_object(2)], {})

    count, told = deleted(archiving, QueryRequest(object_ids=tuple(ids(2, 3))))

    assert (count, told) == (1, ids(2, 3))
    assert archiving.take_in([an_object(3), an_object(4)], {}).deleted == 1
    assert here(archiving) == ids(1, 4)


@pytest.mark.row("G-172")
def test_what_was_deleted_elsewhere_goes_and_does_not_come(archiving: Archiving) -> None:
    archiving.take_in([an_object(1), an_object(2)], {})

    ArchiveDeletions(archiving).delete_as_told(tuple(ids(2, 3)))

    assert here(archiving) == ids(1)
    done = archiving.take_in([an_object(number) for number in (2, 3, 4)], {})
    assert (done.kept, done.deleted) == (1, 2)
    assert here(archiving) == ids(1, 4)


def test_an_archive_that_has_nothing_refuses_what_was_deleted(archiving: Archiving) -> None:
    ArchiveDeletions(archiving).delete_as_told(tuple(ids(1)))

    assert archiving.take_in([an_object(1)], {}).deleted == 1


def test_without_anybody_who_is_to_know_a_deletion_is_the_archives_own(archiving: Archiving) -> None:
    archiving.take_in([an_object(1), an_object(2)], {})
    access = AllowAll()
    administration = ArchiveAdministration(archiving, ArchiveScopes(archiving.keeping, access), access)

    done = administration.delete(QueryRequest(object_ids=tuple(ids(2, 3))), 60.0)

    assert done.count == 1
    assert here(archiving) == ids(1)
    assert archiving.take_in([an_object(2), an_object(3)], {}).deleted == 1
