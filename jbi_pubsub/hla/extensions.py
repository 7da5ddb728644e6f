"""Services that the standard does not have: those by which a bridge between federations can be given what its
surrogates need to know (Bridging the HLA, section 6.1). But for `query_synchronization_point`, which tells what a save
status tells of saves, they exist where an RTI was told to have them (Options.adds).

- A federate that is the only one who has not reported (a save, a restore, a synchronization point) is told
  `only_one_not_yet`: a surrogate, which has disclosed that it is one; with Options.discloses off whoever is the last.
- A surrogate reports that the other side has refused a synchronization point: the registrant is told that its
  registration has failed, and members that the point is withdrawn.
- Federates join named sets; a synchronization point can be registered for a set, and surrogates are told of it as well.
- The state of a federation can be asked for: which attributes of the known instances are owned, and what is pending.
- A surrogate that owns attributes which nobody owns on the other side says so: they count as unowned, nobody is asked
  for their values, and who wants one still is told to ask the surrogate.
"""

from __future__ import annotations

from typing import Final

from immutables import Map

from . import federation, ownership
from .exceptions import InvalidArgument, ServiceNotEnabled, SynchronizationPointLabelNotAnnounced
from .execution import Execution, Model, Step, Told, known, tell

SETS_MOST: Final = 10_000
"""Sets of a federation, and those of one federate."""
REPORTED: Final = frozenset(("waiting", "failed"))


def _check(model: Model, service: str) -> None:
    if not model.options.adds:
        raise ServiceNotEnabled(
            f"{service} is none of the standard's services", hint="Start the RTI with --adds to have it"
        )


def query_synchronization_point(model: Model, execution: Execution, federate: int, label: str) -> Step:
    """The answer is in which states the other members of a point are, "moving" and "achieved", sorted, each once: no
    number, no identity. Raises SynchronizationPointLabelNotAnnounced to who is no member."""
    point = execution.points.pending.get(label)
    if point is None or federate not in point.achieved:
        raise SynchronizationPointLabelNotAnnounced(
            f"no synchronization point {label[:200]!r} is announced to the federate",
            hint="It may be over: federation_synchronized says so",
        )
    states = {"achieved" if has else "moving" for each, has in point.achieved.items() if each != federate}
    return Step(execution, tuple(sorted(states)))


def disclose_surrogate(model: Model, execution: Execution, federate: int) -> Step:
    """The federate is a bridge's, and stands for a whole federation. Raises ServiceNotEnabled."""
    _check(model, "disclose_surrogate")
    members = execution.members
    member = members.joined[federate]._replace(is_surrogate=True)
    made = execution._replace(members=members._replace(joined=members.joined.set(federate, member)))
    nothing = execution._replace(
        saving=execution.saving._replace(label="", states=Map()), points=execution.points._replace(pending=Map())
    )
    told = tuple(each for each in noticed(model, nothing, made) if each.federate == federate)
    return Step(made, None, told)


# -- who is the last ------------------------------------------------------------------------------------------------


def noticed(model: Model, before: Execution, after: Execution) -> tuple[Told, ...]:
    """Whoever has become the only one who has not reported is told so."""
    told = []
    saving = after.saving
    if saving.label and saving != before.saving:
        missing = _last(model, after, {each: state in REPORTED for each, state in saving.states.items()})
        states = before.saving.states if before.saving.label == saving.label else Map()
        if missing and missing != _last(model, before, {each: state in REPORTED for each, state in states.items()}):
            kind = "restore" if saving.is_restore else "save"
            others = "failed" not in saving.states.values() and not saving.resigned
            told.append(tell(missing, "only_one_not_yet", kind, saving.label, others))
    if after.points.pending is not before.points.pending:
        for label in sorted(after.points.pending):
            point, old = after.points.pending[label], before.points.pending.get(label)
            if point is old:
                continue
            missing = _last(model, after, point.achieved)
            if missing and (old is None or missing != _last(model, before, old.achieved)):
                told.append(tell(missing, "only_one_not_yet", "sync", label, True))
    return tuple(told)


def _last(model: Model, execution: Execution, reported: Map[int, bool] | dict[int, bool]) -> int:
    """Who is to be told; 0: nobody."""
    missing = [each for each, has in reported.items() if not has]
    if len(missing) != 1 or len(reported) < 2:
        return 0
    member = execution.members.joined.get(missing[0])
    return missing[0] if member is not None and (member.is_surrogate or not model.options.discloses) else 0


# -- synchronization points -----------------------------------------------------------------------------------------


