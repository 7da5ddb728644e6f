"""Type repositories that are found, and names of types as people give them."""

from __future__ import annotations

from jbi_pubsub.core.config import Config
from jbi_pubsub.core.errors import ConfigurationError, UnknownUidError
from jbi_pubsub.core.info_object import TypeName
from jbi_pubsub.core.wire import ServiceRef
from jbi_pubsub.protocol.repositories import REPOSITORIES

from .community import by_address, listed, name_of


def named(given: str) -> TypeName:
    """NAME or NAME/VERSION; names may hold a namespace, whose slashes are no versions."""
    name, slash, version = given.rpartition("/")
    return TypeName(name, version) if slash and name and version and "}" not in version else TypeName(given)


def found_repository(config: Config) -> ServiceRef:
    """The only one that the lookup services list. Raises ConfigurationError, UnknownUidError."""
    items = by_address(listed(config, REPOSITORIES))
    if len(items) == 1:
        return items[0].proxy
    names = [f"{', '.join(item.proxy.endpoints)} ({name})" for item in items if (name := name_of(item))]
    if names:
        raise ConfigurationError(
            f"several delegates have a type repository: {'; '.join(sorted(names)[:10])}",
            hint="Name one: --at HOST:PORT",
        )
    raise UnknownUidError(
        "no delegate with a type repository is registered with the lookup services",
        hint="Start one: jbi pad NAME LOCATION --types FOLDER; or open a folder: --folder FOLDER",
    )
