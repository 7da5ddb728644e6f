"""The policy manager as a server, `jbi policy serve`: a leased service in the lookup community that keeps the policies
of an information space, pushes them to the local managers, and divides what those share.

Theory of operation: a change is parsed, put on disk, then in force and pushed. One job divides links and wakes the
streams, at most each PUSH_SECONDS; each stream takes what its local manager is to have by then, whole and numbered,
over the data plane, whose acknowledgements carry the reports. `_lock` covers the space, shortly; `_changing` makes
changes one after the other, and lets nobody else wait while a set is read.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec

from jbi_pubsub.core.access import ADMIN, NONE_IN_PARTICULAR, AccessAdmin, AccessPolicy, Action, LoginCalls, demand
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import AccessDeniedError, OversizeError, PolicyError
from jbi_pubsub.core.guard import faults
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlServer, exported
from jbi_pubsub.core.wire.deflate import Allowance
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem

from . import file
from .channels import TICK_SECONDS, LocalManagerChannels
from .history import History
from .manager import access_of
from .policyset import policies_of, review
from .proxy import MANAGER_TYPE, POLICY_MANAGER, Changed, Joining, PolicyManager, VersionTold
from .rivals import RivalManagers
from .space import EPOCH_MOST, InformationSpaceManager, PolicyStanding, Proposal, refusal
from .users import with_users

log = logging.getLogger("jbi_pubsub.policy")

PUSH_SECONDS: Final = 0.1
"""Between two snapshots that somebody is sent."""
TEXT_MOST: Final = 8 << 20
"""Bytes of a file that is applied: comments count here, and are not kept."""


class PolicyServer:
    """See the module."""

    def __init__(
        self,
        config: Config,
        path: Path,
        *,
        state: Path | None = None,
        take_over: bool = False,
        access: AccessPolicy | None = None,
    ) -> None:
        """`path`: the policy file; its access rules say who may steer (`access` instead of them). `state`: where the
        history is kept, None: in memory. `take_over`: have the say also where another manager has it. Binds [pad] host
        and port. Raises PolicyError, StorageError, PortInUseError, ConfigurationError."""
        self._path = path
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._pushed = -math.inf
        """When local managers were woken last."""
        self._job = Job("policy manager", TICK_SECONDS, self._step, slow=True)
        with ExitStack() as undo:
            self._access = access or with_users(access_of(_ruled_by(config, path), "policy"), config)
            undo.callback(self._access.close)
            self._history = History(state)
            undo.callback(self._history.close)
            self._space = self._recovered()
            self._community = JoinManager(config, name="policy", secret=self._history.facts().get("secret", ""))
            undo.callback(self._community.close)
            compressed = Allowance(config.link.max_compressed)
            self._channels = LocalManagerChannels(self._space, self._lock, self._community, compressed, self._wake)
            self._control = ControlServer(
                {POLICY_MANAGER: _Calls(self), ADMIN: AccessAdmin(self._access), LOGIN: LoginCalls(self._access)}
            )
            self._endpoint = Endpoint(
                config.pad.host,
                config.pad.port,
                name="policy",
                security=config.security(),
                control=self._control.serve,
                data=lambda sock, caller: self._channels.serve(sock, caller, self._endpoint.connections.hand_over),
                advertise=config.pad.advertise,
            )
            undo.callback(self._endpoint.stop)
            undo.pop_all()
        self._rivals = RivalManagers(config, self._community, self.manager, take_over=take_over)

    def _recovered(self) -> InformationSpaceManager:
        """Space that was kept, and what the file says, if it is another one than it was."""
        document, said = file.read(self._path)
        policies = policies_of(document)
        document.check()
        review(document, policies.rules, time.time())
        for line in [*said, *map(document.told, document.warnings)]:
            log.warning("%s", line)
        facts, versions = self._history.facts(), self._history.versions()
        space = InformationSpaceManager(facts.get("manager") or uuid4().hex, int(facts.get("epoch", "1")), versions)
        for lqm, (component, rates) in self._history.shares().items():
            space.join(lqm, component, PolicyStanding(), rates, time.monotonic())
            space.lost(lqm, time.monotonic())
        if not facts:
            self._history.put({"manager": space.manager, "epoch": str(space.epoch), "secret": uuid4().hex})
        text = policies.write()
        if text in (version.toml for version in versions):
            return space  # it was in force already, and something was set since, or it is so still
        why = f"{self._path} has changed" if versions else f"{self._path} as it was at the start"
        proposal = space.proposed(text, "file", why, time.time())
        if proposal is not None:
            self._history.keep(proposal.version)
            space.take(proposal)
        return space

    @property
    def address(self) -> str:
        """host:port to connect to."""
        return self._endpoint.address

    @property
    def manager(self) -> str:
        """Our id."""
        return self._space.manager

    @property
    def standing(self) -> PolicyStanding:
        """Standing of what is in force."""
        with self._lock:
            return self._space.standing

    def start(self) -> None:
        """Look for other managers, and serve. Raises PolicyError when there is one that has the say."""
        self._raise_epoch(self._rivals.look_at_start())
        self._channels.hub.start()
        self._endpoint.start()
        self._job.start()
        self._show()

    def stop(self) -> None:
        """Leave, and end all threads. Local managers go on with what they have."""
        self._job.stop(0.0)  # no step begins any more: who has the say, and what of links, stays as it is
        self._community.close()
        self._endpoint.stop()
        self._channels.hub.stop()
        self._job.stop()
        self._access.close()
        self._history.close()

    def _show(self) -> None:
        with self._lock:
            entry = PolicyManager(epoch=self._space.epoch, address=self.address).rep()
            ref = ServiceRef(self.manager, POLICY_MANAGER, (self.address,), (), self._endpoint.certificate)
        self._community.join(ServiceItem(self.manager, (MANAGER_TYPE,), ref, (entry,)))

    def _raise_epoch(self, other: int) -> None:
        """Above another manager's. Raises StorageError."""
        with self._lock:
            epoch = self._space.epoch
        if epoch > other:
            return
        if other >= EPOCH_MOST:
            raise PolicyError(
                f"epoch {other} is the last one", hint="Let local managers forget it: their [policy] state"
            )
        self._history.put({"epoch": str(other + 1)})
        with self._lock:
            self._space.epoch = other + 1
            for member in self._space.members.values():
                member.is_due = True
        log.warning("this manager takes over, with epoch %d", other + 1)

    # -- changes ------------------------------------------------------------------------------------------------

    def allow(self, caller: Caller, action: Action) -> None:
        """Raises AccessDeniedError."""
        demand(self._access, caller, (action, NONE_IN_PARTICULAR))

    def change(self, propose: Callable[[InformationSpaceManager, float], Proposal | None]) -> Changed:
        """Put what is proposed in force, once it is on disk. Raises PolicyError, OversizeError, StorageError."""
        if self._rivals.superseded:
            raise PolicyError(self._rivals.superseded, hint="Tell the other manager")
        with self._changing:
            proposal = propose(self._space, time.time())
            if proposal is None:
                return Changed(self._space.policies.version, is_new=False)
            self._history.keep(proposal.version)
            with self._lock:
                self._space.take(proposal)
        self._wake()
        log.warning("version %d is in force: %s", proposal.version.version, proposal.version.why)
        return Changed(proposal.version.version, is_new=True)

    def history(self) -> tuple[VersionTold, ...]:
        """The versions that are kept."""
        with self._lock:
            return tuple(VersionTold(each.version, each.at, each.who, each.why) for each in self._space.versions)

    def text(self, version: int) -> str:
        """Text of a version. Raises PolicyError."""
        with self._lock:
            return self._space.version(version).toml

    # -- local managers -----------------------------------------------------------------------------------------

    def join(self, who: Joining, caller: Caller) -> str:
        """See PolicyProxy; `caller` is whose local manager it is."""
        version = self._access.version
        self.allow(caller, "peer")
        if self._rivals.superseded:
            raise PolicyError(self._rivals.superseded, hint="Follow the other manager")
        if self._rivals.is_taking_over and refusal(who.standing, self.standing):
            self._raise_epoch(who.standing.epoch)
            self._show()
        return self._channels.join(who, caller, version)

    def leave(self, lqm: str, peer: str) -> None:
        """See PolicyProxy; `peer` is whose local manager it is (Caller.peer)."""
        self._channels.leave(lqm, peer)

    # -- the job ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Divide links and push soon, at most each PUSH_SECONDS."""
        self._job.wake(max(0.0, self._pushed + PUSH_SECONDS - time.monotonic()))

    def _step(self) -> None:
        is_beat = self._channels.begin_beat()
        if is_beat:
            self._rivals.look(self._space.epoch)
            self._channels.drop_gone()
            self._channels.ask_again(self._access.version, self._may_follow)
        with self._lock:
            self._space.share_out(time.monotonic())
            shares = {lqm: (m.component, dict(m.shares)) for lqm, m in self._space.members.items()}
        self._history.note_shares(shares)  # before anybody is told: after a restart nobody may get what another one has
        self._channels.wake(beat=is_beat)
        self._pushed = time.monotonic()

    def _may_follow(self, caller: Caller) -> bool:
        try:
            self.allow(caller, "peer")
        except AccessDeniedError:
            return False
        return True

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            told = self._space.status(time.monotonic())
        disk = "the disk takes nothing new" if self._history.has_fault else ""
        return {
            "kind": "policy",
            **told,
            "address": self.address,
            "file": str(self._path),
            "state": str(self._history.path or ""),
            "fault": "; ".join(filter(None, (self._rivals.fault, disk))),
            "access": self._access.status(),
            "faults": faults(),
        }


