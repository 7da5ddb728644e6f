"""Plug-ins that other distributions add to this one: the entry points of one group, by kind and name.

    [options.entry_points]
    jbi_pubsub.plugins =
        language.xql = acme.xql:compile

Kinds (`KINDS`): `language`, a predicate language (`core.xpath.register_language` says what it is); `transport`, a way
to connect (`core.wire.transport`); `types`, where a type repository is kept (`codegen.types.catalogue`); `store`, where
objects are kept (`pad.past.store_protocol`); `access`, who may do what (`core.access`); `platform`, a side of a bridge
(`bridge.platform`); `network`, a link between nodes (`network.links.link`); `bridge`, a bridge whose sides are both of
a kind (`bridge.file.Described`). Those of this distribution that rooms below must not import stand in `BUILT_IN`, and
are no entry points. Whoever installs a distribution trusts it; what a peer names is only looked for among what is
installed. One that can't be loaded is told in the log, once, and counts as not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final, cast

from .errors import ConfigurationError
from .near import near_hint, near_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger("jbi_pubsub.plugins")

GROUP: Final = "jbi_pubsub.plugins"
KINDS: Final = ("access", "bridge", "language", "network", "platform", "store", "transport", "types")

BUILT_IN: Final = {"bridge.hla": "jbi_pubsub.hla.bridge.plugin:described"}
"""Name and MODULE:ATTRIBUTE."""


def names(kind: str) -> tuple[str, ...]:
    """Names of the plug-ins of a kind that are installed, sorted."""
    return tuple(sorted(name.partition(".")[2] for name in _installed() if name.startswith(f"{kind}.")))


def find(kind: str, name: str) -> Callable[..., Any] | None:
    """Offer of a plug-in, something that can be called; None when none of that name is installed, or it can't be
    loaded."""
    point = _installed().get(f"{kind}.{name}")
    return _loaded(point) if point is not None else None


def named(kind: str, place: str, *, key: str, does: str) -> tuple[Callable[..., Any], str] | None:
    """Meaning of NAME://ADDRESS in a setting: what the plug-in offers, and the address; None for a path. `does` says
    what such plug-ins do. Raises ConfigurationError."""
    name, separator, address = place.partition("://")
    if not separator:
        return None
    made = find(kind, name)
    if made is None:
        near = near_name(name, names(kind))
        meant = f"Did you mean {near}://? Else give" if near and near != name else "Give"
        raise ConfigurationError(
            f"no plug-in {name[:100]!r} {does}; installed: {', '.join(names(kind)) or 'none'}",
            hint=f"{meant} [{key.replace('.', '] ')} a path, or install the plug-in",
            key=key,
        )
    return made, address


@lru_cache(maxsize=1)
def _installed() -> dict[str, EntryPoint]:
    """Read once: it looks at every distribution."""
    from importlib.metadata import EntryPoint, entry_points  # loads `email`, for who may never ask

    found = {name: EntryPoint(name, place, GROUP) for name, place in BUILT_IN.items()}
    for point in entry_points(group=GROUP):
        if (kind := point.name.partition(".")[0]) not in KINDS:
            log.error("plug-in %s is of an unknown kind. %s", point.name, near_hint(kind, KINDS))
        if point.name in found and point.value != found[point.name].value:
            log.error("plug-in %s is installed twice: %s is used, %s is not", point.name, found[point.name], point)
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
