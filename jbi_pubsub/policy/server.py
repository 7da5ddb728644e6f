"""The policy manager as a server, `jbi policy serve`: a leased service in the lookup community that keeps the policies
of an information space, pushes them to the local managers, and divides what those share.

Theory of operation: a change is parsed, put on disk, then in force and pushed. One thread divides links and wakes the
streams, at most each PUSH_SECONDS; each stream takes what its local manager is to have by then, whole and numbered,
over the data plane, whose acknowledgements carry the reports. `_lock` covers the space, shortly; `_changing` makes
changes one after the other, and lets nobody else wait while a set is read.
"""

from __future__ import annotations

import logging
import math
import socket
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
from jbi_pubsub.core.errors import (
    JbiError,
    LookupNotFoundError,
    OversizeError,
    PolicyError,
    ProtocolError,
    StorageError,
    WireError,
)
from jbi_pubsub.core.guard import faults, guarded
from jbi_pubsub.core.info_object import Part
from jbi_pubsub.core.values import decoded, decoder_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import LOGIN, ControlServer, exported
from jbi_pubsub.core.wire.deflate import Allowance
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint, is_gone
from jbi_pubsub.core.wire.hub import HubSender, SenderHub
from jbi_pubsub.core.wire.places import share_of
from jbi_pubsub.core.wire.stream import Line, Tokens, listen, refuse, welcome
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

from . import file
from .history import History, Shares
from .manager import access_of
from .policyset import policies_of, review
from .proxy import (
    ALIVE,
    MANAGER_TYPE,
    NEWS,
    POLICY_MANAGER,
    Changed,
    Joining,
    PolicyManager,
    PolicyProxy,
    VersionTold,
    epoch_of,
)
from .space import EPOCH_MOST, MEMBERS_MOST, InformationSpaceManager, LqmReport, PolicyStanding, Proposal, refusal
from .users import with_users

log = logging.getLogger("jbi_pubsub.policy")

PUSH_SECONDS: Final = 0.1
"""Between two snapshots that somebody is sent."""
TICK_SECONDS: Final = 1.0
"""Between two divisions of links, and two signs of life."""
REPORT_BYTES: Final = 256 << 10
"""Bytes of a report at most."""
OPEN_SECONDS: Final = 10.0
"""For the data connection of who has joined."""
TELL_SECONDS: Final = 60.0
"""Between two lines of the log about what is wrong at one local manager."""
GONE_SECONDS: Final = 30.0
"""Seconds after which one that is away, and in no lookup service, is gone: its share of links is free."""
ASK_SECONDS: Final = 3.0
"""For looking for other managers at the start, and asking each of them."""
TAKE_OVER_SECONDS: Final = 60.0
"""After a start with `take_over`: local managers that followed somebody else are taken over."""
DELEGATE_TYPE: Final = "jbi.PublisherAdapterDelegate"
TEXT_MOST: Final = 8 << 20
"""Bytes of a file that is applied: comments count here, and are not kept."""


