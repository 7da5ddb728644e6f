"""Offers of publishers for their objects, against what subscriptions require. Pure; the delegate's lock covers
it.

Requested and offered, as in DDS (OMG DDS 1.4, 2.2.3): but per field, told to who requires it, and it keeps no object
from anybody.
"""

from __future__ import annotations

from collections.abc import Collection

from jbi_pubsub.core.quality import OFFERED, UNMET_MOST, Unmet, Wish, unmet
from jbi_pubsub.pad.matching.registration import Registration
from jbi_pubsub.pad.model.subscription import Subscription


class Offers:
    """See the module. Only those are known that require, or offer, something. A subscription is told UNMET_MOST, and
    others when these have gone."""

    def __init__(self) -> None:
        self._offering: dict[Registration, Wish] = {}
        self._requiring: dict[Subscription, None] = {}

    def required_by(self, subscription: Subscription) -> None:
        """Note that it stands, in the tables of its topics."""
        if not set(OFFERED).isdisjoint(subscription.request.qos.require):
            self._requiring[subscription] = None
            self._look_again(subscription)

    def forget(self, subscription: Subscription) -> None:
        """Note that it has ended. Safe to repeat."""
        self._requiring.pop(subscription, None)

    def made_by(self, registration: Registration, offer: Wish) -> list[Subscription]:
        """Note that it stands; those whose requirements it does not meet."""
        if all(getattr(offer, name) is None for name in OFFERED):
            return []
        self._offering[registration] = offer
        touched = []
        for subscription in self._requiring:
            found = unmet(subscription.request.qos, offer, registration.uid)
            if found and len(subscription.unmet) < UNMET_MOST and subscription in registration.topic.table:
                subscription.unmet = (*subscription.unmet, *found)[:UNMET_MOST]
                touched.append(subscription)
        return touched

    def withdraw(self, registrations: Collection[Registration]) -> list[Subscription]:
        """They have ended. Those whose requirements they did not meet."""
        gone = {each.uid for each in registrations if self._offering.pop(each, None) is not None}
        if not gone:
            return []
        touched = [s for s in self._requiring if any(each.registration in gone for each in s.unmet)]
        for subscription in touched:
            subscription.unmet = tuple(each for each in subscription.unmet if each.registration not in gone)
            if not subscription.unmet:
                self._look_again(subscription)
        return touched

    def _look_again(self, subscription: Subscription) -> None:
        found: list[Unmet] = []
        for registration, offer in self._offering.items():
            if subscription in registration.topic.table:
                found += unmet(subscription.request.qos, offer, registration.uid)
            if len(found) >= UNMET_MOST:
                break
        subscription.unmet = tuple(found[:UNMET_MOST])
