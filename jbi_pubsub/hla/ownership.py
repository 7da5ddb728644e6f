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
attribute no more neither owns nor claims it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from immutables import Map

from . import objects
from .exceptions import (
    AttributeAcquisitionWasNotRequested,
    AttributeAlreadyBeingAcquired,
    AttributeAlreadyBeingDivested,
    AttributeAlreadyOwned,
    AttributeDivestitureWasNotRequested,
    AttributeNotOwned,
    AttributeNotPublished,
    NoAcquisitionPending,
)
from .execution import Step, Told, tell
from .fom import checked_attributes

if TYPE_CHECKING:
    from .execution import Execution, Model
    from .fom import Class

Place = tuple[int, int]
"""An instance and an attribute of it."""


class Claim(NamedTuple):
    """Who waits for an attribute."""

    federate: int
    tag: bytes
    if_available: bool = False


class Owned(NamedTuple):
    """Who owns what. An attribute of which nothing is said here is unowned."""

    owners: Map[int, Map[int, int]] = Map()
    """By instance and attribute."""
    divesting: Map[Place, bytes] = Map()
    """Tags of negotiated divestitures."""
    claims: Map[Place, tuple[Claim, ...]] = Map()
    """In the order in which they came."""

    def owner(self, instance: int, attribute: int) -> int:
        """0: it is unowned."""
        return self.owners.get(instance, Map()).get(attribute, 0)

    def given(self, instance: int, attributes: Iterable[int], federate: int) -> Owned:
        """A federate owns attributes, and divests none of them; 0: nobody does."""
        attributes = tuple(attributes)
        of_instance = self.owners.get(instance, Map())
        with of_instance.mutate() as changed:
            for each in attributes:
                if federate:
                    changed[each] = federate
                elif each in changed:
                    del changed[each]
            of_instance = changed.finish()
        divesting = self.divesting
        for each in attributes if divesting else ():
            if (instance, each) in divesting:
                divesting = divesting.delete((instance, each))
        return self._replace(owners=self.owners.set(instance, of_instance), divesting=divesting)

    def without(self, instance: int) -> Owned:
        """After an instance has been deleted."""
        divesting, claims = self.divesting, self.claims
        for place in self.divesting:
            if place[0] == instance:
                divesting = divesting.delete(place)
        for place in self.claims:
            if place[0] == instance:
                claims = claims.delete(place)
        return Owned(self.owners.delete(instance) if instance in self.owners else self.owners, divesting, claims)


class _Telling:
    """Callbacks about attributes of an instance; those that say the same of several are one."""

    def __init__(self, instance: int) -> None:
        self._instance = instance
        self._said: dict[tuple[int, str, bytes | None], list[int]] = {}

    def say(self, federate: int, name: str, attribute: int, tag: bytes | None = None) -> None:
        self._said.setdefault((federate, name, tag), []).append(attribute)

    def told(self) -> Iterator[Told]:
        for (federate, name, tag), attributes in self._said.items():
            more = () if tag is None else (tag,)
            yield tell(federate, name, self._instance, tuple(attributes), *more)


# -- divesting ------------------------------------------------------------------------------------------------------


def unconditional_attribute_ownership_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate owns these no more, whoever does (clause 7.2). Raises ObjectInstanceNotKnown, AttributeNotDefined,
    AttributeNotOwned."""
    wanted = _owned(model, execution, federate, instance, attributes)
    telling = _Telling(instance)
    execution = _let_go(model, execution, instance, wanted, telling)
    return Step(execution, None, tuple(telling.told()))


def _let_go(
    model: Model, execution: Execution, instance: int, attributes: Iterable[int], telling: _Telling
) -> Execution:
    """Attributes lose their owner: the first claimant's, or unowned and offered."""
    free = []
    for each in attributes:
        claims = execution.owned.claims.get((instance, each), ())
        if claims:
            execution = _handed(execution, instance, each, claims[0].federate, claims[0].tag, telling)
        else:
            free.append(each)
    execution = execution._replace(owned=execution.owned.given(instance, free, 0))
    _offer(execution, instance, free, b"", telling)
    return execution


def _handed(
    execution: Execution, instance: int, attribute: int, federate: int, tag: bytes, telling: _Telling
) -> Execution:
    """An attribute becomes a federate's; who else claims it asks the new owner."""
    owned = execution.owned.given(instance, (attribute,), federate)
    telling.say(federate, "attribute_ownership_acquisition_notification", attribute, tag)
    rest = tuple(each for each in owned.claims.get((instance, attribute), ()) if each.federate != federate)
    for each in rest:
        if each.if_available:
            telling.say(each.federate, "attribute_ownership_unavailable", attribute)
        else:
            telling.say(federate, "request_attribute_ownership_release", attribute, each.tag)
    left = tuple(each for each in rest if not each.if_available)
    return execution._replace(owned=_claimed(owned, (instance, attribute), left))


