"""Use that this process makes of its machine, and its losses, for conditions that ask."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Final

import msgspec

from jbi_pubsub.core.quality import Resources

LOOK_SECONDS: Final = 0.2
"""Seconds for which what was seen is told again."""

_STATM: Final = Path("/proc/self/statm")


class ProcessUse:
    """Looks when it is asked. One thread at a time."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._last = clock(), cpu()
        self._seen: tuple[float | None, float | None] = memory(), None

    def look(self) -> tuple[float | None, float | None]:
        """Resident bytes, None where the system does not say; share of a core since the last look, None at first."""
        now = self._clock()
        at, spent = self._last
        if now - at >= LOOK_SECONDS:
            cpu = self._cpu()
            self._seen = memory(), (cpu - spent) / (now - at)
            self._last = now, cpu
        return self._seen


COUNT_SECONDS: Final = 2.0
"""Between two counts: they are of all subscriptions, 0.1 s of 200,000."""


class Losses:
    """Looks when it is asked. One thread at a time."""

    def __init__(self, counted: Callable[[], tuple[int, int]], clock: Callable[[], float] = time.monotonic) -> None:
        """`counted`: how many objects were matched, and lost, in all."""
        self._counted = counted
        self._clock = clock
        self._last = clock(), *counted()
        self._seen: float | None = None

    def look(self) -> float | None:
        """The part of the objects of the last seconds that was lost; None when it is not known yet."""
        now = self._clock()
        at, matched, lost = self._last
        if now - at >= COUNT_SECONDS:
            self._last = now, *self._counted()
            came, went = self._last[1] - matched, self._last[2] - lost
            self._seen = min(1.0, max(0, went) / came) if came > 0 else 0.0  # who has ended is not counted any more
        return self._seen


class ProcessResources:
    """Resources of a process that conditions may ask about. One thread at a time."""

    def __init__(self) -> None:
        self._use = ProcessUse()
        self._queued: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._losses: Losses | None = None

    def watch(self, queued: Callable[[], tuple[int, int]], counted: Callable[[], tuple[int, int]]) -> None:
        """`queued` says how many objects, and bytes, wait; `counted` how many were matched, and lost."""
        self._queued = queued
        self._losses = Losses(counted)

    def added(self, known: Resources, asked: Container[str]) -> Resources:
        """Resources of a link, with those of this process that are `asked` for."""
        memory, cpu = self._use.look()
        is_asked = "queue" in asked or "queue_bytes" in asked
        queue, queue_bytes = self._queued() if is_asked else (None, None)
        loss = self._losses.look() if self._losses is not None and "loss" in asked else None
        return msgspec.structs.replace(known, memory=memory, cpu=cpu, queue=queue, queue_bytes=queue_bytes, loss=loss)


def memory() -> float | None:
    """Resident bytes of this process (proc(5), statm)."""
    try:
        return float(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not a Linux
        return None
