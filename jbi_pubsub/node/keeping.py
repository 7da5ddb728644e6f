"""Objects of other nodes on their way into this one's archive, and deletions there, one behind the other.

They are taken in beside what the delegate does with them: so the archive has them as they were published, and answers
others with them, whoever relays them here and whenever it was decided that they are kept.

Rules:
- Objects of a registration of which it is not decided yet wait, and go when it is. The last ones of a registration that
  others keep wait as well, as one of those may be dead already.
- All that waits is bounded; what there is no room for is told, so that it may be fetched when there is.
- What the disk refuses is tried again. What makes no sense is left out.
- Whoever begins to read the past waits for what had come before, as the delegate has delivered that already.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from jbi_pubsub.core.errors import EntryError, JbiError, ProtocolError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.history import TakenIn
from jbi_pubsub.core.info_object import Parcel
from jbi_pubsub.lookup.entry import EntryRep
from jbi_pubsub.pad.delegate.delegate import Delegate
from jbi_pubsub.pad.past.archiving import Archiving
from jbi_pubsub.pad.past.arrivals import ArrivalWay
from jbi_pubsub.pad.past.deletions import ArchiveDeletions

log = logging.getLogger("jbi_pubsub.node")

BYTES_MOST: Final = 64 << 20
"""Size of the objects that wait for a decision; as much as may wait for the disk."""
OBJECT_BYTES: Final = 500
"""That one takes beside its own."""
AT_ONCE: Final = 1_000
AGAIN_SECONDS: Final = 1.0
"""Until the disk is tried again."""
STOP_SECONDS: Final = 10.0

Entries = tuple[EntryRep, ...]


class DelegateStore:
    """The archive of a delegate, as it is needed here."""

    def __init__(self, delegate: Delegate, archive: Archiving, deletions: ArchiveDeletions) -> None:
        self._delegate, self._archive, self._deletions = delegate, archive, deletions

    def take_in(self, parcels: Sequence[Parcel], entries: dict[str, Entries]) -> TakenIn:
        """Keep objects that are not here, and were not deleted. Raises JbiError."""
        return self._archive.take_in(parcels, entries)

    def delete(self, ids: Sequence[str]) -> None:
        """Objects are to be nowhere any more: none of them is here, nor comes. Raises JbiError."""
        self._deletions.delete_as_told(ids)

    def archives(self, uid: str) -> bool:
        """Whether the delegate here keeps the objects of that registration itself, as they are relayed to it."""
        registration = self._delegate.tables.registrations.get(uid)
        return registration is not None and registration.persist

    def follow(self, way: ArrivalWay) -> None:
        """Have whoever begins to read the past wait for what has come on that way."""
        self._archive.arrivals.add(way)


class _Deletion(NamedTuple):
    ids: tuple[str, ...]


class VolunteerKeeping:
    """See the module. Any thread."""

    def __init__(self, store: DelegateStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._undecided: dict[str, deque[tuple[float, Parcel]]] = {}
        self._undecided_bytes = 0
        self._due: deque[Parcel | _Deletion] = deque()
        self._due_bytes = 0
        self._put = self._taken = 0
        """Number of all that was due ever, and of those that are done."""
        self._entries: dict[str, Entries] = {}
        """Entries of the registrations that are kept."""
        self._lacking: set[str] = set()
        """Registrations of which something had no room."""
        self.kept = self.left_out = 0
        self._trouble = ""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="volunteer", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._store.follow(self)
        self._thread.start()

    def due(self) -> int:
        """See ArrivalWay."""
        return self._put

    def has_taken(self, number: int) -> bool:
        """See ArrivalWay."""
        return self._taken >= number or self._is_stopping or bool(self._trouble)

    def wait(self, uid: str, parcel: Parcel, now: float) -> None:
        """An object of a registration of which it is not decided whether it is kept. The oldest of all give way."""
        with self._changed:
            self._undecided.setdefault(uid, deque()).append((now, parcel))
            self._undecided_bytes += _cost(parcel)
            while self._undecided_bytes > BYTES_MOST:
                self._drop_first(next(iter(self._undecided)))

    def _drop_first(self, uid: str) -> None:
        """Under the lock: the first object of a registration that waits is not kept."""
        waiting = self._undecided[uid]
        self._undecided_bytes -= _cost(waiting.popleft()[1])
        if not waiting:
            del self._undecided[uid]

    def undecided(self) -> list[str]:
        """Registrations of which objects wait."""
        with self._changed:
            return list(self._undecided)

    def begin(self, uid: str, entries: Entries) -> None:
        """A registration is kept from now on, under these entries."""
        with self._changed:
            waiting = self._undecided.pop(uid, ())
            self._undecided_bytes -= sum(_cost(parcel) for _, parcel in waiting)
            self._entries[uid] = entries
        for _, parcel in waiting:
            self.keep(uid, parcel)

    def end(self, uid: str, then: float = math.inf) -> None:
        """A registration is not kept; what came since then waits nevertheless."""
        with self._changed:
            self._entries.pop(uid, None)
            while uid in self._undecided and self._undecided[uid][0][0] < then:
                self._drop_first(uid)

    def keep(self, uid: str, parcel: Parcel) -> None:
        """An object of a registration that is kept."""
        with self._changed:
            if not self._is_added(parcel, BYTES_MOST):
                self.left_out += 1
                self._lacking.add(uid)

    def _is_added(self, what: Parcel | _Deletion, most: int) -> bool:
        """Under the lock: whether there is room for it behind what is due, of so many bytes."""
        if self._due and self._due_bytes + _cost(what) > most:
            return False
        self._due.append(what)
        self._due_bytes += _cost(what)
        self._put += 1
        self._changed.notify()
        return True

    def came(self, uid: str, parcel: Parcel) -> None:
        """The same of one that was published just now, and is relayed to the delegate as well."""
        if not self._store.archives(uid):
            self.keep(uid, parcel)

    def lacking(self) -> set[str]:
        """Registrations of which something had no room, once there is some again."""
        with self._changed:
            if self._due_bytes > BYTES_MOST // 2:
                return set()
            found, self._lacking = self._lacking, set()
        return found

    def delete(self, ids: Sequence[str]) -> None:
        """Objects are to be nowhere any more. What there is no room for is told, and counted."""
        with self._changed:
            has_room = self._is_added(_Deletion(tuple(ids)), 2 * BYTES_MOST)
            if not has_room:
                self.left_out += len(ids)
        if not has_room:
            log.error(
                "%d objects that other nodes have deleted stay: the archive has accepted nothing for a long time",
                len(ids),
            )

    def stop(self) -> None:
        """End, when what is due is kept, or after some seconds."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due and not self._is_stopping:
                    self._changed.wait()
                if not self._due:
                    return
                some = self._some()
                entries = dict(self._entries)
            is_done = True
            with guarded("volunteer"):
                is_done = self._done(some, entries)
            if is_done:
                self._taken += len(some)
            elif not self._put_back(some):
                return

    def _put_back(self, some: Sequence[Parcel | _Deletion]) -> bool:
        """Until it can be done; False: we are stopping."""
        with self._changed:
            self._due.extendleft(reversed(some))
            self._due_bytes += sum(_cost(each) for each in some)
            if self._is_stopping or self._changed.wait_for(lambda: self._is_stopping, AGAIN_SECONDS):
                log.error("%d objects of other nodes are not kept: the archive does not accept them", len(self._due))
                return False
        return True

    def _some(self) -> list[Parcel | _Deletion]:
        """Under the lock: what is next, either a deletion or objects."""
        some = [self._due.popleft()]
        while isinstance(some[0], Parcel) and self._due and len(some) < AT_ONCE and isinstance(self._due[0], Parcel):
            some.append(self._due.popleft())
        self._due_bytes -= sum(_cost(each) for each in some)
        return some

    def _done(self, some: Sequence[Parcel | _Deletion], entries: dict[str, Entries]) -> bool:
        """Whether it is done; False: it is to be tried again."""
        try:
            if isinstance(some[0], _Deletion):
                self._store.delete(some[0].ids)
            else:
                self._take_in([each for each in some if isinstance(each, Parcel)], entries)
        except JbiError as exc:
            if exc.message != self._trouble:
                log.warning("the archive does not accept objects of other nodes; trying again: %s", exc)
            self._trouble = exc.message
            return False
        self._trouble = ""
        return True

    def _take_in(self, parcels: Sequence[Parcel], entries: dict[str, Entries]) -> None:
        try:
            self.kept += self._store.take_in(parcels, entries).kept
        except (ProtocolError, EntryError) as exc:
            if len(parcels) == 1:
                self.left_out += 1
                log.warning("an object of another node is not kept: %s", exc)
                return
            for each in parcels:
                self._take_in([each], entries)


def _cost(what: Parcel | _Deletion) -> int:
    return OBJECT_BYTES + (what.size if isinstance(what, Parcel) else sum(map(len, what.ids)))
