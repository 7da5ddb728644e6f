"""A domain's channel, as its applications and clients use it (the notification channel of paper 3.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import InfoObject, ObjectAttributes
from jbi_pubsub.core.quality import Wish
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.publisher import DelegateUid, PublisherAdapterLight, RegistrationUid
from jbi_pubsub.subscriber import SubscriberAdapter, SubscriptionUid
from jbi_pubsub.subscriber.moments import Moment
from jbi_pubsub.subscriber.query import Query

from .event import SCHEMA, StructuredEvent
from .services import Services

log = logging.getLogger("jbi_pubsub.domains")

HAD_MOST: Final = 10_000
"""Events that a listener is known to have had."""
REGISTRATIONS_MOST: Final = 1_000
"""Types and domains of events that one process publishes; for one more the one goes that was first."""

EventListener = Callable[[StructuredEvent], object]
"""Called with each event, on a thread of the subscription, one at a time."""
ObjectListener = Callable[[InfoObject], object]
"""Called with each event as the object that it came as, in the same way."""


def told(listener: EventListener) -> ObjectListener:
    """Listener to objects that tells their events; what is none is logged."""

    def arrived(obj: InfoObject) -> None:
        try:
            event = StructuredEvent.read(obj.metadata, obj.payload)
        except MetadataError as exc:
            log.warning("an object of %s is not an event: %s", obj.type.name, exc)
            return
        listener(event)

    return arrived


class ListenerQueue:
    """Events for one listener that come over several channels: each once, by its object's id, and one at a time. Any
    thread."""

    def __init__(self, listener: EventListener) -> None:
        self.listener: Final = listener
        self._tell = told(listener)
        self._changed = threading.Condition()
        self._is_telling = False
        self._had: Cache[str, None] = Cache(HAD_MOST)

    def arrived(self, obj: InfoObject, over: threading.Event) -> bool:
        """Tell an event, unless it has come over another channel before, or its own is `over`; whether it was told.
        Raises what the listener does: then it has not come."""
        with self._changed:
            self._changed.wait_for(lambda: over.is_set() or not self._is_telling)
            if over.is_set() or obj.object_id in self._had:
                return False
            self._is_telling = True
        try:
            self._tell(obj)
            self._had[obj.object_id] = None
        finally:
            with self._changed:
                self._is_telling = False
                self._changed.notify_all()
        return True

    def end(self, over: threading.Event) -> None:
        """Have a channel be over: nothing of it waits for its turn any more, perhaps in a call that ends it."""
        with self._changed:
            over.set()
            self._changed.notify_all()


class ListenerChannel:
    """One of the channels over which events come for a listener. Any thread."""

    def __init__(self, queue: ListenerQueue, consumed: ObjectListener = lambda obj: None) -> None:  # noqa: ARG005  # nobody
        """`consumed` is called with each object that was told over this channel."""
        self._queue, self._consumed = queue, consumed
        self._over = threading.Event()

    def arrived(self, obj: InfoObject) -> None:
        """Tell an event (see ListenerQueue)."""
        if self._queue.arrived(obj, self._over):
            self._consumed(obj)

    def end(self) -> None:
        """Tell nothing any more, but what is just being told."""
        self._queue.end(self._over)


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


class DomainChannel:
    """Channel of a domain: events go and come by it. Any thread."""

    def __init__(
        self, config: Config, name: str, delegate: tuple[str | None, str | None], away: Callable[[str, str], None]
    ) -> None:
        """`away` is told by which delegate it is away, and why, or, for no reason, that it is there again. Raises as
        Domain."""
        self.number: Final = config.domain.number
        self._lock = threading.Lock()
        """Covers the members."""
        self._members: list[object] = []
        """Applications and clients."""
        self._registering = threading.Lock()
        """Covers the registrations, and is held while one is made."""
        self._registrations: dict[tuple[str, str, str, int, bool], RegistrationUid] = {}
        with ExitStack() as undo:
            self.services: Final = undo.enter_context(Services(config, name=name))
            self._subscriber = _DomainSubscriber(config, name=name)
            undo.callback(self._subscriber.close)
            self._publisher = _DomainPublisher(config, name=name, away=away)
            undo.callback(self._publisher.close)
            self._at = self._publisher.connect_to_delegate(*delegate)
            self._undo = undo.pop_all()

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

    def forget(self, member: object) -> bool:
        """A member has left; whether it was one."""
        with self._lock:
            left = [each for each in self._members if each is not member]
            was_member = len(left) < len(self._members)
            self._members = left
        return was_member
