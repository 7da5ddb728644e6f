"""Ownership as slowly and plainly as the standard says it (IEEE 1516.1-2010, clause 7), attribute by attribute: what
jbi_pubsub.hla.ownership is compared with. Each attribute is worked on alone; callbacks are told one an attribute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Refused(Exception):  # noqa: N818  # as the standard's
    """With the name of the standard's exception."""


@dataclass
class Attribute:
    """One attribute of the one instance there is."""

    owner: str = ""
    divesting: bool = False
    queue: list[tuple[str, bool]] = field(default_factory=list)
    """Who waits, and whether only if available."""

    def waits(self, federate: str) -> bool:
        return any(name == federate for name, _ in self.queue)


class Ownership:
    """One instance, of whose attributes each federate publishes some. The last attribute is the privilege to delete."""

    def __init__(self, registrant: str, attributes: int, published: dict[str, set[int]]) -> None:
        self.privilege = attributes
        self.published = published
        self.attributes = [Attribute() for _ in range(attributes + 1)]
        self.told: list[tuple[str, str, int]] = []
        for each in published[registrant] | {self.privilege}:
            self.attributes[each].owner = registrant

    def call(self, federate: str, service: str, wanted: list[int]) -> list[int]:
        """What it answers: attributes that were divested."""
        self.told = []
        act = getattr(self, service)
        return [each for each in wanted if act(federate, each)]

    # -- who may call what

    def check_all(self, federate: str, service: str, wanted: list[int]) -> None:
        """Raises Refused, for the first of them that may not be."""
        if service == "unpublish":
            if any(self.attributes[each].waits(federate) for each in self.lost(federate, wanted)):
                raise Refused("OwnershipAcquisitionPending")
        else:
            for each in wanted:
                self.check(federate, service, each)

    def lost(self, federate: str, unpublished: list[int]) -> list[int]:
        """What a federate may not own any more when it unpublishes some; with the last one the privilege."""
        left = self.published.get(federate, set()) - set(unpublished)
        return sorted(unpublished) + ([] if left else [self.privilege])

    def check(self, federate: str, service: str, which: int) -> None:
        one = self.attributes[which]
        if service in ("unconditional", "negotiated", "confirm", "if_wanted", "cancel_negotiated", "denied"):
            if one.owner != federate:
                raise Refused("AttributeNotOwned")
            if service == "negotiated" and one.divesting:
                raise Refused("AttributeAlreadyBeingDivested")
            if service in ("confirm", "cancel_negotiated") and not one.divesting:
                raise Refused("AttributeDivestitureWasNotRequested")
            if service == "confirm" and not one.queue:
                raise Refused("NoAcquisitionPending")
        if service in ("acquire", "if_available"):
            if not self.published.get(federate):
                raise Refused("ObjectClassNotPublished")
            if one.owner == federate:
                raise Refused("FederateOwnsAttributes")
            if not self.may_own(federate, which):
                raise Refused("AttributeNotPublished")
            if service == "if_available" and one.waits(federate):
                raise Refused("AttributeAlreadyBeingAcquired")
        if service == "cancel_acquisition":
            if one.owner == federate:
                raise Refused("AttributeAlreadyOwned")
            if not one.waits(federate):
                raise Refused("AttributeAcquisitionWasNotRequested")

    def may_own(self, federate: str, which: int) -> bool:
        published = self.published.get(federate, set())
        return which in published or (which == self.privilege and bool(published))

    def tell(self, federate: str, what: str, which: int) -> None:
        self.told.append((federate, what, which))

    # -- services, on one attribute

    def unconditional(self, federate: str, which: int) -> None:  # noqa: ARG002  # all take the same
        self.lose(which)

    def negotiated(self, federate: str, which: int) -> None:
        one = self.attributes[which]
        one.divesting = True
        if one.queue:
            self.tell(federate, "request_divestiture_confirmation", which)
        else:
            self.offer(which)

    def confirm(self, federate: str, which: int) -> None:  # noqa: ARG002
        self.to_first(which)

    def if_wanted(self, federate: str, which: int) -> bool:  # noqa: ARG002
        if not self.attributes[which].queue:
            return False
        self.to_first(which)
        return True

    def denied(self, federate: str, which: int) -> None:
        pass

    def cancel_negotiated(self, federate: str, which: int) -> None:
        self.attributes[which].divesting = False
        self.keeps(federate, which)

    def acquire(self, federate: str, which: int) -> None:
        one = self.attributes[which]
        if not one.owner:
            one.queue = [(federate, False)]
            self.to_first(which)
        elif one.waits(federate):
            one.queue = [(name, weak and name != federate) for name, weak in one.queue]
        else:
            one.queue.append((federate, False))
            if not one.divesting:
                self.tell(one.owner, "request_attribute_ownership_release", which)
            elif len(one.queue) == 1:
                self.tell(one.owner, "request_divestiture_confirmation", which)

    def if_available(self, federate: str, which: int) -> None:
        one = self.attributes[which]
        if not one.owner:
            one.queue = [(federate, True)]
            self.to_first(which)
        elif one.divesting and not one.queue:
            one.queue.append((federate, True))
            self.tell(one.owner, "request_divestiture_confirmation", which)
        else:
            self.tell(federate, "attribute_ownership_unavailable", which)

    def cancel_acquisition(self, federate: str, which: int) -> None:
        self.leave_queue(federate, which)
        self.tell(federate, "confirm_attribute_ownership_acquisition_cancellation", which)

    # -- what else happens

    def unpublish(self, federate: str, wanted: list[int]) -> None:
        self.told = []
        lost = self.lost(federate, wanted)
        self.published[federate] = self.published.get(federate, set()) - set(wanted)
        for each in lost:
            if self.attributes[each].owner == federate:
                self.lose(each)

    def publish(self, federate: str, wanted: list[int]) -> None:
        self.told = []
        self.published[federate] = self.published.get(federate, set()) | set(wanted)
        for which, one in enumerate(self.attributes):
            is_free = not one.owner or (one.divesting and one.owner != federate)
            if is_free and self.may_own(federate, which):
                self.tell(federate, "request_attribute_ownership_assumption", which)

    def resign(self, federate: str) -> None:
        """Cancelling what it waits for, then giving away what it owns; it is told nothing more."""
        self.told = []
        for which in range(len(self.attributes)):
            self.leave_queue(federate, which)
        self.told = [each for each in self.told if each[0] != federate]
        self.published.pop(federate, None)
        for which, one in enumerate(self.attributes):
            if one.owner == federate:
                self.lose(which)

    # -- parts

    def lose(self, which: int) -> None:
        one = self.attributes[which]
        one.owner, one.divesting = "", False
        if one.queue:
            self.to_first(which)
        else:
            self.offer(which)

    def to_first(self, which: int) -> None:
        one = self.attributes[which]
        one.owner, _ = one.queue.pop(0)
        one.divesting = False
        self.tell(one.owner, "attribute_ownership_acquisition_notification", which)
        self.keeps(one.owner, which)

    def keeps(self, owner: str, which: int) -> None:
        one = self.attributes[which]
        for name, weak in one.queue:
            if weak:
                self.tell(name, "attribute_ownership_unavailable", which)
            else:
                self.tell(owner, "request_attribute_ownership_release", which)
        one.queue = [(name, weak) for name, weak in one.queue if not weak]

    def offer(self, which: int) -> None:
        for federate in sorted(self.published):
            if self.may_own(federate, which) and self.attributes[which].owner != federate:
                self.tell(federate, "request_attribute_ownership_assumption", which)

    def leave_queue(self, federate: str, which: int) -> None:
        """What is divested, and nobody waits for any more, is offered."""
        one = self.attributes[which]
        waited = one.waits(federate)
        one.queue = [each for each in one.queue if each[0] != federate]
        if waited and one.divesting and not one.queue:
            self.offer(which)

    def seen(self) -> list[tuple[str, bool, Any]]:
        return [(one.owner, one.divesting, tuple(one.queue)) for one in self.attributes]
