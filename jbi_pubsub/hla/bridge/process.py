"""A bridge between two federations as it runs: two surrogates, one thread.

    federation -> surrogate -> bridge (a value) -> surrogate -> federation

The thread takes what the surrogates were told, has the bridge say what is to be called, calls it, and gives the bridge
the answers. Values and interactions go to an RTI many at a time: their answers are waited for together. When there is
too much in the link to a side, no more is taken from the other one, whose RTI then holds back who sends there.

When a federation is away the bridge leaves the other one as well, so that nothing there waits for it, and comes again
when both are there. What was in its links then is lost, counted and told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from jbi_pubsub.bridge.file import settings_of
from jbi_pubsub.core.config import Config, MetricsSection
from jbi_pubsub.core.errors import ConfigurationError, JbiError, StorageError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.metrics import MetricsServer, Sample
from jbi_pubsub.hla.exceptions import RtiError
from jbi_pubsub.hla.execution import Callback
from jbi_pubsub.hla.samples import of_bridge
from jbi_pubsub.hla.saves import Saves

from . import bridge as spans
from .limits import Limits
from .presence import Presence
from .state import KEPT, Bridge, Call, Plan
from .surrogate import Surrogate
from .translation import Translation

if TYPE_CHECKING:
    from .file import Federations

log = logging.getLogger("jbi_pubsub.hla")

TAKEN_MOST: Final = 500
"""Callbacks that are taken from a side in a round, and calls that go together."""
FIND_SECONDS: Final = 2.0
_FLOWING: Final = frozenset(("update_attribute_values", "send_interaction"))
_CARRYING: Final = frozenset(("reflect_attribute_values", "receive_interaction"))


class FederationBridge:
    """See the module."""

    def __init__(self, described: Federations, configs: tuple[Config, Config], metrics: MetricsSection) -> None:
        """Raises PortInUseError, ConfigurationError, StorageError."""
        file = described.file
        self._described = described
        self._names = described.sides
        self._both = f"the bridge {file.name} of {' and '.join(side.federation for side in file.side.values())}"
        self._federations = tuple(file.side[name].federation for name in self._names)
        self._lock = threading.Lock()  # covers what status tells
        self._plan: Plan | None = None
        self._bridge = Bridge()
        self._counters: dict[str, int] = {}
        self._state, self._trouble = "waiting", ""
        self._saves: Saves[Bridge] | None = None
        if file.saves:
            self._saves = Saves(described.path.parent / file.saves, *KEPT)
        self._kept: list[tuple[str, Bridge]] = []
        """What was under way at saves, while the bridge is away."""
        self._models = ""
        self._told: set[tuple[str, str]] = set()
        self._limits = Limits()
        self._something, self._stopping = threading.Event(), threading.Event()
        self._others = threading.Event()
        """Other bridges have come, or gone."""
        with ExitStack() as undo:
            self._surrogates = tuple(
                Surrogate(config, federation) for config, federation in zip(configs, self._federations, strict=True)
            )
            for each in self._surrogates:
                undo.callback(each.disconnect)
            communities = [each.community for each in self._surrogates]
            self._presence = Presence(file.name, configs, communities, self._facts, self._others_changed)
            undo.callback(self._presence.close)
            self.metrics: MetricsServer | None = None
            if metrics.port >= 0:
                self.metrics = MetricsServer(metrics, self.samples)
                undo.callback(self.metrics.stop)
            self._undo = undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="hla-bridge", daemon=True)

    def start(self) -> None:
        """Begin; who is not there yet is waited for. Raises ConfigurationError when both are there and the file does
        not fit their object models."""
        self._come()
        self._thread.start()

    def close(self) -> None:
        """Leave both federations, in order."""
        self._stopping.set()
        self._something.set()
        if self._thread.is_alive():
            self._thread.join(30.0)
        self._leave()
        self._undo.close()

    def status(self) -> dict[str, Any]:
        """Plain data: whether it is up, what it counts, what is pending, and what is not going to end."""
        with self._lock:
            plan, bridge, counters = self._plan, self._bridge, dict(self._counters)
        for name, number in bridge.counters.items():
            counters[name] = counters.get(name, 0) + number
        pending = spans.pending(plan, bridge) if plan is not None else ()
        directions = [
            {"from": source, "to": target, "relayed": counters.get(f"relayed.{side}", 0),
             "filtered": counters.get(f"filtered.{side}", 0), "lost": counters.get(f"lost.{side}", 0),
             "waiting": len(bridge.links[side].data) + len(bridge.links[side].control)}
            for side, (source, target) in enumerate((self._names, self._names[::-1]))
        ]  # fmt: skip
        return {
            "state": self._state,
            "trouble": self._trouble,
            "federations": list(self._federations),
            "directions": directions,
            "counters": {name: counters[name] for name in sorted(counters)},
            "pending": [
                {"kind": each.kind, "label": each.label, "side": self._names[each.side], "state": each.state,
                 "deadlocked": each.is_deadlocked}
                for each in pending
            ],
        }  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """What the metrics port shows."""
        return of_bridge(self._described.file.name, self.status())

    def _facts(self) -> dict[str, Any]:
        """For those who ask how servers are."""
        status = self.status()
        more = {"listening": status["state"] == "up", "troubles": 0, "registrations": len(self._bridge.objects)}
        ways = [{**way, **more} for way in status["directions"]]
        name, trouble = self._described.file.name, status["trouble"]
        foreign = {"kind": "bridge", "name": name, "sides": {}, "directions": ways, "trouble": trouble}
        return {"name": name, "foreign": foreign, "bridge": status}

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            with guarded("hla bridge"):
                try:
                    if self._plan is None:
                        self._stopping.wait(self._described.file.poll)
                        if not self._stopping.is_set():
                            self._come()
                        continue
                    self._round()
                except (JbiError, ConfigurationError) as exc:
                    self._trouble = exc.message
                    log.warning("the bridge of %s leaves: %s", " and ".join(self._federations), exc.message)
                    self._leave()
                except BaseException:
                    self._leave()
                    raise

    def _come(self) -> None:
        """Join both federations, if both are there. Raises ConfigurationError."""
        file = self._described.file
        try:
            one, another = self._surrogates
            self._others.clear()
            self._presence.come((one.execution(FIND_SECONDS), another.execution(FIND_SECONDS)))
            for other, surrogate in zip(self._names[::-1], self._surrogates, strict=True):
                surrogate.come(f"{file.name}:{other}", self._something.set, FIND_SECONDS)
            models = {
                name: surrogate.model(name) for name, surrogate in zip(self._names, self._surrogates, strict=True)
            }
            translation = self._described.translated(models)
            self._models = "+".join(surrogate.fom.digest for surrogate in self._surrogates)
            if self._saves is not None:
                self._kept = self._saves.of(self._both, self._models)
        except ConfigurationError:
            self._leave()
            raise
        except JbiError as exc:
            if exc.message != self._trouble:
                log.warning("the bridge of %s waits: %s", " and ".join(self._federations), exc.message)
            self._trouble = exc.message
            self._leave()
            return
        self._begin(translation)

    def _begin(self, translation: Translation) -> None:
        file = self._described.file
        one, other = self._federations
        plan = Plan((one, other), self._described.policy, translation, file.time.couple, file.time.lookahead)
        self._limits = Limits()
        with self._lock:
            self._plan, self._state, self._trouble = plan, "up", ""
        bridge, calls = spans.begun(plan, self._kept)
        self._keep(bridge)
        self._do(bridge, calls)
        log.info("the bridge of %s and %s is up", one, other)

    def _leave(self) -> None:
        """Both federations; what was under way is lost."""
        with self._lock:
            if self._plan is not None:
                self._kept = [(label, self._bridge.kept[label]) for label in self._bridge.order]
            bridge, self._bridge, self._plan, self._state = self._bridge, Bridge(), None, "waiting"
            for name, number in bridge.counters.items():
                self._counters[name] = self._counters.get(name, 0) + number
            for side in (0, 1):
                if lost := len(bridge.links[side].data):
                    key = f"lost.{side}"
                    self._counters[key] = self._counters.get(key, 0) + lost
                    log.warning("%d messages to %s are lost with the bridge", lost, self._federations[1 - side])
        self._presence.leave()
        for surrogate in self._surrogates:
            surrogate.leave()

    def _others_changed(self) -> None:
        self._others.set()
        self._something.set()

    def _round(self) -> None:
        """What the surrogates were told, and what may go for it."""
        self._something.clear()
        if self._others.is_set():
            self._others.clear()
            self._presence.check()
        plan, taken = self._plan, 0
        assert plan is not None
        for side, surrogate in enumerate(self._surrogates):
            if self._may_take(plan, side):
                for callback in surrogate.take(TAKEN_MOST):
                    taken += 1
                    self._hear(plan, side, callback)
        went = self._let_go(plan)
        self._tell_troubles(plan)
        if not taken and not went:
            self._something.wait(self._ask(plan))

    def _may_take(self, plan: Plan, side: int) -> bool:
        """Whether there is room in the link from a side. When the other one saves or restores, and waits for this one
        to do so as well, all is taken: word of it stands behind what there is no room for, and that is no more than was
        sent before."""
        if len(self._bridge.links[side].data) < self._described.file.flow.queue:
            return True
        return bool(self._bridge.busy[1 - side]) and plan.policy.consensus in ("naive", "add", "smart")

    def _hear(self, plan: Plan, side: int, callback: Callback) -> None:
        if callback.name in _CARRYING and not self._limits.allows(plan, self._bridge, side, callback):
            self._count(f"limited.{side}")
            return
        self._do(*spans.heard(plan, self._bridge, side, callback))

    def _let_go(self, plan: Plan) -> int:
        """All that may go over the links, in order; how many went."""
        went = 0
        for side in (0, 1):
            while (control := spans.first_control(plan, self._bridge, side)) is not None:
                self._do(*spans.forwarded(plan, self._bridge, control))
                went += 1
            flowing: list[Call] = []
            while went < 10 * TAKEN_MOST and (item := spans.first(plan, self._bridge, side)) is not None:
                bridge, calls = spans.forwarded(plan, self._bridge, item)
                went += 1
                self._keep(bridge)
                if all(call.service in _FLOWING for call in calls):
                    flowing.extend(calls)
                    if len(flowing) < TAKEN_MOST:
                        continue
                    calls = ()
                self._flow(flowing)
                flowing = []
                self._do(self._bridge, calls)
            self._flow(flowing)
        return went

    def _flow(self, calls: list[Call]) -> None:
        """Calls to one side, together. Of those that were refused the last is put back first."""
        plan = self._plan
        if not calls or plan is None:
            return
        answers = self._surrogates[calls[0].side].do(calls)
        later: list[tuple[Call, RtiError]] = []
        for call, answer in zip(calls, answers, strict=True):
            if isinstance(answer, RtiError):
                later.append((call, answer))
            else:
                self._do(*spans.answered(plan, self._bridge, call, answer))
        for call, error in reversed(later):
            self._do(*spans.refused(plan, self._bridge, call, error))

    def _do(self, bridge: Bridge, calls: tuple[Call, ...]) -> None:
        """Calls, one after the other, and what comes of them. What a save has is on disk before any is made."""
        plan = self._plan
        assert plan is not None
        if bridge.kept is not self._bridge.kept:
            bridge, calls = self._stored(plan, bridge, calls)
        self._keep(bridge)
        waiting = list(calls)
        while waiting:
            call = waiting.pop(0)
            [answer] = self._surrogates[call.side].do([call])
            if isinstance(answer, RtiError):
                log.debug("%s refused: %s", call.service, answer)
                bridge, more = spans.refused(plan, self._bridge, call, answer)
            elif isinstance(answer, JbiError):
                raise answer
            else:
                bridge, more = spans.answered(plan, self._bridge, call, answer)
            self._keep(bridge)
            waiting[:0] = more

    def _stored(self, plan: Plan, bridge: Bridge, calls: tuple[Call, ...]) -> tuple[Bridge, tuple[Call, ...]]:
        """On disk, or the save has failed."""
        if self._saves is None:
            return bridge, calls
        before = self._bridge.kept
        for label in bridge.order:
            if bridge.kept[label] is not before.get(label):
                try:
                    self._saves.put(self._both, self._models, label, bridge.kept[label])
                except StorageError as exc:
                    log.error("%s", exc)
                    bridge, calls = spans.not_kept(plan, bridge, label, calls)
        for label in before:
            if label not in bridge.kept:
                self._saves.drop(self._both, label)
        return bridge, calls

    def _keep(self, bridge: Bridge) -> None:
        with self._lock:
            self._bridge = bridge

    def _count(self, name: str) -> None:
        with self._lock:
            self._counters[name] = self._counters.get(name, 0) + 1

    def _ask(self, plan: Plan) -> float:
        """Ask the RTIs what has to be asked; seconds until the next time, unless something is heard."""
        polls = [item for item in spans.due(plan, self._bridge) if item.what == "poll"]
        for item in polls:
            self._do(*spans.forwarded(plan, self._bridge, item))
        return POLL_SECONDS if polls else self._described.file.poll

    def _tell_troubles(self, plan: Plan) -> None:
        before = sum(self._bridge.counters.get(f"before_us.{side}", 0) for side in (0, 1))
        if before and plan.policy.info == "restrict" and ("info", "restrict") not in self._told:
            self._told.add(("info", "restrict"))
            log.warning(
                "%d instances were there before the bridge, whose values are not known to the other side until they "
                "change (info = 'restrict': the bridge comes first)", before,
            )  # fmt: skip
        for each in spans.pending(plan, self._bridge):
            key = (each.kind, each.label)
            if each.is_deadlocked and key not in self._told:
                self._told.add(key)
                log.error(
                    "DEADLOCK(%s, %s): both sides of the bridge wait for each other (consensus = %r)",
                    each.kind, each.label, plan.policy.consensus,
                )  # fmt: skip


POLL_SECONDS: Final = 0.02
"""After which an RTI is asked again whether all others have consented."""


def opened(described: Federations, base: Config) -> FederationBridge:
    """Not started yet. Raises ConfigurationError, PortInUseError, StorageError."""
    file = described.file
    configs = [settings_of(described.path, name, side, base) for name, side in file.side.items()]
    return FederationBridge(described, (configs[0], configs[1]), base.metrics)
