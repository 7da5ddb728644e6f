"""Registration of an RTI, and what its calls take: for those who look for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from jbi_pubsub.core.wire.dial import is_gone
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.entry import Entry
from jbi_pubsub.lookup.item import ServiceItem

from .exceptions import ErrorReadingFom

RTI: Final = "rti"
"""Name of the exported object."""
RTI_LINK_TYPE: Final = "jbi.RtiLink"
"""Further service type of a federation execution whose RTI is elsewhere."""
HLA_BRIDGE_TYPE: Final = "jbi.HlaBridge"
"""Service type of a bridge between two federation executions, in the lookup services of both its sides."""
MODEL_SECONDS: Final = 600.0
"""For an object model to come: over a slow line one of some megabytes takes minutes."""
SERVERS_MOST: Final = 20
"""That are asked whether they live."""


@dataclass(frozen=True, kw_only=True)
class Rti(Entry):
    """A federation execution: its name, and the digest of its object model."""

    entry_name = "jbi.Rti"
    federation: str | None = None
    model: str | None = None


def living(items: Sequence[ServiceItem], security: Security) -> list[ServiceItem]:
    """Without those whose server has died, while the lookup services hold them until their leases end."""
    servers = {item.proxy.endpoints: item.proxy for item in items}
    gone = {at for at, proxy in list(servers.items())[:SERVERS_MOST] if is_gone(proxy, security)}
    return [item for item in items if item.proxy.endpoints not in gone]


class Module(NamedTuple):
    """A module of an object model: its name, for messages, and what it says."""

    name: str
    data: bytes


Layers = tuple[tuple[Module, ...], ...]
"""Modules of a federation: those of its creation, and each addition by a federate that joined."""


def modules_of(paths: Sequence[str | Path]) -> list[Module]:
    """Modules in files. Raises ErrorReadingFom."""
    found = []
    for path in map(Path, paths):
        try:
            found.append(Module(path.name, path.read_bytes()))
        except OSError as exc:
            raise ErrorReadingFom(
                f"the module {path} can't be read: {exc.strerror}", hint="Give a file in OMT XML", file=str(path)
            ) from exc
    return found
