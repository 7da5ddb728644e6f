"""Presence of a bridge between federations on its two sides: a service in the lookup services of each, which says
between which federation executions it stands (rings.py), and what it does (`jbi status`)."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final
from uuid import uuid4

from jbi_pubsub.core.access import AllowAll
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.wire.address import is_loopback
from jbi_pubsub.core.wire.endpoint import Caller
from jbi_pubsub.core.wire.stream_socket import StreamSocket, listen, refuse
from jbi_pubsub.hla.calls import Front
from jbi_pubsub.hla.exceptions import RingOfBridges
from jbi_pubsub.hla.proxy import HLA_BRIDGE_TYPE, living
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceItem, ServiceTemplate
from jbi_pubsub.policy.settings import access_of
from jbi_pubsub.protocol.services import STATUS

from . import rings
from .rings import Span

KNOWN_SECONDS: Final = 3.0
"""For a lookup service to know of a bridge, and to tell which others there are."""

Facts = Callable[[], dict[str, Any]]


class Presence:
    """Presence of a bridge on both its sides. For one thread; `changed` is called on others."""

    def __init__(
        self, name: str, configs: Sequence[Config], communities: Sequence[JoinManager], facts: Facts,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        """`facts`: what the bridge says of itself; `changed` is called when other bridges come or go. Raises
        PortInUseError, ConfigurationError."""
        self._name = name
        self._bridge = uuid4().hex
        self._own: Span | None = None
        self._changed = changed
        self._others = threading.Event()
        """Other bridges have come, or gone."""
        self._gone: set[str] = set()
        """Bridges that are dead, but for their leases."""
        with ExitStack() as undo:
            self._sides: list[_Side] = []
            servers: list[Front] = []
            for config in configs if _served_as(configs[0]) != _served_as(configs[1]) else configs[:1]:
                servers.append(_front(config, facts))
                undo.callback(servers[-1].stop)
                servers[-1].endpoint.start()
            self.access = servers[0].access
            """Rules of the first side, for what is no side's own."""
            for at, community in enumerate(communities):
                side = _Side(servers[min(at, len(servers) - 1)], configs[at], community, self._others_changed)
                undo.callback(side.stop)
                self._sides.append(side)
            self._undo = undo.pop_all()
        self._items = frozenset(side.item for side in self._sides)
        self.leave()

    def come(self, executions: tuple[str, str]) -> None:
        """Be seen between two federation executions. Raises RingOfBridges when others join them, over whatever
        federations."""
        self._others.clear()
        own = Span(self._bridge, self._name, *executions, time.time_ns() // 1000)
        for side in self._sides:
            side.wait_told()
        self._gone = set()
        if rings.ring(own, self._known()):
            self._gone = {bridge for side in self._sides for bridge in side.dead(self._items)}
        self._refuse_ring(own)
        self._own = own
        self._tell()
        for side in self._sides:
            side.wait_known()
        self._check()

    def look(self) -> None:
        """See what other bridges have changed since. Raises RingOfBridges when this bridge is the one to leave; it is
        not seen any more then."""
        if self._others.is_set():
            self._others.clear()
            self._check()

    def _check(self) -> None:
        if self._own is None:
            return
        try:
            self._refuse_ring(self._own)
        except RingOfBridges:
            self.leave()
            raise
        self._tell()

    def _others_changed(self) -> None:
        self._others.set()
        self._changed()

    def leave(self) -> None:
        """Be seen between no federations any more."""
        self._own = None
        for side in self._sides:
            side.tell([])

    def close(self) -> None:
        """Leave, and end the threads."""
        self._undo.close()

    def _refuse_ring(self, own: Span) -> None:
        found = rings.ring(own, self._known())
        if found:
            names = ", ".join(sorted({span.name for span in found}))
            raise RingOfBridges(
                f"the bridge {own.name} would close a ring: its federations are joined by {names} already",
                hint="One bridge between two federations, in rows and trees; this one waits until the other has gone",
            )

    def _known(self) -> list[Span]:
        return [span for side in self._sides for span in side.heard(self._items) if span.bridge not in self._gone]

    def _tell(self) -> None:
        """Each side of what is heard on the other one, unless both hear the same anyway."""
        assert self._own is not None
        heard = [side.heard(self._items) for side in self._sides]
        is_one_community = bool(self._sides[0].lookups() & self._sides[1].lookups())
        for at, side in enumerate(self._sides):
            side.tell(rings.told(self._own, () if is_one_community else heard[1 - at]))


def _served_as(config: Config) -> tuple[Any, ...]:
    """Settings that a server of ours depends on: where both sides agree in that, it is one."""
    return config.pad.host, config.pad.advertise, config.tls, config.policy


def _front(config: Config, facts: Facts) -> Front:
    """An address where the bridge can be asked how it is, once its endpoint is started."""

    def status() -> dict[str, Any]:
        return {"kind": "federation bridge", **front.facts(), **facts()}

    front = Front(config, "hla-bridge", access_of(config, "bridge") or AllowAll(), {}, status, port=0, data=_no_data)
    return front


class _Side:
    """One of them: what stands in its lookup services, and what is known of others."""

    def __init__(self, front: Front, config: Config, community: JoinManager, changed: Callable[[], None]) -> None:
        self.item = uuid4().hex
        self.front = front
        self._security = config.security()
        self._community = community
        self._changed = changed
        self._told: list[Span] | None = None
        self._cache = community.watch(ServiceTemplate(types=(HLA_BRIDGE_TYPE,)), self)

    def heard(self, own: frozenset[str]) -> list[Span]:
        """Spans of all bridges but ours."""
        return [span for item in self._others(own) for span in rings.spans_of(item.entries)]

    def dead(self, own: frozenset[str]) -> list[str]:
        """Bridges whose process is no more, while their leases go on: nobody listens where they can be asked."""
        lookups = [at for each in self._community.sessions() for at in each.ref.endpoints]
        others = certain(self._others(own), lookups)
        alive = living(others, self._security)
        gone = [item for item in others if item not in alive]
        return [span.bridge for item in gone for span in rings.spans_of(item.entries) if span.hops == 0]

    def _others(self, own: frozenset[str]) -> list[ServiceItem]:
        return [item for item in self._cache.items() if item.service_id not in own]

    def tell(self, spans: list[Span]) -> None:
        """Set what stands in the lookup services from now on; a bridge that waits tells of nothing, and is there."""
        if spans == self._told:
            return
        self._told = spans
        entries = tuple(rings.entry_of(span) for span in spans)
        self._community.join(ServiceItem(self.item, (HLA_BRIDGE_TYPE,), self.front.ref(self.item, STATUS), entries))

    def wait_told(self) -> None:
        """Until the lookup services have told of other bridges. Raises LookupNotFoundError."""
        self._community.wait_watching(self._cache, KNOWN_SECONDS)

    def wait_known(self) -> None:
        """Until they know of ours. Raises LookupNotFoundError."""
        self._community.wait_joined(self.item, KNOWN_SECONDS)

    def lookups(self) -> set[str]:
        """The ids of the lookup services that answer."""
        return {each.registrar_id for each in self._community.sessions() if each.connected}

    def stop(self) -> None:
        """Leave."""
        self._community.leave(self.item)
        self._community.unwatch(self._cache)

    # -- as a listener -------------------------------------------------------------------------------------------

    def service_added(self, item: ServiceItem) -> None:
        """Another bridge has come."""
        if item.service_id != self.item:
            self._changed()

    def service_changed(self, old: ServiceItem, new: ServiceItem) -> None:  # noqa: ARG002  # the listener's form
        """Another bridge tells of other spans."""
        self.service_added(new)

    def service_removed(self, item: ServiceItem) -> None:
        """Another bridge has left."""
        self.service_added(item)


def certain(items: Sequence[ServiceItem], lookups: Iterable[str]) -> list[ServiceItem]:
    """Services of which it is certain where they are. A loopback address may be that of another host, unless the lookup
    services that tell of it have such addresses, too: these are on this one."""
    if all(map(_is_loopback, lookups)):
        return list(items)
    return [item for item in items if not any(map(_is_loopback, item.proxy.endpoints))]


def _is_loopback(endpoint: str) -> bool:
    return is_loopback(endpoint.rpartition(":")[0].strip("[]"))


def _no_data(sock: socket.socket, caller: Caller) -> None:  # noqa: ARG001  # an endpoint's handler
    """A bridge has no data connections."""
    line = StreamSocket(sock)
    listen(line)
    refuse(line, "a bridge between federations takes no data")
