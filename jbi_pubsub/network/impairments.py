"""Impairments of an emulated network: which datagrams are lost, late, doubled, overtaken, and when each arrives. Pure.

Rules:
- All that goes on a segment shares its rate, one after the other; what it has no room for is lost for everybody.
- Each receiver has its own losses, delays and copies of each sender's datagrams, drawn by a seed of that way alone: of
  the datagrams of a way the same ones are lost each time, whatever goes on others, and whatever else is set.
- Datagrams keep their order, whatever the jitter, but for those that `reorder` holds back.
"""

from __future__ import annotations

import random
from typing import Annotated, Final

import msgspec

from jbi_pubsub.core.toml import TomlTable

LARGEST: Final = 3_600.0
"""Seconds of delay at most."""
QUEUE: Final = 256 << 10

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LARGEST)]


class ImpairmentTerms(TomlTable, frozen=True):
    """A segment, or one receiver on it. The defaults are a perfect one."""

    rate: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    """Bytes a second; 0: any."""
    queue: Annotated[int, msgspec.Meta(ge=1_500, le=1 << 30)] = QUEUE
    """Bytes that wait for the rate; what comes then is lost."""
    loss: Share = 0.0
    """Share of the datagrams that do not arrive."""
    burst: Annotated[float, msgspec.Meta(ge=1, le=1e6)] = 1.0
    """Datagrams that are lost one after the other, in the mean; 1: each by itself."""
    delay: Seconds = 0.0
    """Seconds on the way."""
    jitter: Seconds = 0.0
    """Seconds more at most, by chance."""
    reorder: Share = 0.0
    """Share of the datagrams that others may overtake."""
    reorder_seconds: Seconds = 0.01
    """Seconds that those are held back at most, by chance."""
    duplication: Share = 0.0
    """Share of the datagrams that arrive twice."""
    down: bool = False
    """Whether nothing arrives."""


class SharedMedium:
    """The rate that all datagrams of a segment share, or all to one receiver."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free = 0.0

    def passed(self, size: int, terms: ImpairmentTerms, now: float) -> float | None:
        """When a datagram that comes now is through; None: it has no room."""
        if not terms.rate:
            return now
        free = max(now, self._free)
        if (free - now) * terms.rate + size > max(terms.queue, size):
            return None
        self._free = free + size / terms.rate
        return self._free


class ImpairedWay:
    """A way from one sender to one receiver."""

    __slots__ = ("_is_bad", "_last", "_random")

    def __init__(self, seed: object) -> None:
        """`seed`: whatever names the way, with the seed of the whole."""
        self._random = random.Random(str(seed))  # noqa: S311  # an emulation, to be the same each time
        self._is_bad = False
        """Whether a burst of losses goes on."""
        self._last = 0.0

    def arrivals(self, terms: ImpairmentTerms, now: float) -> tuple[float, ...]:
        """When a datagram that leaves now arrives: never, once or twice."""
        draw = self._random.random
        chance, late, held, behind, double = (draw() for _ in range(5))  # as many each time: see the rules
        if self._is_lost(chance, terms) or terms.down:
            return ()
        due = now + terms.delay + late * terms.jitter
        if held < terms.reorder:
            found = due + behind * terms.reorder_seconds
        else:
            found = self._last = max(self._last, due)
        return (found, found) if double < terms.duplication else (found,)

    def _is_lost(self, chance: float, terms: ImpairmentTerms) -> bool:
        """Losses in bursts are a chain of two states (Gilbert): it leaves the bad one with 1/burst."""
        if terms.burst <= 1 or terms.loss in (0, 1):
            return chance < terms.loss
        leaves = 1 / terms.burst
        enters = min(1.0, leaves * terms.loss / (1 - terms.loss))
        self._is_bad = chance >= leaves if self._is_bad else chance < enters
        return self._is_bad
