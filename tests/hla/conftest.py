"""A federation without a process: what federates call, and what they are told."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from jbi_pubsub.hla import rti
from jbi_pubsub.hla.execution import FederationModel, RtiOptions
from jbi_pubsub.hla.fom import parsed

AIR = b"""<?xml version="1.0"?>
<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
 <objects><objectClass><name>HLAobjectRoot</name>
  <objectClass><name>Vehicle</name>
   <attribute><name>position</name><dataType>HLAfloat64BE</dataType><order>TimeStamp</order></attribute>
   <objectClass><name>Aircraft</name>
    <attribute><name>callsign</name><dataType>HLAunicodeString</dataType><order>Receive</order></attribute>
   </objectClass>
  </objectClass>
 </objectClass></objects>
 <interactions><interactionClass><name>HLAinteractionRoot</name>
  <interactionClass><name>Radio</name><order>TimeStamp</order>
   <parameter><name>text</name><dataType>HLAunicodeString</dataType></parameter>
   <interactionClass><name>Mayday</name><order>TimeStamp</order><parameter><name>souls</name></parameter></interactionClass>
  </interactionClass>
 </interactionClass></interactions>
</objectModel>
"""


class Rig:
    """One federation execution; federates go by their names."""

    def __init__(self, *names: str, options: RtiOptions = RtiOptions()) -> None:  # noqa: B008  # a value
        self.model = FederationModel(parsed(("air.xml", AIR)), options)
        self.execution = rti.created("Air")
        self.handles: dict[str, int] = {}
        self.logs: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        fom = self.model.fom
        self.vehicle, self.aircraft = fom.object_class("Vehicle"), fom.object_class("Vehicle.Aircraft")
        self.position = fom.attribute(self.aircraft, "position")
        self.callsign = fom.attribute(self.aircraft, "callsign")
        self.radio, self.mayday = fom.interaction_class("Radio"), fom.interaction_class("Radio.Mayday")
        self.text, self.souls = fom.parameter(self.mayday, "text"), fom.parameter(self.mayday, "souls")
        for name in names:
            self.join(name)

    def join(self, name: str, action: str = "delete_objects_then_divest") -> int:
        """A federate joins."""
        self.handles[name] = self._call(0, "join_federation_execution", name, action)
        return self.handles[name]

    def call(self, name: str, service: str, *arguments: Any) -> Any:
        """The answer of a service that a federate calls."""
        return self._call(self.handles[name], service, *arguments)

    def send(self, name: str, service: str, *arguments: Any) -> None:
        """A federate calls a service, and waits for no answer."""
        self._call(self.handles[name], service, *arguments, is_awaited=False)

    def _call(self, federate: int, service: str, *arguments: Any, is_awaited: bool = True) -> Any:
        step = rti.call(self.model, self.execution, federate, service, *arguments, is_awaited=is_awaited)
        assert hash(step.execution) == hash(step.execution._replace())
        self.execution = step.execution
        names = {handle: member.name for handle, member in self.execution.members.joined.items()}
        names.update({handle: name for name, handle in self.handles.items() if handle not in names})
        if service == rti.JOIN:
            names[step.answer] = arguments[0]
        for told in step.told:
            self.logs[names[told.federate]].append((told.callback.name, *told.callback.arguments))
        return step.answer

    def heard(self, name: str) -> list[tuple[Any, ...]]:
        """What a federate has been told since this was asked last."""
        log, self.logs[name] = self.logs[name], []
        return log

    def forget(self) -> None:
        """What was told until now is of no interest."""
        self.logs.clear()

    def aircraft_of(self, owner: str, *others: str, name: str = "") -> int:
        """An instance of which `owner` owns all, and the others know."""
        both = (self.position, self.callsign)
        self.call(owner, "publish_object_class_attributes", self.aircraft, both)
        for each in others:
            self.call(each, "subscribe_object_class_attributes", self.aircraft, both)
        handle: int = self.call(owner, "register_object_instance", self.aircraft, name)
        self.forget()
        return handle


@pytest.fixture
def rig() -> type[Rig]:
    return Rig


@pytest.fixture
def air() -> bytes:
    """A module of an object model."""
    return AIR
