"""Endpoints that this process reaches by others: those of a network that only somebody else on this host is on.

References from there name endpoints of there, which mean somebody else here, or nobody. So once a process has taken
such a detour it reaches those endpoints alone, each by its own way; all above it, and what is checked of certificates,
goes by the names of there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from jbi_pubsub.core.errors import WireError

SHOWN: Final = 200
_lock: Final = threading.Lock()
_ways: dict[str, str] = {}
_by: list[str] = []


def take(by: str, ways: Mapping[str, str]) -> None:
    """Reach the endpoints of `ways` by their values from now on, and no others; `by` says whose they are, as in "node
    tent-3"."""
    with _lock:
        _by[:] = [by]
        _ways.clear()
        _ways.update(ways)


def leave() -> None:
    """Reach all endpoints as they are named."""
    with _lock:
        _by.clear()
        _ways.clear()


def is_taken() -> bool:
    """Whether what is reached is somebody else's, and not where its name says."""
    return bool(_by)


def way_to(endpoint: str) -> str:
    """Where to connect for an endpoint. Raises WireError."""
    if not _by:
        return endpoint
    with _lock:
        found, by = _ways.get(endpoint, ""), "".join(_by)
    if by and not found:
        raise WireError(
            f"{endpoint[:SHOWN]} is not reached through the network of nodes, only {by} itself is",
            hint="Whatever else is on its host or network is reached from there",
            endpoint=endpoint[:SHOWN],
        )
    return found or endpoint
