"""Registrations of which an archive keeps objects, and how much of each: appended first, and taken over when it is on
disk.

A pure part: whoever asks has a lock of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from jbi_pubsub.archive.catalogue import Kept
from jbi_pubsub.archive.log import Log
from jbi_pubsub.core.history import Source
from jbi_pubsub.core.info_object import Parcel


@dataclass(slots=True)
class Addition:
    """Addition of a run to a registration. `first` and `last` are positions."""

    uid: str
    type: str
    version: str
    sequence: int
    first: int
    last: int
    objects: int
    metadata: int
    payload: int


class ArchivedRegistrations:
    """Registrations with what is kept of each, those included of which nothing is yet."""

    def __init__(self, known: Iterable[Kept]) -> None:
        self._known = {kept.uid: kept for kept in known}
        self._changed: set[str] = set()
        """Ids of those that the catalogue does not know as they are."""
        self._unsettled: deque[Addition] = deque()
        """Additions that are not known to be on disk."""

    def __len__(self) -> int:
        return len(self._known)

    def append(self, additions: Iterable[Addition]) -> None:
        """Note what was written, and is not known to be on disk."""
        self._unsettled.extend(additions)

    def settle(self, log: Log, synced: int) -> None:
        """Take over what is on disk."""
        while self._unsettled and self._unsettled[0].last <= synced:
            addition = self._unsettled.popleft()
            if not log.is_lost(addition.last):
                self.add(addition)

    def add(self, addition: Addition) -> None:
        """Take over an addition that is on disk."""
        known = self._known.get(addition.uid) or Kept(addition.uid, addition.type, addition.version)
        self._known[addition.uid] = msgspec.structs.replace(
            known,
            sequence=max(known.sequence, addition.sequence),
            first=known.first or addition.first,
            last=addition.last,
            objects=known.objects + addition.objects,
            bytes=known.bytes + addition.metadata + addition.payload,
        )
        self._changed.add(addition.uid)

    def last_sequence(self, uid: str, log: Log) -> int:
        """The number of the last object of a registration that is not lost, 0 for none."""
        known = self._known.get(uid)
        last = known.sequence if known is not None else 0
        for addition in self._unsettled:
            if addition.uid == uid and not log.is_lost(addition.last):
                last = max(last, addition.sequence)
        return last

    def unknown(self, sources: Iterable[Source]) -> list[Kept]:
        """Records of those that are not known as they are described."""
        known = self._known
        return [
            Kept(source.uid, source.type.name, source.type.version, source.publisher, source.entries)
            for source in sources
            if (at := known.get(source.uid)) is None or (at.publisher, at.entries) != (source.publisher, source.entries)
        ]

    def describe(self, new: Iterable[Kept]) -> None:
        """Take over publishers and entries, which the catalogue has."""
        for kept in new:
            at = self._known.get(kept.uid) or kept
            self._known[kept.uid] = msgspec.structs.replace(at, publisher=kept.publisher, entries=kept.entries)

    def every(self) -> list[Kept]:
        """All of them."""
        return list(self._known.values())

    def ended_before(self, position: int) -> list[str]:
        """Ids of those of which nothing is kept from a position on."""
        return [uid for uid, known in self._known.items() if known.last < position]

    def forget(self, uids: Iterable[str]) -> None:
        """Know these no more."""
        for uid in uids:
            del self._known[uid]
        self._changed.difference_update(uids)

    def take_changed(self) -> list[Kept]:
        """Those that the catalogue is to be told of, which counts as done: `changed_again` if it was not."""
        changed, self._changed = self._changed, set()
        return [self._known[uid] for uid in changed if uid in self._known]

    def changed_again(self, rows: Iterable[Kept]) -> None:
        """The catalogue could not be told of these."""
        self._changed.update(kept.uid for kept in rows)


def additions_of(run: Iterable[tuple[int, Parcel]]) -> list[Addition]:
    """Additions of a run to its registrations, in the order of their last positions."""
    groups: dict[str, list[tuple[int, Parcel]]] = {}
    for each in run:
        groups.setdefault(each[1].head.registration, []).append(each)
    return sorted(map(_addition, groups.values()), key=lambda addition: addition.last)


def _addition(group: Sequence[tuple[int, Parcel]]) -> Addition:
    """Addition of a run of one registration."""
    (first, parcel), (last, _) = group[0], group[-1]
    head = parcel.head
    sequence = max([parcel.head.sequence for _, parcel in group])
    payload = sum([parcel.payload_size for _, parcel in group])
    metadata = sum([parcel.size for _, parcel in group]) - payload
    return Addition(
        head.registration, head.type_name, head.type_version, sequence, first, last, len(group), metadata, payload
    )
