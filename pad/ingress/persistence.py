"""Objects that are kept: in buffers for late joiners, in the archive, and as mail on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jbi_pubsub.core.errors import JbiError, StorageError
from jbi_pubsub.core.info_object import Cause, Parcel
from jbi_pubsub.pad.ingress.stages import Stages
from jbi_pubsub.pad.mail.writer import MailWriter
from jbi_pubsub.pad.matching.recent import RecentObject
from jbi_pubsub.pad.matching.registration import Registration, Topic

if TYPE_CHECKING:
    from jbi_pubsub.pad.past.syncs import Synced

Refused = list[tuple[Parcel, JbiError]]
"""Objects that were not taken, each with the reason."""


class Persistence:
    """See the module. Safe from several threads."""

    def __init__(self, stages: Stages, mail: MailWriter, clock: Callable[[], float]) -> None:
        self.buffers = stages.buffers
        self._archive = stages.archive
        self.archives = stages.archive is not None
        """Whether `sync` is to be told what was taken."""
        self._mail = mail
        self._clock = clock

    def keep(
        self, registration: Registration, topic: Topic, run: Sequence[Parcel], refused: Refused
    ) -> Sequence[RecentObject] | None:
        """Objects with their positions, in the buffer, and in the archive if their registration is kept there; None:
        that could not be, and they are refused."""
        if self._archive is None or registration.archived is None:
            return self.buffers.keep(topic.buffer, run, registration.judgement, self._clock())
        try:
            return self._archive.keep(registration, run, self._clock())
        except StorageError as exc:
            registration.totals.refused += len(run)
            refused += [(parcel, exc) for parcel in run]
            return None

    def sync(self, taken: Sequence[Parcel] = (), *, comes_again: bool = False) -> Refused:
        """Return when the mail of all objects published before is on disk, where it is kept, and those of `taken` that
        are archived, which were delivered; which of them never will be, with StorageError. `comes_again`: some were
        taken before, perhaps just now, by a connection that has broken: all that was appended is waited for."""
        if self._archive is not None:
            self._archive.offered(taken)
        self._mail.sync()
        return [*self._archive.sync(taken, comes_again=comes_again)] if self._archive is not None else []

    def when_archived(self, taken: Sequence[Parcel | int], told: Synced) -> bool:
        """Have `told` called, from another thread, when those objects are on disk that are archived; False: none is.
        They were delivered."""
        if self._archive is None:
            return False
        parcels = [each for each in taken if isinstance(each, Parcel)]
        self._archive.offered(parcels)
        last = max((each.position for each in parcels), default=0)
        if last:
            self._archive.when_synced(last, told)
        return last > 0

    @property
    def mails(self) -> int:
        """Number of the last mail that is to be on disk; see `is_synced`."""
        return self._mail.offered

    def lose(self, topic: Topic, cause: Cause, count: int, since: float = 0.0) -> int:
        """So many objects of a topic never came, which late joiners are told that stood then (0.0: now); the position
        up to which they know."""
        return self.buffers.lose(topic.buffer, cause, count, since or self._clock())

    def is_synced(self, mail: int) -> bool:
        """Whether the mail up to that number is on disk, or lost."""
        return self._mail.is_durable(mail)
