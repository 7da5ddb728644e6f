"""Ownership management: at most one federate owns an instance attribute (IEEE 1516.1-2010, clause 7).

Of an instance attribute, seen from its owner:

    owned -> unconditional divestiture                   -> unowned, or the first claimant's
    owned -> negotiated divestiture -> divesting         -> claimed: asked to confirm -> confirm: the claimant's
                                       divesting         -> cancel -> owned
    owned -> asked to release -> divest if wanted        -> the first claimant's

and from another federate:

    not owned -> acquisition              -> claimed, in a queue -> told that it owns it, or cancels, which is confirmed
    not owned -> acquisition if available -> owned (unowned before), waiting (being divested), or unavailable

What is unowned is offered to those who publish it and know the instance. A federate that resigns, dies or publishes an
attribute no more does not own it any more; while it waits for one it can't stop to publish it.
"""

from __future__ import annotations

from immutables import Map

from .exceptions import (
    AttributeAcquisitionWasNotRequested,
    AttributeAlreadyBeingAcquired,
    AttributeAlreadyBeingDivested,
    AttributeAlreadyOwned,
    AttributeDivestitureWasNotRequested,
    AttributeNotOwned,
    AttributeNotPublished,
    FederateOwnsAttributes,
    NoAcquisitionPending,
    ObjectClassNotPublished,
    OwnershipAcquisitionPending,
)
from .execution import RTI, Claim, Execution, Handles, Instance, ServiceCall
from .fom import Class, checked_attributes
from .transfers import Transfer, may_own

# -- divesting ------------------------------------------------------------------------------------------------------


def unconditional_attribute_ownership_divestiture(call: ServiceCall, instance: int, attributes: Handles) -> None:
    wanted = owned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    transfer.let_go(wanted)
    transfer.close()


def negotiated_attribute_ownership_divestiture(
    call: ServiceCall, instance: int, attributes: Handles, tag: bytes = b""
) -> None:
    """The federate would own these no more, and does until somebody else can and it has confirmed (clause 7.3)."""
    wanted = owned_by(call, instance, attributes)
    transfer, free = Transfer(call, instance), []
    for each in wanted:
        if each in transfer.divesting:
            raise AttributeAlreadyBeingDivested(
                f"the federate is divesting {_named(call, each)}", hint="Wait, or cancel", handle=each
            )
        transfer.divesting[each] = tag
        if each in transfer.claims:
            transfer.say(call.federate, "request_divestiture_confirmation", each)
        else:
            free.append(each)
    transfer.offer(free, tag)
    transfer.close()


def confirm_divestiture(call: ServiceCall, instance: int, attributes: Handles, tag: bytes = b"") -> None:
    wanted = owned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    _check_divesting(call, transfer, wanted)
    for each in wanted:
        if each not in transfer.claims:
            raise NoAcquisitionPending(
                f"nobody waits for {_named(call, each)}",
                hint="Who did may have cancelled; wait for request_divestiture_confirmation",
                handle=each,
            )
        transfer.hand(each, transfer.claims[each][0].federate, tag)
    transfer.close()


def cancel_negotiated_attribute_ownership_divestiture(call: ServiceCall, instance: int, attributes: Handles) -> None:
    wanted = owned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    _check_divesting(call, transfer, wanted)
    for each in wanted:
        del transfer.divesting[each]
        transfer.stay(each, call.federate, transfer.claims.get(each, ()))
    transfer.close()


def attribute_ownership_divestiture_if_wanted(call: ServiceCall, instance: int, attributes: Handles) -> Handles:
    wanted = owned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    gone = tuple(each for each in wanted if each in transfer.claims)
    transfer.let_go(gone)
    transfer.close()
    return gone


def attribute_ownership_release_denied(call: ServiceCall, instance: int, attributes: Handles) -> None:
    owned_by(call, instance, attributes)


# -- acquiring ------------------------------------------------------------------------------------------------------


def attribute_ownership_acquisition(call: ServiceCall, instance: int, attributes: Handles, tag: bytes = b"") -> None:
    """The federate wants to own these: at once what is unowned, else its owner is asked (clause 7.8). Who waits already
    waits on in its place, and from now on also when its owner does not divest."""
    wanted = _unowned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    for each in wanted:
        if each not in transfer.owners:
            transfer.hand(each, call.federate, tag)
        elif not transfer.waits(call.federate, each):
            transfer.claim(each, Claim(call.federate, tag))
        else:
            claims = transfer.claims[each]
            mine = Claim(call.federate, tag)
            weak = mine._replace(tag=b"", if_available=True)
            transfer.claims[each] = tuple(mine if claim == weak else claim for claim in claims)
    transfer.close()


def give(call: ServiceCall, instance: int, attributes: Handles) -> int:
    """The federate owns these, whoever has them or waits for them, but for the RTI: somebody administers it so (clause
    11.4). The answer is the instance."""
    wanted = _unowned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    for each in wanted:
        if transfer.owners.get(each) == RTI:
            raise AttributeNotOwned(
                f"the RTI keeps {_named(call, each)}", hint="Give what a federate owns", handle=each
            )
        transfer.hand(each, call.federate, b"")
    transfer.close()
    return instance


