"""The RTI as a process, `jbi hla serve`: federation executions, each a leased service in the lookup community.

Theory of operation: whoever wants to join finds the service of a federation execution by its Entry, asks it over the
control plane for a token, and opens a data connection with it; that is its session (sessions.py). All executions live
on the sessions' one thread, which calls rti.py: so there is no lock, and a federate's calls take effect in their order.
A federate whose session ends without a word is resigned with the action that it joined with. What a save has kept is on
disk before anybody is told that it is saved. Executions themselves are not kept: an RTI that is started again has the
saves, and federates that join under the names that were saved can restore one.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from jbi_pubsub.core.access import AccessPolicy, AllowAll
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import LookupNotFoundError, StorageError, report
from jbi_pubsub.core.guard import note
from jbi_pubsub.core.metrics import MetricsServer, Sample, expiries
from jbi_pubsub.core.wire.endpoint import Caller, wait_for
from jbi_pubsub.core.wire.stream_socket import StreamSocket, Tokens, listen, refuse, welcome
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.protocol.entries import RTI_TYPE

from . import rti
from .calls import Calls, FederateRights, Front, check_size
from .exceptions import (
    FederatesCurrentlyJoined,
    FederationExecutionAlreadyExists,
    FederationExecutionDoesNotExist,
    RtiError,
    RtiInternalError,
)
from .execution import KINDS, Callback, Execution, FederationModel, RtiOptions, ServiceStep
from .fom import Fom, parsed
from .manager import MomManager
from .mom import with_mim
from .proxy import RTI, Layers, Module, Rti, living
from .rates import UpdateRates
from .samples import of_rti
from .saves import Saves
from .sessions import HIGH_BYTES, PATIENCE_SECONDS, Call, FederateSession, SessionGroup, Sessions

log = logging.getLogger("jbi_pubsub.hla")

FEDERATIONS_MOST: Final = 1_000
ADDITIONS_MOST: Final = 100
"""To the object model of a federation, by federates that join."""
SLOW_BYTES: Final = HIGH_BYTES // 2
"""Bytes that wait for a federate; at more it gets nothing that goes by best effort, before others have to wait."""
ASK_SECONDS: Final = 1.0
"""For looking whether a federation execution of that name exists elsewhere."""


class ServedFederation:
    """A federation execution that is served."""

    def __init__(self, name: str, fom: Fom, options: RtiOptions) -> None:
        self.item = uuid4().hex
        self.model = FederationModel(fom, options)
        self.manager = MomManager(self.model, rti.created(name))
        self.execution = self.manager.view.execution
        self.group = SessionGroup()
        self.joined: dict[int, FederateSession] = {}
        self.calls = 0
        self.told = 0
        self.rates = UpdateRates()
        self.dropped = 0
        """Best-effort messages that were not sent to slow federates."""
        self.lost: dict[str, int] = {}
        """Federates that were resigned, by why."""
        self.rights: dict[FederateSession, FederateRights] = {}

    def enter(self, session: FederateSession, handle: int) -> None:
        """Note who has joined, or has another handle."""
        session.federate = handle
        self.joined[handle] = session
        rights = self.rights[session]
        self.manager.view.hosts[handle] = rights.caller.address.rpartition(":")[0]
        self.manager.view.brought[handle] = rights.modules

    def extend(self, before: Fom, fom: Fom, kept: list[tuple[str, Execution]], joining: Sequence[str]) -> bool:
        """Have an object model with additions, and what was saved of the federation when it had them; not if it has got
        others since `before`. Raises what the join of who brings them would raise: so a save is of the model with which
        it began."""
        if self.model.fom is not before:
            return False
        rti.call(self.model, self.execution, 0, rti.JOIN, *joining)
        self.model = self.model._replace(fom=fom)
        self.manager.extend(self.model)
        self.keep(kept)
        return True

    def keep(self, saves: list[tuple[str, Execution]]) -> None:
        """Know what was saved before."""
        saving = self.execution.saving
        for label, execution in saves:
            if label not in saving.kept:
                saving = saving._replace(kept=saving.kept.set(label, execution), order=(*saving.order, label))
        self.execution = self.execution._replace(saving=saving)

    def gone(self, session: FederateSession) -> None:
        """Forget who has resigned."""
        self.joined.pop(session.federate, None)
        self.manager.view.hosts.pop(session.federate, None)
        self.manager.view.brought.pop(session.federate, None)
        session.federate = 0


class RtiServer:
    """See the module."""

    def __init__(
        self, config: Config, *, saves: Path | None = None, lease: float = 10.0, access: AccessPolicy | None = None
    ) -> None:
        """Binds [pad] host and port. `saves`: a folder, None: saves are in memory alone. `lease`: seconds after which a
        silent federate is resigned. Raises PortInUseError, ConfigurationError, StorageError."""
        self._config = config
        self._lease = lease
        self._id = uuid4().hex
        self._federations: dict[str, ServedFederation] = {}
        self._of: dict[FederateSession, ServedFederation] = {}
        self._tokens = Tokens()
        self._saves = Saves(saves, *KINDS)
        with ExitStack() as undo:
            self.front = Front(
                config, "rti", access or AllowAll(), {RTI: Calls(self)}, self.status,
                port=config.pad.port, data=self._serve_data,
            )  # fmt: skip
            undo.callback(self.front.stop)
            self.metrics = None
            if config.metrics.port >= 0:
                self.metrics = MetricsServer(config.metrics, self.samples, self.front.access)
                undo.callback(self.metrics.stop)
            self._community = JoinManager(config, name="rti")
            undo.pop_all()
        self._sessions = Sessions(self)

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self.front.address

    def start(self) -> None:
        """Serve."""
        self._sessions.start()
        self.front.endpoint.start()
        self._community.join(self._item(self._id, "", ""))

    def stop(self) -> None:
        """Leave, and end all threads. Federates are told by the end of their connections."""
        if self.metrics is not None:  # first: it asks the rules of access, and the thread of the sessions
            self.metrics.stop()
        self._community.close()
        self.front.stop()
        self._sessions.stop()

    # -- federations, from any thread ---------------------------------------------------------------------------

    def create(self, name: str, modules: Sequence[Module], options: RtiOptions = RtiOptions()) -> str:  # noqa: B008  # a value
        """A federation execution; the digest of its object model. Raises FederationExecutionAlreadyExists,
        ErrorReadingFom, InconsistentFom, RtiInternalError."""
        fom = with_mim(modules)
        made = ServedFederation(name, fom, options)
        if self._elsewhere(name):
            raise FederationExecutionAlreadyExists(
                f"another RTI serves a federation {name[:200]!r}", hint="Join it, or take another name"
            )
        kept = self._saves.of(name, fom.digest)
        self._sessions.done(lambda: self._created(made, kept))
        self._community.join(self._item(made.item, name, fom.digest))
        return fom.digest

    def _created(self, made: ServedFederation, kept: list[tuple[str, Execution]]) -> None:
        name = made.execution.name
        if name in self._federations:
            raise FederationExecutionAlreadyExists(f"a federation {name[:200]!r} exists", hint="Join it")
        if len(self._federations) >= FEDERATIONS_MOST:
            raise RtiInternalError(f"{FEDERATIONS_MOST:,} federations exist here", hint="Destroy some")
        made.keep(kept)
        self._federations[name] = made

    def _item(self, item: str, name: str, model: str) -> ServiceItem:
        """A federation execution as it is registered; the RTI itself, whom it may be asked for one, has no name."""
        return ServiceItem(item, (RTI_TYPE,), self.front.ref(item, RTI), (Rti(federation=name, model=model).rep(),))

    def _elsewhere(self, name: str) -> bool:
        template = ServiceTemplate(types=(RTI_TYPE,), entries=(Rti(federation=name).rep(),))
        try:
            found = self._community.lookup(template, timeout=ASK_SECONDS)
        except LookupNotFoundError as exc:
            log.warning("the search for another RTI of %s failed: %s", name, exc)
            return False
        # ours may have been destroyed just now
        others = [item for item in found if item.proxy.endpoints != (self.address,)]
        return bool(living(others, self._config.security()))

    def wait_known(self, name: str, timeout: float) -> None:
        """Until a lookup service holds a federation of ours. Raises LookupNotFoundError."""
        self._community.wait_joined(self._sessions.done(lambda: self._federation(name).item), timeout)

    def destroy(self, name: str) -> None:
        """A federation execution that nobody is joined to ends. Raises FederationExecutionDoesNotExist,
        FederatesCurrentlyJoined."""

        def act() -> str:
            found = self._federation(name)
            if found.execution.members.joined:
                raise FederatesCurrentlyJoined(f"federates are joined to {name}", hint="Have them resign first")
            del self._federations[name]
            return found.item

        self._community.leave(self._sessions.done(act))

    def open(self, rights: FederateRights, modules: Sequence[Module], joining: Sequence[str] = ()) -> str:
        """A token for a session in which a federate joins. The object model gets what `modules` add, unless a join with
        the arguments `joining` would be refused. Raises what that raises, ErrorReadingFom, InconsistentFom."""
        name = rights.federation
        while True:
            found = self._sessions.done(lambda: self._federation(name))
            before = found.model.fom
            more = _unknown(before, modules)
            if not more:
                return self._tokens.issue(rights)
            fom = _extended(before, more, name)
            kept = self._saves.of(name, fom.digest)
            if self._sessions.done(lambda: found.extend(before, fom, kept, joining)):  # noqa: B023  # it is done before the next round
                self._community.join(self._item(found.item, name, fom.digest))
                if self._sessions.done(lambda: self._federations.get(name)) is not found:
                    self._community.leave(found.item)

    def modules(self, name: str) -> Layers:
        """Raises FederationExecutionDoesNotExist."""
        return self._sessions.done(lambda: self._federation(name)).model.fom.layers

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return self._sessions.done(self._status)

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics port."""
        status = self.status()
        yield from (*of_rti(status), *expiries(status["tls"]))

    def _status(self) -> dict[str, Any]:
        return {
            "kind": "rti",
            "id": self._id,
            **self.front.facts(),
            "federations": [_facts(each) for _, each in sorted(self._federations.items())],
        }

    def _federation(self, name: str) -> ServedFederation:
        if (found := self._federations.get(name)) is None:
            raise FederationExecutionDoesNotExist(f"no federation {name[:200]!r} here", hint="Create it first")
        return found

    # -- sessions, on their thread ------------------------------------------------------------------------------

    def _serve_data(self, sock: socket.socket, caller: Caller) -> None:
        line = StreamSocket(sock)
        rights: FederateRights | None = self._tokens.redeem(listen(line).token)
        federation = self._federations.get(rights.federation) if rights is not None else None
        if rights is None or federation is None:
            refuse(line, "unknown or used token")
            return
        if why := rights.refusal(self.front):
            refuse(line, why)
            return
        caller.place.kept = True
        welcome(line, int(1000 * self._lease))  # for a link on the way
        wait_for(sock, max(self._lease, PATIENCE_SECONDS))
        session = FederateSession(sock, self.front.endpoint.connections.hand_over(sock), federation.group, self._lease)
        federation.rights[session] = rights

        def add() -> None:
            self._of[session] = federation
            self._sessions.add(session)

        self._sessions.order(add)

    def called(self, session: FederateSession, call: Call) -> None:
        """Do what a federate called."""
        federation, (ticket, service, given) = self._of[session], call
        federation.calls += 1
        try:
            step = self._call(federation, session, service, rti.arguments(service, given), is_awaited=ticket != 0)
        except RtiError as exc:
            self._sessions.say(session, ticket, "!", report(exc))
            session.leaving = session.leaving or session.federate == 0
            return
        answer = step.answer
        if service == rti.JOIN:
            federation.enter(session, answer)
            answer = (answer, federation.execution.members.joined[answer].name, self._lease)
        if ticket:
            self._sessions.say(session, ticket, "", answer)
        self._tell(federation, step)
        if service == rti.LEAVE:
            federation.gone(session)
            session.leaving = True
        elif len(federation.joined) > len(federation.execution.members.joined):  # others were made to resign
            for handle in federation.joined.keys() - federation.execution.members.joined.keys():
                left = federation.joined[handle]
                federation.gone(left)
                self._sessions.leave(left)

    def _call(
        self, federation: ServedFederation, session: FederateSession, service: str, arguments: Sequence[Any],
        *, is_awaited: bool = True,
    ) -> ServiceStep:  # fmt: skip
        before = federation.execution
        try:
            step = rti.call(federation.model, before, session.federate, service, *arguments, is_awaited=is_awaited)
            may_act = federation.rights[session].may_administer
            step = federation.manager.after(session.federate, service, arguments, step, may_act=may_act)
        except RtiError as exc:
            refused = federation.manager.refused(before, session.federate, service, exc)
            federation.execution = refused.execution
            self._tell(federation, refused)
            raise
        except Exception as exc:  # a fault of ours, of which a federate is told that much
            note(f"rti {service[:60]}", exc)
            raise RtiInternalError(f"{service[:60]} failed: {type(exc).__name__}", hint="See the RTI's log") from exc
        if step.execution.saving is not before.saving:
            step = self._kept(federation, before, step)
        federation.execution = step.execution
        return step

    def _kept(self, federation: ServedFederation, before: Execution, step: ServiceStep) -> ServiceStep:
        """Write what a save has kept to disk, or let it fail; give sessions to what a restore has brought back."""
        saving = step.execution.saving
        if any(each.callback.name == "federation_restored" for each in step.told):
            joined, federation.joined = federation.joined, {}
            for handle, session in joined.items():
                federation.enter(session, step.execution.members.names[before.members.joined[handle].name])
        if saving.kept is before.saving.kept:
            return step
        label = saving.order[-1]
        try:
            self._saves.put(federation.execution.name, federation.model.fom.digest, label, saving.kept[label])
        except StorageError as exc:
            log.error("%s", exc)
            saving = saving._replace(kept=before.saving.kept, order=before.saving.order)
            return _not_saved(step._replace(execution=step.execution._replace(saving=saving)), label)
        for old in set(before.saving.order).difference(saving.kept):
            self._saves.drop(federation.execution.name, old)
        return step

    def _tell(self, federation: ServedFederation, step: ServiceStep) -> None:
        say, joined = self._sessions.say, federation.joined
        federation.told += len(step.told)
        for federate, callback in step.told:
            session = joined.get(federate)
            if session is None:
                continue
            if callback.is_best_effort and session.unsent > SLOW_BYTES:
                federation.dropped += 1
            elif (due := federation.rates.within(federate, callback)) is not None:
                say(session, 0, due.name, due.arguments)

    def ended(self, session: FederateSession) -> None:
        """A session is over: its federate is resigned if it has not done so."""
        federation = self._of.pop(session)
        if session.federate:
            self._resign(federation, session)
        del federation.rights[session]

    def _resign(self, federation: ServedFederation, session: FederateSession) -> None:
        """Resign the federate of a session for `session.reason`, with the action that it joined with."""
        federate = session.federate
        name, action, *_ = federation.execution.members.joined[federate]
        federation.gone(session)
        lost = federation.manager.lost(federation.execution, federate, session.reason)
        federation.execution = lost.execution
        self._tell(federation, lost)
        log.warning("federate %s of %s is resigned: %s", name, federation.execution.name, session.reason)
        federation.lost[session.reason] = federation.lost.get(session.reason, 0) + 1
        for each in (action, "cancel_then_delete_then_divest"):
            session.federate = federate
            try:
                step = self._call(federation, session, rti.LEAVE, [each])
            except RtiError as exc:  # the action leaves something open: the stronger one does not
                log.info("federate %s can't be resigned with %s: %s", name, each, exc)
                continue
            finally:
                session.federate = 0
            self._tell(federation, step)
            break

    def _expel(self, federation: ServedFederation, session: FederateSession, why: str) -> None:
        """End the session of a federate that may not be here any more, and tell it so."""
        session.reason = "its user may not connect any more"
        if session.federate:
            self._resign(federation, session)
        self._sessions.say(session, 0, "connection_lost", (why,))
        self._sessions.leave(session)

    def ticked(self) -> None:
        """Ask about all federates, if the rules of access have changed. Tell what is told every so often, unless
        somebody does not read."""
        for session, joined in self._of.items():
            if not session.leaving and (why := joined.rights[session].refusal(self.front)):
                self._expel(joined, session, why)
        for federation in self._federations.values():
            if not federation.group.crowded:
                step = federation.manager.tick(federation.execution, time.monotonic())
                federation.execution = step.execution
                self._tell(federation, step)


