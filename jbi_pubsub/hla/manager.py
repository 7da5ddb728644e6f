"""The RTI as a federate of its own: it registers the objects of the management object model, and answers who asks for
their values or sends one of its interactions (IEEE 1516.1-2010, clause 11). What each tells is in mom.py.

Own, where the standard leaves room: who may not administer the federation changes nothing of others by this. While a
federation is saved or restored no values are told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from immutables import Map

from . import objects, ownership, rti
from .exceptions import DecoderException, FederateNotExecutionMember, InvalidArgument, RtiError, ServiceNotEnabled
from .execution import RTI, Callback, Execution, FederationModel, ServiceCall, ServiceStep, put_entry
from .federation import RESIGN_ACTIONS
from .fom import BEST_EFFORT, RELIABLE
from .mom import ANSWERS, CONDITIONAL, FEDERATE, FEDERATION, PERIODIC, MomView, octets, read, written

CLASSES: Final = "HLAobjectRoot.HLAmanager.HLAfederation", "HLAobjectRoot.HLAmanager.HLAfederate"
INTERACTIONS: Final = "HLAinteractionRoot.HLAmanager."
MEMBERS_MOST: Final = 200
"""Federates that a status tells of."""
COUNTS: Final = (
    "ROlength", "TSOlength", "updatesSent", "reflectionsReceived", "interactionsSent", "interactionsReceived",
    "objectInstancesThatCanBeDeleted",
)  # fmt: skip
"""Attributes that it tells of each."""

_RESIGN: Final = (
    "DivestOwnership", "DeleteObjectInstances", "CancelPendingAcquisitions", "DeleteObjectInstancesThenDivestOwnership",
    "CancelPendingAcquisitionsThenDeleteObjectInstancesThenDivestOwnership", "NoAction",
)  # fmt: skip
_WORDS: Final[Mapping[str, str | int]] = {
    **dict(zip(_RESIGN, RESIGN_ACTIONS, strict=True)), "Receive": "receive", "TimeStamp": "timestamp",
    "HLAreliable": RELIABLE, "HLAbestEffort": BEST_EFFORT,
}  # fmt: skip
_ORDER: Final = (
    "HLAresignAction", "HLAlabel", "HLAobjectClass", "HLAinteractionClass", "HLAobjectInstance", "HLAattributeList",
    "HLAtag", "HLAtimeStamp", "HLAlookahead", "HLAtransportation", "HLAsendOrder",
)  # fmt: skip
"""Parameters of interactions that stand for services, in the order in which these take them."""


def _python(name: str) -> str:
    """The name of a service or switch: `HLAresignFederationExecution` is `resign_federation_execution`."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", name.removeprefix("HLA")).lower()


