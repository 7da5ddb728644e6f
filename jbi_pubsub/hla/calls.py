"""What an RTI can be asked over the control plane, and a link that stands for one: before a federate joins, and how it
is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

from jbi_pubsub.core.access import Action
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.process import version
from jbi_pubsub.core.wire.control import exported
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint

from .exceptions import RtiInternalError
from .proxy import Module

MODULES_BYTES: Final = 24 << 20
"""Of all modules of a federation."""


class Door(Protocol):
    """Where federates find a federation."""

    def allow(self, caller: Caller, action: Action, name: str) -> None:
        """Raises AccessDeniedError."""
        ...

    def create(self, name: str, modules: Sequence[Module]) -> str:
        """A federation execution; the digest of its object model. Raises RtiError."""
        ...

    def destroy(self, name: str) -> None:
        """It ends. Raises RtiError."""
        ...

    def open(self, name: str) -> str:
        """A token for a session in which a federate joins. Raises FederationExecutionDoesNotExist."""
        ...

    def modules(self, name: str) -> tuple[Module, ...]:
        """Of its object model. Raises FederationExecutionDoesNotExist."""
        ...

    def status(self) -> dict[str, Any]:
        """Plain data."""
        ...


class Calls:
    """The exported object."""

    def __init__(self, door: Door) -> None:
        self._door = door

    @exported
    def create(self, caller: Caller, name: str, modules: list[Module]) -> str:
        self._door.allow(caller, "administer", name)
        if sum(len(each.data) for each in modules) > MODULES_BYTES:
            raise RtiInternalError(f"modules of more than {MODULES_BYTES:,} bytes", hint="Serve it with jbi hla serve")
        return self._door.create(name, modules)

    @exported
    def destroy(self, caller: Caller, name: str) -> None:
        self._door.allow(caller, "administer", name)
        self._door.destroy(name)

    @exported
    def join(self, caller: Caller, name: str) -> str:
        self._door.allow(caller, "connect", name)
        return self._door.open(name)

    @exported
    def modules(self, caller: Caller, name: str) -> tuple[Module, ...]:
        self._door.allow(caller, "connect", name)
        return self._door.modules(name)


class StatusCalls:
    """What servers say of themselves."""

    def __init__(self, door: Door) -> None:
        self._door = door

    @exported
    def status(self, caller: Caller) -> dict[str, Any]:
        self._door.allow(caller, "status", "")
        return self._door.status()


def of_process(endpoint: Endpoint, started: float) -> dict[str, Any]:
    """What all servers say; `started`: monotonic seconds."""
    return {
        "pid": os.getpid(),
        "version": version(),
        "time": round(time.time(), 3),
        "address": endpoint.address,
        "uptime": round(time.monotonic() - started, 1),
        "connections": endpoint.connections,
        "tls": endpoint.tls(),
        "threads": threading.active_count(),
        "faults": faults(),
    }
