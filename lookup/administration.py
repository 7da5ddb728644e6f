"""Administration of a lookup service: the groups it serves, those it joins, its port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from jbi_pubsub.core.errors import ConfigurationError, EntryError, OversizeError
from jbi_pubsub.core.wire.address import check_endpoint

PUBLIC_GROUP: Final = ""
"""The group that every client looks in (Jini DJ.2.1)."""

ALL_GROUPS: Final = "*"
"""In the groups of a client: every group (Jini's DiscoveryGroupManagement.ALL_GROUPS). No group can have this name."""

MAX_GROUP: Final = 255
"""Characters of a group name: it travels in a DNS-SD TXT string (RFC 6763 section 6.1: 255 bytes)."""


class RegistrarAdmin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Administration of a lookup service: the groups served ("" is public; () means in none), the locators (host:port)
    of other lookup services to join, the port to listen on, and whether this one was destroyed.

    `chosen` names what an administrator has set, which wins over the configuration from then on. `secret` is what
    this lookup service makes its keys at other lookup services from; it never leaves the process and its store.
    """

    service_id: str
    groups: tuple[str, ...] = (PUBLIC_GROUP,)
    locators: tuple[str, ...] = ()
    destroyed: bool = False
    port: int = 0
    chosen: tuple[str, ...] = ()
    secret: str = ""

    def changed(self, **changes: Any) -> RegistrarAdmin:
        """The same as an administrator has set it, or ended it."""
        chosen = dict.fromkeys((*self.chosen, *(name for name in changes if name != "destroyed")))
        return msgspec.structs.replace(self, chosen=tuple(chosen), **changes)

    def configured(self, now: RegistrarAdmin) -> RegistrarAdmin:
        """The same after a restart: what no administrator has set is as it is configured `now`."""
        names = (name for name in ("groups", "locators", "port") if name not in self.chosen)
        return msgspec.structs.replace(
            self, secret=self.secret or now.secret, **{name: getattr(now, name) for name in names}
        )


def check_groups(groups: Sequence[str], most: int) -> tuple[str, ...]:
    """At most so many groups to serve, each once. Raises EntryError, OversizeError."""
    if len(groups) > most:
        raise OversizeError(f"{len(groups)} groups", hint=f"At most {most}")
    for group in groups:
        if len(group) > MAX_GROUP or not group.isprintable() or "," in group or group == ALL_GROUPS:
            raise EntryError(
                f"{group!r} is not a group to serve",
                hint=f'At most {MAX_GROUP} printable characters without comma; "{ALL_GROUPS}" is for clients',
                group=group,
            )
    return tuple(dict.fromkeys(groups))


def check_locators(locators: Sequence[str], most: int) -> tuple[str, ...]:
    """At most so many lookup services to join, each once. Raises ConfigurationError, OversizeError."""
    if len(locators) > most:
        raise OversizeError(f"{len(locators)} locators", hint=f"At most {most}")
    return tuple(dict.fromkeys(map(check_endpoint, locators)))


def check_port(port: int) -> int:
    """`port` if there is such a one to listen on, 0 for any free one. Raises ConfigurationError."""
    if not 0 <= port < 65536:
        raise ConfigurationError(f"{port} is not a port", hint="Use 1 to 65535, or 0 for any free one", port=port)
    return port
