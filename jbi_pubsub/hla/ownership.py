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
    NoAcquisitionPending,
    OwnershipAcquisitionPending,
)
from .execution import Claim, Execution, Model, Step, Told, known, known_class, put_entry, tell
from .fom import Class, checked_attributes
from .transfers import Transfer, may_own

# -- divesting ------------------------------------------------------------------------------------------------------


def unconditional_attribute_ownership_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate owns these no more, whoever does (clause 7.2). Raises ObjectInstanceNotKnown, AttributeNotDefined,
    AttributeNotOwned."""
    wanted = owned_by(model, execution, federate, instance, attributes)
    transfer = Transfer(model, execution, instance)
    transfer.let_go(wanted)
    return transfer.step()


def negotiated_attribute_ownership_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The federate would own these no more, and does until somebody else can and it has confirmed (clause 7.3). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned, AttributeAlreadyBeingDivested."""
    wanted = owned_by(model, execution, federate, instance, attributes)
    transfer, free = Transfer(model, execution, instance), []
    for each in wanted:
        if each in transfer.divesting:
            raise AttributeAlreadyBeingDivested(
                f"the federate is divesting {_named(model, each)}", hint="Wait, or cancel", handle=each
            )
        transfer.divesting[each] = tag
        if each in transfer.claims:
            transfer.say(federate, "request_divestiture_confirmation", each)
        else:
            free.append(each)
    transfer.offer(free, tag)
    return transfer.step()


def confirm_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The federate, asked to confirm, gives these to the first who claims them (clause 7.6). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned, AttributeDivestitureWasNotRequested,
    NoAcquisitionPending."""
    wanted = owned_by(model, execution, federate, instance, attributes)
    transfer = Transfer(model, execution, instance)
    _check_divesting(model, transfer, wanted)
    for each in wanted:
        if each not in transfer.claims:
            raise NoAcquisitionPending(
                f"nobody waits for {_named(model, each)}",
                hint="Who did may have cancelled; wait for request_divestiture_confirmation",
                handle=each,
            )
        transfer.hand(each, transfer.claims[each][0].federate, tag)
    return transfer.step()


def cancel_negotiated_attribute_ownership_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate keeps these (clause 7.14). Raises ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned,
    AttributeDivestitureWasNotRequested."""
    wanted = owned_by(model, execution, federate, instance, attributes)
    transfer = Transfer(model, execution, instance)
    _check_divesting(model, transfer, wanted)
    for each in wanted:
        del transfer.divesting[each]
        transfer.stay(each, federate, transfer.claims.get(each, ()))
    return transfer.step()


