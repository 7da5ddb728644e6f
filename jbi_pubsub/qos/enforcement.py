"""All that enforces policies in one process: managers of a delegate or peer publisher, made from the configuration."""

from __future__ import annotations

from typing import Any

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.quality import Contract, GrantedQos, Wish
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.qos.tasks import TaskManager


class Enforcement:
    """See pad's Quality."""

    def __init__(self, config: Config, component: str) -> None:
        """`component`: "name@location", or "peer". Raises PolicyError."""
        self.component = component
        self._config = config
        self.tasks = TaskManager(component, bins=config.qos.bins)

    def opened(
        self, caller: Caller, action: str, type_name: str, version: str, delivery: str, wish: Wish
    ) -> tuple[Contract, GrantedQos]:
        """A contract with its settings."""
        del caller, action, type_name, version, delivery, wish  # no policies yet: what everybody has
        return Contract(), GrantedQos()

    def ended(self, contract: Contract) -> None:
        """Forget it."""

    def status(self) -> dict[str, Any]:
        """Plain data."""
        return {"component": self.component, "tasks": self.tasks.status()}

    def close(self) -> None:
        """End the threads."""
        self.tasks.close()
