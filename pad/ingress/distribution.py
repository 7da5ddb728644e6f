"""Distribution of objects to those whom they match: to sessions of subscribers, and as mail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

from jbi_pubsub.core.info_object import Cause, Head, InfoObject, LargeObject, Parcel
from jbi_pubsub.core.quality import PayloadShape
from jbi_pubsub.core.spool import MEMORY_BYTES
from jbi_pubsub.pad.egress.session import Deliveries, SubscriberSession
from jbi_pubsub.pad.ingress.totals import Totals
from jbi_pubsub.pad.mail.dispatcher import MailDispatcher
from jbi_pubsub.pad.matching.dissemination import (
    Disseminated,
    Seal,
    Selected,
    ShapedLater,
    disseminate,
    is_shaped,
    shaped,
)
from jbi_pubsub.pad.model.quality import Shaping
from jbi_pubsub.pad.model.subscription import Subscription

SHAPED_AT_ONCE: Final = 0.002
"""Estimated seconds of shaping that is not done at once, but when it is its turn."""


class Distribution:
    """See the module. Safe from several threads; the objects of a registration come from one at a time."""

    def __init__(
        self,
        sessions: Mapping[str, SubscriberSession],
        mail: MailDispatcher,
        totals: Totals,
        *,
        seal: Seal | None = None,
        shaper: Shaping | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sessions` by id: they come and go meanwhile; `totals` take what comes for those who have gone; `seal` says
        what was cut."""
        self._sessions = sessions
        self._mail = mail
        self._totals = totals
        self._seal = seal
        self.shaper = shaper
        self._clock = clock
        self._unpacked: tuple[Head, InfoObject] | None = None

    def cut(
        self, parcel: Parcel, matched: list[Subscription], behind: Container[Subscription] | None, *, has_filters: bool
    ) -> Disseminated | None:
        """Filter and shape an object for those whom it matched; None: it goes to all as it is. What takes long is for
        later, as is all for those who are `behind`; None: all is done now. `has_filters`: some subscription has one."""
        if (has_filters and any(s.payload_filter is not None for s in matched)) or (
            self.shaper is not None and (behind or any(map(is_shaped, matched)))
        ):
            wait = None if behind is None else self._shaped_later(parcel, behind)
            return disseminate(parcel, matched, self._seal, self.shaper, wait)
        return None

    def hand_out(
        self,
        parcel: Parcel,
        matched: list[Subscription],
        deliveries: Deliveries,
        result: Disseminated | None = None,
    ) -> Sequence[Selected]:
        """An object for those whom it matched; `result`: what their filters and shapes have made of it, if any has
        one. For whom it is to be shaped later."""
        if result is None:
            for subscription in matched:
                self._deliver(subscription, parcel, parcel, deliveries)
            return ()
        self._deliver_filtered(result, parcel, deliveries)
        return result.later

    def _shaped_later(self, published: Parcel, behind: Container[Subscription]) -> ShapedLater:
        """Test of who has an object shaped later: it takes long, or he waits for one before it."""

        def is_later(each: Selected, shapes: tuple[PayloadShape, ...]) -> bool:
            if each.subscription in behind:
                return True
            assert self.shaper is not None
            return bool(shapes) and (
                self.shaper.seconds(published.head, each.wanted, each.parcel.payload, shapes) > SHAPED_AT_ONCE
            )

        return is_later

    def shape(self, published: Parcel, selected: Sequence[Selected], deliveries: Deliveries) -> None:
        """An object in the shapes of those who were to wait for it."""
        assert self.shaper is not None
        self._deliver_filtered(shaped(published, selected, self._seal, self.shaper), published, deliveries)

    def _deliver_filtered(self, result: Disseminated, published: Parcel, deliveries: Deliveries) -> None:
        for subscription in result.suppressed:
            subscription.matched += 1
            subscription.suppressed += 1
        for selected in result.selected:
            selected.subscription.unfiltered += not selected.filtered
            self._deliver(selected.subscription, selected.parcel, published, deliveries)
        for subscription in result.oversize:
            subscription.meter_lost(published.head.type_name)
            self.refuse(subscription, Cause.OVERSIZE)

    def lose(
        self, subscriptions: Iterable[Subscription], cause: Cause, count: int, position: int, since: float = math.inf
    ) -> None:
        """So many objects that these would have got never came, before that position of the buffer (0 objects: it is
        not known how many); those that stood when the last was published, `since`, are told."""
        for subscription in subscriptions:
            session = self._sessions.get(subscription.owner)
            if session is not None and subscription.place < position and subscription.since <= since:
                session.lose(subscription, cause, count)

    def refuse(self, subscription: Subscription, cause: Cause) -> None:
        """An object that it matches is not for it."""
        request = subscription.request
        session = self._sessions.get(subscription.owner) if request.direct else None
        if request.direct and (session is None or not session.refuse(subscription, cause)):
            self._came_to_nothing((subscription,))
        if request.recipients and not self._mail.refuse(subscription, cause):
            self._mail_came_to_nothing(subscription)

    def _deliver(self, subscription: Subscription, parcel: Parcel, published: Parcel, deliveries: Deliveries) -> None:
        """`parcel` is what the subscription's filter has left of `published`."""
        request = subscription.request
        if request.direct:
            session = self._sessions.get(subscription.owner)
            if session is not None:
                deliveries.add(session, subscription, parcel)
            else:
                self._came_to_nothing((subscription,))
        if request.recipients:
            self.mail_out(subscription, parcel, published)

    def mail_out(self, subscription: Subscription, parcel: Parcel, published: Parcel) -> None:
        """An object for the subscription's recipients; `parcel` is what its filter has left of `published`."""
        if len(published.payload) > MEMORY_BYTES:
            if not self._mail.refuse(subscription, Cause.OVERSIZE):
                self._mail_came_to_nothing(subscription)
            return
        head, obj = self._unpacked or (None, None)
        if obj is None or head is not published.head:  # mails of one object share what is made of it
            obj = published.unpacked()
            if not isinstance(obj, LargeObject):  # its file is to go with the last who gets it
                self._unpacked = published.head, obj
        payload = obj.payload if parcel is published else bytes(parcel.payload)
        contract = subscription.contract
        if contract is None and not published.expires:
            is_taken = self._mail.offer(subscription, obj, payload)
        else:
            by_object = contract is not None and contract.by_object is not None
            deadline = contract.of(published).deadline if contract is not None and by_object else None
            since = published.since
            if published.expires:
                since = since or self._clock()
                deadline = min(published.expires - since, math.inf if deadline is None else deadline)
            is_taken = self._mail.offer(subscription, obj, payload, deadline, since)
        if not is_taken:  # cancelled since the match
            self._mail_came_to_nothing(subscription)

    def _mail_came_to_nothing(self, subscription: Subscription) -> None:
        lost = {str(subscription.ended): len(subscription.request.recipients)}
        self._totals.add(matched=int(not subscription.request.direct), lost=lost)

    def _came_to_nothing(self, gone: Sequence[Subscription]) -> None:
        for subscription in gone:
            self._totals.add(matched=1, lost={str(subscription.ended): 1})

    def deliver(self, deliveries: Deliveries) -> None:
        """Bring what was gathered to the subscribers' queues, and out."""
        gone = deliveries.offer()
        if gone:  # cancelled, or their session over, since the match: those have accounted for what they held
            self._came_to_nothing(gone)

    def deliver_without_waiting(self, deliveries: Deliveries, waited: float = 0.0) -> Deliveries | None:
        """The same, for who may not wait for subscribers under policy `block`: what they have no room for, to be tried
        again; None: nothing. `waited`: the seconds since it was tried first."""
        gone, blocked = deliveries.offer_without_waiting(waited)
        if gone:
            self._came_to_nothing(gone)
        return blocked
