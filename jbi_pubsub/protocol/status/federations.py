"""Statuses of RTIs, and of links to one, as typed values: see core/status.py."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from jbi_pubsub.core.status import Count, MaybeText, ServerStatus, Status

LogicalTime = Annotated[float, msgspec.Meta(ge=0)] | None


def _count(name: str) -> Count:
    """A field with the name of its attribute in the management object model (IEEE 1516.1-2010, clause 11)."""
    made: Count = msgspec.field(default=0, name=name)
    return made


class FederateStatus(Status, frozen=True):
    """A joined federate, as the management object model tells of it."""

    name: str
    handle: Count = 0
    type: str = ""
    host: str = ""
    time: LogicalTime = None
    """None: it has nothing more to send."""
    lookahead: LogicalTime = None
    """None: it does not regulate."""
    constrained: bool = False
    advancing: bool = False
    objects: Count = _count("objectInstancesThatCanBeDeleted")
    updates: Count = _count("updatesSent")
    reflections: Count = _count("reflectionsReceived")
    interactions_sent: Count = _count("interactionsSent")
    interactions_received: Count = _count("interactionsReceived")
    received_waiting: Count = _count("ROlength")
    stamped_waiting: Count = _count("TSOlength")


class FederationStatus(Status, frozen=True):
    """A federation execution that an RTI serves."""

    name: str
    federates: list[str] = []
    objects: Count = 0
    points: list[str] = []
    """Labels of synchronization points that are pending."""
    saving: str = ""
    restoring: str = ""
    """Labels of a save and of a restore that goes on."""
    calls: Count = 0
    callbacks: Count = 0
    unsent: Count = 0
    """Bytes that wait for federates."""
    resigned: dict[str, Count] = {}
    """Federates that were lost, by why."""
    members: list[FederateStatus] = []


class FarFederationStatus(Status, frozen=True):
    """The federation execution behind a link; `name` is its name here."""

    name: str
    federation: str
    federates: Count = 0
    trouble: MaybeText = ""


class RtiStatus(ServerStatus, frozen=True):
    """An RTI, or a link to one."""

    federations: list[FederationStatus] = []
    link: FarFederationStatus | UnsetType = UNSET
