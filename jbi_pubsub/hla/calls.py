"""Calls of servers of federations: what they have in common, and what an RTI, or a link that stands for one, can be
asked before a federate joins."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec

from jbi_pubsub.core.access import ADMIN, AccessAdmin, AccessPolicy, Action, LoginCalls, Subject, demand
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.process import version
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlServer, exported
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.protocol.services import STATUS

from .exceptions import RtiInternalError
from .proxy import Layers, Module

MODULES_BYTES: Final = 24 << 20
"""Limit of all modules of a federation."""


class Front:
    """A server as others reach it: its rules of access, an endpoint, and the objects that can be called there."""

    def __init__(
        self, config: Config, name: str, access: AccessPolicy, exports: Mapping[str, object],
        status: Callable[[], dict[str, Any]], *, port: int, data: Callable[[socket.socket, Caller], None],
    ) -> None:  # fmt: skip
        """`exports` beside those that all servers have; `access` is closed with it. Raises PortInUseError,
        ConfigurationError."""
        self.access = access
        self._started = time.monotonic()
        with ExitStack() as undo:
            undo.callback(access.close)
            common = {STATUS: StatusCalls(self, status), ADMIN: AccessAdmin(access), LOGIN: LoginCalls(access)}
            self.endpoint = Endpoint(
                config.pad.host,
                port,
                name=name,
                security=config.security(),
                control=ControlServer({**exports, **common}).serve,
                data=data,
                advertise=config.pad.advertise,
            )
            undo.callback(self.endpoint.stop)
            self.stop = undo.pop_all().close

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self.endpoint.address

    def ref(self, service_id: str, exported: str) -> ServiceRef:
        """The reference under which an exported object is registered."""
        return ServiceRef(service_id, exported, (self.address,), (), self.endpoint.certificate)

    def allow(self, caller: Caller, action: Action, name: str = "") -> None:
        """Raises AccessDeniedError."""
        demand(self.access, caller, (action, Subject(name=name)))

    def facts(self) -> dict[str, Any]:
        """The part of a status that all servers have."""
        return {
            "pid": os.getpid(),
            "version": version(),
            "time": round(time.time(), 3),
            "address": self.address,
            "uptime": round(time.monotonic() - self._started, 1),
            "connections": len(self.endpoint.connections),
            "tls": self.endpoint.tls(),
            "threads": threading.active_count(),
            "faults": faults(),
            "access": self.access.status(),
        }


class StatusCalls:
    """The exported object that tells how a server is."""

    def __init__(self, front: Front, status: Callable[[], dict[str, Any]]) -> None:
        self._front, self._status = front, status

    @exported
    def status(self, caller: Caller) -> dict[str, Any]:
        self._front.allow(caller, "status")
        return self._status()


def check_size(modules: Iterable[Module]) -> None:
    """Raises RtiInternalError."""
    if sum(len(each.data) for each in modules) > MODULES_BYTES:
        raise RtiInternalError(f"modules of more than {MODULES_BYTES:,} bytes", hint="Serve it with jbi hla serve")


class FederateRights:
    """Rights of a federate in a federation: those of the caller who has asked to join, as nobody logs in over the
    session itself."""

    def __init__(
        self, caller: Caller, federation: str, modules: tuple[str, ...] = (), *, may_administer: bool = True
    ) -> None:
        """`modules`: names of those with which it joins. `may_administer`: whether a link that asks for it would let
        it."""
        self.caller = caller
        self.federation = federation
        self.modules = modules
        self.may_administer = self._may_at_most = may_administer
        """Whether it may administer the federation."""
        self._version = -1
        """Version of the rules that were asked last; -1: none."""

    def ask(self, front: Front) -> None:
        """Ask the rules of a server, unless they are those that were asked last. Raises AccessDeniedError when it may
        not join, or stay."""
        version = front.access.version
        if version == self._version:
            return
        front.allow(self.caller, "connect", self.federation)
        self.may_administer = self._may_at_most and self._administers(front)
        self._version = version  # of before: what changes meanwhile is asked about again

    def refusal(self, front: Front) -> str:
        """Why it may not join, or stay; "" when it may."""
        try:
            self.ask(front)
        except AccessDeniedError as exc:
            return str(exc)
        return ""

    def _administers(self, front: Front) -> bool:
        try:
            front.allow(self.caller, "administer", self.federation)
        except AccessDeniedError:
            return False
        return True


class Door(Protocol):
    """Where federates find a federation."""

    front: Front

    def create(self, name: str, modules: Sequence[Module]) -> str:
        """A federation execution; the digest of its object model. Raises RtiError."""
        ...

    def destroy(self, name: str) -> None:
        """End a federation. Raises RtiError."""
        ...

    def open(self, rights: FederateRights, modules: Sequence[Module], joining: Sequence[str] = ()) -> str:
        """A token for a session in which a federate joins, with modules that it brings. `joining`: with which
        arguments; when these would be refused, nothing of the modules is taken. Raises
        FederationExecutionDoesNotExist, ErrorReadingFom, InconsistentFom, RtiInternalError, and what a join raises."""
        ...

    def modules(self, name: str) -> Layers:
        """Modules of its object model: those of its creation, and each addition. Raises
        FederationExecutionDoesNotExist."""
        ...


class Calls:
    """The exported object."""

    def __init__(self, door: Door) -> None:
        self._door = door

    @exported
    def create(self, caller: Caller, name: str, modules: list[Module]) -> str:
        self._door.front.allow(caller, "administer", name)
        check_size(modules)
        return self._door.create(name, modules)

    @exported
    def destroy(self, caller: Caller, name: str) -> None:
        self._door.front.allow(caller, "administer", name)
        self._door.destroy(name)

    @exported
    def join(self, caller: Caller, name: str, modules: list[Module], joining: list[str]) -> str:
        return self.join_over_link(caller, name, modules, joining, True)

    @exported
    def join_over_link(
        self, caller: Caller, name: str, modules: list[Module], joining: list[str], may_administer: bool
    ) -> str:
        """The same for a federate that has asked a link; `may_administer`: whether the link would let it."""
        rights = FederateRights(caller, name, tuple(each.name for each in modules), may_administer=may_administer)
        rights.ask(self._door.front)
        check_size(modules)
        return self._door.open(rights, modules, joining)

    @exported
    def modules(self, caller: Caller, name: str) -> Layers:
        self._door.front.allow(caller, "connect", name)
        return self._door.modules(name)

    @exported
    def model(self, caller: Caller, name: str) -> str:
        """A digest of what `modules` answers, for who may have that already."""
        return sha256(msgspec.msgpack.encode(self.modules(caller, name))).hexdigest()
