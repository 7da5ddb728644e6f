"""Work on what strangers send, in a child process that can't outlast its limits.

Libraries in C know no limit of time or memory, and a thread of ours that is in them can't be ended: what they do with
what a stranger has made is done in a process of its own. A function by its name takes bytes and gives bytes.

Rules:
- The kernel ends a child: at so much processor time (a timer, RLIMIT_CPU) and memory (RLIMIT_AS), at so much time by
  the clock (an alarm), and with its parent (PR_SET_PDEATHSIG; elsewhere than on Linux the alarm has to do). The parent
  ends it too, with its process group, and always takes its status: no child is left, nor a file, since none is written.
- Each child is a fresh interpreter, never a fork: servers have threads. It gets the environment that Python and the
  C library need, and no other; no open file but the two ends of its pipes.
- What comes back is MessagePack, checked; nothing is unpickled. An error of ours is raised again in the parent.
- How a child has ended is a verdict on its work where the work alone can be the reason: a limit of processor time or
  memory, an exception, a fault of machine code. That it was killed from outside, could not begin, met a full disk, or
  was too slow by the clock (others had the processors) says nothing of it: the same may be done at the next try.
- Few at once, and for each caller so much time: who has used it up waits, whoever else is not held up.
"""

from __future__ import annotations

import gc
import importlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from jbi_pubsub.core.values import decoder_of

from .errors import ChildError, ErrorReport, JbiError, rebuild, report

PLACES: Final = 2
"""Children at once: as many as leave a small machine something to do."""

ALLOWANCE: Final = 40.0
"""Seconds of processor time that a caller may use at once: some 100 schemas of the usual size, or four that run into
their limit."""

REGAINED: Final = 0.05
"""Part of a second regained with each second that goes by: who uses up all for ever takes a twentieth of a core."""

MAX_CALLERS: Final = 1_024
"""Most callers whose use is kept account of."""

PATIENCE: Final = 30.0
"""Seconds that a caller waits for a place."""

KILL_SECONDS: Final = 60.0
"""Time within which a killed process is gone, unless the disk that it waits for is."""

MAX_REPLY_BYTES: Final = 64 << 20
"""Most bytes that a function gives back."""

_KEPT: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "SYSTEMROOT", "TZ", "VIRTUAL_ENV")
_PR_SET_PDEATHSIG: Final = 1
_NICENESS: Final = 5
PASSING: Final = frozenset({"busy", "allowance", "outside", "clock"})
"""Causes (of ChildError) that say nothing of the work."""
_FAULTS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE})
"""Signals that machine code brings upon itself; others come from outside: of operators, of a system without memory."""
_TOLD_OF_STDERR: Final = 500


class Limits(NamedTuple):
    """Limits of one child: `seconds` of processor time, bytes of `memory` (its address space, some 90 MiB of which
    Python and lxml take), seconds by the `clock` (0.0: as `seconds` allow)."""

    seconds: float = 10.0
    memory: int = 512 << 20
    clock: float = 0.0

    @property
    def deadline(self) -> float:
        """Seconds by the clock: a busy machine may take longer for the same work."""
        return self.clock or 2 * self.seconds + 5


LIMITS: Final = Limits()
"""Where nothing else is said."""


class _Request(msgspec.Struct, frozen=True):
    function: str
    data: bytes


class _Reply(msgspec.Struct, frozen=True):
    """`seconds` of processor time that were used."""

    data: bytes = b""
    error: ErrorReport | None = None
    seconds: float = 0.0


class CallerAllowance:
    """Time that each caller has left. Not for several threads at once."""

    def __init__(self, most: float = ALLOWANCE, regained: float = REGAINED) -> None:
        """`most` seconds at once, `regained` of a second each second."""
        self._most = most
        self._regained = regained
        self._used: dict[str, tuple[float, float]] = {}

    def left(self, caller: str, now: float) -> float:
        """Seconds, at most `most`; 0 or less: none, until `wait` has gone by."""
        used, then = self._used.get(caller, (0.0, now))
        return self._most - max(0.0, used - (now - then) * self._regained)

    def wait(self, caller: str, now: float) -> float:
        """Seconds until something is left again."""
        return max(0.0, -self.left(caller, now)) / self._regained if self._regained else math.inf

    def use(self, caller: str, seconds: float, now: float) -> None:
        """Note what was used."""
        used = self._most - self.left(caller, now) + seconds
        self._used.pop(caller, None)
        if len(self._used) >= MAX_CALLERS:
            del self._used[max(self._used, key=lambda known: self.left(known, now))]  # who has most left loses least
        self._used[caller] = (used, now)


