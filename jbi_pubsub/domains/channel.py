"""A domain's channel, as its applications and clients use it (the notification channel of paper 3.3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from jbi_pubsub.core.errors import MetadataError
from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.subscriber import SubscriptionUid
from jbi_pubsub.subscriber.moments import Moment
from jbi_pubsub.subscriber.query import Query

from .event import StructuredEvent
from .services import Services

log = logging.getLogger("jbi_pubsub.domains")

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
            log.warning("an object of %s is no event: %s", obj.type.name, exc)
            return
        listener(event)

    return arrived


class DomainChannel(Protocol):
    """Events go and come by it; see Domain."""

    @property
    def number(self) -> int:
        """Number of the domain."""
        ...

    @property
    def services(self) -> Services:
        """Offers of the domain."""
        ...

    def publish(self, event: StructuredEvent, type_: str) -> str:
        """Publish an event; the object's id."""
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
