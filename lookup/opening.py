"""A lookup service made from the configuration, with what it has kept: of `jbi lookup` and of nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from jbi_pubsub.core.access import AccessPolicy
from jbi_pubsub.core.config import Config
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
    section = config.lookup
    with ExitStack() as stack:
        if access is not None:
            stack.callback(access.close)
        store = Store(Path(section.state)) if section.state else None
        if store is not None:
            stack.callback(store.close)
        registrar = Registrar(
            groups=section.groups, locators=section.locators, port=section.port, log=store, stall=STALL_SECONDS
        )
        if store is not None:
            _restore(registrar, store, gone)
        server = LookupServer(config, registrar, store=store, access=access, destroyed=destroyed)
        stack.pop_all()
    return server


def _restore(registrar: Registrar, store: Store, gone: Callable[[Sequence[ServiceItem]], Container[str]]) -> None:
    now = time.monotonic()
    kept = store.recover(now, time.time(), boot=boot_id())
    ended = gone([each.item for each in kept.items])
    items = tuple(replace(each, expires=now) if each.item.service_id in ended else each for each in kept.items)
    registrar.restore(replace(kept, items=items), now)
    if kept.admin is None:
        store.sync()  # a new one has written its own id down, so that it is the same after a restart
