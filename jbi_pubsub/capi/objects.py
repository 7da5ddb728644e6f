"""Information objects as the Common API has them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from lxml import etree

from jbi_pubsub.core import info_object
from jbi_pubsub.core.combined import Provenance, combined
from jbi_pubsub.core.errors import JbiError
from jbi_pubsub.core.info_object import Head, TypeName, is_name
from jbi_pubsub.core.spool import SpooledPayload
from jbi_pubsub.core.xml import parse_metadata, to_bytes
from jbi_pubsub.publisher.payloads import BinaryFile

from .errors import (
    InvalidMetadataException,
    InvalidPayloadException,
    UnrecognizedObjectTypeException,
    VersionNumberException,
    exception_of,
)

MAX_TYPE: Final = 1_000
"""Characters of a type's name."""

TYPES_KNOWN: Final = 1_000
_known: Final[dict[tuple[str, str], TypeName]] = {}
"""Types that were named."""
_ENCODING: Final = re.compile(r"""\ufeff?<\?xml\s[^?>]*?encoding\s*=\s*["']([^"']*)""")
_DECLARED: Final = ('<?xml version="1.0" encoding="UTF-8"?>', '<?xml version="1.0"?>')
"""Declarations that nearly all documents with one begin with."""
VERSION: Final = r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})"
"""MAJOR.MINOR: `01.0` is none."""
_VERSION: Final = re.compile(VERSION)


