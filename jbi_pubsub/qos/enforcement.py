"""All that enforces policies in one process: managers of a delegate or peer publisher, made from the configuration."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from jbi_pubsub.core.access import Impossible
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import PolicyError
from jbi_pubsub.core.info_object import Cause, SchemaBundle
from jbi_pubsub.core.quality import Contract, GrantedQos, PolicyChanged, Resources, Space, Strategy, Wish
from jbi_pubsub.core.ticker import Job
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.policy.context import facts_of
from jbi_pubsub.policy.contradictions import contradictions
from jbi_pubsub.policy.manager import AccessManager
from jbi_pubsub.policy.policyset import PolicySet
from jbi_pubsub.protocol.status.quality import QualityStatus, SeriesStatus
from jbi_pubsub.qos import measurement
from jbi_pubsub.qos.bandwidth import BandwidthManager
from jbi_pubsub.qos.following import Following
from jbi_pubsub.qos.local import LocalManager
from jbi_pubsub.qos.meter import Meter, Meters, Monitor
from jbi_pubsub.qos.process import ProcessResources
from jbi_pubsub.qos.queue import LevelQueue, W
from jbi_pubsub.qos.shaping import Shaper
from jbi_pubsub.qos.tasks import JUDGES_MOST, TaskManager

LOOK_SECONDS: Final = 1.0
"""Between two samples of all series."""


class Enforcement:
    """See pad's Quality."""

    def __init__(self, config: Config, component: str, source: AccessManager | None = None) -> None:
        """`component`: "name@location", or "peer"; `source`: who watches the policy file, if somebody does already.
        Raises PolicyError."""
        self.tasks = TaskManager(component, bins=config.qos.bins, judges=min(JUDGES_MOST, os.cpu_count() or 1))
        self.shaper = Shaper()
        self.mail_rate = 0.0
        self.meters = Meters(config.qos.monitor_window)
        self._own: AccessManager | None = None
        if source is None and config.policy.file and "://" not in config.policy.file:
            source = self._own = AccessManager(Path(config.policy.file), component=component, policies=True)
        self._source = source
        self._rates: Mapping[str, float] = {}
        self.links = BandwidthManager(chunk=config.link.chunk)
        self._process = ProcessResources()
        self.local = LocalManager(
            component,
            installed=self._installed,
            applied=self.tasks.changed,  # what waits goes by the other settings
            measured=self._measured,
            claims=config.policy.trust_claims,
        )
        self.following = Following(config, component, self._from_manager)
        self._installing = threading.Lock()
        """File and manager speak one after the other: whose word counts is so as long as it is put in force."""
        self._file_says = False
        """The policy file says who matters: then it is not asked of a manager."""
        if source is not None:
            source.follow(self._from_file)
        self._monitor = Monitor(config.qos.monitor_window)
        self._job = Job(f"quality of {component}", LOOK_SECONDS, self._look)
        self._job.start(after=LOOK_SECONDS)

    def _installed(self, space: Space) -> None:
        """Take what holds for the space from now on."""
        self.shaper.is_on = space.shaping
        self.tasks.changed(space.strategy)
        self.links.use(self.space)

    @property
    def component(self) -> str:
        """The component that it is of: "name@location", or "peer"."""
        return self.local.component

    @property
    def space(self) -> Space:
        """The space as policies have it, with our shares of its links."""
        return _shared(self.local.policies.space, {} if self._file_says else self._rates)

    def _from_file(self, policies: PolicySet) -> None:
        with self._installing:
            self._file_says = not policies.is_empty
            if self._file_says or not self.following.has_set:
                self.local.install(policies)
            else:
                self._install_managers(*self.following.said)

    def _from_manager(self, policies: PolicySet, rates: Mapping[str, float]) -> None:
        with self._installing:
            if not self._file_says:
                self._install_managers(policies, rates)

    def _install_managers(self, policies: PolicySet, rates: Mapping[str, float]) -> None:
        before, self._rates = self._rates, rates
        self.local.install(policies)
        if rates != before:
            self.links.use(self.space)

    def follow(self, community: JoinManager, service_id: str) -> None:
        """Follow the policy manager found there, unless a file says who matters; `service_id` is ours."""
        if not self._file_says:
            self.following.start(community, service_id)

    def _measured(self, link: str) -> Resources:
        """Resources of a link, as far as they are known, and of this process."""
        return self._process.added(self.links.resources(link), self.local.policies.asks)

    def watch(self, queued: Callable[[], tuple[int, int]], counted: Callable[[], tuple[int, int]]) -> None:
        """`queued` says how many objects, and bytes, wait in all queues; `counted` how many were matched, and lost."""
        self._process.watch(queued, counted)

    @property
    def rounds(self) -> int:
        """Goes up when all contracts were decided anew, by other policies or at another time."""
        return self.local.rounds

    def contradictions(self, type_name: str, version: str, impossible: Impossible) -> list[str]:
        """Warnings about policies whose XPaths are never true for a type, each with its place."""
        policies = self.local.policies
        return [each.told(policies.name) for each in contradictions(policies.rules, type_name, version, impossible)]

    def strategy(self) -> Strategy:
        """Strategy by which levels share what is short, now."""
        return self.local.policies.space.strategy

    def queue_of(self, contract: Contract, lost: Callable[[W, Cause], None]) -> LevelQueue[W]:
        """Queue that holds objects back for a contract."""
        return LevelQueue(contract, lost)

    def opened(
        self,
        caller: Caller,
        action: str,
        type_name: str,
        version: str,
        delivery: str,
        wish: Wish,
        changed: Callable[[GrantedQos], None] | None = None,
    ) -> tuple[Contract, GrantedQos]:
        """A contract with its settings."""
        contract, granted = self.local.contract(caller, action, type_name, version, delivery, wish, changed)
        contract.meter = self.meters.meter()
        return contract, granted

    def granted(self, contract: Contract) -> GrantedQos:
        """Grant that a contract has got by now."""
        return self.local.granted(contract)

    def explain(self, caller: Caller, action: str, type_name: str, version: str) -> dict[str, Any]:
        """Explain what such a contract would get, and why, as plain data."""
        claims = self.local.claims
        return self.local.explain(facts_of(caller, action, type_name, version, component=self.component, claims=claims))

    def explain_contract(self, contract: Contract) -> dict[str, Any]:
        """Explain what one that stands has got, and why, as plain data."""
        return self.local.explain_contract(contract)

    def set(self, key: str, value: str, *, people: bool) -> PolicyChanged:
        """Into the policy file, and in force. Raises PolicyError where another has the say."""
        if self._source is None or (not self._file_says and self.following.has_set):
            raise PolicyError(
                f"{self.component} follows a policy manager, or none: its policy file has no policies of quality",
                hint="`jbi policy set` without --at asks the manager; or start it with --policy FILE",
            )
        version, changed = self._source.set(key, value, people=people)
        return PolicyChanged(version, changed, str(self._source.path.absolute()))

    def ended(self, contract: Contract) -> None:
        """Forget it."""
        self.local.close(contract)
        if isinstance(contract.meter, Meter):
            self.meters.ended(contract.meter)

    def status(self) -> QualityStatus:
        """All but its series."""
        followed = self.following.status()
        faults = (self._source.fault if self._source is not None else "", followed["fault"])
        return QualityStatus(
            component=self.component,
            policy=replace(
                self.local.status(),
                source="file" if self._file_says else followed["source"],
                following=followed["following"],
                fault="; ".join(filter(None, faults)),
            ),
            tasks=self.tasks.status(),
            links=self.links.status(),
            shaping=self.shaper.status(),
            types=self.meters.types(time.monotonic()),
        )

    def series(self) -> dict[str, SeriesStatus]:
        """Series of every number in the status, its last seconds (see `Monitor.status`)."""
        return self._monitor.status(time.monotonic())

    def measurement_type(self) -> tuple[SchemaBundle, bytes]:
        """Schema and invariant metadata of our jbi.Measurement."""
        return measurement.schema(), measurement.invariants(self.component)

    def measurements(self) -> Iterator[bytes]:
        """Metadata of a measurement of each series."""
        return measurement.documents(self.component, self.series())

    def close(self) -> None:
        """End all jobs and threads."""
        self._job.stop()
        self.following.stop()
        self.local.stop()
        if self._own is not None:
            self._own.close()
        self.tasks.close()

    def _rate_of_mail(self, wall: float) -> float:
        """Rate of the link that mail is behind, if it is mail's own; 0: it has none, or no rate."""
        policies = self.local.policies
        mail, other = (
            policies.resolve(
                facts_of(Caller(""), "subscribe", "", "", delivery=delivery, component=self.component), now=wall
            ).link
            for delivery in ("mail", "queue")
        )
        rate = next((each.rate for each in self.space.links if each.name == mail), None)
        return rate if rate is not None and mail != other else 0.0

    def _look(self) -> None:
        now, wall = time.monotonic(), time.time()
        self.mail_rate = self._rate_of_mail(wall)
        self.meters.fold(now, wall)
        told = self.status()
        self.following.look(told.links, told.policy.contracts, told.types)
        self._monitor.sample(told, now, wall)


def _shared(space: Space, rates: Mapping[str, float]) -> Space:
    """With our shares of links in place of their rates."""
    if not rates:
        return space
    links = tuple(
        msgspec.structs.replace(link, rate=rates.get(link.name, link.rate)) if link.rate is not None else link
        for link in space.links
    )
    return msgspec.structs.replace(space, links=links)
