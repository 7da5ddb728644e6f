"""Services that the standard does not have: those by which a bridge between federations can be given what its
surrogates need to know (Bridging the HLA, section 6.1). But for `query_synchronization_point`, which tells what a save
status tells of saves, they exist where an RTI was told to have them (RtiOptions.adds).

- A federate that is the only one who has not reported (a save, a restore, a synchronization point) is told
  `only_one_not_yet`: a surrogate, which has disclosed that it is one; without RtiOptions.discloses whoever is the last.
  When another one joins, whom a point waits for, it is told `no_longer_only_one`.
- A surrogate that has achieved a point for the other side takes that back, when somebody joins there.
- A surrogate is told when nobody wants an attribute any more that it was asked to release.
- A surrogate reports that the other side has refused a synchronization point: the registrant is told that its
  registration has failed, and members that the point is withdrawn.
- Federates join named sets; a synchronization point can be registered for a set, and surrogates are told of it as well.
- The state of a federation can be asked for: which attributes of the known instances are owned, and what is pending.
- A surrogate that owns attributes which nobody owns on the other side says so: they count as unowned, nobody is asked
  for their values, and who wants one still is told to ask the surrogate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from immutables import Map

from . import federation, ownership
from .exceptions import InvalidArgument, ServiceNotEnabled, SynchronizationPointLabelNotAnnounced
from .execution import Callback, Execution, Handles, Notice, Point, Points, RtiOptions, Saving, ServiceCall, put_entry

SETS_MOST: Final = 10_000
"""Sets of a federation, and those of one federate."""
REPORTED: Final = frozenset(("waiting", "failed"))


def _check(call: ServiceCall, service: str) -> None:
    if not call.model.options.adds:
        raise ServiceNotEnabled(
            f"{service} is none of the standard's services", hint="Start the RTI with --adds to have it"
        )


def query_synchronization_point(call: ServiceCall, label: str) -> tuple[str, ...]:
    """The answer is in which states the other members of a point are, "moving" and "achieved", and "failed" if somebody
    has failed; sorted, each once: no number, no identity."""
    point = _announced(call, label, "It may be over: federation_synchronized says so")
    states = {"achieved" if has else "moving" for each, has in point.achieved.items() if each != call.federate}
    return tuple(sorted(states | ({"failed"} if point.failed else set())))


def _announced(call: ServiceCall, label: str, hint: str) -> Point:
    point = call.execution.points.pending.get(label)
    if point is None or call.federate not in point.achieved:
        raise SynchronizationPointLabelNotAnnounced(
            f"no synchronization point {label[:200]!r} is announced to the federate", hint=hint
        )
    return point


def disclose_surrogate(call: ServiceCall) -> None:
    """The federate is a bridge's, and stands for a whole federation. Raises ServiceNotEnabled."""
    _check(call, "disclose_surrogate")
    joined = call.execution.members.joined
    call.change("members", joined=joined.set(call.federate, joined[call.federate]._replace(is_surrogate=True)))
    nothing = call.execution._replace(saving=Saving(), points=Points())
    noticed = notices(call.model.options, nothing, call.execution)
    call.told.extend(each for each in noticed if each.federate == call.federate)


# -- who is the last ------------------------------------------------------------------------------------------------


def notices(options: RtiOptions, before: Execution, after: Execution) -> Iterator[Notice]:
    """Whoever has become the only one who has not reported is told so."""
    saving = after.saving
    if saving.label and saving != before.saving:
        missing = _last(options, after, {each: state in REPORTED for each, state in saving.states.items()})
        states = before.saving.states if before.saving.label == saving.label else Map()
        if missing and missing != _last(options, before, {each: state in REPORTED for each, state in states.items()}):
            kind = "restore" if saving.is_restore else "save"
            others = "failed" not in saving.states.values() and not saving.resigned
            yield Notice(missing, Callback("only_one_not_yet", (kind, saving.label, others)))
    if after.points.pending is not before.points.pending:
        for label in sorted(after.points.pending):
            point, old = after.points.pending[label], before.points.pending.get(label)
            if point is old:
                continue
            missing = _last(options, after, point.achieved)
            was = _last(options, before, old.achieved) if old is not None else 0
            if missing and missing != was:
                yield Notice(missing, Callback("only_one_not_yet", ("sync", label, not point.failed)))
            elif not missing and point.achieved.get(was) is False:
                yield Notice(was, Callback("no_longer_only_one", ("sync", label)))
    if after.owned.claims is not before.owned.claims:
        yield from _withdrawn(before, after)


