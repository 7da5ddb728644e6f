"""PublisherAdapterLight (PAL): publishes through delegates (paper section 2.4(1)-(4)).

A whole publisher needs three calls: connect_to_delegate, register_publisher, publish. Leases are renewed, broken
connections mended, and a delegate that has come back is used again, without the application's doing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, NewType, Self

from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.arguments import Document, Source, called, checked
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import AdapterStateError, DelegateNotFoundError, JbiError, WireError, unknown_uid
from jbi_pubsub.core.process import Birthplace
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE, PublisherAdapterDelegate
from jbi_pubsub.trust.settings import signer_of

from .connection import DelegateConnection
from .payloads import Body, Payload, Payloads
from .publication import (
    Publication,
    RegistrationUid,
    counting,
    metadata_bytes,
    open_type,
    opened,
    published,
    runs_of,
    terms_of,
)

log = logging.getLogger("jbi_pubsub.publisher")

DelegateUid = NewType("DelegateUid", str)
"""Identifies a connection to a delegate, in all calls of the adapter that made it."""


FIND_AGAIN_SECONDS: Final = 1.0
"""For one look for a delegate that went away; it is repeated until one is found or the adapter is closed."""

ENDED_SECONDS: Final = 0.05
"""Between two looks, while a delegate is awaited, whether the application has closed: too short to be felt."""


class PublisherAdapterLight:
    """Publishes through any number of delegates. Safe for several threads.

    `away(delegate, why)` is called on a library thread when the delegate of a connection (its id is given) does not
    answer any more, and with "" when it, or one that takes over, does again; it must not wait.

    Objects of one registration keep the order of publish calls. `refused(uid, error)` is called on a library thread
    when a delegate refuses an object that was fine here, with its id; and with that of a registration when a lookup
    service that came later does not list it: who asks that one does not find it. By default such refusals are only
    logged. Without `config` the configuration file and JBI_* variables count.
    """

    @checked
    def __init__(
        self,
        config: Config | None = None,
        *,
        name: str | None = None,
        refused: Callable[[str, JbiError], None] | None = None,
        away: Callable[[str, str], None] | None = None,
    ) -> None:
        self._config = config or effective()
        self._name = name or f"publisher-{os.getpid()}"
        self._refused = refused
        self._away = away
        self._signer = signer_of(self._config)
        self._payloads = Payloads(self._config.link.spooling())
        self._types = TypeRepository(cache_dir=self._config.type_cache())
        self._lock = threading.Lock()
        self._connections: dict[DelegateUid, DelegateConnection] = {}
        self._publications: dict[RegistrationUid, tuple[Publication, DelegateConnection]] = {}
        self._community: JoinManager | None = None
        self._renewals = LeaseRenewalManager(self._name)
        self._closed = False
        self._birthplace = Birthplace()

    @checked
    def connect_to_delegate(
        self, name: str | None = None, location: str | None = None, *, timeout: float | None = None
    ) -> DelegateUid:
        """Connect to a delegate with these characteristics; None is a wildcard. A new id with each call.

        Waits up to `timeout` seconds (default [lookup] timeout) for one to appear. If it goes away later, another one
        with the same characteristics takes over, with all registrations. Raises DelegateNotFoundError
        (with what was looked for and what exists) or LookupNotFoundError.
        """
        self._check_open()
        seconds = self._config.lookup.timeout if timeout is None else timeout
        connection = DelegateConnection(
            self._config,
            self._renewals,
            find=lambda tried, ended: self._find_delegate(name, location, FIND_AGAIN_SECONDS, tried=tried, ended=ended),
            name=self._name,
            refused=self._refused,
            away=lambda why: self._tell_away(connection, why),
        )
        self._open(connection, name, location, seconds)
        uid = _uid_of(connection)
        with self._lock:
            self._connections[uid] = connection
        return uid

    @checked
    def register_publisher(
        self,
        delegate: DelegateUid,
        schema: Source | None = None,
        invariants: Document | None = None,
        *,
        marks: Source | None = None,
        type_name: str | None = None,
        version: str | None = None,
        validate: bool | None = None,
        well_formed: bool | None = None,
        locations: Mapping[str, Path] | None = None,
        qos: Wish | None = None,
        persist: bool | None = None,
        reliable: bool | None = None,
        expiration: float | None = None,
        local: bool = False,
        owner: str | None = None,
    ) -> RegistrationUid:
        """Register what will be published at a delegate; the id to publish with.

        `schema` is the XML Schema of the metadata (a path, or one document), `invariants` a document with the elements
        that stay constant; of both a text that begins with `<` is the document itself, any other a path. `marks` is a
        marks file for schemas that carry no marks, `type_name` the type when neither a marker element nor the root's
        name is right. Without `schema` it is that which the delegate, or a type repository that it can ask, has of
        `type_name` and `version`; if none has it, and `validate` is False, any well-formed metadata may be published,
        without `invariants`: nothing says what is invariant. `validate` False skips validation of each object
        (default [client] validate); invariants are always checked. Where neither is looked at, metadata may be absent,
        and `well_formed` False (default [client] well_formed) takes any bytes: no predicate on them is true then.
        `locations` maps URLs or namespaces to local schema files. `qos`: what is wished of how its objects are served
        (docs/qos.md). `persist`: whether its objects are archived there; None leaves it to the delegate's rules.

        `reliable` False (default [client] reliable): what the delegate has not acknowledged when it goes away is not
        sent again to the one that takes over. Objects that are given up leave a gap in the numbers.
        `expiration`: seconds after which an object that still waits, here or for a subscriber, is given up (default
        [client] expiration; 0: never). `local`: its objects are for this delegate's subscribers alone, bridges and
        networks leave them. `owner`: whose they are, for subscribers that do not want those (`unlike`).

        Raises UnknownUidError, QosDeniedError (a field that `qos` requires is not granted), SchemaError,
        TypeConflictError, MetadataError, InvariantError (one is missing that all valid metadata have),
        OversizeError (no lookup service would list it), ArgumentError,
        AccessDeniedError, ConfigurationError (`persist` where there is no archive), StorageError, WireError.
        """
        self._check_open()
        connection = self._connection(delegate)
        terms = terms_of(
            self._config.client, validate=validate, well_formed=well_formed, reliable=reliable, expiration=expiration,
            local=local, owner=owner, qos=qos, persist=persist,
        )  # fmt: skip
        info_type = open_type(
            self._types, schema, marks=marks, type_name=type_name, version=version, locations=locations,
            validate=terms.validate, known=connection.schema,
        )  # fmt: skip
        try:
            publication = opened(info_type, invariants, terms, self._signer)
            connection.register(publication)
        except JbiError:
            self._forget_if_idle(info_type)
            raise
        with self._lock:
            self._publications[publication.uid] = (publication, connection)
        return publication.uid

    @checked
    def publish(
        self,
        registration: RegistrationUid,
        metadata: Document | None,
        payload: Payload = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Publish an object; its id. Checked here, then queued for the delegate; `flush` waits until it has it.

        `metadata` as a text is a path unless it begins with `<`, None or b"" for none (see `register_publisher`);
        `payload` as a text is the payload itself; a Path or a binary file of more than [link] `spool` bytes is copied
        to a file of ours before this returns, and never in memory (docs/objects.md). Waits up to `timeout` seconds
        (default [queue] publish_seconds) for room. Raises UnknownUidError,
        MetadataError (path of the element; a payload's file that can't be read, or has changed meanwhile),
        InvariantError, OversizeError, BackPressureError, StorageError (a large payload found no place), WireError (the
        delegate refused to take the registration back after a failure).
        """
        self._check_open()
        publication, connection = self._publication(registration)
        data = metadata_bytes(metadata)
        publication.check(data)
        seconds = self._config.queue.publish_seconds if timeout is None else timeout
        body = self._payloads.body(payload, publication.terms.max_payload, seconds)
        (object_id,) = self._queue(publication, connection, [(data, body)], timeout)
        return object_id

    @checked
    def publish_many(
        self,
        registration: RegistrationUid,
        objects: Iterable[tuple[Document | None, Payload]],
        *,
        timeout: float | None = None,
    ) -> list[str]:
        """Publish many objects that are at hand, pairs of metadata and payload, for less than as many calls of
        `publish`; their ids. In order, as if published one by one; some go before the iterable has ended. Waits up to
        `timeout` seconds for room, each time. Raises as `publish` does, and ArgumentError, with how many were
        `published` before in the error's `facts`; an error of the iterable's own has that as a note.
        """
        self._check_open()
        publication, connection = self._publication(registration)
        ids: list[str] = []
        seconds = self._config.queue.publish_seconds if timeout is None else timeout
        limit = publication.terms.max_payload

        def body(payload: Payload) -> Body:
            return self._payloads.body(payload, limit, seconds)

        with counting(ids):
            for run in runs_of(objects, publication.check, body=body):
                ids += self._queue(publication, connection, run, timeout)
        return ids

    def _queue(
        self,
        publication: Publication,
        connection: DelegateConnection,
        run: Sequence[tuple[bytes, Body]],
        timeout: float | None,
    ) -> list[str]:
        seconds = self._config.queue.publish_seconds if timeout is None else timeout
        with publication.lock:
            parcels = publication.next_objects(run)
            try:
                connection.publish(publication, parcels, seconds)
            except JbiError as exc:
                publication.sequence -= len(run) - published(exc)  # not queued: the number is used again
                raise
        return [parcel.head.object_id for parcel in parcels]

    @checked
    def wait_for_subscribers(self, registration: RegistrationUid, count: int = 1, timeout: float = 10.0) -> int:
        """Number of subscriptions that match the registration at its delegate, as soon as there are `count`, or after
        `timeout` seconds; 0 while the delegate can't be asked. Nobody has to wait for that: who stands before an object
        is published gets it. Raises UnknownUidError."""
        publication, connection = self._publication(registration)
        return connection.wait_for_subscriptions(publication, count, timeout)

    @checked
    def flush(self, timeout: float = 10.0) -> None:
        """Wait until the delegates have taken all that was published before. Raises BackPressureError after `timeout`
        s."""
        with self._lock:
            connections = list(self._connections.values())
        deadline = time.monotonic() + timeout
        for connection in connections:
            connection.flush(max(0.0, deadline - time.monotonic()))

    @checked
    def unregister_publisher(self, registration: RegistrationUid) -> None:
        """Undo register_publisher, after what was published has gone out. Raises UnknownUidError, WireError."""
        publication, connection = self._publication(registration)
        connection.flush(self._config.queue.publish_seconds, publication)
        connection.unregister(publication)
        with self._lock:
            self._publications.pop(registration, None)
        self._forget_if_idle(publication.info_type)

    @checked
    def disconnect(self, delegate: DelegateUid) -> None:
        """Undo connect_to_delegate and all registrations there. Raises UnknownUidError."""
        connection = self._connection(delegate)
        connection.close(self._config.queue.publish_seconds)
        with self._lock:
            self._connections.pop(delegate, None)
            gone = [p for p, at in self._publications.values() if at is connection]
            self._publications = {uid: pair for uid, pair in self._publications.items() if pair[1] is not connection}
        for publication in gone:
            self._forget_if_idle(publication.info_type)

    def status(self) -> dict[str, Any]:
        """Connections and registrations as plain data."""
        with self._lock:
            return {
                "name": self._name,
                "delegates": {uid: c.status() for uid, c in self._connections.items()},
                "registrations": {
                    uid: {
                        "type": str(p.info_type.type),
                        "published": p.sequence,
                        "unfinished": c.unfinished(p),
                        "signs": p.signs,
                    }
                    for uid, (p, c) in self._publications.items()
                },
            }

    @checked
    def close(self, timeout: float = 5.0) -> None:
        """Disconnect from all delegates, handing over what is queued within `timeout` seconds. Safe to call twice."""
        if not self._birthplace.is_here():
            return  # a forked child: the connections are its parent's
        with self._lock:
            if self._closed:
                return
            self._closed = True
            connections = list(self._connections.values())
        deadline = time.monotonic() + timeout
        for connection in connections:
            connection.close(max(0.0, deadline - time.monotonic()))
        self._renewals.stop()
        if self._community is not None:
            self._community.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _open(self, connection: DelegateConnection, name: str | None, location: str | None, timeout: float) -> None:
        """Open a connection to the first delegate that answers; one that is listed may be dead until its lease ends."""
        deadline = time.monotonic() + timeout
        silent: tuple[ServiceItem, WireError] | None = None
        tried: dict[str, float] = {}
        while silent is None or time.monotonic() < deadline:
            left = max(0.0, deadline - time.monotonic())
            try:
                item = self._find_delegate(name, location, left, tried=tried)
            except DelegateNotFoundError:
                if silent is None:
                    raise
                break  # the time is over: what did not answer says more than what was not found meanwhile
            try:
                connection.open(item)
            except WireError as exc:
                silent = item, exc
                tried[item.service_id] = time.monotonic()
                time.sleep(min(0.1, max(0.0, deadline - time.monotonic())))  # until it is back, or out of the list
            else:
                return
        assert silent is not None  # the first turn returns, raises or sets it
        item, why = silent
        raise DelegateNotFoundError(
            f"the delegate ({_shown(name)}, {_shown(location)}) at {', '.join(item.proxy.endpoints)}"
            f" is listed, but did not answer within {timeout:.3g} s: {why.message}",
            hint="It may be dead: see `jbi status`, or start another with `jbi pad NAME LOCATION`",
            name=name,
            location=location,
        ) from why

    def _tell_away(self, connection: DelegateConnection, why: str) -> None:
        if self._away is None or self._closed:
            return
        try:
            called(self._away, _uid_of(connection), why)
        except Exception:  # an application's mistake must not end its publishing
            log.exception("%s: the callback for delegates that are away failed", self._name)

    def _find_delegate(
        self,
        name: str | None,
        location: str | None,
        timeout: float,
        *,
        tried: Mapping[str, float] = MappingProxyType({}),
        ended: Callable[[], bool] = lambda: False,
    ) -> ServiceItem:
        """A delegate with these characteristics: one that was not `tried` in vain, else the one that was longest ago
        (monotonic seconds by service id; the dead are listed until their leases end). When it has `ended`, nobody wants
        one any more."""
        wanted = PublisherAdapterDelegate(name=name, location=location).rep()
        community = self._joined()
        cache = community.watch(ServiceTemplate(types=(PAD_TYPE,), entries=(wanted,)))
        deadline = time.monotonic() + timeout
        try:
            while not (found := cache.wait(1, min(ENDED_SECONDS, deadline - time.monotonic()))):
                if ended():
                    raise DelegateNotFoundError("not looked for any more: the connection is closed")
                if time.monotonic() >= deadline or community.refused() is not None:
                    break
        finally:
            community.unwatch(cache)
        if found:
            return min(found, key=lambda item: tried.get(item.service_id, 0.0))
        # raises when there is no lookup service; the time for finding one has been spent above
        existing = community.lookup(ServiceTemplate(types=(PAD_TYPE,)), timeout=0.5, waited=timeout)
        known = sorted(f"({d.name}, {d.location})" for item in existing for d in _characteristics(item))
        raise DelegateNotFoundError(
            f"no delegate ({_shown(name)}, {_shown(location)}) within {timeout:.3g} s;"
            f" there are: {', '.join(known) or 'none'}",
            hint="Start one with `jbi pad NAME LOCATION`",
            name=name,
            location=location,
        )

    def _joined(self) -> JoinManager:
        with self._lock:
            if self._community is None:
                self._community = JoinManager(self._config, name=self._name)
            return self._community

    def _forget_if_idle(self, info_type: InformationType | UntypedGate) -> None:
        """A registration came to nothing, or has ended: its schema must not stand in the way of another one."""
        with self._lock:
            used = any(p.info_type is info_type for p, _ in self._publications.values())
        if not used:
            self._types.forget(info_type.type)

    def _connection(self, delegate: DelegateUid) -> DelegateConnection:
        with self._lock:
            found = self._connections.get(delegate)
        if found is None:
            raise unknown_uid("delegate", delegate, "connect_to_delegate")
        return found

    def _publication(self, registration: RegistrationUid) -> tuple[Publication, DelegateConnection]:
        with self._lock:
            found = self._publications.get(registration)
        if found is None:
            raise unknown_uid("registration", registration, "register_publisher")
        return found

    def _check_open(self) -> None:
        if self._closed or not self._birthplace.is_here():
            raise AdapterStateError(
                "this PublisherAdapterLight is closed, or belongs to the parent process",
                hint="Open a new one after a fork",
            )


def _uid_of(connection: DelegateConnection) -> DelegateUid:
    return DelegateUid(f"delegate-{connection.uid}")


def _characteristics(item: ServiceItem) -> list[PublisherAdapterDelegate]:
    own = PublisherAdapterDelegate.entry_name
    return [PublisherAdapterDelegate.from_rep(e) for e in item.entries if e.cls.name == own]


def _shown(characteristic: str | None) -> str:
    """For people: None is a wildcard, "" is not."""
    return "*" if characteristic is None else characteristic or '""'
