"""No thread of ours ends by an exception that nobody expected: it is logged, counted and shown in `status`.

Expected errors are handled where they are expected. `guarded` goes around one step of a thread's loop (never around
the whole loop): the step that failed is over, the next one begins. A step must not be tried again at once for ever:
what failed is taken off, or the loop waits as it does after a good step.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger("jbi_pubsub.guard")

TOLD_WHOLE: Final = 8
"""Faults of one kind that are logged with their traceback; of the others each power of two in a line: a peer that finds
a way to cause them must not fill a disk."""

TEXT_MOST: Final = 500
"""Characters of what an exception says: of one of somebody else's a peer may have the say."""

_lock = threading.Lock()
_faults: Counter[str] = Counter()


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """`what` names the step ("lookup reaper"). Whatever the block raises ends there, but not the process's own end."""
    try:
        yield
    except Exception as exc:  # noqa: BLE001  # the one place that takes what nobody expected
        note(what, exc)


def faults() -> dict[str, int]:
    """Failures of the steps of each name in this process, for `status` and metrics. Empty when all is well."""
    with _lock:
        return dict(_faults)


def is_told(count: int) -> bool:
    """Whether there is a line in the log when something has happened so many times."""
    return count <= TOLD_WHOLE or count & (count - 1) == 0


def note(what: str, exc: Exception) -> None:
    """Log and count a fault that its step has caught itself: where one is done a hundred thousand times a second, or
    has to clean up."""
    with _lock:
        _faults[what] += 1
        count = _faults[what]
    text = str(exc)[:TEXT_MOST]
    if count <= TOLD_WHOLE:
        log.error("%s failed and continues: %s: %s", what, type(exc).__name__, text, exc_info=exc)
    elif is_told(count):
        log.error("%s failed and continues, %d times: %s: %s", what, count, type(exc).__name__, text)