def _withdrawn(before: Execution, after: Execution) -> Iterator[Notice]:
    """Surrogates are told of what they own, and nobody wants any more."""
    for instance in sorted(before.owned.claims):
        claims, now = before.owned.claims[instance], after.owned.claims.get(instance, Map())
        by_owner: dict[int, list[int]] = {}
        for each in sorted(claims) if claims is not now else ():
            owner = after.owned.owner(instance, each)
            if each not in now and owner == before.owned.owner(instance, each):
                by_owner.setdefault(owner, []).append(each)
        for owner, attributes in by_owner.items():
            member = after.members.joined.get(owner)
            if member is not None and member.is_surrogate:
                told = Callback("attribute_ownership_acquisition_withdrawn", (instance, tuple(attributes)))
                yield Notice(owner, told)


def _last(options: RtiOptions, execution: Execution, reported: Map[int, bool] | dict[int, bool]) -> int:
    """The federate to be told; 0: nobody."""
    missing = [each for each, has in reported.items() if not has]
    if len(missing) != 1:
        return 0
    member = execution.members.joined.get(missing[0])
    is_told = member is not None and (member.is_surrogate or (not options.discloses and len(reported) > 1))
    return missing[0] if is_told else 0


# -- synchronization points -----------------------------------------------------------------------------------------


def report_registration_failure(call: ServiceCall, label: str, reason: str) -> None:
    """The point can't be one on the other side of a bridge: it is none here either. Raises ServiceNotEnabled,
    SynchronizationPointLabelNotAnnounced."""
    _check(call, "report_registration_failure")
    point = _announced(call, label, "It may be over")
    if point.registrant in call.execution.members.joined:
        call.tell(point.registrant, "synchronization_point_registration_failed", label, reason)
    for each in sorted(point.achieved):
        call.tell(each, "synchronization_point_withdrawn", label, reason)
    call.change("points", pending=call.execution.points.pending.delete(label))


def synchronization_point_not_achieved(call: ServiceCall, label: str) -> None:
    """The other side of a bridge is not where the point asks it to be after all: somebody has joined it. Raises
    ServiceNotEnabled, SynchronizationPointLabelNotAnnounced."""
    _check(call, "synchronization_point_not_achieved")
    point = _announced(call, label, "It may be over: federation_synchronized says so")
    achieved = point.achieved.set(call.federate, False)
    call.change("points", pending=call.execution.points.pending.set(label, point._replace(achieved=achieved)))


def join_set(call: ServiceCall, name: str) -> None:
    _check(call, "join_set")
    sets = call.execution.points.sets
    if not name:
        raise InvalidArgument("a set has a name", hint="Give a text of one character or more")
    if name not in sets and len(sets) >= SETS_MOST:
        raise InvalidArgument(f"there are {SETS_MOST:,} sets", hint="Leave some")
    call.change("points", sets=sets.set(name, sets.get(name, Map()).set(call.federate, True)))


def leave_set(call: ServiceCall, name: str) -> None:
    _check(call, "leave_set")
    sets = call.execution.points.sets
    members = sets.get(name, Map())
    if call.federate in members:
        call.change("points", sets=put_entry(sets, name, members.delete(call.federate)))


def register_synchronization_point_for_set(call: ServiceCall, label: str, tag: bytes, name: str) -> None:
    """A point for the members of a set, as they are now, and for surrogates, which are told the set's name."""
    _check(call, "register_synchronization_point_for_set")
    joined = call.execution.members.joined
    surrogates = [each for each in sorted(joined) if joined[each].is_surrogate]
    federation.register(call, label, tag, {*call.execution.points.sets.get(name, ()), *surrogates}, for_all=False)
    for place, (federate, callback) in enumerate(call.told):
        if callback.name == "announce_synchronization_point" and federate in surrogates:
            to_set = Callback("announce_synchronization_point_to_set", (label, tag, name))
            call.told[place] = Notice(federate, to_set)


# -- what there is --------------------------------------------------------------------------------------------------


def query_federation_state(call: ServiceCall) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...], str]:
    """The answer: pairs of an instance that the federate knows and an attribute that is owned, the labels of pending
    points, and that of a save that goes on, or ""."""
    _check(call, "query_federation_state")
    execution = call.execution
    owned: list[tuple[int, int]] = []
    for handle in sorted(execution.instances.by_handle):
        if call.federate in execution.instances.by_handle[handle].known:
            unowned = execution.owned.declared.get(handle, Map())
            owners = execution.owned.owners.get(handle, Map())
            owned.extend((handle, each) for each in sorted(owners) if each not in unowned)
    return tuple(owned), tuple(sorted(execution.points.pending)), execution.saving.label


def declare_unowned(
    call: ServiceCall, instance: int, attributes: Handles, is_unowned: bool = True  # a service's argument
) -> None:  # fmt: skip
    """Attributes that the federate owns are unowned on the other side, or are not any more. Raises ServiceNotEnabled,
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned."""
    _check(call, "declare_unowned")
    table = call.execution.owned.declared
    declared = table.get(instance, Map())
    for each in ownership.owned_by(call, instance, attributes):
        declared = put_entry(declared, each, is_unowned)
    call.change("owned", declared=put_entry(table, instance, declared))
