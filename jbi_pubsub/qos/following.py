"""Following the policy manager of its information space, by a delegate or peer publisher (QED, section III).

Theory of operation: a thread finds managers through the lookup services, joins one, and takes what that pushes; what is
in force here, and what links would take, goes back once a second with the acknowledgements. It stays with the manager
that it has: it takes no earlier version, and goes to another one only if that has a higher epoch. Whatever happens to
the manager, what is in force stays so; `[policy] state` keeps it over a restart of ours.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError, OversizeError, PolicyError, ProtocolError, WireError
from jbi_pubsub.core.files import opened, written
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.quality import LEVELS, QUANTITY_MOST
from jbi_pubsub.core.toml import MAX_BYTES
from jbi_pubsub.core.values import converted, decoded, decoder_of
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.dial import dial
from jbi_pubsub.core.wire.endpoint import DATA
from jbi_pubsub.core.wire.receiver import Receiver
from jbi_pubsub.core.wire.stream_socket import Hello, StreamSocket, greet
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.policy.file import parse
from jbi_pubsub.policy.policyset import NOTHING, PolicySet
from jbi_pubsub.policy.proxy import ALIVE, MANAGER_TYPE, NEWS, Joining, PolicyProxy, epoch_of
from jbi_pubsub.policy.space import (
    LINKS_TOLD,
    SNAPSHOT_BYTES,
    TYPES_TOLD,
    LinkUse,
    LqmReport,
    PolicyNews,
    PolicyStanding,
    Short,
    read_set,
    refusal,
)
from jbi_pubsub.protocol.status.quality import LinkStatus, TypeQuality

log = logging.getLogger("jbi_pubsub.qos")

AGAIN_SECONDS: Final = 0.5
"""Between two tries to join."""
CALL_SECONDS: Final = 2.0
"""For a call to a manager."""
STALE_SECONDS: Final = 3.0
"""Without a sign of life, which comes each second, a manager counts as away."""
SILENT_SECONDS: Final = 10.0
"""Then its connection is given up, and others are looked for."""
NEWS_BYTES: Final = 2 * SNAPSHOT_BYTES
"""Bytes of what is pushed at once: a set, and shares."""
STATE_MARK: Final = "# jbi policy state "
"""A state file is the text of the policies, behind a line that says which they are."""

Install = Callable[[PolicySet, Mapping[str, float]], None]
"""Is told what is in force from now on: policies, and shares of links in bytes a second by name."""


class Following:
    """See the module. `_lock` covers what is in force and what is known of the manager."""

    def __init__(self, config: Config, component: str, install: Install) -> None:
        """Nobody is followed before `start`."""
        self._config = config
        self._component = component
        self._install = install
        self._state = Path(config.policy.state) if config.policy.state else None
        self._lock = threading.Lock()
        self._standing = PolicyStanding()
        self._policies = NOTHING
        self._rates: dict[str, float] = {}
        self._number = 0
        self._fault = ""
        self._state_fault = ""
        self._source = "nobody"
        self._manager: ServiceRef | None = None
        """The one that was followed last."""
        self._address = ""
        self._heard_at: float | None = None
        """When the manager was heard last; None: never, or it is not known when."""
        self._since = time.monotonic()
        self._report = LqmReport(0, PolicyStanding())
        self._uses = Uses()
        self._receiver: Receiver | None = None
        self._looking = threading.Event()
        self._stopping = threading.Event()
        self._community: JoinManager | None = None
        self._lqm = self._before = ""
        self._thread: threading.Thread | None = None

    def start(self, community: JoinManager, lqm: str) -> None:
        """Follow whoever is found through the lookup services, after what was kept; `lqm` is the id of our service."""
        self._recover()
        self._community = community
        self._lqm = lqm
        self._managers = community.watch(ServiceTemplate(types=(MANAGER_TYPE,)), self)
        self._thread = threading.Thread(target=self._run, name=f"follow-{self._component}"[:40], daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the manager, and end the thread. Safe to repeat."""
        self._stopping.set()
        self._looking.set()
        receiver = self._receiver
        if receiver is not None:
            receiver.stop()
        if self._thread is not None:
            self._thread.join(CALL_SECONDS + 3.0)
        if self._community is not None:
            self._community.unwatch(self._managers)

    @property
    def has_set(self) -> bool:
        """Whether a manager has said something, now or before."""
        return bool(self._standing.manager)

    @property
    def said(self) -> tuple[PolicySet, Mapping[str, float]]:
        """Last usable word of the manager: policies, and shares of links."""
        with self._lock:
            return self._policies, self._rates

    def status(self) -> dict[str, str]:
        """Plain data: where policies come from, whom we follow, and what is wrong with that."""
        with self._lock:
            fault = "; ".join(filter(None, (self._fault, self._state_fault)))
            return {"source": self._source, "following": self._following(), "fault": fault}

    def _following(self) -> str:
        if self._thread is None:
            return ""
        now = time.monotonic()
        if not self._standing.manager:
            return f"nobody, for {now - self._since:.0f} s: no policies are in force"
        heard = self._heard_at if self._heard_at is not None else self._since
        if self._receiver is not None and now - heard <= STALE_SECONDS:
            return f"{self._standing.manager[:8]} at {self._address}"
        return f"stale {now - heard:.0f} s"

    # -- what goes back -----------------------------------------------------------------------------------------

    def look(self, links: Sequence[LinkStatus], contracts: Mapping[str, int], types: Sequence[TypeQuality]) -> None:
        """Once a second: report what links carry, and what types were delivered; see if the manager is alive."""
        if self._thread is None:
            return
        now = time.monotonic()
        rates = {row.name[:200]: float(row.rate or 0.0) for row in types[:TYPES_TOLD]}
        uses = self._uses.look(links, now)
        with self._lock:
            self._report = LqmReport(0, PolicyStanding(), links=uses, contracts=dict(contracts), types=rates)
            receiver = self._receiver
            is_silent = self._heard_at is not None and now - self._heard_at > SILENT_SECONDS
        if receiver is None:
            return
        if is_silent:
            receiver.stop()
        else:
            receiver.report_unless_full()

    def _note(self) -> bytes:
        with self._lock:
            report = msgspec.structs.replace(
                self._report, number=self._number, standing=self._standing, fault=self._fault[:1_000]
            )
        return msgspec.msgpack.encode(report)

    # -- what comes ---------------------------------------------------------------------------------------------

    def _receive(self, items: list[memoryview]) -> None:
        with self._lock:
            self._heard_at = time.monotonic()
        for item in items:
            kind = bytes(item[:1])
            if len(item) > NEWS_BYTES:
                raise ProtocolError(f"news of a policy manager: {len(item)} bytes, {NEWS_BYTES} at most")
            if kind == NEWS:
                self._take(decoded(decoder_of(PolicyNews), item[1:], "news of a policy manager"))
            elif kind != ALIVE:
                raise ProtocolError(f"a policy manager sends {kind!r}")

    def _take(self, news: PolicyNews) -> None:
        """Put news in force. Policies that can't be used leave those of before so, with the new shares."""
        why = refusal(self._standing, news.standing)
        if why:
            raise ProtocolError(f"news of a policy manager: {why}")
        policies, standing, fault = self._policies, news.standing, ""
        is_other = (standing.version, standing.digest) != (self._standing.version, self._standing.digest)
        if news.toml is not None and is_other:
            try:
                policies = _checked(news.toml, news.standing)
            except JbiError as exc:
                fault = f"version {news.standing.version} can't be used here: {exc.message}"
                log.error("%s; the previous policies stay in force", fault)
        elif is_other:
            fault = self._fault  # of the text that came before
        if fault:
            standing = msgspec.structs.replace(
                news.standing, version=self._standing.version, digest=self._standing.digest
            )
        rates = {name: min(max(1.0, rate), QUANTITY_MOST) for name, rate in news.rates.items()}
        is_new = policies is not self._policies
        self._install(policies, rates)
        with self._lock:
            self._policies, self._standing, self._rates = policies, standing, rates
            self._number, self._fault, self._source = news.number, fault[:1_000], "manager"
        if is_new:
            log.warning("version %d of the policies is in force", policies.version)
        self._keep()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            with guarded("following the policy manager"):
                self._follow_somebody()
            self._looking.wait(AGAIN_SECONDS)
            self._looking.clear()

    def _follow_somebody(self) -> None:
        """Whoever lets us in, the one of before first; until it is over."""
        refused = ""
        for ref in self._known():
            try:
                self._follow(ref)
            except PolicyError as exc:
                refused = exc.message
            except JbiError as exc:
                log.debug("manager %s: %s", ref.endpoints, exc)
            if self._stopping.is_set():
                return
        with self._lock:
            if refused and refused != self._fault:
                log.error("%s", refused)
            self._fault = refused

    def _known(self) -> list[ServiceRef]:
        items = sorted(self._managers.items(), key=lambda item: -epoch_of(item))
        own = self._standing
        higher = [item.proxy for item in items if epoch_of(item) > own.epoch]
        ours = [item.proxy for item in items if item.service_id == own.manager]
        before = [self._manager] if self._manager is not None else []
        others = [item.proxy for item in items]
        return list(dict.fromkeys([*higher, *ours, *before, *others]))

    def _follow(self, ref: ServiceRef) -> None:
        """Join one, and take what it pushes until that ends. Raises PolicyError, WireError."""
        security = self._config.security()
        proxy = PolicyProxy(ref, security, timeout=CALL_SECONDS)
        try:
            token = proxy.join(Joining(self._lqm, self._component, self._standing, self._rates, self._before))
            sock = dial(ref, DATA, security, CALL_SECONDS)
            try:
                line = StreamSocket(sock)
                greet(line, Hello.of(token, compression=self._config.link.compression))
                self._listen(ref, line)
            finally:
                sock.close()
            if self._stopping.is_set():
                proxy.leave(self._lqm)
        finally:
            proxy.close()

    def _listen(self, ref: ServiceRef, line: StreamSocket) -> None:
        receiver = Receiver(self._receive, self._note)
        with self._lock:
            self._manager, self._address, self._heard_at = ref, ref.endpoints[0], time.monotonic()
            self._number, self._receiver = 0, receiver
        try:
            if not self._stopping.is_set():
                receiver.run(line)
        except WireError as exc:
            if isinstance(exc, ProtocolError):
                log.error("%s", exc.message)
            log.debug("connection to policy manager %s ended: %s", ref.endpoints, exc)
        finally:
            with self._lock:
                self._receiver = None

    # -- a listener at the lookup services ------------------------------------------------------------------------

    def service_added(self, item: ServiceItem) -> None:
        """Look whether a manager that has come is to be followed."""
        receiver = self._receiver
        if receiver is not None and epoch_of(item) > self._standing.epoch:
            receiver.stop()
        self._looking.set()

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """Look at one that says something else of itself."""
        self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Do nothing: it may still answer."""

    # -- the state ----------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Recover what was in force before we were restarted."""
        if self._state is None:
            return
        try:
            with opened(self._state) as file:
                text = file.read(MAX_BYTES).decode()
            first, _, toml = text.partition("\n")
            if not first.startswith(STATE_MARK):
                raise PolicyError("it is no such file")
            head = json.loads(first.removeprefix(STATE_MARK))
            standing, rates, before = converted(head, tuple[PolicyStanding, dict[str, float], Short])
            policies = _checked(toml, standing)
        except FileNotFoundError:
            return
        except (OSError, ValueError, msgspec.ValidationError, RecursionError, JbiError) as exc:
            self._state_fault = f"policies kept in {self._state} can't be used: {exc}"[:500]
            log.error("%s", self._state_fault)
            return
        self._policies, self._standing, self._rates, self._source = policies, standing, rates, "state"
        self._before = before
        self._install(policies, rates)

    def _keep(self) -> None:
        if self._state is None:
            return
        head = json.dumps(msgspec.to_builtins([self._standing, self._rates, self._lqm]))
        try:
            with written(self._state) as file:
                file.write(f"{STATE_MARK}{head}\n{self._policies.write()}".encode())
        except OSError as exc:
            fault = f"policies are not kept in {self._state}: {exc}"
            if fault != self._state_fault:
                log.error("%s", fault)
            self._state_fault = fault
        else:
            self._state_fault = ""


