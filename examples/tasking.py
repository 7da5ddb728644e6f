"""A service beside publish and subscribe: sensors that take tasks, offered in the same lookup services.

This is what the lookup service is there for besides (the paper's sections 3.4 and 3.5): a service is registered under a
lease, is described by Entries, here those of a service type, and is found by them. Its calls go over the control plane:
plain data each way, the same bounds, TLS and errors as everybody's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Final

from jbi_pubsub import Services, ServiceType
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.wire.control import exported
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.domains.trader import Offer

SENSOR_TASKING: Final = ServiceType.of("examples.SensorTasking", "mandatory string area", "string kind", "long sensors")
MODES: Final = ("coarse", "fine")


class Tasking:
    """The service: `obey(mode)` has the sensors look so, and says how many do. Calls come in threads of their own."""

    def __init__(self, obey: Callable[[str], int]) -> None:
        self._obey = obey

    @exported
    def task(self, caller: Caller, mode: str) -> int:  # noqa: ARG002  # who calls: for an access rule
        """Task the sensors; how many obey. Raises ConfigurationError for a mode that is none."""
        if mode not in MODES:
            raise ConfigurationError(f"no mode {mode!r}", hint=f"There are {' and '.join(MODES)}")
        return self._obey(mode)


def task(services: Services, offer: Offer, mode: str) -> int:
    """Task a service that was found; how many of its sensors obey. Raises ConfigurationError, WireError."""
    with closing(services.connect(offer)) as client:
        return client.call("task", int, mode)