class Children:
    """Runs functions in child processes. Several threads may use it at once."""

    def __init__(self, *, places: int = PLACES, allowance: CallerAllowance | None = None) -> None:
        """`places`: children at once. `allowance` of each caller; None: as much as they like."""
        self._places = places
        self._allowance = allowance
        self._changed = threading.Condition()
        self._busy: list[str] = []

    def run(
        self, function: str, data: bytes, *, limits: Limits = LIMITS, caller: str = "", patience: float = PATIENCE
    ) -> bytes:
        """Result that `function` ("module:name", of bytes to bytes) makes of `data`.

        A `caller` who is named has one child at a time, and no more time than its allowance. Raises what the function
        raises of our errors, and ChildError: fact `cause` is "seconds", "memory", "crash" or "exception", or one that
        says nothing of the work (PASSING): "busy" (no place for `patience` seconds), "allowance", "outside",
        "clock".
        """
        with self._place(caller, patience):
            reply = _ask(_Request(function, data), limits)
            with self._changed:
                if self._allowance is not None:
                    self._allowance.use(caller, reply.seconds, time.monotonic())
        if reply.error is not None:
            raise rebuild(reply.error)
        return reply.data

    @contextmanager
    def _place(self, caller: str, patience: float) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_free(caller), patience):
                raise ChildError(
                    f"no child process was free for {patience:g} s",
                    hint="Try again later",
                    cause="busy",
                    seconds=patience,
                )
            wait = self._allowance.wait(caller, time.monotonic()) if self._allowance is not None else 0.0
            if wait > 0:
                raise ChildError(
                    f"{caller or 'all callers together'} used up the time for work in child processes",
                    hint=f"Try again in {math.ceil(wait)} s",
                    cause="allowance",
                    seconds=wait,
                )
            self._busy.append(caller)
        try:
            yield
        finally:
            with self._changed:
                self._busy.remove(caller)
                self._changed.notify_all()

    def _is_free(self, caller: str) -> bool:
        return len(self._busy) < self._places and not (caller and caller in self._busy)