class Uses:
    """Use of links: what they carry, and would carry, from what is known of them each second. Pure."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, list[int]]] = {}

    def look(self, links: Sequence[LinkStatus], now: float) -> dict[str, LinkUse]:
        """`links`: see BandwidthManager.status. A level at which something waits would send as much as goes."""
        found = {}
        before, self._before = self._before, {}
        for row in links[:LINKS_TOLD]:
            name, sent = row.name[:200], row.sent_by_level
            at, was = before.get(name, (now - 1.0, sent))
            self._before[name] = now, sent
            took = max(0.001, now - at)
            rates = [max(0, new - old) / took for new, old in zip(sent, was, strict=True)]
            waiting = [bool(count) for count in row.waiting_by_level]
            if row.backlog and not any(waiting):  # it waits for what is under way
                waiting = [rate > 0 for rate in rates] if any(rates) else [level == LEVELS // 2 for level in range(5)]
            a, b, c, d, e = (float("inf") if waits else rate for waits, rate in zip(waiting, rates, strict=True))
            found[name] = LinkUse(row.limit or 0.0, row.used, (a, b, c, d, e), row.rtt_ms / 1000)
        return found


def _checked(toml: str, standing: PolicyStanding) -> PolicySet:
    """The set of a text, if it is the one that was announced. Raises PolicyError, OversizeError."""
    name = f"version {standing.version}"
    if len(toml) > SNAPSHOT_BYTES:  # before it is read: that takes its time
        raise OversizeError(f"{name}: {len(toml)} characters, {SNAPSHOT_BYTES} at most", hint="A manager sends no more")
    if "access" in parse(toml, name):
        raise PolicyError("access rules come from a manager", hint="They stand in this process's own policy file")
    policies = read_set(toml, name, standing.version)
    if policies.digest != standing.digest:
        raise PolicyError("its text and its digest do not fit")
    return policies
