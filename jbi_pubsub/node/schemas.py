"""Schemas that other nodes have said, by their digests. One thread at a time."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from jbi_pubsub.core.errors import ProtocolError
from jbi_pubsub.core.info_object import SchemaBundle

SCHEMAS_MOST: Final = 2_000
SCHEMA_BYTES: Final = 64 << 20
"""Bytes of all of them."""


class RemoteSchemas:
    """The table. Where there is no room those go that no registration has."""

    def __init__(self, used: Callable[[], Set[bytes]]) -> None:
        """`used`: those that registrations have."""
        self._used = used
        self._schemas: dict[bytes, SchemaBundle] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._schemas)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def get(self, name: bytes) -> SchemaBundle | None:
        """A schema, or None."""
        return self._schemas.get(name)

    def add(self, name: bytes, bundle: SchemaBundle) -> None:
        """Keep one more. Raises ProtocolError: there is no room for it."""
        if name in self._schemas:
            return
        size = _size(bundle)
        if not self._has_room(size):
            for unused in self._schemas.keys() - self._used():
                self._size -= _size(self._schemas.pop(unused))
        if not self._has_room(size):
            raise ProtocolError("a schema for which there is no room", hint="It is shown when others have ended")
        self._schemas[name] = bundle
        self._size += size

    def _has_room(self, size: int) -> bool:
        return len(self._schemas) < SCHEMAS_MOST and self._size + size <= SCHEMA_BYTES


def _size(bundle: SchemaBundle) -> int:
    """Bytes."""
    return sum(len(name) + len(data) for name, data in bundle.documents) + len(bundle.marks)
