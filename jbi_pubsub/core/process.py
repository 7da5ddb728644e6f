"""Which process this is, and of what version: threads and connections are not a forked child's."""

from __future__ import annotations

import os
from functools import cache

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class Birthplace:
    """Remembers the process that it was made in. Asking the system for the process's number each time would cost more
    than all else that is checked when an object is published."""

    __slots__ = ("_forks",)

    def __init__(self) -> None:
        self._forks = _forks

    def is_here(self) -> bool:
        """Whether this is still the same process, not one forked from it."""
        return self._forks == _forks


@cache
def version() -> str:
    """Version of the installed package that runs here; "" for a source tree that is not installed."""
    from importlib import metadata  # loads `email`, for who may never ask

    try:
        return metadata.version("jbi-pubsub")
    except metadata.PackageNotFoundError:
        return ""