def _claimed(owned: Owned, place: Place, claims: tuple[Claim, ...]) -> Owned:
    if claims:
        return owned._replace(claims=owned.claims.set(place, claims))
    return owned._replace(claims=owned.claims.delete(place)) if place in owned.claims else owned


def _offer(execution: Execution, instance: int, attributes: Iterable[int], tag: bytes, telling: _Telling) -> None:
    """Who publishes an attribute and knows the instance may assume it."""
    found = execution.instances.by_handle[instance]
    owners = execution.owned.owners.get(instance, Map())
    attributes = tuple(attributes)
    for federate in sorted(found.known) if attributes else ():
        published = set(execution.declared.publishes(federate, found.known[federate]))
        for each in attributes:
            if each in published and owners.get(each) != federate:
                telling.say(federate, "request_attribute_ownership_assumption", each, tag)


def negotiated_attribute_ownership_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The federate would own these no more, and does until somebody else can and it has confirmed (clause 7.3). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned, AttributeAlreadyBeingDivested."""
    wanted = _owned(model, execution, federate, instance, attributes)
    owned = execution.owned
    for each in wanted:
        if (instance, each) in owned.divesting:
            raise AttributeAlreadyBeingDivested(
                f"the federate is divesting {_named(model, each)}", hint="Wait, or cancel", handle=each
            )
    telling, free = _Telling(instance), []
    for each in wanted:
        owned = owned._replace(divesting=owned.divesting.set((instance, each), tag))
        if (instance, each) in owned.claims:
            telling.say(federate, "request_divestiture_confirmation", each)
        else:
            free.append(each)
    execution = execution._replace(owned=owned)
    _offer(execution, instance, free, tag, telling)
    return Step(execution, None, tuple(telling.told()))


def confirm_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The federate, asked to confirm, gives these to the first who claims them (clause 7.6). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned, AttributeDivestitureWasNotRequested,
    NoAcquisitionPending."""
    wanted = _divesting(model, execution, federate, instance, attributes)
    for each in wanted:
        if (instance, each) not in execution.owned.claims:
            raise NoAcquisitionPending(
                f"nobody waits for {_named(model, each)}",
                hint="Who did may have cancelled; wait for request_divestiture_confirmation",
                handle=each,
            )
    telling = _Telling(instance)
    for each in wanted:
        first = execution.owned.claims[instance, each][0]
        execution = _handed(execution, instance, each, first.federate, tag, telling)
    return Step(execution, None, tuple(telling.told()))


