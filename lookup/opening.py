"""A lookup service made from the configuration, with what it has kept: of `jbi lookup` and of nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from msgspec.structs import replace

from jbi_pubsub.core.access import AccessPolicy
from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.lease import STALL_SECONDS
from jbi_pubsub.lookup.item import ServiceItem
from jbi_pubsub.lookup.registrar import Registrar
from jbi_pubsub.lookup.server import LookupServer
from jbi_pubsub.lookup.store import Store, boot_id


def open_lookup(
    config: Config,
    access: AccessPolicy | None = None,
    *,
    destroyed: Callable[[], None] = lambda: None,
    gone: Callable[[Sequence[ServiceItem]], Container[str]] = lambda _: (),
) -> LookupServer:
    """A lookup service with its state restored. `access` is its own, and closed if it comes to nothing. `gone` says
    the ids of those items whose registrants are known to be no more: their leases end. Raises StorageError,
    PortInUseError, ConfigurationError."""
    try:
        return _open(config, access, destroyed, gone)
    except JbiError:
        if access is not None:
            access.close()
        raise


def _open(
    config: Config,
    access: AccessPolicy | None,
    destroyed: Callable[[], None],
    gone: Callable[[Sequence[ServiceItem]], Container[str]],
) -> LookupServer:
    section = config.lookup
    if not section.state:
        registrar = Registrar(groups=section.groups, locators=section.locators, port=section.port, stall=STALL_SECONDS)
        return LookupServer(config, registrar, access=access, destroyed=destroyed)
    store = Store(Path(section.state))
    try:
        now = time.monotonic()
        kept = store.recover(now, time.time(), boot=boot_id())
        ended = gone([each.item for each in kept.items])
        items = tuple(replace(each, expires=now) if each.item.service_id in ended else each for each in kept.items)
        registrar = Registrar(
            groups=section.groups, locators=section.locators, port=section.port, log=store, stall=STALL_SECONDS
        )
        registrar.restore(replace(kept, items=items), now)
        if kept.admin is None:
            store.sync()  # a new one has written its own id down, so that it is the same after a restart
        return LookupServer(config, registrar, store=store, access=access, destroyed=destroyed)
    except JbiError:
        store.close()
        raise
