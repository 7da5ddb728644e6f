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
from functools import partial
from pathlib import Path
from typing import Any, NewType
from uuid import uuid4

from jbi_pubsub.codegen.repository import InformationType, TypeRepository
from jbi_pubsub.codegen.types.untyped import UntypedGate
from jbi_pubsub.core.arguments import Document, Source, called, checked
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import JbiError, unknown_uid
from jbi_pubsub.core.info_object import ObjectAttributes, numbered, prefix_of
from jbi_pubsub.core.open_adapters import PUBLISHERS
from jbi_pubsub.core.quality import Wish, checked_attributes
from jbi_pubsub.core.renewal import LeaseRenewalManager
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.protocol.sending import Sending
from jbi_pubsub.trust.settings import signer_of

from .adapter import PublishingAdapter
from .connection import ConnectionReports, DelegateConnection
from .finder import DelegateFinder
from .payloads import MAX_PAYLOAD_BYTES, Body, Payload, Payloads
from .publication import (
    LocalPublication,
    RegistrationOptions,
    RegistrationUid,
    counting,
    metadata_bytes,
    opened,
    runs_of,
)

log = logging.getLogger("jbi_pubsub.publisher")

DelegateUid = NewType("DelegateUid", str)
"""Identifies a connection to a delegate, in all calls of the adapter that made it."""