def cancel_negotiated_attribute_ownership_divestiture(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate keeps these (clause 7.14). Raises ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned,
    AttributeDivestitureWasNotRequested."""
    telling, owned = _Telling(instance), execution.owned
    for each in _divesting(model, execution, federate, instance, attributes):
        place = instance, each
        owned = owned._replace(divesting=owned.divesting.delete(place))
        claims = owned.claims.get(place, ())
        for claim in claims:
            if claim.if_available:
                telling.say(claim.federate, "attribute_ownership_unavailable", each)
            else:
                telling.say(federate, "request_attribute_ownership_release", each, claim.tag)
        owned = _claimed(owned, place, tuple(claim for claim in claims if not claim.if_available))
    return Step(execution._replace(owned=owned), None, tuple(telling.told()))


def attribute_ownership_divestiture_if_wanted(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate gives up those of the attributes that somebody waits for; the answer is which (clause 7.13). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned."""
    telling, gone = _Telling(instance), []
    for each in _owned(model, execution, federate, instance, attributes):
        claims = execution.owned.claims.get((instance, each), ())
        if claims:
            execution = _handed(execution, instance, each, claims[0].federate, claims[0].tag, telling)
            gone.append(each)
    return Step(execution, tuple(gone), tuple(telling.told()))


def attribute_ownership_release_denied(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate keeps what it was asked to release; who asked waits on (clause 7.12). Raises ObjectInstanceNotKnown,
    AttributeNotDefined, AttributeNotOwned."""
    _owned(model, execution, federate, instance, attributes)
    return Step(execution)


# -- acquiring ------------------------------------------------------------------------------------------------------


def attribute_ownership_acquisition(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...], tag: bytes = b""
) -> Step:
    """The federate wants to own these: at once what is unowned, else its owner is asked (clause 7.8). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotPublished, AttributeAlreadyOwned."""
    wanted = _unowned_by(model, execution, federate, instance, attributes)
    telling = _Telling(instance)
    for each in wanted:
        claims = execution.owned.claims.get((instance, each), ())
        owner = execution.owned.owner(instance, each)
        if not owner:
            execution = _handed(execution, instance, each, federate, tag, telling)
            continue
        if not any(claim.federate == federate and not claim.if_available for claim in claims):
            others = tuple(claim for claim in claims if claim.federate != federate)
            owned = _claimed(execution.owned, (instance, each), (*others, Claim(federate, tag)))
            execution = execution._replace(owned=owned)
            _ask(execution, owner, (instance, each), tag, telling)
    return Step(execution, None, tuple(telling.told()))


def _ask(execution: Execution, owner: int, place: Place, tag: bytes, telling: _Telling) -> None:
    """An owner of whom somebody wants an attribute: to confirm that it divests it, or to release it."""
    if place not in execution.owned.divesting:
        telling.say(owner, "request_attribute_ownership_release", place[1], tag)
    elif len(execution.owned.claims[place]) == 1:
        telling.say(owner, "request_divestiture_confirmation", place[1])


def attribute_ownership_acquisition_if_available(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate wants what is unowned of these, or being divested to nobody yet; of the rest it is told that it is
    unavailable (clause 7.9). Raises as attribute_ownership_acquisition, and AttributeAlreadyBeingAcquired."""
    wanted = _unowned_by(model, execution, federate, instance, attributes)
    for each in wanted:
        if any(claim.federate == federate for claim in execution.owned.claims.get((instance, each), ())):
            raise AttributeAlreadyBeingAcquired(
                f"the federate has asked for {_named(model, each)}", hint="Wait, or cancel", handle=each
            )
    telling = _Telling(instance)
    for each in wanted:
        place = instance, each
        owner = execution.owned.owner(instance, each)
        if not owner:
            execution = _handed(execution, instance, each, federate, b"", telling)
        elif place in execution.owned.divesting and place not in execution.owned.claims:
            owned = _claimed(execution.owned, place, (Claim(federate, b"", if_available=True),))
            execution = execution._replace(owned=owned)
            _ask(execution, owner, place, b"", telling)
        else:
            telling.say(federate, "attribute_ownership_unavailable", each)
    return Step(execution, None, tuple(telling.told()))


def cancel_attribute_ownership_acquisition(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> Step:
    """The federate does not want these any more, which is confirmed by a callback (clause 7.15). Raises
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeAlreadyOwned, AttributeAcquisitionWasNotRequested."""
    kind = objects.known_class(model, execution, federate, instance)
    wanted = checked_attributes(kind, attributes)
    for each in wanted:
        if execution.owned.owner(instance, each) == federate:
            raise AttributeAlreadyOwned(f"the federate owns {_named(model, each)}", hint="Divest it", handle=each)
        if not any(claim.federate == federate for claim in execution.owned.claims.get((instance, each), ())):
            raise AttributeAcquisitionWasNotRequested(
                f"the federate does not wait for {_named(model, each)}", hint="There is nothing to cancel", handle=each
            )
    telling = _Telling(instance)
    for each in wanted:
        telling.say(federate, "confirm_attribute_ownership_acquisition_cancellation", each)
    return Step(_unclaimed(execution, federate, instance, wanted), None, tuple(telling.told()))


def _unclaimed(execution: Execution, federate: int, instance: int, attributes: Iterable[int]) -> Execution:
    owned = execution.owned
    for each in attributes:
        claims = owned.claims.get((instance, each), ())
        left = tuple(claim for claim in claims if claim.federate != federate)
        if len(left) < len(claims):
            owned = _claimed(owned, (instance, each), left)
    return execution._replace(owned=owned)


# -- asking ---------------------------------------------------------------------------------------------------------


def query_attribute_ownership(model: Model, execution: Execution, federate: int, instance: int, attribute: int) -> Step:
    """Whether anybody owns an attribute, by inform_attribute_ownership; not who (clause 7.17). Raises
    ObjectInstanceNotKnown, AttributeNotDefined."""
    checked_attributes(objects.known_class(model, execution, federate, instance), (attribute,))
    is_owned = execution.owned.owner(instance, attribute) != 0
    return Step(execution, None, (tell(federate, "inform_attribute_ownership", instance, attribute, is_owned),))


def is_attribute_owned_by_federate(
    model: Model, execution: Execution, federate: int, instance: int, attribute: int
) -> Step:
    """The answer is whether the federate owns an attribute (clause 7.19). Raises ObjectInstanceNotKnown,
    AttributeNotDefined."""
    checked_attributes(objects.known_class(model, execution, federate, instance), (attribute,))
    return Step(execution, execution.owned.owner(instance, attribute) == federate)


# -- what other services do to ownership ----------------------------------------------------------------------------


def unowned_offered(model: Model, execution: Execution, instance: int, kind: Class, owned: tuple[int, ...]) -> Step:
    """An instance has been registered: what its registrant does not publish is offered to others."""
    telling = _Telling(instance)
    has = set(owned)
    _offer(execution, instance, (each for each in kind.members if each not in has), b"", telling)
    return Step(execution, None, tuple(telling.told()))


def offered(model: Model, execution: Execution, federate: int, cls: int) -> Step:
    """A federate publishes a class: what is unowned of its instances that it knows is offered to it."""
    told: list[Told] = []
    published = execution.declared.publishes(federate, cls)
    for handle in sorted(execution.instances.by_handle):
        if execution.instances.by_handle[handle].known.get(federate) == cls:
            owners = execution.owned.owners.get(handle, Map())
            free = tuple(each for each in published if each not in owners)
            if free:
                told.append(tell(federate, "request_attribute_ownership_assumption", handle, free, b""))
    return Step(execution, None, tuple(told))


def unpublished(
    model: Model, execution: Execution, federate: int, cls: int, attributes: tuple[int, ...]
) -> tuple[Execution, tuple[Told, ...]]:
    """A federate publishes attributes of a class no more."""
    told: list[Told] = []
    for handle in sorted(execution.instances.by_handle):
        if execution.instances.by_handle[handle].known.get(federate) != cls:
            continue
        execution = _unclaimed(execution, federate, handle, attributes)
        owners = execution.owned.owners.get(handle, Map())
        telling = _Telling(handle)
        lost = [each for each in attributes if owners.get(each) == federate and each != model.fom.privilege]
        execution = _let_go(model, execution, handle, lost, telling)
        told.extend(telling.told())
    return execution, tuple(told)


def divested(model: Model, execution: Execution, federate: int) -> tuple[Execution, tuple[Told, ...]]:
    """A federate resigns, and leaves what it owns."""
    told: list[Told] = []
    for handle in sorted(execution.owned.owners):
        lost = sorted(each for each, owner in execution.owned.owners[handle].items() if owner == federate)
        if lost:
            telling = _Telling(handle)
            execution = _let_go(model, execution, handle, lost, telling)
            told.extend(telling.told())
    return execution, tuple(told)


def without_claims(execution: Execution, federate: int) -> Execution:
    """A federate waits for nothing any more."""
    for instance, attribute in tuple(execution.owned.claims):
        execution = _unclaimed(execution, federate, instance, (attribute,))
    return execution


def owns_any(execution: Execution, federate: int) -> bool:
    """Whether a federate owns an attribute of any instance."""
    return any(federate in set(owners.values()) for owners in execution.owned.owners.values())


def claims_any(execution: Execution, federate: int) -> bool:
    """Whether a federate waits for an attribute of any instance."""
    return any(claim.federate == federate for claims in execution.owned.claims.values() for claim in claims)


def has_any(execution: Execution, federate: int, instance: int) -> bool:
    """Whether a federate owns an attribute of an instance, or waits for one."""
    owners = execution.owned.owners.get(instance, Map())
    return federate in set(owners.values()) or any(
        claim.federate == federate
        for place, claims in execution.owned.claims.items()
        if place[0] == instance
        for claim in claims
    )


# -- checks ---------------------------------------------------------------------------------------------------------


def _owned(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> tuple[int, ...]:
    """Attributes of an instance, sorted, all of them the federate's."""
    found = objects.known(execution, federate, instance)
    wanted = checked_attributes(model.fom.objects[found.cls - 1], attributes)
    owners = execution.owned.owners.get(instance, Map())
    for each in wanted:
        if owners.get(each) != federate:
            raise AttributeNotOwned(
                f"the federate does not own {_named(model, each)} of {found.name}", hint="Acquire it first", handle=each
            )
    return wanted


def _divesting(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> tuple[int, ...]:
    wanted = _owned(model, execution, federate, instance, attributes)
    for each in wanted:
        if (instance, each) not in execution.owned.divesting:
            raise AttributeDivestitureWasNotRequested(
                f"the federate is not divesting {_named(model, each)}",
                hint="Call negotiated_attribute_ownership_divestiture first",
                handle=each,
            )
    return wanted


def _unowned_by(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...]
) -> tuple[int, ...]:
    """Attributes that the federate may own and does not."""
    kind = objects.known_class(model, execution, federate, instance)
    wanted = checked_attributes(kind, attributes)
    published = set(execution.declared.publishes(federate, kind.handle))
    for each in wanted:
        if execution.owned.owner(instance, each) == federate:
            raise AttributeAlreadyOwned(
                f"the federate owns {_named(model, each)}", hint="There is nothing to acquire", handle=each
            )
        if each not in published and each != model.fom.privilege:
            raise AttributeNotPublished(
                f"the federate does not publish {_named(model, each)} of {kind.name}",
                hint="Call publish_object_class_attributes first",
                handle=each,
            )
    return wanted


def _named(model: Model, attribute: int) -> str:
    return model.fom.attributes[attribute - 1].name
