"""An application as a query provider: it answers queries that ask everybody, beside the archives.

It is an archive to whoever asks (publisher/peer.py): a server of this process, on any free port, for as long as the
connection lasts. What a provider gives is looked at here, so that answers are those that an archive would have given:
its type, its predicate, times, sizes. Conditions that only an archive can know (positions, registrations, templates,
ids) it does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from secrets import token_hex

from jbi_pubsub.core import info_object
from jbi_pubsub.core.combined import Provenance, combined
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, MetadataError, OversizeError
from jbi_pubsub.core.history import MAX_POSITION
from jbi_pubsub.core.info_object import Platform, object_id_of, packed
from jbi_pubsub.core.xml import parse_metadata
from jbi_pubsub.core.xpath import compile_predicate
from jbi_pubsub.protocol.entries import PROVIDER_TYPE
from jbi_pubsub.protocol.ownership import owned_uid
from jbi_pubsub.protocol.requests import QueryRequest
from jbi_pubsub.protocol.status.bridge import RemoteStatus
from jbi_pubsub.publisher.peer import PeerArchive

from .callbacks import QueryProvider
from .objects import InfoObject


class _Answers:
    """Answers to one query (see protocol.remote.RemoteAnswers)."""

    lacks = ""

    def __init__(self, objects: Iterator[info_object.InfoObject], over: threading.Event) -> None:
        self._objects = objects
        self._over = over

    def __iter__(self) -> Iterator[info_object.InfoObject]:
        return self._objects

    def signing_key(self, uid: str) -> None:  # the protocol's
        """See RemoteAnswers: lookup services and delegates know it of what was published."""

    def cancel(self) -> None:
        """End with the next object that the provider gives, whether that is one of the answers or not."""
        self._over.set()


class _Provided:
    """A provider as whoever answers from elsewhere (see protocol.remote.RemoteArchive)."""

    service_type = PROVIDER_TYPE

    def __init__(self, provider: QueryProvider, name: str) -> None:
        self._provider = provider
        self._name = name
        self._uid = owned_uid("registration", token_hex(16))
        """Registration that objects which were never published are said to be of."""
        self._given = 0

    def answers(self, request: QueryRequest) -> _Answers:
        """Raises ConfigurationError for what it can't know."""
        over = threading.Event()
        if request.object_ids is not None:  # it keeps none: who asks for a certain one need not ask it
            return _Answers(iter(()), over)
        _check(request)
        return _Answers(self._answered(request, over), over)

    def _answered(self, request: QueryRequest, over: threading.Event) -> Iterator[info_object.InfoObject]:
        found = (
            self._named(io) for io in self._provider.queryReceived(request.type, request.version, request.predicate)
        )
        is_true = _condition(request)
        for obj in found:
            if over.is_set():
                return
            if _fits(obj, request) and is_true(obj, self._name):
                yield obj

    def _named(self, io: InfoObject) -> info_object.InfoObject:
        """An object with what the platform says of it; of one that was never published, what can be said."""
        if io._came is not None:
            return io._came
        payload = io.getPayload()
        self._given += 1
        platform = Platform(time.time(), self._uid, self._given, len(io._metadata), len(payload))
        return info_object.InfoObject(object_id_of(self._uid, self._given), io._type, io._metadata, payload, platform)

    def status(self) -> RemoteStatus:
        """See RemoteArchive."""
        return RemoteStatus(kind="provider", name=self._name)


def provide(provider: QueryProvider, config: Config, name: str) -> PeerArchive:
    """Have the queries of others answered by a provider, until `stop`. Raises PortInUseError, ConfigurationError."""
    return PeerArchive(config, _Provided(provider, name))


def _check(request: QueryRequest) -> None:
    asked = request.entries, request.registrations, request.publisher
    if any(asked) or request.after or request.up_to < MAX_POSITION or request.language != "xpath":
        raise ConfigurationError("a query provider does not know that", hint="It answers by type, predicate and time")


def _fits(obj: info_object.InfoObject, request: QueryRequest) -> bool:
    at = obj.platform
    return (
        request.type in ("", obj.type.name)
        and request.version in ("", obj.type.version)
        and request.since <= at.published <= request.until
        and request.least_payload <= at.payload_length <= request.most_payload
    )


def _condition(request: QueryRequest) -> Callable[[info_object.InfoObject, str], bool]:
    if not request.predicate:
        return lambda _obj, _name: True
    predicate = compile_predicate(request.predicate, namespaces=dict(request.namespaces))

    def holds(obj: info_object.InfoObject, name: str) -> bool:
        try:
            if request.view == "combined":
                return predicate.matches(combined(packed(obj).head, Provenance(name)))
            return predicate.matches(parse_metadata(obj.metadata))
        except (MetadataError, OversizeError):
            return False

    return holds
