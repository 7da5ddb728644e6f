"""Calls of the API to an application, on threads of the library. What it raises is logged, and nothing ends by it;
an object that it raises on comes again (see SubscriptionListener).

All methods but the first of each are optional. A provider answers instead of being told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from jbi_pubsub.core.arguments import may_have

from .objects import InfoObject


@may_have("infoObjectsLost")
class SequenceCallback(Protocol):
    """Callback of a subscriber sequence. Besides it may have `infoObjectsLost(cause, count)`: objects were lost, by one
    of the causes in docs/losses.md, `count` of them (0: not known)."""

    def infoObjectAvailable(self, io: InfoObject) -> None:
        """An object has come. Calls are serial for each sequence."""


@may_have("queryFinished", "queryIncomplete")
class QueryCallback(Protocol):
    """Callback of a query. Besides it may have `queryFinished(state)`: nothing comes any more, as it is "finished",
    "cancelled", "failed" or "timed_out"; and before that `queryIncomplete(missing)`, where archives have not answered
    to the end: their addresses, each with the reason."""

    def infoObjectAvailable(self, io: InfoObject) -> None:
        """The next result. Calls are serial for each query."""


class QueryProvider(Protocol):
    """Answerer of queries that ask everybody."""

    def queryReceived(self, type: str, version: str, predicate: str) -> Iterable[InfoObject]:  # noqa: A002
        """Objects of a type that an XPath may be true for ("": of all), made by `createInfoObject`, or come from the
        platform; more may be given, which are left out. Called on a thread of its own for each query."""
        ...


@may_have("connectionRestored")
class ConnectionCallback(Protocol):
    """Callback of a connection. Besides it may have `connectionRestored()`: the node, or one that has taken over,
    answers, and all sequences go on there."""

    def connectionLost(self, reason: str) -> None:
        """The node has stopped, or does not answer. What is published waits; sequences come back by themselves."""
