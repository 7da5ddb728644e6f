"""A link from RTI to RTI: federates of another place join a federation as if its RTI were there.

J. Dingel, D. Garlan, C. Damon, *Bridging the HLA*, section 7: a bridge that knows all that its RTIs know is a way to
make one RTI of two. This is that way: there is one federation execution, and here a door to it. It stands in the lookup
services of this place under a name of its own; who joins gets a connection of its own to the RTI behind it, by which
everything goes as it is. So all federates are told what one RTI tells them; in exchange both places have one object
model, nothing is left out or transformed, and when the link breaks the federates here are lost to the federation, as
any that die.
"""

from __future__ import annotations

import logging
import select
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any, Final, TypeVar
from uuid import uuid4

from jbi_pubsub.core.access import AccessPolicy, AllowAll
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, ProtocolError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA, Caller, wait_for
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, Tokens, greet, listen, refuse, welcome
from jbi_pubsub.lookup.client.finder import LookupCache
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import RTI_TYPE

from .calls import Calls, FederateRights, Front
from .exceptions import FederationExecutionDoesNotExist, RtiInternalError
from .proxy import MODEL_SECONDS, RTI, RTI_LINK_TYPE, Layers, Module, Rti, living
from .sessions import PATIENCE_SECONDS, received, sent

log = logging.getLogger("jbi_pubsub.hla")

T = TypeVar("T")

ANSWER_SECONDS: Final = 30.0
"""For the RTI behind the link to answer."""
STEP_SECONDS: Final = 1.0
"""Until it is looked whether the link stops."""
AWAY_SECONDS: Final = 1.0
"""For a federation that has gone to be there again: it is registered anew when its object model grows."""
AHEAD_MOST: Final = 1 << 20
"""Bytes that are read from one end before the other has taken them."""


