"""Shares in what a server has for all: connections, bytes, calls. Knows no network.

Places are bounded. When all are taken, whoever comes gets that of a connection that is good for nothing now, of the
peer that has the most: one that has not called yet, else the one that has been idle longest (its client opens another
one with its next call). A data connection in use and a call under way keep theirs. A peer is who its certificate
or password says, else its host; it has three quarters of the places at most.
"""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from jbi_pubsub.core.errors import BackPressureError

K = TypeVar("K")


@dataclass(eq=False, slots=True)
class PortPlace:
    """A connection's place at a port, and what it is good for. The connection's thread changes it, others look."""

    peer: str = ""
    since: float = field(default_factory=time.monotonic)
    """When it was good for something last: it was accepted, or a call was answered."""
    calls: int = 0
    busy: bool = False
    """A call is under way."""
    leased: bool = False
    """Somebody has got or renewed a lease over it, and may be idle."""
    holder: str = ""
    """Holder of the peer's certificate (`x509.Certificate.holder`), "" without TLS."""
    kept: bool = False
    """Whether this is the data connection of a publisher, subscriber or listener, or a websocket."""
    user: str = ""
    """User who has logged in over it; "" nobody."""
    proof: str = field(default="", repr=False)
    """State of the account that this was checked against: one that has been changed since is no longer it."""

    def patience(self, first: float, idle: float) -> float:
        """Seconds that it may still be idle: `first` before the first call, `idle` after it."""
        return 3600.0 if self.leased else self.since + (idle if self.calls else first) - time.monotonic()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """While a call is under way."""
        self.busy = True
        try:
            yield
        finally:
            self.busy = False
            self.called()

    def called(self) -> None:
        """Note that it was good for something just now."""
        self.calls += 1
        self.since = time.monotonic()


def share_of(most: int) -> int:
    """Most that one peer may have of what there is."""
    return most - most // 4


def has_more(places: Mapping[K, PortPlace], peer: str, most: int) -> bool:
    """Whether this peer has more than its share of `most` places: it was counted as another when it came."""
    return sum(place.peer == peer for place in places.values()) > share_of(most)


def room(places: Mapping[K, PortPlace], peer: str, most: int) -> list[K] | None:
    """Places that have to go for one more of `peer` among `most`: nobody, or one; None: there is no place for it."""
    taken = Counter(place.peer for place in places.values()) if len(places) >= most // 2 else Counter[str]()
    if taken[peer] >= share_of(most):
        of = {peer}
    elif len(places) >= most:
        of = set(taken)
    else:
        return []
    idle = [
        (-taken[place.peer], place.calls > 0, place.since, key)
        for key, place in places.items()
        if place.peer in of and not place.kept and not place.busy
    ]
    return [min(idle, key=lambda each: each[:3])[3]] if idle else None


class PeerShares:
    """An amount that peers have of something of which there is `most`; none has more than its share. Not for several
    threads."""

    def __init__(self, most: int, refusal: str) -> None:
        """`refusal` says of what there is too much."""
        self._most, self._refusal = most, refusal
        self._of = Counter[str]()

    @property
    def taken(self) -> int:
        """By all."""
        return self._of.total()

    def take(self, peer: str, amount: int = 1) -> None:
        """More of it. Raises BackPressureError."""
        if amount and (self.taken + amount > self._most or self._of[peer] + amount > share_of(self._most)):
            raise BackPressureError(self._refusal, hint="Come again")
        self._of[peer] += amount

    def give(self, peer: str, amount: int = 1) -> None:
        """Free it again."""
        self._of[peer] -= amount
        if not self._of[peer]:
            del self._of[peer]

    @contextlib.contextmanager
    def held(self, peer: str, amount: int = 1) -> Iterator[None]:
        """While it is needed. Raises BackPressureError."""
        self.take(peer, amount)
        try:
            yield
        finally:
            self.give(peer, amount)


asked_by: Final = ContextVar("asked_by", default="")
"""The peer for whom this thread or task works; "" for ourselves."""
_guard: Final = threading.Lock()  # covers _turns
_turns: Final[WeakValueDictionary[str, threading.Lock]] = WeakValueDictionary()


@contextlib.contextmanager
def in_turn() -> Iterator[None]:
    """While something is done that takes its time, but not long: one after the other for each peer, so that who asks by
    many threads gets no more of the processor than who asks by one."""
    with _guard:
        turn = _turns.setdefault(asked_by.get(), threading.Lock())
    with turn:
        yield


def peer_of(host: str) -> str:
    """Peer for whom a place is counted without a certificate: the host; of IPv6 its network, whose addresses (2^64) are
    one customer's (RFC 6177)."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