def _unknown(fom: Fom, modules: Sequence[Module]) -> list[Module]:
    """Those that the object model has not been read from, whatever they are called."""
    known = {each.data for each in fom.modules}
    return sorted({each.data: each for each in modules if each.data not in known}.values())


def _extended(before: Fom, more: Sequence[Module], name: str) -> Fom:
    """An object model with another addition. Raises ErrorReadingFom, InconsistentFom, RtiInternalError."""
    check_size((*before.modules, *more))
    if len(before.layers) > ADDITIONS_MOST:
        hint = "Give all modules of a federation when it is created"
        raise RtiInternalError(f"federates have added to {name[:200]} {ADDITIONS_MOST:,} times", hint=hint)
    return parsed(*before.layers[0], added=(*before.layers[1:], more))


def _not_saved(step: ServiceStep, label: str) -> ServiceStep:
    """A step that says that a save failed, where it said that it was done."""
    told = [each._replace(callback=Callback("federation_not_saved", (label, "STORAGE")))
            if each.callback.name == "federation_saved" else each for each in step.told]  # fmt: skip
    return step._replace(told=tuple(told))


def _facts(federation: ServedFederation) -> dict[str, Any]:
    execution = federation.execution
    saving = execution.saving
    return {
        "name": execution.name,
        "model": federation.model.fom.digest,
        "federates": sorted(execution.members.names),
        "objects": len(execution.instances.by_handle) - len(execution.managed.instances),
        "points": sorted(execution.points.pending),
        "saving": saving.label if not saving.is_restore else "",
        "restoring": saving.label if saving.is_restore else "",
        "saves": list(saving.order),
        "calls": federation.calls,
        "callbacks": federation.told,
        "dropped": federation.dropped,
        "reduced": federation.rates.reduced,
        "unsent": sum(each.unsent for each in federation.group.sessions),
        "resigned": dict(federation.lost),
        "members": federation.manager.facts(),
    }
