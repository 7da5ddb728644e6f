"""Passage of attributes of an instance from one federate to another: what all services of ownership.py do in their
turn.

A `Transfer` is opened on one instance, changed in place, and closed: 65,000 attributes pass in one go. It is
the only one who gives an attribute to a federate, so it has one owner at most.
"""

from __future__ import annotations

from collections.abc import Iterable

from immutables import Map

from .execution import Claim, ServiceCall, put_entry


def may_own(call: ServiceCall, federate: int, cls: int) -> frozenset[int]:
    """Attributes that a federate may own of instances that it knows at a class: what it publishes, and with it
    HLAprivilegeToDeleteObject (clause 5.2)."""
    published = call.execution.declared.publishes(federate, cls)
    return frozenset((*published, call.model.fom.privilege)) if published else frozenset()


class Transfer:
    """See the module."""

    def __init__(self, call: ServiceCall, instance: int) -> None:
        owned = call.execution.owned
        self._call, self._instance = call, instance
        self.owners = owned.owners.get(instance, Map()).mutate()
        self.divesting = owned.divesting.get(instance, Map()).mutate()
        self.claims = owned.claims.get(instance, Map()).mutate()
        self.declared = owned.declared.get(instance, Map())
        self._said: dict[tuple[int, str, bytes | None], list[int]] = {}

    def say(self, federate: int, name: str, attribute: int, tag: bytes | None = None) -> None:
        """A callback about an attribute; what says the same of several is one, and said once."""
        said = self._said.setdefault((federate, name, tag), [])
        if attribute not in said:
            said.append(attribute)

    def let_go(self, attributes: Iterable[int]) -> None:
        """Attributes lose their owner: they are the first claimant's, or unowned and offered."""
        free = []
        for each in attributes:
            claims = self.claims.get(each)
            if claims:
                self.hand(each, claims[0].federate, claims[0].tag)
            else:
                self.owners.pop(each, None)
                self.divesting.pop(each, None)
                self._pass(each)
                free.append(each)
        self.offer(free, b"")

    def hand(self, attribute: int, federate: int, tag: bytes) -> None:
        """An attribute becomes a federate's; who else claims it asks the new owner."""
        self.owners[attribute] = federate
        self.divesting.pop(attribute, None)
        self._pass(attribute)
        self.say(federate, "attribute_ownership_acquisition_notification", attribute, tag)
        claims = self.claims.pop(attribute, None)
        if claims:
            self.stay(attribute, federate, tuple(each for each in claims if each.federate != federate))

    def _pass(self, attribute: int) -> None:
        """Forget what its last owner has said of an attribute (clauses 6.23 and 8.23)."""
        if attribute in self.declared:
            self.declared = self.declared.delete(attribute)
        instances, key = self._call.execution.instances, (self._instance, attribute)
        for table in ("orders", "transports"):
            if key in (said := getattr(instances, table)):
                self._call.change("instances", **{table: said.delete(key)})

    def stay(self, attribute: int, owner: int, claims: tuple[Claim, ...]) -> None:
        """An owner keeps an attribute: it is unavailable to who wants it at once, others ask for its release."""
        for each in claims:
            if each.if_available:
                self.say(each.federate, "attribute_ownership_unavailable", attribute)
            else:
                self.say(owner, "request_attribute_ownership_release", attribute, each.tag)
        self.set_claims(attribute, tuple(each for each in claims if not each.if_available))

    def set_claims(self, attribute: int, claims: tuple[Claim, ...]) -> None:
        """Set who waits for an attribute, the first first."""
        if claims:
            self.claims[attribute] = claims
        else:
            self.claims.pop(attribute, None)

    def waits(self, federate: int, attribute: int) -> bool:
        """Whether a federate waits for an attribute."""
        return any(each.federate == federate for each in self.claims.get(attribute, ()))

    def claim(self, attribute: int, claim: Claim) -> None:
        """One more waits for an attribute that somebody owns, who is asked: to confirm that it divests it, or to
        release it."""
        claims = self.claims.get(attribute, ())
        self.claims[attribute] = (*claims, claim)
        owner = self.owners[attribute]
        if attribute not in self.divesting:
            self.say(owner, "request_attribute_ownership_release", attribute, claim.tag)
        elif not claims:
            self.say(owner, "request_divestiture_confirmation", attribute)

    def unclaim(self, federate: int, attributes: Iterable[int]) -> None:
        """A federate does not wait for attributes any more; what is divested, and nobody else waits for, is offered."""
        for each in attributes:
            if self.waits(federate, each):
                self.set_claims(each, tuple(claim for claim in self.claims[each] if claim.federate != federate))
                if each in self.divesting and each not in self.claims:
                    self.offer((each,), self.divesting[each])

    def offer(self, attributes: Iterable[int], tag: bytes) -> None:
        """Offer an attribute to those who may own it, and do not."""
        attributes = tuple(attributes)
        known = self._call.execution.instances.by_handle[self._instance].known
        for federate in sorted(known) if attributes else ():
            may = may_own(self._call, federate, known[federate])
            for each in attributes if may else ():
                if each in may and self.owners.get(each) != federate:
                    self.say(federate, "request_attribute_ownership_assumption", each, tag)

    def close(self) -> None:
        """Put what has become of it into the execution. It can't be changed any more."""
        owned, at = self._call.execution.owned, self._instance
        self._call.moved.append(at)
        self._call.change(
            "owned",
            owners=put_entry(owned.owners, at, self.owners.finish()),
            divesting=put_entry(owned.divesting, at, self.divesting.finish()),
            claims=put_entry(owned.claims, at, self.claims.finish()),
            declared=put_entry(owned.declared, at, self.declared),
        )
        for (federate, name, tag), attributes in self._said.items():
            self._call.tell(federate, name, at, tuple(attributes), *(() if tag is None else (tag,)))
