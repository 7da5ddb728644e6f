"""A query of an application: the results of one or several archives, as one sequence.

Theory of operation: each archive's results come to a part of their own, as objects come to a subscription, as many as
credits allow. Whoever takes the next result has the parts say what they have next, and gets the first of these
(protocol/merging.py). An archive that fails, or has not told all when the time of the query is over, is named in
`partial`, and what the others have comes. A part is asked of an address: whoever has that now answers, and says which
archive it has; the parts together say what is missing (coverage.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from jbi_pubsub.core.arguments import checked
from jbi_pubsub.core.errors import AdapterStateError, ConfigurationError, JbiError, WireTimeoutError
from jbi_pubsub.core.history import Progress, State
from jbi_pubsub.core.info_object import Cause, InfoObject
from jbi_pubsub.core.signing import SigningKey
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.protocol.merging import Merge, key_of
from jbi_pubsub.protocol.requests import QueryRequest

from .coverage import missing, named
from .first_level import Fitness
from .listeners import SERVED_AT_ONCE, ListenerCalls, ListenerPool
from .queue import Consumer
from .session_queries import QueryPart

log = logging.getLogger("jbi_pubsub.subscriber")

QUERY_SECONDS: Final = 3_600.0
"""For a query that names no time of its own."""

WAIT_SECONDS: Final = 1.0
"""The longest that a condition is awaited at a time."""


class QueryDraft(NamedTuple):
    """A query before it is opened: its request, and the archives that are asked."""

    request: QueryRequest
    archives: Sequence[ServiceItem]
    timeout: float
    fitness: Fitness | None = None
    """Check that metadata of results have to pass. What is dropped here the archives do not know of: they are not told
    `limit`, and count it."""
    impossible: Callable[[], tuple[str, ...]] = tuple
    """See Query."""


class Count(int):
    """A number of objects, of the archives that have answered."""

    partial: tuple[str, ...]
    """The archives (addresses) that have not, each with the reason: what they have is missing."""

    def __new__(cls, count: int, partial: tuple[str, ...] = ()) -> Count:
        """See the class."""
        made = super().__new__(cls, count)
        made.partial = partial
        return made


@runtime_checkable
class QueryListener(Protocol):
    """Receiver of a query in an application. Calls are serial per query, on a library thread: plain functions, no
    `async def`. A result that `arrived` fails on comes again, as an object of a subscription (SubscriptionListener);
    `Query.partial` says on how many it failed each time."""

    def arrived(self, query: Query, obj: InfoObject) -> None:
        """The next result."""

    def finished(self, query: Query, state: State) -> None:
        """Nothing comes any more: how it ended. See `Query.error` and `Query.partial`."""


class MergedResults:
    """Results of all parts of a query, as one sequence. The query's condition covers it."""

    def __init__(self, parts: Sequence[QueryPart], draft: QueryDraft) -> None:
        request = draft.request
        self.parts = parts
        self.timeout = draft.timeout
        self.impossible = draft.impossible
        key = key_of(request) if len(parts) > 1 else None
        self._merge = Merge(len(parts), newest_first=request.order == "newest", limit=request.limit, key=key)

    @property
    def is_over(self) -> bool:
        """Whether no result comes any more."""
        return self._merge.is_over

    def next(self, owed: list[Consumer]) -> InfoObject | None:
        """The next result if it is known; `owed`: sources that get a credit. Raises OversizeError."""
        for number in self._merge.wants():
            part = self.parts[number]
            is_over = part.is_over  # before it is looked: what came before its end is there then
            if (taken := part.pop()) is not None:
                owed.append(taken[1])
                self._merge.offer(number, taken[0])
            elif is_over:
                self._merge.end(number)
        return self._merge.next()

    def is_stuck(self) -> bool:
        """Whether nothing comes before an archive has said more."""
        wanted = [self.parts[number] for number in self._merge.wants()]
        return any(not (part.queue.waiting or part.is_over) for part in wanted)

    def outcome(self) -> tuple[State, JbiError | None]:
        """The end of a query of which nothing comes any more."""
        errors = [part.error for part in self.parts]
        if self._merge.is_full or not all(errors):
            return "finished", None
        return ("timed_out", None) if any(part.is_late for part in self.parts) else ("failed", errors[0])