def attribute_ownership_acquisition_if_available(call: ServiceCall, instance: int, attributes: Handles) -> None:
    """The federate wants what is unowned of these, or being divested to nobody yet; of the rest it is told that it is
    unavailable (clause 7.9)."""
    wanted = _unowned_by(call, instance, attributes)
    transfer = Transfer(call, instance)
    for each in wanted:
        if transfer.waits(call.federate, each):
            raise AttributeAlreadyBeingAcquired(
                f"the federate has asked for {_named(call, each)}", hint="Wait, or cancel", handle=each
            )
        if each not in transfer.owners:
            transfer.hand(each, call.federate, b"")
        elif each in transfer.divesting and each not in transfer.claims:
            transfer.claim(each, Claim(call.federate, b"", if_available=True))
        else:
            transfer.say(call.federate, "attribute_ownership_unavailable", each)
    transfer.close()


def cancel_attribute_ownership_acquisition(call: ServiceCall, instance: int, attributes: Handles) -> None:
    """The federate does not want these any more, which is confirmed by a callback (clause 7.15). Own: also what it
    wanted if available and waits for until a divestiture is confirmed."""
    wanted = checked_attributes(call.known_class(instance), attributes)
    transfer = Transfer(call, instance)
    for each in wanted:
        if transfer.owners.get(each) == call.federate:
            raise AttributeAlreadyOwned(f"the federate owns {_named(call, each)}", hint="Divest it", handle=each)
        if not transfer.waits(call.federate, each):
            raise AttributeAcquisitionWasNotRequested(
                f"the federate does not wait for {_named(call, each)}", hint="There is nothing to cancel", handle=each
            )
        transfer.say(call.federate, "confirm_attribute_ownership_acquisition_cancellation", each)
    transfer.unclaim(call.federate, wanted)
    transfer.close()


# -- asking ---------------------------------------------------------------------------------------------------------


def query_attribute_ownership(call: ServiceCall, instance: int, attribute: int) -> None:
    checked_attributes(call.known_class(instance, may_leave=True), (attribute,))
    owned = call.execution.owned
    is_owned = owned.owner(instance, attribute) != 0 and attribute not in owned.declared.get(instance, Map())
    call.tell(call.federate, "inform_attribute_ownership", instance, attribute, is_owned)


def is_attribute_owned_by_federate(call: ServiceCall, instance: int, attribute: int) -> bool:
    checked_attributes(call.known_class(instance, may_leave=True), (attribute,))
    return call.execution.owned.owner(instance, attribute) == call.federate


# -- what other services do to ownership ----------------------------------------------------------------------------


def offer_rest(call: ServiceCall, instance: int, kind: Class, owned: Handles) -> None:
    """An instance has been registered: what its registrant does not publish is offered to others."""
    transfer = Transfer(call, instance)
    has = set(owned)
    transfer.offer((each for each in kind.members if each not in has), b"")
    transfer.close()


def offer_unowned(call: ServiceCall, cls: int) -> None:
    """The federate publishes a class: what is unowned of its instances that it knows, or divested, is offered to it."""
    by_handle = call.execution.instances.by_handle
    for handle in sorted(by_handle):
        if by_handle[handle].known.get(call.federate) == cls:
            offer_of(call, call.federate, handle, cls)


def offer_of(call: ServiceCall, federate: int, instance: int, cls: int) -> None:
    """Offer what is unowned of an instance, or divested, to a federate, which knows it at a class and may own it
    (clause 7.4)."""
    owners = call.execution.owned.owners.get(instance, Map())
    divesting = call.execution.owned.divesting.get(instance, Map())
    by_tag: dict[bytes, list[int]] = {}
    for each in sorted(may_own(call, federate, cls)):
        if each not in owners or (each in divesting and owners[each] != federate):
            by_tag.setdefault(divesting.get(each, b""), []).append(each)
    for tag, free in by_tag.items():
        call.tell(federate, "request_attribute_ownership_assumption", instance, tuple(free), tag)


def lose_unpublished(call: ServiceCall, cls: int, attributes: Handles) -> None:
    """The federate publishes attributes of a class no more, and loses those that it owned of its instances; with the
    last one HLAprivilegeToDeleteObject. Raises OwnershipAcquisitionPending while it waits for one (clause 5.3)."""
    lost = sorted({*attributes, call.model.fom.privilege} - may_own(call, call.federate, cls))
    by_handle = call.execution.instances.by_handle
    for handle in sorted(by_handle):
        if by_handle[handle].known.get(call.federate) != cls:
            continue
        transfer = Transfer(call, handle)
        for each in lost:
            if transfer.waits(call.federate, each):
                raise OwnershipAcquisitionPending(
                    f"the federate waits for {_named(call, each)}", hint="Cancel the acquisition first", handle=each
                )
        transfer.let_go([each for each in lost if transfer.owners.get(each) == call.federate])
        transfer.close()