def report_registration_failure(model: Model, execution: Execution, federate: int, label: str, reason: str) -> Step:
    """The point can't be one on the other side of a bridge: it is none here either. Raises ServiceNotEnabled,
    SynchronizationPointLabelNotAnnounced."""
    _check(model, "report_registration_failure")
    point = execution.points.pending.get(label)
    if point is None or federate not in point.achieved:
        raise SynchronizationPointLabelNotAnnounced(
            f"no synchronization point {label[:200]!r} is announced to the federate", hint="It may be over"
        )
    told = []
    if point.registrant in execution.members.joined:
        told.append(tell(point.registrant, "synchronization_point_registration_failed", label, reason))
    told.extend(tell(each, "synchronization_point_withdrawn", label, reason) for each in sorted(point.achieved))
    points = execution.points._replace(pending=execution.points.pending.delete(label))
    return Step(execution._replace(points=points), None, tuple(told))


def join_set(model: Model, execution: Execution, federate: int, name: str) -> Step:
    """The federate becomes a member of a set. Raises ServiceNotEnabled, InvalidArgument."""
    _check(model, "join_set")
    sets = execution.points.sets
    if not name:
        raise InvalidArgument("a set has a name", hint="Give a text of one character or more")
    if name not in sets and len(sets) >= SETS_MOST:
        raise InvalidArgument(f"there are {SETS_MOST:,} sets", hint="Leave some")
    sets = sets.set(name, sets.get(name, Map()).set(federate, True))
    return Step(execution._replace(points=execution.points._replace(sets=sets)))


def leave_set(model: Model, execution: Execution, federate: int, name: str) -> Step:
    """It is none any more. Raises ServiceNotEnabled."""
    _check(model, "leave_set")
    sets = execution.points.sets
    left = sets.get(name, Map())
    if federate in left:
        left = left.delete(federate)
        sets = sets.set(name, left) if left else sets.delete(name)
    return Step(execution._replace(points=execution.points._replace(sets=sets)))


def register_synchronization_point_for_set(
    model: Model, execution: Execution, federate: int, label: str, tag: bytes, name: str
) -> Step:
    """A point for the members of a set, as they are now, and for surrogates, which are told the set's name. Raises
    ServiceNotEnabled."""
    _check(model, "register_synchronization_point_for_set")
    joined = execution.members.joined
    surrogates = [each for each in sorted(joined) if joined[each].is_surrogate]
    members = sorted({*execution.points.sets.get(name, ()), *surrogates})
    step = federation.registered(model, execution, federate, label, tag, members, for_all=False)
    if label not in step.execution.points.pending or label in execution.points.pending:
        return step
    told = tuple(
        tell(each.federate, "announce_synchronization_point_to_set", label, tag, name)
        if each.callback.name == "announce_synchronization_point" and each.federate in surrogates
        else each
        for each in step.told
    )
    return step._replace(told=told)


# -- what there is --------------------------------------------------------------------------------------------------


def query_federation_state(model: Model, execution: Execution, federate: int) -> Step:
    """The answer: pairs of an instance that the federate knows and an attribute that is owned, the labels of pending
    points, and that of a save that goes on, or "". Raises ServiceNotEnabled."""
    _check(model, "query_federation_state")
    owned: list[tuple[int, int]] = []
    for handle in sorted(execution.instances.by_handle):
        if federate in execution.instances.by_handle[handle].known:
            unowned = execution.owned.declared.get(handle, Map())
            owners = execution.owned.owners.get(handle, Map())
            owned.extend((handle, each) for each in sorted(owners) if each not in unowned)
    return Step(execution, (tuple(owned), tuple(sorted(execution.points.pending)), execution.saving.label))


def declare_unowned(
    model: Model, execution: Execution, federate: int, instance: int, attributes: tuple[int, ...],
    is_unowned: bool = True,  # a service's argument
) -> Step:  # fmt: skip
    """Attributes that the federate owns are unowned on the other side, or are not any more. Raises ServiceNotEnabled,
    ObjectInstanceNotKnown, AttributeNotDefined, AttributeNotOwned."""
    _check(model, "declare_unowned")
    known(execution, federate, instance)
    wanted = ownership.owned_by(model, execution, federate, instance, attributes)
    declared = execution.owned.declared.get(instance, Map())
    for each in wanted:
        if is_unowned:
            declared = declared.set(each, True)
        elif each in declared:
            declared = declared.delete(each)
    table = execution.owned.declared
    table = table.set(instance, declared) if declared else table.delete(instance) if instance in table else table
    return Step(execution._replace(owned=execution.owned._replace(declared=table)))