class Query:
    """A query that is open. Safe for several threads; each result comes to one of them.

    It ends when all results were taken, `cancel` was called, or its time is over; whoever leaves it before cancels it,
    or uses it in a `with`.
    """

    def __init__(
        self,
        parts: Sequence[QueryPart],
        draft: QueryDraft,
        listener: QueryListener | None,
        listeners: ListenerPool,
        count: Callable[[float], Count],
    ) -> None:
        """`count`: asks the archives how many results there are, within so many seconds."""
        self.adapter: object = None
        """The adapter that it was opened with, which is not lost before it."""
        self._results = MergedResults(parts, draft)
        self._changed = threading.Condition()
        self._state: State = "running"
        self._error: JbiError | None = None
        self._until = time.monotonic() + draft.timeout
        self._listener = listener
        self._listeners = listeners
        self._submitted = self._is_told = self._is_paused = False
        self.wakers: set[Callable[[], None]] = set()
        """Called, under the lock, when there may be a result, or an end: of those who do not wait in `get_next`. They
        must not wait."""
        self._count = count
        self._calls = ListenerCalls("a query")
        self._again: InfoObject | None = None
        """Result that the listener has failed on, and gets again."""
        for part in parts:
            part.tell = self._tell

    # -- results ------------------------------------------------------------------------------------------------

    @checked
    def get_next(self, count: int = 1, timeout: float | None = None) -> list[InfoObject]:
        """The next `count` results, fewer at the end or when `timeout` seconds are over; [] when there are none any
        more. Raises the archive's error when no archive could answer to the end, WireTimeoutError when that is as the
        time of the query itself was over."""
        self._check_takes()
        if count < 1:
            raise ConfigurationError(f"get_next: count {count} is not above 0", hint="[] would look like the end")
        until = self._until if timeout is None else time.monotonic() + timeout
        found: list[InfoObject] = []
        while len(found) < count and (obj := self._take(until)) is not None:
            found.append(obj)
        if not found:
            self.check_outcome()
        return found

    def __iter__(self) -> Iterator[InfoObject]:
        """All results; raises as `get_next`."""
        self._check_takes()
        while (obj := self._take(self._until)) is not None:
            yield obj
        self.check_outcome()

    @checked
    def count(self, timeout: float = 60.0) -> Count:
        """Number of objects that there are, without fetching them. A copy in another archive counts as well; `partial`
        of the number names those that could not say. Raises what the archives say if none can, WireTimeoutError."""
        return self._count(timeout)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """running, finished, cancelled, failed or timed_out."""
        return self._state

    @property
    def error(self) -> JbiError | None:
        """Why it failed, or why an archive did; None if none has."""
        lacking = missing([part.answer for part in self._results.parts])
        errors = (part.error for part, why in zip(self._results.parts, lacking, strict=True) if why)
        return self._error or next((error for error in errors if error is not None), None)

    @property
    def partial(self) -> tuple[str, ...]:
        """The archives (addresses) that have not answered to the end, are damaged, or are listed where another one
        answers now, each with the reason: some of their results are missing, all or those from there on. Those of which
        results had no valid signature, with their number. And how many results the listener has not taken."""
        failed = (f"the listener has not taken {self._calls.given_up} of the results",) if self._calls.given_up else ()
        return (*named([part.answer for part in self._results.parts]), *failed)

    @property
    def invalid(self) -> int:
        """Results that were dropped here, as their metadata are not well-formed, or not valid: see `Conditions`."""
        return sum(part.losses.by_cause[Cause.INVALID] for part in self._results.parts)

    def impossible(self) -> tuple[str, ...]:
        """Why no object can match, by the schema of its type; () if one may, or that is not known. Asks others."""
        return self._results.impossible()

    @property
    def left_out(self) -> tuple[str, ...]:
        """Types of which something was left out, as access rules do not let us read all of it: type and version as they
        were asked for, `*` for any. Which types that were is not told."""
        said = (part.ended or part.opened for part in self._results.parts)
        return tuple(sorted({name for each in said if each is not None for name in each.left_out}))

    @property
    def progress(self) -> Progress:
        """Progress of the archives, all together: they are asked. `matched` counts what they have found, which
        need not have come yet; `done` and `end` are positions if there is one archive, else 0."""
        each = [part.progress() for part in self._results.parts]
        positions = (each[0].done, each[0].end) if len(each) == 1 else (0, 0)
        return Progress(
            self._state,
            matched=sum(one.matched for one in each),
            candidates=sum(one.candidates for one in each),
            verified=sum(one.verified for one in each),
            done=positions[0],
            end=positions[1],
            seconds=max(one.seconds for one in each),
            error=self.error.message if self.error is not None else "",
        )

    def signing_key(self, uid: str) -> SigningKey | None:
        """Key that objects of a registration are signed with, as the archives say that are asked; None: none does."""
        keys = (part.signing_key(uid) for part in self._results.parts)
        return next((key for key in keys if key is not None), None)

    def pause(self) -> None:
        """Have no result taken until `resume`: whoever waits gets none, the listener is not called. It goes on at the
        archives, by as much as may wait here; its time runs."""
        with self._changed:
            self._is_paused = True
            self._changed.notify_all()

    def resume(self) -> None:
        """Undo `pause`."""
        with self._changed:
            self._is_paused = False
            self._announce()

    def cancel(self) -> None:
        """Want it no more: whoever waits for a result gets none. Of one that has ended it changes nothing."""
        self._end("cancelled")

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cancel()

    # -- for the adapter ----------------------------------------------------------------------------------------

    def await_open(self, seconds: float) -> None:
        """Wait until each archive has begun, or `seconds` are over: those that have not answered are given up. Raises
        why, if none has."""
        until = time.monotonic() + seconds
        with self._changed:
            while (late := [p for p in self._results.parts if p.opened is None and not p.is_over]) and (
                left := until - time.monotonic()
            ) > 0:
                self._changed.wait(min(left, WAIT_SECONDS))
        for part in late:
            part.fail(WireTimeoutError(f"the archive at {part.address} has not answered within {seconds:g} s"))
            _unask(part)
        errors = [part.error for part in self._results.parts]
        if all(errors):
            self._end("failed", errors[0])
            assert errors[0] is not None
            raise errors[0]
        for part in self._results.parts:
            if part.error is not None:
                log.warning("a query continues without the archive at %s: %s", part.address, part.error)

    def take_now(self) -> InfoObject | None:
        """The next result if it is here; None when there is none now, or none any more: see `state`."""
        return self._take(0.0 if self.seconds_left > 0 else self._until)

    @property
    def seconds_left(self) -> float:
        """Time until it ends by itself."""
        return self._until - time.monotonic()

    def close(self) -> None:
        """The adapter closes."""
        self._end("cancelled", AdapterStateError("this SubscriberAdapter is closed"))

    def serve(self) -> bool:
        """Tell the listener some of what is there; whether there is more (a PoolClient)."""
        listener = self._listener
        assert listener is not None
        for _ in range(SERVED_AT_ONCE):
            obj, self._again = self._again or self._take(0.0), None
            if obj is None or self._state == "cancelled":
                break
            if self._calls.call(listener.arrived, self, obj) is None:
                self._calls.reset()
            else:
                self._come_again(obj)
        with self._changed:
            is_over = self._state != "running" and self._again is None
            self._submitted = self._again is not None or not (is_over or self._is_paused or self._results.is_stuck())
            if self._submitted or not is_over:
                return self._submitted
            was_told, self._is_told = self._is_told, True
        if not was_told:
            self._calls.call(listener.finished, self, self._state)
        return False

    # -- inside -------------------------------------------------------------------------------------------------

    def _take(self, until: float) -> InfoObject | None:
        """The next result; None when there is none any more, or none by `until` (monotonic seconds)."""
        until = min(until, self._until)
        while True:
            owed: list[Consumer] = []
            obj, failure, is_late = None, None, False
            with self._changed:
                if self._state != "running" or self._is_paused:
                    return None
                try:
                    obj = self._results.next(owed)
                except JbiError as exc:
                    failure = exc
                is_over = self._results.is_over
                if obj is None and failure is None and not (owed or is_over) and self._results.is_stuck():
                    left = until - time.monotonic()
                    is_late = left <= 0
                    self._changed.wait(min(left, WAIT_SECONDS))
            for consumed in owed:
                consumed(1)
            if failure is not None:
                self._end("failed", failure)
            elif is_over:
                self._end(*self._results.outcome())
            if obj is not None:
                return obj
            if is_late:
                if until < self._until:
                    return None
                self._give_up()  # what the others have given is taken yet

    def _give_up(self) -> None:
        """The time of the query is over: archives that have not told all are waited for no longer."""
        for part in self._results.parts:
            if not part.is_over:
                part.expire()
                _unask(part)

    def _end(self, state: State, error: JbiError | None = None) -> None:
        with self._changed:
            if self._state != "running":
                return
            self._state, self._error = state, error
            self._changed.notify_all()
            self._announce()
        for part in self._results.parts:
            if not part.is_over:
                _unask(part)
            part.queue.close()

    def check_outcome(self) -> None:
        """Raises why it has ended, if that was not as it should."""
        if self._state == "failed" and self._error is not None:
            raise self._error
        if self._state == "timed_out":
            raise WireTimeoutError(
                f"the query was not done within {self._results.timeout:g} s",
                hint="Give it a longer timeout=, or ask for less; explain_query says what takes its time",
            )

    def _check_takes(self) -> None:
        if self._listener is not None:
            raise AdapterStateError("this query has a listener, which gets its results", hint="Open one without")

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
            self._announce()

    def _announce(self) -> None:
        """Under the lock: have the listener told, and the wakers."""
        for wake in tuple(self.wakers):  # others come and go
            wake()
        if self._listener is not None and not self._submitted and not (self._is_paused and self._state == "running"):
            self._submitted = True
            self._listeners.submit(self)

    def _come_again(self, obj: InfoObject) -> None:
        """The listener has failed on a result: it comes again when this returns, or is given up."""
        if (pause := self._calls.pause_after(obj.object_id)) is None:
            return
        with self._changed:
            self._again = obj
            self._changed.wait_for(lambda: self._state == "cancelled", pause)


def _unask(part: QueryPart) -> None:
    if part.at is not None:
        part.at.unask(part)
