"""Query sequences: one query after the other for objects of a type, with their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from jbi_pubsub.core import info_object
from jbi_pubsub.core.arguments import called
from jbi_pubsub.core.errors import (
    ArgumentError,
    JbiError,
    UnknownUidError,
)
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.subscriber import Query

from . import bindings
from .callbacks import QueryCallback
from .errors import (
    ObjectUnavailableException,
    PlatformFailureException,
    SequenceStateException,
    TimeoutException,
    UnrecognizedObjectTypeException,
    call,
)
from .objects import InfoObject, come
from .predicate import read_predicate
from .sequences import (
    ACTIVE,
    DESTROYED,
    NEW,
    PAUSED,
    InfoObjectSequence,
    Owner,
    check_ms,
    check_text,
    prefixes_of,
)

QUERY_MS: Final = 3_600_000
"""For a query that names no time of its own."""
COUNT_SECONDS: Final = 60.0


class QueryResultListener:
    """A query's callback as a QueryListener."""

    def __init__(self, callback: QueryCallback) -> None:
        self._callback = callback

    def arrived(self, query: Query, obj: info_object.InfoObject) -> None:  # noqa: ARG002  # the protocol's parameter
        """The next result."""
        called(self._callback.infoObjectAvailable, come(obj))

    def finished(self, query: Query, state: str) -> None:
        """Nothing comes any more."""
        try:
            if query.partial and (incomplete := getattr(self._callback, "queryIncomplete", None)) is not None:
                called(incomplete, list(query.partial))
        finally:
            if (told := getattr(self._callback, "queryFinished", None)) is not None:
                called(told, state)


