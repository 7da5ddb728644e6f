"""A domain's channel, as its applications and clients use it (the notification channel of paper 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from jbi_pubsub.core.info_object import InfoObject
from jbi_pubsub.subscriber import SubscriptionUid
from jbi_pubsub.subscriber.moments import Moment

from .event import StructuredEvent
from .services import Services

EventListener = Callable[[StructuredEvent], object]
"""Called with each event, on a thread of the subscription, one at a time."""


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
        self, type_: str, constraint: str, listener: EventListener, *, durable: str | None = None
    ) -> SubscriptionUid:
        """Have events told for which the constraint is true; under a name that is `durable` those as well that came
        while nobody listened."""
        ...

    def unlisten(self, subscription: SubscriptionUid) -> None:
        """Have nothing told of it any more."""
        ...

    def past(self, type_: str, constraint: str, since: Moment | None) -> Iterator[InfoObject]:
        """Events that archives have."""
        ...

    def forget(self, member: object) -> bool:
        """A member has left; whether it was one."""
        ...
