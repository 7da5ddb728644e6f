"""A domain as applications and clients see it: what is found by the same lookup services (paper 3.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import AdapterStateError, ConfigurationError, JbiError
from jbi_pubsub.core.info_object import ObjectAttributes
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.section import YEAR
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight, RegistrationUid
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid
from jbi_pubsub.subscriber.moments import Moment
from jbi_pubsub.subscriber.query import Query

from .application import Application
from .channel import EventListener, ObjectListener
from .client import Client
from .event import SCHEMA, StructuredEvent
from .journal import ClientJournal
from .service_type import PropertyValue
from .services import Services

log = logging.getLogger("jbi_pubsub.domains")

LEAST_PERIOD: Final = 0.001
"""Seconds between two monitoring events."""
REGISTRATIONS_MOST: Final = 1_000
"""Types and domains of events that one process publishes; for one more the one goes that was first."""


class _DomainSubscriber(SubscriberAdapter):
    """The subscriber adapter of a domain, of which a process may know several."""

    _is_only = False

    def __init__(self, config: Config, *, name: str) -> None:
        super().__init__(config, name=name)
        self._subscriptions.warns = False  # commands and talk are listened for before there are any


class _DomainPublisher(PublisherAdapterLight):
    """The publisher adapter of a domain, which knows where its channel is."""

    def reference(self, delegate: DelegateUid) -> ServiceRef:
        """Reference to a delegate. Raises WireError while there is none."""
        return self._connection(delegate).ref()


class Domain:
    """Applications and clients of this process in a domain.

        with Domain() as domain:
            app = domain.application("heat", lambda: {"residual": grid.residual}, period=0.5)
            app.steer("alpha", set=grid.set_alpha, get=grid.alpha)
            anna = domain.client("anna")
            anna.watch("heat", "residual > 0.001", print)
            anna.set("heat", "alpha", 0.2)

    Any thread."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        name: str = "domain",
        delegate: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """`config`: default that of the file and the environment, with [domain] number; `name`: as the adapters are
        called; `delegate`: characteristics of the domain's channel. Raises ConfigurationError, LookupNotFoundError,
        DelegateNotFoundError."""
        config = config or effective()
        self.number: Final = config.domain.number
        self._lock = threading.Lock()
        """Covers the members."""
        self._registering = threading.Lock()
        """Covers the registrations, and is held while one is made."""
        self._registrations: dict[tuple[str, str, str, int, bool], RegistrationUid] = {}
        self._members: list[Application | Client] = []
        self._closed = False
        with ExitStack() as undo:
            self.services: Final = undo.enter_context(Services(config, name=name))
            self._subscriber = _DomainSubscriber(config, name=name)
            undo.callback(self._subscriber.close)
            self._publisher = _DomainPublisher(config, name=name, away=self._away)
            undo.callback(self._publisher.close)
            self._at = self._publisher.connect_to_delegate(*delegate)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """Close applications, have clients be away, and leave. Safe to repeat."""
        with self._lock:
            self._closed = True
            members = list(self._members)
        for each in members:
            each.close() if isinstance(each, Application) else each.away()
        self._undo.close()

    def application(
        self,
        name: str,
        state: Callable[[], Mapping[str, PropertyValue]],
        *,
        period: float = 1.0,
        categories: tuple[str, ...] = (),
    ) -> Application:
        """An application of this process: `state` gives what its monitoring events say, each `period` seconds, to
        clients of these `categories`, as rules of access say them; () for all. Raises LookupNotFoundError,
        AccessDeniedError, EntryError, AdapterStateError, ConfigurationError (no name, or too short a period)."""
        if not name or not LEAST_PERIOD <= period <= YEAR:
            raise ConfigurationError(
                f"application {name!r:.80} with a period of {period:g} s",
                hint=f"It needs a name, and a period of {LEAST_PERIOD:g} seconds at least",
            )
        made = Application(self, name, state, period)
        self._add(made)
        try:
            made.start(categories)
        except BaseException:
            made.close()
            raise
        return made

    def client(
        self,
        name: str,
        heard: EventListener = lambda event: None,  # noqa: ARG005  # nobody listens
        *,
        journal: Path | str | None = None,
    ) -> Client:
        """A client of this process; `heard` is told what others say to it, or to groups that it joins. `journal`: file
        in which it remembers what it has had, so that it may go on in another domain; made if it is not there. Raises
        LookupNotFoundError, AccessDeniedError, AdapterStateError, ConfigurationError (no name), StorageError (another
        process has it open)."""
        if not name:
            raise ConfigurationError("a client without a name", hint="Give it one, by which others talk to it")
        kept = None if journal is None else ClientJournal(Path(journal), name)
        with ExitStack() as undo:
            if kept is not None:
                undo.callback(kept.close)
            made = Client(self, name, heard, kept)
            undo.callback(made.away)
            self._add(made)
            undo.pop_all()
        return made

    def publish(self, event: StructuredEvent, type_: str) -> str:
        """Publish an event of one of the three types; the object's id. Events of a domain and type keep their order,
        but for those of another priority. Raises MetadataError, AccessDeniedError, BackPressureError, WireError."""
        metadata, said = event.metadata(), event.attributes()
        registration = self._registration(event, type_, metadata, said)
        return self._publisher.publish(registration, metadata, event.remainder or None, attributes=said)

    def announce(self, event: StructuredEvent, type_: str) -> RegistrationUid:
        """Be let publish events like it; the registration, by which the first one goes. Raises as `publish`."""
        return self._registration(event, type_, event.metadata(), event.attributes())

    def _registration(
        self, event: StructuredEvent, type_: str, metadata: bytes, said: ObjectAttributes | None
    ) -> RegistrationUid:
        priority, reliable = (said.priority, said.reliable) if said is not None else (0, True)
        key = type_, event.domain, event.type, priority, reliable
        with self._registering:  # or two would register the same
            registration = self._registrations.get(key)
            if registration is None:
                registration = self._publisher.register_publisher(
                    self._at, SCHEMA, metadata, type_name=type_,
                    qos=Wish(importance=priority) if priority else None, reliable=None if reliable else False,
                )  # fmt: skip
                self._registrations[key] = registration
            gone = [] if len(self._registrations) <= REGISTRATIONS_MOST else [next(iter(self._registrations))]
            ended = [self._registrations.pop(each) for each in gone]
        for each in ended:
            self._publisher.unregister_publisher(each)
        return registration

    def listen(
        self, type_: str, constraint: str, listener: ObjectListener, *, durable: str | None = None
    ) -> SubscriptionUid:
        """Have events of a type told for which the constraint is true; under a name that is `durable` those as well
        that came since somebody listened under it, where delegates have archives. Raises PredicateError,
        LookupNotFoundError, and AdapterStateError for a durable one that is open here."""
        return self._subscriber.register_subscriber(
            type_name=type_, version="1.0", predicate=constraint, language="tcl", schema=SCHEMA, durable=durable,
            listener=lambda subscription, obj: listener(obj),  # noqa: ARG005  # the listener's form
        )  # fmt: skip

    def unlisten(self, subscription: SubscriptionUid) -> None:
        """Have nothing told of it any more. Raises WireError when a delegate that has not answered goes on to remember
        it."""
        self._subscriber.cancel_subscription(subscription)

    def past(
        self,
        type_: str,
        constraint: str,
        since: Moment | None,
        until: Moment | None = None,
        *,
        registrations: Sequence[str] = (),
    ) -> Query:
        """Events that archives have, published between these, of some registrations or of all; to be used in a `with`.
        Raises UnknownUidError, PredicateError."""
        return self._subscriber.open_query(
            type_, predicate=constraint, language="tcl", since=since, until=until, registrations=registrations or None
        )

    @property
    def reference(self) -> ServiceRef:
        """Reference to the channel, its delegate. Raises WireError while it is away."""
        return self._publisher.reference(self._at)

    def _away(self, delegate: str, why: str) -> None:  # noqa: ARG002  # there is one
        """The channel is away, or, for no reason, there again, perhaps another delegate."""
        with self._lock:
            applications = [each for each in self._members if isinstance(each, Application)]
        for each in () if why else applications:
            try:
                each.moved()
            except JbiError as exc:  # away again, or the application is just leaving
                log.info("the offer of application %s refers to the previous channel: %s", each.name, exc)

    def forget(self, member: object) -> bool:
        """A member has left; whether it was one."""
        with self._lock:
            left = [each for each in self._members if each is not member]
            was_member = len(left) < len(self._members)
            self._members = left
        return was_member

    def _add(self, member: Application | Client) -> None:
        with self._lock:
            if self._closed:
                raise AdapterStateError("this domain is closed", hint="Make applications and clients before close()")
            self._members.append(member)
