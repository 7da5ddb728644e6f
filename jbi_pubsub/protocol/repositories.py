"""Type repositories of a federation, asked about a type."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Final

from jbi_pubsub.core.descriptors import Key, StoredType, conflict
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.wire.endpoint import Security
from jbi_pubsub.lookup.client.join import JoinManager
from jbi_pubsub.lookup.item import ServiceTemplate
from jbi_pubsub.protocol.entries import PAD_TYPE, TypesEntry
from jbi_pubsub.protocol.services import TypesProxy

log = logging.getLogger("jbi_pubsub.protocol")

ASKED: Final = 3
"""Delegates that are asked about a type, each of which may take ASK_SECONDS."""

ASK_SECONDS: Final = 2.0
REPOSITORIES: Final = ServiceTemplate(types=(PAD_TYPE,), entries=(TypesEntry().rep(),))
"""Delegates that have one."""


def held_elsewhere(community: JoinManager, security: Security, key: Key, *, but: str = "") -> StoredType | None:
    """Type as the delegates that have a type repository hold it; None when none does, or none answers. Raises
    TypeConflictError when they hold different schemas. `but` is the one that is not asked: us."""
    try:
        items = community.lookup(REPOSITORIES, limit=ASKED + 1, timeout=ASK_SECONDS)
    except JbiError as exc:
        log.warning("other type repositories were not queried for %s: %s", key[1], exc)
        return None
    found: StoredType | None = None
    for item in [item for item in items if item.service_id != but][:ASKED]:
        try:
            with closing(TypesProxy(item.proxy, security, timeout=ASK_SECONDS)) as proxy:
                held = proxy.held(key)
        except JbiError as exc:
            log.warning("%s gave no answer about type %s: %s", ", ".join(item.proxy.endpoints), key[1], exc)
            continue
        if held is None or held.descriptor.key != key:
            continue
        if found is not None and found.descriptor.digest != held.descriptor.digest:
            raise conflict(key[1], found.descriptor.digest, held.descriptor.digest)
        found = found or held
    return found
