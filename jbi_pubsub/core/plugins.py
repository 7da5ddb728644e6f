"""What other distributions add to this one: the entry points of one group, by kind and name.

    [options.entry_points]
    jbi_pubsub.plugins =
        language.xql = acme.xql:compile

Kinds: `language`, a predicate language (`core.xpath.register_language` says what it is); `transport`, a way to connect
(`core.wire.transport`). Whoever installs a distribution trusts it; what a peer names is only looked for among what is
installed. One that can't be loaded is told in the log, once, and counts as not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

log = logging.getLogger("jbi_pubsub.plugins")

GROUP: Final = "jbi_pubsub.plugins"


def names(kind: str) -> tuple[str, ...]:
    """Of the plug-ins of a kind that are installed, sorted."""
    return tuple(sorted(name.partition(".")[2] for name in _installed() if name.startswith(f"{kind}.")))


def find(kind: str, name: str) -> Callable[..., Any] | None:
    """What a plug-in offers, something that can be called; None when none of that name is installed, or it can't be
    loaded."""
    point = _installed().get(f"{kind}.{name}")
    return _loaded(point) if point is not None else None


@lru_cache(maxsize=1)
def _installed() -> dict[str, EntryPoint]:
    """Read once: it looks at every distribution."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        if point.name in found and point.value != found[point.name].value:
            log.error("plug-in %s is installed twice: %s counts, %s does not", point.name, found[point.name], point)
        found.setdefault(point.name, point)
    return found


@cache  # as many as are installed
def _loaded(point: EntryPoint) -> Callable[..., Any] | None:
    try:
        made = point.load()
        if not callable(made):
            raise TypeError(f"{point.value} can't be called")
    except Exception as exc:  # foreign code: whatever it does when it is imported
        log.error("plug-in %s (%s) can't be loaded and is left out: %s", point.name, point.value, exc, exc_info=exc)
        return None
    return cast("Callable[..., Any]", made)
