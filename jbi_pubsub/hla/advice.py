"""Advisories: federates that switch them on are told whether anybody wants what they have (IEEE 1516.1-2010, clauses
5.10 to 5.13, 6.17, 6.18, 6.21 and 6.22).

What holds before a service is compared with what holds after it, as pairs of a class and 0, or of an instance and an
attribute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Final

from immutables import Map

from .exceptions import InvalidArgument
from .execution import Execution, ServiceCall, put_entry
from .fom import Fom
from .regions import is_passive, reaches

Pair = tuple[int, int]


def set_advisory_switch(call: ServiceCall, switch: str, on: bool) -> None:  # a service's argument
    """The federate gets advisories of a kind from now on, or none. Raises InvalidArgument."""
    if switch not in SWITCHES:
        raise InvalidArgument(f"no advisory switch {switch[:100]!r}", hint=f"There are {', '.join(SWITCHES)}")
    advised = call.execution.declared.advised
    own = set(advised.get(call.federate, ())) - {switch} | ({switch} if on else set())
    call.change("declared", advised=put_entry(advised, call.federate, tuple(sorted(own))))


def advise(call: ServiceCall, before: Execution, instance: int) -> None:
    """Tell what has changed since then; `instance`: the one that the service was about, beside those that have moved,
    if it declared nothing."""
    after, fom = call.execution, call.model.fom
    by_handle = after.instances.by_handle
    declares = before.declared is not after.declared or before.regions is not after.regions
    if not declares and before.owned is after.owned and before.instances is after.instances:
        return
    handles = by_handle if declares else [each for each in {instance, *call.moved} if each in by_handle]
    for federate, switches in sorted(after.declared.advised.items()):
        for switch in switches:
            holds, begin, end = SWITCHES[switch]
            was, now = (set(holds(fom, each, federate, handles)) for each in (before, after))
            _tell(call, federate, begin, now - was)
            gone = was - now
            if switch == "attribute_relevance":  # of what it has lost it is told otherwise
                gone = {each for each in gone if after.owned.owner(*each) == federate}
            if switch == "attribute_scope":  # what it has forgotten it knows
                gone = {each for each in gone if federate in by_handle[each[0]].known}
            _tell(call, federate, end, gone)


def _tell(call: ServiceCall, federate: int, callback: str, pairs: set[Pair]) -> None:
    for at, group in groupby(sorted(pairs), lambda pair: pair[0]):
        attributes = tuple(each for _, each in group)
        call.tell(federate, callback, at, *((attributes,) if attributes != (0,) else ()))


def _wanted_classes(fom: Fom, execution: Execution, federate: int, _: Iterable[int]) -> Iterator[Pair]:
    """Classes of which a federate publishes attributes that another one subscribes to."""
    declared = execution.declared
    others = [(other, each) for other, each in declared.subscribed.items() if other != federate]
    for cls, attributes in declared.published.get(federate, Map()).items():
        above = fom.objects[cls - 1].above
        if any(
            each in attributes and not is_passive(execution, other, at, each)
            for other, wanted in others for at in above for each in wanted.get(at, ())
        ):  # fmt: skip
            yield cls, 0


def _heard_classes(fom: Fom, execution: Execution, federate: int, _: Iterable[int]) -> Iterator[Pair]:
    """Interaction classes that a federate publishes, and another one subscribes to."""
    heard = {
        cls for other, classes in execution.declared.hears.items() if other != federate
        for cls in classes if not is_passive(execution, other, cls)
    }  # fmt: skip
    for cls in execution.declared.sends.get(federate, ()):
        if not heard.isdisjoint(fom.interactions[cls - 1].above):
            yield cls, 0


def _reflected(execution: Execution, federate: int, handle: int) -> Iterator[tuple[int, int]]:
    """Attributes of which a federate gets values, and who owns them."""
    found = execution.instances.by_handle.get(handle)
    cls = found.known.get(federate, 0) if found is not None else 0
    for each in execution.declared.subscribed.get(federate, Map()).get(cls, ()):
        owner = execution.owned.owner(handle, each)
        is_owned = owner not in (0, federate) and each not in execution.owned.declared.get(handle, ())
        if is_owned and reaches(execution.regions, owner, handle, each, (federate, cls)):
            yield each, owner


def _in_scope(_: Fom, execution: Execution, federate: int, handles: Iterable[int]) -> Iterator[Pair]:
    return ((at, each) for at in handles for each, _ in _reflected(execution, federate, at))


def _relevant(_: Fom, execution: Execution, federate: int, handles: Iterable[int]) -> Iterator[Pair]:
    """Attributes that a federate owns, and another one gets values of, who says so."""
    by_handle = execution.instances.by_handle
    return (
        (at, each) for at in handles for other in execution.declared.subscribed
        for each, owner in _reflected(execution, other, at)
        if owner == federate and not is_passive(execution, other, by_handle[at].known[other], each)
    )  # fmt: skip


SWITCHES: Final[dict[str, tuple[Callable[[Fom, Execution, int, Iterable[int]], Iterator[Pair]], str, str]]] = {
    "object_class_relevance":
        (_wanted_classes, "start_registration_for_object_class", "stop_registration_for_object_class"),
    "interaction_relevance": (_heard_classes, "turn_interactions_on", "turn_interactions_off"),
    "attribute_relevance":
        (_relevant, "turn_updates_on_for_object_instance", "turn_updates_off_for_object_instance"),
    "attribute_scope": (_in_scope, "attributes_in_scope", "attributes_out_of_scope"),
}  # fmt: skip
"""Advice of each switch: what holds, and callbacks for its begin and end."""
