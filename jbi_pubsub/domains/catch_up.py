"""Objects that a client watches under a journal: first what came while it was away, then what comes.

Theory of operation: the subscription is there first, and holds what comes. Then archives are asked, here and behind
bridges, for what was published since the newest object that was had; what is new by the journal is given, in the order
of time. A bridge may need a moment until it brings what is wanted: what was published in it is asked for by a second
look. Then what was held is given, and all that comes; so it is where archives say nothing for a while. With the first
object of a registration, archives are asked for it once more: they may not have been in reach before. Until all
archives have answered they are asked again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from jbi_pubsub.core.backoff import Backoff
from jbi_pubsub.core.errors import JbiError, UnknownUidError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.subscriber.listeners import ListenerCalls
from jbi_pubsub.subscriber.query import QUERY_SECONDS, Query

from .channel import DomainChannel, ListenerChannel, ObjectListener
from .journal import REGISTRATIONS_MOST, ClientJournal, WatchRecord

log = logging.getLogger("jbi_pubsub.domains")

SETTLE_SECONDS: Final = 2.0
"""Until it is looked once more: for bridges to bring what is wanted."""
AGAIN_FIRST: Final = 60.0
AGAIN_MOST: Final = 600.0
"""Seconds until archives are asked again, if not all have answered."""
QUIET_SECONDS: Final = 10.0
"""Silence of archives in which what comes is given, before what they may still have."""
STOP_SECONDS: Final = 5.0
"""For a listener to return."""


class CatchUp:
    """Objects of one interest in their order (see the module). `_lock` covers the record, and is held while the
    listener is called: one object at a time."""

    def __init__(
        self, name: str, record: WatchRecord, listener: ObjectListener, past: Callable[[float, Sequence[str]], Query]
    ) -> None:
        """`name`: for the log; `past`: asks archives for what is watched since some time (Unix time), of some
        registrations, () for all."""
        self._name, self._record, self._listener, self._past = name, record, listener, past
        self._lock = threading.RLock()  # a listener may end it
        self._is_open = threading.Event()
        self._stopping = threading.Event()
        self._is_first = True
        self._is_complete = False
        """Whether all archives have answered for all registrations."""
        self._met: set[str] = set()
        """Registrations of which an object has come since the start."""
        self._unasked: set[str] = set()
        """Those of them of which archives were not asked since."""
        self._query: Query | None = None
        self._calls = ListenerCalls(name)
        self._backoff = Backoff(AGAIN_FIRST, AGAIN_MOST)
        self._job = Job(f"catch up {name[:60]}", AGAIN_FIRST, self._look, slow=True)
        if record.since is None:
            self._is_open.set()

    def start(self) -> None:
        """The subscription is there: look for what came before, if it was watched before."""
        if self._record.since is not None:
            self._job.start()

    def stop(self) -> None:
        """Give nothing any more; what was not given comes the next time. Safe to repeat."""
        self._stopping.set()
        self._is_open.set()
        if (query := self._query) is not None:
            query.cancel()
        self._job.stop()
        if self._lock.acquire(timeout=STOP_SECONDS):  # what is being given is noted
            self._lock.release()

    def arrived(self, obj: InfoObject) -> None:
        """An object of the subscription: it waits for those before it. Raises what the listener does."""
        self._is_open.wait(QUERY_SECONDS)
        with self._lock:
            if self._stopping.is_set() or obj in self._record:
                return
            self._meet(obj.platform.registration)
            self._listener(obj)
            self._record.add(obj)

    def _meet(self, registration: str) -> None:
        if self._record.since is not None and registration not in self._met:
            self._met.add(registration)
            self._unasked.add(registration)
            self._record.unsettle()
            self._job.wake(SETTLE_SECONDS)

    def _look(self) -> float:
        """Ask archives, and give what is new; seconds until the next time."""
        with self._lock:
            asked, self._unasked = self._unasked, set()
        try:
            is_whole = self._give(tuple(asked) if self._is_complete and len(asked) <= REGISTRATIONS_MOST else ())
        except UnknownUidError as exc:  # nothing of the type has been kept yet, or who has is not in reach
            log.info("the search for the missed objects of %s is repeated: %s", self._name, exc)
            is_whole = False
        except JbiError as exc:
            log.warning("the search for the missed objects of %s is repeated: %s", self._name, exc)
            is_whole = False
        if self._is_first:
            self._is_first = False
            return SETTLE_SECONDS
        self._is_open.set()
        with self._lock:
            if not is_whole or self._stopping.is_set():
                self._unasked |= asked
                return self._backoff.pause()
            self._is_complete = True
            self._backoff.reset()
            if self._unasked:
                return SETTLE_SECONDS
            self._record.settle()
        return math.inf

    def _give(self, registrations: Sequence[str]) -> bool:
        """Give what archives have that is new; whether all of them have answered. Raises JbiError."""
        with self._past(self._record.since or 0.0, registrations) as query:
            self._query = query
            while not self._stopping.is_set():
                if found := query.get_next(timeout=QUIET_SECONDS):
                    with self._lock:
                        while found[0] not in self._record and not self._stopping.is_set():
                            self._take(found[0])
                elif query.state == "running":
                    self._is_open.set()
                else:
                    return query.state == "finished" and not query.partial
            return False

    def _take(self, obj: InfoObject) -> None:
        """Give the listener an object, which it has then, or else comes again."""
        if self._calls.call(self._listener, obj) is None:
            self._calls.reset()
        elif (pause := self._calls.pause_after(obj.object_id)) is not None:
            self._stopping.wait(pause)
            return
        self._record.add(obj)


class ClientInterest:
    """Interest of a client in events: a subscription that lasts as the client wishes."""

    def __init__(
        self,
        domain: DomainChannel,
        watched: tuple[str, str],
        channel: ListenerChannel,
        *,
        durable: str | None = None,
        journal: ClientJournal | None = None,
    ) -> None:
        """`watched`: type and constraint; `durable`: the name under which delegates remember it; `journal`: where it is
        remembered here. Raises PredicateError, LookupNotFoundError, StorageError, and AdapterStateError for a durable
        one that is open here."""
        type_, constraint = watched
        self._domain = domain
        self._channel = channel
        listener: ObjectListener = channel.arrived
        self._record = record = journal.record(" ".join(watched)) if journal is not None else None
        self._catch_up: CatchUp | None = None
        if record is not None:
            self._catch_up = CatchUp(constraint, record, listener, lambda since, registrations: domain.past(
                type_, constraint, datetime.fromtimestamp(since, UTC), registrations=registrations))  # fmt: skip
            listener = self._catch_up.arrived
        try:
            self._subscription = domain.listen(type_, constraint, listener, durable=durable)
        except BaseException:
            if record is not None:
                record.forget() if record.since is None else record.close()
            raise
        if self._catch_up is not None:
            self._catch_up.start()

    def away(self) -> None:
        """Tell nothing any more; what comes from now on is told the next time, where it is remembered."""
        if self._catch_up is not None:
            self._catch_up.stop()
        if self._record is not None:
            self._record.close()

    def end(self) -> None:
        """Be of no interest any more."""
        self._channel.end()
        self.away()
        self._domain.unlisten(self._subscription)
        if self._record is not None:
            self._record.forget()
