"""Endpoints that this process reaches by others: those of a network that only somebody else on this host is on.

References from there name endpoints of there, which mean somebody else here, or nobody. So once a process has taken
such a detour it reaches those endpoints alone, each by its own way; all above it, and what is checked of certificates,
goes by the names of there. Ways are asked for anew from time to time, as whoever is there may have been started anew.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Final

from jbi_pubsub.core.errors import JbiError, WireError

SHOWN: Final = 200
RENEWED_SECONDS: Final = 3.0
"""For which ways are good."""

Ways = Mapping[str, str]


class _WayRound:
    """Ways to the endpoints of somebody else."""

    def __init__(self, by: str, ask: Callable[[], Ways]) -> None:
        self.by, self._ask = by, ask
        self._lock = threading.Lock()
        self._asked_at = -math.inf
        self._ways: Ways = {}

    def way_to(self, endpoint: str) -> str:
        """Raises WireError."""
        with self._lock:
            if time.monotonic() - self._asked_at > RENEWED_SECONDS:
                self._renew()
            way = self._ways.get(endpoint, "")
        if not way:
            raise WireError(
                f"{endpoint[:SHOWN]} is not reached through the network of nodes, only {self.by} itself is",
                hint="Whatever else is on its host or network is reached from there",
                endpoint=endpoint[:SHOWN],
            )
        return way

    def _renew(self) -> None:
        try:
            with direct():
                self._ways = self._ask()
        except JbiError as exc:
            raise WireError(f"no way to {self.by}: {exc.message}", hint=exc.hint) from exc
        self._asked_at = time.monotonic()


_taken: list[_WayRound] = []
_is_direct: ContextVar[bool] = ContextVar("_is_direct", default=False)


def take(by: str, ask: Callable[[], Ways]) -> None:
    """Reach the endpoints that `ask` gives by its values from now on, and no others; `by` says whose they are, as in
    "node tent-3". `ask` may connect as if there were no detour, and raise JbiError."""
    _taken[:] = [_WayRound(by, ask)]


def leave() -> None:
    """Reach all endpoints as they are named."""
    _taken.clear()


@contextlib.contextmanager
def direct() -> Iterator[None]:
    """Connections that are made here reach endpoints as they are named."""
    token = _is_direct.set(True)
    try:
        yield
    finally:
        _is_direct.reset(token)


def is_taken() -> bool:
    """Whether what is reached is somebody else's, and not where its name says."""
    return bool(_taken) and not _is_direct.get()


def way_to(endpoint: str) -> str:
    """Where to connect for an endpoint. Raises WireError."""
    for each in () if _is_direct.get() else _taken[:]:
        return each.way_to(endpoint)
    return endpoint