class MomManager:
    """See the module. Of a model without these classes nothing is told; counts are kept in any case."""

    def __init__(self, model: FederationModel, execution: Execution) -> None:
        self._model, self._fom = model, model.fom
        self._classes = tuple(self._fom.names.get(f"o:{each}", 0) for each in CLASSES)
        self._parts = {each.handle: each.name.removeprefix(INTERACTIONS).split(".") for each in self._fom.interactions
                       if each.name.startswith(INTERACTIONS) and each.name.count(".") > 3}  # fmt: skip
        self._seen = self._begun(execution) if all(self._classes) else execution
        """The federation of which all is told."""
        self._seen_model = model
        self.view = MomView(model, self._seen)
        self._due: dict[int, float] = {}
        self._watched: tuple[object, bool] = (None, False)

    def extend(self, model: FederationModel) -> None:
        """The federation has an object model with additions; handles are as they were."""
        self._model, self._fom, self.view.model = model, model.fom, model

    def _begun(self, execution: Execution) -> Execution:
        """With what the RTI declares."""
        declared = execution.declared
        published = Map({each: self._fom.objects[each - 1].members for each in self._classes})
        sends = tuple(sorted(each for each, parts in self._parts.items() if parts[1] == "HLAreport"))
        hears = tuple(sorted(set(self._parts) - set(sends)))
        return execution._replace(declared=declared._replace(
            published=declared.published.set(RTI, published), sends=declared.sends.set(RTI, sends),
            hears=declared.hears.set(RTI, hears),
        ))  # fmt: skip

    # -- what others do -----------------------------------------------------------------------------------------

    def after(
        self, federate: int, service: str, given: Sequence[Any], step: ServiceStep, *, may_act: bool = True
    ) -> ServiceStep:
        """Do what follows from a service that a federate has called; `may_act`: it may change others."""
        is_asked, after = self.view.note(federate, service, given, step), step.execution
        is_same = self._seen.members is after.members and not after.managed.provides
        if not self._parts or (is_same and not is_asked and not self._is_watched(after)):
            self.view.execution = self._seen = after
            return step
        call, at = ServiceCall(self._model, after, RTI), 0
        call.told += step.told
        self._follow(call)
        while at < len(call.told):
            (to, callback), at = call.told[at], at + 1
            if to == RTI:
                self._hear(call, federate, callback, may_act=may_act)
                self._follow(call)
            elif callback.name == "discover_object_instance" and call.execution.managed.provides:
                asker = ServiceCall(self._model, call.execution, to)
                wanted = call.execution.declared.subscribed.get(to, Map()).get(callback.arguments[1], ())
                objects.request_attribute_value_update(asker, callback.arguments[0], wanted)
                call.told += asker.told
        self.view.execution = call.execution
        return call.step(step.answer)

    def refused(self, execution: Execution, federate: int, service: str, error: RtiError) -> ServiceStep:
        """A federate was refused a service: who wants reports of that gets one."""
        call = ServiceCall(self._model, execution, RTI)
        if federate in execution.managed.reporting:
            said = {"HLAservice": service, "HLAexception": _why(error)}
            self._report(call, federate, "HLAreportException", said)
        return call.step(None)

    def lost(self, execution: Execution, federate: int, reason: str) -> ServiceStep:
        """A federate is about to be resigned."""
        call = ServiceCall(self._model, execution, RTI)
        said = {"HLAfederateName": execution.members.joined[federate].name, "HLAfaultDescription": reason}
        said["HLAtimeStamp"] = PERIODIC["HLAlogicalTime"](self.view, federate)
        self._report(call, federate, "HLAreportFederateLost", said)
        return call.step(None)

    def tick(self, execution: Execution, now: float) -> ServiceStep:
        """Tell what is due by the periods of HLAsetTiming."""
        call = ServiceCall(self._model, execution, RTI)
        for federate, seconds in execution.managed.periods.items() if not execution.saving.label else ():
            if now >= self._due.get(federate, 0.0):
                self._due[federate] = now + seconds - 0.5  # half a round early is better than one late
                self._update(call, federate, PERIODIC)
        return call.step(None)

    def facts(self) -> list[dict[str, Any]]:
        """The joined federates, for a status."""
        view, found = self.view, []
        for each, member in sorted(view.execution.members.joined.items())[:MEMBERS_MOST]:
            pace, told = view.execution.clock.pace(each), {name: PERIODIC[f"HLA{name}"](view, each) for name in COUNTS}
            found.append({
                "handle": each, "name": member.name, "type": member.kind, "host": view.hosts.get(each, ""),
                "time": pace.time if pace.time < math.inf else None, "lookahead": pace.lookahead,
                "constrained": pace.is_constrained, "advancing": pace.asked is not None, **told,
            })  # fmt: skip
        return found

    # -- objects ------------------------------------------------------------------------------------------------

    def _is_watched(self, execution: Execution) -> bool:
        """Whether anybody subscribes to one of the classes."""
        declared = execution.declared
        if self._watched[0] is not declared:
            classes = (each for of in declared.subscribed.values() for each in of)
            self._watched = declared, not set(self._classes).isdisjoint(classes)
        return self._watched[1]

    def _follow(self, call: ServiceCall) -> None:
        """An object for each federate, and values of what has changed."""
        seen, after = self._seen, call.execution
        joined, instances = after.members.joined, after.managed.instances
        if seen.members is not after.members:
            for each in sorted(set(instances) - {0, *joined}):
                objects.delete_object_instance(call, instances[each])
                self._manage(call, each, instances=None, periods=None, reporting=None)
            for each in sorted({0, *joined} - set(instances)):
                self._manage(call, each, instances=self._registered(call, each))
            for each in set(seen.members.joined) - set(joined):
                self.view.drop(each)
        if after.saving.label:
            return
        if self._is_watched(after):
            self._tell_changed(call, 0, FEDERATION)
            if seen.clock.paces is not after.clock.paces or seen.declared.conveyed is not after.declared.conveyed:
                for each in joined:
                    self._tell_changed(call, each, CONDITIONAL)
        self._seen, self._seen_model = call.execution, self._model

    def _registered(self, call: ServiceCall, federate: int) -> int:
        name = f"HLAmanager.HLAfederate-{federate}" if federate else "HLAmanager.HLAfederation"
        while name in call.execution.instances.by_name:
            name += "-"
        return self._do(call, RTI, objects.register_object_instance, self._classes[federate > 0], name)

    @staticmethod
    def _manage(call: ServiceCall, federate: int, **values: Any) -> None:
        """Entries of a federate; None: it has none any more."""
        for table, value in values.items():
            call.change("managed", **{table: put_entry(getattr(call.execution.managed, table), federate, value)})

    def _tell_changed(self, call: ServiceCall, federate: int, names: Iterable[str]) -> None:
        table = FEDERATE if federate else FEDERATION
        self.view.execution, self.view.model = self._seen, self._seen_model
        old = {each: table[each](self.view, federate) for each in names}
        self.view.execution, self.view.model = call.execution, self._model
        self._update(call, federate, [each for each in old if table[each](self.view, federate) != old[each]])

    def _update(self, call: ServiceCall, federate: int, names: Iterable[str]) -> None:
        """Values of these, of which some may not be there, for who knows the object."""
        self.view.execution, handle = call.execution, call.execution.managed.instances[federate]
        if len(call.execution.instances.by_handle[handle].known) > 1:
            table, cls = FEDERATE if federate else FEDERATION, self._fom.objects[self._classes[federate > 0] - 1]
            told = {each: table[each](self.view, federate) for each in names if each in table}
            values = written(self._fom, cls.members, self._fom.attributes, told)
            objects.update_attribute_values(call, handle, values)

    # -- interactions -------------------------------------------------------------------------------------------

    def _hear(self, call: ServiceCall, sender: int, callback: Callback, *, may_act: bool) -> None:
        """Something that the RTI itself is told."""
        if callback.name == "provide_attribute_value_update":
            instance, attributes, _ = callback.arguments
            of = next(each for each, handle in call.execution.managed.instances.items() if handle == instance)
            self._update(call, of, [self._fom.attributes[each - 1].name for each in attributes])
        elif callback.name == "receive_interaction":
            cls, values = callback.arguments[:2]
            execution, count = call.execution, len(call.told)
            try:
                self._take(call, self._parts[cls], read(self._fom, values), may_act=may_act)
            except RtiError as exc:
                call.execution = execution
                del call.told[count:]
                said = {"HLAservice": self._fom.interactions[cls - 1].name, "HLAexception": _why(exc),
                        "HLAparameterError": isinstance(exc, InvalidArgument | DecoderException)}  # fmt: skip
                self._report(call, sender, "HLAreportMOMexception", said)

    def _take(self, call: ServiceCall, parts: Sequence[str], told: dict[str, Any], *, may_act: bool) -> None:
        """An interaction: HLAfederate, HLArequest, HLArequestPublications."""
        whose, group, name = parts[:3]
        federate = told.pop("HLAfederate", 0)
        if whose == "HLAfederate" and federate not in call.execution.members.joined:
            raise FederateNotExecutionMember(f"no federate {federate} is joined", hint="Say which in HLAfederate")
        if group == "HLArequest" and (answer := ANSWERS[whose].get(name.removeprefix("HLArequest"))) is not None:
            self.view.execution = call.execution
            for report, said in answer(self.view, federate, told):
                self._report(call, federate, f"HLAreport{report}", said, whose=whose)
        elif not may_act:
            raise ServiceNotEnabled("the federate may not administer this federation", hint="See the rules of access")
        elif group == "HLAadjust":
            self._adjust(call, federate, name, told)
        else:
            self._serve(call, federate, *_service(_python(name), told))

    def _report(
        self, call: ServiceCall, federate: int, name: str, said: Mapping[str, Any], *, whose: str = "HLAfederate"
    ) -> None:
        cls = self._fom.names.get(f"i:{INTERACTIONS}{whose}.HLAreport.{name}", 0)
        if cls:  # not every MIM has it
            values = {"HLAfederate": octets(federate), **said}
            members = self._fom.interactions[cls - 1].members
            objects.send_interaction(call, cls, written(self._fom, members, self._fom.parameters, values))

    def _serve(self, call: ServiceCall, federate: int, service: str, *given: Any) -> None:
        """A service as if the federate had called it."""
        step = rti.call(self._model, call.execution, federate, service, *given)
        self.view.note(federate, service, given, step)
        call.execution = step.execution
        call.told += step.told

    def _do(self, call: ServiceCall, federate: int, act: Callable[..., int], *given: Any) -> int:
        """Something that is no service of a federate; the answer is the instance that it is about."""
        made = ServiceCall(self._model, call.execution, federate)
        instance = act(made, *given)
        step = rti.finished(made, call.execution, instance, instance)
        call.execution = step.execution
        call.told += step.told
        return instance

    def _adjust(self, call: ServiceCall, federate: int, name: str, told: Mapping[str, Any]) -> None:
        if name == "HLAsetTiming":
            self._manage(call, federate, periods=max(0, told["HLAreportPeriod"]))
        elif name == "HLAsetExceptionReporting":
            self._manage(call, federate, reporting=told["HLAreportingState"] == "HLAtrue")
        elif name == "HLAmodifyAttributeState":
            instance, attributes = told["HLAobjectInstance"], (told["HLAattribute"],)
            owner, is_to = call.execution.owned.owner(instance, *attributes), told["HLAattributeState"] == "Owned"
            if owner != federate and is_to:
                self._do(call, federate, ownership.give, instance, attributes)
            elif owner == federate and not is_to:
                self._serve(call, owner, "unconditional_attribute_ownership_divestiture", instance, attributes)
        elif name == "HLAsetSwitches" and not federate:
            call.change("managed", provides=told["HLAautoProvide"] == "Enabled")
        elif name == "HLAsetSwitches":
            for each, value in told.items():
                self._serve(call, federate, f"set_{_python(each)}_switch", value == "Enabled")
        else:
            raise ServiceNotEnabled(f"{name} is not there", hint="See clause 11 in the table of services")


def _why(error: RtiError) -> str:
    return f"{type(error).__name__}: {error}"[:1000]


def _service(name: str, told: Mapping[str, Any]) -> list[Any]:
    """A service and its arguments, as its interaction has them."""
    if told.get("HLAsuccessIndicator") == "HLAfalse":
        name = name.replace("_complete", "_not_complete")
    if name.startswith("un") and "HLAobjectClass" in told and "HLAattributeList" not in told:
        name = name.removesuffix("_attributes")  # all of the class
    if name == "delete_object_instance":
        told = {"HLAtag": b"", **told}
    given = [value for each in _ORDER if (value := told.get(each)) is not None]
    if told.get("HLAactive") == "HLAfalse":  # behind the rate of an object class
        given += ["", True] if "HLAobjectClass" in told else [True]
    return [name, *(_WORDS.get(each, each) if isinstance(each, str) else each for each in given)]