def drop_absent(call: ServiceCall, instance: int) -> None:
    """An instance is there again: who has left meanwhile, or publishes an attribute no more, neither owns it nor waits
    for it."""
    known, transfer = call.execution.instances.by_handle[instance].known, Transfer(call, instance)
    may = {federate: may_own(call, federate, cls) for federate, cls in known.items()}
    for attribute, claims in call.execution.owned.claims.get(instance, Map()).items():
        for claim in claims:
            if attribute not in may.get(claim.federate, ()):
                transfer.unclaim(claim.federate, (attribute,))
    owners = call.execution.owned.owners.get(instance, Map())
    transfer.let_go(sorted(each for each, owner in owners.items() if each not in may.get(owner, ())))
    transfer.close()


def divest_all(call: ServiceCall) -> None:
    """The federate resigns, and leaves what it owns."""
    owners = call.execution.owned.owners
    for handle in sorted(owners):
        lost = sorted(each for each, owner in owners[handle].items() if owner == call.federate)
        if lost and handle in call.execution.instances.by_handle:
            transfer = Transfer(call, handle)
            transfer.let_go(lost)
            transfer.close()


def drop_claims(call: ServiceCall) -> None:
    """The federate waits for nothing any more."""
    claims = call.execution.owned.claims
    for instance in sorted(each for each in claims if _claims_of(call.execution, call.federate, each)):
        transfer = Transfer(call, instance)
        transfer.unclaim(call.federate, sorted(claims[instance]))
        transfer.close()


def owns_any(execution: Execution, federate: int) -> bool:
    """Whether a federate owns an attribute of any instance that is not deleted."""
    there = execution.instances.by_handle
    return any(federate in owners.values() for at, owners in execution.owned.owners.items() if at in there)


def claims_any(execution: Execution, federate: int) -> bool:
    """Whether a federate waits for an attribute of any instance."""
    return any(_claims_of(execution, federate, instance) for instance in execution.owned.claims)


def _claims_of(execution: Execution, federate: int, instance: int) -> bool:
    claimed = execution.owned.claims.get(instance, Map())
    return any(claim.federate == federate for claims in claimed.values() for claim in claims)


def check_has_none(call: ServiceCall, instance: int, name: str) -> None:
    """Raises FederateOwnsAttributes, OwnershipAcquisitionPending."""
    if call.federate in call.execution.owned.owners.get(instance, Map()).values():
        raise FederateOwnsAttributes(f"the federate owns attributes of {name}", hint="Divest them first")
    if _claims_of(call.execution, call.federate, instance):
        raise OwnershipAcquisitionPending(
            f"the federate waits for attributes of {name}", hint="Cancel the acquisition first"
        )


# -- checks ---------------------------------------------------------------------------------------------------------


def owned_by(call: ServiceCall, instance: int, attributes: Handles) -> Handles:
    """Attributes of an instance, sorted, all of them the federate's."""
    found = call.known(instance)
    wanted = checked_attributes(call.model.fom.objects[found.cls - 1], attributes)
    owners = call.execution.owned.owners.get(instance, Map())
    for each in wanted:
        if owners.get(each) != call.federate:
            raise not_owned(call, found, each)
    return wanted


def not_owned(call: ServiceCall, found: Instance, attribute: int) -> AttributeNotOwned:
    """The refusal of an instance's attribute."""
    text = f"the federate does not own {_named(call, attribute)} of {found.name}"
    return AttributeNotOwned(text, hint="Acquire it first", handle=attribute)


def _check_divesting(call: ServiceCall, transfer: Transfer, attributes: Handles) -> None:
    for each in attributes:
        if each not in transfer.divesting:
            raise AttributeDivestitureWasNotRequested(
                f"the federate is not divesting {_named(call, each)}",
                hint="Call negotiated_attribute_ownership_divestiture first",
                handle=each,
            )


def _unowned_by(call: ServiceCall, instance: int, attributes: Handles) -> Handles:
    """Attributes that the federate may own and does not."""
    kind = call.known_class(instance)
    wanted = checked_attributes(kind, attributes)
    may = may_own(call, call.federate, kind.handle)
    if not may:
        raise ObjectClassNotPublished(
            f"the federate does not publish {kind.name}", hint="Call publish_object_class_attributes first"
        )
    owners = call.execution.owned.owners.get(instance, Map())
    for each in wanted:
        if owners.get(each) == call.federate:
            raise FederateOwnsAttributes(
                f"the federate owns {_named(call, each)}", hint="There is nothing to acquire", handle=each
            )
        if each not in may:
            raise AttributeNotPublished(
                f"the federate does not publish {_named(call, each)} of {kind.name}",
                hint="Call publish_object_class_attributes first",
                handle=each,
            )
    return wanted


def _named(call: ServiceCall, attribute: int) -> str:
    return call.model.fom.attributes[attribute - 1].name