class RtiLink:
    """See the module."""

    def __init__(
        self, config: Config, far: Config, federation: str, name: str = "", *, access: AccessPolicy | None = None
    ) -> None:
        """`config`: of this place; `far`: of where the federation is. `name`: what it is called here. Binds [pad] host
        and port. Raises PortInUseError, ConfigurationError."""
        self._far = far
        self._federation, self._name = federation, name or federation
        self._item = uuid4().hex
        self._tokens = Tokens()
        self._tunnel = Tunnel()
        self._model = LinkedModel(federation)
        self._lock = threading.Condition()  # covers what follows
        self._behind: ServiceItem | None = None
        self._trouble = ""
        self._executions: LookupCache | None = None
        with ExitStack() as undo:
            self.front = Front(
                config, "rti-link", access or AllowAll(), {RTI: Calls(self)}, self.status,
                port=config.pad.port, data=self._serve_data,
            )  # fmt: skip
            undo.callback(self.front.stop)
            self._community = JoinManager(config, name="rti-link")
            undo.callback(self._community.close)
            self._beyond = JoinManager(far, name="rti-link-far")
            undo.callback(self._beyond.close)
            undo.callback(self._tunnel.stop)
            self._undo = undo.pop_all()

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self.front.address

    def start(self) -> None:
        """Serve; the federation is waited for, and stands in the lookup services here while it is there."""
        self.front.endpoint.start()
        template = ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation=self._federation).rep(),))
        self._executions = self._beyond.watch(template, self)

    def stop(self) -> None:
        """Leave, and end all threads and connections."""
        self._undo.close()

    def is_there(self) -> bool:
        """Whether the federation is, and can be joined here."""
        with self._lock:
            return self._behind is not None

    # -- the federation behind it, as a listener ------------------------------------------------------------------

    def service_added(self, item: ServiceItem) -> None:
        """Note that the federation is there, or there again."""
        if RTI_LINK_TYPE in item.types:  # links are not behind links: nothing goes in a circle
            if item.service_id == self._item:
                self._tell("the federation is here already: link it from elsewhere, or give it another name here")
            return
        with self._lock:
            before = self._behind
        if before is not None and living([before], self._far.security()):
            return
        with self._lock:
            self._behind, self._trouble = item, ""
            self._lock.notify_all()
        entry = next(Rti.from_rep(each) for each in item.entries if each.cls.name == Rti.entry_name)
        own = Rti(federation=self._name, model=entry.model).rep()
        ref = self.front.ref(self._item, RTI)
        self._community.join(ServiceItem(self._item, (RTI_LINK_TYPE, RTI_TYPE), ref, (own,)))
        log.info("%s is joined here as %s", self._federation, self._name)

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:
        """Note that the federation is elsewhere."""
        self.service_removed(old)
        self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Note that the federation is no more, or its RTI is away."""
        with self._lock:
            if self._behind is None or self._behind.service_id != item.service_id:
                return
            self._behind = None
        self._community.leave(self._item)
        self._tell(f"the federation {self._federation} is away")
        for other in self._executions.items() if self._executions is not None else ():
            self.service_added(other)

    def _tell(self, trouble: str) -> None:
        with self._lock:
            self._trouble = trouble
        log.warning("link to %s: %s", self._federation, trouble)

    # -- calls ----------------------------------------------------------------------------------------------------

    def ask(self, method: str, result: type[T], *arguments: Any, timeout: float = ANSWER_SECONDS) -> T:
        """Answer of the RTI behind the link. Raises what it raises, FederationExecutionDoesNotExist."""
        with closing(ControlClient(self._proxy(), self._far.security(), timeout=timeout)) as client:
            found: T = client.call(method, result, *arguments)
            return found

    def _proxy(self) -> ServiceRef:
        with self._lock:
            self._lock.wait_for(lambda: self._behind is not None, AWAY_SECONDS)
            behind = self._behind
        if behind is None:
            raise FederationExecutionDoesNotExist(
                f"the federation {self._federation} is away", hint="It is joined again when its RTI is there"
            )
        return behind.proxy

    def create(self, name: str, modules: Sequence[Module]) -> str:
        """Raises RtiInternalError."""
        raise RtiInternalError(
            f"{name[:200]!r} can't be made over a link, with {len(modules)} modules", hint="Ask an RTI: jbi hla serve"
        )

    def destroy(self, name: str) -> None:
        """Raises RtiInternalError."""
        raise RtiInternalError(f"{name[:200]!r} can't be ended over a link", hint="Do it where its RTI is")

    def open(self, rights: FederateRights, modules: Sequence[Module], joining: Sequence[str] = ()) -> str:
        """A token for a session in which a federate joins, with modules that it brings. Raises what the RTI raises,
        FederationExecutionDoesNotExist."""
        self._check(rights.federation)
        far = self.ask("join_over_link", str, self._federation, modules, joining, rights.may_administer)
        return self._tokens.issue((far, rights))

    def modules(self, name: str) -> Layers:
        """Modules of the object model. Raises FederationExecutionDoesNotExist."""
        self._check(name)
        return self._model.fetched(self)

    def _check(self, name: str) -> None:
        if name != self._name:
            raise FederationExecutionDoesNotExist(f"no federation {name[:200]!r} here", hint="This links another one")

    def status(self) -> dict[str, Any]:
        """Plain data."""
        to, back = self._tunnel.through
        with self._lock:
            link = {
                "federation": self._federation, "name": self._name, "federates": self._tunnel.federates,
                "there": self._behind is not None, "trouble": self._trouble, "to": to, "from": back,
            }  # fmt: skip
        return {"kind": "rti link", **self.front.facts(), "link": link}

    # -- sessions, each on the thread of its connection -----------------------------------------------------------

    def _serve_data(self, sock: socket.socket, caller: Caller) -> None:
        line = StreamSocket(sock)
        found: tuple[str, FederateRights] | None = self._tokens.redeem(listen(line).token)
        if found is None:
            refuse(line, "unknown or used token")
            return
        token, rights = found
        told = rights.may_administer

        def refusal() -> str:
            why = rights.refusal(self.front)
            if not why and told and not rights.may_administer:  # which the RTI does not know
                why = f"it may not administer {self._name} any more. Join again"
            if why:
                log.warning("link to %s: a federate is cut off: %s", self._federation, why)
            return why

        if why := refusal():
            refuse(line, why)
            return
        try:
            far = dial(self._proxy(), DATA, self._far.security(), ANSWER_SECONDS)
        except JbiError as exc:
            refuse(line, exc.message)
            return
        with far:
            try:
                lease = greet(StreamSocket(far), Hello.of(token))
            except JbiError as exc:
                refuse(line, exc.message)
                return
            caller.place.kept = True
            welcome(line, lease)
            for each in (sock, far):
                wait_for(each, max(lease / 1000, PATIENCE_SECONDS))
            with guarded("rti link"), suppress(OSError):  # an end of it is the other one's end
                self._tunnel.carry(sock, far, refusal)


class LinkedModel:
    """The object model of a federation behind a link. It is fetched once, not for each who joins: over a slow line that
    takes minutes."""

    def __init__(self, federation: str) -> None:
        self._federation = federation
        self._lock = threading.Lock()  # held while it is fetched: who joins meanwhile waits for it
        self._digest, self._layers = "", Layers()

    def fetched(self, link: RtiLink) -> Layers:
        """As it is now. Raises what the RTI raises, FederationExecutionDoesNotExist."""
        with self._lock:
            digest = ""
            with suppress(ProtocolError):  # an RTI of before does not tell it
                digest = link.ask("model", str, self._federation)
            if not digest or digest != self._digest:
                self._layers = link.ask("modules", Layers, self._federation, timeout=MODEL_SECONDS)
                self._digest = digest
            return self._layers


class Tunnel:
    """The bytes of federates on their way to an RTI, and back."""

    def __init__(self) -> None:
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # covers what follows
        self.through = [0, 0]
        """Bytes to the RTI, and from it."""
        self.federates = 0

    def stop(self) -> None:
        """Nothing goes any more."""
        self._stopping.set()

    def _count(self, federates: int = 0, to: int = 0, back: int = 0) -> None:
        with self._lock:
            self.federates += federates
            self.through = [self.through[0] + to, self.through[1] + back]

    def carry(self, near: socket.socket, far: socket.socket, refusal: Callable[[], str]) -> None:
        """Bytes both ways, until one end closes, where what had come before still goes, or there is a refusal. Raises
        OSError."""
        ends, closed = (near, far), False
        waiting = {near: bytearray(), far: bytearray()}
        self._count(federates=1)
        try:
            for each in ends:
                each.setblocking(False)
            while not (self._stopping.is_set() or (closed and not any(waiting.values())) or refusal()):
                for source, target in (ends, ends[::-1]):
                    if not closed and len(waiting[target]) < AHEAD_MOST:
                        data = received(source)
                        if data == b"":
                            closed = True
                        elif data:
                            waiting[target] += data
                            self._count(**{"to" if target is far else "back": len(data)})
                    if waiting[target]:
                        del waiting[target][: sent(target, memoryview(waiting[target]).toreadonly())]
                _wait(ends, waiting, closed=closed)
        finally:
            self._count(federates=-1)


def _wait(ends: tuple[socket.socket, ...], waiting: dict[socket.socket, bytearray], *, closed: bool) -> None:
    """Until something can be read or written."""
    poller = select.poll()
    for sock, other in (ends, ends[::-1]):
        wanted = select.POLLIN if not closed and len(waiting[other]) < AHEAD_MOST else 0
        if wanted and isinstance(sock, ssl.SSLSocket) and sock.pending():
            return
        if waiting[sock]:
            wanted |= select.POLLOUT
        if wanted:
            poller.register(sock, wanted)
    poller.poll(STEP_SECONDS * 1000)
