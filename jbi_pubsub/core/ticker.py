"""Jobs that a process does every so many seconds, all on one thread instead of one each.

A job on that thread is short and local: it computes, or looks at what is in memory. One that may wait for a disk, a
network or somebody else is `slow`: a few workers do those, a further one only while the others are held up. A job that
holds the thread longer than HELD_SECONDS is told, and slow from then on. What a job raises is told (see guard), and it
is done again. The threads begin with the first job, and end with the last one; a forked
child has none of its parent's jobs.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from .agenda import Agenda
from .guard import guarded

log = logging.getLogger("jbi_pubsub.ticker")

HELD_SECONDS: Final = 1.0
"""Time that a job that is not slow may take."""
WORKERS_MOST: Final = 64
"""Threads of slow jobs: so many disks or peers may hang until others are late. Of many adapters in a process each may
look for a lookup service that is gone."""
LATE_SECONDS: Final = 0.02
"""Time that a slow job waits for a worker before a further one is started."""
IDLE_SECONDS: Final = 10.0
"""After which the one worker ends that waits for a job."""
STOP_SECONDS: Final = 5.0
"""Time to wait for the step of a job that is stopped."""

Step = Callable[[], float | None]
"""Returns seconds until it is called again (infinity: when it is woken), or None for those of its job."""


class Job:
    """A step that is called every `seconds` seconds, counted from its return, once it is started. The ticker's lock
    covers all of it."""

    __slots__ = ("_ticker", "is_over", "is_slow", "name", "seconds", "step", "thread", "woken")

    def __init__(
        self, name: str, seconds: float, step: Step, *, slow: bool = False, ticker: Ticker | None = None
    ) -> None:
        """`name`: for the log, and counts of faults."""
        self._ticker = ticker or _OF_PROCESS
        self.name, self.seconds, self.step, self.is_slow = name, seconds, step, slow
        self.is_over = False
        """Whether it was stopped."""
        self.woken = math.inf
        """When it is called at the latest behind the step that is under way."""
        self.thread: threading.Thread | None = None
        """Where its step is under way."""

    def start(self, after: float = 0.0) -> None:
        """Call it in so many seconds, and again; nothing for one that was started, or stopped. Raises RuntimeError when
        the system has no thread for us."""
        self._ticker.start(self, after)

    def wake(self, after: float = 0.0) -> None:
        """Call it in so many seconds at the latest; if its step is under way, once more behind that."""
        self._ticker.wake(self, after)

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Call it no more; waits for a step that is under way, unless that is what calls. Whether it has ended. Safe to
        repeat, and for one that was not started."""
        return self._ticker.stop(self, timeout)


class Ticker:
    """The threads of jobs (see the module). `_lock` covers all state; steps are called without it."""

    def __init__(self, name: str = "ticker", clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Have no job, and no thread: as in a forked child, where those of its parent are not."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        """For the thread of all, and who waits for an end."""
        self._filled = threading.Condition(self._lock)
        """For workers: there is a slow job that is due, or no job any more."""
        self._jobs: Agenda[Job] = Agenda()
        """When each is called next; infinity: when it is woken, or it is under way."""
        self._late: dict[Job, float] = {}
        """Slow ones that are due, in order, and since when."""
        self._thread: threading.Thread | None = None
        self._workers: set[threading.Thread] = set()
        self._is_one_idle = False
        """A worker waits for a slow job; another one ends instead."""

    def start(self, job: Job, after: float) -> None:
        """See Job."""
        with self._lock:
            if job in self._jobs or job.is_over:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.set_time(job, self._clock() + after)
            self._changed.notify_all()

    def wake(self, job: Job, after: float) -> None:
        """See Job."""
        with self._lock:
            when = self._clock() + after
            if job.thread is not None or job in self._late:
                job.woken = min(job.woken, when)
            elif when < self._jobs.time(job):
                self._jobs.set_time(job, when)
                self._changed.notify_all()

    def stop(self, job: Job, timeout: float) -> bool:
        """See Job. Who stops the last one waits for the threads, too."""
        us, ends = threading.current_thread(), time.monotonic() + timeout
        with self._lock:
            job.is_over = True
            self._jobs.discard(job)
            self._late.pop(job, None)
            threads = {*self._workers, *([self._thread] if self._thread is not None else [])}
            self._changed.notify_all()
            self._filled.notify_all()
            has_ended = self._changed.wait_for(lambda: job.thread in (None, us) or not job.thread.is_alive(), timeout)
            if us not in threads:
                left = ends - time.monotonic()
                self._changed.wait_for(lambda: self._jobs or not (self._thread or self._workers), left)
            ended = threads - self._workers - {self._thread, us}
        for thread in ended:
            thread.join(timeout)
        return has_ended

    # -- the thread of all ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._call(job)

    def _next(self) -> Job | None:
        """Wait until a job is due; slow ones go to the workers. None: there is none any more."""
        with self._lock:
            while self._jobs:
                now = self._clock()
                job = self._jobs.pop(now)
                if job is None:
                    left = min(self._jobs.first() - now, self._help(now))
                    self._changed.wait(left if left < threading.TIMEOUT_MAX else None)
                    continue
                if not job.is_slow:
                    job.thread = threading.current_thread()
                    return job
                self._late[job] = now
                self._filled.notify()
            self._thread = None
            self._changed.notify_all()
        return None

    def _help(self, now: float) -> float:
        """Under the lock: start a worker where a slow job has waited for one. Seconds until one may be missing."""
        if not self._late or len(self._workers) >= WORKERS_MOST:
            return math.inf
        left = next(iter(self._late.values())) + LATE_SECONDS - now
        if self._workers and left > 0:
            return left
        worker = threading.Thread(target=self._work, name=f"{self._name}-slow", daemon=True)
        try:
            worker.start()
        except RuntimeError as exc:  # the system has none for us now
            log.warning("no thread for %s, trying again: %s", next(iter(self._late)).name, exc)
        else:
            self._workers.add(worker)
        return LATE_SECONDS

    def _work(self) -> None:
        """A worker's life."""
        us = threading.current_thread()
        while True:
            with self._lock:
                if not self._late and not self._is_one_idle:
                    self._is_one_idle = True
                    self._filled.wait_for(lambda: self._late or not self._jobs, IDLE_SECONDS)
                    self._is_one_idle = False
                if not self._late:
                    self._workers.discard(us)
                    self._changed.notify_all()
                    return
                job = next(iter(self._late))
                del self._late[job]
                job.thread = us
            self._call(job)

    def _call(self, job: Job) -> None:
        pause, began = job.seconds, self._clock()
        try:
            with guarded(job.name):
                said = job.step()
                pause = job.seconds if said is None else said
        except SystemExit:  # as it ends a thread: it ends the job, and none of the others
            self.stop(job, 0.0)
        now = self._clock()
        if not job.is_slow and now - began > HELD_SECONDS:
            log.warning("%s delayed all other jobs for %.1f s: it now runs on its own", job.name, now - began)
        with self._lock:
            job.is_slow |= now - began > HELD_SECONDS
            if job in self._jobs:
                self._jobs.set_time(job, min(now + pause, job.woken))
            job.woken, job.thread = math.inf, None
            self._changed.notify_all()


_OF_PROCESS: Final = Ticker()


def jobs() -> frozenset[Job]:
    """Jobs of this process that were started and not stopped."""
    with _OF_PROCESS._lock:
        return frozenset(_OF_PROCESS._jobs)


os.register_at_fork(after_in_child=_OF_PROCESS.forget)
