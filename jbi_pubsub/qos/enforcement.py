"""All that enforces policies in one process: managers of a delegate or peer publisher, made from the configuration."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.guard import guarded
from jbi_pubsub.core.info_object import SchemaBundle
from jbi_pubsub.core.quality import Contract, GrantedQos, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.qos import measurement
from jbi_pubsub.qos.meter import Meter, Meters, Monitor
from jbi_pubsub.qos.shaping import Shaper

LOOK_SECONDS: Final = 1.0
"""Between two samples of all series."""


class Enforcement:
    """See pad's Quality."""

    def __init__(self, config: Config, component: str) -> None:
        """`component`: "name@location", or "peer". Raises PolicyError."""
        self.component = component
        self._config = config
        self.shaper = Shaper()
        self.mail_rate = 0.0
        self.meters = Meters(config.qos.monitor_window)
        self._monitor = Monitor(config.qos.monitor_window)
        self._watching = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"quality-{component}", daemon=True)
        self._thread.start()

    def opened(
        self, caller: Caller, action: str, type_name: str, version: str, delivery: str, wish: Wish
    ) -> tuple[Contract, GrantedQos]:
        """A contract with its settings."""
        del caller, action, type_name, version, delivery, wish  # no policies yet: what everybody has
        return Contract(meter=self.meters.meter()), GrantedQos()

    def ended(self, contract: Contract) -> None:
        """Forget it."""
        if isinstance(contract.meter, Meter):
            self.meters.ended(contract.meter)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "component": self.component,
            "shaping": self.shaper.status(),
            "types": self.meters.types(time.monotonic()),
        }

    def series(self) -> dict[str, Any]:
        """Of every number in the status, its last seconds (see `Monitor.status`)."""
        with self._watching:
            return self._monitor.status(time.monotonic())

    def measurement_type(self) -> tuple[SchemaBundle, bytes]:
        """Schema and invariant metadata of our jbi.Measurement."""
        return measurement.schema(), measurement.invariants(self.component)

    def measurements(self) -> Iterator[bytes]:
        """Metadata of a measurement of each series."""
        return measurement.documents(self.component, self.series())

    def close(self) -> None:
        """End the threads."""
        self._stopping.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            with guarded(f"quality of {self.component}"):
                self._look()

    def _look(self) -> None:
        now, wall = time.monotonic(), time.time()
        self.meters.fold(now, wall)
        told = self.status()
        with self._watching:
            self._monitor.sample(told, now, wall)