def _ask(request: _Request, limits: Limits) -> _Reply:
    """Start a child, give it its work, take what it says, or what can be said of its end."""
    command = [sys.executable, "-P", *(f"-W{option}" for option in sys.warnoptions), "-c", _START]
    command += [str(os.getpid()), str(limits.seconds), str(limits.memory), str(limits.clock)]
    begun = time.monotonic()
    try:
        child = subprocess.Popen(  # noqa: S603  # our own interpreter with words of our own
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            start_new_session=True,
        )
    except OSError as exc:  # no memory, no process, no file
        return _failed(f"could not begin: {exc}", "outside", 0.0)
    try:
        said, complaint = child.communicate(msgspec.msgpack.encode(request), timeout=limits.deadline + 2)
    except subprocess.TimeoutExpired:
        return _ended(-signal.SIGALRM, b"", limits, limits.seconds)
    finally:
        end(child)
    took = min(time.monotonic() - begun, limits.seconds)
    if child.returncode:
        return _ended(child.returncode, complaint, limits, took)
    try:
        return decoder_of(_Reply).decode(said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _ended(0, complaint, limits, took)


def end(child: subprocess.Popen[Any], *steps: tuple[int, float]) -> None:
    """Nothing of a child stays: no process, no pipe. `steps`: signals (0: none), and the seconds that it has to end by
    each; then it is killed, with what it has started if it has a process group of its own."""
    for number, patience in (*steps, (signal.SIGKILL, KILL_SECONDS)):
        if child.poll() is None:
            with suppress(ProcessLookupError):
                if number == signal.SIGKILL and os.getpgid(child.pid) == child.pid:
                    os.killpg(child.pid, number)
                elif number:
                    child.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(patience)
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def _ended(status: int, complaint: bytes, limits: Limits, took: float) -> _Reply:
    """Reply for a child that did not answer: by what it ended, after `took` seconds."""
    seconds = limits.seconds
    if status in (-signal.SIGPROF, -signal.SIGXCPU):
        return _failed(f"takes more than {seconds:g} s", "seconds", seconds)
    if status == -signal.SIGALRM:
        return _failed(f"did not end within {limits.deadline:g} s by the clock", "clock", seconds)
    if b"MemoryError" in complaint:
        return _too_large(limits, seconds)
    by = f"signal {-status}" if status < 0 else f"status {status}"
    lines = complaint.decode(errors="replace").strip().splitlines()
    said = f": {lines[-1][:_TOLD_OF_STDERR]}" if lines else ""
    cause = "crash" if -status in _FAULTS else "outside"
    return _failed(f"ended its process by {by}{said}", cause, took)


def _too_large(limits: Limits, seconds: float) -> _Reply:
    return _failed(f"takes more than {limits.memory >> 20} MiB of memory", "memory", seconds)


def _failed(message: str, cause: str, seconds: float) -> _Reply:
    return _Reply(error=report(ChildError(message, cause=cause, seconds=seconds)), seconds=seconds)


def environment() -> dict[str, str]:
    """Part of this process's environment that a child of ours gets."""
    found = {name: os.environ[name] for name in _KEPT if name in os.environ}
    found.update((name, value) for name, value in os.environ.items() if name.startswith("PYTHON"))
    above = str(Path(__file__).parents[2])  # the package as this process has it, wherever it was started
    found["PYTHONPATH"] = os.pathsep.join([above, *filter(None, [os.environ.get("PYTHONPATH")])])
    return found


# -- in the child ---------------------------------------------------------------------------------------------------

_START: Final = "from jbi_pubsub.core.child import serve; serve()"


def serve() -> NoReturn:
    """The child's whole life. Its arguments: the parent's process id, and the limits."""
    parent, seconds, memory, clock = sys.argv[1:5]
    limits = Limits(float(seconds), int(memory), float(clock))
    _bind(int(parent), limits)
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever prints does not get between
        reply = _answer(decoder_of(_Request).decode(sys.stdin.buffer.read()), limits)
        answers.write(msgspec.msgpack.encode(reply))
    os._exit(0)  # nothing is open that would have to be closed, and freeing a large tree takes its time


def _bind(parent: int, limits: Limits) -> None:
    """Put the limits on this process."""
    import resource  # here, since a parent does not need it

    end_with(parent)
    for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.deadline)
    signal.setitimer(signal.ITIMER_PROF, limits.seconds)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    whole = math.ceil(limits.seconds) + 1  # if the timer should not do
    resource.setrlimit(resource.RLIMIT_CPU, (whole, whole + 1))
    resource.setrlimit(resource.RLIMIT_AS, (limits.memory, limits.memory))
    os.nice(_NICENESS)
    gc.disable()  # it ends soon; a cycle that costs memory meets the limit


def end_with(parent: int) -> None:
    """This process ends when the thread of process `parent` does that has started it, or has ended already."""
    import ctypes  # here, since a parent does not need it

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before we could ask to be told


def _answer(request: _Request, limits: Limits) -> _Reply:
    try:
        module, _, name = request.function.partition(":")
        data = getattr(importlib.import_module(module), name)(request.data)
        if len(data) > MAX_REPLY_BYTES:
            return _too_large(limits, time.process_time())
        return _Reply(data, seconds=time.process_time())
    except JbiError as exc:
        return _Reply(error=report(exc), seconds=time.process_time())
    except OSError as exc:
        return _failed(f"was hindered: {exc}", "outside", time.process_time())
    except MemoryError:
        pass  # what was being done is freed first
    except Exception as exc:  # noqa: BLE001  # of any kind: what it is, is told
        what = f"{type(exc).__name__}: {exc}"[:_TOLD_OF_STDERR]
        return _failed(f"met an exception that nobody expected: {what}", "exception", time.process_time())
    return _too_large(limits, time.process_time())
