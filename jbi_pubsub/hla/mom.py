"""The management object model: what an RTI tells of a federation and its federates, and with what it answers a request
(IEEE 1516.1-2010, clause 11). Its classes are those of the standard's own module, the MIM.

A handle is octets, eight of them, the highest first. A time is octets that have an HLAfloat64BE; none where there is no
time. Of a MIM that lacks some of the standard's attributes or parameters these are left out.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from immutables import Map

from jbi_pubsub.core.process import version

from .clock import Bound, bounds_of, galt_of
from .encoding import ELEMENTS_MOST
from .exceptions import InvalidArgument, RtiError
from .execution import RTI, Execution, FederationModel, Handles, ServiceStep, Values
from .fom import BEST_EFFORT, RELIABLE, ClassMember, Fom, parsed
from .proxy import Module
from .regions import is_passive
from .support import FLOAT_TIME

log = logging.getLogger("jbi_pubsub.hla")

MIM: Final = Module("HLAstandardMIM", (Path(__file__).parent / "data" / "HLAstandardMIM.xml").read_bytes())
_MARK: Final = b"HLAreportMOMexception"
"""Name in a module that is a MIM."""


def with_mim(modules: Sequence[Module]) -> Fom:
    """The model of a federation's modules, with the standard's own if none of them is a MIM. Modules that contradict
    that one are served without it. Raises ErrorReadingFom, InconsistentFom."""
    whole = tuple(modules) if any(_MARK in each.data for each in modules) else (*modules, MIM)
    try:
        return parsed(*whole)
    except RtiError as exc:
        fom = parsed(*modules)
        log.warning("a federation has no management object model: %s", exc)
        return fom


# -- values ---------------------------------------------------------------------------------------------------------


def octets(handle: int) -> bytes:
    """A handle, as values have it."""
    return handle.to_bytes(8, "big")


def _list(handles: Iterator[int] | Sequence[int]) -> list[bytes]:
    return [octets(each) for each in handles]


def _number(data: bytes) -> int:
    if len(data) != 8:
        raise InvalidArgument(f"a handle has 8 octets, not {len(data)}", hint="Write it as handle.to_bytes(8, 'big')")
    return int.from_bytes(data, "big")


def _stamp(time: float | None) -> bytes:
    return b"" if time is None else FLOAT_TIME.codec.encode(time)


def _time(data: bytes) -> float | None:
    return FLOAT_TIME.codec.decode(data) if data else None


_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    "HLAhandle": _number, "HLAhandleList": lambda each: tuple(map(_number, each)),
    "HLAlogicalTime": _time, "HLAtimeInterval": _time,
}  # fmt: skip


class SaidParameters(dict[str, Any]):
    """Parameters of an interaction, by name. Raises InvalidArgument for one that is missing."""

    def __missing__(self, name: str) -> Any:
        raise InvalidArgument(f"the parameter {name} is missing", hint="Send it")


def read(fom: Fom, values: Values) -> SaidParameters:
    """Parameters of an interaction, decoded. Raises DecoderException, InvalidArgument."""
    found = SaidParameters()
    for handle, data in values:
        name, data_type = fom.parameters[handle - 1][:2]
        found[name] = _READ.get(data_type, lambda each: each)(fom.codec(data_type).decode(data))
    return found


def written(fom: Fom, handles: Handles, members: Sequence[ClassMember], values: Mapping[str, Any]) -> Values:
    """Values by name, as those of attributes or parameters."""
    named = ((each, members[each - 1]) for each in handles)
    return tuple((each, fom.codec(of.data_type).encode(values[of.name])) for each, of in named if of.name in values)


# -- counts ---------------------------------------------------------------------------------------------------------

_INTERACTIONS: Final = "send_interaction", "receive_interaction"
_MEETS: Final = {"update_attribute_values": "updated", "reflect_attribute_values": "reflected"}
_COUNTED: Final = frozenset((
    *_INTERACTIONS, *_MEETS, "register_object_instance", "discover_object_instance", "delete_object_instance",
    "remove_object_instance",
))  # fmt: skip


_ENDING: Final = "delete_object_instance", "resign_federation_execution"
NOTED_MOST: Final = 10_000
GONE_MOST: Final = 1_000
"""Instances that are remembered beyond twice those that are there."""


class MomView:
    """A federation at a moment, and counts of what its federates have called and were told, which no save keeps."""

    def __init__(self, model: FederationModel, execution: Execution) -> None:
        self.model, self.execution = model, execution
        self.mim = next((each for each in model.fom.modules if _MARK in each.data), MIM)
        self.hosts: dict[int, str] = {}
        self.brought: dict[int, tuple[str, ...]] = {}
        """Names of the modules with which each federate has joined."""
        self._counts: dict[int, Counter[tuple[str, int, bool]]] = defaultdict(Counter)
        """By federate; by service or callback, class, and whether by best effort."""
        self._met: dict[int, set[tuple[int, str]]] = {}
        """By instance: who has updated it, and who got values of it."""
        self._noted: Counter[tuple[str, int, bool, Handles]] = Counter()
        """Services and callbacks that are not in _counts yet, as they repeat: with what they are about, and whose."""
        self._bounds: tuple[object, object, list[tuple[Bound, int]]] = (None, None, [])
        self._deletable: tuple[object, dict[int, Counter[int]]] = (None, {})

    @property
    def modules(self) -> list[Module]:
        """Those of the object model but the MIM."""
        return [each for each in self.model.fom.modules if each != self.mim]

    def note(self, federate: int, service: str, given: Sequence[Any], step: ServiceStep) -> bool:
        """Count a service that was done, and what was told by it; whether the RTI itself was told something."""
        if self.execution.saving.is_restore and not step.execution.saving.label:
            self._restore(step.execution)
        if service in _ENDING or len(self._noted) > NOTED_MOST:
            self._settle()
        if service in _COUNTED:
            fom, instances, ways = self.model.fom, step.execution.instances, {RELIABLE}
            if service == "send_interaction":
                ways = {instances.sends.get((federate, given[0])) or fom.interactions[given[0] - 1].transportation}
            elif service == "update_attribute_values":
                changed = instances.transports.get
                ways = {changed((given[0], a)) or fom.attributes[a - 1].transportation for a, _ in given[1]}
            self._noted[service, given[0], ways == {BEST_EFFORT}, (federate,)] += 1
        is_asked = False
        for callback, told in groupby(step.told, itemgetter(1)):
            receivers = tuple(map(itemgetter(0), told))
            is_asked = is_asked or RTI in receivers
            if callback.name in _COUNTED:
                self._noted[callback.name, callback.arguments[0], callback.is_best_effort, receivers] += 1
        return is_asked

    def _settle(self) -> None:
        """Count what was noted by federate and class, while its instances are there."""
        noted, self._noted = self._noted, Counter()
        for (name, of, best, receivers), count in noted.items():
            found = self.execution.instances.by_handle.get(of) if name in _MEETS else None
            for to in receivers:
                cls = of if name in _INTERACTIONS else found.known.get(to, found.cls) if found is not None else 0
                self._counts[to][name, cls, best] += count
                if name in _MEETS and (to, name) not in self._met.setdefault(of, set()):
                    self._met[of].add((to, name))
                    self._counts[to][_MEETS[name], cls, False] += 1
        if len(self._met) > 2 * len(self.execution.instances.by_handle) + GONE_MOST:
            self._forget_gone()

    def _forget_gone(self) -> None:
        self._met = {each: met for each, met in self._met.items() if each in self.execution.instances.by_handle}

    def _restore(self, after: Execution) -> None:
        """Federates have the handles that they had when they were saved: what is counted stays theirs."""
        self._settle()
        names = {handle: name for name, handle in self.execution.members.names.items()}
        now = {each: after.members.names.get(name, each) for each, name in names.items()}
        self._counts = defaultdict(Counter, {now.get(each, each): its for each, its in self._counts.items()})
        self._met = {of: {(now.get(to, to), what) for to, what in met} for of, met in self._met.items()}
        self.hosts = {now.get(each, each): host for each, host in self.hosts.items()}
        self.brought = {now.get(each, each): modules for each, modules in self.brought.items()}

    def drop(self, federate: int) -> None:
        """Forget a federate that has left."""
        self._counts.pop(federate, None)
        self._forget_gone()

    def total(self, federate: int, what: str) -> int:
        """The count of all classes."""
        self._settle()
        return sum(count for (name, _, _), count in self._counts[federate].items() if name == what)

    def counts(self, federate: int, what: str, *, is_best_effort: bool = False) -> Mapping[int, int]:
        """By class: of services and callbacks, instances "updated" and "reflected"; "deletable": that it may delete."""
        self._settle()
        if what != "deletable":
            own = self._counts[federate].items()
            return {cls: n for (name, cls, best), n in own if cls and (name, best) == (what, is_best_effort)}
        owners, privilege = self.execution.owned.owners, self.model.fom.privilege
        if self._deletable[0] is not owners:
            self._deletable = owners, defaultdict(Counter)
            for handle, instance in self.execution.instances.by_handle.items():
                self._deletable[1][owners.get(handle, Map()).get(privilege, 0)][instance.cls] += 1
        return self._deletable[1].get(federate, {})

    def galt(self, federate: int) -> float:
        """Its GALT; bounds are looked for once for all federates."""
        clock = self.execution.clock
        if self._bounds[0] is not clock.paces or self._bounds[1] is not clock.waiting:
            self._bounds = (clock.paces, clock.waiting, bounds_of(clock))
        return galt_of(self._bounds[2], federate)[0]


# -- attributes -----------------------------------------------------------------------------------------------------


def _switch(*, on: bool) -> str:
    return "Enabled" if on else "Disabled"


def _lookahead(view: MomView, of: int) -> bytes:
    pace = view.execution.clock.pace(of)
    return _stamp(None if pace.lookahead is None else max(pace.lookahead, pace.floor - pace.time))


def _state(view: MomView, _: int) -> str:
    saving = view.execution.saving
    return "ActiveFederate" if not saving.label else f"Federate{'Restore' if saving.is_restore else 'Save'}InProgress"


def _total(what: str) -> Callable[[MomView, int], int]:
    return lambda view, of: view.total(of, what)


_Attributes = Mapping[str, Callable[[MomView, int], Any]]
CONDITIONAL: Final[_Attributes] = {
    "HLAtimeConstrained": lambda view, of: view.execution.clock.pace(of).is_constrained,
    "HLAtimeRegulating": lambda view, of: view.execution.clock.pace(of).lookahead is not None,
    "HLAasynchronousDelivery": lambda view, of: view.execution.clock.pace(of).is_asynchronous,
    "HLAtimeManagerState":
        lambda view, of: "TimeAdvancing" if view.execution.clock.pace(of).asked is not None else "TimeGranted",
    "HLAconveyProducingFederate": lambda view, of: _switch(on=of in view.execution.declared.conveyed),
}  # fmt: skip
"""Attributes of a federate that are told when they change."""
PERIODIC: Final[_Attributes] = {
    "HLAlogicalTime": lambda view, of: _stamp(view.execution.clock.pace(of).time),
    "HLAlookahead": _lookahead,
    "HLAGALT": lambda view, of: _stamp(view.galt(of)),
    "HLALITS": lambda view, of: _stamp(min(view.galt(of), view.execution.clock.least(of))),
    "HLAROlength": lambda view, of: len(view.execution.clock.held.get(of, ())),
    "HLATSOlength": lambda view, of: sum(map(len, view.execution.clock.waiting.get(of, ()))),
    "HLAobjectInstancesThatCanBeDeleted": lambda view, of: sum(view.counts(of, "deletable").values()),
    **{f"HLA{name}": _total(what) for name, what in (
        ("reflectionsReceived", "reflect_attribute_values"), ("updatesSent", "update_attribute_values"),
        ("interactionsReceived", "receive_interaction"), ("interactionsSent", "send_interaction"),
        ("objectInstancesUpdated", "updated"), ("objectInstancesReflected", "reflected"),
        ("objectInstancesDeleted", "delete_object_instance"), ("objectInstancesRemoved", "remove_object_instance"),
        ("objectInstancesRegistered", "register_object_instance"),
        ("objectInstancesDiscovered", "discover_object_instance"))},
}  # fmt: skip
"""Attributes of a federate that are told every so often, where HLAsetTiming says so."""
FEDERATE: Final[_Attributes] = {
    "HLAfederateHandle": lambda _, of: octets(of),
    "HLAfederateName": lambda view, of: view.execution.members.joined[of].name,
    "HLAfederateType": lambda view, of: view.execution.members.joined[of].kind,
    "HLAfederateHost": lambda view, of: view.hosts.get(of, ""),
    "HLARTIversion": lambda *_: f"jbi-pubsub {version()}",
    "HLAFOMmoduleDesignatorList": lambda view, of: list(view.brought.get(of, ())),
    "HLAfederateState": _state,
    **CONDITIONAL,
    **PERIODIC,
}
FEDERATION: Final[_Attributes] = {
    "HLAfederationName": lambda view, _: view.execution.name,
    "HLAfederatesInFederation": lambda view, _: _list(sorted(view.execution.members.joined)),
    "HLARTIversion": FEDERATE["HLARTIversion"],
    "HLAMIMdesignator": lambda view, _: view.mim.name,
    "HLAFOMmoduleDesignatorList": lambda view, _: [name for name, _ in view.modules],
    "HLAtimeImplementationName": lambda *_: FLOAT_TIME.name,
    "HLAlastSaveName": lambda view, _: ("", *view.execution.saving.order)[-1],
    "HLAnextSaveName": lambda view, _: (view.execution.saving.scheduled or ("", None))[0],
    "HLAnextSaveTime": lambda view, _: _stamp((view.execution.saving.scheduled or ("", None))[1]),
    "HLAautoProvide": lambda view, _: _switch(on=view.execution.managed.provides),
}


# -- requests -------------------------------------------------------------------------------------------------------

_Reports = Iterator[tuple[str, dict[str, Any]]]
"""Interaction classes, without HLAreport before them, and values of their parameters."""
_Answer = Callable[[MomView, int, Mapping[str, Any]], _Reports]


def _of_classes(report: str, classes: Map[int, Handles], count: int, **more: Any) -> _Reports:
    """One for each class; one that says so, where there is none. `count`: of all classes."""
    for cls in sorted(classes) or [0]:
        which = octets(cls) if cls else b""
        attributes = _list(classes.get(cls, ()))
        yield report, {"HLAnumberOfClasses": count, "HLAobjectClass": which, "HLAattributeList": attributes, **more}


def _publications(view: MomView, of: int, _: Mapping[str, Any]) -> _Reports:
    declared = view.execution.declared
    classes = declared.published.get(of, Map())
    yield from _of_classes("ObjectClassPublication", classes, len(classes))
    yield "InteractionPublication", {"HLAinteractionClassList": _list(declared.sends.get(of, ()))}


def _subscriptions(view: MomView, of: int, _: Mapping[str, Any]) -> _Reports:
    declared = view.execution.declared
    classes = declared.subscribed.get(of, Map())
    silent = {cls: tuple(each for each in of_it if is_passive(view.execution, of, cls, each))
              for cls, of_it in classes.items()}  # fmt: skip
    active = {cls: tuple(each for each in of_it if each not in silent[cls]) for cls, of_it in classes.items()}
    for is_active, parts in ((True, active), (False, silent)):
        part = Map({cls: attributes for cls, attributes in parts.items() if attributes})
        if part or (is_active and not classes):
            more = {"HLAactive": is_active, "HLAmaxUpdateRate": ""}
            yield from _of_classes("ObjectClassSubscription", part, len(classes), **more)
    heard = [{"HLAinteractionClass": octets(each), "HLAactive": not is_passive(view.execution, of, each)}
             for each in declared.hears.get(of, ())]  # fmt: skip
    yield "InteractionSubscription", {"HLAinteractionClassList": heard}


def _counted(report: str, what: str, member: str, ways: Sequence[str] = ("",)) -> _Answer:
    """Counts by class, in a report for each type of transportation where these are apart."""
    of_objects = ("HLAobjectClass", "HLAcount")
    keys = of_objects if what not in _INTERACTIONS else ("HLAinteractionClass", "HLAinteractionCount")

    def told(view: MomView, of: int, _: Mapping[str, Any]) -> _Reports:
        for way in ways:
            counts = sorted(view.counts(of, what, is_best_effort=way == _WAYS[1]).items())
            yield report, {"HLAtransportation": way, member: [{keys[0]: octets(c), keys[1]: n} for c, n in counts]}

    return told


def _instance(view: MomView, of: int, told: Mapping[str, Any]) -> _Reports:
    handle = told["HLAobjectInstance"]
    found = view.execution.instances.by_handle.get(handle)
    if found is None or of not in found.known:
        raise InvalidArgument(f"the federate knows no object instance {handle}", hint="Take one that it knows")
    owners = view.execution.owned.owners.get(handle, Map())
    yield "ObjectInstanceInformation", {
        "HLAobjectInstance": octets(handle),
        "HLAownedInstanceAttributeList": _list(sorted(each for each in owners if owners[each] == of)),
        "HLAregisteredClass": octets(found.cls), "HLAknownClass": octets(found.known[of]),
    }  # fmt: skip


def _module(view: MomView, of: int, told: Mapping[str, Any]) -> _Reports:
    at, modules = told["HLAFOMmoduleIndicator"], [] if of else view.modules
    if not 0 <= at < len(modules):
        raise InvalidArgument(f"of {len(modules)} modules none has the number {at}", hint="The first one has 0")
    yield "FOMmoduleData", {"HLAFOMmoduleIndicator": at, "HLAFOMmoduleData": _text(modules[at])}


def _text(module: tuple[str, bytes]) -> str:
    text = module[1].decode(errors="replace")
    if len(text) > ELEMENTS_MOST:
        raise InvalidArgument(f"{module[0]} has more than {ELEMENTS_MOST:,} characters", hint="Look at its file")
    return text


def _point_states(view: MomView, *_: object) -> _Reports:
    for label, point in sorted(view.execution.points.pending.items()):
        states = [
            {"HLAfederate": octets(each),
             "HLAfederateSynchStatus": "WaitingForRestOfFederation" if has else "MovingToSynchPoint"}
            for each, has in sorted(point.achieved.items())
        ]  # fmt: skip
        yield "SynchronizationPointStatus", {"HLAsyncPointName": label, "HLAsyncPointFederates": states}


_WAYS: Final = ("HLAreliable", "HLAbestEffort")
ANSWERS: Final[Mapping[str, Mapping[str, _Answer]]] = {
    "HLAfederate": {
        "Publications": _publications, "Subscriptions": _subscriptions,
        "ObjectInstanceInformation": _instance, "FOMmoduleData": _module,
        **{report: _counted(report, what, "HLAobjectInstanceCounts") for report, what in (
            ("ObjectInstancesThatCanBeDeleted", "deletable"), ("ObjectInstancesUpdated", "updated"),
            ("ObjectInstancesReflected", "reflected"))},
        **{report: _counted(report, what, member, _WAYS) for report, what, member in (
            ("UpdatesSent", "update_attribute_values", "HLAupdateCounts"),
            ("ReflectionsReceived", "reflect_attribute_values", "HLAreflectCounts"),
            ("InteractionsSent", "send_interaction", "HLAinteractionCounts"),
            ("InteractionsReceived", "receive_interaction", "HLAinteractionCounts"))},
    },
    "HLAfederation": {
        "FOMmoduleData": _module, "SynchronizationPointStatus": _point_states,
        "MIMdata": lambda view, *_: iter([("MIMdata", {"HLAMIMdata": _text(view.mim)})]),
        "SynchronizationPoints": lambda view, *_: iter(
            [("SynchronizationPoints", {"HLAsyncPoints": sorted(view.execution.points.pending)})]),
    },
}  # fmt: skip
"""Answers to requests, by the names of their classes without HLArequest before them."""