class InfoObject:
    """An information object: made by `Connection.createInfoObject`, or come from the platform. What is made here has
    no id and no extended metadata before it is published."""

    __slots__ = ("_came", "_id", "_metadata", "_payload", "_type")

    def __init__(self, type_: TypeName, metadata: bytes, payload: bytes | Path | BinaryFile | SpooledPayload) -> None:
        self._type = type_
        self._metadata = metadata
        self._payload = payload
        self._id = ""
        self._came: info_object.InfoObject | None = None

    def getType(self) -> str:
        """The name of its type."""
        return self._type.name

    def getVersion(self) -> str:
        """The version of its type, MAJOR.MINOR."""
        return self._type.version

    def getMetadata(self) -> str:
        """Its metadata as text, "" if there are none. Raises InvalidMetadataException for bytes that are no text: see
        `getMetadataBytes`."""
        return _text(self._metadata)

    def getMetadataBytes(self) -> bytes:
        """The same as they were published, byte for byte."""
        return self._metadata

    def getPayload(self) -> bytes:
        """Its payload, b"" if there is none. Raises InvalidPayloadException for a file that can't be read,
        ObjectSizeException for what is too large for memory: see `getPayloadFile`."""
        if isinstance(self._payload, bytes):
            return self._payload
        if isinstance(self._payload, SpooledPayload):
            try:
                return bytes(self._payload)
            except JbiError as exc:
                raise exception_of(exc) from exc
        with self.getPayloadFile() as file, self._reading():
            return file.read()

    def getPayloadFile(self) -> BinaryIO:
        """The same as a file to read, from its beginning; another one each time. A large payload that has come is never
        in memory whole. Raises InvalidPayloadException."""
        if isinstance(self._payload, bytes):
            return io.BytesIO(self._payload)
        if isinstance(self._payload, SpooledPayload):
            return self._payload.open()
        if isinstance(self._payload, Path):
            with self._reading():
                return self._payload.open("rb")
        raise InvalidPayloadException(
            "the payload is a file that the platform reads when the object is published",
            hint="Read it yourself, or give its Path",
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as exc:  # ValueError: a zero byte
            reason = getattr(exc, "strerror", None) or exc
            raise InvalidPayloadException(f"payload {str(self._payload)[:200]!r}: {reason}") from exc

    def getInfoObjectID(self) -> str:
        """The id that the platform gave it when it was published the last time, "" before."""
        return self._id

    def getExtendedMetadata(self) -> str:
        """Facts of the platform on an object that has come from it, as XML (schemas/extended_metadata.xsd): type, time
        of publication, id, publisher (its registration), lengths. "" of one that has not."""
        if self._came is None:
            return ""
        at = self._came.platform
        head = Head(
            self._came.object_id, at.registration, at.sequence, at.published, self._type.name, self._type.version, b"",
            at.payload_length, at.hops, at.via,
        )  # fmt: skip
        document = combined(head, Provenance(at.registration))
        for length in document.iter("{*}MetadataLength"):
            length.text = str(at.metadata_length)
        return etree.tostring(document, encoding="unicode")

    def __repr__(self) -> str:
        return f"<InfoObject {self._type} {self._id or 'not published'}>"


def quickly_made(type_: str, version: str, payload: object, metadata: object) -> InfoObject | None:
    """A new one of what most are made of, for a quarter of what `made` costs; None for anything else."""
    known = _known.get((type_, version)) if type(type_) is str and type(version) is str else None
    if known is None or type(payload) is not bytes or type(metadata) is not str or not _is_utf8(metadata):
        return None
    try:
        return InfoObject(known, metadata.encode(), payload)
    except UnicodeEncodeError:
        return None


def made(type_: str, version: str, payload: object, metadata: object) -> InfoObject:
    """A new one. Raises VersionNumberException, UnrecognizedObjectTypeException, InvalidPayloadException,
    InvalidMetadataException."""
    named = type_of(type_, version)
    if metadata is None:
        data = b""
    elif isinstance(metadata, bytes):
        data = metadata
    elif isinstance(metadata, str):
        try:
            data = _bytes(metadata)
        except UnicodeEncodeError as exc:
            raise InvalidMetadataException("metadata hold half a surrogate pair, which is not a character") from exc
    else:
        raise InvalidMetadataException(
            f"metadata are {type(metadata).__name__}", hint="Give text or bytes of an XML document, or None"
        )
    body: bytes | Path | BinaryFile | SpooledPayload
    if payload is None:
        body = b""
    elif isinstance(payload, bytes | Path | BinaryFile | SpooledPayload):
        body = payload
    elif isinstance(payload, bytearray | memoryview):
        body = bytes(payload)
    else:
        raise InvalidPayloadException(
            f"payload is {type(payload).__name__}",
            hint="Give bytes, the Path of a file, one that is open for reading in binary, or None",
        )
    return InfoObject(named, data, body)


def come(obj: info_object.InfoObject) -> InfoObject:
    """One that has come from the platform."""
    large = obj.spooled if isinstance(obj, info_object.LargeObject) else None
    found = InfoObject(obj.type, obj.metadata, obj.payload if large is None else large)
    found._came, found._id = obj, obj.object_id
    return found


def type_of(name: str, version: str) -> TypeName:
    """A type by its name and version; the same object each time, of the first thousand. Raises VersionNumberException,
    UnrecognizedObjectTypeException."""
    if (known := _known.get((name, version))) is not None:
        return known
    if not _VERSION.fullmatch(version):
        raise VersionNumberException(
            f"{version[:60]!r} is not a version number", hint="They are MAJOR.MINOR, as in 1.0"
        )
    if not name.strip() or len(name) > MAX_TYPE or not is_name(name):
        raise UnrecognizedObjectTypeException(
            f"{name[:60]!r} is not a name of a type", hint=f"1 to {MAX_TYPE} printable characters"
        )
    if len(_known) >= TYPES_KNOWN:
        return TypeName(name, version)
    return _known.setdefault((name, version), TypeName(name, version))


def _is_utf8(text: str) -> bool:
    """Whether a document says so, or nothing."""
    if not text.startswith(("<?xml", "\ufeff")) or text.startswith(_DECLARED):
        return True
    declared = _ENCODING.match(text)
    return declared is None or declared[1].upper() == "UTF-8"


def _bytes(text: str) -> bytes:
    """A document's bytes: as it is in UTF-8, unless it says that it is in another encoding."""
    return text.encode() if _is_utf8(text) else to_bytes(text)


def _text(data: bytes) -> str:
    try:
        if not data.startswith(b"<?xml") and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            return data.decode("utf-8-sig")
        encoding = parse_metadata(data).getroottree().docinfo.encoding or "UTF-8"
        return data.decode("utf-8-sig" if encoding.upper() == "UTF-8" else encoding)
    except (JbiError, UnicodeDecodeError, LookupError) as exc:
        raise InvalidMetadataException(
            f"the metadata are not text: {exc}", hint="getMetadataBytes gives them as they are"
        ) from exc
