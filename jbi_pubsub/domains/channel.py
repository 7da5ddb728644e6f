"""A domain's channel, as its applications and clients use it (the notification channel of paper 3.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from jbi_pubsub.core.cache import Cache
from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.subscriber import SubscriptionUid
from jbi_pubsub.subscriber.moments import Moment
from jbi_pubsub.subscriber.query import Query

from .event import StructuredEvent
from .services import Services

log = logging.getLogger("jbi_pubsub.domains")

HAD_MOST: Final = 10_000
"""Events that a listener is known to have had."""

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


class DomainChannel(Protocol):
    """Events go and come by it; see Domain."""

    @property
    def number(self) -> int:
        """Number of the domain."""
        ...

    @property
    def reference(self) -> ServiceRef:
        """Reference by which the channel is reached: its delegate."""
        ...

    @property
    def services(self) -> Services:
        """Offers of the domain."""
        ...

    def publish(self, event: StructuredEvent, type_: str) -> str:
        """Publish an event; the object's id."""
        ...

    def announce(self, event: StructuredEvent, type_: str) -> object:
        """Be let publish events like it."""
        ...

    def listen(
        self, type_: str, constraint: str, listener: ObjectListener, *, durable: str | None = None
    ) -> SubscriptionUid:
        """Have events told for which the constraint is true; under a name that is `durable` those as well that came
        while nobody listened."""
        ...

    def unlisten(self, subscription: SubscriptionUid) -> None:
        """Have nothing told of it any more."""
        ...

    def past(
        self,
        type_: str,
        constraint: str,
        since: Moment | None,
        until: Moment | None = None,
        *,
        registrations: Sequence[str] = (),
    ) -> Query:
        """Events that archives have, published between these, of some registrations or of all; to be used in a
        `with`."""
        ...

    def forget(self, member: object) -> bool:
        """A member has left; whether it was one."""
        ...