def _ruled_by(config: Config, path: Path) -> Config:
    return msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, file=str(path)))


class _Calls:
    """The exported object."""

    def __init__(self, server: PolicyServer) -> None:
        self._server = server

    @exported
    def join(self, caller: Caller, who: Joining) -> str:
        return self._server.join(who, caller)

    @exported
    def leave(self, caller: Caller, lqm: str) -> None:
        self._server.allow(caller, "peer")
        self._server.leave(lqm, caller.peer)

    @exported
    def apply(self, caller: Caller, toml: str, why: str) -> Changed:
        self._server.allow(caller, "steer")
        if len(toml) > TEXT_MOST:
            raise OversizeError(f"policies of {len(toml)} characters, {TEXT_MOST} at most")
        return self._server.change(lambda space, now: space.proposed(toml, _who(caller), why, now))

    @exported
    def set(self, caller: Caller, key: str, value: str, why: str) -> Changed:
        self._server.allow(caller, "steer")
        return self._server.change(lambda space, now: space.proposed_value(key, value, _who(caller), why, now))

    @exported
    def rollback(self, caller: Caller, version: int, why: str) -> Changed:
        self._server.allow(caller, "steer")
        return self._server.change(lambda space, now: space.proposed_again(version, _who(caller), why, now))

    @exported
    def history(self, caller: Caller) -> tuple[VersionTold, ...]:
        self._server.allow(caller, "status")
        return self._server.history()

    @exported
    def text(self, caller: Caller, version: int) -> str:
        self._server.allow(caller, "status")
        return self._server.text(version)

    @exported
    def status(self, caller: Caller) -> dict[str, Any]:
        self._server.allow(caller, "status")
        return self._server.status()


def _who(caller: Caller) -> str:
    """An identity, or an address."""
    return caller.identity or caller.address
