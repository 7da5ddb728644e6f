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
COUNT_SECONDS: Final = 2.0
"""Between two counts: they are of all subscriptions, 0.1 s of 200,000."""

_STATM: Final = Path("/proc/self/statm")


class ProcessResources:
    """Resources of a process that conditions may ask about, looked at when somebody asks. One thread at a time."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.process_time
    ) -> None:
        self._clock = clock
        self._cpu = cpu
        self._used = clock(), cpu()
        self._use: tuple[float | None, float | None] = memory(), None
        self._queued: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._counted: Callable[[], tuple[int, int]] | None = None
        self._counts = 0.0, 0, 0
        self._loss: float | None = None

    def watch(self, queued: Callable[[], tuple[int, int]], counted: Callable[[], tuple[int, int]]) -> None:
        """`queued` says how many objects, and bytes, wait; `counted` how many were matched, and lost, in all."""
        self._queued = queued
        self._counted = counted
        self._counts = self._clock(), *counted()

    def use(self) -> tuple[float | None, float | None]:
        """Resident bytes, None where the system does not say; share of a core since the last look, None at first."""
        now, (at, spent) = self._clock(), self._used
        if now - at >= LOOK_SECONDS:
            self._used = now, self._cpu()
            self._use = memory(), (self._used[1] - spent) / (now - at)
        return self._use

    def loss(self) -> float | None:
        """The part of the objects of the last seconds that was lost; None when it is not known yet."""
        now, (at, matched, lost) = self._clock(), self._counts
        if self._counted is not None and now - at >= COUNT_SECONDS:
            self._counts = now, *self._counted()
            came, went = self._counts[1] - matched, self._counts[2] - lost
            self._loss = min(1.0, max(0, went) / came) if came > 0 else 0.0  # who has ended is not counted any more
        return self._loss

    def added(self, known: Resources, asked: Container[str]) -> Resources:
        """Resources of a link, with those of this process that are `asked` for."""
        memory, cpu = self.use()
        is_asked = "queue" in asked or "queue_bytes" in asked
        queue, queue_bytes = self._queued() if is_asked else (None, None)
        loss = self.loss() if "loss" in asked else None
        return msgspec.structs.replace(known, memory=memory, cpu=cpu, queue=queue, queue_bytes=queue_bytes, loss=loss)


def memory() -> float | None:
    """Resident bytes of this process (proc(5), statm)."""
    try:
        return float(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):  # not a Linux
        return None