class LocalManagerChannel:
    """Channel to one local manager."""

    def __init__(self, server: PolicyServer, lqm: str, peer: str, hub: SenderHub) -> None:
        self.lqm = lqm
        self.peer = peer
        self.opened = time.monotonic()
        self.is_beating = False
        """A sign of life is due."""
        self.tell_again = -math.inf
        """When the log is told again what is wrong there."""
        self._server = server
        self._sender = HubSender(hub, take=self._take, acked=self._acked)

    def wake(self) -> None:
        """Have it take what there is."""
        self._sender.ready()

    def attach(self, sock: socket.socket, position: int, line: Line, close: Callable[[], None]) -> None:
        """Use that connection, which `close` closes."""

        def ended() -> None:
            self._server.lost(self)
            close()

        self._sender.attach(sock, position, ended=ended, compression=line.compression)

    @property
    def connected(self) -> bool:
        """Whether there is a connection."""
        return self._sender.connected

    def stop(self) -> None:
        """End it."""
        self._sender.stop()

    def _take(self, max_items: int, max_bytes: int) -> list[tuple[Part, ...]]:  # noqa: ARG002  # one item at most
        item = self._server.news(self)
        if item is None and not self.is_beating:
            return []
        self.is_beating = False
        return [(NEWS, item)] if item is not None else [(ALIVE,)]

    def _acked(self, count: int, note: bytes) -> None:  # noqa: ARG002  # the note says all
        if not note:
            return
        if len(note) > REPORT_BYTES:
            raise ProtocolError(f"report of {len(note)} bytes, {REPORT_BYTES} at most")
        self._server.heard(self, decoded(decoder_of(LqmReport), note, "report of a local manager"))


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
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`path`: the policy file; its access rules say who may steer (`access` instead of them). `state`: where the
        history is kept, None: nowhere. `take_over`: have the say also where another manager has it. Binds [pad] host
        and port. Raises PolicyError, StorageError, PortInUseError, ConfigurationError."""
        self._config = config
        self._path = path
        self._clock = clock
        self._wall = wall
        self._takes_over_until = clock() + TAKE_OVER_SECONDS if take_over else -math.inf
        self._lock = threading.Lock()
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._due = threading.Event()
        self._channels: dict[str, LocalManagerChannel] = {}
        self._tokens = Tokens(lambda: uuid4().hex)
        self._compressed = Allowance(config.link.max_compressed)
        self._kept_shares: Shares = {}
        self.fault = ""
        """Fault of the disk, or of another manager."""
        self._disk_fault = False
        self._superseded = ""
        with ExitStack() as undo:
            self._access = access or with_users(access_of(_ruled_by(config, path), "policy"), config)
            undo.callback(self._access.close)
            self._history = History(state) if state is not None else None
            if self._history is not None:
                undo.callback(self._history.close)
            self._space = self._recovered()
            self._control = ControlServer(
                {POLICY_MANAGER: _Calls(self), ADMIN: AccessAdmin(self._access), LOGIN: LoginCalls(self._access)}
            )
            self._endpoint = Endpoint(
                config.pad.host,
                config.pad.port,
                name="policy",
                security=config.security(),
                control=self._control.serve,
                data=self._serve_data,
                advertise=config.pad.advertise,
            )
            undo.callback(self._endpoint.stop)
            secret = self._history.facts().get("secret", "") if self._history is not None else ""
            self._community = JoinManager(config, name="policy", secret=secret)
            undo.pop_all()
        self._managers = self._community.watch(ServiceTemplate(types=(MANAGER_TYPE,)))
        self._delegates = self._community.watch(ServiceTemplate(types=(DELEGATE_TYPE,)))
        self._hub = SenderHub(name="policy-hub")
        self._thread = threading.Thread(target=self._run, name="policy-manager", daemon=True)

    def _recovered(self) -> InformationSpaceManager:
        """Space that was kept, and what the file says, if it is another one than it was."""
        document, said = file.read(self._path)
        policies = policies_of(document)
        document.check()
        review(document, policies.rules, self._wall())
        for line in [*said, *map(document.told, document.warnings)]:
            log.warning("%s", line)
        facts = self._history.facts() if self._history is not None else {}
        versions = self._history.versions() if self._history is not None else []
        space = InformationSpaceManager(facts.get("manager") or uuid4().hex, int(facts.get("epoch", "1")), versions)
        if self._history is not None:
            for lqm, (component, rates) in self._history.shares().items():
                space.join(lqm, component, PolicyStanding(), rates, self._clock())
                space.lost(lqm, self._clock())
            if not facts:
                new = {"manager": space.manager, "epoch": str(space.epoch), "secret": uuid4().hex}
                self._history.put(new)
        text = policies.write()
        if text in (version.toml for version in versions):
            return space  # it was in force already, and something was set since, or it is so still
        why = f"{self._path} has changed" if versions else f"{self._path} as it was at the start"
        proposal = space.proposed(text, "file", why, self._wall())
        if proposal is not None:
            if self._history is not None:
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
        self._look_for_others()
        self._hub.start()
        self._endpoint.start()
        self._thread.start()
        self._show()

    def stop(self) -> None:
        """Leave, and end all threads. Local managers go on with what they have."""
        self._stopping.set()
        self._due.set()
        self._community.close()
        self._endpoint.stop()
        self._hub.stop()
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._access.close()
        if self._history is not None:
            self._history.close()

    def _show(self) -> None:
        with self._lock:
            entry = PolicyManager(epoch=self._space.epoch, address=self.address).rep()
            ref = ServiceRef(self.manager, POLICY_MANAGER, (self.address,), (), self._endpoint.certificate)
        self._community.join(ServiceItem(self.manager, (MANAGER_TYPE,), ref, (entry,)))

    def _look_for_others(self) -> None:
        try:
            found = self._community.lookup(ServiceTemplate(types=(MANAGER_TYPE,)), timeout=ASK_SECONDS)
        except LookupNotFoundError as exc:
            log.warning("other managers were not looked for: %s", exc)
            return
        for item in found:
            if item.service_id == self.manager:
                continue
            epoch = self._epoch_of(item)
            if epoch is None:
                continue
            if self._clock() >= self._takes_over_until:
                raise PolicyError(
                    f"manager {item.service_id[:8]} at {', '.join(item.proxy.endpoints)} serves this space already",
                    hint="Stop it, or start this one with --take-over",
                )
            self._raise_epoch(epoch)

    def _epoch_of(self, item: ServiceItem) -> int | None:
        """Epoch of another manager; None: it does not answer, so it has no say, although its lease has not run out."""
        proxy = PolicyProxy(item.proxy, self._config.security(), timeout=ASK_SECONDS)
        try:
            proxy.status()
        except WireError as exc:
            log.warning("manager %s does not answer: %s", item.service_id[:8], exc)
            return None
        except JbiError as exc:
            log.info("manager %s answers: %s", item.service_id[:8], exc)
        finally:
            proxy.close()
        return epoch_of(item)

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
        if self._history is not None:
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
        if self._superseded:
            raise PolicyError(self._superseded, hint="Tell the other manager")
        with self._changing:
            proposal = propose(self._space, self._wall())
            if proposal is None:
                return Changed(self._space.policies.version, is_new=False)
            if self._history is not None:
                self._history.keep(proposal.version)
            with self._lock:
                self._space.take(proposal)
        self._due.set()
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

    def join(self, who: Joining, peer: str) -> str:
        """See PolicyProxy; `peer` is whose local manager it is (Caller.peer)."""
        if self._superseded:
            raise PolicyError(self._superseded, hint="Follow the other manager")
        standing = who.standing
        if self._clock() < self._takes_over_until and refusal(standing, self.standing):
            self._raise_epoch(standing.epoch)
            self._show()
        with self._lock:
            self._check_whose(who.lqm, peer)
            channels = [each.lqm for each in self._channels.values() if each.peer == peer]
            if who.lqm not in channels and len(channels) >= share_of(MEMBERS_MOST):
                raise OversizeError(f"{share_of(MEMBERS_MOST)} local managers of one party follow, the limit")
            self._space.join(who.lqm, who.component, standing, who.rates, self._clock())
            if self._space.is_away(who.before) and self._is_of(who.before, peer):
                self._space.gone(who.before)  # it is here again, under another id
                self._channels.pop(who.before, None)
            before = self._channels.get(who.lqm)
            self._channels[who.lqm] = channel = LocalManagerChannel(self, who.lqm, peer, self._hub)
        if before is not None:
            before.stop()
        log.info("%s follows", who.component)
        return self._tokens.issue(channel)

    def _is_of(self, lqm: str, peer: str) -> bool:
        """Whether an id is free, or that of a local manager of this party. Called under the lock."""
        channel = self._channels.get(lqm)
        return channel is None or channel.peer == peer

    def _check_whose(self, lqm: str, peer: str) -> None:
        """Raises PolicyError for the id of another party's that is here: lookup services tell ids to everybody."""
        if not self._space.is_away(lqm) and not self._is_of(lqm, peer):
            raise PolicyError(f"local manager {lqm[:8]} is another party's, and follows", hint="Use your own id")

    def leave(self, lqm: str, peer: str = "") -> None:
        """See PolicyProxy; `peer` as in `join`, "" for ourselves."""
        with self._lock:
            if peer:
                self._check_whose(lqm, peer)
            self._space.gone(lqm)
            channel = self._channels.pop(lqm, None)
        if channel is not None:
            channel.stop()
        self._due.set()

    def lost(self, channel: LocalManagerChannel) -> None:
        """Its connection is over."""
        with self._lock:
            if self._channels.get(channel.lqm) is channel:
                self._space.lost(channel.lqm, self._clock())

    def heard(self, channel: LocalManagerChannel, report: LqmReport) -> None:
        """Take a report of a local manager."""
        with self._lock:
            if self._channels.get(channel.lqm) is not channel:
                return
            is_due = self._space.heard(channel.lqm, report, self._clock())
        if report.fault and self._clock() >= channel.tell_again:
            channel.tell_again = self._clock() + TELL_SECONDS
            log.error("a local manager does not follow: %s", report.fault)
        if is_due:
            self._due.set()

    def news(self, channel: LocalManagerChannel) -> bytes | None:
        """News to be sent to one, if there is something; nothing over a connection that another one came instead of."""
        lqm = channel.lqm
        with self._lock:
            is_old = self._channels.get(lqm) is not channel
            if is_old or lqm not in self._space.members or self._space.waits_for_room(lqm):
                return None
            news = self._space.news(lqm)
        return None if news is None else msgspec.msgpack.encode(news)

    def _serve_data(self, sock: socket.socket, caller: Caller) -> None:
        line = Line(sock)
        hello = listen(line)
        channel: LocalManagerChannel | None = self._tokens.redeem(hello.token)
        if channel is None:
            refuse(line, "unknown or used token")
            return
        caller.place.kept = True
        welcome(line, 0, self._compressed.grant(hello.compression))
        channel.attach(sock, hello.position, line, self._endpoint.hand_over(sock))
        self._due.set()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        beat_at = 0.0
        while not self._stopping.is_set():
            self._due.wait(TICK_SECONDS)
            self._due.clear()
            is_beat = self._clock() >= beat_at
            if is_beat:
                beat_at = self._clock() + TICK_SECONDS
            with guarded("policy manager"):
                if is_beat:
                    self._look_around()
                self._push(beat=is_beat)
            self._stopping.wait(PUSH_SECONDS)

    def _push(self, *, beat: bool) -> None:
        with self._lock:
            self._space.share_out(self._clock())
            shares = {lqm: (m.component, dict(m.shares)) for lqm, m in self._space.members.items()}
            channels = list(self._channels.values())
        self._keep(shares)
        for channel in channels:
            channel.is_beating |= beat
            channel.wake()

    def _keep(self, shares: Shares) -> None:
        """On disk before anybody is told: after a restart nobody may get what another one still has."""
        if self._history is None or shares == self._kept_shares:
            return
        try:
            self._history.keep_shares(shares)
        except StorageError as exc:
            if not self._disk_fault:
                log.error("shares of links are not kept: %s", exc)
            self._disk_fault = True
        else:
            self._disk_fault = False
            self._kept_shares = shares

    def _look_around(self) -> None:
        """Other managers; who has never come, or is gone."""
        now = self._clock()
        self._look_at_others()
        with self._lock:
            for lqm, channel in list(self._channels.items()):
                if not channel.connected and now - channel.opened > OPEN_SECONDS:
                    self._space.lost(lqm, now)
            away = [
                lqm
                for lqm, member in self._space.members.items()
                if member.away_since is not None and now - member.away_since > GONE_SECONDS
            ]
        for lqm in away:
            if self._community.connected() and self._delegates.item(lqm) is None:
                log.warning("local manager %s is gone: what it had of links is free", lqm[:8])
                self.leave(lqm)

    def _look_at_others(self) -> None:
        superseded = fault = ""
        for item in self._managers.items():
            epoch = epoch_of(item)
            if item.service_id == self.manager or epoch < self._space.epoch:
                continue
            if is_gone(item.proxy, self._config.security()):
                continue
            where = f"manager {item.service_id[:8]} at {', '.join(item.proxy.endpoints)}"
            if epoch > self._space.epoch:
                superseded = f"{where} has taken over, with epoch {epoch}"
            else:
                fault = f"{where} serves this space as well, with the same epoch {epoch}: stop one of them"
        self._superseded = superseded
        fault = superseded or fault
        if fault and fault != self.fault:
            log.error("%s", fault)
        self.fault = fault

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            told = self._space.status(self._clock())
        disk = "the disk takes nothing new" if self._disk_fault else ""
        return {
            "kind": "policy",
            **told,
            "address": self.address,
            "file": str(self._path),
            "state": str(self._history.path) if self._history is not None else "",
            "fault": "; ".join(filter(None, (self.fault, disk))),
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
        self._server.allow(caller, "peer")
        return self._server.join(who, caller.peer)

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