def attribute_ownership_divestiture_if_wanted(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate gives up those of the attributes that somebody waits for; the answer is which (clause 7.13). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned."""
    wanted = owned_by(model, execution, federate, instance, attributes)
    transfer = Transfer(model, execution, instance)
    gone = tuple(each for each in wanted if each in transfer.claims)
    transfer.let_go(gone)
    return transfer.step(gone)


def attribute_ownership_release_denied(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate keeps what it was asked to release; who asked waits on (clause 7.12). Raises ObjectInstanceNotKnown,
    AttributeNotDefined, AttributeNotOwned."""
    owned_by(model, execution, federate, instance, attributes)
    return Step(execution)


# -- acquiring ------------------------------------------------------------------------------------------------------


def attribute_ownership_acquisition(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The federate wants to own these: at once what is unowned, else its owner is asked (clause 7.8). Who waits already
    waits on in its place, and from now on also when its owner does not divest. Raises ObjectInstanceNotKnown,
    AttributeNotDefined, AttributeNotPublished, AttributeAlreadyOwned."""
    wanted = _unowned_by(model, execution, federate, instance, attributes)
    transfer = Transfer(model, execution, instance)
    for each in wanted:
        if each not in transfer.owners:
            transfer.hand(each, federate, tag)
        elif not transfer.waits(federate, each):
            transfer.claim(each, Claim(federate, tag))
        else:
            claims = transfer.claims[each]
            mine = Claim(federate, tag)
            weak = mine._replace(tag=b"", if_available=True)
            transfer.claims[each] = tuple(mine if claim == weak else claim for claim in claims)
    return transfer.step()


def attribute_ownership_acquisition_if_available(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate wants what is unowned of these, or being divested to nobody yet; of the rest it is told that it is
    unavailable (clause 7.9). Raises as attribute_ownership_acquisition, and AttributeAlreadyBeingAcquired."""
    wanted = _unowned_by(model, execution, federate, instance, attributes)
    transfer = Transfer(model, execution, instance)
    for each in wanted:
        if transfer.waits(federate, each):
            raise AttributeAlreadyBeingAcquired(
                f"the federate has asked for {_named(model, each)}", hint="Wait, or cancel", handle=each
            )
        if each not in transfer.owners:
            transfer.hand(each, federate, b"")
        elif each in transfer.divesting and each not in transfer.claims:
            transfer.claim(each, Claim(federate, b"", if_available=True))
        else:
            transfer.say(federate, "attribute_ownership_unavailable", each)
    return transfer.step()


def cancel_attribute_ownership_acquisition(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate does not want these any more, which is confirmed by a callback (clause 7.15). Own: also what it
    wanted if available and waits for until a divestiture is confirmed. Raises ObjectInstanceNotKnown,
    AttributeNotDefined, AttributeAlreadyOwned, AttributeAcquisitionWasNotRequested."""
    wanted = checked_attributes(known_class(model, execution, federate, instance), attributes)
    transfer = Transfer(model, execution, instance)
    for each in wanted:
        if transfer.owners.get(each) == federate:
            raise AttributeAlreadyOwned(f"the federate owns {_named(model, each)}", hint="Divest it", handle=each)
        if not transfer.waits(federate, each):
            raise AttributeAcquisitionWasNotRequested(
                f"the federate does not wait for {_named(model, each)}", hint="There is nothing to cancel", handle=each
            )
        transfer.say(federate, "confirm_attribute_ownership_acquisition_cancellation", each)
    transfer.unclaim(federate, wanted)
    return transfer.step()


# -- asking ---------------------------------------------------------------------------------------------------------


def query_attribute_ownership(model: Model, execution: Execution, federate: int, instance: int, attribute: int) -> Step:
    """Whether anybody owns an attribute, by inform_attribute_ownership; not who (clause 7.17). Raises
    ObjectInstanceNotKnown, AttributeNotDefined."""
    checked_attributes(known_class(model, execution, federate, instance), (attribute,))
    is_owned = execution.owned.owner(instance, attribute) != 0
    is_owned = is_owned and attribute not in execution.owned.declared.get(instance, Map())
    return Step(execution, None, (tell(federate, "inform_attribute_ownership", instance, attribute, is_owned),))


def is_attribute_owned_by_federate(
    model: Model, execution: Execution, federate: int, instance: int, attribute: int
) -> Step:
    """The answer is whether the federate owns an attribute (clause 7.19). Raises ObjectInstanceNotKnown,
    AttributeNotDefined."""
    checked_attributes(known_class(model, execution, federate, instance), (attribute,))
    return Step(execution, execution.owned.owner(instance, attribute) == federate)


# -- what other services do to ownership ----------------------------------------------------------------------------


def unowned_offered(model: Model, execution: Execution, instance: int, kind: Class, owned: tuple[int, ...]) -> Step:
    """An instance has been registered: what its registrant does not publish is offered to others."""
    transfer = Transfer(model, execution, instance)
    has = set(owned)
    transfer.offer((each for each in kind.members if each not in has), b"")
    return transfer.step()


def offered(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """A federate publishes a class: what is unowned of its instances that it knows is offered to it."""
    told: list[Told] = []
    for handle in sorted(execution.instances.by_handle):
        if execution.instances.by_handle[handle].known.get(federate) == cls:
            told.extend(offer_of(model, execution, federate, handle, cls))
    return Step(execution, None, tuple(told))


def offer_of(model: Model, execution: Execution, federate: int, instance: int, cls: int) -> tuple[Told, ...]:
    """What is unowned of an instance, for a federate that knows it at a class and may own it."""
    owners = execution.owned.owners.get(instance, Map())
    free = tuple(each for each in sorted(may_own(model, execution, federate, cls)) if each not in owners)
    return (tell(federate, "request_attribute_ownership_assumption", instance, free, b""),) if free else ()


def unpublished(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...]
) -> tuple[Execution, tuple[Told, ...]]:
    """A federate publishes attributes of a class no more, and loses those that it owned of its instances; with the last
    one HLAprivilegeToDeleteObject. Raises OwnershipAcquisitionPending while it waits for one (clause 5.3)."""
    told: list[Told] = []
    may = may_own(model, execution, federate, cls)
    lost = sorted({*attributes, model.fom.privilege} - may)
    for handle in sorted(execution.instances.by_handle):
        if execution.instances.by_handle[handle].known.get(federate) != cls:
            continue
        transfer = Transfer(model, execution, handle)
        for each in lost:
            if transfer.waits(federate, each):
                raise OwnershipAcquisitionPending(
                    f"the federate waits for {_named(model, each)}", hint="Cancel the acquisition first", handle=each
                )
        transfer.let_go([each for each in lost if transfer.owners.get(each) == federate])
        execution, _, more = transfer.step()
        told.extend(more)
    return execution, tuple(told)


def divested(model: Model, execution: Execution, federate: int) -> tuple[Execution, tuple[Told, ...]]:
    """A federate resigns, and leaves what it owns."""
    told: list[Told] = []
    for handle in sorted(execution.owned.owners):
        lost = sorted(each for each, owner in execution.owned.owners[handle].items() if owner == federate)
        if lost:
            transfer = Transfer(model, execution, handle)
            transfer.let_go(lost)
            execution, _, more = transfer.step()
            told.extend(more)
    return execution, tuple(told)


def without_claims(execution: Execution, federate: int) -> Execution:
    """A federate waits for nothing any more."""
    owned = execution.owned
    for instance, claimed in owned.claims.items():
        left = {
            each: tuple(claim for claim in claims if claim.federate != federate) for each, claims in claimed.items()
        }
        kept = Map({each: claims for each, claims in left.items() if claims})
        owned = owned._replace(claims=put_entry(owned.claims, instance, kept))
    return execution._replace(owned=owned)


def owns_any(execution: Execution, federate: int) -> bool:
    """Whether a federate owns an attribute of any instance."""
    return any(federate in owners.values() for owners in execution.owned.owners.values())


def claims_any(execution: Execution, federate: int) -> bool:
    """Whether a federate waits for an attribute of any instance."""
    return any(_claims_of(execution, federate, instance) for instance in execution.owned.claims)


def _claims_of(execution: Execution, federate: int, instance: int) -> bool:
    claimed = execution.owned.claims.get(instance, Map())
    return any(claim.federate == federate for claims in claimed.values() for claim in claims)


def has_any(execution: Execution, federate: int, instance: int) -> bool:
    """Whether a federate owns an attribute of an instance, or waits for one."""
    owners = execution.owned.owners.get(instance, Map())
    return federate in owners.values() or _claims_of(execution, federate, instance)


# -- checks ---------------------------------------------------------------------------------------------------------


def owned_by(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> tuple[int, ...]:
    """Attributes of an instance, sorted, all of them the federate's."""
    found = known(execution, federate, instance)
    wanted = checked_attributes(model.fom.objects[found.cls - 1], attributes)
    owners = execution.owned.owners.get(instance, Map())
    for each in wanted:
        if owners.get(each) != federate:
            raise AttributeNotOwned(
                f"the federate does not own {_named(model, each)} of {found.name}", hint="Acquire it first", handle=each
            )
    return wanted


def _check_divesting(model: Model, transfer: Transfer, attributes: tuple[int, ...]) -> None:
    for each in attributes:
        if each not in transfer.divesting:
            raise AttributeDivestitureWasNotRequested(
                f"the federate is not divesting {_named(model, each)}",
                hint="Call negotiated_attribute_ownership_divestiture first",
                handle=each,
            )


def _unowned_by(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> tuple[int, ...]:
    """Attributes that the federate may own and does not."""
    kind = known_class(model, execution, federate, instance)
    wanted = checked_attributes(kind, attributes)
    may = may_own(model, execution, federate, kind.handle)
    owners = execution.owned.owners.get(instance, Map())
    for each in wanted:
        if owners.get(each) == federate:
            raise AttributeAlreadyOwned(
                f"the federate owns {_named(model, each)}", hint="There is nothing to acquire", handle=each
            )
        if each not in may:
            raise AttributeNotPublished(
                f"the federate does not publish {_named(model, each)} of {kind.name}",
                hint="Call publish_object_class_attributes first",
                handle=each,
            )
    return wanted


def _named(model: Model, attribute: int) -> str:
    return model.fom.attributes[attribute - 1].name