class PublisherAdapterLight(PublishingAdapter[DelegateConnection]):
    """Publishes through any number of delegates. Safe for several threads.

    `away(delegate, why)` is called on a library thread when the delegate of a connection (its id is given) does not
    answer any more, and with "" when it, or one that takes over, does again.

    Objects of one registration keep the order of publish calls. `refused(uid, error)` is called on a library thread
    when a delegate refuses an object that was fine here, with its id; and with that of a registration when a lookup
    service that came later does not list it: who asks that one does not find it. By default such refusals are only
    logged. Without `config` the configuration file and JBI_* variables count.

    Neither callback may wait: it is called on the thread that sends. `close` and `disconnect` called there hand over
    nothing that is queued. What a callback raises is logged.
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
        super().__init__()
        self._config = config or effective()
        self._name = name or f"publisher-{os.getpid()}"
        self._refused = refused
        self._away = away
        self._signer = signer_of(self._config)
        self._payloads = Payloads(self._config.link.spooling())
        self._types = TypeRepository(cache_dir=self._config.type_cache())
        self._lock = threading.Lock()
        self._connections: dict[DelegateUid, DelegateConnection] = {}
        self._community: JoinManager | None = None
        self._renewals = LeaseRenewalManager(self._name)

    @checked
    def connect_to_delegate(
        self, name: str | None = None, location: str | None = None, *, timeout: float | None = None
    ) -> DelegateUid:
        """Connect to a delegate with these characteristics; None is a wildcard. A new id with each call.

        Waits up to `timeout` seconds (default [lookup] timeout) for one to appear. If it goes away later, another one
        like it takes over, with all registrations. Raises DelegateNotFoundError, LookupNotFoundError.
        """
        self._check_open()
        seconds = self._config.lookup.timeout if timeout is None else timeout
        uid = DelegateUid(f"delegate-{uuid4().hex}")
        connection = DelegateConnection(
            self._config,
            self._renewals,
            finder=DelegateFinder(self._joined(), name, location),
            name=self._name,
            reports=ConnectionReports(self._name, self._refused, lambda why: self._tell_away(uid, why)),
        )
        try:
            connection.open(seconds)
            with self._lock:
                self._check_open()  # it may have been closed meanwhile
                self._connections[uid] = connection
        except BaseException:
            connection.close(0.0)
            raise
        PUBLISHERS.add(self)
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
        sending: Sending | None = None,
    ) -> RegistrationUid:
        """Register what will be published at a delegate; the id to publish with.

        `schema` is the XML Schema of the metadata (a path, or one document), `invariants` a document with the elements
        that stay constant; of both a text that begins with `<` is the document itself, any other a path. `marks` is a
        marks file for schemas that carry no marks, `type_name` the type when neither a marker element nor the root's
        name is right. Without `schema` it is that which the delegate, or a type repository that it can ask, has of
        `type_name` and `version`; if none has it, and `validate` is False, any well-formed metadata may be published,
        without `invariants`. `validate` False skips validation of each object (default [client] validate); invariants
        are always checked. Where neither is looked at, metadata may be absent, and `well_formed` False (default
        [client] well_formed) takes any bytes: no predicate on them is true then. `locations` maps URLs or namespaces to
        local schema files. `qos`: what is wished of how its objects are served (docs/qos.md). `persist`: whether its
        objects are archived there; None leaves it to the delegate's rules.

        `reliable` False (default [client] reliable): what the delegate has not acknowledged when it goes away is not
        sent again to the one that takes over. Objects that are given up leave a gap in the numbers. `expiration`:
        seconds after which an object that still waits, here or for a subscriber, is given up (default [client]
        expiration; 0: never). `local`: its objects are for this delegate's subscribers alone, bridges and networks
        leave them. `owner`: whose they are, for subscribers that do not want those (`unlike`). `sending`: see there.

        Raises UnknownUidError, QosDeniedError (a field that `qos` requires is not granted), SchemaError,
        TypeConflictError, MetadataError, InvariantError (one is missing), OversizeError (no lookup service lists it),
        ArgumentError, AccessDeniedError, ConfigurationError (`persist` without an archive), StorageError, WireError.
        """
        connection = self._connection(delegate)
        options = RegistrationOptions(
            schema, marks, type_name, version, locations, validate, well_formed, qos, persist, reliable, expiration,
            local, owner, sending,
        )  # fmt: skip
        terms = options.terms(self._config.client)
        info_type = options.open_type(self._types, connection.schema, validate=terms.validate)
        try:
            publication = opened(info_type, invariants, terms, self._signer)
            self._register(publication, connection)
        except BaseException:
            self._forget_if_idle(info_type)
            raise
        return publication.uid

    @checked
    def publish(
        self,
        registration: RegistrationUid,
        metadata: Document | None,
        payload: Payload = None,
        *,
        timeout: float | None = None,
        attributes: ObjectAttributes | None = None,
    ) -> str:
        """Publish an object; its id. Checked here, then queued for the delegate; `flush` waits until it has it.

        `metadata` as a text is a path unless it begins with `<`, None or b"" for none (see `register_publisher`);
        `payload` as a text is the payload itself; a Path or a binary file of more than [link] `spool` bytes is copied
        to a file of ours before this returns, and never in memory (docs/objects.md). `attributes`: quality of service
        of this object alone. Waits up to `timeout` seconds (default [queue] publish_seconds) for room. Raises
        UnknownUidError, ConfigurationError (attributes out of range),
        MetadataError (path of the element; a payload's file that can't be read, or has changed meanwhile),
        InvariantError, OversizeError, BackPressureError, StorageError (a large payload found no place), WireError (the
        delegate refused to take the registration back after a failure).
        """
        publication, connection = self._publication(registration)
        data = metadata_bytes(metadata)
        publication.check(data)
        seconds = self._config.queue.publish_seconds if timeout is None else timeout
        body = self._payloads.body(payload, publication.terms.max_payload, seconds)
        (object_id,) = _queue(publication, connection, [(data, body)], seconds, checked_attributes(attributes))
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
        publication, connection = self._publication(registration)
        ids: list[str] = []
        seconds = self._config.queue.publish_seconds if timeout is None else timeout
        limit = publication.terms.max_payload

        body = partial(self._payloads.body, limit=limit, seconds=seconds)
        with counting(ids):
            for run in runs_of(objects, publication.check, body=body, at_once=min(limit, MAX_PAYLOAD_BYTES)):
                ids += _queue(publication, connection, run, seconds)
        return ids

    @checked
    def wait_for_subscribers(self, registration: RegistrationUid, count: int = 1, timeout: float = 10.0) -> int:
        """Number of subscriptions that match the registration at its delegate, as soon as there are `count`, or after
        `timeout` seconds; 0 while the delegate can't be asked. Nobody has to wait for that: who stands before an object
        is published gets it. Raises UnknownUidError."""
        publication, connection = self._publication(registration)
        return connection.wait_for_subscriptions(publication, count, timeout)

    @checked
    def flush(self, timeout: float = 10.0) -> None:
        """Wait until the delegates have all that was published before. Raises BackPressureError after `timeout` s."""
        self._check_open()
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
        connection.registrations.unregister(publication)
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}{', closed' if self._closed else ''}>"

    def status(self) -> dict[str, Any]:
        """Connections and registrations as plain data."""
        with self._lock:
            return {
                "name": self._name,
                "delegates": {uid: c.status() for uid, c in self._connections.items()},
                "registrations": {uid: _described(*pair) for uid, pair in self._publications.items()},
            }

    def _leave(self, timeout: float) -> None:
        with self._lock:
            connections = list(self._connections.values())
        deadline = time.monotonic() + timeout
        for connection in connections:
            connection.close(max(0.0, deadline - time.monotonic()))
        self._renewals.stop()
        if self._community is not None:
            self._community.close()

    def _tell_away(self, delegate: DelegateUid, why: str) -> None:
        if self._away is not None and not self._closed:
            called(self._away, delegate, why)

    def _joined(self) -> JoinManager:
        with self._lock:
            if self._community is None:
                self._community = JoinManager(self._config, name=self._name)
            return self._community

    def _register(self, publication: LocalPublication, connection: DelegateConnection) -> None:
        """Raises the delegate's errors or WireError: then, or interrupted, there is no such registration."""
        try:
            connection.registrations.register(publication)
            with self._lock:
                self._publications[publication.uid] = (publication, connection)
        except BaseException:
            with self._lock:
                self._publications.pop(publication.uid, None)
            connection.registrations.abandon(publication.uid)
            raise

    def _forget_if_idle(self, info_type: InformationType | UntypedGate) -> None:
        """A registration came to nothing, or has ended: its schema must not stand in the way of another one."""
        with self._lock:
            used = any(p.info_type is info_type for p, _ in self._publications.values())
        if not used:
            self._types.forget(info_type.type)

    def _connection(self, delegate: DelegateUid) -> DelegateConnection:
        self._check_open()
        found = self._connections.get(delegate)
        if found is None:
            raise unknown_uid("delegate", delegate, "connect_to_delegate")
        return found


def _described(publication: LocalPublication, connection: DelegateConnection) -> dict[str, Any]:
    return {
        "type": str(publication.info_type.type),
        "published": publication.sequence,
        "unfinished": connection.queue.unfinished(publication.number),
        "signs": publication.signs,
    }


def _queue(
    publication: LocalPublication,
    connection: DelegateConnection,
    run: Sequence[tuple[bytes, Body]],
    seconds: float,
    attributes: ObjectAttributes | None = None,
) -> list[str]:
    with publication.lock:
        before = publication.sequence
        try:
            parcels = publication.next_objects(run, attributes)
            connection.publish(publication, parcels, seconds)
        except BaseException:  # a signal's handler, too
            publication.sequence = max(before, connection.queue.queued(publication.number))  # others' are used again
            raise
    prefix, first = prefix_of(publication.uid), parcels[0].head.sequence
    return [numbered(prefix, number) for number in range(first, first + len(parcels))]
