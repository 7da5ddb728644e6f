"""Information objects: a type, XML metadata that are never modified, an opaque payload (paper section 1)."""

from __future__ import annotations

from typing import Final

import msgspec

DEFAULT_VERSION: Final = "1.0"
"""Version of an information object type whose publisher names none."""


class TypeName(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """Name and version of an information object type. Each pair has exactly one schema (paper section 2.1)."""

    name: str
    version: str = DEFAULT_VERSION

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class Platform(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the platform adds to an object. `published` is seconds since the epoch at the publisher.

    `sequence` counts the objects of one registration from 1 without gaps; `hops` and `via` are for relays and
    bridges, 0 and () when the object comes straight from its publisher.
    """

    published: float
    registration: str
    sequence: int
    metadata_length: int
    payload_length: int
    hops: int = 0
    via: tuple[str, ...] = ()


class InfoObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An information object. `metadata` are the published bytes; `payload` may have been cut by a filter.

    `platform.payload_length` is the length as published, so that a receiver sees what a filter took away.
    """

    object_id: str
    type: TypeName
    metadata: bytes
    payload: bytes
    platform: Platform


class SchemaBundle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A metadata schema with all it includes and imports, as data: nobody has to open a file or a URL for it.

    `documents` maps the schemaLocation as resolved relative to the main document to bytes; `main` is one of its
    names. `marks` is a marks file (JSON) for schemas that carry no marks, b"" without. `type` is the explicit type
    name; with name "" the marker element, else the root's qualified name, decides.
    """

    main: str
    documents: tuple[tuple[str, bytes], ...]
    marks: bytes = b""
    type: TypeName = TypeName("")