class QuerySequence(InfoObjectSequence):
    """Asks archives for objects of one type, one query after the other."""

    role = "query"

    def __init__(self, connection: Owner, type_: TypeName) -> None:
        super().__init__(connection, type_)
        self._predicate = ""
        self._query: Query | None = None
        self._has_callback = False
        self._is_distributed = False
        self._is_asking = False

    @call
    def setSequencePredicate(self, document: str) -> None:
        """The predicate of the next query, over the metadata combined with what the platform says, as its document.
        Raises InvalidPredicateException, PredicateLanguageException, SequenceStateException for a destroyed one."""
        expression = read_predicate(document)
        with self._lock:
            self._require(NEW, ACTIVE, PAUSED)
            self._predicate = expression

    @call
    def executeQuery(self, callback: QueryCallback | None = None) -> None:
        """Ask the archive of the node that the connection is at; without a predicate for all objects of the type.
        Results come to `callback`, or by `getNext`. What was published and acknowledged before is seen. Raises
        PausedSequenceException, SequenceStateException (also while a former query has results that were not taken),
        UnrecognizedObjectTypeException (the archive has none of that type, and nobody publishes it),
        ObjectUnavailableException (the node has no archive), PermissionDeniedException, PlatformFailureException."""
        self._execute(callback, QUERY_MS, at=self._connection.node_addresses())

    @call
    def executeDistributedQuery(self, timeout: float, callback: QueryCallback | None = None) -> None:
        """The same of all archives that can be found, for `timeout` ms at most; each object comes once. An archive that
        does not answer is left out, and named by `getMissingAnswers`. Raises as `executeQuery`."""
        check_ms("executeDistributedQuery", timeout)
        if timeout <= 0:
            raise ArgumentError("executeDistributedQuery: timeout is 0 ms", hint="It needs some time")
        self._execute(callback, timeout, at=None)

    @call
    def getNext(self, count: int, timeout: float) -> list[InfoObject]:
        """The next `count` results: fewer when there are no more, or `timeout` ms are over; [] at the end. Raises
        TimeoutException when none came within that time, PausedSequenceException, SequenceStateException (there is no
        query, or it has a callback), PlatformFailureException (the query failed, or there are no more though the
        archive of `executeQuery` has not told all)."""
        check_ms("getNext", timeout)
        if count < 1:
            raise ArgumentError(f"getNext: count is {count}", hint="It takes a number from 1 on")
        self._require_active()
        query = self._asked()
        if self._has_callback:
            raise SequenceStateException("this query has a callback, which gets its results")
        found = query.get_next(count, timeout / 1000)
        if not found and query.state == "running":
            self._require_active()
            raise TimeoutException(f"no result came within {timeout:g} ms")
        if not found and query.state == "cancelled":
            self._require_active()
        if not found:
            self._check_complete(query.partial)
        return [come(obj) for obj in found]

    @call
    def cancelQuery(self) -> None:
        """No results any more. Raises SequenceStateException when there is no query; one that has ended stays so."""
        self._asked().cancel()

    @call
    def getResultCount(self) -> int:
        """Number of results that the query has, taken or not; of those that are asked again, as they are now. Raises
        PausedSequenceException, SequenceStateException when there is no query, TimeoutException,
        PlatformFailureException (the archive of `executeQuery` could not count all)."""
        self._require_active()
        query = self._asked()
        count = query.count(COUNT_SECONDS)
        self._check_complete(count.partial)
        return int(count)

    @call
    def getMissingAnswers(self) -> list[str]:
        """The archives (addresses) that have not answered the query to the end so far, each with the reason: what they
        have is not among the results. Raises SequenceStateException when there is no query."""
        return list(self._asked().partial)

    @call
    def setNamespacePrefixes(self, prefixes: Mapping[str, str]) -> None:
        """Set what prefixes stand for in the predicate; those of [client] namespaces (`og`) hold for others. Same as
        attribute `NamespacePrefixes`."""
        self._put(prefixes_of(prefixes))

    @call
    def setLatestAttribute(self, key: str) -> None:
        """Take only the newest object of each value of `key`, an XPath. Same as attribute `Latest`."""
        check_text("setLatestAttribute", "key", key, 32_768)
        self._put(bindings.LatestAttribute(key=key))

    def _execute(self, callback: QueryCallback | None, timeout: float, *, at: list[str] | None) -> None:
        with self._lock:
            self._require_active()
            if self._is_asking or (self._query is not None and self._query.state == "running"):
                raise SequenceStateException(
                    "this sequence has a query under way", hint="Take all its results, or call cancelQuery()"
                )
            self._is_asking = True
            predicate = self._predicate
        query: Query | None = None
        try:
            query = self._connection.subscriber().open_query(
                self._type.name, version=self._type.version, whole_name=True, predicate=predicate or None,
                view="combined", timeout=timeout / 1000, at=at,
                listener=QueryResultListener(callback) if callback is not None else None, **self._attributes.querying(),
            )  # fmt: skip
        except UnknownUidError as exc:
            raise _no_archive(exc) from exc
        finally:
            with self._lock:
                self._is_asking = False
                state = self._state
                if query is not None and state is not DESTROYED:
                    self._query, self._has_callback, self._is_distributed = query, callback is not None, at is None
        if state is PAUSED:
            query.pause()
        elif state is DESTROYED:
            query.cancel()
            self._require_active()

    def _asked(self) -> Query:
        """Raises SequenceStateException."""
        self._require(ACTIVE, PAUSED)
        query = self._query
        if query is None:
            raise SequenceStateException("nothing was asked", hint="Call executeQuery() first", state=int(self._state))
        return query

    def _check_complete(self, partial: Sequence[str]) -> None:
        """Raises PlatformFailureException where one archive was asked, which has not told all."""
        if partial and not self._is_distributed:
            raise PlatformFailureException(f"the archive has not told all: {'; '.join(partial)}", hint="Ask again")

    def _open(self) -> None:
        self._connection.subscriber()

    def _close(self) -> None:
        query = self._query
        if query is not None:
            query.cancel()

    def _pause(self) -> None:
        if self._query is not None:
            self._query.pause()

    def _resume(self) -> None:
        if self._query is not None:
            self._query.resume()


def _no_archive(exc: UnknownUidError) -> JbiError:
    """No archive has the type, or there is none to ask."""
    if exc.facts.get("type"):
        return UnrecognizedObjectTypeException(exc.message, hint=exc.hint, **exc.facts)
    return ObjectUnavailableException(
        exc.message, hint="executeDistributedQuery asks all archives that there are; " + exc.hint, **exc.facts
    )
