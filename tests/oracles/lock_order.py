"""The order of locks, as the suite sees it: JBI_LOCK_ORDER=1 python -m pytest ...

Every lock that the product makes is known by where it is made (file and attribute). Whoever takes a lock while he holds
others makes an edge of the graph "held before". A circle in it is a deadlock that waits for its day: the test in which
it comes up fails, with both ways. What was seen is compared with docs/locks.md at the end of the run.
"""

from __future__ import annotations

import _thread
import atexit
import linecache
import os
import re
import sys
import threading
import traceback
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
OURS: Final = tuple(str(ROOT / room) for room in ("jbi_pubsub", "pad", "lookup", "codegen"))
_MADE: Final = {"Lock": threading.Lock, "RLock": threading.RLock}
_ASSIGNED: Final = re.compile(r"(?:self\.)?(\w+)(?::[^=]+)? = ")

edges: dict[str, dict[str, str]] = defaultdict(dict)
"""Held -> taken then -> where that was first seen."""
circles: list[str] = []
"""Descriptions of those not told yet."""
_guard = _thread.allocate_lock()
_held = threading.local()


class OrderedLock:
    """A lock of the product that notes what is held when it is taken."""

    def __init__(self, inner: Any, name: str) -> None:
        self._inner = inner
        self.name = name

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of a lock."""
        if blocking:
            self._note()
        taken: bool = self._inner.acquire(blocking, timeout)
        if taken:
            _stack().append(self)
        return taken

    def release(self) -> None:
        """As of a lock."""
        self._inner.release()
        _drop(self)

    def locked(self) -> bool:
        """As of a lock."""
        return bool(self._inner.locked()) if hasattr(self._inner, "locked") else self in _stack()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _note(self) -> None:
        stack = _stack()
        if not stack or self in stack or getattr(_held, "noting", False):
            return
        for each in {held.name for held in stack}:
            if each != self.name and self.name not in edges[each]:
                self._add(each)

    def _add(self, held: str) -> None:
        _held.noting = True
        try:
            where = "".join(traceback.format_stack(sys._getframe(3), limit=6))
            with _guard:
                edges[held][self.name] = where
                way = _way(self.name, held)
                if way:
                    circles.append(f"{held} -> {' -> '.join(way)}\n{where}")
        finally:
            _held.noting = False

    # what threading.Condition asks of a lock that it waits with

    def _is_owned(self) -> bool:
        return self in _stack() if not hasattr(self._inner, "_is_owned") else bool(self._inner._is_owned())

    def _release_save(self) -> Any:
        count = _stack().count(self)
        for _ in range(count):
            _drop(self)
        if hasattr(self._inner, "_release_save"):
            return count, self._inner._release_save()
        self._inner.release()
        return count, None

    def _acquire_restore(self, state: Any) -> None:
        count, inner = state
        if hasattr(self._inner, "_acquire_restore"):
            self._inner._acquire_restore(inner)
        else:
            self._inner.acquire()
        _stack().extend([self] * count)

    def _at_fork_reinit(self) -> None:
        self._inner._at_fork_reinit()


def circles_seen() -> list[str]:
    """Those that came up since the last call."""
    with _guard:
        seen, circles[:] = list(circles), []
    return seen


def _stack() -> list[OrderedLock]:
    found: list[OrderedLock] | None = getattr(_held, "stack", None)
    if found is None:
        found = _held.stack = []
    return found


def _drop(lock: OrderedLock) -> None:
    stack = _stack()
    for at in range(len(stack) - 1, -1, -1):
        if stack[at] is lock:
            del stack[at]
            return


def _way(start: str, end: str) -> list[str]:
    """Names on a way from `start` to `end`; [] for none."""
    ways, seen = [[start]], {start}
    while ways:
        way = ways.pop()
        for each in edges.get(way[-1], {}):
            if each == end:
                return [*way, each]
            if each not in seen:
                seen.add(each)
                ways.append([*way, each])
    return []


def _named(frame: Any) -> str:
    """file:Class.attribute of what is made in that frame; "" if the product did not make it."""
    while frame is not None and frame.f_code.co_filename == threading.__file__:
        if isinstance(frame.f_locals.get("self"), threading.Event):
            return ""  # nobody holds it while he takes another
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(OURS):
        return ""
    file = Path(frame.f_code.co_filename).resolve().relative_to(ROOT).as_posix()
    said = _ASSIGNED.match(linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip())
    owner = frame.f_locals.get("self")
    kind = f"{type(owner).__name__}." if owner is not None else ""
    return f"{file}:{kind}{said[1] if said else frame.f_lineno}"


def install() -> None:
    """From now on every lock that the product makes is an ordered one."""

    def made(kind: str) -> Any:
        def make() -> Any:
            inner = _MADE[kind]()
            name = _named(sys._getframe(1))
            return OrderedLock(inner, name) if name else inner

        return make

    threading.Lock = made("Lock")  # type: ignore[misc,assignment]  # for the run of the suite
    threading.RLock = made("RLock")  # type: ignore[misc]


def write(path: Path) -> None:
    """What was seen: a line "held taken" each."""
    path.write_text("".join(sorted(f"{held} {taken}\n" for held, all_taken in edges.items() for taken in all_taken)))


if os.environ.get("JBI_LOCK_ORDER"):
    install()
    if os.environ["JBI_LOCK_ORDER"] != "1":
        atexit.register(lambda: write(Path(os.environ["JBI_LOCK_ORDER"]) / f"{os.getpid()}.txt"))
