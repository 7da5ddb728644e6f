"""The RTI ambassador: how a federate uses a federation execution, wherever its RTI runs.

    class Radar(FederateAmbassador):
        def reflect_attribute_values(self, instance, values, tag, time, retraction): ...

    with RTIAmbassador() as rti:
        rti.connect(Radar())
        rti.join_federation_execution("Air", "radar")
        position = rti.get_attribute_handle(rti.get_object_class_handle("Aircraft"), "position")
        ...
        rti.evoke_callback(1.0)

The RTI is found in the lookup service by the federation's name; no address stands in a federate. One thread of the
ambassador reads what comes, and says every third of a lease that the federate lives. Callbacks wait until they are
evoked. When the RTI is gone, or has resigned the federate, the callback `connection_lost` says so, and calls raise
NotConnected; the federate may join again. In a forked child calls raise it as well: the federate is its parent's, which
the child does not resign.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from jbi_pubsub.core.arguments import called, check_callbacks
from jbi_pubsub.core.config import Config, effective
from jbi_pubsub.core.errors import JbiError, LookupNotFoundError, ProtocolError
from jbi_pubsub.core.process import Birthplace
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import RTI_TYPE

from .connection import ANSWER_SECONDS, FederateLink
from .exceptions import (
    CallNotAllowedFromWithinCallback,
    FederateAlreadyExecutionMember,
    FederateNotExecutionMember,
    FederationExecutionDoesNotExist,
    NotConnected,
)
from .execution import CONVEYED
from .federate import FederateAmbassador
from .fom import Fom, Order, parsed
from .proxy import MODEL_SECONDS, Layers, Rti, living, modules_of
from .services import FederationServices, ObjectServices, RegionServices
from .support import SupportServices

FIND_SECONDS: Final = 5.0
"""For a federation to be found in the lookup services."""


class RTIAmbassador(FederationServices, ObjectServices, RegionServices, SupportServices):
    """See the module. For one thread; `evoke_...` and calls of services may be on different ones."""

    def __init__(self, config: Config | None = None) -> None:
        """`config`: that of the process by default (its file and JBI_* variables)."""
        self._config = config or effective()
        self._birthplace = Birthplace()
        self._community: JoinManager | None = None
        self._ambassador = FederateAmbassador()
        self._fom: Fom | None = None
        self._execution: ServiceItem | None = None
        self._federation_name = ""
        self._link: FederateLink | None = None
        self._evoking = False
        self._enabled = True
        self._granted: float | None = None
        """Time at which it certainly is and waits for no other one; None: that is not certain."""
        self.producing_federate = 0
        """The federate that has sent what the callback that is being called brings; 0: it is not known, as without
        `set_convey_producing_federate_switch`; -1: the RTI itself."""
        self.sent_order: Order = "receive"
        """In which order that was sent."""
        self._handle = 0
        self._name = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    # -- coming and going ---------------------------------------------------------------------------------------

    def connect(self, ambassador: FederateAmbassador) -> None:
        """Set the receiver of callbacks; and look for lookup services (clause 4.2). Raises ConfigurationError, and
        ArgumentError for a callback that is an `async def`."""
        callbacks = [name for name in dir(FederateAmbassador) if not name.startswith("_")]
        self._check_here()
        check_callbacks("RTIAmbassador.connect", "ambassador", ambassador, callbacks)
        self._ambassador = ambassador
        if self._community is None:
            self._community = JoinManager(self._config, name="federate")

    def disconnect(self) -> None:
        """Resign, if that is not done, and end all threads (clause 4.3)."""
        if not self._birthplace.is_here():
            return
        self.leave()
        if self._community is not None:
            self._community.close()
            self._community = None

    def leave(self) -> None:
        """Resign, if that is not done; it can join again."""
        self._check_here()
        if self._link is not None and not self._link.lost:
            with contextlib.suppress(JbiError):  # the RTI may be gone, and finds out that we are
                self.resign_federation_execution("cancel_then_delete_then_divest")
        self._drop()

    def create_federation_execution(self, name: str, modules: Sequence[str | Path], *, timeout: float = 5.0) -> None:
        """Have an RTI serve another federation execution, with an object model of these files (clause 4.5). Raises
        FederationExecutionAlreadyExists, ErrorReadingFom, InconsistentFom, NotConnected when there is no RTI."""
        parts = modules_of(modules)
        parsed(*parts)
        found = self._found(ServiceTemplate(types=(RTI_TYPE,)), timeout)
        if not found:
            raise NotConnected("no RTI was found", hint="Start one: jbi hla serve")
        self._call(found[0], "create", str, name, parts)

    def destroy_federation_execution(self, name: str, *, timeout: float = FIND_SECONDS) -> None:
        """A federation execution that nobody is joined to ends (clause 4.6). Raises FederatesCurrentlyJoined,
        FederationExecutionDoesNotExist."""
        self._call(self._federation(name, timeout), "destroy", type(None), name)

    def list_federation_executions(self, *, timeout: float = FIND_SECONDS) -> tuple[str, ...]:
        """Names of all federation executions (clause 4.7)."""
        entries = [Rti.from_rep(each) for item in self._found(ServiceTemplate(types=(RTI_TYPE,)), timeout)
                   for each in item.entries if each.cls.name == Rti.entry_name]  # fmt: skip
        return tuple(sorted({each.federation for each in entries if each.federation}))

    def join_federation_execution(
        self,
        federation: str,
        name: str = "",
        *,
        federate_type: str = "",
        resign_action: str = "cancel_then_delete_then_divest",
        modules: Sequence[str | Path] = (),
        timeout: float = FIND_SECONDS,
    ) -> int:
        """Join; the handle of this federate (clause 4.9). `name` is its own in the federation; `federate_type` what it
        is, for who monitors the federation; `resign_action` what is done when it dies; `modules` files that the object
        model of the federation has from then on. Raises FederationExecutionDoesNotExist when none is found within
        `timeout` seconds, FederateNameAlreadyInUse, FederateAlreadyExecutionMember, SaveInProgress,
        InvalidResignAction, ErrorReadingFom, InconsistentFom."""
        if self._link is not None and not self._link.lost:
            raise FederateAlreadyExecutionMember(f"the federate is joined, as {self._name}", hint="Resign first")
        own = modules_of(modules)
        self._drop()
        item = self._federation(federation, timeout)
        token = self._call(item, "join", str, federation, own, [name, resign_action, federate_type])
        self._execution, self._federation_name, self._fom, self._granted = item, federation, None, None
        self._learned()
        with contextlib.ExitStack() as undo:
            sock = dial(item.proxy, DATA, self._config.security(), ANSWER_SECONDS)
            undo.callback(sock.close)
            greet(StreamSocket(sock), Hello.of(token))
            self._link = FederateLink(sock)
            undo.callback(self._drop)
            self._handle, self._name = self._link.join(name, resign_action, federate_type)
            undo.pop_all()
        return self._handle

    def resign_federation_execution(self, action: str = "cancel_then_delete_then_divest") -> None:
        """Leave (clause 4.10). Raises FederateOwnsAttributes, OwnershipAcquisitionPending, InvalidResignAction."""
        self._ask("resign_federation_execution", action)
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _federation(self, name: str, timeout: float) -> ServiceItem:
        template = ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation=name).rep(),))
        found = self._found(template, timeout)
        if not found:
            raise FederationExecutionDoesNotExist(
                f"no federation {name[:200]!r} was found within {timeout:g} s",
                hint="Start it: jbi hla serve --federation NAME --fom FILE",
            )
        return found[0]

    def _found(self, template: ServiceTemplate, timeout: float) -> list[ServiceItem]:
        """Services that match and live, as soon as there are some."""
        self._check_here()
        if self._community is None:
            raise NotConnected("the ambassador is not connected", hint="Call connect first")
        end = time.monotonic() + timeout
        while True:
            left = end - time.monotonic()
            try:
                held = self._community.lookup(template, timeout=max(0.05, left))
            except LookupNotFoundError as exc:
                raise NotConnected(exc.message, hint=exc.hint) from exc
            found = living(held, self._config.security())
            if found or left <= 0.1:
                return sorted(found, key=lambda item: item.service_id)
            time.sleep(0.1)

    def _call(
        self, item: ServiceItem, method: str, result: Any, *arguments: Any, timeout: float = ANSWER_SECONDS
    ) -> Any:
        security = self._config.security()
        with contextlib.closing(ControlClient(item.proxy, security, timeout=timeout)) as client:
            return client.call(method, result, *arguments)

    # -- services -----------------------------------------------------------------------------------------------

    def _ask(self, service: str, *arguments: Any) -> Any:
        if service.startswith("enable_time_"):
            self._granted = None
        return self._joined().ask(service, arguments)

    def _send(self, service: str, *arguments: Any) -> None:
        self._joined().send(service, arguments)

    def _ask_for_time(self, service: str, time: float) -> None:
        granted, self._granted = self._granted, None
        if granted is None or type(time) is not float or not granted <= time:
            self._ask(service, time)
            return
        link = self._joined()
        link.send(service, (time,))  # an answer would be one more time that it is woken
        link.flush()

    def _joined(self) -> FederateLink:
        self._check_here()
        if self._link is None:
            raise FederateNotExecutionMember("the federate is not joined", hint="Call join_federation_execution")
        return self._link

    def _check_here(self) -> None:
        if not self._birthplace.is_here():
            raise NotConnected("this RTIAmbassador is the parent process's", hint="Make one after the fork")

    @contextlib.contextmanager
    def batched(self) -> Iterator[None]:
        """Updates and interactions without a time are sent together, at the end of the block at the latest."""
        link = self._joined()
        link.batched = True
        try:
            yield
        finally:
            link.batched = False
            link.flush()

    # -- callbacks ----------------------------------------------------------------------------------------------

    def evoke_callback(self, timeout: float = 0.0) -> bool:
        """Have one callback called, waiting `timeout` seconds for it; whether there was one (clause 10.41). What the
        callback raises is raised. Raises CallNotAllowedFromWithinCallback."""
        if self._evoking:
            raise CallNotAllowedFromWithinCallback(
                "callbacks are evoked from within a callback", hint="Return from it first"
            )
        link = self._joined()
        callbacks = link.taken(1, timeout) if self._enabled else []
        if not callbacks:
            return False
        [(name, arguments)] = callbacks
        if most := CONVEYED.get(name):
            self.sent_order = "timestamp" if arguments[most - 1] else "receive"
            self.producing_federate = arguments[most] if len(arguments) > most else 0
        act = getattr(self._ambassador, name, None)
        if act is None or name.startswith("_"):
            raise ProtocolError(f"the RTI tells of {name[:100]!r}, which is not a callback")
        if name == "initiate_federate_restore":
            self._handle = arguments[2]
        if name in ("time_advance_grant", "initiate_federate_save", "federation_restore_begun"):
            self._granted = arguments[0] if name == "time_advance_grant" else None
        self._evoking = True
        try:
            called(act, *arguments[:most])
        finally:
            self._evoking = False
        return True

    def evoke_multiple_callbacks(self, minimum: float = 0.0, maximum: float = 0.0) -> bool:
        """Have callbacks called for `minimum` seconds, and as long as there are more, up to `maximum`; whether there
        are more (clause 10.42)."""
        began = time.monotonic()
        while self.evoke_callback(max(0.0, began + minimum - time.monotonic())):
            if time.monotonic() >= began + max(minimum, maximum):
                break
        return self._link is not None and self._link.waits()

    def enable_callbacks(self) -> None:
        """Callbacks are called again where they are evoked (clause 10.43)."""
        self._enabled = True

    def disable_callbacks(self) -> None:
        """None are called, wherever they are evoked, until they are enabled (clause 10.44)."""
        self._enabled = False

    # -- what the object model says -----------------------------------------------------------------------------

    @property
    def fom(self) -> Fom:
        """The object model of the federation. Raises FederateNotExecutionMember."""
        if self._fom is None:
            raise FederateNotExecutionMember("the federate is not joined", hint="Call join_federation_execution")
        return self._fom

    def _learned(self) -> bool:
        if self._execution is None or (self._fom is not None and (self._link is None or self._link.lost)):
            return False
        layers = self._call(self._execution, "modules", Layers, self._federation_name, timeout=MODEL_SECONDS)
        if self._fom is not None and len(layers) == len(self._fom.layers):
            return False
        self._fom = parsed(*layers[0], added=layers[1:])
        return True

    @property
    def federate_handle(self) -> int:
        """This federate's."""
        return self._handle

    @property
    def federate_name(self) -> str:
        """This federate's, also where it gave none."""
        return self._name
