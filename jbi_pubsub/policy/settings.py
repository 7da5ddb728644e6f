"""Access rules as [policy] says; the rest of the room is imported when there are some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jbi_pubsub.core import plugins
from jbi_pubsub.core.access import AccessPolicy, AllowAll, Reserved
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.wire.endpoint import Login

if TYPE_CHECKING:
    from jbi_pubsub.policy.manager import AccessManager


def access_of(config: Config, component: str, own: Login | None = None) -> AccessPolicy | None:
    """Access policy of a component by [policy]: who may do what; None: nothing. `own`: how other parts of this process
    log in there. Whoever is given one closes it. Raises ConfigurationError, PolicyError."""
    return managed_access_of(config, component, own)[0]


def managed_access_of(
    config: Config, component: str, own: Login | None = None, *, policies: bool | None = False
) -> tuple[AccessPolicy | None, AccessManager | None]:
    """The same, and the manager of the file whose other rules may be followed."""
    section = config.policy
    access: AccessPolicy | None = None
    source = None
    found = plugins.named("access", section.file, key="policy.file", does="says who may do what")
    if found is not None:
        made, address = found
        access = made(address, component)
    elif section.file:
        from jbi_pubsub.policy import manager  # here: what is off is not imported

        source = manager.access_of(config, component, policies=policies)
        access = Reserved(source)
    if section.users or (own is not None and access is not None):
        from jbi_pubsub.policy.users import with_users  # here, for the same reason

        access = with_users(access or AllowAll(), config, own)
    return access, source
