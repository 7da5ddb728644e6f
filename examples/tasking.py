"""A service beside publish and subscribe: sensors that take tasks, registered in the same lookup services.

This is what the lookup service is there for besides (the paper's sections 3.4 and 3.5): anything with an address may be
registered under a lease, is described by Entries, and is found by them. Its calls go over the control plane: plain data
each way, the same bounds, TLS and errors as everybody's.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import ClassVar, Final
from uuid import uuid4

from jbi_pubsub import Config
from jbi_pubsub.core.errors import ConfigurationError
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.core.wire.control import ControlClient, ControlServer, exported
from jbi_pubsub.core.wire.endpoint import Caller, Endpoint
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.entry import Entry
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate

TYPE: Final = "jbi.examples.Tasking"
EXPORTED: Final = "tasking"
MODES: Final = ("coarse", "fine")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensorTasking(Entry):
    """Entry of sensors that take tasks; a field left out of a template means any."""

    entry_name: ClassVar[str] = "jbi.examples.SensorTasking"
    area: str | None = None
    kind: str | None = None
    sensors: int | None = None


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


@contextmanager
def offered(config: Config, service: Tasking, entry: SensorTasking) -> Iterator[str]:
    """Inside the `with` the service is registered under `entry` everywhere, and answers; its address. Raises
    LookupNotFoundError."""
    endpoint = Endpoint(
        config.pad.host,
        0,
        name="tasking",
        security=config.security(),
        control=ControlServer({EXPORTED: service}).serve,
        data=_no_data,
        advertise=config.pad.advertise,
    )
    endpoint.start()
    service_id = uuid4().hex
    ref = ServiceRef(service_id, EXPORTED, (endpoint.address,), ("task",), endpoint.certificate)
    try:
        with closing(JoinManager(config, name="tasking")) as community:
            community.join(ServiceItem(service_id, (TYPE,), ref, (entry.rep(),)))
            community.wait_joined(service_id, config.lookup.timeout)
            yield endpoint.address
    finally:
        endpoint.stop()


def found(config: Config, wanted: SensorTasking) -> list[tuple[SensorTasking, ServiceRef]]:
    """The services whose entry equals `wanted` where that says something. Raises LookupNotFoundError."""
    template = ServiceTemplate(types=(TYPE,), entries=(wanted.rep(),))
    with closing(JoinManager(config, name="tasking")) as community:
        items = community.lookup(template)
    own = wanted.rep().cls
    return [(SensorTasking.from_rep(e), item.proxy) for item in items for e in item.entries if e.cls == own]


def task(config: Config, at: ServiceRef, mode: str) -> int:
    """Task a service that was found; how many of its sensors obey. Raises ConfigurationError, WireError."""
    with closing(ControlClient(at, config.security())) as client:
        return client.call("task", int, mode)


def _no_data(sock: socket.socket, caller: Caller) -> None:
    """Refuse data, since it has calls alone: whoever opens a data connection is left."""
