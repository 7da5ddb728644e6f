"""Event registrations: who wants to hear of which change, and what each has to be told.

Rules (Jini Lookup Service Specification LU.2.4, Distributed Event Specification EV.2):
- A registration names a template and a non-empty set of transitions. Each change of an item makes at most one event
  for it: MATCH_NOMATCH, NOMATCH_MATCH or MATCH_MATCH, from whether the template matches before and after.
- Every add, set or modify of attributes is a change, even if nothing differs (then MATCH_MATCH); renewals are none.
- There is no replay: register first, then look up.
- Numbers grow by one per event of a registration, from the number in the registration's result. Delivery is at most
  once and in order; a gap means that something was lost, and the client looks up again.
- Which generation of an entry class a template means is part of its identity. When a service comes whose class has
  the wanted name but other fields, and none with the wanted fields is there, the listener gets one diagnostic instead
  of silence.

Pure: `fire` returns what to send, and nobody sends anything here. Not thread-safe; the owner's lock covers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from jbi_pubsub.core.errors import EntryError, report
from jbi_pubsub.core.lease import Landlord
from jbi_pubsub.lookup.entry import EntryClass
from jbi_pubsub.lookup.index import ClassKey, TemplateIndex, incompatible
from jbi_pubsub.lookup.item import (
    ALL_TRANSITIONS,
    EventDiagnostic,
    ServiceEvent,
    ServiceItem,
    ServiceTemplate,
    Transition,
    item_facets,
    template_facets,
)

NUMBER_JUMP: Final = 2**31 - 1
"""By how much event numbers jump at a restart (Reggie: Integer.MAX_VALUE): numbers of single events are not stored,
and no registration sees that many between two restarts, so a number never comes twice and the gap tells of the loss."""

MAX_DIAGNOSTICS: Final = 8
"""Foreign generations that one registration is told of; more of one class name is noise, or an attack."""


class Interest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An event registration as it was asked for.

    `transitions` is a set of Transition bits, `listener` names the client's event channel (opaque here), `owner` who
    it counts for, `number` what the registration's result said.
    """

    event_id: str
    template: ServiceTemplate
    transitions: int
    listener: str
    lease_id: str
    handback: str = ""
    owner: str = ""
    number: int = 0


AddressedEvent = tuple[str, ServiceEvent]
"""The listener's channel, and what to send on it."""

AddressedDiagnostic = tuple[str, EventDiagnostic]


def check_transitions(transitions: int) -> int:
    """`transitions` if it is a non-empty set of Transition bits; else EntryError (Jini LU.2.4)."""
    if isinstance(transitions, int) and 0 < transitions <= ALL_TRANSITIONS:
        return int(transitions)
    raise EntryError(
        f"transitions {transitions!r} are not a set of transitions",
        hint="Combine MATCH_NOMATCH (1), NOMATCH_MATCH (2) and MATCH_MATCH (4)",
    )


@dataclass(slots=True)
class _Listening:
    interest: Interest
    number: int
    told: set[ClassKey] = field(default_factory=set)


class EventBook:
    """All event registrations of a registrar."""

    def __init__(self, leases: Landlord[str]) -> None:
        self._leases = leases
        self._listening: dict[str, _Listening] = {}
        self._index: TemplateIndex[str] = TemplateIndex()
        self.fired = 0
        """Events made so far."""
        self.diagnostics = 0
        """Diagnostics made so far."""

    def __len__(self) -> int:
        return len(self._listening)

    def add(self, interest: Interest) -> None:
        """Take a registration in; events are numbered from `interest.number` + 1."""
        self._listening[interest.event_id] = _Listening(interest, interest.number)
        self._index.add(interest.event_id, template_facets(interest.template))

    def remove(self, event_id: str) -> Interest:
        """Take a registration out. KeyError when it is unknown."""
        self._index.remove(event_id)
        return self._listening.pop(event_id).interest

    def fire(self, before: ServiceItem | None, after: ServiceItem | None, now: float) -> list[AddressedEvent]:
        """The events of a change from `before` to `after` (None: there is no item), for registrations whose lease
        is live."""
        matched = self._matching(before)
        matching = self._matching(after)
        item = after or before
        if item is None or not (matched or matching):
            return []
        if not matched:
            return self._tell(matching, Transition.NOMATCH_MATCH, item.service_id, after, now)
        if not matching:
            return self._tell(matched, Transition.MATCH_NOMATCH, item.service_id, after, now)
        was, does = set(matched), set(matching)
        return [
            *self._tell(was - does, Transition.MATCH_NOMATCH, item.service_id, after, now),
            *self._tell(was & does, Transition.MATCH_MATCH, item.service_id, after, now),
            *self._tell(does - was, Transition.NOMATCH_MATCH, item.service_id, after, now),
        ]

    def diagnose(
        self,
        appeared: Iterable[ClassKey],
        service_id: str,
        is_known: Callable[[ClassKey], bool],
        now: float,
    ) -> list[AddressedDiagnostic]:
        """Diagnostics for listeners now that the classes `appeared` with service `service_id`, unless the class they
        mean is registered as well (`is_known`)."""
        said: list[AddressedDiagnostic] = []
        for class_key in appeared:
            for wanted, event_ids in self._index.strangers(class_key).items():
                if not is_known(wanted):
                    said.extend(
                        self._diagnose(event_id, wanted, class_key, service_id)
                        for event_id in event_ids
                        if self._is_heard(event_id, now) and self._is_news(event_id, class_key)
                    )
        self.diagnostics += len(said)
        return said

    def _matching(self, item: ServiceItem | None) -> list[str]:
        return self._index.find(item_facets(item)) if item and self._listening else []

    def _tell(
        self,
        event_ids: Iterable[str],
        transition: Transition,
        service_id: str,
        state: ServiceItem | None,
        now: float,
    ) -> list[AddressedEvent]:
        told: list[AddressedEvent] = []
        kind = int(transition)
        for event_id in event_ids:
            listening = self._listening[event_id]
            interest = listening.interest
            if interest.transitions & kind and self._leases.is_live(interest.lease_id, now):
                listening.number += 1
                event = ServiceEvent(event_id, listening.number, service_id, kind, state, interest.handback)
                told.append((interest.listener, event))
        self.fired += len(told)
        return told

    def _is_heard(self, event_id: str, now: float) -> bool:
        return self._leases.is_live(self._listening[event_id].interest.lease_id, now)

    def _is_news(self, event_id: str, class_key: ClassKey) -> bool:
        told = self._listening[event_id].told
        if class_key in told or len(told) >= MAX_DIAGNOSTICS:
            return False
        told.add(class_key)
        return True

    def _diagnose(self, event_id: str, wanted: ClassKey, came: ClassKey, service_id: str) -> AddressedDiagnostic:
        interest = self._listening[event_id].interest
        error = incompatible(EntryClass(wanted[0], (), (wanted,)), came)
        return interest.listener, EventDiagnostic(event_id, service_id, report(error), interest.handback)
