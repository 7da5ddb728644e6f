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
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from jbi_pubsub.bridge.file import settings_of
from jbi_pubsub.core.config import Config, MetricsSection
from jbi_pubsub.core.errors import ConfigurationError, JbiError
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.metrics import MetricsServer, Sample
from jbi_pubsub.hla.exceptions import ErrorReadingFom
from jbi_pubsub.hla.samples import of_bridge
from jbi_pubsub.hla.saves import Saves

from . import bridge as spans
from .crossing import Crossing
from .file import Federations
from .presence import Presence
from .state import KEPT, Bridge, Plan
from .surrogate import Surrogate

log = logging.getLogger("jbi_pubsub.hla")


class FederationBridge:
    """See the module."""

    def __init__(self, described: Federations, configs: tuple[Config, Config], metrics: MetricsSection) -> None:
        """Raises PortInUseError, ConfigurationError, StorageError."""
        file = described.file
        self._described = described
        self._lock = threading.Lock()  # covers what status tells
        self._crossing: Crossing | None = None
        """None: it waits for a federation."""
        self._counters: Counter[str] = Counter()
        self._trouble = ""
        self._saves = Saves(described.path.parent / file.saves if file.saves else None, *KEPT)
        self._kept: list[tuple[str, Bridge]] = []
        """States under way at saves, while the bridge is away."""
        self._told: set[tuple[str, str]] = set()
        self._something, self._stopping = threading.Event(), threading.Event()
        with ExitStack() as undo:
            federations = (side.federation for side in file.side.values())
            self._surrogates = tuple(map(Surrogate, configs, federations))
            for each in self._surrogates:
                undo.callback(each.disconnect)
            communities = [each.community for each in self._surrogates]
            self._presence = Presence(file.name, configs, communities, self._facts, self._something.set)
            undo.callback(self._presence.close)
            self.metrics: MetricsServer | None = None
            if metrics.port >= 0:
                self.metrics = MetricsServer(metrics, self.samples, self._presence.access)
                undo.callback(self.metrics.stop)
            self._undo = undo.pop_all()
        self._thread = threading.Thread(target=self._run, name="hla-bridge", daemon=True)

    def start(self) -> None:
        """Begin; who is not there yet is waited for. Raises ConfigurationError when both are there and the file does
        not fit their object models, or what their RTIs offer."""
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
            crossing, counters = self._crossing, Counter(self._counters)
        bridge = crossing.bridge if crossing is not None else Bridge()
        counters.update(bridge.counters)
        names = self._described.sides
        directions = [
            {"from": source, "to": target, "relayed": counters[f"relayed.{side}"],
             "filtered": counters[f"filtered.{side}"], "lost": counters[f"lost.{side}"],
             "waiting": len(bridge.links[side].data) + len(bridge.links[side].control)}
            for side, (source, target) in enumerate((names, names[::-1]))
        ]  # fmt: skip
        return {
            "state": "up" if crossing is not None else "waiting",
            "trouble": self._trouble,
            "federations": [each.federation for each in self._surrogates],
            "directions": directions,
            "counters": {name: counters[name] for name in sorted(counters)},
            "pending": [
                {"kind": each.kind, "label": each.label, "side": names[each.side], "state": each.state,
                 "deadlocked": each.is_deadlocked}
                for each in (spans.pending(crossing.plan, bridge) if crossing is not None else ())
            ],
        }  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """Samples for the metrics port."""
        return of_bridge(self._described.file.name, self.status())

    def _facts(self) -> dict[str, Any]:
        """For those who ask how servers are."""
        status = self.status()
        crossing = self._crossing
        objects = len(crossing.bridge.objects) if crossing is not None else 0
        more = {"listening": status["state"] == "up", "troubles": 0, "registrations": objects}
        ways = [{**way, **more} for way in status["directions"]]
        name, trouble = self._described.file.name, status["trouble"]
        foreign = {"kind": "bridge", "name": name, "sides": {}, "directions": ways, "trouble": trouble}
        return {"name": name, "foreign": foreign, "bridge": status}

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            with guarded("hla bridge"):
                try:
                    if self._crossing is None:
                        self._stopping.wait(self._described.file.poll)
                        if not self._stopping.is_set():
                            self._come()
                        continue
                    self._something.clear()
                    self._presence.look()
                    if any(each.has_learned() for each in self._surrogates):
                        self._extend()
                    if not self._crossing.round():
                        self._something.wait(self._crossing.ask() or self._described.file.poll)
                except (JbiError, ConfigurationError) as exc:
                    if exc.message != self._trouble:
                        log.warning("the bridge of %s leaves: %s", self._between(), exc.message)
                    self._trouble = exc.message
                    self._leave()
                except BaseException:
                    self._leave()
                    raise

    def _between(self) -> str:
        return " and ".join(each.federation for each in self._surrogates)

    def _come(self) -> None:
        """Join both federations, if both are there. Raises ConfigurationError."""
        file, names = self._described.file, self._described.sides
        one, other = self._surrogates
        try:
            self._presence.come((one.execution(), other.execution()))
            for there, surrogate in zip(names[::-1], self._surrogates, strict=True):
                surrogate.come(f"{file.name}:{there}", self._something.set)
            plan, saved_as = self._planned()
            self._kept = self._saves.of(*saved_as) if file.saves else self._kept
            crossing = Crossing(self._surrogates, self._saves, file.flow.queue, self._told)
            crossing.declare(plan, saved_as, self._kept)
        except ConfigurationError:
            self._leave()
            raise
        except JbiError as exc:
            if exc.message != self._trouble:
                log.warning("the bridge of %s waits: %s", self._between(), exc.message)
            self._trouble = exc.message
            self._leave()
            return
        with self._lock:
            self._crossing, self._trouble = crossing, ""
        log.info("the bridge of %s is up", self._between())

    def _planned(self) -> tuple[Plan, tuple[str, str]]:
        """The plan with the object models that there are, and name and models under which saves are kept. Raises
        ConfigurationError, ErrorReadingFom."""
        file, (one, other) = self._described.file, self._surrogates
        models = {name: each.model(name) for name, each in zip(self._described.sides, (one, other), strict=True)}
        plan = Plan((one.federation, other.federation), self._described.policy, self._described.translated(models),
                    file.time.couple, file.time.lookahead)  # fmt: skip
        return plan, (f"the bridge {file.name} of {self._between()}", f"{one.fom.digest}+{other.fom.digest}")

    def _extend(self) -> None:
        """Go on with object models that have got additions. Where the file does not fit them, it is as it was."""
        assert self._crossing is not None
        try:
            plan, saved_as = self._planned()
        except (ConfigurationError, ErrorReadingFom) as exc:
            self._trouble = f"what has been added to an object model does not go: {exc.message}"
            log.warning("the bridge of %s: %s", self._between(), self._trouble)
            return
        self._crossing.declare(plan, saved_as, self._saves.of(*saved_as))
        self._trouble = ""
        log.info("the bridge of %s knows what has been added to an object model", self._between())

    def _leave(self) -> None:
        """Both federations; what was under way is lost."""
        with self._lock:
            crossing, self._crossing = self._crossing, None
            bridge = crossing.bridge if crossing is not None else Bridge()
            if crossing is not None:
                self._kept = [(label, bridge.kept[label]) for label in bridge.order]
            self._counters.update(bridge.counters)
            for side in (0, 1):
                if lost := len(bridge.links[side].data):
                    self._counters[f"lost.{side}"] += lost
                    there = self._surrogates[1 - side].federation
                    log.warning("%d messages to %s are lost with the bridge", lost, there)
        self._presence.leave()
        for surrogate in self._surrogates:
            surrogate.leave()


def opened(described: Federations, base: Config) -> FederationBridge:
    """Not started yet. Raises ConfigurationError, PortInUseError, StorageError."""
    file = described.file
    configs = [settings_of(described.path, name, side, base) for name, side in file.side.items()]
    return FederationBridge(described, (configs[0], configs[1]), base.metrics)
