"""PublisherAdapter (PA): publishes peer to peer, without a delegate (paper section 2.4, end).

The application's own process does what a delegate does, with the delegate's code: leases, queues, predicates,
filters, e-mail. Calls are those of PublisherAdapterLight without the delegate.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from jbi_pubsub.codegen.repository import TypeRepository
from jbi_pubsub.core.arguments import Document, Source, checked
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.info_object import ObjectAttributes, Parcel
from jbi_pubsub.core.open_adapters import PUBLISHERS
from jbi_pubsub.core.process import Birthplace
from jbi_pubsub.core.quality import Wish, checked_attributes
from jbi_pubsub.pad.egress.session import Deliveries
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.server.server import DisseminationServer
from jbi_pubsub.protocol.remote import RemoteArchive
from jbi_pubsub.protocol.sending import Sending
from jbi_pubsub.trust.settings import signer_of

from .adapter import PublishingAdapter
from .payloads import Body, Payload, Payloads
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


class PublisherAdapter(PublishingAdapter[Registration]):
    """A peer publisher. Safe for several threads; objects of one registration keep the order of publish calls."""

    @checked
    def __init__(self, config: Config | None = None) -> None:
        """Opens the port that subscribers connect to; without `config` the configuration file and variables count.

        Raises PortInUseError or ConfigurationError.
        """
        super().__init__()
        self._config = config or effective()
        self._signer = signer_of(self._config)
        self._types = TypeRepository(cache_dir=self._config.type_cache(), only_known=self._config.types.only_known)
        self._server = DisseminationServer(self._config, self._types, characteristics=None)
        self._payloads = Payloads(self._server.service.data.spool)
        self._server.delegate.pipeline.numbers_again = True
        self._server.start()
        self._connection = self._server.delegate.publishers.connect_own()
        self._numbers = itertools.count(1)
        PUBLISHERS.add(self)

    @checked
    def register_publisher(
        self,
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
        timeout: float | None = None,
    ) -> RegistrationUid:
        """Register what will be published; see PublisherAdapterLight.register_publisher."""
        self._check_open()
        options = RegistrationOptions(
            schema, marks, type_name, version, locations, validate, well_formed, qos, persist, reliable, expiration,
            local, owner, sending,
        )  # fmt: skip
        terms = options.terms(self._config.client)
        info_type = options.open_type(self._types, self._server.service.repositories.schema, validate=terms.validate)
        try:
            publication = opened(info_type, invariants, terms, self._signer)
        except BaseException:
            self._server.delegate.registrations.forget_type(info_type.type)
            raise
        request = publication.request()
        self._server.service.repositories.check_type(request)
        publication.number = next(self._numbers)
        registration = self._register(publication)
        self._publications[publication.uid] = (publication, registration)
        try:
            seconds = self._config.lookup.timeout if timeout is None else timeout
            self._server.service.presence.wait_announced(registration.uid, seconds)
        except BaseException:
            self.unregister_publisher(publication.uid)
            raise
        return publication.uid

    def _register(self, publication: LocalPublication) -> Registration:
        """At our own delegate; again, when another certificate answers for its key."""
        return self._server.delegate.registrations.register(
            self._connection.connection_id, publication.request(), uid=publication.uid, number=publication.number
        )

    @checked
    def publish(
        self,
        registration: RegistrationUid,
        metadata: Document | None,
        payload: Payload = None,
        *,
        attributes: ObjectAttributes | None = None,
    ) -> str:
        """Publish an object; its id. It is in its subscribers' queues when this returns. `attributes`: quality of
        service of this object alone. A call that Ctrl-C ends may stop deliveries for good, as the delegate's work is
        done on the caller's thread: who goes on after Ctrl-C publishes from another thread than the main one.

        Raises UnknownUidError, MetadataError (path of the element), InvariantError, OversizeError, StorageError (it was
        to be archived; nobody has it, or, where it says so, subscribers have), ConfigurationError (attributes out of
        range).
        """
        publication, registered = self._publication(registration)
        data, body = metadata_bytes(metadata), self._body(publication)(payload)
        (object_id,) = self._disseminate(publication, registered, [(data, body)], checked_attributes(attributes))
        return object_id

    @checked
    def publish_many(
        self, registration: RegistrationUid, objects: Iterable[tuple[Document | None, Payload]]
    ) -> list[str]:
        """Publish many objects that are at hand; see PublisherAdapterLight.publish_many."""
        publication, registered = self._publication(registration)
        ids: list[str] = []
        with counting(ids):
            for run in runs_of(objects, body=self._body(publication)):
                ids += self._disseminate(publication, registered, run)
        return ids

    def _disseminate(
        self,
        publication: LocalPublication,
        registered: Registration,
        run: Sequence[tuple[bytes, Body]],
        attributes: ObjectAttributes | None = None,
    ) -> list[str]:
        """Up to the first object that is refused, whose error is raised with how many were `published`."""
        ids: list[str] = []
        taken: list[Parcel] = []
        pipeline = self._server.delegate.pipeline
        with publication.lock:
            if publication.is_renewed():
                self._register(publication)
            deliveries = Deliveries()
            try:
                for pair in run:
                    (parcel,) = publication.next_objects([pair], attributes)
                    refused = self._server.delegate.publishers.publish(registered, [parcel], deliveries)
                    for _, why in refused:  # see Pipeline.numbers_again
                        registered.sequence = publication.sequence = publication.sequence - 1
                        why.facts["published"] = len(ids)
                        raise why
                    ids.append(parcel.head.object_id)
                    taken.append(parcel)
            finally:
                pipeline.distribution.deliver(deliveries)
                lost = pipeline.persistence.sync(taken)
            for parcel, why in lost:
                why.facts |= {"published": ids.index(parcel.head.object_id), "delivered": True}
                raise why
        return ids

    @checked
    def unregister_publisher(self, registration: RegistrationUid) -> None:
        """Undo register_publisher. Raises UnknownUidError."""
        self._publication(registration)
        self._server.delegate.publishers.unregister(self._connection.connection_id, registration)
        del self._publications[registration]

    @checked
    def subscriptions(self, registration: RegistrationUid) -> int:
        """Number of subscriptions that match the registration now. Raises UnknownUidError."""
        return len(self._publication(registration)[1].topic.table)

    @checked
    def wait_for_subscribers(self, registration: RegistrationUid, count: int = 1, timeout: float = 10.0) -> int:
        """Number of subscriptions that match the registration, as soon as there are `count`, or after `timeout`
        seconds. Raises UnknownUidError."""
        self._publication(registration)
        return self._server.delegate.publishers.wait_for_subscriptions(
            self._connection.connection_id, registration, count, timeout
        )

    @checked
    def flush(self, timeout: float = 10.0) -> int:
        """Wait until subscribers have what was published; how many objects still wait after `timeout` seconds."""
        self._check_open()
        return self._server.delegate.drain(timeout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self._server.address}{', closed' if self._closed else ''}>"

    def status(self) -> dict[str, Any]:
        """Everything about this publisher as plain data."""
        told: dict[str, Any] = msgspec.to_builtins(self._server.status())
        return told

    def _leave(self, timeout: float) -> None:
        if left := self._server.stop(timeout):
            log.warning("%s leaves: %d objects for its subscribers are lost, not delivered in time", self, left)

    def _body(self, publication: LocalPublication) -> Callable[[Payload], Body]:
        limit, seconds = publication.terms.max_payload, self._config.queue.publish_seconds
        return lambda payload: self._payloads.body(payload, limit, seconds)


class PeerArchive:
    """A server of this process that answers queries from somewhere else, as an archive does: for a bridge, or for an
    application that is a query provider. It takes any free port, and keeps nothing."""

    def __init__(self, config: Config, archive: RemoteArchive) -> None:
        """Starts it. Raises PortInUseError, ConfigurationError."""
        plain = Config()
        own = msgspec.structs.replace(
            config,
            pad=msgspec.structs.replace(config.pad, port=0, state="", sockets=""),
            archive=plain.archive, qos=plain.qos, metrics=plain.metrics,
        )  # fmt: skip
        self._server = DisseminationServer(own, TypeRepository(), characteristics=None, remote=archive)
        self._server.start()
        self.server_id: Final = self._server.server_id
        """The id of its items in the lookup services."""
        self._birthplace = Birthplace()

    def stop(self, timeout: float = 1.0) -> None:
        """Stop answering; answers under way have `timeout` seconds."""
        if self._birthplace.is_here():  # a forked child leaves its parent's alone
            self._server.stop(timeout)
